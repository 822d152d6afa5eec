//! Edge features: five relations of two items that do not depend on the dimension or scale of the embeddings. Start
//! with [`edge_features`], which lists them, and its backward pass [`edge_features_backward`].
//!
//! One plane `[M, M]` per feature, M the number of items; row i, column j describes j as seen from i. All follow from
//! the Gram matrix of the items (`[M, M]`, their inner products). Statistics are over pairs of different items. Where
//! there is nothing to compare (one item, all items equal, a zero vector) a feature has its neutral value, never the
//! quotient of two rounding errors. `d_x` is the gradient of the loss with respect to x.

use super::gram_space::{
    CentringGradient, MeanProducts, ROUNDING, centred_cosines_backward, centred_product,
    inverse_centred_length, squared_length_gradient,
};
use crate::real::Real;

/// The number of edge features.
pub(super) const EDGE_FEATURES: usize = 5;

/// The features with a gradient. The others are ranks, which are piecewise constant.
pub(super) const DIFFERENTIABLE: [usize; 3] = [0, 1, 4];

/// The value of each feature where there is nothing to compare: that of an average pair.
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

/// Backward pass of [`edge_features`]: adds to the gradient of the Gram matrix (`[M, M]`). `planes` are the features
/// and `d_planes` their gradients. Only the planes of [`DIFFERENTIABLE`] features are read: the gradient of ranks is 0.
/// Where a feature is clamped or set to a constant (on the diagonal), its gradient is 0, too.
pub(super) fn edge_features_backward<T: Real>(
    gram: &[T],
    items: usize,
    planes: [&[T]; EDGE_FEATURES],
    d_planes: [&[T]; EDGE_FEATURES],
    d_gram: &mut [T],
) {
    if items == 0 {
        return;
    }
    centred_cosines_backward_to_gram(gram, items, planes[0], d_planes[0], d_gram);
    relative_distances_backward(gram, items, planes[1], d_planes[1], d_gram);
    standardised_cosines_backward(gram, items, planes[4], d_planes[4], d_gram);
}

/// One over the length of each item centred at their mean.
fn centred_scales<T: Real>(gram: &[T], items: usize, means: &MeanProducts<T>) -> Vec<T> {
    let MeanProducts { with_mean, mean_square } = means;
    let scale = |i: usize| inverse_centred_length(gram[i * items + i], with_mean[i], *mean_square);
    (0..items).map(scale).collect()
}

/// Feature 0: the cosines of the items centred at their mean; 1 on the diagonal.
fn centred_cosines<T: Real>(gram: &[T], items: usize, out: &mut [T]) {
    let means = MeanProducts::of(gram, items);
    let scales = centred_scales(gram, items, &means);
    let MeanProducts { with_mean, mean_square } = means;
    for i in 0..items {
        for j in 0..items {
            let product = centred_product(gram[i * items + j], with_mean[i], with_mean[j], mean_square);
            out[i * items + j] = clamp(product * (scales[i] * scales[j]), T::ONE);
        }
        out[i * items + i] = T::ONE;
    }
}

/// Backward pass of [`centred_cosines`]: adds to the gradient of the Gram matrix.
fn centred_cosines_backward_to_gram<T: Real>(
    gram: &[T],
    items: usize,
    cosines: &[T],
    d_cosines: &[T],
    d_gram: &mut [T],
) {
    let scales = centred_scales(gram, items, &MeanProducts::of(gram, items));
    let mut d_products = where_unclamped(cosines, d_cosines, T::ONE);
    clear_diagonal(&mut d_products, items);
    centred_cosines_backward(cosines, &scales, &mut d_products, CentringGradient::new(items));
    d_gram.iter_mut().zip(&d_products).for_each(|(d, &d_product)| *d += d_product);
}

/// One over the length of each item.
fn raw_scales<T: Real>(gram: &[T], items: usize) -> Vec<T> {
    (0..items).map(|i| inverse_centred_length(gram[i * items + i], T::ZERO, T::ZERO)).collect()
}

