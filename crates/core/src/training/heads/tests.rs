//! Tests of [`HeadTrainee`] with a head of a few parameters, `Shift`, whose losses and gradients can be checked by
//! hand.

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use trueshot_nn::head::{Episode, Head};
use trueshot_nn::parameters::Role;

use super::configuration::{CountRange, Data, Episodes, training_outliers};
use super::*;
use crate::Embeddings;
use crate::method::Registry;
use crate::training::Optimiser;
use crate::training::{RunOptions, Start, train};
use trueshot_nn::parameters::ParameterLayout;

/// A head whose loss is the squared distance of its parameters from 1 (slightly shifted by the features and the dropout
/// seed), plus the share of wrong labels in the episode.
struct Shift {
    layout: ParameterLayout,
}

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct ShiftOptions {
    width: usize,
}

impl Head for Shift {
    fn layout(&self) -> &ParameterLayout {
        &self.layout
    }

    fn initial(&self, random: &mut dyn FnMut() -> f64) -> Vec<f32> {
        (0..self.layout.len()).map(|_| random() as f32).collect()
    }

    fn loss_terms(&self) -> &'static [&'static str] {
        &["distance", "noise"]
    }

    fn losses(
        &self,
        parameters: &[f32],
        episodes: &[Episode<'_>],
        seed: u64,
        gradient: &mut [f32],
    ) -> Vec<f64> {
        let mut sums = vec![0.0, 0.0];
        for episode in episodes {
            let rows = episode.support.iter().chain(episode.queries);
            // Some number that depends on the features, so that a test notices if episodes differ.
            let feature_term = rows.map(|row| row[0]).sum::<f32>() / (episode.support.len() as f32);
            for (gradient, parameter) in gradient.iter_mut().zip(parameters) {
                let error = parameter - 1.0 + 0.01 * feature_term + (seed % 100) as f32 * 1e-4;
                *gradient += 2.0 * error;
                sums[0] += f64::from(error * error);
            }
            let wrong =
                episode.given.iter().zip(episode.truth).filter(|(g, t)| t.as_ref() != Some(g)).count();
            sums[1] += wrong as f64 / episode.given.len() as f64;
        }
        sums
    }
}

impl JointHead for Shift {
    fn losses_with_feature_gradient(
        &self,
        _parameters: &[f32],
        _episodes: &[Episode<'_>],
        _seed: u64,
        _gradient: &mut [f32],
        _feature_gradient: &mut [f32],
    ) -> Vec<f64> {
        unreachable!("this head is trained on embeddings alone")
    }
}

impl LearnedHead for Shift {
    fn head(&self) -> &dyn JointHead {
        self
    }

    fn model(&self, parameters: &[f32]) -> Model {
        Model::new("shift", &ShiftOptions { width: 3 }, &self.layout, parameters)
    }

    /// The mean of every class, whatever the parameters.
    fn method(&self, _parameters: &[f32]) -> Box<dyn Method> {
        Registry::default().parse("protonet").unwrap().method
    }
}

impl HeadOptions for ShiftOptions {
    const KIND: &'static str = "shift";

    fn check(&self) -> Result<()> {
        crate::ranges::require("model.width", self.width, self.width > 0, "1 or more")
    }

