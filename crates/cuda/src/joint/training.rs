//! [`JointTraining`]: the training steps of a backbone and a head on the device. The parent module says what a step
//! does.
//!
//! The inputs of up to [`STEP_SLOTS`] steps are in ring buffers on the device. One CUDA graph (a recorded sequence of
//! kernel launches) runs a step; there is one graph per [`StepSize`], because the sizes decide how many thread blocks
//! are launched.

use std::collections::HashMap;
use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::conv4::Shape;
use trueshot_nn::head::FEATURE_MEAN_RATE;

use super::inputs::{JointStep, SlotLayout, StepSize};
use super::{BackboneUpdate, HeadTraining, HeadWeights};
use crate::conv4::{
    Conv4Network, Conv4Optimiser, Conv4State, DeviceImages, EpisodeShape, ImageFeed, OtherSquares,
    STEP_SLOTS, adjacent_slots,
};
use crate::driver::{Argument, Buffer, Device, Graph, Grid, KernelTimes, Null, Queue, Value};
use crate::error::Result;

/// The sizes and options of a training run.
#[derive(Debug, Clone)]
pub struct JointOptions {
    /// Size and channels of the images.
    pub shape: Shape,
    /// Maximum number of images per step.
    pub images: usize,
    /// Maximum number of episodes per step.
    pub episodes: usize,
    /// Maximum number of classes per episode.
    pub classes: usize,
    /// The weight of the loss of nearest prototypes.
    pub prototype_weight: f64,
    /// Hyperparameters of the optimiser.
    pub optimiser: AdamWConfig,
    /// The largest norm of the gradient of backbone and head together; 0: no clipping. The head must be made with the
    /// same number.
    pub clip: f64,
    /// The head's parameters that are a running mean of the features; every step moves them towards the mean of its own
    /// features by [`FEATURE_MEAN_RATE`]. `None` if the head has no such parameters.
    pub feature_mean: Option<Range<usize>>,
    /// Whether the features are centred on that mean and scaled to unit length before the head reads them.
    pub subtracts_mean: bool,
}

/// Everything that later steps of a run depend on.
#[derive(Debug, Clone, PartialEq)]
pub struct JointState {
    /// The backbone.
    pub backbone: Conv4State,
    /// The head.
    pub head: HeadWeights,
    /// The average of the parameters: those of the backbone, then those of the head.
    pub average: Vec<f32>,
}

/// The sizes that all kernels of joint training take (`JointShape` in `kernels/joint.cu`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
struct JointShape {
    /// Numbers per row of features.
    dim: i32,
    /// The most episodes of a step.
    most_episodes: i32,
    /// The most classes of an episode.
    most_classes: i32,
    /// Words per slot.
    slot_len: i32,
}

/// A backbone and a head in training on a GPU.
pub struct JointTraining<H> {
    device: Device,
    options: JointOptions,
    layout: SlotLayout,
    backbone: Conv4Network,
    feed: ImageFeed,
    head: H,
    /// The optimiser of the backbone, which also has the number of the step and the loss scale.
    optimiser: Conv4Optimiser,
    /// The inputs of the steps, `[slot][slot_len]`.
    slots: Buffer<u32>,
    /// The prototypes, `[episode][class][dim]`; empty if the loss of nearest prototypes has weight 0.
    points: Buffer<f32>,
    /// The gradients of the prototypes, in the same shape.
    d_points: Buffer<f32>,
    /// The gradients of the logits of nearest prototypes, `[query][class]`.
    d_logits: Buffer<f32>,
    /// The loss of nearest prototypes of each query, weighted such that the mean over all queries of a step is the term
    /// of the step's loss.
    losses: Buffer<f32>,
    /// The features of the backbone, if the head reads centred ones; `None` if the backbone writes the features of the
    /// head.
    uncentred: Option<Uncentred>,
    /// The running average of the parameters: those of the backbone, then those of the head.
    average: Buffer<f32>,
    /// The recorded kernels of steps of each size so far.
    pub(super) graphs: HashMap<StepSize, Graph>,
    /// Steps that the device has finished.
    done: u32,
}

/// Features before they are centred.
struct Uncentred {
    /// `[row][dim]`
    features: Buffer<f32>,
    /// One over the length of each centred row.
    scales: Buffer<f32>,
}

