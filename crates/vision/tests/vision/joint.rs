//! Tests of joint training of a backbone and a head: the file works as both, a run can be resumed and gives the same
//! result with any number of threads, and models that do not match are refused.

use std::path::{Path, PathBuf};

use trueshot::method::{RelabelOptions, TranfsOptions};
use trueshot::model::Model;
use trueshot::training::Trainee;
use trueshot::training::heads::{HeadOptions, open_head};
use trueshot_nn::conv4;
use trueshot_vision::training::joint::{JointConfiguration, JointTrainee};
use trueshot_vision::training::{BackboneConfiguration, BackboneTrainee, Datasets};
use trueshot_vision::{Backbone, Collection, Dataset, SourceOptions};

use crate::striped_images::{check_same_result_with_any_threads_and_resumed, folder};

const SIZE: usize = 20;

fn dataset(folder: &Path, augmented: bool) -> Dataset {
    let collection = Collection::open(folder, SourceOptions::default()).unwrap();
    let mut configuration = BackboneConfiguration::photographs();
    configuration.pictures.size = SIZE;
    Dataset::load(&collection, &configuration.preprocessing(), augmented, &()).unwrap()
}

/// Data sets that use the training images as outliers.
fn datasets(folder: &Path) -> Datasets {
    let mut datasets =
        Datasets::new(dataset(&folder.join("train"), true), Some(dataset(&folder.join("val"), false)));
    datasets.outliers = Some(datasets.train.clone());
    datasets.validation_outliers = Some(dataset(&folder.join("train"), false).into());
    datasets
}

fn dim() -> usize {
    conv4::Shape { size: SIZE, channels: 3 }.features()
}

/// Writes an initial backbone and an initial head, whose file names start with `name`.
fn starting_models(folder: &Path, name: &str, options: &impl HeadOptions, dim: usize) -> (PathBuf, PathBuf) {
    let mut configuration = BackboneConfiguration::photographs();
    configuration.pictures.size = SIZE;
    (configuration.episodes.shots, configuration.episodes.queries) = (2, 3);
    let backbone =
        BackboneTrainee::new(configuration, Datasets::new(dataset(&folder.join("train"), true), None));
    let path = |kind: &str| folder.join(format!("{name}-{kind}.safetensors"));
    let (backbone_path, head_path) = (path("backbone"), path("head"));
    backbone.unwrap().model().unwrap().write(&backbone_path).unwrap();
    let head = options.build(dim).unwrap();
    let mut state = 7_u64;
    let parameters = head.head().initial(&mut || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 11) as f64 / (1_u64 << 53) as f64
    });
    head.model(&parameters).write(&head_path).unwrap();
    (backbone_path, head_path)
}

fn relabel() -> RelabelOptions {
    RelabelOptions { width: 16, layers: 1, heads: 2, hidden: 16, item_width: 8, ..Default::default() }
}

fn tranfs(classes: usize) -> TranfsOptions {
    TranfsOptions { classes, layers: 1, width: 16, heads: 2, feed_forward: 16, ..Default::default() }
}

fn configuration((backbone, head): (PathBuf, PathBuf)) -> JointConfiguration {
    let mut configuration = JointConfiguration::photographs();
    (configuration.backbone, configuration.head) = (backbone, head);
    configuration.pictures.size = SIZE;
    configuration.steps = 12;
    configuration.average = 0.5;
    configuration.episodes.images_per_step = 40;
    configuration.episodes.ways = 3;
    configuration.episodes.shots = vec![2, 3];
    configuration.episodes.queries = 3;
    configuration.episodes.noise = vec!["symmetric=0,33.4".parse().unwrap(), "outlier=33.4".parse().unwrap()];
    configuration.validation.ways = 3;
    configuration.validation.shots = 3;
    configuration.validation.queries = 3;
    configuration.validation.episodes = 30;
    configuration
}

#[test]
fn the_model_file_is_both_a_backbone_and_a_head_and_a_new_run_starts_from_it() {
    let folder = folder();
    let heads = [
        ("relabel", starting_models(folder.path(), "relabel", &relabel(), dim())),
        ("tranfs", starting_models(folder.path(), "tranfs", &tranfs(3), dim())),
    ];
    for (kind, models) in heads {
        let configuration = configuration(models);
        let mut trainee = JointTrainee::new(configuration.clone(), datasets(folder.path())).unwrap();
        let terms = trainee.terms();
        assert_eq!(terms.last().map(String::as_str), Some("prototypes"));
        let losses: Vec<f64> = (0..12).map(|step| trainee.step(step).unwrap().iter().sum()).collect();
        assert!(losses.iter().all(|loss| loss.is_finite() && *loss > 0.0), "{kind}: {losses:?}");
        let validation = trainee.validate().unwrap().unwrap();
        assert!(validation.figures.iter().any(|(name, _)| name.starts_with("outlier")), "{validation:?}");
        let path = folder.path().join(format!("{kind}-joint.safetensors"));
        trainee.model().unwrap().write(&path).unwrap();
        let backbone = Backbone::open(&path).unwrap();
        assert_eq!(backbone.dim(), dim());
        let model = Model::open(&path).unwrap();
        assert_eq!(model.kind(), kind);
        let (_, parameters) = open_head(&model, dim()).unwrap();
        let all = trainee.parameters().unwrap().into_owned();
        assert_eq!(all[all.len() - parameters.len()..], parameters);
        let next = JointConfiguration {
            from: path,
            backbone: PathBuf::new(),
            head: PathBuf::new(),
            ..configuration
        };
        let next = JointTrainee::new(next, datasets(folder.path())).unwrap();
        assert_eq!(next.parameters().unwrap(), all);
    }
}

