//! The losses of episodes and their gradient, for all episodes of a call together.

use super::encoder::{EncoderContext, resized};
use super::projections::{ProjectionBuffers, Workspace};
use super::token_layout::{TokenLayout, TranfsInput};
use super::{CleanLoss, Tranfs};
use crate::head::Episode;
use crate::kernel::kernel;
use crate::layers::dropout::Dropout;
use crate::layers::loss;
use crate::real::Real;

impl<'a, T> TranfsInput<'a, T> {
    fn of(episode: &Episode<'a, T>) -> Self {
        let Episode { classes, support: items, given, .. } = *episode;
        TranfsInput { classes, items, given, order: None }
    }
}

impl Tranfs {
    /// [`crate::head::Head::losses`] in either precision.
    pub(super) fn losses_and_gradient<T: Real>(
        &self,
        parameters: &[T],
        episodes: &[Episode<'_, T>],
        seed: u64,
        gradient: &mut [T],
        workspace: &mut Workspace<T>,
    ) -> [f64; 3] {
        assert_eq!(parameters.len(), gradient.len());
        let inputs = || episodes.iter().map(TranfsInput::of);
        let Workspace { layout, states, caches, scratch, buffers } = workspace;
        layout.fill(inputs(), self.config.classes);
        self.embed(parameters, layout, inputs(), buffers, states);
        let dropout = Dropout::new(self.config.dropout, seed);
        let context = EncoderContext { parameters, segments: &layout.segments, dropout };
        self.encoder.forward(context, states, caches, scratch);
        let out = caches.last().map_or(&*states, |last| &last.out);
        self.project_output(parameters, layout, out, buffers);
        let terms = self.loss_terms_of(layout, episodes, buffers);
        self.project_output_backward(parameters, layout, out, gradient, buffers);
        self.encoder.backward(context, states, caches, scratch, gradient, &mut buffers.d_states);
        self.embed_backward(layout, gradient, buffers);
        terms
    }

    /// The terms of the loss. Puts the gradients of the prototypes into the left stack; the logits become their gradients.
    fn loss_terms_of<T: Real>(
        &self,
        layout: &TokenLayout,
        episodes: &[Episode<'_, T>],
        buffers: &mut ProjectionBuffers<T>,
    ) -> [f64; 3] {
        let dim = self.config.dim;
        let ProjectionBuffers { left, prototypes, logits, query_logits, clean_mean, .. } = buffers;
        let (left_items, d_prototypes) = left.split_at_mut(layout.items() * dim);
        let mut terms = [0.0; 3];
        for (episode, span) in episodes.iter().zip(&layout.spans) {
            let range = span.classes.start * dim..span.classes.end * dim;
            let (prototypes, d_prototypes) = (&prototypes[range.clone()], &mut d_prototypes[range]);
            d_prototypes.fill(T::ZERO);
            let (queries, classes) = (episode.queries, episode.query_classes);
            terms[0] += loss::prototype_cross_entropy(
                queries,
                classes,
                prototypes,
                T::ONE,
                query_logits,
                d_prototypes,
            );
            let rows = &left_items[span.items.start * dim..span.items.end * dim];
            let mislabelled: Vec<bool> = layout.sources[span.items.clone()]
                .iter()
                .map(|&item| episode.truth[item] != Some(episode.given[item]))
                .collect();
            let given = &layout.given[span.items.clone()];
            let items = SortedItems { rows, given, mislabelled: &mislabelled };
            terms[1] += self.clean_loss(items, prototypes, clean_mean, d_prototypes);
            let weight = T::from_f64(self.config.mislabelled_weight);
            terms[2] += loss::binary_cross_entropy(&mut logits[span.items.clone()], &mislabelled, weight);
        }
        terms
    }

    /// The clean loss: distances of the prototypes to the means of their correctly labelled items. Classes without such an
    /// item do not count.
    fn clean_loss<T: Real>(
        &self,
        items: SortedItems<'_, T>,
        prototypes: &[T],
        clean_mean: &mut Vec<T>,
        d_prototypes: &mut [T],
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
            total += match self.config.clean_loss {
                CleanLoss::SquaredDistance => {
                    loss::squared_distance(prototype, clean_mean, weight, d_prototype)
                }
                CleanLoss::NegativeCosine => {
                    loss::negative_cosine(prototype, clean_mean, weight, d_prototype)
                }
            };
        }
        total
    }
}

/// The items of an episode, sorted by given label.
#[derive(Clone, Copy)]
struct SortedItems<'a, T> {
    /// `[items, D]`
    rows: &'a [T],
    given: &'a [u32],
    mislabelled: &'a [bool],
}

impl<T: Real> SortedItems<'_, T> {
    /// Writes the mean of the correctly labelled items of a class; returns `false` if there are none.
    fn clean_mean(&self, class: usize, mean: &mut [T]) -> bool {
        let members = self.given.partition_point(|&given| (given as usize) < class)
            ..self.given.partition_point(|&given| given as usize <= class);
        let count = members.clone().filter(|&item| !self.mislabelled[item]).count();
        mean.fill(T::ZERO);
        for item in members.filter(|&item| !self.mislabelled[item]) {
            let row = &self.rows[item * mean.len()..(item + 1) * mean.len()];
            add_scaled(row, T::ONE / T::from_f64(count as f64), mean);
        }
        count > 0
    }
}

kernel! {
    /// `to += factor from`
    fn add_scaled<'a, T>(from: &'a [T], factor: T, to: &'a mut [T]) {
        for (to, &from) in to.iter_mut().zip(from) {
            *to += factor * from;
        }
    }
}
