//! SimpleShot and the transductive methods, which use the other queries: the scores of easyfsl (a PyTorch library of
//! few-shot methods), a naive reference implementation, and degenerate tasks.

use super::*;

/// `simpleshot` and the transductive methods, with every way of centring and scaling rows.
pub(super) const SIMPLESHOT_AND_TRANSDUCTIVE: [&str; 14] = [
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
    /// The class of every support item.
    labels: Vec<u32>,
    /// The rows of the support items.
    support: Vec<Vec<f32>>,
    queries: Vec<Vec<f32>>,
    /// For every method the scores `[queries][classes]` of easyfsl.
    scores: std::collections::BTreeMap<String, Vec<Vec<f32>>>,
}

#[test]
fn scores_are_those_of_easyfsl() {
    let tasks: Vec<EasyfslTask> =
        serde_json::from_str(include_str!("../../../tests/easyfsl/scores.json")).unwrap();
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
                    // The score of a query q and a centre c is 2 <q, c> - |c|^2, which is 2 cos - 1 for the unit
                    // vectors of `simpleshot`; easyfsl returns the cosine.
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
    let mean = |rows: &[Vec<f32>]| weighted_mean(&rows.iter().collect::<Vec<_>>(), &vec![1.0; rows.len()]);
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
    let reversed = Problem { queries: problem.queries.iter().rev().cloned().collect(), ..problem.clone() };
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
    // Squares of 1e15 still fit an f32.
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
            let (task, queries) = (problem.task(), problem.queries());
            if queries.is_empty() {
                continue;
            }
            let scores =
                problem.fit(method).0.scores(&task, &queries, &queries.products(task.support.rows()));
            assert!(scores.iter().flatten().all(|score| score.is_finite()), "{method}, task {number}");
        }
    }
    // Without items, `simpleshot` has no row to take the number of dimensions from.
    for method in SIMPLESHOT_AND_TRANSDUCTIVE.iter().filter(|name| !name.starts_with("simpleshot")) {
        assert_eq!(no_items.predictions(method).len(), 12, "{method}");
    }
}
