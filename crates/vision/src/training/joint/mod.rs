//! Joint training: a Conv4 and a head are trained together, from images to the head's loss. A *head* (TraNFS or
//! Relabel) is a small network that classifies features by a support set whose labels may be wrong.
//!
//! Start with [`JointTrainee::new`]. Both networks start from trained models: a backbone, and a head trained on
//! features of this backbone. A step has several noisy episodes of images (`batches`); the `session` computes it on the
//! CPU and `gpu` on a GPU. The loss is that of the head, plus the loss of nearest prototypes on true labels, which
//! keeps the features useful by themselves. A running average of the parameters is validated and saved.
//!
//! The model file holds both: `trueshot embed --backbone FILE` reads the backbone, and `--methods relabel:model=FILE`
//! (or `tranfs`) reads the head.

mod batches;
mod configuration;
#[cfg(feature = "cuda")]
mod gpu;
mod session;

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use trueshot::method::NamedMethod;
use trueshot::model::{self, Model};
use trueshot::tensors::Tensors;
use trueshot::training::heads::{LearnedHead, open_head};
use trueshot::training::{CpuWeights, Trainee, TrainingSession, Validation};
use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::conv4;

pub use configuration::{JointConfiguration, JointEpisodeSettings};

use super::batches::ImagePreparer;
use super::validation::validate_backbone;
use super::{Datasets, Gpu, backbone_file, session_methods};
use crate::backbone::Backbone;
use crate::error::{Error, Result};
use crate::loader::Loader;
use crate::preprocess::Preprocessing;
use batches::{JointBatch, JointBatches};
use session::{CpuJointSession, PARTS, joint_layout};

/// A backbone and a head in training: loads the batches and validates; a [`TrainingSession`] computes the steps.
pub struct JointTrainee {
    session: Box<dyn TrainingSession<Batch = JointBatch>>,
    /// The kind and the options of the head; its parameters are in the session.
    head: Arc<dyn LearnedHead>,
    /// The number of parameters of the backbone, which come first.
    backbone_len: usize,
    loader: Loader<JointBatches>,
    datasets: Datasets,
    configuration: JointConfiguration,
    /// The GPU that trains and embeds; `None` on the CPU.
    gpu: Option<Gpu>,
    /// A warning for the user: the images do not fit into the memory of the GPU, so they are copied in every step.
    warning: Option<String>,
}

/// The checked inputs of a trainee.
struct Start {
    backbone_parameters: Vec<f32>,
    head: Arc<dyn LearnedHead>,
    head_parameters: Vec<f32>,
    batches: JointBatches,
}

impl Start {
    /// Checks a configuration and its data, and reads the models to start from.
    fn new(configuration: &JointConfiguration, datasets: &Datasets) -> Result<Self> {
        configuration.check()?;
        let (backbone_path, head_path) = configuration.starting_files()?;
        let backbone_parameters = starting_backbone(backbone_path, &configuration.pictures.preprocessing())?;
        let shape = super::shape(&configuration.pictures.preprocessing());
        let (head, head_parameters) = open_head(&Model::open(head_path)?, shape.features())?;
        let classes = configuration.episodes.ways.max(configuration.validation.ways);
        if let Some(model) = head.max_classes().filter(|&most| most < classes) {
            let path = head_path.into();
            return Err(trueshot::Error::TooManyClasses { path, classes, model }.into());
        }
        let (seed, settings) = (configuration.seed, &configuration.pictures);
        let batches = JointBatches {
            preparer: ImagePreparer::new(datasets.train.clone(), settings, &configuration.augmentation, seed),
            outliers: datasets.outliers.clone(),
            episodes: configuration.episodes.clone(),
            seed,
            on_gpu: false,
        };
        batches.check()?;
        if let Some((rows, outliers)) = datasets.validation_labels() {
            configuration.validator().check(rows, outliers)?;
        }
        Ok(Start { backbone_parameters, head, head_parameters, batches })
    }
}

