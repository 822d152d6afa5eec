//! [`DecodedImage`]: the pixels of an image, in one or three channels of eight bits, and the decoding of image files.
//! Start with [`DecodedImage::decode_then`].
//!
//! Every file becomes upright, opaque and eight-bit: transparent pixels are blended with white, the first frame of an
//! animation is used, and the EXIF orientation is applied. Files are not trusted: the size in a header is compared with
//! the length of the file before anything is allocated, the memory for decoding is computed and taken from the
//! [budget](crate::memory_budget) of the process, and a panic in a decoder becomes a reason to skip the file.

use std::io::Cursor;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::PngEncoder;
use image::metadata::Orientation;
use image::{
    ColorType, DynamicImage, ExtendedColorType, GrayImage, ImageDecoder, ImageEncoder, ImageFormat,
    ImageReader, ImageResult, Limits, RgbImage,
};

use crate::decode_memory::ImageHeader;
use crate::error::{Unreadable, UnsupportedFormat};
use crate::memory_budget::{self, Share};

/// The most pixels an image may have, 134 million: more than most cameras have, and below what exhausts memory.
const MAX_PIXELS: u64 = 1 << 27;
/// The longest side an image may have, which is what JPEG allows. Resizing needs memory in proportion to a side.
const MAX_SIDE: u32 = (1 << 16) - 1;
/// Images of up to this number of pixels (4 million) are decoded whatever the file size; larger ones may have at most
/// [`MAX_PIXELS_PER_BYTE`].
const ALWAYS_ALLOWED_PIXELS: u64 = 1 << 22;
/// The most pixels per byte of a file. A blank page in PNG packs about a thousand pixels into a byte; photographs at
/// most a few tens.
const MAX_PIXELS_PER_BYTE: u64 = 2048;
/// The most memory that decoding one image may take, unless the caller allows less.
const MAX_DECODE_MEMORY: u64 = 1 << 30;
/// What a decoder may allocate before the size of the image is known, for instance for colour profiles.
const HEADER_MEMORY: u64 = 8 << 20;
/// Size of the strips in which an image is converted to eight bits per channel without transparency.
const STRIP_BYTES: usize = 1 << 16;
/// The largest file that is read as an image: 512 MiB.
pub(crate) const MAX_FILE_BYTES: u64 = 1 << 29;

/// The channels of an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channels {
    /// One byte per pixel: luminance.
    Grey,
    /// Three bytes per pixel: red, green, blue.
    Colour,
}

impl Channels {
    /// Bytes per pixel.
    pub fn count(self) -> usize {
        match self {
            Channels::Grey => 1,
            Channels::Colour => 3,
        }
    }
}

/// Limits on one image, for callers that allow less than the library does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DecodeLimits {
    /// The most pixels of an image.
    pub pixels: u64,
    /// The most bytes that decoding an image may take.
    pub memory: u64,
}

impl Default for DecodeLimits {
    fn default() -> Self {
        DecodeLimits { pixels: MAX_PIXELS, memory: MAX_DECODE_MEMORY }
    }
}

/// An image as bytes, `[row][column][channel]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodedImage {
    /// Pixels from left to right.
    pub width: usize,
    /// Pixels from top to bottom.
    pub height: usize,
    /// Grey or colour.
    pub channels: Channels,
    /// `width * height * channels` bytes.
    pub pixels: Vec<u8>,
}

impl DecodedImage {
    /// Makes an image of pixels.
    ///
    /// # Panics
    /// If a side is 0, or `pixels` does not have `width * height * channels` bytes.
    pub fn new(width: usize, height: usize, channels: Channels, pixels: Vec<u8>) -> Self {
        assert!(width > 0 && height > 0, "an image of {width} x {height}");
        assert_eq!(pixels.len(), width * height * channels.count(), "bytes of an image");
        DecodedImage { width, height, channels, pixels }
    }

    /// Decodes the bytes of a file. Its memory is counted in the [budget](crate::memory_budget) only until this
    /// returns; where many images are decoded, use [`Self::decode_then`].
    pub fn decode(bytes: &[u8], channels: Channels) -> Result<Self, Unreadable> {
        Self::decode_then(bytes, channels, &DecodeLimits::default(), |image| image)
    }

    /// Decodes the bytes of a file and calls `then` with the image. Waits for memory in the
    /// [budget](crate::memory_budget), and counts the image there until `then` returns.
    ///
    /// `then` usually reduces the image to something small. It must not decode another image or wait for a thread that
    /// does: that can deadlock.
    pub fn decode_then<T>(
        bytes: &[u8],
        channels: Channels,
        limits: &DecodeLimits,
        then: impl FnOnce(DecodedImage) -> T,
    ) -> Result<T, Unreadable> {
        if bytes.is_empty() {
            return Err(Unreadable::Empty);
        }
        // `None` if the decoder panics.
        let decoded = trueshot::guard::caught(|| decode(bytes, channels, limits));
        let inconsistent = || Err(Unreadable::Decoder("its contents are inconsistent".into()));
        // The share of the budget is dropped after `then` has returned.
        let (image, _share) = decoded.unwrap_or_else(inconsistent)?;
        Ok(then(image))
    }

