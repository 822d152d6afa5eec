//! Every kernel against plain loops in f64, and the network against that of the CPU.

use half::f16;
use trueshot_nn::efficientnet::{EfficientNetEmbedder, FEATURES, STEM, layout, same_padding};

use super::EfficientNetEmbedding;
use super::layers::{Chunk, Depthwise, Pointwise, Stem, padded, record_mean};
use crate::driver::{Buffer, Device};
use crate::error::Error;
use crate::testing::{device, random, relative_error};

const NORMALISATION: [[f32; 2]; 3] = [[0.015, -2.0], [0.017, -1.9], [0.018, -2.1]];
/// NaN, so that an output that was not written is noticed.
const POISON: Chunk = [0x7e00; 8];

/// Random numbers in [-scale, scale), which are 16-bit floats.
fn halves(next: &mut impl FnMut() -> f64, count: usize, scale: f64) -> Vec<f32> {
    (0..count).map(|_| f16::from_f64(scale * (2.0 * next() - 1.0)).to_f32()).collect()
}

/// Uploads `[row][channel]` as 16-bit floats with the channels padded by zeros; a row is one position of an image.
fn upload(device: &Device, values: &[f32], channels: usize) -> Buffer<Chunk> {
    let mut halves = Vec::new();
    for row in values.chunks_exact(channels) {
        halves.extend(row.iter().map(|&value| f16::from_f32(value).to_bits()));
        halves.resize(halves.len() + padded(channels) - channels, 0);
    }
    device.upload(halves.as_chunks().0).unwrap()
}

/// The values of a buffer, `[row][padded channels]`.
fn download(buffer: &Buffer<Chunk>) -> Vec<f32> {
    buffer.read().unwrap().into_iter().flatten().map(|bits| f16::from_bits(bits).to_f32()).collect()
}

/// Compares `[row][padded channels]` with `[row][channels]`; the output is rounded to a 16-bit float. What is behind
/// the expected rows must not have been written.
fn assert_close(name: &str, found: &[f32], expected: &[f64], channels: usize) {
    let (rows, pitch) = (expected.len() / channels, padded(channels));
    for (row, found) in found.chunks_exact(pitch).enumerate() {
        for (channel, &found) in found.iter().enumerate() {
            if row >= rows {
                assert!(found.is_nan(), "{name}: row {row} of {rows} was written");
                continue;
            }
            let expected = if channel < channels { expected[row * channels + channel] } else { 0.0 };
            let error = (f64::from(found) - expected).abs();
            assert!(
                error <= 5e-4 * expected.abs() + 5e-5,
                "{name} [{row}][{channel}]: {found}, not {expected}"
            );
        }
    }
}

fn relu6(value: f64) -> f64 {
    value.clamp(0.0, 6.0)
}

#[test]
fn pointwise_convolutions_are_those_of_the_definition() {
    let device = device();
    // Rows, inputs, outputs, ReLU6. Rows below, at and above whole tiles (128); inputs and outputs that need padding
    // (to 16); one to three steps of inputs (64 each); every kernel.
    let shapes = [
        (1, 16, 16, true),
        (128, 24, 40, true),
        (130, 40, 24, false),
        (515, 32, 16, false),
        (5, 112, 144, true),
        (131, 144, 112, false),
        (257, 80, 192, true),
        (300, 72, 136, false),
    ];
    for (number, (rows, inputs, outputs, has_relu6)) in shapes.into_iter().enumerate() {
        let mut next = random(number as u64 + 1);
        let x = halves(&mut next, rows * inputs, 2.0);
        let weights = halves(&mut next, outputs * inputs, (6.0 / inputs as f64).sqrt());
        let bias: Vec<f32> = (0..outputs).map(|_| (4.0 * next() - 1.0) as f32).collect();
        let added = halves(&mut next, rows * outputs, 3.0);
        for residual in [false, true] {
            let expected: Vec<f64> = (0..rows * outputs)
                .map(|at| {
                    let (row, output) = (at / outputs, at % outputs);
                    let products = (0..inputs)
                        .map(|k| f64::from(x[row * inputs + k]) * f64::from(weights[output * inputs + k]));
                    let sum = f64::from(bias[output]) + products.sum::<f64>();
                    let activated = if has_relu6 { relu6(sum) } else { sum };
                    activated + if residual { f64::from(added[at]) } else { 0.0 }
                })
                .collect();
            let layer = Pointwise::new(&device, inputs, &weights, &bias, has_relu6).unwrap();
            let output = device.upload(&vec![POISON; (rows + 3) * padded(outputs) / 8]).unwrap();
            let added = residual.then(|| upload(&device, &added, outputs));
            layer.record(&device, rows, &upload(&device, &x, inputs), added.as_ref(), &output).unwrap();
            let name = format!("{rows} x {inputs} -> {outputs}, residual {residual}");
            assert_close(&name, &download(&output), &expected, outputs);
        }
    }
}

