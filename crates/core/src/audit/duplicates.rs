//! Items that are there twice: the same numbers, or as good as the same.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use rayon::prelude::*;
use serde::Serialize;
use trueshot_nn::products;

use super::{Poll, item_name};
use crate::embeddings::Embeddings;
use crate::error::Result;
use crate::report::visible;

/// Two items that are the same.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Duplicate {
    /// How much the same.
    pub kind: DuplicateKind,
    /// One.
    pub item: String,
    /// The class it is filed under.
    pub given: String,
    /// The other.
    pub other: String,
    /// The class that one is filed under.
    pub other_given: String,
    /// The places of both in the data.
    #[serde(skip)]
    pub rows: [u32; 2],
}

/// How much two items are the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DuplicateKind {
    /// All numbers are equal.
    Exact,
    /// Nothing that a network looks at tells them apart: the same picture in another size or compression.
    Near,
}

/// The cosine from which on two items are as good as the same.
const NEAR: f32 = 0.99;

/// Above so many items only equal ones are looked for: all pairs would take minutes.
const ALL_PAIRS: usize = 20_000;

/// Of those as good as the same as an item, so many are named of its own class and of others: the frames of a video
/// would be millions of pairs.
const NAMED: usize = 4;

type Pair = (u32, u32, DuplicateKind);

/// Items that are the same.
pub(super) struct DuplicateFindings {
    /// Pairs, those across classes first.
    pub duplicates: Vec<Duplicate>,
    /// What is odd about whole classes.
    pub warnings: Vec<String>,
}

/// Finds all that are the same: equal ones by the first of them, others pair by pair.
pub(super) fn find(data: &Embeddings, poll: &Poll<'_>) -> Result<DuplicateFindings> {
    let groups = equal_rows(data, poll)?;
    let mut pairs: Vec<Pair> = groups.iter().flat_map(|group| equal_pairs(data, group)).collect();
    if data.len() <= ALL_PAIRS {
        let firsts: Vec<u32> = groups.iter().map(|group| group[0]).collect();
        pairs.extend(near_pairs(data, &firsts, poll)?);
    }
    let class = |row: u32| data.labels()[row as usize];
    pairs.sort_by_key(|pair| (class(pair.0) == class(pair.1), pair.0, pair.1));
    let name = |row: u32| data.classes()[class(row) as usize].clone();
    let in_words = |(one, other, kind): Pair| Duplicate {
        kind,
        item: item_name(data, one as usize),
        given: name(one),
        other: item_name(data, other as usize),
        other_given: name(other),
        rows: [one, other],
    };
    let duplicates = pairs.into_iter().map(in_words).collect();
    Ok(DuplicateFindings { duplicates, warnings: warnings(data, &groups) })
}

/// Rows with equal numbers, by their first; most are alone.
fn equal_rows(data: &Embeddings, poll: &Poll<'_>) -> Result<Vec<Vec<u32>>> {
    let mut places = HashMap::new();
    let mut groups: Vec<Vec<u32>> = Vec::new();
    for row in 0..data.len() {
        if row % 1024 == 0 {
            poll.check()?;
        }
        let place = *places.entry(data.features().bytes_of(row..row + 1)).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[place].push(row as u32);
    }
    Ok(groups)
}

/// Every row of a group but the first, with the first of its class; and these with the first of all.
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

/// Classes that cannot be told apart, because their items are the same.
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
                warnings.push(format!("classes '{first}' and '{class}' contain the same items"));
            }
        }
    }
    warnings
}

/// Compares blocks of rows with blocks of rows.
fn near_pairs(data: &Embeddings, firsts: &[u32], poll: &Poll<'_>) -> Result<Vec<Pair>> {
    const BLOCK: usize = 256;
    let dim = data.dim();
    let mut values = vec![0.0; firsts.len() * dim];
    values.par_chunks_exact_mut(dim).zip(firsts).for_each(|(out, row)| {
        data.features().decode_row(*row as usize, out);
    });
    let rows: Vec<&[f32]> = values.chunks_exact(dim).collect();
    let lengths: Vec<f32> = rows.iter().map(|row| products::squared_norm(row).sqrt()).collect();
    let starts: Vec<usize> = (0..rows.len()).step_by(BLOCK).collect();
    let found = starts.par_iter().map(|&start| {
        let left = start..(start + BLOCK).min(rows.len());
        let mut found = Vec::new();
        let mut named = vec![[0; 2]; left.len()];
        for start in (start..rows.len()).step_by(BLOCK) {
            poll.check()?;
            let right = start..(start + BLOCK).min(rows.len());
            let mut out = vec![0.0; left.len() * right.len()];
            products::products(&rows[right.clone()], &rows[left.clone()], &mut out);
            for ((i, named), out) in left.clone().zip(&mut named).zip(out.chunks_exact(right.len())) {
                for (j, &product) in right.clone().zip(out).filter(|(j, _)| *j > i) {
                    let across = data.labels()[firsts[i] as usize] != data.labels()[firsts[j] as usize];
                    let near = product >= NEAR * lengths[i] * lengths[j] && lengths[i] > 0.0;
                    if near && named[usize::from(across)] < NAMED {
                        named[usize::from(across)] += 1;
                        found.push((firsts[i], firsts[j], DuplicateKind::Near));
                    }
                }
            }
        }
        Ok(found)
    });
    Ok(found.collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
}
