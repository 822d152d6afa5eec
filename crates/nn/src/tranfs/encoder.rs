//! The transformer encoder: post-norm layers of self-attention and a feed-forward network, each with a residual
//! connection.
//!
//! Start with [`Encoder::forward_layer`], which names the steps of a layer:
//! `middle = norm1(x + attention(x))`, `out = norm2(middle + feed_forward(middle))`.
//!
//! Shapes: W is the width of a token; tokens attend to those of their own segment (support set) only. F is the width of
//! the feed-forward network. As in PyTorch's layer, dropout is applied at four sites: attention weights, attention
//! output, hidden units, and feed-forward output. `d_x` is the gradient of the loss with respect to x.

use std::ops::Range;

use super::Config;
use crate::initialisation::{fill_orthogonal, fill_uniform, xavier_bound};
use crate::layers::activation;
use crate::layers::attention::{self, AttentionCache, Heads};
use crate::layers::dropout::Dropout;
use crate::layers::layer_norm::{LayerNorm, LayerNormCache};
use crate::layers::linear::Linear;
use crate::matmul::Write;
use crate::parameters::ParameterLayout;
use crate::real::Real;

/// The parameters of the encoder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Encoder {
    layers: Vec<EncoderLayer>,
    heads: Heads,
    /// W
    width: usize,
    /// F
    hidden: usize,
}

/// The parameters of one layer.
#[derive(Debug, Clone, PartialEq, Eq)]
struct EncoderLayer {
    /// From tokens to queries, keys and values.
    qkv: Linear,
    attention_out: Linear,
    norm1: LayerNorm,
    feed_forward_in: Linear,
    feed_forward_out: Linear,
    norm2: LayerNorm,
}

/// Activations of one layer, kept for the backward pass.
#[derive(Debug, Clone, Default)]
pub(super) struct EncoderLayerCache<T> {
    /// `[tokens, 3 W]`
    qkv: Vec<T>,
    pub(super) attention: AttentionCache<T>,
    /// The output of attention before its projection, `[tokens, W]`.
    attended: Vec<T>,
    norm1: LayerNormCache<T>,
    /// The output of the attention sublayer, `[tokens, W]`.
    middle: Vec<T>,
    /// Hidden units after ReLU and dropout, `[tokens, F]`.
    hidden: Vec<T>,
    norm2: LayerNormCache<T>,
    /// The output of the layer, `[tokens, W]`.
    pub(super) out: Vec<T>,
}

/// Memory for intermediate results that are not needed after the layer.
#[derive(Debug, Clone, Default)]
pub(super) struct EncoderScratch<T> {
    /// What is added to the residual connection, or its gradient, `[tokens, W]`.
    residual: Vec<T>,
    /// The gradient of the input of the sublayer (attention or feed-forward) that is being computed, `[tokens, W]`.
    d_sublayer: Vec<T>,
    /// `[tokens, F]`
    d_hidden: Vec<T>,
    /// `[tokens, 3 W]`
    d_qkv: Vec<T>,
}

/// What all layers of a call read.
#[derive(Debug, Clone, Copy)]
pub(super) struct EncoderContext<'a, T> {
    /// Of the whole model.
    pub parameters: &'a [T],
    /// The tokens of each support set.
    pub segments: &'a [Range<usize>],
    pub dropout: Dropout,
}

/// Dropout sites of a layer.
const SITES: u64 = 4;

/// The initial feed-forward output as a fraction of PyTorch's, see [`Encoder::initialise`].
const FEED_FORWARD_SCALE: f64 = 0.2;

impl Encoder {
    /// Adds the parameters of all layers to a layout.
    pub fn add(layout: &mut ParameterLayout, config: &Config) -> Self {
        let (width, hidden) = (config.width, config.feed_forward);
        let layers = (0..config.layers)
            .map(|number| {
                let name = |part: &str| format!("layer{number}.{part}");
                EncoderLayer {
                    qkv: Linear::add(layout, &name("attention.in"), width, 3 * width),
                    attention_out: Linear::add(layout, &name("attention.out"), width, width),
                    norm1: LayerNorm::add(layout, &name("norm1"), width),
                    feed_forward_in: Linear::add(layout, &name("feed_forward.in"), width, hidden),
                    feed_forward_out: Linear::add(layout, &name("feed_forward.out"), hidden, width),
                    norm2: LayerNorm::add(layout, &name("norm2"), width),
                }
            })
            .collect();
        Encoder { layers, heads: Heads { count: config.heads, width: width / config.heads }, width, hidden }
    }

