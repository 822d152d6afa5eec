//! [`TextTable`]: a plain-text table with aligned columns, which can be narrowed to the width of a terminal.

use crate::visible::{MIN_FILE_NAME, display_width, padded, shortened, shortened_item, wrapped};

/// The steps in which a table is narrowed until it fits, as (kind of column, smallest width). A step shortens all
/// columns of its kind, from left to right; for items, the width is that of the file name. Names of classes come last,
/// first down to the 15 columns of "class uncertain". The label is left of the suggested class, so it is shortened
/// first, which loses little: it is usually also the folder of the item.
const NARROWED: [(Column, usize); 3] =
    [(Column::Item, MIN_FILE_NAME), (Column::Name, 15), (Column::Name, 10)];
/// The smallest width to which notes are wrapped, even if the terminal is narrower.
const MIN_NOTE: usize = 40;

/// What a column of a table contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Column {
    /// Numbers, aligned right and never shortened.
    Number,
    /// Short words, aligned left and never shortened.
    Word,
    /// Names of classes, which are shortened in the middle, after the file names of items.
    Name,
    /// Names of items. The file name is shortened in the middle; the folders in front of it, which are often the class,
    /// are always shown.
    Item,
}

/// A plain-text table with aligned columns.
///
/// ```
/// use trueshot::report::{Column, TextTable};
///
/// let mut table = TextTable::new(vec![Column::Number, Column::Item]);
/// table.line(["97 %", "owl/a photo with a long name.jpg"]);
/// table.line(["3 %", "ant/7.jpg"]);
/// assert_eq!(table.render(None), "97 %  owl/a photo with a long name.jpg\n 3 %  ant/7.jpg\n");
/// assert_eq!(table.render(Some(24)), "97 %  owl/a phot…ame.jpg\n 3 %  ant/7.jpg\n");
/// ```
#[derive(Debug, Clone)]
pub struct TextTable {
    columns: Vec<Column>,
    lines: Vec<Line>,
}

/// A line of a table with the notes below it.
#[derive(Debug, Clone)]
struct Line {
    /// One per column.
    cells: Vec<String>,
    /// Texts in the lines below this one.
    notes: Vec<String>,
}

impl TextTable {
    /// A table without lines.
    pub fn new(columns: Vec<Column>) -> Self {
        TextTable { columns, lines: Vec::new() }
    }

    /// Adds a line with one cell per column.
    ///
    /// # Panics
    /// If the number of cells is not the number of columns.
    pub fn line<const N: usize>(&mut self, cells: [impl Into<String>; N]) {
        assert_eq!(N, self.columns.len(), "cells of a line");
        self.lines.push(Line { cells: cells.map(Into::into).into(), notes: Vec::new() });
    }

    /// Adds a text below the last line, which begins in the column of items.
    pub fn note(&mut self, text: String) {
        if let Some(line) = self.lines.last_mut() {
            line.notes.push(text);
        }
    }

    /// The text of the table. If it is wider than `max_width` columns of a terminal, its columns of items and names are
    /// narrowed as far as that is possible.
    pub fn render(&self, max_width: Option<usize>) -> String {
        let widths = self.widths(max_width.unwrap_or(usize::MAX));
        let before_items = self.columns.iter().take_while(|column| **column != Column::Item).count();
        let indent: usize = widths[..before_items].iter().map(|width| width + 2).sum();
        let note_width = max_width.map(|width| width.saturating_sub(indent).max(MIN_NOTE));
        let mut text = String::new();
        for line in &self.lines {
            let cells = line.cells.iter().zip(&self.columns).zip(&widths);
            let cells: Vec<String> =
                cells.map(|((cell, column), width)| column.fitted(cell, *width)).collect();
            text.push_str(cells.join("  ").trim_end());
            text.push('\n');
            for part in line.notes.iter().flat_map(|note| wrapped(note, note_width)) {
                text.push_str(&format!("{}{part}\n", " ".repeat(indent)));
            }
        }
        text
    }

