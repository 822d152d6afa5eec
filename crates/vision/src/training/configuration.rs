//! The configuration of the training of a backbone ([`BackboneConfiguration`]), which `trueshot train backbone` reads
//! from a TOML file and options, and the settings that it shares with the other trainings on images.

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
    /// The random seed.
    pub seed: u64,
    /// The number of training steps, each on one episode.
    pub steps: u64,
    /// A backbone to start from; empty: a new one.
    pub from: PathBuf,
    /// What to train and validate on.
    pub data: DataSettings,
    /// Size, colour and fit of the images.
    pub pictures: ImageSettings,
    /// The training episodes.
    pub episodes: EpisodeSettings,
    /// The random augmentation of the images.
    pub augmentation: Augmentation,
    /// How the model is validated during training.
    pub validation: ValidationSettings,
    /// The optimiser and its learning rate.
    pub optimiser: Optimiser,
}

/// The data to train and validate on.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataSettings {
    /// The images to train on: folder, archive, list or `omniglot`.
    pub train: PathBuf,
    /// Images of other classes, which outlier noise in training draws from; empty: outliers are images of training
    /// classes that are not in the episode.
    pub outliers: PathBuf,
    /// The images to validate on; empty: other classes of the training data.
    pub validation: PathBuf,
    /// Outliers for validation; empty: images of the training classes.
    pub validation_outliers: PathBuf,
    /// The file that assigns classes to splits; empty: train on all classes.
    pub split_file: PathBuf,
    /// The split to train on.
    pub train_split: String,
    /// The split to validate on.
    pub validation_split: String,
    /// Whether the images in train/, val/ and test/ are merged.
    pub pool: bool,
    /// The most images of a class that are used, the first by name; 0: all.
    pub limit_per_class: usize,
}

/// How images are read.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageSettings {
    /// Height and width in pixels.
    pub size: usize,
    /// Whether images are in colour; otherwise drawings with dark ink on white paper.
    pub colour: bool,
    /// How to handle an image that is not square.
    pub fit: Fit,
    /// Whether images are augmented in training.
    pub augment: bool,
    /// Whether classes rotated by 90, 180 and 270 degrees are added as further classes.
    pub rotations: bool,
}

/// The training episodes. An episode is a small classification problem with labelled images (support items), some of
/// them with wrong labels if there is noise, and images to classify (queries).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EpisodeSettings {
    /// Classes per episode.
    pub ways: usize,
    /// Labelled images per class.
    pub shots: usize,
    /// Queries per class.
    pub queries: usize,
    /// Noise types and levels; each episode draws one of them.
    pub noise: Vec<NoiseLevels>,
    /// How prototypes are computed.
    pub aggregate: Aggregate,
}

/// Validation during training. The score is the mean accuracy over all noise settings.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ValidationSettings {
    /// Steps between two validations.
    pub every: u64,
    /// Episodes per noise setting.
    pub episodes: u64,
    /// Classes per episode.
    pub ways: usize,
    /// Labelled images per class.
    pub shots: usize,
    /// Queries per class.
    pub queries: usize,
    /// Noise types and levels; empty: as in training.
    pub noise: Vec<NoiseLevels>,
    /// The seed of the episodes, which are the same in every validation.
    pub seed: u64,
}

impl BackboneConfiguration {
    /// The defaults of the paper for photographs. The learning rate is multiplied by 0.7 after every tenth of the run.
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

    /// The defaults for the built-in drawings: small, grey, not augmented, and with fewer queries, since a character
    /// has twenty drawings.
    pub fn drawings() -> Self {
        let photographs = Self::photographs();
        BackboneConfiguration {
            pictures: ImageSettings { size: 28, colour: false, augment: false, ..photographs.pictures },
            episodes: EpisodeSettings { queries: 10, ..photographs.episodes },
            validation: ValidationSettings { queries: 10, ..photographs.validation },
            ..photographs
        }
    }

    /// Checks that all numbers are in their ranges.
    pub fn check(&self) -> Result<()> {
        check_noise("episodes.noise", &self.noises())?;
        let EpisodeSettings { ways, shots, queries, .. } = self.episodes;
        check_episodes(ways, shots, queries)?;
        let BackboneConfiguration { steps, seed, pictures, augmentation, validation, optimiser, .. } = self;
        check_common(*steps, *seed, pictures, augmentation, validation, optimiser)
    }

    /// The preprocessing of the images.
    pub fn preprocessing(&self) -> Preprocessing {
        self.pictures.preprocessing()
    }

    /// All noise settings of training.
    pub(super) fn noises(&self) -> Vec<Noise> {
        flatten_noise(&self.episodes.noise)
    }

