//! Trains a Conv4 on episodes of pictures, as the paper did: one episode a step, batch norm over its pictures,
//! the loss of nearest prototypes, AdamW.
//!
//! The loop is the core's ([`trueshot::training`]); here is what it trains. While a step runs, a [`Loader`] draws
//! and changes the pictures of the next. Validation embeds all its pictures once under the running statistics
//! and lets the core evaluate episodes of these embeddings, which costs less than embedding episode by episode.

mod batches;
mod configuration;
mod loss;

use std::sync::Arc;

use rayon::prelude::*;
use toml::Table;
use trueshot::Embeddings;
use trueshot::episode::Sampler;
use trueshot::evaluate::{Details, Experiment, evaluate};
use trueshot::method::Registry;
use trueshot::model::{self, Model, flat, named};
use trueshot::noise::Noise;
use trueshot::rng::{Purpose, Rng};
use trueshot::tensors::Tensors;
use trueshot::training::{Trainee, Validation as Judgement};
use trueshot_nn::Isa;
use trueshot_nn::adamw::{self, AdamW};
use trueshot_nn::conv4::{self, Shape, Training};
use trueshot_nn::parameters::Layout;
use trueshot_nn::schedule::Schedule;

pub use configuration::{Configuration, Data, Episodes, Pictures, Validation};
pub use loss::{Aggregate, Roles, loss};

use crate::backbone::{ARCHITECTURE, Backbone, note_preprocessing};
use crate::dataset::Dataset;
use crate::error::Result;
use crate::loader::Loader;
use crate::preprocess::Preprocessing;
use batches::{Batch, Batches};

/// Threads of the pool for each thread that prepares pictures: a step does over ten times their work.
const THREADS_A_LOADER: usize = 8;
/// Numbers that one thread updates at once.
const PIECE: usize = 1 << 14;
/// Pictures that one thread embeds at once in validation.
const EMBEDDED_AT_ONCE: usize = 16;

/// A Conv4 in training.
pub struct BackboneTrainee {
    layout: Layout,
    parameters: Vec<f32>,
    /// One, as long as the parameters; a step leaves it at zero.
    gradients: Vec<Vec<f32>>,
    training: Training,
    optimiser: AdamW,
    schedule: Schedule,
    loader: Loader<Batches>,
    validation: Option<Dataset>,
    configuration: Configuration,
}

impl BackboneTrainee {
    /// Sets everything up; both data sets must have been loaded with [`Configuration::preprocessing`], the
    /// training pictures augmented if the configuration says so, those for validation not.
    pub fn new(
        configuration: Configuration,
        train: Arc<Dataset>,
        validation: Option<Dataset>,
    ) -> Result<Self> {
        configuration.check()?;
        let batches = Batches {
            dataset: train,
            preprocessing: configuration.preprocessing(),
            augmentation: configuration.pictures.augment.then(|| configuration.augmentation.clone()),
            spec: configuration.spec(),
            noises: configuration.noises(),
        };
        batches.check()?;
        if let Some(dataset) = &validation {
            let noises = configuration.validation_noises();
            Sampler::new(dataset.labels(), None, configuration.validation_spec(), noises)?;
        }
        let (shape, images) = (shape(&batches.preprocessing), batches.images());
        let layout = conv4::layout(shape.channels);
        let parameters = start(&configuration, &layout, shape.channels)?;
        let settings = adamw::Settings { decay: configuration.optimiser.weight_decay, ..Default::default() };
        Ok(BackboneTrainee {
            gradients: vec![vec![0.0; layout.len()]],
            training: Training::new(Isa::current(), shape, images),
            optimiser: AdamW::new(&layout, settings),
            schedule: configuration.optimiser.schedule(configuration.steps),
            loader: Loader::new(batches, rayon::current_num_threads().div_ceil(THREADS_A_LOADER)),
            layout,
            parameters,
            validation,
            configuration,
        })
    }

    /// Its parameters, running statistics included.
    pub fn parameters(&self) -> &[f32] {
        &self.parameters
    }

    fn learn(&mut self, step: u64, batch: &Batch) -> f64 {
        let roles = Roles {
            classes: self.configuration.episodes.ways,
            given: &batch.given,
            query_classes: &batch.query_classes,
        };
        let features = self.training.forward(&self.parameters, &batch.images);
        let mut d_features = vec![0.0; features.len()];
        let loss = loss(features, roles, self.configuration.episodes.aggregate, &mut d_features);
        if loss.is_finite() {
            self.training.backward(&self.parameters, &d_features, &mut self.gradients[0]);
            self.training.update_running(&mut self.parameters);
            let (isa, rate, scale) = (Isa::current(), self.schedule.at(step), self.shortening());
            let pieces = self.optimiser.pieces(rate, scale, &mut self.parameters, &mut self.gradients, PIECE);
            pieces.into_par_iter().for_each(|piece| piece.apply(isa));
        }
        loss
    }

    /// What the gradient is multiplied by so that it is no longer than allowed.
    fn shortening(&self) -> f64 {
        let most = self.configuration.optimiser.clip;
        if most == 0.0 {
            return 1.0;
        }
        let length = self.gradients[0].iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
        if length > most { most / length } else { 1.0 }
    }

    fn preprocessing(&self) -> Preprocessing {
        self.configuration.preprocessing()
    }
}

impl Trainee for BackboneTrainee {
    fn terms(&self) -> Vec<String> {
        vec!["queries".into()]
    }

