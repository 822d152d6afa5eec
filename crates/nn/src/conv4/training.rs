//! A training step of Conv4: batch statistics forward, gradients backward.
//!
//! Passes over memory cost as much as arithmetic here, so they are few. Forward, block 1 and 2 of an image follow
//! each other; the output transform of blocks 2 to 4 also gives the sums for batch norm and the maximum of every
//! window, so normalising touches pooled values only. Backward, the gradient at a pixel is
//! `a dy + b y + c` with one a, b, c a channel, where dy is nowhere but at a window's maximum, found again from
//! the stored outputs; block 2's input gradient stays in cache, because block 1 takes it up image by image.

use std::sync::Mutex;

use rayon::prelude::*;

use super::embedder::taps;
use super::first::{self, Moments, PATCH_VALUES, Places};
use super::passes::{Close, Normalise, Outputs, OutputsBackward};
use super::plane::{Pixel, Plane};
use super::tiles::{self, Block, Points};
use super::winograd::{self, FilterPoints, FilterPointsBackward, Filters, Taps};
use super::{BLOCKS, BlockRanges, EPS, Shape, TAPS, WIDTH, ranges};
use crate::isa::Isa;

/// Parts that the images are split into, whatever the number of threads.
const PARTS: usize = 16;
/// Blocks with 64 input channels.
pub(super) const LATER: usize = BLOCKS - 1;
/// How much a step moves the running statistics.
const MOMENTUM: f32 = 0.1;

/// A step in progress: buffers for a fixed number of images, used again and again.
pub struct Training {
    pub(super) shape: Shape,
    pub(super) isa: Isa,
    pub(super) images: usize,
    pub(super) blocks: Vec<BlockRanges>,
    pub(super) parts: Vec<Part>,
    pub(super) later: Vec<Later>,
    pub(super) first: Vec<Pixel>,
    pub(super) moments: Box<[[f64; PATCH_VALUES]; PATCH_VALUES]>,
    pub(super) norms: [Norm; BLOCKS],
    /// What the last way back did to the norms.
    pub(super) backs: [NormBackward; BLOCKS],
    features: Vec<f32>,
    scratch: Mutex<Vec<Scratch>>,
}

/// A block of 64 input channels: its filters, and their transposes for the way back.
pub(super) struct Later {
    pub filters: Filters,
    pub transposed: Filters,
}

impl Later {
    pub fn none() -> Self {
        Later { filters: winograd::no_filters(), transposed: winograd::no_filters() }
    }

    /// Takes the weights of a block, [to][from][tap], each output channel under its sign.
    pub fn set(&mut self, isa: Isa, weights: &[f32], sign: &Pixel) {
        isa.run(FilterPoints { taps: &taps(weights, sign), points: &mut self.filters });
        isa.run(FilterPoints { taps: &taps_transposed(weights, sign), points: &mut self.transposed });
    }
}

/// What batch norm did to a block. Channels with a negative gamma are negated throughout.
#[derive(Clone)]
pub(super) struct Norm {
    pub sign: Pixel,
    pub mean: [f64; WIDTH],
    var: [f64; WIDTH],
    /// 1 / sqrt(var + eps)
    pub inverse: [f64; WIDTH],
    /// |gamma| times that.
    pub scale: Pixel,
    pub shift: Pixel,
    /// Pixels that were averaged.
    pub count: f64,
}

impl Norm {
    const NONE: Norm = Norm {
        sign: Pixel::ZERO,
        mean: [0.0; WIDTH],
        var: [0.0; WIDTH],
        inverse: [0.0; WIDTH],
        scale: Pixel::ZERO,
        shift: Pixel::ZERO,
        count: 0.0,
    };
}

/// The images of one part.
pub(super) struct Part {
    from: usize,
    images: usize,
    pub padded: Vec<f32>,
    moments: Box<[[f64; PATCH_VALUES]; PATCH_VALUES]>,
    pub places: Vec<Places>,
    /// Inputs of blocks 2 to 4.
    pub inputs: [Vec<Pixel>; LATER],
    /// Outputs of their convolutions, S x S, and the maxima of their windows.
    pub outputs: [Vec<Pixel>; LATER],
    pub maxima: [Vec<Pixel>; LATER],
    /// Gradients behind their ReLU and pooling, as planes; zero where the ReLU was closed.
    pub d_pooled: [Vec<Pixel>; LATER],
    /// Sums over pixels: forward of y and y², backward of dy and dy y.
    sums: [[f64; WIDTH]; 2],
    d_taps: [Taps; LATER],
    pub d_first: Vec<Pixel>,
    d_first_sum: [f64; WIDTH],
}

