//! Augmentation: a picture that is flipped, cropped and coloured a little differently every time.
//!
//! Flip, crop and the four colour jitters are torchvision's (`RandomHorizontalFlip`, `RandomResizedCrop`,
//! `ColorJitter` on floating-point pictures), jitters in random order. What is random follows from the seed, the
//! picture and the number of the copy or step alone ([`Augmentation::draw`]), so neither threads nor the order
//! of work can change it.
//!
//! One picture costs a few passes over memory that stays in the cache: the crop is resampled row by row from
//! bytes into one plane a channel, jitters work on planes, and the last pass normalises and interleaves. All of
//! it runs under the chosen instruction set, in plain loops that the compiler turns into vectors. Every value is
//! computed on its own, and the one sum has a fixed order, so the set does not change the result.

use pulp::{Simd, WithSimd};
use trueshot::rng::{Purpose, Rng};
use trueshot_nn::Isa;

use crate::picture::{Channels, Picture};
use crate::preprocess::Preprocessing;
use crate::resize::Taps;

/// How much pictures are changed.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Augmentation {
    /// Whether half of the pictures are mirrored.
    pub flip: bool,
    /// The share of the area that a crop keeps: least and most.
    pub crop_scale: [f32; 2],
    /// Width over height of a crop: least and most.
    pub crop_ratio: [f32; 2],
    /// The largest change of brightness, as a share.
    pub brightness: f32,
    /// The largest change of contrast, as a share.
    pub contrast: f32,
    /// The largest change of saturation, as a share.
    pub saturation: f32,
    /// The largest change of hue, as a share of the full circle.
    pub hue: f32,
}

impl Default for Augmentation {
    fn default() -> Self {
        Augmentation {
            flip: true,
            crop_scale: [0.8, 1.0],
            crop_ratio: [3.0 / 4.0, 4.0 / 3.0],
            brightness: 0.1,
            contrast: 0.1,
            saturation: 0.1,
            hue: 0.1,
        }
    }
}

/// A change of colour.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Jitter {
    /// The factor of every value.
    Brightness(f32),
    /// The share of the picture, the rest being its mean grey.
    Contrast(f32),
    /// The share of the picture, the rest being its own grey version.
    Saturation(f32),
    /// The shift around the circle of hues, in sixths.
    Hue(f32),
}

/// One way to change a picture.
#[derive(Debug, Clone, PartialEq)]
pub struct Change {
    left: usize,
    top: usize,
    width: usize,
    height: usize,
    flip: bool,
    jitters: [Jitter; 4],
}

/// How often a crop is tried before the middle of the picture is taken.
const CROP_TRIES: usize = 10;

impl Augmentation {
    /// Draws the change of one copy (or in one step) of a picture of some size.
    pub fn draw(&self, seed: u64, picture: u64, copy: u64, width: usize, height: usize) -> Change {
        let rng = &mut Rng::of_item(seed, Purpose::Augmentation, picture, copy);
        let flip = self.flip && rng.below(2) == 1;
        let (left, top, crop_width, crop_height) = self.crop(rng, width, height);
        let mut around_one = |most: f32| 1.0 + most * (2.0 * rng.uniform() - 1.0);
        let mut jitters = [
            Jitter::Brightness(around_one(self.brightness).max(0.0)),
            Jitter::Contrast(around_one(self.contrast).max(0.0)),
            Jitter::Saturation(around_one(self.saturation).max(0.0)),
            Jitter::Hue(6.0 * (around_one(self.hue) - 1.0)),
        ];
        rng.shuffle(&mut jitters);
        Change { left, top, width: crop_width, height: crop_height, flip, jitters }
    }

    /// Left, top, width and height.
    fn crop(&self, rng: &mut Rng, width: usize, height: usize) -> (usize, usize, usize, usize) {
        let between = |rng: &mut Rng, [least, most]: [f32; 2]| least + (most - least) * rng.uniform();
        let area = (width * height) as f32;
        // The ratio is uniform on a logarithmic scale. libm's logarithm is the same on every platform.
        let logarithms = self.crop_ratio.map(libm::logf);
        for _ in 0..CROP_TRIES {
            let area = area * between(rng, self.crop_scale);
            let ratio = libm::expf(between(rng, logarithms));
            let (crop_width, crop_height) = ((area * ratio).sqrt().round(), (area / ratio).sqrt().round());
            let (crop_width, crop_height) = (crop_width as usize, crop_height as usize);
            if (1..=width).contains(&crop_width) && (1..=height).contains(&crop_height) {
                let left = rng.below(width - crop_width + 1);
                return (left, rng.below(height - crop_height + 1), crop_width, crop_height);
            }
        }
        self.middle(width, height)
    }

    /// The largest allowed ratio in the middle: what torchvision falls back to.
    fn middle(&self, width: usize, height: usize) -> (usize, usize, usize, usize) {
        let [least, most] = self.crop_ratio;
        let ratio = width as f32 / height as f32;
        let (crop_width, crop_height) = match ratio {
            _ if ratio < least => (width, ((width as f32 / least).round() as usize).clamp(1, height)),
            _ if ratio > most => (((height as f32 * most).round() as usize).clamp(1, width), height),
            _ => (width, height),
        };
        ((width - crop_width) / 2, (height - crop_height) / 2, crop_width, crop_height)
    }
}

