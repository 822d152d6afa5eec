//! Training sessions: the interface between the training of a model and the device (CPU or GPU) that computes it.
//!
//! Start with [`TrainingSession`], which owns the parameters, the state of the optimiser and the activations of one
//! model, wherever they are: in the memory of this process or on a GPU. [`CpuWeights`] is the part that all sessions on
//! the CPU have in common.
//!
//! The host draws what is random in a step (items, noise, augmentation) and passes it as a batch, so that a run sees
//! the same episodes on every device.

use std::borrow::Cow;
use std::ops::Range;

use rayon::prelude::*;
use trueshot_nn::adamw::{AdamW, AdamWConfig};
use trueshot_nn::parameters::{ParameterLayout, Role, Tensor};
use trueshot_nn::schedule::Schedule;

use super::Optimiser;
use crate::error::{Error, Result};
use crate::model::{flat, named};
use crate::tensors::Tensors;

/// One model in training on one device.
///
/// A session whose only parameter moves to the mean of each batch:
///
/// ```
/// use std::borrow::Cow;
/// use trueshot::tensors::Tensors;
/// use trueshot::training::TrainingSession;
///
/// struct Mean([f32; 1]);
///
/// impl TrainingSession for Mean {
///     type Batch = [f32];
///     fn step(&mut self, step: u64, batch: &[f32]) -> trueshot::Result<Vec<f64>> {
///         let error = batch.iter().sum::<f32>() / batch.len() as f32 - self.0[0];
///         self.0[0] += self.rate(step) as f32 * error;
///         Ok(vec![f64::from(error * error)])
///     }
///     fn rate(&self, _step: u64) -> f64 {
///         0.5
///     }
///     fn parameters(&self) -> trueshot::Result<Cow<'_, [f32]>> {
///         Ok(Cow::Borrowed(&self.0))
///     }
///     fn save(&self) -> trueshot::Result<Tensors> {
///         let mut state = Tensors::default();
///         state.insert("mean", &[1], self.0.to_vec());
///         Ok(state)
///     }
///     fn load(&mut self, state: &Tensors) -> trueshot::Result<()> {
///         self.0 = [state.values("mean", 1)?[0]];
///         Ok(())
///     }
/// }
///
/// let mut session = Mean([0.0]);
/// assert_eq!(session.step(0, &[1.0, 3.0])?, [4.0]);
/// assert_eq!(session.parameters()?[..], [1.0]);
/// # Ok::<(), trueshot::Error>(())
/// ```
pub trait TrainingSession {
    /// The input of one step, which the host draws.
    type Batch: ?Sized;

    /// Runs step number `step`, counted from 0: computes the loss terms of the batch, updates the parameters and
    /// returns the terms. If a term is not finite, the parameters stay as they are.
    ///
    /// # Errors
    /// [`Error::Diverged`] if a parameter is not finite after the update.
    fn step(&mut self, step: u64, batch: &Self::Batch) -> Result<Vec<f64>>;

    /// The number of steps that are best passed to [`TrainingSession::steps`] at once: 1, or more for a device that
    /// would otherwise wait for the host between steps.
    fn steps_at_once(&self) -> usize {
        1
    }

    /// Runs several steps from number `first` on, and returns the loss terms of each. After a step with a term that is
    /// not finite, no further step is run.
    ///
    /// # Errors
    /// Those of [`TrainingSession::step`].
    fn steps(&mut self, first: u64, batches: &[&Self::Batch]) -> Result<Vec<Vec<f64>>> {
        let mut terms_of_steps = Vec::new();
        for (step, batch) in (first..).zip(batches) {
            terms_of_steps.push(self.step(step, batch)?);
            if terms_of_steps.last().is_some_and(|terms| terms.iter().any(|term| !term.is_finite())) {
                break;
            }
        }
        Ok(terms_of_steps)
    }

    /// The learning rate of step number `step`.
    fn rate(&self, step: u64) -> f64;

    /// The current parameters, running statistics included.
    ///
    /// # Errors
    /// [`Error::Gpu`] if they cannot be read from a GPU.
    fn parameters(&self) -> Result<Cow<'_, [f32]>>;

    /// Everything that later steps depend on: parameters and the state of the optimiser.
    ///
    /// # Errors
    /// [`Error::Gpu`] if the state cannot be read from a GPU.
    fn save(&self) -> Result<Tensors>;

    /// Restores what [`TrainingSession::save`] returned, on this or another device.
    ///
    /// # Errors
    /// If tensors are missing or have other shapes.
    fn load(&mut self, state: &Tensors) -> Result<()>;
}

/// A training session on the CPU, which computes steps with [`CpuWeights`]. It is a [`TrainingSession`] automatically:
/// learning rate, saving and loading come from the weights.
pub trait CpuSession {
    /// The input of one step, which the host draws.
    type Batch: ?Sized;

