//! Training on images. This file trains the Conv4 of the paper ([`BackboneTrainee`], start with its `new`): one episode
//! per step, batch norm over its images, the loss of nearest prototypes, AdamW. An *episode* is a small classification
//! problem: support items, whose labels may be wrong, and queries to classify. [`joint`] trains a Conv4 and a head
//! together; [`maml`] and [`negmargin`] train two methods that the paper compares with.
//!
//! The training loop is in the core ([`trueshot::training::train`]) and takes a [`Trainee`]. All trainees here consist
//! of a [`Loader`], which prepares the images of the next steps on its own threads (`batches`), a [`TrainingSession`],
//! which computes steps on the CPU or a GPU (`gpu`), and the validation (`validation`). Validation embeds all its
//! images once, with the running statistics of batch norm, and evaluates episodes of these embeddings, which is faster
//! than embedding episode by episode.

mod batches;
mod configuration;
mod datasets;
#[cfg(feature = "cuda")]
mod gpu;
pub mod joint;
mod loss;
pub mod maml;
pub mod negmargin;
mod validation;

use std::borrow::Cow;
use std::sync::Arc;

use serde::Serialize;
use trueshot::method::Registry;
use trueshot::model::{self, Model};
use trueshot::rng::{Purpose, Rng};
use trueshot::tensors::Tensors;
use trueshot::training::{CpuSession, CpuWeights, Trainee, TrainingSession, Validation};
use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::conv4::{self, Shape, TrainingPass};
use trueshot_nn::parameters::ParameterLayout;

pub use configuration::{
    BackboneConfiguration, DataSettings, EpisodeSettings, ImageSettings, ValidationSettings,
};
pub use datasets::Datasets;
#[cfg(feature = "cuda")]
pub(crate) use gpu::upload_images;
pub use loss::{Aggregate, EpisodeLabels, loss};
#[cfg(feature = "cuda")]
use trueshot_cuda::Device as Gpu;

use crate::backbone::{CONV4_ARCHITECTURE, write_preprocessing_notes};
use crate::error::Result;
use crate::loader::Loader;
use crate::preprocess::Preprocessing;
use batches::{EpisodeBatch, EpisodeBatches, ImagePreparer};
use validation::validate_backbone;

/// One thread prepares images per this number of threads that compute. Preparing images takes less than a tenth of the
/// time of a step.
const THREADS_PER_LOADER: usize = 8;
/// Batches that each preparing thread holds ready, for training on the CPU.
const BATCHES_READY: usize = 2;

/// The type of a GPU in a program without the feature `cuda`: it has no values, so an `Option<Gpu>` is always `None`.
#[cfg(not(feature = "cuda"))]
enum Gpu {}

#[cfg(not(feature = "cuda"))]
impl Gpu {
    fn name(&self) -> &str {
        match *self {}
    }
}

/// The methods of [`Trainee`] that are the same for all trainees on images. They use the fields `session`, `loader`,
/// `gpu` and `warning`.
macro_rules! session_methods {
    () => {
        fn step(&mut self, step: u64) -> trueshot::Result<Vec<f64>> {
            Ok(self.steps(step, 1)?.remove(0))
        }

        fn steps(&mut self, step: u64, limit: u64) -> trueshot::Result<Vec<Vec<f64>>> {
            crate::training::run_steps(&mut *self.session, &mut self.loader, step, limit)
        }

        fn rate(&self, step: u64) -> f64 {
            self.session.rate(step)
        }

        fn state(&self) -> trueshot::Result<Tensors> {
            self.session.save()
        }

        fn restore(&mut self, state: &Tensors) -> trueshot::Result<()> {
            self.session.load(state)
        }

        fn device(&self) -> Option<String> {
            self.gpu.as_ref().map(|gpu| gpu.name().to_string())
        }

        fn warnings(&self) -> Vec<String> {
            self.warning.iter().cloned().collect()
        }
    };
}
use session_methods;

/// A Conv4 in training on the CPU, with the loss of nearest prototypes.
struct CpuBackboneSession {
    weights: CpuWeights,
    /// The activations of one step.
    training: TrainingPass,
    /// Classes per episode.
    ways: usize,
    aggregate: Aggregate,
}

impl CpuSession for CpuBackboneSession {
    type Batch = EpisodeBatch;

    fn weights(&self) -> &CpuWeights {
        &self.weights
    }

    fn weights_mut(&mut self) -> &mut CpuWeights {
        &mut self.weights
    }

