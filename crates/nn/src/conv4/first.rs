//! The first block: 1 or 3 input channels, so that a patch has 9 or 27 values and a direct convolution is best.
//!
//! Its output is the largest array of the network and is never stored. Forward, a pooling window's four outputs
//! live in registers. What batch norm needs over all pixels follows from the second moments of the patches
//! (with a constant one as a further value): the mean of a channel is its weights times the patches' sum, its
//! mean square a quadratic form; and the backward pass meets the same matrix, because the norm's gradient at a
//! pixel is linear in that pixel's output.

use pulp::{Simd, WithSimd};

#[cfg(target_arch = "x86_64")]
use super::permuted::{self, Reached};
use super::plane::{Pixel, Plane, vectors};
use super::{Shape, WIDTH};
use crate::isa::multiply_add;

/// Values of a patch with its one, rounded up to whole vectors.
pub(super) const PATCH_VALUES: usize = 32;
/// Second moments of patches.
pub(super) type Moments = [[f32; PATCH_VALUES]; PATCH_VALUES];
/// Where in a pooling window the maximum was: 0 to 3, row by row, for every channel.
pub(super) type Places = [u8; WIDTH];

/// A picture with a margin of one zero pixel.
pub(super) fn pad(shape: Shape, image: &[f32], out: &mut [f32]) {
    let (line, padded) = (shape.size * shape.channels, padded_line(shape));
    for (row, image) in image.chunks_exact(line).enumerate() {
        let start = (row + 1) * padded + shape.channels;
        out[start..start + line].copy_from_slice(image);
    }
}

/// Numbers in a row of a padded picture.
fn padded_line(shape: Shape) -> usize {
    (shape.size + 2) * shape.channels
}

/// Numbers of a padded picture.
pub(super) fn padded_len(shape: Shape) -> usize {
    padded_line(shape) * (shape.size + 2)
}

/// Convolution, maximum of every window, ReLU. Norm and bias are folded into `taps` ([3 x 3 x channels]) and
/// `bias`.
pub(super) struct Forward<'a> {
    pub shape: Shape,
    pub padded: &'a [f32],
    pub taps: &'a [Pixel],
    pub bias: &'a Pixel,
    /// The next block's input, one image.
    pub plane: Plane,
    pub out: &'a mut [Pixel],
    /// Where the maxima were, if anybody asks.
    pub places: Option<&'a mut [Places]>,
}

impl WithSimd for Forward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match (self.shape.channels, S::F32_LANES) {
            (1, 16) => self.windows::<S, 1, 4>(simd),
            (1, _) => self.windows::<S, 1, 2>(simd),
            (_, 16) => self.windows::<S, 3, 4>(simd),
            (_, _) => self.windows::<S, 3, 2>(simd),
        }
    }
}

impl Forward<'_> {
    /// C input channels, V vectors of output channels at a time.
    #[inline(always)]
    fn windows<S: Simd, const C: usize, const V: usize>(mut self, simd: S) {
        let line = padded_line(self.shape);
        let side = self.plane.side;
        for row in 0..side {
            for column in 0..side {
                let start = 2 * row * line + 2 * column * C;
                let rows = window::<C>(self.padded, start, line);
                let place = self.plane.at(row, column);
                let mut index = Pixel::ZERO;
                for v in (0..vectors::<S>()).step_by(V) {
                    let sums = convolve::<S, C, V>(simd, rows, self.taps, self.bias, v);
                    for j in 0..V {
                        let four = [sums[0][j], sums[1][j], sums[2][j], sums[3][j]];
                        let (highest, at) = maximum(simd, four);
                        let out = simd.max_f32s(highest, simd.splat_f32s(0.0));
                        self.out[place].set::<S>(v + j, out);
                        index.set::<S>(v + j, at);
                    }
                }
                if let Some(places) = &mut self.places {
                    let places = &mut places[row * side + column];
                    for c in 0..WIDTH {
                        places[c] = index.0[c] as u8;
                    }
                }
            }
        }
    }
}

/// How what went forward moves: a convolution with the moved taps and bias, at the maxima that were open.
pub(super) struct ForwardTangent<'a> {
    pub shape: Shape,
    pub padded: &'a [f32],
    pub taps: &'a [Pixel],
    pub bias: &'a Pixel,
    pub plane: Plane,
    /// What went forward; zero where the ReLU closed.
    pub out: &'a [Pixel],
    pub places: &'a [Places],
    pub tangent: &'a mut [Pixel],
}

