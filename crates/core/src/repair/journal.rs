//! Moves in place that can be finished or undone, whenever they were cut off. All moves are written down and synced
//! before the first is made. A move links the file under its new name and then removes the old one, so the file always
//! has a name, and a name that is taken is never overwritten; what state a move is in can be seen from which of the two
//! names are there.

use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::moves::Move;
use crate::atomic::write_atomically;
use crate::error::{Error, Result};
use crate::report::visible;

const FORMAT: &str = "trueshot-undo/1";

/// The moves of a repair, as they are written down.
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
    /// Folders that had to be made, the outer ones first.
    folders: Vec<String>,
}

/// What came of moves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Files that were moved now.
    pub moved: usize,
    /// Files that had been moved before.
    pub before: usize,
}

impl Journal {
    /// Plans moves below a folder; `plan` is the text they come from.
    pub fn new(root: &Path, plan: &str, moves: Vec<Move>) -> Self {
        let mut folders: Vec<String> = Vec::new();
        for one in &moves {
            let parts: Vec<&str> = one.to.split('/').collect();
            for depth in 1..parts.len() {
                let folder = parts[..depth].join("/");
                if !root.join(&folder).exists() && !folders.contains(&folder) {
                    folders.push(folder);
                }
            }
        }
        let plan = blake3::hash(plan.as_bytes()).to_hex().to_string();
        Journal { header: Header { format: FORMAT.into(), root: root.into(), plan, folders }, moves }
    }

    /// Reads what was written down.
    pub fn open(path: &Path) -> Result<Self> {
        let text = fs::read_to_string(path).map_err(|source| Error::Read { path: path.into(), source })?;
        let bad =
            |line: usize, problem: &str| Error::BadPlan { path: path.into(), line, problem: problem.into() };
        let mut lines = (1..).zip(text.lines());
        let header = lines.next().and_then(|(_, line)| serde_json::from_str::<Header>(line).ok());
        let header = header.filter(|header| header.format == FORMAT);
        let header = header.ok_or_else(|| bad(1, "not an undo file that `trueshot repair` wrote"))?;
        let one = |(number, line): (usize, &str)| {
            let one: Move = serde_json::from_str(line).map_err(|_| bad(number, "not a move"))?;
            let stays = |name: &str| {
                !name.split('/').any(|part| matches!(part, ".." | "")) && !Path::new(name).is_absolute()
            };
            if stays(&one.from) && stays(&one.to) {
                Ok(one)
            } else {
                Err(bad(number, "leads out of the folder"))
            }
        };
        let moves = lines.map(one).collect::<Result<_>>()?;
        Ok(Journal { header, moves })
    }

    /// Writes the moves down before they are made.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut text = serde_json::to_string(&self.header).expect("plain data serialises") + "\n";
        for one in &self.moves {
            text += &(serde_json::to_string(one).expect("plain data serialises") + "\n");
        }
        write_atomically(path, |file| file.write_all(text.as_bytes()))
    }

    /// Whether it is of this plan.
    pub fn is_of(&self, plan: &str) -> bool {
        self.header.plan == blake3::hash(plan.as_bytes()).to_hex().as_str()
    }

    /// The folder it is about.
    pub fn root(&self) -> &Path {
        &self.header.root
    }

    /// The moves.
    pub fn moves(&self) -> &[Move] {
        &self.moves
    }

    /// Makes all moves that are not made yet.
    pub fn apply(&self) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        for one in &self.moves {
            self.make(&one.from, &one.to, &mut outcome)?;
        }
        Ok(outcome)
    }

    /// Takes all moves back that were made, and removes folders that were made for them, if they are empty.
    pub fn undo(&self) -> Result<Outcome> {
        let mut outcome = Outcome::default();
        for one in self.moves.iter().rev() {
            self.make(&one.to, &one.from, &mut outcome)?;
        }
        for folder in self.header.folders.iter().rev() {
            // Somebody may have put something there since; then it stays.
            let _ = fs::remove_dir(self.header.root.join(folder));
        }
        Ok(outcome)
    }

    fn make(&self, from: &str, to: &str, outcome: &mut Outcome) -> Result<()> {
        let (source, target) = (self.header.root.join(from), self.header.root.join(to));
        let is_there = |path: &Path| fs::symlink_metadata(path).is_ok();
        let failed = |source| Error::Write { path: target.clone(), source };
        match (is_there(&source), is_there(&target)) {
            (true, false) => {
                move_file(&source, &target).map_err(failed)?;
                outcome.moved += 1;
            }
            (false, true) => outcome.before += 1,
            (true, true) if is_same(&source, &target) => {
                fs::remove_file(&source).map_err(failed)?;
                outcome.moved += 1;
            }
            (true, true) => return Err(self.conflict(format!("{} is there already", visible(to)))),
            (false, false) => {
                let problem = format!("neither {} nor {} is there", visible(from), visible(to));
                return Err(self.conflict(problem));
            }
        }
        Ok(())
    }

    fn conflict(&self, problem: String) -> Error {
        Error::CollectionChanged { root: self.header.root.clone(), problem }
    }
}

/// Moves a file without ever overwriting one.
fn move_file(from: &Path, to: &Path) -> std::io::Result<()> {
    if let Some(folder) = to.parent() {
        fs::create_dir_all(folder)?;
    }
    match fs::hard_link(from, to) {
        Ok(()) => {}
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Err(error),
        // Some file systems have no links; there the name was free a moment ago.
        Err(_) => return fs::rename(from, to),
    }
    if let Some(folder) = to.parent() {
        // The new name must outlast a loss of power before the old one goes.
        let _ = fs::File::open(folder).and_then(|folder| folder.sync_all());
    }
    fs::remove_file(from)
}

/// Whether two files hold the same: then one of them is what a cut-off move left.
fn is_same(one: &Path, other: &Path) -> bool {
    let length = |path: &Path| fs::metadata(path).map(|found| found.len()).ok();
    length(one) == length(other) && matches!((fs::read(one), fs::read(other)), (Ok(a), Ok(b)) if a == b)
}
