//! Measures of the images behind the rows ([`ImageMeasures`]), and the image problems that follow from them ([`find`]).
//!
//! The crate `trueshot-vision` measures every image when it decodes it for the network ([`ImageMeasures::of_grey`],
//! then [`ImageMeasures::add_channel`] per colour channel) and passes the measures to the audit. An audit reports
//! blurred, dark, blank and tiny images, and `duplicates` compares the thumbnails. The thresholds were chosen on
//! photographs and drawings; `docs/results/duplicates.md` shows how many poor images they find.

use serde::Serialize;

use super::item_name;
use crate::embeddings::Embeddings;

/// Distance in pixels over which the contrast of an edge is measured, wide enough for a blurred edge. The image is
/// reduced first, so that its longer side has at most 256 pixels.
const EDGE_WIDTH: usize = 8;
/// One in this many pixels counts as brightest, and one as darkest.
const RARE_LEVEL: usize = 200;
/// One in this many edges counts as strongest. Edges are counted, not pixels, so that the paper around a drawing does
/// not matter.
const RARE_EDGE: usize = 100;
/// An image is blurred if neighbouring pixels at its strongest edges differ by less than this percentage of the
/// contrast.
const BLURRED_PERCENT: u32 = 22;
/// Differences that are smaller than this, in grey levels, are not edges.
const MIN_EDGE_CONTRAST: u8 = 12;
/// An image is dark if hardly any pixel is brighter than this, in any channel.
const DARK_LEVEL: u8 = 48;
/// An image is blank if its brightest and darkest pixels differ by less than this, in every channel.
const BLANK_RANGE: u8 = 16;
/// An image is tiny if its shorter side has fewer pixels, and the usual image of the collection at least twice as many.
const TINY_SIDE: u32 = 32;

/// What an audit needs to know about the image behind a row: its size, sharpness, brightness and a thumbnail.
///
/// Levels are from 0 (black) to 255. The brightest and darkest pixels are 0.5 % of all pixels each; the strongest edges
/// are 1 % of the edges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageMeasures {
    /// The width of the image in pixels.
    pub width: u32,
    /// The height of the image in pixels.
    pub height: u32,
    /// The difference of neighbouring pixels at the strongest edges of the reduced image. A blurred edge has small
    /// steps.
    pub edge_step: u8,
    /// The difference of pixels that are 8 apart at the strongest edges of the reduced image; 0 without edges.
    pub edge_contrast: u8,
    /// The level of the brightest pixels, in the channel where it is highest.
    pub brightest: u8,
    /// The difference between the brightest and the darkest pixels, in the channel where it is largest.
    pub range: u8,
    /// [`Self::THUMBNAIL_LEN`] grey levels: the whole image, stretched to a square, in rows from the top.
    thumbnail: Box<[u8]>,
}

/// What is wrong with an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ImageProblemKind {
    /// Even the sharpest edges are blurred.
    Blurred,
    /// The image is almost black.
    Dark,
    /// The image has almost only one colour.
    Blank,
    /// A side has fewer than 32 pixels, and most images of the collection are at least twice as large.
    Tiny,
    /// The image cannot be read. It has no row.
    Unreadable,
}

impl std::fmt::Display for ImageProblemKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            ImageProblemKind::Blurred => "blurred",
            ImageProblemKind::Dark => "dark",
            ImageProblemKind::Blank => "blank",
            ImageProblemKind::Tiny => "tiny",
            ImageProblemKind::Unreadable => "unreadable",
        })
    }
}

/// An image that is too poor to be used, or cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImageProblem {
    /// The name of the item.
    pub item: String,
    /// The label of the item, if it has one.
    pub given: Option<String>,
    /// What is wrong with the image, in the order of [`ImageProblemKind`].
    pub kinds: Vec<ImageProblemKind>,
}

