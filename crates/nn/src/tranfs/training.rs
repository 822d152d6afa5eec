//! The forward pass, the losses and the backward pass, all episodes of a call together.
//!
//! Shapes: I items, C class tokens, T = I + C tokens of all episodes. The projections' gradient is a product of
//! two stacks: left the items, the gradients of the prototypes, and the weight of "mislabelled" (each D wide);
//! right what each of these meets: the gradients of the projected items, the class tokens' states, and the
//! gradient of the projected weight (each W wide). With tied projections it is one product.

use super::encoder::{Call, Kept, Scratch, fit};
use super::tokens::{Place, Tokens};
use super::{CleanLoss, Support, Tranfs};
use crate::head::Episode;
use crate::isa::Isa;
use crate::kernel::kernel;
use crate::layers::dropout::Dropout;
use crate::layers::loss;
use crate::matmul::{View, ViewMut, Write, multiply};
use crate::memory::prefetch_line;
use crate::real::{Real, dot};

/// Room for intermediate results, reused from call to call.
#[derive(Debug, Clone, Default)]
pub(super) struct Work<T> {
    pub tokens: Tokens,
    /// T x W
    pub states: Vec<T>,
    pub kept: Vec<Kept<T>>,
    pub scratch: Scratch<T>,
    pub ends: Ends<T>,
}

/// What happens before the encoder and behind it.
#[derive(Debug, Clone, Default)]
pub(super) struct Ends<T> {
    /// (I + C + 1) x D: items, prototypes' gradients, the weight of "mislabelled".
    left: Vec<T>,
    /// (I + C + 1) x W: projected items, later their gradients; class tokens' states; the gradient of the projected
    /// weight.
    right: Vec<T>,
    /// W: the weight of "mislabelled" projected.
    direction: Vec<T>,
    /// C x D
    pub prototypes: Vec<T>,
    /// I
    pub logits: Vec<T>,
    /// C x W
    d_class_states: Vec<T>,
    /// T x W
    d_states: Vec<T>,
    /// Q x N
    query_logits: Vec<T>,
    /// D: a mean of clean items.
    clean: Vec<T>,
}

impl<'a, T> Support<'a, T> {
    fn of(episode: &Episode<'a, T>) -> Self {
        let Episode { classes, support: items, given, .. } = *episode;
        Support { classes, items, given, order: None }
    }
}

impl Tranfs {
    /// The three terms of the loss, summed over the episodes, whose gradient is added to `gradient`.
    pub(super) fn losses_with<T: Real>(
        &self,
        isa: Isa,
        parameters: &[T],
        episodes: &[Episode<'_, T>],
        seed: u64,
        gradient: &mut [T],
        work: &mut Work<T>,
    ) -> [f64; 3] {
        assert_eq!(parameters.len(), gradient.len());
        let supports = || episodes.iter().map(Support::of);
        let Work { tokens, states, kept, scratch, ends } = work;
        tokens.fill(supports(), self.config.classes);
        self.embed(isa, parameters, tokens, supports(), ends, states);
        let dropout = Dropout::new(self.config.dropout, seed);
        let call = Call { isa, parameters, segments: &tokens.segments, dropout };
        self.encoder.forward(call, states, kept, scratch);
        let out = kept.last().map_or(&*states, |last| &last.out);
        self.answer(isa, parameters, tokens, out, ends);
        let terms = self.judge(isa, tokens, episodes, ends);
        self.unanswer(isa, parameters, tokens, out, gradient, ends);
        self.encoder.backward(call, states, kept, scratch, gradient, &mut ends.d_states);
        self.unembed(isa, tokens, gradient, ends);
        terms
    }

    /// Copies the items together, projects them, and sets up the tokens.
    pub(super) fn embed<'a, T: Real>(
        &self,
        isa: Isa,
        parameters: &[T],
        tokens: &Tokens,
        supports: impl Iterator<Item = Support<'a, T>>,
        ends: &mut Ends<T>,
        states: &mut Vec<T>,
    ) {
        let (dim, width) = (self.config.dim, self.config.width);
        let Ends { left, right, .. } = ends;
        let (items, rows) = (tokens.sources.len(), tokens.sources.len() + tokens.rows.len() + 1);
        fit(left, rows * dim);
        fit(right, rows * width);
        for (support, place) in supports.zip(&tokens.places) {
            let rows = left[place.items.start * dim..place.items.end * dim].chunks_exact_mut(dim);
            let sources = &tokens.sources[place.items.clone()];
            for (number, to) in rows.enumerate() {
                if let Some(&ahead) = sources.get(number + 2) {
                    prefetch_row(support.items[ahead]);
                }
                to.copy_from_slice(support.items[sources[number]]);
            }
        }
        let (left, projected) = (&left[..items * dim], &mut right[..items * width]);
        let down = View::new(&parameters[self.places.down.clone()], dim, width);
        let into = ViewMut::new(projected, items, width);
        multiply(isa, View::new(left, items, dim), down, Write::Set, into);
        fit(states, tokens.tokens() * width);
        for place in &tokens.places {
            self.place_tokens(parameters, tokens, place, projected, states);
        }
    }

