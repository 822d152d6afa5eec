//! What is in a file, and what is wrong with it.
//!
//! Looks at every value without refusing any: `inspect` is what one runs on a file that was refused. Of a
//! row it keeps a norm and a hash, so a million rows take tens of megabytes, not the gigabytes they are.

use std::path::PathBuf;

use rayon::prelude::*;
use serde::Serialize;

use super::features::{Features, Precision};
use super::fingerprint::{check_and_fingerprint, holds_unusable};
use super::warnings::warnings;
use super::{Embeddings, Fingerprint};

/// Rows one thread looks at before it hands in its findings.
const ROWS_AT_ONCE: usize = 1024;
/// Groups of duplicates shown, and rows shown of each.
const EXAMPLES: usize = 5;
/// The episode most papers evaluate on: 5 ways, 15 queries.
pub(super) const WAYS: usize = 5;
pub(super) const QUERIES: usize = 15;
/// A largest class this many times the smallest is worth a word.
pub(super) const IMBALANCE: usize = 20;

/// What is in a file.
#[derive(Debug, Clone, Serialize)]
pub struct Inspection {
    /// Where it was read from.
    pub path: Option<PathBuf>,
    /// How features are stored.
    pub precision: Precision,
    /// Number of rows.
    pub rows: usize,
    /// Numbers in a row.
    pub dim: usize,
    /// What made the features, where the file says.
    pub backbone: Option<String>,
    /// Whether rows have names.
    pub has_items: bool,
    /// Which data this is; none if a value is not finite.
    pub fingerprint: Option<Fingerprint>,
    /// Every class with its number of rows, in the order of the file.
    pub classes: Vec<ClassCount>,
    /// The class with the fewest rows.
    pub smallest_class: Option<ClassCount>,
    /// The class with the most rows.
    pub largest_class: Option<ClassCount>,
    /// The most shots for which every class has enough rows for episodes with 15 queries and noise.
    pub largest_shots: Option<usize>,
    /// Lengths of the rows; none if no row is finite.
    pub norms: Option<Norms>,
    /// Rows that are the same to the last bit.
    pub duplicates: Duplicates,
    /// Values that are NaN or infinite.
    pub non_finite: NonFinite,
    /// Dimensions in which all rows agree.
    pub constant_dimensions: usize,
    /// What deserves attention, in plain English.
    pub warnings: Vec<String>,
}

/// A class and how many rows it has.
#[derive(Debug, Clone, Serialize)]
pub struct ClassCount {
    /// The class.
    pub name: String,
    /// Its rows.
    pub count: usize,
}

/// Lengths of the finite rows.
#[derive(Debug, Clone, Serialize)]
pub struct Norms {
    /// The shortest.
    pub min: f32,
    /// The middle one.
    pub median: f32,
    /// The longest.
    pub max: f32,
    /// How many rows are all zero.
    pub zero: usize,
}

/// Rows that are the same to the last bit.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Duplicates {
    /// Rows that repeat an earlier one.
    pub rows: usize,
    /// Sets of equal rows.
    pub groups: usize,
    /// Sets whose rows have different labels: at least one of those labels is wrong.
    pub across_classes: usize,
    /// The first few rows of the first few sets.
    pub examples: Vec<Vec<usize>>,
}

/// Values that are NaN or infinite.
#[derive(Debug, Clone, Default, Serialize)]
pub struct NonFinite {
    /// How many.
    pub count: usize,
    /// The first in row order.
    pub first: Option<ValueLocation>,
}

/// One value and where it is.
#[derive(Debug, Clone, Serialize)]
pub struct ValueLocation {
    /// The row, from 0.
    pub row: usize,
    /// The column, from 0.
    pub column: usize,
    /// NaN, inf or -inf, as text: JSON has no number for them.
    pub value: String,
}

