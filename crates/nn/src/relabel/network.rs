//! The network: from features of pairs of items and of states (item and class) to the logits of each item. Start with
//! [`Network::forward`] and [`Network::backward`], which run the layers in order; [`Network::infer`] is the forward
//! pass without what the backward pass needs.
//!
//! The edge network turns pair features into attention logits of all layers; the input layer turns state features into
//! states; each layer is attention between items ([`AttentionLayer`]) followed by mixing within items and classes
//! ([`MixingLayer`]); a last linear map reads three numbers off every state ([`Logits`]).
//!
//! Shapes over all episodes of a batch (see `episode_batch`): states `[states, W]`, one row per item and class;
//! attention weights `[layers H, pairs]`, one row per layer and head and one column per ordered pair of items. `d_x` is
//! the gradient of the loss with respect to x.

use std::ops::Range;

use super::attention_layer::{AttentionLayer, AttentionLayerCache, AttentionShape};
use super::config::{Config, ViewTarget};
use super::edge_network::{self, EdgeWeights};
use super::episode_batch::{EpisodeBatch, PassContext};
use super::input_layer::{InputLayer, InputLayerCache};
use super::item_view::{OutlierBranch, OutlierBranchCache};
use super::losses::INITIAL_LOG_SCALE;
use super::mixing_layer::{MixingLayer, MixingLayerCache};
use super::modules::{BiasFreeLinear, Initialiser, LayerNormOutput, ParameterBuilder};
use super::network_input::{NetworkInput, NetworkInputGradient, PAIR_FEATURES};
use super::posterior::{INITIAL_PRIOR, Logits};
use crate::buffer::Buffer;
use crate::layers::layer_norm::LayerNorm;
use crate::matmul::Write;
use crate::real::Real;

/// Outputs per state: the logit of its class, the logarithm of its multiplier, and its vote for "none of the classes".
const OUTPUTS: usize = 3;

/// The parameters of the network, as ranges of the flat buffer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Network {
    /// H
    heads: usize,
    edges: EdgeWeights<Range<usize>>,
    input_layer: InputLayer,
    layers: Vec<(AttentionLayer, MixingLayer)>,
    /// Norm and linear map from the last states to [`OUTPUTS`].
    norm: LayerNorm,
    out: BiasFreeLinear,
    /// For [`ViewTarget::Outlier`].
    outlier_branch: Option<OutlierBranch>,
    /// The parameters of the prior, in the order of [`INITIAL_PRIOR`]. The network itself does not use them.
    pub(super) prior: Range<usize>,
    /// The logarithm of the scale of the queries' logits, `[1]`. The network itself does not use it.
    pub(super) log_scale: Range<usize>,
}

/// Activations kept for the backward pass.
pub(super) struct NetworkCache<T: Real> {
    /// Attention weights of all layers and heads, `[layers H, pairs]`.
    attention_weights: Buffer<T>,
    input_layer: InputLayerCache<T>,
    layers: Vec<(AttentionLayerCache<T>, MixingLayerCache<T>)>,
    /// The normalised states after the last layer.
    normed: LayerNormOutput<T>,
    outlier_branch: Option<OutlierBranchCache<T>>,
}

impl Network {
    /// Adds the parameters to the model. Their order decides the order of random numbers and of a model file.
    pub(super) fn new(builder: &mut ParameterBuilder, config: &Config) -> Self {
        let Config { width, heads, hidden, edge_hidden, layers, .. } = *config;
        let edges = EdgeWeights {
            hidden: builder.weight("edges.hidden", PAIR_FEATURES, edge_hidden, PAIR_FEATURES).weight,
            bias: builder.tensor("edges.hidden.bias".into(), &[edge_hidden], Initialiser::Uniform(0.5)),
            out: builder.weight("edges.out", edge_hidden, layers * heads, edge_hidden).weight,
        };
        let input_layer = InputLayer::new(builder, config);
        let layer = |layer: usize| {
            let shape = AttentionShape { width, heads };
            let attention = AttentionLayer::new(builder, &format!("layer{layer}.attention"), shape);
            (attention, MixingLayer::new(builder, &format!("layer{layer}.mixing"), width, hidden))
        };
        let layers = (0..layers).map(layer).collect();
        let outlier_view = config.item_view.as_ref().filter(|view| view.target == ViewTarget::Outlier);
        let prior = Initialiser::Values(INITIAL_PRIOR.to_vec());
        Network {
            heads,
            edges,
            input_layer,
            layers,
            norm: builder.layer_norm("out.norm", width),
            // Zero: before training, prototypes follow from the prior alone.
            out: builder.weight_with("out", width, OUTPUTS, Initialiser::Fill(0.0)),
            outlier_branch: outlier_view.map(|view| OutlierBranch::new(builder, view, width)),
            prior: builder.tensor("prior".into(), &[INITIAL_PRIOR.len()], prior),
            log_scale: builder.tensor("log_scale".into(), &[1], Initialiser::Fill(INITIAL_LOG_SCALE)),
        }
    }

