//! Inference: [`EfficientNetEmbedder`] computes embeddings of images. `Network::embed` shows the steps for one image;
//! `Bottleneck::run` is most of the work.
//!
//! Activations are `[rows, columns, channels]`; with a square image, `side` is the number of rows or columns. A
//! *position* is a row and column of an activation. The padding of a convolution at the top or left is `margin`.

use std::sync::Arc;

use pulp::{Simd, WithSimd};

use super::depthwise::{Depthwise, Geometry};
use super::{
    BottleneckShape, FEATURES, LARGEST, RELU6_BOUNDS, SMALLEST, STEM, bottlenecks, layout, same_padding,
};
use crate::isa;
use crate::matmul::{Matrix, MatrixMut, Write, multiply, multiply_and_add_row};

/// Values of an input patch of the stem: 3 rows, 3 columns, 3 channels.
const PATCH: usize = 3 * 3 * 3;
/// Output rows of the stem that are computed at once, so that their patches stay in the cache.
const STEM_ROWS: usize = 8;
/// A bottleneck is computed in strips of rows, so that the activations between its convolutions, up to six times as
/// wide as its input, stay in the second-level cache: at most this many values (512 KiB), but at least one row of
/// outputs.
const STRIP_VALUES: usize = 1 << 17;

/// An EfficientNet-Lite0 for images of one size.
///
/// Threads share the network; each has an [`EfficientNetSession`] with the memory it computes in.
///
/// ```
/// use trueshot_nn::efficientnet::{self, EfficientNetEmbedder, FEATURES};
///
/// let parameters = vec![0.01; efficientnet::layout().len()];
/// let embedder = EfficientNetEmbedder::new(32, &parameters);
/// let image = vec![0.5; 32 * 32 * 3];
/// let mut embedding = vec![0.0; FEATURES];
/// embedder.session().embed(&image, &mut embedding);
/// assert!(embedding[0] > 0.0);
/// ```
#[derive(Clone)]
pub struct EfficientNetEmbedder(Arc<Network>);

/// The network with its parameters, in the order in which the kernels read them.
struct Network {
    /// Height and width of the images.
    size: usize,
    stem: Pointwise,
    bottlenecks: Vec<Bottleneck>,
    head: Pointwise,
}

/// A pointwise convolution: a matrix product and a bias. The stem is one, too: over input patches instead of pixels.
struct Pointwise {
    /// Input channels, or the values of a patch.
    inputs: usize,
    /// `[inputs, output channels]`
    weights: Vec<f32>,
    bias: Vec<f32>,
}

/// An inverted bottleneck: `expand` to `inner` channels, the depthwise convolution, `project` to the output channels.
struct Bottleneck {
    shape: BottleneckShape,
    /// The shape of the depthwise convolution.
    geometry: Geometry,
    /// `None` in the first bottleneck, which does not expand.
    expand: Option<Pointwise>,
    /// Of the depthwise convolution, `[K, K, inner]`.
    taps: Vec<f32>,
    taps_bias: Vec<f32>,
    project: Pointwise,
}

/// An [`EfficientNetEmbedder`] with the memory of one thread.
pub struct EfficientNetSession {
    network: Arc<Network>,
    activations: Activations,
}

/// The activations of one image.
struct Activations {
    /// The input patches of some output rows of the stem, `[rows, columns, 3, 3, 3]`.
    patches: Vec<f32>,
    /// The input of the current bottleneck.
    pixels: Vec<f32>,
    /// The output of the current bottleneck, unless it is added to the input.
    next: Vec<f32>,
    /// A strip after the first pointwise convolution.
    expanded: Vec<f32>,
    /// A strip after the depthwise convolution; in the end the output of the network's head.
    filtered: Vec<f32>,
}

impl EfficientNetEmbedder {
    /// A network for images of `size` x `size` pixels, with parameters in the order of [`layout`].
    ///
    /// # Panics
    /// If the size is not from [`SMALLEST`] to [`LARGEST`] or the number of parameters is not that of the layout.
    pub fn new(size: usize, parameters: &[f32]) -> Self {
        assert!((SMALLEST..=LARGEST).contains(&size), "image size {size}; allowed: {SMALLEST} to {LARGEST}");
        let mut parameters = ParameterReader::new(parameters);
        let (mut side, _) = stem_padding(size);
        let stem = parameters.stem();
        let bottlenecks = bottlenecks().into_iter().map(|shape| {
            let bottleneck = parameters.bottleneck(shape, side);
            side = bottleneck.geometry.output_side;
            bottleneck
        });
        let bottlenecks = bottlenecks.collect();
        EfficientNetEmbedder(Arc::new(Network { size, stem, bottlenecks, head: parameters.pointwise() }))
    }

