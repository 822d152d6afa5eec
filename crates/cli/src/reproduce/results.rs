//! Turns the results of evaluations into the cells of a table, next to the published numbers. Start with [`table`].
//!
//! A row of a table is a method, a column is a noise level. Accuracies are in percent, differences in percentage
//! points, and noise levels are shares from 0 to 1. Two rows serve as references: ProtoNet (prototypes are class means)
//! and the oracle (the same without the wrongly labelled items).

use std::path::Path;

use anyhow::Context;
use serde::Deserialize;
use trueshot::report::reproduction::{Cell, Measured, Published, Reference, Row, Table};

use super::experiments::{PaperResults, PaperRow};
use super::jobs::Jobs;
use super::planner::{PlannedTable, row_label};

/// The parts of the JSON output of `trueshot eval` that the report uses.
#[derive(Deserialize)]
pub struct EvaluationResult {
    settings: Vec<SettingResult>,
}

/// The results at one noise level.
#[derive(Deserialize)]
struct SettingResult {
    level: f64,
    methods: Vec<MethodResult>,
    #[serde(default)]
    significance: Vec<PairedDifference>,
}

#[derive(Deserialize)]
struct MethodResult {
    /// The label of the row ([`row_label`]).
    method: String,
    accuracy: Option<f64>,
    /// Half the width of the 95 % confidence interval.
    ci95: Option<f64>,
    /// The difference to the baseline, which is ProtoNet if it is part of the evaluation.
    difference: Option<Difference>,
}

#[derive(Deserialize)]
struct Difference {
    mean: f64,
}

/// The difference between two methods on the same episodes.
#[derive(Deserialize)]
struct PairedDifference {
    method: String,
    against: String,
    difference: f64,
    ci95: Option<f64>,
}

impl EvaluationResult {
    /// Reads the result file of an evaluation job.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is not an evaluation", path.display()))
    }

    /// The results for a noise level, which may be rounded by up to one percentage point.
    fn setting(&self, level: f64) -> Option<&SettingResult> {
        self.settings.iter().find(|setting| (setting.level - level).abs() < 0.01)
    }
}

impl SettingResult {
    /// The result of a row of the table, by its index.
    fn method_of_row(&self, row: usize) -> Option<&MethodResult> {
        self.methods.iter().find(|method| method.method == row_label(row))
    }
}

/// The table for the report. `evaluated` has one element for each of `planned.evaluations`; `folder` is the output
/// folder, where training curves are read from.
pub fn table(
    planned: &PlannedTable<'_>,
    evaluated: &[EvaluationResult],
    paper: &PaperResults,
    jobs: &Jobs,
    folder: &Path,
) -> Table {
    // The columns are all noise levels of the table and of its rows.
    let noises = planned.evaluations.iter().map(|evaluation| &evaluation.noise).chain(&planned.table.noise);
    let noises = noises.chain(planned.table.rows.iter().filter_map(|row| row.noise.as_ref()));
    let mut levels: Vec<f64> = noises.clone().flat_map(|noise| &noise.0).map(|noise| noise.level).collect();
    levels.sort_by(f64::total_cmp);
    levels.dedup();
    // The type of the first noise; a table without any counts as symmetric.
    let noise = noises
        .clone()
        .flat_map(|noise| &noise.0)
        .next()
        .map_or(trueshot::noise::NoiseKind::Symmetric, |noise| noise.kind);
    let rows = planned.rows().map(|(index, _)| row(planned, index, &levels, evaluated, paper)).collect();
    let needed =
        jobs.with_needs(&planned.evaluations.iter().map(|evaluation| evaluation.job).collect::<Vec<_>>());
    let mut table = Table {
        name: planned.curve.map_or(&planned.table.name, |figure| &figure.name).clone(),
        title: match planned.curve {
            Some(figure) => format!("{}, {} shots", figure.title, planned.table.shots),
            None => planned.table.title.clone(),
        },
        dataset: planned.dataset.title.clone(),
        noise,
        // Curves are drawn over the number of wrong samples per class instead of the noise level.
        samples: planned.curve.map(|_| planned.table.shots),
        levels,
        rows,
        notes: notes(planned, evaluated),
        commands: needed.iter().map(|&job| jobs.command(&jobs.all()[job])).collect(),
        curves: needed
            .iter()
            .map(|&job| &jobs.all()[job])
            .filter(|job| job.kind.is_training())
            .filter_map(|job| {
                let svg =
                    std::fs::read_to_string(folder.join(&job.output).with_extension("curves.svg")).ok()?;
                Some((job.label.clone(), svg))
            })
            .collect(),
    };
    if planned.table.ordered {
        table.rank_cells();
    }
    table
}

