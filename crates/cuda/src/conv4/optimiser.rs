//! AdamW on the parameters of a network, with the loss scale ([`Conv4Optimiser`], `kernels/optimiser.cu`).
//!
//! The loss scale is a factor of the loss and all gradients, so that small gradients do not underflow in 16-bit floats.
//! If a gradient overflows, the kernels of the optimiser update nothing, halve the scale, and do not count the step, so
//! that the next launch repeats it.

use bytemuck::{Pod, Zeroable};
use trueshot_nn::adamw::AdamWConfig;

use super::network::{Conv4Network, Pass};
use super::{Conv4State, SMALLEST_SCALE, STEP_SLOTS};
use crate::driver::{Address, Argument, Buffer, Device, Grid, Queue, Value};
use crate::error::Result;

/// What a run keeps on the device between steps (`kernels/common.cuh`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct TrainingState {
    /// Finished steps.
    pub step: u32,
    /// Updates of the optimiser, including those of earlier runs.
    pub updates: u32,
    /// The loss scale.
    pub scale: f32,
    /// Steps since the loss scale changed.
    pub good_steps: u32,
    /// Not 0 if the current step must not update anything.
    pub overflow: u32,
}

/// The hyperparameters as the kernels take them (`AdamW` in `kernels/optimiser.cu`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct AdamWOptions {
    beta1: f32,
    beta2: f32,
    epsilon: f32,
    weight_decay: f32,
    /// This times a parameter is added to its gradient.
    l2: f32,
    /// The largest norm of the gradient; 0: no clipping.
    clip: f32,
}

impl AdamWOptions {
    /// The options from those of the CPU, with the largest norm of the gradient.
    pub fn new(adamw: &AdamWConfig, clip: f64) -> Self {
        AdamWOptions {
            beta1: adamw.beta1 as f32,
            beta2: adamw.beta2 as f32,
            epsilon: adamw.epsilon as f32,
            weight_decay: adamw.weight_decay as f32,
            l2: adamw.l2 as f32,
            clip: clip as f32,
        }
    }
}

/// Sums of squares of gradients of other parameters, such as those of a head, that are clipped together with the
/// gradients of the network: by the norm over all of them.
pub(crate) struct OtherSquares {
    /// The first of the sums.
    pub sums: Address<f64>,
    /// The number of sums.
    pub count: usize,
}

/// The state of the optimiser on the device, and the launches of its kernels.
pub(crate) struct Conv4Optimiser {
    device: Device,
    pub options: AdamWOptions,
    first_moments: Buffer<f32>,
    second_moments: Buffer<f32>,
    /// The learning rate of the step in each slot (step n uses slot `n % STEP_SLOTS`).
    pub rates: Buffer<f32>,
    /// The mean loss of the step in each slot.
    pub mean_losses: Buffer<f32>,
    /// One element.
    pub state: Buffer<TrainingState>,
}

impl Conv4Optimiser {
    /// The state of an optimiser of `len` parameters.
    pub fn new(device: &Device, len: usize, adamw: &AdamWConfig, clip: f64) -> Result<Self> {
        Ok(Conv4Optimiser {
            device: device.clone(),
            options: AdamWOptions::new(adamw, clip),
            first_moments: device.zeros(len)?,
            second_moments: device.zeros(len)?,
            rates: device.zeros(STEP_SLOTS)?,
            mean_losses: device.zeros(STEP_SLOTS)?,
            state: device.zeros(1)?,
        })
    }

    /// Where kernels mark that the current step must not update anything.
    pub fn overflow(&self) -> Address<u32> {
        self.state.at(0).offset(std::mem::offset_of!(TrainingState, overflow))
    }

    /// Everything that later steps depend on; `parameters` are those that this optimiser updates.
    pub fn state(&self, parameters: &Buffer<f32>) -> Result<Conv4State> {
        let TrainingState { updates, scale, good_steps, .. } = self.state.read()?[0];
        Ok(Conv4State {
            parameters: parameters.read()?,
            first_moments: self.first_moments.read()?,
            second_moments: self.second_moments.read()?,
            updates: u64::from(updates),
            scale,
            good_steps,
        })
    }

