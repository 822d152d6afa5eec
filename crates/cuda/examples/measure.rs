//! Measures training steps of Conv4 with the loss of nearest prototypes on GPU 0, and compares one step with the CPU.
//!
//!     cargo run --release -p trueshot-cuda --example measure -- 84
//!
//! The argument is the height and width of the images. A step is an episode of 5 classes with 5 support items and 15
//! queries each. It prints figures as lines of JSON: `ms` is the median time of a single step, `min_ms` the least, and
//! `pipelined_ms` the mean time of steps that are started without waiting for the previous one.

mod support;

use std::time::Instant;

use trueshot_cuda::Device;
use trueshot_cuda::conv4::{
    Conv4Embedding, Conv4Options, Conv4Training, DeviceImages, ImageRequest, Prototypes, StepImages,
    StepInput,
};
use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::conv4::{Shape, TrainingPass, initial};

use support::{StepTimes, random, time_steps};

/// Classes per episode.
const WAYS: usize = 5;
/// Support items per class.
const SHOTS: usize = 5;
/// Queries per class.
const QUERIES: usize = 15;
/// Scale and shift of pixels in [0, 1] per channel; about those of ImageNet.
const NORMALISATION: [[f32; 2]; 3] = [[4.4, -2.1]; 3];
/// Steps, or batches that are embedded, per figure.
const REPEATS: usize = 400;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let size: usize = std::env::args().nth(1).map_or(Ok(84), |text| text.parse())?;
    let start = Instant::now();
    let device = Device::open(0)?;
    println!("{} opened in {:.0} ms", device.name(), start.elapsed().as_secs_f64() * 1e3);
    let shape = Shape { size, channels: 3 };
    let options = Conv4Options {
        shape,
        classes: WAYS,
        support: WAYS * SHOTS,
        queries: WAYS * QUERIES,
        prototypes: Prototypes::Mean,
        optimiser: AdamWConfig::default(),
        clip: 0.0,
    };
    let labels: Vec<u32> = (0..WAYS * SHOTS)
        .map(|i| i / SHOTS)
        .chain((0..WAYS * QUERIES).map(|i| i / QUERIES))
        .map(|class| class as u32)
        .collect();
    // Noise, to which the class is added, so that there is something to learn.
    let mut random = random(3);
    let images: Vec<f32> = (0..options.images() * shape.pixels())
        .map(|i| (3.4 * (random() - 0.5)) as f32 + 0.05 * labels[i / shape.pixels()] as f32)
        .collect();
    let parameters = initial(3, &mut random);
    let mut training = Conv4Training::new(&device, options.clone(), &parameters, None)?;
    // One step on prepared images, whose features are compared with those of the CPU.
    let input =
        StepInput { rate: 1e-3, labels: labels.clone(), images: StepImages::Prepared(images.clone()) };
    let losses = training.run(std::slice::from_ref(&input))?;
    println!("loss {:?} scale {:?}", losses, training.state()?.scale);
    let mut pass = TrainingPass::new(shape, options.images());
    let features = pass.forward(&parameters, &images).to_vec();
    let own = training.features()?;
    // |a - b| / |b|
    let error = |a: &[f32], b: &[f32]| {
        let difference: f64 = a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum();
        (difference / b.iter().map(|&b| f64::from(b).powi(2)).sum::<f64>()).sqrt()
    };
    println!("features: relative error against the CPU {:.2e}", error(&own, &features));
    let times = time_steps(REPEATS, || training.launch_step(), || device.synchronise())?;
    let StepTimes { median, least, pipelined } = times;
    println!(
        "{{\"name\":\"proto{size}\",\"ms\":{median:.4},\"min_ms\":{least:.4},\"pipelined_ms\":{pipelined:.4}}}"
    );

    // Steps whose images are selected from a data set on the device and augmented there, 64 steps per call.
    let count = 2000;
    let pixels: Vec<Vec<u8>> =
        (0..count).map(|_| (0..shape.pixels()).map(|_| (random() * 256.0) as u8).collect()).collect();
    // Returns the last losses, milliseconds per step, and the final parameters. Runs of the same seed must have the
    // same bits.
    let run = |seed: u32| -> Result<(Vec<f32>, f64, Vec<f32>), trueshot_cuda::Error> {
        let images = pixels.iter().map(|p| (&p[..], size, size));
        let data = DeviceImages::upload(&device, images, NORMALISATION)?;
        let mut training = Conv4Training::new(&device, options.clone(), &parameters, Some(data))?;
        let steps: Vec<StepInput> = (0..64u32)
            .map(|step| StepInput {
                rate: 1e-3,
                labels: labels.clone(),
                images: StepImages::Requests(
                    (0..options.images() as u32)
                        .map(|i| ImageRequest {
                            image: (i * 31 + step * 7 + seed) % count as u32,
                            crop: [1, 2, size as u16 - 5, size as u16 - 4],
                            flip: i % 2,
                            // Brightness, contrast, saturation and hue, in this order.
                            jitters: 0b11_10_01_00,
                            values: [1.05, 0.95, 1.08, 0.3],
                        })
                        .collect(),
                ),
            })
            .collect();
        let mut losses = training.run(&steps)?;
        let start = Instant::now();
        for _ in 0..6 {
            losses = training.run(&steps)?;
        }
        Ok((losses, start.elapsed().as_secs_f64() * 1e3 / (6.0 * 64.0), training.parameters()?))
    };
    let (losses, time, first) = run(1)?;
    let (_, _, second) = run(1)?;
    println!(
        "{{\"name\":\"proto{size} with augmentation\",\"pipelined_ms\":{time:.4}}} last loss {:?}",
        losses.last()
    );
    println!(
        "two runs have the same bits: {}",
        first.iter().zip(&second).all(|(a, b)| a.to_bits() == b.to_bits())
    );

    // Embedding of 100 images, back to back.
    let bytes: Vec<u8> = pixels[..100].concat();
    let mut embedding = Conv4Embedding::new(&device, shape, 100, &parameters, NORMALISATION)?;
    embedding.embed(&bytes)?;
    let start = Instant::now();
    for _ in 0..REPEATS {
        embedding.launch()?;
    }
    embedding.synchronise()?;
    let time = start.elapsed().as_secs_f64() * 1e3 / REPEATS as f64;
    println!("{{\"name\":\"embed{size}\",\"pipelined_ms\":{time:.4}}}");
    Ok(())
}
