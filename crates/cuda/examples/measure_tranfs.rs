//! Measures training steps of the head TraNFS on GPU 0, and compares the gradients of one step with those of the CPU.
//!
//!     cargo run --release -p trueshot-cuda --example measure_tranfs
//!
//! A step has 16 episodes of 5 classes with 5 support items and 15 queries each. With the argument `joint`, it measures
//! the head's part of a step in which a backbone computes the features: the losses, the gradients of parameters and
//! features, and the update. The features are written once.

mod support;

use std::time::Instant;

use trueshot_cuda::Device;
use trueshot_cuda::joint::{BackboneUpdate, HeadTraining};
use trueshot_cuda::tranfs::{
    EpisodeInput, Limits, PartInput, Query, StepInput, SupportItem, TranfsOptions, TranfsTraining,
};
use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::head::{Episode, Head, JointHead};
use trueshot_nn::parameters::Role;
use trueshot_nn::tranfs::{Config, Tranfs};

use support::{StepTimes, random, time_steps};

/// Classes per episode.
const WAYS: usize = 5;
/// Support items per class.
const SHOTS: usize = 5;
/// Queries per class.
const QUERIES: usize = 15;
/// Episodes per step.
const EPISODES: usize = 16;
/// Groups of episodes, each with a dropout seed.
const PARTS: usize = 4;
/// The dimension of the features, that of a Conv4 on images of 84 pixels.
const DIM: usize = 1600;
/// Rows of features on the device.
const ROWS: usize = 10_000;
/// Steps per figure.
const REPEATS: usize = 400;

/// A training step. `row` returns the row of the features of each support item, then of each query, episode by episode.
fn step(mut row: impl FnMut() -> u32) -> StepInput {
    let mut episode = || EpisodeInput {
        classes: WAYS,
        support: (0..(WAYS * SHOTS) as u32)
            // The third item of every class is mislabelled.
            .map(|i| SupportItem { row: row(), given: i % WAYS as u32, mislabelled: i / WAYS as u32 == 2 })
            .collect(),
        queries: (0..(WAYS * QUERIES) as u32).map(|i| Query { row: row(), class: i % WAYS as u32 }).collect(),
    };
    let part = |number: usize| PartInput {
        dropout_seed: number as u64 + 17,
        episodes: (0..EPISODES / PARTS).map(|_| episode()).collect(),
    };
    StepInput { rate: 1e-4, parts: (0..PARTS).map(part).collect(), extra_rows: vec![] }
}

/// The gradient of the loss with respect to the parameters on the CPU, summed over the episodes.
fn cpu_gradient(network: &Tranfs, parameters: &[f32], step: &StepInput, features: &[f32]) -> Vec<f32> {
    let row = |row: u32| &features[row as usize * DIM..(row as usize + 1) * DIM];
    let mut gradient = vec![0.0; parameters.len()];
    for part in &step.parts {
        with_episodes(part, &row, |episodes| {
            network.losses(parameters, episodes, part.dropout_seed, &mut gradient);
        });
    }
    gradient
}

