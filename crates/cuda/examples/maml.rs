//! Measures meta-steps of MAML on GPU 0: 4 tasks of 5-way 5-shot with 15 queries per class and 5 inner steps. Then
//! measures the evaluation of such tasks with 10 steps.
//!
//!     cargo run --release -p trueshot-cuda --example maml -- 84
//!
//! The argument is the height and width of the images. A meta-step adapts the network to the support set of each task
//! by gradient descent (the inner steps), and updates the initial parameters by the gradient of the queries' loss. It
//! is measured without and with second derivatives, and its gradient is compared with that of the CPU.

mod support;

use std::time::Instant;

use trueshot_cuda::Device;
use trueshot_cuda::conv4::{DeviceImages, ImageRequest, STEP_SLOTS, StepImages, StepInput};
use trueshot_cuda::maml::{EvaluationOptions, MamlEvaluation, MamlOptions, MamlTask, MamlTraining};
use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::conv4::Shape;
use trueshot_nn::maml::{Adaptation, GradientOrder, LabelledImages, MamlLearner, ModelSize, initial};

use support::random;

/// Classes per task.
const WAYS: usize = 5;
/// Support items per class.
const SHOTS: usize = 5;
/// Queries per class.
const QUERIES: usize = 15;
/// Images per task.
const IMAGES: usize = WAYS * (SHOTS + QUERIES);
/// Tasks per meta-step.
const TASKS: usize = 4;
/// Calls of [`STEP_SLOTS`] steps that each figure is the mean of.
const CALLS: usize = 3;

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    let size: usize = std::env::args().nth(1).map_or(Ok(84), |text| text.parse())?;
    let device = Device::open(0)?;
    println!("{}", device.name());
    let model = ModelSize { shape: Shape { size, channels: 3 }, ways: WAYS };
    for order in [GradientOrder::First, GradientOrder::Second] {
        let options = MamlOptions {
            size: model,
            support: WAYS * SHOTS,
            queries: WAYS * QUERIES,
            tasks: TASKS,
            adaptation: Adaptation { rate: 0.01, steps: 5 },
            order,
            optimiser: AdamWConfig::default(),
            clip: 0.0,
        };
        compare_with_cpu(&device, &options)?;
        measure(&device, &options)?;
    }
    measure_evaluation(&device, model)
}

/// Tasks that are evaluated in one call, as in an evaluation of the library.
const EVALUATED_TASKS: usize = 256;

/// Prints the time per task of adapting a network and classifying the queries, without training.
fn measure_evaluation(device: &Device, model: ModelSize) -> Result<(), Failure> {
    let (mut random, size, count) = (random(5), model.shape.size, 2000);
    let pixels: Vec<Vec<u8>> =
        (0..count).map(|_| (0..model.shape.pixels()).map(|_| (random() * 256.0) as u8).collect()).collect();
    let sources = pixels.iter().map(|pixels| (&pixels[..], size, size));
    let images = DeviceImages::upload(device, sources, [[4.4, -2.1]; 3])?;
    let options = EvaluationOptions {
        size: model,
        support: WAYS * SHOTS,
        queries: WAYS * QUERIES,
        tasks: EVALUATED_TASKS,
        adaptation: Adaptation { rate: 0.01, steps: 10 },
    };
    let mut evaluation = MamlEvaluation::new(device, options, images)?;
    let request = |i: usize| ImageRequest {
        image: (i * 31 % count) as u32,
        crop: [0, 0, size as u16, size as u16],
        flip: 0,
        // Brightness, contrast, saturation and hue, in this order.
        jitters: 0b11_10_01_00,
        values: [1.0, 1.0, 1.0, 0.0],
    };
    let task = |number: usize| MamlTask {
        given: (0..WAYS * SHOTS).map(|i| (i / SHOTS) as u32).collect(),
        images: (number * IMAGES..(number + 1) * IMAGES).map(request).collect(),
    };
    let tasks: Vec<MamlTask> = (0..EVALUATED_TASKS).map(task).collect();
    let parameters = initial(model, &mut random);
    let first = evaluation.logits(&parameters, &tasks)?;
    let start = Instant::now();
    let second = evaluation.logits(&parameters, &tasks)?;
    let time = start.elapsed().as_secs_f64() * 1e3 / EVALUATED_TASKS as f64;
    println!("{{\"name\":\"maml{size} evaluation, per task\",\"ms\":{time:.4}}}");
    let missing = first.iter().filter(|logits| logits.is_none()).count();
    println!("  two runs have the same logits: {}; overflows: {missing}", first == second);
    Ok(())
}

/// The labels of all tasks of a step: of each task those of its support items, then those of its queries.
fn labels() -> Vec<u32> {
    let of_task = (0..WAYS * SHOTS).map(|i| i / SHOTS).chain((0..WAYS * QUERIES).map(|i| i / QUERIES));
    of_task.map(|class| class as u32).collect::<Vec<u32>>().repeat(TASKS)
}

