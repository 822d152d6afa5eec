//! The attention layer: every item attends to all items of its episode. Start with [`AttentionLayer::forward`];
//! [`attend`] is the attention of one episode.
//!
//! Shapes: M items, C classes, W the width of a state (the vector of an item and a class), H heads of W / H numbers
//! each. The states are normalised. A query and a key per item come from the mean of its states over classes and its
//! state at the given label (`pooled`, `[M, 2 W]`), a value from every state. The attention weight of item j for item i
//! is one number per head, the same for all classes:
//!
//! `A = softmax over j of (q_i . k_j / sqrt(W / H) + e_ij)`
//!
//! with e the logits of the edge network (`edge_network`), which turns features of the pair (i, j), such as whether the
//! labels are the same, into one number per layer and head. They are computed before the first layer. `pairs` is the
//! number of pairs of all episodes: M² of each, row i before row i + 1.
//!
//! The attended value of state (i, c) is `sum over j of A_ij v_jc`, and its projection is added to the state. The
//! values of a head are gathered for all classes first, so that this is one matrix product, `[M, M]` times
//! `[M, C W / H]`. `d_x` is the gradient of the loss with respect to x.

use super::episode_batch::{EpisodeSpan, PassContext, elements};
use super::modules::{BiasFreeLinear, LayerNormOutput, ParameterBuilder, add, add_row};
use crate::buffer::Buffer;
use crate::kernel::kernel;
use crate::layers::layer_norm::LayerNorm;
use crate::layers::linear::Linear;
use crate::matmul::{Matrix, MatrixMut, Write, multiply};
use crate::real::{Real, add_scaled_row, dot, max_of, sum};

/// Width of the states and number of heads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AttentionShape {
    pub(super) width: usize,
    pub(super) heads: usize,
}

impl AttentionShape {
    fn head_width(self) -> usize {
        self.width / self.heads
    }

    /// What products of queries and keys are multiplied by: `1 / sqrt(W / H)`.
    fn scale<T: Real>(self) -> T {
        T::from_f64((self.head_width() as f64).sqrt().recip())
    }
}

/// The parameters of an attention layer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct AttentionLayer {
    shape: AttentionShape,
    norm: LayerNorm,
    query: Linear,
    /// Without a bias, which would add the same number to all logits of a query.
    key: BiasFreeLinear,
    value: BiasFreeLinear,
    out: BiasFreeLinear,
}

/// Activations kept for the backward pass.
pub(super) struct AttentionLayerCache<T: Real> {
    /// `[states, W]`
    normed: LayerNormOutput<T>,
    /// `[items, 2 W]`
    pooled: Buffer<T>,
    /// `[items, W]`
    queries: Buffer<T>,
    /// `[items, W]`
    keys: Buffer<T>,
    /// `[states, W]`
    values: Buffer<T>,
    /// `[states, W]`
    attended: Buffer<T>,
}

impl AttentionLayer {
    pub(super) fn new(builder: &mut ParameterBuilder, name: &str, shape: AttentionShape) -> Self {
        let width = shape.width;
        AttentionLayer {
            shape,
            norm: builder.layer_norm(&format!("{name}.norm"), width),
            query: builder.linear(&format!("{name}.query"), 2 * width, width, 2 * width),
            key: builder.weight(&format!("{name}.key"), 2 * width, width, 2 * width),
            value: builder.weight(&format!("{name}.value"), width, width, width),
            out: builder.weight(&format!("{name}.out"), width, width, width),
        }
    }

    /// Adds the output of the layer to `states` (`[states, W]`). `weights` (`[H, pairs]`) holds the logits of the edge
    /// network and becomes the attention weights. Returns the activations for the backward pass.
    pub(super) fn forward<T: Real>(
        &self,
        context: PassContext<'_, T>,
        states: &mut [T],
        weights: &mut [T],
    ) -> AttentionLayerCache<T> {
        let PassContext { parameters, batch } = context;
        let width = self.shape.width;
        let normed = LayerNormOutput::forward(&self.norm, parameters, states);
        let buffer = |rows: usize| Buffer::new(rows * width);
        let mut pooled = buffer(2 * batch.items);
        for span in &batch.spans {
            let states = &normed.out[elements(span.states(), width)];
            mean_and_given(span, width, states, &mut pooled[elements(span.items(), 2 * width)]);
        }
        let (mut queries, mut keys) = (buffer(batch.items), buffer(batch.items));
        let (mut values, mut attended) = (buffer(batch.states), buffer(batch.states));
        self.query.forward(parameters, &pooled, &mut queries);
        self.key.forward(parameters, &pooled, Write::Set, &mut keys);
        self.value.forward(parameters, &normed.out, Write::Set, &mut values);
        let mut scratch = AttentionScratch::default();
        for span in &batch.spans {
            let (items, states) = (elements(span.items(), width), elements(span.states(), width));
            let inputs = AttentionInputs {
                queries: &queries[items.clone()],
                keys: &keys[items],
                values: &values[states.clone()],
            };
            // The episode's logits, `[M, M]` per head.
            let mut weights: Vec<&mut [T]> =
                weights.chunks_exact_mut(batch.pairs).map(|plane| &mut plane[span.pairs()]).collect();
            attend(span, self.shape, inputs, &mut weights, &mut attended[states], &mut scratch);
        }
        self.out.forward(parameters, &attended, Write::Add, states);
        AttentionLayerCache { normed, pooled, queries, keys, values, attended }
    }

