//! The first block: a direct convolution, since patches of 1 or 3 input channels have only 9 or 27 values. The kernels
//! are [`Forward`], [`PatchMoments`], [`Backward`], and [`ForwardTangent`] for Hessian-vector products; all take one
//! padded image (see [`pad`]).
//!
//! The output of the convolution is the largest array of the network and is never stored. In the forward pass, the four
//! outputs of a pooling window stay in registers. The statistics of batch norm follow from the second moments of the
//! patches, extended by a constant 1: with patches x and weights w, the mean of `w . x` is linear in w, and its mean
//! square is the quadratic form `w . M w` with M the mean of x xᵀ. The backward pass uses the same matrix, because the
//! gradient of the norm at a pixel is linear in that pixel's output.
//!
//! A padded image is `[size + 2, size + 2, channels]`, and a *line* is the number of values in one of its rows. A
//! pooling window covers 2x2 outputs, numbered 0 to 3 row by row; its input patch has 4 rows of 4 pixels. Taps are
//! `[3, 3, channels, 64]`: a row of taps has 3 C values per output channel, with C input channels. `d_x` is the
//! gradient of the loss with respect to x.

use pulp::{Simd, WithSimd};

#[cfg(target_arch = "x86_64")]
use super::first_block_avx512::{self, WindowGradient};
use super::plane::{Pixel, Plane, vectors};
use super::{Shape, WIDTH};
use crate::isa::{self, multiply_add};

/// Values of a patch (9 or 27) and the constant 1, padded with zeros to whole vectors.
pub(super) const PATCH_VALUES: usize = 32;
/// Sums of products of two values of a patch over all patches, `[values, values]`. The row of the constant 1 holds the
/// sums of the values.
pub(super) type Moments = [[f32; PATCH_VALUES]; PATCH_VALUES];
/// The position of the maximum in a pooling window, 0 to 3 row by row, for each channel.
pub(super) type WindowArgmax = [u8; WIDTH];

/// Copies an image (`[size, size, channels]`) to `out`, which has a margin of one zero pixel and is [`padded_len`]
/// long.
pub(super) fn pad(shape: Shape, image: &[f32], out: &mut [f32]) {
    let (row_len, line) = (shape.size * shape.channels, padded_line(shape));
    for (row, values) in image.chunks_exact(row_len).enumerate() {
        let start = (row + 1) * line + shape.channels;
        out[start..start + row_len].copy_from_slice(values);
    }
}

/// Values in a row of a padded image.
fn padded_line(shape: Shape) -> usize {
    (shape.size + 2) * shape.channels
}

/// Values of a padded image.
pub(super) fn padded_len(shape: Shape) -> usize {
    padded_line(shape) * (shape.size + 2)
}

/// Convolution, max-pool and ReLU of one image. Batch norm is folded into `taps` (`[3, 3, channels, 64]`) and `bias`.
pub(super) struct Forward<'a> {
    pub shape: Shape,
    pub padded: &'a [f32],
    pub taps: &'a [Pixel],
    pub bias: &'a Pixel,
    /// The plane of the next block's input; its side is the number of windows in a row.
    pub plane: Plane,
    /// The input of the next block, in `plane`.
    pub out: &'a mut [Pixel],
    /// The positions of the maxima, `[windows, windows]`, if they are needed for a backward pass.
    pub argmax: Option<&'a mut [WindowArgmax]>,
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // Four outputs of V vectors each are accumulated in 4 V registers.
        match (self.shape.channels, S::REGISTER_COUNT >= 32) {
            (1, true) => self.windows::<S, 1, 4>(simd),
            (1, false) => self.windows::<S, 1, 2>(simd),
            (_, true) => self.windows::<S, 3, 4>(simd),
            (_, false) => self.windows::<S, 3, 2>(simd),
        }
    }
}

impl Forward<'_> {
    /// All windows, for C input channels, V vectors of output channels at a time.
    #[inline(always)]
    fn windows<S: Simd, const C: usize, const V: usize>(mut self, simd: S) {
        let line = padded_line(self.shape);
        let side = self.plane.side;
        for row in 0..side {
            for column in 0..side {
                let start = 2 * row * line + 2 * column * C;
                let rows = window::<C>(self.padded, start, line);
                let pixel = self.plane.index_of(row, column);
                // The positions of the maxima, 0 to 3, as floats.
                let mut positions = Pixel::ZERO;
                for v in (0..vectors::<S>()).step_by(V) {
                    let sums = convolve::<S, C, V>(simd, rows, self.taps, self.bias, v);
                    for j in 0..V {
                        let four = [sums[0][j], sums[1][j], sums[2][j], sums[3][j]];
                        let (max, position) = max_and_position(simd, four);
                        let out = isa::max(simd, max, simd.splat_f32s(0.0));
                        self.out[pixel].set::<S>(v + j, out);
                        positions.set::<S>(v + j, position);
                    }
                }
                if let Some(argmax) = &mut self.argmax {
                    let argmax = &mut argmax[row * side + column];
                    for c in 0..WIDTH {
                        argmax[c] = positions.0[c] as u8;
                    }
                }
            }
        }
    }
}

