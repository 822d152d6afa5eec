//! Which token stands for what: the support sets of a call laid out one behind the other.
//!
//! Three lists run in the same order: tokens (class tokens first in each segment), class tokens alone, and items
//! alone, sorted by class.

use std::ops::Range;

use super::Support;

/// One support set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Place {
    /// In the list of tokens.
    pub tokens: Range<usize>,
    /// In the list of class tokens.
    pub classes: Range<usize>,
    /// In the list of items.
    pub items: Range<usize>,
}

impl Place {
    /// Where the items' tokens are in the list of tokens.
    pub fn item_tokens(&self) -> Range<usize> {
        self.tokens.start + self.classes.len()..self.tokens.end
    }
}

/// All support sets of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tokens {
    pub places: Vec<Place>,
    /// The segments, as attention wants them.
    pub segments: Vec<Range<usize>>,
    /// For every item in order: which of its support set's it is.
    pub sources: Vec<usize>,
    /// For every item in order: the class it is filed under.
    pub given: Vec<u32>,
    /// For every class token in order: the row of the tables that its class uses.
    pub rows: Vec<usize>,
}

impl Tokens {
    /// # Panics
    /// If a support set has more classes than the tables have rows, a label is none of its classes, or an order
    /// is not made of different rows.
    pub fn fill<'a, T: 'a>(&mut self, supports: impl Iterator<Item = Support<'a, T>>, table: usize) {
        self.clear();
        for support in supports {
            self.push(&support, table);
        }
    }

    fn clear(&mut self) {
        let Tokens { places, segments, sources, given, rows } = self;
        places.clear();
        segments.clear();
        sources.clear();
        given.clear();
        rows.clear();
    }

    fn push<T>(&mut self, support: &Support<'_, T>, table: usize) {
        let classes = support.classes;
        assert!(classes <= table, "{classes} classes, but the model knows {table} at most");
        assert_eq!(support.items.len(), support.given.len(), "a label for each item");
        assert!(support.given.iter().all(|&class| (class as usize) < classes), "a label without its class");
        let first = (self.tokens(), self.rows.len(), self.sources.len());
        match support.order {
            None => self.rows.extend(0..classes),
            Some(order) => self.rows.extend(checked(order, classes, table)),
        }
        self.sources.extend(0..support.items.len());
        self.sources[first.2..].sort_by_key(|&item| support.given[item]);
        self.given.extend(self.sources[first.2..].iter().map(|&item| support.given[item]));
        let tokens = first.0..first.0 + classes + support.items.len();
        let (classes, items) = (first.1..self.rows.len(), first.2..self.sources.len());
        self.segments.push(tokens.clone());
        self.places.push(Place { tokens, classes, items });
    }

    /// Tokens in all.
    pub fn tokens(&self) -> usize {
        self.segments.last().map_or(0, |segment| segment.end)
    }
}

fn checked(order: &[u32], classes: usize, table: usize) -> impl Iterator<Item = usize> {
    assert_eq!(order.len(), classes, "a row of the tables for each class");
    let mut seen = vec![false; table];
    for &row in order {
        assert!(!std::mem::replace(&mut seen[row as usize], true), "row {row} for two classes");
    }
    order.iter().map(|&row| row as usize)
}
