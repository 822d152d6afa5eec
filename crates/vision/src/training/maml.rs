//! Training of MAML (Finn et al., ICML 2017), a network whose initial parameters are trained so that a few steps of
//! gradient descent on a support set adapt it to new classes. Start with [`MamlTrainee::new`].
//!
//! A step has several tasks (episodes). In each, the network is adapted to the support set, and the loss of the adapted
//! network on the queries is differentiated by the initial parameters. Each task is computed on one thread, or all at
//! once on a GPU, and their gradients are summed in order. Validation adapts the network to episodes of images that are
//! not trained on, as at test time.

#[cfg(feature = "cuda")]
mod gpu;

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use rayon::prelude::*;
use serde::{Deserialize, Serialize};
use trueshot::Embeddings;
use trueshot::episode::{EpisodeSpec, Shots};
use trueshot::method::NamedMethod;
use trueshot::model;
use trueshot::noise::NoiseLevels;
use trueshot::ranges::require;
use trueshot::rng::{Purpose, Rng};
use trueshot::tensors::Tensors;
use trueshot::training::{CpuSession, CpuWeights, Trainee, TrainingSession, Validation};
use trueshot::training::{Optimiser, ScheduleKind};
use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::maml::{self, GradientOrder, LabelledImages, MamlLearner, ModelSize};

use super::batches::{EpisodeBatch, EpisodeBatches, ImagePreparer, TaskBatches};
use super::configuration::{self as shared, DataSettings, ImageSettings, ValidationSettings};
#[cfg(feature = "cuda")]
use super::gpu::GpuSession;
use super::validation::Validator;
use super::{BackboneConfiguration, Datasets, Gpu, loader, session_methods};
use crate::augment::Augmentation;
use crate::dataset::Dataset;
use crate::error::Result;
use crate::loader::Loader;
use crate::maml::{KIND, MAX_WAYS, Maml, MamlConfig, model_file, model_size};

/// How to train MAML.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MamlConfiguration {
    /// The random seed.
    pub seed: u64,
    /// The number of training steps.
    pub steps: u64,
    /// A model to start from; empty: a new one.
    pub from: PathBuf,
    /// The data to train and validate on.
    pub data: DataSettings,
    /// Size, colour and fit of the images.
    pub pictures: ImageSettings,
    /// The training episodes.
    pub episodes: MamlEpisodeSettings,
    /// How the network is adapted to a support set.
    pub adaptation: AdaptationSettings,
    /// The random augmentation of the images.
    pub augmentation: Augmentation,
    /// How the model is validated during training.
    pub validation: ValidationSettings,
    /// The optimiser and its learning rate: Adam, that is, without weight decay.
    pub optimiser: Optimiser,
}

/// The training episodes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MamlEpisodeSettings {
    /// Episodes per step.
    pub per_step: usize,
    /// Classes per episode.
    pub ways: usize,
    /// Labelled images per class.
    pub shots: usize,
    /// Queries per class.
    pub queries: usize,
    /// Noise types and levels; each episode draws one of them.
    pub noise: Vec<NoiseLevels>,
}

/// How the network is adapted to a support set: by gradient descent with a fixed rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdaptationSettings {
    /// The learning rate of the adaptation.
    pub inner_rate: f64,
    /// Adaptation steps in training.
    pub inner_steps: usize,
    /// Adaptation steps in validation and at test.
    pub test_steps: usize,
    /// The order of the gradient through the adaptation.
    pub order: GradientOrderSetting,
}

/// The order of the gradient through the adaptation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GradientOrderSetting {
    /// First-order MAML: the adapted parameters are treated as independent of the initial ones.
    First,
    /// The full gradient.
    Second,
}

impl AdaptationSettings {
    /// The adaptation in training; that in validation and at test is in [`MamlConfiguration::config`].
    fn in_training(&self) -> maml::Adaptation {
        maml::Adaptation { rate: self.inner_rate as f32, steps: self.inner_steps }
    }

    /// The order of the gradient as the network takes it.
    fn gradient_order(&self) -> GradientOrder {
        match self.order {
            GradientOrderSetting::First => GradientOrder::First,
            GradientOrderSetting::Second => GradientOrder::Second,
        }
    }
}

/// The most adaptation steps, whose activations are all kept in memory.
const MAX_INNER_STEPS: usize = 1000;

