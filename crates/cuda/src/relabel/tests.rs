//! Training steps against the CPU's losses, gradients and updates: on an emulated device, or with the feature
//! `gpu-tests` on GPU 0.

mod joint;
mod ten_steps;
mod with_conv4;

use trueshot_nn::adamw::AdamW;
use trueshot_nn::head::{Episode, Head};
use trueshot_nn::relabel::{Config, ItemView, ViewTarget};

use super::*;
use crate::testing::{device, exact_device, random, relative_error, tolerance};

/// Features around one centre per class of the episode and one for outliers.
struct OwnedEpisode {
    classes: usize,
    dim: usize,
    given: Vec<u32>,
    truth: Vec<Option<u32>>,
    query_classes: Vec<u32>,
    /// Items, then queries.
    rows: Vec<Vec<f32>>,
}

impl OwnedEpisode {
    /// An episode with these numbers of items per class. Every third item of a class truly belongs to a random class or
    /// to none.
    fn new(sizes: &[usize], dim: usize, queries: usize, random: &mut impl FnMut() -> f64) -> Self {
        let classes = sizes.len();
        let vector = |random: &mut dyn FnMut() -> f64| -> Vec<f32> {
            (0..dim).map(|_| (2.0 * random() - 1.0) as f32).collect()
        };
        let centres: Vec<Vec<f32>> = (0..=classes).map(|_| vector(random)).collect();
        let near = |class: usize, random: &mut dyn FnMut() -> f64| -> Vec<f32> {
            centres[class]
                .iter()
                .zip(vector(random))
                .map(|(centre, noise)| 0.5 + centre + 0.7 * noise)
                .collect()
        };
        let (mut given, mut truth, mut rows) = (Vec::new(), Vec::new(), Vec::new());
        for (class, &size) in sizes.iter().enumerate() {
            for item in 0..size {
                // Number `classes` is the centre of outliers.
                let true_class =
                    if item % 3 == 2 { (random() * (classes + 1) as f64) as usize } else { class };
                rows.push(near(true_class, random));
                given.push(class as u32);
                truth.push((true_class < classes).then_some(true_class as u32));
            }
        }
        let query_classes: Vec<u32> = (0..queries).map(|_| (random() * classes as f64) as u32).collect();
        rows.extend(query_classes.iter().map(|&class| near(class as usize, random)));
        OwnedEpisode { classes, dim, given, truth, query_classes, rows }
    }

    fn input(&self, rows: EpisodeRows) -> EpisodeInput {
        EpisodeInput {
            classes: self.classes,
            given: self.given.clone(),
            truth: self.truth.clone(),
            query_classes: self.query_classes.clone(),
            rows,
        }
    }

    /// The episode with its own features.
    fn given_input(&self) -> EpisodeInput {
        self.input(EpisodeRows::Given { dim: self.dim, values: self.rows.concat() })
    }
}

