//! Types that `simpleshot` and the transductive methods share. Transductive methods (`laplacianshot`, `tim`, `bd-cspn`,
//! `pt-map`) classify all queries of a task together.
//!
//! - [`Centre`] and [`Preparation`]: centring and scaling of rows, as chosen with the parameters `centre` and
//!   `normalise`;
//! - [`JointGram`]: the inner products of support items and queries with each other;
//! - [`PresentClasses`]: the classes that have support items;
//! - [`Transductive`]: the [`Method`] of a [`TransductiveScorer`], which computes the scores of all queries of a task.
//!
//! The parameter `centre` selects the vector that is subtracted from every row: the mean of an embeddings file of
//! training classes, the mean of the support set, or none.

use std::path::PathBuf;
use std::sync::Arc;

use trueshot_nn::products;

use super::registry::{Parameter, Parameters};
use super::{Fitted, Method};
use crate::classifier::{Classifier, TransductiveScorer, centred_unit};
use crate::embeddings::Embeddings;
use crate::error::{Error, Result};
use crate::rng::Rng;
use crate::task::{Queries, Task};

/// What is allowed as the value of the parameter `centre`.
const ALLOWED: &str = "none, support or an embeddings file";

/// The vector that is subtracted from items and queries.
#[derive(Debug, Clone)]
pub(super) enum Centre {
    /// Rows are not centred.
    None,
    /// The mean of the support items.
    Support,
    /// The mean `[dim]` of all rows of an embeddings file, usually of the classes that the backbone was trained on. The
    /// path is for error messages.
    File { path: PathBuf, mean: Vec<f32> },
}

impl Centre {
    /// The description of the parameter `centre` of a method, with the method's default.
    pub const fn parameter(default: &'static str) -> Parameter {
        Parameter {
            name: "centre",
            default,
            meaning: "mean that is subtracted from rows: none, support, or that of an embeddings file",
        }
    }

    /// Reads the parameter `centre`, and the file that it names.
    pub fn parse(given: &Parameters<'_>) -> Result<Self> {
        match given.text("centre") {
            "none" => Ok(Centre::None),
            "support" => Ok(Centre::Support),
            _ => {
                let path = given.file("centre", ALLOWED)?;
                let embeddings = Embeddings::read(path)?;
                Ok(Centre::File { path: path.into(), mean: mean_row(&embeddings) })
            }
        }
    }

    /// Checks that the centre has the dimension of the rows of a task.
    ///
    /// # Errors
    /// [`Error::CentreDimension`] if it does not.
    pub fn check(&self, task: &Task<'_>) -> Result<()> {
        match self {
            // An empty support set has dimension 0.
            Centre::File { path, mean } if mean.len() != task.support.dim() && !task.support.is_empty() => {
                Err(Error::CentreDimension {
                    path: path.clone(),
                    features: task.support.dim(),
                    centre: mean.len(),
                })
            }
            _ => Ok(()),
        }
    }

    /// The vector `[dim]` that is subtracted; zeros if rows are not centred.
    pub fn vector(&self, task: &Task<'_>) -> Vec<f32> {
        match self {
            Centre::None => vec![0.0; task.support.dim()],
            Centre::Support => {
                let rows = task.support.rows();
                let mut mean = vec![0.0; task.support.dim()];
                products::weighted_sum(rows, &vec![1.0 / rows.len() as f32; rows.len()], &mut mean);
                mean
            }
            Centre::File { mean, .. } => mean.clone(),
        }
    }
}

/// The mean of all rows of a file, summed in f64.
fn mean_row(embeddings: &Embeddings) -> Vec<f32> {
    let mut sums = vec![0.0f64; embeddings.dim()];
    for row in 0..embeddings.len() {
        let row = embeddings.row(row);
        sums.iter_mut().zip(row.iter()).for_each(|(sum, &value)| *sum += f64::from(value));
    }
    sums.into_iter().map(|sum| (sum / embeddings.len() as f64) as f32).collect()
}

/// A transductive method. `preparation` returns the scorer's [`Preparation`], whose centre `fit` checks.
pub(super) struct Transductive<S> {
    scorer: Arc<S>,
    preparation: fn(&S) -> &Preparation,
}

impl<S: TransductiveScorer + 'static> Transductive<S> {
    /// The method of a scorer, in the form that [`MethodInfo::build`](super::MethodInfo::build) returns.
    pub fn boxed(scorer: S, preparation: fn(&S) -> &Preparation) -> Box<dyn Method> {
        Box::new(Transductive { scorer: Arc::new(scorer), preparation })
    }
}

impl<S: TransductiveScorer + 'static> Method for Transductive<S> {
    fn fit(&self, task: &Task<'_>, _rng: &mut Rng) -> Result<Fitted> {
        (self.preparation)(&self.scorer).centre.check(task)?;
        Ok(Fitted { classifier: Classifier::Transductive(self.scorer.clone()), assessments: None })
    }

    fn is_transductive(&self) -> bool {
        true
    }
}

