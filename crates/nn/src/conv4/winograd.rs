//! Winograd's F(4x4, 3x3): four outputs of a three-tap filter from six products, in both directions.
//!
//! With the matrices B, G and A of the points 0, 1, -1, 2, -2 and infinity, outputs are
//! `Aᵀ [(G g Gᵀ) * (Bᵀ d B)] A`: per pair of channels 36 products for 16 outputs, where a direct convolution
//! has 144. The backward pass uses the same matrices the other way round: the gradient of the products is
//! `A dy Aᵀ`, that of the input `B · Bᵀ`, that of the filter `Gᵀ · G`. In f32 the error stays below 1e-5 of the
//! largest value.

use pulp::Simd;

use super::plane::{PATCH, POINTS, Pixel, TILE};
use super::{TAPS, WIDTH};

/// Bᵀ d: six inputs to six points.
#[inline(always)]
pub(super) fn input<S: Simd>(simd: S, d: [S::f32s; PATCH]) -> [S::f32s; PATCH] {
    let (two, four, five) = (simd.splat_f32s(2.0), simd.splat_f32s(4.0), simd.splat_f32s(5.0));
    let even = simd.sub_f32s(d[4], simd.mul_f32s(four, d[2]));
    let odd = simd.sub_f32s(d[3], simd.mul_f32s(four, d[1]));
    let even2 = simd.sub_f32s(d[4], d[2]);
    let odd2 = simd.mul_f32s(two, simd.sub_f32s(d[3], d[1]));
    let first = simd.mul_add_e_f32s(four, d[0], simd.sub_f32s(d[4], simd.mul_f32s(five, d[2])));
    let last = simd.mul_add_e_f32s(four, d[1], simd.sub_f32s(d[5], simd.mul_f32s(five, d[3])));
    [
        first,
        simd.add_f32s(even, odd),
        simd.sub_f32s(even, odd),
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
        simd.neg_f32s(simd.mul_add_e_f32s(five, v[0], simd.mul_add_e_f32s(four, sum1, sum2))),
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
        simd.mul_add_e_f32s(two, difference2, difference1),
        simd.mul_add_e_f32s(four, sum2, sum1),
        simd.add_f32s(m[5], simd.mul_add_e_f32s(eight, difference2, difference1)),
    ]
}

/// A y: the gradient of six points from that of four outputs.
#[inline(always)]
pub(super) fn output_backward<S: Simd>(simd: S, y: [S::f32s; TILE]) -> [S::f32s; PATCH] {
    let (two, four) = (simd.splat_f32s(2.0), simd.splat_f32s(4.0));
    let (even, odd) = (simd.add_f32s(y[0], y[2]), simd.add_f32s(y[1], y[3]));
    let even2 = simd.mul_add_e_f32s(four, y[2], y[0]);
    let odd2 = simd.mul_f32s(two, simd.mul_add_e_f32s(four, y[3], y[1]));
    [
        y[0],
        simd.add_f32s(even, odd),
        simd.sub_f32s(even, odd),
        simd.add_f32s(even2, odd2),
        simd.sub_f32s(even2, odd2),
        y[3],
    ]
}

/// G g: three taps to six points.
const G: [[f32; 3]; PATCH] = [
    [0.25, 0.0, 0.0],
    [-1.0 / 6.0, -1.0 / 6.0, -1.0 / 6.0],
    [-1.0 / 6.0, 1.0 / 6.0, -1.0 / 6.0],
    [1.0 / 24.0, 1.0 / 12.0, 1.0 / 6.0],
    [1.0 / 24.0, -1.0 / 12.0, 1.0 / 6.0],
    [0.0, 0.0, 1.0],
];

/// The 36 matrices of a block's filters, each [from channel][to channel].
pub(super) type Filters = Vec<[Pixel; WIDTH]>;

/// No filters.
pub(super) fn no_filters() -> Filters {
    vec![[Pixel::ZERO; WIDTH]; POINTS]
}

/// Coefficient of a tap in a point.
fn weight(point: usize, tap: usize) -> f32 {
    G[point / PATCH][tap / 3] * G[point % PATCH][tap % 3]
}

/// G g Gᵀ of all pairs of channels. `taps` is [tap][from][to].
pub(super) fn filters(taps: &[[Pixel; WIDTH]], out: &mut Filters) {
    assert_eq!(taps.len(), TAPS);
    for (point, matrix) in out.iter_mut().enumerate() {
        for (from, row) in matrix.iter_mut().enumerate() {
            *row = Pixel::ZERO;
            for (tap, matrix) in taps.iter().enumerate() {
                let weight = weight(point, tap);
                if weight != 0.0 {
                    row.0.iter_mut().zip(&matrix[from].0).for_each(|(sum, value)| *sum += weight * value);
                }
            }
        }
    }
}

/// Gᵀ u G: the gradient of the taps from that of the points, added up.
pub(super) fn filters_backward(points: &Filters, out: &mut [[Pixel; WIDTH]]) {
    assert_eq!(out.len(), TAPS);
    for (tap, matrix) in out.iter_mut().enumerate() {
        for (point, from) in points.iter().enumerate() {
            let weight = weight(point, tap);
            if weight != 0.0 {
                for (row, from) in matrix.iter_mut().zip(from) {
                    row.0.iter_mut().zip(&from.0).for_each(|(sum, value)| *sum += weight * value);
                }
            }
        }
    }
}

/// Every matrix transposed.
pub(super) fn transposed(filters: &Filters, out: &mut Filters) {
    for (from, to) in filters.iter().zip(out) {
        for (row, pixel) in from.iter().enumerate() {
            for (column, value) in pixel.0.iter().enumerate() {
                to[column].0[row] = *value;
            }
        }
    }
}
