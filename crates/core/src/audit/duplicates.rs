//! Items that are there twice: the same numbers, or as good as the same.

use rayon::prelude::*;
use serde::Serialize;
use trueshot_nn::{Isa, products};

use super::item_name;
use crate::embeddings::Embeddings;

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

/// All pairs, those across classes first.
pub(super) fn find(data: &Embeddings) -> Vec<Duplicate> {
    let mut pairs = if data.len() <= ALL_PAIRS { by_cosine(data) } else { equal_rows(data) };
    let across =
        |pair: &(u32, u32, DuplicateKind)| data.labels()[pair.0 as usize] != data.labels()[pair.1 as usize];
    pairs.sort_by_key(|pair| (!across(pair), pair.0, pair.1));
    let class = |row: u32| data.classes()[data.labels()[row as usize] as usize].clone();
    pairs
        .into_iter()
        .map(|(one, other, kind)| Duplicate {
            kind,
            item: item_name(data, one as usize),
            given: class(one),
            other: item_name(data, other as usize),
            other_given: class(other),
            rows: [one, other],
        })
        .collect()
}

/// Compares blocks of rows with blocks of rows.
fn by_cosine(data: &Embeddings) -> Vec<(u32, u32, DuplicateKind)> {
    const BLOCK: usize = 256;
    let dim = data.dim();
    let mut values = vec![0.0; data.len() * dim];
    values.par_chunks_exact_mut(dim).enumerate().for_each(|(row, out)| {
        data.features().decode_row(row, out);
    });
    let rows: Vec<&[f32]> = values.chunks_exact(dim).collect();
    let lengths: Vec<f32> =
        rows.iter().map(|row| products::squared_norm(Isa::current(), row).sqrt()).collect();
    let blocks = rows.len().div_ceil(BLOCK);
    let pairs = (0..blocks).into_par_iter().flat_map_iter(|a| (a..blocks).map(move |b| (a, b)));
    let found = pairs.flat_map_iter(|(a, b)| {
        let range = |block: usize| block * BLOCK..((block + 1) * BLOCK).min(rows.len());
        let (left, right) = (range(a), range(b));
        let mut out = vec![0.0; left.len() * right.len()];
        products::products(Isa::current(), &rows[right.clone()], &rows[left.clone()], &mut out);
        let mut found = Vec::new();
        for (i, out) in left.zip(out.chunks_exact(right.len())) {
            for (j, &product) in right.clone().zip(out) {
                let near = product >= NEAR * lengths[i] * lengths[j] && lengths[i] > 0.0;
                if j > i && (near || rows[i] == rows[j]) {
                    let kind = if rows[i] == rows[j] { DuplicateKind::Exact } else { DuplicateKind::Near };
                    found.push((i as u32, j as u32, kind));
                }
            }
        }
        found
    });
    found.collect()
}

fn equal_rows(data: &Embeddings) -> Vec<(u32, u32, DuplicateKind)> {
    let mut first = std::collections::HashMap::new();
    let mut pairs = Vec::new();
    for row in 0..data.len() {
        let bytes = data.features().bytes_of(row..row + 1);
        match first.entry(bytes) {
            std::collections::hash_map::Entry::Occupied(entry) => {
                pairs.push((*entry.get(), row as u32, DuplicateKind::Exact));
            }
            std::collections::hash_map::Entry::Vacant(entry) => {
                entry.insert(row as u32);
            }
        }
    }
    pairs
}
