//! Ridge regression of the class shares on the rows ([`Ridge`]), with leave-one-out predictions.
//!
//! `evidence` uses it to predict the class of every item from all other items: [`Gram::new`] and [`Ridge::all`] prepare
//! what depends on the rows only, [`Ridge::coefficients`] fits one vector per class to the current shares, and
//! [`Ridge::without`] turns the prediction for a row into the one that a regression without this row would give.
//! Leaving a row out changes the prediction for it from `p` to `(p - h t) / (1 - h)`, with its target `t` and its
//! leverage `h` (the diagonal element of the hat matrix), so nothing is fitted again.
//!
//! With rows `X`, targets `t` and the penalty `c`, the coefficients are `X' (X X' + c I)^-1 t`, which needs the inverse
//! of a matrix `[rows, rows]`, or `(X' X + c I)^-1 X' t`, which needs one of `[dim, dim]`. Both are equal; the smaller
//! matrix is used (`by_rows` says which).

use rayon::prelude::*;
use trueshot_nn::products;

use super::Poll;
use crate::cholesky::{self, Cholesky};
use crate::error::Result;

/// Rows per partial sum of [`gram_of_columns`]. Fixed, so that the sums do not depend on the number of threads.
const BLOCK: usize = 1024;

/// The Gram matrix `X X'` of all pairs of rows, or `X' X` of all pairs of columns if there are fewer columns than rows.
pub(super) struct Gram {
    /// `[size, size]`
    products: Vec<f64>,
    /// The number of rows or columns, whichever is smaller.
    size: usize,
    /// Whether the products are those of the rows.
    by_rows: bool,
}

impl Gram {
    pub fn new(rows: &[&[f32]], poll: &Poll<'_>) -> Result<Self> {
        let dim = rows[0].len();
        let by_rows = rows.len() <= dim;
        let products = if by_rows { cholesky::gram(rows) } else { gram_of_columns(rows, poll)? };
        Ok(Gram { products, size: rows.len().min(dim), by_rows })
    }

    /// The sum of the squared inner products of all pairs of rows, `(i, j)` as well as `(j, i)` and `(i, i)`. It is the
    /// same for `X X'` and `X' X`.
    pub fn sum_of_squares(&self) -> f64 {
        self.products.iter().map(|product| product * product).sum()
    }
}

/// A ridge regression on rows, for any targets.
pub(super) struct Ridge {
    /// The inverse of the Gram matrix plus the penalty times the identity: `[rows, rows]` if `by_rows`, otherwise
    /// `[dim, dim]`.
    inverse: Vec<f32>,
    by_rows: bool,
    /// The leverage of each row, between 0 and 1: how much the prediction for the row depends on its own target. It is
    /// near 1 for a row that is unlike all others.
    pub leverage: Vec<f32>,
}

impl Ridge {
    /// One regression per penalty. `gram` is the Gram matrix of the same rows.
    pub fn all<const N: usize>(
        rows: &[&[f32]],
        gram: &Gram,
        penalties: [f64; N],
        poll: &Poll<'_>,
    ) -> Result<[Ridge; N]> {
        let (size, by_rows) = (gram.size, gram.by_rows);
        let mut all = Vec::with_capacity(N);
        for penalty in penalties {
            poll.check()?;
            let inverse = Cholesky::new(gram.products.clone(), size, penalty).inverse();
            let inverse_f32: Vec<f32> = inverse.iter().map(|&value| value as f32).collect();
            // The hat matrix `X X' (X X' + c I)^-1` is `I - c (X X' + c I)^-1`.
            let mut leverage: Vec<f32> = match by_rows {
                true => (0..size).map(|i| (1.0 - penalty * inverse[i * size + i]) as f32).collect(),
                false => leverages(rows, &inverse_f32),
            };
            // Below 1, because `without` divides by one minus the leverage, and above 0 for its logarithm.
            leverage.iter_mut().for_each(|leverage| *leverage = leverage.clamp(1e-6, 0.999));
            all.push(Ridge { inverse: inverse_f32, by_rows, leverage });
        }
        Ok(all.try_into().unwrap_or_else(|_| unreachable!("one for each penalty")))
    }

    /// The coefficients `[targets][dim]` for the rows of [`Ridge::all`]; the prediction for a row is its inner product
    /// with the coefficients.
    pub fn coefficients(&self, rows: &[&[f32]], targets: &dyn Targets) -> Vec<f32> {
        let (dim, size) = (rows[0].len(), rows.len().min(rows[0].len()));
        let inverse: Vec<&[f32]> = self.inverse.chunks_exact(size).collect();
        let mut coefficients = vec![0.0; targets.count() * dim];
        coefficients.par_chunks_exact_mut(dim).enumerate().for_each(|(target, out)| match self.by_rows {
            true => {
                let mut weights = vec![0.0; size];
                products::products(&inverse, &[&targets.values(target)], &mut weights);
                products::weighted_sum(rows, &weights, out);
            }
            false => products::products(&inverse, &[&targets.sum(target)], out),
        });
        coefficients
    }

    /// The prediction for the row with index `row` of a regression without this row, from the `prediction` of the
    /// regression with it and the row's own `target`.
    pub fn without(&self, row: usize, prediction: f32, target: f32) -> f32 {
        let leverage = self.leverage[row];
        (prediction - leverage * target) / (1.0 - leverage)
    }
}

