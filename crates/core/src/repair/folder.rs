//! The folder of a repair in place ([`LockedFolder`]): locked against other processes, with file operations that cannot
//! leave it. [`Journal`](super::Journal) moves files with it.
//!
//! Names are paths relative to the folder, with parts separated by `/`. Every name is resolved part by part from the
//! directory handle of the folder, and a symbolic link among the parts is refused. So no file outside the folder is
//! ever touched, even if a class folder is replaced by a link while a repair runs. Systems other than Unix lack such
//! calls; there, names are resolved as paths. The private module `system` has one version for each.

use std::io;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::lock::Lock;

/// A folder that is locked for repairs by this process, until the value is dropped.
#[derive(Debug)]
pub struct LockedFolder {
    path: PathBuf,
    root: system::Root,
    _lock: Lock,
}

/// The metadata of an existing directory entry.
#[derive(Debug, Clone, Copy)]
pub(super) struct EntryInfo {
    /// Whether the entry is a regular file, not a link or a folder.
    pub is_file: bool,
    /// Device and inode number, equal for two names of one file; `None` on systems other than Unix.
    pub id: Option<(u64, u64)>,
    /// The number of hard links to the file.
    pub links: u64,
}

/// The relation of the old and the new name of a move, if both exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameRelation {
    /// Two hard links to one file: a move that was interrupted between adding the new name and removing the old one.
    TwoNames,
    /// Two spellings of the one name of a file, on a file system that ignores case.
    OneName,
    /// A file and its complete copy on another file system: a move that was interrupted before the source was removed.
    Copy,
    /// Two different files.
    Different,
}

impl LockedFolder {
    /// Locks a folder for repairs.
    ///
    /// # Errors
    /// [`Error::Locked`] if another process repairs or copies it; [`Error::Read`] if it is not a folder.
    pub fn open(path: &Path) -> Result<Self> {
        let root = system::Root::open(path).map_err(|source| Error::Read { path: path.into(), source })?;
        let lock = Lock::on_folder(path)?;
        Ok(LockedFolder { path: path.into(), root, _lock: lock })
    }

    /// A folder without a lock, for tests that work in folders which cannot be locked.
    #[cfg(test)]
    pub(super) fn unlocked(path: &Path) -> Self {
        let elsewhere = tempfile::tempdir().expect("a folder for the lock");
        let lock = Lock::on_folder(elsewhere.path()).expect("a new folder is not locked");
        LockedFolder { path: path.into(), root: system::Root::open(path).expect("a folder"), _lock: lock }
    }

