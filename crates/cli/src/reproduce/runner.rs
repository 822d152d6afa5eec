//! Runs jobs, each in a separate process of this program, up to `--jobs` of them in parallel. Start with
//! [`JobRunner::run`].
//!
//! A job can be stopped (by Ctrl-C or `--job-minutes`): training writes a checkpoint and exits with status 130, and the
//! next run resumes it. After a job was stopped, no other job is started, and this program exits with status 130 too.

use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex};
use std::time::{Duration, Instant};

use anyhow::Context;
use trueshot_cuda::DeviceChoice;

use super::duration;
use super::jobs::{Job, Jobs};
use super::result_cache::{ResultCache, ResultState};
use crate::messages::{STOPPED, hinted, say};
use crate::progress::{check_interrupted, handle_interrupts};
use crate::subprocess::own_command;

/// Runs the jobs whose results are not in the cache.
pub struct JobRunner<'a> {
    pub jobs: &'a Jobs,
    /// The indices of the jobs to run, in ascending order, so that a job comes after the jobs whose results it reads.
    /// Jobs that are not in this list, but whose results these jobs read, have finished.
    pub unfinished: &'a [usize],
    pub cache: &'a ResultCache,
    /// The number of jobs that run at the same time.
    pub parallel: usize,
    /// The number of threads, divided among parallel jobs; `None`: as many as cores.
    pub threads: Option<usize>,
    /// The device to compute on (`--device`); `None`: what each command chooses.
    pub device: Option<DeviceChoice>,
    /// When to stop (`--job-minutes`); `None`: run all jobs.
    pub deadline: Option<Instant>,
}

/// Which jobs were started and which finished, by position in [`JobRunner::unfinished`].
struct JobProgress {
    started: Vec<bool>,
    done: Vec<bool>,
    /// Whether a job failed or was stopped, so that no other job is started.
    ended: bool,
    /// Why a job was stopped, if one was.
    stopped: Option<&'static str>,
}