impl ImageMeasures {
    /// The side of the thumbnail in pixels.
    pub const THUMBNAIL_SIDE: usize = 32;
    /// The number of pixels of the thumbnail.
    pub const THUMBNAIL_LEN: usize = Self::THUMBNAIL_SIDE * Self::THUMBNAIL_SIDE;
    /// The number of bytes of [`Self::to_bytes`]: 12 before the thumbnail.
    pub const BYTES: usize = 12 + Self::THUMBNAIL_LEN;

    /// Measures a grey image of `width` x `height` pixels, in rows from the top. `thumbnail` is the same image,
    /// stretched to [`Self::THUMBNAIL_LEN`] pixels. Callers reduce large images first, so that sharpness is comparable,
    /// and then set `width` and `height` to those of the original.
    ///
    /// # Panics
    /// If `pixels` or `thumbnail` has a wrong length.
    pub fn of_grey(width: usize, height: usize, pixels: &[u8], thumbnail: &[u8]) -> Self {
        assert_eq!(pixels.len(), width * height, "pixels of a grey image");
        assert_eq!(thumbnail.len(), Self::THUMBNAIL_LEN, "pixels of a thumbnail");
        // Pixels that are `EDGE_WIDTH` apart and differ enough are an edge. `rare_edge` is the number of strongest
        // edges, and the same number of steps between neighbouring pixels count as strongest.
        let [steps, contrasts] = [1, EDGE_WIDTH].map(|distance| differences(width, pixels, distance));
        let edges: usize = contrasts[usize::from(MIN_EDGE_CONTRAST)..].iter().sum();
        let rare_edge = edges.div_ceil(RARE_EDGE);
        let mut measures = ImageMeasures {
            width: width as u32,
            height: height as u32,
            edge_step: reached(&steps, rare_edge),
            edge_contrast: reached(&contrasts, rare_edge),
            brightest: 0,
            range: 0,
            thumbnail: thumbnail.into(),
        };
        measures.add_channel(pixels.iter().copied());
        measures
    }

    /// Takes the levels of a colour channel into account: pure blue is dark in shades of grey, and red and green can
    /// have the same shade.
    pub fn add_channel(&mut self, levels: impl Iterator<Item = u8>) {
        let mut counts = [0; 256];
        levels.for_each(|level| counts[usize::from(level)] += 1);
        let rare = counts.iter().sum::<usize>().div_ceil(RARE_LEVEL);
        let brightest = reached(&counts, rare);
        // The darkest level is the brightest one of the inverted image.
        counts.reverse();
        let darkest = 255 - reached(&counts, rare);
        self.brightest = self.brightest.max(brightest);
        self.range = self.range.max(brightest.saturating_sub(darkest));
    }

    /// The grey levels of the thumbnail.
    pub fn thumbnail(&self) -> &[u8] {
        &self.thumbnail
    }

    /// The measures as bytes: width and height (u32, little-endian), edge step and contrast, brightest level and range
    /// (one byte each), thumbnail.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::BYTES);
        bytes.extend(self.width.to_le_bytes());
        bytes.extend(self.height.to_le_bytes());
        bytes.extend([self.edge_step, self.edge_contrast, self.brightest, self.range]);
        bytes.extend(&self.thumbnail);
        bytes
    }

    /// Reads what [`Self::to_bytes`] wrote; `None` if the length is wrong.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != Self::BYTES {
            return None;
        }
        let number = |offset: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[offset + byte]));
        Some(ImageMeasures {
            width: number(0),
            height: number(4),
            edge_step: bytes[8],
            edge_contrast: bytes[9],
            brightest: bytes[10],
            range: bytes[11],
            thumbnail: bytes[12..].into(),
        })
    }

    fn shorter_side(&self) -> u32 {
        self.width.min(self.height)
    }

    /// Whether the image has almost only one colour.
    fn is_blank(&self) -> bool {
        self.range < BLANK_RANGE
    }

    /// What is wrong with the image. `usual_side` is the median of the shorter sides of all images of the collection.
    pub(super) fn problems(&self, usual_side: u32) -> Vec<ImageProblemKind> {
        let is_dark = self.brightest < DARK_LEVEL;
        let has_edges = self.edge_contrast >= MIN_EDGE_CONTRAST && !self.is_blank();
        let is_soft = u32::from(self.edge_step) * 100 < u32::from(self.edge_contrast) * BLURRED_PERCENT;
        let side = self.shorter_side();
        let checks = [
            (ImageProblemKind::Blurred, has_edges && is_soft),
            (ImageProblemKind::Dark, is_dark),
            (ImageProblemKind::Blank, self.is_blank() && !is_dark),
            (ImageProblemKind::Tiny, side < TINY_SIDE && usual_side / 2 >= side),
        ];
        checks.into_iter().filter(|(_, has_problem)| *has_problem).map(|(kind, _)| kind).collect()
    }
}