    fn build(&self, _dim: usize) -> Result<Box<dyn LearnedHead>> {
        let mut layout = ParameterLayout::default();
        layout.add("shift", &[self.width], Role::Trained);
        Ok(Box::new(Shift { layout }))
    }
}

fn configuration() -> Configuration<ShiftOptions> {
    let noise = |text: &str| text.parse().unwrap();
    Configuration {
        seed: 3,
        steps: 40,
        parts: 4,
        from: PathBuf::new(),
        data: Data { train: vec!["train".into()], outliers: vec!["pool".into()], ..Data::default() },
        episodes: Episodes {
            per_step: 6,
            ways: vec![CountRange { min: 2, max: 4 }],
            shots: vec![CountRange::exactly(1), CountRange::exactly(5), CountRange { min: 3, max: 6 }],
            queries: 3,
            noise: vec![noise("symmetric=0,20,40"), noise("paired=0,20"), noise("outlier=0,40")],
            blended: 0.3,
            mixed: 0.0,
        },
        validation: configuration::Validation {
            every: 10,
            episodes: 30,
            ways: vec![CountRange::exactly(3)],
            shots: vec![CountRange::exactly(5)],
            queries: 5,
            noise: vec![noise("symmetric=0,20")],
            seed: 0,
        },
        optimiser: Optimiser { rate: 0.05, ..Optimiser::default() },
        model: ShiftOptions { width: 3 },
    }
}

/// 25 random rows of 4 values per class; in rows of class c below 4, value c is larger by 1.
fn data(classes: usize, seed: u64) -> Embeddings {
    let mut rng = Rng::new(seed, Purpose::Items, 0);
    let labels = (0..classes * 25).map(|row| format!("{seed} {}", row / 25)).collect();
    let values = (0..classes * 25 * 4).map(|i| rng.uniform() + if i / 100 == i % 4 { 1.0 } else { 0.0 });
    Embeddings::from_rows(values.collect(), 4, labels).unwrap()
}

#[test]
fn an_episode_follows_from_its_index_and_all_configured_shapes_and_noises_occur() {
    let (train, pool) = (data(6, 1), data(2, 2));
    let data_sets = || vec![EpisodeData { embeddings: &train, outliers: Some(&pool) }];
    let options = configuration().episodes;
    let episodes = TrainingEpisodes::new(data_sets(), &options, 3).unwrap();
    let again = TrainingEpisodes::new(data_sets(), &options, 3).unwrap();
    // (classes, support items, wrong labels, outliers)
    type Shape = (usize, usize, usize, usize);
    let mut shapes: std::collections::HashSet<Shape> = std::collections::HashSet::new();
    for index in 0..300 {
        let (drawn, drawn_again) = (
            episodes.draw(index, &mut IndexSampler::default()),
            again.draw(index, &mut IndexSampler::default()),
        );
        // The shape of an episode, and the bits of the first value of its queries.
        let summary = |drawn: TrainingEpisode| {
            episodes.with_rows(&[drawn], &mut Vec::new(), |episodes| {
                let episode = episodes[0];
                let wrong = episode.given.iter().zip(episode.truth).filter(|(g, t)| t.as_ref() != Some(g));
                let outliers = episode.truth.iter().filter(|truth| truth.is_none()).count();
                (
                    episode.classes,
                    episode.support.len(),
                    wrong.count(),
                    outliers,
                    episode.queries[0][0].to_bits(),
                )
            })
        };
        let (first, second) = (summary(drawn.unwrap()), summary(drawn_again.unwrap()));
        assert_eq!(first, second);
        shapes.insert((first.0, first.1, first.2, first.3));
    }
    let any = |test: fn(&Shape) -> bool| shapes.iter().any(test);
    assert!(any(|&(classes, ..)| classes == 2) && any(|&(classes, ..)| classes == 4), "{shapes:?}");
    assert!(any(|&(classes, items, ..)| items == classes), "one shot: {shapes:?}");
    assert!(any(|&(_, _, wrong, _)| wrong == 0) && any(|&(.., outliers)| outliers > 0), "{shapes:?}");
    assert!(any(|&(_, _, wrong, outliers)| wrong > 0 && outliers == 0), "{shapes:?}");
}

/// Every row of class c has a one in column `first` + c and zeros elsewhere.
fn indicators(classes: usize, first: usize) -> Embeddings {
    let labels = (0..classes * 25).map(|row| format!("{first} {}", row / 25)).collect();
    let values = (0..classes * 25 * 8).map(|i| if i % 8 == first + i / 8 / 25 { 1.0 } else { 0.0 });
    Embeddings::from_rows(values.collect(), 8, labels).unwrap()
}

#[test]
fn mixed_episodes_contain_outliers_and_items_of_other_classes() {
    let (train, pool) = (data(6, 1), data(2, 2));
    let data_sets = vec![EpisodeData { embeddings: &train, outliers: Some(&pool) }];
    let options = Episodes { blended: 0.0, mixed: 1.0, ..configuration().episodes };
    let episodes = TrainingEpisodes::new(data_sets, &options, 5).unwrap();
    let drawn: Vec<TrainingEpisode> =
        (0..400).map(|index| episodes.draw(index, &mut IndexSampler::default()).unwrap()).collect();
    let with_both = episodes.with_rows(&drawn, &mut Vec::new(), |all| {
        let has_both = |episode: &&Episode<'_>| {
            let wrong =
                episode.given.iter().zip(episode.truth).filter(|(given, truth)| Some(**given) != **truth);
            let (outliers, others): (Vec<_>, Vec<_>) = wrong.partition(|(_, truth)| truth.is_none());
            !outliers.is_empty() && !others.is_empty()
        };
        all.iter().filter(has_both).count()
    });
    assert!(with_both > 5, "{with_both}");
}

