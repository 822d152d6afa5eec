//! Images in a list of paths and labels: CSV, or one JSON object per line (`.jsonl`). Start with [`read`].
//!
//! CSV may have a header that names the columns; otherwise the first column is the path and the second the label. Paths
//! are relative to the folder of the list, or to a folder `images` next to the list or next to its folder, as in Ravi
//! and Larochelle's lists of miniImageNet.

use std::io::Read;
use std::path::{Path, PathBuf};

use trueshot::report::without_apostrophe;

use super::{Collection, ImageLocation, paths};
use crate::error::{Error, Result, Skipped};

/// Names of the column (or JSON key) with the path of an image; the case does not matter in CSV. If several occur, CSV
/// takes the first column, and JSON the first name of this list; so it is for labels.
const PATH_COLUMNS: [&str; 10] = [
    "path",
    "file",
    "filename",
    "image",
    "picture",
    "item",
    "filepath",
    "file_path",
    "file_name",
    "image_path",
];
/// Names of the column (or JSON key) with the label of an image.
const LABEL_COLUMNS: [&str; 6] = ["label", "class", "category", "given", "ground_truth", "class_name"];
/// The largest list.
const MAX_BYTES: u64 = 1 << 30;
/// How many images of a list are looked for to find the folder that paths are relative to: more than one, because some
/// files may be missing.
const TESTED_ROWS: usize = 100;

/// Opens a list as a collection. Files whose extension is that of a video or an unsupported format are skipped; all
/// other files are assumed to be images. With `labels_optional`, the label of an image without one is "".
pub(super) fn read(path: &Path, labels_optional: bool) -> Result<Collection> {
    let (mut images, mut skipped) = (Vec::new(), Vec::new());
    for (class, item, location) in list_rows(path, labels_optional)? {
        match paths::known_skip_reason(&item) {
            Some(reason) => skipped.push(Skipped { item, class: None, reason }),
            None => images.push((class, item, location)),
        }
    }
    Ok(Collection::new(path, images, skipped))
}

/// Class, name and location of every image in a list.
pub(super) fn rows(path: &Path) -> Result<Vec<(String, String, ImageLocation)>> {
    list_rows(path, false)
}

/// Like [`rows`]; with `labels_optional`, the label of an image without one is "".
fn list_rows(path: &Path, labels_optional: bool) -> Result<Vec<(String, String, ImageLocation)>> {
    let text = read_text(path)?;
    let is_csv = path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("csv"));
    let rows = match is_csv {
        true => parse_csv(path, &text, labels_optional)?,
        false => parse_json_lines(path, &text, labels_optional)?,
    };
    let folder = folder_of(path, &rows);
    let images = rows.into_iter().map(|(item, label)| {
        let location = ImageLocation::File(folder.join(&item));
        (label, item, location)
    });
    Ok(images.collect())
}

/// The folder that paths are relative to: the first candidate that contains one of the first images, or else the folder
/// of the list.
fn folder_of(path: &Path, rows: &[(String, String)]) -> PathBuf {
    let parent = path.parent().unwrap_or(Path::new(""));
    let folders = [parent.to_owned(), parent.join("images"), parent.join("../images")];
    let first_rows = &rows[..rows.len().min(TESTED_ROWS)];
    let has_any = |folder: &&PathBuf| first_rows.iter().any(|(item, _)| folder.join(item).is_file());
    folders.iter().find(has_any).unwrap_or(&folders[0]).clone()
}

