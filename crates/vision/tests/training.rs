//! A backbone learns, the same way whatever the threads, and goes on where it stopped.

mod stripes;

use std::path::Path;
use std::sync::Arc;

use trueshot::training::Trainee;
use trueshot_vision::overlap::Overlap;
use trueshot_vision::training::{Aggregate, BackboneTrainee, Configuration};
use trueshot_vision::{Backbone, Collection, Dataset, Reading};

use stripes::folder;

fn dataset(folder: &Path, configuration: &Configuration, augmented: bool) -> Dataset {
    let collection = Collection::open(folder, Reading::default()).unwrap();
    Dataset::load(&collection, &configuration.preprocessing(), augmented, &|_| true).unwrap()
}

fn configuration() -> Configuration {
    let mut configuration = Configuration::photographs();
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

fn trainee(folder: &Path, configuration: &Configuration) -> BackboneTrainee {
    let train = dataset(&folder.join("train"), configuration, configuration.pictures.augment);
    let validation = dataset(&folder.join("val"), configuration, false);
    BackboneTrainee::new(configuration.clone(), Arc::new(train), Some(validation)).unwrap()
}

fn run(trainee: &mut BackboneTrainee, steps: std::ops::Range<u64>) -> Vec<f64> {
    steps.map(|step| trainee.step(step).unwrap()[0]).collect()
}

#[test]
fn a_backbone_learns_and_its_model_file_embeds_as_it_did() {
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
        let judged = trainee.validate().unwrap().unwrap();
        assert_eq!(judged.figures.len(), 2);
        assert!(judged.figures[0].1 > 60.0, "{aggregate:?} {judged:?}");
        let model = Backbone::from_tensors(&trainee.model(), "trained").unwrap();
        let same = Backbone::from_parameters(configuration.preprocessing(), trainee.parameters());
        assert_eq!(model.preprocessing(), &configuration.preprocessing());
        assert!(model.name().ends_with(&format!("{})", same.name())), "{} {}", model.name(), same.name());
    }
}

#[test]
fn threads_change_nothing_and_a_run_that_was_stopped_goes_on_the_same() {
    let folder = folder();
    let configuration = configuration();
    let on = |threads: usize, work: &(dyn Fn() -> Vec<f32> + Sync)| {
        rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(work)
    };
    let whole = || {
        let mut trainee = trainee(folder.path(), &configuration);
        run(&mut trainee, 0..12);
        trainee.parameters().to_vec()
    };
    let broken = || {
        let mut first = trainee(folder.path(), &configuration);
        run(&mut first, 0..7);
        let mut second = trainee(folder.path(), &configuration);
        second.restore(&first.state()).unwrap();
        run(&mut second, 7..12);
        second.parameters().to_vec()
    };
    let expected = on(1, &whole);
    assert!(expected == on(3, &whole), "threads");
    assert!(expected == on(2, &broken), "resumed");
}

#[test]
fn what_training_and_validation_share_is_found() {
    let folder = folder();
    let configuration = configuration();
    let read = |name: &str| dataset(&folder.path().join(name), &configuration, false);
    assert!(Overlap::between(&read("train"), &read("val")).warnings().is_empty());
    let (train, val) = (folder.path().join("train/class 3"), folder.path().join("val/class 9"));
    std::fs::copy(train.join("0.png"), val.join("same.png")).unwrap();
    // The same picture after a change of size and a loss of quality.
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
fn turned_classes_are_classes_of_their_own() {
    let folder = folder();
    let dataset = dataset(&folder.path().join("val"), &configuration(), false);
    let (pictures, classes) = (dataset.pictures().len(), dataset.labels().classes().len());
    let first = dataset.pictures()[0].clone();
    let turned = dataset.with_rotations().unwrap();
    assert_eq!((turned.pictures().len(), turned.labels().classes().len()), (4 * pictures, 4 * classes));
    assert_eq!(turned.pictures()[pictures], first.turned(1));
    assert_eq!(turned.items()[pictures], "class 10/0.png turned 90");
}

#[test]
fn impossible_settings_are_refused_with_possible_ones() {
    let problem = |change: &dyn Fn(&mut Configuration)| {
        let mut changed = configuration();
        change(&mut changed);
        changed.check().unwrap_err().to_string()
    };
    assert!(problem(&|c| c.pictures.size = 8).contains("pictures.size is 8; allowed: 16 to"));
    assert!(
        problem(&|c| c.episodes.noise = vec!["outlier=40".parse().unwrap()]).contains("symmetric and paired")
    );
    assert!(problem(&|c| c.episodes.queries = 0).contains("episodes.queries"));
    assert!(problem(&|c| c.augmentation.hue = 0.7).contains("hue to 0.5"));
    assert!(problem(&|c| c.optimiser.rate = -1.0).contains("optimiser.rate"));
}
