//! Steps against the CPU's learner: on an emulated device, or with the feature `gpu-tests` on GPU 0.

use trueshot_nn::conv4::Shape;
use trueshot_nn::maml::{LabelledImages, MamlLearner, initial};

use super::*;
use crate::conv4::{ImageRequest, StepImages};
use crate::testing::{device, random, relative_error};

const SUPPORT: usize = 4;
const QUERIES: usize = 6;
const IMAGES: usize = SUPPORT + QUERIES;

struct Example {
    options: MamlOptions,
    parameters: Vec<f32>,
    /// `[task][image][row][column][channel]`
    images: Vec<f32>,
    /// `[task][image]`
    labels: Vec<u32>,
}

impl Example {
    fn new(size: usize, channels: usize, tasks: usize, order: GradientOrder) -> Self {
        let size = ModelSize { shape: Shape { size, channels }, ways: 2 };
        let mut random = random(11);
        let mut parameters = initial(size, &mut random);
        // Values as in the middle of training, with one negative gamma.
        for tensor in layout(size).tensors() {
            let values = &mut parameters[tensor.range.clone()];
            if tensor.name.ends_with("norm.weight") {
                values.fill_with(|| 0.5 * (0.5 + random()) as f32);
                values[3] *= -1.0;
            } else if tensor.name.ends_with("norm.bias") {
                // Most ReLUs are active, so few of them depend on the rounding of f16.
                values.fill_with(|| (0.8 + random()) as f32);
            } else if tensor.name == "classifier.bias" {
                values.fill_with(|| (random() - 0.5) as f32 * 0.4);
            }
        }
        // One support label is wrong.
        let labels: Vec<u32> = [0, 1, 1, 0, 0, 1, 0, 1, 0, 1].repeat(tasks);
        let pixels = size.shape.pixels();
        let images = (0..tasks * IMAGES * pixels)
            .map(|i| {
                (2.0 * random() - 1.0) as f32
                    + 0.1 * (labels[i / pixels] as f32 + (i / pixels / IMAGES) as f32)
            })
            .collect();
        let options = MamlOptions {
            size,
            support: SUPPORT,
            queries: QUERIES,
            tasks,
            adaptation: Adaptation { rate: 0.02, steps: 2 },
            order,
            optimiser: AdamWConfig::default(),
            clip: 0.0,
        };
        Example { options, parameters, images, labels }
    }

    fn training(&self) -> MamlTraining {
        MamlTraining::new(&device(), self.options.clone(), &self.parameters, None).unwrap()
    }

    fn input(&self) -> StepInput {
        let (labels, images) = (self.labels.clone(), StepImages::Prepared(self.images.clone()));
        StepInput { rate: 1e-3, labels, images }
    }

    /// Support set and queries of a task.
    fn task(&self, task: usize) -> [LabelledImages<'_>; 2] {
        let pixels = self.options.size.shape.pixels();
        let images = &self.images[task * IMAGES * pixels..(task + 1) * IMAGES * pixels];
        let labels = &self.labels[task * IMAGES..(task + 1) * IMAGES];
        let (support, queries) = images.split_at(SUPPORT * pixels);
        let (given, classes) = labels.split_at(SUPPORT);
        [(support, given), (queries, classes)].map(|(images, classes)| LabelledImages { images, classes })
    }

    /// The mean loss and the sum of the gradients of all tasks on the CPU.
    fn cpu_gradient(&self) -> (f64, Vec<f32>) {
        let mut learner = MamlLearner::new(self.options.size);
        let mut gradient = vec![0.0; self.parameters.len()];
        let losses = (0..self.options.tasks).map(|task| {
            let [support, queries] = self.task(task);
            let MamlOptions { adaptation, order, .. } = self.options;
            learner.meta_gradient(&self.parameters, support, queries, adaptation, order, &mut gradient)
        });
        let loss = losses.sum::<f64>() / self.options.tasks as f64;
        (loss, gradient)
    }

    /// Parameters in the order of the CPU, from those of a task.
    fn in_cpu_order(&self, task: &[f32]) -> Vec<f32> {
        let size = self.options.size;
        let start = memory::conv4_len(size);
        let pixels = size.shape.features() / 64;
        let mut out = task.to_vec();
        for feature in 0..size.shape.features() {
            let (pixel, channel) = (feature / 64, feature % 64);
            let (from, to) = (feature * size.ways, (channel * pixels + pixel) * size.ways);
            out[start + to..][..size.ways].copy_from_slice(&task[start + from..][..size.ways]);
        }
        out
    }
}

/// Compares tensor by tensor. In networks this small, a single maximum of the pooling that differs because of the
/// rounding of f16 changes the gradients of earlier layers a lot.
fn compare(name: &str, example: &Example, found: &[f32], expected: &[f32]) {
    for tensor in layout(example.options.size).tensors() {
        let (found, expected) = (&found[tensor.range.clone()], &expected[tensor.range.clone()]);
        if tensor.name.ends_with("conv.bias") || tensor.name.contains("running") {
            assert!(found.iter().all(|value| *value == 0.0), "{name}: {}", tensor.name);
            continue;
        }
        let error = relative_error(found, expected);
        println!("{name}: {} {error:.5}", tensor.name);
        let is_last = tensor.name.starts_with("classifier") || tensor.name.starts_with("block4.norm");
        let tolerance = if is_last { 0.03 } else { 0.3 };
        assert!(error < tolerance, "{name}: {} differs by {error}", tensor.name);
    }
}

