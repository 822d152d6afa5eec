//! Episodes: few-shot classification problems drawn from embeddings (labelled feature vectors), with label noise in
//! their support sets. An episode has a few classes ("ways"); each has a few labelled items ("shots"), which together
//! are the support set, and queries, the items to classify.
//!
//! Start with [`Sampler`], which draws episodes from a seed, and [`DrawnEpisode`], its result. [`Manifest`] replays the
//! episodes that a file lists. An [`Episode`] holds the classes and rows without noise; a support set under a noise
//! setting is a list of [`Item`]s.
//!
//! An episode has the same classes, queries and clean support items under all noise settings, so that methods, noise
//! kinds and levels can be compared with paired statistics.

mod augmented_copies;
mod corrupt;
mod manifest;
mod sampler;

pub use augmented_copies::{AugmentedCopies, image_name};
pub use manifest::{Manifest, write_manifest};
pub use sampler::{DefaultNoise, Sampler};

use serde::{Deserialize, Serialize};

use crate::embeddings::Embeddings;
use crate::error::Result;
use crate::noise::Noise;
use crate::ranges::{at_least, require};
use crate::rng::IndexSampler;

/// The number of support items per class (shots): fixed, or drawn for every class uniformly from a range.
///
/// ```
/// use trueshot::episode::Shots;
///
/// assert_eq!(Shots::exactly(5).to_string(), "5");
/// assert_eq!(Shots { min: 1, max: 10 }.to_string(), "1-10");
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shots {
    /// Minimum, at least 1.
    pub min: usize,
    /// Maximum, included in the range.
    pub max: usize,
}

impl Shots {
    /// The same number of shots for every class.
    pub fn exactly(shots: usize) -> Self {
        Shots { min: shots, max: shots }
    }
}

impl From<usize> for Shots {
    fn from(shots: usize) -> Self {
        Shots::exactly(shots)
    }
}

impl std::fmt::Display for Shots {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.min == self.max { write!(f, "{}", self.min) } else { write!(f, "{}-{}", self.min, self.max) }
    }
}

/// The shape of the episodes of an experiment and the seed they are drawn with. The default is 5-way 5-shot with 15
/// queries per class and seed 0.
///
/// ```
/// use trueshot::episode::{EpisodeSpec, Shots};
///
/// let spec = EpisodeSpec { ways: 10, shots: Shots { min: 1, max: 10 }, ..EpisodeSpec::default() };
/// assert_eq!(spec.queries, 15);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpisodeSpec {
    /// Classes per episode, at least 2.
    pub ways: usize,
    /// Support items per class.
    pub shots: Shots,
    /// Queries per class; 0 if only the support sets are needed.
    pub queries: usize,
    /// Seed of the random numbers; equal seeds give equal episodes.
    pub seed: u64,
}

impl Default for EpisodeSpec {
    fn default() -> Self {
        EpisodeSpec { ways: 5, shots: Shots::exactly(5), queries: 15, seed: 0 }
    }
}

impl EpisodeSpec {
    /// Checks that the numbers are possible: at least 2 ways, at least 1 shot, and a range of shots that is not empty.
    pub(crate) fn check(&self) -> Result<()> {
        at_least("the number of ways", self.ways, 2)?;
        at_least("the number of shots", self.shots.min, 1)?;
        let is_ordered = self.shots.min <= self.shots.max;
        require("the largest number of shots", self.shots.max, is_ordered, "no less than the smallest")
    }
}

/// The rows drawn of one class of an episode, before noise. All row numbers are rows of the embeddings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassDraw {
    /// The class, an index into [`Embeddings::classes`].
    pub class: u32,
    /// Rows of the clean support set.
    pub support: Vec<u32>,
    /// Rows that symmetric, paired and similar noise put under the labels of other classes; the same number as
    /// `support`.
    pub pool: Vec<u32>,
    /// Query rows.
    pub queries: Vec<u32>,
    /// The order in which support items become noisy: a permutation of indices into `support`. A setting with n wrong
    /// items per class replaces the first n, so a higher level replaces all items that a lower one does.
    pub noise_order: Vec<u32>,
}

/// One few-shot classification problem, before noise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Episode {
    /// The number of the episode in its experiment, from 0.
    pub index: u64,
    /// The classes with their rows; their order gives the class indices 0 to `ways - 1` of the episode.
    pub classes: Vec<ClassDraw>,
}

/// One item of a support set, with its given and its true class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// The row of the item, in the embeddings or, for an outlier, in the outlier pool.
    pub row: u32,
    /// The given (possibly wrong) class, an index into [`Episode::classes`].
    pub given: u32,
    /// The true class, an index into [`Episode::classes`]; `None` for an outlier.
    pub truth: Option<u32>,
}

impl Item {
    /// Whether the given label is wrong.
    pub fn is_wrong(&self) -> bool {
        self.truth != Some(self.given)
    }
}

/// An episode with one support set per noise setting (a noise type and level).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrawnEpisode {
    /// The classes, clean support rows and queries.
    pub episode: Episode,
    /// The support sets, in the order of [`Episodes::noises`].
    pub supports: Vec<Vec<Item>>,
}

/// The data that episodes are drawn from: labelled embeddings, and what outlier noise draws from.
#[derive(Clone, Copy)]
pub struct EpisodeData<'a> {
    /// The labelled rows.
    pub embeddings: &'a Embeddings,
    /// Rows of other classes, for outlier noise. If this is `None` or the same object as `embeddings`, outliers are
    /// items of classes that are not in the episode.
    pub outliers: Option<&'a Embeddings>,
}

impl<'a> EpisodeData<'a> {
    /// The embeddings whose rows are the outliers.
    pub fn outlier_rows(&self) -> &'a Embeddings {
        self.outliers.unwrap_or(self.embeddings)
    }
}

/// A source of episodes: a [`Sampler`] or a [`Manifest`].
pub trait Episodes: Sync {
    /// The shape of the episodes and their seed.
    fn spec(&self) -> &EpisodeSpec;
    /// The noise settings; every episode has one support set for each.
    fn noises(&self) -> &[Noise];
    /// Draws the episode with a number. `index_sampler` is scratch memory that a caller reuses between episodes; it
    /// does not influence the result.
    fn draw(&self, index: u64, index_sampler: &mut IndexSampler) -> Result<DrawnEpisode>;
    /// Whether episodes must be drawn one after the other, in the order of their numbers.
    fn is_sequential(&self) -> bool {
        false
    }
    /// The number of episodes, if the source has a limited number of them.
    fn limit(&self) -> Option<u64> {
        None
    }
    /// The SHA-256 of the manifest the episodes come from, in hexadecimal; `None` for other sources.
    fn manifest_hash(&self) -> Option<&str> {
        None
    }
}
