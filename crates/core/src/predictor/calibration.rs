//! Calibration of the probabilities of the classes: [`sharpness`] finds the factor for the scores before the softmax
//! (an inverse temperature) under which held-out labels are most likely. The probability of "none of the classes" is
//! calibrated separately, in `novelty`.
//!
//! Labels may be wrong, so an item counts for every class with its probability in [`LabelPosterior`], which comes from
//! an audit. There are few items, so the estimate is regularised towards a typical value.

use super::scoring_rule::ScoringRule;
use crate::audit::{Audit, compare_rows};
use crate::embeddings::Embeddings;
use crate::error::Result;
use crate::method::NamedMethod;
use crate::rng::{Purpose, Rng};
use crate::task::{SupportSet, Task};

/// The posterior probabilities of the true class of every item of a support set.
pub(super) struct LabelPosterior {
    /// For every item the possible classes with their probabilities, likeliest first. The class index `classes` means
    /// "none of the classes".
    shares: Vec<Vec<(u32, f32)>>,
    classes: usize,
}

impl LabelPosterior {
    /// The probabilities that an audit found; without an audit, every given label has probability 1. The audit may have
    /// additional classes without items, which `without_empty_classes` has removed from the data.
    pub fn new(data: &Embeddings, audit: Option<&Audit>) -> Self {
        let classes = data.classes().len();
        let shares = match audit {
            Some(audit) => {
                // `new_index` maps the class numbers of the audit to those of the data. "None of the classes" is the
                // number after the last class in both. `None` is a class without items, whose shares are left out.
                let has_items = audit.classes.iter().map(|class| class.items > 0);
                let mut next_index = 0..classes as u32;
                let mut new_index: Vec<Option<u32>> =
                    has_items.map(|has_items| if has_items { next_index.next() } else { None }).collect();
                new_index.push(Some(classes as u32));
                let renumbered = |shares: &Vec<(u32, f32)>| -> Vec<(u32, f32)> {
                    let in_data = |&(class, share): &(u32, f32)| Some((new_index[class as usize]?, share));
                    shares.iter().filter_map(in_data).collect()
                };
                audit.shares.iter().map(renumbered).collect()
            }
            None => data.labels().iter().map(|&class| vec![(class, 1.0)]).collect(),
        };
        LabelPosterior { shares, classes }
    }

    /// For every item the possible classes with their probabilities, likeliest first.
    pub fn shares(&self) -> &[Vec<(u32, f32)>] {
        &self.shares
    }

    pub fn classes(&self) -> usize {
        self.classes
    }

    /// The likeliest class of an item with its probability; `None` if it is "none of the classes".
    pub fn likeliest_class(&self, item: usize) -> Option<(u32, f32)> {
        self.shares[item].first().copied().filter(|(class, _)| (*class as usize) < self.classes)
    }

    /// The expected number of items of every class: the sum of their probabilities.
    pub fn totals(&self) -> Vec<f32> {
        let mut totals = vec![0.0; self.classes];
        for &(class, share) in
            self.shares.iter().flatten().filter(|(class, _)| (*class as usize) < self.classes)
        {
            totals[class as usize] += share;
        }
        totals
    }

    /// Chooses for every class at most `max_per_class` of the rows whose likeliest class it is: those where its
    /// probability is highest. A class that is the likeliest of no row gets the row with its highest probability, if
    /// any row may belong to it; a row can thus be chosen for two classes. Of equal probabilities, of which there are
    /// many near 1, the values of the rows decide, so that their order in the data does not matter. Returns (row,
    /// class) in the order of the rows.
    pub fn most_typical(&self, data: &Embeddings, max_per_class: usize) -> Vec<(u32, u32)> {
        let order = |a: &(u32, f32), b: &(u32, f32)| {
            let by_values = || compare_rows(&data.row(a.0 as usize), &data.row(b.0 as usize));
            b.1.total_cmp(&a.1).then_with(by_values).then(a.0.cmp(&b.0))
        };
        let mut by_class: Vec<Vec<(u32, f32)>> = vec![Vec::new(); self.classes];
        for row in 0..self.shares.len() {
            if let Some((class, probability)) = self.likeliest_class(row) {
                by_class[class as usize].push((row as u32, probability));
            }
        }
        let mut chosen = Vec::new();
        for (class, mut rows) in (0..).zip(by_class) {
            if rows.is_empty() {
                rows.extend(self.rows_with(class).min_by(order));
            }
            rows.sort_by(order);
            chosen.extend(rows.into_iter().take(max_per_class).map(|(row, _)| (row, class)));
        }
        chosen.sort_unstable();
        chosen
    }

