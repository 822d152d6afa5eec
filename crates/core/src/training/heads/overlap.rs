//! What training and validation data have in common: a validation on what was trained on says nothing.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hasher};

use rayon::prelude::*;

use crate::embeddings::Embeddings;
use crate::episode::EpisodeData;
use crate::episode::image_name;

/// A sentence for each kind of overlap there is.
pub fn overlaps(training: &[EpisodeData<'_>], validation: &[EpisodeData<'_>]) -> Vec<String> {
    type Names = fn(&Embeddings) -> HashSet<String>;
    let kinds: [(&str, Names); 2] = [("classes", class_names), ("items", item_names)];
    let mut found = Vec::new();
    for (what, names) in kinds {
        let all = |banks: &[EpisodeData<'_>]| -> HashSet<String> {
            banks.iter().flat_map(|bank| names(bank.embeddings)).collect()
        };
        let (train, judge) = (all(training), all(validation));
        let mut shared: Vec<&String> = train.intersection(&judge).collect();
        shared.sort();
        if let Some(first) = shared.first() {
            found.push(format!(
                "{} {what} are in the training and in the validation data, for instance '{first}'",
                shared.len()
            ));
        }
    }
    let rows = |banks: &[EpisodeData<'_>]| -> HashSet<u64> {
        banks.iter().flat_map(|bank| row_hashes(bank.embeddings)).collect()
    };
    let same = rows(training).intersection(&rows(validation)).count();
    if same > 0 {
        found
            .push(format!("{same} rows of features are the same in the training and in the validation data"));
    }
    found
}

fn class_names(embeddings: &Embeddings) -> HashSet<String> {
    // Numbers are places in a list, and say nothing about what they stand for.
    let is_name = |name: &&String| name.parse::<f64>().is_err();
    embeddings.classes().iter().filter(is_name).cloned().collect()
}

fn item_names(embeddings: &Embeddings) -> HashSet<String> {
    let names = (0..embeddings.len()).filter_map(|row| embeddings.item(row));
    names.map(|name| image_name(name).to_string()).collect()
}

/// Rows of different precision are never the same; those of zeros say nothing.
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

    fn bank(first: usize, prefix: &str) -> Embeddings {
        let labels = (0..6).map(|row| format!("{prefix}{}", row / 3)).collect();
        let items = Items::from_names((first..first + 6).map(|i| format!("{i}.jpg#{}", i % 2)));
        let values = (first..first + 6).map(|i| i as f32 + 1.0).collect();
        Embeddings::from_rows(values, 1, labels).unwrap().with_items(items).unwrap()
    }

    fn between(train: &Embeddings, judge: &Embeddings) -> Vec<String> {
        let bank = |embeddings| [EpisodeData { embeddings, outliers: None }];
        overlaps(&bank(train), &bank(judge))
    }

    #[test]
    fn shared_classes_items_and_rows_are_told_of() {
        assert_eq!(between(&bank(0, "a"), &bank(100, "b")), Vec::<String>::new());
        assert_eq!(between(&bank(0, ""), &bank(100, "")), Vec::<String>::new(), "numbers are no names");
        let found = between(&bank(0, "a"), &bank(4, "a"));
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].starts_with("2 classes") && found[1].starts_with("2 items"), "{found:?}");
        assert!(found[2].starts_with("2 rows"), "{found:?}");
    }
}
