//! A model that learns from a collection which kinds of evidence predict its labels ([`log_probabilities`]).
//!
//! `evidence` computes seven scores of every item with each of its candidate classes (three regressions, a cosine and
//! how typical it is for the class, two votes of neighbours). This file combines them by a conditional logit model: the
//! probability of a candidate class is proportional to the exponential of a weighted sum of the item's scores with that
//! class. The seven weights are fitted to the class probabilities of the previous round. The scores of an item hardly
//! depend on its own label and there are only a few weights, so the model does not overfit: where nearest neighbours
//! predict better than the regressions, they count more, and where nothing predicts well, the classes get similar
//! probabilities.
//!
//! The given class of an item is always a candidate, while other classes are candidates because their scores are large.
//! In a fit to all candidates, large scores would therefore speak against a class. So the model is fitted to the
//! classes with the best scores ([`CandidateScores::fitted`]), whether or not the given class is among them. If it is
//! not, the item has no share in any of them in the first round, and does not take part in the fit.

use std::ops::Range;

use rayon::prelude::*;

use crate::cholesky::Cholesky;

/// Number of scores of an item with a class.
pub(super) const SCORES: usize = 7;
/// The weights that fit many collections best; those of a small collection stay close to them. In the order of the
/// scores: three regressions, the cosine with the class, how typical it is, the votes of 3 and of 10 neighbours.
const TYPICAL_WEIGHTS: Vector = [0.5, -0.2, 0.05, 0.1, 0.9, 0.07, 0.6];
/// Strength of the regularisation: the loss is a sum over the items plus this times half the squared distance of the
/// weights from [`TYPICAL_WEIGHTS`].
const PENALTY: f64 = 2.0;
/// Steps of Newton's method. Few are enough, because it converges quadratically.
const STEPS: usize = 8;
/// Attempts per step: a step that would raise the loss is halved and tried again. If all attempts would raise it, the
/// fit ends.
const ATTEMPTS: usize = 5;
/// Items per partial sum of the loss and its derivatives. Partial sums are added in order, so the result does not
/// depend on the number of threads.
const BLOCK: usize = 1024;

/// One number per score: weights, or derivatives of the loss by the weights.
type Vector = [f64; SCORES];

/// The candidate classes of an item with its scores.
pub(super) struct CandidateScores {
    /// `[candidates]`
    pub scores: Vec<[f32; SCORES]>,
    /// The probabilities of the candidates in the previous round.
    pub shares: Vec<f32>,
    /// The indices of the candidates to which the model is fitted; they must not depend on the given class.
    pub fitted: Range<usize>,
}

impl CandidateScores {
    /// The scores and the shares of the candidates to which the model is fitted.
    fn fitted(&self) -> (&[[f32; SCORES]], &[f32]) {
        (&self.scores[self.fitted.clone()], &self.shares[self.fitted.clone()])
    }
}

/// Fits the model to the items and returns the logarithms of its probabilities of all candidates, `[item][candidate]`.
pub(super) fn log_probabilities(items: &[CandidateScores]) -> Vec<Vec<f32>> {
    let weights = fit(items);
    let of_item = |item: &CandidateScores| {
        let (logits, normaliser) = logits(&item.scores, &weights);
        logits.iter().map(|logit| (logit - normaliser) as f32).collect()
    };
    items.par_iter().map(of_item).collect()
}

/// The weights with the smallest loss, by Newton's method from the typical weights.
fn fit(items: &[CandidateScores]) -> Vector {
    let mut weights = TYPICAL_WEIGHTS;
    let mut loss = loss_of(items, &weights);
    for _ in 0..STEPS {
        let (gradient, hessian) = derivatives(items, &weights);
        let gradient = gradient.map(|value| value as f32);
        let mut step = Cholesky::new(hessian, SCORES, PENALTY).solve(&gradient);
        let improved = (0..ATTEMPTS).find_map(|_| {
            let moved: Vector = std::array::from_fn(|n| weights[n] - f64::from(step[n]));
            let moved_loss = loss_of(items, &moved);
            step.iter_mut().for_each(|step| *step /= 2.0);
            (moved_loss <= loss).then_some((moved, moved_loss))
        });
        match improved {
            Some(improved) => (weights, loss) = improved,
            None => break,
        }
    }
    weights
}

/// The weighted sums of the scores of all candidates (logits), and the logarithm of the sum of their exponentials, so
/// that `logit - normaliser` is the logarithm of a probability.
fn logits(scores: &[[f32; SCORES]], weights: &Vector) -> (Vec<f64>, f64) {
    let weighted = |scores: &[f32; SCORES]| {
        scores.iter().zip(weights).map(|(&score, weight)| f64::from(score) * weight).sum()
    };
    let logits: Vec<f64> = scores.iter().map(weighted).collect();
    // Relative to the largest logit, so that `exp` cannot overflow.
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let normaliser = largest + logits.iter().map(|logit| (logit - largest).exp()).sum::<f64>().ln();
    (logits, normaliser)
}

