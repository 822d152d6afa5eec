//! Training of the heads TraNFS and Relabel on embeddings.
//!
//! Start with [`HeadTrainee::new`], which [`super::train`] then trains. The episodes of a step are drawn from random
//! streams that depend on the seed and the numbers of the episodes only; a [`TrainingSession`] computes the step.

pub mod configuration;
mod episodes;
mod overlap;
mod relabel;
mod session;
mod tranfs;
mod validation;

pub use configuration::Configuration;
pub use episodes::{Drawn, Rows, TrainingEpisodes};
pub use overlap::overlaps;
pub use session::{CpuHeadSession, HeadBatch};

use std::borrow::Cow;
use std::sync::Arc;

use rayon::prelude::*;
use toml::Table;
use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::head::{FeatureStatistics, Head};

use self::validation::Validator;
use super::{CpuWeights, Trainee, TrainingSession, Validation};
use crate::embeddings::Embeddings;
use crate::episode::EpisodeData;
use crate::error::{Error, Result};
use crate::method::Method;
use crate::model::Model;
use crate::ranges::require;
use crate::rng::{IndexSampler, Purpose, Rng};
use crate::tensors::Tensors;

/// A head together with its file format and its use as a method.
pub trait LearnedHead: Send + Sync {
    /// The network.
    fn head(&self) -> &dyn Head;

    /// The model file of the head with these parameters.
    fn model(&self, parameters: &[f32]) -> Model;

    /// The head with these parameters as a method.
    fn method(&self, parameters: &[f32]) -> Box<dyn Method>;
}

/// The options of one kind of head.
pub trait HeadOptions: serde::Serialize + serde::de::DeserializeOwned + Clone {
    /// Refuses values outside their ranges.
    fn check(&self) -> Result<()>;

    /// The options with everything filled in that follows from the largest number of ways in training.
    fn for_episodes(&self, _ways: usize) -> Self {
        self.clone()
    }

    /// The most classes of an episode, if there is a limit.
    fn most_classes(&self) -> Option<usize> {
        None
    }

    /// Whether files of different dimensions can be trained on together.
    fn takes_any_dimension(&self) -> bool {
        false
    }

    /// The head for features of `dim` dimensions.
    fn build(&self, dim: usize) -> Result<Box<dyn LearnedHead>>;

    /// The name of this kind of head in model files.
    const KIND: &'static str;
}

/// A head in training: draws the episodes of each step and validates, while a [`TrainingSession`] computes.
pub struct HeadTrainee<'a> {
    head: Arc<dyn LearnedHead>,
    session: Box<dyn TrainingSession<Batch = HeadBatch> + 'a>,
    episodes: Arc<TrainingEpisodes<'a>>,
    per_step: usize,
    seed: u64,
    /// One per part of a batch.
    samplers: Vec<IndexSampler>,
    validator: Validator<'a>,
}

impl<'a> HeadTrainee<'a> {
    /// A head with initial parameters, or with those of the model `configuration.from`.
    pub fn new<M: HeadOptions>(
        configuration: &Configuration<M>,
        training: Vec<EpisodeData<'a>>,
        validation: Vec<EpisodeData<'a>>,
    ) -> Result<Self> {
        configuration.check()?;
        let most = |spans: &[configuration::CountRange]| spans.iter().map(|span| span.max).max().unwrap_or(0);
        let ways = most(&configuration.episodes.ways);
        let options = configuration.model.for_episodes(ways);
        options.check()?;
        if let Some(classes) = options.most_classes() {
            let needed = ways.max(most(&configuration.validation.ways));
            let fits = format!("{needed} or more, the most ways of an episode");
            require("model.classes", classes, classes >= needed, &fits)?;
        }
        let dim = check_dimensions(&options, &training, &validation)?;
        let head: Arc<dyn LearnedHead> = options.build(dim)?.into();
        Self::with_head(head, configuration, training, validation)
    }

    /// As [`HeadTrainee::new`], for a head that is already built.
    pub fn with_head<M: HeadOptions>(
        head: Arc<dyn LearnedHead>,
        configuration: &Configuration<M>,
        training: Vec<EpisodeData<'a>>,
        validation: Vec<EpisodeData<'a>>,
    ) -> Result<Self> {
        let Configuration { optimiser, parts, steps, seed, .. } = configuration;
        let parameters = start(&*head, configuration, &training)?;
        let config = AdamWConfig { weight_decay: optimiser.weight_decay, ..Default::default() };
        let layout = head.head().layout().clone();
        let weights = CpuWeights::new(layout, parameters, *parts, config, optimiser, *steps);
        let episodes = Arc::new(TrainingEpisodes::new(training, &configuration.episodes, *seed)?);
        Ok(HeadTrainee {
            session: Box::new(CpuHeadSession::new(head.clone(), episodes.clone(), weights)),
            episodes,
            per_step: configuration.episodes.per_step,
            seed: *seed,
            samplers: (0..*parts).map(|_| IndexSampler::default()).collect(),
            validator: Validator::new(validation, &configuration.validation)?,
            head,
        })
    }

