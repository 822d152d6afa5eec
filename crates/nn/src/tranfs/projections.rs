//! The projections before and after the encoder, forward and backward, for all support sets of a call together. In the
//! order of a training step: [`Tranfs::embed`], the encoder, [`Tranfs::project_output`], the losses,
//! [`Tranfs::project_output_backward`], the encoder backward, [`Tranfs::embed_backward`], and, if a backbone is trained
//! with the head, [`Tranfs::project_items_backward`].
//!
//! Shapes: D the dimension of embeddings, W the width of tokens; I items and C class tokens of all support sets,
//! together `tokens`. The gradient of the projections is a product of two stacks of rows, `leftᵀ right`. Left (each D
//! wide): the items, the gradients of the prototypes, and the weight of the logit of "mislabelled". Right (each W
//! wide): what each of them is multiplied with, namely the gradients of the projected items, the output states of the
//! class tokens, and the gradient of the projected weight. With tied projections this is one matrix product; otherwise
//! the items belong to the down-projection and the others to the up-projection.
//!
//! A *state* is a token as the encoder reads or writes it. `d_x` is the gradient of the loss with respect to x.

use super::Tranfs;
use super::encoder::{EncoderLayerCache, EncoderScratch, resized};
use super::token_layout::{SupportSpan, TokenLayout, TranfsInput};
use crate::buffer::Buffer;
use crate::head::FeatureGradient;
use crate::kernel::kernel;
use crate::matmul::{Matrix, MatrixMut, Write, add_scaled, multiply};
use crate::memory::prefetch_line;
use crate::real::{Real, add_scaled_row, dot};

/// Memory for the layout and the activations of a call, reused from call to call.
#[derive(Debug, Clone, Default)]
pub(super) struct Workspace<T> {
    pub layout: TokenLayout,
    /// The tokens that enter the encoder, `[tokens, W]`.
    pub states: Vec<T>,
    pub caches: Vec<EncoderLayerCache<T>>,
    pub scratch: EncoderScratch<T>,
    pub buffers: ProjectionBuffers<T>,
}

/// Inputs, outputs and gradients of the projections.
#[derive(Debug, Clone, Default)]
pub(super) struct ProjectionBuffers<T> {
    /// The left stack, `[I + C + 1, D]`: items, gradients of the prototypes, weight of "mislabelled".
    pub left: Vec<T>,
    /// The right stack, `[I + C + 1, W]`: projected items and later their gradients, output states of the class tokens,
    /// gradient of the projected weight.
    right: Vec<T>,
    /// The projected weight of "mislabelled", `Uᵀ w` in the head of [`super`], `[W]`.
    direction: Vec<T>,
    /// The prototypes of all support sets, `[C, D]`.
    pub prototypes: Vec<T>,
    /// Logits of "mislabelled", `[I]`; later their gradients.
    pub logits: Vec<T>,
    /// The gradient of the class tokens' output states, `[C, W]`.
    d_class_states: Vec<T>,
    /// The gradient of the encoder's output, later that of its input, `[tokens, W]`.
    pub d_states: Vec<T>,
    /// Logits of the queries of one episode, `[Q, classes]`, or twice their gradient.
    pub query_logits: Vec<T>,
    /// The mean of a class's correctly labelled items, `[D]`.
    pub clean_mean: Vec<T>,
}

