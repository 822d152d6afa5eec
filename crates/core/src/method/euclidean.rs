//! The method `euclidean`: a query gets the class of the nearest prototype, and a prototype is the mean of the support
//! items of its class, weighted by similarity. The similarity of two items is minus the squared distance.
//!
//! An item far from the other items of its class gets little weight. The module `similarity` computes the weights.

use super::registry::{MethodInfo, Parameter, Parameters};
use super::similarity::{self, Similarities};
use super::{Fitted, Method};
use crate::error::Result;
use crate::rng::Rng;
use crate::task::Task;

pub(super) const INFO: MethodInfo = MethodInfo {
    name: "euclidean",
    summary: "class mean, weighted by squared distance to the other items of the class",
    parameters: &[Parameter {
        name: "T",
        default: "25",
        meaning: "temperature; lower values concentrate the weight on fewer items",
    }],
    transductive: false,
    build: |given: &Parameters| Ok(Box::new(Euclidean { temperature: given.positive("T")? })),
};

struct Euclidean {
    /// Divides the similarities before the softmax over the items of a class.
    temperature: f32,
}

impl Method for Euclidean {
    fn fit(&self, task: &Task<'_>, _rng: &mut Rng) -> Result<Fitted> {
        Ok(similarity::fit(task, self.temperature, |class| {
            let gram = task.class_gram(class);
            Similarities::from_pairs(gram.len(), |i, j| -gram.squared_distance(i, j))
        }))
    }
}
