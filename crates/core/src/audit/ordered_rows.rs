//! The rows of an audit ([`OrderedRows`]), in an order that depends on their values alone.
//!
//! Sums of floating-point numbers depend on the order of their terms, and of two equally near neighbours the first one
//! wins. With this order, the result of an audit does not depend on the order of the data or on the names of items and
//! classes. All of the scoring (`evidence`) works with positions in this order and with new class numbers; the fields
//! `order` and `classes` translate them back.

use std::cmp::Ordering;

use rayon::prelude::*;

use super::rows;
use crate::embeddings::Embeddings;

/// Centred rows of unit length with their labels.
pub(super) struct OrderedRows {
    /// `[items][dim]`
    values: Vec<f32>,
    dim: usize,
    /// The distance of each row from the centre, before it was scaled to unit length.
    pub lengths: Vec<f32>,
    /// For each position in the order, the row of the data.
    pub order: Vec<u32>,
    /// For each position, the class number of the label. Classes are numbered in the order of their first positions.
    pub given: Vec<u32>,
    /// For each class number, the index of the class in the data.
    pub classes: Vec<u32>,
    /// Whether the user has confirmed the label, at each position.
    pub confirmed: Vec<bool>,
}

impl OrderedRows {
    /// Orders and centres the rows of `data`. `is_confirmed` says for each row whether the user has confirmed its
    /// label.
    pub fn new(data: &Embeddings, is_confirmed: impl Fn(usize) -> bool) -> Self {
        let dim = data.dim();
        let values = data.all_rows();
        let row = |row: u32| &values[row as usize * dim..(row as usize + 1) * dim];
        let label = |row: u32| data.labels()[row as usize];
        let mut order: Vec<u32> = (0..data.len() as u32).collect();
        order.par_sort_by(|&a, &b| compare_rows(row(a), row(b)).then_with(|| label(a).cmp(&label(b))));
        // Frees a copy of the rows, if `all_rows` made one, before `gather` makes another.
        drop(values);
        // Number the classes by their first positions.
        let mut numbers = vec![u32::MAX; data.classes().len()];
        let mut classes = Vec::new();
        let given = order.iter().map(|&row| {
            let number = &mut numbers[label(row) as usize];
            if *number == u32::MAX {
                *number = classes.len() as u32;
                classes.push(label(row));
            }
            *number
        });
        let given: Vec<u32> = given.collect();
        let mut values = data.gather(&order).into_owned();
        let lengths = rows::centre(&mut values, dim, &given);
        let confirmed = order.iter().map(|&row| is_confirmed(row as usize)).collect();
        OrderedRows { values, dim, lengths, order, given, classes, confirmed }
    }

    pub fn dim(&self) -> usize {
        self.dim
    }

    /// All rows, sorted as in `order`; a row that equals the centre is zero.
    pub fn rows(&self) -> Vec<&[f32]> {
        self.values.chunks_exact(self.dim).collect()
    }
}

/// The order of two rows by the first pair of values that differ (lexicographic).
pub(crate) fn compare_rows(a: &[f32], b: &[f32]) -> Ordering {
    let mut values = a.iter().zip(b).map(|(a, b)| a.total_cmp(b));
    values.find(|order| order.is_ne()).unwrap_or(Ordering::Equal)
}
