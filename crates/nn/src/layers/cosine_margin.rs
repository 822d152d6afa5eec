//! Cosine softmax with a margin: cross-entropy over `s (cos(f, w_c) - m [c is right])`. A negative margin lets
//! classes overlap, which keeps features useful for classes nobody has seen (Liu et al., ECCV 2020).
//!
//! Shapes: features R x D, weight C x D (one direction a class), targets R.

use crate::isa::Isa;
use crate::layers::loss::cross_entropy;
use crate::matmul::{View, ViewMut, Write, multiply};
use crate::real::{Real, dot};

/// What cosines become.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Margin {
    /// What they are multiplied by.
    pub scale: f64,
    /// What is subtracted from the right class's before.
    pub margin: f64,
}

/// The mean loss; sets the gradient of the features and adds to that of the weight.
///
/// # Panics
/// If the shapes disagree or a target is not below C.
pub fn cosine_margin<T: Real>(
    isa: Isa,
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
    let (unit_features, unit_weight) = (Units::of(features, dim), Units::of(weight, dim));
    let features = View::new(&unit_features.rows, rows, dim);
    let weight = View::new(&unit_weight.rows, classes, dim);
    let mut logits = vec![T::ZERO; rows * classes];
    multiply(isa, features, weight.transposed(), Write::Set, ViewMut::new(&mut logits, rows, classes));
    for (logits, &target) in logits.chunks_exact_mut(classes).zip(targets) {
        logits[target as usize] -= T::from_f64(margin.margin);
        logits.iter_mut().for_each(|logit| *logit *= T::from_f64(margin.scale));
    }
    let loss = cross_entropy(&mut logits, targets, T::ONE);
    logits.iter_mut().for_each(|d_cosine| *d_cosine *= T::from_f64(margin.scale));
    let d_cosines = View::new(&logits, rows, classes);
    multiply(isa, d_cosines, weight, Write::Set, ViewMut::new(d_features, rows, dim));
    unit_features.backward(d_features);
    let mut d_unit_weight = vec![T::ZERO; classes * dim];
    let out = ViewMut::new(&mut d_unit_weight, classes, dim);
    multiply(isa, d_cosines.transposed(), features, Write::Set, out);
    unit_weight.backward(&mut d_unit_weight);
    d_weight.iter_mut().zip(d_unit_weight).for_each(|(sum, d)| *sum += d);
    loss
}

/// Rows at unit length; a row without a direction stays zero.
struct Units<T> {
    rows: Vec<T>,
    inverse: Vec<T>,
    dim: usize,
}

impl<T: Real> Units<T> {
    fn of(values: &[T], dim: usize) -> Self {
        let (mut rows, mut inverse) = (values.to_vec(), Vec::with_capacity(values.len() / dim));
        for row in rows.chunks_exact_mut(dim) {
            let length = dot(row, row).sqrt();
            let scale = if length > T::ZERO { T::ONE / length } else { T::ZERO };
            row.iter_mut().for_each(|value| *value *= scale);
            inverse.push(scale);
        }
        Units { rows, inverse, dim }
    }

    /// The gradient of rows at unit length becomes that of the rows they were made of.
    fn backward(&self, gradient: &mut [T]) {
        let rows = self.rows.chunks_exact(self.dim).zip(&self.inverse);
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
    use crate::differences::{Numbers, check};

    const MARGIN: Margin = Margin { scale: 30.0, margin: -0.02 };
    const TARGETS: [u32; 5] = [2, 0, 3, 1, 2];

    fn run<T: Real>(features: &[T], weight: &[T]) -> (f64, Vec<T>, Vec<T>) {
        let (mut d_features, mut d_weight) = (vec![T::ONE; features.len()], vec![T::ZERO; weight.len()]);
        let (isa, targets) = (Isa::current(), &TARGETS);
        let loss = cosine_margin(isa, features, weight, targets, MARGIN, &mut d_features, &mut d_weight);
        (loss, d_features, d_weight)
    }

    #[test]
    fn gradients_agree_with_central_differences() {
        let mut numbers = Numbers::new(4);
        let (features, weight) = (numbers.doubles(5 * 7), numbers.doubles(4 * 7));
        let (_, d_features, d_weight) = run(&features, &weight);
        check("features", &features, &d_features, |features| run(features, &weight).0);
        check("weight", &weight, &d_weight, |weight| run(&features, weight).0);
    }

    #[test]
    fn a_negative_margin_makes_the_right_class_easier_and_lengths_do_not_matter() {
        let mut numbers = Numbers::new(5);
        let (features, weight) = (numbers.singles(5 * 6), numbers.singles(4 * 6));
        let loss = |margin: f64, features: &[f32]| {
            let (mut d_features, mut d_weight) = (vec![0.0; 30], vec![0.0; 24]);
            let margin = Margin { margin, ..MARGIN };
            let isa = Isa::current();
            cosine_margin(isa, features, &weight, &TARGETS, margin, &mut d_features, &mut d_weight)
        };
        assert!(loss(-0.1, &features) < loss(0.0, &features));
        assert!(loss(0.0, &features) < loss(0.1, &features));
        let longer: Vec<f32> = features.iter().map(|value| 4.0 * value).collect();
        assert!((loss(0.1, &features) - loss(0.1, &longer)).abs() < 1e-5);
        let mut empty = features.clone();
        empty[..6].fill(0.0);
        assert!(loss(-0.02, &empty).is_finite());
        assert!(run(&empty, &weight).1[..6].iter().all(|&d| d == 0.0), "no direction, no gradient");
    }
}
