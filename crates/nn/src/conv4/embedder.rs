//! Inference: [`Conv4Embedder`] computes embeddings of images, with batch norm folded into the filters.
//!
//! Each image passes blocks 1 and 2 alone; four images together pass blocks 3 and 4, which have few tiles per image.
//! `Conv4Session::embed_group` shows the order.

use std::sync::Arc;

use pulp::{Simd, WithSimd};

use super::filters::{first_block_taps, taps};
use super::plane::{Pixel, Plane, vectors};
use super::tiles::{self, TileBlock, TilePoints};
use super::winograd::{self, FilterTransform, Filters};
use super::{BLOCKS, BlockRanges, EPSILON, Shape, TAPS, WIDTH, first_block, layout_and_ranges};
use crate::isa;

/// Images that pass blocks 3 and 4 together: enough tiles to fill whole [`TileBlock`]s.
const GROUP: usize = 4;

/// A Conv4 for inference.
///
/// Threads share the network; each has a [`Conv4Session`] with the memory it computes in.
///
/// ```
/// use trueshot_nn::conv4::{self, Conv4Embedder, Shape};
///
/// let shape = Shape { size: 28, channels: 1 };
/// let mut state = 1u64;
/// let parameters = conv4::initial(shape.channels, &mut || {
///     state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
///     (state >> 11) as f64 / (1u64 << 53) as f64
/// });
/// let embedder = Conv4Embedder::new(shape, &parameters);
/// let images = vec![0.5; 3 * shape.pixels()];
/// let mut embeddings = vec![0.0; 3 * shape.features()];
/// embedder.session().embed(&images, &mut embeddings);
/// assert_eq!(embeddings[..64], embeddings[64..128], "the same image has the same embedding");
/// ```
#[derive(Clone)]
pub struct Conv4Embedder(Arc<FoldedNetwork>);

/// Filters and biases with batch norm folded in.
struct FoldedNetwork {
    shape: Shape,
    /// Filters of block 1, `[tap, input channel, 64]`.
    first_taps: Vec<Pixel>,
    /// Filters of blocks 2 to 4.
    winograd: Vec<Filters>,
    /// Added after the convolution of each block, `[blocks, 64]`.
    bias: [Pixel; BLOCKS],
}

/// A [`Conv4Embedder`] with the memory of one thread.
pub struct Conv4Session {
    network: Arc<FoldedNetwork>,
    /// One image with its margin.
    padded: Vec<f32>,
    /// The inputs of blocks 2 to 4; that of block 2 holds one image, the others a group.
    planes: [Vec<Pixel>; BLOCKS - 1],
    scratch: BlockScratch,
    /// The output of block 4.
    pooled: Vec<Pixel>,
}

/// The memory that a Winograd block computes in.
struct BlockScratch {
    points: TilePoints,
    products: TilePoints,
}

impl Conv4Embedder {
    /// A network for images of this shape, with parameters in the order of [`layout`](super::layout).
    ///
    /// # Panics
    /// If the shape is not possible or the number of parameters is not that of the layout.
    pub fn new(shape: Shape, parameters: &[f32]) -> Self {
        assert!(shape.is_possible(), "{shape:?}");
        let (layout, blocks) = layout_and_ranges(shape.channels);
        assert_eq!(parameters.len(), layout.len(), "number of parameters");
        // (scale, shift) of each block.
        let folded: Vec<(Pixel, Pixel)> = blocks.iter().map(|block| fold(block, parameters)).collect();
        let mut first_taps = vec![Pixel::ZERO; TAPS * shape.channels];
        first_block_taps(&parameters[blocks[0].weight.clone()], &folded[0].0, &mut first_taps);
        let winograd = blocks[1..].iter().zip(&folded[1..]).map(|(block, (scale, _))| {
            let mut points = winograd::zero_filters();
            let taps = taps(&parameters[block.weight.clone()], scale);
            isa::run(FilterTransform { taps: &taps, points: &mut points });
            points
        });
        let winograd = winograd.collect();
        let mut bias = [Pixel::ZERO; BLOCKS];
        bias.iter_mut().zip(&folded).for_each(|(bias, (_, shift))| *bias = *shift);
        Conv4Embedder(Arc::new(FoldedNetwork { shape, first_taps, winograd, bias }))
    }

    /// The shape of the images it takes.
    pub fn shape(&self) -> Shape {
        self.0.shape
    }

    /// A session for one thread.
    pub fn session(&self) -> Conv4Session {
        let shape = self.0.shape;
        let plane = |block: usize| Plane { side: shape.side(block) };
        let images = |block: usize| if block == 1 { 1 } else { GROUP };
        Conv4Session {
            network: Arc::clone(&self.0),
            padded: vec![0.0; first_block::padded_len(shape)],
            planes: std::array::from_fn(|index| plane(index + 1).zeros(images(index + 1))),
            scratch: BlockScratch { points: TilePoints::new(), products: TilePoints::new() },
            pooled: vec![Pixel::ZERO; GROUP * shape.side(BLOCKS).pow(2)],
        }
    }
}

impl Conv4Session {
    /// Embeds normalised images (`[images, rows, columns, channels]`) on the calling thread. Writes one embedding
    /// (`[64, rows, columns]`, see [`Shape::features`]) per image to `out`.
    ///
    /// # Panics
    /// If the lengths are not those of a whole number of images.
    pub fn embed(&mut self, images: &[f32], out: &mut [f32]) {
        let (pixels, features) = (self.network.shape.pixels(), self.network.shape.features());
        assert_eq!(images.len() / pixels * pixels, images.len(), "whole images");
        assert_eq!(images.len() / pixels * features, out.len(), "one embedding per image");
        for (images, out) in images.chunks(GROUP * pixels).zip(out.chunks_mut(GROUP * features)) {
            self.embed_group(images, out);
        }
    }

