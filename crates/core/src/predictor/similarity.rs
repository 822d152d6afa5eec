//! The similarity of rows to a set of classes ([`ClassSimilarity`]): four values per row, from which `novelty` computes
//! the probability that the row belongs to none of the classes.
//!
//! Three of them are cosines. They measure what the classes have in common as well as what distinguishes them, so rows
//! of another kind have small values. The fourth is a linear discriminant with a shrunk covariance: it measures only
//! what distinguishes the classes, and recognises rows of other classes of the same kind, such as another species of
//! birds.
//!
//! *Shares* are the probabilities of the classes of an item, (class, probability), by which it counts for them.

use rayon::prelude::*;
use trueshot_nn::products;

use crate::cholesky::{self, Cholesky};
use crate::classifier::centred_unit;

/// Number of values that describe how similar a row is to the classes.
pub(super) const MEASURES: usize = 4;

/// The similarity of a row to the classes; larger is more similar. In this order: the cosine with the nearest
/// prototype, the same after the mean of the support set is subtracted, the cosine with the nearest support item, and
/// the largest linear discriminant.
pub(super) type Similarity = [f32; MEASURES];

/// Weight of the identity in the shrunk covariance `(1 - SHRINKAGE) C + SHRINKAGE trace(C) / dim I`. With fewer
/// items than dimensions, the covariance `C` itself has no inverse.
const SHRINKAGE: f64 = 0.6;
/// Maximum number of rows from which the covariance is estimated; its cost grows with the cube of this.
const MAX_COVARIANCE_ROWS: usize = 1000;
/// Lower bound of the variance of unit-length rows within their classes, summed over all dimensions.
const MIN_VARIANCE: f64 = 1e-4;
/// The bias of a class without items, whose discriminant is never the largest one.
const NEVER: f32 = -1e30;
/// Rows that one task of the thread pool compares.
const CHUNK: usize = 64;

/// Vectors of the classes that rows are compared with.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ClassSimilarity {
    /// The mean of the support rows, `[dim]`.
    pub mean: Vec<f32>,
    /// The prototypes of the unit-length rows, scaled to unit length, `[classes][dim]`.
    pub plain: Vec<Vec<f32>>,
    /// The prototypes of the centred unit-length rows, scaled to unit length, `[classes][dim]`.
    pub centred: Vec<Vec<f32>>,
    /// The support items, scaled to unit length, `[items][dim]`.
    pub items: Vec<Vec<f32>>,
    /// The weights of the linear discriminants of centred unit-length rows, `[classes][dim]`.
    pub discriminants: Vec<Vec<f32>>,
    /// The bias of each discriminant, `[classes]`.
    pub biases: Vec<f32>,
}

impl ClassSimilarity {
    /// Fits the vectors to rows. `shares` has one entry per row: its classes, numbers below `classes`, with their
    /// probabilities.
    pub fn new(rows: &[&[f32]], shares: &[Vec<(u32, f32)>], classes: usize) -> Self {
        let dim = rows.first().map_or(0, |row| row.len());
        let zero = vec![0.0; dim];
        let mut mean = zero.clone();
        products::weighted_sum(rows, &vec![1.0 / rows.len() as f32; rows.len()], &mut mean);
        let items: Vec<Vec<f32>> = rows.par_iter().map(|row| centred_unit(row, &zero)).collect();
        let centred_rows: Vec<Vec<f32>> = rows.par_iter().map(|row| centred_unit(row, &mean)).collect();
        let (centred_sums, totals) = class_sums(&centred_rows, shares, classes, dim);
        let (plain_sums, _) = class_sums(&items, shares, classes, dim);
        let (discriminants, biases) = discriminants(&centred_rows, shares, &centred_sums, &totals);
        let unit = |sums: &[Vec<f32>]| sums.iter().map(|sum| centred_unit(sum, &zero)).collect();
        let (plain, centred) = (unit(&plain_sums), unit(&centred_sums));
        ClassSimilarity { mean, plain, centred, items, discriminants, biases }
    }

    /// The similarity of every row. It does not depend on the other rows.
    pub fn of_rows(&self, rows: &[&[f32]]) -> Vec<Similarity> {
        let tables =
            [&self.plain, &self.centred, &self.items, &self.discriminants].map(|vectors| as_slices(vectors));
        rows.par_chunks(CHUNK).flat_map_iter(|rows| self.of_chunk(rows, &tables)).collect()
    }

