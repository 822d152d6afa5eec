//! The textbook Conv4 in f64, forward ([`forward`]) and backward ([`ReferencePass::backward`]): the reference of the
//! tests of the tuned kernels.
//!
//! Activations are `[image, channel, row, column]`, unlike those of the tuned kernels, and here `stage` is a block with
//! its activations. Nothing is fused, and gammas keep their sign.

use super::{BLOCKS, EPSILON, Shape, WIDTH, layout_and_ranges};

/// The activations of one block, `[image, channel, row, column]`, and its statistics, one number per channel.
pub(super) struct Stage {
    /// Input channels.
    channels: usize,
    /// Height and width of input and output.
    pub(super) side: usize,
    input: Vec<f64>,
    /// The output of the convolution with its bias.
    output: Vec<f64>,
    pub(super) mean: Vec<f64>,
    pub(super) inverse_std: Vec<f64>,
    /// The index in `output` of the maximum of every window.
    argmax: Vec<usize>,
    pooled: Vec<f64>,
}

/// A forward pass with batch or running statistics, and its activations.
pub struct ReferencePass {
    pub(super) stages: Vec<Stage>,
    images: usize,
}

/// Takes images `[images, rows, columns, channels]`. Batch norm uses the statistics of the batch or, if
/// `batch_statistics` is false, the running ones.
pub fn forward(shape: Shape, parameters: &[f64], images: &[f64], batch_statistics: bool) -> ReferencePass {
    let count = images.len() / shape.pixels();
    // Channels first.
    let mut input = vec![0.0; images.len()];
    for (index, value) in images.iter().enumerate() {
        let (pixel, channel) = (index / shape.channels, index % shape.channels);
        let (image, position) = (pixel / shape.size.pow(2), pixel % shape.size.pow(2));
        input[(image * shape.channels + channel) * shape.size.pow(2) + position] = *value;
    }
    let mut stages: Vec<Stage> = Vec::new();
    for block in 0..BLOCKS {
        let channels = if block == 0 { shape.channels } else { WIDTH };
        let input = stages.last().map_or_else(|| input.clone(), |stage| stage.pooled.clone());
        stages.push(stage(shape, block, channels, count, parameters, input, batch_statistics));
    }
    ReferencePass { stages, images: count }
}

/// The taps of a 3x3 filter at an output pixel that are within the image: (number of the tap, index of its input pixel
/// in the channel).
fn neighbours(side: usize, row: usize, column: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..9).filter_map(move |tap| {
        let (r, c) = ((row + tap / 3).checked_sub(1)?, (column + tap % 3).checked_sub(1)?);
        (r < side && c < side).then_some((tap, r * side + c))
    })
}

/// The forward pass of one block.
fn stage(
    shape: Shape,
    block: usize,
    channels: usize,
    images: usize,
    parameters: &[f64],
    input: Vec<f64>,
    batch_statistics: bool,
) -> Stage {
    let ranges = &layout_and_ranges(shape.channels).1[block];
    let (side, weights) = (shape.side(block), &parameters[ranges.weight.clone()]);
    let plane = side * side;
    // Convolution.
    let mut output = vec![0.0; images * WIDTH * plane];
    for image in 0..images {
        for o in 0..WIDTH {
            for position in 0..plane {
                let mut sum = parameters[ranges.bias.start + o];
                for (tap, from) in neighbours(side, position / side, position % side) {
                    for i in 0..channels {
                        sum += weights[(o * channels + i) * 9 + tap]
                            * input[(image * channels + i) * plane + from];
                    }
                }
                output[(image * WIDTH + o) * plane + position] = sum;
            }
        }
    }
    // Mean and deviation of each output channel.
    let (mut mean, mut inverse_std) = (vec![0.0; WIDTH], vec![0.0; WIDTH]);
    for o in 0..WIDTH {
        let values = || {
            let output = &output;
            (0..images).flat_map(move |image| output[(image * WIDTH + o) * plane..][..plane].iter())
        };
        let count = (images * plane) as f64;
        mean[o] = values().sum::<f64>() / count;
        let mut var = values().map(|value| (value - mean[o]).powi(2)).sum::<f64>() / count;
        if !batch_statistics {
            mean[o] = parameters[ranges.running_mean.start + o];
            var = parameters[ranges.running_var.start + o];
        }
        inverse_std[o] = (var + f64::from(EPSILON)).sqrt().recip();
    }
    // Batch norm, max-pool and ReLU.
    let pooled_side = side / 2;
    let (mut argmax, mut pooled) = (Vec::new(), Vec::new());
    for image in 0..images {
        for o in 0..WIDTH {
            let (gamma, beta) = (parameters[ranges.gamma.start + o], parameters[ranges.beta.start + o]);
            for window in 0..pooled_side * pooled_side {
                let (row, column) = (window / pooled_side * 2, window % pooled_side * 2);
                let first = (image * WIDTH + o) * plane + row * side + column;
                let four = [first, first + 1, first + side, first + side + 1];
                let value = |at: usize| gamma * (output[at] - mean[o]) * inverse_std[o] + beta;
                let max = four.into_iter().max_by(|a, b| value(*a).total_cmp(&value(*b))).unwrap();
                argmax.push(max);
                pooled.push(value(max).max(0.0));
            }
        }
    }
    Stage { channels, side, input, output, mean, inverse_std, argmax, pooled }
}

