//! The geometry of an episode, computed from inner products alone. Start with [`GramSpace::new`].
//!
//! M items, Q queries. Everything the head reads, and every distance of a query to a prototype, follows from the Gram
//! matrix of the items (`[M, M]`, all their inner products), the inner products of items and queries (`[M, Q]`) and the
//! squared lengths of the queries. So the head can also work in a transformed space: centred at the mean of the items
//! and scaled to unit length, which only takes sums and quotients of the same products. The mean is that of the support
//! set, because no other data is available when the head is used.
//!
//! With m the mean of the items, g_ij = x_i . x_j and `s_i = 1 / ‖x_i - m‖`, the product of two transformed items is
//! `(g_ij - x_i . m - x_j . m + m . m) s_i s_j`. Both `x_i . m` and `m . m` are means of elements of g. `d_x` is the
//! gradient of the loss with respect to x.
//!
//! An item that equals the mean has no direction and becomes the zero vector, also if rounding errors leave a small
//! difference ([`ROUNDING`]).

use crate::real::Real;

/// A squared length is a difference of larger terms. Below this fraction of their sum it is considered rounding error.
pub(super) const ROUNDING: f64 = 1e-6;

/// The space that prototypes and distances live in: that of the embeddings, or centred and scaled to unit length.
#[derive(Debug, Clone, PartialEq)]
pub struct GramSpace<T> {
    /// M
    items: usize,
    /// Inner products of the items in this space, `[M, M]`.
    gram: Vec<T>,
    /// `None` if the space is that of the embeddings.
    centring: Option<Centring<T>>,
}

/// The values with which a vector is centred and scaled to unit length.
#[derive(Debug, Clone, PartialEq)]
struct Centring<T> {
    /// Inner products of the items with their mean, `[M]`.
    with_mean: Vec<T>,
    /// The squared length of the mean.
    mean_square: T,
    /// One over the length of each centred item, `[M]`.
    scales: Vec<T>,
}

impl<T: Real> GramSpace<T> {
    /// The space of items with the Gram matrix `gram` (`[M, M]`), as they are or `centred` at their mean and scaled to
    /// unit length.
    ///
    /// # Panics
    /// If `gram` does not have `items²` elements.
    pub fn new(gram: Vec<T>, items: usize, centred: bool) -> Self {
        assert_eq!(gram.len(), items * items, "inner products of all pairs of items");
        if !centred || items == 0 {
            return GramSpace { items, gram, centring: None };
        }
        let MeanProducts { with_mean, mean_square } = MeanProducts::of(&gram, items);
        let scales: Vec<T> = (0..items)
            .map(|i| inverse_centred_length(gram[i * items + i], with_mean[i], mean_square))
            .collect();
        let mut centred_gram = gram;
        for (i, row) in centred_gram.chunks_exact_mut(items).enumerate() {
            for (j, product) in row.iter_mut().enumerate() {
                *product = centred_product(*product, with_mean[i], with_mean[j], mean_square)
                    * (scales[i] * scales[j]);
            }
        }
        GramSpace { items, gram: centred_gram, centring: Some(Centring { with_mean, mean_square, scales }) }
    }

    /// M
    pub fn items(&self) -> usize {
        self.items
    }

    /// Inner products of the items in this space, `[M, M]`.
    pub fn gram(&self) -> &[T] {
        &self.gram
    }

    /// Whether vectors are centred at the mean of the items and scaled to unit length.
    pub fn is_centred(&self) -> bool {
        self.centring.is_some()
    }

    /// Transforms queries into this space, in place: their inner products with the items (`[M, Q]`) and their squared
    /// lengths (`[Q]`).
    ///
    /// # Panics
    /// If the numbers of products and lengths disagree.
    pub fn transform_queries(&self, products: &mut [T], squared_lengths: &mut [T]) {
        self.transform_and_scale_queries(products, squared_lengths);
    }

