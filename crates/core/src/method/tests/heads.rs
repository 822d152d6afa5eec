//! TraNFS and Relabel with random parameters: these tests check how the networks are used, not what they learned.

use trueshot_nn::head::Head;

use super::*;
use crate::error::Error;
use crate::method::{Method, RelabelOptions, TrainedRelabel, TrainedTranfs, TranfsOptions};
use crate::model::Model;

const DIM: usize = 12;

fn random() -> impl FnMut() -> f64 {
    let mut rng = Rng::new(8, Purpose::Parameters, 0);
    move || rng.fraction()
}

fn tranfs(orders: usize) -> TrainedTranfs {
    let options = TranfsOptions { classes: 4, layers: 1, width: 16, heads: 2, ..TranfsOptions::default() };
    let network = options.network(DIM).unwrap();
    let parameters = network.initial(&mut random());
    TrainedTranfs::new(network, parameters).with_orders(orders)
}

fn relabel(centred: bool) -> TrainedRelabel {
    let options = RelabelOptions { layers: 1, width: 8, heads: 2, centred, ..RelabelOptions::default() };
    let network = options.network(DIM).unwrap();
    let parameters = network.initial(&mut random());
    TrainedRelabel::new(network, parameters)
}

/// A head whose parameters are all nonzero, as after training. With a training centre, its other parameters are the
/// same as without.
fn noisy_relabel(training_centre: bool) -> TrainedRelabel {
    let options =
        RelabelOptions { layers: 1, width: 8, heads: 2, training_centre, ..RelabelOptions::default() };
    let network = options.network(DIM).unwrap();
    let (mut parameters, mut noise) = (network.initial(&mut random()), random());
    parameters.iter_mut().for_each(|value| *value += (noise() - 0.5) as f32);
    TrainedRelabel::new(network, parameters)
}

fn all() -> Vec<(&'static str, Box<dyn Method>)> {
    vec![
        ("tranfs", Box::new(tranfs(1))),
        ("tranfs, four orders", Box::new(tranfs(4))),
        ("relabel", Box::new(relabel(false))),
        ("relabel, centred", Box::new(relabel(true))),
        ("relabel with a training centre", Box::new(noisy_relabel(true))),
    ]
}

#[test]
fn fit_batch_gives_the_same_results_as_fit() {
    let problems = [[5, 3, 7, 4], [1, 1, 2, 9], [4, 4, 4, 4]].map(|sizes| Problem::new(&sizes, DIM, 21));
    let tasks: Vec<Task<'_>> = problems.iter().map(Problem::task).collect();
    let queries = |p: &'_ Problem| p.queries.clone();
    for (name, method) in all() {
        let mut rngs = vec![rng(), rng(), rng()];
        let together = method.fit_batch(&tasks.iter().collect::<Vec<_>>(), &mut rngs).unwrap();
        for ((problem, task), batched) in problems.iter().zip(&tasks).zip(together) {
            let alone = method.fit(task, &mut rng()).unwrap();
            assert_eq!(alone.assessments, batched.assessments, "{name}");
            let rows = queries(problem);
            let queries = Queries::new(rows.iter().map(Vec::as_slice).collect());
            let predictions = |fitted: &Classifier| fitted.classify(task, &queries, &mut rng());
            assert_eq!(predictions(&alone.classifier), predictions(&batched.classifier), "{name}");
            let products = queries.products(task.support.rows());
            let with_products = alone.classifier.classify_with(task, &queries, &products, &mut rng());
            assert_eq!(predictions(&alone.classifier), with_products, "{name}, with given products");
        }
    }
}

#[test]
fn lone_items_and_rows_of_zeros_give_finite_answers() {
    for sizes in [&[1, 1, 1][..], &[1, 4, 2], &[2, 2]] {
        let mut problem = Problem::new(sizes, DIM, 8);
        for zeros in [false, true] {
            problem.rows.iter_mut().filter(|_| zeros).for_each(|row| row.fill(0.0));
            for (name, method) in all() {
                let fitted = method.fit(&problem.task(), &mut rng()).unwrap();
                let assessments = fitted.assessments.unwrap();
                let is_finite =
                    |v: &ItemAssessment| v.weight.is_finite() && v.p_wrong.is_some_and(|p| p.is_finite());
                assert!(assessments.iter().all(is_finite), "{name}");
            }
        }
    }
}

/// The reference computes distances in the centred space from the vectors.
#[test]
fn centred_prototypes_classify_as_explicit_vectors_do() {
    let problem = Problem::new(&SIZES, DIM, 22);
    let task = problem.task();
    let Classifier::Centred(mixture) = relabel(true).fit(&task, &mut rng()).unwrap().classifier else {
        panic!("a centred network returns a centred classifier")
    };
    let all: Vec<&Vec<f32>> = problem.rows.iter().collect();
    let mean = weighted_mean(&all, &vec![1.0; all.len()]);
    let normalise = |row: &Vec<f32>| -> Vec<f64> {
        let centred: Vec<f64> = row.iter().zip(&mean).map(|(&x, m)| f64::from(x) - m).collect();
        let length = centred.iter().map(|x| x * x).sum::<f64>().sqrt();
        centred.iter().map(|x| x / length).collect()
    };
    let items: Vec<Vec<f64>> = problem.rows.iter().map(normalise).collect();
    let prototype = |weights: &Vec<f32>| -> Vec<f64> {
        let column = |d: usize| items.iter().zip(weights).map(|(i, &w)| f64::from(w) * i[d]).sum();
        (0..DIM).map(column).collect()
    };
    let prototypes: Vec<Vec<f64>> = mixture.weights().iter().map(prototype).collect();
    let nearest = |query: &Vec<f32>| {
        let query = normalise(query);
        let distance = |p: &Vec<f64>| p.iter().zip(&query).map(|(a, b)| (a - b).powi(2)).sum::<f64>();
        (0..4).min_by(|&a, &b| distance(&prototypes[a]).total_cmp(&distance(&prototypes[b]))).unwrap()
    };
    let expected: Vec<u32> = problem.queries.iter().map(|query| nearest(query) as u32).collect();
    let queries = problem.queries();
    assert_eq!(Classifier::Centred(mixture).classify(&task, &queries, &mut rng()), expected);
}

