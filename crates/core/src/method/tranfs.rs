//! TraNFS (Liang et al., CVPR 2022): a trained transformer reads the support set and answers with prototypes.
//!
//! What it reads depends a little on the order of the classes, because each has a position of its own. Averaging
//! over several random orders takes most of that out.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use trueshot_nn::head::Head;
use trueshot_nn::tranfs::{
    ClassTokens, CleanLoss, Config, Positions, Tranfs, TranfsAttention, TranfsInput, TranfsOutput,
};

use super::registry::{MethodInfo, Parameter, Parameters};
use super::{Fitted, ItemAssessment, Method};
use crate::classifier::Classifier;
use crate::error::{Error, Result};
use crate::model::Model;
use crate::rng::Rng;
use crate::task::Task;

pub(super) const INFO: MethodInfo = MethodInfo {
    name: KIND,
    summary: "prototypes from a trained transformer (`trueshot train tranfs`)",
    parameters: &[
        Parameter { name: "model", default: "", meaning: "model file (required)" },
        Parameter { name: "orders", default: "1", meaning: "number of class orders to average over" },
    ],
    build: |given: &Parameters| {
        let path = given.file("model", "a model file, as `trueshot train tranfs` writes it")?;
        Ok(Box::new(TrainedTranfs::open(path)?.with_orders(given.count("orders")?)))
    },
};

/// Its name in files and on command lines.
pub const KIND: &str = "tranfs";

/// What a TraNFS is like, apart from the dimension of its features.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TranfsOptions {
    /// The most classes of an episode; 0 when trained: as many as training episodes have.
    pub classes: usize,
    /// Layers of the encoder.
    pub layers: usize,
    /// Numbers of a token.
    pub width: usize,
    /// Attention heads, which divide the width.
    pub heads: usize,
    /// Width of the feed-forward part.
    pub feed_forward: usize,
    /// The share of numbers dropped in training.
    pub dropout: f64,
    /// What class tokens are: `random`, `learned` or `mean`.
    pub class_tokens: TokenKind,
    /// What is added to the tokens of a class: `learned` or `random`.
    pub positions: PositionKind,
    /// Whether the way back from tokens to features is the transpose of the way there.
    pub tied: bool,
    /// How prototypes are drawn to the mean of the clean items: `distance` or `cosine`.
    pub clean_loss: CleanKind,
    /// The weight of that.
    pub clean_weight: f64,
    /// The weight of telling wrong labels.
    pub mislabelled_weight: f64,
}

/// What the class tokens are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenKind {
    /// Drawn once and left alone.
    Random,
    /// Drawn, then trained.
    Learned,
    /// The mean of the class's items.
    Mean,
}

/// What is added to the tokens of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PositionKind {
    /// Drawn, then trained.
    Learned,
    /// Drawn once and left alone.
    Random,
}

/// How prototypes are drawn to the mean of the clean items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CleanKind {
    /// By the squared distance.
    Distance,
    /// By minus the cosine.
    Cosine,
}

impl Default for TranfsOptions {
    fn default() -> Self {
        TranfsOptions {
            classes: 0,
            layers: 3,
            width: 128,
            heads: 8,
            feed_forward: 128,
            dropout: 0.1,
            class_tokens: TokenKind::Random,
            positions: PositionKind::Learned,
            tied: true,
            clean_loss: CleanKind::Distance,
            clean_weight: 1.0,
            mislabelled_weight: 0.5,
        }
    }
}

impl TranfsOptions {
    /// Refuses sizes no model has: files come from elsewhere, and sizes decide what is allocated.
    pub fn check(&self) -> Result<()> {
        use crate::ranges::require;
        let size = |what, given: usize, most: usize| {
            require(what, given, (1..=most).contains(&given), &format!("1 to {most}"))
        };
        require("model.classes", self.classes, self.classes <= 10_000, "up to 10000")?;
        size("model.layers", self.layers, 64)?;
        size("model.width", self.width, 4096)?;
        size("model.feed_forward", self.feed_forward, 1 << 16)?;
        let divides = self.heads >= 1 && self.width.is_multiple_of(self.heads);
        require("model.heads", self.heads, divides, &format!("a divisor of the width, {}", self.width))?;
        let drops = (0.0..1.0).contains(&self.dropout);
        require("model.dropout", self.dropout, drops, "a share from 0 to below 1")?;
        let weighs = |weight: f64| weight.is_finite() && weight >= 0.0;
        let expected = "a number, 0 or above";
        require("model.clean_weight", self.clean_weight, weighs(self.clean_weight), expected)?;
        let (given, fine) = (self.mislabelled_weight, weighs(self.mislabelled_weight));
        require("model.mislabelled_weight", given, fine, expected)
    }

    fn config(&self, dim: usize) -> Config {
        Config {
            dim,
            classes: self.classes,
            width: self.width,
            heads: self.heads,
            feed_forward: self.feed_forward,
            layers: self.layers,
            dropout: self.dropout,
            class_tokens: match self.class_tokens {
                TokenKind::Random => ClassTokens::Random,
                TokenKind::Learned => ClassTokens::Learned,
                TokenKind::Mean => ClassTokens::ClassMean,
            },
            positions: match self.positions {
                PositionKind::Learned => Positions::Learned,
                PositionKind::Random => Positions::Random,
            },
            tied: self.tied,
            clean_loss: match self.clean_loss {
                CleanKind::Distance => CleanLoss::SquaredDistance,
                CleanKind::Cosine => CleanLoss::NegativeCosine,
            },
            clean_weight: self.clean_weight,
            mislabelled_weight: self.mislabelled_weight,
        }
    }

