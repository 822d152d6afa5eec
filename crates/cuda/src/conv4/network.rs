//! The memory and kernels of a Conv4 in training: four blocks of 3x3 convolution with 64 channels, batch norm, ReLU and
//! 2x2 max-pool.
//!
//! Start with [`Conv4Network`], which owns the parameters and the activations of up to `capacity` images. A [`Pass`]
//! starts the kernels for the images of one step: [`Pass::forward`], then [`Pass::backward`], then
//! [`Pass::collect_gradients`]. Between forward and backward, the caller's loss turns [`Conv4Network::features`] into
//! [`Conv4Network::feature_gradient`].
//!
//! Activations are planes (`kernels/common.cuh`): 64 f16 channels per position. An image of side x side pixels has
//! (side + 1)² positions, whose last row and column are zero. So every tap (weight) of a 3x3 filter is a constant shift
//! of the position, and images need no special case at their edges. Kernels work on tiles, a fixed number of
//! consecutive positions. Block 1, whose input has 1 or 3 channels, has its own kernels (`kernels/first_block.cu`);
//! lists of blocks such as `Conv4Network::blocks` start with block 2, which has index 0.
//!
//! Names: z is the output of a convolution, x the normalised value `(z - mean) / std`, and y the output of a block, the
//! maximum of `relu(gamma x + beta)` over a window of 2x2 pixels. `dz` and `dy` are gradients times the loss scale.
//! Sums over the pixels of a batch are fixed-point numbers, 64-bit integers with 20 fractional bits, so they do not
//! depend on the order in which thread blocks add to them.
//!
//! The structures with `repr(C)` are arguments of kernels, with the fields of the structures of the same name in
//! `kernels/`.

use bytemuck::{Pod, Zeroable};
use trueshot_nn::conv4::{BLOCKS, Shape, WIDTH, layout};

use super::prototypes::EpisodeShape;
use super::{FILTER_LEN, PATCH_LEN, TrainingState};
use crate::Divider;
use crate::driver::{Argument, Buffer, Device, Grid, Null, Queue, Value, check_shared};
use crate::error::Result;

/// Bytes from one patch (the 48 f16 around a pixel that block 1 reads) to the next in shared memory: 96, padded against
/// bank conflicts.
const PATCH_PITCH: usize = 112;
/// Bytes of shared memory of `patch_moments`: 32 patches for each of 8 warps.
pub(crate) const PATCH_MOMENTS_SHARED_LEN: usize = 8 * 32 * PATCH_PITCH;
/// Bytes of shared memory of `first_backward`: 8 KiB for the filters and norm of block 1, then for each of 8 warps 32
/// rows of gradients (64 f16) and 32 patches.
pub(crate) const FIRST_BACKWARD_SHARED_LEN: usize = 8192 + 8 * 32 * (128 + PATCH_PITCH);
/// Positions of a tile of `filter_gradient` (`GRADIENT_ROWS` in `kernels/filter_gradient.cu`).
pub(crate) const GRADIENT_ROWS: usize = 128;
/// Threads of a thread block of `filter_gradient`.
pub(crate) const GRADIENT_THREADS: u32 = 384;

/// The size of a convolution of blocks 2 to 4 (`kernels/convolution.cu`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct ConvolutionShape {
    /// Positions of all images.
    pub positions: i32,
    /// Height and width of an image in pixels.
    pub side: i32,
    /// Positions in shared memory from the inputs of one row of the filter to those of the next. A row of the filter
    /// needs as many positions as a tile has, and one more on either side. In images with shorter rows, the inputs of
    /// the three rows overlap. So the stride is the smaller of these positions and side + 1. [`ConvolutionTiles`] and
    /// the launches of the filter gradient set it.
    pub stride: i32,
    /// Divides by side + 1, the positions of a row.
    pub pitch: Divider,
}

impl ConvolutionShape {
    /// The size for `images` images of height and width `side`. The stride, which depends on the tiles, is still 0.
    pub fn new(images: usize, side: usize) -> Self {
        let positions = plane_len(images, side) as i32;
        ConvolutionShape { positions, side: side as i32, stride: 0, pitch: Divider::new(side + 1) }
    }
}

