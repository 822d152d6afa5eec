//! The tuned matrix product in `f32`, `C = A B` with A `[M, K]`, B `[K, N]` and C `[M, N]`: tiles of C in registers.
//! Start with [`multiply_tuned`], which [`super::multiply`] calls, and `Product::with_simd`, the outer loops.
//!
//! A tile of C (at most 14 rows x 2 vectors with 32 registers, 6 x 2 with 16) stays in registers while the product runs
//! along K. A panel of B, two vectors wide and at most [`DEPTH`] rows deep, is packed so that it stays in the
//! first-level cache for all rows of A. A itself is read in place, because one number at a time is broadcast to a
//! vector. A product with few rows reads B in place, too, because a packed panel would be used by few tiles only.
#![allow(unsafe_code)]
// Indexed loops over small arrays of vectors: iterator adapters and closures would not be compiled for the instruction
// set.
#![allow(clippy::needless_range_loop)]

use pulp::{Simd, WithSimd};

use super::pack::{DEPTH, Panel, PanelSource};
use super::{InitialSum, Matrix, MatrixMut};
use crate::isa::{Isa, multiply_add};
use crate::memory::prefetch_line;

/// The tuned version of the product: sets `c` to `a b` plus the initial sums `start`.
///
/// # Panics
/// If the shapes disagree.
pub(crate) fn multiply_tuned(
    a: Matrix<'_>,
    b: Matrix<'_>,
    start: InitialSum<'_, f32>,
    c: &mut MatrixMut<'_>,
) {
    super::check_shapes(a, b, start, c);
    if c.rows == 0 || c.columns == 0 {
        return;
    }
    let isa = Isa::current();
    // Packing a transposed B has code of its own for AVX.
    let avx = matches!(isa, Isa::Avx512 | Isa::Avx2) && isa.is_usable();
    isa.run(Product { avx, a, b, start, c });
}

/// The kernel of [`multiply_tuned`].
struct Product<'a, 'b> {
    /// Whether packing may use AVX.
    avx: bool,
    a: Matrix<'a>,
    b: Matrix<'a>,
    start: InitialSum<'a, f32>,
    c: &'a mut MatrixMut<'b>,
}

impl WithSimd for Product<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let inner = self.a.columns;
        let width = 2 * S::F32_LANES;
        let mut panel = Panel::new();
        // At most three tiles would use a packed panel.
        let few_rows = self.c.rows <= 3 * max_height::<S>();
        // K is divided into equal blocks of at most DEPTH. There is one even if K is 0, because C still has to be set.
        let blocks = inner.div_ceil(DEPTH).max(1);
        let depth = inner.div_ceil(blocks).max(1);
        for from in (0..inner.max(1)).step_by(depth) {
            let depth = depth.min(inner - from);
            // Later blocks of K add to what the first has written.
            let start = if from == 0 { self.start } else { InitialSum::Existing };
            for column in (0..self.c.columns).step_by(width) {
                let columns = width.min(self.c.columns - column);
                let vectors = columns.div_ceil(S::F32_LANES);
                // Whether B's rows are read where they are, without a packed panel: they must consist of whole vectors.
                let in_place = few_rows && self.b.column_stride == 1 && columns == vectors * S::F32_LANES;
                let corner = from * self.b.row_stride + column * self.b.column_stride;
                let (b, b_stride) = if in_place && depth > 0 {
                    (self.b.data[corner..].as_ptr(), self.b.row_stride)
                } else {
                    let source = PanelSource { b: self.b, from, depth, column, columns };
                    source.pack(simd, &mut panel, self.avx);
                    (panel.as_ptr(), vectors * S::F32_LANES)
                };
                // Columns from `column` on that may be written, the gap after the row included. Whole vectors are
                // written if the last one fits.
                let writable = self.c.columns + self.c.spare - column;
                let columns =
                    if writable < vectors * S::F32_LANES { columns } else { vectors * S::F32_LANES };
                let tiles =
                    Tiles { a: self.a, from, depth, b, b_stride, start, column, columns, c: &mut *self.c };
                // SAFETY: `b` holds `depth` rows of whole vectors, `b_stride` apart: either the panel has just been
                // packed so, or the rows are those of B, which was checked against its data.
                unsafe {
                    if vectors == 1 {
                        tiles.run::<S, 1>(simd)
                    } else {
                        tiles.run::<S, 2>(simd)
                    };
                }
            }
        }
    }
}

