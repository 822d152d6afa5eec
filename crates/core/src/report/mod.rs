//! Reports: the results of evaluations (accuracy of methods), audits (wrong labels of a collection) and inspections
//! (facts about a file of embeddings) as terminal tables, JSON, CSV, Markdown, LaTeX and HTML pages.
//!
//! Start with [`evaluation`] and [`Format`] for evaluations, and with `audit` ([`AuditTable`], [`AuditPage`]) for
//! audits. There is one file per format; `grids` decides once, for all formats, which tables an evaluation has.
//! [`reproduction`] compares measured results with those of the paper.

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
mod text_table;

pub use crate::csv_field::{csv_field, without_apostrophe};
pub use crate::visible::{
    counted, display_width, escaped_xml, padded, shortened, shortened_item, visible, visible_lines,
};
pub use audit::{AuditPage, AuditTable, audit_csv, audit_json, percent, shown_rows};
pub use html::Page;
pub use inspection::inspection_text;
pub use support_set_figure::{FigureClass, FigureItem, SupportSetFigure};
pub use text_table::{Column, TextTable};

use crate::evaluate::Evaluation;

/// The output format of an evaluation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Plain text with aligned columns, for a terminal of 80 columns.
    Table,
    /// JSON with all results.
    Json,
    /// CSV with one line per noise setting and method.
    Csv,
    /// Markdown tables, for a README.
    Markdown,
    /// LaTeX tables for the package booktabs.
    Latex,
    /// One self-contained HTML page with plots.
    Html,
}

/// The tables of a text, Markdown or LaTeX report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tables {
    /// Accuracies, differences to the baseline, gap closed, detection of wrong labels, and the details of the
    /// evaluation.
    Usual,
    /// Also the differences between all pairs of methods. JSON and HTML always contain them.
    WithSignificance,
}

/// Formats an evaluation.
///
/// ```
/// use trueshot::episode::{EpisodeSpec, Sampler};
/// use trueshot::evaluate::{Details, Experiment, evaluate};
/// use trueshot::report::{self, Format, Tables};
/// # let labels = (0..150).map(|row| format!("class {}", row % 5)).collect();
/// # let data = trueshot::Embeddings::from_rows((0..150).map(|row| (row % 5) as f32).collect(), 1, labels)?;
/// # let noise = vec![trueshot::noise::Noise::new(trueshot::noise::NoiseKind::Symmetric, 0.4)?];
/// # let episodes = Sampler::new(&data, None, EpisodeSpec::default(), noise)?;
/// # let methods = [trueshot::method::Registry::default().parse("protonet")?];
/// # let experiment = Experiment {
/// #     embeddings: &data, outliers: None, episodes: &episodes, count: 2, methods: &methods, baseline: "protonet",
/// #     details: Details::default(),
/// # };
///
/// let results = evaluate(&experiment, &())?;
/// let text = report::evaluation(&results, Format::Table, Tables::Usual);
/// assert!(text.contains("Accuracy in percent, symmetric noise"));
/// # Ok::<(), trueshot::Error>(())
/// ```
pub fn evaluation(evaluation: &Evaluation, format: Format, tables: Tables) -> String {
    let shown = shown_grids(evaluation, tables);
    match format {
        Format::Table => text::tables(evaluation, &shown, DEFAULT_WIDTH),
        Format::Json => serde_json::to_string_pretty(evaluation).expect("results are plain data") + "\n",
        Format::Csv => csv::evaluation(evaluation),
        Format::Markdown => markdown::tables(evaluation, &shown),
        Format::Latex => latex::tables(evaluation, &shown),
        Format::Html => Page::new("Evaluation", evaluation).render(),
    }
}

/// The width of plain-text tables of evaluations in columns, if no other is given.
const DEFAULT_WIDTH: usize = 80;

/// Formats an evaluation as plain text for a terminal of `width` columns. Columns that do not fit follow below.
pub fn evaluation_text(evaluation: &Evaluation, tables: Tables, width: usize) -> String {
    text::tables(evaluation, &shown_grids(evaluation, tables), width)
}

/// The tables that a text, Markdown or LaTeX report has.
fn shown_grids(evaluation: &Evaluation, tables: Tables) -> Vec<grids::Grid> {
    let mut shown = grids::all(evaluation);
    if tables == Tables::WithSignificance {
        shown.extend(grids::significance(evaluation));
    }
    shown
}

/// The accuracy tables of an evaluation alone, as plain text for a terminal.
pub fn accuracies(evaluation: &Evaluation) -> String {
    let kinds = grids::kinds(evaluation).into_iter();
    let accuracies = kinds.filter_map(|kind| grids::accuracy(evaluation, kind));
    text::tables(evaluation, &accuracies.collect::<Vec<_>>(), DEFAULT_WIDTH)
}

/// The tables of `trueshot eval` for a terminal.
impl std::fmt::Display for Evaluation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&evaluation(self, Format::Table, Tables::Usual))
    }
}

/// A line that describes an evaluation: ways, shots, queries, episodes and seed.
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

/// A number with commas between thousands: 10,000.
fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|g| std::str::from_utf8(g).unwrap_or("")).collect();
    groups.join(",")
}

#[cfg(test)]
mod tests;
