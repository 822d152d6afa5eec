//! Multi-head self-attention within segments: a batch is a list of token sets of any sizes.
//!
//! Shapes: T tokens in all, segment s holds n of them; `qkv` T x 3 W (queries, keys, values, each H heads one
//! behind the other), `out` T x W. For every segment and head, `shares` holds a square of n rows of n numbers,
//! padded to whole vectors ([`padded`]), the tokens that look in columns and those looked at in rows: softmax is
//! fastest down the columns, and the products take it either way.

use std::ops::Range;

use crate::isa::Isa;
use crate::layers::dropout::Dropout;
use crate::layers::softmax;
use crate::matmul::{View, ViewMut, Write, multiply};
use crate::real::{LANES, Real};

/// The shape of the heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Heads {
    /// How many.
    pub count: usize,
    /// Numbers of a query, key or value.
    pub width: usize,
}

/// What the backward pass needs, and room to work in. Reused from call to call.
#[derive(Debug, Clone, Default)]
pub struct Kept<T> {
    /// For every segment and head, a padded square of shares: column i says where token i looks.
    pub shares: Vec<T>,
    /// The same with some dropped, if any are.
    dropped: Vec<T>,
    d_shares: Vec<T>,
}

/// How far apart the rows of a square of shares are.
pub fn padded(tokens: usize) -> usize {
    tokens.next_multiple_of(LANES)
}

/// Where each head of each segment finds its square.
fn squares(
    heads: Heads,
    segments: &[Range<usize>],
) -> impl Iterator<Item = (Range<usize>, usize, Range<usize>)> {
    let mut start = 0;
    segments.iter().flat_map(move |tokens| {
        let size = tokens.len() * padded(tokens.len());
        let first = start;
        start += heads.count * size;
        (0..heads.count)
            .map(move |head| (tokens.clone(), head, first + head * size..first + (head + 1) * size))
    })
}

/// One of the three parts of `qkv`, for one head of one segment.
fn part<'a, T>(qkv: &'a [T], heads: Heads, tokens: &Range<usize>, part: usize, head: usize) -> View<'a, T> {
    let stride = 3 * heads.count * heads.width;
    let start = tokens.start * stride + (part * heads.count + head) * heads.width;
    View::strided(&qkv[start..], tokens.len(), heads.width, stride)
}

fn part_mut<'a, T>(
    qkv: &'a mut [T],
    heads: Heads,
    tokens: &Range<usize>,
    part: usize,
    head: usize,
) -> ViewMut<'a, T> {
    let stride = 3 * heads.count * heads.width;
    let start = tokens.start * stride + (part * heads.count + head) * heads.width;
    ViewMut::strided(&mut qkv[start..], tokens.len(), heads.width, stride)
}

fn scale<T: Real>(heads: Heads) -> T {
    T::from_f64(1.0 / (heads.width as f64).sqrt())
}

/// `out = dropout(softmax(q k^T / sqrt(width))) v`, for each head.
///
/// # Panics
/// If the segments do not fit `qkv` and `out`.
pub fn forward<T: Real>(
    isa: Isa,
    heads: Heads,
    segments: &[Range<usize>],
    dropout: Dropout,
    qkv: &[T],
    kept: &mut Kept<T>,
    out: &mut [T],
) {
    let width = heads.count * heads.width;
    let total: usize = segments.iter().map(|tokens| heads.count * tokens.len() * padded(tokens.len())).sum();
    kept.shares.resize(total, T::ZERO);
    kept.dropped.resize(if dropout.is_on() { total } else { 0 }, T::ZERO);
    for (tokens, head, square) in squares(heads, segments) {
        let (n, stride) = (tokens.len(), padded(tokens.len()));
        let shares = &mut kept.shares[square.clone()];
        let [q, k, v] = [0, 1, 2].map(|which| part(qkv, heads, &tokens, which, head));
        multiply(isa, k, q.transposed(), Write::Set, ViewMut::padded(shares, n, n, stride));
        softmax::forward_columns(isa, stride, scale(heads), shares);
        let mut looks = &*shares;
        if dropout.is_on() {
            dropout.copy(isa, square.start, shares, &mut kept.dropped[square.clone()]);
            looks = &kept.dropped[square];
        }
        let out = &mut out[tokens.start * width + head * heads.width..];
        let out = ViewMut::strided(out, n, heads.width, width);
        multiply(isa, View::strided(looks, n, n, stride).transposed(), v, Write::Set, out);
    }
}

