//! A ranked table for a terminal of 80 columns: what to look at first, then how much there is of it.

use super::{about_wrong, in_words, percent, short_name};
use crate::audit::{Audit, AuditedClass, Duplicate, DuplicateKind, Verdict};
use crate::visible::{columns, padded, shortened, visible};

const WIDTH: usize = 80;
/// A column is never made narrower.
const NARROWEST: usize = 10;
/// Duplicates and classes shown before "and so many more".
const LISTED: usize = 10;

/// What to show of an audit.
pub struct AuditTable<'a> {
    /// What was found.
    pub audit: &'a Audit,
    /// Whether items that are kept are shown, too.
    pub all: bool,
}

impl AuditTable<'_> {
    /// The table as text.
    pub fn render(&self) -> String {
        let mut text = self.items();
        for part in [self.summary(), classes(self.audit), duplicates(&self.audit.duplicates), self.warnings()]
        {
            if !part.is_empty() && !text.is_empty() {
                text.push('\n');
            }
            text.push_str(&part);
        }
        text
    }

    fn items(&self) -> String {
        let shows = |row: &usize| self.all || self.audit.items[*row].verdict != Verdict::Keep;
        let rows: Vec<usize> = self.audit.ranking().into_iter().filter(shows).collect();
        if rows.is_empty() {
            return String::new();
        }
        let mut lines = vec![Line::new(["wrong", "item", "label", "suggested"].map(String::from))];
        for row in rows {
            let item = &self.audit.items[row];
            let names = [short_name(item), &item.given, &in_words(item)].map(visible);
            let [name, given, verdict] = names;
            let mut line = Line::new([percent(item.p_wrong), name, given, verdict]);
            line.note = item.advice.as_deref().map(visible);
            lines.push(line);
        }
        aligned(&lines)
    }

    fn summary(&self) -> String {
        let audit = self.audit;
        let count = |verdict| audit.items.iter().filter(|item| item.verdict == verdict).count();
        let of = |number: usize, what: &str| (number > 0).then(|| format!("{number} {what}"));
        let found = [
            of(count(Verdict::Relabel), "to relabel"),
            of(count(Verdict::Outlier), "of none of these classes"),
            of(count(Verdict::Unsure), "undecided"),
            of(audit.items.iter().filter(|item| item.confirmed).count(), "confirmed"),
            Some(format!("{} kept", count(Verdict::Keep))),
        ];
        let found: Vec<String> = found.into_iter().flatten().collect();
        let (items, classes) = (audit.items.len(), audit.classes.len());
        let counted = format!("{items} items of {classes} classes: {}", found.join(", "));
        format!("{}\n{}\n", wrapped(&counted, WIDTH).join("\n"), about_wrong(audit.expected_wrong))
    }

    fn warnings(&self) -> String {
        self.audit.warnings.iter().map(|warning| format!("warning: {warning}\n")).collect()
    }
}

/// A line of the table, and what stands below it.
struct Line {
    cells: [String; 4],
    note: Option<String>,
}

impl Line {
    fn new(cells: [String; 4]) -> Self {
        Line { cells, note: None }
    }
}

/// Columns beside each other; the widest give way until all fit.
fn aligned(lines: &[Line]) -> String {
    let width = |column: usize| lines.iter().map(|line| columns(&line.cells[column])).max().unwrap_or(0);
    let mut widths = [width(0), width(1), width(2), width(3)];
    while widths.iter().sum::<usize>() + 3 * 2 > WIDTH {
        let widest = (1..4).max_by_key(|column| (widths[*column], 4 - column)).unwrap_or(1);
        if widths[widest] <= NARROWEST {
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

/// A text in lines of so many columns.
fn wrapped(text: &str, room: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ').map(|word| shortened(word, room)) {
        let line = lines.last_mut().expect("there is a first line");
        match line.is_empty() {
            true => line.push_str(&word),
            false if columns(line) + 1 + columns(&word) <= room => line.push_str(&format!(" {word}")),
            false => lines.push(word),
        }
    }
    lines
}

/// Classes that have or miss something.
fn classes(audit: &Audit) -> String {
    let is_worth = |class: &&AuditedClass| class.expected_wrong >= 0.5 || class.found_elsewhere > 0;
    let mut worth: Vec<&AuditedClass> = audit.classes.iter().filter(is_worth).collect();
    if worth.is_empty() {
        return String::new();
    }
    worth.sort_by(|a, b| b.expected_wrong.total_cmp(&a.expected_wrong));
    let more = worth.len().saturating_sub(2 * LISTED);
    let shown = &worth[..worth.len() - more];
    let names: Vec<String> = shown.iter().map(|class| shortened(&visible(&class.class), 44)).collect();
    let width = names.iter().map(|name| columns(name)).max().unwrap_or(0).max(5);
    let mut text = format!("{}  items  wrong  found in other classes\n", padded("class", width));
    for (class, name) in shown.iter().zip(&names) {
        let (items, wrong, found) = (class.items, class.expected_wrong, class.found_elsewhere);
        text.push_str(&format!("{}  {items:>5}  {wrong:>5.1}  {found:>22}\n", padded(name, width)));
    }
    let quiet = audit.classes.len() - worth.len();
    if more > 0 {
        text.push_str(&format!("and {more} more classes\n"));
    }
    match quiet {
        0 => {}
        1 => text.push_str("no suspect items in 1 other class\n"),
        quiet => text.push_str(&format!("no suspect items in {quiet} other classes\n")),
    }
    text
}

/// Items that are there twice under different classes; others are only counted.
fn duplicates(found: &[Duplicate]) -> String {
    let across: Vec<&Duplicate> = found.iter().filter(|pair| pair.given != pair.other_given).collect();
    let within = found.len() - across.len();
    let mut text = String::new();
    if !across.is_empty() {
        text.push_str("duplicates with different labels:\n");
    }
    for pair in across.iter().take(LISTED) {
        let same =
            if pair.kind == DuplicateKind::Exact { "is identical to" } else { "is nearly identical to" };
        let [item, other] = [&pair.item, &pair.other].map(|name| shortened(&visible(name), 27));
        text.push_str(&format!("  {item} {same} {other}\n"));
    }
    if across.len() > LISTED {
        text.push_str(&format!("  and {} more\n", across.len() - LISTED));
    }
    match within {
        0 => {}
        1 => text.push_str("1 duplicate within its class\n"),
        more => text.push_str(&format!("{more} duplicates within their class\n")),
    }
    text
}
