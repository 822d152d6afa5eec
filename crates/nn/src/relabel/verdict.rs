//! From logits to what the head says of one episode: whose each item is, and what each prototype is made of.
//!
//! M items, C classes. For every item a softmax over its C classes and "none of them". Evidence (the network's
//! logits) adds to a prior: the given class has a learned head start, larger where it has no other item to compare
//! with; every other class starts at -ln(C - 1), so that all of them together weigh the same whatever their
//! number; "none" has a learned start too. With no evidence a prototype is thus close to the mean of the items
//! filed under it.
//!
//! Item i has weight P(i is c) x multiplier(i, c) in prototype c, over the sum of those of all items. A small floor
//! under the items filed under c keeps a class whose items all look wrong from standing on nothing.

use super::batch::Place;
use crate::real::Real;

/// Numbers of the prior: head start of the given class, more of it for a lone item, start of "none".
pub(super) const PRIOR: usize = 3;
/// What they are before training.
pub(super) const PRIOR_START: [f64; PRIOR] = [2.0, 1.5, -0.5];

/// A multiplier lies within e^-3 and e^3.
const MULTIPLIER_BOUND: f64 = 3.0;

/// The network's evidence on one episode.
pub(super) struct Evidence<N> {
    /// M x C
    pub(super) classes: N,
    /// M
    pub(super) none: N,
    /// M x C: logarithms of the multipliers, before they are bounded.
    pub(super) multipliers: N,
}

/// What the head says.
#[derive(Debug, Clone)]
pub(super) struct Verdict<T> {
    /// M x (C + 1): P(item is of class c), the last one of "none".
    pub(super) shares: Vec<T>,
    /// C x M: what each prototype is made of; every row sums to 1.
    pub(super) weights: Vec<T>,
    /// C: what the weights summed to before.
    totals: Vec<T>,
}

impl<T: Real> Verdict<T> {
    /// `floor` is the weight every item has at least in the class it is filed under, before scaling.
    pub(super) fn new(place: &Place, prior: &[T], evidence: Evidence<&[T]>, floor: f64) -> Self {
        let shares = shares(place, prior, &evidence);
        let (items, classes) = (place.items, place.classes);
        let (mut weights, mut totals) = (vec![T::ZERO; classes * items], vec![T::ZERO; classes]);
        for class in 0..classes {
            let row = &mut weights[class * items..(class + 1) * items];
            for (item, weight) in row.iter_mut().enumerate() {
                let multiplier = multiplier(evidence.multipliers[item * classes + class]);
                *weight = shares[item * (classes + 1) + class] * multiplier + place.floor(item, class, floor);
                totals[class] += *weight;
            }
            let scale = T::ONE / totals[class];
            row.iter_mut().for_each(|weight| *weight *= scale);
        }
        Verdict { shares, weights, totals }
    }

    /// From the gradients of the weights and (by way of the items' own loss) of the shares' logits, M x (C + 1), to
    /// that of the evidence, which takes its place, and that of the prior, which is added to.
    pub(super) fn backward(
        &self,
        place: &Place,
        d_weights: &[T],
        mut d_logits: Vec<T>,
        evidence: Evidence<&mut [T]>,
        d_prior: &mut [T],
    ) {
        let classes = place.classes;
        let d_shares = self.weights_backward(place, d_weights, evidence.multipliers);
        self.shares_backward(classes, &d_shares, &mut d_logits);
        for (item, d_row) in d_logits.chunks_exact(classes + 1).enumerate() {
            evidence.classes[item * classes..(item + 1) * classes].copy_from_slice(&d_row[..classes]);
            evidence.none[item] = d_row[classes];
            let d_given = d_row[place.given[item] as usize];
            d_prior[0] += d_given;
            d_prior[1] += if place.is_alone(item) { d_given } else { T::ZERO };
            d_prior[2] += d_row[classes];
        }
    }

    /// The gradient of the shares; that of the multipliers takes their place.
    fn weights_backward(&self, place: &Place, d_weights: &[T], multipliers: &mut [T]) -> Vec<T> {
        let (items, classes) = (place.items, place.classes);
        let mut d_shares = vec![T::ZERO; items * (classes + 1)];
        let rows = self.weights.chunks_exact(items).zip(d_weights.chunks_exact(items));
        for (class, (row, d_row)) in rows.enumerate() {
            let mean = row.iter().zip(d_row).fold(T::ZERO, |sum, (&w, &d)| sum + w * d);
            for item in 0..items {
                let d_raw = (d_row[item] - mean) / self.totals[class];
                let logit = &mut multipliers[item * classes + class];
                let place = item * (classes + 1) + class;
                d_shares[place] = d_raw * multiplier(*logit);
                *logit = d_shares[place] * self.shares[place] * multiplier_slope(*logit);
            }
        }
        d_shares
    }

    fn shares_backward(&self, classes: usize, d_shares: &[T], d_logits: &mut [T]) {
        let rows = self.shares.chunks_exact(classes + 1).zip(d_shares.chunks_exact(classes + 1));
        for ((shares, d_shares), d_logits) in rows.zip(d_logits.chunks_exact_mut(classes + 1)) {
            let mean = shares.iter().zip(d_shares).fold(T::ZERO, |sum, (&p, &d)| sum + p * d);
            for ((d_logit, &share), &d_share) in d_logits.iter_mut().zip(shares).zip(d_shares) {
                *d_logit += share * (d_share - mean);
            }
        }
    }
}

impl Place {
    /// Whether an item is the only one of its class.
    pub(super) fn is_alone(&self, item: usize) -> bool {
        self.counts[self.given[item] as usize] == 1
    }

    /// An empty class rests on all items alike.
    fn floor<T: Real>(&self, item: usize, class: usize, floor: f64) -> T {
        if self.counts[class] == 0 {
            T::from_f64(floor / self.items as f64)
        } else if self.given[item] as usize == class {
            T::from_f64(floor)
        } else {
            T::ZERO
        }
    }
}

fn shares<T: Real>(place: &Place, prior: &[T], evidence: &Evidence<&[T]>) -> Vec<T> {
    let classes = place.classes;
    let others = T::from_f64(-(classes.max(2) as f64 - 1.0).ln());
    let mut shares = Vec::with_capacity(place.items * (classes + 1));
    for item in 0..place.items {
        let start = shares.len();
        shares.extend(evidence.classes[item * classes..(item + 1) * classes].iter().map(|&z| z + others));
        let given = place.given[item] as usize;
        let alone = if place.is_alone(item) { prior[1] } else { T::ZERO };
        shares[start + given] = evidence.classes[item * classes + given] + prior[0] + alone;
        shares.push(evidence.none[item] + prior[2]);
        softmax(&mut shares[start..]);
    }
    shares
}

pub(super) fn softmax<T: Real>(row: &mut [T]) {
    let highest = row.iter().fold(row[0], |high, &value| if value > high { value } else { high });
    let mut total = T::ZERO;
    for value in row.iter_mut() {
        *value = (*value - highest).exp();
        total += *value;
    }
    let scale = T::ONE / total;
    row.iter_mut().for_each(|value| *value *= scale);
}

fn multiplier<T: Real>(logit: T) -> T {
    let bound = T::from_f64(MULTIPLIER_BOUND);
    (bound * (logit / bound).tanh()).exp()
}

/// Derivative of the multiplier's logarithm.
fn multiplier_slope<T: Real>(logit: T) -> T {
    let tanh = (logit / T::from_f64(MULTIPLIER_BOUND)).tanh();
    T::ONE - tanh * tanh
}
