//! Custom noise types: the trait [`LabelNoise`], which gives the items of an episode's support set (its labelled items)
//! other labels, and [`NoiseName`], the name that results report it under. Start with [`LabelNoise`].

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use crate::embeddings::Embeddings;
use crate::episode::{Episode, EpisodeData};
use crate::error::Result;
use crate::rng::Rng;

use super::NoiseKind;

/// The name of a noise type that is not built in: 1 to 40 characters without commas, equals signs, control characters
/// and spaces at the ends.
///
/// Names are kept until the program ends, so that noise settings are `Copy`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NoiseName(&'static str);

/// The largest number of characters of a name.
const MAX_NAME: usize = 40;

impl NoiseName {
    /// The name, if it is allowed and not that of a built-in noise type.
    ///
    /// # Errors
    /// A message that says what is allowed.
    pub fn new(name: &str) -> Result<Self, String> {
        static KNOWN: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());
        if NoiseKind::built_in(name).is_ok() {
            return Err(format!("'{name}' is the name of a built-in noise type; choose another name"));
        }
        let is_allowed = |character: char| !character.is_control() && !matches!(character, ',' | '=');
        let is_trimmed = name.trim() == name && !name.is_empty();
        if !is_trimmed || name.chars().count() > MAX_NAME || !name.chars().all(is_allowed) {
            return Err(format!(
                "'{}' cannot be the name of a noise type; allowed: 1 to {MAX_NAME} characters, without commas, equals \
                 signs, control characters and spaces at the ends",
                name.chars().take(MAX_NAME).collect::<String>().escape_debug()
            ));
        }
        let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(&known) = known.get(name) {
            return Ok(NoiseName(known));
        }
        let leaked: &'static str = Box::leak(name.to_owned().into_boxed_str());
        known.insert(leaked);
        Ok(NoiseName(leaked))
    }

    /// The name as text.
    pub fn as_str(self) -> &'static str {
        self.0
    }
}

/// The support set of an episode before a [`LabelNoise`] changes its labels.
pub struct CleanSupport<'a> {
    /// The episode, with its classes and rows.
    pub episode: &'a Episode,
    /// The row of every item in the embeddings, class after class.
    pub rows: Vec<u32>,
    /// The true class of every item, an index into [`Episode::classes`].
    pub labels: Vec<u32>,
    /// The embeddings, and those that outliers are taken from.
    pub data: EpisodeData<'a>,
}

/// The labels that a [`LabelNoise`] gives the items of a support set.
#[derive(Debug, Clone, Default)]
pub struct NoisyLabels {
    /// The given class of every item, an index into [`Episode::classes`], in the order of [`CleanSupport::labels`].
    pub given: Vec<u32>,
    /// Items that are replaced by outliers: the item, and a row of [`EpisodeData::outlier_rows`]. Without a separate
    /// outlier pool, the row must be of a class that is not in the episode.
    pub outliers: Vec<(u32, u32)>,
}

impl From<Vec<u32>> for NoisyLabels {
    fn from(given: Vec<u32>) -> Self {
        NoisyLabels { given, outliers: Vec::new() }
    }
}

/// A custom noise type: a function from the true labels of a support set to the given ones.
///
/// [`Sampler::with_noise`](crate::episode::Sampler::with_noise) and
/// [`EvaluationBuilder::label_noise`](crate::evaluate::EvaluationBuilder::label_noise) add it to the noise settings.
///
/// ```
/// use trueshot::noise::{CleanSupport, LabelNoise, NoisyLabels};
/// use trueshot::rng::Rng;
/// use trueshot::{Embeddings, Evaluation};
///
/// /// The first item of every class gets the label of the next class.
/// struct FirstToNext;
/// impl LabelNoise for FirstToNext {
///     fn name(&self) -> &str {
///         "first to next"
///     }
///
///     fn relabel(&self, support: &CleanSupport<'_>, _rng: &mut Rng) -> trueshot::Result<NoisyLabels> {
///         let ways = support.episode.classes.len() as u32;
///         let mut given = support.labels.clone();
///         for class in 0..ways {
///             let first = support.labels.iter().position(|&label| label == class).unwrap();
///             given[first] = (class + 1) % ways;
///         }
///         Ok(given.into())
///     }
/// }
///
/// let labels = (0..60).map(|row| format!("class {}", row / 20)).collect();
/// let data = Embeddings::from_rows((0..60).map(|row| row as f32).collect(), 1, labels)?;
/// let evaluation = Evaluation::of(&data).label_noise(FirstToNext).methods("protonet")?;
/// let evaluation = evaluation.ways(3).shots(5).queries(4).episodes(10).run()?;
/// assert_eq!(evaluation.settings[0].noise.name(), "first to next");
/// assert_eq!(evaluation.settings[0].wrong_share, 0.2);
/// # Ok::<(), trueshot::Error>(())
/// ```
pub trait LabelNoise: Send + Sync {
    /// The name that results report; see [`NoiseName`] for what is allowed.
    fn name(&self) -> &str;

    /// Gives the items of one support set their labels. `rng` is the random stream of this noise in this episode.
    ///
    /// Every class must have at least one item afterwards.
    fn relabel(&self, support: &CleanSupport<'_>, rng: &mut Rng) -> Result<NoisyLabels>;

    /// Checks once that the noise fits the data that episodes are drawn from.
    fn check(&self, _data: &Embeddings) -> Result<()> {
        Ok(())
    }

    /// The expected share of wrong labels, which manifests declare; results have the measured share instead.
    fn expected_share(&self) -> f64 {
        0.0
    }

    /// Whether episodes must be drawn one after the other, in the order of their numbers, because the noise has a
    /// state.
    fn is_sequential(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_names_are_one_noise_type() {
        assert_eq!(NoiseName::new("mine").unwrap(), NoiseName::new("mine").unwrap());
        assert_ne!(NoiseName::new("mine").unwrap(), NoiseName::new("yours").unwrap());
        let kind: NoiseKind = serde_json::from_str("\"mine\"").unwrap();
        assert_eq!(kind, NoiseKind::Named(NoiseName::new("mine").unwrap()));
        assert_eq!(serde_json::to_string(&kind).unwrap(), "\"mine\"");
    }

    #[test]
    fn names_that_cannot_be_reported_are_refused() {
        for name in ["", " ", "a ", "a,b", "a=b", "line\nbreak", &"x".repeat(41)] {
            assert!(NoiseName::new(name).unwrap_err().contains("allowed: 1 to 40 characters"), "{name}");
        }
        assert!(NoiseName::new("paired").unwrap_err().contains("built-in"));
    }
}
