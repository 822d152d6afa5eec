//! Training steps against the CPU's losses and optimiser: on an emulated device, or with the feature `gpu-tests` on
//! GPU 0.

mod joint;
mod ten_steps;

use trueshot_nn::adamw::AdamW;
use trueshot_nn::head::Episode;
use trueshot_nn::parameters::Role;
use trueshot_nn::tranfs::{ClassTokens, CleanLoss, Positions};

use super::*;
use crate::testing::{device, exact_device, random, relative_error, tolerance};

/// Rows of the data set; rows with higher numbers come with the step.
const FEATURE_ROWS: usize = 9;

fn config(dim: usize, classes: usize, width: usize, heads: usize) -> Config {
    Config { classes, width, heads, feed_forward: 24, layers: 2, dropout: 0.0, ..Config::new(dim) }
}

/// A step, and the features of all its rows. `parts` lists the episodes of each part, and for each episode the numbers
/// of support items of its classes. Every third item is mislabelled.
fn step(dim: usize, parts: &[&[&[usize]]], seed: u64) -> (StepInput, Vec<Vec<f32>>) {
    let mut random = random(seed);
    let mut rows = Vec::new();
    let mut row = |class: u32| {
        let centre = |i: usize| if i % 7 == class as usize { 0.8 } else { 0.0 };
        rows.push(
            (0..dim).map(|i| (0.6 * (random() - 0.5) + centre(i)) as f32 / (dim as f32).sqrt()).collect(),
        );
        rows.len() as u32 - 1
    };
    let mut episode = |sizes: &&[usize]| {
        let classes = sizes.len();
        let labels =
            sizes.iter().enumerate().flat_map(|(class, &size)| std::iter::repeat_n(class as u32, size));
        let mut support: Vec<SupportItem> = labels
            .enumerate()
            .map(|(i, given)| {
                let mislabelled = i % 3 == 1;
                let truth = if mislabelled { (given + 1) % classes as u32 } else { given };
                SupportItem { row: row(truth), given, mislabelled }
            })
            .collect();
        support.reverse();
        let queries = (0..2 * classes as u32).map(|i| i % classes as u32);
        EpisodeInput {
            classes,
            support,
            queries: queries.map(|class| Query { row: row(class), class }).collect(),
        }
    };
    let parts = (7..).zip(parts).map(|(number, sizes)| PartInput {
        dropout_seed: number * 0x1234_5678_9abc,
        episodes: sizes.iter().map(&mut episode).collect(),
    });
    let parts = parts.collect();
    (StepInput { rate: 1e-2, parts, extra_rows: rows[FEATURE_ROWS..].concat() }, rows)
}

/// The CPU's loss terms (means over the episodes) and gradient (summed over the episodes).
fn cpu_losses(
    network: &Tranfs,
    parameters: &[f32],
    step: &StepInput,
    rows: &[Vec<f32>],
) -> (Vec<f64>, Vec<f32>) {
    let (mut terms, mut gradient, mut count) = (vec![0.0; 3], vec![0.0; parameters.len()], 0);
    for part in &step.parts {
        for_cpu_episodes(part, rows, |episodes| {
            let own = network.losses(parameters, episodes, part.dropout_seed, &mut gradient);
            terms.iter_mut().zip(own).for_each(|(term, own)| *term += own);
            count += episodes.len();
        });
    }
    terms.iter_mut().for_each(|term| *term /= f64::from(count as u32));
    (terms, gradient)
}

