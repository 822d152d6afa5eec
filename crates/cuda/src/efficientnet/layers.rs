//! The layers of EfficientNet-Lite0 on the device: [`Stem`], [`Depthwise`], [`Pointwise`] and the mean
//! ([`record_mean`]). `new` copies the weights of a layer to the device in the order in which the kernels read them,
//! and `record` launches its kernel (`kernels/efficientnet.cu`, `kernels/efficientnet_pointwise.cu`). While a CUDA
//! graph is being recorded, the launch becomes part of the graph.
//!
//! Activations are `[image][row][column][channel]` in f16; a position is one pixel of an activation. ReLU6 clamps
//! values to [0, 6]. Convolutions are padded as in TensorFlow (`SAME`): `margin` is the number of zeros at the top and
//! left. The structures with `repr(C)` are arguments of kernels; a [`Divider`] in them divides by the number that it is
//! named after.

use bytemuck::{Pod, Zeroable};
use half::f16;
use trueshot_nn::efficientnet::{STEM, same_padding};

use crate::Divider;
use crate::driver::{Argument, Buffer, Device, Grid, Null, Queue, Value};
use crate::error::{Error, Result};

/// Channels in a [`Chunk`].
pub(super) const CHUNK_CHANNELS: usize = 8;
/// Adjacent channels of a position, as 16-bit floats.
pub(super) type Chunk = [u16; CHUNK_CHANNELS];

/// Threads of a block, except that of the mean.
const THREADS: u32 = 256;
/// Adjacent outputs of a row that one thread of the stem or of a depthwise convolution computes (`STRIP` in the
/// kernels).
const STRIP: usize = 4;
/// Positions that a thread block of a pointwise convolution computes at a time (`TILE_ROWS` in the kernels).
const TILE_ROWS: usize = 128;
/// Outputs of a pointwise convolution that form a group, in which their weights are permuted, see [`output_of_row`].
const GROUP: usize = 32;

/// Channels of an activation on the device: a multiple of 16, because a matrix instruction takes 16 inputs.
pub(super) fn padded(channels: usize) -> usize {
    channels.next_multiple_of(16)
}

/// The first convolution, 3x3 with stride 2, and ReLU6. It also normalises the bytes of the images.
pub(super) struct Stem {
    /// `[row, column, channel][output]`
    weights: Buffer<f32>,
    bias: Buffer<f32>,
    /// Height and width of the images.
    size: usize,
    /// Height and width of the output.
    pub side: usize,
    margin: usize,
    /// Scale and shift of the bytes per channel.
    normalisation: [[f32; 2]; 3],
}

/// The sizes of the stem for a batch (`StemShape` in `kernels/efficientnet.cu`).
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct StemShape {
    /// Threads with work: one per strip and 8 output channels.
    units: i32,
    /// Height and width of the images.
    size: i32,
    /// Height and width of the output.
    side: i32,
    margin: i32,
    /// By the strips of an output row.
    by_strips: Divider,
    by_side: Divider,
    // `byte * scale + shift` is a normalised value, per channel.
    scale: [f32; 3],
    shift: [f32; 3],
}

impl Stem {
    /// `weights` is `[output][channel][row][column]`; `byte * scale + shift` is a normalised value.
    pub fn new(
        device: &Device,
        size: usize,
        weights: &[f32],
        bias: &[f32],
        normalisation: [[f32; 2]; 3],
    ) -> Result<Self> {
        let (side, margin) = same_padding(size, 3, 2);
        // 27 taps: 3 rows, 3 columns and 3 channels. The device has the channels last: its tap
        // `3 (3 row + column) + channel` is tap `9 channel + 3 row + column` of `weights`.
        let taps = (0..27).flat_map(|tap| (0..STEM).map(move |output| (output, tap % 3 * 9 + tap / 3)));
        let weights: Vec<f32> = taps.map(|(output, tap)| weights[output * 27 + tap]).collect();
        let (weights, bias) = (device.upload(&weights)?, device.upload(bias)?);
        Ok(Stem { weights, bias, size, side, margin, normalisation })
    }

