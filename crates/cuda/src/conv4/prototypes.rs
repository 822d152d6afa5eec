//! The loss of nearest prototypes of one episode ([`PrototypeLoss`], `kernels/prototypes.cu`): the prototype of a class
//! is the mean or the geometric median of its support items, and the loss is the cross-entropy of the queries over
//! minus their squared distances to the prototypes.

use bytemuck::{Pod, Zeroable};
use trueshot_nn::conv4::{BLOCKS, Shape};

use super::network::Conv4Network;
use super::{Conv4Options, TrainingState};
use crate::Divider;
use crate::driver::{Argument, Buffer, Device, Grid, Queue, Value};
use crate::error::Result;

/// Steps of Weiszfeld's algorithm, which computes a geometric median: every step replaces the point by the mean of the
/// items, weighted by one over their distances to it.
pub(super) const MEDIAN_ITERATIONS: usize = 5;

/// How prototypes are computed from the support items of a class.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prototypes {
    /// The mean.
    Mean,
    /// The geometric median: five steps of Weiszfeld's algorithm from the mean.
    Median,
}

/// The sizes of an episode (`EpisodeShape` in `kernels/prototypes.cu`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct EpisodeShape {
    pub classes: i32,
    /// Support items.
    pub support: i32,
    pub queries: i32,
    /// Chunks of 8 channels of an image's features.
    pub chunks: i32,
    /// Height and width of the features.
    pub side: i32,
    /// Divides by `side`.
    pub by_side: Divider,
    /// Steps of Weiszfeld's algorithm for the median; 0 for means.
    pub iterations: i32,
}

impl EpisodeShape {
    /// The shape of the features of images of this shape, without an episode.
    pub fn of_features(shape: Shape) -> Self {
        let side = shape.side(BLOCKS);
        EpisodeShape {
            classes: 0,
            support: 0,
            queries: 0,
            chunks: (side * side * 8) as i32,
            side: side as i32,
            by_side: Divider::new(side),
            iterations: 0,
        }
    }

    fn new(options: &Conv4Options) -> Self {
        EpisodeShape {
            classes: options.classes as i32,
            support: options.support as i32,
            queries: options.queries as i32,
            iterations: options.prototypes.iterations() as i32,
            ..EpisodeShape::of_features(options.shape)
        }
    }
}

impl Prototypes {
    /// Steps of Weiszfeld's algorithm.
    fn iterations(self) -> usize {
        match self {
            Prototypes::Mean => 0,
            Prototypes::Median => MEDIAN_ITERATIONS,
        }
    }
}

/// The memory of the loss.
pub(super) struct PrototypeLoss {
    device: Device,
    shape: EpisodeShape,
    /// The prototypes after every step of Weiszfeld's algorithm, the means first, `[iterations +
    /// 1][classes][features]`.
    points: Buffer<f32>,
    /// The gradient of the final prototypes, `[classes][features]`.
    d_points: Buffer<f32>,
    /// The weights of the support items in each step of Weiszfeld's algorithm, `[iterations][support]`.
    weights: Buffer<f32>,
    /// Scratch memory of the gradients of medians, `[support]`.
    d_weights: Buffer<f32>,
    /// Scratch memory of the gradients of medians, `[support][features]`.
    d_items: Buffer<f32>,
    /// The gradients of the logits, `[queries][classes]`.
    d_logits: Buffer<f32>,
    /// The loss of each query.
    pub losses: Buffer<f32>,
}

impl PrototypeLoss {
    /// Memory for episodes of these sizes.
    pub fn new(device: &Device, options: &Conv4Options) -> Result<Self> {
        let Conv4Options { classes, support, queries, .. } = *options;
        let features = options.shape.features();
        let iterations = options.prototypes.iterations();
        let median_items = if iterations > 0 { support } else { 0 };
        Ok(PrototypeLoss {
            device: device.clone(),
            shape: EpisodeShape::new(options),
            points: device.zeros((iterations + 1) * classes * features)?,
            d_points: device.zeros(classes * features)?,
            weights: device.zeros(iterations * support)?,
            d_weights: device.zeros(median_items)?,
            d_items: device.zeros(median_items * features)?,
            d_logits: device.zeros(queries * classes)?,
            losses: device.zeros(queries)?,
        })
    }

    /// Starts the kernels from the features of `network` and `labels`, `[slot][support + queries]`, to the losses and
    /// the gradient of the features. `state` has the number of the step, which selects the slot, and the loss scale.
    pub fn record(
        &self,
        network: &Conv4Network,
        labels: &Buffer<u32>,
        state: &Buffer<TrainingState>,
    ) -> Result<()> {
        let launch = |kernel, grid, arguments: &[&dyn Argument]| {
            self.device.launch(Queue::Main, kernel, grid, arguments)
        };
        let (features, d_features) = (network.features(), network.feature_gradient());
        let PrototypeLoss { points, weights, d_logits, losses, d_points, .. } = self;
        let EpisodeShape { chunks, side, iterations, .. } = self.shape;
        let (classes, queries) = (self.shape.classes as usize, self.shape.queries as usize);
        let value = Value(self.shape);
        let means = Grid::new(classes, 64).rows((chunks as usize).div_ceil(64));
        launch("prototype_means", means, &[features, labels, points, state, &value])?;
        if iterations > 0 {
            let grid = Grid::new(classes, 256);
            launch("prototype_medians", grid, &[features, labels, points, weights, state, &value])?;
        }
        // Shared memory: partial distances of 8 warps, and the gradients of the logits, per class.
        let grid = Grid::new(queries, 256).shared(9 * classes * size_of::<f32>());
        let arguments: [&dyn Argument; 8] =
            [features, labels, points, d_logits, losses, d_features, state, &value];
        launch("query_losses", grid, &arguments)?;
        let grid = Grid::new(classes, 256).rows((side * side) as usize);
        let arguments: [&dyn Argument; 8] =
            [features, labels, points, d_logits, d_points, d_features, state, &value];
        launch("prototype_gradients", grid, &arguments)?;
        if iterations > 0 {
            let PrototypeLoss { d_weights, d_items, .. } = self;
            let arguments: [&dyn Argument; 10] =
                [features, labels, points, weights, d_points, d_weights, d_items, d_features, state, &value];
            launch("median_gradients", Grid::new(classes, 256), &arguments)?;
        }
        Ok(())
    }
}
