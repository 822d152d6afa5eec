//! Comparisons of measured results with the published tables of the paper ([`Reproduction`]), as an HTML page,
//! Markdown, LaTeX and JSON.
//!
//! The paper (Liang et al. 2022) measures the accuracy of few-shot methods under several levels of wrong labels. The
//! command `reproduce` runs the same experiments, fills a [`Reproduction`] with the results and calls
//! [`Reproduction::html`] and the functions beside it.
//!
//! A [`Cell`] holds the measured and the published accuracy, or the reason why nothing was measured.
//! [`Cell::agreement`] compares the accuracies themselves and their differences to ProtoNet (the baseline, which treats
//! all labels as right); the latter depend less on the quality of the backbone, the network that computes the features.

use askama::Template;
use serde::Serialize;

use super::chart::{self, Axis, Line};
use super::{latex, markdown};
use crate::noise::NoiseKind;
use crate::visible::counted;

/// Maximum difference between a measured and a published accuracy that agree, in points; backbones differ.
pub const ACCURACY_TOLERANCE: f64 = 2.0;
/// Maximum difference between a measured and a published difference to ProtoNet that agree, in points.
pub const DIFFERENCE_TOLERANCE: f64 = 1.2;

/// A report that compares measured tables and figures with those of the paper.
#[derive(Debug, Clone, Serialize)]
pub struct Reproduction {
    /// The title of the report.
    pub title: String,
    /// How the results were measured, as (name, value), such as the number of episodes.
    pub facts: Vec<(String, String)>,
    /// Warnings at the top of the report, such as shortened training.
    pub warnings: Vec<String>,
    /// The tables, in the order of the report.
    pub tables: Vec<Table>,
    /// The figures that are images, in the order of the report. Charts are part of the tables.
    pub figures: Vec<Figure>,
    /// The names of the rows that the charts at the beginning of the report show; there is one chart per data set.
    #[serde(skip)]
    pub plotted_rows: Vec<String>,
}

/// A figure of one or more images for one data set.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// The name of the figure on the command line.
    pub name: String,
    /// The title above the figure.
    pub title: String,
    /// The data set that the figure was made from.
    pub dataset: String,
    /// The explanation below the figure.
    pub caption: String,
    /// The images of the figure.
    pub panels: Vec<Panel>,
    /// The commands that made the figure.
    pub commands: Vec<String>,
}

/// One image of a figure.
#[derive(Debug, Clone, Serialize)]
pub struct Panel {
    /// The title of the image.
    pub title: String,
    /// The image as HTML: inline SVG, or an `img` element with a data URI. Empty if it is missing.
    #[serde(skip)]
    pub markup: String,
    /// The reason why the image is missing.
    pub missing: Option<String>,
}

impl Figure {
    /// The title with the data set.
    fn heading(&self) -> String {
        format!("{}, {}", self.title, self.dataset)
    }
}

impl Panel {
    /// The description of the panel in formats without images.
    fn text(&self) -> String {
        match &self.missing {
            Some(reason) => format!("{}: not drawn, {reason}", self.title),
            None => format!("{}: in report.html", self.title),
        }
    }
}

/// A table of accuracies for one data set: one row per method, one column per noise level.
#[derive(Debug, Clone, Serialize)]
pub struct Table {
    /// The name of the table on the command line.
    pub name: String,
    /// The title above the table.
    pub title: String,
    /// The data set that the table was measured on.
    pub dataset: String,
    /// The kind of noise, for the chart.
    #[serde(skip)]
    pub noise: NoiseKind,
    /// The number of samples per class, if levels are shown as the number of wrong samples instead of in percent.
    #[serde(skip)]
    pub samples: Option<usize>,
    /// The noise levels of the columns, from 0 to 1.
    pub levels: Vec<f64>,
    /// The rows, in the order of the paper.
    pub rows: Vec<Row>,
    /// Notes below the table.
    pub notes: Vec<String>,
    /// The commands that measured the table.
    pub commands: Vec<String>,
    /// Learning curves of the trained models, as (name, SVG).
    pub curves: Vec<(String, String)>,
}

/// One row of a table: the accuracies of a method.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// The name of the method in the paper.
    pub name: String,
    /// Whether the method is a reference for the others, and which.
    pub reference: Option<Reference>,
    /// One cell per noise level.
    pub cells: Vec<Cell>,
}

