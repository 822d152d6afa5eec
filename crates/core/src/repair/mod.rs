//! Repairs of image collections: an audit becomes a [`RepairPlan`] that a user can read and edit, and a plan becomes a
//! repaired [`copy`] of a folder or of the items of a list or an archive ([`copy_items`]), moves within the folder with an
//! undo file ([`Journal`]), or label lists for other programs ([`labels_csv`], [`label_studio`], [`fiftyone`]).
//!
//! No file is ever deleted or overwritten. A copy, a folder or a ZIP archive, is built under a hidden name and renamed
//! when it is complete. In place, all moves are written to the undo file before the first one is made, so an interrupted
//! repair can be finished or undone. Both ways lock the folder against other processes ([`LockedFolder`]).

mod copy;
mod exports;
mod folder;
mod journal;
mod moves;
mod plan;
#[cfg(feature = "zip")]
mod zip_copy;

pub use self::copy::{Copied, FileContents, LOG, copy, copy_items, files_below, is_zip};
pub use self::exports::{Labelled, fiftyone, label_studio, labels_csv};
pub use self::folder::LockedFolder;
pub use self::journal::{Journal, Outcome};
pub use self::moves::{CopyLayout, Move, QUARANTINE, copies, moves};
pub use self::plan::{Kind, Listed, NewClass, PlanHeader, PlannedChange, RepairPlan};

#[cfg(test)]
mod tests;
