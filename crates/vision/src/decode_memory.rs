//! Computes from the header of an image file how much memory decoding it takes at most ([`ImageHeader::peak_bytes`]).
//! [`decoded_image`](crate::decoded_image) takes that much from the memory budget before it decodes the file.
//!
//! The decoders of the `image` crate check only some of their buffers against a limit. The coefficients of a
//! progressive JPEG and the frames of a WebP, for instance, are allocated unchecked, so the size of those buffers is
//! computed here from the header. The constants and formulas follow the code of the decoders. They are upper bounds:
//! `tests/decode_memory.rs` decodes files of every format with an allocator that refuses more.

use image::metadata::Orientation;
use image::{ColorType, ImageFormat};

use crate::decoded_image::Channels;
use crate::webp_tables::table_bytes;

/// Allowance for tables, row buffers and other small buffers of a decoder.
const SMALL_BUFFER_BYTES: u64 = 1 << 20;
/// Allowance for the buffers of a PNG or BMP decoder, in rows of the image.
const DECODER_ROWS: u64 = 8;
/// Allowance for the rows that the JPEG decoder holds at a time, per pixel of the width: samples of 16 bits in blocks
/// of 8 or 16 rows, upsampled.
const JPEG_BYTES_PER_ROW_PIXEL: u64 = 1 << 10;

/// What the header of a file says about its image.
pub(crate) struct ImageHeader<'a> {
    /// The whole file.
    pub bytes: &'a [u8],
    pub format: ImageFormat,
    pub width: u32,
    pub height: u32,
    /// The channels and bytes per pixel that the decoder produces.
    pub color: ColorType,
    /// How the image must be rotated or mirrored to be upright.
    pub orientation: Orientation,
}

impl ImageHeader<'_> {
    /// Pixels of the image, or of its largest frame if that claims more.
    pub fn pixels(&self) -> u64 {
        let frame = if self.format == ImageFormat::WebP { largest_webp_frame(self.bytes) } else { 0 };
        (u64::from(self.width) * u64::from(self.height)).max(frame)
    }

    /// The most bytes in use at once until the image is decoded, converted to `channels` with one byte each, and
    /// upright. These three steps come one after the other, so the largest of them counts.
    pub fn peak_bytes(&self, channels: Channels) -> u64 {
        let pixels = self.pixels();
        let decoded = pixels * u64::from(self.color.bytes_per_pixel());
        let converted = pixels * channels.count() as u64;
        let decoding = decoded + self.decoder_bytes() + SMALL_BUFFER_BYTES;
        // The conversion works in place; rows that become longer need a larger buffer.
        let converting = if converted > decoded { decoded + converted } else { decoded };
        let rotating = if swaps_sides(self.orientation) { 2 * converted } else { 0 };
        decoding.max(converting).max(rotating)
    }

    /// What the decoder itself needs besides the decoded image.
    pub fn decoder_bytes(&self) -> u64 {
        let (pixels, length) = (self.pixels(), self.bytes.len() as u64);
        let row = u64::from(self.width) * u64::from(self.color.bytes_per_pixel());
        match self.format {
            // The decoder copies the file.
            ImageFormat::Jpeg => {
                length
                    + jpeg_coefficients(self.bytes, self.width, self.height)
                    + u64::from(self.width) * JPEG_BYTES_PER_ROW_PIXEL
            }
            // A frame smaller than the image is decoded separately, with four bytes per pixel.
            ImageFormat::Gif => 4 * pixels,
            // A second copy of the image, and the packed strip. The copy of a CMYK image has four channels, although
            // the decoded image has three.
            ImageFormat::Tiff => pixels * u64::from(self.color.bytes_per_pixel()) * 4 / 3 + length,
            ImageFormat::WebP => {
                let tables = table_bytes(self.bytes, self.width, self.height);
                length + pixels * webp_bytes_per_pixel(self.bytes) + tables
            }
            _ => DECODER_ROWS * row,
        }
    }

    /// The limit in bytes to give to the decoder, for the buffers that it does check.
    pub fn decoder_limit(&self) -> u64 {
        match self.format {
            // Only the frame is checked.
            ImageFormat::Gif => self.decoder_bytes(),
            _ => self.pixels() * u64::from(self.color.bytes_per_pixel()) + self.decoder_bytes(),
        }
    }
}

