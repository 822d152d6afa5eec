//! NegMargin on the GPU: a Conv4 in training with a cosine softmax with a margin over all classes.
//!
//! Start with [`NegMarginTraining`]. Network, images, loss scale and the rings of inputs are those of [`conv4`](crate::conv4).
//! The parameters are those of the Conv4, followed by one direction per class, `[class][64][side][side]`; the device keeps the
//! directions in the order of its planes, `[class][pixel][64]`.

use bytemuck::{Pod, Zeroable};
use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::conv4::{BLOCKS, Shape, WIDTH};

use crate::Divider;
use crate::conv4::{
    Conv4Network, Conv4Optimiser, Conv4State, DeviceImages, OtherSquares, StepInput, StepRunner,
    TrainingState,
};
use crate::driver::{Argument, Buffer, Device, Grid, KernelTimes, Queue, Value};
use crate::error::{Error, Result};

/// The sizes and options of a training run.
#[derive(Debug, Clone)]
pub struct NegMarginOptions {
    /// Size and channels of the images.
    pub shape: Shape,
    /// Images per step.
    pub images: usize,
    /// Classes of the data set.
    pub classes: usize,
    /// The factor of all cosines.
    pub scale: f64,
    /// Subtracted from the cosine of the true class before scaling.
    pub margin: f64,
    /// Hyperparameters of the optimiser.
    pub optimiser: AdamWConfig,
    /// The largest norm of the gradient; 0: no clipping.
    pub clip: f64,
}

/// Channels of a unit, and rows of a tile (`kernels/negmargin.cu`).
const UNIT: usize = 32;
const TILE_ROWS: usize = 16;
/// Warps of a thread block, and threads.
const SPLIT: usize = 8;
const THREADS: u32 = 32 * SPLIT as u32;

#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct ClassShape {
    images: i32,
    classes: i32,
    pitch: i32,
    side: i32,
    by_side: Divider,
    scale: f32,
    margin: f32,
}

/// The directions of the classes with the state of their optimiser, and the memory of the loss.
struct CosineClassifier {
    device: Device,
    shape: ClassShape,
    clip: bool,
    weights: Buffer<f32>,
    first_moments: Buffer<f32>,
    second_moments: Buffer<f32>,
    gradients: Buffer<f32>,
    /// The sum of squares of the gradients of each thread block, and of all.
    squares: Buffer<f64>,
    square: Buffer<f64>,
    cosines: Buffer<f32>,
    d_cosines: Buffer<f32>,
    inverse_lengths: Buffer<f32>,
    projections: Buffer<f32>,
    /// The loss of each image.
    losses: Buffer<f32>,
}

impl CosineClassifier {
    fn new(device: &Device, options: &NegMarginOptions) -> Result<Self> {
        let NegMarginOptions { images, classes, .. } = *options;
        let (side, pitch) = (options.shape.side(BLOCKS), classes.next_multiple_of(8));
        let len = classes * options.shape.features();
        if len > i32::MAX as usize {
            // The kernels count the numbers of all directions with 31 bits.
            let (free, total) = device.memory()?;
            let needed = (len * size_of::<f32>()) >> 20;
            return Err(Error::OutOfMemory { needed, free: free >> 20, total: total >> 20 });
        }
        let shape = ClassShape {
            images: images as i32,
            classes: classes as i32,
            pitch: pitch as i32,
            side: side as i32,
            by_side: Divider::new(side),
            scale: options.scale as f32,
            margin: options.margin as f32,
        };
        let blocks = options.shape.features() / UNIT * classes.div_ceil(TILE_ROWS);
        Ok(CosineClassifier {
            device: device.clone(),
            shape,
            clip: options.clip > 0.0,
            weights: device.zeros(len)?,
            first_moments: device.zeros(len)?,
            second_moments: device.zeros(len)?,
            gradients: device.zeros(len)?,
            squares: device.zeros(blocks)?,
            square: device.zeros(1)?,
            cosines: device.zeros(images * pitch)?,
            d_cosines: device.zeros(images * pitch)?,
            inverse_lengths: device.zeros(pitch + images)?,
            projections: device.zeros(images)?,
            losses: device.zeros(images)?,
        })
    }