#[test]
fn adapted_parameters_are_those_of_the_cpu_for_every_task() {
    for (size, channels) in [(16, 3), (21, 1)] {
        let example = Example::new(size, channels, 2, GradientOrder::First);
        let mut training = example.training();
        training.run(&[example.input()]).unwrap();
        for task in 0..2 {
            let weights = training.kernels.memory.queries.weights.parameters;
            let own = training.kernels.memory.read(task, weights, example.parameters.len()).unwrap();
            let own = example.in_cpu_order(&own);
            let mut learner = MamlLearner::new(example.options.size);
            let [support, _] = example.task(task);
            let adapted = learner.adapt(&example.parameters, support, example.options.adaptation);
            let change = |adapted: &[f32]| -> Vec<f32> {
                let changes = adapted.iter().zip(&example.parameters).zip(is_adapted(&example));
                changes.map(|((a, b), trained)| if trained { a - b } else { 0.0 }).collect()
            };
            compare(&format!("{size} task {task}"), &example, &change(&own), &change(&adapted));
        }
    }
}

/// For every parameter, whether it is adapted.
fn is_adapted(example: &Example) -> Vec<bool> {
    let mut mask = vec![true; example.parameters.len()];
    for tensor in layout(example.options.size).tensors() {
        if tensor.name.ends_with("conv.bias") || tensor.name.contains("running") {
            mask[tensor.range.clone()].fill(false);
        }
    }
    mask
}

#[test]
fn the_first_order_gradient_is_that_of_the_cpu_also_in_groups_of_tasks() {
    for (size, channels, tasks) in [(16, 3, 1), (21, 1, 3)] {
        let example = Example::new(size, channels, tasks, GradientOrder::First);
        let (options, parameters) = (example.options.clone(), &example.parameters);
        let mut training = MamlTraining::with_tasks_at_once(&device(), options, parameters, None, 2).unwrap();
        assert_eq!(training.kernels.groups(&training.runner).count(), tasks.div_ceil(2));
        let losses = training.run(&[example.input()]).unwrap();
        let (loss, expected) = example.cpu_gradient();
        println!("loss {} CPU {loss}", losses[0]);
        assert!((f64::from(losses[0]) - loss).abs() < 0.03 * loss, "{} {loss}", losses[0]);
        compare(&format!("{size}"), &example, &training.gradient().unwrap(), &expected);
    }
}

#[test]
fn the_update_is_that_of_adamw_with_the_clipped_mean_gradient_and_repeats_to_the_bit() {
    let mut example = Example::new(16, 1, 2, GradientOrder::Second);
    example.options.adaptation.steps = 1;
    example.options.optimiser.weight_decay = 0.3;
    example.options.clip = 0.01;
    let run = || {
        let mut training = example.training();
        training.run(&[example.input()]).unwrap();
        (training.gradient().unwrap(), training.state().unwrap())
    };
    let (gradient, state) = run();
    assert_eq!((gradient.clone(), state.clone()), run());
    assert_eq!((state.updates, state.good_steps), (1, 1));
    let norm = gradient.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt() / 2.0;
    assert!(norm > 0.01, "the gradient is clipped: {norm}");
    let layout = layout(example.options.size);
    let mut adamw = trueshot_nn::adamw::AdamW::new(&layout, example.options.optimiser);
    let mut expected = example.parameters.clone();
    adamw.step(f64::from(example.input().rate), 0.5 * 0.01 / norm, &mut expected, &mut [gradient]);
    for tensor in layout.tensors() {
        let error = relative_error(&state.parameters[tensor.range.clone()], &expected[tensor.range.clone()]);
        assert!(error < 1e-5, "{}: {error}", tensor.name);
        let is_constant = tensor.name.contains("running");
        let change =
            relative_error(&expected[tensor.range.clone()], &example.parameters[tensor.range.clone()]);
        assert!(is_constant || tensor.name.ends_with("conv.bias") || change > 1e-5, "{}", tensor.name);
    }
}

