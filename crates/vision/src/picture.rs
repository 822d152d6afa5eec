//! A picture: rows of pixels of one or three bytes, and the gate that files pass to become one.
//!
//! Whatever a file holds (grey, colour, transparency, 16 bits, CMYK, an animation, a camera held sideways)
//! comes out upright, opaque and in eight bits: transparency is laid on white, of an animation the first frame
//! is taken, EXIF's orientation is applied. Bytes come from outside, so the size that a header claims is
//! compared with the file's length before anything is allocated, the decoders get a limit on memory, and a
//! panic in one of them becomes a reason to skip the file.

use std::io::Cursor;

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::PngEncoder;
use image::metadata::Orientation;
use image::{
    DynamicImage, ExtendedColorType, GrayImage, ImageDecoder, ImageEncoder, ImageFormat, ImageReader, Limits,
    RgbImage,
};

use crate::error::Unreadable;

/// The most pixels a picture may have: beyond every camera, and below what exhausts memory.
const MOST_PIXELS: u64 = 1 << 27;
/// So many pixels are always believed; above, a byte of the file must account for at most [`PIXELS_A_BYTE`].
const BELIEVED_PIXELS: u64 = 1 << 22;
/// A blank page in PNG packs about a thousand pixels into a byte; photographs some tens.
const PIXELS_A_BYTE: u64 = 2048;
/// What a decoder may hold at once, the picture included.
const MOST_MEMORY: u64 = 1 << 30;
/// A decoder may take so many bytes for a pixel: sixteen bits a channel, and as much again for its own work.
const MEMORY_A_PIXEL: u64 = 16;
/// The largest file that is read.
pub(crate) const MOST_BYTES: u64 = 1 << 29;

/// Whether pictures have colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Channels {
    /// One byte a pixel: luminance.
    Grey,
    /// Three bytes a pixel: red, green, blue.
    Colour,
}

impl Channels {
    /// Bytes of a pixel.
    pub fn count(self) -> usize {
        match self {
            Channels::Grey => 1,
            Channels::Colour => 3,
        }
    }
}

/// Pixels in rows from the top.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Picture {
    /// Pixels from left to right.
    pub width: usize,
    /// Pixels from top to bottom.
    pub height: usize,
    /// What a pixel is.
    pub channels: Channels,
    /// `width * height * channels` bytes.
    pub pixels: Vec<u8>,
}

impl Picture {
    /// Takes pixels.
    ///
    /// # Panics
    /// If there are not as many as the size says, or none.
    pub fn new(width: usize, height: usize, channels: Channels, pixels: Vec<u8>) -> Self {
        assert!(width > 0 && height > 0, "a picture of {width} x {height}");
        assert_eq!(pixels.len(), width * height * channels.count(), "bytes of a picture");
        Picture { width, height, channels, pixels }
    }

    /// Decodes a file's bytes.
    pub fn decode(bytes: &[u8], channels: Channels) -> Result<Self, Unreadable> {
        Self::decode_within(bytes, channels, u64::MAX)
    }

    /// Decodes a file's bytes if it has no more than so many pixels: whoever takes pictures from strangers may want
    /// to spend less on one than the [general limit](self).
    pub fn decode_within(bytes: &[u8], channels: Channels, most_pixels: u64) -> Result<Self, Unreadable> {
        if bytes.is_empty() {
            return Err(Unreadable::Empty);
        }
        let caught = trueshot::guard::caught(|| decode(bytes, channels, most_pixels));
        caught.unwrap_or_else(|| Err(Unreadable::Decoder("its contents contradict each other".into())))
    }

    /// The same in colour or in grey.
    pub(crate) fn with_channels(self, channels: Channels) -> Picture {
        if self.channels == channels {
            return self;
        }
        let (width, height) = (self.width as u32, self.height as u32);
        let image = match self.channels {
            Channels::Grey => GrayImage::from_raw(width, height, self.pixels).map(DynamicImage::from),
            Channels::Colour => RgbImage::from_raw(width, height, self.pixels).map(DynamicImage::from),
        };
        opaque(image.expect("a picture has as many bytes as its size says"), channels)
    }

    /// The picture as a `data:` address for a page, no side longer than `most`: a PNG of a drawing, a JPEG of a
    /// photograph, which is a fifth as large.
    pub fn to_data_uri(self, most: usize) -> String {
        let longest = self.width.max(self.height);
        let side = |side: usize| (side * most).div_ceil(longest).max(1);
        let (width, height) = (side(self.width), side(self.height));
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
        written.expect("memory takes every byte, and there are as many as the size says");
        format!("data:image/{kind};base64,{}", BASE64.encode(bytes))
    }