    /// [`GramSpace::transform_queries`]. Returns one over the length of each centred query (`[Q]`), which is what
    /// [`GramSpace::transform_queries_backward`] needs; empty if this space is not centred.
    pub(super) fn transform_and_scale_queries(
        &self,
        products: &mut [T],
        squared_lengths: &mut [T],
    ) -> Vec<T> {
        let queries = squared_lengths.len();
        assert_eq!(products.len(), self.items * queries, "inner products of all items with all queries");
        let Some(centring) = &self.centring else { return Vec::new() };
        // The inner products of the queries with the mean of the items.
        let mut with_mean = vec![T::ZERO; queries];
        for row in products.chunks_exact(queries.max(1)) {
            with_mean.iter_mut().zip(row).for_each(|(sum, &product)| *sum += product);
        }
        let inverse_count = T::from_f64(1.0 / self.items as f64);
        with_mean.iter_mut().for_each(|sum| *sum *= inverse_count);
        let lengths = squared_lengths.iter().zip(&with_mean);
        let scales: Vec<T> = lengths
            .map(|(&square, &mean)| inverse_centred_length(square, mean, centring.mean_square))
            .collect();
        for (i, row) in products.chunks_exact_mut(queries.max(1)).enumerate() {
            for ((product, &mean), &scale) in row.iter_mut().zip(&with_mean).zip(&scales) {
                let centred = centred_product(*product, centring.with_mean[i], mean, centring.mean_square);
                *product = centred * (centring.scales[i] * scale);
            }
        }
        // Centred and scaled queries have unit length; those at the mean are zero.
        for (square, &scale) in squared_lengths.iter_mut().zip(&scales) {
            *square = if scale > T::ZERO { T::ONE } else { T::ZERO };
        }
        scales
    }

    /// Backward pass of [`GramSpace::transform_queries`]. `products` are its results and `scales` those of
    /// [`GramSpace::transform_and_scale_queries`]. The gradients of the transformed products (`[M, Q]`) and squared
    /// lengths (`[Q]`) become those of the original ones, in place. The part that passes through the mean and the
    /// lengths of the items is added to `d_centring`.
    pub(super) fn transform_queries_backward(
        &self,
        products: &[T],
        scales: &[T],
        d_products: &mut [T],
        d_squared_lengths: &mut [T],
        d_centring: &mut CentringGradient<T>,
    ) {
        let Some(centring) = &self.centring else { return };
        let queries = scales.len();
        // A transformed product is `(product - item . m - query . m + m . m) s_i s_q`. Its derivative with respect to
        // ln s_i and ln s_q is the product itself; that with respect to the bracket is `s_i s_q`.
        let (mut d_with_mean, mut d_log_scales) = (vec![T::ZERO; queries], vec![T::ZERO; queries]);
        let rows = products.chunks_exact(queries.max(1)).zip(d_products.chunks_exact_mut(queries.max(1)));
        for (i, (row, d_row)) in rows.enumerate() {
            for (q, (&product, d_product)) in row.iter().zip(d_row).enumerate() {
                d_log_scales[q] += product * *d_product;
                d_centring.log_scales[i] += product * *d_product;
                *d_product *= centring.scales[i] * scales[q];
                d_centring.with_mean[i] -= *d_product;
                d_with_mean[q] -= *d_product;
                d_centring.mean_square += *d_product;
            }
        }
        for (q, d_square) in d_squared_lengths.iter_mut().enumerate() {
            // The squared length of a transformed query is constant (1, or 0 for a query at the mean) and has no
            // gradient. That of the original one enters s_q = 1 / sqrt(query . query - 2 query . m + m . m).
            *d_square = squared_length_gradient(scales[q], d_log_scales[q]);
            d_with_mean[q] -= *d_square + *d_square;
            d_centring.mean_square += *d_square;
        }
        // `query . m` is the mean of the query's products with the items.
        let inverse_count = T::from_f64(1.0 / self.items as f64);
        for d_row in d_products.chunks_exact_mut(queries.max(1)) {
            d_row.iter_mut().zip(&d_with_mean).for_each(|(d, &d_mean)| *d += d_mean * inverse_count);
        }
    }

    /// Turns the gradient of [`GramSpace::gram`] (`[M, M]`) into that of the original Gram matrix, in place.
    /// `d_centring` is what [`GramSpace::transform_queries_backward`] has left.
    pub(super) fn gram_backward(&self, d_gram: &mut [T], d_centring: CentringGradient<T>) {
        if let Some(centring) = &self.centring {
            centred_cosines_backward(&self.gram, &centring.scales, d_gram, d_centring);
        }
    }

