//! Data sets held in memory for training: images are decoded once and used in many steps. Start with [`Dataset::load`].
//!
//! Images are kept as bytes at the input size of the network. Images that will be cropped keep up to 1.25 times that
//! size; they are never enlarged and need not be square. Images that cannot be read are skipped and listed.

use std::path::Path;
use trueshot::progress::Progress;

use bytes::Bytes;
use half::f16;
use rayon::prelude::*;
use trueshot::Embeddings;
use trueshot::embeddings::{Features, Precision};

use crate::decoded_image::DecodedImage;
use crate::embed::{item_seed, resize_for_training};
use crate::error::{Result, Skipped};
use crate::preprocess::Preprocessing;
use crate::source::Collection;

/// Images that are decoded between two reports of progress.
const CHUNK: usize = 512;

/// Labelled images in memory. A row is the index of an image.
pub struct Dataset {
    /// Sorted by class, then by name; rotated copies follow after all others.
    images: Vec<DecodedImage>,
    /// The name of each image.
    items: Vec<String>,
    /// Per image the key of its random augmentation.
    keys: Vec<u64>,
    /// The class of each image, in the form of embeddings, because episodes are drawn from embeddings. Each image has a
    /// single feature, 0, as a placeholder.
    labels: Embeddings,
    skipped: Vec<Skipped>,
}

impl Dataset {
    /// Decodes a collection on all threads, at the size of `to`. With `augmented`, images stay larger (see the module),
    /// because augmentation crops them. The progress counts the images.
    pub fn load(
        collection: &Collection,
        to: &Preprocessing,
        augmented: bool,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let (mut images, mut items, mut classes, mut skipped) = (vec![], vec![], vec![], vec![]);
        for (round, entries) in collection.entries().chunks(CHUNK).enumerate() {
            let read: Vec<_> = entries
                .par_iter()
                .map(|entry| {
                    collection
                        .read_image_then(entry, to.channels, |read| resize_for_training(read, to, augmented))
                })
                .collect();
            for (entry, outcome) in entries.iter().zip(read) {
                match outcome {
                    Ok(image) => {
                        images.push(image);
                        items.push(entry.item.clone());
                        classes.push(collection.class_of(entry).to_owned());
                    }
                    Err(reason) => {
                        let class = Some(collection.class_of(entry).to_owned());
                        skipped.push(Skipped { item: entry.item.clone(), class, reason });
                    }
                }
            }
            progress.check((round * CHUNK + entries.len()) as u64, collection.entries().len() as u64)?;
        }
        Self::new(images, items, classes, skipped)
    }

    /// A data set of `images` with their names and classes, in the same order.
    fn new(
        images: Vec<DecodedImage>,
        items: Vec<String>,
        classes: Vec<String>,
        skipped: Vec<Skipped>,
    ) -> Result<Self> {
        let keys = items.iter().map(|item| item_seed(item)).collect();
        let labels = Embeddings::from_rows(vec![0.0; images.len()], 1, classes)?;
        Ok(Dataset { images, items, keys, labels, skipped })
    }

    /// Adds three classes per class, rotated by 90, 180 and 270 degrees, as is usual for drawings of characters.
    pub fn with_rotations(self) -> Result<Self> {
        let (mut images, mut items, mut classes) = (vec![], vec![], vec![]);
        for quarters in 0..4 {
            let suffix = if quarters == 0 { String::new() } else { format!(" turned {}", 90 * quarters) };
            images.extend(self.images.iter().map(|image| image.rotated(quarters)));
            items.extend(self.items.iter().map(|item| format!("{item}{suffix}")));
            let class = |row: usize| format!("{}{suffix}", self.class_name(row));
            classes.extend((0..self.items.len()).map(class));
        }
        Self::new(images, items, classes, self.skipped)
    }

    /// The name of the class of an image.
    fn class_name(&self, row: usize) -> &str {
        &self.labels.classes()[self.labels.labels()[row] as usize]
    }

    /// The images.
    pub fn images(&self) -> &[DecodedImage] {
        &self.images
    }

    /// The names of the images.
    pub fn items(&self) -> &[String] {
        &self.items
    }

    /// The key of an image's random augmentation: a hash of its name.
    pub fn key(&self, row: usize) -> u64 {
        self.keys[row]
    }

    /// The class of each image, as embeddings with a placeholder for the features.
    pub fn labels(&self) -> &Embeddings {
        &self.labels
    }

    /// The class of every image.
    pub fn class_names(&self) -> Vec<String> {
        (0..self.items.len()).map(|row| self.class_name(row).to_string()).collect()
    }

    /// The images as rows of pixels, for methods such as MAML that take images: values from 0 to 255,
    /// `[row][column][channel]`, which are exact in half precision. Episodes drawn from these rows are the same as
    /// those drawn from embeddings of the images. `path` is the source that results name.
    ///
    /// # Panics
    /// If the images differ in their number of values, which images kept for cropping may.
    pub fn rows(&self, path: Option<&Path>) -> trueshot::Result<Embeddings> {
        let (count, dim) = (self.images.len(), self.images.first().map_or(0, |first| first.pixels.len()));
        let mut bytes = Vec::with_capacity(count * dim * Precision::F16.size());
        for image in &self.images {
            assert_eq!(image.pixels.len(), dim, "all images have the same number of values");
            bytes.extend(image.pixels.iter().flat_map(|&value| f16::from(value).to_le_bytes()));
        }
        let features = Features::new(Bytes::from(bytes), Precision::F16, count, dim);
        Embeddings::from_features(features, self.class_names(), path)
    }

    /// The images that could not be read.
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// The first 16 hexadecimal digits of a hash of all pixels, names and class numbers, by which a resumed run
    /// recognises its data.
    pub fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for (row, image) in self.images.iter().enumerate() {
            // The lengths make it unambiguous where pixels and names end.
            for length in [image.width, image.height, self.items[row].len()] {
                hasher.update(&(length as u64).to_le_bytes());
            }
            hasher.update(&image.pixels);
            hasher.update(self.items[row].as_bytes());
            hasher.update(&self.labels.labels()[row].to_le_bytes());
        }
        hasher.finalize().to_hex()[..16].to_owned()
    }
}
