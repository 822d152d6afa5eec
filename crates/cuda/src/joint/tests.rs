//! Joint steps against the CPU: on an emulated device, or with the feature `gpu-tests` on GPU 0.
//!
//! The loss of nearest prototypes is tested with [`LinearHead`], a head whose loss is a sum of products of features and
//! constants; the heads themselves have their own tests.

use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::conv4::{Shape, TrainingPass, initial, layout};

use super::*;
use crate::conv4::StepImages;
use crate::driver::Device;
use crate::testing::{device, random, relative_error};

const SHAPE: Shape = Shape { size: 19, channels: 3 };
const CLASSES: usize = 3;

/// A head with the loss `sum of feature * coefficient`, whose gradient is a constant, and two parameters that never
/// change.
struct LinearHead {
    features: Buffer<f32>,
    gradient: Buffer<f32>,
    parameters: Buffer<f32>,
    squares: Buffer<f64>,
}

impl LinearHead {
    fn new(device: &Device, coefficients: &[f32], parameters: &[f32]) -> Self {
        LinearHead {
            features: device.zeros(coefficients.len()).unwrap(),
            gradient: device.upload(coefficients).unwrap(),
            parameters: device.upload(parameters).unwrap(),
            squares: device.upload(&[0.0]).unwrap(),
        }
    }
}

struct NoInput;

impl From<&JointStep> for NoInput {
    fn from(_: &JointStep) -> Self {
        NoInput
    }
}

impl HeadTraining for LinearHead {
    type StepInput = NoInput;
    type StepLosses = Vec<f32>;

    fn parameters(&self) -> &Buffer<f32> {
        &self.parameters
    }

    fn features(&self) -> &Buffer<f32> {
        &self.features
    }

    fn feature_gradient(&self) -> &Buffer<f32> {
        &self.gradient
    }

    fn prepare(&mut self, _: &[NoInput]) -> Result<bool> {
        Ok(false)
    }

    fn record_losses(&self) -> Result<()> {
        Ok(())
    }

    fn squares(&self) -> &Buffer<f64> {
        &self.squares
    }

    fn record_update(&self, _: &BackboneUpdate) -> Result<()> {
        Ok(())
    }

    fn finished_losses(&mut self) -> Result<Vec<Vec<f32>>> {
        Ok(Vec::new())
    }

    fn weights(&self) -> Result<HeadWeights> {
        Ok(HeadWeights { parameters: self.parameters.read()?, ..HeadWeights::default() })
    }

    fn load_weights(&mut self, weights: &HeadWeights) -> Result<()> {
        self.parameters.write(0, &weights.parameters)
    }
}

fn options(prototype_weight: f64) -> JointOptions {
    JointOptions {
        shape: SHAPE,
        images: 20,
        episodes: 3,
        classes: CLASSES,
        prototype_weight,
        optimiser: AdamWConfig::default(),
        clip: 0.0,
        feature_mean: None,
        subtracts_mean: false,
    }
}

fn episode(truth: &[Option<u32>], query_classes: &[u32]) -> JointEpisode {
    JointEpisode {
        classes: CLASSES,
        given: (0..truth.len()).map(|item| (item % CLASSES) as u32).collect(),
        truth: truth.to_vec(),
        query_classes: query_classes.to_vec(),
    }
}

/// Episodes with wrong labels, an outlier, and in one of them a class without an item of its own.
fn episodes() -> Vec<JointEpisode> {
    vec![
        episode(&[Some(0), Some(1), Some(2), Some(1), None], &[2, 0]),
        episode(&[Some(0), Some(1), Some(1)], &[1, 2]),
        episode(&[Some(2), Some(1), Some(0), Some(0)], &[0, 1]),
    ]
}

fn images(count: usize, seed: u64) -> Vec<f32> {
    let mut random = random(seed);
    (0..count * SHAPE.pixels()).map(|_| (2.0 * random() - 1.0) as f32).collect()
}

fn step(episodes: Vec<JointEpisode>, seed: u64) -> JointStep {
    let count = episodes.iter().map(JointEpisode::rows).sum();
    JointStep {
        rate: 1e-3,
        keep: 0.75,
        parts: vec![JointPart { dropout_seed: 1, episodes }],
        images: StepImages::Prepared(images(count, seed)),
    }
}

