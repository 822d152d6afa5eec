//! The losses of training: the cross-entropy of every item's true class ([`item_loss`]), and that of the queries under
//! the prototypes ([`query_loss`]).
//!
//! Shapes: M items, C classes, Q queries. The logits of a query are its negative squared distances to the prototypes,
//! divided by the mean of all those distances and multiplied by a learned scale, so embeddings of any scale give the
//! same loss. Distances follow from inner products, because prototypes are weighted sums of items. `d_x` is the
//! gradient of the loss with respect to x.

use super::feature_gradient::ProductGradient;
use super::gram_space::GramSpace;
use super::posterior::softmax;
use crate::head::Episode;
use crate::layers::loss::squared_norm;
use crate::matmul::{Matrix, MatrixMut, Write, multiply};
use crate::real::{Real, dot, sum};

/// The initial logarithm of the scale of the queries' logits: a scale of 10.
pub(super) const INITIAL_LOG_SCALE: f64 = std::f64::consts::LN_10;

/// The mean cross-entropy of the items' true classes under their posterior (`[M, C + 1]`), times `weight`, and its
/// gradient with respect to the logits of the posterior (`[M, C + 1]`). A truth of `None` is the last column, "none of
/// the classes".
pub(super) fn item_loss<T: Real>(
    probabilities: &[T],
    truth: &[Option<u32>],
    classes: usize,
    weight: f64,
) -> (f64, Vec<T>) {
    let item_weight = weight / truth.len().max(1) as f64;
    let mut loss = 0.0;
    let mut d_logits = probabilities.to_vec();
    for (d_row, class) in d_logits.chunks_exact_mut(classes + 1).zip(truth) {
        let target = class.map_or(classes, |class| class as usize);
        // A probability of 0 would make the loss infinite.
        loss -= item_weight * d_row[target].to_f64().max(f64::MIN_POSITIVE).ln();
        d_row[target] -= T::ONE;
        d_row.iter_mut().for_each(|d| *d *= T::from_f64(item_weight));
    }
    (loss, d_logits)
}

/// The queries of one episode in its space.
pub(super) struct QueryProducts<'a, T> {
    /// Inner products with the items, `[M, Q]`.
    products: Vec<T>,
    /// Squared lengths, `[Q]`.
    squares: Vec<T>,
    /// One over the length of each centred query, `[Q]`; empty if the space is not centred.
    scales: Vec<T>,
    /// True classes, `[Q]`.
    classes: &'a [u32],
}

impl<'a, T: Real> QueryProducts<'a, T> {
    /// Computes the inner products and transforms them into the space of the episode.
    pub(super) fn new(space: &GramSpace<T>, episode: &Episode<'a, T>) -> Self {
        let mut products = vec![T::ZERO; episode.support.len() * episode.queries.len()];
        T::products(episode.queries, episode.support, &mut products);
        let mut squares: Vec<T> = episode.queries.iter().map(|query| squared_norm(query)).collect();
        let scales = space.transform_and_scale_queries(&mut products, &mut squares);
        QueryProducts { products, squares, scales, classes: episode.query_classes }
    }

    /// Backward pass of the transformation into the space of the episode: turns the gradients of the transformed
    /// products and lengths of the queries into those of the original ones.
    fn transform_backward(&self, space: &GramSpace<T>, gradient: &mut ProductGradient<T>) {
        let ProductGradient { with_queries, query_squares, centring, .. } = gradient;
        space.transform_queries_backward(&self.products, &self.scales, with_queries, query_squares, centring);
    }
}

/// The loss of the queries and its gradients.
pub(super) struct QueryLoss<T> {
    pub(super) loss: f64,
    /// The gradient with respect to the weights of the prototypes, `[C, M]`.
    pub(super) d_weights: Vec<T>,
    /// The gradient with respect to the logarithm of the scale of the logits.
    pub(super) d_log_scale: T,
}

