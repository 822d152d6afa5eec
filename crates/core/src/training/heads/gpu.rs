//! Training sessions of heads (TraNFS, Relabel) on a GPU: they pass the episodes of a [`HeadBatch`] to `trueshot-cuda`,
//! which computes losses, gradients and updates.
//!
//! Start with [`session`], which [`HeadTrainee`](super::HeadTrainee) calls. The result is a [`GpuHeadSession`], generic
//! over the kind of head ([`GpuTraining`]).
//!
//! The host draws the episodes with the same random numbers as on the CPU, so runs on both train on the same episodes.
//! The rows (embeddings) of all data sets stay on the GPU, and a batch holds row numbers only. If the rows do not fit
//! into GPU memory, those of each step are copied with the step ([`GpuRows`]).

use std::borrow::Cow;
use std::sync::Arc;

use rayon::prelude::*;
use trueshot_cuda::conv4::STEP_SLOTS;
use trueshot_cuda::joint::{HeadTraining, HeadWeights};
use trueshot_cuda::relabel::{self, RelabelTraining};
use trueshot_cuda::tranfs::{self, TranfsTraining};
use trueshot_cuda::{Device, Result as GpuResult};
use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::head::Head;
use trueshot_nn::parameters::ParameterLayout;
use trueshot_nn::relabel::Relabel;
use trueshot_nn::schedule::Schedule;
use trueshot_nn::tranfs::Tranfs;

use super::configuration::{Episodes, largest_count};
use super::episodes::{RowBuffer, TrainingEpisode, TrainingEpisodes};
use super::session::HeadBatch;
use crate::classifier::centred_unit;
use crate::embeddings::Embeddings;
use crate::episode::EpisodeData;
use crate::error::{Error, Result};
use crate::tensors::Tensors;
use crate::training::{Optimiser, SavedWeights, TrainingSession};

/// The network of a head that can be trained on a GPU.
pub enum GpuHead<'a> {
    /// TraNFS.
    Tranfs(&'a Tranfs),
    /// Relabel.
    Relabel(&'a Relabel),
}

/// What a session needs beside the network.
pub(super) struct SessionOptions<'a, 'o> {
    pub device: &'o Device,
    /// The source of the episodes, which also has the data sets.
    pub episodes: Arc<TrainingEpisodes<'a>>,
    /// The section `[episodes]` of the configuration, for the largest sizes of an episode.
    pub sizes: &'o Episodes,
    pub optimiser: &'o Optimiser,
    /// Steps of the run.
    pub steps: u64,
    /// Initial parameters, in the order of the network's layout.
    pub parameters: &'o [f32],
    /// The most memory that the rows of all data sets may take, in bytes.
    pub most_row_bytes: usize,
}

impl SessionOptions<'_, '_> {
    /// The hyperparameters of AdamW.
    fn adamw(&self) -> AdamWConfig {
        AdamWConfig { weight_decay: self.optimiser.weight_decay, ..Default::default() }
    }

    /// The largest numbers of support items and of queries of an episode.
    fn largest(&self) -> (usize, usize) {
        let ways = largest_count(&self.sizes.ways);
        (ways * largest_count(&self.sizes.shots), ways * self.sizes.queries)
    }
}

/// The bytes of GPU memory that the rows may take: three quarters of the free memory. The rest is for activations.
pub(super) fn most_row_bytes(device: &Device) -> Result<usize> {
    let (free, _total) = device.memory()?;
    Ok(free / 4 * 3)
}

pub(super) type BoxedSession<'a> = Box<dyn TrainingSession<Batch = HeadBatch> + 'a>;

/// Starts a session. The text is a warning for the user, for example that the rows do not fit into GPU memory.
pub(super) fn session<'a>(
    head: GpuHead<'_>,
    options: &SessionOptions<'a, '_>,
) -> Result<(BoxedSession<'a>, Option<String>)> {
    let mut rows = GpuRows::new(&options.episodes.data_sets, options.most_row_bytes);
    if let GpuHead::Relabel(network) = &head {
        rows.centre = network.training_centre().map(|range| options.parameters[range].to_vec());
    }
    let warning = rows.warning(options)?;
    let schedule = options.optimiser.schedule(options.steps);
    let session: BoxedSession<'a> = match head {
        GpuHead::Tranfs(network) => Box::new(GpuHeadSession {
            training: tranfs_training(network, options, &rows)?,
            layout: network.layout().clone(),
            episodes: options.episodes.clone(),
            rows,
            schedule,
        }),
        GpuHead::Relabel(network) => Box::new(GpuHeadSession {
            training: relabel_training(network, options, &rows)?,
            layout: network.layout().clone(),
            episodes: options.episodes.clone(),
            rows,
            schedule,
        }),
    };
    Ok((session, warning))
}