    fn train_step(&mut self, step: u64, batch: &EpisodeBatch) -> trueshot::Result<Vec<f64>> {
        let labels =
            EpisodeLabels { classes: self.ways, given: &batch.given, query_classes: &batch.query_classes };
        let CpuWeights { parameters, gradients, .. } = &mut self.weights;
        let features = self.training.forward(parameters, &batch.images);
        // The gradient of the loss with respect to the features.
        let mut d_features = vec![0.0; features.len()];
        let loss = loss(features, labels, self.aggregate, &mut d_features);
        // A step whose loss is not finite changes nothing; the training loop reports it.
        if loss.is_finite() {
            self.training.backward(&d_features, &mut gradients[0]);
            self.training.update_running(parameters);
            // The loss is a mean over the queries already, so its gradient is not scaled.
            self.weights.update(step, 1.0)?;
        }
        Ok(vec![loss])
    }
}

/// A Conv4 in training: loads the batches and validates; a [`TrainingSession`] computes the steps.
pub struct BackboneTrainee {
    session: Box<dyn TrainingSession<Batch = EpisodeBatch>>,
    loader: Loader<EpisodeBatches>,
    datasets: Datasets,
    configuration: BackboneConfiguration,
    /// The GPU that trains and embeds; `None` on the CPU.
    gpu: Option<Gpu>,
    /// What the user should know, such as that the images do not fit into the memory of the GPU.
    warning: Option<String>,
}

impl BackboneTrainee {
    /// A trainee on the CPU.
    ///
    /// # Errors
    /// If an option is outside its range, or the data has too few classes or images.
    pub fn new(configuration: BackboneConfiguration, datasets: Datasets) -> Result<Self> {
        let (parameters, shape, batches) = prepare(&configuration, &datasets)?;
        let config = AdamWConfig { weight_decay: configuration.optimiser.weight_decay, ..Default::default() };
        let (optimiser, steps) = (&configuration.optimiser, configuration.steps);
        let session = CpuBackboneSession {
            // One gradient: `TrainingPass` divides its work among threads itself.
            weights: CpuWeights::new(conv4::layout(shape.channels), parameters, 1, config, optimiser, steps),
            training: TrainingPass::new(shape, batches.images()),
            ways: configuration.episodes.ways,
            aggregate: configuration.episodes.aggregate,
        };
        let (session, loader) = (Box::new(session), loader(batches));
        Ok(BackboneTrainee { session, loader, datasets, configuration, gpu: None, warning: None })
    }

    /// A trainee on a GPU, which stores all images to train on and all outliers if they fit into its memory.
    ///
    /// # Errors
    /// Those of [`BackboneTrainee::new`], and if the memory of the GPU does not suffice.
    #[cfg(feature = "cuda")]
    pub fn on_gpu(
        configuration: BackboneConfiguration,
        datasets: Datasets,
        device: &trueshot_cuda::Device,
    ) -> Result<Self> {
        let most_image_bytes = gpu::most_image_bytes(device)?;
        Self::on_gpu_with(configuration, datasets, device, most_image_bytes)
    }

    /// [`BackboneTrainee::on_gpu`] with a limit on the bytes of the images.
    #[cfg(feature = "cuda")]
    fn on_gpu_with(
        configuration: BackboneConfiguration,
        datasets: Datasets,
        device: &trueshot_cuda::Device,
        most_image_bytes: usize,
    ) -> Result<Self> {
        let (parameters, shape, mut batches) = prepare(&configuration, &datasets)?;
        let session = gpu::GpuSession::backbone(
            device,
            &configuration,
            &datasets,
            shape,
            &parameters,
            most_image_bytes,
        )?;
        batches.on_gpu = session.warning.is_none();
        let loader = gpu_loader(batches, session.steps_at_once());
        let (warning, gpu) = (session.warning.clone(), Some(device.clone()));
        Ok(BackboneTrainee { session: Box::new(session), loader, datasets, configuration, gpu, warning })
    }

    /// The current parameters, including running statistics.
    ///
    /// # Errors
    /// If they cannot be read from the GPU.
    pub fn parameters(&self) -> trueshot::Result<Cow<'_, [f32]>> {
        self.session.parameters()
    }
}

