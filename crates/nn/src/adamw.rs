//! AdamW as PyTorch has it: the decay is decoupled from the gradient; and Adam, where it is part of it.
//!
//! A step is cut into pieces that share nothing, so that a pool of threads can work on them in any order. Each
//! adds up the gradients of a step's parts in their order, updates its stretch of the parameters, and leaves
//! the gradients at zero for the next step: four passes over memory in one. Constant tensors are not touched.

use std::ops::Range;

use crate::isa::Isa;
use crate::kernel::kernel;
use crate::parameters::{Layout, Role};
use crate::real::Real;

/// What stays the same throughout a training.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Settings {
    /// How slowly the mean of gradients forgets.
    pub beta1: f64,
    /// How slowly the mean of squared gradients forgets.
    pub beta2: f64,
    /// Keeps quotients finite.
    pub epsilon: f64,
    /// Decoupled weight decay.
    pub decay: f64,
    /// Weight decay as part of the gradient: Adam's own.
    pub pull: f64,
}

impl Default for Settings {
    /// PyTorch's.
    fn default() -> Self {
        Settings { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, decay: 0.01, pull: 0.0 }
    }
}

/// The optimiser with its memory.
#[derive(Debug, Clone, PartialEq)]
pub struct AdamW {
    settings: Settings,
    step: u64,
    first: Vec<f32>,
    second: Vec<f32>,
    trained: Vec<Range<usize>>,
}

impl AdamW {
    /// One that has seen nothing yet.
    pub fn new(layout: &Layout, settings: Settings) -> Self {
        let mut trained: Vec<Range<usize>> = Vec::new();
        for tensor in layout.tensors().iter().filter(|tensor| tensor.role == Role::Trained) {
            match trained.last_mut() {
                Some(last) if last.end == tensor.range.start => last.end = tensor.range.end,
                _ => trained.push(tensor.range.clone()),
            }
        }
        let zeros = vec![0.0; layout.len()];
        AdamW { settings, step: 0, first: zeros.clone(), second: zeros, trained }
    }

    /// Goes on from what [`AdamW::memory`] said.
    ///
    /// # Panics
    /// If the memory is not as long as the parameters.
    #[must_use]
    pub fn resumed(mut self, step: u64, first: Vec<f32>, second: Vec<f32>) -> Self {
        assert_eq!((first.len(), second.len()), (self.first.len(), self.second.len()));
        (self.step, self.first, self.second) = (step, first, second);
        self
    }

    /// Steps taken, and the running means of gradients and of their squares: all it remembers.
    pub fn memory(&self) -> (u64, &[f32], &[f32]) {
        (self.step, &self.first, &self.second)
    }

    /// The pieces of the next step, of at most `size` numbers each; the step is done when each was applied.
    /// The gradient is the sum of `gradients` (in their order) times `scale`.
    ///
    /// # Panics
    /// If a buffer is not as long as the parameters.
    pub fn pieces<'a>(
        &'a mut self,
        rate: f64,
        scale: f64,
        parameters: &'a mut [f32],
        gradients: &'a mut [Vec<f32>],
        size: usize,
    ) -> Vec<Piece<'a>> {
        assert_eq!(parameters.len(), self.first.len());
        assert!(gradients.iter().all(|gradient| gradient.len() == parameters.len()));
        self.step += 1;
        let update = Update::new(self.settings, rate, scale, self.step);
        let mut rest = Piece {
            update,
            parameters,
            first: &mut self.first,
            second: &mut self.second,
            gradients: gradients.iter_mut().map(Vec::as_mut_slice).collect(),
        };
        let (mut pieces, mut at) = (Vec::new(), 0);
        for range in &self.trained {
            rest.split_off(range.start - at);
            at = range.end;
            let mut left = range.len();
            while left > 0 {
                let length = left.min(size.max(1));
                pieces.push(rest.split_off(length));
                left -= length;
            }
        }
        pieces
    }

    /// A whole step on this thread.
    ///
    /// # Panics
    /// If a buffer is not as long as the parameters.
    pub fn step(
        &mut self,
        isa: Isa,
        rate: f64,
        scale: f64,
        parameters: &mut [f32],
        gradients: &mut [Vec<f32>],
    ) {
        for piece in self.pieces(rate, scale, parameters, gradients, 1 << 14) {
            piece.apply(isa);
        }
    }
}

/// The numbers of one step.
#[derive(Debug, Clone, Copy)]
struct Update<T> {
    scale: T,
    beta1: T,
    beta2: T,
    keep: T,
    pull: T,
    rate: T,
    second_scale: T,
    epsilon: T,
}

impl<T: Real> Update<T> {
    fn new(settings: Settings, rate: f64, scale: f64, step: u64) -> Self {
        let corrected = |beta: f64| 1.0 - beta.powf(step as f64);
        Update {
            scale: T::from_f64(scale),
            beta1: T::from_f64(settings.beta1),
            beta2: T::from_f64(settings.beta2),
            keep: T::from_f64(1.0 - rate * settings.decay),
            pull: T::from_f64(settings.pull),
            rate: T::from_f64(rate / corrected(settings.beta1)),
            second_scale: T::from_f64(corrected(settings.beta2).sqrt().recip()),
            epsilon: T::from_f64(settings.epsilon),
        }
    }
}

/// A stretch of the parameters in one step.
#[derive(Debug)]
pub struct Piece<'a> {
    update: Update<f32>,
    parameters: &'a mut [f32],
    first: &'a mut [f32],
    second: &'a mut [f32],
    gradients: Vec<&'a mut [f32]>,
}

