//! The gradient of the loss with respect to the embeddings, for training a backbone together with the head. Start with
//! [`ProductGradient::add_to_features`].
//!
//! Shapes: M items, Q queries, D the dimension of embeddings. The embeddings enter the loss through inner products
//! ([`ProductGradient`]) and, in a head that is trained for one particular backbone, through the item view
//! (`item_view`), which computes its own part. The losses and the network fill a [`ProductGradient`]; this file turns
//! it into the gradient of the embeddings. `d_x` is the gradient of the loss with respect to x.

use super::gram_space::{CentringGradient, GramSpace};
use crate::head::{Episode, FeatureGradient};
use crate::matmul::{add_scaled, add_weighted_rows};
use crate::real::Real;

/// The gradients of the loss with respect to the inner products of one episode.
#[derive(Debug, Clone)]
pub(super) struct ProductGradient<T> {
    /// With respect to the inner products of the items after centring and scaling ([`GramSpace`]), `[M, M]`;
    /// [`GramSpace::gram_backward`] turns it into that of the original products.
    pub(super) gram: Vec<T>,
    /// With respect to the original inner products of items and queries, `[M, Q]`.
    pub(super) with_queries: Vec<T>,
    /// With respect to the original squared lengths of the queries, `[Q]`.
    pub(super) query_squares: Vec<T>,
    /// Queries are centred by the mean of the items, so they contribute to the gradient of that mean.
    /// [`GramSpace::gram_backward`] adds this part to that of the items.
    pub(super) centring: CentringGradient<T>,
}

impl<T: Real> ProductGradient<T> {
    /// The zero gradient.
    pub(super) fn new(items: usize, queries: usize) -> Self {
        ProductGradient {
            gram: vec![T::ZERO; items * items],
            with_queries: vec![T::ZERO; items * queries],
            query_squares: vec![T::ZERO; queries],
            centring: CentringGradient::new(items),
        }
    }

    /// Backward pass of the inner products: adds their part to the gradients of the embeddings, `d_features`. The
    /// gradient of `a . b` with respect to a is b, so every gradient is a weighted sum of the embeddings on the other
    /// side.
    pub(super) fn add_to_features(
        self,
        space: &GramSpace<T>,
        episode: &Episode<'_, T>,
        d_features: &mut FeatureGradient<'_, T>,
    ) {
        let ProductGradient { mut gram, with_queries, query_squares, centring } = self;
        space.gram_backward(&mut gram, centring);
        let (items, queries) = (episode.support.len(), episode.queries.len());
        // Items with each other. `x_i . x_j` is two elements of the Gram matrix, (i, j) and (j, i), so both gradients
        // count; on the diagonal, the derivative of `x . x` is 2 x.
        add_weighted_rows(episode.support, &plus_transpose(&gram, items), d_features.support);
        if queries == 0 {
            return;
        }
        // Items with queries: first the gradient of the items, then that of the queries. Then the squared lengths of
        // the queries, whose derivative is 2 q.
        add_weighted_rows(episode.queries, &transpose(&with_queries, items, queries), d_features.support);
        add_weighted_rows(episode.support, &with_queries, d_features.queries);
        let dim = d_features.queries.len() / queries;
        // `chunks_exact_mut` refuses a length of 0.
        let rows = episode.queries.iter().zip(d_features.queries.chunks_exact_mut(dim.max(1)));
        for ((query, d_query), &d_square) in rows.zip(&query_squares) {
            add_scaled(query, d_square + d_square, d_query);
        }
    }
}

/// `A + Aᵀ` of a square matrix.
fn plus_transpose<T: Real>(matrix: &[T], size: usize) -> Vec<T> {
    let element = |index: usize| matrix[index] + matrix[index % size * size + index / size];
    (0..matrix.len()).map(element).collect()
}

/// The transpose of a matrix of `rows` x `columns`.
fn transpose<T: Real>(matrix: &[T], rows: usize, columns: usize) -> Vec<T> {
    (0..matrix.len()).map(|index| matrix[index % rows * columns + index / rows]).collect()
}
