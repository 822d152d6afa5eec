//! MAML on the GPU: Conv4 with a linear classifier, whose parameters are trained so that a few steps of gradient
//! descent on a support set adapt them to a task. A task is a small classification problem: a support set with labels,
//! and queries. The loss is that of the queries after the adaptation.
//!
//! Start with [`MamlTraining`], or [`MamlEvaluation`] to adapt a network without training it. A step computes what
//! [`trueshot_nn::maml::MamlLearner`] computes on the CPU, followed by AdamW on the mean gradient of its tasks. Up to
//! eight tasks (a group) run in the same kernels, each with its own parameters, activations and gradients; a step with
//! more tasks runs several groups, whose gradients are added in order. One step is one CUDA graph (a recorded sequence
//! of kernel launches).
//!
//! Precision and overflow are those of [`Conv4Training`](crate::conv4::Conv4Training): the losses of support sets and
//! queries are multiplied by the same loss scale, and if any gradient overflows, nothing is updated, the scale is
//! halved and the step is repeated.
//!
//! The modules: `memory` lists the buffers of a group, `pass` has forward and backward passes and the steps of the
//! adaptation, `tangent` the second derivatives, `evaluation` adapts without training.

mod evaluation;
mod memory;
mod pass;
mod tangent;

use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::maml::{Adaptation, GradientOrder, ModelSize, layout};

use crate::conv4::{Conv4State, DeviceImages, StepInput, StepRunner};
use crate::driver::{Argument, Buffer, Device, Grid, KernelTimes, Queue, Value};
use crate::error::{Error, Result};
pub use evaluation::{EvaluationOptions, MamlEvaluation, MamlTask};
use memory::{GroupMemory, GroupSize};
use pass::{Group, element_count};

/// Maximum number of tasks that run at once; more would take memory and hardly run faster.
const TASKS_AT_ONCE: usize = 8;

/// The sizes and options of a training run.
#[derive(Debug, Clone)]
pub struct MamlOptions {
    /// The shape of the images and the number of classes.
    pub size: ModelSize,
    /// Support items per task.
    pub support: usize,
    /// Queries per task.
    pub queries: usize,
    /// Tasks per step.
    pub tasks: usize,
    /// The gradient descent on the support sets.
    pub adaptation: Adaptation,
    /// Whether the gradient includes second derivatives.
    pub order: GradientOrder,
    /// Hyperparameters of the optimiser.
    pub optimiser: AdamWConfig,
    /// The largest norm of the gradient; 0: no clipping.
    pub clip: f64,
}

impl MamlOptions {
    /// Images per task.
    fn images(&self) -> usize {
        self.support + self.queries
    }

    /// The sizes that decide how much memory `tasks` tasks need.
    fn group_size(&self, tasks: usize) -> GroupSize {
        let &MamlOptions { size, support, queries, adaptation, order, .. } = self;
        GroupSize { model: size, support, queries, steps: adaptation.steps, order, tasks }
    }
}

/// The number of tasks that can run at once, at most `tasks` and [`TASKS_AT_ONCE`], and the memory for them. If the GPU
/// runs out of memory, half of the tasks are tried. `size` returns the sizes for a number of tasks.
fn largest_group(
    device: &Device,
    tasks: usize,
    size: impl Fn(usize) -> GroupSize,
) -> Result<(usize, GroupMemory)> {
    let mut at_once = tasks.min(TASKS_AT_ONCE);
    loop {
        match GroupMemory::new(device, size(at_once)) {
            Err(Error::OutOfMemory { .. }) if at_once > 1 => at_once = at_once.div_ceil(2),
            other => return other.map(|memory| (at_once, memory)),
        }
    }
}

/// MAML in training on a GPU.
pub struct MamlTraining {
    kernels: StepKernels,
    runner: StepRunner,
}

/// The memory of a step, and the kernels that work on it.
struct StepKernels {
    device: Device,
    options: MamlOptions,
    memory: GroupMemory,
    /// Tasks that run at once.
    at_once: usize,
    /// The loss of each query, `[task][queries]`.
    losses: Buffer<f32>,
    /// The parameters that every task starts from and that the training updates.
    shared: Buffer<f32>,
    /// The sum of the gradients of all tasks of the step with respect to `shared`.
    total: Buffer<f32>,
    /// Sums of squares of `total`, one per thread block.
    squares: Buffer<f64>,
}

impl MamlTraining {
    /// A training run that starts from `parameters`, in the layout of [`trueshot_nn::maml::layout`]. Steps take their
    /// images from `images`, or bring prepared ones.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::Error::OutOfMemory) if the activations of one task and the images do not fit.
    ///
    /// # Panics
    /// If the shape is not possible, there are no steps, or `parameters` has another length.
    pub fn new(
        device: &Device,
        options: MamlOptions,
        parameters: &[f32],
        images: Option<DeviceImages>,
    ) -> Result<Self> {
        Self::with_tasks_at_once(device, options, parameters, images, TASKS_AT_ONCE)
    }

