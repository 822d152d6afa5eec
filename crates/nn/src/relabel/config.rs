//! The configuration of a Relabel head ([`Config`]). [`super`] explains states, layers and prototypes.

/// The shape of the network and the weights of its loss.
#[derive(Debug, Clone, PartialEq)]
pub struct Config {
    /// W: length of a state, the vector that the network keeps for every item and class.
    pub width: usize,
    /// Number of layers, each of attention between items and mixing within items and classes.
    pub layers: usize,
    /// H: attention heads; divides the width.
    pub heads: usize,
    /// Hidden units of a mixing layer.
    pub hidden: usize,
    /// Hidden units of the edge network, which turns the relations of two items into attention logits.
    pub edge_hidden: usize,
    /// Whether items and queries are centred at the mean of the support items and scaled to unit length.
    pub centred: bool,
    /// D, the length of an embedding, if the head starts by subtracting the mean of the training features from items
    /// and queries and scaling them to unit length. Such a head works for one backbone only. `None`: it does not.
    pub training_centre: Option<usize>,
    /// How the head sees the items themselves, not only their relations. Such a head works for one backbone only.
    /// `None`: it sees relations only.
    pub item_view: Option<ItemView>,
    /// The smallest weight of an item in the prototype of its given class, before normalisation.
    pub floor: f64,
    /// The weight of the items' cross-entropy in the loss.
    pub items_weight: f64,
    /// The weight of the queries' cross-entropy in the loss.
    pub queries_weight: f64,
}

impl Config {
    /// D, if the head works for embeddings of this length only.
    pub fn dim(&self) -> Option<usize> {
        self.training_centre.or(self.item_view.as_ref().map(|view| view.dim))
    }
}

/// How a head for one backbone sees the items themselves.
#[derive(Debug, Clone, PartialEq)]
pub struct ItemView {
    /// D: length of an embedding.
    pub dim: usize,
    /// V: length of its projection.
    pub width: usize,
    /// The dropout rate of an embedding's numbers in training.
    pub dropout: f64,
    /// The part of the network that receives the projection.
    pub target: ViewTarget,
}

/// The part of the network that receives the view of an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ViewTarget {
    /// All states, from the input layer on.
    States,
    /// Only the logit of "the item belongs to none of the classes", for heads whose states would otherwise memorise the
    /// training classes.
    Outlier,
}

impl ItemView {
    /// The default view of embeddings of `dim` numbers.
    pub fn new(dim: usize) -> Self {
        ItemView { dim, width: 64, dropout: 0.2, target: ViewTarget::States }
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
            training_centre: None,
            item_view: None,
            floor: 0.01,
            items_weight: 1.0,
            queries_weight: 1.0,
        }
    }
}
