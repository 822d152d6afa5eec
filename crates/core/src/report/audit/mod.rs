//! Reports of an audit: a table for a terminal ([`AuditTable`]), CSV, JSON, and an HTML page with thumbnails
//! ([`AuditPage`]).
//!
//! An audit judges the label of every item of a collection: it has a verdict (keep, relabel, outlier, wrong or unsure),
//! an action that a repair would take (keep, relabel, quarantine or review), and the most probable classes. The
//! functions in this file put these into words, the same ones in every report.

mod csv;
mod page;
mod scatter;
mod text;

pub use self::csv::audit_csv;
pub use self::page::{AuditPage, shown_rows};
pub use self::text::AuditTable;
use crate::audit::{
    Action, Audit, AuditCounts, AuditedItem, DuplicateKind, ImageProblem, ProbableClass, Verdict,
};
use crate::visible::counted;

/// The report of `trueshot audit` for a terminal: [`AuditTable`] with its default options.
impl std::fmt::Display for Audit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&AuditTable::new(self).render())
    }
}

/// Formats an audit as JSON with all results.
pub fn audit_json(audit: &Audit) -> String {
    serde_json::to_string_pretty(audit).expect("an audit is plain data") + "\n"
}

/// Where an item belongs according to its verdict, in words.
fn belongs_to(item: &AuditedItem) -> String {
    match item.verdict {
        Verdict::Keep if item.confirmed => "confirmed".into(),
        Verdict::Keep => item.given.clone(),
        Verdict::Relabel => item.suggested.clone().unwrap_or_default(),
        Verdict::Outlier => "none of these".into(),
        Verdict::Wrong => "class uncertain".into(),
        Verdict::Unsure => "unsure".into(),
    }
}

/// The most probable classes of an item, such as "dog 55 %, none of these 40 %, cat 5 %".
fn probable_classes(item: &AuditedItem) -> String {
    let in_words = |probable: &ProbableClass| {
        format!("{} {}", probable.class.as_deref().unwrap_or("none of these"), percent(probable.p))
    };
    item.probable.iter().map(in_words).collect::<Vec<_>>().join(", ")
}

/// What a repair would do, such as "42 items of 5 classes: 1 to relabel, 2 to quarantine, 3 to review, 36 to keep".
fn planned_in_words(counts: &AuditCounts) -> String {
    let actions = Action::ALL
        .into_iter()
        .filter(|action| *action == Action::Keep || counts.of(*action) > 0)
        .map(|action| format!("{} to {}", counts.of(action), action.name()));
    let actions: Vec<String> = actions.collect();
    let confirmed = match counts.confirmed {
        0 => String::new(),
        count => format!(" ({count} confirmed)"),
    };
    let items = counted(counts.items, "item", "items");
    let classes = counted(counts.classes, "class", "classes");
    format!("{items} of {classes}: {}{confirmed}", actions.join(", "))
}

/// The numbers of suspect and of wrong labels, such as "5 labels are suspect; about 6 are expected to be wrong".
fn wrong_in_words(audit: &Audit) -> String {
    let suspect = match audit.counts.suspect {
        0 => "no label is suspect".into(),
        1 => "1 label is suspect".into(),
        count => format!("{count} labels are suspect"),
    };
    let expected = match audit.expected_wrong.round() as usize {
        0 => "probably none is wrong".into(),
        1 => "about 1 is expected to be wrong".into(),
        count => format!("about {count} are expected to be wrong"),
    };
    format!("{suspect}; {expected}")
}

/// The heading of the duplicates with different labels, in every report and on the web page.
const LABEL_CONFLICTS: &str = "label conflicts: the same item with different labels";

/// The heading of the duplicates with the same label.
const DUPLICATES: &str = "duplicates within their class";

/// How the first item of a pair of duplicates relates to the second.
fn relation(kind: DuplicateKind) -> &'static str {
    match kind {
        DuplicateKind::Exact => "is identical to",
        DuplicateKind::Near => "is nearly identical to",
    }
}

/// The name of an item with its label, unless the name starts with it.
fn name_and_label(item: &str, label: &str) -> String {
    match item.strip_prefix(label).is_some_and(|rest| rest.starts_with('/')) {
        true => item.into(),
        false => format!("{item} ({label})"),
    }
}

/// What is wrong with an image, such as "blurred, dark".
fn problems_in_words(problem: &ImageProblem) -> String {
    problem.kinds.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// The name of an item without the folder of its class, which is shown next to it.
fn short_name(item: &AuditedItem) -> &str {
    let rest = item.item.strip_prefix(item.given.as_str()).and_then(|rest| rest.strip_prefix('/'));
    rest.unwrap_or(&item.item)
}

/// A probability in percent, where only exactly 0 and 1 become 0 % and 100 %.
///
/// ```
/// use trueshot::report::percent;
///
/// assert_eq!([0.0, 0.005, 0.5, 0.995].map(percent), ["0 %", "<1 %", "50 %", ">99 %"]);
/// ```
pub fn percent(probability: f32) -> String {
    match probability * 100.0 {
        percent if (99.5..100.0).contains(&percent) => ">99 %".into(),
        percent if percent <= 0.5 && percent > 0.0 => "<1 %".into(),
        percent => format!("{percent:.0} %"),
    }
}

#[cfg(test)]
mod tests;
