//! Aligned columns for a terminal, readable without colour.

use super::grids::{self, Grid};
use crate::evaluate::Evaluation;

/// Tables, one below the other.
pub(super) fn tables(evaluation: &Evaluation, grids: &[Grid]) -> String {
    let mut text = super::caption(evaluation) + "\n";
    text.push_str("* best in its column (oracle excluded)\n");
    for grid in grids {
        text.push('\n');
        text.push_str(&table(grid));
    }
    text
}

/// A terminal's columns.
const WIDTH: usize = 80;

/// One table: names to the left, cells to the right. What does not fit beside goes below, names repeated.
fn table(grid: &Grid) -> String {
    // The heads of the columns leave room for the star below them.
    let mut lines: Vec<Vec<String>> = vec![grid.columns.iter().map(|name| format!("{name} ")).collect()];
    for (name, cells) in &grid.rows {
        let cell = |cell: &grids::Cell| format!("{}{}", cell.text, if cell.best { "*" } else { " " });
        lines.push(std::iter::once(name.clone()).chain(cells.iter().map(cell)).collect());
    }
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let names = width(0);
    let widths: Vec<usize> = (1..grid.columns.len()).map(|column| width(column).max(6)).collect();
    let mut text = format!("{}\n", grid.title);
    for part in parts(&widths, WIDTH.saturating_sub(2 + names)) {
        for line in &lines {
            let mut shown = format!("  {:<names$}", line[0]);
            for column in part.clone() {
                shown.push_str(&format!("  {:>1$}", line[column + 1], widths[column]));
            }
            text.push_str(shown.trim_end());
            text.push('\n');
        }
    }
    text
}

/// Runs of columns that fit into so many characters, each of one column at least.
fn parts(widths: &[usize], room: usize) -> Vec<std::ops::Range<usize>> {
    let (mut parts, mut start, mut used) = (Vec::new(), 0, 0);
    for (column, width) in widths.iter().enumerate() {
        if column > start && used + 2 + width > room {
            parts.push(start..column);
            (start, used) = (column, 0);
        }
        used += 2 + width;
    }
    parts.push(start..widths.len());
    parts
}