/// The tangent of [`Forward`], its derivative along a direction of the parameters: a convolution with the tangents of
/// taps and bias, at the maxima where the ReLU is active. The images are constant.
pub(super) struct ForwardTangent<'a> {
    pub shape: Shape,
    pub padded: &'a [f32],
    /// The tangents of the taps.
    pub taps: &'a [Pixel],
    /// The tangent of the bias.
    pub bias: &'a Pixel,
    pub plane: Plane,
    /// The output of [`Forward`]; 0 where the ReLU is inactive.
    pub out: &'a [Pixel],
    pub argmax: &'a [WindowArgmax],
    /// The tangent of `out`, in the same plane.
    pub tangent: &'a mut [Pixel],
}

impl WithSimd for ForwardTangent<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match (self.shape.channels, S::REGISTER_COUNT >= 32) {
            (1, true) => self.windows::<S, 1, 4>(simd),
            (1, false) => self.windows::<S, 1, 2>(simd),
            (_, true) => self.windows::<S, 3, 4>(simd),
            (_, false) => self.windows::<S, 3, 2>(simd),
        }
    }
}

impl ForwardTangent<'_> {
    /// All windows: computes the tangents of all four outputs of a window and selects that at the maximum.
    #[inline(always)]
    fn windows<S: Simd, const C: usize, const V: usize>(self, simd: S) {
        let (line, side, zero) = (padded_line(self.shape), self.plane.side, simd.splat_f32s(0.0));
        let mut positions = Pixel::ZERO;
        for row in 0..side {
            for column in 0..side {
                let rows = window::<C>(self.padded, 2 * row * line + 2 * column * C, line);
                let pixel = self.plane.index_of(row, column);
                let argmax = &self.argmax[row * side + column];
                for c in 0..WIDTH {
                    positions.0[c] = f32::from(argmax[c]);
                }
                for v in (0..vectors::<S>()).step_by(V) {
                    let sums = convolve::<S, C, V>(simd, rows, self.taps, self.bias, v);
                    for j in 0..V {
                        let position = positions.get::<S>(v + j);
                        let mut chosen = sums[0][j];
                        for k in 1..4 {
                            let here = simd.equal_f32s(position, simd.splat_f32s(k as f32));
                            chosen = simd.select_f32s(here, sums[k][j], chosen);
                        }
                        let active = simd.greater_than_f32s(self.out[pixel].get::<S>(v + j), zero);
                        self.tangent[pixel].set::<S>(v + j, simd.select_f32s(active, chosen, zero));
                    }
                }
            }
        }
    }
}

/// The four rows (4 C values each) of the input patch of the pooling window whose patch begins at `start`.
#[inline(always)]
fn window<const C: usize>(padded: &[f32], start: usize, line: usize) -> [&[f32]; 4] {
    [
        &padded[start..start + 4 * C],
        &padded[start + line..start + line + 4 * C],
        &padded[start + 2 * line..start + 2 * line + 4 * C],
        &padded[start + 3 * line..start + 3 * line + 4 * C],
    ]
}

/// The four outputs of a pooling window, `[4, V]`, for V vectors of output channels from vector `v` on.
#[inline(always)]
fn convolve<S: Simd, const C: usize, const V: usize>(
    simd: S,
    rows: [&[f32]; 4],
    taps: &[Pixel],
    bias: &Pixel,
    v: usize,
) -> [[S::f32s; V]; 4] {
    let mut sums = [[simd.splat_f32s(0.0); V]; 4];
    for j in 0..V {
        let bias = bias.get::<S>(v + j);
        for sum in &mut sums {
            sum[j] = bias;
        }
    }
    // Row `tap_row` of the taps, value `k` of that row. Output 0 reads row `tap_row` of the patch; output `o` reads
    // `o / 2` rows lower and `o % 2` pixels further right.
    for tap_row in 0..3 {
        for k in 0..3 * C {
            let mut weights = [simd.splat_f32s(0.0); V];
            for j in 0..V {
                weights[j] = taps[tap_row * 3 * C + k].get::<S>(v + j);
            }
            for o in 0..4 {
                let value = simd.splat_f32s(rows[o / 2 + tap_row][o % 2 * C + k]);
                for j in 0..V {
                    sums[o][j] = multiply_add(simd, value, weights[j], sums[o][j]);
                }
            }
        }
    }
    sums
}