    /// The shape of the training episodes, and their seed.
    pub(super) fn spec(&self) -> EpisodeSpec {
        let EpisodeSettings { ways, shots, queries, .. } = self.episodes;
        EpisodeSpec { ways, shots: Shots::exactly(shots), queries, seed: self.seed }
    }

    /// The validator of the trained backbone.
    pub(super) fn validator(&self) -> Validator {
        self.validation.validator(&self.episodes.noise)
    }
}

impl ImageSettings {
    /// The preprocessing of the images.
    pub fn preprocessing(&self) -> Preprocessing {
        let default =
            if self.colour { Preprocessing::colour(self.size) } else { Preprocessing::drawings(self.size) };
        Preprocessing { fit: self.fit, ..default }
    }

    /// Checks the size of the images.
    fn check(&self) -> Result<()> {
        use trueshot_nn::conv4::Shape;
        // The number of channels does not matter for the range of the size.
        let is_possible = (Shape { size: self.size, channels: 3 }).is_possible();
        let (least, most) = (Shape::SMALLEST, Shape::LARGEST);
        Ok(require("pictures.size", self.size, is_possible, &format!("{least} to {most}"))?)
    }
}

impl ValidationSettings {
    /// Checks that the numbers are in their ranges.
    fn check(&self) -> Result<()> {
        require("validation.every", self.every, self.every > 0, "1 or more")?;
        require("validation.episodes", self.episodes, self.episodes > 0, "1 or more")?;
        Ok(require("validation.queries", self.queries, self.queries > 0, "1 or more")?)
    }

    /// The validator, with the noise of these settings or, if that is empty, with `training_noise`.
    pub(super) fn validator(&self, training_noise: &[NoiseLevels]) -> Validator {
        let ValidationSettings { ways, shots, queries, seed, episodes, .. } = *self;
        let spec = EpisodeSpec { ways, shots: Shots::exactly(shots), queries, seed };
        let levels = if self.noise.is_empty() { training_noise } else { &self.noise };
        Validator { spec, noises: noise::settings(levels), episodes }
    }
}

/// Clean labels: a noise level of 0, for which the type does not matter.
pub(super) fn no_noise() -> NoiseLevels {
    NoiseLevels(vec![Noise { kind: NoiseKind::Symmetric, level: 0.0 }])
}

/// All noise settings (a type and a level each) of a list of noise types with several levels. Unlike
/// [`noise::settings`], keeps repeated settings, such as clean labels under several types: an episode draws them more
/// often.
pub(super) fn flatten_noise(levels: &[NoiseLevels]) -> Vec<Noise> {
    levels.iter().flat_map(|levels| levels.0.iter().copied()).collect()
}

/// Checks the settings that all trainings on images share.
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

/// Checks the noise settings of training on images; `key` is their place in the configuration. Similar noise chooses the items whose embeddings are
/// most similar to a class, but images have no embeddings before training.
pub(super) fn check_noise(key: &'static str, noises: &[Noise]) -> Result<()> {
    let is_similar = noises.iter().any(|noise| noise.kind == NoiseKind::Similar);
    let allowed = "symmetric, paired and outlier, because similarity needs embeddings";
    require(key, "similar", !is_similar, allowed)?;
    Ok(require(key, "empty", !noises.is_empty(), "at least one noise type with a level")?)
}

/// Checks the number of images of an episode.
pub(super) fn check_episodes(ways: usize, shots: usize, queries: usize) -> Result<()> {
    let images = ways.saturating_mul(shots.saturating_add(queries));
    require("images per episode", images, images <= MAX_IMAGES, "1 to 10000")?;
    Ok(require("episodes.queries", queries, queries > 0, "1 or more")?)
}

/// Checks that the numbers of an augmentation are in their ranges.
fn check_augmentation(augmentation: &Augmentation) -> Result<()> {
    let is_range = |[least, most]: [f32; 2], limit: f32| least > 0.0 && least <= most && most <= limit;
    let Augmentation { crop_scale, crop_ratio, brightness, contrast, saturation, hue, .. } = *augmentation;
    let is_valid = is_range(crop_scale, 1.0)
        && is_range(crop_ratio, f32::MAX)
        && [brightness, contrast, saturation].iter().all(|factor| (0.0..=1.0).contains(factor))
        && (0.0..=0.5).contains(&hue);
    if !is_valid {
        return Err(Error::OutOfRange {
            what: "the augmentation",
            given: format!("{augmentation:?}"),
            allowed: "crop_scale within 0 to 1, crop_ratio above 0, jitters from 0 to 1, hue to 0.5".into(),
        });
    }
    Ok(())
}

/// The most images per step, which limits the memory of the activations.
pub(super) const MAX_IMAGES: usize = 10_000;
