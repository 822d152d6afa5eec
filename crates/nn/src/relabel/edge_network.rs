//! A small network over what is known of two items, for all layers and heads of attention at once.
//!
//! P pairs, F features, U hidden units, O numbers out (one for every head of every layer). Numbers lie in planes,
//! a plane of P for every feature and every output, so that the loops run over pairs. Pairs pass through in blocks
//! and hidden units are worked out again on the way back: there are far too many of them to keep.

use std::ops::Range;

use super::buffer::Buffer;
use super::edges::EDGE_FEATURES;
use crate::isa::Isa;
use crate::kernel::kernel;
use crate::matmul::{View, ViewMut, Write, multiply};
use crate::real::{Real, dot, sum};

/// The edge features and whether both items are filed under the same class.
pub(super) const PAIR_FEATURES: usize = EDGE_FEATURES + 1;

/// Pairs that pass through together: what they need stays in the second-level cache.
const BLOCK: usize = 512;

/// The network's parameters, or their gradients.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Weights<R> {
    /// F x U
    pub(super) hidden: R,
    /// U
    pub(super) bias: R,
    /// U x O; a bias would drop out of every softmax.
    pub(super) out: R,
}

/// Writes the O planes of `logits` from the F planes of `features`.
pub(super) fn forward<T: Real>(
    isa: Isa,
    pairs: usize,
    weights: &Weights<&[T]>,
    features: &[T],
    logits: &mut [T],
) {
    let units = weights.bias.len();
    let outputs = weights.out.len() / units;
    let mut hidden = Buffer::new(units * BLOCK.min(pairs));
    for block in blocks(pairs) {
        let count = block.len();
        let hidden = &mut hidden[..units * count];
        hidden_units(isa, features, pairs, block.start, count, weights.hidden, weights.bias, hidden);
        multiply(
            isa,
            View::new(weights.out, units, outputs).transposed(),
            View::new(hidden, units, count),
            Write::Set,
            ViewMut::strided(&mut logits[block.start..], outputs, count, pairs),
        );
    }
}

/// Adds to the gradients of the parameters.
pub(super) fn backward<T: Real>(
    isa: Isa,
    pairs: usize,
    weights: &Weights<&[T]>,
    features: &[T],
    d_logits: &[T],
    gradients: &mut Weights<&mut [T]>,
) {
    let units = weights.bias.len();
    let outputs = weights.out.len() / units;
    let room = || Buffer::new(units * BLOCK.min(pairs));
    let (mut hidden, mut slopes, mut d_hidden) = (room(), room(), room());
    for block in blocks(pairs) {
        let count = block.len();
        let hidden = &mut hidden[..units * count];
        let (slopes, d_hidden) = (&mut slopes[..units * count], &mut d_hidden[..units * count]);
        let (start, from) = (block.start, &d_logits[block.start..]);
        hidden_units_and_slopes(
            isa,
            features,
            pairs,
            start,
            count,
            weights.hidden,
            weights.bias,
            hidden,
            slopes,
        );
        let d_out = View::strided(from, outputs, count, pairs);
        let out = View::new(weights.out, units, outputs);
        multiply(isa, out, d_out, Write::Set, ViewMut::new(d_hidden, units, count));
        let d_weights = ViewMut::new(gradients.out, units, outputs);
        multiply(isa, View::new(hidden, units, count), d_out.transposed(), Write::Add, d_weights);
        hidden_units_backward(
            isa,
            features,
            pairs,
            start,
            count,
            slopes,
            d_hidden,
            gradients.hidden,
            gradients.bias,
        );
    }
}

fn blocks(pairs: usize) -> impl Iterator<Item = Range<usize>> {
    (0..pairs).step_by(BLOCK).map(move |start| start..(start + BLOCK).min(pairs))
}

/// The planes' numbers of some pairs.
#[inline(always)]
fn planes<T>(features: &[T], pairs: usize, start: usize, count: usize) -> [&[T]; PAIR_FEATURES] {
    let mut planes = [&features[..0]; PAIR_FEATURES];
    for (feature, plane) in planes.iter_mut().enumerate() {
        *plane = &features[feature * pairs + start..][..count];
    }
    planes
}

/// What unit `unit` makes of the pairs, before it is bent.
#[inline(always)]
fn unit_sums<T: Real>(planes: [&[T]; PAIR_FEATURES], weights: &[T], bias: &[T], unit: usize, out: &mut [T]) {
    let units = bias.len();
    let mut w = [T::ZERO; PAIR_FEATURES];
    for (feature, w) in w.iter_mut().enumerate() {
        *w = weights[feature * units + unit];
    }
    let [a, b, c, d, e, f] = planes;
    let bias = bias[unit];
    let all = a.iter().zip(b).zip(c).zip(d).zip(e).zip(f);
    for (out, (((((a, b), c), d), e), f)) in out.iter_mut().zip(all) {
        *out = bias + w[0] * *a + w[1] * *b + w[2] * *c + w[3] * *d + w[4] * *e + w[5] * *f;
    }
}

/// The share of a standard normal distribution below x.
#[inline(always)]
fn normal_share<T: Real>(x: T) -> T {
    T::from_f64(0.5) * (T::ONE + (x * T::from_f64(std::f64::consts::FRAC_1_SQRT_2)).erf())
}

kernel! {
    fn hidden_units<'a, T>(
        features: &'a [T],
        pairs: usize,
        start: usize,
        count: usize,
        weights: &'a [T],
        bias: &'a [T],
        hidden: &'a mut [T],
    ) {
        let planes = planes(features, pairs, start, count);
        for (unit, hidden) in hidden.chunks_exact_mut(count).enumerate() {
            unit_sums(planes, weights, bias, unit, hidden);
            for value in hidden {
                *value *= normal_share(*value);
            }
        }
    }
}

kernel! {
    /// Hidden units, and what they grow by per unit of what comes in.
    fn hidden_units_and_slopes<'a, T>(
        features: &'a [T],
        pairs: usize,
        start: usize,
        count: usize,
        weights: &'a [T],
        bias: &'a [T],
        hidden: &'a mut [T],
        slopes: &'a mut [T],
    ) {
        let planes = planes(features, pairs, start, count);
        let density = T::from_f64(0.5 * std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2);
        let rows = hidden.chunks_exact_mut(count).zip(slopes.chunks_exact_mut(count));
        for (unit, (hidden, slopes)) in rows.enumerate() {
            unit_sums(planes, weights, bias, unit, hidden);
            for (value, slope) in hidden.iter_mut().zip(slopes) {
                let (x, share) = (*value, normal_share(*value));
                *slope = share + x * density * (T::from_f64(-0.5) * x * x).exp();
                *value = x * share;
            }
        }
    }
}

kernel! {
    fn hidden_units_backward<'a, T>(
        features: &'a [T],
        pairs: usize,
        start: usize,
        count: usize,
        slopes: &'a [T],
        d_hidden: &'a mut [T],
        d_weights: &'a mut [T],
        d_bias: &'a mut [T],
    ) {
        let planes = planes(features, pairs, start, count);
        let units = d_bias.len();
        let rows = d_hidden.chunks_exact_mut(count).zip(slopes.chunks_exact(count));
        for (unit, (d_hidden, slopes)) in rows.enumerate() {
            for (d_hidden, &slope) in d_hidden.iter_mut().zip(slopes) {
                *d_hidden *= slope;
            }
            d_bias[unit] += sum(d_hidden);
            for feature in 0..PAIR_FEATURES {
                d_weights[feature * units + unit] += dot(d_hidden, planes[feature]);
            }
        }
    }
}