/// The transformation of rows before a transductive method works on them: centring, then scaling to unit length.
#[derive(Debug, Clone)]
pub(super) struct Preparation {
    pub centre: Centre,
    /// Whether rows are scaled to unit length after centring.
    pub unit: bool,
}

impl Preparation {
    /// The description of the parameter `normalise`.
    pub const NORMALISE: Parameter = Parameter {
        name: "normalise",
        default: "l2",
        meaning: "l2 scales rows to unit length after centring; none does not",
    };

    /// Reads the parameters `centre` and `normalise`.
    pub fn parse(given: &Parameters<'_>) -> Result<Self> {
        let unit = given.choice("normalise", "l2 or none", &[("l2", true), ("none", false)])?;
        Ok(Preparation { centre: Centre::parse(given)?, unit })
    }

    /// The transformed items and queries as vectors, items first: `[items + queries][dim]`.
    pub fn rows(&self, task: &Task<'_>, queries: &Queries<'_>) -> Vec<Vec<f32>> {
        let centre = self.centre.vector(task);
        let prepare = |row: &&[f32]| {
            if self.unit {
                centred_unit(row, &centre)
            } else {
                row.iter().zip(&centre).map(|(value, centre)| value - centre).collect()
            }
        };
        task.support.rows().iter().chain(queries.rows()).map(prepare).collect()
    }

    /// The inner products of the transformed items and queries. They follow from the products of the original rows:
    /// `item_query_products` is `[items, queries]`, and `task` and `queries` have the products within each group.
    pub fn gram(&self, task: &Task<'_>, queries: &Queries<'_>, item_query_products: &[f32]) -> JointGram {
        let mut gram = JointGram::new(task, queries, item_query_products);
        match &self.centre {
            Centre::None => {}
            Centre::Support => gram.centre_on_items(),
            Centre::File { mean, .. } => {
                let rows: Vec<&[f32]> = task.support.rows().iter().chain(queries.rows()).copied().collect();
                // The inner products of all rows with the centre.
                let mut with_centre = vec![0.0; rows.len()];
                products::products(&rows, &[mean], &mut with_centre);
                let with_centre: Vec<f64> = with_centre.into_iter().map(f64::from).collect();
                gram.centre(&with_centre, f64::from(products::squared_norm(mean)));
            }
        }
        if self.unit {
            gram.scale_to_unit_length();
        }
        gram
    }
}

/// The squared length of a centred row is computed as a difference of inner products. A squared length of at most this
/// fraction of the sum of these terms is only a rounding error and counts as 0.
const ROUNDING: f64 = 1e-6;

/// One over the length whose square is `squared`, or 0 if `squared` is at most the rounding error ([`ROUNDING`]) of a
/// difference of terms that add up to `terms`. Pass 0 for `terms` if `squared` is not a difference.
pub(super) fn inverse_length(squared: f64, terms: f64) -> f64 {
    if squared > ROUNDING * terms { squared.sqrt().recip() } else { 0.0 }
}

/// The inner products of the items and queries of a task with each other, `[rows, rows]`, items first.
///
/// Vectors that are linear combinations of these rows are stored as coefficients `[rows]`; all their inner products
/// follow from this matrix, so the cost does not depend on the dimension.
pub(super) struct JointGram {
    /// Number of support items.
    items: usize,
    /// Number of items and queries.
    rows: usize,
    /// The products, row by row. In f64, because centring and distances subtract products from each other.
    values: Vec<f64>,
}

impl JointGram {
    /// The inner products of the original rows; `products` are those of items with queries, `[items, queries]`.
    fn new(task: &Task<'_>, queries: &Queries<'_>, products: &[f32]) -> Self {
        let (items, query_count) = (task.support.len(), queries.len());
        let rows = items + query_count;
        let mut values = vec![0.0; rows * rows];
        for i in 0..items {
            for j in 0..items {
                values[i * rows + j] = f64::from(task.gram()[i * items + j]);
            }
            for query in 0..query_count {
                let product = f64::from(products[i * query_count + query]);
                values[i * rows + items + query] = product;
                values[(items + query) * rows + i] = product;
            }
        }
        for query in 0..query_count {
            for other in 0..query_count {
                values[(items + query) * rows + items + other] =
                    f64::from(queries.gram()[query * query_count + other]);
            }
        }
        JointGram { items, rows, values }
    }

    /// The inner products of vectors `[rows][dim]`, of which the first `items` are items.
    pub fn of_rows(rows: &[Vec<f32>], items: usize) -> Self {
        let slices: Vec<&[f32]> = rows.iter().map(Vec::as_slice).collect();
        let mut values = vec![0.0; rows.len().pow(2)];
        products::gram(&slices, &mut values);
        JointGram { items, rows: rows.len(), values: values.into_iter().map(f64::from).collect() }
    }