    /// Turns the gradient of the layer's output states into that of its input states, in place. Sets `d_logits`
    /// (`[H, pairs]`), the gradient of the edge network's logits, and adds to the gradients of the parameters.
    pub(super) fn backward<T: Real>(
        &self,
        context: PassContext<'_, T>,
        cache: &AttentionLayerCache<T>,
        weights: &[T],
        d_states: &mut [T],
        d_logits: &mut [T],
        gradient: &mut [T],
    ) {
        let PassContext { parameters, batch } = context;
        let width = self.shape.width;
        // The gradients of the attended values, then of queries, keys and values.
        let buffer = |rows: usize| Buffer::new(rows * width);
        let mut d_attended = buffer(batch.states);
        let d_x = Some((Write::Set, &mut *d_attended));
        self.out.backward(parameters, &cache.attended, d_states, gradient, d_x);
        let mut d_inputs = (buffer(batch.items), buffer(batch.items), buffer(batch.states));
        self.attend_backward(context, cache, weights, &d_attended, &mut d_inputs, d_logits);
        let (d_queries, d_keys, d_values) = d_inputs;
        // Through queries and keys to the pooled states.
        let mut d_pooled = buffer(2 * batch.items);
        self.query.backward_parameters(&cache.pooled, &d_queries, gradient);
        self.query.backward_input(parameters, &d_queries, Write::Set, &mut d_pooled);
        let d_x = Some((Write::Add, &mut *d_pooled));
        self.key.backward(parameters, &cache.pooled, &d_keys, gradient, d_x);
        // The gradient of the normalised states, through the values and the pooled states. From here on, buffers that
        // are no longer needed are used again under another name.
        let mut d_normed = d_attended;
        let d_x = Some((Write::Set, &mut *d_normed));
        self.value.backward(parameters, &cache.normed.out, &d_values, gradient, d_x);
        for span in &batch.spans {
            let d_pooled = &d_pooled[elements(span.items(), 2 * width)];
            mean_and_given_backward(span, width, d_pooled, &mut d_normed[elements(span.states(), width)]);
        }
        // Through the norm. The layer's output is added to its input, so the gradient through the layer is added to
        // that of the output states.
        let mut d_residual = d_values;
        cache.normed.backward(&self.norm, parameters, &d_normed, gradient, &mut d_residual);
        add(d_states, &d_residual);
    }

    /// [`attend_backward`] of all episodes. `d_inputs` are the gradients of queries, keys and values.
    fn attend_backward<T: Real>(
        &self,
        context: PassContext<'_, T>,
        cache: &AttentionLayerCache<T>,
        weights: &[T],
        d_attended: &[T],
        (d_queries, d_keys, d_values): &mut (Buffer<T>, Buffer<T>, Buffer<T>),
        d_logits: &mut [T],
    ) {
        let batch = context.batch;
        let width = self.shape.width;
        let mut scratch = AttentionScratch::default();
        for span in &batch.spans {
            let (items, states) = (elements(span.items(), width), elements(span.states(), width));
            let inputs = AttentionInputs {
                queries: &cache.queries[items.clone()],
                keys: &cache.keys[items.clone()],
                values: &cache.values[states.clone()],
            };
            let d_inputs = AttentionGradients {
                queries: &mut d_queries[items.clone()],
                keys: &mut d_keys[items],
                values: &mut d_values[states.clone()],
            };
            let weights: Vec<&[T]> =
                weights.chunks_exact(batch.pairs).map(|plane| &plane[span.pairs()]).collect();
            let mut d_logits: Vec<&mut [T]> =
                d_logits.chunks_exact_mut(batch.pairs).map(|plane| &mut plane[span.pairs()]).collect();
            let d_attended = &d_attended[states];
            let (shape, scratch) = (self.shape, &mut scratch);
            attend_backward(span, shape, inputs, &weights, d_attended, d_inputs, &mut d_logits, scratch);
        }
    }
}

