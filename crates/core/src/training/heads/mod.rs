//! Training of the heads TraNFS and Relabel on embeddings. A head is a network that turns the embeddings of a support
//! set, whose labels may be wrong, into a classifier.
//!
//! Heads are trained on episodes: small classification problems, each a support set with wrong labels of a chosen noise
//! type and level, and queries whose classes are known.
//!
//! Start with [`HeadTrainee::new`], whose result [`super::train`] trains. [`Configuration`] holds all options, and
//! [`TrainingEpisodes`] draws the episodes of each step; a [`TrainingSession`] computes the step.
//!
//! The random streams of an episode depend only on the seed and the number of the episode, so a run can be resumed at
//! any step and does not depend on the number of threads.

pub mod configuration;
mod episodes;
#[cfg(feature = "cuda")]
mod gpu;
mod overlap;
mod relabel;
mod session;
mod tranfs;
mod validation;

pub use configuration::Configuration;
pub use episodes::{EpisodeLabels, RowBuffer, TrainingEpisode, TrainingEpisodes};
#[cfg(feature = "cuda")]
pub use gpu::GpuHead;
pub use overlap::overlaps;
pub use session::{CpuHeadSession, HeadBatch};

use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;

use rayon::prelude::*;
use toml::Table;
use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::head::{FeatureStatistics, JointHead};

use self::configuration::largest_count;
use self::validation::Validator;
use super::{CpuWeights, Trainee, TrainingSession, Validation};
use crate::embeddings::Embeddings;
use crate::episode::EpisodeData;
use crate::error::{Error, Result};
use crate::method::{Method, RELABEL, RelabelConfig, TRANFS, TranfsConfig};
use crate::model::{IMPOSSIBLE_SIZES, Model};
use crate::ranges::require;
use crate::rng::{IndexSampler, Purpose, Rng};
use crate::tensors::Tensors;

/// A network that can be trained as a head, with its model file and its use as a method.
pub trait LearnedHead: Send + Sync {
    /// The network. As a [`JointHead`] it can also be trained together with a backbone.
    fn head(&self) -> &dyn JointHead;

    /// The model file of the head with the given parameters.
    fn model(&self, parameters: &[f32]) -> Model;

    /// The head with the given parameters as a method for evaluations.
    fn method(&self, parameters: &[f32]) -> Box<dyn Method>;

    /// The most classes that an episode can have; `None`: any number.
    fn max_classes(&self) -> Option<usize> {
        None
    }

    /// The network in the form that a GPU can train; `None` if it cannot.
    #[cfg(feature = "cuda")]
    fn gpu_head(&self) -> Option<GpuHead<'_>> {
        None
    }
}

/// The architecture options of one kind of head, such as [`RelabelOptions`](crate::method::RelabelOptions).
pub trait HeadOptions: serde::Serialize + serde::de::DeserializeOwned + Clone {
    /// Checks that all values are in their ranges.
    fn check(&self) -> Result<()>;

    /// The options, completed with what follows from `_ways`, the largest number of classes of a training episode.
    fn for_episodes(&self, _ways: usize) -> Self {
        self.clone()
    }

    /// The largest number of classes of an episode that the head can process, if there is a limit.
    fn max_classes(&self) -> Option<usize> {
        None
    }

    /// Whether the training data may consist of files with different dimensions.
    fn takes_any_dimension(&self) -> bool {
        false
    }

    /// Builds the head for features (embeddings) of `dim` dimensions.
    fn build(&self, dim: usize) -> Result<Box<dyn LearnedHead>>;

    /// The name of this kind of head in model files.
    const KIND: &'static str;
}