    /// The path that the folder was opened with.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Looks up a name; `None` if it does not exist.
    pub(super) fn find(&self, name: &str) -> io::Result<Option<EntryInfo>> {
        match self.root.find(name) {
            Ok(info) => Ok(Some(info)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The relation of two existing files, given by name and metadata.
    pub(super) fn compare(
        &self,
        (old, old_info): (&str, EntryInfo),
        (new, new_info): (&str, EntryInfo),
    ) -> io::Result<NameRelation> {
        // Without inode numbers, only the contents can be compared.
        let (Some(old_id), Some(new_id)) = (old_info.id, new_info.id) else {
            let equal = self.root.contents_are_equal(old, new)?;
            return Ok(if equal { NameRelation::Copy } else { NameRelation::Different });
        };
        let same_device = old_id.0 == new_id.0;
        Ok(match old_id == new_id {
            true if old_info.links > 1 => NameRelation::TwoNames,
            true => NameRelation::OneName,
            // Moves copy a file only to another file system, so equal files on the same one are different files.
            false if !same_device && self.root.contents_are_equal(old, new)? => NameRelation::Copy,
            false => NameRelation::Different,
        })
    }

    /// Moves a file to a name that does not exist, creating folders as needed. The file has a name at every moment.
    pub(super) fn move_file(&self, from: &str, to: &str) -> io::Result<()> {
        self.root.move_file(from, to)
    }

    /// Removes one name of a file.
    pub(super) fn remove_file(&self, name: &str) -> io::Result<()> {
        self.root.remove_file(name)
    }

    /// Removes a folder; fails if it is not empty.
    pub(super) fn remove_empty_folder(&self, name: &str) -> io::Result<()> {
        self.root.remove_folder(name)
    }

    /// The reason why a move would fail, as far as that is known without making it; `None` if it would probably
    /// succeed.
    pub(super) fn obstacle(&self, from: &str, to: &str) -> Option<String> {
        let shown = crate::visible::visible(from);
        match self.find(from) {
            Ok(Some(info)) if info.is_file => {}
            Ok(Some(_)) => {
                return Some(format!("{shown} is a link or not a file"));
            }
            Ok(None) => return Some(format!("{shown} does not exist")),
            Err(error) => return Some(format!("{shown}: {error}")),
        }
        let outcome = self.root.check_writable(from).and_then(|()| self.root.check_writable(to));
        outcome
            .err()
            .map(|error| format!("{shown} cannot be moved to {}: {error}", crate::visible::visible(to)))
    }
}

/// Whether a relative path of a plan or an undo file stays below the folder and is in canonical form (no empty, `.` or
/// `..` parts).
pub(super) fn is_inside(name: &str) -> bool {
    let is_part = |part: &str| !matches!(part, "" | "." | "..") && !part.contains('\0');
    let is_plain = !cfg!(windows) || !name.contains(['\\', ':']);
    is_plain && name.split('/').all(is_part)
}

/// File operations below an open directory handle.
#[cfg(unix)]
mod system {
    use std::fs::File;
    use std::io::{self, Read};
    use std::os::fd::OwnedFd;
    use std::path::Path;

    use rustix::fs::{self as sys, Access, AtFlags, Mode, OFlags};
    use rustix::io::Errno;

    use super::EntryInfo;

    const FOLDER: OFlags =
        OFlags::DIRECTORY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::RDONLY);

    /// The open root folder.
    #[derive(Debug)]
    pub struct Root(OwnedFd);

    impl Root {
        pub fn open(path: &Path) -> io::Result<Self> {
            Ok(Root(sys::open(path, OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY, Mode::empty())?))
        }

        /// Opens the folder above a name, one part after the other, and returns it with the last part of the name.
        /// Missing folders are created if `create_folders` is set.
        fn parent<'a>(&self, name: &'a str, create_folders: bool) -> io::Result<(OwnedFd, &'a str)> {
            let (folders, leaf) = name.rsplit_once('/').unwrap_or(("", name));
            let mut folder = self.0.try_clone()?;
            for part in folders.split('/').filter(|part| !part.is_empty()) {
                folder = match sys::openat(&folder, part, FOLDER, Mode::empty()) {
                    Err(Errno::NOENT) if create_folders => {
                        match sys::mkdirat(&folder, part, Mode::from_raw_mode(0o777)) {
                            Ok(()) | Err(Errno::EXIST) => {}
                            Err(error) => return Err(error.into()),
                        }
                        sys::openat(&folder, part, FOLDER, Mode::empty())
                            .map_err(|error| explain(part, error))?
                    }
                    opened => opened.map_err(|error| explain(part, error))?,
                };
            }
            Ok((folder, leaf))
        }

        pub fn find(&self, name: &str) -> io::Result<EntryInfo> {
            let (folder, leaf) = self.parent(name, false)?;
            let status = sys::statat(&folder, leaf, AtFlags::SYMLINK_NOFOLLOW)?;
            let is_file = sys::FileType::from_raw_mode(status.st_mode) == sys::FileType::RegularFile;
            #[allow(clippy::unnecessary_cast, reason = "the widths differ between systems")]
            Ok(EntryInfo {
                is_file,
                id: Some((status.st_dev as u64, status.st_ino as u64)),
                links: status.st_nlink as u64,
            })
        }

        pub fn contents_are_equal(&self, first: &str, second: &str) -> io::Result<bool> {
            let open = |name: &str| -> io::Result<io::BufReader<File>> {
                let (folder, leaf) = self.parent(name, false)?;
                Ok(io::BufReader::new(open_file(&folder, leaf)?))
            };
            super::readers_are_equal(open(first)?, open(second)?)
        }

        /// Adds the new name with a hard link, then removes the old one. Across file systems the file is copied
        /// instead, and without hard links it is renamed.
        pub fn move_file(&self, from: &str, to: &str) -> io::Result<()> {
            let (source, old) = self.parent(from, false)?;
            let (target, new) = self.parent(to, true)?;
            match sys::linkat(&source, old, &target, new, AtFlags::empty()) {
                Ok(()) => {}
                Err(Errno::EXIST) => return Err(Errno::EXIST.into()),
                Err(Errno::XDEV) => copy(&source, old, &target, new)?,
                // A file system without hard links.
                Err(_) => return Ok(rename(&source, old, &target, new)?),
            }
            // The new name must be on disk before the old one is removed, in case of a power failure.
            sys::fsync(&target)?;
            Ok(sys::unlinkat(&source, old, AtFlags::empty())?)
        }

        pub fn remove_file(&self, name: &str) -> io::Result<()> {
            let (folder, leaf) = self.parent(name, false)?;
            Ok(sys::unlinkat(&folder, leaf, AtFlags::empty())?)
        }

        pub fn remove_folder(&self, name: &str) -> io::Result<()> {
            let (folder, leaf) = self.parent(name, false)?;
            Ok(sys::unlinkat(&folder, leaf, AtFlags::REMOVEDIR)?)
        }

        /// Checks that entries can be added to and removed from the folder above a name or, if it does not exist, the
        /// nearest existing one above that.
        pub fn check_writable(&self, name: &str) -> io::Result<()> {
            let mut name = name;
            // Ends at the latest with a name in the root folder, which exists.
            loop {
                match self.parent(name, false) {
                    Ok((folder, _)) => {
                        return Ok(sys::accessat(
                            &folder,
                            ".",
                            Access::WRITE_OK | Access::EXEC_OK,
                            AtFlags::empty(),
                        )?);
                    }
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
                name = name.rsplit_once('/').map_or(name, |(above, _)| above);
            }
        }
    }

    /// Explains the error for the folder `part` of a name. The system reports a symbolic link there as "not a
    /// directory".
    fn explain(part: &str, error: Errno) -> io::Error {
        match error {
            Errno::NOTDIR | Errno::LOOP => {
                let part = crate::visible::visible(part);
                io::Error::other(format!("'{part}' is a link or not a folder"))
            }
            error => error.into(),
        }
    }

    fn open_file(folder: &OwnedFd, leaf: &str) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Ok(File::from(sys::openat(folder, leaf, flags, Mode::empty())?))
    }

    /// Copies a file to another file system under a temporary name, then renames it without replacing an existing file.
    fn copy(source: &OwnedFd, old: &str, target: &OwnedFd, new: &str) -> io::Result<()> {
        let part = format!(".trueshot-{}.part", &blake3::hash(new.as_bytes()).to_hex()[..16]);
        let (mut from, flags) =
            (open_file(source, old)?, OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC);
        // A file with this temporary name was left by an interrupted attempt of the same copy.
        let _ = sys::unlinkat(target, part.as_str(), AtFlags::empty());
        let mut to = File::from(sys::openat(target, part.as_str(), flags, Mode::from_raw_mode(0o600))?);
        // Temporary files are locked, so that no other process removes them as stale.
        let _ = to.try_lock();
        io::copy(&mut from.by_ref(), &mut to)?;
        let metadata = from.metadata()?;
        to.set_permissions(metadata.permissions())?;
        metadata.modified().and_then(|time| to.set_modified(time))?;
        to.sync_all()?;
        rename(target, &part, target, new)?;
        Ok(())
    }

    /// Renames a file without replacing an existing one, if the file system supports that.
    #[cfg(target_os = "linux")]
    fn rename(source: &OwnedFd, old: &str, target: &OwnedFd, new: &str) -> rustix::io::Result<()> {
        match sys::renameat_with(source, old, target, new, sys::RenameFlags::NOREPLACE) {
            Err(Errno::INVAL | Errno::NOSYS) => sys::renameat(source, old, target, new),
            outcome => outcome,
        }
    }

    /// Renames a file. The caller has checked that the new name does not exist, and the folder is locked.
    #[cfg(not(target_os = "linux"))]
    fn rename(source: &OwnedFd, old: &str, target: &OwnedFd, new: &str) -> rustix::io::Result<()> {
        sys::renameat(source, old, target, new)
    }
}

/// File operations by path, for systems without directory handles.
#[cfg(not(unix))]
mod system {
    use std::fs::{self, File};
    use std::io;
    use std::path::{Path, PathBuf};

