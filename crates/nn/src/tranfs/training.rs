//! The losses of episodes and their gradient, for all episodes of a call together. Start with
//! `Tranfs::losses_and_gradient`, one training step.
//!
//! The loss has three terms per episode: the cross-entropy of the queries under the prototypes; the clean loss, which
//! pulls each prototype to the mean of the correctly labelled items of its class; and the binary cross-entropy of the
//! items' logits of "mislabelled" (the given label is not the true class). `d_x` is the gradient of the loss with
//! respect to x.

use super::encoder::{EncoderContext, resized};
use super::projections::{ProjectionBuffers, Workspace};
use super::token_layout::{TokenLayout, TranfsInput};
use super::{CleanLoss, Tranfs};
use crate::head::{Episode, FeatureGradient};
use crate::layers::dropout::Dropout;
use crate::layers::loss;
use crate::matmul::{Matrix, MatrixMut, Write, add_scaled, multiply};
use crate::real::Real;

impl<'a, T> TranfsInput<'a, T> {
    /// The support set of an episode, with class c in row c of the tables.
    fn of(episode: &Episode<'a, T>) -> Self {
        let Episode { classes, support: items, given, .. } = *episode;
        TranfsInput { classes, items, given, order: None }
    }
}

impl Tranfs {
    /// [`crate::head::Head::losses`] in either precision: returns the three terms (queries, clean, mislabelled), summed
    /// over the episodes, and adds to `gradient`. If `feature_gradient` is given, adds the gradient of the embeddings
    /// to it, see [`crate::head::JointHead`].
    pub(super) fn losses_and_gradient<T: Real>(
        &self,
        parameters: &[T],
        episodes: &[Episode<'_, T>],
        seed: u64,
        gradient: &mut [T],
        feature_gradient: Option<&mut [T]>,
        workspace: &mut Workspace<T>,
    ) -> [f64; 3] {
        assert_eq!(parameters.len(), gradient.len());
        let mut d_features = feature_gradient.map(|all| FeatureGradient::split(all, episodes));
        let inputs = || episodes.iter().map(TranfsInput::of);
        let Workspace { layout, states, caches, scratch, buffers } = workspace;
        // Forward.
        layout.fill(inputs(), self.config.classes);
        self.embed(parameters, layout, inputs(), buffers, states);
        let dropout = Dropout::new(self.config.dropout, seed);
        let context = EncoderContext { parameters, segments: &layout.segments, dropout };
        self.encoder.forward(context, states, caches, scratch);
        let out = caches.last().map_or(&*states, |last| &last.out);
        self.project_output(parameters, layout, out, buffers);
        // Losses, then backward, in the reverse order of the forward pass.
        let terms = self.loss_terms(layout, episodes, buffers, d_features.as_deref_mut());
        self.project_output_backward(parameters, layout, out, gradient, buffers);
        self.encoder.backward(context, states, caches, scratch, gradient, &mut buffers.d_states);
        self.embed_backward(layout, gradient, buffers);
        if let Some(d_features) = d_features {
            self.project_items_backward(parameters, layout, buffers, d_features);
        }
        terms
    }

    /// The terms of the loss. Puts the gradients of the prototypes into the left stack (see `projections`), and
    /// replaces the logits of "mislabelled" by their gradients. Adds to `d_features` the parts of the feature gradient
    /// that do not pass through the network: those of the queries, and those of the items whose mean is the target of
    /// the clean loss.
    fn loss_terms<T: Real>(
        &self,
        layout: &TokenLayout,
        episodes: &[Episode<'_, T>],
        buffers: &mut ProjectionBuffers<T>,
        mut d_features: Option<&mut [FeatureGradient<'_, T>]>,
    ) -> [f64; 3] {
        let dim = self.config.dim;
        let ProjectionBuffers { left, prototypes, logits, query_logits, clean_mean, .. } = buffers;
        let (left_items, d_prototypes) = left.split_at_mut(layout.items() * dim);
        let mut terms = [0.0; 3];
        for (number, (episode, span)) in episodes.iter().zip(&layout.spans).enumerate() {
            let range = span.classes.start * dim..span.classes.end * dim;
            let (prototypes, d_prototypes) = (&prototypes[range.clone()], &mut d_prototypes[range]);
            d_prototypes.fill(T::ZERO);
            // The queries' cross-entropy.
            let (queries, classes) = (episode.queries, episode.query_classes);
            terms[0] += loss::prototype_cross_entropy(
                queries,
                classes,
                prototypes,
                T::ONE,
                query_logits,
                d_prototypes,
            );
            let mut d_features = d_features.as_deref_mut().map(|all| &mut all[number]);
            if let Some(d_features) = d_features.as_deref_mut() {
                add_query_gradient(query_logits, prototypes, dim, d_features.queries);
            }
            // The clean loss and "mislabelled", over the items in the order of the tokens.
            let rows = &left_items[span.items.start * dim..span.items.end * dim];
            let mislabelled: Vec<bool> = layout.sources[span.items.clone()]
                .iter()
                .map(|&item| episode.truth[item] != Some(episode.given[item]))
                .collect();
            let (sources, given) = (&layout.sources[span.items.clone()], &layout.given[span.items.clone()]);
            let items = SortedItems { rows, sources, given, mislabelled: &mislabelled };
            let d_support = d_features.map(|d_features| &mut *d_features.support);
            terms[1] += self.clean_loss(items, prototypes, clean_mean, d_prototypes, d_support);
            let weight = T::from_f64(self.config.mislabelled_weight);
            terms[2] += loss::binary_cross_entropy(&mut logits[span.items.clone()], &mislabelled, weight);
        }
        terms
    }

    /// The clean loss: the sum over classes of the distance of the prototype to the mean of the class's correctly
    /// labelled items, times the weight, divided by the number of classes. A class without correctly labelled items
    /// does not contribute. Adds to the gradients of the prototypes and, if given, to those of the items
    /// (`[items, dim]`).
    fn clean_loss<T: Real>(
        &self,
        items: SortedItems<'_, T>,
        prototypes: &[T],
        clean_mean: &mut Vec<T>,
        d_prototypes: &mut [T],
        mut d_support: Option<&mut [T]>,
    ) -> f64 {
        let (dim, weight) = (self.config.dim, self.config.clean_weight);
        if weight == 0.0 {
            return 0.0;
        }
        let weight = T::from_f64(weight / (prototypes.len() / dim).max(1) as f64);
        let clean_mean = resized(clean_mean, dim);
        let rows = prototypes.chunks_exact(dim).zip(d_prototypes.chunks_exact_mut(dim));
        let mut total = 0.0;
        for (class, (prototype, d_prototype)) in rows.enumerate() {
            if !items.clean_mean(class, clean_mean) {
                continue;
            }
            let distance = |p: &[T], target: &[T], d_p: &mut [T]| match self.config.clean_loss {
                CleanLoss::SquaredDistance => loss::squared_distance(p, target, weight, d_p),
                CleanLoss::NegativeCosine => loss::negative_cosine(p, target, weight, d_p),
            };
            total += distance(prototype, clean_mean, d_prototype);
            if let Some(d_support) = d_support.as_deref_mut() {
                // Both distances are symmetric, so the gradient of the mean is that with the arguments exchanged.
                let mut d_clean_mean = vec![T::ZERO; dim];
                distance(clean_mean, prototype, &mut d_clean_mean);
                items.clean_mean_backward(class, &d_clean_mean, d_support);
            }
        }
        total
    }
}

/// Adds to the gradient of an episode's queries (`[queries, dim]`), from `doubled`, twice the gradient of their logits
/// (`[queries, classes]`), which is what [`loss::prototype_cross_entropy`] leaves. The logits are `2 q.p - ‖p‖²`, so
/// the gradient of q is the sum over prototypes of twice the gradient of the logit, times p.
fn add_query_gradient<T: Real>(doubled: &[T], prototypes: &[T], dim: usize, d_queries: &mut [T]) {
    let (queries, classes) = (d_queries.len() / dim, prototypes.len() / dim);
    if queries == 0 {
        return;
    }
    let prototypes = Matrix::new(prototypes, classes, dim);
    let d_queries = MatrixMut::new(d_queries, queries, dim);
    multiply(Matrix::new(doubled, queries, classes), prototypes, Write::Add, d_queries);
}

/// The items of an episode, sorted by given label; every list has one entry per item.
#[derive(Clone, Copy)]
struct SortedItems<'a, T> {
    /// `[items, dim]`
    rows: &'a [T],
    /// The index of each item in its episode.
    sources: &'a [usize],
    given: &'a [u32],
    mislabelled: &'a [bool],
}

impl<T: Real> SortedItems<'_, T> {
    /// Writes the mean of the correctly labelled items of a class; returns `false` if there are none.
    fn clean_mean(&self, class: usize, mean: &mut [T]) -> bool {
        let count = self.clean_members(class).count();
        mean.fill(T::ZERO);
        for item in self.clean_members(class) {
            let row = &self.rows[item * mean.len()..(item + 1) * mean.len()];
            add_scaled(row, T::ONE / T::from_f64(count as f64), mean);
        }
        count > 0
    }

    /// Backward pass of [`SortedItems::clean_mean`]: adds to the gradients of the items in the order of the episode.
    fn clean_mean_backward(&self, class: usize, d_mean: &[T], d_support: &mut [T]) {
        let count = self.clean_members(class).count();
        for item in self.clean_members(class) {
            let d_row = &mut d_support[self.sources[item] * d_mean.len()..][..d_mean.len()];
            add_scaled(d_mean, T::ONE / T::from_f64(count as f64), d_row);
        }
    }

    /// The correctly labelled items of a class. Items are sorted by given label, so those of a class are adjacent.
    fn clean_members(&self, class: usize) -> impl Iterator<Item = usize> {
        let members = self.given.partition_point(|&given| (given as usize) < class)
            ..self.given.partition_point(|&given| given as usize <= class);
        members.filter(|&item| !self.mislabelled[item])
    }
}
