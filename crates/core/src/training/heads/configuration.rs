//! The options for training a head: [`Configuration`] with its sections for data, episodes, validation and optimiser.
//!
//! Start with [`Configuration::relabel`](super::Configuration::relabel) or
//! [`Configuration::tranfs`](super::Configuration::tranfs), which return the defaults, then [`Configuration::settle`]
//! and [`Configuration::check`]. Its fields are the keys of the TOML file. Lengths of phases, such as the warm-up of
//! the learning rate, are shares of the run, so changing the number of steps stretches the whole schedule.
//!
//! "Ways" are the classes of an episode, "shots" the labelled items per class. Noise is the deliberate replacement of
//! support items by items of other classes; its level is the percentage of the shots that are replaced.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::episode::Shots;
use crate::error::Result;
use crate::noise::{NoiseKind, NoiseLevels};
use crate::ranges::{at_least, require};
use crate::training::Optimiser;

/// All options for training a head; `M` are the architecture options of the head.
///
/// ```
/// use trueshot::training::configuration::read_table;
/// use trueshot::training::heads::Configuration;
///
/// let defaults = Configuration::relabel();
/// let given = "steps = 500\n[episodes]\nways = ['3-10']".parse().unwrap();
/// let configuration = read_table(&defaults, given)?;
/// assert_eq!((configuration.steps, configuration.seed), (500, 0));
/// assert_eq!(configuration.episodes.ways[0].to_string(), "3-10");
/// # Ok::<(), trueshot::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration<M> {
    /// The random seed, 0 to 2^63 - 1. The same seed gives the same model.
    pub seed: u64,
    /// The number of training steps, each of which is one update of the parameters.
    pub steps: u64,
    /// The number of parts, 1 to 256, into which the episodes of a step are divided. At most this number of
    /// threads work on a step. Unlike the number of threads, it changes the result.
    pub parts: usize,
    /// The model file whose parameters training starts with; empty for random initial parameters.
    pub from: PathBuf,
    /// The files with training and validation data.
    pub data: Data,
    /// The training episodes.
    pub episodes: Episodes,
    /// The validation during training.
    pub validation: Validation,
    /// The optimiser and the learning-rate schedule.
    pub optimiser: Optimiser,
    /// The architecture of the head.
    pub model: M,
}

/// The embeddings files for training and validation.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// Embeddings to train on.
    pub train: Vec<PathBuf>,
    /// Embeddings of other classes, from which outlier noise is drawn, one file for each file of `train`. No file:
    /// outliers are items of training classes that are not in the episode.
    pub outliers: Vec<PathBuf>,
    /// Embeddings to validate on; without any there is no validation.
    pub validation: Vec<PathBuf>,
    /// The outliers for validation, one file for each file of `validation`. No file: items of the training classes.
    pub validation_outliers: Vec<PathBuf>,
}

/// Options of the training episodes. Each episode draws its ways, its shots, a noise type and a noise level at random.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Episodes {
    /// The number of episodes per step.
    pub per_step: usize,
    /// The numbers of classes per episode to draw from.
    pub ways: Vec<CountRange>,
    /// The numbers of labelled items per class to draw from; if a range is drawn, every class draws its own number from
    /// it.
    pub shots: Vec<CountRange>,
    /// The number of queries per class.
    pub queries: usize,
    /// Noise types with their levels; a type listed twice is twice as likely. Levels that are impossible with the shots
    /// of an episode are not drawn there.
    pub noise: Vec<NoiseLevels>,
    /// The share (0 to 1) of classes whose items are blended with items of another class, and of outliers blended with
    /// another outlier. Blends are new classes, which keep a head from memorising the real ones.
    #[serde(default)]
    pub blended: f64,
    /// The share (0 to 1) of episodes with mixed noise, as people make it: some wrong items become outliers whatever
    /// the noise type, and some become clean again, so that classes differ in their noise.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mixed: f64,
}

/// Whether a share is 0. Then it is not serialised, so that runs started before the option existed can be resumed.
fn is_zero(share: &f64) -> bool {
    *share == 0.0
}

/// Options of the validation during training. The score is the mean accuracy over all combinations of file, ways, shots
/// and noise setting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Validation {
    /// The number of steps between two validations.
    pub every: u64,
    /// The number of episodes per combination.
    pub episodes: u64,
    /// The numbers of classes per episode; empty: as in training.
    pub ways: Vec<CountRange>,
    /// The numbers of labelled items per class; empty: as in training.
    pub shots: Vec<CountRange>,
    /// The number of queries per class.
    pub queries: usize,
    /// Noise types and levels; empty: as in training.
    pub noise: Vec<NoiseLevels>,
    /// The seed of the validation episodes, which are the same in every validation.
    pub seed: u64,
}

/// A count or a range of counts, both ends included, written `5` or `"3-10"`.
///
/// ```
/// use trueshot::training::heads::configuration::CountRange;
///
/// assert_eq!("3-10".parse(), Ok(CountRange { min: 3, max: 10 }));
/// assert_eq!("5".parse(), Ok(CountRange::exactly(5)));
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountRange {
    /// The smallest count.
    pub min: usize,
    /// The largest count.
    pub max: usize,
}

impl CountRange {
    /// The range that contains only `number`.
    pub fn exactly(number: usize) -> Self {
        CountRange { min: number, max: number }
    }
}

impl From<CountRange> for Shots {
    fn from(range: CountRange) -> Self {
        Shots { min: range.min, max: range.max }
    }
}

impl std::fmt::Display for CountRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Shots::from(*self).fmt(f)
    }
}

