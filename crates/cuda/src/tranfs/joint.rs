//! TraNFS in training together with a backbone, which computes the features of each step and receives their gradient
//! (`kernels/tranfs_joint.cu`): [`TranfsTraining::joint`] and the implementation of [`HeadTraining`], which
//! [`joint`](crate::joint) uses.

use bytemuck::{Pod, Zeroable};
use trueshot_nn::tranfs::{Config, Tranfs};

use super::input::{Limits, StepInput};
use super::memory::{self, CHUNK, SHARED_WORDS};
use super::{LOSS_THREADS, TranfsOptions, TranfsTraining};
use crate::conv4::STEP_SLOTS;
use crate::driver::{Buffer, Device, Grid, Queue, Value};
use crate::error::Result;
use crate::joint::{BackboneUpdate, HeadTraining, HeadWeights};

/// Items that a thread block of `tranfs_item_gradients` handles: the first number if its shared memory suffices, else
/// the second.
const ITEM_ROWS: [usize; 2] = [16, 8];

/// What the kernels need in addition (`struct TranfsJoint` in `kernels/tranfs.cu`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct JointArgument {
    /// Address of [`JointBuffers::d_features`].
    d_features: u64,
    /// Address of [`JointBuffers::mean_factors`].
    mean_factors: u64,
    /// Position of the transposed down-projection in the packed weights.
    packed_down_t: i32,
    /// Items of a thread block of `tranfs_item_gradients`, see [`ITEM_ROWS`].
    item_rows: i32,
}

/// The buffers that joint training needs in addition.
pub(super) struct JointBuffers {
    /// The gradient of the features, `[rows][dim]`.
    pub d_features: Buffer<f32>,
    /// Two factors per class from which the kernels compute the gradient that each correctly labelled item gets from
    /// the clean loss (the distance of a prototype to the mean of the correctly labelled items of its class),
    /// `[class][2]`.
    #[allow(dead_code, reason = "kernels use it by address")]
    mean_factors: Buffer<f32>,
    argument: JointArgument,
    /// Bytes of shared memory of `tranfs_item_gradients`.
    item_memory: usize,
}

impl JointBuffers {
    /// Buffers for features of `feature_len` numbers. `down_t`: the position of the packed transposed down-projection.
    pub fn new(
        device: &Device,
        config: &Config,
        limits: Limits,
        feature_len: usize,
        down_t: i32,
    ) -> Result<Self> {
        let d_features = device.zeros(feature_len)?;
        let mean_factors = device.zeros(limits.episodes * config.classes * 2)?;
        // Shared memory: per item 128 columns of its gradient, padded by 4, and the gradient of its projection, which
        // has the width of a token.
        let words = |rows: usize| rows * (CHUNK + 4 + memory::pitch_of(config.width));
        let [most_rows, least_rows] = ITEM_ROWS;
        let item_rows = if words(most_rows) <= SHARED_WORDS { most_rows } else { least_rows };
        let argument = JointArgument {
            d_features: Buffer::address(&d_features),
            mean_factors: Buffer::address(&mean_factors),
            packed_down_t: down_t,
            item_rows: item_rows as i32,
        };
        Ok(JointBuffers { d_features, mean_factors, argument, item_memory: 4 * words(item_rows) })
    }
}

impl TranfsTraining {
    /// A training run together with a backbone, which starts from `parameters`, in the layout of `network`. A step has
    /// at most `rows` rows; its episodes name rows of [`HeadTraining::features`], each row once.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::Error::OutOfMemory) if the activations do not fit.
    ///
    /// # Panics
    /// If `parameters` have the wrong length.
    pub fn joint(
        device: &Device,
        network: &Tranfs,
        options: TranfsOptions,
        parameters: &[f32],
        rows: usize,
    ) -> Result<Self> {
        let features = device.zeros(rows * network.config().dim)?;
        Self::with_features(device, network, options, parameters, features, true)
    }

    /// Writes the first rows of [`HeadTraining::features`] from the host, in place of a backbone. For measurements and
    /// tests.
    ///
    /// # Panics
    /// If there are more numbers than the buffer has.
    pub fn write_features(&mut self, rows: &[f32]) -> Result<()> {
        self.features.write(0, rows)
    }

    /// # Panics
    /// If the run was not made by [`TranfsTraining::joint`].
    fn joint_buffers(&self) -> &JointBuffers {
        self.joint.as_ref().expect("only a run that TranfsTraining::joint made is a HeadTraining")
    }

