//! Training together with a backbone: the gradient of the features, and steps that are repeated.

use trueshot_nn::head::JointHead;

use super::*;
use crate::joint::{BackboneUpdate, HeadTraining};

/// Numbers that stand for the part of a backbone in the update of the head.
struct Backbone {
    overflow: Buffer<u32>,
    squares: Buffer<f64>,
}

impl Backbone {
    fn new(device: &Device, squares: &[f64]) -> Self {
        Backbone { overflow: device.zeros(1).unwrap(), squares: device.upload(squares).unwrap() }
    }

    fn update(&self) -> BackboneUpdate {
        BackboneUpdate {
            overflow: self.overflow.at(0),
            squares: self.squares.at(0),
            square_count: self.squares.len(),
        }
    }
}

/// A step whose rows are all computed by the backbone. Some wrong items are far from all classes.
fn joint_step(dim: usize, parts: &[&[&[usize]]], seed: u64) -> (StepInput, Vec<Vec<f32>>) {
    let (mut step, mut rows) = step(dim, parts, seed);
    step.extra_rows.clear();
    let items = step.parts.iter().flat_map(|part| &part.episodes).flat_map(|episode| &episode.support);
    for item in items.filter(|item| item.mislabelled && item.row % 2 == 0) {
        rows[item.row as usize].iter_mut().for_each(|value| *value = 1.5 * *value - 0.2);
    }
    (step, rows)
}

/// A run with features and one row more than the step has.
fn joint_training(
    device: &Device,
    network: &Tranfs,
    step: &StepInput,
    rows: &[Vec<f32>],
    clip: f64,
) -> TranfsTraining {
    let options = training(device, network, step, rows, clip).options;
    let mut training =
        TranfsTraining::joint(device, network, options, &parameters(network), rows.len() + 1).unwrap();
    training.write_features(&rows.concat()).unwrap();
    training
}

/// Runs one step of those that were prepared.
fn run_step(training: &TranfsTraining, backbone: &Backbone) {
    training.record_losses().unwrap();
    training.record_update(&backbone.update()).unwrap();
}

/// The CPU's gradient of the mean loss with respect to the rows.
fn cpu_feature_gradient(
    network: &Tranfs,
    parameters: &[f32],
    step: &StepInput,
    rows: &[Vec<f32>],
) -> Vec<Vec<f32>> {
    let dim = network.config().dim;
    let count: usize = step.parts.iter().map(|part| part.episodes.len()).sum();
    let mut of_rows = vec![Vec::new(); rows.len()];
    for part in &step.parts {
        for_cpu_episodes(part, rows, |episodes| {
            let len = episodes.iter().map(Episode::feature_count).sum();
            let (mut gradient, mut of_features) = (vec![0.0; parameters.len()], vec![0.0f32; len]);
            let seed = part.dropout_seed;
            network.losses_with_feature_gradient(parameters, episodes, seed, &mut gradient, &mut of_features);
            let order = part.episodes.iter().flat_map(|episode| {
                let support = episode.support.iter().map(|item| item.row);
                support.chain(episode.queries.iter().map(|query| query.row))
            });
            for (row, values) in order.zip(of_features.chunks_exact(dim)) {
                of_rows[row as usize] = values.iter().map(|value| value / count as f32).collect();
            }
        });
    }
    of_rows
}

/// Compares the feature gradient with the CPU's, and losses and parameter gradient with those of
/// [`TranfsTraining::run`]. Returns the shared memory of the run.
fn assert_feature_gradient(
    device: &Device,
    tolerance: f64,
    name: &str,
    config: Config,
    parts: &[&[&[usize]]],
) -> SharedMemory {
    let network = Tranfs::new(config.clone()).unwrap();
    let (step, rows) = joint_step(config.dim, parts, 5);
    let expected = cpu_feature_gradient(&network, &parameters(&network), &step, &rows);
    let mut training = joint_training(device, &network, &step, &rows, 0.0);
    let d_features = &mut training.joint.as_mut().unwrap().d_features;
    d_features.write(0, &vec![7.0; (rows.len() + 1) * config.dim]).unwrap();
    training.prepare(std::slice::from_ref(&step)).unwrap();
    training.record_losses().unwrap();
    let own = training.feature_gradient().read().unwrap();
    let (own, after) = own.split_at(rows.len() * config.dim);
    assert!(after.iter().all(|&value| value == 7.0), "{name}: rows of other steps are left as they are");
    let items = step.parts.iter().flat_map(|part| &part.episodes);
    let groups = items.flat_map(|episode| {
        let rows = |wrong: bool| {
            let items = episode.support.iter().filter(move |item| item.mislabelled == wrong);
            items.map(|item| item.row as usize).collect::<Vec<_>>()
        };
        let queries = episode.queries.iter().map(|query| query.row as usize).collect();
        [("correct items", rows(false)), ("wrong items", rows(true)), ("queries", queries)]
    });
    for (kind, members) in groups.filter(|(_, members)| !members.is_empty()) {
        let part = |row: &usize| own[row * config.dim..(row + 1) * config.dim].to_vec();
        let of_group = members.iter().flat_map(part).collect::<Vec<_>>();
        let of_cpu = members.iter().flat_map(|&row| expected[row].clone()).collect::<Vec<_>>();
        let error = relative_error(&of_group, &of_cpu);
        println!("{name} {kind}: {error:.2e}");
        assert!(error < tolerance, "{name} {kind}: {error}");
    }
    let gradient = training.gradient().unwrap();
    let squares = training.squares.read().unwrap().iter().sum::<f64>();
    training.record_update(&Backbone::new(device, &[]).update()).unwrap();
    let losses = training.finished_losses().unwrap();
    let joint_parameters = TranfsTraining::parameters(&training).unwrap();
    let mut alone = joint_training(device, &network, &step, &rows, 0.0);
    assert_eq!(losses, alone.run(std::slice::from_ref(&step)).unwrap(), "{name}");
    assert_eq!(gradient, alone.gradient().unwrap(), "{name}");
    assert_eq!(joint_parameters, TranfsTraining::parameters(&alone).unwrap(), "{name}");
    let count: usize = step.parts.iter().map(|part| part.episodes.len()).sum();
    let square: f64 = gradient.iter().map(|&value| (f64::from(value) / count as f64).powi(2)).sum();
    assert!(
        (squares / square - 1.0).abs() < 1e-6,
        "{name}: squares of the mean gradient: {squares}, {square}"
    );
    training.shared
}

