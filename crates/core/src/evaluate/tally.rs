//! Results of evaluations: [`Evaluation`] with its parts, and the accumulator that turns the outcomes of episodes into
//! them.
//!
//! Start with [`Evaluation`]. Its fields are the keys of the JSON report. An evaluation runs methods on many episodes
//! (small classification problems with labelled items, the support set, and queries) under several noise settings
//! (types and levels of wrong labels). [`evaluate`](super::evaluate) passes the outcome of each episode to
//! `Tally::add`, and `Tally::finish` computes means, confidence intervals, paired differences and detection figures.

use serde::Serialize;

use super::detection::Detection;
use super::episode_runner::{EpisodeOutcome, Outcome};
use super::statistics::{Estimate, holm};
use super::{Details, Experiment};
use crate::embeddings::Embeddings;
use crate::episode::{DrawnEpisode, Item, Shots};
use crate::method::NamedMethod;
use crate::noise::{Noise, NoiseKind};

/// The result of an evaluation. [`Evaluation::of`] starts one; `Display` prints it as a table.
#[derive(Debug, Clone, Serialize)]
pub struct Evaluation {
    /// The random seed of the episodes.
    pub seed: u64,
    /// The data that episodes were drawn from.
    pub embeddings: Source,
    /// The data that outlier noise was drawn from. If it is `embeddings`, outliers were of classes that were not in the
    /// episode.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outliers: Option<Source>,
    /// The SHA-256 hash of the episode manifest, if episodes were read from one instead of drawn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub manifest: Option<String>,
    /// The label of the method that the others are compared to.
    pub baseline: String,
    /// Whether the evaluation was stopped before all episodes were done.
    pub interrupted: bool,
    /// The version of trueshot that ran the evaluation.
    pub version: &'static str,
    /// The instruction set that was used, such as `avx2`; others may round differently.
    pub instructions: &'static str,
    /// The GPU that classified the episodes of methods that take images; `None` if all methods ran on the CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// Methods that failed and are therefore not in the results.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<FailedMethod>,
    /// The results, one entry per noise type and level.
    pub settings: Vec<SettingResult>,
}

/// A method that failed during an evaluation.
#[derive(Debug, Clone, Serialize)]
pub struct FailedMethod {
    /// The label of the method.
    pub method: String,
    /// The number of the episode in which it failed, from 0.
    pub episode: u64,
    /// What went wrong.
    pub problem: String,
}

impl Evaluation {
    /// Sentences about what a reader of the results must know: noise that is not what its type and level say, noise
    /// that changed no label, and methods that failed.
    pub fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.settings.iter().flat_map(SettingResult::notes).collect();
        notes.extend(self.failed.iter().map(|failed| {
            let FailedMethod { method, episode, problem } = failed;
            format!("{method} is left out: it failed in episode {episode} ({problem})")
        }));
        notes
    }
}

/// A description of the data of an evaluation.
#[derive(Debug, Clone, Serialize)]
pub struct Source {
    /// The file it was read from; `None` for data in memory.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The fingerprint of its contents, in hexadecimal digits.
    pub fingerprint: String,
    /// The number of rows.
    pub rows: usize,
    /// The dimension: numbers per row.
    pub dim: usize,
    /// The number of classes.
    pub classes: usize,
    /// The name of the network that computed the rows, if the file contains it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backbone: Option<String>,
}

/// The results under one noise setting.
#[derive(Debug, Clone, Serialize)]
pub struct SettingResult {
    /// The noise type.
    pub noise: NoiseKind,
    /// The declared share of wrong labels, 0 to 1. For a custom noise type, the measured share.
    pub level: f64,
    /// The measured share of wrong labels in the support sets, 0 to 1.
    pub wrong_share: f64,
    /// The number of episodes of a manifest that declare paired noise but have other noise; serialised only if there
    /// are any.
    #[serde(skip_serializing_if = "is_zero")]
    pub unpaired_episodes: usize,
    /// The number of classes per episode.
    pub ways: usize,
    /// The number of labelled items per class, serialised as a number or as both ends of a range.
    #[serde(serialize_with = "number_or_range")]
    pub shots: Shots,
    /// The number of queries per class.
    pub queries: usize,
    /// The number of episodes.
    pub episodes: usize,
    /// The results, one entry per method.
    pub methods: Vec<MethodResult>,
    /// Paired comparisons of all pairs of methods, with p-values corrected for their number.
    pub significance: Vec<Comparison>,
}