/// Where the rows of a run are: the distinct embeddings of its data sets and of their outliers.
struct GpuRows<'a> {
    /// The embeddings, each listed once, although several data sets can share one.
    sets: Vec<&'a Embeddings>,
    /// The number of the first row of each set; rows are numbered across all sets.
    first_rows: Vec<usize>,
    /// For each data set the index in `sets` of its rows and of its outliers.
    indices: Vec<[usize; 2]>,
    /// Whether the rows are on the GPU; otherwise they come with each step.
    is_stored: bool,
    /// The mean of the training features, if rows are centred on it and scaled to unit length before they are copied.
    centre: Option<Vec<f32>>,
}

impl<'a> GpuRows<'a> {
    /// The rows of `data_sets`, which are stored on the GPU if they take at most `most_bytes`.
    fn new(data_sets: &[EpisodeData<'a>], most_bytes: usize) -> Self {
        let mut sets: Vec<&Embeddings> = Vec::new();
        // The index of embeddings in `sets`, to which they are added when they are met first.
        let mut index = |data: &'a Embeddings| match sets.iter().position(|&set| std::ptr::eq(set, data)) {
            Some(index) => index,
            None => {
                sets.push(data);
                sets.len() - 1
            }
        };
        let indices = data_sets.iter().map(|data| {
            let rows = index(data.embeddings);
            [rows, index(data.outlier_rows())]
        });
        let indices = indices.collect();
        let first_row = |end: &mut usize, set: &&Embeddings| {
            let first = *end;
            *end += set.len();
            Some(first)
        };
        let first_rows = sets.iter().scan(0, first_row).collect();
        let mut rows = GpuRows { sets, first_rows, indices, is_stored: true, centre: None };
        // Kernels number rows with non-negative 32-bit integers.
        rows.is_stored = rows.bytes() <= most_bytes && rows.count() < 1 << 31;
        rows
    }

    /// The number of rows of all sets.
    fn count(&self) -> usize {
        self.sets.iter().map(|set| set.len()).sum()
    }

    /// The bytes that all rows take on the GPU, as f32.
    fn bytes(&self) -> usize {
        self.sets.iter().map(|set| set.len() * set.dim() * size_of::<f32>()).sum()
    }

    /// A row as the GPU gets it: centred and scaled to unit length if there is a centre.
    fn row<'b>(&self, row: &'b [f32]) -> Cow<'b, [f32]> {
        match &self.centre {
            Some(mean) => Cow::Owned(centred_unit(row, mean)),
            None => Cow::Borrowed(row),
        }
    }

    /// All rows of a set as the GPU gets them.
    fn all_rows<'b>(&self, set: &'b Embeddings) -> Cow<'b, [f32]> {
        let rows = set.all_rows();
        match self.centre {
            Some(_) => rows.chunks_exact(set.dim()).flat_map(|row| self.row(row).into_owned()).collect(),
            None => rows,
        }
    }

    /// The warning that rows do not fit into GPU memory; `None` if they do.
    fn warning(&self, options: &SessionOptions<'_, '_>) -> Result<Option<String>> {
        let mib = |bytes: usize| bytes.div_ceil(1 << 20);
        let (free, _total) = options.device.memory()?;
        Ok((!self.is_stored).then(|| {
            format!(
                "the embeddings need {} MiB of GPU memory, more than three quarters of the {} MiB that are free: the rows \
                 of every step are copied to the GPU, which is slower",
                mib(self.bytes()),
                mib(free)
            )
        }))
    }
}

/// Training of one kind of head, in the form that [`GpuHeadSession`] needs.
trait GpuTraining: HeadTraining<StepInput: Send> {
    /// Converts a batch of episodes to the input of a step with the learning rate `rate`. `buffers` are scratch memory
    /// for rows that are gathered on the host.
    fn input(
        batch: &HeadBatch,
        rate: f64,
        episodes: &TrainingEpisodes<'_>,
        rows: &GpuRows<'_>,
        buffers: &mut Vec<RowBuffer>,
    ) -> Self::StepInput;

    /// Runs steps on the GPU and returns the loss terms of each.
    fn run(&mut self, inputs: &[Self::StepInput]) -> GpuResult<Vec<Self::StepLosses>>;
}

