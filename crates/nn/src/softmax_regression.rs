//! Softmax regression: a linear classifier trained on a few rows with cross-entropy, full batches and AdamW. Start with
//! [`train`], which the method "linear" calls for every episode.
//!
//! Shapes: R rows of D numbers, C classes, weights `[C, D]`. The rows and weights of an episode fit into the
//! second-level cache, so a step is two passes over them: the logits (inner products), then, one block of columns after
//! the other, gradient and update together, so that no gradient is ever stored.

use pulp::{Simd, WithSimd};

use crate::isa::{self, multiply_add};
use crate::products::products;

/// How a softmax regression is trained.
#[derive(Debug, Clone, Copy)]
pub struct SoftmaxRegressionConfig {
    /// Updates, each over all rows.
    pub steps: usize,
    /// Learning rate.
    pub rate: f32,
    /// Decoupled weight decay.
    pub weight_decay: f32,
}

/// PyTorch's defaults of AdamW.
const BETA1: f32 = 0.9;
const BETA2: f32 = 0.999;
const EPS: f32 = 1e-8;

/// Trains `weights` (`[C, D]`) and `bias` (`[C]`) in place.
///
/// # Panics
/// If shapes disagree, a label is not below C, or there are steps but no rows.
pub fn train(
    rows: &[&[f32]],
    labels: &[u32],
    weights: &mut [f32],
    bias: &mut [f32],
    config: SoftmaxRegressionConfig,
) {
    let (classes, dim) = (bias.len(), rows.first().map_or(0, |row| row.len()));
    assert_eq!(weights.len(), classes * dim);
    assert_eq!(labels.len(), rows.len());
    assert!(labels.iter().all(|&label| (label as usize) < classes), "labels below {classes}");
    // AdamW's running means of the gradients (first moments) and of their squares (second moments).
    let mut first = vec![0.0; weights.len()];
    let mut second = vec![0.0; weights.len()];
    let mut bias_moments = vec![(0.0, 0.0); classes];
    // `[C, R]`, without the bias.
    let mut logits = vec![0.0; classes * rows.len()];
    for step in 1..=config.steps {
        let class_rows: Vec<&[f32]> = weights.chunks_exact(dim).collect();
        products(rows, &class_rows, &mut logits);
        let errors = softmax_errors(&logits, labels, bias);
        let update = Update::new(config, step as i32);
        for ((bias, moments), errors) in
            bias.iter_mut().zip(&mut bias_moments).zip(errors.chunks_exact(rows.len()))
        {
            update.scalar(bias, moments, errors.iter().sum());
        }
        let (first, second) = (&mut first, &mut second);
        isa::run(WeightUpdate { rows, errors: &errors, weights, first, second, dim, update });
    }
}

/// The gradient of the mean cross-entropy with respect to the logits, `[C, R]`: `(p - [c is the label]) / R`, with p
/// the softmax of the logits; the bracket is 1 if c is the label of the row and 0 otherwise.
fn softmax_errors(logits: &[f32], labels: &[u32], bias: &[f32]) -> Vec<f32> {
    let rows = labels.len();
    let mut errors = vec![0.0; logits.len()];
    for (row, &label) in labels.iter().enumerate() {
        let logit = |class: usize| logits[class * rows + row] + bias[class];
        let max = (0..bias.len()).map(logit).fold(f32::NEG_INFINITY, f32::max);
        let total: f32 = (0..bias.len()).map(|class| (logit(class) - max).exp()).sum();
        for class in 0..bias.len() {
            let target = if class == label as usize { 1.0 } else { 0.0 };
            errors[class * rows + row] = ((logit(class) - max).exp() / total - target) / rows as f32;
        }
    }
    errors
}

/// The factors of one AdamW step.
#[derive(Clone, Copy)]
struct Update {
    /// `1 - rate * weight_decay`
    keep: f32,
    /// The learning rate over the bias correction of the first moment.
    rate: f32,
    /// One over the square root of the bias correction of the second moment.
    second_scale: f32,
}

impl Update {
    /// Steps are counted from 1.
    fn new(config: SoftmaxRegressionConfig, step: i32) -> Self {
        Update {
            keep: 1.0 - config.rate * config.weight_decay,
            rate: config.rate / (1.0 - BETA1.powi(step)),
            second_scale: (1.0 - BETA2.powi(step)).sqrt().recip(),
        }
    }

