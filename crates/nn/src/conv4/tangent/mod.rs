//! How a pass of Conv4 moves when its parameters do: the R-operator (Pearlmutter, 1994), tangents carried through
//! the forward and the backward pass. The tangent of a gradient is the Hessian times the direction, exactly, at
//! twice the cost of the gradient.
//!
//! Convolutions are linear in pictures and in filters, so a moved output is two of them, and a moved gradient
//! again: the same Winograd kernels, on sums of two products. Batch norm is one scale and one shift a channel
//! forward, and `a dy + b y + c` backward; all of these move, and how follows from sums over pixels as they
//! do themselves. The first block is again never stored: its input stands still, so its moments serve the
//! tangents too. Names: what is moved is `moved_*`, in formulas a dot.

mod passes;

use super::first::{self, PATCH_VALUES};
use super::passes as still;
use super::plane::{Pixel, Plane};
use super::tiles::{self, Points};
use super::training::{LATER, Later, Norm, NormBackward, Part, Training, first_taps};
use super::winograd::{self, FilterPointsBackward, Filters, Taps};
use super::{BLOCKS, TAPS, WIDTH};

/// How batch norm moves.
#[derive(Clone)]
struct NormTangent {
    mean: [f64; WIDTH],
    inverse: [f64; WIDTH],
    scale: Pixel,
    shift: Pixel,
}

/// Room for the tangents of a pass, used again and again.
pub struct Tangent {
    inputs: [Vec<Pixel>; LATER],
    outputs: [Vec<Pixel>; LATER],
    maxima: [Vec<Pixel>; LATER],
    d_pooled: [Vec<Pixel>; LATER],
    d_plane: Vec<Pixel>,
    later: Vec<Later>,
    first: Vec<Pixel>,
    norms: [NormTangent; BLOCKS],
    features: Vec<f32>,
    scratch: Scratch,
}

/// Tiles on their way: inputs and outputs, as they are and moved.
struct Scratch {
    inputs: Points,
    moved_inputs: Points,
    outputs: Points,
    moved_outputs: Points,
    gradient: Filters,
    d_taps: Taps,
}

impl Tangent {
    /// Room for the tangents of such passes.
    ///
    /// # Panics
    /// If the pass is in several parts.
    pub fn new(of: &Training) -> Self {
        assert_eq!(of.parts.len(), 1, "an undivided pass");
        let (images, shape) = (of.images, of.shape);
        let pixels = |later: usize| vec![Pixel::ZERO; images * shape.side(later + 1).pow(2)];
        let none = || NormTangent {
            mean: [0.0; WIDTH],
            inverse: [0.0; WIDTH],
            scale: Pixel::ZERO,
            shift: Pixel::ZERO,
        };
        Tangent {
            inputs: std::array::from_fn(|later| of.plane(later + 1).zeros(images)),
            outputs: std::array::from_fn(pixels),
            maxima: std::array::from_fn(|later| pixels(later + 1)),
            d_pooled: std::array::from_fn(|later| of.plane(later + 2).zeros(images)),
            d_plane: of.plane(1).zeros(images),
            later: (0..LATER).map(|_| Later::none()).collect(),
            first: vec![Pixel::ZERO; TAPS * shape.channels],
            norms: std::array::from_fn(|_| none()),
            features: vec![0.0; images * shape.features()],
            scratch: Scratch {
                inputs: Points::new(),
                moved_inputs: Points::new(),
                outputs: Points::new(),
                moved_outputs: Points::new(),
                gradient: winograd::no_filters(),
                d_taps: vec![[Pixel::ZERO; WIDTH]; TAPS],
            },
        }
    }

    /// How the embeddings of the last forward pass move with the parameters, along `direction`.
    pub fn forward(&mut self, of: &Training, parameters: &[f32], direction: &[f32]) -> &[f32] {
        for ((later, block), norm) in self.later.iter_mut().zip(&of.blocks[1..]).zip(&of.norms[1..]) {
            later.set(of.isa, &direction[block.weight.clone()], &norm.sign);
        }
        first_taps(&direction[of.blocks[0].weight.clone()], &of.norms[0].sign, &mut self.first);
        self.first_block(of, parameters, direction);
        for block in 1..BLOCKS {
            if block > 1 {
                self.normalise(of, block);
            }
            let sums = self.convolve(of, block);
            self.norms[block] = NormTangent::new(of, block, parameters, direction, &sums);
        }
        self.collect_features(of);
        &self.features
    }

