//! Attention from items to items, by several heads, of one episode.
//!
//! M items, C classes, H heads of W / H numbers each. How much item i listens to item j is one number a head for
//! all classes: the product of i's query and j's key plus what the edge network says of the pair, a softmax over
//! j. What is heard is the value of j at class c, for each c on its own.
//!
//! A head's numbers of all classes are copied together first, so that listening is one product of matrices,
//! M x M times M x (C W / H).

use super::batch::Place;
use crate::isa::Isa;
use crate::kernel::kernel;
use crate::matmul::{View, ViewMut, Write, multiply};
use crate::real::{Real, dot, max_of, sum};

/// Widths of a layer's attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) width: usize,
    pub(super) heads: usize,
}

impl Shape {
    fn head_width(self) -> usize {
        self.width / self.heads
    }

    /// What products of queries and keys are multiplied by.
    fn scale<T: Real>(self) -> T {
        T::from_f64((self.head_width() as f64).sqrt().recip())
    }
}

/// What attention reads, of one episode.
#[derive(Clone, Copy)]
pub(super) struct Inputs<'a, T> {
    /// M x W
    pub(super) queries: &'a [T],
    /// M x W
    pub(super) keys: &'a [T],
    /// M C x W
    pub(super) values: &'a [T],
}

/// Gradients of the same, written.
pub(super) struct Gradients<'a, T> {
    pub(super) queries: &'a mut [T],
    pub(super) keys: &'a mut [T],
    pub(super) values: &'a mut [T],
}

/// Room for what is needed only while an episode is worked on.
#[derive(Debug, Default)]
pub(super) struct Scratch<T> {
    values: Vec<T>,
    out: Vec<T>,
    pairs: Vec<T>,
}

/// `out` (M C x W) is what every state hears. `shares` holds, for every head, the edge network's logits of the
/// pairs (M x M) and is turned into the shares of attention.
pub(super) fn attend<T: Real>(
    isa: Isa,
    place: &Place,
    shape: Shape,
    inputs: Inputs<'_, T>,
    shares: &mut [&mut [T]],
    out: &mut [T],
    scratch: &mut Scratch<T>,
) {
    let (items, part) = (place.items, shape.head_width());
    let row = place.classes * part;
    scratch.values.resize(items * row, T::ZERO);
    scratch.out.resize(items * row, T::ZERO);
    scratch.pairs.resize(items * items, T::ZERO);
    for (head, shares) in shares.iter_mut().enumerate() {
        multiply(
            isa,
            of_head(inputs.queries, items, shape, head),
            of_head(inputs.keys, items, shape, head).transposed(),
            Write::Set,
            ViewMut::new(&mut scratch.pairs, items, items),
        );
        softmax_rows(isa, items, shape.scale(), &scratch.pairs, shares);
        gather(isa, shape.width, head * part, part, inputs.values, &mut scratch.values);
        multiply(
            isa,
            View::new(shares, items, items),
            View::new(&scratch.values, items, row),
            Write::Set,
            ViewMut::new(&mut scratch.out, items, row),
        );
        scatter(isa, shape.width, head * part, part, &scratch.out, out);
    }
}

