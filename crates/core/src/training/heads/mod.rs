//! Trains heads on embeddings.
//!
//! A step's episodes are drawn from streams keyed by the seed and their numbers, cut into a fixed number of
//! parts, and every part fills a gradient of its own; the sum is taken in the order of the parts. So threads
//! decide how fast a step is, never what comes out. Rows are gathered by the part that uses them, while they
//! still fit its cache.

pub mod configuration;
mod episodes;
mod overlap;
mod relabel;
mod tranfs;
mod validation;

pub use configuration::Configuration;
pub use episodes::{Drawn, Rows, TrainingEpisodes};
pub use overlap::overlaps;

use std::sync::Arc;

use rayon::prelude::*;
use toml::Table;
use trueshot_nn::Isa;
use trueshot_nn::adamw::{AdamW, AdamWConfig};
use trueshot_nn::head::{FeatureStatistics, Head};
use trueshot_nn::parameters::ParameterLayout;
use trueshot_nn::schedule::Schedule;

use self::validation::Validator;
use super::{Trainee, Validation};
use crate::embeddings::Embeddings;
use crate::episode::EpisodeData;
use crate::error::{Error, Result};
use crate::method::Method;
use crate::model::{Model, flat, named};
use crate::ranges::require;
use crate::rng::{IndexSampler, Purpose, Rng};
use crate::tensors::Tensors;

/// A head with all that is needed to write it down and to use it.
pub trait LearnedHead: Send + Sync {
    /// The model itself.
    fn head(&self) -> &dyn Head;

    /// The file of a trained one.
    fn model(&self, parameters: &[f32]) -> Model;

    /// A trained one as a method.
    fn method(&self, parameters: &[f32]) -> Box<dyn Method>;
}

/// The options of one kind of head.
pub trait HeadOptions: serde::Serialize + serde::de::DeserializeOwned + Clone {
    /// Refuses numbers that make no sense.
    fn check(&self) -> Result<()>;

    /// The same with what follows from the largest number of ways in training episodes.
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

    /// The head for features of so many dimensions.
    fn build(&self, dim: usize) -> Result<Box<dyn LearnedHead>>;

    /// The kind's name in files.
    const KIND: &'static str;
}

/// Numbers of parameters that are updated at once.
const PIECE: usize = 1 << 15;

/// A head in training.
pub struct HeadTrainee<'a> {
    head: Arc<dyn LearnedHead>,
    parameters: Vec<f32>,
    optimiser: AdamW,
    schedule: Schedule,
    clip: f64,
    episodes: TrainingEpisodes<'a>,
    per_step: usize,
    seed: u64,
    scratch: Vec<PartScratch>,
    gradients: Vec<Vec<f32>>,
    validator: Validator<'a>,
}

/// Scratch space of one part.
#[derive(Default)]
struct PartScratch {
    urn: IndexSampler,
    rows: Vec<Rows>,
}

impl<'a> HeadTrainee<'a> {
    /// A head with fresh parameters, or those of another model.
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

    /// The same, where the head is built already.
    pub fn with_head<M: HeadOptions>(
        head: Arc<dyn LearnedHead>,
        configuration: &Configuration<M>,
        training: Vec<EpisodeData<'a>>,
        validation: Vec<EpisodeData<'a>>,
    ) -> Result<Self> {
        let layout = head.head().layout();
        let parameters = start(&*head, configuration, &training)?;
        let config = AdamWConfig { weight_decay: configuration.optimiser.weight_decay, ..Default::default() };
        let optimiser = AdamW::new(layout, config);
        let gradients = vec![vec![0.0; layout.len()]; configuration.parts];
        Ok(HeadTrainee {
            parameters,
            optimiser,
            schedule: configuration.optimiser.schedule(configuration.steps),
            clip: configuration.optimiser.clip,
            episodes: TrainingEpisodes::new(training, &configuration.episodes, configuration.seed)?,
            per_step: configuration.episodes.per_step,
            seed: configuration.seed,
            scratch: (0..configuration.parts).map(|_| PartScratch::default()).collect(),
            gradients,
            validator: Validator::new(validation, &configuration.validation)?,
            head,
        })
    }

