//! Duplicates of an audit ([`find`]): items with equal features, and pairs that are nearly equal.
//!
//! Rows with equal features form a *group*. Candidates for nearly equal items are the nearest neighbours that the audit
//! has found anyway, so neither time nor memory is quadratic. If the images behind two rows are known, their thumbnails
//! decide: photographs of one class are often as similar by their embeddings as a copy that was resized, cropped or
//! compressed. Otherwise the cosine decides, which finds fewer copies.
//!
//! The thresholds were chosen on photographs and drawings with added copies; `docs/results/duplicates.md` shows how
//! many copies they find among other photographs.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use rayon::prelude::*;
use serde::Serialize;

use super::evidence::VOTERS;
use super::image_measures::ImageMeasures;
use super::{Poll, item_name, thumbnails};
use crate::embeddings::Embeddings;
use crate::error::Result;
use crate::visible::visible;

/// Two items with equal or nearly equal features.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Duplicate {
    /// Whether they are equal or nearly equal.
    pub kind: DuplicateKind,
    /// The name of the first item.
    pub item: String,
    /// The label of the first item.
    pub given: String,
    /// The name of the second item.
    pub other: String,
    /// The label of the second item.
    pub other_given: String,
    /// Whether the labels differ, so that at least one of them is wrong.
    pub label_conflict: bool,
    /// The rows of the first and the second item.
    #[serde(skip)]
    pub rows: [u32; 2],
}

/// How similar two duplicates are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DuplicateKind {
    /// All features are equal.
    Exact,
    /// The same image in another size or compression, or slightly cropped; without images, nearly equal features.
    Near,
}

/// The largest distance `1 - cosine` of near duplicates that are recognised by their embeddings alone.
const NEAR_DISTANCE: f32 = 0.1;
/// The largest distance of near duplicates that are recognised by their embeddings alone, as a share of the usual
/// distance of similar items ([`Distances`]).
const NEAR_SHARE: f32 = 0.25;
/// Images whose embeddings are at most this far apart, as a share of the usual distance of similar items, need less
/// similar details to be copies.
const SIMILAR_SHARE: f32 = 0.8;
/// Nearest neighbours of an item that are compared with it: as many as an audit always finds.
pub(super) const COMPARED_NEIGHBOURS: usize = VOTERS[1];
/// Pairs that are compared between two checks for cancellation.
const BLOCK: usize = 64;

/// A near pair is reported if it is among this many most similar ones of either item, counted within the class and
/// across classes: the frames of a video would otherwise give many pairs each.
const MAX_PAIRS_PER_ITEM: usize = 4;

/// The rows of two duplicates.
type Pair = (u32, u32, DuplicateKind);
/// Two rows with the cosine of their features.
type Candidate = (u32, u32, f32);

/// Duplicates, and warnings about whole classes.
pub(super) struct DuplicateFindings {
    /// Pairs of items with different labels first.
    pub duplicates: Vec<Duplicate>,
    /// Classes with the same items.
    pub warnings: Vec<String>,
}

/// What is known about the rows besides their features and labels.
pub(super) struct DuplicateInput<'a> {
    /// For each row up to [`COMPARED_NEIGHBOURS`] nearest neighbours with their cosines, most similar first.
    pub neighbours: &'a [Vec<(u32, f32)>],
    /// For each row the measures of its image; empty if the rows were not made from images.
    pub measures: &'a [Option<ImageMeasures>],
}

/// Finds duplicates. A group of n equal items is reported as n - 1 pairs ([`equal_pairs`]); a pair of nearly equal
/// items is reported once for their groups, by the first item of each, whose labels decide whether it is a conflict.
pub(super) fn find(
    data: &Embeddings,
    input: &DuplicateInput<'_>,
    poll: &Poll<'_>,
) -> Result<DuplicateFindings> {
    let groups = equal_rows(data, poll)?;
    let mut pairs: Vec<Pair> = groups.iter().flat_map(|group| equal_pairs(data, group)).collect();
    pairs.extend(near_pairs(data, &groups, input, poll)?);
    let class = |row: u32| data.labels()[row as usize];
    // Order the items of a pair, and then the pairs, by names, so that the order of the rows does not matter. Pairs of
    // different classes come first (`false` before `true`).
    let key = |row: u32| (data.item(row as usize), row);
    for (first, second, _) in &mut pairs {
        if key(*first) > key(*second) {
            std::mem::swap(first, second);
        }
    }
    pairs.sort_by_key(|&(first, second, _)| (class(first) == class(second), key(first), key(second)));
    let name = |row: u32| data.classes()[class(row) as usize].clone();
    let to_duplicate = |(first, second, kind): Pair| Duplicate {
        kind,
        item: item_name(data, first as usize),
        given: name(first),
        other: item_name(data, second as usize),
        other_given: name(second),
        label_conflict: class(first) != class(second),
        rows: [first, second],
    };
    let duplicates = pairs.into_iter().map(to_duplicate).collect();
    Ok(DuplicateFindings { duplicates, warnings: warnings(data, &groups) })
}

