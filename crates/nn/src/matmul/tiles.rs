//! The tuned product: tiles of C in registers.
//!
//! A tile of C (14 rows x 2 vectors with AVX-512, 6 x 2 with AVX2) stays in registers while K runs. A panel of B two
//! vectors wide and at most [`DEPTH`] deep is copied together so that it lies in the first-level cache, and all rows
//! of A pass by it; A itself is read where it lies, since one number of it at a time is spread over a vector anyway.
//! A product with few rows reads B in place, too.
#![allow(unsafe_code)]
// Indexed loops over small arrays of vectors: iterators and closures would not be inlined into the instruction set's
// context.
#![allow(clippy::needless_range_loop)]

use pulp::{Simd, WithSimd};

use super::pack::{DEPTH, Panel, Part};
use super::{Start, View, ViewMut};
use crate::isa::{Isa, multiply_add};
use crate::memory::prefetch_line;

/// The tuned version; shapes have been checked and C is not empty.
pub(crate) fn multiply_tuned(isa: Isa, a: View<'_>, b: View<'_>, start: Start<'_, f32>, c: &mut ViewMut<'_>) {
    // The transposing copy below has instructions of its own.
    let avx = isa != Isa::Portable && isa.is_usable();
    isa.run(Product { avx, a, b, start, c });
}

struct Product<'a, 'b> {
    avx: bool,
    a: View<'a>,
    b: View<'a>,
    start: Start<'a, f32>,
    c: &'a mut ViewMut<'b>,
}

