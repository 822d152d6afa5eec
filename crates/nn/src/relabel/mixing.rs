//! The second half of a layer: every state takes counsel with the others of its item and of its class.
//!
//! A network of one hidden layer over the normalised state, the mean and maximum over the item's classes, and the
//! mean over the items filed under the class. The first weight is kept in three parts: what depends on the item or
//! the class alone goes through once for each of them, not once for every state.

use super::batch::{Pass, numbers};
use super::buffer::Buffer;
use super::parts::{Norm, Normed, Plan, Product};
use super::pooling::{
    add_all, hand_out, hand_out_backward, mean_and_maximum, mean_and_maximum_backward, means_of_members,
    means_of_members_backward,
};
use crate::layers::activation::{gelu, gelu_backward};
use crate::layers::linear::Linear;
use crate::matmul::Write;
use crate::real::Real;

/// Where its parameters lie.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Mixing {
    width: usize,
    hidden: usize,
    norm: Norm,
    of_state: Product,
    of_item: Product,
    of_class: Linear,
    out: Product,
}

/// What the way back needs.
pub(super) struct Mixed<T: Real> {
    states: Normed<T>,
    /// Items x 2 W: means and maxima.
    summaries: Buffer<T>,
    /// Items x W: where the maxima were.
    highest: Vec<u32>,
    /// Classes x W
    members: Buffer<T>,
    /// States x H, before the bend and after it.
    hidden: Buffer<T>,
    bent: Buffer<T>,
}

impl Mixing {
    pub(super) fn new(plan: &mut Plan, name: &str, width: usize, hidden: usize) -> Self {
        Mixing {
            width,
            hidden,
            norm: plan.norm(&format!("{name}.norm"), width),
            of_state: plan.product(&format!("{name}.state"), width, hidden, 4 * width),
            of_item: plan.product(&format!("{name}.item"), 2 * width, hidden, 4 * width),
            of_class: plan.dense(&format!("{name}.class"), width, hidden, 4 * width),
            out: plan.product(&format!("{name}.out"), hidden, width, hidden),
        }
    }

    /// Adds to `states`.
    pub(super) fn forward<T: Real>(&self, pass: Pass<'_, T>, states: &mut [T]) -> Mixed<T> {
        let Pass { isa, parameters, batch } = pass;
        let mut kept = self.summaries(pass, self.norm.forward(isa, parameters, states));
        let mut of_items = Buffer::new(batch.items * self.hidden);
        let mut of_classes = Buffer::new(batch.class_rows * self.hidden);
        self.of_item.forward(isa, parameters, &kept.summaries, Write::Set, &mut of_items);
        self.of_class.forward(isa, parameters, &kept.members, &mut of_classes);
        for place in &batch.places {
            let of_items = &of_items[numbers(place.items(), self.hidden)];
            let of_classes = &of_classes[numbers(place.class_rows(), self.hidden)];
            let hidden = &mut kept.hidden[numbers(place.states(), self.hidden)];
            hand_out(isa, place, self.hidden, of_items, of_classes, hidden);
        }
        self.of_state.forward(isa, parameters, &kept.states.out, Write::Add, &mut kept.hidden);
        gelu(isa, &kept.hidden, &mut kept.bent);
        self.out.forward(isa, parameters, &kept.bent, Write::Add, states);
        kept
    }

    fn summaries<T: Real>(&self, pass: Pass<'_, T>, states: Normed<T>) -> Mixed<T> {
        let Pass { isa, batch, .. } = pass;
        let width = self.width;
        let mut summaries = Buffer::new(batch.items * 2 * width);
        let mut highest = vec![0; batch.items * width];
        let mut members = Buffer::new(batch.class_rows * width);
        for place in &batch.places {
            let states = &states.out[numbers(place.states(), width)];
            let out = &mut summaries[numbers(place.items(), 2 * width)];
            mean_and_maximum(isa, place, width, states, out, &mut highest[numbers(place.items(), width)]);
            means_of_members(isa, place, width, states, &mut members[numbers(place.class_rows(), width)]);
        }
        let room = || Buffer::new(batch.states * self.hidden);
        Mixed { states, summaries, highest, members, hidden: room(), bent: room() }
    }

    /// Turns the gradient of the states after into that of the states before, in place.
    pub(super) fn backward<T: Real>(
        &self,
        pass: Pass<'_, T>,
        kept: &Mixed<T>,
        d_states: &mut [T],
        gradient: &mut [T],
    ) {
        let Pass { isa, parameters, batch } = pass;
        let width = self.width;
        let mut d_hidden = Buffer::new(kept.hidden.len());
        let into = Some((Write::Set, &mut *d_hidden));
        self.out.backward(isa, parameters, &kept.bent, d_states, gradient, into);
        gelu_backward(isa, &kept.hidden, &mut d_hidden);
        let mut d_normed = Buffer::new(d_states.len());
        let into = Some((Write::Set, &mut *d_normed));
        self.of_state.backward(isa, parameters, &kept.states.out, &d_hidden, gradient, into);
        let (d_summaries, d_members) = self.summaries_backward(pass, kept, &d_hidden, gradient);
        for place in &batch.places {
            let d_normed = &mut d_normed[numbers(place.states(), width)];
            let d_out = &d_summaries[numbers(place.items(), 2 * width)];
            let highest = &kept.highest[numbers(place.items(), width)];
            mean_and_maximum_backward(isa, place, width, d_out, highest, d_normed);
            let d_members = &d_members[numbers(place.class_rows(), width)];
            means_of_members_backward(isa, place, width, d_members, d_normed);
        }
        let mut d_before = Buffer::new(d_states.len());
        self.norm.backward(isa, parameters, &kept.states, &d_normed, gradient, &mut d_before);
        add_all(isa, d_states, &d_before);
    }

    /// Gradients of the items' summaries and of the means over members.
    fn summaries_backward<T: Real>(
        &self,
        pass: Pass<'_, T>,
        kept: &Mixed<T>,
        d_hidden: &[T],
        gradient: &mut [T],
    ) -> (Buffer<T>, Buffer<T>) {
        let Pass { isa, parameters, batch } = pass;
        let mut d_of_items = Buffer::new(batch.items * self.hidden);
        let mut d_of_classes = Buffer::new(batch.class_rows * self.hidden);
        for place in &batch.places {
            let d_hidden = &d_hidden[numbers(place.states(), self.hidden)];
            let d_of_items = &mut d_of_items[numbers(place.items(), self.hidden)];
            let d_of_classes = &mut d_of_classes[numbers(place.class_rows(), self.hidden)];
            hand_out_backward(isa, place, self.hidden, d_hidden, d_of_items, d_of_classes);
        }
        let mut d_summaries = Buffer::new(kept.summaries.len());
        let mut d_members = Buffer::new(kept.members.len());
        let into = Some((Write::Set, &mut *d_summaries));
        self.of_item.backward(isa, parameters, &kept.summaries, &d_of_items, gradient, into);
        self.of_class.backward_parameters(isa, &kept.members, &d_of_classes, gradient);
        self.of_class.backward_input(isa, parameters, &d_of_classes, Write::Set, &mut d_members);
        (d_summaries, d_members)
    }
}