#[test]
fn an_overflow_halves_the_scale_and_repeats_the_step() {
    let mut example = Example::new(16, 1, 1, GradientOrder::Second);
    example.options.adaptation.steps = 1;
    let mut training = example.training();
    let large = Conv4State { scale: 1e7, ..training.state().unwrap() };
    training.load(&large).unwrap();
    let losses = training.run(&[example.input()]).unwrap();
    let after = training.state().unwrap();
    assert!(losses.len() == 1 && losses[0].is_finite());
    assert!(after.scale < large.scale && after.updates == 1, "{} {}", after.scale, after.updates);
    // Features that overflow cannot be repaired by a smaller scale. Few scales are left to try.
    let mut broken = Conv4State { scale: 4.0 * crate::conv4::SMALLEST_SCALE, ..after };
    let layout = layout(example.options.size);
    let is_gamma = |tensor: &&trueshot_nn::parameters::Tensor| tensor.name == "block4.norm.weight";
    let gamma = layout.tensors().iter().find(is_gamma).unwrap().range.clone();
    broken.parameters[gamma].fill(1e6);
    training.load(&broken).unwrap();
    assert!(training.run(&[example.input()]).unwrap()[0].is_nan());
    assert_eq!(training.state().unwrap().parameters, broken.parameters, "no update");
}

/// The gradient of the last step, and the loss.
fn gradient(example: &Example) -> (f32, Vec<f32>) {
    let mut training = example.training();
    let losses = training.run(&[example.input()]).unwrap();
    (losses[0], training.gradient().unwrap())
}

#[test]
fn the_second_order_gradient_is_that_of_the_cpu() {
    for (size, channels, tasks) in [(16, 3, 2), (21, 1, 1)] {
        let mut example = Example::new(size, channels, tasks, GradientOrder::Second);
        let (_, expected) = example.cpu_gradient();
        let (_, found) = gradient(&example);
        compare(&format!("{size}"), &example, &found, &expected);
        // What the second derivatives add.
        example.options.order = GradientOrder::First;
        let (_, expected_first) = example.cpu_gradient();
        let (_, found_first) = gradient(&example);
        let difference = |a: &[f32], b: &[f32]| -> Vec<f32> { a.iter().zip(b).map(|(a, b)| a - b).collect() };
        let (own, cpu) = (difference(&found, &found_first), difference(&expected, &expected_first));
        println!("{size}: the second derivatives add {:.4}", relative_error(&expected, &expected_first));
        compare(&format!("{size} second derivatives"), &example, &own, &cpu);
    }
}

#[test]
fn logits_after_adaptation_are_those_of_the_cpu_and_do_not_depend_on_the_group() {
    let example = Example::new(16, 1, 1, GradientOrder::First);
    let MamlOptions { size, support, queries, adaptation, .. } = example.options;
    let shape = size.shape;
    let mut random = random(3);
    let pixels: Vec<Vec<u8>> =
        (0..IMAGES + 2).map(|_| (0..shape.pixels()).map(|_| (256.0 * random()) as u8).collect()).collect();
    let device = device();
    let sources = pixels.iter().map(|pixels| (&pixels[..], shape.size, shape.size));
    let images = DeviceImages::upload(&device, sources, [[4.0, -2.0]; 3]).unwrap();
    let options = EvaluationOptions { size, support, queries, tasks: 2, adaptation };
    let mut evaluation = MamlEvaluation::new(&device, options, images).unwrap();
    let task = |first: usize| MamlTask {
        given: vec![0, 1, 0, 1],
        images: (first..first + IMAGES).map(|image| request(image as u32, shape)).collect(),
    };
    // More than run at once, so the last group is not full.
    let tasks: Vec<MamlTask> = (0..3).map(|number| task(number % 2)).collect();
    let logits: Vec<Vec<f32>> =
        evaluation.logits(&example.parameters, &tasks).unwrap().into_iter().map(Option::unwrap).collect();
    assert_eq!(logits.len(), tasks.len());
    let mut learner = MamlLearner::new(size);
    for (number, own) in logits.iter().enumerate() {
        assert_eq!(own, &logits[number % 2], "task {number}");
    }
    let values: Vec<f32> =
        pixels[1..1 + IMAGES].concat().iter().map(|&byte| f32::from(byte) / 255.0 * 4.0 - 2.0).collect();
    let (images, query_images) = values.split_at(SUPPORT * shape.pixels());
    let support = LabelledImages { images, classes: &[0, 1, 0, 1] };
    let adapted = learner.adapt(&example.parameters, support, adaptation);
    let expected = learner.logits(&adapted, query_images);
    let error = relative_error(&logits[1], &expected);
    println!("logits differ by {error}");
    assert!(error < 0.02, "{error}");
    // Filters beyond the range of 16-bit floats, which the normalisation of 32-bit activations would hide.
    let large: Vec<f32> = example.parameters.iter().map(|value| 1e7 * value).collect();
    assert_eq!(evaluation.logits(&large, &tasks[..1]).unwrap(), [None]);
    // The same task alone, after an overflow.
    let alone = evaluation.logits(&example.parameters, &tasks[1..2]).unwrap();
    assert_eq!(alone[0].as_ref(), Some(&logits[1]));
}

/// An image as it is: the values of the jitters (brightness, contrast, saturation, hue) change nothing.
fn request(image: u32, shape: Shape) -> ImageRequest {
    let size = shape.size as u16;
    let (jitters, values) = (0b11_10_01_00, [1.0, 1.0, 1.0, 0.0]);
    ImageRequest { image, crop: [0, 0, size, size], flip: 0, jitters, values }
}