    /// Updates one parameter and its moments (first, second).
    fn scalar(self, value: &mut f32, moments: &mut (f32, f32), gradient: f32) {
        moments.0 = BETA1 * moments.0 + (1.0 - BETA1) * gradient;
        moments.1 = BETA2 * moments.1 + (1.0 - BETA2) * gradient * gradient;
        *value = *value * self.keep - self.rate * moments.0 / (moments.1.sqrt() * self.second_scale + EPS);
    }

    /// [`Update::scalar`] for a vector of parameters.
    #[inline(always)]
    fn vector<S: Simd>(
        self,
        simd: S,
        value: &mut S::f32s,
        first: &mut S::f32s,
        second: &mut S::f32s,
        gradient: S::f32s,
    ) {
        let (beta1, beta2) = (simd.splat_f32s(BETA1), simd.splat_f32s(BETA2));
        let first_term = simd.mul_f32s(simd.splat_f32s(1.0 - BETA1), gradient);
        let second_term = simd.mul_f32s(simd.splat_f32s(1.0 - BETA2), simd.mul_f32s(gradient, gradient));
        *first = multiply_add(simd, beta1, *first, first_term);
        *second = multiply_add(simd, beta2, *second, second_term);
        let denominator = multiply_add(
            simd,
            simd.sqrt_f32s(*second),
            simd.splat_f32s(self.second_scale),
            simd.splat_f32s(EPS),
        );
        let change = simd.div_f32s(simd.mul_f32s(simd.splat_f32s(self.rate), *first), denominator);
        *value = simd.sub_f32s(simd.mul_f32s(*value, simd.splat_f32s(self.keep)), change);
    }
}

/// The gradient and update of all weights, a few vectors of columns at a time: the gradient of weight (c, d) is
/// `sum over r of errors[c][r] rows[r][d]`.
struct WeightUpdate<'a> {
    rows: &'a [&'a [f32]],
    /// The gradient of the logits, `[C, R]`.
    errors: &'a [f32],
    /// `[C, D]`, as are the moments.
    weights: &'a mut [f32],
    first: &'a mut [f32],
    second: &'a mut [f32],
    dim: usize,
    update: Update,
}

/// Classes whose gradients are accumulated in registers together: 5 x [`VECTORS`] accumulators, which leaves registers
/// for a row's vectors and the error if there are 32.
const GROUP: usize = 5;
/// Vectors of each gradient that are accumulated together.
const VECTORS: usize = 4;

impl WithSimd for WeightUpdate<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let lanes = S::F32_LANES;
        // Columns in groups of VECTORS vectors (up to column `whole`), then in single vectors, then one by one.
        let whole = self.dim / (VECTORS * lanes) * (VECTORS * lanes);
        let classes = self.weights.len() / self.dim;
        for start in (0..classes).step_by(GROUP) {
            for from in (0..whole).step_by(VECTORS * lanes) {
                self.update_group::<S, VECTORS>(simd, start, from);
            }
            for from in (whole..self.dim / lanes * lanes).step_by(lanes) {
                self.update_group::<S, 1>(simd, start, from);
            }
            for column in self.dim / lanes * lanes..self.dim {
                self.update_column(start, column);
            }
        }
    }
}

