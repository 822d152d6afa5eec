//! The training session of MAML on a GPU ([`GpuMamlSession`]), and validation there ([`GpuValidation`]).
//!
//! As for backbones, the images stay on the GPU, and a batch holds the numbers of the images and how they are changed.

use std::borrow::Cow;
use std::sync::Arc;

use trueshot::episode::{DrawnEpisode, Episodes, Item, Sampler};
use trueshot::rng::IndexSampler;
use trueshot::tensors::Tensors;
use trueshot::training::{TrainingSession, Validation};
use trueshot_cuda::Device;
use trueshot_cuda::conv4::{ImageRequest, STEP_SLOTS, StepImages, StepInput};
use trueshot_cuda::maml::{EvaluationOptions, MamlEvaluation, MamlOptions, MamlTask, MamlTraining};
use trueshot_nn::maml::{self, Adaptation};
use trueshot_nn::parameters::ParameterLayout;
use trueshot_nn::schedule::Schedule;

use super::super::batches::EpisodeBatch;
use super::super::gpu::{read_state, state_tensors, upload_images, upload_training_images};
use super::super::validation::{Validator, setting_name};
use super::{AdaptationSettings, Datasets, MamlConfiguration, MamlEpisodeSettings, adamw_config};
use crate::augment::DrawnAugmentation;
use crate::dataset::Dataset;

/// MAML in training on a GPU.
pub(super) struct GpuMamlSession {
    training: MamlTraining,
    layout: ParameterLayout,
    schedule: Schedule,
    /// Why the images come with the steps; `None` if they are on the GPU.
    pub warning: Option<String>,
}

impl GpuMamlSession {
    /// Starts from `parameters`. The images are copied to the GPU, unless they take more than `most_image_bytes`.
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
    evaluation: MamlEvaluation,
    dataset: Arc<Dataset>,
    outliers: Option<Arc<Dataset>>,
    validator: Validator,
    ways: usize,
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
        let settings = &configuration.validation;
        let AdaptationSettings { inner_rate, test_steps, .. } = configuration.adaptation;
        let options = EvaluationOptions {
            size: configuration.size(),
            support: settings.ways * settings.shots,
            queries: settings.ways * settings.queries,
            tasks: usize::try_from(settings.episodes).unwrap_or(usize::MAX),
            adaptation: Adaptation { rate: inner_rate as f32, steps: test_steps },
        };
        let preprocessing = configuration.pictures.preprocessing();
        let images = upload_images(device, [Some(&dataset), outliers.as_ref()], &preprocessing)?;
        let evaluation = MamlEvaluation::new(device, options, images)?;
        let (validator, ways) = (configuration.validator(), settings.ways);
        Ok(Some(GpuValidation { evaluation, dataset, outliers, validator, ways }))
    }

    /// The mean accuracy over all noise settings, and the accuracies, in percent.
    pub fn validate(&mut self, parameters: &[f32]) -> trueshot::Result<Validation> {
        let outliers = self.outliers.as_deref().map(Dataset::labels);
        let Validator { spec, noises, episodes } = &self.validator;
        let sampler = Sampler::new(self.dataset.labels(), outliers, *spec, noises.clone())?;
        let mut index_sampler = IndexSampler::default();
        let drawn: Vec<DrawnEpisode> =
            (0..*episodes).map(|index| sampler.draw(index, &mut index_sampler)).collect::<Result<_, _>>()?;
        let mut figures = Vec::new();
        for (setting, noise) in sampler.noises().iter().enumerate() {
            let tasks: Vec<MamlTask> = drawn.iter().map(|drawn| self.task(drawn, setting)).collect();
            let logits = self.evaluation.logits(parameters, &tasks)?;
            let accuracies = drawn.iter().zip(&logits).map(|(drawn, logits)| self.accuracy(drawn, logits));
            let mean = accuracies.sum::<f64>() / drawn.len() as f64;
            // Rounded as in evaluations.
            figures.push((setting_name(*noise), (mean * 1e4).round() / 1e4));
        }
        let score = figures.iter().map(|(_, accuracy)| accuracy).sum::<f64>() / figures.len() as f64;
        Ok(Validation { score, figures })
    }

    /// The task of an episode under a noise setting.
    fn task(&self, drawn: &DrawnEpisode, setting: usize) -> MamlTask {
        let support = &drawn.supports[setting];
        let own = self.dataset.images();
        let request = |row: u32, is_outlier: bool| -> ImageRequest {
            let (images, first) = match (&self.outliers, is_outlier) {
                (Some(outliers), true) => (outliers.images(), own.len() as u32),
                _ => (own, 0),
            };
            let image = &images[row as usize];
            DrawnAugmentation::identity(image.width, image.height).request(first + row)
        };
        let item = |item: &Item| request(item.row, item.truth.is_none());
        let queries = drawn.episode.classes.iter().flat_map(|class| &class.queries);
        MamlTask {
            given: support.iter().map(|item| item.given).collect(),
            images: support.iter().map(item).chain(queries.map(|&row| request(row, false))).collect(),
        }
    }

    /// The percentage of an episode's queries whose class has the largest logit.
    fn accuracy(&self, drawn: &DrawnEpisode, logits: &[f32]) -> f64 {
        let answers = drawn.episode.classes.iter().enumerate();
        let answers = answers.flat_map(|(class, drawn)| std::iter::repeat_n(class, drawn.queries.len()));
        let is_right = |(answer, logits): (usize, &[f32])| {
            let best =
                (1..logits.len()).fold(0, |best, way| if logits[way] > logits[best] { way } else { best });
            best == answer && logits.iter().all(|logit| logit.is_finite())
        };
        let rows = logits.chunks_exact(self.ways);
        let count = rows.len();
        100.0 * answers.zip(rows).filter(|pair| is_right(*pair)).count() as f64 / count as f64
    }
}

#[cfg(all(test, feature = "emulator"))]
mod tests;
