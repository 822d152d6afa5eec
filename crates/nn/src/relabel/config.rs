//! What a head is built from.

/// The shape of a head, and how its loss is weighed.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// Numbers of a state.
    pub width: usize,
    /// Layers.
    pub layers: usize,
    /// Heads of attention; they divide the width.
    pub heads: usize,
    /// Hidden units of a layer's second half.
    pub hidden: usize,
    /// Hidden units of the network over pairs of items.
    pub edge_hidden: usize,
    /// Whether items and queries are taken minus the mean of the support items and at unit length.
    pub centred: bool,
    /// Whether the head also sees the items themselves: for one backbone only.
    pub item_view: Option<ItemView>,
    /// The least an item counts in the prototype of the class it is filed under, before scaling.
    pub floor: f64,
    /// What the items' cross-entropy counts in the loss.
    pub items_weight: f64,
    /// What the queries' cross-entropy counts in the loss.
    pub queries_weight: f64,
}

/// How a head for one backbone sees an item.
#[derive(Debug, Clone, PartialEq)]
pub struct ItemView {
    /// Numbers of an embedding.
    pub dim: usize,
    /// Numbers it is projected to.
    pub width: usize,
    /// The share of an embedding's numbers that training drops.
    pub dropout: f64,
    /// What the view speaks to.
    pub reach: Reach,
}

/// What a view of items speaks to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Everything: it is part of every state from the start.
    States,
    /// Only whether an item is of none of the classes.
    None,
}

impl ItemView {
    /// A view of embeddings of this dimension.
    pub fn new(dim: usize) -> Self {
        ItemView { dim, width: 64, dropout: 0.2, reach: Reach::States }
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            width: 64,
            layers: 4,
            heads: 4,
            hidden: 128,
            edge_hidden: 64,
            centred: false,
            item_view: None,
            floor: 0.01,
            items_weight: 1.0,
            queries_weight: 1.0,
        }
    }
}
