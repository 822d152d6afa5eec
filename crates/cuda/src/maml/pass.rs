//! Forward and backward passes of MAML for a [`Group`] of tasks that run at once, and the steps of their adaptation
//! (`kernels/tasks.cu`, `kernels/maml.cu`).
//!
//! Start with [`Group::adapt_all`], which adapts the parameters of all tasks to their support sets, and
//! [`Group::query_gradients`]. All methods start kernels and do not wait for them. A kernel works on all tasks of the
//! group: its arguments are addresses of the first task, and the stride, its last argument, leads to the next task.
//!
//! The kernels and their order within a pass (one forward and backward pass over the support set or the queries) are
//! those of `conv4::network`, which documents planes, patches and sums. As there, z is the output of a convolution, x
//! its normalised value, y the output of a block, and `d` stands for a gradient.

use bytemuck::{Pod, Zeroable};
use trueshot_nn::conv4::{BLOCKS, WIDTH};
use trueshot_nn::maml::{Adaptation, ModelSize};

use super::memory::{GroupMemory, PassMemory, Weights, conv4_len};
use crate::Divider;
use crate::conv4::network::{
    Chunk, ConvolutionShape, ConvolutionTiles, FIRST_BACKWARD_SHARED_LEN, FilterPartials, FirstShape,
    GRADIENT_ELEMENTS, GRADIENT_ROWS, GRADIENT_THREADS, NormSums, PATCH_MOMENTS_SHARED_LEN, PoolShape,
    filter_gradient_blocks, gamma_start, gradient_shared_len, pool_grid,
};
use crate::conv4::optimiser::TrainingState;
use crate::conv4::{FILTER_LEN, ImageFeed, TaskImages};
use crate::driver::{Address, Argument, Buffer, Device, Grid, Null, Queue, Value};
use crate::error::Result;

/// The sizes of a pass (`MamlShape` in `kernels/maml.cu`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct MamlShape {
    /// Channels of the images.
    pub inputs: i32,
    /// The number of parameters before the classifier.
    pub conv4_len: i32,
    /// Classes of a task.
    pub ways: i32,
    /// Chunks of 8 channels of an image's features.
    pub chunks: i32,
    /// Height and width of the features.
    pub side: i32,
    /// Divides by `side`.
    pub by_side: Divider,
    /// Tasks of a step.
    pub tasks: i32,
    /// The number of the group's first task in the step.
    pub first_task: i32,
    /// Images of a task.
    pub images: i32,
    /// The index of the pass's first image in the task: 0 for the support set, its size for the queries.
    pub first_image: i32,
    /// Images of the pass, each of which is a row of the classifier's logits.
    pub rows: i32,
}

/// The planes that a convolution reads for its sums (`SumPlanes` in `kernels/convolution.cu`): addresses, 0 for none.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
pub(super) struct SumPlanes {
    /// The normalised values for backward sums, z for the forward sums of tangents.
    pub first: u64,
    /// The tangent of the normalised values, for the backward sums of tangents.
    pub tangent: u64,
    /// dy, for the backward sums of tangents.
    pub d: u64,
}

/// The addresses of the filters in [`Weights`] that are packed, that is, in the order in which the kernels read them
/// (`PackedFilters` in `kernels/maml.cu`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct PackedFilters {
    /// The filters of blocks 2 to 4.
    pub forward: u64,
    /// The same transposed and flipped.
    pub backward: u64,
    /// The filters of block 1, in f16.
    pub first: u64,
    /// The filters of block 1, in f32.
    pub first_weights: u64,
}

impl PackedFilters {
    /// The addresses in `weights`.
    pub fn new(weights: &Weights) -> Self {
        PackedFilters {
            forward: weights.filters.address(),
            backward: weights.transposed.address(),
            first: weights.first_filters.address(),
            first_weights: weights.first_weights.address(),
        }
    }
}