/// A head in training on a GPU.
struct GpuHeadSession<'a, T> {
    training: T,
    layout: ParameterLayout,
    schedule: Schedule,
    episodes: Arc<TrainingEpisodes<'a>>,
    rows: GpuRows<'a>,
}

impl<T: GpuTraining> TrainingSession for GpuHeadSession<'_, T> {
    type Batch = HeadBatch;

    fn step(&mut self, step: u64, batch: &HeadBatch) -> Result<Vec<f64>> {
        Ok(self.steps(step, &[batch])?.remove(0))
    }

    /// The most steps that one call to the kernels of any head can take.
    fn steps_at_once(&self) -> usize {
        STEP_SLOTS
    }

    fn steps(&mut self, first: u64, batches: &[&HeadBatch]) -> Result<Vec<Vec<f64>>> {
        let (schedule, episodes, rows) = (&self.schedule, &self.episodes, &self.rows);
        let inputs: Vec<T::StepInput> = batches
            .par_iter()
            .enumerate()
            .map_init(Vec::new, |buffers, (index, batch)| {
                T::input(batch, schedule.at(first + index as u64), episodes, rows, buffers)
            })
            .collect();
        let terms = |losses: T::StepLosses| losses.into().into_iter().map(f64::from).collect();
        let mut losses: Vec<Vec<f64>> = self.training.run(&inputs)?.into_iter().map(terms).collect();
        // Steps after one whose loss is not finite do not count.
        let failed = losses.iter().position(|terms| terms.iter().any(|term| !term.is_finite()));
        losses.truncate(failed.map_or(losses.len(), |step| step + 1));
        Ok(losses)
    }

    fn rate(&self, step: u64) -> f64 {
        self.schedule.at(step)
    }

    fn parameters(&self) -> Result<Cow<'_, [f32]>> {
        Ok(Cow::Owned(self.training.parameters().read()?))
    }

    fn save(&self) -> Result<Tensors> {
        let HeadWeights { parameters, first_moments: first, second_moments: second, updates: steps } =
            self.training.weights()?;
        Ok(SavedWeights { parameters, first, second, steps }.tensors(&self.layout))
    }

    fn load(&mut self, state: &Tensors) -> Result<()> {
        let SavedWeights { parameters, first: first_moments, second: second_moments, steps: updates } =
            SavedWeights::read(&self.layout, state)?;
        let weights = HeadWeights { parameters, first_moments, second_moments, updates };
        Ok(self.training.load_weights(&weights)?)
    }
}

/// A TraNFS in training, with all rows on the GPU if [`GpuRows::is_stored`].
///
/// # Errors
/// [`Error::Gpu`] if the episodes are too large for the kernels, or GPU memory does not suffice.
fn tranfs_training(
    network: &Tranfs,
    options: &SessionOptions<'_, '_>,
    rows: &GpuRows<'_>,
) -> Result<TranfsTraining> {
    let (support, queries) = options.largest();
    let limits = tranfs::Limits { episodes: options.sizes.per_step, support, queries };
    check_attention_maps(network, limits)?;
    let dim = network.config().dim;
    let stored = if rows.is_stored { rows.count() } else { 0 };
    let mut features = options.device.zeros::<f32>(stored * dim)?;
    if rows.is_stored {
        // In chunks, so that rows that are not stored as f32 are never decoded all at once.
        const CHUNK_ROWS: usize = 1 << 14;
        for (set, &first) in rows.sets.iter().zip(&rows.first_rows) {
            for start in (0..set.len()).step_by(CHUNK_ROWS) {
                let end = set.len().min(start + CHUNK_ROWS);
                features.write((first + start) * dim, &set.features().rows_between(start..end))?;
            }
        }
    }
    let options_of_run =
        tranfs::TranfsOptions { optimiser: options.adamw(), clip: options.optimiser.clip, limits };
    Ok(TranfsTraining::new(options.device, network, options_of_run, options.parameters, features)?)
}

/// Refuses episodes whose attention weights the kernels cannot index with 31 bits.
fn check_attention_maps(network: &Tranfs, limits: tranfs::Limits) -> Result<()> {
    let (config, tranfs::Limits { episodes, support, .. }) = (network.config(), limits);
    let tokens = support + config.classes;
    // Attention weights of all episodes and heads in one layer, `[tokens, tokens]` each. An episode has one token per
    // support item and per class; rows are padded to multiples of 16.
    let weights =
        episodes as u128 * config.heads as u128 * tokens as u128 * tokens.next_multiple_of(16) as u128;
    match weights < 1 << 31 {
        true => Ok(()),
        false => Err(Error::Gpu {
            message: format!(
                "{episodes} episodes of {support} support items per step are too many for the GPU"
            ),
            hint: "use fewer ways, shots or episodes per step, or the CPU".into(),
            checkpoint: None,
        }),
    }
}

