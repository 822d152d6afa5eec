//! Pictures to embeddings, batch norm folded into the filters.

use pulp::{Simd, WithSimd};

use super::plane::{Pixel, Plane, vectors};
use super::tiles::{self, Block, Points};
use super::winograd::{self, FilterPoints, Filters, Taps};
use super::{BLOCKS, BlockRanges, EPS, Shape, TAPS, WIDTH, first, ranges};
use crate::isa::Isa;

/// Images that go through the later blocks together: enough tiles to fill whole blocks.
const GROUP: usize = 4;

/// A Conv4 ready to embed.
pub struct Embedder {
    shape: Shape,
    first: Vec<Pixel>,
    later: Vec<Filters>,
    /// What is added behind each block's convolution.
    bias: [Pixel; BLOCKS],
}

/// Working memory of one thread.
pub struct Scratch {
    padded: Vec<f32>,
    /// The inputs of blocks 2 to 4; only one image of the first.
    planes: Vec<Vec<Pixel>>,
    points: Points,
    products: Points,
    pooled: Vec<Pixel>,
}

impl Embedder {
    /// From parameters laid out as [`layout`](super::layout) says.
    ///
    /// # Panics
    /// If the shape is not possible or the parameters are not of that layout.
    pub fn new(shape: Shape, parameters: &[f32]) -> Self {
        assert!(shape.is_possible(), "{shape:?}");
        let (layout, blocks) = ranges(shape.channels);
        assert_eq!(parameters.len(), layout.len());
        let folded: Vec<(Pixel, Pixel)> = blocks.iter().map(|block| fold(block, parameters)).collect();
        let mut first = vec![Pixel::ZERO; TAPS * shape.channels];
        for (o, weights) in
            parameters[blocks[0].weight.clone()].chunks_exact(TAPS * shape.channels).enumerate()
        {
            for (place, tap) in first.iter_mut().enumerate() {
                tap.0[o] = weights[place % shape.channels * TAPS + place / shape.channels] * folded[0].0.0[o];
            }
        }
        let later = blocks[1..].iter().zip(&folded[1..]).map(|(block, (scale, _))| {
            let mut points = winograd::no_filters();
            let taps = taps(&parameters[block.weight.clone()], scale);
            Isa::current().run(FilterPoints { taps: &taps, points: &mut points });
            points
        });
        let later = later.collect();
        let mut bias = [Pixel::ZERO; BLOCKS];
        bias.iter_mut().zip(&folded).for_each(|(bias, folded)| *bias = folded.1);
        Embedder { shape, first, later, bias }
    }

    /// The pictures it is made for.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Working memory for one thread.
    pub fn scratch(&self) -> Scratch {
        let plane = |block: usize| Plane { side: self.shape.side(block) };
        let images = |block: usize| if block == 1 { 1 } else { GROUP };
        Scratch {
            padded: vec![0.0; first::padded_len(self.shape)],
            planes: (1..BLOCKS).map(|block| plane(block).zeros(images(block))).collect(),
            points: Points::new(),
            products: Points::new(),
            pooled: vec![Pixel::ZERO; GROUP * self.shape.side(BLOCKS).pow(2)],
        }
    }

    /// Embeds normalised pictures (images x rows x columns x channels) on the calling thread; embeddings are in
    /// channel-row-column order.
    ///
    /// # Panics
    /// If the lengths do not belong to one number of pictures.
    pub fn embed(&self, isa: Isa, images: &[f32], out: &mut [f32], scratch: &mut Scratch) {
        let (pixels, features) = (self.shape.pixels(), self.shape.features());
        assert_eq!(images.len() / pixels * pixels, images.len(), "whole pictures");
        assert_eq!(images.len() / pixels * features, out.len(), "an embedding a picture");
        for (images, out) in images.chunks(GROUP * pixels).zip(out.chunks_mut(GROUP * features)) {
            self.group(isa, images, out, scratch);
        }
    }