    /// The rows for which a class is possible, each with its probability of the class.
    fn rows_with(&self, class: u32) -> impl Iterator<Item = (u32, f32)> {
        let of_row = move |(row, shares): (u32, &Vec<(u32, f32)>)| {
            shares.iter().find(|(other, _)| *other == class).map(|&(_, probability)| (row, probability))
        };
        (0..).zip(&self.shares).filter_map(of_row)
    }
}

/// A held-out item.
struct HeldOut {
    /// The scores of all classes under a classifier that was fitted without the item.
    scores: Vec<f32>,
    /// The classes of the item with their posterior probabilities, without "none of the classes".
    shares: Vec<(u32, f32)>,
}

/// Folds of the cross-validation.
const FOLDS: usize = 5;
/// Cross-validation is skipped above this number of items, and the sharpness is then [`FULL_FIT_FACTOR`] times the
/// typical one. The spread of scores is measured on this number of items at most, the first in the order of their
/// values.
const MAX_ITEMS: usize = 500;
/// The typical sharpness of scores with a spread of 1, measured on validation classes. Scores are divided by their
/// [`spread`], because methods and embedders scale them differently.
const TYPICAL_SHARPNESS: f32 = 5.7;
/// Lower bound of the spread of scores, so that the sharpness stays finite (infinity times a difference of 0 is NaN).
const MIN_SPREAD: f32 = 1e-20;
/// Correction for the final model, which is fitted to more items than the models of the cross-validation and is more
/// often right, so its probabilities should be sharper by this factor. Measured on validation classes, for 3 to 10
/// items per class and all kinds of noise.
const FULL_FIT_FACTOR: f32 = 1.5;
/// Strength of the regularisation: the penalty is this times the squared logarithm of the ratio to the typical
/// sharpness. It is added to a sum over the items, so it matters less the more items there are.
const REGULARISATION: f32 = 4.0;

/// The factor that scores are multiplied by before the softmax. `rows` are the rows of the support set `data`, and
/// `rule` is the `method` fitted to all of them.
pub(super) fn sharpness(
    rows: &[&[f32]],
    data: &Embeddings,
    method: &NamedMethod,
    posterior: &LabelPosterior,
    rule: &ScoringRule,
) -> Result<f32> {
    let order = value_order(rows);
    let first: Vec<&[f32]> = order.iter().take(MAX_ITEMS).map(|&row| rows[row as usize]).collect();
    let spread = spread(&rule.scores(&first, data));
    let typical = TYPICAL_SHARPNESS / spread.max(MIN_SPREAD);
    let held_out = cross_validate(rows, &order, data, method, posterior)?;
    Ok(FULL_FIT_FACTOR * most_likely_sharpness(&held_out, typical))
}

