//! Multi-head self-attention within segments: a batch is a list of token sets of any sizes, and tokens attend to those
//! of their own set only. [`forward`] and [`backward`] are the core of an attention layer of TraNFS; the projections to
//! queries, keys and values and from the result are the caller's.
//!
//! Shapes: a segment holds n tokens; `qkv` is `[tokens, 3 W]` over the tokens of all segments (queries, keys and
//! values, each with its H heads one after the other), `out` is `[tokens, W]`. For every segment and head the attention
//! weights are a matrix of n rows, each padded to whole vectors ([`padded`]): query tokens in columns, key tokens in
//! rows. This is the transpose of the usual order, because softmax over columns is the fastest, and the matrix products
//! take the weights either way. `d_x` is the gradient of the loss with respect to x.

use std::ops::Range;

use crate::layers::dropout::Dropout;
use crate::layers::softmax;
use crate::matmul::{Matrix, MatrixMut, Write, multiply};
use crate::real::{LANES, Real};

/// Number and width of the attention heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// H
    pub count: usize,
    /// Length of one head's query, key or value; W = H times this.
    pub width: usize,
}

/// Activations kept for the backward pass, and scratch memory. Reused from call to call.
#[derive(Debug, Clone, Default)]
pub struct AttentionCache<T> {
    /// For every segment and head the attention weights, `[n, padded(n)]`; column i are those of query token i.
    pub weights: Vec<T>,
    /// The weights after dropout; empty without dropout.
    dropped: Vec<T>,
    /// Scratch memory: the gradient of one matrix of weights.
    d_weights: Vec<T>,
}

/// The distance between two rows of a matrix of attention weights.
pub fn padded(tokens: usize) -> usize {
    tokens.next_multiple_of(LANES)
}

/// The weight matrices of all heads of all segments, in the order of the buffer of weights. Each item is (token range
/// of the segment, number of the head, range of the matrix in the buffer).
fn weight_matrices(
    heads: Heads,
    segments: &[Range<usize>],
) -> impl Iterator<Item = (Range<usize>, usize, Range<usize>)> {
    let mut start = 0;
    segments.iter().flat_map(move |tokens| {
        // The numbers of one matrix, and the start of the segment's first one.
        let size = tokens.len() * padded(tokens.len());
        let first = start;
        start += heads.count * size;
        (0..heads.count)
            .map(move |head| (tokens.clone(), head, first + head * size..first + (head + 1) * size))
    })
}

/// The queries (`part` 0), keys (1) or values (2) of one head of one segment, `[n, W / H]`.
fn part<'a, T>(qkv: &'a [T], heads: Heads, tokens: &Range<usize>, part: usize, head: usize) -> Matrix<'a, T> {
    let stride = 3 * heads.count * heads.width;
    let start = tokens.start * stride + (part * heads.count + head) * heads.width;
    Matrix::strided(&qkv[start..], tokens.len(), heads.width, stride)
}

/// [`part`] of a gradient, to be overwritten.
fn part_mut<'a, T>(
    qkv: &'a mut [T],
    heads: Heads,
    tokens: &Range<usize>,
    part: usize,
    head: usize,
) -> MatrixMut<'a, T> {
    let stride = 3 * heads.count * heads.width;
    let start = tokens.start * stride + (part * heads.count + head) * heads.width;
    MatrixMut::strided(&mut qkv[start..], tokens.len(), heads.width, stride)
}

/// What products of queries and keys are multiplied by: one over the square root of the width of a head.
fn scale<T: Real>(heads: Heads) -> T {
    T::from_f64(1.0 / (heads.width as f64).sqrt())
}

/// `out = dropout(softmax(q k^T / sqrt(width))) v`, for each head, with `width` that of a head. Keeps the attention
/// weights in `cache`.
///
/// # Panics
/// If the segments do not fit `qkv` and `out`.
pub fn forward<T: Real>(
    heads: Heads,
    segments: &[Range<usize>],
    dropout: Dropout,
    qkv: &[T],
    cache: &mut AttentionCache<T>,
    out: &mut [T],
) {
    let width = heads.count * heads.width;
    let total: usize = segments.iter().map(|tokens| heads.count * tokens.len() * padded(tokens.len())).sum();
    cache.weights.resize(total, T::ZERO);
    cache.dropped.resize(if dropout.is_active() { total } else { 0 }, T::ZERO);
    for (tokens, head, range) in weight_matrices(heads, segments) {
        let (n, stride) = (tokens.len(), padded(tokens.len()));
        let weights = &mut cache.weights[range.clone()];
        let [q, k, v] = [0, 1, 2].map(|index| part(qkv, heads, &tokens, index, head));
        // Logits with keys in rows: `k q^T`.
        multiply(k, q.transposed(), Write::Set, MatrixMut::padded(weights, n, n, stride));
        softmax::forward_columns(stride, scale(heads), weights);
        let mut weights = &*weights;
        if dropout.is_active() {
            dropout.apply_into(range.start, weights, &mut cache.dropped[range.clone()]);
            weights = &cache.dropped[range];
        }
        let out = &mut out[tokens.start * width + head * heads.width..];
        let out = MatrixMut::strided(out, n, heads.width, width);
        multiply(Matrix::strided(weights, n, n, stride).transposed(), v, Write::Set, out);
    }
}

