//! The same network as its definition reads, for the tests: one loop for every kind of convolution.

use super::{FEATURES, STEM, blocks, layout, same};
use crate::differences::Numbers;
use crate::isa::Isa;

/// S x S places of C channels, in double precision.
struct Plane {
    side: usize,
    channels: usize,
    values: Vec<f64>,
}

/// `groups` as in PyTorch: 1, or one for every channel.
fn convolve(
    input: &Plane,
    weight: &[f32],
    bias: &[f32],
    kernel: usize,
    stride: usize,
    depthwise: bool,
) -> Plane {
    let (side, margin) = same(input.side, kernel, stride);
    let inputs = if depthwise { 1 } else { input.channels };
    let mut values = Vec::new();
    for (y, x) in (0..side).flat_map(|y| (0..side).map(move |x| (y, x))) {
        for (output, bias) in bias.iter().enumerate() {
            let mut sum = f64::from(*bias);
            for (c, ky, kx) in (0..inputs)
                .flat_map(|c| (0..kernel).flat_map(move |ky| (0..kernel).map(move |kx| (c, ky, kx))))
            {
                let (row, column) = (y * stride + ky, x * stride + kx);
                if row < margin
                    || column < margin
                    || row - margin >= input.side
                    || column - margin >= input.side
                {
                    continue;
                }
                let from = if depthwise { output } else { c };
                let place = ((row - margin) * input.side + column - margin) * input.channels + from;
                let tap = ((output * inputs + c) * kernel + ky) * kernel + kx;
                sum += input.values[place] * f64::from(weight[tap]);
            }
            values.push(sum);
        }
    }
    Plane { side, channels: bias.len(), values }
}

fn relu6(mut plane: Plane) -> Plane {
    plane.values.iter_mut().for_each(|value| *value = value.clamp(0.0, 6.0));
    plane
}

fn embed(size: usize, parameters: &[f32], image: &[f32]) -> Vec<f64> {
    let layout = layout();
    let mut tensors = layout.tensors().iter().map(|tensor| &parameters[tensor.range.clone()]);
    let mut pair = || (tensors.next().unwrap(), tensors.next().unwrap());
    let image = Plane { side: size, channels: 3, values: image.iter().map(|&value| value.into()).collect() };
    let (weight, bias) = pair();
    let mut plane = relu6(convolve(&image, weight, bias, 3, 2, false));
    assert_eq!(plane.channels, STEM);
    for block in blocks() {
        let input = plane.values.clone();
        if block.expands() {
            let (weight, bias) = pair();
            plane = relu6(convolve(&plane, weight, bias, 1, 1, false));
        }
        let (weight, bias) = pair();
        plane = relu6(convolve(&plane, weight, bias, block.kernel, block.stride, true));
        let (weight, bias) = pair();
        plane = convolve(&plane, weight, bias, 1, 1, false);
        if block.adds_input() {
            plane.values.iter_mut().zip(&input).for_each(|(value, input)| *value += input);
        }
    }
    let (weight, bias) = pair();
    let plane = relu6(convolve(&plane, weight, bias, 1, 1, false));
    let places = plane.side * plane.side;
    (0..FEATURES)
        .map(|c| plane.values.iter().skip(c).step_by(FEATURES).sum::<f64>() / places as f64)
        .collect()
}

/// Weights that keep numbers alive through sixteen blocks.
fn parameters(numbers: &mut Numbers) -> Vec<f32> {
    let layout = layout();
    let mut parameters = Vec::new();
    for tensor in layout.tensors() {
        let inputs = tensor.shape[1..].iter().product::<usize>().max(1) as f32;
        let scale = if tensor.shape.len() == 1 { 0.3 } else { (6.0 / inputs).sqrt() };
        parameters.extend(numbers.singles(tensor.range.len()).into_iter().map(|value| value * scale));
    }
    parameters
}

#[test]
fn embeddings_agree_with_the_definition_at_even_and_odd_sizes() {
    let mut numbers = Numbers::new(5);
    let parameters = parameters(&mut numbers);
    for size in [32, 45, 64] {
        let image = numbers.singles(size * size * 3);
        let expected = embed(size, &parameters, &image);
        let largest = expected.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
        assert!(largest > 0.1, "the test's network must not fall silent");
        let embedder = super::Embedder::new(size, &parameters);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_usable()) {
            let mut found = vec![f32::NAN; FEATURES];
            embedder.embed(isa, &image, &mut found, &mut embedder.scratch());
            for (place, (found, expected)) in found.iter().zip(&expected).enumerate() {
                let error = (f64::from(*found) - expected).abs();
                assert!(error < 1e-4 * largest, "{isa:?}, {size} px, number {place}: {found} and {expected}");
            }
        }
    }
}

#[test]
fn an_embedding_does_not_depend_on_its_neighbours_or_on_what_was_embedded_before() {
    let mut numbers = Numbers::new(6);
    let embedder = super::Embedder::new(40, &parameters(&mut numbers));
    let images = numbers.singles(3 * 40 * 40 * 3);
    let (isa, mut scratch) = (Isa::current(), embedder.scratch());
    let mut together = vec![0.0; 3 * FEATURES];
    embedder.embed(isa, &images, &mut together, &mut scratch);
    for (image, expected) in images.chunks_exact(40 * 40 * 3).zip(together.chunks_exact(FEATURES)).rev() {
        let mut alone = vec![0.0; FEATURES];
        embedder.embed(isa, image, &mut alone, &mut scratch);
        assert_eq!(alone, expected);
    }
}
