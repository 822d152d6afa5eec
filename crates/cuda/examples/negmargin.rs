//! Measures training steps of NegMargin (a Conv4 trained to classify images among all classes of a data set) on GPU 0:
//! batches of images with augmentation, and the kernels of a step.
//!
//!     cargo run --release -p trueshot-cuda --example negmargin -- [SIZE] [BATCH] [CLASSES]
//!
//! By default images of 84 px, batches of 128 and 64 classes. All images are on the GPU; 64 steps are passed at a time,
//! as in training.

mod support;

use std::time::Instant;

use trueshot_cuda::Device;
use trueshot_cuda::conv4::{DeviceImages, ImageRequest, STEP_SLOTS, StepImages, StepInput};
use trueshot_cuda::negmargin::{NegMarginOptions, NegMarginTraining};
use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::conv4::{Shape, initial};

use support::random;

/// Images of the data set.
const IMAGES: usize = 2000;
/// Calls of 64 steps that are timed.
const CALLS: usize = 20;

/// 64 steps on random images, changed at random.
fn steps(options: &NegMarginOptions, random: &mut impl FnMut() -> f64) -> Vec<StepInput> {
    let size = options.shape.size as u16;
    let mut request = || ImageRequest {
        image: (random() * IMAGES as f64) as u32,
        crop: [1, 2, size - 5, size - 4],
        flip: u32::from(random() < 0.5),
        // Brightness, contrast, saturation and hue, in this order.
        jitters: 0b11_10_01_00,
        values: [1.05, 0.95, 1.08, 0.3],
    };
    let mut step = || {
        let requests: Vec<ImageRequest> = (0..options.images).map(|_| request()).collect();
        let labels = requests.iter().map(|request| request.image % options.classes as u32).collect();
        StepInput { rate: 1e-3, labels, images: StepImages::Requests(requests) }
    };
    (0..STEP_SLOTS).map(|_| step()).collect()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let numbers = std::env::args().skip(1).map(|text| text.parse::<usize>());
    let numbers = numbers.collect::<Result<Vec<usize>, _>>()?;
    let number = |index: usize, default: usize| numbers.get(index).copied().unwrap_or(default);
    let shape = Shape { size: number(0, 84), channels: 3 };
    let options = NegMarginOptions {
        shape,
        images: number(1, 128),
        classes: number(2, 64),
        scale: 30.0,
        margin: -0.02,
        optimiser: AdamWConfig { weight_decay: 0.0, l2: 1e-4, ..Default::default() },
        clip: 0.0,
    };
    let device = Device::open(0)?;
    let mut random = random(3);
    let mut parameters = initial(shape.channels, &mut random);
    let directions = options.classes * shape.features();
    parameters.extend((0..directions).map(|_| 0.06 * (2.0 * random() - 1.0) as f32));
    // Images whose brightness depends on the class, so that there is something to learn.
    let pixels: Vec<Vec<u8>> = (0..IMAGES)
        .map(|image| {
            let base = 192.0 * (image % options.classes) as f64 / options.classes as f64;
            (0..shape.pixels()).map(|_| (base + 64.0 * random()) as u8).collect()
        })
        .collect();
    let size = shape.size;
    let data = DeviceImages::upload(&device, pixels.iter().map(|p| (&p[..], size, size)), [[4.4, -2.1]; 3])?;
    let mut training = NegMarginTraining::new(&device, &options, &parameters, Some(data))?;
    let steps = steps(&options, &mut random);
    let first = training.run(&steps)?;
    let start = Instant::now();
    let mut last = Vec::new();
    for _ in 0..CALLS {
        last = training.run(&steps)?;
    }
    let ms = start.elapsed().as_secs_f64() * 1e3 / (CALLS * STEP_SLOTS) as f64;
    println!("{}: loss {:?} at first, {:?} at last", device.name(), first.first(), last.last());
    println!(
        "{{\"name\":\"negmargin{size}\",\"batch\":{},\"classes\":{},\"ms\":{ms:.4},\"images_per_s\":{:.0}}}",
        options.images,
        options.classes,
        options.images as f64 / ms * 1e3
    );
    let times = training.kernel_times()?;
    // Kernels of the loss and of the class weights, by the beginning of their names.
    let of_loss = |name: &str| {
        ["class_", "margin_", "cosine_", "update_class"].iter().any(|prefix| name.starts_with(prefix))
    };
    let (total, loss) = times.iter().fold((0.0, 0.0), |(total, loss), (name, time)| {
        (total + time, if of_loss(name) { loss + time } else { loss })
    });
    for (name, time) in &times {
        println!("{name:28} {time:8.1} us");
    }
    println!("all kernels {total:.1} us, those of the loss and the class weights {loss:.1} us");
    Ok(())
}
