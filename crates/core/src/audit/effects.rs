//! The effect of label changes ([`effects`]): the leave-one-out accuracy of nearest prototypes before and after. A
//! repair plan shows it for each planned change, and for all of them together.
//!
//! A prototype is the sum of the centred rows of its class at unit length, and an item is classified by the largest
//! cosine with a prototype. To leave an item out, or to move one to another class, changes one or two sums by one row.
//! So the products of rows and sums are computed once and corrected with the products of the row that moves.

use rayon::prelude::*;
use trueshot_nn::products;

use super::rows::centred;
use crate::embeddings::Embeddings;

/// A change of one label.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Change {
    /// The row whose label changes.
    pub row: u32,
    /// The new class; `None` removes the item.
    pub to: Option<u32>,
}

/// The leave-one-out accuracy before and after changes, from 0 to 1.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Effects {
    /// The accuracy with the given labels.
    pub before: f64,
    /// The accuracy with all changes.
    pub after: f64,
    /// Per change, the increase of the accuracy if only this change is made.
    pub alone: Vec<f64>,
}

/// The leave-one-out accuracy with the given labels, from 0 to 1.
pub(super) fn accuracy(data: &Embeddings) -> f64 {
    let values = centred(data);
    let rows: Vec<&[f32]> = values.chunks_exact(data.dim()).collect();
    LeaveOneOut::new(&rows, given_labels(data), data.classes().len()).accuracy()
}

fn given_labels(data: &Embeddings) -> Vec<Option<u32>> {
    data.labels().iter().copied().map(Some).collect()
}

/// Computes the effect of each change alone and of all changes together.
pub(crate) fn effects(data: &Embeddings, changes: &[Change]) -> Effects {
    let values = centred(data);
    let rows: Vec<&[f32]> = values.chunks_exact(data.dim()).collect();
    let given = given_labels(data);
    let leave_one_out = LeaveOneOut::new(&rows, given.clone(), data.classes().len());
    let before = leave_one_out.accuracy();
    let alone = changes.par_iter().map(|change| leave_one_out.accuracy_after(change) - before).collect();
    let mut changed = given;
    for change in changes {
        changed[change.row as usize] = change.to;
    }
    let after = LeaveOneOut::new(&rows, changed, data.classes().len()).accuracy();
    Effects { before, after, alone }
}

/// A classification of every row by the sums of all other rows of each class.
struct LeaveOneOut<'a> {
    /// Centred rows of unit length, `[items][dim]`.
    rows: &'a [&'a [f32]],
    /// The class of each row; `None` if the row has been removed.
    labels: Vec<Option<u32>>,
    /// The number of classes.
    classes: usize,
    /// Products of rows and sums, without leaving a row out: `[row][class]`.
    products: Vec<f32>,
    /// Squared lengths of the sums, one per class.
    squared_lengths: Vec<f32>,
    /// Squared lengths of the rows: 1, or 0 for a row that equals the centre.
    row_squares: Vec<f32>,
    /// Per row the three classes with the highest scores, best first: a change affects two classes, so at least one of
    /// the three is unaffected.
    nearest: Vec<[(u32, f32); 3]>,
}

/// The score of a class without items.
const ABSENT: f32 = f32::NEG_INFINITY;
/// Sums with a smaller squared length are rounding errors.
const MIN_SQUARED_LENGTH: f32 = 1e-6;