    /// The range of the training features' mean, if the head has an item view.
    pub(super) fn feature_mean(&self) -> Option<Range<usize>> {
        let of_branch = self.outlier_branch.as_ref().map(OutlierBranch::feature_mean);
        of_branch.or_else(|| self.input_layer.feature_mean())
    }

    /// The forward pass of training, with the dropout of `seed`. Returns the logits of all episodes and the activations
    /// that [`Network::backward`] needs.
    pub(super) fn forward<T: Real>(
        &self,
        parameters: &[T],
        input: &NetworkInput<'_, T>,
        seed: u64,
    ) -> (Logits<Vec<T>>, NetworkCache<T>) {
        let context = PassContext { parameters, batch: &input.batch };
        let mut attention_weights = self.edge_logits(context, input);
        let (mut states, input_layer) = self.input_layer.forward(context, input, Some(seed));
        // One plane of logits, `[H, pairs]`, per layer, which the layer turns into attention weights.
        let planes = attention_weights.chunks_exact_mut(self.heads * input.batch.pairs);
        let layers = self.layers.iter().zip(planes).map(|((attention, mixing), weights)| {
            let attention_cache = attention.forward(context, &mut states, weights);
            (attention_cache, mixing.forward(context, &mut states))
        });
        let layers = layers.collect();
        let (mut logits, normed) = self.output(context, &states);
        let outlier_branch = self
            .outlier_branch
            .as_ref()
            .map(|branch| branch.forward(context, input, Some(seed), &mut logits.outlier));
        (logits, NetworkCache { attention_weights, input_layer, layers, normed, outlier_branch })
    }

    /// The forward pass of inference: no dropout, and no activations are kept.
    pub(super) fn infer<T: Real>(&self, parameters: &[T], input: &NetworkInput<'_, T>) -> Logits<Vec<T>> {
        let context = PassContext { parameters, batch: &input.batch };
        let mut attention_weights = self.edge_logits(context, input);
        let mut states = self.input_layer.forward(context, input, None).0;
        let planes = attention_weights.chunks_exact_mut(self.heads * input.batch.pairs);
        for ((attention, mixing), weights) in self.layers.iter().zip(planes) {
            attention.forward(context, &mut states, weights);
            mixing.forward(context, &mut states);
        }
        let mut logits = self.output(context, &states).0;
        if let Some(branch) = &self.outlier_branch {
            branch.forward(context, input, None, &mut logits.outlier);
        }
        logits
    }

    /// The logits of the edge network, `[layers H, pairs]`.
    fn edge_logits<T: Real>(&self, context: PassContext<'_, T>, input: &NetworkInput<'_, T>) -> Buffer<T> {
        let PassContext { parameters, batch } = context;
        let mut logits = Buffer::new(self.layers.len() * self.heads * batch.pairs);
        let edges = self.edges.of(parameters);
        edge_network::forward(batch.pairs, &edges, &input.pair_features, &mut logits);
        logits
    }

    /// Reads the logits off the states after the last layer. Also returns the normalised states.
    fn output<T: Real>(
        &self,
        context: PassContext<'_, T>,
        states: &[T],
    ) -> (Logits<Vec<T>>, LayerNormOutput<T>) {
        let PassContext { parameters, batch } = context;
        let normed = LayerNormOutput::forward(&self.norm, parameters, states);
        let mut out = Buffer::new(batch.states * OUTPUTS);
        self.out.forward(parameters, &normed.out, Write::Set, &mut out);
        (split_outputs(batch, &out), normed)
    }

