//! The input of a few-shot method: a [`Task`] is a [`SupportSet`], the few labelled items that the method learns from,
//! with its Gram matrix; [`Queries`] are rows to classify. Rows are feature vectors of `dim` numbers.
//!
//! Almost everything that methods compute is made of inner products between items, so a task caches them: the Gram
//! matrix of all support items ([`Task::gram`]) and that of each class ([`Task::class_gram`]) are computed on first
//! use. An evaluation with several noise settings (support sets of the same problem with different wrong labels) passes
//! the Gram matrix in, because these support sets share most of their items.

use std::sync::OnceLock;

use trueshot_nn::products;

/// Rows with given labels, which may be wrong. Classes may have different sizes.
///
/// ```
/// use trueshot::task::SupportSet;
///
/// let data = trueshot::Embeddings::from_rows(vec![0.0, 0.1, 5.0], 1, vec!["a".into(), "a".into(), "b".into()])?;
/// let rows = data.features().as_f32().expect("rows in memory are f32").chunks_exact(data.dim()).collect();
/// let support = SupportSet::new(rows, data.labels().to_vec(), data.classes().len());
/// assert_eq!(support.members(), [vec![0, 1], vec![2]]);
/// # Ok::<(), trueshot::Error>(())
/// ```
pub struct SupportSet<'a> {
    rows: Vec<&'a [f32]>,
    /// The given label of every item.
    given: Vec<u32>,
    /// For every class the items with that given label.
    members: Vec<Vec<u32>>,
}

impl<'a> SupportSet<'a> {
    /// A support set of rows `[items][dim]` with one given label per row, a class index below `classes`, in any order.
    ///
    /// # Panics
    /// If labels and rows differ in number, or a label is not below `classes`.
    pub fn new(rows: Vec<&'a [f32]>, given: Vec<u32>, classes: usize) -> Self {
        assert_eq!(rows.len(), given.len(), "one label per row");
        let mut members = vec![Vec::new(); classes];
        for (item, &class) in given.iter().enumerate() {
            members[class as usize].push(item as u32);
        }
        SupportSet { rows, given, members }
    }

    /// Number of items.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Number of classes, including classes without items.
    pub fn classes(&self) -> usize {
        self.members.len()
    }

    /// Dimension of the rows; 0 if there are no items.
    pub fn dim(&self) -> usize {
        self.rows.first().map_or(0, |row| row.len())
    }

    /// The rows `[items][dim]`.
    pub fn rows(&self) -> &[&'a [f32]] {
        &self.rows
    }

    /// The given label of every item, a class index.
    pub fn given(&self) -> &[u32] {
        &self.given
    }

    /// For every class the indices of the items with that given label, in ascending order.
    pub fn members(&self) -> &[Vec<u32>] {
        &self.members
    }
}

/// The true class of every support item, which only experiments know; `None` for an item of none of the task's classes.
/// Only the method `oracle` reads it, which shows what a method could reach that knew all wrong labels.
pub type Truth = [Option<u32>];

/// A few-shot task: a support set with its Gram matrix, which is computed on first use.
///
/// ```
/// use trueshot::task::{SupportSet, Task};
///
/// let task = Task::new(SupportSet::new(vec![&[3.0, 4.0], &[1.0, 0.0]], vec![0, 1], 2));
/// assert_eq!(task.gram(), [25.0, 3.0, 3.0, 1.0]);
/// ```
pub struct Task<'a> {
    /// The labelled items.
    pub support: SupportSet<'a>,
    /// The true classes of the items, in experiments.
    pub truth: Option<&'a Truth>,
    /// The Gram matrix, `[items, items]` row by row.
    gram: OnceLock<Vec<f32>>,
    /// One per class.
    class_grams: Vec<OnceLock<Gram>>,
}

impl<'a> Task<'a> {
    /// A task without true labels.
    pub fn new(support: SupportSet<'a>) -> Self {
        let class_grams = (0..support.classes()).map(|_| OnceLock::new()).collect();
        Task { support, truth: None, gram: OnceLock::new(), class_grams }
    }

    /// The task with the true class of every item.
    ///
    /// # Panics
    /// If there is not one true class per item.
    pub fn with_truth(mut self, truth: &'a Truth) -> Self {
        assert_eq!(truth.len(), self.support.len(), "one true class per item");
        self.truth = Some(truth);
        self
    }

    /// The task with its Gram matrix `[items, items]` computed by the caller.
    pub(crate) fn with_gram(self, gram: Vec<f32>) -> Self {
        assert_eq!(gram.len(), self.support.len().pow(2));
        Task { gram: gram.into(), ..self }
    }

    /// The Gram matrix: inner products of all items with each other, `[items, items]` row by row.
    pub fn gram(&self) -> &[f32] {
        self.gram.get_or_init(|| gram_matrix(self.support.rows()))
    }

    /// The squared length of every item: the diagonal of the Gram matrix, without computing the rest of it.
    pub(crate) fn squared_norms(&self) -> Vec<f32> {
        let n = self.support.len();
        match self.gram.get() {
            Some(gram) => (0..n).map(|item| gram[item * n + item]).collect(),
            None => {
                // `products::gram` calls `products::products`, too, so the values are equal to the bit.
                let squared_norm = |row: &&[f32]| {
                    let mut out = [0.0];
                    products::products(&[*row], &[*row], &mut out);
                    out[0]
                };
                self.support.rows().iter().map(squared_norm).collect()
            }
        }
    }

    /// The Gram matrix of the items with one given label, in the order of [`SupportSet::members`].
    ///
    /// It needs memory for the items of the class only, so it works on support sets whose whole Gram matrix would not
    /// fit into memory.
    pub fn class_gram(&self, class: usize) -> &Gram {
        self.class_grams[class].get_or_init(|| self.gram_within(class))
    }

