//! [`Engine`]: a backbone (the network that turns an image into a row of numbers, its embedding) and a classifier of
//! embeddings. `interface` calls [`Engine::read`] once and [`Engine::classify`] for each image.
//!
//! Every step of the preprocessing is done as in the crate `trueshot-vision`, so that the page and `trueshot predict`
//! answer alike.

use trueshot::model;
use trueshot::predictor::{Prediction, Predictor};
use trueshot::resample::{self, Fit, PixelShape, Resampling};
use trueshot::tensors::Tensors;
use trueshot_nn::conv4::{self, Conv4Embedder, Conv4Session, Shape};
use trueshot_nn::efficientnet::{self, EfficientNetEmbedder, EfficientNetSession};

/// A network with its working memory.
enum Session {
    Conv4(Conv4Session),
    EfficientNet(EfficientNetSession),
}

/// A backbone with its preprocessing, and a classifier of its embeddings.
pub struct Engine {
    session: Session,
    /// The side of the square input image, in pixels.
    size: usize,
    /// Subtracted from a value in [0, 1], for each channel: one value for grey images, three for colour images.
    mean: Vec<f32>,
    /// Divisor after the mean is subtracted, for each channel.
    std: Vec<f32>,
    /// How an image becomes a square: cropped or squashed.
    fit: Fit,
    resampling: Resampling,
    predictor: Predictor,
}

impl Engine {
    /// Reads the two safetensors files that `trueshot export` embeds into a page. `backbone` contains the parameters of
    /// the network, and the notes `architecture`, `input_size`, `mean`, `std`, `fit` and `resampling`; `classifier` is
    /// a classifier file ([`Predictor::to_anonymous_bytes`]).
    ///
    /// # Errors
    /// A message about the invalid file.
    pub fn read(backbone: Vec<u8>, classifier: Vec<u8>) -> Result<Self, String> {
        let tensors = Tensors::read_bytes(backbone, "backbone").map_err(|error| error.to_string())?;
        let predictor = Predictor::read_bytes(classifier, "classifier").map_err(|error| error.to_string())?;
        // The preprocessing.
        let note = |key: &str| tensors.note(key).ok_or_else(|| format!("the backbone has no note '{key}'"));
        let numbers = |key: &str| -> Result<Vec<f32>, String> {
            let numbers = note(key)?.split(',').map(|number| number.trim().parse::<f32>());
            numbers
                .collect::<Result<_, _>>()
                .map_err(|_| format!("the note '{key}' is not a list of numbers"))
        };
        let (mean, std) = (numbers("mean")?, numbers("std")?);
        let size = note("input_size")?.parse::<usize>().map_err(|_| "the input size is not a number")?;
        let shape = Shape { size, channels: mean.len() };
        if std.len() != mean.len() || !shape.is_possible() {
            return Err(format!("images of {size} pixels and {} channels are not supported", mean.len()));
        }
        // The network: all parameters in one list, in the order of its layout.
        let flat = |layout| model::flat(&layout, &tensors).map_err(|error| error.to_string());
        let session = match (note("architecture")?, mean.len()) {
            ("conv4", channels) => {
                Session::Conv4(Conv4Embedder::new(shape, &flat(conv4::layout(channels))?).session())
            }
            ("efficientnet-lite0", 3) if (efficientnet::SMALLEST..=efficientnet::LARGEST).contains(&size) => {
                let parameters = flat(efficientnet::layout())?;
                Session::EfficientNet(EfficientNetEmbedder::new(size, &parameters).session())
            }
            (architecture, _) => return Err(format!("the architecture '{architecture}' is not supported")),
        };
        let fit = if tensors.note("fit") == Some("crop") { Fit::Crop } else { Fit::Squash };
        let resampling = match tensors.note("resampling") {
            Some("bicubic") => Resampling::Bicubic,
            _ => Resampling::Bilinear,
        };
        Ok(Engine { session, size, mean, std, fit, resampling, predictor })
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.predictor.classes().len()
    }

