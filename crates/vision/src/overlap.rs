//! Finds classes and images that training and validation data share ([`Overlap::between`]), which would make the
//! validation worthless. `trueshot train` calls it before it trains on images, and prints [`Overlap::warnings`].
//!
//! Two images are the same if their pixels are. They look the same if two things nearly agree in a grid of 9 x 8 cells
//! (the image resized to 9 columns and 8 rows of grey levels): the brightness of the cells, and the *pattern* of 64
//! bits that says for each pair of horizontal neighbours whether the left one is brighter (a "difference hash"). This
//! survives resizing and recompression. Nearly uniform images all look alike and are not compared this way.

use std::collections::{HashMap, HashSet};

use rayon::prelude::*;
use trueshot::report::counted;

use crate::dataset::Dataset;
use crate::decoded_image::{Channels, DecodedImage};
use crate::image_measures::shades;

/// Classes and images that two data sets share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overlap {
    /// Names of classes that are in both.
    pub classes: Vec<String>,
    /// Images with the same pixels: name in the first and in the second set.
    pub same: Vec<(String, String)>,
    /// Images that look the same.
    pub alike: Vec<(String, String)>,
}

impl Overlap {
    /// Compares the training data (`first`) with the validation data (`second`). Each image of `second` is in at most
    /// one pair.
    pub fn between(first: &Dataset, second: &Dataset) -> Self {
        let names: HashSet<&String> = first.labels().classes().iter().collect();
        let classes = second.labels().classes().iter().filter(|class| names.contains(class)).cloned();
        let mut overlap = Overlap { classes: classes.collect(), ..Overlap::default() };
        let (index, signatures) = (ImageIndex::new(first), signatures(second));
        let matches: Vec<Option<(usize, bool)>> =
            signatures.par_iter().map(|signature| index.find(signature)).collect();
        for (second_row, found) in matches.into_iter().enumerate() {
            let Some((first_row, is_same)) = found else { continue };
            let pair = (first.items()[first_row].clone(), second.items()[second_row].clone());
            if is_same { overlap.same.push(pair) } else { overlap.alike.push(pair) }
        }
        overlap
    }

    /// Warnings for the user, in plain English.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if let Some(first) = self.classes.first() {
            let classes = counted(self.classes.len(), "class is", "classes are");
            warnings.push(format!("{classes} in both training and validation, the first is '{first}'"));
        }
        for (list, how) in [(&self.same, "the same as"), (&self.alike, "nearly the same as")] {
            if let Some((first, second)) = list.first() {
                let images = counted(list.len(), "validation image is", "validation images are");
                warnings
                    .push(format!("{images} {how} a training image, the first: '{second}' and '{first}'"));
            }
        }
        warnings
    }
}

/// An index of images by their pixels and by what they look like.
struct ImageIndex {
    /// One per image, in the order of the data set.
    signatures: Vec<ImageSignature>,
    by_pixels: HashMap<blake3::Hash, usize>,
    /// Images by each quarter (16 bits) of their pattern: the key is the number of the quarter and its bits. Only
    /// images that share a quarter are compared. Patterns that differ in at most three bits differ in at most three of
    /// the four quarters, so they share one (unless it is 0, see [`ImageSignature::quarters`]). Most other patterns of
    /// similar images share one, too.
    by_quarter: HashMap<(usize, u16), Vec<usize>>,
}

impl ImageIndex {
    /// Indexes the images of a data set.
    fn new(dataset: &Dataset) -> Self {
        let signatures = signatures(dataset);
        let (mut by_pixels, mut by_quarter) = (HashMap::new(), HashMap::<_, Vec<usize>>::new());
        for (row, signature) in signatures.iter().enumerate() {
            by_pixels.entry(signature.pixels).or_insert(row);
            for quarter in signature.quarters() {
                by_quarter.entry(quarter).or_default().push(row);
            }
        }
        ImageIndex { signatures, by_pixels, by_quarter }
    }

    /// The row of the first image with the same pixels and `true`, or else the row of the first image that looks the
    /// same and `false`.
    fn find(&self, signature: &ImageSignature) -> Option<(usize, bool)> {
        if let Some(&row) = self.by_pixels.get(&signature.pixels) {
            return Some((row, true));
        }
        let candidates = signature.quarters().filter_map(|quarter| self.by_quarter.get(&quarter)).flatten();
        let first_similar =
            candidates.copied().filter(|&row| signature.is_similar(&self.signatures[row])).min();
        first_similar.map(|row| (row, false))
    }
}

/// Columns of the grid of cells: 9 cells in a row have 8 pairs of neighbours.
const COLUMNS: usize = 9;
/// Rows of the grid of cells.
const ROWS: usize = 8;
/// The largest difference in brightness of two cells that count as equal, of 255.
const BRIGHTNESS_TOLERANCE: u8 = 12;
/// The most bits, of 64, in which the patterns of similar images differ.
const MAX_DIFFERENT_BITS: u32 = 6;
/// An image is uniform if the brightness of its cells differs by less than this, of 255.
const FLAT_SPREAD: u8 = 6;

/// A hash of the pixels, and a coarse description of an image.
struct ImageSignature {
    pixels: blake3::Hash,
    /// For each of 8 x 8 pairs of neighbouring cells, whether the left one is brighter.
    pattern: u64,
    /// The brightness of the cells, row by row.
    cells: Vec<u8>,
    /// Whether the image is nearly uniform.
    is_flat: bool,
}

impl ImageSignature {
    /// Computes the signature of an image.
    fn new(image: &DecodedImage) -> Self {
        let grey = DecodedImage::new(image.width, image.height, Channels::Grey, shades(image));
        let cells = grey.resized(COLUMNS, ROWS).pixels;
        let mut pattern = 0;
        for row in cells.chunks_exact(COLUMNS) {
            for pair in row.windows(2) {
                pattern = pattern << 1 | u64::from(pair[0] > pair[1]);
            }
        }
        let spread = cells.iter().max().zip(cells.iter().min()).map_or(0, |(most, least)| most - least);
        ImageSignature { pixels: blake3::hash(&image.pixels), pattern, is_flat: spread < FLAT_SPREAD, cells }
    }

    /// The quarters of the pattern under which the image is indexed, each with its number. Uniform images and quarters
    /// of zeros are left out: too many images share them.
    fn quarters(&self) -> impl Iterator<Item = (usize, u16)> {
        let (pattern, is_flat) = (self.pattern, self.is_flat);
        let quarters = (0..4).map(move |number| (number, (pattern >> (16 * number)) as u16));
        quarters.filter(move |(_, quarter)| !is_flat && *quarter != 0)
    }

    /// Whether two images look the same: both their patterns and the brightness of their cells nearly agree.
    fn is_similar(&self, other: &ImageSignature) -> bool {
        let has_similar_pattern = (self.pattern ^ other.pattern).count_ones() <= MAX_DIFFERENT_BITS;
        let mut cells = self.cells.iter().zip(&other.cells);
        has_similar_pattern && cells.all(|(a, b)| a.abs_diff(*b) <= BRIGHTNESS_TOLERANCE)
    }
}

/// The signatures of all images of a data set, in order.
fn signatures(dataset: &Dataset) -> Vec<ImageSignature> {
    dataset.images().par_iter().map(ImageSignature::new).collect()
}
