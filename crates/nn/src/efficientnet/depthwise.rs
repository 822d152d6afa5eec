//! Depthwise convolution with bias and ReLU6: the kernel [`Depthwise`], for some rows of one image.
//!
//! Shapes: input `[side, side, C]`, output `[output_side, output_side, C]`, weights `[K, K, C]`, bias `[C]`. A *tap* is
//! one of the K x K positions of a filter, or one of its K rows or columns; `taps` are the weights at all of them. The
//! taps of a vector of channels stay in the first-level cache along a row of outputs, and [`GROUP`] adjacent outputs
//! share the inputs they load. Taps outside the image are skipped, which has the effect of zero padding without storing
//! it.
//!
//! In slices of SIMD vectors, a pixel is `vectors` = C / lanes vectors long, and `vector` is the index of a vector
//! within its pixel.

use pulp::{Simd, WithSimd};

use super::RELU6_BOUNDS;
use crate::isa::{self, multiply_add};

/// Adjacent outputs of a row that are computed together.
const GROUP: usize = 4;

/// The shape of a depthwise convolution.
#[derive(Debug, Clone, Copy)]
pub(super) struct Geometry {
    /// K: 3 or 5.
    pub kernel: usize,
    /// 1 or 2.
    pub stride: usize,
    /// C: a multiple of 16, the lanes of the widest vector.
    pub channels: usize,
    /// Height and width of the input.
    pub side: usize,
    /// Height and width of the output.
    pub output_side: usize,
    /// Padding at the top and left.
    pub margin: usize,
}

impl Geometry {
    /// The taps of an output row (or column) that are within the image: (first, end), end not included. Tap t reads
    /// input `output * stride + t - margin`.
    #[inline(always)]
    fn taps_inside(&self, output: usize) -> (usize, usize) {
        let start = output * self.stride;
        (self.margin.saturating_sub(start), (self.side + self.margin - start).min(self.kernel))
    }

    /// The input rows that some output rows depend on: (first, end), end not included.
    pub fn input_rows(&self, output_rows: std::ops::Range<usize>) -> (usize, usize) {
        let first = (output_rows.start * self.stride).saturating_sub(self.margin);
        let end = ((output_rows.end - 1) * self.stride + self.kernel).saturating_sub(self.margin);
        (first, end.min(self.side))
    }
}

/// The convolution of some rows of the output.
pub(super) struct Depthwise<'a> {
    pub geometry: Geometry,
    /// `[K, K, C]`
    pub taps: &'a [f32],
    /// `[C]`
    pub bias: &'a [f32],
    /// Input rows from `input_start` on.
    pub input: &'a [f32],
    pub input_start: usize,
    /// Output rows from `output_start` on.
    pub output: &'a mut [f32],
    pub output_start: usize,
}

impl WithSimd for Depthwise<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // The third number is the SPAN of [`SizedDepthwise`].
        match (self.geometry.kernel, self.geometry.stride) {
            (3, 1) => simd.vectorize(SizedDepthwise::<3, 1, 6>(self)),
            (3, 2) => simd.vectorize(SizedDepthwise::<3, 2, 9>(self)),
            (5, 1) => simd.vectorize(SizedDepthwise::<5, 1, 8>(self)),
            (5, 2) => simd.vectorize(SizedDepthwise::<5, 2, 11>(self)),
            kernel_and_stride => unreachable!("kernel and stride {kernel_and_stride:?}"),
        }
    }
}

/// The convolution for one kernel size and stride; a group of outputs reads SPAN = (GROUP - 1) STRIDE + K inputs of a
/// row.
struct SizedDepthwise<'a, const K: usize, const STRIDE: usize, const SPAN: usize>(Depthwise<'a>);

impl<const K: usize, const STRIDE: usize, const SPAN: usize> WithSimd
    for SizedDepthwise<'_, K, STRIDE, SPAN>
{
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Depthwise { geometry, taps, bias, input, input_start, output, output_start } = self.0;
        let vectors = geometry.channels / S::F32_LANES;
        assert_eq!(vectors * S::F32_LANES, geometry.channels, "whole vectors of channels");
        let row = Row::<S, K, STRIDE, SPAN> {
            geometry,
            vectors,
            taps: S::as_simd_f32s(taps).0,
            bias: S::as_simd_f32s(bias).0,
        };
        let row_len = geometry.side * vectors;
        let (input, output) = (S::as_simd_f32s(input).0, S::as_mut_simd_f32s(output).0);
        let rows = output.chunks_exact_mut(geometry.output_side * vectors);
        for (output_row, output) in (output_start..).zip(rows) {
            // The input rows of the taps within the image, which `input` holds from row `input_start` on.
            let (first, end) = geometry.taps_inside(output_row);
            let start = output_row * STRIDE + first - geometry.margin - input_start;
            let input = &input[start * row_len..(start + end - first) * row_len];
            for vector in 0..vectors {
                row.run(simd, vector, first, input, output);
            }
        }
    }
}

