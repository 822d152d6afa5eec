//! The edge network: a network of one hidden layer over the features of a pair of items, which computes the attention
//! logits of the pair for all layers and heads at once. Start with [`forward`] and [`backward`].
//!
//! Shapes: P pairs, F features ([`PAIR_FEATURES`]), U hidden units, O outputs (one per layer and head); features
//! `[F, P]`, logits `[O, P]`, so that the loops run over pairs. Pairs are processed in blocks, and the backward pass
//! computes the hidden units again, because storing U numbers per pair would take too much memory. `d_x` is the
//! gradient of the loss with respect to x.

use std::ops::Range;

use super::network_input::PAIR_FEATURES;
use crate::buffer::Buffer;
use crate::kernel::kernel;
use crate::layers::activation::normal_cdf;
use crate::matmul::{Matrix, MatrixMut, Write, multiply};
use crate::real::{Real, dot, sum};

/// Pairs that are processed together: what they need stays in the second-level cache.
const BLOCK: usize = 512;

/// The parameters of the network: their ranges, their values, or their gradients.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct EdgeWeights<R> {
    /// `[F, U]`
    pub(super) hidden: R,
    /// `[U]`
    pub(super) bias: R,
    /// `[U, O]`. There is no bias: it would add the same number to all logits of a softmax, which changes nothing.
    pub(super) out: R,
}

impl EdgeWeights<Range<usize>> {
    /// The values of the parameters.
    pub(super) fn of<'a, T>(&self, parameters: &'a [T]) -> EdgeWeights<&'a [T]> {
        EdgeWeights {
            hidden: &parameters[self.hidden.clone()],
            bias: &parameters[self.bias.clone()],
            out: &parameters[self.out.clone()],
        }
    }

    /// The gradients of the parameters, whose ranges are adjacent.
    pub(super) fn of_mut<'a, T>(&self, gradient: &'a mut [T]) -> EdgeWeights<&'a mut [T]> {
        let all = &mut gradient[self.hidden.start..self.out.end];
        let (hidden, bias_and_out) = all.split_at_mut(self.hidden.len());
        let (bias, out) = bias_and_out.split_at_mut(self.bias.len());
        EdgeWeights { hidden, bias, out }
    }
}

/// Writes `logits` (`[O, P]`) from `features` (`[F, P]`).
pub(super) fn forward<T: Real>(pairs: usize, weights: &EdgeWeights<&[T]>, features: &[T], logits: &mut [T]) {
    let units = weights.bias.len();
    let outputs = weights.out.len() / units;
    let mut hidden = Buffer::new(units * BLOCK.min(pairs));
    for block in blocks(pairs) {
        let count = block.len();
        let hidden = &mut hidden[..units * count];
        hidden_units(features, pairs, block.start, count, weights.hidden, weights.bias, hidden);
        multiply(
            Matrix::new(weights.out, units, outputs).transposed(),
            Matrix::new(hidden, units, count),
            Write::Set,
            MatrixMut::strided(&mut logits[block.start..], outputs, count, pairs),
        );
    }
}

