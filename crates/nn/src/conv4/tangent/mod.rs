//! Hessian-vector products ([`TangentPass`]) by the R-operator (Pearlmutter, 1994): tangents, that is derivatives along
//! a direction of the parameters, are computed through the forward and the backward pass. The tangent of the gradient
//! is exactly the Hessian times the direction, at about twice the cost of the gradient. [`crate::maml`] uses it.
//!
//! Run a [`TrainingPass`] forward and backward first, then [`TangentPass::forward`] and [`TangentPass::backward`] with
//! the same parameters: they read the activations that the training pass keeps. Every method here is the tangent of the
//! one with a similar name in `conv4::training`; read that first.
//!
//! A convolution is linear in images and in filters, so the tangent of an output is the sum of two convolutions, and so
//! is the tangent of a gradient. The Winograd kernels are the same, with a sum of two products at every point. Batch
//! norm is one scale and one shift per channel forward, and `dy_factor dy + y_factor y + constant` backward; the
//! tangents of these coefficients follow from sums over pixels, as the coefficients do. The output of the first block
//! is never stored here either: its input is constant, so the second moments of its patches also yield the tangents.
//!
//! Names begin with `tangent_` where the tangent and the value itself occur together; in formulas a tangent has a dot.
//! x is the input of a block, W its filters, and y the output of its convolution before the norm. g is the gradient of
//! the loss with respect to the normalised maxima, 0 where the ReLU is inactive (dy in `conv4::batch_norm` and in the
//! names of factors). `d_x` is the gradient of the loss with respect to x. As in `conv4::training`, `block` counts from
//! 0 and `index` is `block - 1`, the position of block 2, 3 or 4 in an array.

mod batch_norm;

// `primal`: the kernels of the values themselves; `batch_norm`: those of their tangents.
use super::batch_norm::{self as primal, BatchNormBackward};
use super::filters::{BlockFilters, first_block_taps};
use super::first_block::{self, PATCH_VALUES};
use super::plane::Pixel;
use super::tiles::{self, TilePoints};
use super::training::{TrainingPass, WINOGRAD_BLOCKS};
use super::winograd::{self, FilterTransformBackward, Filters, Taps};
use super::{BLOCKS, TAPS, WIDTH};
use crate::isa;
use batch_norm::BatchNormTangent;

/// The tangents of a [`TrainingPass`] that has a single part ([`TrainingPass::undivided`]). Owns its memory, which is
/// reused.
pub struct TangentPass {
    // All fields but `d_plane` and `scratch` are the tangents of the fields of the same names in `TrainingPass` and in
    // its part.
    inputs: [Vec<Pixel>; WINOGRAD_BLOCKS],
    outputs: [Vec<Pixel>; WINOGRAD_BLOCKS],
    maxima: [Vec<Pixel>; WINOGRAD_BLOCKS],
    d_pooled: [Vec<Pixel>; WINOGRAD_BLOCKS],
    /// The tangent of the gradient of block 2's input.
    d_plane: Vec<Pixel>,
    filters: Vec<BlockFilters>,
    first_taps: Vec<Pixel>,
    norms: [BatchNormTangent; BLOCKS],
    features: Vec<f32>,
    scratch: TangentScratch,
}

/// The memory that a block of tiles is computed in, at the Winograd points: the inputs and their tangents; in
/// `tangent_outputs` the tangents of the outputs (forward) or of the gradients of the outputs (backward), which
/// themselves are in `outputs`.
struct TangentScratch {
    inputs: TilePoints,
    tangent_inputs: TilePoints,
    outputs: TilePoints,
    tangent_outputs: TilePoints,
    /// The tangents of the gradient of a block's filters, at the Winograd points.
    d_filters: Filters,
    /// The same by tap, after the backward pass of the filters' transform.
    d_taps: Taps,
}