/// The mean cross-entropy of the queries under the prototypes of `weights` (`[C, M]`), times `weight`. `log_scale` is
/// the logarithm of the scale of the logits. `d_products`, if given, must be zero; it becomes the gradients of the
/// inner products: of the Gram matrix in this space, and of the products and lengths of the queries before their
/// transformation.
pub(super) fn query_loss<T: Real>(
    space: &GramSpace<T>,
    queries: &QueryProducts<'_, T>,
    weights: &[T],
    log_scale: T,
    weight: f64,
    d_products: Option<&mut ProductGradient<T>>,
) -> QueryLoss<T> {
    let count = queries.classes.len();
    let distances = Distances::new(space, queries, weights);
    let mean = distances.mean();
    // All distances are 0, or there are no queries: the classes are equally likely, and there is no gradient.
    if mean <= 0.0 {
        let loss = if count == 0 { 0.0 } else { weight * (distances.classes as f64).ln() };
        return QueryLoss { loss, d_weights: vec![T::ZERO; weights.len()], d_log_scale: T::ZERO };
    }
    let scale = T::from_f64(log_scale.to_f64().exp() / mean);
    let (loss, mut d_distances) = distances.cross_entropy(queries.classes, scale, weight / count as f64);
    // The loss depends on `distances * s` with `ln s = log_scale - ln(mean)`. So dL/d log_scale is the sum of D dL/dD
    // over the distances D, dL/d ln(mean) is its negative, and through the mean each distance gets dL/d ln(mean),
    // divided by the mean and by the number of distances.
    let d_log_scale = dot(&d_distances, &distances.values);
    let through_mean = -d_log_scale / T::from_f64(mean * d_distances.len() as f64);
    d_distances.iter_mut().for_each(|d| *d += through_mean);
    if let Some(d_products) = d_products {
        distances.products_backward(weights, &d_distances, d_products);
        queries.transform_backward(space, d_products);
    }
    QueryLoss { loss, d_weights: distances.backward(queries, &d_distances), d_log_scale }
}

/// Squared distances of the queries to the prototypes of one episode.
struct Distances<T> {
    classes: usize,
    /// `[C, Q]`
    values: Vec<T>,
    /// Inner products of prototypes and items, `[C, M]`.
    with_items: Vec<T>,
}

impl<T: Real> Distances<T> {
    /// With w the weights of a prototype, G the Gram matrix of the items and p their products with query q, the squared
    /// distance of q to the prototype is `q . q + w . G w - 2 w . p`.
    fn new(space: &GramSpace<T>, queries: &QueryProducts<'_, T>, weights: &[T]) -> Self {
        let (items, count) = (space.items(), queries.classes.len());
        let classes = weights.len() / items;
        let mut with_items = vec![T::ZERO; weights.len()];
        let mut values = vec![T::ZERO; classes * count];
        let prototypes = Matrix::new(weights, classes, items);
        let gram = Matrix::new(space.gram(), items, items);
        multiply(prototypes, gram, Write::Set, MatrixMut::new(&mut with_items, classes, items));
        let products = Matrix::new(&queries.products, items, count);
        multiply(prototypes, products, Write::Set, MatrixMut::new(&mut values, classes, count));
        // `values` holds w . p up to here and becomes the distances.
        let rows = weights.chunks_exact(items).zip(with_items.chunks_exact(items));
        for ((weights, with_items), row) in rows.zip(values.chunks_exact_mut(count.max(1))) {
            let prototype_square = dot(weights, with_items);
            for (distance, &query_square) in row.iter_mut().zip(&queries.squares) {
                *distance = query_square + prototype_square - (*distance + *distance);
            }
        }
        Distances { classes, values, with_items }
    }

    /// The mean of all distances; 0 if there are no queries.
    fn mean(&self) -> f64 {
        self.values.iter().map(|distance| distance.to_f64()).sum::<f64>() / self.values.len().max(1) as f64
    }