/// The maximum of four values and its position, as a float so that both are selected with the same mask; the first
/// position if several values are equal.
#[inline(always)]
fn max_and_position<S: Simd>(simd: S, values: [S::f32s; 4]) -> (S::f32s, S::f32s) {
    let (mut max, mut position) = (values[0], simd.splat_f32s(0.0));
    for (i, value) in values.into_iter().enumerate().skip(1) {
        let above = simd.greater_than_f32s(value, max);
        max = simd.select_f32s(above, value, max);
        position = simd.select_f32s(above, simd.splat_f32s(i as f32), position);
    }
    (max, position)
}

/// Adds the second moments of all patches of an image (one patch per output pixel) to `moments`.
pub(super) struct PatchMoments<'a> {
    pub shape: Shape,
    pub padded: &'a [f32],
    pub moments: &'a mut Moments,
}

/// The values of a patch, `[3, 3, channels]`, the constant 1, and zeros.
type Patch = [f32; PATCH_VALUES];

impl WithSimd for PatchMoments<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // The patches of one row of outputs.
        let mut patches = vec![[0.0; PATCH_VALUES]; self.shape.size];
        // Values in a row of a padded image, and in a row of a patch.
        let (line, patch_row) = (padded_line(self.shape), 3 * self.shape.channels);
        for row in 0..self.shape.size {
            for (column, patch) in patches.iter_mut().enumerate() {
                for tap_row in 0..3 {
                    let start = (row + tap_row) * line + column * self.shape.channels;
                    patch[tap_row * patch_row..(tap_row + 1) * patch_row]
                        .copy_from_slice(&self.padded[start..start + patch_row]);
                }
                patch[3 * patch_row] = 1.0;
            }
            // The values of a patch and the constant 1.
            let values = 3 * patch_row + 1;
            if S::REGISTER_COUNT >= 32 {
                accumulate::<S, 14>(simd, &patches, values, self.moments);
            } else {
                accumulate::<S, 6>(simd, &patches, values, self.moments);
            }
        }
    }
}

/// Adds the second moments of some patches to the first `values` rows of `out`, ROWS rows and two vectors of columns at
/// a time: the sums stay in registers. The last group may also add to rows of padding, whose values are 0.
#[inline(always)]
fn accumulate<S: Simd, const ROWS: usize>(simd: S, patches: &[Patch], values: usize, out: &mut Moments) {
    for first in (0..values).step_by(ROWS) {
        for column in (0..PATCH_VALUES / S::F32_LANES).step_by(2) {
            let mut sums = [[simd.splat_f32s(0.0); 2]; ROWS];
            for patch in patches {
                let vectors = S::as_simd_f32s(patch).0;
                let (a, b) = (vectors[column], vectors[column + 1]);
                let factors: &[f32; ROWS] =
                    patch[first..first + ROWS].first_chunk().expect("the slice has that length");
                for r in 0..ROWS {
                    let factor = simd.splat_f32s(factors[r]);
                    sums[r][0] = multiply_add(simd, factor, a, sums[r][0]);
                    sums[r][1] = multiply_add(simd, factor, b, sums[r][1]);
                }
            }
            for r in 0..ROWS {
                let row = S::as_mut_simd_f32s(&mut out[first + r]).0;
                row[column] = simd.add_f32s(row[column], sums[r][0]);
                row[column + 1] = simd.add_f32s(row[column + 1], sums[r][1]);
            }
        }
    }
}

/// The first part of the backward pass, for one image: the gradient at the maxima times their patches, added to `taps`
/// (`[3, 3, channels, 64]`), and the sum of that gradient, added to `sum`. The caller computes the gradients of weights
/// and batch norm from the totals of all images.
pub(super) struct Backward<'a> {
    pub shape: Shape,
    pub padded: &'a [f32],
    pub plane: Plane,
    /// The output of [`Forward`]; 0 where the ReLU is inactive.
    pub out: &'a [Pixel],
    pub argmax: &'a [WindowArgmax],
    /// The gradient of `out`, in the same plane.
    pub d_out: &'a [Pixel],
    pub taps: &'a mut [Pixel],
    pub sum: &'a mut Pixel,
}