    /// Initialises the layers so that each adds the mean of a token's class to the token. The tokens are the items of
    /// all classes and one *class token* per class, which becomes the prototype; every token contains the position
    /// embedding of its class. Keys equal queries, so tokens with the same position embedding attend to each other: a
    /// class token to the items of its class. The output projection of attention is the inverse of the value
    /// projection, so attended tokens are added unchanged. And the feed-forward network starts small. With PyTorch's
    /// initialisation, a class token receives noise instead, and the model spends thousands of steps, or all of them,
    /// on a plateau where every prototype is the same (docs/results/heads-commands.md).
    pub fn initialise(&self, parameters: &mut [f32], random: &mut dyn FnMut() -> f64) {
        let (width, hidden) = (self.width, self.hidden);
        // PyTorch's bound for the weights and biases of a linear layer.
        let bound = |inputs: usize| 1.0 / (inputs as f64).sqrt();
        for layer in &self.layers {
            // The value projection.
            let mut values = vec![0.0; width * width];
            fill_orthogonal(&mut values, width, width, random);
            let qkv = &mut parameters[layer.qkv.weight.clone()];
            fill_uniform(qkv, xavier_bound(width, 3 * width), random);
            // A row holds the weights of queries, keys and values for one input: keys become equal to queries.
            for (row, values) in qkv.chunks_exact_mut(3 * width).zip(values.chunks_exact(width)) {
                row.copy_within(..width, width);
                row[2 * width..].copy_from_slice(values);
            }
            // The inverse of an orthogonal matrix is its transpose.
            for (index, weight) in parameters[layer.attention_out.weight.clone()].iter_mut().enumerate() {
                *weight = values[index % width * width + index / width];
            }
            let feed_forward = [
                (&layer.feed_forward_in, bound(width)),
                (&layer.feed_forward_out, FEED_FORWARD_SCALE * bound(hidden)),
            ];
            for (linear, bound) in feed_forward {
                fill_uniform(&mut parameters[linear.weight.clone()], bound, random);
                fill_uniform(&mut parameters[linear.bias.clone()], bound, random);
            }
            for norm in [&layer.norm1, &layer.norm2] {
                parameters[norm.scale.clone()].fill(1.0);
            }
        }
    }

    /// The range of the last norm's scale, which is the scale of the encoder's output.
    pub fn last_scale(&self) -> Range<usize> {
        self.layers.last().map_or(0..0, |layer| layer.norm2.scale.clone())
    }

    /// The number of layers.
    pub fn depth(&self) -> usize {
        self.layers.len()
    }

    /// Runs all layers on `tokens` (`[tokens, W]`); the output of each is in its cache, `out`.
    pub fn forward<T: Real>(
        &self,
        context: EncoderContext<'_, T>,
        tokens: &[T],
        caches: &mut Vec<EncoderLayerCache<T>>,
        scratch: &mut EncoderScratch<T>,
    ) {
        caches.resize_with(self.depth(), EncoderLayerCache::default);
        for number in 0..self.depth() {
            let (previous, current) = caches.split_at_mut(number);
            let x = previous.last().map_or(tokens, |previous| &previous.out);
            self.forward_layer(context, number, x, &mut current[0], scratch);
        }
    }

    /// Runs layer `number` on `x` (`[tokens, W]`). Leaves the output and all activations for the backward pass in
    /// `cache`.
    pub fn forward_layer<T: Real>(
        &self,
        context: EncoderContext<'_, T>,
        number: usize,
        x: &[T],
        cache: &mut EncoderLayerCache<T>,
        scratch: &mut EncoderScratch<T>,
    ) {
        let EncoderContext { parameters, segments, dropout } = context;
        let (layer, site) = (&self.layers[number], number as u64 * SITES);
        cache.resize(x.len(), x.len() / self.width * self.hidden);
        let EncoderLayerCache { qkv, attention, attended, norm1, middle, hidden, norm2, out } = cache;
        let residual = resized(&mut scratch.residual, x.len());
        layer.qkv.forward(parameters, x, qkv);
        attention::forward(self.heads, segments, dropout.site(site), qkv, attention, attended);
        layer.attention_out.forward(parameters, attended, residual);
        dropout.site(site + 1).apply(0, residual);
        layer.norm1.forward_residual(parameters, x, residual, norm1, middle);
        layer.feed_forward_in.forward(parameters, middle, hidden);
        activation::relu(hidden);
        dropout.site(site + 2).apply(0, hidden);
        layer.feed_forward_out.forward(parameters, hidden, residual);
        dropout.site(site + 3).apply(0, residual);
        layer.norm2.forward_residual(parameters, middle, residual, norm2, out);
    }

