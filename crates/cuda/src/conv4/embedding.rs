//! Embedding of images with a trained Conv4: [`Conv4Embedding`].
//!
//! Batch norm uses the running statistics, so an embedding does not depend on the other images of the batch. The images
//! are bytes that already have the size of the network; one CUDA graph (recorded kernel launches) embeds a batch.
//! Activations are planes, which the module `network` describes: 64 channels per pixel, with margins of zeros between
//! images.

use trueshot_nn::conv4::{BLOCKS, EPSILON, Shape, WIDTH, layout};

use super::images::AugmentShape;
use super::network::{
    Chunk, ConvolutionShape, FIRST_FILTERS_LEN, FirstShape, PoolShape, Sums, check_shared_memory,
    convolution, new_input_plane, new_plane, pool_grid,
};
use super::prototypes::EpisodeShape;
use super::{FILTER_LEN, PATCH_LEN};
use crate::driver::{Argument, Buffer, Device, Graph, Grid, Null, Queue, Value};
use crate::error::Result;

/// A Conv4 that embeds batches of images on a GPU.
pub struct Conv4Embedding {
    device: Device,
    /// The shape of the images.
    shape: Shape,
    /// The largest number of images of a batch, which the graph always computes.
    images: usize,
    /// The input, `[image][row][column][channel]`.
    bytes: Buffer<u8>,
    /// The output, `[image][64][side][side]`.
    features: Buffer<f32>,
    graph: Graph,
    /// The other buffers that the graph uses.
    _memory: Memory,
}

/// The buffers of the network. Those without a comment are as in `Conv4Network`.
struct Memory {
    image: Buffer<[u32; 2]>,
    filters: Buffer<u16>,
    first_filters: Buffer<[u32; 2]>,
    /// Scale and shift of block 1, `[2][64]`, then the same number of unused values, which in training are mean and 1 /
    /// std.
    first_norm: Buffer<f32>,
    /// `[block][mean - bias, 1 / std, gamma, beta][64]` of blocks 2 to 4. The kernels compute convolutions without
    /// their biases, so a bias is subtracted from the running mean.
    norms: Buffer<f32>,
    /// The outputs of blocks 1 to 4, planes; the last one has the features.
    y: Vec<Buffer<Chunk>>,
    /// The outputs of the convolutions of blocks 2 to 4, planes.
    z: Vec<Buffer<Chunk>>,
}

impl Conv4Embedding {
    /// An embedder of batches of up to `images` images, with `parameters` in the layout of
    /// [`trueshot_nn::conv4::layout`]. `normalisation` is scale and shift of values in [0, 1], per channel.
    ///
    /// # Errors
    /// [`OutOfMemory`](crate::Error::OutOfMemory) if the batch does not fit.
    ///
    /// # Panics
    /// If the shape is not possible, or `parameters` has another length.
    pub fn new(
        device: &Device,
        shape: Shape,
        images: usize,
        parameters: &[f32],
        normalisation: [[f32; 2]; 3],
    ) -> Result<Self> {
        assert!(shape.is_possible() && images > 0, "{images} images of {shape:?}");
        check_shared_memory(device, shape, false)?;
        let memory = Memory::new(device, shape, images, parameters)?;
        let bytes = device.zeros(images * shape.pixels())?;
        let features = device.zeros(images * shape.features())?;
        let graph =
            device.capture(|| record(device, shape, images, &bytes, &features, &memory, normalisation))?;
        Ok(Conv4Embedding { device: device.clone(), shape, images, bytes, features, graph, _memory: memory })
    }

    /// Maximum number of images per batch.
    pub fn max_batch(&self) -> usize {
        self.images
    }

    /// The features, `[image][64][side][side]`, of images, `[image][row][column][channel]`.
    ///
    /// # Panics
    /// If there are more images than the embedder was made for, or a part of one.
    pub fn embed(&mut self, images: &[u8]) -> Result<Vec<f32>> {
        let count = images.len() / self.shape.pixels();
        assert!(
            count <= self.images && images.len() == count * self.shape.pixels(),
            "{} bytes",
            images.len()
        );
        self.bytes.write(0, images)?;
        self.graph.launch()?;
        let mut features = vec![0.0; count * self.shape.features()];
        self.features.read_into(0, &mut features)?;
        Ok(features)
    }

    /// Embeds the images of the last call again, without waiting or copying. For measurements.
    pub fn launch(&self) -> Result<()> {
        self.graph.launch()
    }

    /// Waits for the device.
    pub fn synchronise(&self) -> Result<()> {
        self.device.synchronise()
    }
}

