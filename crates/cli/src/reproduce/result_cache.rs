//! The results that are done: next to every result is a record of its job and its checksum. A result without a record,
//! or one that differs from it, is computed again.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::jobs::{Job, hex};
use crate::messages::say;
use crate::output::write_file;

/// The note beside a result.
#[derive(Debug, Serialize, Deserialize)]
pub struct ResultRecord {
    /// The job's key.
    pub key: String,
    /// The command.
    pub command: String,
    /// The SHA-256 of the result.
    pub sha256: String,
    /// How long it took.
    pub seconds: f64,
    /// The program's version.
    pub version: String,
}

/// What is known of a job's result.
pub enum ResultState {
    Done,
    /// Nothing, or part of it.
    Missing,
    /// There is a result, but not the one that was noted.
    Changed,
}

/// The folder of results.
pub struct ResultCache {
    folder: PathBuf,
}

impl ResultCache {
    pub fn open(folder: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(folder.join("cache"))?;
        Ok(ResultCache { folder: folder.into() })
    }

    /// Keeps other runs out of the folder. Every step holds on to it as well ([`File`] is its standard input), so that one
    /// whose run was killed is waited for instead of being done by two at once.
    pub fn lock(&self) -> anyhow::Result<File> {
        let lock = File::create(self.folder.join("cache").join("lock"))?;
        if lock.try_lock().is_err() {
            say!("waiting for another run, or a step that is still running, in {}", self.folder.display());
            lock.lock()?;
        }
        Ok(lock)
    }

    pub fn path(&self, job: &Job) -> PathBuf {
        self.folder.join(&job.output)
    }

    fn record_path(&self, job: &Job) -> PathBuf {
        self.path(job).with_extension("done.json")
    }

    pub fn state(&self, job: &Job) -> ResultState {
        let Ok(text) = std::fs::read_to_string(self.record_path(job)) else { return ResultState::Missing };
        let Ok(record) = serde_json::from_str::<ResultRecord>(&text) else { return ResultState::Changed };
        let same = record.key == job.key && sha256(&self.path(job)).is_ok_and(|hash| hash == record.sha256);
        if same { ResultState::Done } else { ResultState::Changed }
    }

    /// Forgets a result that is not what it should be, with all that lies beside it.
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

    /// Notes that a job is done.
    pub fn record(&self, job: &Job, command: String, seconds: f64) -> anyhow::Result<()> {
        let record = ResultRecord {
            key: job.key.clone(),
            command,
            sha256: sha256(&self.path(job))?,
            seconds,
            version: env!("CARGO_PKG_VERSION").into(),
        };
        write_file(&self.record_path(job), &(serde_json::to_string_pretty(&record)? + "\n"))
    }
}

/// The SHA-256 of a file.
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
