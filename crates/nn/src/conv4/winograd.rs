//! Winograd's F(4x4, 3x3) (Lavin and Gray, 2016): the transforms in one dimension, four outputs of a three-tap filter
//! from six products, forward and backward, and those of all filters of a block.
//!
//! A tile of 4x4 outputs depends on a patch d of 6x6 inputs. Patch and filter g (3x3) are transformed to 6x6 *points*,
//! multiplied point by point (written *), and transformed back: the outputs are `Aᵀ [(G g Gᵀ) * (Bᵀ d B)] A`. That is
//! 36 products per pair of input and output channel for 16 outputs, where a direct convolution has 144. The matrices
//! follow from the interpolation points 0, 1, -1, 2, -2 and infinity, one per row of Bᵀ and G:
//!
//! ```text
//! Bᵀ =  4   0  -5   0   1   0      G =  1/4    0     0       Aᵀ =  1   1   1   1   1   0
//!       0  -4  -4   1   1   0          -1/6  -1/6  -1/6            0   1  -1   2  -2   0
//!       0   4  -4  -1   1   0          -1/6   1/6  -1/6            0   1   1   4   4   0
//!       0  -2  -1   2   1   0          1/24  1/12   1/6            0   1  -1   8  -8   1
//!       0   2  -1  -2   1   0          1/24 -1/12   1/6
//!       0   4   0  -5   0   1            0     0     1
//! ```
//!
//! The backward pass uses the transposed matrices: from the gradient dy of the outputs, that of the products is
//! `A dy Aᵀ`; from the gradient v of the transformed patch, that of the patch is `B v Bᵀ`; from the gradient u of the
//! transformed filter, that of the filter is `Gᵀ u G`. In f32 the error stays below 1e-5 of the largest value.
//!
//! In the code, a product that appears in several rows of a matrix is computed once: the rows of the points 1 and -1
//! have the same coefficients, up to the signs of every other one, and so do those of 2 and -2. Names that end in 1
//! belong to the points 1 and -1, those that end in 2 to 2 and -2. The transform of a patch or filter is done row by
//! row and then column by column; `half` is the result of the first of the two.
//!
//! `tiles` applies the transforms of patches and outputs to whole blocks of tiles.

use pulp::{Simd, WithSimd};

use super::plane::{PATCH, POINTS, Pixel, TILE, vectors};
use super::{TAPS, WIDTH};
use crate::isa::multiply_add;

/// Bᵀ d: six inputs to six points.
#[inline(always)]
pub(super) fn input<S: Simd>(simd: S, d: [S::f32s; PATCH]) -> [S::f32s; PATCH] {
    let (two, four, five) = (simd.splat_f32s(2.0), simd.splat_f32s(4.0), simd.splat_f32s(5.0));
    let even1 = simd.sub_f32s(d[4], simd.mul_f32s(four, d[2]));
    let odd1 = simd.sub_f32s(d[3], simd.mul_f32s(four, d[1]));
    let even2 = simd.sub_f32s(d[4], d[2]);
    let odd2 = simd.mul_f32s(two, simd.sub_f32s(d[3], d[1]));
    let first = multiply_add(simd, four, d[0], simd.sub_f32s(d[4], simd.mul_f32s(five, d[2])));
    let last = multiply_add(simd, four, d[1], simd.sub_f32s(d[5], simd.mul_f32s(five, d[3])));
    [
        first,
        simd.add_f32s(even1, odd1),
        simd.sub_f32s(even1, odd1),
        simd.add_f32s(even2, odd2),
        simd.sub_f32s(even2, odd2),
        last,
    ]
}

