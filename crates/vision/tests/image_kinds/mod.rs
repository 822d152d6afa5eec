//! Test fixture: small images of many kinds and formats, as cameras, scanners and other programs write them.
#![allow(dead_code)]

use std::io::Cursor;

use image::codecs::gif::GifEncoder;
use image::{DynamicImage, Frame, GrayImage, ImageBuffer, ImageFormat, Luma, LumaA, Rgb, RgbImage, Rgba};

/// 24 x 16 pixels: red, green, blue and white quarters, clockwise from the upper left.
pub const WIDTH: u32 = 24;
pub const HEIGHT: u32 = 16;
pub const QUARTERS: [[u8; 3]; 4] = [[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255]];

/// The colour of a quarter: 0 upper left, 1 upper right, 2 lower right, 3 lower left.
fn quarter(x: u32, y: u32) -> usize {
    match (x < WIDTH / 2, y < HEIGHT / 2) {
        (true, true) => 0,
        (false, true) => 1,
        (false, false) => 2,
        (true, false) => 3,
    }
}

/// The image of the four quarters.
pub fn quarters() -> RgbImage {
    RgbImage::from_fn(WIDTH, HEIGHT, |x, y| Rgb(QUARTERS[quarter(x, y)]))
}

/// The bytes of a file with the image.
pub fn file(image: impl Into<DynamicImage>, format: ImageFormat) -> Vec<u8> {
    let mut bytes = Cursor::new(Vec::new());
    image.into().write_to(&mut bytes, format).unwrap();
    bytes.into_inner()
}

/// Files that show the four quarters in colour, one of every format.
pub fn coloured() -> Vec<(&'static str, Vec<u8>)> {
    let wide = ImageBuffer::from_fn(WIDTH, HEIGHT, |x, y| {
        Rgb(QUARTERS[quarter(x, y)].map(|value| u16::from(value) * 257))
    });
    let transparent = ImageBuffer::from_fn(WIDTH, HEIGHT, |x, y| match quarter(x, y) {
        // Transparent: white shows through.
        3 => Rgba([9, 9, 9, 0]),
        other => {
            let [r, g, b] = QUARTERS[other];
            Rgba([r, g, b, 255])
        }
    });
    vec![
        ("bmp", file(quarters(), ImageFormat::Bmp)),
        ("gif", file(quarters(), ImageFormat::Gif)),
        ("jpg", file(quarters(), ImageFormat::Jpeg)),
        ("png", file(quarters(), ImageFormat::Png)),
        ("tiff", file(quarters(), ImageFormat::Tiff)),
        ("webp", file(quarters(), ImageFormat::WebP)),
        ("16-bit.png", file(wide.clone(), ImageFormat::Png)),
        ("16-bit.tiff", file(wide, ImageFormat::Tiff)),
        ("transparent.png", file(transparent.clone(), ImageFormat::Png)),
        ("transparent.webp", file(transparent, ImageFormat::WebP)),
        ("palette.png", palette()),
        ("animated.gif", animated()),
    ]
}

/// Files that show a grey ramp from left to right, one of every grey format.
pub fn grey() -> Vec<(&'static str, Vec<u8>)> {
    let ramp = GrayImage::from_fn(WIDTH, HEIGHT, |x, _| Luma([(x * 10) as u8]));
    let wide = ImageBuffer::from_fn(WIDTH, HEIGHT, |x, _| Luma([(x * 10 * 257) as u16]));
    let with_alpha = ImageBuffer::from_fn(WIDTH, HEIGHT, |x, _| LumaA([(x * 10) as u8, 255]));
    vec![
        ("png", file(ramp.clone(), ImageFormat::Png)),
        ("jpg", file(ramp.clone(), ImageFormat::Jpeg)),
        ("tiff", file(ramp, ImageFormat::Tiff)),
        ("16-bit.png", file(wide, ImageFormat::Png)),
        ("alpha.png", file(with_alpha, ImageFormat::Png)),
    ]
}