/// A head in training: draws the episodes of each step and validates, while a [`TrainingSession`] computes.
///
/// ```
/// use trueshot::Embeddings;
/// use trueshot::episode::EpisodeData;
/// use trueshot::training::Trainee;
/// use trueshot::training::heads::{Configuration, HeadTrainee};
///
/// let labels = (0..200).map(|row| format!("class {}", row / 40)).collect();
/// let data = Embeddings::from_rows((0..200 * 4).map(|i| ((i * 7919) % 997) as f32).collect(), 4, labels)?;
/// let mut configuration = Configuration::relabel();
/// configuration.data.train = vec!["memory".into()]; // the data is given below
/// configuration.episodes.noise = vec!["symmetric=0,40".parse().unwrap()];
/// configuration.settle();
/// let training = vec![EpisodeData { embeddings: &data, outliers: None }];
/// let mut trainee = HeadTrainee::new(&configuration, training, vec![])?;
/// let losses = trainee.step(0)?;
/// assert_eq!(losses.len(), trainee.terms().len());
/// # Ok::<(), trueshot::Error>(())
/// ```
pub struct HeadTrainee<'a> {
    head: Arc<dyn LearnedHead>,
    session: Box<dyn TrainingSession<Batch = HeadBatch> + 'a>,
    episodes: Arc<TrainingEpisodes<'a>>,
    /// Episodes per step.
    per_step: usize,
    seed: u64,
    /// Buffers for drawing indices, one per part of a batch. A batch is divided into parts, which threads draw and
    /// compute at the same time.
    samplers: Vec<IndexSampler>,
    /// Batches that were drawn while the session computed, with the numbers of their steps, in ascending order.
    drawn: VecDeque<(u64, HeadBatch)>,
    validator: Validator<'a>,
    /// The name of the GPU; `None` on the CPU.
    device: Option<String>,
    warning: Option<String>,
}

impl<'a> HeadTrainee<'a> {
    /// A head with initial parameters, or with those of the model `configuration.from`.
    ///
    /// # Errors
    /// If an option is outside its range, or the data has too few classes or items or different dimensions.
    pub fn new<M: HeadOptions>(
        configuration: &Configuration<M>,
        training: Vec<EpisodeData<'a>>,
        validation: Vec<EpisodeData<'a>>,
    ) -> Result<Self> {
        let head = build_head(configuration, &training, &validation)?;
        Self::with_head(head, configuration, training, validation)
    }

    /// Like [`HeadTrainee::new`], on a GPU, which holds the rows of all data sets if they fit into its memory.
    ///
    /// # Errors
    /// Those of [`HeadTrainee::new`], and [`Error::Gpu`] if the GPU cannot train this head on these episodes.
    #[cfg(feature = "cuda")]
    pub fn on_gpu<M: HeadOptions>(
        configuration: &Configuration<M>,
        training: Vec<EpisodeData<'a>>,
        validation: Vec<EpisodeData<'a>>,
        device: &trueshot_cuda::Device,
    ) -> Result<Self> {
        let most_row_bytes = gpu::most_row_bytes(device)?;
        Self::on_gpu_with(configuration, training, validation, device, most_row_bytes)
    }

    /// [`HeadTrainee::on_gpu`] with a limit in bytes on the GPU memory for the rows.
    #[cfg(feature = "cuda")]
    fn on_gpu_with<M: HeadOptions>(
        configuration: &Configuration<M>,
        training: Vec<EpisodeData<'a>>,
        validation: Vec<EpisodeData<'a>>,
        device: &trueshot_cuda::Device,
        most_row_bytes: usize,
    ) -> Result<Self> {
        let head = build_head(configuration, &training, &validation)?;
        let parameters = initial_parameters(&*head, configuration, &training)?;
        let episodes =
            Arc::new(TrainingEpisodes::new(training, &configuration.episodes, configuration.seed)?);
        let network = head.gpu_head().ok_or_else(|| Error::Gpu {
            message: format!("{} cannot be trained on a GPU", M::KIND),
            hint: "train on the CPU".into(),
            checkpoint: None,
        })?;
        let options = gpu::SessionOptions {
            device,
            episodes: episodes.clone(),
            sizes: &configuration.episodes,
            optimiser: &configuration.optimiser,
            steps: configuration.steps,
            parameters: &parameters,
            most_row_bytes,
        };
        let (session, warning) = gpu::session(network, &options)?;
        let trainee = Self::with_session(head, session, episodes, configuration, validation)?;
        Ok(HeadTrainee { device: Some(device.name().into()), warning, ..trainee })
    }

