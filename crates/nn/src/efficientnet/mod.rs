//! EfficientNet-Lite0 for inference: a backbone for photographs that is small and accurate enough to ship with the
//! program. Start with [`EfficientNetEmbedder`].
//!
//! The network: a 3x3 convolution with stride 2 (the stem); sixteen inverted bottlenecks (a pointwise convolution to
//! six times the channels, which the first bottleneck does not have, a depthwise convolution of 3x3 or 5x5, a pointwise
//! convolution to the output channels, and a residual connection where input and output have the same shape); a
//! pointwise convolution to 1,280 channels (the head); and their mean over all positions, which is the embedding. ReLU6
//! follows every convolution but the last of a bottleneck. Batch norm is folded into the weights of the model file. A
//! pointwise convolution has 1x1 filters; a depthwise one has one filter per channel.
//!
//! How it is implemented, and why:
//! - Activations are NHWC, `[rows, columns, channels]`, so a pointwise convolution is one matrix product without
//!   copying, and a depthwise convolution works on whole vectors of channels.
//! - The activations within a bottleneck are up to six times as wide as its input. They exist only in strips of
//!   rows, which stay in the second-level cache.
//! - An [`EfficientNetSession`] embeds one image at a time on one thread: an embedding depends on its image alone, and
//!   a caller with several threads has one session per thread.
//! - Padding is TensorFlow's `SAME`: if the padding of both sides together is odd, the larger part is at the bottom and
//!   right.

// Kernels index arrays of vectors with plain loops, see `conv4`.
#![allow(clippy::needless_range_loop)]

mod depthwise;
mod embedder;
#[cfg(test)]
mod reference;

pub use embedder::{EfficientNetEmbedder, EfficientNetSession};

use crate::parameters::{ParameterLayout, Role};

/// The length of an embedding.
pub const FEATURES: usize = 1280;
/// Output channels of the stem.
pub const STEM: usize = 32;
/// The smallest image size: the last layer has one position then.
pub const SMALLEST: usize = 32;
/// The largest image size. Beyond it, the activations of a single image would take an unreasonable amount of memory.
pub const LARGEST: usize = 1024;
/// The bounds of ReLU6.
const RELU6_BOUNDS: [f32; 2] = [0.0, 6.0];

/// A row of `blocks` bottlenecks. The first has stride `stride` and changes the channels to `channels`; the others have
/// stride 1. `expansion` is the number of channels between the two pointwise convolutions over that of the input;
/// 1 means that there is no first pointwise convolution.
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

/// The stages of EfficientNet-B0 (Tan and Le, 2019), which the Lite version keeps: kernel, stride, expansion, channels,
/// blocks.
const STAGES: [Stage; 7] = [
    stage(3, 1, 1, 16, 1),
    stage(3, 2, 6, 24, 2),
    stage(5, 2, 6, 40, 2),
    stage(3, 2, 6, 80, 3),
    stage(5, 1, 6, 112, 3),
    stage(5, 2, 6, 192, 4),
    stage(3, 1, 6, 320, 1),
];

/// The shape of an inverted bottleneck.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BottleneckShape {
    /// Height and width of the depthwise filters: 3 or 5.
    pub kernel: usize,
    /// Stride of the depthwise convolution: 1 or 2.
    pub stride: usize,
    /// Input channels.
    pub input: usize,
    /// Channels between the two pointwise convolutions; as many as `input` if there is only the second one.
    pub inner: usize,
    /// Output channels.
    pub output: usize,
}

impl BottleneckShape {
    /// Whether there is a pointwise convolution before the depthwise one.
    pub fn expands(self) -> bool {
        self.inner != self.input
    }

    /// Whether the input is added to the output.
    pub fn adds_input(self) -> bool {
        self.stride == 1 && self.input == self.output
    }
}

/// The shapes of the sixteen bottlenecks, from the stem to the head.
pub fn bottlenecks() -> Vec<BottleneckShape> {
    let mut input = STEM;
    let mut shapes = Vec::new();
    for stage in &STAGES {
        for number in 0..stage.blocks {
            let stride = if number == 0 { stage.stride } else { 1 };
            let (inner, output) = (input * stage.expansion, stage.channels);
            shapes.push(BottleneckShape { kernel: stage.kernel, stride, input, inner, output });
            input = stage.channels;
        }
    }
    shapes
}

/// Names, shapes and positions of the parameters: a weight (in PyTorch's order) and a bias per convolution.
pub fn layout() -> ParameterLayout {
    let mut layout = ParameterLayout::default();
    let mut add = |name: String, shape: &[usize]| {
        layout.add(format!("{name}.weight"), shape, Role::Constant);
        layout.add(format!("{name}.bias"), &shape[..1], Role::Constant);
    };
    add("stem".into(), &[STEM, 3, 3, 3]);
    for (number, block) in (1..).zip(bottlenecks()) {
        if block.expands() {
            add(format!("block{number}.expand"), &[block.inner, block.input]);
        }
        add(format!("block{number}.depthwise"), &[block.inner, block.kernel, block.kernel]);
        add(format!("block{number}.project"), &[block.output, block.inner]);
    }
    add("head".into(), &[FEATURES, STAGES[STAGES.len() - 1].channels]);
    layout
}

/// With `SAME` padding: (the number of outputs in a row or column, the padding at the top or left). `side` is the
/// number of inputs in a row or column.
pub fn same_padding(side: usize, kernel: usize, stride: usize) -> (usize, usize) {
    let outputs = side.div_ceil(stride);
    // The inputs that the windows of all outputs span, minus those that exist: the padding of both sides.
    let padding = ((outputs - 1) * stride + kernel).saturating_sub(side);
    (outputs, padding / 2)
}