/// Adds to the gradients of the parameters and, if `d_features` (`[F, P]`) is given, sets the gradient of the features.
pub(super) fn backward<T: Real>(
    pairs: usize,
    weights: &EdgeWeights<&[T]>,
    features: &[T],
    d_logits: &[T],
    gradients: &mut EdgeWeights<&mut [T]>,
    mut d_features: Option<&mut [T]>,
) {
    let units = weights.bias.len();
    let outputs = weights.out.len() / units;
    let buffer = || Buffer::new(units * BLOCK.min(pairs));
    let (mut hidden, mut slopes, mut d_hidden) = (buffer(), buffer(), buffer());
    for Range { start, end } in blocks(pairs) {
        let count = end - start;
        let hidden = &mut hidden[..units * count];
        let (slopes, d_hidden) = (&mut slopes[..units * count], &mut d_hidden[..units * count]);
        // The hidden units again, with the slopes of their activation.
        let EdgeWeights { hidden: weight, bias, .. } = *weights;
        hidden_units_and_slopes(features, pairs, start, count, weight, bias, hidden, slopes);
        // The gradients of the activated hidden units, `out d_logits`, and of the output weight.
        let d_out = Matrix::strided(&d_logits[start..], outputs, count, pairs);
        let out = Matrix::new(weights.out, units, outputs);
        multiply(out, d_out, Write::Set, MatrixMut::new(d_hidden, units, count));
        let d_weights = MatrixMut::new(gradients.out, units, outputs);
        multiply(Matrix::new(hidden, units, count), d_out.transposed(), Write::Add, d_weights);
        // The gradients of the pre-activations (in `d_hidden`), of the hidden layer's weight and bias, and of the
        // features.
        let EdgeWeights { hidden: d_weight, bias: d_bias, .. } = gradients;
        hidden_units_backward(features, pairs, start, count, slopes, d_hidden, d_weight, d_bias);
        if let Some(d_features) = d_features.as_deref_mut() {
            let d_features = MatrixMut::strided(&mut d_features[start..], PAIR_FEATURES, count, pairs);
            let weight = Matrix::new(weight, PAIR_FEATURES, units);
            multiply(weight, Matrix::new(d_hidden, units, count), Write::Set, d_features);
        }
    }
}

/// Ranges of at most [`BLOCK`] pairs.
fn blocks(pairs: usize) -> impl Iterator<Item = Range<usize>> {
    (0..pairs).step_by(BLOCK).map(move |start| start..(start + BLOCK).min(pairs))
}

/// The features of `count` pairs from `start` on, one slice per feature.
#[inline(always)]
fn planes<T>(features: &[T], pairs: usize, start: usize, count: usize) -> [&[T]; PAIR_FEATURES] {
    let mut planes = [&features[..0]; PAIR_FEATURES];
    for (feature, plane) in planes.iter_mut().enumerate() {
        *plane = &features[feature * pairs + start..][..count];
    }
    planes
}

/// The pre-activations of hidden unit `unit` for the pairs of `planes`. `weights` is `[F, U]`.
#[inline(always)]
fn pre_activations<T: Real>(
    planes: [&[T]; PAIR_FEATURES],
    weights: &[T],
    bias: &[T],
    unit: usize,
    out: &mut [T],
) {
    let units = bias.len();
    let mut w = [T::ZERO; PAIR_FEATURES];
    for (feature, w) in w.iter_mut().enumerate() {
        *w = weights[feature * units + unit];
    }
    // One pass over all six features, so that each sum stays in a register.
    let [a, b, c, d, e, f] = planes;
    let bias = bias[unit];
    let all = a.iter().zip(b).zip(c).zip(d).zip(e).zip(f);
    for (out, (((((a, b), c), d), e), f)) in out.iter_mut().zip(all) {
        *out = bias + w[0] * *a + w[1] * *b + w[2] * *c + w[3] * *d + w[4] * *e + w[5] * *f;
    }
}

kernel! {
    /// Hidden units after GELU, `[U, count]`.
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
            pre_activations(planes, weights, bias, unit, hidden);
            for value in hidden {
                *value *= normal_cdf(*value);
            }
        }
    }
}

kernel! {
    /// Hidden units after GELU, and the derivatives of GELU, both `[U, count]`.
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
        // 1 / sqrt(2 π), the density of the standard normal distribution at 0; see `gelu_backward`.
        let density = T::from_f64(0.5 * std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2);
        let rows = hidden.chunks_exact_mut(count).zip(slopes.chunks_exact_mut(count));
        for (unit, (hidden, slopes)) in rows.enumerate() {
            pre_activations(planes, weights, bias, unit, hidden);
            for (value, slope) in hidden.iter_mut().zip(slopes) {
                let (x, cdf) = (*value, normal_cdf(*value));
                *slope = cdf + x * density * (T::from_f64(-0.5) * x * x).exp();
                *value = x * cdf;
            }
        }
    }
}

kernel! {
    /// Adds to the gradients of the hidden layer's weight and bias; `d_hidden` becomes the gradient of the
    /// pre-activations.
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
