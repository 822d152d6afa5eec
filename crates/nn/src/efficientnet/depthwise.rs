//! A filter for every channel by itself: K x K taps, a bias, ReLU6.
//!
//! Shapes: the input is S x S places of C channels, the output T x T. Taps are [K x K, C]. A vector of channels keeps
//! its taps in the first-level cache while it moves along a row; [`GROUP`] neighbouring outputs share what they read.
//! Where the filter sticks out of the picture its taps are left out, which is a margin of zeros without storing one.

use pulp::{Simd, WithSimd};

use super::BOUNDS;
use crate::isa::multiply_add;

/// Outputs of a row that are made together.
const GROUP: usize = 4;

/// What a depthwise convolution is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Geometry {
    /// K: 3 or 5.
    pub kernel: usize,
    /// 1 or 2.
    pub stride: usize,
    /// C, a multiple of 16.
    pub channels: usize,
    /// S.
    pub side: usize,
    /// T.
    pub outputs: usize,
    /// How far the filter of the first output sticks out above and to the left.
    pub margin: usize,
}

impl Geometry {
    /// The taps of an output's row (or column) that lie within the picture, by their first and end.
    #[inline(always)]
    fn inside(&self, output: usize) -> (usize, usize) {
        let start = output * self.stride;
        (self.margin.saturating_sub(start), (self.side + self.margin - start).min(self.kernel))
    }

    /// The rows of the input that some rows of the output look at, by their first and end.
    pub fn looked_at(&self, outputs: std::ops::Range<usize>) -> (usize, usize) {
        let first = (outputs.start * self.stride).saturating_sub(self.margin);
        let end = ((outputs.end - 1) * self.stride + self.kernel).saturating_sub(self.margin);
        (first, end.min(self.side))
    }
}

/// Some rows of the output.
pub(super) struct Depthwise<'a> {
    pub geometry: Geometry,
    pub taps: &'a [f32],
    pub bias: &'a [f32],
    /// Rows of the input from `input_start` on.
    pub input: &'a [f32],
    pub input_start: usize,
    /// Rows of the output from `output_start` on.
    pub output: &'a mut [f32],
    pub output_start: usize,
}

impl WithSimd for Depthwise<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match (self.geometry.kernel, self.geometry.stride) {
            (3, 1) => simd.vectorize(Sized::<3, 1, 6>(self)),
            (3, 2) => simd.vectorize(Sized::<3, 2, 9>(self)),
            (5, 1) => simd.vectorize(Sized::<5, 1, 8>(self)),
            (5, 2) => simd.vectorize(Sized::<5, 2, 11>(self)),
            other => unreachable!("no depthwise filter of {other:?}"),
        }
    }
}

/// K taps across, outputs STRIDE apart; a group of them looks at SPAN = (GROUP - 1) STRIDE + K inputs.
struct Sized<'a, const K: usize, const STRIDE: usize, const SPAN: usize>(Depthwise<'a>);

impl<const K: usize, const STRIDE: usize, const SPAN: usize> WithSimd for Sized<'_, K, STRIDE, SPAN> {
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
        let line = geometry.side * vectors;
        let (input, output) = (S::as_simd_f32s(input).0, S::as_mut_simd_f32s(output).0);
        for (place, output) in (output_start..).zip(output.chunks_exact_mut(geometry.outputs * vectors)) {
            let (first, end) = geometry.inside(place);
            let start = place * STRIDE + first - geometry.margin - input_start;
            let input = &input[start * line..(start + end - first) * line];
            for vector in 0..vectors {
                row.run(simd, vector, first, input, output);
            }
        }
    }
}

/// One vector of channels along a row of outputs.
struct Row<'a, S: Simd, const K: usize, const STRIDE: usize, const SPAN: usize> {
    geometry: Geometry,
    vectors: usize,
    taps: &'a [S::f32s],
    bias: &'a [S::f32s],
}

impl<S: Simd, const K: usize, const STRIDE: usize, const SPAN: usize> Row<'_, S, K, STRIDE, SPAN> {
    /// `input` are the rows that the taps from row `first` on meet.
    #[inline(always)]
    fn run(&self, simd: S, vector: usize, first: usize, input: &[S::f32s], output: &mut [S::f32s]) {
        let Geometry { side, outputs, margin, .. } = self.geometry;
        // Outputs whose filter lies within the row.
        let inner = margin.div_ceil(STRIDE);
        let end = if side + margin < K { 0 } else { ((side + margin - K) / STRIDE + 1).min(outputs) };
        let mut column = 0;
        while column < outputs {
            if column >= inner && column + GROUP <= end {
                let sums = self.group(simd, vector, first, column, input);
                for (number, sum) in sums.into_iter().enumerate() {
                    output[(column + number) * self.vectors + vector] = sum;
                }
                column += GROUP;
            } else {
                output[column * self.vectors + vector] = self.single(simd, vector, first, column, input);
                column += 1;
            }
        }
    }

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
            let taps = &self.taps[(first + row) * K * vectors + vector..][..(K - 1) * vectors + 1];
            let mut values = [sums[0]; SPAN];
            for place in 0..SPAN {
                values[place] = window[place * vectors];
            }
            for tap in 0..K {
                let weight = taps[tap * vectors];
                for number in 0..GROUP {
                    sums[number] = multiply_add(simd, values[number * STRIDE + tap], weight, sums[number]);
                }
            }
        }
        for number in 0..GROUP {
            sums[number] = bounded(simd, sums[number]);
        }
        sums
    }

    #[inline(always)]
    fn single(&self, simd: S, vector: usize, first: usize, column: usize, input: &[S::f32s]) -> S::f32s {
        let vectors = self.vectors;
        let (first_tap, end) = self.geometry.inside(column);
        let start = column * STRIDE + first_tap - self.geometry.margin;
        let mut sum = self.bias[vector];
        for (row, line) in input.chunks_exact(self.geometry.side * vectors).enumerate() {
            for tap in first_tap..end {
                let value = line[(start + tap - first_tap) * vectors + vector];
                let weight = self.taps[((first + row) * K + tap) * vectors + vector];
                sum = multiply_add(simd, value, weight, sum);
            }
        }
        bounded(simd, sum)
    }
}

#[inline(always)]
fn bounded<S: Simd>(simd: S, sum: S::f32s) -> S::f32s {
    let [least, most] = BOUNDS;
    simd.min_f32s(simd.max_f32s(sum, simd.splat_f32s(least)), simd.splat_f32s(most))
}
