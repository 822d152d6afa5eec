//! Symmetric, positive definite matrices and their Cholesky decomposition `A = L Lᵀ`, where L is a lower triangle.
//!
//! [`Cholesky`] solves `A x = b` or inverts A, for the ridge regressions of audits and classifiers (there A is a matrix
//! of inner products plus a penalty times the identity) and for the Newton steps of `audit::score_model` and
//! `method::median`. It computes in f64. Matrices `[size, size]` are stored row by row.

use rayon::prelude::*;
use trueshot_nn::products;

/// The inner products of all pairs of rows, `[rows, rows]`: computed in f32, returned as f64 for [`Cholesky::new`].
pub(crate) fn gram(rows: &[&[f32]]) -> Vec<f64> {
    let mut gram = vec![0.0; rows.len() * rows.len()];
    gram.par_chunks_exact_mut(rows.len().max(1)).zip(rows).for_each(|(out, row)| {
        let mut products = vec![0.0; rows.len()];
        products::products(rows, &[row], &mut products);
        out.iter_mut().zip(products).for_each(|(out, product)| *out = f64::from(product));
    });
    gram
}

/// The Cholesky decomposition of a matrix plus a multiple of the identity.
pub(crate) struct Cholesky {
    /// The triangle L, `[size, size]`. The values above the diagonal are left over from A and are never read.
    lower: Vec<f64>,
    size: usize,
}

impl Cholesky {
    /// Decomposes `matrix`, `[size, size]`, plus `shift` times the identity. Only the lower triangle of `matrix` is
    /// read.
    pub fn new(mut matrix: Vec<f64>, size: usize, shift: f64) -> Self {
        // Row i of A becomes row i of L, in place, from the rows of L above it:
        // L[i][j] = (A[i][j] - sum over k < j of L[i][k] L[j][k]) / L[j][j].
        for i in 0..size {
            let (above, from_i) = matrix.split_at_mut(i * size);
            let row_i = &mut from_i[..size];
            row_i[i] += shift;
            for (j, row_j) in above.chunks_exact(size).enumerate() {
                row_i[j] = (row_i[j] - dot(&row_i[..j], &row_j[..j])) / row_j[j];
            }
            // Rounding can make the square of the diagonal element slightly negative; 1e-12 keeps divisions by it
            // finite.
            row_i[i] = (row_i[i] - dot(&row_i[..i], &row_i[..i])).max(1e-12).sqrt();
        }
        Cholesky { lower: matrix, size }
    }

    /// Solves `A x = right`, where `A` is the decomposed matrix including the shift; `right` and the result are
    /// `[size]`.
    pub fn solve(&self, right: &[f32]) -> Vec<f32> {
        let mut solution: Vec<f64> = right.iter().map(|&value| f64::from(value)).collect();
        // Forward substitution: L y = right.
        for (i, row) in self.lower.chunks_exact(self.size.max(1)).enumerate() {
            solution[i] = (solution[i] - dot(&row[..i], &solution[..i])) / row[i];
        }
        // Back substitution: Lᵀ x = y. Once x[i] is known, its part is subtracted from all elements before it.
        for (i, row) in self.lower.chunks_exact(self.size.max(1)).enumerate().rev() {
            solution[i] /= row[i];
            let (before, from_i) = solution.split_at_mut(i);
            before.iter_mut().zip(row).for_each(|(value, factor)| *value -= factor * from_i[0]);
        }
        solution.into_iter().map(|value| value as f32).collect()
    }

    /// The inverse of the decomposed matrix including the shift, `[size, size]`.
    pub fn inverse(&self) -> Vec<f64> {
        let size = self.size;
        // Column c of the inverse of L. It is 0 above row c, so only rows c to size - 1 are stored.
        let column = |c: usize| {
            let mut column = vec![0.0; size - c];
            for i in c..size {
                let row = &self.lower[i * size..];
                let sum = dot(&row[c..i], &column[..i - c]);
                column[i - c] = (f64::from(u8::from(i == c)) - sum) / row[i];
            }
            column
        };
        let columns: Vec<Vec<f64>> = (0..size).into_par_iter().map(column).collect();
        // The inverse of A is the inverse of L, transposed, times the inverse of L: inner products of the columns, over
        // the rows `from..` in which both are stored.
        let mut inverse = vec![0.0; size * size];
        inverse.par_chunks_exact_mut(size.max(1)).enumerate().for_each(|(i, out)| {
            for (j, out) in out.iter_mut().enumerate() {
                let from = i.max(j);
                *out = dot(&columns[i][from - i..], &columns[j][from - j..]);
            }
        });
        inverse
    }
}

/// The inner product, as eight partial sums, which the compiler can keep in vector registers.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    let (a_chunks, b_chunks) = (a.chunks_exact(8), b.chunks_exact(8));
    let tail: f64 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    tail + sums.iter().sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Purpose, Rng};

    const SHIFT: f64 = 0.3;

    fn rows() -> Vec<Vec<f32>> {
        let mut rng = Rng::for_item(1, Purpose::Projection, 0, 0);
        (0..21).map(|_| (0..9).map(|_| rng.uniform() - 0.5).collect()).collect()
    }

    #[test]
    fn solution_and_inverse_belong_to_the_matrix() {
        let rows = rows();
        let rows: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
        let size = rows.len();
        let mut matrix = gram(&rows);
        let decomposed = Cholesky::new(matrix.clone(), size, SHIFT);
        (0..size).for_each(|i| matrix[i * size + i] += SHIFT);

        let inverse = decomposed.inverse();
        for i in 0..size {
            for j in 0..size {
                let product: f64 = (0..size).map(|k| matrix[i * size + k] * inverse[k * size + j]).sum();
                assert!((product - f64::from(u8::from(i == j))).abs() < 1e-9, "{i} {j}: {product}");
            }
        }
        let right: Vec<f32> = (0..size).map(|i| i as f32 - 7.5).collect();
        let solution = decomposed.solve(&right);
        for i in 0..size {
            let left: f64 = (0..size).map(|j| matrix[i * size + j] * f64::from(solution[j])).sum();
            assert!((left - f64::from(right[i])).abs() < 1e-3, "{i}: {left}");
        }
    }

    #[test]
    fn a_matrix_without_rows_has_an_empty_inverse() {
        let decomposed = Cholesky::new(gram(&[]), 0, SHIFT);
        assert!(decomposed.inverse().is_empty() && decomposed.solve(&[]).is_empty());
    }
}
