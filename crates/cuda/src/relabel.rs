//! Training of a Relabel head ([`trueshot_nn::relabel`]) on the GPU. The head reads the features of a support set whose
//! labels may be wrong, estimates the true class of every item, and builds one prototype per class from that.
//!
//! Start with [`RelabelTraining`]. It copies the features of the data sets to the device once. After that, the host
//! passes the episodes of up to [`STEP_SLOTS`] steps at a time: labels, and for each item and query the index of its
//! row of features, or the row itself ([`EpisodeRows`]). The device runs one CUDA graph per step and keeps parameters,
//! moments and activations. The episodes of a step may have any numbers of items and classes: the graph is recorded for
//! the largest sizes so far and also runs all smaller steps.
//!
//! In this file, a state is the vector that the network has for one item and one class, and the edge network computes
//! attention logits for pairs of items. A tile is the work of one thread block: a few items of an episode with all
//! their states.
//!
//! Losses, gradients and updates are those of [`Head::losses`](trueshot_nn::head::Head::losses) and
//! [`AdamW`](trueshot_nn::adamw::AdamW) on the CPU, with the same dropout masks for the same seeds. Products with
//! weights round their inputs to TF32, so results differ from those of the CPU in the fourth digit. Two runs on the
//! same GPU agree to the bit.
//!
//! [`RelabelTraining::joint`] trains the head together with a backbone: see
//! [`HeadTraining`](crate::joint::HeadTraining).

mod input;
mod joint;
mod memory;

pub use input::{EpisodeInput, EpisodeRows, FeatureSet, PartInput, StepInput, StoredRow};

use bytemuck::{Pod, Zeroable};
use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::relabel::Relabel;

use crate::conv4::STEP_SLOTS;
use crate::conv4::optimiser::AdamWOptions;
use crate::driver::{Argument, Buffer, Device, Graph, Grid, KernelTimes, Queue, Value, check_shared};
use crate::error::Result;
use input::{EncodedStep, StepSizes, StoredSet};
use memory::{JointAddresses, NetworkPlan, PersistentAddresses, Positions, State, StepMemory};

/// Threads per block of the kernels that work on tiles or episodes.
const THREADS: u32 = 1024;
/// Threads per block of `relabel_edges_backward`.
const EDGE_THREADS: u32 = 512;
/// Threads per block of the kernels that work on parameters.
const PARAMETER_THREADS: u32 = 256;
/// Columns of features that `relabel_gram` (inner products of items with each other and with queries) holds in shared
/// memory at a time, on Hopper GPUs.
const HOPPER_GRAM_DIMS: usize = 640;
/// Columns of features that `relabel_gram` holds in shared memory at a time, on other GPUs.
const GRAM_DIMS: usize = 256;
/// Bytes of shared memory of `relabel_gram`: 64 rows (32 items, and 32 items or queries) of `dims` columns, padded by
/// 8.
const fn gram_shared_len(dims: usize) -> usize {
    4 * 64 * (dims + 8)
}
/// Bytes of shared memory of `relabel_products`: 3 stages of two factors, each of 32 rows of 64 numbers, padded by 8.
const PRODUCTS_SHARED_LEN: usize = 4 * 3 * 2 * 32 * 72;
/// Bytes of dynamic shared memory that a thread block may use on Hopper GPUs: all but 1 KiB, which the kernels use as
/// static shared memory.
const HOPPER_SHARED_LEN: usize = 226 << 10;
/// Bytes of dynamic shared memory that a thread block may use on other GPUs.
const SHARED_LEN: usize = 98 << 10;

/// The options of the optimiser.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimiserOptions {
    /// Hyperparameters of AdamW.
    pub adamw: AdamWConfig,
    /// The largest norm of the gradient, to which larger ones are clipped; 0: no clipping.
    pub clip: f64,
}

impl Default for OptimiserOptions {
    /// AdamW with PyTorch's defaults, without clipping.
    fn default() -> Self {
        OptimiserOptions { adamw: AdamWConfig::default(), clip: 0.0 }
    }
}

