//! The Markdown report of an evaluation: tables for a README.

use super::grids::{self, Cell, Grid};
use crate::evaluate::Evaluation;
use crate::visible::visible;

/// All grids as Markdown tables; the best cell of a column is bold.
pub(super) fn tables(evaluation: &Evaluation, grids: &[Grid]) -> String {
    let mut text = format!("{}. Bold: best in its column (oracle excluded).\n", super::caption(evaluation));
    text.extend(grids::footnotes(evaluation).iter().map(|note| format!("\n{}.\n", escaped(&visible(note)))));
    for grid in grids {
        let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
        text.push_str(&format!("\n**{}**\n\n", escaped(&visible(&grid.title))));
        text.push_str(&line(grid.columns.iter().map(|name| escaped(&visible(name))).collect()));
        text.push_str(&format!("|---|{}\n", "---:|".repeat(grid.columns.len() - 1)));
        for (name, cells) in &grid.rows {
            let cell = |cell: &Cell| if cell.best { format!("**{}**", cell.text) } else { cell.text.clone() };
            text.push_str(&line(
                std::iter::once(escaped(&visible(name))).chain(cells.iter().map(cell)).collect(),
            ));
        }
    }
    text
}

/// A text with a backslash before every character that could end the table cell or start emphasis, code, a link, a tag
/// or an entity.
pub(super) fn escaped(text: &str) -> String {
    let mut safe = String::new();
    for character in text.chars() {
        if "\\|*_<>&`[]~".contains(character) {
            safe.push('\\');
        }
        safe.push(character);
    }
    safe
}
