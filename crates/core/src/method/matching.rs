//! The method `matching`: matching networks (Vinyals et al., 2016) without full context embeddings.
//!
//! A query attends to all support items with a softmax over the cosines with them, and the score of a class is the sum
//! of the attention weights of the items with its label. There is nothing to fit; [`Classifier::Matching`] computes the
//! scores.

use super::registry::{MethodInfo, Parameters};
use super::{Fitted, Method};
use crate::classifier::Classifier;
use crate::error::Result;
use crate::rng::Rng;
use crate::task::Task;

pub(super) const INFO: MethodInfo = MethodInfo {
    name: "matching",
    summary: "softmax over the cosines with all items, summed by class",
    parameters: &[],
    transductive: false,
    build: |_: &Parameters| Ok(Box::new(Matching)),
};

struct Matching;

impl Method for Matching {
    fn fit(&self, _task: &Task<'_>, _rng: &mut Rng) -> Result<Fitted> {
        Ok(Fitted { classifier: Classifier::Matching, assessments: None })
    }
}