impl MamlConfiguration {
    /// The paper's settings for photographs, and defaults of learn2learn where the paper does not give a value.
    pub fn photographs() -> Self {
        let backbone = BackboneConfiguration::photographs();
        MamlConfiguration {
            seed: backbone.seed,
            steps: 60_000,
            from: PathBuf::new(),
            data: backbone.data,
            pictures: backbone.pictures,
            episodes: MamlEpisodeSettings {
                per_step: 32,
                ways: 5,
                shots: 5,
                queries: 15,
                noise: backbone.episodes.noise,
            },
            adaptation: AdaptationSettings {
                inner_rate: 0.01,
                inner_steps: 5,
                test_steps: 10,
                order: GradientOrderSetting::Second,
            },
            augmentation: backbone.augmentation,
            validation: ValidationSettings { every: 500, episodes: 200, ..backbone.validation },
            optimiser: Optimiser {
                rate: 3e-3,
                weight_decay: 0.0,
                warm_up: 0.0,
                schedule: ScheduleKind::Constant,
                ..Optimiser::default()
            },
        }
    }

    /// The defaults for the built-in drawings.
    pub fn drawings() -> Self {
        let (photographs, backbone) = (Self::photographs(), BackboneConfiguration::drawings());
        MamlConfiguration {
            pictures: backbone.pictures,
            episodes: MamlEpisodeSettings { queries: backbone.episodes.queries, ..photographs.episodes },
            validation: ValidationSettings { queries: backbone.validation.queries, ..photographs.validation },
            ..photographs
        }
    }

    /// Checks that all numbers are in their ranges.
    pub fn check(&self) -> Result<()> {
        let MamlEpisodeSettings { per_step, ways, shots, queries, .. } = self.episodes;
        require("episodes.per_step", per_step, (1..=1024).contains(&per_step), "1 to 1024")?;
        require("episodes.ways", ways, (2..=MAX_WAYS).contains(&ways), &format!("2 to {MAX_WAYS}"))?;
        shared::check_noise("episodes.noise", &shared::flatten_noise(&self.episodes.noise))?;
        shared::check_episodes(ways, shots, queries)?;
        let AdaptationSettings { inner_rate, inner_steps, test_steps, .. } = self.adaptation;
        let rate_fits = inner_rate > 0.0 && inner_rate.is_finite();
        require("adaptation.inner_rate", inner_rate, rate_fits, "a number above 0")?;
        for (what, steps) in [("adaptation.inner_steps", inner_steps), ("adaptation.test_steps", test_steps)]
        {
            require(what, steps, (1..=MAX_INNER_STEPS).contains(&steps), &format!("1 to {MAX_INNER_STEPS}"))?;
        }
        let has_same_ways = self.validation.ways == ways;
        let expected = format!("{ways}, as in training: the network has a fixed number of classes");
        require("validation.ways", self.validation.ways, has_same_ways, &expected)?;
        let MamlConfiguration { steps, seed, pictures, augmentation, validation, optimiser, .. } = self;
        shared::check_common(*steps, *seed, pictures, augmentation, validation, optimiser)
    }

    /// The validator of the trained network.
    fn validator(&self) -> Validator {
        self.validation.validator(&self.episodes.noise)
    }

    /// The shape of the images and the number of classes, which define the network.
    fn size(&self) -> ModelSize {
        model_size(&self.pictures.preprocessing(), self.episodes.ways)
    }

    /// The configuration in model files, with the adaptation for validation and test.
    fn config(&self) -> MamlConfig {
        let AdaptationSettings { inner_rate, test_steps, .. } = self.adaptation;
        MamlConfig { ways: self.episodes.ways, rate: inner_rate as f32, steps: test_steps }
    }
}

/// MAML in training on the CPU: one task per thread, each with its own gradient.
struct CpuMamlSession {
    weights: CpuWeights,
    /// The working memory for one task each; those that no thread is using.
    learners: Mutex<Vec<MamlLearner>>,
    configuration: MamlConfiguration,
}

impl CpuMamlSession {
    /// The mean loss of the tasks. Task `i` adds to gradient `i` of the weights, which [`CpuWeights::update`] sums.
    fn gradients(&mut self, tasks: &[EpisodeBatch]) -> f64 {
        let CpuWeights { parameters, gradients, .. } = &mut self.weights;
        let (configuration, learners) = (&self.configuration, &self.learners);
        let losses: Vec<f64> = gradients
            .par_iter_mut()
            .zip(tasks)
            .map(|(gradient, task)| {
                let unused = learners.lock().expect("no thread panics while it holds the lock").pop();
                let mut learner = unused.unwrap_or_else(|| MamlLearner::new(configuration.size()));
                let loss = task_gradient(&mut learner, configuration, parameters, task, gradient);
                learners.lock().expect("no thread panics while it holds the lock").push(learner);
                loss
            })
            .collect();
        losses.iter().sum::<f64>() / tasks.len() as f64
    }
}

