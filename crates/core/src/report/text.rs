//! Aligned columns for a terminal, readable without colour.

use super::grids::{self, Grid};
use crate::evaluate::Evaluation;
use crate::noise::NoiseKind;

/// All tables, one below the other.
pub(super) fn evaluation(evaluation: &Evaluation) -> String {
    tables(evaluation, grids::all(evaluation))
}

/// The accuracies alone.
pub(super) fn accuracies(evaluation: &Evaluation) -> String {
    tables(
        evaluation,
        NoiseKind::ALL.into_iter().filter_map(|kind| grids::accuracy(evaluation, kind)).collect(),
    )
}

fn tables(evaluation: &Evaluation, grids: Vec<Grid>) -> String {
    let mut text = super::caption(evaluation) + "\n";
    text.push_str("* best of its column, the oracle apart\n");
    for grid in grids {
        text.push('\n');
        text.push_str(&table(&grid));
    }
    text
}

/// One table: names to the left, cells to the right.
pub(super) fn table(grid: &Grid) -> String {
    let mut lines: Vec<Vec<String>> = vec![grid.columns.clone()];
    for (name, cells) in &grid.rows {
        let cell = |cell: &grids::Cell| format!("{}{}", cell.text, if cell.best { "*" } else { " " });
        lines.push(std::iter::once(name.clone()).chain(cells.iter().map(cell)).collect());
    }
    let count = grid.columns.len();
    let width = |column: usize| lines.iter().map(|line| line[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..count).map(width).collect();
    let mut text = format!("{}\n", grid.title);
    for (row, line) in lines.iter().enumerate() {
        let mut shown = format!("  {:<1$}", line[0], widths[0]);
        for (column, cell) in line.iter().enumerate().skip(1) {
            // The heads of the columns leave room for the star below them.
            let cell = if row == 0 { format!("{cell} ") } else { cell.clone() };
            shown.push_str(&format!("  {:>1$}", cell, widths[column].max(6)));
        }
        text.push_str(shown.trim_end());
        text.push('\n');
    }
    text
}
