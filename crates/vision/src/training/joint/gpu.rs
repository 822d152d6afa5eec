//! The training session of a backbone and a head on a GPU: [`GpuJointSession`] passes the episodes of a [`JointBatch`]
//! to [`JointTraining`].
//!
//! The images are stored as in the training of a backbone alone ([`crate::training::gpu`]), and the episodes are the
//! same as on the CPU.

use std::borrow::Cow;

use trueshot::model::{flat, named};
use trueshot::tensors::Tensors;
use trueshot::training::heads::{EpisodeLabels, GpuHead, LearnedHead};
use trueshot::training::{SavedWeights, TrainingSession};
use trueshot_cuda::Device;
use trueshot_cuda::conv4::{Conv4State, STEP_SLOTS, StepImages};
use trueshot_cuda::joint::{
    HeadTraining, HeadWeights, JointEpisode, JointOptions, JointPart, JointState, JointStep, JointTraining,
};
use trueshot_cuda::relabel::{OptimiserOptions, RelabelTraining};
use trueshot_cuda::tranfs::{Limits, TranfsOptions, TranfsTraining};
use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::conv4;
use trueshot_nn::parameters::ParameterLayout;
use trueshot_nn::schedule::Schedule;

use super::batches::JointBatch;
use super::session::{decay_in_step, joint_layout, parts, seed_of_part};
use super::{JointConfiguration, JointEpisodeSettings};
use crate::training::Datasets;
use crate::training::gpu::{STREAMED_STEPS, save_scale, saved_scale, upload_training_images};

/// A session with either head, TraNFS or Relabel.
pub(super) type BoxedSession = Box<dyn TrainingSession<Batch = JointBatch>>;

/// Starts a session from the parameters of a backbone and of a head. The images are stored on the GPU unless they take
/// more than `most_image_bytes`; then also returns a warning for the user.
pub(super) fn session(
    device: &Device,
    configuration: &JointConfiguration,
    datasets: &Datasets,
    backbone_parameters: &[f32],
    (head, head_parameters): (&dyn LearnedHead, &[f32]),
    most_image_bytes: usize,
) -> trueshot::Result<(BoxedSession, Option<String>)> {
    let (episodes, optimiser) = (&configuration.episodes, &configuration.optimiser);
    let shape = crate::training::shape(&configuration.pictures.preprocessing());
    let adamw = AdamWConfig { weight_decay: optimiser.weight_decay, ..Default::default() };
    // Memory is allocated for the largest step of any number of shots.
    let most_shots = episodes.shots.iter().copied().max().unwrap_or(1);
    let most_images = episodes
        .shots
        .iter()
        .map(|&shots| episodes.per_step(shots) * episodes.ways * (shots + episodes.queries));
    let options = JointOptions {
        shape,
        images: most_images.max().unwrap_or(1),
        episodes: episodes.shots.iter().map(|&shots| episodes.per_step(shots)).max().unwrap_or(1),
        classes: episodes.ways,
        prototype_weight: configuration.prototype_weight,
        optimiser: adamw,
        clip: optimiser.clip,
        feature_mean: head.head().feature_mean(),
        subtracts_mean: head.head().subtracts_feature_mean(),
    };
    let preprocessing = configuration.pictures.preprocessing();
    let (images, warning) = upload_training_images(device, datasets, &preprocessing, most_image_bytes)?;
    let common = Common {
        layout: joint_layout(&conv4::layout(shape.channels), head.head().layout()),
        backbone_len: backbone_parameters.len(),
        schedule: optimiser.schedule(configuration.steps),
        decay: configuration.average,
        images_are_stored: warning.is_none(),
    };
    // One step for each number of shots, for which memory is reserved below, so that too large episodes are refused
    // before the run starts.
    let empty_steps: Vec<JointStep> =
        episodes.shots.iter().map(|&shots| empty_step(episodes, shots)).collect();
    let session: BoxedSession = match head.gpu_head().expect("a joint head can be trained on a GPU") {
        GpuHead::Relabel(network) => {
            let optimiser_options = OptimiserOptions { adamw, clip: optimiser.clip };
            let (rows, dim) = (options.images, shape.features());
            let head =
                RelabelTraining::joint(device, network, optimiser_options, head_parameters, rows, dim)?;
            let mut training = JointTraining::new(device, options, backbone_parameters, head, images)?;
            training.reserve(&empty_steps)?;
            Box::new(GpuJointSession { training, common })
        }
        GpuHead::Tranfs(network) => {
            let limits = Limits {
                episodes: options.episodes,
                support: episodes.ways * most_shots,
                queries: episodes.ways * episodes.queries,
            };
            let head_options = TranfsOptions { optimiser: adamw, clip: optimiser.clip, limits };
            let head = TranfsTraining::joint(device, network, head_options, head_parameters, options.images)?;
            let mut training = JointTraining::new(device, options, backbone_parameters, head, images)?;
            training.reserve(&empty_steps)?;
            Box::new(GpuJointSession { training, common })
        }
    };
    Ok((session, warning))
}