impl WeightUpdate<'_> {
    /// Computes the gradient of V vectors, from column `from` on, for the [`GROUP`] classes from `start` on, and
    /// updates their weights.
    #[inline(always)]
    fn update_group<S: Simd, const V: usize>(&mut self, simd: S, start: usize, from: usize) {
        let (count, classes) = (self.rows.len(), self.weights.len() / self.dim);
        let width = V * S::F32_LANES;
        // A group at the edge repeats the last class; the repetitions are not stored.
        let errors: [&[f32]; GROUP] = std::array::from_fn(|g| {
            let class = (start + g).min(classes - 1);
            &self.errors[class * count..(class + 1) * count]
        });
        let mut gradients = [[simd.splat_f32s(0.0); V]; GROUP];
        for (i, row) in self.rows.iter().enumerate() {
            let vectors = S::as_simd_f32s(&row[from..from + width]).0;
            for (gradients, errors) in gradients.iter_mut().zip(&errors) {
                let error = simd.splat_f32s(errors[i]);
                for v in 0..V {
                    gradients[v] = multiply_add(simd, error, vectors[v], gradients[v]);
                }
            }
        }
        for (g, gradients) in gradients.iter().enumerate().take(classes - start) {
            let range = (start + g) * self.dim + from..(start + g) * self.dim + from + width;
            let values = S::as_mut_simd_f32s(&mut self.weights[range.clone()]).0;
            let first = S::as_mut_simd_f32s(&mut self.first[range.clone()]).0;
            let second = S::as_mut_simd_f32s(&mut self.second[range]).0;
            for v in 0..V {
                self.update.vector(simd, &mut values[v], &mut first[v], &mut second[v], gradients[v]);
            }
        }
    }

    /// [`WeightUpdate::update_group`] for one of the last columns, if D is not a multiple of the vector length.
    fn update_column(&mut self, start: usize, column: usize) {
        let (count, classes) = (self.rows.len(), self.weights.len() / self.dim);
        for class in start..(start + GROUP).min(classes) {
            let errors = &self.errors[class * count..(class + 1) * count];
            let gradient = self.rows.iter().zip(errors).map(|(row, error)| row[column] * error).sum();
            let index = class * self.dim + column;
            let mut moments = (self.first[index], self.second[index]);
            self.update.scalar(&mut self.weights[index], &mut moments, gradient);
            (self.first[index], self.second[index]) = moments;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    /// The textbook version in f64.
    fn train_reference(
        rows: &[&[f32]],
        labels: &[u32],
        weights: &mut [f64],
        bias: &mut [f64],
        config: SoftmaxRegressionConfig,
    ) {
        let (classes, dim) = (bias.len(), rows[0].len());
        let mut moments = vec![(0.0, 0.0); weights.len() + classes];
        for step in 1..=config.steps {
            let mut gradient = vec![0.0; weights.len() + classes];
            for (row, &label) in rows.iter().zip(labels) {
                let logit = |c: usize| {
                    bias[c] + (0..dim).map(|d| weights[c * dim + d] * f64::from(row[d])).sum::<f64>()
                };
                let exps: Vec<f64> = (0..classes).map(|c| logit(c).exp()).collect();
                for c in 0..classes {
                    let target = if c == label as usize { 1.0 } else { 0.0 };
                    let error = (exps[c] / exps.iter().sum::<f64>() - target) / rows.len() as f64;
                    (0..dim).for_each(|d| gradient[c * dim + d] += error * f64::from(row[d]));
                    gradient[weights.len() + c] += error;
                }
            }
            for (i, (value, (m, v))) in
                weights.iter_mut().chain(bias.iter_mut()).zip(&mut moments).enumerate()
            {
                *m = 0.9 * *m + 0.1 * gradient[i];
                *v = 0.999 * *v + 0.001 * gradient[i] * gradient[i];
                let (m, v) = (*m / (1.0 - 0.9f64.powi(step as i32)), *v / (1.0 - 0.999f64.powi(step as i32)));
                let rate = f64::from(config.rate);
                *value =
                    *value * (1.0 - rate * f64::from(config.weight_decay)) - rate * m / (v.sqrt() + 1e-8);
            }
        }
    }

    #[test]
    fn training_agrees_with_the_textbook_on_every_instruction_set() {
        for (count, dim, classes) in [(25, 67, 5), (6, 16, 2), (9, 5, 3), (14, 130, 7)] {
            let value = |i: usize| ((i * 7919 % 997) as f32 / 997.0 - 0.4).max(0.0);
            let owned: Vec<Vec<f32>> =
                (0..count).map(|r| (0..dim).map(|d| value(r * dim + d + 1)).collect()).collect();
            let rows: Vec<&[f32]> = owned.iter().map(Vec::as_slice).collect();
            let labels: Vec<u32> = (0..count).map(|r| (r % classes) as u32).collect();
            let start: Vec<f32> = (0..classes * dim).map(|i| value(i * 31 + 5) - 0.2).collect();
            let config = SoftmaxRegressionConfig { steps: 60, rate: 0.01, weight_decay: 0.05 };
            let mut expected: Vec<f64> = start.iter().map(|&w| f64::from(w)).collect();
            let mut expected_bias = vec![0.0; classes];
            train_reference(&rows, &labels, &mut expected, &mut expected_bias, config);
            for isa in Isa::usable() {
                let (mut weights, mut bias) = (start.clone(), vec![0.0; classes]);
                isa.scope(|| train(&rows, &labels, &mut weights, &mut bias, config));
                let pairs = weights.iter().chain(&bias).zip(expected.iter().chain(&expected_bias));
                let worst = pairs.map(|(&a, &b)| (f64::from(a) - b).abs()).fold(0.0, f64::max);
                assert!(worst < 2e-3, "{isa:?}, {count} x {dim} x {classes}: off by {worst}");
            }
        }
    }
}
