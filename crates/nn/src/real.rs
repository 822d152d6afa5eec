//! The numbers a layer is written in: `f32` to run with, `f64` to check its backward pass by differences.
//!
//! The elementary functions of `f32` are polynomials without branches, so that a plain loop over a slice turns
//! into vector instructions of whatever set the loop was compiled for (see `kernel.rs`). Sums go through
//! sixteen lanes for the same reason, which also makes them the same on every set.

use std::fmt::Debug;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Div, DivAssign, Mul, MulAssign, Neg, Sub, SubAssign};

use crate::isa::Isa;
use crate::matmul::{self, Start, View, ViewMut};
use crate::products;

/// Partial sums of a reduction.
pub const LANES: usize = 16;

/// `f32` or `f64`.
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

    /// The nearest number of this kind.
    fn of(value: f64) -> Self;

    /// The same number in double precision.
    fn wide(self) -> f64;

    /// The larger of two numbers; the second if either is not a number.
    #[inline(always)]
    fn larger(self, other: Self) -> Self {
        if self > other { self } else { other }
    }

    /// The absolute value.
    fn magnitude(self) -> Self;

    /// The square root.
    fn root(self) -> Self;

    /// e to this power. In `f32` arguments below -87.3 count as -87.3 (1e-38 instead of 0) and those above
    /// 88.3 as 88.3.
    fn exponential(self) -> Self;

    /// The natural logarithm.
    fn logarithm(self) -> Self;

    /// The error function.
    fn error_function(self) -> Self;

    /// The hyperbolic tangent.
    #[inline(always)]
    fn hyperbolic_tangent(self) -> Self {
        let small = (Self::of(-2.0) * self.magnitude()).exponential();
        let size = (Self::ONE - small) / (Self::ONE + small);
        if self < Self::ZERO { -size } else { size }
    }

    /// `1 / (1 + e^-x)`
    #[inline(always)]
    fn sigmoid(self) -> Self {
        let small = (-self.magnitude()).exponential();
        let share = Self::ONE / (Self::ONE + small);
        if self < Self::ZERO { small * share } else { share }
    }

    /// A product of matrices: see [`matmul::multiply`].
    fn multiply(
        isa: Isa,
        a: View<'_, Self>,
        b: View<'_, Self>,
        start: Start<'_, Self>,
        c: &mut ViewMut<'_, Self>,
    );

    /// `out[r][l] = left[l] . right[r]`: see [`products::products`].
    fn products(isa: Isa, left: &[&[Self]], right: &[&[Self]], out: &mut [Self]);

    /// `out[c] += sum over i of weights[i][c] rows[i]`: see [`matmul::add_weighted_rows`].
    fn add_weighted_rows(isa: Isa, rows: &[&[Self]], weights: &[Self], out: &mut [Self]);
}

impl Real for f32 {
    const ZERO: f32 = 0.0;
    const ONE: f32 = 1.0;

    #[inline(always)]
    fn of(value: f64) -> f32 {
        value as f32
    }

    #[inline(always)]
    fn wide(self) -> f64 {
        f64::from(self)
    }

    #[inline(always)]
    fn magnitude(self) -> f32 {
        self.abs()
    }

    #[inline(always)]
    fn root(self) -> f32 {
        self.sqrt()
    }

    #[inline(always)]
    fn exponential(self) -> f32 {
        // Adding this rounds to a whole number, which then stands in the lowest bits.
        const ROUND: f32 = 12_582_912.0;
        // Exact in few bits, so that its multiples are, too.
        const LN2_HIGH: f32 = 355.0 / 512.0;
        const LN2_LOW: f32 = -2.121_944_4e-4;
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
        let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
        (series * (r * r) + r + 1.0) * power
    }

    #[inline(always)]
    fn logarithm(self) -> f32 {
        self.ln()
    }

    /// Abramowitz and Stegun 7.1.26, off by less than 7e-7 in this precision.
    #[inline(always)]
    fn error_function(self) -> f32 {
        let size = self.abs();
        let t = 1.0 / (1.0 + 0.327_591_1 * size);
        let series = 1.061_405_4 * t - 1.453_152;
        let series = series * t + 1.421_413_7;
        let series = series * t - 0.284_496_74;
        let series = (series * t + 0.254_829_6) * t;
        let value = 1.0 - series * (-size * size).exponential();
        if self < 0.0 { -value } else { value }
    }

    fn multiply(
        isa: Isa,
        a: View<'_, f32>,
        b: View<'_, f32>,
        start: Start<'_, f32>,
        c: &mut ViewMut<'_, f32>,
    ) {
        matmul::multiply_tuned(isa, a, b, start, c);
    }

    fn products(isa: Isa, left: &[&[f32]], right: &[&[f32]], out: &mut [f32]) {
        products::products(isa, left, right, out);
    }

    fn add_weighted_rows(isa: Isa, rows: &[&[f32]], weights: &[f32], out: &mut [f32]) {
        matmul::add_weighted_rows_tuned(isa, rows, weights, out);
    }
}

impl Real for f64 {
    const ZERO: f64 = 0.0;
    const ONE: f64 = 1.0;

    #[inline(always)]
    fn of(value: f64) -> f64 {
        value
    }

