//! The floating-point type a layer is generic over: `f32` to run with, `f64` to check gradients with.
//!
//! [`Real`] holds the elementary functions and the products of matrices and rows. In `f32` they are branch-free
//! polynomials, so that a plain loop over a slice turns into vector instructions of the instruction set the loop is
//! compiled for (see `kernel`). Reductions ([`sum`], [`dot`], [`max_of`]) keep [`LANES`] partial results for the same
//! reason, which also makes them equal to the bit on every instruction set.

use std::fmt::Debug;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Neg, Sub, SubAssign};

use crate::matmul::{self, InitialSum, Matrix, MatrixMut};
use crate::products;

/// Partial results of a reduction: the lanes of the widest vector of `f32`.
pub const LANES: usize = 16;

/// A floating-point number: `f32` or `f64`.
///
/// The inherent methods of `f32` and `f64` win over those of this trait: `x.exp()` on an `f32` is the standard
/// library's. Write `Real::exp(x)` where the type is known and this trait's function is meant.
pub trait Real:
    Copy
    + Debug
    + Default
    + PartialOrd
    + Send
    + Sync
    + 'static
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + Neg<Output = Self>
    + AddAssign
    + SubAssign
    + MulAssign
    + DivAssign
    + Sum
{
    /// 0
    const ZERO: Self;
    /// 1
    const ONE: Self;

    /// The nearest number of this type.
    fn from_f64(value: f64) -> Self;

    /// The same number in double precision.
    fn to_f64(self) -> f64;

    /// The larger of two numbers; `other` if either is NaN.
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        if self > other { self } else { other }
    }

    /// The absolute value.
    fn abs(self) -> Self;

    /// The square root.
    fn sqrt(self) -> Self;

    /// `e^x`. In `f32`, `x` is clamped to [-87.3, 88.3], so the result is never 0 and never infinite.
    fn exp(self) -> Self;

    /// The natural logarithm.
    fn ln(self) -> Self;

    /// The error function.
    fn erf(self) -> Self;

    /// The hyperbolic tangent, from `e^(-2 |x|)`, which cannot overflow.
    #[inline(always)]
    fn tanh(self) -> Self {
        let exp = Self::exp(Self::from_f64(-2.0) * Self::abs(self));
        let tanh_of_abs = (Self::ONE - exp) / (Self::ONE + exp);
        if self < Self::ZERO { -tanh_of_abs } else { tanh_of_abs }
    }

    /// `1 / (1 + e^-x)`, from `e^-|x|`, which cannot overflow.
    #[inline(always)]
    fn sigmoid(self) -> Self {
        let exp = Self::exp(-Self::abs(self));
        let sigmoid_of_abs = Self::ONE / (Self::ONE + exp);
        if self < Self::ZERO { exp * sigmoid_of_abs } else { sigmoid_of_abs }
    }

    /// Matrix product, see [`matmul::multiply`].
    fn multiply(
        a: Matrix<'_, Self>,
        b: Matrix<'_, Self>,
        start: InitialSum<'_, Self>,
        c: &mut MatrixMut<'_, Self>,
    );

    /// Inner products of rows, see [`products::products`].
    fn products(left: &[&[Self]], right: &[&[Self]], out: &mut [Self]);

    /// Weighted sums of rows, see [`matmul::add_weighted_rows`].
    fn add_weighted_rows(rows: &[&[Self]], weights: &[Self], out: &mut [Self]);
}

