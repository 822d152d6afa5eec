//! The input of a step of [`JointTraining`](super::JointTraining) ([`JointStep`], which the caller fills), its form on
//! the device ([`SlotLayout::encode`], `kernels/joint.cu`), and its conversion to the input of each head.
//!
//! The rows of a step, one per image, are numbered in the order of the episodes: the support items of the first
//! episode, its queries, the support items of the second, and so on.

use bytemuck::{Pod, Zeroable};

use crate::conv4::StepImages;
use crate::{relabel, tranfs};

/// The input of one step.
#[derive(Debug, Clone)]
pub struct JointStep {
    /// The learning rate.
    pub rate: f64,
    /// Decay of the average of the parameters: `average = keep * average + (1 - keep) * parameters`.
    pub keep: f32,
    /// The episodes, in parts.
    pub parts: Vec<JointPart>,
    /// The images of the first episode's support items, then of its queries, then those of the second episode, ...
    pub images: StepImages,
}

/// Episodes that share a dropout seed. The CPU computes each part separately, and the GPU uses the same dropout masks.
#[derive(Debug, Clone)]
pub struct JointPart {
    /// The seed of dropout.
    pub dropout_seed: u64,
    /// The episodes.
    pub episodes: Vec<JointEpisode>,
}

/// The labels of one episode.
#[derive(Debug, Clone)]
pub struct JointEpisode {
    /// The number of classes.
    pub classes: usize,
    /// The given label of each support item, possibly wrong.
    pub given: Vec<u32>,
    /// The true class of each support item; `None` if it belongs to no class of the episode.
    pub truth: Vec<Option<u32>>,
    /// The class of each query.
    pub query_classes: Vec<u32>,
}

impl JointEpisode {
    /// The number of support items and queries.
    pub fn rows(&self) -> usize {
        self.given.len() + self.query_classes.len()
    }

    /// Whether every class has an item that truly belongs to it, so that the loss of nearest prototypes is defined.
    fn has_prototypes(&self) -> bool {
        (0..self.classes as u32).all(|class| self.truth.contains(&Some(class)))
    }
}

/// The sizes of a step that a CUDA graph is recorded for, over all episodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct StepSize {
    pub images: usize,
    pub episodes: usize,
    pub queries: usize,
}

impl JointStep {
    /// The episodes of all parts.
    fn episodes(&self) -> impl Iterator<Item = &JointEpisode> {
        self.parts.iter().flat_map(|part| &part.episodes)
    }

    pub(super) fn size(&self) -> StepSize {
        StepSize {
            images: self.episodes().map(JointEpisode::rows).sum(),
            episodes: self.episodes().count(),
            queries: self.episodes().map(|episode| episode.query_classes.len()).sum(),
        }
    }
}

/// The first entry of a slot (`JointStep` in `kernels/joint.cu`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct StepRecord {
    images: u32,
    episodes: u32,
    queries: u32,
    keep: f32,
}

/// One episode (`JointEpisode` in `kernels/joint.cu`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct EpisodeRecord {
    /// The number of its first row in the step.
    first_row: u32,
    /// Support items.
    items: u32,
    queries: u32,
    /// The number of its first query among the queries of the step.
    first_query: u32,
    classes: u32,
    /// The weight of a query in the loss of nearest prototypes: the weight of that loss, divided by the number of
    /// episodes and by the number of this episode's queries; 0 if the loss is not defined for the episode.
    factor: f32,
}

/// The class of an item that belongs to no class of its episode.
const NO_CLASS: u32 = u32::MAX;

/// The largest sizes of a step, for which a slot (the memory for the input of one step) has space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotLayout {
    pub episodes: usize,
    /// Images.
    pub rows: usize,
}

impl SlotLayout {
    /// The length of a slot in words of 32 bits: the step, the episodes, and the true class of each row.
    pub fn len(self) -> usize {
        (size_of::<StepRecord>() + self.episodes * size_of::<EpisodeRecord>()) / 4 + self.rows
    }