    #[inline(always)]
    fn wide(self) -> f64 {
        self
    }

    #[inline(always)]
    fn magnitude(self) -> f64 {
        self.abs()
    }

    #[inline(always)]
    fn root(self) -> f64 {
        self.sqrt()
    }

    #[inline(always)]
    fn exponential(self) -> f64 {
        self.exp()
    }

    #[inline(always)]
    fn logarithm(self) -> f64 {
        self.ln()
    }

    #[inline(always)]
    fn error_function(self) -> f64 {
        libm::erf(self)
    }

    fn multiply(_: Isa, a: View<'_, f64>, b: View<'_, f64>, start: Start<'_, f64>, c: &mut ViewMut<'_, f64>) {
        matmul::multiply_reference(a, b, start, c);
    }

    fn products(_: Isa, left: &[&[f64]], right: &[&[f64]], out: &mut [f64]) {
        for (out, right) in out.chunks_exact_mut(left.len().max(1)).zip(right) {
            for (out, left) in out.iter_mut().zip(left) {
                *out = dot(left, right);
            }
        }
    }

    fn add_weighted_rows(_: Isa, rows: &[&[f64]], weights: &[f64], out: &mut [f64]) {
        matmul::add_weighted_rows_reference(rows, weights, out);
    }
}

/// The sum of some numbers, in sixteen lanes.
#[inline(always)]
pub fn sum<T: Real>(values: &[T]) -> T {
    let (whole, rest) = values.as_chunks::<LANES>();
    let mut sums = [T::ZERO; LANES];
    for values in whole {
        for lane in 0..LANES {
            sums[lane] += values[lane];
        }
    }
    for (sum, &value) in sums.iter_mut().zip(rest) {
        *sum += value;
    }
    join(sums)
}

/// `a . b`, in sixteen lanes. What is longer than the other is left out.
#[inline(always)]
pub fn dot<T: Real>(a: &[T], b: &[T]) -> T {
    let (a_whole, a_rest) = a.as_chunks::<LANES>();
    let (b_whole, b_rest) = b.as_chunks::<LANES>();
    let mut sums = [T::ZERO; LANES];
    for (a, b) in a_whole.iter().zip(b_whole) {
        for lane in 0..LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    for (sum, (&a, &b)) in sums.iter_mut().zip(a_rest.iter().zip(b_rest)) {
        *sum += a * b;
    }
    join(sums)
}

/// The largest of some numbers, and of `least`.
#[inline(always)]
pub fn maximum<T: Real>(values: &[T], least: T) -> T {
    let (whole, rest) = values.as_chunks::<LANES>();
    let mut largest = [least; LANES];
    for values in whole {
        for lane in 0..LANES {
            largest[lane] = values[lane].larger(largest[lane]);
        }
    }
    for (largest, &value) in largest.iter_mut().zip(rest) {
        *largest = value.larger(*largest);
    }
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            largest[lane] = largest[lane + half].larger(largest[lane]);
        }
        half /= 2;
    }
    largest[0]
}

/// The lanes of a sum added up, halving.
#[inline(always)]
pub fn join<T: Real>(mut sums: [T; LANES]) -> T {
    let mut half = LANES / 2;
    while half > 0 {
        for lane in 0..half {
            let other = sums[lane + half];
            sums[lane] += other;
        }
        half /= 2;
    }
    sums[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(from: f64, to: f64) -> impl Iterator<Item = f32> {
        (0..=20_000).map(move |i| (from + (to - from) * f64::from(i) / 20_000.0) as f32)
    }

    #[test]
    fn the_exponential_in_single_precision_is_right_to_its_last_digits() {
        for x in grid(-87.2, 88.2) {
            let expected = f64::from(x).exp();
            assert!((f64::from(x.exponential()) / expected - 1.0).abs() < 2e-7, "e^{x}");
        }
        assert!(f32::NAN.exponential().is_nan());
        assert!(f32::NEG_INFINITY.exponential() < 2e-38);
        assert!(f32::INFINITY.exponential() > 1e38);
    }

    #[test]
    fn the_functions_made_of_it_are_right_to_a_few_parts_in_ten_million() {
        for x in grid(-9.0, 9.0) {
            let wide = f64::from(x);
            assert!((f64::from(x.hyperbolic_tangent()) - wide.tanh()).abs() < 3e-7, "tanh {x}");
            assert!((f64::from(x.error_function()) - libm::erf(wide)).abs() < 7e-7, "erf {x}");
            assert!((f64::from(x.sigmoid()) - wide.sigmoid()).abs() < 2e-7, "sigmoid {x}");
            assert!((wide.hyperbolic_tangent() - wide.tanh()).abs() < 1e-15);
        }
    }

    #[test]
    fn reductions_take_slices_of_any_length() {
        for n in 0..50 {
            let a: Vec<f32> = (0..n).map(|i| (i * 7 % 11) as f32 - 4.0).collect();
            assert_eq!(sum(&a), a.iter().sum::<f32>());
            assert_eq!(dot(&a, &a), a.iter().map(|a| a * a).sum::<f32>());
            assert_eq!(maximum(&a, -9.0), a.iter().copied().fold(-9.0, f32::max));
        }
    }
}
