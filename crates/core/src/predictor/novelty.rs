//! The probability that a row belongs to none of the classes ([`Novelty`]), calibrated for each classifier by leaving
//! classes out.
//!
//! A row has four similarities to the classes ([`ClassSimilarity`]). How large they are for items of the classes
//! (*known* below) and for items of other classes (*unknown*) depends on the data, and is measured on the support set
//! itself (`leave_out`): some items are left out and compared with the rest, which contains their class, and whole
//! classes are left out and their items compared with the other classes. Each similarity `s` is standardised by these
//! two distributions: `z = (s - middle) / width`, where `middle` is halfway between their means and `width` the root
//! mean square of their standard deviations. The log odds of "none of the classes" are
//!
//! ```text
//! INTERCEPT - sum of WEIGHTS * z - threshold
//! ```
//!
//! with a threshold that refuses about 5 % of new items of the classes. Few classes say little about items of other
//! classes, so the distribution of the unknown is combined with a typical one. With two classes, where only one would
//! remain, it is the typical one.
//!
//! The weights, the intercept and the typical distribution were fitted by `bench/measure/fit_unknown.py` on simulated
//! tasks with classes of miniImageNet, Tiny-ImageNet, CIFAR-FS and fruits (`docs/results/unknown.md`).

use super::calibration::{LabelPosterior, value_order};
use super::leave_out::LeftOut;
use super::similarity::{ClassSimilarity, MEASURES, Similarity};
use crate::embeddings::Embeddings;

/// Weights of the standardised similarities in the log odds, in the order of [`Similarity`].
pub(super) const WEIGHTS: [f32; MEASURES] = [0.33, 0.44, 0.27, 0.38];
/// The log odds of a row halfway between items of the classes and items of other classes.
pub(super) const INTERCEPT: f32 = 0.14;
/// Typical distance between the mean similarities of known and unknown items, in standard deviations of the known ones.
const TYPICAL_DISTANCE: [f32; MEASURES] = [1.40, 1.27, 1.24, 1.13];
/// Typical ratio of the standard deviation of unknown items to that of known ones.
const TYPICAL_RATIO: [f32; MEASURES] = [1.01, 0.70, 0.96, 0.64];
/// Weight of the typical distribution: as if this many more classes had been left out.
const TYPICAL_CLASSES: f32 = 2.0;
/// A row is refused (probability 0.5) at this many standard deviations above the mean log odds of left-out items of the
/// classes; about 5 % of new items of the classes are beyond it.
const REFUSED_FROM: f32 = 1.5;
/// This, divided by the number of left-out items, is added to [`REFUSED_FROM`], because few items show too little of
/// the spread.
const FEW_ITEMS_MARGIN: f32 = 4.5;
/// Limit of the absolute value of a standardised similarity.
pub(super) const MAX_STANDARDISED: f32 = 8.0;
/// Limit of the absolute value of the log odds. It keeps all probabilities between 1e-6 and 1 - 1e-6.
pub(super) const MAX_LOG_ODDS: f32 = 13.8;
/// With fewer left-out items than this, the classifier uses [`FEW_ITEMS`].
const MIN_LEFT_OUT: usize = 4;

/// The calibration of a classifier with too few items to leave some out: typical values for photos with a good
/// embedder. The width of the discriminant, whose scale is not known, makes its weight zero.
const FEW_ITEMS: Calibration =
    Calibration { middle: [0.57, 0.26, 0.53, 0.0], width: [0.1, 0.15, 0.1, 1e30], threshold: 1.4 };

/// The map from similarities to the log odds of "none of the classes".
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Calibration {
    /// Halfway between the mean similarity of items of the classes and that of items of other classes.
    pub middle: Similarity,
    /// The root mean square of the standard deviations of the two distributions.
    pub width: Similarity,
    /// The log odds ([`Calibration::equal_log_odds`]) from which a row is refused.
    pub threshold: f32,
}

/// The model of "none of the classes": the vectors that rows are compared with, and the calibration.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Novelty {
    pub similarity: ClassSimilarity,
    pub calibration: Calibration,
}

impl Novelty {
    /// Fits the model to the rows of a support set whose class probabilities are `posterior`, one entry per row.
    pub fn new(rows: &[&[f32]], posterior: &LabelPosterior) -> Self {
        let order = value_order(rows);
        let (similarity, left_out) = LeftOut::measure(rows, &order, posterior);
        Novelty { similarity, calibration: Calibration::new(&left_out) }
    }