/// The devices of the tests with the tolerance of each.
fn devices() -> [(Device, f64); 2] {
    [(exact_device(), tolerance(1e-5, 2e-2)), (device(), 2e-2)]
}

#[test]
fn feature_gradients_are_those_of_the_cpu_with_the_default_options() {
    for (device, tolerance) in devices() {
        assert_feature_gradient(&device, tolerance, "default", config(40, 3, 16, 2), &[&[&[3, 4, 2]]]);
    }
}

#[test]
fn feature_gradients_of_ragged_episodes_with_separate_projections_are_those_of_the_cpu() {
    let config = Config {
        dropout: 0.2,
        class_tokens: ClassTokens::Learned,
        tied: false,
        clean_loss: CleanLoss::NegativeCosine,
        ..config(150, 4, 32, 2)
    };
    let parts: [&[&[usize]]; 2] = [&[&[3, 1, 2], &[2, 2]], &[&[1, 5, 2, 1], &[4, 0, 3]]];
    for (device, tolerance) in devices() {
        assert_feature_gradient(&device, tolerance, "separate", config.clone(), &parts);
    }
}

#[test]
fn feature_gradients_with_class_means_and_wide_tokens_are_those_of_the_cpu() {
    let config = Config {
        dropout: 0.1,
        layers: 1,
        class_tokens: ClassTokens::ClassMean,
        positions: Positions::Random,
        mislabelled_weight: 1.5,
        clean_weight: 0.3,
        ..config(33, 3, 144, 4)
    };
    // More items than a thread block handles.
    let parts: [&[&[usize]]; 1] = [&[&[12, 3, 8], &[2, 0, 3]]];
    for (device, tolerance) in devices() {
        assert_feature_gradient(&device, tolerance, "class means", config.clone(), &parts);
    }
}

#[test]
fn feature_gradients_of_episodes_that_do_not_fit_into_shared_memory_are_those_of_the_cpu() {
    let config = Config { layers: 1, feed_forward: 1608, clean_weight: 0.0, ..config(20, 108, 16, 2) };
    let (device, tolerance) = (exact_device(), tolerance(1e-5, 2e-2));
    let shared = assert_feature_gradient(&device, tolerance, "large", config, &[&[&[1; 108]]]);
    assert!(!shared.losses.fits, "{shared:?}");
}

#[test]
fn the_squares_of_the_backbone_count_in_the_clipped_norm() {
    let device = device();
    let network = Tranfs::new(Config { positions: Positions::Random, ..config(24, 2, 16, 1) }).unwrap();
    let (step, rows) = joint_step(24, &[&[&[3, 3]], &[&[2, 4]]], 2);
    for squares in [vec![], vec![0.25; 600]] {
        let backbone = Backbone::new(&device, &squares);
        let mut training = joint_training(&device, &network, &step, &rows, 0.1);
        let mut expected = parameters(&network);
        let mut optimiser = AdamW::new(network.layout(), training.options.optimiser);
        for rate in [1e-2, 5e-3] {
            training.prepare(&[StepInput { rate, ..step.clone() }]).unwrap();
            run_step(&training, &backbone);
            assert_eq!(training.finished_losses().unwrap().len(), 1);
            // The device's gradient, because the first updates of AdamW depend on little else than signs.
            let gradient = training.gradient().unwrap();
            let square = gradient.iter().map(|&value| f64::from(value / 2.0).powi(2)).sum::<f64>();
            let norm = (square + squares.iter().sum::<f64>()).sqrt();
            assert!(norm > 0.11, "the gradient is clipped: {norm}");
            optimiser.step(rate, 0.1 / norm / 2.0, &mut expected, &mut [gradient]);
            let own = TranfsTraining::parameters(&training).unwrap();
            let largest = own.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(largest < 2e-6, "{} squares: parameters differ by {largest}", squares.len());
        }
        let (_, first, second) = optimiser.state();
        let (own_first, own_second) = training.moments().unwrap();
        assert!(relative_error(&own_first, first) < 1e-5 && relative_error(&own_second, second) < 1e-5);
    }
}

