//! The tangents of batch norm and of the output transform, pooling and ReLU around it: each item here is the tangent of
//! the item of the same name in `conv4::batch_norm`, its derivative along a direction of the parameters. Start with
//! [`BatchNormTangent`].
//!
//! The positions of the maxima and the activity of the ReLUs are constant under the tangent, because a small change of
//! the parameters does not change them. Channels with a negative gamma are computed with negated weights, as in
//! [`BatchNorm`], hence `abs` and `sign`.
//!
//! In formulas, y is an output of the convolution, g the gradient of a normalised maximum, 0 where the ReLU is
//! inactive, and a dot marks a tangent. In code, g is `gradient` or `d_pooled`, and `dy` in the names of factors, as in
//! `conv4::batch_norm`; `tangent_` marks a tangent.

use pulp::{Simd, WithSimd};

use crate::conv4::batch_norm::{BatchNorm, BatchNormBackward};
use crate::conv4::plane::{Pixel, Plane, TILE, vectors};
use crate::conv4::tiles::{self, TileBlock, TilePoints};
use crate::conv4::{BlockRanges, WIDTH};
use crate::isa::{self, multiply_add};

/// The tangents of the fields of [`BatchNorm`].
#[derive(Clone)]
pub(super) struct BatchNormTangent {
    pub mean: [f64; WIDTH],
    pub inverse_std: [f64; WIDTH],
    pub scale: Pixel,
    pub shift: Pixel,
}

impl BatchNormTangent {
    pub const ZERO: BatchNormTangent = BatchNormTangent {
        mean: [0.0; WIDTH],
        inverse_std: [0.0; WIDTH],
        scale: Pixel::ZERO,
        shift: Pixel::ZERO,
    };

    /// From the sums of ẏ and y ẏ over all pixels. `direction` is the tangent of `parameters`.
    pub fn new(
        block: &BlockRanges,
        norm: &BatchNorm,
        parameters: &[f32],
        direction: &[f32],
        sums: &[[f64; WIDTH]; 2],
    ) -> Self {
        let mut tangent = BatchNormTangent::ZERO;
        for c in 0..WIDTH {
            let gamma = f64::from(parameters[block.gamma.start + c].abs());
            let tangent_gamma = f64::from(norm.sign.0[c] * direction[block.gamma.start + c]);
            // var = mean of y² - mean², inverse_std = (var + epsilon)^(-1/2), scale = |gamma| inverse_std,
            // shift = beta - scale mean.
            tangent.mean[c] = sums[0][c] / norm.count;
            let tangent_var = 2.0 * (sums[1][c] / norm.count - norm.mean[c] * tangent.mean[c]);
            tangent.inverse_std[c] = -0.5 * norm.inverse_std[c].powi(3) * tangent_var;
            let tangent_scale = tangent_gamma * norm.inverse_std[c] + gamma * tangent.inverse_std[c];
            tangent.scale.0[c] = tangent_scale as f32;
            let tangent_beta = f64::from(direction[block.beta.start + c]);
            tangent.shift.0[c] = (tangent_beta
                - tangent_scale * norm.mean[c]
                - gamma * norm.inverse_std[c] * tangent.mean[c]) as f32;
        }
        tangent
    }

