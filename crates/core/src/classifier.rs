//! What a method learns, and how it answers.
//!
//! Most methods end in prototypes that are weighted sums of support items. A [`Mixture`] keeps the weights
//! rather than the vectors: distances to it follow from inner products between items, which all methods and noise
//! settings of an episode share. Who has only one prototype a class to ask about is better served by the vectors:
//! five products a query instead of twenty-five. Both ways give the same answers, because the second one settles
//! what is nearly tied by the first.

use std::sync::Arc;

use trueshot_nn::products;
use trueshot_nn::relabel::GramSpace;

use crate::rng::Rng;
use crate::task::{Queries, Task};

/// One weighted sum of support items per class.
#[derive(Debug, Clone)]
pub struct Mixture {
    /// For every class the items and their weights.
    terms: Vec<Vec<(u32, f32)>>,
    squared_norms: Vec<f32>,
}

impl Mixture {
    /// Weights of items within the class they are filed under, for every class in the order of its members.
    pub fn within_classes(task: &Task<'_>, weights: &[Vec<f32>]) -> Self {
        let members = task.support.members();
        let squared_norms = (0..members.len()).map(|class| {
            let gram = task.class_gram(class);
            gram.times(&weights[class]).iter().zip(&weights[class]).map(|(g, w)| g * w).sum()
        });
        let squared_norms = squared_norms.collect();
        let terms =
            members.iter().zip(weights).map(|(m, w)| m.iter().copied().zip(w.iter().copied()).collect());
        Mixture { terms: terms.collect(), squared_norms }
    }

    /// Weights of all items in all classes: for every class as many as there are items.
    pub fn across_classes(task: &Task<'_>, weights: &[Vec<f32>]) -> Self {
        let (gram, n) = (task.gram(), task.support.len());
        let terms: Vec<Vec<(u32, f32)>> = weights
            .iter()
            .map(|class| (0..).zip(class.iter().copied()).filter(|&(_, weight)| weight != 0.0).collect())
            .collect();
        let squared_norm = |class: &Vec<(u32, f32)>| -> f32 {
            let product =
                |i: u32| class.iter().map(|&(j, w)| w * gram[i as usize * n + j as usize]).sum::<f32>();
            class.iter().map(|&(i, weight)| weight * product(i)).sum()
        };
        let squared_norms = terms.iter().map(squared_norm).collect();
        Mixture { terms, squared_norms }
    }

    /// For every class the items it is made of and their weights.
    pub fn terms(&self) -> &[Vec<(u32, f32)>] {
        &self.terms
    }

    /// The prototypes themselves, class by class.
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

    /// For every class twice its products with the queries, less its squared length: the nearest is the largest.
    fn scores(&self, products: &[f32], queries: usize) -> Vec<Vec<f32>> {
        let score = |(class, &norm): (usize, &f32)| {
            let products = self.products(class, products, queries);
            products.into_iter().map(|product| 2.0 * product - norm).collect()
        };
        self.squared_norms.iter().enumerate().map(score).collect()
    }

    /// The nearest prototype of every query, found with the vectors themselves.
    fn nearest(&self, task: &Task<'_>, queries: &Queries<'_>) -> Vec<u32> {
        let vectors = self.vectors(task);
        let rows: Vec<&[f32]> = vectors.iter().map(Vec::as_slice).collect();
        let products = queries.products(&rows);
        let scored = products.chunks_exact(queries.len()).zip(&self.squared_norms);
        let scores: Vec<Vec<f32>> = scored
            .map(|(products, norm)| products.iter().map(|product| 2.0 * product - norm).collect())
            .collect();
        let mut answers = best(&scores, queries.len());
        let longest = self.squared_norms.iter().copied().fold(0.0, f32::max);
        for (query, answer) in answers.iter_mut().enumerate() {
            let highest = scores[*answer as usize][query];
            let doubtful = NEARLY_TIED * (highest.abs() + longest);
            let rivals = scores.iter().filter(|scores| highest - scores[query] <= doubtful).count();
            if rivals > 1 {
                let alone = Queries::new(vec![queries.rows()[query]]);
                *answer = best(&self.scores(&alone.products(task.support.rows()), 1), 1)[0];
            }
        }
        answers
    }

    /// Inner products of one class's prototype with all queries.
    fn products(&self, class: usize, products: &[f32], queries: usize) -> Vec<f32> {
        let mut sum = vec![0.0; queries];
        for &(item, weight) in &self.terms[class] {
            let row = &products[item as usize * queries..][..queries];
            sum.iter_mut().zip(row).for_each(|(s, p)| *s += weight * p);
        }
        sum
    }
}