    /// The image converted to `channels`.
    pub(crate) fn with_channels(self, channels: Channels) -> DecodedImage {
        if self.channels == channels {
            return self;
        }
        let image = dynamic_image(self.pixels, self.width as u32, self.height as u32, self.channels);
        DecodedImage::new(self.width, self.height, channels, to_opaque_bytes(image, channels))
    }

    /// The image as a `data:` URI for a page, its longer side at most `most` pixels: grey images (drawings) as PNG,
    /// colour images as JPEG, which is about a fifth as large.
    pub fn to_data_uri(self, most: usize) -> String {
        // Both sides are scaled by the same factor, so that the longer one becomes `most`.
        let longest = self.width.max(self.height);
        let scaled = |side: usize| (side * most).div_ceil(longest).max(1);
        let (width, height) = (scaled(self.width), scaled(self.height));
        let small = if longest > most { self.resized(width, height) } else { self };
        let (width, height) = (small.width as u32, small.height as u32);
        let mut bytes = Vec::new();
        let (kind, written) = match small.channels {
            Channels::Grey => {
                let encoder = PngEncoder::new(&mut bytes);
                ("png", encoder.write_image(&small.pixels, width, height, ExtendedColorType::L8))
            }
            Channels::Colour => {
                let encoder = JpegEncoder::new_with_quality(&mut bytes, 85);
                ("jpeg", encoder.write_image(&small.pixels, width, height, ExtendedColorType::Rgb8))
            }
        };
        written.expect("writing to memory does not fail, and the number of bytes fits the size");
        format!("data:image/{kind};base64,{}", BASE64.encode(bytes))
    }

    /// The image rotated clockwise by `quarters` x 90 degrees.
    pub fn rotated(&self, quarters: usize) -> DecodedImage {
        let count = self.channels.count();
        let (width, height) =
            if quarters.is_multiple_of(2) { (self.width, self.height) } else { (self.height, self.width) };
        let mut pixels = Vec::with_capacity(self.pixels.len());
        for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
            // The position in this image of the pixel that comes to `(x, y)` of the rotated one.
            let (from_x, from_y) = match quarters % 4 {
                0 => (x, y),
                1 => (y, self.height - 1 - x),
                2 => (self.width - 1 - x, self.height - 1 - y),
                _ => (self.width - 1 - y, x),
            };
            let start = (from_y * self.width + from_x) * count;
            pixels.extend_from_slice(&self.pixels[start..start + count]);
        }
        DecodedImage::new(width, height, self.channels, pixels)
    }
}

/// Decodes an image after checking its size and taking its share of the memory budget, which is returned with it.
fn decode(
    bytes: &[u8],
    channels: Channels,
    limits: &DecodeLimits,
) -> Result<(DecodedImage, Share<'static>), Unreadable> {
    // The `image` crate also recognises formats that it cannot read.
    let format = image::guess_format(bytes).ok().filter(ImageFormat::reading_enabled);
    let format = format.ok_or_else(|| unknown_format(bytes))?;
    if format == ImageFormat::Jpeg && is_truncated_jpeg(bytes) {
        return Err(Unreadable::Truncated);
    }
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    reader.limits(decoder_limits(HEADER_MEMORY));
    let mut decoder = reader.into_decoder().map_err(decode_error)?;
    let (width, height) = decoder.dimensions();
    let orientation = Orientation::NoTransforms;
    let mut header = ImageHeader { bytes, format, width, height, color: decoder.color_type(), orientation };
    check_size(&header, limits)?;
    // The header may claim a small size although the frame behind it is large: this limit is for the buffers that the
    // decoder checks itself.
    decoder.set_limits(decoder_limits(header.decoder_limit())).map_err(decode_error)?;
    // A damaged EXIF orientation is ignored.
    header.orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let (need, most) = (header.peak_bytes(channels), limits.memory.min(MAX_DECODE_MEMORY));
    if need > most {
        return Err(Unreadable::OverMemory { width, height, need, most });
    }
    let share = memory_budget::decoded_images().take(need);
    let mut raw = vec![0; decoder.total_bytes() as usize];
    let color = header.color;
    decoder.read_image(&mut raw).map_err(decode_error)?;
    let pixels = convert_channels(raw, color, width, channels);
    Ok((apply_orientation(pixels, width, height, channels, header.orientation), share))
}

