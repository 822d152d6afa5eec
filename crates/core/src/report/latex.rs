//! The LaTeX report of an evaluation: tables for the package booktabs.

use super::grids::{self, Cell, Grid};
use crate::evaluate::Evaluation;
use crate::visible::visible;

/// All grids as LaTeX tables; the best cell of a column is bold.
pub(super) fn tables(evaluation: &Evaluation, grids: &[Grid]) -> String {
    let mut text = format!("% {}\n% needs \\usepackage{{booktabs}}\n", super::caption(evaluation));
    let note = |note: &String| format!("\\par\\smallskip {}\n", escaped(&visible(note)));
    let notes: String = grids::footnotes(evaluation).iter().map(note).collect();
    for grid in grids {
        let line = |cells: Vec<String>| format!("{} \\\\\n", cells.join(" & "));
        text.push_str("\n\\begin{table}\n\\centering\n");
        text.push_str(&format!("\\caption{{{}}}\n", escaped(&visible(&grid.title))));
        // Names are aligned left, numbers right.
        text.push_str(&format!("\\begin{{tabular}}{{l{}}}\n\\toprule\n", "r".repeat(grid.columns.len() - 1)));
        text.push_str(&line(grid.columns.iter().map(|name| escaped(&visible(name))).collect()));
        text.push_str("\\midrule\n");
        for (name, cells) in &grid.rows {
            let cell = |cell: &Cell| match cell.best {
                true => format!("\\textbf{{{}}}", escaped(&cell.text)),
                false => escaped(&cell.text),
            };
            text.push_str(&line(
                std::iter::once(escaped(&visible(name))).chain(cells.iter().map(cell)).collect(),
            ));
        }
        text.push_str("\\bottomrule\n\\end{tabular}\n");
        text.push_str(&notes);
        text.push_str("\\end{table}\n");
    }
    text
}

/// A text with all special characters of LaTeX escaped.
pub(super) fn escaped(text: &str) -> String {
    let mut safe = String::new();
    for character in text.chars() {
        match character {
            '\\' => safe.push_str("\\textbackslash{}"),
            '^' => safe.push_str("\\textasciicircum{}"),
            '~' => safe.push_str("\\textasciitilde{}"),
            // In the font encoding OT1, the default of TeX, these three codes are other characters.
            '<' => safe.push_str("\\textless{}"),
            '>' => safe.push_str("\\textgreater{}"),
            '|' => safe.push_str("\\textbar{}"),
            '±' => safe.push_str("$\\pm$"),
            '†' => safe.push_str("$\\dagger$"),
            '&' | '%' | '$' | '#' | '_' | '{' | '}' => safe.extend(['\\', character]),
            _ => safe.push(character),
        }
    }
    safe
}