/// The text of a list, without a byte order mark.
fn read_text(path: &Path) -> Result<String> {
    let failed = |source| trueshot::Error::Read { path: path.into(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut length = file.metadata().map_err(failed)?.len();
    let mut text = String::new();
    if length <= MAX_BYTES {
        // The limit is checked again while reading: a pipe or a device has a length of 0, and a file may grow.
        length = file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(failed)? as u64;
    }
    if length > MAX_BYTES {
        return Err(failed(std::io::Error::other("the list is larger than 1 GiB; split it")).into());
    }
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// The path and the label of every image, as they are in the list.
type PathsAndLabels = Vec<(String, String)>;

/// Parses CSV. Where this program writes CSV, it puts an apostrophe before a cell that a spreadsheet would take for a
/// formula; `without_apostrophe` removes it.
fn parse_csv(path: &Path, text: &str, labels_optional: bool) -> Result<PathsAndLabels> {
    let bad = |line, problem: &str| Error::BadList { path: path.into(), line, problem: problem.into() };
    let mut records = CsvRecords { rest: text, line: 1 };
    // The columns of path and label, once the first record has been read.
    let mut columns = None;
    let mut rows = Vec::new();
    while let Some((line, record)) =
        records.next_record().map_err(|BadQuote { line, problem }| bad(line, problem))?
    {
        let (path_column, label_column) = match columns {
            Some(columns) => columns,
            None => {
                let named =
                    header_columns(&record, labels_optional).map_err(|problem| bad(line, &problem))?;
                columns = Some(named.unwrap_or((0, Some(1))));
                if named.is_some() {
                    continue;
                }
                (0, Some(1))
            }
        };
        let cell = |column: usize| record.get(column).map(String::as_str).filter(|cell| !cell.is_empty());
        let item = cell(path_column).ok_or_else(|| bad(line, "no path"))?;
        let label = label_column.and_then(cell).or(labels_optional.then_some(""));
        let label = label.ok_or_else(|| bad(line, missing_label(item)))?;
        rows.push((without_apostrophe(item).to_owned(), without_apostrophe(label).to_owned()));
    }
    Ok(rows)
}

/// The error for a record without a label.
fn missing_label(item: &str) -> &'static str {
    if item.contains([';', '\t']) { "no label; columns must be separated by commas" } else { "no label" }
}

/// The columns of path and label if the record is a header; an error if it names a path column but no label column,
/// unless labels are optional.
fn header_columns(
    record: &[String],
    labels_optional: bool,
) -> std::result::Result<Option<(usize, Option<usize>)>, String> {
    let column = |names: &[&str]| {
        record.iter().position(|cell| names.iter().any(|name| cell.eq_ignore_ascii_case(name)))
    };
    match (column(&PATH_COLUMNS), column(&LABEL_COLUMNS)) {
        (Some(path), Some(label)) => Ok(Some((path, Some(label)))),
        // A record with the name of an image file is data and not a header; `image` is then the label of that image.
        (Some(path), None) if !record.iter().any(|cell| paths::is_image(cell)) => match labels_optional {
            true => Ok(Some((path, None))),
            false => {
                Err(format!("the header names no label column; allowed names: {}", LABEL_COLUMNS.join(", ")))
            }
        },
        _ => Ok(None),
    }
}

/// A quote in a place where CSV does not allow one.
struct BadQuote {
    line: usize,
    problem: &'static str,
}

/// Splits CSV into records, which end in a line feed, a carriage return or both. A quoted cell may contain commas, line
/// ends, doubled quotes, and spaces at its ends. Spaces around cells without quotes are removed.
struct CsvRecords<'a> {
    /// The text that is not read yet.
    rest: &'a str,
    /// The number of the first line of `rest`, from 1.
    line: usize,
}

impl CsvRecords<'_> {
    /// The next record that is not blank, with the number of its first line; `None` at the end of the text.
    fn next_record(&mut self) -> std::result::Result<Option<(usize, Vec<String>)>, BadQuote> {
        loop {
            if self.rest.is_empty() {
                return Ok(None);
            }
            let line = self.line;
            let record = self.record()?;
            if record.len() > 1 || record.iter().any(|cell| !cell.is_empty()) {
                return Ok(Some((line, record)));
            }
        }
    }

    /// The cells of the next record.
    fn record(&mut self) -> std::result::Result<Vec<String>, BadQuote> {
        // `opened` is the line of an opening quote whose closing quote has not been read.
        let (mut record, mut cell, mut opened) = (Vec::new(), CsvCell::default(), None);
        let mut letters = self.rest.char_indices().peekable();
        while let Some((position, letter)) = letters.next() {
            // A carriage return before a line feed does not end a line; the line feed does.
            let is_break =
                letter == '\n' || letter == '\r' && letters.peek().is_none_or(|(_, next)| *next != '\n');
            let line = self.line;
            self.line += usize::from(is_break);
            let bad = |problem| BadQuote { line, problem };
            match letter {
                // In a quoted cell, two quotes are one quote, and a single one ends it.
                '"' if opened.is_some() => match letters.next_if(|(_, next)| *next == '"') {
                    Some(_) => cell.text.push('"'),
                    None => (opened, cell.is_closed) = (None, true),
                },
                _ if opened.is_some() => cell.text.push(letter),
                '"' if cell.is_closed => {
                    return Err(bad("a quote after a quoted cell; write a quote in quotes twice"));
                }
                // An opening quote; spaces before it are not part of the cell.
                '"' if cell.text.trim().is_empty() => {
                    cell.text.clear();
                    opened = Some(line);
                }
                '"' => {
                    return Err(bad(
                        "a quote in a cell that does not start with one; put the whole cell in quotes, and quotes in it twice",
                    ));
                }
                ',' => record.push(std::mem::take(&mut cell).text()),
                _ if is_break => {
                    record.push(cell.text());
                    // The last character of a line end takes one byte.
                    self.rest = &self.rest[position + 1..];
                    return Ok(record);
                }
                _ if cell.is_closed && !letter.is_whitespace() => {
                    return Err(bad("text after a quoted cell; put the whole cell in quotes"));
                }
                // Spaces after a quoted cell, and the carriage return before a line feed.
                _ if cell.is_closed || letter == '\r' => {}
                _ => cell.text.push(letter),
            }
        }
        self.rest = "";
        record.push(cell.text());
        match opened {
            Some(line) => Err(BadQuote { line, problem: "a quote is not closed" }),
            None => Ok(record),
        }
    }
}

