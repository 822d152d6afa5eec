//! What the network reads, worked out for some support sets before any parameter comes into play.

use super::batch::{Batch, Place, numbers};
use super::buffer::Buffer;
use super::edge_network::PAIR_FEATURES;
use super::edges::{EDGE_FEATURES, edge_features};
use super::space::Space;
use super::start::{START_FEATURES, start_features};
use crate::isa::Isa;
use crate::real::Real;

/// A support set as the head sees it.
#[derive(Debug, Clone, Copy)]
pub struct Support<'a, T = f32> {
    /// Number of classes.
    pub classes: usize,
    /// The class each item is filed under.
    pub given: &'a [u32],
    /// The items. May be empty where `gram` is there and the head does not see items.
    pub rows: &'a [&'a [T]],
    /// The items' products with each other (M x M), if the caller has them already.
    pub gram: Option<&'a [T]>,
}

/// Everything the network reads.
pub(super) struct Prepared<'a, T: Real> {
    pub(super) batch: Batch,
    pub(super) spaces: Vec<Space<T>>,
    pub(super) rows: Vec<&'a [&'a [T]]>,
    /// A plane of all pairs for every feature.
    pub(super) pair_features: Buffer<T>,
    /// A row for every state.
    pub(super) start_features: Buffer<T>,
}

impl<'a, T: Real> Prepared<'a, T> {
    pub(super) fn new(isa: Isa, supports: &[Support<'a, T>], centred: bool) -> Self {
        let mut batch = Batch::default();
        supports.iter().for_each(|support| batch.add(support.classes, support.given));
        let space = |support: &Support<'a, T>| {
            let items = support.given.len();
            let gram = support.gram.map_or_else(|| gram(isa, support.rows), <[T]>::to_vec);
            Space::new(gram, items, centred)
        };
        let mut prepared = Prepared {
            spaces: supports.iter().map(space).collect(),
            rows: supports.iter().map(|support| support.rows).collect(),
            pair_features: Buffer::new(PAIR_FEATURES * batch.pairs),
            start_features: Buffer::new(START_FEATURES * batch.states),
            batch,
        };
        for (place, space) in prepared.batch.places.iter().zip(&prepared.spaces) {
            let mut planes = prepared.pair_features.chunks_exact_mut(prepared.batch.pairs.max(1));
            let mut plane = || &mut planes.next().expect("a plane for every feature")[place.pairs()];
            let (mut edges, same) = ([plane(), plane(), plane(), plane(), plane()], plane());
            edge_features(space.gram(), place.items, edges.each_mut().map(|plane| &mut **plane));
            same_label(place, same);
            let rows = &mut prepared.start_features[numbers(place.states(), START_FEATURES)];
            start_features(place, edges.each_ref().map(|plane| &**plane), rows);
        }
        prepared
    }
}

const _: () =
    assert!(PAIR_FEATURES == EDGE_FEATURES + 1, "the label's plane stands behind those of the edges");

fn gram<T: Real>(isa: Isa, rows: &[&[T]]) -> Vec<T> {
    let mut gram = vec![T::ZERO; rows.len() * rows.len()];
    T::products(isa, rows, rows, &mut gram);
    gram
}

/// Whether two items are filed under the same class.
fn same_label<T: Real>(place: &Place, plane: &mut [T]) {
    for (row, own) in plane.chunks_exact_mut(place.items.max(1)).zip(&place.given) {
        for (same, other) in row.iter_mut().zip(&place.given) {
            *same = if own == other { T::ONE } else { T::ZERO };
        }
    }
}
