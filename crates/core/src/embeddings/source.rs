//! The bytes of an untrusted file: [`Source`], mapped into memory, with its path for messages and a limit on how much
//! it may decompress to.

use std::fs::File;
use std::path::{Path, PathBuf};

use bytes::Bytes;

use crate::error::{Error, Result};

/// The bytes of a file, mapped into memory, with its path for messages.
pub(crate) struct Source {
    pub path: PathBuf,
    pub bytes: Bytes,
    /// The maximum number of bytes the file may decompress to, in addition to the limit of [`Source::allow`] that
    /// depends on the size of the file.
    max_unpacked: u64,
}

impl Source {
    /// Maps a file into memory (or reads it, without the feature `mmap`).
    pub fn open(path: &Path) -> Result<Self> {
        let read_error = |source| Error::Read { path: path.into(), source };
        let file = File::open(path).map_err(read_error)?;
        let metadata = file.metadata().map_err(read_error)?;
        if metadata.is_dir() {
            return Err(read_error(std::io::Error::other("it is a folder")));
        }
        // Mapping an empty file is an error on some systems.
        if metadata.len() == 0 {
            return Ok(Source { path: path.into(), bytes: Bytes::new(), max_unpacked: u64::MAX });
        }
        let bytes = contents(file).map_err(read_error)?;
        Ok(Source { path: path.into(), bytes, max_unpacked: u64::MAX })
    }

    /// Bytes in memory, called `bytes.EXTENSION` in messages.
    pub fn in_memory(bytes: Vec<u8>, extension: &str) -> Self {
        Self::named(format!("bytes.{extension}"), bytes)
    }

    /// Bytes in memory with a name for messages.
    pub fn named(name: impl Into<PathBuf>, bytes: Vec<u8>) -> Self {
        Source { path: name.into(), bytes: bytes.into(), max_unpacked: u64::MAX }
    }

    /// Limits the number of bytes the source may decompress to.
    pub fn with_limit(self, max_unpacked: u64) -> Self {
        Source { max_unpacked, ..self }
    }

    /// An error about the contents.
    pub fn malformed(&self, format: &'static str, problem: impl std::fmt::Display) -> Error {
        Error::Malformed { path: self.path.clone(), format, problem: problem.to_string() }
    }

    /// An error about contents that do not match their checksum.
    pub fn damaged(&self, what: impl Into<String>) -> Error {
        Error::Damaged { path: self.path.clone(), what: what.into() }
    }

    /// Checks that the file may decompress to `claimed` bytes.
    ///
    /// Features compress by a factor of 2 to 4, sparse ones by about 20; labels compress better, but they are small. So
    /// a limit of 64 times the file size plus 64 MiB accepts every real file and refuses decompression bombs.
    ///
    /// # Errors
    /// [`Error::TooLarge`].
    pub fn allow(&self, claimed: u64) -> Result<()> {
        let allowed = self.max_unpacked.min((64 << 20) + 64 * self.bytes.len() as u64);
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