    /// Class tokens and projected items of one episode, positions added.
    fn place_tokens<T: Real>(
        &self,
        parameters: &[T],
        tokens: &Tokens,
        place: &Place,
        projected: &[T],
        states: &mut [T],
    ) {
        let width = self.config.width;
        let rows = &tokens.rows[place.classes.clone()];
        let positions = &parameters[self.places.positions.clone()];
        let states = &mut states[place.tokens.start * width..place.tokens.end * width];
        let (class_states, item_states) = states.split_at_mut(rows.len() * width);
        class_states.fill(T::ZERO);
        let shares = shares(tokens, place);
        for (item, state) in place.items.clone().zip(item_states.chunks_exact_mut(width)) {
            let class = tokens.given[item] as usize;
            let projected = &projected[item * width..(item + 1) * width];
            let position = &positions[rows[class] * width..(rows[class] + 1) * width];
            for ((state, &projected), &position) in state.iter_mut().zip(projected).zip(position) {
                *state = projected + position;
            }
            if self.places.class_tokens.is_none() {
                add(&mut class_states[class * width..(class + 1) * width], projected, shares[class]);
            }
        }
        for (&row, state) in rows.iter().zip(class_states.chunks_exact_mut(width)) {
            add(state, &positions[row * width..(row + 1) * width], T::ONE);
            if let Some(class_tokens) = &self.places.class_tokens {
                add(state, &parameters[class_tokens.clone()][row * width..(row + 1) * width], T::ONE);
            }
        }
    }

    /// The way back, from the encoder's result: prototypes and the logits of "mislabelled".
    pub(super) fn answer<T: Real>(
        &self,
        isa: Isa,
        parameters: &[T],
        tokens: &Tokens,
        out: &[T],
        ends: &mut Ends<T>,
    ) {
        let (dim, width) = (self.config.dim, self.config.width);
        let Ends { right, direction, prototypes, logits, .. } = ends;
        let (items, classes) = (tokens.sources.len(), tokens.rows.len());
        let class_states = &mut right[items * width..(items + classes) * width];
        for place in &tokens.places {
            let from = &out[place.tokens.start * width..][..place.classes.len() * width];
            class_states[place.classes.start * width..place.classes.end * width].copy_from_slice(from);
        }
        let up = View::new(&parameters[self.places.up.clone()], dim, width);
        let into = ViewMut::new(fit(prototypes, classes * dim), classes, dim);
        multiply(isa, View::new(class_states, classes, width), up.transposed(), Write::Set, into);
        let weight = View::new(&parameters[self.places.mislabelled.clone()], 1, dim);
        multiply(isa, weight, up, Write::Set, ViewMut::new(fit(direction, width), 1, width));
        let bias = parameters[self.places.mislabelled_bias];
        fit(logits, items);
        for place in &tokens.places {
            let states = &out[place.item_tokens().start * width..place.tokens.end * width];
            project(isa, states, direction, bias, &mut logits[place.items.clone()]);
        }
    }