    /// The width of every column: that of its longest cell, or less if the table would be wider than `max_width`.
    fn widths(&self, max_width: usize) -> Vec<usize> {
        let cells = |column: usize| self.lines.iter().map(move |line| line.cells[column].as_str());
        let largest = |column: usize| cells(column).map(display_width).max().unwrap_or(0);
        let mut widths: Vec<usize> = (0..self.columns.len()).map(largest).collect();
        // There are two spaces between columns.
        let total = widths.iter().sum::<usize>() + 2 * widths.len().saturating_sub(1);
        let mut excess = total.saturating_sub(max_width);
        for (kind, smallest) in NARROWED {
            for column in (0..widths.len()).filter(|column| self.columns[*column] == kind) {
                let min_width = match kind {
                    Column::Item => {
                        cells(column).map(|item| min_item_width(item, smallest)).max().unwrap_or(0)
                    }
                    _ => smallest,
                };
                let narrower = excess.min(widths[column].saturating_sub(min_width));
                widths[column] -= narrower;
                excess -= narrower;
            }
        }
        widths
    }
}

impl Column {
    /// A cell in `width` columns of a terminal.
    fn fitted(self, cell: &str, width: usize) -> String {
        match self {
            Column::Number => format!("{}{cell}", " ".repeat(width.saturating_sub(display_width(cell)))),
            Column::Word => padded(cell, width),
            Column::Name => padded(&shortened(cell, width), width),
            Column::Item => padded(&shortened_item(cell, width), width),
        }
    }
}

/// The width of the name of an item whose file name is shortened to `max_file_name` columns.
fn min_item_width(item: &str, max_file_name: usize) -> usize {
    let (folders, file) = item.split_at(item.rfind('/').map_or(0, |slash| slash + 1));
    display_width(folders) + display_width(file).min(max_file_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(lines: &[[&str; 3]]) -> TextTable {
        let mut table = TextTable::new(vec![Column::Number, Column::Item, Column::Name]);
        lines.iter().for_each(|line| table.line(*line));
        table
    }

    #[test]
    fn columns_are_aligned_for_wide_letters_and_lines_do_not_end_in_spaces() {
        let shown = table(&[["1 %", "夜/梟.jpg", "owl"], ["10 %", "ant/7.jpg", "a"]]).render(None);
        assert_eq!(shown, " 1 %  夜/梟.jpg  owl\n10 %  ant/7.jpg  a\n");
    }

    #[test]
    fn folders_are_shown_even_if_the_terminal_is_narrow() {
        let shown = table(&[["1 %", "a/long/path/of/folders/DSC_000123456.jpg", "golden retriever"]]);
        assert_eq!(shown.render(Some(30)), "1 %  a/long/path/of/folders/DSC_….jpg  gold…iever\n");
        assert_eq!(shown.render(Some(60)), "1 %  a/long/path/of/folders/DSC_00…456.jpg  golden retriever\n");
        assert_eq!(shown.render(Some(52)), "1 %  a/long/path/of/folders/DSC_….jpg  golden…riever\n");
        assert!(shown.render(Some(80)).contains("DSC_000123456.jpg  golden retriever"));
    }

    #[test]
    fn names_of_classes_are_shortened_after_file_names_and_the_label_before_the_class_it_belongs_to() {
        let columns = vec![Column::Word, Column::Item, Column::Name, Column::Name];
        let mut table = TextTable::new(columns);
        table.line([
            "relabel",
            "yellow-warbler/IMG_20260102_123456.jpg",
            "yellow-warbler",
            "black-throated-sparrow",
        ]);
        table.line(["review", "yellow-warbler/IMG_20260102_123457.jpg", "yellow-warbler", "class uncertain"]);
        let first = |width: usize| table.render(Some(width)).lines().next().unwrap().to_owned();
        let second = |width: usize| table.render(Some(width)).lines().nth(1).unwrap().to_owned();
        assert_eq!(
            first(80),
            "relabel  yellow-warbler/IMG_202…3456.jpg  yellow-warbler  black-throated-sparrow"
        );
        assert_eq!(first(73), "relabel  yellow-warbler/IMG_….jpg  yellow-warbler  black-throated-sparrow");
        assert_eq!(first(66), "relabel  yellow-warbler/IMG_….jpg  yellow-warbler  black-t…sparrow");
        assert_eq!(first(62), "relabel  yellow-warbler/IMG_….jpg  yell…rbler  black-t…sparrow");
        assert_eq!(second(62), "review   yellow-warbler/IMG_….jpg  yell…rbler  class uncertain");
    }

    #[test]
    fn notes_begin_below_the_item_and_are_wrapped() {
        let mut shown = table(&[["1 %", "owl/1.jpg", "owl"]]);
        shown.note("a note of nine words that does not fit here".into());
        assert_eq!(
            shown.render(Some(40)),
            "1 %  owl/1.jpg  owl\n     a note of nine words that does not fit\n     here\n"
        );
        assert_eq!(shown.render(None).lines().count(), 2);
    }
}