impl TangentPass {
    /// Memory for the tangents of passes of the same shape and number of images.
    ///
    /// # Panics
    /// If the pass is split into several parts, as those of [`TrainingPass::new`] usually are.
    pub fn new(pass: &TrainingPass) -> Self {
        assert_eq!(pass.parts.len(), 1, "an undivided pass");
        let (images, shape) = (pass.images, pass.shape);
        let pixels = |index: usize| vec![Pixel::ZERO; images * shape.side(index + 1).pow(2)];
        TangentPass {
            inputs: std::array::from_fn(|index| pass.plane(index + 1).zeros(images)),
            outputs: std::array::from_fn(pixels),
            maxima: std::array::from_fn(|index| pixels(index + 1)),
            d_pooled: std::array::from_fn(|index| pass.plane(index + 2).zeros(images)),
            d_plane: pass.plane(1).zeros(images),
            filters: (0..WINOGRAD_BLOCKS).map(|_| BlockFilters::zeros()).collect(),
            first_taps: vec![Pixel::ZERO; TAPS * shape.channels],
            norms: [BatchNormTangent::ZERO; BLOCKS],
            features: vec![0.0; images * shape.features()],
            scratch: TangentScratch {
                inputs: TilePoints::new(),
                tangent_inputs: TilePoints::new(),
                outputs: TilePoints::new(),
                tangent_outputs: TilePoints::new(),
                d_filters: winograd::zero_filters(),
                d_taps: vec![[Pixel::ZERO; WIDTH]; TAPS],
            },
        }
    }

    /// The tangent of the last forward pass's embeddings (`[images, features]`) along `direction`, which has the layout
    /// of the parameters.
    pub fn forward(&mut self, pass: &TrainingPass, parameters: &[f32], direction: &[f32]) -> &[f32] {
        for ((filters, block), norm) in self.filters.iter_mut().zip(&pass.blocks[1..]).zip(&pass.norms[1..]) {
            filters.set(&direction[block.weight.clone()], &norm.sign);
        }
        let first_direction = &direction[pass.blocks[0].weight.clone()];
        first_block_taps(first_direction, &pass.norms[0].sign, &mut self.first_taps);
        self.forward_first_block(pass, parameters, direction);
        for block in 1..BLOCKS {
            if block > 1 {
                self.normalise(pass, block);
            }
            let sums = self.convolve(pass, block);
            self.set_norm(pass, block, parameters, direction, &sums);
        }
        self.collect_features(pass);
        &self.features
    }

    /// Adds the tangent of the last backward pass's gradient to `tangent_gradient`, given the tangent of the
    /// embeddings' gradient (`[images, features]`). Call [`forward`](Self::forward) with the same parameters first.
    pub fn backward(
        &mut self,
        pass: &TrainingPass,
        parameters: &[f32],
        tangent_d_features: &[f32],
        tangent_gradient: &mut [f32],
    ) {
        self.set_d_features(pass, tangent_d_features);
        for block in (1..BLOCKS).rev() {
            let sums = self.relu_backward(pass, block);
            let norm_backward = self.norm_backward(pass, block, parameters, &sums, tangent_gradient);
            self.backward_block(pass, block, &norm_backward);
            self.collect_taps(pass, block, tangent_gradient);
        }
        self.backward_first_block(pass, parameters, tangent_gradient);
    }

    /// Sets the tangent of a block's batch norm from the sums of ẏ and y ẏ.
    fn set_norm(
        &mut self,
        pass: &TrainingPass,
        block: usize,
        parameters: &[f32],
        direction: &[f32],
        sums: &[[f64; WIDTH]; 2],
    ) {
        let (ranges, norm) = (&pass.blocks[block], &pass.norms[block]);
        self.norms[block] = BatchNormTangent::new(ranges, norm, parameters, direction, sums);
    }

