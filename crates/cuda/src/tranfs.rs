//! TraNFS ([`trueshot_nn::tranfs`]) on the GPU: training on episodes of features that stay on the device. TraNFS is a
//! transformer that reads a support set with wrong labels and outputs one prototype per class. Its tokens are one class
//! token per class, and one token per support item: the item's features, projected down to the width of a token.
//! Prototypes are class tokens after the last layer, projected back up.
//!
//! Start with [`TranfsTraining`]. The host passes the inputs of up to [`STEP_SLOTS`] steps at a time: row numbers,
//! labels, dropout seeds and learning rates. The device runs one graph per step and keeps everything else: parameters,
//! moments of the optimiser, activations and features. Episodes of a step may have any sizes up to the [`Limits`],
//! because the kernels read the sizes from the input; so one graph serves all steps. With [`TranfsTraining::joint`], a
//! backbone computes the features of each step and receives their gradient.
//!
//! Numbers are f32, matrix products have TF32 inputs and f32 sums, and dropout masks are those of the CPU. All sums are
//! added in a fixed order, so the same inputs give the same bits.

mod input;
mod joint;
mod memory;
mod tasks;

use bytemuck::{Pod, Zeroable};
use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::head::Head;
use trueshot_nn::tranfs::{ClassTokens, Config, Tranfs};

pub use self::input::{EpisodeInput, Limits, PartInput, Query, StepInput, SupportItem};

use self::input::{InputLayout, InputLimits};
use self::joint::{JointArgument, JointBuffers};
use self::memory::{Activations, Factors, KernelMemory, SharedMemory, Sizes, TranfsArgument, TranfsState};
use self::tasks::{GradientTask, PackedPlaces, ParameterPlaces, UpdateTask};
use crate::conv4::STEP_SLOTS;
use crate::driver::{Argument, Buffer, Device, Graph, Grid, KernelTimes, Queue, Value};
use crate::error::Result;
use crate::joint::BackboneArgument;

/// Threads of a thread block of `tranfs_layer` (`kernels/tranfs.cu`).
const LAYER_THREADS: u32 = 256;
/// Threads of a thread block of `tranfs_prototypes` and `tranfs_losses` (`kernels/tranfs_losses.cu`).
const LOSS_THREADS: u32 = 512;

/// The options of a training run, beside those of the network.
#[derive(Debug, Clone)]
pub struct TranfsOptions {
    /// Hyperparameters of the optimiser.
    pub optimiser: AdamWConfig,
    /// The largest norm of the gradient of the trained parameters; 0: no clipping.
    pub clip: f64,
    /// The largest sizes of a step, which decide how much memory is allocated.
    pub limits: Limits,
}

/// Hyperparameters of the update as the kernels take them. Rate and weight decay come with each step.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct HeadOptimiser {
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    l2: f32,
    /// The largest norm of the gradient; 0: no clipping.
    clip: f32,
    /// The number of sums of squares of the gradient.
    squares: i32,
}

/// A TraNFS in training on a GPU.
pub struct TranfsTraining {
    device: Device,
    config: Config,
    options: TranfsOptions,
    shared: SharedMemory,
    /// The layout of the input of a step.
    layout: InputLayout,
    /// The rows of the data set, `[rows, dim]`.
    features: Buffer<f32>,
    /// The extra rows of the current steps ([`StepInput::extra_rows`]), `[rows, dim]`.
    extra: Buffer<f32>,
    /// The inputs of the steps, `[slot][slot_len]`. Step n uses slot `n % STEP_SLOTS`.
    inputs: Buffer<u32>,
    /// A copy of the input of the current step, `[slot_len]`.
    #[allow(dead_code, reason = "kernels use it by address")]
    current: Buffer<u32>,
    parameters: Buffer<f32>,
    /// The packed weights: copies of the weights in the order in which matrix instructions read them, see
    /// [`PackedPlaces`].
    packed: Buffer<u32>,
    first_moments: Buffer<f32>,
    second_moments: Buffer<f32>,
    gradients: Buffer<f32>,
    /// Sums of squares of the gradients (in joint training, of those of the mean loss), one per gradient task.
    squares: Buffer<f64>,
    activations: Activations,
    /// The work of the thread blocks that compute the gradients of the parameters.
    gradient_tasks: Buffer<GradientTask>,
    /// The number of gradient tasks of each layer from the last to layer 1, then of all other tasks.
    group_lens: Vec<usize>,
    /// The work of the thread blocks that update and pack the parameters.
    update_tasks: Buffer<UpdateTask>,
    /// One element.
    state: Buffer<TranfsState>,
    /// The argument of all kernels.
    argument: TranfsArgument,
    /// `None` without a backbone.
    joint: Option<JointBuffers>,
    /// The recorded kernels of a step; `None` before the first step, and after the buffer of the extra rows has moved.
    graph: Option<Graph>,
    /// Steps that the device has finished.
    done: u32,
    /// Updates of the optimiser.
    updates: u64,
}

