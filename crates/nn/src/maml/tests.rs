//! Tests against the textbook network in f64 and its central differences.

use super::*;
use crate::conv4::reference;
use crate::gradient_check::TestRng;
use crate::isa::Isa;

/// Mean cross-entropy and its gradient by the textbook, in f64.
fn textbook(size: ModelSize, parameters: &[f64], images: &[f64], classes: &[u32]) -> (f64, Vec<f64>) {
    let (dim, ways) = (size.shape.features(), size.ways);
    let start = conv4::layout(size.shape.channels).len();
    let (weight, bias) = parameters[start..].split_at(dim * ways);
    let pass = reference::forward(size.shape, &parameters[..start], images, true);
    let (mut loss, rows) = (0.0, classes.len() as f64);
    let mut d_features = vec![0.0; pass.features().len()];
    let (mut d_weight, mut d_bias) = (vec![0.0; weight.len()], vec![0.0; ways]);
    for (row, &class) in classes.iter().enumerate() {
        let features = &pass.features()[row * dim..(row + 1) * dim];
        let logit = |c: usize| bias[c] + (0..dim).map(|d| features[d] * weight[d * ways + c]).sum::<f64>();
        let logits: Vec<f64> = (0..ways).map(logit).collect();
        let total: f64 = logits.iter().map(|logit| logit.exp()).sum();
        loss -= (logits[class as usize].exp() / total).ln() / rows;
        for (c, logit) in logits.iter().enumerate() {
            let target = if c == class as usize { 1.0 } else { 0.0 };
            let d_logit = (logit.exp() / total - target) / rows;
            d_bias[c] += d_logit;
            for (d, feature) in features.iter().enumerate() {
                d_weight[d * ways + c] += d_logit * feature;
                d_features[row * dim + d] += d_logit * weight[d * ways + c];
            }
        }
    }
    let mut gradient = pass.backward(size.shape, &parameters[..start], &d_features);
    gradient.extend(d_weight);
    gradient.extend(d_bias);
    (loss, gradient)
}

/// The Hessian times a vector, by central differences of the textbook's gradient.
fn textbook_hessian_times(
    size: ModelSize,
    parameters: &[f64],
    images: &[f64],
    classes: &[u32],
    v: &[f64],
) -> Vec<f64> {
    let step = 1e-5 / v.iter().map(|v| v * v).sum::<f64>().sqrt();
    let moved = |by: f64| -> Vec<f64> { parameters.iter().zip(v).map(|(p, v)| p + by * v).collect() };
    let (_, above) = textbook(size, &moved(step), images, classes);
    let (_, below) = textbook(size, &moved(-step), images, classes);
    above.iter().zip(&below).map(|(a, b)| (a - b) / (2.0 * step)).collect()
}

/// A network with a task: a support set and queries, each (images, classes).
struct Example {
    size: ModelSize,
    parameters: Vec<f32>,
    support: (Vec<f32>, Vec<u32>),
    queries: (Vec<f32>, Vec<u32>),
}

impl Example {
    fn new(shape: Shape, seed: u64) -> Self {
        let size = ModelSize { shape, ways: 3 };
        let mut rng = TestRng::new(seed);
        let mut parameters = initial(size, &mut || rng.uniform());
        for tensor in layout(size).tensors() {
            let values = &mut parameters[tensor.range.clone()];
            // Values like those of a model in training, some gammas negative.
            match tensor.name.rsplit_once('.').map(|(_, name)| name) {
                Some("weight") if tensor.name.contains("norm") => {
                    values.fill_with(|| 0.2 + rng.uniform() as f32);
                    values[3] = -0.7;
                    values[40] = -0.2;
                }
                Some("bias") => values.fill_with(|| 0.3 * rng.uniform() as f32 - 0.1),
                _ => {}
            }
        }
        let mut images = |count: usize| {
            let images = rng.f32s(count * shape.pixels());
            (images, (0..count as u32).map(|item| item % 3).collect())
        };
        let (support, queries) = (images(6), images(9));
        Example { size, parameters, support, queries }
    }