#[test]
fn a_blended_class_is_the_same_blend_of_two_in_all_its_items_and_queries() {
    let (train, pool) = (indicators(6, 0), indicators(2, 6));
    let data_sets = vec![EpisodeData { embeddings: &train, outliers: Some(&pool) }];
    let options = Episodes { blended: 1.0, ..configuration().episodes };
    let episodes = TrainingEpisodes::new(data_sets, &options, 5).unwrap();
    let mut outliers = 0;
    for index in 0..100 {
        let drawn = episodes.draw(index, &mut IndexSampler::default()).unwrap();
        episodes.with_rows(&[drawn], &mut Vec::new(), |episodes| {
            let Episode { classes, support, truth, queries, query_classes, .. } = episodes[0];
            let rows_of = |class: u32| {
                let items = support.iter().zip(truth).filter(move |(_, truth)| **truth == Some(class));
                let class_queries = queries.iter().zip(query_classes).filter(move |(_, own)| **own == class);
                items.map(|(row, _)| row).chain(class_queries.map(|(row, _)| row))
            };
            for class in 0..classes as u32 {
                let row = rows_of(class).next().unwrap();
                let parts: Vec<f32> = row.iter().copied().filter(|&part| part > 0.0).collect();
                assert!(
                    parts.len() == 2 && parts.iter().all(|part| (0.349..0.651).contains(part)),
                    "{row:?}"
                );
                assert!(rows_of(class).all(|other| other == row));
            }
            let outlier_items = support.iter().zip(truth).filter(|(_, truth)| truth.is_none());
            outliers +=
                outlier_items.inspect(|(row, _)| assert!(row[..6].iter().all(|&part| part == 0.0))).count();
        });
    }
    assert!(outliers > 0);
}

#[test]
fn without_outlier_data_outliers_are_of_other_classes_also_when_blended() {
    let train = indicators(6, 0);
    let data_sets = vec![EpisodeData { embeddings: &train, outliers: None }];
    let options =
        Episodes { blended: 0.5, noise: vec!["outlier=40".parse().unwrap()], ..configuration().episodes };
    let episodes = TrainingEpisodes::new(data_sets, &options, 5).unwrap();
    let (mut outliers, mut blended) = (0, 0);
    for index in 0..100 {
        let drawn = episodes.draw(index, &mut IndexSampler::default()).unwrap();
        let in_episode: Vec<u32> =
            drawn.queries.iter().map(|&(row, _)| train.labels()[row as usize]).collect();
        episodes.with_rows(&[drawn], &mut Vec::new(), |episodes| {
            let Episode { support, truth, .. } = episodes[0];
            for (row, _) in support.iter().zip(truth).filter(|(_, truth)| truth.is_none()) {
                let parts = (0..8).filter(|&column| row[column as usize] > 0.0);
                let parts: Vec<u32> = parts.inspect(|class| assert!(!in_episode.contains(class))).collect();
                outliers += 1;
                blended += usize::from(parts.len() == 2);
            }
        });
    }
    assert!(outliers > 100 && blended > 10, "{outliers}, {blended}");
}

#[test]
fn outliers_for_validation_are_training_data_where_it_is_clear_which() {
    assert_eq!(training_outliers(&["a"], 2), ["a", "a"]);
    assert_eq!(training_outliers(&["a", "b"], 2), ["a", "b"]);
    assert!(training_outliers(&["a", "b"], 1).is_empty());
    let mut configuration = configuration();
    configuration.data.validation = vec!["val".into()];
    configuration.settle();
    assert!(configuration.data.validation_outliers.is_empty(), "validation has no outlier noise");
    configuration.validation.noise.clear();
    configuration.settle();
    assert_eq!(configuration.data.validation_outliers, configuration.data.train);
}

#[test]
fn feature_statistics_are_the_mean_and_spread_over_all_data_sets() {
    let (first, second) = (indicators(6, 0), indicators(2, 6));
    let statistics = feature_statistics(&[&first, &second]);
    // Eight classes of the same size, each with a one in its own column: the mean is 1/8 in every column, and the mean
    // squared distance from it is 1 - 8 / 64.
    assert_eq!(statistics.mean, [1.0 / 8.0; 8]);
    assert!((statistics.spread - (7.0f64 / 8.0).sqrt()).abs() < 1e-12, "{}", statistics.spread);
}