/// The cosines of the items as they are; 1 on the diagonal.
fn raw_cosines<T: Real>(gram: &[T], items: usize, out: &mut [T]) {
    let scales = raw_scales(gram, items);
    for i in 0..items {
        for j in 0..items {
            out[i * items + j] = clamp(gram[i * items + j] * (scales[i] * scales[j]), T::ONE);
        }
        out[i * items + i] = T::ONE;
    }
}

/// The squared distances of the items, `g_ii + g_jj - 2 g_ij`, at least 0.
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
        // The rank of an item counts all nearer items and half of the items at its own distance, itself included.
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
    if let Some(mean) = mean_distance(distances, gram, items) {
        let scale = T::from_f64(1.0 / mean);
        distances.iter_mut().for_each(|d| *d = clamp(*d * scale - T::ONE, T::from_f64(MAX_FEATURE)));
    } else {
        distances.fill(T::ZERO);
    }
    // An item has the distance 0 to itself, also where all features are neutral.
    (0..items).for_each(|i| distances[i * items + i] = -T::ONE);
}

/// The number of ordered pairs of different items, at least 1 because it is a divisor.
fn pairs(items: usize) -> f64 {
    (items * items - items).max(1) as f64
}

/// The mean squared distance of different items; `None` if all items are equal up to rounding, that is, if it is tiny
/// compared with the mean square of their lengths.
fn mean_distance<T: Real>(distances: &[T], gram: &[T], items: usize) -> Option<f64> {
    let mean = distances.iter().map(|distance| distance.to_f64()).sum::<f64>() / pairs(items);
    let squares = (0..items).map(|i| gram[i * items + i].to_f64()).sum::<f64>() / items.max(1) as f64;
    (mean > ROUNDING * squares).then_some(mean)
}

/// Backward pass of [`squared_distances`] and [`divide_by_mean`]: adds to the gradient of the Gram matrix. A distance
/// d_ij counts in its own feature, `d_ij / mean - 1`, and in the mean of all features.
fn relative_distances_backward<T: Real>(
    gram: &[T],
    items: usize,
    relative: &[T],
    d_relative: &[T],
    d_gram: &mut [T],
) {
    let mut distances = vec![T::ZERO; gram.len()];
    squared_distances(gram, items, &mut distances);
    let Some(mean) = mean_distance(&distances, gram, items) else { return };
    let scale = T::from_f64(1.0 / mean);
    let mut d_distances = where_unclamped(relative, d_relative, T::from_f64(MAX_FEATURE));
    clear_diagonal(&mut d_distances, items);
    let sum = d_distances.iter().zip(&distances).map(|(&d, &distance)| d * distance).sum::<T>();
    // The gradient of a distance through the mean: d(d_kl / mean) / d(mean) = -d_kl / mean², and the mean has `pairs`
    // terms.
    let through_mean = -sum * scale * scale * T::from_f64(1.0 / pairs(items));
    // A distance is `g_ii + g_jj - 2 g_ij`; where it was raised to 0 it has no gradient.
    for i in 0..items {
        for j in (0..items).filter(|&j| j != i && distances[i * items + j] > T::ZERO) {
            let d_distance = d_distances[i * items + j] * scale + through_mean;
            d_gram[i * items + i] += d_distance;
            d_gram[j * items + j] += d_distance;
            d_gram[i * items + j] -= d_distance + d_distance;
        }
    }
}

/// (mean, variance) of a plane off the diagonal.
fn off_diagonal_moments<T: Real>(plane: &[T], items: usize) -> (f64, f64) {
    let off_diagonal = || {
        // The indices of the diagonal are the multiples of `items + 1`.
        let value = |(index, value): (usize, &T)| (index % (items + 1) != 0).then(|| value.to_f64());
        plane.iter().enumerate().filter_map(value)
    };
    let mean = off_diagonal().sum::<f64>() / pairs(items);
    let variance = off_diagonal().map(|value| (value - mean) * (value - mean)).sum::<f64>() / pairs(items);
    (mean, variance)
}

