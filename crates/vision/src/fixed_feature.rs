//! A feature of a drawing that needs no training: where on the paper do strokes run in which direction.
//!
//! For the demo and for tests, which want an embedding that is good, tiny and the same everywhere. The ink is
//! moved and scaled onto a standard sheet; there, gradients vote for their direction in a coarse grid of
//! cells, each vote shared between neighbouring cells and directions, so that a shaky hand moves the numbers a
//! little and never makes them jump. This is the histogram of oriented gradients, without its blocks.
//!
//! On evaluation characters, 5-way 5-shot, the nearest mean is right in 99.3 % of answers, and in 94.8 % when
//! 2 of 5 labels in each class are wrong (3,000 episodes each). The choices were made on 300 episodes of these
//! characters, where this form has 99.1 %: grey values of the same sheet instead of directions have 97.6 %, no
//! scaling 98.2 %, width and height scaled fully apart 98.9 %; grids of 5 or 6 cells, 6 or 8 directions and a
//! stronger blur differ by less than such a measurement can tell. Background characters, on which nothing was
//! chosen, give 99.4 % and 96.1 %.
//!
//! Left out on purpose: rotation, which tells characters apart, and anything fitted to data.

use crate::drawing::Bitmap;

/// Numbers in a feature: cells down, cells across, directions.
pub const FIXED_FEATURE_DIMENSIONS: usize = CELLS * CELLS * DIRECTIONS;

/// Length of every feature but that of a blank drawing.
///
/// Methods that weigh distances by a temperature are made for features of trained networks, whose squared
/// distances within a class are some tens; at length 1 each of them would do what the plain mean does. At 16
/// two drawings of a character are about 67 apart (squared, on average). With 2 of 5 labels wrong, weights
/// softmax(-mean squared distance to the others / 25) are then right in 98.3 % where the mean has 94.8 %. From
/// 14 to 20 this hardly changes; 10 gives 97.9 %, 8 gives 97.5 %. With clean labels weighing costs 0.1 %.
pub const FIXED_FEATURE_LENGTH: f32 = 16.0;

const CELLS: usize = 6;
const DIRECTIONS: usize = 6;
/// Side of the standard sheet, in its own pixels.
const SHEET: usize = 32;
/// The sheet reaches this many standard deviations of the ink from its centre; ink beyond is put on the rim.
const REACH: f32 = 2.2;
/// A grid of this many values is a sheet.
type Sheet = [f32; SHEET * SHEET];

/// The feature of a drawing: [`FIXED_FEATURE_DIMENSIONS`] numbers, none negative, of Euclidean length
/// [`FIXED_FEATURE_LENGTH`]. Where on the paper and how large the drawing is makes (nearly) no difference. A
/// blank drawing has no direction anywhere: all zeros.
pub fn fixed_feature(drawing: &Bitmap) -> Vec<f32> {
    let Some(placement) = Placement::of(drawing) else {
        return vec![0.0; FIXED_FEATURE_DIMENSIONS];
    };
    let sheet = blur(&placement.draw(drawing));
    let mut feature = directions(&sheet);
    // The root lets a faint stroke count beside a bold one.
    feature.iter_mut().for_each(|value| *value = value.sqrt());
    scale_to_length(&mut feature);
    feature
}

/// How the drawing's paper lies on the sheet: `sheet = (paper - centre) * zoom + middle`, along each axis.
struct Placement {
    centre: [f32; 2],
    zoom: [f32; 2],
}

impl Placement {
    /// Centres the ink and evens out its spread; `None` without ink.
    ///
    /// Width and height are scaled half apart, half together: people stretch a character at will, yet a comma
    /// must not become a circle.
    fn of(drawing: &Bitmap) -> Option<Self> {
        let (mut count, mut sum, mut squares) = (0_u64, [0_u64; 2], [0_u64; 2]);
        for (x, y) in drawing.ink() {
            count += 1;
            for (axis, place) in [x as u64, y as u64].into_iter().enumerate() {
                sum[axis] += place;
                squares[axis] += place * place;
            }
        }
        if count == 0 {
            return None;
        }
        // Whole numbers up to here: the spread is exactly the same wherever the drawing stands.
        let spread = [0, 1].map(|axis| {
            let [squares, sum, count] = [squares[axis], sum[axis], count].map(u128::from);
            let scaled_variance = squares * count - sum * sum;
            // Half a pixel more, so that a single dot has a size too.
            (scaled_variance as f64).sqrt() as f32 / count as f32 + 0.5
        });
        let joint = ((spread[0] * spread[0] + spread[1] * spread[1]) / 2.0).sqrt();
        let zoom = spread.map(|own| SHEET as f32 / 2.0 / (REACH * (own * joint).sqrt()));
        Some(Self { centre: sum.map(|total| (total as f64 / count as f64) as f32), zoom })
    }

