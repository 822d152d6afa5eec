//! Measures training steps of the head Relabel on GPU 0, on 32 episodes of 5 classes with 5 items and 15 queries each.
//!
//!     cargo run --release -p trueshot-cuda --example relabel -- 640
//!
//! The argument is the length of a feature vector. `--joint DIM` measures the head's part of a step together with a
//! backbone, on 8 episodes of 5 classes with 5 items and 8 queries each, for both forms of the head. With `--figures
//! FILE` it measures nothing and writes parameters, episodes, losses and gradients of the CPU to FILE, for
//! `bench/peers/torch_relabel.py --check FILE`.

mod support;

use std::fmt::Write as _;

use trueshot_cuda::Device;
use trueshot_cuda::conv4::STEP_SLOTS;
use trueshot_cuda::driver::KernelTimes;
use trueshot_cuda::joint::{BackboneUpdate, HeadTraining};
use trueshot_cuda::relabel::{
    EpisodeInput, EpisodeRows, FeatureSet, OptimiserOptions, PartInput, RelabelTraining, StepInput, StoredRow,
};
use trueshot_nn::head::{Episode, Head};
use trueshot_nn::relabel::{Config, ItemView, Relabel};

use support::{StepTimes, random, time_steps};

/// Episodes per step.
const EPISODES: usize = 32;
/// Classes per episode.
const WAYS: usize = 5;
/// Support items per class.
const SHOTS: usize = 5;
/// Queries per class.
const QUERIES: usize = 15;
/// Rows of features on the device.
const ROWS: usize = 20_000;
/// Episodes per step together with a backbone.
const JOINT_EPISODES: usize = 8;
/// Queries per class together with a backbone.
const JOINT_QUERIES: usize = 8;
/// Steps per figure.
const REPEATS: usize = 400;

/// The labels of `each` items per class, sorted by class.
fn labels(each: usize) -> Vec<u32> {
    (0..WAYS * each).map(|item| (item / each) as u32).collect()
}

/// The true classes: every third item is that of a random class, or of none.
fn truth(random: &mut impl FnMut() -> f64) -> Vec<Option<u32>> {
    let wrong = |random: &mut dyn FnMut() -> f64| (random() * (WAYS + 1) as f64) as u32;
    let class = |(item, &given): (usize, &u32)| if item % 3 == 2 { wrong(random) } else { given };
    labels(SHOTS)
        .iter()
        .enumerate()
        .map(class)
        .map(|class| Some(class).filter(|&c| c < WAYS as u32))
        .collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [option, file] if option == "--figures" => Ok(std::fs::write(file, figures())?),
        [option, dim] if option == "--joint" => measure_joint(dim.parse()?),
        [] => measure(640),
        [dim] => measure(dim.parse()?),
        _ => Err("usage: relabel [DIM], relabel --joint DIM or relabel --figures FILE".into()),
    }
}

/// Parameters like those of a trained head: none of them zero.
fn parameters(network: &Relabel) -> Vec<f32> {
    let mut random = random(2);
    let initial = network.initial(&mut random);
    initial.into_iter().map(|value| value + 0.2 * (random() - 0.5) as f32).collect()
}