    /// [`MamlTraining::new`] with another limit on the tasks that run at once.
    fn with_tasks_at_once(
        device: &Device,
        options: MamlOptions,
        parameters: &[f32],
        images: Option<DeviceImages>,
        limit: usize,
    ) -> Result<Self> {
        let MamlOptions { size, tasks, queries, .. } = options;
        assert!(size.shape.is_possible(), "{size:?}");
        assert!(options.adaptation.steps > 0, "an adaptation has steps");
        let (len, images_of_step) = (layout(size).len(), tasks * options.images());
        let optimiser = (&options.optimiser, options.clip);
        let runner = StepRunner::new(device, size.shape, len, images_of_step, optimiser, images)?;
        let (at_once, memory) = largest_group(device, tasks.min(limit), |tasks| options.group_size(tasks))?;
        let kernels = StepKernels {
            device: device.clone(),
            memory,
            at_once,
            losses: device.zeros(tasks * queries)?,
            shared: device.zeros(len)?,
            total: device.zeros(len)?,
            squares: device.zeros(element_count(size).div_ceil(256))?,
            options,
        };
        let mut training = MamlTraining { kernels, runner };
        training.load(&Conv4State::new(parameters))?;
        Ok(training)
    }

    /// The parameters that every task starts from.
    pub fn parameters(&self) -> Result<Vec<f32>> {
        self.kernels.shared.read()
    }

    /// The sum of the gradients of the last step's tasks.
    pub fn gradient(&self) -> Result<Vec<f32>> {
        self.kernels.total.read()
    }

    /// Everything that later steps depend on.
    pub fn state(&self) -> Result<Conv4State> {
        self.runner.optimiser.state(&self.kernels.shared)
    }

    /// Replaces parameters and the state of the optimiser.
    ///
    /// # Panics
    /// If a length is not that of the layout.
    pub fn load(&mut self, state: &Conv4State) -> Result<()> {
        assert_eq!(state.parameters.len(), self.kernels.shared.len(), "parameters of this layout");
        self.kernels.shared.write(0, &state.parameters)?;
        self.runner.load(state)
    }

    /// Runs steps and returns their losses. Labels and images of a step are listed task by task: first the support
    /// items of the task, then its queries. Stops after the first loss that is not finite, which is then the last one
    /// returned.
    ///
    /// # Errors
    /// [`Lost`](crate::Error::Lost) if the GPU stopped working.
    ///
    /// # Panics
    /// If there are more than [`STEP_SLOTS`](crate::conv4::STEP_SLOTS) steps, or an input has the wrong length or is of
    /// another kind than the run.
    pub fn run(&mut self, steps: &[StepInput]) -> Result<Vec<f32>> {
        let MamlTraining { kernels, runner } = self;
        runner.run(steps, |runner| kernels.record_step(runner))
    }

    /// Launches the graph of one step on the inputs that are on the device from an earlier [`run`](Self::run), and does
    /// not wait. For measurements.
    pub fn launch_step(&mut self) -> Result<()> {
        let MamlTraining { kernels, runner } = self;
        runner.launch(|runner| kernels.record_step(runner))
    }

    /// The times of the kernels of a step. The run cannot be continued afterwards.
    pub fn kernel_times(self) -> Result<KernelTimes> {
        self.kernels.device.kernel_times(|| self.kernels.record_step(&self.runner))
    }

    /// Waits for the device.
    pub fn synchronise(&self) -> Result<()> {
        self.kernels.device.synchronise()
    }
}

impl StepKernels {
    /// The groups of tasks of a step.
    fn groups<'a>(&'a self, runner: &'a StepRunner) -> impl Iterator<Item = Group<'a>> {
        let MamlOptions { size, tasks, .. } = self.options;
        (0..tasks).step_by(self.at_once).map(move |first_task| Group {
            device: &self.device,
            memory: &self.memory,
            size,
            tasks: self.at_once.min(tasks - first_task),
            first_task,
            of_step: tasks,
            labels: &runner.labels,
            state: &runner.optimiser.state,
        })
    }

    /// Starts all kernels of one step.
    fn record_step(&self, runner: &StepRunner) -> Result<()> {
        let Adaptation { rate, steps } = self.options.adaptation;
        for group in self.groups(runner) {
            group.adapt_all(&runner.feed, &self.shared, self.options.adaptation)?;
            group.query_gradients(&self.losses)?;
            // The gradient at the adapted parameters is propagated back through the steps of the adaptation. The
            // first-order version takes it for the gradient at the initial parameters.
            if self.options.order == GradientOrder::Second {
                for step in (0..steps).rev() {
                    group.propagate(step, rate)?;
                }
            }
            self.record_total(&group)?;
        }
        self.record_update(runner)
    }

    /// Starts the kernel that adds the gradients of a group to the total.
    fn record_total(&self, group: &Group<'_>) -> Result<()> {
        let arguments: [&dyn Argument; 6] = [
            &self.memory.gradients,
            &self.total,
            &self.squares,
            &Value(group.tasks as i32),
            &Value(group.shape(&self.memory.queries)),
            &Value(self.memory.stride),
        ];
        self.device.launch(Queue::Main, "add_task_gradients", group.element_grid(), &arguments)
    }

    /// Starts the kernels that update the shared parameters and end the step.
    fn record_update(&self, runner: &StepRunner) -> Result<()> {
        let optimiser = &runner.optimiser;
        let group = self.groups(runner).next().expect("a step has tasks");
        let shape = Value(group.shape(&self.memory.queries));
        optimiser.record_shared_update(&self.shared, &self.total, &self.squares, &shape)?;
        let count = Value((self.options.tasks * self.options.queries) as i32);
        let arguments: [&dyn Argument; 4] = [&self.losses, &count, &optimiser.mean_losses, &optimiser.state];
        self.device.launch(Queue::Main, "finish_meta_step", Grid::new(1, 32), &arguments)
    }
}

#[cfg(all(test, any(feature = "emulator", feature = "gpu-tests")))]
mod tests;