#[test]
fn a_restored_run_continues_with_the_same_bits_on_any_number_of_threads() {
    let folder = folder();
    let configuration = configuration(starting_models(folder.path(), "relabel", &relabel(), dim()));
    let new = || JointTrainee::new(configuration.clone(), datasets(folder.path())).unwrap();
    check_same_result_with_any_threads_and_resumed(new, 3, 6);
}

#[test]
fn models_that_do_not_match_the_run_are_refused() {
    let folder = folder();
    let refused =
        |configuration: JointConfiguration| match JointTrainee::new(configuration, datasets(folder.path())) {
            Ok(_) => panic!("it was accepted"),
            Err(error) => error.to_string(),
        };
    let models = starting_models(folder.path(), "relabel", &relabel(), dim());
    let good = configuration(models.clone());
    let message = refused(JointConfiguration { head: PathBuf::new(), ..good.clone() });
    assert!(message.contains("a trained backbone and a trained head"), "{message}");
    let mut larger = good.clone();
    larger.pictures.size = 36;
    assert!(refused(larger).contains("takes colour images of 20 px, but the run has colour images of 36 px"));
    let swapped = JointConfiguration { head: models.0.clone(), ..good.clone() };
    let (_, head) = starting_models(folder.path(), "two-classes", &tranfs(2), dim());
    let message = refused(JointConfiguration { head, ..good.clone() });
    assert!(message.contains("the task has 3 classes") && message.contains("supports 2"), "{message}");
    assert!(refused(swapped).contains("is a model of kind 'conv4', not 'relabel'"));
    let (_, head) = starting_models(folder.path(), "other", &relabel(), 32);
    assert!(refused(JointConfiguration { head, ..good.clone() }).contains("was trained on 32"));
    for (change, expected) in [
        (JointConfiguration { average: 1.0, ..good.clone() }, "average"),
        (JointConfiguration { prototype_weight: f64::NAN, ..good }, "prototype_weight"),
    ] {
        let message = refused(change);
        assert!(message.contains(expected), "{message}");
    }
}

#[cfg(feature = "emulator")]
mod on_the_gpu {
    use super::*;
    use trueshot_cuda::Device;

    /// A run of two steps with few images.
    fn small(models: (PathBuf, PathBuf)) -> JointConfiguration {
        let mut configuration = configuration(models);
        configuration.optimiser.clip = 1.0;
        configuration.episodes.images_per_step = 24;
        configuration.episodes.shots = vec![2, 3];
        configuration.episodes.queries = 1;
        configuration
    }

    fn relative_difference(a: &[f32], b: &[f32]) -> f64 {
        let square = |value: f32| f64::from(value).powi(2);
        let difference: f64 = a.iter().zip(b).map(|(a, b)| square(a - b)).sum();
        (difference / b.iter().map(|&b| square(b)).sum::<f64>()).sqrt()
    }

    fn compare_with_the_cpu(kind: &str, folder: &Path, options: &impl HeadOptions) {
        let configuration = small(starting_models(folder, kind, options, dim()));
        let on_gpu = || {
            JointTrainee::on_gpu(configuration.clone(), datasets(folder), &Device::emulated(true)).unwrap()
        };
        let mut gpu = on_gpu();
        let mut cpu = JointTrainee::new(configuration.clone(), datasets(folder)).unwrap();
        assert_eq!(gpu.device().as_deref(), Some("emulator"));
        let start = cpu.parameters().unwrap().into_owned();
        let losses = gpu.steps(0, 2).unwrap();
        for (step, gpu) in losses.iter().enumerate() {
            let cpu = cpu.step(step as u64).unwrap();
            assert_eq!(gpu.len(), cpu.len(), "{kind}: terms of the loss");
            for (gpu, cpu) in gpu.iter().zip(&cpu) {
                assert!((gpu - cpu).abs() < 0.03 * (0.1 + cpu), "{kind}, step {step}: {gpu} and {cpu}");
            }
        }
        let (of_gpu, of_cpu) =
            (gpu.parameters().unwrap().into_owned(), cpu.parameters().unwrap().into_owned());
        let moved = relative_difference(&start, &of_cpu);
        let apart = relative_difference(&of_gpu, &of_cpu);
        assert!(apart < 0.3 * moved, "{kind}: {apart} apart after moving by {moved}");
        // An interrupted run gives the same bits, and a checkpoint of the GPU continues on the CPU.
        let mut first = on_gpu();
        first.step(0).unwrap();
        let state = first.state().unwrap();
        let mut second = on_gpu();
        second.restore(&state).unwrap();
        second.step(1).unwrap();
        assert!(second.state().unwrap().to_bytes() == gpu.state().unwrap().to_bytes(), "{kind}: resumed");
        cpu.restore(&state).unwrap();
        assert!(cpu.step(1).unwrap().iter().all(|loss| loss.is_finite()));
    }

    #[test]
    fn a_backbone_and_relabel_take_the_steps_of_the_cpu() {
        let folder = folder();
        compare_with_the_cpu("relabel", folder.path(), &relabel());
    }

    #[test]
    fn a_backbone_and_tranfs_take_the_steps_of_the_cpu() {
        let folder = folder();
        compare_with_the_cpu("tranfs", folder.path(), &tranfs(3));
    }
}