/// Whether making the image upright swaps width and height, which needs a second copy; other orientations are applied
/// in place.
fn swaps_sides(orientation: Orientation) -> bool {
    use Orientation::*;
    matches!(orientation, Rotate90 | Rotate270 | Rotate90FlipH | Rotate270FlipH)
}

/// Bytes of the coefficients that the decoder keeps for the whole image: 16 bits each, for a progressive JPEG or one
/// whose components come in separate scans; nothing for the usual kind.
fn jpeg_coefficients(bytes: &[u8], width: u32, height: u32) -> u64 {
    // Goes from marker to marker (FF and a byte, then a segment that starts with its length) up to the first scan.
    let mut rest = bytes.get(2..).unwrap_or_default();
    // Whether the image is progressive, and the description of its components.
    let mut frame: Option<(bool, &[u8])> = None;
    while let [0xff, marker, after @ ..] = rest {
        // FF may be repeated before a marker.
        if *marker == 0xff {
            rest = &rest[1..];
            continue;
        }
        let Some(([high, low], segment)) = after.split_first_chunk() else { break };
        match (marker, frame) {
            // Start of frame: C2 is progressive. `segment` starts after its length: the number of components is at
            // byte 5, then come three bytes each.
            (0xc0..=0xc3, _) => {
                let count = segment.get(5).copied().map_or(0, usize::from);
                let components = segment.get(6..6 + 3 * count).unwrap_or_default();
                frame = Some((*marker == 0xc2, components));
            }
            // Start of scan, with the number of its components. All coefficients are kept unless this scan has all.
            (0xda, Some((is_progressive, components))) => {
                let in_first_scan = segment.first().copied().map_or(0, usize::from);
                let keeps_all = is_progressive || in_first_scan != components.len() / 3;
                return if keeps_all { jpeg_samples(components, width, height) * 2 } else { 0 };
            }
            _ => {}
        }
        rest = after.get(usize::from(u16::from_be_bytes([*high, *low]))..).unwrap_or_default();
    }
    // The decoder may understand markers that this function does not: assume four components of full size. In 0x44 both
    // factors are 4; equal factors mean full size.
    jpeg_samples(&[0, 0x44, 0].repeat(4), width, height) * 2
}

/// The number of samples of all components of a JPEG. Each component is described by three bytes, the second of which
/// has the sampling factors: how many blocks of 8 x 8 samples it has across (high half) and down (low half) in an area
/// of the size that the largest factors give. Areas at the edge are stored whole.
fn jpeg_samples(components: &[u8], width: u32, height: u32) -> u64 {
    let factors =
        || components.iter().skip(1).step_by(3).map(|byte| (u64::from(byte >> 4), u64::from(byte & 15)));
    let most_across = factors().map(|(across, _)| across).fold(1, u64::max);
    let most_down = factors().map(|(_, down)| down).fold(1, u64::max);
    let areas = u64::from(width).div_ceil(8 * most_across) * u64::from(height).div_ceil(8 * most_down);
    factors().map(|(across, down)| areas * across * down * 64).sum()
}

/// Bytes that the WebP decoder allocates per pixel besides the decoded image, by the first chunk of the file: lossy,
/// lossless, or extended (with transparency or animation).
fn webp_bytes_per_pixel(bytes: &[u8]) -> u64 {
    match bytes.get(12..16) {
        // One byte of luminance, and two planes of chroma of a quarter of the size: 1.5, rounded up.
        Some(b"VP8 ") => 2,
        // Four channels, and predictors of at most a byte per pixel.
        Some(b"VP8L") => 5,
        // Canvas and frame of four channels each; planes as of a lossy image; transparency, decoded like a lossless
        // image and then copied to one channel.
        _ => 4 + 4 + 2 + 5 + 1,
    }
}