impl CpuSession for CpuMamlSession {
    type Batch = Vec<EpisodeBatch>;

    fn weights(&self) -> &CpuWeights {
        &self.weights
    }

    fn weights_mut(&mut self) -> &mut CpuWeights {
        &mut self.weights
    }

    fn train_step(&mut self, step: u64, tasks: &Vec<EpisodeBatch>) -> trueshot::Result<Vec<f64>> {
        let loss = self.gradients(tasks);
        // A step whose loss is not finite changes nothing; the training loop reports it.
        if loss.is_finite() {
            // The factor makes a mean of the sum over the tasks.
            self.weights.update(step, 1.0 / tasks.len() as f64)?;
        }
        Ok(vec![loss])
    }
}

/// MAML in training: loads the tasks and validates; a [`TrainingSession`] computes the steps.
pub struct MamlTrainee {
    session: Box<dyn TrainingSession<Batch = Vec<EpisodeBatch>>>,
    loader: Loader<TaskBatches>,
    validation: Option<ValidationData>,
    configuration: MamlConfiguration,
    /// The GPU that trains; `None` on the CPU.
    gpu: Option<Gpu>,
    /// A warning for the user, such as that the images do not fit into the memory of the GPU.
    warning: Option<String>,
}

/// The images to validate on, in the form that the device takes.
enum ValidationData {
    /// The images as rows of pixels, and the outliers as rows of pixels.
    Cpu(Box<(Embeddings, Option<Embeddings>)>),
    #[cfg(feature = "cuda")]
    Gpu(Box<gpu::GpuValidation>),
}

impl MamlTrainee {
    /// A trainee on the CPU.
    ///
    /// # Errors
    /// If an option is outside its range, or the data has too few classes or images.
    pub fn new(configuration: MamlConfiguration, datasets: Datasets) -> Result<Self> {
        let (parameters, episodes) = prepare(&configuration, &datasets)?;
        let rows = |dataset: Option<Arc<Dataset>>| dataset.map(|dataset| dataset.rows(None)).transpose();
        let (rows, outliers) = (rows(datasets.validation)?, rows(datasets.validation_outliers)?);
        let validation = rows.map(|rows| ValidationData::Cpu(Box::new((rows, outliers))));
        let (optimiser, steps) = (&configuration.optimiser, configuration.steps);
        let (layout, per_step) = (maml::layout(configuration.size()), configuration.episodes.per_step);
        let config = adamw_config(&configuration);
        let session = CpuMamlSession {
            weights: CpuWeights::new(layout, parameters, per_step, config, optimiser, steps),
            learners: Mutex::default(),
            configuration: configuration.clone(),
        };
        let loader = loader(TaskBatches { episodes, per_step });
        let (gpu, warning) = (None, None);
        Ok(MamlTrainee { session: Box::new(session), loader, validation, configuration, gpu, warning })
    }

    /// A trainee on a GPU, which stores all images to train and validate on and all outliers if they fit into its
    /// memory.
    ///
    /// # Errors
    /// Those of [`MamlTrainee::new`], and if the memory of the GPU does not suffice.
    #[cfg(feature = "cuda")]
    pub fn on_gpu(
        configuration: MamlConfiguration,
        datasets: Datasets,
        device: &trueshot_cuda::Device,
    ) -> Result<Self> {
        Self::on_gpu_with(configuration, datasets, device, None)
    }

