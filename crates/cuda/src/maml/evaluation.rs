//! Adaptation of a trained MAML to tasks, and classification of their queries, as in validation and at test
//! ([`MamlEvaluation`]). The kernels are those of training, without gradients of the queries.

use trueshot_nn::conv4::Shape;
use trueshot_nn::maml::{Adaptation, GradientOrder, ModelSize, layout};

use super::largest_group;
use super::memory::{GroupMemory, GroupSize};
use super::pass::Group;
use crate::conv4::network::check_shared_memory;
use crate::conv4::optimiser::TrainingState;
use crate::conv4::{
    Conv4State, DeviceImages, ImageFeed, ImageRequest, SMALLEST_SCALE, STEP_SLOTS, StepImages,
};
use crate::driver::{Argument, Buffer, Device, Graph, Grid, Queue, Value};
use crate::error::Result;

/// A task: a support set and queries.
#[derive(Debug, Clone)]
pub struct MamlTask {
    /// The given class of each support item.
    pub given: Vec<u32>,
    /// Support items, then queries.
    pub images: Vec<ImageRequest>,
}

/// The sizes of tasks, and how the network is adapted to them.
#[derive(Debug, Clone, Copy)]
pub struct EvaluationOptions {
    /// The shape of the images and the number of classes.
    pub size: ModelSize,
    /// Support items per task.
    pub support: usize,
    /// Queries per task.
    pub queries: usize,
    /// The number of tasks in a typical call of [`MamlEvaluation::logits`], 1 or more. Up to eight of them run at once,
    /// fewer if the GPU runs out of memory.
    pub tasks: usize,
    /// The gradient descent on the support sets.
    pub adaptation: Adaptation,
}

/// Adapts MAML's network to tasks of images that stay on the device, several at once.
pub struct MamlEvaluation {
    device: Device,
    options: EvaluationOptions,
    memory: GroupMemory,
    /// Tasks that run at once.
    at_once: usize,
    feed: ImageFeed,
    /// `[slot][task][support + queries]`; results do not depend on the labels of queries.
    labels: Buffer<u32>,
    /// Losses of the queries with respect to meaningless labels, which nothing reads; the kernels need the memory.
    losses: Buffer<f32>,
    /// The means of these losses, `[slot]`.
    mean_losses: Buffer<f32>,
    /// `[task][queries][ways]`
    logits: Buffer<f32>,
    /// The initial parameters that tasks adapt.
    parameters: Buffer<f32>,
    /// The number of the step (one group of tasks) and the loss scale, one element.
    state: Buffer<TrainingState>,
    /// The recorded kernels of a step; `None` before the first call.
    graph: Option<Graph>,
}

impl MamlEvaluation {
    /// Memory for tasks of these sizes, whose images are among `images`.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::Error::OutOfMemory) if the activations of one task do not fit.
    ///
    /// # Panics
    /// If the shape is not possible, or there are no steps.
    pub fn new(device: &Device, options: EvaluationOptions, images: DeviceImages) -> Result<Self> {
        let EvaluationOptions { size, support, queries, tasks, adaptation } = options;
        assert!(size.shape.is_possible(), "{size:?}");
        assert!(adaptation.steps > 0, "an adaptation has steps");
        let group_size = |tasks| GroupSize {
            model: size,
            support,
            queries,
            steps: adaptation.steps,
            order: GradientOrder::First,
            tasks,
        };
        let (at_once, memory) = largest_group(device, tasks, group_size)?;
        let images_at_once = at_once * (support + queries);
        Ok(MamlEvaluation {
            device: device.clone(),
            memory,
            at_once,
            feed: ImageFeed::new(device, size.shape, images_at_once, Some(images))?,
            labels: device.zeros(STEP_SLOTS * images_at_once)?,
            losses: device.zeros(at_once * queries)?,
            mean_losses: device.zeros(STEP_SLOTS)?,
            logits: device.zeros(at_once * queries * size.ways)?,
            parameters: device.zeros(layout(size).len())?,
            state: device.zeros(1)?,
            options,
            graph: None,
        })
    }

