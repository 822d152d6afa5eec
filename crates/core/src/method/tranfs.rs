//! The method `tranfs` (TraNFS; Liang et al., CVPR 2022): a trained transformer turns a support set into one prototype
//! per class, and a query gets the class of the nearest prototype.
//!
//! Start with [`TrainedTranfs`], a network with its parameters, which implements [`Method`]. [`TranfsOptions`] are the
//! hyperparameters, as in a training configuration or a model file. The network itself is `trueshot_nn::tranfs`: its
//! input sequence has one class token per class, followed by one token per support item (its features, projected to the
//! width of the transformer). The output at a class token, projected back, is the prototype of the class.
//!
//! A position embedding, one vector per class index, is added to all tokens of a class and tells the transformer which
//! items belong together. So the prototypes depend slightly on the order of the classes. Averaging over several random
//! orders (`orders=8`) removes most of that effect.

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
use crate::model::{IMPOSSIBLE_SIZES, MODEL_DIMS, Model};
use crate::rng::Rng;
use crate::task::Task;

pub(super) const INFO: MethodInfo = MethodInfo {
    name: KIND,
    summary: "prototypes from a trained transformer (`trueshot train tranfs`)",
    parameters: &[
        Parameter { name: "model", default: "", meaning: "model file (required)" },
        Parameter { name: "orders", default: "1", meaning: "number of class orders to average over" },
    ],
    transductive: false,
    build: |given: &Parameters| {
        let path = given.file("model", "the file of a trained tranfs model")?;
        Ok(Box::new(TrainedTranfs::open(path)?.with_orders(given.count("orders")?)))
    },
};

/// The name of the method and the kind of its model files.
pub const KIND: &str = "tranfs";

/// Hyperparameters of a TraNFS network, except the dimension of its features.
///
/// ```
/// use trueshot::method::TranfsOptions;
///
/// let options = TranfsOptions { classes: 5, layers: 1, ..TranfsOptions::default() };
/// assert_eq!(options.network(64)?.config().dim, 64);
/// assert!(TranfsOptions { heads: 3, ..options }.check().is_err(), "3 heads do not divide a width of 128");
/// # Ok::<(), trueshot::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TranfsOptions {
    /// Maximum number of classes of an episode. In a training configuration 0 means the most classes that its episodes
    /// can have.
    pub classes: usize,
    /// Number of encoder layers, 1 to 64.
    pub layers: usize,
    /// Width of a token (the vectors of the transformer), 1 to 4096.
    pub width: usize,
    /// Number of attention heads, a divisor of `width`.
    pub heads: usize,
    /// Hidden units of the feed-forward block, 1 to 65536.
    pub feed_forward: usize,
    /// Dropout probability in training, 0 to below 1.
    pub dropout: f64,
    /// How the class tokens are made.
    pub class_tokens: TokenKind,
    /// The position embeddings of the classes.
    pub positions: PositionKind,
    /// Whether the projection from tokens back to features is the transpose of the input projection.
    pub tied: bool,
    /// The loss between a prototype and the mean of the correctly labelled items of its class.
    pub clean_loss: CleanKind,
    /// Weight of `clean_loss` in the training loss.
    pub clean_weight: f64,
    /// Weight of the loss for detecting wrong labels in the training loss.
    pub mislabelled_weight: f64,
}

/// How the class tokens of a TraNFS are made: `random`, `learned` or `mean` in configurations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TokenKind {
    /// Random vectors that are drawn at initialisation and not trained.
    Random,
    /// Random vectors that are trained.
    Learned,
    /// The mean of the projected items of the class.
    Mean,
}

/// The position embedding added to all tokens of a class: `learned` or `random` in configurations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PositionKind {
    /// Random vectors that are trained.
    Learned,
    /// Random vectors that are drawn at initialisation and not trained.
    Random,
}

