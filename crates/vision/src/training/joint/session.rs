//! The training session of a backbone and a head on the CPU: [`CpuJointSession`], which [`super::JointTrainee`] calls
//! once per step. Start with its method `step`, at the end of this file.
//!
//! The backbone (a Conv4) turns images into features; the head (TraNFS or Relabel) classifies the queries of an episode
//! by its support items, whose labels may be wrong. The parameters of both are one list, those of the backbone first,
//! with one optimiser. The images of all episodes of a step are one batch of the backbone, so batch norm sees all of
//! them. The gradients of the head and of the loss of nearest prototypes with respect to the features are added, and
//! backpropagated through the backbone.
//!
//! Features are `[row, D]`: for each episode of the step the rows of its support items, then those of its queries. The
//! prefix `d_` marks the gradient of the loss with respect to a value, of the same shape.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use rayon::prelude::*;
use trueshot::model::{flat, named};
use trueshot::tensors::Tensors;
use trueshot::training::heads::{EpisodeLabels, LearnedHead};
use trueshot::training::{CpuWeights, TrainingSession};
use trueshot_nn::Isa;
use trueshot_nn::conv4::{Shape, TrainingPass};
use trueshot_nn::head::{Episode, FEATURE_MEAN_RATE};
use trueshot_nn::parameters::ParameterLayout;

use super::batches::JointBatch;
use crate::training::loss::{self, Aggregate, loss};

/// The episodes of a step are divided into this number of parts, each with its own gradient of the head. The gradients
/// are added in a fixed order, so the number of threads does not change the result. At most this number of threads work
/// on the head.
pub(super) const PARTS: usize = 8;
/// The warm-up of the running average: its decay is at most `(1 + step) / (AVERAGE_START + step)`, so 0.1 in the first
/// step. With the default decay of 0.999 alone, the initial parameters would dominate the first thousand steps.
const AVERAGE_START: f64 = 10.0;

/// The layout of the parameters of a backbone and a head: the tensors of both, with the prefixes `backbone.` and
/// `head.`.
pub(super) fn joint_layout(backbone: &ParameterLayout, head: &ParameterLayout) -> ParameterLayout {
    let mut layout = ParameterLayout::default();
    for (prefix, part) in [("backbone.", backbone), ("head.", head)] {
        for tensor in part.tensors() {
            layout.add(format!("{prefix}{}", tensor.name), &tensor.shape, tensor.role);
        }
    }
    layout
}

/// A backbone and a head in training on the CPU.
pub(super) struct CpuJointSession {
    pub weights: CpuWeights,
    pub head: Arc<dyn LearnedHead>,
    /// The number of parameters of the backbone, which come first.
    pub backbone_len: usize,
    /// Size and channels of the images.
    pub shape: Shape,
    /// The factor of the loss of nearest prototypes; 0: without it.
    pub prototype_weight: f64,
    /// The decay of the running average of the parameters.
    pub decay: f64,
    /// The running average of the parameters, which is validated and saved as the model.
    pub average: Vec<f32>,
    /// The activations of the backbone in the last step, with the number of images that they have memory for. Steps of
    /// the same number of images reuse the memory.
    pub pass: Option<(usize, TrainingPass)>,
}

impl CpuJointSession {
    /// The sums of all loss terms over the episodes of a step, the head's terms first, and the gradient of their total
    /// with respect to the features. Adds to the gradients of the head's parameters.
    fn losses(&mut self, batch: &JointBatch, features: &[f32]) -> (Vec<f64>, Vec<f32>) {
        let mut d_features = vec![0.0; features.len()];
        let mut terms = self.head_losses(batch, features, &mut d_features);
        if self.prototype_weight > 0.0 {
            terms.push(self.prototype_losses(batch, features, &mut d_features));
        }
        (terms, d_features)
    }