/// B v: the gradient of six inputs from that of six points.
#[inline(always)]
pub(super) fn input_backward<S: Simd>(simd: S, v: [S::f32s; PATCH]) -> [S::f32s; PATCH] {
    let (two, four, five) = (simd.splat_f32s(2.0), simd.splat_f32s(4.0), simd.splat_f32s(5.0));
    let (sum1, difference1) = (simd.add_f32s(v[1], v[2]), simd.sub_f32s(v[1], v[2]));
    let (sum2, difference2) = (simd.add_f32s(v[3], v[4]), simd.sub_f32s(v[3], v[4]));
    let double2 = simd.mul_f32s(two, difference2);
    let edge = simd.sub_f32s(v[5], difference1);
    [
        simd.mul_f32s(four, v[0]),
        simd.sub_f32s(simd.mul_f32s(four, edge), double2),
        simd.neg_f32s(multiply_add(simd, five, v[0], multiply_add(simd, four, sum1, sum2))),
        simd.sub_f32s(simd.add_f32s(difference1, double2), simd.mul_f32s(five, v[5])),
        simd.add_f32s(v[0], simd.add_f32s(sum1, sum2)),
        v[5],
    ]
}

/// Aᵀ m: six points to four outputs.
#[inline(always)]
pub(super) fn output<S: Simd>(simd: S, m: [S::f32s; PATCH]) -> [S::f32s; TILE] {
    let (two, four, eight) = (simd.splat_f32s(2.0), simd.splat_f32s(4.0), simd.splat_f32s(8.0));
    let (sum1, difference1) = (simd.add_f32s(m[1], m[2]), simd.sub_f32s(m[1], m[2]));
    let (sum2, difference2) = (simd.add_f32s(m[3], m[4]), simd.sub_f32s(m[3], m[4]));
    [
        simd.add_f32s(m[0], simd.add_f32s(sum1, sum2)),
        multiply_add(simd, two, difference2, difference1),
        multiply_add(simd, four, sum2, sum1),
        simd.add_f32s(m[5], multiply_add(simd, eight, difference2, difference1)),
    ]
}

/// A y: the gradient of six points from that of four outputs.
#[inline(always)]
pub(super) fn output_backward<S: Simd>(simd: S, y: [S::f32s; TILE]) -> [S::f32s; PATCH] {
    let (two, four) = (simd.splat_f32s(2.0), simd.splat_f32s(4.0));
    let (even1, odd1) = (simd.add_f32s(y[0], y[2]), simd.add_f32s(y[1], y[3]));
    let even2 = multiply_add(simd, four, y[2], y[0]);
    let odd2 = simd.mul_f32s(two, multiply_add(simd, four, y[3], y[1]));
    [
        y[0],
        simd.add_f32s(even1, odd1),
        simd.sub_f32s(even1, odd1),
        simd.add_f32s(even2, odd2),
        simd.sub_f32s(even2, odd2),
        y[3],
    ]
}

/// G g: three taps to six points.
#[inline(always)]
fn filter<S: Simd>(simd: S, g: [S::f32s; 3]) -> [S::f32s; PATCH] {
    let reciprocal = |simd: S, number: f32| simd.splat_f32s(number.recip());
    let outer1 = simd.mul_f32s(reciprocal(simd, -6.0), simd.add_f32s(g[0], g[2]));
    let inner1 = simd.mul_f32s(reciprocal(simd, -6.0), g[1]);
    let outer2 = multiply_add(simd, reciprocal(simd, 24.0), g[0], simd.mul_f32s(reciprocal(simd, 6.0), g[2]));
    let inner2 = simd.mul_f32s(reciprocal(simd, 12.0), g[1]);
    [
        simd.mul_f32s(reciprocal(simd, 4.0), g[0]),
        simd.add_f32s(outer1, inner1),
        simd.sub_f32s(outer1, inner1),
        simd.add_f32s(outer2, inner2),
        simd.sub_f32s(outer2, inner2),
        g[2],
    ]
}

