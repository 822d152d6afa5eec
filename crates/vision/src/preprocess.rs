//! Preprocessing: the size, channels and normalisation of the images that a network takes.

use crate::decoded_image::{Channels, DecodedImage};
use crate::error::{Error, Result};
use crate::resize::{Fit, Resampling};

/// How a decoded image becomes the input of a network.
#[derive(Debug, Clone, PartialEq)]
pub struct Preprocessing {
    /// Height and width in pixels.
    pub size: usize,
    /// Grey or colour.
    pub channels: Channels,
    /// Subtracted from a value in [0, 1], for each channel.
    pub mean: Vec<f32>,
    /// Divisor after the mean is subtracted, for each channel.
    pub std: Vec<f32>,
    /// How to handle an image that is not square.
    pub fit: Fit,
    /// The interpolation for resizing.
    pub resampling: Resampling,
}

impl Preprocessing {
    /// Colour images with the usual normalisation of ImageNet.
    pub fn colour(size: usize) -> Self {
        let (mean, std) = (vec![0.485, 0.456, 0.406], vec![0.229, 0.224, 0.225]);
        Preprocessing {
            size,
            channels: Channels::Colour,
            mean,
            std,
            fit: Fit::default(),
            resampling: Resampling::default(),
        }
    }

    /// Drawings: ink is 1 and paper 0. Files have black ink on white paper, so the mean is 1 and the divisor -1.
    pub fn drawings(size: usize) -> Self {
        Preprocessing {
            size,
            channels: Channels::Grey,
            mean: vec![1.0],
            std: vec![-1.0],
            fit: Fit::default(),
            resampling: Resampling::default(),
        }
    }

    /// Returns an error unless mean and standard deviation have one finite number per channel and no standard deviation
    /// is 0.
    pub fn check(&self) -> Result<()> {
        let count = self.channels.count();
        let is_valid = |values: &[f32]| values.len() == count && values.iter().all(|value| value.is_finite());
        if !is_valid(&self.mean) || !is_valid(&self.std) || self.std.contains(&0.0) {
            return Err(Error::OutOfRange {
                what: "the normalisation",
                given: format!("mean {:?}, std {:?}", self.mean, self.std),
                allowed: format!("{count} finite numbers each, std not 0"),
            });
        }
        Ok(())
    }

    /// The differences from `usual` in fit, resampling, mean and standard deviation, as text that is appended to the
    /// name of a backbone, such as `, crop, mean 0,0,0`; empty if there are none. The size is not one of them: the name
    /// contains it in another place if it can be chosen.
    pub(crate) fn differences(&self, usual: &Preprocessing) -> String {
        // The names of the variants are part of the names of backbones, so renaming one changes them.
        let differences = [
            (self.fit != usual.fit).then(|| format!(", {:?}", self.fit).to_lowercase()),
            (self.resampling != usual.resampling).then(|| format!(", {:?}", self.resampling).to_lowercase()),
            (self.mean != usual.mean).then(|| format!(", mean {}", comma_separated(&self.mean))),
            (self.std != usual.std).then(|| format!(", std {}", comma_separated(&self.std))),
        ];
        differences.into_iter().flatten().collect()
    }

    /// The image resized to the input size of the network.
    pub fn fitted(&self, image: DecodedImage) -> DecodedImage {
        image.fitted_by(self.size, self.fit, self.resampling)
    }

    /// The number of values in an input: `size * size * channels`.
    pub fn input_len(&self) -> usize {
        self.size * self.size * self.channels.count()
    }

    /// The pair `[scale, shift]` of each channel, so that `scale * value + shift` normalises values from 0 to `unit`
    /// (255 for bytes, 1 for fractions). Grey images use the first pair only; the other two are 0.
    pub(crate) fn scale_and_shift(&self, unit: f32) -> [[f32; 2]; 3] {
        let mut pairs = [[0.0; 2]; 3];
        for (pair, (mean, std)) in pairs.iter_mut().zip(self.mean.iter().zip(&self.std)) {
            // From (value / unit - mean) / std.
            *pair = [1.0 / (unit * std), -mean / std];
        }
        pairs
    }

    /// Normalises an image that has the size and channels of the network's input. Writes `[row][column][channel]` to
    /// `out`.
    ///
    /// # Panics
    /// If the size differs, or `out` does not have one element per value of the image.
    pub fn normalise(&self, image: &DecodedImage, out: &mut [f32]) {
        assert_eq!((image.width, image.height), (self.size, self.size), "size of the fitted image");
        assert_eq!(out.len(), image.pixels.len(), "length of the output");
        let pairs = self.scale_and_shift(255.0);
        let count = self.channels.count();
        for (out, pixel) in out.chunks_exact_mut(count).zip(image.pixels.chunks_exact(count)) {
            for ((out, &value), [scale, shift]) in out.iter_mut().zip(pixel).zip(pairs) {
                *out = f32::from(value) * scale + shift;
            }
        }
    }
}

/// Numbers as text, such as `0.5,0.5,0.5`.
pub(crate) fn comma_separated(values: &[f32]) -> String {
    values.iter().map(f32::to_string).collect::<Vec<_>>().join(",")
}