/// Maximum number of rows per tile: two accumulators per row, two vectors of B and one for the number of A.
///
/// 12 with NEON: in tiles of 14 rows the compiler writes all accumulators to the stack in every step.
const fn max_height<S: Simd>() -> usize {
    match (S::REGISTER_COUNT >= 32, S::F32_LANES >= 16) {
        (true, true) => 14,
        (true, false) => 12,
        (false, _) => 6,
    }
}

/// All rows of C for one panel of B: `depth` rows from row `from` of B on, `columns` columns from column `column` of C
/// on.
struct Tiles<'a, 'b> {
    a: Matrix<'a>,
    from: usize,
    depth: usize,
    /// The first row of the panel; the next ones are `b_stride` elements apart.
    b: *const f32,
    b_stride: usize,
    start: InitialSum<'a, f32>,
    column: usize,
    /// Columns to write: whole vectors where C has space for them.
    columns: usize,
    c: &'a mut MatrixMut<'b>,
}

impl Tiles<'_, '_> {
    /// Runs the tiles from top to bottom. They have equal heights as far as possible: two of 8 rows are faster than
    /// one of 14 and one of 2.
    ///
    /// # Safety
    /// `b` holds `depth` rows of `V` vectors, `b_stride` apart.
    #[inline(always)]
    unsafe fn run<S: Simd, const V: usize>(self, simd: S) {
        let rows = self.c.rows;
        let tiles = rows.div_ceil(max_height::<S>());
        let mut row = 0;
        for tile in 0..tiles {
            let height = rows / tiles + usize::from(tile < rows % tiles);
            let corner = row * self.a.row_stride + self.from * self.a.column_stride;
            let a = self.a.data.as_ptr().wrapping_add(corner);
            let c = self.c.data.as_mut_ptr().wrapping_add(row * self.c.stride + self.column);
            let (start, start_stride) = match self.start {
                InitialSum::Zero => (std::ptr::null(), 0),
                InitialSum::Existing => (c.cast_const(), self.c.stride),
                InitialSum::Row(added) => (added[self.column..].as_ptr(), 0),
            };
            if let InitialSum::Existing = self.start {
                // The rows of the next tile.
                self.prefetch(row + height, height);
            }
            let operands = TileOperands {
                depth: self.depth,
                a,
                b: self.b,
                b_stride: self.b_stride,
                c,
                c_stride: self.c.stride,
                columns: self.columns,
                start,
                start_stride,
            };
            if self.a.column_stride == 1 {
                operands.run::<S, V, true>(simd, height, self.a.row_stride);
            } else {
                operands.run::<S, V, false>(simd, height, self.a.column_stride);
            }
            row += height;
        }
    }

    /// Prefetches `height` rows of C from row `first` on: a sum of gradients may have left the cache since its last
    /// use.
    #[inline(always)]
    fn prefetch(&self, first: usize, height: usize) {
        for row in first..(first + height).min(self.c.rows) {
            let start = self.c.data.as_ptr().wrapping_add(row * self.c.stride + self.column);
            // One prefetch per cache line of 16 numbers.
            for line in (0..self.columns).step_by(16) {
                prefetch_line(start.wrapping_add(line).cast());
            }
        }
    }
}

/// Pointers to the parts of A, B and C that one tile uses, and the distances of their rows in elements.
#[derive(Clone, Copy)]
struct TileOperands {
    /// Length of the sums: rows of the panel of B.
    depth: usize,
    a: *const f32,
    b: *const f32,
    b_stride: usize,
    c: *mut f32,
    c_stride: usize,
    columns: usize,
    /// The initial values of the sums; null if they start at 0.
    start: *const f32,
    start_stride: usize,
}

