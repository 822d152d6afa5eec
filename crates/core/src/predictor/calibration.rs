//! Probabilities that mean something. A softmax of scores is as sure of itself as its sharpness; the right one is found by
//! leaving items out, learning from the rest, and asking about them.

use crate::audit::Audit;
use crate::embeddings::Embeddings;
use crate::error::Result;
use crate::method::NamedMethod;
use crate::rng::{Purpose, Rng};
use crate::task::{SupportSet, Task};

use super::scoring_rule::ScoringRule;

/// How much every item belongs to every class.
pub(super) struct LabelPosterior {
    /// Of every item the classes it may belong to.
    shares: Vec<Vec<(u32, f32)>>,
    classes: usize,
}

impl LabelPosterior {
    /// What an audit thinks, or else that all labels are right.
    pub fn of(data: &Embeddings, audit: Option<&Audit>) -> Self {
        let classes = data.classes().len();
        let shares = match audit {
            Some(audit) => audit.shares.clone(),
            None => data.labels().iter().map(|&class| vec![(class, 1.0)]).collect(),
        };
        LabelPosterior { shares, classes }
    }

    pub fn shares(&self) -> &[Vec<(u32, f32)>] {
        &self.shares
    }

    pub fn classes(&self) -> usize {
        self.classes
    }

    /// The most probable class of an item, if it is one of the classes.
    pub fn of_item(&self, item: usize) -> Option<(u32, f32)> {
        self.shares[item].first().copied().filter(|(class, _)| (*class as usize) < self.classes)
    }

    /// How much every item belongs to a class.
    pub fn shares_of(&self, class: usize) -> Vec<f32> {
        let share = |item: &Vec<(u32, f32)>| {
            item.iter().find(|(c, _)| *c as usize == class).map_or(0.0, |(_, share)| *share)
        };
        self.shares.iter().map(share).collect()
    }

    /// How much every class has in all.
    pub fn totals(&self) -> Vec<f32> {
        let mut totals = vec![0.0; self.classes];
        for &(class, share) in
            self.shares.iter().flatten().filter(|(class, _)| (*class as usize) < self.classes)
        {
            totals[class as usize] += share;
        }
        totals
    }

    /// Of every class the rows that belong to it most, at most so many, in the order of the data.
    pub fn most_typical(&self, most: usize) -> Vec<(u32, u32)> {
        let mut by_class: Vec<Vec<(u32, f32)>> = vec![Vec::new(); self.classes];
        for (row, (class, share)) in (0..)
            .zip((0..self.shares.len()).map(|item| self.of_item(item)))
            .filter_map(|(row, found)| Some((row, found?)))
        {
            by_class[class as usize].push((row, share));
        }
        let mut chosen = Vec::new();
        for (class, mut rows) in (0..).zip(by_class) {
            rows.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
            chosen.extend(rows.into_iter().take(most).map(|(row, _)| (row, class)));
        }
        chosen.sort_unstable();
        chosen
    }
}

/// An item that was left out: its scores, and how much it belongs to every class.
struct LeftOut {
    scores: Vec<f32>,
    shares: Vec<(u32, f32)>,
}

/// At most so many rounds of leaving out.
const FOLDS: usize = 5;
/// A large collection is calibrated on a part.
const MOST_ITEMS: usize = 500;
/// What scores are multiplied by where nothing can be left out, over their spread.
const USUAL: f32 = 5.7;
/// Scores that differ by less are taken for equal. A sharpness beyond all numbers would make NaN of a difference of zero.
const LEAST_SPREAD: f32 = 1e-20;
/// What is left out is asked of fewer items than there are: with all of them the answers may be surer by this. Measured on
/// validation classes, for 3 to 10 items a class and all types of noise.
const WITH_ALL: f32 = 1.5;
/// How many items a usual sharpness is worth.
const TRUST: f32 = 4.0;

