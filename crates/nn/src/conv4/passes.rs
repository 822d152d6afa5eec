//! What a training step does to activations beside the convolutions themselves: outputs with the sums batch norm
//! needs, the norm, and both on the way back.

use pulp::{Simd, WithSimd};

use super::plane::{Pixel, Plane, TILE, vectors};
use super::tiles::{self, Block, Points};
use super::training::{Norm, NormBackward};
use crate::isa::multiply_add;

/// Output transform; stores outputs and the maxima of windows, and gives the sums of y and y².
pub(super) struct Outputs<'a> {
    pub block: Block,
    pub points: &'a Points,
    pub outputs: &'a mut [Pixel],
    pub maxima: &'a mut [Pixel],
}

impl WithSimd for Outputs<'_> {
    type Output = [Pixel; 2];

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> [Pixel; 2] {
        let Block { plane, first, count } = self.block;
        let (side, pooled) = (plane.side, plane.side / 2);
        let (mut total, mut total_squares) = (Pixel::ZERO, Pixel::ZERO);
        for v in 0..vectors::<S>() {
            let (mut sum, mut squares) = (simd.splat_f32s(0.0), simd.splat_f32s(0.0));
            for slot in 0..count {
                let tile = plane.tile(first + slot);
                let y = tiles::output(simd, self.points, slot, v);
                let start = (tile.image * side + tile.row) * side + tile.column;
                for r in 0..TILE {
                    for c in 0..TILE {
                        if tile.row + r < side && tile.column + c < side {
                            self.outputs[start + r * side + c].set::<S>(v, y[r][c]);
                            sum = simd.add_f32s(sum, y[r][c]);
                            squares = multiply_add(simd, y[r][c], y[r][c], squares);
                        }
                    }
                }
                let (row, column) = (tile.row / 2, tile.column / 2);
                for r in 0..2 {
                    for c in 0..2 {
                        if row + r < pooled && column + c < pooled {
                            let upper = simd.max_f32s(y[2 * r][2 * c], y[2 * r][2 * c + 1]);
                            let lower = simd.max_f32s(y[2 * r + 1][2 * c], y[2 * r + 1][2 * c + 1]);
                            let at = (tile.image * pooled + row + r) * pooled + column + c;
                            self.maxima[at].set::<S>(v, simd.max_f32s(upper, lower));
                        }
                    }
                }
            }
            total.set::<S>(v, sum);
            total_squares.set::<S>(v, squares);
        }
        [total, total_squares]
    }
}

/// The gradient at every output of a block of tiles, and its transform.
pub(super) struct OutputsBackward<'a> {
    pub block: Block,
    pub back: &'a NormBackward,
    pub outputs: &'a [Pixel],
    pub pooled: Plane,
    pub d_pooled: &'a [Pixel],
    pub points: &'a mut Points,
}

impl WithSimd for OutputsBackward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Block { plane, first, count } = self.block;
        let (side, pooled) = (plane.side, self.pooled);
        for v in 0..vectors::<S>() {
            let (output, constant) = (self.back.output.get::<S>(v), self.back.constant.get::<S>(v));
            let reached = self.back.reached.get::<S>(v);
            for slot in 0..count {
                let tile = plane.tile(first + slot);
                let start = (tile.image * side + tile.row) * side + tile.column;
                let mut y = [[simd.splat_f32s(0.0); TILE]; TILE];
                let mut d = [[simd.splat_f32s(0.0); TILE]; TILE];
                for r in 0..TILE {
                    for c in 0..TILE {
                        if tile.row + r < side && tile.column + c < side {
                            y[r][c] = self.outputs[start + r * side + c].get::<S>(v);
                            d[r][c] = multiply_add(simd, output, y[r][c], constant);
                        }
                    }
                }
                let (row, column) = (tile.row / 2, tile.column / 2);
                for r in 0..2 {
                    for c in 0..2 {
                        if row + r < pooled.side && column + c < pooled.side {
                            let at = tile.image * pooled.len() + pooled.at(row + r, column + c);
                            let mut left = simd.mul_f32s(self.d_pooled[at].get::<S>(v), reached);
                            let upper = simd.max_f32s(y[2 * r][2 * c], y[2 * r][2 * c + 1]);
                            let lower = simd.max_f32s(y[2 * r + 1][2 * c], y[2 * r + 1][2 * c + 1]);
                            let highest = simd.max_f32s(upper, lower);
                            for k in 0..4 {
                                let (i, j) = (2 * r + k / 2, 2 * c + k % 2);
                                let here = simd.equal_f32s(y[i][j], highest);
                                let added = simd.add_f32s(d[i][j], left);
                                d[i][j] = simd.select_f32s(here, added, d[i][j]);
                                // The first of equal maxima takes it all.
                                left = simd.select_f32s(here, simd.splat_f32s(0.0), left);
                            }
                        }
                    }
                }
                tiles::output_backward(simd, d, self.points, slot, v);
            }
        }
    }
}

/// Norm and ReLU of maxima, into the planes of the next block.
pub(super) struct Normalise<'a> {
    pub norm: &'a Norm,
    pub plane: Plane,
    pub maxima: &'a [Pixel],
    pub to: &'a mut [Pixel],
}

impl WithSimd for Normalise<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let side = self.plane.side;
        for (place, from) in self.maxima.iter().enumerate() {
            let (image, row) = (place / (side * side), place / side % side);
            let to = &mut self.to[image * self.plane.len() + self.plane.at(row, place % side)];
            for v in 0..vectors::<S>() {
                let (scale, shift) = (self.norm.scale.get::<S>(v), self.norm.shift.get::<S>(v));
                let value = multiply_add(simd, scale, from.get::<S>(v), shift);
                to.set::<S>(v, simd.max_f32s(value, simd.splat_f32s(0.0)));
            }
        }
    }
}

/// Sets the gradient to zero where the ReLU was closed; gives the sums of dy and of dy y.
pub(super) struct Close<'a> {
    pub norm: &'a Norm,
    pub plane: Plane,
    pub maxima: &'a [Pixel],
    pub gradient: &'a mut [Pixel],
}

impl WithSimd for Close<'_> {
    type Output = [Pixel; 2];

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> [Pixel; 2] {
        let (mut total, mut total_products) = (Pixel::ZERO, Pixel::ZERO);
        let side = self.plane.side;
        for v in 0..vectors::<S>() {
            let (scale, shift) = (self.norm.scale.get::<S>(v), self.norm.shift.get::<S>(v));
            let (mut sum, mut products) = (simd.splat_f32s(0.0), simd.splat_f32s(0.0));
            for (place, y) in self.maxima.iter().enumerate() {
                let gradient = &mut self.gradient[self.plane.at(place / side, place % side)];
                let y = y.get::<S>(v);
                let open = simd.greater_than_f32s(multiply_add(simd, scale, y, shift), simd.splat_f32s(0.0));
                let d = simd.select_f32s(open, gradient.get::<S>(v), simd.splat_f32s(0.0));
                gradient.set::<S>(v, d);
                sum = simd.add_f32s(sum, d);
                products = multiply_add(simd, d, y, products);
            }
            total.set::<S>(v, sum);
            total_products.set::<S>(v, products);
        }
        [total, total_products]
    }
}
