//! Overlap of training and validation data: [`overlaps`] finds classes, items and rows that are in both.
//!
//! If there are any, the validation score does not say how well the head works on new data, so the user is warned. A
//! class or item counts as shared if its name is in both, a row of features if its bytes are equal.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hasher};

use rayon::prelude::*;

use crate::embeddings::Embeddings;
use crate::episode::{EpisodeData, image_name};

/// One sentence for each kind of overlap: class names, item names and equal rows. Empty if there is no overlap.
///
/// ```
/// use trueshot::Embeddings;
/// use trueshot::episode::EpisodeData;
/// use trueshot::training::heads::overlaps;
///
/// let data = Embeddings::from_rows(vec![1.0, 2.0], 1, vec!["cat".into(), "dog".into()])?;
/// let data = [EpisodeData { embeddings: &data, outliers: None }];
/// let warnings = overlaps(&data, &data);
/// assert_eq!(warnings[0], "2 classes are in the training and in the validation data, for instance 'cat'");
/// # Ok::<(), trueshot::Error>(())
/// ```
pub fn overlaps(training: &[EpisodeData<'_>], validation: &[EpisodeData<'_>]) -> Vec<String> {
    type Names = fn(&Embeddings) -> HashSet<String>;
    let kinds: [(&str, Names); 2] = [("classes", class_names), ("items", item_names)];
    let mut warnings = Vec::new();
    for (what, names) in kinds {
        let all = |data_sets: &[EpisodeData<'_>]| -> HashSet<String> {
            data_sets.iter().flat_map(|data| names(data.embeddings)).collect()
        };
        let (train_names, validation_names) = (all(training), all(validation));
        let mut shared: Vec<&String> = train_names.intersection(&validation_names).collect();
        shared.sort();
        if let Some(first) = shared.first() {
            warnings.push(format!(
                "{} {what} are in the training and in the validation data, for instance '{first}'",
                shared.len()
            ));
        }
    }
    let rows = |data_sets: &[EpisodeData<'_>]| -> HashSet<u64> {
        data_sets.iter().flat_map(|data| row_hashes(data.embeddings)).collect()
    };
    let shared_rows = rows(training).intersection(&rows(validation)).count();
    if shared_rows > 0 {
        warnings.push(format!(
            "{shared_rows} rows of features are the same in the training and in the validation data"
        ));
    }
    warnings
}

/// The class names that are not numbers. Numbered classes of two files need not be the same classes.
fn class_names(embeddings: &Embeddings) -> HashSet<String> {
    let is_name = |name: &&String| name.parse::<f64>().is_err();
    embeddings.classes().iter().filter(is_name).cloned().collect()
}

/// The item names, without the `#N` of augmented copies.
fn item_names(embeddings: &Embeddings) -> HashSet<String> {
    let names = (0..embeddings.len()).filter_map(|row| embeddings.item(row));
    names.map(|name| image_name(name).to_string()).collect()
}

/// Hashes of precision and bytes of all rows except those of zeros, which are no evidence of an overlap.
fn row_hashes(embeddings: &Embeddings) -> Vec<u64> {
    let features = embeddings.features();
    let hash = |row: usize| {
        let bytes = features.bytes_of(row..row + 1);
        let mut hasher = DefaultHasher::new();
        hasher.write(features.precision().name().as_bytes());
        hasher.write(bytes);
        bytes.iter().any(|&byte| byte != 0).then(|| hasher.finish())
    };
    (0..embeddings.len()).into_par_iter().filter_map(hash).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::embeddings::Items;

    /// Six rows of two classes, whose names are `prefix` and a number; values and item names are numbered from `first`.
    fn embeddings(first: usize, prefix: &str) -> Embeddings {
        let labels = (0..6).map(|row| format!("{prefix}{}", row / 3)).collect();
        let items = Items::from_names((first..first + 6).map(|i| format!("{i}.jpg#{}", i % 2)));
        let values = (first..first + 6).map(|i| i as f32 + 1.0).collect();
        Embeddings::from_rows(values, 1, labels).unwrap().with_items(items).unwrap()
    }

    fn overlaps_of(training: &Embeddings, validation: &Embeddings) -> Vec<String> {
        let data = |embeddings| [EpisodeData { embeddings, outliers: None }];
        overlaps(&data(training), &data(validation))
    }

    #[test]
    fn shared_classes_items_and_rows_are_reported() {
        assert_eq!(overlaps_of(&embeddings(0, "a"), &embeddings(100, "b")), Vec::<String>::new());
        assert_eq!(
            overlaps_of(&embeddings(0, ""), &embeddings(100, "")),
            Vec::<String>::new(),
            "numbers are not names"
        );
        let warnings = overlaps_of(&embeddings(0, "a"), &embeddings(4, "a"));
        assert_eq!(warnings.len(), 3, "{warnings:?}");
        assert!(warnings[0].starts_with("2 classes") && warnings[1].starts_with("2 items"), "{warnings:?}");
        assert!(warnings[2].starts_with("2 rows"), "{warnings:?}");
    }
}
