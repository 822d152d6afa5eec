//! Conv4 (the backbone of the paper, [`trueshot_nn::conv4`]) on the GPU: training on episodes with the loss of nearest
//! prototypes. In an episode, support items define one prototype per class, and the loss is the cross-entropy of the
//! queries over minus their squared distances to the prototypes.
//!
//! Start with [`Conv4Training`]. The host passes the inputs of up to [`STEP_SLOTS`] steps at a time; the device runs
//! one CUDA graph (a recorded sequence of kernel launches) per step and keeps everything else: parameters, moments of
//! the optimiser, activations, and the images of the data set.
//!
//! Activations and filters are 16-bit floats, sums and parameters are f32. The loss is multiplied by a scale so that
//! small gradients do not underflow. If a gradient overflows, the device updates nothing, halves the scale and repeats
//! the step; after [`GOOD_STEPS_BEFORE_GROWTH`] steps without an overflow it doubles the scale.
//!
//! The modules: `network` has the memory and kernels of the network, `prototypes` the loss, `images` the input,
//! `optimiser` AdamW and the loss scale, `steps` the ring buffers of inputs. MAML, NegMargin and joint training use
//! them, too. `embedding` runs a trained network.

mod embedding;
mod images;
pub(crate) mod network;
pub(crate) mod optimiser;
mod prototypes;
mod steps;

use half::f16;
use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::conv4::{Shape, WIDTH};

use crate::driver::{Device, KernelTimes};
use crate::error::Result;
use prototypes::PrototypeLoss;

pub use embedding::Conv4Embedding;
pub use images::{DeviceImages, ImageRequest, StepImages};
pub use prototypes::Prototypes;

pub(crate) use images::{ImageFeed, TaskImages};
#[cfg(all(test, any(feature = "emulator", feature = "gpu-tests")))]
pub(crate) use network::Chunk;
pub(crate) use network::Conv4Network;
pub(crate) use optimiser::{Conv4Optimiser, OtherSquares, TrainingState};
pub(crate) use prototypes::EpisodeShape;
pub(crate) use steps::{StepRunner, adjacent_slots};

/// The number of steps that the device holds inputs and results of (`kernels/common.cuh`).
pub const STEP_SLOTS: usize = 64;
/// The number of steps without an overflow after which the loss scale is doubled (`kernels/optimiser.cu`).
pub const GOOD_STEPS_BEFORE_GROWTH: u32 = 1000;
/// The loss scale of a new run: 2^14. A scale that is too large is halved in the first steps.
const INITIAL_SCALE: f32 = 16_384.0;
/// The loss scale at which a step that still overflows is given up: its loss or gradient is not finite.
pub(crate) const SMALLEST_SCALE: f32 = 1.0 / 1024.0;

/// Weights of a 3x3 convolution from 64 to 64 channels.
pub(crate) const FILTER_LEN: usize = 9 * WIDTH * WIDTH;
/// Values of a patch, the part of the input around a pixel that block 1 reads (`kernels/first_block.cu`): 3 rows and 4
/// columns of pixels with 4 numbers each. The fourth column has zero weight; it makes a row 16 numbers long, which is
/// what a matrix instruction takes.
pub(crate) const PATCH_LEN: usize = 48;

/// The sizes and options of a training run.
#[derive(Debug, Clone)]
pub struct Conv4Options {
    /// Size and channels of the images.
    pub shape: Shape,
    /// Classes per episode.
    pub classes: usize,
    /// Support items per episode.
    pub support: usize,
    /// Queries per episode.
    pub queries: usize,
    /// How prototypes are computed.
    pub prototypes: Prototypes,
    /// Hyperparameters of the optimiser.
    pub optimiser: AdamWConfig,
    /// The largest norm of the gradient; a longer gradient is scaled down to it. 0: no clipping.
    pub clip: f64,
}

impl Conv4Options {
    /// Images per episode, which is one step.
    pub fn images(&self) -> usize {
        self.support + self.queries
    }
}

/// The input of one step.
#[derive(Debug, Clone)]
pub struct StepInput {
    /// The learning rate.
    pub rate: f32,
    /// The class of each image. In an episode: the given class of each support item, then the class of each query.
    pub labels: Vec<u32>,
    /// The images.
    pub images: StepImages,
}

/// Everything that later steps of a run depend on.
#[derive(Debug, Clone, PartialEq)]
pub struct Conv4State {
    /// The parameters, running statistics included.
    pub parameters: Vec<f32>,
    /// Running means of the gradients.
    pub first_moments: Vec<f32>,
    /// Running means of the squared gradients.
    pub second_moments: Vec<f32>,
    /// The number of updates so far.
    pub updates: u64,
    /// The loss scale.
    pub scale: f32,
    /// The number of steps since the loss scale changed.
    pub good_steps: u32,
}

impl Default for Conv4State {
    /// No parameters, and the loss scale of a new run.
    fn default() -> Self {
        Conv4State {
            parameters: Vec::new(),
            first_moments: Vec::new(),
            second_moments: Vec::new(),
            updates: 0,
            scale: INITIAL_SCALE,
            good_steps: 0,
        }
    }
}

impl Conv4State {
    /// The state of a run that starts from `parameters`.
    pub fn new(parameters: &[f32]) -> Self {
        let zeros = vec![0.0; parameters.len()];
        Conv4State {
            parameters: parameters.to_vec(),
            first_moments: zeros.clone(),
            second_moments: zeros,
            ..Conv4State::default()
        }
    }
}

