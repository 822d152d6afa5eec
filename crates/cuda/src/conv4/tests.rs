//! Training steps against the CPU's training pass: on an emulated device, or with the feature `gpu-tests` on GPU 0.

use trueshot_nn::conv4::{TrainingPass, initial, layout};

use super::prototypes::MEDIAN_ITERATIONS;
use super::*;
use crate::testing::{Run, assert_same_run, device, print_bits, random, relative_error};

fn options(shape: Shape, prototypes: Prototypes) -> Conv4Options {
    Conv4Options {
        shape,
        classes: 2,
        support: 4,
        queries: 3,
        prototypes,
        optimiser: AdamWConfig::default(),
        clip: 0.0,
    }
}

/// Classes of 4 support items and 3 queries.
const LABELS: [u32; 7] = [0, 1, 1, 0, 0, 1, 1];

/// Images whose classes differ in brightness.
fn images(shape: Shape, count: usize) -> Vec<f32> {
    let mut random = random(5);
    (0..count * shape.pixels())
        .map(|i| (2.0 * random() - 1.0) as f32 + 0.3 * LABELS[i / shape.pixels()] as f32)
        .collect()
}

fn parameters(shape: Shape) -> Vec<f32> {
    let mut random = random(9);
    let mut parameters = initial(shape.channels, &mut random);
    // Other than the initial values, so that every term of the gradient matters: betas, and a negative gamma.
    let layout = layout(shape.channels);
    for tensor in layout.tensors() {
        for (i, value) in parameters[tensor.range.clone()].iter_mut().enumerate() {
            match tensor.name.rsplit('.').next() {
                _ if tensor.name.ends_with("norm.bias") => *value = (random() - 0.5) as f32 * 0.4,
                _ if tensor.name.ends_with("norm.weight") => {
                    *value = (0.5 + random()) as f32 * if i == 3 { -1.0 } else { 1.0 };
                }
                _ => {}
            }
        }
    }
    // Features of moderate length: otherwise every query is classified with certainty, and the gradient vanishes.
    let last = layout
        .tensors()
        .iter()
        .find(|tensor| tensor.name == "block4.norm.weight")
        .expect("a tensor of Conv4");
    parameters[last.range.clone()].iter_mut().for_each(|gamma| *gamma *= 0.3);
    parameters
}

fn weighted_mean(rows: &[&[f64]], weights: &[f64]) -> Vec<f64> {
    let total: f64 = weights.iter().sum();
    (0..rows[0].len())
        .map(|i| rows.iter().zip(weights).map(|(row, w)| w * row[i]).sum::<f64>() / total)
        .collect()
}

fn squared_distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum()
}

/// The loss in f64, written down as in the paper.
fn loss(features: &[f64], options: &Conv4Options) -> f64 {
    let rows: Vec<&[f64]> = features.chunks_exact(features.len() / options.images()).collect();
    let prototype = |class: usize| {
        let members: Vec<&[f64]> = (0..options.support)
            .filter(|&item| LABELS[item] as usize == class)
            .map(|item| rows[item])
            .collect();
        let mut point = weighted_mean(&members, &vec![1.0; members.len()]);
        let iterations = if options.prototypes == Prototypes::Median { MEDIAN_ITERATIONS } else { 0 };
        for _ in 0..iterations {
            // 0.5² is added, as in `kernels/prototypes.cu` (`MEDIAN_EPSILON`), to keep distances above zero.
            let weight = |row: &&[f64]| (squared_distance(&point, row) + 0.25).sqrt().recip();
            point = weighted_mean(&members, &members.iter().map(weight).collect::<Vec<_>>());
        }
        point
    };
    let prototypes: Vec<Vec<f64>> = (0..options.classes).map(prototype).collect();
    let query_loss = |query: usize| {
        let logits: Vec<f64> = prototypes.iter().map(|point| -squared_distance(rows[query], point)).collect();
        let largest = logits.iter().copied().fold(f64::MIN, f64::max);
        let total: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
        total.ln() + largest - logits[LABELS[query] as usize]
    };
    (options.support..options.images()).map(query_loss).sum::<f64>() / options.queries as f64
}

