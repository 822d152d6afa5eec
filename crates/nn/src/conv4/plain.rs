//! The textbook Conv4 in f64, forward and backward: what the tuned kernels are held against.

use super::{BLOCKS, EPS, Shape, WIDTH, ranges};

/// A batch on its way: [image][channel][row][column].
struct Stage {
    channels: usize,
    side: usize,
    input: Vec<f64>,
    output: Vec<f64>,
    mean: Vec<f64>,
    inverse: Vec<f64>,
    /// Where in `output` the maximum of every window is.
    places: Vec<usize>,
    pooled: Vec<f64>,
}

/// Embeddings with batch statistics (or running ones), and what the way back needs.
pub struct Pass {
    stages: Vec<Stage>,
    images: usize,
}

pub fn forward(shape: Shape, parameters: &[f64], images: &[f64], batch_statistics: bool) -> Pass {
    let count = images.len() / shape.pixels();
    let mut input = vec![0.0; images.len()];
    for (at, value) in images.iter().enumerate() {
        let (pixel, channel) = (at / shape.channels, at % shape.channels);
        let (image, place) = (pixel / shape.size.pow(2), pixel % shape.size.pow(2));
        input[(image * shape.channels + channel) * shape.size.pow(2) + place] = *value;
    }
    let mut stages: Vec<Stage> = Vec::new();
    for block in 0..BLOCKS {
        let channels = if block == 0 { shape.channels } else { WIDTH };
        let input = stages.last().map_or_else(|| input.clone(), |stage| stage.pooled.clone());
        stages.push(stage(shape, block, channels, count, parameters, input, batch_statistics));
    }
    Pass { stages, images: count }
}

fn neighbours(side: usize, row: usize, column: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..9).filter_map(move |tap| {
        let (r, c) = ((row + tap / 3).checked_sub(1)?, (column + tap % 3).checked_sub(1)?);
        (r < side && c < side).then_some((tap, r * side + c))
    })
}

fn stage(
    shape: Shape,
    block: usize,
    channels: usize,
    images: usize,
    parameters: &[f64],
    input: Vec<f64>,
    batch_statistics: bool,
) -> Stage {
    let ranges = &ranges(shape.channels).1[block];
    let (side, weights) = (shape.side(block), &parameters[ranges.weight.clone()]);
    let plane = side * side;
    let mut output = vec![0.0; images * WIDTH * plane];
    for image in 0..images {
        for o in 0..WIDTH {
            for place in 0..plane {
                let mut sum = parameters[ranges.bias.start + o];
                for (tap, from) in neighbours(side, place / side, place % side) {
                    for i in 0..channels {
                        sum += weights[(o * channels + i) * 9 + tap]
                            * input[(image * channels + i) * plane + from];
                    }
                }
                output[(image * WIDTH + o) * plane + place] = sum;
            }
        }
    }
    let (mut mean, mut inverse) = (vec![0.0; WIDTH], vec![0.0; WIDTH]);
    for o in 0..WIDTH {
        let values = || {
            let output = &output;
            (0..images).flat_map(move |image| output[(image * WIDTH + o) * plane..][..plane].iter())
        };
        let count = (images * plane) as f64;
        mean[o] = values().sum::<f64>() / count;
        let mut var = values().map(|value| (value - mean[o]).powi(2)).sum::<f64>() / count;
        if !batch_statistics {
            mean[o] = parameters[ranges.running_mean.start + o];
            var = parameters[ranges.running_var.start + o];
        }
        inverse[o] = (var + f64::from(EPS)).sqrt().recip();
    }
    let half = side / 2;
    let (mut places, mut pooled) = (Vec::new(), Vec::new());
    for image in 0..images {
        for o in 0..WIDTH {
            let (gamma, beta) = (parameters[ranges.gamma.start + o], parameters[ranges.beta.start + o]);
            for window in 0..half * half {
                let first = (image * WIDTH + o) * plane + window / half * 2 * side + window % half * 2;
                let four = [first, first + 1, first + side, first + side + 1];
                let value = |place: usize| gamma * (output[place] - mean[o]) * inverse[o] + beta;
                let best = four.into_iter().max_by(|a, b| value(*a).total_cmp(&value(*b))).unwrap();
                places.push(best);
                pooled.push(value(best).max(0.0));
            }
        }
    }
    Stage { channels, side, input, output, mean, inverse, places, pooled }
}

impl Pass {
    pub fn features(&self) -> &[f64] {
        &self.stages[BLOCKS - 1].pooled
    }

