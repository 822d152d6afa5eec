//! Random augmentation of images for training: flips, crops and colour jitter (random changes of brightness, contrast,
//! saturation and hue). Start with [`Augmentation::draw`], which draws the parameters of one image, and
//! [`Augmenter::apply`], which applies them on the CPU; on a GPU, `kernels/augment.cu` of `trueshot-cuda` does.
//!
//! The operations are torchvision's `RandomHorizontalFlip`, `RandomResizedCrop` and `ColorJitter` on floating-point
//! images, with the jitters in random order. The drawn parameters depend only on the seed, the image and the number of
//! the copy or step, so neither threads nor the order of work can change them.
//!
//! [`Augmenter::apply`] has three passes: the crop is resampled row by row from bytes into one plane per channel (all
//! values of one colour), jitters work on planes, and the last pass normalises and interleaves. The loops are compiled
//! for the chosen SIMD instruction set. Values are computed independently and the only sum has a fixed order, so the
//! instruction set does not change the result.

use pulp::{Simd, WithSimd};
use trueshot::rng::{Purpose, Rng};
use trueshot_nn::isa;

use crate::decoded_image::{Channels, DecodedImage};
use crate::preprocess::Preprocessing;
use crate::resize::Taps;

/// The ranges that the parameters of an augmentation are drawn from. Users set them in the configuration of a training
/// run.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(default)]
pub struct Augmentation {
    /// Whether half of the images are mirrored.
    pub flip: bool,
    /// Smallest and largest share of the area that a crop keeps.
    pub crop_scale: [f32; 2],
    /// Smallest and largest aspect ratio (width / height) of a crop.
    pub crop_ratio: [f32; 2],
    /// The factor is drawn from `1 - brightness` to `1 + brightness`.
    pub brightness: f32,
    /// The factor is drawn from `1 - contrast` to `1 + contrast`.
    pub contrast: f32,
    /// The factor is drawn from `1 - saturation` to `1 + saturation`.
    pub saturation: f32,
    /// The largest shift of the hue, as a share of the full circle.
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
    /// Factor of every value.
    Brightness(f32),
    /// Weight of the image in a blend with its mean grey; above 1, values move away from the grey.
    Contrast(f32),
    /// Weight of the image in a blend with its grey version; above 1, colours become stronger.
    Saturation(f32),
    /// Shift of the hue, in sixths of the circle.
    Hue(f32),
}

/// The drawn parameters of the augmentation of one image: its crop in pixels, whether it is mirrored, and its jitters
/// in the order in which they are applied.
#[derive(Debug, Clone, PartialEq)]
pub struct DrawnAugmentation {
    left: usize,
    top: usize,
    width: usize,
    height: usize,
    flip: bool,
    jitters: [Jitter; 4],
}

/// Attempts to draw a crop that fits into the image before the central crop is used, as in torchvision.
const CROP_TRIES: usize = 10;

impl Augmentation {
    /// Draws the parameters for an image of `width` x `height` pixels.
    ///
    /// The same arguments give the same parameters. `image` identifies the image (the hash of its name, see
    /// [`Dataset::key`](crate::Dataset::key)); `copy` is the number of its copy, or in training the number of the step.
    pub fn draw(&self, seed: u64, image: u64, copy: u64, width: usize, height: usize) -> DrawnAugmentation {
        let rng = &mut Rng::for_item(seed, Purpose::Augmentation, image, copy);
        let flip = self.flip && rng.below(2) == 1;
        let (left, top, crop_width, crop_height) = self.crop(rng, width, height);
        // A number from `1 - most` to `1 + most`.
        let mut around_one = |most: f32| 1.0 + most * (2.0 * rng.uniform() - 1.0);
        let mut jitters = [
            Jitter::Brightness(around_one(self.brightness).max(0.0)),
            Jitter::Contrast(around_one(self.contrast).max(0.0)),
            Jitter::Saturation(around_one(self.saturation).max(0.0)),
            // A shift around 0, converted from a share of the circle to sixths.
            Jitter::Hue(6.0 * (around_one(self.hue) - 1.0)),
        ];
        rng.shuffle(&mut jitters);
        DrawnAugmentation { left, top, width: crop_width, height: crop_height, flip, jitters }
    }

