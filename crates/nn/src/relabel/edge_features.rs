//! Edge features: five relations of two items that do not depend on the dimension or scale of the embeddings.
//!
//! One plane `[M, M]` per feature; row i, column j describes j as seen from i. All follow from the Gram matrix of the
//! items. Statistics are over pairs of different items. Where there is nothing to compare (one item, all items equal, a
//! zero vector) a feature has its neutral value, never the quotient of two rounding errors.

use super::gram_space::{MeanProducts, ROUNDING, centred_product, inverse_centred_length};
use crate::real::Real;

/// Number of features.
pub(super) const EDGE_FEATURES: usize = 5;

/// The value of each feature where there is nothing to compare.
pub(super) const NEUTRAL: [f64; EDGE_FEATURES] = [0.0, 0.0, 0.5, 0.5, 0.0];

/// The smallest standard deviation that cosines are divided by.
const MIN_DEVIATION: f64 = 1e-3;
/// Features without a natural bound are clamped to this, so that one distant item cannot dominate the network.
const MAX_FEATURE: f64 = 8.0;

/// Writes the features of one episode:
/// 0. the cosine of the items centred at their mean,
/// 1. the squared distance over its mean, minus 1,
/// 2. the relative rank of j among the neighbours of i,
/// 3. the relative rank of i among the neighbours of j,
/// 4. the cosine of the items as they are, standardised.
///
/// # Panics
/// If `gram` or a plane does not have `items²` elements.
pub(super) fn edge_features<T: Real>(gram: &[T], items: usize, mut planes: [&mut [T]; EDGE_FEATURES]) {
    assert_eq!(gram.len(), items * items);
    assert!(planes.iter().all(|plane| plane.len() == gram.len()));
    if items == 0 {
        return;
    }
    let [centred, distances, ranks, reverse_ranks, raw] = &mut planes;
    centred_cosines(gram, items, centred);
    squared_distances(gram, items, distances);
    relative_ranks(distances, items, ranks);
    for i in 0..items {
        (0..items).for_each(|j| reverse_ranks[i * items + j] = ranks[j * items + i]);
    }
    divide_by_mean(distances, gram, items);
    raw_cosines(gram, items, raw);
    standardise(raw, items);
}

fn centred_cosines<T: Real>(gram: &[T], items: usize, out: &mut [T]) {
    let MeanProducts { with_mean, mean_square } = MeanProducts::of(gram, items);
    let scale = |i: usize| inverse_centred_length(gram[i * items + i], with_mean[i], mean_square);
    let scales: Vec<T> = (0..items).map(scale).collect();
    for i in 0..items {
        for j in 0..items {
            let product = centred_product(gram[i * items + j], with_mean[i], with_mean[j], mean_square);
            out[i * items + j] = clamp(product * (scales[i] * scales[j]), T::ONE);
        }
        out[i * items + i] = T::ONE;
    }
}

fn raw_cosines<T: Real>(gram: &[T], items: usize, out: &mut [T]) {
    let scale = |i: usize| inverse_centred_length(gram[i * items + i], T::ZERO, T::ZERO);
    let scales: Vec<T> = (0..items).map(scale).collect();
    for i in 0..items {
        for j in 0..items {
            out[i * items + j] = clamp(gram[i * items + j] * (scales[i] * scales[j]), T::ONE);
        }
        out[i * items + i] = T::ONE;
    }
}

fn squared_distances<T: Real>(gram: &[T], items: usize, out: &mut [T]) {
    for i in 0..items {
        for j in 0..items {
            let distance =
                gram[i * items + i] + gram[j * items + j] - (gram[i * items + j] + gram[i * items + j]);
            out[i * items + j] = if distance > T::ZERO { distance } else { T::ZERO };
        }
        out[i * items + i] = T::ZERO;
    }
}

