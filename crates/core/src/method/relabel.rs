//! The method `relabel`: a trained network estimates the true class of every support item, and the prototype of a class
//! is a mean of all items, weighted by these estimates. A query gets the class of the nearest prototype.
//!
//! Start with [`TrainedRelabel`], a network with its parameters, which implements [`Method`]. [`RelabelOptions`] are
//! the hyperparameters, as in a training configuration or a model file. The network itself is `trueshot_nn::relabel`:
//! for every support item it computes the probability of each class and of "none of the classes".
//!
//! An item under a wrong label is often a correct example of another class of the same support set, so reassigning it
//! keeps more information than dropping it. The network's inputs are relations between items (inner products), so one
//! trained network works on features of any dimension. There are two exceptions, which tie a network to one backbone:
//! an item view ([`RelabelOptions::item_width`]) and a training centre ([`RelabelOptions::training_centre`]).

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use trueshot_nn::head::Head;
use trueshot_nn::products;
use trueshot_nn::relabel::{Config, ItemView, Relabel, RelabelInput, RelabelOutput, ViewTarget};

use super::registry::{MethodInfo, Parameter, Parameters};
use super::{Decision, Fitted, ItemAssessment, Method};
use crate::classifier::{CentredMixture, Classifier, Mixture, centred_unit};
use crate::error::{Error, Result};
use crate::model::{IMPOSSIBLE_SIZES, MODEL_DIMS, Model};
use crate::rng::Rng;
use crate::task::Task;

pub(super) const INFO: MethodInfo = MethodInfo {
    name: KIND,
    summary: "prototypes of all items, weighted by their estimated class (`trueshot train relabel`)",
    parameters: &[Parameter { name: "model", default: BUILT_IN, meaning: "a model file, or 'built-in'" }],
    transductive: false,
    build: |given: &Parameters| match given.text("model") {
        BUILT_IN => Ok(Box::new(TrainedRelabel::built_in()?)),
        _ => {
            let path = given.file("model", "the file of a trained relabel model")?;
            Ok(Box::new(TrainedRelabel::open(path)?))
        }
    },
};

/// The name of the method and the kind of its model files.
pub const KIND: &str = "relabel";

/// The value of the parameter `model` that selects the built-in network.
const BUILT_IN: &str = "built-in";

/// The built-in network, trained on several backbones and kinds of images; `docs/built-in.md` has the command.
static BUILT_IN_MODEL: &[u8] = include_bytes!("../../assets/relabel.safetensors");

/// Minimum probability of the likeliest class for a decision other than [`Decision::Unsure`].
const DECISION_THRESHOLD: f32 = 0.5;

/// The part of the network that the item view (a projection of the features themselves) feeds: `states` or `none` in
/// configurations.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ItemReach {
    /// The states of all (item, class) pairs, and through them every output.
    #[default]
    States,
    /// Only the logit of "none of the classes".
    None,
}

/// Hyperparameters of a Relabel network.
///
/// ```
/// use trueshot::method::RelabelOptions;
///
/// let options = RelabelOptions { layers: 1, width: 32, heads: 4, ..RelabelOptions::default() };
/// assert!(options.network(64).is_ok());
/// assert!(RelabelOptions { heads: 3, ..options }.check().is_err(), "3 heads do not divide a width of 32");
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelabelOptions {
    /// Number of layers, 1 to 64.
    pub layers: usize,
    /// Width of a state, the hidden vector that the network keeps for every (item, class) pair, 1 to 4096.
    pub width: usize,
    /// Number of attention heads, a divisor of `width`.
    pub heads: usize,
    /// Hidden units of the mixing block of a layer, 1 to 65536.
    pub hidden: usize,
    /// Hidden units of the edge network, which computes attention logits from the relations of two items, 1 to 65536.
    pub edge_hidden: usize,
    /// Whether the mean of the support items is subtracted from items and queries, which are then scaled to unit
    /// length.
    pub centred: bool,
    /// Whether the mean of the training features is subtracted from items and queries, which are then scaled to unit
    /// length, before anything else. It ties the network to one backbone.
    #[serde(default)]
    pub training_centre: bool,
    /// Width of the item view, a projection of the features themselves, up to 4096. It ties the network to one
    /// backbone; 0 means no item view, only relations between items.
    pub item_width: usize,
    /// Dropout probability on the features that enter the item view in training, 0 to below 1.
    pub item_dropout: f64,
    /// The part of the network that the item view feeds.
    #[serde(default)]
    pub item_reach: ItemReach,
    /// Constant added to an item's weight in the prototype of its given class, before normalisation; it keeps the
    /// prototype defined if all items of the class look wrong.
    pub floor: f64,
    /// Weight of the loss over the classes of the support items in the training loss.
    pub items_weight: f64,
    /// Weight of the loss over the queries in the training loss.
    pub queries_weight: f64,
}

