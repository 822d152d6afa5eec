//! The memory of a group of tasks of MAML on the device. Every task has its own parameters, activations and gradients.
//!
//! All memory of a task is one contiguous piece, and that of the next task follows at a fixed distance, so one stride
//! moves all pointers of a kernel to another task (`of_task` in `kernels/common.cuh`). Addresses here are those of the
//! first task. [`Arena`] assigns them, and [`GroupMemory`] lists them.

use trueshot_nn::conv4::{BLOCKS, WIDTH, layout};
use trueshot_nn::maml::{GradientOrder, ModelSize, layout as maml_layout};

use crate::conv4::network::{
    Chunk, FIRST_FILTERS_LEN, POSITION_CHUNKS, check_shared_memory, filter_gradient_blocks,
    input_plane_margins, plane_len, plane_margins,
};
use crate::conv4::{FILTER_LEN, PATCH_LEN};
use crate::driver::{Address, Buffer, Device};
use crate::error::Result;

/// Assigns addresses one after the other. It does not allocate the memory.
struct Arena {
    /// The first address that is not assigned.
    next: u64,
}

/// The alignment of everything in an arena, which is enough for the widest loads.
const ALIGNMENT: u64 = 1024;

impl Arena {
    /// `len` values with `before` and `after` more values around them, which kernels may read and which stay zero.
    fn take_with_margin<T>(&mut self, len: usize, before: usize, after: usize) -> Address<T> {
        let size = size_of::<T>() as u64;
        let start = (self.next + before as u64 * size).next_multiple_of(ALIGNMENT);
        self.next = (start + (len + after) as u64 * size).next_multiple_of(ALIGNMENT);
        Address::new(start)
    }

    /// `len` values.
    fn take<T>(&mut self, len: usize) -> Address<T> {
        self.take_with_margin(len, 0, 0)
    }

    /// A plane of activations (`kernels/common.cuh`): 64 f16 channels per position, with zero margins.
    fn plane(&mut self, images: usize, side: usize) -> Address<Chunk> {
        let (before, after) = plane_margins(side);
        let len = plane_len(images, side) * POSITION_CHUNKS;
        self.take_with_margin(len, before * POSITION_CHUNKS, after * POSITION_CHUNKS)
    }
}

/// The parameters of a task at one step of its adaptation, and copies of the filters as the kernels read them.
#[derive(Clone, Copy)]
pub(super) struct Weights {
    /// Those of a Conv4, then the classifier.
    pub parameters: Address<f32>,
    /// The filters of blocks 2 to 4 in f16.
    pub filters: Address<u16>,
    /// The same transposed and flipped, for the gradient of the input.
    pub transposed: Address<u16>,
    /// The filters of block 1 in f16, in the order of matrix instructions.
    pub first_filters: Address<[u32; 2]>,
    /// The filters of block 1 in f32, `[64][48]`.
    pub first_weights: Address<f32>,
}

impl Weights {
    fn new(arena: &mut Arena, size: ModelSize) -> Self {
        Weights {
            parameters: arena.take(maml_layout(size).len()),
            filters: arena.take(3 * FILTER_LEN),
            transposed: arena.take(3 * FILTER_LEN),
            first_filters: arena.take(FIRST_FILTERS_LEN),
            first_weights: arena.take(WIDTH * PATCH_LEN),
        }
    }
}

/// The planes of block 2, 3 or 4: `z` is the output of the convolution, `y` that of the block and `normalised` its
/// value before gamma and beta (NaN where the ReLU is inactive); `dz` and `dy` are gradients.
#[derive(Clone, Copy)]
pub(super) struct BlockPlanes {
    pub z: Address<Chunk>,
    pub dz: Address<Chunk>,
    pub y: Address<Chunk>,
    pub normalised: Address<Chunk>,
    pub dy: Address<Chunk>,
}

impl BlockPlanes {
    fn new(arena: &mut Arena, images: usize, side: usize) -> Self {
        BlockPlanes {
            z: arena.plane(images, side),
            dz: arena.plane(images, side),
            y: arena.plane(images, side / 2),
            normalised: arena.plane(images, side / 2),
            dy: arena.plane(images, side / 2),
        }
    }
}

/// Sums over the pixels of a pass, fixed-point numbers that are zero before it.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    /// `[block][sum of z, sum of z²][channel]` of blocks 2 to 4.
    pub forward: Address<i64>,
    /// `[block][sum of dy, sum of dy x][channel]` of blocks 2 to 4, where x is the normalised value.
    pub backward: Address<i64>,
    /// `[64][48]`: the gradient of block 1, as sums of dy times patch values.
    pub d_patches: Address<i64>,
}

