//! The method `matching`: matching networks (Vinyals et al., 2016) without full context embeddings.
//!
//! A query attends to all support items with a softmax over cosines, and the score of a class is the attention on its
//! items. There is nothing to fit; the scores are computed in [`Classifier::Matching`].

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
