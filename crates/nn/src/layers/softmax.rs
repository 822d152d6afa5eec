//! Softmax over columns ([`forward_columns`]) and its backward pass, for attention weights
//! ([`crate::layers::attention`]).
//!
//! Shapes: `[R, stride]`, with a stride of whole vectors of [`LANES`]; each column is one distribution over R elements.
//! Over columns, the elements of a vector never have to be combined with each other, which is several times as fast as
//! softmax over short rows. The kernels take one column of vectors at a time: vector `first` of every row.

use crate::kernel::kernel;
use crate::real::LANES;

kernel! {
    /// Softmax of `scale * logits` over each column, in place.
    ///
    /// # Panics
    /// If the stride is not a multiple of [`LANES`].
    pub fn forward_columns<'a, T>(stride: usize, scale: T, rows: &'a mut [T]) {
        assert!(stride.is_multiple_of(LANES), "rows of whole vectors");
        let vectors_per_row = stride / LANES;
        let vectors = rows.as_chunks_mut::<LANES>().0;
        for first in 0..vectors_per_row {
            // The maximum of each column, from a number below any logit. Subtracted, it prevents overflow.
            let mut max = [T::from_f64(-1e30); LANES];
            for vector in vectors[first..].iter().step_by(vectors_per_row) {
                let values = *vector;
                for lane in 0..LANES {
                    max[lane] = values[lane].max(max[lane]);
                }
            }
            // Exponentials and their sum per column.
            let mut sums = [T::ZERO; LANES];
            for vector in vectors[first..].iter_mut().step_by(vectors_per_row) {
                let mut values = *vector;
                for lane in 0..LANES {
                    values[lane] = ((values[lane] - max[lane]) * scale).exp();
                }
                for lane in 0..LANES {
                    sums[lane] += values[lane];
                }
                *vector = values;
            }
            // Division by the sum.
            for sum in &mut sums {
                *sum = T::ONE / *sum;
            }
            for vector in vectors[first..].iter_mut().step_by(vectors_per_row) {
                for lane in 0..LANES {
                    vector[lane] *= sums[lane];
                }
            }
        }
    }
}

kernel! {
    /// Backward pass of [`forward_columns`]: turns `d`, the gradient of the probabilities p, into that of the logits,
    /// in place: `scale p (d - sum over the column of p d)`.
    ///
    /// # Panics
    /// If the stride is not a multiple of [`LANES`].
    pub fn backward_columns<'a, T>(stride: usize, scale: T, probabilities: &'a [T], d: &'a mut [T]) {
        assert!(stride.is_multiple_of(LANES), "rows of whole vectors");
        let vectors_per_row = stride / LANES;
        let (probabilities, d) = (probabilities.as_chunks::<LANES>().0, d.as_chunks_mut::<LANES>().0);
        for first in 0..vectors_per_row {
            // The means of d, weighted by the probabilities.
            let mut means = [T::ZERO; LANES];
            let column = probabilities[first..].iter().step_by(vectors_per_row);
            for (p, d) in column.zip(d[first..].iter().step_by(vectors_per_row)) {
                for lane in 0..LANES {
                    means[lane] += p[lane] * d[lane];
                }
            }
            let column = probabilities[first..].iter().step_by(vectors_per_row);
            for (p, d) in column.zip(d[first..].iter_mut().step_by(vectors_per_row)) {
                for lane in 0..LANES {
                    d[lane] = scale * p[lane] * (d[lane] - means[lane]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::{TestRng, check_gradient};
    use crate::isa::Isa;
    use crate::real::dot;

    #[test]
    fn the_gradient_agrees_with_central_differences() {
        for (rows, stride) in [(1, 16), (3, 16), (7, 32)] {
            let mut rng = TestRng::new(rows as u64);
            let (x, weights) = (rng.f64s(rows * stride), rng.f64s(rows * stride));
            let run = |x: &[f64]| {
                let mut y = x.to_vec();
                forward_columns(stride, 1.7, &mut y);
                y
            };
            let mut d = weights.clone();
            backward_columns(stride, 1.7, &run(&x), &mut d);
            check_gradient("softmax", &x, &d, |x| dot(&run(x), &weights));
        }
    }

    #[test]
    fn every_column_agrees_with_the_textbook_on_every_instruction_set() {
        let (rows, stride, scale) = (7, 32, 0.7f32);
        let x = TestRng::new(1).f32s(rows * stride);
        for isa in Isa::usable() {
            let mut y = x.clone();
            isa.scope(|| forward_columns(stride, scale, &mut y));
            for column in 0..stride {
                let exp = |row: usize| f64::from(scale * x[row * stride + column]).exp();
                let total: f64 = (0..rows).map(exp).sum();
                for row in 0..rows {
                    let (actual, expected) = (f64::from(y[row * stride + column]), exp(row) / total);
                    assert!((actual - expected).abs() < 1e-6, "{isa:?}: {actual} and {expected}");
                }
            }
        }
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let mut columns = [0.0f32; 3 * LANES];
        (columns[0], columns[LANES], columns[2 * LANES]) = (1000.0, -1000.0, 999.0);
        forward_columns(LANES, 1.0, &mut columns);
        assert!((columns[0] - 0.731_058_6).abs() < 1e-6 && columns[LANES] < 1e-37, "{columns:?}");
    }
}