    /// The parameters and the state of the optimiser.
    fn weights(&self) -> &CpuWeights;

    /// The parameters and the state of the optimiser, mutable.
    fn weights_mut(&mut self) -> &mut CpuWeights;

    /// Computes step number `step`, as specified by [`TrainingSession::step`].
    ///
    /// # Errors
    /// Those of [`TrainingSession::step`].
    fn train_step(&mut self, step: u64, batch: &Self::Batch) -> Result<Vec<f64>>;
}

impl<S: CpuSession> TrainingSession for S {
    type Batch = S::Batch;

    fn step(&mut self, step: u64, batch: &Self::Batch) -> Result<Vec<f64>> {
        self.train_step(step, batch)
    }

    fn rate(&self, step: u64) -> f64 {
        self.weights().rate(step)
    }

    fn parameters(&self) -> Result<Cow<'_, [f32]>> {
        Ok(Cow::Borrowed(&self.weights().parameters))
    }

    fn save(&self) -> Result<Tensors> {
        Ok(self.weights().save())
    }

    fn load(&mut self, state: &Tensors) -> Result<()> {
        self.weights_mut().load(state)
    }
}

/// The number of parameters that one thread updates at a time.
const CHUNK_LEN: usize = 1 << 15;

/// Parameters in the memory of this process, with their gradients, the optimiser and its schedule.
pub struct CpuWeights {
    /// The name, shape and range of each tensor in `parameters`.
    pub layout: ParameterLayout,
    /// All parameters in one list, in the order of the layout.
    pub parameters: Vec<f32>,
    /// Partial gradients, each as long as the parameters, so that threads can work on parts of a batch at the same
    /// time. An update adds them in the order of this list, whatever the number of threads, and sets them to zero.
    pub gradients: Vec<Vec<f32>>,
    optimiser: AdamW,
    schedule: Schedule,
    /// The largest norm of the gradient; 0: no clipping.
    clip: f64,
}

impl CpuWeights {
    /// Weights with initial `parameters`, in the order of `layout`. Each step adds `gradients` partial gradients; the
    /// run has `steps` steps. `config` has the hyperparameters of AdamW, `optimiser` the schedule and the clipping.
    pub fn new(
        layout: ParameterLayout,
        parameters: Vec<f32>,
        gradients: usize,
        config: AdamWConfig,
        optimiser: &Optimiser,
        steps: u64,
    ) -> Self {
        CpuWeights {
            gradients: vec![vec![0.0; layout.len()]; gradients],
            optimiser: AdamW::new(&layout, config),
            schedule: optimiser.schedule(steps),
            clip: optimiser.clip,
            layout,
            parameters,
        }
    }

    /// The learning rate of step number `step`.
    pub fn rate(&self, step: u64) -> f64 {
        self.schedule.at(step)
    }

    /// Updates the parameters in step number `step` with the sum of the gradients times `scale`, clipped to the largest
    /// allowed norm. A caller whose gradients are sums over n episodes passes 1 / n.
    ///
    /// # Errors
    /// [`Error::Diverged`] with the name of a tensor that is not finite afterwards.
    pub fn update(&mut self, step: u64, scale: f64) -> Result<()> {
        let (rate, scale) = (self.rate(step), scale * self.clip_factor(scale));
        let chunks = self.optimiser.chunks(rate, scale, &mut self.parameters, &mut self.gradients, CHUNK_LEN);
        chunks.into_par_iter().for_each(|chunk| chunk.apply());
        self.check_finite(step)
    }

    /// The factor from 0 to 1 by which clipping multiplies the gradient. `scale` is the factor of the gradients in
    /// [`CpuWeights::update`].
    fn clip_factor(&self, scale: f64) -> f64 {
        if self.clip == 0.0 {
            return 1.0;
        }
        // The optimiser neither reads nor clears the gradients of constant tensors.
        let is_trained = |tensor: &&Tensor| tensor.role == Role::Trained;
        let trained: Vec<_> = self.layout.tensors().iter().filter(is_trained).map(|t| &t.range).collect();
        // The sum of squares over the trained parameters from `start` to `start + CHUNK_LEN`. Chunks have a fixed
        // length, so the sum has the same bits on any number of threads.
        let squares = |start: usize| -> f64 {
            let sum = |i: usize| self.gradients.iter().map(|part| part[i]).sum::<f32>();
            let of_chunk = |range: &&Range<usize>| range.start.max(start)..range.end.min(start + CHUNK_LEN);
            trained.iter().flat_map(of_chunk).map(|i| f64::from(sum(i)).powi(2)).sum()
        };
        let starts: Vec<usize> = (0..self.parameters.len()).step_by(CHUNK_LEN).collect();
        let sums: Vec<f64> = starts.into_par_iter().map(squares).collect();
        let norm = sums.iter().sum::<f64>().sqrt() * scale;
        if norm > self.clip { self.clip / norm } else { 1.0 }
    }