impl Real for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;

    #[inline(always)]
    fn from_f64(value: f64) -> f32 {
        value as f32
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        f64::from(self)
    }

    #[inline(always)]
    fn abs(self) -> f32 {
        f32::abs(self)
    }

    #[inline(always)]
    fn sqrt(self) -> f32 {
        f32::sqrt(self)
    }

    /// `e^x = 2^n e^r` with n the integer nearest to `x / ln 2`: a polynomial of degree 7 in r, which is in [-ln 2 / 2,
    /// ln 2 / 2], with the coefficients of `expf` in the Cephes library. Off by less than 2e-7 of the value.
    #[inline(always)]
    fn exp(self) -> f32 {
        // Adding 1.5 * 2^23 rounds to an integer, which is then in the lowest bits of the mantissa.
        const ROUND: f32 = 12_582_912.0;
        // ln 2 in two parts. The first has few bits, so its multiples are exact.
        const LN2_HIGH: f32 = 355.0 / 512.0;
        const LN2_LOW: f32 = -2.121_944_4e-4;
        // These bounds keep 2^n a normal number.
        let x = if self < -87.3 { -87.3 } else { self };
        let x = if x > 88.3 { 88.3 } else { x };
        let shifted = x * std::f32::consts::LOG2_E + ROUND;
        let whole = shifted - ROUND;
        let r = x - whole * LN2_HIGH - whole * LN2_LOW;
        let series = 1.987_569_1e-4 * r + 1.398_2e-3;
        let series = series * r + 8.333_452e-3;
        let series = series * r + 4.166_579_6e-2;
        let series = series * r + 1.666_666_5e-1;
        let series = series * r + 0.5;
        // 2^n: the integer plus the bias of 127, shifted into the exponent. n may be negative, so the addition wraps.
        let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
        (series * (r * r) + r + 1.0) * power
    }

    #[inline(always)]
    fn ln(self) -> f32 {
        f32::ln(self)
    }

    /// Formula 7.1.26 of Abramowitz and Stegun, Handbook of Mathematical Functions. Off by less than 7e-7.
    #[inline(always)]
    fn erf(self) -> f32 {
        let abs = self.abs();
        let t = 1.0 / (1.0 + 0.327_591_1 * abs);
        let series = 1.061_405_4 * t - 1.453_152;
        let series = series * t + 1.421_413_7;
        let series = series * t - 0.284_496_74;
        let series = (series * t + 0.254_829_6) * t;
        let erf_of_abs = 1.0 - series * Real::exp(-abs * abs);
        if self < 0.0 { -erf_of_abs } else { erf_of_abs }
    }

    fn multiply(
        a: Matrix<'_, f32>,
        b: Matrix<'_, f32>,
        start: InitialSum<'_, f32>,
        c: &mut MatrixMut<'_, f32>,
    ) {
        matmul::multiply_tuned(a, b, start, c);
    }

    fn products(left: &[&[f32]], right: &[&[f32]], out: &mut [f32]) {
        products::products(left, right, out);
    }

    fn add_weighted_rows(rows: &[&[f32]], weights: &[f32], out: &mut [f32]) {
        matmul::add_weighted_rows_tuned(rows, weights, out);
    }
}

impl Real for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;

    #[inline(always)]
    fn from_f64(value: f64) -> f64 {
        value
    }

    #[inline(always)]
    fn to_f64(self) -> f64 {
        self
    }

    #[inline(always)]
    fn abs(self) -> f64 {
        f64::abs(self)
    }

    #[inline(always)]
    fn sqrt(self) -> f64 {
        f64::sqrt(self)
    }

    #[inline(always)]
    fn exp(self) -> f64 {
        f64::exp(self)
    }

    #[inline(always)]
    fn ln(self) -> f64 {
        f64::ln(self)
    }

    #[inline(always)]
    fn erf(self) -> f64 {
        libm::erf(self)
    }

    fn multiply(
        a: Matrix<'_, f64>,
        b: Matrix<'_, f64>,
        start: InitialSum<'_, f64>,
        c: &mut MatrixMut<'_, f64>,
    ) {
        matmul::multiply_reference(a, b, start, c);
    }

    fn products(left: &[&[f64]], right: &[&[f64]], out: &mut [f64]) {
        for (out, right) in out.chunks_exact_mut(left.len().max(1)).zip(right) {
            for (out, left) in out.iter_mut().zip(left) {
                *out = dot(left, right);
            }
        }
    }

    fn add_weighted_rows(rows: &[&[f64]], weights: &[f64], out: &mut [f64]) {
        matmul::add_weighted_rows_reference(rows, weights, out);
    }
}