/// The loss between a prototype and the mean of the clean items: `distance` or `cosine` in configurations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CleanKind {
    /// The squared Euclidean distance.
    Distance,
    /// Minus the cosine.
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
    /// Checks that every option is within its range.
    ///
    /// Model files come from untrusted sources and these sizes decide how much memory is allocated.
    pub fn check(&self) -> Result<()> {
        use crate::ranges::require;
        let size = |what, given: usize, max: usize| {
            require(what, given, (1..=max).contains(&given), &format!("1 to {max}"))
        };
        require("model.classes", self.classes, self.classes <= 10_000, "up to 10000")?;
        size("model.layers", self.layers, 64)?;
        size("model.width", self.width, 4096)?;
        size("model.feed_forward", self.feed_forward, 1 << 16)?;
        let divides = self.heads >= 1 && self.width.is_multiple_of(self.heads);
        require("model.heads", self.heads, divides, &format!("a divisor of the width, {}", self.width))?;
        let is_probability = (0.0..1.0).contains(&self.dropout);
        require("model.dropout", self.dropout, is_probability, "a share from 0 to below 1")?;
        for (what, weight) in
            [("model.clean_weight", self.clean_weight), ("model.mislabelled_weight", self.mislabelled_weight)]
        {
            require(what, weight, weight.is_finite() && weight >= 0.0, "a number, 0 or above")?;
        }
        Ok(())
    }

    /// The configuration of the network for features of `dim` dimensions.
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

    /// The network, without parameters, for features of `dim` dimensions.
    pub fn network(&self, dim: usize) -> Result<Tranfs> {
        self.check()?;
        let problem = |problem| Error::BadConfiguration { path: None, problem };
        Tranfs::new(self.config(dim)).map_err(problem)
    }
}

/// The network configuration stored in a TraNFS model file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TranfsConfig {
    /// Dimension of the features the network was trained on.
    pub dim: usize,
    /// The hyperparameters.
    pub options: TranfsOptions,
}

impl TranfsConfig {
    /// Whether a model file can have these sizes. Called before a network is built, because files are not trusted.
    pub(crate) fn is_possible(&self) -> bool {
        MODEL_DIMS.contains(&self.dim) && self.options.classes > 0
    }
}

/// A trained TraNFS network, usable as a [`Method`] on features of its dimension.
pub struct TrainedTranfs {
    network: Tranfs,
    /// The parameters of the network, in the order of its layout.
    parameters: Vec<f32>,
    /// The model file, for error messages; "the program" for parameters that were not read from a file.
    path: PathBuf,
    /// Number of class orders to average over.
    orders: usize,
}

impl TrainedTranfs {
    /// A method from a network and its parameters in memory.
    ///
    /// # Panics
    /// If the number of parameters is not that of the network.
    pub fn new(network: Tranfs, parameters: Vec<f32>) -> Self {
        assert_eq!(parameters.len(), network.layout().len());
        TrainedTranfs { network, parameters, path: "the program".into(), orders: 1 }
    }

    /// Reads a model file, as `trueshot train tranfs` writes it.
    pub fn open(path: &Path) -> Result<Self> {
        Self::from_model(&Model::open(path)?)
    }

    /// A method from a model that has been read from a file.
    pub fn from_model(model: &Model) -> Result<Self> {
        model.expect_kind(KIND)?;
        let config: TranfsConfig = model.config()?;
        let network = config.is_possible().then(|| config.options.network(config.dim).ok()).flatten();
        let network = network.ok_or_else(|| model.malformed(IMPOSSIBLE_SIZES))?;
        let parameters = model.parameters(network.layout())?;
        Ok(TrainedTranfs { network, parameters, path: model.tensors().path().into(), orders: 1 })
    }

    /// The same model with its prototypes averaged over `orders` orders of the classes: the given one and
    /// `orders - 1` random ones.
    #[must_use]
    pub fn with_orders(mut self, orders: usize) -> Self {
        self.orders = orders;
        self
    }

