//! The part of the memory plan of Relabel that does not depend on the sizes of steps ([`NetworkPlan`]): the network,
//! the positions of its parameters, and their packed copies.
//!
//! A packed weight is a copy in the order in which matrix instructions read it. Most weights are packed twice: as they
//! are for the forward pass, and transposed for the backward pass.

use std::collections::HashMap;
use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use trueshot_nn::head::Head;
use trueshot_nn::parameters::{ParameterLayout, Tensor};
use trueshot_nn::relabel::{Config, Relabel, ViewTarget};

use super::{DeviceRelabel, PAIR_FEATURES, PackedLayer, STATE_FEATURES, SharedLayout};
use crate::driver::check_shared;
use crate::error::Result;
use crate::relabel::input::StepSizes;

/// The numbers of states (vectors of one item and one class) that a tile, the work of one thread block, may have. The
/// first that fits into shared memory is used. With 40, an episode of 5 classes with 5 items each has 4 tiles, so 32
/// episodes have 128 tiles: one for nearly each of the 132 multiprocessors of an H200.
const TILE_STATES: [usize; 3] = [40, 32, 16];
/// A position of a parameter that is not packed.
const NOT_PACKED: u32 = u32::MAX;

/// The positions of a parameter in the packed weights, or [`NOT_PACKED`] (`Positions` in
/// `kernels/relabel_optimiser.cu`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(in crate::relabel) struct Positions {
    /// In the copy for the forward pass.
    forward: u32,
    /// In the transposed copy for the backward pass.
    backward: u32,
}

/// The parameters of a network by name.
pub(super) struct Parameters {
    tensors: HashMap<String, Tensor>,
    /// The number of parameters.
    pub len: usize,
}

impl Parameters {
    fn new(layout: &ParameterLayout) -> Self {
        let tensors = layout.tensors().iter().map(|tensor| (tensor.name.clone(), tensor.clone()));
        Parameters { tensors: tensors.collect(), len: layout.len() }
    }

    /// The tensor of this name.
    ///
    /// # Panics
    /// If the network has no tensor of this name. [`Parameters::range`] and [`Parameters::start`] panic as well.
    pub fn tensor(&self, name: &str) -> &Tensor {
        self.tensors.get(name).unwrap_or_else(|| panic!("the network has a tensor '{name}'"))
    }

    /// The positions of a tensor among the parameters.
    pub fn range(&self, name: &str) -> Range<usize> {
        self.tensor(name).range.clone()
    }

    /// The position of the first number of a tensor.
    pub fn start(&self, name: &str) -> i32 {
        self.tensor(name).range.start as i32
    }

    /// The start of a tensor that not all networks have; 0 if this network does not have it: then no kernel uses the
    /// position.
    pub fn optional(&self, name: &str) -> i32 {
        self.tensors.get(name).map_or(0, |tensor| tensor.range.start as i32)
    }
}

/// The position of element (row k, column n) of a weight with `inputs` rows among its packed numbers (`multiply` in
/// `kernels/relabel.cuh`). A group of 16 rows and 8 columns has 128 adjacent numbers: four for each of the 32 lanes of
/// a warp, which are what the lane needs for two matrix instructions `mma_tf32` of 8 rows each. Rows 2 q and 2 q + 1
/// take the places q and q + 4 of an instruction; `multiply` reads the columns of the other operand in the same order.
fn packed_position(inputs: usize, k: usize, n: usize) -> usize {
    let lane = n % 8 * 4 + k % 8 / 2;
    (n / 8 * inputs.div_ceil(16) + k / 16) * 128 + lane * 4 + k % 16 / 8 * 2 + k % 2
}

/// The positions of the packed copies of the weights, which are assigned one after the other.
pub(in crate::relabel) struct Packing {
    /// One entry per parameter.
    pub positions: Vec<Positions>,
    /// The length of all packed weights in floats.
    pub len: usize,
}

impl Packing {
    /// Nothing packed yet, of this number of parameters.
    fn new(parameters: usize) -> Self {
        let none = Positions { forward: NOT_PACKED, backward: NOT_PACKED };
        Packing { positions: vec![none; parameters], len: 0 }
    }