/// Working memory of one thread.
struct Scratch {
    points: Points,
    products: Points,
    gradient: Filters,
    d_plane: Vec<Pixel>,
}

impl Training {
    /// Room for steps over so many images.
    ///
    /// # Panics
    /// If the shape is not possible.
    pub fn new(isa: Isa, shape: Shape, images: usize) -> Self {
        Self::in_parts(isa, shape, images, PARTS)
    }

    /// The same as one part, for batches that are too small to share: who has many gives each thread its own.
    ///
    /// # Panics
    /// If the shape is not possible.
    pub fn undivided(isa: Isa, shape: Shape, images: usize) -> Self {
        Self::in_parts(isa, shape, images, 1)
    }

    fn in_parts(isa: Isa, shape: Shape, images: usize, count: usize) -> Self {
        assert!(shape.is_possible(), "{shape:?}");
        let bounds = |part: usize| images * part / count;
        let parts = (0..count).map(|part| Part::new(shape, bounds(part), bounds(part + 1) - bounds(part)));
        Training {
            shape,
            isa,
            images,
            blocks: ranges(shape.channels).1,
            parts: parts.filter(|part| part.images > 0).collect(),
            later: (0..LATER).map(|_| Later::none()).collect(),
            first: vec![Pixel::ZERO; TAPS * shape.channels],
            moments: Box::new([[0.0; PATCH_VALUES]; PATCH_VALUES]),
            norms: [Norm::NONE; BLOCKS],
            backs: [NormBackward::NONE; BLOCKS],
            features: vec![0.0; images * shape.features()],
            scratch: Mutex::new(Vec::new()),
        }
    }

    /// The embeddings of normalised pictures under the statistics of this batch.
    ///
    /// # Panics
    /// If the lengths are not those of the layout and the number of images.
    pub fn forward(&mut self, parameters: &[f32], images: &[f32]) -> &[f32] {
        self.take_images(images);
        self.forward_again(parameters)
    }