impl<H: HeadTraining> JointTraining<H> {
    /// A training run of a backbone that starts from `parameters`, in the layout of [`trueshot_nn::conv4::layout`], and
    /// of `head` as it is. Steps take their images from `images`, or bring prepared ones.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::Error::OutOfMemory) if activations and images do not fit.
    ///
    /// # Panics
    /// If the shape is not possible, `parameters` has another length, the head has fewer rows than a step can have
    /// images, or features are centred without a mean.
    pub fn new(
        device: &Device,
        options: JointOptions,
        parameters: &[f32],
        head: H,
        images: Option<DeviceImages>,
    ) -> Result<Self> {
        let (rows, dim) = (options.images, options.shape.features());
        assert!(head.features().len() >= rows * dim, "a head for {rows} rows of {dim} numbers");
        assert!(
            options.feature_mean.is_some() || !options.subtracts_mean,
            "a mean that features are centred on"
        );
        let layout = SlotLayout { episodes: options.episodes, rows };
        let backbone = Conv4Network::new(device, options.shape, rows)?;
        let points =
            if options.prototype_weight > 0.0 { options.episodes * options.classes * dim } else { 0 };
        let mut training = JointTraining {
            device: device.clone(),
            layout,
            feed: ImageFeed::new(device, options.shape, rows, images)?,
            optimiser: Conv4Optimiser::new(device, parameters.len(), &options.optimiser, options.clip)?,
            slots: device.zeros(STEP_SLOTS * layout.len())?,
            points: device.zeros(points)?,
            d_points: device.zeros(points)?,
            d_logits: device.zeros(rows * options.classes)?,
            losses: device.zeros(rows)?,
            uncentred: if options.subtracts_mean {
                Some(Uncentred { features: device.zeros(rows * dim)?, scales: device.zeros(rows)? })
            } else {
                None
            },
            average: device.zeros(parameters.len() + head.parameters().len())?,
            graphs: HashMap::new(),
            backbone,
            head,
            options,
            done: 0,
        };
        let head = training.head.weights()?;
        let average = [parameters, &head.parameters].concat();
        training.load(&JointState { backbone: Conv4State::new(parameters), head, average })?;
        Ok(training)
    }

    /// The average of the parameters: those of the backbone, then those of the head.
    pub fn average(&self) -> Result<Vec<f32>> {
        self.average.read()
    }

    /// The gradient of the backbone's parameters in the last step.
    pub fn backbone_gradient(&self) -> Result<Vec<f32>> {
        self.backbone.gradients.read()
    }

    /// The head.
    pub fn head(&self) -> &H {
        &self.head
    }

    /// Everything that later steps depend on.
    pub fn state(&self) -> Result<JointState> {
        Ok(JointState {
            backbone: self.optimiser.state(&self.backbone.parameters)?,
            head: self.head.weights()?,
            average: self.average.read()?,
        })
    }

    /// Replaces parameters, the state of the optimiser and the average.
    ///
    /// # Panics
    /// If a length is not that of the layout.
    pub fn load(&mut self, state: &JointState) -> Result<()> {
        self.backbone.load(&state.backbone.parameters)?;
        self.optimiser.load(&state.backbone, self.done)?;
        self.head.load_weights(&state.head)?;
        self.average.write(0, &state.average)
    }

    /// Runs steps and returns the terms of their losses: those of the head, then that of nearest prototypes if it has a
    /// weight.
    ///
    /// # Errors
    /// [`Lost`](crate::Error::Lost) if the GPU stopped working. Losses that are not finite are returned, and no later
    /// step is run.
    ///
    /// # Panics
    /// If there are more than [`STEP_SLOTS`] steps, or an input has the wrong length or is of another kind than the
    /// run.
    pub fn run(&mut self, steps: &[JointStep]) -> Result<Vec<Vec<f32>>> {
        assert!(steps.len() <= STEP_SLOTS, "{} steps at a time", steps.len());
        // Images that the host prepared have memory for one step only, not for one per slot.
        let at_a_time = if self.feed.has_data_set() { STEP_SLOTS } else { 1 };
        let mut losses: Vec<Vec<f32>> = Vec::new();
        for steps in steps.chunks(at_a_time) {
            losses.extend(self.run_together(steps)?);
            if losses.last().is_some_and(|terms| terms.iter().any(|term| !term.is_finite())) {
                break;
            }
        }
        Ok(losses)
    }

    /// Runs steps that fit into the slots together.
    fn run_together(&mut self, steps: &[JointStep]) -> Result<Vec<Vec<f32>>> {
        self.prepare(steps)?;
        let sizes: Vec<StepSize> = steps.iter().map(JointStep::size).collect();
        let first = self.done;
        let graphs = &self.graphs;
        let launch = |step: u32| graphs[&sizes[(step - first) as usize]].launch();
        let target = first + steps.len() as u32;
        self.done = self.optimiser.finish_steps(first, steps.len(), launch)?;
        let mut of_head: Vec<Vec<f32>> = self.head.finished_losses()?.into_iter().map(Into::into).collect();
        let of_prototypes = self.optimiser.losses(first, self.done, target)?;
        // For a step that failed, the optimiser returns NaN. The head returns nothing, unless its own loss is not
        // finite.
        of_head.resize(of_prototypes.len(), Vec::new());
        let terms = of_head.into_iter().zip(of_prototypes).map(|(mut terms, of_prototypes)| {
            // A step that the head has not finished has only this term, which is NaN.
            if self.options.prototype_weight > 0.0 || terms.is_empty() {
                terms.push(of_prototypes);
            }
            terms
        });
        Ok(terms.collect())
    }