/// Limits for a decoder of the `image` crate, in bytes.
fn decoder_limits(memory: u64) -> Limits {
    let mut limits = Limits::default();
    limits.max_alloc = Some(memory);
    limits
}

/// The error for a file that no decoder here reads. Its name is not used: phones send HEIC files named `.jpg`.
fn unknown_format(bytes: &[u8]) -> Unreadable {
    const HEIC: [&[u8]; 7] = [b"heic", b"heix", b"heim", b"heis", b"hevc", b"mif1", b"msf1"];
    const AVIF: [&[u8]; 2] = [b"avif", b"avis"];
    const CANON_RAW: &[u8] = b"crx ";
    // These formats, and videos, start with a length, `ftyp` and a brand of four letters.
    let brand = bytes.get(4..12).and_then(|start| start.strip_prefix(b"ftyp"));
    match brand {
        Some(brand) if AVIF.contains(&brand) => Unreadable::ConvertFirst(UnsupportedFormat::Avif),
        Some(brand) if HEIC.contains(&brand) => Unreadable::ConvertFirst(UnsupportedFormat::Heic),
        Some(CANON_RAW) => Unreadable::ConvertFirst(UnsupportedFormat::CameraRaw),
        Some(_) => Unreadable::Video,
        None if is_svg(bytes) => Unreadable::ConvertFirst(UnsupportedFormat::Svg),
        None => Unreadable::Format,
    }
}

/// Whether bytes start as an SVG file does: `<svg`, possibly after an XML declaration, a document type and comments.
pub fn is_svg(bytes: &[u8]) -> bool {
    const SEARCHED_BYTES: usize = 4096;
    let start = &bytes[..bytes.len().min(SEARCHED_BYTES)];
    // A byte order mark and white space may come first.
    let start = start.strip_prefix(b"\xef\xbb\xbf").unwrap_or(start).trim_ascii_start();
    let is_xml = [b"<?xml".as_slice(), b"<!DOCTYPE svg", b"<!--"].iter().any(|head| start.starts_with(head));
    start.starts_with(b"<svg") || is_xml && start.windows(4).any(|window| window == b"<svg")
}

/// The most pixels that a file of `bytes` bytes may have.
fn max_pixels_of_file(bytes: usize) -> u64 {
    MAX_PIXELS.min((bytes as u64).saturating_mul(MAX_PIXELS_PER_BYTE).max(ALWAYS_ALLOWED_PIXELS))
}

/// Checks the size that the header claims.
fn check_size(header: &ImageHeader<'_>, limits: &DecodeLimits) -> Result<(), Unreadable> {
    let (width, height, bytes) = (header.width, header.height, header.bytes.len());
    let pixels = header.pixels();
    if width == 0 || height == 0 {
        Err(Unreadable::NoPixels { width, height })
    } else if pixels > max_pixels_of_file(bytes) {
        Err(Unreadable::TooManyPixels { width, height, bytes })
    } else if pixels > limits.pixels {
        Err(Unreadable::OverLimit { width, height, most: limits.pixels })
    } else if width.max(height) > MAX_SIDE {
        Err(Unreadable::TooLong { width, height, longest: MAX_SIDE })
    } else {
        Ok(())
    }
}

/// Whether a JPEG has no end marker. The decoder would fill the missing part with grey. Goes from marker to marker
/// rather than searching for the end marker from either end: a segment may contain a thumbnail with its own end marker,
/// and any bytes may follow the image, such as the video of a motion photo.
fn is_truncated_jpeg(bytes: &[u8]) -> bool {
    // In a scan, FF 00 is a byte of data and FF D0 to FF D7 are restarts; FF may be repeated before a marker.
    let is_marker = |pair: &[u8]| pair[0] == 0xff && !matches!(pair[1], 0 | 0xff | 0xd0..=0xd7);
    // The first two bytes are the start marker.
    let mut rest = bytes.get(2..).unwrap_or_default();
    while let Some(start) = rest.windows(2).position(is_marker) {
        let marker = rest[start + 1];
        rest = &rest[start + 2..];
        let length = match marker {
            // The end marker.
            0xd9 => return false,
            // Markers without a segment.
            0x01 | 0xd8 => 0,
            // A segment starts with its length, which includes the two bytes of the length.
            _ => rest.first_chunk().map_or(0, |&length| u16::from_be_bytes(length)),
        };
        rest = rest.get(usize::from(length)..).unwrap_or_default();
    }
    true
}

/// Turns a decoder's error into the reason for skipping the file, in a single line.
fn decode_error(error: image::ImageError) -> Unreadable {
    use image::ImageError::*;
    match error {
        Limits(_) => Unreadable::Decoder("needs more memory than is allowed for an image".into()),
        IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Unreadable::Truncated,
        error => Unreadable::Decoder(error.to_string().trim().replace('\n', " ")),
    }
}

