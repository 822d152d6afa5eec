//! Symmetric, positive definite matrices and their Cholesky decomposition, in f64.

use rayon::prelude::*;
use trueshot_nn::products;

/// The inner products of all pairs of rows, `[rows, rows]`.
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
    /// The lower triangle, `[size, size]`. What is above the diagonal has no meaning.
    lower: Vec<f64>,
    size: usize,
}

impl Cholesky {
    /// Decomposes `matrix`, `[size, size]`, plus `shift` times the identity.
    pub fn new(mut matrix: Vec<f64>, size: usize, shift: f64) -> Self {
        for i in 0..size {
            let (above, rest) = matrix.split_at_mut(i * size);
            let row = &mut rest[..size];
            row[i] += shift;
            for (j, other) in above.chunks_exact(size).enumerate() {
                row[j] = (row[j] - dot(&row[..j], &other[..j])) / other[j];
            }
            // Rounding can make it slightly negative.
            row[i] = (row[i] - dot(&row[..i], &row[..i])).max(1e-12).sqrt();
        }
        Cholesky { lower: matrix, size }
    }

    /// Solves `A x = right`, where `A` is the decomposed matrix including the shift.
    pub fn solve(&self, right: &[f32]) -> Vec<f32> {
        let mut solution: Vec<f64> = right.iter().map(|&value| f64::from(value)).collect();
        for (i, row) in self.lower.chunks_exact(self.size.max(1)).enumerate() {
            solution[i] = (solution[i] - dot(&row[..i], &solution[..i])) / row[i];
        }
        for (i, row) in self.lower.chunks_exact(self.size.max(1)).enumerate().rev() {
            solution[i] /= row[i];
            let (before, rest) = solution.split_at_mut(i);
            before.iter_mut().zip(row).for_each(|(value, factor)| *value -= factor * rest[0]);
        }
        solution.into_iter().map(|value| value as f32).collect()
    }

    /// The inverse of the matrix, `[size, size]`.
    pub fn inverse(&self) -> Vec<f64> {
        let size = self.size;
        // Column c of the inverse of the lower triangle, from its first nonzero element on.
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

/// The inner product, as eight partial sums.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    let (a_chunks, b_chunks) = (a.chunks_exact(8), b.chunks_exact(8));
    let rest: f64 = a_chunks.remainder().iter().zip(b_chunks.remainder()).map(|(a, b)| a * b).sum();
    for (a, b) in a_chunks.zip(b_chunks) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    rest + sums.iter().sum::<f64>()
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
