//! Training together with a backbone: gradients of features against the CPU's, and steps that are repeated.

use trueshot_nn::head::JointHead;

use super::*;
use crate::joint::{BackboneUpdate, HeadTraining};

/// Losses, the gradient of the parameters and that of the features on the CPU, all as means over the episodes.
pub(super) fn cpu_gradients(
    network: &Relabel,
    parameters: &[f32],
    parts: &[(&[OwnedEpisode], u64)],
) -> (Vec<f64>, Vec<f32>, Vec<f32>) {
    let (mut gradient, mut of_features, mut sums) = (vec![0.0; parameters.len()], Vec::new(), vec![0.0; 2]);
    let count: usize = parts.iter().map(|(episodes, _)| episodes.len()).sum();
    for (owned, seed) in parts {
        with_episodes(owned, |episodes| {
            let mut own = vec![0.0; episodes.iter().map(Episode::feature_count).sum()];
            let losses =
                network.losses_with_feature_gradient(parameters, episodes, *seed, &mut gradient, &mut own);
            sums.iter_mut().zip(losses).for_each(|(sum, loss)| *sum += loss / count as f64);
            of_features.extend(own);
        });
    }
    gradient.iter_mut().chain(&mut of_features).for_each(|value| *value /= count as f32);
    (sums, gradient, of_features)
}

/// A step whose rows are those of the features buffer, in order.
fn joint_step(rate: f32, parts: &[(&[OwnedEpisode], u64)]) -> StepInput {
    let part = |(episodes, seed): &(&[OwnedEpisode], u64)| PartInput {
        episodes: episodes.iter().map(|episode| episode.input(EpisodeRows::InOrder)).collect(),
        seed: *seed,
    };
    StepInput { rate, parts: parts.iter().map(part).collect() }
}

/// The features of a step, in the order of its rows.
fn features_of(parts: &[(&[OwnedEpisode], u64)]) -> Vec<f32> {
    parts.iter().flat_map(|(episodes, _)| episodes.iter()).flat_map(|episode| episode.rows.concat()).collect()
}

/// A head, and a backbone that computes nothing.
struct Joint {
    training: RelabelTraining,
    overflow: Buffer<u32>,
    squares: Buffer<f64>,
}

impl Joint {
    fn new(device: &Device, network: &Relabel, options: OptimiserOptions, start: &[f32], dim: usize) -> Self {
        Joint {
            training: RelabelTraining::joint(device, network, options, start, 300, dim).unwrap(),
            overflow: device.zeros(1).unwrap(),
            squares: device.zeros(3).unwrap(),
        }
    }

    /// Fills slot and features of the next step.
    fn prepare(&mut self, parts: &[(&[OwnedEpisode], u64)]) {
        self.training.set_features(&features_of(parts)).unwrap();
        self.training.prepare(&[joint_step(0.01, parts)]).unwrap();
    }

    fn run(&mut self) -> Vec<StepLosses> {
        let backbone = BackboneUpdate {
            overflow: self.overflow.at(0),
            squares: self.squares.at(0),
            square_count: self.squares.len(),
        };
        self.training.record_losses().unwrap();
        self.training.record_update(&backbone).unwrap();
        self.training.finished_losses().unwrap()
    }

    fn feature_gradient(&self, len: usize) -> Vec<f32> {
        self.training.feature_gradient().read().unwrap()[..len].to_vec()
    }
}

