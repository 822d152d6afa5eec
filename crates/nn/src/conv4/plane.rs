//! Where activations lie: planes of 64-channel pixels with a margin, and the tiles that cover them.

use pulp::Simd;

use super::WIDTH;

/// The 64 channels of one place, on its own cache lines.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(64))]
pub(super) struct Pixel(pub [f32; WIDTH]);

impl Pixel {
    pub const ZERO: Pixel = Pixel([0.0; WIDTH]);

    /// One vector of channels.
    #[inline(always)]
    pub fn get<S: Simd>(&self, vector: usize) -> S::f32s {
        S::as_simd_f32s(&self.0).0[vector]
    }

    /// Writes one vector of channels.
    #[inline(always)]
    pub fn set<S: Simd>(&mut self, vector: usize, value: S::f32s) {
        S::as_mut_simd_f32s(&mut self.0).0[vector] = value;
    }
}

/// Vectors in a pixel.
#[inline(always)]
pub(super) fn vectors<S: Simd>() -> usize {
    WIDTH / S::F32_LANES
}

/// Outputs of a tile in each direction, and inputs it looks at.
pub(super) const TILE: usize = 4;
pub(super) const PATCH: usize = TILE + 2;
/// Products of a tile and channel pair.
pub(super) const POINTS: usize = PATCH * PATCH;

/// The pictures of one block's input: S x S pixels, a margin of one pixel on all sides, and enough of a margin
/// at the far sides for whole tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Plane {
    /// S, without margins.
    pub side: usize,
}

impl Plane {
    /// Tiles in each direction.
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

    /// The place of a pixel.
    pub fn at(self, row: usize, column: usize) -> usize {
        (row + 1) * self.stride() + column + 1
    }

    /// A tile by its number among those of many images.
    pub fn tile(self, number: usize) -> Tile {
        let (across, within) = (self.tiles_across(), number % self.tiles());
        Tile { image: number / self.tiles(), row: within / across * TILE, column: within % across * TILE }
    }

    /// The place, among the pixels of all images, of the first input of a tile: one up and left of its first
    /// output.
    pub fn patch(self, tile: Tile) -> usize {
        tile.image * self.len() + tile.row * self.stride() + tile.column
    }

    /// Planes of zeros for so many images.
    pub fn zeros(self, images: usize) -> Vec<Pixel> {
        vec![Pixel::ZERO; images * self.len()]
    }
}

/// An image and the first output pixel of a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tile {
    pub image: usize,
    pub row: usize,
    pub column: usize,
}
