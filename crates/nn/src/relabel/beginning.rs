//! The states before the first layer: a network over what labels and relations say (see [`super::start`]) and, in
//! a head for one backbone, over a view of the item itself.
//!
//! The view is h P, normalised: h the item in the episode's space with some of its numbers dropped, P of D x V.
//! It goes through the first weight once for every item, not once for every state.

use std::ops::Range;

use super::batch::{Pass, numbers};
use super::buffer::Buffer;
use super::config::{Config, ItemView};
use super::parts::{Dense, Norm, Normed, Plan, Product, Start};
use super::pooling::{hand_out, hand_out_backward};
use super::prepare::Prepared;
use super::space::Space;
use super::start::START_FEATURES;
use crate::isa::Isa;
use crate::kernel::kernel;
use crate::layers::activation::{gelu, gelu_backward};
use crate::layers::dropout::Dropout;
use crate::layers::linear::add_columns;
use crate::matmul::Write;
use crate::real::Real;

/// Where its parameters lie.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Beginning {
    width: usize,
    view: Option<View>,
    of_features: Product,
    bias: Range<usize>,
    out: Dense,
}

/// The part that sees items.
#[derive(Debug, Clone, PartialEq)]
struct View {
    settings: ItemView,
    projection: Product,
    norm: Norm,
    of_view: Product,
}

/// What the way back needs.
pub(super) struct Begun<T: Real> {
    /// Items x D and items x V, if items are seen.
    seen: Option<(Buffer<T>, Normed<T>)>,
    hidden: Buffer<T>,
    bent: Buffer<T>,
}

impl Beginning {
    pub(super) fn new(plan: &mut Plan, config: &Config) -> Self {
        let width = config.width;
        let fan_in = START_FEATURES + config.item_view.as_ref().map_or(0, |view| view.width);
        let view = config.item_view.as_ref().map(|settings| View {
            settings: settings.clone(),
            projection: plan.product_from("item.projection", settings.dim, settings.width, Start::Orthogonal),
            norm: plan.norm("item.norm", settings.width),
            of_view: plan.product("start.item", settings.width, width, fan_in),
        });
        Beginning {
            width,
            view,
            of_features: plan.product("start.features", START_FEATURES, width, fan_in),
            bias: plan.add("start.bias".into(), &[width], Start::Fill(0.0)),
            out: plan.dense("start.out", width, width, width),
        }
    }

    /// The states, and what was kept. Without a seed items are seen whole.
    pub(super) fn forward<T: Real>(
        &self,
        pass: Pass<'_, T>,
        prepared: &Prepared<'_, T>,
        seed: Option<u64>,
    ) -> (Buffer<T>, Begun<T>) {
        let Pass { isa, parameters, batch } = pass;
        let mut hidden = Buffer::new(batch.states * self.width);
        let bias = &parameters[self.bias.clone()];
        let seen = self.view.as_ref().map(|view| view.look(pass, prepared, seed));
        match (&self.view, &seen) {
            (Some(view), Some((_, normed))) => {
                let mut of_items = Buffer::new(batch.items * self.width);
                view.of_view.forward(isa, parameters, &normed.out, Write::Set, &mut of_items);
                for place in &batch.places {
                    let biases = bias.repeat(place.classes);
                    let of_items = &of_items[numbers(place.items(), self.width)];
                    let hidden = &mut hidden[numbers(place.states(), self.width)];
                    hand_out(isa, place, self.width, of_items, &biases, hidden);
                }
            }
            _ => hidden.chunks_exact_mut(bias.len()).for_each(|row| row.copy_from_slice(bias)),
        }
        self.of_features.forward(isa, parameters, &prepared.start_features, Write::Add, &mut hidden);
        let (mut bent, mut states) = (Buffer::new(hidden.len()), Buffer::new(hidden.len()));
        gelu(isa, &hidden, &mut bent);
        self.out.forward(isa, parameters, &bent, &mut states);
        (states, Begun { seen, hidden, bent })
    }

