//! Classifiers, the result of fitting a method to a task: [`Classifier`] assigns one of the task's classes to every
//! query.
//!
//! A task ([`crate::task`]) has a support set, the items with given labels that a method learns from; queries are the
//! rows to classify. Most methods return prototypes, one vector per class, that are weighted sums of support items, and
//! a query gets the class of the nearest prototype. A [`Mixture`] stores the weights of the items, and a classifier can
//! use them in two ways:
//!
//! - With the inner products of all items and queries (`Classifier::classify_with`). Distances to a prototype follow
//!   from them, and an evaluation computes them once for all methods and noise settings of an episode.
//! - With the prototypes as vectors ([`Classifier::classify`]), for a caller with a single method. This takes fewer
//!   inner products: one per class and query instead of one per item and query.
//!
//! Both ways return the same classes: where the vectors lead to a near tie, the inner products with the items decide
//! it.
//!
//! In comments, `<p, q>` is the inner product of a prototype and a query, `|p|` the length of a vector, and `dim` the
//! number of features per row.

use std::sync::Arc;

use trueshot_nn::products;
use trueshot_nn::relabel::GramSpace;

use crate::rng::Rng;
use crate::task::{Queries, Task};

/// One prototype per class, each a weighted sum of support items.
///
/// ```
/// use trueshot::classifier::Mixture;
/// use trueshot::task::{SupportSet, Task};
///
/// let task = Task::new(SupportSet::new(vec![&[0.0, 2.0], &[0.0, 4.0], &[1.0, 0.0]], vec![0, 0, 1], 2));
/// let means = Mixture::within_classes(&task, &[vec![0.5, 0.5], vec![1.0]]);
/// assert_eq!(means.vectors(&task), [[0.0, 3.0], [1.0, 0.0]]);
/// ```
#[derive(Debug, Clone)]
pub struct Mixture {
    /// For every class the items of its prototype, as (item, weight).
    terms: Vec<Vec<(u32, f32)>>,
    /// The squared length of every prototype.
    squared_norms: Vec<f32>,
}

impl Mixture {
    /// Prototypes that are each a weighted sum of the items whose given label is the class: `weights[class][k]` is the
    /// weight of the `k`-th member of the class in [`SupportSet::members`](crate::task::SupportSet::members).
    pub fn within_classes(task: &Task<'_>, weights: &[Vec<f32>]) -> Self {
        let members = task.support.members();
        // |p|² = wᵀ G w, for the weights w and the Gram matrix G of the items.
        let squared_norms = (0..members.len()).map(|class| {
            let gram = task.class_gram(class);
            gram.times(&weights[class]).iter().zip(&weights[class]).map(|(g, w)| g * w).sum()
        });
        let squared_norms = squared_norms.collect();
        let terms = members
            .iter()
            .zip(weights)
            .map(|(items, weights)| items.iter().copied().zip(weights.iter().copied()).collect());
        Mixture { terms: terms.collect(), squared_norms }
    }

    /// Prototypes that are each a weighted sum of items of all classes: `weights[class][item]` is the weight of an item
    /// in the prototype of a class.
    pub fn across_classes(task: &Task<'_>, weights: &[Vec<f32>]) -> Self {
        let (gram, n) = (task.gram(), task.support.len());
        let terms: Vec<Vec<(u32, f32)>> = weights
            .iter()
            .map(|class| (0..).zip(class.iter().copied()).filter(|&(_, weight)| weight != 0.0).collect())
            .collect();
        let squared_norm = |class: &Vec<(u32, f32)>| -> f32 {
            // The inner product of item i with the prototype.
            let product =
                |i: u32| class.iter().map(|&(j, w)| w * gram[i as usize * n + j as usize]).sum::<f32>();
            class.iter().map(|&(i, weight)| weight * product(i)).sum()
        };
        let squared_norms = terms.iter().map(squared_norm).collect();
        Mixture { terms, squared_norms }
    }

    /// For every class the items of its prototype with their weights, as (item, weight).
    pub fn terms(&self) -> &[Vec<(u32, f32)>] {
        &self.terms
    }

