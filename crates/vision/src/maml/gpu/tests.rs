//! MAML on the emulated device against the CPU.

use std::any::Any;
use std::path::PathBuf;
use std::sync::Arc;

use trueshot::classifier::Classifier;
use trueshot::embeddings::Embeddings;
use trueshot::episode::{DrawnEpisode, EpisodeSpec, Episodes, Sampler, Shots};
use trueshot::evaluate::{Details, Evaluation, Experiment, evaluate};
use trueshot::method::{Method, NamedMethod, Registry, RowTask};
use trueshot::noise::{self, Noise};
use trueshot::rng::{IndexSampler, Purpose, Rng};
use trueshot::task::{Queries, SupportSet, Task};
use trueshot_cuda::Device;
use trueshot_cuda::maml::MamlTask;
use trueshot_nn::maml::initial;

use super::{GpuImages, GpuMaml, move_to_gpu};
use crate::dataset::Dataset;
use crate::maml::{Maml, MamlConfig, model_size};
use crate::preprocess::Preprocessing;
use crate::source::{Collection, SourceOptions};
use crate::split::Split;

const SIZE: usize = 16;
const SPEC: EpisodeSpec = EpisodeSpec { ways: 2, shots: Shots { min: 3, max: 3 }, queries: 2, seed: 4 };
/// Tasks that run at once.
const AT_ONCE: u64 = 4;
/// The last group of tasks is not full.
const EPISODES: u64 = 11;

/// The first drawings of each class of a split.
fn drawings(split: &str, per_class: usize) -> Arc<Dataset> {
    let mut collection = Collection::open("omniglot", SourceOptions::default()).unwrap();
    collection.keep_split(&Split::omniglot(split).unwrap()).unwrap();
    collection.keep_first(per_class);
    Arc::new(Dataset::load(&collection, &Preprocessing::drawings(SIZE), false, &()).unwrap())
}

/// A data set and outliers of other classes, in memory and on the device.
struct Images {
    rows: Embeddings,
    outliers: Embeddings,
    on_gpu: GpuImages,
}

impl Images {
    fn new() -> Self {
        let (dataset, outliers) = (drawings("val", 8), drawings("test", 1));
        let (rows, outlier_rows) = (dataset.rows(None).unwrap(), outliers.rows(None).unwrap());
        let preprocessing = Preprocessing::drawings(SIZE);
        let on_gpu =
            GpuImages::upload(&Device::emulated(true), dataset, Some(outliers), &preprocessing).unwrap();
        Images { rows, outliers: outlier_rows, on_gpu }
    }

    fn sampler(&self, settings: Vec<Noise>) -> Sampler<'_> {
        Sampler::new(&self.rows, Some(&self.outliers), SPEC, settings).unwrap()
    }

    /// The features of an item.
    fn row(&self, row: u32, is_outlier: bool) -> Vec<f32> {
        let rows = if is_outlier { &self.outliers } else { &self.rows };
        rows.gather(&[row]).into_owned()
    }
}

/// Symmetric noise and outlier noise, each of one of the three items of a class.
fn noises() -> Vec<Noise> {
    noise::settings(&["symmetric=33".parse().unwrap(), "outlier=33".parse().unwrap()])
}

/// A network that was not trained, with initial parameters times `scale` and another normalisation than the images of
/// [`Images`].
fn maml(scale: f32) -> Maml {
    let preprocessing =
        Preprocessing { mean: vec![0.8; 3], std: vec![0.3; 3], ..Preprocessing::drawings(SIZE) };
    let config = MamlConfig { ways: SPEC.ways, rate: 0.05, steps: 2 };
    let mut rng = Rng::new(1, Purpose::Parameters, 0);
    let parameters = initial(model_size(&preprocessing, SPEC.ways), &mut || rng.fraction());
    let parameters = parameters.into_iter().map(|value| scale * value).collect();
    Maml::new(preprocessing, config, parameters, PathBuf::from("maml"))
}

fn named(label: &str, method: impl Method) -> NamedMethod {
    NamedMethod { label: label.into(), method: Box::new(method) }
}

/// The method on the emulated device.
fn on_gpu(images: &Images, maml: Maml) -> Box<dyn Method> {
    let mut methods = [named("maml", maml)];
    move_to_gpu(&mut methods, &images.on_gpu, &SPEC, AT_ONCE).unwrap();
    let [method] = methods;
    method.method
}