impl<'a> Piece<'a> {
    /// Cuts off the front.
    fn split_off(&mut self, length: usize) -> Piece<'a> {
        let cut = |slice: &mut &'a mut [f32]| -> &'a mut [f32] {
            slice.split_off_mut(..length).expect("ranges lie in the buffer, in order")
        };
        Piece {
            update: self.update,
            parameters: cut(&mut self.parameters),
            first: cut(&mut self.first),
            second: cut(&mut self.second),
            gradients: self.gradients.iter_mut().map(cut).collect(),
        }
    }

    /// Does it: parameters and memory move on, gradients become zero.
    pub fn apply(self, isa: Isa) {
        let Piece { update, parameters, first, second, mut gradients } = self;
        let Some((gradient, others)) = gradients.split_first_mut() else { return };
        for other in others {
            gather(isa, other, gradient);
        }
        change(isa, update, gradient, parameters, first, second);
    }
}

kernel! {
    fn gather<'a, T>(from: &'a mut [T], to: &'a mut [T]) {
        for (to, from) in to.iter_mut().zip(from) {
            *to += *from;
            *from = T::ZERO;
        }
    }
}

kernel! {
    fn change<'a, T>(
        update: Update<T>,
        gradient: &'a mut [T],
        parameters: &'a mut [T],
        first: &'a mut [T],
        second: &'a mut [T],
    ) {
        let Update { scale, beta1, beta2, keep, pull, rate, second_scale, epsilon } = update;
        for (((gradient, value), m), v) in gradient.iter_mut().zip(parameters).zip(first).zip(second) {
            let slope = *gradient * scale + pull * *value;
            *gradient = T::ZERO;
            *m = beta1 * *m + (T::ONE - beta1) * slope;
            *v = beta2 * *v + (T::ONE - beta2) * slope * slope;
            *value = *value * keep - rate * *m / (v.sqrt() * second_scale + epsilon);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::differences::Numbers;

    fn layout() -> Layout {
        let mut layout = Layout::default();
        layout.add("a", &[7, 5], Role::Trained);
        layout.add("b", &[20], Role::Trained);
        layout.add("still", &[9], Role::Constant);
        layout.add("c", &[41], Role::Trained);
        layout
    }

    /// The textbook, in f64 and one number after the other.
    fn textbook(settings: Settings, value: f64, slopes: &[f64], rate: f64) -> f64 {
        let (mut value, mut m, mut v) = (value, 0.0, 0.0);
        for (step, slope) in slopes.iter().enumerate() {
            let slope = slope + settings.pull * value;
            m = settings.beta1 * m + (1.0 - settings.beta1) * slope;
            v = settings.beta2 * v + (1.0 - settings.beta2) * slope * slope;
            let m = m / (1.0 - settings.beta1.powi(step as i32 + 1));
            let v = v / (1.0 - settings.beta2.powi(step as i32 + 1));
            value -= rate * settings.decay * value;
            value -= rate * m / (v.sqrt() + settings.epsilon);
        }
        value
    }

    #[test]
    fn any_pieces_on_any_instruction_set_agree_with_the_textbook() {
        let layout = layout();
        let settings = Settings { decay: 0.1, pull: 0.03, ..Settings::default() };
        let mut numbers = Numbers::new(2);
        let start = numbers.singles(layout.len());
        let slopes: Vec<[Vec<f32>; 2]> =
            (0..20).map(|_| [numbers.singles(layout.len()), numbers.singles(layout.len())]).collect();
        for (isa, size) in
            Isa::ALL.into_iter().filter(|isa| isa.is_usable()).flat_map(|i| [(i, 13), (i, 1000)])
        {
            let (mut optimiser, mut parameters) = (AdamW::new(&layout, settings), start.clone());
            for slopes in &slopes {
                let mut gradients = slopes.to_vec();
                for piece in optimiser.pieces(0.01, 0.5, &mut parameters, &mut gradients, size) {
                    piece.apply(isa);
                }
                let trained = (0..55).chain(64..105);
                assert!(trained.into_iter().all(|i| gradients[0][i] == 0.0 && gradients[1][i] == 0.0));
            }
            assert_eq!(parameters[55..64], start[55..64], "constants stay");
            for i in (0..55).chain(64..105) {
                let slopes: Vec<f64> = slopes.iter().map(|s| 0.5 * f64::from(s[0][i] + s[1][i])).collect();
                let expected = textbook(settings, f64::from(start[i]), &slopes, 0.01);
                assert!((f64::from(parameters[i]) - expected).abs() < 1e-5, "{isa:?}, {size}");
            }
        }
    }

    #[test]
    fn a_resumed_optimiser_goes_on_as_if_nothing_had_happened() {
        let layout = layout();
        let mut numbers = Numbers::new(3);
        let gradients: Vec<Vec<f32>> = (0..6).map(|_| numbers.singles(layout.len())).collect();
        let run = |stop: usize| {
            let mut optimiser = AdamW::new(&layout, Settings::default());
            let mut parameters = vec![0.5; layout.len()];
            for (i, gradient) in gradients.iter().enumerate() {
                if i == stop {
                    let (step, first, second) = optimiser.memory();
                    let (first, second) = (first.to_vec(), second.to_vec());
                    optimiser = AdamW::new(&layout, Settings::default()).resumed(step, first, second);
                }
                optimiser.step(Isa::current(), 0.1, 1.0, &mut parameters, &mut [gradient.clone()]);
            }
            parameters
        };
        assert_eq!(run(3), run(99));
    }
}
