//! The method `laplacianshot` (Ziko et al., 2020): a query tends to get the class of its nearest prototype and of the
//! queries near it. It is transductive: it classifies all queries of a task together.
//!
//! Prototypes (one point per class) are those of `bd-cspn`. With `a` the squared distances of queries and prototypes
//! `[queries, classes]` and `W` the matrix with `W[q][r] = 1` if r is one of the nearest neighbours of q, soft
//! assignments `Y` start at `softmax(-a)` and are updated to `softmax(-a + lambda W Y)` until the objective of the
//! paper (its equation 7) no longer changes.
//!
//! Defaults are those of easyfsl (a PyTorch library of few-shot methods); the paper tunes `lambda` on validation
//! classes.

use super::bd_cspn::{SCALE, query_rows, rectified_prototypes};
use super::centring::{Centre, JointGram, Preparation, PresentClasses, Transductive, dot};
use super::registry::{MethodInfo, Parameter, Parameters};
use crate::classifier::TransductiveScorer;
use crate::task::{Queries, Task};

pub(super) const INFO: MethodInfo = MethodInfo {
    name: "laplacianshot",
    summary: "nearest rectified prototype, where near queries tend to the same class",
    parameters: &[
        Parameter { name: "lambda", default: "0.7", meaning: "weight of the neighbours' assignments" },
        Parameter {
            name: "knn",
            default: "3",
            meaning: "size of a neighbourhood, the query itself included",
        },
        Parameter { name: "steps", default: "20", meaning: "maximum number of updates" },
        SCALE,
        Centre::parameter("none"),
        Preparation::NORMALISE,
    ],
    transductive: true,
    build: |given: &Parameters| {
        let scorer = LaplacianShot {
            lambda: f64::from(given.not_negative("lambda")?),
            knn: given.count("knn")?,
            steps: given.count("steps")?,
            scale: f64::from(given.not_negative("scale")?),
            preparation: Preparation::parse(given)?,
        };
        Ok(Transductive::boxed(scorer, |scorer| &scorer.preparation))
    },
};

/// Relative change of the objective below which updates stop.
const TOLERANCE: f64 = 1e-6;

#[derive(Debug)]
struct LaplacianShot {
    /// Weight of the neighbours' assignments.
    lambda: f64,
    /// Size of a neighbourhood, the query itself included.
    knn: usize,
    /// Maximum number of updates.
    steps: usize,
    /// Factor of the cosines in the weights of the prototypes.
    scale: f64,
    preparation: Preparation,
}

impl TransductiveScorer for LaplacianShot {
    fn scores(&self, task: &Task<'_>, queries: &Queries<'_>, products: &[f32]) -> Vec<Vec<f32>> {
        let classes = PresentClasses::new(task);
        let gram = self.preparation.gram(task, queries, products);
        let prototypes = rectified_prototypes(&gram, &classes, self.scale);
        let distances = squared_distances(&gram, &prototypes);
        let neighbours = nearest_queries(&gram, self.knn - 1);
        let assignments = self.assign(&distances, &neighbours);
        let of_class = |class: usize| assignments.iter().map(|shares| shares[class]).collect();
        let scores: Vec<Vec<f64>> = (0..classes.len()).map(of_class).collect();
        classes.all_scores(&scores, queries.len())
    }
}

impl LaplacianShot {
    /// Soft assignments `[queries][classes]`, whose rows sum to 1, from squared distances `[queries][classes]` and the
    /// neighbours of every query (`neighbours[query]` are indices of queries).
    fn assign(&self, distances: &[Vec<f64>], neighbours: &[Vec<usize>]) -> Vec<Vec<f64>> {
        let plain = |distances: &Vec<f64>| softmax(distances.iter().map(|distance| -distance));
        let mut assignments: Vec<Vec<f64>> = distances.iter().map(plain).collect();
        let mut objective = f64::INFINITY;
        for step in 0..self.steps {
            // Row q of W Y, where Y are the current assignments.
            let sums = neighbour_sums(&assignments, neighbours);
            let update = |(distances, sums): (&Vec<f64>, &Vec<f64>)| {
                softmax(distances.iter().zip(sums).map(|(distance, sum)| self.lambda * sum - distance))
            };
            assignments = distances.iter().zip(&sums).map(update).collect();
            let previous = std::mem::replace(
                &mut objective,
                self.objective(&assignments, distances, &neighbour_sums(&assignments, neighbours)),
            );
            // As in the authors' program, the first two updates are always followed by another.
            if step > 1 && (objective - previous).abs() <= TOLERANCE * previous.abs() {
                break;
            }
        }
        assignments
    }

