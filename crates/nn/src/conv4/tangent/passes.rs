//! What tangents meet beside the convolutions: the same passes as `super::super::passes`, each moved along.
//! Which output of a window is its maximum, and which ReLU is open, stays as it was.

use pulp::{Simd, WithSimd};

use super::NormTangent;
use crate::conv4::plane::{Pixel, Plane, TILE, vectors};
use crate::conv4::tiles::{self, Block, Points};
use crate::conv4::training::{Norm, NormBackward};
use crate::isa::multiply_add;

/// Output transform of a tangent; stores it, and what it is at the windows' maxima; gives the sums of ẏ and y ẏ.
pub(super) struct Outputs<'a> {
    pub block: Block,
    pub points: &'a Points,
    pub outputs: &'a [Pixel],
    pub moved: &'a mut [Pixel],
    pub moved_maxima: &'a mut [Pixel],
}

impl WithSimd for Outputs<'_> {
    type Output = [Pixel; 2];

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> [Pixel; 2] {
        let Block { plane, first, count } = self.block;
        let (side, pooled) = (plane.side, plane.side / 2);
        let (mut total, mut total_products) = (Pixel::ZERO, Pixel::ZERO);
        for v in 0..vectors::<S>() {
            let (mut sum, mut products) = (simd.splat_f32s(0.0), simd.splat_f32s(0.0));
            for slot in 0..count {
                let tile = plane.tile(first + slot);
                let moved = tiles::output(simd, self.points, slot, v);
                let start = (tile.image * side + tile.row) * side + tile.column;
                let mut y = [[simd.splat_f32s(0.0); TILE]; TILE];
                for r in 0..TILE {
                    for c in 0..TILE {
                        if tile.row + r < side && tile.column + c < side {
                            let at = start + r * side + c;
                            y[r][c] = self.outputs[at].get::<S>(v);
                            self.moved[at].set::<S>(v, moved[r][c]);
                            sum = simd.add_f32s(sum, moved[r][c]);
                            products = multiply_add(simd, y[r][c], moved[r][c], products);
                        }
                    }
                }
                let (row, column) = (tile.row / 2, tile.column / 2);
                for r in 0..2 {
                    for c in 0..2 {
                        if row + r < pooled && column + c < pooled {
                            // The first of equal maxima, as on the way back.
                            let (mut highest, mut chosen) = (y[2 * r][2 * c], moved[2 * r][2 * c]);
                            for k in 1..4 {
                                let (i, j) = (2 * r + k / 2, 2 * c + k % 2);
                                let above = simd.greater_than_f32s(y[i][j], highest);
                                highest = simd.select_f32s(above, y[i][j], highest);
                                chosen = simd.select_f32s(above, moved[i][j], chosen);
                            }
                            let at = (tile.image * pooled + row + r) * pooled + column + c;
                            self.moved_maxima[at].set::<S>(v, chosen);
                        }
                    }
                }
            }
            total.set::<S>(v, sum);
            total_products.set::<S>(v, products);
        }
        [total, total_products]
    }
}

/// Norm and ReLU of moved maxima, into the planes of the next block.
pub(super) struct Normalise<'a> {
    pub norm: &'a Norm,
    pub moved_norm: &'a NormTangent,
    pub plane: Plane,
    pub maxima: &'a [Pixel],
    pub moved_maxima: &'a [Pixel],
    pub to: &'a mut [Pixel],
}

impl WithSimd for Normalise<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (side, zero) = (self.plane.side, simd.splat_f32s(0.0));
        for (place, (y, moved)) in self.maxima.iter().zip(self.moved_maxima).enumerate() {
            let (image, row) = (place / (side * side), place / side % side);
            let to = &mut self.to[image * self.plane.len() + self.plane.at(row, place % side)];
            for v in 0..vectors::<S>() {
                let (scale, shift) = (self.norm.scale.get::<S>(v), self.norm.shift.get::<S>(v));
                let y = y.get::<S>(v);
                let open = simd.greater_than_f32s(multiply_add(simd, scale, y, shift), zero);
                let (moved_scale, moved_shift) =
                    (self.moved_norm.scale.get::<S>(v), self.moved_norm.shift.get::<S>(v));
                let value = multiply_add(simd, moved_scale, y, moved_shift);
                let value = multiply_add(simd, scale, moved.get::<S>(v), value);
                to.set::<S>(v, simd.select_f32s(open, value, zero));
            }
        }
    }
}