    /// [`MamlTrainee::on_gpu`] with a limit on the bytes of the images to train on; `None`: as much as the free memory
    /// of the GPU allows.
    #[cfg(feature = "cuda")]
    fn on_gpu_with(
        configuration: MamlConfiguration,
        datasets: Datasets,
        device: &trueshot_cuda::Device,
        most_image_bytes: Option<usize>,
    ) -> Result<Self> {
        let (parameters, mut episodes) = prepare(&configuration, &datasets)?;
        let validation = gpu::GpuValidation::new(device, &configuration, &datasets)?;
        let validation = validation.map(|validation| ValidationData::Gpu(Box::new(validation)));
        let most_image_bytes = match most_image_bytes {
            Some(most) => most,
            None => super::gpu::most_image_bytes(device)?,
        };
        let session = GpuSession::maml(device, &configuration, &datasets, &parameters, most_image_bytes)?;
        episodes.on_gpu = session.warning.is_none();
        let batches = TaskBatches { episodes, per_step: configuration.episodes.per_step };
        let loader = super::gpu_loader(batches, session.steps_at_once());
        let (gpu, warning) = (Some(device.clone()), session.warning.clone());
        Ok(MamlTrainee { session: Box::new(session), loader, validation, configuration, gpu, warning })
    }

    /// The current parameters.
    pub fn parameters(&self) -> trueshot::Result<Cow<'_, [f32]>> {
        self.session.parameters()
    }
}

/// The optimiser; without weight decay, the default, AdamW is Adam.
fn adamw_config(configuration: &MamlConfiguration) -> AdamWConfig {
    AdamWConfig { weight_decay: configuration.optimiser.weight_decay, ..Default::default() }
}

/// Checks a configuration and its data, and returns initial parameters and the source of episodes.
fn prepare(configuration: &MamlConfiguration, datasets: &Datasets) -> Result<(Vec<f32>, EpisodeBatches)> {
    configuration.check()?;
    let MamlEpisodeSettings { ways, shots, queries, .. } = configuration.episodes;
    let (seed, train) = (configuration.seed, Arc::clone(&datasets.train));
    let episodes = EpisodeBatches {
        outliers: datasets.outliers.clone(),
        preparer: ImagePreparer::new(train, &configuration.pictures, &configuration.augmentation, seed),
        spec: EpisodeSpec { ways, shots: Shots::exactly(shots), queries, seed },
        noises: shared::flatten_noise(&configuration.episodes.noise),
        on_gpu: false,
    };
    episodes.check()?;
    if let Some((rows, outliers)) = datasets.validation_labels() {
        configuration.validator().check(rows, outliers)?;
    }
    if configuration.from.as_os_str().is_empty() {
        let mut rng = Rng::new(seed, Purpose::Parameters, 0);
        return Ok((maml::initial(configuration.size(), &mut || rng.fraction()), episodes));
    }
    let model = model::Model::open(&configuration.from)?;
    model.expect_kind(KIND)?;
    Ok((model.parameters(&maml::layout(configuration.size()))?, episodes))
}

/// The loss of one task on its queries after the adaptation to its support set. Adds its gradient with respect to the
/// initial `parameters` to `gradient`.
fn task_gradient(
    learner: &mut MamlLearner,
    configuration: &MamlConfiguration,
    parameters: &[f32],
    task: &EpisodeBatch,
    gradient: &mut [f32],
) -> f64 {
    let pixels = configuration.size().shape.pixels();
    let (support, queries) = task.images.split_at(task.given.len() * pixels);
    learner.meta_gradient(
        parameters,
        LabelledImages { images: support, classes: &task.given },
        LabelledImages { images: queries, classes: &task.query_classes },
        configuration.adaptation.in_training(),
        configuration.adaptation.gradient_order(),
        gradient,
    )
}

impl Trainee for MamlTrainee {
    fn terms(&self) -> Vec<String> {
        vec!["queries".into()]
    }

    session_methods!();

    fn validate(&mut self) -> trueshot::Result<Option<Validation>> {
        #[cfg(feature = "cuda")]
        if let Some(ValidationData::Gpu(validation)) = &self.validation {
            return validation.validate(&self.session.parameters()?).map(Some);
        }
        #[cfg_attr(not(feature = "cuda"), allow(irrefutable_let_patterns))]
        let Some(ValidationData::Cpu(data)) = &self.validation else { return Ok(None) };
        let (rows, outliers) = &**data;
        let (preprocessing, config) =
            (self.configuration.pictures.preprocessing(), self.configuration.config());
        let method = Maml::new(preprocessing, config, self.parameters()?.into_owned(), PathBuf::from(KIND));
        let method = NamedMethod { label: KIND.into(), method: Box::new(method) };
        self.configuration.validator().validate(rows, outliers.as_ref(), method).map(Some)
    }

    fn model(&self) -> trueshot::Result<Tensors> {
        let preprocessing = self.configuration.pictures.preprocessing();
        Ok(model_file(&preprocessing, &self.configuration.config(), &self.parameters()?))
    }
}
