//! NegMargin on the GPU: trains a Conv4 by classifying images among all classes of the data set.
//!
//! Start with [`NegMarginTraining`]. The classifier has one weight vector w_c per class, called the direction of the
//! class. For an image with features f, the logit of class c is `s cos(f, w_c)`, and `s (cos(f, w_c) - m)` if c is the
//! true class, with scale s and margin m ([`cosine_margin`](trueshot_nn::layers::cosine_margin)). The network, the
//! images, the loss scale and the ring buffers of step inputs are those of [`conv4`](crate::conv4).
//!
//! The parameters are those of the Conv4, followed by the directions, `[class][64][side][side]`, where `side` is the
//! height and width of the features. The device keeps directions as it keeps features: `[class][pixel][64]`.

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
    /// The number of classes of the data set.
    pub classes: usize,
    /// s: the factor of all cosines.
    pub scale: f64,
    /// m: subtracted from the cosine of the true class before scaling.
    pub margin: f64,
    /// Hyperparameters of the optimiser.
    pub optimiser: AdamWConfig,
    /// The largest norm of the gradient of all parameters, to which larger ones are clipped; 0: no clipping.
    pub clip: f64,
}

/// Channels of a unit, the part of a feature vector or direction that a thread block computes gradients of
/// (`kernels/negmargin.cu`). They have 64 channels per pixel, so two units.
const UNIT: usize = 32;
/// Images or classes of the tile that a thread block computes (`ITEM_TILE` in `kernels/negmargin.cu`).
const TILE_ROWS: usize = 16;
/// Warps of a thread block, which split the terms of its sums.
const SPLIT: usize = 8;
/// Threads of a thread block.
const THREADS: u32 = 32 * SPLIT as u32;

/// The sizes and factors of the loss (`ClassShape` in `kernels/negmargin.cu`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct ClassShape {
    images: i32,
    classes: i32,
    /// The length of a row of cosines: the number of classes, rounded up to a multiple of 8.
    pitch: i32,
    /// The height and width of the features in pixels.
    side: i32,
    /// Divides by `side`.
    by_side: Divider,
    scale: f32,
    margin: f32,
}

/// The directions w_c of the classes with the state of their optimiser, and the buffers of the loss. The gradients of
/// cosines and features are multiplied by the loss scale; those of the directions are not.
struct CosineClassifier {
    device: Device,
    shape: ClassShape,
    /// Whether gradients are clipped.
    clip: bool,
    /// The directions, `[class][pixel][64]`. Their moments and gradients have the same order.
    weights: Buffer<f32>,
    first_moments: Buffer<f32>,
    second_moments: Buffer<f32>,
    gradients: Buffer<f32>,
    /// Sums of squares of the gradients, one per thread block.
    squares: Buffer<f64>,
    /// The sum of `squares`, one number. Only computed if gradients are clipped.
    square_sum: Buffer<f64>,
    /// cos(f, w_c), `[images][pitch]`.
    cosines: Buffer<f32>,
    /// The gradient of `cosines`, `[images][pitch]`.
    d_cosines: Buffer<f32>,
    /// 1 / |w_c| of each class, padded to `pitch`, then 1 / |f| of each image.
    inverse_lengths: Buffer<f32>,
    /// The inner product of f / |f| and the gradient of f / |f|, `[images]`.
    projections: Buffer<f32>,
    /// The loss of each image, `[images]`.
    losses: Buffer<f32>,
}