impl Default for RelabelOptions {
    fn default() -> Self {
        let config = Config::default();
        RelabelOptions {
            layers: config.layers,
            width: config.width,
            heads: config.heads,
            hidden: config.hidden,
            edge_hidden: config.edge_hidden,
            centred: config.centred,
            training_centre: false,
            item_width: 0,
            item_dropout: ItemView::new(1).dropout,
            item_reach: ItemReach::default(),
            floor: config.floor,
            items_weight: config.items_weight,
            queries_weight: config.queries_weight,
        }
    }
}

impl RelabelOptions {
    /// Checks that every option is within its range.
    ///
    /// Model files come from untrusted sources and these sizes decide how much memory is allocated.
    pub fn check(&self) -> Result<()> {
        use crate::ranges::require;
        let size = |what, given: usize, max: usize| {
            require(what, given, (1..=max).contains(&given), &format!("1 to {max}"))
        };
        size("model.layers", self.layers, 64)?;
        size("model.width", self.width, 4096)?;
        size("model.hidden", self.hidden, 1 << 16)?;
        size("model.edge_hidden", self.edge_hidden, 1 << 16)?;
        let divides = self.heads >= 1 && self.width.is_multiple_of(self.heads);
        require("model.heads", self.heads, divides, &format!("a divisor of the width, {}", self.width))?;
        require("model.item_width", self.item_width, self.item_width <= 4096, "0 to 4096")?;
        let is_centred_once = !(self.centred && self.training_centre);
        require("model.training_centre", true, is_centred_once, "false if model.centred is true")?;
        let is_probability = (0.0..1.0).contains(&self.item_dropout);
        require("model.item_dropout", self.item_dropout, is_probability, "a share from 0 to below 1")?;
        for (what, weight) in [
            ("model.floor", self.floor),
            ("model.items_weight", self.items_weight),
            ("model.queries_weight", self.queries_weight),
        ] {
            require(what, weight, weight.is_finite() && weight >= 0.0, "a number, 0 or above")?;
        }
        Ok(())
    }

    /// Whether the network works for features of any dimension, and not only for those of one backbone.
    pub fn takes_any_dimension(&self) -> bool {
        self.item_width == 0 && !self.training_centre
    }

    /// The network, without parameters, for features of `dim` dimensions. A network that takes any dimension ignores
    /// `dim`.
    pub fn network(&self, dim: usize) -> Result<Relabel> {
        self.check()?;
        let target = match self.item_reach {
            ItemReach::States => ViewTarget::States,
            ItemReach::None => ViewTarget::Outlier,
        };
        let view = ItemView { dim, width: self.item_width, dropout: self.item_dropout, target };
        Ok(Relabel::new(Config {
            width: self.width,
            layers: self.layers,
            heads: self.heads,
            hidden: self.hidden,
            edge_hidden: self.edge_hidden,
            centred: self.centred,
            training_centre: self.training_centre.then_some(dim),
            item_view: (self.item_width > 0).then_some(view),
            floor: self.floor,
            items_weight: self.items_weight,
            queries_weight: self.queries_weight,
        }))
    }
}

/// The network configuration stored in a Relabel model file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelabelConfig {
    /// Dimension of the features; `None` for networks that take any dimension.
    pub dim: Option<usize>,
    /// The hyperparameters.
    pub options: RelabelOptions,
}

