//! Winograd convolution of blocks of tiles: input transform to the 36 points, products with the filters, and output
//! transform, with the backward pass of each. `winograd` has the formulas.
//!
//! A convolution runs the kernels of this file in this order, for one [`TileBlock`] after the other:
//! [`InputTransform`], [`PointProducts`], and a kernel of the caller that calls [`output_transform`] and uses the
//! outputs at once. Backward: [`output_transform_backward`], [`FilterGradient`], [`PointProducts`] with transposed
//! filters, and [`InputTransformBackward`]. The points and products of a block of tiles fit into the second-level cache
//! together with the filters.
//!
//! A *slot* is the number of a tile within its block, `v` that of a SIMD vector among the 64 channels of a pixel. A
//! transform is done row by row and then column by column; `half` is the result of the first of the two.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use super::WIDTH;
use super::plane::{PATCH, POINTS, Pixel, Plane, TILE, vectors};
use super::winograd::{self, Filters};
use crate::isa::multiply_add;

/// Tiles of a block: two groups of 14 rows of the product kernel, see [`PointProducts`].
pub(super) const SLOTS: usize = 28;
/// Pixels per point: one more than the tiles, so that the 36 points of a tile do not compete for the same cache sets.
const STRIDE: usize = SLOTS + 1;

/// The channels of a block of tiles at each Winograd point, `[36, tiles, 64]`.
pub(super) struct TilePoints(Vec<[Pixel; STRIDE]>);

impl TilePoints {
    pub fn new() -> Self {
        TilePoints(vec![[Pixel::ZERO; STRIDE]; POINTS])
    }

    #[inline(always)]
    fn all(&self) -> &[[Pixel; STRIDE]; POINTS] {
        self.0.first_chunk().expect("there are 36 points")
    }

    #[inline(always)]
    fn all_mut(&mut self) -> &mut [[Pixel; STRIDE]; POINTS] {
        self.0.first_chunk_mut().expect("there are 36 points")
    }
}

/// A block of tiles: `count` (at most [`SLOTS`]) from tile number `first` on.
#[derive(Clone, Copy)]
pub(super) struct TileBlock {
    pub plane: Plane,
    pub first: usize,
    pub count: usize,
}

/// The blocks of all tiles of `images` images.
pub(super) fn blocks(plane: Plane, images: usize) -> impl Iterator<Item = TileBlock> {
    blocks_of(plane, 0..images * plane.tiles())
}

/// The blocks of a range of tiles, which are numbered over all images of a batch.
pub(super) fn blocks_of(plane: Plane, tiles: Range<usize>) -> impl Iterator<Item = TileBlock> {
    let end = tiles.end;
    tiles.step_by(SLOTS).map(move |first| TileBlock { plane, first, count: SLOTS.min(end - first) })
}

/// A row of a patch, from pixel `start` on.
#[inline(always)]
pub(super) fn row(pixels: &[Pixel], start: usize) -> &[Pixel; PATCH] {
    pixels[start..start + PATCH].first_chunk().expect("the slice has that length")
}

/// The input transform Bᵀ d B of the patch of every tile.
pub(super) struct InputTransform<'a> {
    pub block: TileBlock,
    /// The input of the convolution, in planes.
    pub pixels: &'a [Pixel],
    pub points: &'a mut TilePoints,
}