    /// Turns `d_tokens`, the gradient of the last layer's output (`[tokens, W]`), into that of the tokens, in place,
    /// and adds to the gradients of the parameters.
    pub fn backward<T: Real>(
        &self,
        context: EncoderContext<'_, T>,
        tokens: &[T],
        caches: &mut [EncoderLayerCache<T>],
        scratch: &mut EncoderScratch<T>,
        gradient: &mut [T],
        d_tokens: &mut Vec<T>,
    ) {
        for number in (0..self.depth()).rev() {
            let (previous, current) = caches.split_at_mut(number);
            let x = previous.last().map_or(tokens, |previous| &previous.out);
            self.backward_feed_forward(context, number, &current[0], scratch, gradient, d_tokens);
            self.backward_attention(context, number, x, &mut current[0], scratch, gradient, d_tokens);
        }
    }

    /// Backward pass of the feed-forward sublayer: turns `d`, the gradient of a layer's output, into that of `middle`,
    /// in place.
    fn backward_feed_forward<T: Real>(
        &self,
        context: EncoderContext<'_, T>,
        number: usize,
        cache: &EncoderLayerCache<T>,
        scratch: &mut EncoderScratch<T>,
        gradient: &mut [T],
        d: &mut Vec<T>,
    ) {
        let EncoderContext { parameters, dropout, .. } = context;
        let (layer, site) = (&self.layers[number], number as u64 * SITES);
        let d_sublayer = resized(&mut scratch.d_sublayer, d.len());
        let d_residual = resized(&mut scratch.residual, d.len());
        let d_hidden = resized(&mut scratch.d_hidden, cache.hidden.len());
        // `d_sublayer` is the gradient of the sum under the norm, and so that of both summands: `middle` and the
        // network's output.
        layer.norm2.backward(parameters, &cache.norm2, d, gradient, d_sublayer);
        dropout.site(site + 3).apply_into(0, d_sublayer, d_residual);
        // Through the feed-forward network, from its output to its input, which is added to the gradient of `middle`.
        layer.feed_forward_out.backward_parameters(&cache.hidden, d_residual, gradient);
        layer.feed_forward_out.backward_input(parameters, d_residual, Write::Set, d_hidden);
        // Dropout and ReLU in one: a hidden unit is 0 where either of them made it 0.
        dropout.site(site + 2).backward_from_output(&cache.hidden, d_hidden);
        layer.feed_forward_in.backward_parameters(&cache.middle, d_hidden, gradient);
        layer.feed_forward_in.backward_input(parameters, d_hidden, Write::Add, d_sublayer);
        std::mem::swap(d, &mut scratch.d_sublayer);
    }

    /// Backward pass of the attention sublayer: turns `d`, the gradient of `middle`, into that of the layer's input
    /// `x`, in place.
    #[allow(clippy::too_many_arguments)]
    fn backward_attention<T: Real>(
        &self,
        context: EncoderContext<'_, T>,
        number: usize,
        x: &[T],
        cache: &mut EncoderLayerCache<T>,
        scratch: &mut EncoderScratch<T>,
        gradient: &mut [T],
        d: &mut Vec<T>,
    ) {
        let EncoderContext { parameters, segments, dropout } = context;
        let (layer, site) = (&self.layers[number], number as u64 * SITES);
        let d_sublayer = resized(&mut scratch.d_sublayer, d.len());
        let d_residual = resized(&mut scratch.residual, d.len());
        let d_qkv = resized(&mut scratch.d_qkv, 3 * d.len());
        // The gradient of the sum under the norm, `x` plus the attention output.
        layer.norm1.backward(parameters, &cache.norm1, d, gradient, d_sublayer);
        dropout.site(site + 1).apply_into(0, d_sublayer, d_residual);
        // Through the output projection (`d` becomes the gradient of `attended`), attention, and the projection to
        // queries, keys and values.
        layer.attention_out.backward_parameters(&cache.attended, d_residual, gradient);
        layer.attention_out.backward_input(parameters, d_residual, Write::Set, d);
        let EncoderLayerCache { qkv, attention, .. } = cache;
        attention::backward(self.heads, segments, dropout.site(site), qkv, attention, d, d_qkv);
        layer.qkv.backward_parameters(x, d_qkv, gradient);
        layer.qkv.backward_input(parameters, d_qkv, Write::Add, d_sublayer);
        std::mem::swap(d, &mut scratch.d_sublayer);
    }
}

impl<T: Real> EncoderLayerCache<T> {
    /// Sets the lengths of the buffers: `tokens` is the number of tokens times W, and `hidden` that times F.
    fn resize(&mut self, tokens: usize, hidden: usize) {
        resized(&mut self.qkv, 3 * tokens);
        resized(&mut self.attended, tokens);
        resized(&mut self.middle, tokens);
        resized(&mut self.hidden, hidden);
        resized(&mut self.out, tokens);
    }
}

/// `buffer`, resized to this length, with arbitrary contents.
pub(super) fn resized<T: Real>(buffer: &mut Vec<T>, length: usize) -> &mut [T] {
    buffer.resize(length, T::ZERO);
    buffer
}
