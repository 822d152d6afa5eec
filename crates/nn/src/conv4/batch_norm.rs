//! Batch norm in training, fused with the output transform, pooling and ReLU around it, for blocks 2 to 4.
//!
//! Forward, the kernels run in this order: [`OutputTransform`] computes the outputs y of the convolution, their sums,
//! and the maximum of each pooling window; [`BatchNorm::set`] computes the statistics; [`NormaliseRelu`] normalises the
//! maxima. Backward: [`ReluBackward`] sums what [`BatchNormBackward::new`] needs; [`OutputTransformBackward`] computes
//! the gradient of every output. `tangent::batch_norm` has the tangents of all of them.
//!
//! With batch statistics, normalising is `scale y + shift` per channel. The gradient of the loss with respect to y is
//! `dy_factor dy + y_factor y + constant` at each pixel, where dy is the gradient of the normalised maximum, before the
//! ReLU, and thus nonzero only at the maximum of a window. The terms in y and the constant are there because every
//! output changes the mean and the variance. The three coefficients per channel follow from sums over all pixels. In
//! names, `d_x` is the gradient of the loss with respect to x.

use pulp::{Simd, WithSimd};

use super::plane::{Pixel, Plane, TILE, vectors};
use super::tiles::{self, TileBlock, TilePoints};
use super::{BlockRanges, EPSILON, WIDTH};
use crate::isa::{self, multiply_add};

/// The batch norm of a block with the statistics of a batch. y is the output of the convolution without its bias, which
/// the norm would remove again, and times the sign of gamma (see [`super`]).
#[derive(Clone)]
pub(super) struct BatchNorm {
    /// The sign of gamma: 1 or -1.
    pub sign: Pixel,
    /// Mean of y.
    pub mean: [f64; WIDTH],
    /// Variance of y: the mean squared deviation over the `count` pixels.
    pub var: [f64; WIDTH],
    /// `1 / sqrt(var + epsilon)`
    pub inverse_std: [f64; WIDTH],
    /// `|gamma| inverse_std`
    pub scale: Pixel,
    /// `beta - scale mean`
    pub shift: Pixel,
    /// The number of pixels that the statistics are over.
    pub count: f64,
}

impl BatchNorm {
    pub const ZERO: BatchNorm = BatchNorm {
        sign: Pixel::ZERO,
        mean: [0.0; WIDTH],
        var: [0.0; WIDTH],
        inverse_std: [0.0; WIDTH],
        scale: Pixel::ZERO,
        shift: Pixel::ZERO,
        count: 0.0,
    };

    /// Sets the statistics from the sums of y and of y² over `count` pixels. `sign` is set before the convolution
    /// instead.
    pub fn set(&mut self, gamma: &[f32], beta: &[f32], sums: &[[f64; WIDTH]; 2], count: f64) {
        self.count = count;
        for c in 0..WIDTH {
            self.mean[c] = sums[0][c] / count;
            self.var[c] = (sums[1][c] / count - self.mean[c].powi(2)).max(0.0);
            self.inverse_std[c] = (self.var[c] + f64::from(EPSILON)).sqrt().recip();
            let scale = f64::from(gamma[c].abs()) * self.inverse_std[c];
            self.scale.0[c] = scale as f32;
            self.shift.0[c] = (f64::from(beta[c]) - scale * self.mean[c]) as f32;
        }
    }
}

/// The coefficients of the gradient of an output y of the convolution: `dy_factor dy + y_factor y + constant`.
///
/// With n pixels and the normalised output ŷ = (y - mean) / std, the gradient is
/// `scale (dy - sum of dy / n - ŷ (sum of dy ŷ) / n)`; the coefficients are this, sorted by dy and y.
#[derive(Clone)]
pub(super) struct BatchNormBackward {
    pub dy_factor: Pixel,
    pub y_factor: Pixel,
    pub constant: Pixel,
    /// The sum of dy over all pixels.
    pub sums: [f64; WIDTH],
    /// The sum over all pixels of dy times the normalised output.
    pub products: [f64; WIDTH],
}

impl BatchNormBackward {
    pub const ZERO: BatchNormBackward = BatchNormBackward {
        dy_factor: Pixel::ZERO,
        y_factor: Pixel::ZERO,
        constant: Pixel::ZERO,
        sums: [0.0; WIDTH],
        products: [0.0; WIDTH],
    };