/// Backward pass of [`forward`]: sets `d_qkv`, the gradient of queries, keys and values, from `d_out`, that of the
/// output. `dropout` and `cache` are those of the forward pass.
///
/// # Panics
/// If the shapes differ from those of the forward pass.
pub fn backward<T: Real>(
    heads: Heads,
    segments: &[Range<usize>],
    dropout: Dropout,
    qkv: &[T],
    cache: &mut AttentionCache<T>,
    d_out: &[T],
    d_qkv: &mut [T],
) {
    let width = heads.count * heads.width;
    let AttentionCache { weights, dropped, d_weights } = cache;
    for (tokens, head, range) in weight_matrices(heads, segments) {
        let (n, stride) = (tokens.len(), padded(tokens.len()));
        let [q, k, v] = [0, 1, 2].map(|index| part(qkv, heads, &tokens, index, head));
        let d_out = &d_out[tokens.start * width + head * heads.width..];
        let d_out = Matrix::strided(d_out, n, heads.width, width);
        let weights = &weights[range.clone()];
        // The weights that the values were multiplied with.
        let used = if dropout.is_active() { &dropped[range] } else { weights };
        // Values: `out = used^T v`, so `d_v = used d_out`.
        let d_v = part_mut(d_qkv, heads, &tokens, 2, head);
        multiply(Matrix::strided(used, n, n, stride), d_out, Write::Set, d_v);
        // Weights: `d_weights = v d_out^T`, keys in rows like the weights.
        d_weights.resize(n * stride, T::ZERO);
        multiply(v, d_out.transposed(), Write::Set, MatrixMut::padded(d_weights, n, n, stride));
        if dropout.is_active() {
            // Softmax in f32 never returns 0, so a weight that is 0 was dropped.
            dropout.backward_from_output(used, d_weights);
        }
        softmax::backward_columns(stride, scale(heads), weights, d_weights);
        // `d_weights` is now the gradient of the products `k q^T`, with the factor `scale`: `d_q = d_logits^T k` and
        // `d_k = d_logits q`.
        let d_logits = Matrix::strided(d_weights, n, n, stride);
        multiply(d_logits.transposed(), k, Write::Set, part_mut(d_qkv, heads, &tokens, 0, head));
        multiply(d_logits, q, Write::Set, part_mut(d_qkv, heads, &tokens, 1, head));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::{TestRng, check_gradient};
    use crate::isa::Isa;
    use crate::real::dot;

    #[test]
    fn the_gradient_over_ragged_segments_agrees_with_central_differences() {
        let heads = Heads { count: 3, width: 5 };
        let segments = [0..4, 4..5, 5..22];
        for dropout in [Dropout::NONE, Dropout::new(0.3, 5)] {
            let mut rng = TestRng::new(8);
            let (qkv, d_out) = (rng.f64s(22 * 45), rng.f64s(22 * 15));
            let run = |qkv: &[f64]| {
                let (mut cache, mut out) = (AttentionCache::default(), vec![0.0; 22 * 15]);
                forward(heads, &segments, dropout, qkv, &mut cache, &mut out);
                (cache, out)
            };
            let (mut cache, _) = run(&qkv);
            let mut d_qkv = vec![3.0; qkv.len()];
            backward(heads, &segments, dropout, &qkv, &mut cache, &d_out, &mut d_qkv);
            check_gradient("qkv", &qkv, &d_qkv, |qkv| dot(&run(qkv).1, &d_out));
        }
    }

    #[test]
    fn segments_do_not_attend_to_each_other_on_any_instruction_set() {
        let heads = Heads { count: 2, width: 16 };
        let mut rng = TestRng::new(1);
        let qkv = rng.f32s(70 * 96);
        let run = |segments: &[Range<usize>], qkv: &[f32], out: &mut [f32]| {
            forward(heads, segments, Dropout::NONE, qkv, &mut AttentionCache::default(), out);
        };
        for isa in Isa::usable() {
            let (mut together, mut alone) = (vec![0.0; 70 * 32], vec![0.0; 70 * 32]);
            isa.scope(|| run(&[0..30, 30..70], &qkv, &mut together));
            for tokens in [0..30, 30..70] {
                let qkv = &qkv[tokens.start * 96..tokens.end * 96];
                let out = &mut alone[tokens.start * 32..tokens.end * 32];
                isa.scope(|| run(std::slice::from_ref(&(0..tokens.len())), qkv, out));
            }
            assert_eq!(together, alone, "{isa:?}");
        }
    }
}
