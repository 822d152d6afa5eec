//! Pictures to embeddings.

use pulp::{Simd, WithSimd};

use super::depthwise::{Depthwise, Geometry};
use super::{BOUNDS, Block, FEATURES, LARGEST, SMALLEST, STEM, blocks, layout, same};
use crate::isa::Isa;
use crate::matmul::{View, ViewMut, Write, multiply, multiply_and_add_row};

/// Numbers that the first convolution looks at.
const PATCH: usize = 3 * 3 * 3;
/// Rows of the first convolution's output that are made at once, so that their patches stay in the cache.
const STEM_ROWS: usize = 8;
/// A block is run through in strips of rows, so that what lies between its layers, six times as wide as what comes in
/// and goes out, stays in the second-level cache: at most so many numbers, if that is a row at all.
const STRIP_NUMBERS: usize = 1 << 17;

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
    /// What goes from block to block, and where a block puts it.
    pixels: Vec<f32>,
    next: Vec<f32>,
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
        let most = |of: &dyn Fn(&Bottleneck) -> usize| self.blocks.iter().map(of).max().unwrap_or(0);
        let outputs = most(&|block| block.geometry.outputs.pow(2) * block.block.output);
        let pixels = outputs.max(side * side * STEM);
        let filtered = most(&|block| block.strip_lengths().1);
        Scratch {
            patches: vec![0.0; STEM_ROWS * side * PATCH],
            pixels: vec![0.0; pixels],
            next: vec![0.0; pixels],
            expanded: vec![0.0; most(&|block| block.strip_lengths().0)],
            filtered: vec![0.0; filtered.max(self.places() * FEATURES)],
        }
    }

    /// Places that are left at the end.
    fn places(&self) -> usize {
        self.blocks.last().map_or(0, |block| block.geometry.outputs.pow(2))
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
        let places = self.places();
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
        for start in (0..side).step_by(STEM_ROWS) {
            let rows = STEM_ROWS.min(side - start);
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

/// ReLU6.
struct Bound<'a>(&'a mut [f32]);

impl WithSimd for Bound<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let [least, most] = BOUNDS;
        for value in self.0 {
            // A number that is none stays so.
            let above = if *value < least { least } else { *value };
            *value = if above > most { most } else { above };
        }
    }
}

impl Layer {
    /// With ReLU6 behind it. That is a pass of its own: strips of rows are in the cache still.
    fn run_bounded(&self, isa: Isa, input: &[f32], output: &mut [f32]) {
        self.run(isa, input, output);
        isa.run(Bound(output));
    }

    fn run(&self, isa: Isa, input: &[f32], output: &mut [f32]) {
        let (rows, columns) = (input.len() / self.inputs, self.bias.len());
        let (a, b) = (View::new(input, rows, self.inputs), View::new(&self.weights, self.inputs, columns));
        multiply_and_add_row(isa, a, b, &self.bias, ViewMut::new(output, rows, columns));
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
    /// Rows of the output that are made at once.
    fn strip(&self) -> usize {
        let Geometry { side, kernel, stride, outputs, .. } = self.geometry;
        let rows = STRIP_NUMBERS / (side * self.block.inner);
        (rows.saturating_sub(kernel) / stride).clamp(1, outputs)
    }

    /// Numbers of the widened rows that a strip looks at, and of what the filters make of them.
    fn strip_lengths(&self) -> (usize, usize) {
        let Geometry { side, kernel, stride, outputs, .. } = self.geometry;
        let rows = ((self.strip() - 1) * stride + kernel).min(side);
        (rows * side * self.block.inner, self.strip() * outputs * self.block.inner)
    }

    /// From `pixels` to `next`, or to `pixels` itself where the input is added.
    fn run(&self, isa: Isa, scratch: &mut Scratch) {
        let Geometry { side, outputs, .. } = self.geometry;
        let Scratch { pixels, next, expanded, filtered, .. } = scratch;
        // The widened rows that there are, by their first and end.
        let mut have = (0, 0);
        for start in (0..outputs).step_by(self.strip()) {
            let end = (start + self.strip()).min(outputs);
            let filtered = &mut filtered[..(end - start) * outputs * self.block.inner];
            let wanted = self.geometry.looked_at(start..end);
            let input = match &self.expand {
                None => &pixels[wanted.0 * side * self.block.input..wanted.1 * side * self.block.input],
                Some(expand) => {
                    self.widen(isa, expand, have, wanted, pixels, expanded);
                    have = wanted;
                    &expanded[..(wanted.1 - wanted.0) * side * self.block.inner]
                }
            };
            isa.run(Depthwise {
                geometry: self.geometry,
                taps: &self.taps,
                bias: &self.taps_bias,
                input,
                input_start: wanted.0,
                output: filtered,
                output_start: start,
            });
            let rows = start * outputs * self.block.output..end * outputs * self.block.output;
            if self.block.adds_input() {
                // What later strips look at of these rows has been widened already.
                self.project.add(isa, filtered, &mut pixels[rows]);
            } else {
                self.project.run(isa, filtered, &mut next[rows]);
            }
        }
        if !self.block.adds_input() {
            std::mem::swap(pixels, next);
        }
    }

    /// Keeps of the widened rows what is wanted again, at the front, and makes those that are missing.
    fn widen(
        &self,
        isa: Isa,
        expand: &Layer,
        have: (usize, usize),
        wanted: (usize, usize),
        pixels: &[f32],
        expanded: &mut [f32],
    ) {
        let (input, line) = (self.geometry.side * self.block.input, self.geometry.side * self.block.inner);
        let kept = have.1.saturating_sub(wanted.0);
        expanded.copy_within((wanted.0.min(have.1) - have.0) * line..(have.1 - have.0) * line, 0);
        let missing = wanted.0 + kept..wanted.1;
        let expanded = &mut expanded[kept * line..(wanted.1 - wanted.0) * line];
        expand.run_bounded(isa, &pixels[missing.start * input..missing.end * input], expanded);
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