impl WithSimd for ForwardTangent<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        match (self.shape.channels, S::F32_LANES) {
            (1, 16) => self.windows::<S, 1, 4>(simd),
            (1, _) => self.windows::<S, 1, 2>(simd),
            (_, 16) => self.windows::<S, 3, 4>(simd),
            (_, _) => self.windows::<S, 3, 2>(simd),
        }
    }
}

impl ForwardTangent<'_> {
    #[inline(always)]
    fn windows<S: Simd, const C: usize, const V: usize>(self, simd: S) {
        let (line, side, zero) = (padded_line(self.shape), self.plane.side, simd.splat_f32s(0.0));
        let mut index = Pixel::ZERO;
        for row in 0..side {
            for column in 0..side {
                let rows = window::<C>(self.padded, 2 * row * line + 2 * column * C, line);
                let at = self.plane.at(row, column);
                let places = &self.places[row * side + column];
                for c in 0..WIDTH {
                    index.0[c] = f32::from(places[c]);
                }
                for v in (0..vectors::<S>()).step_by(V) {
                    let sums = convolve::<S, C, V>(simd, rows, self.taps, self.bias, v);
                    for j in 0..V {
                        let place = index.get::<S>(v + j);
                        let mut chosen = sums[0][j];
                        for k in 1..4 {
                            let here = simd.equal_f32s(place, simd.splat_f32s(k as f32));
                            chosen = simd.select_f32s(here, sums[k][j], chosen);
                        }
                        let open = simd.greater_than_f32s(self.out[at].get::<S>(v + j), zero);
                        self.tangent[at].set::<S>(v + j, simd.select_f32s(open, chosen, zero));
                    }
                }
            }
        }
    }
}

/// The four rows of input that a pooling window's outputs look at.
#[inline(always)]
fn window<const C: usize>(padded: &[f32], start: usize, line: usize) -> [&[f32]; 4] {
    [
        &padded[start..start + 4 * C],
        &padded[start + line..start + line + 4 * C],
        &padded[start + 2 * line..start + 2 * line + 4 * C],
        &padded[start + 3 * line..start + 3 * line + 4 * C],
    ]
}

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
    for dy in 0..3 {
        for k in 0..3 * C {
            let mut weights = [simd.splat_f32s(0.0); V];
            for j in 0..V {
                weights[j] = taps[dy * 3 * C + k].get::<S>(v + j);
            }
            for at in 0..4 {
                let value = simd.splat_f32s(rows[at / 2 + dy][at % 2 * C + k]);
                for j in 0..V {
                    sums[at][j] = multiply_add(simd, value, weights[j], sums[at][j]);
                }
            }
        }
    }
    sums
}

/// The largest of four and its place; the first where they are equal.
#[inline(always)]
fn maximum<S: Simd>(simd: S, values: [S::f32s; 4]) -> (S::f32s, S::f32s) {
    let (mut highest, mut place) = (values[0], simd.splat_f32s(0.0));
    for (i, value) in values.into_iter().enumerate().skip(1) {
        let above = simd.greater_than_f32s(value, highest);
        highest = simd.select_f32s(above, value, highest);
        place = simd.select_f32s(above, simd.splat_f32s(i as f32), place);
    }
    (highest, place)
}

/// The second moments of all patches of a picture, added up.
pub(super) struct PatchMoments<'a> {
    pub shape: Shape,
    pub padded: &'a [f32],
    pub moments: &'a mut Moments,
}

/// Patches of a row of pixels.
type PatchRow = [f32; PATCH_VALUES];

impl WithSimd for PatchMoments<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let mut patches = vec![[0.0; PATCH_VALUES]; self.shape.size];
        let (line, run) = (padded_line(self.shape), 3 * self.shape.channels);
        for row in 0..self.shape.size {
            for (column, patch) in patches.iter_mut().enumerate() {
                for dy in 0..3 {
                    let start = (row + dy) * line + column * self.shape.channels;
                    patch[dy * run..(dy + 1) * run].copy_from_slice(&self.padded[start..start + run]);
                }
                patch[3 * run] = 1.0;
            }
            let values = 3 * run + 1;
            if S::F32_LANES == 16 {
                accumulate::<S, 14>(simd, &patches, values, self.moments);
            } else {
                accumulate::<S, 6>(simd, &patches, values, self.moments);
            }
        }
    }
}

