//! Conv4, the backbone of "Few-shot Learning with Noisy Labels" (CVPR 2022), which trueshot reproduces: four blocks of
//! 3x3 convolution with 64 channels, batch norm, ReLU and 2x2 max-pool.
//!
//! Start with [`Conv4Embedder`] for inference, [`TrainingPass`] for gradients, or [`TangentPass`] for Hessian-vector
//! products (needed by [`crate::maml`]). [`Shape`] is the shape of the images, [`layout`] that of the parameters.
//! Shapes: images `[images, rows, columns, channels]`, already normalised; embeddings `[images, 64, rows, columns]`
//! with the rows and columns that four poolings leave, 5 x 5 for images of 84 x 84.
//!
//! How it is implemented, and why:
//! - Activations are NHWC: the 64 channels of a pixel are a few whole vectors (`plane::Pixel`). They are stored in
//!   planes (`plane::Plane`) with a margin of one zero pixel, rounded up to whole Winograd tiles, so that no kernel has
//!   to check for the edge of the image.
//! - Blocks 2 to 4 use Winograd's F(4x4, 3x3) (`winograd`, `tiles`): a quarter of the multiplications of a direct
//!   convolution. A tile is 4x4 outputs, four pooling windows, so pooling never crosses tiles.
//! - Block 1 has 1 or 3 input channels (`first_block`) and is a direct convolution. Its output, the largest array of
//!   the network, is never stored: `first_block` says how batch norm works without it.
//! - Batch norm scales by |gamma|: a channel whose gamma is negative is computed with negated weights, so the maximum
//!   of a window before the norm is also the maximum after it, and only pooled values are normalised.
//! - In training, the images are split into a number of parts that does not depend on the number of threads, and the
//!   sums of the parts are added in their order, so any number of threads gives the same bytes.
//!
//! In the code of this module, `block` counts from 0, so block 0 is the first. Names of parameters and comments count
//! from 1, as above, unless they say otherwise.

// Kernels index arrays of vectors with plain loops: closures that the compiler does not inline, such as those of
// many iterator adapters, are compiled without the vector instructions.
#![allow(clippy::needless_range_loop)]

mod batch_norm;
mod embedder;
mod filters;
mod first_block;
#[cfg(target_arch = "x86_64")]
mod first_block_avx512;
mod plane;
#[cfg(test)]
pub(crate) mod reference;
mod tangent;
#[cfg(test)]
mod tests;
mod tiles;
mod training;
mod winograd;

use std::ops::Range;

pub use embedder::{Conv4Embedder, Conv4Session};
pub use tangent::TangentPass;
pub use training::TrainingPass;

use crate::parameters::{ParameterLayout, Role};

/// Channels of every block.
pub const WIDTH: usize = 64;
/// Number of blocks.
pub const BLOCKS: usize = 4;
/// Added to the variance in batch norm.
pub const EPSILON: f32 = 1e-5;
/// Taps of a 3x3 kernel: its positions, row by row.
const TAPS: usize = 9;

/// The shape of the images that a Conv4 takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Height and width.
    pub size: usize,
    /// 3, or 1 for drawings.
    pub channels: usize,
}

impl Shape {
    /// The smallest size: after four poolings one pixel is left.
    pub const SMALLEST: usize = 1 << BLOCKS;
    /// The largest size. Beyond it, the planes of a single image would take an unreasonable amount of memory.
    pub const LARGEST: usize = 1024;

    /// Whether size and number of channels are supported.
    pub fn is_possible(self) -> bool {
        (Self::SMALLEST..=Self::LARGEST).contains(&self.size) && matches!(self.channels, 1 | 3)
    }

    /// Height and width of the input of a block, counted from 0; `side(BLOCKS)` is that of the network's output.
    /// Pooling drops the last row and column of an odd side: 84, 42, 21, 10, 5.
    pub fn side(self, block: usize) -> usize {
        self.size >> block
    }

    /// The length of an embedding.
    pub fn features(self) -> usize {
        WIDTH * self.side(BLOCKS).pow(2)
    }

    /// Floating-point operations of the convolutions of one image as implemented here, (forward, backward). Blocks 2 to
    /// 4: Winograd's products, forward once and backward twice, for the gradients of inputs and filters. Block 1: the
    /// direct convolution, and as many operations for the gradient of its filters; its images need no gradient.
    pub fn operations(self) -> (u64, u64) {
        let winograd = |block: usize| {
            (plane::Plane { side: self.side(block) }.tiles() * plane::POINTS * WIDTH * WIDTH * 2) as u64
        };
        let first = (self.size.pow(2) * self.channels * TAPS * WIDTH * 2) as u64;
        let later_blocks: u64 = (1..BLOCKS).map(winograd).sum();
        (first + later_blocks, first + 2 * later_blocks)
    }

    /// The number of values of an image: height x width x channels.
    pub fn pixels(self) -> usize {
        self.size * self.size * self.channels
    }
}

/// The ranges of a block's parameters in the flat buffer. All but the weight are `[64]`.
#[derive(Debug, Clone)]
struct BlockRanges {
    /// `[64, input channels, 3, 3]`, as in PyTorch.
    weight: Range<usize>,
    bias: Range<usize>,
    gamma: Range<usize>,
    beta: Range<usize>,
    running_mean: Range<usize>,
    running_var: Range<usize>,
}

/// Names, shapes and positions of the parameters, for images with this number of channels.
pub fn layout(channels: usize) -> ParameterLayout {
    layout_and_ranges(channels).0
}

/// The layout, and the ranges of each block in it.
fn layout_and_ranges(channels: usize) -> (ParameterLayout, Vec<BlockRanges>) {
    let mut layout = ParameterLayout::default();
    let blocks = (0..BLOCKS).map(|block| {
        let inputs = if block == 0 { channels } else { WIDTH };
        let mut add =
            |name: &str, shape: &[usize], role| layout.add(format!("block{}.{name}", block + 1), shape, role);
        BlockRanges {
            weight: add("conv.weight", &[WIDTH, inputs, 3, 3], Role::Trained),
            bias: add("conv.bias", &[WIDTH], Role::Trained),
            gamma: add("norm.weight", &[WIDTH], Role::Trained),
            beta: add("norm.bias", &[WIDTH], Role::Trained),
            running_mean: add("norm.running_mean", &[WIDTH], Role::Constant),
            running_var: add("norm.running_var", &[WIDTH], Role::Constant),
        }
    });
    let blocks = blocks.collect();
    (layout, blocks)
}

/// Initial parameters: Xavier-uniform weights, zero biases and betas, and gammas uniform in [0, 1). `random` yields
/// uniform numbers in [0, 1).
pub fn initial(channels: usize, random: &mut dyn FnMut() -> f64) -> Vec<f32> {
    let (layout, blocks) = layout_and_ranges(channels);
    let mut parameters = vec![0.0; layout.len()];
    for block in &blocks {
        let inputs = block.weight.len() / (WIDTH * TAPS);
        // Xavier's bound: an output sums over `inputs * TAPS` weights, an input is used by `WIDTH * TAPS`.
        let bound = (6.0 / ((inputs + WIDTH) * TAPS) as f64).sqrt();
        parameters[block.weight.clone()].fill_with(|| ((2.0 * random() - 1.0) * bound) as f32);
        parameters[block.gamma.clone()].fill_with(|| random() as f32);
        parameters[block.running_var.clone()].fill(1.0);
    }
    parameters
}
