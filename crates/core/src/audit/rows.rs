//! Rows prepared for cosines: after subtraction of the mean of all rows, at unit length.

use rayon::prelude::*;

use crate::embeddings::Embeddings;

/// Rows per partial sum. Fixed, so that the sums do not depend on the number of threads.
const CHUNK: usize = 256;

/// All rows, centred and normalised, one after the other.
pub(super) fn centred(data: &Embeddings) -> Vec<f32> {
    let dim = data.dim();
    let mut values = data.all_rows().into_owned();
    centre(&mut values, dim);
    values
}

/// Subtracts the mean from rows and scales them to unit length. A row that equals the mean becomes zero. Returns the lengths
/// before scaling.
pub(super) fn centre(values: &mut [f32], dim: usize) -> Vec<f32> {
    let mean = mean(values, dim);
    let centre_row = |row: &mut [f32]| {
        let before = length(row);
        row.iter_mut().zip(&mean).for_each(|(value, mean)| *value -= mean);
        let after = length(row);
        // If all rows are equal, only rounding errors are left, which have no direction.
        let scale = if after > 1e-6 * before { after.recip() } else { 0.0 };
        row.iter_mut().for_each(|value| *value = (f64::from(*value) * scale) as f32);
        after as f32
    };
    values.par_chunks_exact_mut(dim).map(centre_row).collect()
}

/// The length of a row. In double precision the squares of very small numbers do not become zero.
fn length(row: &[f32]) -> f64 {
    row.iter().map(|value| f64::from(*value) * f64::from(*value)).sum::<f64>().sqrt()
}

fn mean(values: &[f32], dim: usize) -> Vec<f32> {
    let add = |mut sum: Vec<f64>, row: &[f32]| {
        sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
        sum
    };
    let sums: Vec<Vec<f64>> =
        values.par_chunks(CHUNK * dim).map(|rows| rows.chunks_exact(dim).fold(vec![0.0; dim], add)).collect();
    let rows = (values.len() / dim).max(1) as f64;
    let mut mean = vec![0.0; dim];
    for sum in sums {
        mean.iter_mut().zip(sum).for_each(|(mean, sum)| *mean += sum / rows);
    }
    mean.into_iter().map(|value| value as f32).collect()
}
