//! EfficientNet-Lite0, inference only: a network for photographs that is small and good enough to ship.
//!
//! A 3x3 convolution with stride 2, sixteen inverted bottlenecks (a pointwise product to six times the channels, a
//! depthwise filter of 3x3 or 5x5, a pointwise product back, and the input added where shapes agree), a last
//! product to 1,280 channels and their mean over all places. Batch norm is folded into the weights of the file.
//!
//! How it is laid out, and why:
//! - Activations are NHWC, so a pointwise convolution is one product of matrices as they lie, and a depthwise filter
//!   works on whole vectors of channels.
//! - What lies between the layers of a block is six times as wide as its ends and lives only in strips of rows, in the
//!   second-level cache.
//! - One picture at a time on one thread: an embedding depends on its picture alone, and who has more threads gives
//!   each a picture.
//! - Margins are as TensorFlow has them (`SAME`): with a stride, the odd one is below and to the right.

// Kernels index their registers by plain loops: see `conv4`.
#![allow(clippy::needless_range_loop)]

mod depthwise;
mod embedder;
#[cfg(test)]
mod plain;

pub use embedder::{Embedder, Scratch};

use crate::parameters::{Layout, Role};

/// Numbers of an embedding.
pub const FEATURES: usize = 1280;
/// Channels behind the first convolution.
const STEM: usize = 32;
/// The smallest picture: one place is left of it at the end.
pub const SMALLEST: usize = 32;
/// A size beyond which one picture's planes would take more memory than anybody means.
pub const LARGEST: usize = 1024;
/// What ReLU6 keeps its numbers between.
const BOUNDS: [f32; 2] = [0.0, 6.0];

/// Blocks of one kind: the first has the stride and changes the number of channels.
struct Stage {
    kernel: usize,
    stride: usize,
    expansion: usize,
    channels: usize,
    blocks: usize,
}

const fn stage(kernel: usize, stride: usize, expansion: usize, channels: usize, blocks: usize) -> Stage {
    Stage { kernel, stride, expansion, channels, blocks }
}

const STAGES: [Stage; 7] = [
    stage(3, 1, 1, 16, 1),
    stage(3, 2, 6, 24, 2),
    stage(5, 2, 6, 40, 2),
    stage(3, 2, 6, 80, 3),
    stage(5, 1, 6, 112, 3),
    stage(5, 2, 6, 192, 4),
    stage(3, 1, 6, 320, 1),
];

/// One inverted bottleneck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Block {
    kernel: usize,
    stride: usize,
    input: usize,
    /// Channels between the two pointwise products; as many as come in where there is only the second.
    inner: usize,
    output: usize,
}

impl Block {
    fn expands(self) -> bool {
        self.inner != self.input
    }

    fn adds_input(self) -> bool {
        self.stride == 1 && self.input == self.output
    }
}

fn blocks() -> Vec<Block> {
    let mut input = STEM;
    let mut blocks = Vec::new();
    for stage in &STAGES {
        for number in 0..stage.blocks {
            let stride = if number == 0 { stage.stride } else { 1 };
            let (inner, output) = (input * stage.expansion, stage.channels);
            blocks.push(Block { kernel: stage.kernel, stride, input, inner, output });
            input = stage.channels;
        }
    }
    blocks
}

/// The named parameters, in shapes as PyTorch has them: a weight and a bias for every convolution.
pub fn layout() -> Layout {
    let mut layout = Layout::default();
    let mut add = |name: String, shape: &[usize]| {
        layout.add(format!("{name}.weight"), shape, Role::Constant);
        layout.add(format!("{name}.bias"), &shape[..1], Role::Constant);
    };
    add("stem".into(), &[STEM, 3, 3, 3]);
    for (number, block) in (1..).zip(blocks()) {
        if block.expands() {
            add(format!("block{number}.expand"), &[block.inner, block.input]);
        }
        add(format!("block{number}.depthwise"), &[block.inner, block.kernel, block.kernel]);
        add(format!("block{number}.project"), &[block.output, block.inner]);
    }
    add("head".into(), &[FEATURES, STAGES[STAGES.len() - 1].channels]);
    layout
}

/// How many places a stride leaves of a side, and the margin above and to the left.
fn same(side: usize, kernel: usize, stride: usize) -> (usize, usize) {
    let outputs = side.div_ceil(stride);
    let margins = ((outputs - 1) * stride + kernel).saturating_sub(side);
    (outputs, margins / 2)
}