    pub(super) fn backward<T: Real>(
        &self,
        pass: Pass<'_, T>,
        prepared: &Prepared<'_, T>,
        kept: &Begun<T>,
        d_states: &[T],
        gradient: &mut [T],
    ) {
        let Pass { isa, parameters, batch } = pass;
        let mut d_hidden = Buffer::new(kept.hidden.len());
        self.out.backward(isa, parameters, &kept.bent, d_states, gradient, &mut d_hidden);
        gelu_backward(isa, &kept.hidden, &mut d_hidden);
        self.of_features.backward(isa, parameters, &prepared.start_features, &d_hidden, gradient, None);
        add_columns(isa, &d_hidden, &mut gradient[self.bias.clone()]);
        let (Some(view), Some(seen)) = (&self.view, &kept.seen) else { return };
        let mut d_of_items = Buffer::new(batch.items * self.width);
        for place in &batch.places {
            let mut d_of_classes = Buffer::new(place.classes * self.width);
            let d_of_items = &mut d_of_items[numbers(place.items(), self.width)];
            let d_hidden = &d_hidden[numbers(place.states(), self.width)];
            hand_out_backward(isa, place, self.width, d_hidden, d_of_items, &mut d_of_classes);
        }
        view.backward(isa, parameters, seen, &d_of_items, gradient);
    }
}

impl View {
    /// The items as they are seen, and the normalised view.
    fn look<T: Real>(
        &self,
        pass: Pass<'_, T>,
        prepared: &Prepared<'_, T>,
        seed: Option<u64>,
    ) -> (Buffer<T>, Normed<T>) {
        let Pass { isa, parameters, batch } = pass;
        let dim = self.settings.dim;
        let dropout = seed.map_or(Dropout::NONE, |seed| Dropout::new(self.settings.dropout, seed));
        let mut seen = Buffer::new(batch.items * dim);
        let mut rest = &mut seen[..];
        for (rows, space) in prepared.rows.iter().zip(&prepared.spaces) {
            let (own, others) = rest.split_at_mut(rows.len() * dim);
            place_rows(isa, rows, space, own);
            rest = others;
        }
        dropout.apply(isa, 0, &mut seen);
        let mut projected = Buffer::new(batch.items * self.settings.width);
        self.projection.forward(isa, parameters, &seen, Write::Set, &mut projected);
        let normed = self.norm.forward(isa, parameters, &projected);
        (seen, normed)
    }

    fn backward<T: Real>(
        &self,
        isa: Isa,
        parameters: &[T],
        (seen, normed): &(Buffer<T>, Normed<T>),
        d_of_items: &[T],
        gradient: &mut [T],
    ) {
        let mut d_normed = Buffer::new(normed.out.len());
        let into = Some((Write::Set, &mut *d_normed));
        self.of_view.backward(isa, parameters, &normed.out, d_of_items, gradient, into);
        let mut d_projected = Buffer::new(d_normed.len());
        self.norm.backward(isa, parameters, normed, &d_normed, gradient, &mut d_projected);
        self.projection.backward(isa, parameters, seen, &d_projected, gradient, None);
    }
}

/// The rows of one episode in its space.
fn place_rows<T: Real>(isa: Isa, rows: &[&[T]], space: &Space<T>, out: &mut [T]) {
    let Some(dim) = rows.first().map(|row| row.len()) else { return };
    let mut mean = vec![T::ZERO; dim];
    if space.is_centred() {
        let share = T::of(1.0 / rows.len() as f64);
        rows.iter().for_each(|row| add_share(isa, row, share, &mut mean));
    }
    for (i, (row, out)) in rows.iter().zip(out.chunks_exact_mut(dim)).enumerate() {
        shift_and_scale(isa, row, &mean, space.scale(i), out);
    }
}

kernel! {
    fn add_share<'a, T>(row: &'a [T], share: T, mean: &'a mut [T]) {
        for (mean, &value) in mean.iter_mut().zip(row) {
            *mean += share * value;
        }
    }
}

kernel! {
    fn shift_and_scale<'a, T>(row: &'a [T], mean: &'a [T], scale: T, out: &'a mut [T]) {
        for ((out, &value), &mean) in out.iter_mut().zip(row).zip(mean) {
            *out = (value - mean) * scale;
        }
    }
}
