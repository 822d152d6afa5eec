//! Tests of the memory that decoding takes: never more than was computed from the header (the allocator enforces it),
//! and never more than the budget over all threads.
#![allow(missing_docs)]

mod image_kinds;

use std::alloc::System;
use std::sync::Mutex;

use cap::Cap;
use image::{GrayAlphaImage, GrayImage, ImageBuffer, ImageFormat, RgbImage, RgbaImage};
use image_kinds::file;
use trueshot_vision::{Channels, DecodeLimits, DecodedImage, Unreadable, memory_budget};

#[global_allocator]
static MEMORY: Cap<System> = Cap::new(System, usize::MAX);

/// Memory that the test itself may allocate.
const SPARE: usize = 256 << 10;

/// The tests share the allocator's limit.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The memory for decoding, computed from the header.
fn need(bytes: &[u8], channels: Channels) -> u64 {
    let nothing = DecodeLimits { memory: 0, ..DecodeLimits::default() };
    match DecodedImage::decode_then(bytes, channels, &nothing, drop) {
        Err(Unreadable::OverMemory { need, .. }) => need,
        other => panic!("{other:?}"),
    }
}

/// Files of 1.5 megapixels, one of every kind that decoders treat differently.
fn large() -> Vec<(&'static str, Vec<u8>)> {
    let (width, height) = (1500, 1000);
    let mut files = vec![
        ("grey.png", file(GrayImage::new(width, height), ImageFormat::Png)),
        ("grey-alpha.png", file(GrayAlphaImage::new(width, height), ImageFormat::Png)),
        ("colour.png", file(RgbImage::new(width, height), ImageFormat::Png)),
        ("colour-alpha.png", file(RgbaImage::new(width, height), ImageFormat::Png)),
        ("grey-16.png", file(ImageBuffer::<image::Luma<u16>, _>::new(width, height), ImageFormat::Png)),
        ("colour-16.png", file(ImageBuffer::<image::Rgb<u16>, _>::new(width, height), ImageFormat::Png)),
        ("alpha-16.png", file(ImageBuffer::<image::Rgba<u16>, _>::new(width, height), ImageFormat::Png)),
        ("colour.bmp", file(RgbImage::new(width, height), ImageFormat::Bmp)),
        ("colour.gif", file(RgbImage::new(width, height), ImageFormat::Gif)),
        ("grey.jpg", file(GrayImage::new(width, height), ImageFormat::Jpeg)),
        ("colour.jpg", file(RgbImage::new(width, height), ImageFormat::Jpeg)),
        ("colour.tiff", file(RgbImage::new(width, height), ImageFormat::Tiff)),
        ("alpha-16.tiff", file(ImageBuffer::<image::Rgba<u16>, _>::new(width, height), ImageFormat::Tiff)),
        ("float.tiff", file(ImageBuffer::<image::Rgb<f32>, _>::new(width, height), ImageFormat::Tiff)),
        ("lossless.webp", file(RgbImage::new(width, height), ImageFormat::WebP)),
        ("lossless-alpha.webp", file(RgbaImage::new(width, height), ImageFormat::WebP)),
        ("narrow.jpg", file(RgbImage::new(3, 50_000), ImageFormat::Jpeg)),
        ("wide.jpg", file(RgbImage::new(50_000, 3), ImageFormat::Jpeg)),
    ];
    for name in [
        "animated.webp",
        "cmyk.tiff",
        "deflate.tiff",
        "lossless-groups.webp",
        "lossless-palette.webp",
        "lossy-alpha.webp",
        "lossy-packed-alpha.webp",
        "lossy.webp",
        "progressive-cmyk.jpg",
        "progressive.jpg",
        "tables.webp",
        "turned.jpg",
    ] {
        files.push((name, std::fs::read(format!("tests/large/{name}")).unwrap()));
    }
    files
}

