//! The losses of episodes and their gradient. Start with `Relabel::losses_and_gradient`, a training step, then
//! `Relabel::batch_losses`, which runs the network forward, the losses, and the network backward.
//!
//! The loss has two terms per episode: the cross-entropy of the items' true classes, and that of the queries under the
//! prototypes. The first reaches the network through the posterior, the second through the weights of the prototypes.
//! `d_x` is the gradient of the loss with respect to x.

use std::ops::Range;

use super::Relabel;
use super::centred_rows::{CentredRows, centre_and_scale_backward, split_by_lengths};
use super::config::Config;
use super::episode_batch::{elements, split_into_batches};
use super::feature_gradient::ProductGradient;
use super::losses::{QueryLoss, QueryProducts, item_loss, query_loss};
use super::modules::add;
use super::network_input::{NetworkInput, NetworkInputGradient, RelabelInput};
use super::posterior::{Logits, Posterior};
use crate::head::{Episode, FeatureGradient};
use crate::real::Real;

/// The names of the terms of the loss, in the order of all arrays of terms here.
pub(super) const TERMS: [&str; 2] = ["items", "queries"];

/// The batches of neighbouring episodes that share a dropout mask, each with the seed of its mask. Episodes are given
/// by their numbers of states (items times classes), and `seed` is that of [`crate::head::Head::losses`].
///
/// The mask covers the features that enter the item view, `[items of the batch, dim]` in row-major order.
pub fn dropout_batches(states: impl Iterator<Item = usize>, seed: u64) -> Vec<(Range<usize>, u64)> {
    // The step of SplitMix64, so that every batch has a dropout mask of its own.
    let seed_of = |index: u64| seed.wrapping_add((index + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (0..).zip(split_into_batches(states)).map(|(index, batch)| (batch, seed_of(index))).collect()
}

impl Relabel {
    /// [`crate::head::Head::losses`] in either precision: returns the terms of the loss, summed over the episodes, and
    /// adds to `gradient`. If `feature_gradient` is given, adds the gradient of the embeddings to it, see
    /// [`crate::head::JointHead`].
    ///
    /// # Panics
    /// If an episode has no items or no classes, or shapes disagree.
    pub(super) fn losses_and_gradient<T: Real>(
        &self,
        parameters: &[T],
        episodes: &[Episode<'_, T>],
        seed: u64,
        gradient: &mut [T],
        feature_gradient: Option<&mut [T]>,
    ) -> Vec<f64> {
        let size = self.builder.layout.len();
        assert_eq!((parameters.len(), gradient.len()), (size, size), "lengths of parameters and gradient");
        let Some(centre) = &self.training_centre else {
            return self.row_losses(parameters, episodes, seed, gradient, feature_gradient);
        };
        // A head with a training centre: all rows are centred and scaled to unit length first, and the gradient of the
        // features passes back through that step. The mean is a constant: it gets no gradient.
        let mean = &parameters[centre.clone()];
        let original = || episodes.iter().flat_map(|e| e.support.iter().chain(e.queries).copied());
        let centred = CentredRows::new(original(), mean);
        let rows = centred.rows();
        // The rows of an episode's support set, then those of its queries.
        let lens = episodes.iter().flat_map(|episode| [episode.support.len(), episode.queries.len()]);
        let rows_of_episodes: Vec<&[&[T]]> = split_by_lengths(&rows, lens).collect();
        let of_centred: Vec<Episode<'_, T>> = episodes
            .iter()
            .zip(rows_of_episodes.chunks_exact(2))
            .map(|(episode, rows)| Episode { support: rows[0], queries: rows[1], ..*episode })
            .collect();
        let mut d_centred = feature_gradient.as_ref().map(|all| vec![T::ZERO; all.len()]);
        let sums = self.row_losses(parameters, &of_centred, seed, gradient, d_centred.as_deref_mut());
        if let (Some(feature_gradient), Some(mut d_centred)) = (feature_gradient, d_centred) {
            let mut centred_row = vec![T::ZERO; mean.len()];
            for (row, d_row) in original().zip(d_centred.chunks_exact_mut(mean.len())) {
                centre_and_scale_backward(row, mean, &mut centred_row, d_row);
            }
            add(feature_gradient, &d_centred);
        }
        sums
    }

    /// [`Relabel::losses_and_gradient`] of rows that are already centred on the mean of the training features.
    fn row_losses<T: Real>(
        &self,
        parameters: &[T],
        episodes: &[Episode<'_, T>],
        seed: u64,
        gradient: &mut [T],
        feature_gradient: Option<&mut [T]>,
    ) -> Vec<f64> {
        let mut d_features = feature_gradient.map(|all| FeatureGradient::split(all, episodes));
        let mut sums = vec![0.0; TERMS.len()];
        let states = episodes.iter().map(|episode| episode.classes * episode.support.len());
        for (batch, seed) in dropout_batches(states, seed) {
            let d_features = d_features.as_mut().map(|all| &mut all[batch.clone()]);
            let losses = self.batch_losses(parameters, &episodes[batch], seed, gradient, d_features);
            sums.iter_mut().zip(losses).for_each(|(sum, loss)| *sum += loss);
        }
        sums
    }

    /// The losses of episodes that share the passes of the network and a dropout mask.
    fn batch_losses<T: Real>(
        &self,
        parameters: &[T],
        episodes: &[Episode<'_, T>],
        seed: u64,
        gradient: &mut [T],
        d_features: Option<&mut [FeatureGradient<'_, T>]>,
    ) -> [f64; TERMS.len()] {
        let inputs: Vec<RelabelInput<'_, T>> = episodes.iter().map(input_of).collect();
        inputs.iter().for_each(|input| self.check_input(input));
        let network_input = NetworkInput::new(&inputs, self.config.centred);
        let (mut logits, cache) = self.network.forward(parameters, &network_input, seed);
        // The gradients of the inner products, only if those of the embeddings are needed.
        let zeros =
            |episode: &Episode<'_, T>| ProductGradient::new(episode.support.len(), episode.queries.len());
        let mut d_products: Option<Vec<ProductGradient<T>>> =
            d_features.is_some().then(|| episodes.iter().map(zeros).collect());
        let mut sums = [0.0; TERMS.len()];
        for (number, episode) in episodes.iter().enumerate() {
            let d_products = d_products.as_mut().map(|d_products| &mut d_products[number]);
            let losses = self.episode_losses(
                parameters,
                &network_input,
                number,
                episode,
                &mut logits,
                gradient,
                d_products,
            );
            sums.iter_mut().zip(losses).for_each(|(sum, loss)| *sum += loss);
        }
        // `logits` now holds its gradient.
        let view_dim = self.config.item_view.as_ref().map(|view| view.dim);
        let mut d_input =
            d_features.is_some().then(|| NetworkInputGradient::new(&network_input.batch, view_dim));
        self.network.backward(parameters, &network_input, &cache, &logits, gradient, d_input.as_mut());
        if let (Some(d_features), Some(d_input), Some(d_products)) = (d_features, d_input, d_products) {
            add_feature_gradient(&network_input, episodes, d_input, d_products, d_features);
        }
        sums
    }

    /// The losses of episode `number` of the batch. The episode's part of `logits` is replaced by its gradient.
    /// `d_products`, if given, is set to the part of the gradient that does not pass through the network.
    #[allow(clippy::too_many_arguments)]
    fn episode_losses<T: Real>(
        &self,
        parameters: &[T],
        network_input: &NetworkInput<'_, T>,
        number: usize,
        episode: &Episode<'_, T>,
        logits: &mut Logits<Vec<T>>,
        gradient: &mut [T],
        d_products: Option<&mut ProductGradient<T>>,
    ) -> [f64; TERMS.len()] {
        let (span, space) = (&network_input.batch.spans[number], &network_input.spaces[number]);
        let Config { floor, items_weight, queries_weight, .. } = self.config;
        let (prior, log_scale_index) = (self.network.prior.clone(), self.network.log_scale.start);
        // Forward: posterior of the items, with their loss; prototypes, with the loss of the queries.
        let posterior = Posterior::new(span, &parameters[prior.clone()], logits.of(span), floor);
        let (items_loss, d_logits) =
            item_loss(&posterior.probabilities, episode.truth, span.classes, items_weight);
        let queries = QueryProducts::new(space, episode);
        let (weights, log_scale_value) = (&posterior.weights, parameters[log_scale_index]);
        let QueryLoss { loss: queries_loss, d_weights, d_log_scale } =
            query_loss(space, &queries, weights, log_scale_value, queries_weight, d_products);
        // Backward: to the scale, the network's logits and the prior.
        gradient[log_scale_index] += d_log_scale;
        posterior.backward(span, &d_weights, d_logits, logits.of_mut(span), &mut gradient[prior]);
        [items_loss, queries_loss]
    }
}

/// Adds to the gradients of the embeddings of a batch, from those of the network's input and of the inner products.
fn add_feature_gradient<T: Real>(
    network_input: &NetworkInput<'_, T>,
    episodes: &[Episode<'_, T>],
    mut d_input: NetworkInputGradient<T>,
    d_products: Vec<ProductGradient<T>>,
    d_features: &mut [FeatureGradient<'_, T>],
) {
    for (number, ((episode, mut d_products), d_features)) in
        episodes.iter().zip(d_products).zip(d_features).enumerate()
    {
        network_input.features_backward(number, &mut d_input, &mut d_products.gram);
        d_products.add_to_features(&network_input.spaces[number], episode, d_features);
        if let Some(d_rows) = &d_input.viewed_rows {
            let dim = d_rows.len() / network_input.batch.items;
            let items = network_input.batch.spans[number].items();
            add(d_features.support, &d_rows[elements(items, dim)]);
        }
    }
}

/// The support set of an episode.
fn input_of<'a, T>(episode: &Episode<'a, T>) -> RelabelInput<'a, T> {
    RelabelInput { classes: episode.classes, given: episode.given, rows: episode.support, gram: None }
}