/// The size of batch norm, ReLU and pooling of blocks 2 to 4 (`kernels/batch_norm.cu`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct PoolShape {
    /// Height and width before pooling.
    pub side: i32,
    /// Windows per row and column that threads are started for: side / 2, rounded down in the forward pass, where a
    /// last odd row or column belongs to no window, and up in the backward pass, because the batch norm before the
    /// pooling has gradients there, too.
    pub windows: i32,
    /// Divides by `windows`.
    pub divider: Divider,
    /// Pixels per channel that the statistics of batch norm are taken over.
    pub count: f32,
}

impl PoolShape {
    /// The size for `images` images of height and width `side`, with threads for `windows` x `windows` windows.
    pub fn new(images: usize, side: usize, windows: usize) -> Self {
        PoolShape {
            side: side as i32,
            windows: windows as i32,
            divider: Divider::new(windows),
            count: (images * side * side) as f32,
        }
    }
}

/// The size of block 1 (`kernels/first_block.cu`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct FirstShape {
    pub images: i32,
    /// Height and width of an image.
    pub side: i32,
    /// Pooling windows per row and column: side / 2, rounded up for the moments of the patches, which also count the
    /// pixels of a last odd row or column.
    pub windows: i32,
    /// Divides by `windows`.
    pub divider: Divider,
}

impl FirstShape {
    /// The size for `images` images of height and width `side`, with `windows` x `windows` windows each.
    pub fn new(images: usize, side: usize, windows: usize) -> Self {
        FirstShape {
            images: images as i32,
            side: side as i32,
            windows: windows as i32,
            divider: Divider::new(windows),
        }
    }
}

/// The partial gradients of the filters of blocks 2 to 4, one per thread block of `filter_gradient`, which
/// `kernels/optimiser.cu` adds up.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct FilterPartials {
    /// Address of the partials of block 2, followed by those of blocks 3 and 4.
    pub first: u64,
    /// The number of partials of each block.
    pub counts: [i32; 3],
    pub padding: u32,
}

/// What a step has computed about batch norm, from which the optimiser computes the gradients and statistics of the
/// norms: addresses of `f32` or of fixed-point numbers (`i64`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(crate) struct NormSums {
    /// Sums of z and z² of blocks 2 to 4, `[3][2][64]` fixed point.
    pub sums: u64,
    /// Sums of dy and dy times x of blocks 2 to 4, `[3][2][64]` fixed point.
    pub d_sums: u64,
    /// Second moments of the patches of block 1, `[48][48]` fixed point.
    pub moments: u64,
    /// Sums of dy times patch values of block 1, `[64][48]` fixed point.
    pub d_patches: u64,
    /// Scale, shift, mean and 1 / std of block 1, `[4][64]`.
    pub norm: u64,
    /// The product of the filters of block 1 and the moments, `[64][48]`.
    pub weighted: u64,
    /// The filters of block 1, rounded to f16, `[64][48]`.
    pub weights: u64,
    /// Pixels per channel of blocks 1 to 4.
    pub counts: [f32; 4],
}

/// The 16-byte chunk of 8 channels that planes consist of: 8 f16.
pub(crate) type Chunk = [u32; 4];
/// Chunks of a position.
pub(crate) const POSITION_CHUNKS: usize = WIDTH / 8;

/// Buffers of block 2, 3 or 4, all of them planes.
struct Block {
    /// Height and width of the input and of the output of the convolution.
    side: usize,
    /// Output of the convolution.
    z: Buffer<Chunk>,
    /// The gradient of `z`.
    dz: Buffer<Chunk>,
    /// Output of the block, of height and width side / 2.
    y: Buffer<Chunk>,
    /// x at the maximum of each window: `y` before gamma and beta of batch norm; NaN where the ReLU is inactive.
    normalised: Buffer<Chunk>,
    /// The gradient of `y`.
    dy: Buffer<Chunk>,
}

