//! Finds duplicates: items with equal features, and pairs that are nearly equal.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use rayon::prelude::*;
use serde::Serialize;
use trueshot_nn::products;

use super::{Poll, item_name};
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
    /// Its label.
    pub given: String,
    /// The name of the second item.
    pub other: String,
    /// The label of the second item.
    pub other_given: String,
    /// The rows of both.
    #[serde(skip)]
    pub rows: [u32; 2],
}

/// How similar two duplicates are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DuplicateKind {
    /// All features are equal.
    Exact,
    /// The cosine is at least 0.99: typically the same image in another size or compression.
    Near,
}

/// The smallest cosine of near duplicates.
const NEAR: f32 = 0.99;

/// The largest collection in which near duplicates are searched: comparing all pairs of more items takes minutes.
const MAX_ITEMS_FOR_PAIRS: usize = 20_000;

/// Near duplicates reported per item within its class, and across classes: the frames of a video would otherwise give
/// millions of pairs.
const MAX_PAIRS_PER_ITEM: usize = 4;

type Pair = (u32, u32, DuplicateKind);

/// Duplicates, and warnings about whole classes.
pub(super) struct DuplicateFindings {
    /// Pairs across classes first.
    pub duplicates: Vec<Duplicate>,
    /// Classes with the same items.
    pub warnings: Vec<String>,
}

/// Finds duplicates. Equal items form groups, which are reported by their first item.
pub(super) fn find(data: &Embeddings, poll: &Poll<'_>) -> Result<DuplicateFindings> {
    let groups = equal_rows(data, poll)?;
    let mut pairs: Vec<Pair> = groups.iter().flat_map(|group| equal_pairs(data, group)).collect();
    if data.len() <= MAX_ITEMS_FOR_PAIRS {
        let firsts: Vec<u32> = groups.iter().map(|group| group[0]).collect();
        pairs.extend(near_pairs(data, &firsts, poll)?);
    }
    let class = |row: u32| data.labels()[row as usize];
    pairs.sort_by_key(|pair| (class(pair.0) == class(pair.1), pair.0, pair.1));
    let name = |row: u32| data.classes()[class(row) as usize].clone();
    let to_duplicate = |(one, other, kind): Pair| Duplicate {
        kind,
        item: item_name(data, one as usize),
        given: name(one),
        other: item_name(data, other as usize),
        other_given: name(other),
        rows: [one, other],
    };
    let duplicates = pairs.into_iter().map(to_duplicate).collect();
    Ok(DuplicateFindings { duplicates, warnings: warnings(data, &groups) })
}

/// Groups of rows with equal features, ordered by their first row; most groups have one row.
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
    Ok(groups)
}

/// Pairs each row of a group with the first row of its class in the group, and the first rows of the classes with the
/// first row of the group.
fn equal_pairs(data: &Embeddings, group: &[u32]) -> Vec<Pair> {
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
    for (place, group) in groups.iter().enumerate() {
        for &row in group {
            contents[data.labels()[row as usize] as usize].push(place);
        }
    }
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

/// Compares all pairs of groups, block by block, in parallel.
fn near_pairs(data: &Embeddings, firsts: &[u32], poll: &Poll<'_>) -> Result<Vec<Pair>> {
    const BLOCK: usize = 256;
    let dim = data.dim();
    let values = data.gather(firsts);
    let rows: Vec<&[f32]> = values.chunks_exact(dim).collect();
    let lengths: Vec<f32> = rows.iter().map(|row| products::squared_norm(row).sqrt()).collect();
    let starts: Vec<usize> = (0..rows.len()).step_by(BLOCK).collect();
    let found = starts.par_iter().map(|&start| {
        let left = start..(start + BLOCK).min(rows.len());
        let mut found = Vec::new();
        let mut reported = vec![[0; 2]; left.len()];
        for start in (start..rows.len()).step_by(BLOCK) {
            poll.check()?;
            let right = start..(start + BLOCK).min(rows.len());
            let mut out = vec![0.0; left.len() * right.len()];
            products::products(&rows[right.clone()], &rows[left.clone()], &mut out);
            for ((i, reported), out) in left.clone().zip(&mut reported).zip(out.chunks_exact(right.len())) {
                for (j, &product) in right.clone().zip(out).filter(|(j, _)| *j > i) {
                    let across = data.labels()[firsts[i] as usize] != data.labels()[firsts[j] as usize];
                    let near = product >= NEAR * lengths[i] * lengths[j] && lengths[i] > 0.0;
                    if near && reported[usize::from(across)] < MAX_PAIRS_PER_ITEM {
                        reported[usize::from(across)] += 1;
                        found.push((firsts[i], firsts[j], DuplicateKind::Near));
                    }
                }
            }
        }
        Ok(found)
    });
    Ok(found.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}
