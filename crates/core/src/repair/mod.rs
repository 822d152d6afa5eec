//! Repairs of image collections: an audit becomes a [`RepairPlan`] that a user can read and edit, and a plan becomes a
//! repaired [`copy`] of a folder or of the items of a list or an archive ([`copy_items`]), moves within the folder with
//! an undo file ([`Journal`]), or label lists for other programs ([`labels_csv`], [`label_studio`], [`fiftyone`]).
//!
//! Start with [`RepairPlan`]; `trueshot repair` calls the functions in this order: parse the plan, check that the
//! collection has not changed ([`RepairPlan::check`]), compute the new paths ([`moves()`] for a folder, [`copies`] for
//! other images), then copy, move or export. An item of a collection is a file or a row; the name of a file
//! is its path relative to the root of the collection, with parts separated by `/`.
//!
//! No file is ever deleted or overwritten. A copy, a folder or a ZIP archive, is built under a hidden name and renamed
//! when it is complete. In place, all moves are written to the undo file before the first one is made, so an
//! interrupted repair can be finished or undone. Both ways lock the folder against other processes: [`LockedFolder`]
//! for moves, locks inside [`copy()`] and [`copy_items`] for copies.

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
pub use self::plan::{CollectionKind, ListedItem, NewClass, PlanHeader, PlannedChange, RepairPlan};

#[cfg(test)]
mod tests;
