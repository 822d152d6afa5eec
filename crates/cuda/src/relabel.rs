//! Relabel on the GPU: training of the head on features that stay on the device.
//!
//! Start with [`RelabelTraining`]. The host passes the episodes of up to [`STEP_SLOTS`] steps at a time, as indices of rows;
//! the device runs one graph per step and keeps everything else. Episodes of a step may have any numbers of items and
//! classes: the graph is recorded for the largest sizes so far and serves all smaller steps.
//!
//! Losses, gradients and updates are those of [`Head::losses`](trueshot_nn::head::Head::losses) and
//! [`AdamW`](trueshot_nn::adamw::AdamW), with the same dropout masks for the same seeds. Products with weights round their
//! inputs to TF32, so results differ in the fourth digit. Two runs on the same GPU agree to the bit.
//!
//! [`RelabelTraining::joint`] trains the head together with a backbone: see [`HeadTraining`](crate::joint::HeadTraining).

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

/// Threads of a block: of the kernels that work on tiles or episodes, of `relabel_edges_backward`, and of the kernels that
/// work on parameters.
const THREADS: u32 = 1024;
const EDGE_THREADS: u32 = 512;
const PARAMETER_THREADS: u32 = 256;
/// Columns of features that `relabel_gram` holds in shared memory, on Hopper and on other GPUs; then the bytes of shared
/// memory for 64 padded rows of `dims` columns.
const HOPPER_GRAM_DIMS: usize = 640;
const GRAM_DIMS: usize = 256;
const fn gram_shared_len(dims: usize) -> usize {
    4 * 64 * (dims + 8)
}
/// Bytes of shared memory of `relabel_products`: 3 stages of two factors, 32 rows of 64 numbers with padding.
const PRODUCTS_SHARED_LEN: usize = 4 * 3 * 2 * 32 * 72;
/// Bytes of dynamic shared memory of a thread block, on Hopper and on other GPUs: all but 1 KiB, which the kernels use as
/// static memory.
const HOPPER_SHARED_LEN: usize = 226 << 10;
const SHARED_LEN: usize = 98 << 10;

/// The options of the optimiser.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OptimiserOptions {
    /// Hyperparameters of AdamW.
    pub adamw: AdamWConfig,
    /// The largest norm of the gradient; 0: no clipping.
    pub clip: f64,
}

impl Default for OptimiserOptions {
    /// AdamW as PyTorch has it, without clipping.
    fn default() -> Self {
        OptimiserOptions { adamw: AdamWConfig::default(), clip: 0.0 }
    }
}

/// The losses of one step, each the mean over the episodes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepLosses {
    /// Cross-entropy of the items' true classes, weighted.
    pub items: f32,
    /// Cross-entropy of the queries, weighted.
    pub queries: f32,
}

/// `Optimiser` in `kernels/relabel_optimiser.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct DeviceOptimiser {
    options: AdamWOptions,
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

/// Buffers that live as long as the training.
struct Persistent {
    parameters: Buffer<f32>,
    first_moments: Buffer<f32>,
    second_moments: Buffer<f32>,
    gradients: Buffer<f32>,
    packed: Buffer<f32>,
    positions: Buffer<Positions>,
    squares: Buffer<f64>,
    results: Buffer<f32>,
    state: Buffer<State>,
    features: Vec<(Buffer<f32>, usize)>,
    /// The gradient of the first feature set, in training together with a backbone.
    feature_gradient: Option<Buffer<f32>>,
    /// Rows that are given directly; grows.
    given_rows: Buffer<f32>,
}

/// A Relabel head in training on a GPU.
pub struct RelabelTraining {
    device: Device,
    plan: NetworkPlan,
    options: OptimiserOptions,
    persistent: Persistent,
    memory: Option<StepMemory>,
    graph: Option<Graph>,
    /// Bytes of shared memory that a thread block may use.
    shared_limit: usize,
    tile_states: usize,
    /// Steps that the device has finished.
    done: u32,
}

