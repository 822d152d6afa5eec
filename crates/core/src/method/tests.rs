//! Tests of the methods against naive reference implementations, which work on the vectors in f64, and of what holds
//! for every method: ties, order, degenerate tasks.
//!
//! [`Problem`] is the support set and the queries that the tests share. Trained networks are tested in [`heads`],
//! SimpleShot and the transductive methods in [`transductive`].

mod heads;
mod transductive;

use super::{ItemAssessment, Registry};
use crate::classifier::Classifier;
use crate::rng::{Purpose, Rng};
use crate::task::{Queries, SupportSet, Task};

/// A small support set with classes of unequal size, its true labels, and six queries per class.
#[derive(Clone)]
struct Problem {
    /// The rows of the support items, class after class.
    rows: Vec<Vec<f32>>,
    /// The given class of every support item.
    given: Vec<u32>,
    /// The true class of every support item.
    truth: Vec<Option<u32>>,
    /// The rows of the queries, class after class.
    queries: Vec<Vec<f32>>,
    /// The number of classes.
    classes: usize,
}

impl Problem {
    /// Classes of the given sizes around different centres; item 2 of every class, counted from 0, really belongs to
    /// the next class. Values are not negative, like those after a ReLU.
    fn new(sizes: &[usize], dim: usize, seed: u64) -> Self {
        let mut rng = Rng::new(seed, Purpose::Items, 0);
        // A random row of a class. The centre of class c has larger values in the dimensions c, c + n, c + 2 n and so
        // on, where n is the number of classes.
        let mut row = |class: usize| -> Vec<f32> {
            let centre = |d: usize| if d % sizes.len() == class { 2.0 } else { 0.3 };
            (0..dim).map(|d| (centre(d) + 2.0 * rng.uniform() - 1.0).max(0.0)).collect()
        };
        let mut problem =
            Problem { rows: vec![], given: vec![], truth: vec![], queries: vec![], classes: sizes.len() };
        for (class, &size) in sizes.iter().enumerate() {
            for position in 0..size {
                let truth = if position == 2 { (class + 1) % sizes.len() } else { class };
                problem.rows.push(row(truth));
                problem.given.push(class as u32);
                problem.truth.push(Some(truth as u32));
            }
            (0..6).for_each(|_| problem.queries.push(row(class)));
        }
        problem
    }

    fn task(&self) -> Task<'_> {
        let rows = self.rows.iter().map(Vec::as_slice).collect();
        Task::new(SupportSet::new(rows, self.given.clone(), self.classes)).with_truth(&self.truth)
    }

    fn queries(&self) -> Queries<'_> {
        Queries::new(self.queries.iter().map(Vec::as_slice).collect())
    }

    /// The rows of the items with this given label.
    fn members(&self, class: usize) -> Vec<&Vec<f32>> {
        self.rows
            .iter()
            .zip(&self.given)
            .filter(|&(_, &given)| given as usize == class)
            .map(|(row, _)| row)
            .collect()
    }

    fn fit(&self, method: &str) -> (Classifier, Option<Vec<ItemAssessment>>) {
        let fitted = Registry::default().parse(method).unwrap().method.fit(&self.task(), &mut rng()).unwrap();
        (fitted.classifier, fitted.assessments)
    }

    /// The prototypes of the fitted method as vectors `[classes][dim]`.
    fn prototypes(&self, method: &str) -> Vec<Vec<f32>> {
        match self.fit(method).0 {
            Classifier::Prototypes(mixture) | Classifier::Cosine(mixture) => mixture.vectors(&self.task()),
            Classifier::CosineVectors(vectors) => vectors,
            other => panic!("{method} has no prototypes: {other:?}"),
        }
    }

    /// The predicted class of every query.
    fn predictions(&self, method: &str) -> Vec<u32> {
        self.fit(method).0.classify(&self.task(), &self.queries(), &mut rng())
    }
}

/// The random numbers that every method gets; each call returns the same ones.
fn rng() -> Rng {
    Rng::new(5, Purpose::Method, 3)
}

