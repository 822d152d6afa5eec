//! Weights from minus the squared Euclidean distance between the items of a class.

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
    build: |given: &Parameters| Ok(Box::new(Euclidean { temperature: given.positive("T")? })),
};

struct Euclidean {
    temperature: f32,
}

impl Method for Euclidean {
    fn fit(&self, task: &Task<'_>, _rng: &mut Rng) -> Result<Fitted> {
        Ok(similarity::fit(task, self.temperature, |class| {
            let gram = task.class_gram(class);
            Similarities::of_pairs(gram.len(), |i, j| -gram.squared_distance(i, j))
        }))
    }
}