    pub fn backward(&self, shape: Shape, parameters: &[f64], d_features: &[f64]) -> Vec<f64> {
        let (layout, all) = ranges(shape.channels);
        let mut gradient = vec![0.0; layout.len()];
        let mut d_pooled = d_features.to_vec();
        for (stage, ranges) in self.stages.iter().zip(&all).rev() {
            let (side, plane) = (stage.side, stage.side.pow(2));
            let half = (side / 2).pow(2);
            let mut d_norm = vec![0.0; stage.output.len()];
            for (at, place) in stage.places.iter().enumerate() {
                if stage.pooled[at] > 0.0 {
                    d_norm[*place] += d_pooled[at];
                }
            }
            debug_assert_eq!(stage.places.len(), self.images * WIDTH * half);
            let mut d_output = vec![0.0; stage.output.len()];
            let count = (self.images * plane) as f64;
            for o in 0..WIDTH {
                let all: Vec<usize> = (0..self.images)
                    .flat_map(|image| (0..plane).map(move |place| (image * WIDTH + o) * plane + place))
                    .collect();
                let normal = |at: usize| (stage.output[at] - stage.mean[o]) * stage.inverse[o];
                let sum: f64 = all.iter().map(|at| d_norm[*at]).sum();
                let products: f64 = all.iter().map(|at| d_norm[*at] * normal(*at)).sum();
                gradient[ranges.beta.start + o] = sum;
                gradient[ranges.gamma.start + o] = products;
                let scale = parameters[ranges.gamma.start + o] * stage.inverse[o];
                for at in all {
                    d_output[at] = scale * (d_norm[at] - sum / count - normal(at) * products / count);
                }
            }
            let weights = &parameters[ranges.weight.clone()];
            d_pooled = vec![0.0; stage.input.len()];
            for image in 0..self.images {
                for o in 0..WIDTH {
                    for place in 0..plane {
                        let d = d_output[(image * WIDTH + o) * plane + place];
                        for (tap, from) in neighbours(side, place / side, place % side) {
                            for i in 0..stage.channels {
                                let (weight, at) = (
                                    (o * stage.channels + i) * 9 + tap,
                                    (image * stage.channels + i) * plane + from,
                                );
                                gradient[ranges.weight.start + weight] += d * stage.input[at];
                                d_pooled[at] += d * weights[weight];
                            }
                        }
                    }
                }
            }
        }
        gradient
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Embedder, Training, initial, layout};
    use super::*;
    use crate::isa::Isa;

    fn random(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed;
        move || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    fn wide(values: &[f32]) -> Vec<f64> {
        values.iter().map(|&value| f64::from(value)).collect()
    }

    /// Parameters like those of a model in training, some gammas negative, and pictures.
    fn example(shape: Shape, images: usize, seed: u64) -> (Vec<f32>, Vec<f32>) {
        let mut random = random(seed);
        let mut parameters = initial(shape.channels, &mut random);
        for block in ranges(shape.channels).1 {
            for range in [block.gamma, block.beta, block.bias, block.running_mean] {
                parameters[range].fill_with(|| random() as f32 - 0.3);
            }
            parameters[block.running_var].fill_with(|| 0.2 + random() as f32);
        }
        let pictures = (0..images * shape.pixels()).map(|_| random() as f32 * 2.0 - 1.0).collect();
        (parameters, pictures)
    }

    fn worst(found: &[f32], expected: &[f64]) -> f64 {
        let largest = expected.iter().fold(0.0f64, |a, b| a.max(b.abs()));
        let pairs = found.iter().zip(expected);
        pairs.map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max) / largest.max(1e-30)
    }

    const SHAPES: [(Shape, usize); 4] = [
        (Shape { size: 16, channels: 3 }, 3),
        (Shape { size: 28, channels: 1 }, 2),
        (Shape { size: 21, channels: 3 }, 5),
        (Shape { size: 32, channels: 3 }, 2),
    ];