/// A method that serves as a reference for the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reference {
    /// The oracle, which knows which labels are wrong: an upper bound.
    Oracle,
    /// ProtoNet, which treats all labels as right: the baseline.
    Protonet,
}

/// One cell of a table: a measured and a published accuracy.
///
/// ```
/// use trueshot::report::reproduction::{Agreement, Cell, Measured, Published};
///
/// let measured = Measured { accuracy: 57.0, ci95: None, difference: None, gap_closed: None };
/// let published = Published { accuracy: 58.5, ci95: None, difference: None };
/// let cell = Cell { measured: Some(measured), published: Some(published), ..Cell::default() };
/// assert_eq!(cell.agreement(), Some(Agreement::Agrees));
/// ```
#[derive(Debug, Clone, Default, Serialize)]
pub struct Cell {
    /// The measured accuracy.
    pub measured: Option<Measured>,
    /// The published accuracy.
    pub published: Option<Published>,
    /// The published difference to ProtoNet on another data set of the paper, which this one replaces: it is shown, but
    /// does not count as a result of the paper on this data set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub paper_difference: Option<f64>,
    /// The reason why nothing was measured.
    pub missing: Option<String>,
    /// The rank of the cell in its column, in tables that compare ranks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
}

/// The rank of a cell among the rows of its column, from 1 for the best; references do not take part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Order {
    /// The rank of the measured accuracy.
    #[serde(rename = "place")]
    pub measured_rank: usize,
    /// The rank of the published accuracy.
    #[serde(rename = "published")]
    pub published_rank: usize,
    /// The names of rows whose order relative to this one is reversed between the measured and the published
    /// accuracies, in both cases by more than the confidence intervals.
    pub reversed: Vec<String>,
}

/// A measured accuracy.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Measured {
    /// The mean over episodes, in percent.
    pub accuracy: f64,
    /// Half the width of the 95 % confidence interval, in points.
    pub ci95: Option<f64>,
    /// The difference to ProtoNet on the same episodes, in points.
    pub difference: Option<f64>,
    /// The fraction of the gap between ProtoNet and the oracle that is closed.
    pub gap_closed: Option<f64>,
}

/// A published accuracy.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Published {
    /// The accuracy in percent.
    pub accuracy: f64,
    /// Half the width of the 95 % confidence interval, in points.
    pub ci95: Option<f64>,
    /// The difference to the published ProtoNet of the same setting, in points.
    pub difference: Option<f64>,
}

/// The agreement of a measured cell with the published one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Agreement {
    /// Both the accuracy and the difference to ProtoNet are within their tolerances.
    Agrees,
    /// One of the two is within its tolerance.
    Partly,
    /// Neither is within its tolerance.
    Differs,
}

impl Cell {
    /// The agreement of the measured with the published accuracy, if both exist.
    pub fn agreement(&self) -> Option<Agreement> {
        let (measured, published) = (self.measured?, self.published?);
        let same_accuracy = (measured.accuracy - published.accuracy).abs() <= ACCURACY_TOLERANCE;
        let same_difference = match (measured.difference, published.difference) {
            (Some(measured), Some(published)) => (measured - published).abs() <= DIFFERENCE_TOLERANCE,
            _ => same_accuracy,
        };
        Some(match (same_accuracy, same_difference) {
            (true, true) => Agreement::Agrees,
            (false, false) => Agreement::Differs,
            _ => Agreement::Partly,
        })
    }