#[test]
fn depthwise_convolutions_are_those_of_the_definition() {
    let device = device();
    let kernels = [(3, 1), (3, 2), (5, 1), (5, 2)];
    let sides = [(1, 16), (2, 32), (5, 48), (8, 16), (11, 32)];
    for ((kernel, stride), (side, channels)) in
        kernels.iter().flat_map(|k| sides.iter().map(move |s| (*k, *s)))
    {
        let images = 2;
        let mut next = random((kernel * 100 + stride * 10 + side) as u64);
        let x = halves(&mut next, images * side * side * channels, 3.0);
        let weights: Vec<f32> =
            (0..channels * kernel * kernel).map(|_| (2.0 * next() - 1.0) as f32).collect();
        let bias: Vec<f32> = (0..channels).map(|_| next() as f32).collect();
        let (output_side, margin) = same_padding(side, kernel, stride);
        let output_pixels = output_side * output_side;
        let mut expected = Vec::new();
        for at in 0..images * output_pixels * channels {
            let (position, c) = (at / channels, at % channels);
            let image = position / output_pixels;
            let (y, x_out) = (position / output_side % output_side, position % output_side);
            let mut sum = f64::from(bias[c]);
            for tap in 0..kernel * kernel {
                // Row and column of the input, counted from the start of its margin.
                let (row, column) = (y * stride + tap / kernel, x_out * stride + tap % kernel);
                let inside = |padded: usize| padded >= margin && padded - margin < side;
                if inside(row) && inside(column) {
                    let from = ((image * side + row - margin) * side + column - margin) * channels + c;
                    sum += f64::from(x[from]) * f64::from(weights[c * kernel * kernel + tap]);
                }
            }
            expected.push(relu6(sum));
        }
        let layer = Depthwise::new(&device, kernel, stride, side, &weights, &bias).unwrap();
        let output = device.upload(&vec![POISON; expected.len() / 8 + channels / 8]).unwrap();
        layer.record(&device, images, &upload(&device, &x, channels), &output).unwrap();
        let name = format!("{kernel} x {kernel}, stride {stride}, {side} px");
        assert_close(&name, &download(&output), &expected, channels);
    }
}

#[test]
fn the_first_convolution_is_that_of_the_definition() {
    let device = device();
    for size in [32, 37] {
        let images = 2;
        let mut next = random(size as u64);
        let bytes: Vec<u8> = (0..images * size * size * 3).map(|_| (256.0 * next()) as u8).collect();
        let weights: Vec<f32> = (0..STEM * 27).map(|_| (next() - 0.5) as f32).collect();
        let bias: Vec<f32> = (0..STEM).map(|_| next() as f32).collect();
        let (side, margin) = same_padding(size, 3, 2);
        let mut expected = Vec::new();
        for at in 0..images * side * side * STEM {
            let (position, output) = (at / STEM, at % STEM);
            let (image, y, x) = (position / (side * side), position / side % side, position % side);
            let mut sum = f64::from(bias[output]);
            for (tap, channel) in (0..9).flat_map(|tap| (0..3).map(move |channel| (tap, channel))) {
                let (row, column) = (2 * y + tap / 3, 2 * x + tap % 3);
                let inside = |padded: usize| padded >= margin && padded - margin < size;
                if inside(row) && inside(column) {
                    let from = ((image * size + row - margin) * size + column - margin) * 3 + channel;
                    let [scale, shift] = NORMALISATION[channel].map(f64::from);
                    let weight = f64::from(weights[output * 27 + channel * 9 + tap]);
                    sum += (f64::from(bytes[from]) * scale + shift) * weight;
                }
            }
            expected.push(relu6(sum));
        }
        let stem = Stem::new(&device, size, &weights, &bias, NORMALISATION).unwrap();
        let output = device.upload(&vec![POISON; expected.len() / 8 + 4]).unwrap();
        stem.record(&device, images, &device.upload(&bytes).unwrap(), &output).unwrap();
        assert_close(&format!("{size} px"), &download(&output), &expected, STEM);
    }
}