/// Gᵀ u: the gradient of three taps from that of six points.
#[inline(always)]
fn filter_backward<S: Simd>(simd: S, u: [S::f32s; PATCH]) -> [S::f32s; 3] {
    let reciprocal = |simd: S, number: f32| simd.splat_f32s(number.recip());
    let sum1 = simd.mul_f32s(reciprocal(simd, 6.0), simd.add_f32s(u[1], u[2]));
    let difference1 = simd.mul_f32s(reciprocal(simd, 6.0), simd.sub_f32s(u[2], u[1]));
    let sum2 = simd.add_f32s(u[3], u[4]);
    let first = multiply_add(simd, reciprocal(simd, 4.0), u[0], simd.mul_f32s(reciprocal(simd, 24.0), sum2));
    [
        simd.sub_f32s(first, sum1),
        multiply_add(simd, reciprocal(simd, 12.0), simd.sub_f32s(u[3], u[4]), difference1),
        simd.sub_f32s(multiply_add(simd, reciprocal(simd, 6.0), sum2, u[5]), sum1),
    ]
}

/// The filters of a block at the Winograd points, `[36, 64, 64]`; the order of the channels is in [`super::filters`].
pub(super) type Filters = Vec<[Pixel; WIDTH]>;

/// Filters that are all zero.
pub(super) fn zero_filters() -> Filters {
    vec![[Pixel::ZERO; WIDTH]; POINTS]
}

/// The filters of a block by tap, `[9, 64, 64]`.
pub(super) type Taps = Vec<[Pixel; WIDTH]>;

/// The filter transform G g Gᵀ of all pairs of channels.
pub(super) struct FilterTransform<'a> {
    pub taps: &'a Taps,
    pub points: &'a mut Filters,
}

impl WithSimd for FilterTransform<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let taps: &[[Pixel; WIDTH]; TAPS] = self.taps.first_chunk().expect("there are nine taps");
        let points: &mut [[Pixel; WIDTH]; POINTS] =
            self.points.first_chunk_mut().expect("there are 36 points");
        for row in 0..WIDTH {
            for v in 0..vectors::<S>() {
                // `g Gᵀ`: the rows of the filter, then `G (g Gᵀ)`: its columns.
                let mut half = [[simd.splat_f32s(0.0); PATCH]; 3];
                for r in 0..3 {
                    let line = [
                        taps[3 * r][row].get::<S>(v),
                        taps[3 * r + 1][row].get::<S>(v),
                        taps[3 * r + 2][row].get::<S>(v),
                    ];
                    half[r] = filter(simd, line);
                }
                for c in 0..PATCH {
                    let out = filter(simd, [half[0][c], half[1][c], half[2][c]]);
                    for r in 0..PATCH {
                        points[r * PATCH + c][row].set::<S>(v, out[r]);
                    }
                }
            }
        }
    }
}

/// The backward pass of the filter transform, Gᵀ u G: the gradient of the taps from that of the points.
pub(super) struct FilterTransformBackward<'a> {
    pub points: &'a Filters,
    pub taps: &'a mut Taps,
}

impl WithSimd for FilterTransformBackward<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let points: &[[Pixel; WIDTH]; POINTS] = self.points.first_chunk().expect("there are 36 points");
        let taps: &mut [[Pixel; WIDTH]; TAPS] = self.taps.first_chunk_mut().expect("there are nine taps");
        for row in 0..WIDTH {
            for v in 0..vectors::<S>() {
                // `u G`, row by row, then `Gᵀ (u G)`, column by column.
                let mut half = [[simd.splat_f32s(0.0); 3]; PATCH];
                for r in 0..PATCH {
                    let mut line = [simd.splat_f32s(0.0); PATCH];
                    for c in 0..PATCH {
                        line[c] = points[r * PATCH + c][row].get::<S>(v);
                    }
                    half[r] = filter_backward(simd, line);
                }
                for c in 0..3 {
                    let line = [half[0][c], half[1][c], half[2][c], half[3][c], half[4][c], half[5][c]];
                    let out = filter_backward(simd, line);
                    for r in 0..3 {
                        taps[3 * r + c][row].set::<S>(v, out[r]);
                    }
                }
            }
        }
    }
}