    /// The losses; prototypes' gradients go to the left stack, the logits turn into theirs.
    fn judge<T: Real>(
        &self,
        isa: Isa,
        tokens: &Tokens,
        episodes: &[Episode<'_, T>],
        ends: &mut Ends<T>,
    ) -> [f64; 3] {
        let dim = self.config.dim;
        let Ends { left, prototypes, logits, query_logits, clean, .. } = ends;
        let items = tokens.sources.len();
        let (left_items, d_prototypes) = left.split_at_mut(items * dim);
        let mut terms = [0.0; 3];
        for (episode, place) in episodes.iter().zip(&tokens.places) {
            let range = place.classes.start * dim..place.classes.end * dim;
            let (prototypes, d_prototypes) = (&prototypes[range.clone()], &mut d_prototypes[range]);
            d_prototypes.fill(T::ZERO);
            let (queries, classes) = (episode.queries, episode.query_classes);
            terms[0] += loss::queries(isa, queries, classes, prototypes, T::ONE, query_logits, d_prototypes);
            let rows = &left_items[place.items.start * dim..place.items.end * dim];
            let wrong: Vec<bool> = tokens.sources[place.items.clone()]
                .iter()
                .map(|&item| episode.truth[item] != Some(episode.given[item]))
                .collect();
            let sorted = Sorted { rows, given: &tokens.given[place.items.clone()], wrong: &wrong };
            terms[1] += self.clean_loss(isa, sorted, prototypes, clean, d_prototypes);
            let weight = T::from_f64(self.config.mislabelled_weight);
            terms[2] += loss::binary_cross_entropy(&mut logits[place.items.clone()], &wrong, weight);
        }
        terms
    }

    /// How far the prototypes are from the means of their clean items. A class without any is left out.
    fn clean_loss<T: Real>(
        &self,
        isa: Isa,
        items: Sorted<'_, T>,
        prototypes: &[T],
        clean: &mut Vec<T>,
        d_prototypes: &mut [T],
    ) -> f64 {
        let (dim, weight) = (self.config.dim, self.config.clean_weight);
        if weight == 0.0 {
            return 0.0;
        }
        let weight = T::from_f64(weight / (prototypes.len() / dim).max(1) as f64);
        let clean = fit(clean, dim);
        let rows = prototypes.chunks_exact(dim).zip(d_prototypes.chunks_exact_mut(dim));
        let mut total = 0.0;
        for (class, (prototype, d_prototype)) in rows.enumerate() {
            if !items.clean_mean(isa, class, clean) {
                continue;
            }
            total += match self.config.clean_loss {
                CleanLoss::SquaredDistance => {
                    loss::squared_distance(isa, prototype, clean, weight, d_prototype)
                }
                CleanLoss::NegativeCosine => {
                    loss::negative_cosine(isa, prototype, clean, weight, d_prototype)
                }
            };
        }
        total
    }

    /// Backwards through [`Tranfs::answer`]: sets the gradient of the encoder's result and completes the stacks
    /// for the way back.
    fn unanswer<T: Real>(
        &self,
        isa: Isa,
        parameters: &[T],
        tokens: &Tokens,
        out: &[T],
        gradient: &mut [T],
        ends: &mut Ends<T>,
    ) {
        let (dim, width) = (self.config.dim, self.config.width);
        let Ends { left, right, direction, logits, d_class_states, d_states, .. } = ends;
        let (items, classes) = (tokens.sources.len(), tokens.rows.len());
        fit(d_states, tokens.tokens() * width);
        let weight = &parameters[self.places.mislabelled.clone()];
        left[(items + classes) * dim..].copy_from_slice(weight);
        let up = View::new(&parameters[self.places.up.clone()], dim, width);
        let d_class_states = fit(d_class_states, classes * width);
        let d_prototypes = View::new(&left[items * dim..(items + classes) * dim], classes, dim);
        multiply(isa, d_prototypes, up, Write::Set, ViewMut::new(d_class_states, classes, width));
        let d_direction = &mut right[(items + classes) * width..];
        d_direction.fill(T::ZERO);
        for place in &tokens.places {
            let from = &d_class_states[place.classes.start * width..place.classes.end * width];
            d_states[place.tokens.start * width..][..from.len()].copy_from_slice(from);
            let range = place.item_tokens().start * width..place.tokens.end * width;
            let d_logits = &logits[place.items.clone()];
            unproject(isa, &out[range.clone()], direction, d_logits, &mut d_states[range], d_direction);
        }
        gradient[self.places.mislabelled_bias] += logits.iter().copied().sum();
        let d_weight = &mut gradient[self.places.mislabelled.clone()];
        add_projected(isa, &parameters[self.places.up.clone()], d_direction, d_weight);
    }

    /// Backwards through [`Tranfs::embed`]: the gradients of tables and projections.
    fn unembed<T: Real>(&self, isa: Isa, tokens: &Tokens, gradient: &mut [T], ends: &mut Ends<T>) {
        let (dim, width) = (self.config.dim, self.config.width);
        let Ends { left, right, d_states, .. } = ends;
        let items = tokens.sources.len();
        let d_projected = &mut right[..items * width];
        for place in &tokens.places {
            self.unplace_tokens(tokens, place, d_states, d_projected, gradient);
        }
        let mut add_product = |rows: std::ops::Range<usize>, into: std::ops::Range<usize>| {
            let left = View::new(&left[rows.start * dim..rows.end * dim], rows.len(), dim).transposed();
            let right = View::new(&right[rows.start * width..rows.end * width], rows.len(), width);
            multiply(isa, left, right, Write::Add, ViewMut::new(&mut gradient[into], dim, width));
        };
        let all = left.len() / dim;
        if self.config.tied {
            add_product(0..all, self.places.down.clone());
        } else {
            add_product(0..items, self.places.down.clone());
            add_product(items..all, self.places.up.clone());
        }
    }

    fn unplace_tokens<T: Real>(
        &self,
        tokens: &Tokens,
        place: &Place,
        d_states: &[T],
        d_projected: &mut [T],
        gradient: &mut [T],
    ) {
        let width = self.config.width;
        let rows = &tokens.rows[place.classes.clone()];
        let d_states = &d_states[place.tokens.start * width..place.tokens.end * width];
        let (d_class_states, d_item_states) = d_states.split_at(rows.len() * width);
        let shares = shares::<T>(tokens, place);
        let position = |row: usize| self.places.positions.start + row * width;
        for (item, d_state) in place.items.clone().zip(d_item_states.chunks_exact(width)) {
            let class = tokens.given[item] as usize;
            let d_projected = &mut d_projected[item * width..(item + 1) * width];
            d_projected.copy_from_slice(d_state);
            if self.places.class_tokens.is_none() {
                add(d_projected, &d_class_states[class * width..(class + 1) * width], shares[class]);
            }
            add(&mut gradient[position(rows[class])..][..width], d_state, T::ONE);
        }
        for (&row, d_state) in rows.iter().zip(d_class_states.chunks_exact(width)) {
            add(&mut gradient[position(row)..][..width], d_state, T::ONE);
            if let Some(class_tokens) = &self.places.class_tokens {
                add(&mut gradient[class_tokens.start + row * width..][..width], d_state, T::ONE);
            }
        }
    }
}

/// An episode's items in order of class.
#[derive(Clone, Copy)]
struct Sorted<'a, T> {
    rows: &'a [T],
    given: &'a [u32],
    wrong: &'a [bool],
}