/// What scores must be multiplied by.
pub(super) fn sharpness(
    rows: &[&[f32]],
    data: &Embeddings,
    method: &NamedMethod,
    posterior: &LabelPosterior,
    rule: &ScoringRule,
) -> Result<f32> {
    let spread = spread(&rule.scores(&rows[..rows.len().min(MOST_ITEMS)], data));
    let usual = USUAL / spread.max(LEAST_SPREAD);
    let left_out = leave_out(rows, data, method, posterior)?;
    Ok(WITH_ALL * most_likely(&left_out, usual))
}

/// Learns from all but every n-th item, and asks about those.
fn leave_out(
    rows: &[&[f32]],
    data: &Embeddings,
    method: &NamedMethod,
    posterior: &LabelPosterior,
) -> Result<Vec<LeftOut>> {
    let mut left_out = Vec::new();
    let classes = data.classes().len();
    if rows.len() > MOST_ITEMS {
        return Ok(left_out);
    }
    for fold in 0..FOLDS {
        // Counted within a class, so that no fold takes all of one.
        let is_out = |row: usize| {
            let class = data.rows_of(data.labels()[row] as usize);
            let place = class.iter().position(|&other| other as usize == row).unwrap_or(0);
            class.len() > 1 && place % FOLDS.min(class.len()) == fold
        };
        let (out, kept): (Vec<usize>, Vec<usize>) = (0..rows.len()).partition(|&row| is_out(row));
        if out.is_empty() {
            continue;
        }
        let labels = kept.iter().map(|&row| data.labels()[row]).collect();
        let items: Vec<&[f32]> = kept.iter().map(|&row| rows[row]).collect();
        let task = Task::new(SupportSet::new(items, labels, classes));
        let fitted = method.method.fit(&task, &mut Rng::new(0, Purpose::Method, 0))?;
        let asked: Vec<&[f32]> = out.iter().map(|&row| rows[row]).collect();
        let scores = fitted.classifier.row_scores(&task, &asked);
        left_out.extend(out.iter().zip(scores).map(|(&row, scores)| LeftOut {
            scores,
            shares: posterior.shares[row].iter().copied().filter(|(c, _)| (*c as usize) < classes).collect(),
        }));
    }
    Ok(left_out)
}

/// The mean distance between the best and the mean score of a row.
fn spread(scores: &[Vec<f32>]) -> f32 {
    let of_row = |scores: &Vec<f32>| {
        let best = scores.iter().copied().fold(f32::MIN, f32::max);
        best - scores.iter().sum::<f32>() / scores.len() as f32
    };
    scores.iter().map(of_row).sum::<f32>() / scores.len().max(1) as f32
}

/// The sharpness under which what was left out is most probable, drawn a little to the usual one.
fn most_likely(left_out: &[LeftOut], usual: f32) -> f32 {
    let cost = |sharpness: f32| -> f64 {
        let surprise: f64 = left_out
            .iter()
            .map(|item| {
                let probabilities = softmax(&item.scores, sharpness);
                let of_class = |&(class, share): &(u32, f32)| {
                    -f64::from(share) * f64::from(probabilities[class as usize].max(1e-12)).ln()
                };
                item.shares.iter().map(of_class).sum::<f64>()
            })
            .sum();
        surprise + f64::from(TRUST * (sharpness / usual).ln().powi(2))
    };
    // A thousandth to a thousand times the usual one, in ever smaller steps; the cost has one valley.
    let (mut low, mut high) = (-6.9f32, 6.9f32);
    for _ in 0..60 {
        let (a, b) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
        if cost(usual * a.exp()) < cost(usual * b.exp()) { high = b } else { low = a }
    }
    usual * ((low + high) / 2.0).exp()
}

/// Probabilities from scores.
pub(super) fn softmax(scores: &[f32], sharpness: f32) -> Vec<f32> {
    let best = scores.iter().copied().fold(f32::MIN, f32::max);
    let shares: Vec<f32> = scores.iter().map(|score| ((score - best) * sharpness).exp()).collect();
    let total: f32 = shares.iter().sum();
    shares.into_iter().map(|share| share / total).collect()
}
