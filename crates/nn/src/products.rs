//! Inner products, weighted sums and distances of rows of `f32`: the expensive part of most methods that classify
//! embeddings.
//!
//! Start with [`products`], the inner products of two lists of rows; [`gram`] is its case of one list,
//! [`weighted_sum`], [`squared_norm`] and [`l1_distance`] are simpler loops, and [`short_dot`] is for very short rows.
//! A row is a vector, usually an embedding of a few hundred numbers. Rows are separate slices, because those of an
//! episode are scattered over a large array and copying them together would cost as much as the arithmetic.
//!
//! [`products`] works in tiles: with 32 registers, the 5 x 5 products of 5 left and 5 right rows are accumulated in 25
//! of them. The 5 left rows are loaded once and stay in the first-level cache, while the right rows (few, in the
//! second-level cache) stream by. Every product is summed in the same order in any tile, so it depends on its two rows
//! alone.

use std::ops::Range;

use pulp::{Simd, WithSimd};

use crate::isa::{self, multiply_add};
use crate::memory::prefetch_line;

/// Inner products of all pairs of rows: `out[r][l] = left[l] . right[r]`, `out` is `[right.len(), left.len()]`.
///
/// Left rows are read once, right rows once per five left rows.
///
/// # Panics
/// If `out` has another length or the rows differ in length.
pub fn products(left: &[&[f32]], right: &[&[f32]], out: &mut [f32]) {
    assert_eq!(out.len(), left.len() * right.len());
    let dim = left.iter().chain(right).map(|row| row.len()).next().unwrap_or(0);
    assert!(left.iter().chain(right).all(|row| row.len() == dim), "rows of different length");
    isa::run(Products { left, right, out, dim });
}

/// Gram matrix of rows: `out[i][j] = rows[i] . rows[j]`, symmetric to the bit.
///
/// # Panics
/// If `out` does not have `rows.len()²` elements or the rows differ in length.
pub fn gram(rows: &[&[f32]], out: &mut [f32]) {
    /// Left rows per block: those of one tile of [`products`].
    const BLOCK: usize = 5;
    let n = rows.len();
    assert_eq!(out.len(), n * n);
    let mut block = vec![0.0; BLOCK * n];
    for start in (0..n).step_by(BLOCK) {
        let left = &rows[start..(start + BLOCK).min(n)];
        // `[n - start, left.len()]`: products with earlier rows are known from earlier blocks.
        let block = &mut block[..left.len() * (n - start)];
        products(left, &rows[start..], block);
        for (j, products) in block.chunks_exact(left.len()).enumerate() {
            // Only i <= j, and each value is written twice, so that the result is symmetric to the bit.
            for (i, &value) in products.iter().enumerate().take(j + 1) {
                out[(start + i) * n + start + j] = value;
                out[(start + j) * n + start + i] = value;
            }
        }
    }
}

/// The plain version of [`products`] in f64: the reference of its tests.
pub fn products_reference(left: &[&[f32]], right: &[&[f32]], out: &mut [f64]) {
    for (i, a) in left.iter().enumerate() {
        for (j, b) in right.iter().enumerate() {
            out[j * left.len() + i] = a.iter().zip(*b).map(|(&x, &y)| f64::from(x) * f64::from(y)).sum();
        }
    }
}

/// The kernel of [`products`]; all rows have `dim` numbers.
struct Products<'a> {
    left: &'a [&'a [f32]],
    right: &'a [&'a [f32]],
    out: &'a mut [f32],
    dim: usize,
}

impl WithSimd for Products<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        // The registers hold L x R accumulators, L left vectors and one right vector: 31 of 32, or 16 of 16.
        if S::REGISTER_COUNT >= 32 { self.tiled::<S, 5, 5>(simd) } else { self.tiled::<S, 3, 4>(simd) }
    }
}

