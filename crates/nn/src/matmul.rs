//! Products of matrices on one thread: `C = A B` or `C += A B` over strided views, either of A and B transposed.
//!
//! Shapes: A is M x K, B is K x N, C is M x N. A tile of C (14 rows x 2 vectors with AVX-512, 6 x 2 with AVX2)
//! stays in registers while K runs. A panel of B two vectors wide and at most [`DEPTH`] deep is copied together
//! so that it lies in the first-level cache, and all rows of A pass by it; A itself is read where it lies, since
//! one number of it at a time is spread over a vector anyway. A product with few rows reads B in place, too.
//! Every element is summed over K in order, in stretches that depend on K alone, so it does not depend on the
//! other rows and columns of the product.
#![allow(unsafe_code)]
// Indexed loops over small arrays of vectors: iterators and closures would not be inlined into the instruction set's
// context.
#![allow(clippy::needless_range_loop)]

use std::mem::MaybeUninit;

use pulp::{Simd, WithSimd};

use crate::isa::Isa;
use crate::memory::prefetch_line;
use crate::real::Real;

/// How deep a panel of B is at most: 32 KiB of the first-level cache.
const DEPTH: usize = 256;
/// The most columns of a panel: two of the widest vectors.
const WIDEST: usize = 32;

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
        assert_eq!(data.len(), rows * columns, "{rows} x {columns}");
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
        assert_eq!(data.len(), rows * columns, "{rows} x {columns}");
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
    let end = if rows == 0 { 0 } else { (rows - 1) * stride + columns };
    assert!(end <= len, "{rows} rows of {columns}, {stride} apart, in {len} numbers");
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

/// A panel of B, as deep as the current stretch of K.
#[repr(align(64))]
struct Panel([MaybeUninit<f32>; DEPTH * WIDEST]);

impl WithSimd for Product<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (inner, tallest) = (self.a.columns, tallest::<S>());
        let width = 2 * S::F32_LANES;
        let mut panel = Panel([const { MaybeUninit::uninit() }; DEPTH * WIDEST]);
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
                    (panel.0.as_ptr().cast(), vectors * S::F32_LANES)
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

/// How many rows of B are called in ahead of the one that is copied.
const AHEAD: usize = 12;

/// A part of B that makes a panel.
struct Part<'a> {
    b: View<'a>,
    from: usize,
    depth: usize,
    column: usize,
    columns: usize,
}

impl Part<'_> {
    /// Copies it into a panel of whole vectors. What fills up the last one is not stored later.
    #[inline(always)]
    fn pack<S: Simd>(self, simd: S, panel: &mut Panel, avx: bool) {
        let width = self.columns.next_multiple_of(S::F32_LANES);
        let panel = &mut panel.0[..self.depth * width];
        // SAFETY: plain numbers: what is not initialised yet is written below, every element of it, before any
        // is read.
        let panel = unsafe { &mut *(std::ptr::from_mut(panel) as *mut [f32]) };
        if self.b.column_stride == 1 {
            for (k, to) in panel.chunks_exact_mut(width).enumerate() {
                let start = (self.from + k) * self.b.row_stride + self.column;
                // Short pieces far apart: the processor does not see by itself what comes next.
                let ahead = self.b.data[start..].as_ptr().wrapping_add(AHEAD * self.b.row_stride);
                for line in (0..width).step_by(16) {
                    prefetch_line(ahead.wrapping_add(line).cast());
                }
                copy_padded(simd, &self.b.data[start..start + self.columns], to);
            }
        } else {
            self.transpose(panel, width, avx);
        }
    }

    /// Copies it where B lies transposed: in blocks of 8 x 8 where there are instructions for that, the rest
    /// number for number. Columns beyond the last repeat it: what becomes of them is not stored.
    #[inline(always)]
    fn transpose(&self, panel: &mut [f32], width: usize, avx: bool) {
        let whole = if avx { self.depth / BLOCK * BLOCK } else { 0 };
        let stride = self.b.column_stride;
        let from = &self.b.data[self.column * stride + self.from..];
        for column in (0..width).step_by(BLOCK) {
            let (column_from, valid) =
                (column.min(self.columns - 1), self.columns.saturating_sub(column).max(1));
            for k in (0..whole).step_by(BLOCK) {
                let (from, to) = (&from[column_from * stride + k..], &mut panel[k * width + column..]);
                let last = valid.min(BLOCK) - 1;
                assert!(from.len() > last * stride + 7 && to.len() > 7 * width + 7, "a block of 8 x 8");
                // SAFETY: both blocks were just seen to lie in their slices, and AVX to be there.
                #[cfg(target_arch = "x86_64")]
                unsafe {
                    transpose_block(from.as_ptr(), stride, last, to.as_mut_ptr(), width);
                }
                #[cfg(not(target_arch = "x86_64"))]
                let _ = (from, to);
            }
        }
        for column in 0..width {
            let start = column.min(self.columns - 1) * stride;
            let from = &from[start + whole..start + self.depth];
            for (row, &value) in panel[whole * width..].chunks_exact_mut(width).zip(from) {
                row[column] = value;
            }
        }
    }
}