/// Groups of rows with equal features, each ordered by the names of its items. Every row is in one group, and most
/// groups have one row.
fn equal_rows(data: &Embeddings, poll: &Poll<'_>) -> Result<Vec<Vec<u32>>> {
    let mut group_of = HashMap::new();
    let mut groups: Vec<Vec<u32>> = Vec::new();
    for row in 0..data.len() {
        if row % 1024 == 0 {
            poll.check()?;
        }
        let group = *group_of.entry(data.features().bytes_of(row..row + 1)).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[group].push(row as u32);
    }
    groups.iter_mut().for_each(|group| group.sort_by_key(|&row| (data.item(row as usize), row)));
    Ok(groups)
}

/// Pairs each row of a group with the first row of its class in the group, and the first rows of the classes with the
/// first row of the group.
fn equal_pairs(data: &Embeddings, group: &[u32]) -> Vec<Pair> {
    // By class, its first row in the group.
    let mut firsts: HashMap<u32, u32> = HashMap::new();
    let mut pairs = Vec::new();
    for &row in group {
        let known = firsts.get(&data.labels()[row as usize]).copied();
        firsts.entry(data.labels()[row as usize]).or_insert(row);
        if row != group[0] {
            pairs.push((known.unwrap_or(group[0]), row, DuplicateKind::Exact));
        }
    }
    pairs
}

/// Warnings about classes that cannot be distinguished because they contain the same items.
fn warnings(data: &Embeddings, groups: &[Vec<u32>]) -> Vec<String> {
    if groups.len() == 1 && data.len() > 1 {
        return vec!["all items are identical: their labels cannot be checked".into()];
    }
    let mut contents: Vec<Vec<usize>> = vec![Vec::new(); data.classes().len()];
    // The content of a class is the list of its groups, in ascending order.
    for (number, group) in groups.iter().enumerate() {
        for &row in group {
            contents[data.labels()[row as usize] as usize].push(number);
        }
    }
    // The first class with each content.
    let mut seen: HashMap<Vec<usize>, usize> = HashMap::new();
    let mut warnings = Vec::new();
    for (class, mut content) in contents.into_iter().enumerate().filter(|(_, content)| !content.is_empty()) {
        content.dedup();
        match seen.entry(content) {
            Entry::Vacant(entry) => {
                entry.insert(class);
            }
            Entry::Occupied(first) => {
                let name = |class: usize| visible(&data.classes()[class]);
                let (first, class) = (name(*first.get()), name(class));
                warnings.push(format!(
                    "classes '{first}' and '{class}' contain the same items: remove one or merge them"
                ));
            }
        }
    }
    warnings
}