/// Parameters, two episodes, and the CPU's losses and gradient, as JSON.
fn figures() -> String {
    let (network, dim, count) = (Relabel::new(Config::default()), 40, 2);
    let (parameters, mut random) = (parameters(&network), random(3));
    let (given, query_classes) = (labels(SHOTS), labels(QUERIES));
    let truths: Vec<Vec<Option<u32>>> = (0..count).map(|_| truth(&mut random)).collect();
    let mut row = |class: u32| -> Vec<f32> {
        (0..dim).map(|d| random() as f32 + if d % 6 == class as usize { 0.7 } else { 0.0 }).collect()
    };
    let mut rows = |classes: &mut dyn Iterator<Item = u32>| classes.map(&mut row).collect::<Vec<Vec<f32>>>();
    let support: Vec<Vec<Vec<f32>>> =
        truths.iter().map(|truth| rows(&mut truth.iter().map(|class| class.unwrap_or(5)))).collect();
    let queries: Vec<Vec<Vec<f32>>> = (0..count).map(|_| rows(&mut query_classes.iter().copied())).collect();
    let mut gradient = vec![0.0; parameters.len()];
    let mut losses = vec![0.0; 2];
    for ((support, queries), truth) in support.iter().zip(&queries).zip(&truths) {
        let support: Vec<&[f32]> = support.iter().map(Vec::as_slice).collect();
        let queries: Vec<&[f32]> = queries.iter().map(Vec::as_slice).collect();
        let episode = Episode {
            classes: WAYS,
            support: &support,
            given: &given,
            truth,
            queries: &queries,
            query_classes: &query_classes,
        };
        let terms = network.losses(&parameters, &[episode], 0, &mut gradient);
        losses.iter_mut().zip(terms).for_each(|(loss, term)| *loss += term / count as f64);
    }
    gradient.iter_mut().for_each(|value| *value /= count as f32);
    let flat = |rows: &[Vec<Vec<f32>>]| rows.concat().concat();
    let truths: Vec<u32> = truths.concat().iter().map(|class| class.unwrap_or(WAYS as u32)).collect();
    let mut json = format!(
        "{{\"episodes\":{count},\"dim\":{dim},\"support\":{:?},\"queries\":{:?},\"given\":{:?},\"truth\":{truths:?},\
         \"query_classes\":{:?},\"losses\":{losses:?},\"parameters\":{{",
        flat(&support),
        flat(&queries),
        given.repeat(count),
        query_classes.repeat(count),
    );
    for (index, tensor) in network.layout().tensors().iter().enumerate() {
        let comma = if index == 0 { "" } else { "," };
        let (values, gradient) = (&parameters[tensor.range.clone()], &gradient[tensor.range.clone()]);
        write!(
            json,
            "{comma}\"{}\":{{\"shape\":{:?},\"values\":{values:?},\"gradient\":{gradient:?}}}",
            tensor.name, tensor.shape
        )
        .expect("a String can be written to");
    }
    json + "}}"
}

/// One step on random rows.
fn step(random: &mut impl FnMut() -> f64) -> StepInput {
    let episode = |random: &mut dyn FnMut() -> f64| EpisodeInput {
        classes: WAYS,
        given: labels(SHOTS),
        truth: truth(&mut || random()),
        query_classes: labels(QUERIES),
        rows: EpisodeRows::Stored(
            (0..WAYS * (SHOTS + QUERIES))
                .map(|_| StoredRow::new(0, (random() * ROWS as f64) as u32))
                .collect(),
        ),
    };
    let episodes = (0..EPISODES).map(|_| episode(random)).collect();
    StepInput { rate: 1e-4, parts: vec![PartInput { episodes, seed: 1 }] }
}

/// Measures steps on features of `dim` numbers that are on the device, and checks that two runs have the same bits.
fn measure(dim: usize) -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open(0)?;
    println!("{}", device.name());
    let network = Relabel::new(Config::default());
    let mut random = random(4);
    let parameters = network.initial(&mut random);
    let values: Vec<f32> = (0..ROWS * dim).map(|_| (random() - 0.5).max(0.0) as f32).collect();
    let features = [FeatureSet { values: &values, dim }];
    let steps: Vec<StepInput> = (0..STEP_SLOTS).map(|_| step(&mut random)).collect();
    let run = || -> trueshot_cuda::Result<(RelabelTraining, Vec<f32>)> {
        let options = OptimiserOptions::default();
        let mut training = RelabelTraining::new(&device, &network, options, &parameters, &features)?;
        let losses = training.run(&steps)?;
        println!("losses {:?} .. {:?}", losses.first(), losses.last());
        let parameters = training.parameters()?;
        Ok((training, parameters))
    };
    let (mut training, first) = run()?;
    let (_, second) = run()?;
    let is_same = first.iter().zip(&second).all(|(a, b)| a.to_bits() == b.to_bits());
    println!("two runs have the same bits: {is_same}");
    print_times("relabel32", &device, || training.launch_step())?;
    print_kernels(training.kernel_times()?);
    Ok(())
}