/// For every i the relative rank of j among the other items by distance, in (0, 1): the nearest of M - 1 items has
/// 0.5 / (M - 1). Equal distances get the mean of their ranks, so the order of the items does not matter. The rank of
/// an item relative to itself is 0.
fn relative_ranks<T: Real>(distances: &[T], items: usize, out: &mut [T]) {
    let mut order: Vec<(T, usize)> = Vec::with_capacity(items);
    for (i, (row, out)) in distances.chunks_exact(items.max(1)).zip(out.chunks_exact_mut(items)).enumerate() {
        order.clear();
        order.extend((0..items).filter(|&j| j != i).map(|j| (row[j], j)));
        order.sort_unstable_by(|a, b| a.0.partial_cmp(&b.0).unwrap_or(std::cmp::Ordering::Equal));
        let mut nearer = 0;
        for tied in order.chunk_by(|a, b| a.0 == b.0) {
            let rank = nearer as f64 + 0.5 * tied.len() as f64;
            let relative_rank = T::from_f64(rank / order.len() as f64);
            tied.iter().for_each(|&(_, j)| out[j] = relative_rank);
            nearer += tied.len();
        }
        out[i] = T::ZERO;
    }
}

/// Turns distances into distances over their mean, minus 1.
fn divide_by_mean<T: Real>(distances: &mut [T], gram: &[T], items: usize) {
    let pairs = (items * items - items).max(1) as f64;
    let mean = distances.iter().map(|distance| distance.to_f64()).sum::<f64>() / pairs;
    let squares = (0..items).map(|i| gram[i * items + i].to_f64()).sum::<f64>() / items.max(1) as f64;
    if mean > ROUNDING * squares {
        let scale = T::from_f64(1.0 / mean);
        distances.iter_mut().for_each(|d| *d = clamp(*d * scale - T::ONE, T::from_f64(MAX_FEATURE)));
    } else {
        distances.fill(T::ZERO);
    }
    (0..items).for_each(|i| distances[i * items + i] = -T::ONE);
}

/// Scales a plane so that its values off the diagonal have mean 0 and variance 1.
fn standardise<T: Real>(plane: &mut [T], items: usize) {
    let pairs = (items * items - items).max(1) as f64;
    let off_diagonal = || {
        let value = |(index, value): (usize, &T)| (index % (items + 1) != 0).then(|| value.to_f64());
        plane.iter().enumerate().filter_map(value)
    };
    let mean = off_diagonal().sum::<f64>() / pairs;
    let variance = off_diagonal().map(|value| (value - mean) * (value - mean)).sum::<f64>() / pairs;
    let scale = T::from_f64(1.0 / variance.sqrt().max(MIN_DEVIATION));
    let mean = T::from_f64(mean);
    plane.iter_mut().for_each(|value| *value = clamp((*value - mean) * scale, T::from_f64(MAX_FEATURE)));
}