/// Where the sums of dy and of dy times x of blocks 2 to 4 start in [`Conv4Network::sums`].
const D_SUMS: usize = 6 * WIDTH;
/// Where the moments of the patches start in [`Conv4Network::sums`].
const MOMENTS: usize = 12 * WIDTH;
/// Where the gradient of block 1 starts in [`Conv4Network::sums`].
const D_PATCHES: usize = MOMENTS + PATCH_LEN * PATCH_LEN;
/// The length of [`Conv4Network::sums`].
const SUMS_LEN: usize = D_PATCHES + WIDTH * PATCH_LEN;
/// Weights of the filters of block 1 as matrix instructions read them, in units of four f16: `[3 rows][8 groups of 8
/// output channels][32 lanes]`.
pub(crate) const FIRST_FILTERS_LEN: usize = 3 * 8 * 32;
/// Threads of `collect_gradients`: one per filter weight of blocks 2 to 4, 50 per channel of block 1 (its patch, gamma
/// and beta), and one per gamma and beta of blocks 2 to 4.
pub(crate) const GRADIENT_ELEMENTS: usize = 3 * FILTER_LEN + WIDTH * (PATCH_LEN + 2) + 6 * WIDTH;

/// The number of positions of a plane of `images` images of height and width `side`.
pub(crate) fn plane_len(images: usize, side: usize) -> usize {
    images * (side + 1) * (side + 1)
}

/// The numbers of positions of zeros that a plane of 64 channels has before its first and after its last image, because
/// kernels also read them: before, a row and a position, as far as a tap reaches; after, twice that and 512 more,
/// because kernels load whole tiles of up to 256 positions.
pub(crate) fn plane_margins(side: usize) -> (usize, usize) {
    let reach = side + 2;
    (reach, 2 * reach + 512)
}

/// The same for the input plane of block 1.
pub(crate) fn input_plane_margins(side: usize) -> (usize, usize) {
    let reach = side + 2;
    (2 * reach, 2 * reach + 512)
}

/// A plane of 64 channels for `images` images of height and width `side`, all zero.
pub(super) fn new_plane(device: &Device, images: usize, side: usize) -> Result<Buffer<Chunk>> {
    let (before, after) = plane_margins(side);
    let len = plane_len(images, side) * POSITION_CHUNKS;
    device.zeros_with_margin(len, before * POSITION_CHUNKS, after * POSITION_CHUNKS)
}

/// An input plane for `images` images of height and width `side`, all zero; see [`Conv4Network::image`].
pub(super) fn new_input_plane(device: &Device, images: usize, side: usize) -> Result<Buffer<[u32; 2]>> {
    let (before, after) = input_plane_margins(side);
    device.zeros_with_margin(plane_len(images, side), before, after)
}

/// The index of a block's first gamma in the parameters (block 0 to 3); its 64 gammas are followed by its betas.
/// `channels` are those of the images.
pub(crate) fn gamma_start(channels: usize, block: usize) -> usize {
    // Per block: filters, then bias, gamma, beta, running mean and running variance of 64 numbers each.
    let first_filters = 9 * WIDTH * channels;
    if block == 0 {
        first_filters + WIDTH
    } else {
        first_filters + 5 * WIDTH + (block - 1) * (FILTER_LEN + 5 * WIDTH) + FILTER_LEN + WIDTH
    }
}