    /// The prototypes as vectors `[classes][dim]`.
    pub fn vectors(&self, task: &Task<'_>) -> Vec<Vec<f32>> {
        let vector = |class: &Vec<(u32, f32)>| {
            let rows: Vec<&[f32]> =
                class.iter().map(|&(item, _)| task.support.rows()[item as usize]).collect();
            let weights: Vec<f32> = class.iter().map(|&(_, weight)| weight).collect();
            let mut sum = vec![0.0; task.support.dim()];
            products::weighted_sum(&rows, &weights, &mut sum);
            sum
        };
        self.terms.iter().map(vector).collect()
    }

    /// Scores `[classes][queries]`: `2 <p, q> - |p|^2`, which is largest for the nearest prototype, because it is
    /// `|q|^2 - |p - q|^2`. `item_products` are the inner products `[items, queries]` of the items, `count` is the
    /// number of queries.
    fn scores(&self, item_products: &[f32], count: usize) -> Vec<Vec<f32>> {
        let score = |(class, &norm): (usize, &f32)| {
            let products = self.prototype_products(class, item_products, count);
            products.into_iter().map(|product| 2.0 * product - norm).collect()
        };
        self.squared_norms.iter().enumerate().map(score).collect()
    }

    /// The class of the nearest prototype for every query, computed from the prototype vectors. Near ties are decided
    /// by [`Mixture::scores`], so that the result equals that of the other way of classifying.
    fn nearest(&self, task: &Task<'_>, queries: &Queries<'_>) -> Vec<u32> {
        let vectors = self.vectors(task);
        let rows: Vec<&[f32]> = vectors.iter().map(Vec::as_slice).collect();
        let products = queries.products(&rows);
        let scored = products.chunks_exact(queries.len()).zip(&self.squared_norms);
        let scores: Vec<Vec<f32>> = scored
            .map(|(products, norm)| products.iter().map(|product| 2.0 * product - norm).collect())
            .collect();
        let mut classes = argmax(&scores, queries.len());
        if scores.is_empty() {
            return classes;
        }
        // A score is a difference of terms that can be as large as the largest squared length, so its rounding error is
        // relative to that as well.
        let max_squared_norm = self.squared_norms.iter().copied().fold(0.0, f32::max);
        for (query, class) in classes.iter_mut().enumerate() {
            let max = scores[*class as usize][query];
            let tolerance = TIE_TOLERANCE * (max.abs() + max_squared_norm);
            // The class itself is always counted, so more than one is a near tie.
            let near_ties = scores.iter().filter(|scores| max - scores[query] <= tolerance).count();
            if near_ties > 1 {
                let single = Queries::new(vec![queries.rows()[query]]);
                *class = argmax(&self.scores(&single.products(task.support.rows()), 1), 1)[0];
            }
        }
        classes
    }

    /// Inner products `[queries]` of the prototype of one class with all queries, from those of the items with the
    /// queries (`item_products`, `[items, queries]`); `count` is the number of queries.
    fn prototype_products(&self, class: usize, item_products: &[f32], count: usize) -> Vec<f32> {
        let mut sum = vec![0.0; count];
        for &(item, weight) in &self.terms[class] {
            let row = &item_products[item as usize * count..][..count];
            sum.iter_mut().zip(row).for_each(|(sum, product)| *sum += weight * product);
        }
        sum
    }
}

/// One prototype per class, each a weighted sum of centred support items: the mean of the support set is subtracted
/// from items and queries, which are then scaled to unit length.
///
/// Distances in that space follow from inner products of the original rows, too; [`GramSpace`] computes them.
#[derive(Debug, Clone)]
pub struct CentredMixture {
    space: GramSpace<f32>,
    /// The weight of every item in every prototype, `[classes][items]`.
    weights: Vec<Vec<f32>>,
    /// The squared length of every prototype in that space.
    squared_norms: Vec<f32>,
}

impl CentredMixture {
    /// Prototypes in a `space` made from the items of the task; `weights[class][item]` is the weight of a centred item
    /// in the prototype of a class.
    pub fn new(space: GramSpace<f32>, weights: Vec<Vec<f32>>) -> Self {
        let (gram, n) = (space.gram(), space.items());
        let squared_norm = |weights: &Vec<f32>| -> f32 {
            let product = |i: usize| products::short_dot(&gram[i * n..(i + 1) * n], weights);
            weights.iter().enumerate().map(|(i, weight)| weight * product(i)).sum()
        };
        let squared_norms = weights.iter().map(squared_norm).collect();
        CentredMixture { space, weights, squared_norms }
    }

