//! The gradient of the first block's taps where a permutation picks a number for every lane (AVX-512).
//!
//! Of a window's four outputs only the highest has a gradient, and every channel has its own highest. The input
//! of all four lies in four rows of twelve numbers. Two of those rows are the two tables of one permutation, whose
//! index says for every channel where its maximum was: a tap takes one permutation and one multiplication
//! instead of four multiplications by mostly zeros.

use pulp::Simd;
use pulp::x86::V4;

use super::WIDTH;
use super::plane::{Pixel, vectors};

/// Lanes of a vector: the second table's numbers begin there.
const LANES: usize = 16;
/// Taps of a row whose sums stay in registers beside the tables.
const MOST: usize = 5;

/// What reaches the maxima of one window.
#[derive(Clone)]
#[repr(C, align(64))]
pub(super) struct Reached {
    pub gradient: Pixel,
    /// Where a maximum's patch begins in the tables of rows 0 and 1.
    index: [u32; WIDTH],
}

impl Reached {
    pub const NOTHING: Reached = Reached { gradient: Pixel::ZERO, index: [0; WIDTH] };

    /// `places` as in [`super::first::Places`]; C input channels.
    #[inline(always)]
    pub fn point<const C: usize>(&mut self, places: &[u8; WIDTH]) {
        for (index, &place) in self.index.iter_mut().zip(places) {
            *index = u32::from(place >> 1) * LANES as u32 + u32::from(place & 1) * C as u32;
        }
    }
}

/// Adds to the taps what the windows of one row say; `padded` begins at the first one's input.
#[inline(always)]
pub(super) fn taps<const C: usize>(
    simd: V4,
    reached: &[Reached],
    padded: &[f32],
    line: usize,
    out: &mut [Pixel],
) {
    for v in 0..vectors::<V4>() {
        if 3 * C <= MOST {
            some_taps::<C, 0, 3>(simd, reached, padded, line, v, out);
        } else {
            some_taps::<C, 0, 5>(simd, reached, padded, line, v, out);
            some_taps::<C, 5, 4>(simd, reached, padded, line, v, out);
        }
    }
}

/// Those of all three rows of taps that begin at `FROM`.
#[inline(always)]
fn some_taps<const C: usize, const FROM: usize, const COUNT: usize>(
    simd: V4,
    reached: &[Reached],
    padded: &[f32],
    line: usize,
    v: usize,
    out: &mut [Pixel],
) {
    let mut sums = [[simd.splat_f32s(0.0); COUNT]; 3];
    for (column, Reached { gradient, index }) in reached.iter().enumerate() {
        let gradient = gradient.get::<V4>(v);
        let index = V4::as_simd_u32s(index).0[v];
        let row = |row: usize| {
            let start = row * line + 2 * column * C;
            pulp::cast(simd.partial_load_f32s(&padded[start..start + 4 * C]))
        };
        let rows = [row(0), row(1), row(2), row(3)];
        for k in 0..COUNT {
            let index = pulp::cast(simd.add_u32s(index, simd.splat_u32s((FROM + k) as u32)));
            for dy in 0..3 {
                let picked = simd.avx512f._mm512_permutex2var_ps(rows[dy], index, rows[dy + 1]);
                sums[dy][k] = simd.mul_add_e_f32s(pulp::cast(picked), gradient, sums[dy][k]);
            }
        }
    }
    for (dy, sums) in sums.into_iter().enumerate() {
        for (k, sum) in sums.into_iter().enumerate() {
            let tap = &mut out[dy * 3 * C + FROM + k];
            let sum = simd.add_f32s(tap.get::<V4>(v), sum);
            tap.set::<V4>(v, sum);
        }
    }
}