/// A Conv4 on the device, with the memory of its training passes.
pub(crate) struct Conv4Network {
    device: Device,
    /// The shape of the images.
    shape: Shape,
    /// The largest number of images of a pass.
    capacity: usize,
    /// The input plane, with four f16 per position: up to three channels, and the constant 1.
    pub image: Buffer<[u32; 2]>,
    /// The parameters in f32, in the order of [`trueshot_nn::conv4::layout`].
    pub parameters: Buffer<f32>,
    /// The gradient of the last step, in the order of `parameters` and not multiplied by the loss scale.
    pub gradients: Buffer<f32>,
    /// Sums of squares of the gradients, one per thread block of `collect_gradients`.
    pub squares: Buffer<f64>,
    /// Fixed-point sums over the pixels of a step: for batch norm of blocks 2 to 4 the sums of z and z² `[3][2][64]`
    /// and of dy and dy times x `[3][2][64]`; the second moments of block 1's patches (sums of products of two of their
    /// values) `[48][48]`; and the gradient of block 1 as sums of dy times patch values `[64][48]`.
    sums: Buffer<i64>,
    /// Scale, shift, mean and 1 / std of block 1, `[4][64]`.
    norm: Buffer<f32>,
    /// The product of the filters of block 1 and the moments of the patches, `[64][48]`.
    weighted: Buffer<f32>,
    /// The filters of block 1 in f16, in the order of matrix instructions.
    pub(super) first_filters: Buffer<[u32; 2]>,
    /// The filters of block 1, rounded to f16, `[64][48]`.
    pub(super) first_weights: Buffer<f32>,
    /// The filters of blocks 2 to 4 in f16.
    pub(super) filters: Buffer<u16>,
    /// The same filters transposed and flipped, for the gradient of the input.
    pub(super) transposed: Buffer<u16>,
    /// Partial gradients of the filters of blocks 2 to 4, see [`FilterPartials`].
    partials: Buffer<f32>,
    /// The output of block 1, a plane.
    y1: Buffer<Chunk>,
    /// The gradient of `y1`.
    dy1: Buffer<Chunk>,
    /// Blocks 2 to 4.
    blocks: Vec<Block>,
}

impl Conv4Network {
    /// Memory for passes of up to `capacity` images. The parameters are zero until [`Conv4Network::load`].
    pub fn new(device: &Device, shape: Shape, capacity: usize) -> Result<Self> {
        assert!(shape.is_possible(), "{shape:?}");
        check_shared_memory(device, shape, true)?;
        let plane = |side: usize| new_plane(device, capacity, side);
        let mut blocks = Vec::new();
        for block in 1..BLOCKS {
            let side = shape.side(block);
            blocks.push(Block {
                side,
                z: plane(side)?,
                dz: plane(side)?,
                y: plane(side / 2)?,
                normalised: plane(side / 2)?,
                dy: plane(side / 2)?,
            });
        }
        let parameters = layout(shape.channels).len();
        Ok(Conv4Network {
            device: device.clone(),
            shape,
            capacity,
            image: new_input_plane(device, capacity, shape.size)?,
            parameters: device.zeros(parameters)?,
            gradients: device.zeros(parameters)?,
            squares: device.zeros(GRADIENT_ELEMENTS.div_ceil(256))?,
            sums: device.zeros(SUMS_LEN)?,
            norm: device.zeros(4 * WIDTH)?,
            weighted: device.zeros(WIDTH * PATCH_LEN)?,
            first_filters: device.zeros(FIRST_FILTERS_LEN)?,
            first_weights: device.zeros(WIDTH * PATCH_LEN)?,
            filters: device.zeros(3 * FILTER_LEN)?,
            transposed: device.zeros(3 * FILTER_LEN)?,
            // At most one per block and multiprocessor, see `filter_gradient_blocks`.
            partials: device.zeros(3 * device.multiprocessors() * FILTER_LEN)?,
            y1: plane(shape.size / 2)?,
            dy1: plane(shape.size / 2)?,
            blocks,
        })
    }

    /// Replaces the parameters.
    ///
    /// # Panics
    /// If there are not as many as the layout has.
    pub fn load(&mut self, parameters: &[f32]) -> Result<()> {
        assert_eq!(parameters.len(), self.parameters.len(), "parameters of this layout");
        self.parameters.write(0, parameters)?;
        let arguments: [&dyn Argument; 6] = [
            &self.parameters,
            &self.filters,
            &self.transposed,
            &self.first_filters,
            &self.first_weights,
            &Value(self.shape.channels as i32),
        ];
        self.device.launch(Queue::Main, "pack_filters", Grid::new(64, 256), &arguments)
    }

    /// The shape of the images.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The output of block 4, a plane.
    pub fn features(&self) -> &Buffer<Chunk> {
        &self.blocks[2].y
    }

    /// The gradient of the features times the loss scale, a plane. The loss fills it between forward and backward pass.
    pub fn feature_gradient(&self) -> &Buffer<Chunk> {
        &self.blocks[2].dy
    }

