//! The CSV report of an audit: one line per item, for spreadsheets and data frames.

use crate::audit::{Audit, AuditedItem, ProbableClass};
use crate::csv_field::csv_field;

/// The names of the fields; [`line`] writes them in the same order.
const HEADER: &str =
    "item,given,p_wrong,verdict,action,suggested,weight,p_outlier,probable,confirmed,advice,neighbours";

/// Formats an audit as CSV with a header line and one line per item, the most suspicious first.
pub fn audit_csv(audit: &Audit) -> String {
    let mut text = format!("{HEADER}\n");
    for row in audit.ranking() {
        text.push_str(&line(&audit.items[row]));
        text.push('\n');
    }
    text
}

/// The line of one item. The most probable classes and the neighbours are lists in one field, separated by `; `.
fn line(item: &AuditedItem) -> String {
    let neighbours: Vec<&str> = item.neighbours.iter().map(|neighbour| neighbour.item.as_str()).collect();
    let probable =
        |probable: &ProbableClass| format!("{} {}", probable.class.as_deref().unwrap_or("none"), probable.p);
    let probable: Vec<String> = item.probable.iter().map(probable).collect();
    let fields = [
        csv_field(&item.item),
        csv_field(&item.given),
        item.p_wrong.to_string(),
        item.verdict.name().into(),
        item.action.name().into(),
        csv_field(item.suggested.as_deref().unwrap_or("")),
        item.weight.to_string(),
        item.p_outlier.to_string(),
        csv_field(&probable.join("; ")),
        item.confirmed.to_string(),
        csv_field(item.advice.as_deref().unwrap_or("")),
        csv_field(&neighbours.join("; ")),
    ];
    fields.join(",")
}