/// `d_logits` (M x M for every head) receives the gradient of the edge network's logits.
#[allow(clippy::too_many_arguments)]
pub(super) fn attend_backward<T: Real>(
    isa: Isa,
    place: &Place,
    shape: Shape,
    inputs: Inputs<'_, T>,
    shares: &[&[T]],
    d_out: &[T],
    d_inputs: Gradients<'_, T>,
    d_logits: &mut [&mut [T]],
    scratch: &mut Scratch<T>,
) {
    let (items, part) = (place.items, shape.head_width());
    let row = place.classes * part;
    scratch.values.resize(items * row, T::ZERO);
    scratch.out.resize(items * row, T::ZERO);
    scratch.pairs.resize(items * items, T::ZERO);
    for (head, (shares, d_logits)) in shares.iter().zip(d_logits).enumerate() {
        gather(isa, shape.width, head * part, part, inputs.values, &mut scratch.values);
        gather(isa, shape.width, head * part, part, d_out, &mut scratch.out);
        let d_heard = View::new(&scratch.out, items, row);
        let values = View::new(&scratch.values, items, row);
        multiply(isa, d_heard, values.transposed(), Write::Set, ViewMut::new(d_logits, items, items));
        let listening = View::new(shares, items, items).transposed();
        multiply(isa, listening, d_heard, Write::Set, ViewMut::new(&mut scratch.values, items, row));
        scatter(isa, shape.width, head * part, part, &scratch.values, d_inputs.values);
        softmax_rows_backward(isa, items, shape.scale(), shares, d_logits, &mut scratch.pairs);
        let d_pairs = View::new(&scratch.pairs, items, items);
        let keys = of_head(inputs.keys, items, shape, head);
        multiply(isa, d_pairs, keys, Write::Set, of_head_mut(d_inputs.queries, items, shape, head));
        let queries = of_head(inputs.queries, items, shape, head);
        let d_keys = of_head_mut(d_inputs.keys, items, shape, head);
        multiply(isa, d_pairs.transposed(), queries, Write::Set, d_keys);
    }
}

fn of_head<T>(rows: &[T], items: usize, shape: Shape, head: usize) -> View<'_, T> {
    let part = shape.head_width();
    View::strided(&rows[head * part..], items, part, shape.width)
}

fn of_head_mut<T>(rows: &mut [T], items: usize, shape: Shape, head: usize) -> ViewMut<'_, T> {
    let part = shape.head_width();
    ViewMut::strided(&mut rows[head * part..], items, part, shape.width)
}

kernel! {
    /// Copies `part` numbers from place `from` of every row of `width` together.
    fn gather<'a, T>(width: usize, from: usize, part: usize, rows: &'a [T], out: &'a mut [T]) {
        for (row, out) in rows.chunks_exact(width).zip(out.chunks_exact_mut(part)) {
            out.copy_from_slice(&row[from..from + part]);
        }
    }
}

kernel! {
    /// Copies them back.
    fn scatter<'a, T>(width: usize, from: usize, part: usize, parts: &'a [T], rows: &'a mut [T]) {
        for (row, parts) in rows.chunks_exact_mut(width).zip(parts.chunks_exact(part)) {
            row[from..from + part].copy_from_slice(parts);
        }
    }
}

kernel! {
    /// `shares = softmax(scale products + shares)`, row by row.
    fn softmax_rows<'a, T>(items: usize, scale: T, products: &'a [T], shares: &'a mut [T]) {
        for (products, row) in products.chunks_exact(items).zip(shares.chunks_exact_mut(items)) {
            for (logit, &product) in row.iter_mut().zip(products) {
                *logit += scale * product;
            }
            let highest = max_of(row, row[0]);
            for value in row.iter_mut() {
                *value = (*value - highest).exp();
            }
            let scale = T::ONE / sum(row);
            for value in row.iter_mut() {
                *value *= scale;
            }
        }
    }
}

kernel! {
    /// Turns the gradient of the shares into that of their logits, in place; `d_products` is `scale` times that.
    fn softmax_rows_backward<'a, T>(
        items: usize,
        scale: T,
        shares: &'a [T],
        d_shares: &'a mut [T],
        d_products: &'a mut [T],
    ) {
        let rows = shares.chunks_exact(items).zip(d_shares.chunks_exact_mut(items));
        for ((shares, d_shares), d_products) in rows.zip(d_products.chunks_exact_mut(items)) {
            let mean = dot(shares, d_shares);
            for ((d_share, &share), d_product) in d_shares.iter_mut().zip(shares).zip(d_products) {
                let d_logit = share * (*d_share - mean);
                *d_share = d_logit;
                *d_product = scale * d_logit;
            }
        }
    }
}