/// Histogram of the absolute differences between pixels that are `distance` apart in a row or a column: `counts[d]`
/// pairs of pixels differ by `d`.
fn differences(width: usize, pixels: &[u8], distance: usize) -> [usize; 256] {
    let mut counts = [0; 256];
    let mut count = |a: &[u8], b: &[u8]| {
        a.iter().zip(b).for_each(|(&a, &b)| counts[usize::from(a.abs_diff(b))] += 1);
    };
    for row in pixels.chunks_exact(width).filter(|row| row.len() > distance) {
        count(row, &row[distance..]);
    }
    if let Some(below) = pixels.get(distance * width..) {
        count(pixels, below);
    }
    counts
}

/// The largest value that at least `rare` of the values counted in a histogram reach; 0 if there are no values.
fn reached(counts: &[usize; 256], rare: usize) -> u8 {
    // The number of values that are `value` or larger.
    let mut count_above = 0;
    for (value, count) in (0..=255).zip(counts).rev() {
        count_above += count;
        if count_above >= rare && rare > 0 {
            return value;
        }
    }
    0
}

/// The problems of the images behind the rows, in the order of the rows, then the images that cannot be read, by name.
/// `measures` has one entry per row or is empty; `unreadable` are names with the classes, if known.
pub(super) fn find(
    data: &Embeddings,
    measures: &[Option<ImageMeasures>],
    unreadable: &[(String, Option<String>)],
) -> Vec<ImageProblem> {
    let mut sides: Vec<u32> = measures.iter().flatten().map(ImageMeasures::shorter_side).collect();
    sides.sort_unstable();
    let usual_side = sides.get(sides.len().saturating_sub(1) / 2).copied().unwrap_or(0);
    let of_row = |(row, measures): (usize, &Option<ImageMeasures>)| {
        let kinds = measures.as_ref()?.problems(usual_side);
        let given = Some(data.classes()[data.labels()[row] as usize].clone());
        (!kinds.is_empty()).then(|| ImageProblem { item: item_name(data, row), given, kinds })
    };
    let mut problems: Vec<ImageProblem> = measures.iter().enumerate().filter_map(of_row).collect();
    let mut unreadable: Vec<&(String, Option<String>)> = unreadable.iter().collect();
    unreadable.sort();
    problems.extend(unreadable.into_iter().map(|(item, class)| ImageProblem {
        item: item.clone(),
        given: class.clone(),
        kinds: vec![ImageProblemKind::Unreadable],
    }));
    problems
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The measures of a grey image given by a function, and the image reduced to a thumbnail by the mean of blocks.
    pub fn measured(side: usize, level: impl Fn(usize, usize) -> u8) -> ImageMeasures {
        let pixels: Vec<u8> = (0..side * side).map(|pixel| level(pixel % side, pixel / side)).collect();
        let small = ImageMeasures::THUMBNAIL_SIDE;
        let cell = |cell: usize| {
            let range = |at: usize| at * side / small..((at + 1) * side / small).max(at * side / small + 1);
            let (rows, columns) = (range(cell / small), range(cell % small));
            let area = (rows.len() * columns.len()) as u32;
            let sum: u32 = rows
                .flat_map(|y| columns.clone().map(move |x| (x, y)))
                .map(|(x, y)| u32::from(pixels[y.min(side - 1) * side + x.min(side - 1)]))
                .sum();
            (sum / area) as u8
        };
        let thumbnail: Vec<u8> = (0..ImageMeasures::THUMBNAIL_LEN).map(cell).collect();
        ImageMeasures::of_grey(side, side, &pixels, &thumbnail)
    }

    /// A step from dark to bright that takes `width` pixels.
    fn edge(width: usize) -> ImageMeasures {
        measured(128, |x, _| (20 + 200 * x.saturating_sub(60).min(width) / width) as u8)
    }

    #[test]
    fn a_sharp_edge_is_not_blurred_and_a_wide_one_is() {
        assert_eq!(edge(1).problems(128), []);
        assert_eq!(edge(2).problems(128), []);
        assert_eq!(edge(8).problems(128), [ImageProblemKind::Blurred]);
        assert_eq!(edge(30).problems(128), [ImageProblemKind::Blurred]);
    }

    #[test]
    fn dark_and_blank_images_are_told_apart() {
        let noise = |x: usize, y: usize| ((x * 7 + y * 13) % 11) as u8;
        assert_eq!(measured(64, |x, y| 2 * noise(x, y)).problems(64), [ImageProblemKind::Dark]);
        assert_eq!(measured(64, |x, y| 200 + noise(x, y)).problems(64), [ImageProblemKind::Blank]);
        assert_eq!(measured(64, |x, y| 20 * noise(x, y)).problems(64), []);
        // Drawings: thin lines on white paper, and a small object.
        let small =
            measured(200, |x, y| if x < 180 || y < 185 { 255 } else { ((x * 37 + y * 91) % 200) as u8 });
        assert_eq!(small.problems(200), []);
        assert_eq!(measured(100, |x, y| if x == y { 0 } else { 255 }).problems(100), []);
    }

    #[test]
    fn colours_of_the_same_shade_are_neither_dark_nor_blank() {
        let mut red_and_green = measured(64, |_, _| 40);
        assert_eq!(red_and_green.problems(64), [ImageProblemKind::Dark]);
        red_and_green.add_channel((0..64 * 64).map(|pixel| if pixel % 64 < 32 { 130 } else { 0 }));
        assert_eq!(red_and_green.problems(64), []);
    }

    #[test]
    fn an_image_is_tiny_only_among_larger_ones() {
        let small = measured(28, |x, y| ((x * 31 + y * 17) % 256) as u8);
        assert_eq!(small.problems(28), []);
        assert_eq!(small.problems(64), [ImageProblemKind::Tiny]);
        assert_eq!(measured(32, |x, y| ((x * 31 + y * 17) % 256) as u8).problems(640), []);
    }

    #[test]
    fn images_of_every_size_can_be_measured() {
        for (width, height) in [(1, 1), (1, 300), (300, 1), (8, 9), (9, 8)] {
            let pixels: Vec<u8> = (0..width * height).map(|pixel| (pixel % 251) as u8).collect();
            let measures = ImageMeasures::of_grey(width, height, &pixels, &[0; ImageMeasures::THUMBNAIL_LEN]);
            assert!(measures.range <= measures.brightest, "{measures:?}");
            measures.problems(100);
        }
    }

    #[test]
    fn bytes_of_another_length_are_refused() {
        let measures = edge(3);
        let bytes = measures.to_bytes();
        assert_eq!(ImageMeasures::from_bytes(&bytes), Some(measures));
        assert_eq!(ImageMeasures::from_bytes(&bytes[1..]), None);
        assert_eq!(ImageMeasures::from_bytes(&[]), None);
        let extreme = ImageMeasures::from_bytes(&vec![255; ImageMeasures::BYTES]).unwrap();
        assert_eq!(extreme.problems(u32::MAX), []);
        let black = ImageMeasures::from_bytes(&vec![0; ImageMeasures::BYTES]).unwrap();
        assert_eq!(black.problems(u32::MAX), [ImageProblemKind::Dark, ImageProblemKind::Tiny]);
    }
}