    /// Starts the kernels of the losses and of the queries' gradients, the latter beside the backward pass.
    pub(super) fn record_joint_losses(&self, grid: Grid, joint: JointArgument) -> Result<()> {
        let (argument, joint) = (Value(self.argument), Value(joint));
        let fits = self.shared.losses.fits;
        let kernel = if fits { "tranfs_losses_joint" } else { "tranfs_losses_joint_large" };
        self.launch(kernel, grid, &[&argument, &joint])?;
        self.device.fork()?;
        let chunks = self.argument.sizes.chunks as usize;
        let grid = Grid::new(chunks, LOSS_THREADS).rows(self.options.limits.episodes);
        self.device.launch(Queue::Side, "tranfs_query_gradients", grid, &[&argument, &joint])
    }

    /// Starts the kernel of the support items' gradients on the side queue.
    pub(super) fn record_item_gradients(&self, joint: JointArgument) -> Result<()> {
        let limits = self.options.limits;
        let tiles = limits.support.div_ceil(joint.item_rows as usize);
        let grid = Grid::new(self.argument.sizes.chunks as usize * tiles, 256)
            .rows(limits.episodes)
            .shared(self.joint_buffers().item_memory);
        let arguments = (Value(self.argument), Value(joint));
        self.device.launch(Queue::Side, "tranfs_item_gradients", grid, &[&arguments.0, &arguments.1])
    }
}

/// # Panics
/// The methods that need the gradient of the features panic if the run was not made by [`TranfsTraining::joint`].
impl HeadTraining for TranfsTraining {
    type StepInput = StepInput;
    /// Queries, clean, mislabelled.
    type StepLosses = [f32; 3];

    fn parameters(&self) -> &Buffer<f32> {
        &self.parameters
    }

    fn features(&self) -> &Buffer<f32> {
        &self.features
    }

    fn feature_gradient(&self) -> &Buffer<f32> {
        &self.joint_buffers().d_features
    }

    /// See [`HeadTraining::prepare`]. Steps that were prepared before but are not finished are replaced.
    fn prepare(&mut self, steps: &[StepInput]) -> Result<bool> {
        assert!(steps.len() <= STEP_SLOTS, "{} steps at a time", steps.len());
        let rows = self.features.len() / self.config.dim;
        steps.iter().for_each(|step| check_rows(step, rows));
        if !steps.is_empty() {
            self.write_inputs(steps)?;
            self.begin()?;
        }
        Ok(false)
    }

    fn record_losses(&self) -> Result<()> {
        self.record_losses_and_gradients(Some(self.joint_buffers().argument))
    }

    fn squares(&self) -> &Buffer<f64> {
        &self.squares
    }

    fn record_update(&self, backbone: &BackboneUpdate) -> Result<()> {
        self.record_parameter_update(Some(backbone.into()))
    }

    fn finished_losses(&mut self) -> Result<Vec<[f32; 3]>> {
        let state = self.state.read()?[0];
        let first = std::mem::replace(&mut self.done, state.step);
        // A step whose loss is not finite may be unfinished, because then the backbone's gradients are not finite
        // either.
        let is_unfinished = state.failed != 0 && state.evaluated == state.step;
        self.read_losses(first, state.step + u32::from(is_unfinished))
    }

    fn weights(&self) -> Result<HeadWeights> {
        let (first_moments, second_moments) = self.moments()?;
        let updates = self.progress();
        Ok(HeadWeights { parameters: self.parameters.read()?, first_moments, second_moments, updates })
    }

    fn load_weights(&mut self, weights: &HeadWeights) -> Result<()> {
        let HeadWeights { parameters, first_moments, second_moments, updates } = weights;
        self.load(parameters, first_moments, second_moments, *updates)
    }
}

/// Checks that a step has no extra rows and uses no row twice: every row has one gradient.
fn check_rows(step: &StepInput, rows: usize) {
    assert!(step.extra_rows.is_empty(), "extra rows have no gradient: the backbone computes all rows");
    let mut is_used = vec![false; rows];
    for episode in step.parts.iter().flat_map(|part| &part.episodes) {
        let support = episode.support.iter().map(|item| item.row);
        for row in support.chain(episode.queries.iter().map(|query| query.row)) {
            assert!((row as usize) < rows, "rows must be below {rows}");
            assert!(!std::mem::replace(&mut is_used[row as usize], true), "row {row} is used twice");
        }
    }
}
