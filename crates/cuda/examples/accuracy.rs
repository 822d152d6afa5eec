//! Writes inputs, parameters, features and gradients of training steps of Conv4, TraNFS and Relabel on GPU 0 to a
//! folder, for `bench/peers/torch_accuracy.py`, which compares them with float64 and with PyTorch in TF32.
//!
//!     cargo run --release -p trueshot-cuda --example accuracy -- FOLDER
//!     cargo run -p trueshot-cuda --features emulator --example accuracy -- FOLDER --small
//!
//! With the feature `emulator` the emulated device is used. `--small` takes small images and few episodes, for which
//! the emulator is fast enough. There are five steps of each model, on other inputs and parameters, in the folders 1 to
//! 5: the errors of a tensor of three numbers vary by a factor of ten between steps. Each model has a file of f32
//! values (`NAME.bin`, little-endian) and an index (`NAME.json`) with the shape and the start of each array.

mod support;

use std::fmt::Write as _;
use std::path::Path;

use trueshot_cuda::conv4::{Conv4Options, Conv4Training, Prototypes, StepImages};
use trueshot_cuda::relabel::{EpisodeRows, OptimiserOptions, RelabelTraining};
use trueshot_cuda::tranfs::{Limits, Query, SupportItem, TranfsOptions, TranfsTraining};
use trueshot_cuda::{Device, conv4, relabel, tranfs};
use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::conv4::{Shape, initial, layout};
use trueshot_nn::head::Head;
use trueshot_nn::parameters::{ParameterLayout, Role};
use trueshot_nn::relabel::Relabel;
use trueshot_nn::tranfs::{Config, Tranfs};

use support::random;

/// Classes per episode.
const WAYS: usize = 5;
/// Support items per class.
const SHOTS: usize = 5;
/// Queries per class.
const QUERIES: usize = 15;
/// Steps of each model.
const DRAWS: u64 = 5;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// Arrays of one model, collected for its two files.
#[derive(Default)]
struct Arrays {
    /// All arrays, one after the other.
    values: Vec<f32>,
    /// The entries of the JSON index.
    index: String,
}

impl Arrays {
    /// Adds an array of this shape.
    fn add(&mut self, name: &str, shape: &[usize], values: &[f32]) {
        assert_eq!(shape.iter().product::<usize>(), values.len(), "{name}");
        let comma = if self.index.is_empty() { "" } else { ",\n" };
        let start = self.values.len();
        write!(self.index, "{comma}\"{name}\":{{\"shape\":{shape:?},\"start\":{start}}}")
            .expect("a String can be written to");
        self.values.extend_from_slice(values);
    }

    fn add_labels(&mut self, name: &str, shape: &[usize], labels: impl Iterator<Item = u32>) {
        self.add(name, shape, &labels.map(|label| label as f32).collect::<Vec<_>>());
    }

    /// All tensors of a layout, and the gradients of those that are trained.
    fn add_tensors(&mut self, layout: &ParameterLayout, parameters: &[f32], gradient: &[f32]) {
        for tensor in layout.tensors() {
            let range = tensor.range.clone();
            self.add(&format!("parameter {}", tensor.name), &tensor.shape, &parameters[range.clone()]);
            if tensor.role == Role::Trained {
                self.add(&format!("gradient {}", tensor.name), &tensor.shape, &gradient[range]);
            }
        }
    }

    /// Writes `NAME.bin` and `NAME.json` to the folder.
    fn write(&self, folder: &Path, name: &str) -> Outcome {
        let bytes: Vec<u8> = self.values.iter().flat_map(|value| value.to_le_bytes()).collect();
        std::fs::write(folder.join(format!("{name}.bin")), bytes)?;
        std::fs::write(folder.join(format!("{name}.json")), format!("{{{}}}\n", self.index))?;
        println!("{name}: {} values", self.values.len());
        Ok(())
    }
}

/// The classes of `each` items per class, sorted by class.
fn classes(each: usize) -> impl Iterator<Item = u32> + Clone {
    (0..WAYS * each).map(move |item| (item / each) as u32)
}

