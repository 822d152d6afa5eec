//! The parameters of a network in training, with their gradients, the optimiser and the learning rate schedule.

use rayon::prelude::*;
use trueshot::model::{flat, named};
use trueshot::tensors::Tensors;
use trueshot::training::Optimiser;
use trueshot_nn::adamw::{AdamW, AdamWConfig};
use trueshot_nn::parameters::ParameterLayout;
use trueshot_nn::schedule::Schedule;

/// Numbers that one thread updates at once.
const CHUNK: usize = 1 << 14;

/// What a step changes.
pub(super) struct ParameterState {
    pub layout: ParameterLayout,
    pub parameters: Vec<f32>,
    /// Summed in their order; each as long as the parameters, left at zero by an update.
    pub gradients: Vec<Vec<f32>>,
    optimiser: AdamW,
    schedule: Schedule,
    clip: f64,
}

impl ParameterState {
    /// Takes parameters of that layout; a step sums up so many gradients.
    pub fn new(
        layout: ParameterLayout,
        parameters: Vec<f32>,
        gradients: usize,
        config: AdamWConfig,
        optimiser: &Optimiser,
        steps: u64,
    ) -> Self {
        ParameterState {
            gradients: vec![vec![0.0; layout.len()]; gradients],
            optimiser: AdamW::new(&layout, config),
            schedule: optimiser.schedule(steps),
            clip: optimiser.clip,
            layout,
            parameters,
        }
    }

    pub fn rate(&self, step: u64) -> f64 {
        self.schedule.at(step)
    }

    /// Changes the parameters by the sum of the gradients times `scale`.
    pub fn update(&mut self, step: u64, scale: f64) {
        let (rate, scale) = (self.rate(step), self.clipped_scale(scale));
        let chunks = self.optimiser.chunks(rate, scale, &mut self.parameters, &mut self.gradients, CHUNK);
        chunks.into_par_iter().for_each(|chunk| chunk.apply());
    }

    /// The scale at which the gradient is no longer than allowed.
    fn clipped_scale(&self, scale: f64) -> f64 {
        if self.clip == 0.0 {
            return scale;
        }
        let sum =
            |place: usize| self.gradients.iter().map(|gradient| f64::from(gradient[place])).sum::<f64>();
        let length = scale * (0..self.layout.len()).map(|place| sum(place).powi(2)).sum::<f64>().sqrt();
        if length > self.clip { scale * self.clip / length } else { scale }
    }

    /// All that a step depends on.
    pub fn state(&self) -> Tensors {
        let (steps, first, second) = self.optimiser.state();
        let mut state = Tensors::default();
        for (prefix, values) in
            [("parameters.", &self.parameters[..]), ("first.", first), ("second.", second)]
        {
            state.insert_all(prefix, &named(&self.layout, values));
        }
        state.set_note("steps", steps.to_string());
        state
    }

    /// Becomes what [`ParameterState::state`] wrote down.
    pub fn restore(&mut self, state: &Tensors) -> trueshot::Result<()> {
        let part = |prefix: &str| flat(&self.layout, &state.with_prefix(prefix));
        let steps = state.note("steps").and_then(|text| text.parse().ok());
        let steps = steps.ok_or_else(|| trueshot::Error::Malformed {
            path: state.path().into(),
            format: "checkpoint",
            problem: "it does not say how many steps were taken".into(),
        })?;
        let optimiser = self.optimiser.clone().with_state(steps, part("first.")?, part("second.")?);
        self.parameters = part("parameters.")?;
        self.optimiser = optimiser;
        Ok(())
    }
}