/// Converts decoded pixels of the type `color` to eight bits per channel without transparency. Works in place, in
/// strips of some rows: a second copy of a large image would take much memory.
fn convert_channels(mut raw: Vec<u8>, color: ColorType, width: u32, channels: Channels) -> Vec<u8> {
    if matches!((color, channels), (ColorType::Rgb8, Channels::Colour) | (ColorType::L8, Channels::Grey)) {
        return raw;
    }
    let row_bytes = width as usize * usize::from(color.bytes_per_pixel());
    let converted_row_bytes = width as usize * channels.count();
    let rows = raw.len() / row_bytes;
    let rows_per_strip = (STRIP_BYTES / row_bytes).max(1);
    // Converts the strip that starts with row `first`. Row n of the result starts at `n * converted_row_bytes`, so it
    // lies before row n of the input if rows become shorter, and behind it if they become longer.
    let convert = |raw: &mut [u8], first: usize| {
        let end = rows.min(first + rows_per_strip);
        let strip = Strip { bytes: &raw[first * row_bytes..end * row_bytes], color, width };
        let image = DynamicImage::from_decoder(strip).expect("a strip has whole rows");
        let target = first * converted_row_bytes..end * converted_row_bytes;
        raw[target].copy_from_slice(&to_opaque_bytes(image, channels));
    };
    let strips = (0..rows).step_by(rows_per_strip);
    if converted_row_bytes > row_bytes {
        // Rows that become longer are written from the last to the first, so that no row is overwritten before it is
        // read.
        raw.resize(rows * converted_row_bytes, 0);
        strips.rev().for_each(|first| convert(&mut raw, first));
    } else {
        strips.for_each(|first| convert(&mut raw, first));
        raw.truncate(rows * converted_row_bytes);
        raw.shrink_to_fit();
    }
    raw
}

/// Some rows of a decoded image, as a decoder from which the `image` crate makes an image.
struct Strip<'a> {
    bytes: &'a [u8],
    color: ColorType,
    width: u32,
}

impl ImageDecoder for Strip<'_> {
    fn dimensions(&self) -> (u32, u32) {
        let row_bytes = self.width as usize * usize::from(self.color.bytes_per_pixel());
        (self.width, (self.bytes.len() / row_bytes) as u32)
    }

    fn color_type(&self) -> ColorType {
        self.color
    }

    fn read_image(self, buffer: &mut [u8]) -> ImageResult<()> {
        buffer.copy_from_slice(self.bytes);
        Ok(())
    }

    fn read_image_boxed(self: Box<Self>, buffer: &mut [u8]) -> ImageResult<()> {
        (*self).read_image(buffer)
    }
}

/// Eight bits per channel; transparent pixels are blended with white.
fn to_opaque_bytes(image: DynamicImage, channels: Channels) -> Vec<u8> {
    match (image.color().has_alpha(), channels) {
        (false, Channels::Colour) => image.into_rgb8().into_raw(),
        (false, Channels::Grey) => image.into_luma8().into_raw(),
        (true, Channels::Colour) => image
            .into_rgba8()
            .as_chunks::<4>()
            .0
            .iter()
            .flat_map(|&[r, g, b, a]| [r, g, b].map(|v| on_white(v, a)))
            .collect(),
        (true, Channels::Grey) => {
            image.into_luma_alpha8().as_chunks::<2>().0.iter().map(|&[v, a]| on_white(v, a)).collect()
        }
    }
}

/// The pixels as an image of the `image` crate.
fn dynamic_image(pixels: Vec<u8>, width: u32, height: u32, channels: Channels) -> DynamicImage {
    let image = match channels {
        Channels::Grey => GrayImage::from_raw(width, height, pixels).map(DynamicImage::from),
        Channels::Colour => RgbImage::from_raw(width, height, pixels).map(DynamicImage::from),
    };
    image.expect("the number of bytes fits the size")
}

/// The upright image, by the orientation that the camera recorded.
fn apply_orientation(
    pixels: Vec<u8>,
    width: u32,
    height: u32,
    channels: Channels,
    orientation: Orientation,
) -> DecodedImage {
    let mut image = dynamic_image(pixels, width, height, channels);
    image.apply_orientation(orientation);
    DecodedImage::new(image.width() as usize, image.height() as usize, channels, image.into_bytes())
}

/// A value blended with white by its opacity `alpha`, rounded.
fn on_white(value: u8, alpha: u8) -> u8 {
    let (value, alpha) = (u32::from(value), u32::from(alpha));
    // 127, half of the divisor, rounds. The result is at most (255 * 255 + 127) / 255 = 255.
    ((value * alpha + 255 * (255 - alpha) + 127) / 255) as u8
}
