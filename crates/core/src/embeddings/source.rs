//! The bytes of a file from outside, and how much they may unpack to.

use std::fs::File;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::error::{Error, Result};

/// A file's bytes, mapped into memory, with its name for messages.
pub(crate) struct Source {
    pub path: PathBuf,
    pub bytes: Bytes,
    /// What it may unpack to at most, whatever its size.
    most: u64,
}

impl Source {
    /// Maps a file.
    pub fn open(path: &Path) -> Result<Self> {
        let read_error = |source| Error::Read { path: path.into(), source };
        let file = File::open(path).map_err(read_error)?;
        let metadata = file.metadata().map_err(read_error)?;
        if metadata.is_dir() {
            return Err(read_error(std::io::Error::other("it is a folder")));
        }
        if metadata.len() == 0 {
            return Ok(Source { path: path.into(), bytes: Bytes::new(), most: u64::MAX });
        }
        let bytes = contents(file).map_err(read_error)?;
        Ok(Source { path: path.into(), bytes, most: u64::MAX })
    }

    /// Bytes that never were a file.
    pub fn in_memory(bytes: Vec<u8>, extension: &str) -> Self {
        Self::named(format!("bytes.{extension}"), bytes)
    }

    /// The same under a name of its own.
    pub fn named(name: impl Into<PathBuf>, bytes: Vec<u8>) -> Self {
        Source { path: name.into(), bytes: bytes.into(), most: u64::MAX }
    }

    /// Bytes of somebody who may not use more memory than this.
    pub fn within(self, most: u64) -> Self {
        Source { most, ..self }
    }

    /// An error about the contents.
    pub fn malformed(&self, format: &'static str, problem: impl std::fmt::Display) -> Error {
        Error::Malformed { path: self.path.clone(), format, problem: problem.to_string() }
    }

    /// An error about contents that do not match their checksum.
    pub fn damaged(&self, what: impl Into<String>) -> Error {
        Error::Damaged { path: self.path.clone(), what: what.into() }
    }

    /// Refuses a claim that compressed contents could not honestly make.
    ///
    /// Features hardly compress (2 to 4 times, sparse ones 20); labels do, but they are small. So 64 times
    /// the file and 64 MiB on top let every real file through, while a few lying bytes cost nothing.
    pub fn allow(&self, claimed: u64) -> Result<()> {
        let allowed = self.most.min((64 << 20) + 64 * self.bytes.len() as u64);
        if claimed > allowed {
            return Err(Error::TooLarge { path: self.path.clone(), claimed, allowed });
        }
        Ok(())
    }
}

/// The contents of a file, as a memory map.
#[cfg(feature = "mmap")]
fn contents(file: File) -> std::io::Result<Bytes> {
    // SAFETY: the map is read-only and private to this process. If another process truncates the file while it is read,
    // this process ends with SIGBUS, as with every mapped file. trueshot itself never does that: it renames complete
    // files into place, which leaves existing maps intact.
    #[allow(unsafe_code)]
    let map = unsafe { memmap2::Mmap::map(&file) }?;
    Ok(Bytes::from_owner(map))
}

/// The contents of a file, read into memory.
#[cfg(not(feature = "mmap"))]
fn contents(mut file: File) -> std::io::Result<Bytes> {
    let mut bytes = Vec::new();
    std::io::Read::read_to_end(&mut file, &mut bytes)?;
    Ok(bytes.into())
}
