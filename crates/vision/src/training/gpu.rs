//! Training sessions of networks on images on a GPU: [`GpuSession`] passes batches to the training of a backbone
//! ([`Conv4Training`]), of NegMargin ([`NegMarginTraining`]) or of MAML ([`MamlTraining`]).
//!
//! The trainees of [`super`] start a session with one of its three constructors (`backbone`, `negmargin`, `maml`) and
//! then call it through [`TrainingSession`]. [`GpuTraining`] is what the session needs to know about each of the three.
//!
//! All images to train on stay on the GPU. A batch holds the numbers of the images and their augmentation, drawn by the
//! same generator as on the CPU, so both see the same batches. If the images do not fit into the memory of the GPU,
//! they are *streamed*: the CPU prepares the images of every step, which are then copied.

use std::borrow::Cow;
use std::sync::Arc;

use trueshot::Embeddings;
use trueshot::tensors::Tensors;
use trueshot::training::{SavedWeights, TrainingSession};
use trueshot_cuda::conv4::{
    Conv4Embedding, Conv4Options, Conv4State, Conv4Training, DeviceImages, ImageRequest, Prototypes,
    STEP_SLOTS, StepImages, StepInput,
};
use trueshot_cuda::maml::MamlTraining;
use trueshot_cuda::negmargin::{NegMarginOptions, NegMarginTraining};
use trueshot_cuda::{Device, Result as GpuResult};
use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::conv4::{Shape, layout};
use trueshot_nn::parameters::ParameterLayout;
use trueshot_nn::schedule::Schedule;

use super::batches::{EpisodeBatch, LabelledBatch};
use super::negmargin::NegMarginConfiguration;
use super::{Aggregate, BackboneConfiguration, Datasets};
use crate::dataset::Dataset;
use crate::preprocess::Preprocessing;

/// A network in training on a GPU. `T` is the training of one kind of network by `trueshot-cuda`.
pub(super) struct GpuSession<T> {
    pub training: T,
    /// The names and shapes of the parameters, for checkpoints.
    pub layout: ParameterLayout,
    /// The learning rate of each step.
    pub schedule: Schedule,
    /// Why the images are copied in every step; `None` if they are stored on the GPU.
    pub warning: Option<String>,
}

/// Steps per call if the images are streamed. The images of all steps of a call are in memory at the same time, so they
/// are fewer than [`STEP_SLOTS`], the number for stored images.
pub(super) const STREAMED_STEPS: usize = 8;

/// The most bytes that images may take: three quarters of the free memory of the GPU. A quarter is for activations.
pub(super) fn most_image_bytes(device: &Device) -> trueshot::Result<usize> {
    let (free, _total) = device.memory()?;
    Ok(free / 4 * 3)
}

impl GpuSession<Conv4Training> {
    /// A backbone in training with the loss of nearest prototypes. The images are stored on the GPU, unless they take
    /// more than `most_image_bytes`.
    pub fn backbone(
        device: &Device,
        configuration: &BackboneConfiguration,
        datasets: &Datasets,
        shape: Shape,
        parameters: &[f32],
        most_image_bytes: usize,
    ) -> trueshot::Result<Self> {
        let BackboneConfiguration { episodes, optimiser, steps, .. } = configuration;
        let options = Conv4Options {
            shape,
            classes: episodes.ways,
            support: episodes.ways * episodes.shots,
            queries: episodes.ways * episodes.queries,
            prototypes: match episodes.aggregate {
                Aggregate::Mean => Prototypes::Mean,
                Aggregate::Median => Prototypes::Median,
            },
            optimiser: AdamWConfig { weight_decay: optimiser.weight_decay, ..Default::default() },
            clip: optimiser.clip,
        };
        let (images, warning) =
            upload_training_images(device, datasets, &configuration.preprocessing(), most_image_bytes)?;
        let training = Conv4Training::new(device, options, parameters, images)?;
        let (layout, schedule) = (layout(shape.channels), optimiser.schedule(*steps));
        Ok(GpuSession { training, layout, schedule, warning })
    }
}

impl GpuSession<NegMarginTraining> {
    /// NegMargin in training, with `parameters` in the order of `layout`. The images are stored on the GPU, unless they
    /// take more than `most_image_bytes`.
    pub fn negmargin(
        device: &Device,
        configuration: &NegMarginConfiguration,
        datasets: &Datasets,
        layout: ParameterLayout,
        parameters: &[f32],
        most_image_bytes: usize,
    ) -> trueshot::Result<Self> {
        let NegMarginConfiguration { pictures, loss, optimiser, steps, .. } = configuration;
        let preprocessing = pictures.preprocessing();
        let options = NegMarginOptions {
            shape: super::shape(&preprocessing),
            images: loss.batch,
            classes: datasets.train.labels().classes().len(),
            scale: loss.scale,
            margin: loss.margin,
            optimiser: configuration.adam(),
            clip: optimiser.clip,
        };
        let (images, warning) = upload_training_images(device, datasets, &preprocessing, most_image_bytes)?;
        let training = NegMarginTraining::new(device, &options, parameters, images)?;
        Ok(GpuSession { training, layout, schedule: optimiser.schedule(*steps), warning })
    }
}