/// Pixels of the largest frame that a lossy WebP holds. The decoder allocates a frame by the frame's own size and only
/// then compares it with the size of the image. Instead of following the structure of the file, this looks for `VP8 `
/// everywhere: after the letters and the length (8 bytes) come a tag of 3 bytes, a start code of 3, and 14 bits each of
/// width and height.
fn largest_webp_frame(bytes: &[u8]) -> u64 {
    // The lowest 14 of the 16 bits at a position; the others are a scale for display.
    let side = |at: usize| {
        bytes.get(at..at + 2).map_or(0, |side| u64::from(u16::from_le_bytes([side[0], side[1]]) & 0x3fff))
    };
    let is_frame = |at: &usize| {
        bytes[*at..].starts_with(b"VP8 ") && bytes.get(at + 11..at + 14) == Some(&[0x9d, 0x01, 0x2a])
    };
    let frames = (0..bytes.len()).filter(is_frame);
    frames.map(|at| side(at + 14) * side(at + 16)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The markers of a JPEG up to its first scan, with two components of chroma at a quarter of the size. `frame` is
    /// the marker of the frame, `in_first_scan` the number of components in the first scan.
    fn jpeg(frame: u8, in_first_scan: u8) -> Vec<u8> {
        let mut bytes = vec![0xff, 0xd8, 0xff, 0xe0, 0, 4, 1, 2, 0xff, 0xff, frame, 0, 17, 8, 0, 9, 0, 9, 3];
        bytes.extend([1, 0x22, 0, 2, 0x11, 0, 3, 0x11, 0]);
        bytes.extend([0xff, 0xda, 0, 3, in_first_scan]);
        bytes
    }

    #[test]
    fn only_jpegs_that_come_in_several_scans_keep_their_coefficients() {
        // Two bytes per sample, and 1 + 1/4 + 1/4 = 3/2 samples per pixel of whole areas of 16 x 16 pixels.
        assert_eq!(jpeg_coefficients(&jpeg(0xc0, 3), 64, 64), 0);
        assert_eq!(jpeg_coefficients(&jpeg(0xc0, 1), 64, 64), 2 * 64 * 64 * 3 / 2);
        assert_eq!(jpeg_coefficients(&jpeg(0xc2, 3), 1, 17), 2 * 16 * 32 * 3 / 2);
        assert_eq!(jpeg_coefficients(b"no markers", 64, 64), 2 * 4 * 64 * 64);
    }

    #[test]
    fn photographs_of_fifty_megapixels_fit_into_the_budget_of_a_server() {
        let (width, height) = (8660, 5773);
        for (frame, orientation) in [(0xc0, Orientation::Rotate90), (0xc2, Orientation::NoTransforms)] {
            let mut bytes = jpeg(frame, 3);
            bytes.resize(30 << 20, 0);
            let (format, color) = (ImageFormat::Jpeg, ColorType::Rgb8);
            let header = ImageHeader { bytes: &bytes, format, width, height, color, orientation };
            assert!(
                header.peak_bytes(Channels::Colour) < 384 << 20,
                "{}",
                header.peak_bytes(Channels::Colour)
            );
        }
    }

    #[test]
    fn a_jpeg_that_ends_anywhere_is_counted_without_a_panic() {
        let whole = jpeg(0xc2, 3);
        for end in 0..whole.len() {
            jpeg_coefficients(&whole[..end], 64, 64);
        }
    }

    #[test]
    fn a_webp_frame_larger_than_its_canvas_counts() {
        let mut bytes = b"RIFF....WEBPVP8X....".to_vec();
        bytes.extend(b"VP8 \x20\0\0\0\0\0\0\x9d\x01\x2a\xff\x3f\xff\x3f");
        assert_eq!(largest_webp_frame(&bytes), 16_383 * 16_383);
        assert_eq!(largest_webp_frame(&bytes[..bytes.len() - 3]), 0);
        assert_eq!(largest_webp_frame(b"VP8 "), 0);
    }
}
