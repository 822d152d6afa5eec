//! Tests of the training of a backbone: it learns, gives the same result with any number of threads, and can be
//! resumed.

use std::path::Path;
use std::sync::Arc;

use trueshot::training::Trainee;
use trueshot_vision::overlap::Overlap;
use trueshot_vision::training::{Aggregate, BackboneConfiguration, BackboneTrainee, Datasets};
use trueshot_vision::{Backbone, Collection, Dataset, SourceOptions};

use crate::striped_images::{check_same_result_with_any_threads_and_resumed, folder};

fn dataset(folder: &Path, configuration: &BackboneConfiguration, augmented: bool) -> Dataset {
    let collection = Collection::open(folder, SourceOptions::default()).unwrap();
    Dataset::load(&collection, &configuration.preprocessing(), augmented, &()).unwrap()
}

fn configuration() -> BackboneConfiguration {
    let mut configuration = BackboneConfiguration::photographs();
    configuration.pictures.size = 20;
    configuration.steps = 40;
    configuration.episodes.ways = 3;
    configuration.episodes.shots = 3;
    configuration.episodes.queries = 3;
    configuration.episodes.noise = vec!["symmetric=0,33.4".parse().unwrap()];
    configuration.validation.ways = 3;
    configuration.validation.shots = 3;
    configuration.validation.queries = 3;
    configuration.validation.episodes = 50;
    configuration
}

fn trainee(folder: &Path, configuration: &BackboneConfiguration) -> BackboneTrainee {
    let train = dataset(&folder.join("train"), configuration, configuration.pictures.augment);
    let validation = dataset(&folder.join("val"), configuration, false);
    BackboneTrainee::new(configuration.clone(), Datasets::new(train, Some(validation))).unwrap()
}

/// A trainee with the classes of the other split as outliers, in training and in validation.
fn trainee_with_outliers(folder: &Path, configuration: &BackboneConfiguration) -> BackboneTrainee {
    let read = |name: &str, augmented| dataset(&folder.join(name), configuration, augmented);
    let mut datasets = Datasets::new(read("train", true), Some(read("val", false)));
    datasets.outliers = Some(Arc::new(read("val", true)));
    datasets.validation_outliers = Some(Arc::new(read("train", false)));
    BackboneTrainee::new(configuration.clone(), datasets).unwrap()
}

fn run(trainee: &mut BackboneTrainee, steps: std::ops::Range<u64>) -> Vec<f64> {
    steps.map(|step| trainee.step(step).unwrap()[0]).collect()
}

#[test]
fn a_backbone_learns_and_its_model_file_has_its_parameters() {
    let folder = folder();
    for aggregate in [Aggregate::Mean, Aggregate::Median] {
        let mut configuration = configuration();
        configuration.episodes.aggregate = aggregate;
        configuration.episodes.noise = vec!["symmetric=0".parse().unwrap()];
        configuration.validation.noise = vec!["symmetric=0,33.4".parse().unwrap()];
        let mut trainee = trainee(folder.path(), &configuration);
        let losses = run(&mut trainee, 0..80);
        let mean = |losses: &[f64]| losses.iter().sum::<f64>() / losses.len() as f64;
        assert!(mean(&losses[70..]) < 0.7 * mean(&losses[..10]), "{aggregate:?} {losses:?}");
        let validation = trainee.validate().unwrap().unwrap();
        assert_eq!(validation.figures.len(), 2);
        assert!(validation.figures[0].1 > 60.0, "{aggregate:?} {validation:?}");
        let model = Backbone::from_tensors(&trainee.model().unwrap(), "trained").unwrap();
        let same = Backbone::from_parameters(configuration.preprocessing(), &trainee.parameters().unwrap());
        assert_eq!(model.preprocessing(), &configuration.preprocessing());
        assert!(model.name().ends_with(&format!("{})", same.name())), "{} {}", model.name(), same.name());
    }
}

#[test]
fn a_run_gives_the_same_result_on_any_number_of_threads_and_when_resumed() {
    let (folder, configuration) = (folder(), configuration());
    check_same_result_with_any_threads_and_resumed(|| trainee(folder.path(), &configuration), 7, 12);
}

