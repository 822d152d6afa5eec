//! The input layer: the states (one vector of W numbers per item and class) before the first attention layer. Start
//! with [`InputLayer::forward`].
//!
//! A network of one hidden layer over the state features ([`super::network_input`]) and, in a head for one backbone,
//! the view of the item, a projection of its embedding ([`super::item_view`]):
//! `state = out(gelu(features(state features) + hidden(view)))`. The product `hidden(view)` is computed once per item,
//! not once per state. `d_x` is the gradient of the loss with respect to x.

use std::ops::Range;

use super::config::{Config, ViewTarget};
use super::episode_batch::{EpisodeSpan, PassContext, elements};
use super::item_view::{ItemViewCache, ItemViewEncoder};
use super::modules::{BiasFreeLinear, ParameterBuilder, add_row};
use super::network_input::{NetworkInput, NetworkInputGradient, STATE_FEATURES};
use crate::buffer::Buffer;
use crate::kernel::kernel;
use crate::layers::activation::{gelu, gelu_backward};
use crate::layers::linear::Linear;
use crate::matmul::Write;
use crate::real::Real;

/// The parameters of the input layer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct InputLayer {
    /// W
    width: usize,
    /// For [`ViewTarget::States`].
    item_view: Option<ItemViewInput>,
    /// From the state features to the hidden units.
    features: Linear,
    /// From the hidden units to the states.
    out: Linear,
}

/// The part that reads the items themselves.
#[derive(Debug, Clone, PartialEq)]
struct ItemViewInput {
    encoder: ItemViewEncoder,
    /// From the view to the hidden units.
    hidden: BiasFreeLinear,
}

/// Activations kept for the backward pass.
pub(super) struct InputLayerCache<T: Real> {
    item_view: Option<ItemViewCache<T>>,
    /// `[states, W]`, before GELU.
    hidden: Buffer<T>,
    /// `[states, W]`, after GELU.
    activated: Buffer<T>,
}

impl InputLayer {
    pub(super) fn new(builder: &mut ParameterBuilder, config: &Config) -> Self {
        let width = config.width;
        let view = config.item_view.as_ref().filter(|view| view.target == ViewTarget::States);
        // The hidden units sum over both inputs, so the initial weights of both are as for a layer with all of them.
        let fan_in = STATE_FEATURES + view.map_or(0, |view| view.width);
        let item_view = view.map(|view| ItemViewInput {
            encoder: ItemViewEncoder::new(builder, view),
            hidden: builder.weight("start.item", view.width, width, fan_in),
        });
        InputLayer {
            width,
            item_view,
            features: builder.linear("start.features", STATE_FEATURES, width, fan_in),
            out: builder.linear("start.out", width, width, width),
        }
    }

    /// The range of the training features' mean, if this layer sees items.
    pub(super) fn feature_mean(&self) -> Option<Range<usize>> {
        self.item_view.as_ref().map(|view| view.encoder.feature_mean())
    }

    /// Returns the states, `[states, W]`. Without a seed there is no dropout.
    pub(super) fn forward<T: Real>(
        &self,
        context: PassContext<'_, T>,
        input: &NetworkInput<'_, T>,
        seed: Option<u64>,
    ) -> (Buffer<T>, InputLayerCache<T>) {
        let PassContext { parameters, batch } = context;
        let mut hidden = Buffer::new(batch.states * self.width);
        self.features.forward(parameters, &input.state_features, &mut hidden);
        let item_view = self.item_view.as_ref().map(|view| {
            let cache = view.encoder.forward(context, input, seed);
            // The view's part of the hidden units, one row per item.
            let mut of_items = Buffer::new(batch.items * self.width);
            view.hidden.forward(parameters, cache.view(), Write::Set, &mut of_items);
            for span in &batch.spans {
                let of_items = &of_items[elements(span.items(), self.width)];
                let hidden = &mut hidden[elements(span.states(), self.width)];
                add_to_states(span, self.width, of_items, hidden);
            }
            cache
        });
        let (mut activated, mut states) = (Buffer::new(hidden.len()), Buffer::new(hidden.len()));
        gelu(&hidden, &mut activated);
        self.out.forward(parameters, &activated, &mut states);
        (states, InputLayerCache { item_view, hidden, activated })
    }

    /// Backward pass, from the gradient of the states: adds to the gradients of the parameters and, if `d_input` is
    /// given, sets those of the state features and, with an item view, of the viewed rows.
    pub(super) fn backward<T: Real>(
        &self,
        context: PassContext<'_, T>,
        input: &NetworkInput<'_, T>,
        cache: &InputLayerCache<T>,
        d_states: &[T],
        gradient: &mut [T],
        mut d_input: Option<&mut NetworkInputGradient<T>>,
    ) {
        let PassContext { parameters, batch } = context;
        let mut d_hidden = Buffer::new(cache.hidden.len());
        self.out.backward_parameters(&cache.activated, d_states, gradient);
        self.out.backward_input(parameters, d_states, Write::Set, &mut d_hidden);
        gelu_backward(&cache.hidden, &mut d_hidden);
        self.features.backward_parameters(&input.state_features, &d_hidden, gradient);
        if let Some(d_input) = d_input.as_deref_mut() {
            self.features.backward_input(parameters, &d_hidden, Write::Set, &mut d_input.state_features);
        }
        let (Some(view), Some(view_cache)) = (&self.item_view, &cache.item_view) else { return };
        // The gradient of the view: summed over the item's states, then through the view's weight.
        let mut d_of_items = Buffer::new(batch.items * self.width);
        for span in &batch.spans {
            let d_of_items = &mut d_of_items[elements(span.items(), self.width)];
            let d_hidden = &d_hidden[elements(span.states(), self.width)];
            add_to_states_backward(span, self.width, d_hidden, d_of_items);
        }
        let mut d_view = Buffer::new(view_cache.view().len());
        let d_x = Some((Write::Set, &mut *d_view));
        view.hidden.backward(parameters, view_cache.view(), &d_of_items, gradient, d_x);
        view.encoder.backward(context, input, view_cache, &d_view, gradient, d_input);
    }
}

kernel! {
    /// Adds the row of each item (`[M, width]`) to all its states (`[M C, width]`).
    fn add_to_states<'a, T>(span: &'a EpisodeSpan, width: usize, of_items: &'a [T], states: &'a mut [T]) {
        for (states, item) in states.chunks_exact_mut(span.classes * width).zip(of_items.chunks_exact(width)) {
            for state in states.chunks_exact_mut(width) {
                add_row(state, item);
            }
        }
    }
}

kernel! {
    /// Backward pass of [`add_to_states`]: sets the gradient of each item's row to the sum of those of its states.
    fn add_to_states_backward<'a, T>(
        span: &'a EpisodeSpan,
        width: usize,
        d_states: &'a [T],
        d_of_items: &'a mut [T],
    ) {
        let rows = d_states.chunks_exact(span.classes * width).zip(d_of_items.chunks_exact_mut(width));
        for (d_states, d_item) in rows {
            d_item.fill(T::ZERO);
            for d_state in d_states.chunks_exact(width) {
                add_row(d_item, d_state);
            }
        }
    }
}
