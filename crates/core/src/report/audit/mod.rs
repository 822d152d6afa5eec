//! What an audit found: a table for a terminal, CSV, JSON, and a page to look at.

mod csv;
mod page;
mod scatter;
mod text;

pub use self::page::{AuditPage, shown_rows};
pub use self::text::AuditTable;
use crate::audit::{Audit, AuditedItem, Verdict};

/// The table of `trueshot audit` for a terminal: the suspect items, then a summary.
impl std::fmt::Display for Audit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&AuditTable { audit: self, all: false }.render())
    }
}

/// Everything, for programs.
pub fn audit_json(audit: &Audit) -> String {
    serde_json::to_string_pretty(audit).expect("plain data serialises") + "\n"
}

/// One line an item, the most suspicious first.
pub fn audit_csv(audit: &Audit) -> String {
    csv::items(audit)
}

/// The verdict in words.
fn in_words(item: &AuditedItem) -> String {
    match item.verdict {
        Verdict::Keep if item.confirmed => "confirmed".into(),
        Verdict::Keep => "keep".into(),
        Verdict::Relabel => item.suggested.clone().unwrap_or_default(),
        Verdict::Outlier => "none of these".into(),
        Verdict::Unsure => "undecided".into(),
    }
}

/// The expected number of wrong labels as a sentence, rounded to a whole number.
fn about_wrong(expected: f64) -> String {
    match expected.round() as usize {
        0 => "probably no label is wrong".into(),
        1 => "about 1 label is probably wrong".into(),
        count => format!("about {count} labels are probably wrong"),
    }
}

/// An item's name without the class it is filed under, which is said beside it.
fn short_name(item: &AuditedItem) -> &str {
    let rest = item.item.strip_prefix(item.given.as_str()).and_then(|rest| rest.strip_prefix('/'));
    rest.unwrap_or(&item.item)
}

/// A probability in percent; only what is certain is 0 or 100.
fn percent(probability: f32) -> String {
    match probability * 100.0 {
        percent if percent > 99.5 && percent < 100.0 => ">99 %".into(),
        percent if percent < 0.5 && percent > 0.0 => "<1 %".into(),
        percent => format!("{percent:.0} %"),
    }
}

#[cfg(test)]
mod tests;