    use super::EntryInfo;

    /// The absolute path of the root folder.
    #[derive(Debug)]
    pub struct Root(PathBuf);

    impl Root {
        pub fn open(path: &Path) -> io::Result<Self> {
            fs::read_dir(path)?;
            Ok(Root(fs::canonicalize(path)?))
        }

        /// The absolute path of a name; an error if one of its folders is a link.
        fn resolve(&self, name: &str) -> io::Result<PathBuf> {
            let path = self.0.join(name);
            let mut above = path.parent();
            while let Some(folder) = above.filter(|folder| *folder != self.0) {
                if fs::symlink_metadata(folder).is_ok_and(|metadata| !metadata.is_dir()) {
                    let shown = crate::visible::visible(&folder.to_string_lossy());
                    return Err(io::Error::other(format!("'{shown}' is a link or not a folder")));
                }
                above = folder.parent();
            }
            Ok(path)
        }

        pub fn find(&self, name: &str) -> io::Result<EntryInfo> {
            let metadata = fs::symlink_metadata(self.resolve(name)?)?;
            Ok(EntryInfo { is_file: metadata.is_file(), id: None, links: 1 })
        }

        pub fn contents_are_equal(&self, first: &str, second: &str) -> io::Result<bool> {
            let open = |name: &str| io::Result::Ok(io::BufReader::new(File::open(self.resolve(name)?)?));
            super::readers_are_equal(open(first)?, open(second)?)
        }

