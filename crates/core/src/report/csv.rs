//! The CSV report of an evaluation: one line per noise setting and method, for spreadsheets and data frames. Also the
//! quoting of CSV fields ([`csv_field`]), which all CSV output shares.

use crate::evaluate::{Evaluation, MethodResult, SettingResult};

const HEADER: &str = "noise,level,ways,shots,queries,episodes,method,accuracy,ci95,difference,difference_ci95,\
                      gap_closed,auroc,average_precision,calibration_error";

/// The whole CSV file, with a header line.
pub(super) fn evaluation(evaluation: &Evaluation) -> String {
    let mut text = format!("{HEADER}\n");
    for setting in &evaluation.settings {
        for method in &setting.methods {
            text.push_str(&line(setting, method));
            text.push('\n');
        }
    }
    text
}

fn line(setting: &SettingResult, method: &MethodResult) -> String {
    let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    let detection = method.detection.as_ref();
    let fields = [
        setting.noise.to_string(),
        setting.level.to_string(),
        setting.ways.to_string(),
        setting.shots.to_string(),
        setting.queries.to_string(),
        setting.episodes.to_string(),
        csv_field(&method.method),
        number(method.accuracy),
        number(method.ci95),
        number(method.difference.map(|difference| difference.mean)),
        number(method.difference.and_then(|difference| difference.ci95)),
        number(method.gap_closed),
        number(detection.map(|detection| detection.auroc)),
        number(detection.map(|detection| detection.average_precision)),
        number(detection.and_then(|detection| detection.calibration_error)),
    ];
    fields.join(",")
}

/// Formats a text as a CSV field, quoted if necessary and never taken for a formula by a spreadsheet.
///
/// Texts with commas, quotes or line ends, or with spaces at either end, are put in quotes. A text that a spreadsheet would
/// take for a formula, because it starts with `=`, `+`, `-`, `@`, a tab or a carriage return and is not a number, gets an
/// apostrophe in front, which marks text in spreadsheets. So does a text that starts with apostrophes followed by one of
/// these characters, so that [`without_apostrophe`] restores every text exactly.
///
/// ```
/// use trueshot::report::{csv_field, without_apostrophe};
///
/// assert_eq!(csv_field("cats, dogs"), "\"cats, dogs\"");
/// assert_eq!(csv_field("=1+2"), "'=1+2");
/// assert_eq!(without_apostrophe("'=1+2"), "=1+2");
/// ```
pub fn csv_field(name: &str) -> String {
    let field = if is_formula(name) { format!("'{name}") } else { name.into() };
    if field.contains([',', '"', '\n', '\r']) || field.trim() != field {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field
    }
}

/// Removes the apostrophe that [`csv_field`] put before a text. The field must already be unquoted by the CSV reader.
pub fn without_apostrophe(field: &str) -> &str {
    field.strip_prefix('\'').filter(|name| is_formula(name)).unwrap_or(field)
}

/// Whether a spreadsheet would take a field for a formula.
fn is_formula(field: &str) -> bool {
    let field = field.trim_start_matches('\'');
    match field.strip_prefix(['+', '-']) {
        Some(digits) => !digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'),
        None => field.starts_with(['=', '@', '\t', '\r']),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formulas_are_marked_as_text_and_restored_exactly() {
        let marked = [
            ("=1+2", "'=1+2"),
            ("@SUM(A1)", "'@SUM(A1)"),
            ("+cmd|' /C calc'!A0", "'+cmd|' /C calc'!A0"),
            ("-2+3", "'-2+3"),
            ("\t=1", "'\t=1"),
            ("\r=1", "\"'\r=1\""),
            ("=HYPERLINK(\"x\",\"y\")", "\"'=HYPERLINK(\"\"x\"\",\"\"y\"\")\""),
            ("'=1", "''=1"),
            ("''-a", "'''-a"),
        ];
        for (name, field) in marked {
            assert_eq!(csv_field(name), field);
            assert_eq!(without_apostrophe(&format!("'{name}")), name);
        }
    }

    #[test]
    fn other_names_and_numbers_are_unchanged() {
        for name in ["a.jpg", "-1", "+2.5", "'-1", "a=b", "'quoted'", "'", "it's", "1-2"] {
            assert_eq!(csv_field(name), name);
            assert_eq!(without_apostrophe(name), name);
        }
        assert_eq!(csv_field(" a"), "\" a\"");
    }
}