    /// The current parameters.
    pub fn parameters(&self) -> Cow<'_, [f32]> {
        self.session.parameters()
    }

    /// Draws the episodes of a step. All that is random follows from the seed and the step.
    fn batch(&mut self, step: u64) -> Result<HeadBatch> {
        let parts = self.samplers.len();
        let (episodes, per_step, seed) = (&self.episodes, self.per_step, self.seed);
        let draw = |(part, sampler): (usize, &mut IndexSampler)| {
            let numbers = episodes::part(step, per_step, part, parts);
            numbers.map(|number| episodes.draw(number, sampler)).collect::<Result<Vec<Drawn>>>()
        };
        let drawn = self.samplers.par_iter_mut().enumerate().map(draw).collect::<Result<_>>()?;
        let dropout_seed =
            |part: usize| Rng::new(seed, Purpose::Dropout, step * parts as u64 + part as u64).number();
        Ok(HeadBatch { parts: drawn, dropout_seeds: (0..parts).map(dropout_seed).collect() })
    }
}

/// The dimension of the features, which must be one unless the head takes any.
fn check_dimensions<M: HeadOptions>(
    options: &M,
    training: &[EpisodeData<'_>],
    validation: &[EpisodeData<'_>],
) -> Result<usize> {
    let mut dims = training.iter().chain(validation).map(|bank| bank.embeddings.dim());
    let first = dims.next().unwrap_or(0);
    match dims.find(|&dim| dim != first && !options.takes_any_dimension()) {
        None => Ok(first),
        Some(other) => Err(Error::OtherDimension { first, other }),
    }
}

/// Initial parameters, or those of the model to start from.
fn start<M: HeadOptions>(
    head: &dyn LearnedHead,
    configuration: &Configuration<M>,
    training: &[EpisodeData<'_>],
) -> Result<Vec<f32>> {
    if configuration.from.as_os_str().is_empty() {
        let mut rng = Rng::new(configuration.seed, Purpose::Parameters, 0);
        let mut parameters = head.head().initial(&mut || rng.fraction());
        let banks: Vec<&Embeddings> = training.iter().map(|bank| bank.embeddings).collect();
        head.head().fit_normalisation(&mut parameters, &|| feature_statistics(&banks));
        return Ok(parameters);
    }
    let model = Model::open(&configuration.from)?;
    model.expect_kind(M::KIND)?;
    model.parameters(head.head().layout())
}

/// Mean and spread of all rows of embeddings of one dimension.
fn feature_statistics(banks: &[&Embeddings]) -> FeatureStatistics {
    const ROWS: usize = 4096;
    let dim = banks.first().map_or(0, |bank| bank.dim());
    let sum = |bank: &Embeddings, from: usize| {
        let (mut sums, mut squares) = (vec![0.0; dim], 0.0);
        for place in from..(from + ROWS).min(bank.len()) {
            let row = bank.row(place);
            sums.iter_mut().zip(&*row).for_each(|(sum, &value)| *sum += f64::from(value));
            squares += row.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>();
        }
        (sums, squares)
    };
    let pieces: Vec<(&Embeddings, usize)> =
        banks.iter().flat_map(|&bank| (0..bank.len()).step_by(ROWS).map(move |from| (bank, from))).collect();
    let sums: Vec<(Vec<f64>, f64)> = pieces.into_par_iter().map(|(bank, from)| sum(bank, from)).collect();
    let rows = banks.iter().map(|bank| bank.len()).sum::<usize>().max(1) as f64;
    let mean: Vec<f64> =
        (0..dim).map(|place| sums.iter().map(|(sums, _)| sums[place]).sum::<f64>() / rows).collect();
    let squares = sums.iter().map(|(_, squares)| squares).sum::<f64>() / rows;
    let spread = (squares - mean.iter().map(|mean| mean * mean).sum::<f64>()).max(0.0).sqrt();
    FeatureStatistics { mean: mean.into_iter().map(|mean| mean as f32).collect(), spread }
}

impl Trainee for HeadTrainee<'_> {
    fn terms(&self) -> Vec<String> {
        self.head.head().loss_terms().iter().map(|term| term.to_string()).collect()
    }

    fn step(&mut self, step: u64) -> Result<Vec<f64>> {
        let batch = self.batch(step)?;
        self.session.step(step, &batch)
    }

    fn rate(&self, step: u64) -> f64 {
        self.session.rate(step)
    }

    fn validate(&mut self) -> Result<Option<Validation>> {
        self.validator.validate(self.head.method(&self.session.parameters()))
    }

    fn state(&self) -> Tensors {
        self.session.save()
    }

    fn restore(&mut self, state: &Tensors) -> Result<()> {
        self.session.load(state)
    }

    fn model(&self) -> Tensors {
        self.head.model(&self.session.parameters()).tensors().clone()
    }
}

/// What must be equal for a run to be resumable: the configuration, with fingerprints of the data instead of paths.
pub fn identity<M: HeadOptions>(
    configuration: &Configuration<M>,
    banks: &[(&str, &[EpisodeData<'_>])],
) -> Table {
    let mut identity = super::configuration::table(configuration);
    identity.remove("data");
    let mut data = Table::new();
    for (name, banks) in banks {
        let print = |bank: &EpisodeData<'_>| bank.embeddings.fingerprint().to_string();
        let pool = |bank: &EpisodeData<'_>| bank.outliers.map(|pool| pool.fingerprint().to_string());
        data.insert(name.to_string(), banks.iter().map(print).collect::<Vec<_>>().into());
        data.insert(format!("{name}_outliers"), banks.iter().filter_map(pool).collect::<Vec<_>>().into());
    }
    identity.insert("data".into(), data.into());
    identity.insert("head".into(), M::KIND.into());
    identity
}

#[cfg(test)]
mod tests;