    fn support(&self) -> LabelledImages<'_> {
        LabelledImages { images: &self.support.0, classes: &self.support.1 }
    }

    fn queries(&self) -> LabelledImages<'_> {
        LabelledImages { images: &self.queries.0, classes: &self.queries.1 }
    }
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

/// Compares gradients tensor by tensor, relative to the largest value of each. The biases of convolutions, which batch
/// norm removes, and the running statistics have no gradient.
fn compare(what: &str, size: ModelSize, actual: &[f32], expected: &[f64], tolerance: f64) {
    for tensor in layout(size).tensors() {
        let (actual, expected) = (&actual[tensor.range.clone()], &expected[tensor.range.clone()]);
        if tensor.name.contains("conv.bias") || tensor.name.contains("running") {
            assert!(actual.iter().all(|value| *value == 0.0), "{what} {}", tensor.name);
            continue;
        }
        let largest = expected.iter().fold(0.0f64, |a, b| a.max(b.abs())).max(1e-9);
        let pairs = actual.iter().zip(expected);
        let error = pairs.map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max) / largest;
        assert!(error < tolerance, "{what} {}: off by {error} of {largest}", tensor.name);
    }
}

const SHAPES: [Shape; 2] = [Shape { size: 16, channels: 1 }, Shape { size: 21, channels: 3 }];

#[test]
fn the_hessian_times_a_vector_agrees_with_central_differences_on_every_instruction_set() {
    for (seed, shape) in (1..).zip(SHAPES) {
        let example = Example::new(shape, seed);
        let (size, parameters) = (example.size, &example.parameters);
        let mut rng = TestRng::new(70 + seed);
        let direction = rng.f32s(parameters.len());
        let (images, classes) = (wide(&example.support.0), &example.support.1);
        let expected = textbook_hessian_times(size, &wide(parameters), &images, classes, &wide(&direction));
        for isa in Isa::usable() {
            let mut pass = ClassifierPass::new(size, classes.len());
            isa.scope(|| pass.set_images(&example.support.0));
            let mut gradient = vec![0.0; parameters.len()];
            let loss = isa.scope(|| pass.loss_and_gradient(parameters, classes, &mut gradient));
            let (expected_loss, expected_gradient) = textbook(size, &wide(parameters), &images, classes);
            assert!((loss - expected_loss).abs() < 1e-4);
            compare("gradient", size, &gradient, &expected_gradient, 1e-3);
            let mut tangent = ClassifierTangent::new(&pass);
            let mut product = || isa.scope(|| tangent.hessian_times(&pass, parameters, classes, &direction));
            let first = product();
            compare(&format!("{isa:?} {shape:?}: H v of"), size, &first, &expected, 1e-3);
            assert_eq!(first, product(), "reused memory does not change the result");
        }
    }
}

/// The parameters before each step of an adaptation and after the last, by the textbook.
fn textbook_descent(example: &Example, parameters: &[f64], adaptation: Adaptation) -> Vec<Vec<f64>> {
    let (images, classes) = (wide(&example.support.0), &example.support.1);
    let mut trajectory = vec![parameters.to_vec()];
    for step in 0..adaptation.steps {
        let (_, gradient) = textbook(example.size, &trajectory[step], &images, classes);
        let change = gradient.iter().map(|g| f64::from(adaptation.rate) * g);
        trajectory.push(trajectory[step].iter().zip(change).map(|(at, change)| at - change).collect());
    }
    trajectory
}

/// The loss of the queries after adaptation and its gradient at the adapted parameters, by the textbook.
fn textbook_queries(example: &Example, adapted: &[f64]) -> (f64, Vec<f64>) {
    textbook(example.size, adapted, &wide(&example.queries.0), &example.queries.1)
}

