//! Pictures to embeddings.

use super::depthwise::{Depthwise, Geometry};
use super::{BOUNDS, Block, FEATURES, LARGEST, SMALLEST, STEM, blocks, layout, same};
use crate::isa::Isa;
use crate::matmul::{View, ViewMut, Write, multiply, multiply_add_row_and_bound};

/// Numbers that the first convolution looks at.
const PATCH: usize = 3 * 3 * 3;
/// Rows of the first convolution's output that are made at once, so that their patches stay in the cache.
const STRIP: usize = 8;

/// A network ready to embed.
pub struct Embedder {
    size: usize,
    stem: Layer,
    blocks: Vec<Bottleneck>,
    head: Layer,
}

/// A product with a bias: weights are [inputs, outputs].
struct Layer {
    inputs: usize,
    weights: Vec<f32>,
    bias: Vec<f32>,
}

struct Bottleneck {
    block: Block,
    geometry: Geometry,
    expand: Option<Layer>,
    /// [K x K, channels].
    taps: Vec<f32>,
    taps_bias: Vec<f32>,
    project: Layer,
}

/// Working memory of one thread.
pub struct Scratch {
    patches: Vec<f32>,
    /// What goes from block to block.
    pixels: Vec<f32>,
    expanded: Vec<f32>,
    filtered: Vec<f32>,
}

impl Embedder {
    /// For pictures of a size, from parameters laid out as [`layout`] says.
    ///
    /// # Panics
    /// If the size is not possible or the parameters are not of that layout.
    pub fn new(size: usize, parameters: &[f32]) -> Self {
        assert!((SMALLEST..=LARGEST).contains(&size), "pictures of {size}");
        let mut parameters = Parameters::new(parameters);
        let (mut side, _) = same(size, 3, 2);
        let stem = parameters.stem();
        let blocks = blocks().into_iter().map(|block| {
            let bottleneck = parameters.bottleneck(block, side);
            side = bottleneck.geometry.outputs;
            bottleneck
        });
        Embedder { size, stem, blocks: blocks.collect(), head: parameters.layer() }
    }

    /// Height and width of its pictures.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Working memory for one thread.
    pub fn scratch(&self) -> Scratch {
        let (side, _) = same(self.size, 3, 2);
        let geometries = || self.blocks.iter().map(|block| (block.geometry, block.block));
        let most = |of: &dyn Fn((Geometry, Block)) -> usize| geometries().map(of).max().unwrap_or(0);
        let last = self.blocks.last().map_or(side, |block| block.geometry.outputs);
        let outputs = most(&|(geometry, block)| geometry.outputs.pow(2) * block.output);
        Scratch {
            patches: vec![0.0; STRIP * side * PATCH],
            pixels: vec![0.0; outputs.max(side * side * STEM)],
            expanded: vec![0.0; most(&|(geometry, block)| geometry.side.pow(2) * block.inner)],
            filtered: vec![
                0.0;
                most(&|(geometry, block)| geometry.outputs.pow(2) * block.inner)
                    .max(last * last * FEATURES)
            ],
        }
    }

    /// Embeds normalised pictures (images x rows x columns x 3) on the calling thread.
    ///
    /// # Panics
    /// If the lengths do not belong to one number of pictures.
    pub fn embed(&self, isa: Isa, images: &[f32], out: &mut [f32], scratch: &mut Scratch) {
        let pixels = self.size * self.size * 3;
        assert_eq!(images.len() / pixels * pixels, images.len(), "whole pictures");
        assert_eq!(images.len() / pixels * FEATURES, out.len(), "an embedding a picture");
        for (image, out) in images.chunks_exact(pixels).zip(out.chunks_exact_mut(FEATURES)) {
            self.embed_one(isa, image, out, scratch);
        }
    }

    fn embed_one(&self, isa: Isa, image: &[f32], out: &mut [f32], scratch: &mut Scratch) {
        self.first(isa, image, scratch);
        for bottleneck in &self.blocks {
            bottleneck.run(isa, scratch);
        }
        let places = self.blocks.last().map_or(0, |block| block.geometry.outputs.pow(2));
        let filtered = &mut scratch.filtered[..places * FEATURES];
        self.head.run_bounded(isa, &scratch.pixels[..places * self.head.inputs], filtered);
        out.fill(0.0);
        for place in filtered.chunks_exact(FEATURES) {
            out.iter_mut().zip(place).for_each(|(sum, value)| *sum += value);
        }
        out.iter_mut().for_each(|sum| *sum /= places as f32);
    }

    fn first(&self, isa: Isa, image: &[f32], scratch: &mut Scratch) {
        let (side, margin) = same(self.size, 3, 2);
        for start in (0..side).step_by(STRIP) {
            let rows = STRIP.min(side - start);
            let patches = &mut scratch.patches[..rows * side * PATCH];
            for (row, patches) in (start..).zip(patches.chunks_exact_mut(side * PATCH)) {
                self.patches(image, 2 * row, margin, patches);
            }
            let pixels = &mut scratch.pixels[start * side * STEM..][..rows * side * STEM];
            self.stem.run_bounded(isa, patches, pixels);
        }
    }

