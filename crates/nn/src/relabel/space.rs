//! How the items of an episode lie to one another, told from inner products alone.
//!
//! M items, Q queries. Everything the head looks at (and every distance of a query to a prototype) follows from
//! the items' M x M products, the queries' M x Q products with them and the queries' squared lengths. So it may
//! also follow in another space than the one the rows came in: minus the mean of the items and scaled to unit
//! length, which are sums and quotients of the same products. The mean is that of the support set, because a
//! user has no other.
//!
//! An item that is the mean itself has no direction. What rounding leaves of it is not taken for one: it
//! becomes the zero vector.

use crate::real::Real;

/// A squared length below this share of what it is the difference of is rounding.
pub(super) const ROUNDING: f64 = 1e-6;

/// The space that prototypes and distances live in.
#[derive(Debug, Clone, PartialEq)]
pub struct Space<T> {
    items: usize,
    gram: Vec<T>,
    centre: Option<Centre<T>>,
}

/// What subtracting the mean and scaling to unit length takes.
#[derive(Debug, Clone, PartialEq)]
struct Centre<T> {
    /// Products of the items with their mean.
    with_mean: Vec<T>,
    /// The squared length of the mean.
    mean_square: T,
    /// What each item is multiplied by once the mean is gone.
    scales: Vec<T>,
}

impl<T: Real> Space<T> {
    /// The space of the items with these products (M x M), as they are or `centred`: minus their mean, at unit
    /// length.
    ///
    /// # Panics
    /// If there are not `items` x `items` products.
    pub fn new(gram: Vec<T>, items: usize, centred: bool) -> Self {
        assert_eq!(gram.len(), items * items, "products of all items with all items");
        if !centred || items == 0 {
            return Space { items, gram, centre: None };
        }
        let Means { with_mean, mean_square } = Means::of(&gram, items);
        let scales: Vec<T> =
            (0..items).map(|i| inverse_length(gram[i * items + i], with_mean[i], mean_square)).collect();
        let mut centred = gram;
        for (i, row) in centred.chunks_exact_mut(items).enumerate() {
            for (j, product) in row.iter_mut().enumerate() {
                *product =
                    shifted(*product, with_mean[i], with_mean[j], mean_square) * (scales[i] * scales[j]);
            }
        }
        Space { items, gram: centred, centre: Some(Centre { with_mean, mean_square, scales }) }
    }

    /// Number of items.
    pub fn items(&self) -> usize {
        self.items
    }

    /// Products of the items in this space, M x M.
    pub fn gram(&self) -> &[T] {
        &self.gram
    }

    /// Whether the mean of the items is subtracted and they are scaled to unit length.
    pub fn is_centred(&self) -> bool {
        self.centre.is_some()
    }

    /// Brings queries into this space: their products with the items (M x Q) and their squared lengths (Q).
    ///
    /// # Panics
    /// If the numbers of products and lengths disagree.
    pub fn place(&self, products: &mut [T], squared_lengths: &mut [T]) {
        let queries = squared_lengths.len();
        assert_eq!(products.len(), self.items * queries, "products of all items with all queries");
        let Some(centre) = &self.centre else { return };
        let mut with_mean = vec![T::ZERO; queries];
        for row in products.chunks_exact(queries.max(1)) {
            with_mean.iter_mut().zip(row).for_each(|(sum, &product)| *sum += product);
        }
        let share = T::from_f64(1.0 / self.items as f64);
        with_mean.iter_mut().for_each(|sum| *sum *= share);
        let lengths = squared_lengths.iter().zip(&with_mean);
        let scales: Vec<T> =
            lengths.map(|(&square, &mean)| inverse_length(square, mean, centre.mean_square)).collect();
        for (i, row) in products.chunks_exact_mut(queries.max(1)).enumerate() {
            for ((product, &mean), &scale) in row.iter_mut().zip(&with_mean).zip(&scales) {
                let moved = shifted(*product, centre.with_mean[i], mean, centre.mean_square);
                *product = moved * (centre.scales[i] * scale);
            }
        }
        for (square, &scale) in squared_lengths.iter_mut().zip(&scales) {
            *square = if scale > T::ZERO { T::ONE } else { T::ZERO };
        }
    }

