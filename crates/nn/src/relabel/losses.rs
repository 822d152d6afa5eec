//! What training lowers: the surprise at every item's true class, and at the queries' classes under the
//! prototypes.
//!
//! M items, C classes, Q queries. A query's logits are its negative squared distances to the prototypes over the
//! mean of all those distances, times a learned scale: embeddings of any scale look the same. Distances follow
//! from products, for prototypes are weights over items.

use super::space::Space;
use super::verdict::softmax;
use crate::isa::Isa;
use crate::matmul::{View, ViewMut, Write, multiply};
use crate::real::{Real, dot, sum};

/// The scale of the queries' logits before training, as its logarithm.
pub(super) const LOG_SCALE_START: f64 = std::f64::consts::LN_10;

/// Mean cross-entropy of the items' true classes; `d_logits` (M x (C + 1)) is written.
pub(super) fn items_loss<T: Real>(
    shares: &[T],
    truth: &[Option<u32>],
    classes: usize,
    weight: f64,
    d_logits: &mut [T],
) -> f64 {
    let each = weight / truth.len().max(1) as f64;
    let mut loss = 0.0;
    d_logits.copy_from_slice(shares);
    for (d_row, class) in d_logits.chunks_exact_mut(classes + 1).zip(truth) {
        let place = class.map_or(classes, |class| class as usize);
        loss -= each * d_row[place].wide().max(f64::MIN_POSITIVE).ln();
        d_row[place] -= T::ONE;
        d_row.iter_mut().for_each(|d| *d *= T::of(each));
    }
    loss
}

/// The queries of one episode in its space.
pub(super) struct PlacedQueries<'a, T> {
    /// M x Q products with the items.
    pub(super) products: &'a [T],
    /// Q squared lengths.
    pub(super) squares: &'a [T],
    /// Q classes.
    pub(super) classes: &'a [u32],
}

/// Mean cross-entropy of the queries. Adds to the gradient of the scale's logarithm; `d_weights` (C x M) is
/// written.
#[allow(clippy::too_many_arguments)]
pub(super) fn queries_loss<T: Real>(
    isa: Isa,
    space: &Space<T>,
    queries: &PlacedQueries<'_, T>,
    weights: &[T],
    log_scale: T,
    weight: f64,
    d_weights: &mut [T],
    d_log_scale: &mut T,
) -> f64 {
    let (items, count) = (space.items(), queries.classes.len());
    d_weights.fill(T::ZERO);
    let distances = Distances::new(isa, space, queries, weights);
    let mean = distances.mean();
    // Nothing is far from anything: all classes are as likely, and there is nothing to learn from.
    if mean <= 0.0 {
        return if count == 0 { 0.0 } else { weight * (distances.classes as f64).ln() };
    }
    let scale = T::of(log_scale.wide().exp() / mean);
    let each = weight / count as f64;
    let (mut loss, mut d_mean) = (0.0, 0.0);
    let mut d_distances = vec![T::ZERO; distances.all.len()];
    let mut row = vec![T::ZERO; distances.classes];
    for (query, &class) in queries.classes.iter().enumerate() {
        (0..row.len()).for_each(|c| row[c] = -scale * distances.all[c * count + query]);
        softmax(&mut row);
        loss -= each * row[class as usize].wide().max(f64::MIN_POSITIVE).ln();
        row[class as usize] -= T::ONE;
        for (c, &error) in row.iter().enumerate() {
            let d_distance = -scale * error * T::of(each);
            d_distances[c * count + query] = d_distance;
            d_mean -= (d_distance * distances.all[c * count + query]).wide();
        }
    }
    // The loss sees distances times scale over mean: growing with the one is shrinking with the other.
    *d_log_scale -= T::of(d_mean);
    let through_mean = T::of(d_mean / mean / d_distances.len() as f64);
    d_distances.iter_mut().for_each(|d| *d += through_mean);
    distances.backward(isa, queries, &d_distances, items, d_weights);
    loss
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
        let products = View::new(queries.products, items, count);
        multiply(isa, mixed, products, Write::Set, ViewMut::new(&mut all, classes, count));
        let rows = weights.chunks_exact(items).zip(with_items.chunks_exact(items));
        for ((weights, with_items), row) in rows.zip(all.chunks_exact_mut(count.max(1))) {
            let square = dot(weights, with_items);
            for (distance, &own) in row.iter_mut().zip(queries.squares) {
                *distance = own + square - (*distance + *distance);
            }
        }
        Distances { classes, all, with_items }
    }

    fn mean(&self) -> f64 {
        self.all.iter().map(|distance| distance.wide()).sum::<f64>() / self.all.len().max(1) as f64
    }

    fn backward(
        &self,
        isa: Isa,
        queries: &PlacedQueries<'_, T>,
        d_all: &[T],
        items: usize,
        d_weights: &mut [T],
    ) {
        let (classes, count) = (self.classes, queries.classes.len());
        let products = View::new(queries.products, items, count).transposed();
        let d_weights_view = ViewMut::new(&mut *d_weights, classes, items);
        multiply(isa, View::new(d_all, classes, count), products, Write::Set, d_weights_view);
        let rows = d_weights.chunks_exact_mut(items).zip(self.with_items.chunks_exact(items));
        for ((d_weights, with_items), d_row) in rows.zip(d_all.chunks_exact(count)) {
            let d_square = sum(d_row);
            for (d_weight, &with_item) in d_weights.iter_mut().zip(with_items) {
                let d_product = *d_weight;
                *d_weight = T::of(2.0) * (d_square * with_item - d_product);
            }
        }
    }
}
