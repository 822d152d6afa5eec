//! What training lowers: the surprise at every item's true class, and at the queries' classes under the
//! prototypes.
//!
//! M items, C classes, Q queries. A query's logits are its negative squared distances to the prototypes over the
//! mean of all those distances, times a learned scale: embeddings of any scale look the same. Distances follow
//! from products, for prototypes are weights over items.

use super::space::Space;
use super::verdict::softmax;
use crate::head::Episode;
use crate::isa::Isa;
use crate::layers::loss::square;
use crate::matmul::{View, ViewMut, Write, multiply};
use crate::real::{Real, dot, sum};

/// The scale of the queries' logits before training, as its logarithm.
pub(super) const LOG_SCALE_START: f64 = std::f64::consts::LN_10;

/// Mean cross-entropy of the items' true classes, times `weight`, and its gradient with respect to the logits of
/// the shares (M x (C + 1)).
pub(super) fn items_loss<T: Real>(
    shares: &[T],
    truth: &[Option<u32>],
    classes: usize,
    weight: f64,
) -> (f64, Vec<T>) {
    let each = weight / truth.len().max(1) as f64;
    let mut loss = 0.0;
    let mut d_logits = shares.to_vec();
    for (d_row, class) in d_logits.chunks_exact_mut(classes + 1).zip(truth) {
        let place = class.map_or(classes, |class| class as usize);
        loss -= each * d_row[place].to_f64().max(f64::MIN_POSITIVE).ln();
        d_row[place] -= T::ONE;
        d_row.iter_mut().for_each(|d| *d *= T::from_f64(each));
    }
    (loss, d_logits)
}

/// The queries of one episode in its space.
pub(super) struct PlacedQueries<'a, T> {
    /// M x Q products with the items.
    products: Vec<T>,
    /// Q squared lengths.
    squares: Vec<T>,
    /// Q classes.
    classes: &'a [u32],
}

impl<'a, T: Real> PlacedQueries<'a, T> {
    pub(super) fn new(isa: Isa, space: &Space<T>, episode: &Episode<'a, T>) -> Self {
        let mut products = vec![T::ZERO; episode.support.len() * episode.queries.len()];
        T::products(isa, episode.queries, episode.support, &mut products);
        let mut squares: Vec<T> = episode.queries.iter().map(|query| square(isa, query)).collect();
        space.place(&mut products, &mut squares);
        PlacedQueries { products, squares, classes: episode.query_classes }
    }
}

/// What the queries say about prototypes.
pub(super) struct QueriesLoss<T> {
    pub(super) loss: f64,
    /// C x M
    pub(super) d_weights: Vec<T>,
    pub(super) d_log_scale: T,
}

/// Mean cross-entropy of the queries, times `weight`.
pub(super) fn queries_loss<T: Real>(
    isa: Isa,
    space: &Space<T>,
    queries: &PlacedQueries<'_, T>,
    weights: &[T],
    log_scale: T,
    weight: f64,
) -> QueriesLoss<T> {
    let count = queries.classes.len();
    let distances = Distances::new(isa, space, queries, weights);
    let mean = distances.mean();
    // Nothing is far from anything: all classes are as likely, and there is nothing to learn from.
    if mean <= 0.0 {
        let loss = if count == 0 { 0.0 } else { weight * (distances.classes as f64).ln() };
        return QueriesLoss { loss, d_weights: vec![T::ZERO; weights.len()], d_log_scale: T::ZERO };
    }
    let scale = T::from_f64(log_scale.to_f64().exp() / mean);
    let (loss, mut d_distances) = distances.cross_entropy(queries.classes, scale, weight / count as f64);
    // The loss sees distances times scale over mean: what grows with the one shrinks with the other.
    let growth = dot(&d_distances, &distances.all);
    let through_mean = -growth / T::from_f64(mean * d_distances.len() as f64);
    d_distances.iter_mut().for_each(|d| *d += through_mean);
    QueriesLoss { loss, d_weights: distances.backward(isa, queries, &d_distances), d_log_scale: growth }
}

/// Squared distances of queries to prototypes.
struct Distances<T> {
    classes: usize,
    /// C x Q
    all: Vec<T>,
    /// C x M: products of the prototypes with the items.
    with_items: Vec<T>,
}

impl<T: Real> Distances<T> {
    fn new(isa: Isa, space: &Space<T>, queries: &PlacedQueries<'_, T>, weights: &[T]) -> Self {
        let (items, count) = (space.items(), queries.classes.len());
        let classes = weights.len() / items;
        let mut with_items = vec![T::ZERO; weights.len()];
        let mut all = vec![T::ZERO; classes * count];
        let mixed = View::new(weights, classes, items);
        let gram = View::new(space.gram(), items, items);
        multiply(isa, mixed, gram, Write::Set, ViewMut::new(&mut with_items, classes, items));
        let products = View::new(&queries.products, items, count);
        multiply(isa, mixed, products, Write::Set, ViewMut::new(&mut all, classes, count));
        let rows = weights.chunks_exact(items).zip(with_items.chunks_exact(items));
        for ((weights, with_items), row) in rows.zip(all.chunks_exact_mut(count.max(1))) {
            let square = dot(weights, with_items);
            for (distance, &own) in row.iter_mut().zip(&queries.squares) {
                *distance = own + square - (*distance + *distance);
            }
        }
        Distances { classes, all, with_items }
    }

    fn mean(&self) -> f64 {
        self.all.iter().map(|distance| distance.to_f64()).sum::<f64>() / self.all.len().max(1) as f64
    }

    /// The sum over the queries, each counting for `each`, and the gradient of the distances.
    fn cross_entropy(&self, classes: &[u32], scale: T, each: f64) -> (f64, Vec<T>) {
        let mut loss = 0.0;
        let mut d_distances = vec![T::ZERO; self.all.len()];
        let mut row = vec![T::ZERO; self.classes];
        for (query, &class) in classes.iter().enumerate() {
            let places = (query..self.all.len()).step_by(classes.len());
            row.iter_mut().zip(places.clone()).for_each(|(logit, place)| *logit = -scale * self.all[place]);
            softmax(&mut row);
            loss -= each * row[class as usize].to_f64().max(f64::MIN_POSITIVE).ln();
            row[class as usize] -= T::ONE;
            let slope = -scale * T::from_f64(each);
            row.iter().zip(places).for_each(|(&error, place)| d_distances[place] = slope * error);
        }
        (loss, d_distances)
    }

    /// The gradient of the weights.
    fn backward(&self, isa: Isa, queries: &PlacedQueries<'_, T>, d_all: &[T]) -> Vec<T> {
        let (classes, count) = (self.classes, queries.classes.len());
        let items = self.with_items.len() / classes;
        let mut d_weights = vec![T::ZERO; self.with_items.len()];
        let products = View::new(&queries.products, items, count).transposed();
        let d_products = ViewMut::new(&mut d_weights, classes, items);
        multiply(isa, View::new(d_all, classes, count), products, Write::Set, d_products);
        let rows = d_weights.chunks_exact_mut(items).zip(self.with_items.chunks_exact(items));
        for ((d_weights, with_items), d_row) in rows.zip(d_all.chunks_exact(count)) {
            let d_square = sum(d_row);
            for (d_weight, &with_item) in d_weights.iter_mut().zip(with_items) {
                let d_product = *d_weight;
                *d_weight = T::from_f64(2.0) * (d_square * with_item - d_product);
            }
        }
        d_weights
    }
}