    /// Weights of the rows as they came whose sum is the sum of the items in this space by `weights`: whoever
    /// wants a prototype as a vector.
    pub fn weights_of_rows(&self, weights: &[T]) -> Vec<T> {
        assert_eq!(weights.len(), self.items);
        let Some(centre) = &self.centre else { return weights.to_vec() };
        let scaled: Vec<T> = weights.iter().zip(&centre.scales).map(|(&w, &s)| w * s).collect();
        let total = scaled.iter().fold(T::ZERO, |sum, &w| sum + w);
        let mean = total * T::from_f64(1.0 / self.items as f64);
        scaled.into_iter().map(|w| w - mean).collect()
    }
}

/// Products of items with their mean, and of the mean with itself.
pub(super) struct Means<T> {
    pub(super) with_mean: Vec<T>,
    pub(super) mean_square: T,
}

impl<T: Real> Means<T> {
    pub(super) fn of(gram: &[T], items: usize) -> Self {
        let share = T::from_f64(1.0 / items as f64);
        let sum = |numbers: &[T]| numbers.iter().fold(T::ZERO, |sum, &number| sum + number) * share;
        let with_mean: Vec<T> = gram.chunks_exact(items).map(sum).collect();
        Means { mean_square: sum(&with_mean), with_mean }
    }
}

/// `(a - m) . (b - m)`
pub(super) fn shifted<T: Real>(product: T, a_with_mean: T, b_with_mean: T, mean_square: T) -> T {
    product - a_with_mean - b_with_mean + mean_square
}

/// `1 / ‖a - m‖`, or zero where a is m up to rounding.
pub(super) fn inverse_length<T: Real>(square: T, with_mean: T, mean_square: T) -> T {
    let left = shifted(square, with_mean, with_mean, mean_square);
    if left > T::from_f64(ROUNDING) * (square + mean_square) { T::ONE / left.sqrt() } else { T::ZERO }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    /// Minus the mean and at unit length, with the vectors themselves.
    fn moved(rows: &[Vec<f64>], mean: &[f64]) -> Vec<Vec<f64>> {
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
        let (placed_items, placed_queries) = (moved(&items, &mean), moved(&queries, &mean));
        let space = Space::new(products(&items, &items), 6, true);
        let mut with_queries = products(&items, &queries);
        let mut squares: Vec<f64> = queries.iter().map(|q| dot(q, q)).collect();
        space.place(&mut with_queries, &mut squares);
        let expected = [products(&placed_items, &placed_items), products(&placed_items, &placed_queries)];
        let found = space.gram().iter().chain(&with_queries);
        assert!(found.zip(expected.iter().flatten()).all(|(a, b)| (a - b).abs() < 1e-12));
        assert_eq!(squares, [1.0; 4]);

        let weights = [0.5, 0.1, 0.0, 0.3, 0.1, 0.0];
        let of_rows = space.weights_of_rows(&weights);
        for d in 0..9 {
            let expected: f64 = weights.iter().zip(&placed_items).map(|(w, row)| w * row[d]).sum();
            let found: f64 = of_rows.iter().zip(&items).map(|(w, row)| w * row[d]).sum();
            assert!((found - expected).abs() < 1e-12);
        }
    }

    #[test]
    fn items_at_the_mean_become_zero_instead_of_noise() {
        let same = vec![0.1f32 * 0.3; 16];
        let space = Space::new(same, 4, true);
        assert_eq!(space.gram(), [0.0; 16]);
        let (mut products, mut squares) = (vec![0.03f32; 4], vec![0.03f32]);
        space.place(&mut products, &mut squares);
        assert!(products.iter().chain(&squares).all(|&number| number == 0.0));
    }

    #[test]
    fn an_uncentred_space_changes_nothing() {
        let space = Space::new(vec![2.0, 1.0, 1.0, 3.0], 2, false);
        assert_eq!(space.gram(), [2.0, 1.0, 1.0, 3.0]);
        let (mut products, mut squares) = (vec![0.5, 0.25], vec![4.0]);
        space.place(&mut products, &mut squares);
        assert_eq!((products, squares), (vec![0.5, 0.25], vec![4.0]));
        assert_eq!(space.weights_of_rows(&[0.25, 0.75]), [0.25, 0.75]);
    }
}