    /// The objective of the paper (its equation 7): the sum of `Y log Y + a Y - lambda (W Y) Y` over all queries and
    /// classes, with `sums` = `W Y`. 1e-12 keeps the logarithm finite where `Y` is 0.
    fn objective(&self, assignments: &[Vec<f64>], distances: &[Vec<f64>], sums: &[Vec<f64>]) -> f64 {
        let rows = assignments.iter().zip(distances).zip(sums);
        rows.flat_map(|((shares, distances), sums)| shares.iter().zip(distances).zip(sums))
            .map(|((share, distance), sum)| share * ((share + 1e-12).ln() + distance - self.lambda * sum))
            .sum()
    }
}

/// Squared distances `[queries][classes]` of the queries and prototypes. Prototypes are given as coefficients
/// `[classes][rows]` of the rows of `gram`.
pub(super) fn squared_distances(gram: &JointGram, prototypes: &[Vec<f64>]) -> Vec<Vec<f64>> {
    // |q - p|^2 = |q|^2 - 2 <q, p> + |p|^2; `products` are the <row, p>, `[classes][rows]`, and `squares` the |p|^2.
    let products: Vec<Vec<f64>> = prototypes.iter().map(|prototype| gram.times(prototype)).collect();
    let squares: Vec<f64> = products.iter().zip(prototypes).map(|(a, b)| dot(a, b)).collect();
    let of_query = |row: usize| {
        let distance = |(products, square): (&Vec<f64>, &f64)| {
            (gram.at(row, row) - 2.0 * products[row] + square).max(0.0)
        };
        products.iter().zip(&squares).map(distance).collect()
    };
    query_rows(gram).map(of_query).collect()
}

/// The `count` nearest other queries of every query, `[queries][count]`, as indices of queries; of several at the same
/// distance, the first.
fn nearest_queries(gram: &JointGram, count: usize) -> Vec<Vec<usize>> {
    let nearest = |row: usize| {
        let others = query_rows(gram).filter(|&other| other != row);
        let mut others: Vec<(f64, usize)> =
            others.map(|other| (gram.squared_distance(row, other), other)).collect();
        others.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        others.iter().take(count).map(|&(_, other)| other - gram.items()).collect()
    };
    query_rows(gram).map(nearest).collect()
}

/// The sum of the assignments of the neighbours of every query, `[queries][classes]`.
fn neighbour_sums(assignments: &[Vec<f64>], neighbours: &[Vec<usize>]) -> Vec<Vec<f64>> {
    let sum = |neighbours: &Vec<usize>| {
        let mut sum = vec![0.0; assignments[0].len()];
        for &neighbour in neighbours {
            sum.iter_mut().zip(&assignments[neighbour]).for_each(|(sum, share)| *sum += share);
        }
        sum
    };
    neighbours.iter().map(sum).collect()
}

/// `exp(logit)`, divided by the sum over all logits. The maximum is subtracted from the logits, so that `exp` cannot
/// overflow.
pub(super) fn softmax(logits: impl Iterator<Item = f64> + Clone) -> Vec<f64> {
    let max = logits.clone().fold(f64::NEG_INFINITY, f64::max);
    let exps: Vec<f64> = logits.map(|logit| (logit - max).exp()).collect();
    let sum: f64 = exps.iter().sum();
    exps.into_iter().map(|exp| exp / sum).collect()
}