/// Input, parameters, features and gradient of one step of Conv4 on an episode with `shots` support items and `queries`
/// queries per class. `draw` is the seed of input and parameters.
fn conv4_arrays(
    device: &Device,
    size: usize,
    shots: usize,
    queries: usize,
    draw: u64,
) -> trueshot_cuda::Result<Arrays> {
    let options = Conv4Options {
        shape: Shape { size, channels: 3 },
        classes: WAYS,
        support: WAYS * shots,
        queries: WAYS * queries,
        prototypes: Prototypes::Mean,
        optimiser: AdamWConfig::default(),
        clip: 0.0,
    };
    let (shape, count, mut random) = (options.shape, options.images(), random(draw));
    let labels: Vec<u32> = classes(shots).chain(classes(queries)).collect();
    // Noise, and stripes whose width depends on the class.
    let images: Vec<f32> = (0..count * shape.pixels())
        .map(|i| {
            let (class, column) = (labels[i / shape.pixels()] as usize, i / 3 % size);
            let stripe = if column / (2 + class) % 2 == 0 { 0.6 } else { -0.6 };
            (2.4 * (random() - 0.5) + stripe) as f32
        })
        .collect();
    let layout = layout(3);
    let mut parameters = initial(3, &mut random);
    for tensor in layout.tensors() {
        let values = &mut parameters[tensor.range.clone()];
        match tensor.name.rsplit_once('.').expect("a block and a name") {
            // Features of moderate length: otherwise every query is classified with certainty.
            ("block4.norm", "weight") => values.iter_mut().for_each(|value| *value *= 0.2),
            (_, "bias") => values.fill_with(|| 0.2 * (random() - 0.5) as f32),
            _ => {}
        }
    }
    let mut training = Conv4Training::new(device, options.clone(), &parameters, None)?;
    let input =
        conv4::StepInput { rate: 0.0, labels: labels.clone(), images: StepImages::Prepared(images.clone()) };
    println!("conv4: loss {:?}", training.run(&[input])?);
    let mut arrays = Arrays::default();
    arrays.add("images", &[count, size, size, 3], &images);
    arrays.add_labels("labels", &[count], labels.into_iter());
    arrays.add_labels("support", &[1], std::iter::once(options.support as u32));
    arrays.add("features", &[count, shape.features()], &training.features()?);
    arrays.add_tensors(&layout, &parameters, &training.gradient()?);
    Ok(arrays)
}

/// Rows around one centre per class; `truth` is the class of each row, [`WAYS`] for none.
fn rows(truth: &[u32], dim: usize, scale: f64, random: &mut impl FnMut() -> f64) -> Vec<f32> {
    let centres: Vec<f64> = (0..(WAYS + 1) * dim).map(|_| random()).collect();
    let value = |row: usize, d: usize, noise: f64| centres[truth[row] as usize * dim + d] + noise;
    (0..truth.len() * dim)
        .map(|i| (scale * (value(i / dim, i % dim, 1.5 * random()) - 0.9).max(0.0)) as f32)
        .collect()
}

/// The true classes of the items of `count` episodes. In every ten items, one belongs to another class than its label
/// says and, with `outliers`, one belongs to none of the classes ([`WAYS`]).
fn truth(count: usize, outliers: bool) -> Vec<u32> {
    let class = |(item, given): (usize, u32)| match item % 10 {
        2 => (given + 1 + item as u32 / 10) % WAYS as u32,
        7 if outliers => WAYS as u32,
        _ => given,
    };
    let items = classes(SHOTS).enumerate().map(class);
    items.cycle().take(count * WAYS * SHOTS).collect()
}