/// The gradient with respect to the initial parameters: `v <- v - α H v` step by step.
fn textbook_meta_gradient(example: &Example, trajectory: &[Vec<f64>], adaptation: Adaptation) -> Vec<f64> {
    let (images, classes) = (wide(&example.support.0), &example.support.1);
    let (adapted, before) = trajectory.split_last().unwrap();
    let (_, mut v) = textbook_queries(example, adapted);
    for before_step in before.iter().rev() {
        let hessian_v = textbook_hessian_times(example.size, before_step, &images, classes, &v);
        v.iter_mut().zip(&hessian_v).for_each(|(v, hv)| *v -= f64::from(adaptation.rate) * hv);
    }
    v
}

#[test]
fn the_gradient_through_adaptation_agrees_with_central_differences() {
    let adaptation = Adaptation { rate: 0.05, steps: 3 };
    // With this seed there are no near ties, where a ReLU or a maximum would differ between f32 and f64.
    let example = Example::new(Shape { size: 16, channels: 1 }, 4);
    let (size, parameters) = (example.size, wide(&example.parameters));
    let trajectory = textbook_descent(&example, &parameters, adaptation);
    let expected = textbook_meta_gradient(&example, &trajectory, adaptation);
    let (expected_loss, expected_first) = textbook_queries(&example, trajectory.last().unwrap());
    let mut rng = TestRng::new(9);
    for _ in 0..2 {
        let direction = rng.f64s(parameters.len());
        let loss = |by: f64| {
            let moved: Vec<f64> = parameters.iter().zip(&direction).map(|(p, d)| p + by * d).collect();
            textbook_queries(&example, textbook_descent(&example, &moved, adaptation).last().unwrap()).0
        };
        // The loss jumps where the gradient of a step does, at the edge of a ReLU: the difference must be too small to
        // cross one.
        let difference = (loss(1e-9) - loss(-1e-9)) / 2e-9;
        let along: f64 = expected.iter().zip(&direction).map(|(g, d)| g * d).sum();
        assert!((difference - along).abs() < 1e-4 * (1.0 + along.abs()), "{along} instead of {difference}");
    }
    let mut learner = MamlLearner::new(size);
    let mut run = |order: GradientOrder| {
        let mut gradient = vec![0.0; parameters.len()];
        let (support, queries) = (example.support(), example.queries());
        let loss =
            learner.meta_gradient(&example.parameters, support, queries, adaptation, order, &mut gradient);
        assert!((loss - expected_loss).abs() < 1e-3, "{loss} instead of {expected_loss}");
        gradient
    };
    compare("second order", size, &run(GradientOrder::Second), &expected, 1e-3);
    // The first-order gradient is that at the adapted parameters, which differs from the second-order one here.
    compare("first order", size, &run(GradientOrder::First), &expected_first, 1e-3);
    let difference = expected.iter().zip(&expected_first).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(difference > 1e-2, "the orders differ by {difference}");
}

#[test]
fn adaptation_lowers_the_loss_and_memory_is_reused_for_other_numbers_of_images() {
    let example = Example::new(Shape { size: 28, channels: 1 }, 3);
    let adaptation = Adaptation { rate: 0.05, steps: 10 };
    let mut learner = MamlLearner::new(example.size);
    let adapted = learner.adapt(&example.parameters, example.support(), adaptation);
    // The number of support items that are classified correctly.
    let correct = |logits: &[f32]| {
        let best = |row: &[f32]| (0..3).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as u32;
        let predictions = logits.chunks_exact(3).map(best);
        predictions.zip(&example.support.1).filter(|(a, b)| a == *b).count()
    };
    let logits = learner.logits(&adapted, &example.support.0);
    assert_eq!(correct(&logits), 6);
    let pixels = example.size.shape.pixels();
    let fewer = LabelledImages { images: &example.support.0[..3 * pixels], classes: &example.support.1[..3] };
    let small = learner.adapt(&example.parameters, fewer, adaptation);
    let fresh = MamlLearner::new(example.size).adapt(&example.parameters, fewer, adaptation);
    assert_eq!(small, fresh);
    assert_eq!(adapted, learner.adapt(&example.parameters, example.support(), adaptation));
    let unchanged = learner.adapt(&example.parameters, fewer, Adaptation { rate: 0.1, steps: 0 });
    assert_eq!(unchanged, example.parameters);
}