    /// The matrix of [`Task::class_gram`]: copied from the whole Gram matrix if that is known, otherwise computed, with
    /// the same values.
    fn gram_within(&self, class: usize) -> Gram {
        let members = &self.support.members[class];
        let n = members.len();
        let values = match self.gram.get() {
            Some(gram) => {
                let row = |&i: &u32| &gram[i as usize * self.support.len()..][..self.support.len()];
                members.iter().flat_map(|i| members.iter().map(|&j| row(i)[j as usize])).collect()
            }
            None => {
                let rows: Vec<&[f32]> = members.iter().map(|&i| self.support.rows[i as usize]).collect();
                gram_matrix(&rows)
            }
        };
        Gram { n, values }
    }
}

fn gram_matrix(rows: &[&[f32]]) -> Vec<f32> {
    let mut gram = vec![0.0; rows.len().pow(2)];
    products::gram(rows, &mut gram);
    gram
}

/// The Gram matrix `[n, n]` of the items of one class: their inner products with each other.
///
/// ```
/// use trueshot::task::{SupportSet, Task};
///
/// let task = Task::new(SupportSet::new(vec![&[3.0, 4.0], &[0.0, 0.0]], vec![0, 0], 1));
/// let gram = task.class_gram(0);
/// assert_eq!(gram.squared_distance(0, 1), 25.0);
/// assert_eq!(gram.times(&[2.0, 1.0]), [50.0, 0.0]);
/// ```
pub struct Gram {
    n: usize,
    values: Vec<f32>,
}

impl Gram {
    /// Number of items.
    pub fn len(&self) -> usize {
        self.n
    }

    /// Whether there are no items.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// The inner products of item `i` with all items.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.n..(i + 1) * self.n]
    }

    /// The inner product of items `i` and `j`.
    pub fn at(&self, i: usize, j: usize) -> f32 {
        self.values[i * self.n + j]
    }

    /// The squared Euclidean distance of two items, clamped to 0 against rounding errors.
    pub fn squared_distance(&self, i: usize, j: usize) -> f32 {
        (self.at(i, i) + self.at(j, j) - 2.0 * self.at(i, j)).max(0.0)
    }

    /// The cosine of two items; 0 if one of them is the zero vector.
    pub fn cosine(&self, i: usize, j: usize) -> f32 {
        let lengths = (self.at(i, i) * self.at(j, j)).sqrt();
        if lengths > 0.0 { self.at(i, j) / lengths } else { 0.0 }
    }

    /// The matrix-vector product with one weight per item: the inner product of every item with the weighted sum of the
    /// items.
    pub fn times(&self, weights: &[f32]) -> Vec<f32> {
        (0..self.n).map(|i| products::short_dot(self.row(i), weights)).collect()
    }
}

/// Query rows to classify, with their squared lengths and inner products, which are computed on first use.
///
/// ```
/// let queries = trueshot::task::Queries::new(vec![&[3.0, 4.0], &[1.0, 0.0]]);
/// assert_eq!(queries.squared_norms(), [25.0, 1.0]);
/// assert_eq!(queries.gram(), [25.0, 3.0, 3.0, 1.0]);
/// assert_eq!(queries.products(&[&[0.0, 1.0]]), [4.0, 0.0]);
/// ```
pub struct Queries<'a> {
    rows: Vec<&'a [f32]>,
    squared_norms: OnceLock<Vec<f32>>,
    gram: OnceLock<Vec<f32>>,
}

impl<'a> Queries<'a> {
    /// Queries from rows `[queries][dim]` of the dimension of the support set.
    pub fn new(rows: Vec<&'a [f32]>) -> Self {
        Queries { rows, squared_norms: OnceLock::new(), gram: OnceLock::new() }
    }

    /// Number of queries.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there are no queries.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The rows `[queries][dim]`.
    pub fn rows(&self) -> &[&'a [f32]] {
        &self.rows
    }

    /// The squared length of every query.
    pub fn squared_norms(&self) -> &[f32] {
        self.squared_norms.get_or_init(|| self.rows.iter().map(|row| products::squared_norm(row)).collect())
    }

    /// Inner products of all queries with each other, `[queries, queries]` row by row.
    pub fn gram(&self) -> &[f32] {
        self.gram.get_or_init(|| gram_matrix(&self.rows))
    }

    /// Inner products `[vectors, queries]` of vectors with all queries, row by row.
    pub fn products(&self, vectors: &[&[f32]]) -> Vec<f32> {
        let mut out = vec![0.0; vectors.len() * self.len()];
        products::products(&self.rows, vectors, &mut out);
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::classifier::Classifier;
    use crate::rng::{Purpose, Rng};

    #[test]
    fn predictions_need_only_the_diagonal_of_the_gram_matrix_and_it_is_equal_to_the_bit() {
        let mut rng = Rng::new(1, Purpose::Items, 0);
        let values: Vec<f32> = (0..23 * 37).map(|_| rng.uniform() - 0.5).collect();
        let rows: Vec<&[f32]> = values.chunks_exact(37).collect();
        let labels = (0..23).map(|row| row % 3).collect();
        let task = Task::new(SupportSet::new(rows.clone(), labels, 3));
        for classifier in [Classifier::Matching, Classifier::Neighbours(3)] {
            classifier.row_scores(&task, &rows[..2]);
        }
        assert!(task.gram.get().is_none(), "the matrix may not fit into memory");
        let computed = task.squared_norms();
        let diagonal: Vec<f32> = (0..23).map(|item| task.gram()[item * 23 + item]).collect();
        assert_eq!(computed, diagonal);
        assert_eq!(task.squared_norms(), diagonal);
    }
}