/// Copies the images to train on and the outliers to the GPU. If they take more than `most_bytes`, copies nothing and
/// returns a warning for the user instead.
pub(super) fn upload_training_images(
    device: &Device,
    datasets: &Datasets,
    preprocessing: &Preprocessing,
    most_bytes: usize,
) -> trueshot::Result<(Option<DeviceImages>, Option<String>)> {
    let sets = [Some(&datasets.train), datasets.outliers.as_ref()];
    let bytes: usize =
        sets.iter().flatten().flat_map(|set| set.images()).map(|image| image.pixels.len()).sum();
    if bytes > most_bytes {
        let (free, _total) = device.memory()?;
        return Ok((None, Some(streaming_warning(bytes, free))));
    }
    Ok((Some(upload_images(device, sets, preprocessing)?), None))
}

/// Copies the images of data sets to the GPU, one set after the other.
pub(crate) fn upload_images(
    device: &Device,
    sets: [Option<&Arc<Dataset>>; 2],
    preprocessing: &Preprocessing,
) -> trueshot::Result<DeviceImages> {
    let images = sets.into_iter().flatten().flat_map(|set| set.images());
    let images = images.map(|image| (&image.pixels[..], image.width, image.height));
    // The GPU normalises values from 0 to 1.
    Ok(DeviceImages::upload(device, images, preprocessing.scale_and_shift(1.0))?)
}

/// Adds the loss scale to the state of a run: the factor that keeps gradients within the range of 16-bit floats. It
/// grows after a number of steps without overflow; `good_steps` is their number since the last change.
pub(super) fn save_scale(state: &mut Tensors, scale: f32, good_steps: u32) {
    state.set_note("loss_scale", scale.to_string());
    state.set_note("loss_scale_steps", good_steps.to_string());
}

/// The loss scale in the state of a run, and the steps since it changed; defaults for a checkpoint of the CPU, which
/// has no loss scale.
pub(super) fn saved_scale(state: &Tensors) -> (f32, u32) {
    let number = |key: &str| state.note(key).and_then(|text| text.parse::<f32>().ok());
    let scale = number("loss_scale").filter(|scale| scale.is_finite() && *scale > 0.0);
    let scale = scale.unwrap_or(Conv4State::default().scale);
    (scale, number("loss_scale_steps").map_or(0, |steps| steps as u32))
}

/// The warning that images are streamed; both numbers are bytes.
fn streaming_warning(needed: usize, free: usize) -> String {
    let mib = |bytes: usize| bytes.div_ceil(1 << 20);
    format!(
        "the images need {} MiB of GPU memory, more than three quarters of the {} MiB that are free: the CPU prepares the \
         images of every step and copies them to the GPU, which is slower",
        mib(needed),
        mib(free)
    )
}

/// The training of one kind of network, in the form that [`GpuSession`] needs.
pub(super) trait GpuTraining {
    /// The input of one step.
    type Batch;

    /// Steps per call if the images are streamed.
    const STREAMED_STEPS: usize = STREAMED_STEPS;

    /// The class of each image of a batch: the given labels of support items, and the classes of queries.
    fn labels(batch: &Self::Batch) -> Vec<u32>;

    /// The images as the CPU prepared them, `[image][row][column][channel]`.
    fn prepared(batch: &Self::Batch) -> Vec<f32>;

    /// The images that the GPU prepares.
    fn requests(batch: &Self::Batch) -> Vec<ImageRequest>;

    /// Runs steps and returns the loss of each.
    fn run(&mut self, steps: &[StepInput]) -> GpuResult<Vec<f32>>;

    /// The current parameters.
    fn parameters(&self) -> GpuResult<Vec<f32>>;

    /// The state of the run, for a checkpoint.
    fn state(&self) -> GpuResult<Conv4State>;

    /// Continues from a state.
    fn load(&mut self, state: &Conv4State) -> GpuResult<()>;
}

/// The methods of [`GpuTraining`] that all three types have as inherent methods of the same name.
macro_rules! forward_to_inherent_methods {
    () => {
        fn run(&mut self, steps: &[StepInput]) -> GpuResult<Vec<f32>> {
            Self::run(self, steps)
        }

        fn parameters(&self) -> GpuResult<Vec<f32>> {
            Self::parameters(self)
        }

        fn state(&self) -> GpuResult<Conv4State> {
            Self::state(self)
        }

        fn load(&mut self, state: &Conv4State) -> GpuResult<()> {
            Self::load(self, state)
        }
    };
}

impl GpuTraining for Conv4Training {
    type Batch = EpisodeBatch;

    fn labels(batch: &EpisodeBatch) -> Vec<u32> {
        batch.given.iter().chain(&batch.query_classes).copied().collect()
    }

    fn prepared(batch: &EpisodeBatch) -> Vec<f32> {
        batch.images.clone()
    }

    fn requests(batch: &EpisodeBatch) -> Vec<ImageRequest> {
        batch.requests.clone()
    }

    forward_to_inherent_methods!();
}

impl GpuTraining for NegMarginTraining {
    type Batch = LabelledBatch;

