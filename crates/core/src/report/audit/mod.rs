//! Reports of an audit: a table for a terminal ([`AuditTable`]), CSV, JSON, and an HTML page with thumbnails
//! ([`AuditPage`]).

mod csv;
mod page;
mod scatter;
mod text;

pub use self::page::{AuditPage, shown_rows};
pub use self::text::AuditTable;
use crate::audit::{Audit, AuditedItem, DuplicateKind, ImageProblem, ProbableClass, Verdict};

/// The table of `trueshot audit` for a terminal: the suspect items, then a summary.
impl std::fmt::Display for Audit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&AuditTable { audit: self, all: false }.render())
    }
}

/// Formats an audit as JSON with all results.
pub fn audit_json(audit: &Audit) -> String {
    serde_json::to_string_pretty(audit).expect("an audit is plain data") + "\n"
}

/// Formats an audit as CSV with one line per item, the most suspicious first.
pub fn audit_csv(audit: &Audit) -> String {
    csv::items(audit)
}

/// The verdict on an item in words; for a wrong label, the suggested class.
fn in_words(item: &AuditedItem) -> String {
    match item.verdict {
        Verdict::Keep if item.confirmed => "confirmed".into(),
        Verdict::Keep => "keep".into(),
        Verdict::Relabel => item.suggested.clone().unwrap_or_default(),
        Verdict::Outlier => "none of these".into(),
        Verdict::Wrong => "class uncertain".into(),
        Verdict::Unsure => "undecided".into(),
    }
}

/// The most probable classes of an item with a wrong label, such as "dog 55 % or none 40 %".
fn in_question(item: &AuditedItem) -> String {
    let is_other = |probable: &&ProbableClass| probable.class.as_ref() != Some(&item.given);
    let in_words = |probable: &ProbableClass| {
        format!("{} {}", probable.class.as_deref().unwrap_or("none"), percent(probable.p))
    };
    item.probable.iter().filter(is_other).take(2).map(in_words).collect::<Vec<_>>().join(" or ")
}

/// The expected number of wrong labels as a sentence, rounded to a whole number.
fn about_wrong(expected: f64) -> String {
    match expected.round() as usize {
        0 => "probably no label is wrong".into(),
        1 => "about 1 label is probably wrong".into(),
        count => format!("about {count} labels are probably wrong"),
    }
}

/// The heading of the duplicates with different labels, in every report and on the web page.
const LABEL_CONFLICTS: &str = "label conflicts: the same item with different labels";

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
fn percent(probability: f32) -> String {
    match probability * 100.0 {
        percent if percent > 99.5 && percent < 100.0 => ">99 %".into(),
        percent if percent < 0.5 && percent > 0.0 => "<1 %".into(),
        percent => format!("{percent:.0} %"),
    }
}

#[cfg(test)]
mod tests;
