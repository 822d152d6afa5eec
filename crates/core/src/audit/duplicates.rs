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

/// Earlier items that an item is paired with at most, in its class and in others.
const MOST_PARTNERS: usize = 4;

/// The pairs, those across classes first.
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

/// Compares blocks of rows with all rows before them.
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
    let range = |block: usize| block * BLOCK..((block + 1) * BLOCK).min(rows.len());
    let found = (0..rows.len().div_ceil(BLOCK)).into_par_iter().flat_map_iter(|block| {
        let later = range(block);
        let mut partners = vec![Partners::default(); later.len()];
        let mut out = Vec::new();
        for earlier in (0..=block).map(range) {
            out.resize(later.len() * earlier.len(), 0.0);
            products::products(Isa::current(), &rows[earlier.clone()], &rows[later.clone()], &mut out);
            for ((j, out), partners) in later.clone().zip(out.chunks_exact(earlier.len())).zip(&mut partners)
            {
                for (i, &product) in earlier.clone().zip(out).take_while(|(i, _)| *i < j) {
                    let near = product >= NEAR * lengths[i] * lengths[j] && lengths[i] > 0.0;
                    if near || rows[i] == rows[j] {
                        let kind =
                            if rows[i] == rows[j] { DuplicateKind::Exact } else { DuplicateKind::Near };
                        partners.add(i as u32, kind, data.labels()[i] != data.labels()[j]);
                    }
                }
            }
        }
        let pairs = later.zip(partners);
        pairs.flat_map(|(j, partners)| partners.found.into_iter().map(move |(i, kind)| (i, j as u32, kind)))
    });
    found.collect()
}

/// The first rows that a row is the same as. Of a thousand equal items half a million pairs could be made, which
/// nobody would read, and which a stranger could fill the memory with.
#[derive(Clone, Default)]
struct Partners {
    found: Vec<(u32, DuplicateKind)>,
    across: usize,
}

impl Partners {
    fn add(&mut self, row: u32, kind: DuplicateKind, across: bool) {
        let of_its_kind = if across { self.across } else { self.found.len() - self.across };
        if of_its_kind < MOST_PARTNERS {
            self.found.push((row, kind));
            self.across += usize::from(across);
        }
    }
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