/// Starts all kernels for one batch.
fn record(
    device: &Device,
    shape: Shape,
    images: usize,
    bytes: &Buffer<u8>,
    features: &Buffer<f32>,
    memory: &Memory,
    normalisation: [[f32; 2]; 3],
) -> Result<()> {
    let Shape { size, channels } = shape;
    let launch =
        |kernel, grid, arguments: &[&dyn Argument]| device.launch(Queue::Main, kernel, grid, arguments);
    // `pack_bytes` does not resample and has no slots of requests, so `taps` and `slot_len` are not used.
    let input = AugmentShape {
        size: size as i32,
        channels: channels as i32,
        taps: 0,
        slot_len: 0,
        scale: normalisation.map(|[scale, _]| scale),
        shift: normalisation.map(|[_, shift]| shift),
    };
    let grid = Grid::new((size * size).div_ceil(256), 256).rows(images);
    launch("pack_bytes", grid, &[bytes, &memory.image, &Value(input)])?;
    let first = FirstShape::new(images, size, size / 2);
    let arguments: [&dyn Argument; 5] =
        [&memory.image, &memory.first_filters, &memory.first_norm, &memory.y[0], &Value(first)];
    launch("first_forward", Grid::new(device.multiprocessors(), 256), &arguments)?;
    for block in 1..BLOCKS {
        let side = shape.side(block);
        let (x, z, y) = (&memory.y[block - 1], &memory.z[block - 1], &memory.y[block]);
        let filters = memory.filters.at((block - 1) * FILTER_LEN);
        let convolved = ConvolutionShape::new(images, side);
        convolution(device, Sums::None, convolved, &[x, &filters, z, &Null, &Null])?;
        let pool = PoolShape::new(images, side, side / 2);
        let norm = memory.norms.at((block - 1) * 4 * WIDTH);
        launch("pool_running", pool_grid(pool).rows(images), &[z, &norm, y, &Value(pool)])?;
    }
    let side = shape.side(BLOCKS);
    let episode = EpisodeShape::of_features(shape);
    let grid = Grid::new((side * side * 8).div_ceil(256), 256).rows(images);
    launch("write_features", grid, &[&memory.y[BLOCKS - 1], features, &Value(episode)])
}

impl Memory {
    /// Memory for batches of `images` images, with the filters and norms of `parameters`.
    fn new(device: &Device, shape: Shape, images: usize, parameters: &[f32]) -> Result<Self> {
        let (first_norm, norms) = folded_norms(shape, parameters);
        let plane = |side: usize| new_plane(device, images, side);
        let memory = Memory {
            image: new_input_plane(device, images, shape.size)?,
            filters: device.zeros(3 * FILTER_LEN)?,
            first_filters: device.zeros(FIRST_FILTERS_LEN)?,
            first_norm: device.upload(&first_norm)?,
            norms: device.upload(&norms)?,
            y: (1..=BLOCKS).map(|block| plane(shape.side(block))).collect::<Result<_>>()?,
            z: (1..BLOCKS).map(|block| plane(shape.side(block))).collect::<Result<_>>()?,
        };
        memory.pack_filters(device, shape, parameters)?;
        Ok(memory)
    }

    /// Copies the filters to the device in the order that the kernels read.
    fn pack_filters(&self, device: &Device, shape: Shape, parameters: &[f32]) -> Result<()> {
        let parameters = device.upload(parameters)?;
        let transposed = device.zeros::<u16>(3 * FILTER_LEN)?;
        let weights = device.zeros::<f32>(WIDTH * PATCH_LEN)?;
        let arguments: [&dyn Argument; 6] = [
            &parameters,
            &self.filters,
            &transposed,
            &self.first_filters,
            &weights,
            &Value(shape.channels as i32),
        ];
        device.launch(Queue::Main, "pack_filters", Grid::new(64, 256), &arguments)?;
        device.synchronise()
    }
}

/// Scale and shift of block 1, `[4][64]` with the last two unused, and `[mean - bias, 1 / std, gamma, beta][64]` of
/// each of blocks 2 to 4.
fn folded_norms(shape: Shape, parameters: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let layout = layout(shape.channels);
    assert_eq!(parameters.len(), layout.len(), "parameters of this layout");
    let values = |block: usize, name: &str| {
        let name = format!("block{}.{name}", block + 1);
        let tensor = layout.tensors().iter().find(|tensor| tensor.name == name).expect("a tensor of Conv4");
        &parameters[tensor.range.clone()]
    };
    let (mut first, mut norms) = (vec![0.0; 4 * WIDTH], Vec::new());
    for block in 0..BLOCKS {
        let (gamma, beta) = (values(block, "norm.weight"), values(block, "norm.bias"));
        let (mean, var) = (values(block, "norm.running_mean"), values(block, "norm.running_var"));
        let centre: Vec<f32> = mean.iter().zip(values(block, "conv.bias")).map(|(m, b)| m - b).collect();
        let inverse_std: Vec<f32> = var.iter().map(|var| (var + EPSILON).sqrt().recip()).collect();
        if block == 0 {
            for c in 0..WIDTH {
                first[c] = gamma[c] * inverse_std[c];
                first[WIDTH + c] = beta[c] - centre[c] * first[c];
            }
        } else {
            [&centre[..], &inverse_std, gamma, beta].iter().for_each(|part| norms.extend_from_slice(part));
        }
    }
    (first, norms)
}
