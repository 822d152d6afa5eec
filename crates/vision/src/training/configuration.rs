//! The configuration of the training of a backbone, and the settings that it shares with the other trainings on images.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use trueshot::episode::{EpisodeSpec, Shots};
use trueshot::noise::{self, Noise, NoiseKind, NoiseLevels};
use trueshot::ranges::require;
use trueshot::training::{Optimiser, ScheduleKind};

use super::loss::Aggregate;
use super::validation::Validator;
use crate::augment::Augmentation;
use crate::error::{Error, Result};
use crate::preprocess::Preprocessing;
use crate::resize::Fit;

/// How to train a backbone.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BackboneConfiguration {
    /// Same seed, same model.
    pub seed: u64,
    /// Updates of the parameters, each on one episode.
    pub steps: u64,
    /// A backbone to start from; empty for a fresh one.
    pub from: PathBuf,
    /// What to train and validate on.
    pub data: DataSettings,
    /// What becomes of the images.
    pub pictures: ImageSettings,
    /// What training episodes are like.
    pub episodes: EpisodeSettings,
    /// How images are changed in training.
    pub augmentation: Augmentation,
    /// How the model is judged on the way.
    pub validation: ValidationSettings,
    /// How the parameters are changed.
    pub optimiser: Optimiser,
}

/// What to train and validate on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSettings {
    /// The images to train on: folder, archive, list or `omniglot`.
    pub train: PathBuf,
    /// Images of other classes, which outlier noise in training draws from; empty: outliers are images of training classes
    /// that are not in the episode.
    pub outliers: PathBuf,
    /// The images to validate on; empty: other classes of the same.
    pub validation: PathBuf,
    /// Outliers for validation; empty: images of the training classes.
    pub validation_outliers: PathBuf,
    /// Which classes are in which split; empty: all of them are trained on.
    pub split_file: PathBuf,
    /// The split to train on.
    pub train_split: String,
    /// The split to validate on.
    pub validation_split: String,
    /// Whether the images in train/, val/ and test/ are taken together.
    pub pool: bool,
    /// The most images of a class; 0: all.
    pub limit_per_class: usize,
}

/// What becomes of the images.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageSettings {
    /// Height and width.
    pub size: usize,
    /// Colour, or drawings with dark ink on white paper.
    pub colour: bool,
    /// What becomes of an image that is no square.
    pub fit: Fit,
    /// Whether images are changed at random in training.
    pub augment: bool,
    /// Whether classes turned by quarters are classes of their own.
    pub rotations: bool,
}

/// What training episodes are like.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpisodeSettings {
    /// Classes.
    pub ways: usize,
    /// Labelled images a class.
    pub shots: usize,
    /// Queries a class.
    pub queries: usize,
    /// Noise types and levels that an episode draws one of.
    pub noise: Vec<NoiseLevels>,
    /// What prototypes are made by.
    pub aggregate: Aggregate,
}

/// How the model is judged on the way: the mean accuracy over all settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValidationSettings {
    /// Steps between two validations.
    pub every: u64,
    /// Episodes of each.
    pub episodes: u64,
    /// Classes.
    pub ways: usize,
    /// Labelled images a class.
    pub shots: usize,
    /// Queries a class.
    pub queries: usize,
    /// Noise types and levels; none: as in training.
    pub noise: Vec<NoiseLevels>,
    /// The seed of the episodes, which are always the same.
    pub seed: u64,
}

impl BackboneConfiguration {
    /// The paper's training on photographs.
    pub fn photographs() -> Self {
        BackboneConfiguration {
            seed: 0,
            steps: 100_000,
            from: PathBuf::new(),
            data: DataSettings {
                train_split: "train".into(),
                validation_split: "val".into(),
                ..DataSettings::default()
            },
            pictures: ImageSettings {
                size: 84,
                colour: true,
                fit: Fit::Squash,
                augment: true,
                rotations: false,
            },
            episodes: EpisodeSettings {
                ways: 5,
                shots: 5,
                queries: 15,
                noise: vec![no_noise()],
                aggregate: Aggregate::Mean,
            },
            augmentation: Augmentation::default(),
            validation: ValidationSettings {
                every: 1000,
                episodes: 600,
                ways: 5,
                shots: 5,
                queries: 15,
                noise: Vec::new(),
                seed: 0,
            },
            optimiser: Optimiser {
                warm_up: 0.0,
                schedule: ScheduleKind::Steps,
                decay: 0.7,
                decay_every: 0.1,
                ..Optimiser::default()
            },
        }
    }

    /// The same for the built-in drawings: small, without colour, not changed, and with fewer queries since
    /// there are twenty drawings of a character.
    pub fn drawings() -> Self {
        let photographs = Self::photographs();
        BackboneConfiguration {
            pictures: ImageSettings { size: 28, colour: false, augment: false, ..photographs.pictures },
            episodes: EpisodeSettings { queries: 10, ..photographs.episodes },
            validation: ValidationSettings { queries: 10, ..photographs.validation },
            ..photographs
        }
    }