#[test]
fn a_step_whose_backbone_overflows_changes_nothing_and_is_repeated() {
    let device = device();
    let network = Tranfs::new(Config { dropout: 0.2, tied: false, ..config(24, 3, 16, 2) }).unwrap();
    let (first, rows) = joint_step(24, &[&[&[3, 3, 1]]], 2);
    let (second, _) = joint_step(24, &[&[&[2, 4]]], 2);
    let steps = [first.clone(), StepInput { rate: 2e-2, ..second }, first.clone()];
    for clip in [0.0, 0.05] {
        let mut backbone = Backbone::new(&device, &[0.5]);
        let mut expected = joint_training(&device, &network, &first, &rows, clip);
        expected.prepare(&steps).unwrap();
        steps.iter().for_each(|_| run_step(&expected, &backbone));
        let losses = expected.finished_losses().unwrap();
        assert_eq!(losses.len(), 3);

        let mut repeated = joint_training(&device, &network, &first, &rows, clip);
        repeated.prepare(&steps).unwrap();
        let everything = |run: &TranfsTraining| {
            (TranfsTraining::parameters(run).unwrap(), run.moments().unwrap(), run.packed.read().unwrap())
        };
        let mut own = Vec::new();
        for (number, overflows) in [2, 0, 1].into_iter().enumerate() {
            let before = everything(&repeated);
            backbone.overflow.write(0, &[1]).unwrap();
            for _ in 0..overflows {
                run_step(&repeated, &backbone);
                assert_eq!(everything(&repeated), before, "step {number}");
                assert!(repeated.finished_losses().unwrap().is_empty(), "step {number} is not finished");
            }
            assert_eq!(repeated.progress(), number as u64);
            backbone.overflow.write(0, &[0]).unwrap();
            run_step(&repeated, &backbone);
            own.extend(repeated.finished_losses().unwrap());
        }
        assert_eq!(own, losses);
        assert_eq!(everything(&repeated), everything(&expected));
        assert_eq!(repeated.progress(), 3);
    }
}

#[test]
fn a_joint_loss_that_is_not_finite_is_returned_and_nothing_is_updated() {
    let device = device();
    let network = Tranfs::new(Config { layers: 1, ..config(24, 2, 16, 1) }).unwrap();
    let (step, rows) = joint_step(24, &[&[&[3, 3]]], 2);
    for overflow in [0, 1] {
        let mut backbone = Backbone::new(&device, &[]);
        let mut training = joint_training(&device, &network, &step, &rows, 0.0);
        training.prepare(&[step.clone(), step.clone(), step.clone()]).unwrap();
        run_step(&training, &backbone);
        let before = TranfsTraining::parameters(&training).unwrap();
        training.features.write(3, &[f32::NAN]).unwrap();
        backbone.overflow.write(0, &[overflow]).unwrap();
        run_step(&training, &backbone);
        run_step(&training, &backbone);
        let losses = training.finished_losses().unwrap();
        assert_eq!(losses.len(), 2, "overflow {overflow}");
        assert!(losses[0].iter().all(|term| term.is_finite()) && losses[1].iter().any(|term| term.is_nan()));
        assert_eq!(training.progress(), 1);
        assert_eq!(TranfsTraining::parameters(&training).unwrap(), before);
    }
}

#[test]
#[should_panic(expected = "row 2 is used twice")]
fn rows_that_are_used_twice_are_refused() {
    let device = device();
    let network = Tranfs::new(Config { layers: 1, ..config(24, 2, 16, 1) }).unwrap();
    let (mut step, rows) = joint_step(24, &[&[&[3, 3]]], 2);
    let mut training = joint_training(&device, &network, &step, &rows, 0.0);
    step.parts[0].episodes[0].queries[0].row = 2;
    let _ = training.prepare(&[step]);
}

#[test]
#[should_panic(expected = "extra rows have no gradient")]
fn extra_rows_are_refused_in_joint_training() {
    let device = device();
    let network = Tranfs::new(Config { layers: 1, ..config(24, 2, 16, 1) }).unwrap();
    let (mut step, rows) = joint_step(24, &[&[&[3, 3]]], 2);
    let mut training = joint_training(&device, &network, &step, &rows, 0.0);
    step.extra_rows = vec![0.0; 24];
    let _ = training.prepare(&[step]);
}
