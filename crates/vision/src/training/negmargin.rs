//! Training of a Conv4 with NegMargin (Liu et al., ECCV 2020). Start with [`NegMarginTrainee::new`].
//!
//! Instead of episodes it trains on shuffled batches of all classes, with Adam. Each class has a trained direction; the
//! loss is the cross-entropy of the scaled cosines between features and directions, where a negative margin is
//! subtracted from the cosine of the true class: the true class gets a head start, which separates training classes
//! less and new classes better. The directions are dropped after training. The result is a backbone, whose embeddings
//! are used, also in validation, with a cosine classifier (the method `baseline++`).

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use trueshot::method::Registry;
use trueshot::ranges::require;
use trueshot::rng::{Purpose, Rng};
use trueshot::tensors::Tensors;
use trueshot::training::{CpuSession, CpuWeights, Trainee, TrainingSession, Validation};
use trueshot::training::{Optimiser, ScheduleKind};
use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::conv4::{self, TrainingPass};
use trueshot_nn::initialisation;
use trueshot_nn::layers::cosine_margin::{Margin, cosine_margin};
use trueshot_nn::parameters::{ParameterLayout, Role};

use super::batches::{ImagePreparer, LabelledBatch, ShuffledBatches};
use super::configuration::{self as shared, DataSettings, ImageSettings, MAX_IMAGES, ValidationSettings};
use super::validation::{Validator, validate_backbone};
use super::{BackboneConfiguration, Datasets, Gpu};
use super::{backbone_file, initial_parameters, loader, session_methods};
#[cfg(feature = "cuda")]
use super::{gpu, gpu_loader};
use crate::augment::Augmentation;
use crate::error::Result;
use crate::loader::Loader;

/// How to train NegMargin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NegMarginConfiguration {
    /// The random seed.
    pub seed: u64,
    /// The number of training steps.
    pub steps: u64,
    /// A backbone to start from; empty: a new one.
    pub from: PathBuf,
    /// The data to train and validate on.
    pub data: DataSettings,
    /// Size, colour and fit of the images.
    pub pictures: ImageSettings,
    /// The loss and its batch size.
    pub loss: LossSettings,
    /// The random augmentation of the images.
    pub augmentation: Augmentation,
    /// How the model is validated during training.
    pub validation: ValidationSettings,
    /// The optimiser and its learning rate: Adam, whose weight decay is part of the gradient.
    pub optimiser: Optimiser,
}

/// The loss and its batch size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LossSettings {
    /// Images per step.
    pub batch: usize,
    /// Factor of all cosines, which turns them (-1 to 1) into logits.
    pub scale: f64,
    /// Margin subtracted from the cosine of the true class before scaling; negative in NegMargin.
    pub margin: f64,
}

impl NegMarginConfiguration {
    /// The authors' settings for photographs.
    pub fn photographs() -> Self {
        let backbone = BackboneConfiguration::photographs();
        NegMarginConfiguration {
            seed: backbone.seed,
            steps: 60_000,
            from: PathBuf::new(),
            data: backbone.data,
            pictures: backbone.pictures,
            loss: LossSettings { batch: 128, scale: 30.0, margin: -0.02 },
            augmentation: backbone.augmentation,
            validation: ValidationSettings { noise: vec![shared::no_noise()], ..backbone.validation },
            optimiser: Optimiser {
                weight_decay: 1e-4,
                warm_up: 0.0,
                schedule: ScheduleKind::Constant,
                ..Optimiser::default()
            },
        }
    }

    /// The defaults for the built-in drawings.
    pub fn drawings() -> Self {
        let (photographs, backbone) = (Self::photographs(), BackboneConfiguration::drawings());
        NegMarginConfiguration {
            pictures: backbone.pictures,
            validation: ValidationSettings { queries: backbone.validation.queries, ..photographs.validation },
            ..photographs
        }
    }