    /// Allocates the memory and records the graphs for steps of these sizes, so that later steps do not run out of
    /// memory.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::Error::OutOfMemory) or [`TooLarge`](crate::Error::TooLarge) if the episodes are too
    /// large.
    pub fn reserve(&mut self, steps: &[JointStep]) -> Result<()> {
        let inputs: Vec<H::StepInput> = steps.iter().map(Into::into).collect();
        if self.head.prepare(&inputs)? {
            self.graphs.clear();
        }
        steps.iter().try_for_each(|step| self.record_graph(step.size()))
    }

    /// Copies the inputs of the next steps to the device and records the graphs that they need.
    pub(super) fn prepare(&mut self, steps: &[JointStep]) -> Result<()> {
        self.reserve(steps)?;
        adjacent_slots(self.done, steps).try_for_each(|(slot, steps)| self.write_adjacent_slots(slot, steps))
    }

    /// Copies the inputs of steps to adjacent slots from number `slot` on.
    fn write_adjacent_slots(&mut self, slot: usize, steps: &[JointStep]) -> Result<()> {
        let (mut words, mut rates) = (Vec::new(), Vec::new());
        for step in steps {
            let (images, expected) = (step.images.count(self.options.shape), step.size().images);
            assert_eq!(images, expected, "one image per item and query");
            words.extend(self.layout.encode(step, self.options.prototype_weight));
            rates.push(step.rate as f32);
        }
        self.slots.write(slot * self.layout.len(), &words)?;
        self.optimiser.rates.write(slot, &rates)?;
        self.feed.write(slot, steps.iter().map(|step| &step.images))
    }

    /// Records the graph of steps of this size, unless there is one.
    fn record_graph(&mut self, size: StepSize) -> Result<()> {
        if !self.graphs.contains_key(&size) {
            let graph = self.device.clone().capture(|| self.record_step(size))?;
            self.graphs.insert(size, graph);
        }
        Ok(())
    }

    /// Launches the graph of a step on the inputs that the next slot already has, and does not wait. For measurements
    /// after [`run`](Self::run) with [`STEP_SLOTS`] steps of one size, so that all slots are filled and there is one
    /// graph.
    pub fn launch_step(&self) -> Result<()> {
        self.graphs.values().next().expect("a step was run").launch()
    }

    /// The times of the kernels of a step of the size of `step`. The run cannot be continued afterwards.
    pub fn kernel_times(mut self, step: &JointStep) -> Result<KernelTimes> {
        self.prepare(std::slice::from_ref(step))?;
        self.device.clone().kernel_times(|| self.record_step(step.size()))
    }

    /// Waits for the device.
    pub fn synchronise(&self) -> Result<()> {
        self.device.synchronise()
    }

    /// Launches a kernel on the main queue.
    fn launch(&self, kernel: &'static str, grid: Grid, arguments: &[&dyn Argument]) -> Result<()> {
        self.device.launch(Queue::Main, kernel, grid, arguments)
    }

    /// The sizes as the kernels take them.
    fn shape(&self) -> JointShape {
        JointShape {
            dim: self.options.shape.features() as i32,
            most_episodes: self.options.episodes as i32,
            most_classes: self.options.classes as i32,
            slot_len: self.layout.len() as i32,
        }
    }

    /// Starts all kernels of one step.
    fn record_step(&self, size: StepSize) -> Result<()> {
        let state = &self.optimiser.state;
        let pass = self.backbone.pass(size.images);
        // The first kernel checks that the step in the current slot has the sizes of this graph. After a step that
        // overflowed, it does not: the device repeats that step, but the graphs of later steps have already been
        // launched.
        let sizes = [size.images, size.episodes, size.queries].map(|size| Value(size as i32));
        let arguments: [&dyn Argument; 6] =
            [&self.slots, state, &Value(self.shape()), &sizes[0], &sizes[1], &sizes[2]];
        self.launch("joint_begin", Grid::new(1, 32), &arguments)?;
        self.feed.record(size.images, &self.backbone.image, state)?;
        pass.forward()?;
        pass.write_features(self.features())?;
        self.record_centring(size)?;
        self.head.record_losses()?;
        self.record_centring_backward(size)?;
        self.record_feature_gradient(size)?;
        pass.backward()?;
        pass.collect_gradients(state)?;
        let squares = &self.backbone.squares;
        self.head.record_update(&BackboneUpdate {
            overflow: self.optimiser.overflow(),
            squares: squares.at(0),
            square_count: squares.len(),
        })?;
        let of_head = self.head.squares();
        let others = OtherSquares { sums: of_head.at(0), count: of_head.len() };
        self.optimiser.record_update(&self.backbone, &pass, Some(&others))?;
        self.record_averages(size)?;
        self.optimiser.record_end(&self.backbone, &self.losses, size.queries)
    }