impl<T: Real> Sorted<'_, T> {
    /// The mean of a class's items that are filed rightly; `false` if there is none.
    fn clean_mean(&self, isa: Isa, class: usize, mean: &mut [T]) -> bool {
        let places = self.given.partition_point(|&given| (given as usize) < class)
            ..self.given.partition_point(|&given| given as usize <= class);
        let right = places.clone().filter(|&item| !self.wrong[item]).count();
        mean.fill(T::ZERO);
        for item in places.filter(|&item| !self.wrong[item]) {
            let row = &self.rows[item * mean.len()..(item + 1) * mean.len()];
            add_scaled(isa, row, T::ONE / T::from_f64(right as f64), mean);
        }
        right > 0
    }
}

/// One over the number of items, by class.
fn shares<T: Real>(tokens: &Tokens, place: &Place) -> Vec<T> {
    let mut counts = vec![0u32; place.classes.len()];
    for &class in &tokens.given[place.items.clone()] {
        counts[class as usize] += 1;
    }
    counts.into_iter().map(|count| T::from_f64(1.0 / f64::from(count.max(1)))).collect()
}

/// Calls in a row of a bank, which may lie anywhere.
fn prefetch_row<T>(row: &[T]) {
    for line in row.chunks(64 / size_of::<T>()) {
        prefetch_line(line.as_ptr().cast());
    }
}

/// `to += factor from`, for rows as short as a token.
fn add<T: Real>(to: &mut [T], from: &[T], factor: T) {
    for (to, &from) in to.iter_mut().zip(from) {
        *to += factor * from;
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

kernel! {
    /// Each row times a direction, plus a bias.
    fn project<'a, T>(rows: &'a [T], direction: &'a [T], bias: T, out: &'a mut [T]) {
        for (row, out) in rows.chunks_exact(direction.len()).zip(out) {
            *out = dot(row, direction) + bias;
        }
    }
}

kernel! {
    /// Backwards: sets the rows' gradients, adds to the direction's.
    fn unproject<'a, T>(
        rows: &'a [T],
        direction: &'a [T],
        d_out: &'a [T],
        d_rows: &'a mut [T],
        d_direction: &'a mut [T],
    ) {
        let width = direction.len();
        let pairs = rows.chunks_exact(width).zip(d_rows.chunks_exact_mut(width));
        for ((row, d_row), &d_out) in pairs.zip(d_out) {
            for ((d_row, &direction), (d_direction, &row)) in
                d_row.iter_mut().zip(direction).zip(d_direction.iter_mut().zip(row))
            {
                *d_row = d_out * direction;
                *d_direction += d_out * row;
            }
        }
    }
}

kernel! {
    /// `out += matrix direction`
    fn add_projected<'a, T>(matrix: &'a [T], direction: &'a [T], out: &'a mut [T]) {
        for (row, out) in matrix.chunks_exact(direction.len()).zip(out) {
            *out += dot(row, direction);
        }
    }
}
