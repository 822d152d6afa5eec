//! Putting things right: from an audit to a plan that somebody can read and edit, and from a plan to a repaired copy, to
//! a folder repaired in place that can be brought back, or to a list of labels.
//!
//! Nothing here deletes or overwrites a file. A copy appears whole under its name or not at all; in place, every move is
//! written down before the first is made ([`Journal`]), so that a run that was cut off can be finished or undone.

mod copy;
mod exports;
mod journal;
mod moves;
mod plan;

pub use self::copy::{Copied, LOG, copy, files_below};
pub use self::exports::{Labelled, fiftyone, label_studio, labels_csv};
pub use self::journal::{Journal, Outcome};
pub use self::moves::{Move, QUARANTINE, moves};
pub use self::plan::{Kind, Listed, Plan, PlanHeader, PlannedChange};

#[cfg(test)]
mod tests;