/// Compares the gradients of features with those of the CPU, episode by episode, and losses and the gradient of the
/// parameters with those of training on fixed features, bit by bit.
fn assert_gradients_agree(
    device: &Device,
    name: &str,
    config: Config,
    parts: &[(&[OwnedEpisode], u64)],
    tolerance: f64,
) {
    let network = Relabel::new(config);
    let start = parameters(&network, 4);
    let (_, _, expected) = cpu_gradients(&network, &start, parts);
    let dim = parts[0].0[0].dim;
    let mut joint = Joint::new(device, &network, OptimiserOptions::default(), &start, dim);
    joint.prepare(parts);
    let losses = joint.run();
    let found = joint.feature_gradient(expected.len());
    let mut end = 0;
    for (number, episode) in parts.iter().flat_map(|(episodes, _)| episodes.iter()).enumerate() {
        let items = end..end + episode.given.len() * dim;
        end += episode.rows.len() * dim;
        for (rows, range) in [("items", items.clone()), ("queries", items.end..end)] {
            let error = relative_error(&found[range.clone()], &expected[range.clone()]);
            println!("{name}, {rows} of episode {number}: {error:.6}");
            let is_zero = expected[range.clone()].iter().all(|&value| value == 0.0);
            assert!(error < tolerance || is_zero, "{name}, {rows} of episode {number}: {error}");
            assert!(!is_zero || found[range].iter().all(|&value| value == 0.0), "{name}, {rows} of {number}");
        }
    }
    let features = features_of(parts);
    let set = [FeatureSet { values: &features, dim }];
    let mut fixed =
        RelabelTraining::new(device, &network, OptimiserOptions::default(), &start, &set).unwrap();
    assert_eq!(fixed.run(&[joint_step(0.01, parts)]).unwrap(), losses, "{name}");
    assert_eq!(fixed.gradient().unwrap(), joint.training.gradient().unwrap(), "{name}");
    let parameters = RelabelTraining::parameters;
    assert_eq!(parameters(&fixed).unwrap(), parameters(&joint.training).unwrap(), "{name}");
}

fn episodes(shapes: &[&[usize]], dim: usize, queries: usize, seed: u64) -> Vec<OwnedEpisode> {
    let mut random = random(seed);
    shapes.iter().map(|sizes| OwnedEpisode::new(sizes, dim, queries, &mut random)).collect()
}

fn forms(dim: usize) -> Vec<(&'static str, Config)> {
    let view = ItemView { dim, width: 5, dropout: 0.3, target: ViewTarget::States };
    let outlier_view = ItemView { target: ViewTarget::Outlier, ..view.clone() };
    let no_dropout = ItemView { dropout: 0.0, ..view.clone() };
    vec![
        ("relations", small()),
        ("queries alone", Config { items_weight: 0.0, centred: true, ..small() }),
        ("items alone", Config { queries_weight: 0.0, floor: 0.1, ..small() }),
        ("centred", Config { centred: true, width: 6, heads: 3, ..small() }),
        ("item view", Config { item_view: Some(view.clone()), ..small() }),
        ("centred with item view", Config { item_view: Some(view), centred: true, ..small() }),
        ("no dropout", Config { item_view: Some(no_dropout), layers: 1, ..small() }),
        ("outlier branch", Config { item_view: Some(outlier_view), centred: true, ..small() }),
    ]
}

#[test]
fn gradients_of_features_are_those_of_the_cpu_for_all_forms_of_the_head() {
    let episodes = episodes(&[&[2, 3], &[1, 4, 2], &[3, 0, 5, 1]], 7, 5, 7);
    let parts = [(&episodes[..2], 11), (&episodes[2..], 12)];
    for (name, config) in forms(7) {
        assert_gradients_agree(&exact_device(), name, config, &parts, tolerance(1e-4, 2e-2));
    }
}

#[test]
fn gradients_of_features_agree_for_many_rows_and_columns() {
    // 90 rows are more tiles than a warp sums at once, and 83 columns more than a block has.
    let episodes = episodes(&[&[10; 5], &[4, 4]], 83, 40, 8);
    let view = ItemView { dim: 83, width: 9, dropout: 0.2, target: ViewTarget::States };
    let config = Config { layers: 1, width: 16, centred: true, item_view: Some(view), ..small() };
    assert_gradients_agree(&exact_device(), "many", config, &[(&episodes, 3)], tolerance(1e-4, 2e-2));
}

#[test]
fn gradients_of_features_agree_for_episodes_that_are_too_large_for_shared_memory() {
    // On Hopper, gradients of the pairs of 122 items do not fit.
    let items = if cfg!(feature = "gpu-tests") { 61 } else { 40 };
    let episodes = episodes(&[&[items, items], &[2, 3]], 5, 4, 9);
    let config = Config { layers: 1, width: 4, hidden: 4, edge_hidden: 3, centred: true, ..small() };
    assert_gradients_agree(&exact_device(), "large", config, &[(&episodes, 3)], tolerance(1e-4, 2e-2));
}