    /// Adds how the gradient of the last backward pass moves to `moved_gradient`, given how that of the
    /// embeddings does: after [`forward`](Self::forward), with the same parameters and direction.
    pub fn backward(
        &mut self,
        of: &Training,
        parameters: &[f32],
        moved_d_features: &[f32],
        moved_gradient: &mut [f32],
    ) {
        self.take_features(of, moved_d_features);
        for block in (1..BLOCKS).rev() {
            let sums = self.close(of, block);
            let back = self.norm_backward(of, block, parameters, &sums, moved_gradient);
            self.block_backward(of, block, &back);
            self.collect_taps(of, block, moved_gradient);
        }
        self.first_backward(of, parameters, moved_gradient);
    }

    fn first_block(&mut self, of: &Training, parameters: &[f32], direction: &[f32]) {
        let one = self.first.len();
        let mut sums = [[0.0; WIDTH]; 2];
        for c in 0..WIDTH {
            let (weights, moved) = (channel(&of.first, c), channel(&self.first, c));
            sums[0][c] = dot(&moved, &of.moments[one]);
            sums[1][c] = of.moments[..one].iter().zip(&weights).map(|(row, w)| w * dot(&moved, row)).sum();
        }
        self.norms[0] = NormTangent::new(of, 0, parameters, direction, &sums);
        let (norm, moved) = (&of.norms[0], &self.norms[0]);
        let mut folded = self.first.clone();
        for (folded, tap) in folded.iter_mut().zip(&of.first) {
            for c in 0..WIDTH {
                folded.0[c] = moved.scale.0[c] * tap.0[c] + norm.scale.0[c] * folded.0[c];
            }
        }
        let (plane, padded, part) = (of.plane(1), first::padded_len(of.shape), &of.parts[0]);
        let windows = plane.side.pow(2);
        for image in 0..of.images {
            let pixels = image * plane.len()..(image + 1) * plane.len();
            of.isa.run(first::ForwardTangent {
                shape: of.shape,
                padded: &part.padded[image * padded..(image + 1) * padded],
                taps: &folded,
                bias: &moved.shift,
                plane,
                out: &part.inputs[0][pixels.clone()],
                places: &part.places[image * windows..(image + 1) * windows],
                tangent: &mut self.inputs[0][pixels],
            });
        }
    }

    fn normalise(&mut self, of: &Training, block: usize) {
        let before = block - 2;
        of.isa.run(passes::Normalise {
            norm: &of.norms[block - 1],
            moved_norm: &self.norms[block - 1],
            plane: of.plane(block),
            maxima: &of.parts[0].maxima[before],
            moved_maxima: &self.maxima[before],
            to: &mut self.inputs[block - 1],
        });
    }

    /// `(x * W)˙ = ẋ * W + x * Ẇ`, with the sums of ẏ and y ẏ.
    fn convolve(&mut self, of: &Training, block: usize) -> [[f64; WIDTH]; 2] {
        let (later, isa, part) = (block - 1, of.isa, &of.parts[0]);
        let Scratch { inputs, moved_inputs, moved_outputs, .. } = &mut self.scratch;
        let mut sums = [[0.0; WIDTH]; 2];
        for tiles in tiles::blocks(of.plane(block), of.images) {
            isa.run(tiles::Input { block: tiles, pixels: &part.inputs[later], points: inputs });
            isa.run(tiles::Input { block: tiles, pixels: &self.inputs[later], points: moved_inputs });
            let terms = [(&*moved_inputs, &of.later[later].filters), (&*inputs, &self.later[later].filters)];
            isa.run(tiles::Products { count: tiles.count, terms, out: moved_outputs });
            let found = isa.run(passes::Outputs {
                block: tiles,
                points: moved_outputs,
                outputs: &part.outputs[later],
                moved: &mut self.outputs[later],
                moved_maxima: &mut self.maxima[later],
            });
            add(&mut sums, &found);
        }
        sums
    }