/// The gradient of the loss by central differences.
fn loss_gradient(features: &[f32], options: &Conv4Options) -> Vec<f32> {
    let mut features: Vec<f64> = features.iter().map(|&value| f64::from(value)).collect();
    (0..features.len())
        .map(|i| {
            let mut moved = |by: f64| {
                features[i] += by;
                let loss = loss(&features, options);
                features[i] -= by;
                loss
            };
            ((moved(1e-4) - moved(-1e-4)) / 2e-4) as f32
        })
        .collect()
}

#[test]
fn a_step_has_the_features_the_loss_and_the_gradient_of_the_cpu() {
    for (size, channels, prototypes) in
        [(16, 3, Prototypes::Mean), (21, 1, Prototypes::Median), (35, 3, Prototypes::Mean)]
    {
        let shape = Shape { size, channels };
        let options = options(shape, prototypes);
        let (images, parameters) = (images(shape, options.images()), parameters(shape));
        let mut pass = TrainingPass::new(shape, options.images());
        let features = pass.forward(&parameters, &images).to_vec();
        let wide: Vec<f64> = features.iter().map(|&value| f64::from(value)).collect();
        let loss = loss(&wide, &options);
        let mut gradient = vec![0.0; parameters.len()];
        pass.backward(&loss_gradient(&features, &options), &mut gradient);
        let mut after = parameters.clone();
        pass.update_running(&mut after);

        let mut training = Conv4Training::new(&device(), options, &parameters, None).unwrap();
        let input = StepInput { rate: 1e-3, labels: LABELS.to_vec(), images: StepImages::Prepared(images) };
        let losses = training.run(std::slice::from_ref(&input)).unwrap();
        assert!(relative_error(&training.features().unwrap(), &features) < 5e-3, "{shape:?}: features");
        assert!(
            (f64::from(losses[0]) - loss).abs() < 2e-2 * loss.max(0.1),
            "{shape:?}: {} and {loss}",
            losses[0]
        );
        let (found, updated) = (training.gradient().unwrap(), training.parameters().unwrap());
        for tensor in layout(shape.channels).tensors() {
            let range = tensor.range.clone();
            if tensor.name.contains("running") {
                let error = relative_error(&updated[range.clone()], &after[range]);
                assert!(error < 2e-3, "{shape:?} {}: {error}", tensor.name);
            } else if !tensor.name.ends_with("conv.bias") {
                let error = relative_error(&found[range.clone()], &gradient[range]);
                assert!(error < 0.12, "{shape:?} {}: {error}", tensor.name);
            }
        }
    }
}

#[test]
fn updates_are_those_of_adamw_with_clipping_and_weight_decay() {
    let shape = Shape { size: 16, channels: 1 };
    let optimiser = AdamWConfig { weight_decay: 0.3, ..Default::default() };
    let options = Conv4Options { optimiser, clip: 0.01, ..options(shape, Prototypes::Mean) };
    let (images, mut expected) = (images(shape, options.images()), parameters(shape));
    let mut training = Conv4Training::new(&device(), options, &expected, None).unwrap();
    let layout = layout(shape.channels);
    let mut adamw = trueshot_nn::adamw::AdamW::new(&layout, optimiser);
    for rate in [0.01, 0.02] {
        let input = StepInput { rate, labels: LABELS.to_vec(), images: StepImages::Prepared(images.clone()) };
        training.run(&[input]).unwrap();
        let gradient = training.gradient().unwrap();
        let norm = gradient.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
        assert!(norm > 0.01, "the gradient is clipped: {norm}");
        adamw.step(f64::from(rate), 0.01 / norm, &mut expected, &mut [gradient]);
        let updated = training.parameters().unwrap();
        for tensor in layout.tensors().iter().filter(|tensor| !tensor.name.contains("running")) {
            let range = tensor.range.clone();
            let error = relative_error(&updated[range.clone()], &expected[range]);
            assert!(error < 1e-5, "{}: {error}", tensor.name);
        }
    }
}

#[test]
fn a_restored_state_continues_with_the_same_bits() {
    let shape = Shape { size: 16, channels: 3 };
    let options = options(shape, Prototypes::Mean);
    let (images, parameters) = (images(shape, options.images()), parameters(shape));
    let input = StepInput { rate: 0.01, labels: LABELS.to_vec(), images: StepImages::Prepared(images) };
    let new = |parameters: &[f32]| Conv4Training::new(&device(), options.clone(), parameters, None).unwrap();
    let mut first = new(&parameters);
    first.run(std::slice::from_ref(&input)).unwrap();
    let state = first.state().unwrap();
    assert_eq!((state.updates, state.good_steps), (1, 1));
    let mut second = new(&vec![0.5; parameters.len()]);
    second.load(&state).unwrap();
    let losses = [first.run(std::slice::from_ref(&input)).unwrap(), second.run(&[input]).unwrap()];
    assert_eq!(losses[0], losses[1]);
    assert_eq!(first.state().unwrap(), second.state().unwrap());
}

