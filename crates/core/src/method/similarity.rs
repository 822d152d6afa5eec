//! What euclidean, absolute and cosine share: an item weighs as much as it resembles its class mates.

use super::{Fitted, weighted_prototypes};
use crate::task::Task;

/// Prototypes with weights `softmax(score / temperature)`, where an item's score is its mean similarity to the
/// other items of its class. A lone item has nobody to resemble: its score is 0 and its weight 1.
pub(super) fn fit(task: &Task<'_>, temperature: f32, similarity: impl Fn(usize) -> Similarities) -> Fitted {
    let weights: Vec<Vec<f32>> = (0..task.support.classes())
        .map(|class| softmax(&mean_of_others(&similarity(class)), temperature))
        .collect();
    weighted_prototypes(task, &weights)
}

/// Similarities among the items of one class, n x n; the diagonal is not looked at.
pub(super) struct Similarities {
    n: usize,
    values: Vec<f32>,
}

impl Similarities {
    /// Asks for every pair once.
    pub fn of_pairs(n: usize, pair: impl Fn(usize, usize) -> f32) -> Self {
        let mut values = vec![0.0; n * n];
        for i in 0..n {
            for j in i + 1..n {
                let value = pair(i, j);
                values[i * n + j] = value;
                values[j * n + i] = value;
            }
        }
        Similarities { n, values }
    }
}

fn mean_of_others(similarities: &Similarities) -> Vec<f32> {
    let n = similarities.n;
    let others = n.saturating_sub(1).max(1) as f32;
    (0..n).map(|i| similarities.values[i * n..(i + 1) * n].iter().sum::<f32>() / others).collect()
}

fn softmax(scores: &[f32], temperature: f32) -> Vec<f32> {
    let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let shares: Vec<f32> = scores.iter().map(|score| ((score - highest) / temperature).exp()).collect();
    let total: f32 = shares.iter().sum();
    shares.into_iter().map(|share| share / total).collect()
}