    /// Classifies an image in RGBA, one byte per channel, rows from the top.
    ///
    /// # Errors
    /// If the image has no pixels, or the length does not match its size.
    pub fn classify(&mut self, rgba: &[u8], width: usize, height: usize) -> Result<Prediction, String> {
        let expected = width.checked_mul(height).and_then(|pixels| pixels.checked_mul(4));
        if rgba.is_empty() || expected != Some(rgba.len()) {
            return Err(format!("{} bytes for an image of {width} x {height} pixels", rgba.len()));
        }
        // The channels that the network takes, then a square of its size, then normalised values, then the embedding.
        let channels = self.mean.len();
        let mut pixels = match channels {
            1 => grey(rgba),
            _ => colour(rgba),
        };
        let mut shape = PixelShape { width, height, channels };
        if self.fit == Fit::Crop {
            let side = resample::crop_to_square(&mut pixels, shape);
            (shape.width, shape.height) = (side, side);
        }
        if (shape.width, shape.height) != (self.size, self.size) {
            pixels = resample::resized(&pixels, shape, (self.size, self.size), self.resampling);
        }
        let input = self.normalised(&pixels);
        let mut embedding = vec![0.0; self.predictor.dim()];
        match &mut self.session {
            Session::Conv4(session) => session.embed(&input, &mut embedding),
            Session::EfficientNet(session) => session.embed(&input, &mut embedding),
        }
        let predictions = self.predictor.predict(&[&embedding]).map_err(|error| error.to_string())?;
        predictions.into_iter().next().ok_or_else(|| "no prediction".into())
    }

    /// The network's input `(value / 255 - mean) / std`, as `value * scale + shift`. The order of operations is that of
    /// `Preprocessing::normalise` in trueshot-vision, so that the inputs of the network are the same.
    fn normalised(&self, pixels: &[u8]) -> Vec<f32> {
        // [scale, shift] of each channel.
        let factors: Vec<[f32; 2]> =
            self.mean.iter().zip(&self.std).map(|(mean, std)| [1.0 / (255.0 * std), -mean / std]).collect();
        let scaled = |pixel: &[u8]| -> Vec<f32> {
            pixel
                .iter()
                .zip(&factors)
                .map(|(&value, [scale, shift])| f32::from(value) * scale + shift)
                .collect()
        };
        pixels.chunks_exact(self.mean.len()).flat_map(scaled).collect()
    }
}

/// RGB from RGBA, with transparent pixels blended with white.
fn colour(rgba: &[u8]) -> Vec<u8> {
    let pixels = rgba.as_chunks::<4>().0.iter();
    pixels.flat_map(|&[r, g, b, a]| [r, g, b].map(|value| on_white(value, a))).collect()
}

/// Luminance from RGBA (Rec. 709, as the `image` crate computes it), with transparent pixels blended with white.
fn grey(rgba: &[u8]) -> Vec<u8> {
    let luminance = |colours: [u8; 3]| {
        let in_unit_range = colours.map(|value| f32::from(value) * (1.0 / 255.0));
        let terms = in_unit_range.iter().zip([0.2126, 0.7152, 0.0722]);
        (255.0 * terms.fold(0.0f32, |sum, (value, weight)| sum + value * weight)).round() as u8
    };
    rgba.as_chunks::<4>().0.iter().map(|&[r, g, b, a]| on_white(luminance([r, g, b]), a)).collect()
}

/// A value on a white background, rounded; `alpha` is from 0 (transparent) to 255.
fn on_white(value: u8, alpha: u8) -> u8 {
    let (value, alpha) = (u32::from(value), u32::from(alpha));
    // Adding 127, half of the divisor, rounds the quotient to the nearest integer.
    ((value * alpha + 255 * (255 - alpha) + 127) / 255) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transparent_pixels_are_blended_with_white() {
        let rgba = [10, 20, 30, 255, 10, 20, 30, 0, 0, 0, 0, 128];
        assert_eq!(colour(&rgba), [10, 20, 30, 255, 255, 255, 127, 127, 127]);
        assert_eq!(grey(&rgba), [19, 255, 127]);
    }

    #[test]
    fn files_that_are_not_a_backbone_and_a_classifier_are_refused() {
        assert!(Engine::read(vec![1, 2, 3], Vec::new()).is_err());
        let mut tensors = Tensors::default();
        tensors.set_note("architecture", "conv4");
        assert!(Engine::read(tensors.to_bytes(), Vec::new()).is_err());
    }
}