impl WithSimd for InputTransform<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let TileBlock { plane, first, count } = self.block;
        let (points, stride) = (self.points.all_mut(), plane.stride());
        // `count` is at most SLOTS anyway; `min` tells the compiler so, which then drops bounds checks.
        for slot in 0..count.min(SLOTS) {
            let start = plane.patch(plane.tile(first + slot));
            let rows = [
                row(self.pixels, start),
                row(self.pixels, start + stride),
                row(self.pixels, start + 2 * stride),
                row(self.pixels, start + 3 * stride),
                row(self.pixels, start + 4 * stride),
                row(self.pixels, start + 5 * stride),
            ];
            for v in 0..vectors::<S>() {
                // `d B`, row by row, then `Bᵀ (d B)`, column by column.
                let mut half = [[simd.splat_f32s(0.0); PATCH]; PATCH];
                for r in 0..PATCH {
                    let mut line = [simd.splat_f32s(0.0); PATCH];
                    for c in 0..PATCH {
                        line[c] = rows[r][c].get::<S>(v);
                    }
                    half[r] = winograd::input(simd, line);
                }
                for c in 0..PATCH {
                    let line = [half[0][c], half[1][c], half[2][c], half[3][c], half[4][c], half[5][c]];
                    let out = winograd::input(simd, line);
                    for r in 0..PATCH {
                        points[r * PATCH + c][slot].set::<S>(v, out[r]);
                    }
                }
            }
        }
    }
}

/// The backward pass of [`InputTransform`]: adds B v Bᵀ of every tile, with v the gradient of its points, to the
/// gradient of the pixels. The patches of neighbouring tiles overlap, so their gradients add up.
pub(super) struct InputTransformBackward<'a> {
    pub block: TileBlock,
    /// The gradient of the points.
    pub points: &'a TilePoints,
    /// The gradient of the input of the convolution, in planes.
    pub pixels: &'a mut [Pixel],
}

impl WithSimd for InputTransformBackward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let TileBlock { plane, first, count } = self.block;
        let (points, stride) = (self.points.all(), plane.stride());
        // `min` as in `InputTransform`.
        for slot in 0..count.min(SLOTS) {
            let start = plane.patch(plane.tile(first + slot));
            for v in 0..vectors::<S>() {
                let mut half = [[simd.splat_f32s(0.0); PATCH]; PATCH];
                for r in 0..PATCH {
                    let mut line = [simd.splat_f32s(0.0); PATCH];
                    for c in 0..PATCH {
                        line[c] = points[r * PATCH + c][slot].get::<S>(v);
                    }
                    half[r] = winograd::input_backward(simd, line);
                }
                let mut out = [[simd.splat_f32s(0.0); PATCH]; PATCH];
                for c in 0..PATCH {
                    let line = [half[0][c], half[1][c], half[2][c], half[3][c], half[4][c], half[5][c]];
                    let column = winograd::input_backward(simd, line);
                    for r in 0..PATCH {
                        out[r][c] = column[r];
                    }
                }
                for r in 0..PATCH {
                    let from = start + r * stride;
                    let pixels: &mut [Pixel; PATCH] =
                        self.pixels[from..from + PATCH].first_chunk_mut().expect("the slice has that length");
                    for c in 0..PATCH {
                        let sum = simd.add_f32s(pixels[c].get::<S>(v), out[r][c]);
                        pixels[c].set::<S>(v, sum);
                    }
                }
            }
        }
    }
}

/// The output transform Aᵀ m A of one tile and vector of channels, with m its products at the points. Returns the 4x4
/// outputs, row by row.
#[inline(always)]
pub(super) fn output_transform<S: Simd>(
    simd: S,
    points: &TilePoints,
    slot: usize,
    v: usize,
) -> [[S::f32s; TILE]; TILE] {
    let points = points.all();
    // `slot` is below SLOTS anyway; this tells the compiler that it is below STRIDE, so that it drops the bounds
    // checks.
    let slot = slot.min(SLOTS);
    let mut half = [[simd.splat_f32s(0.0); TILE]; PATCH];
    for r in 0..PATCH {
        let mut line = [simd.splat_f32s(0.0); PATCH];
        for c in 0..PATCH {
            line[c] = points[r * PATCH + c][slot].get::<S>(v);
        }
        half[r] = winograd::output(simd, line);
    }
    let mut out = [[simd.splat_f32s(0.0); TILE]; TILE];
    for c in 0..TILE {
        let line = [half[0][c], half[1][c], half[2][c], half[3][c], half[4][c], half[5][c]];
        let column = winograd::output(simd, line);
        for r in 0..TILE {
            out[r][c] = column[r];
        }
    }
    out
}