impl Tranfs {
    /// Copies the items to the left stack, projects them into the right stack, and sets `states`, the tokens that enter
    /// the encoder (`[tokens, W]`). `inputs` are the support sets of `layout`.
    pub(super) fn embed<'a, T: Real>(
        &self,
        parameters: &[T],
        layout: &TokenLayout,
        inputs: impl Iterator<Item = TranfsInput<'a, T>>,
        buffers: &mut ProjectionBuffers<T>,
        states: &mut Vec<T>,
    ) {
        let (dim, width) = (self.config.dim, self.config.width);
        let ProjectionBuffers { left, right, .. } = buffers;
        let (items, rows) = (layout.items(), layout.items() + layout.classes() + 1);
        resized(left, rows * dim);
        resized(right, rows * width);
        for (input, span) in inputs.zip(&layout.spans) {
            let rows = left[span.items.start * dim..span.items.end * dim].chunks_exact_mut(dim);
            let sources = &layout.sources[span.items.clone()];
            for (number, to) in rows.enumerate() {
                // Items are scattered over memory: the one after the next is prefetched while this one is copied.
                if let Some(&ahead) = sources.get(number + 2) {
                    prefetch_row(input.items[ahead]);
                }
                to.copy_from_slice(input.items[sources[number]]);
            }
        }
        let (left, projected) = (&left[..items * dim], &mut right[..items * width]);
        let down = Matrix::new(&parameters[self.ranges.down.clone()], dim, width);
        let out = MatrixMut::new(projected, items, width);
        multiply(Matrix::new(left, items, dim), down, Write::Set, out);
        resized(states, layout.tokens() * width);
        for span in &layout.spans {
            self.set_tokens(parameters, layout, span, projected, states);
        }
    }

    /// Sets the tokens of one support set: class tokens and projected items, with positions added.
    fn set_tokens<T: Real>(
        &self,
        parameters: &[T],
        layout: &TokenLayout,
        span: &SupportSpan,
        projected: &[T],
        states: &mut [T],
    ) {
        let width = self.config.width;
        let table_rows = &layout.table_rows[span.classes.clone()];
        let positions = &parameters[self.ranges.positions.clone()];
        let states = &mut states[span.tokens.start * width..span.tokens.end * width];
        let (class_states, item_states) = states.split_at_mut(table_rows.len() * width);
        class_states.fill(T::ZERO);
        let inverse_counts = inverse_counts(layout, span);
        for (item, state) in span.items.clone().zip(item_states.chunks_exact_mut(width)) {
            let class = layout.given[item] as usize;
            let projected = &projected[item * width..(item + 1) * width];
            let position = &positions[table_rows[class] * width..(table_rows[class] + 1) * width];
            for ((state, &projected), &position) in state.iter_mut().zip(projected).zip(position) {
                *state = projected + position;
            }
            if self.ranges.class_tokens.is_none() {
                let class_state = &mut class_states[class * width..(class + 1) * width];
                add_scaled_row(class_state, projected, inverse_counts[class]);
            }
        }
        for (&row, state) in table_rows.iter().zip(class_states.chunks_exact_mut(width)) {
            add_scaled_row(state, &positions[row * width..(row + 1) * width], T::ONE);
            if let Some(class_tokens) = &self.ranges.class_tokens {
                let class_token = &parameters[class_tokens.clone()][row * width..(row + 1) * width];
                add_scaled_row(state, class_token, T::ONE);
            }
        }
    }

    /// Backward pass of [`Tranfs::embed`], from `d_states`, the gradient of the encoder's input: adds to the gradients
    /// of the tables (positions, class tokens). The stacks are complete then, so it also adds to the gradients of both
    /// projections.
    pub(super) fn embed_backward<T: Real>(
        &self,
        layout: &TokenLayout,
        gradient: &mut [T],
        buffers: &mut ProjectionBuffers<T>,
    ) {
        let (dim, width) = (self.config.dim, self.config.width);
        let ProjectionBuffers { left, right, d_states, .. } = buffers;
        let items = layout.items();
        let d_projected = &mut right[..items * width];
        for span in &layout.spans {
            self.set_tokens_backward(layout, span, d_states, d_projected, gradient);
        }
        // Adds `leftᵀ right` of some rows of the stacks to a part of the gradient.
        let mut add_product = |rows: std::ops::Range<usize>, into: std::ops::Range<usize>| {
            let left = Matrix::new(&left[rows.start * dim..rows.end * dim], rows.len(), dim).transposed();
            let right = Matrix::new(&right[rows.start * width..rows.end * width], rows.len(), width);
            multiply(left, right, Write::Add, MatrixMut::new(&mut gradient[into], dim, width));
        };
        let stack_rows = left.len() / dim;
        if self.config.tied {
            add_product(0..stack_rows, self.ranges.down.clone());
        } else {
            add_product(0..items, self.ranges.down.clone());
            add_product(items..stack_rows, self.ranges.up.clone());
        }
    }

    /// Adds to the gradients of the items, from those of the projected items that [`Tranfs::embed_backward`] has left
    /// in the right stack.
    pub(super) fn project_items_backward<T: Real>(
        &self,
        parameters: &[T],
        layout: &TokenLayout,
        buffers: &ProjectionBuffers<T>,
        d_features: Vec<FeatureGradient<'_, T>>,
    ) {
        let (dim, width, items) = (self.config.dim, self.config.width, layout.items());
        let mut d_items = Buffer::new(items * dim);
        let d_projected = Matrix::new(&buffers.right[..items * width], items, width);
        let down = Matrix::new(&parameters[self.ranges.down.clone()], dim, width);
        let out = MatrixMut::new(&mut d_items, items, dim);
        multiply(d_projected, down.transposed(), Write::Set, out);
        for (d_features, span) in d_features.into_iter().zip(&layout.spans) {
            let d_items = d_items[span.items.start * dim..span.items.end * dim].chunks_exact(dim);
            for (&source, d_item) in layout.sources[span.items.clone()].iter().zip(d_items) {
                add_scaled(d_item, T::ONE, &mut d_features.support[source * dim..(source + 1) * dim]);
            }
        }
    }

    /// Backward pass of [`Tranfs::set_tokens`] for one support set: sets the gradients of the projected items and adds
    /// to those of positions and class tokens.
    fn set_tokens_backward<T: Real>(
        &self,
        layout: &TokenLayout,
        span: &SupportSpan,
        d_states: &[T],
        d_projected: &mut [T],
        gradient: &mut [T],
    ) {
        let width = self.config.width;
        let table_rows = &layout.table_rows[span.classes.clone()];
        let d_states = &d_states[span.tokens.start * width..span.tokens.end * width];
        let (d_class_states, d_item_states) = d_states.split_at(table_rows.len() * width);
        let inverse_counts = inverse_counts::<T>(layout, span);
        let position = |row: usize| self.ranges.positions.start + row * width;
        for (item, d_state) in span.items.clone().zip(d_item_states.chunks_exact(width)) {
            let class = layout.given[item] as usize;
            let d_projected = &mut d_projected[item * width..(item + 1) * width];
            d_projected.copy_from_slice(d_state);
            if self.ranges.class_tokens.is_none() {
                let d_class_state = &d_class_states[class * width..(class + 1) * width];
                add_scaled_row(d_projected, d_class_state, inverse_counts[class]);
            }
            add_scaled_row(&mut gradient[position(table_rows[class])..][..width], d_state, T::ONE);
        }
        for (&row, d_state) in table_rows.iter().zip(d_class_states.chunks_exact(width)) {
            add_scaled_row(&mut gradient[position(row)..][..width], d_state, T::ONE);
            if let Some(class_tokens) = &self.ranges.class_tokens {
                let d_class_token = &mut gradient[class_tokens.start + row * width..][..width];
                add_scaled_row(d_class_token, d_state, T::ONE);
            }
        }
    }

    /// Projects the encoder's output `out` (`[tokens, W]`) back: prototypes from the class tokens, logits of
    /// "mislabelled" from the items. Both are left in `buffers`.
    pub(super) fn project_output<T: Real>(
        &self,
        parameters: &[T],
        layout: &TokenLayout,
        out: &[T],
        buffers: &mut ProjectionBuffers<T>,
    ) {
        let (dim, width) = (self.config.dim, self.config.width);
        let ProjectionBuffers { right, direction, prototypes, logits, .. } = buffers;
        let (items, classes) = (layout.items(), layout.classes());
        // The class tokens of all support sets, next to each other in the right stack; then their prototypes.
        let class_states = &mut right[items * width..(items + classes) * width];
        for span in &layout.spans {
            let from = &out[span.tokens.start * width..][..span.classes.len() * width];
            class_states[span.classes.start * width..span.classes.end * width].copy_from_slice(from);
        }
        let up = Matrix::new(&parameters[self.ranges.up.clone()], dim, width);
        let prototypes = MatrixMut::new(resized(prototypes, classes * dim), classes, dim);
        multiply(Matrix::new(class_states, classes, width), up.transposed(), Write::Set, prototypes);
        // The logits: the weight of "mislabelled" is projected instead of the items.
        let weight = Matrix::new(&parameters[self.ranges.mislabelled.clone()], 1, dim);
        multiply(weight, up, Write::Set, MatrixMut::new(resized(direction, width), 1, width));
        let bias = parameters[self.ranges.mislabelled_bias];
        resized(logits, items);
        for span in &layout.spans {
            let states = &out[span.item_tokens().start * width..span.tokens.end * width];
            project(states, direction, bias, &mut logits[span.items.clone()]);
        }
    }

    /// Backward pass of [`Tranfs::project_output`], from the gradients of the prototypes (in the left stack) and of the
    /// logits: sets `d_states`, the gradient of the encoder's output, adds to those of the weight and bias of
    /// "mislabelled", and completes the stacks for [`Tranfs::embed_backward`].
    pub(super) fn project_output_backward<T: Real>(
        &self,
        parameters: &[T],
        layout: &TokenLayout,
        out: &[T],
        gradient: &mut [T],
        buffers: &mut ProjectionBuffers<T>,
    ) {
        let (dim, width) = (self.config.dim, self.config.width);
        let ProjectionBuffers { left, right, direction, logits, d_class_states, d_states, .. } = buffers;
        let (items, classes) = (layout.items(), layout.classes());
        resized(d_states, layout.tokens() * width);
        let weight = &parameters[self.ranges.mislabelled.clone()];
        left[(items + classes) * dim..].copy_from_slice(weight);
        let up = Matrix::new(&parameters[self.ranges.up.clone()], dim, width);
        // Class tokens: the gradient of their output states from that of the prototypes.
        let d_class_states = resized(d_class_states, classes * width);
        let d_prototypes = Matrix::new(&left[items * dim..(items + classes) * dim], classes, dim);
        multiply(d_prototypes, up, Write::Set, MatrixMut::new(d_class_states, classes, width));
        // Items: the gradients of their output states and of the projected weight from those of the logits.
        let d_direction = &mut right[(items + classes) * width..];
        d_direction.fill(T::ZERO);
        for span in &layout.spans {
            let from = &d_class_states[span.classes.start * width..span.classes.end * width];
            d_states[span.tokens.start * width..][..from.len()].copy_from_slice(from);
            let range = span.item_tokens().start * width..span.tokens.end * width;
            let d_logits = &logits[span.items.clone()];
            project_backward(&out[range.clone()], direction, d_logits, &mut d_states[range], d_direction);
        }
        // The weight and bias of "mislabelled".
        gradient[self.ranges.mislabelled_bias] += logits.iter().copied().sum();
        let d_weight = &mut gradient[self.ranges.mislabelled.clone()];
        add_projected(&parameters[self.ranges.up.clone()], d_direction, d_weight);
    }
}