/// Side of the squares that are transposed at once.
const BLOCK: usize = 8;

/// `to[k][j] = from[j][k]` for 8 x 8 numbers; rows of `from` beyond the `last` are like that one.
///
/// # Safety
/// `last` + 1 rows of 8 numbers can be read, 8 written, at these distances.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx")]
#[inline]
unsafe fn transpose_block(from: *const f32, stride: usize, last: usize, to: *mut f32, width: usize) {
    use std::arch::x86_64::{
        __m256, _mm_loadu_ps, _mm256_castps128_ps256, _mm256_insertf128_ps, _mm256_setzero_ps,
        _mm256_shuffle_ps, _mm256_storeu_ps, _mm256_unpackhi_ps, _mm256_unpacklo_ps,
    };
    // SAFETY: as the caller promises.
    unsafe {
        // Halves of rows j and j + 4 side by side: what crosses the halves happens while loading.
        let mut halves: [__m256; 8] = [_mm256_setzero_ps(); 8];
        for j in 0..4 {
            for half in 0..2 {
                let low = _mm_loadu_ps(from.add(j.min(last) * stride + 4 * half));
                let high = _mm_loadu_ps(from.add((j + 4).min(last) * stride + 4 * half));
                halves[4 * half + j] = _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(low), high);
            }
        }
        for half in 0..2 {
            let [a, b, c, d] =
                [halves[4 * half], halves[4 * half + 1], halves[4 * half + 2], halves[4 * half + 3]];
            let (ab, ab_high) = (_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
            let (cd, cd_high) = (_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
            let to = to.add(4 * half * width);
            _mm256_storeu_ps(to, _mm256_shuffle_ps::<0x44>(ab, cd));
            _mm256_storeu_ps(to.add(width), _mm256_shuffle_ps::<0xee>(ab, cd));
            _mm256_storeu_ps(to.add(2 * width), _mm256_shuffle_ps::<0x44>(ab_high, cd_high));
            _mm256_storeu_ps(to.add(3 * width), _mm256_shuffle_ps::<0xee>(ab_high, cd_high));
        }
    }
}

#[inline(always)]
fn copy_padded<S: Simd>(simd: S, from: &[f32], to: &mut [f32]) {
    let (from, rest) = S::as_simd_f32s(from);
    let to = S::as_mut_simd_f32s(to).0;
    for (from, to) in from.iter().zip(&mut *to) {
        *to = *from;
    }
    if !rest.is_empty() {
        to[from.len()] = simd.partial_load_f32s(rest);
    }
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
            // SAFETY: `from` and `row` lie in A, and `row` and `column` in C, whose views were checked against
            // their data.
            let (a, c) = unsafe {
                let a = self.a.data.as_ptr();
                let a = a.add(row * self.a.row_stride + self.from * self.a.column_stride);
                (a, self.c.data.as_mut_ptr().add(row * self.c.stride + self.column))
            };
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
}

impl Tiles<'_, '_> {
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
                        sums[i][v] = simd.mul_add_e_f32s(factor, vectors[v], sums[i][v]);
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

/// `out[c] += sum over i of weights[i][c] rows[i]`: what a few sums over many scattered rows are made of, for
/// instance the gradient of an episode's prototypes from its queries.
///
/// Shapes: R rows of D numbers, weights R x C, out C x D.
///
/// # Panics
/// If the shapes disagree.
pub fn add_weighted_rows<T: Real>(isa: Isa, rows: &[&[T]], weights: &[T], out: &mut [T]) {
    let Some(dim) = rows.first().map(|row| row.len()) else { return };
    assert!(rows.iter().all(|row| row.len() == dim), "rows of different length");
    assert_eq!(weights.len() * dim, rows.len() * out.len(), "one weight for each row and sum");
    T::add_weighted_rows(isa, rows, weights, out);
}

/// The plain version.
pub fn add_weighted_rows_reference<T: Real>(rows: &[&[T]], weights: &[T], out: &mut [T]) {
    let sums = weights.len() / rows.len();
    for (c, out) in out.chunks_exact_mut(rows[0].len().max(1)).enumerate() {
        for (i, row) in rows.iter().enumerate() {
            for (out, &value) in out.iter_mut().zip(*row) {
                *out += weights[i * sums + c] * value;
            }
        }
    }
}

pub(crate) fn add_weighted_rows_tuned(isa: Isa, rows: &[&[f32]], weights: &[f32], out: &mut [f32]) {
    isa.run(WeightedRows { rows, weights, out });
}

struct WeightedRows<'a> {
    rows: &'a [&'a [f32]],
    weights: &'a [f32],
    out: &'a mut [f32],
}