    /// The cross-entropy of the logits `-scale distance`, summed over the queries, each with weight `query_weight`, and
    /// its gradient with respect to the distances (`[C, Q]`). `classes` are the true ones.
    fn cross_entropy(&self, classes: &[u32], scale: T, query_weight: f64) -> (f64, Vec<T>) {
        let mut loss = 0.0;
        let mut d_distances = vec![T::ZERO; self.values.len()];
        let mut row = vec![T::ZERO; self.classes];
        for (query, &class) in classes.iter().enumerate() {
            // The distances of one query are a column of `values`, whose rows are as long as the list of queries.
            let column = (query..self.values.len()).step_by(classes.len());
            row.iter_mut()
                .zip(column.clone())
                .for_each(|(logit, index)| *logit = -scale * self.values[index]);
            softmax(&mut row);
            loss -= query_weight * row[class as usize].to_f64().max(f64::MIN_POSITIVE).ln();
            row[class as usize] -= T::ONE;
            let slope = -scale * T::from_f64(query_weight);
            row.iter().zip(column).for_each(|(&error, index)| d_distances[index] = slope * error);
        }
        (loss, d_distances)
    }

    /// Computes the gradients of the inner products in the space of the episode; `gradient` is zero before. The
    /// distance of query q to the prototype of weights w is `q.q + w G w - 2 w.p`, with G the Gram matrix and p the
    /// products of the items with q.
    fn products_backward(&self, weights: &[T], d_distances: &[T], gradient: &mut ProductGradient<T>) {
        let classes = self.classes;
        let (items, count) = (weights.len() / classes, d_distances.len() / classes);
        // With d the gradients of the distances: that of G is the sum over prototypes of (sum over queries of d) w wᵀ,
        // that of `q . q` the sum over prototypes of d, and that of p minus twice the sum over prototypes of d w.
        let (mut scaled, mut minus_twice) = (weights.to_vec(), d_distances.to_vec());
        for (scaled, d_row) in scaled.chunks_exact_mut(items).zip(d_distances.chunks_exact(count)) {
            let d_square = sum(d_row);
            scaled.iter_mut().for_each(|weight| *weight *= d_square);
            gradient.query_squares.iter_mut().zip(d_row).for_each(|(d, &d_distance)| *d += d_distance);
        }
        minus_twice.iter_mut().for_each(|d| *d *= T::from_f64(-2.0));
        let prototypes = Matrix::new(weights, classes, items);
        let d_gram = MatrixMut::new(&mut gradient.gram, items, items);
        multiply(Matrix::new(&scaled, classes, items).transposed(), prototypes, Write::Set, d_gram);
        let d_products = MatrixMut::new(&mut gradient.with_queries, items, count);
        multiply(prototypes.transposed(), Matrix::new(&minus_twice, classes, count), Write::Set, d_products);
    }

    /// The gradient of the weights, `[C, M]`: `sum over queries of d (2 G w - 2 p)`, with d the gradients of
    /// the distances (`d_distances`, `[C, Q]`).
    fn backward(&self, queries: &QueryProducts<'_, T>, d_distances: &[T]) -> Vec<T> {
        let (classes, count) = (self.classes, queries.classes.len());
        let items = self.with_items.len() / classes;
        let mut d_weights = vec![T::ZERO; self.with_items.len()];
        let products = Matrix::new(&queries.products, items, count).transposed();
        // First the sums of d p, in the place of the result.
        let weighted_products = MatrixMut::new(&mut d_weights, classes, items);
        multiply(Matrix::new(d_distances, classes, count), products, Write::Set, weighted_products);
        let rows = d_weights.chunks_exact_mut(items).zip(self.with_items.chunks_exact(items));
        for ((d_weights, with_items), d_row) in rows.zip(d_distances.chunks_exact(count)) {
            let d_square = sum(d_row);
            for (d_weight, &with_item) in d_weights.iter_mut().zip(with_items) {
                let weighted_product = *d_weight;
                *d_weight = T::from_f64(2.0) * (d_square * with_item - weighted_product);
            }
        }
        d_weights
    }
}