    /// The kernels for a step of `images` images.
    ///
    /// # Panics
    /// If there are more images than the capacity.
    pub fn pass(&self, images: usize) -> Pass<'_> {
        assert!(images <= self.capacity, "{images} of {} images", self.capacity);
        Pass { network: self, images }
    }
}

/// The kernels for the images of one step.
pub(crate) struct Pass<'a> {
    network: &'a Conv4Network,
    images: usize,
}

impl Pass<'_> {
    /// Launches a kernel on the main queue.
    fn launch(&self, kernel: &'static str, grid: Grid, arguments: &[&dyn Argument]) -> Result<()> {
        self.network.device.launch(Queue::Main, kernel, grid, arguments)
    }

    fn first_shape(&self, windows: usize) -> FirstShape {
        FirstShape::new(self.images, self.network.shape.size, windows)
    }

    fn gamma_start(&self, block: usize) -> usize {
        gamma_start(self.network.shape.channels, block)
    }

    /// Starts the kernels from the input plane to the features.
    pub fn forward(&self) -> Result<()> {
        let network = self.network;
        // The kernels of block 1 have one or two thread blocks per multiprocessor, which walk over the windows in a
        // loop.
        let (size, multiprocessors) = (network.shape.size, network.device.multiprocessors());
        network.device.clear(&network.sums)?;
        let pixels = (self.images * size * size) as f32;
        let gamma = |block: usize| network.parameters.at(self.gamma_start(block));
        let beta = |block: usize| network.parameters.at(self.gamma_start(block) + WIDTH);
        let moments = network.sums.at(MOMENTS);
        // Block 1: its batch statistics follow from the second moments of the input patches, so that its output before
        // pooling need not be stored.
        let grid = Grid::new(2 * multiprocessors, 256).shared(PATCH_MOMENTS_SHARED_LEN);
        self.launch(
            "patch_moments",
            grid,
            &[&network.image, &moments, &Value(self.first_shape(size.div_ceil(2)))],
        )?;
        let arguments: [&dyn Argument; 7] = [
            &moments,
            &network.first_weights,
            &gamma(0),
            &beta(0),
            &network.norm,
            &network.weighted,
            &Value(pixels),
        ];
        self.launch("first_statistics", Grid::new(1, 1024), &arguments)?;
        let first: [&dyn Argument; 5] = [
            &network.image,
            &network.first_filters,
            &network.norm,
            &network.y1,
            &Value(self.first_shape(size / 2)),
        ];
        self.launch("first_forward", Grid::new(multiprocessors, 256), &first)?;
        // Blocks 2 to 4: the convolution also sums z and z² for the batch norm.
        for (index, block) in network.blocks.iter().enumerate() {
            let input = if index == 0 { &network.y1 } else { &network.blocks[index - 1].y };
            let sums = network.sums.at(index * 2 * WIDTH);
            let filters = network.filters.at(index * FILTER_LEN);
            convolution(
                &network.device,
                Sums::Forward,
                ConvolutionShape::new(self.images, block.side),
                &[input, &filters, &block.z, &sums, &Null],
            )?;
            let pool = self.pool_shape(block.side, block.side / 2);
            let (gamma, beta) = (gamma(index + 1), beta(index + 1));
            let grid = pool_grid(pool).rows(self.images);
            let arguments: [&dyn Argument; 7] =
                [&block.z, &sums, &gamma, &beta, &block.y, &block.normalised, &Value(pool)];
            self.launch("pool_batch", grid, &arguments)?;
        }
        Ok(())
    }

    fn pool_shape(&self, side: usize, windows: usize) -> PoolShape {
        PoolShape::new(self.images, side, windows)
    }

    /// Starts the kernels from the gradient of the features to the sums that [`Pass::collect_gradients`] adds up. The
    /// gradients of the filters run on the side queue, beside the backward pass of the blocks below.
    pub fn backward(&self) -> Result<()> {
        let network = self.network;
        let (size, multiprocessors) = (network.shape.size, network.device.multiprocessors());
        let images = self.images;
        let side = network.shape.side(BLOCKS);
        let last = &network.blocks[2];
        let arguments: [&dyn Argument; 6] = [
            &last.normalised,
            &last.dy,
            // The two sums of block 4: those of blocks 2 and 3 come first.
            &network.sums.at(D_SUMS + 2 * 2 * WIDTH),
            &Value(images as i32),
            &Value(side as i32),
            &Value(Divider::new(side)),
        ];
        // One thread block per 128 pixels, but at most one per multiprocessor.
        let blocks = (images * side * side).div_ceil(128).min(multiprocessors);
        self.launch("sum_feature_gradients", Grid::new(blocks, 256), &arguments)?;
        for index in (0..3).rev() {
            let block = &network.blocks[index];
            let side = block.side;
            let pool = self.pool_shape(side, side.div_ceil(2));
            let sums = network.sums.at(index * 2 * WIDTH);
            let d_sums = network.sums.at(D_SUMS + index * 2 * WIDTH);
            let start = self.gamma_start(index + 1);
            let (gamma, beta) = (network.parameters.at(start), network.parameters.at(start + WIDTH));
            let arguments: [&dyn Argument; 8] =
                [&block.z, &sums, &d_sums, &gamma, &beta, &block.dy, &block.dz, &Value(pool)];
            self.launch("batch_norm_backward", pool_grid(pool).rows(images), &arguments)?;
            if images < network.capacity {
                // The filter gradient reads whole tiles. Earlier steps with more images may have left values after the
                // last image of this step.
                let (end, len) = (plane_len(images, side) * POSITION_CHUNKS, block.dz.len());
                let tile = GRADIENT_ROWS * POSITION_CHUNKS;
                network.device.clear_part(&block.dz, end, tile.min(len - end))?;
            }
            network.device.fork()?;
            // Input of the convolution, its gradient, and x of the previous block, for the sums of dy x.
            let (input, d_input, normalised): (_, _, &dyn Argument) = match index {
                0 => (&network.y1, &network.dy1, &Null),
                _ => {
                    let previous = &network.blocks[index - 1];
                    (&previous.y, &previous.dy, &previous.normalised)
                }
            };
            self.filter_gradient(index, input)?;
            let filters = network.transposed.at(index * FILTER_LEN);
            // Block 1 has no such sums, so for index 0 the address is not used.
            let previous_sums = network.sums.at(D_SUMS + index.saturating_sub(1) * 2 * WIDTH);
            let sums = if index == 0 { Sums::None } else { Sums::Backward };
            convolution(
                &network.device,
                sums,
                ConvolutionShape::new(images, side),
                &[&block.dz, &filters, d_input, &previous_sums, normalised],
            )?;
        }
        let arguments: [&dyn Argument; 6] = [
            &network.image,
            &network.first_filters,
            &network.norm,
            &network.dy1,
            &network.sums.at(D_PATCHES),
            &Value(self.first_shape(size / 2)),
        ];
        let grid = Grid::new(multiprocessors, 256).shared(FIRST_BACKWARD_SHARED_LEN);
        self.launch("first_backward", grid, &arguments)?;
        network.device.join()
    }

    /// [`filter_gradient_blocks`] of block 2 (0) to 4 (2).
    fn gradient_blocks(&self, block: usize) -> (usize, usize) {
        filter_gradient_blocks(&self.network.device, self.network.shape, self.images, block, 1)
    }

    /// Starts the kernel of the partial gradients of the filters of block 2 (0) to 4 (2), on the side queue.
    fn filter_gradient(&self, index: usize, input: &Buffer<Chunk>) -> Result<()> {
        let (network, block) = (self.network, &self.network.blocks[index]);
        let stride = (block.side + 1).min(GRADIENT_ROWS + 2);
        let shape =
            ConvolutionShape { stride: stride as i32, ..ConvolutionShape::new(self.images, block.side) };
        let shared = gradient_shared_len(block.side + 1);
        let (blocks, tiles) = self.gradient_blocks(index);
        // The partials of earlier blocks come first.
        let first: usize = (0..index).map(|earlier| self.gradient_blocks(earlier).0).sum();
        let partials = network.partials.at(first * FILTER_LEN);
        let grid = Grid::new(blocks, GRADIENT_THREADS).shared(shared);
        let arguments: [&dyn Argument; 5] =
            [input, &block.dz, &partials, &Value(tiles as i32), &Value(shape)];
        network.device.launch(Queue::Side, "filter_gradient", grid, &arguments)
    }

    /// The addresses of the sums for the optimiser.
    pub(super) fn norm_sums(&self) -> NormSums {
        let network = self.network;
        NormSums {
            sums: network.sums.address(),
            d_sums: network.sums.at(D_SUMS).address(),
            moments: network.sums.at(MOMENTS).address(),
            d_patches: network.sums.at(D_PATCHES).address(),
            norm: network.norm.address(),
            weighted: network.weighted.address(),
            weights: network.first_weights.address(),
            counts: std::array::from_fn(|block| (self.images * network.shape.side(block).pow(2)) as f32),
        }
    }

    /// Starts the kernel that adds up the gradients of the parameters, divides them by the loss scale, and sums their
    /// squares. It sets the overflow flag of `state` if a gradient is not finite.
    pub fn collect_gradients(&self, state: &Buffer<TrainingState>) -> Result<()> {
        let network = self.network;
        let counts = std::array::from_fn(|block| self.gradient_blocks(block).0 as i32);
        let partials = FilterPartials { first: network.partials.address(), counts, padding: 0 };
        let arguments: [&dyn Argument; 6] = [
            &Value(partials),
            &Value(self.norm_sums()),
            &network.gradients,
            &network.squares,
            state,
            &Value(network.shape.channels as i32),
        ];
        self.launch("collect_gradients", Grid::new(GRADIENT_ELEMENTS.div_ceil(256), 256), &arguments)
    }

    /// Copies the features to `out`, `[image][64][side][side]` f32.
    pub fn write_features(&self, out: &Buffer<f32>) -> Result<()> {
        let shape = EpisodeShape::of_features(self.network.shape);
        let grid = Grid::new((shape.chunks as usize).div_ceil(256), 256).rows(self.images);
        self.launch("write_features", grid, &[self.network.features(), out, &Value(shape)])
    }
}