    /// The CSS class of the cell.
    fn class(&self) -> &'static str {
        match self.agreement() {
            Some(Agreement::Agrees) => "agrees",
            Some(Agreement::Partly) => "partly",
            Some(Agreement::Differs) => "differs",
            None if self.missing.is_some() => "missing",
            None => "",
        }
    }

    /// The measured accuracy as text.
    fn accuracy(&self) -> String {
        let Some(Measured { accuracy, ci95, .. }) = self.measured else {
            // Without a reason, the row has no cell at this level: it may have fewer levels than its table.
            return if self.missing.is_some() { "not measured".into() } else { String::new() };
        };
        format!("{accuracy:.2}{}", ci95.map_or(String::new(), |ci| format!(" ±{ci:.2}")))
    }

    /// The published accuracy as text, or both differences to ProtoNet on a data set that replaces another.
    fn published(&self) -> String {
        match (self.published, self.differences()) {
            (Some(published), _) => format!("{:.2}", published.accuracy),
            (None, differences) => differences.unwrap_or_default(),
        }
    }

    /// The difference to ProtoNet here and in the paper, on a data set that replaces another.
    fn differences(&self) -> Option<String> {
        let here = self.measured?.difference?;
        Some(format!("{here:+.1}, paper {:+.1}", self.paper_difference?))
    }

    /// All details of the cell in one line, for its tooltip.
    fn explanation(&self) -> String {
        let mut parts = Vec::new();
        parts.extend(self.missing.clone());
        if let Some(measured) = self.measured {
            parts.extend(measured.difference.map(|points| format!("{points:+.2} against ProtoNet here")));
            let published =
                self.published.and_then(|published| published.difference).or(self.paper_difference);
            parts.extend(published.map(|points| format!("{points:+.2} in the paper")));
            parts.extend(measured.gap_closed.map(|gap| format!("{:.0} % of the gap to Oracle", 100.0 * gap)));
        }
        if let Some(Order { measured_rank, published_rank, reversed }) = &self.order {
            parts.push(format!("rank {measured_rank} in its column, {published_rank} in the paper"));
            if !reversed.is_empty() {
                parts.push(format!("in the opposite order to the paper against {}", reversed.join(", ")));
            }
        }
        parts.join("; ")
    }

    /// The cell in Markdown and LaTeX: `57.41 ±0.17 (56.65)`, with a mark if it does not agree with the paper.
    fn text(&self) -> String {
        if self.measured.is_none() && self.published.is_none() {
            return "-".into();
        }
        let measured = self.measured.map_or("-".into(), |_| self.accuracy());
        let mark = match self.agreement() {
            Some(Agreement::Differs) => " !",
            Some(Agreement::Partly) => " ?",
            _ => "",
        };
        let published = self.published();
        let published = if published.is_empty() { published } else { format!(" ({published})") };
        let ranks = self.ranks_in_words();
        let space = if ranks.is_empty() { "" } else { " " };
        format!("{measured}{published}{mark}{space}{ranks}")
    }

    /// The measured and the published rank, `#2 (#1)`, with a mark if the order relative to another row is reversed.
    fn ranks_in_words(&self) -> String {
        self.order.as_ref().map_or(String::new(), |Order { measured_rank, published_rank, reversed }| {
            let mark = if reversed.is_empty() { "" } else { " ≠" };
            format!("#{measured_rank} (#{published_rank}){mark}")
        })
    }
}

impl Table {
    /// Computes the rank of every cell among the rows of its column (see [`Order`]).
    pub fn rank_cells(&mut self) {
        for column in 0..self.levels.len() {
            // The name of a row and its two accuracies in this column; `None` for references and incomplete cells.
            let accuracies = |row: &Row| {
                let cell = row.cells.get(column).filter(|_| row.reference.is_none())?;
                Some((row.name.clone(), cell.measured?, cell.published?))
            };
            let all: Vec<_> = self.rows.iter().filter_map(accuracies).collect();
            for row in &mut self.rows {
                let Some((_, measured, published)) = accuracies(row) else { continue };
                let is_better_measured =
                    |other: &&(String, Measured, Published)| other.1.accuracy > measured.accuracy;
                let is_better_published =
                    |other: &&(String, Measured, Published)| other.2.accuracy > published.accuracy;
                // Both differences to the other row are significant, and have opposite signs.
                let is_reversed = |(_, m, p): &&(String, Measured, Published)| {
                    let here =
                        significant_difference((measured.accuracy, measured.ci95), (m.accuracy, m.ci95));
                    let paper =
                        significant_difference((published.accuracy, published.ci95), (p.accuracy, p.ci95));
                    here * paper < 0.0
                };
                row.cells[column].order = Some(Order {
                    measured_rank: 1 + all.iter().filter(is_better_measured).count(),
                    published_rank: 1 + all.iter().filter(is_better_published).count(),
                    reversed: all.iter().filter(is_reversed).map(|other| other.0.clone()).collect(),
                });
            }
        }
    }

    /// The headers of the columns: levels in percent, or as the number of wrong samples.
    fn columns(&self) -> Vec<String> {
        match self.samples {
            None => self.levels.iter().map(|&level| super::grids::percent(level)).collect(),
            Some(shots) => {
                let names = Axis::in_samples(self.noise, &self.levels, shots).names;
                names.into_iter().map(|name| format!("{name} of {shots}")).collect()
            }
        }
    }

