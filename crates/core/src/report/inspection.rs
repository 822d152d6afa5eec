//! The text report of an inspection of an embeddings file, as `trueshot inspect` prints it.

use super::thousands;
use crate::embeddings::Inspection;

/// Maximum number of classes that are listed; the others are counted.
const MAX_CLASSES: usize = 12;

/// Formats an inspection as plain text for a terminal.
pub fn inspection_text(found: &Inspection) -> String {
    let mut lines = Vec::new();
    let mut fact = |name: &str, value: String| lines.push(format!("{name:<15}{value}"));
    if let Some(path) = &found.path {
        fact("file", path.display().to_string());
    }
    fact("features", format!("{} rows of {} ({})", thousands(found.rows), found.dim, found.precision.name()));
    if let Some(backbone) = &found.backbone {
        fact("backbone", backbone.clone());
    }
    fact("items", if found.has_items { "named".into() } else { "not named".into() });
    fact(
        "fingerprint",
        found.fingerprint.as_ref().map_or("none: not all values are finite".into(), ToString::to_string),
    );
    fact("classes", sizes(found));
    if let Some(norms) = &found.norms {
        let zero = if norms.zero > 0 { format!("; {} rows are all zero", norms.zero) } else { String::new() };
        fact("norms", format!("{:.4} to {:.4}, median {:.4}{zero}", norms.min, norms.max, norms.median));
    }
    let duplicates = &found.duplicates;
    fact(
        "duplicates",
        match duplicates.rows {
            0 => "none".into(),
            rows => {
                format!(
                    "{rows} rows repeat an earlier row; {} groups of duplicates span several classes",
                    duplicates.across_classes
                )
            }
        },
    );
    fact(
        "not finite",
        match &found.non_finite.first {
            None => "none".into(),
            Some(first) => {
                let (count, value) = (found.non_finite.count, &first.value);
                format!("{count} values, the first {value} in row {}, column {}", first.row, first.column)
            }
        },
    );
    lines.push(String::new());
    lines.extend(class_list(found));
    if !found.warnings.is_empty() {
        lines.push(String::new());
        lines.extend(found.warnings.iter().map(|warning| format!("warning: {warning}")));
    }
    lines.join("\n") + "\n"
}

/// The number of classes and the range of their sizes.
fn sizes(found: &Inspection) -> String {
    let count = found.classes.len();
    match (&found.smallest_class, &found.largest_class) {
        (Some(small), Some(large)) if small.count == large.count => {
            format!("{count}, each of {} rows", small.count)
        }
        (Some(small), Some(large)) => format!("{count}, of {} to {} rows", small.count, large.count),
        _ => count.to_string(),
    }
}

fn class_list(found: &Inspection) -> Vec<String> {
    let shown = found.classes.iter().take(MAX_CLASSES);
    let mut lines: Vec<String> =
        shown.map(|class| format!("{:>9}  {}", thousands(class.count), class.name)).collect();
    if found.classes.len() > MAX_CLASSES {
        lines.push(format!("{:>9}  and {} more classes", "", found.classes.len() - MAX_CLASSES));
    }
    lines
}