/// The length of `forward`, and of `backward`.
const NORM_SUMS_LEN: usize = 3 * 2 * WIDTH;
/// The length of all sums of a pass.
const SUMS_LEN: usize = 2 * NORM_SUMS_LEN + WIDTH * PATCH_LEN;

impl Sums {
    fn new(arena: &mut Arena) -> Self {
        let start = arena.take::<i64>(SUMS_LEN);
        let (backward, d_patches) = (start.plus(NORM_SUMS_LEN), start.plus(2 * NORM_SUMS_LEN));
        Sums { forward: start, backward, d_patches }
    }
}

/// Everything that a forward and a backward pass compute, except the sums.
#[derive(Clone, Copy)]
pub(super) struct Activations {
    /// The output of block 1, a plane.
    pub y1: Address<Chunk>,
    /// The gradient of `y1`.
    pub dy1: Address<Chunk>,
    /// Blocks 2 to 4.
    pub blocks: [BlockPlanes; 3],
    /// `[4][64]`: scale, shift, mean and 1 / std of block 1.
    pub norm: Address<f32>,
    /// `[64][48]`: the product of the filters of block 1 and the moments of the patches.
    pub weighted: Address<f32>,
    /// `[images][ways]`
    pub d_logits: Address<f32>,
}

impl Activations {
    fn new(arena: &mut Arena, size: ModelSize, images: usize) -> Self {
        let first_side = size.shape.side(1);
        Activations {
            y1: arena.plane(images, first_side),
            dy1: arena.plane(images, first_side),
            blocks: std::array::from_fn(|block| BlockPlanes::new(arena, images, size.shape.side(block + 1))),
            norm: arena.take(4 * WIDTH),
            weighted: arena.take(WIDTH * PATCH_LEN),
            d_logits: arena.take(images * size.ways),
        }
    }
}

/// Images that are passed through the network together: the support set or the queries of a task.
#[derive(Clone, Copy)]
pub(super) struct ImageSet {
    /// The number of images.
    pub count: usize,
    /// The index of the first image of the set among those of the task.
    pub first: usize,
    /// The images, a plane with four f16 per position.
    pub plane: Address<[u32; 2]>,
    /// `[48][48]`: second moments of the patches (the 48 values around a pixel that block 1 reads), sums of products of
    /// two values.
    pub moments: Address<i64>,
}

/// The memory that one pass reads and writes.
#[derive(Clone, Copy)]
pub(super) struct PassMemory {
    pub images: ImageSet,
    pub weights: Weights,
    pub activations: Activations,
    pub sums: Sums,
}

/// The sizes that the memory depends on.
#[derive(Debug, Clone, Copy)]
pub(super) struct GroupSize {
    pub model: ModelSize,
    /// Support items per task.
    pub support: usize,
    /// Queries per task.
    pub queries: usize,
    /// Steps of the adaptation.
    pub steps: usize,
    pub order: GradientOrder,
    /// Tasks that run at once.
    pub tasks: usize,
}

/// The memory of a group of tasks that run at once. All addresses are those of the first task.
pub(super) struct GroupMemory {
    /// The memory that all addresses point to; `None` while only its length is computed.
    _buffer: Option<Buffer<u8>>,
    /// Bytes from one task to the next.
    pub stride: u64,
    /// The number of tasks that the memory holds.
    pub tasks: usize,
    /// The input plane of a task: the support images, then those of the queries.
    pub images: Address<[u32; 2]>,
    /// The passes over the support set, one per step of the adaptation.
    pub steps: Vec<PassMemory>,
    /// The pass over the queries with the adapted parameters.
    pub queries: PassMemory,
    /// Tangents (directional derivatives) of the passes over the support set (`kernels/tangent.cu`). Their weights hold
    /// the direction. Empty for first-order gradients. The steps share all memory but the sums.
    pub tangents: Vec<PassMemory>,
    /// Partial gradients of the filters of blocks 2 to 4 in one pass, one per thread block, see `FilterPartials` in
    /// `conv4::network`.
    pub partials: Address<f32>,
    /// The gradient of the queries' loss: after the query pass with respect to the adapted parameters, then with every
    /// step back to those before it, and finally to the initial ones.
    pub gradients: Address<f32>,
    /// `[steps + 1]`: the largest absolute value of the gradients after the query pass, then after each step back, as
    /// the bits of an f32.
    pub maxima: Address<u32>,
    /// The 64-bit words that are set to zero before the first pass of a group: the first one, and their number.
    pub cleared: (Address<u64>, usize),
}

