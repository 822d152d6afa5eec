//! The transformer's encoder: post-norm layers of attention and a feed-forward part.
//!
//! Shapes: T tokens of W numbers in segments, F the feed-forward width. As in PyTorch's layer, dropout strikes at
//! four sites: the attention's shares, its output, the hidden numbers, and the feed-forward output.

use std::ops::Range;

use super::Config;
use crate::initial::{fill_uniform, orthogonal, xavier};
use crate::isa::Isa;
use crate::layers::activation;
use crate::layers::attention::{self, Heads};
use crate::layers::dropout::Dropout;
use crate::layers::linear::Linear;
use crate::layers::norm::{self, Norm};
use crate::matmul::Write;
use crate::parameters::Layout;
use crate::real::Real;

/// Where its parameters lie.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Encoder {
    layers: Vec<Layer>,
    heads: Heads,
    width: usize,
    hidden: usize,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Layer {
    qkv: Linear,
    mix: Linear,
    norm1: Norm,
    feed_in: Linear,
    feed_out: Linear,
    norm2: Norm,
}

/// What the backward pass of one layer needs.
#[derive(Debug, Clone, Default)]
pub(super) struct Kept<T> {
    /// T x 3W
    qkv: Vec<T>,
    pub(super) attention: attention::Kept<T>,
    /// T x W, what attention gave
    looked: Vec<T>,
    norm1: norm::Kept<T>,
    /// T x W, between the two halves
    middle: Vec<T>,
    /// T x F
    hidden: Vec<T>,
    norm2: norm::Kept<T>,
    /// T x W
    pub(super) out: Vec<T>,
}

/// Room for what no later pass needs.
#[derive(Debug, Clone, Default)]
pub(super) struct Scratch<T> {
    /// T x W
    change: Vec<T>,
    /// T x W
    d_half: Vec<T>,
    /// T x F
    d_hidden: Vec<T>,
    /// T x 3W
    d_qkv: Vec<T>,
}

/// What all layers of a call have in common.
#[derive(Debug, Clone, Copy)]
pub(super) struct Call<'a, T> {
    pub isa: Isa,
    pub parameters: &'a [T],
    pub segments: &'a [Range<usize>],
    pub dropout: Dropout,
}

const SITES: u64 = 4;

/// How large the feed-forward parts start, of PyTorch's size.
const LITTLE: f64 = 0.2;

impl Encoder {
    pub fn add(layout: &mut Layout, config: &Config) -> Self {
        let (width, hidden) = (config.width, config.feed_forward);
        let layers = (0..config.layers)
            .map(|number| {
                let name = |part: &str| format!("layer{number}.{part}");
                Layer {
                    qkv: Linear::add(layout, &name("attention.in"), width, 3 * width),
                    mix: Linear::add(layout, &name("attention.out"), width, width),
                    norm1: Norm::add(layout, &name("norm1"), width),
                    feed_in: Linear::add(layout, &name("feed_forward.in"), width, hidden),
                    feed_out: Linear::add(layout, &name("feed_forward.out"), hidden, width),
                    norm2: Norm::add(layout, &name("norm2"), width),
                }
            })
            .collect();
        Encoder { layers, heads: Heads { count: config.heads, width: width / config.heads }, width, hidden }
    }

    /// A layer starts by adding the mean of its class: keys are the queries, so tokens that share a position attend to each other;
    /// the way out of attention undoes the way in, so what a token attends to is added to it as it is; and the feed-forward
    /// part says little. Started as PyTorch starts its layers, a class token gets noise instead, and the model spends thousands
    /// of steps, or all of them, on a plateau where every prototype is the same (docs/results/heads-commands.md).
    pub fn initialise(&self, parameters: &mut [f32], random: &mut dyn FnMut() -> f64) {
        let (width, hidden) = (self.width, self.hidden);
        let bound = |inputs: usize| 1.0 / (inputs as f64).sqrt();
        for layer in &self.layers {
            let mut values = vec![0.0; width * width];
            orthogonal(&mut values, width, width, random);
            let qkv = &mut parameters[layer.qkv.weight.clone()];
            fill_uniform(qkv, xavier(width, 3 * width), random);
            for (row, values) in qkv.chunks_exact_mut(3 * width).zip(values.chunks_exact(width)) {
                row.copy_within(..width, width);
                row[2 * width..].copy_from_slice(values);
            }
            for (place, mix) in parameters[layer.mix.weight.clone()].iter_mut().enumerate() {
                *mix = values[place % width * width + place / width];
            }
            for (linear, bound) in [(&layer.feed_in, bound(width)), (&layer.feed_out, LITTLE * bound(hidden))]
            {
                fill_uniform(&mut parameters[linear.weight.clone()], bound, random);
                fill_uniform(&mut parameters[linear.bias.clone()], bound, random);
            }
            for norm in [&layer.norm1, &layer.norm2] {
                parameters[norm.scale.clone()].fill(1.0);
            }
        }
    }

    /// The scale of what leaves the encoder.
    pub fn last_scale(&self) -> Range<usize> {
        self.layers.last().map_or(0..0, |layer| layer.norm2.scale.clone())
    }

    /// Layers of the encoder.
    pub fn depth(&self) -> usize {
        self.layers.len()
    }

    /// All layers; each layer's result stays in its `kept`.
    pub fn forward<T: Real>(
        &self,
        call: Call<'_, T>,
        tokens: &[T],
        kept: &mut Vec<Kept<T>>,
        scratch: &mut Scratch<T>,
    ) {
        kept.resize_with(self.depth(), Kept::default);
        for number in 0..self.depth() {
            let (before, now) = kept.split_at_mut(number);
            let x = before.last().map_or(tokens, |before| &before.out);
            self.forward_layer(call, number, x, &mut now[0], scratch);
        }
    }