    fn collect_features(&mut self, of: &Training) {
        let (places, norm, moved) =
            (of.shape.side(BLOCKS).pow(2), &of.norms[BLOCKS - 1], &self.norms[BLOCKS - 1]);
        let maxima = of.parts[0].maxima[LATER - 1].chunks_exact(places);
        let maxima = maxima.zip(self.maxima[LATER - 1].chunks_exact(places));
        for ((maxima, moved_maxima), out) in maxima.zip(self.features.chunks_exact_mut(of.shape.features())) {
            for (place, (y, moved_y)) in maxima.iter().zip(moved_maxima).enumerate() {
                for c in 0..WIDTH {
                    let is_open = norm.scale.0[c] * y.0[c] + norm.shift.0[c] > 0.0;
                    let value = moved.scale.0[c] * y.0[c] + norm.scale.0[c] * moved_y.0[c] + moved.shift.0[c];
                    out[c * places + place] = if is_open { value } else { 0.0 };
                }
            }
        }
    }

    fn take_features(&mut self, of: &Training, moved_d_features: &[f32]) {
        let plane = of.plane(BLOCKS);
        let places = plane.side.pow(2);
        for (image, features) in moved_d_features.chunks_exact(of.shape.features()).enumerate() {
            for place in 0..places {
                let at = image * plane.len() + plane.at(place / plane.side, place % plane.side);
                for c in 0..WIDTH {
                    self.d_pooled[LATER - 1][at].0[c] = features[c * places + place];
                }
            }
        }
    }

    /// Takes a block's ReLU into account, with the sums of ġ and of (g y)˙.
    fn close(&mut self, of: &Training, block: usize) -> [[f64; WIDTH]; 2] {
        let (later, plane, part) = (block - 1, of.plane(block + 1), &of.parts[0]);
        let windows = plane.side.pow(2);
        let mut sums = [[0.0; WIDTH]; 2];
        for image in 0..of.images {
            let (pooled, pixels) =
                (image * windows..(image + 1) * windows, image * plane.len()..(image + 1) * plane.len());
            let found = of.isa.run(passes::Close {
                norm: &of.norms[block],
                plane,
                maxima: &part.maxima[later][pooled.clone()],
                moved_maxima: &self.maxima[later][pooled],
                gradient: &part.d_pooled[later][pixels.clone()],
                moved_gradient: &mut self.d_pooled[later][pixels],
            });
            add(&mut sums, &found);
        }
        sums
    }

    /// Adds the moved gradients of gamma and beta; how the coefficients of the gradient at every pixel move.
    fn norm_backward(
        &self,
        of: &Training,
        block: usize,
        parameters: &[f32],
        sums: &[[f64; WIDTH]; 2],
        moved_gradient: &mut [f32],
    ) -> NormBackward {
        let (norm, moved, back) = (&of.norms[block], &self.norms[block], &of.backs[block]);
        let ranges = &of.blocks[block];
        let mut out = back.clone();
        for c in 0..WIDTH {
            let (sum, product) = (back.sums[c], back.products[c]);
            let (inverse, moved_inverse) = (norm.inverse[c], moved.inverse[c]);
            // Of `inverse (sum of g y - mean sum of g)`.
            let moved_product = moved_inverse * product / inverse
                + inverse * (sums[1][c] - moved.mean[c] * sum - norm.mean[c] * sums[0][c]);
            moved_gradient[ranges.gamma.start + c] += norm.sign.0[c] * moved_product as f32;
            moved_gradient[ranges.beta.start + c] += sums[0][c] as f32;
            let gamma = f64::from(parameters[ranges.gamma.start + c].abs());
            let (scale, moved_scale) = (gamma * inverse, f64::from(moved.scale.0[c]));
            let output = -scale * inverse * product / norm.count;
            let moved_output = -(moved_scale * inverse * product
                + scale * moved_inverse * product
                + scale * inverse * moved_product)
                / norm.count;
            out.reached.0[c] = moved_scale as f32;
            out.output.0[c] = moved_output as f32;
            out.constant.0[c] = (-(moved_scale * sum + scale * sums[0][c]) / norm.count
                - moved_output * norm.mean[c]
                - output * moved.mean[c]) as f32;
        }
        out
    }

