//! Episodes: small classification problems drawn from embeddings, with noise put into their support sets.
//!
//! An [`Episode`] is what was drawn, without noise; a support set for a noise setting is a list of [`Item`]s.
//! One episode under several settings shares its classes, its queries and all support items that stay clean,
//! so that methods, noise types and levels can be compared pair by pair.
//!
//! [`Sampler`] draws episodes from a seed; [`Manifest`] replays the ones a file lists.

mod augmented_copies;
mod corrupt;
mod manifest;
mod sampler;

pub use augmented_copies::{AugmentedCopies, image_name};
pub use manifest::{Manifest, write_manifest};
pub use sampler::Sampler;

use serde::{Deserialize, Serialize};

use crate::embeddings::Embeddings;
use crate::error::{Error, Result};
use crate::noise::Noise;
use crate::rng::IndexSampler;

/// How many labelled examples a class has: always the same, or drawn for every class from a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shots {
    /// The fewest.
    pub min: usize,
    /// The most.
    pub max: usize,
}

impl Shots {
    /// The same number for every class.
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

/// The shape of an episode and the seed behind all of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpisodeSpec {
    /// Classes.
    pub ways: usize,
    /// Labelled examples a class.
    pub shots: Shots,
    /// Queries a class; 0 where only the support set matters.
    pub queries: usize,
    /// Same seed, same episodes.
    pub seed: u64,
}

impl Default for EpisodeSpec {
    fn default() -> Self {
        EpisodeSpec { ways: 5, shots: Shots::exactly(5), queries: 15, seed: 0 }
    }
}

impl EpisodeSpec {
    pub(crate) fn check(&self) -> Result<()> {
        let positive = |what, given: usize, fine: bool, allowed: &str| match fine {
            true => Ok(()),
            false => Err(Error::OutOfRange { what, given: given.to_string(), allowed: allowed.into() }),
        };
        positive("the number of ways", self.ways, self.ways >= 2, "2 or more")?;
        positive("the number of shots", self.shots.min, self.shots.min >= 1, "1 or more")?;
        let ordered = self.shots.min <= self.shots.max;
        positive("the largest number of shots", self.shots.max, ordered, "no less than the smallest")
    }
}

/// What was drawn of one class.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassDraw {
    /// The class, as a place in the embeddings' class names.
    pub class: u32,
    /// Rows of the clean support set.
    pub support: Vec<u32>,
    /// Rows that noise may move into other classes; as many as shots.
    pub pool: Vec<u32>,
    /// Rows to classify.
    pub queries: Vec<u32>,
    /// The order in which support places become noisy: level n takes the first n.
    pub noise_order: Vec<u32>,
}

/// One drawn classification problem, before noise.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Episode {
    /// Its number.
    pub index: u64,
    /// Its classes.
    pub classes: Vec<ClassDraw>,
}

/// An item of a noisy support set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Item {
    /// Its row, in the embeddings or, for an outlier, in the pool of outliers.
    pub row: u32,
    /// The class it is filed under, as a place among the episode's classes.
    pub given: u32,
    /// The class it comes from, or none of the episode's.
    pub truth: Option<u32>,
}

impl Item {
    /// Whether its label is wrong.
    pub fn is_wrong(&self) -> bool {
        self.truth != Some(self.given)
    }
}

/// An episode with a support set for every noise setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DrawnEpisode {
    /// Classes and queries.
    pub episode: Episode,
    /// Support sets in the order of the settings.
    pub supports: Vec<Vec<Item>>,
}

/// Embeddings that episodes are drawn from, with the outliers that belong to them.
#[derive(Clone, Copy)]
pub struct EpisodeData<'a> {
    /// The labelled rows.
    pub embeddings: &'a Embeddings,
    /// Rows of other classes, for outlier noise.
    pub outliers: Option<&'a Embeddings>,
}

/// Where episodes come from.
pub trait Episodes: Sync {
    /// Their shape.
    fn spec(&self) -> &EpisodeSpec;
    /// The noise settings each of them comes with.
    fn noises(&self) -> &[Noise];
    /// One of them. The urn is scratch space, kept by whoever draws many.
    fn draw(&self, index: u64, urn: &mut IndexSampler) -> Result<DrawnEpisode>;
    /// How many there are, where that is limited.
    fn limit(&self) -> Option<u64> {
        None
    }
    /// SHA-256 of the file they come from, if they come from one.
    fn manifest_hash(&self) -> Option<&str> {
        None
    }
}
