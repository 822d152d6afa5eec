//! Brings a picture to another size: bilinear or bicubic, with the filter widened when shrinking (antialias).
//!
//! The arithmetic is Pillow's, which torchvision uses on pictures: columns first, then rows, weights of 22 bits,
//! each pass rounded to a byte. So networks trained elsewhere see here what they saw there, and integer sums
//! are the same on every processor.

use crate::picture::Picture;

/// Bits behind the point of a weight: 32, less 8 of the value, less 2 for sign and overflow.
const BITS: u32 = 22;

/// What a picture of another shape becomes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fit {
    /// The whole picture, stretched to a square.
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
    /// How far a pixel's influence reaches, in pixels of the smaller picture.
    fn reach(self) -> f64 {
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
        self.set_for(Resampling::Bilinear, from, to);
    }

    fn set_for(&mut self, resampling: Resampling, from: usize, to: usize) {
        let scale = from as f64 / to as f64;
        let stretch = scale.max(1.0);
        let reach = stretch * resampling.reach();
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
    pub fn of(&self, output: usize) -> (usize, &[f32]) {
        (self.starts[output] as usize, &self.rounded[output * self.width..(output + 1) * self.width])
    }

    fn whole_numbers(&self) -> Vec<i32> {
        self.weights.iter().map(|&weight| (weight * f64::from(1 << BITS)).round() as i32).collect()
    }
}

impl Picture {
    /// The picture as a square of so many pixels; itself where it is one already.
    pub fn fitted(self, size: usize, fit: Fit) -> Picture {
        self.fitted_by(size, fit, Resampling::Bilinear)
    }

    /// The same with a choice of how pixels in between are made.
    pub fn fitted_by(self, size: usize, fit: Fit, resampling: Resampling) -> Picture {
        self.framed(fit).resized_by(size, size, resampling)
    }

    /// The part of the picture that is to be used, in its own size.
    pub(crate) fn framed(self, fit: Fit) -> Picture {
        match fit {
            Fit::Squash => self,
            Fit::Crop => self.middle(),
        }
    }

    /// The picture in another size.
    pub fn resized(self, width: usize, height: usize) -> Picture {
        self.resized_by(width, height, Resampling::Bilinear)
    }

    /// The picture in another size, with a choice of how pixels in between are made.
    pub fn resized_by(self, width: usize, height: usize, resampling: Resampling) -> Picture {
        let narrowed = if width == self.width { self } else { columns(&self, width, resampling) };
        if height == narrowed.height { narrowed } else { rows(&narrowed, height, resampling) }
    }

    fn middle(self) -> Picture {
        let side = self.width.min(self.height);
        if self.width == self.height {
            return self;
        }
        let count = self.channels.count();
        let (left, top) = ((self.width - side) / 2, (self.height - side) / 2);
        let row = |y: usize| &self.pixels[((top + y) * self.width + left) * count..][..side * count];
        let pixels = (0..side).flat_map(|y| row(y).iter().copied()).collect();
        Picture::new(side, side, self.channels, pixels)
    }
}

fn columns(picture: &Picture, width: usize, resampling: Resampling) -> Picture {
    let mut taps = Taps::default();
    taps.set_for(resampling, picture.width, width);
    let weights = taps.whole_numbers();
    let count = picture.channels.count();
    let mut pixels = Vec::with_capacity(width * picture.height * count);
    for row in picture.pixels.chunks_exact(picture.width * count) {
        for (&start, weights) in taps.starts.iter().zip(weights.chunks_exact(taps.width)) {
            let window = &row[start as usize * count..][..taps.width * count];
            match count {
                1 => pixels.extend(weighted::<1>(window, weights)),
                _ => pixels.extend(weighted::<3>(window, weights)),
            }
        }
    }
    Picture::new(width, picture.height, picture.channels, pixels)
}

fn weighted<const COUNT: usize>(window: &[u8], weights: &[i32]) -> [u8; COUNT] {
    let mut sums = [1 << (BITS - 1); COUNT];
    for (pixel, &weight) in window.as_chunks::<COUNT>().0.iter().zip(weights) {
        for (sum, &value) in sums.iter_mut().zip(pixel) {
            *sum += i32::from(value) * weight;
        }
    }
    sums.map(to_byte)
}

fn rows(picture: &Picture, height: usize, resampling: Resampling) -> Picture {
    let mut taps = Taps::default();
    taps.set_for(resampling, picture.height, height);
    let weights = taps.whole_numbers();
    let stride = picture.width * picture.channels.count();
    let mut sums = vec![0; stride];
    let mut pixels = Vec::with_capacity(stride * height);
    for (&start, weights) in taps.starts.iter().zip(weights.chunks_exact(taps.width)) {
        sums.fill(1 << (BITS - 1));
        let window = &picture.pixels[start as usize * stride..];
        for (row, &weight) in window.chunks_exact(stride).zip(weights) {
            for (sum, &value) in sums.iter_mut().zip(row) {
                *sum += i32::from(value) * weight;
            }
        }
        pixels.extend(sums.iter().map(|&sum| to_byte(sum)));
    }
    Picture::new(picture.width, height, picture.channels, pixels)
}

fn to_byte(sum: i32) -> u8 {
    (sum >> BITS).clamp(0, 255) as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::Channels;

    fn row(values: &[u8]) -> Picture {
        Picture::new(values.len(), 1, Channels::Grey, values.to_vec())
    }

    #[test]
    fn shrinking_takes_every_pixel_into_account() {
        // The triangle reaches two pixels each way: weights 3/7, 3/7, 1/7 and their mirror image.
        assert_eq!(row(&[0, 70, 140, 210]).resized(2, 1).pixels, [50, 160]);
    }

    #[test]
    fn enlarging_is_linear_between_the_middles_of_pixels() {
        assert_eq!(row(&[0, 100]).resized(4, 1).pixels, [0, 25, 75, 100]);
        let column = Picture::new(1, 2, Channels::Grey, vec![0, 100]);
        assert_eq!(column.resized(1, 4).pixels, [0, 25, 75, 100]);
    }

    #[test]
    fn one_colour_stays_one_colour_at_every_size() {
        for (from, to) in [(1, 7), (2, 84), (84, 84), (85, 84), (500, 84), (31, 30)] {
            let pixels = [7, 130, 255].repeat(from * from);
            let resized = Picture::new(from, from, Channels::Colour, pixels).resized(to, to);
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

    #[test]
    fn a_picture_of_the_right_size_is_left_alone() {
        let picture = row(&[1, 2, 3]);
        assert_eq!(picture.clone().resized(3, 1), picture);
    }

    #[test]
    fn a_crop_is_the_square_in_the_middle() {
        let wide = Picture::new(4, 2, Channels::Grey, vec![1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(wide.fitted(2, Fit::Crop).pixels, [2, 3, 6, 7]);
    }

    #[test]
    fn four_quarter_turns_lead_back() {
        let picture = Picture::new(3, 2, Channels::Grey, vec![1, 2, 3, 4, 5, 6]);
        assert_eq!(picture.turned(1).pixels, [4, 1, 5, 2, 6, 3]);
        assert_eq!(picture.turned(1).turned(1), picture.turned(2));
        assert_eq!(picture.turned(3).turned(1), picture);
    }
}
