//! Image resizing ([`resized`]), bilinear or bicubic, with antialiasing when shrinking, and cropping to a square
//! ([`crop_to_square`]). Images are slices of bytes, row by row from the top, with 1 or 3 bytes per pixel.
//!
//! Every output pixel is a weighted mean of a window of input pixels; [`Taps`] holds the windows and weights of one
//! axis.
//!
//! The arithmetic is Pillow's, which torchvision uses: rows are resized to the new width, then columns to the new
//! height, with fixed-point weights of 22 bits, and each pass rounds to bytes. So published networks get the pixels
//! they were trained on, and the result is the same on every processor. Both passes run row by row, because the image
//! between them can be larger than input and output (for instance if the input is one pixel wide and thousands high).

use std::collections::VecDeque;

/// Fractional bits of a fixed-point weight: 32 bits minus 8 for the pixel value and 2 for sign and overflow.
const WEIGHT_BITS: u32 = 22;
/// One half as a fixed-point number: sums of pixels start with it, so that [`to_byte`] rounds to the nearest integer.
const HALF: i32 = 1 << (WEIGHT_BITS - 1);

/// How an image becomes square before a network embeds it: [`resized`] alone, or [`crop_to_square`] before it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fit {
    /// The whole image, stretched to a square.
    #[default]
    Squash,
    /// The largest square in the middle of the image.
    Crop,
}

/// The interpolation filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resampling {
    /// Triangle filter.
    #[default]
    Bilinear,
    /// Keys' cubic filter with a = -1/2, which is slightly sharper.
    Bicubic,
}

impl Resampling {
    /// The radius of the filter: in input pixels when enlarging, in output pixels when shrinking.
    fn radius(self) -> f64 {
        match self {
            Resampling::Bilinear => 1.0,
            Resampling::Bicubic => 2.0,
        }
    }

    /// The value of the filter at a distance from its centre, before the weights of a window are divided by their sum.
    fn weight(self, distance: f64) -> f64 {
        let x = distance.abs();
        match self {
            Resampling::Bilinear => (1.0 - x).max(0.0),
            Resampling::Bicubic if x < 1.0 => (1.5 * x - 2.5) * x * x + 1.0,
            Resampling::Bicubic if x < 2.0 => -0.5 * (((x - 5.0) * x + 8.0) * x - 4.0),
            Resampling::Bicubic => 0.0,
        }
    }
}

/// The weights (filter taps) for resizing a line of pixels to another length: for every output pixel a window of input
/// pixels, all windows of the same width, and the weight of each pixel in it. The weights of a window sum to 1.
///
/// ```
/// use trueshot::resample::Taps;
///
/// let mut taps = Taps::default();
/// taps.set(4, 2);
/// let (start, weights) = taps.output(0);
/// assert_eq!(start, 0);
/// assert!((weights.iter().sum::<f32>() - 1.0).abs() < 1e-6);
/// ```
#[derive(Debug, Clone, Default)]
pub struct Taps {
    /// The index of the first input pixel in the window of every output pixel.
    starts: Vec<u32>,
    /// The weights `[outputs, width]`.
    weights: Vec<f64>,
    /// `weights` as `f32`, for callers that resize floats.
    rounded: Vec<f32>,
    /// Input pixels per window.
    width: usize,
}

impl Taps {
    /// Computes the bilinear weights for resizing a line of `from` pixels to `to` pixels, reusing the memory.
    pub fn set(&mut self, from: usize, to: usize) {
        self.set_resampling(Resampling::Bilinear, from, to);
    }

    fn set_resampling(&mut self, resampling: Resampling, from: usize, to: usize) {
        let scale = from as f64 / to as f64;
        // When shrinking, the filter is widened by the scale, so that it skips no input pixel: that is the
        // antialiasing.
        let stretch = scale.max(1.0);
        // The radius of the filter in input pixels.
        let reach = stretch * resampling.radius();
        self.width = ((2.0 * reach).ceil() as usize).min(from);
        self.starts.clear();
        self.weights.clear();
        for output in 0..to {
            // Pixel p covers the range from p to p + 1, so its centre is at p + 0.5. The filter reaches the pixels
            // `first..end`, rounded as in Pillow.
            let centre = (output as f64 + 0.5) * scale;
            let first = (centre - reach + 0.5).max(0.0) as usize;
            let end = ((centre + reach + 0.5) as usize).min(from);
            // A window that would end beyond the last pixel starts earlier; pixels that the filter does not reach get
            // weight 0.
            let start = first.min(from - self.width);
            let weight = |pixel: usize| match (first..end).contains(&pixel) {
                true => resampling.weight((pixel as f64 + 0.5 - centre) / stretch),
                false => 0.0,
            };
            let total: f64 = (first..end).map(weight).sum();
            self.starts.push(start as u32);
            self.weights.extend((start..start + self.width).map(|pixel| weight(pixel) / total));
        }
        self.rounded.clear();
        self.rounded.extend(self.weights.iter().map(|&weight| weight as f32));
    }