/// The cell that is being read.
#[derive(Default)]
struct CsvCell {
    text: String,
    /// Whether it was quoted and the closing quote has been read.
    is_closed: bool,
}

impl CsvCell {
    /// The text of the cell; surrounding spaces are trimmed unless it was quoted.
    fn text(self) -> String {
        if self.is_closed { self.text } else { self.text.trim().to_owned() }
    }
}

/// Parses one JSON object per line. Values may be strings or numbers.
fn parse_json_lines(path: &Path, text: &str, labels_optional: bool) -> Result<PathsAndLabels> {
    let numbered = text.lines().zip(1..).filter(|(line, _)| !line.trim().is_empty());
    let row = |(text, line): (&str, usize)| {
        let bad = |problem: String| Error::BadList { path: path.into(), line, problem };
        let object: serde_json::Map<String, serde_json::Value> =
            serde_json::from_str(text).map_err(|problem| bad(format!("not a JSON object: {problem}")))?;
        let value = |names: &[&str], what: &str| match names.iter().find_map(|name| object.get(*name)) {
            Some(serde_json::Value::String(text)) if !text.is_empty() => Ok(text.clone()),
            Some(serde_json::Value::Number(number)) => Ok(number.to_string()),
            Some(_) => Err(bad(format!("{what} must be a non-empty string or a number"))),
            None => Err(bad(format!("no {what}; looked for the keys {}", names.join(", ")))),
        };
        let label = value(&LABEL_COLUMNS, "label");
        let label = if labels_optional { label.unwrap_or_default() } else { label? };
        Ok((value(&PATH_COLUMNS, "path")?, label))
    };
    numbered.map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn csv(text: &str) -> Result<PathsAndLabels> {
        parse_csv(Path::new("list.csv"), text, false)
    }

    fn pair(path: &str, label: &str) -> (String, String) {
        (path.into(), label.into())
    }

    #[test]
    fn csv_is_read_with_and_without_a_header() {
        let rows = [pair("a.jpg", "owl"), pair("b.jpg", "ant")];
        assert_eq!(csv("a.jpg,owl\nb.jpg,ant\n").unwrap(), rows);
        assert_eq!(csv("Label, filename\r\nowl,a.jpg\r\n\r\nant,b.jpg").unwrap(), rows);
    }

    #[test]
    fn a_list_needs_no_labels_if_they_are_optional() {
        let rows = [pair("a.jpg", ""), pair("b.jpg", "")];
        for text in ["a.jpg\nb.jpg\n", "path\na.jpg\nb.jpg\n", "path,label\na.jpg,\nb.jpg,\n"] {
            assert_eq!(parse_csv(Path::new("list.csv"), text, true).unwrap(), rows, "{text:?}");
            assert!(csv(text).is_err(), "{text:?}");
        }
        let text = "{\"path\": \"a.jpg\"}\n{\"path\": \"b.jpg\", \"label\": null}\n";
        assert_eq!(parse_json_lines(Path::new("list.jsonl"), text, true).unwrap(), rows);
        assert_eq!(
            parse_csv(Path::new("list.csv"), "label,path\nowl,a.jpg\n", true).unwrap(),
            [pair("a.jpg", "owl")]
        );
    }

    #[test]
    fn quoted_cells_hold_commas_quotes_and_lines() {
        let rows = csv("path,label\n\"a, \"\"b\"\".jpg\",\"two\nlines\"\nc.jpg,d\n").unwrap();
        assert_eq!(rows, [pair("a, \"b\".jpg", "two\nlines"), pair("c.jpg", "d")]);
        let rows = csv(" \"a, b.jpg\" ,\" owl \"\r\n\"c.jpg\",\"\"\"\"\r\n").unwrap();
        assert_eq!(rows, [pair("a, b.jpg", " owl "), pair("c.jpg", "\"")]);
        assert!(csv("a.jpg,\"owl").unwrap_err().to_string().contains("line 1: a quote is not closed"));
        assert!(csv("a.jpg,owl\nb.jpg\n").unwrap_err().to_string().contains("line 2: no label"));
    }

    #[test]
    fn lines_may_end_in_line_feeds_carriage_returns_or_both() {
        let rows = [pair("a.jpg", "owl"), pair("b.jpg", "ant")];
        for end in ["\n", "\r\n", "\r"] {
            assert_eq!(
                csv(&format!("path,label{end}a.jpg,owl{end}{end}b.jpg,ant")).unwrap(),
                rows,
                "{end:?}"
            );
        }
    }

    #[test]
    fn bad_quoting_is_refused_with_the_line() {
        for (text, expected) in [
            (
                "a.jpg,owl\r\n12\" disc.jpg,record\r\n",
                "line 2: a quote in a cell that does not start with one",
            ),
            ("a.jpg;owl\n", "line 1: no label; columns must be separated by commas"),
            ("a.jpg,\"two\nlines\"\nb.jpg,\"owl\" x\n", "line 3: text after a quoted cell"),
            ("a.jpg,\"owl\" \"x\"\n", "line 1: a quote after a quoted cell"),
            ("a.jpg,owl\nb.jpg,\"owl\nc.jpg,ant\n", "line 2: a quote is not closed"),
        ] {
            let message = csv(text).unwrap_err().to_string();
            assert!(message.contains(expected), "{message}");
        }
    }

    #[test]
    fn columns_have_the_names_that_other_programs_give_them() {
        let rows = csv("id,filepath,ground_truth\n1,a.jpg,owl\n").unwrap();
        assert_eq!(rows, [pair("a.jpg", "owl")]);
        assert_eq!(csv("file_name,class\na.jpg,owl\n").unwrap(), rows);
    }

    #[test]
    fn json_lines_name_path_and_label() {
        let read = |text: &str| parse_json_lines(Path::new("list.jsonl"), text, false);
        let text = "{\"path\": \"a.jpg\", \"label\": \"owl\"}\n\n{\"image\": \"b.jpg\", \"class\": 7}\n";
        assert_eq!(read(text).unwrap(), [pair("a.jpg", "owl"), pair("b.jpg", "7")]);
        assert!(read("{\"path\": \"a\"}").unwrap_err().to_string().contains("line 1: no label"));
        assert!(read("[1]").unwrap_err().to_string().contains("not a JSON object"));
        for label in ["\"\"", "true", "null"] {
            let refused = read(&format!("{{\"path\": \"a\", \"label\": {label}}}")).unwrap_err().to_string();
            assert!(refused.contains("label must be a non-empty string or a number"), "{refused}");
        }
    }

    #[test]
    fn a_header_without_a_known_label_column_is_refused_with_the_allowed_names() {
        let refused = csv("filename,species\na.jpg,owl\n").unwrap_err().to_string();
        let expected = "line 1: the header names no label column; allowed names: label, class, category";
        assert!(refused.contains(expected), "{refused}");
        // No header: the class has the name of a column.
        assert_eq!(csv("a.jpg,picture\n").unwrap(), [pair("a.jpg", "picture")]);
    }

    #[test]
    fn a_list_that_is_too_large_is_refused_rather_than_cut() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list.csv");
        std::fs::File::create(&path).unwrap().set_len(MAX_BYTES + 1).unwrap();
        let refused = read(&path, false).unwrap_err();
        let source = std::error::Error::source(&refused).map(ToString::to_string).unwrap_or_default();
        assert!(format!("{refused} {source}").contains("the list is larger than 1 GiB; split it"));
    }
}