    /// The tangent of the coefficients of a norm's backward pass, from the sums of ġ and of (g y)˙; adds to the
    /// tangents of the gradients of gamma and beta.
    fn norm_backward(
        &self,
        pass: &TrainingPass,
        block: usize,
        parameters: &[f32],
        sums: &[[f64; WIDTH]; 2],
        tangent_gradient: &mut [f32],
    ) -> BatchNormBackward {
        let (ranges, norm, backward) = (&pass.blocks[block], &pass.norms[block], &pass.norms_backward[block]);
        self.norms[block].backward(ranges, norm, backward, parameters, sums, tangent_gradient)
    }

    /// The first block: the tangents of its batch norm from the moments M of the patches, where y = w . x has the sums
    /// `sum(ẏ) = ẇ . sum(x)` and `sum(y ẏ) = w M ẇ`, then the tangent of its output.
    fn forward_first_block(&mut self, pass: &TrainingPass, parameters: &[f32], direction: &[f32]) {
        // The index of the constant 1 in a patch.
        let constant = self.first_taps.len();
        let mut sums = [[0.0; WIDTH]; 2];
        for c in 0..WIDTH {
            let (weights, tangent) = (channel(&pass.first_taps, c), channel(&self.first_taps, c));
            sums[0][c] = dot(&tangent, &pass.moments[constant]);
            sums[1][c] =
                pass.moments[..constant].iter().zip(&weights).map(|(row, w)| w * dot(&tangent, row)).sum();
        }
        self.set_norm(pass, 0, parameters, direction, &sums);
        let (norm, tangent_norm) = (&pass.norms[0], &self.norms[0]);
        // The tangent of the taps with batch norm folded in: (scale w)˙.
        let mut folded = self.first_taps.clone();
        for (folded, tap) in folded.iter_mut().zip(&pass.first_taps) {
            for c in 0..WIDTH {
                folded.0[c] = tangent_norm.scale.0[c] * tap.0[c] + norm.scale.0[c] * folded.0[c];
            }
        }
        let (plane, padded, part) = (pass.plane(1), first_block::padded_len(pass.shape), &pass.parts[0]);
        let windows = plane.side.pow(2);
        for image in 0..pass.images {
            let pixels = image * plane.len()..(image + 1) * plane.len();
            isa::run(first_block::ForwardTangent {
                shape: pass.shape,
                padded: &part.padded[image * padded..(image + 1) * padded],
                taps: &folded,
                bias: &tangent_norm.shift,
                plane,
                out: &part.inputs[0][pixels.clone()],
                argmax: &part.argmax[image * windows..(image + 1) * windows],
                tangent: &mut self.inputs[0][pixels],
            });
        }
    }

    /// Writes the tangents of batch norm and ReLU of the previous block to `inputs`, the tangent of this block's input.
    fn normalise(&mut self, pass: &TrainingPass, block: usize) {
        let previous = block - 2;
        isa::run(batch_norm::NormaliseRelu {
            norm: &pass.norms[block - 1],
            tangent_norm: &self.norms[block - 1],
            plane: pass.plane(block),
            maxima: &pass.parts[0].maxima[previous],
            tangent_maxima: &self.maxima[previous],
            to: &mut self.inputs[block - 1],
        });
    }

    /// `(x * W)˙ = ẋ * W + x * Ẇ`; returns the sums of ẏ and y ẏ.
    fn convolve(&mut self, pass: &TrainingPass, block: usize) -> [[f64; WIDTH]; 2] {
        let (index, part) = (block - 1, &pass.parts[0]);
        let TangentScratch { inputs, tangent_inputs, tangent_outputs, .. } = &mut self.scratch;
        let mut sums = [[0.0; WIDTH]; 2];
        for tiles in tiles::blocks(pass.plane(block), pass.images) {
            let (pixels, tangent_pixels) = (&part.inputs[index], &self.inputs[index]);
            isa::run(tiles::InputTransform { block: tiles, pixels, points: inputs });
            isa::run(tiles::InputTransform { block: tiles, pixels: tangent_pixels, points: tangent_inputs });
            let terms =
                [(&*tangent_inputs, &pass.filters[index].filters), (&*inputs, &self.filters[index].filters)];
            isa::run(tiles::PointProducts { count: tiles.count, terms, out: tangent_outputs });
            let block_sums = isa::run(batch_norm::OutputTransform {
                block: tiles,
                points: tangent_outputs,
                outputs: &part.outputs[index],
                tangent_outputs: &mut self.outputs[index],
                tangent_maxima: &mut self.maxima[index],
            });
            add(&mut sums, &block_sums);
        }
        sums
    }

