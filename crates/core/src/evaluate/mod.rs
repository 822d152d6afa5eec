//! Evaluations: the accuracy of few-shot methods on episodes drawn from embeddings (labelled feature vectors). An
//! episode is a small classification problem: a few classes, a support set of a few labelled items per class, and
//! queries to classify. A noise setting is a type and level of wrong labels in the support set.
//!
//! Start with [`Evaluation::of`]:
//!
//! ```
//! use trueshot::{Embeddings, Evaluation};
//!
//! // Five classes of thirty points with eight values; in class c, value c is larger by 3. `Embeddings::open` reads a
//! // file instead.
//! let value = |i: usize| ((i * 7919) % 997) as f32 / 400.0 + if i / (8 * 30) == i % 8 { 3.0 } else { 0.0 };
//! let labels = (0..150).map(|row| format!("class {}", row / 30)).collect();
//! let rows = Embeddings::from_rows((0..150 * 8).map(value).collect(), 8, labels)?;
//!
//! let evaluation = Evaluation::of(&rows).noise("symmetric=40")?.methods("protonet,median:eps=0.1")?;
//! let evaluation = evaluation.episodes(100).run()?;
//! let [protonet, median] = &evaluation.settings[0].methods[..] else { unreachable!() };
//! assert!(median.accuracy > protonet.accuracy);
//! # Ok::<(), trueshot::Error>(())
//! ```
//!
//! The result is an [`Evaluation`]: a [`SettingResult`] per noise setting, with a [`MethodResult`] per method. Callers
//! that draw episodes in their own way describe them by an [`Experiment`] and call [`evaluate`].
//!
//! All methods, noise types and levels of one evaluation use the same episodes, so differences between methods are
//! paired. Episodes run in parallel and their outcomes are added in the order of their indices, so the result does not
//! depend on the number of threads. They run in rounds; after each round the progress is reported, and an evaluation
//! that is stopped there is valid and has fewer episodes.

mod builder;
mod detection;
mod episode_runner;
mod statistics;
mod tally;

pub use builder::{DEFAULT_BASELINE, EvaluationBuilder};
pub use detection::Detection;
pub use statistics::{Estimate, holm};
pub use tally::{
    ClassAccuracy, Comparison, Difference, Evaluation, FailedMethod, MethodResult, SettingResult, Source,
};

use std::ops::Range;
use std::time::{Duration, Instant};

use rayon::prelude::*;

use crate::embeddings::Embeddings;
use crate::episode::{DrawnEpisode, EpisodeData, Episodes};
use crate::error::{Error, Result};
use crate::method::NamedMethod;
use crate::progress::Progress;
use crate::rng::IndexSampler;
#[cfg(feature = "train")]
pub(crate) use episode_runner::fetch;
use episode_runner::{EpisodeRunner, classify_rows};
use tally::Tally;

/// The parts of an evaluation, for callers that draw episodes in their own way; others use [`Evaluation::of`].
///
/// ```
/// use trueshot::episode::{EpisodeSpec, Sampler};
/// use trueshot::evaluate::{Details, Experiment, evaluate};
/// use trueshot::{Embeddings, Noise, NoiseKind, Registry};
///
/// let labels = (0..60).map(|row| format!("class {}", row / 20)).collect();
/// let data = Embeddings::from_rows((0..60).map(|row| (row / 20) as f32).collect(), 1, labels)?;
/// let spec = EpisodeSpec { ways: 3, shots: 2.into(), queries: 4, seed: 0 };
/// let sampler = Sampler::new(&data, None, spec, vec![Noise { kind: NoiseKind::Symmetric, level: 0.0 }])?;
/// let experiment = Experiment {
///     embeddings: &data,
///     outliers: None,
///     episodes: &sampler,
///     count: 10,
///     methods: &Registry::default().parse_all(&["protonet"])?,
///     baseline: "protonet",
///     details: Details::default(),
/// };
/// let evaluation = evaluate(&experiment, &())?;
/// assert_eq!(evaluation.settings[0].methods[0].accuracy, Some(100.0));
/// # Ok::<(), trueshot::Error>(())
/// ```
pub struct Experiment<'a> {
    /// The labelled rows that episodes are drawn from.
    pub embeddings: &'a Embeddings,
    /// Rows of other classes, for outlier noise. If `None`, outliers are of classes that are not in the episode.
    pub outliers: Option<&'a Embeddings>,
    /// The source of the episodes and their noise settings, usually a [`Sampler`](crate::episode::Sampler).
    pub episodes: &'a dyn Episodes,
    /// The number of episodes, 1 or more.
    pub count: u64,
    /// The methods to evaluate, with the labels they have in the result.
    pub methods: &'a [NamedMethod],
    /// The label of the method that the others are compared to. If no method has this label, there are no differences.
    pub baseline: &'a str,
    /// What to report beyond accuracies.
    pub details: Details,
}