/// The row with index `index` in the table, with one cell for each of `levels`.
fn row(
    planned: &PlannedTable<'_>,
    index: usize,
    levels: &[f64],
    evaluated: &[EvaluationResult],
    paper: &PaperResults,
) -> Row {
    let row = &planned.table.rows[index];
    let reference = match row.method.as_deref() {
        Some("oracle") => Some(Reference::Oracle),
        Some("protonet") if row.backbone.is_none() => Some(Reference::Protonet),
        _ => None,
    };
    let evaluation = planned.evaluations.iter().position(|evaluation| evaluation.rows.contains(&index));
    // A row with noise levels of its own has no cells at the others.
    let own_noise = row.noise.as_ref();
    let has_level = |level: f64| own_noise.is_none_or(|own| own.0.iter().any(|noise| noise.level == level));
    let cell = |&level: &f64| {
        let setting = evaluation.and_then(|evaluation| evaluated[evaluation].setting(level));
        let published_on = |name: &str| published(planned, name, row, level, paper);
        let dataset = planned.dataset;
        Cell {
            measured: setting.and_then(|setting| measured(planned, evaluated, setting, index)),
            published: dataset.paper.then(|| published_on(planned.dataset_name)).flatten(),
            paper_difference: dataset.stands_for.as_deref().and_then(|name| published_on(name)?.difference),
            missing: planned.missing.get(&index).filter(|_| has_level(level)).cloned(),
            // Set by `rank_cells` if the order of the rows is compared.
            order: None,
        }
    };
    Row { name: row.row.clone(), reference, cells: levels.iter().map(cell).collect() }
}

/// The measured accuracy of a row at one noise level, compared with those of the references; `None` if it was not
/// measured.
fn measured(
    planned: &PlannedTable<'_>,
    evaluated: &[EvaluationResult],
    setting: &SettingResult,
    row: usize,
) -> Option<Measured> {
    let method = setting.method_of_row(row)?;
    let accuracy = method.accuracy?;
    // A reference is a row with the backbone of the dataset. It may be in another evaluation, which has the same
    // episodes.
    let accuracy_of = |name: &str| {
        let is_reference = |row: &PaperRow| row.method.as_deref() == Some(name) && row.backbone.is_none();
        let reference = planned.table.rows.iter().position(is_reference)?;
        evaluated
            .iter()
            .filter_map(|evaluation| evaluation.setting(setting.level))
            .find_map(|setting| setting.method_of_row(reference)?.accuracy)
    };
    // The gap between ProtoNet and the oracle; `None` if it is below one point, too small to say how much a row closes.
    let gap = accuracy_of("oracle")
        .zip(accuracy_of("protonet"))
        .filter(|(oracle, protonet)| oracle - protonet >= 1.0);
    Some(Measured {
        accuracy,
        ci95: method.ci95,
        difference: method
            .difference
            .as_ref()
            .map(|difference| difference.mean)
            .or_else(|| Some(accuracy - accuracy_of("protonet")?)),
        gap_closed: gap.map(|(oracle, protonet)| (accuracy - protonet) / (oracle - protonet)),
    })
}

/// The result of the paper for a row at one noise level; `None` if the paper does not report it.
fn published(
    planned: &PlannedTable<'_>,
    dataset: &str,
    row: &PaperRow,
    level: f64,
    paper: &PaperResults,
) -> Option<Published> {
    let name = row.paper.as_deref().unwrap_or(&row.row);
    let (accuracy, ci95) = paper.cell(&planned.table.name, dataset, name, level)?;
    // The difference is that to ProtoNet, which some tables of the paper leave to another table.
    let protonet_table = planned.table.compare.as_deref().unwrap_or(&planned.table.name);
    let protonet = paper.cell(protonet_table, dataset, "Vanilla ProtoNet", level);
    Some(Published { accuracy, ci95, difference: protonet.map(|(protonet, _)| accuracy - protonet) })
}

/// Notes on the noise levels at which the difference between the best two rows is not significant.
fn notes(planned: &PlannedTable<'_>, evaluated: &[EvaluationResult]) -> Vec<String> {
    let mut notes = Vec::new();
    for (evaluation, result) in planned.evaluations.iter().zip(evaluated) {
        let name = |row: usize| &planned.table.rows[row].row;
        let is_oracle = |row: usize| planned.table.rows[row].method.as_deref() == Some("oracle");
        for setting in &result.settings {
            let accuracy = |row: usize| setting.method_of_row(row).and_then(|method| method.accuracy);
            // The shown rows other than the oracle with their accuracies, the best first.
            let mut rows: Vec<(usize, f64)> = evaluation
                .rows
                .iter()
                .filter(|&&row| !is_oracle(row) && planned.rows().any(|(shown, _)| shown == row))
                .filter_map(|&row| Some((row, accuracy(row)?)))
                .collect();
            rows.sort_by(|a, b| b.1.total_cmp(&a.1));
            let [(best, _), (second, _), ..] = rows[..] else { continue };
            let labels = [row_label(best), row_label(second)];
            let pair = setting
                .significance
                .iter()
                .find(|pair| labels.contains(&pair.method) && labels.contains(&pair.against));
            let Some((pair, ci95)) = pair.and_then(|pair| Some((pair, pair.ci95?))) else { continue };
            if pair.difference.abs() <= ci95 {
                notes.push(format!(
                    "At {:.0} % these episodes are too few to separate {} and {}: {:.2} ±{ci95:.2} points.",
                    100.0 * setting.level,
                    name(best),
                    name(second),
                    pair.difference.abs()
                ));
            }
        }
    }
    notes
}
