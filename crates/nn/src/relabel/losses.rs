//! What training lowers: the surprise at every item's true class, and at the queries' classes under the
//! prototypes.
//!
//! M items, C classes, Q queries. A query's logits are its negative squared distances to the prototypes over the
//! mean of all those distances, times a learned scale: embeddings of any scale look the same. Distances follow
//! from products, for prototypes are weights over items.

use super::space::Space;
use super::verdict::softmax;
use crate::real::Real;

/// The scale of the queries' logits before training, as its logarithm.
pub(super) const LOG_SCALE_START: f64 = 2.302_585_092_994_046;

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
pub(super) fn queries_loss<T: Real>(
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
    let distances = Distances::new(space, queries, weights);
    let mean = distances.mean();
    // Nothing is far from anything: nothing to learn from.
    if !(mean > 0.0) {
        return 0.0;
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
    distances.backward(queries, &d_distances, items, d_weights);
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
    fn new(space: &Space<T>, queries: &PlacedQueries<'_, T>, weights: &[T]) -> Self {
        let (items, count) = (space.items(), queries.classes.len());
        let classes = weights.len() / items;
        let mut distances =
            Distances { classes, all: vec![T::ZERO; classes * count], with_items: vec![T::ZERO; weights.len()] };
        let two = T::of(2.0);
        for class in 0..classes {
            let weights = &weights[class * items..(class + 1) * items];
            let with_items = &mut distances.with_items[class * items..(class + 1) * items];
            let row = &mut distances.all[class * count..(class + 1) * count];
            for (item, &weight) in weights.iter().enumerate() {
                add_scaled(with_items, &space.gram()[item * items..(item + 1) * items], weight);
                add_scaled(row, &queries.products[item * count..(item + 1) * count], -two * weight);
            }
            let square = weights.iter().zip(&*with_items).fold(T::ZERO, |sum, (&w, &p)| sum + w * p);
            row.iter_mut().zip(queries.squares).for_each(|(distance, &own)| *distance += own + square);
        }
        distances
    }

    fn mean(&self) -> f64 {
        self.all.iter().map(|distance| distance.wide()).sum::<f64>() / self.all.len().max(1) as f64
    }

    fn backward(&self, queries: &PlacedQueries<'_, T>, d_all: &[T], items: usize, d_weights: &mut [T]) {
        let count = queries.classes.len();
        let two = T::of(2.0);
        for class in 0..self.classes {
            let d_row = &d_all[class * count..(class + 1) * count];
            let d_square = d_row.iter().fold(T::ZERO, |sum, &d| sum + d);
            for item in 0..items {
                let products = &queries.products[item * count..(item + 1) * count];
                let d_product = products.iter().zip(d_row).fold(T::ZERO, |sum, (&p, &d)| sum + p * d);
                let with_item = self.with_items[class * items + item];
                d_weights[class * items + item] = two * (d_square * with_item - d_product);
            }
        }
    }
}

fn add_scaled<T: Real>(to: &mut [T], from: &[T], factor: T) {
    to.iter_mut().zip(from).for_each(|(to, &from)| *to += factor * from);
}