    /// The first input pixel in the window of an output pixel, and the weights of the window.
    #[inline(always)]
    pub fn output(&self, output: usize) -> (usize, &[f32]) {
        (self.starts[output] as usize, &self.rounded[output * self.width..(output + 1) * self.width])
    }

    /// The weights for resizing a line of `from` pixels to `to` pixels, and these weights as fixed-point numbers
    /// `[outputs, width]`.
    fn with_integers(resampling: Resampling, from: usize, to: usize) -> (Self, Vec<i32>) {
        let mut taps = Taps::default();
        taps.set_resampling(resampling, from, to);
        let weights = taps.integer_weights();
        (taps, weights)
    }

    /// The weights as fixed-point numbers with [`WEIGHT_BITS`] fractional bits.
    fn integer_weights(&self) -> Vec<i32> {
        self.weights.iter().map(|&weight| (weight * f64::from(1 << WEIGHT_BITS)).round() as i32).collect()
    }
}

/// The width, the height and the bytes per pixel of an image whose pixels are in rows from the top.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PixelShape {
    /// Pixels from left to right.
    pub width: usize,
    /// Pixels from top to bottom.
    pub height: usize,
    /// Bytes of a pixel: 1 or 3.
    pub channels: usize,
}

/// Resizes an image to `(width, height)`.
///
/// # Panics
/// If the number of bytes is not that of the shape, if the input or the output has no pixels, or if a pixel has neither
/// 1 nor 3 bytes.
pub fn resized(
    pixels: &[u8],
    shape: PixelShape,
    (width, height): (usize, usize),
    resampling: Resampling,
) -> Vec<u8> {
    assert_eq!(pixels.len(), shape.width * shape.height * shape.channels, "bytes of the image");
    assert!(matches!(shape.channels, 1 | 3), "{} bytes per pixel", shape.channels);
    assert!(!pixels.is_empty() && width > 0 && height > 0, "an image without pixels");
    let row_resizer = RowResizer::new(shape, width, resampling);
    let mut row = Vec::with_capacity(row_resizer.length());
    let mut column_resizer = ColumnResizer::new(shape, row_resizer.length(), height, resampling);
    for source in pixels.chunks_exact(shape.width * shape.channels) {
        row.clear();
        row_resizer.apply(source, &mut row);
        column_resizer.add(&row);
    }
    column_resizer.pixels
}

/// Crops an image in place to the largest square in its middle and returns the side of the square in pixels.
pub fn crop_to_square(pixels: &mut Vec<u8>, shape: PixelShape) -> usize {
    let PixelShape { width, height, channels } = shape;
    let side = width.min(height);
    let (left, top) = ((width - side) / 2, (height - side) / 2);
    for y in 0..side {
        let start = ((top + y) * width + left) * channels;
        pixels.copy_within(start..start + side * channels, y * side * channels);
    }
    pixels.truncate(side * side * channels);
    side
}

/// Resizes rows to another width.
struct RowResizer {
    /// The windows and their fixed-point weights; `None` if rows keep their width: the weights would copy every pixel.
    taps: Option<(Taps, Vec<i32>)>,
    /// Pixels of a resized row.
    width: usize,
    /// Bytes per pixel, 1 or 3.
    channels: usize,
}

impl RowResizer {
    fn new(shape: PixelShape, width: usize, resampling: Resampling) -> Self {
        let taps = (width != shape.width).then(|| Taps::with_integers(resampling, shape.width, width));
        RowResizer { taps, width, channels: shape.channels }
    }

    /// Bytes of a resized row.
    fn length(&self) -> usize {
        self.width * self.channels
    }

    /// Appends the resized form of the row `source` to `row`.
    fn apply(&self, source: &[u8], row: &mut Vec<u8>) {
        let Some((taps, weights)) = &self.taps else { return row.extend_from_slice(source) };
        for (&start, weights) in taps.starts.iter().zip(weights.chunks_exact(taps.width)) {
            let window = &source[start as usize * self.channels..][..taps.width * self.channels];
            match self.channels {
                1 => row.extend(weighted_pixel::<1>(window, weights)),
                _ => row.extend(weighted_pixel::<3>(window, weights)),
            }
        }
    }
}

/// Resizes columns: takes the rows of an image one by one and sums them into the rows of an image of another height.
struct ColumnResizer {
    /// For every output row the window of input rows it is summed from.
    taps: Taps,
    /// Fixed-point weights `[output rows, window]`.
    weights: Vec<i32>,
    /// Number of input rows so far.
    added: usize,
    /// Number of complete output rows.
    done: usize,
    /// Sums of the output rows that are not complete, starting with row `done`.
    open: VecDeque<Vec<i32>>,
    /// Bytes per row.
    length: usize,
    /// The bytes of the complete output rows.
    pixels: Vec<u8>,
}