/// The number of thread blocks of the filter gradient of block 2 (0) to 4 (2), and the tiles of each, for each of
/// `tasks` networks that run at the same time: several for the tasks of MAML, 1 otherwise.
///
/// All tasks together have at most one thread block per multiprocessor. A thread block has at least 6 tiles, or fewer
/// if that leaves fewer than 32 thread blocks: each of them writes a partial gradient that has to be added up.
pub(crate) fn filter_gradient_blocks(
    device: &Device,
    shape: Shape,
    images: usize,
    block: usize,
    tasks: usize,
) -> (usize, usize) {
    let tiles = plane_len(images, shape.side(block + 1)).div_ceil(GRADIENT_ROWS);
    let most_blocks = (device.multiprocessors() / tasks).max(1);
    let tiles_per_block = tiles.div_ceil(most_blocks).max(tiles.div_ceil(32).min(6));
    (tiles.div_ceil(tiles_per_block), tiles_per_block)
}

/// The sums that a convolution computes besides its output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sums {
    /// Of z and z² over all pixels, for batch norm.
    Forward,
    /// Of dy and dy times x over all windows with an active ReLU, for the gradient of batch norm.
    Backward,
    /// No sums.
    None,
}

/// How a convolution is split among thread blocks.
pub(crate) struct ConvolutionTiles {
    /// Positions of a tile: 128, or 256 for large planes without wgmma.
    pub rows: usize,
    /// The shape with the stride of the tiles.
    pub shape: ConvolutionShape,
    /// The thread blocks of all tasks.
    pub grid: Grid,
}

