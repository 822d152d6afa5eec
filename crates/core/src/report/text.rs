//! Aligned columns for a terminal, readable without colour.

use super::grids::{self, Grid};
use crate::evaluate::Evaluation;

/// Tables, one below the other.
pub(super) fn tables(evaluation: &Evaluation, grids: &[Grid]) -> String {
    let mut text = super::caption(evaluation) + "\n";
    text.push_str("* best of its column, the oracle apart\n");
    for grid in grids {
        text.push('\n');
        text.push_str(&table(grid));
    }
    text
}

/// One table: names to the left, cells to the right.
fn table(grid: &Grid) -> String {
    // The heads of the columns leave room for the star below them.
    let mut lines: Vec<Vec<String>> = vec![grid.columns.iter().map(|name| format!("{name} ")).collect()];
    for (name, cells) in &grid.rows {
        let cell = |cell: &grids::Cell| format!("{}{}", cell.text, if cell.best { "*" } else { " " });
        lines.push(std::iter::once(name.clone()).chain(cells.iter().map(cell)).collect());
    }
    let count = grid.columns.len();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = format!("{}\n", grid.title);
    for line in &lines {
        let mut shown = format!("  {:<1$}", line[0], widths[0]);
        for (column, cell) in line.iter().enumerate().skip(1) {
            shown.push_str(&format!("  {:>1$}", cell, widths[column].max(6)));
        }
        text.push_str(shown.trim_end());
        text.push('\n');
    }
    text
}