#[test]
fn a_training_centre_gives_the_answers_of_rows_that_were_centred_before() {
    let problem = Problem::new(&SIZES, DIM, 22);
    let with_centre = noisy_relabel(true);
    let centre = with_centre.training_centre().unwrap();
    let centred = |rows: &[Vec<f32>]| -> Vec<Vec<f32>> {
        rows.iter().map(|row| crate::classifier::centred_unit(row, centre)).collect()
    };
    let before = Problem {
        rows: centred(&problem.rows),
        queries: centred(&problem.queries),
        ..Problem::new(&SIZES, DIM, 22)
    };
    let predictions = |method: &TrainedRelabel, problem: &Problem| {
        let task = problem.task();
        let fitted = method.fit(&task, &mut rng()).unwrap();
        let queries = problem.queries();
        let p_wrong: Vec<f32> =
            fitted.assessments.unwrap().iter().map(|item| item.p_wrong.unwrap()).collect();
        (fitted.classifier.classify(&task, &queries, &mut rng()), p_wrong)
    };
    let actual = predictions(&with_centre, &problem);
    let expected = predictions(&noisy_relabel(false), &before);
    assert_eq!(actual.0, expected.0);
    let close = |(a, b): (&f32, &f32)| (a - b).abs() < 1e-5;
    assert!(actual.1.iter().zip(&expected.1).all(close), "{:?} and {:?}", actual.1, expected.1);
    assert_ne!(predictions(&noisy_relabel(false), &problem).1, expected.1, "the centre makes a difference");
}

#[test]
fn other_dimensions_and_too_many_classes_are_refused() {
    let other = Problem::new(&SIZES, DIM + 1, 23);
    let error = noisy_relabel(true).fit(&other.task(), &mut rng()).err().unwrap();
    assert!(matches!(error, Error::ModelDimension { features: 13, model: 12, .. }), "{error}");
    let error = tranfs(1).fit(&other.task(), &mut rng()).err().unwrap();
    assert!(matches!(error, Error::ModelDimension { features: 13, model: 12, .. }), "{error}");
    assert!(relabel(false).fit(&other.task(), &mut rng()).is_ok(), "relations are of any dimension");
    let many = Problem::new(&[3; 5], DIM, 23);
    let error = tranfs(1).fit(&many.task(), &mut rng()).err().unwrap();
    assert!(matches!(error, Error::TooManyClasses { classes: 5, model: 4, .. }), "{error}");
    assert!(error.hint().unwrap().starts_with("use at most 4 ways"));
}

#[test]
fn out_of_range_sizes_in_a_model_file_are_refused_before_memory_is_allocated() {
    let sizes = [
        serde_json::json!({ "dim": 1_u64 << 40, "options": TranfsOptions { classes: 5, ..Default::default() } }),
        serde_json::json!({ "dim": 12, "options": TranfsOptions { classes: 5, width: 1 << 30, ..Default::default() } }),
        serde_json::json!({ "dim": 12, "options": TranfsOptions { classes: 5, heads: 0, ..Default::default() } }),
        serde_json::json!({ "dim": 12, "options": TranfsOptions::default() }),
    ];
    let file = tempfile::NamedTempFile::new().unwrap();
    for config in sizes {
        let model = Model::new("tranfs", &config, &Default::default(), &[]);
        model.write(file.path()).unwrap();
        let error = TrainedTranfs::open(file.path()).err().unwrap().to_string();
        assert!(error.contains("sizes that no model has"), "{error}");
    }
    let large = serde_json::json!({ "dim": 1 << 20, "options": TranfsOptions { classes: 5, width: 4096, ..Default::default() } });
    Model::new("tranfs", &large, &Default::default(), &[]).write(file.path()).unwrap();
    let error = TrainedTranfs::open(file.path()).err().unwrap().to_string();
    assert!(error.contains("it has no tensor 'down.weight'"), "{error}");
}

/// Random changes to the bytes of a model file: reading may fail or succeed, but must not panic.
#[test]
fn a_model_file_with_changed_bytes_never_causes_a_panic() {
    let network = TranfsOptions { classes: 3, layers: 1, width: 8, heads: 2, ..TranfsOptions::default() };
    let config = crate::method::TranfsConfig { dim: 4, options: network.clone() };
    let network = network.network(4).unwrap();
    let parameters = network.initial(&mut random());
    let model = Model::new("tranfs", &config, network.layout(), &parameters);
    let bytes = model.tensors().to_bytes();
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut rng = Rng::new(31, Purpose::Items, 0);
    for _ in 0..600 {
        let mut changed = bytes.clone();
        for _ in 0..1 + rng.below(4) {
            // Mostly within the first 3000 bytes, which contain the header: most errors are there.
            let end = if rng.below(4) == 0 { bytes.len() } else { 3000.min(bytes.len()) };
            changed[rng.below(end)] = rng.below(256) as u8;
        }
        std::fs::write(file.path(), changed).unwrap();
        if let Ok(read) = TrainedTranfs::open(file.path()) {
            let problem = Problem::new(&[2, 3, 2], 4, 24);
            let _ = read.fit(&problem.task(), &mut rng.clone());
        }
    }
}