    /// The tangent of the coefficients `backward`, from the sums of ġ and of (g y)˙. Only the maxima of the windows
    /// contribute: g is 0 elsewhere. Adds to the tangents of the gradients of gamma and beta.
    pub fn backward(
        &self,
        block: &BlockRanges,
        norm: &BatchNorm,
        backward: &BatchNormBackward,
        parameters: &[f32],
        sums: &[[f64; WIDTH]; 2],
        tangent_parameter_gradient: &mut [f32],
    ) -> BatchNormBackward {
        // Only the three coefficients are replaced; nothing reads the sums and products of a tangent.
        let mut tangent = backward.clone();
        for c in 0..WIDTH {
            // The sum of g, and that of g times the normalised output.
            let (sum, product) = (backward.sums[c], backward.products[c]);
            let (inverse, tangent_inverse) = (norm.inverse_std[c], self.inverse_std[c]);
            // `product` is `inverse * (sum of g y - mean * sum of g)`, so `product / inverse` is the sum in brackets.
            // `tangent_product` follows by the product rule.
            let tangent_product = tangent_inverse * product / inverse
                + inverse * (sums[1][c] - self.mean[c] * sum - norm.mean[c] * sums[0][c]);
            tangent_parameter_gradient[block.gamma.start + c] += norm.sign.0[c] * tangent_product as f32;
            tangent_parameter_gradient[block.beta.start + c] += sums[0][c] as f32;
            let gamma = f64::from(parameters[block.gamma.start + c].abs());
            // The product rule on the coefficients of `BatchNormBackward::new`. `y_factor` is recomputed here in f64.
            let (scale, tangent_scale) = (gamma * inverse, f64::from(self.scale.0[c]));
            let y_factor = -scale * inverse * product / norm.count;
            let tangent_y_factor = -(tangent_scale * inverse * product
                + scale * tangent_inverse * product
                + scale * inverse * tangent_product)
                / norm.count;
            tangent.dy_factor.0[c] = tangent_scale as f32;
            tangent.y_factor.0[c] = tangent_y_factor as f32;
            tangent.constant.0[c] = (-(tangent_scale * sum + scale * sums[0][c]) / norm.count
                - tangent_y_factor * norm.mean[c]
                - y_factor * self.mean[c]) as f32;
        }
        tangent
    }
}

/// The Winograd output transform of the tangents of the Winograd products (`points`). Stores the tangents ẏ, and
/// their values at the maxima of the windows; returns the sums of ẏ and y ẏ.
pub(super) struct OutputTransform<'a> {
    pub block: TileBlock,
    pub points: &'a TilePoints,
    /// y, `[images, side, side]`.
    pub outputs: &'a [Pixel],
    /// ẏ, `[images, side, side]`.
    pub tangent_outputs: &'a mut [Pixel],
    /// ẏ at the maxima of y, `[images, side / 2, side / 2]`.
    pub tangent_maxima: &'a mut [Pixel],
}

