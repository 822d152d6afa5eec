//! Everything that can be set when a head is trained. Shares are of the whole run, so that a longer run is the
//! same run drawn out.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::episode::Shots;
use crate::error::{Error, Result};
use crate::noise::{NoiseKind, NoiseLevels};
use crate::ranges::{at_least, require};
use crate::training::Optimiser;

/// How to train a head with options `M` of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration<M> {
    /// Same seed, same model.
    pub seed: u64,
    /// Updates of the parameters.
    pub steps: u64,
    /// How many pieces a step's episodes are cut into; threads share them.
    pub parts: usize,
    /// A model to start from; empty for a fresh one.
    pub from: PathBuf,
    /// What to train and validate on.
    pub data: Data,
    /// What training episodes are like.
    pub episodes: Episodes,
    /// How the model is judged on the way.
    pub validation: Validation,
    /// How the parameters are changed.
    pub optimiser: Optimiser,
    /// What the head itself is like.
    pub model: M,
}

/// What to train and validate on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Data {
    /// Embeddings to train on.
    pub train: Vec<PathBuf>,
    /// Embeddings of other classes that outlier noise draws from, one file for each of those.
    pub outliers: Vec<PathBuf>,
    /// Embeddings to validate on.
    pub validation: Vec<PathBuf>,
    /// Their outliers.
    pub validation_outliers: Vec<PathBuf>,
}

/// What training episodes are like. Each draws its ways, its shots, a noise type and a level at random.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Episodes {
    /// Episodes a step.
    pub per_step: usize,
    /// Numbers of classes to choose from.
    pub ways: Vec<CountRange>,
    /// Numbers of labelled items a class to choose from; of a range every class draws its own.
    pub shots: Vec<CountRange>,
    /// Queries a class.
    pub queries: usize,
    /// Noise types and levels; a type listed twice is twice as likely. Levels that are impossible with the
    /// shots drawn are left out there.
    pub noise: Vec<NoiseLevels>,
    /// The share of classes whose items are blended with those of another class, and of outliers blended with
    /// another: classes nobody has seen, for a head that could learn the real ones by heart.
    #[serde(default)]
    pub blended: f64,
    /// The share of episodes whose noise is that of people: some of the wrong items are outliers, whatever its type,
    /// and some places are spared, so that classes differ.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mixed: f64,
}

/// What is not used is not written, so that runs from before it existed can be gone on with.
fn is_zero(share: &f64) -> bool {
    *share == 0.0
}

/// How the model is judged on the way: the mean accuracy over all settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Validation {
    /// Steps between two validations.
    pub every: u64,
    /// Episodes of each.
    pub episodes: u64,
    /// Numbers of classes; none: as in training.
    pub ways: Vec<CountRange>,
    /// Numbers of labelled items; none: as in training.
    pub shots: Vec<CountRange>,
    /// Queries a class.
    pub queries: usize,
    /// Noise types and levels; none: as in training.
    pub noise: Vec<NoiseLevels>,
    /// The seed of the episodes, which are always the same.
    pub seed: u64,
}

/// A number, or a range of numbers: `5`, `"3-10"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CountRange {
    /// The lowest.
    pub min: usize,
    /// The highest.
    pub max: usize,
}

impl CountRange {
    /// One number.
    pub fn exactly(number: usize) -> Self {
        CountRange { min: number, max: number }
    }
}