    /// The mean of the support items `[dim]`, and the prototypes as vectors `[classes][dim]` of the centred space: the
    /// fields of [`Classifier::CentredVectors`].
    pub fn vectors(&self, task: &Task<'_>) -> (Vec<f32>, Vec<Vec<f32>>) {
        let rows = task.support.rows();
        let sum = |weights: &[f32]| {
            let mut sum = vec![0.0; task.support.dim()];
            products::weighted_sum(rows, weights, &mut sum);
            sum
        };
        let mean = sum(&vec![1.0 / rows.len() as f32; rows.len()]);
        (mean, self.weights.iter().map(|weights| sum(&self.space.row_weights(weights))).collect())
    }

    /// The weights of the items, `[classes][items]`.
    pub fn weights(&self) -> &[Vec<f32>] {
        &self.weights
    }

    /// Scores `[classes][queries]`: `2 <p, q> - |p|^2` in the centred space. `products` are the inner products
    /// `[items, queries]` of the original rows.
    fn scores(&self, queries: &Queries<'_>, products: &[f32]) -> Vec<Vec<f32>> {
        let count = queries.len();
        let mut products = products.to_vec();
        // The squared lengths of the queries are transformed, too, but the scores do not need them.
        self.space.transform_queries(&mut products, &mut queries.squared_norms().to_vec());
        let score = |(weights, norm): (&Vec<f32>, &f32)| {
            let mut sum = vec![-norm; count];
            for (weight, row) in weights.iter().zip(products.chunks_exact(count)) {
                sum.iter_mut().zip(row).for_each(|(sum, product)| *sum += 2.0 * weight * product);
            }
            sum
        };
        self.weights.iter().zip(&self.squared_norms).map(score).collect()
    }
}

/// Relative difference below which two scores count as tied, because summing in another order could swap them: a
/// hundred times the rounding error of an inner product of a few thousand values.
const TIE_TOLERANCE: f32 = 1e-4;

