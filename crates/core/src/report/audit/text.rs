//! The plain-text report of an audit ([`AuditTable`]) for a terminal: the items that a repair would change or leave to
//! review, ranked by the probability that they are wrong, then a summary, the affected classes, duplicates, image problems
//! and warnings.

use super::{
    LABEL_CONFLICTS, belongs_to, counted, name_and_label, percent, planned_in_words, probable_classes,
    problems_in_words, relation, short_name, wrong_in_words,
};
use crate::audit::{Action, Audit, AuditedClass, AuditedItem, Duplicate, ImageProblem, Verdict};
use crate::visible::{columns, padded, shortened, visible};

/// Smallest and largest width of a table in columns.
const MIN_WIDTH: usize = 80;
const MAX_WIDTH: usize = 160;
/// Maximum number of items that are listed, unless all are.
const MAX_ITEMS: usize = 100;
/// Minimum width of a column.
const MIN_COLUMN: usize = 10;
/// Maximum number of label conflicts, of image problems and of warnings that are listed; of classes, twice as many.
const MAX_LISTED: usize = 10;

/// The plain-text report of an audit.
pub struct AuditTable<'a> {
    audit: &'a Audit,
    all: bool,
    width: usize,
}

impl<'a> AuditTable<'a> {
    /// A table of 80 columns without the items that keep their label.
    pub fn new(audit: &'a Audit) -> Self {
        AuditTable { audit, all: false, width: MIN_WIDTH }
    }

    /// Whether to list the items that keep their label, too.
    pub fn all(mut self, all: bool) -> Self {
        self.all = all;
        self
    }

    /// The width of the terminal in columns. The table is never narrower than 80 columns and never wider than 160.
    pub fn width(mut self, columns: usize) -> Self {
        self.width = columns.clamp(MIN_WIDTH, MAX_WIDTH);
        self
    }

    /// The text of the report.
    pub fn render(&self) -> String {
        let mut text = self.items();
        let parts = [
            self.summary(),
            classes(self.audit),
            duplicates(&self.audit.duplicates, self.width),
            image_problems(&self.audit.image_problems, self.width),
            self.warnings(),
        ];
        for part in parts {
            if !part.is_empty() && !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&part);
        }
        text
    }

    /// The ranked table of items.
    fn items(&self) -> String {
        let is_listed = |row: &usize| self.all || self.audit.items[*row].action != Action::Keep;
        let mut rows: Vec<usize> = self.audit.ranking().into_iter().filter(is_listed).collect();
        if rows.is_empty() {
            return String::new();
        }
        let more = if self.all { 0 } else { rows.len().saturating_sub(MAX_ITEMS) };
        rows.truncate(rows.len() - more);
        let mut lines = vec![Line::new(["wrong", "action", "item", "label", "belongs to"].map(String::from))];
        for row in rows {
            let item = &self.audit.items[row];
            let [name, given, belongs_to] = [short_name(item), &item.given, &belongs_to(item)].map(visible);
            let mut line =
                Line::new([percent(item.p_wrong), item.action.name().into(), name, given, belongs_to]);
            line.notes = notes(item);
            lines.push(line);
        }
        let rest = match more {
            0 => String::new(),
            more => format!("and {}, less probably wrong\n", counted(more, "more item", "more items")),
        };
        aligned(&lines, self.width) + &rest
    }

    /// The numbers of items with each action, of suspect labels and of wrong ones.
    fn summary(&self) -> String {
        let planned = wrapped(&planned_in_words(&self.audit.counts), self.width).join("\n");
        format!("{planned}\n{}\n", wrong_in_words(self.audit))
    }

    fn warnings(&self) -> String {
        let warnings = &self.audit.warnings;
        let mut text: String =
            warnings.iter().take(MAX_LISTED).map(|warning| format!("warning: {warning}\n")).collect();
        if warnings.len() > MAX_LISTED {
            let more = counted(warnings.len() - MAX_LISTED, "more warning", "more warnings");
            text.push_str(&format!("and {more}\n"));
        }
        text
    }
}

/// The texts below an item whose class is uncertain: its most probable classes, and what would help to decide.
fn notes(item: &AuditedItem) -> Vec<String> {
    match item.verdict {
        Verdict::Keep | Verdict::Relabel | Verdict::Outlier => Vec::new(),
        Verdict::Wrong | Verdict::Unsure => {
            let advice = item.advice.iter().map(|advice| visible(advice));
            std::iter::once(visible(&probable_classes(item)))
                .chain(advice)
                .filter(|note| !note.is_empty())
                .collect()
        }
    }
}

/// The number of columns of the table.
const COLUMNS: usize = 5;
/// The columns of texts of any length: item, label and where it belongs.
const FLEXIBLE: std::ops::Range<usize> = 2..COLUMNS;

/// A line of the table.
struct Line {
    cells: [String; COLUMNS],
    /// Texts in the lines below.
    notes: Vec<String>,
}

impl Line {
    fn new(cells: [String; COLUMNS]) -> Self {
        Line { cells, notes: Vec::new() }
    }
}