/// Calls `job` with the episodes of a part as the CPU takes them.
fn for_cpu_episodes(part: &PartInput, rows: &[Vec<f32>], job: impl FnOnce(&[Episode<'_>])) {
    struct Columns<'a> {
        support: Vec<&'a [f32]>,
        given: Vec<u32>,
        truth: Vec<Option<u32>>,
        queries: Vec<&'a [f32]>,
        query_classes: Vec<u32>,
    }
    let columns: Vec<Columns<'_>> = part
        .episodes
        .iter()
        .map(|episode| Columns {
            support: episode.support.iter().map(|item| &rows[item.row as usize][..]).collect(),
            given: episode.support.iter().map(|item| item.given).collect(),
            truth: episode.support.iter().map(|item| (!item.mislabelled).then_some(item.given)).collect(),
            queries: episode.queries.iter().map(|query| &rows[query.row as usize][..]).collect(),
            query_classes: episode.queries.iter().map(|query| query.class).collect(),
        })
        .collect();
    let episodes: Vec<Episode<'_>> = part
        .episodes
        .iter()
        .zip(&columns)
        .map(|(episode, columns)| Episode {
            classes: episode.classes,
            support: &columns.support,
            given: &columns.given,
            truth: &columns.truth,
            queries: &columns.queries,
            query_classes: &columns.query_classes,
        })
        .collect();
    job(&episodes);
}

/// Initial parameters with some noise, so that every term of the gradient matters.
fn parameters(network: &Tranfs) -> Vec<f32> {
    let mut random = random(3);
    let mut parameters = network.initial(&mut random);
    parameters.iter_mut().for_each(|value| *value += (0.1 * (random() - 0.5)) as f32);
    parameters
}

fn training(
    device: &Device,
    network: &Tranfs,
    step: &StepInput,
    rows: &[Vec<f32>],
    clip: f64,
) -> TranfsTraining {
    let episodes = || step.parts.iter().flat_map(|part| &part.episodes);
    let limits = Limits {
        episodes: episodes().count() + 1,
        support: episodes().map(|episode| episode.support.len()).max().unwrap(),
        queries: episodes().map(|episode| episode.queries.len()).max().unwrap(),
    };
    let options = TranfsOptions { optimiser: AdamWConfig { l2: 1e-3, ..Default::default() }, clip, limits };
    let features = device.upload(&rows[..FEATURE_ROWS].concat()).unwrap();
    TranfsTraining::new(device, network, options, &parameters(network), features).unwrap()
}

fn assert_agrees_with_cpu(name: &str, config: Config, parts: &[&[&[usize]]]) {
    assert_agrees(&device(), 5e-3, name, config, parts);
}

/// Compares the losses and the gradient of one step with those of the CPU. Returns the shared memory of the run.
fn assert_agrees(
    device: &Device,
    tolerance: f64,
    name: &str,
    config: Config,
    parts: &[&[&[usize]]],
) -> SharedMemory {
    let network = Tranfs::new(config.clone()).unwrap();
    let (step, rows) = step(config.dim, parts, 5);
    let (terms, gradient) = cpu_losses(&network, &parameters(&network), &step, &rows);
    let mut training = training(device, &network, &step, &rows, 0.0);
    let losses = training.run(std::slice::from_ref(&step)).unwrap()[0];
    for (own, expected) in losses.iter().zip(&terms) {
        let error = (f64::from(*own) - expected).abs();
        assert!(error < 2e-3 * expected.abs().max(0.1), "{name}: losses {losses:?} and {terms:?}");
    }
    let own = training.gradient().unwrap();
    for tensor in network.layout().tensors().iter().filter(|tensor| tensor.role == Role::Trained) {
        let error = relative_error(&own[tensor.range.clone()], &gradient[tensor.range.clone()]);
        println!("{name} {}: {error:.5}", tensor.name);
        assert!(error < tolerance, "{name} {}: {error}", tensor.name);
    }
    training.shared
}

#[test]
fn losses_and_gradients_are_those_of_the_cpu_with_the_default_options() {
    assert_agrees_with_cpu("default", config(40, 3, 16, 2), &[&[&[3, 4, 2]]]);
}

#[test]
fn parts_of_ragged_episodes_have_the_dropout_masks_of_the_cpu() {
    let config = Config {
        dropout: 0.2,
        class_tokens: ClassTokens::Learned,
        tied: false,
        clean_loss: CleanLoss::NegativeCosine,
        ..config(150, 4, 32, 2)
    };
    assert_agrees_with_cpu("dropout", config, &[&[&[3, 1, 2], &[2, 2]], &[&[1, 5, 2, 1], &[4, 0, 3]]]);
}

#[test]
fn wide_tokens_with_class_means_and_constant_positions_agree_with_the_cpu() {
    let config = Config {
        dropout: 0.1,
        layers: 1,
        class_tokens: ClassTokens::ClassMean,
        positions: Positions::Random,
        mislabelled_weight: 1.5,
        clean_weight: 0.3,
        ..config(33, 3, 144, 4)
    };
    assert_agrees_with_cpu("wide", config, &[&[&[2, 3, 1], &[2, 0, 3]]]);
}

#[test]
fn episodes_that_do_not_fit_into_shared_memory_agree_with_the_cpu() {
    let config = Config { dropout: 0.1, layers: 1, feed_forward: 1608, ..config(20, 108, 16, 2) };
    let shared = assert_agrees(&exact_device(), tolerance(1e-3, 2e-2), "large", config, &[&[&[1; 108]]]);
    for memory in [shared.rows, shared.rows_back, shared.attention, shared.attention_back, shared.losses] {
        assert!(!memory.fits, "{shared:?}");
    }
}

#[test]
fn updates_are_those_of_adamw_also_with_clipping() {
    let device = device();
    let network = Tranfs::new(Config { positions: Positions::Random, ..config(24, 2, 16, 1) }).unwrap();
    let (step, rows) = step(24, &[&[&[3, 3]], &[&[2, 4]]], 2);
    for clip in [0.0, 0.01] {
        let mut training = training(&device, &network, &step, &rows, clip);
        let mut expected = parameters(&network);
        let mut optimiser = AdamW::new(network.layout(), training.options.optimiser);
        for rate in [1e-2, 5e-3] {
            training.run(&[StepInput { rate, ..step.clone() }]).unwrap();
            // The device's gradient, because the first updates of AdamW depend on little else than signs.
            let gradient = training.gradient().unwrap();
            // The gradient is a sum over two episodes; the norm and the update are those of the mean.
            let norm = gradient.iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt() / 2.0;
            let factor = if clip > 0.0 { (clip / norm).min(1.0) } else { 1.0 };
            assert!(clip == 0.0 || factor < 0.9, "the gradient is clipped");
            optimiser.step(rate, factor / 2.0, &mut expected, &mut [gradient]);
            let own = training.parameters().unwrap();
            let largest = own.iter().zip(&expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
            assert!(largest < 2e-6, "parameters differ by {largest}");
        }
        let (updates, first, second) = optimiser.state();
        assert_eq!(training.progress(), updates);
        let (own_first, own_second) = training.moments().unwrap();
        assert!(relative_error(&own_first, first) < 1e-5 && relative_error(&own_second, second) < 1e-5);
        // The second step was computed with the updated weights.
        let (_, gradient) = cpu_losses(&network, &training.parameters().unwrap(), &step, &rows);
        training.run(std::slice::from_ref(&step)).unwrap();
        let trained = network.layout().tensors().iter().filter(|tensor| tensor.role == Role::Trained);
        let own = training.gradient().unwrap();
        for tensor in trained {
            let error = relative_error(&own[tensor.range.clone()], &gradient[tensor.range.clone()]);
            assert!(error < 1e-2, "{}: {error}", tensor.name);
        }
    }
}

#[test]
fn several_steps_of_a_call_are_those_of_several_calls_and_a_saved_state_continues() {
    let device = device();
    let network = Tranfs::new(Config { dropout: 0.3, layers: 1, ..config(24, 3, 16, 2) }).unwrap();
    let (first, rows) = step(24, &[&[&[3, 3, 1]]], 2);
    let second = StepInput { parts: step(24, &[&[&[2, 4]]], 2).0.parts, rate: 2e-2, ..first.clone() };
    let mut together = training(&device, &network, &first, &rows, 0.0);
    let losses = together.run(&[first.clone(), second.clone(), first.clone()]).unwrap();
    let mut apart = training(&device, &network, &first, &rows, 0.0);
    let mut own = vec![apart.run(std::slice::from_ref(&first)).unwrap()[0]];
    let (parameters, moments) = (apart.parameters().unwrap(), apart.moments().unwrap());
    let mut resumed = training(&device, &network, &first, &rows, 0.0);
    resumed.load(&parameters, &moments.0, &moments.1, apart.progress()).unwrap();
    own.extend(resumed.run(&[second, first]).unwrap());
    assert_eq!(own, losses);
    assert_eq!(resumed.parameters().unwrap(), together.parameters().unwrap());
}

#[test]
fn a_loss_that_is_not_finite_is_returned_and_nothing_is_updated() {
    let device = device();
    let network = Tranfs::new(Config { layers: 1, ..config(24, 2, 16, 1) }).unwrap();
    let (mut bad, rows) = step(24, &[&[&[3, 3]]], 2);
    let good = bad.clone();
    let mut training = training(&device, &network, &good, &rows, 0.0);
    bad.extra_rows[0] = f32::NAN;
    let losses = training.run(&[good.clone(), bad, good]).unwrap();
    assert_eq!(losses.len(), 2);
    assert!(losses[0].iter().all(|term| term.is_finite()) && losses[1].iter().any(|term| term.is_nan()));
    assert_eq!(training.progress(), 1);
    assert!(training.parameters().unwrap().iter().all(|value| value.is_finite()));
}

#[test]
#[should_panic(expected = "rows must be below")]
fn rows_that_do_not_exist_are_refused() {
    let device = device();
    let network = Tranfs::new(Config { layers: 1, ..config(24, 2, 16, 1) }).unwrap();
    let (mut step, rows) = step(24, &[&[&[3, 3]]], 2);
    let mut training = training(&device, &network, &step, &rows, 0.0);
    step.parts[0].episodes[0].queries[0].row = rows.len() as u32;
    let _ = training.run(&[step]);
}
