//! The batches of joint training ([`JointBatches`]): the images and labels of the episodes of a step. Threads of the
//! [`Loader`](crate::loader::Loader) make them while earlier steps run; a training session takes them.

use std::sync::Arc;

use trueshot::episode::EpisodeData;
use trueshot::rng::{IndexSampler, Purpose, Rng};
use trueshot::training::heads::{EpisodeLabels, TrainingEpisodes};

use super::configuration::JointEpisodeSettings;
use crate::augment::Augmenter;
use crate::dataset::Dataset;
use crate::loader::BatchSource;
use crate::training::batches::ImagePreparer;

/// The episodes of one step.
pub(super) struct JointBatch {
    /// The labels of each episode.
    pub labels: Vec<EpisodeLabels>,
    /// The images of all episodes, one episode after the other, of each the support items and then the queries:
    /// `[image][row][column][channel]`, normalised. Empty if a GPU prepares the images.
    pub images: Vec<f32>,
    /// The images that a GPU prepares, in the same order; an image is numbered by its position in the training data
    /// followed by the outliers. Empty if the CPU prepares the images.
    #[cfg(feature = "cuda")]
    pub requests: Vec<trueshot_cuda::conv4::ImageRequest>,
    /// The seed of the dropout masks.
    pub dropout_seed: u64,
}

/// Draws the episodes of a step and prepares their images.
pub(super) struct JointBatches {
    pub preparer: ImagePreparer,
    /// The source of outlier noise; `None`: classes of the data set that are not in the episode.
    pub outliers: Option<Arc<Dataset>>,
    pub episodes: JointEpisodeSettings,
    pub seed: u64,
    /// Whether a GPU prepares the images.
    pub on_gpu: bool,
}

impl JointBatches {
    /// Checks that all episodes can be drawn.
    pub fn check(&self) -> trueshot::Result<()> {
        self.source().map(drop)
    }

    /// The source of the episodes, which draws from the labels of the images.
    fn source(&self) -> trueshot::Result<TrainingEpisodes<'_>> {
        let data = EpisodeData {
            embeddings: self.preparer.dataset.labels(),
            outliers: self.outliers.as_deref().map(Dataset::labels),
        };
        TrainingEpisodes::new(vec![data], &self.episodes.options(), self.seed)
    }

    /// Draws the episodes of a step; `shots_index` is the index of their number of shots in the settings. Returns each
    /// image as a data set and a row in it, in the order of [`JointBatch::images`], and the labels of each episode.
    fn draw(
        &self,
        step: u64,
        shots_index: usize,
        sampler: &mut IndexSampler,
    ) -> (Vec<(&Dataset, u32)>, Vec<EpisodeLabels>) {
        let choices = &self.episodes.shots;
        let source = self.source().expect("checked before");
        // Episodes are numbered, and a number defines the random draw. Each step reserves the numbers of its largest
        // possible number of episodes (steps of more shots have fewer), so that no two steps share an episode.
        let numbers_per_step =
            choices.iter().map(|&shots| self.episodes.per_step(shots)).max().unwrap_or(1) as u64;
        let dataset = &*self.preparer.dataset;
        let outliers = self.outliers.as_deref().unwrap_or(dataset);
        let (mut rows, mut labels) = (Vec::new(), Vec::new());
        for index in 0..self.episodes.per_step(choices[shots_index]) as u64 {
            let number = step * numbers_per_step + index;
            let episode = source.draw_with_shots(number, shots_index, sampler).expect("checked before");
            let source_of = |is_outlier: bool| if is_outlier { outliers } else { dataset };
            rows.extend(episode.rows().into_iter().map(|(row, is_outlier)| (source_of(is_outlier), row)));
            labels.push(episode.labels());
        }
        (rows, labels)
    }
}

impl BatchSource for JointBatches {
    type Batch = JointBatch;
    type Scratch = (IndexSampler, Augmenter);

    fn scratch(&self) -> (IndexSampler, Augmenter) {
        (IndexSampler::default(), Augmenter::default())
    }

    fn make(
        &self,
        step: u64,
        (sampler, augmenter): &mut (IndexSampler, Augmenter),
        old: Option<JointBatch>,
    ) -> JointBatch {
        // The random numbers of a step depend on the seed and the step only.
        let mut rng = Rng::new(self.seed, Purpose::Dropout, step);
        let (dropout_seed, shots_index) = (rng.number(), rng.below(self.episodes.shots.len()));
        let (rows, labels) = self.draw(step, shots_index, sampler);
        let mut images = old.map(|batch| batch.images).unwrap_or_default();
        if !self.on_gpu {
            self.preparer.prepare(&rows, step, augmenter, &mut images);
        }
        JointBatch {
            labels,
            images,
            #[cfg(feature = "cuda")]
            requests: if self.on_gpu { self.preparer.requests(&rows, step) } else { Vec::new() },
            dropout_seed,
        }
    }
}