    /// The similarities of some rows. `tables` are the vectors of the four measures.
    fn of_chunk(&self, rows: &[&[f32]], tables: &[Vec<&[f32]>; MEASURES]) -> Vec<Similarity> {
        let zero = vec![0.0; self.mean.len()];
        let units: Vec<Vec<f32>> = rows.iter().map(|row| centred_unit(row, &zero)).collect();
        let centred: Vec<Vec<f32>> = rows.iter().map(|row| centred_unit(row, &self.mean)).collect();
        let no_biases = vec![0.0; self.items.len().max(self.biases.len())];
        let mut similarities = vec![[0.0; MEASURES]; rows.len()];
        for (measure, vectors) in tables.iter().enumerate() {
            // Measures 0 and 2 compare the rows themselves, 1 and 3 the centred rows, all at unit length.
            let compared = as_slices(if measure % 2 == 0 { &units } else { &centred });
            let biases = if measure == 3 { &self.biases } else { &no_biases };
            // `[rows, vectors]`
            let mut products = vec![0.0; vectors.len() * rows.len()];
            products::products(vectors, &compared, &mut products);
            let products_of_rows = products.chunks_exact(vectors.len().max(1));
            for (similarity, products) in similarities.iter_mut().zip(products_of_rows) {
                let biased = products.iter().zip(biases).map(|(product, bias)| product + bias);
                similarity[measure] = biased.fold(f32::MIN, f32::max);
            }
        }
        similarities
    }
}

fn as_slices(rows: &[Vec<f32>]) -> Vec<&[f32]> {
    rows.iter().map(Vec::as_slice).collect()
}

/// For every class the sum of the rows, weighted by their shares (`[classes][dim]`), and the sum of the shares.
fn class_sums(
    rows: &[Vec<f32>],
    shares: &[Vec<(u32, f32)>],
    classes: usize,
    dim: usize,
) -> (Vec<Vec<f32>>, Vec<f32>) {
    let (mut sums, mut totals) = (vec![vec![0.0; dim]; classes], vec![0.0; classes]);
    for (row, shares) in rows.iter().zip(shares) {
        for &(class, share) in shares {
            totals[class as usize] += share;
            sums[class as usize].iter_mut().zip(row).for_each(|(sum, value)| *sum += share * value);
        }
    }
    (sums, totals)
}

