//! Evaluations: the accuracy of methods on noisy episodes drawn from embeddings.
//!
//! Start with [`Evaluation::of`]:
//!
//! ```
//! use trueshot::{Embeddings, Evaluation};
//!
//! // Five classes of thirty points; `Embeddings::open` reads a file instead.
//! let value = |i: usize| ((i * 7919) % 997) as f32 / 400.0 + if i / (8 * 30) == i % 8 { 3.0 } else { 0.0 };
//! let labels = (0..150).map(|row| format!("class {}", row / 30)).collect();
//! let rows = Embeddings::from_rows((0..150 * 8).map(value).collect(), 8, labels)?;
//!
//! let evaluation = Evaluation::of(&rows).noise("symmetric=40")?.methods("protonet,median:eps=0.1")?.episodes(100).run()?;
//! let [protonet, median] = &evaluation.settings[0].methods[..] else { unreachable!() };
//! assert!(median.accuracy > protonet.accuracy);
//! # Ok::<(), trueshot::Error>(())
//! ```
//!
//! All methods, noise types and levels of one evaluation use the same episodes, so their differences are paired.
//!
//! Episodes run in parallel and their outcomes are added in the order of their numbers, so the result does not depend on
//! the number of threads. Episodes are run in rounds; after each round the progress is reported, and
//! an evaluation that is stopped there is valid and shorter.

mod builder;
mod detection;
mod episode_runner;
mod statistics;
mod tally;

pub use builder::{DEFAULT_BASELINE, EvaluationBuilder};
pub use detection::Detection;
pub use statistics::{Estimate, holm};
pub use tally::{ClassAccuracy, Comparison, Difference, Evaluation, MethodResult, SettingResult, Source};

use rayon::prelude::*;

use crate::embeddings::Embeddings;
use crate::episode::{EpisodeData, Episodes};
use crate::error::{Error, Result};
use crate::method::NamedMethod;
use crate::progress::Progress;
use episode_runner::EpisodeRunner;
#[cfg(feature = "train")]
pub(crate) use episode_runner::fetch;
use tally::Tally;

/// The parts of an evaluation, for callers that draw episodes in their own way; others use [`Evaluation::of`].
pub struct Experiment<'a> {
    /// The data.
    pub embeddings: &'a Embeddings,
    /// Items of classes outside the data.
    pub outliers: Option<&'a Embeddings>,
    /// Where episodes come from, and the noise settings.
    pub episodes: &'a dyn Episodes,
    /// How many episodes.
    pub count: u64,
    /// The methods.
    pub methods: &'a [NamedMethod],
    /// What differences are taken against, if it is among the methods.
    pub baseline: &'a str,
    /// What else to report.
    pub details: Details,
}

/// What to report beyond accuracies.
#[derive(Debug, Clone, Copy, Default)]
pub struct Details {
    /// The accuracy on every class of the data.
    pub per_class: bool,
    /// How often queries of one class were taken for another.
    pub confusion: bool,
}

/// Episodes between two progress updates.
const ROUND: u64 = 256;

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

/// Runs an experiment on the threads of the current rayon pool.
pub fn evaluate(experiment: &Experiment<'_>, progress: &dyn Progress) -> Result<Evaluation> {
    let count = experiment.episodes.limit().map_or(experiment.count, |limit| limit.min(experiment.count));
    if count == 0 {
        return Err(Error::OutOfRange {
            what: "the number of episodes",
            given: "0".into(),
            allowed: "1 or more".into(),
        });
    }
    let banks = EpisodeData { embeddings: experiment.embeddings, outliers: experiment.outliers };
    let seed = experiment.episodes.spec().seed;
    let run = |runner: &mut EpisodeRunner, index: u64| {
        let drawn = experiment.episodes.draw(index, &mut runner.urn)?;
        let outcome = runner.run(&banks, &drawn, experiment.methods, seed)?;
        Ok((drawn, outcome))
    };
    let mut tally = Tally::new(experiment);
    let mut done = 0;
    while done < count {
        let round = done..(done + ROUND).min(count);
        done = round.end;
        let outcomes: Vec<_> =
            round.into_par_iter().map_init(EpisodeRunner::default, run).collect::<Result<_>>()?;
        outcomes.into_iter().for_each(|(drawn, outcome)| tally.add(&drawn, outcome));
        if progress.update(done, count).is_break() {
            break;
        }
    }
    Ok(tally.finish(experiment, count))
}
