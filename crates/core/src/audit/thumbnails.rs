//! Comparison of thumbnails ([`is_copy`]): whether two images show the same picture, one of them possibly cropped, resized
//! or compressed.
//!
//! A crop moves every pixel of a thumbnail, so thumbnails are aligned first: Gauss-Newton steps find the scale and shift of
//! both axes, and the gain and offset of the grey levels, that make one thumbnail most like the other (Lucas and Kanade,
//! "An iterative image registration technique", 1981), from a thumbnail of 8 x 8 pixels to the full one. Then the
//! correlation of the details is computed: the differences between each pixel and the mean of the pixels around it.
//! Photographs of similar scenes have similar large areas, but not the same details.

use super::image_measures::ImageMeasures;

const SIDE: usize = ImageMeasures::THUMBNAIL_SIDE;
/// Sides of the thumbnails that are aligned one after the other, with the number of steps.
const LEVELS: [(usize, usize); 3] = [(SIDE / 4, 6), (SIDE / 2, 4), (SIDE, 4)];
/// After the first level, thumbnails with a smaller correlation are given up.
const MIN_COARSE: f32 = 0.7;
/// The smallest correlation of copies.
const MIN_CORRELATION: f32 = 0.85;
/// The smallest correlation of the details of copies.
const MIN_DETAIL: f32 = 0.75;
/// The same for images whose embeddings are unusually similar. Drawings on white paper often have similar outlines.
const MIN_DETAIL_IF_SIMILAR: f32 = 0.65;
/// The smallest share of a thumbnail that the other one covers: that of a copy from which 10 % was cropped on every side.
const MIN_OVERLAP: f32 = 0.6;
/// The largest change of scale, and the largest shift as a share of half a side.
const MAX_CHANGE: f64 = 0.35;
/// Thumbnails with a smaller standard deviation, in grey levels, show nothing that could be compared.
const MIN_DEVIATION: f32 = 4.0;

/// Whether one of two images is a copy of the other; `None` if they show too little to tell. `is_similar` says whether their
/// embeddings are more similar than those of other images usually are.
pub(super) fn is_copy(one: &ImageMeasures, other: &ImageMeasures, is_similar: bool) -> Option<bool> {
    let min_detail = if is_similar { MIN_DETAIL_IF_SIMILAR } else { MIN_DETAIL };
    let [one, other] = [one, other].map(|measures| Pyramid::new(measures.thumbnail()));
    if one.deviation() < MIN_DEVIATION || other.deviation() < MIN_DEVIATION {
        return None;
    }
    Some(contains(&one, &other, min_detail) || contains(&other, &one, min_detail))
}

/// A thumbnail in the sizes of [`LEVELS`].
struct Pyramid([Vec<f32>; 3]);

impl Pyramid {
    fn new(levels: &[u8]) -> Self {
        let full: Vec<f32> = levels.iter().map(|&level| f32::from(level)).collect();
        let half = halved(&full, SIDE);
        Pyramid([halved(&half, SIDE / 2), half, full])
    }

    fn deviation(&self) -> f32 {
        let [.., full] = &self.0;
        let count = full.len() as f32;
        let mean = full.iter().sum::<f32>() / count;
        (full.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / count).sqrt()
    }
}

/// The means of 2 x 2 pixels.
fn halved(image: &[f32], side: usize) -> Vec<f32> {
    let half = side / 2;
    let mean = |place: usize| {
        let at = place / half * 2 * side + place % half * 2;
        (image[at] + image[at + 1] + image[at + side] + image[at + side + 1]) / 4.0
    };
    (0..half * half).map(mean).collect()
}

/// Where the pixels of one image are in another. Coordinates are from -1 to 1 along both axes.
#[derive(Clone, Copy, Default)]
struct Alignment {
    /// Per axis the change of scale and the shift: `u` becomes `u * (1 + change) + shift`.
    axes: [(f64, f64); 2],
}