#[test]
fn an_overflow_halves_the_scale_and_repeats_the_step() {
    let shape = Shape { size: 16, channels: 1 };
    let options = options(shape, Prototypes::Mean);
    let (images, parameters) = (images(shape, options.images()), parameters(shape));
    let input = StepInput { rate: 0.01, labels: LABELS.to_vec(), images: StepImages::Prepared(images) };
    let mut training = Conv4Training::new(&device(), options, &parameters, None).unwrap();
    let state = training.state().unwrap();
    let large = Conv4State { scale: 1e7, ..state };
    training.load(&large).unwrap();
    let losses = training.run(std::slice::from_ref(&input)).unwrap();
    let after = training.state().unwrap();
    assert!(losses.len() == 1 && losses[0].is_finite());
    assert!(after.scale < large.scale && after.updates == 1, "{} {}", after.scale, after.updates);
    // Features that overflow cannot be repaired by a smaller scale. Few scales are left to try.
    let mut broken = Conv4State { scale: 8.0 * SMALLEST_SCALE, ..after.clone() };
    let gamma =
        layout(1).tensors().iter().find(|tensor| tensor.name == "block4.norm.weight").unwrap().range.clone();
    broken.parameters[gamma].fill(1e6);
    training.load(&broken).unwrap();
    assert!(training.run(&[input]).unwrap()[0].is_nan());
    assert_eq!(training.state().unwrap().parameters, broken.parameters, "no update");
}

#[test]
fn embeddings_are_those_of_the_cpu_for_full_and_partial_batches() {
    for shape in [Shape { size: 20, channels: 3 }, Shape { size: 33, channels: 1 }] {
        let mut parameters = parameters(shape);
        let mut random = random(21);
        // Running statistics and biases as after some training.
        for tensor in layout(shape.channels).tensors() {
            if tensor.name.contains("running") || tensor.name.ends_with("conv.bias") {
                let offset = if tensor.name.ends_with("var") { 0.5 } else { -0.1 };
                parameters[tensor.range.clone()].fill_with(|| (offset + 0.3 * random()) as f32);
            }
        }
        let normalisation = [[4.0, -2.0], [4.2, -1.9], [3.9, -2.1]];
        let bytes: Vec<u8> = (0..3 * shape.pixels()).map(|_| (256.0 * random()) as u8).collect();
        let normalised: Vec<f32> = bytes
            .iter()
            .enumerate()
            .map(|(i, &value)| {
                let [scale, shift] = normalisation[i % shape.channels];
                f32::from(value) / 255.0 * scale + shift
            })
            .collect();
        let cpu = trueshot_nn::conv4::Conv4Embedder::new(shape, &parameters);
        let mut expected = vec![0.0; 3 * shape.features()];
        cpu.session().embed(&normalised, &mut expected);
        let mut gpu = Conv4Embedding::new(&device(), shape, 3, &parameters, normalisation).unwrap();
        let (all, one) = (gpu.embed(&bytes).unwrap(), gpu.embed(&bytes[..shape.pixels()]).unwrap());
        assert!(relative_error(&all, &expected) < 4e-3, "{shape:?}: {}", relative_error(&all, &expected));
        assert_eq!(one, all[..shape.features()]);
    }
}

/// Ten steps on the CPU with the same images.
fn cpu_run(options: &Conv4Options, start: &[f32], images: &[f32], rate: f64) -> Run {
    let layout = layout(options.shape.channels);
    let mut adamw = trueshot_nn::adamw::AdamW::new(&layout, options.optimiser);
    let mut pass = TrainingPass::new(options.shape, options.images());
    let (mut parameters, mut losses) = (start.to_vec(), Vec::new());
    for _ in 0..10 {
        let features = pass.forward(&parameters, images).to_vec();
        let wide: Vec<f64> = features.iter().map(|&value| f64::from(value)).collect();
        losses.push(loss(&wide, options));
        let mut gradient = vec![0.0; parameters.len()];
        pass.backward(&loss_gradient(&features, options), &mut gradient);
        pass.update_running(&mut parameters);
        // The gradient of a bias before batch norm is 0 but for rounding, which AdamW would magnify.
        for tensor in layout.tensors().iter().filter(|tensor| tensor.name.ends_with("conv.bias")) {
            gradient[tensor.range.clone()].fill(0.0);
        }
        adamw.step(rate, 1.0, &mut parameters, &mut [gradient]);
    }
    Run::new(losses, start, &parameters)
}

