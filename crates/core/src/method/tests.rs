//! Tests of the methods against naive reference implementations, which work on the vectors in f64.
//!
//! [`Problem`] is the support set and the queries that the tests share; trained networks are tested in [`heads`].

mod heads;

use super::{ItemAssessment, Registry};
use crate::classifier::Classifier;
use crate::rng::{Purpose, Rng};
use crate::task::{Queries, SupportSet, Task};

/// A small support set with classes of unequal size, its true labels, and six queries per class.
struct Problem {
    rows: Vec<Vec<f32>>,
    given: Vec<u32>,
    truth: Vec<Option<u32>>,
    queries: Vec<Vec<f32>>,
    classes: usize,
}

impl Problem {
    /// Classes of the given sizes around different centres; item 2 of every class really belongs to the next class.
    fn new(sizes: &[usize], dim: usize, seed: u64) -> Self {
        let mut rng = Rng::new(seed, Purpose::Items, 0);
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

    fn prototypes(&self, method: &str) -> Vec<Vec<f32>> {
        match self.fit(method).0 {
            Classifier::Prototypes(mixture) | Classifier::Cosine(mixture) => mixture.vectors(&self.task()),
            Classifier::CosineVectors(vectors) => vectors,
            other => panic!("{method} has no prototypes: {other:?}"),
        }
    }

    fn predictions(&self, method: &str) -> Vec<u32> {
        let queries = Queries::new(self.queries.iter().map(Vec::as_slice).collect());
        self.fit(method).0.classify(&self.task(), &queries, &mut rng())
    }
}

fn rng() -> Rng {
    Rng::new(5, Purpose::Method, 3)
}

fn squared_distance(a: &[f64], b: &[f32]) -> f64 {
    a.iter().zip(b).map(|(a, &b)| (a - f64::from(b)).powi(2)).sum()
}

fn to_f64(row: &[f32]) -> Vec<f64> {
    row.iter().map(|&value| f64::from(value)).collect()
}

fn weighted_sum(rows: &[&Vec<f32>], weights: &[f64]) -> Vec<f64> {
    let total: f64 = weights.iter().sum();
    let column =
        |d: usize| rows.iter().zip(weights).map(|(row, w)| w * f64::from(row[d])).sum::<f64>() / total;
    (0..rows[0].len()).map(column).collect()
}

fn assert_near(actual: &[f32], expected: &[f64], what: &str) {
    let worst = actual.iter().zip(expected).map(|(&a, b)| (f64::from(a) - b).abs()).fold(0.0, f64::max);
    assert!(worst < 2e-4, "{what} is off by {worst}");
}

const SIZES: [usize; 4] = [5, 3, 7, 4];

#[test]
fn protonet_is_the_class_mean_and_the_oracle_the_mean_of_clean_items() {
    let problem = Problem::new(&SIZES, 37, 1);
    let (protonet, oracle) = (problem.prototypes("protonet"), problem.prototypes("oracle"));
    for class in 0..SIZES.len() {
        let members = problem.members(class);
        assert_near(&protonet[class], &weighted_sum(&members, &vec![1.0; members.len()]), "the mean");
        let clean: Vec<f64> =
            (0..members.len()).map(|position| if position == 2 { 0.0 } else { 1.0 }).collect();
        assert_near(&oracle[class], &weighted_sum(&members, &clean), "the oracle");
    }
}

#[test]
fn the_median_takes_weiszfeld_steps() {
    let problem = Problem::new(&SIZES, 37, 2);
    for (method, steps, eps) in [("median", 5, 0.5), ("median:steps=2:eps=0.1", 2, 0.1)] {
        for (class, prototype) in problem.prototypes(method).iter().enumerate() {
            let members = problem.members(class);
            let mut point = weighted_sum(&members, &vec![1.0; members.len()]);
            for _ in 0..steps {
                let weight = |row: &&Vec<f32>| (squared_distance(&point, row) + eps * eps).sqrt().recip();
                point = weighted_sum(&members, &members.iter().map(weight).collect::<Vec<_>>());
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
            assert_near(prototype, &weighted_sum(&members, &weights), method);
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

#[test]
fn rnnp_is_k_means_over_items_and_hybrids() {
    let problem = Problem::new(&SIZES, 37, 6);
    let mut points: Vec<Vec<f64>> = Vec::new();
    let mut centres: Vec<Vec<f64>> = Vec::new();
    for class in 0..SIZES.len() {
        let members = problem.members(class);
        centres.push(weighted_sum(&members, &vec![1.0; members.len()]));
        for (i, a) in members.iter().enumerate() {
            points.push(to_f64(a));
            for b in members.iter().enumerate().filter(|&(j, _)| j != i).map(|(_, b)| b) {
                points.push(weighted_sum(&[a, b], &[0.8, 0.2]));
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
    let bound = (dim as f32).sqrt().recip();
    let mut start = |class: usize| -> Vec<f64> {
        let members = problem.members(class);
        match random {
            true => (0..dim).map(|_| f64::from(bound * (2.0 * rng.uniform() - 1.0))).collect(),
            false => weighted_sum(&members, &vec![1.0; members.len()]),
        }
    };
    let mut weights: Vec<Vec<f64>> = (0..problem.classes).map(&mut start).collect();
    let mut velocity: Option<Vec<Vec<f64>>> = None;
    let length = |v: &[f64]| v.iter().map(|x| x * x).sum::<f64>().sqrt();
    let units: Vec<Vec<f64>> = problem
        .rows
        .iter()
        .map(|row| to_f64(row).iter().map(|x| x / length(&to_f64(row))).collect())
        .collect();
    let mut order: Vec<usize> = (0..units.len()).collect();
    for _ in 0..epochs {
        rng.shuffle(&mut order);
        for batch in order.chunks(4) {
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
                        let slope = (units[item][d] - cosine(w) * w[d] / length(w)) / length(w);
                        gradient[class][d] += error * scale * slope;
                    }
                }
            }
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
    for seed in 0..40 {
        let mut problem = Problem::new(&[5, 5, 5, 5], 300, 100 + seed);
        // Two classes with the same items are tied on every query, and only rounding could tell them apart.
        for item in 0..5 {
            problem.rows[5 + item] = problem.rows[item].clone();
        }
        let (task, queries) =
            (problem.task(), Queries::new(problem.queries.iter().map(Vec::as_slice).collect()));
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
        let mut problem = Problem::new(sizes, 19, 8);
        problem.truth = problem.given.iter().map(|&class| Some(class)).collect();
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
        queries: problem.queries.clone(),
        classes: problem.classes,
    };
    for method in
        ["oracle", "protonet", "median", "euclidean", "absolute", "cosine", "matching", "nearest", "rnnp"]
            .into_iter()
            .chain(SIMPLESHOT_AND_TRANSDUCTIVE)
    {
        assert_eq!(problem.predictions(method), reversed.predictions(method), "{method}");
    }
}

/// `simpleshot` and the transductive methods, with every way of centring and scaling rows.
const SIMPLESHOT_AND_TRANSDUCTIVE: [&str; 14] = [
    "simpleshot",
    "simpleshot:centre=none",
    "simpleshot:metric=euclidean",
    "laplacianshot",
    "laplacianshot:centre=support:normalise=none",
    "laplacianshot:knn=1000",
    "tim",
    "tim:centre=support:normalise=none",
    "bd-cspn",
    "bd-cspn:centre=support:scale=10",
    "bd-cspn:normalise=none",
    "pt-map",
    "pt-map:normalise=none:lambda=1",
    "pt-map:normalise=after:centre=support",
];

/// A task of `tests/easyfsl/scores.json`, which `tests/python/write_easyfsl_scores.py` wrote.
#[derive(serde::Deserialize)]
struct EasyfslTask {
    labels: Vec<u32>,
    support: Vec<Vec<f32>>,
    queries: Vec<Vec<f32>>,
    /// For every method the scores `[queries][classes]` of easyfsl.
    scores: std::collections::BTreeMap<String, Vec<Vec<f32>>>,
}

#[test]
fn scores_are_those_of_easyfsl() {
    let tasks: Vec<EasyfslTask> =
        serde_json::from_str(include_str!("../../tests/easyfsl/scores.json")).unwrap();
    assert_eq!(tasks.len(), 3);
    for (number, easyfsl) in tasks.iter().enumerate() {
        let classes = 1 + easyfsl.labels.iter().max().copied().unwrap() as usize;
        let support = easyfsl.support.iter().map(Vec::as_slice).collect();
        let task = Task::new(SupportSet::new(support, easyfsl.labels.clone(), classes));
        let queries = Queries::new(easyfsl.queries.iter().map(Vec::as_slice).collect());
        let products = queries.products(task.support.rows());
        assert_eq!(easyfsl.scores.len(), 15);
        for (method, expected) in &easyfsl.scores {
            let fitted = Registry::default().parse(method).unwrap().method.fit(&task, &mut rng()).unwrap();
            let scores = fitted.classifier.scores(&task, &queries, &products);
            for (query, expected) in expected.iter().enumerate() {
                for (class, expected) in expected.iter().enumerate() {
                    // Scores of `simpleshot` are 2 cos - 1, which is largest for the largest cosine.
                    let score = scores[class][query];
                    let score = if method.starts_with("simpleshot") { (score + 1.0) / 2.0 } else { score };
                    let difference = (score - expected).abs();
                    assert!(difference < 1e-4, "{method}, task {number}: {score} instead of {expected}");
                }
            }
        }
    }
}

#[test]
fn simpleshot_is_the_nearest_mean_of_centred_unit_rows() {
    let problem = Problem::new(&SIZES, 37, 12);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.safetensors");
    let labels = (0..problem.queries.len()).map(|row| format!("{}", row % 3)).collect();
    let training = crate::Embeddings::from_rows(problem.queries.concat(), 37, labels).unwrap();
    training.write(&path).unwrap();
    let from_file = format!("simpleshot:metric=euclidean:centre={}", path.display());
    let zero = vec![0.0; 37];
    let mean = |rows: &[Vec<f32>]| weighted_sum(&rows.iter().collect::<Vec<_>>(), &vec![1.0; rows.len()]);
    for (method, centre) in [
        ("simpleshot:metric=euclidean", mean(&problem.rows)),
        ("simpleshot:metric=euclidean:centre=none", zero),
        (&from_file, mean(&problem.queries)),
    ] {
        let unit = |row: &[f32]| -> Vec<f64> {
            let centred: Vec<f64> = row.iter().zip(&centre).map(|(&x, c)| f64::from(x) - c).collect();
            let length = centred.iter().map(|x| x * x).sum::<f64>().sqrt();
            centred.iter().map(|x| x / length).collect()
        };
        let prototype = |class: usize| {
            let members: Vec<Vec<f64>> = problem.members(class).iter().map(|row| unit(row)).collect();
            (0..37).map(|d| members.iter().map(|row| row[d]).sum::<f64>() / members.len() as f64).collect()
        };
        let prototypes: Vec<Vec<f64>> = (0..SIZES.len()).map(prototype).collect();
        let nearest = |query: &Vec<f32>| {
            let distance = |class: &usize| {
                let pairs = unit(query).into_iter().zip(&prototypes[*class]);
                pairs.map(|(a, b)| (a - b).powi(2)).sum::<f64>()
            };
            (0..SIZES.len()).min_by(|a, b| distance(a).total_cmp(&distance(b))).unwrap() as u32
        };
        let expected: Vec<u32> = problem.queries.iter().map(nearest).collect();
        assert_eq!(problem.predictions(method), expected, "{method}");
    }
}

#[test]
fn a_centre_of_another_dimension_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("train.safetensors");
    let labels = ["a", "a", "b"].map(str::to_string).to_vec();
    crate::Embeddings::from_rows(vec![0.5; 3 * 4], 4, labels).unwrap().write(&path).unwrap();
    let problem = Problem::new(&[2, 2], 5, 13);
    for name in ["simpleshot", "laplacianshot", "tim", "bd-cspn", "pt-map"] {
        let method = Registry::default().parse(&format!("{name}:centre={}", path.display())).unwrap().method;
        let error = method.fit(&problem.task(), &mut rng()).err().unwrap();
        let message = error.to_string();
        assert!(message.contains("the rows have 5 dimensions") && message.ends_with("have 4"), "{message}");
        assert_eq!(error.hint().unwrap(), "embed both with the same backbone");
    }
}

#[test]
fn the_order_of_queries_changes_only_the_order_of_answers() {
    let problem = Problem::new(&SIZES, 37, 14);
    let reversed = Problem {
        rows: problem.rows.clone(),
        given: problem.given.clone(),
        truth: problem.truth.clone(),
        queries: problem.queries.iter().rev().cloned().collect(),
        classes: problem.classes,
    };
    for method in SIMPLESHOT_AND_TRANSDUCTIVE {
        let predictions: Vec<u32> = reversed.predictions(method).into_iter().rev().collect();
        assert_eq!(problem.predictions(method), predictions, "{method}");
    }
}

#[test]
fn transductive_methods_use_the_other_queries() {
    let problem = Problem::new(&[2, 2, 2, 2], 12, 15);
    for method in ["laplacianshot:lambda=3", "tim:steps=200", "bd-cspn", "pt-map"] {
        let scores = |queries: &[Vec<f32>]| {
            let queries = Queries::new(queries.iter().map(Vec::as_slice).collect());
            let task = problem.task();
            let products = queries.products(task.support.rows());
            problem.fit(method).0.scores(&task, &queries, &products)
        };
        let (together, alone) = (scores(&problem.queries), scores(&problem.queries[..1]));
        let differs = together.iter().zip(&alone).any(|(a, b)| (a[0] - b[0]).abs() > 1e-3);
        assert!(differs, "{method}: the first query has the same scores with and without the others");
    }
}

#[test]
fn transductive_methods_never_predict_a_class_without_items() {
    let mut problem = Problem::new(&[3, 3, 3], 11, 16);
    problem.given.iter_mut().filter(|given| **given == 1).for_each(|given| *given = 2);
    for method in SIMPLESHOT_AND_TRANSDUCTIVE.iter().filter(|name| !name.starts_with("simpleshot")) {
        let predictions = problem.predictions(method);
        assert!(predictions.iter().all(|&prediction| prediction != 1), "{method}: {predictions:?}");
        // With all queries as neighbours of each other, one class can take all of them.
        let has_both = predictions.contains(&0) && predictions.contains(&2);
        assert!(has_both || method.ends_with("knn=1000"), "{method}: {predictions:?}");
    }
}

#[test]
fn degenerate_tasks_get_answers() {
    let problem = |sizes: &[usize], dim| Problem::new(sizes, dim, 17);
    let mut no_queries = problem(&[2, 3], 9);
    no_queries.queries.clear();
    let mut one_query = problem(&[2, 3], 9);
    one_query.queries.truncate(1);
    let mut identical = problem(&[3, 3, 3], 9);
    let row = identical.rows[0].clone();
    identical.rows.iter_mut().chain(&mut identical.queries).for_each(|other| *other = row.clone());
    let mut zeros = problem(&[1, 2], 9);
    zeros.rows.iter_mut().chain(&mut zeros.queries).for_each(|row| row.fill(0.0));
    let mut negative = problem(&[2, 2], 9);
    negative.rows.iter_mut().chain(&mut negative.queries).flatten().for_each(|value| *value = -*value);
    let mut huge = problem(&[2, 2], 9);
    huge.rows.iter_mut().chain(&mut huge.queries).flatten().for_each(|value| *value *= 1e15);
    let mut no_items = problem(&[1, 1], 9);
    (no_items.rows, no_items.given, no_items.truth) = (vec![], vec![], vec![]);
    let tasks =
        [no_queries, one_query, identical, zeros, negative, huge, problem(&[4], 9), problem(&[1, 1, 1], 1)];
    for (number, problem) in tasks.iter().enumerate() {
        for method in SIMPLESHOT_AND_TRANSDUCTIVE {
            let predictions = problem.predictions(method);
            assert_eq!(predictions.len(), problem.queries.len(), "{method}, task {number}");
            let queries = Queries::new(problem.queries.iter().map(Vec::as_slice).collect());
            let task = problem.task();
            if queries.is_empty() {
                continue;
            }
            let scores =
                problem.fit(method).0.scores(&task, &queries, &queries.products(task.support.rows()));
            assert!(scores.iter().flatten().all(|score| score.is_finite()), "{method}, task {number}");
        }
    }
    for method in SIMPLESHOT_AND_TRANSDUCTIVE.iter().filter(|name| !name.starts_with("simpleshot")) {
        assert_eq!(no_items.predictions(method).len(), 12, "{method}");
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
