//! Conv4, the backbone of the paper: four blocks of 3x3 convolution, batch norm, ReLU and 2x2 max-pool, each
//! of 64 channels. Inference in [`Embedder`], training in [`Training`], Hessians times vectors in
//! [`Tangent`].
//!
//! How it is laid out, and why:
//! - Activations are NHWC: a pixel's 64 channels are a few whole vectors. They lie in planes with a margin of
//!   one zero pixel, rounded up to whole Winograd tiles, so that no kernel asks where the picture ends.
//! - Blocks 2 to 4 are Winograd F(4x4, 3x3) (`winograd`): a quarter of the multiplications of a direct
//!   convolution. A tile of 4x4 outputs is four pooling windows, so pooling never leaves a tile.
//! - Block 1 has 1 or 3 input channels (`first`) and is direct; its output, the largest array of the network,
//!   is never stored.
//! - Batch norm scales by |gamma|: a channel whose gamma is negative is computed with negated weights, so that
//!   the maximum of a window before the norm is the maximum behind it, and only pooled values are normalised.
//! - Work is split by image into a number of parts that does not depend on the threads; what parts sum up is
//!   added in their order, so any number of threads gives the same bytes.

// Kernels index their registers by plain loops: values in vectors must not pass through closures and iterator
// adapters, which are compiled without the vector instructions.
#![allow(clippy::needless_range_loop)]

mod embedder;
mod first;
mod passes;
#[cfg(target_arch = "x86_64")]
mod permuted;
#[cfg(test)]
pub(crate) mod plain;
mod plane;
mod tangent;
mod tiles;
mod training;
mod winograd;

use std::ops::Range;

pub use embedder::{Embedder, Scratch};
pub use tangent::Tangent;
pub use training::Training;

use crate::parameters::{Layout, Role};

/// Channels of every block.
pub const WIDTH: usize = 64;
/// Blocks.
pub const BLOCKS: usize = 4;
/// Added to a variance before its root is taken.
pub const EPS: f32 = 1e-5;
/// Taps of a 3x3 kernel.
const TAPS: usize = 9;

/// The pictures a Conv4 is made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Height and width.
    pub size: usize,
    /// 3, or 1 for drawings.
    pub channels: usize,
}

impl Shape {
    /// The smallest size that survives four poolings.
    pub const SMALLEST: usize = 1 << BLOCKS;
    /// A size beyond which one picture's planes would take more memory than anybody means.
    pub const LARGEST: usize = 1024;

    /// Whether a Conv4 can be made for it.
    pub fn is_possible(self) -> bool {
        (Self::SMALLEST..=Self::LARGEST).contains(&self.size) && matches!(self.channels, 1 | 3)
    }

    /// Height and width that a block gets; `side(BLOCKS)` is what comes out.
    pub fn side(self, block: usize) -> usize {
        self.size >> block
    }

    /// Numbers of an embedding.
    pub fn features(self) -> usize {
        WIDTH * self.side(BLOCKS).pow(2)
    }

    /// Additions and multiplications our kernels do for the convolutions of one picture, forward and backward:
    /// blocks 2 to 4 by Winograd, the first block's gradient at pooled places.
    pub fn operations(self) -> (u64, u64) {
        let later = |block: usize| {
            (plane::Plane { side: self.side(block) }.tiles() * plane::POINTS * WIDTH * WIDTH * 2) as u64
        };
        let first = (self.size.pow(2) * self.channels * TAPS * WIDTH * 2) as u64;
        let rest: u64 = (1..BLOCKS).map(later).sum();
        (first + rest, first + 2 * rest)
    }

    /// Numbers of a picture.
    pub fn pixels(self) -> usize {
        self.size * self.size * self.channels
    }
}

/// Where the parameters of a block lie in the flat buffer.
#[derive(Debug, Clone)]
struct BlockRanges {
    /// [64, input channels, 3, 3], as PyTorch has it.
    weight: Range<usize>,
    bias: Range<usize>,
    gamma: Range<usize>,
    beta: Range<usize>,
    running_mean: Range<usize>,
    running_var: Range<usize>,
}

/// The named parameters for pictures of so many channels.
pub fn layout(channels: usize) -> Layout {
    ranges(channels).0
}

fn ranges(channels: usize) -> (Layout, Vec<BlockRanges>) {
    let mut layout = Layout::default();
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

/// Fresh parameters: Xavier-uniform weights, no bias, norm weights uniform in [0, 1). `random` yields uniform
/// numbers in [0, 1).
pub fn initial(channels: usize, random: &mut dyn FnMut() -> f64) -> Vec<f32> {
    let (layout, blocks) = ranges(channels);
    let mut parameters = vec![0.0; layout.len()];
    for block in &blocks {
        let inputs = block.weight.len() / (WIDTH * TAPS);
        let bound = (6.0 / ((inputs + WIDTH) * TAPS) as f64).sqrt();
        parameters[block.weight.clone()].fill_with(|| ((2.0 * random() - 1.0) * bound) as f32);
        parameters[block.gamma.clone()].fill_with(|| random() as f32);
        parameters[block.running_var.clone()].fill(1.0);
    }
    parameters
}
