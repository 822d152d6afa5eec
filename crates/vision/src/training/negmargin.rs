//! Trains a Conv4 as NegMargin does (Liu et al., ECCV 2020): on batches of all classes at once, by a cosine softmax
//! with a negative margin, with Adam. What comes out is a backbone like any other; at test its embeddings go with a
//! cosine classifier (`baseline++`), which is also what validation asks.

use std::path::PathBuf;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use trueshot::method::Registry;
use trueshot::ranges::require;
use trueshot::rng::{Purpose, Rng};
use trueshot::tensors::Tensors;
use trueshot::training::{Optimiser, ScheduleKind};
use trueshot::training::{Trainee, Validation as Judgement};
use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::conv4::{self, TrainingPass};
use trueshot_nn::initialisation;
use trueshot_nn::layers::cosine_margin::{Margin, cosine_margin};
use trueshot_nn::parameters::Role;

use super::batches::{Painter, Shuffled};
use super::configuration::{self as shared, Data, MOST_IMAGES, Pictures, Validation};
use super::validation::{Judge, judged};
use super::weights::Weights;
use super::{Configuration as Usual, Datasets, backbone_file, loader, start};
use crate::augment::Augmentation;
use crate::backbone::Backbone;
use crate::error::Result;
use crate::loader::Loader;

/// How to train NegMargin.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configuration {
    /// Same seed, same model.
    pub seed: u64,
    /// Updates of the parameters.
    pub steps: u64,
    /// A backbone to start from; empty for a fresh one.
    pub from: PathBuf,
    /// What to train and validate on.
    pub data: Data,
    /// What becomes of the pictures.
    pub pictures: Pictures,
    /// The loss and what it is taken over.
    pub loss: Loss,
    /// How pictures are changed in training.
    pub augmentation: Augmentation,
    /// How the model is judged on the way.
    pub validation: Validation,
    /// How the parameters are changed: by Adam, whose weight decay is part of the gradient.
    pub optimiser: Optimiser,
}

/// The loss and what it is taken over.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loss {
    /// Pictures a step.
    pub batch: usize,
    /// What cosines are multiplied by.
    pub scale: f64,
    /// What is subtracted from the right class's cosine before.
    pub margin: f64,
}

impl Configuration {
    /// Its authors' training on photographs.
    pub fn photographs() -> Self {
        let usual = Usual::photographs();
        Configuration {
            seed: usual.seed,
            steps: 60_000,
            from: PathBuf::new(),
            data: usual.data,
            pictures: usual.pictures,
            loss: Loss { batch: 128, scale: 30.0, margin: -0.02 },
            augmentation: usual.augmentation,
            validation: Validation { noise: vec![shared::clean()], ..usual.validation },
            optimiser: Optimiser {
                weight_decay: 1e-4,
                warm_up: 0.0,
                schedule: ScheduleKind::Constant,
                ..Optimiser::default()
            },
        }
    }

    /// The same for the built-in drawings.
    pub fn drawings() -> Self {
        let (photographs, usual) = (Self::photographs(), Usual::drawings());
        Configuration {
            pictures: usual.pictures,
            validation: Validation { queries: usual.validation.queries, ..photographs.validation },
            ..photographs
        }
    }

    /// Refuses numbers that make no sense, with those that would.
    pub fn check(&self) -> Result<()> {
        let Loss { batch, scale, margin } = self.loss;
        require("loss.batch", batch, (2..=MOST_IMAGES).contains(&batch), &format!("2 to {MOST_IMAGES}"))?;
        require("loss.scale", scale, scale > 0.0 && scale.is_finite(), "a number above 0")?;
        require("loss.margin", margin, (-2.0..=2.0).contains(&margin), "a number from -2 to 2")?;
        let outliers = &self.data.outliers;
        let none = outliers.as_os_str().is_empty();
        require(
            "data.outliers",
            outliers.display(),
            none,
            "none, because batches of NegMargin have no noise",
        )?;
        shared::check_noise(&shared::all(&self.validation.noise))?;
        let Configuration { steps, seed, pictures, augmentation, validation, optimiser, .. } = self;
        shared::check_usual(*steps, *seed, pictures, augmentation, validation, optimiser)
    }

    fn judge(&self) -> Judge {
        self.validation.judge(&[])
    }
}