/// A classifier implemented by another crate, for instance a network adapted to a support set.
///
/// ```
/// use trueshot::classifier::Scorer;
/// use trueshot::task::Queries;
///
/// #[derive(Debug)]
/// struct SignOfFirstFeature;
/// impl Scorer for SignOfFirstFeature {
///     fn scores(&self, queries: &Queries<'_>) -> Vec<Vec<f32>> {
///         let first = |sign: f32| queries.rows().iter().map(|row| sign * row[0]).collect();
///         vec![first(-1.0), first(1.0)]
///     }
/// }
/// ```
pub trait Scorer: std::fmt::Debug + Send + Sync {
    /// Scores `[classes][queries]`; the class with the largest score wins. All queries are passed together, for
    /// networks such as that of MAML, whose batch normalisation depends on the batch.
    fn scores(&self, queries: &Queries<'_>) -> Vec<Vec<f32>>;
}

/// A transductive classifier: it classifies all queries of a task together, and the class of a query depends on the
/// others.
///
/// ```
/// use trueshot::classifier::TransductiveScorer;
/// use trueshot::task::{Queries, Task};
///
/// /// Of two classes, the second one for queries above the mean of all queries.
/// #[derive(Debug)]
/// struct AboveTheMean;
/// impl TransductiveScorer for AboveTheMean {
///     fn scores(&self, _task: &Task<'_>, queries: &Queries<'_>, _products: &[f32]) -> Vec<Vec<f32>> {
///         let mean = queries.rows().iter().map(|row| row[0]).sum::<f32>() / queries.len() as f32;
///         vec![vec![mean; queries.len()], queries.rows().iter().map(|row| row[0]).collect()]
///     }
/// }
/// ```
pub trait TransductiveScorer: std::fmt::Debug + Send + Sync {
    /// Scores `[classes][queries]` of one or more queries; the class with the largest score wins. `task` has one or
    /// more items, and `products` are its inner products with the queries, `[items, queries]`.
    fn scores(&self, task: &Task<'_>, queries: &Queries<'_>, products: &[f32]) -> Vec<Vec<f32>>;
}

/// A classifier over the classes of a task, as a [`Method`](crate::method::Method) returns it. [`Classifier::classify`]
/// applies it to queries.
///
/// `Prototypes`, `Centred`, `Cosine`, `Neighbours`, `Matching` and `Transductive` refer to the support items of their
/// task; the other variants contain everything they need.
///
/// ```
/// use trueshot::classifier::Classifier;
/// use trueshot::rng::{Purpose, Rng};
/// use trueshot::task::{Queries, SupportSet, Task};
///
/// let task = Task::new(SupportSet::new(vec![&[0.0, 1.0], &[1.0, 0.0]], vec![0, 1], 2));
/// let nearest = Classifier::Vectors(vec![vec![0.0, 1.0], vec![1.0, 0.0]]);
/// let queries = Queries::new(vec![&[0.8, 0.1], &[0.2, 0.9]]);
/// assert_eq!(nearest.classify(&task, &queries, &mut Rng::new(0, Purpose::Method, 0)), [1, 0]);
/// ```
#[derive(Debug, Clone)]
pub enum Classifier {
    /// Nearest prototype, where prototypes are weighted sums of support items.
    Prototypes(Mixture),
    /// Nearest prototype after centring on the mean of the support set and scaling to unit length.
    Centred(CentredMixture),
    /// Nearest prototype, where prototypes are vectors `[classes][dim]`.
    Vectors(Vec<Vec<f32>>),
    /// Nearest of `vectors` after `mean` is subtracted from a query, which is then scaled to unit length.
    CentredVectors {
        /// The vector `[dim]` that is subtracted.
        mean: Vec<f32>,
        /// Prototypes `[classes][dim]` in the transformed space.
        vectors: Vec<Vec<f32>>,
    },
    /// Prototype with the largest cosine, where prototypes are weighted sums of support items.
    Cosine(Mixture),
    /// Prototype with the largest cosine, where prototypes are vectors `[classes][dim]`.
    CosineVectors(Vec<Vec<f32>>),
    /// The most frequent given label among the k nearest support items; ties are broken at random.
    Neighbours(usize),
    /// The class whose items have the largest total weight, where the weights of all support items are a softmax of
    /// their cosines with the query (matching networks).
    Matching,
    /// The class with the largest linear score `<w_c, q> + b_c`.
    Linear {
        /// Weight vectors `[classes][dim]`.
        weights: Vec<Vec<f32>>,
        /// One bias per class.
        bias: Vec<f32>,
    },
    /// The class with the largest score that another crate's code computes.
    Scored(Arc<dyn Scorer>),
    /// The class with the largest score of a transductive method, for all queries of a task together.
    Transductive(Arc<dyn TransductiveScorer>),
}

impl Classifier {
    /// The class index of every query. `task` is the task the classifier was fitted to; `rng` breaks ties of
    /// [`Classifier::Neighbours`].
    pub fn classify(&self, task: &Task<'_>, queries: &Queries<'_>, rng: &mut Rng) -> Vec<u32> {
        match self {
            _ if queries.is_empty() => Vec::new(),
            Classifier::Prototypes(mixture) => mixture.nearest(task, queries),
            // These need no inner products with the support items.
            Classifier::Linear { .. }
            | Classifier::CosineVectors(_)
            | Classifier::Vectors(_)
            | Classifier::CentredVectors { .. }
            | Classifier::Scored(_) => self.classify_with(task, queries, &[], rng),
            _ => self.classify_with(task, queries, &queries.products(task.support.rows()), rng),
        }
    }

    /// Like [`Classifier::classify`], with the inner products `[items, queries]` computed by the caller, who shares
    /// them between methods.
    pub(crate) fn classify_with(
        &self,
        task: &Task<'_>,
        queries: &Queries<'_>,
        products: &[f32],
        rng: &mut Rng,
    ) -> Vec<u32> {
        match self {
            _ if queries.is_empty() => Vec::new(),
            Classifier::Neighbours(k) => neighbours(*k, task, products, queries.len(), rng),
            _ => argmax(&self.scores(task, queries, products), queries.len()),
        }
    }