/// Looks at everything; refuses nothing.
pub fn inspect(embeddings: &Embeddings) -> Inspection {
    let features = embeddings.features();
    let findings = Findings::of(features);
    let classes = class_counts(embeddings);
    let fingerprint = match findings.non_finite.count {
        0 => embeddings.fingerprint.get().copied().or_else(|| check_and_fingerprint(embeddings).ok()),
        _ => None,
    };
    let smallest_class = classes.iter().min_by_key(|class| class.count).cloned();
    let mut inspection = Inspection {
        path: embeddings.path().map(Into::into),
        precision: features.precision(),
        rows: features.rows(),
        dim: features.dim(),
        backbone: embeddings.backbone().map(Into::into),
        has_items: embeddings.items().is_some(),
        fingerprint,
        largest_shots: smallest_class.as_ref().and_then(most_shots),
        smallest_class,
        // The first of equally large ones, as with the smallest.
        largest_class: classes.iter().rev().max_by_key(|class| class.count).cloned(),
        norms: findings.norms(),
        duplicates: duplicates(&findings.hashes, embeddings.labels()),
        constant_dimensions: findings.varies.iter().filter(|&&varies| !varies).count(),
        non_finite: findings.non_finite,
        classes,
        warnings: Vec::new(),
    };
    inspection.warnings = warnings(&inspection);
    inspection
}

fn class_counts(embeddings: &Embeddings) -> Vec<ClassCount> {
    let counted = |(class, name): (usize, &String)| ClassCount {
        name: name.clone(),
        count: embeddings.rows_of(class).len(),
    };
    embeddings.classes().iter().enumerate().map(counted).collect()
}

/// An episode takes shots, as many again for the noise, and the queries.
fn most_shots(smallest: &ClassCount) -> Option<usize> {
    smallest.count.checked_sub(QUERIES).map(|left| left / 2).filter(|&shots| shots > 0)
}

/// What a pass over the rows keeps.
struct Findings {
    /// The length of every row; NaN or infinite for a row that is not finite.
    norms: Vec<f32>,
    hashes: Vec<u128>,
    non_finite: NonFinite,
    /// Per dimension, whether a row differs from the first.
    varies: Vec<bool>,
}

impl Findings {
    fn of(features: &Features) -> Self {
        let mut first = vec![0.0; features.dim()];
        features.decode_row(0, &mut first);
        let starts: Vec<usize> = (0..features.rows()).step_by(ROWS_AT_ONCE).collect();
        let look = |&start: &usize| {
            let mut part = Findings::none(features.dim());
            let mut values = vec![0.0; features.dim()];
            for row in start..features.rows().min(start + ROWS_AT_ONCE) {
                part.look_at(features, row, &mut values, &first);
            }
            part
        };
        // Parts are joined in the order of the rows, however the threads finish.
        let parts: Vec<Findings> = starts.par_iter().map(look).collect();
        parts.into_iter().fold(Findings::none(features.dim()), Findings::join)
    }

    fn none(dim: usize) -> Self {
        let non_finite = NonFinite::default();
        Findings { norms: Vec::new(), hashes: Vec::new(), non_finite, varies: vec![false; dim] }
    }

    fn look_at(&mut self, features: &Features, row: usize, values: &mut [f32], first: &[f32]) {
        let stored = features.bytes_of(row..row + 1);
        features.decode_row(row, values);
        if holds_unusable(stored, features.precision()) {
            self.note_non_finite(row, values);
        }
        let squares: f64 = values.iter().map(|&value| f64::from(value) * f64::from(value)).sum();
        self.norms.push(squares.sqrt() as f32);
        let hash = blake3::hash(stored);
        self.hashes.push(u128::from_le_bytes(hash.as_bytes()[..16].try_into().expect("a hash has 32 bytes")));
        for ((varies, value), first) in self.varies.iter_mut().zip(&*values).zip(first) {
            *varies |= value.to_bits() != first.to_bits();
        }
    }

    fn note_non_finite(&mut self, row: usize, values: &[f32]) {
        let bad = || values.iter().enumerate().filter(|(_, value)| !value.is_finite());
        self.non_finite.count += bad().count();
        let place = |(column, value): (usize, &f32)| ValueLocation { row, column, value: value.to_string() };
        self.non_finite.first = self.non_finite.first.take().or_else(|| bad().next().map(place));
    }

    fn join(mut self, next: Findings) -> Self {
        self.norms.extend(next.norms);
        self.hashes.extend(next.hashes);
        self.non_finite.count += next.non_finite.count;
        self.non_finite.first = self.non_finite.first.or(next.non_finite.first);
        self.varies.iter_mut().zip(next.varies).for_each(|(varies, next)| *varies |= next);
        self
    }