/// Checks a configuration and its data, and returns initial parameters, the shape of the images, and the source of
/// episodes.
fn prepare(
    configuration: &BackboneConfiguration,
    datasets: &Datasets,
) -> Result<(Vec<f32>, Shape, EpisodeBatches)> {
    configuration.check()?;
    let (settings, train) = (&configuration.pictures, Arc::clone(&datasets.train));
    let preparer = ImagePreparer::new(train, settings, &configuration.augmentation, configuration.seed);
    let shape = preparer.shape();
    let outliers = datasets.outliers.clone();
    let (spec, noises) = (configuration.spec(), configuration.noises());
    let batches = EpisodeBatches { preparer, outliers, spec, noises, on_gpu: false };
    batches.check()?;
    if let Some((rows, outliers)) = datasets.validation_labels() {
        configuration.validator().check(rows, outliers)?;
    }
    let layout = conv4::layout(shape.channels);
    let parameters = initial_parameters(&configuration.from, configuration.seed, &layout, shape.channels)?;
    Ok((parameters, shape, batches))
}

impl Trainee for BackboneTrainee {
    fn terms(&self) -> Vec<String> {
        vec!["queries".into()]
    }

    session_methods!();

    fn validate(&mut self) -> trueshot::Result<Option<Validation>> {
        // The method that classifies as the loss does: by the nearest mean or the nearest geometric median.
        let method = match self.configuration.episodes.aggregate {
            Aggregate::Mean => "protonet",
            Aggregate::Median => "median",
        };
        let method = Registry::default().parse(method)?;
        let (validator, preprocessing) = (self.configuration.validator(), self.configuration.preprocessing());
        let backbone = (&preprocessing, &*self.parameters()?);
        validate_backbone(&validator, &self.datasets, backbone, self.gpu.as_ref(), method)
    }

    fn model(&self) -> trueshot::Result<Tensors> {
        let preprocessing = self.configuration.preprocessing();
        Ok(backbone_file(&self.configuration, &preprocessing, &self.parameters()?))
    }
}

/// Runs the steps from number `step` on: the number that the session takes per call, but at most `limit`. Returns the
/// loss terms of each step. The batches go back to the loader, which reuses their memory.
fn run_steps<S: crate::loader::BatchSource>(
    session: &mut dyn TrainingSession<Batch = S::Batch>,
    loader: &mut Loader<S>,
    step: u64,
    limit: u64,
) -> trueshot::Result<Vec<Vec<f64>>> {
    let count = limit.min(session.steps_at_once() as u64);
    let batches: Vec<S::Batch> = (step..step + count).map(|step| loader.take(step)).collect();
    let losses = session.steps(step, &batches.iter().collect::<Vec<_>>());
    for (step, batch) in (step..).zip(batches) {
        loader.give_back(step, batch);
    }
    losses
}

/// The tensors and notes of a Conv4 file.
fn backbone_file(
    configuration: &impl Serialize,
    preprocessing: &Preprocessing,
    parameters: &[f32],
) -> Tensors {
    let layout = conv4::layout(preprocessing.channels.count());
    let model = Model::new(CONV4_ARCHITECTURE, configuration, &layout, parameters);
    let mut tensors = model.tensors().clone();
    write_preprocessing_notes(&mut tensors, preprocessing, CONV4_ARCHITECTURE);
    tensors
}

/// A loader for a session on the CPU.
fn loader<S: crate::loader::BatchSource>(source: S) -> Loader<S> {
    Loader::new(source, rayon::current_num_threads().div_ceil(THREADS_PER_LOADER), BATCHES_READY)
}

/// A loader for a session on a GPU, which takes `steps_at_once` batches per call. Half of the threads prepare batches,
/// because the GPU computes; the batches of two calls are held ready.
#[cfg(feature = "cuda")]
fn gpu_loader<S: crate::loader::BatchSource>(source: S, steps_at_once: usize) -> Loader<S> {
    let threads = rayon::current_num_threads().div_ceil(2);
    Loader::new(source, threads, (2 * steps_at_once).div_ceil(threads))
}

/// The shape of the images of a network with this preprocessing.
fn shape(preprocessing: &Preprocessing) -> Shape {
    Shape { size: preprocessing.size, channels: preprocessing.channels.count() }
}

/// Random initial parameters, or those of the backbone to start from.
fn initial_parameters(
    from: &std::path::Path,
    seed: u64,
    layout: &ParameterLayout,
    channels: usize,
) -> Result<Vec<f32>> {
    if from.as_os_str().is_empty() {
        let mut rng = Rng::new(seed, Purpose::Parameters, 0);
        return Ok(conv4::initial(channels, &mut || rng.fraction()));
    }
    Ok(model::flat(layout, &model::backbone_part(&Tensors::open(from)?))?)
}