impl Products<'_> {
    /// Covers `out` with tiles of L left and R right rows, one block of columns after the other.
    #[inline(always)]
    fn tiled<S: Simd, const L: usize, const R: usize>(mut self, simd: S) {
        let (left_count, right_count) = (self.left.len(), self.right.len());
        let block = column_block(self.dim, (L + R) * size_of::<f32>(), S::F32_LANES);
        self.out.fill(0.0);
        for l in (0..left_count).step_by(L) {
            for from in (0..self.dim).step_by(block) {
                let columns = from..(from + block).min(self.dim);
                for r in (0..right_count).step_by(R) {
                    self.add_tile::<S, L, R>(simd, l, r, columns.clone());
                }
            }
        }
    }

    /// Adds the products over some columns of the tile whose first rows are `left[l]` and `right[r]`.
    #[inline(always)]
    fn add_tile<S: Simd, const L: usize, const R: usize>(
        &mut self,
        simd: S,
        l: usize,
        r: usize,
        columns: Range<usize>,
    ) {
        let (left_count, right_count) = (self.left.len(), self.right.len());
        // A tile at the edge repeats the last row; the repeated products are not stored.
        let lefts: [&[f32]; L] =
            std::array::from_fn(|i| &self.left[(l + i).min(left_count - 1)][columns.clone()]);
        let rights: [&[f32]; R] =
            std::array::from_fn(|j| &self.right[(r + j).min(right_count - 1)][columns.clone()]);
        // The next L left rows are prefetched meanwhile, divided among the tiles that share the current left rows.
        let (tile_number, tiles) = (r / R, right_count.div_ceil(R));
        let next = (l + L).min(left_count);
        let first_prefetched = |tile: usize| (next + tile * L / tiles).min(left_count);
        let prefetched = Prefetch {
            rows: &self.left[first_prefetched(tile_number)..first_prefetched(tile_number + 1)],
            from: columns.start,
        };
        let sums = tile::<S, L, R>(simd, lefts, rights, prefetched);
        for (i, row) in sums.iter().enumerate().take(left_count - l) {
            for (j, &sum) in row.iter().enumerate().take(right_count - r) {
                self.out[(r + j) * left_count + l + i] += sum;
            }
        }
    }
}

/// The number of columns to work on at a time. The rows of a tile, of `bytes_per_column` for each column of all its
/// rows, then take up at most 32 of the 48 KiB of a first-level cache, so the left rows are still there when the next
/// tile needs them. For one instruction set, the number depends on the dimension alone, and so does the order of
/// summation.
fn column_block(dim: usize, bytes_per_column: usize, lanes: usize) -> usize {
    let max_columns = (32 << 10) / bytes_per_column;
    let blocks = dim.div_ceil(max_columns).max(1);
    dim.div_ceil(blocks).next_multiple_of(lanes).max(1)
}

/// Rows to prefetch while a tile is computed, starting at column `from`.
struct Prefetch<'a> {
    rows: &'a [&'a [f32]],
    from: usize,
}

/// The inner products of L left and R right rows, `[L, R]`.
#[inline(always)]
fn tile<S: Simd, const L: usize, const R: usize>(
    simd: S,
    left: [&[f32]; L],
    right: [&[f32]; R],
    prefetched: Prefetch<'_>,
) -> [[f32; R]; L] {
    let dim = left[0].len();
    // Each row as whole vectors and the numbers after the last whole vector.
    let lefts: [(&[S::f32s], &[f32]); L] = std::array::from_fn(|i| S::as_simd_f32s(&left[i][..dim]));
    let rights: [(&[S::f32s], &[f32]); R] = std::array::from_fn(|j| S::as_simd_f32s(&right[j][..dim]));
    let steps = dim / S::F32_LANES;
    // The same length for all, so that the compiler drops the bounds checks below.
    let lefts_whole: [&[S::f32s]; L] = std::array::from_fn(|i| &lefts[i].0[..steps]);
    let rights_whole: [&[S::f32s]; R] = std::array::from_fn(|j| &rights[j].0[..steps]);
    let mut sums = [[simd.splat_f32s(0.0); R]; L];
    for step in 0..steps {
        for row in prefetched.rows {
            prefetch_line(row.as_ptr().wrapping_add(prefetched.from + step * S::F32_LANES).cast());
        }
        let mut a = [simd.splat_f32s(0.0); L];
        for i in 0..L {
            a[i] = lefts_whole[i][step];
        }
        for j in 0..R {
            let b = rights_whole[j][step];
            for i in 0..L {
                sums[i][j] = multiply_add(simd, a[i], b, sums[i][j]);
            }
        }
    }
    if !dim.is_multiple_of(S::F32_LANES) {
        // Partial loads in loops of their own: with NEON they are many instructions, and a loop that contains them is
        // not unrolled. If that loop used the sums, the sums would have to be in memory, in the loop above, too.
        let (mut a, mut b) = ([simd.splat_f32s(0.0); L], [simd.splat_f32s(0.0); R]);
        for i in 0..L {
            a[i] = simd.partial_load_f32s(lefts[i].1);
        }
        for j in 0..R {
            b[j] = simd.partial_load_f32s(rights[j].1);
        }
        for i in 0..L {
            for j in 0..R {
                sums[i][j] = multiply_add(simd, a[i], b[j], sums[i][j]);
            }
        }
    }
    // Plain loops: a closure is compiled without the caller's instruction set, and every vector operation in it
    // would become a function call.
    let mut out = [[0.0; R]; L];
    for i in 0..L {
        for j in 0..R {
            out[i][j] = simd.reduce_sum_f32s(sums[i][j]);
        }
    }
    out
}