    /// Height and width of the images it takes.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// A session for one thread.
    pub fn session(&self) -> EfficientNetSession {
        EfficientNetSession { network: Arc::clone(&self.0), activations: self.0.activations() }
    }
}

impl EfficientNetSession {
    /// Embeds normalised images (`[images, rows, columns, 3]`) on the calling thread. Writes [`FEATURES`] numbers per
    /// image to `out`.
    ///
    /// # Panics
    /// If the lengths are not those of a whole number of images.
    pub fn embed(&mut self, images: &[f32], out: &mut [f32]) {
        let pixels = self.network.size * self.network.size * 3;
        assert_eq!(images.len() / pixels * pixels, images.len(), "whole images");
        assert_eq!(images.len() / pixels * FEATURES, out.len(), "one embedding per image");
        for (image, out) in images.chunks_exact(pixels).zip(out.chunks_exact_mut(FEATURES)) {
            self.network.embed(image, out, &mut self.activations);
        }
    }
}

impl Network {
    /// Memory for the activations of one image: each buffer has the size that its largest user needs.
    fn activations(&self) -> Activations {
        let (side, _) = stem_padding(self.size);
        // The maximum of a number over all bottlenecks.
        let most = |of: &dyn Fn(&Bottleneck) -> usize| self.bottlenecks.iter().map(of).max().unwrap_or(0);
        let output_values =
            most(&|bottleneck| bottleneck.geometry.output_side.pow(2) * bottleneck.shape.output);
        let pixels = output_values.max(side * side * STEM);
        let filtered = most(&|bottleneck| bottleneck.strip_lengths().1);
        Activations {
            patches: vec![0.0; STEM_ROWS * side * PATCH],
            pixels: vec![0.0; pixels],
            next: vec![0.0; pixels],
            expanded: vec![0.0; most(&|bottleneck| bottleneck.strip_lengths().0)],
            filtered: vec![0.0; filtered.max(self.positions() * FEATURES)],
        }
    }

    /// The number of positions of the last bottleneck's output.
    fn positions(&self) -> usize {
        self.bottlenecks.last().map_or(0, |bottleneck| bottleneck.geometry.output_side.pow(2))
    }

    /// Writes the embedding of one image.
    fn embed(&self, image: &[f32], out: &mut [f32], activations: &mut Activations) {
        self.run_stem(image, activations);
        for bottleneck in &self.bottlenecks {
            bottleneck.run(activations);
        }
        let positions = self.positions();
        let filtered = &mut activations.filtered[..positions * FEATURES];
        self.head.run_relu6(&activations.pixels[..positions * self.head.inputs], filtered);
        // The mean over all positions.
        out.fill(0.0);
        for position in filtered.chunks_exact(FEATURES) {
            out.iter_mut().zip(position).for_each(|(sum, value)| *sum += value);
        }
        out.iter_mut().for_each(|sum| *sum /= positions as f32);
    }

    /// The stem as a matrix product of patches and filters, into `activations.pixels`.
    fn run_stem(&self, image: &[f32], activations: &mut Activations) {
        let (side, margin) = stem_padding(self.size);
        for start in (0..side).step_by(STEM_ROWS) {
            let rows = STEM_ROWS.min(side - start);
            let patches = &mut activations.patches[..rows * side * PATCH];
            for (row, patches) in (start..).zip(patches.chunks_exact_mut(side * PATCH)) {
                self.copy_patches(image, 2 * row, margin, patches);
            }
            let pixels = &mut activations.pixels[start * side * STEM..][..rows * side * STEM];
            self.stem.run_relu6(patches, pixels);
        }
    }

    /// Copies the input patches of one output row of the stem, `[columns, 3, 3, 3]`, which start at image row
    /// `top - margin`. With stride 2, that of output column c starts at image column `2 c - margin`. What lies outside
    /// the image is 0.
    fn copy_patches(&self, image: &[f32], top: usize, margin: usize, patches: &mut [f32]) {
        patches.fill(0.0);
        for (filter_row, y) in (top..top + 3).enumerate() {
            let Some(y) = y.checked_sub(margin).filter(|y| *y < self.size) else { continue };
            let line = &image[y * self.size * 3..][..self.size * 3];
            for (column, patch) in patches.chunks_exact_mut(PATCH).enumerate() {
                // The columns of the patch that are outside at the left, and those that are inside.
                let missing = margin.saturating_sub(2 * column);
                let start = 2 * column + missing - margin;
                let width = (3 - missing).min(self.size - start);
                patch[(filter_row * 3 + missing) * 3..][..width * 3]
                    .copy_from_slice(&line[start * 3..][..width * 3]);
            }
        }
    }
}