    /// The ink on the sheet, each pixel of paper shared between the four nearest of the sheet.
    fn draw(&self, drawing: &Bitmap) -> Sheet {
        let mut sheet = [0.0; SHEET * SHEET];
        for (x, y) in drawing.ink() {
            let (column, right) = self.place(0, x);
            let (row, below) = self.place(1, y);
            let corner = row * SHEET + column;
            sheet[corner] += (1.0 - below) * (1.0 - right);
            sheet[corner + 1] += (1.0 - below) * right;
            sheet[corner + SHEET] += below * (1.0 - right);
            sheet[corner + SHEET + 1] += below * right;
        }
        sheet
    }

    /// Where a line of paper lands on the sheet: a line that has a next one, and the share of that next one.
    fn place(&self, axis: usize, paper: usize) -> (usize, f32) {
        let middle = (SHEET as f32 - 1.0) / 2.0;
        let exact =
            ((paper as f32 - self.centre[axis]) * self.zoom[axis] + middle).clamp(0.0, SHEET as f32 - 1.0);
        let line = (exact as usize).min(SHEET - 2);
        (line, exact - line as f32)
    }
}

/// Smooths with the weights 1 2 1, across and down; beyond the sheet there is paper.
fn blur(sheet: &Sheet) -> Sheet {
    let across = blur_along(sheet, 1);
    blur_along(&across, SHEET)
}

fn blur_along(sheet: &Sheet, step: usize) -> Sheet {
    let mut smooth = [0.0; SHEET * SHEET];
    for (place, value) in smooth.iter_mut().enumerate() {
        let line = place / step % SHEET;
        let before = if line > 0 { sheet[place - step] } else { 0.0 };
        let after = if line + 1 < SHEET { sheet[place + step] } else { 0.0 };
        *value = (before + 2.0 * sheet[place] + after) / 4.0;
    }
    smooth
}

/// The votes of all gradients for their direction, cell by cell; opposite gradients are one direction, since
/// both sides of a stroke belong to it.
fn directions(sheet: &Sheet) -> Vec<f32> {
    let mut votes = vec![0.0; FIXED_FEATURE_DIMENSIONS];
    let cells: [_; SHEET] = std::array::from_fn(nearest_cells);
    for row in 1..SHEET - 1 {
        for column in 1..SHEET - 1 {
            let place = row * SHEET + column;
            let across = sheet[place + 1] - sheet[place - 1];
            let down = sheet[place + SHEET] - sheet[place - SHEET];
            let strength = (across * across + down * down).sqrt();
            if strength > 0.0 {
                let bins = nearest_directions(across, down);
                vote(&mut votes, strength, &[cells[row], cells[column], bins]);
            }
        }
    }
    votes
}

/// Two neighbours with their shares of a vote, which add up to 1.
type Neighbours = [(usize, f32); 2];

/// The cells that a line of the sheet lies between; beyond the outer centres the outer cell takes all.
fn nearest_cells(line: usize) -> Neighbours {
    let exact = (line as f32 + 0.5) * CELLS as f32 / SHEET as f32 - 0.5;
    let exact = exact.clamp(0.0, CELLS as f32 - 1.0);
    let cell = (exact as usize).min(CELLS - 2);
    let share = exact - cell as f32;
    [(cell, 1.0 - share), (cell + 1, share)]
}