    /// Checks that the GPU has the shared memory that a network on images of this shape needs.
    ///
    /// # Errors
    /// [`TooLarge`](crate::Error::TooLarge), which says how much is needed and how much there is.
    pub fn check(device: &Device, shape: Shape) -> Result<()> {
        check_shared_memory(device, shape, true)
    }

    /// The logits of the queries of every task, `[queries][ways]`, of a network with these initial parameters. They do
    /// not depend on earlier calls. `None` stands for a task whose activations or gradients exceed the range of 16-bit
    /// floats, or that ran together with such a task.
    ///
    /// # Errors
    /// [`Lost`](crate::Error::Lost) if the GPU stopped working.
    ///
    /// # Panics
    /// If `parameters` does not have the length of the layout, or a task does not have the numbers of labels and images
    /// that the options say.
    pub fn logits(&mut self, parameters: &[f32], tasks: &[MamlTask]) -> Result<Vec<Option<Vec<f32>>>> {
        assert_eq!(parameters.len(), self.parameters.len(), "parameters of this layout");
        self.parameters.write(0, parameters)?;
        let scale = Conv4State::default().scale;
        self.state.write(0, &[TrainingState { step: 0, updates: 0, scale, good_steps: 0, overflow: 0 }])?;
        if self.graph.is_none() {
            self.graph = Some(self.device.clone().capture(|| self.record())?);
        }
        let mut all = Vec::new();
        for (step, tasks) in tasks.chunks(self.at_once).enumerate() {
            self.write(step % STEP_SLOTS, tasks)?;
            if !self.launch(step as u32)? {
                all.extend(tasks.iter().map(|_| None));
                continue;
            }
            let logits = self.logits.read()?;
            let of_task = logits.chunks(self.options.queries * self.options.size.ways).take(tasks.len());
            let is_finite = |logits: &[f32]| logits.iter().all(|logit| logit.is_finite());
            all.extend(of_task.map(|logits| is_finite(logits).then(|| logits.to_vec())));
        }
        Ok(all)
    }

    /// Copies a group of tasks to its slot. A group that is not full repeats its last task.
    fn write(&mut self, slot: usize, tasks: &[MamlTask]) -> Result<()> {
        let EvaluationOptions { support, queries, .. } = self.options;
        let (mut labels, mut requests) = (Vec::new(), Vec::new());
        for number in 0..self.at_once {
            let task = &tasks[number.min(tasks.len() - 1)];
            let lengths = (task.given.len(), task.images.len());
            assert_eq!(lengths, (support, support + queries), "labels and images of one task");
            labels.extend_from_slice(&task.given);
            labels.resize(labels.len() + queries, 0);
            requests.extend_from_slice(&task.images);
        }
        self.labels.write(slot * labels.len(), &labels)?;
        self.feed.write(slot, std::iter::once(&StepImages::Requests(requests)))
    }

    /// Runs step number `step`, again with a smaller loss scale after an overflow. Returns whether there is a scale
    /// without an overflow.
    fn launch(&mut self, step: u32) -> Result<bool> {
        loop {
            self.graph.as_ref().expect("recorded before").launch()?;
            let state = self.state.read()?[0];
            if state.step > step {
                return Ok(true);
            }
            if state.scale < SMALLEST_SCALE {
                // The next group starts again with the scale of a new run.
                let state = TrainingState { step: step + 1, scale: Conv4State::default().scale, ..state };
                self.state.write(0, &[state])?;
                return Ok(false);
            }
        }
    }

    /// Starts all kernels of one step: adaptation, then the logits of the queries.
    fn record(&self) -> Result<()> {
        let EvaluationOptions { size, queries, adaptation, .. } = self.options;
        let group = Group {
            device: &self.device,
            memory: &self.memory,
            size,
            tasks: self.at_once,
            first_task: 0,
            of_step: self.at_once,
            labels: &self.labels,
            state: &self.state,
        };
        group.adapt_all(&self.feed, &self.parameters, adaptation)?;
        group.forward(&self.memory.queries)?;
        group.classify(&self.memory.queries, Some(&self.losses), Some(&self.logits))?;
        let count = Value((self.at_once * queries) as i32);
        let arguments: [&dyn Argument; 4] = [&self.losses, &count, &self.mean_losses, &self.state];
        self.device.launch(Queue::Main, "finish_meta_step", Grid::new(1, 32), &arguments)
    }
}