impl std::str::FromStr for CountRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| {
            text.trim().parse().map_err(|_| format!("'{text}' is neither a number nor a range such as 3-10"))
        };
        match text.split_once('-') {
            Some((min, max)) => Ok(CountRange { min: number(min)?, max: number(max)? }),
            None => number(text).map(CountRange::exactly),
        }
    }
}

impl Serialize for CountRange {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.min == self.max { self.min.serialize(serializer) } else { serializer.collect_str(self) }
    }
}

impl<'de> Deserialize<'de> for CountRange {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a number or a range such as \"3-10\"")]
        enum NumberOrText {
            Number(usize),
            Text(String),
        }
        match NumberOrText::deserialize(deserializer)? {
            NumberOrText::Number(number) => Ok(CountRange::exactly(number)),
            NumberOrText::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

impl<M> Configuration<M> {
    /// Fills in options that follow from others: empty lists of `validation` are copied from `episodes`, and outliers
    /// for validation come from the training data if none are given ([`training_outliers`]).
    pub fn settle(&mut self) {
        let (episodes, validation, data) = (&self.episodes, &mut self.validation, &mut self.data);
        if validation.ways.is_empty() {
            validation.ways = episodes.ways.clone();
        }
        if validation.shots.is_empty() {
            validation.shots = episodes.shots.clone();
        }
        if validation.noise.is_empty() {
            validation.noise = episodes.noise.clone();
        }
        if data.validation_outliers.is_empty() && has_outliers(&validation.noise) {
            data.validation_outliers = training_outliers(&data.train, data.validation.len());
        }
    }

    /// Checks that all options are in their ranges.
    ///
    /// # Errors
    /// [`Error::OutOfRange`](crate::Error::OutOfRange) with the name of the option and the allowed values.
    pub fn check(&self) -> Result<()> {
        self.data.check()?;
        at_least("steps", self.steps as usize, 1)?;
        require("parts", self.parts, (1..=256).contains(&self.parts), "1 to 256")?;
        require("seed", self.seed, i64::try_from(self.seed).is_ok(), "0 to 2^63 - 1")?;
        let episodes = &self.episodes;
        at_least("episodes.per_step", episodes.per_step, 1)?;
        at_least("episodes.queries", episodes.queries, 1)?;
        let is_share = (0.0..=1.0).contains(&episodes.blended);
        require("episodes.blended", episodes.blended, is_share, "a share from 0 to 1")?;
        let is_share = (0.0..=1.0).contains(&episodes.mixed);
        require("episodes.mixed", episodes.mixed, is_share, "a share from 0 to 1")?;
        check_ranges("episodes.ways", &episodes.ways, 2)?;
        check_ranges("episodes.shots", &episodes.shots, 1)?;
        check_list("episodes.noise", &episodes.noise)?;
        let validation = &self.validation;
        at_least("validation.every", validation.every as usize, 1)?;
        at_least("validation.episodes", validation.episodes as usize, 1)?;
        at_least("validation.queries", validation.queries, 1)?;
        check_ranges("validation.ways", &validation.ways, 2)?;
        check_ranges("validation.shots", &validation.shots, 1)?;
        check_list("validation.noise", &validation.noise)?;
        self.optimiser.check()
    }
}

impl Data {
    /// Checks that there is training data, and that outliers, if they are given, are given for all of it.
    fn check(&self) -> Result<()> {
        check_list("data.train", &self.train)?;
        let pairs = [
            ("data.outliers", &self.outliers, &self.train),
            ("data.validation_outliers", &self.validation_outliers, &self.validation),
        ];
        for (what, outliers, data) in pairs {
            let is_allowed = outliers.is_empty() || outliers.len() == data.len();
            let allowed = format!("none or {}, one for each file of data", data.len());
            require(what, format!("{} files", outliers.len()), is_allowed, &allowed)?;
        }
        Ok(())
    }
}

/// Whether outlier noise is among the noise.
fn has_outliers(noise: &[NoiseLevels]) -> bool {
    let mut all = noise.iter().flat_map(|levels| &levels.0);
    all.any(|noise| noise.kind == NoiseKind::Outlier && noise.level > 0.0)
}

/// The outliers for each of `validation` data sets if none are given: the training data, so that neither validation nor
/// test classes are used up. Each validation data set gets the training data set at the same position, or the only one.
/// If there are several and their numbers differ, the result is empty: then outliers are items of validation classes
/// that are not in the episode.
pub fn training_outliers<T: Clone>(train: &[T], validation: usize) -> Vec<T> {
    match train {
        [only] => vec![only.clone(); validation],
        _ if train.len() == validation => train.to_vec(),
        _ => Vec::new(),
    }
}

/// The largest count in the ranges; 0 if there are no ranges.
pub(super) fn largest_count(ranges: &[CountRange]) -> usize {
    ranges.iter().map(|range| range.max).max().unwrap_or(0)
}

/// Checks that a list is not empty.
fn check_list<T>(what: &'static str, list: &[T]) -> Result<()> {
    require(what, "an empty list", !list.is_empty(), "one or more entries")
}

/// Checks that all ranges are within `min` to 1000.
fn check_ranges(what: &'static str, ranges: &[CountRange], min: usize) -> Result<()> {
    check_list(what, ranges)?;
    let invalid = ranges.iter().find(|range| range.min < min || range.max < range.min || range.max > 1000);
    let allowed = format!("numbers from {min} to 1000, or ranges of them such as 3-10");
    invalid.map_or(Ok(()), |range| require(what, range, false, &allowed))
}