impl Change {
    /// No change at all: the whole picture, brought to size.
    pub fn none(width: usize, height: usize) -> Self {
        let jitters =
            [Jitter::Brightness(1.0), Jitter::Contrast(1.0), Jitter::Saturation(1.0), Jitter::Hue(0.0)];
        Change { left: 0, top: 0, width, height, flip: false, jitters }
    }
}

/// Changes pictures; holds the working memory of one thread.
#[derive(Debug, Default)]
pub struct Augmenter {
    columns: Taps,
    rows: Taps,
    /// A row of the crop, weighted but not yet resampled.
    row: Vec<f32>,
    /// One plane a channel, values in [0, 1].
    planes: Vec<f32>,
}

impl Augmenter {
    /// Changes a picture and normalises it: `[row][column][channel]`.
    ///
    /// # Panics
    /// If the change was drawn for another size, or there is not the right room.
    pub fn apply(
        &mut self,
        isa: Isa,
        picture: &Picture,
        change: &Change,
        to: &Preprocessing,
        out: &mut [f32],
    ) {
        assert!(change.left + change.width <= picture.width && change.top + change.height <= picture.height);
        assert_eq!(picture.channels, to.channels, "channels of the picture");
        assert_eq!(out.len(), to.values(), "room for the picture");
        self.columns.set(change.width, to.size);
        self.rows.set(change.height, to.size);
        self.row.resize(change.width * picture.channels.count(), 0.0);
        self.planes.resize(to.values(), 0.0);
        let normalisation = to.scale_and_shift(1.0);
        isa.run(Kernel { scratch: self, picture, change, size: to.size, normalisation, out });
    }
}

/// The whole work on one picture.
struct Kernel<'a> {
    scratch: &'a mut Augmenter,
    picture: &'a Picture,
    change: &'a Change,
    size: usize,
    normalisation: [[f32; 2]; 3],
    out: &'a mut [f32],
}

impl WithSimd for Kernel<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        match self.picture.channels {
            Channels::Grey => self.grey(),
            Channels::Colour => self.colour(),
        }
    }
}

impl Kernel<'_> {
    #[inline(always)]
    fn grey(self) {
        resample::<1>(self.scratch, self.picture, self.change, self.size);
        let plane = &mut self.scratch.planes[..];
        for jitter in self.change.jitters {
            match jitter {
                Jitter::Brightness(factor) if factor != 1.0 => brighten(plane, factor),
                Jitter::Contrast(share) if share != 1.0 => {
                    let mean = lane_sum(plane.len(), |i| plane[i]) / plane.len() as f32;
                    blend(plane, share, mean);
                }
                // Without colour there is nothing to saturate or to turn.
                _ => {}
            }
        }
        let [scale, shift] = self.normalisation[0];
        for (out, value) in self.out.iter_mut().zip(plane) {
            *out = *value * scale + shift;
        }
    }

    #[inline(always)]
    fn colour(self) {
        resample::<3>(self.scratch, self.picture, self.change, self.size);
        let planes = &mut self.scratch.planes[..];
        for jitter in self.change.jitters {
            match jitter {
                Jitter::Brightness(factor) if factor != 1.0 => brighten(planes, factor),
                Jitter::Contrast(share) if share != 1.0 => {
                    let mean = mean_grey(planes);
                    blend(planes, share, mean);
                }
                Jitter::Saturation(share) if share != 1.0 => saturate(planes, share),
                Jitter::Hue(shift) if shift != 0.0 => turn_hue(planes, shift),
                _ => {}
            }
        }
        interleave(planes, &self.normalisation, self.out);
    }
}

/// The crop, brought to size, as planes of values in [0, 1].
#[inline(always)]
fn resample<const COUNT: usize>(scratch: &mut Augmenter, picture: &Picture, change: &Change, size: usize) {
    let Augmenter { columns, rows, row, planes } = scratch;
    for y in 0..size {
        let (start, weights) = rows.of(y);
        row.fill(0.0);
        for (line, &weight) in weights.iter().enumerate() {
            let place = ((change.top + start + line) * picture.width + change.left) * COUNT;
            let weight = weight / 255.0;
            for (sum, &value) in row.iter_mut().zip(&picture.pixels[place..place + change.width * COUNT]) {
                *sum += weight * f32::from(value);
            }
        }
        for x in 0..size {
            let (start, weights) = columns.of(x);
            let target = y * size + if change.flip { size - 1 - x } else { x };
            let mut sums = [0.0; COUNT];
            for (pixel, &weight) in row[start * COUNT..].as_chunks::<COUNT>().0.iter().zip(weights) {
                for channel in 0..COUNT {
                    sums[channel] += weight * pixel[channel];
                }
            }
            for channel in 0..COUNT {
                planes[channel * size * size + target] = sums[channel];
            }
        }
    }
}

