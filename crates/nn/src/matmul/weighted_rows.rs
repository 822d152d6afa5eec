//! A few weighted sums of many scattered rows. Start with [`add_weighted_rows`].
//!
//! This is a matrix product, `weightsᵀ rows`, but the rows need not be adjacent in memory, and the sums are few: they
//! are accumulated in registers, five sums at a time, while the rows stream by.
#![allow(clippy::needless_range_loop)]

use pulp::{Simd, WithSimd};

use crate::isa::{self, multiply_add};
use crate::kernel::kernel;
use crate::real::{Real, add_scaled_row};

kernel! {
    /// `to += factor from`
    pub(crate) fn add_scaled<'a, T>(from: &'a [T], factor: T, to: &'a mut [T]) {
        add_scaled_row(to, from, factor);
    }
}

/// Adds weighted sums of rows: `out[c] += sum over i of weights[i][c] rows[i]`. The gradient of prototypes is such a
/// sum of queries.
///
/// Shapes: R rows of D numbers, weights `[R, C]`, out `[C, D]`.
///
/// # Panics
/// If the shapes disagree.
pub fn add_weighted_rows<T: Real>(rows: &[&[T]], weights: &[T], out: &mut [T]) {
    let Some(dim) = rows.first().map(|row| row.len()) else { return };
    assert!(rows.iter().all(|row| row.len() == dim), "rows of different length");
    assert_eq!(weights.len() * dim, rows.len() * out.len(), "one weight per row and sum");
    T::add_weighted_rows(rows, weights, out);
}

/// The plain version of [`add_weighted_rows`]: the reference of its tests, and what `f64` runs with.
pub fn add_weighted_rows_reference<T: Real>(rows: &[&[T]], weights: &[T], out: &mut [T]) {
    let sum_count = weights.len() / rows.len();
    for (c, out) in out.chunks_exact_mut(rows[0].len().max(1)).enumerate() {
        for (i, row) in rows.iter().enumerate() {
            for (out, &value) in out.iter_mut().zip(*row) {
                *out += weights[i * sum_count + c] * value;
            }
        }
    }
}

/// [`add_weighted_rows`] in `f32`; the caller has checked the shapes, and there is at least one row.
pub(crate) fn add_weighted_rows_tuned(rows: &[&[f32]], weights: &[f32], out: &mut [f32]) {
    isa::run(WeightedRows { rows, weights, out });
}

/// The kernel of [`add_weighted_rows`].
struct WeightedRows<'a> {
    rows: &'a [&'a [f32]],
    weights: &'a [f32],
    out: &'a mut [f32],
}

/// Sums that are accumulated in registers together: 5 x [`VECTORS`] accumulators.
const GROUP: usize = 5;
/// Vectors of each sum that are accumulated together.
const VECTORS: usize = 4;

impl WithSimd for WeightedRows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let dim = self.rows[0].len();
        let width = VECTORS * S::F32_LANES;
        let sum_count = self.weights.len() / self.rows.len();
        for from in (0..dim).step_by(width) {
            for start in (0..sum_count).step_by(GROUP) {
                if from + width <= dim {
                    self.add_group::<S, VECTORS>(simd, start, from);
                } else {
                    // The last columns, one vector at a time.
                    for from in (from..dim).step_by(S::F32_LANES) {
                        self.add_group::<S, 1>(simd, start, from);
                    }
                }
            }
        }
    }
}

impl WeightedRows<'_> {
    /// Adds V vectors, from column `from` on, of the [`GROUP`] sums from `start` on.
    #[inline(always)]
    fn add_group<S: Simd, const V: usize>(&mut self, simd: S, start: usize, from: usize) {
        let dim = self.rows[0].len();
        let sum_count = self.weights.len() / self.rows.len();
        let end = (from + V * S::F32_LANES).min(dim);
        let mut totals = [[simd.splat_f32s(0.0); V]; GROUP];
        for (row, weights) in self.rows.iter().zip(self.weights.chunks_exact(sum_count)) {
            let mut vectors = [simd.splat_f32s(0.0); V];
            for v in 0..V {
                let column = from + v * S::F32_LANES;
                vectors[v] = load(simd, &row[column..end.min(column + S::F32_LANES)]);
            }
            for g in 0..GROUP {
                // A group at the edge repeats the last sum; the repetitions are not stored.
                let weight = simd.splat_f32s(weights[(start + g).min(sum_count - 1)]);
                for v in 0..V {
                    totals[g][v] = multiply_add(simd, weight, vectors[v], totals[g][v]);
                }
            }
        }
        for (g, totals) in totals.iter().enumerate().take(sum_count - start) {
            for v in 0..V {
                let column = from + v * S::F32_LANES;
                let row = (start + g) * dim;
                let out = &mut self.out[row + column..row + end.min(column + S::F32_LANES)];
                let sum = simd.add_f32s(load(simd, out), totals[v]);
                store(simd, out, sum);
            }
        }
    }
}

/// Loads at most one vector. A whole one is loaded without a mask: NEON has no masked loads, and `pulp` reads number by
/// number instead.
#[inline(always)]
fn load<S: Simd>(simd: S, from: &[f32]) -> S::f32s {
    match S::as_simd_f32s(from).0 {
        [vector] => *vector,
        _ => simd.partial_load_f32s(from),
    }
}

/// Stores the numbers of a vector that fit into `to`, see [`load`].
#[inline(always)]
fn store<S: Simd>(simd: S, to: &mut [f32], vector: S::f32s) {
    match S::as_mut_simd_f32s(to).0 {
        [to] => *to = vector,
        _ => simd.partial_store_f32s(to, vector),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::TestRng;
    use crate::isa::Isa;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn weighted_rows_of_any_shape_agree_with_the_plain_ones(
            rows in 0usize..12, dim in 1usize..150, sums in 1usize..13, seed: u64,
        ) {
            let mut rng = TestRng::new(seed);
            let owned: Vec<Vec<f32>> = (0..rows).map(|_| rng.f32s(dim)).collect();
            let owned: Vec<&[f32]> = owned.iter().map(Vec::as_slice).collect();
            let (weights, out) = (rng.f32s(rows * sums), rng.f32s(sums * dim));
            let mut expected = out.clone();
            if rows > 0 {
                add_weighted_rows_reference(&owned, &weights, &mut expected);
            }
            for isa in Isa::usable() {
                let mut result = out.clone();
                isa.scope(|| add_weighted_rows(&owned, &weights, &mut result));
                for (actual, expected) in result.iter().zip(&expected) {
                    prop_assert!((actual - expected).abs() < 1e-5, "{isa:?}: {actual} and {expected}");
                }
            }
        }
    }
}
