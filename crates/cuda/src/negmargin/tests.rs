//! Training steps against the CPU's loss and training pass: on an emulated device, or with the feature `gpu-tests` on
//! GPU 0.

use half::f16;
use trueshot_nn::adamw::AdamW;
use trueshot_nn::conv4::{TrainingPass, initial, layout};
use trueshot_nn::layers::cosine_margin::{Margin, cosine_margin};
use trueshot_nn::parameters::{ParameterLayout, Role};

use super::*;
use crate::conv4::{Chunk, SMALLEST_SCALE, StepImages};
use crate::testing::{
    Run, assert_same_run, device, exact_device, print_bits, random, relative_error, tolerance,
};

fn options(shape: Shape, images: usize, classes: usize) -> NegMarginOptions {
    // A small scale, so that images are not classified with certainty.
    let optimiser = AdamWConfig { weight_decay: 0.0, l2: 1e-4, ..Default::default() };
    NegMarginOptions { shape, images, classes, scale: 10.0, margin: -0.05, optimiser, clip: 0.0 }
}

fn labels(options: &NegMarginOptions) -> Vec<u32> {
    (0..options.images).map(|image| (image * 7 % options.classes) as u32).collect()
}

/// Images whose classes differ in brightness.
fn input(options: &NegMarginOptions, rate: f32) -> StepInput {
    let (mut random, labels, pixels) = (random(5), labels(options), options.shape.pixels());
    let images = (0..options.images * pixels)
        .map(|i| (2.0 * random() - 1.0) as f32 + 0.3 * labels[i / pixels] as f32)
        .collect();
    StepInput { rate, labels, images: StepImages::Prepared(images) }
}

fn images(input: &StepInput) -> &[f32] {
    let StepImages::Prepared(images) = &input.images else { panic!("prepared images") };
    images
}

fn parameters(options: &NegMarginOptions) -> Vec<f32> {
    let mut random = random(9);
    let mut parameters = initial(options.shape.channels, &mut random);
    for tensor in layout(options.shape.channels).tensors() {
        if tensor.name.ends_with("norm.bias") {
            parameters[tensor.range.clone()].fill_with(|| (random() - 0.3) as f32 * 0.4);
        }
    }
    parameters.extend((0..options.classes * options.shape.features()).map(|_| (random() - 0.5) as f32));
    parameters
}

fn whole_layout(options: &NegMarginOptions) -> ParameterLayout {
    let mut layout = layout(options.shape.channels);
    layout.add("directions", &[options.classes, options.shape.features()], Role::Trained);
    layout
}

/// The loss of the CPU, the gradient of the features and that of the directions.
fn cpu_loss(options: &NegMarginOptions, features: &[f32], directions: &[f32]) -> (f64, Vec<f32>, Vec<f32>) {
    let margin = Margin { scale: options.scale, margin: options.margin };
    let (mut d_features, mut d_directions) = (vec![0.0; features.len()], vec![0.0; directions.len()]);
    let loss =
        cosine_margin(features, directions, &labels(options), margin, &mut d_features, &mut d_directions);
    (loss, d_features, d_directions)
}

/// The values of a plane of features (`kernels/common.cuh`), `[image][64][side][side]`.
fn unpacked(plane: &Buffer<Chunk>, options: &NegMarginOptions) -> Vec<f32> {
    let (values, side) = (plane.read().unwrap(), options.shape.side(BLOCKS));
    let mut out = Vec::new();
    for image in 0..options.images {
        for (channel, pixel) in (0..WIDTH).flat_map(|c| (0..side * side).map(move |p| (c, p))) {
            let position = (image * (side + 1) + pixel / side) * (side + 1) + pixel % side;
            let pair = values[position * 8 + channel / 8][channel % 8 / 2];
            out.push(f16::from_bits((pair >> (16 * (channel % 2))) as u16).to_f32());
        }
    }
    out
}

