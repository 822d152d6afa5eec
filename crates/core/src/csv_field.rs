//! CSV fields that are safe to open in spreadsheets: [`csv_field`] writes a name, [`without_apostrophe`] reads it back.
//!
//! A spreadsheet executes fields that look like formulas, and names of files and classes may come from other people.

/// Formats a text as a CSV field, quoted if necessary and never taken for a formula by a spreadsheet.
///
/// Texts with commas, quotes or line ends, or with spaces at either end, are put in quotes. A text that a spreadsheet
/// would take for a formula, because it starts with `=`, `+`, `-`, `@`, a tab or a carriage return and is not a number,
/// gets an apostrophe in front, which marks text in spreadsheets. So does a text that starts with apostrophes followed
/// by one of these characters, so that [`without_apostrophe`] restores every text exactly.
pub fn csv_field(name: &str) -> String {
    let field = if is_formula(name) { format!("'{name}") } else { name.into() };
    if field.contains([',', '"', '\n', '\r']) || field.trim() != field {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field
    }
}

/// Removes the apostrophe with which [`csv_field`] marks text. The CSV reader must have removed quotes before.
pub fn without_apostrophe(field: &str) -> &str {
    field.strip_prefix('\'').filter(|name| is_formula(name)).unwrap_or(field)
}

/// Whether a spreadsheet would take the field, without leading apostrophes, for a formula.
fn is_formula(field: &str) -> bool {
    let field = field.trim_start_matches('\'');
    match field.strip_prefix(['+', '-']) {
        // A sign followed by digits and points only is a number, which needs no protection.
        Some(digits) => !digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.'),
        None => field.starts_with(['=', '@', '\t', '\r']),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_look_like_formulas_are_marked_as_text_and_read_back_unchanged() {
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
    fn other_names_and_numbers_stay_as_they_are() {
        for name in ["a.jpg", "-1", "+2.5", "'-1", "a=b", "'quoted'", "'", "it's", "1-2"] {
            assert_eq!(csv_field(name), name);
            assert_eq!(without_apostrophe(name), name);
        }
        assert_eq!(csv_field(" a"), "\" a\"");
    }
}