impl TranfsTraining {
    /// A training run that starts from `parameters`, in the layout of `network`. `features` are the rows of the data
    /// set, `[rows, dim]`; without rows, every step brings its own.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::Error::OutOfMemory) if the activations do not fit.
    ///
    /// # Panics
    /// If `parameters` or `features` have the wrong length.
    pub fn new(
        device: &Device,
        network: &Tranfs,
        options: TranfsOptions,
        parameters: &[f32],
        features: Buffer<f32>,
    ) -> Result<Self> {
        Self::with_features(device, network, options, parameters, features, false)
    }

    /// [`TranfsTraining::new`] or, with `is_joint`, [`TranfsTraining::joint`].
    fn with_features(
        device: &Device,
        network: &Tranfs,
        options: TranfsOptions,
        parameters: &[f32],
        features: Buffer<f32>,
        is_joint: bool,
    ) -> Result<Self> {
        let (config, limits) = (network.config().clone(), options.limits);
        assert!(features.len().is_multiple_of(config.dim), "features of {} dimensions", config.dim);
        let layout = InputLayout::new(limits, config.classes);
        // `down_t` is the position of the transposed down-projection among the packed weights.
        let (places, down_t, packed_len) = PackedPlaces::new(&config, is_joint);
        let shared = SharedMemory::new(&config, limits);
        let activations = Activations::new(device, &config, limits, &shared)?;
        let len = network.layout().len();
        let task_groups = tasks::gradient_tasks(network, &activations);
        let gradient_tasks = device.upload(&task_groups.concat())?;
        let extra = device.zeros(0)?;
        let inputs = device.zeros(STEP_SLOTS * layout.slot_len as usize)?;
        let current = device.zeros(layout.slot_len as usize)?;
        // `packed_len` is in units of 16 bytes, four words.
        let (on_device, packed, state) =
            (device.zeros(len)?, device.zeros(4 * packed_len)?, device.zeros(1)?);
        let argument = TranfsArgument {
            sizes: Sizes::new(&config, limits, &shared, features.len() / config.dim),
            input: layout,
            factors: Factors::new(&config),
            places: ParameterPlaces::new(network),
            packed: places,
            inputs: Buffer::address(&inputs),
            current: Buffer::address(&current),
            features: features.address(),
            extra: Buffer::address(&extra),
            parameters: Buffer::address(&on_device),
            packed_weights: Buffer::address(&packed),
            activations: activations.addresses(),
            state: Buffer::address(&state),
        };
        let joint = if is_joint {
            Some(JointBuffers::new(device, &config, limits, features.len(), down_t)?)
        } else {
            None
        };
        let mut training = TranfsTraining {
            device: device.clone(),
            config,
            shared,
            layout,
            features,
            extra,
            inputs,
            current,
            parameters: on_device,
            packed,
            first_moments: device.zeros(len)?,
            second_moments: device.zeros(len)?,
            gradients: device.zeros(len)?,
            squares: device.zeros(gradient_tasks.len())?,
            activations,
            gradient_tasks,
            group_lens: task_groups.iter().map(Vec::len).collect(),
            update_tasks: device.upload(&tasks::update_tasks(network, &places, down_t))?,
            state,
            argument,
            joint,
            graph: None,
            done: 0,
            updates: 0,
            options,
        };
        let zeros = vec![0.0; parameters.len()];
        training.load(parameters, &zeros, &zeros, 0)?;
        Ok(training)
    }

    /// The parameters.
    pub fn parameters(&self) -> Result<Vec<f32>> {
        self.parameters.read()
    }

    /// The gradient of the last step's loss, summed over its episodes; 0 for constant tensors.
    pub fn gradient(&self) -> Result<Vec<f32>> {
        self.gradients.read()
    }

    /// First and second moments of the optimiser.
    pub fn moments(&self) -> Result<(Vec<f32>, Vec<f32>)> {
        Ok((self.first_moments.read()?, self.second_moments.read()?))
    }