impl ConvolutionTiles {
    /// The tiles of each of `tasks` convolutions of this shape that run at the same time: several for the tasks of
    /// MAML, 1 otherwise.
    pub fn new(device: &Device, shape: ConvolutionShape, tasks: usize) -> Self {
        let multiprocessors = device.multiprocessors();
        let positions = shape.positions as usize;
        let pitch = shape.side as usize + 1;
        let wgmma = device.has_wgmma();
        let fits = convolution_shared_len(device, 256, pitch) <= device.shared_limit();
        // Larger tiles only if there is at least one for every multiprocessor.
        let is_large = !wgmma && fits && tasks * positions / 256 >= multiprocessors;
        let rows = if is_large { 256 } else { 128 };
        let stride = pitch.min(rows + 2);
        let shared = convolution_shared_len(device, rows, pitch);
        // Two thread blocks per multiprocessor if their shared memory, and 1 KiB that the driver reserves for each,
        // fits into the 227 KiB of a Hopper GPU.
        let per_multiprocessor = if wgmma && 2 * (shared + 1024) <= 227 << 10 { 2 } else { 1 };
        let blocks = positions.div_ceil(rows).min((per_multiprocessor * multiprocessors / tasks).max(1));
        let grid = Grid::new(blocks, 256).tasks(tasks).shared(shared);
        ConvolutionTiles { rows, shape: ConvolutionShape { stride: stride as i32, ..shape }, grid }
    }
}

