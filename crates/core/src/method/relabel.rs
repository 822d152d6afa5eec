//! Relabel: our own head. It says of every item whose it is, and builds every prototype from all of them.
//!
//! An item under a wrong label is often a right one of another class of the same set. Who finds out which has
//! more to learn from than who only drops it. The head sees relations between items, so one trained head serves
//! features of any dimension (unless it was told to see the items of one backbone, too).

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use trueshot_nn::head::Head;
use trueshot_nn::relabel::{Config, ItemView, Relabel, RelabelInput, RelabelOutput, ViewTarget};

use super::registry::{MethodInfo, Parameter, Parameters};
use super::{Decision, Fitted, ItemAssessment, Method};
use crate::classifier::{Classifier, Mixture, PlacedMixture};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::rng::Rng;
use crate::task::Task;

pub(super) const INFO: MethodInfo = MethodInfo {
    name: KIND,
    summary: "prototypes of all items, weighted by their estimated class (`trueshot train relabel`)",
    parameters: &[Parameter { name: "model", default: BUILT_IN, meaning: "a model file, or 'built-in'" }],
    build: |given: &Parameters| match given.text("model") {
        BUILT_IN => Ok(Box::new(TrainedRelabel::built_in()?)),
        _ => {
            let path = given.file("model", "a model file, as `trueshot train relabel` writes it")?;
            Ok(Box::new(TrainedRelabel::open(path)?))
        }
    },
};

/// Its name in files and on command lines.
pub const KIND: &str = "relabel";

/// What the parameter `model` calls the head that comes with the program.
const BUILT_IN: &str = "built-in";

/// Trained on several backbones and kinds of pictures; `docs/built-in.md` has the command.
static GENERAL: &[u8] = include_bytes!("../../assets/relabel.safetensors");

/// An answer must be at least this probable to be acted on.
const SURE: f32 = 0.5;

/// What the view of an item speaks to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ItemReach {
    /// Everything.
    #[default]
    States,
    /// Only whether the item is of none of the classes.
    None,
}

/// What a Relabel head is like.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelabelOptions {
    /// Layers.
    pub layers: usize,
    /// Numbers of a state.
    pub width: usize,
    /// Attention heads, which divide the width.
    pub heads: usize,
    /// Hidden units of a layer's second half.
    pub hidden: usize,
    /// Hidden units of the network over pairs of items.
    pub edge_hidden: usize,
    /// Whether items and queries are taken minus the mean of the support items and at unit length.
    pub centred: bool,
    /// For one backbone only: numbers an item itself is seen by; 0: relations only.
    pub item_width: usize,
    /// The share of an item's numbers that training hides from that view.
    pub item_dropout: f64,
    /// What that view speaks to.
    #[serde(default)]
    pub item_reach: ItemReach,
    /// The least an item counts in the prototype of the class it is filed under.
    pub floor: f64,
    /// The weight of telling whose every item is.
    pub items_weight: f64,
    /// The weight of answering the queries.
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
    /// Refuses sizes no model has: files come from elsewhere, and sizes decide what is allocated.
    pub fn check(&self) -> Result<()> {
        use crate::ranges::require;
        let size = |what, given: usize, most: usize| {
            require(what, given, (1..=most).contains(&given), &format!("1 to {most}"))
        };
        size("model.layers", self.layers, 64)?;
        size("model.width", self.width, 4096)?;
        size("model.hidden", self.hidden, 1 << 16)?;
        size("model.edge_hidden", self.edge_hidden, 1 << 16)?;
        let divides = self.heads >= 1 && self.width.is_multiple_of(self.heads);
        require("model.heads", self.heads, divides, &format!("a divisor of the width, {}", self.width))?;
        require("model.item_width", self.item_width, self.item_width <= 4096, "0 to 4096")?;
        let drops = (0.0..1.0).contains(&self.item_dropout);
        require("model.item_dropout", self.item_dropout, drops, "a share from 0 to below 1")?;
        for (what, weight) in [
            ("model.floor", self.floor),
            ("model.items_weight", self.items_weight),
            ("model.queries_weight", self.queries_weight),
        ] {
            require(what, weight, weight.is_finite() && weight >= 0.0, "a number, 0 or above")?;
        }
        Ok(())
    }

    /// The network; features of `dim` numbers matter to it only if it sees items.
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
            item_view: (self.item_width > 0).then_some(view),
            floor: self.floor,
            items_weight: self.items_weight,
            queries_weight: self.queries_weight,
        }))
    }
}

