//! Atomic file writes: [`write_atomically`] writes a temporary file in the same folder, syncs it and renames it, so
//! that other processes see the old file or the complete new one.
//!
//! A device or pipe (`/dev/stdout`) is written to directly. A symbolic link stays a link; the file behind it is
//! replaced.
//!
//! A temporary file (`.trueshot-….part`) is locked while it is written. One that is not locked was left behind by a
//! killed process; the first write to its folder by a later process removes it.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fs::{File, TryLockError};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tempfile::NamedTempFile;

use crate::error::{Error, Result};
use crate::lock::is_still_at;

/// The name of a temporary file starts with this and ends in [`SUFFIX`].
const PREFIX: &str = ".trueshot-";
const SUFFIX: &str = ".part";

/// Writes a file with the bytes that `fill` writes. If anything fails, for instance because the disk is full, the old
/// file stays unchanged and no temporary file remains.
///
/// ```
/// use trueshot::atomic::write_atomically;
///
/// let folder = tempfile::tempdir().unwrap();
/// let path = folder.path().join("result.txt");
/// write_atomically(&path, |file| file.write_all(b"complete"))?;
/// assert!(write_atomically(&path, |_| Err(std::io::Error::other("no result"))).is_err());
/// assert_eq!(std::fs::read(&path).unwrap(), b"complete");
/// # Ok::<(), trueshot::Error>(())
/// ```
pub fn write_atomically(path: &Path, fill: impl FnOnce(&mut dyn Write) -> std::io::Result<()>) -> Result<()> {
    let attempt = || -> std::io::Result<()> {
        // A device or pipe cannot be replaced by renaming. A folder is left to `persist`, which fails on it.
        if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file() && !metadata.is_dir()) {
            let mut device = BufWriter::new(std::fs::OpenOptions::new().write(true).open(path)?);
            fill(&mut device)?;
            return device.flush();
        }
        let path = &behind_links(path);
        let file = sibling(path)?;
        let mut buffered = BufWriter::with_capacity(1 << 16, file);
        fill(&mut buffered)?;
        let file = buffered.into_inner().map_err(|error| error.into_error())?;
        file.as_file().sync_all()?;
        file.persist(path)?;
        sync_folder(path);
        Ok(())
    };
    attempt().map_err(|source| Error::Write { path: path.into(), source })
}

/// Checks that a file can be written at a path, before long work whose result goes there. The file itself is not
/// touched.
pub fn check_writable(path: &Path) -> Result<()> {
    let attempt = match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err(std::io::Error::other("it is a folder")),
        // A device or pipe is written to directly.
        Ok(metadata) if !metadata.is_file() => Ok(()),
        _ => sibling(&behind_links(path)).map(drop),
    };
    attempt.map_err(|source| Error::Write { path: path.into(), source })
}

/// The path that a path leads to after following symbolic links. Unlike [`std::fs::canonicalize`], the file need not
/// exist.
pub(crate) fn behind_links(path: &Path) -> PathBuf {
    /// As many as Linux follows.
    const MAX_LINKS: usize = 40;
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let Ok(target) = std::fs::read_link(&path) else { break };
        // A relative target starts at the folder of the link.
        path.pop();
        path.push(target);
    }
    path
}

/// Makes the new name of a file durable, so that it survives a power failure. Not every file system can do this.
fn sync_folder(path: &Path) {
    if cfg!(unix) {
        let _ = File::open(folder_of(path)).and_then(|folder| folder.sync_all());
    }
}

/// The folder of a path: its parent, or `.` for a name alone.
pub(crate) fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// A new temporary file in the folder of a path; it is removed when dropped unless it is renamed.
pub(crate) fn sibling(path: &Path) -> std::io::Result<NamedTempFile> {
    let folder = folder_of(path);
    if !folder.is_dir() {
        return Err(std::io::Error::other(format!("{} is not a folder", folder.display())));
    }
    remove_stale_files(folder);
    let mut builder = tempfile::Builder::new();
    builder.prefix(PREFIX).suffix(SUFFIX);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // The default of tempfile is 0600, but results are meant to be readable by others. The umask still applies.
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    loop {
        let file = builder.tempfile_in(folder)?;
        // Between its creation and its lock, another process may take the file for a stale one, and lock and remove it:
        // then try again. On a file system without locks, the file is used without one.
        match file.as_file().try_lock() {
            Err(TryLockError::WouldBlock) => {}
            Ok(()) if !is_still_at(file.as_file(), file.path()) => {}
            Ok(()) | Err(TryLockError::Error(_)) => return Ok(file),
        }
    }
}

/// Removes the temporary files that killed processes left in a folder: those that can be locked. Each process does this
/// once per folder, and only on Unix.
fn remove_stale_files(folder: &Path) {
    static SEEN: Mutex<Option<HashSet<PathBuf>>> = Mutex::new(None);
    let Ok(folder) = std::fs::canonicalize(folder) else { return };
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    if !cfg!(unix) || !seen.get_or_insert_default().insert(folder.clone()) {
        return;
    }
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| is_temporary(&entry.file_name())) {
        let is_file = entry.file_type().is_ok_and(|kind| kind.is_file());
        let Some(file) = is_file.then(|| File::open(entry.path()).ok()).flatten() else { continue };
        // The lock is held until the file is removed, so that its writer cannot start to use it in between.
        if file.try_lock().is_ok() {
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
    fn the_target_of_a_link_is_written_also_if_it_does_not_exist_yet() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::create_dir(path("results")).unwrap();
        std::os::unix::fs::symlink("results/new.csv", path("link")).unwrap();
        check_writable(&path("link")).unwrap();
        write_atomically(&path("link"), |file| file.write_all(b"whole")).unwrap();
        assert!(std::fs::symlink_metadata(path("link")).unwrap().is_symlink());
        assert_eq!(std::fs::read(path("results/new.csv")).unwrap(), b"whole");
        std::os::unix::fs::symlink("none/new.csv", path("broken")).unwrap();
        assert!(check_writable(&path("broken")).is_err());
    }

    #[test]
    #[cfg(unix)]
    fn stale_temporary_files_are_removed_and_locked_ones_are_kept() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let (stale, locked) = (path(".trueshot-AAAA.part"), path(".trueshot-BBBB.part"));
        let unrelated = path("other.part");
        std::fs::write(&stale, "half").unwrap();
        std::fs::write(&unrelated, "other").unwrap();
        let writer = File::create(&locked).unwrap();
        writer.try_lock().unwrap();
        write_atomically(&path("result"), |file| file.write_all(b"whole")).unwrap();
        assert!(!stale.exists() && locked.exists() && unrelated.exists());
        assert_eq!(std::fs::read(path("result")).unwrap(), b"whole");
    }
}