    /// The coefficients, from the sums of dy (`sums`) and of dy times the normalised output (`products`). Adds the
    /// gradients of gamma and beta to `gradient`, which has the layout of the parameters.
    pub fn new(
        block: &BlockRanges,
        norm: &BatchNorm,
        sums: &[f64; WIDTH],
        products: &[f64; WIDTH],
        gradient: &mut [f32],
    ) -> Self {
        let mut backward = BatchNormBackward { sums: *sums, products: *products, ..BatchNormBackward::ZERO };
        for c in 0..WIDTH {
            gradient[block.gamma.start + c] += norm.sign.0[c] * products[c] as f32;
            gradient[block.beta.start + c] += sums[c] as f32;
            let scale = f64::from(norm.scale.0[c]);
            let y_factor = -scale * norm.inverse_std[c] * products[c] / norm.count;
            backward.dy_factor.0[c] = scale as f32;
            backward.y_factor.0[c] = y_factor as f32;
            backward.constant.0[c] = (-scale * sums[c] / norm.count - y_factor * norm.mean[c]) as f32;
        }
        backward
    }
}

/// The output transform of a block of tiles. Stores the outputs y and the maxima of the pooling windows; returns the
/// sums of y and of y² over the pixels of these tiles.
pub(super) struct OutputTransform<'a> {
    pub block: TileBlock,
    pub points: &'a TilePoints,
    /// `[images, side, side]`
    pub outputs: &'a mut [Pixel],
    /// `[images, side / 2, side / 2]`
    pub maxima: &'a mut [Pixel],
}

