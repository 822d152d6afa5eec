//! Inspection of embeddings: [`inspect`] examines every value of a file and counts what is unusual, without refusing
//! it.
//!
//! It is used on files that were refused, so it accepts values that are not finite. Per row it keeps only a norm (4
//! bytes) and a hash (16 bytes), so a million rows take tens of megabytes instead of gigabytes.

use rayon::prelude::*;

use super::Embeddings;
use super::features::Features;
use super::fingerprint::{check_and_fingerprint, contains_unusable};
use super::inspection::{ClassCount, Duplicates, Inspection, NonFinite, Norms, QUERIES, ValueLocation};
use super::warnings::warnings;
use crate::episode::AugmentedCopies;

/// The number of rows that a thread examines before it takes the next chunk.
const CHUNK_ROWS: usize = 1024;
/// The maximum number of groups of duplicates in [`Duplicates::examples`], and of rows per group.
const MAX_EXAMPLES: usize = 5;

/// Inspects embeddings that were opened with [`Embeddings::read`] or [`Embeddings::open`]: sizes, norms, duplicates,
/// values that are not finite, and warnings about them. [`Inspection`] has an example.
pub fn inspect(embeddings: &Embeddings) -> Inspection {
    let features = embeddings.features();
    let findings = Findings::new(features);
    let classes = class_counts(embeddings);
    // Only finite data has a fingerprint. Data with finite values that are too large has none either: computing it
    // fails.
    let fingerprint = match findings.non_finite.count {
        0 => embeddings.fingerprint.get().copied().or_else(|| check_and_fingerprint(embeddings).ok()),
        _ => None,
    };
    let smallest_class = classes.iter().min_by_key(|class| class.count).cloned();
    // Episodes count the copies of an image once.
    let copies = AugmentedCopies::of(embeddings);
    let fewest_images = copies.and_then(|copies| (0..classes.len()).map(|class| copies.count(class)).min());
    let fewest_items = fewest_images.or(smallest_class.as_ref().map(|class| class.count));
    let mut inspection = Inspection {
        path: embeddings.path().map(Into::into),
        precision: features.precision(),
        rows: features.rows(),
        dim: features.dim(),
        backbone: embeddings.backbone().map(Into::into),
        has_items: embeddings.items().is_some(),
        fingerprint,
        largest_shots: fewest_items.and_then(max_shots),
        fewest_images,
        smallest_class,
        // `max_by_key` returns the last of several maxima, so the classes are reversed to get the first.
        largest_class: classes.iter().rev().max_by_key(|class| class.count).cloned(),
        norms: findings.norms(),
        duplicates: find_duplicates(&findings.hashes, embeddings.labels()),
        constant_dimensions: findings.varies.iter().filter(|&&varies| !varies).count(),
        non_finite: findings.non_finite,
        classes,
        warnings: Vec::new(),
    };
    inspection.warnings = warnings(&inspection);
    inspection
}

/// Every class with its number of rows, in the order of the classes.
fn class_counts(embeddings: &Embeddings) -> Vec<ClassCount> {
    let class_count = |(class, name): (usize, &String)| ClassCount {
        name: name.clone(),
        count: embeddings.rows_of(class).len(),
    };
    embeddings.classes().iter().enumerate().map(class_count).collect()
}

/// The maximum number of shots (labelled items per class) of an episode (a small classification problem drawn from the
/// data) if the smallest class has this many items: a class needs the shots, the queries, and the same number of items
/// as shots for the pool from which label noise takes wrong items of other classes. `None` if it has too few.
fn max_shots(smallest: usize) -> Option<usize> {
    smallest.checked_sub(QUERIES).map(|left| left / 2).filter(|&shots| shots > 0)
}

/// What is kept of each row, and counts over all rows.
struct Findings {
    /// The Euclidean norm of every row; NaN or infinite for a row that is not finite.
    norms: Vec<f32>,
    /// A hash of the stored bytes of every row.
    hashes: Vec<u128>,
    non_finite: NonFinite,
    /// For every dimension, whether a row differs from the first row.
    varies: Vec<bool>,
}

