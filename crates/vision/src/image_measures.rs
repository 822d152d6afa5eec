//! Measures of decoded images: size, sharpness, brightness and a thumbnail, from which an audit finds copies of images and
//! images that are too poor to be used.
//!
//! They are computed when an image is decoded for the network, so that no image is decoded twice, and stored with its
//! embedding in the [cache](crate::cache).

use trueshot::audit::ImageMeasures;

use crate::decoded_image::{Channels, DecodedImage};

/// The longer side of the grey image that is measured. A fixed size makes the sharpness of large and small photographs
/// comparable: what counts is what a network of about this input size can see.
const MEASURED_SIDE: usize = 256;

/// Measures an image.
pub(crate) fn measure(image: &DecodedImage) -> ImageMeasures {
    let grey = reduced(image);
    let side = ImageMeasures::THUMBNAIL_SIDE;
    let longest = grey.width.max(grey.height);
    let scaled = |length: usize| (length * MEASURED_SIDE).div_ceil(longest).max(1);
    let (width, height) = (scaled(grey.width), scaled(grey.height));
    let grey = if longest > MEASURED_SIDE { grey.resized(width, height) } else { grey };
    let thumbnail = grey.clone().resized(side, side).pixels;
    let mut measures = ImageMeasures::of_grey(grey.width, grey.height, &grey.pixels, &thumbnail);
    (measures.width, measures.height) = (image.width as u32, image.height as u32);
    measures
}

/// The grey image, with every block of `n x n` pixels averaged, so that its longer side has less than twice
/// [`MEASURED_SIDE`] pixels. Much faster than resizing a large photograph.
fn reduced(image: &DecodedImage) -> DecodedImage {
    let n = (image.width.max(image.height) / MEASURED_SIDE).max(1);
    // Neither side of a narrow image vanishes.
    let (columns, rows) = (n.min(image.width), n.min(image.height));
    let (width, height) = (image.width / columns, image.height / rows);
    let count = image.channels.count();
    let mut sums = vec![0u32; width];
    let mut pixels = Vec::with_capacity(width * height);
    for lines in image.pixels.chunks_exact(image.width * count * rows).take(height) {
        sums.fill(0);
        for line in lines.chunks_exact(image.width * count) {
            match image.channels {
                Channels::Grey => add_blocks(&mut sums, line.iter().map(|&value| u32::from(value)), columns),
                Channels::Colour => {
                    add_blocks(&mut sums, line.as_chunks::<3>().0.iter().map(luminance), columns);
                }
            }
        }
        let area = (columns * rows) as u32;
        pixels.extend(sums.iter().map(|sum| ((sum + area / 2) / area) as u8));
    }
    DecodedImage::new(width, height, Channels::Grey, pixels)
}

/// Adds the sums of `columns` values each; values that do not fill a block are left out.
fn add_blocks(sums: &mut [u32], mut values: impl Iterator<Item = u32>, columns: usize) {
    for sum in sums {
        *sum += values.by_ref().take(columns).sum::<u32>();
    }
}

/// The luminance of a pixel by Rec. 601, from 0 to 255, as Pillow computes it.
fn luminance(&[red, green, blue]: &[u8; 3]) -> u32 {
    (u32::from(red) * 19_595 + u32::from(green) * 38_470 + u32::from(blue) * 7_471 + 0x8000) >> 16
}