#[test]
fn ten_steps_are_those_of_the_cpu() {
    let shape = Shape { size: 16, channels: 3 };
    // With an epsilon this large, updates are proportional to gradients: with the usual one, the first updates depend
    // on the signs of gradients alone, also where these are almost 0.
    let optimiser = AdamWConfig { epsilon: 0.01, ..AdamWConfig::default() };
    let options = Conv4Options { optimiser, ..options(shape, Prototypes::Mean) };
    let (images, start) = (images(shape, options.images()), parameters(shape));
    let cpu = cpu_run(&options, &start, &images, 0.002);
    let input = StepInput { rate: 0.002, labels: LABELS.to_vec(), images: StepImages::Prepared(images) };
    let mut training = Conv4Training::new(&device(), options, &start, None).unwrap();
    let losses = training.run(&vec![input; 10]).unwrap();
    let parameters = training.parameters().unwrap();
    print_bits("conv4", &[&losses[..], &parameters[..]].concat());
    let own = Run::new(losses.iter().map(|&loss| f64::from(loss)).collect(), &start, &parameters);
    assert_same_run("conv4", &own, &cpu, 0.05, 0.05);
}

/// An image as bytes, `[row][column][channel]`.
struct ByteImage {
    pixels: Vec<u8>,
    width: usize,
    height: usize,
}

/// What `augment_images` computes, in f64 and one pixel at a time: `[row][column][channel]` in [0, 1].
fn augmented(image: &ByteImage, request: &ImageRequest, shape: Shape) -> Vec<f64> {
    let [left, top, width, height] = request.crop.map(usize::from);
    // The weight of pixel `from` of `count` in output `to`: a triangle as wide as the larger of both pixels.
    let weight = |from: usize, to: usize, count: usize| {
        let scale = count as f64 / shape.size as f64;
        let distance = from as f64 + 0.5 - (to as f64 + 0.5) * scale;
        (1.0 - (distance / scale.max(1.0)).abs()).max(0.0)
    };
    let mut out = Vec::new();
    for row in 0..shape.size {
        for column in 0..shape.size {
            let column = if request.flip == 1 { shape.size - 1 - column } else { column };
            for channel in 0..shape.channels {
                let (mut sum, mut total) = (0.0, 0.0);
                for (y, x) in (0..height).flat_map(|y| (0..width).map(move |x| (y, x))) {
                    let weight = weight(y, row, height) * weight(x, column, width);
                    let pixel = ((top + y) * image.width + left + x) * shape.channels + channel;
                    sum += weight * f64::from(image.pixels[pixel]) / 255.0;
                    total += weight;
                }
                out.push(sum / total);
            }
        }
    }
    for (number, &value) in request.values.iter().enumerate() {
        jitter(&mut out, request.jitters >> (2 * number) & 3, f64::from(value), shape.channels);
    }
    out
}

/// The grey level of a pixel.
fn grey(pixel: &[f64]) -> f64 {
    if pixel.len() == 1 { pixel[0] } else { 0.2989 * pixel[0] + 0.587 * pixel[1] + 0.114 * pixel[2] }
}

/// Applies a colour jitter: `kind` 0 is brightness, 1 contrast, 2 saturation, 3 hue (see [`ImageRequest`]).
fn jitter(image: &mut [f64], kind: u32, value: f64, channels: usize) {
    let mean = image.chunks(channels).map(grey).sum::<f64>() / (image.len() / channels) as f64;
    for pixel in image.chunks_mut(channels) {
        let grey_level = grey(pixel);
        let blend = |other: f64| move |channel: &mut f64| *channel = value * *channel + (1.0 - value) * other;
        match kind {
            0 => pixel.iter_mut().for_each(blend(0.0)),
            1 => pixel.iter_mut().for_each(blend(mean)),
            2 => pixel.iter_mut().for_each(blend(grey_level)),
            _ if channels == 3 => shift_hue(pixel, value),
            _ => {}
        }
        pixel.iter_mut().for_each(|channel| *channel = channel.clamp(0.0, 1.0));
    }
}