/// Everything from which the gradients of all parameters follow after a backward pass (`PassGradients` in
/// `kernels/maml.cu`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct PassGradients {
    pub partials: FilterPartials,
    pub sums: NormSums,
    /// Address of the features, a plane.
    pub features: u64,
    /// Address of the gradients of the logits.
    pub d_logits: u64,
}

/// The sums that a convolution computes besides its output, and whether it adds to the existing output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ConvolutionKind {
    /// With the sums of z and z² for batch norm.
    Forward,
    /// With the sums of dy and of dy times x for the gradient of batch norm.
    Backward,
    /// Without sums.
    Plain,
    /// Without sums, adds to the output.
    Added,
    /// Adds to the output, the tangent z' of z, with the sums of z' and z z' for the tangent of batch norm.
    AddedForward,
    /// Adds to the output, the tangent dy' of dy, with the sums of dy' and of (dy x)' = dy' x + dy x' for the tangent
    /// of the gradient of batch norm.
    AddedBackward,
}

impl ConvolutionKind {
    /// The names of the kernels: with wgmma, with tiles of 128 rows, and with tiles of 256 rows.
    fn kernels(self) -> [&'static str; 3] {
        match self {
            ConvolutionKind::Forward => [
                "task_convolution_forward_wgmma",
                "task_convolution_forward_128",
                "task_convolution_forward_256",
            ],
            ConvolutionKind::Backward => [
                "task_convolution_backward_wgmma",
                "task_convolution_backward_128",
                "task_convolution_backward_256",
            ],
            ConvolutionKind::Plain => {
                ["task_convolution_wgmma", "task_convolution_128", "task_convolution_256"]
            }
            ConvolutionKind::Added => {
                ["task_convolution_added_wgmma", "task_convolution_added_128", "task_convolution_added_256"]
            }
            ConvolutionKind::AddedForward => [
                "task_convolution_added_forward_wgmma",
                "task_convolution_added_forward_128",
                "task_convolution_added_forward_256",
            ],
            ConvolutionKind::AddedBackward => [
                "task_convolution_added_backward_wgmma",
                "task_convolution_added_backward_128",
                "task_convolution_added_backward_256",
            ],
        }
    }
}

/// The operands of a convolution.
pub(super) struct Convolution {
    pub kind: ConvolutionKind,
    /// A plane.
    pub input: Address<Chunk>,
    /// The packed filters of one block, forward or transposed.
    pub filters: Address<u16>,
    /// A plane.
    pub output: Address<Chunk>,
    /// Where the sums of the kind are added, `[2][64]`; `None` for kinds without sums.
    pub sums: Option<Address<i64>>,
    /// What the kernel reads to compute these sums, besides the output.
    pub planes: SumPlanes,
}

/// The number of threads of the kernels that update parameters: those for a Conv4, and one per weight and bias of the
/// classifier.
pub(super) fn element_count(size: ModelSize) -> usize {
    GRADIENT_ELEMENTS + (size.shape.features() + 1) * size.ways
}

/// A group of tasks that run at once.
#[derive(Clone, Copy)]
pub(super) struct Group<'a> {
    pub device: &'a Device,
    pub memory: &'a GroupMemory,
    pub size: ModelSize,
    /// Tasks in the group.
    pub tasks: usize,
    /// The number of the group's first task in the step.
    pub first_task: usize,
    /// Tasks in the step.
    pub of_step: usize,
    /// `[slot][task of the step][images]`
    pub labels: &'a Buffer<u32>,
    /// The number of the step, the loss scale and the overflow flag, one element.
    pub state: &'a Buffer<TrainingState>,
}

