//! The gradient of the first block's taps with AVX-512's permutations: [`add_taps`], called by `first_block::Backward`.
//!
//! Of the four outputs of a pooling window only the maximum has a gradient, and it is at a different position for every
//! channel. The input patch of the window is four rows of at most twelve numbers (4 pixels of C channels). The tap in
//! row `tap_row` and at value k needs number `x C + k` of patch row `y + tap_row`, with (y, x) the position of the
//! maximum, 0 or 1 each. Patch rows `tap_row` and `tap_row + 1` are therefore the two tables of one permutation, whose
//! index is `16 y + x C + k` for each channel: a tap takes one permutation and one multiply-add instead of four
//! multiply-adds, three of them with zeros.

use pulp::Simd;
use pulp::x86::V4;

use super::WIDTH;
use super::plane::{Pixel, vectors};

/// Lanes of a vector: the index of the second table's first number.
const LANES: usize = 16;
/// Taps of a row whose sums, for three rows of taps, fit into registers next to the tables.
const MAX_TAPS: usize = 5;

/// The gradient of one window: at the maximum of each channel.
#[derive(Clone)]
#[repr(C, align(64))]
pub(super) struct WindowGradient {
    /// Of the maximum of each channel; 0 where the ReLU is inactive.
    pub gradient: Pixel,
    /// For each channel `16 y + x C`: the index of the first number of the maximum's patch in the tables.
    indices: [u32; WIDTH],
}

impl WindowGradient {
    pub const ZERO: WindowGradient = WindowGradient { gradient: Pixel::ZERO, indices: [0; WIDTH] };

    /// Sets the indices from the positions of the maxima (`2 y + x`), for C input channels.
    #[inline(always)]
    pub fn set_indices<const C: usize>(&mut self, argmax: &[u8; WIDTH]) {
        for (index, &position) in self.indices.iter_mut().zip(argmax) {
            *index = u32::from(position >> 1) * LANES as u32 + u32::from(position & 1) * C as u32;
        }
    }
}

/// Adds the gradient of the taps (`out`, `[3, 3, C, 64]`) from one row of windows. `padded` starts at the input of the
/// first window, and its rows are `line` numbers apart.
#[inline(always)]
pub(super) fn add_taps<const C: usize>(
    simd: V4,
    windows: &[WindowGradient],
    padded: &[f32],
    line: usize,
    out: &mut [Pixel],
) {
    // The 9 taps of a row of 3 channels are computed as 5 and 4.
    for v in 0..vectors::<V4>() {
        if 3 * C <= MAX_TAPS {
            add_some_taps::<C, 0, 3>(simd, windows, padded, line, v, out);
        } else {
            add_some_taps::<C, 0, 5>(simd, windows, padded, line, v, out);
            add_some_taps::<C, 5, 4>(simd, windows, padded, line, v, out);
        }
    }
}

/// Adds the gradient of COUNT taps, from tap FROM on, of each of the three rows of taps, for vector `v` of the
/// channels.
#[inline(always)]
fn add_some_taps<const C: usize, const FROM: usize, const COUNT: usize>(
    simd: V4,
    windows: &[WindowGradient],
    padded: &[f32],
    line: usize,
    v: usize,
    out: &mut [Pixel],
) {
    let mut sums = [[simd.splat_f32s(0.0); COUNT]; 3];
    for (column, WindowGradient { gradient, indices }) in windows.iter().enumerate() {
        let gradient = gradient.get::<V4>(v);
        let indices = V4::as_simd_u32s(indices).0[v];
        // The four rows of the input patch: 4 C numbers, then zeros.
        let row = |index: usize| {
            let start = index * line + 2 * column * C;
            pulp::cast(simd.partial_load_f32s(&padded[start..start + 4 * C]))
        };
        let rows = [row(0), row(1), row(2), row(3)];
        for k in 0..COUNT {
            let index = pulp::cast(simd.add_u32s(indices, simd.splat_u32s((FROM + k) as u32)));
            for tap_row in 0..3 {
                let picked = simd.avx512f._mm512_permutex2var_ps(rows[tap_row], index, rows[tap_row + 1]);
                sums[tap_row][k] = simd.mul_add_e_f32s(pulp::cast(picked), gradient, sums[tap_row][k]);
            }
        }
    }
    for (tap_row, sums) in sums.into_iter().enumerate() {
        for (k, sum) in sums.into_iter().enumerate() {
            let tap = &mut out[tap_row * 3 * C + FROM + k];
            let sum = simd.add_f32s(tap.get::<V4>(v), sum);
            tap.set::<V4>(v, sum);
        }
    }
}
