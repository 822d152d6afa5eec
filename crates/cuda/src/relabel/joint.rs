//! Relabel in training together with a backbone, which computes the features of each step and receives their gradient:
//! [`RelabelTraining::joint`] and the implementation of [`HeadTraining`], which [`joint`](crate::joint) uses.
//!
//! The layers run as in training on fixed features. The kernels for the gradient of the features run on the side queue,
//! in parallel with the backward pass of the layers, as far as their inputs allow it (`kernels/relabel_joint.cu`). Two
//! of them need all gradients of the layers (`kernels/relabel_feature_gradient.cu`), so they come last, in parallel
//! with the gradients of the weights.

use trueshot_nn::relabel::Relabel;

use super::{EpisodeRows, NetworkPlan, OptimiserOptions, RelabelTraining, StepInput, StepLosses, StepMemory};
use crate::conv4::STEP_SLOTS;
use crate::driver::{Argument, Buffer, Device, Grid, Queue, Value};
use crate::error::Result;
use crate::joint::{BackboneArgument, BackboneUpdate, HeadTraining, HeadWeights};

/// Threads per block of `relabel_view_scales`.
const VIEW_THREADS: u32 = 256;
/// Threads per block of `relabel_edge_features_backward`.
const EDGE_INPUT_THREADS: u32 = 512;
/// Threads per block of `relabel_rows_backward`.
const ROWS_THREADS: u32 = 256;
/// Columns of features that a block of `relabel_rows_backward` computes.
const ROWS_COLUMNS: usize = 64;

impl RelabelTraining {
    /// A training run of `network` together with a backbone; the head starts from `parameters`. A step has up to `rows`
    /// rows of `dim` numbers, which the backbone writes to [`HeadTraining::features`]. The rows of all episodes are
    /// [`EpisodeRows::InOrder`].
    ///
    /// # Errors
    /// As [`RelabelTraining::new`].
    ///
    /// # Panics
    /// If `parameters` does not have the length of the network's layout, or it takes rows of another length.
    pub fn joint(
        device: &Device,
        network: &Relabel,
        options: OptimiserOptions,
        parameters: &[f32],
        rows: usize,
        dim: usize,
    ) -> Result<Self> {
        let expected = network.config().dim().unwrap_or(dim);
        assert_eq!(expected, dim, "the network takes rows of {expected} numbers");
        let features = vec![(device.zeros(rows * dim)?, dim)];
        let mut training = Self::with_features(device, network, options, parameters, features)?;
        training.persistent.feature_gradient = Some(device.zeros(rows * dim)?);
        Ok(training)
    }

    /// Sets the features of the next steps, `[row][dim]`, where no backbone computes them.
    ///
    /// # Panics
    /// If there are more rows than the training run was made for.
    pub fn set_features(&mut self, values: &[f32]) -> Result<()> {
        self.persistent.features[0].0.write(0, values)
    }

    /// Starts the kernels that need only the losses, on the side queue: scales of the item view (a projection of the
    /// features themselves), and gradients of the inner products of items with queries.
    fn record_queries_backward(&self, memory: &StepMemory) -> Result<()> {
        let (relabel, joint) = (Value(memory.relabel), Value(memory.joint.expect("made by `joint`")));
        let side = |kernel, grid| self.device.launch(Queue::Side, kernel, grid, &[&relabel, &joint]);
        if self.plan.config.item_view.is_some() {
            // One warp per item.
            let warps = VIEW_THREADS as usize / 32;
            let blocks = memory.sizes.largest_items.div_ceil(warps);
            let grid = Grid::new(blocks, VIEW_THREADS).rows(memory.sizes.episodes);
            side("relabel_view_scales", grid)?;
        }
        side("relabel_queries_backward", self.episode_grid(memory, 0))
    }

    /// Starts the backward pass of the layers and, in parallel with its last kernel, that of the edge network.
    fn record_layers_backward(&self, memory: &StepMemory) -> Result<()> {
        self.record_output_backward(memory)?;
        for layer in (0..self.plan.config.layers).rev() {
            self.tile_kernel(memory, "relabel_attend_backward_rows", layer)?;
            if layer == 0 {
                // All gradients of attention logits are computed.
                self.device.fork()?;
                let shared = 4 * NetworkPlan::edges_len(&self.plan.config);
                let grid = Grid::new(memory.sizes.tiles, EDGE_INPUT_THREADS).shared(shared);
                let joint = Value(memory.joint.expect("made by `joint`"));
                let arguments: [&dyn Argument; 2] = [&Value(memory.relabel), &joint];
                self.device.launch(Queue::Side, "relabel_edge_features_backward", grid, &arguments)?;
                self.record_edges_backward(memory)?;
            }
            self.tile_kernel(memory, "relabel_attend_backward_columns", layer)?;
        }
        self.device.join()
    }
}