    /// Takes in the pictures of the next [`forward_again`](Self::forward_again).
    ///
    /// # Panics
    /// If they are not as many as there is room for.
    pub fn take_images(&mut self, images: &[f32]) {
        assert_eq!(images.len(), self.images * self.shape.pixels());
        let (shape, isa) = (self.shape, self.isa);
        self.parts.par_iter_mut().for_each(|part| {
            let from = part.from * shape.pixels();
            let images = &images[from..from + part.images * shape.pixels()];
            part.take_images(isa, shape, images);
        });
        self.moments.iter_mut().for_each(|row| row.fill(0.0));
        for part in &self.parts {
            for (sums, row) in self.moments.iter_mut().zip(&*part.moments) {
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += value);
            }
        }
    }

    /// Takes over the pictures of another, which has as many.
    pub fn share_images(&mut self, other: &Training) {
        for (part, other) in self.parts.iter_mut().zip(&other.parts) {
            part.padded.clone_from(&other.padded);
        }
        self.moments.clone_from(&other.moments);
    }

    /// The embeddings of the pictures it has, under other parameters.
    ///
    /// # Panics
    /// If the parameters are fewer than those of the layout.
    pub fn forward_again(&mut self, parameters: &[f32]) -> &[f32] {
        self.prepare(parameters);
        self.first_statistics(parameters);
        self.first_and_second();
        self.statistics(1, parameters);
        for block in 2..BLOCKS {
            self.later_block(block);
            self.statistics(block, parameters);
        }
        self.collect_features();
        &self.features
    }

    /// Adds the gradient of the parameters to `gradient`, given that of the embeddings of the last
    /// [`forward`](Self::forward).
    pub fn backward(&mut self, parameters: &[f32], d_features: &[f32], gradient: &mut [f32]) {
        assert_eq!(d_features.len(), self.images * self.shape.features());
        self.take_features(d_features);
        for block in (1..BLOCKS).rev() {
            let back = self.norm_backward(block, gradient);
            self.later_backward(block, &back);
            self.collect_taps(block, gradient);
            self.backs[block] = back;
        }
        self.first_backward(parameters, gradient);
    }

    /// Moves the running statistics towards those of the last [`forward`](Self::forward).
    pub fn update_running(&self, parameters: &mut [f32]) {
        for (block, norm) in self.blocks.iter().zip(&self.norms) {
            for c in 0..WIDTH {
                let bias = parameters[block.bias.start + c];
                let mean = norm.mean[c] as f32 * norm.sign.0[c] + bias;
                let var = (norm.var[c] * norm.count / (norm.count - 1.0).max(1.0)) as f32;
                let move_to = |running: &mut f32, value: f32| *running += MOMENTUM * (value - *running);
                move_to(&mut parameters[block.running_mean.start + c], mean);
                move_to(&mut parameters[block.running_var.start + c], var);
            }
        }
    }

    pub(super) fn plane(&self, block: usize) -> Plane {
        Plane { side: self.shape.side(block) }
    }

    /// Signs and filters of this step.
    fn prepare(&mut self, parameters: &[f32]) {
        for (block, norm) in self.blocks.iter().zip(&mut self.norms) {
            for (sign, gamma) in norm.sign.0.iter_mut().zip(&parameters[block.gamma.clone()]) {
                *sign = if *gamma < 0.0 { -1.0 } else { 1.0 };
            }
        }
        let isa = self.isa;
        first_taps(&parameters[self.blocks[0].weight.clone()], &self.norms[0].sign, &mut self.first);
        let jobs = self.later.par_iter_mut().zip(&self.blocks[1..]).zip(&self.norms[1..]);
        jobs.for_each(|((later, block), norm)| {
            later.set(isa, &parameters[block.weight.clone()], &norm.sign);
        });
    }

    /// The first block's mean and variance from the second moments of its patches.
    fn first_statistics(&mut self, parameters: &[f32]) {
        let count = (self.images * self.shape.size.pow(2)) as f64;
        let one = self.first.len();
        let mut sums = [[0.0; WIDTH]; 2];
        for c in 0..WIDTH {
            let weights: Vec<f64> = self.first.iter().map(|tap| f64::from(tap.0[c])).collect();
            let times = |row: &[f64; PATCH_VALUES]| weights.iter().zip(row).map(|(w, m)| w * m).sum::<f64>();
            sums[0][c] = times(&self.moments[one]);
            sums[1][c] = self.moments[..one].iter().zip(&weights).map(|(row, w)| w * times(row)).sum();
        }
        self.settle(0, parameters, &sums, count);
    }

    /// Turns sums of y and y² into what the norm does.
    fn settle(&mut self, block: usize, parameters: &[f32], sums: &[[f64; WIDTH]; 2], count: f64) {
        let (ranges, norm) = (&self.blocks[block], &mut self.norms[block]);
        norm.count = count;
        for c in 0..WIDTH {
            let (gamma, beta) = (parameters[ranges.gamma.start + c], parameters[ranges.beta.start + c]);
            norm.mean[c] = sums[0][c] / count;
            norm.var[c] = (sums[1][c] / count - norm.mean[c].powi(2)).max(0.0);
            norm.inverse[c] = (norm.var[c] + f64::from(EPS)).sqrt().recip();
            let scale = f64::from(gamma.abs()) * norm.inverse[c];
            norm.scale.0[c] = scale as f32;
            norm.shift.0[c] = (f64::from(beta) - scale * norm.mean[c]) as f32;
        }
    }

    fn first_and_second(&mut self) {
        let (shape, isa, plane) = (self.shape, self.isa, self.plane(1));
        let norm = &self.norms[0];
        let mut folded = self.first.clone();
        for tap in &mut folded {
            tap.0.iter_mut().zip(&norm.scale.0).for_each(|(tap, scale)| *tap *= scale);
        }
        let (filters, scratch) = (&self.later[0].filters, &self.scratch);
        self.parts.par_iter_mut().for_each(|part| {
            with_scratch(scratch, plane, |scratch| {
                part.sums = [[0.0; WIDTH]; 2];
                let padded = first::padded_len(shape);
                let windows = plane.side.pow(2);
                for image in 0..part.images {
                    isa.run(first::Forward {
                        shape,
                        padded: &part.padded[image * padded..(image + 1) * padded],
                        taps: &folded,
                        bias: &norm.shift,
                        plane,
                        out: &mut part.inputs[0][image * plane.len()..(image + 1) * plane.len()],
                        places: Some(&mut part.places[image * windows..(image + 1) * windows]),
                    });
                    let tiles = image * plane.tiles()..(image + 1) * plane.tiles();
                    part.convolve(isa, 0, plane, tiles, filters, scratch);
                }
            });
        });
    }

    /// Normalises what the block before left, and convolves it.
    fn later_block(&mut self, block: usize) {
        let (isa, plane) = (self.isa, self.plane(block));
        let (first, norm) = (self.plane(1), &self.norms[block - 1]);
        let (filters, scratch) = (&self.later[block - 1].filters, &self.scratch);
        self.parts.par_iter_mut().for_each(|part| {
            with_scratch(scratch, first, |scratch| {
                part.sums = [[0.0; WIDTH]; 2];
                let (maxima, to) = (&part.maxima[block - 2], &mut part.inputs[block - 1]);
                isa.run(Normalise { norm, plane, maxima, to });
                part.convolve(isa, block - 1, plane, 0..part.images * plane.tiles(), filters, scratch);
            });
        });
    }

    fn statistics(&mut self, block: usize, parameters: &[f32]) {
        let sums = self.summed();
        let count = (self.images * self.shape.side(block).pow(2)) as f64;
        self.settle(block, parameters, &sums, count);
    }

    /// The parts' sums in their order.
    fn summed(&self) -> [[f64; WIDTH]; 2] {
        let mut sums = [[0.0; WIDTH]; 2];
        for part in &self.parts {
            for (sums, values) in sums.iter_mut().zip(&part.sums) {
                sums.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
            }
        }
        sums
    }

    fn collect_features(&mut self) {
        let (places, norm) = (self.shape.side(BLOCKS).pow(2), &self.norms[BLOCKS - 1]);
        let maxima = self.parts.iter().flat_map(|part| part.maxima[LATER - 1].chunks_exact(places));
        for (maxima, out) in maxima.zip(self.features.chunks_exact_mut(self.shape.features())) {
            for (place, pixel) in maxima.iter().enumerate() {
                for c in 0..WIDTH {
                    out[c * places + place] = (norm.scale.0[c] * pixel.0[c] + norm.shift.0[c]).max(0.0);
                }
            }
        }
    }

    /// Brings the gradient of the embeddings into planes, closed where the ReLU was, with the norm's sums.
    fn take_features(&mut self, d_features: &[f32]) {
        let (shape, isa, norm) = (self.shape, self.isa, &self.norms[BLOCKS - 1]);
        let plane = self.plane(BLOCKS);
        self.parts.par_iter_mut().for_each(|part| {
            let from = part.from * shape.features();
            let d_features = &d_features[from..from + part.images * shape.features()];
            let places = plane.side.pow(2);
            for (image, d_features) in d_features.chunks_exact(shape.features()).enumerate() {
                for place in 0..places {
                    let at = image * plane.len() + plane.at(place / plane.side, place % plane.side);
                    for c in 0..WIDTH {
                        part.d_pooled[LATER - 1][at].0[c] = d_features[c * places + place];
                    }
                }
            }
            part.sums = [[0.0; WIDTH]; 2];
            part.close(isa, LATER - 1, plane, norm, 0..part.images);
        });
    }

    /// The gradients of gamma and beta, and the coefficients of the gradient at every pixel.
    fn norm_backward(&self, block: usize, gradient: &mut [f32]) -> NormBackward {
        let sums = self.summed();
        let mut products = [0.0; WIDTH];
        let norm = &self.norms[block];
        for c in 0..WIDTH {
            products[c] = norm.inverse[c] * (sums[1][c] - norm.mean[c] * sums[0][c]);
        }
        NormBackward::new(&self.blocks[block], norm, &sums[0], &products, gradient)
    }

    fn later_backward(&mut self, block: usize, back: &NormBackward) {
        let (isa, shape, plane, first) = (self.isa, self.shape, self.plane(block), self.plane(1));
        let before = &self.norms[block - 1];
        let (filters, scratch) = (&self.later[block - 1].transposed, &self.scratch);
        self.parts.par_iter_mut().for_each(|part| {
            with_scratch(scratch, first, |scratch| {
                part.sums = [[0.0; WIDTH]; 2];
                scratch.gradient.iter_mut().for_each(|matrix| matrix.fill(Pixel::ZERO));
                if block == 1 {
                    part.second_and_first_backward(isa, shape, plane, back, filters, scratch);
                } else {
                    part.backward(isa, block, plane, back, before, filters, scratch);
                }
                let taps = &mut part.d_taps[block - 1];
                isa.run(FilterPointsBackward { points: &scratch.gradient, taps });
            });
        });
    }

    /// Adds the parts' filter gradients, in their order, to those of the weights.
    fn collect_taps(&self, block: usize, gradient: &mut [f32]) {
        let sign = &self.norms[block].sign.0;
        let weights = &mut gradient[self.blocks[block].weight.clone()];
        let columns: Vec<[Pixel; WIDTH]> = (0..TAPS)
            .into_par_iter()
            .map(|tap| {
                let mut sum = [Pixel::ZERO; WIDTH];
                for part in &self.parts {
                    for (sum, row) in sum.iter_mut().zip(&part.d_taps[block - 1][tap]) {
                        sum.0.iter_mut().zip(&row.0).for_each(|(sum, value)| *sum += value);
                    }
                }
                sum
            })
            .collect();
        weights.par_chunks_exact_mut(WIDTH * TAPS).zip(sign).enumerate().for_each(|(o, (weights, sign))| {
            for (place, weight) in weights.iter_mut().enumerate() {
                *weight += sign * columns[place % TAPS][place / TAPS].0[o];
            }
        });
    }

    fn first_backward(&mut self, parameters: &[f32], gradient: &mut [f32]) {
        let values = self.first.len();
        let (block, norm) = (&self.blocks[0], &self.norms[0]);
        let (mut reached, mut sum) = (vec![[0.0f64; WIDTH]; values], [0.0; WIDTH]);
        for part in &self.parts {
            for (reached, tap) in reached.iter_mut().zip(&part.d_first) {
                reached.iter_mut().zip(&tap.0).for_each(|(sum, value)| *sum += f64::from(*value));
            }
            sum.iter_mut().zip(&part.d_first_sum).for_each(|(sum, value)| *sum += value);
        }
        let mut products = [0.0; WIDTH];
        for c in 0..WIDTH {
            // The sum of dy y, since y is the patch times the weights.
            let dy_y: f64 = self.first.iter().zip(&reached).map(|(w, r)| f64::from(w.0[c]) * r[c]).sum();
            products[c] = norm.inverse[c] * (dy_y - norm.mean[c] * sum[c]);
        }
        let back = NormBackward::new(block, norm, &sum, &products, gradient);
        let channels = self.shape.channels;
        debug_assert_eq!(parameters[block.weight.clone()].len(), WIDTH * values);
        for c in 0..WIDTH {
            for place in 0..values {
                let row = &self.moments[place];
                let y_patch: f64 = self.first.iter().zip(row).map(|(w, m)| f64::from(w.0[c]) * m).sum();
                let patches = row[values];
                let value = f64::from(back.reached.0[c]) * reached[place][c]
                    + f64::from(back.output.0[c]) * y_patch
                    + f64::from(back.constant.0[c]) * patches;
                let at = block.weight.start + c * values + place % channels * TAPS + place / channels;
                gradient[at] += norm.sign.0[c] * value as f32;
            }
        }
        self.backs[0] = back;
    }
}

