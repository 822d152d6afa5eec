//! The undo file of a repair in place: all moves, written to disk before the first one is made.
//!
//! A move adds the new name of a file and then removes the old one, so a file always has a name, and nothing is ever
//! overwritten. Which of the two names exist tells how far a move has come, so a repair that was cut off can be finished
//! ([`Journal::apply`]) or taken back ([`Journal::undo`]), any number of times. A move that cannot be made does not stop
//! the others.

use crate::progress::Progress;
use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::folder::{LockedFolder, Pair, is_inside};
use super::moves::Move;
use crate::atomic::write_atomically;
use crate::error::{Error, Result};
use crate::visible::visible;

const FORMAT: &str = "trueshot-undo/1";

/// The moves of a repair in place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Journal {
    header: Header,
    moves: Vec<Move>,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Header {
    format: String,
    root: PathBuf,
    /// A hash of the plan.
    plan: String,
    /// Folders that had to be made, outer ones first.
    folders: Vec<String>,
}

/// The result of applying or undoing the moves of a repair.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Files moved by this call.
    pub moved: usize,
    /// Files that were at their destination already.
    pub before: usize,
    /// Moves that could not be made, with the reason.
    pub problems: Vec<String>,
}

impl Journal {
    /// Prepares moves below a folder; `plan` is the text of the plan they come from.
    pub fn new(root: &Path, plan: &str, moves: Vec<Move>) -> Self {
        let mut folders: Vec<String> = Vec::new();
        for one in &moves {
            for folder in folders_above(&one.to) {
                if !root.join(folder).exists() && !folders.iter().any(|known| known == folder) {
                    folders.push(folder.into());
                }
            }
        }
        let plan = blake3::hash(plan.as_bytes()).to_hex().to_string();
        Journal { header: Header { format: FORMAT.into(), root: root.into(), plan, folders }, moves }
    }

    /// Reads an undo file and refuses one whose names leave the folder, repeat or contradict each other.
    pub fn open(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(|source| Error::Read { path: path.into(), source })?;
        let bad =
            |line: usize, problem: &str| Error::BadPlan { path: path.into(), line, problem: problem.into() };
        let mut lines = (1..).zip(text.lines());
        let header = lines.next().and_then(|(_, line)| serde_json::from_str::<Header>(line).ok());
        let header = header.filter(|header| header.format == FORMAT);
        let header = header.ok_or_else(|| bad(1, "not an undo file that `trueshot repair` wrote"))?;
        let (mut moves, mut names, mut made) = (Vec::new(), HashSet::new(), HashSet::new());
        for (number, line) in lines {
            let one: Move = serde_json::from_str(line).map_err(|_| bad(number, "not a move"))?;
            if !is_inside(&one.from) || !is_inside(&one.to) {
                return Err(bad(number, "leads out of the folder"));
            }
            if !names.insert(one.from.clone()) || !names.insert(one.to.clone()) {
                return Err(bad(number, "a name appears in two moves, or twice in one"));
            }
            made.extend(folders_above(&one.to).map(str::to_string));
            moves.push(one);
        }
        if !header.folders.iter().all(|folder| made.contains(folder)) {
            return Err(bad(1, "it names a folder that none of its moves needs"));
        }
        Ok(Journal { header, moves })
    }

    /// Writes the undo file; this must happen before [`Journal::apply`].
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_string(&self.header).expect("plain data serialises") + "\n";
        for one in &self.moves {
            text += &(serde_json::to_string(one).expect("plain data serialises") + "\n");
        }
        write_atomically(path, |file| file.write_all(text.as_bytes()))
    }

    /// Whether the moves come from this plan.
    pub fn is_of(&self, plan: &str) -> bool {
        self.header.plan == blake3::hash(plan.as_bytes()).to_hex().as_str()
    }

    /// The folder that is repaired.
    pub fn root(&self) -> &Path {
        &self.header.root
    }

    /// The same moves in a folder that lies somewhere else now.
    pub fn with_root(mut self, root: PathBuf) -> Self {
        self.header.root = root;
        self
    }

    /// The moves.
    pub fn moves(&self) -> &[Move] {
        &self.moves
    }

    /// The number of files that are still under their old name.
    pub fn pending(&self) -> usize {
        let is_there = |name: &String| fs::symlink_metadata(self.header.root.join(name)).is_ok();
        self.moves.iter().filter(|one| is_there(&one.from)).count()
    }

    /// Reasons why moves would fail, found before anything is written or moved.
    pub fn obstacles(&self, folder: &LockedFolder) -> Vec<String> {
        self.moves.iter().filter_map(|one| folder.obstacle(&one.from, &one.to)).collect()
    }

    /// Makes all moves that are not made yet. The progress counts the moves.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if `progress` stopped it. A move that cannot be made is not an error but one of
    /// [`Outcome::problems`].
    pub fn apply(&self, folder: &LockedFolder, progress: &dyn Progress) -> Result<Outcome> {
        let moves = self.moves.iter().map(|one| (one.from.as_str(), one.to.as_str()));
        make_all(folder, moves, progress)
    }

    /// Takes back all moves that were made, and removes the folders that were made for them if they are empty.
    ///
    /// # Errors
    /// As for [`Journal::apply`].
    pub fn undo(&self, folder: &LockedFolder, progress: &dyn Progress) -> Result<Outcome> {
        let moves = self.moves.iter().rev().map(|one| (one.to.as_str(), one.from.as_str()));
        let outcome = make_all(folder, moves, progress)?;
        for made in self.header.folders.iter().rev() {
            // A folder in which the user has put something since is not empty, and stays.
            let _ = folder.remove_empty_folder(made);
        }
        Ok(outcome)
    }
}

/// The folders that a name lies in, outer ones first: `a` and `a/b` for `a/b/1.jpg`.
fn folders_above(name: &str) -> impl Iterator<Item = &str> {
    name.match_indices('/').map(|(end, _)| &name[..end])
}

fn make_all<'a>(
    folder: &LockedFolder,
    moves: impl ExactSizeIterator<Item = (&'a str, &'a str)>,
    progress: &dyn Progress,
) -> Result<Outcome> {
    let mut outcome = Outcome::default();
    let total = moves.len() as u64;
    for (done, (from, to)) in (1..).zip(moves) {
        match make(folder, from, to) {
            Ok(true) => outcome.moved += 1,
            Ok(false) => outcome.before += 1,
            Err(problem) => outcome.problems.push(problem),
        }
        progress.check(done, total)?;
    }
    Ok(outcome)
}

/// Makes one move; `false` if it had been made before.
fn make(folder: &LockedFolder, from: &str, to: &str) -> std::result::Result<bool, String> {
    let failed = |error: std::io::Error| format!("{}: {error}", visible(from));
    let finish = || folder.remove_file(from).map(|()| true).map_err(failed);
    match (folder.find(from).map_err(failed)?, folder.find(to).map_err(failed)?) {
        (Some(source), None) if source.is_file => folder.move_file(from, to).map(|()| true).map_err(failed),
        (Some(_), None) => Err(format!("{} is a link or not a file", visible(from))),
        (None, Some(_)) => Ok(false),
        (None, None) => Err(format!("neither {} nor {} exists", visible(from), visible(to))),
        (Some(source), Some(target)) => {
            match folder.compare((from, source), (to, target)).map_err(failed)? {
                Pair::TwoNames | Pair::Copy => finish(),
                Pair::OneName => Err(format!("{} and {} are the same file", visible(from), visible(to))),
                Pair::Different => Err(format!("{} already exists", visible(to))),
            }
        }
    }
}