/// `value` within [-bound, bound].
fn clamp<T: Real>(value: T, bound: T) -> T {
    if value > bound {
        bound
    } else if value < -bound {
        -bound
    } else {
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::TestRng;

    fn features<T: Real>(gram: &[T], items: usize) -> Vec<Vec<T>> {
        let mut planes = vec![vec![T::ZERO; items * items]; EDGE_FEATURES];
        let [a, b, c, d, e] = &mut planes[..] else { unreachable!() };
        edge_features(gram, items, [a, b, c, d, e]);
        planes
    }

    fn gram(rows: &[Vec<f64>]) -> Vec<f64> {
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum();
        rows.iter().flat_map(|a| rows.iter().map(move |b| dot(a, b))).collect()
    }

    /// The features computed from the vectors themselves, by definition.
    fn from_vectors(rows: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let (n, dim) = (rows.len(), rows[0].len());
        let pairs = || (0..n).flat_map(|i| (0..n).map(move |j| (i, j)));
        let apart = || pairs().filter(|(i, j)| i != j);
        let count = (n * n - n) as f64;
        let mean: Vec<f64> =
            (0..dim).map(|d| rows.iter().map(|row| row[d]).sum::<f64>() / n as f64).collect();
        let cosine = |a: &[f64], b: &[f64], m: &[f64]| {
            let product =
                |a: &[f64], b: &[f64]| -> f64 { (0..dim).map(|d| (a[d] - m[d]) * (b[d] - m[d])).sum() };
            product(a, b) / (product(a, a) * product(b, b)).sqrt()
        };
        let distance =
            |i: usize, j: usize| -> f64 { (0..dim).map(|d| (rows[i][d] - rows[j][d]).powi(2)).sum() };
        let mean_distance = apart().map(|(i, j)| distance(i, j)).sum::<f64>() / count;
        let rank = |i: usize, j: usize| {
            let nearer = (0..n).filter(|&k| k != i && distance(i, k) < distance(i, j)).count();
            if i == j { 0.0 } else { (nearer as f64 + 0.5) / (n as f64 - 1.0) }
        };
        let zero = vec![0.0; dim];
        let raw = |i: usize, j: usize| cosine(&rows[i], &rows[j], &zero);
        let raw_mean = apart().map(|(i, j)| raw(i, j)).sum::<f64>() / count;
        let variance = apart().map(|(i, j)| (raw(i, j) - raw_mean).powi(2)).sum::<f64>() / count;
        vec![
            pairs().map(|(i, j)| cosine(&rows[i], &rows[j], &mean)).collect(),
            pairs().map(|(i, j)| (distance(i, j) / mean_distance - 1.0).min(MAX_FEATURE)).collect(),
            pairs().map(|(i, j)| rank(i, j)).collect(),
            pairs().map(|(i, j)| rank(j, i)).collect(),
            pairs().map(|(i, j)| ((raw(i, j) - raw_mean) / variance.sqrt()).min(MAX_FEATURE)).collect(),
        ]
    }

    #[test]
    fn features_from_inner_products_are_those_of_the_vectors() {
        let mut rng = TestRng::new(3);
        for (items, dim) in [(2, 3), (3, 2), (9, 5), (25, 40)] {
            let rows: Vec<Vec<f64>> = (0..items).map(|_| rng.f64s(dim)).collect();
            let expected = from_vectors(&rows);
            for (feature, (found, expected)) in
                features(&gram(&rows), items).iter().zip(&expected).enumerate()
            {
                // Two items have one cosine, so its variance is 0.
                let compared = if items == 2 && feature == 4 { 0 } else { found.len() };
                for (pair, (a, b)) in found.iter().zip(expected).take(compared).enumerate() {
                    assert!((a - b).abs() < 1e-9, "{items} items, feature {feature}, pair {pair}: {a}, {b}");
                }
            }
        }
    }

    #[test]
    fn equal_distances_get_the_mean_of_their_ranks() {
        // A square: two neighbours at the same distance, one opposite corner.
        let rows = [[0.0, 0.0], [1.0, 0.0], [1.0, 1.0], [0.0, 1.0]].map(|row| row.to_vec());
        let ranks = &features(&gram(&rows), 4)[2];
        assert_eq!(ranks[..4], [0.0, 1.0 / 3.0, 2.5 / 3.0, 1.0 / 3.0]);
    }

    #[test]
    fn features_are_neutral_if_there_is_nothing_to_compare() {
        let same = features(&[0.3f32; 9], 3);
        assert!(same[0][1] == 0.0 && same[1][1] == 0.0 && same[2][1] == 0.5 && same[4][1] == 0.0);
        let degenerate =
            [vec![0.0f32; 9], vec![1.0], vec![0.0], vec![0.0, 0.0, 0.0, 1e-30], vec![1e30, 0.0, 0.0, 1.0]];
        for gram in degenerate {
            let items = gram.len().isqrt();
            assert!(features(&gram, items).iter().flatten().all(|value| value.is_finite()), "{gram:?}");
        }
        assert!(features::<f32>(&[], 0).iter().all(Vec::is_empty));
    }
}
