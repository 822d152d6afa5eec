//! Advisory locks for folders and output files ([`Lock`]), so that two processes never change the same files at once.
//!
//! A [`Lock`] is an operating-system lock (`flock`, or `LockFileEx` on Windows) on a small lock file. The system
//! releases it when the process ends, however it ends, so a lock file left behind by a killed process does not block
//! anyone. The file holds the process id and the command of its holder, which is what [`Error::Locked`] reports to the
//! process that comes second.
//!
//! A lock is taken before anything is read that decides what will be written, and held until the last write.
//! [`Lock::on_folder`] and [`Lock::for_reading`] lock a folder, [`Lock::beside`] a single output.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// The lock file inside a locked folder.
pub const LOCK_FILE: &str = ".trueshot-lock";
/// The first word of every lock file. A file of that name with other content is not touched.
const MAGIC: &str = "trueshot-lock";
/// Number of bytes of a lock file that are read; real ones are three short lines.
const MAX_BYTES: u64 = 4096;

/// An advisory lock, held until it is dropped or the process ends.
///
/// ```
/// use trueshot::lock::Lock;
///
/// let folder = tempfile::tempdir().unwrap();
/// let lock = Lock::on_folder(folder.path())?;
/// assert!(Lock::on_folder(folder.path()).is_err(), "the folder is locked");
/// drop(lock);
/// assert!(Lock::on_folder(folder.path()).is_ok());
/// # Ok::<(), trueshot::Error>(())
/// ```
#[derive(Debug)]
pub struct Lock {
    /// `None` on a file system without locks.
    file: Option<File>,
    path: PathBuf,
}

/// Whether a lock excludes all others or only exclusive ones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Exclusive,
    Shared,
}

impl Lock {
    /// Locks a folder whose files are about to be moved or replaced.
    ///
    /// # Errors
    /// [`Error::Locked`] if another process holds it, [`Error::Write`] if the folder cannot be written to.
    pub fn on_folder(folder: &Path) -> Result<Self> {
        Self::take(folder, folder.join(LOCK_FILE), Mode::Exclusive)
    }