impl CosineClassifier {
    fn new(device: &Device, options: &NegMarginOptions) -> Result<Self> {
        let NegMarginOptions { images, classes, .. } = *options;
        let (side, pitch) = (options.shape.side(BLOCKS), classes.next_multiple_of(8));
        let len = classes * options.shape.features();
        if len > i32::MAX as usize {
            // The kernels index the numbers of all directions with 31 bits; more would take over 8 GiB per buffer.
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
        // The thread blocks of `class_gradients`.
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
            square_sum: device.zeros(1)?,
            cosines: device.zeros(images * pitch)?,
            d_cosines: device.zeros(images * pitch)?,
            inverse_lengths: device.zeros(pitch + images)?,
            projections: device.zeros(images)?,
            losses: device.zeros(images)?,
        })
    }

    /// Launches the kernels that compute the losses from the features of `network`, and then the gradients: that of the
    /// features on the main queue, that of the directions on the side queue. The side queue must be joined before
    /// [`CosineClassifier::record_update`]. `labels` is `[slot][image]`.
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
        let CosineClassifier { gradients, squares, square_sum, .. } = self;
        let arguments: [&dyn Argument; 9] =
            [features, weights, cosines, d_cosines, inverse_lengths, gradients, squares, state, &shape];
        let grid = Grid::new(units, THREADS).rows(class_tiles);
        self.device.launch(Queue::Side, "class_gradients", grid, &arguments)?;
        if self.clip {
            let arguments: [&dyn Argument; 3] = [squares, &Value(squares.len() as i32), square_sum];
            self.device.launch(Queue::Side, "sum_squares", Grid::new(1, 256), &arguments)?;
        }
        let d_features = network.feature_gradient();
        let arguments: [&dyn Argument; 7] =
            [features, weights, d_cosines, projections, inverse_lengths, d_features, &shape];
        let grid = Grid::new(units, THREADS).rows(image_tiles);
        self.device.launch(Queue::Main, "cosine_feature_gradients", grid, &arguments)
    }

    /// Units per image.
    fn units(&self) -> usize {
        (self.shape.side as usize).pow(2) * WIDTH / UNIT
    }

    /// The sum of squares of the directions' gradients, as the optimiser of the network takes it to clip both together.
    fn other_squares(&self) -> OtherSquares {
        OtherSquares { sums: self.square_sum.at(0), count: 1 }
    }

    /// Launches the update of the directions, which does nothing if a gradient overflowed.
    fn record_update(&self, network: &Conv4Network, optimiser: &Conv4Optimiser) -> Result<()> {
        let arguments: [&dyn Argument; 11] = [
            &self.weights,
            &self.first_moments,
            &self.second_moments,
            &self.gradients,
            &network.squares,
            &Value(network.squares.len() as i32),
            &self.square_sum,
            &optimiser.rates,
            &optimiser.state,
            &Value(optimiser.options),
            &Value(self.weights.len() as i32),
        ];
        let grid = Grid::new(self.weights.len().div_ceil(256), 256);
        self.device.launch(Queue::Main, "update_class_weights", grid, &arguments)
    }

    /// Reads values in the order of the device, `[class][pixel][64]`, and returns them as `[class][64][pixel]`.
    fn by_channel(&self, values: &Buffer<f32>) -> Result<Vec<f32>> {
        Ok(transposed(&values.read()?, self.pixels(), WIDTH))
    }

    /// Values `[class][64][pixel]` in the order of the device, `[class][pixel][64]`.
    fn by_pixel(&self, values: &[f32]) -> Vec<f32> {
        transposed(values, WIDTH, self.pixels())
    }

    /// Pixels of the features of an image.
    fn pixels(&self) -> usize {
        (self.shape.side as usize).pow(2)
    }
}

/// Transposes each of the consecutive matrices `[rows][columns]`.
fn transposed(matrices: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let transpose = |matrix: &[f32]| -> Vec<f32> {
        (0..columns * rows).map(|i| matrix[i % rows * columns + i / rows]).collect()
    };
    matrices.chunks_exact(rows * columns).flat_map(transpose).collect()
}

/// A Conv4 and the directions of the classes in training on a GPU.
pub struct NegMarginTraining {
    device: Device,
    /// Images per step.
    images: usize,
    network: Conv4Network,
    classifier: CosineClassifier,
    runner: StepRunner,
}

impl NegMarginTraining {
    /// A training run that starts from `parameters`: those of the Conv4 in the layout of
    /// [`trueshot_nn::conv4::layout`], then one direction per class. With `images`, the inputs of steps select images
    /// of that data set; without, they contain prepared images.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::Error::OutOfMemory) if parameters, activations and images do not fit.
    ///
    /// # Panics
    /// If the network does not support the shape of the images, or `parameters` has the wrong length.
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

