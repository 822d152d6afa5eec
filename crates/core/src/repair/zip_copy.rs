//! Repaired copies of a folder as a ZIP archive.
//!
//! The archive is written to a temporary file next to the destination and renamed when it is complete; the next write to
//! that folder removes the temporary file of a killed process. Its bytes depend on the names and contents of the files and
//! on nothing else: files are sorted by name, have a fixed time and fixed permissions, and are stored without compression,
//! because images are compressed already.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, DateTime, System, ZIP64_BYTES_THR, ZipWriter};

use super::copy::{Copied, FolderContents, LOG, log};
use super::moves::Move;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::visible::visible;

/// Writes the archive `into`, which must not exist, with all files of `root`. The caller holds the locks of both.
pub(super) fn write(root: &Path, into: &Path, moves: &[Move], progress: &dyn Progress) -> Result<Copied> {
    let failed = |source| Error::Write { path: into.into(), source };
    if std::fs::symlink_metadata(into).is_ok() {
        return Err(failed(std::io::Error::other("it already exists")));
    }
    let found = FolderContents::read(root)?;
    let members = members(root, &found, moves).map_err(failed)?;
    let file = crate::atomic::sibling(into).map_err(failed)?;
    let mut zip = ZipWriter::new(BufWriter::with_capacity(1 << 16, file));
    let mut folders = found.folders.clone();
    folders.sort();
    for folder in folders {
        zip.add_directory(folder, options().unix_permissions(0o755)).map_err(|error| failed(error.into()))?;
    }
    for (done, (name, path)) in (1..).zip(&members) {
        add_file(&mut zip, name, path).map_err(failed)?;
        progress.check(done, members.len() as u64)?;
    }
    let finish = || -> std::io::Result<()> {
        zip.start_file(LOG, options())?;
        zip.write_all(log(moves).as_bytes())?;
        let file = zip.finish()?.into_inner().map_err(|error| error.into_error())?;
        file.as_file().sync_all()?;
        file.persist_noclobber(into)?;
        Ok(())
    };
    finish().map_err(failed)?;
    Ok(Copied { files: members.len(), left_out: found.left_out })
}

/// The names of the files in the archive, sorted, and their paths; without the log of an earlier repair, which is replaced.
fn members(root: &Path, found: &FolderContents, moves: &[Move]) -> std::io::Result<Vec<(String, PathBuf)>> {
    let targets: std::collections::HashMap<&str, &str> =
        moves.iter().map(|one| (one.from.as_str(), one.to.as_str())).collect();
    let mut members = Vec::with_capacity(found.files.len());
    for (item, path) in found.files.iter().filter(|(item, _)| item != LOG) {
        if path.strip_prefix(root).is_ok_and(|name| name.to_str().is_none()) {
            let problem = format!("the name of {} is not valid UTF-8: rename the file", visible(item));
            return Err(std::io::Error::other(problem));
        }
        let target = targets.get(item.as_str()).copied().unwrap_or(item);
        members.push((target.to_owned(), path.clone()));
    }
    members.sort();
    Ok(members)
}

fn options() -> SimpleFileOptions {
    SimpleFileOptions::default()
        .compression_method(CompressionMethod::Stored)
        .last_modified_time(DateTime::default())
        .system(System::Unix)
        .unix_permissions(0o644)
}

fn add_file(zip: &mut ZipWriter<impl Write + std::io::Seek>, name: &str, path: &Path) -> std::io::Result<()> {
    let mut file = File::open(path)?;
    let is_large = file.metadata()?.len() >= ZIP64_BYTES_THR;
    zip.start_file(name, options().large_file(is_large))?;
    std::io::copy(&mut file, zip)?;
    Ok(())
}