#[test]
fn gradients_of_features_agree_for_equal_items_single_items_and_no_queries() {
    let mut equal = episodes(&[&[3, 3]], 6, 4, 10).remove(0);
    equal.rows[1] = equal.rows[0].clone();
    equal.rows[4] = equal.rows[3].clone();
    equal.rows[8] = equal.rows[7].clone();
    let mut all_equal = episodes(&[&[2, 2]], 6, 2, 11).remove(0);
    all_equal.rows = vec![all_equal.rows[0].clone(); all_equal.rows.len()];
    let single = episodes(&[&[1]], 6, 3, 12).remove(0);
    let no_queries = episodes(&[&[2, 1]], 6, 0, 13).remove(0);
    // More states of one class than a tile has items.
    let one_class = episodes(&[&[40]], 6, 3, 14).remove(0);
    let special = [equal, single, no_queries, one_class];
    for (name, config) in forms(6) {
        assert_gradients_agree(&exact_device(), name, config, &[(&special, 3)], tolerance(1e-4, 2e-2));
    }
    // In the space of the embeddings, the distances of the queries would be rounding errors.
    let config = Config { centred: true, ..small() };
    assert_gradients_agree(&exact_device(), "all equal", config, &[(&[all_equal], 3)], 1e-4);
}

#[test]
fn gradients_of_features_in_tf32_differ_by_less_than_a_hundredth() {
    let episodes = episodes(&[&[3, 3, 3], &[2, 4]], 16, 9, 13);
    let view = ItemView { dim: 16, width: 16, dropout: 0.2, target: ViewTarget::States };
    let config = Config { width: 32, heads: 4, hidden: 32, centred: true, item_view: Some(view), ..small() };
    assert_gradients_agree(&device(), "tf32", config, &[(&episodes, 3)], 1e-2);
}

#[test]
fn a_step_whose_backbone_overflowed_changes_nothing_and_can_be_repeated() {
    let episodes = episodes(&[&[2, 2], &[3, 2, 1]], 6, 4, 14);
    let parts = [(&episodes[..], 5)];
    let network = Relabel::new(Config { layers: 1, ..small() });
    let start = parameters(&network, 5);
    for clip in [0.0, 0.05] {
        let options = OptimiserOptions { clip, ..OptimiserOptions::default() };
        let mut joint = Joint::new(&device(), &network, options, &start, 6);
        joint.prepare(&parts);
        joint.overflow.write(0, &[1]).unwrap();
        assert_eq!(joint.run(), []);
        let training = &joint.training;
        assert_eq!(
            (RelabelTraining::parameters(training).unwrap(), training.progress().unwrap()),
            (start.clone(), 0)
        );
        assert!(training.moments().unwrap().0.iter().all(|&moment| moment == 0.0));
        joint.overflow.write(0, &[0]).unwrap();
        let repeated = joint.run();
        let mut undisturbed = Joint::new(&device(), &network, options, &start, 6);
        undisturbed.prepare(&parts);
        assert_eq!((repeated.len(), repeated), (1, undisturbed.run()));
        let parameters = RelabelTraining::parameters;
        assert_eq!(parameters(&joint.training).unwrap(), parameters(&undisturbed.training).unwrap());
        assert_ne!(parameters(&joint.training).unwrap(), start);
    }
}

#[test]
fn a_loss_that_is_not_finite_is_returned_once_although_its_step_is_not_finished() {
    let mut episodes = episodes(&[&[2, 2]], 6, 4, 19);
    let network = Relabel::new(Config { layers: 1, ..small() });
    let start = parameters(&network, 5);
    let mut joint = Joint::new(&device(), &network, OptimiserOptions::default(), &start, 6);
    let value = std::mem::replace(&mut episodes[0].rows[0][0], f32::NAN);
    joint.prepare(&[(&episodes, 1)]);
    joint.overflow.write(0, &[1]).unwrap();
    let losses = joint.run();
    assert!(losses.len() == 1 && !(losses[0].items + losses[0].queries).is_finite(), "{losses:?}");
    assert_eq!(joint.training.finished_losses().unwrap(), []);
    // Without an overflow of the backbone the step ends, but changes no parameter.
    joint.overflow.write(0, &[0]).unwrap();
    assert_eq!(joint.run().len(), 1);
    let weights = joint.training.weights().unwrap();
    assert_eq!((&weights.parameters, weights.updates), (&start, 0));
    episodes[0].rows[0][0] = value;
    joint.prepare(&[(&episodes, 1)]);
    assert!(joint.run()[0].items.is_finite());
    let changed = joint.training.weights().unwrap();
    assert!(changed.updates == 1 && changed.parameters != start);
    joint.training.load_weights(&weights).unwrap();
    assert_eq!(joint.training.weights().unwrap(), weights);
}