/// Several targets of a regression on the same rows, numbered from 0: for an audit, one per class.
pub(super) trait Targets: Sync {
    /// The number of targets.
    fn count(&self) -> usize;
    /// The values of one target, one per row: `t` above.
    fn values(&self, target: usize) -> Vec<f32>;
    /// The sum of the rows, weighted by the values of one target, `[dim]`: `X' t` above.
    fn sum(&self, target: usize) -> Vec<f32>;
}

/// The inner products of all pairs of columns, `[dim, dim]`: the sum, in f64, of the products of blocks of rows. Each
/// block is transposed, because the matrix product takes rows.
fn gram_of_columns(rows: &[&[f32]], poll: &Poll<'_>) -> Result<Vec<f64>> {
    /// Columns per task of the thread pool.
    const COLUMNS: usize = 32;
    let dim = rows[0].len();
    let mut gram = vec![0.0; dim * dim];
    let mut transposed = vec![0.0; dim * BLOCK];
    for block in rows.chunks(BLOCK) {
        poll.check()?;
        let transposed = &mut transposed[..dim * block.len()];
        transposed.par_chunks_exact_mut(block.len()).enumerate().for_each(|(column, out)| {
            out.iter_mut().zip(block).for_each(|(out, row)| *out = row[column]);
        });
        let columns: Vec<&[f32]> = transposed.chunks_exact(block.len()).collect();
        gram.par_chunks_mut(COLUMNS * dim).zip(columns.par_chunks(COLUMNS)).for_each(|(gram, block)| {
            let mut sums = vec![0.0; block.len() * dim];
            products::products(&columns, block, &mut sums);
            gram.iter_mut().zip(sums).for_each(|(gram, sum)| *gram += f64::from(sum));
        });
    }
    Ok(gram)
}

/// `x' M x` for each row `x` and the matrix `M`, `[dim, dim]`: the leverages, if `M` is the inverse of `X' X + c I`.
fn leverages(rows: &[&[f32]], matrix: &[f32]) -> Vec<f32> {
    /// Rows per task of the thread pool.
    const ROWS: usize = 64;
    let dim = rows[0].len();
    let matrix: Vec<&[f32]> = matrix.chunks_exact(dim).collect();
    let of_block = |rows: &[&[f32]]| {
        let mut multiplied = vec![0.0; rows.len() * dim];
        products::products(&matrix, rows, &mut multiplied);
        let dot =
            |(row, product): (&&[f32], &[f32])| row.iter().zip(product).map(|(a, b)| a * b).sum::<f32>();
        rows.iter().zip(multiplied.chunks_exact(dim)).map(dot).collect::<Vec<f32>>()
    };
    rows.par_chunks(ROWS).map(of_block).collect::<Vec<_>>().concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::{Purpose, Rng};

    /// A single target: one value per row, and the rows.
    struct SingleTarget(Vec<f32>, Vec<Vec<f32>>);

    impl Targets for SingleTarget {
        fn count(&self) -> usize {
            1
        }

        fn values(&self, _: usize) -> Vec<f32> {
            self.0.clone()
        }

        fn sum(&self, _: usize) -> Vec<f32> {
            let mut sum = vec![0.0; self.1[0].len()];
            for (row, value) in self.1.iter().zip(&self.0) {
                sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += value * x);
            }
            sum
        }
    }

    /// The predictions for all rows of a regression on all rows, and the regression.
    fn predictions(rows: &[Vec<f32>], targets: &[f32]) -> (Vec<f32>, Ridge) {
        let views: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
        let poll = Poll { progress: &(), done: 0, total: 1 };
        let gram = Gram::new(&views, &poll).unwrap();
        let [ridge] = Ridge::all(&views, &gram, [0.7], &poll).unwrap();
        let coefficients = ridge.coefficients(&views, &SingleTarget(targets.to_vec(), rows.to_vec()));
        let of_row = |row: &Vec<f32>| row.iter().zip(&coefficients).map(|(a, b)| a * b).sum();
        (rows.iter().map(of_row).collect(), ridge)
    }

    #[test]
    fn predictions_without_a_row_equal_those_of_a_regression_without_it() {
        for (count, dim) in [(6, 11), (30, 11)] {
            let mut rng = Rng::for_item(3, Purpose::Projection, 0, 0);
            let rows: Vec<Vec<f32>> =
                (0..count).map(|_| (0..dim).map(|_| rng.uniform() - 0.5).collect()).collect();
            let targets: Vec<f32> = (0..count).map(|_| rng.uniform() - 0.5).collect();
            let (with, ridge) = predictions(&rows, &targets);
            for left_out in 0..count {
                // A row of zeros with target 0 changes nothing.
                let (mut others, mut other_targets) = (rows.clone(), targets.clone());
                others[left_out].fill(0.0);
                other_targets[left_out] = 0.0;
                let views: Vec<&[f32]> = others.iter().map(Vec::as_slice).collect();
                let poll = Poll { progress: &(), done: 0, total: 1 };
                let gram = Gram::new(&views, &poll).unwrap();
                let [fitted] = Ridge::all(&views, &gram, [0.7], &poll).unwrap();
                let coefficients = fitted.coefficients(&views, &SingleTarget(other_targets, others.clone()));
                let expected: f32 = rows[left_out].iter().zip(&coefficients).map(|(a, b)| a * b).sum();
                let predicted = ridge.without(left_out, with[left_out], targets[left_out]);
                assert!((predicted - expected).abs() < 1e-4, "{predicted} {expected}");
            }
        }
    }
}