/// The sum of `values`, in [`LANES`] partial sums.
#[inline(always)]
pub fn sum<T: Real>(values: &[T]) -> T {
    let (chunks, tail) = values.as_chunks::<LANES>();
    let mut sums = [T::ZERO; LANES];
    for values in chunks {
        for lane in 0..LANES {
            sums[lane] += values[lane];
        }
    }
    for (sum, &value) in sums.iter_mut().zip(tail) {
        *sum += value;
    }
    sum_lanes(sums)
}

/// The inner product `a . b`, in [`LANES`] partial sums, over the length of the shorter slice.
#[inline(always)]
pub fn dot<T: Real>(a: &[T], b: &[T]) -> T {
    let (a_chunks, a_tail) = a.as_chunks::<LANES>();
    let (b_chunks, b_tail) = b.as_chunks::<LANES>();
    let mut sums = [T::ZERO; LANES];
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    for (sum, (&a, &b)) in sums.iter_mut().zip(a_tail.iter().zip(b_tail)) {
        *sum += a * b;
    }
    sum_lanes(sums)
}

/// The largest of `values`, or `least` if that is larger than all values. Like [`sum`], it keeps [`LANES`] partial
/// results.
#[inline(always)]
pub fn max_of<T: Real>(values: &[T], least: T) -> T {
    let (chunks, tail) = values.as_chunks::<LANES>();
    let mut largest = [least; LANES];
    for values in chunks {
        for lane in 0..LANES {
            largest[lane] = values[lane].max(largest[lane]);
        }
    }
    for (largest, &value) in largest.iter_mut().zip(tail) {
        *largest = value.max(*largest);
    }
    // The second half of the lanes is merged into the first until one number is left, as in `sum_lanes`.
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            largest[lane] = largest[lane + half].max(largest[lane]);
        }
        half /= 2;
    }
    largest[0]
}

/// `to += factor from`
#[inline(always)]
pub(crate) fn add_scaled_row<T: Real>(to: &mut [T], from: &[T], factor: T) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to += factor * from;
    }
}

/// The sum of a reduction's partial sums: the second half is added to the first until one number is left.
#[inline(always)]
pub fn sum_lanes<T: Real>(mut sums: [T; LANES]) -> T {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            let from_second_half = sums[lane + half];
            sums[lane] += from_second_half;
        }
        half /= 2;
    }
    sums[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 20,001 numbers at equal distances.
    fn grid(from: f64, to: f64) -> impl Iterator<Item = f32> {
        (0..=20_000).map(move |i| (from + (to - from) * f64::from(i) / 20_000.0) as f32)
    }

    #[test]
    fn exp_in_single_precision_is_accurate_to_two_parts_in_ten_million() {
        for x in grid(-87.2, 88.2) {
            let expected = f64::from(x).exp();
            assert!((f64::from(Real::exp(x)) / expected - 1.0).abs() < 2e-7, "e^{x}");
        }
        assert!(Real::exp(f32::NAN).is_nan());
        assert!(Real::exp(f32::NEG_INFINITY) < 2e-38);
        assert!(Real::exp(f32::INFINITY) > 1e38);
    }

    #[test]
    fn tanh_erf_and_sigmoid_are_accurate_to_a_few_parts_in_ten_million() {
        for x in grid(-9.0, 9.0) {
            let wide = f64::from(x);
            assert!((f64::from(Real::tanh(x)) - wide.tanh()).abs() < 3e-7, "tanh {x}");
            assert!((f64::from(Real::erf(x)) - libm::erf(wide)).abs() < 7e-7, "erf {x}");
            assert!((f64::from(x.sigmoid()) - wide.sigmoid()).abs() < 2e-7, "sigmoid {x}");
            assert!((Real::tanh(wide) - wide.tanh()).abs() < 1e-15);
        }
    }

    #[test]
    fn reductions_take_slices_of_any_length() {
        // Sums of small integers are exact in any order.
        for n in 0..50 {
            let a: Vec<f32> = (0..n).map(|i| (i * 7 % 11) as f32 - 4.0).collect();
            assert_eq!(sum(&a), a.iter().sum::<f32>());
            assert_eq!(dot(&a, &a), a.iter().map(|a| a * a).sum::<f32>());
            assert_eq!(max_of(&a, -9.0), a.iter().copied().fold(-9.0, f32::max));
        }
    }
}
