//! The network: from prepared support sets to a logit for every state, and all the way back.

use std::ops::Range;

use super::attention::Shape;
use super::batch::{Batch, Pass, Place};
use super::beginning::{Beginning, Begun};
use super::buffer::Buffer;
use super::config::{Config, Reach};
use super::edge_network::{self, PAIR_FEATURES, Weights};
use super::glance::{Suspected, Suspicion};
use super::listening::{Listened, Listening};
use super::losses::LOG_SCALE_START;
use super::mixing::{Mixed, Mixing};
use super::parts::{Norm, Normed, Plan, Product, Start};
use super::prepare::Prepared;
use super::verdict::{Evidence, PRIOR_START};
use crate::isa::Isa;
use crate::matmul::Write;
use crate::real::Real;

/// Numbers that come out of a state: evidence for its class, logarithm of its multiplier, evidence for "none".
const OUTPUTS: usize = 3;

/// Where the parameters lie.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Network {
    heads: usize,
    edges: Weights<Range<usize>>,
    beginning: Beginning,
    layers: Vec<(Listening, Mixing)>,
    norm: Norm,
    out: Product,
    suspicion: Option<Suspicion>,
    pub(super) prior: Range<usize>,
    pub(super) log_scale: Range<usize>,
}

/// What the way back needs.
pub(super) struct Kept<T: Real> {
    /// A plane of all pairs for every head of every layer.
    shares: Buffer<T>,
    begun: Begun<T>,
    layers: Vec<(Listened<T>, Mixed<T>)>,
    last: Normed<T>,
    suspected: Option<Suspected<T>>,
}

/// What comes out, for all episodes one behind the other; also its gradient.
#[derive(Debug, Clone)]
pub(super) struct Outputs<T> {
    /// A number for every state.
    pub(super) classes: Vec<T>,
    /// A number for every state.
    pub(super) multipliers: Vec<T>,
    /// A number for every item.
    pub(super) none: Vec<T>,
}

impl Network {
    pub(super) fn new(plan: &mut Plan, config: &Config) -> Self {
        let Config { width, heads, hidden, edge_hidden, layers, .. } = *config;
        let edges = Weights {
            hidden: plan.product("edges.hidden", PAIR_FEATURES, edge_hidden, PAIR_FEATURES).weight,
            bias: plan.add("edges.hidden.bias".into(), &[edge_hidden], Start::Uniform(0.5)),
            out: plan.product("edges.out", edge_hidden, layers * heads, edge_hidden).weight,
        };
        let beginning = Beginning::new(plan, config);
        let layer = |layer: usize| {
            let listening = Listening::new(plan, &format!("layer{layer}.attention"), Shape { width, heads });
            (listening, Mixing::new(plan, &format!("layer{layer}.mixing"), width, hidden))
        };
        Network {
            heads,
            edges,
            beginning,
            layers: (0..layers).map(layer).collect(),
            norm: plan.norm("out.norm", width),
            // Zero: before training a prototype is what the prior makes of it.
            out: plan.product_from("out", width, OUTPUTS, Start::Fill(0.0)),
            suspicion: config
                .item_view
                .as_ref()
                .filter(|view| view.reach == Reach::None)
                .map(|view| Suspicion::new(plan, view, width)),
            prior: plan.add("prior".into(), &[PRIOR_START.len()], Start::Values(PRIOR_START.to_vec())),
            log_scale: plan.add("log_scale".into(), &[1], Start::Fill(LOG_SCALE_START)),
        }
    }

    /// Where the mean of the training data lies, if the head sees items.
    pub(super) fn mean(&self) -> Option<Range<usize>> {
        self.suspicion.as_ref().map(Suspicion::mean).or_else(|| self.beginning.mean())
    }

    /// What comes out in training, and all that was met on the way.
    pub(super) fn forward<T: Real>(
        &self,
        isa: Isa,
        parameters: &[T],
        prepared: &Prepared<'_, T>,
        seed: u64,
    ) -> (Outputs<T>, Kept<T>) {
        let pass = Pass { isa, parameters, batch: &prepared.batch };
        let mut shares = self.edge_logits(pass, prepared);
        let (mut states, begun) = self.beginning.forward(pass, prepared, Some(seed));
        let planes = shares.chunks_exact_mut(self.planes(pass));
        let layers = self.layers.iter().zip(planes).map(|((listening, mixing), shares)| {
            let listened = listening.forward(pass, &mut states, shares);
            (listened, mixing.forward(pass, &mut states))
        });
        let layers = layers.collect();
        let (mut outputs, last) = self.read(pass, &states);
        let suspicion = self.suspicion.as_ref();
        let suspected =
            suspicion.map(|suspicion| suspicion.forward(pass, prepared, Some(seed), &mut outputs.none));
        (outputs, Kept { shares, begun, layers, last, suspected })
    }

    /// What comes out where only that is wanted: items are seen whole, and nothing is kept.
    pub(super) fn outputs<T: Real>(
        &self,
        isa: Isa,
        parameters: &[T],
        prepared: &Prepared<'_, T>,
    ) -> Outputs<T> {
        let pass = Pass { isa, parameters, batch: &prepared.batch };
        let mut shares = self.edge_logits(pass, prepared);
        let mut states = self.beginning.forward(pass, prepared, None).0;
        let planes = shares.chunks_exact_mut(self.planes(pass));
        for ((listening, mixing), shares) in self.layers.iter().zip(planes) {
            listening.forward(pass, &mut states, shares);
            mixing.forward(pass, &mut states);
        }
        let mut outputs = self.read(pass, &states).0;
        if let Some(suspicion) = &self.suspicion {
            suspicion.forward(pass, prepared, None, &mut outputs.none);
        }
        outputs
    }