impl WithSimd for OutputTransform<'_> {
    type Output = [Pixel; 2];

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> [Pixel; 2] {
        let TileBlock { plane, first, count } = self.block;
        let (side, pooled) = (plane.side, plane.side / 2);
        let (mut total, mut total_products) = (Pixel::ZERO, Pixel::ZERO);
        for v in 0..vectors::<S>() {
            let (mut sum, mut products) = (simd.splat_f32s(0.0), simd.splat_f32s(0.0));
            for slot in 0..count {
                let tile = plane.tile(first + slot);
                let tangent = tiles::output_transform(simd, self.points, slot, v);
                let start = (tile.image * side + tile.row) * side + tile.column;
                let mut y = [[simd.splat_f32s(0.0); TILE]; TILE];
                for r in 0..TILE {
                    for c in 0..TILE {
                        if tile.row + r < side && tile.column + c < side {
                            let pixel = start + r * side + c;
                            y[r][c] = self.outputs[pixel].get::<S>(v);
                            self.tangent_outputs[pixel].set::<S>(v, tangent[r][c]);
                            sum = simd.add_f32s(sum, tangent[r][c]);
                            products = multiply_add(simd, y[r][c], tangent[r][c], products);
                        }
                    }
                }
                let (row, column) = (tile.row / 2, tile.column / 2);
                for r in 0..2 {
                    for c in 0..2 {
                        if row + r < pooled && column + c < pooled {
                            // Of several equal maxima the first counts, as in the backward pass.
                            let (mut max, mut chosen) = (y[2 * r][2 * c], tangent[2 * r][2 * c]);
                            for k in 1..4 {
                                let (i, j) = (2 * r + k / 2, 2 * c + k % 2);
                                let above = simd.greater_than_f32s(y[i][j], max);
                                max = simd.select_f32s(above, y[i][j], max);
                                chosen = simd.select_f32s(above, tangent[i][j], chosen);
                            }
                            let pixel = (tile.image * pooled + row + r) * pooled + column + c;
                            self.tangent_maxima[pixel].set::<S>(v, chosen);
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

/// The tangent of batch norm and ReLU at the maxima, written to `to`, the tangent of the next block's input.
pub(super) struct NormaliseRelu<'a> {
    pub norm: &'a BatchNorm,
    pub tangent_norm: &'a BatchNormTangent,
    /// The plane of the next block's input.
    pub plane: Plane,
    /// y at the maxima of the windows, `[images, side, side]` with the side of `plane`.
    pub maxima: &'a [Pixel],
    /// ẏ at the maxima of y, in the same shape.
    pub tangent_maxima: &'a [Pixel],
    /// One plane per image.
    pub to: &'a mut [Pixel],
}

impl WithSimd for NormaliseRelu<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (side, zero) = (self.plane.side, simd.splat_f32s(0.0));
        for (index, (y, tangent)) in self.maxima.iter().zip(self.tangent_maxima).enumerate() {
            let (image, row) = (index / (side * side), index / side % side);
            let to = &mut self.to[image * self.plane.len() + self.plane.index_of(row, index % side)];
            for v in 0..vectors::<S>() {
                let (scale, shift) = (self.norm.scale.get::<S>(v), self.norm.shift.get::<S>(v));
                let y = y.get::<S>(v);
                let active = simd.greater_than_f32s(multiply_add(simd, scale, y, shift), zero);
                let (tangent_scale, tangent_shift) =
                    (self.tangent_norm.scale.get::<S>(v), self.tangent_norm.shift.get::<S>(v));
                let value = multiply_add(simd, tangent_scale, y, tangent_shift);
                let value = multiply_add(simd, scale, tangent.get::<S>(v), value);
                to.set::<S>(v, simd.select_f32s(active, value, zero));
            }
        }
    }
}

/// The tangent of the backward pass of the ReLU, for one image: sets the tangent of the gradient to 0 where the ReLU is
/// inactive, which turns it into ġ; returns the sums of ġ and of (g y)˙.
pub(super) struct ReluBackward<'a> {
    pub norm: &'a BatchNorm,
    /// The plane of the gradients.
    pub plane: Plane,
    /// y at the maxima of the windows, `[side, side]` with the side of `plane`.
    pub maxima: &'a [Pixel],
    /// ẏ at the maxima of y, in the same shape.
    pub tangent_maxima: &'a [Pixel],
    /// g, already 0 where the ReLU is inactive.
    pub gradient: &'a [Pixel],
    /// The tangent of the gradient of the ReLU's output, in the same plane; becomes ġ.
    pub tangent_gradient: &'a mut [Pixel],
}

impl WithSimd for ReluBackward<'_> {
    type Output = [Pixel; 2];

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> [Pixel; 2] {
        let (mut total, mut total_products) = (Pixel::ZERO, Pixel::ZERO);
        let (side, zero) = (self.plane.side, simd.splat_f32s(0.0));
        for v in 0..vectors::<S>() {
            let (scale, shift) = (self.norm.scale.get::<S>(v), self.norm.shift.get::<S>(v));
            let (mut sum, mut products) = (zero, zero);
            for (index, (y, tangent)) in self.maxima.iter().zip(self.tangent_maxima).enumerate() {
                let pixel = self.plane.index_of(index / side, index % side);
                let (y, tangent) = (y.get::<S>(v), tangent.get::<S>(v));
                let active = simd.greater_than_f32s(multiply_add(simd, scale, y, shift), zero);
                let tangent_g = simd.select_f32s(active, self.tangent_gradient[pixel].get::<S>(v), zero);
                self.tangent_gradient[pixel].set::<S>(v, tangent_g);
                sum = simd.add_f32s(sum, tangent_g);
                products = multiply_add(simd, tangent_g, y, products);
                products = multiply_add(simd, self.gradient[pixel].get::<S>(v), tangent, products);
            }
            total.set::<S>(v, sum);
            total_products.set::<S>(v, products);
        }
        [total, total_products]
    }
}

/// The tangent of the gradient of every output of a block of tiles, transformed to the Winograd points: the product
/// rule on `dy_factor g + y_factor y + constant`.
pub(super) struct OutputTransformBackward<'a> {
    pub block: TileBlock,
    pub norm_backward: &'a BatchNormBackward,
    pub tangent_norm_backward: &'a BatchNormBackward,
    /// y, `[images, side, side]`.
    pub outputs: &'a [Pixel],
    /// ẏ, `[images, side, side]`.
    pub tangent_outputs: &'a [Pixel],
    /// The plane of the pooled gradients.
    pub pooled: Plane,
    /// g, in that plane.
    pub d_pooled: &'a [Pixel],
    /// ġ, in the same plane.
    pub tangent_d_pooled: &'a [Pixel],
    pub points: &'a mut TilePoints,
}