impl WithSimd for Product<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (inner, tallest) = (self.a.columns, tallest::<S>());
        let width = 2 * S::F32_LANES;
        let mut panel = Panel::new();
        let few_rows = self.c.rows <= 3 * tallest;
        let stretches = inner.div_ceil(DEPTH).max(1);
        let depth = inner.div_ceil(stretches).max(1);
        for from in (0..inner.max(1)).step_by(depth) {
            let depth = depth.min(inner - from);
            let start = if from == 0 { self.start } else { Start::Old };
            for column in (0..self.c.columns).step_by(width) {
                let columns = width.min(self.c.columns - column);
                let vectors = columns.div_ceil(S::F32_LANES);
                let in_place = few_rows && self.b.column_stride == 1 && columns == vectors * S::F32_LANES;
                let corner = from * self.b.row_stride + column * self.b.column_stride;
                let (b, b_stride) = if in_place && depth > 0 {
                    (self.b.data[corner..].as_ptr(), self.b.row_stride)
                } else {
                    let part = Part { b: self.b, from, depth, column, columns };
                    part.pack(simd, &mut panel, self.avx);
                    (panel.as_ptr(), vectors * S::F32_LANES)
                };
                // Whole vectors are written if what fills up the last one may be.
                let room = self.c.columns + self.c.spare - column;
                let columns = if room < vectors * S::F32_LANES { columns } else { vectors * S::F32_LANES };
                let tiles =
                    Tiles { a: self.a, from, depth, b, b_stride, start, column, columns, c: &mut *self.c };
                // SAFETY: `b` holds `depth` rows of whole vectors, `b_stride` apart: the panel was just made
                // so, or the numbers lie in B, whose view was checked against its data.
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

/// The most rows of a tile: two accumulators each, two vectors of B and one for the number of A.
const fn tallest<S: Simd>() -> usize {
    if S::REGISTER_COUNT >= 32 { 14 } else { 6 }
}

/// All rows of C for one panel of B.
struct Tiles<'a, 'b> {
    a: View<'a>,
    from: usize,
    depth: usize,
    b: *const f32,
    b_stride: usize,
    start: Start<'a, f32>,
    column: usize,
    columns: usize,
    c: &'a mut ViewMut<'b>,
}

impl Tiles<'_, '_> {
    /// Rows are shared out evenly: two tiles of 8 beat one of 14 and one of 2.
    ///
    /// # Safety
    /// `b` holds `depth` rows of `V` vectors, `b_stride` apart.
    #[inline(always)]
    unsafe fn run<S: Simd, const V: usize>(self, simd: S) {
        let rows = self.c.rows;
        let tiles = rows.div_ceil(tallest::<S>());
        let mut row = 0;
        for tile in 0..tiles {
            let height = rows / tiles + usize::from(tile < rows % tiles);
            let corner = row * self.a.row_stride + self.from * self.a.column_stride;
            let a = self.a.data.as_ptr().wrapping_add(corner);
            let c = self.c.data.as_mut_ptr().wrapping_add(row * self.c.stride + self.column);
            let (start, start_stride) = match self.start {
                Start::Zero => (std::ptr::null(), 0),
                Start::Old => (c.cast_const(), self.c.stride),
                Start::Row(row) => (row[self.column..].as_ptr(), 0),
            };
            if let Start::Old = self.start {
                self.prefetch(row + height, height);
            }
            let place = Place {
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
                place.run::<S, V, true>(simd, height, self.a.row_stride);
            } else {
                place.run::<S, V, false>(simd, height, self.a.column_stride);
            }
            row += height;
        }
    }

    /// Calls in some rows of C: a sum of gradients may not have been touched for long.
    #[inline(always)]
    fn prefetch(&self, row: usize, height: usize) {
        for row in row..(row + height).min(self.c.rows) {
            let start = self.c.data.as_ptr().wrapping_add(row * self.c.stride + self.column);
            for line in (0..self.columns).step_by(16) {
                prefetch_line(start.wrapping_add(line).cast());
            }
        }
    }
}

/// Where one tile of C finds its numbers.
#[derive(Clone, Copy)]
struct Place {
    depth: usize,
    a: *const f32,
    b: *const f32,
    b_stride: usize,
    c: *mut f32,
    c_stride: usize,
    columns: usize,
    /// Where the sums' first values are, if they do not start at 0.
    start: *const f32,
    start_stride: usize,
}

impl Place {
    #[inline(always)]
    fn run<S: Simd, const V: usize, const ROWS: bool>(self, simd: S, height: usize, a_stride: usize) {
        macro_rules! heights {
            ($($height:literal),*) => {
                match height {
                    // A function each: one that holds them all would be more than the compiler can handle well.
                    $($height => simd.vectorize(Tile::<$height, V, ROWS> { place: self, a_stride }),)*
                    _ => unreachable!("a tile of {height} rows"),
                }
            };
        }
        if S::REGISTER_COUNT >= 32 {
            heights!(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14);
        } else {
            heights!(1, 2, 3, 4, 5, 6);
        }
    }
}

/// H rows x V vectors of C. A number of A in row i and depth k lies at `i a_stride + k` if ROWS, at
/// `k a_stride + i` if not.
struct Tile<const H: usize, const V: usize, const ROWS: bool> {
    place: Place,
    a_stride: usize,
}

impl<const H: usize, const V: usize, const ROWS: bool> WithSimd for Tile<H, V, ROWS> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Place { depth, mut a, mut b, b_stride, .. } = self.place;
        let mut sums = self.first(simd);
        for _ in 0..depth {
            // SAFETY: H rows of A and V vectors of B are `depth` deep from where these pointers start; numbers
            // are read without regard to alignment.
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
    /// What the sums start with.
    #[inline(always)]
    fn first<S: Simd>(&self, simd: S) -> [[S::f32s; V]; H] {
        let Place { start, start_stride, columns, .. } = self.place;
        let mut sums = [[simd.splat_f32s(0.0); V]; H];
        if start.is_null() {
            return sums;
        }
        for i in 0..H {
            for v in 0..V {
                let width = columns.saturating_sub(v * S::F32_LANES).min(S::F32_LANES);
                // SAFETY: the tile's rows and columns lie in C, or its columns in the row that is added.
                unsafe {
                    let place = start.add(i * start_stride + v * S::F32_LANES);
                    sums[i][v] = if width == S::F32_LANES {
                        place.cast::<S::f32s>().read_unaligned()
                    } else {
                        simd.partial_load_f32s(std::slice::from_raw_parts(place, width))
                    };
                }
            }
        }
        sums
    }

    #[inline(always)]
    fn store<S: Simd>(self, simd: S, sums: [[S::f32s; V]; H]) {
        let Place { c, c_stride, columns, .. } = self.place;
        for i in 0..H {
            for v in 0..V {
                let width = columns.saturating_sub(v * S::F32_LANES).min(S::F32_LANES);
                // SAFETY: the tile's rows and columns lie in C, which nobody else holds.
                unsafe {
                    let place = c.add(i * c_stride + v * S::F32_LANES);
                    if width == S::F32_LANES {
                        place.cast::<S::f32s>().write_unaligned(sums[i][v]);
                    } else {
                        simd.partial_store_f32s(std::slice::from_raw_parts_mut(place, width), sums[i][v]);
                    }
                }
            }
        }
    }
}