/// The two terms of the loss of one step, each the mean over the episodes. The loss is their sum.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepLosses {
    /// Mean cross-entropy of the items' true classes, times
    /// [`items_weight`](trueshot_nn::relabel::Config::items_weight).
    pub items: f32,
    /// Mean cross-entropy of the queries' classes, times
    /// [`queries_weight`](trueshot_nn::relabel::Config::queries_weight).
    pub queries: f32,
}

/// `Optimiser` in `kernels/relabel_optimiser.cu`: the options, and the addresses of the buffers in [`Persistent`] and
/// [`StepMemory`].
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct DeviceOptimiser {
    options: AdamWOptions,
    /// The number of parameters.
    len: i32,
    square_count: i32,
    parameters: u64,
    packed: u64,
    first_moments: u64,
    second_moments: u64,
    gradients: u64,
    product_sums: u64,
    sources: u64,
    positions: u64,
    squares: u64,
    results: u64,
}

/// Buffers that live as long as the training run. The first four have one number per parameter.
struct Persistent {
    parameters: Buffer<f32>,
    first_moments: Buffer<f32>,
    second_moments: Buffer<f32>,
    gradients: Buffer<f32>,
    /// Copies of the weights in the order in which matrix instructions read them, forward and transposed for the
    /// backward pass.
    packed: Buffer<f32>,
    /// The positions of each parameter in `packed`.
    positions: Buffer<Positions>,
    /// Sums of squares of the gradients, one per thread block, for clipping.
    squares: Buffer<f64>,
    /// The losses of the items and of the queries of each slot, `[slot][2]`.
    results: Buffer<f32>,
    /// The number of finished steps and of updates, one element.
    state: Buffer<State>,
    /// The feature sets: `[rows][dim]`, and `dim`.
    features: Vec<(Buffer<f32>, usize)>,
    /// The gradient of the first feature set, in training together with a backbone.
    feature_gradient: Option<Buffer<f32>>,
    /// The rows of [`EpisodeRows::Given`] of the current step. Reallocated when a step has more of them.
    given_rows: Buffer<f32>,
}

/// A Relabel head in training on a GPU.
pub struct RelabelTraining {
    device: Device,
    /// The network and the positions of its parameters.
    plan: NetworkPlan,
    options: OptimiserOptions,
    persistent: Persistent,
    /// The slots and activations for steps of the largest sizes so far; `None` before the first step.
    memory: Option<StepMemory>,
    /// The recorded step; `None` until the first launch, and after `memory` was reallocated.
    graph: Option<Graph>,
    /// Bytes of shared memory that a thread block may use.
    shared_limit: usize,
    /// The number of states that a tile should not exceed, see [`NetworkPlan::tile_states`].
    tile_states: usize,
    /// Steps that the device has finished. Step n uses slot `n % STEP_SLOTS`.
    done: u32,
}