/// Calls `body` with the episodes as the CPU takes them.
fn with_episodes<R>(owned: &[OwnedEpisode], body: impl FnOnce(&[Episode<'_>]) -> R) -> R {
    let rows: Vec<Vec<&[f32]>> =
        owned.iter().map(|episode| episode.rows.iter().map(Vec::as_slice).collect()).collect();
    let episodes: Vec<Episode<'_>> = owned
        .iter()
        .zip(&rows)
        .map(|(owned, rows)| {
            let (support, queries) = rows.split_at(owned.given.len());
            Episode {
                classes: owned.classes,
                support,
                given: &owned.given,
                truth: &owned.truth,
                queries,
                query_classes: &owned.query_classes,
            }
        })
        .collect();
    body(&episodes)
}

/// The losses of parts of episodes on the CPU, and their gradient, both as means over the episodes.
fn cpu_losses(
    network: &Relabel,
    parameters: &[f32],
    parts: &[(&[OwnedEpisode], u64)],
) -> (Vec<f64>, Vec<f32>) {
    let mut gradient = vec![0.0; parameters.len()];
    let mut sums = vec![0.0; 2];
    let count: usize = parts.iter().map(|(episodes, _)| episodes.len()).sum();
    for (owned, seed) in parts {
        with_episodes(owned, |episodes| {
            let losses = network.losses(parameters, episodes, *seed, &mut gradient);
            sums.iter_mut().zip(losses).for_each(|(sum, loss)| *sum += loss / count as f64);
        });
    }
    gradient.iter_mut().for_each(|value| *value /= count as f32);
    (sums, gradient)
}

/// A step of parts, each of which has episodes and a dropout seed.
fn step(rate: f32, parts: &[(&[OwnedEpisode], u64)]) -> StepInput {
    let part = |(episodes, seed): &(&[OwnedEpisode], u64)| PartInput {
        episodes: episodes.iter().map(OwnedEpisode::given_input).collect(),
        seed: *seed,
    };
    StepInput { rate, parts: parts.iter().map(part).collect() }
}

/// Parameters like those of a trained head: none of them zero.
fn parameters(network: &Relabel, seed: u64) -> Vec<f32> {
    let mut random = random(seed);
    let initial = network.initial(&mut random);
    initial.into_iter().map(|value| value + 0.2 * (random() - 0.5) as f32).collect()
}

/// A small network, which the tests vary.
fn small() -> Config {
    Config { width: 8, layers: 2, heads: 2, hidden: 12, edge_hidden: 5, ..Config::default() }
}

/// Compares losses and the gradient of every tensor.
fn assert_step_agrees(
    device: &Device,
    name: &str,
    config: Config,
    parts: &[(&[OwnedEpisode], u64)],
    tolerance: f64,
) {
    let network = Relabel::new(config);
    let parameters = parameters(&network, 4);
    let (losses, gradient) = cpu_losses(&network, &parameters, parts);
    let options = OptimiserOptions::default();
    let mut training = RelabelTraining::new(device, &network, options, &parameters, &[]).unwrap();
    let found = training.run(&[step(1e-3, parts)]).unwrap()[0];
    for (found, expected) in [found.items, found.queries].iter().zip(&losses) {
        assert!(
            (f64::from(*found) - expected).abs() < tolerance * expected.max(0.1),
            "{name}: {found} and {expected}"
        );
    }
    let own = training.gradient().unwrap();
    for tensor in network.layout().tensors() {
        let range = tensor.range.clone();
        if gradient[range.clone()].iter().all(|&value| value == 0.0) {
            assert!(own[range].iter().all(|&value| value == 0.0), "{name} {}", tensor.name);
            continue;
        }
        let error = relative_error(&own[range.clone()], &gradient[range]);
        println!("{name} {}: {error:.5}", tensor.name);
        assert!(error < tolerance, "{name} {}: {error}", tensor.name);
    }
}

#[test]
fn losses_and_gradients_are_those_of_the_cpu_for_all_forms_of_the_head() {
    let mut random = random(7);
    let episodes: Vec<OwnedEpisode> = [&[2usize, 3][..], &[1, 4, 2], &[3, 0, 5, 1]]
        .iter()
        .map(|sizes| OwnedEpisode::new(sizes, 6, 5, &mut random))
        .collect();
    let parts = [(&episodes[..2], 11), (&episodes[2..], 12)];
    let view = ItemView { dim: 6, width: 5, dropout: 0.3, target: ViewTarget::States };
    let outlier_view = ItemView { target: ViewTarget::Outlier, ..view.clone() };
    let configs = [
        ("relations", small()),
        ("weights", Config { items_weight: 0.5, queries_weight: 2.0, floor: 0.1, ..small() }),
        ("centred", Config { centred: true, width: 6, heads: 3, ..small() }),
        ("item view", Config { item_view: Some(view.clone()), ..small() }),
        ("no dropout", Config { item_view: Some(ItemView { dropout: 0.0, ..view }), layers: 1, ..small() }),
        ("outlier branch", Config { item_view: Some(outlier_view), centred: true, ..small() }),
    ];
    for (name, config) in configs {
        assert_step_agrees(&exact_device(), name, config, &parts, tolerance(2e-4, 2e-2));
    }
}

#[test]
fn the_default_head_agrees_on_five_classes_of_five_items() {
    let mut random = random(8);
    let episodes = [
        OwnedEpisode::new(&[5; 5], 40, 15, &mut random),
        OwnedEpisode::new(&[1; 5], 40, 10, &mut random),
        OwnedEpisode::new(&[10, 10, 10], 33, 7, &mut random),
    ];
    assert_step_agrees(
        &exact_device(),
        "default",
        Config::default(),
        &[(&episodes, 3)],
        tolerance(5e-4, 2e-2),
    );
}

#[test]
fn heads_of_12_columns_and_rows_longer_than_a_chunk_agree() {
    let mut random = random(15);
    // Rows of 300 numbers: inner products are summed in chunks of 256 (640 on Hopper). Tiles of the second episode have
    // more items than a thread sums at once.
    let episodes =
        [OwnedEpisode::new(&[3, 4, 2], 300, 6, &mut random), OwnedEpisode::new(&[9, 9], 300, 6, &mut random)];
    // The width is a multiple of 16, but that of a head is not one of 8.
    let config = Config { width: 48, heads: 4, hidden: 32, ..small() };
    assert_step_agrees(&exact_device(), "heads of 12", config, &[(&episodes, 3)], tolerance(5e-4, 2e-2));
}

#[test]
fn products_in_tf32_change_gradients_by_less_than_a_hundredth() {
    let mut random = random(13);
    let episodes = [OwnedEpisode::new(&[3, 3, 3], 16, 9, &mut random)];
    let config = Config { width: 32, heads: 4, hidden: 32, ..small() };
    assert_step_agrees(&device(), "tf32", config, &[(&episodes, 3)], 1e-2);
}

#[test]
fn episodes_that_are_too_large_for_shared_memory_and_several_dropout_masks_agree() {
    let mut random = random(14);
    let view = ItemView { dim: 3, width: 4, dropout: 0.3, target: ViewTarget::States };
    let config =
        Config { width: 4, heads: 2, hidden: 4, edge_hidden: 3, layers: 1, item_view: Some(view), ..small() };
    // 60 items: gram and losses are in global memory. More than 1024 states: the second episode has another mask.
    let episodes =
        [OwnedEpisode::new(&[1; 60], 3, 4, &mut random), OwnedEpisode::new(&[2, 2], 3, 4, &mut random)];
    assert_step_agrees(&exact_device(), "large", config, &[(&episodes, 5)], tolerance(5e-4, 2e-2));
}

#[test]
fn updates_are_those_of_adamw_also_with_clipping_and_after_the_buffers_grew() {
    let mut random = random(9);
    let batches: Vec<Vec<OwnedEpisode>> = [&[2usize, 2][..], &[3, 4, 3]]
        .iter()
        .map(|sizes| vec![OwnedEpisode::new(sizes, 5, 4, &mut random)])
        .collect();
    let network = Relabel::new(small());
    let start = parameters(&network, 5);
    for clip in [0.0, 0.05] {
        let adamw = AdamWConfig { weight_decay: 0.1, l2: 0.02, ..AdamWConfig::default() };
        let options = OptimiserOptions { adamw, clip };
        let mut training = RelabelTraining::new(&exact_device(), &network, options, &start, &[]).unwrap();
        let (mut optimiser, mut expected) = (AdamW::new(network.layout(), adamw), start.clone());
        for batch in &batches {
            training.run(&[step(0.01, &[(batch, 1)])]).unwrap();
            // The device's own gradient: AdamW divides by its root mean square, which magnifies differences near 0.
            let gradient = training.gradient().unwrap();
            let cpu = cpu_losses(&network, &expected, &[(batch, 1)]).1;
            let error = relative_error(&gradient, &cpu);
            assert!(error < tolerance(1e-3, 2e-2), "{error}");
            let norm = gradient.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
            let factor = if clip > 0.0 && norm > clip { clip / norm } else { 1.0 };
            assert!(clip == 0.0 || factor < 1.0, "the test clips");
            optimiser.step(0.01, factor, &mut expected, &mut [gradient]);
        }
        let change: Vec<f32> = expected.iter().zip(&start).map(|(after, before)| after - before).collect();
        let own: Vec<f32> =
            training.parameters().unwrap().iter().zip(&start).map(|(after, before)| after - before).collect();
        assert!(relative_error(&own, &change) < 1e-4, "{}", relative_error(&own, &change));
        assert_eq!(training.progress().unwrap(), 2);
        let (first, second) = training.moments().unwrap();
        let (_, expected_first, expected_second) = optimiser.state();
        assert!(relative_error(&first, expected_first) < 1e-5);
        assert!(relative_error(&second, expected_second) < 1e-5);
    }
}

#[test]
fn rows_on_the_device_and_their_blends_give_the_losses_of_rows_given_directly() {
    let mut random = random(10);
    let episode = OwnedEpisode::new(&[2, 3], 6, 3, &mut random);
    let other = OwnedEpisode::new(&[2, 3], 6, 3, &mut random);
    let network = Relabel::new(Config { layers: 1, ..small() });
    let parameters = parameters(&network, 6);
    let all = [episode.rows.concat(), other.rows.concat()].concat();
    let count = episode.rows.len() as u32;
    let share = 0.4;
    let blended: Vec<Vec<f32>> = episode
        .rows
        .iter()
        .zip(&other.rows)
        .map(|(own, other)| own.iter().zip(other).map(|(own, other)| own + share * (other - own)).collect())
        .collect();
    let blended = EpisodeRows::Given { dim: 6, values: blended.concat() };
    let set = [FeatureSet { values: &[0.0; 4], dim: 2 }, FeatureSet { values: &all, dim: 6 }];
    let stored = (0..count).map(|row| StoredRow::new(1, row));
    let stored_blends = stored.clone().map(|row| row.blended(count + row.row, share));
    let step = |rows: EpisodeRows| StepInput {
        rate: 0.01,
        parts: vec![PartInput { episodes: vec![episode.input(rows)], seed: 0 }],
    };
    let run = |steps: &[StepInput]| {
        let options = OptimiserOptions::default();
        let mut training = RelabelTraining::new(&device(), &network, options, &parameters, &set).unwrap();
        let losses = training.run(steps).unwrap();
        (losses, training.parameters().unwrap())
    };
    let direct = EpisodeRows::Given { dim: 6, values: episode.rows.concat() };
    let from_host = run(&[step(direct), step(blended)]);
    let on_device = run(&[
        step(EpisodeRows::Stored(stored.collect())),
        step(EpisodeRows::Stored(stored_blends.collect())),
    ]);
    assert_eq!(from_host.0[0], on_device.0[0]);
    let close = |a: f32, b: f32| (a - b).abs() < 1e-5;
    let (own, expected) = (from_host.0[1], on_device.0[1]);
    assert!(close(own.items, expected.items) && close(own.queries, expected.queries));
    assert!(from_host.0[0] != from_host.0[1], "blends change the episode");
    assert!(relative_error(&from_host.1, &on_device.1) < 1e-5);
}

#[test]
fn a_restored_run_continues_with_the_same_bits() {
    let mut random = random(11);
    let episodes = [OwnedEpisode::new(&[2, 2], 5, 4, &mut random)];
    let network = Relabel::new(Config { layers: 1, ..small() });
    let start = parameters(&network, 7);
    let steps = vec![step(0.01, &[(&episodes, 1)]); 3];
    let options = OptimiserOptions::default();
    let mut whole = RelabelTraining::new(&device(), &network, options, &start, &[]).unwrap();
    let losses = whole.run(&steps).unwrap();
    let mut first = RelabelTraining::new(&device(), &network, options, &start, &[]).unwrap();
    first.run(&steps[..2]).unwrap();
    let (first_moments, second_moments) = first.moments().unwrap();
    let (parameters, updates) = (first.parameters().unwrap(), first.progress().unwrap());
    let mut second = RelabelTraining::new(&device(), &network, options, &start, &[]).unwrap();
    second.load(&parameters, &first_moments, &second_moments, updates).unwrap();
    assert_eq!(second.run(&steps[2..]).unwrap()[0], losses[2]);
    assert_eq!(second.parameters().unwrap(), whole.parameters().unwrap());
    assert!(losses[2].items + losses[2].queries < losses[0].items + losses[0].queries, "{losses:?}");
}

#[test]
fn the_bits_of_a_step_do_not_depend_on_the_sizes_of_earlier_steps() {
    let mut random = random(13);
    let small_step: Vec<OwnedEpisode> =
        (0..3).map(|_| OwnedEpisode::new(&[3, 2, 3], 5, 4, &mut random)).collect();
    let large_step: Vec<OwnedEpisode> =
        (0..12).map(|_| OwnedEpisode::new(&[4, 4, 4], 5, 4, &mut random)).collect();
    let network = Relabel::new(Config { layers: 1, ..small() });
    let start = parameters(&network, 9);
    let zeros = vec![0.0; start.len()];
    let run = |earlier: &[OwnedEpisode]| {
        let options = OptimiserOptions::default();
        let mut training = RelabelTraining::new(&device(), &network, options, &start, &[]).unwrap();
        if !earlier.is_empty() {
            training.run(&[step(0.01, &[(earlier, 1)])]).unwrap();
            training.load(&start, &zeros, &zeros, 0).unwrap();
        }
        training.run(&[step(0.01, &[(&small_step, 1)])]).unwrap();
        training.parameters().unwrap()
    };
    assert_eq!(run(&[]), run(&large_step));
}

#[test]
fn a_step_whose_loss_is_not_finite_changes_nothing() {
    let mut random = random(12);
    let mut episode = OwnedEpisode::new(&[2, 2], 5, 4, &mut random);
    episode.rows[0][0] = f32::NAN;
    let network = Relabel::new(Config { layers: 1, ..small() });
    let start = parameters(&network, 8);
    let options = OptimiserOptions::default();
    let mut training = RelabelTraining::new(&device(), &network, options, &start, &[]).unwrap();
    let losses = training.run(&[step(0.01, &[(&[episode], 1)])]).unwrap();
    assert!(losses.len() == 1 && !(losses[0].items + losses[0].queries).is_finite());
    assert_eq!((training.parameters().unwrap(), training.progress().unwrap()), (start, 0));
}

#[test]
fn networks_and_episodes_that_need_too_much_shared_memory_are_refused() {
    let refused = |result: Result<()>| {
        let error = result.unwrap_err();
        assert!(matches!(error, crate::Error::TooLarge { .. }), "{error}");
    };
    let options = OptimiserOptions::default();
    let wide = Relabel::new(Config { width: 1024, layers: 1, ..small() });
    let start = vec![0.0; wide.layout().len()];
    refused(RelabelTraining::new(&device(), &wide, options, &start, &[]).map(|_| ()));
    let network = Relabel::new(small());
    let start = parameters(&network, 3);
    let mut training = RelabelTraining::new(&device(), &network, options, &start, &[]).unwrap();
    let episodes = [OwnedEpisode::new(&[1; 400], 2, 1, &mut random(1))];
    refused(training.run(&[step(0.01, &[(&episodes, 1)])]).map(|_| ()));
    // The training can go on with smaller episodes.
    let episodes = [OwnedEpisode::new(&[1, 1], 2, 1, &mut random(1))];
    assert!(training.run(&[step(0.01, &[(&episodes, 1)])]).unwrap()[0].items.is_finite());
}
