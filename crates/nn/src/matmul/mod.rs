//! Products of matrices on one thread: `C = A B` or `C += A B` over strided views, either of A and B transposed.
//!
//! Shapes: A is M x K, B is K x N, C is M x N. Every element is summed over K in order, in stretches that depend on K
//! alone, so it does not depend on the other rows and columns of the product. How the tuned version goes about it
//! is told in `tiles`.

mod pack;
mod tiles;
mod weighted_rows;

pub(crate) use tiles::multiply_tuned;
pub(crate) use weighted_rows::add_weighted_rows_tuned;
pub use weighted_rows::{add_weighted_rows, add_weighted_rows_reference};

use crate::isa::Isa;
use crate::real::Real;

/// A matrix to read: rows of consecutive numbers at equal distances, or the transpose of such.
#[derive(Debug, Clone, Copy)]
pub struct View<'a, T = f32> {
    data: &'a [T],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a, T> View<'a, T> {
    /// Rows one behind the other.
    ///
    /// # Panics
    /// If `data` is not rows x columns long.
    pub fn new(data: &'a [T], rows: usize, columns: usize) -> Self {
        assert_eq!(Some(data.len()), rows.checked_mul(columns), "{rows} x {columns}");
        View { data, rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// Rows `stride` numbers apart.
    ///
    /// # Panics
    /// If the last row ends beyond `data`, or rows overlap.
    pub fn strided(data: &'a [T], rows: usize, columns: usize, stride: usize) -> Self {
        check(data.len(), rows, columns, stride);
        View { data, rows, columns, row_stride: stride, column_stride: 1 }
    }

    /// The same numbers with rows and columns exchanged.
    pub fn transposed(self) -> Self {
        View {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

/// A matrix to write to: rows at equal distances.
#[derive(Debug)]
pub struct ViewMut<'a, T = f32> {
    data: &'a mut [T],
    rows: usize,
    columns: usize,
    stride: usize,
    /// Numbers behind each row that may be overwritten.
    spare: usize,
}

impl<'a, T> ViewMut<'a, T> {
    /// Rows one behind the other.
    ///
    /// # Panics
    /// If `data` is not rows x columns long.
    pub fn new(data: &'a mut [T], rows: usize, columns: usize) -> Self {
        assert_eq!(Some(data.len()), rows.checked_mul(columns), "{rows} x {columns}");
        ViewMut { data, rows, columns, stride: columns, spare: 0 }
    }

    /// Rows `stride` numbers apart.
    ///
    /// # Panics
    /// If the last row ends beyond `data`, or rows overlap.
    pub fn strided(data: &'a mut [T], rows: usize, columns: usize, stride: usize) -> Self {
        check(data.len(), rows, columns, stride);
        ViewMut { data, rows, columns, stride, spare: 0 }
    }

    /// Rows `stride` numbers apart; what lies between two rows may be overwritten with anything finite. That is
    /// faster than to leave it alone.
    ///
    /// # Panics
    /// If the space behind the last row ends beyond `data`, or rows overlap.
    pub fn padded(data: &'a mut [T], rows: usize, columns: usize, stride: usize) -> Self {
        check(data.len(), rows, stride, stride);
        ViewMut { data, rows, columns, stride, spare: stride - columns }
    }
}

fn check(len: usize, rows: usize, columns: usize, stride: usize) {
    assert!(columns <= stride || rows <= 1, "rows of {columns} that are {stride} apart");
    let end = match rows {
        0 => Some(0),
        _ => (rows - 1).checked_mul(stride).and_then(|start| start.checked_add(columns)),
    };
    assert!(end.is_some_and(|end| end <= len), "{rows} rows of {columns}, {stride} apart, in {len} numbers");
}

/// What becomes of the numbers that C holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Write {
    /// They are overwritten, never read.
    Set,
    /// The product is added to them.
    Add,
}

/// `C = A B`, or `C += A B`.
///
/// # Panics
/// If the shapes disagree.
pub fn multiply<T: Real>(isa: Isa, a: View<'_, T>, b: View<'_, T>, write: Write, c: ViewMut<'_, T>) {
    let start = match write {
        Write::Set => Start::Zero,
        Write::Add => Start::Old,
    };
    multiply_from(isa, a, b, start, c);
}

/// `C = A B`, the same row added to all of its rows.
///
/// # Panics
/// If the shapes disagree.
pub fn multiply_and_add_row<T: Real>(isa: Isa, a: View<'_, T>, b: View<'_, T>, row: &[T], c: ViewMut<'_, T>) {
    assert_eq!(row.len(), c.columns + c.spare, "a number for each column");
    multiply_from(isa, a, b, Start::Row(row), c);
}

/// What the sums start with.
#[derive(Debug, Clone, Copy)]
pub enum Start<'a, T> {
    /// Nothing.
    Zero,
    /// What C holds.
    Old,
    /// The same row everywhere.
    Row(&'a [T]),
}

fn multiply_from<T: Real>(
    isa: Isa,
    a: View<'_, T>,
    b: View<'_, T>,
    start: Start<'_, T>,
    mut c: ViewMut<'_, T>,
) {
    assert_eq!((a.rows, a.columns, b.columns), (c.rows, b.rows, c.columns), "shapes of a product");
    if c.rows > 0 && c.columns > 0 {
        T::multiply(isa, a, b, start, &mut c);
    }
}

/// The plain version, which the tests hold the tuned one against and which `f64` runs on.
pub fn multiply_reference<T: Real>(
    a: View<'_, T>,
    b: View<'_, T>,
    start: Start<'_, T>,
    c: &mut ViewMut<'_, T>,
) {
    for i in 0..c.rows {
        let row = &mut c.data[i * c.stride..i * c.stride + c.columns];
        match start {
            Start::Zero => row.fill(T::ZERO),
            Start::Old => (),
            Start::Row(start) => row.copy_from_slice(start),
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
    use crate::differences::Numbers;
    use proptest::prelude::*;

    fn usable() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_usable())
    }

    /// A view of rows x columns, stored as it is or transposed, in rows `slack` longer than they need be.
    fn view(data: &[f32], rows: usize, columns: usize, slack: usize, transposed: bool) -> View<'_> {
        if transposed {
            View::strided(data, columns, rows, rows + slack).transposed()
        } else {
            View::strided(data, rows, columns, columns + slack)
        }
    }

    fn compare(
        shape: (usize, usize, usize),
        slack: usize,
        transposed: (bool, bool),
        write: Write,
        seed: u64,
    ) {
        let (m, k, n) = shape;
        let mut numbers = Numbers::new(seed);
        let a = numbers.singles((m + slack) * (k + slack) + slack);
        let b = numbers.singles((k + slack) * (n + slack) + slack);
        let c = numbers.singles(m * (n + slack));
        let (a, b) = (view(&a, m, k, slack, transposed.0), view(&b, k, n, slack, transposed.1));
        let mut expected = c.clone();
        let start = if write == Write::Add { Start::Old } else { Start::Zero };
        multiply_reference(a, b, start, &mut ViewMut::strided(&mut expected, m, n, n + slack));
        for isa in usable() {
            let mut found = c.clone();
            multiply(isa, a, b, write, ViewMut::strided(&mut found, m, n, n + slack));
            for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let close = (found - expected).abs() <= 2e-6 * (k as f32 + 4.0);
                assert!(
                    close,
                    "{isa:?} {shape:?} {transposed:?} {write:?} at {place}: {found} and {expected}"
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
            let mut numbers = Numbers::new(4);
            let (a, b, row) = (numbers.singles(m * k), numbers.singles(k * n), numbers.singles(n));
            let (a, b) = (View::new(&a, m, k), View::new(&b, k, n));
            let mut expected = vec![0.0; m * n];
            multiply_reference(a, b, Start::Row(&row), &mut ViewMut::new(&mut expected, m, n));
            for isa in usable() {
                let mut found = vec![7.0; m * n];
                multiply_and_add_row(isa, a, b, &row, ViewMut::new(&mut found, m, n));
                assert!(found.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-4), "{isa:?}");
            }
        }
    }

    #[test]
    fn a_row_of_a_product_does_not_depend_on_the_others() {
        let (m, k, n) = (50, 300, 40);
        let mut numbers = Numbers::new(4);
        let (a, b) = (numbers.singles(m * k), numbers.singles(k * n));
        for isa in usable() {
            let mut all = vec![0.0; m * n];
            multiply(isa, View::new(&a, m, k), View::new(&b, k, n), Write::Set, ViewMut::new(&mut all, m, n));
            for row in 0..m {
                let mut alone = vec![0.0; n];
                let a = View::new(&a[row * k..(row + 1) * k], 1, k);
                multiply(isa, a, View::new(&b, k, n), Write::Set, ViewMut::new(&mut alone, 1, n));
                assert_eq!(alone, all[row * n..(row + 1) * n], "{isa:?}");
            }
        }
    }

    /// Prints speeds: `cargo test --release -p trueshot-nn speed_of_products -- --ignored --nocapture`.
    #[test]
    #[ignore = "measures, checks nothing"]
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
        let mut numbers = Numbers::new(1);
        for ((m, k, n), (left, right)) in shapes {
            let (a, b, mut c) = (numbers.singles(m * k), numbers.singles(k * n), vec![0.0; m * n]);
            let (a, b) = (view(&a, m, k, 0, left), view(&b, k, n, 0, right));
            let flops = 2.0 * (m * k * n) as f64;
            let rounds = (2e8 / flops).ceil() as usize;
            let best = (0..9)
                .map(|_| {
                    let start = std::time::Instant::now();
                    for _ in 0..rounds {
                        multiply(Isa::current(), a, b, Write::Add, ViewMut::new(&mut c, m, n));
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
