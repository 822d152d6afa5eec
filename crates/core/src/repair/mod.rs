//! Repairs: an audit becomes a [`RepairPlan`] that a person can read and edit, and a plan becomes a repaired [`copy`], a folder
//! repaired in place with an undo file ([`Journal`]), or a list of labels for other programs.
//!
//! Nothing here deletes or overwrites a file. A copy appears whole under its name or not at all. In place, every move is
//! written to the undo file before the first one is made, so a repair that was cut off can be finished or undone. Both are
//! locked against other processes ([`LockedFolder`]).

mod copy;
mod exports;
mod folder;
mod journal;
mod moves;
mod plan;

pub use self::copy::{Copied, LOG, copy, files_below};
pub use self::exports::{Labelled, fiftyone, label_studio, labels_csv};
pub use self::folder::LockedFolder;
pub use self::journal::{Journal, Outcome};
pub use self::moves::{Move, QUARANTINE, moves};
pub use self::plan::{Kind, Listed, PlanHeader, PlannedChange, RepairPlan};

#[cfg(test)]
mod tests;