/// Whether the larger image contains the smaller one, with at least this correlation of the details.
fn contains(larger: &Pyramid, smaller: &Pyramid, min_detail: f32) -> bool {
    let mut alignment = Alignment::default();
    for (level, (side, steps)) in LEVELS.into_iter().enumerate() {
        let (from, to) = (&larger.0[level], &smaller.0[level]);
        for _ in 0..steps {
            match alignment.improved(from, to, side) {
                Some(better) => alignment = better,
                None => return false,
            }
        }
        let aligned = Aligned::new(from, alignment, side);
        if level == 0 && aligned.correlation(&aligned.values, to) < MIN_COARSE {
            return false;
        }
        if level + 1 == LEVELS.len() {
            return aligned.covered() >= MIN_OVERLAP
                && aligned.correlation(&aligned.values, to) >= MIN_CORRELATION
                && aligned.correlation(&details(&aligned.values, side), &details(to, side)) >= min_detail;
        }
    }
    false
}

/// An interpolated pixel with its slopes along both axes, per pixel.
struct Sample {
    value: f64,
    slopes: [f64; 2],
}

impl Alignment {
    /// The position in pixels that belongs to each pixel along an axis.
    fn positions(&self, axis: usize, side: usize) -> Vec<f64> {
        let (change, shift) = self.axes[axis];
        let position = |u: f64| (u * (1.0 + change) + shift + 1.0) / 2.0 * side as f64 - 0.5;
        (0..side).map(|pixel| position(coordinate(pixel, side))).collect()
    }

    /// One Gauss-Newton step towards the alignment with the least squared difference; `None` if the equations have no
    /// solution.
    fn improved(self, from: &[f32], to: &[f32], side: usize) -> Option<Self> {
        let (columns, rows) = (self.positions(0, side), self.positions(1, side));
        let half = side as f64 / 2.0;
        let mut normal = [[0.0; 6]; 6];
        let mut right = [0.0; 6];
        for (y, &row) in rows.iter().enumerate().filter(|(_, row)| is_inside(**row, side)) {
            for (x, &column) in columns.iter().enumerate().filter(|(_, column)| is_inside(**column, side)) {
                let Sample { value, slopes: [dx, dy] } = sample(from, side, column, row);
                let (dx, dy) = (dx * half, dy * half);
                let (u, v) = (coordinate(x, side), coordinate(y, side));
                let terms = [dx * u, dx, dy * v, dy, value, 1.0];
                let target = f64::from(to[y * side + x]);
                for (i, term) in terms.iter().enumerate() {
                    right[i] += term * target;
                    (0..=i).for_each(|j| normal[i][j] += term * terms[j]);
                }
            }
        }
        let lower = normal;
        for (i, row) in normal.iter_mut().enumerate() {
            (i + 1..6).for_each(|j| row[j] = lower[j][i]);
        }
        (0..6).for_each(|i| normal[i][i] += normal[i][i] * if i < 4 { 1e-3 } else { 1e-6 } + 1e-3);
        let [dx_scale, dx_shift, dy_scale, dy_shift, gain, _] = solve(normal, right)?;
        let gain = gain.max(0.2);
        let moved =
            |value: f64, step: f64| (value + (step / gain).clamp(-0.2, 0.2)).clamp(-MAX_CHANGE, MAX_CHANGE);
        let [(x_scale, x_shift), (y_scale, y_shift)] = self.axes;
        let axes = [
            (moved(x_scale, dx_scale), moved(x_shift, dx_shift)),
            (moved(y_scale, dy_scale), moved(y_shift, dy_shift)),
        ];
        Some(Alignment { axes })
    }
}

/// The coordinate of the middle of a pixel, from -1 to 1.
fn coordinate(pixel: usize, side: usize) -> f64 {
    (pixel as f64 + 0.5) / side as f64 * 2.0 - 1.0
}

fn is_inside(position: f64, side: usize) -> bool {
    (-0.5..=side as f64 - 0.5).contains(&position)
}