impl<'a> LeaveOneOut<'a> {
    fn new(rows: &'a [&'a [f32]], labels: Vec<Option<u32>>, classes: usize) -> Self {
        let sums: Vec<Vec<f32>> = (0..classes as u32)
            .into_par_iter()
            .map(|class| {
                let members: Vec<&[f32]> = rows
                    .iter()
                    .zip(&labels)
                    .filter(|(_, label)| **label == Some(class))
                    .map(|(row, _)| *row)
                    .collect();
                let mut sum = vec![0.0; rows[0].len()];
                products::weighted_sum(&members, &vec![1.0; members.len()], &mut sum);
                sum
            })
            .collect();
        let views: Vec<&[f32]> = sums.iter().map(Vec::as_slice).collect();
        let mut with_sums = vec![0.0; rows.len() * classes];
        with_sums.par_chunks_exact_mut(classes).zip(rows).for_each(|(out, row)| {
            products::products(&views, &[row], out);
        });
        let squared_lengths = views.iter().map(|sum| products::squared_norm(sum)).collect();
        // Rounded to exactly 0 or 1.
        let row_squares = rows.iter().map(|row| products::squared_norm(row).round()).collect();
        let mut leave_one_out = LeaveOneOut {
            rows,
            labels,
            classes,
            products: with_sums,
            squared_lengths,
            row_squares,
            nearest: vec![],
        };
        leave_one_out.nearest =
            (0..rows.len()).into_par_iter().map(|row| leave_one_out.nearest_to(row)).collect();
        leave_one_out
    }

    /// The cosine of a row with a class, without the row itself.
    fn score(&self, row: usize, class: u32) -> f32 {
        let product = self.products[row * self.classes + class as usize];
        let left_out = if self.labels[row] == Some(class) { self.row_squares[row] } else { 0.0 };
        score(product, self.squared_lengths[class as usize], left_out)
    }

    /// The three classes with the highest scores, best first. Of equal scores, the first class comes first.
    fn nearest_to(&self, row: usize) -> [(u32, f32); 3] {
        let mut best = [(0, ABSENT); 3];
        for class in 0..self.classes as u32 {
            let score = self.score(row, class);
            let rank = best.iter().position(|(_, lower)| score > *lower);
            if let Some(rank) = rank {
                best[rank..].rotate_right(1);
                best[rank] = (class, score);
            }
        }
        best
    }

    /// The share of the rows with a label whose best class is their label.
    fn accuracy(&self) -> f64 {
        let known = self.labels.iter().filter(|label| label.is_some()).count();
        let right = (0..self.rows.len())
            .filter(|&row| self.labels[row].is_some() && best_class(&self.nearest[row]) == self.labels[row])
            .count();
        right as f64 / known.max(1) as f64
    }

    /// The accuracy if only this change is made. Its cost does not depend on the number of classes.
    fn accuracy_after(&self, change: &Change) -> f64 {
        let moved = change.row as usize;
        let from = self.labels[moved];
        // The products of all rows with the row that moves, and the squared lengths of both sums after the move.
        let mut with_moved = vec![0.0; self.rows.len()];
        products::products(self.rows, &[self.rows[moved]], &mut with_moved);
        let product_with = |class: u32| self.products[moved * self.classes + class as usize];
        let moved_square = with_moved[moved];
        // |sum - row|^2 and |sum + row|^2.
        let squared_without =
            |class: u32| self.squared_lengths[class as usize] - 2.0 * product_with(class) + moved_square;
        let squared_with =
            |class: u32| self.squared_lengths[class as usize] + 2.0 * product_with(class) + moved_square;
        // The numbers of rows whose best class is their label, and of rows with a label.
        let (mut right, mut known) = (0usize, 0usize);
        for (row, product) in with_moved.iter().enumerate() {
            let label = if row == moved { change.to } else { self.labels[row] };
            let Some(label) = label else { continue };
            // The best class is one of the two that change, with new scores, or the best of those that do not.
            let unchanged = |class: u32| Some(class) != from && Some(class) != change.to;
            let changed_score = |class: u32, sign: f32, squared_length: f32| {
                let with_sum = self.products[row * self.classes + class as usize] + sign * product;
                let left_out = if class == label { self.row_squares[row] } else { 0.0 };
                (class, score(with_sum, squared_length, left_out))
            };
            let mut candidates: Vec<(u32, f32)> =
                self.nearest[row].iter().copied().filter(|(class, _)| unchanged(*class)).collect();
            candidates.extend(from.map(|class| changed_score(class, -1.0, squared_without(class))));
            candidates.extend(change.to.map(|class| changed_score(class, 1.0, squared_with(class))));
            known += 1;
            right += usize::from(best_class(&candidates) == Some(label));
        }
        right as f64 / known.max(1) as f64
    }
}

