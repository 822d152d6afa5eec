//! Resizes images: bilinear or bicubic, with antialiasing when shrinking.
//!
//! The arithmetic is Pillow's, which torchvision uses on images: columns first, then rows, weights of 22 bits,
//! each pass rounded to a byte. So networks trained elsewhere see here what they saw there, and integer sums
//! are the same on every processor. Both passes run row by row: an image of which only the columns are resized is never
//! held, since it can be larger than the image itself (one pixel wide and thousands high, for instance).

use std::collections::VecDeque;

use crate::decoded_image::DecodedImage;

/// Bits behind the point of a weight: 32, less 8 of the value, less 2 for sign and overflow.
const WEIGHT_BITS: u32 = 22;

/// What an image of another shape becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fit {
    /// The whole image, stretched to a square.
    #[default]
    Squash,
    /// The largest square in its middle.
    Crop,
}

/// How a pixel in between is made of its neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Resampling {
    /// A triangle: two pixels each way when enlarging by nothing, more when shrinking.
    #[default]
    Bilinear,
    /// Keys' cubic with a = -1/2, which is a little sharper.
    Bicubic,
}

impl Resampling {
    /// How far a pixel's influence reaches, in pixels of the smaller image.
    fn support(self) -> f64 {
        match self {
            Resampling::Bilinear => 1.0,
            Resampling::Bicubic => 2.0,
        }
    }

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

/// The weights with which a line of pixels becomes a line of another length.
#[derive(Debug, Clone, Default)]
pub(crate) struct Taps {
    /// First pixel of every output.
    starts: Vec<u32>,
    /// `width` weights an output.
    weights: Vec<f64>,
    /// The same, rounded.
    rounded: Vec<f32>,
    width: usize,
}

impl Taps {
    /// Computes the bilinear weights of `from` pixels for `to` outputs, reusing the memory.
    pub fn set(&mut self, from: usize, to: usize) {
        self.set_resampling(Resampling::Bilinear, from, to);
    }

