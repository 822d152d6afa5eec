//! A head and a Conv4 in training together.

use trueshot_nn::conv4::{Shape, initial};
use trueshot_nn::head::JointHead;

use super::*;
use crate::conv4::StepImages;
use crate::joint::{
    HeadTraining, JointEpisode, JointOptions, JointPart, JointState, JointStep, JointTraining,
};

const SHAPE: Shape = Shape { size: 19, channels: 3 };

/// Episodes with a wrong label and an outlier; every item and query has an image of its own.
fn step(count: usize, seed: u64) -> JointStep {
    let episodes = [
        JointEpisode {
            classes: 2,
            given: vec![0, 1, 0, 1, 1],
            truth: vec![Some(0), Some(1), Some(1), Some(1), None],
            query_classes: vec![0, 1, 1],
        },
        JointEpisode {
            classes: 3,
            given: vec![0, 1, 2, 2],
            truth: vec![Some(0), Some(1), Some(2), Some(0)],
            query_classes: vec![2, 0],
        },
    ][..count]
        .to_vec();
    let mut random = random(seed);
    let pixels = episodes.iter().map(JointEpisode::rows).sum::<usize>() * SHAPE.pixels();
    let images = (0..pixels).map(|_| (2.0 * random() - 1.0) as f32).collect();
    JointStep {
        rate: 1e-3,
        keep: 0.75,
        parts: vec![JointPart { dropout_seed: 7, episodes }],
        images: StepImages::Prepared(images),
    }
}

struct Models {
    network: Relabel,
    head: Vec<f32>,
    backbone: Vec<f32>,
}

impl Models {
    fn new() -> Self {
        Self::with(Config { centred: true, ..small() })
    }

    /// A head that centres items and queries on the mean of all features ([`Config::training_centre`]).
    fn with_training_centre() -> Self {
        Self::with(Config { training_centre: Some(SHAPE.features()), ..small() })
    }

    /// A head of this configuration with one layer and an item view.
    fn with(config: Config) -> Self {
        let view = ItemView { dropout: 0.2, width: 6, ..ItemView::new(SHAPE.features()) };
        let network = Relabel::new(Config { layers: 1, item_view: Some(view), ..config });
        let head = parameters(&network, 5);
        Models { network, head, backbone: initial(SHAPE.channels, &mut random(9)) }
    }

    fn training(&self) -> JointTraining<RelabelTraining> {
        let (device, clip) = (device(), 1.0);
        let options = JointOptions {
            shape: SHAPE,
            images: 14,
            episodes: 2,
            classes: 3,
            prototype_weight: 0.5,
            optimiser: AdamWConfig::default(),
            clip,
            feature_mean: self.network.feature_mean(),
            subtracts_mean: self.network.subtracts_feature_mean(),
        };
        let of_head = OptimiserOptions { clip, ..OptimiserOptions::default() };
        let dim = SHAPE.features();
        let head = RelabelTraining::joint(&device, &self.network, of_head, &self.head, 14, dim).unwrap();
        JointTraining::new(&device, options, &self.backbone, head, None).unwrap()
    }
}

#[test]
fn a_step_with_a_conv4_has_the_losses_and_gradients_of_its_features() {
    check_step(&Models::new());
}

#[test]
fn a_step_of_a_head_with_a_training_centre_has_the_losses_and_gradients_of_its_features() {
    check_step(&Models::with_training_centre());
}

/// Compares a step with the head on the CPU, on the features that the backbone computed on the device.
fn check_step(models: &Models) {
    let step = step(2, 3);
    let mut training = models.training();
    let losses = training.run(std::slice::from_ref(&step)).unwrap().remove(0);
    let dim = SHAPE.features();
    let features = training.features().read().unwrap();
    let mut rows = features.chunks_exact(dim).map(<[f32]>::to_vec);
    let owned = |episode: &JointEpisode| OwnedEpisode {
        classes: episode.classes,
        dim,
        given: episode.given.clone(),
        truth: episode.truth.clone(),
        query_classes: episode.query_classes.clone(),
        rows: rows.by_ref().take(episode.rows()).collect(),
    };
    let episodes: Vec<OwnedEpisode> = step.parts[0].episodes.iter().map(owned).collect();
    let (terms, _, expected) = joint::cpu_gradients(&models.network, &models.head, &[(&episodes, 7)]);
    for (found, expected) in losses.iter().zip(&terms) {
        assert!((f64::from(*found) - expected).abs() < 1e-2 * expected.max(0.1), "{found} and {expected}");
    }
    let found = training.head().feature_gradient().read().unwrap();
    let error = relative_error(&found[..expected.len()], &expected);
    assert!(error < 1e-2, "{error}");
    let state = training.state().unwrap();
    assert!(state.head.updates == 1 && state.head.parameters != models.head);
}

#[test]
fn a_step_with_a_conv4_that_overflows_is_repeated_with_the_same_inputs() {
    let models = Models::new();
    let steps = [step(2, 3), step(1, 4)];
    let run = |scale: f32| -> JointState {
        let mut training = models.training();
        let mut state = training.state().unwrap();
        state.backbone.scale = scale;
        training.load(&state).unwrap();
        assert_eq!(training.run(&steps).unwrap().len(), 2);
        training.state().unwrap()
    };
    let after = run(1e8);
    assert!(after.backbone.scale < 1e8 && after.head.updates == 2, "{}", after.backbone.scale);
    assert!(after == run(after.backbone.scale), "the same steps from the scale that is left");
}
