//! The method `median`: the nearest smoothed geometric median of the class, the point `p` that minimises the sum of
//! `sqrt(|p - h_i|^2 + eps^2)` over the items `h_i` of the class.
//!
//! It is robust because the gradient of a distance has at most length 1, however far away the item is.
//!
//! The paper takes five Newton steps with the diagonal of the Hessian, which is Weiszfeld's iteration: each
//! step is the mean weighted by the inverse distances of the last. The full Hessian is that diagonal minus one
//! rank-one term per item, so Woodbury's identity leaves a linear system of the size of the class (`hessian=full`).
//!
//! The median is a weighted sum of the items at every step, so the iteration runs on weights and inner products instead
//! of vectors.

use super::registry::{MethodInfo, Parameter, Parameters};
use super::{Fitted, Method, weighted_prototypes};
use crate::error::Result;
use crate::rng::Rng;
use crate::task::{Gram, Task};

pub(super) const INFO: MethodInfo = MethodInfo {
    name: "median",
    summary: "nearest geometric median of the class",
    parameters: &[
        Parameter { name: "steps", default: "5", meaning: "number of Newton steps, or 'converge'" },
        Parameter { name: "eps", default: "0.5", meaning: "smoothing, in units of the features" },
        Parameter { name: "hessian", default: "diagonal", meaning: "'diagonal' (the paper) or 'full'" },
    ],
    transductive: false,
    build: |given: &Parameters| {
        Ok(Box::new(Median {
            steps: match given.text("steps") {
                "converge" => None,
                _ => Some(given.count("steps")?),
            },
            eps: given.positive("eps")?,
            hessian: given.choice(
                "hessian",
                "diagonal or full",
                &[("diagonal", Hessian::Diagonal), ("full", Hessian::Full)],
            )?,
        }))
    },
};

#[derive(Clone, Copy)]
enum Hessian {
    Diagonal,
    Full,
}

struct Median {
    /// Number of steps; `None` iterates until the weights converge.
    steps: Option<usize>,
    /// Smoothing, in the units of the features.
    eps: f32,
    hessian: Hessian,
}

/// Maximum number of steps with `steps=converge`.
const MAX_STEPS: usize = 10_000;
/// The iteration has converged when no weight changes by this much.
const CONVERGED: f32 = 1e-7;

impl Method for Median {
    fn fit(&self, task: &Task<'_>, _rng: &mut Rng) -> Result<Fitted> {
        let weights: Vec<Vec<f32>> =
            (0..task.support.classes()).map(|class| self.weights(task.class_gram(class))).collect();
        Ok(weighted_prototypes(task, &weights))
    }
}

impl Median {
    /// The weights of the items of one class in its median; they sum to 1.
    fn weights(&self, gram: &Gram) -> Vec<f32> {
        let mut weights = vec![1.0 / gram.len() as f32; gram.len()];
        for _ in 0..self.steps.unwrap_or(MAX_STEPS) {
            let next = self.step(gram, &weights);
            let change = next.iter().zip(&weights).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            weights = next;
            if self.steps.is_none() && change < CONVERGED {
                break;
            }
        }
        weights
    }

    fn step(&self, gram: &Gram, weights: &[f32]) -> Vec<f32> {
        let inverse = inverse_distances(gram, weights, self.eps);
        match self.hessian {
            Hessian::Diagonal => normalised(inverse),
            Hessian::Full => newton_step(gram, weights, &inverse)
                // Far from the median a full step can overshoot; the diagonal one never does.
                .filter(|next| self.objective(gram, next) <= self.objective(gram, weights))
                .unwrap_or_else(|| normalised(inverse)),
        }
    }

    /// The sum of the smoothed distances, which the median minimises.
    fn objective(&self, gram: &Gram, weights: &[f32]) -> f32 {
        inverse_distances(gram, weights, self.eps).iter().map(|inverse| inverse.recip()).sum()
    }
}

/// `1 / sqrt(|p - h_i|^2 + eps^2)` for every item `h_i`, where `p` is the weighted sum of the items.
fn inverse_distances(gram: &Gram, weights: &[f32], eps: f32) -> Vec<f32> {
    let products = gram.times(weights);
    let squared_norm: f32 = products.iter().zip(weights).map(|(p, w)| p * w).sum();
    let squared = |(i, p): (usize, &f32)| (squared_norm - 2.0 * p + gram.at(i, i)).max(0.0);
    products.iter().enumerate().map(squared).map(|squared| (squared + eps * eps).sqrt().recip()).collect()
}

fn normalised(mut weights: Vec<f32>) -> Vec<f32> {
    let total: f32 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= total);
    weights
}

/// One step with the full Hessian `W I - V V^T`, V's columns being `w_i^1.5 (p - h_i)` and W the sum of the
/// inverse distances w. Its inverse is `(I + V (W I - V^T V)^-1 V^T) / W`.
fn newton_step(gram: &Gram, weights: &[f32], inverse: &[f32]) -> Option<Vec<f32>> {
    let n = gram.len();
    let total: f64 = inverse.iter().map(|&w| f64::from(w)).sum();
    // Every vector here is a combination of the items; direction i is p - h_i.
    let direction = |i: usize, j: usize| f64::from(weights[j]) - if i == j { 1.0 } else { 0.0 };
    let product = |a: &[f64], b: &[f64]| -> f64 {
        (0..n).map(|i| a[i] * (0..n).map(|j| f64::from(gram.at(i, j)) * b[j]).sum::<f64>()).sum()
    };
    let directions: Vec<Vec<f64>> = (0..n).map(|i| (0..n).map(|j| direction(i, j)).collect()).collect();
    let scale: Vec<f64> = inverse.iter().map(|&w| f64::from(w).powf(1.5)).collect();
    let gradient: Vec<f64> =
        (0..n).map(|j| (0..n).map(|i| f64::from(inverse[i]) * directions[i][j]).sum()).collect();
    let mut system: Vec<Vec<f64>> = (0..n)
        .map(|i| (0..n).map(|j| -scale[i] * scale[j] * product(&directions[i], &directions[j])).collect())
        .collect();
    (0..n).for_each(|i| system[i][i] += total);
    let right: Vec<f64> = (0..n).map(|i| scale[i] * product(&directions[i], &gradient)).collect();
    let solution = solve(system, right)?;
    let step = |j: usize| {
        let curved: f64 = (0..n).map(|i| scale[i] * solution[i] * directions[i][j]).sum();
        (f64::from(weights[j]) - (gradient[j] + curved) / total) as f32
    };
    Some((0..n).map(step).collect())
}

/// Solves a symmetric positive definite system by Cholesky; `None` if it is not positive definite.
fn solve(mut a: Vec<Vec<f64>>, mut b: Vec<f64>) -> Option<Vec<f64>> {
    let n = b.len();
    for i in 0..n {
        for j in 0..=i {
            let sum = a[i][j] - (0..j).map(|k| a[i][k] * a[j][k]).sum::<f64>();
            a[i][j] = if i > j { sum / a[j][j] } else { (sum > 0.0).then(|| sum.sqrt())? };
        }
        b[i] = (b[i] - (0..i).map(|k| a[i][k] * b[k]).sum::<f64>()) / a[i][i];
    }
    for i in (0..n).rev() {
        b[i] = (b[i] - (i + 1..n).map(|k| a[k][i] * b[k]).sum::<f64>()) / a[i][i];
    }
    Some(b)
}