/// Weighted sum of rows: `out = sum over i of weights[i] rows[i]`.
///
/// # Panics
/// If there is not one weight per row, or a row is not as long as `out`.
pub fn weighted_sum(rows: &[&[f32]], weights: &[f32], out: &mut [f32]) {
    assert_eq!(rows.len(), weights.len());
    assert!(rows.iter().all(|row| row.len() == out.len()), "rows of different length");
    isa::run(WeightedSum { rows, weights, out });
}

/// The kernel of [`weighted_sum`].
struct WeightedSum<'a> {
    rows: &'a [&'a [f32]],
    weights: &'a [f32],
    out: &'a mut [f32],
}

impl WithSimd for WeightedSum<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (out, out_tail) = S::as_mut_simd_f32s(self.out);
        let whole = out.len() * S::F32_LANES;
        for (step, out) in out.iter_mut().enumerate() {
            let mut sum = simd.splat_f32s(0.0);
            for (row, &weight) in self.rows.iter().zip(self.weights) {
                let vector = S::as_simd_f32s(&row[step * S::F32_LANES..(step + 1) * S::F32_LANES]).0[0];
                sum = multiply_add(simd, simd.splat_f32s(weight), vector, sum);
            }
            *out = sum;
        }
        for (column, out) in out_tail.iter_mut().enumerate() {
            *out = 0.0;
            for (row, weight) in self.rows.iter().zip(self.weights) {
                *out += weight * row[whole + column];
            }
        }
    }
}

/// Squared Euclidean norm: `row . row`.
pub fn squared_norm(row: &[f32]) -> f32 {
    isa::run(Reduction { left: row, right: row, term: Term::Product })
}

/// L1 distance of two rows.
///
/// # Panics
/// If the rows differ in length.
pub fn l1_distance(left: &[f32], right: &[f32]) -> f32 {
    assert_eq!(left.len(), right.len());
    isa::run(Reduction { left, right, term: Term::AbsoluteDifference })
}

/// Partial sums of [`short_dot`].
const SHORT_LANES: usize = 8;

/// Inner product `a . b` of rows as short as a support set, for which choosing an instruction set at run time would
/// cost more than it gains: eight partial sums that the compiler keeps in vectors of any instruction set.
///
/// # Panics
/// If the lengths differ.
pub fn short_dot(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    let mut sums = [0.0; SHORT_LANES];
    let (a_chunks, a_tail) = a.as_chunks::<SHORT_LANES>();
    let (b_chunks, b_tail) = b.as_chunks::<SHORT_LANES>();
    for (a, b) in a_chunks.iter().zip(b_chunks) {
        for lane in 0..SHORT_LANES {
            sums[lane] += a[lane] * b[lane];
        }
    }
    for (sum, (a, b)) in sums.iter_mut().zip(a_tail.iter().zip(b_tail)) {
        *sum += a * b;
    }
    sums.iter().sum()
}

/// The summand of a reduction over two rows.
#[derive(Clone, Copy)]
enum Term {
    Product,
    AbsoluteDifference,
}

/// The kernel of [`squared_norm`] and [`l1_distance`]: the sum of `term` over the numbers of two rows.
struct Reduction<'a> {
    left: &'a [f32],
    right: &'a [f32],
    term: Term,
}

impl Term {
    /// `sum` plus the summands of two vectors.
    #[inline(always)]
    fn add<S: Simd>(self, simd: S, sum: S::f32s, a: S::f32s, b: S::f32s) -> S::f32s {
        match self {
            Term::Product => multiply_add(simd, a, b, sum),
            Term::AbsoluteDifference => simd.add_f32s(sum, simd.abs_f32s(simd.sub_f32s(a, b))),
        }
    }
}

impl WithSimd for Reduction<'_> {
    type Output = f32;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> f32 {
        // Matched outside the loops: each loop is compiled for one term.
        match self.term {
            Term::Product => self.reduce(simd, Term::Product),
            Term::AbsoluteDifference => self.reduce(simd, Term::AbsoluteDifference),
        }
    }
}

