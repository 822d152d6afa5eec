//! Measures EfficientNet-Lite0 on GPU 0 with random weights: images per second for several batch sizes, with and
//! without the copies, and the time of every kernel.
//!
//!     cargo run --release -p trueshot-cuda --example efficientnet -- 224
//!
//! The argument is the height and width of the images. It also prints how much an embedding differs from that of the
//! CPU.

mod support;

use std::time::Instant;

use trueshot_cuda::Device;
use trueshot_cuda::efficientnet::EfficientNetEmbedding;
use trueshot_nn::efficientnet::{EfficientNetEmbedder, FEATURES, layout};

use support::random;

/// Images per batch.
const BATCHES: [usize; 4] = [1, 64, 128, 256];
/// Scale and shift of the bytes of each channel; about those of ImageNet.
const NORMALISATION: [[f32; 2]; 3] = [[0.017, -2.1], [0.0175, -2.0], [0.0174, -1.8]];
/// Batches that each figure is the median of.
const REPEATS: usize = 50;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let size: usize = std::env::args().nth(1).map_or(Ok(224), |text| text.parse())?;
    let start = Instant::now();
    let device = Device::open(0)?;
    println!("{} opened in {:.0} ms", device.name(), milliseconds(start));
    let (parameters, pixels) = (parameters(), size * size * 3);
    let largest = BATCHES[BATCHES.len() - 1];
    let mut next = random(3);
    let images: Vec<u8> = (0..largest * pixels).map(|_| (256.0 * next()) as u8).collect();
    let start = Instant::now();
    let mut network = EfficientNetEmbedding::new(&device, size, largest, &parameters, NORMALISATION)?;
    println!("network uploaded in {:.0} ms", milliseconds(start));
    println!("relative error of a row: {:.6}", error(&mut network, size, &parameters, &images[..pixels])?);
    for batch in BATCHES {
        let kernels = median(|| {
            network.launch(batch)?;
            network.synchronise()
        })?;
        let with_copies = median(|| network.embed(&images[..batch * pixels]).map(drop))?;
        let rate = |time: f64| batch as f64 / time * 1e3;
        println!(
            "batch {batch:3}: {kernels:7.3} ms, {:7.0} images/s; with copies {with_copies:7.3} ms, {:7.0} images/s",
            rate(kernels),
            rate(with_copies)
        );
    }
    let times = network.kernel_times(largest)?;
    println!("kernels, batch {largest}: {:.3} ms", times.iter().map(|(_, time)| time).sum::<f64>() / 1e3);
    for (kernel, time) in times {
        println!("{time:8.1} us  {kernel}");
    }
    Ok(())
}

/// The time since `start` in milliseconds.
fn milliseconds(start: Instant) -> f64 {
    start.elapsed().as_secs_f64() * 1e3
}

/// The median time of a batch in milliseconds, after two batches that do not count.
fn median(mut batch: impl FnMut() -> trueshot_cuda::Result<()>) -> trueshot_cuda::Result<f64> {
    let mut times = Vec::new();
    for _ in 0..REPEATS + 2 {
        let start = Instant::now();
        batch()?;
        times.push(milliseconds(start));
    }
    let times = &mut times[2..];
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Weights with which activations neither vanish nor explode.
fn parameters() -> Vec<f32> {
    let mut next = random(5);
    let mut parameters = Vec::new();
    for tensor in layout().tensors() {
        let inputs = tensor.shape[1..].iter().product::<usize>().max(1) as f64;
        // He initialisation for weights, small biases.
        let scale = if tensor.shape.len() == 1 { 0.3 } else { (6.0 / inputs).sqrt() };
        parameters.extend(tensor.range.clone().map(|_| (scale * (2.0 * next() - 1.0)) as f32));
    }
    parameters
}

/// |row - row of the CPU| / |row of the CPU|
fn error(
    network: &mut EfficientNetEmbedding,
    size: usize,
    parameters: &[f32],
    image: &[u8],
) -> trueshot_cuda::Result<f64> {
    let own = network.embed(image)?;
    let normalised: Vec<f32> = image
        .iter()
        .enumerate()
        .map(|(i, &value)| f32::from(value) * NORMALISATION[i % 3][0] + NORMALISATION[i % 3][1])
        .collect();
    let mut expected = vec![0.0; FEATURES];
    EfficientNetEmbedder::new(size, parameters).session().embed(&normalised, &mut expected);
    let difference: f64 = own.iter().zip(&expected).map(|(a, b)| f64::from(a - b).powi(2)).sum();
    Ok((difference / expected.iter().map(|&b| f64::from(b).powi(2)).sum::<f64>()).sqrt())
}