/// What to report beyond accuracies; nothing by default.
///
/// ```
/// use trueshot::evaluate::Details;
/// use trueshot::{Embeddings, Evaluation};
///
/// let labels = (0..60).map(|row| format!("class {}", row / 20)).collect();
/// let data = Embeddings::from_rows((0..60).map(|row| (row / 20) as f32).collect(), 1, labels)?;
/// let details = Details { per_class: true, confusion: true };
/// let evaluation = Evaluation::of(&data).methods("protonet")?.noise("symmetric=0")?.ways(3).episodes(10);
/// let evaluation = evaluation.shots(2).queries(4).details(details).run()?;
/// let protonet = &evaluation.settings[0].methods[0];
/// assert_eq!(protonet.per_class.as_ref().unwrap()[0].accuracy, 100.0);
/// assert_eq!(protonet.confusion.as_ref().unwrap()[0], [40, 0, 0]);
/// # Ok::<(), trueshot::Error>(())
/// ```
#[derive(Debug, Clone, Copy, Default)]
pub struct Details {
    /// Report the accuracy on every class of the data ([`MethodResult::per_class`]).
    pub per_class: bool,
    /// Report how often queries of one class were predicted as another ([`MethodResult::confusion`]).
    pub confusion: bool,
}

/// The largest number of episodes in a round, that is between two progress updates. Row classifiers (methods that hold
/// the data themselves, for instance on a GPU) get the episodes of a round in one call per noise setting.
const MAX_ROUND: u64 = 256;
/// The number of episodes per thread in the first round, unless there is a row classifier.
const FIRST_ROUND_PER_THREAD: u64 = 4;
/// The size of rounds is doubled, up to [`MAX_ROUND`], while a round takes less than this.
const SHORT_ROUND: Duration = Duration::from_millis(250);

impl Evaluation {
    /// Starts an evaluation of methods on labelled rows: set options on the builder, then call
    /// [`EvaluationBuilder::run`].
    pub fn of(data: &Embeddings) -> EvaluationBuilder<'_> {
        EvaluationBuilder::new(data)
    }
}

/// Checks that the baseline is the label of one of the methods.
///
/// # Errors
/// [`Error::UnknownBaseline`] with the labels that there are.
pub fn check_baseline(baseline: &str, methods: &[NamedMethod]) -> Result<()> {
    let known: Vec<&str> = methods.iter().map(|method| method.label.as_str()).collect();
    match known.contains(&baseline) {
        true => Ok(()),
        false => Err(Error::UnknownBaseline { baseline: baseline.into(), known: known.join(", ") }),
    }
}

/// Runs an experiment on the threads of the current rayon pool. [`Experiment`] has an example.
///
/// Methods with a row classifier that report [`Error::MethodFailed`] are left out of the result and listed in
/// [`Evaluation::failed`].
///
/// # Errors
/// If the number of episodes is 0, or an episode cannot be drawn or a method fails on it.
pub fn evaluate(experiment: &Experiment<'_>, progress: &dyn Progress) -> Result<Evaluation> {
    let count = experiment.episodes.limit().map_or(experiment.count, |limit| limit.min(experiment.count));
    if count == 0 {
        return Err(Error::OutOfRange {
            what: "the number of episodes",
            given: "0".into(),
            allowed: "1 or more".into(),
        });
    }
    let data = EpisodeData { embeddings: experiment.embeddings, outliers: experiment.outliers };
    let seed = experiment.episodes.spec().seed;
    let run = |runner: &mut EpisodeRunner, drawn: DrawnEpisode| {
        let outcome = runner.run(&data, &drawn, experiment.methods, seed)?;
        Ok((drawn, outcome))
    };
    let draw_and_run = |runner: &mut EpisodeRunner, index: u64| {
        let drawn = experiment.episodes.draw(index, &mut runner.index_sampler)?;
        run(runner, drawn)
    };
    let run_round = |round: Range<u64>| -> Result<Vec<_>> {
        if !experiment.episodes.is_sequential() {
            return round.into_par_iter().map_init(EpisodeRunner::default, draw_and_run).collect();
        }
        // Noise with a state draws its episodes in order; only the methods run in parallel.
        let mut index_sampler = IndexSampler::default();
        let drawn = round.map(|index| experiment.episodes.draw(index, &mut index_sampler));
        let drawn = drawn.collect::<Result<Vec<_>>>()?;
        drawn.into_par_iter().map_init(EpisodeRunner::default, run).collect()
    };
    let row_classifiers = experiment.methods.iter().filter_map(|method| method.method.row_classifier());
    // A round fits into one call of every row classifier.
    let max_tasks = row_classifiers.map(|classifier| classifier.max_tasks().max(1)).min();
    // Without row classifiers, rounds of slow methods are small, so that progress is reported often. The outcome of an
    // episode does not depend on its round.
    let first_round = FIRST_ROUND_PER_THREAD.saturating_mul(rayon::current_num_threads() as u64);
    let mut round_size = max_tasks.unwrap_or(first_round).min(MAX_ROUND);
    let mut tally = Tally::new(experiment);
    let mut done = 0;
    while done < count {
        let start = Instant::now();
        let round = done..(done + round_size).min(count);
        let end = round.end;
        let outcomes = run_round(round).and_then(|mut outcomes| {
            classify_rows(experiment.methods, &mut outcomes, &mut tally.failed)?;
            Ok(outcomes)
        });
        match outcomes {
            // A round that was interrupted does not count; the rounds before it are a valid, shorter evaluation.
            Err(Error::Interrupted) if done > 0 => break,
            outcomes => outcomes?.into_iter().for_each(|(drawn, outcome)| tally.add(&drawn, outcome)),
        }
        done = end;
        if max_tasks.is_none() && start.elapsed() < SHORT_ROUND {
            round_size = (2 * round_size).min(MAX_ROUND);
        }
        if progress.update(done, count).is_break() {
            break;
        }
    }
    Ok(tally.finish(experiment, count))
}