impl ReferencePass {
    /// The embeddings, `[images, 64, rows, columns]`.
    pub fn features(&self) -> &[f64] {
        &self.stages[BLOCKS - 1].pooled
    }

    /// The gradient of the parameters, in their layout, given that of the embeddings. Only with batch statistics.
    pub fn backward(&self, shape: Shape, parameters: &[f64], d_features: &[f64]) -> Vec<f64> {
        let (layout, ranges_of_blocks) = layout_and_ranges(shape.channels);
        let mut gradient = vec![0.0; layout.len()];
        let mut d_pooled = d_features.to_vec();
        for (stage, ranges) in self.stages.iter().zip(&ranges_of_blocks).rev() {
            let (side, plane) = (stage.side, stage.side.pow(2));
            let windows = (side / 2).pow(2);
            // The gradient of the normalised outputs: through ReLU and pooling.
            let mut d_norm = vec![0.0; stage.output.len()];
            for (at, max) in stage.argmax.iter().enumerate() {
                if stage.pooled[at] > 0.0 {
                    d_norm[*max] += d_pooled[at];
                }
            }
            debug_assert_eq!(stage.argmax.len(), self.images * WIDTH * windows);
            // Through batch norm: beta, gamma, and the output of the convolution.
            let mut d_output = vec![0.0; stage.output.len()];
            let count = (self.images * plane) as f64;
            for o in 0..WIDTH {
                // The indices of the channel's outputs.
                let outputs: Vec<usize> = (0..self.images)
                    .flat_map(|image| (0..plane).map(move |position| (image * WIDTH + o) * plane + position))
                    .collect();
                let normalised = |at: usize| (stage.output[at] - stage.mean[o]) * stage.inverse_std[o];
                let sum: f64 = outputs.iter().map(|at| d_norm[*at]).sum();
                let products: f64 = outputs.iter().map(|at| d_norm[*at] * normalised(*at)).sum();
                gradient[ranges.beta.start + o] = sum;
                gradient[ranges.gamma.start + o] = products;
                let scale = parameters[ranges.gamma.start + o] * stage.inverse_std[o];
                for at in outputs {
                    d_output[at] = scale * (d_norm[at] - sum / count - normalised(at) * products / count);
                }
            }
            // Through the convolution: weights, and the input, which is the pooled output of the previous block.
            let weights = &parameters[ranges.weight.clone()];
            d_pooled = vec![0.0; stage.input.len()];
            for image in 0..self.images {
                for o in 0..WIDTH {
                    for position in 0..plane {
                        let d = d_output[(image * WIDTH + o) * plane + position];
                        for (tap, from) in neighbours(side, position / side, position % side) {
                            for i in 0..stage.channels {
                                let (weight, at) = (
                                    (o * stage.channels + i) * 9 + tap,
                                    (image * stage.channels + i) * plane + from,
                                );
                                gradient[ranges.weight.start + weight] += d * stage.input[at];
                                d_pooled[at] += d * weights[weight];
                            }
                        }
                    }
                }
            }
        }
        gradient
    }
}
