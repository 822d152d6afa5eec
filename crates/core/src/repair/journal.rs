//! The undo file of a repair in place ([`Journal`]): the list of all moves, written to disk before the first one is
//! made. Start with [`Journal::new`], then [`Journal::write`], then [`Journal::apply`].
//!
//! The first line of the file is a header, followed by one line of JSON per [`Move`]. A move links the file under its
//! new name and then removes the old name, so a file always has a name and nothing is overwritten. Across file systems
//! it is copied instead, and where there are no hard links it is renamed. Which of the two names exist tells whether a
//! move has been made. If both are names of the same file, or of a file and its copy, the move was interrupted and is
//! completed. So an interrupted repair can be finished ([`Journal::apply`]) or undone ([`Journal::undo`]) any number of
//! times. A move that fails does not stop the others.

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::folder::{LockedFolder, NameRelation, is_inside};
use super::moves::Move;
use crate::atomic::write_atomically;
use crate::error::{Error, Result};
use crate::progress::Progress;
use crate::visible::visible;

/// The version of the file format, in the header.
const FORMAT: &str = "trueshot-undo/1";

/// The moves of a repair in place, which can be applied and undone.
///
/// ```
/// use trueshot::repair::{Journal, LockedFolder, Move};
///
/// let folder = tempfile::tempdir().unwrap();
/// std::fs::write(folder.path().join("rex.jpg"), "a dog").unwrap();
/// let moves = vec![Move { from: "rex.jpg".into(), to: "dog/rex.jpg".into() }];
/// let journal = Journal::new(folder.path(), "text of the plan", moves);
/// let locked = LockedFolder::open(folder.path())?;
/// assert_eq!(journal.apply(&locked, &())?.moved, 1);
/// assert_eq!(journal.undo(&locked, &())?.moved, 1);
/// # Ok::<(), trueshot::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Journal {
    header: Header,
    moves: Vec<Move>,
}

/// The first line of an undo file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    format: String,
    /// The folder that is repaired.
    root: PathBuf,
    /// The BLAKE3 hash of the plan's text, in hexadecimal.
    plan: String,
    /// Folders that the moves create, outer ones first; undo removes them again.
    folders: Vec<String>,
}

/// The result of applying or undoing the moves of a repair.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Files moved by this call.
    pub moved: usize,
    /// Files that were already where this call moves them to.
    pub already_moved: usize,
    /// One message per move that failed, with the reason.
    pub problems: Vec<String>,
}

impl Journal {
    /// A journal of moves below the folder `root`; `plan` is the text of the plan they come from.
    pub fn new(root: &Path, plan: &str, moves: Vec<Move>) -> Self {
        // Folders that do not exist yet: `undo` removes them again.
        let mut folders: Vec<String> = Vec::new();
        for file_move in &moves {
            for folder in folders_above(&file_move.to) {
                if !root.join(folder).exists() && !folders.iter().any(|known| known == folder) {
                    folders.push(folder.into());
                }
            }
        }
        let plan = blake3::hash(plan.as_bytes()).to_hex().to_string();
        Journal { header: Header { format: FORMAT.into(), root: root.into(), plan, folders }, moves }
    }

    /// Reads an undo file.
    ///
    /// # Errors
    /// [`Error::Read`] if the file cannot be read. [`Error::BadPlan`] if it is not an undo file, if a path leaves the
    /// folder or appears twice, or if the header lists a folder that no move needs.
    pub fn open(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(|source| Error::Read { path: path.into(), source })?;
        let bad =
            |line: usize, problem: &str| Error::BadPlan { path: path.into(), line, problem: problem.into() };
        let mut lines = (1..).zip(text.lines());
        let header = lines.next().and_then(|(_, line)| serde_json::from_str::<Header>(line).ok());
        let header = header.filter(|header| header.format == FORMAT);
        let header = header.ok_or_else(|| bad(1, "not an undo file that `trueshot repair` wrote"))?;
        let (mut moves, mut names, mut needed_folders) = (Vec::new(), HashSet::new(), HashSet::new());
        for (number, line) in lines {
            let file_move: Move = serde_json::from_str(line).map_err(|_| bad(number, "not a move"))?;
            if !is_inside(&file_move.from) || !is_inside(&file_move.to) {
                return Err(bad(number, "a path that leaves the folder or is not in its simplest form"));
            }
            // Every name occurs once, so the moves do not depend on each other.
            if !names.insert(file_move.from.clone()) || !names.insert(file_move.to.clone()) {
                return Err(bad(number, "a name appears in two moves, or twice in one"));
            }
            needed_folders.extend(folders_above(&file_move.to).map(str::to_string));
            moves.push(file_move);
        }
        // Undo removes these folders; a changed undo file must not name any others.
        if !header.folders.iter().all(|folder| needed_folders.contains(folder)) {
            return Err(bad(1, "the header lists a folder that no move needs"));
        }
        Ok(Journal { header, moves })
    }