    /// Number of items and queries.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of support items.
    pub fn items(&self) -> usize {
        self.items
    }

    /// Number of queries.
    pub fn queries(&self) -> usize {
        self.rows - self.items
    }

    /// The inner product of two rows.
    pub fn at(&self, i: usize, j: usize) -> f64 {
        self.values[i * self.rows + j]
    }

    /// The squared distance of two rows, at least 0.
    pub fn squared_distance(&self, i: usize, j: usize) -> f64 {
        (self.at(i, i) + self.at(j, j) - 2.0 * self.at(i, j)).max(0.0)
    }

    /// Inner products `[rows]` of every row with the linear combination of `coefficients` `[rows]`.
    pub fn times(&self, coefficients: &[f64]) -> Vec<f64> {
        self.values.chunks_exact(self.rows).map(|row| dot(row, coefficients)).collect()
    }

    /// Subtracts the mean of the support items from all rows.
    fn centre_on_items(&mut self) {
        if self.items == 0 {
            return;
        }
        // The mean as coefficients `[rows]`.
        let weight = 1.0 / self.items as f64;
        let mean: Vec<f64> = (0..self.rows).map(|row| if row < self.items { weight } else { 0.0 }).collect();
        let with_centre = self.times(&mean);
        let squared = dot(&with_centre, &mean);
        self.centre(&with_centre, squared);
    }

    /// Subtracts a vector c from all rows, given its inner products with them (`with_centre`, `[rows]`) and its squared
    /// length: ⟨xᵢ - c, xⱼ - c⟩ = ⟨xᵢ, xⱼ⟩ - ⟨xᵢ, c⟩ - ⟨xⱼ, c⟩ + |c|².
    fn centre(&mut self, with_centre: &[f64], squared: f64) {
        let rows = self.rows;
        for i in 0..rows {
            let terms = self.at(i, i) + squared;
            for j in 0..rows {
                self.values[i * rows + j] += squared - with_centre[i] - with_centre[j];
            }
            // The squared length of row i, 0 if it is only a rounding error.
            let squared_length = &mut self.values[i * rows + i];
            *squared_length = if *squared_length > ROUNDING * terms { *squared_length } else { 0.0 };
        }
    }

    /// Scales all rows to unit length; rows of length 0 stay.
    fn scale_to_unit_length(&mut self) {
        let scales: Vec<f64> = (0..self.rows).map(|row| inverse_length(self.at(row, row), 0.0)).collect();
        // ⟨xᵢ / |xᵢ|, xⱼ / |xⱼ|⟩ = ⟨xᵢ, xⱼ⟩ / |xᵢ| / |xⱼ|
        for (row, scale) in self.values.chunks_exact_mut(self.rows.max(1)).zip(&scales) {
            row.iter_mut().zip(&scales).for_each(|(product, other)| *product *= scale * other);
        }
    }
}

/// The inner product of two vectors of the same length.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The classes of a task that have support items, numbered from 0. Transductive methods work with these only: a class
/// without items has no prototype and is never predicted.
pub(super) struct PresentClasses {
    /// For every class with items its index in the task, and the indices of its items.
    classes: Vec<(usize, Vec<usize>)>,
    /// Number of classes of the task.
    total: usize,
}

impl PresentClasses {
    pub fn new(task: &Task<'_>) -> Self {
        let members = task.support.members().iter().enumerate();
        let present = members.filter(|(_, items)| !items.is_empty());
        let classes = present.map(|(class, items)| (class, items.iter().map(|&i| i as usize).collect()));
        PresentClasses { classes: classes.collect(), total: task.support.classes() }
    }

    /// Number of classes with items.
    pub fn len(&self) -> usize {
        self.classes.len()
    }

    /// The indices of the items of every class with items.
    pub fn members(&self) -> impl Iterator<Item = &[usize]> {
        self.classes.iter().map(|(_, items)| items.as_slice())
    }

    /// The class means as coefficients `[classes][rows]` of items and queries; those of queries are 0.
    pub fn means(&self, rows: usize) -> Vec<Vec<f64>> {
        let mean = |items: &[usize]| {
            let mut coefficients = vec![0.0; rows];
            items.iter().for_each(|&item| coefficients[item] = 1.0 / items.len() as f64);
            coefficients
        };
        self.members().map(mean).collect()
    }

    /// Scores `[classes of the task][queries]` from those of the classes with items; -inf for the other classes.
    pub fn all_scores(&self, scores: &[Vec<f64>], queries: usize) -> Vec<Vec<f32>> {
        let mut all = vec![vec![f32::NEG_INFINITY; queries]; self.total];
        for ((class, _), scores) in self.classes.iter().zip(scores) {
            all[*class] = scores.iter().map(|&score| score as f32).collect();
        }
        all
    }
}
