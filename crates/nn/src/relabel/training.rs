//! The losses of episodes and their gradient.

use std::ops::Range;

use super::Relabel;
use super::config::Config;
use super::episode_batch::split_into_batches;
use super::losses::{QueryLoss, QueryProducts, item_loss, query_loss};
use super::network_input::{NetworkInput, RelabelInput};
use super::posterior::{Logits, Posterior};
use crate::head::Episode;
use crate::real::Real;

/// The names of the loss's terms.
pub(super) const TERMS: [&str; 2] = ["items", "queries"];

/// The batches of neighbouring episodes that share a dropout mask, each with the seed of its mask. Episodes are given by
/// their numbers of states (items times classes), and `seed` is that of [`crate::head::Head::losses`].
///
/// The index of a number in the mask is `item * dim + column`, with the items of a batch counted from 0.
pub fn dropout_batches(states: impl Iterator<Item = usize>, seed: u64) -> Vec<(Range<usize>, u64)> {
    // The step of SplitMix64, so that every batch has a dropout mask of its own.
    let seed_of = |number: u64| seed.wrapping_add((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (0..).zip(split_into_batches(states)).map(|(number, batch)| (batch, seed_of(number))).collect()
}

impl Relabel {
    /// [`crate::head::Head::losses`] in either precision.
    ///
    /// # Panics
    /// If an episode has no items or no classes, or shapes disagree.
    pub(super) fn losses_and_gradient<T: Real>(
        &self,
        parameters: &[T],
        episodes: &[Episode<'_, T>],
        seed: u64,
        gradient: &mut [T],
    ) -> Vec<f64> {
        let size = self.builder.layout.len();
        assert_eq!((parameters.len(), gradient.len()), (size, size), "lengths of parameters and gradient");
        let mut sums = vec![0.0; TERMS.len()];
        let states = episodes.iter().map(|episode| episode.classes * episode.support.len());
        for (batch, seed) in dropout_batches(states, seed) {
            let losses = self.batch_losses(parameters, &episodes[batch], seed, gradient);
            sums.iter_mut().zip(losses).for_each(|(sum, loss)| *sum += loss);
        }
        sums
    }

    fn batch_losses<T: Real>(
        &self,
        parameters: &[T],
        episodes: &[Episode<'_, T>],
        seed: u64,
        gradient: &mut [T],
    ) -> [f64; TERMS.len()] {
        let inputs: Vec<RelabelInput<'_, T>> = episodes.iter().map(input_of).collect();
        inputs.iter().for_each(|input| self.check_input(input));
        let network_input = NetworkInput::new(&inputs, self.config.centred);
        let (mut logits, cache) = self.network.forward(parameters, &network_input, seed);
        let mut sums = [0.0; TERMS.len()];
        for (number, episode) in episodes.iter().enumerate() {
            let losses =
                self.episode_losses(parameters, &network_input, number, episode, &mut logits, gradient);
            sums.iter_mut().zip(losses).for_each(|(sum, loss)| *sum += loss);
        }
        self.network.backward(parameters, &network_input, &cache, &logits, gradient);
        sums
    }

    /// The losses of one episode. Its part of `logits` is replaced by its gradient.
    fn episode_losses<T: Real>(
        &self,
        parameters: &[T],
        network_input: &NetworkInput<'_, T>,
        number: usize,
        episode: &Episode<'_, T>,
        logits: &mut Logits<Vec<T>>,
        gradient: &mut [T],
    ) -> [f64; TERMS.len()] {
        let (span, space) = (&network_input.batch.spans[number], &network_input.spaces[number]);
        let Config { floor, items_weight, queries_weight, .. } = self.config;
        let (prior, log_scale) = (self.network.prior.clone(), self.network.log_scale.start);
        let posterior = Posterior::new(span, &parameters[prior.clone()], logits.of(span), floor);
        let (items, d_logits) =
            item_loss(&posterior.probabilities, episode.truth, span.classes, items_weight);
        let queries = QueryProducts::new(space, episode);
        let QueryLoss { loss: queries, d_weights, d_log_scale } =
            query_loss(space, &queries, &posterior.weights, parameters[log_scale], queries_weight);
        gradient[log_scale] += d_log_scale;
        posterior.backward(span, &d_weights, d_logits, logits.of_mut(span), &mut gradient[prior]);
        [items, queries]
    }
}

fn input_of<'a, T>(episode: &Episode<'a, T>) -> RelabelInput<'a, T> {
    RelabelInput { classes: episode.classes, given: episode.given, rows: episode.support, gram: None }
}
