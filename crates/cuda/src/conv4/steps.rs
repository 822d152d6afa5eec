//! [`StepRunner`] runs the training steps of a Conv4, NegMargin or MAML: their inputs are in ring buffers on the
//! device, and one CUDA graph is launched per step.
//!
//! A ring buffer has [`STEP_SLOTS`] slots; step n uses slot `n % STEP_SLOTS`. So the graph is the same for all steps:
//! its kernels compute the slot from the number of the step, which the device counts itself.

use trueshot_nn::adamw::AdamWConfig;
use trueshot_nn::conv4::Shape;

use super::images::{DeviceImages, ImageFeed};
use super::network::Conv4Network;
use super::optimiser::Conv4Optimiser;
use super::{Conv4State, STEP_SLOTS, StepInput};
use crate::driver::{Buffer, Device, Graph};
use crate::error::Result;

/// Divides the steps that follow the first `done` into parts with adjacent slots, so that each part can be written with
/// one copy. Returns the first slot of each part and its steps: one part, or two where the ring buffer wraps around.
pub(crate) fn adjacent_slots<T>(done: u32, steps: &[T]) -> impl Iterator<Item = (usize, &[T])> {
    let first = done as usize % STEP_SLOTS;
    let (before_end, after_end) = steps.split_at(steps.len().min(STEP_SLOTS - first));
    [(first, before_end), (0, after_end)].into_iter().filter(|(_, steps)| !steps.is_empty())
}

/// Copies the inputs of steps to the device and launches the graph of a step until all steps are finished. The methods
/// take a function `record` that starts the kernels of a step. It is called once to record the graph, so it must be the
/// same in every call.
pub(crate) struct StepRunner {
    device: Device,
    shape: Shape,
    /// Images per step.
    images: usize,
    /// The images of the steps.
    pub feed: ImageFeed,
    /// The class of each image, `[slot][image]`.
    pub labels: Buffer<u32>,
    pub optimiser: Conv4Optimiser,
    /// The recorded kernels of a step; `None` before the first step.
    graph: Option<Graph>,
    /// Steps that the device has finished.
    done: u32,
}

impl StepRunner {
    /// A runner of steps of `images` images of this shape, which come from `data_set` or with the steps, and an
    /// optimiser of `len` parameters with its hyperparameters and the largest norm of the gradient (0: no clipping).
    pub fn new(
        device: &Device,
        shape: Shape,
        len: usize,
        images: usize,
        (adamw, clip): (&AdamWConfig, f64),
        data_set: Option<DeviceImages>,
    ) -> Result<Self> {
        Ok(StepRunner {
            device: device.clone(),
            shape,
            images,
            feed: ImageFeed::new(device, shape, images, data_set)?,
            labels: device.zeros(STEP_SLOTS * images)?,
            optimiser: Conv4Optimiser::new(device, len, adamw, clip)?,
            graph: None,
            done: 0,
        })
    }

    /// Replaces the state of the optimiser.
    ///
    /// # Panics
    /// If a length is not that of the parameters.
    pub fn load(&mut self, state: &Conv4State) -> Result<()> {
        self.optimiser.load(state, self.done)
    }

    /// Runs steps and returns their losses. A loss that is not finite is the last one.
    ///
    /// # Panics
    /// If there are more than [`STEP_SLOTS`] steps, or an input has the wrong length or is of another kind than the
    /// run.
    pub fn run(&mut self, steps: &[StepInput], record: impl Fn(&Self) -> Result<()>) -> Result<Vec<f32>> {
        assert!(steps.len() <= STEP_SLOTS, "{} steps at a time", steps.len());
        // Images that the host prepared have memory for one step only, not for one per slot.
        let at_a_time = if self.feed.has_data_set() { STEP_SLOTS } else { 1 };
        let mut losses = Vec::new();
        for steps in steps.chunks(at_a_time) {
            self.write(steps)?;
            losses.extend(self.finish(steps.len(), &record)?);
            if losses.last().is_some_and(|loss| !loss.is_finite()) {
                break;
            }
        }
        Ok(losses)
    }

    /// Launches the graph of one step on the inputs that its slot has, and does not wait.
    pub fn launch(&mut self, record: impl Fn(&Self) -> Result<()>) -> Result<()> {
        self.graph(record)?.launch()
    }

    /// Starts the kernel that fills the input plane of the network with the images of the current step.
    pub fn record_images(&self, network: &Conv4Network) -> Result<()> {
        self.feed.record(self.images, &network.image, &self.optimiser.state)
    }

    /// Copies the inputs of the next steps to their slots: one copy per array, two where the ring buffer wraps around.
    pub fn write(&mut self, steps: &[StepInput]) -> Result<()> {
        adjacent_slots(self.done, steps).try_for_each(|(slot, steps)| self.write_adjacent(slot, steps))
    }

    /// Copies the inputs of steps to adjacent slots from number `slot` on.
    fn write_adjacent(&mut self, slot: usize, steps: &[StepInput]) -> Result<()> {
        let (mut labels, mut rates) = (Vec::new(), Vec::new());
        for step in steps {
            assert_eq!(step.labels.len(), self.images, "labels of one step");
            assert_eq!(step.images.count(self.shape), self.images, "images of one step");
            labels.extend_from_slice(&step.labels);
            rates.push(step.rate);
        }
        self.labels.write(slot * self.images, &labels)?;
        self.optimiser.rates.write(slot, &rates)?;
        self.feed.write(slot, steps.iter().map(|step| &step.images))
    }

    /// Launches graphs until `count` more steps are finished, and returns their losses.
    fn finish(&mut self, count: usize, record: impl Fn(&Self) -> Result<()>) -> Result<Vec<f32>> {
        self.graph(record)?;
        let graph = self.graph.as_ref().expect("just recorded");
        let (first, target) = (self.done, self.done + count as u32);
        self.done = self.optimiser.finish_steps(first, count, |_| graph.launch())?;
        self.optimiser.losses(first, self.done, target)
    }

    /// The graph of a step, which is recorded first if necessary.
    fn graph(&mut self, record: impl Fn(&Self) -> Result<()>) -> Result<&Graph> {
        if self.graph.is_none() {
            self.graph = Some(self.device.clone().capture(|| record(self))?);
        }
        Ok(self.graph.as_ref().expect("just set"))
    }
}
