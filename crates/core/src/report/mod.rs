//! How results are shown. One file per format; `grids.rs` decides once what is in the tables.

mod audit;
mod chart;
mod csv;
mod grids;
mod html;
mod inspection;
mod latex;
mod markdown;
pub mod reproduction;
mod support_set_figure;
mod text;

pub use crate::csv_field::{csv_field, without_apostrophe};
pub use crate::visible::{visible, visible_lines};
pub use audit::{AuditPage, AuditTable, audit_csv, audit_json, shown_rows};
pub use html::Page;
pub use inspection::inspection_text;
pub use support_set_figure::{FigureClass, FigureItem, SupportSetFigure};

use crate::evaluate::Evaluation;
use crate::noise::NoiseKind;

/// Ways to show an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Aligned columns for a terminal of 80.
    Table,
    /// Everything, for programs.
    Json,
    /// One line a setting and method.
    Csv,
    /// Tables for a README.
    Markdown,
    /// Tables for a paper (booktabs).
    Latex,
    /// One self-contained page with plots.
    Html,
}

/// Which tables to show.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tables {
    /// Accuracies, differences to the baseline, gap closed, detection, and what else was asked of the evaluation.
    Usual,
    /// Also every pair of methods under every setting. Programs and pages have them always.
    WithSignificance,
}

/// Shows an evaluation.
pub fn evaluation(evaluation: &Evaluation, format: Format, tables: Tables) -> String {
    let mut shown = grids::all(evaluation);
    if tables == Tables::WithSignificance {
        shown.extend(grids::significance(evaluation));
    }
    match format {
        Format::Table => text::tables(evaluation, &shown),
        Format::Json => serde_json::to_string_pretty(evaluation).expect("plain data serialises") + "\n",
        Format::Csv => csv::evaluation(evaluation),
        Format::Markdown => markdown::tables(evaluation, &shown),
        Format::Latex => latex::tables(evaluation, &shown),
        Format::Html => Page::new("Evaluation", evaluation).render(),
    }
}

/// Only the accuracies, for a terminal.
pub fn accuracies(evaluation: &Evaluation) -> String {
    let accuracies = NoiseKind::ALL.into_iter().filter_map(|kind| grids::accuracy(evaluation, kind));
    text::tables(evaluation, &accuracies.collect::<Vec<_>>())
}

/// The tables of `trueshot eval` for a terminal.
impl std::fmt::Display for Evaluation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&evaluation(self, Format::Table, Tables::Usual))
    }
}

/// What was evaluated, in one line.
fn caption(evaluation: &Evaluation) -> String {
    let Some(setting) = evaluation.settings.first() else { return "no noise setting".into() };
    let stopped = if evaluation.interrupted { ", stopped early" } else { "" };
    format!(
        "{}-way {}-shot, {} queries per class, {} episodes{stopped}, seed {}",
        setting.ways,
        setting.shots,
        setting.queries,
        thousands(setting.episodes),
        evaluation.seed,
    )
}

/// 10000 becomes 10,000.
fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|g| std::str::from_utf8(g).unwrap_or("")).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests;
