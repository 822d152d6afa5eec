//! The input of the network ([`NetworkInput`]), computed from support sets ([`RelabelInput`]) without parameters.
//!
//! - Pair features: the edge features of two items (relations such as their cosine, see `edge_features`), and whether
//!   they have the same given label. One plane `[M, M]` per feature.
//! - State features: what the given labels and the edge features say about "item i belongs to class c". One row per
//!   state.
//!
//! Shapes over the batch: `pairs` is the sum of M² over the episodes, `states` that of M C (see `episode_batch`). `d_x`
//! is the gradient of the loss with respect to x.

use super::edge_features::{DIFFERENTIABLE, EDGE_FEATURES, NEUTRAL, edge_features, edge_features_backward};
use super::episode_batch::{EpisodeBatch, EpisodeSpan, elements};
use super::gram_space::GramSpace;
use crate::buffer::Buffer;
use crate::real::Real;

/// One support set as Relabel reads it.
#[derive(Debug, Clone, Copy)]
pub struct RelabelInput<'a, T = f32> {
    /// Number of classes.
    pub classes: usize,
    /// The given label of each item.
    pub given: &'a [u32],
    /// The embeddings of the items. May be empty if `gram` is given and the head has no item view.
    pub rows: &'a [&'a [T]],
    /// The inner products of the items with each other, `[M, M]`, if the caller already has them.
    pub gram: Option<&'a [T]>,
}

/// Features of a pair of items: the edge features, then whether the given labels are the same.
pub(super) const PAIR_FEATURES: usize = EDGE_FEATURES + 1;

/// Features of a state that follow from the given labels, listed at [`state_features`].
const LABEL_FEATURES: usize = 4;

/// Features of a state: those of the labels, and mean, maximum and minimum of each edge feature.
pub(super) const STATE_FEATURES: usize = LABEL_FEATURES + 3 * EDGE_FEATURES;

/// Everything the network reads of a batch.
pub(super) struct NetworkInput<'a, T: Real> {
    pub(super) batch: EpisodeBatch,
    /// The space of each episode.
    pub(super) spaces: Vec<GramSpace<T>>,
    /// The embeddings of each episode's items.
    pub(super) rows: Vec<&'a [&'a [T]]>,
    /// `[PAIR_FEATURES, pairs]`
    pub(super) pair_features: Buffer<T>,
    /// `[states, STATE_FEATURES]`
    pub(super) state_features: Buffer<T>,
}

impl<'a, T: Real> NetworkInput<'a, T> {
    /// `centred`: see [`super::Config::centred`].
    pub(super) fn new(inputs: &[RelabelInput<'a, T>], centred: bool) -> Self {
        let mut batch = EpisodeBatch::default();
        inputs.iter().for_each(|input| batch.add(input.classes, input.given));
        let space = |input: &RelabelInput<'a, T>| {
            let gram = input.gram.map_or_else(|| gram(input.rows), <[T]>::to_vec);
            GramSpace::new(gram, input.given.len(), centred)
        };
        let mut network_input = NetworkInput {
            spaces: inputs.iter().map(space).collect(),
            rows: inputs.iter().map(|input| input.rows).collect(),
            pair_features: Buffer::new(PAIR_FEATURES * batch.pairs),
            state_features: Buffer::new(STATE_FEATURES * batch.states),
            batch,
        };
        network_input.compute_features();
        network_input
    }

    /// Sets the features of all pairs and states, episode by episode.
    fn compute_features(&mut self) {
        for (span, space) in self.batch.spans.iter().zip(&self.spaces) {
            let mut planes = self.pair_features.chunks_exact_mut(self.batch.pairs.max(1));
            // The part of the next plane that belongs to this episode.
            let mut plane = || &mut planes.next().expect("one plane per feature")[span.pairs()];
            // The planes of the edge features, then that of the labels; below as arrays of slices.
            let (mut edges, same) = ([plane(), plane(), plane(), plane(), plane()], plane());
            edge_features(space.gram(), span.items, edges.each_mut().map(|plane| &mut **plane));
            same_label(span, same);
            let rows = &mut self.state_features[elements(span.states(), STATE_FEATURES)];
            state_features(span, edges.each_ref().map(|plane| &**plane), rows);
        }
    }
}