    /// Refuses numbers that make no sense, with those that would.
    pub fn check(&self) -> Result<()> {
        check_noise(&self.noises())?;
        let EpisodeSettings { ways, shots, queries, .. } = self.episodes;
        check_episodes(ways, shots, queries)?;
        let BackboneConfiguration { steps, seed, pictures, augmentation, validation, optimiser, .. } = self;
        check_common(*steps, *seed, pictures, augmentation, validation, optimiser)
    }

    /// What the network's images must be.
    pub fn preprocessing(&self) -> Preprocessing {
        self.pictures.preprocessing()
    }

    /// All noise settings of training.
    pub(super) fn noises(&self) -> Vec<Noise> {
        flatten_noise(&self.episodes.noise)
    }

    pub(super) fn spec(&self) -> EpisodeSpec {
        let EpisodeSettings { ways, shots, queries, .. } = self.episodes;
        EpisodeSpec { ways, shots: Shots::exactly(shots), queries, seed: self.seed }
    }

    pub(super) fn validator(&self) -> Validator {
        self.validation.validator(&self.episodes.noise)
    }
}

impl ImageSettings {
    /// What the network's images must be.
    pub fn preprocessing(&self) -> Preprocessing {
        let usual = match self.colour {
            true => Preprocessing::colour(self.size),
            false => Preprocessing::drawings(self.size),
        };
        Preprocessing { fit: self.fit, ..usual }
    }

    fn check(&self) -> Result<()> {
        use trueshot_nn::conv4::Shape;
        let possible = (Shape { size: self.size, channels: 3 }).is_possible();
        let (least, most) = (Shape::SMALLEST, Shape::LARGEST);
        Ok(require("pictures.size", self.size, possible, &format!("{least} to {most}"))?)
    }
}

impl ValidationSettings {
    fn check(&self) -> Result<()> {
        require("validation.every", self.every, self.every > 0, "1 or more")?;
        require("validation.episodes", self.episodes, self.episodes > 0, "1 or more")?;
        Ok(require("validation.queries", self.queries, self.queries > 0, "1 or more")?)
    }

    /// Who judges, by these noise settings or, if there are none, by those of training.
    pub(super) fn validator(&self, training: &[NoiseLevels]) -> Validator {
        let ValidationSettings { ways, shots, queries, seed, episodes, .. } = *self;
        let spec = EpisodeSpec { ways, shots: Shots::exactly(shots), queries, seed };
        let given = if self.noise.is_empty() { training } else { &self.noise };
        Validator { spec, noises: noise::settings(given), episodes }
    }
}

/// Noise of no kind.
pub(super) fn no_noise() -> NoiseLevels {
    NoiseLevels(vec![Noise { kind: NoiseKind::Symmetric, level: 0.0 }])
}

pub(super) fn flatten_noise(levels: &[NoiseLevels]) -> Vec<Noise> {
    levels.iter().flat_map(|levels| levels.0.iter().copied()).collect()
}

/// Refuses what makes no sense for any network.
pub(super) fn check_common(
    steps: u64,
    seed: u64,
    pictures: &ImageSettings,
    augmentation: &Augmentation,
    validation: &ValidationSettings,
    optimiser: &Optimiser,
) -> Result<()> {
    require("steps", steps, steps > 0, "1 or more")?;
    require("seed", seed, i64::try_from(seed).is_ok(), "0 to 2^63 - 1")?;
    validation.check()?;
    pictures.check()?;
    check_augmentation(augmentation)?;
    Ok(optimiser.check()?)
}

pub(super) fn check_noise(noises: &[Noise]) -> Result<()> {
    let is_similar = noises.iter().any(|noise| noise.kind == NoiseKind::Similar);
    let allowed = "symmetric, paired and outlier, because similarity needs embeddings";
    require("episodes.noise", "similar", !is_similar, allowed)?;
    Ok(require("episodes.noise", "empty", !noises.is_empty(), "at least one noise type with a level")?)
}

pub(super) fn check_episodes(ways: usize, shots: usize, queries: usize) -> Result<()> {
    let images = ways.saturating_mul(shots.saturating_add(queries));
    require("images per episode", images, images <= MAX_IMAGES, "1 to 10000")?;
    Ok(require("episodes.queries", queries, queries > 0, "1 or more")?)
}

fn check_augmentation(given: &Augmentation) -> Result<()> {
    let range = |[least, most]: [f32; 2], limit: f32| least > 0.0 && least <= most && most <= limit;
    let fine = range(given.crop_scale, 1.0)
        && range(given.crop_ratio, f32::MAX)
        && [given.brightness, given.contrast, given.saturation].iter().all(|v| (0.0..=1.0).contains(v))
        && (0.0..=0.5).contains(&given.hue);
    match fine {
        true => Ok(()),
        false => Err(Error::OutOfRange {
            what: "the augmentation",
            given: format!("{given:?}"),
            allowed: "crop_scale within 0 to 1, crop_ratio above 0, jitters from 0 to 1, hue to 0.5".into(),
        }),
    }
}

/// Beyond this a step's activations fill any memory.
pub(super) const MAX_IMAGES: usize = 10_000;