    /// The weights of the original rows whose sum equals the sum of the transformed items weighted by `weights`. With
    /// them a prototype can be computed as a vector.
    ///
    /// # Panics
    /// If there is not one weight per item.
    pub fn row_weights(&self, weights: &[T]) -> Vec<T> {
        assert_eq!(weights.len(), self.items);
        let Some(centring) = &self.centring else { return weights.to_vec() };
        let scaled: Vec<T> = weights.iter().zip(&centring.scales).map(|(&w, &s)| w * s).collect();
        // sum of w_i s_i (x_i - m), with m the mean of all x: every row loses the mean of the scaled weights.
        let total = scaled.iter().fold(T::ZERO, |sum, &w| sum + w);
        let mean = total * T::from_f64(1.0 / self.items as f64);
        scaled.into_iter().map(|w| w - mean).collect()
    }
}

/// Inner products of items with their mean m (`[M]`), and m . m.
pub(super) struct MeanProducts<T> {
    pub(super) with_mean: Vec<T>,
    pub(super) mean_square: T,
}

impl<T: Real> MeanProducts<T> {
    /// From the Gram matrix of the items.
    pub(super) fn of(gram: &[T], items: usize) -> Self {
        let inverse_count = T::from_f64(1.0 / items as f64);
        let mean = |numbers: &[T]| numbers.iter().fold(T::ZERO, |sum, &number| sum + number) * inverse_count;
        let with_mean: Vec<T> = gram.chunks_exact(items).map(mean).collect();
        MeanProducts { mean_square: mean(&with_mean), with_mean }
    }
}

/// The gradient with respect to the values of centring and scaling the items.
#[derive(Debug, Clone)]
pub(super) struct CentringGradient<T> {
    /// Of the logarithms of the items' scales, `[M]`.
    log_scales: Vec<T>,
    /// Of the items' inner products with their mean, `[M]`.
    with_mean: Vec<T>,
    /// Of the squared length of the mean.
    mean_square: T,
}

impl<T: Real> CentringGradient<T> {
    /// The zero gradient.
    pub(super) fn new(items: usize) -> Self {
        let zeros = vec![T::ZERO; items];
        CentringGradient { log_scales: zeros.clone(), with_mean: zeros, mean_square: T::ZERO }
    }
}

/// Backward pass of `cosine[i][j] = (g_ij - m_i - m_j + m . m) s_i s_j`, with m_i the inner product of item i with the
/// mean m and s_i one over the length of the centred item. The gradient of the cosines (`[M, M]`) becomes that of the
/// Gram matrix g, in place. An item with s_i = 0 has no gradient.
pub(super) fn centred_cosines_backward<T: Real>(
    cosines: &[T],
    scales: &[T],
    d_cosines: &mut [T],
    mut d_centring: CentringGradient<T>,
) {
    let items = scales.len();
    // The gradients of the logarithms of the scales, of the brackets (in place), of m_i and of m . m.
    for i in 0..items {
        for j in 0..items {
            let (cosine, d_product) = (cosines[i * items + j], &mut d_cosines[i * items + j]);
            d_centring.log_scales[i] += cosine * *d_product;
            d_centring.log_scales[j] += cosine * *d_product;
            *d_product *= scales[i] * scales[j];
            d_centring.with_mean[i] -= *d_product;
            d_centring.with_mean[j] -= *d_product;
            d_centring.mean_square += *d_product;
        }
    }
    let CentringGradient { log_scales, mut with_mean, mut mean_square } = d_centring;
    // Through the scales: s_i depends on g_ii - 2 m_i + m . m.
    for i in 0..items {
        let d_square = squared_length_gradient(scales[i], log_scales[i]);
        d_cosines[i * items + i] += d_square;
        with_mean[i] -= d_square + d_square;
        mean_square += d_square;
    }
    // Through the means: m_i is the mean of row i of g, and m . m the mean of all m_i.
    let inverse_count = T::from_f64(1.0 / items as f64);
    for (d_row, &d_with_mean) in d_cosines.chunks_exact_mut(items.max(1)).zip(&with_mean) {
        let d_product = (d_with_mean + mean_square * inverse_count) * inverse_count;
        d_row.iter_mut().for_each(|d| *d += d_product);
    }
}

/// The gradient of the squared length n of a vector from that of the logarithm of its scale `s = 1 / sqrt(n)`:
/// `d ln(s) / dn = -s² / 2`.
pub(super) fn squared_length_gradient<T: Real>(scale: T, d_log_scale: T) -> T {
    T::from_f64(-0.5) * scale * scale * d_log_scale
}

