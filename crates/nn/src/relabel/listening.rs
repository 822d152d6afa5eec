//! The first half of a layer: every item listens to all items.
//!
//! States are normalised; a query and a key for every item come from the mean of its states over classes and its
//! state at the class it is filed under, a value from every state. What is heard is added to the state.

use super::attention::{Gradients, Inputs, Scratch, Shape, attend, attend_backward};
use super::batch::{Pass, numbers};
use super::buffer::Buffer;
use super::parts::{Norm, Normed, Plan, Product};
use super::pooling::{add_all, mean_and_own, mean_and_own_backward};
use crate::layers::linear::Linear;
use crate::matmul::Write;
use crate::real::Real;

/// Where its parameters lie.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Listening {
    shape: Shape,
    norm: Norm,
    query: Linear,
    key: Product,
    value: Product,
    out: Product,
}

/// What the way back needs.
pub(super) struct Listened<T: Real> {
    states: Normed<T>,
    /// Items x 2 W
    pooled: Buffer<T>,
    queries: Buffer<T>,
    keys: Buffer<T>,
    values: Buffer<T>,
    heard: Buffer<T>,
}

impl Listening {
    pub(super) fn new(plan: &mut Plan, name: &str, shape: Shape) -> Self {
        let width = shape.width;
        Listening {
            shape,
            norm: plan.norm(&format!("{name}.norm"), width),
            query: plan.dense(&format!("{name}.query"), 2 * width, width, 2 * width),
            key: plan.product(&format!("{name}.key"), 2 * width, width, 2 * width),
            value: plan.product(&format!("{name}.value"), width, width, width),
            out: plan.product(&format!("{name}.out"), width, width, width),
        }
    }

    /// Adds to `states`. `shares` holds a plane of logits over all pairs for every head, and then of shares.
    pub(super) fn forward<T: Real>(
        &self,
        pass: Pass<'_, T>,
        states: &mut [T],
        shares: &mut [T],
    ) -> Listened<T> {
        let Pass { isa, parameters, batch } = pass;
        let width = self.shape.width;
        let normed = self.norm.forward(isa, parameters, states);
        let room = |rows: usize| Buffer::new(rows * width);
        let mut pooled = room(2 * batch.items);
        for place in &batch.places {
            let states = &normed.out[numbers(place.states(), width)];
            mean_and_own(isa, place, width, states, &mut pooled[numbers(place.items(), 2 * width)]);
        }
        let (mut queries, mut keys) = (room(batch.items), room(batch.items));
        let (mut values, mut heard) = (room(batch.states), room(batch.states));
        self.query.forward(isa, parameters, &pooled, &mut queries);
        self.key.forward(isa, parameters, &pooled, Write::Set, &mut keys);
        self.value.forward(isa, parameters, &normed.out, Write::Set, &mut values);
        let mut scratch = Scratch::default();
        for place in &batch.places {
            let (items, own) = (numbers(place.items(), width), numbers(place.states(), width));
            let inputs =
                Inputs { queries: &queries[items.clone()], keys: &keys[items], values: &values[own.clone()] };
            let mut shares: Vec<&mut [T]> =
                shares.chunks_exact_mut(batch.pairs).map(|plane| &mut plane[place.pairs()]).collect();
            attend(isa, place, self.shape, inputs, &mut shares, &mut heard[own], &mut scratch);
        }
        self.out.forward(isa, parameters, &heard, Write::Add, states);
        Listened { states: normed, pooled, queries, keys, values, heard }
    }

    /// Turns the gradient of the states after into that of the states before, in place; `d_logits` is written.
    #[allow(clippy::too_many_arguments)]
    pub(super) fn backward<T: Real>(
        &self,
        pass: Pass<'_, T>,
        kept: &Listened<T>,
        shares: &[T],
        d_states: &mut [T],
        d_logits: &mut [T],
        gradient: &mut [T],
    ) {
        let Pass { isa, parameters, batch } = pass;
        let width = self.shape.width;
        let room = |rows: usize| Buffer::new(rows * width);
        let mut d_heard = room(batch.states);
        let into = Some((Write::Set, &mut *d_heard));
        self.out.backward(isa, parameters, &kept.heard, d_states, gradient, into);
        let mut d_inputs = (room(batch.items), room(batch.items), room(batch.states));
        self.attention_backward(pass, kept, shares, &d_heard, &mut d_inputs, d_logits);
        let (d_queries, d_keys, d_values) = d_inputs;
        let mut d_pooled = room(2 * batch.items);
        self.query.backward_parameters(isa, &kept.pooled, &d_queries, gradient);
        self.query.backward_input(isa, parameters, &d_queries, Write::Set, &mut d_pooled);
        let more = Some((Write::Add, &mut *d_pooled));
        self.key.backward(isa, parameters, &kept.pooled, &d_keys, gradient, more);
        let mut d_normed = d_heard;
        let into = Some((Write::Set, &mut *d_normed));
        self.value.backward(isa, parameters, &kept.states.out, &d_values, gradient, into);
        for place in &batch.places {
            let d_pooled = &d_pooled[numbers(place.items(), 2 * width)];
            mean_and_own_backward(isa, place, width, d_pooled, &mut d_normed[numbers(place.states(), width)]);
        }
        let mut d_before = d_values;
        self.norm.backward(isa, parameters, &kept.states, &d_normed, gradient, &mut d_before);
        add_all(isa, d_states, &d_before);
    }

    #[allow(clippy::too_many_arguments)]
    fn attention_backward<T: Real>(
        &self,
        pass: Pass<'_, T>,
        kept: &Listened<T>,
        shares: &[T],
        d_heard: &[T],
        (d_queries, d_keys, d_values): &mut (Buffer<T>, Buffer<T>, Buffer<T>),
        d_logits: &mut [T],
    ) {
        let Pass { isa, batch, .. } = pass;
        let width = self.shape.width;
        let mut scratch = Scratch::default();
        for place in &batch.places {
            let (items, own) = (numbers(place.items(), width), numbers(place.states(), width));
            let inputs = Inputs {
                queries: &kept.queries[items.clone()],
                keys: &kept.keys[items.clone()],
                values: &kept.values[own.clone()],
            };
            let d_inputs = Gradients {
                queries: &mut d_queries[items.clone()],
                keys: &mut d_keys[items],
                values: &mut d_values[own.clone()],
            };
            let shares: Vec<&[T]> =
                shares.chunks_exact(batch.pairs).map(|plane| &plane[place.pairs()]).collect();
            let mut d_logits: Vec<&mut [T]> =
                d_logits.chunks_exact_mut(batch.pairs).map(|plane| &mut plane[place.pairs()]).collect();
            let d_heard = &d_heard[own];
            attend_backward(
                isa,
                place,
                self.shape,
                inputs,
                &shares,
                d_heard,
                d_inputs,
                &mut d_logits,
                &mut scratch,
            );
        }
    }
}