/// The difference between the declared and the measured share of wrong labels above which there is a note: half a
/// percentage point.
const SHARE_TOLERANCE: f64 = 0.005;

impl SettingResult {
    /// Sentences about wrong labels that are not those of the declared noise.
    fn notes(&self) -> impl Iterator<Item = String> {
        self.share_note().into_iter().chain(self.pairs_note())
    }

    /// A sentence about paired noise whose wrong labels are not in pairs of classes.
    fn pairs_note(&self) -> Option<String> {
        let SettingResult { unpaired_episodes, episodes, .. } = *self;
        (unpaired_episodes > 0).then(|| {
            format!(
                "the manifest declares paired noise, but in {unpaired_episodes} of {episodes} episodes the wrong labels \
                 are not in pairs of classes"
            )
        })
    }

    /// A sentence about a share of wrong labels that differs from the level, or about noise that changed no label.
    fn share_note(&self) -> Option<String> {
        let SettingResult { noise, level, wrong_share, episodes, .. } = *self;
        let percent = |share: f64| (share * 1e4).round() / 1e2;
        if matches!(noise, NoiseKind::Named(_)) && wrong_share == 0.0 && episodes > 0 {
            return Some(format!("{noise} noise changed no label: no label is wrong under it"));
        }
        let is_without_noise = level > 0.0 && wrong_share == 0.0;
        let differs = ((level - wrong_share).abs() > SHARE_TOLERANCE || is_without_noise) && episodes > 0;
        differs.then(|| {
            format!(
                "under {noise} noise of {} %, {} % of the labels are wrong",
                percent(level),
                percent(wrong_share)
            )
        })
    }
}

fn is_zero(number: &usize) -> bool {
    *number == 0
}

/// Serialises equal ends as one number, others as an array of two.
fn number_or_range<S: serde::Serializer>(shots: &Shots, serializer: S) -> Result<S::Ok, S::Error> {
    if shots.min == shots.max {
        shots.min.serialize(serializer)
    } else {
        [shots.min, shots.max].serialize(serializer)
    }
}

/// The result of one method under one noise setting. Accuracies are in percent.
#[derive(Debug, Clone, Serialize)]
pub struct MethodResult {
    /// The label of the method, such as `median:eps=0.1`.
    pub method: String,
    /// Whether the method classifies all queries of an episode together; serialised only if it does.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub transductive: bool,
    /// The mean accuracy over all episodes; `None` if episodes have no queries.
    pub accuracy: Option<f64>,
    /// The half-width of the 95 % confidence interval of the accuracy; `None` for a single episode.
    pub ci95: Option<f64>,
    /// The difference from the baseline on the same episodes; `None` for the baseline itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difference: Option<Difference>,
    /// How much of the gap between `protonet` (0) and `oracle` (1) the method closes. `None` if either is not evaluated
    /// or the gap is not significant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gap_closed: Option<f64>,
    /// How well the method finds wrong labels, if it assesses labels.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detection: Option<Detection>,
    /// The accuracy on every class of the data, if [`Details::per_class`] is set.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_class: Option<Vec<ClassAccuracy>>,
    /// `confusion[a][b]` is the number of queries of class a that were predicted as class b, if [`Details::confusion`]
    /// is set. Classes are indices into the class names of the data.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub confusion: Option<Vec<Vec<u64>>>,
}

/// The paired difference in accuracy of a method and the baseline, in percentage points.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Difference {
    /// The mean over all episodes; positive if the method is better.
    pub mean: f64,
    /// The half-width of the 95 % confidence interval; `None` for a single episode.
    pub ci95: Option<f64>,
}