/// Fits the method without each fold and scores the items of the fold. Folds are assigned within each class, so that no
/// fold contains all items of a class. They follow `order` (row numbers from [`value_order`]), so that the order of the
/// data does not matter. The only item of a class is never held out. Empty for large sets (see [`MAX_ITEMS`]).
fn cross_validate(
    rows: &[&[f32]],
    order: &[u32],
    data: &Embeddings,
    method: &NamedMethod,
    posterior: &LabelPosterior,
) -> Result<Vec<HeldOut>> {
    let mut held_out = Vec::new();
    let classes = data.classes().len();
    if rows.len() > MAX_ITEMS {
        return Ok(held_out);
    }
    // Per class, the number of items that have a fold already.
    let mut dealt = vec![0; classes];
    // Every row with its fold, `None` if it is never held out. The items of a class are dealt to the folds in turn; a
    // class with fewer items than folds uses only the first of them.
    let with_fold = |&row: &u32| {
        let class = data.labels()[row as usize] as usize;
        dealt[class] += 1;
        let size = data.rows_of(class).len();
        (row as usize, (size > 1).then(|| (dealt[class] - 1) % FOLDS.min(size)))
    };
    let folds: Vec<(usize, Option<usize>)> = order.iter().map(with_fold).collect();
    for fold in 0..FOLDS {
        let rows_where = |in_fold: bool| {
            let chosen = folds.iter().filter(move |(_, of_row)| (*of_row == Some(fold)) == in_fold);
            chosen.map(|&(row, _)| row).collect::<Vec<usize>>()
        };
        let (out_rows, kept_rows) = (rows_where(true), rows_where(false));
        if out_rows.is_empty() {
            continue;
        }
        let labels = kept_rows.iter().map(|&row| data.labels()[row]).collect();
        let items: Vec<&[f32]> = kept_rows.iter().map(|&row| rows[row]).collect();
        let task = Task::new(SupportSet::new(items, labels, classes));
        let fitted = method.method.fit(&task, &mut Rng::new(0, Purpose::Method, 0))?;
        let queries: Vec<&[f32]> = out_rows.iter().map(|&row| rows[row]).collect();
        let scores = fitted.classifier.row_scores(&task, &queries);
        held_out.extend(out_rows.iter().zip(scores).map(|(&row, scores)| {
            let shares = posterior.shares[row].iter().copied();
            HeldOut { scores, shares: shares.filter(|(class, _)| (*class as usize) < classes).collect() }
        }));
    }
    Ok(held_out)
}

/// The indices of the rows, ordered by their values alone.
pub(super) fn value_order(rows: &[&[f32]]) -> Vec<u32> {
    let mut order: Vec<u32> = (0..rows.len() as u32).collect();
    order.sort_by(|&a, &b| compare_rows(rows[a as usize], rows[b as usize]));
    order
}

/// The spread of scores `[rows][classes]`: the largest score of a row minus its mean score, averaged over the rows.
fn spread(scores: &[Vec<f32>]) -> f32 {
    let row_spread = |scores: &Vec<f32>| {
        let max = scores.iter().copied().fold(f32::MIN, f32::max);
        max - scores.iter().sum::<f32>() / scores.len() as f32
    };
    scores.iter().map(row_spread).sum::<f32>() / scores.len().max(1) as f32
}

/// The sharpness that minimises the regularised cross-entropy of the held-out items; without any, `typical`.
fn most_likely_sharpness(held_out: &[HeldOut], typical: f32) -> f32 {
    let cost = |sharpness: f32| -> f64 {
        let cross_entropy: f64 = held_out
            .iter()
            .map(|item| {
                let probabilities = softmax(&item.scores, sharpness);
                let term = |&(class, share): &(u32, f32)| {
                    -f64::from(share) * f64::from(probabilities[class as usize].max(1e-12)).ln()
                };
                item.shares.iter().map(term).sum::<f64>()
            })
            .sum();
        cross_entropy + f64::from(REGULARISATION * (sharpness / typical).ln().powi(2))
    };
    // Ternary search over the log ratio to the typical sharpness, from 1/1000 to 1000 (e^6.9). In practice the
    // cost has a single minimum; if it had several, any of them would do.
    let (mut low, mut high) = (-6.9f32, 6.9f32);
    for _ in 0..60 {
        let (a, b) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
        if cost(typical * a.exp()) < cost(typical * b.exp()) { high = b } else { low = a }
    }
    typical * ((low + high) / 2.0).exp()
}

/// Class probabilities `softmax(sharpness * scores)`. The maximum is subtracted from the scores, so that `exp` cannot
/// overflow.
pub(super) fn softmax(scores: &[f32], sharpness: f32) -> Vec<f32> {
    let max = scores.iter().copied().fold(f32::MIN, f32::max);
    let exps: Vec<f32> = scores.iter().map(|score| ((score - max) * sharpness).exp()).collect();
    let total: f32 = exps.iter().sum();
    exps.into_iter().map(|exp| exp / total).collect()
}