fn squared_distance(a: &[f64], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, &b)| (a - f64::from(b)).powi(2)).sum()
}

fn to_f64(row: &[f32]) -> Vec<f64> {
    row.iter().map(|&value| f64::from(value)).collect()
}

/// The sum of the weighted rows, divided by the sum of the weights.
fn weighted_mean(rows: &[&Vec<f32>], weights: &[f64]) -> Vec<f64> {
    let total: f64 = weights.iter().sum();
    let column =
        |d: usize| rows.iter().zip(weights).map(|(row, w)| w * f64::from(row[d])).sum::<f64>() / total;
    (0..rows[0].len()).map(column).collect()
}

/// Compares a vector with its reference; the tolerance allows for the rounding of f32.
fn assert_near(actual: &[f32], expected: &[f64], what: &str) {
    let worst = actual.iter().zip(expected).map(|(&a, b)| (f64::from(a) - b).abs()).fold(0.0, f64::max);
    assert!(worst < 2e-4, "{what} is off by {worst}");
}

/// The number of items of every class in most tests.
const SIZES: [usize; 4] = [5, 3, 7, 4];

#[test]
fn protonet_is_the_class_mean_and_the_oracle_the_mean_of_clean_items() {
    let problem = Problem::new(&SIZES, 37, 1);
    let (protonet, oracle) = (problem.prototypes("protonet"), problem.prototypes("oracle"));
    for class in 0..SIZES.len() {
        let members = problem.members(class);
        assert_near(&protonet[class], &weighted_mean(&members, &vec![1.0; members.len()]), "the mean");
        let clean: Vec<f64> =
            (0..members.len()).map(|position| if position == 2 { 0.0 } else { 1.0 }).collect();
        assert_near(&oracle[class], &weighted_mean(&members, &clean), "the oracle");
    }
}

#[test]
fn the_median_takes_weiszfeld_steps() {
    let problem = Problem::new(&SIZES, 37, 2);
    for (method, steps, eps) in [("median", 5, 0.5), ("median:steps=2:eps=0.1", 2, 0.1)] {
        for (class, prototype) in problem.prototypes(method).iter().enumerate() {
            let members = problem.members(class);
            let mut point = weighted_mean(&members, &vec![1.0; members.len()]);
            for _ in 0..steps {
                let weight = |row: &&Vec<f32>| (squared_distance(&point, row) + eps * eps).sqrt().recip();
                point = weighted_mean(&members, &members.iter().map(weight).collect::<Vec<_>>());
            }
            assert_near(prototype, &point, method);
        }
    }
}

#[test]
fn both_hessians_converge_to_the_same_median() {
    let problem = Problem::new(&[6, 4, 9], 23, 3);
    let diagonal = problem.prototypes("median:steps=converge");
    let full = problem.prototypes("median:steps=converge:hessian=full");
    let six_steps = problem.prototypes("median:steps=6:hessian=full");
    for class in 0..3 {
        assert_near(&full[class], &to_f64(&diagonal[class]), "the converged median");
        assert_near(&six_steps[class], &to_f64(&diagonal[class]), "six full Newton steps");
        // At the minimum the smoothed unit vectors to the items cancel; 0.25 is eps^2 for the default eps of 0.5.
        let point = to_f64(&diagonal[class]);
        for d in 0..23 {
            let unit_vector = |row: &&Vec<f32>| {
                (point[d] - f64::from(row[d])) / (squared_distance(&point, row) + 0.25).sqrt()
            };
            let gradient: f64 = problem.members(class).iter().map(unit_vector).sum();
            assert!(gradient.abs() < 1e-3, "gradient {gradient} at the median");
        }
    }
}

