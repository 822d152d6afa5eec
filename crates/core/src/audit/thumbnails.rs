//! Comparison of thumbnails ([`is_copy`]): whether two images show the same picture, one of them possibly cropped,
//! resized or compressed. `duplicates` asks this for images whose embeddings are similar.
//!
//! A thumbnail ([`ImageMeasures::thumbnail`]) is the whole image in grey, stretched to a square of 32 x 32 pixels. A
//! crop moves every pixel of it, so thumbnails are aligned first: Gauss-Newton steps find the scale and shift of both
//! axes, and the gain and offset of the grey levels, that make one thumbnail most like the other (Lucas and Kanade, "An
//! iterative image registration technique", 1981). They start with thumbnails reduced to 8 x 8 pixels, in which a shift
//! is small, and end with the full ones. Then the correlation of the details is computed: the differences between each
//! pixel and the mean of the pixels around it. Photographs of similar scenes have similar large areas, but not the same
//! details.
//!
//! Images are slices of grey levels in rows from the top, `side` x `side` pixels. The thresholds were chosen on
//! photographs and drawings (`docs/results/duplicates.md`).

use super::image_measures::ImageMeasures;

const SIDE: usize = ImageMeasures::THUMBNAIL_SIDE;
/// Sides of the reduced thumbnails that are aligned one after the other, each with the number of Gauss-Newton steps.
const LEVELS: [(usize, usize); 3] = [(SIDE / 4, 6), (SIDE / 2, 4), (SIDE, 4)];
/// Thumbnails that correlate less than this after the first level are not copies; the other levels are skipped.
const MIN_COARSE: f32 = 0.7;
/// The smallest correlation of the aligned thumbnails of copies.
const MIN_CORRELATION: f32 = 0.85;
/// The smallest correlation of the details of copies. It is strict, because drawings on white paper often have similar
/// outlines.
const MIN_DETAIL: f32 = 0.75;
/// The smallest correlation of the details of copies whose embeddings are unusually similar.
const MIN_DETAIL_IF_SIMILAR: f32 = 0.65;
/// The smallest share of one thumbnail that the other one covers. If 10 % of a copy was cropped on every side, it
/// covers 0.8 * 0.8 = 0.64 of the original.
const MIN_OVERLAP: f32 = 0.6;
/// The largest change of scale, and the largest shift as a share of half a side. If 10 % was cropped on every side, the
/// scale changes by -0.2 (to 0.8) in one direction and by 0.25 (to 1 / 0.8) in the other.
const MAX_CHANGE: f64 = 0.35;
/// Thumbnails with a smaller standard deviation, in grey levels, show nothing that could be compared.
const MIN_DEVIATION: f32 = 4.0;

/// Whether one of two images is a copy of the other; `None` if they show too little to tell. `is_similar` says whether
/// their embeddings are more similar than those of other images usually are.
pub(super) fn is_copy(one: &ImageMeasures, other: &ImageMeasures, is_similar: bool) -> Option<bool> {
    let min_detail = if is_similar { MIN_DETAIL_IF_SIMILAR } else { MIN_DETAIL };
    let [one, other] = [one, other].map(|measures| Pyramid::new(measures.thumbnail()));
    if one.deviation() < MIN_DEVIATION || other.deviation() < MIN_DEVIATION {
        return None;
    }
    Some(contains(&one, &other, min_detail) || contains(&other, &one, min_detail))
}

/// A thumbnail in the sizes of [`LEVELS`], smallest first.
struct Pyramid([Vec<f32>; 3]);

impl Pyramid {
    fn new(grey_levels: &[u8]) -> Self {
        let full: Vec<f32> = grey_levels.iter().map(|&level| f32::from(level)).collect();
        let half = halved(&full, SIDE);
        Pyramid([halved(&half, SIDE / 2), half, full])
    }

    /// The standard deviation of the grey levels.
    fn deviation(&self) -> f32 {
        let [.., full] = &self.0;
        let count = full.len() as f32;
        let mean = full.iter().sum::<f32>() / count;
        (full.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / count).sqrt()
    }
}