/// Bytes of shared memory of a convolution with tiles of `rows` positions: the filters (2 bytes per weight), and one or
/// two tiles of the input (128 bytes per position), which include the rows above and below that the filters reach.
fn convolution_shared_len(device: &Device, rows: usize, pitch: usize) -> usize {
    let tiles = if device.has_wgmma() { 1 } else { 2 };
    FILTER_LEN * 2 + tiles * (rows + 2 + 2 * pitch.min(rows + 2)) * 128
}

/// Bytes of shared memory of the filter gradient: two tiles of the input and of the gradient, 128 bytes per position.
/// `pitch`: the positions of a row.
pub(crate) fn gradient_shared_len(pitch: usize) -> usize {
    2 * (2 * GRADIENT_ROWS + 2 + 2 * pitch.min(GRADIENT_ROWS + 2)) * 128
}

/// Checks that the GPU has the shared memory that a Conv4 on images of this shape needs, in training or for embedding
/// alone.
pub(crate) fn check_shared_memory(device: &Device, shape: Shape, is_training: bool) -> Result<()> {
    let pitch = shape.side(1) + 1;
    let limit = device.shared_limit();
    check_shared("the convolution", convolution_shared_len(device, 128, pitch), limit)?;
    if is_training {
        check_shared("the gradient of the filters", gradient_shared_len(pitch), limit)?;
    }
    Ok(())
}

/// Starts a convolution with the fastest kernel for the shape and the device. The arguments are input, filters, output,
/// sums, and the plane that [`Sums::Backward`] reads; the shape is added as the last argument.
pub(super) fn convolution(
    device: &Device,
    sums: Sums,
    shape: ConvolutionShape,
    arguments: &[&dyn Argument],
) -> Result<()> {
    let ConvolutionTiles { rows, shape, grid } = ConvolutionTiles::new(device, shape, 1);
    let kernel = match (sums, device.has_wgmma(), rows) {
        (Sums::Forward, true, _) => "convolution_forward_wgmma",
        (Sums::Backward, true, _) => "convolution_backward_wgmma",
        (Sums::None, true, _) => "convolution_wgmma",
        (Sums::Forward, false, 128) => "convolution_forward_128",
        (Sums::Forward, false, _) => "convolution_forward_256",
        (Sums::Backward, false, 128) => "convolution_backward_128",
        (Sums::Backward, false, _) => "convolution_backward_256",
        (Sums::None, false, 128) => "convolution_128",
        (Sums::None, false, _) => "convolution_256",
    };
    let shape = Value(shape);
    let arguments: Vec<&dyn Argument> = arguments.iter().copied().chain([&shape as &dyn Argument]).collect();
    device.launch(Queue::Main, kernel, grid, &arguments)
}

/// The grid for the windows of one image: a thread has one chunk (8 channels) of a window, so 256 threads have 32
/// windows.
pub(crate) fn pool_grid(shape: PoolShape) -> Grid {
    Grid::new((shape.windows as usize).pow(2).div_ceil(32), 256)
}