#[test]
fn squares_of_the_backbone_count_in_the_clipped_norm() {
    let episodes = episodes(&[&[2, 3]], 5, 4, 15);
    let network = Relabel::new(Config { layers: 1, ..small() });
    let start = parameters(&network, 5);
    let (adamw, clip) = (AdamWConfig { epsilon: 0.1, ..AdamWConfig::default() }, 0.05);
    let mut joint = Joint::new(&device(), &network, OptimiserOptions { adamw, clip }, &start, 5);
    joint.squares.write(0, &[1.5, 0.0, 2.0]).unwrap();
    joint.prepare(&[(&episodes, 5)]);
    joint.run();
    let gradient = joint.training.gradient().unwrap();
    let square = gradient.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>();
    let of_head: f64 = joint.training.squares().read().unwrap().iter().sum();
    assert!((of_head - square).abs() < 1e-6 * square, "{of_head} and {square}");
    let mut expected = start.clone();
    let mut optimiser = AdamW::new(network.layout(), adamw);
    optimiser.step(0.01, clip / (square + 3.5).sqrt(), &mut expected, &mut [gradient]);
    let change = |after: &[f32]| -> Vec<f32> { after.iter().zip(&start).map(|(a, b)| a - b).collect() };
    let own = change(&RelabelTraining::parameters(&joint.training).unwrap());
    let error = relative_error(&own, &change(&expected));
    assert!(error < 1e-3, "{error}");
}

#[test]
fn the_bits_of_a_joint_step_do_not_depend_on_earlier_steps() {
    let small_step = episodes(&[&[3, 2, 3], &[2, 2], &[1, 4]], 9, 4, 16);
    let large_step = episodes(&[&[4, 4, 4], &[5, 4, 3], &[6, 6], &[4, 4]], 9, 9, 17);
    let view = ItemView { dim: 9, width: 5, dropout: 0.3, target: ViewTarget::States };
    let network = Relabel::new(Config { layers: 1, centred: true, item_view: Some(view), ..small() });
    let start = parameters(&network, 9);
    let zeros = vec![0.0; start.len()];
    let run = |earlier: &[OwnedEpisode]| {
        let mut joint = Joint::new(&device(), &network, OptimiserOptions::default(), &start, 9);
        if !earlier.is_empty() {
            joint.prepare(&[(earlier, 1)]);
            joint.run();
            joint.training.load(&start, &zeros, &zeros, 0).unwrap();
        }
        joint.prepare(&[(&small_step, 1)]);
        assert_eq!(joint.run().len(), 1);
        let len = features_of(&[(&small_step, 1)]).len();
        (joint.feature_gradient(len), RelabelTraining::parameters(&joint.training).unwrap())
    };
    assert_eq!(run(&[]), run(&large_step));
}

#[test]
fn steps_that_are_prepared_together_run_one_after_the_other() {
    let episodes = episodes(&[&[2, 2], &[3, 1]], 6, 4, 18);
    let steps = [joint_step(0.01, &[(&episodes[..1], 1)]), joint_step(0.02, &[(&episodes[1..], 2)])];
    let network = Relabel::new(Config { layers: 1, ..small() });
    let start = parameters(&network, 6);
    let mut joint = Joint::new(&device(), &network, OptimiserOptions::default(), &start, 6);
    assert!(joint.training.prepare(&steps).unwrap(), "the first steps need buffers");
    let features = [features_of(&[(&episodes[..1], 1)]), features_of(&[(&episodes[1..], 2)])];
    let mut losses = Vec::new();
    for features in &features {
        joint.training.set_features(features).unwrap();
        losses.extend(joint.run());
    }
    assert!(!joint.training.prepare(&steps).unwrap(), "the same sizes need no new buffers");
    let all = features.concat();
    let set = [FeatureSet { values: &all, dim: 6 }];
    let mut fixed =
        RelabelTraining::new(&device(), &network, OptimiserOptions::default(), &start, &set).unwrap();
    let first = features[0].len() as u32 / 6;
    let rows = (first..all.len() as u32 / 6).map(|row| StoredRow::new(0, row)).collect();
    let mut second = steps[1].clone();
    second.parts[0].episodes[0].rows = EpisodeRows::Stored(rows);
    assert_eq!(fixed.run(&[steps[0].clone(), second]).unwrap(), losses);
    let parameters = RelabelTraining::parameters;
    assert_eq!(parameters(&fixed).unwrap(), parameters(&joint.training).unwrap());
}
