//! Relabel: a head that estimates the true class of every support item and builds the prototypes of the classes from
//! that.
//!
//! Start with [`Relabel`]: [`Relabel::predict`] for inference, [`Head::losses`] for training. [`Config`] has all
//! options, `network` the order of the layers.
//!
//! A mislabelled item often belongs to another class of the same support set, so finding its class is worth more than
//! dropping it. For every item the head computes P(it belongs to class c) for all classes and "none of them", and each
//! prototype is a weighted mean of *all* items by these probabilities. The head reads relations between items only
//! (unless it is made for one backbone), so one trained head works for embeddings of any dimension. It is
//! equivariant to permutations of items and of classes, and their numbers are free.
//!
//! Terms of all files here: M items and C classes of an episode. An *edge* is an ordered pair of items. A *state* is a
//! vector of W numbers about "item i belongs to class c", so there are M C of them; the network refines them layer by
//! layer. The *given label* of an item may be wrong. `d_x` is the gradient of the loss with respect to x.
//!
//! In the order of computation:
//! 1. `centred_rows`: embeddings centred on the mean of the training features, if the head is made for one backbone;
//!    `gram_space`: inner products between items, possibly centred on the support set ([`GramSpace`]);
//! 2. `edge_features` and `network_input`: features of each pair of items and of each state;
//! 3. `edge_network`: attention logits of each pair, for all layers and heads;
//! 4. `input_layer` (with `item_view`): the initial states;
//! 5. `attention_layer` and `mixing_layer`, alternating: attention between items, then mixing within items and classes;
//! 6. `posterior`: probabilities of each item and weights of each prototype;
//! 7. `losses` and `training`: cross-entropies of items and queries, and the backward pass;
//! 8. `feature_gradient`: the backward pass down to the embeddings, if a backbone is trained with the head.
//!
//! The networks run over the states of all episodes of a call as one matrix (`episode_batch`).
//!
//! Memory is proportional to items x classes (2 KB each in inference, 12 KB in training) and to the square of the items
//! (100 bytes each): in inference, a thousand items in 200 classes take half a gigabyte. Split larger support sets.

mod attention_layer;
mod centred_rows;
mod config;
mod edge_features;
mod edge_network;
mod episode_batch;
mod feature_gradient;
mod gram_space;
mod input_layer;
mod item_view;
mod losses;
mod mixing_layer;
mod modules;
mod network;
mod network_input;
mod posterior;
#[cfg(test)]
mod tests;
mod training;

pub use config::{Config, ItemView, ViewTarget};
pub use gram_space::GramSpace;
pub use network_input::RelabelInput;
pub use training::dropout_batches;

use std::ops::Range;

use crate::head::{Episode, FeatureStatistics, Head, JointHead};
use crate::parameters::ParameterLayout;
use crate::real::Real;
use centred_rows::{CentredRows, split_by_lengths};
use episode_batch::split_into_batches;
use modules::ParameterBuilder;
use network::Network;
use network_input::NetworkInput;
use posterior::Posterior;

/// The head without its parameters: their layout, and the computations with them.
///
/// ```
/// use trueshot_nn::head::Head;
/// use trueshot_nn::relabel::{Config, Relabel, RelabelInput};
///
/// let head = Relabel::new(Config::default());
/// let mut state = 1u64;
/// let parameters = head.initial(&mut || {
///     state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
///     (state >> 11) as f64 / (1u64 << 53) as f64
/// });
/// // Four items with labels 0, 0, 1, 1.
/// let rows: [&[f32]; 4] = [&[1.0, 0.1], &[0.9, 0.0], &[0.1, 1.0], &[0.0, 0.8]];
/// let input = RelabelInput { classes: 2, given: &[0, 0, 1, 1], rows: &rows, gram: None };
/// let output = &head.predict(&parameters, &[input])[0];
/// // P(class 0), P(class 1) and P(neither) of the first item. An untrained head keeps the given label.
/// let first = &output.probabilities[..3];
/// assert!((first.iter().sum::<f32>() - 1.0).abs() < 1e-5);
/// assert!(first[0] > first[1] && first[0] > first[2]);
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct Relabel {
    config: Config,
    builder: ParameterBuilder,
    network: Network,
    /// The parameters that are the mean of the training features, see [`Config::training_centre`].
    training_centre: Option<Range<usize>>,
}

/// What Relabel computes for one support set.
#[derive(Debug, Clone, PartialEq)]
pub struct RelabelOutput<T = f32> {
    /// P(item belongs to class c), `[M, C + 1]`; the last column is P(none of the classes).
    pub probabilities: Vec<T>,
    /// The weights of the items in each prototype, in `space`, `[C, M]`; every row sums to 1.
    pub weights: Vec<T>,
    /// The space of prototypes and distances.
    pub space: GramSpace<T>,
}

impl Relabel {
    /// A head of this configuration.
    ///
    /// # Panics
    /// If the attention heads do not divide the width, or a size is zero.
    pub fn new(config: Config) -> Self {
        let sizes = [config.width, config.layers, config.heads, config.hidden, config.edge_hidden];
        assert!(sizes.iter().all(|&size| size > 0), "all sizes must be at least 1: {config:?}");
        assert!(
            config.width.is_multiple_of(config.heads),
            "{} heads do not divide a width of {}",
            config.heads,
            config.width
        );
        let mut builder = ParameterBuilder::default();
        let network = Network::new(&mut builder, &config);
        let training_centre = config.training_centre.map(|dim| builder.constant("centre", dim));
        Relabel { config, builder, network, training_centre }
    }

