//! The method `absolute`: a query gets the class of the nearest prototype, and a prototype is the mean of the support
//! items of its class, weighted by similarity. The similarity of two items is minus the L1 distance.
//!
//! An item far from the other items of its class gets little weight. The module `similarity` computes the weights.

use trueshot_nn::products;

use super::registry::{MethodInfo, Parameter, Parameters};
use super::similarity::{self, Similarities};
use super::{Fitted, Method};
use crate::error::Result;
use crate::rng::Rng;
use crate::task::Task;

pub(super) const INFO: MethodInfo = MethodInfo {
    name: "absolute",
    summary: "class mean, weighted by absolute distance to the other items of the class",
    parameters: &[Parameter {
        name: "T",
        default: "25",
        meaning: "temperature; lower values concentrate the weight on fewer items",
    }],
    transductive: false,
    build: |given: &Parameters| Ok(Box::new(Absolute { temperature: given.positive("T")? })),
};

struct Absolute {
    /// Divides the similarities before the softmax over the items of a class.
    temperature: f32,
}

impl Method for Absolute {
    fn fit(&self, task: &Task<'_>, _rng: &mut Rng) -> Result<Fitted> {
        Ok(similarity::fit(task, self.temperature, |class| {
            let members = &task.support.members()[class];
            let row = |i: usize| task.support.rows()[members[i] as usize];
            Similarities::from_pairs(members.len(), |i, j| -products::l1_distance(row(i), row(j)))
        }))
    }
}
