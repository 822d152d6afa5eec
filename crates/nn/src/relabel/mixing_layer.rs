//! The mixing layer: every state (the vector of an item and a class) is updated from the states of its item and of its
//! class. Start with [`MixingLayer::forward`].
//!
//! Shapes: M items, C classes, W the width of a state, U hidden units. A network of one hidden layer over 4 W numbers:
//! the normalised state, its item's mean and maximum over classes, and its class's mean over the items with that given
//! label. Its output is added to the state. The weight of the hidden layer is stored in three parts, so that the part
//! for an item is multiplied once per item and the part for a class once per class, not once per state. `d_x` is the
//! gradient of the loss with respect to x.

use super::episode_batch::{EpisodeSpan, PassContext, elements};
use super::modules::{BiasFreeLinear, LayerNormOutput, ParameterBuilder, add};
use crate::buffer::Buffer;
use crate::kernel::kernel;
use crate::layers::activation::{gelu, gelu_backward};
use crate::layers::layer_norm::LayerNorm;
use crate::layers::linear::Linear;
use crate::matmul::Write;
use crate::real::{Real, add_scaled_row};

/// The parameters of a mixing layer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct MixingLayer {
    /// W
    width: usize,
    /// U
    hidden_units: usize,
    norm: LayerNorm,
    hidden_of_state: BiasFreeLinear,
    /// From `item_pools` to hidden units, `[2 W, U]`.
    hidden_of_item: BiasFreeLinear,
    /// From `class_means` to hidden units, `[W, U]`, with the bias of the hidden layer.
    hidden_of_class: Linear,
    out: BiasFreeLinear,
}

/// Activations kept for the backward pass.
pub(super) struct MixingLayerCache<T: Real> {
    /// `[states, W]`
    normed: LayerNormOutput<T>,
    /// Means and maxima over classes, `[items, 2 W]`.
    item_pools: Buffer<T>,
    /// The class of each maximum, `[items, W]`.
    argmax: Vec<u32>,
    /// Means over the items with the given label, `[class rows, W]`.
    class_means: Buffer<T>,
    /// `[states, U]`, before GELU.
    hidden: Buffer<T>,
    /// `[states, U]`, after GELU.
    activated: Buffer<T>,
}

impl MixingLayer {
    pub(super) fn new(builder: &mut ParameterBuilder, name: &str, width: usize, hidden_units: usize) -> Self {
        MixingLayer {
            width,
            hidden_units,
            norm: builder.layer_norm(&format!("{name}.norm"), width),
            hidden_of_state: builder.weight(&format!("{name}.state"), width, hidden_units, 4 * width),
            hidden_of_item: builder.weight(&format!("{name}.item"), 2 * width, hidden_units, 4 * width),
            hidden_of_class: builder.linear(&format!("{name}.class"), width, hidden_units, 4 * width),
            out: builder.weight(&format!("{name}.out"), hidden_units, width, hidden_units),
        }
    }

    /// Adds the output of the layer to `states` (`[states, W]`). Returns the activations for the backward pass.
    pub(super) fn forward<T: Real>(
        &self,
        context: PassContext<'_, T>,
        states: &mut [T],
    ) -> MixingLayerCache<T> {
        let PassContext { parameters, batch } = context;
        let normed = LayerNormOutput::forward(&self.norm, parameters, states);
        let mut cache = self.pool(context, normed);
        // The parts of the hidden units that depend on item and class, per item and per class, are added up per state.
        let mut of_items = Buffer::new(batch.items * self.hidden_units);
        let mut of_classes = Buffer::new(batch.class_rows * self.hidden_units);
        self.hidden_of_item.forward(parameters, &cache.item_pools, Write::Set, &mut of_items);
        self.hidden_of_class.forward(parameters, &cache.class_means, &mut of_classes);
        for span in &batch.spans {
            let of_items = &of_items[elements(span.items(), self.hidden_units)];
            let of_classes = &of_classes[elements(span.class_rows(), self.hidden_units)];
            let hidden = &mut cache.hidden[elements(span.states(), self.hidden_units)];
            broadcast(span, self.hidden_units, of_items, of_classes, hidden);
        }
        self.hidden_of_state.forward(parameters, &cache.normed.out, Write::Add, &mut cache.hidden);
        gelu(&cache.hidden, &mut cache.activated);
        self.out.forward(parameters, &cache.activated, Write::Add, states);
        cache
    }