    fn usable() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_usable())
    }

    #[test]
    fn embeddings_agree_with_the_textbook_on_every_instruction_set() {
        for (shape, images) in SHAPES {
            let (parameters, pictures) = example(shape, images, 7);
            let pass = forward(shape, &wide(&parameters), &wide(&pictures), false);
            let embedder = Embedder::new(shape, &parameters);
            for isa in usable() {
                let mut out = vec![0.0; images * shape.features()];
                embedder.embed(isa, &pictures, &mut out, &mut embedder.scratch());
                let off = worst(&out, pass.features());
                assert!(off < 2e-5, "{isa:?} {shape:?}: off by {off}");
            }
        }
    }

    #[test]
    fn a_training_step_agrees_with_the_textbook_on_every_instruction_set() {
        for (shape, images) in SHAPES {
            let (parameters, pictures) = example(shape, images, 11);
            let pass = forward(shape, &wide(&parameters), &wide(&pictures), true);
            let mut random = random(3);
            let d_features: Vec<f32> = pass.features().iter().map(|_| random() as f32 - 0.5).collect();
            let expected = pass.backward(shape, &wide(&parameters), &wide(&d_features));
            for isa in usable() {
                let mut training = Training::new(isa, shape, images);
                let off = worst(training.forward(&parameters, &pictures), pass.features());
                assert!(off < 5e-5, "{isa:?} {shape:?}: embeddings off by {off}");
                let mut gradient = vec![0.0; parameters.len()];
                training.backward(&parameters, &d_features, &mut gradient);
                for tensor in layout(shape.channels).tensors() {
                    let (found, expected) =
                        (&gradient[tensor.range.clone()], &expected[tensor.range.clone()]);
                    let off = worst(found, expected);
                    let nothing = tensor.name.contains("conv.bias") || tensor.name.contains("running");
                    assert!(nothing || off < 1e-3, "{isa:?} {shape:?} {}: off by {off}", tensor.name);
                    assert!(!nothing || found.iter().all(|value| *value == 0.0), "{}", tensor.name);
                }
            }
        }
    }

    #[test]
    fn the_textbook_gradient_agrees_with_central_differences() {
        let shape = Shape { size: 16, channels: 1 };
        let (parameters, pictures) = example(shape, 2, 5);
        let (parameters, pictures) = (wide(&parameters), wide(&pictures));
        let pass = forward(shape, &parameters, &pictures, true);
        let mut random = random(9);
        let d_features: Vec<f64> = pass.features().iter().map(|_| random() - 0.5).collect();
        let gradient = pass.backward(shape, &parameters, &d_features);
        let loss = |parameters: &[f64]| -> f64 {
            let pass = forward(shape, parameters, &pictures, true);
            pass.features().iter().zip(&d_features).map(|(f, d)| f * d).sum()
        };
        let layout = layout(1);
        for tensor in layout
            .tensors()
            .iter()
            .filter(|tensor| tensor.name.contains("weight") || tensor.name.ends_with("norm.bias"))
        {
            for _ in 0..3 {
                let at = tensor.range.start + (random() * tensor.range.len() as f64) as usize;
                let mut moved = parameters.clone();
                let step = 1e-6;
                moved[at] += step;
                let above = loss(&moved);
                moved[at] -= 2.0 * step;
                let difference = (above - loss(&moved)) / (2.0 * step);
                let off = (difference - gradient[at]).abs() / (1.0 + difference.abs());
                assert!(off < 1e-5, "{} at {at}: {difference} against {}", tensor.name, gradient[at]);
            }
        }
    }

    #[test]
    fn any_number_of_threads_gives_the_same_bytes() {
        let shape = Shape { size: 20, channels: 3 };
        let (parameters, pictures) = example(shape, 37, 13);
        let step = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| {
                let mut training = Training::new(Isa::current(), shape, 37);
                let features = training.forward(&parameters, &pictures).to_vec();
                let mut gradient = vec![0.0; parameters.len()];
                training.backward(&parameters, &features, &mut gradient);
                (features, gradient)
            })
        };
        let (one, three) = (step(1), step(3));
        assert!(
            one.0
                .iter()
                .zip(&three.0)
                .chain(one.1.iter().zip(&three.1))
                .all(|(a, b)| a.to_bits() == b.to_bits())
        );
    }

    #[test]
    fn running_statistics_move_a_tenth_of_the_way_to_those_of_the_batch() {
        let shape = Shape { size: 16, channels: 3 };
        let (mut parameters, pictures) = example(shape, 3, 17);
        let pass = forward(shape, &wide(&parameters), &wide(&pictures), true);
        let before = parameters.clone();
        let mut training = Training::new(Isa::current(), shape, 3);
        training.forward(&parameters, &pictures);
        training.update_running(&mut parameters);
        for (stage, ranges) in pass.stages.iter().zip(ranges(3).1) {
            let count = (3 * stage.side.pow(2)) as f64;
            for c in 0..WIDTH {
                let var = (stage.inverse[c].powi(-2) - f64::from(EPS)) * count / (count - 1.0);
                for (at, target) in
                    [(ranges.running_mean.start + c, stage.mean[c]), (ranges.running_var.start + c, var)]
                {
                    let expected = 0.9 * f64::from(before[at]) + 0.1 * target;
                    assert!((f64::from(parameters[at]) - expected).abs() < 1e-5 * (1.0 + expected.abs()));
                }
            }
        }
    }
}
