//! Several episodes as one: where each one's items, states, pairs and classes lie among all.
//!
//! An episode of M items and C classes has M C states (item by item, class by class within an item), M² pairs and C
//! class rows. The networks see the states of all episodes as rows of one matrix; whatever mixes rows (attention,
//! means over classes) goes episode by episode, by the places kept here.

use std::ops::Range;

use crate::isa::Isa;

/// The shape of one episode and its place in the batch.
#[derive(Debug, Clone)]
pub(super) struct Place {
    pub(super) classes: usize,
    pub(super) items: usize,
    pub(super) given: Vec<u32>,
    /// Items filed under each class.
    pub(super) counts: Vec<usize>,
    first_item: usize,
    first_state: usize,
    first_pair: usize,
    first_class: usize,
}

impl Place {
    pub(super) fn items(&self) -> Range<usize> {
        self.first_item..self.first_item + self.items
    }

    pub(super) fn states(&self) -> Range<usize> {
        self.first_state..self.first_state + self.items * self.classes
    }

    pub(super) fn pairs(&self) -> Range<usize> {
        self.first_pair..self.first_pair + self.items * self.items
    }

    pub(super) fn class_rows(&self) -> Range<usize> {
        self.first_class..self.first_class + self.classes
    }
}

/// A range of rows as a range of numbers.
pub(super) fn numbers(rows: Range<usize>, width: usize) -> Range<usize> {
    rows.start * width..rows.end * width
}

/// All episodes of a call.
#[derive(Debug, Clone, Default)]
pub(super) struct Batch {
    pub(super) places: Vec<Place>,
    pub(super) items: usize,
    pub(super) states: usize,
    pub(super) pairs: usize,
    pub(super) class_rows: usize,
}

impl Batch {
    /// Puts an episode behind those there are.
    ///
    /// # Panics
    /// If an item is filed under no class.
    pub(super) fn add(&mut self, classes: usize, given: &[u32]) {
        let mut counts = vec![0; classes];
        given.iter().for_each(|&class| counts[class as usize] += 1);
        let place = Place {
            classes,
            items: given.len(),
            given: given.to_vec(),
            counts,
            first_item: self.items,
            first_state: self.states,
            first_pair: self.pairs,
            first_class: self.class_rows,
        };
        self.items = place.items().end;
        self.states = place.states().end;
        self.pairs = place.pairs().end;
        self.class_rows = place.class_rows().end;
        self.places.push(place);
    }
}

/// States that pass through together: enough for large products, few enough that what is kept for the way back stays
/// near the processor.
const TOGETHER: usize = 1024;

/// Neighbouring episodes that pass through together, from how many states each has.
pub(super) fn groups(states: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let mut groups: Vec<Range<usize>> = Vec::new();
    let mut held = 0;
    for (episode, states) in states.enumerate() {
        match groups.last_mut() {
            Some(group) if held + states <= TOGETHER => group.end = episode + 1,
            _ => {
                groups.push(episode..episode + 1);
                held = 0;
            }
        }
        held += states;
    }
    groups
}

/// What all pieces of the network need.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a, T> {
    pub(super) isa: Isa,
    pub(super) parameters: &'a [T],
    pub(super) batch: &'a Batch,
}

#[cfg(test)]
mod tests {
    use super::groups;

    #[test]
    fn small_episodes_pass_together_and_large_ones_alone() {
        let states = [500, 500, 100, 5000, 24, 1000, 25];
        assert_eq!(groups(states.into_iter()), [0..2, 2..3, 3..4, 4..6, 6..7]);
        assert!(groups(std::iter::empty()).is_empty());
    }
}
