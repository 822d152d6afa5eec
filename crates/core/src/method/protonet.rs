//! The method `protonet`: a query gets the class whose mean over the support items is nearest, as in prototypical
//! networks (Snell et al., 2017).
//!
//! Every item counts the same, including those under a wrong label. It is the baseline for the other methods.

use super::registry::{MethodInfo, Parameters};
use super::{Fitted, Method};
use crate::classifier::{Classifier, Mixture};
use crate::error::Result;
use crate::rng::Rng;
use crate::task::Task;

pub(super) const INFO: MethodInfo = MethodInfo {
    name: "protonet",
    summary: "nearest class mean",
    parameters: &[],
    transductive: false,
    build: |_: &Parameters| Ok(Box::new(ProtoNet)),
};

struct ProtoNet;

impl Method for ProtoNet {
    fn fit(&self, task: &Task<'_>, _rng: &mut Rng) -> Result<Fitted> {
        let uniform = |members: &Vec<u32>| vec![1.0 / members.len() as f32; members.len()];
        let weights: Vec<Vec<f32>> = task.support.members().iter().map(uniform).collect();
        let classifier = Classifier::Prototypes(Mixture::within_classes(task, &weights));
        Ok(Fitted { classifier, assessments: None })
    }
}