impl GpuTraining for TranfsTraining {
    fn input(
        batch: &HeadBatch,
        rate: f64,
        episodes: &TrainingEpisodes<'_>,
        rows: &GpuRows<'_>,
        buffers: &mut Vec<RowBuffer>,
    ) -> tranfs::StepInput {
        // Extra rows are numbered after the stored ones.
        let mut extra =
            ExtraRows { first: if rows.is_stored { rows.count() } else { 0 }, count: 0, values: Vec::new() };
        let mut parts = Vec::new();
        for (drawn, &dropout_seed) in batch.parts.iter().zip(&batch.dropout_seeds) {
            let numbers = drawn.iter().map(|drawn| extra.number_rows(drawn, episodes, rows, buffers));
            let episodes = numbers.zip(drawn).map(|(numbers, drawn)| tranfs_episode(drawn, &numbers));
            parts.push(tranfs::PartInput { dropout_seed, episodes: episodes.collect() });
        }
        tranfs::StepInput { rate, parts, extra_rows: extra.values }
    }

    fn run(&mut self, inputs: &[tranfs::StepInput]) -> GpuResult<Vec<[f32; 3]>> {
        TranfsTraining::run(self, inputs)
    }
}

/// An episode in the form of the kernels. `numbers` are the row numbers of the support items, then of the queries.
fn tranfs_episode(drawn: &TrainingEpisode, numbers: &[u32]) -> tranfs::EpisodeInput {
    let (items, queries) = numbers.split_at(drawn.items.len());
    let items = items.iter().zip(&drawn.items).map(|(&row, item)| tranfs::SupportItem {
        row,
        given: item.given,
        mislabelled: item.is_wrong(),
    });
    let queries = queries.iter().zip(&drawn.queries).map(|(&row, &(_, class))| tranfs::Query { row, class });
    tranfs::EpisodeInput { classes: drawn.classes, support: items.collect(), queries: queries.collect() }
}

/// Rows that are copied to the GPU with a TraNFS step: blended rows, or all rows if none are stored there.
struct ExtraRows {
    /// The number of the first extra row.
    first: usize,
    /// Extra rows so far.
    count: usize,
    /// `[count][dim]`
    values: Vec<f32>,
}

impl ExtraRows {
    /// The row numbers of the support items and then of the queries of an episode. Rows that are not on the GPU are
    /// added to the extra rows.
    fn number_rows(
        &mut self,
        drawn: &TrainingEpisode,
        episodes: &TrainingEpisodes<'_>,
        rows: &GpuRows<'_>,
        buffers: &mut Vec<RowBuffer>,
    ) -> Vec<u32> {
        let sets = rows.indices[drawn.data_set];
        let number = |(row, is_outlier): (u32, bool)| {
            (rows.first_rows[sets[usize::from(is_outlier)]] + row as usize) as u32
        };
        let mut numbers: Vec<u32> = drawn.rows().into_iter().map(number).collect();
        // The indices in `numbers` of the rows that are not on the GPU.
        let extra: Vec<usize> = match rows.is_stored {
            true => drawn.blends.iter().map(|blend| blend.index).collect(),
            false => (0..numbers.len()).collect(),
        };
        if !extra.is_empty() {
            episodes.with_rows(std::slice::from_ref(drawn), buffers, |gathered| {
                let gathered: Vec<&[f32]> =
                    gathered[0].support.iter().chain(gathered[0].queries).copied().collect();
                for index in extra {
                    numbers[index] = (self.first + self.count) as u32;
                    self.count += 1;
                    self.values.extend(gathered[index]);
                }
            });
        }
        numbers
    }
}

/// A Relabel in training, with all rows on the GPU if [`GpuRows::is_stored`].
///
/// # Errors
/// [`Error::Gpu`] if GPU memory does not suffice for the rows and the largest episode.
fn relabel_training(
    network: &Relabel,
    options: &SessionOptions<'_, '_>,
    rows: &GpuRows<'_>,
) -> Result<RelabelTraining> {
    let stored = if rows.is_stored { &rows.sets[..] } else { &[] };
    let values: Vec<Cow<'_, [f32]>> = stored.iter().map(|set| rows.all_rows(set)).collect();
    let sets: Vec<relabel::FeatureSet<'_>> = values
        .iter()
        .zip(stored)
        .map(|(values, set)| relabel::FeatureSet { values, dim: set.dim() })
        .collect();
    let optimiser = relabel::OptimiserOptions { adamw: options.adamw(), clip: options.optimiser.clip };
    let mut training = RelabelTraining::new(options.device, network, optimiser, options.parameters, &sets)?;
    // Runs the largest possible episode, so that one that does not fit is refused now and not in the middle of the run.
    // A network for features of any dimension has no dimension; then the rows have one value.
    let dim = network.config().dim().unwrap_or(1);
    training.run(&[largest_relabel_step(options, dim)])?;
    // Undoes the update of that step.
    let zeros = vec![0.0; options.parameters.len()];
    training.load(options.parameters, &zeros, &zeros, 0)?;
    Ok(training)
}

