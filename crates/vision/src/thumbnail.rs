//! Thumbnails of images as data URIs, for HTML reports.

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use image::ExtendedColorType;
use image::codecs::jpeg::JpegEncoder;

use crate::decoded_image::{Channels, DecodedImage};
use crate::error::Unreadable;
use crate::resize::Fit;
use crate::source::{Collection, ImageEntry};

/// The JPEG quality (1 to 100) of thumbnails: enough for small images, with a third of the bytes of a high quality.
const JPEG_QUALITY: u8 = 72;

/// The central square of an image as a JPEG of `side` x `side` pixels in a data URI.
pub fn data_uri(collection: &Collection, entry: &ImageEntry, side: usize) -> Result<String, Unreadable> {
    let small = collection.read_image_then(entry, Channels::Colour, |image| {
        // An image smaller than the thumbnail is enlarged by the page.
        let side = side.min(image.width.min(image.height)).max(1);
        image.fitted(side, Fit::Crop)
    })?;
    let jpeg = jpeg(&small)?;
    Ok(format!("data:image/jpeg;base64,{}", BASE64.encode(jpeg)))
}

/// The image as a JPEG file.
fn jpeg(image: &DecodedImage) -> Result<Vec<u8>, Unreadable> {
    let mut bytes = Vec::new();
    let (width, height) = (image.width as u32, image.height as u32);
    JpegEncoder::new_with_quality(&mut bytes, JPEG_QUALITY)
        .encode(&image.pixels, width, height, ExtendedColorType::Rgb8)
        .map_err(|problem| Unreadable::Decoder(problem.to_string()))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::SourceOptions;

    #[test]
    fn a_thumbnail_is_a_small_square_jpeg() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("owl")).unwrap();
        let image = image::RgbImage::from_fn(300, 200, |x, y| image::Rgb([x as u8, y as u8, 7]));
        image.save(folder.path().join("owl/1.png")).unwrap();
        let collection = Collection::open(folder.path(), SourceOptions::default()).unwrap();
        let uri = data_uri(&collection, &collection.entries()[0], 96).unwrap();
        let bytes = BASE64.decode(uri.strip_prefix("data:image/jpeg;base64,").unwrap()).unwrap();
        let small = DecodedImage::decode(&bytes, Channels::Colour).unwrap();
        assert_eq!((small.width, small.height), (96, 96));
        assert!(bytes.len() < 5000, "{}", bytes.len());
    }
}
