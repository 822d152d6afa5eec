//! [`Bitmap`]: a drawing with one bit per pixel, ink or paper. The built-in drawings of Omniglot are bitmaps.
//!
//! Networks take it as an image ([`Bitmap::to_image`]), pages as a PNG ([`Bitmap::to_png_data_uri`]). Rows are packed
//! as in PNG, so encoding inverts all bits and deflates them. A one-bit PNG is also the smallest form for a page: 335
//! characters for the average Omniglot drawing, against 870 for an SVG path. Show it enlarged with
//! `image-rendering: pixelated`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;

use crate::decoded_image::{Channels, DecodedImage};

/// An image of one bit per pixel: ink or paper.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Bitmap {
    width: usize,
    height: usize,
    /// Rows from the top, each padded to whole bytes; the leftmost pixel is the highest bit, ink is 1 and
    /// the padding is 0.
    rows: Vec<u8>,
}

impl Bitmap {
    /// The largest width and height, which keeps products of sizes far from overflow.
    pub const MAX_SIDE: usize = 1 << 14;

    /// Makes an image from a function that says for each pixel `(x, y)` whether it is ink.
    ///
    /// # Panics
    ///
    /// If a side is zero or above [`Bitmap::MAX_SIDE`].
    pub fn from_fn(width: usize, height: usize, mut is_ink: impl FnMut(usize, usize) -> bool) -> Self {
        let mut bitmap = Self::blank(width, height);
        let stride = bitmap.stride();
        for y in 0..height {
            for x in 0..width {
                bitmap.rows[y * stride + x / 8] |= u8::from(is_ink(x, y)) << (7 - x % 8);
            }
        }
        bitmap
    }

    /// Makes an image from strips of eight columns, left to right; a strip has one byte per row, from top to bottom.
    /// `None` if the number of bytes does not fit the width and height.
    ///
    /// # Panics
    ///
    /// If a side is zero or above [`Bitmap::MAX_SIDE`].
    pub(crate) fn from_strips(width: usize, height: usize, strips: &[u8]) -> Option<Self> {
        let mut bitmap = Self::blank(width, height);
        let stride = bitmap.stride();
        if strips.len() != stride * height {
            return None;
        }
        // The last strip may be wider than the image: its columns beyond the image are cleared.
        let last_mask = 0xff_u8 << (stride * 8 - width);
        for (column, strip) in strips.chunks_exact(height).enumerate() {
            let mask = if column + 1 == stride { last_mask } else { 0xff };
            for (y, byte) in strip.iter().enumerate() {
                bitmap.rows[y * stride + column] = byte & mask;
            }
        }
        Some(bitmap)
    }

    /// An image without ink.
    fn blank(width: usize, height: usize) -> Self {
        let allowed = 1..=Self::MAX_SIDE;
        assert!(
            allowed.contains(&width) && allowed.contains(&height),
            "width and height must be 1 to 16384, got {width} x {height}"
        );
        Self { width, height, rows: vec![0; width.div_ceil(8) * height] }
    }

    /// Bytes per row.
    fn stride(&self) -> usize {
        self.width.div_ceil(8)
    }

    /// The positions `(x, y)` of all ink, row by row. Skips empty bytes, since most of a drawing is empty.
    pub fn ink(&self) -> impl Iterator<Item = (usize, usize)> {
        let stride = self.stride();
        let filled = self.rows.iter().enumerate().filter(|(_, byte)| **byte != 0);
        filled.flat_map(move |(index, &byte)| {
            // The position of the leftmost pixel of the byte, which is its highest bit.
            let (x, y) = (index % stride * 8, index / stride);
            (0..8).filter(move |bit| byte << bit & 0x80 != 0).map(move |bit| (x + bit, y))
        })
    }

    /// The drawing as an image, black ink on white paper.
    pub fn to_image(&self, channels: Channels) -> DecodedImage {
        let mut pixels = vec![255; self.width * self.height * channels.count()];
        for (x, y) in self.ink() {
            let start = (y * self.width + x) * channels.count();
            pixels[start..start + channels.count()].fill(0);
        }
        DecodedImage::new(self.width, self.height, channels, pixels)
    }

    /// The drawing as a PNG file of one bit per pixel, black ink on white paper.
    pub fn to_png(&self) -> Vec<u8> {
        // In a grey PNG 1 is white, so bits are inverted. Padding bits may be anything.
        let paper: Vec<u8> = self.rows.iter().map(|byte| !byte).collect();
        let mut file = Vec::new();
        // Sides are at most MAX_SIDE, so the casts are exact.
        let mut encoder = png::Encoder::new(&mut file, self.width as u32, self.height as u32);
        encoder.set_color(png::ColorType::Grayscale);
        encoder.set_depth(png::BitDepth::One);
        encoder.set_compression(png::Compression::High);
        // PNG's filters take differences of bytes, which makes one-bit images larger.
        encoder.set_filter(png::Filter::NoFilter);
        let mut writer = encoder.write_header().expect("writing to memory does not fail");
        writer.write_image_data(&paper).expect("the rows have the size that the header says");
        writer.finish().expect("writing to memory does not fail");
        file
    }

    /// The drawing as a `data:` URI for the `src` of an `<img>`, so that a page stays one file.
    pub fn to_png_data_uri(&self) -> String {
        format!("data:image/png;base64,{}", BASE64.encode(self.to_png()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checkerboard(width: usize, height: usize) -> Bitmap {
        Bitmap::from_fn(width, height, |x, y| (x + y) % 2 == 0)
    }

    #[test]
    fn pixels_come_back_as_they_were_drawn() {
        let bitmap = checkerboard(13, 5);
        let expected = (0..5).flat_map(|y| (0..13).map(move |x| (x, y))).filter(|(x, y)| (x + y) % 2 == 0);
        assert!(bitmap.ink().eq(expected));
    }

    #[test]
    fn strips_are_columns_of_bytes_and_their_padding_is_not_ink() {
        let bitmap = Bitmap::from_strips(10, 2, &[0b1000_0001, 0, 0b0100_0000, 0xff]).unwrap();
        assert_eq!(bitmap.ink().collect::<Vec<_>>(), [(0, 0), (7, 0), (9, 0), (8, 1), (9, 1)]);
        assert_eq!(Bitmap::from_strips(10, 2, &[0; 5]), None);
    }

    #[test]
    fn a_png_decodes_to_the_drawing() {
        let bitmap = checkerboard(105, 33);
        let file = bitmap.to_png();
        let mut reader = png::Decoder::new(std::io::Cursor::new(&file)).read_info().unwrap();
        let mut rows = vec![0; reader.output_buffer_size().unwrap()];
        let info = reader.next_frame(&mut rows).unwrap();
        assert_eq!((info.width, info.height, info.bit_depth), (105, 33, png::BitDepth::One));
        let read = Bitmap::from_fn(105, 33, |x, y| rows[y * info.line_size + x / 8] >> (7 - x % 8) & 1 == 0);
        assert_eq!(read, bitmap);
        assert!(bitmap.to_png_data_uri().starts_with("data:image/png;base64,iVBORw0KGgo"));
    }
}
