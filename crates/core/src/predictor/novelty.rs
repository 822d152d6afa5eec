//! The novelty score of a row ([`Novelty`]): how unlike the support items of all classes it is, from 0 to 1.
//!
//! It is computed from the row's similarity to the support set, the sum of three cosines: with the nearest prototype, with
//! the nearest prototype after the mean of the support set is subtracted, and with the nearest support item. The first
//! measures what all classes have in common, which a row of another kind may lack, the second what distinguishes the
//! classes. This similarity is compared with that of the support items themselves, each left out of its prototype.

use trueshot_nn::products;

use super::calibration::LabelPosterior;
use crate::classifier::centred_unit;
use crate::embeddings::Embeddings;

/// Weight of the cosine with the nearest prototype; the two other cosines have weight 1.
const PLAIN_WEIGHT: f32 = 2.0;

/// The support set's statistics from which the novelty of a row is computed.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Novelty {
    /// The mean of the support rows, `[dim]`.
    pub mean: Vec<f32>,
    /// The prototypes of the unit-length rows, scaled to unit length, `[classes][dim]`.
    pub plain: Vec<Vec<f32>>,
    /// The prototypes of the centred unit-length rows, scaled to unit length, `[classes][dim]`.
    pub centred: Vec<Vec<f32>>,
    /// The support items, scaled to unit length, `[items][dim]`.
    pub items: Vec<Vec<f32>>,
    /// The mean similarity of the support items.
    pub typical: f32,
    /// The standard deviation of that similarity.
    pub spread: f32,
}

impl Novelty {
    /// The statistics of support rows whose class probabilities are `posterior`.
    pub fn new(rows: &[&[f32]], posterior: &LabelPosterior) -> Self {
        let dim = rows.first().map_or(0, |row| row.len());
        let zero = vec![0.0; dim];
        let uniform = vec![1.0 / rows.len() as f32; rows.len()];
        let mean = weighted_sum(rows, &uniform);
        let plain_rows: Vec<Vec<f32>> = rows.iter().map(|row| centred_unit(row, &zero)).collect();
        let centred_rows: Vec<Vec<f32>> = rows.iter().map(|row| centred_unit(row, &mean)).collect();
        let plain_sums = class_sums(&plain_rows, posterior);
        let centred_sums = class_sums(&centred_rows, posterior);
        let totals = posterior.totals();
        let mut similarities = Vec::new();
        for item in 0..rows.len() {
            let Some((class, p)) = posterior.likeliest_class(item).filter(|(_, p)| *p >= 0.5) else {
                continue;
            };
            // The cosine with the prototype of the class without the item itself.
            let left_out_cosine = |own: &[f32], sum: &[f32]| {
                let rest: Vec<f32> = sum.iter().zip(own).map(|(sum, own)| sum - p * own).collect();
                dot(own, &centred_unit(&rest, &zero))
            };
            if totals[class as usize] - p > 1e-3 {
                let plain = left_out_cosine(&plain_rows[item], &plain_sums[class as usize]);
                let centred = left_out_cosine(&centred_rows[item], &centred_sums[class as usize]);
                let others = (0..rows.len()).filter(|&other| other != item);
                let nearest =
                    others.map(|other| dot(&plain_rows[item], &plain_rows[other])).fold(-1.0, f32::max);
                similarities.push(PLAIN_WEIGHT * plain + centred + nearest);
            }
        }
        let (typical, spread) = mean_and_deviation(&similarities);
        let unit = |sums: Vec<Vec<f32>>| sums.iter().map(|sum| centred_unit(sum, &zero)).collect();
        Novelty {
            mean,
            plain: unit(plain_sums),
            centred: unit(centred_sums),
            items: plain_rows,
            typical,
            spread,
        }
    }

    /// The novelty scores of rows, from 0 (like the support items) to 1 (unlike all of them).
    pub fn scores(&self, rows: &[&[f32]]) -> Vec<f32> {
        let zero = vec![0.0; self.mean.len()];
        let score = |row: &&[f32]| {
            let nearest = |row: &[f32], vectors: &[Vec<f32>]| {
                vectors.iter().map(|vector| dot(row, vector)).fold(-1.0, f32::max)
            };
            let unit = centred_unit(row, &zero);
            let centred = nearest(&centred_unit(row, &self.mean), &self.centred);
            let similarity =
                PLAIN_WEIGHT * nearest(&unit, &self.plain) + centred + nearest(&unit, &self.items);
            // Rows of other classes are typically two to three standard deviations below; the score is 0.5 at 1.5.
            let deviations = (self.typical - similarity) / self.spread - 1.5;
            1.0 / (1.0 + (-1.5 * deviations).exp())
        };
        rows.iter().map(score).collect()
    }
}

/// The rows of a support set, scaled to unit length.
pub(super) fn unit_rows(support: &Embeddings) -> Vec<Vec<f32>> {
    let zero = vec![0.0; support.dim()];
    support.all_rows().chunks_exact(support.dim()).map(|row| centred_unit(row, &zero)).collect()
}

/// The mean and the standard deviation (at least 0.02) of similarities; a default if there are fewer than four.
fn mean_and_deviation(similarities: &[f32]) -> (f32, f32) {
    /// Typical values for photos with a good embedder.
    const DEFAULT: (f32, f32) = (2.7, 0.3);
    if similarities.len() < 4 {
        return DEFAULT;
    }
    let count = similarities.len() as f32;
    let mean = similarities.iter().sum::<f32>() / count;
    let variance = similarities.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / count;
    (mean, variance.sqrt().max(0.02))
}

/// For every class the sum of all rows, weighted by their probability of the class.
fn class_sums(rows: &[Vec<f32>], posterior: &LabelPosterior) -> Vec<Vec<f32>> {
    let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
    (0..posterior.classes()).map(|class| weighted_sum(&rows, &posterior.of_class(class))).collect()
}

fn weighted_sum(rows: &[&[f32]], weights: &[f32]) -> Vec<f32> {
    let mut sum = vec![0.0; rows.first().map_or(0, |row| row.len())];
    products::weighted_sum(rows, weights, &mut sum);
    sum
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut out = [0.0];
    products::products(&[a], &[b], &mut out);
    out[0]
}
