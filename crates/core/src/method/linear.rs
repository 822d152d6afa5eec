//! The method `linear`: softmax regression (one linear layer) trained on the given labels of each support set.
//!
//! It is a baseline without any protection against wrong labels. The training loop is
//! `trueshot_nn::softmax_regression`; weights `[classes, dim]` and biases `[classes]` start uniform in `±1/sqrt(dim)`,
//! as in PyTorch's `nn.Linear`.

use trueshot_nn::softmax_regression::{self, SoftmaxRegressionConfig};

use super::registry::{MethodInfo, Parameter, Parameters};
use super::{Fitted, Method};
use crate::classifier::Classifier;
use crate::error::Result;
use crate::rng::Rng;
use crate::task::Task;

pub(super) const INFO: MethodInfo = MethodInfo {
    name: "linear",
    summary: "a linear layer trained on the given labels, full batches of AdamW",
    parameters: &[
        Parameter {
            name: "steps",
            default: "101",
            meaning: "training steps (100 in the paper, 101 in its code)",
        },
        Parameter { name: "rate", default: "0.001", meaning: "learning rate" },
        Parameter { name: "decay", default: "0.01", meaning: "weight decay" },
    ],
    transductive: false,
    build: |given: &Parameters| {
        Ok(Box::new(Linear {
            steps: given.count("steps")?,
            rate: given.positive("rate")?,
            decay: given.not_negative("decay")?,
        }))
    },
};

struct Linear {
    /// Steps of AdamW, each on the whole support set.
    steps: usize,
    /// Learning rate.
    rate: f32,
    /// Decoupled weight decay.
    decay: f32,
}

impl Method for Linear {
    fn fit(&self, task: &Task<'_>, rng: &mut Rng) -> Result<Fitted> {
        let (dim, classes) = (task.support.dim(), task.support.classes());
        let bound = (dim as f32).sqrt().recip();
        let mut uniform = || bound * (2.0 * rng.uniform() - 1.0);
        let mut weights: Vec<f32> = (0..classes * dim).map(|_| uniform()).collect();
        let mut bias: Vec<f32> = (0..classes).map(|_| uniform()).collect();
        let config = SoftmaxRegressionConfig { steps: self.steps, rate: self.rate, weight_decay: self.decay };
        let (rows, given) = (task.support.rows(), task.support.given());
        softmax_regression::train(rows, given, &mut weights, &mut bias, config);
        let weights = weights.chunks_exact(dim).map(<[f32]>::to_vec).collect();
        Ok(Fitted { classifier: Classifier::Linear { weights, bias }, assessments: None })
    }
}
