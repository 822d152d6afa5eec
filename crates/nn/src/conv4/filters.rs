//! The 3x3 filters of a block, in the order in which the convolution kernels read them. Start with [`BlockFilters`].
//!
//! A tap is one of the 9 positions of a filter, `from` an input channel and `to` an output channel. The parameters
//! store weights as `[to, from, tap]`, which is PyTorch's `[to, from, 3, 3]`. The kernels load vectors of output
//! channels, so filters are `[tap, from, to]`; a [`Pixel`] holds the 64 output channels of one tap and input channel.
//!
//! All functions multiply the weights of each output channel by a factor, `[to]`: in inference the scale of the batch
//! norm, which is folded into the weights; in training the sign of gamma (see [`super`]).

use super::plane::Pixel;
use super::winograd::{self, FilterTransform, Filters, Taps};
use super::{TAPS, WIDTH};
use crate::isa;

/// The filters of a Winograd block (blocks 2 to 4, 64 input channels) at the Winograd points, see `winograd`.
pub(super) struct BlockFilters {
    /// For the forward pass, `[point, from, to]`.
    pub filters: Filters,
    /// For the backward pass, `[point, to, from]`.
    pub transposed: Filters,
}

impl BlockFilters {
    /// Filters that are all zero, to be set with [`BlockFilters::set`].
    pub fn zeros() -> Self {
        BlockFilters { filters: winograd::zero_filters(), transposed: winograd::zero_filters() }
    }

    /// Sets both from the weights of the block, `[to, from, tap]`, with each output channel multiplied by its `factor`.
    pub fn set(&mut self, weights: &[f32], factor: &Pixel) {
        isa::run(FilterTransform { taps: &taps(weights, factor), points: &mut self.filters });
        isa::run(FilterTransform { taps: &taps_transposed(weights, factor), points: &mut self.transposed });
    }
}

/// The weights of a Winograd block, `[to, from, tap]`, times `factor`, as `[tap, from, to]`.
pub(super) fn taps(weights: &[f32], factor: &Pixel) -> Taps {
    let mut taps = vec![[Pixel::ZERO; WIDTH]; TAPS];
    for (to, weights) in weights.chunks_exact(WIDTH * TAPS).enumerate() {
        for (from, weights) in weights.chunks_exact(TAPS).enumerate() {
            for (tap, weight) in taps.iter_mut().zip(weights) {
                tap[from].0[to] = weight * factor.0[to];
            }
        }
    }
    taps
}

/// The weights of a Winograd block, `[to, from, tap]`, times `factor`, as `[tap, to, from]` for the backward pass.
fn taps_transposed(weights: &[f32], factor: &Pixel) -> Taps {
    let mut taps = vec![[Pixel::ZERO; WIDTH]; TAPS];
    for (to, weights) in weights.chunks_exact(WIDTH * TAPS).enumerate() {
        // `index` is `from * TAPS + tap`.
        for (index, weight) in weights.iter().enumerate() {
            taps[index % TAPS][to].0[index / TAPS] = weight * factor.0[to];
        }
    }
    taps
}

/// Writes the weights of the first block, `[to, from, tap]`, times `factor`, to `taps` as `[tap, from, to]`. The length
/// of `taps` gives the number of input channels, 1 or 3.
pub(super) fn first_block_taps(weights: &[f32], factor: &Pixel, taps: &mut [Pixel]) {
    let channels = taps.len() / TAPS;
    for (to, weights) in weights.chunks_exact(taps.len()).enumerate() {
        // `index` is `tap * channels + from`.
        for (index, tap) in taps.iter_mut().enumerate() {
            tap.0[to] = weights[index % channels * TAPS + index / channels] * factor.0[to];
        }
    }
}