    /// The sum of [`prototype_loss`] over the episodes of a step. Adds to the gradients of the features.
    fn prototype_losses(&self, batch: &JointBatch, features: &[f32], d_features: &mut [f32]) -> f64 {
        let (dim, weight) = (self.shape.features(), self.prototype_weight);
        // One task per episode: its labels, its features, and the gradients of these features.
        let (mut remaining, mut tasks) = (d_features, Vec::new());
        for (labels, rows) in batch.labels.iter().zip(rows_of_episodes(&batch.labels)) {
            let (d_rows, after) = remaining.split_at_mut(rows.len() * dim);
            tasks.push((labels, &features[rows.start * dim..rows.end * dim], d_rows));
            remaining = after;
        }
        let loss = |(labels, features, d_rows): (&EpisodeLabels, &[f32], &mut [f32])| {
            prototype_loss(labels, features, weight, d_rows)
        };
        tasks.into_par_iter().map(loss).collect::<Vec<f64>>().iter().sum()
    }

    /// The sums of the head's loss terms over all episodes. Adds to the gradients of the head's parameters, and to
    /// those of the features.
    fn head_losses(&mut self, batch: &JointBatch, features: &[f32], d_features: &mut [f32]) -> Vec<f64> {
        // The parameters from `head_start` on are those of the head.
        let (dim, isa, head_start) = (self.shape.features(), Isa::current(), self.backbone_len);
        let head = self.head.head();
        let parameters = &self.weights.parameters[head_start..];
        let rows: Vec<&[f32]> = features.chunks_exact(dim).collect();
        // One task per part of the episodes.
        let mut tasks = Vec::new();
        let (mut first_row, mut remaining) = (0, d_features);
        for (labels, gradient) in parts(&batch.labels).zip(&mut self.weights.gradients) {
            let count: usize = labels.iter().map(EpisodeLabels::rows).sum();
            let (d_rows, after) = remaining.split_at_mut(count * dim);
            tasks.push((labels, &rows[first_row..first_row + count], d_rows, &mut gradient[head_start..]));
            (first_row, remaining) = (first_row + count, after);
        }
        let losses = |(part, (labels, rows, d_rows, gradient)): (usize, PartTask<'_>)| {
            let episodes: Vec<Episode<'_>> = labels
                .iter()
                .zip(rows_of_episodes(labels))
                .map(|(labels, range)| labels.episode(&rows[range]))
                .collect();
            let seed = seed_of_part(batch.dropout_seed, part);
            // The threads of the pool use the instruction set that is set for this thread.
            isa.scope(|| head.losses_with_feature_gradient(parameters, &episodes, seed, gradient, d_rows))
        };
        let sums: Vec<Vec<f64>> = tasks.into_par_iter().enumerate().map(losses).collect();
        let mut terms = vec![0.0; head.loss_terms().len()];
        for part in sums {
            terms.iter_mut().zip(part).for_each(|(term, part)| *term += part);
        }
        terms
    }

    /// Moves the running mean of the features, which is one of the head's parameters but has no gradient, towards the
    /// mean of these features. Does nothing for a head without such a mean.
    fn update_feature_mean(&mut self, features: &[f32]) {
        let Some(mean) = self.head.head().feature_mean() else { return };
        let (dim, count) = (self.shape.features(), (features.len() / self.shape.features()) as f64);
        let mut sums = vec![0.0_f64; dim];
        for row in features.chunks_exact(dim) {
            sums.iter_mut().zip(row).for_each(|(sum, &value)| *sum += f64::from(value));
        }
        let range = self.backbone_len + mean.start..self.backbone_len + mean.end;
        for (mean, sum) in self.weights.parameters[range].iter_mut().zip(sums) {
            *mean += FEATURE_MEAN_RATE * ((sum / count) as f32 - *mean);
        }
    }

    /// Moves the running average towards the parameters after step number `step`.
    fn update_average(&mut self, step: u64) {
        let decay = decay_in_step(self.decay, step);
        for (average, &value) in self.average.iter_mut().zip(&self.weights.parameters) {
            // decay * average + (1 - decay) * value
            *average = value + decay * (*average - value);
        }
    }
}