    /// Like [`HeadTrainee::new`], for a head that is already built; the options of the head are not checked.
    pub fn with_head<M: HeadOptions>(
        head: Arc<dyn LearnedHead>,
        configuration: &Configuration<M>,
        training: Vec<EpisodeData<'a>>,
        validation: Vec<EpisodeData<'a>>,
    ) -> Result<Self> {
        let Configuration { optimiser, parts, steps, seed, .. } = configuration;
        let parameters = initial_parameters(&*head, configuration, &training)?;
        let config = AdamWConfig { weight_decay: optimiser.weight_decay, ..Default::default() };
        let layout = head.head().layout().clone();
        let weights = CpuWeights::new(layout, parameters, *parts, config, optimiser, *steps);
        let episodes = Arc::new(TrainingEpisodes::new(training, &configuration.episodes, *seed)?);
        let session = Box::new(CpuHeadSession::new(head.clone(), episodes.clone(), weights));
        Self::with_session(head, session, episodes, configuration, validation)
    }

    /// A trainee whose steps `session` computes.
    fn with_session<M: HeadOptions>(
        head: Arc<dyn LearnedHead>,
        session: Box<dyn TrainingSession<Batch = HeadBatch> + 'a>,
        episodes: Arc<TrainingEpisodes<'a>>,
        configuration: &Configuration<M>,
        validation: Vec<EpisodeData<'a>>,
    ) -> Result<Self> {
        Ok(HeadTrainee {
            session,
            episodes,
            per_step: configuration.episodes.per_step,
            seed: configuration.seed,
            samplers: (0..configuration.parts).map(|_| IndexSampler::default()).collect(),
            drawn: VecDeque::new(),
            validator: Validator::new(validation, &configuration.validation)?,
            device: None,
            warning: None,
            head,
        })
    }

    /// The current parameters.
    ///
    /// # Errors
    /// [`Error::Gpu`] if they cannot be read from a GPU.
    pub fn parameters(&self) -> Result<Cow<'_, [f32]>> {
        self.session.parameters()
    }

    /// The batches of `count` steps from number `first` on: those that were drawn while the session computed, and new
    /// ones.
    fn take_batches(&mut self, first: u64, count: u64) -> Result<Vec<HeadBatch>> {
        let mut batches = Vec::new();
        for step in first..first + count {
            let earlier = self.drawn.pop_front().filter(|(number, _)| *number == step);
            batches.push(match earlier {
                Some((_, batch)) => batch,
                None => {
                    // Nothing was drawn earlier, or only batches of other steps.
                    self.drawn.clear();
                    draw(&self.episodes, self.per_step, self.seed, &mut self.samplers, step)?
                }
            });
        }
        Ok(batches)
    }
}

/// Draws the batch of step number `step`: `per_step` episodes, divided into as many parts as there are samplers.
/// Everything random follows from the seed and the step.
fn draw(
    episodes: &TrainingEpisodes<'_>,
    per_step: usize,
    seed: u64,
    samplers: &mut [IndexSampler],
    step: u64,
) -> Result<HeadBatch> {
    let parts = samplers.len();
    let draw_part = |(part, sampler): (usize, &mut IndexSampler)| {
        let indices = episodes::indices_of_part(step, per_step, part, parts);
        indices.map(|index| episodes.draw(index, sampler)).collect::<Result<Vec<TrainingEpisode>>>()
    };
    let drawn = samplers.par_iter_mut().enumerate().map(draw_part).collect::<Result<_>>()?;
    let dropout_seed =
        |part: usize| Rng::new(seed, Purpose::Dropout, step * parts as u64 + part as u64).number();
    Ok(HeadBatch { parts: drawn, dropout_seeds: (0..parts).map(dropout_seed).collect() })
}

