//! What training and validation share: classes of one name, and pictures that are the same or nearly so.
//!
//! A validation that has seen the answers is worth nothing, so this is looked for before training begins. Two
//! pictures are the same if their pixels are; they are nearly the same if both brightness gradients (which of
//! two neighbouring cells of a 9 x 8 grid is brighter) and coarse brightness agree, which survives another size
//! or quality of the file.

use std::collections::{HashMap, HashSet};

use rayon::prelude::*;

use crate::dataset::Dataset;
use crate::picture::{Channels, Picture};

/// What two sets of pictures share.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overlap {
    /// Names of classes that are in both.
    pub classes: Vec<String>,
    /// Pictures with the same pixels: name in the first and in the second set.
    pub same: Vec<(String, String)>,
    /// Pictures that look the same.
    pub alike: Vec<(String, String)>,
}

impl Overlap {
    /// Compares two sets.
    pub fn between(first: &Dataset, second: &Dataset) -> Self {
        let names: HashSet<&String> = first.labels().classes().iter().collect();
        let classes = second.labels().classes().iter().filter(|class| names.contains(class)).cloned();
        let mut overlap = Overlap { classes: classes.collect(), ..Overlap::default() };
        let (known, looked_for) = (looks(first), looks(second));
        let mut by_pattern: HashMap<u64, Vec<usize>> = HashMap::new();
        for (row, look) in known.iter().enumerate().filter(|(_, look)| !look.is_flat) {
            by_pattern.entry(look.pattern).or_default().push(row);
        }
        for (row, look) in looked_for.iter().enumerate() {
            let candidates = by_pattern.get(&look.pattern).into_iter().flatten();
            let best = candidates.filter(|&&other| look.resembles(&known[other])).max_by_key(|&&other| {
                // The same rather than alike, and the first of several.
                (known[other].pixels == look.pixels, usize::MAX - other)
            });
            let Some(&other) = best else { continue };
            let pair = (first.items()[other].clone(), second.items()[row].clone());
            let list =
                if known[other].pixels == look.pixels { &mut overlap.same } else { &mut overlap.alike };
            list.push(pair);
        }
        overlap
    }

    /// What deserves attention, in plain English.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let many =
            |count: usize, one: &str, many: &str| format!("{count} {}", if count == 1 { one } else { many });
        if let Some(first) = self.classes.first() {
            let classes = many(self.classes.len(), "class is", "classes are");
            warnings.push(format!("{classes} in both training and validation, the first is '{first}'"));
        }
        for (list, how) in [(&self.same, "the same as"), (&self.alike, "nearly the same as")] {
            if let Some((first, second)) = list.first() {
                let pictures = many(list.len(), "picture of validation is", "pictures of validation are");
                warnings
                    .push(format!("{pictures} {how} one of training, the first: '{second}' and '{first}'"));
            }
        }
        warnings
    }
}

const COLUMNS: usize = 9;
const ROWS: usize = 8;
/// How far the brightness of two cells may be apart, of 255.
const TOLERANCE: u8 = 12;
/// Cells of a picture that shows next to nothing differ by less.
const FLAT: u8 = 6;

/// What a picture looks like from afar.
struct Look {
    pixels: blake3::Hash,
    /// For each of 8 x 8 places, whether the left of two cells is brighter.
    pattern: u64,
    cells: Vec<u8>,
    is_flat: bool,
}

impl Look {
    fn of(picture: &Picture) -> Self {
        let cells = grey(picture).resized(COLUMNS, ROWS).pixels;
        let mut pattern = 0;
        for row in cells.chunks_exact(COLUMNS) {
            for pair in row.windows(2) {
                pattern = pattern << 1 | u64::from(pair[0] > pair[1]);
            }
        }
        let spread = cells.iter().max().zip(cells.iter().min()).map_or(0, |(most, least)| most - least);
        Look { pixels: blake3::hash(&picture.pixels), pattern, is_flat: spread < FLAT, cells }
    }

    fn resembles(&self, other: &Look) -> bool {
        self.cells.iter().zip(&other.cells).all(|(a, b)| a.abs_diff(*b) <= TOLERANCE)
    }
}

fn looks(dataset: &Dataset) -> Vec<Look> {
    dataset.pictures().par_iter().map(Look::of).collect()
}

fn grey(picture: &Picture) -> Picture {
    let pixels = match picture.channels {
        Channels::Grey => picture.pixels.clone(),
        Channels::Colour => {
            let grey = |&[r, g, b]: &[u8; 3]| {
                ((299 * u32::from(r) + 587 * u32::from(g) + 114 * u32::from(b) + 500) / 1000) as u8
            };
            picture.pixels.as_chunks::<3>().0.iter().map(grey).collect()
        }
    };
    Picture::new(picture.width, picture.height, Channels::Grey, pixels)
}
