//! Matrix products on the calling thread: `C = A B` or `C += A B` over strided matrices, A or B possibly transposed.
//!
//! Start with [`multiply`] and [`Matrix`]. Shapes: A is `[M, K]`, B is `[K, N]`, C is `[M, N]`; all are stored row by
//! row. Every element of C is summed over K in order, in blocks that depend on K alone, so it does not depend on the
//! other rows and columns of the product. `f64` uses the plain version in this file, `f32` the tuned one in `tiles`.
//! [`add_weighted_rows`] is a product of a small matrix with rows that are scattered over memory.

mod pack;
mod tiles;
mod weighted_rows;

pub(crate) use tiles::multiply_tuned;
pub(crate) use weighted_rows::{add_scaled, add_weighted_rows_tuned};
pub use weighted_rows::{add_weighted_rows, add_weighted_rows_reference};

use crate::real::Real;

/// A matrix to read from: rows of adjacent numbers at equal distances, or the transpose of such a matrix. Element (i,
/// j) is `data[i * row_stride + j * column_stride]`, and one of the strides is 1.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a, T = f32> {
    data: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a, T> Matrix<'a, T> {
    /// A matrix without gaps between its rows.
    ///
    /// # Panics
    /// If `data` does not have `rows * columns` elements.
    pub fn new(data: &'a [T], rows: usize, columns: usize) -> Self {
        assert_eq!(Some(data.len()), rows.checked_mul(columns), "{rows} x {columns}");
        Matrix { data, rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// A matrix whose rows start `stride` elements apart.
    ///
    /// # Panics
    /// If the last row ends beyond `data`, or rows overlap.
    pub fn strided(data: &'a [T], rows: usize, columns: usize, stride: usize) -> Self {
        check_bounds(data.len(), rows, columns, stride);
        Matrix { data, rows, columns, row_stride: stride, column_stride: 1 }
    }

    /// The transpose, without copying.
    pub fn transposed(self) -> Self {
        Matrix {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

/// A matrix to write to: rows of adjacent numbers at equal distances.
#[derive(Debug)]
pub struct MatrixMut<'a, T = f32> {
    data: &'a mut [T],
    rows: usize,
    columns: usize,
    stride: usize,
    /// Elements after each row that may be overwritten; 0 unless made by [`MatrixMut::padded`].
    spare: usize,
}

impl<'a, T> MatrixMut<'a, T> {
    /// A matrix without gaps between its rows.
    ///
    /// # Panics
    /// If `data` does not have `rows * columns` elements.
    pub fn new(data: &'a mut [T], rows: usize, columns: usize) -> Self {
        assert_eq!(Some(data.len()), rows.checked_mul(columns), "{rows} x {columns}");
        MatrixMut { data, rows, columns, stride: columns, spare: 0 }
    }

    /// A matrix whose rows start `stride` elements apart.
    ///
    /// # Panics
    /// If the last row ends beyond `data`, or rows overlap.
    pub fn strided(data: &'a mut [T], rows: usize, columns: usize, stride: usize) -> Self {
        check_bounds(data.len(), rows, columns, stride);
        MatrixMut { data, rows, columns, stride, spare: 0 }
    }

    /// A matrix whose rows start `stride` elements apart, and whose gaps between rows may be overwritten with any
    /// finite numbers, which is faster than to preserve them.
    ///
    /// # Panics
    /// If the gap after the last row ends beyond `data`, or rows overlap.
    pub fn padded(data: &'a mut [T], rows: usize, columns: usize, stride: usize) -> Self {
        assert!(columns <= stride, "rows of {columns} elements overlap at a stride of {stride}");
        check_bounds(data.len(), rows, stride, stride);
        MatrixMut { data, rows, columns, stride, spare: stride - columns }
    }
}

/// # Panics
/// If the last row ends beyond `len` elements, or rows overlap.
fn check_bounds(len: usize, rows: usize, columns: usize, stride: usize) {
    assert!(columns <= stride || rows <= 1, "rows of {columns} elements overlap at a stride of {stride}");
    let end = match rows {
        0 => Some(0),
        _ => (rows - 1).checked_mul(stride).and_then(|start| start.checked_add(columns)),
    };
    assert!(
        end.is_some_and(|end| end <= len),
        "{rows} rows of {columns} at a stride of {stride} do not fit into {len} elements"
    );
}

/// Whether a product replaces the contents of C or is added to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// `C = A B`; the old contents are never read.
    Set,
    /// `C += A B`
    Add,
}

/// Matrix product: `C = A B` or `C += A B`.
///
/// # Panics
/// If the shapes disagree.
pub fn multiply<T: Real>(a: Matrix<'_, T>, b: Matrix<'_, T>, write: Write, mut c: MatrixMut<'_, T>) {
    let start = match write {
        Write::Set => InitialSum::Zero,
        Write::Add => InitialSum::Existing,
    };
    T::multiply(a, b, start, &mut c);
}

/// Matrix product plus a row: `C = A B`, with the same row added to all rows, as a bias is.
///
/// # Panics
/// If the shapes disagree. The row has one number per column of C, and if C is [`MatrixMut::padded`], also one per
/// element of the gap after a row of C.
pub fn multiply_and_add_row<T: Real>(a: Matrix<'_, T>, b: Matrix<'_, T>, row: &[T], mut c: MatrixMut<'_, T>) {
    T::multiply(a, b, InitialSum::Row(row), &mut c);
}

/// The values that the sums of a product start with.
#[derive(Debug, Clone, Copy)]
pub enum InitialSum<'a, T> {
    /// 0: `C = A B`.
    Zero,
    /// The contents of C: `C += A B`.
    Existing,
    /// This row, in every row of C: `C = A B + row`.
    Row(&'a [T]),
}

/// # Panics
/// If the shapes of a product disagree.
fn check_shapes<T>(a: Matrix<'_, T>, b: Matrix<'_, T>, start: InitialSum<'_, T>, c: &MatrixMut<'_, T>) {
    assert_eq!((a.rows, a.columns, b.columns), (c.rows, b.rows, c.columns), "shapes of C, A and B");
    if let InitialSum::Row(row) = start {
        assert_eq!(row.len(), c.columns + c.spare, "one number per column");
    }
}

/// The plain version of the product: the reference of the tests, and what `f64` runs with.
pub fn multiply_reference<T: Real>(
    a: Matrix<'_, T>,
    b: Matrix<'_, T>,
    start: InitialSum<'_, T>,
    c: &mut MatrixMut<'_, T>,
) {
    check_shapes(a, b, start, c);
    for i in 0..c.rows {
        let row = &mut c.data[i * c.stride..i * c.stride + c.columns];
        match start {
            InitialSum::Zero => row.fill(T::ZERO),
            InitialSum::Existing => (),
            InitialSum::Row(start) => row.copy_from_slice(&start[..c.columns]),
        }
        for k in 0..a.columns {
            let factor = a.data[i * a.row_stride + k * a.column_stride];
            for (j, sum) in row.iter_mut().enumerate() {
                *sum += factor * b.data[k * b.row_stride + j * b.column_stride];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::TestRng;
    use crate::isa::Isa;
    use proptest::prelude::*;

    /// A `[rows, columns]` matrix, stored as it is or transposed, with gaps of `slack` between the stored rows.
    fn matrix(data: &[f32], rows: usize, columns: usize, slack: usize, transposed: bool) -> Matrix<'_> {
        if transposed {
            Matrix::strided(data, columns, rows, rows + slack).transposed()
        } else {
            Matrix::strided(data, rows, columns, columns + slack)
        }
    }

    /// Compares a product of `shape` (m, k, n) with the plain version on every instruction set. Matrices have gaps of
    /// `slack` numbers between rows, and `transposed` says whether A and B are.
    fn compare(
        shape: (usize, usize, usize),
        slack: usize,
        transposed: (bool, bool),
        write: Write,
        seed: u64,
    ) {
        let (m, k, n) = shape;
        let mut rng = TestRng::new(seed);
        let a = rng.f32s((m + slack) * (k + slack) + slack);
        let b = rng.f32s((k + slack) * (n + slack) + slack);
        let c = rng.f32s(m * (n + slack));
        let (a, b) = (matrix(&a, m, k, slack, transposed.0), matrix(&b, k, n, slack, transposed.1));
        let mut expected = c.clone();
        let start = if write == Write::Add { InitialSum::Existing } else { InitialSum::Zero };
        multiply_reference(a, b, start, &mut MatrixMut::strided(&mut expected, m, n, n + slack));
        for isa in Isa::usable() {
            let mut product = c.clone();
            isa.scope(|| multiply(a, b, write, MatrixMut::strided(&mut product, m, n, n + slack)));
            for (index, (actual, expected)) in product.iter().zip(&expected).enumerate() {
                // The rounding errors of k additions.
                let close = (actual - expected).abs() <= 2e-6 * (k as f32 + 4.0);
                assert!(
                    close,
                    "{isa:?} {shape:?} {transposed:?} {write:?} at {index}: {actual} and {expected}"
                );
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(200))]

        #[test]
        fn products_of_any_shape_agree_with_the_plain_ones(
            m in 0usize..70, k in 0usize..70, n in 0usize..70, slack in 0usize..5,
            left: bool, right: bool, add: bool, seed: u64,
        ) {
            compare((m, k, n), slack, (left, right), if add { Write::Add } else { Write::Set }, seed);
        }
    }

    #[test]
    fn deep_and_wide_products_agree_with_the_plain_ones() {
        for shape in [(30, 1600, 128), (3, 700, 33), (128, 257, 64), (1600, 30, 128), (5, 128, 1600)] {
            for transposed in [(false, false), (true, false), (false, true), (true, true)] {
                compare(shape, 3, transposed, Write::Add, 9);
                compare(shape, 0, transposed, Write::Set, 9);
            }
        }
    }

    #[test]
    fn a_row_can_be_added_to_all_rows() {
        for (m, k, n) in [(1, 1, 1), (30, 16, 30), (33, 300, 70), (5, 0, 20)] {
            let mut rng = TestRng::new(4);
            let (a, b, row) = (rng.f32s(m * k), rng.f32s(k * n), rng.f32s(n));
            let (a, b) = (Matrix::new(&a, m, k), Matrix::new(&b, k, n));
            let mut expected = vec![0.0; m * n];
            multiply_reference(a, b, InitialSum::Row(&row), &mut MatrixMut::new(&mut expected, m, n));
            for isa in Isa::usable() {
                let mut product = vec![7.0; m * n];
                isa.scope(|| multiply_and_add_row(a, b, &row, MatrixMut::new(&mut product, m, n)));
                assert!(product.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-4), "{isa:?}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "shapes of C, A and B")]
    fn a_product_that_does_not_have_the_shape_of_c_is_refused() {
        let one = Matrix::new(&[1.0], 1, 1);
        f32::multiply(one, one, InitialSum::Zero, &mut MatrixMut::new(&mut [0.0; 9], 3, 3));
    }

    #[test]
    #[should_panic(expected = "overlap at a stride of 4")]
    fn a_row_that_is_longer_than_its_stride_is_refused() {
        MatrixMut::padded(&mut [0.0; 4], 1, 100, 4);
    }

    #[test]
    fn a_row_of_a_product_does_not_depend_on_the_other_rows() {
        let (m, k, n) = (50, 300, 40);
        let mut rng = TestRng::new(4);
        let (a, b) = (rng.f32s(m * k), rng.f32s(k * n));
        let product = |a: &[f32]| {
            let rows = a.len() / k;
            let mut c = vec![0.0; rows * n];
            let (a, b) = (Matrix::new(a, rows, k), Matrix::new(&b, k, n));
            multiply(a, b, Write::Set, MatrixMut::new(&mut c, rows, n));
            c
        };
        for isa in Isa::usable() {
            let all = isa.scope(|| product(&a));
            for row in 0..m {
                let alone = isa.scope(|| product(&a[row * k..(row + 1) * k]));
                assert_eq!(alone, all[row * n..(row + 1) * n], "{isa:?}");
            }
        }
    }

    /// Prints speeds: `cargo test --release -p trueshot-nn speed_of_products -- --ignored --nocapture`.
    #[test]
    #[ignore = "measures speed, checks nothing"]
    fn speed_of_products() {
        let shapes = [
            ((480, 128, 128), (false, false)),
            ((120, 128, 128), (false, false)),
            ((120, 128, 384), (false, false)),
            ((480, 128, 128), (false, true)),
            ((120, 128, 128), (false, true)),
            ((120, 384, 128), (false, true)),
            ((128, 480, 128), (true, false)),
            ((128, 120, 384), (true, false)),
            ((400, 1600, 128), (false, false)),
            ((100, 1600, 128), (false, false)),
            ((1600, 100, 128), (true, false)),
            ((1600, 400, 128), (true, false)),
            ((20, 128, 1600), (false, true)),
            ((20, 1600, 128), (false, false)),
            ((30, 16, 30), (false, true)),
            ((30, 30, 16), (false, false)),
            ((30, 30, 16), (true, false)),
        ];
        let mut rng = TestRng::new(1);
        for ((m, k, n), (left, right)) in shapes {
            let (a, b, mut c) = (rng.f32s(m * k), rng.f32s(k * n), vec![0.0; m * n]);
            let (a, b) = (matrix(&a, m, k, 0, left), matrix(&b, k, n, 0, right));
            let flops = 2.0 * (m * k * n) as f64;
            // Enough rounds for some milliseconds.
            let rounds = (2e8 / flops).ceil() as usize;
            let best = (0..9)
                .map(|_| {
                    let start = std::time::Instant::now();
                    for _ in 0..rounds {
                        multiply(a, b, Write::Add, MatrixMut::new(&mut c, m, n));
                    }
                    start.elapsed().as_secs_f64() / rounds as f64
                })
                .fold(f64::INFINITY, f64::min);
            println!(
                "{m} x {k} x {n} {left} {right}: {:.1} GFLOP/s, {:.2} us",
                flops / best / 1e9,
                best * 1e6
            );
        }
    }
}
