//! The plain-text report of an evaluation: tables with aligned columns for a terminal, without colours.

use super::grids::{self, Grid};
use crate::evaluate::Evaluation;
use crate::visible::{display_width, padded, visible};

/// All grids as text tables for a terminal of `width` columns, one below the other; the best cell of a column has a
/// star.
pub(super) fn tables(evaluation: &Evaluation, grids: &[Grid], width: usize) -> String {
    let mut text = super::caption(evaluation) + "\n";
    text.push_str("* best in its column (oracle excluded)\n");
    text.extend(grids::footnotes(evaluation).iter().map(|note| visible(note) + "\n"));
    for grid in grids {
        text.push('\n');
        text.push_str(&table(grid, width));
    }
    text
}

/// One table, with row names aligned left and cells aligned right. Columns that do not fit into `max_width` columns of
/// a terminal follow below, with the row names repeated.
fn table(grid: &Grid, max_width: usize) -> String {
    // Headers end in a space, because cells below them may end in a star.
    let mut lines: Vec<Vec<String>> =
        vec![grid.columns.iter().map(|name| format!("{} ", visible(name))).collect()];
    for (name, cells) in &grid.rows {
        let cell = |cell: &grids::Cell| format!("{}{}", cell.text, if cell.best { "*" } else { " " });
        lines.push(std::iter::once(visible(name)).chain(cells.iter().map(cell)).collect());
    }
    // Column 0 has the row names. Other columns have at least 6 characters, and two spaces in front; `widths` has no
    // entry for column 0, so its index is one lower.
    let width = |column: usize| lines.iter().map(|line| display_width(&line[column])).max().unwrap_or(0);
    let names = width(0);
    let widths: Vec<usize> = (1..grid.columns.len()).map(|column| width(column).max(6)).collect();
    let mut text = format!("{}\n", grid.title);
    for range in column_ranges(&widths, max_width.saturating_sub(2 + names)) {
        for line in &lines {
            let mut shown = format!("  {}", padded(&line[0], names));
            for column in range.clone() {
                let cell = &line[column + 1];
                let spaces = widths[column].saturating_sub(display_width(cell));
                shown.push_str(&format!("  {}{cell}", " ".repeat(spaces)));
            }
            text.push_str(shown.trim_end());
            text.push('\n');
        }
    }
    text
}

/// Splits columns of the given widths, each with two spaces in front, into ranges that fit into `max_width` characters;
/// every range has at least one column.
fn column_ranges(widths: &[usize], max_width: usize) -> Vec<std::ops::Range<usize>> {
    let (mut ranges, mut start, mut used) = (Vec::new(), 0, 0);
    for (column, width) in widths.iter().enumerate() {
        if column > start && used + 2 + width > max_width {
            ranges.push(start..column);
            (start, used) = (column, 0);
        }
        used += 2 + width;
    }
    ranges.push(start..widths.len());
    ranges
}
