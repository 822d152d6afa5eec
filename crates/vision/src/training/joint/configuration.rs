//! The configuration of the training of a backbone and a head together ([`JointConfiguration`]), which `trueshot train
//! joint` reads from a TOML file and options.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use trueshot::noise::NoiseLevels;
use trueshot::ranges::require;
use trueshot::training::heads::configuration::{CountRange, Episodes};
use trueshot::training::{Optimiser, ScheduleKind};

use crate::augment::Augmentation;
use crate::error::{Error, Result};
use crate::training::configuration::{
    BackboneConfiguration, DataSettings, ImageSettings, MAX_IMAGES, ValidationSettings, check_common,
    check_noise, flatten_noise,
};
use crate::training::validation::Validator;

/// How to train a backbone and a head together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JointConfiguration {
    /// The random seed.
    pub seed: u64,
    /// The number of training steps.
    pub steps: u64,
    /// A model of an earlier joint run to start from; empty: none.
    pub from: PathBuf,
    /// The backbone to start from; empty: that of `from`.
    pub backbone: PathBuf,
    /// The head to start from, a TraNFS or Relabel for features of this backbone; empty: that of `from`.
    pub head: PathBuf,
    /// The weight of the loss of nearest prototypes, computed from the true labels, that is added to the loss of the
    /// head.
    pub prototype_weight: f64,
    /// The decay, 0 to 1, of the running average of the parameters, which is what is validated and saved; 0: no
    /// average.
    pub average: f64,
    /// The data to train and validate on.
    pub data: DataSettings,
    /// Size, colour and fit of the images.
    pub pictures: ImageSettings,
    /// The training episodes.
    pub episodes: JointEpisodeSettings,
    /// The random augmentation of the images.
    pub augmentation: Augmentation,
    /// How the model is validated during training.
    pub validation: ValidationSettings,
    /// The optimiser and its learning rate.
    pub optimiser: Optimiser,
}

/// The training episodes. All episodes of a step have the same number of shots.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JointEpisodeSettings {
    /// The most images per step; a step has as many episodes as fit, and at least one.
    pub images_per_step: usize,
    /// Classes per episode.
    pub ways: usize,
    /// Numbers of labelled images per class; each step draws one of them, with repeated numbers more likely.
    pub shots: Vec<usize>,
    /// Queries per class.
    pub queries: usize,
    /// Noise types and levels; each episode draws one of them.
    pub noise: Vec<NoiseLevels>,
}

impl JointEpisodeSettings {
    /// The number of episodes per step if they have this number of shots (labelled images per class).
    pub(super) fn per_step(&self, shots: usize) -> usize {
        (self.images_per_step / (self.ways * (shots + self.queries)).max(1)).max(1)
    }

    /// The same settings in the form that the sampler of training episodes takes. That sampler has options which are
    /// for the training of heads alone; joint training uses neither blended rows nor mixed noise.
    pub(super) fn options(&self) -> Episodes {
        Episodes {
            per_step: 1,
            ways: vec![CountRange::exactly(self.ways)],
            shots: self.shots.iter().map(|&shots| CountRange::exactly(shots)).collect(),
            queries: self.queries,
            noise: self.noise.clone(),
            blended: 0.0,
            mixed: 0.0,
        }
    }
}

impl JointConfiguration {
    /// The defaults for photographs: eight 5-shot episodes per step (5 classes of 5 labelled images and 8 queries: 65
    /// images), or, in a fifth of the steps, five 10-shot episodes (90 images).
    pub fn photographs() -> Self {
        Self::with_defaults_of(BackboneConfiguration::photographs())
    }

    /// The defaults for the built-in drawings, always 5-shot: a character has twenty drawings.
    pub fn drawings() -> Self {
        let mut configuration = Self::with_defaults_of(BackboneConfiguration::drawings());
        configuration.episodes.shots = vec![5];
        configuration
    }

    /// The defaults, with those of data, images, augmentation and validation from the training of a backbone.
    fn with_defaults_of(backbone: BackboneConfiguration) -> Self {
        let noise = ["symmetric=0,20,40,60", "paired=0,20,40", "outlier=0,20,40,60"];
        JointConfiguration {
            seed: 0,
            steps: 30_000,
            from: PathBuf::new(),
            backbone: PathBuf::new(),
            head: PathBuf::new(),
            prototype_weight: 0.5,
            average: 0.999,
            data: backbone.data,
            pictures: backbone.pictures,
            episodes: JointEpisodeSettings {
                images_per_step: 520,
                ways: 5,
                shots: vec![5, 5, 5, 5, 10],
                queries: 8,
                noise: noise.map(|levels| levels.parse().expect("a valid constant")).to_vec(),
            },
            augmentation: backbone.augmentation,
            validation: backbone.validation,
            optimiser: Optimiser {
                rate: 5e-4,
                warm_up: 0.0,
                schedule: ScheduleKind::Cosine,
                floor: 0.01,
                ..Optimiser::default()
            },
        }
    }

    /// Checks that all numbers are in their ranges.
    pub fn check(&self) -> Result<()> {
        let JointConfiguration { steps, seed, pictures, augmentation, validation, optimiser, .. } = self;
        let JointEpisodeSettings { images_per_step, ways, shots, queries, noise } = &self.episodes;
        check_noise("episodes.noise", &flatten_noise(noise))?;
        require("episodes.shots", "empty", !shots.is_empty(), "at least one number")?;
        require("episodes.queries", *queries, *queries > 0, "1 or more")?;
        let most = shots.iter().map(|shots| ways.saturating_mul(shots.saturating_add(*queries))).max();
        let most = most.unwrap_or(0).max(*images_per_step);
        require("images per step", most, (1..=MAX_IMAGES).contains(&most), "1 to 10000")?;
        let weight = self.prototype_weight;
        require("prototype_weight", weight, weight.is_finite() && weight >= 0.0, "0 or more")?;
        require("average", self.average, (0.0..1.0).contains(&self.average), "from 0 to less than 1")?;
        check_common(*steps, *seed, pictures, augmentation, validation, optimiser)
    }

    /// The files of the backbone and of the head to start from.
    ///
    /// # Errors
    /// If one of them is not given.
    pub(super) fn starting_files(&self) -> Result<(&Path, &Path)> {
        let [backbone, head] = [&self.backbone, &self.head]
            .map(|path| if path.as_os_str().is_empty() { &*self.from } else { &**path });
        if backbone.as_os_str().is_empty() || head.as_os_str().is_empty() {
            return Err(Error::NothingToStartFrom);
        }
        Ok((backbone, head))
    }

    /// The validator of the trained backbone and head.
    pub(super) fn validator(&self) -> Validator {
        self.validation.validator(&self.episodes.noise)
    }
}
