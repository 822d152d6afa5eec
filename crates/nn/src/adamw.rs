//! The optimiser [`AdamW`] (Adam with decoupled weight decay, as in PyTorch), optionally with L2 regularisation.
//!
//! [`AdamW::step`] takes a step on the calling thread. [`AdamW::chunks`] splits a step into [`ParameterChunk`]s,
//! disjoint ranges of the parameters, so that threads can work on them in any order. The gradient comes in several
//! buffers, one for each part of the batch. A chunk sums its range of the buffers in their order, updates parameters
//! and moments, and sets the gradients to zero for the next step: one pass over memory instead of several.
//!
//! A moment is AdamW's running mean of a parameter's gradients (the first, m) or of their squares (the second, v).
//!
//! Tensors with [`Role::Constant`] are skipped: neither their values nor their gradients are changed.

use std::ops::Range;

use crate::isa::Isa;
use crate::kernel::kernel;
use crate::parameters::{ParameterLayout, Role};
use crate::real::Real;

/// The hyperparameters that stay the same throughout training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AdamWConfig {
    /// Decay rate of the running mean of gradients.
    pub beta1: f64,
    /// Decay rate of the running mean of squared gradients.
    pub beta2: f64,
    /// Added to the square root of the second moment in the denominator, against division by zero.
    pub epsilon: f64,
    /// Decoupled weight decay: a step first multiplies parameters by `1 - rate * weight_decay`.
    pub weight_decay: f64,
    /// L2 regularisation as in Adam: `l2` times the parameter is added to its gradient.
    pub l2: f64,
}

impl Default for AdamWConfig {
    /// PyTorch's defaults.
    fn default() -> Self {
        AdamWConfig { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01, l2: 0.0 }
    }
}

/// The optimiser with its state: the number of steps and the two moments of every parameter.
///
/// ```
/// use trueshot_nn::adamw::{AdamW, AdamWConfig};
/// use trueshot_nn::parameters::{ParameterLayout, Role};
///
/// let mut layout = ParameterLayout::default();
/// layout.add("x", &[1], Role::Trained);
/// let mut optimiser = AdamW::new(&layout, AdamWConfig::default());
/// // Minimise x², whose gradient is 2 x.
/// let mut x = [1.0];
/// for _ in 0..500 {
///     let mut gradients = [vec![2.0 * x[0]]];
///     optimiser.step(0.01, 1.0, &mut x, &mut gradients);
/// }
/// assert!(x[0].abs() < 0.01);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct AdamW {
    config: AdamWConfig,
    step: u64,
    /// Running mean of gradients (m), one number per parameter.
    first_moments: Vec<f32>,
    /// Running mean of squared gradients (v), one number per parameter.
    second_moments: Vec<f32>,
    /// The ranges of parameters that are trained; those of adjacent tensors are merged.
    trained: Vec<Range<usize>>,
}

impl AdamW {
    /// An optimiser that has taken no step.
    pub fn new(layout: &ParameterLayout, config: AdamWConfig) -> Self {
        let mut trained: Vec<Range<usize>> = Vec::new();
        for tensor in layout.tensors().iter().filter(|tensor| tensor.role == Role::Trained) {
            match trained.last_mut() {
                Some(last) if last.end == tensor.range.start => last.end = tensor.range.end,
                _ => trained.push(tensor.range.clone()),
            }
        }
        let zeros = vec![0.0; layout.len()];
        AdamW { config, step: 0, first_moments: zeros.clone(), second_moments: zeros, trained }
    }

    /// The same optimiser with a state that [`AdamW::state`] returned.
    ///
    /// # Panics
    /// If the moments do not have the length of the layout.
    #[must_use]
    pub fn with_state(mut self, step: u64, first_moments: Vec<f32>, second_moments: Vec<f32>) -> Self {
        let expected = (self.first_moments.len(), self.second_moments.len());
        assert_eq!((first_moments.len(), second_moments.len()), expected, "lengths of the moments");
        (self.step, self.first_moments, self.second_moments) = (step, first_moments, second_moments);
        self
    }

    /// The number of steps taken, and the running means of gradients and of squared gradients.
    pub fn state(&self) -> (u64, &[f32], &[f32]) {
        (self.step, &self.first_moments, &self.second_moments)
    }