    /// Returns the start of new packed numbers for a weight `[inputs, outputs]`, whose sizes are rounded up to whole
    /// groups.
    fn reserve(&mut self, inputs: usize, outputs: usize) -> usize {
        let start = self.len;
        self.len += inputs.div_ceil(16) * outputs.div_ceil(8) * 128;
        start
    }

    /// Packs a weight of `outputs` columns, whose parameters are `weight`, and returns the offset of its copy.
    fn forward(&mut self, weight: Range<usize>, outputs: usize) -> i32 {
        let inputs = weight.len() / outputs;
        let start = self.reserve(inputs, outputs);
        for (element, parameter) in weight.enumerate() {
            let position = start + packed_position(inputs, element / outputs, element % outputs);
            self.positions[parameter].forward = position as u32;
        }
        start as i32
    }

    /// Packs the transposed weight (`outputs` columns before transposing) and returns the offset of its copy.
    fn backward(&mut self, weight: Range<usize>, outputs: usize) -> i32 {
        let inputs = weight.len() / outputs;
        let start = self.reserve(outputs, inputs);
        for (element, parameter) in weight.enumerate() {
            let position = start + packed_position(outputs, element % outputs, element / outputs);
            self.positions[parameter].backward = position as u32;
        }
        start as i32
    }

    /// Packs the weights of a layer, and returns the offsets of the copies for the forward and the backward pass.
    fn layer(
        &mut self,
        parameters: &Parameters,
        layer: usize,
        config: &Config,
    ) -> (PackedLayer, PackedLayer) {
        let (width, hidden) = (config.width, config.hidden);
        let range = |name: &str| parameters.range(&format!("layer{layer}.{name}.weight"));
        // Packs a weight for both passes, and returns the two offsets.
        let mut pack = |name: &str, outputs: usize| {
            (self.forward(range(name), outputs), self.backward(range(name), outputs))
        };
        let (query, key) = (pack("attention.query", width), pack("attention.key", width));
        let (value, out) = (pack("attention.value", width), pack("attention.out", width));
        let (state, item) = (pack("mixing.state", hidden), pack("mixing.item", hidden));
        let (of_class, mixed) = (pack("mixing.class", hidden), pack("mixing.out", width));
        let offsets = |pick: fn((i32, i32)) -> i32| PackedLayer {
            query: pick(query),
            key: pick(key),
            value: pick(value),
            out: pick(out),
            state: pick(state),
            item: pick(item),
            of_class: pick(of_class),
            mixed: pick(mixed),
        };
        (offsets(|(forward, _)| forward), offsets(|(_, backward)| backward))
    }
}

/// The network, the positions of its parameters, and their packed copies.
pub(in crate::relabel) struct NetworkPlan {
    pub config: Config,
    pub(super) parameters: Parameters,
    pub packing: Packing,
    /// The argument of the kernels, in which sizes of steps and addresses of buffers are still 0.
    pub(super) fields: DeviceRelabel,
}

/// What the item view (a projection of the features themselves) feeds, as the kernels number it: 0 nothing (the model
/// has no item view), 1 the states, 2 the logit of "none of the classes".
fn view_target(config: &Config) -> i32 {
    match config.item_view.as_ref().map(|view| view.target) {
        None => 0,
        Some(ViewTarget::States) => 1,
        Some(ViewTarget::Outlier) => 2,
    }
}

/// Floats from one row of `width` numbers to the next in shared memory (`pitch_of` in `kernels/relabel.cuh`): rounded
/// up to whole matrix instructions, and padded against bank conflicts.
fn pitch_of(width: usize) -> usize {
    width.next_multiple_of(16) + 8
}