    /// The number of updates of the optimiser.
    pub fn progress(&self) -> u64 {
        self.updates
    }

    /// Replaces parameters and the state of the optimiser.
    ///
    /// # Panics
    /// If a length is not that of the layout.
    pub fn load(
        &mut self,
        parameters: &[f32],
        first_moments: &[f32],
        second_moments: &[f32],
        updates: u64,
    ) -> Result<()> {
        for values in [parameters, first_moments, second_moments] {
            assert_eq!(values.len(), self.parameters.len(), "parameters of this layout");
        }
        self.parameters.write(0, parameters)?;
        self.first_moments.write(0, first_moments)?;
        self.second_moments.write(0, second_moments)?;
        self.updates = updates;
        let state = TranfsState { step: self.done, failed: 0, factors: [0.0; 4], evaluated: self.done };
        self.state.write(0, &[state])?;
        self.begin()
    }

    /// Prepares packed weights and the input of the next step, after the host has written parameters or inputs.
    fn begin(&self) -> Result<()> {
        let grid = Grid::new(self.update_tasks.len(), 256);
        self.launch("tranfs_begin", grid, &[&Value(self.argument), &self.update_tasks, &self.packed])
    }

    /// Runs steps and returns the terms of their losses, each the mean over the episodes: queries, clean, mislabelled.
    ///
    /// If a term is not finite, the step updates nothing and its terms are the last ones returned. Later steps update
    /// nothing either, until the next [`TranfsTraining::load`].
    ///
    /// # Errors
    /// [`Lost`](crate::Error::Lost) if the GPU stopped working.
    ///
    /// # Panics
    /// If there are more than [`STEP_SLOTS`] steps, or an input exceeds the limits.
    pub fn run(&mut self, steps: &[StepInput]) -> Result<Vec<[f32; 3]>> {
        assert!(steps.len() <= STEP_SLOTS, "{} steps at a time", steps.len());
        if steps.is_empty() {
            return Ok(Vec::new());
        }
        self.write_extra_rows(steps)?;
        self.write_inputs(steps)?;
        self.begin()?;
        for _ in steps {
            self.graph()?.launch()?;
        }
        let first = self.done;
        self.done += steps.len() as u32;
        self.read_losses(first, self.done)
    }

    /// The losses of steps `first` to `end`, up to the first that is not finite; counts their updates.
    fn read_losses(&mut self, first: u32, end: u32) -> Result<Vec<[f32; 3]>> {
        let losses = self.activations.step_losses.read()?;
        let mut terms: Vec<[f32; 3]> = (first..end)
            .map(|step| step as usize % STEP_SLOTS)
            .map(|slot| std::array::from_fn(|term| losses[3 * slot + term]))
            .collect();
        let failed = terms.iter().position(|terms| terms.iter().any(|term| !term.is_finite()));
        self.updates += failed.unwrap_or(terms.len()) as u64;
        terms.truncate(failed.map_or(terms.len(), |step| step + 1));
        Ok(terms)
    }

    /// Launches the graph of a step with the inputs that its slot still has, and does not wait. For measurements.
    pub fn launch_step(&mut self) -> Result<()> {
        self.done += 1;
        self.graph()?.launch()
    }

    /// The times of the kernels of a step. The run cannot be continued afterwards.
    pub fn kernel_times(self) -> Result<KernelTimes> {
        self.device.kernel_times(|| self.record_step())
    }

    /// Waits for the device.
    pub fn synchronise(&self) -> Result<()> {
        self.device.synchronise()
    }

    /// Copies the extra rows of all steps, one step after the other.
    fn write_extra_rows(&mut self, steps: &[StepInput]) -> Result<()> {
        let rows = steps.iter().map(|step| &step.extra_rows[..]).collect::<Vec<_>>().concat();
        if rows.is_empty() {
            return Ok(());
        }
        if rows.len() > self.extra.len() {
            self.device.synchronise()?;
            self.extra = self.device.zeros(rows.len().next_power_of_two())?;
            self.argument.extra = self.extra.address();
            self.graph = None;
        }
        self.extra.write(0, &rows)
    }