/// Lines with aligned columns. If they are wider than the terminal, the widest columns are narrowed and their cells
/// shortened.
fn aligned(lines: &[Line], max_width: usize) -> String {
    let width = |column: usize| lines.iter().map(|line| columns(&line.cells[column])).max().unwrap_or(0);
    let mut widths: [usize; COLUMNS] = std::array::from_fn(width);
    while widths.iter().sum::<usize>() + (COLUMNS - 1) * 2 > max_width {
        let widest =
            FLEXIBLE.max_by_key(|column| (widths[*column], COLUMNS - column)).unwrap_or(FLEXIBLE.start);
        if widths[widest] <= MIN_COLUMN {
            break;
        }
        widths[widest] -= 1;
    }
    // Notes begin below the item.
    let indent = widths[0] + widths[1] + 2 * 2;
    let mut text = String::new();
    for line in lines {
        let mut shown = format!("{:>1$}", line.cells[0], widths[0]);
        for (cell, width) in line.cells.iter().zip(widths).skip(1) {
            shown.push_str("  ");
            shown.push_str(&padded(&shortened(cell, width), width));
        }
        text.push_str(shown.trim_end());
        text.push('\n');
        for part in line.notes.iter().flat_map(|note| wrapped(note, max_width - indent)) {
            text.push_str(&format!("{}{part}\n", " ".repeat(indent)));
        }
    }
    text
}

/// A text wrapped at spaces into lines of at most `max_columns` columns.
fn wrapped(text: &str, max_columns: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ').map(|word| shortened(word, max_columns)) {
        let line = lines.last_mut().expect("there is a first line");
        match line.is_empty() {
            true => line.push_str(&word),
            false if columns(line) + 1 + columns(&word) <= max_columns => line.push_str(&format!(" {word}")),
            false => lines.push(word),
        }
    }
    lines
}

/// The table of classes with expected wrong items, or with items found under other classes.
fn classes(audit: &Audit) -> String {
    let is_affected = |class: &&AuditedClass| class.expected_wrong >= 0.5 || class.found_elsewhere > 0;
    let mut affected: Vec<&AuditedClass> = audit.classes.iter().filter(is_affected).collect();
    if affected.is_empty() {
        return String::new();
    }
    affected.sort_by(|a, b| b.expected_wrong.total_cmp(&a.expected_wrong));
    let more = affected.len().saturating_sub(2 * MAX_LISTED);
    let shown = &affected[..affected.len() - more];
    let names: Vec<String> = shown.iter().map(|class| shortened(&visible(&class.class), 44)).collect();
    let width = names.iter().map(|name| columns(name)).max().unwrap_or(0).max(5);
    let mut text = format!("{}  items  expected wrong  found in other classes\n", padded("class", width));
    for (class, name) in shown.iter().zip(&names) {
        let (items, wrong, found) = (class.items, class.expected_wrong, class.found_elsewhere);
        text.push_str(&format!("{}  {items:>5}  {wrong:>14.1}  {found:>22}\n", padded(name, width)));
    }
    if more > 0 {
        text.push_str(&format!("and {}\n", counted(more, "more class", "more classes")));
    }
    let unaffected = audit.classes.len() - affected.len();
    if unaffected > 0 {
        let others = counted(unaffected, "other class", "other classes");
        text.push_str(&format!("{others} with less than 0.5 expected wrong\n"));
    }
    text
}

/// The label conflicts; duplicates within a class are only counted.
fn duplicates(found: &[Duplicate], width: usize) -> String {
    let conflicts: Vec<&Duplicate> = found.iter().filter(|pair| pair.label_conflict).collect();
    let within = found.len() - conflicts.len();
    let in_words = |pair: &&Duplicate| {
        let names = [(&pair.item, &pair.given), (&pair.other, &pair.other_given)];
        let [item, other] =
            names.map(|(item, label)| shortened(&visible(&name_and_label(item, label)), (width - 26) / 2));
        format!("{item} {} {other}", relation(pair.kind))
    };
    let mut text = listed(LABEL_CONFLICTS, conflicts.iter().map(in_words));
    match within {
        0 => {}
        1 => text.push_str("1 duplicate within its class\n"),
        count => text.push_str(&format!("{count} duplicates within their class\n")),
    }
    text
}

/// The images that are too poor to be used, or cannot be read.
fn image_problems(found: &[ImageProblem], width: usize) -> String {
    let in_words = |problem: &ImageProblem| {
        format!("{}: {}", shortened(&visible(&problem.item), width - 36), problems_in_words(problem))
    };
    listed("image problems", found.iter().map(in_words))
}

/// A heading and the first few lines under it; nothing if there are no lines.
fn listed(heading: &str, lines: impl ExactSizeIterator<Item = String>) -> String {
    let more = lines.len().saturating_sub(MAX_LISTED);
    let shown: String = lines.take(MAX_LISTED).map(|line| format!("  {line}\n")).collect();
    match (shown.is_empty(), more) {
        (true, _) => String::new(),
        (false, 0) => format!("{heading}\n{shown}"),
        (false, more) => format!("{heading}\n{shown}  and {more} more\n"),
    }
}