impl WithSimd for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // Sixteen lanes: the set is AVX-512, so its own instructions can be used.
        #[cfg(target_arch = "x86_64")]
        if let (16, Some(simd)) = (S::F32_LANES, pulp::x86::V4::try_new()) {
            return match self.shape.channels {
                1 => self.rows_avx512::<1>(simd),
                _ => self.rows_avx512::<3>(simd),
            };
        }
        match self.shape.channels {
            1 => self.rows::<S, 1>(simd),
            _ => self.rows::<S, 3>(simd),
        }
    }
}

impl Backward<'_> {
    /// All rows of windows, for C input channels, see `first_block_avx512`.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn rows_avx512<const C: usize>(self, simd: pulp::x86::V4) {
        let (line, side) = (padded_line(self.shape), self.plane.side);
        let mut windows = vec![WindowGradient::ZERO; side];
        for row in 0..side {
            for (column, window) in windows.iter_mut().enumerate() {
                let pixel = self.plane.index_of(row, column);
                relu_backward(&self.out[pixel], &self.d_out[pixel], &mut window.gradient, self.sum);
                window.set_indices::<C>(&self.argmax[row * side + column]);
            }
            let padded = &self.padded[2 * row * line..];
            first_block_avx512::add_taps::<C>(simd, &windows, padded, line, self.taps);
        }
    }

    /// All rows of windows, for C input channels.
    #[inline(always)]
    fn rows<S: Simd, const C: usize>(self, simd: S) {
        let (line, side) = (padded_line(self.shape), self.plane.side);
        let mut windows = vec![(Pixel::ZERO, Pixel::ZERO); side];
        for row in 0..side {
            for (column, (gradient, positions)) in windows.iter_mut().enumerate() {
                let pixel = self.plane.index_of(row, column);
                relu_backward(&self.out[pixel], &self.d_out[pixel], gradient, self.sum);
                let argmax = &self.argmax[row * side + column];
                positions.0.iter_mut().zip(argmax).for_each(|(position, &max)| *position = f32::from(max));
            }
            for v in 0..vectors::<S>() {
                for tap_row in 0..3 {
                    let padded = &self.padded[(2 * row + tap_row) * line..];
                    add_row_of_taps::<S, C>(simd, &windows, padded, line, tap_row, v, self.taps);
                }
            }
        }
    }
}

/// Writes the gradient where the ReLU is active and 0 elsewhere; adds it to `sum`.
#[inline(always)]
fn relu_backward(out: &Pixel, d_out: &Pixel, gradient: &mut Pixel, sum: &mut Pixel) {
    for c in 0..WIDTH {
        gradient.0[c] = if out.0[c] > 0.0 { d_out.0[c] } else { 0.0 };
        sum.0[c] += gradient.0[c];
    }
}

/// Adds the gradient of row `tap_row` of the taps, for vector `v` of the output channels, from one row of windows. Sums
/// over all four outputs `o` of each window, three of which have gradient 0. `windows` are (gradient, position of the
/// maximum, 0 to 3) per channel; `padded` begins at the input of the first window for that tap row.
#[inline(always)]
fn add_row_of_taps<S: Simd, const C: usize>(
    simd: S,
    windows: &[(Pixel, Pixel)],
    padded: &[f32],
    line: usize,
    tap_row: usize,
    v: usize,
    out: &mut [Pixel],
) {
    // A row has 3 C taps, at most 9.
    let mut sums = [simd.splat_f32s(0.0); 9];
    for (column, (gradient, positions)) in windows.iter().enumerate() {
        let (gradient, positions) = (gradient.get::<S>(v), positions.get::<S>(v));
        for o in 0..4 {
            let here = simd.equal_f32s(positions, simd.splat_f32s(o as f32));
            let gradient = simd.select_f32s(here, gradient, simd.splat_f32s(0.0));
            let start = o / 2 * line + (2 * column + o % 2) * C;
            let values = &padded[start..start + 3 * C];
            for k in 0..3 * C {
                sums[k] = multiply_add(simd, simd.splat_f32s(values[k]), gradient, sums[k]);
            }
        }
    }
    for k in 0..3 * C {
        let tap = &mut out[tap_row * 3 * C + k];
        let sum = simd.add_f32s(tap.get::<S>(v), sums[k]);
        tap.set::<S>(v, sum);
    }
}