/// The gradient at a pixel before the norm: `reached` times what reached it, `output` times its own value, plus
/// `constant`.
#[derive(Clone)]
pub(super) struct NormBackward {
    pub reached: Pixel,
    pub output: Pixel,
    pub constant: Pixel,
    /// The sums it was made of: of dy, and of dy times the normalised output.
    pub sums: [f64; WIDTH],
    pub products: [f64; WIDTH],
}

impl NormBackward {
    const NONE: NormBackward = NormBackward {
        reached: Pixel::ZERO,
        output: Pixel::ZERO,
        constant: Pixel::ZERO,
        sums: [0.0; WIDTH],
        products: [0.0; WIDTH],
    };

    /// From the sums of dy and of dy times the normalised output; adds the gradients of gamma and beta.
    fn new(
        block: &BlockRanges,
        norm: &Norm,
        sums: &[f64; WIDTH],
        products: &[f64; WIDTH],
        gradient: &mut [f32],
    ) -> Self {
        let mut back = NormBackward { sums: *sums, products: *products, ..NormBackward::NONE };
        for c in 0..WIDTH {
            gradient[block.gamma.start + c] += norm.sign.0[c] * products[c] as f32;
            gradient[block.beta.start + c] += sums[c] as f32;
            let scale = f64::from(norm.scale.0[c]);
            let output = -scale * norm.inverse[c] * products[c] / norm.count;
            back.reached.0[c] = scale as f32;
            back.output.0[c] = output as f32;
            back.constant.0[c] = (-scale * sums[c] / norm.count - output * norm.mean[c]) as f32;
        }
        back
    }
}