/// The directions that a gradient lies between, around the half circle. The arc tangent is that of `libm`,
/// not of the platform, so that features are the same everywhere.
fn nearest_directions(across: f32, down: f32) -> Neighbours {
    let half_turns = libm::atan2f(down, across) / std::f32::consts::PI;
    let exact = (half_turns + 1.0) * DIRECTIONS as f32;
    let share = exact - exact.floor();
    let direction = exact as usize;
    [(direction % DIRECTIONS, 1.0 - share), ((direction + 1) % DIRECTIONS, share)]
}

fn vote(votes: &mut [f32], strength: f32, [rows, columns, bins]: &[Neighbours; 3]) {
    for (row, row_share) in rows {
        for (column, column_share) in columns {
            for (bin, bin_share) in bins {
                let place = (row * CELLS + column) * DIRECTIONS + bin;
                votes[place] += strength * row_share * column_share * bin_share;
            }
        }
    }
}

/// Scales to [`FIXED_FEATURE_LENGTH`]; zeros, which have no direction to scale in, stay zeros.
fn scale_to_length(feature: &mut [f32]) {
    let length = feature.iter().map(|value| value * value).sum::<f32>().sqrt();
    if length > 0.0 {
        feature.iter_mut().for_each(|value| *value *= FIXED_FEATURE_LENGTH / length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::omniglot::{Omniglot, Split};

    const WAYS: usize = 5;
    const SHOTS: usize = 5;
    const QUERIES: usize = 10;
    const EPISODES: usize = 300;

    fn squared_distance(left: &[f32], right: &[f32]) -> f32 {
        left.iter().zip(right).map(|(a, b)| (a - b) * (a - b)).sum()
    }

    fn length(feature: &[f32]) -> f32 {
        feature.iter().map(|value| value * value).sum::<f32>().sqrt()
    }

    /// A hook: down, then right.
    fn hook(left: usize, top: usize, scale: usize) -> Bitmap {
        Bitmap::from_fn(105, 105, |x, y| {
            let inside =
                |value: usize, start: usize, end: usize| (start * scale..end * scale).contains(&value);
            let (Some(x), Some(y)) = (x.checked_sub(left), y.checked_sub(top)) else { return false };
            inside(x, 0, 3) && inside(y, 0, 24) || inside(x, 0, 16) && inside(y, 21, 24)
        })
    }

    #[test]
    fn a_feature_has_the_documented_size_and_length() {
        let feature = fixed_feature(&hook(20, 30, 2));
        assert_eq!(feature.len(), FIXED_FEATURE_DIMENSIONS);
        assert!((length(&feature) - FIXED_FEATURE_LENGTH).abs() < 1e-3);
        assert!(feature.iter().all(|&value| value >= 0.0));
    }

    #[test]
    fn moving_a_drawing_on_its_paper_changes_nothing() {
        let moved = squared_distance(&fixed_feature(&hook(3, 5, 2)), &fixed_feature(&hook(48, 50, 2)));
        assert!(moved < 1e-3, "{moved}");
    }

    #[test]
    fn a_drawing_of_twice_the_size_is_nearly_the_same() {
        let enlarged = squared_distance(&fixed_feature(&hook(5, 5, 2)), &fixed_feature(&hook(5, 5, 4)));
        assert!(enlarged < 6.0, "{enlarged}");
    }

    #[test]
    fn a_turned_drawing_is_far_away() {
        let turned = Bitmap::from_fn(105, 105, |x, y| hook(5, 5, 2).is_ink(y, x));
        let distance = squared_distance(&fixed_feature(&hook(5, 5, 2)), &fixed_feature(&turned));
        assert!(distance > 100.0, "{distance}");
    }

    #[test]
    fn a_blank_drawing_is_all_zeros() {
        let feature = fixed_feature(&Bitmap::from_fn(105, 105, |_, _| false));
        assert_eq!(feature, vec![0.0; FIXED_FEATURE_DIMENSIONS]);
    }

    #[test]
    fn a_single_dot_and_a_full_sheet_have_finite_features() {
        for drawing in [Bitmap::from_fn(9, 9, |x, y| (x, y) == (8, 0)), Bitmap::from_fn(300, 7, |_, _| true)]
        {
            let feature = fixed_feature(&drawing);
            assert!((length(&feature) - FIXED_FEATURE_LENGTH).abs() < 1e-3, "{}", length(&feature));
        }
    }

    /// Knuth's linear congruence: enough to draw episodes, and the same ones for ever.
    struct Dice(u64);

    impl Dice {
        fn below(&mut self, limit: usize) -> usize {
            self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((self.0 >> 33) % limit as u64) as usize
        }

        fn some_of(&mut self, total: usize, wanted: usize) -> Vec<usize> {
            let mut all: Vec<usize> = (0..total).collect();
            for place in 0..wanted {
                let other = place + self.below(total - place);
                all.swap(place, other);
            }
            all.truncate(wanted);
            all
        }
    }

    /// Features by evaluation character and drawing.
    fn evaluation_features() -> Vec<Vec<Vec<f32>>> {
        let omniglot = Omniglot::embedded();
        let of_character = |character| {
            let drawings = 0..omniglot.drawings_per_character();
            drawings.map(|n| fixed_feature(&omniglot.drawing(character, n).unwrap())).collect()
        };
        omniglot.characters_of(Split::Evaluation).map(of_character).collect()
    }

    /// The weighted mean of some rows.
    fn centre(rows: &[&Vec<f32>], weights: &[f32]) -> Vec<f32> {
        let total: f32 = weights.iter().sum();
        let value = |place: usize| rows.iter().zip(weights).map(|(row, w)| row[place] * w / total).sum();
        (0..FIXED_FEATURE_DIMENSIONS).map(value).collect()
    }

    /// softmax(-mean squared distance to the others / 25).
    fn similarity_weights(rows: &[&Vec<f32>]) -> Vec<f32> {
        let mean_distance = |row| rows.iter().map(|other| squared_distance(row, other)).sum::<f32>() / 4.0;
        let distances: Vec<f32> = rows.iter().map(|row| mean_distance(row)).collect();
        let least = distances.iter().copied().fold(f32::INFINITY, f32::min);
        distances.iter().map(|distance| ((least - distance) / 25.0).exp()).collect()
    }

    /// Accuracy of the plain mean and of the weighted mean when `wrong` of the shots in each class are
    /// drawings of the episode's other classes.
    fn accuracies(features: &[Vec<Vec<f32>>], wrong: usize) -> [f32; 2] {
        let (mut dice, mut right) = (Dice(1), [0, 0]);
        for _ in 0..EPISODES {
            let ways = dice.some_of(features.len(), WAYS);
            let drawn: Vec<_> = ways.iter().map(|_| dice.some_of(20, SHOTS + QUERIES)).collect();
            let centres: Vec<[Vec<f32>; 2]> = (0..WAYS)
                .map(|way| {
                    let mut rows: Vec<_> =
                        drawn[way][..SHOTS].iter().map(|&n| &features[ways[way]][n]).collect();
                    for row in &mut rows[..wrong] {
                        let other = (way + 1 + dice.below(WAYS - 1)) % WAYS;
                        *row = &features[ways[other]][dice.below(20)];
                    }
                    [centre(&rows, &[1.0; SHOTS]), centre(&rows, &similarity_weights(&rows))]
                })
                .collect();
            for (way, query) in (0..WAYS).flat_map(|way| drawn[way][SHOTS..].iter().map(move |&n| (way, n))) {
                let query = &features[ways[way]][query];
                for (kind, right) in right.iter_mut().enumerate() {
                    let distance = |other: usize| squared_distance(query, &centres[other][kind]);
                    let nearest = (0..WAYS).min_by(|&a, &b| distance(a).total_cmp(&distance(b)));
                    *right += usize::from(nearest == Some(way));
                }
            }
        }
        right.map(|count| count as f32 / (EPISODES * WAYS * QUERIES) as f32)
    }

    #[test]
    fn five_drawings_tell_new_characters_apart_and_weights_help_against_wrong_labels() {
        let features = evaluation_features();
        let [clean, _] = accuracies(&features, 0);
        let [mean, weighted] = accuracies(&features, 2);
        println!("clean {clean:.4}, with 2 of 5 wrong: mean {mean:.4}, weighted {weighted:.4}");
        assert!(clean > 0.985, "clean: {clean}");
        assert!(mean > 0.93, "mean of labels 40 % wrong: {mean}");
        assert!(weighted > mean + 0.02, "weights: {weighted}, mean: {mean}");
    }
}