impl WithSimd for OutputTransformBackward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let TileBlock { plane, first, count } = self.block;
        let (side, pooled) = (plane.side, self.pooled);
        for v in 0..vectors::<S>() {
            let y_factor = self.norm_backward.y_factor.get::<S>(v);
            let tangent_y_factor = self.tangent_norm_backward.y_factor.get::<S>(v);
            let tangent_constant = self.tangent_norm_backward.constant.get::<S>(v);
            let dy_factor = self.norm_backward.dy_factor.get::<S>(v);
            let tangent_dy_factor = self.tangent_norm_backward.dy_factor.get::<S>(v);
            for slot in 0..count {
                let tile = plane.tile(first + slot);
                let start = (tile.image * side + tile.row) * side + tile.column;
                // d is the tangent of the gradient of y: first the terms of all outputs, then (dy_factor g)˙ at the
                // maxima.
                let mut y = [[simd.splat_f32s(0.0); TILE]; TILE];
                let mut d = [[simd.splat_f32s(0.0); TILE]; TILE];
                for r in 0..TILE {
                    for c in 0..TILE {
                        if tile.row + r < side && tile.column + c < side {
                            let pixel = start + r * side + c;
                            y[r][c] = self.outputs[pixel].get::<S>(v);
                            let of_y = multiply_add(simd, tangent_y_factor, y[r][c], tangent_constant);
                            let tangent_y = self.tangent_outputs[pixel].get::<S>(v);
                            d[r][c] = multiply_add(simd, y_factor, tangent_y, of_y);
                        }
                    }
                }
                let (row, column) = (tile.row / 2, tile.column / 2);
                for r in 0..2 {
                    for c in 0..2 {
                        if row + r < pooled.side && column + c < pooled.side {
                            let pixel = tile.image * pooled.len() + pooled.index_of(row + r, column + c);
                            let of_g = simd.mul_f32s(self.d_pooled[pixel].get::<S>(v), tangent_dy_factor);
                            let tangent_g = self.tangent_d_pooled[pixel].get::<S>(v);
                            let mut at_maximum = multiply_add(simd, tangent_g, dy_factor, of_g);
                            let upper = isa::max(simd, y[2 * r][2 * c], y[2 * r][2 * c + 1]);
                            let lower = isa::max(simd, y[2 * r + 1][2 * c], y[2 * r + 1][2 * c + 1]);
                            let max = isa::max(simd, upper, lower);
                            // Of several equal maxima of the window, the first gets the gradient.
                            for k in 0..4 {
                                let (i, j) = (2 * r + k / 2, 2 * c + k % 2);
                                let here = simd.equal_f32s(y[i][j], max);
                                let sum = simd.add_f32s(d[i][j], at_maximum);
                                d[i][j] = simd.select_f32s(here, sum, d[i][j]);
                                at_maximum = simd.select_f32s(here, simd.splat_f32s(0.0), at_maximum);
                            }
                        }
                    }
                }
                tiles::output_transform_backward(simd, d, self.points, slot, v);
            }
        }
    }
}