#[inline(always)]
fn accumulate<S: Simd, const ROWS: usize>(simd: S, patches: &[PatchRow], values: usize, out: &mut Moments) {
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

/// The gradient that reaches the maxima, times their patches: added to `taps` ([3 x 3 x channels]) and `sum`.
pub(super) struct Backward<'a> {
    pub shape: Shape,
    pub padded: &'a [f32],
    pub plane: Plane,
    /// What went forward; zero where the ReLU closed.
    pub out: &'a [Pixel],
    pub places: &'a [Places],
    /// The gradient of `out`, in the same plane.
    pub d_out: &'a [Pixel],
    pub taps: &'a mut [Pixel],
    pub sum: &'a mut Pixel,
}

impl WithSimd for Backward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        #[cfg(target_arch = "x86_64")]
        if let (16, Some(simd)) = (S::F32_LANES, pulp::x86::V4::try_new()) {
            return match self.shape.channels {
                1 => self.rows_by_permutation::<1>(simd),
                _ => self.rows_by_permutation::<3>(simd),
            };
        }
        match self.shape.channels {
            1 => self.rows::<S, 1>(simd),
            _ => self.rows::<S, 3>(simd),
        }
    }
}

impl Backward<'_> {
    /// C input channels.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    fn rows_by_permutation<const C: usize>(self, simd: pulp::x86::V4) {
        let (line, side) = (padded_line(self.shape), self.plane.side);
        let mut reached = vec![Reached::NOTHING; side];
        for row in 0..side {
            for (column, reached) in reached.iter_mut().enumerate() {
                let at = self.plane.at(row, column);
                open(&self.out[at], &self.d_out[at], &mut reached.gradient, self.sum);
                reached.point::<C>(&self.places[row * side + column]);
            }
            permuted::taps::<C>(simd, &reached, &self.padded[2 * row * line..], line, self.taps);
        }
    }

    /// C input channels.
    #[inline(always)]
    fn rows<S: Simd, const C: usize>(self, simd: S) {
        let (line, side) = (padded_line(self.shape), self.plane.side);
        let mut reached = vec![(Pixel::ZERO, Pixel::ZERO); side];
        for row in 0..side {
            for (column, (gradient, index)) in reached.iter_mut().enumerate() {
                let at = self.plane.at(row, column);
                open(&self.out[at], &self.d_out[at], gradient, self.sum);
                let places = &self.places[row * side + column];
                index.0.iter_mut().zip(places).for_each(|(index, &place)| *index = f32::from(place));
            }
            for v in 0..vectors::<S>() {
                for dy in 0..3 {
                    let start = (2 * row + dy) * line;
                    taps::<S, C>(simd, &reached, &self.padded[start..], line, dy, v, self.taps);
                }
            }
        }
    }
}

/// The gradient where the ReLU let something through; adds it to `sum`.
#[inline(always)]
fn open(out: &Pixel, d_out: &Pixel, gradient: &mut Pixel, sum: &mut Pixel) {
    for c in 0..WIDTH {
        gradient.0[c] = if out.0[c] > 0.0 { d_out.0[c] } else { 0.0 };
        sum.0[c] += gradient.0[c];
    }
}

/// One row of taps; all four outputs of a window, three of which have no gradient.
#[inline(always)]
fn taps<S: Simd, const C: usize>(
    simd: S,
    reached: &[(Pixel, Pixel)],
    padded: &[f32],
    line: usize,
    dy: usize,
    v: usize,
    out: &mut [Pixel],
) {
    // 3 x C taps a row, of which 9 is the most.
    let mut sums = [simd.splat_f32s(0.0); 9];
    for (column, (gradient, index)) in reached.iter().enumerate() {
        let (gradient, index) = (gradient.get::<S>(v), index.get::<S>(v));
        for at in 0..4 {
            let here = simd.equal_f32s(index, simd.splat_f32s(at as f32));
            let gradient = simd.select_f32s(here, gradient, simd.splat_f32s(0.0));
            let start = at / 2 * line + (2 * column + at % 2) * C;
            let values = &padded[start..start + 3 * C];
            for k in 0..3 * C {
                sums[k] = multiply_add(simd, simd.splat_f32s(values[k]), gradient, sums[k]);
            }
        }
    }
    for k in 0..3 * C {
        let tap = &mut out[dy * 3 * C + k];
        let sum = simd.add_f32s(tap.get::<S>(v), sums[k]);
        tap.set::<S>(v, sum);
    }
}
