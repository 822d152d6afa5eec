//! The states before the first layer: a network over what labels and relations say (see [`super::start`]) and, in
//! a head for one backbone, over a view of the item itself.
//!
//! The view (see [`super::glance`]) goes through the first weight once for every item, not once for every state.

use std::ops::Range;

use super::batch::{Pass, numbers};
use super::buffer::Buffer;
use super::config::{Config, Reach};
use super::glance::{Glance, Seen};
use super::parts::{Plan, Product};
use super::pooling::{add_to_states, add_to_states_backward};
use super::prepare::Prepared;
use super::start::START_FEATURES;
use crate::layers::activation::{gelu, gelu_backward};
use crate::layers::linear::Linear;
use crate::matmul::Write;
use crate::real::Real;

/// Where its parameters lie.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Beginning {
    width: usize,
    view: Option<View>,
    of_features: Linear,
    out: Linear,
}

/// The part that sees items.
#[derive(Debug, Clone, PartialEq)]
struct View {
    glance: Glance,
    of_view: Product,
}

/// What the way back needs.
pub(super) struct Begun<T: Real> {
    seen: Option<Seen<T>>,
    hidden: Buffer<T>,
    bent: Buffer<T>,
}

impl Beginning {
    pub(super) fn new(plan: &mut Plan, config: &Config) -> Self {
        let width = config.width;
        let seen = config.item_view.as_ref().filter(|view| view.reach == Reach::States);
        let fan_in = START_FEATURES + seen.map_or(0, |view| view.width);
        let view = seen.map(|settings| View {
            glance: Glance::new(plan, settings),
            of_view: plan.product("start.item", settings.width, width, fan_in),
        });
        Beginning {
            width,
            view,
            of_features: plan.dense("start.features", START_FEATURES, width, fan_in),
            out: plan.dense("start.out", width, width, width),
        }
    }

    /// Where the mean of the training data lies, if items are seen from here.
    pub(super) fn mean(&self) -> Option<Range<usize>> {
        self.view.as_ref().map(|view| view.glance.mean())
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
        self.of_features.forward(isa, parameters, &prepared.start_features, &mut hidden);
        let seen = self.view.as_ref().map(|view| {
            let seen = view.glance.look(pass, prepared, seed);
            let mut of_items = Buffer::new(batch.items * self.width);
            view.of_view.forward(isa, parameters, seen.view(), Write::Set, &mut of_items);
            for place in &batch.places {
                let of_items = &of_items[numbers(place.items(), self.width)];
                add_to_states(
                    isa,
                    place,
                    self.width,
                    of_items,
                    &mut hidden[numbers(place.states(), self.width)],
                );
            }
            seen
        });
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
        self.out.backward_parameters(isa, &kept.bent, d_states, gradient);
        self.out.backward_input(isa, parameters, d_states, Write::Set, &mut d_hidden);
        gelu_backward(isa, &kept.hidden, &mut d_hidden);
        self.of_features.backward_parameters(isa, &prepared.start_features, &d_hidden, gradient);
        let (Some(view), Some(seen)) = (&self.view, &kept.seen) else { return };
        let mut d_of_items = Buffer::new(batch.items * self.width);
        for place in &batch.places {
            let d_of_items = &mut d_of_items[numbers(place.items(), self.width)];
            let d_hidden = &d_hidden[numbers(place.states(), self.width)];
            add_to_states_backward(isa, place, self.width, d_hidden, d_of_items);
        }
        let mut d_view = Buffer::new(seen.view().len());
        let into = Some((Write::Set, &mut *d_view));
        view.of_view.backward(isa, parameters, seen.view(), &d_of_items, gradient, into);
        view.glance.backward(isa, parameters, seen, &d_view, gradient);
    }
}