/// Shifts the hue by sixths of the circle, by the textbook conversion from RGB to HSV and back.
fn shift_hue(pixel: &mut [f64], shift: f64) {
    let [r, g, b] = [pixel[0], pixel[1], pixel[2]];
    let (value, least) = (r.max(g).max(b), r.min(g).min(b));
    let chroma = value - least;
    if chroma == 0.0 {
        return;
    }
    let hue = match () {
        () if value == r => (g - b) / chroma,
        () if value == g => 2.0 + (b - r) / chroma,
        () => 4.0 + (r - g) / chroma,
    };
    let hue = (hue + shift).rem_euclid(6.0);
    let second = least + chroma * (1.0 - (hue % 2.0 - 1.0).abs());
    let colour = match hue as usize {
        0 => [value, second, least],
        1 => [second, value, least],
        2 => [least, value, second],
        3 => [least, second, value],
        4 => [second, least, value],
        _ => [value, least, second],
    };
    pixel.copy_from_slice(&colour);
}

#[test]
fn images_are_cropped_resized_mirrored_and_jittered_as_the_formulas_say() {
    for (size, channels) in [(16, 3), (19, 1), (96, 3)] {
        let (shape, mut random) = (Shape { size, channels }, random(size as u64));
        let mut image = |width: usize, height: usize| ByteImage {
            pixels: (0..width * height * channels).map(|_| (256.0 * random()) as u8).collect(),
            width,
            height,
        };
        // Larger and smaller than the input of the network, and a single pixel. The last image is not requested.
        let images = [image(40, 33), image(7, 11), image(1, 1), image(2, 60)];
        let request = |image: u32, crop: [u16; 4], flip: u32, jitters: u32, values: [f32; 4]| ImageRequest {
            image,
            crop,
            flip,
            jitters,
            values,
        };
        // The values of jitters in the order brightness, contrast, saturation, hue that change nothing.
        let none = [1.0, 1.0, 1.0, 0.0];
        let requests = vec![
            request(0, [0, 0, 40, 33], 0, 0b11_10_01_00, none),
            request(0, [3, 5, 30, 28], 1, 0b11_10_01_00, [1.3, 0.6, 1.8, 0.7]),
            request(0, [39, 0, 1, 33], 1, 0b00_01_10_11, [-2.2, 0.3, 1.7, 0.8]),
            request(1, [0, 0, 7, 11], 0, 0b10_00_11_01, [0.5, 2.9, 1.4, 0.2]),
            request(1, [4, 7, 3, 4], 1, 0b01_11_00_10, [0.0, 1.2, -0.4, 1.5]),
            request(2, [0, 0, 1, 1], 0, 0b11_10_01_00, [1.1, 0.9, 1.2, 0.4]),
            request(1, [0, 7, 7, 4], 0, 0b11_10_01_00, none),
        ];
        let normalisation = [[4.0, -2.0], [4.3, -1.9], [0.5, 0.1]];
        let sources = images.iter().map(|image| (&image.pixels[..], image.width, image.height));
        let device = device();
        let on_device = DeviceImages::upload(&device, sources, normalisation).unwrap();
        let options = options(shape, Prototypes::Mean);
        let mut training = Conv4Training::new(&device, options, &parameters(shape), Some(on_device)).unwrap();
        let images_of_step = StepImages::Requests(requests.clone());
        let input = StepInput { rate: 0.0, labels: LABELS.to_vec(), images: images_of_step };
        let found = training.prepared_images(&input).unwrap();
        let expected =
            requests.iter().flat_map(|request| augmented(&images[request.image as usize], request, shape));
        assert_eq!(found.len(), requests.len() * shape.pixels());
        for (i, (found, expected)) in found.iter().zip(expected).enumerate() {
            let [scale, offset] = normalisation[i % channels].map(f64::from);
            let expected = scale * expected + offset;
            let tolerance = expected.abs() / 2048.0 + 1e-4; // of f16
            let request = requests[i / shape.pixels()];
            assert!(
                (f64::from(*found) - expected).abs() < tolerance,
                "{request:?} {i}: {found} and {expected}"
            );
        }
    }
}