    /// The tangents of block 4's batch norm and ReLU, in the order of embeddings.
    fn collect_features(&mut self, pass: &TrainingPass) {
        let (norm, tangent_norm) = (&pass.norms[BLOCKS - 1], &self.norms[BLOCKS - 1]);
        let positions = pass.shape.side(BLOCKS).pow(2);
        let maxima = pass.parts[0].maxima[WINOGRAD_BLOCKS - 1].chunks_exact(positions);
        let maxima = maxima.zip(self.maxima[WINOGRAD_BLOCKS - 1].chunks_exact(positions));
        let features = self.features.chunks_exact_mut(pass.shape.features());
        for ((maxima, tangent_maxima), out) in maxima.zip(features) {
            for (position, (y, tangent_y)) in maxima.iter().zip(tangent_maxima).enumerate() {
                for c in 0..WIDTH {
                    let is_active = norm.scale.0[c] * y.0[c] + norm.shift.0[c] > 0.0;
                    let value = tangent_norm.scale.0[c] * y.0[c]
                        + norm.scale.0[c] * tangent_y.0[c]
                        + tangent_norm.shift.0[c];
                    out[c * positions + position] = if is_active { value } else { 0.0 };
                }
            }
        }
    }

    /// Copies the tangent of the embeddings' gradient into planes.
    fn set_d_features(&mut self, pass: &TrainingPass, tangent_d_features: &[f32]) {
        let plane = pass.plane(BLOCKS);
        let positions = plane.side.pow(2);
        for (image, features) in tangent_d_features.chunks_exact(pass.shape.features()).enumerate() {
            for position in 0..positions {
                let pixel =
                    image * plane.len() + plane.index_of(position / plane.side, position % plane.side);
                for c in 0..WIDTH {
                    self.d_pooled[WINOGRAD_BLOCKS - 1][pixel].0[c] = features[c * positions + position];
                }
            }
        }
    }

    /// Applies the backward pass of a block's ReLU; returns the sums of ġ and of (g y)˙.
    fn relu_backward(&mut self, pass: &TrainingPass, block: usize) -> [[f64; WIDTH]; 2] {
        let (index, plane, part) = (block - 1, pass.plane(block + 1), &pass.parts[0]);
        let windows = plane.side.pow(2);
        let mut sums = [[0.0; WIDTH]; 2];
        for image in 0..pass.images {
            let (pooled, pixels) =
                (image * windows..(image + 1) * windows, image * plane.len()..(image + 1) * plane.len());
            let image_sums = isa::run(batch_norm::ReluBackward {
                norm: &pass.norms[block],
                plane,
                maxima: &part.maxima[index][pooled.clone()],
                tangent_maxima: &self.maxima[index][pooled],
                gradient: &part.d_pooled[index][pixels.clone()],
                tangent_gradient: &mut self.d_pooled[index][pixels],
            });
            add(&mut sums, &image_sums);
        }
        sums
    }