/// The decay of the running average in a step, 0 to 1: how much of the old average is kept. `decay` is its value after
/// the warm-up.
pub(super) fn decay_in_step(decay: f64, step: u64) -> f32 {
    decay.min((1.0 + step as f64) / (AVERAGE_START + step as f64)) as f32
}

/// Divides the episodes of a step into [`PARTS`] parts of nearly the same number of episodes; parts may be empty.
pub(super) fn parts(episodes: &[EpisodeLabels]) -> impl Iterator<Item = &[EpisodeLabels]> {
    let count = episodes.len();
    (0..PARTS).map(move |part| &episodes[count * part / PARTS..count * (part + 1) / PARTS])
}

/// The seed of the dropout masks of a part. Wraps, because the seed of a step may be any number.
pub(super) fn seed_of_part(dropout_seed: u64, part: usize) -> u64 {
    dropout_seed.wrapping_add(part as u64)
}

/// The labels of the episodes of a part, the rows of their features, the gradients of these rows (`[row, D]`), and the
/// part's gradient of the head's parameters. The gradients are added to.
type PartTask<'a> = (&'a [EpisodeLabels], &'a [&'a [f32]], &'a mut [f32], &'a mut [f32]);

/// For each episode the range of its rows among those of all episodes.
fn rows_of_episodes(labels: &[EpisodeLabels]) -> impl Iterator<Item = Range<usize>> {
    labels.iter().scan(0, |end, labels| {
        let first = *end;
        *end += labels.rows();
        Some(first..*end)
    })
}

/// `weight` times the loss of nearest prototypes of one episode. Its prototypes are computed with the true labels, from
/// the support items whose true class is in the episode: outliers are left out. Adds the gradient to `d_features`. 0 if
/// a class has no such item.
fn prototype_loss(labels: &EpisodeLabels, features: &[f32], weight: f64, d_features: &mut [f32]) -> f64 {
    let dim = features.len() / labels.rows();
    // The rows of support items that are not outliers, and of all queries, for which `truth` has no entry.
    let has_class = |row: &usize| labels.truth.get(*row).is_none_or(Option::is_some);
    let used_rows: Vec<usize> = (0..labels.rows()).filter(has_class).collect();
    let truth: Vec<u32> = labels.truth.iter().copied().flatten().collect();
    if !(0..labels.classes as u32).all(|class| truth.contains(&class)) {
        return 0.0;
    }
    let used_features: Vec<f32> =
        used_rows.iter().flat_map(|&row| &features[row * dim..(row + 1) * dim]).copied().collect();
    let labels =
        loss::EpisodeLabels { classes: labels.classes, given: &truth, query_classes: &labels.query_classes };
    let mut d_used = vec![0.0; used_features.len()];
    let value = loss(&used_features, labels, Aggregate::Mean, &mut d_used);
    for (&row, d_row) in used_rows.iter().zip(d_used.chunks_exact(dim)) {
        let sums = d_features[row * dim..(row + 1) * dim].iter_mut();
        sums.zip(d_row).for_each(|(sum, &d)| *sum += weight as f32 * d);
    }
    weight * value
}

impl TrainingSession for CpuJointSession {
    type Batch = JointBatch;