#[test]
fn a_run_with_outliers_gives_the_same_result_on_any_number_of_threads_and_when_resumed() {
    let (folder, mut configuration) = (folder(), configuration());
    configuration.episodes.noise = vec!["outlier=0,33.4,66.7".parse().unwrap()];
    check_same_result_with_any_threads_and_resumed(
        || trainee_with_outliers(folder.path(), &configuration),
        7,
        12,
    );
}

#[test]
fn outliers_are_part_of_training_and_validation() {
    let folder = folder();
    let mut noisy = configuration();
    noisy.episodes.noise = vec!["outlier=33.4,66.7".parse().unwrap()];
    let mut clean = configuration();
    clean.episodes.noise = vec!["outlier=0".parse().unwrap()];
    let mut with = trainee_with_outliers(folder.path(), &noisy);
    let mut without = trainee_with_outliers(folder.path(), &clean);
    assert!(run(&mut with, 0..1) != run(&mut without, 0..1), "outliers are in the support set");
    let names: Vec<String> =
        with.validate().unwrap().unwrap().figures.into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["outlier 33.4 %", "outlier 66.7 %"]);
    let read = |name: &str| dataset(&folder.path().join(name), &noisy, true);
    let mut same_source = BackboneTrainee::new(noisy.clone(), Datasets::new(read("train"), None)).unwrap();
    assert!(run(&mut same_source, 0..1) != run(&mut with, 0..1), "other classes of the training data");
    let plain = Datasets::new(read("train"), None);
    let mut pool = Datasets::new(read("train"), None);
    pool.outliers = Some(Arc::new(read("val")));
    assert!(plain.identity(&noisy) != pool.identity(&noisy), "other outliers are another run");
}

#[test]
fn classes_and_images_that_training_and_validation_share_are_found() {
    let folder = folder();
    let configuration = configuration();
    let read = |name: &str| dataset(&folder.path().join(name), &configuration, false);
    assert!(Overlap::between(&read("train"), &read("val")).warnings().is_empty());
    let (train, val) = (folder.path().join("train/class 3"), folder.path().join("val/class 9"));
    std::fs::copy(train.join("0.png"), val.join("same.png")).unwrap();
    // The same image, resized and with lower quality.
    let larger = image::open(train.join("1.png")).unwrap();
    larger.resize(60, 60, image::imageops::FilterType::Triangle).save(val.join("alike.jpg")).unwrap();
    std::fs::create_dir(folder.path().join("val/class 5")).unwrap();
    std::fs::copy(val.join("2.png"), folder.path().join("val/class 5/2.png")).unwrap();
    let overlap = Overlap::between(&read("train"), &read("val"));
    assert_eq!(overlap.classes, ["class 5"]);
    assert_eq!(overlap.same, [("class 3/0.png".to_string(), "class 9/same.png".to_string())]);
    assert_eq!(overlap.alike, [("class 3/1.png".to_string(), "class 9/alike.jpg".to_string())]);
    assert_eq!(overlap.warnings().len(), 3);
}

#[test]
fn rotated_classes_are_classes_of_their_own() {
    let folder = folder();
    let dataset = dataset(&folder.path().join("val"), &configuration(), false);
    let (images, classes) = (dataset.images().len(), dataset.labels().classes().len());
    let first = dataset.images()[0].clone();
    let rotated = dataset.with_rotations().unwrap();
    assert_eq!((rotated.images().len(), rotated.labels().classes().len()), (4 * images, 4 * classes));
    assert_eq!(rotated.images()[images], first.rotated(1));
    assert_eq!(rotated.items()[images], "class 10/0.png turned 90");
}

#[test]
fn impossible_settings_are_refused_with_the_allowed_range() {
    let problem = |change: &dyn Fn(&mut BackboneConfiguration)| {
        let mut changed = configuration();
        change(&mut changed);
        changed.check().unwrap_err().to_string()
    };
    assert!(problem(&|c| c.pictures.size = 8).contains("pictures.size is 8; allowed: 16 to"));
    assert!(problem(&|c| c.episodes.queries = 0).contains("episodes.queries"));
    assert!(problem(&|c| c.augmentation.hue = 0.7).contains("hue to 0.5"));
    assert!(problem(&|c| c.optimiser.rate = -1.0).contains("optimiser.rate"));
}