/// The inputs of attention in one episode.
#[derive(Clone, Copy)]
struct AttentionInputs<'a, T> {
    /// `[M, W]`
    queries: &'a [T],
    /// `[M, W]`
    keys: &'a [T],
    /// `[M C, W]`
    values: &'a [T],
}

/// The gradients of [`AttentionInputs`], to be overwritten.
struct AttentionGradients<'a, T> {
    queries: &'a mut [T],
    keys: &'a mut [T],
    values: &'a mut [T],
}

/// Memory that is needed only while one episode is computed.
#[derive(Debug, Default)]
struct AttentionScratch<T> {
    /// `[M, C W / H]`
    values: Vec<T>,
    /// `[M, C W / H]`
    attended: Vec<T>,
    /// `[M, M]`
    products: Vec<T>,
}

impl<T: Real> AttentionScratch<T> {
    fn resize(&mut self, items: usize, row: usize) {
        self.values.resize(items * row, T::ZERO);
        self.attended.resize(items * row, T::ZERO);
        self.products.resize(items * items, T::ZERO);
    }
}

/// Writes the attended values (`[M C, W]`). `weights` (`[M, M]` per head) holds the logits of the edge network and
/// becomes the attention weights.
fn attend<T: Real>(
    span: &EpisodeSpan,
    shape: AttentionShape,
    inputs: AttentionInputs<'_, T>,
    weights: &mut [&mut [T]],
    attended: &mut [T],
    scratch: &mut AttentionScratch<T>,
) {
    let (items, head_width) = (span.items, shape.head_width());
    // The length of an item's values of one head, those for all classes one after the other.
    let row = span.classes * head_width;
    scratch.resize(items, row);
    for (head, weights) in weights.iter_mut().enumerate() {
        // `q kᵀ`, the attention weights, and the values weighted by them.
        multiply(
            of_head(inputs.queries, items, shape, head),
            of_head(inputs.keys, items, shape, head).transposed(),
            Write::Set,
            MatrixMut::new(&mut scratch.products, items, items),
        );
        softmax_rows(items, shape.scale(), &scratch.products, weights);
        gather(shape.width, head * head_width, head_width, inputs.values, &mut scratch.values);
        multiply(
            Matrix::new(weights, items, items),
            Matrix::new(&scratch.values, items, row),
            Write::Set,
            MatrixMut::new(&mut scratch.attended, items, row),
        );
        scatter(shape.width, head * head_width, head_width, &scratch.attended, attended);
    }
}

/// Backward pass of [`attend`]: sets the gradients of the inputs and, in `d_logits` (`[M, M]` per head), of the edge
/// network's logits. `weights` are the attention weights.
#[allow(clippy::too_many_arguments)]
fn attend_backward<T: Real>(
    span: &EpisodeSpan,
    shape: AttentionShape,
    inputs: AttentionInputs<'_, T>,
    weights: &[&[T]],
    d_attended: &[T],
    d_inputs: AttentionGradients<'_, T>,
    d_logits: &mut [&mut [T]],
    scratch: &mut AttentionScratch<T>,
) {
    let (items, head_width) = (span.items, shape.head_width());
    // The length of an item's values of one head, those for all classes one after the other.
    let row = span.classes * head_width;
    scratch.resize(items, row);
    for (head, (weights, d_logits)) in weights.iter().zip(d_logits).enumerate() {
        gather(shape.width, head * head_width, head_width, inputs.values, &mut scratch.values);
        gather(shape.width, head * head_width, head_width, d_attended, &mut scratch.attended);
        let d_attended = Matrix::new(&scratch.attended, items, row);
        let values = Matrix::new(&scratch.values, items, row);
        // Weights: `d_A = d_attended vᵀ`, in `d_logits` until the softmax.
        multiply(d_attended, values.transposed(), Write::Set, MatrixMut::new(d_logits, items, items));
        // Values: `d_v = Aᵀ d_attended`.
        let transposed = Matrix::new(weights, items, items).transposed();
        multiply(transposed, d_attended, Write::Set, MatrixMut::new(&mut scratch.values, items, row));
        scatter(shape.width, head * head_width, head_width, &scratch.values, d_inputs.values);
        // Logits, then queries and keys: `d_q = d_products k`, `d_k = d_productsᵀ q`.
        softmax_rows_backward(items, shape.scale(), weights, d_logits, &mut scratch.products);
        let d_products = Matrix::new(&scratch.products, items, items);
        let keys = of_head(inputs.keys, items, shape, head);
        multiply(d_products, keys, Write::Set, of_head_mut(d_inputs.queries, items, shape, head));
        let queries = of_head(inputs.queries, items, shape, head);
        let d_keys = of_head_mut(d_inputs.keys, items, shape, head);
        multiply(d_products.transposed(), queries, Write::Set, d_keys);
    }
}