    fn norms(&self) -> Option<Norms> {
        let mut finite: Vec<f32> = self.norms.iter().copied().filter(|norm| norm.is_finite()).collect();
        finite.sort_unstable_by(f32::total_cmp);
        let (&min, &max) = (finite.first()?, finite.last()?);
        let zero = finite.iter().take_while(|&&norm| norm == 0.0).count();
        Some(Norms { min, median: finite[finite.len() / 2], max, zero })
    }
}

/// Groups rows by hash; 128 bits do not meet by chance.
fn duplicates(hashes: &[u128], labels: &[u32]) -> Duplicates {
    let mut order: Vec<u32> = (0..hashes.len() as u32).collect();
    order.par_sort_unstable_by_key(|&row| (hashes[row as usize], row));
    let equal = |a: &u32, b: &u32| hashes[*a as usize] == hashes[*b as usize];
    let mut groups: Vec<&[u32]> = order.chunk_by(equal).filter(|group| group.len() > 1).collect();
    // In the order of the file, not of the hashes.
    groups.sort_unstable_by_key(|group| group[0]);
    let label = |row: u32| labels[row as usize];
    let mixed = |group: &&&[u32]| group.iter().any(|&row| label(row) != label(group[0]));
    let shown = |group: &&[u32]| group.iter().take(EXAMPLES).map(|&row| row as usize).collect();
    Duplicates {
        rows: groups.iter().map(|group| group.len() - 1).sum(),
        groups: groups.len(),
        across_classes: groups.iter().filter(mixed).count(),
        examples: groups.iter().take(EXAMPLES).map(shown).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Labels, Parts};
    use super::*;

    fn found(values: Vec<f32>, dim: usize, labels: &[&str]) -> Inspection {
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        let features = Features::from_f32(values, dim);
        let parts = Parts { features, labels: Labels::Named(labels), items: None, backbone: None };
        inspect(&Embeddings::from_parts(parts, None).unwrap())
    }

    #[test]
    fn a_sound_file_has_no_warnings() {
        let values: Vec<f32> = (0..250 * 2).map(|v| v as f32 + 1.0).collect();
        let labels: Vec<String> = (0..250).map(|row| format!("c{}", row % 5)).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let found = found(values, 2, &labels);
        assert_eq!(found.warnings, Vec::<String>::new());
        assert_eq!(found.largest_shots, Some(17));
        assert!(found.fingerprint.is_some());
    }

    #[test]
    fn duplicates_are_counted_and_those_across_classes_named() {
        let found = found(vec![1.0, 2.0, 3.0, 1.0, 2.0, 1.0, 0.0], 1, &["a", "a", "b", "b", "a", "a", "b"]);
        assert_eq!(
            (found.duplicates.rows, found.duplicates.groups, found.duplicates.across_classes),
            (3, 2, 1)
        );
        assert_eq!(found.duplicates.examples, [vec![0, 3, 5], vec![1, 4]]);
        assert_eq!(found.norms.unwrap().zero, 1);
    }

    #[test]
    fn values_that_are_not_finite_are_counted_and_the_first_placed() {
        let found = found(vec![1.0, f32::NAN, f32::NEG_INFINITY, 4.0], 2, &["a", "b"]);
        let first = found.non_finite.first.unwrap();
        assert_eq!((found.non_finite.count, first.row, first.column, first.value.as_str()), (2, 0, 1, "NaN"));
        assert!(found.fingerprint.is_none() && found.norms.is_none());
        assert!(found.warnings[0].starts_with("2 values are not finite, the first in row 0, column 1"));
    }

    #[test]
    fn what_makes_episodes_impossible_is_said() {
        let found = found(vec![1.0, 2.0, 3.0], 1, &["a", "a", "b"]);
        let text = found.warnings.join("\n");
        assert!(text.contains("1 class has only one row, the first is 'b'"), "{text}");
        assert!(text.contains("2 classes are too few for 5-way episodes"), "{text}");
        assert!(text.contains("1 shot needs 17"), "{text}");
    }

    #[test]
    fn constant_dimensions_are_counted() {
        assert_eq!(found(vec![1.0, 7.0, 2.0, 7.0], 2, &["a", "b"]).constant_dimensions, 1);
    }
}