impl ColumnResizer {
    fn new(shape: PixelShape, length: usize, height: usize, resampling: Resampling) -> Self {
        let (taps, weights) = Taps::with_integers(resampling, shape.height, height);
        let pixels = Vec::with_capacity(length * height);
        ColumnResizer { taps, weights, added: 0, done: 0, open: VecDeque::new(), length, pixels }
    }

    /// Adds the next input row to the sums of all output rows whose windows contain it.
    fn add(&mut self, row: &[u8]) {
        let number = self.added;
        self.added += 1;
        // Open the output rows whose window starts with this row or an earlier one. Windows have equal lengths and
        // start in the order of their outputs, so they also end in that order.
        let has_begun =
            |output: usize| self.taps.starts.get(output).is_some_and(|&start| start as usize <= number);
        while has_begun(self.done + self.open.len()) {
            self.open.push_back(vec![HALF; self.length]);
        }
        for (output, sums) in (self.done..).zip(&mut self.open) {
            let index_in_window = number - self.taps.starts[output] as usize;
            let weight = self.weights[output * self.taps.width + index_in_window];
            for (sum, &value) in sums.iter_mut().zip(row) {
                *sum += i32::from(value) * weight;
            }
        }
        // Write the output rows whose window ends with this row.
        let ends_here = |output: usize| self.taps.starts[output] as usize + self.taps.width == self.added;
        while !self.open.is_empty() && ends_here(self.done) {
            let sums = self.open.pop_front().expect("an output is open");
            self.pixels.extend(sums.into_iter().map(to_byte));
            self.done += 1;
        }
    }
}

/// The weighted mean of the pixels of a window, each of `CHANNELS` bytes.
fn weighted_pixel<const CHANNELS: usize>(window: &[u8], weights: &[i32]) -> [u8; CHANNELS] {
    let mut sums = [HALF; CHANNELS];
    for (pixel, &weight) in window.as_chunks::<CHANNELS>().0.iter().zip(weights) {
        for (sum, &value) in sums.iter_mut().zip(pixel) {
            *sum += i32::from(value) * weight;
        }
    }
    sums.map(to_byte)
}

/// The integer part of a fixed-point sum. Bicubic weights can be negative, so a sum may lie outside 0 to 255.
fn to_byte(sum: i32) -> u8 {
    (sum >> WEIGHT_BITS).clamp(0, 255) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference: both passes over the whole image.
    fn in_two_passes(
        pixels: &[u8],
        shape: PixelShape,
        (width, height): (usize, usize),
        resampling: Resampling,
    ) -> Vec<u8> {
        let count = shape.channels;
        let (taps, weights) = Taps::with_integers(resampling, shape.width, width);
        let mut narrowed = Vec::new();
        for row in pixels.chunks_exact(shape.width * count) {
            for output in 0..width {
                for channel in 0..count {
                    let start = taps.starts[output] as usize;
                    let sum: i32 = (0..taps.width)
                        .map(|tap| {
                            i32::from(row[(start + tap) * count + channel])
                                * weights[output * taps.width + tap]
                        })
                        .sum();
                    narrowed.push(to_byte(sum + (1 << (WEIGHT_BITS - 1))));
                }
            }
        }
        let (taps, weights) = Taps::with_integers(resampling, shape.height, height);
        let mut resized = Vec::new();
        for output in 0..height {
            for byte in 0..width * count {
                let start = taps.starts[output] as usize;
                let sum: i32 = (0..taps.width)
                    .map(|tap| {
                        let value = narrowed[(start + tap) * width * count + byte];
                        i32::from(value) * weights[output * taps.width + tap]
                    })
                    .sum();
                resized.push(to_byte(sum + (1 << (WEIGHT_BITS - 1))));
            }
        }
        resized
    }

    #[test]
    fn row_by_row_gives_the_same_bytes_as_two_passes() {
        let sizes = [(1, 1), (1, 40), (40, 1), (3, 7), (17, 17), (64, 30), (100, 3)];
        for (channels, resampling) in
            [(1, Resampling::Bilinear), (3, Resampling::Bilinear), (3, Resampling::Bicubic)]
        {
            for (width, height) in sizes {
                let bytes = (0..width * height * channels).map(|index| (index * index * 7 + index / 3) as u8);
                let (pixels, shape) = (bytes.collect::<Vec<u8>>(), PixelShape { width, height, channels });
                for size in sizes {
                    let expected = in_two_passes(&pixels, shape, size, resampling);
                    let resized = resized(&pixels, shape, size, resampling);
                    assert_eq!(resized, expected, "{width} x {height} to {size:?}");
                }
            }
        }
    }
}
