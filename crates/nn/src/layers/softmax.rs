//! Softmax over rows.
//!
//! Shapes: R rows of W numbers, `stride` apart. Where rows are padded to a multiple of [`LANES`], all of a row
//! is worked on in whole vectors; the padding is left at zero.

use crate::kernel::kernel;
use crate::real::{LANES, Real, dot, maximum, sum};

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
    let lowest = T::of(-1e30);
    row[width..].fill(lowest);
    let highest = maximum(row, lowest) * scale;
    let (whole, rest) = row.as_chunks_mut::<LANES>();
    for values in whole {
        for value in values {
            *value = (*value * scale - highest).exponential();
        }
    }
    for value in rest {
        *value = (*value * scale - highest).exponential();
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
    fn large_logits_do_not_overflow() {
        let mut row = [1000.0f32, -1000.0, 999.0];
        forward(Isa::current(), 3, 3, 1.0, &mut row);
        assert!((row[0] - 0.731_058_6).abs() < 1e-6 && row[1] < 1e-37, "{row:?}");
    }
}