#[test]
fn every_format_is_decoded_within_the_memory_computed_from_its_header() {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    for (name, bytes) in large() {
        for channels in [Channels::Grey, Channels::Colour] {
            let need = need(&bytes, channels) as usize;
            eprintln!("{name} as {channels:?}: {need} bytes");
            MEMORY.set_limit(MEMORY.allocated() + need + SPARE).unwrap();
            let size = DecodedImage::decode_then(&bytes, channels, &DecodeLimits::default(), |image| {
                (image.width, image.height)
            });
            MEMORY.set_limit(usize::MAX).unwrap();
            let (width, height) = size.unwrap_or_else(|reason| panic!("{name}: {reason}"));
            // The computed memory is not so large either that ordinary images would wait for each other.
            let is_ordinary = name != "tables.webp";
            assert!(!is_ordinary || need <= width * height * 24 + (64 << 20), "{name}: {need} bytes");
        }
    }
}

#[test]
fn images_on_many_threads_share_one_budget() {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    // 16 bits and transparency: 8 bytes per pixel while it is decoded, 32 MB in all, from a file of some kilobytes.
    let bytes = file(ImageBuffer::<image::Rgba<u16>, _>::new(2000, 2000), ImageFormat::Png);
    assert!(bytes.len() < 200_000, "{}", bytes.len());
    let (default, need) = (memory_budget::decoded_images().limit(), need(&bytes, Channels::Colour));
    memory_budget::decoded_images().set_limit(2 * need);
    MEMORY.set_limit(MEMORY.allocated() + 2 * need as usize + 16 * SPARE).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| {
                let limits = DecodeLimits::default();
                let small = |image: DecodedImage| image.resized(32, 32);
                let image = DecodedImage::decode_then(&bytes, Channels::Colour, &limits, small).unwrap();
                assert_eq!(image.width, 32);
            });
        }
    });
    MEMORY.set_limit(usize::MAX).unwrap();
    memory_budget::decoded_images().set_limit(default);
}

#[test]
fn an_image_that_needs_more_than_the_whole_budget_is_decoded_alone() {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    let bytes = file(RgbImage::new(1000, 1000), ImageFormat::Png);
    let (default, need) = (memory_budget::decoded_images().limit(), need(&bytes, Channels::Colour));
    memory_budget::decoded_images().set_limit(need / 3);
    MEMORY.set_limit(MEMORY.allocated() + need as usize + 8 * SPARE).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let limits = DecodeLimits::default();
                DecodedImage::decode_then(&bytes, Channels::Colour, &limits, |image| image.width).unwrap()
            });
        }
    });
    MEMORY.set_limit(usize::MAX).unwrap();
    memory_budget::decoded_images().set_limit(default);
}

#[test]
fn an_image_over_the_callers_limit_is_refused_with_both_numbers() {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    let bytes = file(ImageBuffer::<image::Rgba<u16>, _>::new(3000, 2000), ImageFormat::Png);
    let limits = DecodeLimits { memory: 16 << 20, ..DecodeLimits::default() };
    let refused = DecodedImage::decode_then(&bytes, Channels::Colour, &limits, drop).unwrap_err();
    assert_eq!(
        refused.to_string(),
        "3000 x 2000 pixels: decoding takes 47 MiB of memory, and 16 MiB are allowed; make it smaller"
    );
}

#[test]
fn a_side_that_is_too_long_is_refused_before_it_is_resized() {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    let bytes = file(GrayImage::new(70_000, 2), ImageFormat::Png);
    let refused = DecodedImage::decode(&bytes, Channels::Colour).unwrap_err();
    assert_eq!(refused, Unreadable::TooLong { width: 70_000, height: 2, longest: 65_535 });
}

#[test]
fn a_narrow_image_is_resized_without_a_larger_one_in_between() {
    let _alone = ONE_AT_A_TIME.lock().unwrap();
    // Resizing the columns first would take 44 MB.
    let image = DecodedImage::new(1, 65_535, Channels::Colour, vec![7; 65_535 * 3]);
    MEMORY.set_limit(MEMORY.allocated() + (8 << 20)).unwrap();
    let small = image.resized(224, 224);
    MEMORY.set_limit(usize::MAX).unwrap();
    assert_eq!(small.pixels, [7; 224 * 224 * 3]);
}