/// Input, parameters and gradient of one step of TraNFS on `count` episodes of features of `dim` numbers.
fn tranfs_arrays(device: &Device, dim: usize, count: usize, draw: u64) -> trueshot_cuda::Result<Arrays> {
    let network = Tranfs::new(Config { dropout: 0.0, ..Config::new(dim) }).expect("a possible configuration");
    let mut random = random(10 + draw);
    let parameters = network.initial(&mut random);
    let (items, queries, truth) = (WAYS * SHOTS, WAYS * QUERIES, truth(count, false));
    let mut features = Vec::new();
    for episode in truth.chunks_exact(items) {
        let truth: Vec<u32> = episode.iter().copied().chain(classes(QUERIES)).collect();
        features.extend(rows(&truth, dim, 2.0 / (dim as f64).sqrt(), &mut random));
    }
    let episode = |number: usize| {
        let first = (number * (items + queries)) as u32;
        let item = |(item, given): (usize, u32)| SupportItem {
            row: first + item as u32,
            given,
            mislabelled: truth[number * items + item] != given,
        };
        let query = |(query, class): (usize, u32)| Query { row: first + (items + query) as u32, class };
        tranfs::EpisodeInput {
            classes: WAYS,
            support: classes(SHOTS).enumerate().map(item).collect(),
            queries: classes(QUERIES).enumerate().map(query).collect(),
        }
    };
    let part = tranfs::PartInput { dropout_seed: 0, episodes: (0..count).map(episode).collect() };
    let limits = Limits { episodes: count, support: items, queries };
    let options = TranfsOptions { optimiser: AdamWConfig::default(), clip: 0.0, limits };
    let mut training =
        TranfsTraining::new(device, &network, options, &parameters, device.upload(&features)?)?;
    let input = tranfs::StepInput { rate: 0.0, parts: vec![part], extra_rows: vec![] };
    println!("tranfs: losses {:?}", training.run(&[input])?);
    let mut arrays = Arrays::default();
    arrays.add("rows", &[count, items + queries, dim], &features);
    let wrong = truth.iter().zip(classes(SHOTS).cycle()).map(|(&truth, given)| u32::from(truth != given));
    arrays.add_labels("mislabelled", &[count, items], wrong);
    arrays.add_tensors(network.layout(), &parameters, &training.gradient()?);
    Ok(arrays)
}

/// Input, parameters and gradient of one step of Relabel on `count` episodes of features of `dim` numbers.
fn relabel_arrays(device: &Device, dim: usize, count: usize, draw: u64) -> trueshot_cuda::Result<Arrays> {
    let network = Relabel::new(trueshot_nn::relabel::Config::default());
    let mut random = random(20 + draw);
    // Like those of a trained head: none of them zero.
    let parameters: Vec<f32> =
        network.initial(&mut random).into_iter().map(|value| value + 0.1 * (random() - 0.5) as f32).collect();
    let (items, truth) = (WAYS * SHOTS, truth(count, true));
    let (mut episodes, mut features) = (Vec::new(), Vec::new());
    for episode in truth.chunks_exact(items) {
        let all: Vec<u32> = episode.iter().copied().chain(classes(QUERIES)).collect();
        let values = rows(&all, dim, 1.0, &mut random);
        features.extend_from_slice(&values);
        episodes.push(relabel::EpisodeInput {
            classes: WAYS,
            given: classes(SHOTS).collect(),
            truth: episode.iter().map(|&class| (class < WAYS as u32).then_some(class)).collect(),
            query_classes: classes(QUERIES).collect(),
            rows: EpisodeRows::Given { dim, values },
        });
    }
    let options = OptimiserOptions::default();
    let mut training = RelabelTraining::new(device, &network, options, &parameters, &[])?;
    let part = relabel::PartInput { episodes, seed: 0 };
    println!("relabel: {:?}", training.run(&[relabel::StepInput { rate: 0.0, parts: vec![part] }])?);
    let mut arrays = Arrays::default();
    arrays.add("rows", &[count, items + WAYS * QUERIES, dim], &features);
    arrays.add_labels("truth", &[count, items], truth.into_iter());
    arrays.add_tensors(network.layout(), &parameters, &training.gradient()?);
    Ok(arrays)
}

#[cfg(feature = "emulator")]
fn device() -> trueshot_cuda::Result<Device> {
    Ok(Device::emulated(false))
}

#[cfg(not(feature = "emulator"))]
fn device() -> trueshot_cuda::Result<Device> {
    Device::open(0)
}

fn main() -> Outcome {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (folder, is_small) = match &arguments[..] {
        [folder] => (Path::new(folder), false),
        [folder, option] if option == "--small" => (Path::new(folder), true),
        _ => return Err("usage: accuracy FOLDER [--small]".into()),
    };
    let device = device()?;
    println!("{}", device.name());
    for draw in 1..=DRAWS {
        let folder = &folder.join(draw.to_string());
        std::fs::create_dir_all(folder)?;
        let (size, shots, queries) = if is_small { (48, 2, 1) } else { (84, SHOTS, QUERIES) };
        conv4_arrays(&device, size, shots, queries, draw)?.write(folder, "conv4")?;
        let (dim, count) = if is_small { (96, 2) } else { (1600, 16) };
        tranfs_arrays(&device, dim, count, draw)?.write(folder, "tranfs")?;
        let (dim, count) = if is_small { (40, 2) } else { (640, 32) };
        relabel_arrays(&device, dim, count, draw)?.write(folder, "relabel")?;
    }
    Ok(())
}
