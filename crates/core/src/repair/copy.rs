//! A repaired copy of a folder. It is built in a hidden folder next to the destination and renamed when it is complete,
//! so the destination never holds half a copy; what a killed attempt left there is removed and made again. The destination
//! is locked against other copies, and the source against repairs in place.

use crate::progress::Progress;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::moves::Move;
use crate::error::{Error, Result};
use crate::lock::{LOCK_FILE, Lock};

/// The log of what was done, in the copy.
pub const LOG: &str = "trueshot-repair.jsonl";

/// The result of copying a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Copied {
    /// The number of files in the copy.
    pub files: usize,
    /// Names that were not copied: links that lead nowhere, pipes and devices.
    pub left_out: Vec<String>,
}

/// Copies a folder with files moved. The progress counts the files copied.
///
/// # Errors
/// [`Error::Locked`] if another process copies to the same place or repairs the source; [`Error::Write`] if the
/// destination exists, lies inside the source or cannot be written; [`Error::Interrupted`] if `progress` stopped it.
pub fn copy(root: &Path, into: &Path, moves: &[Move], progress: &dyn Progress) -> Result<Copied> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Write { path: path.clone(), source }
    };
    refuse_overlap(root, into)?;
    let _destination = Lock::beside(into)?;
    let _source = Lock::for_reading(root)?;
    let Unfinished { part, mark } = Unfinished::beside(into)?;
    fs::write(&mark, "").map_err(failed(&mark))?;
    fs::create_dir(&part).map_err(failed(&part))?;
    let targets: HashMap<&str, &str> = moves.iter().map(|m| (m.from.as_str(), m.to.as_str())).collect();
    let found = FolderContents::of(root)?;
    // Empty folders are classes that wait for their pictures.
    for folder in &found.folders {
        fs::create_dir_all(part.join(folder)).map_err(failed(&part.join(folder)))?;
    }
    for (done, (item, path)) in (1..).zip(&found.files) {
        // What stays keeps its name to the byte, even one that is no text.
        let stays = path.strip_prefix(root).unwrap_or(Path::new(item));
        let target = part.join(targets.get(item.as_str()).map_or(stays, Path::new));
        copy_file(path, &target).map_err(failed(&target))?;
        progress.check(done, found.files.len() as u64)?;
    }
    write_log(&part.join(LOG), moves).map_err(failed(&part))?;
    // An empty folder may be there; one with something in it is not replaced.
    let _ = fs::remove_dir(into);
    fs::rename(&part, into).map_err(failed(into))?;
    fs::remove_file(&mark).map_err(failed(&mark))?;
    Ok(Copied { files: found.files.len(), left_out: found.left_out })
}

/// The names of all files below a folder, links followed.
pub fn files_below(root: &Path) -> Result<Vec<String>> {
    let found = FolderContents::of(root)?;
    Ok(found.files.into_iter().map(|(item, _)| item).chain(found.left_out).collect())
}

/// The hidden folder that a copy is built in, and the file next to it that marks the folder as ours. The mark is written
/// before the folder is made and removed after the folder is gone, so a folder with a mark was left by a killed copy and
/// may be removed; a folder without one belongs to the user.
struct Unfinished {
    part: PathBuf,
    mark: PathBuf,
}

impl Unfinished {
    /// Removes what a killed copy left, and refuses a destination that is in use.
    fn beside(into: &Path) -> Result<Self> {
        let refused = |problem: &str| {
            let source = std::io::Error::other(problem.to_owned());
            Err(Error::Write { path: into.into(), source })
        };
        let Some(name) = into.file_name() else { return refused("it has no name") };
        let hidden = |ending: &str| {
            let mut hidden = std::ffi::OsString::from(".");
            hidden.push(name);
            hidden.push(ending);
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
        if into.exists() && !fs::read_dir(into).is_ok_and(|mut found| found.next().is_none()) {
            return refused("it already exists");
        }
        if part.exists() {
            return refused("the hidden folder it would be built in exists already");
        }
        Ok(Unfinished { part, mark })
    }
}

/// A copy inside of what is copied would never end.
fn refuse_overlap(root: &Path, into: &Path) -> Result<()> {
    let failed = |source| Error::Read { path: root.into(), source };
    let root = fs::canonicalize(root).map_err(failed)?;
    let parent = match into.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let parent = fs::canonicalize(parent).map_err(|source| Error::Write { path: into.into(), source })?;
    if parent.starts_with(&root) {
        let source = std::io::Error::other("it is inside the folder to be copied");
        return Err(Error::Write { path: into.into(), source });
    }
    Ok(())
}

fn copy_file(from: &Path, to: &Path) -> std::io::Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    if to.exists() {
        return Err(std::io::ErrorKind::AlreadyExists.into());
    }
    fs::copy(from, to)?;
    // Photos are sorted by their time.
    if let Ok(time) = fs::metadata(from).and_then(|found| found.modified()) {
        let _ = fs::File::options().write(true).open(to).and_then(|file| file.set_modified(time));
    }
    Ok(())
}

fn write_log(path: &Path, moves: &[Move]) -> std::io::Result<()> {
    let line = |one: &Move| serde_json::to_string(one).expect("plain data serialises") + "\n";
    fs::write(path, moves.iter().map(line).collect::<String>())
}

/// All files below a folder, links followed.
#[derive(Default)]
struct FolderContents {
    files: Vec<(String, PathBuf)>,
    folders: Vec<String>,
    left_out: Vec<String>,
}

impl FolderContents {
    fn of(root: &Path) -> Result<Self> {
        let mut found = Self::default();
        found.folder(root, "", &mut Vec::new())?;
        found.files.retain(|(item, _)| item != LOCK_FILE);
        Ok(found)
    }

    fn folder(&mut self, folder: &Path, prefix: &str, above: &mut Vec<PathBuf>) -> Result<()> {
        let failed = |source| Error::Read { path: folder.into(), source };
        let true_path = fs::canonicalize(folder).map_err(failed)?;
        if above.contains(&true_path) {
            self.left_out.push(prefix.trim_end_matches('/').into());
            return Ok(());
        }
        above.push(true_path);
        let mut entries: Vec<_> =
            fs::read_dir(folder).map_err(failed)?.collect::<std::io::Result<_>>().map_err(failed)?;
        entries.sort_by_key(|entry| entry.file_name());
        for entry in entries {
            let item = format!("{prefix}{}", entry.file_name().to_string_lossy());
            let path = entry.path();
            match fs::metadata(&path) {
                Ok(found) if found.is_dir() => {
                    self.folders.push(item.clone());
                    self.folder(&path, &format!("{item}/"), above)?;
                }
                Ok(found) if found.is_file() => self.files.push((item, path)),
                _ => self.left_out.push(item),
            }
        }
        above.pop();
        Ok(())
    }
}