/// The gradients of what the network reads of a batch.
pub(super) struct NetworkInputGradient<T: Real> {
    /// `[PAIR_FEATURES, pairs]`
    pub(super) pair_features: Buffer<T>,
    /// `[states, STATE_FEATURES]`
    pub(super) state_features: Buffer<T>,
    /// The gradients of the items through their views, `[items, D]`; `None` if the head has no item view.
    pub(super) viewed_rows: Option<Buffer<T>>,
}

impl<T: Real> NetworkInputGradient<T> {
    /// Gradients with arbitrary contents. `view_dim` is the length of an embedding if the head has an item view.
    pub(super) fn new(batch: &EpisodeBatch, view_dim: Option<usize>) -> Self {
        NetworkInputGradient {
            pair_features: Buffer::new(PAIR_FEATURES * batch.pairs),
            state_features: Buffer::new(STATE_FEATURES * batch.states),
            viewed_rows: view_dim.map(|dim| Buffer::new(batch.items * dim)),
        }
    }
}

impl<T: Real> NetworkInput<'_, T> {
    /// Backward pass of the features of one episode: adds to the gradient of its Gram matrix (`[M, M]`, in the space of
    /// the episode). The gradients of the state features are added to those of the pair features on the way.
    pub(super) fn features_backward(
        &self,
        number: usize,
        gradient: &mut NetworkInputGradient<T>,
        d_gram: &mut [T],
    ) {
        let (span, space) = (&self.batch.spans[number], &self.spaces[number]);
        let planes: [&[T]; EDGE_FEATURES] =
            std::array::from_fn(|feature| &self.pair_features[feature * self.batch.pairs..][span.pairs()]);
        let d_rows = &gradient.state_features[elements(span.states(), STATE_FEATURES)];
        let mut d_planes = gradient.pair_features.chunks_exact_mut(self.batch.pairs.max(1));
        let mut d_plane = || &mut d_planes.next().expect("one plane per feature")[span.pairs()];
        let mut d_planes = [d_plane(), d_plane(), d_plane(), d_plane(), d_plane()];
        state_features_backward(span, planes, d_rows, d_planes.each_mut().map(|plane| &mut **plane));
        let d_planes = d_planes.each_ref().map(|plane| &**plane);
        edge_features_backward(space.gram(), span.items, planes, d_planes, d_gram);
    }
}

/// The inner products of all pairs of rows, `[M, M]`.
fn gram<T: Real>(rows: &[&[T]]) -> Vec<T> {
    let mut gram = vec![T::ZERO; rows.len() * rows.len()];
    T::products(rows, rows, &mut gram);
    gram
}

/// Writes 1 for each pair of items with the same given label and 0 for the others, `[M, M]`.
fn same_label<T: Real>(span: &EpisodeSpan, plane: &mut [T]) {
    for (row, row_label) in plane.chunks_exact_mut(span.items.max(1)).zip(&span.given) {
        for (same, column_label) in row.iter_mut().zip(&span.given) {
            *same = if row_label == column_label { T::ONE } else { T::ZERO };
        }
    }
}

/// Writes the features of one episode's states, `[M C, STATE_FEATURES]`, from its edge features. For item i and class
/// c:
/// 0. whether c is the given label of i,
/// 1. the fraction of items with label c,
/// 2. whether no item other than i has label c,
/// 3. 1 / (1 + number of items other than i with label c): how reliable the other features are,
///
/// then mean, maximum and minimum of each edge feature from i to the items other than i with label c.
fn state_features<T: Real>(span: &EpisodeSpan, planes: [&[T]; EDGE_FEATURES], out: &mut [T]) {
    let members = members(span);
    let mut rows = out.chunks_exact_mut(STATE_FEATURES);
    for item in 0..span.items {
        for (class, members) in members.iter().enumerate() {
            let row = rows.next().expect("one row per state");
            let is_given = span.given[item] as usize == class;
            let others = members.len() - usize::from(is_given);
            row[0] = T::from_f64(f64::from(u8::from(is_given)));
            row[1] = T::from_f64(members.len() as f64 / span.items as f64);
            row[2] = T::from_f64(f64::from(u8::from(others == 0)));
            row[3] = T::from_f64(1.0 / (1 + others) as f64);
            for (feature, plane) in planes.iter().enumerate() {
                let edges = &plane[item * span.items..(item + 1) * span.items];
                let statistics = edge_statistics(item, edges, members, NEUTRAL[feature]);
                let from = LABEL_FEATURES + 3 * feature;
                row[from..from + 3].copy_from_slice(&statistics);
            }
        }
    }
}