    /// One layer.
    pub fn forward_layer<T: Real>(
        &self,
        call: Call<'_, T>,
        number: usize,
        x: &[T],
        kept: &mut Kept<T>,
        scratch: &mut Scratch<T>,
    ) {
        let Call { isa, parameters, segments, dropout } = call;
        let (layer, site) = (&self.layers[number], number as u64 * SITES);
        kept.fit(x.len(), x.len() / self.width * self.hidden);
        let change = fit(&mut scratch.change, x.len());
        layer.qkv.forward(isa, parameters, x, &mut kept.qkv);
        let shares = dropout.site(site);
        attention::forward(
            isa,
            self.heads,
            segments,
            shares,
            &kept.qkv,
            &mut kept.attention,
            &mut kept.looked,
        );
        layer.mix.forward(isa, parameters, &kept.looked, change);
        dropout.site(site + 1).apply(isa, 0, change);
        layer.norm1.forward_of_sum(isa, parameters, x, change, &mut kept.norm1, &mut kept.middle);
        layer.feed_in.forward(isa, parameters, &kept.middle, &mut kept.hidden);
        activation::relu(isa, &mut kept.hidden);
        dropout.site(site + 2).apply(isa, 0, &mut kept.hidden);
        layer.feed_out.forward(isa, parameters, &kept.hidden, change);
        dropout.site(site + 3).apply(isa, 0, change);
        layer.norm2.forward_of_sum(isa, parameters, &kept.middle, change, &mut kept.norm2, &mut kept.out);
    }

    /// All layers backwards: the gradient of the last layer's result turns into that of the tokens, in place.
    pub fn backward<T: Real>(
        &self,
        call: Call<'_, T>,
        tokens: &[T],
        kept: &mut [Kept<T>],
        scratch: &mut Scratch<T>,
        gradient: &mut [T],
        d_tokens: &mut Vec<T>,
    ) {
        for number in (0..self.depth()).rev() {
            let (before, now) = kept.split_at_mut(number);
            let x = before.last().map_or(tokens, |before| &before.out);
            self.backward_feed_forward(call, number, &now[0], scratch, gradient, d_tokens);
            self.backward_attention(call, number, x, &mut now[0], scratch, gradient, d_tokens);
        }
    }

    /// From the gradient of a layer's result to that of its middle, in place.
    fn backward_feed_forward<T: Real>(
        &self,
        call: Call<'_, T>,
        number: usize,
        kept: &Kept<T>,
        scratch: &mut Scratch<T>,
        gradient: &mut [T],
        d: &mut Vec<T>,
    ) {
        let Call { isa, parameters, dropout, .. } = call;
        let (layer, site) = (&self.layers[number], number as u64 * SITES);
        let (d_half, change) = (fit(&mut scratch.d_half, d.len()), fit(&mut scratch.change, d.len()));
        let d_hidden = fit(&mut scratch.d_hidden, kept.hidden.len());
        layer.norm2.backward(isa, parameters, &kept.norm2, d, gradient, d_half);
        dropout.site(site + 3).copy(isa, 0, d_half, change);
        layer.feed_out.backward_parameters(isa, &kept.hidden, change, gradient);
        layer.feed_out.backward_input(isa, parameters, change, Write::Set, d_hidden);
        dropout.site(site + 2).backward_positive(isa, &kept.hidden, d_hidden);
        layer.feed_in.backward_parameters(isa, &kept.middle, d_hidden, gradient);
        layer.feed_in.backward_input(isa, parameters, d_hidden, Write::Add, d_half);
        std::mem::swap(d, &mut scratch.d_half);
    }

    /// From the gradient of a layer's middle to that of its tokens, in place.
    #[allow(clippy::too_many_arguments)]
    fn backward_attention<T: Real>(
        &self,
        call: Call<'_, T>,
        number: usize,
        x: &[T],
        kept: &mut Kept<T>,
        scratch: &mut Scratch<T>,
        gradient: &mut [T],
        d: &mut Vec<T>,
    ) {
        let Call { isa, parameters, segments, dropout } = call;
        let (layer, site) = (&self.layers[number], number as u64 * SITES);
        let (d_half, change) = (fit(&mut scratch.d_half, d.len()), fit(&mut scratch.change, d.len()));
        let d_qkv = fit(&mut scratch.d_qkv, 3 * d.len());
        layer.norm1.backward(isa, parameters, &kept.norm1, d, gradient, d_half);
        dropout.site(site + 1).copy(isa, 0, d_half, change);
        layer.mix.backward_parameters(isa, &kept.looked, change, gradient);
        layer.mix.backward_input(isa, parameters, change, Write::Set, d);
        let shares = dropout.site(site);
        attention::backward(isa, self.heads, segments, shares, &kept.qkv, &mut kept.attention, d, d_qkv);
        layer.qkv.backward_parameters(isa, x, d_qkv, gradient);
        layer.qkv.backward_input(isa, parameters, d_qkv, Write::Add, d_half);
        std::mem::swap(d, &mut scratch.d_half);
    }
}

impl<T: Real> Kept<T> {
    fn fit(&mut self, tokens: usize, hidden: usize) {
        fit(&mut self.qkv, 3 * tokens);
        fit(&mut self.looked, tokens);
        fit(&mut self.middle, tokens);
        fit(&mut self.hidden, hidden);
        fit(&mut self.out, tokens);
    }
}

/// A buffer as long as needed; what it holds does not matter.
pub(super) fn fit<T: Real>(buffer: &mut Vec<T>, length: usize) -> &mut [T] {
    buffer.resize(length, T::ZERO);
    buffer
}