/// An image with half of the side: the means of 2 x 2 pixels.
fn halved(image: &[f32], side: usize) -> Vec<f32> {
    let half_side = side / 2;
    let mean = |pixel: usize| {
        // The top left of the four pixels: twice the row and twice the column of `pixel`.
        let corner = pixel / half_side * 2 * side + pixel % half_side * 2;
        (image[corner] + image[corner + 1] + image[corner + side] + image[corner + side + 1]) / 4.0
    };
    (0..half_side * half_side).map(mean).collect()
}

/// Where the pixels of one image (`to`) are in another one (`from`). Coordinates are from -1 to 1 along both axes.
#[derive(Clone, Copy, Default)]
struct Alignment {
    /// For the axes x and y, the change of scale and the shift: `u` becomes `u * (1 + change) + shift`.
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
        if level == 0 {
            let aligned = Aligned::new(from, alignment, side);
            if aligned.correlation(&aligned.values, to) < MIN_COARSE {
                return false;
            }
        }
    }
    // At full size, the larger image must cover the smaller one, be like it, and be like it in its details.
    let ([.., from], [.., to]) = (&larger.0, &smaller.0);
    let aligned = Aligned::new(from, alignment, SIDE);
    aligned.covered() >= MIN_OVERLAP
        && aligned.correlation(&aligned.values, to) >= MIN_CORRELATION
        && aligned.correlation(&details(&aligned.values, SIDE), &details(to, SIDE)) >= min_detail
}

/// An interpolated pixel with its slopes along both axes, per pixel.
struct Sample {
    value: f64,
    slopes: [f64; 2],
}

impl Alignment {
    /// For each pixel of `to` along an axis, its position in `from`, in pixels; 0 is the middle of the first pixel.
    fn positions(&self, axis: usize, side: usize) -> Vec<f64> {
        let (change, shift) = self.axes[axis];
        let position = |u: f64| (u * (1.0 + change) + shift + 1.0) / 2.0 * side as f64 - 0.5;
        (0..side).map(|pixel| position(coordinate(pixel, side))).collect()
    }

    /// One Gauss-Newton step towards the alignment with the least squared difference; `None` if the equations have no
    /// solution.
    ///
    /// To first order, `to = gain * (from + slopes * changes of the alignment) + offset` at every pixel. That is linear
    /// in six unknowns: the changes of scale and shift of x and of y, each times the gain, then the gain and the
    /// offset. Their least-squares equations are `normal * unknowns = right`.
    fn improved(self, from: &[f32], to: &[f32], side: usize) -> Option<Self> {
        let (columns, rows) = (self.positions(0, side), self.positions(1, side));
        let pixels_per_unit = side as f64 / 2.0;
        let mut normal = [[0.0; 6]; 6];
        let mut right = [0.0; 6];
        for (y, &row) in rows.iter().enumerate().filter(|(_, row)| is_inside(**row, side)) {
            for (x, &column) in columns.iter().enumerate().filter(|(_, column)| is_inside(**column, side)) {
                let Sample { value, slopes: [dx, dy] } = sample(from, side, column, row);
                let (dx, dy) = (dx * pixels_per_unit, dy * pixels_per_unit);
                let (u, v) = (coordinate(x, side), coordinate(y, side));
                let terms = [dx * u, dx, dy * v, dy, value, 1.0];
                let target = f64::from(to[y * side + x]);
                for (i, term) in terms.iter().enumerate() {
                    right[i] += term * target;
                    (0..=i).for_each(|j| normal[i][j] += term * terms[j]);
                }
            }
        }
        // The matrix is symmetric, and only its lower triangle has been summed.
        let lower = normal;
        for (i, row) in normal.iter_mut().enumerate() {
            (i + 1..6).for_each(|j| row[j] = lower[j][i]);
        }
        // Damping (Levenberg-Marquardt) keeps the steps small where the image has no slopes. It is weaker for the gain
        // and the offset, the last two unknowns.
        (0..6).for_each(|i| normal[i][i] += normal[i][i] * if i < 4 { 1e-3 } else { 1e-6 } + 1e-3);
        let [dx_scale, dx_shift, dy_scale, dy_shift, gain, _] = solve(normal, right)?;
        // The steps are divided by the gain, which may be near 0 before the images are aligned; long steps are cut.
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

/// Whether a position in pixels is within the image; the first pixel is from -0.5 to 0.5.
fn is_inside(position: f64, side: usize) -> bool {
    (-0.5..=side as f64 - 0.5).contains(&position)
}

/// Interpolates an image between the four pixels around a position in pixels (bilinear).
fn sample(image: &[f32], side: usize, x: f64, y: f64) -> Sample {
    // The pixel before a position and the distance from it; below `side - 1`, so that a next pixel exists.
    let split = |position: f64| {
        let position = position.clamp(0.0, side as f64 - 1.001);
        (position as usize, position.fract())
    };
    let ((column, fx), (row, fy)) = (split(x), split(y));
    let pixel = |dx: usize, dy: usize| f64::from(image[(row + dy) * side + column + dx]);
    let (a, b, c, d) = (pixel(0, 0), pixel(1, 0), pixel(0, 1), pixel(1, 1));
    Sample {
        value: (a * (1.0 - fx) + b * fx) * (1.0 - fy) + (c * (1.0 - fx) + d * fx) * fy,
        slopes: [(b - a) * (1.0 - fy) + (d - c) * fy, (c - a) * (1.0 - fx) + (d - b) * fx],
    }
}

/// Solves six linear equations `matrix * solution = right` by Gaussian elimination; `None` if they have no unique
/// finite solution.
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
            (column..6).for_each(|j| matrix[row][j] -= factor * pivot_row[j]);
            right[row] -= factor * pivot_right;
        }
    }
    let mut solution = [0.0; 6];
    for row in (0..6).rev() {
        let known: f64 = (row + 1..6).map(|j| matrix[row][j] * solution[j]).sum();
        solution[row] = (right[row] - known) / matrix[row][row];
    }
    solution.iter().all(|value| value.is_finite()).then_some(solution)
}

