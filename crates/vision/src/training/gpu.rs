//! The training session of a backbone on a GPU: [`GpuBackboneSession`] passes episodes to [`Conv4Training`].
//!
//! All images to train on stay on the GPU. A batch holds the numbers of the images and how they are changed, drawn by the
//! same generator as on the CPU, so both see the same episodes. If the images do not fit into the memory of the GPU, the CPU
//! prepares those of every step, which are then copied.

use std::borrow::Cow;
use std::sync::Arc;

use trueshot::Embeddings;
use trueshot::tensors::Tensors;
use trueshot::training::{SavedWeights, TrainingSession};
use trueshot_cuda::Device;
use trueshot_cuda::conv4::{
    Conv4Embedding, Conv4Options, Conv4State, Conv4Training, DeviceImages, Prototypes, STEP_SLOTS,
    StepImages, StepInput,
};
use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::conv4::{Shape, layout};
use trueshot_nn::parameters::ParameterLayout;
use trueshot_nn::schedule::Schedule;

use super::batches::EpisodeBatch;
use super::{Aggregate, BackboneConfiguration, Datasets};
use crate::dataset::Dataset;
use crate::preprocess::Preprocessing;

/// A Conv4 in training on a GPU, with the loss of nearest prototypes.
pub(super) struct GpuBackboneSession {
    training: Conv4Training,
    layout: ParameterLayout,
    schedule: Schedule,
    /// Why the images come with the steps; `None` if they are on the GPU.
    pub warning: Option<String>,
}

/// Steps at once if the images come with the steps: the images of all of them are in memory.
const STREAMED_STEPS: usize = 8;

/// The part of the free memory that images may take; the rest is for activations.
pub(super) fn most_image_bytes(device: &Device) -> trueshot::Result<usize> {
    Ok(device.memory()?.0 / 4 * 3)
}

impl GpuBackboneSession {
    /// Starts from `parameters`. The images are copied to the GPU, unless they take more than `most_image_bytes`.
    pub fn new(
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
        let TrainingImages { warning, images } =
            TrainingImages::upload(device, datasets, &configuration.preprocessing(), most_image_bytes)?;
        let training = Conv4Training::new(device, options, parameters, images)?;
        Ok(GpuBackboneSession {
            training,
            layout: layout(shape.channels),
            schedule: optimiser.schedule(*steps),
            warning,
        })
    }
}

/// The images to train on.
pub(super) struct TrainingImages {
    /// Why the images come with the steps; `None` if they are on the GPU.
    pub warning: Option<String>,
    /// The images to train on, then the outliers.
    pub images: Option<DeviceImages>,
}

impl TrainingImages {
    /// Copies the images to the GPU, unless they take more than `most_bytes`.
    pub fn upload(
        device: &Device,
        datasets: &Datasets,
        preprocessing: &Preprocessing,
        most_bytes: usize,
    ) -> trueshot::Result<Self> {
        let sets = [Some(&datasets.train), datasets.outliers.as_ref()];
        let bytes = sets.iter().flatten().flat_map(|set| set.images()).map(|image| image.pixels.len()).sum();
        match bytes <= most_bytes {
            true => {
                let images = upload_images(device, sets, preprocessing)?;
                Ok(TrainingImages { warning: None, images: Some(images) })
            }
            false => {
                let warning = streaming_warning(bytes, device.memory()?.0);
                Ok(TrainingImages { warning: Some(warning), images: None })
            }
        }
    }
}

/// Copies the images of data sets to the GPU, one set after the other.
pub(super) fn upload_images(
    device: &Device,
    sets: [Option<&Arc<Dataset>>; 2],
    preprocessing: &Preprocessing,
) -> trueshot::Result<DeviceImages> {
    let all = sets.into_iter().flatten().flat_map(|set| set.images());
    let images = all.map(|image| (&image.pixels[..], image.width, image.height));
    Ok(DeviceImages::upload(device, images, preprocessing.scale_and_shift(1.0))?)
}

fn streaming_warning(needed: usize, free: usize) -> String {
    let mib = |bytes: usize| bytes.div_ceil(1 << 20);
    format!(
        "the images need {} MiB of GPU memory and {} MiB are free: the CPU prepares the images of every step and copies \
         them to the GPU, which is slower",
        mib(needed),
        mib(free)
    )
}

impl TrainingSession for GpuBackboneSession {
    type Batch = EpisodeBatch;

    fn step(&mut self, step: u64, batch: &EpisodeBatch) -> trueshot::Result<Vec<f64>> {
        Ok(self.steps(step, &[batch])?.remove(0))
    }

    fn steps_at_once(&self) -> usize {
        if self.warning.is_none() { STEP_SLOTS } else { STREAMED_STEPS }
    }

    fn steps(&mut self, first: u64, batches: &[&EpisodeBatch]) -> trueshot::Result<Vec<Vec<f64>>> {
        let input = |(step, batch): (u64, &&EpisodeBatch)| StepInput {
            rate: self.schedule.at(step) as f32,
            labels: batch.given.iter().chain(&batch.query_classes).copied().collect(),
            images: match self.warning {
                None => StepImages::Requests(batch.requests.clone()),
                Some(_) => StepImages::Prepared(batch.images.clone()),
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
pub(super) fn state_tensors(state: Conv4State, layout: &ParameterLayout) -> Tensors {
    let Conv4State { parameters, first_moments, second_moments, updates, scale, good_steps } = state;
    let weights = SavedWeights { parameters, first: first_moments, second: second_moments, steps: updates };
    let mut state = weights.tensors(layout);
    state.set_note("loss_scale", scale.to_string());
    state.set_note("loss_scale_steps", good_steps.to_string());
    state
}

/// The state of a run from a checkpoint of a GPU or the CPU.
pub(super) fn read_state(state: &Tensors, layout: &ParameterLayout) -> trueshot::Result<Conv4State> {
    let number = |key: &str| state.note(key).and_then(|text| text.parse::<f32>().ok());
    let SavedWeights { parameters, first, second, steps } = SavedWeights::read(layout, state)?;
    // A checkpoint of the CPU has no loss scale.
    Ok(Conv4State {
        parameters,
        first_moments: first,
        second_moments: second,
        updates: steps,
        scale: number("loss_scale").unwrap_or(Conv4State::default().scale),
        good_steps: number("loss_scale_steps").map_or(0, |steps| steps as u32),
    })
}

/// Images that are embedded at once.
const IMAGES_PER_BATCH: usize = 512;

/// All images of a data set, embedded as they are.
pub(super) fn embed_dataset(
    dataset: &Dataset,
    device: &Device,
    preprocessing: &Preprocessing,
    parameters: &[f32],
) -> trueshot::Result<Embeddings> {
    let shape = super::shape(preprocessing);
    let normalisation = preprocessing.scale_and_shift(1.0);
    let mut batch = IMAGES_PER_BATCH.min(dataset.images().len().max(1));
    // Smaller batches where the memory does not suffice: the training run or other programs may take most of it.
    let mut network = loop {
        match Conv4Embedding::new(device, shape, batch, parameters, normalisation) {
            Err(trueshot_cuda::Error::OutOfMemory { .. }) if batch > 1 => batch = batch.div_ceil(4),
            other => break other?,
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
