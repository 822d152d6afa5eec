//! Images that are stored as an array of pixels, one image after the other. [`ImageArray`] is the array of a file,
//! [`Pixels`] one of its images.

use bytes::Bytes;
use trueshot::arrays::Array;

use crate::decoded_image::{Channels, DecodedImage};

/// The order of the bytes of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum PixelLayout {
    /// One byte per pixel.
    Grey,
    /// Red, green and blue of one pixel after the other.
    Interleaved,
    /// The red bytes of all pixels, then the green, then the blue.
    Planar,
}

/// The bytes of one image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::source) struct Pixels {
    bytes: Bytes,
    width: usize,
    height: usize,
    layout: PixelLayout,
}

impl Pixels {
    /// An image of CIFAR: 32 x 32 pixels, planar.
    pub fn cifar(bytes: Bytes) -> Self {
        Pixels { bytes, width: 32, height: 32, layout: PixelLayout::Planar }
    }

    /// Decodes the image with the given channels.
    pub fn to_image(&self, channels: Channels) -> DecodedImage {
        let (pixels, stored) = match self.layout {
            PixelLayout::Grey => (self.bytes.to_vec(), Channels::Grey),
            PixelLayout::Interleaved => (self.bytes.to_vec(), Channels::Colour),
            PixelLayout::Planar => {
                let count = self.width * self.height;
                // Byte `index` of each of the three planes of `count` bytes.
                let pixel = |index: usize| [0, 1, 2].map(|colour| self.bytes[colour * count + index]);
                ((0..count).flat_map(pixel).collect(), Channels::Colour)
            }
        };
        DecodedImage::new(self.width, self.height, stored, pixels).with_channels(channels)
    }
}

/// An array of images of the same size.
pub(super) struct ImageArray<'a> {
    array: &'a Array,
    /// Number of images.
    pub count: usize,
    width: usize,
    height: usize,
    layout: PixelLayout,
}

impl<'a> ImageArray<'a> {
    /// Interprets an array as images.
    ///
    /// # Errors
    /// A message with the type and shape of the array, if they are not supported.
    pub fn new(array: &'a Array) -> Result<Self, String> {
        let unsupported = || {
            let Array { kind, width, shape, fortran_order, .. } = array;
            let order = if *fortran_order { ", columns first" } else { "" };
            format!(
                "its images are an array of type {kind}{width} and shape {shape:?}{order}; supported: bytes (u1) \
                 of [images, height, width, 3], [images, 3, height, width] and [images, height, width]"
            )
        };
        // `shape` is that of one image, without the first dimension.
        let (count, shape) = array.byte_rows().ok_or_else(unsupported)?;
        let (height, width, layout) = match *shape {
            [height, width, 3] => (height, width, PixelLayout::Interleaved),
            [height, width, 1] | [height, width] => (height, width, PixelLayout::Grey),
            [3, height, width] => (height, width, PixelLayout::Planar),
            // CIFAR-100's own files: 3 x 32 x 32 bytes per image.
            [3072] => (32, 32, PixelLayout::Planar),
            _ => return Err(unsupported()),
        };
        if count == 0 || width == 0 || height == 0 {
            return Err(unsupported());
        }
        Ok(ImageArray { array, count, width, height, layout })
    }

    /// The image at index `row`; `None` if `row` is not below `count`.
    pub fn get(&self, row: usize) -> Option<Pixels> {
        let length = self.array.data.len() / self.count;
        let (width, height, layout) = (self.width, self.height, self.layout);
        let bytes = (row < self.count).then(|| self.array.data.slice(row * length..(row + 1) * length))?;
        Some(Pixels { bytes, width, height, layout })
    }
}