/// Calls `job` with the episodes of a part in the form of the CPU's functions.
fn with_episodes<'a>(part: &PartInput, row: &dyn Fn(u32) -> &'a [f32], job: impl FnOnce(&[Episode<'_>])) {
    let support: Vec<Vec<&[f32]>> =
        part.episodes.iter().map(|e| e.support.iter().map(|item| row(item.row)).collect()).collect();
    let given: Vec<Vec<u32>> =
        part.episodes.iter().map(|e| e.support.iter().map(|item| item.given).collect()).collect();
    let truth: Vec<Vec<Option<u32>>> = part
        .episodes
        .iter()
        .map(|e| e.support.iter().map(|item| (!item.mislabelled).then_some(item.given)).collect())
        .collect();
    let queries: Vec<Vec<&[f32]>> =
        part.episodes.iter().map(|e| e.queries.iter().map(|query| row(query.row)).collect()).collect();
    let classes: Vec<Vec<u32>> =
        part.episodes.iter().map(|e| e.queries.iter().map(|query| query.class).collect()).collect();
    let episodes: Vec<Episode<'_>> = (0..part.episodes.len())
        .map(|i| Episode {
            classes: part.episodes[i].classes,
            support: &support[i],
            given: &given[i],
            truth: &truth[i],
            queries: &queries[i],
            query_classes: &classes[i],
        })
        .collect();
    job(&episodes);
}

/// Measures and prints the time of a step, which `launch` starts without waiting for it.
fn print_times(
    name: &str,
    device: &Device,
    launch: impl FnMut() -> Result<(), trueshot_cuda::Error>,
) -> Result<(), trueshot_cuda::Error> {
    let StepTimes { median, least, pipelined } = time_steps(REPEATS, launch, || device.synchronise())?;
    println!(
        "{{\"name\":\"{name}\",\"ms\":{median:.4},\"min_ms\":{least:.4},\"pipelined_ms\":{pipelined:.4}}}"
    );
    Ok(())
}

/// ‖own - expected‖ / ‖expected‖
fn relative_error(own: &[f32], expected: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>();
    let difference = norm(&mut own.iter().zip(expected).map(|(a, b)| a - b));
    (difference / norm(&mut expected.iter().copied())).sqrt()
}

/// Measures training on features that are on the device, and compares the gradient of every tensor with that of the
/// CPU.
fn measure_alone(device: &Device, network: &Tranfs, options: TranfsOptions) -> Outcome {
    let mut random = random(3);
    let features: Vec<f32> = (0..ROWS * DIM).map(|_| (random() - 0.5) as f32 * 0.1).collect();
    let parameters = network.initial(&mut random);
    let steps: Vec<StepInput> = (0..64).map(|_| step(|| (random() * ROWS as f64) as u32)).collect();
    let new =
        || TranfsTraining::new(device, network, options.clone(), &parameters, device.upload(&features)?);

    let mut training = new()?;
    println!("{}: losses {:?}", device.name(), training.run(&steps[..1])?);
    let (own, expected) = (training.gradient()?, cpu_gradient(network, &parameters, &steps[0], &features));
    for tensor in network.layout().tensors().iter().filter(|tensor| tensor.role == Role::Trained) {
        let error = relative_error(&own[tensor.range.clone()], &expected[tensor.range.clone()]);
        println!("{}: relative error against the CPU {error:.2e}", tensor.name);
    }
    training.run(&steps)?;
    print_times("tranfs", device, || training.launch_step())?;
    let start = Instant::now();
    for _ in 0..6 {
        training.run(&steps)?;
    }
    let with_input = start.elapsed().as_secs_f64() * 1e3 / (6.0 * steps.len() as f64);
    println!("{{\"name\":\"tranfs with input\",\"ms\":{with_input:.4}}}");
    let run = || -> Result<Vec<f32>, trueshot_cuda::Error> {
        let mut training = new()?;
        training.run(&steps)?;
        training.parameters()
    };
    let (first, second) = (run()?, run()?);
    let same = first.iter().zip(&second).all(|(a, b)| a.to_bits() == b.to_bits());
    println!("two runs have the same bits: {same}");
    for (kernel, microseconds) in training.kernel_times()? {
        println!("{kernel}: {microseconds:.1} us");
    }
    Ok(())
}

/// The gradient of the mean loss with respect to the features on the CPU. The n-th row that the step uses is row n, so
/// the rows of a part are contiguous.
fn cpu_feature_gradient(
    network: &Tranfs,
    parameters: &[f32],
    step: &StepInput,
    features: &[f32],
) -> Vec<f32> {
    let row = |row: u32| &features[row as usize * DIM..(row as usize + 1) * DIM];
    let mut d_features = vec![0.0; features.len()];
    for (part, d_part) in step.parts.iter().zip(d_features.chunks_exact_mut(features.len() / PARTS)) {
        with_episodes(part, &row, |episodes| {
            let (seed, mut gradient) = (part.dropout_seed, vec![0.0; parameters.len()]);
            network.losses_with_feature_gradient(parameters, episodes, seed, &mut gradient, d_part);
        });
    }
    d_features.iter_mut().for_each(|value| *value /= EPISODES as f32);
    d_features
}

/// Measures the head's part of a step together with a backbone, and compares the gradient of the features with that of
/// the CPU.
fn measure_joint(device: &Device, network: &Tranfs, options: TranfsOptions) -> Outcome {
    let rows = EPISODES * WAYS * (SHOTS + QUERIES);
    let mut random = random(3);
    let features: Vec<f32> = (0..rows * DIM).map(|_| (random() - 0.5) as f32 * 0.1).collect();
    let parameters = network.initial(&mut random);
    let mut training = TranfsTraining::joint(device, network, options, &parameters, rows)?;
    training.write_features(&features)?;
    let in_order = || {
        let mut numbers = 0..;
        step(|| numbers.next().expect("the range has no end"))
    };
    let steps: Vec<StepInput> = (0..64).map(|_| in_order()).collect();
    // In place of a backbone: no overflow, and gradients of length 0.
    let (overflow, squares) = (device.zeros(1)?, device.zeros(512)?);
    let backbone = BackboneUpdate { overflow: overflow.at(0), squares: squares.at(0), square_count: 512 };

    training.prepare(&steps)?;
    let graph = device.capture(|| {
        training.record_losses()?;
        training.record_update(&backbone)
    })?;
    graph.launch()?;
    println!("{}: losses {:?}", device.name(), training.finished_losses()?);
    let own = training.feature_gradient().read()?;
    let error = relative_error(&own, &cpu_feature_gradient(network, &parameters, &steps[0], &features));
    println!("gradient of the features: relative error against the CPU {error:.2e}");
    print_times("tranfs joint", device, || graph.launch())?;
    let times = device.kernel_times(|| {
        training.record_losses()?;
        training.record_update(&backbone)
    })?;
    for (kernel, microseconds) in times {
        println!("{kernel}: {microseconds:.1} us");
    }
    Ok(())
}

type Outcome = Result<(), Box<dyn std::error::Error>>;

fn main() -> Outcome {
    let device = Device::open(0)?;
    let network = Tranfs::new(Config::new(DIM))?;
    let limits = Limits { episodes: EPISODES, support: WAYS * SHOTS, queries: WAYS * QUERIES };
    let options = TranfsOptions { optimiser: AdamWConfig::default(), clip: 0.0, limits };
    match std::env::args().nth(1).as_deref() {
        None => measure_alone(&device, &network, options),
        Some("joint") => measure_joint(&device, &network, options),
        Some(unknown) => Err(format!("unknown argument {unknown}; the only one is \"joint\"").into()),
    }
}
