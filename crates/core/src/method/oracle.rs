//! The oracle: the mean of the items whose label is right. What dropping wrong items could reach at best.
//!
//! It gives no assessments: its weights are the truth itself, and scoring them would say nothing.

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
    build: |_: &Parameters| Ok(Box::new(Oracle)),
};

struct Oracle;

impl Method for Oracle {
    fn fit(&self, task: &Task<'_>, _rng: &mut Rng) -> Result<Fitted> {
        let truth = task.truth.ok_or(Error::NeedsTruth { method: INFO.name })?;
        let clean_mean = |(class, members): (u32, &Vec<u32>)| {
            let right: Vec<bool> = members.iter().map(|&item| truth[item as usize] == Some(class)).collect();
            let count = right.iter().filter(|&&right| right).count();
            right.iter().map(|&right| if right { 1.0 / count as f32 } else { 0.0 }).collect()
        };
        let weights: Vec<Vec<f32>> = (0..).zip(task.support.members()).map(clean_mean).collect();
        let classifier = Classifier::Prototypes(Mixture::within_classes(task, &weights));
        Ok(Fitted { classifier, assessments: None })
    }
}
