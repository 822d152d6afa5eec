//! Pictures held in memory, for training: decoded once, read thousands of times.
//!
//! Each is kept as bytes at the size the network works on; a little larger if it will be cropped, so that a crop
//! has detail to show. What cannot be read is left out and listed.

use std::path::Path;
use trueshot::progress::Progress;

use bytes::Bytes;
use half::f16;
use rayon::prelude::*;
use trueshot::Embeddings;
use trueshot::embeddings::{Features, Precision};

use crate::embed::{item_seed, resize_for_training};
use crate::error::{Result, Skipped};
use crate::picture::Picture;
use crate::preprocess::Preprocessing;
use crate::source::Collection;

/// Pictures that are decoded before anybody is told.
const CHUNK: usize = 512;

/// Labelled pictures in memory.
pub struct Dataset {
    /// By class, within a class by name.
    pictures: Vec<Picture>,
    items: Vec<String>,
    /// What random changes of each picture are keyed by.
    keys: Vec<u64>,
    /// Which picture is of which class, in the form that episodes are drawn from: rows without features.
    labels: Embeddings,
    skipped: Vec<Skipped>,
}

impl Dataset {
    /// Decodes a collection on all threads. The progress counts the images.
    pub fn load(
        collection: &Collection,
        to: &Preprocessing,
        augmented: bool,
        progress: &dyn Progress,
    ) -> Result<Self> {
        let (mut pictures, mut items, mut classes, mut skipped) = (vec![], vec![], vec![], vec![]);
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
                    Ok(picture) => {
                        pictures.push(picture);
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
        Self::new(pictures, items, classes, skipped)
    }

    fn new(
        pictures: Vec<Picture>,
        items: Vec<String>,
        classes: Vec<String>,
        skipped: Vec<Skipped>,
    ) -> Result<Self> {
        let keys = items.iter().map(|item| item_seed(item)).collect();
        let labels = Embeddings::from_rows(vec![0.0; pictures.len()], 1, classes)?;
        Ok(Dataset { pictures, items, keys, labels, skipped })
    }

    /// Turns every class by a quarter, a half and three quarters into three further classes, as is usual for
    /// drawings of characters.
    pub fn with_rotations(self) -> Result<Self> {
        let (mut pictures, mut items, mut classes) = (vec![], vec![], vec![]);
        for quarters in 0..4 {
            let suffix = if quarters == 0 { String::new() } else { format!(" turned {}", 90 * quarters) };
            pictures.extend(self.pictures.iter().map(|picture| picture.rotated(quarters)));
            items.extend(self.items.iter().map(|item| format!("{item}{suffix}")));
            let class = |row: usize| format!("{}{suffix}", self.class_name(row));
            classes.extend((0..self.items.len()).map(class));
        }
        Self::new(pictures, items, classes, self.skipped)
    }

    fn class_name(&self, row: usize) -> &str {
        &self.labels.classes()[self.labels.labels()[row] as usize]
    }

    /// The pictures.
    pub fn pictures(&self) -> &[Picture] {
        &self.pictures
    }

    /// Their names.
    pub fn items(&self) -> &[String] {
        &self.items
    }

    /// What random changes of a picture are keyed by: a hash of its name.
    pub fn key(&self, row: usize) -> u64 {
        self.keys[row]
    }

    /// Which picture is of which class; the features mean nothing.
    pub fn labels(&self) -> &Embeddings {
        &self.labels
    }

    /// The class of every picture.
    pub fn class_names(&self) -> Vec<String> {
        (0..self.items.len()).map(|row| self.class_name(row).to_string()).collect()
    }

    /// The pictures as rows, for methods that look at pixels: numbers from 0 to 255, `[row][column][channel]`,
    /// in half precision, which holds them exactly. Episodes drawn from them are those drawn from the pictures'
    /// embeddings. `path` is where results say they come from.
    ///
    /// # Panics
    /// If the pictures are of several sizes, as they may be when they are kept for cropping.
    pub fn rows(&self, path: Option<&Path>) -> trueshot::Result<Embeddings> {
        let (count, dim) = (self.pictures.len(), self.pictures.first().map_or(0, |first| first.pixels.len()));
        let mut bytes = Vec::with_capacity(count * dim * Precision::F16.size());
        for picture in &self.pictures {
            assert_eq!(picture.pixels.len(), dim, "pictures of one size");
            bytes.extend(picture.pixels.iter().flat_map(|&value| f16::from(value).to_le_bytes()));
        }
        let features = Features::new(Bytes::from(bytes), Precision::F16, count, dim);
        Embeddings::from_features(features, self.class_names(), path)
    }

    /// What could not be read.
    pub fn skipped(&self) -> &[Skipped] {
        &self.skipped
    }

    /// A hash of all pixels, names and labels: whether a run goes on with the data it began with.
    pub fn fingerprint(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        for (row, picture) in self.pictures.iter().enumerate() {
            let size = [picture.width, picture.height, self.items[row].len()];
            size.iter().for_each(|number| {
                hasher.update(&(*number as u64).to_le_bytes());
            });
            hasher.update(&picture.pixels);
            hasher.update(self.items[row].as_bytes());
            hasher.update(&self.labels.labels()[row].to_le_bytes());
        }
        hasher.finalize().to_hex()[..16].to_owned()
    }
}