    /// Backward pass of [`Network::forward`], from the gradient of its logits: adds to the gradients of the parameters
    /// and, if `d_input` is given, sets those of the network's input.
    pub(super) fn backward<T: Real>(
        &self,
        parameters: &[T],
        input: &NetworkInput<'_, T>,
        cache: &NetworkCache<T>,
        d_logits: &Logits<Vec<T>>,
        gradient: &mut [T],
        mut d_input: Option<&mut NetworkInputGradient<T>>,
    ) {
        let batch = &input.batch;
        let context = PassContext { parameters, batch };
        if let (Some(branch), Some(branch_cache)) = (&self.outlier_branch, &cache.outlier_branch) {
            let d_input = d_input.as_deref_mut();
            branch.backward(context, input, branch_cache, &d_logits.outlier, gradient, d_input);
        }
        // From the logits to the last states.
        let d_out = join_outputs(batch, d_logits);
        let mut d_normed = Buffer::new(cache.normed.out.len());
        let d_x = Some((Write::Set, &mut *d_normed));
        self.out.backward(parameters, &cache.normed.out, &d_out, gradient, d_x);
        let mut d_states = Buffer::new(d_normed.len());
        cache.normed.backward(&self.norm, parameters, &d_normed, gradient, &mut d_states);
        // Through the layers, the last one first. Each turns `d_states` into the gradient of its input and sets its
        // part of the gradient of the edge network's logits.
        let mut d_edge_logits = Buffer::new(cache.attention_weights.len());
        let plane = self.heads * batch.pairs;
        let layers = self.layers.iter().zip(&cache.layers);
        let planes = cache.attention_weights.chunks_exact(plane).zip(d_edge_logits.chunks_exact_mut(plane));
        for (((attention, mixing), (attention_cache, mixing_cache)), (weights, d_logits)) in
            layers.zip(planes).rev()
        {
            mixing.backward(context, mixing_cache, &mut d_states, gradient);
            attention.backward(context, attention_cache, weights, &mut d_states, d_logits, gradient);
        }
        // Through the input layer and the edge network to the features.
        let d_layer_input = d_input.as_deref_mut();
        self.input_layer.backward(context, input, &cache.input_layer, &d_states, gradient, d_layer_input);
        let (edges, mut d_edges) = (self.edges.of(parameters), self.edges.of_mut(gradient));
        let d_features = d_input.map(|d_input| &mut *d_input.pair_features);
        let features = &input.pair_features;
        edge_network::backward(batch.pairs, &edges, features, &d_edge_logits, &mut d_edges, d_features);
    }
}

/// Splits the output of all states (`[states, OUTPUTS]`) into logits. The logit of "none of the classes" of an item is
/// the mean of the votes of its states.
fn split_outputs<T: Real>(batch: &EpisodeBatch, out: &[T]) -> Logits<Vec<T>> {
    let column = |index: usize| out.chunks_exact(OUTPUTS).map(|row| row[index]).collect::<Vec<T>>();
    let votes = column(2);
    let mut outlier = Vec::with_capacity(batch.items);
    for span in &batch.spans {
        let inverse_count = T::from_f64(1.0 / span.classes as f64);
        let votes_of_items = votes[span.states()].chunks_exact(span.classes);
        outlier.extend(votes_of_items.map(|votes| votes.iter().copied().sum::<T>() * inverse_count));
    }
    Logits { classes: column(0), outlier, multipliers: column(1) }
}

/// The backward pass of [`split_outputs`]: the gradient of the output, `[states, OUTPUTS]`.
fn join_outputs<T: Real>(batch: &EpisodeBatch, d_logits: &Logits<Vec<T>>) -> Vec<T> {
    let mut out = Vec::with_capacity(d_logits.classes.len() * OUTPUTS);
    for span in &batch.spans {
        let inverse_count = T::from_f64(1.0 / span.classes as f64);
        for (index, state) in span.states().enumerate() {
            let d_outlier = d_logits.outlier[span.items().start + index / span.classes];
            out.extend([d_logits.classes[state], d_logits.multipliers[state], d_outlier * inverse_count]);
        }
    }
    out
}