/// Scales a plane so that its values off the diagonal have mean 0 and variance 1.
fn standardise<T: Real>(plane: &mut [T], items: usize) {
    let (mean, variance) = off_diagonal_moments(plane, items);
    let scale = T::from_f64(1.0 / variance.sqrt().max(MIN_DEVIATION));
    let mean = T::from_f64(mean);
    plane.iter_mut().for_each(|value| *value = clamp((*value - mean) * scale, T::from_f64(MAX_FEATURE)));
}

/// Backward pass of [`raw_cosines`] and [`standardise`]: adds to the gradient of the Gram matrix.
fn standardised_cosines_backward<T: Real>(
    gram: &[T],
    items: usize,
    standardised: &[T],
    d_standardised: &[T],
    d_gram: &mut [T],
) {
    let scales = raw_scales(gram, items);
    let mut cosines = vec![T::ZERO; gram.len()];
    raw_cosines(gram, items, &mut cosines);
    let d_standardised = where_unclamped(standardised, d_standardised, T::from_f64(MAX_FEATURE));
    let d_cosines = standardise_backward(&cosines, items, &d_standardised);
    let mut d_cosines = where_unclamped(&cosines, &d_cosines, T::ONE);
    // The cosine of an item with itself is the constant 1.
    clear_diagonal(&mut d_cosines, items);
    // With s_i one over the length of item i, a cosine is `g_ij s_i s_j`: its gradient with respect to ln s_i is
    // itself.
    let mut d_log_scales = vec![T::ZERO; items];
    for i in 0..items {
        for j in 0..items {
            let (cosine, d_cosine) = (cosines[i * items + j], d_cosines[i * items + j]);
            d_log_scales[i] += cosine * d_cosine;
            d_log_scales[j] += cosine * d_cosine;
            d_gram[i * items + j] += d_cosine * (scales[i] * scales[j]);
        }
    }
    for i in 0..items {
        d_gram[i * items + i] += squared_length_gradient(scales[i], d_log_scales[i]);
    }
}

/// Backward pass of [`standardise`] without its clamp: the gradient of the values off the diagonal. Those on the
/// diagonal do not enter mean and variance, but are shifted and scaled by them.
fn standardise_backward<T: Real>(values: &[T], items: usize, d_standardised: &[T]) -> Vec<T> {
    let (mean, variance) = off_diagonal_moments(values, items);
    let deviation = variance.sqrt();
    let (scale, mean) = (T::from_f64(1.0 / deviation.max(MIN_DEVIATION)), T::from_f64(mean));
    let inverse_pairs = T::from_f64(1.0 / pairs(items));
    let through_mean = -scale * d_standardised.iter().copied().sum::<T>() * inverse_pairs;
    // Below its minimum the deviation is replaced by a constant, which has no gradient.
    let through_deviation = if deviation > MIN_DEVIATION {
        let terms = values.iter().zip(d_standardised).map(|(&value, &d)| (value - mean) * d);
        -scale * scale * scale * terms.sum::<T>() * inverse_pairs
    } else {
        T::ZERO
    };
    let of_value = |(&value, &d): (&T, &T)| scale * d + through_mean + through_deviation * (value - mean);
    values.iter().zip(d_standardised).map(of_value).collect()
}

/// The gradients of clamped values: 0 where a value is at its bound.
fn where_unclamped<T: Real>(values: &[T], d_values: &[T], bound: T) -> Vec<T> {
    let of_value = |(&value, &d): (&T, &T)| if value.abs() < bound { d } else { T::ZERO };
    values.iter().zip(d_values).map(of_value).collect()
}