    fn group(&self, isa: Isa, images: &[f32], out: &mut [f32], scratch: &mut Scratch) {
        let count = images.len() / self.shape.pixels();
        let Scratch { padded, planes, points, products, pooled } = scratch;
        let [plane1, plane2, plane3] = &mut planes[..] else { unreachable!("three blocks have a plane") };
        let plane = |block: usize| Plane { side: self.shape.side(block) };
        for (number, image) in images.chunks_exact(self.shape.pixels()).enumerate() {
            first::pad(self.shape, image, padded);
            isa.run(first::Forward {
                shape: self.shape,
                padded,
                taps: &self.first,
                bias: &self.bias[0],
                plane: plane(1),
                out: plane1,
                places: None,
            });
            let to = Target::Plane(plane(2), &mut plane2[number * plane(2).len()..]);
            self.block(isa, 1, 1, plane1, to, points, products);
        }
        self.block(isa, 2, count, plane2, Target::Plane(plane(3), plane3), points, products);
        let side = self.shape.side(BLOCKS);
        self.block(isa, 3, count, plane3, Target::Plain(side, pooled), points, products);
        for (pixels, out) in pooled.chunks_exact(side * side).zip(out.chunks_exact_mut(self.shape.features()))
        {
            for (place, pixel) in pixels.iter().enumerate() {
                for (channel, value) in pixel.0.iter().enumerate() {
                    out[channel * side * side + place] = *value;
                }
            }
        }
    }

    /// One of blocks 2 to 4, by its number from 0.
    #[allow(clippy::too_many_arguments)]
    fn block(
        &self,
        isa: Isa,
        block: usize,
        images: usize,
        pixels: &[Pixel],
        mut to: Target<'_>,
        points: &mut Points,
        products: &mut Points,
    ) {
        let plane = Plane { side: self.shape.side(block) };
        for tiles in tiles::blocks(plane, images) {
            isa.run(tiles::Input { block: tiles, pixels, points });
            let filters = &self.later[block - 1];
            isa.run(tiles::Products { count: tiles.count, terms: [(points, filters)], out: products });
            isa.run(Pool { block: tiles, points: products, bias: &self.bias[block], to: &mut to });
        }
    }
}

/// Scale and shift that do what batch norm does with its running statistics.
fn fold(block: &BlockRanges, parameters: &[f32]) -> (Pixel, Pixel) {
    let (mut scale, mut shift) = (Pixel::ZERO, Pixel::ZERO);
    for c in 0..WIDTH {
        let at = |range: &std::ops::Range<usize>| parameters[range.start + c];
        scale.0[c] = at(&block.gamma) / (at(&block.running_var) + EPS).sqrt();
        shift.0[c] = (at(&block.bias) - at(&block.running_mean)) * scale.0[c] + at(&block.beta);
    }
    (scale, shift)
}

/// Filters as [tap][from][to], each output channel scaled.
pub(super) fn taps(weights: &[f32], scale: &Pixel) -> Taps {
    let mut taps = vec![[Pixel::ZERO; WIDTH]; TAPS];
    for (o, weights) in weights.chunks_exact(WIDTH * TAPS).enumerate() {
        for (i, weights) in weights.chunks_exact(TAPS).enumerate() {
            for (tap, weight) in taps.iter_mut().zip(weights) {
                tap[i].0[o] = weight * scale.0[o];
            }
        }
    }
    taps
}

/// Where a block's pooled output goes.
enum Target<'a> {
    /// Into the plane of the next block.
    Plane(Plane, &'a mut [Pixel]),
    /// One behind the other, so many in a row.
    Plain(usize, &'a mut [Pixel]),
}

impl Target<'_> {
    #[inline(always)]
    fn pixel(&mut self, image: usize, row: usize, column: usize) -> &mut Pixel {
        match self {
            Target::Plane(plane, pixels) => &mut pixels[image * plane.len() + plane.at(row, column)],
            Target::Plain(side, pixels) => &mut pixels[(image * *side + row) * *side + column],
        }
    }
}

/// Output transform, maximum of every window, bias, ReLU.
struct Pool<'a, 'b> {
    block: Block,
    points: &'a Points,
    bias: &'a Pixel,
    to: &'a mut Target<'b>,
}

impl WithSimd for Pool<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Block { plane, first, count } = self.block;
        let side = plane.side / 2;
        for slot in 0..count {
            let tile = plane.tile(first + slot);
            let (row, column) = (tile.row / 2, tile.column / 2);
            for v in 0..vectors::<S>() {
                let y = tiles::output(simd, self.points, slot, v);
                for r in 0..2 {
                    for c in 0..2 {
                        if row + r < side && column + c < side {
                            let upper = simd.max_f32s(y[2 * r][2 * c], y[2 * r][2 * c + 1]);
                            let lower = simd.max_f32s(y[2 * r + 1][2 * c], y[2 * r + 1][2 * c + 1]);
                            let sum = simd.add_f32s(simd.max_f32s(upper, lower), self.bias.get::<S>(v));
                            let out = simd.max_f32s(sum, simd.splat_f32s(0.0));
                            self.to.pixel(tile.image, row + r, column + c).set::<S>(v, out);
                        }
                    }
                }
            }
        }
    }
}