    /// Checks that all parameters are finite after step number `step`.
    fn check_finite(&self, step: u64) -> Result<()> {
        let is_finite = |chunk: &[f32]| chunk.iter().fold(true, |all, value| all & value.is_finite());
        if self.parameters.par_chunks(CHUNK_LEN).all(is_finite) {
            return Ok(());
        }
        let not_finite = |values: &[f32]| values.iter().copied().find(|value| !value.is_finite());
        let tensors = self.layout.tensors().iter();
        let mut not_finite_tensors = tensors
            .filter_map(|tensor| Some((&tensor.name, not_finite(&self.parameters[tensor.range.clone()])?)));
        let (name, value) = not_finite_tensors.next().expect("every parameter belongs to a tensor");
        Err(Error::Diverged { step: step + 1, what: format!("parameter '{name}'"), value: value.into() })
    }

    /// The parameters and the state of the optimiser.
    pub fn save(&self) -> Tensors {
        let (steps, first, second) = self.optimiser.state();
        SavedWeights {
            parameters: self.parameters.clone(),
            first: first.into(),
            second: second.into(),
            steps,
        }
        .tensors(&self.layout)
    }

    /// Restores what [`CpuWeights::save`] returned.
    ///
    /// # Errors
    /// If tensors are missing or have other shapes.
    pub fn load(&mut self, state: &Tensors) -> Result<()> {
        let SavedWeights { parameters, first, second, steps } = SavedWeights::read(&self.layout, state)?;
        self.parameters = parameters;
        self.optimiser = self.optimiser.clone().with_state(steps, first, second);
        Ok(())
    }
}

/// Parameters and the state of AdamW as checkpoints contain them, for all devices.
#[derive(Debug, Clone, PartialEq)]
pub struct SavedWeights {
    /// All parameters in one list, in the order of the layout.
    pub parameters: Vec<f32>,
    /// Running means of the gradients.
    pub first: Vec<f32>,
    /// Running means of the squared gradients.
    pub second: Vec<f32>,
    /// The number of updates so far.
    pub steps: u64,
}

impl SavedWeights {
    /// The parameters (prefix `parameters.`) and both moments of the optimiser (`first.`, `second.`), by tensor name.
    pub fn tensors(&self, layout: &ParameterLayout) -> Tensors {
        let mut state = Tensors::default();
        for (prefix, values) in
            [("parameters.", &self.parameters), ("first.", &self.first), ("second.", &self.second)]
        {
            state.insert_all(prefix, &named(layout, values));
        }
        state.set_note("steps", self.steps.to_string());
        state
    }

    /// Reads what [`SavedWeights::tensors`] returned.
    ///
    /// # Errors
    /// If tensors are missing or have other shapes.
    pub fn read(layout: &ParameterLayout, state: &Tensors) -> Result<Self> {
        let part = |prefix: &str| flat(layout, &state.with_prefix(prefix));
        let steps = state.note("steps").and_then(|text| text.parse().ok());
        Ok(SavedWeights {
            steps: steps.ok_or_else(|| state.malformed("it does not say how many steps were taken"))?,
            parameters: part("parameters.")?,
            first: part("first.")?,
            second: part("second.")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Weights after two updates with a gradient of 3 and 4 for the trained tensors and `constant` for the constant
    /// one.
    fn updated(constant: f32) -> Vec<f32> {
        let mut layout = ParameterLayout::default();
        layout.add("first", &[1], Role::Trained);
        layout.add("constant", &[2], Role::Constant);
        layout.add("last", &[1], Role::Trained);
        let optimiser = Optimiser { rate: 0.1, clip: 1.0, ..Optimiser::default() };
        // With an epsilon this large, the update depends on the length of the gradient.
        let config = AdamWConfig { epsilon: 10.0, ..AdamWConfig::default() };
        let mut weights = CpuWeights::new(layout, vec![0.5; 4], 2, config, &optimiser, 4);
        for step in 0..2 {
            weights.gradients[0].copy_from_slice(&[1.0, constant, constant, 4.0]);
            weights.gradients[1].copy_from_slice(&[2.0, 0.0, 0.0, 0.0]);
            let factor = weights.clip_factor(2.0);
            assert!((factor - 0.1).abs() < 1e-12, "the norm is 2 * 5, the limit 1: {factor}");
            weights.update(step, 2.0).unwrap();
        }
        weights.parameters
    }

    #[test]
    fn clipping_measures_the_gradients_of_trained_tensors_only() {
        assert_eq!(updated(0.0), updated(1e3));
    }
}
