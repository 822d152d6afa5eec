//! Rows prepared for cosines ([`centred`]): their centre is subtracted, then they are scaled to unit length, so that
//! the cosine of two rows is their inner product.
//!
//! The centre is the mean of the means of the classes. The mean of all rows would be close to the items of a class that
//! is much larger than the others. After its subtraction, the items of that class would point in all directions, and
//! their cosines would no longer show that they belong together.

use rayon::prelude::*;

use crate::embeddings::Embeddings;

/// Rows per partial sum. Fixed, so that the sums do not depend on the number of threads.
const CHUNK: usize = 256;

/// All rows, centred and scaled to unit length, `[items][dim]` in the order of the data.
pub(super) fn centred(data: &Embeddings) -> Vec<f32> {
    let dim = data.dim();
    let mut values = data.all_rows().into_owned();
    centre(&mut values, dim, data.labels());
    values
}

/// Subtracts the centre from the rows `values`, `[items][dim]`, and scales them to unit length. A row that equals the
/// centre becomes zero. `labels` are the classes of the rows, from which the centre is computed. Returns the length of
/// each row before scaling: its distance from the centre.
pub(super) fn centre(values: &mut [f32], dim: usize, labels: &[u32]) -> Vec<f32> {
    let centre = mean_of_classes(values, dim, labels);
    let centre_row = |row: &mut [f32]| {
        let before = length(row);
        row.iter_mut().zip(&centre).for_each(|(value, centre)| *value -= centre);
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

/// The mean of the means of all classes that have rows, `[dim]`: the sum of all rows, each weighted by
/// `1 / (number of classes * number of rows of its class)`.
fn mean_of_classes(values: &[f32], dim: usize, labels: &[u32]) -> Vec<f32> {
    let mut counts = vec![0.0; labels.iter().max().map_or(0, |label| *label as usize + 1)];
    labels.iter().for_each(|label| counts[*label as usize] += 1.0);
    let classes = counts.iter().filter(|count| **count > 0.0).count().max(1) as f64;
    let weighted_sum = |(rows, labels): (&[f32], &[u32])| {
        let mut sum = vec![0.0; dim];
        for (row, label) in rows.chunks_exact(dim).zip(labels) {
            let weight = 1.0 / (classes * counts[*label as usize]);
            sum.iter_mut().zip(row).for_each(|(sum, value)| *sum += weight * f64::from(*value));
        }
        sum
    };
    let chunks = values.par_chunks(CHUNK * dim).zip(labels.par_chunks(CHUNK));
    let sums: Vec<Vec<f64>> = chunks.map(weighted_sum).collect();
    let mut mean = vec![0.0; dim];
    for sum in sums {
        mean.iter_mut().zip(sum).for_each(|(mean, sum)| *mean += sum);
    }
    mean.into_iter().map(|value| value as f32).collect()
}