    /// Pools the normalised states over classes and over items. The hidden units of the returned cache are not set yet.
    fn pool<T: Real>(&self, context: PassContext<'_, T>, normed: LayerNormOutput<T>) -> MixingLayerCache<T> {
        let batch = context.batch;
        let width = self.width;
        let mut item_pools = Buffer::new(batch.items * 2 * width);
        let mut argmax = vec![0; batch.items * width];
        let mut class_means = Buffer::new(batch.class_rows * width);
        for span in &batch.spans {
            let states = &normed.out[elements(span.states(), width)];
            let item_pools = &mut item_pools[elements(span.items(), 2 * width)];
            let argmax = &mut argmax[elements(span.items(), width)];
            mean_and_max(span, width, states, item_pools, argmax);
            mean_of_members(span, width, states, &mut class_means[elements(span.class_rows(), width)]);
        }
        let buffer = || Buffer::new(batch.states * self.hidden_units);
        MixingLayerCache { normed, item_pools, argmax, class_means, hidden: buffer(), activated: buffer() }
    }

    /// Turns the gradient of the layer's output states into that of its input states, in place, and adds to the
    /// gradients of the parameters.
    pub(super) fn backward<T: Real>(
        &self,
        context: PassContext<'_, T>,
        cache: &MixingLayerCache<T>,
        d_states: &mut [T],
        gradient: &mut [T],
    ) {
        let PassContext { parameters, batch } = context;
        let width = self.width;
        // The gradient of the hidden units.
        let mut d_hidden = Buffer::new(cache.hidden.len());
        let d_x = Some((Write::Set, &mut *d_hidden));
        self.out.backward(parameters, &cache.activated, d_states, gradient, d_x);
        gelu_backward(&cache.hidden, &mut d_hidden);
        // The gradient of the normalised states: directly, and through the pools of items and classes.
        let mut d_normed = Buffer::new(d_states.len());
        let d_x = Some((Write::Set, &mut *d_normed));
        self.hidden_of_state.backward(parameters, &cache.normed.out, &d_hidden, gradient, d_x);
        let (d_item_pools, d_class_means) = self.pools_backward(context, cache, &d_hidden, gradient);
        for span in &batch.spans {
            let d_normed = &mut d_normed[elements(span.states(), width)];
            let d_out = &d_item_pools[elements(span.items(), 2 * width)];
            let argmax = &cache.argmax[elements(span.items(), width)];
            mean_and_max_backward(span, width, d_out, argmax, d_normed);
            let d_class_means = &d_class_means[elements(span.class_rows(), width)];
            mean_of_members_backward(span, width, d_class_means, d_normed);
        }
        // The layer's output is added to its input, so the gradient through the layer is added to that of its output.
        let mut d_residual = Buffer::new(d_states.len());
        cache.normed.backward(&self.norm, parameters, &d_normed, gradient, &mut d_residual);
        add(d_states, &d_residual);
    }

    /// The gradients of `item_pools` and `class_means`, from that of the hidden units; adds to the gradients of their
    /// weights.
    fn pools_backward<T: Real>(
        &self,
        context: PassContext<'_, T>,
        cache: &MixingLayerCache<T>,
        d_hidden: &[T],
        gradient: &mut [T],
    ) -> (Buffer<T>, Buffer<T>) {
        let PassContext { parameters, batch } = context;
        let mut d_of_items = Buffer::new(batch.items * self.hidden_units);
        let mut d_of_classes = Buffer::new(batch.class_rows * self.hidden_units);
        for span in &batch.spans {
            let d_hidden = &d_hidden[elements(span.states(), self.hidden_units)];
            let d_of_items = &mut d_of_items[elements(span.items(), self.hidden_units)];
            let d_of_classes = &mut d_of_classes[elements(span.class_rows(), self.hidden_units)];
            broadcast_backward(span, self.hidden_units, d_hidden, d_of_items, d_of_classes);
        }
        let mut d_item_pools = Buffer::new(cache.item_pools.len());
        let mut d_class_means = Buffer::new(cache.class_means.len());
        let d_x = Some((Write::Set, &mut *d_item_pools));
        self.hidden_of_item.backward(parameters, &cache.item_pools, &d_of_items, gradient, d_x);
        self.hidden_of_class.backward_parameters(&cache.class_means, &d_of_classes, gradient);
        self.hidden_of_class.backward_input(parameters, &d_of_classes, Write::Set, &mut d_class_means);
        (d_item_pools, d_class_means)
    }
}