/// Interpolates an image at a position in pixels.
fn sample(image: &[f32], side: usize, x: f64, y: f64) -> Sample {
    let split = |position: f64| {
        let position = position.clamp(0.0, side as f64 - 1.001);
        (position as usize, position.fract())
    };
    let ((column, fx), (row, fy)) = (split(x), split(y));
    let at = |dx: usize, dy: usize| f64::from(image[(row + dy) * side + column + dx]);
    let (a, b, c, d) = (at(0, 0), at(1, 0), at(0, 1), at(1, 1));
    Sample {
        value: (a * (1.0 - fx) + b * fx) * (1.0 - fy) + (c * (1.0 - fx) + d * fx) * fy,
        slopes: [(b - a) * (1.0 - fy) + (d - c) * fy, (c - a) * (1.0 - fx) + (d - b) * fx],
    }
}

/// Solves six linear equations by elimination; `None` if they have no unique finite solution.
fn solve(mut matrix: [[f64; 6]; 6], mut right: [f64; 6]) -> Option<[f64; 6]> {
    for column in 0..6 {
        let size = |row: &usize| matrix[*row][column].abs();
        let pivot = (column..6).max_by(|a, b| size(a).total_cmp(&size(b)))?;
        matrix.swap(column, pivot);
        right.swap(column, pivot);
        let (pivot_row, pivot_right) = (matrix[column], right[column]);
        if pivot_row[column].abs() < 1e-12 {
            return None;
        }
        for row in column + 1..6 {
            let factor = matrix[row][column] / pivot_row[column];
            (column..6).for_each(|place| matrix[row][place] -= factor * pivot_row[place]);
            right[row] -= factor * pivot_right;
        }
    }
    let mut solution = [0.0; 6];
    for row in (0..6).rev() {
        let known: f64 = (row + 1..6).map(|place| matrix[row][place] * solution[place]).sum();
        solution[row] = (right[row] - known) / matrix[row][row];
    }
    solution.iter().all(|value| value.is_finite()).then_some(solution)
}

/// An image aligned with another one.
struct Aligned {
    values: Vec<f32>,
    /// Whether each pixel lies within the image.
    inside: Vec<bool>,
}

impl Aligned {
    fn new(image: &[f32], alignment: Alignment, side: usize) -> Self {
        let (columns, rows) = (alignment.positions(0, side), alignment.positions(1, side));
        let places = || rows.iter().flat_map(|&row| columns.iter().map(move |&column| (column, row)));
        Aligned {
            values: places().map(|(x, y)| sample(image, side, x, y).value as f32).collect(),
            inside: places().map(|(x, y)| is_inside(x, side) && is_inside(y, side)).collect(),
        }
    }

    /// The share of pixels within the image.
    fn covered(&self) -> f32 {
        self.inside.iter().filter(|inside| **inside).count() as f32 / self.inside.len() as f32
    }

    /// The correlation of two images over the pixels within the image; 0 if one of them has a single grey level.
    fn correlation(&self, one: &[f32], other: &[f32]) -> f32 {
        let pairs =
            || one.iter().zip(other).zip(&self.inside).filter(|(_, inside)| **inside).map(|(pair, _)| pair);
        let count = pairs().count().max(1) as f32;
        let (sum_one, sum_other) = pairs().fold((0.0, 0.0), |(a, b), (x, y)| (a + x, b + y));
        let (mean_one, mean_other) = (sum_one / count, sum_other / count);
        let mut products = [0.0f32; 3];
        for (x, y) in pairs() {
            let (x, y) = (x - mean_one, y - mean_other);
            products[0] += x * y;
            products[1] += x * x;
            products[2] += y * y;
        }
        let length = (products[1] * products[2]).sqrt();
        if length > 1e-6 { products[0] / length } else { 0.0 }
    }
}