    /// The network for features of so many dimensions.
    pub fn network(&self, dim: usize) -> Result<Tranfs> {
        self.check()?;
        let problem = |problem| Error::BadConfiguration { path: None, problem };
        Tranfs::new(self.config(dim)).map_err(problem)
    }
}

/// What a model file says about its network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TranfsConfig {
    /// Dimensions of the features.
    pub dim: usize,
    /// Everything else.
    pub options: TranfsOptions,
}

/// A trained TraNFS.
pub struct TrainedTranfs {
    network: Tranfs,
    parameters: Vec<f32>,
    path: PathBuf,
    orders: usize,
}

impl TrainedTranfs {
    /// One whose parameters are at hand.
    pub fn new(network: Tranfs, parameters: Vec<f32>) -> Self {
        assert_eq!(parameters.len(), network.layout().len());
        TrainedTranfs { network, parameters, path: "the program".into(), orders: 1 }
    }

    /// Reads a model file.
    pub fn open(path: &Path) -> Result<Self> {
        Self::from_model(&Model::open(path)?)
    }

    /// Takes a model that was read.
    pub fn from_model(model: &Model) -> Result<Self> {
        model.expect_kind(KIND)?;
        let config: TranfsConfig = model.config()?;
        let fits = (1..=1 << 20).contains(&config.dim) && config.options.classes > 0;
        let sizes = || model.malformed("its metadata 'config' has sizes that no model has");
        let network = config.options.network(config.dim).ok().filter(|_| fits).ok_or_else(sizes)?;
        let parameters = model.parameters(network.layout())?;
        Ok(TrainedTranfs { network, parameters, path: model.tensors().path().into(), orders: 1 })
    }

    /// Averages over so many orders of the classes.
    #[must_use]
    pub fn with_orders(mut self, orders: usize) -> Self {
        self.orders = orders;
        self
    }

    /// Where every token of a support set looks.
    pub fn attention(&self, rows: &[&[f32]], given: &[u32], classes: usize) -> Result<TranfsAttention> {
        self.check(rows.first().map_or(0, |row| row.len()), classes)?;
        let input = TranfsInput { classes, items: rows, given, order: None };
        Ok(self.network.attention(&self.parameters, input))
    }

    fn check(&self, features: usize, classes: usize) -> Result<()> {
        let (path, config) = (|| self.path.clone(), self.network.config());
        if features != config.dim {
            return Err(Error::ModelDimension { path: path(), features, model: config.dim });
        }
        if classes > config.classes {
            return Err(Error::TooManyClasses { path: path(), classes, model: config.classes });
        }
        Ok(())
    }

    /// Which position each class takes, for every order: first as they come, then at random.
    fn drawn_orders(&self, classes: usize, rng: &mut Rng) -> Vec<Vec<u32>> {
        let mut places: Vec<u32> = (0..self.network.config().classes as u32).collect();
        let mut orders = vec![places[..classes].to_vec()];
        orders.extend((1..self.orders).map(|_| {
            rng.shuffle(&mut places);
            places[..classes].to_vec()
        }));
        orders
    }
}

impl Method for TrainedTranfs {
    fn fit(&self, task: &Task<'_>, rng: &mut Rng) -> Result<Fitted> {
        let mut fitted = self.fit_batch(&[task], std::slice::from_mut(rng))?;
        Ok(fitted.remove(0))
    }

    fn fit_batch(&self, tasks: &[&Task<'_>], rngs: &mut [Rng]) -> Result<Vec<Fitted>> {
        tasks.iter().try_for_each(|task| self.check(task.support.dim(), task.support.classes()))?;
        let draw = |(task, rng): (&&Task<'_>, &mut Rng)| self.drawn_orders(task.support.classes(), rng);
        let orders: Vec<Vec<Vec<u32>>> = tasks.iter().zip(rngs).map(draw).collect();
        let mut supports = Vec::with_capacity(tasks.len() * self.orders);
        for (task, orders) in tasks.iter().zip(&orders) {
            supports.extend(orders.iter().map(|order| TranfsInput {
                classes: task.support.classes(),
                items: task.support.rows(),
                given: task.support.given(),
                order: Some(order.as_slice()),
            }));
        }
        let answers = self.network.prototypes(&self.parameters, &supports);
        let dim = self.network.config().dim;
        Ok(answers.chunks_exact(self.orders).map(|answers| fitted(&mean(answers), dim)).collect())
    }
}

fn mean(answers: &[TranfsOutput]) -> TranfsOutput {
    let share = 1.0 / answers.len() as f32;
    let mut sum = answers[0].clone();
    for answer in &answers[1..] {
        sum.prototypes.iter_mut().zip(&answer.prototypes).for_each(|(sum, p)| *sum += p);
        sum.mislabelled.iter_mut().zip(&answer.mislabelled).for_each(|(sum, p)| *sum += p);
    }
    sum.prototypes.iter_mut().chain(&mut sum.mislabelled).for_each(|value| *value *= share);
    sum
}

fn fitted(answer: &TranfsOutput, dim: usize) -> Fitted {
    let prototypes = answer.prototypes.chunks_exact(dim).map(<[f32]>::to_vec).collect();
    let assessment =
        |&p_wrong: &f32| ItemAssessment { weight: 1.0 - p_wrong, p_wrong: Some(p_wrong), decision: None };
    Fitted {
        classifier: Classifier::Vectors(prototypes),
        assessments: Some(answer.mislabelled.iter().map(assessment).collect()),
    }
}