    /// The attention weights of every layer and head for one support set, with the classes in their given order. `rows`
    /// are the items `[items][dim]`, `given` their labels, below `classes`.
    pub fn attention(&self, rows: &[&[f32]], given: &[u32], classes: usize) -> Result<TranfsAttention> {
        self.check(rows.first().map_or(0, |row| row.len()), classes)?;
        let input = TranfsInput { classes, items: rows, given, order: None };
        Ok(self.network.attention(&self.parameters, input))
    }

    /// Checks that the network takes `classes` classes and features of `features` dimensions.
    fn check(&self, features: usize, classes: usize) -> Result<()> {
        let config = self.network.config();
        if features != config.dim {
            return Err(Error::ModelDimension { path: self.path.clone(), features, model: config.dim });
        }
        if classes > config.classes {
            return Err(Error::TooManyClasses { path: self.path.clone(), classes, model: config.classes });
        }
        Ok(())
    }

    /// The position of every class (the index of its position embedding) in each of `self.orders` orders,
    /// `[orders][classes]`. The first order is the given one, the others are random. A random order draws from all
    /// position embeddings of the network, also if the task has fewer classes.
    fn draw_orders(&self, classes: usize, rng: &mut Rng) -> Vec<Vec<u32>> {
        let mut positions: Vec<u32> = (0..self.network.config().classes as u32).collect();
        let mut orders = vec![positions[..classes].to_vec()];
        orders.extend((1..self.orders).map(|_| {
            rng.shuffle(&mut positions);
            positions[..classes].to_vec()
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
        let draw = |(task, rng): (&&Task<'_>, &mut Rng)| self.draw_orders(task.support.classes(), rng);
        // `[tasks][orders][classes]`
        let orders: Vec<Vec<Vec<u32>>> = tasks.iter().zip(rngs).map(draw).collect();
        // One input per task and order, so that all of them share the matrix products of one call.
        let mut inputs = Vec::with_capacity(tasks.len() * self.orders);
        for (task, orders) in tasks.iter().zip(&orders) {
            inputs.extend(orders.iter().map(|order| TranfsInput {
                classes: task.support.classes(),
                items: task.support.rows(),
                given: task.support.given(),
                order: Some(order.as_slice()),
            }));
        }
        let outputs = self.network.prototypes(&self.parameters, &inputs);
        let dim = self.network.config().dim;
        Ok(outputs.chunks_exact(self.orders).map(|outputs| fitted(&mean(outputs), dim)).collect())
    }
}

/// The mean of the outputs for several class orders of the same support set.
fn mean(outputs: &[TranfsOutput]) -> TranfsOutput {
    let scale = 1.0 / outputs.len() as f32;
    let mut sum = outputs[0].clone();
    for output in &outputs[1..] {
        sum.prototypes.iter_mut().zip(&output.prototypes).for_each(|(sum, p)| *sum += p);
        sum.mislabelled.iter_mut().zip(&output.mislabelled).for_each(|(sum, p)| *sum += p);
    }
    sum.prototypes.iter_mut().chain(&mut sum.mislabelled).for_each(|value| *value *= scale);
    sum
}

/// A nearest-prototype classifier with the prototypes `[classes, dim]` of the output, and assessments from its
/// probabilities that labels are wrong. The prototypes are not weighted sums of items, so the weight of an item is 1
/// minus this probability.
fn fitted(output: &TranfsOutput, dim: usize) -> Fitted {
    let prototypes = output.prototypes.chunks_exact(dim).map(<[f32]>::to_vec).collect();
    let assessment =
        |&p_wrong: &f32| ItemAssessment { weight: 1.0 - p_wrong, p_wrong: Some(p_wrong), decision: None };
    Fitted {
        classifier: Classifier::Vectors(prototypes),
        assessments: Some(output.mislabelled.iter().map(assessment).collect()),
    }
}