    /// What a row of the first convolution looks at, from image row `top - margin` on: 3 x 3 pixels for every output.
    fn patches(&self, image: &[f32], top: usize, margin: usize, patches: &mut [f32]) {
        patches.fill(0.0);
        for (tap, y) in (top..top + 3).enumerate() {
            let Some(y) = y.checked_sub(margin).filter(|y| *y < self.size) else { continue };
            let line = &image[y * self.size * 3..][..self.size * 3];
            for (column, patch) in patches.chunks_exact_mut(PATCH).enumerate() {
                let missing = margin.saturating_sub(2 * column);
                let start = 2 * column + missing - margin;
                let width = (3 - missing).min(self.size - start);
                patch[(tap * 3 + missing) * 3..][..width * 3]
                    .copy_from_slice(&line[start * 3..][..width * 3]);
            }
        }
    }
}

impl Layer {
    fn run_bounded(&self, isa: Isa, input: &[f32], output: &mut [f32]) {
        let (rows, columns) = (input.len() / self.inputs, self.bias.len());
        let (a, b) = (View::new(input, rows, self.inputs), View::new(&self.weights, self.inputs, columns));
        multiply_add_row_and_bound(isa, a, b, &self.bias, BOUNDS, ViewMut::new(output, rows, columns));
    }

    /// Adds the product and the bias to the output.
    fn add(&self, isa: Isa, input: &[f32], output: &mut [f32]) {
        let (rows, columns) = (input.len() / self.inputs, self.bias.len());
        for row in output.chunks_exact_mut(columns) {
            row.iter_mut().zip(&self.bias).for_each(|(value, bias)| *value += bias);
        }
        let (a, b) = (View::new(input, rows, self.inputs), View::new(&self.weights, self.inputs, columns));
        multiply(isa, a, b, Write::Add, ViewMut::new(output, rows, columns));
    }
}

impl Bottleneck {
    fn run(&self, isa: Isa, scratch: &mut Scratch) {
        let Scratch { pixels, expanded, filtered, .. } = scratch;
        let (places, outputs) = (self.geometry.side.pow(2), self.geometry.outputs.pow(2));
        let expanded = &mut expanded[..places * self.block.inner];
        let input = match &self.expand {
            None => &pixels[..places * self.block.input],
            Some(expand) => {
                expand.run_bounded(isa, &pixels[..places * self.block.input], expanded);
                &*expanded
            }
        };
        let filtered = &mut filtered[..outputs * self.block.inner];
        isa.run(Depthwise {
            geometry: self.geometry,
            taps: &self.taps,
            bias: &self.taps_bias,
            input,
            output: filtered,
        });
        let pixels = &mut pixels[..outputs * self.block.output];
        if !self.block.adds_input() {
            pixels.fill(0.0);
        }
        self.project.add(isa, filtered, pixels);
    }
}

/// Hands out the parameters in the order of the layout.
struct Parameters<'a> {
    rest: std::vec::IntoIter<(Vec<usize>, &'a [f32])>,
}

impl<'a> Parameters<'a> {
    fn new(parameters: &'a [f32]) -> Self {
        let layout = layout();
        assert_eq!(parameters.len(), layout.len(), "parameters of the layout");
        let tensors = layout.tensors().iter();
        let tensors = tensors.map(|tensor| (tensor.shape.clone(), &parameters[tensor.range.clone()]));
        Parameters { rest: tensors.collect::<Vec<_>>().into_iter() }
    }

    fn next(&mut self) -> (Vec<usize>, &'a [f32]) {
        self.rest.next().expect("a tensor of the layout")
    }

    /// A weight [outputs, ..] turned round, and its bias.
    fn layer(&mut self) -> Layer {
        let ((shape, weights), (_, bias)) = (self.next(), self.next());
        let inputs = shape[1..].iter().product();
        Layer { inputs, weights: transposed(weights, inputs), bias: bias.to_vec() }
    }

    /// The first convolution: [outputs, channels, taps] becomes [taps, channels, outputs], as patches lie.
    fn stem(&mut self) -> Layer {
        let Layer { inputs, weights, bias } = self.layer();
        let rows = (0..inputs).map(|place| place % 3 * 9 + place / 3);
        let weights = rows.flat_map(|row| weights[row * STEM..][..STEM].iter().copied()).collect();
        Layer { inputs, weights, bias }
    }

    fn bottleneck(&mut self, block: Block, side: usize) -> Bottleneck {
        let (outputs, margin) = same(side, block.kernel, block.stride);
        let Block { kernel, stride, inner: channels, .. } = block;
        let geometry = Geometry { kernel, stride, channels, side, outputs, margin };
        let expand = block.expands().then(|| self.layer());
        let Layer { weights: taps, bias: taps_bias, .. } = self.layer();
        Bottleneck { block, geometry, expand, taps, taps_bias, project: self.layer() }
    }
}

fn transposed(weights: &[f32], columns: usize) -> Vec<f32> {
    let rows = weights.len() / columns;
    (0..columns).flat_map(|column| (0..rows).map(move |row| weights[row * columns + column])).collect()
}