    fn step(&mut self, step: u64, batch: &JointBatch) -> trueshot::Result<Vec<f64>> {
        let images = batch.images.len() / self.shape.pixels();
        let (_, mut pass) = match self.pass.take() {
            Some(pass) if pass.0 == images => pass,
            _ => (images, TrainingPass::new(self.shape, images)),
        };
        // Forward through the backbone, both losses with the gradient of the features, and back.
        let features = pass.forward(&self.weights.parameters[..self.backbone_len], &batch.images).to_vec();
        let (sums, d_features) = self.losses(batch, &features);
        let episodes = batch.labels.len() as f64;
        let terms: Vec<f64> = sums.into_iter().map(|sum| sum / episodes).collect();
        // A step whose loss is not finite changes nothing; the training loop reports it.
        if terms.iter().all(|term| term.is_finite()) {
            // The backbone has one gradient, in the list of the first part; only the head has one per part.
            pass.backward(&d_features, &mut self.weights.gradients[0][..self.backbone_len]);
            pass.update_running(&mut self.weights.parameters[..self.backbone_len]);
            // All gradients are sums over the episodes.
            self.weights.update(step, 1.0 / episodes)?;
            self.update_feature_mean(&features);
            self.update_average(step);
        }
        self.pass = Some((images, pass));
        Ok(terms)
    }

    fn rate(&self, step: u64) -> f64 {
        self.weights.rate(step)
    }

