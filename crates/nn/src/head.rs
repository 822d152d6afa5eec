//! What the learned heads have in common: they are trained on episodes of embeddings.

use crate::isa::Isa;
use crate::parameters::Layout;

/// One episode with everything a loss needs. Classes may be of any sizes; items come in any order.
#[derive(Debug, Clone, Copy)]
pub struct Episode<'a, T = f32> {
    /// Number of classes.
    pub classes: usize,
    /// The support items.
    pub support: &'a [&'a [T]],
    /// The class each is filed under.
    pub given: &'a [u32],
    /// The class each really has, if any of the episode's.
    pub truth: &'a [Option<u32>],
    /// The queries.
    pub queries: &'a [&'a [T]],
    /// Their classes.
    pub query_classes: &'a [u32],
}

/// Training features as a whole.
#[derive(Debug, Clone, PartialEq)]
pub struct Cloud {
    /// Their mean.
    pub mean: Vec<f32>,
    /// How far they lie from it (root mean square).
    pub spread: f64,
}

/// A model that is trained on episodes.
pub trait Head: Send + Sync {
    /// Its parameters.
    fn layout(&self) -> &Layout;

    /// Fresh parameters; `random` yields uniform numbers in [0, 1).
    fn initial(&self, random: &mut dyn FnMut() -> f64) -> Vec<f32>;

    /// Suits fresh parameters to the features they are going to see. `cloud` looks at all of those, which takes a while.
    fn suit(&self, _parameters: &mut [f32], _cloud: &dyn Fn() -> Cloud) {}

    /// The names of the terms of its loss.
    fn terms(&self) -> &'static [&'static str];

    /// Sums of the terms over some episodes (weighted as the loss weighs them: they add up to it), whose
    /// gradient is added to `gradient`. On one thread; who has more hands each a part of a step's episodes.
    /// `seed` decides what dropout drops.
    fn losses(
        &self,
        isa: Isa,
        parameters: &[f32],
        episodes: &[Episode<'_>],
        seed: u64,
        gradient: &mut [f32],
    ) -> Vec<f64>;
}