impl NetworkPlan {
    /// The plan of a network.
    pub fn new(network: &Relabel) -> Self {
        let config = network.config().clone();
        let parameters = Parameters::new(network.layout());
        let mut packing = Packing::new(parameters.len);
        let mut fields = Self::sizes(&config);
        Self::add_offsets(&mut fields, &parameters, &config);
        fields.packed_features = packing.forward(parameters.range("start.features.weight"), config.width);
        fields.packed_start = packing.forward(parameters.range("start.out.weight"), config.width);
        fields.packed_start_back = packing.backward(parameters.range("start.out.weight"), config.width);
        if let Some(view) = &config.item_view {
            // The weight that reads the item view: of the input layer of the states, or of the hidden layer of "none".
            let reader = match view.target {
                ViewTarget::States => "start.item.weight",
                ViewTarget::Outlier => "item.hidden.weight",
            };
            let reader = parameters.range(reader);
            fields.packed_view = packing.forward(parameters.range("item.projection.weight"), view.width);
            fields.packed_item = packing.forward(reader.clone(), config.width);
            fields.packed_item_back = packing.backward(reader, config.width);
        }
        for layer in 0..config.layers {
            let start = packing.len;
            let (forward, backward) = packing.layer(&parameters, layer, &config);
            // All layers are packed alike, so the offsets of layer 0 and the length of a layer suffice.
            if layer == 0 {
                (fields.forward, fields.backward) = (forward, backward);
            }
            fields.packed_layer_len = (packing.len - start) as i32;
        }
        NetworkPlan { config, parameters, packing, fields }
    }

    /// The fields that follow from the configuration.
    fn sizes(config: &Config) -> DeviceRelabel {
        let view = config.item_view.as_ref();
        let (view_width, view_dim) = view.map_or((0, 0), |view| (view.width, view.dim));
        let dropout = view.map_or(0.0, |view| view.dropout);
        let head_width = config.width / config.heads;
        // Whether a size is not a multiple of what products take at once: 16 inputs, in attention 8. Kernels then clear
        // the shared memory first, because the columns that fill up the last group must be finite.
        let is_padded = [config.width, config.hidden, view_width, view_dim].iter().any(|size| size % 16 != 0)
            || !head_width.is_multiple_of(8);
        DeviceRelabel {
            width: config.width as i32,
            layers: config.layers as i32,
            heads: config.heads as i32,
            hidden: config.hidden as i32,
            edge_hidden: config.edge_hidden as i32,
            view_width: view_width as i32,
            view_dim: view_dim as i32,
            // Of rows in global memory, so without padding against bank conflicts.
            view_pitch: view_dim.next_multiple_of(16) as i32,
            view_target: view_target(config),
            centred: i32::from(config.centred),
            padded: i32::from(is_padded),
            floor: config.floor as f32,
            items_weight: config.items_weight as f32,
            queries_weight: config.queries_weight as f32,
            attention_scale: (head_width as f64).sqrt().recip() as f32,
            dropout_scale: (1.0 / (1.0 - dropout)) as f32,
            // Random numbers of 31 bits below it drop.
            dropout_threshold: (dropout * (1u64 << 31) as f64) as u32,
            ..DeviceRelabel::zeroed()
        }
    }

    /// Offsets of the parameters, and of the partial gradients of a tile: what its items add to the gradient of the
    /// edge network, then to those of scale and shift of every norm.
    fn add_offsets(fields: &mut DeviceRelabel, parameters: &Parameters, config: &Config) {
        let start = parameters.start("layer0.attention.norm.scale");
        let in_layer = |name: &str| parameters.start(&format!("layer0.{name}")) - start;
        fields.edges = parameters.start("edges.hidden.weight");
        fields.view_mean = parameters.optional("item.mean");
        fields.view_norm = parameters.optional("item.norm.scale");
        fields.view_bias = parameters.optional("item.hidden.bias");
        fields.view_out = parameters.optional("item.out.weight");
        fields.features_bias = parameters.start("start.features.bias");
        fields.start_bias = parameters.start("start.out.bias");
        fields.layer = start;
        // The parameters of a layer, from the distance of the first and the last layer; 0 for a single layer, where no
        // other layer is addressed.
        let last = format!("layer{}.attention.norm.scale", config.layers - 1);
        let layers_between = (config.layers - 1).max(1) as i32;
        fields.layer_len = (parameters.start(&last) - start) / layers_between;
        fields.attention_norm = in_layer("attention.norm.scale");
        fields.query_bias = in_layer("attention.query.bias");
        fields.mixing_norm = in_layer("mixing.norm.scale");
        fields.class_bias = in_layer("mixing.class.bias");
        fields.out_norm = parameters.start("out.norm.scale");
        fields.out = parameters.start("out.weight");
        fields.prior = parameters.start("prior");
        fields.log_scale = parameters.start("log_scale");
        let width = config.width as i32;
        fields.partial_layer = Self::edges_len(config) as i32;
        // Scale and shift of two norms.
        fields.partial_layer_len = 4 * width;
        fields.partial_out_norm = fields.partial_layer + config.layers as i32 * fields.partial_layer_len;
        fields.partial_view_norm = fields.partial_out_norm + 2 * width;
        fields.partial_len = fields.partial_view_norm + 2 * fields.view_width;
    }

