//! Tables for a README.

use super::grids;
use crate::evaluate::Evaluation;

pub(super) fn evaluation(evaluation: &Evaluation) -> String {
    let mut text = format!("{}. Bold: best of its column, the oracle apart.\n", super::caption(evaluation));
    for grid in grids::all(evaluation) {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        text.push_str(&format!("\n**{}**\n\n", grid.title));
        text.push_str(&line(grid.columns.iter().map(|name| escaped(name)).collect()));
        text.push_str(&format!("|---|{}\n", "---:|".repeat(grid.columns.len() - 1)));
        for (name, cells) in &grid.rows {
            let cell =
                |cell: &grids::Cell| if cell.best { format!("**{}**", cell.text) } else { cell.text.clone() };
            text.push_str(&line(std::iter::once(escaped(name)).chain(cells.iter().map(cell)).collect()));
        }
    }
    text
}

fn escaped(text: &str) -> String {
    text.replace('|', "\\|").replace('*', "\\*")
}