    /// Encodes the inputs of steps and copies them to their slots.
    fn write_inputs(&mut self, steps: &[StepInput]) -> Result<()> {
        let (dim, slot_len) = (self.config.dim, self.layout.slot_len as usize);
        let mut words = vec![0; steps.len() * slot_len];
        let mut extra_start = 0;
        for (number, (step, slot)) in steps.iter().zip(words.chunks_exact_mut(slot_len)).enumerate() {
            assert!(step.extra_rows.len().is_multiple_of(dim), "extra rows of {dim} dimensions");
            let extra_rows = step.extra_rows.len() / dim;
            let limits = InputLimits {
                limits: self.options.limits,
                classes: self.config.classes,
                rows: self.features.len() / dim + extra_rows,
                heads: self.config.heads,
            };
            let factors = self.factors(step.rate, self.updates + number as u64 + 1);
            input::write_slot(step, factors, extra_start, self.layout, limits, slot);
            extra_start += extra_rows;
        }
        // Two copies where the ring of slots wraps around.
        let first = self.done as usize % STEP_SLOTS;
        let (before_end, after) = words.split_at(steps.len().min(STEP_SLOTS - first) * slot_len);
        self.inputs.write(first * slot_len, before_end)?;
        if after.is_empty() { Ok(()) } else { self.inputs.write(0, after) }
    }

    /// The factors of AdamW for update number `update`, counted from 1, as the CPU computes them: the factor of the
    /// parameters (weight decay), the learning rate over the bias correction of the first moments, and one over the
    /// square root of the bias correction of the second moments.
    fn factors(&self, rate: f64, update: u64) -> [f32; 3] {
        let AdamWConfig { beta1, beta2, weight_decay, .. } = self.options.optimiser;
        let correction = |beta: f64| 1.0 - beta.powf(update as f64);
        [
            (1.0 - rate * weight_decay) as f32,
            (rate / correction(beta1)) as f32,
            correction(beta2).sqrt().recip() as f32,
        ]
    }

    /// The graph of a step, which is recorded first if necessary.
    fn graph(&mut self) -> Result<&Graph> {
        if self.graph.is_none() {
            self.graph = Some(self.device.clone().capture(|| self.record_step())?);
        }
        Ok(self.graph.as_ref().expect("just set"))
    }

    /// Launches a kernel on the main queue.
    fn launch(&self, kernel: &'static str, grid: Grid, arguments: &[&dyn Argument]) -> Result<()> {
        self.device.launch(Queue::Main, kernel, grid, arguments)
    }

    /// Starts `count` gradient tasks from number `first` on. `kernel`: `tranfs_gradients` or its joint variant.
    fn record_gradients(&self, kernel: &'static str, queue: Queue, first: usize, count: usize) -> Result<()> {
        let argument = Value(self.argument);
        let first = Value(first as i32);
        let arguments: [&dyn Argument; 5] =
            [&argument, &self.gradient_tasks, &self.gradients, &self.squares, &first];
        let grid = Grid::new(count, 256).shared(self.shared.gradients);
        self.device.launch(queue, kernel, grid, &arguments)
    }

    /// Starts all kernels of one step on features that are constant.
    fn record_step(&self) -> Result<()> {
        self.record_losses_and_gradients(None)?;
        self.record_parameter_update(None)
    }