impl RelabelTraining {
    /// A training run of `network` that starts from `parameters`. `features` are copied to the device; a [`StoredRow`]
    /// refers to one of these sets by its index.
    ///
    /// The kernels do not centre rows on the mean of the training features: a network with
    /// [`training_centre`](trueshot_nn::relabel::Config::training_centre) must get rows that are centred already.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::Error::OutOfMemory) if the features do not fit, [`TooLarge`](crate::Error::TooLarge) if
    /// the network is too wide for the GPU.
    ///
    /// # Panics
    /// If `parameters` does not have the length of the network's layout, or the length of a feature set is not a
    /// multiple of its dimension.
    pub fn new(
        device: &Device,
        network: &Relabel,
        options: OptimiserOptions,
        parameters: &[f32],
        features: &[FeatureSet<'_>],
    ) -> Result<Self> {
        let mut stored = Vec::new();
        for set in features {
            let is_whole = set.dim > 0 && set.values.len().is_multiple_of(set.dim);
            assert!(is_whole, "{} features in rows of {}", set.values.len(), set.dim);
            stored.push((device.upload(set.values)?, set.dim));
        }
        Self::with_features(device, network, options, parameters, stored)
    }

    /// The same as [`RelabelTraining::new`] with features that are already on the device: `[rows][dim]`, and `dim`.
    fn with_features(
        device: &Device,
        network: &Relabel,
        options: OptimiserOptions,
        parameters: &[f32],
        features: Vec<(Buffer<f32>, usize)>,
    ) -> Result<Self> {
        let plan = NetworkPlan::new(network);
        let shared_limit = if device.has_wgmma() { HOPPER_SHARED_LEN } else { SHARED_LEN };
        check_shared("the edge network", plan.edges_shared_len(), shared_limit)?;
        let tile_states = plan.tile_states(shared_limit)?;
        let persistent = Persistent::new(device, &plan, features)?;
        let mut training = RelabelTraining {
            device: device.clone(),
            plan,
            options,
            persistent,
            memory: None,
            graph: None,
            shared_limit,
            tile_states,
            done: 0,
        };
        let zeros = vec![0.0; parameters.len()];
        training.load(parameters, &zeros, &zeros, 0)?;
        Ok(training)
    }

    /// The parameters, in the order of the network's layout. Waits for the device.
    pub fn parameters(&self) -> Result<Vec<f32>> {
        self.persistent.parameters.read()
    }

    /// The gradient of the last step's mean loss over its episodes, before clipping, in the order of the parameters.
    pub fn gradient(&self) -> Result<Vec<f32>> {
        self.persistent.gradients.read()
    }

    /// The first and second moments of the optimiser, each in the order of the parameters.
    pub fn moments(&self) -> Result<(Vec<f32>, Vec<f32>)> {
        Ok((self.persistent.first_moments.read()?, self.persistent.second_moments.read()?))
    }

    /// The number of updates of the optimiser so far: steps whose loss was finite, and those counted by
    /// [`RelabelTraining::load`].
    pub fn progress(&self) -> Result<u64> {
        Ok(u64::from(self.persistent.state.read()?[0].updates))
    }

    /// Replaces the parameters and the state of the optimiser, which has made `updates` updates.
    ///
    /// # Panics
    /// If a slice does not have the length of the network's layout.
    pub fn load(
        &mut self,
        parameters: &[f32],
        first_moments: &[f32],
        second_moments: &[f32],
        updates: u64,
    ) -> Result<()> {
        let persistent = &mut self.persistent;
        for values in [parameters, first_moments, second_moments] {
            assert_eq!(values.len(), persistent.parameters.len(), "parameters of this layout");
        }
        persistent.parameters.write(0, parameters)?;
        persistent.first_moments.write(0, first_moments)?;
        persistent.second_moments.write(0, second_moments)?;
        let state =
            State { step: self.done, updates: updates as u32, finished_blocks: 0, corrections: [0.0; 2] };
        persistent.state.write(0, &[state])
    }

    /// Runs steps and returns the losses of each. A step whose loss is not finite changes neither parameters nor
    /// moments.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::Error::OutOfMemory) or [`TooLarge`](crate::Error::TooLarge) if the episodes are too
    /// large, [`Lost`](crate::Error::Lost) if the GPU stopped working.
    ///
    /// # Panics
    /// If there are more than [`STEP_SLOTS`] steps, a step has no episodes, or an episode's lengths, labels or rows are
    /// not consistent.
    pub fn run(&mut self, steps: &[StepInput]) -> Result<Vec<StepLosses>> {
        assert!(steps.len() <= STEP_SLOTS, "{} steps at a time", steps.len());
        let encoded = self.encode(steps);
        if encoded.iter().all(|step| step.given_rows.is_empty()) {
            return self.run_encoded(encoded);
        }
        // There is memory for the given rows of one step only.
        let mut losses = Vec::with_capacity(steps.len());
        for step in encoded {
            losses.extend(self.run_encoded(vec![step])?);
        }
        Ok(losses)
    }

    /// Converts steps to the form of the device.
    ///
    /// # Panics
    /// If the lengths, labels or rows of an episode are not consistent.
    fn encode(&self, steps: &[StepInput]) -> Vec<EncodedStep> {
        let sets = self.persistent.stored_sets();
        let encoded: Vec<EncodedStep> =
            steps.iter().map(|step| EncodedStep::new(step, &sets, self.tile_states)).collect();
        self.check_dims(&encoded);
        encoded
    }

    /// Checks the lengths of rows, which a network for one backbone prescribes.
    ///
    /// # Panics
    /// If the network takes rows of one length only and an episode has others.
    fn check_dims(&self, steps: &[EncodedStep]) {
        let Some(expected) = self.plan.config.dim() else { return };
        assert!(
            steps.iter().flat_map(EncodedStep::dims).all(|dim| dim == expected),
            "the network takes rows of {expected} numbers"
        );
    }

    /// Runs steps, which may have given rows only if there is one step.
    fn run_encoded(&mut self, mut steps: Vec<EncodedStep>) -> Result<Vec<StepLosses>> {
        for step in &mut steps {
            self.persistent.place_given_rows(&self.device, step)?;
        }
        self.write_slots(&steps)?;
        for _ in &steps {
            self.launch_graph()?;
        }
        self.read_losses()
    }

    /// Writes steps into the slots after that of the last finished step. Returns whether buffers were reallocated.
    fn write_slots(&mut self, steps: &[EncodedStep]) -> Result<bool> {
        let sizes = steps.iter().fold(StepSizes::default(), |sizes, step| sizes.max(step.sizes));
        let is_new = self.reserve(sizes)?;
        let memory = self.memory.as_mut().expect("just reserved");
        let len = memory.relabel.layout.slot_len as usize;
        let mut words = vec![0; len];
        for (offset, step) in steps.iter().enumerate() {
            step.write(&memory.relabel.layout, &mut words);
            memory.slots.write((self.done as usize + offset) % STEP_SLOTS * len, &words)?;
        }
        Ok(is_new)
    }

    /// The losses of the steps that were finished since the last call.
    fn read_losses(&mut self) -> Result<Vec<StepLosses>> {
        let before = self.done;
        self.done = self.persistent.state.read()?[0].step;
        let results = self.persistent.results.read()?;
        let of_step = |step: u32| {
            let slot = step as usize % STEP_SLOTS;
            StepLosses { items: results[2 * slot], queries: results[2 * slot + 1] }
        };
        Ok((before..self.done).map(of_step).collect())
    }

    /// Launches the graph of one step on the input that is in its slot, and does not wait for it. For measurements:
    /// call [`run`](Self::run) with [`STEP_SLOTS`] steps first, so that all slots are filled.
    pub fn launch_step(&mut self) -> Result<()> {
        self.launch_graph()?;
        // As the device counts, in 32 bits.
        self.done = self.done.wrapping_add(1);
        Ok(())
    }

    /// Launches the graph of a step, which is recorded first if necessary.
    fn launch_graph(&mut self) -> Result<()> {
        if self.graph.is_none() {
            self.graph = Some(self.device.clone().capture(|| self.record_step())?);
        }
        self.graph.as_ref().expect("just set").launch()
    }

    /// Measures each kernel of a step, in microseconds, by launching it several times. The run cannot be continued
    /// afterwards.
    pub fn kernel_times(self) -> Result<KernelTimes> {
        self.device.kernel_times(|| self.record_step())
    }

    /// Waits until the device has finished all work.
    pub fn synchronise(&self) -> Result<()> {
        self.device.synchronise()
    }

    /// Allocates larger buffers if a step of `sizes` does not fit into the current ones. Returns whether it did.
    fn reserve(&mut self, sizes: StepSizes) -> Result<bool> {
        let current = self.memory.as_ref().map(|memory| memory.sizes);
        if current.is_some_and(|current| sizes.fits(current)) {
            return Ok(false);
        }
        // Frees the old buffers before the new ones are allocated.
        (self.memory, self.graph) = (None, None);
        let sizes = current.map_or(sizes, |current| current.max(sizes.with_room()));
        let persistent = &self.persistent;
        let addresses = PersistentAddresses {
            state: persistent.state.address(),
            parameters: persistent.parameters.address(),
            packed: persistent.packed.address(),
            joint: persistent.joint_addresses(),
        };
        let limit = self.shared_limit;
        self.memory = Some(StepMemory::new(&self.device, &self.plan, sizes, addresses, STEP_SLOTS, limit)?);
        Ok(true)
    }

    /// Launches a kernel on the main queue.
    fn launch(&self, kernel: &'static str, grid: Grid, arguments: &[&dyn Argument]) -> Result<()> {
        self.device.launch(Queue::Main, kernel, grid, arguments)
    }

    /// A grid of one thread per parameter.
    fn parameter_grid(&self) -> Grid {
        Grid::new(self.persistent.parameters.len().div_ceil(PARAMETER_THREADS as usize), PARAMETER_THREADS)
    }

    /// The argument of the kernels that work on parameters.
    fn optimiser(&self, memory: &StepMemory) -> DeviceOptimiser {
        let persistent = &self.persistent;
        DeviceOptimiser {
            options: AdamWOptions::new(&self.options.adamw, self.options.clip),
            len: persistent.parameters.len() as i32,
            square_count: persistent.squares.len() as i32,
            parameters: persistent.parameters.address(),
            packed: persistent.packed.address(),
            first_moments: persistent.first_moments.address(),
            second_moments: persistent.second_moments.address(),
            gradients: persistent.gradients.address(),
            product_sums: memory.product_sums.address(),
            sources: memory.sources.address(),
            positions: persistent.positions.address(),
            squares: persistent.squares.address(),
            results: persistent.results.address(),
        }
    }

    /// Launches all kernels of one step; [`Device::capture`] records the launches as a graph.
    fn record_step(&self) -> Result<()> {
        let memory = self.step_memory();
        let relabel = Value(memory.relabel);
        let optimiser = Value(self.optimiser(memory));
        self.record_gram(memory)?;
        self.launch(
            "relabel_features",
            self.episode_grid(memory, memory.features_shared_len() as usize),
            &[&relabel],
        )?;
        self.record_layers(memory)?;
        let losses = self.episode_grid(memory, memory.relabel.scratch_len as usize);
        self.launch("relabel_losses", losses, &[&relabel])?;
        self.record_output_backward(memory)?;
        for layer in (0..self.plan.config.layers).rev() {
            self.tile_kernel(memory, "relabel_attend_backward_rows", layer)?;
            self.tile_kernel(memory, "relabel_attend_backward_columns", layer)?;
        }
        // The gradients of the edge network and of the other weights run in parallel with each other, but not with the
        // kernels above, which occupy whole multiprocessors.
        self.device.fork()?;
        self.record_edges_backward(memory)?;
        self.record_products(memory, Queue::Main)?;
        self.device.join()?;
        if self.options.clip > 0.0 {
            self.launch("relabel_collect", self.parameter_grid(), &[&relabel, &optimiser])?;
        }
        self.launch("relabel_update", self.parameter_grid(), &[&relabel, &optimiser])
    }

    /// The memory of the current sizes.
    ///
    /// # Panics
    /// If no step has been written yet.
    fn step_memory(&self) -> &StepMemory {
        self.memory.as_ref().expect("reserved before a step is recorded")
    }

    /// A grid of one block per episode, with `shared` floats of shared memory.
    fn episode_grid(&self, memory: &StepMemory, shared: usize) -> Grid {
        Grid::new(memory.sizes.episodes, THREADS).shared(4 * shared)
    }

    /// A grid of one block per tile.
    fn tile_grid(memory: &StepMemory) -> Grid {
        Grid::new(memory.sizes.tiles, THREADS).shared(4 * memory.relabel.shared.len as usize)
    }

    /// Launches a kernel that works on the tiles in one layer.
    fn tile_kernel(&self, memory: &StepMemory, kernel: &'static str, layer: usize) -> Result<()> {
        self.launch(kernel, Self::tile_grid(memory), &[&Value(memory.relabel), &Value(layer as i32)])
    }

    /// Launches the kernel for the inner products between items, and of items with queries. In parallel, the weights
    /// are packed, which it does not read.
    fn record_gram(&self, memory: &StepMemory) -> Result<()> {
        let relabel = Value(memory.relabel);
        self.device.fork()?;
        // One more block than for the parameters: it computes the bias corrections of AdamW.
        let pack = Grid::new(self.parameter_grid().blocks.0 as usize + 1, PARAMETER_THREADS);
        let optimiser = Value(self.optimiser(memory));
        self.device.launch(Queue::Side, "relabel_pack", pack, &[&relabel, &optimiser])?;
        let dims = if self.device.has_wgmma() { HOPPER_GRAM_DIMS } else { GRAM_DIMS };
        let StepSizes { episodes, gram_tiles, .. } = memory.sizes;
        let gram = Grid::new(gram_tiles, THREADS).rows(episodes).shared(gram_shared_len(dims));
        self.launch("relabel_gram", gram, &[&relabel, &Value(dims as i32)])?;
        self.device.join()
    }

    /// Launches the forward pass of the network: from the input features of pairs of items and of states to the logits.
    fn record_layers(&self, memory: &StepMemory) -> Result<()> {
        self.launch("relabel_input", Self::tile_grid(memory), &[&Value(memory.relabel)])?;
        for layer in 0..self.plan.config.layers {
            self.tile_kernel(memory, "relabel_attend", layer)?;
            self.tile_kernel(memory, "relabel_mix", layer)?;
        }
        Ok(())
    }

    /// Launches the backward pass of the output layer.
    fn record_output_backward(&self, memory: &StepMemory) -> Result<()> {
        self.launch("relabel_output_backward", Self::tile_grid(memory), &[&Value(memory.relabel)])
    }

    /// Launches the kernel for the gradient of the edge network's parameters, on the side queue.
    fn record_edges_backward(&self, memory: &StepMemory) -> Result<()> {
        let grid = Grid::new(memory.sizes.tiles, EDGE_THREADS).shared(self.plan.edges_shared_len());
        self.device.launch(Queue::Side, "relabel_edges_backward", grid, &[&Value(memory.relabel)])
    }

    /// Launches the matrix products that are the gradients of the other weights.
    fn record_products(&self, memory: &StepMemory, queue: Queue) -> Result<()> {
        let grid = Grid::new(memory.products.len(), PARAMETER_THREADS).shared(PRODUCTS_SHARED_LEN);
        self.device.launch(queue, "relabel_products", grid, &[&Value(memory.relabel), &memory.products])
    }
}

impl Persistent {
    /// Buffers for a network, all zero except the features and the tables.
    fn new(device: &Device, plan: &NetworkPlan, features: Vec<(Buffer<f32>, usize)>) -> Result<Self> {
        let len = plan.packing.positions.len();
        Ok(Persistent {
            parameters: device.zeros(len)?,
            first_moments: device.zeros(len)?,
            second_moments: device.zeros(len)?,
            gradients: device.zeros(len)?,
            packed: device.zeros(plan.packing.len)?,
            positions: device.upload(&plan.packing.positions)?,
            squares: device.zeros(len.div_ceil(PARAMETER_THREADS as usize))?,
            results: device.zeros(2 * STEP_SLOTS)?,
            state: device.zeros(1)?,
            features,
            feature_gradient: None,
            given_rows: device.zeros(0)?,
        })
    }

