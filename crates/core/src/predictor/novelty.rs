//! How strange a row is: unlike the items of every class.
//!
//! What tells best is the cosine with the nearest prototype, as the embedder gives it and once more after the mean of the
//! support set is subtracted: the first knows what all classes have in common, which a stranger may lack, the second what
//! tells them apart; and the cosine with the nearest item. Their sum is held against what the support items themselves
//! reach when each is left out.

use trueshot_nn::products;

use super::calibration::LabelPosterior;
use super::scoring_rule::place;
use crate::embeddings::Embeddings;

/// Cosines as they are count so many times as much as those without the mean.
const PLAIN_WEIGHT: f32 = 2.0;

/// What is needed to tell.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Novelty {
    pub mean: Vec<f32>,
    /// A prototype a class, at unit length: as they come, and without the mean.
    pub plain: Vec<Vec<f32>>,
    pub placed: Vec<Vec<f32>>,
    /// The support items, at unit length.
    pub items: Vec<Vec<f32>>,
    /// What items of the classes reach: the mean, and the spread around it.
    pub usual: f32,
    pub spread: f32,
}

impl Novelty {
    pub fn of(rows: &[&[f32]], posterior: &LabelPosterior) -> Self {
        let dim = rows.first().map_or(0, |row| row.len());
        let zero = vec![0.0; dim];
        let all = vec![1.0 / rows.len() as f32; rows.len()];
        let mean = sum(rows, &all);
        let plain_rows: Vec<Vec<f32>> = rows.iter().map(|row| place(row, &zero)).collect();
        let placed_rows: Vec<Vec<f32>> = rows.iter().map(|row| place(row, &mean)).collect();
        let (plain_sums, placed_sums) = (sums(&plain_rows, posterior), sums(&placed_rows, posterior));
        let totals = posterior.totals();
        let mut reached = Vec::new();
        for item in 0..rows.len() {
            let Some((class, share)) = posterior.of_item(item).filter(|(_, share)| *share >= 0.5) else {
                continue;
            };
            let without = |own: &[f32], total: &[f32]| {
                let rest: Vec<f32> = total.iter().zip(own).map(|(total, own)| total - share * own).collect();
                dot(own, &place(&rest, &zero))
            };
            if totals[class as usize] - share > 1e-3 {
                let plain = without(&plain_rows[item], &plain_sums[class as usize]);
                let placed = without(&placed_rows[item], &placed_sums[class as usize]);
                let others = (0..rows.len()).filter(|&other| other != item);
                let nearest =
                    others.map(|other| dot(&plain_rows[item], &plain_rows[other])).fold(-1.0, f32::max);
                reached.push(PLAIN_WEIGHT * plain + placed + nearest);
            }
        }
        let (usual, spread) = usual(&reached);
        let units = |sums: Vec<Vec<f32>>| sums.iter().map(|sum| place(sum, &zero)).collect();
        Novelty {
            mean,
            plain: units(plain_sums),
            placed: units(placed_sums),
            items: plain_rows,
            usual,
            spread,
        }
    }

    /// How strange some rows are, from 0 to 1.
    pub fn of_rows(&self, rows: &[&[f32]]) -> Vec<f32> {
        let zero = vec![0.0; self.mean.len()];
        let strange = |row: &&[f32]| {
            let nearest = |row: &[f32], vectors: &[Vec<f32>]| {
                vectors.iter().map(|vector| dot(row, vector)).fold(-1.0, f32::max)
            };
            let unit = place(row, &zero);
            let placed = nearest(&place(row, &self.mean), &self.placed);
            let reached = PLAIN_WEIGHT * nearest(&unit, &self.plain) + placed + nearest(&unit, &self.items);
            // A stranger is usually two to three spreads below: half way to it is one and a half.
            let below = (self.usual - reached) / self.spread - 1.5;
            1.0 / (1.0 + (-1.5 * below).exp())
        };
        rows.iter().map(strange).collect()
    }
}

/// The rows of a support set at unit length.
pub(super) fn units(support: &Embeddings) -> Vec<Vec<f32>> {
    let zero = vec![0.0; support.dim()];
    super::all_rows(support).chunks_exact(support.dim()).map(|row| place(row, &zero)).collect()
}

/// What items reach, and how much they differ; of too few a guess.
fn usual(reached: &[f32]) -> (f32, f32) {
    /// What photos reach with a good embedder.
    const GUESS: (f32, f32) = (2.7, 0.3);
    if reached.len() < 4 {
        return GUESS;
    }
    let mean = reached.iter().sum::<f32>() / reached.len() as f32;
    let variance = reached.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / reached.len() as f32;
    (mean, variance.sqrt().max(0.02))
}

/// The sum of all items of every class, by how much they belong to it.
fn sums(rows: &[Vec<f32>], posterior: &LabelPosterior) -> Vec<Vec<f32>> {
    let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
    (0..posterior.classes()).map(|class| sum(&rows, &posterior.shares_of(class))).collect()
}

fn sum(rows: &[&[f32]], weights: &[f32]) -> Vec<f32> {
    let mut sum = vec![0.0; rows.first().map_or(0, |row| row.len())];
    products::weighted_sum(rows, weights, &mut sum);
    sum
}

fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut out = [0.0];
    products::products(&[a], &[b], &mut out);
    out[0]
}