    /// `(x ⋆ dy)˙` into the scratch's filter gradient, and the moved gradient of the input.
    fn block_backward(&mut self, of: &Training, block: usize, moved_back: &NormBackward) {
        let (later, isa, part) = (block - 1, of.isa, &of.parts[0]);
        let pooled = of.plane(block + 1);
        let d_input = if later == 0 { &mut self.d_plane } else { &mut self.d_pooled[later - 1] };
        let mut d_input = std::mem::take(d_input);
        d_input.fill(Pixel::ZERO);
        let Scratch { inputs, moved_inputs, outputs, moved_outputs, gradient, d_taps } = &mut self.scratch;
        gradient.iter_mut().for_each(|matrix| matrix.fill(Pixel::ZERO));
        for tiles in tiles::blocks(of.plane(block), of.images) {
            let count = tiles.count;
            isa.run(tiles::Input { block: tiles, pixels: &part.inputs[later], points: inputs });
            isa.run(tiles::Input { block: tiles, pixels: &self.inputs[later], points: moved_inputs });
            isa.run(still::OutputsBackward {
                block: tiles,
                back: &of.backs[block],
                outputs: &part.outputs[later],
                pooled,
                d_pooled: &part.d_pooled[later],
                points: outputs,
            });
            isa.run(passes::OutputsBackward {
                block: tiles,
                back: &of.backs[block],
                moved_back,
                outputs: &part.outputs[later],
                moved: &self.outputs[later],
                pooled,
                d_pooled: &part.d_pooled[later],
                moved_d_pooled: &self.d_pooled[later],
                points: moved_outputs,
            });
            isa.run(tiles::FilterGradient { count, inputs: moved_inputs, outputs, gradient });
            isa.run(tiles::FilterGradient { count, inputs, outputs: moved_outputs, gradient });
            let terms =
                [(&*moved_outputs, &of.later[later].transposed), (&*outputs, &self.later[later].transposed)];
            isa.run(tiles::Products { count, terms, out: inputs });
            isa.run(tiles::InputBackward { block: tiles, points: inputs, pixels: &mut d_input });
        }
        isa.run(FilterPointsBackward { points: gradient, taps: d_taps });
        let place = if later == 0 { &mut self.d_plane } else { &mut self.d_pooled[later - 1] };
        *place = d_input;
    }

    fn collect_taps(&self, of: &Training, block: usize, moved_gradient: &mut [f32]) {
        let sign = &of.norms[block].sign.0;
        let weights = &mut moved_gradient[of.blocks[block].weight.clone()];
        for (o, weights) in weights.chunks_exact_mut(WIDTH * TAPS).enumerate() {
            for (place, weight) in weights.iter_mut().enumerate() {
                *weight += sign[o] * self.scratch.d_taps[place % TAPS][place / TAPS].0[o];
            }
        }
    }

    fn first_backward(&mut self, of: &Training, parameters: &[f32], moved_gradient: &mut [f32]) {
        let (moved_reached, moved_sum) = self.first_reached(of);
        let values = self.first.len();
        let reached = &of.parts[0].d_first;
        let mut sums = [moved_sum, [0.0; WIDTH]];
        for c in 0..WIDTH {
            // Of the sum of g y, since y is the patch times the weights.
            let pairs = of.first.iter().zip(&self.first).zip(reached.iter().zip(&moved_reached));
            let terms = pairs.map(|((w, moved_w), (r, moved_r))| {
                f64::from(w.0[c]) * f64::from(moved_r.0[c]) + f64::from(moved_w.0[c]) * f64::from(r.0[c])
            });
            sums[1][c] = terms.sum();
        }
        let moved_back = self.norm_backward(of, 0, parameters, &sums, moved_gradient);
        let (back, block, channels) = (&of.backs[0], &of.blocks[0], of.shape.channels);
        for c in 0..WIDTH {
            let (weights, moved) = (channel(&of.first, c), channel(&self.first, c));
            let of_channel = |pixel: &Pixel| f64::from(pixel.0[c]);
            for place in 0..values {
                let row = &of.moments[place];
                let value = of_channel(&moved_back.reached) * of_channel(&reached[place])
                    + of_channel(&back.reached) * of_channel(&moved_reached[place])
                    + of_channel(&moved_back.output) * dot(&weights, row)
                    + of_channel(&back.output) * dot(&moved, row)
                    + of_channel(&moved_back.constant) * row[values];
                let at = block.weight.start + c * values + place % channels * TAPS + place / channels;
                moved_gradient[at] += of.norms[0].sign.0[c] * value as f32;
            }
        }
    }

