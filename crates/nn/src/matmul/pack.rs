//! Panels of B ([`Panel`]): packed copies of a part of B, row by row without gaps, in the order in which the tuned
//! product C = A B (`super::tiles`) reads it. Start with [`PanelSource::pack`].
#![allow(unsafe_code)]

use std::mem::MaybeUninit;

use pulp::Simd;

use super::Matrix;
use crate::memory::prefetch_line;

/// The most rows of a panel: with [`WIDEST`] columns they take up 32 KiB of the first-level cache.
pub(super) const DEPTH: usize = 256;
/// The most columns of a panel: two of the widest vectors, of 16 numbers.
const WIDEST: usize = 32;

/// A packed part of B: `[depth, width]`, with at most [`DEPTH`] rows and a width of one or two whole vectors. Not
/// initialised: packing writes every number that is read.
#[repr(align(64))]
pub(super) struct Panel([MaybeUninit<f32>; DEPTH * WIDEST]);

/// How many rows of B are prefetched ahead of the one that is copied.
const AHEAD: usize = 12;

/// The part of B (`[K, N]`) that a panel is packed from: `depth` rows from row `from` on, `columns` columns from
/// `column` on.
pub(super) struct PanelSource<'a> {
    pub b: Matrix<'a>,
    pub from: usize,
    pub depth: usize,
    pub column: usize,
    pub columns: usize,
}

impl Panel {
    pub fn new() -> Self {
        Panel([const { MaybeUninit::uninit() }; DEPTH * WIDEST])
    }

    pub fn as_ptr(&self) -> *const f32 {
        self.0.as_ptr().cast()
    }
}

impl PanelSource<'_> {
    /// Copies the part into a panel of whole vectors. The padding of the last vector never reaches C. `avx` says
    /// whether the processor has AVX, for which a transposed B has code of its own.
    #[inline(always)]
    pub fn pack<S: Simd>(self, simd: S, panel: &mut Panel, avx: bool) {
        let width = self.columns.next_multiple_of(S::F32_LANES);
        let panel = &mut panel.0[..self.depth * width];
        // SAFETY: `MaybeUninit<f32>` has the layout of `f32`, and every element is written below before any is read.
        let panel = unsafe { &mut *(std::ptr::from_mut(panel) as *mut [f32]) };
        if self.b.column_stride == 1 {
            for (k, to) in panel.chunks_exact_mut(width).enumerate() {
                let start = (self.from + k) * self.b.row_stride + self.column;
                // The hardware prefetcher does not recognise short rows that are far apart.
                let ahead = self.b.data[start..].as_ptr().wrapping_add(AHEAD * self.b.row_stride);
                // One prefetch per cache line of 16 numbers.
                for line in (0..width).step_by(16) {
                    prefetch_line(ahead.wrapping_add(line).cast());
                }
                copy_padded(simd, &self.b.data[start..start + self.columns], to);
            }
        } else {
            self.transpose(panel, width, avx);
        }
    }

    /// Copies the part where B is transposed: in blocks of 8 x 8 if there is AVX, the remaining rows element by
    /// element. The padding columns repeat the last column of the part; they never reach C.
    #[inline(always)]
    fn transpose(&self, panel: &mut [f32], width: usize, avx: bool) {
        // The rows of the panel that are covered by whole blocks.
        let whole = if avx { self.depth / BLOCK * BLOCK } else { 0 };
        let stride = self.b.column_stride;
        let from = &self.b.data[self.column * stride + self.from..];
        for column in (0..width).step_by(BLOCK) {
            // The first column of the part to read, and the number of columns of the part from there on.
            let (column_from, valid) =
                (column.min(self.columns - 1), self.columns.saturating_sub(column).max(1));
            for k in (0..whole).step_by(BLOCK) {
                let (from, to) = (&from[column_from * stride + k..], &mut panel[k * width + column..]);
                let last = valid.min(BLOCK) - 1;
                // The last numbers that the block reads and writes.
                assert!(from.len() > last * stride + 7 && to.len() > 7 * width + 7, "a block of 8 x 8");
                // SAFETY: both blocks have just been found to lie within their slices, and `avx` says that the
                // processor has AVX.
                #[cfg(target_arch = "x86_64")]
                unsafe {
                    transpose_block(from.as_ptr(), stride, last, to.as_mut_ptr(), width);
                }
                #[cfg(not(target_arch = "x86_64"))]
                let _ = (from, to);
            }
        }
        // The remaining rows, element by element.
        for column in 0..width {
            let start = column.min(self.columns - 1) * stride;
            let from = &from[start + whole..start + self.depth];
            for (row, &value) in panel[whole * width..].chunks_exact_mut(width).zip(from) {
                row[column] = value;
            }
        }
    }
}

/// Side of the blocks that are transposed at once.
const BLOCK: usize = 8;

/// Transposes a block: `to[k][j] = from[min(j, last)][k]` for 8 x 8 numbers.
///
/// # Safety
/// `last + 1` rows of 8 numbers can be read at distances of `stride`, 8 rows written at distances of `width`, and the
/// processor has AVX.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
#[inline]
unsafe fn transpose_block(from: *const f32, stride: usize, last: usize, to: *mut f32, width: usize) {
    use std::arch::x86_64::{
        __m256, _mm_loadu_ps, _mm256_castps128_ps256, _mm256_insertf128_ps, _mm256_setzero_ps,
        _mm256_shuffle_ps, _mm256_storeu_ps, _mm256_unpackhi_ps, _mm256_unpacklo_ps,
    };
    // SAFETY: guaranteed by the caller.
    unsafe {
        // Halves of rows j and j + 4 side by side: the exchange between halves happens while loading.
        let mut halves: [__m256; 8] = [_mm256_setzero_ps(); 8];
        for j in 0..4 {
            for half in 0..2 {
                let low = _mm_loadu_ps(from.add(j.min(last) * stride + 4 * half));
                let high = _mm_loadu_ps(from.add((j + 4).min(last) * stride + 4 * half));
                halves[4 * half + j] = _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(low), high);
            }
        }
        // Then the 4 x 4 blocks of both halves are transposed: pairs of adjacent numbers of two rows (unpack) are
        // combined to fours; 0x44 selects the lower pair of both operands, 0xee the upper one.
        for half in 0..2 {
            let [a, b, c, d] =
                [halves[4 * half], halves[4 * half + 1], halves[4 * half + 2], halves[4 * half + 3]];
            let (ab, ab_high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let (cd, cd_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            let to = to.add(4 * half * width);
            _mm256_storeu_ps(to, _mm256_shuffle_ps::<0x44>(ab, cd));
            _mm256_storeu_ps(to.add(width), _mm256_shuffle_ps::<0xee>(ab, cd));
            _mm256_storeu_ps(to.add(2 * width), _mm256_shuffle_ps::<0x44>(ab_high, cd_high));
            _mm256_storeu_ps(to.add(3 * width), _mm256_shuffle_ps::<0xee>(ab_high, cd_high));
        }
    }
}

/// Copies a row; the last vector is padded with zeros.
#[inline(always)]
fn copy_padded<S: Simd>(simd: S, from: &[f32], to: &mut [f32]) {
    let (from, tail) = S::as_simd_f32s(from);
    let to = S::as_mut_simd_f32s(to).0;
    for (from, to) in from.iter().zip(&mut *to) {
        *to = *from;
    }
    if !tail.is_empty() {
        to[from.len()] = simd.partial_load_f32s(tail);
    }
}