impl RelabelConfig {
    /// Whether a model file can have these sizes. Called before a network is built, because files are not trusted.
    pub(crate) fn is_possible(&self) -> bool {
        self.dim.is_none_or(|dim| MODEL_DIMS.contains(&dim))
            && self.dim.is_none() == self.options.takes_any_dimension()
    }
}

/// A trained Relabel network, usable as a [`Method`].
///
/// ```
/// use trueshot::method::{Method, TrainedRelabel};
/// use trueshot::rng::{Purpose, Rng};
/// use trueshot::task::{SupportSet, Task};
///
/// let support = SupportSet::new(vec![&[0.0, 1.0], &[0.1, 1.0], &[1.0, 0.0]], vec![0, 0, 1], 2);
/// let relabel = TrainedRelabel::built_in()?;
/// let fitted = relabel.fit(&Task::new(support), &mut Rng::new(0, Purpose::Method, 0))?;
/// let p_wrong = fitted.assessments.unwrap()[0].p_wrong.unwrap();
/// assert!((0.0..=1.0).contains(&p_wrong));
/// # Ok::<(), trueshot::Error>(())
/// ```
pub struct TrainedRelabel {
    network: Relabel,
    /// The parameters of the network, in the order of its layout.
    parameters: Vec<f32>,
    /// The model file, for error messages; "the program" for parameters that were not read from a file.
    path: PathBuf,
}

impl TrainedRelabel {
    /// A method from a network and its parameters in memory.
    ///
    /// # Panics
    /// If the number of parameters is not that of the network.
    pub fn new(network: Relabel, parameters: Vec<f32>) -> Self {
        assert_eq!(parameters.len(), network.layout().len());
        TrainedRelabel { network, parameters, path: "the program".into() }
    }

    /// The built-in network, for embeddings of any dimension.
    pub fn built_in() -> Result<Self> {
        Self::from_model(&Model::read_bytes(BUILT_IN_MODEL, "the built-in head")?)
    }

    /// Reads a model file, as `trueshot train relabel` writes it.
    pub fn open(path: &Path) -> Result<Self> {
        Self::from_model(&Model::open(path)?)
    }

    /// A method from a model that has been read from a file.
    pub fn from_model(model: &Model) -> Result<Self> {
        model.expect_kind(KIND)?;
        let config: RelabelConfig = model.config()?;
        // A network for features of any dimension ignores this number.
        let dim = config.dim.unwrap_or(1);
        let network = config.is_possible().then(|| config.options.network(dim).ok()).flatten();
        let network = network.ok_or_else(|| model.malformed(IMPOSSIBLE_SIZES))?;
        let parameters = model.parameters(network.layout())?;
        Ok(TrainedRelabel { network, parameters, path: model.tensors().path().into() })
    }

    /// Checks that the network takes features of `features` dimensions.
    fn check(&self, features: usize) -> Result<()> {
        match self.network.config().dim().filter(|&dim| dim != features) {
            None => Ok(()),
            Some(model) => Err(Error::ModelDimension { path: self.path.clone(), features, model }),
        }
    }

    /// The mean `[dim]` of the training features, if items and queries are centred on it.
    pub(super) fn training_centre(&self) -> Option<&[f32]> {
        self.network.training_centre().map(|range| &self.parameters[range])
    }

    /// Runs the network on several support sets; returns the class probabilities and prototype weights of each.
    pub(crate) fn judge(&self, tasks: &[&Task<'_>]) -> Result<Vec<RelabelOutput>> {
        tasks.iter().try_for_each(|task| self.check(task.support.dim()))?;
        let mut inputs = Vec::with_capacity(tasks.len());
        for task in tasks {
            inputs.push(RelabelInput {
                classes: task.support.classes(),
                given: task.support.given(),
                rows: task.support.rows(),
                gram: Some(task.gram()),
            });
        }
        Ok(self.network.predict(&self.parameters, &inputs))
    }
}

impl Method for TrainedRelabel {
    fn fit(&self, task: &Task<'_>, rng: &mut Rng) -> Result<Fitted> {
        let mut fitted = self.fit_batch(&[task], std::slice::from_mut(rng))?;
        Ok(fitted.remove(0))
    }