/// One over the number of items of each class of a support set; 1 for an empty class.
fn inverse_counts<T: Real>(layout: &TokenLayout, span: &SupportSpan) -> Vec<T> {
    let mut counts = vec![0u32; span.classes.len()];
    for &class in &layout.given[span.items.clone()] {
        counts[class as usize] += 1;
    }
    counts.into_iter().map(|count| T::from_f64(1.0 / f64::from(count.max(1)))).collect()
}

/// Prefetches an embedding, which may be anywhere in memory.
fn prefetch_row<T>(row: &[T]) {
    // One prefetch per cache line of 64 bytes.
    for line in row.chunks(64 / size_of::<T>()) {
        prefetch_line(line.as_ptr().cast());
    }
}

kernel! {
    /// `out[i] = rows[i] . direction + bias`
    fn project<'a, T>(rows: &'a [T], direction: &'a [T], bias: T, out: &'a mut [T]) {
        for (row, out) in rows.chunks_exact(direction.len()).zip(out) {
            *out = dot(row, direction) + bias;
        }
    }
}

kernel! {
    /// Backward pass of [`project`]: sets the gradient of the rows and adds to that of the direction.
    fn project_backward<'a, T>(
        rows: &'a [T],
        direction: &'a [T],
        d_out: &'a [T],
        d_rows: &'a mut [T],
        d_direction: &'a mut [T],
    ) {
        let width = direction.len();
        let pairs = rows.chunks_exact(width).zip(d_rows.chunks_exact_mut(width));
        for ((row, d_row), &d_out) in pairs.zip(d_out) {
            for ((d_row, &direction), (d_direction, &row)) in
                d_row.iter_mut().zip(direction).zip(d_direction.iter_mut().zip(row))
            {
                *d_row = d_out * direction;
                *d_direction += d_out * row;
            }
        }
    }
}

kernel! {
    /// `out += matrix direction`
    fn add_projected<'a, T>(matrix: &'a [T], direction: &'a [T], out: &'a mut [T]) {
        for (row, out) in matrix.chunks_exact(direction.len()).zip(out) {
            *out += dot(row, direction);
        }
    }
}
