//! Training: a resumable training loop for any model ("trainee"), and the trainees TraNFS and Relabel.
//!
//! Start with [`train`], which runs the loop, and [`Trainee`], the trait of what is trained. The loop counts steps,
//! validates, keeps the best parameters, records metrics and saves checkpoints. [`heads`] trains TraNFS and Relabel:
//! networks ("heads") that turn the embeddings of a support set into a classifier. The crate `trueshot-vision` trains
//! backbones, which compute embeddings from images, with the same loop.
//!
//! A run that was stopped or killed can be resumed and then ends with the same bytes as a run without a break. That
//! works because the loop knows nothing about the model, and a [`Trainee`] derives every random number from the seed
//! and the step.
//!
//! Next to a model `NAME.safetensors` the run writes `NAME.toml` (the complete configuration), `NAME.metrics.jsonl`,
//! `NAME.curves.svg` and, until the run is finished, `NAME.checkpoint`. A [`Claim`] keeps other processes from writing
//! these files at the same time.

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
pub use session::{CpuSession, CpuWeights, SavedWeights, TrainingSession};
pub use trainer::{Claim, Files, Outcome, RunOptions, Start, train};

use crate::error::Result;
use crate::progress::Progress;
use crate::tensors::Tensors;

/// A model that [`train`] can train step by step.
///
/// # Example
///
/// One parameter that learns to be 3:
///
/// ```
/// use std::time::Duration;
/// use trueshot::tensors::Tensors;
/// use trueshot::training::{RunOptions, Start, Trainee, Validation, train};
///
/// struct Parameter(f32);
///
/// impl Trainee for Parameter {
///     fn terms(&self) -> Vec<String> {
///         vec!["squared error".into()]
///     }
///     fn step(&mut self, step: u64) -> trueshot::Result<Vec<f64>> {
///         let error = self.0 - 3.0;
///         self.0 -= self.rate(step) as f32 * 2.0 * error;
///         Ok(vec![f64::from(error * error)])
///     }
///     fn rate(&self, _step: u64) -> f64 {
///         0.1
///     }
///     fn validate(&mut self) -> trueshot::Result<Option<Validation>> {
///         Ok(Some(Validation { score: -f64::from((self.0 - 3.0).abs()), figures: Vec::new() }))
///     }
///     fn state(&self) -> trueshot::Result<Tensors> {
///         let mut state = Tensors::default();
///         state.insert("value", &[1], vec![self.0]);
///         Ok(state)
///     }
///     fn restore(&mut self, state: &Tensors) -> trueshot::Result<()> {
///         self.0 = state.values("value", 1)?[0];
///         Ok(())
///     }
///     fn model(&self) -> trueshot::Result<Tensors> {
///         self.state()
///     }
/// }
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let folder = folder.path();
/// let options = RunOptions {
///     output: folder.join("three.safetensors"),
///     title: "Learning the number 3".into(),
///     steps: 50,
///     validate_every: 10,
///     record_every: 10,
///     save_every: Duration::from_secs(60),
///     configuration: String::new(),
///     identity: Default::default(),
/// };
/// let outcome = train(&mut Parameter(0.0), &options, Start::Fresh, &mut ())?;
/// assert!(outcome.finished && outcome.best_step == 50);
/// # Ok::<(), trueshot::Error>(())
/// ```
pub trait Trainee {
    /// The names of the loss terms, in the order in which [`Trainee::step`] returns their values.
    fn terms(&self) -> Vec<String>;

    /// Runs step number `step`, counted from 0, and returns the loss terms, whose sum is the loss. Everything random in
    /// a step must follow from the seed and the step number.
    fn step(&mut self, step: u64) -> Result<Vec<f64>>;

    /// Runs steps from number `step` on, at least one and at most `limit`, and returns the loss terms of each. By
    /// default it runs one step; a trainee on a GPU runs several, so that the GPU does not wait between them.
    fn steps(&mut self, step: u64, _limit: u64) -> Result<Vec<Vec<f64>>> {
        Ok(vec![self.step(step)?])
    }

    /// The learning rate of step number `step`.
    fn rate(&self, step: u64) -> f64;

    /// Validates the current parameters; `None` if there is no validation data.
    fn validate(&mut self) -> Result<Option<Validation>>;

    /// The state that later steps depend on, for checkpoints: parameters, moments of the optimiser, running statistics.
    fn state(&self) -> Result<Tensors>;

    /// Restores a state that [`Trainee::state`] returned.
    fn restore(&mut self, state: &Tensors) -> Result<()>;

    /// The contents of the model file for the current parameters.
    fn model(&self) -> Result<Tensors>;

    /// The name of the GPU that trains, for the metrics and the model file; `None` on the CPU.
    fn device(&self) -> Option<String> {
        None
    }

    /// What the user should know before the first step, such as data that does not fit into the memory of a GPU.
    fn warnings(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The result of one validation.
#[derive(Debug, Clone, PartialEq)]
pub struct Validation {
    /// The number by which the best model is chosen; larger is better.
    pub score: f64,
    /// Named values behind the score, for instance the accuracy in percent under each noise setting (a type and level
    /// of wrong labels).
    pub figures: Vec<(String, f64)>,
}

/// Receives the events of a training run.
///
/// The run also calls [`Progress::update`] after every step; if that returns `Break`, the run saves a checkpoint and
/// stops. Pass `&mut ()` to ignore all events.
pub trait Observer: Progress {
    /// Called for every event, on the thread that called [`train`].
    fn event(&mut self, event: &Event<'_>);
}

/// No reporting.
impl Observer for () {
    fn event(&mut self, _event: &Event<'_>) {}
}

/// An event of a training run, as an [`Observer`] receives it.
#[derive(Debug)]
pub enum Event<'a> {
    /// Training starts or is resumed.
    Begins {
        /// The number of steps that earlier runs have finished; 0 for a new run.
        done: u64,
        /// The total number of steps.
        steps: u64,
        /// The names of the loss terms.
        terms: &'a [String],
    },
    /// A step has finished.
    Stepped {
        /// The number of finished steps.
        done: u64,
        /// The values of the loss terms in this step, in the order of [`Trainee::terms`].
        terms: &'a [f64],
    },
    /// A line was added to the metrics.
    Recorded {
        /// The contents of the line.
        record: &'a Record,
        /// Whether this step has the best validation score so far.
        is_best: bool,
    },
    /// The checkpoint and all other files were written.
    Saved {
        /// The number of finished steps in the checkpoint.
        done: u64,
    },
    /// A problem that does not stop the run but that the user should know.
    Warning(&'a str),
}