    /// [`Conv4Session::embed`] of at most [`GROUP`] images.
    fn embed_group(&mut self, images: &[f32], out: &mut [f32]) {
        // `plane1`, `plane2` and `plane3` are the inputs of blocks 1, 2 and 3, counted from 0.
        let Conv4Session { network, padded, planes: [plane1, plane2, plane3], scratch, pooled } = self;
        let shape = network.shape;
        let count = images.len() / shape.pixels();
        let plane = |block: usize| Plane { side: shape.side(block) };
        for (number, image) in images.chunks_exact(shape.pixels()).enumerate() {
            first_block::pad(shape, image, padded);
            isa::run(first_block::Forward {
                shape,
                padded,
                taps: &network.first_taps,
                bias: &network.bias[0],
                plane: plane(1),
                out: plane1,
                argmax: None,
            });
            let to = PoolTarget::Plane(plane(2), &mut plane2[number * plane(2).len()..]);
            network.winograd_block(1, 1, plane1, to, scratch);
        }
        network.winograd_block(2, count, plane2, PoolTarget::Plane(plane(3), plane3), scratch);
        let side = shape.side(BLOCKS);
        network.winograd_block(3, count, plane3, PoolTarget::Flat(side, pooled), scratch);
        // From pixels of 64 channels to the order of embeddings, channels first.
        for (pixels, out) in pooled.chunks_exact(side * side).zip(out.chunks_exact_mut(shape.features())) {
            for (position, pixel) in pixels.iter().enumerate() {
                for (channel, value) in pixel.0.iter().enumerate() {
                    out[channel * side * side + position] = *value;
                }
            }
        }
    }
}

impl FoldedNetwork {
    /// Convolution, pooling, bias and ReLU of block 2, 3 or 4 (`block` counts from 0).
    fn winograd_block(
        &self,
        block: usize,
        images: usize,
        pixels: &[Pixel],
        mut to: PoolTarget<'_>,
        scratch: &mut BlockScratch,
    ) {
        let BlockScratch { points, products } = scratch;
        let plane = Plane { side: self.shape.side(block) };
        for tiles in tiles::blocks(plane, images) {
            isa::run(tiles::InputTransform { block: tiles, pixels, points });
            let filters = &self.winograd[block - 1];
            isa::run(tiles::PointProducts { count: tiles.count, terms: [(points, filters)], out: products });
            isa::run(Pool { block: tiles, points: products, bias: &self.bias[block], to: &mut to });
        }
    }
}

/// Scale and shift of the convolution's output, without its bias, that have the effect of bias and batch norm with
/// running statistics: `gamma (x + bias - mean) / sqrt(var + epsilon) + beta`.
fn fold(block: &BlockRanges, parameters: &[f32]) -> (Pixel, Pixel) {
    let (mut scale, mut shift) = (Pixel::ZERO, Pixel::ZERO);
    for c in 0..WIDTH {
        let of_channel = |range: &std::ops::Range<usize>| parameters[range.start + c];
        scale.0[c] = of_channel(&block.gamma) / (of_channel(&block.running_var) + EPSILON).sqrt();
        shift.0[c] = (of_channel(&block.bias) - of_channel(&block.running_mean)) * scale.0[c]
            + of_channel(&block.beta);
    }
    (scale, shift)
}

/// Where the pooled output of a block is written.
enum PoolTarget<'a> {
    /// Into the plane of the next block's input.
    Plane(Plane, &'a mut [Pixel]),
    /// `[images, side, side]` without margins; the number is the side.
    Flat(usize, &'a mut [Pixel]),
}

impl PoolTarget<'_> {
    #[inline(always)]
    fn pixel(&mut self, image: usize, row: usize, column: usize) -> &mut Pixel {
        match self {
            PoolTarget::Plane(plane, pixels) => {
                &mut pixels[image * plane.len() + plane.index_of(row, column)]
            }
            PoolTarget::Flat(side, pixels) => &mut pixels[(image * *side + row) * *side + column],
        }
    }
}

/// Output transform, max-pool, bias and ReLU of a block of tiles. Bias and ReLU follow pooling, which gives the same
/// result with a quarter of the work.
struct Pool<'a, 'b> {
    block: TileBlock,
    points: &'a TilePoints,
    bias: &'a Pixel,
    to: &'a mut PoolTarget<'b>,
}

impl WithSimd for Pool<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let TileBlock { plane, first, count } = self.block;
        let side = plane.side / 2;
        for slot in 0..count {
            let tile = plane.tile(first + slot);
            let (row, column) = (tile.row / 2, tile.column / 2);
            for v in 0..vectors::<S>() {
                let y = tiles::output_transform(simd, self.points, slot, v);
                for r in 0..2 {
                    for c in 0..2 {
                        if row + r < side && column + c < side {
                            let upper = isa::max(simd, y[2 * r][2 * c], y[2 * r][2 * c + 1]);
                            let lower = isa::max(simd, y[2 * r + 1][2 * c], y[2 * r + 1][2 * c + 1]);
                            let sum = simd.add_f32s(isa::max(simd, upper, lower), self.bias.get::<S>(v));
                            let out = isa::max(simd, sum, simd.splat_f32s(0.0));
                            self.to.pixel(tile.image, row + r, column + c).set::<S>(v, out);
                        }
                    }
                }
            }
        }
    }
}