/// `(a - m) . (b - m)` from `a . b`, `a . m`, `b . m` and `m . m`.
pub(super) fn centred_product<T: Real>(product: T, a_with_mean: T, b_with_mean: T, mean_square: T) -> T {
    product - a_with_mean - b_with_mean + mean_square
}

/// `1 / ‖a - m‖`, or 0 if a equals m up to rounding.
pub(super) fn inverse_centred_length<T: Real>(square: T, with_mean: T, mean_square: T) -> T {
    let centred = centred_product(square, with_mean, with_mean, mean_square);
    if centred > T::from_f64(ROUNDING) * (square + mean_square) { T::ONE / centred.sqrt() } else { T::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pseudo-random rows of numbers in [0, 1).
    fn rows(count: usize, dim: usize) -> Vec<Vec<f64>> {
        let value = |i: usize| ((i * 7919 + 13) % 997) as f64 / 997.0;
        (0..count).map(|r| (0..dim).map(|d| value(r * dim + d)).collect()).collect()
    }

    fn dot(a: &[f64], b: &[f64]) -> f64 {
        a.iter().zip(b).map(|(a, b)| a * b).sum()
    }

    fn products(left: &[Vec<f64>], right: &[Vec<f64>]) -> Vec<f64> {
        left.iter().flat_map(|a| right.iter().map(move |b| dot(a, b))).collect()
    }

    /// Centring and scaling of the vectors themselves.
    fn centred(rows: &[Vec<f64>], mean: &[f64]) -> Vec<Vec<f64>> {
        let shift = |row: &Vec<f64>| -> Vec<f64> { row.iter().zip(mean).map(|(a, m)| a - m).collect() };
        let unit = |row: Vec<f64>| {
            let length = dot(&row, &row).sqrt();
            row.into_iter().map(|a| a / length).collect()
        };
        rows.iter().map(|row| unit(shift(row))).collect()
    }

    #[test]
    fn the_centred_space_is_that_of_the_centred_vectors() {
        let (items, queries) = (rows(6, 9), rows(14, 9).split_off(10));
        let mean: Vec<f64> = (0..9).map(|d| items.iter().map(|row| row[d]).sum::<f64>() / 6.0).collect();
        let (centred_items, centred_queries) = (centred(&items, &mean), centred(&queries, &mean));
        let space = GramSpace::new(products(&items, &items), 6, true);
        let mut with_queries = products(&items, &queries);
        let mut squares: Vec<f64> = queries.iter().map(|q| dot(q, q)).collect();
        space.transform_queries(&mut with_queries, &mut squares);
        let expected = [products(&centred_items, &centred_items), products(&centred_items, &centred_queries)];
        let actual = space.gram().iter().chain(&with_queries);
        assert!(actual.zip(expected.iter().flatten()).all(|(a, b)| (a - b).abs() < 1e-12));
        assert_eq!(squares, [1.0; 4]);

        let weights = [0.5, 0.1, 0.0, 0.3, 0.1, 0.0];
        let row_weights = space.row_weights(&weights);
        for d in 0..9 {
            let expected: f64 = weights.iter().zip(&centred_items).map(|(w, row)| w * row[d]).sum();
            let from_rows: f64 = row_weights.iter().zip(&items).map(|(w, row)| w * row[d]).sum();
            assert!((from_rows - expected).abs() < 1e-12);
        }
    }

    #[test]
    fn items_at_the_mean_become_zero_instead_of_noise() {
        // The Gram matrix of four equal items.
        let gram = vec![0.1f32 * 0.3; 16];
        let space = GramSpace::new(gram, 4, true);
        assert_eq!(space.gram(), [0.0; 16]);
        let (mut products, mut squares) = (vec![0.03f32; 4], vec![0.03f32]);
        space.transform_queries(&mut products, &mut squares);
        assert!(products.iter().chain(&squares).all(|&number| number == 0.0));
    }

    #[test]
    fn an_uncentred_space_changes_nothing() {
        let space = GramSpace::new(vec![2.0, 1.0, 1.0, 3.0], 2, false);
        assert_eq!(space.gram(), [2.0, 1.0, 1.0, 3.0]);
        let (mut products, mut squares) = (vec![0.5, 0.25], vec![4.0]);
        space.transform_queries(&mut products, &mut squares);
        assert_eq!((products, squares), (vec![0.5, 0.25], vec![4.0]));
        assert_eq!(space.row_weights(&[0.25, 0.75]), [0.25, 0.75]);
    }
}