    /// From the features of `network` to the losses, the gradient of the features, and on the side queue that of the
    /// directions. The side queue must be joined before [`CosineClassifier::record_update`].
    fn record_losses(
        &self,
        network: &Conv4Network,
        labels: &Buffer<u32>,
        state: &Buffer<TrainingState>,
    ) -> Result<()> {
        let CosineClassifier { weights, cosines, d_cosines, inverse_lengths, projections, losses, .. } = self;
        let (features, shape) = (network.features(), Value(self.shape));
        let units = self.units();
        let tiles = |rows: i32| (rows as usize).div_ceil(TILE_ROWS);
        let (image_tiles, class_tiles) = (tiles(self.shape.images), tiles(self.shape.classes));
        let arguments: [&dyn Argument; 5] = [features, weights, cosines, inverse_lengths, &shape];
        let grid = Grid::new(class_tiles, THREADS).rows(image_tiles);
        self.device.launch(Queue::Main, "class_cosines", grid, &arguments)?;
        let arguments: [&dyn Argument; 7] = [cosines, labels, losses, d_cosines, projections, state, &shape];
        let grid = Grid::new((self.shape.images as usize).div_ceil(SPLIT), THREADS);
        self.device.launch(Queue::Main, "margin_losses", grid, &arguments)?;
        self.device.fork()?;
        let CosineClassifier { gradients, squares, square, .. } = self;
        let arguments: [&dyn Argument; 9] =
            [features, weights, cosines, d_cosines, inverse_lengths, gradients, squares, state, &shape];
        let grid = Grid::new(units, THREADS).rows(class_tiles);
        self.device.launch(Queue::Side, "class_gradients", grid, &arguments)?;
        if self.clip {
            let arguments: [&dyn Argument; 3] = [squares, &Value(squares.len() as i32), square];
            self.device.launch(Queue::Side, "sum_squares", Grid::new(1, 256), &arguments)?;
        }
        let d_features = network.feature_gradient();
        let arguments: [&dyn Argument; 7] =
            [features, weights, d_cosines, projections, inverse_lengths, d_features, &shape];
        let grid = Grid::new(units, THREADS).rows(image_tiles);
        self.device.launch(Queue::Main, "cosine_feature_gradients", grid, &arguments)
    }

    fn units(&self) -> usize {
        (self.shape.side as usize).pow(2) * WIDTH / UNIT
    }

    /// The sum of squares that counts in the norm of the whole gradient.
    fn other_squares(&self) -> OtherSquares {
        OtherSquares { sums: self.square.at(0), count: 1 }
    }

    /// Starts the update of the directions, which does nothing after an overflow.
    fn record_update(&self, network: &Conv4Network, optimiser: &Conv4Optimiser) -> Result<()> {
        let arguments: [&dyn Argument; 11] = [
            &self.weights,
            &self.first_moments,
            &self.second_moments,
            &self.gradients,
            &network.squares,
            &Value(network.squares.len() as i32),
            &self.square,
            &optimiser.rates,
            &optimiser.state,
            &Value(optimiser.options),
            &Value(self.weights.len() as i32),
        ];
        let grid = Grid::new(self.weights.len().div_ceil(256), 256);
        self.device.launch(Queue::Main, "update_class_weights", grid, &arguments)
    }

    /// Values of the device, `[class][pixel][64]`, as `[class][64][pixel]`.
    fn by_channel(&self, values: &Buffer<f32>) -> Result<Vec<f32>> {
        Ok(transposed(&values.read()?, self.pixels(), WIDTH))
    }

    /// The reverse of [`CosineClassifier::by_channel`].
    fn by_pixel(&self, values: &[f32]) -> Vec<f32> {
        transposed(values, WIDTH, self.pixels())
    }

    fn pixels(&self) -> usize {
        (self.shape.side as usize).pow(2)
    }
}

/// Matrices of `rows` x `columns`, each transposed.
fn transposed(matrices: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let transpose = |matrix: &[f32]| -> Vec<f32> {
        (0..columns * rows).map(|i| matrix[i % rows * columns + i / rows]).collect()
    };
    matrices.chunks_exact(rows * columns).flat_map(transpose).collect()
}

/// NegMargin in training on a GPU.
pub struct NegMarginTraining {
    device: Device,
    images: usize,
    network: Conv4Network,
    classifier: CosineClassifier,
    runner: StepRunner,
}

impl NegMarginTraining {
    /// A training run that starts from `parameters`: those of the Conv4 in the layout of [`trueshot_nn::conv4::layout`], then
    /// one direction per class. Steps take their images from `images`, or bring prepared ones.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::Error::OutOfMemory) if activations and images do not fit.
    ///
    /// # Panics
    /// If the shape is not possible or `parameters` has another length.
    pub fn new(
        device: &Device,
        options: &NegMarginOptions,
        parameters: &[f32],
        images: Option<DeviceImages>,
    ) -> Result<Self> {
        let network = Conv4Network::new(device, options.shape, options.images)?;
        let (len, optimiser) = (network.parameters.len(), (&options.optimiser, options.clip));
        let mut training = NegMarginTraining {
            device: device.clone(),
            images: options.images,
            classifier: CosineClassifier::new(device, options)?,
            runner: StepRunner::new(device, options.shape, len, options.images, optimiser, images)?,
            network,
        };
        training.load(&Conv4State::new(parameters))?;
        Ok(training)
    }