impl RelabelTraining {
    /// A training run of `network` that starts from `parameters`. `features` are copied to the device; rows of an episode
    /// name them by the index of their set.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::Error::OutOfMemory) if the features do not fit, [`TooLarge`](crate::Error::TooLarge) if
    /// the network is too wide for the GPU.
    ///
    /// # Panics
    /// If `parameters` does not have the length of the network's layout, or a feature set is not a whole number of rows.
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

    /// The parameters.
    pub fn parameters(&self) -> Result<Vec<f32>> {
        self.persistent.parameters.read()
    }

    /// The gradient of the last step, of the mean loss over its episodes and before clipping.
    pub fn gradient(&self) -> Result<Vec<f32>> {
        self.persistent.gradients.read()
    }

    /// First and second moments of the optimiser.
    pub fn moments(&self) -> Result<(Vec<f32>, Vec<f32>)> {
        Ok((self.persistent.first_moments.read()?, self.persistent.second_moments.read()?))
    }

    /// The number of updates of the optimiser.
    pub fn progress(&self) -> Result<u64> {
        Ok(u64::from(self.persistent.state.read()?[0].updates))
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

    /// Runs steps and returns their losses. A step whose loss is not finite changes nothing.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::Error::OutOfMemory) or [`TooLarge`](crate::Error::TooLarge) if the episodes are too large,
    /// [`Lost`](crate::Error::Lost) if the GPU stopped working.
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
        let mut losses = Vec::with_capacity(steps.len());
        for step in encoded {
            losses.extend(self.run_encoded(vec![step])?);
        }
        Ok(losses)
    }

    /// # Panics
    /// If an episode is not consistent.
    fn encode(&self, steps: &[StepInput]) -> Vec<EncodedStep> {
        let sets = self.persistent.stored_sets();
        let encoded: Vec<EncodedStep> =
            steps.iter().map(|step| EncodedStep::new(step, &sets, self.tile_states)).collect();
        self.check_dims(&encoded);
        encoded
    }

    /// # Panics
    /// If the network has an item view and an episode has rows of another length.
    fn check_dims(&self, steps: &[EncodedStep]) {
        let Some(view) = &self.plan.config.item_view else { return };
        assert!(
            steps.iter().flat_map(EncodedStep::dims).all(|dim| dim == view.dim),
            "rows of {} numbers",
            view.dim
        );
    }

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

    /// Writes steps into the slots after the last finished step. True if buffers were allocated anew.
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

    /// Launches the graph of one step on what the step's slot contains, and does not wait. For measurements: after
    /// [`run`](Self::run) with [`STEP_SLOTS`] steps, all slots are filled.
    pub fn launch_step(&mut self) -> Result<()> {
        self.launch_graph()?;
        self.done = self.done.wrapping_add(1);
        Ok(())
    }

    fn launch_graph(&mut self) -> Result<()> {
        if self.graph.is_none() {
            self.graph = Some(self.device.clone().capture(|| self.record_step())?);
        }
        self.graph.as_ref().expect("just set").launch()
    }

    /// The times of the kernels of a step. The run cannot be continued afterwards.
    pub fn kernel_times(self) -> Result<KernelTimes> {
        self.device.kernel_times(|| self.record_step())
    }

    /// Waits for the device.
    pub fn synchronise(&self) -> Result<()> {
        self.device.synchronise()
    }

    /// Allocates larger buffers if a step of `sizes` needs them. True if it did.
    fn reserve(&mut self, sizes: StepSizes) -> Result<bool> {
        let held = self.memory.as_ref().map(|memory| memory.sizes);
        if held.is_some_and(|held| sizes.fits(held)) {
            return Ok(false);
        }
        (self.memory, self.graph) = (None, None);
        let sizes = held.map_or(sizes, |held| held.max(sizes.with_room()));
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

    fn launch(&self, kernel: &'static str, grid: Grid, arguments: &[&dyn Argument]) -> Result<()> {
        self.device.launch(Queue::Main, kernel, grid, arguments)
    }

    /// One thread per parameter.
    fn parameter_grid(&self) -> Grid {
        Grid::new(self.persistent.parameters.len().div_ceil(PARAMETER_THREADS as usize), PARAMETER_THREADS)
    }

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

    /// Starts all kernels of one step.
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
        // The kernels on tiles occupy whole multiprocessors, so these two start after them.
        self.device.fork()?;
        self.record_edges_backward(memory)?;
        self.record_products(memory, Queue::Main)?;
        self.device.join()?;
        if self.options.clip > 0.0 {
            self.launch("relabel_collect", self.parameter_grid(), &[&relabel, &optimiser])?;
        }
        self.launch("relabel_update", self.parameter_grid(), &[&relabel, &optimiser])
    }