/// Parameters with features of moderate length, so that no query is classified with certainty.
fn parameters() -> Vec<f32> {
    let mut parameters = initial(SHAPE.channels, &mut random(9));
    let layout = layout(SHAPE.channels);
    let last = layout.tensors().iter().find(|tensor| tensor.name == "block4.norm.weight");
    parameters[last.expect("a tensor of Conv4").range.clone()].iter_mut().for_each(|gamma| *gamma *= 0.3);
    parameters
}

fn coefficients(rows: usize) -> Vec<f32> {
    let mut random = random(7);
    (0..rows * SHAPE.features()).map(|_| (random() - 0.5) as f32 * 0.02).collect()
}

/// The loss of nearest prototypes of all episodes in f64.
fn prototype_loss(features: &[f64], episodes: &[JointEpisode]) -> f64 {
    let rows: Vec<&[f64]> = features.chunks_exact(SHAPE.features()).collect();
    let (mut first, mut total) = (0, 0.0);
    for episode in episodes {
        let (items, queries) = rows[first..first + episode.rows()].split_at(episode.given.len());
        first += episode.rows();
        let members = |class: u32| {
            let own = items.iter().zip(&episode.truth).filter(move |(_, truth)| **truth == Some(class));
            own.map(|(row, _)| *row).collect::<Vec<_>>()
        };
        let classes: Vec<Vec<&[f64]>> = (0..CLASSES as u32).map(members).collect();
        if classes.iter().any(Vec::is_empty) {
            continue;
        }
        let mean = |rows: &Vec<&[f64]>| -> Vec<f64> {
            (0..SHAPE.features())
                .map(|i| rows.iter().map(|row| row[i]).sum::<f64>() / rows.len() as f64)
                .collect()
        };
        let points: Vec<Vec<f64>> = classes.iter().map(mean).collect();
        for (query, &class) in queries.iter().zip(&episode.query_classes) {
            let logit =
                |point: &Vec<f64>| -point.iter().zip(*query).map(|(p, q)| (p - q).powi(2)).sum::<f64>();
            let logits: Vec<f64> = points.iter().map(logit).collect();
            let total_exp: f64 = logits.iter().map(|logit| logit.exp()).sum();
            total += (total_exp.ln() - logits[class as usize]) / queries.len() as f64;
        }
    }
    total / episodes.len() as f64
}

/// The gradient of [`prototype_loss`] by central differences.
fn prototype_gradient(features: &[f32], episodes: &[JointEpisode]) -> Vec<f32> {
    let mut features: Vec<f64> = features.iter().map(|&value| f64::from(value)).collect();
    let count = features.len();
    let at = |i: usize| {
        let mut moved = |by: f64| {
            features[i] += by;
            let loss = prototype_loss(&features, episodes);
            features[i] -= by;
            loss
        };
        ((moved(1e-4) - moved(-1e-4)) / 2e-4) as f32
    };
    (0..count).map(at).collect()
}

/// The features, the weighted loss of prototypes and the gradient of the backbone on the CPU.
fn on_the_cpu(weight: f64, step: &JointStep, coefficients: &[f32]) -> (Vec<f32>, f64, Vec<f32>) {
    let StepImages::Prepared(images) = &step.images else { panic!("prepared images") };
    let (episodes, parameters) = (&step.parts[0].episodes, parameters());
    let mut pass = TrainingPass::new(SHAPE, images.len() / SHAPE.pixels());
    let features = pass.forward(&parameters, images).to_vec();
    let wide: Vec<f64> = features.iter().map(|&value| f64::from(value)).collect();
    let of_prototypes = prototype_gradient(&features, episodes);
    let d_features: Vec<f32> =
        of_prototypes.iter().zip(coefficients).map(|(d, c)| weight as f32 * d + c).collect();
    let mut gradient = vec![0.0; parameters.len()];
    pass.backward(&d_features, &mut gradient);
    (features, weight * prototype_loss(&wide, episodes), gradient)
}