/// A step of the given number of shots without images: only the sizes of its episodes matter.
fn empty_step(episodes: &JointEpisodeSettings, shots: usize) -> JointStep {
    // The classes of `per_class` items per class.
    let labels = |per_class: usize| (0..episodes.ways * per_class).map(move |item| (item / per_class) as u32);
    let episode = JointEpisode {
        classes: episodes.ways,
        given: labels(shots).collect(),
        truth: labels(shots).map(Some).collect(),
        query_classes: labels(episodes.queries).collect(),
    };
    let part = JointPart { dropout_seed: 0, episodes: vec![episode; episodes.per_step(shots)] };
    JointStep { rate: 0.0, keep: 0.0, parts: vec![part], images: StepImages::Requests(Vec::new()) }
}

/// The fields of a session that do not depend on the head.
struct Common {
    layout: ParameterLayout,
    /// The number of parameters of the backbone, which come first.
    backbone_len: usize,
    schedule: Schedule,
    /// The decay of the running average of the parameters.
    decay: f64,
    /// Whether the images are stored on the GPU; otherwise they are copied in every step.
    images_are_stored: bool,
}

/// A backbone and a head in training on a GPU.
struct GpuJointSession<H> {
    training: JointTraining<H>,
    common: Common,
}

impl Common {
    /// The input of step number `step` in the form that the GPU takes.
    fn input(&self, step: u64, batch: &JointBatch) -> JointStep {
        let episode = |labels: &EpisodeLabels| JointEpisode {
            classes: labels.classes,
            given: labels.given.clone(),
            truth: labels.truth.clone(),
            query_classes: labels.query_classes.clone(),
        };
        let part = |(part, labels): (usize, &[EpisodeLabels])| JointPart {
            dropout_seed: seed_of_part(batch.dropout_seed, part),
            episodes: labels.iter().map(episode).collect(),
        };
        JointStep {
            rate: self.schedule.at(step),
            keep: decay_in_step(self.decay, step),
            parts: parts(&batch.labels).enumerate().map(part).collect(),
            images: if self.images_are_stored {
                StepImages::Requests(batch.requests.clone())
            } else {
                StepImages::Prepared(batch.images.clone())
            },
        }
    }
}

impl<H: HeadTraining> TrainingSession for GpuJointSession<H> {
    type Batch = JointBatch;

    fn step(&mut self, step: u64, batch: &JointBatch) -> trueshot::Result<Vec<f64>> {
        Ok(self.steps(step, &[batch])?.remove(0))
    }

    fn steps_at_once(&self) -> usize {
        if self.common.images_are_stored { STEP_SLOTS } else { STREAMED_STEPS }
    }

    fn steps(&mut self, first: u64, batches: &[&JointBatch]) -> trueshot::Result<Vec<Vec<f64>>> {
        let inputs: Vec<JointStep> =
            (first..).zip(batches).map(|(step, batch)| self.common.input(step, batch)).collect();
        let losses = self.training.run(&inputs)?;
        Ok(losses.into_iter().map(|terms| terms.into_iter().map(f64::from).collect()).collect())
    }

    fn rate(&self, step: u64) -> f64 {
        self.common.schedule.at(step)
    }

    fn parameters(&self) -> trueshot::Result<Cow<'_, [f32]>> {
        Ok(Cow::Owned(self.training.average()?))
    }

    fn save(&self) -> trueshot::Result<Tensors> {
        let JointState { backbone, head, average } = self.training.state()?;
        let weights = SavedWeights {
            parameters: [backbone.parameters, head.parameters].concat(),
            first: [backbone.first_moments, head.first_moments].concat(),
            second: [backbone.second_moments, head.second_moments].concat(),
            steps: backbone.updates,
        };
        let mut state = weights.tensors(&self.common.layout);
        state.insert_all("average.", &named(&self.common.layout, &average));
        save_scale(&mut state, backbone.scale, backbone.good_steps);
        Ok(state)
    }

    fn load(&mut self, state: &Tensors) -> trueshot::Result<()> {
        let Common { layout, backbone_len, .. } = &self.common;
        let SavedWeights { parameters, first, second, steps } = SavedWeights::read(layout, state)?;
        let (scale, good_steps) = saved_scale(state);
        // Each list as the part of the backbone (0) and that of the head (1).
        let [parameters, first, second] =
            [&parameters, &first, &second].map(|all| all.split_at(*backbone_len));
        let state = JointState {
            backbone: Conv4State {
                parameters: parameters.0.to_vec(),
                first_moments: first.0.to_vec(),
                second_moments: second.0.to_vec(),
                updates: steps,
                scale,
                good_steps,
            },
            head: HeadWeights {
                parameters: parameters.1.to_vec(),
                first_moments: first.1.to_vec(),
                second_moments: second.1.to_vec(),
                updates: steps,
            },
            average: flat(layout, &state.with_prefix("average."))?,
        };
        self.training.load(&state).map_err(Into::into)
    }
}