    /// Whether the paper has results on this data set.
    fn has_published(&self) -> bool {
        self.rows.iter().flat_map(|row| &row.cells).any(|cell| cell.published.is_some())
    }

    /// The title with the data set.
    fn heading(&self) -> String {
        format!("{}, {}", self.title, self.dataset)
    }

    /// The number of cells whose agreement with the paper is `agreement`.
    fn count_agreeing(&self, agreement: Agreement) -> usize {
        let cells = self.rows.iter().flat_map(|row| &row.cells);
        cells.filter(|cell| cell.agreement() == Some(agreement)).count()
    }

    /// How many cells agree, agree partly, differ, and are not measured, in words.
    fn counts_in_words(&self) -> String {
        let cells = || self.rows.iter().flat_map(|row| &row.cells);
        let count = |agreement: Agreement| self.count_agreeing(agreement);
        let missing = cells().filter(|cell| cell.missing.is_some()).count();
        let mut parts = vec![
            counted(count(Agreement::Agrees), "cell agrees", "cells agree") + " with the paper",
            format!("{} partly", count(Agreement::Partly)),
            format!("{} disagree", count(Agreement::Differs)),
        ];
        if !self.has_published() {
            parts = vec!["the paper has no results on this data set".into()];
        }
        if cells().any(|cell| cell.paper_difference.is_some()) {
            parts = vec!["differences to ProtoNet beside those of the paper on another data set".into()];
        }
        if missing > 0 {
            parts.push(format!("{missing} not measured"));
        }
        let orders: Vec<&Order> = cells().filter_map(|cell| cell.order.as_ref()).collect();
        if !orders.is_empty() {
            // A reversed pair is noted in both of its rows.
            let same = orders.iter().filter(|order| order.measured_rank == order.published_rank).count();
            let reversed = orders.iter().map(|order| order.reversed.len()).sum::<usize>() / 2;
            parts.push(format!("{same} of {} with the same rank as in the paper", orders.len()));
            parts.push(match reversed {
                1 => "1 pair of rows in the opposite order".into(),
                _ => format!("{reversed} pairs of rows in the opposite order"),
            });
        }
        parts.join(", ")
    }

    /// The chart of the measured accuracies as HTML; `None` if there are too few. After the references, the rows named
    /// in `plotted` are the first to get a colour.
    fn chart(&self, plotted: &[String]) -> Option<String> {
        chart::figure(&self.axis(), &self.levels, &self.lines(plotted, |_| true))
    }

    /// The chart of the rows named in `plotted` as an SVG file.
    fn plot(&self, plotted: &[String]) -> Option<String> {
        let lines = self.lines(plotted, |row| plotted.contains(&row.name));
        chart::standalone(&self.axis(), &self.levels, &lines)
    }

    /// The horizontal axis of the charts.
    fn axis(&self) -> Axis {
        match self.samples {
            None => Axis::in_percent(self.noise, &self.levels),
            Some(shots) => Axis::in_samples(self.noise, &self.levels, shots),
        }
    }

    /// The lines of the rows that `is_shown` selects and that have more than one measured accuracy.
    fn lines(&self, plotted: &[String], is_shown: impl Fn(&Row) -> bool) -> Vec<Line> {
        let line = |row: &Row| Line {
            name: row.name.clone(),
            colour: None,
            dashed: row.reference == Some(Reference::Oracle),
            points: self
                .levels
                .iter()
                .zip(&row.cells)
                .filter_map(|(&level, cell)| cell.measured.map(|m| (level, m.accuracy, m.ci95)))
                .collect(),
        };
        let rows = self.rows.iter().filter(|row| is_shown(row)).map(|row| (row, line(row)));
        let (rows, mut lines): (Vec<&Row>, Vec<Line>) =
            rows.filter(|(_, line)| line.points.len() > 1).unzip();
        let importance = |(row, line): (&&Row, &Line)| {
            let accuracies = line.points.iter().map(|point| point.1);
            (row.reference.is_some(), plotted.contains(&row.name), chart::mean(accuracies))
        };
        let importance: Vec<_> = rows.iter().zip(&lines).map(importance).collect();
        chart::assign_colours(&mut lines, &importance);
        lines
    }

    /// Whether a row has the best measured accuracy of a column; the oracle does not take part.
    fn is_best(&self, row: &Row, column: usize) -> bool {
        let accuracy = |row: &Row| {
            let cell = row.cells.get(column).filter(|_| row.reference != Some(Reference::Oracle))?;
            Some(cell.measured?.accuracy)
        };
        let best = self.rows.iter().filter_map(accuracy).fold(f64::NEG_INFINITY, f64::max);
        accuracy(row) == Some(best)
    }
}