#[test]
fn noise_levels_that_are_impossible_in_all_episodes_are_refused() {
    let train = data(6, 1);
    let mut options = configuration().episodes;
    options.noise = vec!["paired=0,60".parse().unwrap()];
    let data_sets = vec![EpisodeData { embeddings: &train, outliers: None }];
    let error = TrainingEpisodes::new(data_sets, &options, 0).err().unwrap().to_string();
    assert!(error.starts_with("paired noise of 60 % is impossible"), "{error}");
}

/// The bytes of the model that a run with this number of threads ends with. The run is interrupted and resumed after
/// each of these numbers of steps.
fn run(threads: usize, stops: &[u64]) -> Vec<u8> {
    struct StopAfter(u64);
    impl crate::training::Observer for StopAfter {
        fn event(&mut self, event: &crate::training::Event<'_>) {
            if let crate::training::Event::Stepped { .. } = event {
                self.0 = self.0.saturating_sub(1);
            }
        }
    }
    impl crate::progress::Progress for StopAfter {
        fn update(&self, _done: u64, _total: u64) -> ControlFlow<()> {
            if self.0 > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        }
    }
    let (train_data, pool, val) = (data(6, 1), data(2, 2), data(5, 3));
    let configuration = configuration();
    let folder = tempfile::tempdir().unwrap();
    let training = vec![EpisodeData { embeddings: &train_data, outliers: Some(&pool) }];
    let validation = vec![EpisodeData { embeddings: &val, outliers: None }];
    let options = RunOptions {
        output: folder.path().join("m.safetensors"),
        title: "shift".into(),
        steps: configuration.steps,
        validate_every: configuration.validation.every,
        record_every: 5,
        save_every: Duration::from_secs(60),
        configuration: crate::training::configuration::text(&configuration),
        identity: identity(&configuration, &[("train", &training), ("validation", &validation)]),
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
    pool.install(|| {
        for &stop in stops.iter().chain([&u64::MAX]) {
            let mut trainee = HeadTrainee::new(&configuration, training.clone(), validation.clone()).unwrap();
            train(&mut trainee, &options, Start::Resume, &mut StopAfter(stop)).unwrap();
        }
    });
    std::fs::read(&options.output).unwrap()
}

#[test]
fn neither_threads_nor_interruptions_change_the_model() {
    let expected = run(1, &[]);
    assert_eq!(run(2, &[]), expected);
    assert_eq!(run(3, &[7, 1, 13]), expected);
}

#[test]
fn a_head_can_start_from_the_parameters_of_a_model_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.safetensors");
    std::fs::write(&path, run(1, &[])).unwrap();
    let train = data(6, 1);
    let mut configuration = configuration();
    configuration.episodes.noise = vec!["symmetric=0".parse().unwrap()];
    configuration.from = path;
    let data_sets = || vec![EpisodeData { embeddings: &train, outliers: None }];
    let trainee = HeadTrainee::new(&configuration, data_sets(), vec![]).unwrap();
    let model = Model::open(&configuration.from).unwrap();
    assert_eq!(trainee.parameters().unwrap(), model.tensors().values("shift", 3).unwrap());
    configuration.model.width = 4;
    let error = HeadTrainee::new(&configuration, data_sets(), vec![]).err().unwrap().to_string();
    assert!(error.contains("'shift' has shape [3] instead of [4]"), "{error}");
}

#[test]
fn options_out_of_range_are_refused_by_name() {
    let refuse = |change: fn(&mut Configuration<ShiftOptions>)| {
        let mut wrong = configuration();
        assert!(wrong.check().is_ok());
        change(&mut wrong);
        wrong.check().unwrap_err().to_string()
    };
    assert_eq!(refuse(|c| c.optimiser.rate = -1.0), "optimiser.rate is -1; allowed: a number above 0");
    assert!(
        refuse(|c| c.episodes.ways = vec![CountRange::exactly(1)]).starts_with("episodes.ways is 1; allowed")
    );
    assert!(refuse(|c| c.optimiser.warm_up = f64::NAN).starts_with("optimiser.warm_up is NaN"));
    assert!(refuse(|c| c.steps = 0).contains("1 or more"));
    assert!(refuse(|c| c.data.train.push("more".into())).contains("one for each file of data"));
}

/// The number of wrong labels of every support set of many episodes, with the number of its items per class.
fn wrong_labels(options: &Episodes, count: u64) -> Vec<(usize, usize)> {
    let (train, pool) = (data(6, 1), data(2, 2));
    let data_sets = vec![EpisodeData { embeddings: &train, outliers: Some(&pool) }];
    let episodes = TrainingEpisodes::new(data_sets, options, 3).unwrap();
    let summary = |index| {
        let drawn = episodes.draw(index, &mut IndexSampler::default()).unwrap();
        episodes.with_rows(&[drawn], &mut Vec::new(), |episodes| {
            let episode = episodes[0];
            let pairs = episode.given.iter().zip(episode.truth);
            let wrong = pairs.filter(|(given, truth)| truth.as_ref() != Some(given)).count();
            (wrong, episode.support.len() / episode.classes)
        })
    };
    (0..count).map(summary).collect()
}

