//! Several episodes as one batch: the rows of each episode among those of all ([`EpisodeBatch`], [`EpisodeSpan`]).
//!
//! An episode of M items and C classes has M C states (all classes of the first item, then of the second, ..), M²
//! ordered pairs of items (row by row) and C class rows. The networks see the states of all episodes as rows of one
//! matrix. Operations that mix rows (attention, means over classes) run episode by episode, on the ranges of its
//! [`EpisodeSpan`].

use std::ops::Range;

/// The shape of one episode and its ranges of rows in the batch.
#[derive(Debug, Clone)]
pub(super) struct EpisodeSpan {
    /// C
    pub(super) classes: usize,
    /// M
    pub(super) items: usize,
    /// The given label of each item.
    pub(super) given: Vec<u32>,
    /// The number of items with each given label.
    pub(super) counts: Vec<usize>,
    /// Where the episode begins among the items, states, pairs and class rows of the batch.
    first_item: usize,
    first_state: usize,
    first_pair: usize,
    first_class: usize,
}

impl EpisodeSpan {
    /// The M items.
    pub(super) fn items(&self) -> Range<usize> {
        self.first_item..self.first_item + self.items
    }

    /// The M C states.
    pub(super) fn states(&self) -> Range<usize> {
        self.first_state..self.first_state + self.items * self.classes
    }

    /// The M² pairs of items.
    pub(super) fn pairs(&self) -> Range<usize> {
        self.first_pair..self.first_pair + self.items * self.items
    }

    /// The C classes.
    pub(super) fn class_rows(&self) -> Range<usize> {
        self.first_class..self.first_class + self.classes
    }

    /// Whether an item is the only one with its given label.
    pub(super) fn is_alone(&self, item: usize) -> bool {
        self.counts[self.given[item] as usize] == 1
    }
}

/// The range of elements that some rows of a matrix of `width` columns occupy.
pub(super) fn elements(rows: Range<usize>, width: usize) -> Range<usize> {
    rows.start * width..rows.end * width
}

/// The episodes of one batch, which share the passes of the network. A call with many episodes has several batches, see
/// [`split_into_batches`].
#[derive(Debug, Clone, Default)]
pub(super) struct EpisodeBatch {
    pub(super) spans: Vec<EpisodeSpan>,
    /// Items of all episodes.
    pub(super) items: usize,
    /// States of all episodes.
    pub(super) states: usize,
    /// Pairs of items of all episodes.
    pub(super) pairs: usize,
    /// Classes of all episodes.
    pub(super) class_rows: usize,
}

impl EpisodeBatch {
    /// Appends an episode.
    ///
    /// # Panics
    /// If a given label is not below `classes`.
    pub(super) fn add(&mut self, classes: usize, given: &[u32]) {
        let mut counts = vec![0; classes];
        given.iter().for_each(|&class| counts[class as usize] += 1);
        let span = EpisodeSpan {
            classes,
            items: given.len(),
            given: given.to_vec(),
            counts,
            first_item: self.items,
            first_state: self.states,
            first_pair: self.pairs,
            first_class: self.class_rows,
        };
        self.items = span.items().end;
        self.states = span.states().end;
        self.pairs = span.pairs().end;
        self.class_rows = span.class_rows().end;
        self.spans.push(span);
    }
}

/// Maximum number of states per batch of several episodes: enough for large matrix products, few enough that the
/// activations kept for the backward pass stay in the cache.
const STATES_PER_BATCH: usize = 1024;

/// Splits episodes, given by their numbers of states, into batches of neighbours: ranges of episodes. An episode with
/// more states than [`STATES_PER_BATCH`] is a batch of its own.
pub(super) fn split_into_batches(states: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let mut batches: Vec<Range<usize>> = Vec::new();
    // The number of states of the last batch.
    let mut batch_states = 0;
    for (episode, states) in states.enumerate() {
        match batches.last_mut() {
            Some(batch) if batch_states + states <= STATES_PER_BATCH => batch.end = episode + 1,
            _ => {
                batches.push(episode..episode + 1);
                batch_states = 0;
            }
        }
        batch_states += states;
    }
    batches
}

/// What every layer of a forward or backward pass reads.
#[derive(Clone, Copy)]
pub(super) struct PassContext<'a, T> {
    /// All parameters of the model.
    pub(super) parameters: &'a [T],
    pub(super) batch: &'a EpisodeBatch,
}

#[cfg(test)]
mod tests {
    use super::split_into_batches;

    #[test]
    fn small_episodes_share_a_batch_and_large_ones_have_their_own() {
        let states = [500, 500, 100, 5000, 24, 1000, 25];
        assert_eq!(split_into_batches(states.into_iter()), [0..2, 2..3, 3..4, 4..6, 6..7]);
        assert!(split_into_batches(std::iter::empty()).is_empty());
    }
}