/// The cross-entropy of the fitted candidates, weighted by their shares and summed over the items, plus the penalty.
fn loss_of(items: &[CandidateScores], weights: &Vector) -> f64 {
    let of_item = |item: &CandidateScores| {
        let (scores, shares) = item.fitted();
        let (logits, normaliser) = logits(scores, weights);
        shares.iter().zip(&logits).map(|(&share, logit)| f64::from(share) * (normaliser - logit)).sum::<f64>()
    };
    let sums: Vec<f64> = items.par_chunks(BLOCK).map(|block| block.iter().map(of_item).sum()).collect();
    let distance = weights.iter().zip(&TYPICAL_WEIGHTS).map(|(weight, typical)| (weight - typical).powi(2));
    sums.iter().sum::<f64>() + PENALTY / 2.0 * distance.sum::<f64>()
}

/// The gradient of the loss, and its second derivatives `[SCORES, SCORES]` without those of the penalty, which are
/// [`PENALTY`] times the identity.
fn derivatives(items: &[CandidateScores], weights: &Vector) -> (Vector, Vec<f64>) {
    let of_block = |block: &[CandidateScores]| {
        let (mut gradient, mut hessian) = ([0.0; SCORES], vec![0.0; SCORES * SCORES]);
        for item in block {
            let (scores, shares) = item.fitted();
            let (logits, normaliser) = logits(scores, weights);
            let total: f64 = shares.iter().map(|&share| f64::from(share)).sum();
            let probabilities: Vec<f64> = logits.iter().map(|logit| (logit - normaliser).exp()).collect();
            // The mean of the scores under the probabilities of the model.
            let mut mean = [0.0; SCORES];
            for (scores, probability) in scores.iter().zip(&probabilities) {
                mean.iter_mut()
                    .zip(scores)
                    .for_each(|(mean, &score)| *mean += probability * f64::from(score));
            }
            // With deviations d from the mean, probabilities p and shares s (sum S): the gradient is the sum of `-s d`,
            // and the second derivatives are the sum of `S p d d'`.
            for ((scores, &share), probability) in scores.iter().zip(shares).zip(&probabilities) {
                let deviation: Vector = std::array::from_fn(|n| f64::from(scores[n]) - mean[n]);
                for (n, row) in hessian.chunks_exact_mut(SCORES).enumerate() {
                    gradient[n] -= f64::from(share) * deviation[n];
                    let factor = total * probability * deviation[n];
                    row.iter_mut().zip(&deviation).for_each(|(sum, deviation)| *sum += factor * deviation);
                }
            }
        }
        (gradient, hessian)
    };
    let blocks: Vec<(Vector, Vec<f64>)> = items.par_chunks(BLOCK).map(of_block).collect();
    let mut gradient: Vector = std::array::from_fn(|n| PENALTY * (weights[n] - TYPICAL_WEIGHTS[n]));
    let mut hessian = vec![0.0; SCORES * SCORES];
    for (of_gradient, of_hessian) in &blocks {
        gradient.iter_mut().zip(of_gradient).for_each(|(sum, value)| *sum += value);
        hessian.iter_mut().zip(of_hessian).for_each(|(sum, value)| *sum += value);
    }
    (gradient, hessian)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Purpose, Rng};

    /// Items whose class is 0 if their score number `informative` is larger for class 0 than for class 1.
    fn items(count: usize, informative: usize) -> Vec<CandidateScores> {
        let mut rng = Rng::for_item(5, Purpose::Projection, 0, 0);
        let item = |_| {
            let scores: Vec<[f32; SCORES]> =
                (0..2).map(|_| std::array::from_fn(|_| rng.uniform() * 4.0)).collect();
            let first = scores[0][informative] > scores[1][informative];
            let shares = [first, !first].map(|right| f32::from(u8::from(right))).to_vec();
            CandidateScores { scores, shares, fitted: 0..2 }
        };
        (0..count).map(item).collect()
    }

    #[test]
    fn the_weights_minimise_the_loss() {
        let items = items(300, 2);
        let weights = fit(&items);
        let (gradient, _) = derivatives(&items, &weights);
        assert!(gradient.iter().all(|slope| slope.abs() < 1e-3), "{gradient:?}");
        for (n, slope) in gradient.iter().enumerate() {
            let mut moved = weights;
            moved[n] += 1e-4;
            let numeric = (loss_of(&items, &moved) - loss_of(&items, &weights)) / 1e-4;
            assert!((slope - numeric).abs() < 0.05, "score {n}: {slope}, not {numeric}");
        }
    }

    #[test]
    fn scores_that_predict_the_labels_count_more() {
        let items = items(300, 3);
        let weights = fit(&items);
        assert!((0..SCORES).all(|n| n == 3 || weights[n].abs() < weights[3]), "{weights:?}");
        let logs = log_probabilities(&items);
        let is_right =
            |(logs, item): &(&Vec<f32>, &CandidateScores)| (logs[0] > logs[1]) == (item.shares[0] > 0.5);
        assert!(logs.iter().zip(&items).filter(is_right).count() > 270);
    }

    #[test]
    fn few_items_leave_the_typical_weights() {
        let weights = fit(&items(1, 0));
        assert!(
            weights.iter().zip(&TYPICAL_WEIGHTS).all(|(weight, typical)| (weight - typical).abs() < 1.0),
            "{weights:?}"
        );
    }
}