    /// The parameters, running statistics included.
    pub fn parameters(&self) -> Result<Vec<f32>> {
        let directions = self.classifier.by_channel(&self.classifier.weights)?;
        Ok([self.network.parameters.read()?, directions].concat())
    }

    /// The parameters of the Conv4 alone.
    pub fn backbone(&self) -> Result<Vec<f32>> {
        self.network.parameters.read()
    }

    /// The gradient of the last step.
    pub fn gradient(&self) -> Result<Vec<f32>> {
        let of_directions = self.classifier.by_channel(&self.classifier.gradients)?;
        Ok([self.network.gradients.read()?, of_directions].concat())
    }

    /// Everything that later steps depend on.
    pub fn state(&self) -> Result<Conv4State> {
        let mut state = self.runner.optimiser.state(&self.network.parameters)?;
        let CosineClassifier { weights, first_moments, second_moments, .. } = &self.classifier;
        state.parameters.extend(self.classifier.by_channel(weights)?);
        state.first_moments.extend(self.classifier.by_channel(first_moments)?);
        state.second_moments.extend(self.classifier.by_channel(second_moments)?);
        Ok(state)
    }

    /// Replaces parameters and the state of the optimiser.
    ///
    /// # Panics
    /// If a length is not that of the layout.
    pub fn load(&mut self, state: &Conv4State) -> Result<()> {
        let (backbone, directions) = (self.network.parameters.len(), self.classifier.weights.len());
        let parts = |values: &[f32]| {
            assert_eq!(values.len(), backbone + directions, "parameters of this layout");
            (values[..backbone].to_vec(), self.classifier.by_pixel(&values[backbone..]))
        };
        let (parameters, weights) = parts(&state.parameters);
        let (first_moments, of_weights) = parts(&state.first_moments);
        let (second_moments, of_squares) = parts(&state.second_moments);
        self.classifier.weights.write(0, &weights)?;
        self.classifier.first_moments.write(0, &of_weights)?;
        self.classifier.second_moments.write(0, &of_squares)?;
        let Conv4State { updates, scale, good_steps, .. } = *state;
        let state = Conv4State { parameters, first_moments, second_moments, updates, scale, good_steps };
        self.network.load(&state.parameters)?;
        self.runner.load(&state)
    }

    /// Runs steps and returns their losses.
    ///
    /// # Errors
    /// [`Lost`](crate::Error::Lost) if the GPU stopped working. A loss that is not finite is returned, and no later step is run.
    ///
    /// # Panics
    /// If there are more than [`STEP_SLOTS`](crate::conv4::STEP_SLOTS) steps, or an input has the wrong length, a class that
    /// does not exist, or is of another kind than the run.
    pub fn run(&mut self, steps: &[StepInput]) -> Result<Vec<f32>> {
        let classes = self.classifier.shape.classes as u32;
        let exist = steps.iter().flat_map(|step| &step.labels).all(|&class| class < classes);
        assert!(exist, "classes from 0 to {}", classes - 1);
        let NegMarginTraining { network, classifier, runner, images, .. } = self;
        runner.run(steps, |runner| record_step(network, classifier, runner, *images))
    }

    /// Launches the graph of one step on the inputs that its slot has, and does not wait. For measurements.
    pub fn launch_step(&mut self) -> Result<()> {
        let NegMarginTraining { network, classifier, runner, images, .. } = self;
        runner.launch(|runner| record_step(network, classifier, runner, *images))
    }

    /// The times of the kernels of a step. The run cannot be continued afterwards.
    pub fn kernel_times(self) -> Result<KernelTimes> {
        self.device.kernel_times(|| record_step(&self.network, &self.classifier, &self.runner, self.images))
    }

    /// Waits for the device.
    pub fn synchronise(&self) -> Result<()> {
        self.device.synchronise()
    }
}

/// Starts all kernels of one step.
fn record_step(
    network: &Conv4Network,
    classifier: &CosineClassifier,
    runner: &StepRunner,
    images: usize,
) -> Result<()> {
    let (pass, optimiser) = (network.pass(images), &runner.optimiser);
    runner.record_images(network)?;
    pass.forward()?;
    classifier.record_losses(network, &runner.labels, &optimiser.state)?;
    // Joins the side queue, on which the gradient of the directions is computed.
    pass.backward()?;
    pass.collect_gradients(&optimiser.state)?;
    optimiser.record_update(network, &pass, Some(&classifier.other_squares()))?;
    classifier.record_update(network, optimiser)?;
    optimiser.record_end(network, &classifier.losses, images)
}

#[cfg(all(test, any(feature = "emulator", feature = "gpu-tests")))]
mod tests;
