//! Measures of decoded images: size, sharpness, brightness and a thumbnail, from which an audit finds copies of images
//! and images that are too poor to be used.
//!
//! They are computed when an image is decoded for the network, so that no image is decoded twice, and stored with its
//! embedding in the [cache](crate::cache).

use trueshot::audit::ImageMeasures;

use crate::decoded_image::{Channels, DecodedImage};

/// The longer side of the grey image that is measured. A fixed size makes the sharpness of large and small photographs
/// comparable, at about the input size of a network.
const MEASURED_SIDE: usize = 256;

/// Measures an image: averages blocks of pixels, resizes the result to [`MEASURED_SIDE`], converts it to grey, and
/// measures the grey levels. Brightness is also measured in each colour channel.
pub(crate) fn measure(image: &DecodedImage) -> ImageMeasures {
    let reduced = reduced(image);
    let longest = reduced.width.max(reduced.height);
    let scaled = |length: usize| (length * MEASURED_SIDE).div_ceil(longest).max(1);
    let (width, height) = (scaled(reduced.width), scaled(reduced.height));
    let reduced = if longest > MEASURED_SIDE { reduced.resized(width, height) } else { reduced };
    let grey = DecodedImage::new(reduced.width, reduced.height, Channels::Grey, shades(&reduced));
    let side = ImageMeasures::THUMBNAIL_SIDE;
    let thumbnail = grey.clone().resized(side, side).pixels;
    let mut measures = ImageMeasures::of_grey(grey.width, grey.height, &grey.pixels, &thumbnail);
    let count = reduced.channels.count();
    for channel in (0..count).filter(|_| count > 1) {
        measures.add_channel(reduced.pixels.iter().skip(channel).step_by(count).copied());
    }
    (measures.width, measures.height) = (image.width as u32, image.height as u32);
    measures
}

/// The image with blocks of `n x n` pixels averaged, so that its longer side is less than twice [`MEASURED_SIDE`]. Much
/// faster than resizing a large photograph.
fn reduced(image: &DecodedImage) -> DecodedImage {
    let n = (image.width.max(image.height) / MEASURED_SIDE).max(1);
    // Neither side of a narrow image becomes 0.
    let (columns, rows) = (n.min(image.width), n.min(image.height));
    let (width, height) = (image.width / columns, image.height / rows);
    let count = image.channels.count();
    // The sum of each channel of each block in one row of blocks: `[block][channel]`.
    let mut sums = vec![0u32; width * count];
    let mut pixels = Vec::with_capacity(width * height * count);
    for lines in image.pixels.chunks_exact(image.width * count * rows).take(height) {
        sums.fill(0);
        for line in lines.chunks_exact(image.width * count) {
            // Pixels that do not fill a block are left out.
            for (sums, block) in sums.chunks_exact_mut(count).zip(line.chunks_exact(columns * count)) {
                for pixel in block.chunks_exact(count) {
                    sums.iter_mut().zip(pixel).for_each(|(sum, &level)| *sum += u32::from(level));
                }
            }
        }
        let area = (columns * rows) as u32;
        // The mean of each block, rounded.
        pixels.extend(sums.iter().map(|sum| ((sum + area / 2) / area) as u8));
    }
    DecodedImage::new(width, height, image.channels, pixels)
}

/// The luminance of every pixel, 0 to 255, by Rec. 601: 0.299 red + 0.587 green + 0.114 blue. Computed in fixed point,
/// with the weights times 2^16, and rounded by adding a half (0x8000), as Pillow does.
pub(crate) fn shades(image: &DecodedImage) -> Vec<u8> {
    let luminance = |&[red, green, blue]: &[u8; 3]| {
        let sum = u32::from(red) * 19_595 + u32::from(green) * 38_470 + u32::from(blue) * 7_471;
        ((sum + 0x8000) >> 16) as u8
    };
    match image.channels {
        Channels::Grey => image.pixels.clone(),
        Channels::Colour => image.pixels.as_chunks::<3>().0.iter().map(luminance).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An image of vertical stripes of 5 pixels, in two colours of about the same luminance.
    fn striped(width: usize, height: usize) -> DecodedImage {
        let pixel =
            |index: usize| if (index % width / 5).is_multiple_of(2) { [170, 10, 0] } else { [15, 80, 25] };
        let pixels = (0..width * height).flat_map(pixel).collect();
        DecodedImage::new(width, height, Channels::Colour, pixels)
    }

    #[test]
    fn images_of_every_shape_are_measured_with_their_own_size() {
        for (width, height) in [(1, 1), (1, 700), (700, 1), (31, 3000), (255, 256), (257, 511), (513, 1030)] {
            let measures = measure(&striped(width, height));
            assert_eq!((measures.width, measures.height), (width as u32, height as u32));
            let grey = striped(width, height).with_channels(Channels::Grey);
            assert_eq!(measure(&grey).width, width as u32);
        }
    }

    #[test]
    fn stripes_of_the_same_shade_have_a_range_of_colours() {
        let colour = measure(&striped(120, 90));
        assert!(colour.range > 100 && colour.brightest > 100, "{colour:?}");
        let grey = measure(&striped(120, 90).with_channels(Channels::Grey));
        assert!(grey.range < 30, "{grey:?}");
    }

    #[test]
    fn blocks_are_averaged() {
        let image = DecodedImage::new(
            1024,
            512,
            Channels::Grey,
            (0..1024 * 512).map(|n| (n % 2 * 200) as u8).collect(),
        );
        let small = reduced(&image);
        assert_eq!((small.width, small.height), (256, 128));
        assert!(small.pixels.iter().all(|&level| level == 100));
    }
}
