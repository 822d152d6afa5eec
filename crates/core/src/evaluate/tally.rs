//! Adds up episodes, and turns the sums into figures.

use serde::Serialize;

use super::detection::Detection;
use super::episode_runner::{EpisodeOutcome, Outcome};
use super::statistics::{Estimate, holm};
use super::{Details, Experiment};
use crate::embeddings::Embeddings;
use crate::episode::{DrawnEpisode, Shots};
use crate::noise::{Noise, NoiseKind};

/// What an evaluation found.
#[derive(Debug, Clone, Serialize)]
pub struct Evaluation {
    /// The seed behind the episodes.
    pub seed: u64,
    /// The data.
    pub embeddings: Source,
    /// The outlier pool.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outliers: Option<Source>,
    /// SHA-256 of the manifest that was replayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// The method that differences are taken against.
    pub baseline: String,
    /// Whether it was stopped before all episodes were done.
    pub interrupted: bool,
    /// The version of trueshot.
    pub version: &'static str,
    /// The vector instructions that were used; others may round differently.
    pub instructions: &'static str,
    /// One entry a noise type and level.
    pub settings: Vec<SettingResult>,
}

/// Which data figures are about.
#[derive(Debug, Clone, Serialize)]
pub struct Source {
    /// Where it was read from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// What it holds.
    pub fingerprint: String,
    /// Rows.
    pub rows: usize,
    /// Numbers in a row.
    pub dim: usize,
    /// Classes.
    pub classes: usize,
    /// What made it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backbone: Option<String>,
}

/// What was found under one noise setting.
#[derive(Debug, Clone, Serialize)]
pub struct SettingResult {
    /// The noise type.
    pub noise: NoiseKind,
    /// The share of wrong labels.
    pub level: f64,
    /// Classes of an episode.
    pub ways: usize,
    /// Labelled items a class: a number, or the ends of a range.
    #[serde(serialize_with = "number_or_range")]
    pub shots: Shots,
    /// Queries a class.
    pub queries: usize,
    /// Episodes.
    pub episodes: usize,
    /// One entry a method.
    pub methods: Vec<MethodResult>,
    /// All pairs of methods, corrected for their number.
    pub significance: Vec<Comparison>,
}

fn number_or_range<S: serde::Serializer>(shots: &Shots, serializer: S) -> Result<S::Ok, S::Error> {
    if shots.min == shots.max {
        shots.min.serialize(serializer)
    } else {
        [shots.min, shots.max].serialize(serializer)
    }
}

/// What one method reached under one noise setting. Accuracies are percentages.
#[derive(Debug, Clone, Serialize)]
pub struct MethodResult {
    /// As it was asked for.
    pub method: String,
    /// Mean accuracy; none where there were no queries.
    pub accuracy: Option<f64>,
    /// Half-width of its 95 % interval.
    pub ci95: Option<f64>,
    /// Against the baseline, on the same episodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difference: Option<Difference>,
    /// The share of the way from ProtoNet to the oracle; none where that way is not clearly there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gap_closed: Option<f64>,
    /// How well it finds wrong labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detection: Option<Detection>,
    /// Accuracy on every class.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_class: Option<Vec<ClassAccuracy>>,
    /// `confusion[a][b]`: queries of class a taken for class b, by place in the data's class names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confusion: Option<Vec<Vec<u64>>>,
}

/// A paired difference.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Difference {
    /// Its mean, in points.
    pub mean: f64,
    /// Half-width of its 95 % interval.
    pub ci95: Option<f64>,
}

/// Accuracy on one class.
#[derive(Debug, Clone, Serialize)]
pub struct ClassAccuracy {
    /// The class.
    pub class: String,
    /// Queries it had.
    pub queries: u64,
    /// Those answered rightly, in percent.
    pub accuracy: f64,
}

/// Two methods on the same episodes.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// One.
    pub method: String,
    /// The other.
    pub against: String,
    /// Mean of the first minus the second, in points.
    pub difference: f64,
    /// Half-width of its 95 % interval.
    pub ci95: Option<f64>,
    /// Probability of such a difference if there were none.
    pub p: f64,
    /// The same, corrected for the number of pairs (Holm).
    pub p_corrected: f64,
}