    fn fit_batch(&self, tasks: &[&Task<'_>], _rngs: &mut [Rng]) -> Result<Vec<Fitted>> {
        let outputs = self.judge(tasks)?;
        let centre = self.training_centre();
        Ok(tasks.iter().zip(outputs).map(|(task, output)| fitted(task, output, centre)).collect())
    }
}

/// Turns the network's output for one support set into a classifier and assessments. `training_centre` is the mean of
/// the training features if the network subtracts it.
fn fitted(task: &Task<'_>, output: RelabelOutput, training_centre: Option<&[f32]>) -> Fitted {
    let RelabelOutput { probabilities, weights, space } = output;
    // `[classes][items]`
    let weights: Vec<Vec<f32>> = weights.chunks_exact(task.support.len()).map(<[f32]>::to_vec).collect();
    let assessments = assessments(task, &probabilities, &weights);
    // Queries must be transformed as the network transformed the items: centred on the training features, on the
    // support set, or not at all.
    let classifier = match training_centre {
        Some(mean) => centred_vectors(task, mean, &weights),
        None if space.is_centred() => Classifier::Centred(CentredMixture::new(space, weights)),
        None => Classifier::Prototypes(Mixture::across_classes(task, &weights)),
    };
    Fitted { classifier, assessments: Some(assessments) }
}

/// Prototypes with `weights[class][item]` of items that are centred on `mean` and scaled to unit length.
fn centred_vectors(task: &Task<'_>, mean: &[f32], weights: &[Vec<f32>]) -> Classifier {
    let centred: Vec<Vec<f32>> = task.support.rows().iter().map(|row| centred_unit(row, mean)).collect();
    let rows: Vec<&[f32]> = centred.iter().map(Vec::as_slice).collect();
    let vector = |weights: &Vec<f32>| {
        let mut sum = vec![0.0; mean.len()];
        products::weighted_sum(&rows, weights, &mut sum);
        sum
    };
    Classifier::CentredVectors { mean: mean.to_vec(), vectors: weights.iter().map(vector).collect() }
}

/// Assessments from probabilities `[items, classes + 1]`, whose last column is "none of the classes", and prototype
/// weights `[classes][items]`.
fn assessments(task: &Task<'_>, probabilities: &[f32], weights: &[Vec<f32>]) -> Vec<ItemAssessment> {
    let members = task.support.members();
    let given = task.support.given().iter().map(|&class| class as usize).enumerate();
    let rows = probabilities.chunks_exact(task.support.classes() + 1);
    let assessment = |((item, class), probabilities): ((usize, usize), &[f32])| ItemAssessment {
        weight: weights[class][item] * members[class].len() as f32,
        p_wrong: Some((1.0 - probabilities[class]).clamp(0.0, 1.0)),
        decision: Some(decision(class, probabilities)),
    };
    given.zip(rows).map(assessment).collect()
}

/// The decision for one item with the given class `given`, from its class probabilities, the last of which is "none of
/// the classes".
fn decision(given: usize, probabilities: &[f32]) -> Decision {
    let by_probability = |&a: &usize, &b: &usize| probabilities[a].total_cmp(&probabilities[b]);
    let argmax = (0..probabilities.len()).max_by(by_probability).unwrap_or(given);
    match argmax {
        _ if probabilities[argmax] < DECISION_THRESHOLD => Decision::Unsure,
        class if class == given => Decision::Keep,
        class if class + 1 == probabilities.len() => Decision::Outlier,
        class => Decision::Relabel(class as u32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_class_decides_if_it_is_likely_enough() {
        assert_eq!(decision(0, &[0.7, 0.2, 0.1]), Decision::Keep);
        assert_eq!(decision(0, &[0.2, 0.7, 0.1]), Decision::Relabel(1));
        assert_eq!(decision(0, &[0.2, 0.2, 0.6]), Decision::Outlier);
        assert_eq!(decision(0, &[0.4, 0.35, 0.25]), Decision::Unsure);
    }
}
