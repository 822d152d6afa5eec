//! Steps against the CPU's learner: on an emulated device, or with the feature `gpu-tests` on GPU 0.

use trueshot_nn::conv4::Shape;
use trueshot_nn::maml::{LabelledImages, MamlLearner, initial};

use super::*;
use crate::conv4::StepImages;
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

/// Compares tensor by tensor. In networks this small, single maxima that differ because of the rounding of f16 change the
/// gradients of earlier layers by much.
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
            let weights = training.memory.queries.weights.parameters;
            let own = training.memory.read(task, weights, example.parameters.len()).unwrap();
            let own = example.in_cpu_order(&own);
            let mut learner = MamlLearner::new(example.options.size);
            let [support, _] = example.task(task);
            let adapted = learner.adapt(&example.parameters, support, example.options.adaptation);
            let change = |adapted: &[f32]| -> Vec<f32> {
                let changes = adapted.iter().zip(&example.parameters).zip(layout_mask(&example));
                changes.map(|((a, b), trained)| if trained { a - b } else { 0.0 }).collect()
            };
            compare(&format!("{size} task {task}"), &example, &change(&own), &change(&adapted));
        }
    }
}

/// Which parameters are adapted.
fn layout_mask(example: &Example) -> Vec<bool> {
    let mut mask = vec![true; example.parameters.len()];
    for tensor in layout(example.options.size).tensors() {
        if tensor.name.ends_with("conv.bias") || tensor.name.contains("running") {
            mask[tensor.range.clone()].fill(false);
        }
    }
    mask
}

#[test]
fn the_first_order_gradient_is_that_of_the_cpu() {
    for (size, channels, tasks) in [(16, 3, 1), (21, 1, 3)] {
        let example = Example::new(size, channels, tasks, GradientOrder::First);
        let mut training = example.training();
        let losses = training.run(&[example.input()]).unwrap();
        let (loss, expected) = example.cpu_gradient();
        println!("loss {} CPU {loss}", losses[0]);
        assert!((f64::from(losses[0]) - loss).abs() < 0.03 * loss, "{} {loss}", losses[0]);
        compare(&format!("{size}"), &example, &training.gradient().unwrap(), &expected);
    }
}

/// The gradient of the last step, and the loss.
fn gradient(example: &Example) -> (f32, Vec<f32>) {
    let mut training = example.training();
    let losses = training.run(&[example.input()]).unwrap();
    (losses[0], training.gradient().unwrap())
}

#[test]
fn the_second_order_gradient_is_that_of_the_cpu() {
    for (size, channels, tasks) in [(16, 3, 1), (21, 1, 3)] {
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