/// NegMargin in training.
pub struct NegMarginTrainee {
    /// Those of the Conv4, and behind them one direction for every class.
    weights: Weights,
    training: TrainingPass,
    loader: Loader<Shuffled>,
    datasets: Datasets,
    configuration: Configuration,
}

impl NegMarginTrainee {
    /// Sets everything up. Batches have no noise, so outliers are for validation only.
    pub fn new(configuration: Configuration, datasets: Datasets) -> Result<Self> {
        configuration.check()?;
        let train = Arc::clone(&datasets.train);
        let (seed, batch) = (configuration.seed, configuration.loss.batch);
        let (pictures, classes) = (train.pictures().len(), train.labels().classes().len());
        require("classes to train on", classes, classes >= 2, "2 or more")?;
        require("loss.batch", batch, batch <= pictures, &format!("2 to {pictures}, the number of images"))?;
        if let Some((rows, outliers)) = datasets.validation_labels() {
            configuration.judge().check(rows, outliers)?;
        }
        let painter = Painter::new(train, &configuration.pictures, &configuration.augmentation, seed);
        let shape = painter.shape();
        let mut layout = conv4::layout(shape.channels);
        let mut parameters = start(&configuration.from, seed, &layout, shape.channels)?;
        let place = layout.add("directions", &[classes, shape.features()], Role::Trained);
        let (mut directions, mut rng) = (vec![0.0; place.len()], Rng::new(seed, Purpose::Parameters, 1));
        let bound = initialisation::xavier_bound(shape.features(), classes);
        initialisation::fill_uniform(&mut directions, bound, &mut || rng.fraction());
        parameters.extend(directions);
        let l2 = configuration.optimiser.weight_decay;
        let config = AdamWConfig { weight_decay: 0.0, l2, ..Default::default() };
        Ok(NegMarginTrainee {
            training: TrainingPass::new(shape, batch),
            weights: Weights::new(
                layout,
                parameters,
                1,
                config,
                &configuration.optimiser,
                configuration.steps,
            ),
            loader: loader(Shuffled { painter, size: batch }),
            datasets,
            configuration,
        })
    }

    /// The backbone's parameters, running statistics included.
    pub fn parameters(&self) -> &[f32] {
        &self.weights.parameters[..self.backbone_len()]
    }

    fn backbone_len(&self) -> usize {
        let last = self.weights.layout.tensors().last().expect("the directions");
        last.range.start
    }

    fn learn(&mut self, step: u64, images: &[f32], classes: &[u32]) -> f64 {
        let backbone = self.backbone_len();
        let Weights { parameters, gradients, .. } = &mut self.weights;
        let features = self.training.forward(parameters, images);
        let mut d_features = vec![0.0; features.len()];
        let Loss { scale, margin, .. } = self.configuration.loss;
        let loss = cosine_margin(
            features,
            &parameters[backbone..],
            classes,
            Margin { scale, margin },
            &mut d_features,
            &mut gradients[0][backbone..],
        );
        if loss.is_finite() {
            self.training.backward(&d_features, &mut gradients[0]);
            self.training.update_running(parameters);
            self.weights.update(step, 1.0);
        }
        loss
    }
}

impl Trainee for NegMarginTrainee {
    fn terms(&self) -> Vec<String> {
        vec!["classes".into()]
    }

    fn step(&mut self, step: u64) -> trueshot::Result<Vec<f64>> {
        let batch = self.loader.take(step);
        let loss = self.learn(step, &batch.images, &batch.classes);
        self.loader.give_back(step, batch);
        Ok(vec![loss])
    }

    fn rate(&self, step: u64) -> f64 {
        self.weights.rate(step)
    }

    fn validate(&mut self) -> trueshot::Result<Option<Judgement>> {
        let preprocessing = self.configuration.pictures.preprocessing();
        let backbone = Backbone::from_parameters(preprocessing, self.parameters());
        let method = Registry::default().parse("baseline++")?;
        judged(&self.configuration.judge(), &self.datasets, &backbone, method)
    }

    fn state(&self) -> Tensors {
        self.weights.state()
    }

    fn restore(&mut self, state: &Tensors) -> trueshot::Result<()> {
        self.weights.restore(state)
    }

    fn model(&self) -> Tensors {
        let preprocessing = self.configuration.pictures.preprocessing();
        backbone_file(&self.configuration, &preprocessing, self.parameters())
    }
}