/// The first block's filters as [tap][from][to], each output channel under its sign.
pub(super) fn first_taps(weights: &[f32], sign: &Pixel, taps: &mut [Pixel]) {
    let channels = taps.len() / TAPS;
    for (o, weights) in weights.chunks_exact(taps.len()).enumerate() {
        for (place, tap) in taps.iter_mut().enumerate() {
            tap.0[o] = weights[place % channels * TAPS + place / channels] * sign.0[o];
        }
    }
}

/// Filters as [tap][to][from], for the way back.
fn taps_transposed(weights: &[f32], sign: &Pixel) -> Taps {
    let mut taps = vec![[Pixel::ZERO; WIDTH]; TAPS];
    for (o, weights) in weights.chunks_exact(WIDTH * TAPS).enumerate() {
        for (place, weight) in weights.iter().enumerate() {
            taps[place % TAPS][o].0[place / TAPS] = weight * sign.0[o];
        }
    }
    taps
}

/// Lends working memory to some work.
fn with_scratch(pool: &Mutex<Vec<Scratch>>, first: Plane, work: impl FnOnce(&mut Scratch)) {
    let taken = pool.lock().expect("nobody panics while holding it").pop();
    let mut scratch = taken.unwrap_or_else(|| Scratch {
        points: Points::new(),
        products: Points::new(),
        gradient: winograd::no_filters(),
        d_plane: first.zeros(1),
    });
    work(&mut scratch);
    pool.lock().expect("nobody panics while holding it").push(scratch);
}