/// Draws all episodes.
fn draw(sampler: &Sampler<'_>) -> Vec<DrawnEpisode> {
    let mut index_sampler = IndexSampler::default();
    (0..EPISODES).map(|index| sampler.draw(index, &mut index_sampler).unwrap()).collect()
}

/// The logits of the CPU for every query of a task, `[queries][ways]`.
fn cpu_logits(images: &Images, maml: &Maml, task: &RowTask<'_>) -> Vec<Vec<f32>> {
    let support: Vec<Vec<f32>> =
        task.support.iter().map(|item| images.row(item.row, item.truth.is_none())).collect();
    let queries: Vec<Vec<f32>> = task.queries().map(|row| images.row(row, false)).collect();
    let given = task.support.iter().map(|item| item.given).collect();
    let support = SupportSet::new(support.iter().map(Vec::as_slice).collect(), given, SPEC.ways);
    let fitted = maml.fit(&Task::new(support), &mut Rng::new(0, Purpose::Method, 0)).unwrap();
    let Classifier::Scored(scorer) = fitted.classifier else { panic!("MAML scores") };
    let scores = scorer.scores(&Queries::new(queries.iter().map(Vec::as_slice).collect()));
    (0..queries.len()).map(|query| scores.iter().map(|scores| scores[query]).collect()).collect()
}

