//! The forward and backward pass of training, with batch statistics. Start with [`TrainingPass::forward`] and
//! [`TrainingPass::backward`]; each calls one method per step. The kernels are in `first_block`, `tiles` and
//! `batch_norm`.
//!
//! The images are split into parts ([`ImagePart`]). A step runs for all parts in parallel, and its sums over pixels are
//! then added in the order of the parts. The methods of [`TrainingPass`] do both; those of [`ImagePart`] work on one
//! part.
//!
//! Passes over memory cost as much as arithmetic here, so there are few. Forward, block 2 of an image follows its block
//! 1; the output transform of blocks 2 to 4 also yields the sums for batch norm and the maximum of every pooling
//! window, so normalising touches pooled values only. Backward, the gradient of batch norm at a pixel is
//! `dy_factor dy + y_factor y + constant` with one triple of coefficients per channel, where dy is nonzero only at a
//! window's maximum, which is found again from the stored outputs; the gradient of block 2's input stays in the cache,
//! because block 1 uses it image by image.
//!
//! As in `batch_norm`, y is the output of a convolution without its bias and dy the gradient of its normalised maximum;
//! x is an input patch of the first block. In names, `d_x` is the gradient of the loss with respect to x. `block`
//! counts from 0; `index` is `block - 1`, the position of a Winograd block (2 to 4 in words) in an array.

use std::sync::Mutex;

use rayon::prelude::*;

use super::batch_norm::{
    BatchNorm, BatchNormBackward, NormaliseRelu, OutputTransform, OutputTransformBackward, ReluBackward,
};
use super::filters::{BlockFilters, first_block_taps};
use super::first_block::{self, Moments, PATCH_VALUES, WindowArgmax};
use super::plane::{Pixel, Plane};
use super::tiles::{self, TileBlock, TilePoints};
use super::winograd::{self, FilterTransformBackward, Filters, Taps};
use super::{BLOCKS, BlockRanges, Shape, TAPS, WIDTH, layout_and_ranges};
use crate::isa;

/// The number of parts that the images are split into, whatever the number of threads: results do not depend on it.
const PARTS: usize = 16;
/// Blocks 2 to 4. In arrays of this length, entry i belongs to block i + 1, counted from 0.
pub(super) const WINOGRAD_BLOCKS: usize = BLOCKS - 1;
/// How far a step moves the running statistics towards those of the batch: PyTorch's default.
const MOMENTUM: f32 = 0.1;

/// Forward and backward passes over batches of a fixed number of images. Owns the activations, which are reused.
///
/// ```
/// use trueshot_nn::conv4::{self, Shape, TrainingPass};
///
/// let shape = Shape { size: 16, channels: 1 };
/// let parameters = conv4::initial(shape.channels, &mut || 0.7);
/// let images: Vec<f32> = (0..2 * shape.pixels()).map(|i| (i % 13) as f32 / 13.0).collect();
/// let mut pass = TrainingPass::new(shape, 2);
/// let features = pass.forward(&parameters, &images).to_vec();
/// assert_eq!(features.len(), 2 * shape.features());
/// // The gradient of half the squared length of all features.
/// let mut gradient = vec![0.0; parameters.len()];
/// pass.backward(&features, &mut gradient);
/// ```
pub struct TrainingPass {
    pub(super) shape: Shape,
    pub(super) images: usize,
    pub(super) blocks: Vec<BlockRanges>,
    pub(super) parts: Vec<ImagePart>,
    /// Filters of blocks 2 to 4.
    pub(super) filters: Vec<BlockFilters>,
    /// Filters of the first block, `[tap, input channel, 64]`.
    pub(super) first_taps: Vec<Pixel>,
    /// Second moments of the input patches of all images, see `first_block`.
    pub(super) moments: Box<[[f64; PATCH_VALUES]; PATCH_VALUES]>,
    pub(super) norms: [BatchNorm; BLOCKS],
    /// The coefficients of the last backward pass.
    pub(super) norms_backward: [BatchNormBackward; BLOCKS],
    features: Vec<f32>,
    /// Scratch memory that no thread is using.
    scratch: Mutex<Vec<TrainingScratch>>,
}