    /// Numbers in a layer's planes of pairs.
    fn planes<T>(&self, pass: Pass<'_, T>) -> usize {
        self.heads * pass.batch.pairs
    }

    fn edge_logits<T: Real>(&self, pass: Pass<'_, T>, prepared: &Prepared<'_, T>) -> Buffer<T> {
        let Pass { isa, parameters, batch } = pass;
        let mut logits = Buffer::new(self.layers.len() * self.planes(pass));
        let edges = self.edges.of(parameters);
        edge_network::forward(isa, batch.pairs, &edges, &prepared.pair_features, &mut logits);
        logits
    }

    fn read<T: Real>(&self, pass: Pass<'_, T>, states: &[T]) -> (Outputs<T>, Normed<T>) {
        let Pass { isa, parameters, batch } = pass;
        let last = self.norm.forward(isa, parameters, states);
        let mut out = Buffer::new(batch.states * OUTPUTS);
        self.out.forward(isa, parameters, &last.out, Write::Set, &mut out);
        (Outputs::split(batch, &out), last)
    }

    /// Adds to the gradient of the parameters.
    pub(super) fn backward<T: Real>(
        &self,
        isa: Isa,
        parameters: &[T],
        prepared: &Prepared<'_, T>,
        kept: &Kept<T>,
        d_outputs: &Outputs<T>,
        gradient: &mut [T],
    ) {
        let batch = &prepared.batch;
        let pass = Pass { isa, parameters, batch };
        if let (Some(suspicion), Some(suspected)) = (&self.suspicion, &kept.suspected) {
            suspicion.backward(pass, suspected, &d_outputs.none, gradient);
        }
        let d_out = d_outputs.join(batch);
        let mut d_last = Buffer::new(kept.last.out.len());
        let into = Some((Write::Set, &mut *d_last));
        self.out.backward(isa, parameters, &kept.last.out, &d_out, gradient, into);
        let mut d_states = Buffer::new(d_last.len());
        self.norm.backward(isa, parameters, &kept.last, &d_last, gradient, &mut d_states);
        let mut d_logits = Buffer::new(kept.shares.len());
        let planes = self.planes(pass);
        let layers = self.layers.iter().zip(&kept.layers);
        let pairs = kept.shares.chunks_exact(planes).zip(d_logits.chunks_exact_mut(planes));
        for (((listening, mixing), (listened, mixed)), (shares, d_logits)) in layers.zip(pairs).rev() {
            mixing.backward(pass, mixed, &mut d_states, gradient);
            listening.backward(pass, listened, shares, &mut d_states, d_logits, gradient);
        }
        self.beginning.backward(pass, prepared, &kept.begun, &d_states, gradient);
        let (edges, mut d_edges) = (self.edges.of(parameters), self.edges.of_mut(gradient));
        let features = &prepared.pair_features;
        edge_network::backward(isa, batch.pairs, &edges, features, &d_logits, &mut d_edges);
    }
}

impl<T: Real> Outputs<T> {
    /// Evidence for "none" is a mean over the item's states.
    fn split(batch: &Batch, out: &[T]) -> Self {
        let column = |place: usize| out.chunks_exact(OUTPUTS).map(|row| row[place]).collect::<Vec<T>>();
        let each = column(2);
        let mut none = Vec::with_capacity(batch.items);
        for place in &batch.places {
            let share = T::from_f64(1.0 / place.classes as f64);
            let items = each[place.states()].chunks_exact(place.classes);
            none.extend(items.map(|states| states.iter().copied().sum::<T>() * share));
        }
        Outputs { classes: column(0), multipliers: column(1), none }
    }

    fn join(&self, batch: &Batch) -> Vec<T> {
        let mut out = Vec::with_capacity(self.classes.len() * OUTPUTS);
        for place in &batch.places {
            let share = T::from_f64(1.0 / place.classes as f64);
            for (item, state) in place.states().enumerate() {
                let none = self.none[place.items().start + item / place.classes];
                out.extend([self.classes[state], self.multipliers[state], none * share]);
            }
        }
        out
    }

    /// The part of one episode.
    pub(super) fn of(&self, place: &Place) -> Evidence<&[T]> {
        Evidence {
            classes: &self.classes[place.states()],
            multipliers: &self.multipliers[place.states()],
            none: &self.none[place.items()],
        }
    }

    /// The part of one episode, to be changed.
    pub(super) fn of_mut(&mut self, place: &Place) -> Evidence<&mut [T]> {
        Evidence {
            classes: &mut self.classes[place.states()],
            multipliers: &mut self.multipliers[place.states()],
            none: &mut self.none[place.items()],
        }
    }
}

impl Weights<Range<usize>> {
    fn of<'a, T>(&self, numbers: &'a [T]) -> Weights<&'a [T]> {
        Weights {
            hidden: &numbers[self.hidden.clone()],
            bias: &numbers[self.bias.clone()],
            out: &numbers[self.out.clone()],
        }
    }

    fn of_mut<'a, T>(&self, numbers: &'a mut [T]) -> Weights<&'a mut [T]> {
        let all = &mut numbers[self.hidden.start..self.out.end];
        let (hidden, rest) = all.split_at_mut(self.hidden.len());
        let (bias, out) = rest.split_at_mut(self.bias.len());
        Weights { hidden, bias, out }
    }
}