    /// Writes the undo file; this must happen before [`Journal::apply`].
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_string(&self.header).expect("a header is plain data") + "\n";
        for file_move in &self.moves {
            text += &(serde_json::to_string(file_move).expect("a move is plain data") + "\n");
        }
        write_atomically(path, |file| file.write_all(text.as_bytes()))
    }

    /// Whether the moves come from a plan with this text.
    pub fn is_of(&self, plan: &str) -> bool {
        self.header.plan == blake3::hash(plan.as_bytes()).to_hex().as_str()
    }

    /// The folder that is repaired.
    pub fn root(&self) -> &Path {
        &self.header.root
    }

    /// The same journal for a folder that has been moved to the path `root`.
    pub fn with_root(mut self, root: PathBuf) -> Self {
        self.header.root = root;
        self
    }

    /// The moves in the order in which [`Journal::apply`] makes them.
    pub fn moves(&self) -> &[Move] {
        &self.moves
    }

    /// The number of files that are still under their old name.
    pub fn pending(&self) -> usize {
        let exists = |name: &String| fs::symlink_metadata(self.header.root.join(name)).is_ok();
        self.moves.iter().filter(|file_move| exists(&file_move.from)).count()
    }

    /// Reasons why moves would fail, one message per move, without moving anything.
    pub fn obstacles(&self, folder: &LockedFolder) -> Vec<String> {
        self.moves.iter().filter_map(|file_move| folder.obstacle(&file_move.from, &file_move.to)).collect()
    }

    /// Makes all moves that have not been made yet. `progress` counts the moves.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if `progress` stopped it. A move that fails is not an error but one of
    /// [`Outcome::problems`].
    pub fn apply(&self, folder: &LockedFolder, progress: &dyn Progress) -> Result<Outcome> {
        let moves = self.moves.iter().map(|file_move| (file_move.from.as_str(), file_move.to.as_str()));
        move_all(folder, moves, progress)
    }

    /// Reverts all moves that have been made, and removes the folders that were created for them if they are empty.
    ///
    /// # Errors
    /// As for [`Journal::apply`].
    pub fn undo(&self, folder: &LockedFolder, progress: &dyn Progress) -> Result<Outcome> {
        let moves = self.moves.iter().rev().map(|file_move| (file_move.to.as_str(), file_move.from.as_str()));
        let outcome = move_all(folder, moves, progress)?;
        for created in self.header.folders.iter().rev() {
            // A folder into which the user has put files since is not empty, and stays.
            let _ = folder.remove_empty_folder(created);
        }
        Ok(outcome)
    }
}

/// The parent folders of a path, outer ones first: `a` and `a/b` for `a/b/1.jpg`.
fn folders_above(name: &str) -> impl Iterator<Item = &str> {
    name.match_indices('/').map(|(end, _)| &name[..end])
}

/// Moves all files, given as (from, to). Failures are collected and do not stop the remaining moves.
fn move_all<'a>(
    folder: &LockedFolder,
    moves: impl ExactSizeIterator<Item = (&'a str, &'a str)>,
    progress: &dyn Progress,
) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let total = moves.len() as u64;
    for (done, (from, to)) in (1..).zip(moves) {
        match move_one(folder, from, to) {
            Ok(true) => outcome.moved += 1,
            Ok(false) => outcome.already_moved += 1,
            Err(problem) => outcome.problems.push(problem),
        }
        progress.check(done, total)?;
    }
    Ok(outcome)
}

/// Moves one file; `false` if an earlier call has already done so. The error is a message for the user.
fn move_one(folder: &LockedFolder, from: &str, to: &str) -> std::result::Result<bool, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", visible(from));
    let remove_source = || folder.remove_file(from).map(|()| true).map_err(failed);
    // Which of the two names exist tells how far an earlier attempt got.
    match (folder.find(from).map_err(failed)?, folder.find(to).map_err(failed)?) {
        (Some(source), None) if source.is_file => folder.move_file(from, to).map(|()| true).map_err(failed),
        (Some(_), None) => Err(format!("{} is a link or not a file", visible(from))),
        (None, Some(_)) => Ok(false),
        (None, None) => Err(format!("neither {} nor {} exists", visible(from), visible(to))),
        (Some(source), Some(target)) => {
            match folder.compare((from, source), (to, target)).map_err(failed)? {
                // An interrupted move: the new name is complete, and only the old one remains to be removed.
                NameRelation::TwoNames | NameRelation::Copy => remove_source(),
                NameRelation::OneName => {
                    Err(format!("{} and {} are the same file", visible(from), visible(to)))
                }
                NameRelation::Different => Err(format!("{} already exists", visible(to))),
            }
        }
    }
}