    /// The moved gradient that reaches the first block's maxima, times their patches, and its sum.
    fn first_reached(&self, of: &Training) -> (Vec<Pixel>, [f64; WIDTH]) {
        let (plane, padded, part): (Plane, usize, &Part) =
            (of.plane(1), first::padded_len(of.shape), &of.parts[0]);
        let windows = plane.side.pow(2);
        let (mut taps, mut total) = (vec![Pixel::ZERO; self.first.len()], [0.0; WIDTH]);
        for image in 0..of.images {
            let pixels = image * plane.len()..(image + 1) * plane.len();
            let mut sum = Pixel::ZERO;
            of.isa.run(first::Backward {
                shape: of.shape,
                padded: &part.padded[image * padded..(image + 1) * padded],
                plane,
                out: &part.inputs[0][pixels.clone()],
                places: &part.places[image * windows..(image + 1) * windows],
                d_out: &self.d_plane[pixels],
                taps: &mut taps,
                sum: &mut sum,
            });
            total.iter_mut().zip(&sum.0).for_each(|(total, value)| *total += f64::from(*value));
        }
        (taps, total)
    }
}

impl NormTangent {
    /// From the sums of ẏ and y ẏ.
    fn new(
        of: &Training,
        block: usize,
        parameters: &[f32],
        direction: &[f32],
        sums: &[[f64; WIDTH]; 2],
    ) -> Self {
        let (norm, ranges): (&Norm, _) = (&of.norms[block], &of.blocks[block]);
        let mut out =
            NormTangent { mean: [0.0; WIDTH], inverse: [0.0; WIDTH], scale: Pixel::ZERO, shift: Pixel::ZERO };
        for c in 0..WIDTH {
            let (gamma, moved_gamma) =
                (parameters[ranges.gamma.start + c].abs(), direction[ranges.gamma.start + c]);
            out.mean[c] = sums[0][c] / norm.count;
            let moved_var = 2.0 * (sums[1][c] / norm.count - norm.mean[c] * out.mean[c]);
            out.inverse[c] = -0.5 * norm.inverse[c].powi(3) * moved_var;
            let gamma = f64::from(gamma);
            let moved_gamma = f64::from(norm.sign.0[c] * moved_gamma);
            let moved_scale = moved_gamma * norm.inverse[c] + gamma * out.inverse[c];
            out.scale.0[c] = moved_scale as f32;
            let moved_beta = f64::from(direction[ranges.beta.start + c]);
            out.shift.0[c] =
                (moved_beta - moved_scale * norm.mean[c] - gamma * norm.inverse[c] * out.mean[c]) as f32;
        }
        out
    }
}

fn add(sums: &mut [[f64; WIDTH]; 2], found: &[Pixel; 2]) {
    for (sums, pixel) in sums.iter_mut().zip(found) {
        sums.iter_mut().zip(&pixel.0).for_each(|(sum, value)| *sum += f64::from(*value));
    }
}

/// One output channel of the first block's taps.
fn channel(taps: &[Pixel], c: usize) -> Vec<f64> {
    taps.iter().map(|tap| f64::from(tap.0[c])).collect()
}

/// Weights times moments; a row of moments is longer by the one and what rounds it up.
fn dot(weights: &[f64], row: &[f64; PATCH_VALUES]) -> f64 {
    weights.iter().zip(row).map(|(w, m)| w * m).sum()
}
