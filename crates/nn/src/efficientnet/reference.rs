//! The network by definition, in f64: the reference of the tests. [`convolve`] is one loop for all kinds of
//! convolution.

use super::{EfficientNetEmbedder, FEATURES, STEM, bottlenecks, layout, same_padding};
use crate::gradient_check::TestRng;
use crate::isa::Isa;

/// Activations, `[side, side, channels]`.
struct Activations {
    side: usize,
    channels: usize,
    values: Vec<f64>,
}

/// Convolution with bias and `SAME` padding. `weight` is `[outputs, inputs, kernel, kernel]`. If `depthwise`, it is
/// `[channels, 1, kernel, kernel]`, and each output channel reads the input channel with the same index.
fn convolve(
    input: &Activations,
    weight: &[f32],
    bias: &[f32],
    kernel: usize,
    stride: usize,
    depthwise: bool,
) -> Activations {
    let (side, margin) = same_padding(input.side, kernel, stride);
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
                let channel = if depthwise { output } else { c };
                let index = ((row - margin) * input.side + column - margin) * input.channels + channel;
                let tap = ((output * inputs + c) * kernel + ky) * kernel + kx;
                sum += input.values[index] * f64::from(weight[tap]);
            }
            values.push(sum);
        }
    }
    Activations { side, channels: bias.len(), values }
}

fn relu6(mut activations: Activations) -> Activations {
    activations.values.iter_mut().for_each(|value| *value = value.clamp(0.0, 6.0));
    activations
}

/// The embedding of one image (`[size, size, 3]`).
fn embed(size: usize, parameters: &[f32], image: &[f32]) -> Vec<f64> {
    let layout = layout();
    let mut tensors = layout.tensors().iter().map(|tensor| &parameters[tensor.range.clone()]);
    let mut pair = || (tensors.next().unwrap(), tensors.next().unwrap());
    let values = image.iter().map(|&value| value.into()).collect();
    let image = Activations { side: size, channels: 3, values };
    let (weight, bias) = pair();
    let mut x = relu6(convolve(&image, weight, bias, 3, 2, false));
    assert_eq!(x.channels, STEM);
    for block in bottlenecks() {
        let input = x.values.clone();
        if block.expands() {
            let (weight, bias) = pair();
            x = relu6(convolve(&x, weight, bias, 1, 1, false));
        }
        let (weight, bias) = pair();
        x = relu6(convolve(&x, weight, bias, block.kernel, block.stride, true));
        let (weight, bias) = pair();
        x = convolve(&x, weight, bias, 1, 1, false);
        if block.adds_input() {
            x.values.iter_mut().zip(&input).for_each(|(value, input)| *value += input);
        }
    }
    let (weight, bias) = pair();
    let x = relu6(convolve(&x, weight, bias, 1, 1, false));
    let positions = x.side * x.side;
    (0..FEATURES).map(|c| x.values.iter().skip(c).step_by(FEATURES).sum::<f64>() / positions as f64).collect()
}

/// Weights with which activations neither vanish nor explode through sixteen blocks: uniform with variance 2 / inputs
/// (He et al., 2015). Tensors of one dimension are biases.
fn parameters(rng: &mut TestRng) -> Vec<f32> {
    let layout = layout();
    let mut parameters = Vec::new();
    for tensor in layout.tensors() {
        let inputs = tensor.shape[1..].iter().product::<usize>().max(1) as f32;
        let scale = if tensor.shape.len() == 1 { 0.3 } else { (6.0 / inputs).sqrt() };
        parameters.extend(rng.f32s(tensor.range.len()).into_iter().map(|value| value * scale));
    }
    parameters
}

#[test]
fn embeddings_agree_with_the_definition_at_even_and_odd_sizes() {
    let mut rng = TestRng::new(5);
    let parameters = parameters(&mut rng);
    for size in [32, 45, 64] {
        let image = rng.f32s(size * size * 3);
        let expected = embed(size, &parameters, &image);
        let largest = expected.iter().fold(0.0f64, |largest, value| largest.max(value.abs()));
        assert!(largest > 0.1, "the activations of the test's network must not vanish");
        let embedder = EfficientNetEmbedder::new(size, &parameters);
        for isa in Isa::usable() {
            let mut embedding = vec![f32::NAN; FEATURES];
            isa.scope(|| embedder.session().embed(&image, &mut embedding));
            for (index, (value, expected)) in embedding.iter().zip(&expected).enumerate() {
                let error = (f64::from(*value) - expected).abs();
                assert!(error < 1e-4 * largest, "{isa:?}, {size} px, [{index}]: {value} and {expected}");
            }
        }
    }
}

#[test]
fn an_embedding_does_not_depend_on_the_other_images_of_its_call_or_on_earlier_calls() {
    let mut rng = TestRng::new(6);
    let embedder = EfficientNetEmbedder::new(40, &parameters(&mut rng));
    let images = rng.f32s(3 * 40 * 40 * 3);
    let mut session = embedder.session();
    let mut together = vec![0.0; 3 * FEATURES];
    session.embed(&images, &mut together);
    for (image, expected) in images.chunks_exact(40 * 40 * 3).zip(together.chunks_exact(FEATURES)).rev() {
        let mut alone = vec![0.0; FEATURES];
        session.embed(image, &mut alone);
        assert_eq!(alone, expected);
    }
}