/// Sets the diagonal to 0.
fn clear_diagonal<T: Real>(plane: &mut [T], items: usize) {
    (0..items).for_each(|i| plane[i * items + i] = T::ZERO);
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
    use crate::gradient_check::{TestRng, check_gradient_within};

    /// The five planes of features.
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

    fn slices(planes: &[Vec<f64>]) -> [&[f64]; EDGE_FEATURES] {
        std::array::from_fn(|feature| planes[feature].as_slice())
    }

    /// The features computed from the vectors themselves, by definition.
    fn from_vectors(rows: &[Vec<f64>]) -> Vec<Vec<f64>> {
        let (n, dim) = (rows.len(), rows[0].len());
        let pairs = || (0..n).flat_map(|i| (0..n).map(move |j| (i, j)));
        let different = || pairs().filter(|(i, j)| i != j);
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
        let mean_distance = different().map(|(i, j)| distance(i, j)).sum::<f64>() / count;
        let rank = |i: usize, j: usize| {
            let nearer = (0..n).filter(|&k| k != i && distance(i, k) < distance(i, j)).count();
            if i == j { 0.0 } else { (nearer as f64 + 0.5) / (n as f64 - 1.0) }
        };
        let zero = vec![0.0; dim];
        let raw = |i: usize, j: usize| cosine(&rows[i], &rows[j], &zero);
        let raw_mean = different().map(|(i, j)| raw(i, j)).sum::<f64>() / count;
        let variance = different().map(|(i, j)| (raw(i, j) - raw_mean).powi(2)).sum::<f64>() / count;
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
            for (feature, (plane, expected)) in
                features(&gram(&rows), items).iter().zip(&expected).enumerate()
            {
                // Two items have one cosine, so its variance is 0 and the definition divides by 0.
                let compared = if items == 2 && feature == 4 { 0 } else { plane.len() };
                for (pair, (a, b)) in plane.iter().zip(expected).take(compared).enumerate() {
                    assert!((a - b).abs() < 1e-9, "{items} items, feature {feature}, pair {pair}: {a}, {b}");
                }
            }
        }
    }

    #[test]
    fn the_gradient_of_the_gram_matrix_agrees_with_central_differences() {
        let mut rng = TestRng::new(8);
        // Of 25 items, one is so far away that its distances are clamped. Two items have a constant centred cosine.
        for (items, distant) in [(2, 1.0), (3, 1.0), (9, 1.0), (25, 40.0)] {
            let mut rows: Vec<Vec<f64>> = (0..items).map(|_| rng.f64s(7)).collect();
            rows[1].iter_mut().for_each(|value| *value *= distant);
            let gram = gram(&rows);
            let weights: Vec<Vec<f64>> = (0..EDGE_FEATURES).map(|_| rng.f64s(items * items)).collect();
            let planes = features(&gram, items);
            let clamped = planes[1].contains(&MAX_FEATURE);
            assert_eq!(clamped, distant > 1.0, "{items} items");
            let mut d_gram = vec![0.0; gram.len()];
            edge_features_backward(&gram, items, slices(&planes), slices(&weights), &mut d_gram);
            // A Gram matrix is symmetric: elements (i, j) and (j, i) move together, and their gradients add up.
            let pairs = || (0..items).flat_map(|i| (0..=i).map(move |j| (i * items + j, j * items + i)));
            let at: Vec<f64> = pairs().map(|(ij, _)| gram[ij]).collect();
            let of_pair = |(ij, ji)| if ij == ji { d_gram[ij] } else { d_gram[ij] + d_gram[ji] };
            let gradient: Vec<f64> = pairs().map(of_pair).collect();
            check_gradient_within(1e-6, &format!("{items} items"), &at, &gradient, |moved| {
                let mut gram = gram.clone();
                for ((ij, ji), &value) in pairs().zip(moved) {
                    (gram[ij], gram[ji]) = (value, value);
                }
                let planes = features(&gram, items);
                planes.iter().flatten().zip(weights.iter().flatten()).map(|(value, w)| value * w).sum()
            });
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
        // Three equal items.
        let planes = features(&[0.3f32; 9], 3);
        assert!(planes[0][1] == 0.0 && planes[1][1] == 0.0 && planes[2][1] == 0.5 && planes[4][1] == 0.0);
        let degenerate =
            [vec![0.0f32; 9], vec![1.0], vec![0.0], vec![0.0, 0.0, 0.0, 1e-30], vec![1e30, 0.0, 0.0, 1.0]];
        for gram in degenerate {
            let items = gram.len().isqrt();
            assert!(features(&gram, items).iter().flatten().all(|value| value.is_finite()), "{gram:?}");
        }
        assert!(features::<f32>(&[], 0).iter().all(Vec::is_empty));
    }
}
