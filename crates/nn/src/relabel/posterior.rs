//! The posterior over classes of each item and the weights of the prototypes, from the network's logits. Start with
//! [`Posterior::new`].
//!
//! Shapes: M items, C classes. Each item has a softmax over its C classes and "none of them". The network's logits add
//! to a prior: the given label starts at a learned value, which is larger if no other item has that label to compare
//! with; every other class starts at -ln(C - 1), so that all of them together have the same weight for any C; "none"
//! starts at a learned value, too. With zero logits a prototype is thus close to the mean of the items with its label.
//!
//! The weight of item i in prototype c is `P(i is c) x multiplier(i, c)`, normalised over all items. The multiplier,
//! also from the network, lets an item count more or less than its probability says. A small floor for the items with
//! given label c keeps a prototype defined if all items of the class look wrong. `d_x` is the gradient of the loss with
//! respect to x.

use super::episode_batch::EpisodeSpan;
use crate::real::Real;

/// The parameters of the prior: logit of the given label, its increase for a lone item, logit of "none".
pub(super) const PRIOR_PARAMETERS: usize = 3;
/// Their initial values. With zero logits they give P(given label) = 0.82, P(any other class) = 0.11 in total and
/// P(none) = 0.07 for an item that is not alone (`e^2`, 1 and `e^-0.5`, normalised), and P(given label) = 0.95 for a
/// lone one.
pub(super) const INITIAL_PRIOR: [f64; PRIOR_PARAMETERS] = [2.0, 1.5, -0.5];

/// A multiplier is between e^-3 and e^3, 0.05 and 20.
const MAX_LOG_MULTIPLIER: f64 = 3.0;

/// The output of the network for one episode, or for all episodes of a batch; also its gradient. N is the storage of
/// the numbers: `Vec<T>` or a slice.
#[derive(Debug, Clone)]
pub(super) struct Logits<N> {
    /// `[M, C]`
    pub(super) classes: N,
    /// Logits of "none of the classes", `[M]`.
    pub(super) outlier: N,
    /// Logarithms of the multipliers before they are bounded, `[M, C]`.
    pub(super) multipliers: N,
}

impl<T> Logits<Vec<T>> {
    /// The part of the arrays that belongs to one episode.
    pub(super) fn of(&self, span: &EpisodeSpan) -> Logits<&[T]> {
        Logits {
            classes: &self.classes[span.states()],
            outlier: &self.outlier[span.items()],
            multipliers: &self.multipliers[span.states()],
        }
    }

    /// The part of the arrays that belongs to one episode, mutable.
    pub(super) fn of_mut(&mut self, span: &EpisodeSpan) -> Logits<&mut [T]> {
        Logits {
            classes: &mut self.classes[span.states()],
            outlier: &mut self.outlier[span.items()],
            multipliers: &mut self.multipliers[span.states()],
        }
    }
}

/// Posterior and prototypes of one episode, with what the backward pass needs.
#[derive(Debug, Clone)]
pub(super) struct Posterior<T> {
    /// P(item belongs to class c), `[M, C + 1]`; the last column is P(none of the classes).
    pub(super) probabilities: Vec<T>,
    /// The weights of the items in each prototype, `[C, M]`; every row sums to 1.
    pub(super) weights: Vec<T>,
    /// The sums of the weights before normalisation, `[C]`.
    totals: Vec<T>,
}

impl<T: Real> Posterior<T> {
    /// `floor` is the smallest weight of an item in the prototype of its given label, before normalisation.
    pub(super) fn new(span: &EpisodeSpan, prior: &[T], logits: Logits<&[T]>, floor: f64) -> Self {
        let probabilities = probabilities(span, prior, &logits);
        let (items, classes) = (span.items, span.classes);
        let (mut weights, mut totals) = (vec![T::ZERO; classes * items], vec![T::ZERO; classes]);
        for class in 0..classes {
            let row = &mut weights[class * items..(class + 1) * items];
            for (item, weight) in row.iter_mut().enumerate() {
                let multiplier = multiplier(logits.multipliers[item * classes + class]);
                let probability = probabilities[item * (classes + 1) + class];
                *weight = probability * multiplier + weight_floor(span, item, class, floor);
                totals[class] += *weight;
            }
            let scale = T::ONE / totals[class];
            row.iter_mut().for_each(|weight| *weight *= scale);
        }
        Posterior { probabilities, weights, totals }
    }

    /// Backward pass of [`Posterior::new`], from the gradients of the prototypes' weights (`d_weights`, `[C, M]`) and
    /// of the softmax's logits (`d_logits`, `[M, C + 1]`, from the items' loss). The network's logits are replaced by
    /// their gradient, and that of the prior is added to `d_prior`.
    pub(super) fn backward(
        &self,
        span: &EpisodeSpan,
        d_weights: &[T],
        mut d_logits: Vec<T>,
        logits: Logits<&mut [T]>,
        d_prior: &mut [T],
    ) {
        let classes = span.classes;
        // From the weights to the probabilities and multipliers, then through the softmax, then to logits and prior,
        // which the softmax sees as a sum.
        let d_probabilities = self.weights_backward(span, d_weights, logits.multipliers);
        self.softmax_backward(classes, &d_probabilities, &mut d_logits);
        for (item, d_row) in d_logits.chunks_exact(classes + 1).enumerate() {
            logits.classes[item * classes..(item + 1) * classes].copy_from_slice(&d_row[..classes]);
            logits.outlier[item] = d_row[classes];
            let d_given = d_row[span.given[item] as usize];
            d_prior[0] += d_given;
            d_prior[1] += if span.is_alone(item) { d_given } else { T::ZERO };
            d_prior[2] += d_row[classes];
        }
    }

