//! A backbone and a head in training together on the GPU. The backbone, a Conv4, computes features from images. The
//! head, TraNFS or Relabel, turns the features of a support set with wrong labels into a classifier.
//!
//! Start with [`JointTraining`]. [`HeadTraining`] is the interface of the heads. One step does this:
//! 1. The backbone computes the features of the images of all episodes and writes them to [`HeadTraining::features`],
//!    centred and scaled to unit length if requested.
//! 2. The head computes its losses, and their gradients with respect to its parameters and to the features.
//! 3. The gradient of a second loss is added to that of the features: nearest prototypes on the true labels.
//! 4. The backward pass continues through the backbone.
//! 5. The head and the backbone are updated, each by its own kernels, after the gradient has been clipped by its norm
//!    over both. A running average of all parameters is updated, too.

mod inputs;
mod training;

pub use inputs::{JointEpisode, JointPart, JointStep};
pub use training::{JointOptions, JointState, JointTraining};

use bytemuck::{Pod, Zeroable};

use crate::driver::{Address, Buffer};
use crate::error::Result;

/// The state of the backbone that the update of a head depends on in joint training.
#[derive(Debug, Clone, Copy)]
pub struct BackboneUpdate {
    /// Where the device has a number that is not 0 if a gradient of the backbone overflowed: nothing is updated, and
    /// the step is repeated with the same inputs.
    pub overflow: Address<u32>,
    /// Sums of squares of the backbone's gradients of the mean loss, which are part of the norm for clipping.
    pub squares: Address<f64>,
    /// The number of these sums.
    pub square_count: usize,
}

/// [`BackboneUpdate`] as the kernels of the heads take it (`Backbone` in `kernels/relabel_optimiser.cu`,
/// `TranfsBackbone` in `kernels/tranfs_update.cu`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct BackboneArgument {
    overflow: u64,
    squares: u64,
    square_count: i32,
    padding: i32,
}

impl From<&BackboneUpdate> for BackboneArgument {
    fn from(backbone: &BackboneUpdate) -> Self {
        BackboneArgument {
            overflow: backbone.overflow.address(),
            squares: backbone.squares.address(),
            square_count: i32::try_from(backbone.square_count).expect("sizes are below 2^31"),
            padding: 0,
        }
    }
}

/// A head whose features a backbone computes in the same step.
///
/// The rows of a step are numbered in the order of the episodes: the support items of the first episode, its queries,
/// the support items of the second, and so on.
pub trait HeadTraining {
    /// The episodes of one step.
    type StepInput: for<'a> From<&'a JointStep>;
    /// The terms of the loss of one step, each the mean over the episodes.
    type StepLosses: Into<Vec<f32>>;

    /// The parameters.
    fn parameters(&self) -> &Buffer<f32>;

    /// The features of a step, `[row][dim]`. The backbone fills them before the losses are computed.
    fn features(&self) -> &Buffer<f32>;

    /// The gradient of the mean loss over the episodes with respect to [`HeadTraining::features`], `[row][dim]`.
    /// [`HeadTraining::record_losses`] overwrites the rows of the step.
    fn feature_gradient(&self) -> &Buffer<f32>;

    /// Copies the inputs of the next steps to the device. Returns true if buffers were reallocated, which makes graphs
    /// recorded before invalid.
    ///
    /// # Panics
    /// If there are more than [`STEP_SLOTS`](crate::conv4::STEP_SLOTS) steps, or an input is not consistent.
    fn prepare(&mut self, steps: &[Self::StepInput]) -> Result<bool>;

    /// Starts the kernels from the features to the losses, the gradients of the parameters and that of the features.
    fn record_losses(&self) -> Result<()>;

    /// The sums of squares of the parameter gradients of the mean loss, after [`HeadTraining::record_losses`]. Valid
    /// only if the head was made with clipping.
    fn squares(&self) -> &Buffer<f64>;

    /// Starts the kernels that update the parameters and advance to the next step. They do nothing if
    /// [`BackboneUpdate::overflow`] is set or the loss is not finite.
    fn record_update(&self, backbone: &BackboneUpdate) -> Result<()>;

    /// Waits for the device and returns the losses of the steps that were finished since the last call. The list ends
    /// with the first loss that is not finite, even if its step is not finished because of an overflow.
    fn finished_losses(&mut self) -> Result<Vec<Self::StepLosses>>;

    /// Parameters and state of the optimiser.
    fn weights(&self) -> Result<HeadWeights>;

    /// Replaces parameters and state of the optimiser.
    fn load_weights(&mut self, weights: &HeadWeights) -> Result<()>;
}

/// Parameters and state of the optimiser of a head.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct HeadWeights {
    /// The parameters.
    pub parameters: Vec<f32>,
    /// Running means of the gradients.
    pub first_moments: Vec<f32>,
    /// Running means of the squared gradients.
    pub second_moments: Vec<f32>,
    /// The number of updates so far.
    pub updates: u64,
}

#[cfg(all(test, any(feature = "emulator", feature = "gpu-tests")))]
mod tests;