/// Checks the options and the data, and builds the head.
fn build_head<M: HeadOptions>(
    configuration: &Configuration<M>,
    training: &[EpisodeData<'_>],
    validation: &[EpisodeData<'_>],
) -> Result<Arc<dyn LearnedHead>> {
    configuration.check()?;
    let ways = largest_count(&configuration.episodes.ways);
    let options = configuration.model.for_episodes(ways);
    options.check()?;
    if let Some(classes) = options.max_classes() {
        let needed = ways.max(largest_count(&configuration.validation.ways));
        let allowed = format!("{needed} or more, the most ways of an episode");
        require("model.classes", classes, classes >= needed, &allowed)?;
    }
    let dim = check_dimensions(&options, training, validation)?;
    Ok(options.build(dim)?.into())
}

/// The dimension of the first data set. All others must have the same, unless the head accepts any dimension.
fn check_dimensions<M: HeadOptions>(
    options: &M,
    training: &[EpisodeData<'_>],
    validation: &[EpisodeData<'_>],
) -> Result<usize> {
    let mut dims = training.iter().chain(validation).map(|data| data.embeddings.dim());
    let first = dims.next().unwrap_or(0);
    match dims.find(|&dim| dim != first && !options.takes_any_dimension()) {
        None => Ok(first),
        Some(other) => Err(Error::DimensionsDiffer { first, other }),
    }
}

/// The head of a model for features of `dim` dimensions, and its parameters.
///
/// # Errors
/// If the model is not a head, or was trained on features of another dimension.
pub fn open_head(model: &Model, dim: usize) -> Result<(Arc<dyn LearnedHead>, Vec<f32>)> {
    // `own_dim` is the dimension for which the model was trained; `None` if it takes any.
    let (own_dim, head) = match model.kind() {
        TRANFS => {
            let config: TranfsConfig = model.config()?;
            let build = || config.options.check().and_then(|()| config.options.build(config.dim)).ok();
            (Some(config.dim), config.is_possible().then(build).flatten())
        }
        _ => {
            model.expect_kind(RELABEL)?;
            let config: RelabelConfig = model.config()?;
            // A network without a dimension takes features of any dimension and ignores the one passed to `build`.
            let dim = config.dim.unwrap_or(1);
            let build = || config.options.check().and_then(|()| config.options.build(dim)).ok();
            (config.dim, config.is_possible().then(build).flatten())
        }
    };
    if let Some(own) = own_dim.filter(|&own| own != dim) {
        return Err(Error::ModelDimension { path: model.tensors().path().into(), features: dim, model: own });
    }
    let head = head.ok_or_else(|| model.malformed(IMPOSSIBLE_SIZES))?;
    let parameters = model.parameters(head.head().layout())?;
    Ok((head.into(), parameters))
}

/// Initial parameters, or those of the model `configuration.from` if it is set.
fn initial_parameters<M: HeadOptions>(
    head: &dyn LearnedHead,
    configuration: &Configuration<M>,
    training: &[EpisodeData<'_>],
) -> Result<Vec<f32>> {
    if configuration.from.as_os_str().is_empty() {
        let mut rng = Rng::new(configuration.seed, Purpose::Parameters, 0);
        let mut parameters = head.head().initial(&mut || rng.fraction());
        let data_sets: Vec<&Embeddings> = training.iter().map(|data| data.embeddings).collect();
        head.head().fit_normalisation(&mut parameters, &|| feature_statistics(&data_sets));
        return Ok(parameters);
    }
    let model = Model::open(&configuration.from)?;
    model.expect_kind(M::KIND)?;
    model.parameters(head.head().layout())
}

/// The mean of all rows, `[dim]`, and the root of the mean squared distance of a row from it (the spread). All data
/// sets have the same dimension.
fn feature_statistics(data_sets: &[&Embeddings]) -> FeatureStatistics {
    // Rows that one thread sums at a time. Chunks have a fixed length and their sums are added in order, so the result
    // does not depend on the number of threads.
    const CHUNK_ROWS: usize = 4096;
    let dim = data_sets.first().map_or(0, |data| data.dim());
    // Sums of the columns, `[dim]`, and of the squared lengths of one chunk of rows.
    let chunk_sums = |data: &Embeddings, start: usize| {
        let (mut sums, mut squares) = (vec![0.0; dim], 0.0);
        for index in start..(start + CHUNK_ROWS).min(data.len()) {
            let row = data.row(index);
            sums.iter_mut().zip(&*row).for_each(|(sum, &value)| *sum += f64::from(value));
            squares += row.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>();
        }
        (sums, squares)
    };
    let chunks: Vec<(&Embeddings, usize)> = data_sets
        .iter()
        .flat_map(|&data| (0..data.len()).step_by(CHUNK_ROWS).map(move |start| (data, start)))
        .collect();
    let sums: Vec<(Vec<f64>, f64)> =
        chunks.into_par_iter().map(|(data, start)| chunk_sums(data, start)).collect();
    let rows = data_sets.iter().map(|data| data.len()).sum::<usize>().max(1) as f64;
    let mean: Vec<f64> =
        (0..dim).map(|column| sums.iter().map(|(sums, _)| sums[column]).sum::<f64>() / rows).collect();
    let squares = sums.iter().map(|(_, squares)| squares).sum::<f64>() / rows;
    // The mean squared distance from the mean is the mean squared length minus the squared length of the mean.
    let spread = (squares - mean.iter().map(|mean| mean * mean).sum::<f64>()).max(0.0).sqrt();
    FeatureStatistics { mean: mean.into_iter().map(|mean| mean as f32).collect(), spread }
}

impl Trainee for HeadTrainee<'_> {
    fn terms(&self) -> Vec<String> {
        self.head.head().loss_terms().iter().map(|term| term.to_string()).collect()
    }

    fn step(&mut self, step: u64) -> Result<Vec<f64>> {
        let batch = self.take_batches(step, 1)?.remove(0);
        self.session.step(step, &batch)
    }

    fn steps(&mut self, step: u64, limit: u64) -> Result<Vec<Vec<f64>>> {
        let at_once = self.session.steps_at_once() as u64;
        // A session on the CPU takes one step at a time: drawing meanwhile would take threads from the computation.
        if at_once == 1 {
            return Ok(vec![self.step(step)?]);
        }
        let count = limit.min(at_once);
        let batches = self.take_batches(step, count)?;
        let HeadTrainee { session, episodes, per_step, seed, samplers, drawn, .. } = self;
        // The batches of the next `at_once` steps are drawn while the GPU computes. An error is ignored here: it recurs
        // when the batch is needed. `next` is the first step whose batch is not drawn yet.
        let next = drawn.back().map_or(step + count, |(last, _)| last + 1);
        rayon::in_place_scope(|scope| {
            scope.spawn(|_| {
                for step in next..step + count + at_once {
                    match draw(episodes, *per_step, *seed, samplers, step) {
                        Ok(batch) => drawn.push_back((step, batch)),
                        Err(_) => break,
                    }
                }
            });
            session.steps(step, &batches.iter().collect::<Vec<_>>())
        })
    }

    fn rate(&self, step: u64) -> f64 {
        self.session.rate(step)
    }

    fn validate(&mut self) -> Result<Option<Validation>> {
        self.validator.validate(self.head.method(&self.session.parameters()?))
    }

    fn state(&self) -> Result<Tensors> {
        self.session.save()
    }

    fn restore(&mut self, state: &Tensors) -> Result<()> {
        self.session.load(state)
    }

    fn model(&self) -> Result<Tensors> {
        Ok(self.head.model(&self.session.parameters()?).tensors().clone())
    }

    fn device(&self) -> Option<String> {
        self.device.clone()
    }

    fn warnings(&self) -> Vec<String> {
        self.warning.iter().cloned().collect()
    }
}

/// The identity of a run ([`RunOptions::identity`](super::RunOptions::identity)): its configuration, with fingerprints
/// of the data instead of paths. `data_sets` are pairs of a name (`train`, `validation`) and the data.
pub fn identity<M: HeadOptions>(
    configuration: &Configuration<M>,
    data_sets: &[(&str, &[EpisodeData<'_>])],
) -> Table {
    let mut identity = super::configuration::table(configuration);
    identity.remove("data");
    let mut fingerprints = Table::new();
    for (name, data_sets) in data_sets {
        let rows = |data: &EpisodeData<'_>| data.embeddings.fingerprint().to_string();
        let pool = |data: &EpisodeData<'_>| data.outliers.map(|pool| pool.fingerprint().to_string());
        fingerprints.insert(name.to_string(), data_sets.iter().map(rows).collect::<Vec<_>>().into());
        let pools: Vec<String> = data_sets.iter().filter_map(pool).collect();
        fingerprints.insert(format!("{name}_outliers"), pools.into());
    }
    identity.insert("data".into(), fingerprints.into());
    identity.insert("head".into(), M::KIND.into());
    identity
}

#[cfg(test)]
mod tests;