/// The accuracy of a method on one class.
#[derive(Debug, Clone, Serialize)]
pub struct ClassAccuracy {
    /// The name of the class.
    pub class: String,
    /// The number of queries of the class in all episodes.
    pub queries: u64,
    /// The percentage of these queries that were classified correctly.
    pub accuracy: f64,
}

/// A paired comparison of two methods on the same episodes.
#[derive(Debug, Clone, Serialize)]
pub struct Comparison {
    /// The label of the first method.
    pub method: String,
    /// The label of the second method.
    pub against: String,
    /// The mean accuracy of the first minus that of the second, in percentage points.
    pub difference: f64,
    /// The half-width of the 95 % confidence interval of the difference; `None` for a single episode.
    pub ci95: Option<f64>,
    /// The two-sided p-value of the difference.
    pub p: f64,
    /// The p-value corrected for the number of pairs (see [`holm`]).
    pub p_corrected: f64,
}

/// The collected outcomes of one method under one noise setting.
#[derive(Default)]
struct Cell {
    /// The number of correct predictions in each episode.
    correct: Vec<u32>,
    /// The suspicion scores of all support items of all episodes.
    suspicion: Vec<f32>,
    /// Whether the suspicion scores are probabilities that the label is wrong.
    are_probabilities: bool,
    /// The number of queries by true and predicted class, `[classes, classes]`; empty if the details do not need it.
    confusion: Vec<u64>,
}

/// Collects the outcomes of all episodes of an evaluation.
pub(super) struct Tally {
    /// One cell per noise setting and method, indexed by noise setting, then method.
    cells: Vec<Vec<Cell>>,
    /// For every noise setting, whether the label of each support item was wrong, in the order of [`Cell::suspicion`].
    wrong: Vec<Vec<bool>>,
    /// For every noise setting, [`SettingResult::unpaired_episodes`].
    unpaired: Vec<usize>,
    /// The noise settings.
    noises: Vec<Noise>,
    /// The number of classes of the data.
    classes: usize,
    /// The number of finished episodes.
    episodes: usize,
    /// Methods that failed; their outcomes are placeholders and left out of the result.
    pub failed: Vec<FailedMethod>,
}

impl Tally {
    /// An empty tally with a cell for every noise setting and method.
    pub fn new(experiment: &Experiment<'_>) -> Self {
        let classes = experiment.embeddings.classes().len();
        // The accuracies per class are computed from the confusion counts as well.
        let Details { per_class, confusion } = experiment.details;
        let pairs = if per_class || confusion { classes * classes } else { 0 };
        let cell = || Cell { confusion: vec![0; pairs], ..Cell::default() };
        let settings = experiment.episodes.noises();
        let cells_of_setting = |_: &Noise| experiment.methods.iter().map(|_| cell()).collect();
        Tally {
            cells: settings.iter().map(cells_of_setting).collect(),
            wrong: vec![Vec::new(); settings.len()],
            unpaired: vec![0; settings.len()],
            noises: settings.to_vec(),
            classes,
            episodes: 0,
            failed: Vec::new(),
        }
    }

