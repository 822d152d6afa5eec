//! Resizes decoded images ([`DecodedImage::fitted`], [`DecodedImage::resized`]). The arithmetic is in
//! [`trueshot::resample`], because exported web pages resize with the same code.

pub(crate) use trueshot::resample::Taps;
use trueshot::resample::{self, PixelShape};
pub use trueshot::resample::{Fit, Resampling};

use crate::decoded_image::DecodedImage;

impl DecodedImage {
    /// The image as a square of `size` x `size` pixels, by bilinear interpolation. `fit` says how a square is made of
    /// an image that is not square.
    pub fn fitted(self, size: usize, fit: Fit) -> DecodedImage {
        self.fitted_by(size, fit, Resampling::Bilinear)
    }

    /// [`Self::fitted`] with a choice of the interpolation.
    pub fn fitted_by(self, size: usize, fit: Fit, resampling: Resampling) -> DecodedImage {
        self.cropped_for(fit).resized_by(size, size, resampling)
    }

    /// The part of the image that `fit` uses, not resized: all of it, or the central square.
    pub(crate) fn cropped_for(self, fit: Fit) -> DecodedImage {
        match fit {
            Fit::Squash => self,
            Fit::Crop => self.central_square(),
        }
    }

    /// The image resized to `width` x `height` pixels, by bilinear interpolation.
    pub fn resized(self, width: usize, height: usize) -> DecodedImage {
        self.resized_by(width, height, Resampling::Bilinear)
    }

    /// [`Self::resized`] with a choice of the interpolation.
    pub fn resized_by(self, width: usize, height: usize, resampling: Resampling) -> DecodedImage {
        if (width, height) == (self.width, self.height) {
            return self;
        }
        let pixels = resample::resized(&self.pixels, self.shape(), (width, height), resampling);
        DecodedImage::new(width, height, self.channels, pixels)
    }

    /// The largest square in the middle of the image.
    fn central_square(mut self) -> DecodedImage {
        let shape = self.shape();
        let side = resample::crop_to_square(&mut self.pixels, shape);
        DecodedImage::new(side, side, self.channels, self.pixels)
    }

    /// The size of the image as `trueshot::resample` takes it.
    fn shape(&self) -> PixelShape {
        PixelShape { width: self.width, height: self.height, channels: self.channels.count() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decoded_image::Channels;

    /// A grey image of one row.
    fn row(values: &[u8]) -> DecodedImage {
        DecodedImage::new(values.len(), 1, Channels::Grey, values.to_vec())
    }

    #[test]
    fn shrinking_takes_every_pixel_into_account() {
        // The triangle reaches two pixels each way: weights 3/7, 3/7, 1/7 and their mirror image.
        assert_eq!(row(&[0, 70, 140, 210]).resized(2, 1).pixels, [50, 160]);
    }

    #[test]
    fn enlarging_is_linear_between_the_centres_of_pixels() {
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
    fn bicubic_resizing_agrees_with_pillow() {
        // Image.fromarray(numpy.array([[0, 10, 200, 255, 30, 90, 77]], "uint8")).resize((3, 1), BICUBIC), and to 11.
        let values = row(&[0, 10, 200, 255, 30, 90, 77]);
        assert_eq!(values.clone().resized_by(3, 1, Resampling::Bicubic).pixels, [46, 172, 69]);
        assert_eq!(
            values.resized_by(11, 1, Resampling::Bicubic).pixels,
            [0, 0, 21, 153, 242, 255, 103, 28, 86, 86, 76]
        );
    }

    #[test]
    fn an_image_of_the_right_size_is_not_changed() {
        let image = row(&[1, 2, 3]);
        assert_eq!(image.clone().resized(3, 1), image);
    }

    #[test]
    fn a_crop_is_the_square_in_the_middle() {
        let wide = DecodedImage::new(4, 2, Channels::Grey, vec![1, 2, 3, 4, 5, 6, 7, 8]);
        assert_eq!(wide.fitted(2, Fit::Crop).pixels, [2, 3, 6, 7]);
    }

    #[test]
    fn four_quarter_turns_give_the_original_image() {
        let image = DecodedImage::new(3, 2, Channels::Grey, vec![1, 2, 3, 4, 5, 6]);
        assert_eq!(image.rotated(1).pixels, [4, 1, 5, 2, 6, 3]);
        assert_eq!(image.rotated(1).rotated(1), image.rotated(2));
        assert_eq!(image.rotated(3).rotated(1), image);
    }
}
