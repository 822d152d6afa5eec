//! Images that are stored as an array of pixels, one image after the other.

use bytes::Bytes;
use trueshot::arrays::Array;

use crate::decoded_image::{Channels, DecodedImage};

/// How the bytes of an image lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PixelLayout {
    /// One byte a pixel.
    Grey,
    /// Red, green and blue of a pixel side by side.
    Interleaved,
    /// All of red, then all of green, then all of blue.
    Planar,
}

/// One image's bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::source) struct Pixels {
    bytes: Bytes,
    width: usize,
    height: usize,
    layout: PixelLayout,
}

impl Pixels {
    /// CIFAR's form: 32 x 32 pixels, colour after colour.
    pub fn cifar(bytes: Bytes) -> Self {
        Pixels { bytes, width: 32, height: 32, layout: PixelLayout::Planar }
    }

    /// The image.
    pub fn to_image(&self, channels: Channels) -> DecodedImage {
        let (pixels, stored) = match self.layout {
            PixelLayout::Grey => (self.bytes.to_vec(), Channels::Grey),
            PixelLayout::Interleaved => (self.bytes.to_vec(), Channels::Colour),
            PixelLayout::Planar => {
                let count = self.width * self.height;
                let pixel = |place: usize| [0, 1, 2].map(|colour| self.bytes[colour * count + place]);
                ((0..count).flat_map(pixel).collect(), Channels::Colour)
            }
        };
        DecodedImage::new(self.width, self.height, stored, pixels).with_channels(channels)
    }
}

/// An array of images.
pub(super) struct ImageArray<'a> {
    array: &'a Array,
    pub count: usize,
    width: usize,
    height: usize,
    layout: PixelLayout,
}

impl<'a> ImageArray<'a> {
    /// Understands an array as images; `Err` is what it is instead.
    pub fn new(array: &'a Array) -> Result<Self, String> {
        let refused = || {
            let Array { kind, width, shape, fortran_order, .. } = array;
            let order = if *fortran_order { ", columns first" } else { "" };
            format!(
                "its images are an array of type {kind}{width} and shape {shape:?}{order}; supported: bytes (u1) \
                 of [images, height, width, 3], [images, 3, height, width] and [images, height, width]"
            )
        };
        let (count, shape) = array.byte_rows().ok_or_else(refused)?;
        let (height, width, layout) = match *shape {
            [height, width, 3] => (height, width, PixelLayout::Interleaved),
            [height, width, 1] | [height, width] => (height, width, PixelLayout::Grey),
            [3, height, width] => (height, width, PixelLayout::Planar),
            [3072] => (32, 32, PixelLayout::Planar),
            _ => return Err(refused()),
        };
        if count == 0 || width == 0 || height == 0 {
            return Err(refused());
        }
        Ok(ImageArray { array, count, width, height, layout })
    }

    /// One image; `None` beyond the last.
    pub fn get(&self, row: usize) -> Option<Pixels> {
        let length = self.array.data.len() / self.count;
        let (width, height, layout) = (self.width, self.height, self.layout);
        let bytes = (row < self.count).then(|| self.array.data.slice(row * length..(row + 1) * length))?;
        Some(Pixels { bytes, width, height, layout })
    }
}