/// How much red, green and blue count for grey.
const GREY: [f32; 3] = [0.2989, 0.587, 0.114];

#[inline(always)]
fn in_range(value: f32) -> f32 {
    let above = if value > 0.0 { value } else { 0.0 };
    if above < 1.0 { above } else { 1.0 }
}

#[inline(always)]
fn brighten(values: &mut [f32], factor: f32) {
    for value in values {
        *value = in_range(*value * factor);
    }
}

/// A share of the picture and, for the rest, one grey.
#[inline(always)]
fn blend(values: &mut [f32], share: f32, grey: f32) {
    let rest = (1.0 - share) * grey;
    for value in values {
        *value = in_range(share * *value + rest);
    }
}

/// A sum in a fixed order that vectors of any width can follow.
#[inline(always)]
fn lane_sum(count: usize, value: impl Fn(usize) -> f32) -> f32 {
    const LANES: usize = 16;
    let mut lanes = [0.0; LANES];
    for chunk in 0..count / LANES {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += value(chunk * LANES + lane);
        }
    }
    let rest: f32 = (count / LANES * LANES..count).map(value).sum();
    lanes.iter().sum::<f32>() + rest
}

#[inline(always)]
fn mean_grey(planes: &[f32]) -> f32 {
    let count = planes.len() / 3;
    let (red, rest) = planes.split_at(count);
    let (green, blue) = rest.split_at(count);
    let blue = &blue[..count];
    let mut total = 0.0;
    for (plane, weight) in [red, green, blue].into_iter().zip(GREY) {
        total += weight * lane_sum(count, |i| plane[i]);
    }
    total / count as f32
}

/// Every pixel's three values, in place.
macro_rules! for_each_pixel {
    ($planes:expr, |$red:ident, $green:ident, $blue:ident| $change:block) => {
        let count = $planes.len() / 3;
        let (red, rest) = $planes.split_at_mut(count);
        let (green, blue) = rest.split_at_mut(count);
        let blue = &mut blue[..count];
        for i in 0..count {
            let ($red, $green, $blue) = (red[i], green[i], blue[i]);
            let [new_red, new_green, new_blue] = $change;
            red[i] = new_red;
            green[i] = new_green;
            blue[i] = new_blue;
        }
    };
}

#[inline(always)]
fn saturate(planes: &mut [f32], share: f32) {
    for_each_pixel!(planes, |r, g, b| {
        let rest = (1.0 - share) * (GREY[0] * r + GREY[1] * g + GREY[2] * b);
        [in_range(share * r + rest), in_range(share * g + rest), in_range(share * b + rest)]
    });
}

/// Shifts the hue, in sixths of the circle. Without branches: the hue's sector is chosen by comparisons, and
/// each channel of a hue h is `value - chroma * clamp(min(k, 4 - k), 0, 1)` with k = (n + h) mod 6, n being
/// 5, 3 and 1 for red, green and blue.
#[inline(always)]
fn turn_hue(planes: &mut [f32], shift: f32) {
    for_each_pixel!(planes, |r, g, b| {
        let (larger, smaller) = if r > g { (r, g) } else { (g, r) };
        let value = if larger > b { larger } else { b };
        let least = if smaller < b { smaller } else { b };
        let chroma = value - least;
        let inverse = if chroma > 0.0 { 1.0 / chroma } else { 0.0 };
        let from_green = 2.0 + (b - r) * inverse;
        let from_blue = 4.0 + (r - g) * inverse;
        let from_red = (g - b) * inverse;
        let hue = if value == g { from_green } else { from_blue };
        let hue = if value == r { from_red } else { hue } + shift;
        let hue = if hue < 0.0 { hue + 6.0 } else { hue };
        let hue = if hue >= 6.0 { hue - 6.0 } else { hue };
        [
            in_range(channel_of(hue + 5.0, value, chroma)),
            in_range(channel_of(hue + 3.0, value, chroma)),
            in_range(channel_of(hue + 1.0, value, chroma)),
        ]
    });
}

#[inline(always)]
fn channel_of(k: f32, value: f32, chroma: f32) -> f32 {
    let k = if k >= 6.0 { k - 6.0 } else { k };
    let fall = 4.0 - k;
    value - chroma * in_range(if k < fall { k } else { fall })
}

/// Planes to pixels, normalised.
#[inline(always)]
fn interleave(planes: &[f32], normalisation: &[[f32; 2]; 3], out: &mut [f32]) {
    let count = planes.len() / 3;
    let (red, rest) = planes.split_at(count);
    let (green, blue) = rest.split_at(count);
    let [[red_scale, red_shift], [green_scale, green_shift], [blue_scale, blue_shift]] = *normalisation;
    let pixels = out.as_chunks_mut::<3>().0;
    for (((pixel, r), g), b) in pixels.iter_mut().zip(red).zip(green).zip(blue) {
        *pixel = [r * red_scale + red_shift, g * green_scale + green_shift, b * blue_scale + blue_shift];
    }
}
