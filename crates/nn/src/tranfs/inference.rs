//! Inference: prototypes and P(mislabelled) of support sets ([`Tranfs::prototypes`]), and their attention maps
//! ([`Tranfs::attention`]).

use std::ops::Range;

use super::Tranfs;
use super::encoder::{EncoderContext, EncoderLayerCache};
use super::projections::Workspace;
use super::token_layout::TranfsInput;
use crate::layers::attention::padded;
use crate::layers::dropout::Dropout;
use crate::real::Real;

/// What TraNFS computes for one support set.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TranfsOutput {
    /// The prototype of each class, `[C, D]`.
    pub prototypes: Vec<f32>,
    /// P(mislabelled) of each item, in the order of the support set: the probability that its given label is wrong.
    pub mislabelled: Vec<f32>,
}

/// What a token represents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TranfsToken {
    /// A class, by its number.
    Class(u32),
    /// An item, by its index in the support set.
    Item(usize),
}

/// The attention weights of one support set, of all layers and heads.
#[derive(Debug, Clone, PartialEq)]
pub struct TranfsAttention {
    /// What the rows and columns of a map represent: classes, then items sorted by class.
    pub tokens: Vec<TranfsToken>,
    /// Number of layers.
    pub layers: usize,
    /// Heads per layer.
    pub heads: usize,
    /// `[layers, heads, tokens, tokens]`; row i are the weights of query token i and sum to 1.
    pub weights: Vec<f32>,
}

impl TranfsAttention {
    /// The map of one head, `[tokens, tokens]`.
    pub fn head(&self, layer: usize, head: usize) -> &[f32] {
        let size = self.tokens.len() * self.tokens.len();
        let number = layer * self.heads + head;
        &self.weights[number * size..(number + 1) * size]
    }
}

/// The number of support sets that are processed together: their activations stay in the second-level cache.
const BATCH: usize = 8;

impl Tranfs {
    /// Computes prototypes and P(mislabelled) of support sets, on the calling thread. The result for a support set does
    /// not depend on the others of the call.
    ///
    /// # Panics
    /// If a support set has more classes than the model, or shapes disagree.
    pub fn prototypes(&self, parameters: &[f32], inputs: &[TranfsInput<'_>]) -> Vec<TranfsOutput> {
        self.with_workspace(|workspace| {
            let mut outputs = Vec::with_capacity(inputs.len());
            for inputs in inputs.chunks(BATCH) {
                self.infer(parameters, inputs, workspace, |_, _| ());
                outputs.extend((0..inputs.len()).map(|number| self.output_of(number, workspace)));
            }
            outputs
        })
    }

    /// Computes the attention weights of all layers and heads for one support set.
    ///
    /// # Panics
    /// As [`Tranfs::prototypes`].
    pub fn attention(&self, parameters: &[f32], input: TranfsInput<'_>) -> TranfsAttention {
        self.with_workspace(|workspace| {
            // A layer stores its maps with query tokens in columns and padded rows; here they become
            // `[tokens, tokens]`.
            let mut weights = Vec::new();
            self.infer(parameters, &[input], workspace, |tokens, cache| {
                for map in cache.attention.weights.chunks_exact(tokens * padded(tokens)) {
                    for token in 0..tokens {
                        weights.extend(map[token..].iter().step_by(padded(tokens)));
                    }
                }
            });
            let classes = (0..input.classes).map(|class| TranfsToken::Class(class as u32));
            let items = workspace.layout.sources.iter().map(|&item| TranfsToken::Item(item));
            let tokens = classes.chain(items).collect();
            TranfsAttention { tokens, layers: self.config.layers, heads: self.config.heads, weights }
        })
    }

    /// The forward pass without dropout. Calls `visit` after every layer with the number of tokens and the layer's
    /// activations. Leaves prototypes and logits in the workspace.
    fn infer<T: Real>(
        &self,
        parameters: &[T],
        inputs: &[TranfsInput<'_, T>],
        workspace: &mut Workspace<T>,
        mut visit: impl FnMut(usize, &EncoderLayerCache<T>),
    ) {
        let Workspace { layout, states, caches, scratch, buffers } = workspace;
        layout.fill(inputs.iter().copied(), self.config.classes);
        self.embed(parameters, layout, inputs.iter().copied(), buffers, states);
        // One cache is enough, because there is no backward pass.
        caches.resize_with(caches.len().max(1), EncoderLayerCache::default);
        let context = EncoderContext { parameters, segments: &layout.segments, dropout: Dropout::NONE };
        for layer in 0..self.encoder.depth() {
            self.encoder.forward_layer(context, layer, states, &mut caches[0], scratch);
            // The output becomes the input of the next layer.
            std::mem::swap(states, &mut caches[0].out);
            visit(layout.tokens(), &caches[0]);
        }
        self.project_output(parameters, layout, states, buffers);
    }

    /// The output of support set `number` of the last [`Tranfs::infer`], its items in their original order.
    fn output_of(&self, number: usize, workspace: &Workspace<f32>) -> TranfsOutput {
        let Workspace { layout, buffers, .. } = workspace;
        let span = &layout.spans[number];
        let dim = self.config.dim;
        let rows: Range<usize> = span.classes.start * dim..span.classes.end * dim;
        let mut mislabelled = vec![0.0; span.items.len()];
        for item in span.items.clone() {
            mislabelled[layout.sources[item]] = buffers.logits[item].sigmoid();
        }
        TranfsOutput { prototypes: buffers.prototypes[rows].to_vec(), mislabelled }
    }
}