    /// From bytes, `[image][row][column][3]`, to activations of [`STEM`] channels.
    pub fn record(
        &self,
        device: &Device,
        images: usize,
        bytes: &Buffer<u8>,
        output: &Buffer<Chunk>,
    ) -> Result<()> {
        let strips = self.side.div_ceil(STRIP);
        let units = images * self.side * strips * (STEM / CHUNK_CHANNELS);
        let shape = StemShape {
            units: units as i32,
            size: self.size as i32,
            side: self.side as i32,
            margin: self.margin as i32,
            by_strips: Divider::new(strips),
            by_side: Divider::new(self.side),
            scale: self.normalisation.map(|[scale, _]| scale),
            shift: self.normalisation.map(|[_, shift]| shift),
        };
        let arguments: [&dyn Argument; 5] = [bytes, &self.weights, &self.bias, output, &Value(shape)];
        device.launch(Queue::Main, "efficientnet_stem", grid_of(units), &arguments)
    }
}

/// A depthwise convolution (one filter per channel) with ReLU6.
pub(super) struct Depthwise {
    /// `[tap][channel]`
    weights: Buffer<f32>,
    bias: Buffer<f32>,
    /// The name of the CUDA kernel for the size and stride of the filter.
    kernel_name: &'static str,
    channels: usize,
    /// Height and width of the input.
    side: usize,
    /// Height and width of the output.
    pub output_side: usize,
    margin: usize,
}

/// The sizes of a depthwise convolution for a batch (`DepthwiseShape` in `kernels/efficientnet.cu`).
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct DepthwiseShape {
    /// Threads with work: one per strip and 8 channels.
    units: i32,
    /// Height and width of the input.
    side: i32,
    /// Height and width of the output.
    outputs: i32,
    margin: i32,
    /// By the chunks of a position.
    by_chunks: Divider,
    /// By the strips of an output row.
    by_strips: Divider,
    /// By the height of the output.
    by_outputs: Divider,
}

impl Depthwise {
    /// `weights` is `[channel][row][column]` with `filter_side` rows and columns, for inputs of height and width `side`.
    pub fn new(
        device: &Device,
        filter_side: usize,
        stride: usize,
        side: usize,
        weights: &[f32],
        bias: &[f32],
    ) -> Result<Self> {
        let (output_side, margin) = same_padding(side, filter_side, stride);
        let (taps, channels) = (filter_side * filter_side, bias.len());
        assert!(channels % 16 == 0, "the number of channels must be a multiple of 16, got {channels}");
        let ordered: Vec<f32> = (0..taps)
            .flat_map(|tap| (0..channels).map(move |channel| weights[channel * taps + tap]))
            .collect();
        let kernel_name = match (filter_side, stride) {
            (3, 1) => "efficientnet_depthwise_3_1",
            (3, 2) => "efficientnet_depthwise_3_2",
            (5, 1) => "efficientnet_depthwise_5_1",
            (5, 2) => "efficientnet_depthwise_5_2",
            other => unreachable!("no kernel for a filter side and stride of {other:?}"),
        };
        let (weights, bias) = (device.upload(&ordered)?, device.upload(bias)?);
        Ok(Depthwise { weights, bias, kernel_name, channels, side, output_side, margin })
    }

    /// Launches the kernel for the activations of `images` images.
    pub fn record(
        &self,
        device: &Device,
        images: usize,
        input: &Buffer<Chunk>,
        output: &Buffer<Chunk>,
    ) -> Result<()> {
        let (strips, chunks) = (self.output_side.div_ceil(STRIP), self.channels / CHUNK_CHANNELS);
        let units = images * self.output_side * strips * chunks;
        let shape = DepthwiseShape {
            units: units as i32,
            side: self.side as i32,
            outputs: self.output_side as i32,
            margin: self.margin as i32,
            by_chunks: Divider::new(chunks),
            by_strips: Divider::new(strips),
            by_outputs: Divider::new(self.output_side),
        };
        let arguments: [&dyn Argument; 5] = [input, &self.weights, &self.bias, output, &Value(shape)];
        device.launch(Queue::Main, self.kernel_name, grid_of(units), &arguments)
    }
}

