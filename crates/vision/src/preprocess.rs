//! Preprocessing: the size, channels and normalisation of the images that a network takes.

use crate::decoded_image::{Channels, DecodedImage};
use crate::error::{Error, Result};
use crate::resize::{Fit, Resampling};

/// From a decoded image to a network's input.
#[derive(Debug, Clone, PartialEq)]
pub struct Preprocessing {
    /// Height and width.
    pub size: usize,
    /// One number a pixel or three.
    pub channels: Channels,
    /// Subtracted from a value in [0, 1], for each channel.
    pub mean: Vec<f32>,
    /// What is left is divided by this.
    pub std: Vec<f32>,
    /// What an image of another shape becomes.
    pub fit: Fit,
    /// How it is brought to that size.
    pub resampling: Resampling,
}

impl Preprocessing {
    /// Colour, normalised as ImageNet's images usually are.
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

    /// Drawings: ink is 1 and paper 0. Files have black ink on white paper, so this is `(value - 1) / -1`.
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

    /// Refuses what no network has.
    pub fn check(&self) -> Result<()> {
        let count = self.channels.count();
        let fine = |values: &[f32]| values.len() == count && values.iter().all(|value| value.is_finite());
        if !fine(&self.mean) || !fine(&self.std) || self.std.contains(&0.0) {
            return Err(Error::OutOfRange {
                what: "the normalisation",
                given: format!("mean {:?}, std {:?}", self.mean, self.std),
                allowed: format!("{count} finite numbers each, std not 0"),
            });
        }
        Ok(())
    }

    /// The image at the network's size.
    pub fn fitted(&self, image: DecodedImage) -> DecodedImage {
        image.fitted_by(self.size, self.fit, self.resampling)
    }

    /// Numbers of a network's input.
    pub fn input_len(&self) -> usize {
        self.size * self.size * self.channels.count()
    }

    /// The factor and the summand that make a byte's share of 255 a normalised number, for each channel.
    pub(crate) fn scale_and_shift(&self, unit: f32) -> [[f32; 2]; 3] {
        let mut pairs = [[0.0; 2]; 3];
        for (pair, (mean, std)) in pairs.iter_mut().zip(self.mean.iter().zip(&self.std)) {
            *pair = [1.0 / (unit * std), -mean / std];
        }
        pairs
    }

    /// Normalises an image that has the right size and channels.
    ///
    /// # Panics
    /// If it has not.
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