#[test]
fn similarity_weights_follow_their_definitions() {
    type Similarity = fn(&[f32], &[f32]) -> f64;
    let euclidean: Similarity = |a, b| -squared_distance(&to_f64(a), b);
    let absolute: Similarity = |a, b| -a.iter().zip(b).map(|(a, b)| f64::from((a - b).abs())).sum::<f64>();
    let cosine: Similarity = |a, b| {
        let dot =
            |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum::<f64>();
        dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
    };
    let problem = Problem::new(&SIZES, 37, 4);
    let cases = [
        ("euclidean", euclidean, 25.0),
        ("euclidean:T=3", euclidean, 3.0),
        ("absolute", absolute, 25.0),
        ("cosine", cosine, 0.2),
        ("cosine:T=0.05", cosine, 0.05),
    ];
    for (method, similarity, temperature) in cases {
        let assessments = problem.fit(method).1.unwrap();
        let mut item = 0;
        for (class, prototype) in problem.prototypes(method).iter().enumerate() {
            let members = problem.members(class);
            let score = |i: usize| {
                let others =
                    (0..members.len()).filter(|&j| j != i).map(|j| similarity(members[i], members[j]));
                others.sum::<f64>() / (members.len() - 1) as f64
            };
            let weights: Vec<f64> = (0..members.len()).map(|i| (score(i) / temperature).exp()).collect();
            assert_near(prototype, &weighted_mean(&members, &weights), method);
            for weight in &weights {
                let expected = weight / weights.iter().sum::<f64>() * members.len() as f64;
                assert!((f64::from(assessments[item].weight) - expected).abs() < 1e-3, "{method}");
                item += 1;
            }
        }
    }
}

#[test]
fn nearest_and_matching_classify_by_their_definitions() {
    let problem = Problem::new(&SIZES, 37, 5);
    // The distance and the given class of every item, the nearest first.
    let by_distance = |query: &[f32]| {
        let distance = |row: &Vec<f32>| squared_distance(&to_f64(query), row);
        let mut order: Vec<(f64, u32)> =
            problem.rows.iter().map(distance).zip(problem.given.iter().copied()).collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0));
        order
    };
    let nearest: Vec<u32> = problem.queries.iter().map(|query| by_distance(query)[0].1).collect();
    assert_eq!(problem.predictions("nearest:k=1"), nearest);
    for (query, prediction) in problem.queries.iter().zip(problem.predictions("nearest:k=5")) {
        let mut votes = [0; 4];
        by_distance(query)[..5].iter().for_each(|&(_, class)| votes[class as usize] += 1);
        assert_eq!(Some(&votes[prediction as usize]), votes.iter().max(), "a class with most votes wins");
    }
    let with_large_k = problem.predictions("nearest:k=1000");
    assert!(with_large_k.iter().all(|&prediction| prediction == 2), "all items vote, and class 2 has most");
    // The class with the largest sum of exp(cosine) over its items; the denominator of the softmax changes nothing.
    let matching = |query: &Vec<f32>| {
        let length = |row: &[f32]| squared_distance(&vec![0.0; row.len()], row).sqrt();
        let mut scores = [0.0; 4];
        for (row, &class) in problem.rows.iter().zip(&problem.given) {
            let dot: f64 = query.iter().zip(row).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            scores[class as usize] += (dot / (length(query) * length(row))).exp();
        }
        (0..4).max_by(|&a, &b| scores[a as usize].total_cmp(&scores[b as usize])).unwrap()
    };
    assert_eq!(problem.predictions("matching"), problem.queries.iter().map(matching).collect::<Vec<u32>>());
}

/// A hybrid is 0.8 of an item and 0.2 of another one of its class; k-means runs for at most 100 rounds. Both are the
/// defaults of `rnnp`.
#[test]
fn rnnp_is_k_means_over_items_and_hybrids() {
    let problem = Problem::new(&SIZES, 37, 6);
    let mut points: Vec<Vec<f64>> = Vec::new();
    let mut centres: Vec<Vec<f64>> = Vec::new();
    for class in 0..SIZES.len() {
        let members = problem.members(class);
        centres.push(weighted_mean(&members, &vec![1.0; members.len()]));
        for (i, a) in members.iter().enumerate() {
            points.push(to_f64(a));
            for b in members.iter().enumerate().filter(|&(j, _)| j != i).map(|(_, b)| b) {
                points.push(weighted_mean(&[a, b], &[0.8, 0.2]));
            }
        }
    }
    for _ in 0..100 {
        let distance = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
        let nearest = |point: &Vec<f64>| {
            (0..4)
                .min_by(|&a, &b| distance(point, &centres[a]).total_cmp(&distance(point, &centres[b])))
                .unwrap()
        };
        let assignment: Vec<usize> = points.iter().map(nearest).collect();
        for (class, centre) in centres.iter_mut().enumerate() {
            let assigned =
                || points.iter().zip(&assignment).filter(|&(_, &a)| a == class).map(|(point, _)| point);
            let count = assigned().count();
            *centre = (0..37).map(|d| assigned().map(|point| point[d]).sum::<f64>() / count as f64).collect();
        }
    }
    for (centre, expected) in problem.prototypes("rnnp").iter().zip(&centres) {
        assert_near(centre, expected, "the centre");
    }
}