/// Sums held in registers together, and vectors of each.
const GROUP: usize = 5;
const STRETCH: usize = 4;

impl WithSimd for WeightedRows<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let dim = self.rows[0].len();
        let width = STRETCH * S::F32_LANES;
        let sums = self.weights.len() / self.rows.len();
        for from in (0..dim).step_by(width) {
            for start in (0..sums).step_by(GROUP) {
                if from + width <= dim {
                    self.stretch::<S, STRETCH>(simd, start, from);
                } else {
                    for from in (from..dim).step_by(S::F32_LANES) {
                        self.stretch::<S, 1>(simd, start, from);
                    }
                }
            }
        }
    }
}

impl WeightedRows<'_> {
    #[inline(always)]
    fn stretch<S: Simd, const V: usize>(&mut self, simd: S, start: usize, from: usize) {
        let dim = self.rows[0].len();
        let sums = self.weights.len() / self.rows.len();
        let end = (from + V * S::F32_LANES).min(dim);
        let mut totals = [[simd.splat_f32s(0.0); V]; GROUP];
        for (row, weights) in self.rows.iter().zip(self.weights.chunks_exact(sums)) {
            let mut vectors = [simd.splat_f32s(0.0); V];
            for v in 0..V {
                let place = from + v * S::F32_LANES;
                vectors[v] = simd.partial_load_f32s(&row[place..end.min(place + S::F32_LANES)]);
            }
            for g in 0..GROUP {
                // A group that hangs over the edge repeats the last sum and drops the repetition.
                let weight = simd.splat_f32s(weights[(start + g).min(sums - 1)]);
                for v in 0..V {
                    totals[g][v] = simd.mul_add_e_f32s(weight, vectors[v], totals[g][v]);
                }
            }
        }
        for (g, totals) in totals.iter().enumerate().take(sums - start) {
            for v in 0..V {
                let place = from + v * S::F32_LANES;
                let row = (start + g) * dim;
                let out = &mut self.out[row + place..row + end.min(place + S::F32_LANES)];
                let sum = simd.add_f32s(simd.partial_load_f32s(out), totals[v]);
                simd.partial_store_f32s(out, sum);
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

        #[test]
        fn weighted_rows_of_any_shape_agree_with_the_plain_ones(
            rows in 0usize..12, dim in 1usize..150, sums in 1usize..13, seed: u64,
        ) {
            let mut numbers = Numbers::new(seed);
            let owned: Vec<Vec<f32>> = (0..rows).map(|_| numbers.singles(dim)).collect();
            let owned: Vec<&[f32]> = owned.iter().map(Vec::as_slice).collect();
            let (weights, out) = (numbers.singles(rows * sums), numbers.singles(sums * dim));
            let mut expected = out.clone();
            if rows > 0 {
                add_weighted_rows_reference(&owned, &weights, &mut expected);
            }
            for isa in usable() {
                let mut found = out.clone();
                add_weighted_rows(isa, &owned, &weights, &mut found);
                for (found, expected) in found.iter().zip(&expected) {
                    prop_assert!((found - expected).abs() < 1e-5, "{isa:?}: {found} and {expected}");
                }
            }
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