impl GroupMemory {
    /// Memory for `size.tasks` tasks, all zero.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::Error::OutOfMemory) if it does not fit, [`TooLarge`](crate::Error::TooLarge) if the
    /// images need more shared memory than the GPU has.
    pub fn new(device: &Device, size: GroupSize) -> Result<Self> {
        check_shared_memory(device, size.model.shape, true)?;
        // Assigns addresses twice: first to find the length of a task's memory, then in the allocated memory.
        let stride = Self::at(0, device, size).stride;
        // `stride` was computed for a start at a multiple of `ALIGNMENT`; the additional bytes make one possible.
        let buffer = device.zeros::<u8>(stride as usize * size.tasks + ALIGNMENT as usize)?;
        let start = buffer.address().next_multiple_of(ALIGNMENT);
        Ok(GroupMemory { _buffer: Some(buffer), stride, ..Self::at(start, device, size) })
    }

    /// The addresses of memory that starts at `start`, without the memory itself.
    fn at(start: u64, device: &Device, size: GroupSize) -> Self {
        let arena = &mut Arena { next: start };
        let GroupSize { model, support, queries, steps, order, tasks } = size;
        let image_size = model.shape.size;
        // Everything from here to the end of the maxima is set to zero before the first pass of a group.
        let cleared = arena.take::<u64>(0);
        let moments: [Address<i64>; 2] = std::array::from_fn(|_| arena.take(PATCH_LEN * PATCH_LEN));
        let sums: Vec<Sums> = (0..=steps).map(|_| Sums::new(arena)).collect();
        let tangent_steps = if order == GradientOrder::Second { steps } else { 0 };
        let tangent_sums: Vec<Sums> = (0..tangent_steps).map(|_| Sums::new(arena)).collect();
        let maxima = arena.take::<u32>(steps + 1);
        let cleared_len = (arena.next - cleared.address()) as usize / size_of::<u64>();
        // The images of a task: support set, then queries, in one plane.
        let (before, after) = input_plane_margins(image_size);
        let plane = arena.take_with_margin(plane_len(support + queries, image_size), before, after);
        let support_set = ImageSet { count: support, first: 0, plane, moments: moments[0] };
        let query_plane = plane.plus(plane_len(support, image_size));
        let query_set = ImageSet { count: queries, first: support, plane: query_plane, moments: moments[1] };
        // Second-order gradients need the activations and weights of all steps. First-order gradients need one set of
        // activations and two of weights: step k reads k % 2 and writes (k + 1) % 2.
        let (activation_sets, weight_sets) = match order {
            GradientOrder::First => (1, 2),
            GradientOrder::Second => (steps, steps + 1),
        };
        let activations: Vec<Activations> =
            (0..activation_sets).map(|_| Activations::new(arena, model, support)).collect();
        let weights: Vec<Weights> = (0..weight_sets).map(|_| Weights::new(arena, model)).collect();
        // The pass of a step reads the weights that the step before it wrote; the queries read those of the last step.
        let step = |step: usize| PassMemory {
            images: support_set,
            weights: weights[step % weight_sets],
            activations: activations[step % activation_sets],
            sums: sums[step],
        };
        let query_pass = PassMemory {
            images: query_set,
            weights: weights[steps % weight_sets],
            activations: Activations::new(arena, model, queries),
            sums: sums[steps],
        };
        let tangents = if tangent_sums.is_empty() {
            Vec::new()
        } else {
            let (weights, activations) =
                (Weights::new(arena, model), Activations::new(arena, model, support));
            let tangent = |sums| PassMemory { images: support_set, weights, activations, sums };
            tangent_sums.into_iter().map(tangent).collect()
        };
        // Partial gradients of a pass: one per thread block, of the filters of blocks 2 to 4.
        let blocks = |images: usize| -> usize {
            (0..BLOCKS - 1)
                .map(|block| filter_gradient_blocks(device, model.shape, images, block, tasks).0)
                .sum()
        };
        let partials = arena.take(blocks(support).max(blocks(queries)) * FILTER_LEN);
        let gradients = arena.take(maml_layout(model).len());
        GroupMemory {
            _buffer: None,
            stride: arena.next - start,
            tasks,
            images: plane,
            steps: (0..steps).map(step).collect(),
            queries: query_pass,
            tangents,
            partials,
            gradients,
            maxima,
            cleared: (cleared, cleared_len),
        }
    }

    /// A copy of values in the memory of a task.
    #[cfg(all(test, any(feature = "emulator", feature = "gpu-tests")))]
    pub fn read<T: bytemuck::Pod>(&self, task: usize, address: Address<T>, len: usize) -> Result<Vec<T>> {
        let buffer = self._buffer.as_ref().expect("allocated by `new`");
        let start = (address.address() - buffer.address()) as usize + task * self.stride as usize;
        let mut values = vec![T::zeroed(); len];
        buffer.read_into(start, bytemuck::cast_slice_mut(&mut values))?;
        Ok(values)
    }
}

/// The number of parameters before the classifier.
pub(super) fn conv4_len(size: ModelSize) -> usize {
    layout(size.shape.channels).len()
}