impl Findings {
    /// Examines all rows in parallel.
    fn new(features: &Features) -> Self {
        let mut first = vec![0.0; features.dim()];
        features.decode_row(0, &mut first);
        let starts: Vec<usize> = (0..features.rows()).step_by(CHUNK_ROWS).collect();
        let examine = |&start: &usize| {
            let mut part = Findings::empty(features.dim());
            let mut values = vec![0.0; features.dim()];
            for row in start..features.rows().min(start + CHUNK_ROWS) {
                part.add_row(features, row, &mut values, &first);
            }
            part
        };
        // Parts are joined in the order of the rows, so threads do not change the result.
        let parts: Vec<Findings> = starts.par_iter().map(examine).collect();
        parts.into_iter().fold(Findings::empty(features.dim()), Findings::join)
    }

    /// Findings about no rows.
    fn empty(dim: usize) -> Self {
        let non_finite = NonFinite::default();
        Findings { norms: Vec::new(), hashes: Vec::new(), non_finite, varies: vec![false; dim] }
    }

    /// Adds one row; `values` is a buffer of `dim` numbers and `first` the first row.
    fn add_row(&mut self, features: &Features, row: usize, values: &mut [f32], first: &[f32]) {
        let stored = features.bytes_of(row..row + 1);
        features.decode_row(row, values);
        if contains_unusable(stored, features.precision()) {
            self.count_non_finite(row, values);
        }
        // Summed in `f64`, because the squares of large `f32` values overflow an `f32`.
        let squares: f64 = values.iter().map(|&value| f64::from(value) * f64::from(value)).sum();
        self.norms.push(squares.sqrt() as f32);
        let hash = blake3::hash(stored);
        self.hashes.push(u128::from_le_bytes(hash.as_bytes()[..16].try_into().expect("a hash has 32 bytes")));
        // Bits are compared, because NaN does not equal itself.
        for ((varies, value), first) in self.varies.iter_mut().zip(&*values).zip(first) {
            *varies |= value.to_bits() != first.to_bits();
        }
    }

    /// Counts the values of a row that are not finite, and keeps the position of the first. `contains_unusable` also
    /// reports finite values that are too large; these are not counted.
    fn count_non_finite(&mut self, row: usize, values: &[f32]) {
        let non_finite = || values.iter().enumerate().filter(|(_, value)| !value.is_finite());
        self.non_finite.count += non_finite().count();
        let location =
            |(column, value): (usize, &f32)| ValueLocation { row, column, value: value.to_string() };
        self.non_finite.first = self.non_finite.first.take().or_else(|| non_finite().next().map(location));
    }

    /// Appends the findings about the rows that follow.
    fn join(mut self, next: Findings) -> Self {
        self.norms.extend(next.norms);
        self.hashes.extend(next.hashes);
        self.non_finite.count += next.non_finite.count;
        self.non_finite.first = self.non_finite.first.or(next.non_finite.first);
        self.varies.iter_mut().zip(next.varies).for_each(|(varies, next)| *varies |= next);
        self
    }

    /// Minimum, median and maximum of the norms of finite rows.
    fn norms(&self) -> Option<Norms> {
        let mut finite: Vec<f32> = self.norms.iter().copied().filter(|norm| norm.is_finite()).collect();
        finite.sort_unstable_by(f32::total_cmp);
        let (&min, &max) = (finite.first()?, finite.last()?);
        // The norms are ascending, so those that are 0 come first.
        let zero = finite.iter().take_while(|&&norm| norm == 0.0).count();
        Some(Norms { min, median: finite[finite.len() / 2], max, zero })
    }
}