/// # Panics
/// The methods that need the gradient of the features panic if the run was not made by [`RelabelTraining::joint`].
impl HeadTraining for RelabelTraining {
    type StepInput = StepInput;
    type StepLosses = StepLosses;

    fn parameters(&self) -> &Buffer<f32> {
        &self.persistent.parameters
    }

    fn features(&self) -> &Buffer<f32> {
        &self.persistent.features[0].0
    }

    fn feature_gradient(&self) -> &Buffer<f32> {
        self.persistent.feature_gradient.as_ref().expect("a training run made by `joint`")
    }

    /// See [`HeadTraining::prepare`]. Steps that were prepared before but are not finished are replaced.
    fn prepare(&mut self, steps: &[StepInput]) -> Result<bool> {
        assert!(steps.len() <= STEP_SLOTS, "{} steps at a time", steps.len());
        let mut episodes = steps.iter().flat_map(|step| &step.parts).flat_map(|part| &part.episodes);
        assert!(
            episodes.all(|episode| matches!(episode.rows, EpisodeRows::InOrder)),
            "rows are those of the step, in their order"
        );
        let encoded = self.encode(steps);
        self.write_slots(&encoded)
    }

    fn record_losses(&self) -> Result<()> {
        let memory = self.step_memory();
        let joint = memory.joint.expect("a training run made by `joint`");
        let (relabel, joint_value) = (Value(memory.relabel), Value(joint));
        let optimiser = Value(self.optimiser(memory));
        let on_episodes = |kernel, shared: usize| {
            self.launch(kernel, self.episode_grid(memory, shared), &[&relabel, &joint_value])
        };
        self.record_gram(memory)?;
        on_episodes("relabel_joint_features", memory.features_shared_len() as usize)?;
        self.record_layers(memory)?;
        on_episodes("relabel_joint_losses", memory.relabel.scratch_len as usize)?;
        self.device.fork()?;
        self.record_queries_backward(memory)?;
        self.record_layers_backward(memory)?;
        self.device.fork()?;
        self.record_products(memory, Queue::Side)?;
        on_episodes("relabel_gram_backward", joint.pairs_shared_len(&memory.sizes))?;
        let chunks = self.persistent.features[0].1.div_ceil(ROWS_COLUMNS);
        let grid = Grid::new(chunks, ROWS_THREADS).rows(memory.sizes.episodes);
        self.launch("relabel_rows_backward", grid, &[&relabel, &joint_value])?;
        self.device.join()?;
        self.launch("relabel_collect", self.parameter_grid(), &[&relabel, &optimiser])
    }

    fn squares(&self) -> &Buffer<f64> {
        &self.persistent.squares
    }

    fn record_update(&self, backbone: &BackboneUpdate) -> Result<()> {
        let memory = self.step_memory();
        let backbone = Value(BackboneArgument::from(backbone));
        let (relabel, optimiser) = (Value(memory.relabel), Value(self.optimiser(memory)));
        self.launch("relabel_joint_update", self.parameter_grid(), &[&relabel, &optimiser, &backbone])
    }

    fn finished_losses(&mut self) -> Result<Vec<StepLosses>> {
        let mut losses = self.read_losses()?;
        // A step whose loss is not finite may be unfinished, because then the backbone's gradients are not finite
        // either.
        let slot = 2 * (self.done as usize % STEP_SLOTS);
        let mut of_next = [0.0; 2];
        self.persistent.results.read_into(slot, &mut of_next)?;
        let [items, queries] = of_next;
        if !(items + queries).is_finite() {
            losses.push(StepLosses { items, queries });
            // So that it is returned once.
            self.persistent.results.write(slot, &[0.0; 2])?;
        }
        Ok(losses)
    }

    fn weights(&self) -> Result<HeadWeights> {
        let (first_moments, second_moments) = self.moments()?;
        let (parameters, updates) = (self.persistent.parameters.read()?, self.progress()?);
        Ok(HeadWeights { parameters, first_moments, second_moments, updates })
    }

    fn load_weights(&mut self, weights: &HeadWeights) -> Result<()> {
        let HeadWeights { parameters, first_moments, second_moments, updates } = weights;
        self.load(parameters, first_moments, second_moments, *updates)
    }
}
