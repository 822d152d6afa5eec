//! Held against the textbook network in f64 and its central differences.

use super::*;
use crate::conv4::plain;
use crate::differences::Numbers;

/// The textbook: mean cross-entropy and its gradient, in f64.
fn textbook(size: Size, parameters: &[f64], images: &[f64], classes: &[u32]) -> (f64, Vec<f64>) {
    let (dim, ways) = (size.shape.features(), size.ways);
    let start = conv4::layout(size.shape.channels).len();
    let (weight, bias) = parameters[start..].split_at(dim * ways);
    let pass = plain::forward(size.shape, &parameters[..start], images, true);
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
            let wanted = if c == class as usize { 1.0 } else { 0.0 };
            let d_logit = (logit.exp() / total - wanted) / rows;
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

/// The textbook's Hessian times a vector: central differences of its gradient.
fn textbook_hessian_times(
    size: Size,
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

struct Example {
    size: Size,
    parameters: Vec<f32>,
    support: (Vec<f32>, Vec<u32>),
    queries: (Vec<f32>, Vec<u32>),
}

impl Example {
    fn new(shape: Shape, seed: u64) -> Self {
        let size = Size { shape, ways: 3 };
        let mut numbers = Numbers::new(seed);
        let mut parameters = initial(size, &mut || numbers.uniform());
        for tensor in layout(size).tensors() {
            let values = &mut parameters[tensor.range.clone()];
            // Like those of a model in training, some gammas negative.
            match tensor.name.rsplit_once('.').map(|(_, name)| name) {
                Some("weight") if tensor.name.contains("norm") => {
                    values.fill_with(|| 0.2 + numbers.uniform() as f32);
                    values[3] = -0.7;
                    values[40] = -0.2;
                }
                Some("bias") => values.fill_with(|| 0.3 * numbers.uniform() as f32 - 0.1),
                _ => {}
            }
        }
        let mut pictures = |count: usize| {
            let images = numbers.singles(count * shape.pixels());
            (images, (0..count as u32).map(|item| item % 3).collect())
        };
        let (support, queries) = (pictures(6), pictures(9));
        Example { size, parameters, support, queries }
    }

    fn support(&self) -> Labelled<'_> {
        Labelled { images: &self.support.0, classes: &self.support.1 }
    }

    fn queries(&self) -> Labelled<'_> {
        Labelled { images: &self.queries.0, classes: &self.queries.1 }
    }
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

/// Compares tensor by tensor, by the largest number of each.
fn compare(what: &str, size: Size, found: &[f32], expected: &[f64], tolerance: f64) {
    for tensor in layout(size).tensors() {
        let (found, expected) = (&found[tensor.range.clone()], &expected[tensor.range.clone()]);
        if tensor.name.contains("conv.bias") || tensor.name.contains("running") {
            assert!(found.iter().all(|value| *value == 0.0), "{what} {}", tensor.name);
            continue;
        }
        let largest = expected.iter().fold(0.0f64, |a, b| a.max(b.abs())).max(1e-9);
        let pairs = found.iter().zip(expected);
        let off = pairs.map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max) / largest;
        assert!(off < tolerance, "{what} {}: off by {off} of {largest}", tensor.name);
    }
}

const SHAPES: [Shape; 2] = [Shape { size: 16, channels: 1 }, Shape { size: 21, channels: 3 }];

#[test]
fn the_hessian_times_a_vector_agrees_with_central_differences_on_every_instruction_set() {
    for (seed, shape) in (1..).zip(SHAPES) {
        let example = Example::new(shape, seed);
        let (size, parameters) = (example.size, &example.parameters);
        let mut numbers = Numbers::new(70 + seed);
        let direction = numbers.singles(parameters.len());
        let (images, classes) = (wide(&example.support.0), &example.support.1);
        let expected = textbook_hessian_times(size, &wide(parameters), &images, classes, &wide(&direction));
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_usable()) {
            let mut pass = Pass::new(isa, size, classes.len());
            pass.take_images(&example.support.0);
            let mut gradient = vec![0.0; parameters.len()];
            let loss = pass.loss_and_gradient(parameters, classes, &mut gradient);
            let (expected_loss, expected_gradient) = textbook(size, &wide(parameters), &images, classes);
            assert!((loss - expected_loss).abs() < 1e-4);
            compare("gradient", size, &gradient, &expected_gradient, 1e-3);
            let mut tangent = PassTangent::new(&pass);
            let found = tangent.hessian_times(&pass, parameters, classes, &direction);
            compare(&format!("{isa:?} {shape:?}: H v of"), size, &found, &expected, 1e-3);
            let again = tangent.hessian_times(&pass, parameters, classes, &direction);
            assert_eq!(found, again, "room can be used again");
        }
    }
}