    /// Draws a crop: left, top, width and height in pixels.
    fn crop(&self, rng: &mut Rng, width: usize, height: usize) -> (usize, usize, usize, usize) {
        let between = |rng: &mut Rng, [least, most]: [f32; 2]| least + (most - least) * rng.uniform();
        let image_area = (width * height) as f32;
        // The ratio is uniform on a logarithmic scale, so that 3:4 and 4:3 are equally likely. libm's logarithm is the
        // same on every platform.
        let logarithms = self.crop_ratio.map(libm::logf);
        for _ in 0..CROP_TRIES {
            let area = image_area * between(rng, self.crop_scale);
            let ratio = libm::expf(between(rng, logarithms));
            // From area = width * height and ratio = width / height.
            let (crop_width, crop_height) = ((area * ratio).sqrt().round(), (area / ratio).sqrt().round());
            let (crop_width, crop_height) = (crop_width as usize, crop_height as usize);
            if (1..=width).contains(&crop_width) && (1..=height).contains(&crop_height) {
                let left = rng.below(width - crop_width + 1);
                return (left, rng.below(height - crop_height + 1), crop_width, crop_height);
            }
        }
        self.central_crop(width, height)
    }

    /// The largest central crop of an allowed aspect ratio, torchvision's fallback: left, top, width and height.
    fn central_crop(&self, width: usize, height: usize) -> (usize, usize, usize, usize) {
        let [least, most] = self.crop_ratio;
        let ratio = width as f32 / height as f32;
        let (crop_width, crop_height) = if ratio < least {
            (width, ((width as f32 / least).round() as usize).clamp(1, height))
        } else if ratio > most {
            (((height as f32 * most).round() as usize).clamp(1, width), height)
        } else {
            (width, height)
        };
        ((width - crop_width) / 2, (height - crop_height) / 2, crop_width, crop_height)
    }
}

impl DrawnAugmentation {
    /// The request to a GPU to augment its image number `image` with these parameters. The kinds of the four jitters
    /// are packed into one number, two bits each, the first in the lowest bits.
    #[cfg(feature = "cuda")]
    pub(crate) fn request(&self, image: u32) -> trueshot_cuda::conv4::ImageRequest {
        let (mut kinds, mut values) = (0, [0.0; 4]);
        for (index, jitter) in self.jitters.iter().enumerate() {
            let (kind, value) = match *jitter {
                Jitter::Brightness(value) => (0, value),
                Jitter::Contrast(value) => (1, value),
                Jitter::Saturation(value) => (2, value),
                Jitter::Hue(value) => (3, value),
            };
            kinds |= kind << (2 * index);
            values[index] = value;
        }
        let crop = [self.left, self.top, self.width, self.height].map(|length| length as u16);
        trueshot_cuda::conv4::ImageRequest { image, crop, flip: self.flip.into(), jitters: kinds, values }
    }

    /// The parameters that change nothing: the image is only resized.
    pub fn identity(width: usize, height: usize) -> Self {
        let jitters =
            [Jitter::Brightness(1.0), Jitter::Contrast(1.0), Jitter::Saturation(1.0), Jitter::Hue(0.0)];
        DrawnAugmentation { left: 0, top: 0, width, height, flip: false, jitters }
    }
}

/// Applies augmentations; holds the working memory of one thread.
#[derive(Debug, Default)]
pub struct Augmenter {
    /// For each output column the neighbouring columns of the crop that it is made of, and their bilinear weights.
    columns: Taps,
    /// The same for rows.
    rows: Taps,
    /// A row of the crop after the vertical resampling: `[column of the crop][channel]`, values in [0, 1].
    row: Vec<f32>,
    /// The resized crop, one plane per channel: `[channel][row][column]`, values in [0, 1].
    planes: Vec<f32>,
}

