//! The method `oracle`: nearest class mean over the support items whose given label is right. It compares the given
//! labels with the true ones, which only experiments have.
//!
//! It is an upper bound for methods that only remove items under wrong labels. The prototype of a class without right
//! labels is the origin; no built-in noise leaves a class without them. It returns no assessments: they would
//! repeat the true labels, so measuring how well they detect errors would be meaningless.

use super::registry::{MethodInfo, Parameters};
use super::{Fitted, Method};
use crate::classifier::{Classifier, Mixture};
use crate::error::{Error, Result};
use crate::rng::Rng;
use crate::task::Task;

pub(super) const INFO: MethodInfo = MethodInfo {
    name: "oracle",
    summary: "mean of the correctly labelled items; needs the true labels, for experiments only",
    parameters: &[],
    transductive: false,
    build: |_: &Parameters| Ok(Box::new(Oracle)),
};

struct Oracle;

impl Method for Oracle {
    fn fit(&self, task: &Task<'_>, _rng: &mut Rng) -> Result<Fitted> {
        let truth = task.truth.ok_or(Error::NeedsTruth { method: INFO.name })?;
        // The weights of a class's items: 1 / n for each of the n items whose given label is right, 0 for the rest.
        let clean_mean = |(class, members): (u32, &Vec<u32>)| {
            let clean: Vec<bool> = members.iter().map(|&item| truth[item as usize] == Some(class)).collect();
            let count = clean.iter().filter(|&&clean| clean).count();
            clean.iter().map(|&clean| if clean { 1.0 / count as f32 } else { 0.0 }).collect()
        };
        let weights: Vec<Vec<f32>> = (0..).zip(task.support.members()).map(clean_mean).collect();
        let classifier = Classifier::Prototypes(Mixture::within_classes(task, &weights));
        Ok(Fitted { classifier, assessments: None })
    }
}
