//! The item view: how a head for one backbone sees the items themselves, not only their relations. Start with
//! [`ItemViewEncoder::forward`].
//!
//! The view of an item is `norm(h P)`, V numbers: P is `[D, V]`, D the length of an embedding, `norm` a layer norm, and
//! h the embedding minus the mean of the training features, scaled to unit length, with dropout in training. The mean
//! is that of the training data, not of the support set, because the view of an item must not depend on the other
//! items. It also makes dropout mild: a dropped number becomes 0, which stands for its mean over the training data.
//! `d_x` is the gradient of the loss with respect to x.
//!
//! The view either enters the states in the input layer, or, where that would memorise the training classes, only adds
//! to the logit of "none of the classes" ([`OutlierBranch`]): relations tell classes apart, but they do not tell what
//! an outlier looks like.

use std::ops::Range;

use super::centred_rows::{centre_and_scale, centre_and_scale_backward};
use super::config::ItemView;
use super::episode_batch::PassContext;
use super::modules::{BiasFreeLinear, Initialiser, LayerNormOutput, ParameterBuilder};
use super::network_input::{NetworkInput, NetworkInputGradient};
use crate::buffer::Buffer;
use crate::layers::activation::{gelu, gelu_backward};
use crate::layers::dropout::Dropout;
use crate::layers::layer_norm::LayerNorm;
use crate::layers::linear::Linear;
use crate::matmul::Write;
use crate::real::Real;

/// The parameters of the view.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ItemViewEncoder {
    config: ItemView,
    /// The mean of the training features, `[D]`, not trained.
    mean: Range<usize>,
    projection: BiasFreeLinear,
    norm: LayerNorm,
}

/// The views, with the activations for the backward pass.
pub(super) struct ItemViewCache<T: Real> {
    dropout: Dropout,
    /// h after dropout, `[items, D]`.
    items: Buffer<T>,
    /// `[items, V]`
    normed: LayerNormOutput<T>,
}

impl<T: Real> ItemViewCache<T> {
    /// The views, `[items, V]`.
    pub(super) fn view(&self) -> &[T] {
        &self.normed.out
    }
}

impl ItemViewEncoder {
    pub(super) fn new(builder: &mut ParameterBuilder, config: &ItemView) -> Self {
        let ItemView { dim, width, .. } = *config;
        ItemViewEncoder {
            config: config.clone(),
            mean: builder.constant("item.mean", dim),
            projection: builder.weight_with("item.projection", dim, width, Initialiser::Orthogonal),
            norm: builder.layer_norm("item.norm", width),
        }
    }

    /// The range of the training features' mean.
    pub(super) fn feature_mean(&self) -> Range<usize> {
        self.mean.clone()
    }

    /// Computes the views of all items of the batch. Without a seed there is no dropout.
    pub(super) fn forward<T: Real>(
        &self,
        context: PassContext<'_, T>,
        input: &NetworkInput<'_, T>,
        seed: Option<u64>,
    ) -> ItemViewCache<T> {
        let PassContext { parameters, batch } = context;
        let dim = self.config.dim;
        let dropout = seed.map_or(Dropout::NONE, |seed| Dropout::new(self.config.dropout, seed));
        let mut items = Buffer::new(batch.items * dim);
        let mean = &parameters[self.mean.clone()];
        let rows = input.rows.iter().flat_map(|rows| rows.iter());
        for (row, out) in rows.zip(items.chunks_exact_mut(dim)) {
            centre_and_scale(row, mean, out);
        }
        dropout.apply(0, &mut items);
        let mut projected = Buffer::new(batch.items * self.config.width);
        self.projection.forward(parameters, &items, Write::Set, &mut projected);
        let normed = LayerNormOutput::forward(&self.norm, parameters, &projected);
        ItemViewCache { dropout, items, normed }
    }