impl Augmenter {
    /// Crops, resizes, mirrors, jitters and normalises an image. Writes the input of the network,
    /// `[row][column][channel]` with `to.size` rows and columns, to `out`.
    ///
    /// # Panics
    /// If the parameters were drawn for another size, or `out` has another length than the network's input.
    pub fn apply(
        &mut self,
        image: &DecodedImage,
        drawn: &DrawnAugmentation,
        to: &Preprocessing,
        out: &mut [f32],
    ) {
        assert!(drawn.left + drawn.width <= image.width && drawn.top + drawn.height <= image.height);
        assert_eq!(image.channels, to.channels, "channels of the image");
        assert_eq!(out.len(), to.input_len(), "length of the output");
        self.columns.set(drawn.width, to.size);
        self.rows.set(drawn.height, to.size);
        self.row.resize(drawn.width * image.channels.count(), 0.0);
        self.planes.resize(to.input_len(), 0.0);
        let normalisation = to.scale_and_shift(1.0);
        isa::run(AugmentKernel { scratch: self, image, drawn, size: to.size, normalisation, out });
    }
}

/// The steps of [`Augmenter::apply`] on one image, as a kernel that `isa::run` compiles for every instruction set.
/// Every function that it calls is therefore `#[inline(always)]`.
struct AugmentKernel<'a> {
    scratch: &'a mut Augmenter,
    image: &'a DecodedImage,
    drawn: &'a DrawnAugmentation,
    /// Height and width of the output.
    size: usize,
    /// Scale and shift of each channel.
    normalisation: [[f32; 2]; 3],
    out: &'a mut [f32],
}

impl WithSimd for AugmentKernel<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _simd: S) {
        match self.image.channels {
            Channels::Grey => self.grey(),
            Channels::Colour => self.colour(),
        }
    }
}

impl AugmentKernel<'_> {
    /// Augments an image with one channel.
    #[inline(always)]
    fn grey(self) {
        resample::<1>(self.scratch, self.image, self.drawn, self.size);
        let plane = &mut self.scratch.planes[..];
        for jitter in self.drawn.jitters {
            match jitter {
                Jitter::Brightness(factor) if factor != 1.0 => scale_brightness(plane, factor),
                Jitter::Contrast(weight) if weight != 1.0 => {
                    let mean = lane_sum(plane.len(), |i| plane[i]) / plane.len() as f32;
                    blend(plane, weight, mean);
                }
                // Grey images have no saturation or hue.
                _ => {}
            }
        }
        let [scale, shift] = self.normalisation[0];
        for (out, value) in self.out.iter_mut().zip(plane) {
            *out = *value * scale + shift;
        }
    }

    /// Augments an image with three channels.
    #[inline(always)]
    fn colour(self) {
        resample::<3>(self.scratch, self.image, self.drawn, self.size);
        let planes = &mut self.scratch.planes[..];
        for jitter in self.drawn.jitters {
            match jitter {
                Jitter::Brightness(factor) if factor != 1.0 => scale_brightness(planes, factor),
                Jitter::Contrast(weight) if weight != 1.0 => {
                    let mean = mean_grey(planes);
                    blend(planes, weight, mean);
                }
                Jitter::Saturation(weight) if weight != 1.0 => saturate(planes, weight),
                Jitter::Hue(shift) if shift != 0.0 => shift_hue(planes, shift),
                _ => {}
            }
        }
        interleave(planes, &self.normalisation, self.out);
    }
}