    /// The configuration of the head.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The scale of a query's logits: they are `-scale distance / mean`, with the squared distances to the prototypes
    /// and their mean over all queries and prototypes of the episode.
    pub fn scale<T: Real>(&self, parameters: &[T]) -> T {
        parameters[self.network.log_scale.start].exp()
    }

    /// The parameters that are subtracted from items and queries before anything else, see [`Config::training_centre`].
    pub fn training_centre(&self) -> Option<Range<usize>> {
        self.training_centre.clone()
    }

    /// Computes posteriors and prototypes of support sets. Sets of a few items are best passed together, because they
    /// share the passes of the network.
    ///
    /// # Panics
    /// If a set has no items or no classes, or its shapes disagree.
    pub fn predict<T: Real>(
        &self,
        parameters: &[T],
        inputs: &[RelabelInput<'_, T>],
    ) -> Vec<RelabelOutput<T>> {
        let states = inputs.iter().map(|input| input.classes * input.given.len());
        let batches = split_into_batches(states).into_iter();
        batches.flat_map(|batch| self.predict_batch(parameters, &inputs[batch])).collect()
    }

    /// [`Relabel::predict`] of support sets that share the passes of the network. Centres the rows first if the head
    /// needs it.
    fn predict_batch<T: Real>(
        &self,
        parameters: &[T],
        inputs: &[RelabelInput<'_, T>],
    ) -> Vec<RelabelOutput<T>> {
        inputs.iter().for_each(|input| self.check_input(input));
        let Some(centre) = &self.training_centre else { return self.predict_rows(parameters, inputs) };
        let rows = inputs.iter().flat_map(|input| input.rows.iter().copied());
        let centred = CentredRows::new(rows, &parameters[centre.clone()]);
        let rows = centred.rows();
        let rows_of_inputs = split_by_lengths(&rows, inputs.iter().map(|input| input.rows.len()));
        let pairs = inputs.iter().zip(rows_of_inputs);
        // A Gram matrix given by the caller is that of the original rows, so it is not used.
        let inputs: Vec<RelabelInput<'_, T>> =
            pairs.map(|(input, rows)| RelabelInput { rows, gram: None, ..*input }).collect();
        self.predict_rows(parameters, &inputs)
    }

    /// [`Relabel::predict`] on rows that are already centred on the mean of the training features.
    fn predict_rows<T: Real>(
        &self,
        parameters: &[T],
        inputs: &[RelabelInput<'_, T>],
    ) -> Vec<RelabelOutput<T>> {
        let network_input = NetworkInput::new(inputs, self.config.centred);
        let logits = self.network.infer(parameters, &network_input);
        let prior = &parameters[self.network.prior.clone()];
        let NetworkInput { batch, spaces, .. } = network_input;
        let outputs = batch.spans.iter().zip(spaces).map(|(span, space)| {
            let posterior = Posterior::new(span, prior, logits.of(span), self.config.floor);
            RelabelOutput { probabilities: posterior.probabilities, weights: posterior.weights, space }
        });
        outputs.collect()
    }

    /// Checks the shapes of a support set.
    ///
    /// # Panics
    /// If a set has no items or no classes, or its shapes disagree.
    fn check_input<T>(&self, input: &RelabelInput<'_, T>) {
        let items = input.given.len();
        assert!(
            items > 0 && input.classes > 0,
            "a support set of {items} items in {} classes",
            input.classes
        );
        let dim = self.config.dim();
        let needs_rows = input.gram.is_none() || dim.is_some();
        assert!(!needs_rows || input.rows.len() == items, "one row per item");
        if let Some(dim) = dim {
            assert!(input.rows.iter().all(|row| row.len() == dim), "rows of {dim} numbers");
        }
    }
}

impl Head for Relabel {
    fn layout(&self) -> &ParameterLayout {
        &self.builder.layout
    }

    fn initial(&self, random: &mut dyn FnMut() -> f64) -> Vec<f32> {
        self.builder.initial(random)
    }

    /// Sets [`JointHead::feature_mean`], if the head has one, to the mean of the training features.
    fn fit_normalisation(&self, parameters: &mut [f32], statistics: &dyn Fn() -> FeatureStatistics) {
        if let Some(mean) = self.feature_mean() {
            parameters[mean].copy_from_slice(&statistics().mean);
        }
    }

    fn loss_terms(&self) -> &'static [&'static str] {
        &training::TERMS
    }

    fn losses(
        &self,
        parameters: &[f32],
        episodes: &[Episode<'_>],
        seed: u64,
        gradient: &mut [f32],
    ) -> Vec<f64> {
        self.losses_and_gradient(parameters, episodes, seed, gradient, None)
    }
}

impl JointHead for Relabel {
    /// See [`JointHead::losses_with_feature_gradient`]. The mean of all features is a constant, and ranks are piecewise
    /// constant: both have no gradient.
    fn losses_with_feature_gradient(
        &self,
        parameters: &[f32],
        episodes: &[Episode<'_>],
        seed: u64,
        gradient: &mut [f32],
        feature_gradient: &mut [f32],
    ) -> Vec<f64> {
        self.losses_and_gradient(parameters, episodes, seed, gradient, Some(feature_gradient))
    }

    /// The mean that all rows are centred on; in a head that does not centre rows, the mean of the item view. If rows
    /// are centred, the mean of the item view stays zero.
    fn feature_mean(&self) -> Option<Range<usize>> {
        self.training_centre().or_else(|| self.network.feature_mean())
    }

    fn subtracts_feature_mean(&self) -> bool {
        self.training_centre.is_some()
    }
}