/// The textbook's parameters before each step of an adaptation, and after the last.
fn textbook_descent(example: &Example, parameters: &[f64], adaptation: Adaptation) -> Vec<Vec<f64>> {
    let (images, classes) = (wide(&example.support.0), &example.support.1);
    let mut trail = vec![parameters.to_vec()];
    for step in 0..adaptation.steps {
        let (_, gradient) = textbook(example.size, &trail[step], &images, classes);
        let slope = gradient.iter().map(|slope| f64::from(adaptation.rate) * slope);
        trail.push(trail[step].iter().zip(slope).map(|(at, slope)| at - slope).collect());
    }
    trail
}

/// The textbook's loss of the queries after adaptation, and its gradient by the adapted parameters.
fn textbook_queries(example: &Example, adapted: &[f64]) -> (f64, Vec<f64>) {
    textbook(example.size, adapted, &wide(&example.queries.0), &example.queries.1)
}

/// The gradient by the first parameters: `v <- v - α H v` step by step.
fn textbook_meta_gradient(example: &Example, trail: &[Vec<f64>], adaptation: Adaptation) -> Vec<f64> {
    let (images, classes) = (wide(&example.support.0), &example.support.1);
    let (adapted, before) = trail.split_last().unwrap();
    let (_, mut v) = textbook_queries(example, adapted);
    for at in before.iter().rev() {
        let moved = textbook_hessian_times(example.size, at, &images, classes, &v);
        v.iter_mut().zip(&moved).for_each(|(v, moved)| *v -= f64::from(adaptation.rate) * moved);
    }
    v
}

#[test]
fn the_gradient_through_adaptation_agrees_with_central_differences() {
    let adaptation = Adaptation { rate: 0.05, steps: 3 };
    // Inputs without near ties: a ReLU or a maximum that falls otherwise in f32 than in f64 would show.
    let example = Example::new(Shape { size: 16, channels: 1 }, 4);
    let (size, parameters) = (example.size, wide(&example.parameters));
    let trail = textbook_descent(&example, &parameters, adaptation);
    let expected = textbook_meta_gradient(&example, &trail, adaptation);
    let (expected_loss, expected_first) = textbook_queries(&example, trail.last().unwrap());
    let mut numbers = Numbers::new(9);
    for _ in 0..2 {
        let direction = numbers.doubles(parameters.len());
        let loss = |by: f64| {
            let moved: Vec<f64> = parameters.iter().zip(&direction).map(|(p, d)| p + by * d).collect();
            textbook_queries(&example, textbook_descent(&example, &moved, adaptation).last().unwrap()).0
        };
        // The loss jumps where a step's gradient does, at a ReLU's edge: steps must be too small to meet one.
        let difference = (loss(1e-9) - loss(-1e-9)) / 2e-9;
        let along: f64 = expected.iter().zip(&direction).map(|(g, d)| g * d).sum();
        assert!((difference - along).abs() < 1e-4 * (1.0 + along.abs()), "{along} instead of {difference}");
    }
    let mut learner = Learner::new(Isa::current(), size);
    let mut run = |order: Order| {
        let mut gradient = vec![0.0; parameters.len()];
        let (support, queries) = (example.support(), example.queries());
        let loss =
            learner.meta_gradient(&example.parameters, support, queries, adaptation, order, &mut gradient);
        assert!((loss - expected_loss).abs() < 1e-3, "{loss} instead of {expected_loss}");
        gradient
    };
    compare("second order", size, &run(Order::Second), &expected, 1e-3);
    // The first order is the gradient at the adapted parameters; here it is something else.
    compare("first order", size, &run(Order::First), &expected_first, 1e-3);
    let apart = expected.iter().zip(&expected_first).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
    assert!(apart > 1e-2, "the orders differ by {apart}");
}

#[test]
fn adaptation_lowers_the_loss_and_room_is_used_again_for_other_numbers_of_pictures() {
    let example = Example::new(Shape { size: 28, channels: 1 }, 3);
    let adaptation = Adaptation { rate: 0.05, steps: 10 };
    let mut learner = Learner::new(Isa::current(), example.size);
    let adapted = learner.adapt(&example.parameters, example.support(), adaptation);
    let hits = |logits: &[f32]| {
        let best = |row: &[f32]| (0..3).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap() as u32;
        let answers = logits.chunks_exact(3).map(best);
        answers.zip(&example.support.1).filter(|(a, b)| a == *b).count()
    };
    let logits = learner.answer(&adapted, &example.support.0);
    assert_eq!(hits(&logits), 6);
    let pixels = example.size.shape.pixels();
    let fewer = Labelled { images: &example.support.0[..3 * pixels], classes: &example.support.1[..3] };
    let small = learner.adapt(&example.parameters, fewer, adaptation);
    let fresh = Learner::new(Isa::current(), example.size).adapt(&example.parameters, fewer, adaptation);
    assert_eq!(small, fresh);
    assert_eq!(adapted, learner.adapt(&example.parameters, example.support(), adaptation));
    let still = learner.adapt(&example.parameters, fewer, Adaptation { rate: 0.1, steps: 0 });
    assert_eq!(still, example.parameters);
}