#[test]
fn the_mean_is_that_of_all_positions_of_its_image() {
    let device = device();
    let (images, positions, channels) = (3, 5, 272);
    let x = halves(&mut random(8), images * positions * channels, 6.0);
    let expected: Vec<f64> = (0..images * channels)
        .map(|at| {
            let (image, channel) = (at / channels, at % channels);
            let values = (0..positions).map(|p| f64::from(x[(image * positions + p) * channels + channel]));
            values.sum::<f64>() / positions as f64
        })
        .collect();
    let output = device.upload(&vec![f32::NAN; images * channels]).unwrap();
    record_mean(&device, images, positions, channels, &upload(&device, &x, channels), &output).unwrap();
    for (at, (found, expected)) in output.read().unwrap().iter().zip(&expected).enumerate() {
        assert!((f64::from(*found) - expected).abs() < 1e-5, "[{at}]: {found}, not {expected}");
    }
}

/// Weights with which activations neither vanish nor explode through sixteen blocks.
fn parameters(seed: u64) -> Vec<f32> {
    let mut next = random(seed);
    let mut parameters = Vec::new();
    for tensor in layout().tensors() {
        let inputs = tensor.shape[1..].iter().product::<usize>().max(1) as f64;
        let scale = if tensor.shape.len() == 1 { 0.3 } else { (6.0 / inputs).sqrt() };
        parameters.extend(tensor.range.clone().map(|_| (scale * (2.0 * next() - 1.0)) as f32));
    }
    parameters
}

#[test]
fn embeddings_are_nearly_those_of_the_cpu_and_depend_on_their_own_image_only() {
    let parameters = parameters(5);
    for size in [32, 45] {
        let pixels = size * size * 3;
        let mut next = random(size as u64);
        let bytes: Vec<u8> = (0..5 * pixels).map(|_| (256.0 * next()) as u8).collect();
        let normalised: Vec<f32> = bytes
            .iter()
            .enumerate()
            .map(|(i, &value)| f32::from(value) * NORMALISATION[i % 3][0] + NORMALISATION[i % 3][1])
            .collect();
        let mut expected = vec![0.0; 5 * FEATURES];
        EfficientNetEmbedder::new(size, &parameters).session().embed(&normalised, &mut expected);
        let mut gpu = EfficientNetEmbedding::new(&device(), size, 5, &parameters, NORMALISATION).unwrap();
        let all = gpu.embed(&bytes).unwrap();
        for (own, expected) in all.chunks_exact(FEATURES).zip(expected.chunks_exact(FEATURES)) {
            let error = relative_error(own, expected);
            println!("{size} px: relative error {error:.6}, cosine {:.8}", cosine(own, expected));
            // At these sizes the mean is over one or four positions only, so the rounding of activations shows.
            assert!(error < 4e-3 && cosine(own, expected) > 0.99999, "{size} px: {error}");
        }
        // Three images in the graph of four, then one, each at another position in the batch than before.
        let later = gpu.embed(&bytes[2 * pixels..]).unwrap();
        assert_eq!(later, all[2 * FEATURES..]);
        assert_eq!(gpu.embed(&bytes[4 * pixels..]).unwrap(), all[4 * FEATURES..]);
        assert_eq!(gpu.embed(&[]).unwrap(), []);
    }
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let product =
        |a: &[f32], b: &[f32]| -> f64 { a.iter().zip(b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum() };
    product(a, b) / (product(a, a) * product(b, b)).sqrt()
}

#[test]
fn a_weight_that_is_not_a_number_reaches_the_embedding_and_one_beyond_16_bits_is_refused() {
    let mut parameters = parameters(6);
    let head = layout().tensors().iter().find(|tensor| tensor.name == "head.weight").unwrap().range.start;
    let new = |parameters: &[f32]| EfficientNetEmbedding::new(&device(), 32, 1, parameters, NORMALISATION);
    parameters[head] = f32::NAN;
    let row = new(&parameters).unwrap().embed(&[128; 32 * 32 * 3]).unwrap();
    assert!(row[0].is_nan() && row[1..].iter().all(|value| value.is_finite()));
    parameters[head] = 70_000.0;
    assert_eq!(new(&parameters).err(), Some(Error::WeightRange("70000".into())));
}