    /// Scores `[classes][queries]`; the class with the largest score wins. `products` are the inner products `[items,
    /// queries]`; variants that do not refer to items ignore them. Scores of different queries are not comparable,
    /// because terms that are equal for all classes are left out.
    pub(crate) fn scores(&self, task: &Task<'_>, queries: &Queries<'_>, products: &[f32]) -> Vec<Vec<f32>> {
        let count = queries.len();
        match self {
            Classifier::Prototypes(mixture) => mixture.scores(products, count),
            Classifier::Centred(mixture) => mixture.scores(queries, products),
            Classifier::Cosine(mixture) => {
                // <p, q> / |p|: the length of the query is the same for all classes and left out.
                let score = |(class, &norm): (usize, &f32)| {
                    let scale = if norm > 0.0 { norm.sqrt().recip() } else { 0.0 };
                    let products = mixture.prototype_products(class, products, count);
                    products.into_iter().map(|product| product * scale).collect()
                };
                mixture.squared_norms.iter().enumerate().map(score).collect()
            }
            Classifier::Vectors(vectors) => nearest_scores(vectors, queries),
            Classifier::CosineVectors(vectors) => {
                let rows: Vec<&[f32]> = vectors.iter().map(Vec::as_slice).collect();
                let products = queries.products(&rows);
                let score = |(row, products): (&&[f32], &[f32])| {
                    let norm = row.iter().map(|w| w * w).sum::<f32>().sqrt();
                    let scale = if norm > 0.0 { norm.recip() } else { 0.0 };
                    products.iter().map(|p| p * scale).collect()
                };
                rows.iter().zip(products.chunks_exact(count)).map(score).collect()
            }
            Classifier::Linear { weights, bias } => {
                let rows: Vec<&[f32]> = weights.iter().map(Vec::as_slice).collect();
                let products = queries.products(&rows);
                let score = |(bias, products): (&f32, &[f32])| products.iter().map(|p| p + bias).collect();
                bias.iter().zip(products.chunks_exact(count)).map(score).collect()
            }
            Classifier::CentredVectors { mean, vectors } => {
                let centred: Vec<Vec<f32>> =
                    queries.rows().iter().map(|row| centred_unit(row, mean)).collect();
                let centred = Queries::new(centred.iter().map(Vec::as_slice).collect());
                nearest_scores(vectors, &centred)
            }
            Classifier::Scored(scorer) => scorer.scores(queries),
            Classifier::Transductive(_) if task.support.is_empty() || queries.is_empty() => {
                vec![vec![0.0; count]; task.support.classes()]
            }
            Classifier::Transductive(scorer) => scorer.scores(task, queries, products),
            Classifier::Matching => matching_scores(task, queries, products),
            Classifier::Neighbours(k) => vote_shares(*k, task, products, count),
        }
    }