    /// The probability of "none of the classes" for every row.
    pub fn probabilities(&self, rows: &[&[f32]]) -> Vec<f32> {
        let similarities = self.similarity.of_rows(rows);
        similarities.iter().map(|similarity| self.calibration.probability(similarity)).collect()
    }
}

impl Calibration {
    /// The calibration that follows from the similarities of left-out items.
    fn new(left_out: &LeftOut) -> Self {
        if left_out.known.len() < MIN_LEFT_OUT {
            return FEW_ITEMS;
        }
        // The two distributions; that of unknown items is combined with the typical one, by their weights.
        let (known_mean, known_deviation) = mean_and_deviation(&left_out.known);
        let (unknown_mean, unknown_deviation) = mean_and_deviation(&left_out.unknown);
        let measured_weight = left_out.classes as f32 / (left_out.classes as f32 + TYPICAL_CLASSES);
        let mut calibration = Calibration { middle: [0.0; MEASURES], width: [0.0; MEASURES], threshold: 0.0 };
        for measure in 0..MEASURES {
            // Nearly equal items must not make the width zero. A discriminant (the last measure) has no natural scale,
            // unlike a cosine, so its smallest deviation is relative to its mean.
            let is_cosine = measure + 1 < MEASURES;
            let floor = if is_cosine { 0.01 } else { 0.02 * known_mean[measure].abs().max(1.0) };
            let deviation = known_deviation[measure].max(floor);
            let typical_mean = known_mean[measure] - TYPICAL_DISTANCE[measure] * deviation;
            let typical_deviation = TYPICAL_RATIO[measure] * deviation;
            let combined =
                |measured: f32, typical: f32| measured_weight * measured + (1.0 - measured_weight) * typical;
            let combined_mean = combined(unknown_mean[measure], typical_mean);
            let combined_deviation = combined(unknown_deviation[measure], typical_deviation);
            calibration.middle[measure] = (known_mean[measure] + combined_mean) / 2.0;
            calibration.width[measure] =
                ((deviation * deviation + combined_deviation * combined_deviation) / 2.0).sqrt();
        }
        // The threshold follows from the log odds of the left-out known items.
        let log_odds: Vec<[f32; 1]> =
            left_out.known.iter().map(|similarity| [calibration.equal_log_odds(similarity)]).collect();
        let ([mean], [deviation]) = mean_and_deviation(&log_odds);
        let deviations = REFUSED_FROM + FEW_ITEMS_MARGIN / left_out.known.len() as f32;
        // At least 0: if known items are far from unknown ones, this sum is negative, and such a threshold would refuse
        // 5 % of the items of the classes although they are more similar to their classes than unknown items are.
        calibration.threshold = (mean + deviations * deviation).max(0.0);
        calibration
    }

    /// The log odds of "none of the classes" if known and unknown items were equally frequent: without the threshold.
    fn equal_log_odds(&self, similarity: &Similarity) -> f32 {
        let term = |measure: usize| {
            let standardised = (similarity[measure] - self.middle[measure]) / self.width[measure];
            WEIGHTS[measure] * standardised.clamp(-MAX_STANDARDISED, MAX_STANDARDISED)
        };
        INTERCEPT - (0..MEASURES).map(term).sum::<f32>()
    }

    /// The probability of "none of the classes".
    fn probability(&self, similarity: &Similarity) -> f32 {
        let log_odds = self.equal_log_odds(similarity) - self.threshold;
        1.0 / (1.0 + (-log_odds.clamp(-MAX_LOG_ODDS, MAX_LOG_ODDS)).exp())
    }
}

/// The rows of a support set, scaled to unit length.
pub(super) fn unit_rows(support: &Embeddings) -> Vec<Vec<f32>> {
    let zero = vec![0.0; support.dim()];
    let values = support.all_rows();
    values.chunks_exact(support.dim()).map(|row| crate::classifier::centred_unit(row, &zero)).collect()
}

/// The mean and the standard deviation of each column; zeros without values.
fn mean_and_deviation<const N: usize>(values: &[[f32; N]]) -> ([f32; N], [f32; N]) {
    let count = values.len().max(1) as f64;
    let column = |column: usize| values.iter().map(move |value| f64::from(value[column]));
    let means: [f64; N] = std::array::from_fn(|i| column(i).sum::<f64>() / count);
    let variance = |i: usize| column(i).map(|value| (value - means[i]).powi(2)).sum::<f64>() / count;
    (means.map(|mean| mean as f32), std::array::from_fn(|i| variance(i).sqrt() as f32))
}
