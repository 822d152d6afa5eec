//! The plain-text report of an audit ([`AuditTable`]) for a terminal of 80 columns: the suspect items ranked by the
//! probability that they are wrong, then a summary, the affected classes, duplicates, image problems and warnings.

use super::{
    LABEL_CONFLICTS, about_wrong, in_question, in_words, name_and_label, percent, problems_in_words,
    relation, short_name,
};
use crate::audit::{Audit, AuditedClass, Duplicate, ImageProblem, Verdict};
use crate::visible::{columns, padded, shortened, visible};

/// Width of the terminal in columns.
const WIDTH: usize = 80;
/// Minimum width of a column.
const MIN_COLUMN: usize = 10;
/// Maximum number of label conflicts and of image problems that are listed; of classes, twice as many.
const MAX_LISTED: usize = 10;

/// The plain-text report of an audit.
pub struct AuditTable<'a> {
    /// The audit to show.
    pub audit: &'a Audit,
    /// Whether items with the verdict "keep" are listed, too.
    pub all: bool,
}

impl AuditTable<'_> {
    /// The text of the report.
    pub fn render(&self) -> String {
        let mut text = self.items();
        let parts = [
            self.summary(),
            classes(self.audit),
            duplicates(&self.audit.duplicates),
            image_problems(&self.audit.image_problems),
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
        let is_listed = |row: &usize| self.all || self.audit.items[*row].verdict != Verdict::Keep;
        let rows: Vec<usize> = self.audit.ranking().into_iter().filter(is_listed).collect();
        if rows.is_empty() {
            return String::new();
        }
        let mut lines = vec![Line::new(["wrong", "item", "label", "suggested"].map(String::from))];
        for row in rows {
            let item = &self.audit.items[row];
            let names = [short_name(item), &item.given, &in_words(item)].map(visible);
            let [name, given, verdict] = names;
            let mut line = Line::new([percent(item.p_wrong), name, given, verdict]);
            let in_question = (item.verdict == Verdict::Wrong).then(|| in_question(item));
            line.note = item.advice.as_ref().or(in_question.as_ref()).map(|note| visible(note));
            lines.push(line);
        }
        aligned(&lines)
    }

    /// The number of items with each verdict, and the expected number of wrong labels.
    fn summary(&self) -> String {
        let audit = self.audit;
        let count = |verdict| audit.items.iter().filter(|item| item.verdict == verdict).count();
        let unless_zero = |number: usize, what: &str| (number > 0).then(|| format!("{number} {what}"));
        let counts = [
            unless_zero(count(Verdict::Relabel), "to relabel"),
            unless_zero(count(Verdict::Outlier), "of none of these classes"),
            unless_zero(count(Verdict::Wrong), "wrong without a certain class"),
            unless_zero(count(Verdict::Unsure), "undecided"),
            unless_zero(audit.items.iter().filter(|item| item.confirmed).count(), "confirmed"),
            Some(format!("{} kept", count(Verdict::Keep))),
        ];
        let counts: Vec<String> = counts.into_iter().flatten().collect();
        let (items, classes) = (audit.items.len(), audit.classes.len());
        let summary = format!("{items} items of {classes} classes: {}", counts.join(", "));
        format!("{}\n{}\n", wrapped(&summary, WIDTH).join("\n"), about_wrong(audit.expected_wrong))
    }

    fn warnings(&self) -> String {
        self.audit.warnings.iter().map(|warning| format!("warning: {warning}\n")).collect()
    }
}

/// A line of the table.
struct Line {
    cells: [String; 4],
    /// A text in the lines below.
    note: Option<String>,
}

impl Line {
    fn new(cells: [String; 4]) -> Self {
        Line { cells, note: None }
    }
}

/// Lines with aligned columns. If they are wider than the terminal, the widest columns are narrowed and their cells
/// shortened.
fn aligned(lines: &[Line]) -> String {
    let width = |column: usize| lines.iter().map(|line| columns(&line.cells[column])).max().unwrap_or(0);
    let mut widths = [width(0), width(1), width(2), width(3)];
    while widths.iter().sum::<usize>() + 3 * 2 > WIDTH {
        let widest = (1..4).max_by_key(|column| (widths[*column], 4 - column)).unwrap_or(1);
        if widths[widest] <= MIN_COLUMN {
            break;
        }
        widths[widest] -= 1;
    }
    let mut text = String::new();
    for line in lines {
        let mut shown = format!("{:>1$}", line.cells[0], widths[0]);
        for (cell, width) in line.cells.iter().zip(widths).skip(1) {
            shown.push_str("  ");
            shown.push_str(&padded(&shortened(cell, width), width));
        }
        text.push_str(shown.trim_end());
        text.push('\n');
        for part in line.note.iter().flat_map(|note| wrapped(note, WIDTH - widths[0] - 2)) {
            text.push_str(&format!("{}  {part}\n", " ".repeat(widths[0])));
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
    let mut text = format!("{}  items  wrong  found in other classes\n", padded("class", width));
    for (class, name) in shown.iter().zip(&names) {
        let (items, wrong, found) = (class.items, class.expected_wrong, class.found_elsewhere);
        text.push_str(&format!("{}  {items:>5}  {wrong:>5.1}  {found:>22}\n", padded(name, width)));
    }
    if more > 0 {
        text.push_str(&format!("and {more} more classes\n"));
    }
    match audit.classes.len() - affected.len() {
        0 => {}
        1 => text.push_str("no suspect items in 1 other class\n"),
        unaffected => text.push_str(&format!("no suspect items in {unaffected} other classes\n")),
    }
    text
}

/// The label conflicts; duplicates within a class are only counted.
fn duplicates(found: &[Duplicate]) -> String {
    let conflicts: Vec<&Duplicate> = found.iter().filter(|pair| pair.label_conflict).collect();
    let within = found.len() - conflicts.len();
    let in_words = |pair: &&Duplicate| {
        let names = [(&pair.item, &pair.given), (&pair.other, &pair.other_given)];
        let [item, other] = names.map(|(item, label)| shortened(&visible(&name_and_label(item, label)), 27));
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
fn image_problems(found: &[ImageProblem]) -> String {
    let in_words = |problem: &ImageProblem| {
        format!("{}: {}", shortened(&visible(&problem.item), 44), problems_in_words(problem))
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
