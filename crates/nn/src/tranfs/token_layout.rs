//! The order of the tokens of a call ([`TokenLayout`]): several support sets, one segment of tokens each.
//!
//! Three lists are kept in the same order of support sets: all tokens (in each segment the class tokens come first,
//! then the item tokens), the class tokens alone, and the item tokens alone. Items are sorted by given label. Matrices
//! of tokens, class tokens or items have one row per entry of one of these lists.

use std::ops::Range;

/// One support set as TraNFS reads it. Classes may have any sizes, and items come in any order.
#[derive(Debug, Clone, Copy)]
pub struct TranfsInput<'a, T = f32> {
    /// Number of classes.
    pub classes: usize,
    /// The embeddings of the items.
    pub items: &'a [&'a [T]],
    /// The given label of each item.
    pub given: &'a [u32],
    /// For each class the row of the model's tables (positions and class tokens) that it uses, all different. `None`:
    /// class c uses row c. Averaging over several orders removes most of the dependence on the order of the classes.
    pub order: Option<&'a [u32]>,
}

/// The ranges of one support set in the three lists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SupportSpan {
    /// In the list of all tokens.
    pub tokens: Range<usize>,
    /// In the list of class tokens.
    pub classes: Range<usize>,
    /// In the list of item tokens.
    pub items: Range<usize>,
}

impl SupportSpan {
    /// The item tokens in the list of all tokens.
    pub fn item_tokens(&self) -> Range<usize> {
        self.tokens.start + self.classes.len()..self.tokens.end
    }
}

/// The tokens of all support sets of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct TokenLayout {
    pub spans: Vec<SupportSpan>,
    /// The tokens of each support set, as attention takes them.
    pub segments: Vec<Range<usize>>,
    /// For each item token: the index of the item in its support set.
    pub sources: Vec<usize>,
    /// For each item token: the given label.
    pub given: Vec<u32>,
    /// For each class token: the row of the tables that its class uses.
    pub table_rows: Vec<usize>,
}

impl TokenLayout {
    /// Lays out the tokens of support sets; `table_len` is the number of rows of the model's tables.
    ///
    /// # Panics
    /// If a support set has more classes than the tables have rows, a label is not below the number of classes, or an
    /// order does not consist of different rows.
    pub fn fill<'a, T: 'a>(&mut self, inputs: impl Iterator<Item = TranfsInput<'a, T>>, table_len: usize) {
        self.clear();
        for input in inputs {
            self.push(&input, table_len);
        }
    }

    /// Empties the lists but keeps their memory.
    fn clear(&mut self) {
        let TokenLayout { spans, segments, sources, given, table_rows } = self;
        spans.clear();
        segments.clear();
        sources.clear();
        given.clear();
        table_rows.clear();
    }

    /// Appends the tokens of one support set.
    fn push<T>(&mut self, input: &TranfsInput<'_, T>, table_len: usize) {
        let classes = input.classes;
        assert!(classes <= table_len, "{classes} classes; the model has at most {table_len}");
        assert_eq!(input.items.len(), input.given.len(), "one label per item");
        assert!(
            input.given.iter().all(|&class| (class as usize) < classes),
            "labels must be below {classes}, the number of classes"
        );
        // Where the support set begins in the lists of all tokens, class tokens and item tokens.
        let (first_token, first_class, first_item) =
            (self.tokens(), self.table_rows.len(), self.sources.len());
        match input.order {
            None => self.table_rows.extend(0..classes),
            Some(order) => self.table_rows.extend(checked_order(order, classes, table_len)),
        }
        self.sources.extend(0..input.items.len());
        self.sources[first_item..].sort_by_key(|&item| input.given[item]);
        self.given.extend(self.sources[first_item..].iter().map(|&item| input.given[item]));
        let tokens = first_token..first_token + classes + input.items.len();
        let (classes, items) = (first_class..self.table_rows.len(), first_item..self.sources.len());
        self.segments.push(tokens.clone());
        self.spans.push(SupportSpan { tokens, classes, items });
    }

    /// The number of tokens.
    pub fn tokens(&self) -> usize {
        self.segments.last().map_or(0, |segment| segment.end)
    }

    /// The number of item tokens.
    pub fn items(&self) -> usize {
        self.sources.len()
    }

    /// The number of class tokens.
    pub fn classes(&self) -> usize {
        self.table_rows.len()
    }
}

/// The rows in `order`.
///
/// # Panics
/// If there is not one row per class, or a row is used twice or not below `table_len`.
fn checked_order(order: &[u32], classes: usize, table_len: usize) -> impl Iterator<Item = usize> {
    assert_eq!(order.len(), classes, "one row of the tables per class");
    let mut seen = vec![false; table_len];
    for &row in order {
        assert!(!std::mem::replace(&mut seen[row as usize], true), "row {row} is used for two classes");
    }
    order.iter().map(|&row| row as usize)
}