    /// All parameters: those of the Conv4, including running statistics, then the directions `[class][64][side][side]`.
    pub fn parameters(&self) -> Result<Vec<f32>> {
        let directions = self.classifier.by_channel(&self.classifier.weights)?;
        Ok([self.network.parameters.read()?, directions].concat())
    }

    /// The parameters of the Conv4 without the directions.
    pub fn backbone(&self) -> Result<Vec<f32>> {
        self.network.parameters.read()
    }

    /// The gradient of the last step's mean loss before clipping, in the order of [`NegMarginTraining::parameters`].
    pub fn gradient(&self) -> Result<Vec<f32>> {
        let of_directions = self.classifier.by_channel(&self.classifier.gradients)?;
        Ok([self.network.gradients.read()?, of_directions].concat())
    }

    /// Everything that later steps depend on, to resume with [`NegMarginTraining::load`]. The parameters and moments
    /// are in the order of [`NegMarginTraining::parameters`].
    pub fn state(&self) -> Result<Conv4State> {
        let mut state = self.runner.optimiser.state(&self.network.parameters)?;
        let CosineClassifier { weights, first_moments, second_moments, .. } = &self.classifier;
        state.parameters.extend(self.classifier.by_channel(weights)?);
        state.first_moments.extend(self.classifier.by_channel(first_moments)?);
        state.second_moments.extend(self.classifier.by_channel(second_moments)?);
        Ok(state)
    }

    /// Replaces the parameters and the state of the optimiser.
    ///
    /// # Panics
    /// If parameters or moments have the wrong length.
    pub fn load(&mut self, state: &Conv4State) -> Result<()> {
        let (backbone, directions) = (self.network.parameters.len(), self.classifier.weights.len());
        let split = |values: &[f32]| {
            assert_eq!(values.len(), backbone + directions, "parameters of this layout");
            (values[..backbone].to_vec(), self.classifier.by_pixel(&values[backbone..]))
        };
        let (parameters, weights) = split(&state.parameters);
        let (first_moments, weights_first) = split(&state.first_moments);
        let (second_moments, weights_second) = split(&state.second_moments);
        self.classifier.weights.write(0, &weights)?;
        self.classifier.first_moments.write(0, &weights_first)?;
        self.classifier.second_moments.write(0, &weights_second)?;
        let Conv4State { updates, scale, good_steps, .. } = *state;
        let state = Conv4State { parameters, first_moments, second_moments, updates, scale, good_steps };
        self.network.load(&state.parameters)?;
        self.runner.load(&state)
    }

    /// Runs steps and returns the mean loss over the images of each. If a loss is not finite, it is the last one that
    /// is returned, and the steps after it are not run.
    ///
    /// # Errors
    /// [`Lost`](crate::Error::Lost) if the GPU stopped working.
    ///
    /// # Panics
    /// If there are more than [`STEP_SLOTS`](crate::conv4::STEP_SLOTS) steps, or an input has the wrong length, a
    /// class that does not exist, or prepared images although the run has a data set on the device, or the reverse.
    pub fn run(&mut self, steps: &[StepInput]) -> Result<Vec<f32>> {
        let classes = self.classifier.shape.classes as u32;
        let all_exist = steps.iter().flat_map(|step| &step.labels).all(|&class| class < classes);
        assert!(all_exist, "labels must be classes from 0 to {}", classes - 1);
        let NegMarginTraining { network, classifier, runner, images, .. } = self;
        runner.run(steps, |runner| record_step(network, classifier, runner, *images))
    }

    /// Launches the graph of one step on the inputs that are in its slot, and does not wait for it. For measurements.
    pub fn launch_step(&mut self) -> Result<()> {
        let NegMarginTraining { network, classifier, runner, images, .. } = self;
        runner.launch(|runner| record_step(network, classifier, runner, *images))
    }

    /// Measures each kernel of a step, in microseconds, by launching it several times. The run cannot be continued
    /// afterwards.
    pub fn kernel_times(self) -> Result<KernelTimes> {
        self.device.kernel_times(|| record_step(&self.network, &self.classifier, &self.runner, self.images))
    }

    /// Waits until the device has finished all work.
    pub fn synchronise(&self) -> Result<()> {
        self.device.synchronise()
    }
}

/// Launches all kernels of one step.
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