/// SGD over explicit vectors, with the random numbers that the method itself draws and its default batch size (4),
/// decay (0.001), momentum and dampening (0.9) and learning rate (0.01).
fn baseline_plus_plus_reference(problem: &Problem, random: bool, scale: f64, epochs: usize) -> Vec<Vec<f64>> {
    let (dim, mut rng) = (problem.rows[0].len(), rng());
    // Random weights are uniform in ±1/sqrt(dim).
    let bound = (dim as f32).sqrt().recip();
    // The weight vector of a class before training.
    let mut start = |class: usize| -> Vec<f64> {
        let members = problem.members(class);
        match random {
            true => (0..dim).map(|_| f64::from(bound * (2.0 * rng.uniform() - 1.0))).collect(),
            false => weighted_mean(&members, &vec![1.0; members.len()]),
        }
    };
    let mut weights: Vec<Vec<f64>> = (0..problem.classes).map(&mut start).collect();
    let mut velocity: Option<Vec<Vec<f64>>> = None;
    let length = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
    // The items, scaled to unit length.
    let units: Vec<Vec<f64>> = problem
        .rows
        .iter()
        .map(|row| to_f64(row).iter().map(|x| x / length(&to_f64(row))).collect())
        .collect();
    let mut order: Vec<usize> = (0..units.len()).collect();
    for _ in 0..epochs {
        rng.shuffle(&mut order);
        for batch in order.chunks(4) {
            // The gradient of the loss with respect to the weight vectors; it begins with the weight decay.
            let mut gradient: Vec<Vec<f64>> =
                weights.iter().map(|w| w.iter().map(|x| 0.001 * x).collect()).collect();
            for &item in batch {
                let cosine =
                    |w: &Vec<f64>| w.iter().zip(&units[item]).map(|(a, b)| a * b).sum::<f64>() / length(w);
                let shares: Vec<f64> = weights.iter().map(|w| (scale * cosine(w)).exp()).collect();
                for (class, w) in weights.iter().enumerate() {
                    let target = if problem.given[item] as usize == class { 1.0 } else { 0.0 };
                    let error = (shares[class] / shares.iter().sum::<f64>() - target) / batch.len() as f64;
                    for d in 0..dim {
                        // The derivative of the cosine with respect to w_d.
                        let slope = (units[item][d] - cosine(w) * w[d] / length(w)) / length(w);
                        gradient[class][d] += error * scale * slope;
                    }
                }
            }
            // The first velocity is the gradient; then momentum and dampening are 0.9.
            let next: Vec<Vec<f64>> = match velocity.take() {
                None => gradient,
                Some(old) => old
                    .iter()
                    .zip(&gradient)
                    .map(|(v, g)| v.iter().zip(g).map(|(v, g)| 0.9 * v + 0.1 * g).collect())
                    .collect(),
            };
            for (w, v) in weights.iter_mut().zip(&next) {
                w.iter_mut().zip(v).for_each(|(w, v)| *w -= 0.01 * v);
            }
            velocity = Some(next);
        }
    }
    weights
}