    /// The picture turned clockwise by so many quarters.
    pub fn turned(&self, quarters: usize) -> Picture {
        let count = self.channels.count();
        let (width, height) =
            if quarters.is_multiple_of(2) { (self.width, self.height) } else { (self.height, self.width) };
        let mut pixels = Vec::with_capacity(self.pixels.len());
        for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
            let (from_x, from_y) = match quarters % 4 {
                0 => (x, y),
                1 => (y, self.height - 1 - x),
                2 => (self.width - 1 - x, self.height - 1 - y),
                _ => (self.width - 1 - y, x),
            };
            let place = (from_y * self.width + from_x) * count;
            pixels.extend_from_slice(&self.pixels[place..place + count]);
        }
        Picture::new(width, height, self.channels, pixels)
    }
}

fn decode(bytes: &[u8], channels: Channels, most_pixels: u64) -> Result<Picture, Unreadable> {
    let format = image::guess_format(bytes).map_err(|_| unknown_format(bytes))?;
    if format == ImageFormat::Jpeg && is_cut_off(bytes) {
        return Err(Unreadable::CutOff);
    }
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut limits = Limits::default();
    // A file that claims little may still hold a frame that claims much.
    limits.max_alloc = Some(MOST_MEMORY.min(believed_pixels(bytes.len()) * MEMORY_A_PIXEL));
    reader.limits(limits);
    let mut decoder = reader.into_decoder().map_err(in_words)?;
    let (width, height) = decoder.dimensions();
    check_size(width, height, bytes.len())?;
    if u64::from(width) * u64::from(height) > most_pixels {
        return Err(Unreadable::OverLimit { width, height, most: most_pixels });
    }
    // A damaged note about the orientation is no reason to refuse the picture.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let mut image = DynamicImage::from_decoder(decoder).map_err(in_words)?;
    image.apply_orientation(orientation);
    Ok(opaque(image, channels))
}

/// Phones send HEIC under the name of a JPEG.
fn unknown_format(bytes: &[u8]) -> Unreadable {
    const BRANDS: [&[u8]; 6] = [b"heic", b"heix", b"heim", b"hevc", b"mif1", b"msf1"];
    let brand = bytes.get(4..12).and_then(|start| start.strip_prefix(b"ftyp"));
    match brand {
        Some(brand) if BRANDS.contains(&brand) => Unreadable::ConvertFirst("HEIC"),
        Some(_) => Unreadable::Video,
        None => Unreadable::Format,
    }
}

/// How many pixels a file of so many bytes may have.
fn believed_pixels(bytes: usize) -> u64 {
    MOST_PIXELS.min((bytes as u64).saturating_mul(PIXELS_A_BYTE).max(BELIEVED_PIXELS))
}

fn check_size(width: u32, height: u32, bytes: usize) -> Result<(), Unreadable> {
    let pixels = u64::from(width) * u64::from(height);
    match pixels {
        0 => Err(Unreadable::NoPixels { width, height }),
        _ if pixels > believed_pixels(bytes) => Err(Unreadable::TooManyPixels { width, height, bytes }),
        _ => Ok(()),
    }
}

/// The decoder is lenient and fills what is missing with grey; half a picture is none, though. The mark of the
/// end cannot occur within a scan, so it must stand behind the start of the last one.
fn is_cut_off(bytes: &[u8]) -> bool {
    let last = |mark: [u8; 2]| bytes.windows(2).rposition(|window| window == mark);
    last([0xff, 0xd9]) <= last([0xff, 0xda])
}

fn in_words(error: image::ImageError) -> Unreadable {
    use image::ImageError::*;
    match error {
        Limits(_) => Unreadable::Decoder("needs more memory than is allowed for an image".into()),
        IoError(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Unreadable::CutOff,
        other => Unreadable::Decoder(other.to_string().trim().replace('\n', " ")),
    }
}

/// Eight bits a channel; transparency is laid on white.
fn opaque(image: DynamicImage, channels: Channels) -> Picture {
    let (width, height) = (image.width() as usize, image.height() as usize);
    let pixels = match (image.color().has_alpha(), channels) {
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
    };
    Picture::new(width, height, channels, pixels)
}

fn on_white(value: u8, alpha: u8) -> u8 {
    let (value, alpha) = (u32::from(value), u32::from(alpha));
    // At most 255 * 255 + 127, over 255: it fits.
    ((value * alpha + 255 * (255 - alpha) + 127) / 255) as u8
}