        pub fn move_file(&self, from: &str, to: &str) -> io::Result<()> {
            let (from, to) = (self.resolve(from)?, self.resolve(to)?);
            if let Some(folder) = to.parent() {
                fs::create_dir_all(folder)?;
            }
            match fs::hard_link(&from, &to) {
                Ok(()) => fs::remove_file(from),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Err(error),
                Err(_) => fs::rename(from, to),
            }
        }

        pub fn remove_file(&self, name: &str) -> io::Result<()> {
            fs::remove_file(self.resolve(name)?)
        }

        pub fn remove_folder(&self, name: &str) -> io::Result<()> {
            fs::remove_dir(self.resolve(name)?)
        }

        pub fn check_writable(&self, name: &str) -> io::Result<()> {
            self.resolve(name).map(drop)
        }
    }
}

/// Whether two readers have the same contents.
fn readers_are_equal(mut first: impl io::BufRead, mut second: impl io::BufRead) -> io::Result<bool> {
    loop {
        let (a, b) = (first.fill_buf()?, second.fill_buf()?);
        let shared = a.len().min(b.len());
        // Nothing is shared at the end of one of them, which must be the end of both.
        if shared == 0 || a[..shared] != b[..shared] {
            return Ok(a.is_empty() && b.is_empty());
        }
        first.consume(shared);
        second.consume(shared);
    }
}