/// The computation of one vector of channels along a row of outputs.
struct Row<'a, S: Simd, const K: usize, const STRIDE: usize, const SPAN: usize> {
    geometry: Geometry,
    vectors: usize,
    taps: &'a [S::f32s],
    bias: &'a [S::f32s],
}

impl<S: Simd, const K: usize, const STRIDE: usize, const SPAN: usize> Row<'_, S, K, STRIDE, SPAN> {
    /// Computes vector `vector` of all outputs of a row. `input` are the input rows for the rows of taps from `first`
    /// on; there are fewer than K near the edge of the image.
    #[inline(always)]
    fn run(&self, simd: S, vector: usize, first: usize, input: &[S::f32s], output: &mut [S::f32s]) {
        let Geometry { side, output_side, margin, .. } = self.geometry;
        // The outputs whose taps are all within the row, `inner_start` to `inner_end` (not included): the first tap is
        // not left of the row, `output * STRIDE >= margin`, and the last is in it,
        // `output * STRIDE - margin + K <= side`.
        let inner_start = margin.div_ceil(STRIDE);
        let inner_end =
            if side + margin < K { 0 } else { ((side + margin - K) / STRIDE + 1).min(output_side) };
        let mut column = 0;
        while column < output_side {
            if column >= inner_start && column + GROUP <= inner_end {
                let sums = self.group(simd, vector, first, column, input);
                for (offset, sum) in sums.into_iter().enumerate() {
                    output[(column + offset) * self.vectors + vector] = sum;
                }
                column += GROUP;
            } else {
                output[column * self.vectors + vector] = self.single(simd, vector, first, column, input);
                column += 1;
            }
        }
    }

    /// [`GROUP`] outputs from `column` on, whose taps are all within the row.
    #[inline(always)]
    fn group(
        &self,
        simd: S,
        vector: usize,
        first: usize,
        column: usize,
        input: &[S::f32s],
    ) -> [S::f32s; GROUP] {
        let vectors = self.vectors;
        let start = (column * STRIDE - self.geometry.margin) * vectors + vector;
        let mut sums = [self.bias[vector]; GROUP];
        for (row, line) in input.chunks_exact(self.geometry.side * vectors).enumerate() {
            let window = &line[start..start + (SPAN - 1) * vectors + 1];
            // Both slices end with the last vector that is read, so that the compiler can drop bounds checks.
            let taps = &self.taps[(first + row) * K * vectors + vector..][..(K - 1) * vectors + 1];
            // The initial values are all overwritten.
            let mut values = [sums[0]; SPAN];
            for index in 0..SPAN {
                values[index] = window[index * vectors];
            }
            for tap in 0..K {
                let weight = taps[tap * vectors];
                for offset in 0..GROUP {
                    sums[offset] = multiply_add(simd, values[offset * STRIDE + tap], weight, sums[offset]);
                }
            }
        }
        for offset in 0..GROUP {
            sums[offset] = relu6(simd, sums[offset]);
        }
        sums
    }

    /// The output at `column` alone: near the edge, or left over between the last whole group and the edge.
    #[inline(always)]
    fn single(&self, simd: S, vector: usize, first: usize, column: usize, input: &[S::f32s]) -> S::f32s {
        let vectors = self.vectors;
        let (first_tap, end) = self.geometry.taps_inside(column);
        let start = column * STRIDE + first_tap - self.geometry.margin;
        let mut sum = self.bias[vector];
        for (row, line) in input.chunks_exact(self.geometry.side * vectors).enumerate() {
            for tap in first_tap..end {
                let value = line[(start + tap - first_tap) * vectors + vector];
                let weight = self.taps[((first + row) * K + tap) * vectors + vector];
                sum = multiply_add(simd, value, weight, sum);
            }
        }
        relu6(simd, sum)
    }
}

/// `min(max(sum, 0), 6)`. NaN becomes 0, see [`isa::max`].
#[inline(always)]
fn relu6<S: Simd>(simd: S, sum: S::f32s) -> S::f32s {
    let [least, most] = RELU6_BOUNDS;
    simd.min_f32s(isa::max(simd, sum, simd.splat_f32s(least)), simd.splat_f32s(most))
}
