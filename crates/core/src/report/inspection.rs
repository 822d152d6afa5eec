//! The text report of an inspection ([`inspection_text`]), as `trueshot inspect` prints it: facts about a file of
//! embeddings, one per line, a list of its classes, and warnings.

use super::{Column, TextTable, thousands};
use crate::embeddings::Inspection;
use crate::visible::{counted, visible, wrapped};

/// Maximum number of classes that are listed; the others are counted.
const MAX_CLASSES: usize = 12;

/// Width in columns of the names of facts, such as "fingerprint", with the spaces behind them.
const FACT_NAME: usize = 15;

/// Formats an inspection as plain text. In a terminal of `width` columns, texts are wrapped and long names of classes
/// are shortened.
pub fn inspection_text(inspection: &Inspection, width: Option<usize>) -> String {
    let mut lines = Vec::new();
    let fact_width = width.map(|width| width.saturating_sub(FACT_NAME));
    // Adds a fact: its name, and its value beside it, on several lines if it is long.
    let mut fact = |name: &str, value: String| {
        // A single word, such as the fingerprint, is never shortened.
        let width = fact_width.filter(|_| value.contains(' '));
        for (number, part) in wrapped(&value, width).iter().enumerate() {
            lines.push(format!("{:<FACT_NAME$}{part}", if number == 0 { name } else { "" }));
        }
    };
    if let Some(path) = &inspection.path {
        fact("file", path.display().to_string());
    }
    let rows = if inspection.rows == 1 { "row" } else { "rows" };
    let (count, precision) = (thousands(inspection.rows), inspection.precision.name());
    fact("features", format!("{count} {rows} of {} ({precision})", inspection.dim));
    if let Some(backbone) = &inspection.backbone {
        fact("backbone", backbone.clone());
    }
    fact("items", if inspection.has_items { "named".into() } else { "not named".into() });
    fact(
        "fingerprint",
        inspection
            .fingerprint
            .as_ref()
            .map_or("none: some values are NaN, infinite or above 1e15".into(), ToString::to_string),
    );
    fact("classes", sizes(inspection));
    if let Some(norms) = &inspection.norms {
        let zero_rows = match norms.zero {
            0 => String::new(),
            count => format!("; {} all zero", counted(count, "row is", "rows are")),
        };
        let [min, max, median] = [norms.min, norms.max, norms.median].map(rounded);
        fact("norms", format!("{min} to {max}, median {median}{zero_rows}"));
    }
    let duplicates = &inspection.duplicates;
    fact(
        "duplicates",
        match duplicates.rows {
            0 => "none".into(),
            rows => {
                let rows = counted(rows, "row repeats", "rows repeat");
                let groups = duplicates.across_classes;
                let groups = counted(groups, "group of duplicates spans", "groups of duplicates span");
                format!("{rows} an earlier row; {groups} several classes")
            }
        },
    );
    fact(
        "not finite",
        match &inspection.non_finite.first {
            None => "none".into(),
            Some(first) => {
                let (count, value) = (inspection.non_finite.count, &first.value);
                let values = counted(count, "value", "values");
                format!("{values}, the first {value} in row {}, column {}", first.row, first.column)
            }
        },
    );
    let mut text = lines.join("\n") + "\n\n" + &class_list(inspection, width);
    if !inspection.warnings.is_empty() {
        let warnings = inspection.warnings.iter().map(|warning| format!("warning: {warning}"));
        let lines: Vec<String> = warnings.flat_map(|warning| wrapped(&warning, width)).collect();
        text.push_str(&format!("\n{}\n", lines.join("\n")));
    }
    text
}

/// A number with two or three significant digits, more for large numbers.
fn rounded(number: f32) -> String {
    match number.abs() {
        large if large >= 100.0 => format!("{number:.0}"),
        large if large >= 10.0 => format!("{number:.1}"),
        medium if medium >= 1.0 || medium == 0.0 => format!("{number:.2}"),
        small if small >= 0.001 => format!("{number:.3}"),
        _ => format!("{number:.1e}"),
    }
}

/// The number of classes and the range of their sizes.
fn sizes(inspection: &Inspection) -> String {
    let count = inspection.classes.len();
    match (&inspection.smallest_class, &inspection.largest_class) {
        (Some(small), Some(large)) if small.count == large.count => {
            format!("{count}, each of {}", counted(small.count, "row", "rows"))
        }
        (Some(small), Some(large)) => format!("{count}, of {} to {} rows", small.count, large.count),
        _ => count.to_string(),
    }
}

/// The sizes and names of the first classes.
fn class_list(inspection: &Inspection, width: Option<usize>) -> String {
    let mut table = TextTable::new(vec![Column::Number, Column::Name]);
    for class in inspection.classes.iter().take(MAX_CLASSES) {
        // At least nine columns wide, so that the list is indented below the facts.
        table.line([format!("{:>9}", thousands(class.count)), visible(&class.name)]);
    }
    let more = inspection.classes.len().saturating_sub(MAX_CLASSES);
    if more > 0 {
        table.line([String::new(), format!("and {}", counted(more, "more class", "more classes"))]);
    }
    table.render(width)
}