impl From<CountRange> for Shots {
    fn from(span: CountRange) -> Self {
        Shots { min: span.min, max: span.max }
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
        enum Written {
            Number(usize),
            Text(String),
        }
        match Written::deserialize(deserializer)? {
            Written::Number(number) => Ok(CountRange::exactly(number)),
            Written::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// Noise that was left out because there is nothing to make it of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnusedOptions {
    /// Outlier noise in training.
    pub training: bool,
    /// Outlier noise in validation.
    pub validation: bool,
}

impl<M> Configuration<M> {
    /// Fills in what follows from the rest: validation is like training unless said otherwise, and there is no outlier
    /// noise without outliers unless somebody asks for it.
    pub fn settle(&mut self, defaults: &Configuration<M>) -> UnusedOptions {
        let is_outlier = |levels: &NoiseLevels| levels.0.iter().any(|noise| noise.kind == NoiseKind::Outlier);
        let (episodes, validation, data) = (&mut self.episodes, &mut self.validation, &self.data);
        let mut left_out = UnusedOptions { training: false, validation: false };
        let has_outliers = episodes.noise.iter().any(is_outlier);
        if has_outliers && data.outliers.is_empty() && episodes.noise == defaults.episodes.noise {
            left_out.training = true;
            episodes.noise.retain(|levels| !is_outlier(levels));
        }
        if validation.ways.is_empty() {
            validation.ways = episodes.ways.clone();
        }
        if validation.shots.is_empty() {
            validation.shots = episodes.shots.clone();
        }
        if validation.noise.is_empty() {
            validation.noise = episodes.noise.clone();
            // Where outliers are all there is, leaving them out would leave nothing: that is refused later.
            let has_others = !validation.noise.iter().all(is_outlier);
            let has_outliers = validation.noise.iter().any(is_outlier) && has_others;
            if has_outliers && data.validation_outliers.is_empty() && !data.validation.is_empty() {
                left_out.validation = true;
                validation.noise.retain(|levels| !is_outlier(levels));
            }
        }
        left_out
    }

    /// Refuses numbers that make no sense, with those that would.
    pub fn check(&self) -> Result<()> {
        self.data.check(&self.episodes.noise, &self.validation.noise)?;
        at_least("steps", self.steps as usize, 1)?;
        require("parts", self.parts, (1..=256).contains(&self.parts), "1 to 256")?;
        require("seed", self.seed, i64::try_from(self.seed).is_ok(), "0 to 2^63 - 1")?;
        let episodes = &self.episodes;
        at_least("episodes.per_step", episodes.per_step, 1)?;
        at_least("episodes.queries", episodes.queries, 1)?;
        let blends = (0.0..=1.0).contains(&episodes.blended);
        require("episodes.blended", episodes.blended, blends, "a share from 0 to 1")?;
        let mixes = (0.0..=1.0).contains(&episodes.mixed);
        require("episodes.mixed", episodes.mixed, mixes, "a share from 0 to 1")?;
        check_spans("episodes.ways", &episodes.ways, 2)?;
        check_spans("episodes.shots", &episodes.shots, 1)?;
        check_list("episodes.noise", &episodes.noise)?;
        let validation = &self.validation;
        at_least("validation.every", validation.every as usize, 1)?;
        at_least("validation.episodes", validation.episodes as usize, 1)?;
        at_least("validation.queries", validation.queries, 1)?;
        check_spans("validation.ways", &validation.ways, 2)?;
        check_spans("validation.shots", &validation.shots, 1)?;
        check_list("validation.noise", &validation.noise)?;
        self.optimiser.check()
    }
}

impl Data {
    fn check(&self, training: &[NoiseLevels], validation: &[NoiseLevels]) -> Result<()> {
        check_list("data.train", &self.train)?;
        let pairs = [
            ("data.outliers", &self.outliers, &self.train, training),
            ("data.validation_outliers", &self.validation_outliers, &self.validation, validation),
        ];
        for (what, outliers, data, noise) in pairs {
            let wanted = noise.iter().flat_map(|levels| &levels.0);
            let wants = wanted.clone().any(|noise| noise.kind == NoiseKind::Outlier && noise.level > 0.0);
            if wants && outliers.is_empty() && !data.is_empty() {
                return Err(Error::NoOutlierPool);
            }
            let fits = outliers.is_empty() || outliers.len() == data.len();
            let count = format!("none or {}, one for each file of data", data.len());
            require(what, format!("{} files", outliers.len()), fits, &count)?;
        }
        Ok(())
    }
}

fn check_list<T>(what: &'static str, list: &[T]) -> Result<()> {
    require(what, "an empty list", !list.is_empty(), "one or more entries")
}

fn check_spans(what: &'static str, spans: &[CountRange], least: usize) -> Result<()> {
    check_list(what, spans)?;
    let broken = spans.iter().find(|span| span.min < least || span.max < span.min || span.max > 1000);
    let expected = format!("numbers from {least} to 1000, or ranges of them such as 3-10");
    broken.map_or(Ok(()), |span| require(what, span, false, &expected))
}