/// A pointwise convolution: a matrix product of all positions with weights `[output][input]`.
pub(super) struct Pointwise {
    /// `[packed output][input]` in f16, in the order of [`output_of_row`], with zeros beyond the outputs.
    weights: Buffer<Chunk>,
    bias: Buffer<f32>,
    /// Channels of the input, rounded up by [`padded`].
    inputs: usize,
    /// Channels of the output, rounded up by [`padded`].
    pub outputs: usize,
    has_relu6: bool,
    tiles: ColumnTiles,
}

/// The sizes of a pointwise convolution for a batch (`PointwiseShape` in `kernels/efficientnet_pointwise.cu`).
#[repr(C)]
#[derive(Clone, Copy, Pod, Zeroable)]
struct PointwiseShape {
    /// Positions of all images.
    rows: i32,
    /// Channels of the input, rounded up by [`padded`].
    inputs: i32,
    /// Channels of the output, rounded up by [`padded`].
    outputs: i32,
    /// 1 if ReLU6 follows, otherwise 0.
    has_relu6: i32,
}

/// How the outputs (channels of the output) of a pointwise convolution are divided among thread blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ColumnTiles {
    /// The name of the CUDA kernel for this width of a tile.
    kernel: &'static str,
    /// Outputs of a tile.
    columns: usize,
    /// The number of tiles.
    count: usize,
    /// Thread blocks that run on a multiprocessor at the same time, as in the launch bounds of the kernel.
    blocks_per_multiprocessor: usize,
}

impl ColumnTiles {
    /// The tiles for this number of outputs: the kernel with the fewest tiles, since each tile reads all inputs, and of
    /// several such kernels the one with the narrowest tiles.
    fn new(outputs: usize) -> Self {
        // Name, columns of a tile, and thread blocks per multiprocessor.
        let kernels = [
            ("efficientnet_pointwise_32", 32, 4),
            ("efficientnet_pointwise_64", 64, 3),
            ("efficientnet_pointwise_96", 96, 2),
            ("efficientnet_pointwise_128", 128, 2),
        ];
        let tiles = kernels.map(|(kernel, columns, blocks_per_multiprocessor)| {
            let count = outputs.div_ceil(columns);
            ColumnTiles { kernel, columns, count, blocks_per_multiprocessor }
        });
        tiles.into_iter().min_by_key(|tiles| (tiles.count, tiles.columns)).expect("there are kernels")
    }

    /// Outputs of all tiles together.
    fn len(self) -> usize {
        self.columns * self.count
    }
}

impl Pointwise {
    /// `weights` is `[output][input]`, and `inputs` the number of inputs, without padding.
    ///
    /// # Errors
    /// [`Error::WeightRange`] if a weight does not fit into a 16-bit float.
    pub fn new(
        device: &Device,
        inputs: usize,
        weights: &[f32],
        bias: &[f32],
        has_relu6: bool,
    ) -> Result<Self> {
        let outputs = bias.len();
        let (padded_inputs, padded_outputs) = (padded(inputs), padded(outputs));
        let tiles = ColumnTiles::new(padded_outputs);
        let mut packed = vec![0.0; tiles.len() * padded_inputs];
        for (row, packed) in packed.chunks_exact_mut(padded_inputs).enumerate() {
            let output = output_of_row(row);
            if output < outputs {
                packed[..inputs].copy_from_slice(&weights[output * inputs..][..inputs]);
            }
        }
        let mut bias = bias.to_vec();
        bias.resize(tiles.len(), 0.0);
        let (weights, bias) = (upload_halves(device, &packed)?, device.upload(&bias)?);
        Ok(Pointwise { weights, bias, inputs: padded_inputs, outputs: padded_outputs, has_relu6, tiles })
    }

