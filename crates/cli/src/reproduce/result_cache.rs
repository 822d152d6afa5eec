//! The cache of `trueshot reproduce` ([`ResultCache`]): keeps the result files of finished jobs in the output folder,
//! so that a later run does not compute them again.
//!
//! Next to the result of a job, `cache/NAME.EXTENSION`, is its record, `cache/NAME.done.json`, with the key of the job
//! and the checksum of the result. A result that has no record or does not match it is computed again.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use trueshot::tensors::Tensors;

use super::jobs::{Job, hex};
use crate::messages::say;
use crate::output::write_file;

/// The record of a finished job, stored as JSON next to its result.
#[derive(Debug, Serialize, Deserialize)]
pub struct ResultRecord {
    /// The hash of everything the result depends on ([`Job::key`]).
    pub key: String,
    /// The command that computed the result.
    pub command: String,
    /// The SHA-256 of the result file in hexadecimal.
    pub sha256: String,
    /// The duration of the command in seconds, including earlier runs that were stopped and then resumed.
    pub seconds: f64,
    /// The GPU that the model was trained on; `None` for the CPU, and for jobs that do not train.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// The version of trueshot.
    pub version: String,
}

/// The state of a result in the cache.
pub enum ResultState {
    /// The result matches its record.
    Done,
    /// There is no record: the job has not finished.
    Missing,
    /// The result or its record was changed or damaged.
    Changed,
}

/// The results and records in the subfolder `cache` of an output folder.
pub struct ResultCache {
    /// The output folder.
    folder: PathBuf,
}

impl ResultCache {
    /// The cache of an output folder. [`ResultCache::lock`] creates both if necessary.
    pub fn new(folder: &Path) -> Self {
        ResultCache { folder: folder.into() }
    }

    /// Creates the folder if necessary and locks it, after waiting for other runs that have it locked. The lock lasts
    /// until the returned file and all its duplicates are closed.
    ///
    /// The command of every job gets a duplicate as its standard input. If a run is killed and such a command
    /// continues, the next run waits for it, so no job runs twice at the same time.
    pub fn lock(&self) -> anyhow::Result<File> {
        let cache = self.folder.join("cache");
        std::fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
        let lock = File::create(cache.join("lock"))?;
        if lock.try_lock().is_err() {
            say!("waiting for another run, or a step that is still running, in {}", self.folder.display());
            lock.lock()?;
        }
        Ok(lock)
    }

    /// The path of a job's result.
    pub fn path(&self, job: &Job) -> PathBuf {
        self.folder.join(&job.output)
    }

    /// `NAME.done.json` for the result `NAME.EXTENSION`.
    fn record_path(&self, job: &Job) -> PathBuf {
        self.path(job).with_extension("done.json")
    }

    /// Compares a result with its record. Reads the whole result file to compute its checksum.
    pub fn state(&self, job: &Job) -> ResultState {
        let Ok(text) = std::fs::read_to_string(self.record_path(job)) else { return ResultState::Missing };
        let Ok(record) = serde_json::from_str::<ResultRecord>(&text) else { return ResultState::Changed };
        let matches =
            record.key == job.key && sha256(&self.path(job)).is_ok_and(|hash| hash == record.sha256);
        if matches { ResultState::Done } else { ResultState::Changed }
    }

    /// Deletes a result `NAME.EXTENSION` and all other files `NAME.*` in the cache, such as the record and checkpoints.
    pub fn remove(&self, job: &Job) -> anyhow::Result<()> {
        let path = self.path(job);
        let stem = path.file_stem().map(|stem| format!("{}.", stem.display())).unwrap_or_default();
        for entry in std::fs::read_dir(self.folder.join("cache"))? {
            let entry = entry?;
            if entry.file_name().display().to_string().starts_with(&stem) {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    /// The record of a job; `None` if it is missing or invalid.
    pub fn read_record(&self, job: &Job) -> Option<ResultRecord> {
        serde_json::from_str(&std::fs::read_to_string(self.record_path(job)).ok()?).ok()
    }

    /// The file with the total duration of the stopped runs of a job, in seconds.
    fn time_path(&self, job: &Job) -> PathBuf {
        self.path(job).with_extension("seconds")
    }

    /// The total duration of the stopped runs of a job, in seconds; 0 if there were none.
    fn earlier_time(&self, job: &Job) -> f64 {
        let text = std::fs::read_to_string(self.time_path(job)).unwrap_or_default();
        text.trim().parse().ok().filter(|seconds: &f64| seconds.is_finite()).unwrap_or(0.0)
    }

    /// Adds `seconds`, the duration of a run that was stopped, to the total of the job's stopped runs.
    pub fn add_time(&self, job: &Job, seconds: f64) -> anyhow::Result<()> {
        write_file(&self.time_path(job), &format!("{}\n", self.earlier_time(job) + seconds))
    }

    /// Writes the record of a finished job, whose last run took `seconds`.
    pub fn record(&self, job: &Job, command: String, seconds: f64) -> anyhow::Result<()> {
        let is_model = job.kind.is_training();
        let model = is_model.then(|| Tensors::open(self.path(job))).transpose()?;
        let record = ResultRecord {
            key: job.key.clone(),
            command,
            sha256: sha256(&self.path(job))?,
            seconds: seconds + self.earlier_time(job),
            device: model.and_then(|model| model.note("device").map(Into::into)),
            version: env!("CARGO_PKG_VERSION").into(),
        };
        write_file(&self.record_path(job), &(serde_json::to_string_pretty(&record)? + "\n"))?;
        let _ = std::fs::remove_file(self.time_path(job));
        Ok(())
    }
}

/// The SHA-256 of a file in hexadecimal.
pub fn sha256(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let (mut hash, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(hash)),
            read => hash.update(&buffer[..read]),
        }
    }
}
