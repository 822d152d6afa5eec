//! Training steps on the emulated device against the CPU's training pass.

use trueshot_nn::conv4::{TrainingPass, initial};

use super::*;
use crate::emulator_tests::{device, random, relative_error};

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
    parameters
}

/// Loss and gradient of the features for means, in f64.
fn mean_loss(features: &[f32], options: &Conv4Options) -> (f64, Vec<f32>) {
    let dim = features.len() / options.images();
    let row = |image: usize| &features[image * dim..(image + 1) * dim];
    let members = |class: usize| (0..options.support).filter(move |&item| LABELS[item] as usize == class);
    let prototypes: Vec<Vec<f64>> = (0..options.classes)
        .map(|class| {
            let count = members(class).count() as f64;
            (0..dim)
                .map(|i| members(class).map(|item| f64::from(row(item)[i])).sum::<f64>() / count)
                .collect()
        })
        .collect();
    let (mut loss, mut gradient) = (0.0, vec![0.0; features.len()]);
    for query in options.support..options.images() {
        let logit = |class: usize| -> f64 {
            -row(query).iter().zip(&prototypes[class]).map(|(q, p)| (f64::from(*q) - p).powi(2)).sum::<f64>()
        };
        let logits: Vec<f64> = (0..options.classes).map(logit).collect();
        let largest = logits.iter().copied().fold(f64::MIN, f64::max);
        let total: f64 = logits.iter().map(|logit| (logit - largest).exp()).sum();
        let own = LABELS[query] as usize;
        loss += (total.ln() + largest - logits[own]) / options.queries as f64;
        for class in 0..options.classes {
            let target = if class == own { 1.0 } else { 0.0 };
            let d = ((logits[class] - largest).exp() / total - target) / options.queries as f64;
            for i in 0..dim {
                let difference = 2.0 * d * (f64::from(row(query)[i]) - prototypes[class][i]);
                gradient[query * dim + i] -= difference;
                for item in members(class) {
                    gradient[item * dim + i] += difference / members(class).count() as f64;
                }
            }
        }
    }
    (loss, gradient.into_iter().map(|value| value as f32).collect())
}

#[test]
fn a_step_has_the_features_the_loss_and_the_gradient_of_the_cpu() {
    for shape in
        [Shape { size: 16, channels: 3 }, Shape { size: 21, channels: 1 }, Shape { size: 35, channels: 3 }]
    {
        let options = options(shape, Prototypes::Mean);
        let (images, parameters) = (images(shape, options.images()), parameters(shape));
        let mut pass = TrainingPass::new(shape, options.images());
        let features = pass.forward(&parameters, &images).to_vec();
        let (loss, d_features) = mean_loss(&features, &options);
        let mut gradient = vec![0.0; parameters.len()];
        pass.backward(&d_features, &mut gradient);
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
        let (own, updated) = (training.gradient().unwrap(), training.parameters().unwrap());
        for tensor in layout(shape.channels).tensors() {
            let range = tensor.range.clone();
            if tensor.name.contains("running") {
                let error = relative_error(&updated[range.clone()], &after[range]);
                assert!(error < 2e-3, "{shape:?} {}: {error}", tensor.name);
            } else if !tensor.name.ends_with("conv.bias") {
                let error = relative_error(&own[range.clone()], &gradient[range]);
                println!("{shape:?} {}: {error:.4}", tensor.name);
                assert!(error < 0.12, "{shape:?} {}: {error}", tensor.name);
            }
        }
    }
}