    /// Locks a folder against changes while it is read; any number of readers may hold this lock together.
    ///
    /// Returns `None` if no lock file can be written, for instance in a read-only folder, which is then read without a
    /// lock.
    ///
    /// # Errors
    /// [`Error::Locked`] if another process holds an exclusive lock on it.
    pub fn for_reading(folder: &Path) -> Result<Option<Self>> {
        match Self::take(folder, folder.join(LOCK_FILE), Mode::Shared) {
            Ok(lock) => Ok(Some(lock)),
            Err(Error::Write { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Locks an output, file or folder, by a hidden lock file next to it. The output need not exist yet.
    ///
    /// # Errors
    /// [`Error::Locked`] if another process holds it, [`Error::Write`] if the parent folder cannot be written to.
    pub fn beside(output: &Path) -> Result<Self> {
        let Some(name) = output.file_name() else {
            let source = std::io::Error::other("it has no file name");
            return Err(Error::Write { path: output.into(), source });
        };
        // The lock file is named after the output. File names have at most 255 bytes, and the prefix and suffix take
        // 15, so names of more than 200 bytes are replaced by their hash.
        let name = name.to_string_lossy();
        let name =
            if name.len() > 200 { blake3::hash(name.as_bytes()).to_hex().to_string() } else { name.into() };
        let path = output.with_file_name(format!(".{name}.trueshot-lock"));
        Self::take(output, path, Mode::Exclusive)
    }

    /// Takes the lock on `path`, the lock file for `locked`; error messages name `locked`.
    fn take(locked: &Path, path: PathBuf, mode: Mode) -> Result<Self> {
        let failed = |source| Error::Write { path: path.clone(), source };
        loop {
            let mut file = open(&path).map_err(failed)?;
            let attempt = match mode {
                Mode::Exclusive => file.try_lock(),
                Mode::Shared => file.try_lock_shared(),
            };
            match attempt {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => {
                    let holder = holder(&mut file);
                    return Err(Error::Locked { path: locked.into(), holder });
                }
                Err(TryLockError::Error(error)) if error.kind() == std::io::ErrorKind::Unsupported => {
                    return Ok(Lock { file: None, path });
                }
                Err(TryLockError::Error(source)) => return Err(failed(source)),
            }
            // The previous holder may have removed the file between our opening and locking it: then another process
            // can create and lock a new one, so this one protects nothing.
            if !is_still_at(&file, &path) {
                continue;
            }
            describe_holder(&mut file).map_err(failed)?;
            return Ok(Lock { file: Some(file), path });
        }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Removing the file is safe only for its last holder, who can make a shared lock exclusive; on other systems
        // than Unix the file stays.
        if cfg!(unix) && self.file.as_ref().is_some_and(|file| file.try_lock().is_ok()) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Opens a lock file, or creates it, without following a link and without changing a file that is not a lock file.
fn open(path: &Path) -> std::io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        // With NONBLOCK, opening a pipe of that name returns instead of waiting for its other end.
        options.custom_flags((rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK).bits() as i32);
    }
    let mut file = options.open(path)?;
    let metadata = file.metadata()?;
    // A file is empty while its holder writes it again.
    let is_lock_text = |text: String| text.is_empty() || text.starts_with(MAGIC);
    if !metadata.is_file() || !is_lock_text(read_text(&mut file)?) || has_other_names(&metadata) {
        return Err(std::io::Error::other("a file with that name exists and is not a lock file of trueshot"));
    }
    Ok(file)
}

/// Whether a file has hard links under other names: then it may be a file of the user, which must not be overwritten.
#[cfg(unix)]
fn has_other_names(metadata: &std::fs::Metadata) -> bool {
    use std::os::unix::fs::MetadataExt;
    metadata.nlink() > 1
}

#[cfg(not(unix))]
fn has_other_names(_: &std::fs::Metadata) -> bool {
    false
}

/// Whether an open file is still the one of that name; another process may have removed or replaced it.
#[cfg(unix)]
pub(crate) fn is_still_at(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |metadata: &std::fs::Metadata| (metadata.dev(), metadata.ino());
    matches!((file.metadata(), std::fs::symlink_metadata(path)), (Ok(a), Ok(b)) if id(&a) == id(&b))
}

#[cfg(not(unix))]
pub(crate) fn is_still_at(_: &File, _: &Path) -> bool {
    true
}

fn read_text(file: &mut File) -> std::io::Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    Read::by_ref(file).take(MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Writes who holds the lock: the process and the first words of its command, without arguments that may be secret.
fn describe_holder(file: &mut File) -> std::io::Result<()> {
    let mut words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let program = words.next().unwrap_or_default();
    let program =
        Path::new(&program).file_name().map_or_else(String::new, |name| name.to_string_lossy().into());
    let command = words.next().filter(|word| !word.starts_with('-')).unwrap_or_default();
    let command = format!("{program} {command}");
    file.set_len(0)?;
    file.rewind()?;
    file.write_all(format!("{MAGIC}\n{}\n{}\n", std::process::id(), command.trim_end()).as_bytes())
}

/// Describes the holder of a lock for a message: "process 4711 (trueshot repair)". A process that has just taken the
/// lock may not have written its name yet (a complete file ends with a line end), so reading is retried for a tenth of
/// a second.
fn holder(file: &mut File) -> String {
    for _ in 0..20 {
        let text = read_text(file).unwrap_or_default();
        // The process id and the command come after the line with `MAGIC`.
        let mut lines = text.lines().skip(1);
        let (process, command) = (lines.next().and_then(|line| line.parse::<u32>().ok()), lines.next());
        if let (Some(process), Some(command), true) = (process, command, text.ends_with('\n')) {
            return format!("process {process} ({})", crate::visible::visible(command));
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    "another process".into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder_of(error: Error) -> String {
        match error {
            Error::Locked { holder, .. } => holder,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn the_second_process_is_told_who_holds_the_lock() {
        let folder = tempfile::tempdir().unwrap();
        let lock = Lock::on_folder(folder.path()).unwrap();
        let refused = Lock::on_folder(folder.path()).unwrap_err();
        assert!(holder_of(refused).starts_with(&format!("process {} (", std::process::id())));
        assert!(matches!(Lock::for_reading(folder.path()), Err(Error::Locked { .. })));
        drop(lock);
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the lock file is gone");
        Lock::on_folder(folder.path()).unwrap();
    }

    #[test]
    fn a_holder_that_has_not_yet_written_its_name_is_awaited() {
        let folder = tempfile::tempdir().unwrap();
        let mut taken = open(&folder.path().join(LOCK_FILE)).unwrap();
        taken.try_lock().unwrap();
        let refused = std::thread::scope(|scope| {
            let second = scope.spawn(|| Lock::on_folder(folder.path()).unwrap_err());
            std::thread::sleep(std::time::Duration::from_millis(10));
            describe_holder(&mut taken).unwrap();
            second.join().unwrap()
        });
        assert!(holder_of(refused).starts_with(&format!("process {} (", std::process::id())));
    }

    #[test]
    fn readers_share_a_lock_and_the_last_one_removes_it() {
        let folder = tempfile::tempdir().unwrap();
        let first = Lock::for_reading(folder.path()).unwrap();
        let second = Lock::for_reading(folder.path()).unwrap();
        drop(first);
        assert!(matches!(Lock::on_folder(folder.path()), Err(Error::Locked { .. })));
        drop(second);
        Lock::on_folder(folder.path()).unwrap();
    }

    #[test]
    fn a_lock_file_left_by_a_killed_process_does_not_block() {
        let folder = tempfile::tempdir().unwrap();
        let output = folder.path().join("model.safetensors");
        std::fs::write(
            folder.path().join(".model.safetensors.trueshot-lock"),
            "trueshot-lock\n1\ntrueshot\n",
        )
        .unwrap();
        drop(Lock::beside(&output).unwrap());
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
        let long = folder.path().join("m".repeat(255));
        Lock::beside(&long).unwrap();
    }

    #[test]
    #[cfg(unix)]
    fn a_link_or_a_file_of_the_user_is_never_written_to() {
        let folder = tempfile::tempdir().unwrap();
        let (lock, user_file) = (folder.path().join(LOCK_FILE), folder.path().join("notes"));
        std::fs::write(&user_file, "content").unwrap();
        let assert_unchanged = || {
            assert!(matches!(Lock::on_folder(folder.path()), Err(Error::Write { .. })));
            assert_eq!(std::fs::read_to_string(&user_file).unwrap(), "content");
            std::fs::remove_file(&lock).unwrap();
        };
        std::os::unix::fs::symlink(&user_file, &lock).unwrap();
        assert_unchanged();
        std::fs::write(&lock, "notes of the user").unwrap();
        assert_unchanged();
        std::fs::write(&user_file, "").unwrap();
        std::fs::hard_link(&user_file, &lock).unwrap();
        assert!(Lock::on_folder(folder.path()).is_err());
        assert_eq!(std::fs::read_to_string(&user_file).unwrap(), "");
    }
}
