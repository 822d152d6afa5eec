//! The interface of the learned heads ([`crate::tranfs::Tranfs`], [`crate::relabel::Relabel`]): models that are trained
//! on episodes of embeddings.
//!
//! A training step passes a batch of [`Episode`]s to [`Head::losses`], which returns the loss and adds to its gradient.
//! [`JointHead`] is for training the head together with the backbone that computes the embeddings: it also returns the
//! gradient of the embeddings, here called features. Shapes: M support items, Q queries, D the length of an embedding.

use std::ops::Range;

use crate::parameters::ParameterLayout;

/// One episode with everything a loss needs. Classes may have any sizes, and items come in any order.
#[derive(Debug, Clone, Copy)]
pub struct Episode<'a, T = f32> {
    /// Number of classes.
    pub classes: usize,
    /// The embeddings of the support items, M rows of D numbers.
    pub support: &'a [&'a [T]],
    /// The given label of each support item, possibly wrong.
    pub given: &'a [u32],
    /// The true class of each support item; `None` if it belongs to no class of the episode.
    pub truth: &'a [Option<u32>],
    /// The embeddings of the queries, Q rows of D numbers.
    pub queries: &'a [&'a [T]],
    /// The true class of each query.
    pub query_classes: &'a [u32],
}

impl<T> Episode<'_, T> {
    /// The count of numbers in all rows of the episode, `(M + Q) D`: the length of its part of a feature gradient, see
    /// [`JointHead`].
    pub fn feature_count(&self) -> usize {
        self.support.iter().chain(self.queries).map(|row| row.len()).sum()
    }
}

/// Statistics of all training features.
#[derive(Debug, Clone, PartialEq)]
pub struct FeatureStatistics {
    /// The mean feature vector, `[D]`.
    pub mean: Vec<f32>,
    /// The root mean square distance of features from their mean.
    pub spread: f64,
}

/// A model that is trained on episodes.
pub trait Head: Send + Sync {
    /// Names, shapes and positions of the parameters.
    fn layout(&self) -> &ParameterLayout;

    /// Initial parameters; `random` yields uniform numbers in [0, 1).
    fn initial(&self, random: &mut dyn FnMut() -> f64) -> Vec<f32>;

    /// Adjusts initial parameters to the scale or mean of the training features. `statistics` reads all training
    /// features, which takes time; a head that needs no statistics does not call it.
    fn fit_normalisation(&self, _parameters: &mut [f32], _statistics: &dyn Fn() -> FeatureStatistics) {}

    /// The names of the terms of the loss, in the order of [`Head::losses`].
    fn loss_terms(&self) -> &'static [&'static str];

    /// The terms of the loss, each summed over the episodes and weighted so that the loss is the sum of the terms. Adds
    /// the gradient of the loss to `gradient`, which has the layout of the parameters. `seed` decides the dropout
    /// masks. Runs on the calling thread; a caller with several threads gives each a part of the episodes and a
    /// gradient of its own.
    fn losses(
        &self,
        parameters: &[f32],
        episodes: &[Episode<'_>],
        seed: u64,
        gradient: &mut [f32],
    ) -> Vec<f64>;
}

/// How far a step of joint training moves the mean of all features ([`JointHead::feature_mean`]) towards the mean of
/// the features of its batch: a running mean, because the backbone changes the features from step to step.
pub const FEATURE_MEAN_RATE: f32 = 0.01;

/// A head that can be trained together with the backbone whose features it reads: it also computes the gradient of its
/// loss with respect to the features.
///
/// ```
/// use trueshot_nn::head::{Episode, Head, JointHead};
/// use trueshot_nn::relabel::{Config, Relabel};
///
/// let head = Relabel::new(Config::default());
/// let mut state = 1u64;
/// let parameters = head.initial(&mut || {
///     state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
///     (state >> 11) as f64 / (1u64 << 53) as f64
/// });
/// let support: [&[f32]; 3] = [&[1.0, 0.1], &[0.9, 0.0], &[0.1, 1.0]];
/// let queries: [&[f32]; 1] = [&[0.4, 0.6]];
/// let truth = [Some(0), Some(0), Some(1)];
/// let episode = Episode {
///     classes: 2,
///     support: &support,
///     given: &[0, 0, 1],
///     truth: &truth,
///     queries: &queries,
///     query_classes: &[1],
/// };
/// let mut gradient = vec![0.0; head.layout().len()];
/// // Four rows of two numbers: the three support items, then the query.
/// let mut feature_gradient = vec![0.0; episode.feature_count()];
/// head.losses_with_feature_gradient(&parameters, &[episode], 0, &mut gradient, &mut feature_gradient);
/// // Numbers 6 and 7 belong to the query. The loss falls if the query moves towards its class.
/// assert!(feature_gradient[6] > 0.0 && feature_gradient[7] < 0.0);
/// ```
pub trait JointHead: Head {
    /// [`Head::losses`], with the same losses and parameter gradient to the bit. Also adds the gradient of the loss
    /// with respect to the features to `feature_gradient`: for each episode the rows of its support items, then those
    /// of its queries, each row of D numbers ([`Episode::feature_count`] numbers per episode).
    ///
    /// # Panics
    /// If `feature_gradient` does not have as many numbers as the rows of the episodes.
    fn losses_with_feature_gradient(
        &self,
        parameters: &[f32],
        episodes: &[Episode<'_>],
        seed: u64,
        gradient: &mut [f32],
        feature_gradient: &mut [f32],
    ) -> Vec<f64>;

    /// The parameters that hold the mean of all features. Training a head alone leaves them as they are; training it
    /// together with a backbone must keep them up to date. `None` if the head does not use the mean.
    fn feature_mean(&self) -> Option<Range<usize>> {
        None
    }

    /// Whether the head starts by subtracting [`JointHead::feature_mean`] from all rows and scaling them to unit
    /// length.
    fn subtracts_feature_mean(&self) -> bool {
        false
    }
}

/// The gradients of one episode's features.
#[derive(Debug)]
pub(crate) struct FeatureGradient<'a, T> {
    /// Of the support items, `[M, D]`.
    pub(crate) support: &'a mut [T],
    /// Of the queries, `[Q, D]`.
    pub(crate) queries: &'a mut [T],
}

impl<'a, T> FeatureGradient<'a, T> {
    /// Splits the feature gradient of a call into those of its episodes.
    ///
    /// # Panics
    /// If `all` does not have as many values as the rows of the episodes.
    pub(crate) fn split(all: &'a mut [T], episodes: &[Episode<'_, T>]) -> Vec<Self> {
        let expected: usize = episodes.iter().map(Episode::feature_count).sum();
        assert_eq!(
            all.len(),
            expected,
            "the feature gradient needs one value per value of the episodes' rows"
        );
        let mut parts = Vec::with_capacity(episodes.len());
        let mut remaining = all;
        for episode in episodes {
            let (of_episode, after) = remaining.split_at_mut(episode.feature_count());
            let support_len = episode.support.iter().map(|row| row.len()).sum();
            let (support, queries) = of_episode.split_at_mut(support_len);
            parts.push(FeatureGradient { support, queries });
            remaining = after;
        }
        parts
    }
}
