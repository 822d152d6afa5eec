//! Tests of decoding: every kind of image becomes upright, opaque and eight-bit, and files that are not images are
//! refused with a reason.

use crate::image_kinds::{
    HEIGHT, QUARTERS, WIDTH, claiming, cmyk_jpeg, coloured, file, grey, quarters, with_orientation,
};
use image::ImageFormat;
use trueshot_vision::{Channels, DecodedImage, Unreadable, UnsupportedFormat};

/// The colour in the middle of each quarter: upper left, upper right, lower right, lower left.
fn quarter_centres(decoded: &DecodedImage) -> [[u8; 3]; 4] {
    let pixel = |x: usize, y: usize| {
        let index = (y * decoded.width + x) * 3;
        [decoded.pixels[index], decoded.pixels[index + 1], decoded.pixels[index + 2]]
    };
    let (left, right) = (decoded.width / 4, decoded.width * 3 / 4);
    let (top, bottom) = (decoded.height / 4, decoded.height * 3 / 4);
    [pixel(left, top), pixel(right, top), pixel(right, bottom), pixel(left, bottom)]
}

fn assert_close(found: [[u8; 3]; 4], expected: [[u8; 3]; 4], what: &str) {
    let close = found.as_flattened().iter().zip(expected.as_flattened()).all(|(a, b)| a.abs_diff(*b) <= 12);
    assert!(close, "{what}: {found:?} instead of {expected:?}");
}

#[test]
fn every_format_and_depth_shows_the_same_colours() {
    for (name, bytes) in coloured() {
        let decoded = DecodedImage::decode(&bytes, Channels::Colour).unwrap();
        assert_eq!((decoded.width, decoded.height), (WIDTH as usize, HEIGHT as usize), "{name}");
        assert_close(quarter_centres(&decoded), QUARTERS, name);
    }
}

#[test]
fn grey_images_decode_to_the_same_grey_in_colour() {
    for (name, bytes) in grey() {
        let colour = DecodedImage::decode(&bytes, Channels::Colour).unwrap();
        let grey = DecodedImage::decode(&bytes, Channels::Grey).unwrap();
        for (pixel, &value) in colour.pixels.as_chunks::<3>().0.iter().zip(&grey.pixels) {
            assert_eq!(*pixel, [value; 3], "{name}");
        }
        // The grey rises by 10 per column.
        assert!(grey.pixels[20].abs_diff(200) <= 4, "{name}: {}", grey.pixels[20]);
    }
}

#[test]
fn transparent_pixels_are_blended_with_white() {
    let half = image::ImageBuffer::from_pixel(2, 2, image::Rgba([0_u8, 100, 255, 128]));
    let decoded = DecodedImage::decode(&file(half, ImageFormat::Png), Channels::Colour).unwrap();
    assert_eq!(decoded.pixels[..3], [127, 177, 255]);
    let grey = image::ImageBuffer::from_pixel(2, 2, image::LumaA([0_u8, 0]));
    let decoded = DecodedImage::decode(&file(grey, ImageFormat::Png), Channels::Grey).unwrap();
    assert_eq!(decoded.pixels, [255; 4]);
}

#[test]
fn the_exif_orientation_is_applied() {
    let [a, b, c, d] = QUARTERS;
    for (orientation, expected) in [
        (1, [a, b, c, d]),
        (2, [b, a, d, c]),
        (3, [c, d, a, b]),
        (4, [d, c, b, a]),
        (5, [a, d, c, b]),
        (6, [d, a, b, c]),
        (7, [c, b, a, d]),
        (8, [b, c, d, a]),
    ] {
        let decoded = DecodedImage::decode(&with_orientation(orientation), Channels::Colour).unwrap();
        // From 5 on, width and height are exchanged.
        assert_eq!(decoded.width == WIDTH as usize, orientation < 5);
        assert_close(quarter_centres(&decoded), expected, &format!("orientation {orientation}"));
    }
}

#[test]
fn cmyk_becomes_rgb() {
    for (jpeg, expected) in [
        (cmyk_jpeg(255, 0, 0, 0), [0, 255, 255]),
        (cmyk_jpeg(0, 255, 255, 0), [255, 0, 0]),
        (cmyk_jpeg(0, 0, 0, 255), [0, 0, 0]),
        (cmyk_jpeg(0, 0, 0, 0), [255, 255, 255]),
    ] {
        let decoded = DecodedImage::decode(&jpeg, Channels::Colour).unwrap();
        assert_eq!((decoded.width, decoded.height), (8, 8));
        assert_close(quarter_centres(&decoded), [expected; 4], "CMYK");
    }
}

