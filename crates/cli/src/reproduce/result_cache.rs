//! The cache of results in the output folder. Next to every finished result is a record with the key of its job and its
//! checksum. A result without a record, or one that does not match its record, is computed again.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use trueshot::tensors::Tensors;

use super::jobs::{Job, hex};
use crate::messages::say;
use crate::output::write_file;

/// The record next to a result.
#[derive(Debug, Serialize, Deserialize)]
pub struct ResultRecord {
    /// The key of the job.
    pub key: String,
    /// The command that computed the result.
    pub command: String,
    /// The SHA-256 of the result.
    pub sha256: String,
    /// The duration of the command, with that of earlier runs that were stopped.
    pub seconds: f64,
    /// The GPU of a training run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    pub version: String,
}

/// The state of a result in the cache.
pub enum ResultState {
    Done,
    /// There is no record: the job has not finished.
    Missing,
    /// The result or its record was changed or damaged.
    Changed,
}

/// The output folder with its subfolder `cache`.
pub struct ResultCache {
    folder: PathBuf,
}

impl ResultCache {
    /// Opens the output folder; creates it if necessary.
    pub fn open(folder: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder.join("cache"))?;
        Ok(ResultCache { folder: folder.into() })
    }

    /// Locks the folder, and waits for other runs that have locked it. The lock file is also the standard input of every
    /// step and stays locked until the step exits, so that no step is run twice at the same time after a run was killed.
    pub fn lock(&self) -> anyhow::Result<File> {
        let lock = File::create(self.folder.join("cache").join("lock"))?;
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

    fn record_path(&self, job: &Job) -> PathBuf {
        self.path(job).with_extension("done.json")
    }

    /// Compares a result with its record.
    pub fn state(&self, job: &Job) -> ResultState {
        let Ok(text) = std::fs::read_to_string(self.record_path(job)) else { return ResultState::Missing };
        let Ok(record) = serde_json::from_str::<ResultRecord>(&text) else { return ResultState::Changed };
        let matches =
            record.key == job.key && sha256(&self.path(job)).is_ok_and(|hash| hash == record.sha256);
        if matches { ResultState::Done } else { ResultState::Changed }
    }

    /// Deletes a result and all files that belong to it, such as the record and checkpoints.
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

    pub fn read_record(&self, job: &Job) -> Option<ResultRecord> {
        serde_json::from_str(&std::fs::read_to_string(self.record_path(job)).ok()?).ok()
    }

    fn time_path(&self, job: &Job) -> PathBuf {
        self.path(job).with_extension("seconds")
    }

    /// The time of earlier runs of a job that were stopped, in seconds.
    fn earlier_time(&self, job: &Job) -> f64 {
        let text = std::fs::read_to_string(self.time_path(job)).unwrap_or_default();
        text.trim().parse().ok().filter(|seconds: &f64| seconds.is_finite()).unwrap_or(0.0)
    }

    /// Adds the time of a run of a job that was stopped.
    pub fn add_time(&self, job: &Job, seconds: f64) -> anyhow::Result<()> {
        write_file(&self.time_path(job), &format!("{}\n", self.earlier_time(job) + seconds))
    }

    /// Writes the record of a finished job.
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