    /// Checks that all numbers are in their ranges.
    pub fn check(&self) -> Result<()> {
        let LossSettings { batch, scale, margin } = self.loss;
        require("loss.batch", batch, (2..=MAX_IMAGES).contains(&batch), &format!("2 to {MAX_IMAGES}"))?;
        require("loss.scale", scale, scale > 0.0 && scale.is_finite(), "a number above 0")?;
        require("loss.margin", margin, (-2.0..=2.0).contains(&margin), "a number from -2 to 2")?;
        let outliers = &self.data.outliers;
        require(
            "data.outliers",
            outliers.display(),
            outliers.as_os_str().is_empty(),
            "none, because batches of NegMargin have no noise",
        )?;
        shared::check_noise("validation.noise", &shared::flatten_noise(&self.validation.noise))?;
        let NegMarginConfiguration { steps, seed, pictures, augmentation, validation, optimiser, .. } = self;
        shared::check_common(*steps, *seed, pictures, augmentation, validation, optimiser)
    }

    /// The validator of the trained backbone. Training has no noise that could replace empty noise settings.
    fn validator(&self) -> Validator {
        self.validation.validator(&[])
    }

    /// Adam with L2 regularisation: the weight decay is part of the gradient, unlike in AdamW.
    pub(super) fn adam(&self) -> AdamWConfig {
        AdamWConfig { weight_decay: 0.0, l2: self.optimiser.weight_decay, ..Default::default() }
    }
}

/// NegMargin in training on the CPU. The parameters are those of the Conv4, followed by one direction per class.
struct CpuNegMarginSession {
    weights: CpuWeights,
    /// The activations of one step.
    training: TrainingPass,
    /// The scale and the margin of the loss.
    margin: Margin,
    /// The number of parameters of the Conv4.
    backbone_len: usize,
}

impl CpuSession for CpuNegMarginSession {
    type Batch = LabelledBatch;

    fn weights(&self) -> &CpuWeights {
        &self.weights
    }

    fn weights_mut(&mut self) -> &mut CpuWeights {
        &mut self.weights
    }

    fn train_step(&mut self, step: u64, batch: &LabelledBatch) -> trueshot::Result<Vec<f64>> {
        // The parameters from this index on are the directions of the classes.
        let directions = self.backbone_len;
        let CpuWeights { parameters, gradients, .. } = &mut self.weights;
        let features = self.training.forward(parameters, &batch.images);
        // The gradient of the loss with respect to the features.
        let mut d_features = vec![0.0; features.len()];
        let loss = cosine_margin(
            features,
            &parameters[directions..],
            &batch.classes,
            self.margin,
            &mut d_features,
            &mut gradients[0][directions..],
        );
        // A step whose loss is not finite changes nothing; the training loop reports it.
        if loss.is_finite() {
            self.training.backward(&d_features, &mut gradients[0]);
            self.training.update_running(parameters);
            // The loss is a mean over the images already, so its gradient is not scaled.
            self.weights.update(step, 1.0)?;
        }
        Ok(vec![loss])
    }
}

/// NegMargin in training: loads the batches and validates; a [`TrainingSession`] computes the steps.
pub struct NegMarginTrainee {
    session: Box<dyn TrainingSession<Batch = LabelledBatch>>,
    /// The number of parameters of the Conv4; the directions of the classes follow them.
    backbone_len: usize,
    loader: Loader<ShuffledBatches>,
    datasets: Datasets,
    configuration: NegMarginConfiguration,
    /// The GPU that trains and embeds; `None` on the CPU.
    gpu: Option<Gpu>,
    /// A warning for the user, such as that the images do not fit into the memory of the GPU.
    warning: Option<String>,
}

impl NegMarginTrainee {
    /// A trainee on the CPU. Training batches have no noise, so outliers are for validation only.
    ///
    /// # Errors
    /// If an option is outside its range, or the data has too few classes or images.
    pub fn new(configuration: NegMarginConfiguration, datasets: Datasets) -> Result<Self> {
        let Prepared { layout, parameters, backbone_len, batches } = prepare(&configuration, &datasets)?;
        let LossSettings { batch, scale, margin } = configuration.loss;
        let (optimiser, steps) = (&configuration.optimiser, configuration.steps);
        let session = CpuNegMarginSession {
            // One gradient: `TrainingPass` divides its work among threads itself.
            weights: CpuWeights::new(layout, parameters, 1, configuration.adam(), optimiser, steps),
            training: TrainingPass::new(batches.preparer.shape(), batch),
            margin: Margin { scale, margin },
            backbone_len,
        };
        Ok(NegMarginTrainee {
            session: Box::new(session),
            backbone_len,
            loader: loader(batches),
            datasets,
            configuration,
            gpu: None,
            warning: None,
        })
    }