impl TileOperands {
    /// Computes a tile of `height` rows and V vectors. ROWS and `a_stride` are those of [`Tile`].
    #[inline(always)]
    fn run<S: Simd, const V: usize, const ROWS: bool>(self, simd: S, height: usize, a_stride: usize) {
        macro_rules! heights {
            ($($height:literal),*) => {
                match height {
                    // One function per height: the compiler allocates registers badly if all are inlined into one.
                    $($height => simd.vectorize(Tile::<$height, V, ROWS> { operands: self, a_stride }),)*
                    _ => unreachable!("a tile of {height} rows"),
                }
            };
        }
        match max_height::<S>() {
            14 => heights!(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14),
            12 => heights!(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12),
            _ => heights!(1, 2, 3, 4, 5, 6),
        }
    }
}

/// A tile of C of H rows and V vectors. Element (i, k) of A is at `i a_stride + k` if ROWS, at `k a_stride + i` if not.
struct Tile<const H: usize, const V: usize, const ROWS: bool> {
    operands: TileOperands,
    a_stride: usize,
}

impl<const H: usize, const V: usize, const ROWS: bool> WithSimd for Tile<H, V, ROWS> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let TileOperands { depth, mut a, mut b, b_stride, .. } = self.operands;
        let mut sums = self.initial_sums(simd);
        for _ in 0..depth {
            // SAFETY: from where these pointers start, A has H rows of `depth` numbers and B `depth` rows of V
            // vectors; the reads do not need alignment.
            unsafe {
                let mut vectors = [simd.splat_f32s(0.0); V];
                for v in 0..V {
                    vectors[v] = b.add(v * S::F32_LANES).cast::<S::f32s>().read_unaligned();
                }
                for i in 0..H {
                    let factor = *a.add(if ROWS { i * self.a_stride } else { i });
                    let factor = simd.splat_f32s(factor);
                    for v in 0..V {
                        sums[i][v] = multiply_add(simd, factor, vectors[v], sums[i][v]);
                    }
                }
                a = a.wrapping_add(if ROWS { 1 } else { self.a_stride });
                b = b.wrapping_add(b_stride);
            }
        }
        self.store(simd, sums);
    }
}

impl<const H: usize, const V: usize, const ROWS: bool> Tile<H, V, ROWS> {
    /// Loads the values that the sums start with. A row that is added to all rows has a `start_stride` of 0.
    #[inline(always)]
    fn initial_sums<S: Simd>(&self, simd: S) -> [[S::f32s; V]; H] {
        let TileOperands { start, start_stride, columns, .. } = self.operands;
        let mut sums = [[simd.splat_f32s(0.0); V]; H];
        if start.is_null() {
            return sums;
        }
        for i in 0..H {
            for v in 0..V {
                let width = columns.saturating_sub(v * S::F32_LANES).min(S::F32_LANES);
                // SAFETY: the rows and columns of the tile are within C, or its columns within the row that is added.
                unsafe {
                    let from = start.add(i * start_stride + v * S::F32_LANES);
                    sums[i][v] = if width == S::F32_LANES {
                        from.cast::<S::f32s>().read_unaligned()
                    } else {
                        simd.partial_load_f32s(std::slice::from_raw_parts(from, width))
                    };
                }
            }
        }
        sums
    }

    /// Writes the sums to C; of the last vector only the columns that may be written.
    #[inline(always)]
    fn store<S: Simd>(self, simd: S, sums: [[S::f32s; V]; H]) {
        let TileOperands { c, c_stride, columns, .. } = self.operands;
        for i in 0..H {
            for v in 0..V {
                let width = columns.saturating_sub(v * S::F32_LANES).min(S::F32_LANES);
                // SAFETY: the rows and columns of the tile are within C, which is borrowed exclusively.
                unsafe {
                    let to = c.add(i * c_stride + v * S::F32_LANES);
                    if width == S::F32_LANES {
                        to.cast::<S::f32s>().write_unaligned(sums[i][v]);
                    } else {
                        simd.partial_store_f32s(std::slice::from_raw_parts_mut(to, width), sums[i][v]);
                    }
                }
            }
        }
    }
}