/// Prints how much the gradient differs from that of the CPU.
fn compare_with_cpu(device: &Device, options: &MamlOptions) -> Result<(), Failure> {
    let (mut random, labels, shape) = (random(3), labels(), options.size.shape);
    let pixels = shape.pixels();
    let images: Vec<f32> = (0..TASKS * IMAGES * pixels)
        .map(|i| (3.4 * (random() - 0.5)) as f32 + 0.05 * labels[i / pixels] as f32)
        .collect();
    let parameters = initial(options.size, &mut random);
    let mut training = MamlTraining::new(device, options.clone(), &parameters, None)?;
    let input = StepInput { rate: 0.0, labels: labels.clone(), images: StepImages::Prepared(images.clone()) };
    let losses = training.run(&[input])?;
    let found = training.gradient()?;
    let mut expected = vec![0.0; parameters.len()];
    let mut learner = MamlLearner::new(options.size);
    let mut loss = 0.0;
    for task in 0..TASKS {
        let images = &images[task * IMAGES * pixels..(task + 1) * IMAGES * pixels];
        let labels = &labels[task * IMAGES..(task + 1) * IMAGES];
        let set = |range: std::ops::Range<usize>| LabelledImages {
            images: &images[range.start * pixels..range.end * pixels],
            classes: &labels[range],
        };
        let (support, queries) = (set(0..options.support), set(options.support..IMAGES));
        let MamlOptions { adaptation, order, .. } = *options;
        loss += learner.meta_gradient(&parameters, support, queries, adaptation, order, &mut expected);
    }
    let norm =
        |values: &mut dyn Iterator<Item = f32>| values.map(|v| f64::from(v).powi(2)).sum::<f64>().sqrt();
    let difference = norm(&mut found.iter().zip(&expected).map(|(a, b)| a - b));
    println!(
        "{:?}: loss {:.5}, CPU {:.5}; gradient of norm {:.4}, relative error {:.2e}; loss scale {}",
        options.order,
        losses[0],
        loss / TASKS as f64,
        norm(&mut expected.iter().copied()),
        difference / norm(&mut expected.iter().copied()),
        training.state()?.scale
    );
    Ok(())
}

/// Prints the time of a meta-step, the time of its kernels, and whether two runs have the same bits.
fn measure(device: &Device, options: &MamlOptions) -> Result<(), Failure> {
    let (mut random, size) = (random(7), options.size.shape.size);
    let count = 2000;
    let pixels: Vec<Vec<u8>> = (0..count)
        .map(|_| (0..options.size.shape.pixels()).map(|_| (random() * 256.0) as u8).collect())
        .collect();
    let parameters = initial(options.size, &mut random);
    let steps: Vec<StepInput> = (0..STEP_SLOTS as u32).map(|step| step_input(step, count, size)).collect();
    let new = || -> Result<MamlTraining, Failure> {
        let sources = pixels.iter().map(|pixels| (&pixels[..], size, size));
        let images = DeviceImages::upload(device, sources, [[4.4, -2.1]; 3])?;
        Ok(MamlTraining::new(device, options.clone(), &parameters, Some(images))?)
    };
    let run = || -> Result<(f64, Vec<f32>), Failure> {
        let mut training = new()?;
        let mut losses = training.run(&steps)?;
        let start = Instant::now();
        for _ in 0..CALLS {
            losses = training.run(&steps)?;
        }
        let time = start.elapsed().as_secs_f64() * 1e3 / (CALLS * STEP_SLOTS) as f64;
        println!("  last loss {:?}, loss scale {}", losses.last(), training.state()?.scale);
        Ok((time, training.parameters()?))
    };
    let ((time, first), (_, second)) = (run()?, run()?);
    println!("{{\"name\":\"maml{size} {:?}\",\"ms\":{time:.4}}}", options.order);
    let same = first.iter().zip(&second).all(|(a, b)| a.to_bits() == b.to_bits());
    println!("  two runs have the same bits: {same}");
    let mut training = new()?;
    training.run(&steps[..1])?;
    // Total time and number of launches of each kernel.
    let mut times: Vec<(&'static str, f64, usize)> = Vec::new();
    for (name, time) in training.kernel_times()? {
        match times.iter_mut().find(|(known, ..)| *known == name) {
            Some((_, total, count)) => (*total, *count) = (*total + time, *count + 1),
            None => times.push((name, time, 1)),
        }
    }
    times.sort_by(|a, b| b.1.total_cmp(&a.1));
    println!("  kernels: {:.3} ms", times.iter().map(|(_, time, _)| time).sum::<f64>() / 1e3);
    for (name, time, count) in times {
        println!("  {name:40} {count:4} x {:8.2} us = {:8.1} us", time / count as f64, time);
    }
    Ok(())
}

/// The images and labels of a step: changed images of the data set.
fn step_input(step: u32, count: usize, size: usize) -> StepInput {
    let request = |i: u32| ImageRequest {
        image: (i * 31 + step * 7) % count as u32,
        crop: [1, 2, size as u16 - 5, size as u16 - 4],
        flip: i % 2,
        // Brightness, contrast, saturation and hue, in this order.
        jitters: 0b11_10_01_00,
        values: [1.05, 0.95, 1.08, 0.3],
    };
    let requests = (0..(TASKS * IMAGES) as u32).map(request).collect();
    StepInput { rate: 1e-3, labels: labels(), images: StepImages::Requests(requests) }
}
