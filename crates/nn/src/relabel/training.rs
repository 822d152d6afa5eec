//! Training the head: the losses of episodes and their gradient.

use super::Relabel;
use super::batch::groups;
use super::config::Config;
use super::losses::{PlacedQueries, QueriesLoss, items_loss, queries_loss};
use super::network::Outputs;
use super::prepare::{Prepared, Support};
use super::verdict::Verdict;
use crate::head::Episode;
use crate::isa::Isa;
use crate::real::Real;

/// The names of the terms.
pub(super) const TERMS: [&str; 2] = ["items", "queries"];

/// What a call works with.
#[derive(Clone, Copy)]
struct Work<'a, T> {
    isa: Isa,
    parameters: &'a [T],
}

impl Relabel {
    /// [`crate::head::Head::losses`] in either precision.
    ///
    /// # Panics
    /// If an episode has no items or no classes, or shapes disagree.
    pub fn losses_of<T: Real>(
        &self,
        isa: Isa,
        parameters: &[T],
        episodes: &[Episode<'_, T>],
        seed: u64,
        gradient: &mut [T],
    ) -> Vec<f64> {
        let size = self.plan.layout.len();
        assert_eq!((parameters.len(), gradient.len()), (size, size), "numbers of parameters and gradient");
        let mut sums = vec![0.0; TERMS.len()];
        let groups = groups(episodes.iter().map(|episode| episode.classes * episode.support.len()));
        for (number, group) in groups.into_iter().enumerate() {
            // SplitMix64's step, so that no two groups drop alike.
            let seed = seed.wrapping_add((number as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let losses = self.losses_together(Work { isa, parameters }, &episodes[group], seed, gradient);
            sums.iter_mut().zip(losses).for_each(|(sum, loss)| *sum += loss);
        }
        sums
    }

    fn losses_together<T: Real>(
        &self,
        work: Work<'_, T>,
        episodes: &[Episode<'_, T>],
        seed: u64,
        gradient: &mut [T],
    ) -> [f64; TERMS.len()] {
        let Work { isa, parameters } = work;
        let supports: Vec<Support<'_, T>> = episodes.iter().map(support_of).collect();
        supports.iter().for_each(|support| self.check(support));
        let prepared = Prepared::new(isa, &supports, self.config.centred);
        let (mut outputs, kept) = self.network.forward(isa, parameters, &prepared, seed);
        let mut sums = [0.0; TERMS.len()];
        for (number, episode) in episodes.iter().enumerate() {
            let losses = self.episode(work, &prepared, number, episode, &mut outputs, gradient);
            sums.iter_mut().zip(losses).for_each(|(sum, loss)| *sum += loss);
        }
        self.network.backward(isa, parameters, &prepared, &kept, &outputs, gradient);
        sums
    }

    /// The losses of one episode. What came out of the network for it is replaced by its gradient.
    fn episode<T: Real>(
        &self,
        Work { isa, parameters }: Work<'_, T>,
        prepared: &Prepared<'_, T>,
        number: usize,
        episode: &Episode<'_, T>,
        outputs: &mut Outputs<T>,
        gradient: &mut [T],
    ) -> [f64; TERMS.len()] {
        let (place, space) = (&prepared.batch.places[number], &prepared.spaces[number]);
        let Config { floor, items_weight, queries_weight, .. } = self.config;
        let (prior, log_scale) = (self.network.prior.clone(), self.network.log_scale.start);
        let verdict = Verdict::new(place, &parameters[prior.clone()], outputs.of(place), floor);
        let (items, d_logits) = items_loss(&verdict.shares, episode.truth, place.classes, items_weight);
        let queries = PlacedQueries::new(isa, space, episode);
        let scale = parameters[log_scale];
        let QueriesLoss { loss: queries, d_weights, d_log_scale } =
            queries_loss(isa, space, &queries, &verdict.weights, scale, queries_weight);
        gradient[log_scale] += d_log_scale;
        verdict.backward(place, &d_weights, d_logits, outputs.of_mut(place), &mut gradient[prior]);
        [items, queries]
    }
}

fn support_of<'a, T>(episode: &Episode<'a, T>) -> Support<'a, T> {
    Support { classes: episode.classes, given: episode.given, rows: episode.support, gram: None }
}
