//! Repaired copies: [`copy`] copies all files of a folder, with some of them moved, and [`copy_items`] the items of a
//! list or an archive, into a new folder or a ZIP archive.
//!
//! The copy is built in a hidden folder (an archive: in a temporary file) next to the destination and renamed when it
//! is complete, so the destination never contains half a copy. If copying fails or is stopped, what was built is
//! removed; what a killed process left is removed by the next copy to the same destination. The destination is locked
//! against other copies, and the source against repairs in place.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};

use super::folder::is_inside;
use super::moves::Move;
use super::plan::names_in_words;
use crate::atomic::folder_of;
use crate::error::{Error, Result};
use crate::lock::{LOCK_FILE, Lock};
use crate::progress::Progress;
use crate::visible::visible;

/// The name of the log file in a copy, which lists the moves as JSON lines.
pub const LOG: &str = "trueshot-repair.jsonl";

/// The result of copying a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copied {
    /// The number of files in the copy.
    pub files: usize,
    /// Names that were not copied: broken links, links to a parent folder, pipes and devices.
    pub left_out: Vec<String>,
}

/// Copies the folder `root` to `into` with files moved: to a new folder, or to a new ZIP archive if `into` ends in
/// `.zip` (with the feature `zip`). `progress` counts the copied files.
///
/// # Errors
/// [`Error::Locked`] if another process copies to the same destination or repairs the source;
/// [`Error::CollectionChanged`] if a file to be moved does not exist; [`Error::Write`] if the destination exists, is
/// inside the source or cannot be written, or if a path leads out of the copy; [`Error::Read`] if a file of the source
/// cannot be read; [`Error::Interrupted`] if `progress` stopped it.
pub fn copy(root: &Path, into: &Path, moves: &[Move], progress: &dyn Progress) -> Result<Copied> {
    check_outside(root, into)?;
    check_inside(moves, into)?;
    let _destination = Lock::beside(into)?;
    let _source = Lock::for_reading(root)?;
    // The new path of every moved file, by its old one.
    let targets: HashMap<&str, &str> = moves.iter().map(|m| (m.from.as_str(), m.to.as_str())).collect();
    let mut source_contents = FolderContents::read(root)?;
    // The log of an earlier repair is replaced.
    source_contents.files.retain(|(item, _)| item != LOG);
    // A repair in place may have ended after the caller checked the plan.
    let names: HashSet<&str> = source_contents.files.iter().map(|(item, _)| item.as_str()).collect();
    let gone: Vec<&str> =
        moves.iter().map(|m| m.from.as_str()).filter(|from| !names.contains(from)).collect();
    if let Some(problem) = names_in_words(&gone, "gone") {
        return Err(Error::CollectionChanged { root: root.into(), problem });
    }
    let target = |(item, path): &(String, PathBuf)| {
        // A file that is not moved keeps the exact bytes of its name, even if they are not valid UTF-8.
        let same_name = path.strip_prefix(root).unwrap_or(Path::new(item));
        targets.get(item.as_str()).map_or(same_name, Path::new).to_owned()
    };
    let new_copy = NewCopy {
        folders: source_contents.folders,
        targets: source_contents.files.iter().map(target).collect(),
        contents: &|file| Ok(FileContents::Path(source_contents.files[file].1.clone())),
        log: log(moves),
    };
    Ok(Copied { files: new_copy.write(into, progress)?, left_out: source_contents.left_out })
}

/// The contents of a file that [`copy_items`] copies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FileContents {
    /// The contents of another file, whose modification time is kept, too.
    Path(PathBuf),
    /// The given bytes.
    Bytes(Vec<u8>),
}

impl FileContents {
    /// Fails with [`Error::Read`] if the file cannot be opened, so that the error of a copy names the right file.
    fn check_readable(&self) -> Result<()> {
        match self {
            FileContents::Bytes(_) => Ok(()),
            FileContents::Path(path) => self::open(path).map(drop),
        }
    }
}

/// Opens a file to be copied.
pub(super) fn open(path: &Path) -> Result<fs::File> {
    fs::File::open(path).map_err(|source| Error::Read { path: path.into(), source })
}

/// Copies items to a new folder, or to a new ZIP archive if `into` ends in `.zip` (with the feature `zip`), each from
/// its name in the collection to a path in the copy ([`copies`](super::copies)). `contents` reads the item with the
/// given index. `progress` counts the copied items. Returns the number of files.
///
/// # Errors
/// As [`copy`], and [`Error::Read`] if an item cannot be read.
pub fn copy_items(
    items: &[Move],
    contents: &dyn Fn(usize) -> std::io::Result<FileContents>,
    into: &Path,
    progress: &dyn Progress,
) -> Result<usize> {
    check_inside(items, into)?;
    let _destination = Lock::beside(into)?;
    let moved: Vec<Move> = items.iter().filter(|item| item.from != item.to).cloned().collect();
    let read = |item: usize| {
        contents(item).map_err(|source| Error::Read { path: items[item].from.clone().into(), source })
    };
    let targets = items.iter().map(|item| PathBuf::from(&item.to)).collect();
    NewCopy { folders: Vec::new(), targets, contents: &read, log: log(&moved) }.write(into, progress)
}