/// The sums of one method under one setting.
#[derive(Default)]
struct Cell {
    correct: Vec<u32>,
    suspicion: Vec<f32>,
    are_probabilities: bool,
    /// Queries by true and predicted class; empty where nobody asked.
    confusion: Vec<u64>,
}

pub(super) struct Tally {
    /// By setting, then method.
    cells: Vec<Vec<Cell>>,
    /// By setting: whether each item's label was wrong.
    wrong: Vec<Vec<bool>>,
    classes: usize,
}

impl Tally {
    pub fn new(experiment: &Experiment<'_>) -> Self {
        let classes = experiment.embeddings.classes().len();
        let Details { per_class, confusion } = experiment.details;
        let pairs = if per_class || confusion { classes * classes } else { 0 };
        let cell = || Cell { confusion: vec![0; pairs], ..Cell::default() };
        let settings = experiment.episodes.noises();
        let row = |_: &Noise| experiment.methods.iter().map(|_| cell()).collect();
        Tally { cells: settings.iter().map(row).collect(), wrong: vec![Vec::new(); settings.len()], classes }
    }

    pub fn add(&mut self, drawn: &DrawnEpisode, outcome: EpisodeOutcome) {
        for (wrong, support) in self.wrong.iter_mut().zip(&drawn.supports) {
            wrong.extend(support.iter().map(|item| item.is_wrong()));
        }
        let cells = self.cells.iter_mut().flatten().zip(outcome.outcomes.into_iter().flatten());
        for (cell, outcome) in cells {
            cell.correct.push(outcome.correct);
            cell.are_probabilities = outcome.are_probabilities;
            if !cell.confusion.is_empty() {
                count_confusion(&mut cell.confusion, self.classes, drawn, &outcome);
            }
            cell.suspicion.extend(outcome.suspicion.into_iter().flatten());
        }
    }

    pub fn finish(self, experiment: &Experiment<'_>, planned: u64) -> Evaluation {
        let settings = experiment.episodes.noises().iter().zip(self.cells.iter().zip(&self.wrong));
        let settings: Vec<SettingResult> =
            settings.map(|(&noise, (cells, wrong))| setting(experiment, noise, cells, wrong)).collect();
        let done = settings.first().map_or(0, |setting| setting.episodes as u64);
        Evaluation {
            seed: experiment.episodes.spec().seed,
            embeddings: source(experiment.embeddings),
            outliers: experiment.outliers.map(source),
            manifest: experiment.episodes.manifest_hash().map(str::to_string),
            baseline: experiment.baseline.into(),
            interrupted: done < planned,
            version: env!("CARGO_PKG_VERSION"),
            instructions: trueshot_nn::Isa::current().name(),
            settings,
        }
    }
}

fn count_confusion(confusion: &mut [u64], classes: usize, drawn: &DrawnEpisode, outcome: &Outcome) {
    let draws = &drawn.episode.classes;
    let truth = draws.iter().flat_map(|draw| std::iter::repeat_n(draw.class, draw.queries.len()));
    for (truth, &prediction) in truth.zip(&outcome.predictions) {
        confusion[truth as usize * classes + draws[prediction as usize].class as usize] += 1;
    }
}

fn source(embeddings: &Embeddings) -> Source {
    Source {
        path: embeddings.path().map(|path| path.display().to_string()),
        fingerprint: embeddings.fingerprint().to_string(),
        rows: embeddings.len(),
        dim: embeddings.dim(),
        classes: embeddings.classes().len(),
        backbone: embeddings.backbone().map(str::to_string),
    }
}