impl WithSimd for OutputTransform<'_> {
    type Output = [Pixel; 2];

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> [Pixel; 2] {
        let TileBlock { plane, first, count } = self.block;
        let (side, pooled) = (plane.side, plane.side / 2);
        let (mut total, mut total_squares) = (Pixel::ZERO, Pixel::ZERO);
        for v in 0..vectors::<S>() {
            let (mut sum, mut squares) = (simd.splat_f32s(0.0), simd.splat_f32s(0.0));
            for slot in 0..count {
                let tile = plane.tile(first + slot);
                let y = tiles::output_transform(simd, self.points, slot, v);
                let start = (tile.image * side + tile.row) * side + tile.column;
                for r in 0..TILE {
                    for c in 0..TILE {
                        // The last tile of a row or column may reach beyond the image.
                        if tile.row + r < side && tile.column + c < side {
                            self.outputs[start + r * side + c].set::<S>(v, y[r][c]);
                            sum = simd.add_f32s(sum, y[r][c]);
                            squares = multiply_add(simd, y[r][c], y[r][c], squares);
                        }
                    }
                }
                // The tile's 2 x 2 pooling windows; (row, column) is that of the first one.
                let (row, column) = (tile.row / 2, tile.column / 2);
                for r in 0..2 {
                    for c in 0..2 {
                        if row + r < pooled && column + c < pooled {
                            let upper = isa::max(simd, y[2 * r][2 * c], y[2 * r][2 * c + 1]);
                            let lower = isa::max(simd, y[2 * r + 1][2 * c], y[2 * r + 1][2 * c + 1]);
                            let index = (tile.image * pooled + row + r) * pooled + column + c;
                            self.maxima[index].set::<S>(v, isa::max(simd, upper, lower));
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

/// The backward pass of batch norm, pooling and output transform for a block of tiles: the gradient of every output,
/// transformed to the Winograd points (`points`, overwritten).
pub(super) struct OutputTransformBackward<'a> {
    pub block: TileBlock,
    pub norm_backward: &'a BatchNormBackward,
    /// `[images, side, side]`
    pub outputs: &'a [Pixel],
    pub pooled: Plane,
    /// dy, the gradient of the normalised maxima, 0 where the ReLU is inactive; in planes of `pooled`.
    pub d_pooled: &'a [Pixel],
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
            let constant = self.norm_backward.constant.get::<S>(v);
            let dy_factor = self.norm_backward.dy_factor.get::<S>(v);
            for slot in 0..count {
                let tile = plane.tile(first + slot);
                let start = (tile.image * side + tile.row) * side + tile.column;
                // d is the gradient of y: first the terms of all outputs, then `dy_factor dy` at the maxima.
                let mut y = [[simd.splat_f32s(0.0); TILE]; TILE];
                let mut d = [[simd.splat_f32s(0.0); TILE]; TILE];
                for r in 0..TILE {
                    for c in 0..TILE {
                        if tile.row + r < side && tile.column + c < side {
                            y[r][c] = self.outputs[start + r * side + c].get::<S>(v);
                            d[r][c] = multiply_add(simd, y_factor, y[r][c], constant);
                        }
                    }
                }
                let (row, column) = (tile.row / 2, tile.column / 2);
                for r in 0..2 {
                    for c in 0..2 {
                        if row + r < pooled.side && column + c < pooled.side {
                            let index = tile.image * pooled.len() + pooled.index_of(row + r, column + c);
                            let mut dy = simd.mul_f32s(self.d_pooled[index].get::<S>(v), dy_factor);
                            let upper = isa::max(simd, y[2 * r][2 * c], y[2 * r][2 * c + 1]);
                            let lower = isa::max(simd, y[2 * r + 1][2 * c], y[2 * r + 1][2 * c + 1]);
                            let max = isa::max(simd, upper, lower);
                            for k in 0..4 {
                                let (i, j) = (2 * r + k / 2, 2 * c + k % 2);
                                let here = simd.equal_f32s(y[i][j], max);
                                let sum = simd.add_f32s(d[i][j], dy);
                                d[i][j] = simd.select_f32s(here, sum, d[i][j]);
                                // Of several equal maxima the first gets the gradient.
                                dy = simd.select_f32s(here, simd.splat_f32s(0.0), dy);
                            }
                        }
                    }
                }
                tiles::output_transform_backward(simd, d, self.points, slot, v);
            }
        }
    }
}

/// Batch norm and ReLU of the maxima, into the planes of the next block's input.
pub(super) struct NormaliseRelu<'a> {
    pub norm: &'a BatchNorm,
    /// The plane of the next block's input.
    pub plane: Plane,
    /// `[images, side, side]`
    pub maxima: &'a [Pixel],
    /// The input of the next block, one plane per image.
    pub to: &'a mut [Pixel],
}

impl WithSimd for NormaliseRelu<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let side = self.plane.side;
        for (index, from) in self.maxima.iter().enumerate() {
            let (image, row) = (index / (side * side), index / side % side);
            let to = &mut self.to[image * self.plane.len() + self.plane.index_of(row, index % side)];
            for v in 0..vectors::<S>() {
                let (scale, shift) = (self.norm.scale.get::<S>(v), self.norm.shift.get::<S>(v));
                let value = multiply_add(simd, scale, from.get::<S>(v), shift);
                to.set::<S>(v, isa::max(simd, value, simd.splat_f32s(0.0)));
            }
        }
    }
}

/// The backward pass of the ReLU of [`NormaliseRelu`], for one image: sets the gradient to 0 where the ReLU is
/// inactive, which turns it into dy; returns the sums of dy and of dy y.
pub(super) struct ReluBackward<'a> {
    pub norm: &'a BatchNorm,
    /// The plane of the next block's input.
    pub plane: Plane,
    /// `[side, side]`
    pub maxima: &'a [Pixel],
    /// The gradient of the ReLU's output, in `plane`; becomes that of its input.
    pub gradient: &'a mut [Pixel],
}

impl WithSimd for ReluBackward<'_> {
    type Output = [Pixel; 2];

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> [Pixel; 2] {
        let (mut total, mut total_products) = (Pixel::ZERO, Pixel::ZERO);
        let side = self.plane.side;
        for v in 0..vectors::<S>() {
            let (scale, shift) = (self.norm.scale.get::<S>(v), self.norm.shift.get::<S>(v));
            let (mut sum, mut products) = (simd.splat_f32s(0.0), simd.splat_f32s(0.0));
            for (index, y) in self.maxima.iter().enumerate() {
                let gradient = &mut self.gradient[self.plane.index_of(index / side, index % side)];
                let y = y.get::<S>(v);
                let active =
                    simd.greater_than_f32s(multiply_add(simd, scale, y, shift), simd.splat_f32s(0.0));
                let d = simd.select_f32s(active, gradient.get::<S>(v), simd.splat_f32s(0.0));
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
