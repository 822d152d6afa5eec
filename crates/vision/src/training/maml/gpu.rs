//! The training session of MAML on a GPU ([`GpuMamlSession`]), and validation there ([`GpuValidation`]).
//!
//! As for backbones, the images are stored on the GPU, and a batch holds the numbers of the images and their
//! augmentation.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use trueshot::method::NamedMethod;
use trueshot::tensors::Tensors;
use trueshot::training::{TrainingSession, Validation};
use trueshot_cuda::Device;
use trueshot_cuda::conv4::{STEP_SLOTS, StepImages, StepInput};
use trueshot_cuda::maml::{MamlOptions, MamlTraining};
use trueshot_nn::maml;
use trueshot_nn::parameters::ParameterLayout;
use trueshot_nn::schedule::Schedule;

use super::super::batches::EpisodeBatch;
use super::super::gpu::{read_state, state_tensors, upload_training_images};
use super::super::validation::Validator;
use super::{Datasets, MamlConfiguration, MamlEpisodeSettings, adamw_config};
use crate::dataset::Dataset;
use crate::maml::{GpuImages, GpuMaml, GpuTasks, KIND, Maml, MamlConfig};
use crate::preprocess::Preprocessing;

/// MAML in training on a GPU.
pub(super) struct GpuMamlSession {
    training: MamlTraining,
    layout: ParameterLayout,
    schedule: Schedule,
    /// Why the images are copied in every step; `None` if they are stored on the GPU.
    pub warning: Option<String>,
}

impl GpuMamlSession {
    /// Starts from `parameters`. The images are stored on the GPU, unless they take more than `most_image_bytes`.
    pub fn new(
        device: &Device,
        configuration: &MamlConfiguration,
        datasets: &Datasets,
        parameters: &[f32],
        most_image_bytes: usize,
    ) -> trueshot::Result<Self> {
        let MamlConfiguration { episodes, adaptation, optimiser, steps, pictures, .. } = configuration;
        let MamlEpisodeSettings { per_step, ways, shots, queries, .. } = *episodes;
        let options = MamlOptions {
            size: configuration.size(),
            support: ways * shots,
            queries: ways * queries,
            tasks: per_step,
            adaptation: adaptation.in_training(),
            order: adaptation.gradient_order(),
            optimiser: adamw_config(configuration),
            clip: optimiser.clip,
        };
        let (images, warning) =
            upload_training_images(device, datasets, &pictures.preprocessing(), most_image_bytes)?;
        Ok(GpuMamlSession {
            training: MamlTraining::new(device, options, parameters, images)?,
            layout: maml::layout(configuration.size()),
            schedule: optimiser.schedule(*steps),
            warning,
        })
    }
}

impl TrainingSession for GpuMamlSession {
    type Batch = [EpisodeBatch];

    fn step(&mut self, step: u64, tasks: &[EpisodeBatch]) -> trueshot::Result<Vec<f64>> {
        Ok(self.steps(step, &[tasks])?.remove(0))
    }

    fn steps_at_once(&self) -> usize {
        // The images of the tasks of several steps would take much memory.
        if self.warning.is_none() { STEP_SLOTS } else { 1 }
    }

    fn steps(&mut self, first: u64, batches: &[&[EpisodeBatch]]) -> trueshot::Result<Vec<Vec<f64>>> {
        let input = |(step, tasks): (u64, &&[EpisodeBatch])| StepInput {
            rate: self.schedule.at(step) as f32,
            labels: tasks
                .iter()
                .flat_map(|task| task.given.iter().chain(&task.query_classes))
                .copied()
                .collect(),
            images: match self.warning {
                None => StepImages::Requests(tasks.iter().flat_map(|task| task.requests.clone()).collect()),
                Some(_) => {
                    StepImages::Prepared(tasks.iter().flat_map(|task| &task.images).copied().collect())
                }
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

/// Validation on the GPU: the same episodes as on the CPU.
pub(super) struct GpuValidation {
    tasks: Arc<GpuTasks>,
    dataset: Arc<Dataset>,
    outliers: Option<Arc<Dataset>>,
    validator: Validator,
    preprocessing: Preprocessing,
    config: MamlConfig,
}

impl GpuValidation {
    /// Copies the images to validate on to the GPU; `None` if there are none.
    pub fn new(
        device: &Device,
        configuration: &MamlConfiguration,
        datasets: &Datasets,
    ) -> trueshot::Result<Option<Self>> {
        let Some(dataset) = datasets.validation.clone() else { return Ok(None) };
        let outliers = datasets.validation_outliers.clone();
        let (preprocessing, config) = (configuration.pictures.preprocessing(), configuration.config());
        let validator = configuration.validator();
        let images = GpuImages::upload(device, Arc::clone(&dataset), outliers.clone(), &preprocessing)?;
        let Validator { spec, episodes, .. } = &validator;
        let tasks = Arc::new(GpuTasks::new(&images, &preprocessing, &config, spec, *episodes)?);
        Ok(Some(GpuValidation { tasks, dataset, outliers, validator, preprocessing, config }))
    }

    /// The mean accuracy over all noise settings, and the accuracies, in percent.
    pub fn validate(&self, parameters: &[f32]) -> trueshot::Result<Validation> {
        let (preprocessing, parameters) = (self.preprocessing.clone(), parameters.to_vec());
        let maml = Maml::new(preprocessing, self.config, parameters, PathBuf::from(KIND));
        let method = GpuMaml::new(maml, Arc::clone(&self.tasks));
        let method = NamedMethod { label: KIND.into(), method: Box::new(method) };
        // Only the labels are needed: the images are on the GPU.
        let outliers = self.outliers.as_deref().map(Dataset::labels);
        self.validator.validate(self.dataset.labels(), outliers, method)
    }
}

#[cfg(all(test, feature = "emulator"))]
mod tests;