fn setting(experiment: &Experiment<'_>, noise: Noise, cells: &[Cell], wrong: &[bool]) -> SettingResult {
    let spec = experiment.episodes.spec();
    let scores = Scores { cells, queries: spec.ways * spec.queries };
    let labels: Vec<&str> = experiment.methods.iter().map(|method| method.label.as_str()).collect();
    let place = |label: &str| labels.iter().position(|&known| known == label);
    let (protonet, oracle, baseline) = (place("protonet"), place("oracle"), place(experiment.baseline));
    let methods = cells.iter().zip(&labels).enumerate().map(|(m, (cell, &label))| {
        let accuracy = scores.accuracy(m);
        let difference = baseline.filter(|&b| b != m).and_then(|b| scores.difference(m, b));
        MethodResult {
            method: label.to_string(),
            accuracy: accuracy.map(|a| rounded(a.mean)),
            ci95: accuracy.and_then(|a| a.ci95).map(rounded),
            difference: difference.map(|d| Difference { mean: rounded(d.mean), ci95: d.ci95.map(rounded) }),
            gap_closed: protonet.zip(oracle).and_then(|(p, o)| scores.gap_closed(m, p, o)).map(rounded),
            detection: (!cell.suspicion.is_empty())
                .then(|| Detection::score(&cell.suspicion, wrong, cell.are_probabilities))
                .flatten()
                .map(rounded_detection),
            per_class: experiment.details.per_class.then(|| per_class(experiment.embeddings, cell)),
            confusion: experiment.details.confusion.then(|| {
                cell.confusion.chunks(experiment.embeddings.classes().len()).map(<[u64]>::to_vec).collect()
            }),
        }
    });
    SettingResult {
        noise: noise.kind,
        level: noise.level,
        ways: spec.ways,
        shots: spec.shots,
        queries: spec.queries,
        episodes: cells.first().map_or(0, |cell| cell.correct.len()),
        methods: methods.collect(),
        significance: scores.comparisons(&labels),
    }
}

/// Accuracies of all methods under one setting.
struct Scores<'a> {
    cells: &'a [Cell],
    /// Queries of an episode.
    queries: usize,
}

impl Scores<'_> {
    fn percent(&self, method: usize) -> impl ExactSizeIterator<Item = f64> + Clone + '_ {
        let queries = self.queries as f64;
        self.cells[method].correct.iter().map(move |&correct| 100.0 * f64::from(correct) / queries)
    }

    fn accuracy(&self, method: usize) -> Option<Estimate> {
        if self.queries > 0 { Estimate::of(self.percent(method)) } else { None }
    }

    fn difference(&self, method: usize, against: usize) -> Option<Estimate> {
        let pairs = self.percent(method).zip(self.percent(against));
        if self.queries > 0 { Estimate::of(pairs.map(|(a, b)| a - b)) } else { None }
    }

    fn gap_closed(&self, method: usize, protonet: usize, oracle: usize) -> Option<f64> {
        let gap = self.difference(oracle, protonet)?;
        let clearly_there = gap.mean > gap.ci95.unwrap_or(f64::INFINITY);
        clearly_there.then_some(self.difference(method, protonet)?.mean / gap.mean)
    }

    fn comparisons(&self, labels: &[&str]) -> Vec<Comparison> {
        let pairs = (0..labels.len()).flat_map(|a| (a + 1..labels.len()).map(move |b| (a, b)));
        let estimates: Vec<_> = pairs.filter_map(|(a, b)| Some((a, b, self.difference(a, b)?))).collect();
        let corrected = holm(&estimates.iter().map(|(_, _, d)| d.p_value()).collect::<Vec<_>>());
        let comparison = |(&(a, b, estimate), p_corrected): (&(usize, usize, Estimate), f64)| Comparison {
            method: labels[a].into(),
            against: labels[b].into(),
            difference: rounded(estimate.mean),
            ci95: estimate.ci95.map(rounded),
            p: estimate.p_value(),
            p_corrected,
        };
        estimates.iter().zip(corrected).map(comparison).collect()
    }
}

fn per_class(embeddings: &Embeddings, cell: &Cell) -> Vec<ClassAccuracy> {
    let rows = cell.confusion.chunks(embeddings.classes().len()).zip(embeddings.classes());
    let accuracy = |(place, (row, class)): (usize, (&[u64], &String))| {
        let queries: u64 = row.iter().sum();
        let accuracy = 100.0 * row[place] as f64 / queries.max(1) as f64;
        ClassAccuracy { class: class.clone(), queries, accuracy: rounded(accuracy) }
    };
    rows.enumerate().map(accuracy).collect()
}

fn rounded_detection(found: Detection) -> Detection {
    Detection {
        auroc: rounded(found.auroc),
        average_precision: rounded(found.average_precision),
        calibration_error: found.calibration_error.map(rounded),
        ..found
    }
}

/// Four decimals: more would be noise in every figure here.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}