/// Backward pass of [`state_features`]: adds to the gradients of the [`DIFFERENTIABLE`] edge features, from those of
/// the state features (`[M C, STATE_FEATURES]`).
fn state_features_backward<T: Real>(
    span: &EpisodeSpan,
    planes: [&[T]; EDGE_FEATURES],
    d_rows: &[T],
    d_planes: [&mut [T]; EDGE_FEATURES],
) {
    let members = members(span);
    let mut d_rows = d_rows.chunks_exact(STATE_FEATURES);
    for item in 0..span.items {
        let edges = item * span.items..(item + 1) * span.items;
        for members in &members {
            let d_row = d_rows.next().expect("one row per state");
            for feature in DIFFERENTIABLE {
                let d_statistics = &d_row[LABEL_FEATURES + 3 * feature..][..3];
                let (plane, d_plane) =
                    (&planes[feature][edges.clone()], &mut d_planes[feature][edges.clone()]);
                edge_statistics_backward(item, plane, members, d_statistics, d_plane);
            }
        }
    }
}

/// For each class the items with that given label.
fn members(span: &EpisodeSpan) -> Vec<Vec<usize>> {
    let mut members = vec![Vec::new(); span.classes];
    for (item, &class) in span.given.iter().enumerate() {
        members[class as usize].push(item);
    }
    members
}

/// Mean, maximum and minimum of one edge feature from `item` to the other members of a class; `neutral` if there are no
/// other members. `edges` are the values of the feature from `item` to every item of the episode.
fn edge_statistics<T: Real>(item: usize, edges: &[T], members: &[usize], neutral: f64) -> [T; 3] {
    let (mut sum, mut count) = (T::ZERO, 0);
    let mut bounds: Option<(T, T)> = None;
    for &member in members.iter().filter(|&&member| member != item) {
        let value = edges[member];
        sum += value;
        count += 1;
        let (max, min) = bounds.unwrap_or((value, value));
        bounds = Some((if value > max { value } else { max }, if value < min { value } else { min }));
    }
    let Some((max, min)) = bounds else { return [T::from_f64(neutral); 3] };
    [sum * T::from_f64(1.0 / f64::from(count)), max, min]
}

/// Backward pass of [`edge_statistics`]: adds to the gradients of the edges. Those of maximum and minimum go to the
/// first member with that value.
fn edge_statistics_backward<T: Real>(
    item: usize,
    edges: &[T],
    members: &[usize],
    d_statistics: &[T],
    d_edges: &mut [T],
) {
    let others = || members.iter().copied().filter(|&member| member != item);
    let Some(first) = others().next() else { return };
    let (mut argmax, mut argmin, mut count) = (first, first, 0);
    for member in others() {
        argmax = if edges[member] > edges[argmax] { member } else { argmax };
        argmin = if edges[member] < edges[argmin] { member } else { argmin };
        count += 1;
    }
    let d_mean = d_statistics[0] * T::from_f64(1.0 / f64::from(count));
    others().for_each(|member| d_edges[member] += d_mean);
    d_edges[argmax] += d_statistics[1];
    d_edges[argmin] += d_statistics[2];
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_features_describe_the_label_and_the_edges_to_the_other_items_of_the_class() {
        let mut batch = EpisodeBatch::default();
        batch.add(3, &[0, 1, 0, 0]);
        let plane: Vec<f64> = (0..16).map(f64::from).collect();
        // The planes of the other features.
        let constant = [0.25; 16];
        let mut rows = vec![0.0; 12 * STATE_FEATURES];
        state_features(&batch.spans[0], [&plane, &constant, &constant, &constant, &constant], &mut rows);
        let row = |item: usize, class: usize| &rows[(item * 3 + class) * STATE_FEATURES..][..STATE_FEATURES];
        // Item 2 and the items 0 and 3 of its class: edges 8 and 11.
        assert_eq!(row(2, 0)[..7], [1.0, 0.75, 0.0, 1.0 / 3.0, 9.5, 11.0, 8.0]);
        // Item 1 is alone in its class: neutral values, 0 for the first feature and 0.5 for the ranks.
        assert_eq!(row(1, 1)[..7], [1.0, 0.25, 1.0, 1.0, 0.0, 0.0, 0.0]);
        assert_eq!(row(1, 1)[10..13], [0.5; 3]);
        // The last class is empty.
        assert_eq!(row(0, 2)[..4], [0.0, 0.0, 1.0, 1.0]);
    }
}
