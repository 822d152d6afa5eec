//! Softmax over rows, and over columns.
//!
//! Shapes: R rows of W numbers, `stride` apart. Where rows are padded to a multiple of [`LANES`], all of a row
//! is worked on in whole vectors; the padding is left at zero. Over columns no number of a vector ever has to be
//! held against its neighbours, which is several times as fast where rows are short.

use crate::kernel::kernel;
use crate::real::{LANES, Real, dot, max_of, sum};

kernel! {
    /// The shares of `scale * logits`, in place. Numbers between the rows become 0.
    pub fn forward<'a, T>(width: usize, stride: usize, scale: T, rows: &'a mut [T]) {
        for row in rows.chunks_mut(stride) {
            shares(row, width, scale);
        }
    }
}

#[inline(always)]
fn shares<T: Real>(row: &mut [T], width: usize, scale: T) {
    let lowest = T::from_f64(-1e30);
    row[width..].fill(lowest);
    let highest = max_of(row, lowest) * scale;
    let (whole, rest) = row.as_chunks_mut::<LANES>();
    for values in whole {
        for value in values {
            *value = (*value * scale - highest).exp();
        }
    }
    for value in rest {
        *value = (*value * scale - highest).exp();
    }
    row[width..].fill(T::ZERO);
    let share = T::ONE / sum(row);
    let (whole, rest) = row.as_chunks_mut::<LANES>();
    for values in whole {
        for value in values {
            *value *= share;
        }
    }
    for value in rest {
        *value *= share;
    }
}

kernel! {
    /// Turns the gradient of the shares into that of the logits, in place. What lies between the rows must be 0
    /// in `shares`; what it is in `d` does not matter.
    pub fn backward<'a, T>(width: usize, stride: usize, scale: T, shares: &'a [T], d: &'a mut [T]) {
        for (shares, d) in shares.chunks(stride).zip(d.chunks_mut(stride)) {
            d[width..].fill(T::ZERO);
            let mean = dot(shares, d);
            let (shares_whole, shares_rest) = shares.as_chunks::<LANES>();
            let (whole, rest) = d.as_chunks_mut::<LANES>();
            for (shares, d) in shares_whole.iter().zip(whole) {
                for lane in 0..LANES {
                    d[lane] = scale * shares[lane] * (d[lane] - mean);
                }
            }
            for (&share, d) in shares_rest.iter().zip(rest) {
                *d = scale * share * (*d - mean);
            }
        }
    }
}

kernel! {
    /// The shares of `scale * logits` over each column of rows that are whole vectors, in place.
    ///
    /// # Panics
    /// If the stride is no multiple of [`LANES`].
    pub fn forward_columns<'a, T>(stride: usize, scale: T, rows: &'a mut [T]) {
        assert!(stride.is_multiple_of(LANES), "rows of whole vectors");
        let lines = stride / LANES;
        let vectors = rows.as_chunks_mut::<LANES>().0;
        for line in 0..lines {
            let mut highest = [T::from_f64(-1e30); LANES];
            for vector in vectors[line..].iter().step_by(lines) {
                let values = *vector;
                for lane in 0..LANES {
                    highest[lane] = values[lane].max(highest[lane]);
                }
            }
            let mut sums = [T::ZERO; LANES];
            for vector in vectors[line..].iter_mut().step_by(lines) {
                let mut values = *vector;
                for lane in 0..LANES {
                    values[lane] = ((values[lane] - highest[lane]) * scale).exp();
                }
                for lane in 0..LANES {
                    sums[lane] += values[lane];
                }
                *vector = values;
            }
            for sum in &mut sums {
                *sum = T::ONE / *sum;
            }
            for vector in vectors[line..].iter_mut().step_by(lines) {
                for lane in 0..LANES {
                    vector[lane] *= sums[lane];
                }
            }
        }
    }
}

kernel! {
    /// Turns the gradient of the shares into that of the logits, in place.
    ///
    /// # Panics
    /// If the stride is no multiple of [`LANES`].
    pub fn backward_columns<'a, T>(stride: usize, scale: T, shares: &'a [T], d: &'a mut [T]) {
        assert!(stride.is_multiple_of(LANES), "rows of whole vectors");
        let lines = stride / LANES;
        let (shares, d) = (shares.as_chunks::<LANES>().0, d.as_chunks_mut::<LANES>().0);
        for line in 0..lines {
            let mut means = [T::ZERO; LANES];
            for (shares, d) in shares[line..].iter().step_by(lines).zip(d[line..].iter().step_by(lines)) {
                for lane in 0..LANES {
                    means[lane] += shares[lane] * d[lane];
                }
            }
            for (shares, d) in shares[line..].iter().step_by(lines).zip(d[line..].iter_mut().step_by(lines)) {
                for lane in 0..LANES {
                    d[lane] = scale * shares[lane] * (d[lane] - means[lane]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differences::{Numbers, check};
    use crate::isa::Isa;

    #[test]
    fn the_gradient_is_that_of_central_differences() {
        for (rows, width, stride) in [(1, 1, 1), (3, 5, 5), (4, 30, 32), (2, 16, 16)] {
            let mut numbers = Numbers::new(width as u64);
            let (x, weights) = (numbers.doubles(rows * stride), numbers.doubles(rows * stride));
            let run = |x: &[f64]| {
                let mut y = x.to_vec();
                forward(Isa::current(), width, stride, 1.7, &mut y);
                y
            };
            let y = run(&x);
            for row in y.chunks(stride) {
                assert!((sum(row) - 1.0).abs() < 1e-12);
                assert!(row[width..].iter().all(|&pad| pad == 0.0));
            }
            let mut d = weights.clone();
            backward(Isa::current(), width, stride, 1.7, &y, &mut d);
            check("softmax", &x, &d, |x| dot(&run(x), &weights));
        }
    }

    #[test]
    fn over_columns_it_is_the_same_transposed() {
        let (rows, columns, stride) = (7, 20, 32);
        let mut numbers = Numbers::new(1);
        let (x, d) = (numbers.doubles(rows * stride), numbers.doubles(rows * stride));
        let flip = |x: &[f64]| -> Vec<f64> {
            (0..columns)
                .flat_map(|j| (0..rows).map(move |i| (i, j)))
                .map(|(i, j)| x[i * stride + j])
                .collect()
        };
        let (mut y, mut expected) = (x.clone(), flip(&x));
        forward_columns(Isa::current(), stride, 0.7, &mut y);
        forward(Isa::current(), rows, rows, 0.7, &mut expected);
        let close = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-12);
        assert!(close(&flip(&y), &expected));
        let (mut d_x, mut expected_d) = (d.clone(), flip(&d));
        backward_columns(Isa::current(), stride, 0.7, &y, &mut d_x);
        backward(Isa::current(), rows, rows, 0.7, &expected, &mut expected_d);
        assert!(close(&flip(&d_x), &expected_d));
    }

    #[test]
    fn large_logits_do_not_overflow() {
        let mut row = [1000.0f32, -1000.0, 999.0];
        forward(Isa::current(), 3, 3, 1.0, &mut row);
        assert!((row[0] - 0.731_058_6).abs() < 1e-6 && row[1] < 1e-37, "{row:?}");
    }
}
