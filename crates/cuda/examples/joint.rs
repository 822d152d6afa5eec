//! Measures steps that train a Conv4 and a head together on GPU 0: 8 episodes of 5 classes with 5 items and 8 queries
//! each, 520 images.
//!
//!     cargo run --release -p trueshot-cuda --example joint -- relabel 84
//!
//! The arguments are the head (`relabel` or `tranfs`) and the height and width of the images.
//! `bench/peers/torch_joint.py` measures the same with PyTorch.

mod support;

use std::time::Instant;

use trueshot_cuda::Device;
use trueshot_cuda::conv4::{DeviceImages, ImageRequest, STEP_SLOTS, StepImages};
use trueshot_cuda::joint::{HeadTraining, JointEpisode, JointOptions, JointPart, JointStep, JointTraining};
use trueshot_cuda::relabel::{OptimiserOptions, RelabelTraining};
use trueshot_cuda::tranfs::{Limits, TranfsOptions, TranfsTraining};
use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::conv4::{Shape, initial};
use trueshot_nn::head::{Head, JointHead};
use trueshot_nn::relabel::{self, ItemView, Relabel};
use trueshot_nn::tranfs::{self, Tranfs};

use support::{StepTimes, random, time_steps};

/// Episodes per step.
const EPISODES: usize = 8;
/// Classes per episode.
const WAYS: usize = 5;
/// Support items per class.
const SHOTS: usize = 5;
/// Queries per class.
const QUERIES: usize = 8;
/// Images per step.
const IMAGES: usize = EPISODES * WAYS * (SHOTS + QUERIES);
/// Images of the data set on the device.
const STORED: usize = 4000;
/// Steps per figure.
const REPEATS: usize = 200;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let head = arguments.first().map_or("relabel", String::as_str);
    let size: usize = arguments.get(1).map_or(Ok(84), |text| text.parse())?;
    let device = Device::open(0)?;
    println!("{}", device.name());
    let shape = Shape { size, channels: 3 };
    match head {
        "relabel" => {
            let dim = shape.features();
            let config =
                relabel::Config { centred: true, item_view: Some(ItemView::new(dim)), ..Default::default() };
            let network = Relabel::new(config);
            let parameters = network.initial(&mut random(2));
            let mean = network.feature_mean();
            measure(head, &device, shape, mean, || {
                RelabelTraining::joint(
                    &device,
                    &network,
                    OptimiserOptions::default(),
                    &parameters,
                    IMAGES,
                    dim,
                )
            })
        }
        "tranfs" => {
            let network = Tranfs::new(tranfs::Config::new(shape.features()))?;
            let parameters = network.initial(&mut random(2));
            let limits = Limits { episodes: EPISODES, support: WAYS * SHOTS, queries: WAYS * QUERIES };
            measure(head, &device, shape, network.feature_mean(), || {
                let options = TranfsOptions { optimiser: AdamWConfig::default(), clip: 0.0, limits };
                TranfsTraining::joint(&device, &network, options, &parameters, IMAGES)
            })
        }
        unknown => Err(format!("'{unknown}' is not a head: relabel or tranfs").into()),
    }
}

/// The labels of `each` items per class, sorted by class.
fn labels(each: usize) -> Vec<u32> {
    (0..WAYS * each).map(|item| (item / each) as u32).collect()
}

/// A step in which every fourth item truly belongs to a random class, or to none (an outlier).
fn step(images: StepImages, random: &mut impl FnMut() -> f64) -> JointStep {
    let mut truth = |item: usize, given: u32| match item % 4 {
        3 => Some((random() * (WAYS + 1) as f64) as u32).filter(|&class| class < WAYS as u32),
        _ => Some(given),
    };
    let mut episode = || JointEpisode {
        classes: WAYS,
        given: labels(SHOTS),
        truth: labels(SHOTS).iter().enumerate().map(|(item, &given)| truth(item, given)).collect(),
        query_classes: labels(QUERIES),
    };
    let episodes = (0..EPISODES).map(|_| episode()).collect();
    JointStep { rate: 5e-4, keep: 0.999, parts: vec![JointPart { dropout_seed: 1, episodes }], images }
}