/// The linear discriminants `A⁻¹ (p - m)` of all classes and their biases `-(p + m)ᵀ A⁻¹ (p - m) / 2`, with the mean
/// `p` of the class, the mean `m` of all rows and the shrunk covariance `A` within classes.
///
/// With the residuals `R` of `f` degrees of freedom, `A = (1 - S) RᵀR / f + S v I` with `S` = [`SHRINKAGE`] and the
/// mean variance `v` of a dimension. So its inverse is computed from the Gram matrix of the residuals, which is small
/// (Woodbury): `A⁻¹ d = (d - Rᵀ (R Rᵀ + f S v / (1 - S) I)⁻¹ R d) / (S v)`.
///
/// `sums` and `totals` are those of [`class_sums`] for these rows.
fn discriminants(
    rows: &[Vec<f32>],
    shares: &[Vec<(u32, f32)>],
    sums: &[Vec<f32>],
    totals: &[f32],
) -> (Vec<Vec<f32>>, Vec<f32>) {
    let dim = rows.first().map_or(0, Vec::len);
    let mut mean = vec![0.0; dim];
    products::weighted_sum(&as_slices(rows), &vec![1.0 / rows.len() as f32; rows.len()], &mut mean);
    let class_means: Vec<Vec<f32>> = (sums.iter().zip(totals))
        .map(|(sum, total)| sum.iter().map(|value| value / total.max(f32::MIN_POSITIVE)).collect())
        .collect();
    // The residuals of a sample of the rows from the mean of their likeliest class. `weight` is the number of these
    // rows, each counted by the probability of its class.
    let stride = rows.len().div_ceil(MAX_COVARIANCE_ROWS).max(1);
    let (mut residuals, mut weight): (Vec<Vec<f32>>, f64) = (Vec::new(), 0.0);
    for (row, shares) in rows.iter().zip(shares).step_by(stride) {
        if let Some(&(class, share)) = shares.iter().max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0))) {
            let class_mean = &class_means[class as usize];
            let residual = row.iter().zip(class_mean).map(|(value, mean)| (value - mean) * share.sqrt());
            residuals.push(residual.collect());
            weight += f64::from(share);
        }
    }
    // Degrees of freedom: the number of items minus that of classes, in proportion if only a part of the rows is used.
    let total: f64 = totals.iter().map(|&total| f64::from(total)).sum();
    let used = totals.iter().filter(|&&total| total > 0.0).count() as f64;
    let freedom = (weight * (1.0 - used / total.max(1.0))).max(1.0);
    let residual_rows = as_slices(&residuals);
    let scatter: f64 = residual_rows.iter().map(|row| f64::from(products::squared_norm(row))).sum();
    let variance = (scatter / freedom).max(MIN_VARIANCE) / dim.max(1) as f64;
    // `R Rᵀ + f S v / (1 - S) I`, decomposed.
    let decomposed = Cholesky::new(
        cholesky::gram(&residual_rows),
        residual_rows.len(),
        freedom * SHRINKAGE / (1.0 - SHRINKAGE) * variance,
    );
    let scale = (SHRINKAGE * variance).recip() as f32;
    (class_means.par_iter().zip(totals))
        .map(|(class_mean, &total)| {
            if total <= 0.0 {
                return (vec![0.0; dim], NEVER);
            }
            // The formulas above: d is `difference`, and `explained` is what is subtracted from it.
            let difference: Vec<f32> = class_mean.iter().zip(&mean).map(|(p, m)| p - m).collect();
            let mut explained = vec![0.0; dim];
            let mut with_residuals = vec![0.0; residual_rows.len()];
            products::products(&residual_rows, &[&difference], &mut with_residuals);
            products::weighted_sum(&residual_rows, &decomposed.solve(&with_residuals), &mut explained);
            let discriminant: Vec<f32> = difference
                .iter()
                .zip(&explained)
                .map(|(value, explained)| (value - explained) * scale)
                .collect();
            let sum = class_mean.iter().zip(&mean).map(|(p, m)| p + m);
            let bias = -0.5 * sum.zip(&discriminant).map(|(sum, value)| sum * value).sum::<f32>();
            (discriminant, bias)
        })
        .unzip()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn discriminants_equal_those_of_the_inverted_covariance() {
        // Two classes in the plane, whose covariance can be inverted by hand.
        let rows = [[1.0, 0.1], [0.8, -0.3], [-0.9, 0.2], [-0.7, 0.2]].map(|row| row.to_vec());
        let shares: Vec<Vec<(u32, f32)>> = [0, 0, 1, 1].map(|class| vec![(class, 1.0)]).to_vec();
        let (sums, totals) = class_sums(&rows, &shares, 2, 2);
        let (fitted, biases) = discriminants(&rows, &shares, &sums, &totals);
        let means = [[0.9, -0.1], [-0.8, 0.2]];
        let mean = [0.05, 0.05];
        // The covariance [[a, b], [b, c]]: the scatter of the residuals, divided by 4 items - 2 classes.
        let (a, b, c) = (0.04 / 2.0, 0.04 / 2.0, 0.08 / 2.0);
        let variance = (a + c) / 2.0;
        // The factors are 1 - SHRINKAGE and SHRINKAGE.
        let shrunk = [0.4 * a + 0.6 * variance, 0.4 * b, 0.4 * c + 0.6 * variance];
        let determinant = shrunk[0] * shrunk[2] - shrunk[1] * shrunk[1];
        for class in 0..2 {
            let d = [means[class][0] - mean[0], means[class][1] - mean[1]];
            let expected = [
                (shrunk[2] * d[0] - shrunk[1] * d[1]) / determinant,
                (shrunk[0] * d[1] - shrunk[1] * d[0]) / determinant,
            ];
            let bias = -0.5
                * ((means[class][0] + mean[0]) * expected[0] + (means[class][1] + mean[1]) * expected[1]);
            assert!((fitted[class][0] - expected[0]).abs() < 0.05, "{fitted:?} {expected:?}");
            assert!((fitted[class][1] - expected[1]).abs() < 0.05, "{fitted:?} {expected:?}");
            assert!((biases[class] - bias).abs() < 0.05, "{biases:?} {bias}");
        }
    }
}