#[test]
fn a_step_has_the_loss_and_the_gradients_of_the_cpu() {
    // Fewer than a tile, and several tiles; one pixel of features, and four.
    for (size, channels, images, classes) in [(16, 3, 7, 5), (32, 1, 18, 19), (17, 1, 3, 70)] {
        let options = options(Shape { size, channels }, images, classes);
        let (mut start, input) = (parameters(&options), input(&options, 1e-3));
        let backbone = layout(channels).len();
        let features_len = options.shape.features();
        // A direction of length 0 has no gradient.
        start[backbone + 2 * features_len..backbone + 3 * features_len].fill(0.0);
        let mut training = NegMarginTraining::new(&exact_device(), &options, &start, None).unwrap();
        let losses = training.run(std::slice::from_ref(&input)).unwrap();
        let gradient = training.gradient().unwrap();

        // The loss itself, from the features of the device.
        let features = unpacked(training.network.features(), &options);
        let (loss, d_features, d_directions) = cpu_loss(&options, &features, &start[backbone..]);
        let error = (f64::from(losses[0]) - loss).abs() / loss;
        assert!(error < tolerance(1e-5, 1e-3), "{size} px: the losses {} and {loss}", losses[0]);
        let scale = training.state().unwrap().scale;
        let of_device = unpacked(training.network.feature_gradient(), &options);
        let own: Vec<f32> = of_device.iter().map(|d| d / scale).collect();
        let error = relative_error(&own, &d_features);
        assert!(error < tolerance(5e-4, 3e-3), "{size} px: gradient of the features: {error}");
        let error = relative_error(&gradient[backbone..], &d_directions);
        assert!(error < tolerance(1e-5, 2e-3), "{size} px: gradient of the directions: {error}");
        assert!(gradient[backbone + 2 * features_len..][..features_len].iter().all(|&d| d == 0.0));

        // The whole step.
        let mut pass = TrainingPass::new(options.shape, images);
        let features = pass.forward(&start, self::images(&input)).to_vec();
        let (loss, d_features, d_directions) = cpu_loss(&options, &features, &start[backbone..]);
        let mut expected = vec![0.0; backbone];
        pass.backward(&d_features, &mut expected);
        expected.extend(d_directions);
        assert!((f64::from(losses[0]) - loss).abs() < 2e-2 * loss, "{size} px: {} and {loss}", losses[0]);
        for tensor in whole_layout(&options).tensors() {
            // The gradient of a bias before batch norm is 0 but for rounding.
            if tensor.role == Role::Trained && !tensor.name.ends_with("conv.bias") {
                let range = tensor.range.clone();
                let error = relative_error(&gradient[range.clone()], &expected[range]);
                // A few maxima of the pooling differ, which changes the gradient of block 1 most.
                assert!(error < 0.25, "{size} px, {}: {error}", tensor.name);
            }
        }
    }
}

#[test]
fn updates_are_those_of_adam_with_one_norm_that_is_clipped() {
    for clip in [0.0, 0.01] {
        let options = options(Shape { size: 16, channels: 1 }, 6, 11);
        let optimiser = AdamWConfig { l2: 0.05, ..options.optimiser };
        let options = NegMarginOptions { optimiser, clip, ..options };
        let layout = whole_layout(&options);
        let mut expected = parameters(&options);
        let mut training = NegMarginTraining::new(&device(), &options, &expected, None).unwrap();
        let mut adam = AdamW::new(&layout, optimiser);
        for rate in [0.01, 0.02, 0.005] {
            training.run(&[input(&options, rate)]).unwrap();
            let gradient = training.gradient().unwrap();
            let norm = gradient.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
            assert!(norm > 0.01, "the gradient is clipped: {norm}");
            let factor = if clip > 0.0 { clip / norm } else { 1.0 };
            adam.step(f64::from(rate), factor, &mut expected, &mut [gradient]);
            let updated = training.parameters().unwrap();
            for tensor in layout.tensors().iter().filter(|tensor| tensor.role == Role::Trained) {
                let range = tensor.range.clone();
                let error = relative_error(&updated[range.clone()], &expected[range]);
                // Rounding is magnified where gradient and L2 term cancel.
                assert!(error < 5e-5, "clip {clip}, {}: {error}", tensor.name);
            }
        }
        assert_eq!(
            training.backbone().unwrap(),
            training.parameters().unwrap()[..training.network.parameters.len()]
        );
    }
}

#[test]
fn a_restored_state_continues_with_the_same_bits() {
    let options = options(Shape { size: 32, channels: 1 }, 5, 6);
    let (start, input) = (parameters(&options), input(&options, 0.01));
    let new = |parameters: &[f32]| NegMarginTraining::new(&device(), &options, parameters, None).unwrap();
    let mut first = new(&start);
    first.run(&vec![input.clone(); 2]).unwrap();
    let state = first.state().unwrap();
    assert_eq!((state.updates, state.good_steps, state.parameters.len()), (2, 2, start.len()));
    let mut second = new(&vec![0.5; start.len()]);
    second.load(&state).unwrap();
    assert_eq!(second.state().unwrap(), state);
    let losses = [first.run(std::slice::from_ref(&input)).unwrap(), second.run(&[input]).unwrap()];
    assert_eq!(losses[0], losses[1]);
    assert_eq!(first.state().unwrap(), second.state().unwrap());
}