/// What a new folder or archive will contain.
pub(super) struct NewCopy<'a> {
    /// Relative paths of folders, which are created even if they stay empty: they are classes without images yet.
    pub folders: Vec<PathBuf>,
    /// The relative path of every file in the copy.
    pub targets: Vec<PathBuf>,
    /// Reads the file with the given index in `targets`.
    pub contents: &'a dyn Fn(usize) -> Result<FileContents>,
    /// The contents of the log file [`LOG`].
    pub log: String,
}

impl NewCopy<'_> {
    /// Writes the folder or archive and returns the number of files, without the log. The caller holds the locks.
    fn write(&self, into: &Path, progress: &dyn Progress) -> Result<usize> {
        #[cfg(feature = "zip")]
        if is_zip(into) {
            return super::zip_copy::write(self, into, progress);
        }
        #[cfg(not(feature = "zip"))]
        if is_zip(into) {
            let source =
                std::io::Error::other("this build cannot write ZIP archives: it lacks the feature `zip`");
            return Err(Error::Write { path: into.into(), source });
        }
        self.write_folder(into, progress)
    }

    /// Writes the folder `into`; see [`UnfinishedCopy`] for what happens if that is interrupted.
    fn write_folder(&self, into: &Path, progress: &dyn Progress) -> Result<usize> {
        let unfinished = UnfinishedCopy::create(into)?;
        let written = self.write_below(&unfinished.part, into, progress);
        if written.is_err() {
            let _ = fs::remove_dir_all(&unfinished.part);
        }
        // If the folder could not be removed, the mark lets the next copy remove it.
        if !unfinished.part.exists() {
            let _ = fs::remove_file(&unfinished.mark);
        }
        written.map(|()| self.targets.len())
    }

    /// Writes all files to the hidden folder `part` and renames it to `into`. Errors name the path in the
    /// finished copy: the hidden folder is unknown to the user.
    fn write_below(&self, part: &Path, into: &Path, progress: &dyn Progress) -> Result<()> {
        let failed = |path: PathBuf| move |source| Error::Write { path, source };
        for folder in &self.folders {
            fs::create_dir_all(part.join(folder)).map_err(failed(into.join(folder)))?;
        }
        for (file, target) in self.targets.iter().enumerate() {
            let contents = (self.contents)(file)?;
            contents.check_readable()?;
            write_new(&contents, &part.join(target)).map_err(failed(into.join(target)))?;
            progress.check(file as u64 + 1, self.targets.len() as u64)?;
        }
        fs::write(part.join(LOG), &self.log).map_err(failed(into.join(LOG)))?;
        // The destination may be an empty folder; a folder with contents is not replaced.
        let _ = fs::remove_dir(into);
        fs::rename(part, into).map_err(failed(into.into()))
    }
}

/// Whether a path names a ZIP archive.
pub fn is_zip(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("zip"))
}

/// The relative paths of everything below a folder except folders, following links: files, and the entries that
/// [`Copied::left_out`] would name.
pub fn files_below(root: &Path) -> Result<Vec<String>> {
    let contents = FolderContents::read(root)?;
    Ok(contents.files.into_iter().map(|(item, _)| item).chain(contents.left_out).collect())
}

/// The paths of an unfinished copy: the hidden folder `part` that it is built in, and the file `mark` that marks the
/// folder as created by this program.
///
/// The mark is written before the folder is created and removed after the folder has its final name. So a folder with a
/// mark was left by an interrupted copy and may be removed; a folder without one belongs to the user.
struct UnfinishedCopy {
    part: PathBuf,
    mark: PathBuf,
}

impl UnfinishedCopy {
    /// Removes the remains of an interrupted copy to `into`, checks that the destination is free, and creates the mark
    /// and the hidden folder.
    fn create(into: &Path) -> Result<Self> {
        let refused = |problem: &str| {
            let source = std::io::Error::other(problem.to_owned());
            Err(Error::Write { path: into.into(), source })
        };
        let Some(name) = into.file_name() else { return refused("it has no name") };
        let hidden = |suffix: &str| {
            let mut hidden = std::ffi::OsString::from(".");
            hidden.push(name);
            hidden.push(suffix);
            into.with_file_name(hidden)
        };
        let (part, mark) = (hidden(".trueshot-part"), hidden(".trueshot-unfinished"));
        if mark.is_file() {
            let failed = |source| Error::Write { path: part.clone(), source };
            match fs::remove_dir_all(&part) {
                Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(failed(error)),
                _ => fs::remove_file(&mark).map_err(failed)?,
            }
        }
        if into.exists() && !fs::read_dir(into).is_ok_and(|mut entries| entries.next().is_none()) {
            return refused("it already exists");
        }
        if part.exists() {
            return refused("the hidden folder it would be built in exists already");
        }
        let failed = |source| Error::Write { path: into.into(), source };
        fs::write(&mark, "").map_err(failed)?;
        if let Err(error) = fs::create_dir(&part) {
            let _ = fs::remove_file(&mark);
            return Err(failed(error));
        }
        Ok(UnfinishedCopy { part, mark })
    }
}

