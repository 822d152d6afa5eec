//! Files that appear whole or not at all: written to a temporary file in the same folder, synced, renamed into place.
//!
//! A device or pipe (`/dev/stdout`) is written to directly. A symbolic link stays a link; the file behind it is replaced.
//!
//! A temporary file (`.trueshot-….part`) is locked while it is written. One that is not locked was left behind by a
//! killed process; the first write to its folder by a later process removes it.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tempfile::NamedTempFile;

use crate::error::{Error, Result};
use crate::lock::is_still_at;

const PREFIX: &str = ".trueshot-";
const SUFFIX: &str = ".part";

/// Writes a file through `fill`. If anything fails, a full disk included, the old file stays as it was and
/// nothing new is left behind.
pub fn write_atomically(path: &Path, fill: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    let attempt = || -> std::io::Result<()> {
        if std::fs::metadata(path).is_ok_and(|found| !found.is_file() && !found.is_dir()) {
            let mut device = BufWriter::new(std::fs::OpenOptions::new().write(true).open(path)?);
            fill(&mut device)?;
            return device.flush();
        }
        let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.into());
        let file = sibling(path)?;
        let mut buffered = BufWriter::with_capacity(1 << 16, file);
        fill(&mut buffered)?;
        let file = buffered.into_inner().map_err(|error| error.into_error())?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        Ok(())
    };
    attempt().map_err(|source| Error::Write { path: path.into(), source })
}

/// Checks that a file can be written, so that long work does not end in an error that could have been foreseen.
pub fn check_writable(path: &Path) -> Result<()> {
    let found = std::fs::metadata(path);
    let attempt = match found {
        Ok(found) if found.is_dir() => Err(std::io::Error::other("it is a folder")),
        Ok(found) if !found.is_file() => Ok(()),
        _ => sibling(path).map(drop),
    };
    attempt.map_err(|source| Error::Write { path: path.into(), source })
}

/// A new temporary file in the folder of a path; it is removed when dropped unless it is renamed.
pub(crate) fn sibling(path: &Path) -> std::io::Result<NamedTempFile> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    if !folder.is_dir() {
        return Err(std::io::Error::other(format!("{} is not a folder", folder.display())));
    }
    remove_left_behind(folder);
    let mut sibling = tempfile::Builder::new();
    sibling.prefix(PREFIX).suffix(SUFFIX);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // tempfile's own default is 0600: right for secrets, a surprise for results. The umask still applies.
        sibling.permissions(std::fs::Permissions::from_mode(0o666));
    }
    loop {
        let file = sibling.tempfile_in(folder)?;
        // Another process may have taken the file for a left-over between its creation and its lock.
        if file.as_file().try_lock().is_err() || is_still_at(file.as_file(), file.path()) {
            return Ok(file);
        }
    }
}

/// Removes the temporary files that killed processes left in a folder. Looks once per process and folder.
fn remove_left_behind(folder: &Path) {
    static SEEN: Mutex<Option<HashSet<PathBuf>>> = Mutex::new(None);
    let Ok(folder) = std::fs::canonicalize(folder) else { return };
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    if !cfg!(unix) || !seen.get_or_insert_default().insert(folder.clone()) {
        return;
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| is_temporary(&entry.file_name())) {
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        if is_file && File::open(entry.path()).is_ok_and(|file| file.try_lock().is_ok()) {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

fn is_temporary(name: &OsStr) -> bool {
    let name = name.as_encoded_bytes();
    name.starts_with(PREFIX.as_bytes()) && name.ends_with(SUFFIX.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn what_a_killed_process_left_is_removed_and_what_another_writes_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let name = |name: &str| folder.path().join(name);
        let (left, used, own) = (name(".trueshot-AAAA.part"), name(".trueshot-BBBB.part"), name("mine.part"));
        std::fs::write(&left, "half").unwrap();
        std::fs::write(&own, "mine").unwrap();
        let writer = File::create(&used).unwrap();
        writer.try_lock().unwrap();
        write_atomically(&name("result"), |file| file.write_all(b"whole")).unwrap();
        assert!(!left.exists() && used.exists() && own.exists());
        assert_eq!(std::fs::read(name("result")).unwrap(), b"whole");
    }
}