    /// The words of a step. `prototype_weight` is the weight of the loss of nearest prototypes.
    ///
    /// # Panics
    /// If the step is larger than the layout, or lengths of an episode disagree.
    pub fn encode(self, step: &JointStep, prototype_weight: f64) -> Vec<u32> {
        let StepSize { images, episodes, queries } = step.size();
        assert!(images <= self.rows && episodes <= self.episodes, "{images} images, {episodes} episodes");
        let mut words = Vec::with_capacity(self.len());
        let mut push = |bytes: &[u8]| words.extend_from_slice(bytemuck::cast_slice::<u8, u32>(bytes));
        let record = StepRecord {
            images: images as u32,
            episodes: episodes as u32,
            queries: queries as u32,
            keep: step.keep,
        };
        push(bytemuck::bytes_of(&record));
        let (mut first_row, mut first_query) = (0, 0);
        for episode in step.episodes() {
            assert_eq!(episode.given.len(), episode.truth.len(), "one true class per item");
            let query_count = episode.query_classes.len();
            let factor = if episode.has_prototypes() && query_count > 0 {
                prototype_weight / (episodes * query_count) as f64
            } else {
                0.0
            };
            push(bytemuck::bytes_of(&EpisodeRecord {
                first_row: first_row as u32,
                items: episode.given.len() as u32,
                queries: query_count as u32,
                first_query: first_query as u32,
                classes: episode.classes as u32,
                factor: factor as f32,
            }));
            first_row += episode.rows();
            first_query += query_count;
        }
        // Zeros for the episodes that this step does not have, so that the list of classes starts at the same word in
        // every step.
        words.resize(self.len() - self.rows, 0);
        for episode in step.episodes() {
            words.extend(episode.truth.iter().map(|class| class.unwrap_or(NO_CLASS)));
            words.extend_from_slice(&episode.query_classes);
        }
        words.resize(self.len(), NO_CLASS);
        words
    }
}

/// The parts of a step: the dropout seed of each, and its episodes, each with the number of its first row in the step.
fn parts_with_first_rows(step: &JointStep) -> Vec<(u64, Vec<(&JointEpisode, u32)>)> {
    let (mut parts, mut first) = (Vec::new(), 0);
    for part in &step.parts {
        let mut episodes = Vec::new();
        for episode in &part.episodes {
            episodes.push((episode, first));
            first += episode.rows() as u32;
        }
        parts.push((part.dropout_seed, episodes));
    }
    parts
}

impl From<&JointStep> for relabel::StepInput {
    fn from(step: &JointStep) -> Self {
        let episode = |episode: &JointEpisode| relabel::EpisodeInput {
            classes: episode.classes,
            given: episode.given.clone(),
            truth: episode.truth.clone(),
            query_classes: episode.query_classes.clone(),
            rows: relabel::EpisodeRows::InOrder,
        };
        let part = |part: &JointPart| relabel::PartInput {
            seed: part.dropout_seed,
            episodes: part.episodes.iter().map(episode).collect(),
        };
        relabel::StepInput { rate: step.rate as f32, parts: step.parts.iter().map(part).collect() }
    }
}

impl From<&JointStep> for tranfs::StepInput {
    fn from(step: &JointStep) -> Self {
        let episode = |(episode, first): (&JointEpisode, u32)| {
            let items = episode.given.iter().zip(&episode.truth).zip(first..);
            let queries = episode.query_classes.iter().zip(first + episode.given.len() as u32..);
            tranfs::EpisodeInput {
                classes: episode.classes,
                support: items
                    .map(|((&given, &truth), row)| tranfs::SupportItem {
                        row,
                        given,
                        mislabelled: truth != Some(given),
                    })
                    .collect(),
                queries: queries.map(|(&class, row)| tranfs::Query { row, class }).collect(),
            }
        };
        let part = |(dropout_seed, episodes): (u64, Vec<_>)| tranfs::PartInput {
            dropout_seed,
            episodes: episodes.into_iter().map(episode).collect(),
        };
        tranfs::StepInput {
            rate: step.rate,
            parts: parts_with_first_rows(step).into_iter().map(part).collect(),
            extra_rows: Vec::new(),
        }
    }
}

impl From<relabel::StepLosses> for Vec<f32> {
    fn from(losses: relabel::StepLosses) -> Self {
        vec![losses.items, losses.queries]
    }
}