/// Measures and prints the time of a step, which `launch` starts: with a wait after every step, and without.
fn print_times(
    name: &str,
    device: &Device,
    launch: impl FnMut() -> trueshot_cuda::Result<()>,
) -> trueshot_cuda::Result<()> {
    let StepTimes { median, least, pipelined } = time_steps(REPEATS, launch, || device.synchronise())?;
    println!(
        "{{\"name\":\"{name}\",\"stack\":\"trueshot\",\"ms\":{median:.4},\"min_ms\":{least:.4},\"pipelined_ms\":{pipelined:.4}}}"
    );
    Ok(())
}

/// Prints the time of each kernel.
fn print_kernels(times: KernelTimes) {
    for (kernel, microseconds) in times {
        println!("{kernel}: {microseconds:.1} us");
    }
}

/// The head's part of a step together with a backbone, and the step on fixed features that it is compared with.
fn measure_joint(dim: usize) -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::open(0)?;
    println!("{}", device.name());
    let view = Config { centred: true, item_view: Some(ItemView::new(dim)), ..Config::default() };
    for (name, config) in [("relations", Config::default()), ("item_view", view)] {
        let network = Relabel::new(config);
        let mut random = random(4);
        let parameters = network.initial(&mut random);
        let rows = JOINT_EPISODES * WAYS * (SHOTS + JOINT_QUERIES);
        let values: Vec<f32> = (0..rows * dim).map(|_| (random() - 0.5).max(0.0) as f32).collect();
        let steps: Vec<StepInput> = (0..STEP_SLOTS).map(|_| joint_step(&mut random)).collect();
        let options = OptimiserOptions { clip: 1.0, ..OptimiserOptions::default() };

        // Training on fixed features.
        let features = [FeatureSet { values: &values, dim }];
        let mut fixed = RelabelTraining::new(&device, &network, options, &parameters, &features)?;
        let expected = fixed.run(&steps)?;
        print_times(&format!("relabel8_{name}"), &device, || fixed.launch_step())?;

        // The same features as if a backbone had computed them: no overflow, and gradients of length 0.
        let mut training = RelabelTraining::joint(&device, &network, options, &parameters, rows, dim)?;
        training.set_features(&values)?;
        training.prepare(&steps)?;
        let (overflow, squares) = (device.zeros::<u32>(1)?, device.zeros::<f64>(1)?);
        let backbone = BackboneUpdate { overflow: overflow.at(0), squares: squares.at(0), square_count: 1 };
        let graph = device.capture(|| {
            training.record_losses()?;
            training.record_update(&backbone)
        })?;
        for _ in &steps {
            graph.launch()?;
        }
        let losses = training.finished_losses()?;
        println!("losses {:?} .. {:?}", losses.first(), losses.last());
        println!("the same losses as on fixed features: {}", losses == expected);
        print_times(&format!("relabel8_{name}_joint"), &device, || graph.launch())?;
        print_kernels(device.kernel_times(|| {
            training.record_losses()?;
            training.record_update(&backbone)
        })?);
    }
    Ok(())
}

/// One step on all rows of a features buffer, in the order of the episodes.
fn joint_step(random: &mut impl FnMut() -> f64) -> StepInput {
    let mut episode = || EpisodeInput {
        classes: WAYS,
        given: labels(SHOTS),
        truth: truth(random),
        query_classes: labels(JOINT_QUERIES),
        rows: EpisodeRows::InOrder,
    };
    let episodes = (0..JOINT_EPISODES).map(|_| episode()).collect();
    StepInput { rate: 1e-4, parts: vec![PartInput { episodes, seed: 1 }] }
}