/// A step of one episode with the most classes, items and queries, all of whose rows are 0.
fn largest_relabel_step(options: &SessionOptions<'_, '_>, dim: usize) -> relabel::StepInput {
    let (items, queries) = options.largest();
    let classes = largest_count(&options.sizes.ways);
    let labels = |count: usize| (0..count).map(|index| (index % classes) as u32).collect::<Vec<u32>>();
    let episode = relabel::EpisodeInput {
        classes,
        given: labels(items),
        truth: labels(items).into_iter().map(Some).collect(),
        query_classes: labels(queries),
        rows: relabel::EpisodeRows::Given { dim, values: vec![0.0; (items + queries) * dim] },
    };
    relabel::StepInput { rate: 0.0, parts: vec![relabel::PartInput { episodes: vec![episode], seed: 0 }] }
}

impl GpuTraining for RelabelTraining {
    fn input(
        batch: &HeadBatch,
        rate: f64,
        episodes: &TrainingEpisodes<'_>,
        rows: &GpuRows<'_>,
        buffers: &mut Vec<RowBuffer>,
    ) -> relabel::StepInput {
        let mut parts = Vec::new();
        for (drawn, &seed) in batch.parts.iter().zip(&batch.dropout_seeds) {
            let episodes = drawn.iter().map(|drawn| relabel_episode(drawn, episodes, rows, buffers));
            parts.push(relabel::PartInput { episodes: episodes.collect(), seed });
        }
        relabel::StepInput { rate: rate as f32, parts }
    }

    fn run(&mut self, inputs: &[relabel::StepInput]) -> GpuResult<Vec<relabel::StepLosses>> {
        RelabelTraining::run(self, inputs)
    }
}

/// An episode in the form of the kernels. Rows that are not on the GPU are gathered on the host and passed along.
fn relabel_episode(
    drawn: &TrainingEpisode,
    episodes: &TrainingEpisodes<'_>,
    rows: &GpuRows<'_>,
    buffers: &mut Vec<RowBuffer>,
) -> relabel::EpisodeInput {
    // The GPU blends stored rows itself. But stored rows are centred already, and blending must come before centring,
    // so with a centre the host does both.
    let is_blended_first = rows.centre.is_some() && !drawn.blends.is_empty();
    let rows = match rows.is_stored && !is_blended_first {
        true => relabel::EpisodeRows::Stored(stored_rows(drawn, rows.indices[drawn.data_set])),
        false => episodes.with_rows(std::slice::from_ref(drawn), buffers, |gathered| {
            let all = gathered[0].support.iter().chain(gathered[0].queries);
            let dim = episodes.data_sets[drawn.data_set].embeddings.dim();
            let values = all.map(|row| rows.row(row)).collect::<Vec<_>>().concat();
            relabel::EpisodeRows::Given { dim, values }
        }),
    };
    relabel::EpisodeInput {
        classes: drawn.classes,
        given: drawn.items.iter().map(|item| item.given).collect(),
        truth: drawn.items.iter().map(|item| item.truth).collect(),
        query_classes: drawn.queries.iter().map(|&(_, class)| class).collect(),
        rows,
    }
}

/// The rows of an episode on the GPU, which blends them itself. `sets` are the indices of the data set and its
/// outliers.
fn stored_rows(drawn: &TrainingEpisode, sets: [usize; 2]) -> Vec<relabel::StoredRow> {
    let stored =
        |(row, is_outlier): (u32, bool)| relabel::StoredRow::new(sets[usize::from(is_outlier)] as u32, row);
    let mut rows: Vec<relabel::StoredRow> = drawn.rows().into_iter().map(stored).collect();
    for blend in &drawn.blends {
        rows[blend.index] = rows[blend.index].blended(blend.other, blend.share);
    }
    rows
}

#[cfg(all(test, feature = "emulator"))]
mod tests;
