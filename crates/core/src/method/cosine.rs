//! Weights from the cosine between the items of a class.

use super::registry::{MethodInfo, Parameter, Parameters};
use super::similarity::{self, Similarities};
use super::{Fitted, Method};
use crate::error::Result;
use crate::rng::Rng;
use crate::task::Task;

pub(super) const INFO: MethodInfo = MethodInfo {
    name: "cosine",
    summary: "class mean, weighted by cosine with the other items of the class",
    parameters: &[Parameter {
        name: "T",
        default: "0.2",
        meaning: "temperature; lower values concentrate the weight on fewer items",
    }],
    build: |given: &Parameters| Ok(Box::new(Cosine { temperature: given.positive("T")? })),
};

struct Cosine {
    temperature: f32,
}

impl Method for Cosine {
    fn fit(&self, task: &Task<'_>, _rng: &mut Rng) -> Result<Fitted> {
        Ok(similarity::fit(task, self.temperature, |class| {
            let gram = task.class_gram(class);
            Similarities::of_pairs(gram.len(), |i, j| gram.cosine(i, j))
        }))
    }
}