#[test]
fn the_backbone_gets_the_gradients_of_head_and_prototypes() {
    for weight in [0.0, 0.7] {
        let device = device();
        let step = step(episodes(), 5);
        let rows = step.size().images;
        let coefficients = coefficients(20);
        let (features, loss, gradient) = on_the_cpu(weight, &step, &coefficients);
        let head = LinearHead::new(&device, &coefficients, &[0.5, -0.5]);
        let mut training = JointTraining::new(&device, options(weight), &parameters(), head, None).unwrap();
        let losses = training.run(std::slice::from_ref(&step)).unwrap();
        let found = training.head().features.read().unwrap();
        assert!(relative_error(&found[..rows * SHAPE.features()], &features) < 5e-3, "features");
        let own_loss = f64::from(losses[0][0]);
        assert!((own_loss - loss).abs() < 2e-2 * loss.max(0.1), "weight {weight}: {own_loss} and {loss}");
        let own = training.backbone_gradient().unwrap();
        for tensor in layout(SHAPE.channels).tensors() {
            if tensor.name.contains("running") || tensor.name.ends_with("conv.bias") {
                continue;
            }
            let error = relative_error(&own[tensor.range.clone()], &gradient[tensor.range.clone()]);
            assert!(error < 5e-2, "weight {weight}: {} {error}", tensor.name);
        }
    }
}

#[test]
fn steps_of_other_sizes_and_overflows_do_not_change_later_steps() {
    let device = device();
    let large = step(episodes(), 5);
    let small = step(episodes()[..2].to_vec(), 6);
    let run = |steps: &[JointStep], scale: f32| {
        let head = LinearHead::new(&device, &coefficients(20), &[0.5, -0.5]);
        let mut training = JointTraining::new(&device, options(0.5), &parameters(), head, None).unwrap();
        let mut state = training.state().unwrap();
        state.backbone.scale = scale;
        training.load(&state).unwrap();
        training.run(steps).unwrap();
        training.state().unwrap()
    };
    // A scale that overflows is halved until it does not. Then the steps are those of a run that starts with it.
    let first = run(std::slice::from_ref(&large), 1e6);
    let scale = first.backbone.scale;
    assert!(scale < 1e6 && first.backbone.updates == 1, "{scale}");
    let both = run(&[large.clone(), small.clone()], 1e6);
    assert!(both == run(&[large, small.clone()], scale), "the same steps from the scale that is left");
    // The memory that a larger step has used does not change a smaller one.
    let continued = {
        let head = LinearHead::new(&device, &coefficients(20), &[0.5, -0.5]);
        let mut training = JointTraining::new(&device, options(0.5), &parameters(), head, None).unwrap();
        training.load(&first).unwrap();
        training.run(std::slice::from_ref(&small)).unwrap();
        training.state().unwrap()
    };
    assert!(both == continued, "the same step in new memory");
}

#[test]
fn graphs_of_another_size_than_the_step_do_nothing() {
    let device = device();
    let (large, small) = (step(episodes(), 5), step(episodes()[..2].to_vec(), 6));
    let head = LinearHead::new(&device, &coefficients(20), &[0.5, -0.5]);
    let mut training = JointTraining::new(&device, options(0.5), &parameters(), head, None).unwrap();
    training.prepare(std::slice::from_ref(&small)).unwrap();
    training.prepare(std::slice::from_ref(&large)).unwrap();
    let before = training.state().unwrap();
    training.graphs[&small.size()].launch().unwrap();
    assert_eq!(training.state().unwrap(), before);
    training.graphs[&large.size()].launch().unwrap();
    assert_eq!(training.state().unwrap().backbone.updates, 1);
}

#[test]
fn the_average_follows_the_parameters_and_the_mean_the_features() {
    let device = device();
    let step = step(episodes(), 5);
    let dim = SHAPE.features();
    let start: Vec<f32> = (0..dim + 2).map(|i| i as f32 * 0.01).collect();
    let options = JointOptions { feature_mean: Some(1..dim + 1), ..options(0.5) };
    let head = LinearHead::new(&device, &coefficients(20), &start);
    let mut training = JointTraining::new(&device, options, &parameters(), head, None).unwrap();
    let before = training.average().unwrap();
    training.run(std::slice::from_ref(&step)).unwrap();
    let state = training.state().unwrap();
    let now = [&state.backbone.parameters[..], &state.head.parameters].concat();
    for ((&average, &before), &now) in state.average.iter().zip(&before).zip(&now) {
        let expected = now + 0.75 * (before - now);
        assert!((average - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{average} and {expected}");
    }
    let features = training.head().features.read().unwrap();
    let rows = step.size().images;
    for column in 0..dim {
        let mean = (0..rows).map(|row| features[row * dim + column]).sum::<f32>() / rows as f32;
        let expected = start[column + 1] + 0.01 * (mean - start[column + 1]);
        let found = state.head.parameters[column + 1];
        assert!((found - expected).abs() < 1e-5, "{found} and {expected}");
    }
    assert_eq!((state.head.parameters[0], state.head.parameters[dim + 1]), (start[0], start[dim + 1]));
}