    /// The tangents of the gradients of a block's filters and input. With δ the gradient of y at all pixels, * a
    /// convolution and ⋆ a correlation, the gradient of the filters is x ⋆ δ, so its tangent is ẋ ⋆ δ + x ⋆ δ̇ (into
    /// `scratch.d_taps`); the gradient of the input is δ * Wᵀ, so its tangent is δ̇ * Wᵀ + δ * Ẇᵀ (into `d_pooled` of
    /// the previous block or `d_plane`).
    fn backward_block(
        &mut self,
        pass: &TrainingPass,
        block: usize,
        tangent_norm_backward: &BatchNormBackward,
    ) {
        let (index, part) = (block - 1, &pass.parts[0]);
        let pooled = pass.plane(block + 1);
        let d_input = if index == 0 { &mut self.d_plane } else { &mut self.d_pooled[index - 1] };
        let mut d_input = std::mem::take(d_input);
        d_input.fill(Pixel::ZERO);
        let TangentScratch { inputs, tangent_inputs, outputs, tangent_outputs, d_filters, d_taps } =
            &mut self.scratch;
        d_filters.iter_mut().for_each(|matrix| matrix.fill(Pixel::ZERO));
        for tiles in tiles::blocks(pass.plane(block), pass.images) {
            let count = tiles.count;
            let (pixels, tangent_pixels) = (&part.inputs[index], &self.inputs[index]);
            isa::run(tiles::InputTransform { block: tiles, pixels, points: inputs });
            isa::run(tiles::InputTransform { block: tiles, pixels: tangent_pixels, points: tangent_inputs });
            isa::run(primal::OutputTransformBackward {
                block: tiles,
                norm_backward: &pass.norms_backward[block],
                outputs: &part.outputs[index],
                pooled,
                d_pooled: &part.d_pooled[index],
                points: outputs,
            });
            isa::run(batch_norm::OutputTransformBackward {
                block: tiles,
                norm_backward: &pass.norms_backward[block],
                tangent_norm_backward,
                outputs: &part.outputs[index],
                tangent_outputs: &self.outputs[index],
                pooled,
                d_pooled: &part.d_pooled[index],
                tangent_d_pooled: &self.d_pooled[index],
                points: tangent_outputs,
            });
            let gradient = &mut *d_filters;
            isa::run(tiles::FilterGradient { count, inputs: tangent_inputs, outputs, gradient });
            let gradient = &mut *d_filters;
            isa::run(tiles::FilterGradient { count, inputs, outputs: tangent_outputs, gradient });
            let (filters, tangent_filters) =
                (&pass.filters[index].transposed, &self.filters[index].transposed);
            // The transformed inputs are no longer needed: their points hold the gradient of the input from here on.
            let terms = [(&*tangent_outputs, filters), (&*outputs, tangent_filters)];
            isa::run(tiles::PointProducts { count, terms, out: inputs });
            isa::run(tiles::InputTransformBackward { block: tiles, points: inputs, pixels: &mut d_input });
        }
        isa::run(FilterTransformBackward { points: d_filters, taps: d_taps });
        let target = if index == 0 { &mut self.d_plane } else { &mut self.d_pooled[index - 1] };
        *target = d_input;
    }

    /// Adds `scratch.d_taps` to the tangent of the weights' gradient.
    fn collect_taps(&self, pass: &TrainingPass, block: usize, tangent_gradient: &mut [f32]) {
        let sign = &pass.norms[block].sign.0;
        let weights = &mut tangent_gradient[pass.blocks[block].weight.clone()];
        for (to, weights) in weights.chunks_exact_mut(WIDTH * TAPS).enumerate() {
            for (index, weight) in weights.iter_mut().enumerate() {
                *weight += sign[to] * self.scratch.d_taps[index % TAPS][index / TAPS].0[to];
            }
        }
    }