    /// Address and size of each feature set.
    fn stored_sets(&self) -> Vec<StoredSet> {
        let set = |(rows, dim): &(Buffer<f32>, usize)| StoredSet {
            address: rows.address(),
            rows: rows.len() / dim,
            dim: *dim,
        };
        self.features.iter().map(set).collect()
    }

    /// Addresses of the features and their gradient; `None` in training without a backbone.
    fn joint_addresses(&self) -> Option<JointAddresses> {
        let d_features = self.feature_gradient.as_ref()?.address();
        let (features, dim) = &self.features[0];
        Some(JointAddresses { features: features.address(), d_features, dim: *dim })
    }

    /// Copies the rows of [`EpisodeRows::Given`] to the device, and stores their addresses in `step`.
    fn place_given_rows(&mut self, device: &Device, step: &mut EncodedStep) -> Result<()> {
        if step.given_rows.is_empty() {
            return Ok(());
        }
        if step.given_rows.len() > self.given_rows.len() {
            self.given_rows = device.zeros(step.given_rows.len())?;
        }
        self.given_rows.write(0, &step.given_rows)?;
        step.place_given_rows(self.given_rows.address());
        Ok(())
    }
}

#[cfg(all(test, any(feature = "emulator", feature = "gpu-tests")))]
mod tests;
