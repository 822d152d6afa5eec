//! Tests of the kernels against the textbook version.

use super::reference::forward;
use super::*;
use crate::isa::Isa;

/// A linear congruential generator of uniform numbers in [0, 1).
fn random(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed;
    move || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

/// Parameters like those of a model in training, some gammas negative, and images.
fn example(shape: Shape, images: usize, seed: u64) -> (Vec<f32>, Vec<f32>) {
    let mut random = random(seed);
    let mut parameters = initial(shape.channels, &mut random);
    for block in layout_and_ranges(shape.channels).1 {
        for range in [block.gamma, block.beta, block.bias, block.running_mean] {
            parameters[range].fill_with(|| random() as f32 - 0.3);
        }
        parameters[block.running_var].fill_with(|| 0.2 + random() as f32);
    }
    let images = (0..images * shape.pixels()).map(|_| random() as f32 * 2.0 - 1.0).collect();
    (parameters, images)
}

/// The largest error, relative to the largest expected value.
fn worst_error(actual: &[f32], expected: &[f64]) -> f64 {
    let largest = expected.iter().fold(0.0f64, |a, b| a.max(b.abs()));
    let pairs = actual.iter().zip(expected);
    pairs.map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max) / largest.max(1e-30)
}

/// Shapes and numbers of images: sides that are and are not multiples of a tile, blocks with odd sides.
const SHAPES: [(Shape, usize); 4] = [
    (Shape { size: 16, channels: 3 }, 3),
    (Shape { size: 28, channels: 1 }, 2),
    (Shape { size: 21, channels: 3 }, 5),
    (Shape { size: 32, channels: 3 }, 2),
];

#[test]
fn embeddings_agree_with_the_textbook_on_every_instruction_set() {
    for (shape, images) in SHAPES {
        let (parameters, pixels) = example(shape, images, 7);
        let reference = forward(shape, &wide(&parameters), &wide(&pixels), false);
        for isa in Isa::usable() {
            let mut out = vec![0.0; images * shape.features()];
            isa.scope(|| Conv4Embedder::new(shape, &parameters).session().embed(&pixels, &mut out));
            let error = worst_error(&out, reference.features());
            assert!(error < 2e-5, "{isa:?} {shape:?}: off by {error}");
        }
    }
}

#[test]
fn a_training_step_agrees_with_the_textbook_on_every_instruction_set() {
    for (shape, images) in SHAPES {
        let (parameters, pixels) = example(shape, images, 11);
        let reference = forward(shape, &wide(&parameters), &wide(&pixels), true);
        let mut random = random(3);
        let d_features: Vec<f32> = reference.features().iter().map(|_| random() as f32 - 0.5).collect();
        let expected = reference.backward(shape, &wide(&parameters), &wide(&d_features));
        for isa in Isa::usable() {
            let mut pass = TrainingPass::new(shape, images);
            let error = isa.scope(|| worst_error(pass.forward(&parameters, &pixels), reference.features()));
            assert!(error < 5e-5, "{isa:?} {shape:?}: embeddings off by {error}");
            let mut gradient = vec![0.0; parameters.len()];
            isa.scope(|| pass.backward(&d_features, &mut gradient));
            for tensor in layout(shape.channels).tensors() {
                let (actual, expected) = (&gradient[tensor.range.clone()], &expected[tensor.range.clone()]);
                let error = worst_error(actual, expected);
                // Batch norm removes the biases of convolutions, and running statistics are not trained.
                let is_zero = tensor.name.contains("conv.bias") || tensor.name.contains("running");
                assert!(is_zero || error < 1e-3, "{isa:?} {shape:?} {}: off by {error}", tensor.name);
                assert!(!is_zero || actual.iter().all(|value| *value == 0.0), "{}", tensor.name);
            }
        }
    }
}

#[test]
fn the_textbook_gradient_agrees_with_central_differences() {
    let shape = Shape { size: 16, channels: 1 };
    let (parameters, pixels) = example(shape, 2, 5);
    let (parameters, pixels) = (wide(&parameters), wide(&pixels));
    let reference = forward(shape, &parameters, &pixels, true);
    let mut random = random(9);
    let d_features: Vec<f64> = reference.features().iter().map(|_| random() - 0.5).collect();
    let gradient = reference.backward(shape, &parameters, &d_features);
    let loss = |parameters: &[f64]| -> f64 {
        let reference = forward(shape, parameters, &pixels, true);
        reference.features().iter().zip(&d_features).map(|(f, d)| f * d).sum()
    };
    let layout = layout(1);
    for tensor in layout
        .tensors()
        .iter()
        .filter(|tensor| tensor.name.contains("weight") || tensor.name.ends_with("norm.bias"))
    {
        for _ in 0..3 {
            let at = tensor.range.start + (random() * tensor.range.len() as f64) as usize;
            let mut moved = parameters.clone();
            let step = 1e-6;
            moved[at] += step;
            let above = loss(&moved);
            moved[at] -= 2.0 * step;
            let difference = (above - loss(&moved)) / (2.0 * step);
            let error = (difference - gradient[at]).abs() / (1.0 + difference.abs());
            assert!(error < 1e-5, "{} at {at}: {difference} against {}", tensor.name, gradient[at]);
        }
    }
}

#[test]
fn any_number_of_threads_gives_the_same_bytes() {
    let shape = Shape { size: 20, channels: 3 };
    let (parameters, pixels) = example(shape, 37, 13);
    let step = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| {
            let mut pass = TrainingPass::new(shape, 37);
            let features = pass.forward(&parameters, &pixels).to_vec();
            let mut gradient = vec![0.0; parameters.len()];
            pass.backward(&features, &mut gradient);
            (features, gradient)
        })
    };
    let (one, three) = (step(1), step(3));
    assert!(
        one.0.iter().zip(&three.0).chain(one.1.iter().zip(&three.1)).all(|(a, b)| a.to_bits() == b.to_bits())
    );
}

#[test]
fn running_statistics_move_a_tenth_of_the_way_to_those_of_the_batch() {
    let shape = Shape { size: 16, channels: 3 };
    let (mut parameters, pixels) = example(shape, 3, 17);
    let reference = forward(shape, &wide(&parameters), &wide(&pixels), true);
    let before = parameters.clone();
    let mut pass = TrainingPass::new(shape, 3);
    pass.forward(&parameters, &pixels);
    pass.update_running(&mut parameters);
    for (stage, ranges) in reference.stages.iter().zip(layout_and_ranges(3).1) {
        let count = (3 * stage.side.pow(2)) as f64;
        for c in 0..WIDTH {
            let var = (stage.inverse_std[c].powi(-2) - f64::from(EPSILON)) * count / (count - 1.0);
            for (at, target) in
                [(ranges.running_mean.start + c, stage.mean[c]), (ranges.running_var.start + c, var)]
            {
                let expected = 0.9 * f64::from(before[at]) + 0.1 * target;
                assert!((f64::from(parameters[at]) - expected).abs() < 1e-5 * (1.0 + expected.abs()));
            }
        }
    }
}
