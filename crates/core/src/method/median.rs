//! The method `median`: a query gets the class whose smoothed geometric median is nearest. The median of a class is the
//! point `p` that minimises the sum of `sqrt(|p - h_i|^2 + eps^2)` over the support items `h_i` of the class.
//!
//! It is robust against wrong labels because the gradient of a distance has at most length 1, however far away the item
//! is.
//!
//! The paper (Liang et al., CVPR 2022) takes five Newton steps with a diagonal matrix in place of the Hessian: `W I`,
//! where W is the sum of the inverse smoothed distances and I the identity matrix. Such a step is that of Weiszfeld's
//! iteration: the next point is the mean of the items, weighted by their inverse smoothed distances to the current
//! point. The full Hessian is `W I` minus one rank-one term per item, so Woodbury's identity leaves a linear system of
//! the size of the class (`hessian=full`).
//!
//! The point is a weighted sum of the items at every step, so the iteration runs on weights and inner products (the
//! Gram matrix of the class) instead of vectors.

use super::centring::dot;
use super::registry::{MethodInfo, Parameter, Parameters};
use super::{Fitted, Method, weighted_prototypes};
use crate::cholesky::Cholesky;
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
    /// The sum of the inverse smoothed distances times the identity: Weiszfeld's iteration.
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
            Hessian::Full => {
                let next = newton_step(gram, weights, &inverse);
                // Far from the median, a step with the full Hessian can overshoot and increase the sum of distances;
                // Weiszfeld's step never does, so it replaces such a step.
                let improves = self.objective(gram, &next) <= self.objective(gram, weights);
                if improves { next } else { normalised(inverse) }
            }
        }
    }

    /// The sum of the smoothed distances, which the median minimises.
    fn objective(&self, gram: &Gram, weights: &[f32]) -> f32 {
        inverse_distances(gram, weights, self.eps).iter().map(|inverse| inverse.recip()).sum()
    }
}

/// The inverse smoothed distances `1 / sqrt(|p - h_i|^2 + eps^2)` of every item `h_i` from the weighted sum `p` of the
/// items.
fn inverse_distances(gram: &Gram, weights: &[f32], eps: f32) -> Vec<f32> {
    // |p - h_i|^2 = |p|^2 - 2 <p, h_i> + |h_i|^2; `products` are the <p, h_i>.
    let products = gram.times(weights);
    let squared_norm: f32 = products.iter().zip(weights).map(|(p, w)| p * w).sum();
    // `clamp` keeps the NaN of a failed Newton step, which `max(0.0)` would turn into a distance of 0.
    let squared = |(i, p): (usize, &f32)| (squared_norm - 2.0 * p + gram.at(i, i)).clamp(0.0, f32::INFINITY);
    products.iter().enumerate().map(squared).map(|squared| (squared + eps * eps).sqrt().recip()).collect()
}

/// The weights divided by their sum.
fn normalised(mut weights: Vec<f32>) -> Vec<f32> {
    let total: f32 = weights.iter().sum();
    weights.iter_mut().for_each(|weight| *weight /= total);
    weights
}

/// The weights `[items]` after one Newton step with the full Hessian. Far from the median, or if rounding makes the
/// linear system singular, they can be those of a worse point, or NaN.
///
/// With the inverse smoothed distances `w_i` (the argument `inverse`) and their sum W (`total`), the gradient is
/// `g = sum over i of w_i (p - h_i)`, and the Hessian is `W I - V V^T`, where column i of V is `w_i^1.5 (p - h_i)`. By
/// Woodbury's identity, its inverse is `(I + V (W I - V^T V)^-1 V^T) / W`. Its products with g need inner products of
/// the `p - h_i` only, and the step takes `O(items^3)`.
fn newton_step(gram: &Gram, weights: &[f32], inverse: &[f32]) -> Vec<f32> {
    let n = gram.len();
    let to_f64 = |values: &[f32]| -> Vec<f64> { values.iter().map(|&value| f64::from(value)).collect() };
    let (weights, inverse) = (to_f64(weights), to_f64(inverse));
    let total: f64 = inverse.iter().sum();
    // <p, h_i>, |p|^2, and from them <p - h_i, p - h_j>.
    let products: Vec<f64> =
        (0..n).map(|i| (0..n).map(|j| f64::from(gram.at(i, j)) * weights[j]).sum()).collect();
    let squared_norm = dot(&products, &weights);
    let inner = |i: usize, j: usize| squared_norm - products[i] - products[j] + f64::from(gram.at(i, j));
    // The system (W I - V^T V) x = V^T g. `Cholesky` adds W to the diagonal of the matrix that it is given; `scale` are
    // the w_i^1.5.
    let scale: Vec<f64> = inverse.iter().map(|w| w.powf(1.5)).collect();
    let (scale, inverse) = (&scale, &inverse);
    let system = (0..n).flat_map(|i| (0..n).map(move |j| -scale[i] * scale[j] * inner(i, j))).collect();
    let right = |i: usize| (scale[i] * (0..n).map(|j| inverse[j] * inner(i, j)).sum::<f64>()) as f32;
    let solution = Cholesky::new(system, n, total).solve(&(0..n).map(right).collect::<Vec<_>>());
    // The next point is p - (g + V x) / W. Coefficient j of g is `W weights_j - w_j`, and that of V x is
    // `weights_j <scale, x> - scale_j x_j`.
    let x = to_f64(&solution);
    let scale_x = dot(scale, &x);
    let next = |j: usize| ((inverse[j] + scale[j] * x[j] - weights[j] * scale_x) / total) as f32;
    (0..n).map(next).collect()
}