    /// Starts the kernels from the features to the losses and the gradients of the parameters; with `joint` also to
    /// that of the features.
    fn record_losses_and_gradients(&self, joint: Option<JointArgument>) -> Result<()> {
        let argument = Value(self.argument);
        let (config, limits, shared) = (&self.config, self.options.limits, &self.shared);
        // The grids have one thread block per chunk of 128 columns of the features, per group of 8 tokens of an
        // episode, or per attention head of an episode.
        let chunks = self.argument.sizes.chunks as usize;
        let tokens = limits.support + config.classes;
        let token_grid = Grid::new(tokens.div_ceil(memory::ROWS), LAYER_THREADS).rows(limits.episodes);
        let head_grid = Grid::new(config.heads, 256).rows(limits.episodes);
        // Launches the first of two kernels if its shared memory suffices, otherwise the second, which uses global
        // memory.
        let launch_variant = |grid: Grid, memory: KernelMemory, kernels: [&'static str; 2], layer: usize| {
            let kernel = kernels[usize::from(!memory.fits)];
            self.launch(kernel, grid.shared(memory.bytes), &[&argument, &Value(layer as i32)])
        };
        let classes = self.argument.sizes.class_capacity as usize;
        // The means of the correctly labelled items and the direction of "mislabelled" are needed only after the last
        // layer, so they run on the side queue, beside the encoder.
        self.device.fork()?;
        let grid = Grid::new(chunks, memory::CHUNK as u32).rows(classes + 1);
        self.device.launch(Queue::Side, "tranfs_clean_means", grid, &[&argument])?;
        let grid = Grid::new(config.width.div_ceil(memory::CHUNK), memory::CHUNK as u32);
        self.device.launch(Queue::Side, "tranfs_direction", grid, &[&argument])?;
        let items = (limits.episodes * limits.support).div_ceil(memory::ROWS);
        let projections = self.argument.sizes.projections as usize;
        self.launch(
            "tranfs_project",
            Grid::new(projections, 256).rows(items).shared(shared.project),
            &[&argument],
        )?;
        // Number n of the `tranfs_layer` kernels ends layer n - 1 (what follows its attention) and computes queries,
        // keys and values of layer n. Number 0 makes the tokens instead; the last one computes the loss of
        // "mislabelled", which needs its direction.
        let forward = ["tranfs_layer", "tranfs_layer_large"];
        launch_variant(token_grid, shared.rows, forward, 0)?;
        for layer in 0..config.layers {
            launch_variant(head_grid, shared.attention, ["tranfs_attend", "tranfs_attend_large"], layer)?;
            if layer + 1 == config.layers {
                self.device.join()?;
            }
            launch_variant(token_grid, shared.rows, forward, layer + 1)?;
        }
        // Prototypes and losses; their thread blocks work on columns of the features.
        let columns = |blocks| Grid::new(blocks, LOSS_THREADS).rows(limits.episodes);
        self.launch("tranfs_prototypes", columns(chunks).shared(shared.prototypes), &[&argument])?;
        // One more thread block per episode, for the sums of the loss of "mislabelled".
        let losses = columns(chunks + 1).shared(shared.losses.bytes);
        if let Some(joint) = joint {
            self.record_joint_losses(losses, joint)?;
        } else {
            let kernel = if shared.losses.fits { "tranfs_losses" } else { "tranfs_losses_large" };
            self.launch(kernel, losses, &[&argument])?;
        }
        let gradients = if joint.is_some() { "tranfs_gradients_joint" } else { "tranfs_gradients" };
        let backward = ["tranfs_layer_back", "tranfs_layer_back_large"];
        launch_variant(token_grid, shared.rows_back, backward, config.layers)?;
        // The gradients of a layer's weights are computed beside the backward pass of the layers below.
        let mut first_task = 0;
        for (layer, &count) in (0..config.layers).rev().zip(&self.group_lens) {
            let kernels = ["tranfs_attend_back", "tranfs_attend_back_large"];
            launch_variant(head_grid, shared.attention_back, kernels, layer)?;
            if layer > 0 {
                self.device.fork()?;
                self.record_gradients(gradients, Queue::Side, first_task, count)?;
                first_task += count;
            }
            launch_variant(token_grid, shared.rows_back, backward, layer)?;
        }
        if config.class_tokens == ClassTokens::ClassMean {
            self.launch("tranfs_class_means_back", Grid::new(limits.episodes, 256), &[&argument])?;
        }
        if let Some(joint) = joint {
            self.device.fork()?;
            self.record_item_gradients(joint)?;
        }
        let count = self.gradient_tasks.len() - first_task;
        self.record_gradients(gradients, Queue::Main, first_task, count)?;
        self.device.join()
    }

    /// Starts the kernel of the update; with a `backbone`, it does nothing if a gradient of the backbone overflowed.
    fn record_parameter_update(&self, backbone: Option<BackboneArgument>) -> Result<()> {
        let argument = Value(self.argument);
        let AdamWConfig { beta1, beta2, epsilon, l2, .. } = self.options.optimiser;
        let optimiser = Value(HeadOptimiser {
            beta1: beta1 as f32,
            beta2: beta2 as f32,
            epsilon: epsilon as f32,
            l2: l2 as f32,
            clip: self.options.clip as f32,
            squares: self.squares.len() as i32,
        });
        let mut arguments: Vec<&dyn Argument> = vec![
            &argument,
            &self.update_tasks,
            &self.first_moments,
            &self.second_moments,
            &self.gradients,
            &self.squares,
            &self.packed,
            &optimiser,
        ];
        let grid = Grid::new(self.update_tasks.len(), 256);
        match backbone.map(Value) {
            None => self.launch("tranfs_update", grid, &arguments),
            Some(backbone) => {
                arguments.push(&backbone);
                self.launch("tranfs_update_joint", grid, &arguments)
            }
        }
    }
}

#[cfg(all(test, any(feature = "emulator", feature = "gpu-tests")))]
mod tests;