/// Sets the gradient of `qkv`.
///
/// # Panics
/// If the shapes differ from those of the forward pass.
#[allow(clippy::too_many_arguments)]
pub fn backward<T: Real>(
    isa: Isa,
    heads: Heads,
    segments: &[Range<usize>],
    dropout: Dropout,
    qkv: &[T],
    kept: &mut Kept<T>,
    d_out: &[T],
    d_qkv: &mut [T],
) {
    let width = heads.count * heads.width;
    let Kept { shares, dropped, d_shares } = kept;
    for (tokens, head, square) in squares(heads, segments) {
        let (n, stride) = (tokens.len(), padded(tokens.len()));
        let [q, k, v] = [0, 1, 2].map(|which| part(qkv, heads, &tokens, which, head));
        let d_out = &d_out[tokens.start * width + head * heads.width..];
        let d_out = View::strided(d_out, n, heads.width, width);
        let shares = &shares[square.clone()];
        let looks = if dropout.is_on() { &dropped[square] } else { shares };
        let looked = View::strided(looks, n, n, stride);
        multiply(isa, looked, d_out, Write::Set, part_mut(d_qkv, heads, &tokens, 2, head));
        d_shares.resize(n * stride, T::ZERO);
        multiply(isa, v, d_out.transposed(), Write::Set, ViewMut::padded(d_shares, n, n, stride));
        if dropout.is_on() {
            // A share is never 0, so those that are have been dropped.
            dropout.backward_positive(isa, looks, d_shares);
        }
        softmax::backward_columns(isa, stride, scale(heads), shares, d_shares);
        let d_logits = View::strided(d_shares, n, n, stride);
        multiply(isa, d_logits.transposed(), k, Write::Set, part_mut(d_qkv, heads, &tokens, 0, head));
        multiply(isa, d_logits, q, Write::Set, part_mut(d_qkv, heads, &tokens, 1, head));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differences::{Numbers, check};
    use crate::real::dot;

    #[test]
    fn the_gradient_over_ragged_segments_is_that_of_central_differences() {
        let heads = Heads { count: 3, width: 5 };
        let segments = [0..4, 4..5, 5..22];
        for dropout in [Dropout::NONE, Dropout::new(0.3, 5)] {
            let mut numbers = Numbers::new(8);
            let (qkv, d_out) = (numbers.doubles(22 * 45), numbers.doubles(22 * 15));
            let isa = Isa::current();
            let run = |qkv: &[f64]| {
                let (mut kept, mut out) = (Kept::default(), vec![0.0; 22 * 15]);
                forward(isa, heads, &segments, dropout, qkv, &mut kept, &mut out);
                (kept, out)
            };
            let (mut kept, _) = run(&qkv);
            let mut d_qkv = vec![3.0; qkv.len()];
            backward(isa, heads, &segments, dropout, &qkv, &mut kept, &d_out, &mut d_qkv);
            check("qkv", &qkv, &d_qkv, |qkv| dot(&run(qkv).1, &d_out));
        }
    }

    #[test]
    fn segments_do_not_see_each_other_on_any_instruction_set() {
        let heads = Heads { count: 2, width: 16 };
        let mut numbers = Numbers::new(1);
        let qkv = numbers.singles(70 * 96);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_usable()) {
            let (mut together, mut alone) = (vec![0.0; 70 * 32], vec![0.0; 70 * 32]);
            forward(isa, heads, &[0..30, 30..70], Dropout::NONE, &qkv, &mut Kept::default(), &mut together);
            for tokens in [0..30, 30..70] {
                let (qkv, out) = (
                    &qkv[tokens.start * 96..tokens.end * 96],
                    &mut alone[tokens.start * 32..tokens.end * 32],
                );
                forward(
                    isa,
                    heads,
                    std::slice::from_ref(&(0..tokens.len())),
                    Dropout::NONE,
                    qkv,
                    &mut Kept::default(),
                    out,
                );
            }
            assert_eq!(together, alone, "{isa:?}");
        }
    }
}