impl JobRunner<'_> {
    /// Runs all jobs. Returns when they are done, or with the error of the first one that failed; exits the program if
    /// a job was stopped.
    pub fn run(&self) -> anyhow::Result<()> {
        let lock = self.cache.lock()?;
        // Commands get the same Ctrl-C. This program waits for them, to add up the time of stopped runs.
        handle_interrupts();
        let started = vec![false; self.unfinished.len()];
        let progress = JobProgress { done: started.clone(), started, ended: false, stopped: None };
        let progress = Mutex::new(progress);
        let changed = Condvar::new();
        std::thread::scope(|scope| {
            let workers: Vec<_> = (0..self.parallel)
                .map(|_| scope.spawn(|| self.run_jobs(&progress, &changed, &lock)))
                .collect();
            workers.into_iter().try_for_each(|worker| worker.join().expect("no worker panics"))
        })?;
        if let Some(reason) = progress.into_inner().expect("no worker panics").stopped {
            say!("{reason}; run the same command again to continue");
            std::process::exit(STOPPED.into());
        }
        Ok(())
    }

    /// The loop of a worker: runs jobs until all are started, or one has failed or was stopped.
    fn run_jobs(&self, progress: &Mutex<JobProgress>, changed: &Condvar, lock: &File) -> anyhow::Result<()> {
        let lock_progress = || progress.lock().expect("no worker panics");
        loop {
            let mut current = lock_progress();
            let position = loop {
                if current.ended || current.started.iter().all(|&started| started) {
                    return Ok(());
                }
                match self.next_ready(&current) {
                    Some(position) => break position,
                    None => current = changed.wait(current).expect("no worker panics"),
                }
            };
            current.started[position] = true;
            drop(current);
            let result = self.ensure_result(position, lock);
            let mut current = lock_progress();
            current.done[position] = matches!(result, Ok(None));
            current.ended |= !current.done[position];
            // Other workers may wait for this result, or must end.
            changed.notify_all();
            current.stopped = current.stopped.or(result?);
        }
    }

    /// The position of the first job that was not started and whose inputs are done; `None` if all must wait.
    fn next_ready(&self, progress: &JobProgress) -> Option<usize> {
        let is_done =
            |job: &usize| self.unfinished.binary_search(job).map_or(true, |position| progress.done[position]);
        (0..self.unfinished.len())
            .find(|&position| !progress.started[position] && self.job(position).needs.iter().all(is_done))
    }

    fn job(&self, position: usize) -> &Job {
        &self.jobs.all()[self.unfinished[position]]
    }

    /// Runs a job, unless its result is in the cache. `None` if its result is now in the cache, otherwise the reason
    /// why the job was stopped or not started.
    fn ensure_result(&self, position: usize, lock: &File) -> anyhow::Result<Option<&'static str>> {
        let job = self.job(position);
        if check_interrupted().is_break() {
            return Ok(Some("stopped"));
        }
        match self.cache.state(job) {
            ResultState::Done => return Ok(None),
            ResultState::Missing => (),
            ResultState::Changed => {
                say!("{} is missing or does not match its record: computing it again", job.output.display());
                self.cache.remove(job)?;
            }
        }
        let left = self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left.is_some_and(|left| left.is_zero()) {
            return Ok(Some("the time of --job-minutes is over"));
        }
        // An empty line between the messages of two jobs.
        say!("");
        say!("[{}/{}] {} (about {})", position + 1, self.unfinished.len(), job.label, duration(job.estimate));
        let start = Instant::now();
        let status = self.command(job, lock, left)?.status().context("cannot start this program again")?;
        let is_stopped =
            !status.success() && (status.code() == Some(STOPPED.into()) || check_interrupted().is_break());
        // The time of a run that was stopped or killed (no exit code) is part of the duration of the job.
        if is_stopped || status.code().is_none() {
            self.cache.add_time(job, start.elapsed().as_secs_f64())?;
        }
        if is_stopped {
            return Ok(Some("stopped"));
        }
        let log = self.log_path(job);
        if !status.success() {
            let outcome = match status.code() {
                Some(_) => "failed".to_string(),
                None => format!("was killed ({status})"),
            };
            let message = format!("this step {outcome}: {}", self.jobs.command(job));
            return Err(match self.parallel > 1 {
                true => hinted(message, format!("see {}", log.display())),
                false => anyhow::anyhow!(message),
            });
        }
        if self.parallel > 1 {
            let _ = std::fs::remove_file(log);
        }
        self.cache.record(job, self.jobs.command(job), start.elapsed().as_secs_f64())?;
        Ok(None)
    }

    /// The command of a job; `left` is the time until the deadline.
    fn command(&self, job: &Job, lock: &File, left: Option<Duration>) -> anyhow::Result<Command> {
        let result = self.cache.path(job);
        let folder = result
            .parent()
            .and_then(Path::parent)
            .context("the result is not in a subfolder of the output folder")?;
        let (program, arguments) = own_command()?;
        let mut command = Command::new(program);
        command.args(arguments);
        // Paths of results are relative to the output folder. `ResultCache::lock` says why the lock is the standard
        // input.
        command.current_dir(folder).args(self.jobs.arguments(job)).stdin(lock.try_clone()?);
        if job.kind.is_training() {
            command.arg("--resume");
            if let Some(left) = left {
                command.args(["--minutes", &(left.as_secs_f64() / 60.0).to_string()]);
            }
        }
        if let Some(device) = self.device.filter(|_| self.jobs.takes_device(job)) {
            command.args(["--device", &device.to_string()]);
        }
        if self.parallel > 1 {
            // The messages of parallel jobs would mix on the terminal.
            command.stderr(Stdio::from(File::create(self.log_path(job))?));
            let cores = std::thread::available_parallelism().map_or(1, usize::from);
            let threads_per_job = (self.threads.unwrap_or(cores) / self.parallel).max(1);
            command.args(["--threads", &threads_per_job.to_string()]);
        } else if let Some(threads) = self.threads {
            command.args(["--threads", &threads.to_string()]);
        }
        Ok(command)
    }

    /// The file for the messages of a job that runs in parallel with others.
    fn log_path(&self, job: &Job) -> std::path::PathBuf {
        self.cache.path(job).with_extension("log")
    }
}