/// The columns of one head, `[M, W / H]`.
fn of_head<T>(rows: &[T], items: usize, shape: AttentionShape, head: usize) -> Matrix<'_, T> {
    let head_width = shape.head_width();
    Matrix::strided(&rows[head * head_width..], items, head_width, shape.width)
}

/// [`of_head`] of a gradient, to be overwritten.
fn of_head_mut<T>(rows: &mut [T], items: usize, shape: AttentionShape, head: usize) -> MatrixMut<'_, T> {
    let head_width = shape.head_width();
    MatrixMut::strided(&mut rows[head * head_width..], items, head_width, shape.width)
}

kernel! {
    /// Copies `count` columns, from column `from` on, of rows of `width` to `out`.
    fn gather<'a, T>(width: usize, from: usize, count: usize, rows: &'a [T], out: &'a mut [T]) {
        for (row, out) in rows.chunks_exact(width).zip(out.chunks_exact_mut(count)) {
            out.copy_from_slice(&row[from..from + count]);
        }
    }
}

kernel! {
    /// The inverse of [`gather`].
    fn scatter<'a, T>(width: usize, from: usize, count: usize, parts: &'a [T], rows: &'a mut [T]) {
        for (row, parts) in rows.chunks_exact_mut(width).zip(parts.chunks_exact(count)) {
            row[from..from + count].copy_from_slice(parts);
        }
    }
}

kernel! {
    /// `weights = softmax(scale products + weights)`, row by row.
    fn softmax_rows<'a, T>(items: usize, scale: T, products: &'a [T], weights: &'a mut [T]) {
        for (products, row) in products.chunks_exact(items).zip(weights.chunks_exact_mut(items)) {
            for (logit, &product) in row.iter_mut().zip(products) {
                *logit += scale * product;
            }
            let max = max_of(row, row[0]);
            for value in row.iter_mut() {
                *value = (*value - max).exp();
            }
            let scale = T::ONE / sum(row);
            for value in row.iter_mut() {
                *value *= scale;
            }
        }
    }
}

kernel! {
    /// Turns the gradient of the attention weights into that of their logits, in place, and sets `d_products`, the
    /// gradient of the products, to `scale` times the gradient of the logits.
    fn softmax_rows_backward<'a, T>(
        items: usize,
        scale: T,
        weights: &'a [T],
        d_weights: &'a mut [T],
        d_products: &'a mut [T],
    ) {
        let rows = weights.chunks_exact(items).zip(d_weights.chunks_exact_mut(items));
        for ((weights, d_weights), d_products) in rows.zip(d_products.chunks_exact_mut(items)) {
            let mean = dot(weights, d_weights);
            for ((d_weight, &weight), d_product) in d_weights.iter_mut().zip(weights).zip(d_products) {
                let d_logit = weight * (*d_weight - mean);
                *d_weight = d_logit;
                *d_product = scale * d_logit;
            }
        }
    }
}

kernel! {
    /// Pools the states of each item (`[M C, width]`) to the mean over classes, followed by the state at the given
    /// label (`[M, 2 width]`).
    fn mean_and_given<'a, T>(span: &'a EpisodeSpan, width: usize, states: &'a [T], out: &'a mut [T]) {
        let inverse_count = T::from_f64(1.0 / span.classes as f64);
        let rows = states.chunks_exact(span.classes * width).zip(out.chunks_exact_mut(2 * width));
        for ((states, out), &given) in rows.zip(&span.given) {
            let (mean, at_given) = out.split_at_mut(width);
            mean.fill(T::ZERO);
            for state in states.chunks_exact(width) {
                add_scaled_row(mean, state, inverse_count);
            }
            at_given.copy_from_slice(&states[given as usize * width..][..width]);
        }
    }
}

kernel! {
    /// Backward pass of [`mean_and_given`]: adds to the gradient of the states.
    fn mean_and_given_backward<'a, T>(
        span: &'a EpisodeSpan,
        width: usize,
        d_out: &'a [T],
        d_states: &'a mut [T],
    ) {
        let inverse_count = T::from_f64(1.0 / span.classes as f64);
        let rows = d_states.chunks_exact_mut(span.classes * width).zip(d_out.chunks_exact(2 * width));
        for ((d_states, d_out), &given) in rows.zip(&span.given) {
            let (d_mean, d_at_given) = d_out.split_at(width);
            for d_state in d_states.chunks_exact_mut(width) {
                add_scaled_row(d_state, d_mean, inverse_count);
            }
            add_row(&mut d_states[given as usize * width..][..width], d_at_given);
        }
    }
}
