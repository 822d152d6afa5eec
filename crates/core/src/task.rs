//! What a method looks at: a support set with given labels, and queries.
//!
//! Almost everything a method computes is made of inner products between items, so a task keeps them: the
//! products among support items ([`Task::gram`]), computed when first asked for. An evaluation fills them in
//! instead, because its settings share most items of an episode and its methods share all of them.

use std::sync::OnceLock;

use trueshot_nn::products;

/// Labelled rows, ragged: an episode's support set, a user's folder and a row of a batch are all this.
pub struct SupportSet<'a> {
    rows: Vec<&'a [f32]>,
    given: Vec<u32>,
    members: Vec<Vec<u32>>,
}

impl<'a> SupportSet<'a> {
    /// Rows of one length with the class each is filed under, in any order.
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

    /// Whether there is no item.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Number of classes.
    pub fn classes(&self) -> usize {
        self.members.len()
    }

    /// Numbers in a row.
    pub fn dim(&self) -> usize {
        self.rows.first().map_or(0, |row| row.len())
    }

    /// The items' rows.
    pub fn rows(&self) -> &[&'a [f32]] {
        &self.rows
    }

    /// The class each item is filed under.
    pub fn given(&self) -> &[u32] {
        &self.given
    }

    /// The items filed under each class.
    pub fn members(&self) -> &[Vec<u32>] {
        &self.members
    }
}

/// What only an experiment knows: the class each item really has, if any of the task's. Methods other than
/// the oracle never look at it.
pub type Truth = [Option<u32>];

/// A support set for a method to learn from.
pub struct Task<'a> {
    /// The labelled items.
    pub support: SupportSet<'a>,
    /// Their true classes, in experiments.
    pub truth: Option<&'a Truth>,
    gram: OnceLock<Vec<f32>>,
    class_grams: Vec<OnceLock<Gram>>,
}

impl<'a> Task<'a> {
    /// A task whose truth nobody knows.
    pub fn new(support: SupportSet<'a>) -> Self {
        let class_grams = (0..support.classes()).map(|_| OnceLock::new()).collect();
        Task { support, truth: None, gram: OnceLock::new(), class_grams }
    }

    /// Adds the true classes.
    pub fn with_truth(mut self, truth: &'a Truth) -> Self {
        assert_eq!(truth.len(), self.support.len(), "one true class per item");
        self.truth = Some(truth);
        self
    }

    /// Hands over products that were computed elsewhere.
    pub(crate) fn with_gram(self, gram: Vec<f32>) -> Self {
        assert_eq!(gram.len(), self.support.len().pow(2));
        Task { gram: gram.into(), ..self }
    }

    /// Inner products of all items with each other, row by row.
    pub fn gram(&self) -> &[f32] {
        self.gram.get_or_init(|| gram_of(self.support.rows()))
    }

    /// Inner products among the items filed under one class. Cheap even where all products would not fit
    /// into memory.
    pub fn class_gram(&self, class: usize) -> &Gram {
        self.class_grams[class].get_or_init(|| self.gram_within(class))
    }

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
                gram_of(&rows)
            }
        };
        Gram { n, values }
    }
}

fn gram_of(rows: &[&[f32]]) -> Vec<f32> {
    let mut gram = vec![0.0; rows.len().pow(2)];
    products::gram(rows, &mut gram);
    gram
}

/// Inner products among a few items.
pub struct Gram {
    n: usize,
    values: Vec<f32>,
}

impl Gram {
    /// Number of items.
    pub fn len(&self) -> usize {
        self.n
    }

    /// Whether there is no item.
    pub fn is_empty(&self) -> bool {
        self.n == 0
    }

    /// The products of one item with all.
    pub fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.n..(i + 1) * self.n]
    }

    /// One product.
    pub fn at(&self, i: usize, j: usize) -> f32 {
        self.values[i * self.n + j]
    }

    /// Squared Euclidean distance of two items; rounding never makes it negative.
    pub fn squared_distance(&self, i: usize, j: usize) -> f32 {
        (self.at(i, i) + self.at(j, j) - 2.0 * self.at(i, j)).max(0.0)
    }

    /// Cosine of two items; 0 if one has no length.
    pub fn cosine(&self, i: usize, j: usize) -> f32 {
        let lengths = (self.at(i, i) * self.at(j, j)).sqrt();
        if lengths > 0.0 { self.at(i, j) / lengths } else { 0.0 }
    }

    /// The Gram matrix times a vector of weights.
    pub fn times(&self, weights: &[f32]) -> Vec<f32> {
        (0..self.n).map(|i| products::short_dot(self.row(i), weights)).collect()
    }
}

/// Rows to classify.
pub struct Queries<'a> {
    rows: Vec<&'a [f32]>,
    squared_norms: OnceLock<Vec<f32>>,
}

impl<'a> Queries<'a> {
    /// Queries of the dimension of the support set.
    pub fn new(rows: Vec<&'a [f32]>) -> Self {
        Queries { rows, squared_norms: OnceLock::new() }
    }

    /// Number of queries.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Their rows.
    pub fn rows(&self) -> &[&'a [f32]] {
        &self.rows
    }

    /// Squared lengths.
    pub fn squared_norms(&self) -> &[f32] {
        self.squared_norms.get_or_init(|| self.rows.iter().map(|row| products::squared_norm(row)).collect())
    }

    /// Inner products with some vectors: for every vector those with all queries.
    pub fn products(&self, vectors: &[&[f32]]) -> Vec<f32> {
        let mut out = vec![0.0; vectors.len() * self.len()];
        products::products(&self.rows, vectors, &mut out);
        out
    }
}