    /// The parameters as they are.
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    /// Sums of the loss terms over a step's episodes; the gradients are left in their parts.
    fn losses(&mut self, step: u64) -> Result<Vec<f64>> {
        let (isa, parts) = (Isa::current(), self.gradients.len());
        let (head, parameters) = (self.head.head(), &self.parameters);
        let (episodes, per_step, seed) = (&self.episodes, self.per_step, self.seed);
        let work = |(part, (scratch, gradient)): (usize, (&mut PartScratch, &mut Vec<f32>))| {
            let numbers = episodes::part(step, per_step, part, parts);
            let drawn: Vec<Drawn> =
                numbers.map(|number| episodes.draw(number, &mut scratch.urn)).collect::<Result<_>>()?;
            let dropout = Rng::new(seed, Purpose::Dropout, step * parts as u64 + part as u64).number();
            Ok(episodes.with_rows(&drawn, &mut scratch.rows, |episodes| {
                isa.scope(|| head.losses(parameters, episodes, dropout, gradient))
            }))
        };
        let sums: Vec<Vec<f64>> = self
            .scratch
            .par_iter_mut()
            .zip(&mut self.gradients)
            .enumerate()
            .map(work)
            .collect::<Result<_>>()?;
        let mut terms = vec![0.0; head.loss_terms().len()];
        for part in sums {
            terms.iter_mut().zip(part).for_each(|(term, part)| *term += part);
        }
        Ok(terms)
    }

    fn update(&mut self, step: u64) -> Result<()> {
        let scale = 1.0 / self.per_step as f64;
        let scale = scale * self.shortening(scale);
        let rate = self.schedule.at(step);
        let chunks = self.optimiser.chunks(rate, scale, &mut self.parameters, &mut self.gradients, PIECE);
        chunks.into_par_iter().for_each(|chunk| chunk.apply());
        self.check_finite(step)
    }

    /// What the gradient is multiplied by so that it is no longer than allowed.
    fn shortening(&self, scale: f64) -> f64 {
        if self.clip == 0.0 {
            return 1.0;
        }
        let squares = |start: usize| -> f64 {
            let end = (start + PIECE).min(self.parameters.len());
            let sum = |i: usize| self.gradients.iter().map(|part| part[i]).sum::<f32>();
            (start..end).map(|i| f64::from(sum(i)).powi(2)).sum()
        };
        let starts: Vec<usize> = (0..self.parameters.len()).step_by(PIECE).collect();
        let pieces: Vec<f64> = starts.into_par_iter().map(squares).collect();
        let length = pieces.iter().sum::<f64>().sqrt() * scale;
        if length > self.clip { self.clip / length } else { 1.0 }
    }

    fn check_finite(&self, step: u64) -> Result<()> {
        if self
            .parameters
            .par_chunks(PIECE)
            .all(|piece| piece.iter().fold(true, |all, v| all & v.is_finite()))
        {
            return Ok(());
        }
        let layout = self.head.head().layout();
        let broken = |values: &[f32]| values.iter().copied().find(|value| !value.is_finite());
        let found = layout
            .tensors()
            .iter()
            .find_map(|tensor| Some((&tensor.name, broken(&self.parameters[tensor.range.clone()])?)));
        let (name, value) = found.expect("every parameter belongs to a tensor");
        Err(Error::Diverged { step: step + 1, what: format!("parameter '{name}'"), value: value.into() })
    }

    fn layout(&self) -> &ParameterLayout {
        self.head.head().layout()
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

/// Fresh parameters, or those of the model to start from.
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
        let sums = self.losses(step)?;
        let terms: Vec<f64> = sums.into_iter().map(|sum| sum / self.per_step as f64).collect();
        // The trainer refuses what is not finite; the parameters must not have seen it.
        if terms.iter().all(|term| term.is_finite()) {
            self.update(step)?;
        }
        Ok(terms)
    }

    fn rate(&self, step: u64) -> f64 {
        self.schedule.at(step)
    }

    fn validate(&mut self) -> Result<Option<Validation>> {
        self.validator.validate(self.head.method(&self.parameters))
    }

    fn state(&self) -> Tensors {
        let (_, first, second) = self.optimiser.state();
        let mut state = Tensors::default();
        for (prefix, values) in
            [("parameters.", &self.parameters[..]), ("first.", first), ("second.", second)]
        {
            state.insert_all(prefix, &named(self.layout(), values));
        }
        state.set_note("steps", self.optimiser.state().0.to_string());
        state
    }

    fn restore(&mut self, state: &Tensors) -> Result<()> {
        let layout = self.layout().clone();
        let part = |prefix: &str| flat(&layout, &state.with_prefix(prefix));
        let steps = state.note("steps").and_then(|text| text.parse().ok());
        let steps = steps.ok_or_else(|| state.malformed("it does not say how many steps were taken"))?;
        let optimiser = self.optimiser.clone().with_state(steps, part("first.")?, part("second.")?);
        self.parameters = part("parameters.")?;
        self.optimiser = optimiser;
        Ok(())
    }

    fn model(&self) -> Tensors {
        self.head.model(&self.parameters).tensors().clone()
    }
}

/// What must be the same for a run to be gone on with: the configuration, with what the files hold instead of
/// where they lie.
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