    fn labels(batch: &LabelledBatch) -> Vec<u32> {
        batch.classes.clone()
    }

    fn prepared(batch: &LabelledBatch) -> Vec<f32> {
        batch.images.clone()
    }

    fn requests(batch: &LabelledBatch) -> Vec<ImageRequest> {
        batch.requests.clone()
    }

    forward_to_inherent_methods!();
}

impl GpuTraining for MamlTraining {
    type Batch = Vec<EpisodeBatch>;

    // The images of the tasks of several steps would take much memory.
    const STREAMED_STEPS: usize = 1;

    fn labels(tasks: &Vec<EpisodeBatch>) -> Vec<u32> {
        tasks.iter().flat_map(Conv4Training::labels).collect()
    }

    fn prepared(tasks: &Vec<EpisodeBatch>) -> Vec<f32> {
        tasks.iter().flat_map(|task| &task.images).copied().collect()
    }

    fn requests(tasks: &Vec<EpisodeBatch>) -> Vec<ImageRequest> {
        tasks.iter().flat_map(|task| task.requests.clone()).collect()
    }

    forward_to_inherent_methods!();
}

impl<T: GpuTraining> TrainingSession for GpuSession<T> {
    type Batch = T::Batch;

    fn step(&mut self, step: u64, batch: &T::Batch) -> trueshot::Result<Vec<f64>> {
        Ok(self.steps(step, &[batch])?.remove(0))
    }

    fn steps_at_once(&self) -> usize {
        if self.warning.is_none() { STEP_SLOTS } else { T::STREAMED_STEPS }
    }

    fn steps(&mut self, first: u64, batches: &[&T::Batch]) -> trueshot::Result<Vec<Vec<f64>>> {
        let input = |(step, batch): (u64, &&T::Batch)| StepInput {
            rate: self.schedule.at(step) as f32,
            labels: T::labels(batch),
            images: match self.warning {
                None => StepImages::Requests(T::requests(batch)),
                Some(_) => StepImages::Prepared(T::prepared(batch)),
            },
        };
        let inputs: Vec<StepInput> = (first..).zip(batches).map(input).collect();
        let losses = self.training.run(&inputs)?;
        Ok(losses.into_iter().map(|loss| vec![f64::from(loss)]).collect())
    }

    fn rate(&self, step: u64) -> f64 {
        self.schedule.at(step)
    }

    fn parameters(&self) -> trueshot::Result<Cow<'_, [f32]>> {
        self.training.parameters().map(Cow::Owned).map_err(Into::into)
    }

    fn save(&self) -> trueshot::Result<Tensors> {
        Ok(state_tensors(self.training.state()?, &self.layout))
    }

    fn load(&mut self, state: &Tensors) -> trueshot::Result<()> {
        self.training.load(&read_state(state, &self.layout)?).map_err(Into::into)
    }
}

/// The state of a run as tensors of a checkpoint.
fn state_tensors(state: Conv4State, layout: &ParameterLayout) -> Tensors {
    let Conv4State { parameters, first_moments, second_moments, updates, scale, good_steps } = state;
    let weights = SavedWeights { parameters, first: first_moments, second: second_moments, steps: updates };
    let mut state = weights.tensors(layout);
    save_scale(&mut state, scale, good_steps);
    state
}

/// The state of a run from a checkpoint of a GPU or the CPU.
fn read_state(state: &Tensors, layout: &ParameterLayout) -> trueshot::Result<Conv4State> {
    let SavedWeights { parameters, first, second, steps } = SavedWeights::read(layout, state)?;
    let (scale, good_steps) = saved_scale(state);
    Ok(Conv4State {
        parameters,
        first_moments: first,
        second_moments: second,
        updates: steps,
        scale,
        good_steps,
    })
}

/// Images per call when a data set is embedded for validation, if the memory suffices.
const IMAGES_PER_BATCH: usize = 512;

/// The embeddings of all images of a data set, not augmented, by a Conv4 with these parameters.
pub(super) fn embed_dataset(
    dataset: &Dataset,
    device: &Device,
    preprocessing: &Preprocessing,
    parameters: &[f32],
) -> trueshot::Result<Embeddings> {
    let shape = super::shape(preprocessing);
    let normalisation = preprocessing.scale_and_shift(1.0);
    let mut batch = IMAGES_PER_BATCH.min(dataset.images().len().max(1));
    // Smaller batches if the memory does not suffice: the training run or other programs may take most of it.
    let mut network = loop {
        match Conv4Embedding::new(device, shape, batch, parameters, normalisation) {
            Err(trueshot_cuda::Error::OutOfMemory { .. }) if batch > 1 => batch = batch.div_ceil(4),
            outcome => break outcome?,
        }
    };
    let mut features = Vec::with_capacity(dataset.images().len() * shape.features());
    for images in dataset.images().chunks(batch) {
        let bytes: Vec<u8> = images.iter().flat_map(|image| image.pixels.iter().copied()).collect();
        features.extend(network.embed(&bytes)?);
    }
    Embeddings::from_rows(features, shape.features(), dataset.class_names())
}

#[cfg(all(test, feature = "emulator"))]
mod tests;