    /// Scores `[rows][classes]` of query rows: [`Classifier::scores`] transposed.
    pub(crate) fn row_scores(&self, task: &Task<'_>, rows: &[&[f32]]) -> Vec<Vec<f32>> {
        let queries = Queries::new(rows.to_vec());
        let products = queries.products(task.support.rows());
        let by_class = self.scores(task, &queries, &products);
        (0..rows.len()).map(|row| by_class.iter().map(|scores| scores[row]).collect()).collect()
    }
}

/// Scores `[classes][queries]`: `2 <p, q> - |p|^2` for the prototypes `vectors` `[classes][dim]`.
fn nearest_scores(vectors: &[Vec<f32>], queries: &Queries<'_>) -> Vec<Vec<f32>> {
    let rows: Vec<&[f32]> = vectors.iter().map(Vec::as_slice).collect();
    let products = queries.products(&rows);
    let score = |(row, products): (&&[f32], &[f32])| {
        let norm = products::squared_norm(row);
        products.iter().map(|product| 2.0 * product - norm).collect()
    };
    rows.iter().zip(products.chunks_exact(queries.len())).map(score).collect()
}

/// `(row - mean) / |row - mean|`; the zero vector if the row equals the mean.
pub(crate) fn centred_unit(row: &[f32], mean: &[f32]) -> Vec<f32> {
    let centred: Vec<f32> = row.iter().zip(mean).map(|(value, mean)| value - mean).collect();
    let length = products::squared_norm(&centred).sqrt();
    let scale = if length > 0.0 { length.recip() } else { 0.0 };
    centred.into_iter().map(|value| value * scale).collect()
}

/// The class with the largest score for every query, from scores `[classes][queries]`; of equal scores, the first
/// class.
fn argmax(scores: &[Vec<f32>], queries: usize) -> Vec<u32> {
    // The best class so far and its score, for every query.
    let mut best_classes = vec![0; queries];
    let mut best_scores = scores.first().cloned().unwrap_or_default();
    for (class, scores) in (0..).zip(scores).skip(1) {
        for ((best, best_score), &score) in best_classes.iter_mut().zip(&mut best_scores).zip(scores) {
            *best = if score > *best_score { class } else { *best };
            *best_score = best_score.max(score);
        }
    }
    best_classes
}

/// Scores `[classes][queries]` of matching networks: `sum exp(cos(item, query))` over the items of the class.
fn matching_scores(task: &Task<'_>, queries: &Queries<'_>, products: &[f32]) -> Vec<Vec<f32>> {
    let count = queries.len();
    let inverse = |squared: f32| if squared > 0.0 { squared.sqrt().recip() } else { 0.0 };
    let query_scales: Vec<f32> = queries.squared_norms().iter().map(|&norm| inverse(norm)).collect();
    let mut scores = vec![vec![0.0; count]; task.support.classes()];
    let items = task.support.given().iter().zip(task.squared_norms());
    for ((&class, squared_norm), row) in items.zip(products.chunks_exact(count.max(1))) {
        let scale = inverse(squared_norm);
        let exps = row.iter().zip(&query_scales).map(|(p, q)| (p * q * scale).exp());
        // The softmax's denominator is the same for all classes and left out.
        scores[class as usize].iter_mut().zip(exps).for_each(|(score, exp)| *score += exp);
    }
    scores
}

/// The class of every query by a vote of its k nearest support items.
fn neighbours(k: usize, task: &Task<'_>, products: &[f32], queries: usize, rng: &mut Rng) -> Vec<u32> {
    let mut counter = VoteCounter::new(task);
    (0..queries).map(|query| plurality(counter.count(k, task, products, queries, query), rng)).collect()
}

/// The fraction of the k votes that every class gets, `[classes][queries]`; `queries` is the number of queries.
fn vote_shares(k: usize, task: &Task<'_>, products: &[f32], queries: usize) -> Vec<Vec<f32>> {
    let mut shares = vec![vec![0.0; queries]; task.support.classes()];
    let mut counter = VoteCounter::new(task);
    for query in 0..queries {
        for (shares, &votes) in shares.iter_mut().zip(counter.count(k, task, products, queries, query)) {
            shares[query] = votes as f32 / k.min(task.support.len()) as f32;
        }
    }
    shares
}

/// Counts how the k nearest support items of a query vote for their given classes. It keeps its buffers between
/// queries.
struct VoteCounter {
    /// The squared length of every support item.
    squared_norms: Vec<f32>,
    /// For every support item its squared distance from the query, less the query's squared length, and the item.
    distances: Vec<(f32, u32)>,
    /// Votes per class.
    votes: Vec<u32>,
}

impl VoteCounter {
    fn new(task: &Task<'_>) -> Self {
        VoteCounter {
            squared_norms: task.squared_norms(),
            distances: Vec::with_capacity(task.support.len()),
            votes: vec![0; task.support.classes()],
        }
    }

    /// The number of votes per class for the query `query` of `queries`; `products` are `[items, queries]`.
    fn count(&mut self, k: usize, task: &Task<'_>, products: &[f32], queries: usize, query: usize) -> &[u32] {
        let n = task.support.len();
        let norms = &self.squared_norms;
        let distance = |i: usize| (norms[i] - 2.0 * products[i * queries + query], i as u32);
        self.distances.clear();
        self.distances.extend((0..n).map(distance));
        let k = k.min(n);
        // Moves the k nearest items to the front, in any order; of equally distant items, those with lower indices.
        if k < n {
            self.distances.select_nth_unstable_by(k - 1, |a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        }
        self.votes.fill(0);
        let given = task.support.given();
        self.distances[..k].iter().for_each(|&(_, item)| self.votes[given[item as usize] as usize] += 1);
        &self.votes
    }
}

/// The class with the most votes; ties are broken uniformly at random.
fn plurality(votes: &[u32], rng: &mut Rng) -> u32 {
    let max = votes.iter().copied().max().unwrap_or(0);
    let tied = votes.iter().filter(|&&count| count == max).count();
    let chosen = if tied == 1 { 0 } else { rng.below(tied) };
    let mut tied_classes = votes.iter().enumerate().filter(|&(_, &count)| count == max);
    tied_classes.nth(chosen).map_or(0, |(class, _)| class as u32)
}