/// The images of one part and their activations.
pub(super) struct ImagePart {
    /// The number of the first image.
    from: usize,
    images: usize,
    /// The images with a margin of zeros.
    pub padded: Vec<f32>,
    /// Second moments of their input patches.
    moments: Box<[[f64; PATCH_VALUES]; PATCH_VALUES]>,
    /// The positions of the maxima in the windows of the first block.
    pub argmax: Vec<WindowArgmax>,
    /// Inputs of blocks 2 to 4, in planes.
    pub inputs: [Vec<Pixel>; WINOGRAD_BLOCKS],
    /// Outputs of their convolutions, `[images, side, side]`.
    pub outputs: [Vec<Pixel>; WINOGRAD_BLOCKS],
    /// The maxima of the pooling windows, `[images, side / 2, side / 2]`.
    pub maxima: [Vec<Pixel>; WINOGRAD_BLOCKS],
    /// Gradients after pooling and ReLU, in planes; after the ReLU's backward pass, 0 where the ReLU is inactive.
    pub d_pooled: [Vec<Pixel>; WINOGRAD_BLOCKS],
    /// Sums over pixels: of y and y² in the forward pass, of dy and dy y in the backward pass.
    sums: [[f64; WIDTH]; 2],
    /// Gradients of the filters of blocks 2 to 4.
    d_taps: [Taps; WINOGRAD_BLOCKS],
    /// The gradient at the maxima of the first block times their patches, `[tap, input channel, 64]`, summed over
    /// pixels.
    pub d_first_taps: Vec<Pixel>,
    /// The sum of that gradient.
    d_first_sum: [f64; WIDTH],
}

/// The memory that one thread computes in.
struct TrainingScratch {
    points: TilePoints,
    products: TilePoints,
    /// The gradient of a block's filters at the Winograd points.
    d_filters: Filters,
    /// The gradient of block 2's input, for one image.
    d_plane: Vec<Pixel>,
}

impl TrainingPass {
    /// A pass over batches of `images` images, on all threads of the rayon pool it is called in.
    ///
    /// # Panics
    /// If the shape is not possible.
    pub fn new(shape: Shape, images: usize) -> Self {
        Self::with_parts(shape, images, PARTS)
    }

    /// A pass over batches that are too small to be split: everything runs on one thread.
    ///
    /// # Panics
    /// If the shape is not possible.
    pub fn undivided(shape: Shape, images: usize) -> Self {
        Self::with_parts(shape, images, 1)
    }

    /// A pass over `images` images in at most `count` parts of about equal size.
    fn with_parts(shape: Shape, images: usize, count: usize) -> Self {
        assert!(shape.is_possible(), "{shape:?}");
        let bounds = |part: usize| images * part / count;
        let parts =
            (0..count).map(|part| ImagePart::new(shape, bounds(part), bounds(part + 1) - bounds(part)));
        TrainingPass {
            shape,
            images,
            blocks: layout_and_ranges(shape.channels).1,
            parts: parts.filter(|part| part.images > 0).collect(),
            filters: (0..WINOGRAD_BLOCKS).map(|_| BlockFilters::zeros()).collect(),
            first_taps: vec![Pixel::ZERO; TAPS * shape.channels],
            moments: Box::new([[0.0; PATCH_VALUES]; PATCH_VALUES]),
            norms: [BatchNorm::ZERO; BLOCKS],
            norms_backward: [BatchNormBackward::ZERO; BLOCKS],
            features: vec![0.0; images * shape.features()],
            scratch: Mutex::new(Vec::new()),
        }
    }

    /// The embeddings (`[images, features]`) of normalised images (`[images, rows, columns, channels]`) with the
    /// statistics of this batch.
    ///
    /// # Panics
    /// If the lengths are not those of the layout and of the number of images.
    pub fn forward(&mut self, parameters: &[f32], images: &[f32]) -> &[f32] {
        self.set_images(images);
        self.forward_again(parameters)
    }

