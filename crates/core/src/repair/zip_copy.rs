//! Repaired copies as a ZIP archive ([`write()`]), which `copy` calls instead of writing a folder.
//!
//! The archive is written to a temporary file next to the destination and renamed when it is complete; the next write
//! to that folder removes the temporary file of a killed process. Its bytes depend on the names and contents of the
//! files and on nothing else: files are sorted by name, have a fixed time and fixed permissions, and are stored without
//! compression, because images are compressed already.

use std::fs::File;
use std::io::{BufWriter, Seek, Write};
use std::path::Path;

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, System, ZIP64_BYTES_THR, ZipWriter};

use super::copy::{FileContents, LOG, NewCopy};
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::visible::visible;

/// Writes the archive `into`, which must not exist, and returns the number of files without the log.
pub(super) fn write(copy: &NewCopy<'_>, into: &Path, progress: &dyn Progress) -> Result<usize> {
    let failed = |source| Error::Write { path: into.into(), source };
    if std::fs::symlink_metadata(into).is_ok() {
        return Err(failed(std::io::Error::other("it already exists")));
    }
    let members = members(copy).map_err(failed)?;
    let file = crate::atomic::sibling(into).map_err(failed)?;
    let mut zip = ZipWriter::new(BufWriter::with_capacity(1 << 16, file));
    let mut folders = copy
        .folders
        .iter()
        .map(|folder| name(folder))
        .collect::<std::io::Result<Vec<&str>>>()
        .map_err(failed)?;
    folders.sort_unstable();
    for folder in folders {
        zip.add_directory(folder, options().unix_permissions(0o755)).map_err(|error| failed(error.into()))?;
    }
    for (done, (name, index)) in (1..).zip(&members) {
        let contents = (copy.contents)(*index)?;
        match &contents {
            FileContents::Bytes(bytes) => add_bytes(&mut zip, name, bytes),
            FileContents::Path(path) => add_file(&mut zip, name, super::copy::open(path)?),
        }
        .map_err(failed)?;
        progress.check(done, members.len() as u64)?;
    }
    let finish = || -> std::io::Result<()> {
        zip.start_file(LOG, options())?;
        zip.write_all(copy.log.as_bytes())?;
        let file = zip.finish()?.into_inner().map_err(|error| error.into_error())?;
        file.as_file().sync_all()?;
        file.persist_noclobber(into)?;
        Ok(())
    };
    finish().map_err(failed)?;
    Ok(members.len())
}

/// The names of the files in the archive, sorted, and their indices in the copy.
fn members<'a>(copy: &'a NewCopy<'_>) -> std::io::Result<Vec<(&'a str, usize)>> {
    let mut members = Vec::with_capacity(copy.targets.len());
    for (index, target) in copy.targets.iter().enumerate() {
        members.push((name(target)?, index));
    }
    members.sort_unstable();
    Ok(members)
}

/// The name of a file or folder in the archive.
fn name(path: &Path) -> std::io::Result<&str> {
    path.to_str().ok_or_else(|| {
        let shown = visible(&path.to_string_lossy());
        std::io::Error::other(format!("the name of {shown} is not valid UTF-8: rename it"))
    })
}

/// The same options for every file, so that the bytes of the archive do not depend on the time or the system.
fn options() -> SimpleFileOptions {
    SimpleFileOptions::default()
        .compression_method(CompressionMethod::Stored)
        .last_modified_time(DateTime::default())
        .system(System::Unix)
        .unix_permissions(0o644)
}

/// The options for a file of `length` bytes; a file of 4 GiB or more needs the ZIP64 format.
fn with_length(length: u64) -> SimpleFileOptions {
    options().large_file(length >= ZIP64_BYTES_THR)
}

fn add_bytes(zip: &mut ZipWriter<impl Write + Seek>, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    zip.start_file(name, with_length(bytes.len() as u64))?;
    zip.write_all(bytes)
}

fn add_file(zip: &mut ZipWriter<impl Write + Seek>, name: &str, mut file: File) -> std::io::Result<()> {
    zip.start_file(name, with_length(file.metadata()?.len()))?;
    std::io::copy(&mut file, zip).map(drop)
}
