//! Matching networks without their context embeddings (Vinyals et al., 2016): every support item speaks for
//! its class in proportion to the exponential of its cosine with the query.

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
    build: |_: &Parameters| Ok(Box::new(Matching)),
};

struct Matching;

impl Method for Matching {
    fn fit(&self, _task: &Task<'_>, _rng: &mut Rng) -> Result<Fitted> {
        Ok(Fitted { classifier: Classifier::Matching, assessments: None })
    }
}