/// Groups equal rows by their hashes; two different rows practically never have the same 128 bits.
fn find_duplicates(hashes: &[u128], labels: &[u32]) -> Duplicates {
    // The rows sorted by hash, then by row number: equal rows are next to each other.
    let mut order: Vec<u32> = (0..hashes.len() as u32).collect();
    order.par_sort_unstable_by_key(|&row| (hashes[row as usize], row));
    let equal = |a: &u32, b: &u32| hashes[*a as usize] == hashes[*b as usize];
    let mut groups: Vec<&[u32]> = order.chunk_by(equal).filter(|group| group.len() > 1).collect();
    // Groups are sorted by their first rows, so that their order does not depend on the hashes.
    groups.sort_unstable_by_key(|group| group[0]);
    let label = |row: u32| labels[row as usize];
    let crosses_classes = |group: &&&[u32]| group.iter().any(|&row| label(row) != label(group[0]));
    let example = |group: &&[u32]| group.iter().take(MAX_EXAMPLES).map(|&row| row as usize).collect();
    Duplicates {
        rows: groups.iter().map(|group| group.len() - 1).sum(),
        groups: groups.len(),
        across_classes: groups.iter().filter(crosses_classes).count(),
        examples: groups.iter().take(MAX_EXAMPLES).map(example).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Items, Labels, Parts};
    use super::*;

    fn inspect_rows(values: Vec<f32>, dim: usize, labels: &[&str]) -> Inspection {
        let labels = labels.iter().map(|&label| label.to_owned()).collect();
        let features = Features::from_f32(values, dim);
        let parts = Parts { features, labels: Labels::Named(labels), items: None, backbone: None };
        inspect(&Embeddings::from_parts(parts, None).unwrap())
    }

    #[test]
    fn a_valid_file_has_no_warnings() {
        let values: Vec<f32> = (0..250 * 2).map(|v| v as f32 + 1.0).collect();
        let labels: Vec<String> = (0..250).map(|row| format!("c{}", row % 5)).collect();
        let labels: Vec<&str> = labels.iter().map(String::as_str).collect();
        let inspection = inspect_rows(values, 2, &labels);
        assert_eq!(inspection.warnings, Vec::<String>::new());
        // Every class has 50 rows: 15 queries leave 35, half for the shots and half for the noise pool.
        assert_eq!(inspection.largest_shots, Some(17));
        assert!(inspection.fingerprint.is_some());
    }

    #[test]
    fn duplicates_are_counted_within_and_across_classes() {
        let inspection =
            inspect_rows(vec![1.0, 2.0, 3.0, 1.0, 2.0, 1.0, 0.0], 1, &["a", "a", "b", "b", "a", "a", "b"]);
        assert_eq!(
            (inspection.duplicates.rows, inspection.duplicates.groups, inspection.duplicates.across_classes),
            (3, 2, 1)
        );
        assert_eq!(inspection.duplicates.examples, [vec![0, 3, 5], vec![1, 4]]);
        assert_eq!(inspection.norms.unwrap().zero, 1);
    }

    #[test]
    fn values_that_are_not_finite_are_counted_and_the_first_is_located() {
        let inspection = inspect_rows(vec![1.0, f32::NAN, f32::NEG_INFINITY, 4.0], 2, &["a", "b"]);
        let first = inspection.non_finite.first.unwrap();
        assert_eq!(
            (inspection.non_finite.count, first.row, first.column, first.value.as_str()),
            (2, 0, 1, "NaN")
        );
        assert!(inspection.fingerprint.is_none() && inspection.norms.is_none());
        assert!(inspection.warnings[0].starts_with("2 values are not finite, the first in row 0, column 1"));
    }

    #[test]
    fn warnings_say_what_makes_episodes_impossible() {
        let inspection = inspect_rows(vec![1.0, 2.0, 3.0], 1, &["a", "a", "b"]);
        let text = inspection.warnings.join("\n");
        assert!(text.contains("1 class has only one row, the first is 'b'"), "{text}");
        assert!(text.contains("2 classes are too few for 5-way episodes"), "{text}");
        assert!(text.contains("1 shot needs 17"), "{text}");
    }

    #[test]
    fn copies_of_an_image_count_once() {
        let names: Vec<String> = (0..60).map(|row| format!("{}.jpg#{}", row / 3, row % 3 + 1)).collect();
        let rows = Embeddings::from_rows((0..60).map(|row| row as f32).collect(), 1, vec!["a".into(); 60]);
        let inspection = inspect(&rows.unwrap().with_items(Items::from_names(names)).unwrap());
        assert_eq!((inspection.fewest_images, inspection.largest_shots), (Some(20), Some(2)));
        let text = inspection.warnings.join("\n");
        assert!(
            text.contains("is 2: a class has 20 images, of which the rows are augmented copies"),
            "{text}"
        );
    }

    #[test]
    fn constant_dimensions_are_counted() {
        assert_eq!(inspect_rows(vec![1.0, 7.0, 2.0, 7.0], 2, &["a", "b"]).constant_dimensions, 1);
    }
}
