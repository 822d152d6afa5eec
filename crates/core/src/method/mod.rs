//! Methods: each looks at a support set once and yields a classifier, and what it thinks of every item.
//!
//! One file each. [`Registry`] finds them by name and reads their parameters from text such as
//! `cosine:T=0.5` or `median:steps=converge:hessian=full`.

mod absolute;
mod baseline_plus_plus;
mod cosine;
mod euclidean;
mod linear;
mod matching;
mod median;
mod nearest;
mod oracle;
mod protonet;
mod registry;
mod relabel;
mod rnnp;
mod similarity;
mod tranfs;

#[cfg(feature = "train")]
pub(crate) use registry::nearest as nearest_name;
pub use registry::{MethodInfo, NamedMethod, Parameter, Parameters, Registry};
pub use relabel::{KIND as RELABEL, RelabelConfig, RelabelOptions, TrainedRelabel};
pub use tranfs::{
    CleanKind, KIND as TRANFS, PositionKind, TokenKind, TrainedTranfs, TranfsConfig, TranfsOptions,
};

use crate::classifier::{Classifier, Mixture};
use crate::error::Result;
use crate::rng::Rng;
use crate::task::Task;

/// What every method does: look at a support set once, then answer queries.
pub trait Method: Send + Sync {
    /// Learns from a support set. The random numbers are the episode's own.
    fn fit(&self, task: &Task<'_>, rng: &mut Rng) -> Result<Fitted>;

    /// Learns from several, each with random numbers of its own. Learned heads gain from it, since their products
    /// of matrices are large enough only for many; what comes out must be the same as one by one.
    fn fit_batch(&self, tasks: &[&Task<'_>], rngs: &mut [Rng]) -> Result<Vec<Fitted>> {
        tasks.iter().zip(rngs).map(|(task, rng)| self.fit(task, rng)).collect()
    }

    /// What its rows must be, if they are not embeddings but pictures.
    fn pictures(&self) -> Option<ImageRows> {
        None
    }
}

/// Rows that hold pictures: `[row][column][channel]`, numbers from 0 to 255.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageRows {
    /// Height and width.
    pub size: usize,
    /// Numbers of a pixel.
    pub channels: usize,
}

/// What a method learned.
#[derive(Debug, Clone)]
pub struct Fitted {
    /// How to answer queries.
    pub classifier: Classifier,
    /// What it thinks of every support item, where it tells them apart.
    pub assessments: Option<Vec<ItemAssessment>>,
}

/// What a method thinks of one support item.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ItemAssessment {
    /// Its share in its class, 1 being an ordinary one. Not a probability.
    pub weight: f32,
    /// The probability that its label is wrong, from methods that estimate one.
    pub p_wrong: Option<f32>,
    /// What to do with it, from methods that can tell.
    pub decision: Option<Decision>,
}

/// What to do with a support item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Its label is right.
    Keep,
    /// It belongs to this class.
    Relabel(u32),
    /// It belongs to none of the classes.
    Outlier,
    /// None of these is likely enough.
    Unsure,
}

impl ItemAssessment {
    /// How strongly it speaks for a wrong label, for ranking: the probability, or else the lack of weight.
    pub fn suspicion(&self) -> f32 {
        self.p_wrong.unwrap_or(-self.weight)
    }
}

/// Nearest prototypes from weights within classes (which sum to 1), and what the weights say of the items.
fn weighted_prototypes(task: &Task<'_>, weights: &[Vec<f32>]) -> Fitted {
    let mut assessments =
        vec![ItemAssessment { weight: 0.0, p_wrong: None, decision: None }; task.support.len()];
    for (members, weights) in task.support.members().iter().zip(weights) {
        for (&item, weight) in members.iter().zip(weights) {
            assessments[item as usize].weight = weight * members.len() as f32;
        }
    }
    let mixture = Mixture::within_classes(task, weights);
    Fitted { classifier: Classifier::Prototypes(mixture), assessments: Some(assessments) }
}

#[cfg(test)]
pub(crate) mod tests;
