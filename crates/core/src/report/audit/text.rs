//! The plain-text report of an audit ([`AuditTable`]) for a terminal: the items that a repair would change or leave to
//! review, ranked by the probability that they are wrong, then a summary, the affected classes, duplicates, image
//! problems and warnings.

use super::{
    DUPLICATES, LABEL_CONFLICTS, belongs_to, counted, name_and_label, percent, planned_in_words,
    probable_classes, problems_in_words, relation, wrong_in_words,
};
use crate::audit::{Action, Audit, AuditedClass, AuditedItem, Duplicate, ImageProblem, Verdict};
use crate::report::{Column, TextTable};
use crate::visible::{display_width, shortened_item, visible, wrapped};

/// Maximum number of items that are listed, unless all are.
const MAX_ITEMS: usize = 100;
/// Maximum number of label conflicts, of duplicates within classes, of image problems and of warnings that are listed;
/// of classes, twice as many.
const MAX_LISTED: usize = 10;

/// The plain-text report of an audit.
pub struct AuditTable<'a> {
    audit: &'a Audit,
    /// Whether items that keep their label are listed, too.
    all: bool,
    /// The width of the terminal in columns; `None` for whole names.
    width: Option<usize>,
}

impl<'a> AuditTable<'a> {
    /// A table with whole names, without the items that keep their label.
    pub fn new(audit: &'a Audit) -> Self {
        AuditTable { audit, all: false, width: None }
    }

    /// Whether to list the items that keep their label, too.
    pub fn all(mut self, all: bool) -> Self {
        self.all = all;
        self
    }

    /// The width of the terminal in columns, to which names are shortened. Classes and folders in the names of items
    /// are always shown, so some lines may be wider.
    pub fn width(mut self, columns: Option<usize>) -> Self {
        self.width = columns;
        self
    }

    /// The text of the report.
    pub fn render(&self) -> String {
        let mut text = self.items();
        let parts = [
            self.summary(),
            classes(self.audit, self.width),
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
        let columns = vec![Column::Number, Column::Word, Column::Item, Column::Name, Column::Name];
        let mut table = TextTable::new(columns);
        table.line(["wrong", "action", "item", "label", "belongs to"]);
        for row in rows {
            let item = &self.audit.items[row];
            let [name, given, belongs_to] =
                [&item.item, &item.given, &belongs_to(item)].map(|name| visible(name));
            table.line([percent(item.p_wrong), item.action.name().into(), name, given, belongs_to]);
            notes(item).into_iter().for_each(|note| table.note(note));
        }
        let left_out = match more {
            0 => String::new(),
            more => format!("and {}, less probably wrong\n", counted(more, "more item", "more items")),
        };
        table.render(self.width) + &left_out
    }

    /// The numbers of items with each action, of suspect labels and of wrong ones.
    fn summary(&self) -> String {
        let planned = wrapped(&planned_in_words(&self.audit.counts), self.width).join("\n");
        format!("{planned}\n{}\n", wrong_in_words(self.audit))
    }

    /// The first warnings of the audit, one per line.
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

/// The texts below an item that may not belong to a class: its most probable classes, and what would help to decide.
fn notes(item: &AuditedItem) -> Vec<String> {
    match item.verdict {
        Verdict::Keep | Verdict::Relabel => Vec::new(),
        Verdict::Outlier | Verdict::Wrong | Verdict::Unsure => {
            let advice = item.advice.iter().map(|advice| visible(advice));
            std::iter::once(visible(&probable_classes(item)))
                .chain(advice)
                .filter(|note| !note.is_empty())
                .collect()
        }
    }
}

/// The table of classes with expected wrong items, or with items found under other classes.
fn classes(audit: &Audit, width: Option<usize>) -> String {
    let is_affected = |class: &&AuditedClass| class.expected_wrong >= 0.5 || class.found_elsewhere > 0;
    let mut affected: Vec<&AuditedClass> = audit.classes.iter().filter(is_affected).collect();
    if affected.is_empty() {
        return String::new();
    }
    affected.sort_by(|a, b| b.expected_wrong.total_cmp(&a.expected_wrong));
    let more = affected.len().saturating_sub(2 * MAX_LISTED);
    let shown = &affected[..affected.len() - more];
    let mut table = TextTable::new(vec![Column::Name, Column::Number, Column::Number, Column::Number]);
    table.line(["class", "items", "expected wrong", "found in other classes"]);
    for class in shown {
        let wrong = format!("{:.0}", class.expected_wrong);
        table.line([
            visible(&class.class),
            class.items.to_string(),
            wrong,
            class.found_elsewhere.to_string(),
        ]);
    }
    let mut text = table.render(width);
    if more > 0 {
        text.push_str(&format!("and {}\n", counted(more, "more class", "more classes")));
    }
    let unaffected = audit.classes.len() - affected.len();
    if unaffected > 0 {
        let others = counted(unaffected, "other class", "other classes");
        text.push_str(&format!("{others} with fewer than 1 expected wrong\n"));
    }
    text
}

/// The label conflicts, and the duplicates within a class.
fn duplicates(pairs: &[Duplicate], width: Option<usize>) -> String {
    let (conflicts, within): (Vec<_>, Vec<_>) = pairs.iter().partition(|pair| pair.label_conflict);
    let in_words = |pair: &&Duplicate| {
        let names = [(&pair.item, &pair.given), (&pair.other, &pair.other_given)];
        let whole = names.map(|(item, label)| name_and_label(&visible(item), &visible(label)));
        let one_line = format!("{} {} {}", whole[0], relation(pair.kind), whole[1]);
        // All lines are indented by 2 columns.
        let Some(width) = width.filter(|width| display_width(&one_line) + 2 > *width) else {
            return one_line;
        };
        // On two lines. Both names are shortened to the same width, so that equal parts of them look equal.
        let max_columns = width.saturating_sub(2 + 1 + display_width(relation(pair.kind)));
        let shortened = names.map(|(item, label)| {
            let whole = name_and_label(&visible(item), &visible(label));
            let suffix = &whole[visible(item).len()..];
            format!("{}{suffix}", fitted(item, Some(max_columns.saturating_sub(display_width(suffix)))))
        });
        let [item, other] = if shortened[0] == shortened[1] { whole } else { shortened };
        format!("{item} {}\n    {other}", relation(pair.kind))
    };
    listed(LABEL_CONFLICTS, conflicts.iter().map(in_words)) + &listed(DUPLICATES, within.iter().map(in_words))
}

/// The images that are too poor to be used, or cannot be read.
fn image_problems(problems: &[ImageProblem], width: Option<usize>) -> String {
    let in_words = |problem: &ImageProblem| {
        // 36 columns are reserved for the indent and the problems in words.
        let width = width.map(|width| width.saturating_sub(36));
        format!("{}: {}", fitted(&problem.item, width), problems_in_words(problem))
    };
    listed("image problems", problems.iter().map(in_words))
}

/// The name of an item, shortened to `max_columns` columns as far as its folders allow.
fn fitted(item: &str, max_columns: Option<usize>) -> String {
    shortened_item(&visible(item), max_columns.unwrap_or(usize::MAX))
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