fn plain_episodes(shots: &[usize], noise: &[&str]) -> Episodes {
    Episodes {
        ways: vec![CountRange::exactly(3)],
        shots: shots.iter().map(|&shots| CountRange::exactly(shots)).collect(),
        noise: noise.iter().map(|text| text.parse().unwrap()).collect(),
        blended: 0.0,
        ..configuration().episodes
    }
}

#[test]
fn a_noise_type_listed_twice_is_twice_as_likely() {
    let share = |noise: &[&str]| {
        let all = wrong_labels(&plain_episodes(&[5], noise), 3000);
        all.iter().filter(|(wrong, _)| *wrong > 0).count() as f64 / 3000.0
    };
    let once = share(&["symmetric=40", "outlier=0"]);
    let twice = share(&["symmetric=40", "symmetric=40", "outlier=0"]);
    assert!((once - 1.0 / 2.0).abs() < 0.03 && (twice - 2.0 / 3.0).abs() < 0.03, "{once} {twice}");
}

#[test]
fn noise_levels_that_are_impossible_with_the_shots_are_not_drawn() {
    let all = wrong_labels(&plain_episodes(&[1, 5], &["symmetric=0,40"]), 400);
    let with = |shots: usize| all.iter().filter(move |(_, own)| *own == shots);
    assert!(
        with(1).count() > 100 && with(1).all(|(wrong, _)| *wrong == 0),
        "the only item of a class cannot be wrong"
    );
    assert!(with(5).any(|(wrong, _)| *wrong > 0) && with(5).any(|(wrong, _)| *wrong == 0));
}

#[test]
fn an_episode_uses_one_data_set_and_all_data_sets_are_used() {
    let (narrow, wide) = (data(6, 1), indicators(6, 0));
    let data_sets = [&narrow, &wide].map(|embeddings| EpisodeData { embeddings, outliers: None });
    let options = plain_episodes(&[5], &["symmetric=0,40"]);
    let episodes = TrainingEpisodes::new(data_sets.to_vec(), &options, 3).unwrap();
    let width = |index| {
        let drawn = episodes.draw(index, &mut IndexSampler::default()).unwrap();
        episodes.with_rows(&[drawn], &mut Vec::new(), |episodes| {
            let rows = episodes[0].support.iter().chain(episodes[0].queries);
            let widths: std::collections::BTreeSet<usize> = rows.map(|row| row.len()).collect();
            assert_eq!(widths.len(), 1, "rows of two files in one episode");
            widths.into_iter().next()
        })
    };
    let wide_count = (0..300).filter(|&index| width(index) == Some(8)).count();
    assert!((100..200).contains(&wide_count), "{wide_count}");
}

#[test]
fn two_copies_of_one_image_are_never_in_one_training_episode() {
    // Four classes of 15 images in 4 copies; the first number of a row is that of its image.
    let images = (0..4 * 15).flat_map(|image| [image; 4]);
    let values = images.clone().flat_map(|image| [image as f32, 1.0]).collect();
    let labels = images.clone().map(|image| format!("class {}", image / 15)).collect();
    let names: Vec<String> =
        images.enumerate().map(|(row, image)| format!("{image}.png#{}", row % 4 + 1)).collect();
    let data = Embeddings::from_rows(values, 2, labels).unwrap();
    let data = data.with_items(crate::embeddings::Items::from_names(names)).unwrap();
    let data_sets = vec![EpisodeData { embeddings: &data, outliers: None }];
    let options = plain_episodes(&[5], &["symmetric=0,40", "paired=20"]);
    let episodes = TrainingEpisodes::new(data_sets, &options, 3).unwrap();
    for index in 0..300 {
        let drawn = episodes.draw(index, &mut IndexSampler::default()).unwrap();
        episodes.with_rows(&[drawn], &mut Vec::new(), |episodes| {
            let mut seen = std::collections::BTreeSet::new();
            for row in episodes[0].support.iter().chain(episodes[0].queries) {
                assert!(seen.insert(row[0] as u32), "image {} twice in episode {index}", row[0]);
            }
        });
    }
}