    /// Adds the outcome of one episode.
    pub fn add(&mut self, drawn: &DrawnEpisode, outcome: EpisodeOutcome) {
        self.episodes += 1;
        for (wrong, support) in self.wrong.iter_mut().zip(&drawn.supports) {
            wrong.extend(support.iter().map(|item| item.is_wrong()));
        }
        let ways = drawn.episode.classes.len();
        for ((unpaired, noise), support) in self.unpaired.iter_mut().zip(&self.noises).zip(&drawn.supports) {
            *unpaired += usize::from(noise.kind == NoiseKind::Paired && !is_paired(support, ways));
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

    /// Computes the result; `planned` is the number of episodes there would be without an interruption.
    pub fn finish(mut self, experiment: &Experiment<'_>, planned: u64) -> Evaluation {
        let done = self.episodes;
        // Keep the methods that did not fail, and their cells.
        let has_failed =
            |method: &NamedMethod| self.failed.iter().any(|failed| failed.method == method.label);
        let methods: Vec<(usize, &NamedMethod)> =
            experiment.methods.iter().enumerate().filter(|(_, method)| !has_failed(method)).collect();
        let take_kept = |cells: &mut Vec<Cell>| -> Vec<Cell> {
            methods.iter().map(|&(position, _)| std::mem::take(&mut cells[position])).collect()
        };
        let cells: Vec<Vec<Cell>> = self.cells.iter_mut().map(take_kept).collect();
        let methods: Vec<&NamedMethod> = methods.into_iter().map(|(_, method)| method).collect();
        let settings = self.noises.iter().zip(&self.unpaired).zip(cells.iter().zip(&self.wrong));
        let settings: Vec<SettingResult> = settings
            .map(|((&noise, &unpaired_episodes), (cells, wrong))| SettingResult {
                episodes: done,
                unpaired_episodes,
                ..setting_result(experiment, &methods, noise, cells, wrong)
            })
            .collect();
        // With outlier noise but without a separate outlier pool, outliers were rows of the data itself.
        let is_outlier = |noise: &Noise| noise.kind == NoiseKind::Outlier && noise.level > 0.0;
        let own_outliers =
            experiment.episodes.noises().iter().any(is_outlier).then_some(experiment.embeddings);
        Evaluation {
            seed: experiment.episodes.spec().seed,
            embeddings: source(experiment.embeddings),
            outliers: experiment.outliers.or(own_outliers).map(source),
            manifest: experiment.episodes.manifest_hash().map(str::to_string),
            baseline: experiment.baseline.into(),
            interrupted: (done as u64) < planned,
            version: env!("CARGO_PKG_VERSION"),
            instructions: trueshot_nn::Isa::current().name(),
            device: None,
            failed: self.failed,
            settings,
        }
    }
}

/// Whether the wrong labels are those of paired noise: all wrong items under one label belong to one other class, and
/// no other label has wrong items of that class. `ways` is the number of classes.
fn is_paired(support: &[Item], ways: usize) -> bool {
    // For every given class the true class of its wrong items, and for every true class the given class of its wrong
    // items; `None` before the first such item.
    let (mut truths, mut givens) = (vec![None; ways], vec![None; ways]);
    support.iter().filter(|item| item.is_wrong()).all(|item| {
        item.truth.is_some_and(|truth| {
            *truths[item.given as usize].get_or_insert(truth) == truth
                && *givens[truth as usize].get_or_insert(item.given) == item.given
        })
    })
}

/// Adds the queries of one episode to the confusion counts `[classes, classes]` of true and predicted classes of the
/// data. Predictions are classes of the episode, which `drawn` maps to classes of the data.
fn count_confusion(confusion: &mut [u64], classes: usize, drawn: &DrawnEpisode, outcome: &Outcome) {
    let draws = &drawn.episode.classes;
    let truth = draws.iter().flat_map(|draw| std::iter::repeat_n(draw.class, draw.queries.len()));
    for (truth, &prediction) in truth.zip(&outcome.predictions) {
        confusion[truth as usize * classes + draws[prediction as usize].class as usize] += 1;
    }
}

/// The description of embeddings in a result.
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

/// The result under one noise setting, from one cell per method. `wrong` says for every support item of all episodes
/// whether its label was wrong. The caller fills in `episodes` and `unpaired_episodes`.
fn setting_result(
    experiment: &Experiment<'_>,
    methods: &[&NamedMethod],
    noise: Noise,
    cells: &[Cell],
    wrong: &[bool],
) -> SettingResult {
    let spec = experiment.episodes.spec();
    let scores = Scores { cells, queries: spec.ways * spec.queries };
    let labels: Vec<&str> = methods.iter().map(|method| method.label.as_str()).collect();
    // Methods are given by their indices in `methods`.
    let index_of = |label: &str| labels.iter().position(|&known| known == label);
    let (protonet, oracle, baseline) =
        (index_of("protonet"), index_of("oracle"), index_of(experiment.baseline));
    let results = cells.iter().zip(&labels).enumerate().map(|(index, (cell, &label))| {
        let accuracy = scores.accuracy(index);
        let difference = baseline.filter(|&b| b != index).and_then(|b| scores.difference(index, b));
        MethodResult {
            method: label.to_string(),
            transductive: methods[index].method.is_transductive(),
            accuracy: accuracy.map(|a| rounded(a.mean)),
            ci95: accuracy.and_then(|a| a.ci95).map(rounded),
            difference: difference.map(|d| Difference { mean: rounded(d.mean), ci95: d.ci95.map(rounded) }),
            gap_closed: protonet.zip(oracle).and_then(|(p, o)| scores.gap_closed(index, p, o)).map(rounded),
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
    let wrong_labels = wrong.iter().filter(|&&wrong| wrong).count();
    let wrong_share = rounded(wrong_labels as f64 / wrong.len().max(1) as f64);
    SettingResult {
        noise: noise.kind,
        level: if matches!(noise.kind, NoiseKind::Named(_)) { wrong_share } else { noise.level },
        wrong_share,
        unpaired_episodes: 0,
        ways: spec.ways,
        shots: spec.shots,
        queries: spec.queries,
        episodes: 0,
        methods: results.collect(),
        significance: scores.comparisons(&labels),
    }
}

/// Accuracies of all methods under one noise setting.
struct Scores<'a> {
    /// Indexed by method.
    cells: &'a [Cell],
    /// The number of queries per episode.
    queries: usize,
}

impl Scores<'_> {
    /// The accuracy of a method in each episode, in percent.
    fn percent(&self, method: usize) -> impl ExactSizeIterator<Item = f64> + Clone + '_ {
        let queries = self.queries as f64;
        self.cells[method].correct.iter().map(move |&correct| 100.0 * f64::from(correct) / queries)
    }

    /// The mean accuracy in percent; `None` if episodes have no queries.
    fn accuracy(&self, method: usize) -> Option<Estimate> {
        if self.queries > 0 { Estimate::of(self.percent(method)) } else { None }
    }

    /// The mean over episodes of the accuracy of one method minus that of another, in percentage points; `None` if
    /// episodes have no queries.
    fn difference(&self, method: usize, against: usize) -> Option<Estimate> {
        let pairs = self.percent(method).zip(self.percent(against));
        if self.queries > 0 { Estimate::of(pairs.map(|(a, b)| a - b)) } else { None }
    }

    /// The share of the gap between `protonet` (which trusts all labels) and `oracle` (which knows the wrong ones) that
    /// a method closes; `None` unless the gap is significant: larger than the half-width of its 95 % interval.
    fn gap_closed(&self, method: usize, protonet: usize, oracle: usize) -> Option<f64> {
        let gap = self.difference(oracle, protonet)?;
        let is_significant = gap.mean > gap.ci95.unwrap_or(f64::INFINITY);
        is_significant.then_some(self.difference(method, protonet)?.mean / gap.mean)
    }

    /// All pairs of methods, compared on the same episodes, with p-values corrected for the number of pairs.
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

/// The accuracy on every class of the data, from the confusion counts; 0 for a class without queries.
fn per_class(embeddings: &Embeddings, cell: &Cell) -> Vec<ClassAccuracy> {
    // For every true class the number of its queries by predicted class.
    let counts = cell.confusion.chunks(embeddings.classes().len()).zip(embeddings.classes());
    let accuracy = |(index, (predicted, class)): (usize, (&[u64], &String))| {
        let queries: u64 = predicted.iter().sum();
        let accuracy = 100.0 * predicted[index] as f64 / queries.max(1) as f64;
        ClassAccuracy { class: class.clone(), queries, accuracy: rounded(accuracy) }
    };
    counts.enumerate().map(accuracy).collect()
}

fn rounded_detection(detection: Detection) -> Detection {
    Detection {
        auroc: rounded(detection.auroc),
        average_precision: rounded(detection.average_precision),
        calibration_error: detection.calibration_error.map(rounded),
        ..detection
    }
}

/// Rounds to four decimals; further digits of these results are noise.
fn rounded(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}