    /// The features of the backbone in the last step, `[row][dim]`.
    pub(crate) fn features(&self) -> &Buffer<f32> {
        self.uncentred.as_ref().map_or(self.head.features(), |uncentred| &uncentred.features)
    }

    /// Starts the kernel that centres the features and scales them to unit length for the head, if the options say so.
    fn record_centring(&self, size: StepSize) -> Result<()> {
        let (Some(uncentred), Some(range)) = (&self.uncentred, &self.options.feature_mean) else {
            return Ok(());
        };
        let mean = self.head.parameters().at(range.start);
        let arguments: [&dyn Argument; 5] =
            [&uncentred.features, &mean, self.head.features(), &uncentred.scales, &Value(self.shape())];
        self.launch("joint_centre", Grid::new(size.images, 256), &arguments)
    }

    /// Starts the kernel that turns the gradient of the centred features into that of the features, in place.
    fn record_centring_backward(&self, size: StepSize) -> Result<()> {
        let Some(Uncentred { scales, .. }) = &self.uncentred else { return Ok(()) };
        let arguments: [&dyn Argument; 4] =
            [self.head.features(), scales, self.head.feature_gradient(), &Value(self.shape())];
        self.launch("joint_centre_backward", Grid::new(size.images, 256), &arguments)
    }

    /// Starts the kernels of the loss of nearest prototypes, and of the gradient of both losses with respect to the
    /// features, which the backbone reads.
    fn record_feature_gradient(&self, size: StepSize) -> Result<()> {
        let (features, state, slots, shape) =
            (self.features(), &self.optimiser.state, &self.slots, Value(self.shape()));
        let JointTraining { points, d_points, d_logits, losses, .. } = self;
        let classes = self.options.classes;
        let has_prototypes = self.options.prototype_weight > 0.0;
        if has_prototypes {
            let grid =
                Grid::new(self.options.shape.features().div_ceil(128), 128).rows(size.episodes * classes);
            self.launch("joint_prototypes", grid, &[features, slots, points, state, &shape])?;
            // Shared memory: partial distances of 8 warps, and the gradients of the logits, per class.
            let of_queries = Grid::new(size.images, 256).shared(9 * classes * size_of::<f32>());
            let arguments: [&dyn Argument; 7] = [features, slots, points, d_logits, losses, state, &shape];
            self.launch("joint_query_losses", of_queries, &arguments)?;
            let arguments: [&dyn Argument; 7] = [features, slots, points, d_logits, d_points, state, &shape];
            self.launch("joint_prototype_gradients", grid, &arguments)?;
        }
        let plane = EpisodeShape::of_features(self.options.shape);
        let grid = Grid::new((plane.chunks as usize).div_ceil(64), 64).rows(size.images);
        let points: &dyn Argument = if has_prototypes { points } else { &Null };
        let arguments: [&dyn Argument; 10] = [
            features,
            self.head.feature_gradient(),
            slots,
            points,
            d_points,
            d_logits,
            self.backbone.feature_gradient(),
            state,
            &shape,
            &Value(plane),
        ];
        self.launch("joint_feature_gradient", grid, &arguments)
    }

    /// Starts the kernels that move the running mean of the features and the running average of the parameters.
    fn record_averages(&self, size: StepSize) -> Result<()> {
        let (state, shape) = (&self.optimiser.state, Value(self.shape()));
        let of_head = self.head.parameters();
        if let Some(range) = &self.options.feature_mean {
            let (rate, rows, mean) =
                (Value(FEATURE_MEAN_RATE), Value(size.images as i32), of_head.at(range.start));
            let grid = Grid::new(range.len().div_ceil(32), 256);
            let arguments: [&dyn Argument; 6] = [self.features(), &mean, &rate, &rows, state, &shape];
            self.launch("joint_feature_mean", grid, &arguments)?;
        }
        let of_backbone = &self.backbone.parameters;
        let arguments: [&dyn Argument; 8] = [
            &self.average,
            of_backbone,
            &Value(of_backbone.len() as i32),
            of_head,
            &Value(self.average.len() as i32),
            &self.slots,
            state,
            &shape,
        ];
        self.launch("joint_average", Grid::new(self.average.len().div_ceil(256), 256), &arguments)
    }
}