    fn step_memory(&self) -> &StepMemory {
        self.memory.as_ref().expect("reserved before a step is recorded")
    }

    /// One block per episode, with `shared` floats of shared memory.
    fn episode_grid(&self, memory: &StepMemory, shared: usize) -> Grid {
        Grid::new(memory.sizes.episodes, THREADS).shared(4 * shared)
    }

    fn tile_grid(memory: &StepMemory) -> Grid {
        Grid::new(memory.sizes.tiles, THREADS).shared(4 * memory.relabel.shared.len as usize)
    }

    /// Starts a kernel of one layer.
    fn tile_kernel(&self, memory: &StepMemory, kernel: &'static str, layer: usize) -> Result<()> {
        self.launch(kernel, Self::tile_grid(memory), &[&Value(memory.relabel), &Value(layer as i32)])
    }

    /// Starts the inner products of rows. The weights are packed in parallel, because these kernels do not read them.
    fn record_gram(&self, memory: &StepMemory) -> Result<()> {
        let relabel = Value(memory.relabel);
        self.device.fork()?;
        let pack = Grid::new(self.parameter_grid().blocks.0 as usize + 1, PARAMETER_THREADS);
        let optimiser = Value(self.optimiser(memory));
        self.device.launch(Queue::Side, "relabel_pack", pack, &[&relabel, &optimiser])?;
        let dims = if self.device.has_wgmma() { HOPPER_GRAM_DIMS } else { GRAM_DIMS };
        let StepSizes { episodes, gram_tiles, .. } = memory.sizes;
        let gram = Grid::new(gram_tiles, THREADS).rows(episodes).shared(gram_shared_len(dims));
        self.launch("relabel_gram", gram, &[&relabel, &Value(dims as i32)])?;
        self.device.join()
    }

    /// Starts the layers, from the features of pairs and states to the logits.
    fn record_layers(&self, memory: &StepMemory) -> Result<()> {
        self.launch("relabel_input", Self::tile_grid(memory), &[&Value(memory.relabel)])?;
        for layer in 0..self.plan.config.layers {
            self.tile_kernel(memory, "relabel_attend", layer)?;
            self.tile_kernel(memory, "relabel_mix", layer)?;
        }
        Ok(())
    }

    fn record_output_backward(&self, memory: &StepMemory) -> Result<()> {
        self.launch("relabel_output_backward", Self::tile_grid(memory), &[&Value(memory.relabel)])
    }

    /// Starts the gradient of the edge network's parameters, on the side queue.
    fn record_edges_backward(&self, memory: &StepMemory) -> Result<()> {
        let grid = Grid::new(memory.sizes.tiles, EDGE_THREADS).shared(self.plan.edges_shared_len());
        self.device.launch(Queue::Side, "relabel_edges_backward", grid, &[&Value(memory.relabel)])
    }

    /// Starts the products that are gradients of weights.
    fn record_products(&self, memory: &StepMemory, queue: Queue) -> Result<()> {
        let grid = Grid::new(memory.products.len(), PARAMETER_THREADS).shared(PRODUCTS_SHARED_LEN);
        self.device.launch(queue, "relabel_products", grid, &[&Value(memory.relabel), &memory.products])
    }
}

impl Persistent {
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

    fn stored_sets(&self) -> Vec<StoredSet> {
        let set = |(rows, dim): &(Buffer<f32>, usize)| StoredSet {
            address: rows.address(),
            rows: rows.len() / dim,
            dim: *dim,
        };
        self.features.iter().map(set).collect()
    }

    fn joint_addresses(&self) -> Option<JointAddresses> {
        let d_features = self.feature_gradient.as_ref()?.address();
        let (features, dim) = &self.features[0];
        Some(JointAddresses { features: features.address(), d_features, dim: *dim })
    }

    /// Copies rows that are given directly to the device.
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