/// The first accuracy minus the second, each given with the half-width of its 95 % confidence interval; 0 if the
/// difference is not significant, that is not above the half-width of its own interval (the root of the sum of
/// squares).
fn significant_difference(first: (f64, Option<f64>), second: (f64, Option<f64>)) -> f64 {
    let difference = first.0 - second.0;
    let interval = first.1.unwrap_or(0.0).hypot(second.1.unwrap_or(0.0));
    if difference.abs() > interval { difference } else { 0.0 }
}

/// The data of the template.
#[derive(Template)]
#[template(path = "reproduction.html")]
struct Page<'a> {
    reproduction: &'a Reproduction,
}

impl Reproduction {
    /// The report as one self-contained HTML page.
    pub fn html(&self) -> String {
        Page { reproduction: self }.render().expect("the template is compiled in and its data is complete")
    }

    /// Whether some table compares ranks.
    fn has_ranks(&self) -> bool {
        let cells = self.tables.iter().flat_map(|table| &table.rows).flat_map(|row| &row.cells);
        cells.into_iter().any(|cell| cell.order.is_some())
    }

    /// The report as JSON with all results.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("a report is plain data") + "\n"
    }

    /// The chart of each data set, as the name of the file and the SVG: accuracy against noise in the first table with
    /// several levels.
    pub fn plots(&self) -> Vec<(String, String)> {
        let mut plots: Vec<(String, String)> = Vec::new();
        for table in &self.tables {
            let name = plot_name(&table.dataset);
            if plots.iter().all(|(known, _)| *known != name) {
                plots.extend(table.plot(&self.plotted_rows).map(|chart| (name, chart)));
            }
        }
        plots
    }

    /// The report as Markdown: the charts, a summary, and all tables. The commands are in [`Reproduction::commands`].
    pub fn markdown(&self) -> String {
        let mut text = format!("# {}\n\n", self.title);
        for (name, _) in self.plots() {
            text.push_str(&format!("![Accuracy against noise]({name})\n\n"));
        }
        for (name, value) in &self.facts {
            text.push_str(&format!("- {name}: {}\n", markdown::escaped(value)));
        }
        self.warnings
            .iter()
            .for_each(|warning| text.push_str(&format!("- **{}**\n", markdown::escaped(warning))));
        text.push_str(&self.summary());
        text.push_str(&format!("\n{LEGEND} The commands are in [report-commands.md](report-commands.md).\n"));
        if self.has_ranks() {
            text.push_str(&format!("\n{RANKS_LEGEND}\n"));
        }
        for table in &self.tables {
            text.push_str(&format!("\n## {}\n\n", markdown::escaped(&table.heading())));
            text.push_str(&format!("`{}`: {}.\n\n", table.name, table.counts_in_words()));
            let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
            text.push_str(&line(&[vec![String::new()], table.columns()].concat()));
            text.push_str(&format!("|---|{}\n", "---:|".repeat(table.levels.len())));
            for row in &table.rows {
                let cells = row.cells.iter().map(|cell| markdown::escaped(&cell.text())).collect();
                text.push_str(&line(&[vec![markdown::escaped(&row.name)], cells].concat()));
            }
            table.notes.iter().for_each(|note| text.push_str(&format!("\n{}\n", markdown::escaped(note))));
        }
        for figure in &self.figures {
            text.push_str(&format!("\n## {}\n\n", markdown::escaped(&figure.heading())));
            text.push_str(&format!("`{}`: {}\n\n", figure.name, markdown::escaped(&figure.caption)));
            let panels =
                figure.panels.iter().map(|panel| format!("- {}\n", markdown::escaped(&panel.text())));
            text.extend(panels);
        }
        text
    }

    /// How many cells of each table agree with the paper, as a Markdown table; empty if the paper does not contain any
    /// of the tables.
    fn summary(&self) -> String {
        let mut text = String::new();
        // Cells that agree, agree partly, disagree and are not measured, over all tables.
        let mut total = [0; 4];
        for table in self.tables.iter().filter(|table| table.has_published()) {
            let published =
                table.rows.iter().flat_map(|row| &row.cells).filter(|cell| cell.published.is_some());
            let counts = [
                table.count_agreeing(Agreement::Agrees),
                table.count_agreeing(Agreement::Partly),
                table.count_agreeing(Agreement::Differs),
                published.filter(|cell| cell.measured.is_none()).count(),
            ];
            total.iter_mut().zip(counts).for_each(|(total, count)| *total += count);
            text.push_str(&summary_line(&table.heading(), counts));
        }
        if text.is_empty() {
            return text;
        }
        let header = "| comparisons with the paper | agree | agree partly | disagree | not measured |\n|---|---:|---:|---:|---:|\n";
        format!("\n{header}{text}{}", summary_line("**all**", total))
    }

    /// The commands of all tables and figures as Markdown.
    pub fn commands(&self) -> String {
        let mut text = format!(
            "# Commands: {}\n\nTables share results, so commands are repeated. `cache/` is in the output folder.\n",
            self.title
        );
        let tables = self.tables.iter().map(|table| (table.heading(), &table.name, &table.commands));
        let figures = self.figures.iter().map(|figure| (figure.heading(), &figure.name, &figure.commands));
        for (heading, name, commands) in tables.chain(figures) {
            text.push_str(&format!("\n## {}\n\n", markdown::escaped(&heading)));
            text.push_str(&format!("`{name}`\n\n```sh\n{}\n```\n", commands.join("\n")));
        }
        text
    }

    /// The report as LaTeX tables for the package booktabs; the best measured accuracy of a column is bold.
    pub fn latex(&self) -> String {
        let mut text = format!("% {}\n% needs \\usepackage{{booktabs}}\n", self.title);
        for (name, value) in &self.facts {
            text.push_str(&format!("% {name}: {value}\n"));
        }
        self.warnings.iter().for_each(|warning| text.push_str(&format!("% {warning}\n")));
        for table in &self.tables {
            text.push_str(&format!(
                "\n\\begin{{table}}\n\\centering\n\\caption{{{}}}\n",
                latex::escaped(&table.heading())
            ));
            text.push_str(&format!("\\begin{{tabular}}{{l{}}}\n\\toprule\n", "r".repeat(table.levels.len())));
            let line = |cells: Vec<String>| format!("{} \\\\\n", cells.join(" & "));
            let columns = table.columns().into_iter().map(|name| latex::escaped(&name));
            text.push_str(&line(std::iter::once(String::new()).chain(columns).collect()));
            text.push_str("\\midrule\n");
            for row in &table.rows {
                let cells = row.cells.iter().enumerate().map(|(column, cell)| {
                    let (text, measured) = (latex::escaped(&cell.text()), latex::escaped(&cell.accuracy()));
                    match table.is_best(row, column) {
                        true => text.replacen(&measured, &format!("\\textbf{{{measured}}}"), 1),
                        false => text,
                    }
                });
                text.push_str(&line(std::iter::once(latex::escaped(&row.name)).chain(cells).collect()));
            }
            text.push_str("\\bottomrule\n\\end{tabular}\n\\end{table}\n");
        }
        for figure in &self.figures {
            text.push_str(&format!("\n% {}: {}\n", figure.heading(), figure.caption));
            text.extend(figure.panels.iter().map(|panel| format!("% - {}\n", panel.text())));
        }
        text
    }
}

/// The file of the chart of a data set.
fn plot_name(dataset: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '-' };
    format!("report-{}.svg", dataset.chars().map(plain).collect::<String>())
}

/// A line of the summary: the numbers of cells that agree (with their share of all), agree partly, disagree and are not
/// measured.
fn summary_line(name: &str, counts: [usize; 4]) -> String {
    let all: usize = counts.iter().sum();
    let share = |count: usize| format!("{count} ({:.0} %)", 100.0 * count as f64 / all.max(1) as f64);
    let [agree, partly, differ, missing] = counts;
    format!("| {} | {} | {partly} | {differ} | {missing} |\n", name, share(agree))
}

/// The explanation of the marks in Markdown.
const LEGEND: &str = "Accuracy in percent with its 95 % interval, the paper's result in brackets. `!`: differs by more than 2 points from the \
paper's accuracy and by more than 1.2 points from its difference to ProtoNet; `?`: one of the two.";

/// The explanation of the ranks in Markdown.
const RANKS_LEGEND: &str = "`#2 (#1)`: second best in its column here, best in the paper. `≠`: in the opposite order to another \
row than in the paper, in both cases by more than the confidence intervals.";

#[cfg(test)]
mod tests;
