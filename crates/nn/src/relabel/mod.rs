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
//! Memory grows with items x classes (2 KB each while a set is judged, 12 KB in training) and with the square of the
//! items (100 bytes each): a thousand items in 200 classes take half a gigabyte. A set of several thousand items in
//! as many classes should be judged in parts.

mod attention;
mod batch;
mod beginning;
mod buffer;
mod config;
mod edge_network;
mod edges;
mod glance;
mod judgement;
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
mod training;
mod verdict;

pub use config::{Config, ItemView, Reach};
pub use edges::{EDGE_FEATURES, NEUTRAL, edge_features};
pub use judgement::Judgement;
pub use prepare::Support;
pub use space::Space;

use crate::head::{Cloud, Episode, Head};
use crate::isa::Isa;
use crate::parameters::Layout;
use crate::real::Real;
use network::Network;
use parts::Plan;

/// The head.
#[derive(Debug, Clone, PartialEq)]
pub struct Relabel {
    config: Config,
    plan: Plan,
    network: Network,
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
        parameters[self.network.log_scale.start].exp()
    }
}

impl Head for Relabel {
    fn layout(&self) -> &Layout {
        &self.plan.layout
    }

    fn initial(&self, random: &mut dyn FnMut() -> f64) -> Vec<f32> {
        self.plan.initial(random)
    }

    fn suit(&self, parameters: &mut [f32], cloud: &dyn Fn() -> Cloud) {
        if let Some(place) = self.network.mean() {
            parameters[place].copy_from_slice(&cloud().mean);
        }
    }

    fn terms(&self) -> &'static [&'static str] {
        &training::TERMS
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
