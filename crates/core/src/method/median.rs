//! The method `median`: a query gets the class whose smoothed geometric median is nearest. The median of a class is the
//! point `p` that minimises the sum of `sqrt(|p - h_i|^2 + eps^2)` over the support items `h_i` of the class.
//!
//! It is robust against wrong labels because the gradient of a distance has at most length 1, however far away the item
//! is.
//!
//! The paper (Liang et al., CVPR 2022) takes five Newton steps with the diagonal of the Hessian, which is Weiszfeld's
//! iteration: the next point is the mean of the items, weighted by their inverse distances to the current point. The
//! full Hessian is that diagonal minus one rank-one term per item, so Woodbury's identity leaves a linear system of the
//! size of the class (`hessian=full`).
//!
//! The point is a weighted sum of the items at every step, so the iteration runs on weights and inner products (the
//! Gram matrix of the class) instead of vectors.

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

/// The matrix of the Newton steps.
#[derive(Clone, Copy)]
enum Hessian {
    /// The sum of the inverse distances times the identity: Weiszfeld's iteration.
    Diagonal,
    /// The exact Hessian of the sum of smoothed distances, see [`newton_step`].
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
/// With `steps=converge`, the iteration ends when every weight changes by less than this.
const CONVERGED: f32 = 1e-7;

impl Method for Median {
    fn fit(&self, task: &Task<'_>, _rng: &mut Rng) -> Result<Fitted> {
        let weights: Vec<Vec<f32>> =
            (0..task.support.classes()).map(|class| self.weights(task.class_gram(class))).collect();
        Ok(weighted_prototypes(task, &weights))
    }
}

impl Median {
    /// The weights of the items of one class in its median, `[items]`; they sum to 1. The iteration starts at the mean.
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

    /// One step of the iteration, from the weights of the current point to those of the next.
    fn step(&self, gram: &Gram, weights: &[f32]) -> Vec<f32> {
        let inverse = inverse_distances(gram, weights, self.eps);
        match self.hessian {
            Hessian::Diagonal => normalised(inverse),
            Hessian::Full => newton_step(gram, weights, &inverse)
                // Far from the median, a step with the full Hessian can overshoot and increase the sum of distances;
                // Weiszfeld's step never does, so it replaces such a step.
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
    // |p - h_i|^2 = |p|^2 - 2 <p, h_i> + |h_i|^2; `products` are the <p, h_i>.
    let products = gram.times(weights);
    let squared_norm: f32 = products.iter().zip(weights).map(|(p, w)| p * w).sum();
    let squared = |(i, p): (usize, &f32)| (squared_norm - 2.0 * p + gram.at(i, i)).max(0.0);
    products.iter().enumerate().map(squared).map(|squared| (squared + eps * eps).sqrt().recip()).collect()
}

/// The weights divided by their sum.
fn normalised(mut weights: Vec<f32>) -> Vec<f32> {
    let total: f32 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= total);
    weights
}

/// The weights `[items]` after one Newton step with the full Hessian; `None` if the linear system cannot be solved.
///
/// With the inverse distances `w_i` (the argument `inverse`) and their sum W, the gradient is
/// `g = sum over i of w_i (p - h_i)`, and the Hessian is `W I - V V^T`, where column i of V is `w_i^1.5 (p - h_i)`. By
/// Woodbury's identity, its inverse is `(I + V (W I - V^T V)^-1 V^T) / W`.
///
/// Every vector is stored as its coefficients of the items.
fn newton_step(gram: &Gram, weights: &[f32], inverse: &[f32]) -> Option<Vec<f32>> {
    let n = gram.len();
    let total: f64 = inverse.iter().map(|&w| f64::from(w)).sum();
    // Coefficient j of direction i, which is p - h_i.
    let direction = |i: usize, j: usize| f64::from(weights[j]) - if i == j { 1.0 } else { 0.0 };
    // The inner product of two vectors.
    let product = |a: &[f64], b: &[f64]| -> f64 {
        (0..n).map(|i| a[i] * (0..n).map(|j| f64::from(gram.at(i, j)) * b[j]).sum::<f64>()).sum()
    };
    let directions: Vec<Vec<f64>> = (0..n).map(|i| (0..n).map(|j| direction(i, j)).collect()).collect();
    let scale: Vec<f64> = inverse.iter().map(|&w| f64::from(w).powf(1.5)).collect();
    let gradient: Vec<f64> =
        (0..n).map(|j| (0..n).map(|i| f64::from(inverse[i]) * directions[i][j]).sum()).collect();
    // The system (W I - V^T V) x = V^T g.
    let mut system: Vec<Vec<f64>> = (0..n)
        .map(|i| (0..n).map(|j| -scale[i] * scale[j] * product(&directions[i], &directions[j])).collect())
        .collect();
    (0..n).for_each(|i| system[i][i] += total);
    let right: Vec<f64> = (0..n).map(|i| scale[i] * product(&directions[i], &gradient)).collect();
    let solution = solve(system, right)?;
    // p - (g + V x) / W; the correction is V x.
    let step = |j: usize| {
        let correction: f64 = (0..n).map(|i| scale[i] * solution[i] * directions[i][j]).sum();
        (f64::from(weights[j]) - (gradient[j] + correction) / total) as f32
    };
    Some((0..n).map(step).collect())
}

/// Solves a symmetric positive definite system `a x = b` by Cholesky decomposition and returns x; `None` if the matrix
/// is not positive definite.
fn solve(mut a: Vec<Vec<f64>>, mut b: Vec<f64>) -> Option<Vec<f64>> {
    let n = b.len();
    // Decomposes a = L L^T in place and solves L y = b along with it.
    for i in 0..n {
        for j in 0..=i {
            let sum = a[i][j] - (0..j).map(|k| a[i][k] * a[j][k]).sum::<f64>();
            a[i][j] = if i > j { sum / a[j][j] } else { (sum > 0.0).then(|| sum.sqrt())? };
        }
        b[i] = (b[i] - (0..i).map(|k| a[i][k] * b[k]).sum::<f64>()) / a[i][i];
    }
    // Solves L^T x = y.
    for i in (0..n).rev() {
        b[i] = (b[i] - (i + 1..n).map(|k| a[k][i] * b[k]).sum::<f64>()) / a[i][i];
    }
    Some(b)
}
