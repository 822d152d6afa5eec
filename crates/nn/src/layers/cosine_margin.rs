//! Cosine softmax with a margin: cross-entropy over the logits `s (cos(f, w_c) - m [c is the target])`, where the
//! bracket is 1 if it is true and 0 otherwise. A negative margin lets classes overlap, which keeps features useful for
//! classes outside the training set (Liu et al., ECCV 2020). It is the loss of the training `negmargin` of backbones.
//! Start with [`cosine_margin`].
//!
//! Shapes: R features f of D numbers (`[R, D]`), weight `[C, D]` (one direction w_c per class), targets `[R]`. `d_x` is
//! the gradient of the loss with respect to x.

use crate::layers::loss::cross_entropy;
use crate::matmul::{Matrix, MatrixMut, Write, multiply};
use crate::real::{Real, dot};

/// How cosines become logits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Margin {
    /// s: the factor of all cosines.
    pub scale: f64,
    /// m: subtracted from the cosine of the target class before scaling.
    pub margin: f64,
}

/// The mean loss over the rows. Sets the gradient of the features (`d_features`, `[R, D]`) and adds to that of the
/// weight (`d_weight`, `[C, D]`).
///
/// # Panics
/// If the shapes disagree, a target is not below C, or there are no rows.
pub fn cosine_margin<T: Real>(
    features: &[T],
    weight: &[T],
    targets: &[u32],
    margin: Margin,
    d_features: &mut [T],
    d_weight: &mut [T],
) -> f64 {
    let rows = targets.len();
    let dim = features.len() / rows;
    let classes = weight.len() / dim;
    assert_eq!(d_weight.len(), weight.len(), "a gradient of the shape of the weight");
    // Forward: cosines are the inner products of unit vectors.
    let (unit_features, unit_weight) = (UnitRows::of(features, dim), UnitRows::of(weight, dim));
    let features = Matrix::new(&unit_features.rows, rows, dim);
    let weight = Matrix::new(&unit_weight.rows, classes, dim);
    let mut logits = vec![T::ZERO; rows * classes];
    multiply(features, weight.transposed(), Write::Set, MatrixMut::new(&mut logits, rows, classes));
    for (logits, &target) in logits.chunks_exact_mut(classes).zip(targets) {
        logits[target as usize] -= T::from_f64(margin.margin);
        logits.iter_mut().for_each(|logit| *logit *= T::from_f64(margin.scale));
    }
    let loss = cross_entropy(&mut logits, targets, T::ONE);
    // Backward: `logits` now holds the gradient of the logits; times s it is that of the cosines.
    logits.iter_mut().for_each(|d_cosine| *d_cosine *= T::from_f64(margin.scale));
    let d_cosines = Matrix::new(&logits, rows, classes);
    multiply(d_cosines, weight, Write::Set, MatrixMut::new(d_features, rows, dim));
    unit_features.backward(d_features);
    let mut d_unit_weight = vec![T::ZERO; classes * dim];
    let out = MatrixMut::new(&mut d_unit_weight, classes, dim);
    multiply(d_cosines.transposed(), features, Write::Set, out);
    unit_weight.backward(&mut d_unit_weight);
    d_weight.iter_mut().zip(d_unit_weight).for_each(|(sum, d)| *sum += d);
    loss
}

/// Rows scaled to unit length; a zero row stays zero.
struct UnitRows<T> {
    rows: Vec<T>,
    /// One over the length of each row; 0 for a zero row.
    inverse_lengths: Vec<T>,
    dim: usize,
}

impl<T: Real> UnitRows<T> {
    fn of(values: &[T], dim: usize) -> Self {
        let (mut rows, mut inverse_lengths) = (values.to_vec(), Vec::with_capacity(values.len() / dim));
        for row in rows.chunks_exact_mut(dim) {
            let length = dot(row, row).sqrt();
            let scale = if length > T::ZERO { T::ONE / length } else { T::ZERO };
            row.iter_mut().for_each(|value| *value *= scale);
            inverse_lengths.push(scale);
        }
        UnitRows { rows, inverse_lengths, dim }
    }

    /// Turns the gradient of the unit rows into that of the original rows, in place: `(d - (u . d) u) / length` with u
    /// the unit row, because a change along the row does not change its direction.
    fn backward(&self, gradient: &mut [T]) {
        let rows = self.rows.chunks_exact(self.dim).zip(&self.inverse_lengths);
        for ((unit, &inverse), d_row) in rows.zip(gradient.chunks_exact_mut(self.dim)) {
            let along = dot(unit, d_row);
            for (d, &unit) in d_row.iter_mut().zip(unit) {
                *d = inverse * (*d - along * unit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::{TestRng, check_gradient};

    const MARGIN: Margin = Margin { scale: 30.0, margin: -0.02 };
    const TARGETS: [u32; 5] = [2, 0, 3, 1, 2];

    fn run<T: Real>(features: &[T], weight: &[T]) -> (f64, Vec<T>, Vec<T>) {
        let (mut d_features, mut d_weight) = (vec![T::ONE; features.len()], vec![T::ZERO; weight.len()]);
        let loss = cosine_margin(features, weight, &TARGETS, MARGIN, &mut d_features, &mut d_weight);
        (loss, d_features, d_weight)
    }

    #[test]
    fn the_gradients_agree_with_central_differences() {
        let mut rng = TestRng::new(4);
        let (features, weight) = (rng.f64s(5 * 7), rng.f64s(4 * 7));
        let (_, d_features, d_weight) = run(&features, &weight);
        check_gradient("features", &features, &d_features, |features| run(features, &weight).0);
        check_gradient("weight", &weight, &d_weight, |weight| run(&features, weight).0);
    }

    #[test]
    fn a_negative_margin_lowers_the_loss_and_lengths_do_not_matter() {
        let mut rng = TestRng::new(5);
        let (features, weight) = (rng.f32s(5 * 6), rng.f32s(4 * 6));
        let loss = |margin: f64, features: &[f32]| {
            let (mut d_features, mut d_weight) = (vec![0.0; 30], vec![0.0; 24]);
            let margin = Margin { margin, ..MARGIN };
            cosine_margin(features, &weight, &TARGETS, margin, &mut d_features, &mut d_weight)
        };
        assert!(loss(-0.1, &features) < loss(0.0, &features));
        assert!(loss(0.0, &features) < loss(0.1, &features));
        let longer: Vec<f32> = features.iter().map(|value| 4.0 * value).collect();
        assert!((loss(0.1, &features) - loss(0.1, &longer)).abs() < 1e-5);
        let mut with_zero_row = features.clone();
        with_zero_row[..6].fill(0.0);
        assert!(loss(-0.02, &with_zero_row).is_finite());
        assert!(run(&with_zero_row, &weight).1[..6].iter().all(|&d| d == 0.0), "a zero row has no gradient");
    }
}