    fn parameters(&self) -> trueshot::Result<Cow<'_, [f32]>> {
        Ok(Cow::Borrowed(&self.average))
    }

    fn save(&self) -> trueshot::Result<Tensors> {
        let mut state = self.weights.save();
        state.insert_all("average.", &named(&self.weights.layout, &self.average));
        Ok(state)
    }

    fn load(&mut self, state: &Tensors) -> trueshot::Result<()> {
        self.weights.load(state)?;
        self.average = flat(&self.weights.layout, &state.with_prefix("average."))?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use trueshot::method::RelabelOptions;
    use trueshot::rng::{Purpose, Rng};
    use trueshot::training::Optimiser;
    use trueshot::training::heads::HeadOptions;
    use trueshot_nn::adamw::AdamWConfig;
    use trueshot_nn::conv4;

    const SHAPE: Shape = Shape { size: 16, channels: 1 };

    /// A session with initial parameters of a Conv4 and a small Relabel.
    fn session(prototype_weight: f64) -> CpuJointSession {
        let mut rng = Rng::new(3, Purpose::Parameters, 0);
        let mut random = || rng.fraction();
        let options = RelabelOptions {
            width: 16,
            layers: 1,
            heads: 2,
            hidden: 16,
            item_width: 8,
            ..Default::default()
        };
        let head: Arc<dyn LearnedHead> = options.build(SHAPE.features()).unwrap().into();
        let backbone = conv4::initial(SHAPE.channels, &mut random);
        let backbone_len = backbone.len();
        let layout = joint_layout(&conv4::layout(SHAPE.channels), head.head().layout());
        let parameters = [backbone, head.head().initial(&mut random)].concat();
        let weights = CpuWeights::new(
            layout,
            parameters.clone(),
            PARTS,
            AdamWConfig::default(),
            &Optimiser::default(),
            100,
        );
        CpuJointSession {
            weights,
            head,
            backbone_len,
            shape: SHAPE,
            prototype_weight,
            decay: 0.9,
            average: parameters,
            pass: None,
        }
    }

    /// Two episodes of two classes, one with an outlier and a wrong label.
    fn batch() -> JointBatch {
        let mut rng = Rng::new(4, Purpose::Training, 0);
        let labels = |truth: [Option<u32>; 4]| EpisodeLabels {
            classes: 2,
            given: vec![0, 0, 1, 1],
            truth: truth.to_vec(),
            query_classes: vec![0, 1],
        };
        let labels =
            vec![labels([Some(0), Some(1), Some(1), None]), labels([Some(0), Some(0), Some(1), Some(1)])];
        let class = |labels: &EpisodeLabels, row: usize| match labels.truth.get(row) {
            Some(class) => class.unwrap_or(5),
            None => labels.query_classes[row - labels.truth.len()],
        };
        let mut images = Vec::new();
        for labels in &labels {
            for row in 0..labels.rows() {
                let class = class(labels, row) as usize;
                images.extend((0..SHAPE.pixels()).map(|pixel| {
                    let stripe = if (pixel / (class + 1)).is_multiple_of(2) { 1.0 } else { -1.0 };
                    (stripe + rng.fraction() - 0.5) as f32
                }));
            }
        }
        JointBatch {
            labels,
            images,
            #[cfg(feature = "cuda")]
            requests: Vec::new(),
            dropout_seed: 5,
        }
    }

    /// The loss with the given parameters, and the gradient of the backbone and the head.
    fn loss_and_gradient(session: &mut CpuJointSession, batch: &JointBatch) -> (f64, Vec<f32>) {
        let mut pass = TrainingPass::new(SHAPE, batch.images.len() / SHAPE.pixels());
        let features =
            pass.forward(&session.weights.parameters[..session.backbone_len], &batch.images).to_vec();
        let (sums, d_features) = session.losses(batch, &features);
        let mut gradient = vec![0.0; session.weights.parameters.len()];
        pass.backward(&d_features, &mut gradient[..session.backbone_len]);
        for part in &mut session.weights.gradients {
            gradient.iter_mut().zip(&*part).for_each(|(sum, value)| *sum += value);
            part.fill(0.0);
        }
        (sums.iter().sum(), gradient)
    }

    #[test]
    fn the_slope_of_the_loss_along_the_gradient_is_the_norm_of_the_gradient() {
        for prototype_weight in [0.0, 0.7] {
            let mut session = session(prototype_weight);
            let (batch, start) = (batch(), session.weights.parameters.clone());
            let (_, gradient) = loss_and_gradient(&mut session, &batch);
            let backbone = 0..session.backbone_len;
            for range in [backbone, session.backbone_len..start.len()] {
                let norm = gradient[range.clone()].iter().map(|&g| f64::from(g).powi(2)).sum::<f64>().sqrt();
                assert!(norm > 1e-3, "the gradient is not 0: {norm}");
                let mut loss_at = |distance: f64| {
                    session.weights.parameters.copy_from_slice(&start);
                    for (value, &g) in
                        session.weights.parameters[range.clone()].iter_mut().zip(&gradient[range.clone()])
                    {
                        *value += (distance * f64::from(g) / norm) as f32;
                    }
                    loss_and_gradient(&mut session, &batch).0
                };
                let slope = (loss_at(1e-3) - loss_at(-1e-3)) / 2e-3;
                assert!((slope / norm - 1.0).abs() < 0.03, "slope {slope}, norm of the gradient {norm}");
            }
        }
    }

    #[test]
    fn steps_reduce_the_loss_and_move_the_mean_and_the_average() {
        let mut session = session(0.5);
        let batch = batch();
        let mean_in_head = session.head.head().feature_mean().unwrap();
        let mean = session.backbone_len + mean_in_head.start..session.backbone_len + mean_in_head.end;
        let first: f64 = session.step(0, &batch).unwrap().iter().sum();
        let changed = session.weights.parameters[mean].iter().filter(|&&value| value != 0.0).count();
        assert!(
            changed > SHAPE.features() / 2,
            "{changed} of {} numbers of the mean changed",
            SHAPE.features()
        );
        let last: f64 = (1..20).map(|step| session.step(step, &batch).unwrap().iter().sum()).last().unwrap();
        assert!(last < first, "{first} -> {last}");
        let distance = |from: &[f32], to: &[f32]| -> f64 {
            from.iter().zip(to).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
        };
        assert!(distance(&session.average, &session.weights.parameters) > 0.0, "the average lags behind");
        assert_eq!(&*session.parameters().unwrap(), &session.average[..]);
    }

    #[test]
    fn a_class_without_a_true_item_has_no_prototype_loss() {
        let labels = EpisodeLabels {
            classes: 2,
            given: vec![0, 1],
            truth: vec![Some(0), None],
            query_classes: vec![0],
        };
        let mut d_features = [0.0; 6];
        assert_eq!(prototype_loss(&labels, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 0.5, &mut d_features), 0.0);
        assert_eq!(d_features, [0.0; 6]);
    }
}