impl JointTrainee {
    /// A trainee on the CPU.
    ///
    /// # Errors
    /// If an option is outside its range, the backbone or the head cannot be read, the head does not fit the backbone,
    /// or the data has too few classes or images.
    pub fn new(configuration: JointConfiguration, datasets: Datasets) -> Result<Self> {
        let Start { backbone_parameters, head, head_parameters, batches } =
            Start::new(&configuration, &datasets)?;
        let shape = super::shape(&configuration.pictures.preprocessing());
        let layout = joint_layout(&conv4::layout(shape.channels), head.head().layout());
        let backbone_len = backbone_parameters.len();
        let parameters = [backbone_parameters, head_parameters].concat();
        let config = AdamWConfig { weight_decay: configuration.optimiser.weight_decay, ..Default::default() };
        let (optimiser, steps) = (&configuration.optimiser, configuration.steps);
        let session = CpuJointSession {
            average: parameters.clone(),
            weights: CpuWeights::new(layout, parameters, PARTS, config, optimiser, steps),
            head: head.clone(),
            backbone_len,
            shape,
            prototype_weight: configuration.prototype_weight,
            decay: configuration.average,
            pass: None,
        };
        let loader = super::loader(batches);
        Ok(JointTrainee {
            session: Box::new(session),
            head,
            backbone_len,
            loader,
            datasets,
            configuration,
            gpu: None,
            warning: None,
        })
    }

    /// A trainee on a GPU, which stores all images to train on and all outliers if they fit into its memory.
    ///
    /// # Errors
    /// Those of [`JointTrainee::new`], and if the memory of the GPU does not suffice.
    #[cfg(feature = "cuda")]
    pub fn on_gpu(
        configuration: JointConfiguration,
        datasets: Datasets,
        device: &trueshot_cuda::Device,
    ) -> Result<Self> {
        let most_image_bytes = super::gpu::most_image_bytes(device)?;
        let Start { backbone_parameters, head, head_parameters, mut batches } =
            Start::new(&configuration, &datasets)?;
        let (session, warning) = gpu::session(
            device,
            &configuration,
            &datasets,
            &backbone_parameters,
            (&*head, &head_parameters),
            most_image_bytes,
        )?;
        // Without a warning, the images are on the GPU, which then also augments and normalises them.
        batches.on_gpu = warning.is_none();
        let loader = super::gpu_loader(batches, session.steps_at_once());
        let (backbone_len, gpu) = (backbone_parameters.len(), Some(device.clone()));
        Ok(JointTrainee { session, head, backbone_len, loader, datasets, configuration, gpu, warning })
    }

    /// The running average of the parameters: those of the backbone, then those of the head.
    ///
    /// # Errors
    /// If they cannot be read from a GPU.
    pub fn parameters(&self) -> trueshot::Result<Cow<'_, [f32]>> {
        self.session.parameters()
    }
}

/// The parameters of the backbone to start from, which must take images of the size and colour in `wanted`.
fn starting_backbone(path: &Path, wanted: &Preprocessing) -> Result<Vec<f32>> {
    let file = Tensors::open(path)?;
    let tensors = model::backbone_part(&file);
    let of_file = Backbone::from_tensors(&tensors, &path.to_string_lossy())?.preprocessing().clone();
    if (of_file.size, of_file.channels) != (wanted.size, wanted.channels) {
        let images = |preprocessing: &Preprocessing| {
            let kind = if preprocessing.channels.count() == 1 { "drawings" } else { "colour images" };
            format!("{kind} of {} px", preprocessing.size)
        };
        return Err(Error::OtherImages { path: path.into(), own: images(&of_file), wanted: images(wanted) });
    }
    Ok(model::flat(&conv4::layout(wanted.channels.count()), &tensors)?)
}

impl Trainee for JointTrainee {
    fn terms(&self) -> Vec<String> {
        let mut terms: Vec<String> =
            self.head.head().loss_terms().iter().map(|term| term.to_string()).collect();
        if self.configuration.prototype_weight > 0.0 {
            terms.push("prototypes".into());
        }
        terms
    }

    // The methods that all trainees on images share: `step`, `steps`, `rate`, `state`, `restore`, `device`, `warnings`.
    session_methods!();

    fn validate(&mut self) -> trueshot::Result<Option<Validation>> {
        let parameters = self.parameters()?;
        let (backbone_parameters, head_parameters) = parameters.split_at(self.backbone_len);
        let method = NamedMethod { label: "head".into(), method: self.head.method(head_parameters) };
        let backbone = (&self.configuration.pictures.preprocessing(), backbone_parameters);
        let validator = self.configuration.validator();
        validate_backbone(&validator, &self.datasets, backbone, self.gpu.as_ref(), method)
    }

    fn model(&self) -> trueshot::Result<Tensors> {
        let parameters = self.parameters()?;
        let (backbone_parameters, head_parameters) = parameters.split_at(self.backbone_len);
        let preprocessing = self.configuration.pictures.preprocessing();
        let backbone = backbone_file(&self.configuration, &preprocessing, backbone_parameters);
        Ok(model::joint_file(&backbone, &self.head.model(head_parameters)))
    }
}