    /// Starts the next step, with learning rate `rate`, and returns its chunks of at most `size` parameters. The step
    /// is complete when each chunk has been applied, on any thread and in any order. The gradient is `scale` times the
    /// sum of the buffers in `gradients`: if they hold sums over parts of a batch, `scale` is one over the batch size.
    ///
    /// # Panics
    /// If `parameters` or a buffer of gradients does not have the length of the layout.
    pub fn chunks<'a>(
        &'a mut self,
        rate: f64,
        scale: f64,
        parameters: &'a mut [f32],
        gradients: &'a mut [Vec<f32>],
        size: usize,
    ) -> Vec<ParameterChunk<'a>> {
        assert_eq!(parameters.len(), self.first_moments.len());
        assert!(gradients.iter().all(|gradient| gradient.len() == parameters.len()));
        self.step += 1;
        // Chunks are split off the front of `rest`; `position` is the index of the parameter that it starts with.
        let mut rest = ParameterChunk {
            isa: Isa::current(),
            factors: StepFactors::new(self.config, rate, scale, self.step),
            parameters,
            first_moments: &mut self.first_moments,
            second_moments: &mut self.second_moments,
            gradients: gradients.iter_mut().map(Vec::as_mut_slice).collect(),
        };
        let (mut chunks, mut position) = (Vec::new(), 0);
        for range in &self.trained {
            // Constant tensors between two ranges are split off and dropped: they are in no chunk.
            rest.split_off(range.start - position);
            position = range.end;
            let mut remaining = range.len();
            while remaining > 0 {
                let length = remaining.min(size.max(1));
                chunks.push(rest.split_off(length));
                remaining -= length;
            }
        }
        chunks
    }

    /// Takes a whole step on the calling thread. The arguments are those of [`AdamW::chunks`].
    ///
    /// # Panics
    /// If `parameters` or a buffer of gradients does not have the length of the layout.
    pub fn step(&mut self, rate: f64, scale: f64, parameters: &mut [f32], gradients: &mut [Vec<f32>]) {
        // Chunks of 64 KiB per buffer: a chunk stays in the cache while the buffers of gradients are added up.
        for chunk in self.chunks(rate, scale, parameters, gradients, 1 << 14) {
            chunk.apply();
        }
    }
}

/// The factors of one step, which are the same for all parameters.
#[derive(Debug, Clone, Copy)]
struct StepFactors<T> {
    /// Factor of the summed gradients.
    scale: T,
    beta1: T,
    beta2: T,
    /// Factor of the parameters: `1 - rate * weight_decay`.
    keep: T,
    l2: T,
    /// The learning rate divided by the bias correction of m.
    rate: T,
    /// One over the square root of the bias correction of v.
    second_scale: T,
    epsilon: T,
}

impl<T: Real> StepFactors<T> {
    fn new(config: AdamWConfig, rate: f64, scale: f64, step: u64) -> Self {
        let bias_correction = |beta: f64| 1.0 - beta.powf(step as f64);
        StepFactors {
            scale: T::from_f64(scale),
            beta1: T::from_f64(config.beta1),
            beta2: T::from_f64(config.beta2),
            keep: T::from_f64(1.0 - rate * config.weight_decay),
            l2: T::from_f64(config.l2),
            rate: T::from_f64(rate / bias_correction(config.beta1)),
            second_scale: T::from_f64(bias_correction(config.beta2).sqrt().recip()),
            epsilon: T::from_f64(config.epsilon),
        }
    }
}

/// A range of the parameters in one step, with its moments and gradients.
#[derive(Debug)]
pub struct ParameterChunk<'a> {
    /// The instruction set that was current when the step was started; the chunk uses it on any thread.
    isa: Isa,
    factors: StepFactors<f32>,
    parameters: &'a mut [f32],
    first_moments: &'a mut [f32],
    second_moments: &'a mut [f32],
    /// The same range of each buffer of gradients.
    gradients: Vec<&'a mut [f32]>,
}

impl<'a> ParameterChunk<'a> {
    /// Splits off the first `length` parameters; the chunk keeps the rest.
    fn split_off(&mut self, length: usize) -> ParameterChunk<'a> {
        let split = |slice: &mut &'a mut [f32]| -> &'a mut [f32] {
            slice.split_off_mut(..length).expect("ranges are within the buffer and in order")
        };
        ParameterChunk {
            isa: self.isa,
            factors: self.factors,
            parameters: split(&mut self.parameters),
            first_moments: split(&mut self.first_moments),
            second_moments: split(&mut self.second_moments),
            gradients: self.gradients.iter_mut().map(split).collect(),
        }
    }

    /// Updates parameters and moments, and sets the gradients to zero. Does nothing if there are no gradients.
    pub fn apply(self) {
        let ParameterChunk { isa, factors, parameters, first_moments, second_moments, mut gradients } = self;
        let Some((sum, later_gradients)) = gradients.split_first_mut() else { return };
        isa.scope(|| {
            // The first buffer becomes the sum of all.
            for gradient in later_gradients {
                move_into(gradient, sum);
            }
            update(factors, sum, parameters, first_moments, second_moments);
        });
    }
}

kernel! {
    /// `to += from; from = 0`
    fn move_into<'a, T>(from: &'a mut [T], to: &'a mut [T]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to += *from;
            *from = T::ZERO;
        }
    }
}