impl Group<'_> {
    /// Launches a kernel for all tasks; the stride is its last argument.
    pub fn launch(
        &self,
        queue: Queue,
        kernel: &'static str,
        grid: Grid,
        arguments: &[&dyn Argument],
    ) -> Result<()> {
        let stride = Value(self.memory.stride);
        let arguments: Vec<&dyn Argument> =
            arguments.iter().copied().chain([&stride as &dyn Argument]).collect();
        self.device.launch(queue, kernel, grid.tasks(self.tasks), &arguments)
    }

    /// Thread blocks per task so that all tasks together have `blocks`.
    pub fn blocks_per_task(&self, blocks: usize) -> usize {
        (blocks / self.tasks).max(1)
    }

    /// The sizes of a pass of this group.
    pub fn shape(&self, pass: &PassMemory) -> MamlShape {
        let side = self.size.shape.side(BLOCKS);
        MamlShape {
            inputs: self.size.shape.channels as i32,
            conv4_len: conv4_len(self.size) as i32,
            ways: self.size.ways as i32,
            chunks: (side * side * 8) as i32,
            side: side as i32,
            by_side: Divider::new(side),
            tasks: self.of_step as i32,
            first_task: self.first_task as i32,
            images: (self.memory.steps[0].images.count + self.memory.queries.images.count) as i32,
            first_image: pass.images.first as i32,
            rows: pass.images.count as i32,
        }
    }

    /// The grid of the kernels that work on parameters, for one task.
    pub fn element_grid(&self) -> Grid {
        Grid::new(element_count(self.size).div_ceil(256), 256)
    }

    /// Starts the kernels that set all sums to zero and the parameters of all tasks to the shared ones.
    pub fn begin(&self, shared: &Buffer<f32>) -> Result<()> {
        let (words, count) = self.memory.cleared;
        let grid = Grid::new(count.div_ceil(1024), 256);
        self.launch(Queue::Main, "task_clear", grid, &[&words, &Value(count as i32)])?;
        let first = self.memory.steps.first().unwrap_or(&self.memory.queries);
        let arguments: [&dyn Argument; 4] = [
            shared,
            &first.weights.parameters,
            &Value(PackedFilters::new(&first.weights)),
            &Value(self.shape(first)),
        ];
        self.launch(Queue::Main, "begin_tasks", self.element_grid(), &arguments)
    }

    /// Prepares the images of the tasks and adapts their parameters, from the shared ones.
    pub fn adapt_all(
        &self,
        feed: &ImageFeed,
        shared: &Buffer<f32>,
        Adaptation { rate, steps }: Adaptation,
    ) -> Result<()> {
        let images = TaskImages {
            first_task: self.first_task,
            tasks: self.tasks,
            images: self.memory.steps[0].images.count + self.memory.queries.images.count,
            stride: self.memory.stride,
        };
        feed.record_tasks(images, self.memory.images, self.state)?;
        self.begin(shared)?;
        self.record_patch_moments(&self.memory.steps[0])?;
        self.record_patch_moments(&self.memory.queries)?;
        (0..steps).try_for_each(|step| self.adapt(step, rate))
    }

    /// Starts the kernel of the second moments of the patches (the inputs of block 1 around each pixel), which depend
    /// on the images alone.
    pub fn record_patch_moments(&self, pass: &PassMemory) -> Result<()> {
        let size = self.size.shape.size;
        let blocks = self.blocks_per_task(2 * self.device.multiprocessors());
        let grid = Grid::new(blocks, 256).shared(PATCH_MOMENTS_SHARED_LEN);
        let shape = FirstShape::new(pass.images.count, size, size.div_ceil(2));
        let arguments: [&dyn Argument; 3] = [&pass.images.plane, &pass.images.moments, &Value(shape)];
        self.launch(Queue::Main, "task_patch_moments", grid, &arguments)
    }

    /// Starts a convolution over `images` images of height and width `side`, with the fastest kernel for its size and
    /// the device.
    pub fn convolve(
        &self,
        queue: Queue,
        images: usize,
        side: usize,
        convolution: &Convolution,
    ) -> Result<()> {
        let shape = ConvolutionShape::new(images, side);
        let ConvolutionTiles { rows, shape, grid } = ConvolutionTiles::new(self.device, shape, self.tasks);
        let [wgmma, rows_128, rows_256] = convolution.kind.kernels();
        let kernel = match (self.device.has_wgmma(), rows) {
            (true, _) => wgmma,
            (false, 128) => rows_128,
            (false, _) => rows_256,
        };
        let sums: &dyn Argument = convolution.sums.as_ref().map_or(&Null, |sums| sums);
        let Convolution { input, filters, output, planes, .. } = convolution;
        let arguments: [&dyn Argument; 6] = [input, filters, output, sums, &Value(*planes), &Value(shape)];
        self.launch(queue, kernel, grid, &arguments)
    }

    /// Gamma and beta of a block (0 to 3) in a vector of parameters.
    pub fn norm_parameters(&self, parameters: Address<f32>, block: usize) -> (Address<f32>, Address<f32>) {
        let start = gamma_start(self.size.shape.channels, block);
        (parameters.plus(start), parameters.plus(start + WIDTH))
    }

    /// Starts the kernels from the images of a pass to its features.
    pub fn forward(&self, pass: &PassMemory) -> Result<()> {
        let PassMemory { images, weights, activations, sums } = pass;
        let (shape, count) = (self.size.shape, images.count);
        let (gamma, beta) = self.norm_parameters(weights.parameters, 0);
        let pixels = (count * shape.size * shape.size) as f32;
        let arguments: [&dyn Argument; 7] = [
            &images.moments,
            &weights.first_weights,
            &gamma,
            &beta,
            &activations.norm,
            &activations.weighted,
            &Value(pixels),
        ];
        self.launch(Queue::Main, "task_first_statistics", Grid::new(1, 1024), &arguments)?;
        let first = FirstShape::new(count, shape.size, shape.size / 2);
        let grid = Grid::new(self.blocks_per_task(self.device.multiprocessors()), 256);
        let arguments: [&dyn Argument; 5] =
            [&images.plane, &weights.first_filters, &activations.norm, &activations.y1, &Value(first)];
        self.launch(Queue::Main, "task_first_forward", grid, &arguments)?;
        let mut input = activations.y1;
        for (index, block) in activations.blocks.iter().enumerate() {
            let (side, sums) = (shape.side(index + 1), sums.forward.plus(index * 2 * WIDTH));
            let convolution = Convolution {
                kind: ConvolutionKind::Forward,
                input,
                filters: weights.filters.plus(index * FILTER_LEN),
                output: block.z,
                sums: Some(sums),
                planes: SumPlanes::default(),
            };
            self.convolve(Queue::Main, count, side, &convolution)?;
            let pool = PoolShape::new(count, side, side / 2);
            let (gamma, beta) = self.norm_parameters(weights.parameters, index + 1);
            let arguments: [&dyn Argument; 7] =
                [&block.z, &sums, &gamma, &beta, &block.y, &block.normalised, &Value(pool)];
            self.launch(Queue::Main, "task_pool_batch", pool_grid(pool).rows(count), &arguments)?;
            input = block.y;
        }
        Ok(())
    }

    /// Starts the classifier: from the features of a pass to the gradients of logits and features. The losses
    /// `[images]` and logits `[images][ways]` of each task are written if buffers are given.
    pub fn classify(
        &self,
        pass: &PassMemory,
        losses: Option<&Buffer<f32>>,
        logits: Option<&Buffer<f32>>,
    ) -> Result<()> {
        let last = &pass.activations.blocks[2];
        let or_null = |buffer: Option<&Buffer<f32>>| buffer.map_or(Address::new(0), |buffer| buffer.at(0));
        // Shared memory: partial logits of 8 warps, and the gradients of the logits, per class.
        let grid = Grid::new(pass.images.count, 256).shared(9 * self.size.ways * size_of::<f32>());
        let arguments: [&dyn Argument; 9] = [
            &last.y,
            self.labels,
            &pass.weights.parameters,
            &pass.activations.d_logits,
            &last.dy,
            &or_null(losses),
            &or_null(logits),
            self.state,
            &Value(self.shape(pass)),
        ];
        self.launch(Queue::Main, "classify", grid, &arguments)
    }

    /// Starts the kernels from the gradient of the features to the sums that [`Group::gradients`] points to. The
    /// gradients of the filters run on the side queue, beside the backward pass of the blocks below.
    pub fn backward(&self, pass: &PassMemory) -> Result<()> {
        let PassMemory { images, weights, activations, sums } = pass;
        let (shape, count) = (self.size.shape, images.count);
        let last = &activations.blocks[2];
        let side = shape.side(BLOCKS);
        let arguments: [&dyn Argument; 6] = [
            &last.normalised,
            &last.dy,
            // The two sums of block 4: those of blocks 2 and 3 come first.
            &sums.backward.plus(2 * 2 * WIDTH),
            &Value(count as i32),
            &Value(side as i32),
            &Value(Divider::new(side)),
        ];
        let grid = Grid::new(self.feature_blocks(count), 256);
        self.launch(Queue::Main, "task_sum_feature_gradients", grid, &arguments)?;
        for index in (0..3).rev() {
            let (block, side) = (&activations.blocks[index], shape.side(index + 1));
            let pool = PoolShape::new(count, side, side.div_ceil(2));
            let (gamma, beta) = self.norm_parameters(weights.parameters, index + 1);
            let arguments: [&dyn Argument; 8] = [
                &block.z,
                &sums.forward.plus(index * 2 * WIDTH),
                &sums.backward.plus(index * 2 * WIDTH),
                &gamma,
                &beta,
                &block.dy,
                &block.dz,
                &Value(pool),
            ];
            self.launch(Queue::Main, "task_batch_norm_backward", pool_grid(pool).rows(count), &arguments)?;
            self.device.fork()?;
            let previous = index.checked_sub(1).map(|previous| &activations.blocks[previous]);
            let input = previous.map_or(activations.y1, |block| block.y);
            self.filter_gradient(count, index, [input, block.dz], None)?;
            let convolution = Convolution {
                kind: if index == 0 { ConvolutionKind::Plain } else { ConvolutionKind::Backward },
                input: block.dz,
                filters: weights.transposed.plus(index * FILTER_LEN),
                output: previous.map_or(activations.dy1, |block| block.dy),
                sums: previous.map(|_| sums.backward.plus((index - 1) * 2 * WIDTH)),
                planes: SumPlanes {
                    first: previous.map_or(0, |block| block.normalised.address()),
                    ..SumPlanes::default()
                },
            };
            self.convolve(Queue::Main, count, side, &convolution)?;
        }
        self.first_backward(pass, activations.dy1, sums.d_patches)?;
        self.device.join()
    }

    /// Thread blocks per task of the sums over the pixels of the features: one per 128 pixels, as far as there are
    /// multiprocessors.
    pub fn feature_blocks(&self, images: usize) -> usize {
        let pixels = images * self.size.shape.side(BLOCKS).pow(2);
        pixels.div_ceil(128).min(self.blocks_per_task(self.device.multiprocessors()))
    }

    /// Starts the backward pass of block 1: sums of the gradient of its output, `dy1`, times the patches, into
    /// `d_patches`.
    pub fn first_backward(
        &self,
        pass: &PassMemory,
        dy1: Address<Chunk>,
        d_patches: Address<i64>,
    ) -> Result<()> {
        let size = self.size.shape.size;
        let shape = FirstShape::new(pass.images.count, size, size / 2);
        let grid = Grid::new(self.blocks_per_task(self.device.multiprocessors()), 256)
            .shared(FIRST_BACKWARD_SHARED_LEN);
        let arguments: [&dyn Argument; 6] = [
            &pass.images.plane,
            &pass.weights.first_filters,
            &pass.activations.norm,
            &dy1,
            &d_patches,
            &Value(shape),
        ];
        self.launch(Queue::Main, "task_first_backward", grid, &arguments)
    }

    /// Starts the partial gradients of the filters of block 2 (`index` 0) to 4 (2), on the side queue. `pair` is the
    /// input of the convolution and the gradient of its output, two planes; with a `second` pair, the gradients of both
    /// pairs are added.
    pub fn filter_gradient(
        &self,
        images: usize,
        index: usize,
        pair: [Address<Chunk>; 2],
        second: Option<[Address<Chunk>; 2]>,
    ) -> Result<()> {
        let shape = self.size.shape;
        let side = shape.side(index + 1);
        let stride = (side + 1).min(GRADIENT_ROWS + 2);
        let convolution =
            Value(ConvolutionShape { stride: stride as i32, ..ConvolutionShape::new(images, side) });
        let blocks = |block| filter_gradient_blocks(self.device, shape, images, block, self.memory.tasks);
        let (count, tiles) = blocks(index);
        // The partials of earlier blocks come first.
        let first_partial: usize = (0..index).map(|earlier| blocks(earlier).0).sum();
        let partials = self.memory.partials.plus(first_partial * FILTER_LEN);
        let grid = Grid::new(count, GRADIENT_THREADS).shared(gradient_shared_len(side + 1));
        let addresses = |pair: [Address<Chunk>; 2]| Value(pair.map(|address| address.address()));
        let (first, tiles) = (addresses(pair), Value(tiles as i32));
        match second {
            None => {
                let arguments: [&dyn Argument; 4] = [&first, &partials, &tiles, &convolution];
                self.launch(Queue::Side, "task_filter_gradient", grid, &arguments)
            }
            Some(second) => {
                let second = addresses(second);
                let arguments: [&dyn Argument; 5] = [&first, &second, &partials, &tiles, &convolution];
                self.launch(Queue::Side, "task_filter_gradient_two", grid, &arguments)
            }
        }
    }

    /// The addresses of what the backward pass has computed, from which the gradients of the parameters follow.
    pub fn gradients(&self, pass: &PassMemory) -> PassGradients {
        let PassMemory { images, weights, activations, sums } = pass;
        let shape = self.size.shape;
        let blocks = |block| {
            filter_gradient_blocks(self.device, shape, images.count, block, self.memory.tasks).0 as i32
        };
        PassGradients {
            partials: FilterPartials {
                first: self.memory.partials.address(),
                counts: std::array::from_fn(blocks),
                padding: 0,
            },
            sums: NormSums {
                sums: sums.forward.address(),
                d_sums: sums.backward.address(),
                moments: images.moments.address(),
                d_patches: sums.d_patches.address(),
                norm: activations.norm.address(),
                weighted: activations.weighted.address(),
                weights: weights.first_weights.address(),
                counts: std::array::from_fn(|block| (images.count * shape.side(block).pow(2)) as f32),
            },
            features: activations.blocks[2].y.address(),
            d_logits: activations.d_logits.address(),
        }
    }

    /// Starts step number `step` of the adaptation of all tasks: the parameters of the next step (or of the query pass)
    /// are those of this step minus `rate` times the gradient of the support set's loss.
    pub fn adapt(&self, step: usize, rate: f32) -> Result<()> {
        let pass = &self.memory.steps[step];
        self.forward(pass)?;
        self.classify(pass, None, None)?;
        self.backward(pass)?;
        let next = self.memory.steps.get(step + 1).unwrap_or(&self.memory.queries).weights;
        let arguments: [&dyn Argument; 7] = [
            &Value(self.gradients(pass)),
            &pass.weights.parameters,
            &next.parameters,
            &Value(PackedFilters::new(&next)),
            &Value(rate),
            self.state,
            &Value(self.shape(pass)),
        ];
        self.launch(Queue::Main, "adapt_parameters", self.element_grid(), &arguments)
    }

    /// Starts the pass over the queries: their losses, and the gradient of each task's loss at the adapted parameters,
    /// in [`GroupMemory::gradients`].
    pub fn query_gradients(&self, losses: &Buffer<f32>) -> Result<()> {
        let pass = &self.memory.queries;
        self.forward(pass)?;
        self.classify(pass, Some(losses), None)?;
        self.backward(pass)?;
        let arguments: [&dyn Argument; 5] = [
            &Value(self.gradients(pass)),
            &self.memory.gradients,
            &self.memory.maxima,
            self.state,
            &Value(self.shape(pass)),
        ];
        self.launch(Queue::Main, "query_gradients", self.element_grid(), &arguments)
    }
}