/// A Conv4 in training on a GPU.
pub struct Conv4Training {
    device: Device,
    options: Conv4Options,
    network: Conv4Network,
    loss: PrototypeLoss,
    runner: StepRunner,
}

impl Conv4Training {
    /// A training run that starts from `parameters`, in the layout of [`trueshot_nn::conv4::layout`]. Steps take their
    /// images from `images`, or bring prepared ones.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::Error::OutOfMemory) if activations and images do not fit.
    ///
    /// # Panics
    /// If the shape is not possible or `parameters` has another length.
    pub fn new(
        device: &Device,
        options: Conv4Options,
        parameters: &[f32],
        images: Option<DeviceImages>,
    ) -> Result<Self> {
        let network = Conv4Network::new(device, options.shape, options.images())?;
        let (len, optimiser) = (network.parameters.len(), (&options.optimiser, options.clip));
        let mut training = Conv4Training {
            device: device.clone(),
            loss: PrototypeLoss::new(device, &options)?,
            runner: StepRunner::new(device, options.shape, len, options.images(), optimiser, images)?,
            network,
            options,
        };
        training.load(&Conv4State::new(parameters))?;
        Ok(training)
    }

    /// The parameters, running statistics included.
    pub fn parameters(&self) -> Result<Vec<f32>> {
        self.network.parameters.read()
    }

    /// The gradient of the last step before clipping, in the order of the parameters.
    pub fn gradient(&self) -> Result<Vec<f32>> {
        self.network.gradients.read()
    }

    /// Everything that later steps depend on.
    pub fn state(&self) -> Result<Conv4State> {
        self.runner.optimiser.state(&self.network.parameters)
    }

    /// The features of the last step's images, `[image][64][side][side]`.
    pub fn features(&self) -> Result<Vec<f32>> {
        let images = self.options.images();
        let out = self.device.zeros::<f32>(images * self.options.shape.features())?;
        self.network.pass(images).write_features(&out)?;
        out.read()
    }

    /// Prepares the images of the next step as [`Conv4Training::run`] does, without running the step, and returns them
    /// as the network gets them: normalised, rounded to f16, `[image][row][column][channel]`.
    ///
    /// # Panics
    /// If the input has the wrong length.
    pub fn prepared_images(&mut self, step: &StepInput) -> Result<Vec<f32>> {
        self.runner.write(std::slice::from_ref(step))?;
        self.runner.record_images(&self.network)?;
        let Shape { size, channels } = self.options.shape;
        // The plane (see `network`) has a row and a column of zeros after the pixels of each image, which are left out.
        // A pixel is four 16-bit floats, two in each of two words.
        let pitch = size + 1;
        let plane = self.network.image.read()?;
        let rows = (0..self.options.images() * pitch).filter(|row| row % pitch < size);
        let pixels = rows.flat_map(|row| &plane[row * pitch..row * pitch + size]);
        let values = pixels.flat_map(|words| (0..channels).map(|c| words[c / 2] >> (16 * (c % 2))));
        Ok(values.map(|bits| f16::from_bits(bits as u16).to_f32()).collect())
    }

    /// Replaces parameters and the state of the optimiser.
    ///
    /// # Panics
    /// If a length is not that of the layout.
    pub fn load(&mut self, state: &Conv4State) -> Result<()> {
        self.network.load(&state.parameters)?;
        self.runner.load(state)
    }

    /// Runs steps and returns their losses.
    ///
    /// # Errors
    /// [`Lost`](crate::Error::Lost) if the GPU stopped working. A loss that is not finite is returned, and no later
    /// step is run.
    ///
    /// # Panics
    /// If there are more than [`STEP_SLOTS`] steps, or an input has the wrong length or is of another kind than the
    /// run.
    pub fn run(&mut self, steps: &[StepInput]) -> Result<Vec<f32>> {
        let Conv4Training { network, loss, runner, options, .. } = self;
        runner.run(steps, |runner| record_step(network, loss, runner, options))
    }

    /// Launches the graph of one step on the inputs that its slot has, and does not wait. For measurements.
    pub fn launch_step(&mut self) -> Result<()> {
        let Conv4Training { network, loss, runner, options, .. } = self;
        runner.launch(|runner| record_step(network, loss, runner, options))
    }

    /// The times of the kernels of a step. The run cannot be continued afterwards.
    pub fn kernel_times(self) -> Result<KernelTimes> {
        self.device.kernel_times(|| record_step(&self.network, &self.loss, &self.runner, &self.options))
    }

    /// Waits for the device.
    pub fn synchronise(&self) -> Result<()> {
        self.device.synchronise()
    }
}

/// Starts all kernels of one step. The graph of a step records these launches once; every launch of the graph repeats
/// them.
fn record_step(
    network: &Conv4Network,
    loss: &PrototypeLoss,
    runner: &StepRunner,
    options: &Conv4Options,
) -> Result<()> {
    let (pass, optimiser) = (network.pass(options.images()), &runner.optimiser);
    runner.record_images(network)?;
    pass.forward()?;
    loss.record(network, &runner.labels, &optimiser.state)?;
    pass.backward()?;
    pass.collect_gradients(&optimiser.state)?;
    optimiser.record_update(network, &pass, None)?;
    optimiser.record_end(network, &loss.losses, options.queries)
}

#[cfg(all(test, any(feature = "emulator", feature = "gpu-tests")))]
mod tests;