/// The backward pass of [`output_transform`]: sets the gradient of the products at the points to A dy Aᵀ, with dy the
/// gradient of the 4x4 outputs (`outputs`), for one tile and vector of channels.
#[inline(always)]
pub(super) fn output_transform_backward<S: Simd>(
    simd: S,
    outputs: [[S::f32s; TILE]; TILE],
    points: &mut TilePoints,
    slot: usize,
    v: usize,
) {
    let points = points.all_mut();
    // As in `output_transform`.
    let slot = slot.min(SLOTS);
    let mut half = [[simd.splat_f32s(0.0); PATCH]; TILE];
    for r in 0..TILE {
        half[r] = winograd::output_backward(simd, outputs[r]);
    }
    for c in 0..PATCH {
        let line = [half[0][c], half[1][c], half[2][c], half[3][c]];
        let out = winograd::output_backward(simd, line);
        for r in 0..PATCH {
            points[r * PATCH + c][slot].set::<S>(v, out[r]);
        }
    }
}

/// At every point the matrix product of the tiles' input channels (`[tiles, 64]`) and the filters (`[64, 64]`), summed
/// over TERMS pairs of both: one in a convolution, two in the tangent of one.
pub(super) struct PointProducts<'a, const TERMS: usize> {
    /// Tiles of the block.
    pub count: usize,
    pub terms: [(&'a TilePoints, &'a Filters); TERMS],
    /// `[36, tiles, 64]`, overwritten.
    pub out: &'a mut TilePoints,
}

impl<const TERMS: usize> WithSimd for PointProducts<'_, TERMS> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // The largest groups whose values fit into registers: two accumulators per row, two vectors of the filter, and
        // one vector with a copy of an input value in every lane.
        if S::REGISTER_COUNT >= 32 {
            self.groups::<S, 14, 8, 4>(simd)
        } else {
            self.groups::<S, 6, 4, 2>(simd)
        }
    }
}

impl<const TERMS: usize> PointProducts<'_, TERMS> {
    /// Computes groups of rows (tiles): MANY as long as more than SOME remain, then SOME or FEW.
    #[inline(always)]
    fn groups<S: Simd, const MANY: usize, const SOME: usize, const FEW: usize>(mut self, simd: S) {
        let mut first = 0;
        while first < self.count {
            first += match self.count - first {
                remaining if remaining > SOME => self.group::<S, MANY>(simd, first),
                remaining if remaining > FEW => self.group::<S, SOME>(simd, first),
                _ => self.group::<S, FEW>(simd, first),
            };
        }
    }

    /// Computes a group of ROWS rows from row `first` on, for every point, and returns their number. A group that would
    /// exceed the block starts earlier and computes some rows again.
    #[inline(always)]
    fn group<S: Simd, const ROWS: usize>(&mut self, simd: S, first: usize) -> usize {
        let from = first.min(SLOTS - ROWS);
        simd.vectorize(Group::<ROWS, TERMS> { from, terms: self.terms, out: self.out });
        ROWS
    }
}

/// A group of rows. One function per number of rows: the compiler allocates registers badly if all are inlined into
/// one.
struct Group<'a, const ROWS: usize, const TERMS: usize> {
    from: usize,
    terms: [(&'a TilePoints, &'a Filters); TERMS],
    out: &'a mut TilePoints,
}

impl<const ROWS: usize, const TERMS: usize> WithSimd for Group<'_, ROWS, TERMS> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        for (point, out) in self.out.all_mut().iter_mut().enumerate() {
            let terms = self.terms.map(|(left, filters)| {
                let rows: &[Pixel; ROWS] =
                    left.all()[point][self.from..].first_chunk().expect("a group fits into a block");
                (rows, &filters[point])
            });
            let products: &mut [Pixel; ROWS] =
                out[self.from..].first_chunk_mut().expect("a group fits into a block");
            for column in (0..vectors::<S>()).step_by(2) {
                product::<S, ROWS, TERMS>(simd, terms, column, products);
            }
        }
    }
}

