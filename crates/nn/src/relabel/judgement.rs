//! Using the head: what it says of support sets.

use super::Relabel;
use super::batch::groups;
use super::prepare::{Prepared, Support};
use super::space::Space;
use super::verdict::Verdict;
use crate::isa::Isa;
use crate::real::Real;

/// What the head says of one support set.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement<T = f32> {
    /// Items x (classes + 1): P(item is of class c), the last one of "none of them".
    pub shares: Vec<T>,
    /// Classes x items: what each prototype is made of, in `space`; every class's sum to 1.
    pub weights: Vec<T>,
    /// Where prototypes and distances live.
    pub space: Space<T>,
}

impl Relabel {
    /// What the head says of some support sets. Sets of a few items share the network's passes, so they are best
    /// handed over together.
    ///
    /// # Panics
    /// If a set has no items or no classes, or its shapes disagree.
    pub fn judge<T: Real>(
        &self,
        isa: Isa,
        parameters: &[T],
        supports: &[Support<'_, T>],
    ) -> Vec<Judgement<T>> {
        let states = supports.iter().map(|support| support.classes * support.given.len());
        let groups = groups(states).into_iter();
        groups.flat_map(|group| self.judge_together(isa, parameters, &supports[group])).collect()
    }

    fn judge_together<T: Real>(
        &self,
        isa: Isa,
        parameters: &[T],
        supports: &[Support<'_, T>],
    ) -> Vec<Judgement<T>> {
        supports.iter().for_each(|support| self.check(support));
        let prepared = Prepared::new(isa, supports, self.config.centred);
        let outputs = self.network.outputs(isa, parameters, &prepared);
        let prior = &parameters[self.network.prior.clone()];
        let Prepared { batch, spaces, .. } = prepared;
        let judged = batch.places.iter().zip(spaces).map(|(place, space)| {
            let verdict = Verdict::new(place, prior, outputs.of(place), self.config.floor);
            Judgement { shares: verdict.shares, weights: verdict.weights, space }
        });
        judged.collect()
    }

    /// # Panics
    /// If a set has no items or no classes, or its shapes disagree.
    pub(super) fn check<T>(&self, support: &Support<'_, T>) {
        let items = support.given.len();
        assert!(items > 0 && support.classes > 0, "{items} items in {} classes", support.classes);
        let needs_rows = support.gram.is_none() || self.config.item_view.is_some();
        assert!(!needs_rows || support.rows.len() == items, "a row for every item");
        if let Some(view) = &self.config.item_view {
            assert!(support.rows.iter().all(|row| row.len() == view.dim), "rows of {} numbers", view.dim);
        }
    }
}