    /// Backward pass, from the gradient of the views (`[items, V]`): adds to the gradients of the parameters and, if
    /// `d_input` is given, sets those of the viewed rows, the embeddings.
    pub(super) fn backward<T: Real>(
        &self,
        context: PassContext<'_, T>,
        input: &NetworkInput<'_, T>,
        cache: &ItemViewCache<T>,
        d_view: &[T],
        gradient: &mut [T],
        d_input: Option<&mut NetworkInputGradient<T>>,
    ) {
        let parameters = context.parameters;
        let mut d_projected = Buffer::new(d_view.len());
        cache.normed.backward(&self.norm, parameters, d_view, gradient, &mut d_projected);
        let mut d_rows = d_input.and_then(|d_input| d_input.viewed_rows.as_deref_mut());
        let d_x = d_rows.as_deref_mut().map(|d_rows| (Write::Set, d_rows));
        self.projection.backward(parameters, &cache.items, &d_projected, gradient, d_x);
        let Some(d_rows) = d_rows else { return };
        // Through dropout, which is its own backward pass, then through centring and scaling.
        cache.dropout.apply(0, d_rows);
        let mean = &parameters[self.mean.clone()];
        let mut centred = Buffer::new(mean.len());
        let rows = input.rows.iter().flat_map(|rows| rows.iter());
        for (row, d_row) in rows.zip(d_rows.chunks_exact_mut(mean.len())) {
            centre_and_scale_backward(row, mean, &mut centred, d_row);
        }
    }
}

/// A branch that adds to the logit of "none of the classes" from the view of an item: a network of one hidden layer of
/// W units.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct OutlierBranch {
    encoder: ItemViewEncoder,
    hidden: Linear,
    out: BiasFreeLinear,
    /// W
    width: usize,
}

/// Activations kept for the backward pass.
pub(super) struct OutlierBranchCache<T: Real> {
    item_view: ItemViewCache<T>,
    /// `[items, W]`, before GELU.
    hidden: Buffer<T>,
    /// `[items, W]`, after GELU.
    activated: Buffer<T>,
}

impl OutlierBranch {
    pub(super) fn new(builder: &mut ParameterBuilder, config: &ItemView, width: usize) -> Self {
        OutlierBranch {
            encoder: ItemViewEncoder::new(builder, config),
            hidden: builder.linear("item.hidden", config.width, width, config.width),
            // Zero: before training, the branch has no effect.
            out: builder.weight_with("item.out", width, 1, Initialiser::Fill(0.0)),
            width,
        }
    }

    /// The range of the training features' mean.
    pub(super) fn feature_mean(&self) -> Range<usize> {
        self.encoder.feature_mean()
    }

    /// Adds to the logits of "none of the classes", `[items]`. Without a seed there is no dropout.
    pub(super) fn forward<T: Real>(
        &self,
        context: PassContext<'_, T>,
        input: &NetworkInput<'_, T>,
        seed: Option<u64>,
        outlier_logits: &mut [T],
    ) -> OutlierBranchCache<T> {
        let PassContext { parameters, batch } = context;
        let item_view = self.encoder.forward(context, input, seed);
        let mut hidden = Buffer::new(batch.items * self.width);
        self.hidden.forward(parameters, item_view.view(), &mut hidden);
        let mut activated = Buffer::new(hidden.len());
        gelu(&hidden, &mut activated);
        self.out.forward(parameters, &activated, Write::Add, outlier_logits);
        OutlierBranchCache { item_view, hidden, activated }
    }

    /// Backward pass, from the gradient of the logits (`[items]`): adds to the gradients of the parameters and, if
    /// `d_input` is given, sets those of the viewed rows.
    pub(super) fn backward<T: Real>(
        &self,
        context: PassContext<'_, T>,
        input: &NetworkInput<'_, T>,
        cache: &OutlierBranchCache<T>,
        d_outlier_logits: &[T],
        gradient: &mut [T],
        d_input: Option<&mut NetworkInputGradient<T>>,
    ) {
        let parameters = context.parameters;
        let mut d_hidden = Buffer::new(cache.hidden.len());
        let d_x = Some((Write::Set, &mut *d_hidden));
        self.out.backward(parameters, &cache.activated, d_outlier_logits, gradient, d_x);
        gelu_backward(&cache.hidden, &mut d_hidden);
        self.hidden.backward_parameters(cache.item_view.view(), &d_hidden, gradient);
        let mut d_view = Buffer::new(cache.item_view.view().len());
        self.hidden.backward_input(parameters, &d_hidden, Write::Set, &mut d_view);
        self.encoder.backward(context, input, &cache.item_view, &d_view, gradient, d_input);
    }
}