#[test]
fn files_that_are_not_images_are_refused_with_a_reason() {
    let refused = |bytes: &[u8]| DecodedImage::decode(bytes, Channels::Colour).unwrap_err();
    assert_eq!(refused(&[]), Unreadable::Empty);
    assert_eq!(refused(b"<html>not found</html>"), Unreadable::Format);
    let jpeg = file(quarters(), ImageFormat::Jpeg);
    for length in [3, jpeg.len() / 2, jpeg.len() * 3 / 4, jpeg.len() - 2] {
        assert_eq!(refused(&jpeg[..length]), Unreadable::Truncated, "{length}");
    }
    // A thumbnail within a segment does not end the image.
    let thumbnail = [&jpeg[..2], &[0xff_u8, 0xe1, 0, 6, 0xff, 0xd9, 0, 0], &jpeg[2..]].concat();
    assert!(DecodedImage::decode(&thumbnail, Channels::Colour).is_ok());
    assert_eq!(refused(&thumbnail[..thumbnail.len() - 2]), Unreadable::Truncated);
    for (name, bytes) in coloured().into_iter().filter(|(name, _)| name.ends_with("png")) {
        let reason = refused(&bytes[..bytes.len() * 2 / 3]);
        assert!(matches!(reason, Unreadable::Decoder(_) | Unreadable::Truncated), "{name}: {reason}");
    }
}

/// A motion photo is a JPEG with a video after it.
#[test]
fn bytes_after_the_end_of_a_jpeg_are_ignored() {
    let jpeg = file(quarters(), ImageFormat::Jpeg);
    let followed = [&jpeg[..], &[0xff_u8, 0xda, 0]].concat();
    let decoded = |bytes: &[u8]| DecodedImage::decode(bytes, Channels::Colour);
    assert_eq!(decoded(&followed), decoded(&jpeg));
    assert!(decoded(&jpeg).is_ok());
}

#[test]
fn raw_files_of_canon_cameras_are_not_called_videos() {
    let refused = |bytes: &[u8]| DecodedImage::decode(bytes, Channels::Colour).unwrap_err();
    let raw = Unreadable::ConvertFirst(UnsupportedFormat::CameraRaw);
    assert_eq!(refused(b"\0\0\0\x18ftypcrx \0\0\0\x01crx isom"), raw);
    assert_eq!(refused(b"\0\0\0\x18ftypisom\0\0\0\x01isommp42"), Unreadable::Video);
}

#[test]
fn impossible_and_excessive_sizes_are_refused() {
    let refused =
        |width, height| DecodedImage::decode(&claiming(width, height), Channels::Colour).unwrap_err();
    assert!(matches!(refused(60_000, 60_000), Unreadable::TooManyPixels { .. } | Unreadable::Decoder(_)));
    // 25 million pixels in a file of a few bytes.
    assert!(matches!(refused(5_000, 5_000), Unreadable::TooManyPixels { width: 5_000, .. }));
    // The decoder may detect a side of zero first.
    assert!(matches!(refused(0, 5), Unreadable::NoPixels { .. } | Unreadable::Decoder(_)));
}

#[test]
fn a_blank_page_that_compresses_very_well_is_decoded() {
    let page = image::GrayImage::from_pixel(3_000, 2_000, image::Luma([255]));
    let decoded = DecodedImage::decode(&file(page, ImageFormat::Png), Channels::Grey).unwrap();
    assert_eq!((decoded.width, decoded.height), (3_000, 2_000));
}

#[test]
fn a_frame_that_claims_more_than_its_file_is_refused() {
    let mut gif = file(image::RgbImage::new(1, 1), ImageFormat::Gif);
    // The descriptor of the frame: separator, left, top, width 1, height 1.
    let frame = [0x2c, 0, 0, 0, 0, 1, 0, 1, 0];
    let start = gif.windows(frame.len()).position(|window| window == frame).unwrap();
    // Width and height 8000.
    gif[start + 5..start + 9].copy_from_slice(&[0x40, 0x1f, 0x40, 0x1f]);
    let message = DecodedImage::decode(&gif, Channels::Colour).unwrap_err().to_string();
    assert!(message.contains("more memory than is allowed for an image"), "{message}");
}