    /// The tangents of the gradients of the first block's weights, gamma and beta: the product rule on every term of
    /// `TrainingPass::first_block_backward`.
    fn backward_first_block(
        &mut self,
        pass: &TrainingPass,
        parameters: &[f32],
        tangent_gradient: &mut [f32],
    ) {
        let (tangent_dy_patches, tangent_dy_sum) = self.first_block_gradient(pass);
        let values = self.first_taps.len();
        let dy_patches = &pass.parts[0].d_first_taps;
        let mut sums = [tangent_dy_sum, [0.0; WIDTH]];
        for c in 0..WIDTH {
            // The tangent of the sum of g y: y is the inner product of patch and weights.
            let taps = pass.first_taps.iter().zip(&self.first_taps);
            let terms = taps.zip(dy_patches.iter().zip(&tangent_dy_patches)).map(
                |((w, tangent_w), (sum, tangent_sum))| {
                    f64::from(w.0[c]) * f64::from(tangent_sum.0[c])
                        + f64::from(tangent_w.0[c]) * f64::from(sum.0[c])
                },
            );
            sums[1][c] = terms.sum();
        }
        let tangent_backward = self.norm_backward(pass, 0, parameters, &sums, tangent_gradient);
        let (backward, block, channels) = (&pass.norms_backward[0], &pass.blocks[0], pass.shape.channels);
        for c in 0..WIDTH {
            let (weights, tangent) = (channel(&pass.first_taps, c), channel(&self.first_taps, c));
            let of_channel = |pixel: &Pixel| f64::from(pixel.0[c]);
            for value in 0..values {
                let row = &pass.moments[value];
                let d_weight = of_channel(&tangent_backward.dy_factor) * of_channel(&dy_patches[value])
                    + of_channel(&backward.dy_factor) * of_channel(&tangent_dy_patches[value])
                    + of_channel(&tangent_backward.y_factor) * dot(&weights, row)
                    + of_channel(&backward.y_factor) * dot(&tangent, row)
                    // The column of the constant 1 has the sum of the patch values.
                    + of_channel(&tangent_backward.constant) * row[values];
                // `value` is `tap * channels + channel`; the weights are `[64, channels, taps]`.
                let index = block.weight.start + c * values + value % channels * TAPS + value / channels;
                tangent_gradient[index] += pass.norms[0].sign.0[c] * d_weight as f32;
            }
        }
    }

    /// Two sums over the maxima of the first block: of ġ times their patches, `[tap, input channel, 64]`, and of ġ.
    fn first_block_gradient(&self, pass: &TrainingPass) -> (Vec<Pixel>, [f64; WIDTH]) {
        let (plane, padded, part) = (pass.plane(1), first_block::padded_len(pass.shape), &pass.parts[0]);
        let windows = plane.side.pow(2);
        let (mut taps, mut total) = (vec![Pixel::ZERO; self.first_taps.len()], [0.0; WIDTH]);
        for image in 0..pass.images {
            let pixels = image * plane.len()..(image + 1) * plane.len();
            let mut sum = Pixel::ZERO;
            isa::run(first_block::Backward {
                shape: pass.shape,
                padded: &part.padded[image * padded..(image + 1) * padded],
                plane,
                out: &part.inputs[0][pixels.clone()],
                argmax: &part.argmax[image * windows..(image + 1) * windows],
                d_out: &self.d_plane[pixels],
                taps: &mut taps,
                sum: &mut sum,
            });
            total.iter_mut().zip(&sum.0).for_each(|(total, value)| *total += f64::from(*value));
        }
        (taps, total)
    }
}

/// Adds the two sums of some pixels, one number per channel, to those of all pixels.
fn add(sums: &mut [[f64; WIDTH]; 2], values: &[Pixel; 2]) {
    for (sums, pixel) in sums.iter_mut().zip(values) {
        sums.iter_mut().zip(&pixel.0).for_each(|(sum, value)| *sum += f64::from(*value));
    }
}

/// The weights of one output channel of the first block, `[tap, input channel]`.
fn channel(taps: &[Pixel], c: usize) -> Vec<f64> {
    taps.iter().map(|tap| f64::from(tap.0[c])).collect()
}

/// The inner product of weights and a row of moments. The row is longer: its entries of the constant 1 and of padding
/// are left out.
fn dot(weights: &[f64], row: &[f64; PATCH_VALUES]) -> f64 {
    weights.iter().zip(row).map(|(w, m)| w * m).sum()
}