/// The difference between each pixel and the mean of the 3 x 3 pixels around it.
fn details(image: &[f32], side: usize) -> Vec<f32> {
    let near = |at: usize| [at.saturating_sub(1), at, (at + 1).min(side - 1)];
    let detail = |place: usize| {
        let (row, column) = (place / side, place % side);
        let sum: f32 = near(row).iter().flat_map(|y| near(column).map(|x| image[y * side + x])).sum();
        image[place] - sum / 9.0
    };
    (0..image.len()).map(detail).collect()
}

#[cfg(test)]
mod tests {
    use super::super::image_measures::tests::measured;
    use super::*;

    /// A picture without symmetries, seen through a window; `seed` chooses the picture.
    fn picture(seed: usize, [left, top, right, bottom]: [f64; 4]) -> ImageMeasures {
        let wave = move |n: usize, x: f64, y: f64| {
            let mixed = ((seed * 31 + n) as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let part = |shift: u32| ((mixed >> shift) % 1000) as f64 / 1000.0;
            let frequency = 1.5 + 9.0 * part(4);
            (frequency * 6.3 * (x * (part(16) * 6.3).cos() + y * (part(16) * 6.3).sin()) + 6.3 * part(32))
                .sin()
        };
        measured(160, |x, y| {
            let x = left + (right - left) * x as f64 / 160.0;
            let y = top + (bottom - top) * y as f64 / 160.0;
            (128.0 + (0..12).map(|n| wave(n, x, y)).sum::<f64>() * 12.0).clamp(0.0, 255.0) as u8
        })
    }

    const WHOLE: [f64; 4] = [0.0, 0.0, 1.0, 1.0];

    #[test]
    fn a_crop_is_a_copy_in_both_directions() {
        for window in [WHOLE, [0.05, 0.05, 0.95, 0.95], [0.0, 0.1, 1.0, 1.0], [0.03, 0.08, 0.99, 0.96]] {
            for seed in 0..5 {
                let (whole, part) = (picture(seed, WHOLE), picture(seed, window));
                assert_eq!(is_copy(&whole, &part, true), Some(true), "{seed} {window:?}");
                assert_eq!(is_copy(&part, &whole, true), Some(true), "{seed} {window:?}");
            }
        }
    }

    #[test]
    fn other_pictures_and_small_parts_are_not_copies() {
        for seed in 0..20 {
            assert_eq!(
                is_copy(&picture(seed, WHOLE), &picture(seed + 20, WHOLE), true),
                Some(false),
                "{seed}"
            );
        }
        assert_eq!(is_copy(&picture(1, WHOLE), &picture(1, [0.3, 0.3, 0.7, 0.7]), true), Some(false));
    }

    #[test]
    fn brightness_and_contrast_do_not_matter() {
        let dimmed = |measures: &ImageMeasures| {
            let mut bytes = measures.to_bytes();
            bytes[12..].iter_mut().for_each(|level| *level = *level / 2 + 20);
            ImageMeasures::from_bytes(&bytes).unwrap()
        };
        let whole = picture(3, WHOLE);
        assert_eq!(is_copy(&whole, &dimmed(&whole), false), Some(true));
    }

    #[test]
    fn images_that_show_nothing_are_not_compared() {
        let grey = measured(64, |_, _| 90);
        assert_eq!(is_copy(&grey, &picture(0, WHOLE), true), None);
        assert_eq!(is_copy(&grey, &grey, true), None);
    }

    /// Thumbnails arrive over the network, so every one of them must be compared without a panic.
    #[test]
    fn extreme_thumbnails_are_compared() {
        let stripes =
            |width: usize| measured(64, move |x, _| if (x / width).is_multiple_of(2) { 0 } else { 255 });
        let corner = measured(64, |x, y| if x + y == 0 { 255 } else { 0 });
        let images = [stripes(2), stripes(4), stripes(32), corner, picture(0, WHOLE)];
        for one in &images {
            for other in &images {
                is_copy(one, other, false);
            }
        }
    }
}