/// Computes two vectors of output channels, from vector `column` on, of a group of rows at one point.
#[inline(always)]
fn product<S: Simd, const ROWS: usize, const TERMS: usize>(
    simd: S,
    terms: [(&[Pixel; ROWS], &[Pixel; WIDTH]); TERMS],
    column: usize,
    out: &mut [Pixel; ROWS],
) {
    let mut sums = [[simd.splat_f32s(0.0); 2]; ROWS];
    for (left, right) in terms {
        for k in 0..WIDTH {
            let (a, b) = (right[k].get::<S>(column), right[k].get::<S>(column + 1));
            for r in 0..ROWS {
                let factor = simd.splat_f32s(left[r].0[k]);
                sums[r][0] = multiply_add(simd, factor, a, sums[r][0]);
                sums[r][1] = multiply_add(simd, factor, b, sums[r][1]);
            }
        }
    }
    for r in 0..ROWS {
        out[r].set::<S>(column, sums[r][0]);
        out[r].set::<S>(column + 1, sums[r][1]);
    }
}

/// At every point the gradient of the filters, `[input channels, output channels]`: the sum over the tiles of input
/// times gradient of the product, added to `gradient`.
pub(super) struct FilterGradient<'a> {
    /// Tiles of the block.
    pub count: usize,
    /// The transformed patches.
    pub inputs: &'a TilePoints,
    /// The gradient of the products, see [`output_transform_backward`].
    pub outputs: &'a TilePoints,
    pub gradient: &'a mut Filters,
}

impl WithSimd for FilterGradient<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        if S::REGISTER_COUNT >= 32 { self.groups::<S, 8>(simd) } else { self.groups::<S, 4>(simd) }
    }
}

impl FilterGradient<'_> {
    /// Computes the gradient of ROWS input channels at a time: with two vectors of output channels each, their sums
    /// stay in registers while the tiles are added.
    #[inline(always)]
    fn groups<S: Simd, const ROWS: usize>(self, simd: S) {
        let count = self.count.min(SLOTS);
        let points = self.inputs.all().iter().zip(self.outputs.all());
        for ((inputs, outputs), gradient) in points.zip(self.gradient) {
            for first in (0..WIDTH).step_by(ROWS) {
                let rows: &mut [Pixel; ROWS] =
                    gradient[first..].first_chunk_mut().expect("64 is a multiple of the rows");
                for column in (0..vectors::<S>()).step_by(2) {
                    outer_products::<S, ROWS>(simd, &inputs[..count], &outputs[..count], first, column, rows);
                }
            }
        }
    }
}

/// Adds the outer products of the tiles' inputs and outputs, for ROWS input channels from `first` on and two vectors of
/// output channels from vector `column` on.
#[inline(always)]
fn outer_products<S: Simd, const ROWS: usize>(
    simd: S,
    inputs: &[Pixel],
    outputs: &[Pixel],
    first: usize,
    column: usize,
    gradient: &mut [Pixel; ROWS],
) {
    let mut sums = [[simd.splat_f32s(0.0); 2]; ROWS];
    for r in 0..ROWS {
        sums[r] = [gradient[r].get::<S>(column), gradient[r].get::<S>(column + 1)];
    }
    for (input, output) in inputs.iter().zip(outputs) {
        let (a, b) = (output.get::<S>(column), output.get::<S>(column + 1));
        let factors: &[f32; ROWS] =
            input.0[first..first + ROWS].first_chunk().expect("the slice has that length");
        for r in 0..ROWS {
            let factor = simd.splat_f32s(factors[r]);
            sums[r][0] = multiply_add(simd, factor, a, sums[r][0]);
            sums[r][1] = multiply_add(simd, factor, b, sums[r][1]);
        }
    }
    for r in 0..ROWS {
        gradient[r].set::<S>(column, sums[r][0]);
        gradient[r].set::<S>(column + 1, sums[r][1]);
    }
}
