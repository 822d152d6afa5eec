//! Relabel: a head that says of every support item whose it is, and builds prototypes by that.
//!
//! A wrong item of a class is often a right one of another: whoever finds out which has more to build on than
//! who only drops it. For every item the head gives P(it is of class c) for all classes and "none of them", and a
//! prototype is made of *all* items by that. It sees relations between items only (unless told to see items, for one
//! backbone), so one head serves embeddings of any dimension; and it treats classes and items alike by
//! construction, so their numbers are free, and a set in another order gets the same answer in that order.
//!
//! How it goes: products between items ([`Space`]), five numbers for each pair of items ([`edge_features`]), a
//! state for every item and class, and layers in which items listen to each other and states of one item or class
//! take counsel. The networks run over the states of all episodes of a call as one matrix.
//!
//! Memory grows with items x classes (about 3 KB each while a call lasts) and with the square of the items (100
//! bytes each): a thousand items in 200 classes take 0.7 GB, a set of several thousand items should come in parts.

mod attention;
mod batch;
mod beginning;
mod config;
mod edge_network;
mod edges;
mod initial;
mod listening;
mod losses;
mod mixing;
mod network;
mod parts;
mod pooling;
mod prepare;
mod space;
mod start;
#[cfg(test)]
mod tests;
mod verdict;

pub use config::{Config, ItemView};
pub use edges::{EDGE_FEATURES, NEUTRAL, edge_features};
pub use prepare::Support;
pub use space::Space;

use crate::head::{Episode, Head};
use crate::isa::Isa;
use crate::parameters::Layout;
use crate::real::Real;
use losses::{PlacedQueries, items_loss, queries_loss};
use network::{Network, Outputs};
use parts::Plan;
use prepare::Prepared;
use verdict::{EvidenceGradient, Verdict};

/// Episodes that pass through together: enough for large products, few enough that what is kept for the way back
/// stays near the processor.
const TOGETHER: usize = 4;