/// The cosine of a row with a sum, from their product and the squared length of the sum. If the row is part of the sum,
/// `left_out` is the squared length of the row, and the row is left out; otherwise `left_out` is 0.
fn score(product: f32, squared_length: f32, left_out: f32) -> f32 {
    // For a row x and a sum c: (c - x).x = c.x - |x|^2, and |c - x|^2 = |c|^2 - 2 c.x + |x|^2.
    let (product, squared) = if left_out > 0.0 {
        (product - left_out, squared_length - 2.0 * product + left_out)
    } else {
        (product, squared_length)
    };
    if squared > MIN_SQUARED_LENGTH { product / squared.sqrt() } else { ABSENT }
}

/// The class with the highest score among (class, score), the first of equal ones; `None` if no class has items.
fn best_class(candidates: &[(u32, f32)]) -> Option<u32> {
    let best = candidates.iter().max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))?;
    (best.1 > ABSENT).then_some(best.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two clusters on a curve, with one item of each in the wrong class.
    fn data() -> Embeddings {
        let positions = [-1.0, -1.2, -0.9, 1.1, 1.0, 1.3, 0.9, -1.1];
        let values = positions.iter().flat_map(|x| [*x, 0.3 * x * x]).collect();
        let labels = ["a", "a", "a", "a", "b", "b", "b", "b"].map(String::from).to_vec();
        Embeddings::from_rows(values, 2, labels).unwrap()
    }

    /// The leave-one-out accuracy by its definition.
    fn plain(data: &Embeddings, labels: &[Option<u32>]) -> f64 {
        let values = centred(data);
        let rows: Vec<&[f32]> = values.chunks_exact(data.dim()).collect();
        let known: Vec<usize> = (0..rows.len()).filter(|&row| labels[row].is_some()).collect();
        let is_right = |row: &&usize| {
            let cosine = |class: u32| {
                let mut sum = vec![0.0f64; data.dim()];
                for &other in known.iter().filter(|other| *other != *row && labels[**other] == Some(class)) {
                    sum.iter_mut().zip(rows[other]).for_each(|(sum, value)| *sum += f64::from(*value));
                }
                let length = sum.iter().map(|value| value * value).sum::<f64>().sqrt();
                let product: f64 = sum.iter().zip(rows[**row]).map(|(a, b)| a * f64::from(*b)).sum();
                if length > 1e-3 { product / length } else { f64::NEG_INFINITY }
            };
            let classes = 0..data.classes().len() as u32;
            let best = classes.max_by(|a, b| cosine(*a).total_cmp(&cosine(*b)).then(b.cmp(a)));
            best == labels[**row]
        };
        known.iter().filter(is_right).count() as f64 / known.len() as f64
    }

    #[test]
    fn effects_equal_those_of_leaving_out_one_item_after_the_other() {
        let data = data();
        let changes =
            [(3, Some(1)), (7, Some(0)), (7, None), (0, Some(1))].map(|(row, to)| Change { row, to });
        let given: Vec<Option<u32>> = data.labels().iter().copied().map(Some).collect();
        let effects_of_changes = effects(&data, &changes);
        assert_eq!(accuracy(&data), effects_of_changes.before);
        assert!((effects_of_changes.before - plain(&data, &given)).abs() < 1e-9);
        for (change, alone) in changes.iter().zip(&effects_of_changes.alone) {
            let mut labels = given.clone();
            labels[change.row as usize] = change.to;
            assert!((effects_of_changes.before + alone - plain(&data, &labels)).abs() < 1e-9, "{change:?}");
        }
        assert!(
            effects_of_changes.alone[0] > 0.0 && effects_of_changes.alone[3] < 0.0,
            "{effects_of_changes:?}"
        );
        let repaired = effects(&data, &changes[..2]);
        assert!(repaired.after > repaired.before && repaired.after == 1.0, "{repaired:?}");
    }

    #[test]
    fn an_item_that_is_alone_in_its_class_is_never_recognised() {
        let data = Embeddings::from_rows(
            vec![1.0, 0.0, 0.9, 0.1, 0.0, 1.0],
            2,
            ["a", "a", "b"].map(String::from).to_vec(),
        )
        .unwrap();
        let effects_of_removal = effects(&data, &[Change { row: 2, to: None }]);
        assert!(
            effects_of_removal.before <= 2.0 / 3.0 && effects_of_removal.alone[0] > 0.0,
            "{effects_of_removal:?}"
        );
    }
}