kernel! {
    /// Updates one chunk with `g = scale * gradient + l2 * value`, and sets the gradient to zero. A new value is `keep
    /// * value - lr * m' / (sqrt(v') + epsilon)`, with lr the learning rate and m' and v' the moments divided by their
    /// bias corrections. `rate` is lr with the correction of m, and `second_scale` contains that of v.
    fn update<'a, T>(
        factors: StepFactors<T>,
        gradient: &'a mut [T],
        parameters: &'a mut [T],
        first_moments: &'a mut [T],
        second_moments: &'a mut [T],
    ) {
        let StepFactors { scale, beta1, beta2, keep, l2, rate, second_scale, epsilon } = factors;
        let moments = first_moments.iter_mut().zip(second_moments);
        for ((gradient, value), (m, v)) in gradient.iter_mut().zip(parameters).zip(moments) {
            let g = *gradient * scale + l2 * *value;
            *gradient = T::ZERO;
            *m = beta1 * *m + (T::ONE - beta1) * g;
            *v = beta2 * *v + (T::ONE - beta2) * g * g;
            *value = *value * keep - rate * *m / (v.sqrt() * second_scale + epsilon);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gradient_check::TestRng;

    fn layout() -> ParameterLayout {
        let mut layout = ParameterLayout::default();
        layout.add("a", &[7, 5], Role::Trained);
        layout.add("b", &[20], Role::Trained);
        layout.add("constant", &[9], Role::Constant);
        layout.add("c", &[41], Role::Trained);
        layout
    }

    /// The textbook's AdamW for one parameter, in f64.
    fn reference(config: AdamWConfig, value: f64, gradients: &[f64], rate: f64) -> f64 {
        let (mut value, mut m, mut v) = (value, 0.0, 0.0);
        for (step, gradient) in gradients.iter().enumerate() {
            let g = gradient + config.l2 * value;
            m = config.beta1 * m + (1.0 - config.beta1) * g;
            v = config.beta2 * v + (1.0 - config.beta2) * g * g;
            let m = m / (1.0 - config.beta1.powi(step as i32 + 1));
            let v = v / (1.0 - config.beta2.powi(step as i32 + 1));
            value -= rate * config.weight_decay * value;
            value -= rate * m / (v.sqrt() + config.epsilon);
        }
        value
    }

    #[test]
    fn chunks_of_any_size_agree_with_the_textbook_on_every_instruction_set() {
        let layout = layout();
        let config = AdamWConfig { weight_decay: 0.1, l2: 0.03, ..AdamWConfig::default() };
        let mut rng = TestRng::new(2);
        let start = rng.f32s(layout.len());
        let steps: Vec<[Vec<f32>; 2]> =
            (0..20).map(|_| [rng.f32s(layout.len()), rng.f32s(layout.len())]).collect();
        for (isa, size) in Isa::usable().flat_map(|isa| [(isa, 13), (isa, 1000)]) {
            let (mut optimiser, mut parameters) = (AdamW::new(&layout, config), start.clone());
            for gradients in &steps {
                let mut gradients = gradients.to_vec();
                isa.scope(|| {
                    let chunks = optimiser.chunks(0.01, 0.5, &mut parameters, &mut gradients, size);
                    chunks.into_iter().for_each(ParameterChunk::apply);
                });
                // Tensors a and b have 35 + 20 numbers, the constant one has 9, c has 41.
                let trained = (0..55).chain(64..105);
                assert!(trained.into_iter().all(|i| gradients[0][i] == 0.0 && gradients[1][i] == 0.0));
            }
            assert_eq!(parameters[55..64], start[55..64], "constants stay");
            for i in (0..55).chain(64..105) {
                let gradients: Vec<f64> = steps.iter().map(|s| 0.5 * f64::from(s[0][i] + s[1][i])).collect();
                let expected = reference(config, f64::from(start[i]), &gradients, 0.01);
                assert!((f64::from(parameters[i]) - expected).abs() < 1e-5, "{isa:?}, {size}");
            }
        }
    }

    #[test]
    fn a_chunk_runs_with_the_instruction_set_that_its_step_was_started_with() {
        let layout = layout();
        for isa in Isa::usable() {
            let mut optimiser = AdamW::new(&layout, AdamWConfig::default());
            let (mut parameters, mut gradients) = (vec![0.5; layout.len()], vec![vec![0.1; layout.len()]]);
            let chunks = isa.scope(|| optimiser.chunks(0.1, 1.0, &mut parameters, &mut gradients, 50));
            assert!(chunks.iter().all(|chunk| chunk.isa == isa));
        }
    }

    #[test]
    fn an_optimiser_restored_from_its_state_takes_the_same_steps() {
        let layout = layout();
        let mut rng = TestRng::new(3);
        let gradients: Vec<Vec<f32>> = (0..6).map(|_| rng.f32s(layout.len())).collect();
        let run = |restore_at: usize| {
            let mut optimiser = AdamW::new(&layout, AdamWConfig::default());
            let mut parameters = vec![0.5; layout.len()];
            for (i, gradient) in gradients.iter().enumerate() {
                if i == restore_at {
                    let (step, first, second) = optimiser.state();
                    let (first, second) = (first.to_vec(), second.to_vec());
                    optimiser = AdamW::new(&layout, AdamWConfig::default()).with_state(step, first, second);
                }
                optimiser.step(0.1, 1.0, &mut parameters, &mut [gradient.clone()]);
            }
            parameters
        };
        assert_eq!(run(3), run(99));
    }
}