    /// A trainee on a GPU, which stores all images to train on if they fit into its memory.
    ///
    /// # Errors
    /// Those of [`NegMarginTrainee::new`], and if the memory of the GPU does not suffice.
    #[cfg(feature = "cuda")]
    pub fn on_gpu(
        configuration: NegMarginConfiguration,
        datasets: Datasets,
        device: &trueshot_cuda::Device,
    ) -> Result<Self> {
        let most_image_bytes = gpu::most_image_bytes(device)?;
        Self::on_gpu_with(configuration, datasets, device, most_image_bytes)
    }

    /// [`NegMarginTrainee::on_gpu`] with a limit on the bytes of the images.
    #[cfg(feature = "cuda")]
    pub(super) fn on_gpu_with(
        configuration: NegMarginConfiguration,
        datasets: Datasets,
        device: &trueshot_cuda::Device,
        most_image_bytes: usize,
    ) -> Result<Self> {
        let Prepared { layout, parameters, backbone_len, mut batches } = prepare(&configuration, &datasets)?;
        let session = gpu::GpuSession::negmargin(
            device,
            &configuration,
            &datasets,
            layout,
            &parameters,
            most_image_bytes,
        )?;
        batches.on_gpu = session.warning.is_none();
        Ok(NegMarginTrainee {
            backbone_len,
            loader: gpu_loader(batches, session.steps_at_once()),
            datasets,
            configuration,
            gpu: Some(device.clone()),
            warning: session.warning.clone(),
            session: Box::new(session),
        })
    }

    /// The current parameters of the backbone, including running statistics.
    pub fn parameters(&self) -> trueshot::Result<Vec<f32>> {
        Ok(self.session.parameters()?[..self.backbone_len].to_vec())
    }
}

/// The checked inputs of a session.
struct Prepared {
    /// The parameters of the Conv4, followed by one direction per class.
    layout: ParameterLayout,
    parameters: Vec<f32>,
    /// The number of parameters of the Conv4.
    backbone_len: usize,
    batches: ShuffledBatches,
}

/// Checks a configuration and its data, and draws the initial parameters.
fn prepare(configuration: &NegMarginConfiguration, datasets: &Datasets) -> Result<Prepared> {
    configuration.check()?;
    let train = Arc::clone(&datasets.train);
    let (seed, batch) = (configuration.seed, configuration.loss.batch);
    let (images, classes) = (train.images().len(), train.labels().classes().len());
    require("classes to train on", classes, classes >= 2, "2 or more")?;
    require("loss.batch", batch, batch <= images, &format!("2 to {images}, the number of images"))?;
    if let Some((rows, outliers)) = datasets.validation_labels() {
        configuration.validator().check(rows, outliers)?;
    }
    let preparer = ImagePreparer::new(train, &configuration.pictures, &configuration.augmentation, seed);
    let shape = preparer.shape();
    let mut layout = conv4::layout(shape.channels);
    let mut parameters = initial_parameters(&configuration.from, seed, &layout, shape.channels)?;
    let backbone_len = parameters.len();
    // One direction per class, `[classes, D]`, after the parameters of the Conv4.
    let range = layout.add("directions", &[classes, shape.features()], Role::Trained);
    let (mut directions, mut rng) = (vec![0.0; range.len()], Rng::new(seed, Purpose::Parameters, 1));
    let bound = initialisation::xavier_bound(shape.features(), classes);
    initialisation::fill_uniform(&mut directions, bound, &mut || rng.fraction());
    parameters.extend(directions);
    let batches = ShuffledBatches { preparer, size: batch, on_gpu: false };
    Ok(Prepared { layout, parameters, backbone_len, batches })
}

impl Trainee for NegMarginTrainee {
    fn terms(&self) -> Vec<String> {
        vec!["classes".into()]
    }

    session_methods!();

    fn validate(&mut self) -> trueshot::Result<Option<Validation>> {
        let backbone = (&self.configuration.pictures.preprocessing(), &*self.parameters()?);
        let method = Registry::default().parse("baseline++")?;
        validate_backbone(
            &self.configuration.validator(),
            &self.datasets,
            backbone,
            self.gpu.as_ref(),
            method,
        )
    }

    fn model(&self) -> trueshot::Result<Tensors> {
        let preprocessing = self.configuration.pictures.preprocessing();
        Ok(backbone_file(&self.configuration, &preprocessing, &self.parameters()?))
    }
}
