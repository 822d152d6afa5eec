//! Similarity weighting, shared by the methods `euclidean`, `absolute` and `cosine`: [`fit`] builds the prototype of a
//! class as a weighted mean of its support items. The weights are a softmax over the items of the class, in which the
//! score of an item is its mean similarity to the other items of the class.
//!
//! An item under a wrong label is usually unlike the other items of its class, so it gets little weight.

use super::{Fitted, weighted_prototypes};
use crate::task::Task;

/// Fits prototypes with weights `softmax(score / temperature)` within each class, where an item's score is its mean
/// similarity to the other items of its class. `similarity(class)` computes the similarities of that class.
///
/// The only item of a class has score 0 and weight 1.
pub(super) fn fit(task: &Task<'_>, temperature: f32, similarity: impl Fn(usize) -> Similarities) -> Fitted {
    let weights: Vec<Vec<f32>> = (0..task.support.classes())
        .map(|class| softmax(&mean_of_others(&similarity(class)), temperature))
        .collect();
    weighted_prototypes(task, &weights)
}

/// Pairwise similarities among the `n` items of one class: a symmetric matrix `[n, n]` with zeros on the diagonal.
pub(super) struct Similarities {
    n: usize,
    values: Vec<f32>,
}

impl Similarities {
    /// Fills the matrix by calling `pair(i, j)` once for every `i < j`.
    pub fn from_pairs(n: usize, pair: impl Fn(usize, usize) -> f32) -> Self {
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

/// The mean similarity of every item to the other items of its class; 0 if the class has a single item.
fn mean_of_others(similarities: &Similarities) -> Vec<f32> {
    let n = similarities.n;
    // At least 1, so that the mean for a single item is 0 and not undefined.
    let others = n.saturating_sub(1).max(1) as f32;
    (0..n).map(|i| similarities.values[i * n..(i + 1) * n].iter().sum::<f32>() / others).collect()
}

/// `exp(score / temperature)`, divided by the sum over all scores. The maximum is subtracted from the scores, so that
/// `exp` cannot overflow.
fn softmax(scores: &[f32], temperature: f32) -> Vec<f32> {
    let max = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let exps: Vec<f32> = scores.iter().map(|score| ((score - max) / temperature).exp()).collect();
    let total: f32 = exps.iter().sum();
    exps.into_iter().map(|exp| exp / total).collect()
}