/// Logits of the GPU for every task, `[queries][ways]`.
fn gpu_logits(method: &dyn Method, tasks: &[RowTask<'_>]) -> Vec<Vec<f32>> {
    let method: &dyn Any = method;
    let GpuMaml { maml, tasks: on_gpu } = method.downcast_ref().unwrap();
    let requests: Vec<MamlTask> = tasks.iter().map(|task| on_gpu.images.request(task)).collect();
    let logits = on_gpu.evaluation.lock().unwrap().logits(&maml.network.parameters, &requests).unwrap();
    logits.into_iter().map(Option::unwrap).collect()
}

fn norm(values: impl Iterator<Item = f32>) -> f32 {
    values.map(|value| value.powi(2)).sum::<f32>().sqrt()
}

/// Logits closer than this are near ties. Activations are 16-bit floats on the GPU, and batch norm over the single
/// values of four queries magnifies their rounding: on the CPU, relative changes of the parameters by up to 2^-11
/// change the logits by 5 % of their norm.
const NEAR_TIE: f32 = 0.3;

#[test]
fn classes_are_those_of_the_cpu_under_symmetric_and_outlier_noise() {
    let images = Images::new();
    let (maml, sampler) = (maml(1.0), images.sampler(noises()));
    let (gpu, drawn) = (on_gpu(&images, maml.clone()), draw(&sampler));
    for (setting, noise) in sampler.noises().iter().enumerate() {
        let tasks: Vec<RowTask<'_>> = drawn.iter().map(|drawn| RowTask::new(drawn, setting)).collect();
        let expected: Vec<Vec<Vec<f32>>> =
            tasks.iter().map(|task| cpu_logits(&images, &maml, task)).collect();
        let logits = gpu_logits(&*gpu, &tasks).concat();
        let expected_logits = expected.iter().flatten().flatten().copied();
        let difference = expected_logits.clone().zip(&logits).map(|(a, b)| a - b);
        let error = norm(difference) / norm(expected_logits);
        println!("{noise}: logits differ by {error}");
        assert!(error < 0.1, "{noise}: {error}");
        let classes = gpu.row_classifier().unwrap().classify(&tasks).unwrap();
        let classes: Vec<Vec<u32>> = classes.into_iter().map(|prediction| prediction.classes).collect();
        assert_eq!(classes.iter().map(Vec::len).collect::<Vec<_>>(), [4; EPISODES as usize]);
        let pairs = classes.iter().flatten().zip(expected.iter().flatten());
        let clear: Vec<_> = pairs.filter(|(_, logits)| (logits[0] - logits[1]).abs() > NEAR_TIE).collect();
        assert!(clear.len() >= 30, "{noise}: all but {} of 44 queries are near ties", clear.len());
        for (&class, logits) in clear {
            assert_eq!(class, u32::from(logits[1] > logits[0]), "{noise}: {logits:?}");
        }
    }
}

/// Evaluates methods on all episodes.
fn evaluated(images: &Images, methods: &[NamedMethod]) -> Evaluation {
    let sampler = images.sampler(noises());
    let experiment = Experiment {
        embeddings: &images.rows,
        outliers: Some(&images.outliers),
        episodes: &sampler,
        count: EPISODES,
        methods,
        baseline: "protonet",
        details: Details { per_class: true, confusion: true },
    };
    evaluate(&experiment, &()).unwrap()
}

#[test]
fn an_evaluation_has_the_episodes_of_the_cpu_and_all_results_of_every_method() {
    let images = Images::new();
    let mut methods = [named("maml", maml(1.0)), Registry::default().parse("protonet").unwrap()];
    let on_cpu = evaluated(&images, &methods);
    move_to_gpu(&mut methods, &images.on_gpu, &SPEC, AT_ONCE).unwrap();
    let is_on_gpu = |method: &NamedMethod| method.method.row_classifier().is_some();
    assert_eq!(methods.iter().map(is_on_gpu).collect::<Vec<_>>(), [true, false]);
    let on_gpu = evaluated(&images, &methods);
    for (gpu, cpu) in on_gpu.settings.iter().zip(&on_cpu.settings) {
        assert_eq!(gpu.episodes, EPISODES as usize);
        let json = |value| serde_json::to_value(value).unwrap();
        assert_eq!(json(&gpu.methods[1]), json(&cpu.methods[1]), "protonet");
        for (gpu, cpu) in gpu.methods.iter().zip(&cpu.methods) {
            assert_eq!(gpu.method, cpu.method);
            // Two of the 44 queries may be near ties.
            let (accuracy, expected) = (gpu.accuracy.unwrap(), cpu.accuracy.unwrap());
            assert!((accuracy - expected).abs() < 5.0, "{}: {accuracy}, not {expected}", gpu.method);
            assert_eq!(gpu.difference.is_some(), cpu.difference.is_some());
            let queries = |result: &trueshot::evaluate::MethodResult| -> Vec<u64> {
                result.per_class.as_ref().unwrap().iter().map(|class| class.queries).collect()
            };
            assert_eq!(queries(gpu), queries(cpu));
        }
    }
}

#[test]
fn tasks_beyond_the_range_of_16_bit_floats_get_the_classes_of_the_cpu() {
    let images = Images::new();
    let (mut large, sampler) = (maml(1e7), images.sampler(noises()));
    large.adaptation.steps = 1;
    let mut methods = [named("maml", large.clone())];
    move_to_gpu(&mut methods, &images.on_gpu, &SPEC, 1).unwrap();
    let drawn = draw(&sampler);
    let task = RowTask::new(&drawn[0], 1);
    let classes = methods[0].method.row_classifier().unwrap().classify(&[task]).unwrap();
    let logits = cpu_logits(&images, &large, &task);
    assert!(logits.iter().flatten().all(|logit| logit.is_finite()), "{logits:?}");
    let expected: Vec<u32> = logits.iter().map(|logits| u32::from(logits[1] > logits[0])).collect();
    assert_eq!(classes, [expected.into()]);
}

#[test]
fn tasks_that_only_the_cpu_can_adapt_to_are_refused() {
    let images = Images::new();
    let problem = |spec: EpisodeSpec, steps: usize| {
        let mut maml = maml(1.0);
        maml.adaptation.steps = steps;
        move_to_gpu(&mut [named("maml", maml)], &images.on_gpu, &spec, AT_ONCE).unwrap_err()
    };
    let gpu = |error: trueshot::Error| match error {
        trueshot::Error::Gpu { message, hint, .. } => format!("{message} / {hint}"),
        error => panic!("{error}"),
    };
    assert_eq!(
        gpu(problem(EpisodeSpec { shots: Shots { min: 1, max: 3 }, ..SPEC }, 3)),
        "on a GPU, MAML needs the same number of shots for all classes, not 1-3 / use the CPU, or a fixed number of shots"
    );
    assert_eq!(
        gpu(problem(EpisodeSpec { queries: 0, ..SPEC }, 3)),
        "on a GPU, MAML needs queries / use the CPU, or 1 or more queries per class"
    );
    for steps in [0, 1001] {
        let expected = format!("on a GPU, MAML takes 1 to 1000 adaptation steps, not {steps} / use the CPU");
        assert!(gpu(problem(SPEC, steps)).starts_with(&expected));
    }
    let ways = problem(EpisodeSpec { ways: 3, ..SPEC }, 3).to_string();
    assert_eq!(ways, "the number of ways is 3; allowed: 2, the classes of the model in maml");
}