/// What a model file says about its network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RelabelConfig {
    /// Dimensions of the features, where the head sees items.
    pub dim: Option<usize>,
    /// Everything else.
    pub options: RelabelOptions,
}

/// A trained Relabel head.
pub struct TrainedRelabel {
    network: Relabel,
    parameters: Vec<f32>,
    path: PathBuf,
}

impl TrainedRelabel {
    /// One whose parameters are at hand.
    pub fn new(network: Relabel, parameters: Vec<f32>) -> Self {
        assert_eq!(parameters.len(), network.layout().len());
        TrainedRelabel { network, parameters, path: "the program".into() }
    }

    /// The general head that comes with the program, for embeddings of any dimension.
    pub fn built_in() -> Result<Self> {
        Self::from_model(&Model::read_bytes(GENERAL, "the built-in head")?)
    }

    /// Reads a model file.
    pub fn open(path: &Path) -> Result<Self> {
        Self::from_model(&Model::open(path)?)
    }

    /// Takes a model that was read.
    pub fn from_model(model: &Model) -> Result<Self> {
        model.expect_kind(KIND)?;
        let config: RelabelConfig = model.config()?;
        let dim = config.dim.unwrap_or(1);
        let fits = (1..=1 << 20).contains(&dim) && config.dim.is_some() == (config.options.item_width > 0);
        let sizes = || model.malformed("its metadata 'config' has sizes that no model has");
        let network = config.options.network(dim).ok().filter(|_| fits).ok_or_else(sizes)?;
        let parameters = model.parameters(network.layout())?;
        Ok(TrainedRelabel { network, parameters, path: model.tensors().path().into() })
    }

    fn check(&self, features: usize) -> Result<()> {
        match self.network.config().item_view.as_ref().filter(|view| view.dim != features) {
            None => Ok(()),
            Some(view) => Err(Error::ModelDimension { path: self.path.clone(), features, model: view.dim }),
        }
    }
}

impl TrainedRelabel {
    /// What the head says of some support sets.
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
        Ok(tasks.iter().zip(outputs).map(|(task, output)| fitted(task, output)).collect())
    }
}

fn fitted(task: &Task<'_>, output: RelabelOutput) -> Fitted {
    let RelabelOutput { probabilities, weights, space } = output;
    let weights: Vec<Vec<f32>> = weights.chunks_exact(task.support.len()).map(<[f32]>::to_vec).collect();
    let assessments = assessments(task, &probabilities, &weights);
    let classifier = match space.is_centred() {
        true => Classifier::Placed(PlacedMixture::new(space, weights)),
        false => Classifier::Prototypes(Mixture::across_classes(task, &weights)),
    };
    Fitted { classifier, assessments: Some(assessments) }
}

fn assessments(task: &Task<'_>, probabilities: &[f32], weights: &[Vec<f32>]) -> Vec<ItemAssessment> {
    let members = task.support.members();
    let given = task.support.given().iter().map(|&class| class as usize).enumerate();
    let shares = probabilities.chunks_exact(task.support.classes() + 1);
    let assessment = |((item, class), shares): ((usize, usize), &[f32])| ItemAssessment {
        weight: weights[class][item] * members[class].len() as f32,
        p_wrong: Some((1.0 - shares[class]).clamp(0.0, 1.0)),
        decision: Some(decision(class, shares)),
    };
    given.zip(shares).map(assessment).collect()
}

/// What the likeliest answer means, if it is likely enough; the last share is "none of the classes".
fn decision(given: usize, shares: &[f32]) -> Decision {
    let likeliest = (0..shares.len()).max_by(|&a, &b| shares[a].total_cmp(&shares[b])).unwrap_or(given);
    match likeliest {
        _ if shares[likeliest] < SURE => Decision::Unsure,
        class if class == given => Decision::Keep,
        class if class + 1 == shares.len() => Decision::Outlier,
        class => Decision::Relabel(class as u32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_follow_the_likeliest_answer() {
        assert_eq!(decision(0, &[0.7, 0.2, 0.1]), Decision::Keep);
        assert_eq!(decision(0, &[0.2, 0.7, 0.1]), Decision::Relabel(1));
        assert_eq!(decision(0, &[0.2, 0.2, 0.6]), Decision::Outlier);
        assert_eq!(decision(0, &[0.4, 0.35, 0.25]), Decision::Unsure);
    }
}
