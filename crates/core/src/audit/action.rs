//! What to do with every item ([`Action`]), and how many items there are of each kind ([`AuditCounts`]).
//!
//! Every report, plan, response and table takes its counts from here, so that the same quantity has the same value
//! everywhere.

use serde::{Deserialize, Serialize};

use super::{Audit, AuditedItem, Certainty, Verdict};

/// What a repair does with an item. It follows from the verdict and the certainty that the user asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// The item keeps its label.
    Keep,
    /// The item moves to the suggested class.
    Relabel,
    /// The item is set aside: its label is wrong, and it belongs to none of the classes or to an uncertain one.
    Quarantine,
    /// A person decides. A repair leaves the item alone.
    Review,
}

impl Action {
    /// All actions, in the order in which reports list them.
    pub const ALL: [Action; 4] = [Action::Relabel, Action::Quarantine, Action::Review, Action::Keep];

    /// The action that follows from a verdict. An item gets the verdict relabel or outlier only with the certainty for
    /// an action; [`Verdict::Wrong`] may need less, so its probability `p_wrong` is compared here.
    pub(super) fn new(verdict: Verdict, p_wrong: f32, certainty: Certainty) -> Self {
        match verdict {
            Verdict::Keep => Action::Keep,
            Verdict::Relabel => Action::Relabel,
            Verdict::Outlier => Action::Quarantine,
            Verdict::Wrong if p_wrong >= certainty.outlier => Action::Quarantine,
            Verdict::Wrong | Verdict::Unsure => Action::Review,
        }
    }

    /// The name in JSON, CSV and tables.
    pub fn name(self) -> &'static str {
        match self {
            Action::Keep => "keep",
            Action::Relabel => "relabel",
            Action::Quarantine => "quarantine",
            Action::Review => "review",
        }
    }
}

/// The counts of an audit. `relabel + quarantine + review + keep` is `items`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AuditCounts {
    /// Audited items.
    pub items: usize,
    /// Classes with at least one item.
    pub classes: usize,
    /// Items to relabel: they probably belong to another class.
    pub relabel: usize,
    /// Items to quarantine: their label is probably wrong, and no class is certain enough.
    pub quarantine: usize,
    /// Items to review: the audit is not certain enough to act.
    pub review: usize,
    /// Items that keep their label, confirmed ones included.
    pub keep: usize,
    /// Items whose label the user has confirmed.
    pub confirmed: usize,
    /// Suspect labels: more likely wrong than right ([`AuditedItem::is_suspect`]), with any action.
    pub suspect: usize,
}

impl AuditCounts {
    /// Counts the items of an audit.
    pub(super) fn new(items: &[AuditedItem]) -> Self {
        let mut counts = AuditCounts { items: items.len(), ..AuditCounts::default() };
        let mut classes: Vec<&str> = items.iter().map(|item| item.given.as_str()).collect();
        classes.sort_unstable();
        classes.dedup();
        counts.classes = classes.len();
        for item in items {
            *counts.of_mut(item.action) += 1;
            counts.confirmed += usize::from(item.confirmed);
            counts.suspect += usize::from(item.is_suspect());
        }
        counts
    }

    /// The number of items with an action.
    pub fn of(&self, action: Action) -> usize {
        match action {
            Action::Keep => self.keep,
            Action::Relabel => self.relabel,
            Action::Quarantine => self.quarantine,
            Action::Review => self.review,
        }
    }

    fn of_mut(&mut self, action: Action) -> &mut usize {
        match action {
            Action::Keep => &mut self.keep,
            Action::Relabel => &mut self.relabel,
            Action::Quarantine => &mut self.quarantine,
            Action::Review => &mut self.review,
        }
    }
}

impl Audit {
    /// The indices of the items whose action is one of `actions`, in descending order of the probability that the label
    /// is wrong.
    pub fn with_actions(&self, actions: &[Action]) -> Vec<usize> {
        self.ranking().into_iter().filter(|row| actions.contains(&self.items[*row].action)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn certainty_decides_between_acting_and_reviewing_and_nothing_else() {
        let action =
            |verdict, p_wrong, certainty| Action::new(verdict, p_wrong, Certainty::of_actions(certainty));
        assert_eq!(action(Verdict::Keep, 0.1, 0.75), Action::Keep);
        assert_eq!(action(Verdict::Relabel, 0.8, 0.75), Action::Relabel);
        assert_eq!(action(Verdict::Outlier, 0.8, 0.75), Action::Quarantine);
        assert_eq!(action(Verdict::Unsure, 0.6, 0.75), Action::Review);
        assert_eq!(action(Verdict::Unsure, 0.3, 0.75), Action::Review);
        // Certainly wrong, but not with the certainty that the user asked for.
        assert_eq!(action(Verdict::Wrong, 0.92, 0.75), Action::Quarantine);
        assert_eq!(action(Verdict::Wrong, 0.92, 0.95), Action::Review);
    }
}
