//! A look at the items themselves, in a head for one backbone: h P, normalised, with h the item minus the mean of
//! the training classes' features and at unit length, some of its numbers dropped in training, and P of D x V.
//!
//! The mean is that of the training data, not of the support set: what an item looks like must not depend on the
//! company it is in, and a number that was dropped stands for what it mostly is.
//!
//! What is seen may go into the states from the start, or, where that learns the training classes by heart, only
//! speak for "none of these" ([`Suspicion`]): relations cannot tell what an outlier looks like, but they do tell
//! classes apart.

use std::ops::Range;

use super::batch::Pass;
use super::buffer::Buffer;
use super::config::ItemView;
use super::parts::{Norm, Normed, Plan, Product, Start};
use super::prepare::Prepared;
use crate::isa::Isa;
use crate::kernel::kernel;
use crate::layers::activation::{gelu, gelu_backward};
use crate::layers::dropout::Dropout;
use crate::layers::linear::Linear;
use crate::layers::loss::square;
use crate::matmul::Write;
use crate::real::Real;

/// Where its parameters lie.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Glance {
    settings: ItemView,
    mean: Range<usize>,
    projection: Product,
    norm: Norm,
}

/// What was seen.
pub(super) struct Seen<T: Real> {
    /// Items x D.
    items: Buffer<T>,
    /// Items x V.
    normed: Normed<T>,
}

impl<T: Real> Seen<T> {
    /// Items x V.
    pub(super) fn view(&self) -> &[T] {
        &self.normed.out
    }
}

impl Glance {
    pub(super) fn new(plan: &mut Plan, settings: &ItemView) -> Self {
        Glance {
            settings: settings.clone(),
            mean: plan.constant("item.mean", settings.dim),
            projection: plan.product_from("item.projection", settings.dim, settings.width, Start::Orthogonal),
            norm: plan.norm("item.norm", settings.width),
        }
    }

    /// Where the mean of the training data lies.
    pub(super) fn mean(&self) -> Range<usize> {
        self.mean.clone()
    }

    /// Without a seed items are seen whole.
    pub(super) fn look<T: Real>(
        &self,
        pass: Pass<'_, T>,
        prepared: &Prepared<'_, T>,
        seed: Option<u64>,
    ) -> Seen<T> {
        let Pass { isa, parameters, batch } = pass;
        let dim = self.settings.dim;
        let dropout = seed.map_or(Dropout::NONE, |seed| Dropout::new(self.settings.dropout, seed));
        let mut items = Buffer::new(batch.items * dim);
        let mean = &parameters[self.mean.clone()];
        let rows = prepared.rows.iter().flat_map(|rows| rows.iter());
        for (row, out) in rows.zip(items.chunks_exact_mut(dim)) {
            place(isa, row, mean, out);
        }
        dropout.apply(isa, 0, &mut items);
        let mut projected = Buffer::new(batch.items * self.settings.width);
        self.projection.forward(isa, parameters, &items, Write::Set, &mut projected);
        let normed = self.norm.forward(isa, parameters, &projected);
        Seen { items, normed }
    }

    pub(super) fn backward<T: Real>(
        &self,
        isa: Isa,
        parameters: &[T],
        seen: &Seen<T>,
        d_view: &[T],
        gradient: &mut [T],
    ) {
        let mut d_projected = Buffer::new(d_view.len());
        self.norm.backward(isa, parameters, &seen.normed, d_view, gradient, &mut d_projected);
        self.projection.backward(isa, parameters, &seen.items, &d_projected, gradient, None);
    }
}

/// What an item's own look says for "none of these".
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Suspicion {
    glance: Glance,
    hidden: Linear,
    out: Product,
    width: usize,
}

/// What the way back needs.
pub(super) struct Suspected<T: Real> {
    seen: Seen<T>,
    hidden: Buffer<T>,
    bent: Buffer<T>,
}

impl Suspicion {
    /// Where the mean of the training data lies.
    pub(super) fn mean(&self) -> Range<usize> {
        self.glance.mean()
    }

    pub(super) fn new(plan: &mut Plan, settings: &ItemView, width: usize) -> Self {
        Suspicion {
            glance: Glance::new(plan, settings),
            hidden: plan.dense("item.hidden", settings.width, width, settings.width),
            out: plan.product_from("item.out", width, 1, Start::Fill(0.0)),
            width,
        }
    }

    /// Adds to the evidence for "none" of every item.
    pub(super) fn forward<T: Real>(
        &self,
        pass: Pass<'_, T>,
        prepared: &Prepared<'_, T>,
        seed: Option<u64>,
        none: &mut [T],
    ) -> Suspected<T> {
        let Pass { isa, parameters, batch } = pass;
        let seen = self.glance.look(pass, prepared, seed);
        let mut hidden = Buffer::new(batch.items * self.width);
        self.hidden.forward(isa, parameters, seen.view(), &mut hidden);
        let mut bent = Buffer::new(hidden.len());
        gelu(isa, &hidden, &mut bent);
        self.out.forward(isa, parameters, &bent, Write::Add, none);
        Suspected { seen, hidden, bent }
    }

    pub(super) fn backward<T: Real>(
        &self,
        pass: Pass<'_, T>,
        kept: &Suspected<T>,
        d_none: &[T],
        gradient: &mut [T],
    ) {
        let Pass { isa, parameters, .. } = pass;
        let mut d_hidden = Buffer::new(kept.hidden.len());
        let into = Some((Write::Set, &mut *d_hidden));
        self.out.backward(isa, parameters, &kept.bent, d_none, gradient, into);
        gelu_backward(isa, &kept.hidden, &mut d_hidden);
        self.hidden.backward_parameters(isa, kept.seen.view(), &d_hidden, gradient);
        let mut d_view = Buffer::new(kept.seen.view().len());
        self.hidden.backward_input(isa, parameters, &d_hidden, Write::Set, &mut d_view);
        self.glance.backward(isa, parameters, &kept.seen, &d_view, gradient);
    }
}

/// An item minus the mean, at unit length; one that is the mean itself is zero.
fn place<T: Real>(isa: Isa, row: &[T], mean: &[T], out: &mut [T]) {
    subtract(isa, row, mean, out);
    let length = square(isa, out).sqrt();
    if length > T::ZERO {
        multiply(isa, T::ONE / length, out);
    }
}

kernel! {
    fn subtract<'a, T>(row: &'a [T], mean: &'a [T], out: &'a mut [T]) {
        for ((out, &value), &mean) in out.iter_mut().zip(row).zip(mean) {
            *out = value - mean;
        }
    }
}

kernel! {
    fn multiply<'a, T>(factor: T, numbers: &'a mut [T]) {
        numbers.iter_mut().for_each(|number| *number *= factor);
    }
}