    /// Sets the images of the next [`forward_again`](Self::forward_again).
    ///
    /// # Panics
    /// If their number is not that of the pass.
    pub fn set_images(&mut self, images: &[f32]) {
        assert_eq!(images.len(), self.images * self.shape.pixels());
        let shape = self.shape;
        isa::for_each_in_parallel(self.parts.par_iter_mut(), |part| {
            let from = part.from * shape.pixels();
            part.set_images(shape, &images[from..from + part.images * shape.pixels()]);
        });
        self.moments.iter_mut().for_each(|row| row.fill(0.0));
        for part in &self.parts {
            for (sums, row) in self.moments.iter_mut().zip(&*part.moments) {
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
        }
    }

    /// Sets the images to those of another pass of the same shape.
    pub fn copy_images(&mut self, other: &TrainingPass) {
        for (part, other) in self.parts.iter_mut().zip(&other.parts) {
            part.padded.clone_from(&other.padded);
        }
        self.moments.clone_from(&other.moments);
    }

    /// The embeddings of the images that are set, `[images, features]`, with other parameters: MAML takes several steps
    /// on the same images.
    ///
    /// # Panics
    /// If there are fewer parameters than in the layout.
    pub fn forward_again(&mut self, parameters: &[f32]) -> &[f32] {
        self.set_filters(parameters);
        self.first_block_statistics(parameters);
        self.forward_blocks_1_and_2();
        self.set_statistics(1, parameters);
        for block in 2..BLOCKS {
            self.forward_block(block);
            self.set_statistics(block, parameters);
        }
        self.collect_features();
        &self.features
    }

    /// Adds the gradient of the parameters to `gradient`, given `d_features` (`[images, features]`), that of the
    /// embeddings of the last [`forward`](Self::forward). The gradient of the convolutions' biases is 0, because batch
    /// norm removes them.
    ///
    /// # Panics
    /// If `d_features` is not as long as the embeddings.
    pub fn backward(&mut self, d_features: &[f32], gradient: &mut [f32]) {
        assert_eq!(d_features.len(), self.images * self.shape.features());
        // `d_pooled` and `sums` of a block are ready when its turn comes: from the embeddings or from the next block.
        self.set_d_features(d_features);
        for block in (1..BLOCKS).rev() {
            let norm_backward = self.norm_backward(block, gradient);
            self.backward_block(block, &norm_backward);
            self.collect_taps(block, gradient);
            self.norms_backward[block] = norm_backward;
        }
        self.first_block_backward(gradient);
    }

    /// Moves the running statistics, which are part of `parameters`, towards those of the last
    /// [`forward`](Self::forward). As in PyTorch, they are those of outputs with bias, and the variance is the unbiased
    /// estimate.
    pub fn update_running(&self, parameters: &mut [f32]) {
        for (block, norm) in self.blocks.iter().zip(&self.norms) {
            for c in 0..WIDTH {
                // y is the output without its bias and times the sign of gamma; both are undone here. The factor
                // n / (n - 1) makes the variance unbiased.
                let bias = parameters[block.bias.start + c];
                let mean = norm.mean[c] as f32 * norm.sign.0[c] + bias;
                let var = (norm.var[c] * norm.count / (norm.count - 1.0).max(1.0)) as f32;
                let move_to = |running: &mut f32, value: f32| *running += MOMENTUM * (value - *running);
                move_to(&mut parameters[block.running_mean.start + c], mean);
                move_to(&mut parameters[block.running_var.start + c], var);
            }
        }
    }

    /// The plane of a block's input.
    pub(super) fn plane(&self, block: usize) -> Plane {
        Plane { side: self.shape.side(block) }
    }

    /// Sets the signs and filters of this step.
    fn set_filters(&mut self, parameters: &[f32]) {
        for (block, norm) in self.blocks.iter().zip(&mut self.norms) {
            for (sign, gamma) in norm.sign.0.iter_mut().zip(&parameters[block.gamma.clone()]) {
                *sign = if *gamma < 0.0 { -1.0 } else { 1.0 };
            }
        }
        let first_weight = &parameters[self.blocks[0].weight.clone()];
        first_block_taps(first_weight, &self.norms[0].sign, &mut self.first_taps);
        let jobs = self.filters.par_iter_mut().zip(&self.blocks[1..]).zip(&self.norms[1..]);
        isa::for_each_in_parallel(jobs, |((filters, block), norm)| {
            filters.set(&parameters[block.weight.clone()], &norm.sign);
        });
    }

    /// Sets mean and variance of the first block from the second moments M of its patches: with the weights w of a
    /// channel, the sum of its outputs is w times the row of the constant 1, and the sum of their squares is `w M w`.
    fn first_block_statistics(&mut self, parameters: &[f32]) {
        let count = (self.images * self.shape.size.pow(2)) as f64;
        // The index of the constant 1 in a patch.
        let constant = self.first_taps.len();
        let mut sums = [[0.0; WIDTH]; 2];
        for c in 0..WIDTH {
            let weights: Vec<f64> = self.first_taps.iter().map(|tap| f64::from(tap.0[c])).collect();
            let times = |row: &[f64; PATCH_VALUES]| weights.iter().zip(row).map(|(w, m)| w * m).sum::<f64>();
            sums[0][c] = times(&self.moments[constant]);
            sums[1][c] = self.moments[..constant].iter().zip(&weights).map(|(row, w)| w * times(row)).sum();
        }
        self.set_norm(0, parameters, &sums, count);
    }

    /// Sets the batch norm of a block from the sums of y and of y² over `count` pixels.
    fn set_norm(&mut self, block: usize, parameters: &[f32], sums: &[[f64; WIDTH]; 2], count: f64) {
        let ranges = &self.blocks[block];
        let (gamma, beta) = (&parameters[ranges.gamma.clone()], &parameters[ranges.beta.clone()]);
        self.norms[block].set(gamma, beta, sums, count);
    }

    /// Block 1 with its batch norm, whose statistics are known, and the convolution of block 2, image by image.
    fn forward_blocks_1_and_2(&mut self) {
        let (shape, plane) = (self.shape, self.plane(1));
        let norm = &self.norms[0];
        // Taps with batch norm folded in.
        let mut folded = self.first_taps.clone();
        for tap in &mut folded {
            tap.0.iter_mut().zip(&norm.scale.0).for_each(|(tap, scale)| *tap *= scale);
        }
        let (filters, scratch) = (&self.filters[0].filters, &self.scratch);
        isa::for_each_in_parallel(self.parts.par_iter_mut(), |part| {
            with_scratch(scratch, plane, |scratch| {
                part.sums = [[0.0; WIDTH]; 2];
                let padded = first_block::padded_len(shape);
                let windows = plane.side.pow(2);
                for image in 0..part.images {
                    isa::run(first_block::Forward {
                        shape,
                        padded: &part.padded[image * padded..(image + 1) * padded],
                        taps: &folded,
                        bias: &norm.shift,
                        plane,
                        out: &mut part.inputs[0][image * plane.len()..(image + 1) * plane.len()],
                        argmax: Some(&mut part.argmax[image * windows..(image + 1) * windows]),
                    });
                    let tiles = image * plane.tiles()..(image + 1) * plane.tiles();
                    part.convolve(0, plane, tiles, filters, scratch);
                }
            });
        });
    }

    /// Blocks 3 and 4: normalises the maxima of the previous block and convolves them.
    fn forward_block(&mut self, block: usize) {
        let plane = self.plane(block);
        let (scratch_plane, norm) = (self.plane(1), &self.norms[block - 1]);
        let (filters, scratch) = (&self.filters[block - 1].filters, &self.scratch);
        isa::for_each_in_parallel(self.parts.par_iter_mut(), |part| {
            with_scratch(scratch, scratch_plane, |scratch| {
                part.sums = [[0.0; WIDTH]; 2];
                let (maxima, to) = (&part.maxima[block - 2], &mut part.inputs[block - 1]);
                isa::run(NormaliseRelu { norm, plane, maxima, to });
                part.convolve(block - 1, plane, 0..part.images * plane.tiles(), filters, scratch);
            });
        });
    }

    /// Sets the batch norm of block 2, 3 or 4 from the sums over its outputs.
    fn set_statistics(&mut self, block: usize, parameters: &[f32]) {
        let sums = self.total_sums();
        let count = (self.images * self.shape.side(block).pow(2)) as f64;
        self.set_norm(block, parameters, &sums, count);
    }

    /// [`ImagePart::sums`] of all parts, added in the order of the parts.
    fn total_sums(&self) -> [[f64; WIDTH]; 2] {
        let mut sums = [[0.0; WIDTH]; 2];
        for part in &self.parts {
            for (sums, values) in sums.iter_mut().zip(&part.sums) {
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
        }
        sums
    }

    /// Normalises the maxima of block 4 and writes them in the order of embeddings.
    fn collect_features(&mut self) {
        let (positions, norm) = (self.shape.side(BLOCKS).pow(2), &self.norms[BLOCKS - 1]);
        let last = WINOGRAD_BLOCKS - 1;
        let maxima = self.parts.iter().flat_map(|part| part.maxima[last].chunks_exact(positions));
        for (maxima, out) in maxima.zip(self.features.chunks_exact_mut(self.shape.features())) {
            for (position, pixel) in maxima.iter().enumerate() {
                for c in 0..WIDTH {
                    out[c * positions + position] = (norm.scale.0[c] * pixel.0[c] + norm.shift.0[c]).max(0.0);
                }
            }
        }
    }

    /// Copies the gradient of the embeddings into planes, and applies the backward pass of block 4's ReLU.
    fn set_d_features(&mut self, d_features: &[f32]) {
        let (shape, norm) = (self.shape, &self.norms[BLOCKS - 1]);
        let plane = self.plane(BLOCKS);
        let last = WINOGRAD_BLOCKS - 1;
        isa::for_each_in_parallel(self.parts.par_iter_mut(), |part| {
            let from = part.from * shape.features();
            let d_features = &d_features[from..from + part.images * shape.features()];
            let positions = plane.side.pow(2);
            for (image, d_features) in d_features.chunks_exact(shape.features()).enumerate() {
                for position in 0..positions {
                    let pixel =
                        image * plane.len() + plane.index_of(position / plane.side, position % plane.side);
                    for c in 0..WIDTH {
                        part.d_pooled[last][pixel].0[c] = d_features[c * positions + position];
                    }
                }
            }
            part.sums = [[0.0; WIDTH]; 2];
            part.relu_backward(last, plane, norm);
        });
    }

    /// The coefficients of the backward pass of a block's batch norm, from the sums of dy and dy y that the parts hold;
    /// adds to the gradients of gamma and beta.
    fn norm_backward(&self, block: usize, gradient: &mut [f32]) -> BatchNormBackward {
        let sums = self.total_sums();
        let mut products = [0.0; WIDTH];
        let norm = &self.norms[block];
        for c in 0..WIDTH {
            // The sum of dy (y - mean) / std.
            products[c] = norm.inverse_std[c] * (sums[1][c] - norm.mean[c] * sums[0][c]);
        }
        BatchNormBackward::new(&self.blocks[block], norm, &sums[0], &products, gradient)
    }

    /// The backward pass of the convolution of a Winograd block, from the gradient after pooling and ReLU (`d_pooled`)
    /// to that of its filters and of its input. For block 2, block 1 follows at once, and the gradient of the input is
    /// not kept.
    fn backward_block(&mut self, block: usize, norm_backward: &BatchNormBackward) {
        let (shape, plane, scratch_plane) = (self.shape, self.plane(block), self.plane(1));
        let previous_norm = &self.norms[block - 1];
        let (filters, scratch) = (&self.filters[block - 1].transposed, &self.scratch);
        isa::for_each_in_parallel(self.parts.par_iter_mut(), |part| {
            with_scratch(scratch, scratch_plane, |scratch| {
                part.sums = [[0.0; WIDTH]; 2];
                scratch.d_filters.iter_mut().for_each(|matrix| matrix.fill(Pixel::ZERO));
                if block == 1 {
                    part.backward_blocks_2_and_1(shape, plane, norm_backward, filters, scratch);
                } else {
                    part.backward_block(block, plane, norm_backward, previous_norm, filters, scratch);
                }
                let taps = &mut part.d_taps[block - 1];
                isa::run(FilterTransformBackward { points: &scratch.d_filters, taps });
            });
        });
    }

    /// Adds the filter gradients of all parts, in the order of the parts, to the gradient of the weights. The weights
    /// of a channel were multiplied by the sign of its gamma, so their gradient is, too.
    fn collect_taps(&self, block: usize, gradient: &mut [f32]) {
        let sign = &self.norms[block].sign.0;
        let weights = &mut gradient[self.blocks[block].weight.clone()];
        // The gradients of all parts together, `[tap, input channel, output channel]`.
        let totals: Vec<[Pixel; WIDTH]> = (0..TAPS)
            .into_par_iter()
            .map(|tap| {
                let mut sum = [Pixel::ZERO; WIDTH];
                for part in &self.parts {
                    for (sum, row) in sum.iter_mut().zip(&part.d_taps[block - 1][tap]) {
                        sum.0.iter_mut().zip(&row.0).for_each(|(sum, value)| *sum += value);
                    }
                }
                sum
            })
            .collect();
        weights.par_chunks_exact_mut(WIDTH * TAPS).zip(sign).enumerate().for_each(|(to, (weights, sign))| {
            for (index, weight) in weights.iter_mut().enumerate() {
                *weight += sign * totals[index % TAPS][index / TAPS].0[to];
            }
        });
    }

    /// The second part of the first block's backward pass ([`first_block::Backward`] is the first): the gradients of
    /// its weights, gamma and beta. The gradient of a weight is the sum over pixels of the gradient of y times the
    /// patch value: `dy_factor sum(dy x) + y_factor sum(y x) + constant sum(x)`, where the last two sums follow from
    /// the moments.
    fn first_block_backward(&mut self, gradient: &mut [f32]) {
        let values = self.first_taps.len();
        let (block, norm) = (&self.blocks[0], &self.norms[0]);
        // The sums over all parts of dy times the patch (`[values, 64]`) and of dy.
        let (mut dy_patches, mut dy_sum) = (vec![[0.0f64; WIDTH]; values], [0.0; WIDTH]);
        for part in &self.parts {
            for (sums, tap) in dy_patches.iter_mut().zip(&part.d_first_taps) {
                sums.iter_mut().zip(&tap.0).for_each(|(sum, value)| *sum += f64::from(*value));
            }
            dy_sum.iter_mut().zip(&part.d_first_sum).for_each(|(sum, value)| *sum += value);
        }
        let mut products = [0.0; WIDTH];
        for c in 0..WIDTH {
            // The sum of dy y: y is the inner product of patch and weights.
            let terms = self.first_taps.iter().zip(&dy_patches).map(|(w, sum)| f64::from(w.0[c]) * sum[c]);
            let dy_y: f64 = terms.sum();
            products[c] = norm.inverse_std[c] * (dy_y - norm.mean[c] * dy_sum[c]);
        }
        let backward = BatchNormBackward::new(block, norm, &dy_sum, &products, gradient);
        let channels = self.shape.channels;
        for c in 0..WIDTH {
            for value in 0..values {
                let row = &self.moments[value];
                // sum(y x): y is the inner product of patch and weights.
                let y_patch: f64 = self.first_taps.iter().zip(row).map(|(w, m)| f64::from(w.0[c]) * m).sum();
                // sum(x): the column of the constant 1.
                let patch_sum = row[values];
                let d_weight = f64::from(backward.dy_factor.0[c]) * dy_patches[value][c]
                    + f64::from(backward.y_factor.0[c]) * y_patch
                    + f64::from(backward.constant.0[c]) * patch_sum;
                // `value` is `tap * channels + channel`; the weights are `[64, channels, taps]`.
                let index = block.weight.start + c * values + value % channels * TAPS + value / channels;
                gradient[index] += norm.sign.0[c] * d_weight as f32;
            }
        }
        self.norms_backward[0] = backward;
    }
}

/// Runs `job` with scratch memory that no other thread is using: idle memory, or else new memory. `scratch_plane` is
/// the plane of block 2's input, which the memory has space for.
fn with_scratch(
    idle: &Mutex<Vec<TrainingScratch>>,
    scratch_plane: Plane,
    job: impl FnOnce(&mut TrainingScratch),
) {
    let reused = idle.lock().expect("no thread panics while it holds the lock").pop();
    let mut scratch = reused.unwrap_or_else(|| TrainingScratch {
        points: TilePoints::new(),
        products: TilePoints::new(),
        d_filters: winograd::zero_filters(),
        d_plane: scratch_plane.zeros(1),
    });
    job(&mut scratch);
    idle.lock().expect("no thread panics while it holds the lock").push(scratch);
}

impl ImagePart {
    /// Memory for the images from number `from` on.
    fn new(shape: Shape, from: usize, images: usize) -> Self {
        let side = |index: usize| shape.side(index + 1);
        let plane = |index: usize| Plane { side: side(index) };
        let pixels = |index: usize| vec![Pixel::ZERO; images * side(index).pow(2)];
        ImagePart {
            from,
            images,
            padded: vec![0.0; images * first_block::padded_len(shape)],
            moments: Box::new([[0.0; PATCH_VALUES]; PATCH_VALUES]),
            argmax: vec![[0; WIDTH]; images * side(0).pow(2)],
            inputs: std::array::from_fn(|index| plane(index).zeros(images)),
            outputs: std::array::from_fn(pixels),
            maxima: std::array::from_fn(|index| pixels(index + 1)),
            d_pooled: std::array::from_fn(|index| plane(index + 1).zeros(images)),
            sums: [[0.0; WIDTH]; 2],
            d_taps: std::array::from_fn(|_| vec![[Pixel::ZERO; WIDTH]; TAPS]),
            d_first_taps: vec![Pixel::ZERO; TAPS * shape.channels],
            d_first_sum: [0.0; WIDTH],
        }
    }

    /// Copies the images into margins of zeros and computes the moments of their patches.
    fn set_images(&mut self, shape: Shape, images: &[f32]) {
        self.moments.iter_mut().for_each(|row| row.fill(0.0));
        let padded = self.padded.chunks_exact_mut(first_block::padded_len(shape));
        for (padded, image) in padded.zip(images.chunks_exact(shape.pixels())) {
            first_block::pad(shape, image, padded);
            // In f32 within an image, in f64 over images.
            let mut moments: Moments = [[0.0; PATCH_VALUES]; PATCH_VALUES];
            isa::run(first_block::PatchMoments { shape, padded, moments: &mut moments });
            for (sums, row) in self.moments.iter_mut().zip(&moments) {
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
            }
        }
    }

    /// The convolution of a range of tiles, from `inputs[index]` to `outputs[index]` and `maxima[index]`.
    fn convolve(
        &mut self,
        index: usize,
        plane: Plane,
        tiles: std::ops::Range<usize>,
        filters: &Filters,
        scratch: &mut TrainingScratch,
    ) {
        let TrainingScratch { points, products, .. } = scratch;
        for block in tiles::blocks_of(plane, tiles) {
            isa::run(tiles::InputTransform { block, pixels: &self.inputs[index], points });
            isa::run(tiles::PointProducts { count: block.count, terms: [(points, filters)], out: products });
            let [sum, squares] = isa::run(OutputTransform {
                block,
                points: products,
                outputs: &mut self.outputs[index],
                maxima: &mut self.maxima[index],
            });
            self.add_sums(&sum, &squares);
        }
    }

    /// Adds to the two sums over pixels.
    fn add_sums(&mut self, first: &Pixel, second: &Pixel) {
        for (sums, pixel) in self.sums.iter_mut().zip([first, second]) {
            sums.iter_mut().zip(&pixel.0).for_each(|(sum, value)| *sum += f64::from(*value));
        }
    }

    /// Applies the backward pass of the ReLU to `d_pooled[index]`, and sums up what the norm's backward pass needs.
    fn relu_backward(&mut self, index: usize, plane: Plane, norm: &BatchNorm) {
        for image in 0..self.images {
            let windows = plane.side.pow(2);
            let [sum, products] = isa::run(ReluBackward {
                norm,
                plane,
                maxima: &self.maxima[index][image * windows..(image + 1) * windows],
                gradient: &mut self.d_pooled[index][image * plane.len()..(image + 1) * plane.len()],
            });
            self.add_sums(&sum, &products);
        }
    }

    /// The backward pass of block 3 or 4: the gradient of its filters and, through the ReLU of the previous block, that
    /// of its input.
    fn backward_block(
        &mut self,
        block: usize,
        plane: Plane,
        norm_backward: &BatchNormBackward,
        previous_norm: &BatchNorm,
        filters: &Filters,
        scratch: &mut TrainingScratch,
    ) {
        let index = block - 1;
        let mut d_input = std::mem::take(&mut self.d_pooled[index - 1]);
        d_input.fill(Pixel::ZERO);
        for tiles in tiles::blocks(plane, self.images) {
            self.backward_tiles(index, tiles, norm_backward, filters, scratch);
            let (points, pixels) = (&scratch.points, &mut d_input);
            isa::run(tiles::InputTransformBackward { block: tiles, points, pixels });
        }
        self.d_pooled[index - 1] = d_input;
        self.relu_backward(index - 1, plane, previous_norm);
    }

    /// The backward pass of block 2 and the first part of that of block 1, image by image.
    fn backward_blocks_2_and_1(
        &mut self,
        shape: Shape,
        plane: Plane,
        norm_backward: &BatchNormBackward,
        filters: &Filters,
        scratch: &mut TrainingScratch,
    ) {
        self.d_first_taps.fill(Pixel::ZERO);
        self.d_first_sum.fill(0.0);
        let (padded, windows) = (first_block::padded_len(shape), plane.side.pow(2));
        for image in 0..self.images {
            scratch.d_plane.fill(Pixel::ZERO);
            for within_image in tiles::blocks(plane, 1) {
                let first = image * plane.tiles() + within_image.first;
                self.backward_tiles(0, TileBlock { first, ..within_image }, norm_backward, filters, scratch);
                let TrainingScratch { points, d_plane, .. } = scratch;
                isa::run(tiles::InputTransformBackward { block: within_image, points, pixels: d_plane });
            }
            let mut sum = Pixel::ZERO;
            isa::run(first_block::Backward {
                shape,
                padded: &self.padded[image * padded..(image + 1) * padded],
                plane,
                out: &self.inputs[0][image * plane.len()..(image + 1) * plane.len()],
                argmax: &self.argmax[image * windows..(image + 1) * windows],
                d_out: &scratch.d_plane,
                taps: &mut self.d_first_taps,
                sum: &mut sum,
            });
            self.d_first_sum.iter_mut().zip(&sum.0).for_each(|(sum, value)| *sum += f64::from(*value));
        }
    }

    /// The backward pass of a block of tiles: adds to the gradient of the filters (`scratch.d_filters`), and leaves the
    /// gradient of the transformed input in `scratch.points`. `filters` are the transposed ones.
    fn backward_tiles(
        &mut self,
        index: usize,
        block: TileBlock,
        norm_backward: &BatchNormBackward,
        filters: &Filters,
        scratch: &mut TrainingScratch,
    ) {
        let TrainingScratch { points, products, d_filters, .. } = scratch;
        // The input is transformed again, because the forward pass does not keep its points.
        isa::run(tiles::InputTransform { block, pixels: &self.inputs[index], points });
        isa::run(OutputTransformBackward {
            block,
            norm_backward,
            outputs: &self.outputs[index],
            pooled: Plane { side: block.plane.side / 2 },
            d_pooled: &self.d_pooled[index],
            points: products,
        });
        // The gradients of filters and input. The latter overwrites the transformed input, which is no longer needed.
        let count = block.count;
        isa::run(tiles::FilterGradient { count, inputs: points, outputs: products, gradient: d_filters });
        isa::run(tiles::PointProducts { count, terms: [(products, filters)], out: points });
    }
}