    /// The number of parameters of the edge network, which computes the attention logits of all layers and heads from
    /// the features of a pair: weights and bias of the hidden units, then the weights of the outputs.
    pub fn edges_len(config: &Config) -> usize {
        config.edge_hidden * (PAIR_FEATURES + 1 + config.layers * config.heads)
    }

    /// Bytes of shared memory of `relabel_edges_backward`: the weights, and one set of sums for each of four groups of
    /// warps.
    pub fn edges_shared_len(&self) -> usize {
        4 * 5 * Self::edges_len(&self.config)
    }

    /// The parts of the shared memory of a tile, for steps of up to `sizes` (`SharedLayout` in `kernels/relabel.cuh`
    /// has the shapes). Numbers of rows are rounded up to 16, those of a matrix instruction.
    pub(super) fn shared_layout(&self, sizes: &StepSizes) -> SharedLayout {
        let Config { width, hidden, heads, .. } = self.config;
        let view_width = self.fields.view_width as usize;
        let [rows, item_rows, class_rows] = [sizes.tile_states, sizes.tile_items, sizes.largest_classes]
            .map(|count| count.next_multiple_of(16));
        let mut end = 0;
        // Appends a part of this length and returns its start.
        let mut add = |len: usize| {
            let start = end;
            end += len;
            start as i32
        };
        let [states, normed, values] = [(); 3].map(|()| add(rows * pitch_of(width)));
        let of_hidden = add(rows * pitch_of(hidden.max(width)));
        let (wide, narrow) = ((2 * width).max(hidden).max(view_width), width.max(view_width));
        let items = [wide, wide, narrow].map(|width| add(item_rows * pitch_of(width)));
        let (classes, of_classes) = (add(class_rows * pitch_of(width)), add(class_rows * pitch_of(hidden)));
        // Attention weights and their gradients, or the input features of the states, which are needed at other times.
        let attention = 2 * heads * sizes.tile_pairs;
        let features = rows * pitch_of(STATE_FEATURES);
        let extra = add(attention.max(features));
        // The edge network runs before the rest, in the same memory.
        let len = end.max(Self::edges_len(&self.config));
        let (hidden, len) = (of_hidden, len as i32);
        SharedLayout { states, normed, values, hidden, items, classes, of_classes, extra, len }
    }

    /// The number of states of a tile: the first of [`TILE_STATES`] for which `limit` bytes of shared memory suffice.
    ///
    /// # Errors
    /// [`TooLarge`](crate::Error::TooLarge) if they do not suffice for the last.
    pub fn tile_states(&self, limit: usize) -> Result<usize> {
        // The shared memory for episodes of two classes and up to 24 items. A tile has all states of its items, so with
        // two classes it has `states / 2` items. Each has a row of attention weights per head, for which 32 floats are
        // reserved: `weight_pitch_of(24)` in `kernels/relabel.cuh` is 28. A step whose episodes need more is refused
        // when its memory is allocated.
        let bytes = |states: usize| {
            let (tile_states, tile_items, largest_classes, tile_pairs) = (states, states / 2, 2, 16 * states);
            let sizes =
                StepSizes { tile_states, tile_items, largest_classes, tile_pairs, ..StepSizes::default() };
            4 * self.shared_layout(&sizes).len as usize
        };
        let [.., smallest] = TILE_STATES;
        let states = TILE_STATES.into_iter().find(|&states| bytes(states) <= limit).unwrap_or(smallest);
        check_shared("the network", bytes(states), limit)?;
        Ok(states)
    }
}