/// The images of step number `step`, cropped, flipped and changed in colour. Two steps have different images.
fn requests(size: usize, step: u32) -> StepImages {
    let request = |i: u32| ImageRequest {
        image: (i * 31 + step * 7) % STORED as u32,
        crop: [1, 2, size as u16 - 5, size as u16 - 4],
        flip: i % 2,
        // Brightness, contrast, saturation and hue, in this order.
        jitters: 0b11_10_01_00,
        values: [1.05, 0.95, 1.08, 0.3],
    };
    StepImages::Requests((0..IMAGES as u32).map(request).collect())
}

/// Prints the time of a step on prepared images, the times of its kernels, and the time of a step with augmentation on
/// the GPU. `head` makes a head that is not trained yet.
fn measure<H: HeadTraining>(
    name: &str,
    device: &Device,
    shape: Shape,
    feature_mean: Option<std::ops::Range<usize>>,
    head: impl Fn() -> trueshot_cuda::Result<H>,
) -> Result<(), Failure> {
    let mut random = random(4);
    let backbone = initial(shape.channels, &mut random);
    let options = JointOptions {
        shape,
        images: IMAGES,
        episodes: EPISODES,
        classes: WAYS,
        prototype_weight: 0.5,
        optimiser: AdamWConfig::default(),
        clip: 0.0,
        feature_mean,
        subtracts_mean: false,
    };
    let images: Vec<f32> = (0..IMAGES * shape.pixels()).map(|_| (3.4 * (random() - 0.5)) as f32).collect();
    let prepared = step(StepImages::Prepared(images), &mut random);
    let mut training = JointTraining::new(device, options.clone(), &backbone, head()?, None)?;
    // Fills all slots, because the steps that are timed have no other input.
    for _ in 0..STEP_SLOTS {
        training.run(std::slice::from_ref(&prepared))?;
    }
    let times = time_steps(REPEATS, || training.launch_step(), || training.synchronise())?;
    let StepTimes { median, least, pipelined } = times;
    println!(
        "{{\"name\":\"joint{IMAGES} {name}\",\"ms\":{median:.4},\"min_ms\":{least:.4},\"pipelined_ms\":{pipelined:.4}}}"
    );
    for (kernel, microseconds) in training.kernel_times(&prepared)? {
        println!("{kernel}: {microseconds:.1} us");
    }

    // Steps whose images are selected from a data set on the device and augmented there.
    let pixels: Vec<u8> = (0..STORED * shape.pixels()).map(|_| (random() * 256.0) as u8).collect();
    let steps: Vec<JointStep> =
        (0..STEP_SLOTS as u32).map(|number| step(requests(shape.size, number), &mut random)).collect();
    let run = || -> trueshot_cuda::Result<(f64, Vec<f32>)> {
        let images = pixels.chunks_exact(shape.pixels()).map(|image| (image, shape.size, shape.size));
        let data = DeviceImages::upload(device, images, [[4.4, -2.1]; 3])?;
        let mut training = JointTraining::new(device, options.clone(), &backbone, head()?, Some(data))?;
        training.run(&steps)?;
        let start = Instant::now();
        let mut losses = Vec::new();
        for _ in 0..3 {
            losses = training.run(&steps)?;
        }
        println!("last losses {:?}", losses.last());
        let time = start.elapsed().as_secs_f64() * 1e3 / (3 * STEP_SLOTS) as f64;
        Ok((time, training.average()?))
    };
    let ((time, first), (_, second)) = (run()?, run()?);
    println!("{{\"name\":\"joint{IMAGES} {name} with augmentation\",\"pipelined_ms\":{time:.4}}}");
    let is_same = first.iter().zip(&second).all(|(a, b)| a.to_bits() == b.to_bits());
    println!("two runs have the same bits: {is_same}");
    Ok(())
}