    fn step(&mut self, step: u64) -> trueshot::Result<Vec<f64>> {
        let batch = self.loader.take(step);
        let loss = self.learn(step, &batch);
        self.loader.give_back(step, batch);
        Ok(vec![loss])
    }

    fn rate(&self, step: u64) -> f64 {
        self.schedule.at(step)
    }

    fn validate(&mut self) -> trueshot::Result<Option<Judgement>> {
        let Some(dataset) = &self.validation else { return Ok(None) };
        let backbone = Backbone::from_parameters(self.preprocessing(), &self.parameters);
        judge(&self.configuration, &embedded(dataset, &backbone)?).map(Some)
    }

    fn state(&self) -> Tensors {
        let (steps, first, second) = self.optimiser.memory();
        let mut state = Tensors::default();
        for (prefix, values) in
            [("parameters.", &self.parameters[..]), ("first.", first), ("second.", second)]
        {
            state.insert_all(prefix, &named(&self.layout, values));
        }
        state.set_note("steps", steps.to_string());
        state
    }

    fn restore(&mut self, state: &Tensors) -> trueshot::Result<()> {
        let part = |prefix: &str| flat(&self.layout, &state.with_prefix(prefix));
        let steps = state.note("steps").and_then(|text| text.parse().ok());
        let steps = steps.ok_or_else(|| trueshot::Error::Malformed {
            path: state.path().into(),
            format: "checkpoint",
            problem: "it does not say how many steps were taken".into(),
        })?;
        let optimiser = self.optimiser.clone().resumed(steps, part("first.")?, part("second.")?);
        self.parameters = part("parameters.")?;
        self.optimiser = optimiser;
        Ok(())
    }

    fn model(&self) -> Tensors {
        let model = Model::new(ARCHITECTURE, &self.configuration, &self.layout, &self.parameters);
        let mut tensors = model.tensors().clone();
        note_preprocessing(&mut tensors, &self.preprocessing());
        tensors
    }
}

fn shape(preprocessing: &Preprocessing) -> Shape {
    Shape { size: preprocessing.size, channels: preprocessing.channels.count() }
}

/// Fresh parameters, or those of the backbone to start from.
fn start(configuration: &Configuration, layout: &Layout, channels: usize) -> Result<Vec<f32>> {
    if configuration.from.as_os_str().is_empty() {
        let mut rng = Rng::new(configuration.seed, Purpose::Parameters, 0);
        return Ok(conv4::initial(channels, &mut || rng.fraction()));
    }
    Ok(model::flat(layout, &Tensors::open(&configuration.from)?)?)
}

/// All pictures of a data set, embedded as they are.
fn embedded(dataset: &Dataset, backbone: &Backbone) -> trueshot::Result<Embeddings> {
    let (to, dim, isa) = (backbone.preprocessing(), backbone.dim(), Isa::current());
    let mut features = vec![0.0; dataset.pictures().len() * dim];
    dataset
        .pictures()
        .par_chunks(EMBEDDED_AT_ONCE)
        .zip(features.par_chunks_mut(EMBEDDED_AT_ONCE * dim))
        .for_each_init(
            || (backbone.scratch(), vec![0.0; EMBEDDED_AT_ONCE * to.values()]),
            |(scratch, inputs), (pictures, out)| {
                for (picture, input) in pictures.iter().zip(inputs.chunks_exact_mut(to.values())) {
                    to.normalise(picture, input);
                }
                backbone.embed(isa, &inputs[..pictures.len() * to.values()], out, scratch);
            },
        );
    let labels = dataset.labels();
    let names = labels.labels().iter().map(|&label| labels.classes()[label as usize].clone());
    Embeddings::from_rows(features, dim, names.collect())
}

/// The mean accuracy over all noise settings, and the accuracies.
fn judge(configuration: &Configuration, embeddings: &Embeddings) -> trueshot::Result<Judgement> {
    let noises = configuration.validation_noises();
    let sampler = Sampler::new(embeddings, None, configuration.validation_spec(), noises)?;
    let method = match configuration.episodes.aggregate {
        Aggregate::Mean => "protonet",
        Aggregate::Median => "median",
    };
    let experiment = Experiment {
        embeddings,
        outliers: None,
        episodes: &sampler,
        count: configuration.validation.episodes,
        methods: &[Registry::default().parse(method)?],
        baseline: "",
        details: Details::default(),
    };
    let found = evaluate(&experiment, &())?;
    let figure = |setting: &trueshot::evaluate::SettingResult| {
        let noise = Noise { kind: setting.noise, level: setting.level };
        let name = if noise.level == 0.0 { "clean".into() } else { noise.to_string() };
        (name, setting.methods[0].accuracy.unwrap_or(0.0))
    };
    let figures: Vec<(String, f64)> = found.settings.iter().map(figure).collect();
    let score = figures.iter().map(|(_, accuracy)| accuracy).sum::<f64>() / figures.len() as f64;
    Ok(Judgement { score, figures })
}

/// What must be the same for a run to be gone on with: the configuration, with what the data holds instead of
/// where it lies.
pub fn identity(configuration: &Configuration, train: &Dataset, validation: Option<&Dataset>) -> Table {
    let mut identity = trueshot::training::configuration::table(configuration);
    let mut data = Table::new();
    data.insert("train".into(), train.fingerprint().into());
    data.insert("validation".into(), validation.map(Dataset::fingerprint).unwrap_or_default().into());
    identity.insert("data".into(), data.into());
    identity
}