/// The head.
#[derive(Debug, Clone, PartialEq)]
pub struct Relabel {
    config: Config,
    plan: Plan,
    network: Network,
}

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
    /// A head of this shape.
    ///
    /// # Panics
    /// If the heads of attention do not divide the width, or a size is zero.
    pub fn new(config: Config) -> Self {
        let sizes = [config.width, config.layers, config.heads, config.hidden, config.edge_hidden];
        assert!(sizes.iter().all(|&size| size > 0), "a size of zero in {config:?}");
        assert!(config.width.is_multiple_of(config.heads), "{} heads for {}", config.heads, config.width);
        let mut plan = Plan::default();
        let network = Network::new(&mut plan, &config);
        Relabel { config, plan, network }
    }

    /// Its shape.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// What squared distances to prototypes over their mean are multiplied by to be the logits of a query.
    pub fn scale<T: Real>(&self, parameters: &[T]) -> T {
        parameters[self.network.log_scale.start].exponential()
    }

    /// What the head says of some support sets. They share the network's passes, so sets of a few items each are
    /// best handed over together.
    ///
    /// # Panics
    /// If a set has no items or no classes, or its shapes disagree.
    pub fn judge<T: Real>(
        &self,
        isa: Isa,
        parameters: &[T],
        supports: &[Support<'_, T>],
    ) -> Vec<Judgement<T>> {
        supports
            .chunks(TOGETHER)
            .flat_map(|supports| self.judge_together(isa, parameters, supports))
            .collect()
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
            let evidence = outputs.of(place.states(), place.items());
            let Verdict { shares, weights, .. } = Verdict::new(place, prior, evidence, self.config.floor);
            Judgement { shares, weights, space }
        });
        judged.collect()
    }

    fn check<T>(&self, support: &Support<'_, T>) {
        let items = support.given.len();
        assert!(items > 0 && support.classes > 0, "{items} items in {} classes", support.classes);
        let needs_rows = support.gram.is_none() || self.config.item_view.is_some();
        assert!(!needs_rows || support.rows.len() == items, "a row for every item");
        if let Some(view) = &self.config.item_view {
            assert!(support.rows.iter().all(|row| row.len() == view.dim), "rows of {} numbers", view.dim);
        }
    }

    /// [`Head::losses`] in either precision.
    pub fn losses_of<T: Real>(
        &self,
        isa: Isa,
        parameters: &[T],
        episodes: &[Episode<'_, T>],
        seed: u64,
        gradient: &mut [T],
    ) -> Vec<f64> {
        assert_eq!((parameters.len(), gradient.len()), (self.plan.layout.len(), self.plan.layout.len()));
        let mut sums = vec![0.0; self.terms().len()];
        for (part, episodes) in episodes.chunks(TOGETHER).enumerate() {
            // SplitMix64's step, so that no two parts of any two calls drop alike.
            let seed = seed.wrapping_add((part as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let losses = self.losses_together(isa, parameters, episodes, seed, gradient);
            sums.iter_mut().zip(losses).for_each(|(sum, loss)| *sum += loss);
        }
        sums
    }

    fn losses_together<T: Real>(
        &self,
        isa: Isa,
        parameters: &[T],
        episodes: &[Episode<'_, T>],
        seed: u64,
        gradient: &mut [T],
    ) -> [f64; 2] {
        let supports: Vec<Support<'_, T>> = episodes.iter().map(support_of).collect();
        supports.iter().for_each(|support| self.check(support));
        let prepared = Prepared::new(isa, &supports, self.config.centred);
        let (outputs, kept) = self.network.forward(isa, parameters, &prepared, seed);
        let mut d_outputs = outputs.clone();
        let mut sums = [0.0; 2];
        for (number, episode) in episodes.iter().enumerate() {
            let losses =
                self.episode(isa, parameters, &prepared, number, episode, &outputs, &mut d_outputs, gradient);
            sums.iter_mut().zip(losses).for_each(|(sum, loss)| *sum += loss);
        }
        self.network.backward(isa, parameters, &prepared, &kept, &d_outputs, gradient);
        sums
    }

    /// One episode's losses, and the gradient of what came out of the network for it.
    #[allow(clippy::too_many_arguments)]
    fn episode<T: Real>(
        &self,
        isa: Isa,
        parameters: &[T],
        prepared: &Prepared<'_, T>,
        number: usize,
        episode: &Episode<'_, T>,
        outputs: &Outputs<T>,
        d_outputs: &mut Outputs<T>,
        gradient: &mut [T],
    ) -> [f64; 2] {
        let (place, space) = (&prepared.batch.places[number], &prepared.spaces[number]);
        let Config { floor, items_weight, queries_weight, .. } = self.config;
        let evidence = outputs.of(place.states(), place.items());
        let verdict = Verdict::new(place, &parameters[self.network.prior.clone()], evidence, floor);
        let mut d_logits = vec![T::ZERO; verdict.shares.len()];
        let items = items_loss(&verdict.shares, episode.truth, place.classes, items_weight, &mut d_logits);
        let mut products = vec![T::ZERO; place.items * episode.queries.len()];
        T::products(isa, episode.queries, episode.support, &mut products);
        let mut squares = squared_lengths(isa, episode.queries);
        space.place(&mut products, &mut squares);
        let queries =
            PlacedQueries { products: &products, squares: &squares, classes: episode.query_classes };
        let mut d_weights = vec![T::ZERO; verdict.weights.len()];
        let log_scale = self.network.log_scale.start;
        let scale = parameters[log_scale];
        let d_scale = &mut gradient[log_scale];
        let queries = queries_loss(
            isa,
            space,
            &queries,
            &verdict.weights,
            scale,
            queries_weight,
            &mut d_weights,
            d_scale,
        );
        let d_evidence = EvidenceGradient {
            classes: &mut d_outputs.classes[place.states()],
            multipliers: &mut d_outputs.multipliers[place.states()],
            none: &mut d_outputs.none[place.items()],
        };
        let d_prior = &mut gradient[self.network.prior.clone()];
        verdict.backward(place, evidence, &d_weights, &mut d_logits, d_evidence, d_prior);
        [items, queries]
    }
}

fn support_of<'a, T>(episode: &Episode<'a, T>) -> Support<'a, T> {
    Support { classes: episode.classes, given: episode.given, rows: episode.support, gram: None }
}

fn squared_lengths<T: Real>(isa: Isa, rows: &[&[T]]) -> Vec<T> {
    rows.iter().map(|row| crate::layers::loss::square(isa, row)).collect()
}

impl Head for Relabel {
    fn layout(&self) -> &Layout {
        &self.plan.layout
    }

    fn initial(&self, random: &mut dyn FnMut() -> f64) -> Vec<f32> {
        initial::numbers(&self.plan, random)
    }

    fn terms(&self) -> &'static [&'static str] {
        &["items", "queries"]
    }

    fn losses(
        &self,
        isa: Isa,
        parameters: &[f32],
        episodes: &[Episode<'_>],
        seed: u64,
        gradient: &mut [f32],
    ) -> Vec<f64> {
        self.losses_of(isa, parameters, episodes, seed, gradient)
    }
}
