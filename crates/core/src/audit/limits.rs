//! Cases in which labels cannot be judged: classes of one item, classes with the same items, and rows that do not
//! distinguish the classes.
//!
//! An audit merges classes with the same items before the scoring ([`Merged::new`]) and divides them afterwards
//! ([`Merged::divide`]), then [`apply`] makes probabilities less certain where nothing supports them. [`warnings`] and
//! [`undistinguished`] tell the user.

use std::collections::{BTreeSet, HashMap};

use super::effects;
use super::{Posterior, ScoredItem};
use crate::embeddings::Embeddings;
use crate::visible::visible;

/// The smallest probability of a wrong label for the only item of a class: no other item supports the label.
const MIN_P_WRONG_OF_SINGLE: f32 = 0.05;
/// The largest number of classes that a warning names.
const MAX_NAMED: usize = 5;

/// A collection in which classes with the same items are one class: their labels cannot be told apart, and each would
/// make the other look wrong.
pub(super) struct Merged {
    /// The rows of the original collection, in the same order, with the merged classes as labels.
    pub data: Embeddings,
    /// For each class of `data`, the classes of the original collection that it stands for.
    originals: Vec<Vec<u32>>,
}

impl Merged {
    /// `None` if no two classes have the same items, or if fewer than two classes would be left.
    pub fn new(data: &Embeddings) -> Option<Self> {
        // The features of a class, without repetitions.
        let content = |class: usize| -> BTreeSet<&[u8]> {
            data.rows_of(class)
                .iter()
                .map(|&row| data.features().bytes_of(row as usize..row as usize + 1))
                .collect()
        };
        // For each class, the first one with the same content. A class without items stands for itself.
        let classes = data.classes().len();
        let mut firsts = HashMap::new();
        let mut first_of: Vec<usize> = (0..classes).collect();
        for class in data.used_classes() {
            first_of[class] = *firsts.entry(content(class)).or_insert(class);
        }
        if firsts.len() == data.used_classes().count() || firsts.len() < 2 {
            return None;
        }
        let name = |label: &u32| data.classes()[first_of[*label as usize]].clone();
        let labels = data.labels().iter().map(name).collect();
        let merged = Embeddings::from_rows(data.all_rows().into_owned(), data.dim(), labels).ok()?;
        let of_name = |name: &String| {
            let is_same = |class: &u32| data.classes()[first_of[*class as usize]] == *name;
            (0..classes as u32).filter(is_same).collect()
        };
        let originals = merged.classes().iter().map(of_name).collect();
        Some(Merged { data: merged, originals })
    }

    /// Divides the probability of a merged class among the original classes that it stands for. If the given class is
    /// one of them, it gets half of the probability, however many other names the class has: their number says nothing
    /// about which name is right. The other classes get equal parts.
    pub fn divide(&self, data: &Embeddings, scored: &mut [ScoredItem]) {
        for (item, &given) in scored.iter_mut().zip(data.labels()) {
            let shares = item.posterior.shares().iter().flat_map(|&(class, share)| {
                let originals = &self.originals[class as usize];
                let has_given = originals.len() > 1 && originals.contains(&given);
                let other_classes = if has_given { originals.len() - 1 } else { originals.len() };
                let of_others = if has_given { share / 2.0 } else { share };
                originals.iter().map(move |&original| {
                    let is_given = has_given && original == given;
                    let part = if is_given { share / 2.0 } else { of_others / other_classes as f32 };
                    (original, part)
                })
            });
            let none = item.posterior.p_none();
            item.posterior = Posterior::new(given, shares.collect(), none, data.classes().len());
        }
    }
}

/// Adjusts the probabilities of items that cannot be compared with others.
pub(super) fn apply(data: &Embeddings, scored: &mut [ScoredItem]) {
    let all_single = (0..data.classes().len()).all(|class| data.rows_of(class).len() <= 1);
    for (row, item) in scored.iter_mut().enumerate() {
        let is_too_certain = item.posterior.p_wrong() < MIN_P_WRONG_OF_SINGLE;
        // If every class has a single item, no label can be compared with anything: all get the same probability.
        if all_single || is_single(data, data.labels()[row] as usize) && is_too_certain {
            item.posterior.set_wrong(f64::from(MIN_P_WRONG_OF_SINGLE));
        }
    }
    if all_identical(data) {
        // No item differs from another, so no label is more probable than another.
        let sum: f64 = scored.iter().map(|item| f64::from(item.posterior.p_wrong())).sum();
        let mean = sum / scored.len() as f64;
        scored.iter_mut().for_each(|item| item.posterior.set_wrong(mean));
    }
}

/// Share of expected wrong labels above which it is checked whether the rows distinguish the classes at all.
const DOUBTFUL_SHARE: f64 = 0.25;
/// The smallest number of items for this check.
const MIN_DOUBTED_ITEMS: usize = 20;

/// A warning if many labels are expected to be wrong and the nearest prototype is no better than guessing.
/// `expected_wrong` is the expected number of wrong labels.
///
/// The accuracy is that of left-out items ([`effects::accuracy`]). Guessing means to predict the largest class for
/// every item; up to three standard errors above its accuracy count as no better.
pub(super) fn undistinguished(data: &Embeddings, expected_wrong: f64) -> Option<String> {
    let items = data.len() as f64;
    if data.len() < MIN_DOUBTED_ITEMS || expected_wrong < DOUBTFUL_SHARE * items {
        return None;
    }
    let largest = (0..data.classes().len()).map(|class| data.rows_of(class).len()).max().unwrap_or(0);
    let guessed = largest as f64 / items;
    let standard_error = (guessed * (1.0 - guessed) / items).sqrt();
    let accuracy = effects::accuracy(data);
    (accuracy <= guessed + 3.0 * standard_error).then(|| {
        format!(
            "the embeddings hardly distinguish these classes, so that the audit means little: {:.0} % of the items are most \
             similar to their own class, {:.0} % by guessing",
            100.0 * accuracy,
            100.0 * guessed
        )
    })
}

/// Warnings about classes of one item.
pub(super) fn warnings(data: &Embeddings) -> Vec<String> {
    let classes = 0..data.classes().len();
    let single: Vec<usize> = classes.filter(|class| is_single(data, *class)).collect();
    let names: Vec<String> = single
        .iter()
        .take(MAX_NAMED)
        .map(|class| format!("'{}'", visible(&data.classes()[*class])))
        .collect();
    let more = match single.len() - names.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    match single.len() {
        0 => Vec::new(),
        count if count == data.len() => {
            vec![
                "no label can be checked: every class has a single item; add at least one more per class"
                    .into(),
            ]
        }
        1 => vec![format!("class {} has a single item, whose label cannot be checked", names[0])],
        count => vec![format!(
            "{count} classes have a single item, whose label cannot be checked: {}{more}",
            names.join(", ")
        )],
    }
}

fn is_single(data: &Embeddings, class: usize) -> bool {
    data.rows_of(class).len() == 1
}

fn all_identical(data: &Embeddings) -> bool {
    let bytes = |row: usize| data.features().bytes_of(row..row + 1);
    data.len() > 1 && (1..data.len()).all(|row| bytes(row) == bytes(0))
}

#[cfg(test)]
mod tests;