    /// Returns the gradient of the probabilities, `[M, C + 1]`; that of the multipliers' logits replaces them. With u
    /// the weights before normalisation and w those after it, `d_u = (d_w - sum over items of w d_w) / total`.
    fn weights_backward(&self, span: &EpisodeSpan, d_weights: &[T], multipliers: &mut [T]) -> Vec<T> {
        let (items, classes) = (span.items, span.classes);
        let mut d_probabilities = vec![T::ZERO; items * (classes + 1)];
        let rows = self.weights.chunks_exact(items).zip(d_weights.chunks_exact(items));
        for (class, (row, d_row)) in rows.enumerate() {
            let mean = row.iter().zip(d_row).fold(T::ZERO, |sum, (&w, &d)| sum + w * d);
            for item in 0..items {
                let d_unnormalised = (d_row[item] - mean) / self.totals[class];
                let logit = &mut multipliers[item * classes + class];
                let index = item * (classes + 1) + class;
                d_probabilities[index] = d_unnormalised * multiplier(*logit);
                *logit = d_probabilities[index] * self.probabilities[index] * log_multiplier_slope(*logit);
            }
        }
        d_probabilities
    }

    /// Adds to the gradient of the softmax's logits: `p (d_p - sum of p d_p)`.
    fn softmax_backward(&self, classes: usize, d_probabilities: &[T], d_logits: &mut [T]) {
        let rows =
            self.probabilities.chunks_exact(classes + 1).zip(d_probabilities.chunks_exact(classes + 1));
        for ((p, d_p), d_logits) in rows.zip(d_logits.chunks_exact_mut(classes + 1)) {
            let mean = p.iter().zip(d_p).fold(T::ZERO, |sum, (&p, &d)| sum + p * d);
            for ((d_logit, &p), &d_p) in d_logits.iter_mut().zip(p).zip(d_p) {
                *d_logit += p * (d_p - mean);
            }
        }
    }
}

/// The floor of an item's weight in a prototype: `floor` for the items with this given label, 0 for the others. If no
/// item has the label, all items share `floor`.
fn weight_floor<T: Real>(span: &EpisodeSpan, item: usize, class: usize, floor: f64) -> T {
    if span.counts[class] == 0 {
        T::from_f64(floor / span.items as f64)
    } else if span.given[item] as usize == class {
        T::from_f64(floor)
    } else {
        T::ZERO
    }
}

/// The posterior of each item, `[M, C + 1]`.
fn probabilities<T: Real>(span: &EpisodeSpan, prior: &[T], logits: &Logits<&[T]>) -> Vec<T> {
    let classes = span.classes;
    // The prior of a class that is not the given one. With a single class it is not used; `max` only avoids ln 0.
    let other_classes = T::from_f64(-(classes.max(2) as f64 - 1.0).ln());
    let mut rows = Vec::with_capacity(span.items * (classes + 1));
    for item in 0..span.items {
        let start = rows.len();
        let class_logits = &logits.classes[item * classes..(item + 1) * classes];
        rows.extend(class_logits.iter().map(|&logit| logit + other_classes));
        let given = span.given[item] as usize;
        let alone = if span.is_alone(item) { prior[1] } else { T::ZERO };
        rows[start + given] = class_logits[given] + prior[0] + alone;
        rows.push(logits.outlier[item] + prior[2]);
        softmax(&mut rows[start..]);
    }
    rows
}

/// Softmax of a row, in place.
pub(super) fn softmax<T: Real>(row: &mut [T]) {
    let max = row.iter().fold(row[0], |max, &value| if value > max { value } else { max });
    let mut total = T::ZERO;
    for value in row.iter_mut() {
        *value = (*value - max).exp();
        total += *value;
    }
    let scale = T::ONE / total;
    row.iter_mut().for_each(|value| *value *= scale);
}

/// `exp(b tanh(logit / b))`, with b = [`MAX_LOG_MULTIPLIER`]: about e^logit for small logits, bounded for large ones.
fn multiplier<T: Real>(logit: T) -> T {
    let bound = T::from_f64(MAX_LOG_MULTIPLIER);
    (bound * (logit / bound).tanh()).exp()
}

/// The derivative of the multiplier's logarithm with respect to its logit.
fn log_multiplier_slope<T: Real>(logit: T) -> T {
    let tanh = (logit / T::from_f64(MAX_LOG_MULTIPLIER)).tanh();
    T::ONE - tanh * tanh
}