kernel! {
    /// Pools the states of each item (`[M C, width]`) to mean and maximum over classes (`[M, 2 width]`), and records
    /// the class of each maximum (`[M, width]`).
    fn mean_and_max<'a, T>(
        span: &'a EpisodeSpan,
        width: usize,
        states: &'a [T],
        out: &'a mut [T],
        argmax: &'a mut [u32],
    ) {
        let inverse_count = T::from_f64(1.0 / span.classes as f64);
        let rows = states.chunks_exact(span.classes * width).zip(out.chunks_exact_mut(2 * width));
        for ((states, out), argmax) in rows.zip(argmax.chunks_exact_mut(width)) {
            let (mean, max) = out.split_at_mut(width);
            mean.fill(T::ZERO);
            max.copy_from_slice(&states[..width]);
            argmax.fill(0);
            for (class, state) in states.chunks_exact(width).enumerate() {
                add_scaled_row(mean, state, inverse_count);
                for ((max, argmax), &value) in max.iter_mut().zip(argmax.iter_mut()).zip(state) {
                    // Without a branch, so that the compiler vectorises the loop.
                    let is_larger = value > *max;
                    *max = if is_larger { value } else { *max };
                    *argmax = if is_larger { class as u32 } else { *argmax };
                }
            }
        }
    }
}

kernel! {
    /// Backward pass of [`mean_and_max`]: adds to the gradient of the states. That of a maximum goes to its class.
    fn mean_and_max_backward<'a, T>(
        span: &'a EpisodeSpan,
        width: usize,
        d_out: &'a [T],
        argmax: &'a [u32],
        d_states: &'a mut [T],
    ) {
        let inverse_count = T::from_f64(1.0 / span.classes as f64);
        let rows = d_states.chunks_exact_mut(span.classes * width).zip(d_out.chunks_exact(2 * width));
        for ((d_states, d_out), argmax) in rows.zip(argmax.chunks_exact(width)) {
            let (d_mean, d_max) = d_out.split_at(width);
            for (class, d_state) in d_states.chunks_exact_mut(width).enumerate() {
                let pools = d_mean.iter().zip(d_max).zip(argmax);
                for (d_state, ((&d_mean, &d_max), &argmax)) in d_state.iter_mut().zip(pools) {
                    let d_at_max = if argmax == class as u32 { d_max } else { T::ZERO };
                    *d_state += inverse_count * d_mean + d_at_max;
                }
            }
        }
    }
}

kernel! {
    /// For each class the mean, over the items with that given label, of their states at the class (`[C, width]`); 0
    /// for an empty class.
    fn mean_of_members<'a, T>(span: &'a EpisodeSpan, width: usize, states: &'a [T], out: &'a mut [T]) {
        out.fill(T::ZERO);
        for (states, &given) in states.chunks_exact(span.classes * width).zip(&span.given) {
            let from = given as usize * width;
            let inverse_count = T::from_f64(1.0 / span.counts[given as usize] as f64);
            add_scaled_row(&mut out[from..from + width], &states[from..from + width], inverse_count);
        }
    }
}

kernel! {
    /// Backward pass of [`mean_of_members`]: adds to the gradient of the states.
    fn mean_of_members_backward<'a, T>(
        span: &'a EpisodeSpan,
        width: usize,
        d_out: &'a [T],
        d_states: &'a mut [T],
    ) {
        for (d_states, &given) in d_states.chunks_exact_mut(span.classes * width).zip(&span.given) {
            let from = given as usize * width;
            let inverse_count = T::from_f64(1.0 / span.counts[given as usize] as f64);
            add_scaled_row(&mut d_states[from..from + width], &d_out[from..from + width], inverse_count);
        }
    }
}

kernel! {
    /// Sets each state to the sum of its item's row (`[M, width]`) and its class's row (`[C, width]`).
    fn broadcast<'a, T>(
        span: &'a EpisodeSpan,
        width: usize,
        of_items: &'a [T],
        of_classes: &'a [T],
        states: &'a mut [T],
    ) {
        for (states, item) in states.chunks_exact_mut(span.classes * width).zip(of_items.chunks_exact(width)) {
            for (state, class) in states.chunks_exact_mut(width).zip(of_classes.chunks_exact(width)) {
                for ((state, &item), &class) in state.iter_mut().zip(item).zip(class) {
                    *state = item + class;
                }
            }
        }
    }
}

kernel! {
    /// Backward pass of [`broadcast`]: sets the gradients of the items' rows (sums over classes) and of the classes'
    /// rows (sums over items).
    fn broadcast_backward<'a, T>(
        span: &'a EpisodeSpan,
        width: usize,
        d_states: &'a [T],
        d_of_items: &'a mut [T],
        d_of_classes: &'a mut [T],
    ) {
        d_of_classes.fill(T::ZERO);
        let rows = d_states.chunks_exact(span.classes * width).zip(d_of_items.chunks_exact_mut(width));
        for (d_states, d_item) in rows {
            d_item.fill(T::ZERO);
            for (d_state, d_class) in d_states.chunks_exact(width).zip(d_of_classes.chunks_exact_mut(width)) {
                for ((&d_state, d_item), d_class) in d_state.iter().zip(d_item.iter_mut()).zip(d_class) {
                    *d_item += d_state;
                    *d_class += d_state;
                }
            }
        }
    }
}