/// Checks that no file would be written outside the copy.
fn check_inside(moves: &[Move], into: &Path) -> Result<()> {
    match moves.iter().find(|m| !is_inside(&m.to)) {
        None => Ok(()),
        Some(outside) => {
            let source = std::io::Error::other(format!("{} leads out of it", visible(&outside.to)));
            Err(Error::Write { path: into.into(), source })
        }
    }
}

/// Checks that the destination is not inside the source: such a copy would never end.
fn check_outside(root: &Path, into: &Path) -> Result<()> {
    let failed = |source| Error::Read { path: root.into(), source };
    let root = fs::canonicalize(root).map_err(failed)?;
    let parent =
        fs::canonicalize(folder_of(into)).map_err(|source| Error::Write { path: into.into(), source })?;
    if parent.starts_with(&root) {
        let source = std::io::Error::other("it is inside the folder to be copied");
        return Err(Error::Write { path: into.into(), source });
    }
    Ok(())
}

/// Writes a file to a path that must not exist. A copy of another file has its modification time.
fn write_new(contents: &FileContents, to: &Path) -> std::io::Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    if to.exists() {
        return Err(std::io::ErrorKind::AlreadyExists.into());
    }
    let from = match contents {
        FileContents::Bytes(bytes) => return fs::write(to, bytes),
        FileContents::Path(path) => path,
    };
    fs::copy(from, to)?;
    // Keep the modification time, by which people sort photos.
    if let Ok(time) = fs::metadata(from).and_then(|metadata| metadata.modified()) {
        // Unix needs no write access for this, which a copy of a read-only file does not allow.
        let file = fs::File::options().read(true).write(!cfg!(unix)).open(to);
        let _ = file.and_then(|file| file.set_modified(time));
    }
    Ok(())
}

/// The log of a copy: one line of JSON per move.
fn log(moves: &[Move]) -> String {
    let line = |file_move: &Move| serde_json::to_string(file_move).expect("a move is plain data") + "\n";
    moves.iter().map(line).collect()
}

/// Everything below a folder, following links. Names are relative paths with parts separated by `/`.
#[derive(Default)]
struct FolderContents {
    /// Names and full paths of the files.
    files: Vec<(String, PathBuf)>,
    /// Relative paths, with the exact bytes of their names.
    folders: Vec<PathBuf>,
    /// Names of entries that are neither files nor folders, and of links to a parent folder.
    left_out: Vec<String>,
}

impl FolderContents {
    /// Lists everything below the folder `root` except its lock file.
    fn read(root: &Path) -> Result<Self> {
        let mut contents = Self::default();
        contents.add_folder(root, "", &mut Vec::new())?;
        for folder in &mut contents.folders {
            *folder = folder.strip_prefix(root).unwrap_or(folder).to_owned();
        }
        contents.files.retain(|(item, _)| item != LOCK_FILE);
        Ok(contents)
    }

    /// Adds the contents of a folder. `prefix` is its name below the root with a `/` at the end, empty for the root.
    /// `parents` are the real paths of the folders above it, to detect link cycles.
    fn add_folder(&mut self, folder: &Path, prefix: &str, parents: &mut Vec<PathBuf>) -> Result<()> {
        let failed = |source| Error::Read { path: folder.into(), source };
        let real_path = fs::canonicalize(folder).map_err(failed)?;
        if parents.contains(&real_path) {
            self.left_out.push(prefix.trim_end_matches('/').into());
            return Ok(());
        }
        parents.push(real_path);
        let mut entries: Vec<_> =
            fs::read_dir(folder).map_err(failed)?.collect::<std::io::Result<_>>().map_err(failed)?;
        entries.sort_by_key(|entry| entry.file_name());
        for entry in entries {
            let item = format!("{prefix}{}", entry.file_name().to_string_lossy());
            let path = entry.path();
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() => {
                    self.folders.push(path.clone());
                    self.add_folder(&path, &format!("{item}/"), parents)?;
                }
                Ok(metadata) if metadata.is_file() => self.files.push((item, path)),
                _ => self.left_out.push(item),
            }
        }
        parents.pop();
        Ok(())
    }
}
