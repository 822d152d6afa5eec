//! Training: a loop that any model can be trained by, and what the learned heads bring to it.
//!
//! [`train`] counts steps, validates, keeps the best parameters, writes down what happens and saves so that a
//! run that was stopped, killed or cut off goes on as if nothing had happened: a resumed run ends in the same
//! bytes as an unbroken one. It knows nothing of what is trained; that is a [`Trainee`], whose every random
//! number is keyed by the seed and the step. [`heads`] trains TraNFS and Relabel on embeddings; backbones are
//! trained elsewhere by the same loop.
//!
//! Beside a model `NAME.safetensors` lie `NAME.toml` (the whole configuration), `NAME.metrics.jsonl`,
//! `NAME.curves.svg` and, as long as the run is not finished, `NAME.checkpoint`. A [`Claim`] keeps other processes from
//! writing them at the same time.

mod checkpoint;
pub mod configuration;
mod curves;
pub mod heads;
mod metrics;
mod optimiser;
mod session;
mod trainer;

pub use metrics::Record;
pub use optimiser::{Optimiser, ScheduleKind};
pub use session::{CpuSession, CpuWeights, TrainingSession};
pub use trainer::{Claim, Files, Outcome, RunOptions, Start, train};

use crate::error::Result;
use crate::progress::Progress;
use crate::tensors::Tensors;

/// Anything that is trained step by step.
pub trait Trainee {
    /// The names of the terms of its loss.
    fn terms(&self) -> Vec<String>;

    /// One step, counted from 0: the terms of the loss, which add up to it. All that is random in it must
    /// follow from the seed and the step.
    fn step(&mut self, step: u64) -> Result<Vec<f64>>;

    /// The learning rate of a step.
    fn rate(&self, step: u64) -> f64;

    /// How good it is by now; none where there is nothing to validate on.
    fn validate(&mut self) -> Result<Option<Validation>>;

    /// Everything a step depends on: parameters, the optimiser's moments, running statistics.
    fn state(&self) -> Tensors;

    /// Becomes what it was when [`Trainee::state`] was taken.
    fn restore(&mut self, state: &Tensors) -> Result<()>;

    /// The model file of what it is now.
    fn model(&self) -> Tensors;
}

/// How good a model is.
#[derive(Debug, Clone, PartialEq)]
pub struct Validation {
    /// What the best model is chosen by; larger is better.
    pub score: f64,
    /// What it was made of, for instance accuracies by noise.
    pub figures: Vec<(String, f64)>,
}

/// Receives the events of a training run. The run calls [`Progress::update`] after every step; a break saves and stops.
pub trait Observer: Progress {
    /// Something happened.
    fn event(&mut self, event: &Event<'_>);
}

/// No reporting.
impl Observer for () {
    fn event(&mut self, _event: &Event<'_>) {}
}

/// What happens in training.
#[derive(Debug)]
pub enum Event<'a> {
    /// Training begins, or goes on, behind so many steps.
    Begins {
        /// Steps done before.
        done: u64,
        /// Steps there will be.
        steps: u64,
        /// The names of the loss terms.
        terms: &'a [String],
    },
    /// A step was taken.
    Stepped {
        /// Steps done.
        done: u64,
        /// The loss terms.
        terms: &'a [f64],
    },
    /// A line of metrics was written.
    Recorded {
        /// The line.
        record: &'a Record,
        /// Whether its validation is the best so far.
        is_best: bool,
    },
    /// All is on disk.
    Saved {
        /// Steps done.
        done: u64,
    },
    /// Something that the user should know.
    Warning(&'a str),
}