/// Sets the moved gradient to zero where the ReLU was closed; gives the sums of ġ and of (g y)˙.
pub(super) struct Close<'a> {
    pub norm: &'a Norm,
    pub plane: Plane,
    pub maxima: &'a [Pixel],
    pub moved_maxima: &'a [Pixel],
    /// Closed already.
    pub gradient: &'a [Pixel],
    pub moved_gradient: &'a mut [Pixel],
}

impl WithSimd for Close<'_> {
    type Output = [Pixel; 2];

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> [Pixel; 2] {
        let (mut total, mut total_products) = (Pixel::ZERO, Pixel::ZERO);
        let (side, zero) = (self.plane.side, simd.splat_f32s(0.0));
        for v in 0..vectors::<S>() {
            let (scale, shift) = (self.norm.scale.get::<S>(v), self.norm.shift.get::<S>(v));
            let (mut sum, mut products) = (zero, zero);
            for (place, (y, moved)) in self.maxima.iter().zip(self.moved_maxima).enumerate() {
                let at = self.plane.at(place / side, place % side);
                let (y, moved) = (y.get::<S>(v), moved.get::<S>(v));
                let open = simd.greater_than_f32s(multiply_add(simd, scale, y, shift), zero);
                let d = simd.select_f32s(open, self.moved_gradient[at].get::<S>(v), zero);
                self.moved_gradient[at].set::<S>(v, d);
                sum = simd.add_f32s(sum, d);
                products = multiply_add(simd, d, y, products);
                products = multiply_add(simd, self.gradient[at].get::<S>(v), moved, products);
            }
            total.set::<S>(v, sum);
            total_products.set::<S>(v, products);
        }
        [total, total_products]
    }
}

/// The moved gradient at every output of a block of tiles, and its transform.
pub(super) struct OutputsBackward<'a> {
    pub block: Block,
    pub back: &'a NormBackward,
    pub moved_back: &'a NormBackward,
    pub outputs: &'a [Pixel],
    pub moved: &'a [Pixel],
    pub pooled: Plane,
    pub d_pooled: &'a [Pixel],
    pub moved_d_pooled: &'a [Pixel],
    pub points: &'a mut Points,
}

impl WithSimd for OutputsBackward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Block { plane, first, count } = self.block;
        let (side, pooled) = (plane.side, self.pooled);
        for v in 0..vectors::<S>() {
            let output = self.back.output.get::<S>(v);
            let moved_output = self.moved_back.output.get::<S>(v);
            let moved_constant = self.moved_back.constant.get::<S>(v);
            let (reached, moved_reached) =
                (self.back.reached.get::<S>(v), self.moved_back.reached.get::<S>(v));
            for slot in 0..count {
                let tile = plane.tile(first + slot);
                let start = (tile.image * side + tile.row) * side + tile.column;
                let mut y = [[simd.splat_f32s(0.0); TILE]; TILE];
                let mut d = [[simd.splat_f32s(0.0); TILE]; TILE];
                for r in 0..TILE {
                    for c in 0..TILE {
                        if tile.row + r < side && tile.column + c < side {
                            let at = start + r * side + c;
                            y[r][c] = self.outputs[at].get::<S>(v);
                            let own = multiply_add(simd, moved_output, y[r][c], moved_constant);
                            d[r][c] = multiply_add(simd, output, self.moved[at].get::<S>(v), own);
                        }
                    }
                }
                let (row, column) = (tile.row / 2, tile.column / 2);
                for r in 0..2 {
                    for c in 0..2 {
                        if row + r < pooled.side && column + c < pooled.side {
                            let at = tile.image * pooled.len() + pooled.at(row + r, column + c);
                            let arriving = simd.mul_f32s(self.d_pooled[at].get::<S>(v), moved_reached);
                            let mut left =
                                multiply_add(simd, self.moved_d_pooled[at].get::<S>(v), reached, arriving);
                            let upper = simd.max_f32s(y[2 * r][2 * c], y[2 * r][2 * c + 1]);
                            let lower = simd.max_f32s(y[2 * r + 1][2 * c], y[2 * r + 1][2 * c + 1]);
                            let highest = simd.max_f32s(upper, lower);
                            for k in 0..4 {
                                let (i, j) = (2 * r + k / 2, 2 * c + k % 2);
                                let here = simd.equal_f32s(y[i][j], highest);
                                let added = simd.add_f32s(d[i][j], left);
                                d[i][j] = simd.select_f32s(here, added, d[i][j]);
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