/// The side of the stem's output, and the padding at the top and left of its input: 3x3 filters with stride 2.
fn stem_padding(size: usize) -> (usize, usize) {
    same_padding(size, 3, 2)
}

/// ReLU6 in place.
struct Relu6<'a>(&'a mut [f32]);

impl WithSimd for Relu6<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let [least, most] = RELU6_BOUNDS;
        for value in self.0 {
            // These comparisons keep NaN.
            let above = if *value < least { least } else { *value };
            *value = if above > most { most } else { above };
        }
    }
}

impl Pointwise {
    /// The convolution and ReLU6, as two passes: a strip of rows stays in the cache between them.
    fn run_relu6(&self, input: &[f32], output: &mut [f32]) {
        self.run(input, output);
        isa::run(Relu6(output));
    }

    /// The convolution: from `[positions, inputs]` to `[positions, output channels]`.
    fn run(&self, input: &[f32], output: &mut [f32]) {
        let (rows, columns) = (input.len() / self.inputs, self.bias.len());
        let a = Matrix::new(input, rows, self.inputs);
        let b = Matrix::new(&self.weights, self.inputs, columns);
        multiply_and_add_row(a, b, &self.bias, MatrixMut::new(output, rows, columns));
    }

    /// Adds the convolution to the output.
    fn add(&self, input: &[f32], output: &mut [f32]) {
        let (rows, columns) = (input.len() / self.inputs, self.bias.len());
        for row in output.chunks_exact_mut(columns) {
            row.iter_mut().zip(&self.bias).for_each(|(value, bias)| *value += bias);
        }
        let a = Matrix::new(input, rows, self.inputs);
        let b = Matrix::new(&self.weights, self.inputs, columns);
        multiply(a, b, Write::Add, MatrixMut::new(output, rows, columns));
    }
}

impl Bottleneck {
    /// Output rows of a strip, so that the expanded input rows they depend on fit into [`STRIP_VALUES`]: n outputs
    /// depend on `(n - 1) stride + kernel` rows. The quotient is one less than would fit.
    fn strip_rows(&self) -> usize {
        let Geometry { side, kernel, stride, output_side, .. } = self.geometry;
        let rows = STRIP_VALUES / (side * self.shape.inner);
        (rows.saturating_sub(kernel) / stride).clamp(1, output_side)
    }

    /// The numbers of values of a strip after the first pointwise and after the depthwise convolution.
    fn strip_lengths(&self) -> (usize, usize) {
        let Geometry { side, kernel, stride, output_side, .. } = self.geometry;
        let rows = ((self.strip_rows() - 1) * stride + kernel).min(side);
        (rows * side * self.shape.inner, self.strip_rows() * output_side * self.shape.inner)
    }

    /// Runs the bottleneck from `pixels` to `pixels`. With a residual connection, the output is added to the input in
    /// place; without one, it is written to `next`, which then becomes `pixels`.
    fn run(&self, activations: &mut Activations) {
        let Geometry { side, output_side, .. } = self.geometry;
        let Activations { pixels, next, expanded, filtered, .. } = activations;
        // The input rows that `expanded` holds: (first, end), end not included.
        let mut present = (0, 0);
        for start in (0..output_side).step_by(self.strip_rows()) {
            let end = (start + self.strip_rows()).min(output_side);
            let filtered = &mut filtered[..(end - start) * output_side * self.shape.inner];
            let needed = self.geometry.input_rows(start..end);
            let input = match &self.expand {
                None => &pixels[needed.0 * side * self.shape.input..needed.1 * side * self.shape.input],
                Some(expand) => {
                    self.expand_rows(expand, present, needed, pixels, expanded);
                    present = needed;
                    &expanded[..(needed.1 - needed.0) * side * self.shape.inner]
                }
            };
            isa::run(Depthwise {
                geometry: self.geometry,
                taps: &self.taps,
                bias: &self.taps_bias,
                input,
                input_start: needed.0,
                output: filtered,
                output_start: start,
            });
            let rows = start * output_side * self.shape.output..end * output_side * self.shape.output;
            if self.shape.adds_input() {
                // This overwrites input rows. Later strips need only their expanded form, which is already computed.
                self.project.add(filtered, &mut pixels[rows]);
            } else {
                self.project.run(filtered, &mut next[rows]);
            }
        }
        if !self.shape.adds_input() {
            std::mem::swap(pixels, next);
        }
    }