#[test]
fn an_overflow_changes_nothing_and_the_step_is_repeated_with_a_smaller_scale() {
    let options = options(Shape { size: 16, channels: 1 }, 6, 5);
    let (start, input) = (parameters(&options), input(&options, 0.01));
    let mut training = NegMarginTraining::new(&device(), &options, &start, None).unwrap();
    let large = Conv4State { scale: 2f32.powi(27), ..training.state().unwrap() };
    training.load(&large).unwrap();
    let losses = training.run(std::slice::from_ref(&input)).unwrap();
    let after = training.state().unwrap();
    assert!(losses.len() == 1 && losses[0].is_finite());
    assert!(after.scale < large.scale && after.updates == 1, "{} {}", after.scale, after.updates);
    let mut direct = NegMarginTraining::new(&device(), &options, &start, None).unwrap();
    direct.load(&Conv4State { scale: after.scale, ..large.clone() }).unwrap();
    assert_eq!(direct.run(std::slice::from_ref(&input)).unwrap(), losses);
    assert_eq!(direct.state().unwrap(), after, "as if there had been no attempt before");

    // Features that overflow cannot be repaired by a smaller scale. Few scales are left to try.
    let mut broken = Conv4State { scale: 8.0 * SMALLEST_SCALE, ..after };
    let layout = layout(1);
    let gamma = layout.tensors().iter().find(|tensor| tensor.name == "block4.norm.weight").unwrap();
    broken.parameters[gamma.range.clone()].fill(1e6);
    training.load(&broken).unwrap();
    assert!(training.run(&[input]).unwrap()[0].is_nan());
    assert_eq!(training.state().unwrap().parameters, broken.parameters, "no update");
}

/// Ten steps on the CPU with the same images.
fn cpu_run(options: &NegMarginOptions, start: &[f32], input: &StepInput) -> Run {
    let (layout, backbone) = (whole_layout(options), layout(options.shape.channels).len());
    let mut adam = AdamW::new(&layout, options.optimiser);
    let mut pass = TrainingPass::new(options.shape, options.images);
    let (mut parameters, mut losses) = (start.to_vec(), Vec::new());
    for _ in 0..10 {
        let features = pass.forward(&parameters, images(input)).to_vec();
        let (loss, d_features, d_directions) = cpu_loss(options, &features, &parameters[backbone..]);
        losses.push(loss);
        let mut gradient = vec![0.0; backbone];
        pass.backward(&d_features, &mut gradient);
        pass.update_running(&mut parameters);
        // The gradient of a bias before batch norm is 0 but for rounding, which Adam would magnify.
        for tensor in layout.tensors().iter().filter(|tensor| tensor.name.ends_with("conv.bias")) {
            gradient[tensor.range.clone()].fill(0.0);
        }
        gradient.extend(d_directions);
        adam.step(f64::from(input.rate), 1.0, &mut parameters, &mut [gradient]);
    }
    Run::new(losses, start, &parameters)
}

#[test]
fn ten_steps_are_those_of_the_cpu() {
    let options = options(Shape { size: 16, channels: 3 }, 9, 5);
    // With an epsilon this large, updates are proportional to gradients: with the usual one, the first updates depend
    // on the signs of gradients alone, also where these are almost 0.
    let optimiser = AdamWConfig { epsilon: 0.01, ..options.optimiser };
    let options = NegMarginOptions { optimiser, ..options };
    let (start, input) = (parameters(&options), input(&options, 0.002));
    let cpu = cpu_run(&options, &start, &input);
    let mut training = NegMarginTraining::new(&device(), &options, &start, None).unwrap();
    let losses = training.run(&vec![input; 10]).unwrap();
    let parameters = training.parameters().unwrap();
    print_bits("negmargin", &[&losses[..], &parameters[..]].concat());
    let own = Run::new(losses.iter().map(|&loss| f64::from(loss)).collect(), &start, &parameters);
    assert_same_run("negmargin", &own, &cpu, 0.05, 0.05);
}
