//! Embeddings minus a mean, scaled to unit length: one row ([`centre_and_scale`], also the first step of an item view),
//! or all rows of a head that is centred on the mean of the training features ([`CentredRows`]). `d_x` is the gradient
//! of the loss with respect to x.

use crate::kernel::kernel;
use crate::layers::loss::squared_norm;
use crate::real::{Real, dot};

/// The rows of several episodes after [`centre_and_scale`].
pub(super) struct CentredRows<T> {
    /// `[rows, D]`
    values: Vec<T>,
    dim: usize,
}

impl<T: Real> CentredRows<T> {
    /// Transforms and copies all rows, D numbers each. `mean` is `[D]`.
    pub(super) fn new<'a>(rows: impl Iterator<Item = &'a [T]>, mean: &[T]) -> Self {
        let mut values = Vec::new();
        for row in rows {
            let start = values.len();
            values.resize(start + mean.len(), T::ZERO);
            centre_and_scale(row, mean, &mut values[start..]);
        }
        CentredRows { values, dim: mean.len() }
    }

    /// The transformed rows, in the order in which they were given.
    pub(super) fn rows(&self) -> Vec<&[T]> {
        self.values.chunks_exact(self.dim).collect()
    }
}

/// Divides `rows` into adjacent parts of these lengths.
pub(super) fn split_by_lengths<R>(
    rows: &[R],
    lens: impl Iterator<Item = usize>,
) -> impl Iterator<Item = &[R]> {
    lens.scan(rows, |remaining, len| {
        let (part, after) = remaining.split_at(len);
        *remaining = after;
        Some(part)
    })
}

/// `out = (row - mean) / ‖row - mean‖`; zero if the row equals the mean.
pub(super) fn centre_and_scale<T: Real>(row: &[T], mean: &[T], out: &mut [T]) {
    subtract(row, mean, out);
    let length = squared_norm(out).sqrt();
    if length > T::ZERO {
        scale(T::ONE / length, out);
    }
}

/// Backward pass of [`centre_and_scale`] with respect to the row: the gradient of the output becomes that of the row,
/// in place. The mean is a constant. `centred` is scratch memory for one row.
pub(super) fn centre_and_scale_backward<T: Real>(row: &[T], mean: &[T], centred: &mut [T], d_row: &mut [T]) {
    subtract(row, mean, centred);
    let square = squared_norm(centred);
    // A change along the centred row does not change the output, so that component of the gradient is removed. The
    // others are divided by the length.
    if square > T::ZERO {
        remove_component(centred, square, d_row);
        scale(T::ONE / square.sqrt(), d_row);
    } else {
        // The row equals the mean and has no direction.
        d_row.fill(T::ZERO);
    }
}

kernel! {
    /// Subtracts from `d_row` its component along `row`, whose squared length is `square`.
    fn remove_component<'a, T>(row: &'a [T], square: T, d_row: &'a mut [T]) {
        let along = dot(row, d_row) / square;
        for (d_row, &value) in d_row.iter_mut().zip(row) {
            *d_row -= along * value;
        }
    }
}

kernel! {
    /// `out = row - mean`
    fn subtract<'a, T>(row: &'a [T], mean: &'a [T], out: &'a mut [T]) {
        for ((out, &value), &mean) in out.iter_mut().zip(row).zip(mean) {
            *out = value - mean;
        }
    }
}

kernel! {
    /// `values *= factor`
    fn scale<'a, T>(factor: T, values: &'a mut [T]) {
        values.iter_mut().for_each(|value| *value *= factor);
    }
}