    /// Moves the rows of `expanded` that are needed again to the front, and computes those that are missing, so that
    /// `expanded` holds the input rows `needed` after the first pointwise convolution. `present` are those it held.
    fn expand_rows(
        &self,
        expand: &Pointwise,
        present: (usize, usize),
        needed: (usize, usize),
        pixels: &[f32],
        expanded: &mut [f32],
    ) {
        let (input_row, expanded_row) =
            (self.geometry.side * self.shape.input, self.geometry.side * self.shape.inner);
        // Strips follow each other from top to bottom, so the rows to keep are the last ones that are present.
        let kept_rows = present.1.saturating_sub(needed.0);
        let first_kept = needed.0.min(present.1) - present.0;
        expanded.copy_within(first_kept * expanded_row..(present.1 - present.0) * expanded_row, 0);
        let missing = needed.0 + kept_rows..needed.1;
        let expanded = &mut expanded[kept_rows * expanded_row..(needed.1 - needed.0) * expanded_row];
        expand.run_relu6(&pixels[missing.start * input_row..missing.end * input_row], expanded);
    }
}

/// Reads the parameters in the order of the layout.
struct ParameterReader<'a> {
    /// The shapes and values of the tensors that have not been read.
    tensors: std::vec::IntoIter<(Vec<usize>, &'a [f32])>,
}

impl<'a> ParameterReader<'a> {
    fn new(parameters: &'a [f32]) -> Self {
        let layout = layout();
        assert_eq!(parameters.len(), layout.len(), "number of parameters");
        let tensors = layout.tensors().iter();
        let tensors = tensors.map(|tensor| (tensor.shape.clone(), &parameters[tensor.range.clone()]));
        ParameterReader { tensors: tensors.collect::<Vec<_>>().into_iter() }
    }

    /// The next tensor: (shape, values).
    fn next(&mut self) -> (Vec<usize>, &'a [f32]) {
        self.tensors.next().expect("the layout has one more tensor")
    }

    /// A weight `[output channels, ..]`, transposed, and its bias.
    fn pointwise(&mut self) -> Pointwise {
        let ((shape, weights), (_, bias)) = (self.next(), self.next());
        let inputs = shape[1..].iter().product();
        Pointwise { inputs, weights: transposed(weights, inputs), bias: bias.to_vec() }
    }

    /// The stem's filters, with taps the 9 positions of a filter: `[output channels, channels, taps]` becomes
    /// `[taps, channels, output channels]`, the order of patches.
    fn stem(&mut self) -> Pointwise {
        let Pointwise { inputs, weights, bias } = self.pointwise();
        // In the new order row `tap * 3 + channel` is row `channel * 9 + tap` of the old one.
        let rows = (0..inputs).map(|index| index % 3 * 9 + index / 3);
        let weights = rows.flat_map(|row| weights[row * STEM..][..STEM].iter().copied()).collect();
        Pointwise { inputs, weights, bias }
    }

    /// A bottleneck for inputs of `side` x `side`.
    fn bottleneck(&mut self, shape: BottleneckShape, side: usize) -> Bottleneck {
        let (output_side, margin) = same_padding(side, shape.kernel, shape.stride);
        let BottleneckShape { kernel, stride, inner: channels, .. } = shape;
        let geometry = Geometry { kernel, stride, channels, side, output_side, margin };
        let expand = shape.expands().then(|| self.pointwise());
        // `[channels, K, K]` is transposed like a weight: to `[K, K, channels]`.
        let Pointwise { weights: taps, bias: taps_bias, .. } = self.pointwise();
        Bottleneck { shape, geometry, expand, taps, taps_bias, project: self.pointwise() }
    }
}

/// The transpose of a matrix that has `columns` columns.
fn transposed(weights: &[f32], columns: usize) -> Vec<f32> {
    let rows = weights.len() / columns;
    (0..columns).flat_map(|column| (0..rows).map(move |row| weights[row * columns + column])).collect()
}