/// Pairs of nearly equal rows among the nearest neighbours. The first row of a group stands for all of its rows.
fn near_pairs(
    data: &Embeddings,
    groups: &[Vec<u32>],
    input: &DuplicateInput<'_>,
    poll: &Poll<'_>,
) -> Result<Vec<Pair>> {
    // Candidates: every row with its neighbours in other groups, each pair once with its largest cosine. Rows are
    // replaced by the first rows of their groups.
    let mut representatives = vec![0; data.len()];
    for group in groups {
        group.iter().for_each(|&row| representatives[row as usize] = group[0]);
    }
    let mut candidates: Vec<Candidate> = Vec::new();
    for (row, neighbours) in input.neighbours.iter().enumerate() {
        let row = representatives[row];
        let others = neighbours.iter().map(|&(other, cosine)| (representatives[other as usize], cosine));
        let others = others.filter(|&(other, _)| other != row);
        candidates.extend(others.map(|(other, cosine)| (row.min(other), row.max(other), cosine)));
    }
    candidates.sort_unstable_by(|a, b| (a.0, a.1).cmp(&(b.0, b.1)).then(b.2.total_cmp(&a.2)));
    candidates.dedup_by_key(|&mut (first, second, _)| (first, second));
    // Keep those whose thumbnails are alike or, without thumbnails that show enough, whose embeddings are.
    let distances = Distances::new(input.neighbours);
    let is_near = |&(first, second, cosine): &Candidate| {
        let of_image = |row: u32| input.measures.get(row as usize).and_then(Option::as_ref);
        let is_similar = 1.0 - cosine <= SIMILAR_SHARE * distances.usual;
        let compare = |(first, second)| thumbnails::is_copy(first, second, is_similar);
        let by_pixels = of_image(first).zip(of_image(second)).and_then(compare);
        by_pixels.unwrap_or_else(|| distances.are_near(first, second, cosine))
    };
    let near_of_block = |block: &[Candidate]| {
        poll.check()?;
        Ok(block.iter().filter(|pair| is_near(pair)).copied().collect())
    };
    let near: Vec<Vec<Candidate>> = candidates.par_chunks(BLOCK).map(near_of_block).collect::<Result<_>>()?;
    Ok(most_similar(data, near.into_iter().flatten().collect()))
}

/// How far similar items of the collection are from each other; distances are `1 - cosine`.
struct Distances<'a> {
    /// The median of the distances between the items and their second nearest neighbours: the nearest neighbour of a
    /// copied item is its copy. 0 if there are too few items.
    usual: f32,
    neighbours: &'a [Vec<(u32, f32)>],
}

impl<'a> Distances<'a> {
    fn new(neighbours: &'a [Vec<(u32, f32)>]) -> Self {
        let distance = |nearest: &Vec<(u32, f32)>| nearest.get(1).map(|&(_, cosine)| 1.0 - cosine);
        let mut distances: Vec<f32> = neighbours.iter().filter_map(distance).collect();
        distances.sort_unstable_by(f32::total_cmp);
        Distances { usual: distances.get(distances.len() / 2).copied().unwrap_or(0.0), neighbours }
    }

    /// Whether two items are near duplicates by their embeddings alone: their distance is far smaller than is usual in
    /// the collection, and far smaller than the distances to the last of their own neighbours. The latter rules out
    /// items in dense regions, where many items are equally close.
    fn are_near(&self, first: u32, second: u32, cosine: f32) -> bool {
        let last = |row: u32| self.neighbours[row as usize].last().map_or(0.0, |&(_, cosine)| 1.0 - cosine);
        let reference = self.usual.min(last(first)).min(last(second));
        1.0 - cosine <= NEAR_DISTANCE.min(NEAR_SHARE * reference)
    }
}

/// The pairs that are among the [`MAX_PAIRS_PER_ITEM`] most similar pairs of at least one of their two items. Pairs
/// within a class and across classes are counted separately.
fn most_similar(data: &Embeddings, mut near: Vec<Candidate>) -> Vec<Pair> {
    let key = |row: u32| (data.item(row as usize), row);
    near.sort_by(|a, b| b.2.total_cmp(&a.2).then_with(|| (key(a.0), key(a.1)).cmp(&(key(b.0), key(b.1)))));
    // Per item, the pairs so far within its class and across classes. All pairs count, also those that are not kept.
    let mut counts = vec![[0; 2]; data.len()];
    let mut is_kept = |&(first, second, _): &Candidate| {
        let across = usize::from(data.labels()[first as usize] != data.labels()[second as usize]);
        let mut count = |row: u32| {
            let count = &mut counts[row as usize][across];
            *count += 1;
            *count <= MAX_PAIRS_PER_ITEM
        };
        // Both items are counted, even if the first one suffices to keep the pair.
        let (of_first, of_second) = (count(first), count(second));
        of_first || of_second
    };
    near.retain(|pair| is_kept(pair));
    near.into_iter().map(|(first, second, _)| (first, second, DuplicateKind::Near)).collect()
}