    fn set_resampling(&mut self, resampling: Resampling, from: usize, to: usize) {
        let scale = from as f64 / to as f64;
        let stretch = scale.max(1.0);
        let reach = stretch * resampling.support();
        self.width = ((2.0 * reach).ceil() as usize).min(from);
        self.starts.clear();
        self.weights.clear();
        for output in 0..to {
            let centre = (output as f64 + 0.5) * scale;
            let first = (centre - reach + 0.5).max(0.0) as usize;
            let end = ((centre + reach + 0.5) as usize).min(from);
            // A window that would stick out is moved in: what it then covers beyond the reach has no weight.
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

    /// First pixel and weights of an output.
    #[inline(always)]
    pub fn output(&self, output: usize) -> (usize, &[f32]) {
        (self.starts[output] as usize, &self.rounded[output * self.width..(output + 1) * self.width])
    }

    /// Weights of `from` pixels for `to` outputs, and the same as whole numbers.
    fn with_integers(resampling: Resampling, from: usize, to: usize) -> (Self, Vec<i32>) {
        let mut taps = Taps::default();
        taps.set_resampling(resampling, from, to);
        let weights = taps.integer_weights();
        (taps, weights)
    }

    fn integer_weights(&self) -> Vec<i32> {
        self.weights.iter().map(|&weight| (weight * f64::from(1 << WEIGHT_BITS)).round() as i32).collect()
    }
}

impl DecodedImage {
    /// The image as a square of so many pixels; itself where it is one already.
    pub fn fitted(self, size: usize, fit: Fit) -> DecodedImage {
        self.fitted_by(size, fit, Resampling::Bilinear)
    }

    /// The same with a choice of how pixels in between are made.
    pub fn fitted_by(self, size: usize, fit: Fit, resampling: Resampling) -> DecodedImage {
        self.cropped_for(fit).resized_by(size, size, resampling)
    }

    /// The part of the image that is to be used, in its own size.
    pub(crate) fn cropped_for(self, fit: Fit) -> DecodedImage {
        match fit {
            Fit::Squash => self,
            Fit::Crop => self.central_square(),
        }
    }

    /// The image in another size.
    pub fn resized(self, width: usize, height: usize) -> DecodedImage {
        self.resized_by(width, height, Resampling::Bilinear)
    }

    /// The image in another size, with a choice of how pixels in between are made.
    pub fn resized_by(self, width: usize, height: usize, resampling: Resampling) -> DecodedImage {
        if (width, height) == (self.width, self.height) {
            return self;
        }
        let columns = RowResizer::new(&self, width, resampling);
        let mut row = Vec::with_capacity(columns.length());
        let mut rows = ColumnResizer::new(&self, columns.length(), height, resampling);
        for source in self.pixels.chunks_exact(self.width * self.channels.count()) {
            row.clear();
            columns.apply(source, &mut row);
            rows.add(&row);
        }
        DecodedImage::new(width, height, self.channels, rows.pixels)
    }

    fn central_square(mut self) -> DecodedImage {
        let side = self.width.min(self.height);
        if self.width == self.height {
            return self;
        }
        let count = self.channels.count();
        let (left, top) = ((self.width - side) / 2, (self.height - side) / 2);
        for y in 0..side {
            let start = ((top + y) * self.width + left) * count;
            self.pixels.copy_within(start..start + side * count, y * side * count);
        }
        self.pixels.truncate(side * side * count);
        DecodedImage::new(side, side, self.channels, self.pixels)
    }
}

/// Brings one row after the other to another width.
struct RowResizer {
    /// `None` if rows keep their width.
    taps: Option<(Taps, Vec<i32>)>,
    width: usize,
    count: usize,
}

impl RowResizer {
    fn new(image: &DecodedImage, width: usize, resampling: Resampling) -> Self {
        let taps = (width != image.width).then(|| Taps::with_integers(resampling, image.width, width));
        RowResizer { taps, width, count: image.channels.count() }
    }

    /// Bytes of a resized row.
    fn length(&self) -> usize {
        self.width * self.count
    }

    fn apply(&self, source: &[u8], row: &mut Vec<u8>) {
        let Some((taps, weights)) = &self.taps else { return row.extend_from_slice(source) };
        for (&start, weights) in taps.starts.iter().zip(weights.chunks_exact(taps.width)) {
            let window = &source[start as usize * self.count..][..taps.width * self.count];
            match self.count {
                1 => row.extend(weighted_pixel::<1>(window, weights)),
                _ => row.extend(weighted_pixel::<3>(window, weights)),
            }
        }
    }
}

/// Sums rows, as they come, into the rows of an image of another height.
struct ColumnResizer {
    taps: Taps,
    weights: Vec<i32>,
    /// Rows added so far.
    added: usize,
    /// Outputs that are complete.
    done: usize,
    /// The sums of the outputs that some of the added rows belong to, starting with output `done`.
    open: VecDeque<Vec<i32>>,
    length: usize,
    pixels: Vec<u8>,
}

impl ColumnResizer {
    fn new(image: &DecodedImage, length: usize, height: usize, resampling: Resampling) -> Self {
        let (taps, weights) = Taps::with_integers(resampling, image.height, height);
        let pixels = Vec::with_capacity(length * height);
        ColumnResizer { taps, weights, added: 0, done: 0, open: VecDeque::new(), length, pixels }
    }

    fn add(&mut self, row: &[u8]) {
        let number = self.added;
        self.added += 1;
        // Windows are equally long and begin in the order of their outputs, so they also end in that order.
        let begins_here =
            |output: usize| self.taps.starts.get(output).is_some_and(|&start| start as usize <= number);
        while begins_here(self.done + self.open.len()) {
            self.open.push_back(vec![1 << (WEIGHT_BITS - 1); self.length]);
        }
        for (output, sums) in (self.done..).zip(&mut self.open) {
            let place = number - self.taps.starts[output] as usize;
            let weight = self.weights[output * self.taps.width + place];
            for (sum, &value) in sums.iter_mut().zip(row) {
                *sum += i32::from(value) * weight;
            }
        }
        let ends_here = |output: usize| self.taps.starts[output] as usize + self.taps.width == self.added;
        while !self.open.is_empty() && ends_here(self.done) {
            let sums = self.open.pop_front().expect("an output is open");
            self.pixels.extend(sums.into_iter().map(to_byte));
            self.done += 1;
        }
    }
}

fn weighted_pixel<const COUNT: usize>(window: &[u8], weights: &[i32]) -> [u8; COUNT] {
    let mut sums = [1 << (WEIGHT_BITS - 1); COUNT];
    for (pixel, &weight) in window.as_chunks::<COUNT>().0.iter().zip(weights) {
        for (sum, &value) in sums.iter_mut().zip(pixel) {
            *sum += i32::from(value) * weight;
        }
    }
    sums.map(to_byte)
}

fn to_byte(sum: i32) -> u8 {
    (sum >> WEIGHT_BITS).clamp(0, 255) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoded_image::Channels;

    fn row(values: &[u8]) -> DecodedImage {
        DecodedImage::new(values.len(), 1, Channels::Grey, values.to_vec())
    }

    #[test]
    fn shrinking_takes_every_pixel_into_account() {
        // The triangle reaches two pixels each way: weights 3/7, 3/7, 1/7 and their mirror image.
        assert_eq!(row(&[0, 70, 140, 210]).resized(2, 1).pixels, [50, 160]);
    }

    #[test]
    fn enlarging_is_linear_between_the_middles_of_pixels() {
        assert_eq!(row(&[0, 100]).resized(4, 1).pixels, [0, 25, 75, 100]);
        let column = DecodedImage::new(1, 2, Channels::Grey, vec![0, 100]);
        assert_eq!(column.resized(1, 4).pixels, [0, 25, 75, 100]);
    }

    #[test]
    fn one_colour_stays_one_colour_at_every_size() {
        for (from, to) in [(1, 7), (2, 84), (84, 84), (85, 84), (500, 84), (31, 30)] {
            let pixels = [7, 130, 255].repeat(from * from);
            let resized = DecodedImage::new(from, from, Channels::Colour, pixels).resized(to, to);
            assert_eq!(resized.pixels, [7, 130, 255].repeat(to * to), "{from} to {to}");
        }
    }

    #[test]
    fn bicubic_is_what_pillow_makes_of_it() {
        // Image.fromarray(numpy.array([[0, 10, 200, 255, 30, 90, 77]], "uint8")).resize((3, 1), BICUBIC), and to 11.
        let values = row(&[0, 10, 200, 255, 30, 90, 77]);
        assert_eq!(values.clone().resized_by(3, 1, Resampling::Bicubic).pixels, [46, 172, 69]);
        assert_eq!(
            values.resized_by(11, 1, Resampling::Bicubic).pixels,
            [0, 0, 21, 153, 242, 255, 103, 28, 86, 86, 76]
        );
    }

    /// Both passes over whole images, one after the other.
    fn in_two_passes(
        image: &DecodedImage,
        width: usize,
        height: usize,
        resampling: Resampling,
    ) -> DecodedImage {
        let count = image.channels.count();
        let (taps, weights) = Taps::with_integers(resampling, image.width, width);
        let mut narrowed = Vec::new();
        for row in image.pixels.chunks_exact(image.width * count) {
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
        let (taps, weights) = Taps::with_integers(resampling, image.height, height);
        let mut pixels = Vec::new();
        for output in 0..height {
            for place in 0..width * count {
                let start = taps.starts[output] as usize;
                let sum: i32 = (0..taps.width)
                    .map(|tap| {
                        let value = narrowed[(start + tap) * width * count + place];
                        i32::from(value) * weights[output * taps.width + tap]
                    })
                    .sum();
                pixels.push(to_byte(sum + (1 << (WEIGHT_BITS - 1))));
            }
        }
        DecodedImage::new(width, height, image.channels, pixels)
    }

    #[test]
    fn row_by_row_gives_the_same_bytes_as_two_passes() {
        let sizes = [(1, 1), (1, 40), (40, 1), (3, 7), (17, 17), (64, 30), (100, 3)];
        for (channels, resampling) in [
            (Channels::Grey, Resampling::Bilinear),
            (Channels::Colour, Resampling::Bilinear),
            (Channels::Colour, Resampling::Bicubic),
        ] {
            for (width, height) in sizes {
                let bytes =
                    (0..width * height * channels.count()).map(|place| (place * place * 7 + place / 3) as u8);
                let image = DecodedImage::new(width, height, channels, bytes.collect());
                for (to_width, to_height) in sizes {
                    let expected = in_two_passes(&image, to_width, to_height, resampling);
                    let found = image.clone().resized_by(to_width, to_height, resampling);
                    assert_eq!(found, expected, "{width} x {height} to {to_width} x {to_height}");
                }
            }
        }
    }

    #[test]
    fn a_picture_of_the_right_size_is_left_alone() {
        let image = row(&[1, 2, 3]);
        assert_eq!(image.clone().resized(3, 1), image);
    }

    #[test]
    fn a_crop_is_the_square_in_the_middle() {
        let wide = DecodedImage::new(4, 2, Channels::Grey, vec![1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(wide.fitted(2, Fit::Crop).pixels, [2, 3, 6, 7]);
    }

    #[test]
    fn four_quarter_turns_lead_back() {
        let image = DecodedImage::new(3, 2, Channels::Grey, vec![1, 2, 3, 4, 5, 6]);
        assert_eq!(image.rotated(1).pixels, [4, 1, 5, 2, 6, 3]);
        assert_eq!(image.rotated(1).rotated(1), image.rotated(2));
        assert_eq!(image.rotated(3).rotated(1), image);
    }
}
