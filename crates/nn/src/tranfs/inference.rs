//! What a trained model says about support sets.

use std::ops::Range;

use super::Tranfs;
use super::encoder::{Call, Kept};
use super::training::Work;
use crate::isa::Isa;
use crate::layers::attention::padded;
use crate::layers::dropout::Dropout;
use crate::real::Real;

/// A support set. Classes may be of any sizes; items come in any order.
#[derive(Debug, Clone, Copy)]
pub struct Support<'a, T = f32> {
    /// Number of classes.
    pub classes: usize,
    /// The items.
    pub items: &'a [&'a [T]],
    /// The class each is filed under.
    pub given: &'a [u32],
    /// Which row of the model's tables each class uses, all different; row c for class c if not said. Averaging
    /// over several takes out most of the dependence on the order of the classes.
    pub order: Option<&'a [u32]>,
}

/// What the model makes of a support set.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Aggregate {
    /// One behind the other, in the order of the classes.
    pub prototypes: Vec<f32>,
    /// P(mislabelled) of every item, in the order given.
    pub mislabelled: Vec<f32>,
}

/// What a token stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Token {
    /// A class.
    Class(u32),
    /// An item of the support set.
    Item(usize),
}

/// Where every token of one support set looks.
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// What the rows and columns stand for: classes, then items in order of class.
    pub tokens: Vec<Token>,
    /// Layers.
    pub layers: usize,
    /// Heads of each.
    pub heads: usize,
    /// layers x heads x tokens x tokens; every row sums to 1.
    pub shares: Vec<f32>,
}

impl Attention {
    /// One head's square, tokens x tokens.
    pub fn head(&self, layer: usize, head: usize) -> &[f32] {
        let size = self.tokens.len() * self.tokens.len();
        let number = layer * self.heads + head;
        &self.shares[number * size..(number + 1) * size]
    }
}

/// Support sets worked on at a time: their intermediate results stay in the second-level cache.
const TOGETHER: usize = 8;

impl Tranfs {
    /// Prototypes and P(mislabelled) of some support sets, on this thread. A result does not depend on the other
    /// support sets of the call.
    ///
    /// # Panics
    /// If a support set has more classes than the model knows, or shapes disagree.
    pub fn prototypes(&self, isa: Isa, parameters: &[f32], supports: &[Support<'_>]) -> Vec<Aggregate> {
        self.with_work(|work| {
            let mut results = Vec::with_capacity(supports.len());
            for supports in supports.chunks(TOGETHER) {
                self.infer(isa, parameters, supports, work, |_, _| ());
                results.extend((0..supports.len()).map(|number| self.aggregate(number, work)));
            }
            results
        })
    }

    /// Where every token looks, in every layer and head.
    ///
    /// # Panics
    /// As [`Tranfs::prototypes`].
    pub fn attention(&self, isa: Isa, parameters: &[f32], support: Support<'_>) -> Attention {
        self.with_work(|work| {
            let mut shares = Vec::new();
            self.infer(isa, parameters, &[support], work, |tokens, kept| {
                for square in kept.attention.shares.chunks_exact(tokens * padded(tokens)) {
                    for token in 0..tokens {
                        shares.extend(square[token..].iter().step_by(padded(tokens)));
                    }
                }
            });
            let classes = (0..support.classes).map(|class| Token::Class(class as u32));
            let tokens = classes.chain(work.tokens.sources.iter().map(|&item| Token::Item(item))).collect();
            Attention { tokens, layers: self.config.layers, heads: self.config.heads, shares }
        })
    }

    /// The forward pass without dropout; `look` is shown what each layer kept, with the number of all tokens.
    /// Leaves prototypes and logits in `work`.
    fn infer<T: Real>(
        &self,
        isa: Isa,
        parameters: &[T],
        supports: &[Support<'_, T>],
        work: &mut Work<T>,
        mut look: impl FnMut(usize, &Kept<T>),
    ) {
        let Work { tokens, states, kept, scratch, ends } = work;
        tokens.fill(supports.iter().copied(), self.config.classes);
        self.embed(isa, parameters, tokens, supports.iter().copied(), ends, states);
        kept.resize_with(kept.len().max(1), Kept::default);
        let call = Call { isa, parameters, segments: &tokens.segments, dropout: Dropout::NONE };
        for layer in 0..self.encoder.depth() {
            self.encoder.forward_layer(call, layer, states, &mut kept[0], scratch);
            std::mem::swap(states, &mut kept[0].out);
            look(tokens.tokens(), &kept[0]);
        }
        self.answer(isa, parameters, tokens, states, ends);
    }

    fn aggregate(&self, number: usize, work: &Work<f32>) -> Aggregate {
        let place = &work.tokens.places[number];
        let dim = self.config.dim;
        let rows: Range<usize> = place.classes.start * dim..place.classes.end * dim;
        let mut mislabelled = vec![0.0; place.items.len()];
        for item in place.items.clone() {
            mislabelled[work.tokens.sources[item]] = work.ends.logits[item].sigmoid();
        }
        Aggregate { prototypes: work.ends.prototypes[rows].to_vec(), mislabelled }
    }
}
