//! Running the jobs: those whose needs are met, some side by side, each as a command of this program.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex};
use std::time::Instant;

use anyhow::Context;

use super::cache::{Cache, State};
use super::duration;
use super::jobs::{Job, Jobs};
use crate::messages::{hinted, say};
use crate::this_program::this_program;

/// Runs what is not done yet.
pub struct Steps<'a> {
    pub jobs: &'a Jobs,
    /// The numbers of all that must be done, those that are needed before those that need them.
    pub needed: &'a [usize],
    pub cache: &'a Cache,
    /// How many at a time.
    pub side_by_side: usize,
    /// Threads of all of them together; all cores without.
    pub threads: Option<usize>,
}

/// What was begun and what was done, by place among those needed.
struct Progress {
    begun: Vec<bool>,
    done: Vec<bool>,
    failed: bool,
}

impl Steps<'_> {
    pub fn run(&self) -> anyhow::Result<()> {
        let lock = self.cache.lock()?;
        let begun = vec![false; self.needed.len()];
        let progress = Mutex::new(Progress { done: begun.clone(), begun, failed: false });
        let changed = Condvar::new();
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.side_by_side)
                .map(|_| scope.spawn(|| self.work(&progress, &changed, &lock)))
                .collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
        })
    }

    /// Does one job after the other until none is left, or one failed.
    fn work(&self, progress: &Mutex<Progress>, changed: &Condvar, lock: &File) -> anyhow::Result<()> {
        let held = || progress.lock().expect("no worker panics");
        loop {
            let mut now = held();
            let place = loop {
                if now.failed || now.begun.iter().all(|&begun| begun) {
                    return Ok(());
                }
                match self.ready(&now) {
                    Some(place) => break place,
                    None => now = changed.wait(now).expect("no worker panics"),
                }
            };
            now.begun[place] = true;
            drop(now);
            let result = self.bring(place, lock);
            let mut now = held();
            now.done[place] = result.is_ok();
            now.failed |= result.is_err();
            changed.notify_all();
            result?;
        }
    }

    /// The first that can begin.
    fn ready(&self, progress: &Progress) -> Option<usize> {
        let is_done = |job: &usize| self.needed.binary_search(job).is_ok_and(|place| progress.done[place]);
        (0..self.needed.len())
            .find(|&place| !progress.begun[place] && self.job(place).needs.iter().all(is_done))
    }

    fn job(&self, place: usize) -> &Job {
        &self.jobs.all()[self.needed[place]]
    }

    /// Makes sure that a result is there.
    fn bring(&self, place: usize, lock: &File) -> anyhow::Result<()> {
        let job = self.job(place);
        match self.cache.state(job) {
            State::Done => return Ok(()),
            State::Open => (),
            State::Changed => {
                say!("{} differs from its recorded checksum: computing it again", job.output.display());
                self.cache.forget(job)?;
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
        let log = self.log(job);
        if !status.success() {
            let message = format!("this step failed: {}", self.jobs.command(job));
            return Err(match self.side_by_side > 1 {
                true => hinted(message, format!("see {}", log.display())),
                false => anyhow::anyhow!(message),
            });
        }
        if self.side_by_side > 1 {
            let _ = std::fs::remove_file(log);
        }
        self.cache.note(job, self.jobs.command(job), start.elapsed().as_secs_f64())
    }

    fn command(&self, job: &Job, lock: &File) -> anyhow::Result<Command> {
        let folder = self.cache.path(job);
        let folder =
            folder.parent().and_then(Path::parent).context("results lie in a folder of their own")?;
        let (program, arguments) = this_program()?;
        let mut command = Command::new(program);
        command.args(arguments);
        command.current_dir(folder).args(self.jobs.arguments(job)).stdin(lock.try_clone()?);
        if job.kind.is_trained() {
            command.arg("--resume");
        }
        if self.side_by_side > 1 {
            // What several say at once nobody can read.
            command.stderr(Stdio::from(File::create(self.log(job))?));
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let share = (self.threads.unwrap_or(cores) / self.side_by_side).max(1);
            command.args(["--threads", &share.to_string()]);
        } else if let Some(threads) = self.threads {
            command.args(["--threads", &threads.to_string()]);
        }
        Ok(command)
    }

    fn log(&self, job: &Job) -> std::path::PathBuf {
        self.cache.path(job).with_extension("log")
    }
}
