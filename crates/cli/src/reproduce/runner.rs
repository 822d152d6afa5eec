//! Runs the jobs, some of them in parallel, each as a command of this program in a process of its own.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex};
use std::time::Instant;

use anyhow::Context;

use super::duration;
use super::jobs::{Job, Jobs};
use super::result_cache::{ResultCache, ResultState};
use crate::messages::{hinted, say};
use crate::subprocess::own_command;

/// Runs what is not done yet.
pub struct JobRunner<'a> {
    pub jobs: &'a Jobs,
    /// The numbers of all that must be done, those that are needed before those that need them.
    pub needed: &'a [usize],
    pub cache: &'a ResultCache,
    /// How many at a time.
    pub parallel: usize,
    /// Threads of all of them together; all cores without.
    pub threads: Option<usize>,
}

/// What was begun and what was done, by place among those needed.
struct JobProgress {
    started: Vec<bool>,
    done: Vec<bool>,
    failed: bool,
}

impl JobRunner<'_> {
    pub fn run(&self) -> anyhow::Result<()> {
        let lock = self.cache.lock()?;
        let started = vec![false; self.needed.len()];
        let progress = Mutex::new(JobProgress { done: started.clone(), started, failed: false });
        let changed = Condvar::new();
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.parallel)
                .map(|_| scope.spawn(|| self.run_jobs(&progress, &changed, &lock)))
                .collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
        })
    }

    /// Does one job after the other until none is left, or one failed.
    fn run_jobs(&self, progress: &Mutex<JobProgress>, changed: &Condvar, lock: &File) -> anyhow::Result<()> {
        let held = || progress.lock().expect("no worker panics");
        loop {
            let mut now = held();
            let place = loop {
                if now.failed || now.started.iter().all(|&started| started) {
                    return Ok(());
                }
                match self.next_ready(&now) {
                    Some(place) => break place,
                    None => now = changed.wait(now).expect("no worker panics"),
                }
            };
            now.started[place] = true;
            drop(now);
            let result = self.ensure_result(place, lock);
            let mut now = held();
            now.done[place] = result.is_ok();
            now.failed |= result.is_err();
            changed.notify_all();
            result?;
        }
    }

    /// The first that can begin.
    fn next_ready(&self, progress: &JobProgress) -> Option<usize> {
        let is_done = |job: &usize| self.needed.binary_search(job).is_ok_and(|place| progress.done[place]);
        (0..self.needed.len())
            .find(|&place| !progress.started[place] && self.job(place).needs.iter().all(is_done))
    }

    fn job(&self, place: usize) -> &Job {
        &self.jobs.all()[self.needed[place]]
    }

    /// Makes sure that a result is there.
    fn ensure_result(&self, place: usize, lock: &File) -> anyhow::Result<()> {
        let job = self.job(place);
        match self.cache.state(job) {
            ResultState::Done => return Ok(()),
            ResultState::Missing => (),
            ResultState::Changed => {
                say!("{} differs from its recorded checksum: computing it again", job.output.display());
                self.cache.remove(job)?;
            }
        }
        say!("");
        say!("[{}/{}] {} (about {})", place + 1, self.needed.len(), job.label, duration(job.estimate));
        let start = Instant::now();
        let status = self.command(job, lock)?.status().context("cannot start this program again")?;
        if status.code() == Some(130) || status.code().is_none() {
            say!("stopped; run the same command again to continue");
            std::process::exit(130);
        }
        let log = self.log_path(job);
        if !status.success() {
            let message = format!("this step failed: {}", self.jobs.command(job));
            return Err(match self.parallel > 1 {
                true => hinted(message, format!("see {}", log.display())),
                false => anyhow::anyhow!(message),
            });
        }
        if self.parallel > 1 {
            let _ = std::fs::remove_file(log);
        }
        self.cache.record(job, self.jobs.command(job), start.elapsed().as_secs_f64())
    }

    fn command(&self, job: &Job, lock: &File) -> anyhow::Result<Command> {
        let folder = self.cache.path(job);
        let folder =
            folder.parent().and_then(Path::parent).context("results lie in a folder of their own")?;
        let (program, arguments) = own_command()?;
        let mut command = Command::new(program);
        command.args(arguments);
        command.current_dir(folder).args(self.jobs.arguments(job)).stdin(lock.try_clone()?);
        if job.kind.is_trained() {
            command.arg("--resume");
        }
        if self.parallel > 1 {
            // What several say at once nobody can read.
            command.stderr(Stdio::from(File::create(self.log_path(job))?));
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let share = (self.threads.unwrap_or(cores) / self.parallel).max(1);
            command.args(["--threads", &share.to_string()]);
        } else if let Some(threads) = self.threads {
            command.args(["--threads", &threads.to_string()]);
        }
        Ok(command)
    }

    fn log_path(&self, job: &Job) -> std::path::PathBuf {
        self.cache.path(job).with_extension("log")
    }
}