/// Resizes the crop of an image with `COUNT` channels to `size` x `size` pixels, mirrors it if drawn so, and writes it
/// to `scratch.planes`.
#[inline(always)]
fn resample<const COUNT: usize>(
    scratch: &mut Augmenter,
    image: &DecodedImage,
    drawn: &DrawnAugmentation,
    size: usize,
) {
    let Augmenter { columns, rows, row, planes } = scratch;
    for y in 0..size {
        // Vertically: a weighted sum of rows of the crop, from number `start` on, scaled from bytes to [0, 1].
        let (start, weights) = rows.output(y);
        row.fill(0.0);
        for (crop_row, &weight) in (start..).zip(weights) {
            let first = ((drawn.top + crop_row) * image.width + drawn.left) * COUNT;
            let weight = weight / 255.0;
            for (sum, &value) in row.iter_mut().zip(&image.pixels[first..first + drawn.width * COUNT]) {
                *sum += weight * f32::from(value);
            }
        }
        // Horizontally: each output pixel is a weighted sum of pixels of `row`, from number `start` on.
        for x in 0..size {
            let (start, weights) = columns.output(x);
            let target = y * size + if drawn.flip { size - 1 - x } else { x };
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

/// Weights of red, green and blue in grey: those of torchvision (Rec. 601).
const GREY_WEIGHTS: [f32; 3] = [0.2989, 0.587, 0.114];

/// Limits a value to [0, 1] by comparisons, which become SIMD instructions.
#[inline(always)]
fn clamp_unit(value: f32) -> f32 {
    let non_negative = if value > 0.0 { value } else { 0.0 };
    if non_negative < 1.0 { non_negative } else { 1.0 }
}

/// `factor * value` for every value, limited to [0, 1].
#[inline(always)]
fn scale_brightness(values: &mut [f32], factor: f32) {
    for value in values {
        *value = clamp_unit(*value * factor);
    }
}

/// `weight * value + (1 - weight) * grey` for every value, limited to [0, 1].
#[inline(always)]
fn blend(values: &mut [f32], weight: f32, grey: f32) {
    let grey_part = (1.0 - weight) * grey;
    for value in values {
        *value = clamp_unit(weight * *value + grey_part);
    }
}

/// The sum of `value(0)` to `value(count - 1)`, in a fixed order that SIMD code of any width up to 16 can follow: 16
/// partial sums of every 16th value, then the remaining values.
#[inline(always)]
fn lane_sum(count: usize, value: impl Fn(usize) -> f32) -> f32 {
    const LANES: usize = 16;
    let mut lanes = [0.0; LANES];
    for chunk in 0..count / LANES {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += value(chunk * LANES + lane);
        }
    }
    let remainder: f32 = (count / LANES * LANES..count).map(value).sum();
    lanes.iter().sum::<f32>() + remainder
}

/// The mean of the grey version of a colour image.
#[inline(always)]
fn mean_grey(planes: &[f32]) -> f32 {
    let count = planes.len() / 3;
    let (red, green_blue) = planes.split_at(count);
    let (green, blue) = green_blue.split_at(count);
    // The exact length saves bounds checks.
    let blue = &blue[..count];
    let mut total = 0.0;
    for (plane, weight) in [red, green, blue].into_iter().zip(GREY_WEIGHTS) {
        total += weight * lane_sum(count, |i| plane[i]);
    }
    total / count as f32
}

/// Replaces the three values of every pixel by those that a block computes from them.
macro_rules! for_each_pixel {
    ($planes:expr, |$red:ident, $green:ident, $blue:ident| $new_values:block) => {
        let count = $planes.len() / 3;
        let (red, green_blue) = $planes.split_at_mut(count);
        let (green, blue) = green_blue.split_at_mut(count);
        // The exact length saves bounds checks.
        let blue = &mut blue[..count];
        for i in 0..count {
            let ($red, $green, $blue) = (red[i], green[i], blue[i]);
            let [new_red, new_green, new_blue] = $new_values;
            red[i] = new_red;
            green[i] = new_green;
            blue[i] = new_blue;
        }
    };
}

/// Blends every pixel with its grey: `weight * value + (1 - weight) * grey`, limited to [0, 1].
#[inline(always)]
fn saturate(planes: &mut [f32], weight: f32) {
    for_each_pixel!(planes, |r, g, b| {
        let grey = GREY_WEIGHTS[0] * r + GREY_WEIGHTS[1] * g + GREY_WEIGHTS[2] * b;
        let grey_part = (1.0 - weight) * grey;
        [
            clamp_unit(weight * r + grey_part),
            clamp_unit(weight * g + grey_part),
            clamp_unit(weight * b + grey_part),
        ]
    });
}

/// Shifts the hue of every pixel by `shift` sixths of the circle.
///
/// Converts to HSV and back. With the largest value V and the smallest m of the three channels and the chroma V - m,
/// the hue h (0 to 6: red 0, green 2, blue 4) is `(g - b) / chroma`, `2 + (b - r) / chroma` or `4 + (r - g) / chroma`,
/// depending on which channel is V. Each channel of a hue is `V - chroma * clamp(min(k, 4 - k), 0, 1)` with k = (n + h)
/// mod 6 and n = 5, 3, 1 for red, green, blue. Without branches, so that it becomes SIMD code: all cases are computed,
/// and comparisons choose one.
#[inline(always)]
fn shift_hue(planes: &mut [f32], shift: f32) {
    for_each_pixel!(planes, |r, g, b| {
        let (larger, smaller) = if r > g { (r, g) } else { (g, r) };
        let value = if larger > b { larger } else { b };
        let least = if smaller < b { smaller } else { b };
        let chroma = value - least;
        // Grey pixels have no hue; with chroma 0 any hue gives the same pixel.
        let inverse = if chroma > 0.0 { 1.0 / chroma } else { 0.0 };
        let from_green = 2.0 + (b - r) * inverse;
        let from_blue = 4.0 + (r - g) * inverse;
        let from_red = (g - b) * inverse;
        let hue = if value == g { from_green } else { from_blue };
        let hue = if value == r { from_red } else { hue } + shift;
        let hue = if hue < 0.0 { hue + 6.0 } else { hue };
        let hue = if hue >= 6.0 { hue - 6.0 } else { hue };
        [
            clamp_unit(hue_channel(hue + 5.0, value, chroma)),
            clamp_unit(hue_channel(hue + 3.0, value, chroma)),
            clamp_unit(hue_channel(hue + 1.0, value, chroma)),
        ]
    });
}

/// A channel of a hue, by the formula of [`shift_hue`]; `k` is `n + h` there, from 0 to below 12.
#[inline(always)]
fn hue_channel(k: f32, value: f32, chroma: f32) -> f32 {
    let k = if k >= 6.0 { k - 6.0 } else { k };
    let mirrored = 4.0 - k;
    value - chroma * clamp_unit(if k < mirrored { k } else { mirrored })
}

/// Interleaves planes into pixels and normalises them.
#[inline(always)]
fn interleave(planes: &[f32], normalisation: &[[f32; 2]; 3], out: &mut [f32]) {
    let count = planes.len() / 3;
    let (red, green_blue) = planes.split_at(count);
    let (green, blue) = green_blue.split_at(count);
    let [[red_scale, red_shift], [green_scale, green_shift], [blue_scale, blue_shift]] = *normalisation;
    let pixels = out.as_chunks_mut::<3>().0;
    for (((pixel, r), g), b) in pixels.iter_mut().zip(red).zip(green).zip(blue) {
        *pixel = [r * red_scale + red_shift, g * green_scale + green_shift, b * blue_scale + blue_shift];
    }
}

#[cfg(all(test, feature = "emulator"))]
mod gpu_tests;

#[cfg(test)]
mod tests {
    use super::*;
    use trueshot_nn::Isa;

    /// An image of blocks of 9 x 7 pixels of one colour each, with noise.
    fn image(width: usize, height: usize, channels: Channels) -> DecodedImage {
        let mut rng = Rng::new(3, Purpose::Items, 0);
        let mut pixels = vec![0; width * height * channels.count()];
        for (index, value) in pixels.iter_mut().enumerate() {
            let (pixel, channel) = (index / channels.count(), index % channels.count());
            let (x, y) = (pixel % width, pixel / width);
            let block = (x / 9 * 31 + y / 7 * 17 + channel * 101) % 256;
            *value = (block / 2 + rng.below(128)) as u8;
        }
        DecodedImage::new(width, height, channels, pixels)
    }

    fn augmented(image: &DecodedImage, drawn: &DrawnAugmentation, to: &Preprocessing) -> Vec<f32> {
        let mut out = vec![0.0; to.input_len()];
        Augmenter::default().apply(image, drawn, to, &mut out);
        out
    }

    /// What [`augmented`] returns, computed in f64, pixel by pixel, as torchvision's documentation describes it.
    fn reference(image: &DecodedImage, drawn: &DrawnAugmentation, to: &Preprocessing) -> Vec<f64> {
        let size = to.size;
        let axis = |length: usize| {
            let mut taps = Taps::default();
            taps.set(length, size);
            taps
        };
        let (columns, rows) = (axis(drawn.width), axis(drawn.height));
        let mut reference = vec![[0.0; 3]; size * size];
        for (index, pixel) in reference.iter_mut().enumerate() {
            let (x, y) = (index % size, index / size);
            let ((left, across), (top, down)) =
                (columns.output(if drawn.flip { size - 1 - x } else { x }), rows.output(y));
            for (dy, weight_y) in down.iter().enumerate() {
                for (dx, weight_x) in across.iter().enumerate() {
                    let source = (drawn.top + top + dy) * image.width + drawn.left + left + dx;
                    for (channel, sum) in pixel.iter_mut().enumerate() {
                        let value = f64::from(image.pixels[source * 3 + channel]) / 255.0;
                        *sum += f64::from(*weight_x) * f64::from(*weight_y) * value;
                    }
                }
            }
        }
        for jitter in drawn.jitters {
            reference_jitter(&mut reference, jitter);
        }
        let normal = |(channel, value): (usize, f64)| {
            (value - f64::from(to.mean[channel])) / f64::from(to.std[channel])
        };
        reference.into_iter().flat_map(|pixel| pixel.into_iter().enumerate().map(normal)).collect()
    }

    fn reference_jitter(image: &mut [[f64; 3]], jitter: Jitter) {
        let grey = |p: &[f64; 3]| 0.2989 * p[0] + 0.587 * p[1] + 0.114 * p[2];
        let mean = image.iter().map(grey).sum::<f64>() / image.len() as f64;
        for pixel in image {
            let own_grey = grey(pixel);
            *pixel = match jitter {
                Jitter::Brightness(f) => pixel.map(|v| v * f64::from(f)),
                Jitter::Contrast(f) => pixel.map(|v| f64::from(f) * v + (1.0 - f64::from(f)) * mean),
                Jitter::Saturation(f) => pixel.map(|v| f64::from(f) * v + (1.0 - f64::from(f)) * own_grey),
                Jitter::Hue(shift) => reference_hue_shift(*pixel, f64::from(shift) / 6.0),
            }
            .map(|value| value.clamp(0.0, 1.0));
        }
    }

    /// The hue shift by way of hue, saturation and value.
    fn reference_hue_shift([r, g, b]: [f64; 3], shift: f64) -> [f64; 3] {
        let (value, least) = (r.max(g).max(b), r.min(g).min(b));
        let chroma = value - least;
        if chroma == 0.0 {
            return [r, g, b];
        }
        let sixths = if value == r {
            (g - b) / chroma
        } else if value == g {
            (b - r) / chroma + 2.0
        } else {
            (r - g) / chroma + 4.0
        };
        let hue = (sixths / 6.0 + shift).rem_euclid(1.0) * 6.0;
        let (sector, part) = (hue.floor() as usize % 6, hue - hue.floor());
        let (p, q, t) = (value - chroma, value - chroma * part, value - chroma * (1.0 - part));
        [[value, t, p], [q, value, p], [p, value, t], [p, q, value], [t, p, value], [value, p, q]][sector]
    }

    #[test]
    fn augmentation_agrees_with_the_reference() {
        let augmentation = Augmentation { hue: 0.5, brightness: 0.6, contrast: 0.6, ..Default::default() };
        for (number, (width, height, size)) in
            [(84, 84, 84), (100, 60, 84), (32, 32, 32), (20, 33, 28), (150, 90, 33)].into_iter().enumerate()
        {
            let image = image(width, height, Channels::Colour);
            let to = Preprocessing::colour(size);
            for copy in 0..8 {
                let drawn = augmentation.draw(number as u64, 5, copy, width, height);
                let values = augmented(&image, &drawn, &to);
                for (value, expected) in values.iter().zip(reference(&image, &drawn, &to)) {
                    assert!((f64::from(*value) - expected).abs() < 2e-4, "{value} {expected} {drawn:?}");
                }
            }
        }
    }

    #[test]
    fn every_instruction_set_gives_the_same_bits() {
        let image = image(61, 50, Channels::Colour);
        let to = Preprocessing::colour(33);
        let drawn = Augmentation::default().draw(1, 2, 3, 61, 50);
        let portable = Isa::Portable.scope(|| augmented(&image, &drawn, &to));
        for isa in Isa::usable() {
            assert_eq!(isa.scope(|| augmented(&image, &drawn, &to)), portable, "{isa:?}");
        }
    }

    #[test]
    fn identity_parameters_only_normalise() {
        for channels in [Channels::Grey, Channels::Colour] {
            let image = image(28, 28, channels);
            let to = match channels {
                Channels::Grey => Preprocessing::drawings(28),
                Channels::Colour => Preprocessing::colour(28),
            };
            let mut expected = vec![0.0; to.input_len()];
            to.normalise(&image, &mut expected);
            let values = augmented(&image, &DrawnAugmentation::identity(28, 28), &to);
            assert!(values.iter().zip(&expected).all(|(a, b)| (a - b).abs() < 1e-5));
        }
    }

    #[test]
    fn parameters_depend_on_seed_image_and_copy_only() {
        let draw = |seed, image, copy| Augmentation::default().draw(seed, image, copy, 84, 84);
        assert_eq!(draw(1, 2, 3), draw(1, 2, 3));
        assert!([draw(0, 2, 3), draw(1, 0, 3), draw(1, 2, 0)].iter().all(|other| *other != draw(1, 2, 3)));
    }

    #[test]
    fn crops_keep_to_their_area_and_shape() {
        let augmentation = Augmentation::default();
        let (mut flips, mut areas) = (0, 0.0);
        for copy in 0..2000 {
            let drawn = augmentation.draw(0, 0, copy, 84, 84);
            let area = (drawn.width * drawn.height) as f32 / (84.0 * 84.0);
            let ratio = drawn.width as f32 / drawn.height as f32;
            assert!((0.78..=1.0).contains(&area) && (0.73..=1.37).contains(&ratio), "{drawn:?}");
            assert!(drawn.left + drawn.width <= 84 && drawn.top + drawn.height <= 84);
            flips += u32::from(drawn.flip);
            areas += area;
        }
        assert!((900..1100).contains(&flips) && (0.85..0.93).contains(&(areas / 2000.0)), "{flips} {areas}");
    }

    #[test]
    fn a_strip_that_is_too_narrow_for_any_crop_is_cropped_in_the_middle() {
        let drawn = Augmentation::default().draw(0, 0, 0, 200, 20);
        assert_eq!((drawn.left, drawn.top, drawn.width, drawn.height), (86, 0, 27, 20));
        let drawn = Augmentation::default().draw(0, 0, 0, 1, 1);
        assert_eq!((drawn.width, drawn.height), (1, 1));
    }

    /// Prints the time of augmentation; asserts nothing about it: `cargo test --release -p trueshot-vision -- --ignored
    /// --nocapture time_of`
    #[test]
    #[ignore = "prints timings"]
    fn time_of_augmenting() {
        for size in [84, 32] {
            let (image, to) = (image(size, size, Channels::Colour), Preprocessing::colour(size));
            let (mut augmenter, mut out) = (Augmenter::default(), vec![0.0; to.input_len()]);
            let mut best = f64::MAX;
            for round in 0..20 {
                let start = std::time::Instant::now();
                for copy in 0..100 {
                    let drawn = Augmentation::default().draw(0, round, copy, size, size);
                    augmenter.apply(&image, &drawn, &to, &mut out);
                }
                best = best.min(start.elapsed().as_secs_f64() / 100.0);
            }
            println!("{size} px: {:.4} ms per image", best * 1e3);
        }
    }
}
