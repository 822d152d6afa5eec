//! The method `nearest`: a query gets the most frequent label among its k nearest support items.
//!
//! There is nothing to fit, and an item under a wrong label counts like any other; the votes are counted in
//! [`Classifier::Neighbours`].

use super::registry::{MethodInfo, Parameter, Parameters};
use super::{Fitted, Method};
use crate::classifier::Classifier;
use crate::error::Result;
use crate::rng::Rng;
use crate::task::Task;

pub(super) const INFO: MethodInfo = MethodInfo {
    name: "nearest",
    summary: "plurality among the k nearest items, ties broken at random",
    parameters: &[Parameter { name: "k", default: "1", meaning: "number of neighbours" }],
    transductive: false,
    build: |given: &Parameters| Ok(Box::new(Nearest { k: given.count("k")? })),
};

struct Nearest {
    /// Number of neighbours that vote.
    k: usize,
}

impl Method for Nearest {
    fn fit(&self, _task: &Task<'_>, _rng: &mut Rng) -> Result<Fitted> {
        Ok(Fitted { classifier: Classifier::Neighbours(self.k), assessments: None })
    }
}