#[test]
fn baseline_plus_plus_trains_as_sgd_over_the_vectors_would() {
    let problem = Problem::new(&SIZES, 37, 7);
    for (method, random, scale) in [
        ("baseline++:epochs=20", false, 2.0),
        ("baseline++:init=random:epochs=20", true, 2.0),
        ("baseline++:init=random:epochs=20:scale=10", true, 10.0),
    ] {
        let expected = baseline_plus_plus_reference(&problem, random, scale, 20);
        for (prototype, expected) in problem.prototypes(method).iter().zip(&expected) {
            assert_near(prototype, expected, method);
        }
    }
}

#[test]
fn classifying_with_prototype_vectors_and_with_item_products_agree() {
    // Many seeds and long rows, so that the two are rounded differently somewhere.
    for seed in 0..40 {
        let mut problem = Problem::new(&[5, 5, 5, 5], 300, 100 + seed);
        // Two classes with the same items are tied on every query, and only rounding could tell them apart.
        for item in 0..5 {
            problem.rows[5 + item] = problem.rows[item].clone();
        }
        let (task, queries) = (problem.task(), problem.queries());
        let products = queries.products(task.support.rows());
        for method in ["protonet", "median", "euclidean", "absolute", "cosine", "rnnp"] {
            let classifier = problem.fit(method).0;
            let with_products = classifier.classify_with(&task, &queries, &products, &mut rng());
            let with_vectors = classifier.classify(&task, &queries, &mut rng());
            assert_eq!(with_vectors, with_products, "{method}, seed {seed}");
        }
    }
}

#[test]
fn every_method_handles_classes_with_one_item() {
    for sizes in [&[1, 1, 1][..], &[1, 4, 2], &[2, 2]] {
        let problem = Problem::new(sizes, 19, 8);
        for info in Registry::default().infos().iter().filter(|info| info.is_complete()) {
            let predictions = problem.predictions(info.name);
            assert_eq!(predictions.len(), 6 * sizes.len(), "{}", info.name);
            assert!(
                predictions.iter().all(|&prediction| (prediction as usize) < sizes.len()),
                "{}",
                info.name
            );
            let assessments = problem.fit(info.name).1.unwrap_or_default();
            assert!(assessments.iter().all(|assessment| assessment.weight.is_finite()), "{}", info.name);
            if sizes == [1, 1, 1] && ["median", "euclidean", "absolute", "cosine"].contains(&info.name) {
                assert!(
                    assessments.iter().all(|assessment| assessment.weight == 1.0),
                    "a lone item of {} weighs 1",
                    info.name
                );
            }
        }
    }
}

#[test]
fn every_method_handles_rows_of_zeros() {
    let mut problem = Problem::new(&[3, 3], 11, 9);
    problem.rows.iter_mut().for_each(|row| row.fill(0.0));
    for info in Registry::default().infos().iter().filter(|info| info.is_complete()) {
        assert_eq!(problem.predictions(info.name).len(), 12, "{}", info.name);
        let assessments = problem.fit(info.name).1.unwrap_or_default();
        assert!(assessments.iter().all(|assessment| assessment.weight.is_finite()), "{}", info.name);
    }
}

#[test]
fn the_order_of_items_does_not_matter() {
    let problem = Problem::new(&SIZES, 37, 10);
    let reversed = Problem {
        rows: problem.rows.iter().rev().cloned().collect(),
        given: problem.given.iter().rev().copied().collect(),
        truth: problem.truth.iter().rev().copied().collect(),
        ..problem.clone()
    };
    let inductive =
        ["oracle", "protonet", "median", "euclidean", "absolute", "cosine", "matching", "nearest", "rnnp"];
    for method in inductive.into_iter().chain(transductive::SIMPLESHOT_AND_TRANSDUCTIVE) {
        assert_eq!(problem.predictions(method), reversed.predictions(method), "{method}");
    }
}

#[test]
fn the_oracle_fails_without_true_labels() {
    let problem = Problem::new(&[2, 2], 5, 11);
    let rows = problem.rows.iter().map(Vec::as_slice).collect();
    let task = Task::new(SupportSet::new(rows, problem.given.clone(), 2));
    let error = Registry::default().parse("oracle").unwrap().method.fit(&task, &mut rng()).err().unwrap();
    assert!(error.to_string().contains("needs the true labels"));
}
