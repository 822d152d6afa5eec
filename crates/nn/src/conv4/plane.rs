//! The storage of activations: a [`Plane`] of 64-channel [`Pixel`]s with a margin, covered by [`Tile`]s.

use pulp::Simd;

use super::WIDTH;

/// The 64 channels of one position, aligned to cache lines.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Pixel(pub [f32; WIDTH]);

impl Pixel {
    pub const ZERO: Pixel = Pixel([0.0; WIDTH]);

    /// Vector number `vector` of the channels.
    #[inline(always)]
    pub fn get<S: Simd>(&self, vector: usize) -> S::f32s {
        S::as_simd_f32s(&self.0).0[vector]
    }

    /// Writes vector number `vector` of the channels.
    #[inline(always)]
    pub fn set<S: Simd>(&mut self, vector: usize, value: S::f32s) {
        S::as_mut_simd_f32s(&mut self.0).0[vector] = value;
    }
}

/// The number of vectors in a pixel.
#[inline(always)]
pub(super) fn vectors<S: Simd>() -> usize {
    WIDTH / S::F32_LANES
}

/// Height and width of a tile of outputs.
pub(super) const TILE: usize = 4;
/// Height and width of the input patch of a tile.
pub(super) const PATCH: usize = TILE + 2;
/// Winograd points of a tile: the products per pair of channels.
pub(super) const POINTS: usize = PATCH * PATCH;

/// The storage of one block's input images: S x S pixels with a margin of one zero pixel on all sides, and a larger one
/// at the bottom and right, so that the plane consists of whole tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plane {
    /// S, the side without margins.
    pub side: usize,
}

impl Plane {
    /// Tiles in a row or column.
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

    /// Pixels of an image, margins included.
    pub fn len(self) -> usize {
        self.stride().pow(2)
    }

    /// The index of a pixel within the image's plane.
    pub fn at(self, row: usize, column: usize) -> usize {
        (row + 1) * self.stride() + column + 1
    }

    /// The tile with this number, counted over many images.
    pub fn tile(self, number: usize) -> Tile {
        let (across, within) = (self.tiles_across(), number % self.tiles());
        Tile { image: number / self.tiles(), row: within / across * TILE, column: within % across * TILE }
    }

    /// The index, among the pixels of all images, of a tile's first input: one up and left of its first output.
    pub fn patch(self, tile: Tile) -> usize {
        tile.image * self.len() + tile.row * self.stride() + tile.column
    }

    /// Planes of zeros for `images` images.
    pub fn zeros(self, images: usize) -> Vec<Pixel> {
        vec![Pixel::ZERO; images * self.len()]
    }
}

/// A tile, by its image and its first output pixel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tile {
    pub image: usize,
    pub row: usize,
    pub column: usize,
}