/// An image with a palette of four colours, the last of them transparent.
fn palette() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = png::Encoder::new(&mut bytes, WIDTH, HEIGHT);
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.set_palette([[255, 0, 0], [0, 255, 0], [0, 0, 255], [1, 2, 3]].concat());
    encoder.set_trns(vec![255, 255, 255, 0]);
    let mut writer = encoder.write_header().unwrap();
    let numbers: Vec<u8> = (0..HEIGHT).flat_map(|y| (0..WIDTH).map(move |x| quarter(x, y) as u8)).collect();
    writer.write_image_data(&numbers).unwrap();
    writer.finish().unwrap();
    bytes
}

/// An animation: the quarters first, then black.
fn animated() -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut encoder = GifEncoder::new(&mut bytes);
    let frame = |image: DynamicImage| Frame::new(image.into_rgba8());
    encoder.encode_frame(frame(quarters().into())).unwrap();
    encoder.encode_frame(frame(DynamicImage::new_rgb8(WIDTH, HEIGHT))).unwrap();
    drop(encoder);
    bytes
}

/// A JPEG of the quarters with an EXIF orientation.
pub fn with_orientation(orientation: u8) -> Vec<u8> {
    let plain = file(quarters(), ImageFormat::Jpeg);
    let mut exif = b"Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0".to_vec();
    exif.extend([orientation, 0, 0, 0, 0, 0, 0, 0]);
    let length = (exif.len() as u16 + 2).to_be_bytes();
    [&plain[..2], &[0xff, 0xe1], &length, &exif, &plain[2..]].concat()
}

/// A CMYK JPEG of 8 x 8 pixels in one colour, as print shops send them: Adobe's marker, inverted values.
pub fn cmyk_jpeg(cyan: u8, magenta: u8, yellow: u8, black: u8) -> Vec<u8> {
    let mut file = vec![0xff, 0xd8];
    let mut segment = |marker: u8, body: &[u8]| {
        file.extend([0xff, marker]);
        file.extend((body.len() as u16 + 2).to_be_bytes());
        file.extend(body);
    };
    segment(0xee, b"Adobe\0\x64\0\0\0\0\0");
    segment(0xdb, &[&[0][..], &[1; 64]].concat());
    segment(0xc0, &[8, 0, 8, 0, 8, 4, 1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0, 4, 0x11, 0]);
    // Twelve codes of four bits for the sizes of a DC difference; one code of one bit for the end of a block.
    let sizes: Vec<u8> = (0..12).collect();
    segment(0xc4, &[&[0x00, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0][..], &sizes].concat());
    segment(0xc4, &[&[0x10, 1][..], &[0; 15], &[0]].concat());
    segment(0xda, &[4, 1, 0, 2, 0, 3, 0, 4, 0, 0, 63, 0]);
    let mut bits = String::new();
    for ink in [cyan, magenta, yellow, black] {
        // The DC coefficient: eight times the mean of the block, shifted by 128.
        let level = (i32::from(255 - ink) - 128) * 8;
        let size = 32 - level.unsigned_abs().leading_zeros();
        let coded = if level < 0 { level + (1 << size) - 1 } else { level };
        bits.push_str(&format!("{size:04b}"));
        if size > 0 {
            bits.push_str(&format!("{coded:0width$b}", width = size as usize));
        }
        bits.push('0');
    }
    while !bits.len().is_multiple_of(8) {
        bits.push('1');
    }
    for byte in bits.as_bytes().chunks(8) {
        let byte = byte.iter().fold(0, |byte, bit| byte << 1 | (bit - b'0'));
        file.push(byte);
        if byte == 0xff {
            file.push(0);
        }
    }
    file.extend([0xff, 0xd9]);
    file
}

/// A PNG whose header claims a size, with almost no data.
pub fn claiming(width: u32, height: u32) -> Vec<u8> {
    let mut file = file(RgbImage::new(1, 1), ImageFormat::Png);
    file[16..20].copy_from_slice(&width.to_be_bytes());
    file[20..24].copy_from_slice(&height.to_be_bytes());
    let check = checksum(&file[12..29]);
    file[29..33].copy_from_slice(&check.to_be_bytes());
    file
}

/// The CRC-32 of PNG chunks.
fn checksum(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |sum: u32, &byte| {
        (0..8).fold(sum ^ u32::from(byte), |sum, _| sum >> 1 ^ if sum & 1 == 1 { 0xedb8_8320 } else { 0 })
    })
}