    /// Replaces the state of the optimiser; `step` steps are finished.
    ///
    /// # Panics
    /// If a length is not that of the parameters.
    pub fn load(&mut self, state: &Conv4State, step: u32) -> Result<()> {
        self.first_moments.write(0, &state.first_moments)?;
        self.second_moments.write(0, &state.second_moments)?;
        let Conv4State { updates, scale, good_steps, .. } = *state;
        self.state
            .write(0, &[TrainingState { step, updates: updates as u32, scale, good_steps, overflow: 0 }])
    }

    /// Starts the update of the parameters and of the running statistics, which does nothing after an overflow.
    /// `others` are gradients that are clipped together with those of the network.
    pub fn record_update(
        &self,
        network: &Conv4Network,
        pass: &Pass<'_>,
        others: Option<&OtherSquares>,
    ) -> Result<()> {
        let none = OtherSquares { sums: network.squares.at(0), count: 0 };
        let others = others.unwrap_or(&none);
        let arguments: [&dyn Argument; 16] = [
            &network.parameters,
            &self.first_moments,
            &self.second_moments,
            &network.gradients,
            &network.squares,
            &Value(network.squares.len() as i32),
            &others.sums,
            &Value(others.count as i32),
            &Value(pass.norm_sums()),
            &network.filters,
            &network.transposed,
            &self.rates,
            &self.state,
            &Value(self.options),
            &Value(network.shape().channels as i32),
            &Value(network.parameters.len() as i32),
        ];
        let grid = Grid::new(network.parameters.len().div_ceil(256), 256);
        self.device.launch(Queue::Main, "update_parameters", grid, &arguments)
    }

    /// Starts the update of the parameters that the tasks of MAML share. `gradients` are summed over the tasks,
    /// `squares` are sums of squares of these gradients, and `shape` is the `MamlShape` of the kernels.
    pub fn record_shared_update(
        &self,
        parameters: &Buffer<f32>,
        gradients: &Buffer<f32>,
        squares: &Buffer<f64>,
        shape: &dyn Argument,
    ) -> Result<()> {
        let arguments: [&dyn Argument; 11] = [
            parameters,
            &self.first_moments,
            &self.second_moments,
            gradients,
            squares,
            &Value(squares.len() as i32),
            &self.rates,
            &self.state,
            &Value(self.options),
            shape,
            &Value(parameters.len() as i32),
        ];
        let grid = Grid::new(parameters.len().div_ceil(256), 256);
        self.device.launch(Queue::Main, "update_shared", grid, &arguments)
    }

    /// Starts the kernel that ends the step: it computes the mean of the first `count` of `losses` and updates the loss
    /// scale, the number of the step, and the packed filters of block 1.
    pub fn record_end(&self, network: &Conv4Network, losses: &Buffer<f32>, count: usize) -> Result<()> {
        let arguments: [&dyn Argument; 8] = [
            losses,
            &Value(count as i32),
            &self.mean_losses,
            &network.parameters,
            &network.first_filters,
            &network.first_weights,
            &self.state,
            &Value(network.shape().channels as i32),
        ];
        self.device.launch(Queue::Main, "finish_step", Grid::new(1, 256), &arguments)
    }

    /// Calls `launch`, which starts the graph of a step, with the numbers of `count` steps after the first `done`.
    /// Returns the number of finished steps, which is smaller than `done + count` if a step overflows even with the
    /// smallest loss scale.
    ///
    /// A launch after an overflow repeats the step that overflowed, so fewer steps are finished than were launched. The
    /// missing ones are launched again.
    pub fn finish_steps(&self, done: u32, count: usize, launch: impl Fn(u32) -> Result<()>) -> Result<u32> {
        let (mut done, target) = (done, done + count as u32);
        while done < target {
            for step in done..target {
                launch(step)?;
            }
            let state = self.state.read()?[0];
            done = state.step;
            if done < target && state.scale < SMALLEST_SCALE {
                break;
            }
        }
        Ok(done)
    }

    /// The mean losses of the steps from `first` to before `end`. If `end` is below `target`, the step after them
    /// failed, and a NaN for it is added.
    pub fn losses(&self, first: u32, end: u32, target: u32) -> Result<Vec<f32>> {
        let losses = self.mean_losses.read()?;
        let finished = (first..end).map(|step| losses[step as usize % STEP_SLOTS]);
        Ok(finished.chain((end < target).then_some(f32::NAN)).collect())
    }
}
