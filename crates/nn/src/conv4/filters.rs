//! The filters of a block in the order in which kernels read them.
//!
//! Parameters store a weight as `[to, from, tap]` (PyTorch's order). The kernels read vectors of output channels, so
//! filters are `[tap, from, to]`, with every output channel multiplied by a factor: the scale of a folded batch norm, or
//! the sign of gamma.

use super::plane::Pixel;
use super::winograd::{self, FilterTransform, Filters, Taps};
use super::{TAPS, WIDTH};
use crate::isa;

/// The filters of a Winograd block, and their transposes for the backward pass.
pub(super) struct BlockFilters {
    pub filters: Filters,
    pub transposed: Filters,
}

impl BlockFilters {
    pub fn zeros() -> Self {
        BlockFilters { filters: winograd::zero_filters(), transposed: winograd::zero_filters() }
    }

    /// Transforms the weights of a block, `[to, from, tap]`, each output channel multiplied by `factor`.
    pub fn set(&mut self, weights: &[f32], factor: &Pixel) {
        isa::run(FilterTransform { taps: &taps(weights, factor), points: &mut self.filters });
        isa::run(FilterTransform { taps: &taps_transposed(weights, factor), points: &mut self.transposed });
    }
}

/// The filters of a Winograd block as `[tap, from, to]`.
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

/// The filters of a Winograd block as `[tap, to, from]`, for the backward pass.
fn taps_transposed(weights: &[f32], factor: &Pixel) -> Taps {
    let mut taps = vec![[Pixel::ZERO; WIDTH]; TAPS];
    for (to, weights) in weights.chunks_exact(WIDTH * TAPS).enumerate() {
        for (index, weight) in weights.iter().enumerate() {
            taps[index % TAPS][to].0[index / TAPS] = weight * factor.0[to];
        }
    }
    taps
}

/// The filters of the first block as `[tap, from, to]`.
pub(super) fn first_block_taps(weights: &[f32], factor: &Pixel, taps: &mut [Pixel]) {
    let channels = taps.len() / TAPS;
    for (to, weights) in weights.chunks_exact(taps.len()).enumerate() {
        for (index, tap) in taps.iter_mut().enumerate() {
            tap.0[to] = weights[index % channels * TAPS + index / channels] * factor.0[to];
        }
    }
}
