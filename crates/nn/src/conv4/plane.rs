//! The storage of activations: a [`Plane`] of 64-channel [`Pixel`]s with a margin, covered by [`Tile`]s.
//!
//! [`Plane`] and [`Tile`] hold no data. They say where a pixel lies in a slice of pixels that the passes own.

use pulp::Simd;

use super::WIDTH;

/// The 64 channels of one position, aligned to cache lines.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Pixel(pub [f32; WIDTH]);

impl Pixel {
    pub const ZERO: Pixel = Pixel([0.0; WIDTH]);

    /// SIMD vector `vector` of the channels, which has channel `vector * S::F32_LANES` first.
    #[inline(always)]
    pub fn get<S: Simd>(&self, vector: usize) -> S::f32s {
        S::as_simd_f32s(&self.0).0[vector]
    }

    /// Writes SIMD vector `vector` of the channels, numbered as in [`Pixel::get`].
    #[inline(always)]
    pub fn set<S: Simd>(&mut self, vector: usize, value: S::f32s) {
        S::as_mut_simd_f32s(&mut self.0).0[vector] = value;
    }
}

/// The number of SIMD vectors in a pixel.
#[inline(always)]
pub(super) fn vectors<S: Simd>() -> usize {
    WIDTH / S::F32_LANES
}

/// Height and width of a tile of outputs.
pub(super) const TILE: usize = 4;
/// Height and width of the input patch of a tile: a 3x3 kernel reads one pixel beyond each side.
pub(super) const PATCH: usize = TILE + 2;
/// The size of a transformed patch in Winograd's F(4x4, 3x3): one multiplication per point and pair of input and output
/// channels.
pub(super) const POINTS: usize = PATCH * PATCH;

/// The storage of one image as input of a block, `[stride, stride]` pixels: `side` x `side` pixels from (1, 1) on, with
/// zeros around them. The margin is one row above, one column to the left, and below and to the right at least one, so
/// that whole tiles fit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plane {
    /// Height and width without margins.
    pub side: usize,
}

impl Plane {
    /// Tiles in a row or column; the last one may reach into the margin.
    pub fn tiles_across(self) -> usize {
        self.side.div_ceil(TILE)
    }

    /// Tiles of an image.
    pub fn tiles(self) -> usize {
        self.tiles_across().pow(2)
    }

    /// Pixels in a row, margins included.
    pub fn stride(self) -> usize {
        TILE * self.tiles_across() + 2
    }

    /// Pixels of an image, margins included: `stride²`.
    pub fn len(self) -> usize {
        self.stride().pow(2)
    }

    /// The index of a pixel within the image's plane; `row` and `column` are counted without the margin.
    pub fn index_of(self, row: usize, column: usize) -> usize {
        (row + 1) * self.stride() + column + 1
    }

    /// Tile `number` of a batch: image by image, row by row.
    pub fn tile(self, number: usize) -> Tile {
        let (across, within) = (self.tiles_across(), number % self.tiles());
        Tile { image: number / self.tiles(), row: within / across * TILE, column: within % across * TILE }
    }

    /// The index in the batch of the top left pixel of a tile's patch. The patch starts one pixel above and to the left
    /// of the tile's outputs; the margin moves all pixels one down and to the right, so both cancel out.
    pub fn patch(self, tile: Tile) -> usize {
        tile.image * self.len() + tile.row * self.stride() + tile.column
    }

    /// Planes of zeros for `images` images.
    pub fn zeros(self, images: usize) -> Vec<Pixel> {
        vec![Pixel::ZERO; images * self.len()]
    }
}

/// A tile: its image, and the row and column of its top left output pixel, counted without the margin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tile {
    pub image: usize,
    pub row: usize,
    pub column: usize,
}