impl Part {
    fn new(shape: Shape, from: usize, images: usize) -> Self {
        let side = |later: usize| shape.side(later + 1);
        let plane = |later: usize| Plane { side: side(later) };
        let pixels = |later: usize| vec![Pixel::ZERO; images * side(later).pow(2)];
        Part {
            from,
            images,
            padded: vec![0.0; images * first::padded_len(shape)],
            moments: Box::new([[0.0; PATCH_VALUES]; PATCH_VALUES]),
            places: vec![[0; WIDTH]; images * side(0).pow(2)],
            inputs: std::array::from_fn(|later| plane(later).zeros(images)),
            outputs: std::array::from_fn(pixels),
            maxima: std::array::from_fn(|later| pixels(later + 1)),
            d_pooled: std::array::from_fn(|later| plane(later + 1).zeros(images)),
            sums: [[0.0; WIDTH]; 2],
            d_taps: std::array::from_fn(|_| vec![[Pixel::ZERO; WIDTH]; TAPS]),
            d_first: vec![Pixel::ZERO; TAPS * shape.channels],
            d_first_sum: [0.0; WIDTH],
        }
    }

    fn take_images(&mut self, isa: Isa, shape: Shape, images: &[f32]) {
        self.moments.iter_mut().for_each(|row| row.fill(0.0));
        let padded = self.padded.chunks_exact_mut(first::padded_len(shape));
        for (padded, image) in padded.zip(images.chunks_exact(shape.pixels())) {
            first::pad(shape, image, padded);
            let mut moments: Moments = [[0.0; PATCH_VALUES]; PATCH_VALUES];
            isa.run(first::PatchMoments { shape, padded, moments: &mut moments });
            for (sums, row) in self.moments.iter_mut().zip(&moments) {
                sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
            }
        }
    }

    fn convolve(
        &mut self,
        isa: Isa,
        later: usize,
        plane: Plane,
        tiles: std::ops::Range<usize>,
        filters: &Filters,
        scratch: &mut Scratch,
    ) {
        let Scratch { points, products, .. } = scratch;
        for first in tiles.clone().step_by(tiles::SLOTS) {
            let block = Block { plane, first, count: tiles::SLOTS.min(tiles.end - first) };
            isa.run(tiles::Input { block, pixels: &self.inputs[later], points });
            isa.run(tiles::Products { count: block.count, terms: [(points, filters)], out: products });
            let [sum, squares] = isa.run(Outputs {
                block,
                points: products,
                outputs: &mut self.outputs[later],
                maxima: &mut self.maxima[later],
            });
            self.add_sums(&sum, &squares);
        }
    }