/// One weighted sum of support items per class, in a space of their own: minus the mean of the items and at unit
/// length. Distances there, too, follow from inner products.
#[derive(Debug, Clone)]
pub struct PlacedMixture {
    space: GramSpace<f32>,
    weights: Vec<Vec<f32>>,
    squared_norms: Vec<f32>,
}

impl PlacedMixture {
    /// Weights of all items in all classes.
    pub fn new(space: GramSpace<f32>, weights: Vec<Vec<f32>>) -> Self {
        let (gram, n) = (space.gram(), space.items());
        let squared_norm = |weights: &Vec<f32>| -> f32 {
            let product = |i: usize| products::short_dot(&gram[i * n..(i + 1) * n], weights);
            weights.iter().enumerate().map(|(i, weight)| weight * product(i)).sum()
        };
        let squared_norms = weights.iter().map(squared_norm).collect();
        PlacedMixture { space, weights, squared_norms }
    }

    /// The mean of the items, and the prototypes in the space without it.
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

    /// For every class the weight of every item.
    pub fn weights(&self) -> &[Vec<f32>] {
        &self.weights
    }

    fn scores(&self, queries: &Queries<'_>, products: &[f32]) -> Vec<Vec<f32>> {
        let count = queries.len();
        let mut products = products.to_vec();
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

/// Scores closer than this share of their size could change places when they are summed in another order: a
/// hundred times what rounding does to a product of a few thousand numbers.
const NEARLY_TIED: f32 = 1e-4;

/// A classifier that lives elsewhere, for instance a network adapted to a support set.
pub trait Scorer: std::fmt::Debug + Send + Sync {
    /// For every class a score of every query; the largest wins. Queries are answered together.
    fn scores(&self, queries: &Queries<'_>) -> Vec<Vec<f32>>;
}

/// A trained classifier over the classes of a task.
#[derive(Debug, Clone)]
pub enum Classifier {
    /// The nearest prototype wins.
    Prototypes(Mixture),
    /// The nearest prototype wins, in a space of the support set's own.
    Placed(PlacedMixture),
    /// The nearest of explicit vectors wins.
    Vectors(Vec<Vec<f32>>),
    /// The largest cosine wins.
    Cosine(Mixture),
    /// The largest cosine with explicit vectors wins.
    CosineVectors(Vec<Vec<f32>>),
    /// The class with most of the k nearest support items wins; ties are broken at random.
    Neighbours(usize),
    /// The class whose items get the largest share of a softmax over cosines wins.
    Matching,
    /// The largest linear score wins.
    Linear {
        /// One vector a class.
        weights: Vec<Vec<f32>>,
        /// One number a class.
        bias: Vec<f32>,
    },
    /// The largest score of something else wins.
    Scored(Arc<dyn Scorer>),
}

impl Classifier {
    /// The class of every query.
    pub fn classify(&self, task: &Task<'_>, queries: &Queries<'_>, rng: &mut Rng) -> Vec<u32> {
        match self {
            _ if queries.is_empty() => Vec::new(),
            Classifier::Prototypes(mixture) => mixture.nearest(task, queries),
            Classifier::Linear { .. }
            | Classifier::CosineVectors(_)
            | Classifier::Vectors(_)
            | Classifier::Scored(_) => self.classify_with(task, queries, &[], rng),
            _ => self.classify_with(task, queries, &queries.products(task.support.rows()), rng),
        }
    }

    /// The same, where the products of the support items with the queries are at hand.
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
            _ => best(&self.scores(task, queries, products), queries.len()),
        }
    }

    /// For every class a score of every query; the largest wins. They are comparable within a query only.
    pub(crate) fn scores(&self, task: &Task<'_>, queries: &Queries<'_>, products: &[f32]) -> Vec<Vec<f32>> {
        let count = queries.len();
        match self {
            // The query's own length is the same for all classes and left out.
            Classifier::Prototypes(mixture) => mixture.scores(products, count),
            Classifier::Placed(mixture) => mixture.scores(queries, products),
            Classifier::Cosine(mixture) => {
                let score = |(class, &norm): (usize, &f32)| {
                    let scale = if norm > 0.0 { norm.sqrt().recip() } else { 0.0 };
                    mixture.products(class, products, count).into_iter().map(|p| p * scale).collect()
                };
                mixture.squared_norms.iter().enumerate().map(score).collect()
            }
            Classifier::Vectors(vectors) => {
                let rows: Vec<&[f32]> = vectors.iter().map(Vec::as_slice).collect();
                let products = queries.products(&rows);
                let score = |(row, products): (&&[f32], &[f32])| {
                    let norm = products::squared_norm(row);
                    products.iter().map(|product| 2.0 * product - norm).collect()
                };
                rows.iter().zip(products.chunks_exact(count)).map(score).collect()
            }
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
            Classifier::Scored(scorer) => scorer.scores(queries),
            Classifier::Matching => matching(task, queries, products),
            Classifier::Neighbours(k) => votes(*k, task, products, count),
        }
    }

    /// For every one of some rows a score of every class.
    pub(crate) fn asked(&self, task: &Task<'_>, rows: &[&[f32]]) -> Vec<Vec<f32>> {
        let queries = Queries::new(rows.to_vec());
        let products = queries.products(task.support.rows());
        let by_class = self.scores(task, &queries, &products);
        (0..rows.len()).map(|row| by_class.iter().map(|scores| scores[row]).collect()).collect()
    }
}

/// The class with the largest score of each query; the first where scores are equal.
fn best(scores: &[Vec<f32>], queries: usize) -> Vec<u32> {
    let mut winner = vec![0; queries];
    let mut highest = scores.first().cloned().unwrap_or_default();
    for (class, scores) in (1..).zip(&scores[1..]) {
        for ((winner, highest), &score) in winner.iter_mut().zip(&mut highest).zip(scores) {
            *winner = if score > *highest { class } else { *winner };
            *highest = highest.max(score);
        }
    }
    winner
}

fn matching(task: &Task<'_>, queries: &Queries<'_>, products: &[f32]) -> Vec<Vec<f32>> {
    let (gram, n, count) = (task.gram(), task.support.len(), queries.len());
    let inverse = |squared: f32| if squared > 0.0 { squared.sqrt().recip() } else { 0.0 };
    let query_scales: Vec<f32> = queries.squared_norms().iter().map(|&norm| inverse(norm)).collect();
    let mut scores = vec![vec![0.0; count]; task.support.classes()];
    for (item, (&class, row)) in
        task.support.given().iter().zip(products.chunks_exact(count.max(1))).enumerate()
    {
        let scale = inverse(gram[item * n + item]);
        let shares = row.iter().zip(&query_scales).map(|(p, q)| (p * q * scale).exp());
        // The softmax's denominator is the same for all classes and left out.
        scores[class as usize].iter_mut().zip(shares).for_each(|(score, share)| *score += share);
    }
    scores
}

fn neighbours(k: usize, task: &Task<'_>, products: &[f32], queries: usize, rng: &mut Rng) -> Vec<u32> {
    let mut vote = Vote::new(task);
    (0..queries).map(|query| plurality(vote.of(k, task, products, queries, query), rng)).collect()
}

/// For every class the share of the votes of every query.
fn votes(k: usize, task: &Task<'_>, products: &[f32], queries: usize) -> Vec<Vec<f32>> {
    let mut shares = vec![vec![0.0; queries]; task.support.classes()];
    let mut vote = Vote::new(task);
    for query in 0..queries {
        for (shares, &votes) in shares.iter_mut().zip(vote.of(k, task, products, queries, query)) {
            shares[query] = votes as f32 / k.min(task.support.len()) as f32;
        }
    }
    shares
}

/// The nearest support items vote for the classes they are filed under.
struct Vote {
    distances: Vec<(f32, u32)>,
    votes: Vec<u32>,
}

impl Vote {
    fn new(task: &Task<'_>) -> Self {
        Vote { distances: Vec::with_capacity(task.support.len()), votes: vec![0; task.support.classes()] }
    }

    /// The votes on one of so many queries.
    fn of(&mut self, k: usize, task: &Task<'_>, products: &[f32], queries: usize, query: usize) -> &[u32] {
        let (gram, n) = (task.gram(), task.support.len());
        let distance = |i: usize| (gram[i * n + i] - 2.0 * products[i * queries + query], i as u32);
        self.distances.clear();
        self.distances.extend((0..n).map(distance));
        let k = k.min(n);
        if k < n {
            self.distances.select_nth_unstable_by(k - 1, |a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        }
        self.votes.fill(0);
        let given = task.support.given();
        self.distances[..k].iter().for_each(|&(_, item)| self.votes[given[item as usize] as usize] += 1);
        &self.votes
    }
}

/// The place with most votes; ties are broken uniformly.
fn plurality(votes: &[u32], rng: &mut Rng) -> u32 {
    let most = votes.iter().copied().max().unwrap_or(0);
    let tied = votes.iter().filter(|&&count| count == most).count();
    let chosen = if tied == 1 { 0 } else { rng.below(tied) };
    let mut places = votes.iter().enumerate().filter(|&(_, &count)| count == most);
    places.nth(chosen).map_or(0, |(class, _)| class as u32)
}