impl Reduction<'_> {
    /// Sums the terms in four independent sums: an addition takes four cycles, and each addition of a single sum would
    /// wait for the one before.
    #[inline(always)]
    fn reduce<S: Simd>(self, simd: S, term: Term) -> f32 {
        let (left, left_tail) = S::as_simd_f32s(self.left);
        let (right, right_tail) = S::as_simd_f32s(self.right);
        let (left4, left_rest) = pulp::as_arrays::<4, _>(left);
        let (right4, right_rest) = pulp::as_arrays::<4, _>(right);
        let mut sums = [simd.splat_f32s(0.0); 4];
        for (a, b) in left4.iter().zip(right4) {
            for k in 0..4 {
                sums[k] = term.add(simd, sums[k], a[k], b[k]);
            }
        }
        for (&a, &b) in left_rest.iter().zip(right_rest) {
            sums[0] = term.add(simd, sums[0], a, b);
        }
        // Both tails are padded with zeros, whose term is 0.
        let (left_tail, right_tail) = (simd.partial_load_f32s(left_tail), simd.partial_load_f32s(right_tail));
        sums[1] = term.add(simd, sums[1], left_tail, right_tail);
        let halves = (simd.add_f32s(sums[0], sums[1]), simd.add_f32s(sums[2], sums[3]));
        simd.reduce_sum_f32s(simd.add_f32s(halves.0, halves.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;
    use proptest::prelude::*;

    /// Pseudo-random numbers in [-0.3, 0.7), from a linear congruential generator.
    fn rows(count: usize, dim: usize, seed: u32) -> Vec<Vec<f32>> {
        let mut state = seed | 1;
        let mut next = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.3
        };
        (0..count).map(|_| (0..dim).map(|_| next()).collect()).collect()
    }

    proptest! {
        #[test]
        fn tuned_products_agree_with_the_plain_ones(l in 1usize..12, r in 1usize..12, dim in 1usize..200, seed: u32) {
            let (left, right) = (rows(l, dim, seed), rows(r, dim, seed ^ 77));
            let left: Vec<&[f32]> = left.iter().map(Vec::as_slice).collect();
            let right: Vec<&[f32]> = right.iter().map(Vec::as_slice).collect();
            let mut expected = vec![0.0; l * r];
            products_reference(&left, &right, &mut expected);
            for isa in Isa::usable() {
                let mut out = vec![0.0; l * r];
                isa.scope(|| products(&left, &right, &mut out));
                for (a, b) in out.iter().zip(&expected) {
                    prop_assert!((f64::from(*a) - b).abs() <= 1e-5 * dim as f64, "{isa:?}: {a} and {b}");
                }
            }
        }

        #[test]
        fn a_product_does_not_depend_on_the_other_rows(n in 1usize..14, dim in 1usize..100, seed: u32) {
            let owned = rows(n, dim, seed);
            let all: Vec<&[f32]> = owned.iter().map(Vec::as_slice).collect();
            for isa in Isa::usable() {
                let mut out = vec![0.0; n * n];
                isa.scope(|| gram(&all, &mut out));
                for i in 0..n {
                    for j in 0..n {
                        let mut alone = [0.0];
                        isa.scope(|| products(&all[i..=i], &all[j..=j], &mut alone));
                        prop_assert_eq!(alone[0].to_bits(), out[i * n + j].to_bits());
                    }
                }
            }
        }

        #[test]
        fn a_weighted_sum_agrees_with_the_plain_one(count in 0usize..9, dim in 1usize..100, seed: u32) {
            let owned = rows(count + 1, dim, seed);
            let (weights, owned) = (&owned[0], &owned[1..]);
            let weights: Vec<f32> = (0..count).map(|i| weights[i % dim]).collect();
            let all: Vec<&[f32]> = owned.iter().map(Vec::as_slice).collect();
            for isa in Isa::usable() {
                let mut out = vec![7.0; dim];
                isa.scope(|| weighted_sum(&all, &weights, &mut out));
                for (column, actual) in out.iter().enumerate() {
                    let expected: f64 = (0..count).map(|i| f64::from(weights[i]) * f64::from(all[i][column])).sum();
                    prop_assert!((f64::from(*actual) - expected).abs() < 1e-5, "{isa:?}: {actual} and {expected}");
                }
            }
        }

        #[test]
        fn reductions_agree_with_the_plain_sums(dim in 0usize..200, seed: u32) {
            let pair = rows(2, dim, seed);
            let expected: f64 = pair[0].iter().zip(&pair[1]).map(|(&a, &b)| f64::from((a - b).abs())).sum();
            for isa in Isa::usable() {
                let distance = f64::from(isa.scope(|| l1_distance(&pair[0], &pair[1])));
                prop_assert!(
                    (distance - expected).abs() <= 1e-5 * (1.0 + expected),
                    "{isa:?}: {distance} and {expected}"
                );
                let squares: f64 = pair[0].iter().map(|&a| f64::from(a) * f64::from(a)).sum();
                let norm = f64::from(isa.scope(|| squared_norm(&pair[0])));
                prop_assert!((norm - squares).abs() <= 1e-5 * (1.0 + squares), "{isa:?}: {norm} and {squares}");
            }
        }
    }

    #[test]
    fn a_short_dot_product_of_any_length_is_the_sum_of_products() {
        for n in 0..40 {
            let a: Vec<f32> = (0..n).map(|i| i as f32 - 3.0).collect();
            let b: Vec<f32> = (0..n).map(|i| 2.0 * i as f32 + 1.0).collect();
            let expected: f32 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
            assert_eq!(short_dot(&a, &b), expected, "integers of this size are exact");
        }
    }
}