    fn add_sums(&mut self, first: &Pixel, second: &Pixel) {
        for (sums, pixel) in self.sums.iter_mut().zip([first, second]) {
            sums.iter_mut().zip(&pixel.0).for_each(|(sum, value)| *sum += f64::from(*value));
        }
    }

    /// Takes the ReLU into account and sums up what the norm's backward pass needs.
    fn close(&mut self, isa: Isa, later: usize, plane: Plane, norm: &Norm, images: std::ops::Range<usize>) {
        for image in images {
            let windows = plane.side.pow(2);
            let [sum, products] = isa.run(Close {
                norm,
                plane,
                maxima: &self.maxima[later][image * windows..(image + 1) * windows],
                gradient: &mut self.d_pooled[later][image * plane.len()..(image + 1) * plane.len()],
            });
            self.add_sums(&sum, &products);
        }
    }

    /// Blocks 3 and 4: the filters' gradient, and the input's, closed by the ReLU of the block before.
    #[allow(clippy::too_many_arguments)]
    fn backward(
        &mut self,
        isa: Isa,
        block: usize,
        plane: Plane,
        back: &NormBackward,
        before: &Norm,
        filters: &Filters,
        scratch: &mut Scratch,
    ) {
        let later = block - 1;
        let mut d_input = std::mem::take(&mut self.d_pooled[later - 1]);
        d_input.fill(Pixel::ZERO);
        for tiles in tiles::blocks(plane, self.images) {
            self.tiles_backward(isa, later, tiles, back, filters, scratch);
            isa.run(tiles::InputBackward { block: tiles, points: &scratch.points, pixels: &mut d_input });
        }
        self.d_pooled[later - 1] = d_input;
        self.close(isa, later - 1, plane, before, 0..self.images);
    }

    /// Blocks 2 and 1, image by image.
    fn second_and_first_backward(
        &mut self,
        isa: Isa,
        shape: Shape,
        plane: Plane,
        back: &NormBackward,
        filters: &Filters,
        scratch: &mut Scratch,
    ) {
        self.d_first.fill(Pixel::ZERO);
        self.d_first_sum.fill(0.0);
        let (padded, windows) = (first::padded_len(shape), plane.side.pow(2));
        for image in 0..self.images {
            scratch.d_plane.fill(Pixel::ZERO);
            for first in (0..plane.tiles()).step_by(tiles::SLOTS) {
                let count = tiles::SLOTS.min(plane.tiles() - first);
                let tiles = Block { plane, first: image * plane.tiles() + first, count };
                self.tiles_backward(isa, 0, tiles, back, filters, scratch);
                let alone = Block { plane, first, count };
                let Scratch { points, d_plane, .. } = scratch;
                isa.run(tiles::InputBackward { block: alone, points, pixels: d_plane });
            }
            let mut sum = Pixel::ZERO;
            isa.run(first::Backward {
                shape,
                padded: &self.padded[image * padded..(image + 1) * padded],
                plane,
                out: &self.inputs[0][image * plane.len()..(image + 1) * plane.len()],
                places: &self.places[image * windows..(image + 1) * windows],
                d_out: &scratch.d_plane,
                taps: &mut self.d_first,
                sum: &mut sum,
            });
            self.d_first_sum.iter_mut().zip(&sum.0).for_each(|(sum, value)| *sum += f64::from(*value));
        }
    }

    /// Leaves the gradient of a block of tiles' points in `scratch.points`, having added the filters' gradient.
    fn tiles_backward(
        &mut self,
        isa: Isa,
        later: usize,
        block: Block,
        back: &NormBackward,
        filters: &Filters,
        scratch: &mut Scratch,
    ) {
        let Scratch { points, products, gradient, .. } = scratch;
        isa.run(tiles::Input { block, pixels: &self.inputs[later], points });
        isa.run(OutputsBackward {
            block,
            back,
            outputs: &self.outputs[later],
            pooled: Plane { side: block.plane.side / 2 },
            d_pooled: &self.d_pooled[later],
            points: products,
        });
        let count = block.count;
        isa.run(tiles::FilterGradient { count, inputs: points, outputs: products, gradient });
        isa.run(tiles::Products { count, terms: [(products, filters)], out: points });
    }
}