/// An image resampled so that its pixels match those of another one.
struct Aligned {
    /// `side` x `side` grey levels. Pixels outside the image repeat its border.
    values: Vec<f32>,
    /// Whether each pixel is within the image.
    inside: Vec<bool>,
}

impl Aligned {
    /// The image `from` of the alignment, resampled at the pixels of `to`.
    fn new(image: &[f32], alignment: Alignment, side: usize) -> Self {
        let (columns, rows) = (alignment.positions(0, side), alignment.positions(1, side));
        let positions = || rows.iter().flat_map(|&row| columns.iter().map(move |&column| (column, row)));
        Aligned {
            values: positions().map(|(x, y)| sample(image, side, x, y).value as f32).collect(),
            inside: positions().map(|(x, y)| is_inside(x, side) && is_inside(y, side)).collect(),
        }
    }

    /// The share of pixels within the image.
    fn covered(&self) -> f32 {
        self.inside.iter().filter(|inside| **inside).count() as f32 / self.inside.len() as f32
    }

    /// The correlation of two images over the pixels that are `inside`; 0 if one of them has a single grey level.
    fn correlation(&self, one: &[f32], other: &[f32]) -> f32 {
        let pairs =
            || one.iter().zip(other).zip(&self.inside).filter(|(_, inside)| **inside).map(|(pair, _)| pair);
        let count = pairs().count().max(1) as f32;
        let (sum_one, sum_other) = pairs().fold((0.0, 0.0), |(a, b), (x, y)| (a + x, b + y));
        let (mean_one, mean_other) = (sum_one / count, sum_other / count);
        // The covariance and both variances, times the number of pixels.
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
    // A row or column with its neighbours; at the border, the border is repeated.
    let near = |index: usize| [index.saturating_sub(1), index, (index + 1).min(side - 1)];
    let detail = |pixel: usize| {
        let (row, column) = (pixel / side, pixel % side);
        let sum: f32 = near(row).iter().flat_map(|y| near(column).map(|x| image[y * side + x])).sum();
        image[pixel] - sum / 9.0
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
        for first in &images {
            for second in &images {
                is_copy(first, second, false);
            }
        }
    }
}