    /// Launches the kernel. `rows` is the number of positions of all images; `residual` is added to the output.
    pub fn record(
        &self,
        device: &Device,
        rows: usize,
        input: &Buffer<Chunk>,
        residual: Option<&Buffer<Chunk>>,
        output: &Buffer<Chunk>,
    ) -> Result<()> {
        let ColumnTiles { kernel, columns, count, blocks_per_multiprocessor } = self.tiles;
        let shape = PointwiseShape {
            rows: rows as i32,
            inputs: self.inputs as i32,
            outputs: self.outputs as i32,
            has_relu6: i32::from(self.has_relu6),
        };
        // As many blocks as run at once, divided among the tiles of columns; each computes several tiles of rows, one
        // after the other.
        let at_once = blocks_per_multiprocessor * device.multiprocessors();
        let blocks = at_once.div_ceil(count).min(rows.div_ceil(TILE_ROWS));
        // Double buffering: each of two stages holds 64 inputs (128 bytes in f16) of every row and output of a tile.
        let grid = Grid::new(blocks, THREADS).rows(count).shared(2 * (TILE_ROWS + columns) * 128);
        let residual: &dyn Argument = residual.map_or(&Null, |residual| residual);
        let arguments: [&dyn Argument; 6] =
            [input, &self.weights, &self.bias, residual, output, &Value(shape)];
        device.launch(Queue::Main, kernel, grid, &arguments)
    }
}

/// The mean over the positions of each image: `[image][position][channel]` to `[image][channel]` in f32.
pub(super) fn record_mean(
    device: &Device,
    images: usize,
    positions: usize,
    channels: usize,
    input: &Buffer<Chunk>,
    output: &Buffer<f32>,
) -> Result<()> {
    let chunks = channels / CHUNK_CHANNELS;
    let grid = Grid::new(chunks.div_ceil(32), 32).rows(images);
    let arguments: [&dyn Argument; 4] = [input, output, &Value(positions as i32), &Value(chunks as i32)];
    device.launch(Queue::Main, "efficientnet_mean", grid, &arguments)
}

/// The output whose weights are in a row of the packed weights of a pointwise convolution. In every group of 32
/// outputs, row 8 f + 2 t + j is output 8 t + 2 f + j: the matrix instruction leaves columns 2 t and 2 t + 1 of its
/// f-th result in thread t of four, so with this order the thread has 8 adjacent outputs, which it writes at once.
fn output_of_row(row: usize) -> usize {
    let (group, row) = (row / GROUP, row % GROUP);
    let (f, t, j) = (row / 8, row % 8 / 2, row % 2);
    group * GROUP + 8 * t + 2 * f + j
}

/// A grid of one thread per unit.
fn grid_of(units: usize) -> Grid {
    Grid::new(units.div_ceil(THREADS as usize), THREADS)
}

/// Copies numbers to the device as 16-bit floats. `values.len()` is a multiple of 8. NaN and infinity stay what they
/// are.
///
/// # Errors
/// [`Error::WeightRange`] if a number is beyond the range of 16-bit floats.
fn upload_halves(device: &Device, values: &[f32]) -> Result<Buffer<Chunk>> {
    let exceeds_range = |value: &&f32| value.is_finite() && !f16::from_f32(**value).is_finite();
    if let Some(value) = values.iter().find(exceeds_range) {
        return Err(Error::WeightRange(value.to_string()));
    }
    let chunks: Vec<Chunk> = values
        .as_chunks()
        .0
        .iter()
        .map(|chunk: &[f32; 8]| chunk.map(|value| f16::from_f32(value).to_bits()))
        .collect();
    device.upload(&chunks)
}
