//! The sizes, parameters and buffers of Relabel on the device, as `kernels/relabel.cuh` declares them.

use std::collections::HashMap;
use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use trueshot_nn::head::Head;
use trueshot_nn::parameters::{ParameterLayout, Tensor};
use trueshot_nn::relabel::{Config, Relabel, ViewTarget};

use super::input::{StepLayout, StepSizes};
use crate::driver::{Buffer, Device};
use crate::error::{Error, Result};

/// Features of a pair of items, of a state, and outputs of a state.
const PAIR_FEATURES: usize = 6;
const STATE_FEATURES: usize = 19;
const OUTPUTS: usize = 3;
/// Rows and columns of a block of a weight's gradient.
const PRODUCT_TILE: usize = 64;
/// States of a tile. With 40, episodes of 5 classes with 5 items each have 4 tiles, so 32 episodes are one tile for each of an
/// H200's multiprocessors.
const TILE_STATES: [usize; 3] = [40, 32, 16];
/// A position of a parameter that is not packed.
const NOT_PACKED: u32 = u32::MAX;

/// `PackedLayer` in `kernels/relabel.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
struct PackedLayer {
    query: i32,
    key: i32,
    value: i32,
    out: i32,
    state: i32,
    item: i32,
    of_class: i32,
    mixed: i32,
}

/// `SharedLayout` in `kernels/relabel.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
pub(super) struct SharedLayout {
    states: i32,
    normed: i32,
    values: i32,
    hidden: i32,
    items: [i32; 3],
    classes: i32,
    of_classes: i32,
    extra: i32,
    pub len: i32,
}

/// `Relabel` in `kernels/relabel.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct DeviceRelabel {
    width: i32,
    layers: i32,
    heads: i32,
    hidden: i32,
    edge_hidden: i32,
    view_width: i32,
    view_dim: i32,
    view_pitch: i32,
    view_target: i32,
    centred: i32,
    padded: i32,
    floor: f32,
    items_weight: f32,
    queries_weight: f32,
    attention_scale: f32,
    dropout_scale: f32,
    dropout_threshold: u32,
    max_items: i32,
    max_states: i32,
    max_class_rows: i32,
    max_class_sums: i32,
    edges: i32,
    view_mean: i32,
    view_norm: i32,
    view_bias: i32,
    view_out: i32,
    features_bias: i32,
    start_bias: i32,
    layer: i32,
    layer_len: i32,
    attention_norm: i32,
    query_bias: i32,
    mixing_norm: i32,
    class_bias: i32,
    out_norm: i32,
    out: i32,
    prior: i32,
    log_scale: i32,
    packed_features: i32,
    packed_start: i32,
    packed_start_back: i32,
    packed_view: i32,
    packed_item: i32,
    packed_item_back: i32,
    packed_layer_len: i32,
    forward: PackedLayer,
    backward: PackedLayer,
    partial_len: i32,
    partial_layer: i32,
    partial_layer_len: i32,
    partial_out_norm: i32,
    partial_view_norm: i32,
    pub shared: SharedLayout,
    pub layout: StepLayout,
    pub scratch_len: i32,
    pub gram_len: i32,
    padding: i32,
    slots: u64,
    state: u64,
    parameters: u64,
    packed: u64,
    gram: u64,
    products: u64,
    squares: u64,
    pair_features: u64,
    state_features: u64,
    attention: u64,
    d_attention: u64,
    states: u64,
    normed: u64,
    d_states: u64,
    pooled: u64,
    queries: u64,
    keys: u64,
    values: u64,
    attended: u64,
    pools: u64,
    argmax: u64,
    class_means: u64,
    hidden_slopes: u64,
    activated: u64,
    d_hidden: u64,
    d_of_items: u64,
    d_of_classes: u64,
    d_queries: u64,
    d_keys: u64,
    d_values: u64,
    class_sums: u64,
    d_normed: u64,
    d_attended: u64,
    start_slopes: u64,
    start_activated: u64,
    d_start: u64,
    view_rows: u64,
    projected: u64,
    view: u64,
    view_slopes: u64,
    view_activated: u64,
    d_view_hidden: u64,
    d_projected: u64,
    outlier: u64,
    d_outlier: u64,
    logits: u64,
    d_logits: u64,
    scratch: u64,
    d_prior: u64,
    losses: u64,
    partials: u64,
}

/// `State` in `kernels/relabel.cuh`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct State {
    pub step: u32,
    pub updates: u32,
    pub finished_blocks: u64,
    pub corrections: [f32; 2],
}

/// `Product` in `kernels/relabel_optimiser.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct Product {
    x: u64,
    d: u64,
    out: u64,
    bias: u64,
    x_columns: i32,
    x_pitch: i32,
    d_columns: i32,
    first_x: i32,
    first_d: i32,
    rows: i32,
    part: i32,
    parts: i32,
}

/// `Source` in `kernels/relabel_optimiser.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct Source {
    kind: u32,
    first: u32,
    stride: u32,
    count: u32,
}

/// The kinds of a [`Source`].
const PARTS: u32 = 1;
const TILES: u32 = 2;
const EPISODES: u32 = 3;

/// `Positions` in `kernels/relabel_optimiser.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct Positions {
    forward: u32,
    backward: u32,
}

/// The rows that a gradient is summed over.
#[derive(Debug, Clone, Copy)]
enum Rows {
    Items = 0,
    States = 1,
    Classes = 2,
}

impl Rows {
    /// The number of parts that these rows are summed in, one thread block each. It does not depend on the sizes of steps, so
    /// neither do the bits of a sum.
    fn parts(self) -> usize {
        match self {
            Rows::Items => 4,
            Rows::States => 12,
            Rows::Classes => 2,
        }
    }
}

/// The parameters of a network by name.
struct Parameters {
    tensors: HashMap<String, Tensor>,
    len: usize,
}

impl Parameters {
    fn new(layout: &ParameterLayout) -> Self {
        let tensors = layout.tensors().iter().map(|tensor| (tensor.name.clone(), tensor.clone()));
        Parameters { tensors: tensors.collect(), len: layout.len() }
    }

    fn tensor(&self, name: &str) -> &Tensor {
        self.tensors.get(name).unwrap_or_else(|| panic!("the network has a tensor '{name}'"))
    }

    fn range(&self, name: &str) -> Range<usize> {
        self.tensor(name).range.clone()
    }

    fn start(&self, name: &str) -> i32 {
        self.tensor(name).range.start as i32
    }

    /// The start of a tensor that not all networks have.
    fn optional(&self, name: &str) -> i32 {
        self.tensors.get(name).map_or(0, |tensor| tensor.range.start as i32)
    }
}

/// The position of element (k, n) of a weight with `inputs` rows among its packed numbers: for 8 columns and 16 rows,
/// every lane has its four numbers of two `mma_tf32` (`multiply` in `kernels/relabel.cuh`).
fn packed_position(inputs: usize, k: usize, n: usize) -> usize {
    let lane = n % 8 * 4 + k % 8 / 2;
    (n / 8 * inputs.div_ceil(16) + k / 16) * 128 + lane * 4 + k % 16 / 8 * 2 + k % 2
}

/// The packed copies of weights: positions of every parameter.
pub(super) struct Packing {
    pub positions: Vec<Positions>,
    pub len: usize,
}

impl Packing {
    fn new(parameters: usize) -> Self {
        let none = Positions { forward: NOT_PACKED, backward: NOT_PACKED };
        Packing { positions: vec![none; parameters], len: 0 }
    }

    fn reserve(&mut self, inputs: usize, outputs: usize) -> usize {
        let start = self.len;
        self.len += inputs.div_ceil(16) * outputs.div_ceil(8) * 128;
        start
    }

    /// Packs a weight of `outputs` columns and returns its offset.
    fn forward(&mut self, weight: Range<usize>, outputs: usize) -> i32 {
        let inputs = weight.len() / outputs;
        let start = self.reserve(inputs, outputs);
        for (element, parameter) in weight.enumerate() {
            let position = start + packed_position(inputs, element / outputs, element % outputs);
            self.positions[parameter].forward = position as u32;
        }
        start as i32
    }

    /// Packs the transposed weight and returns its offset.
    fn backward(&mut self, weight: Range<usize>, outputs: usize) -> i32 {
        let inputs = weight.len() / outputs;
        let start = self.reserve(outputs, inputs);
        for (element, parameter) in weight.enumerate() {
            let position = start + packed_position(outputs, element % outputs, element / outputs);
            self.positions[parameter].backward = position as u32;
        }
        start as i32
    }

    /// Packs the weights of a layer, forward and backward.
    fn layer(
        &mut self,
        parameters: &Parameters,
        layer: usize,
        config: &Config,
    ) -> (PackedLayer, PackedLayer) {
        let (width, hidden) = (config.width, config.hidden);
        let range = |name: &str| parameters.range(&format!("layer{layer}.{name}.weight"));
        let mut both = |name: &str, outputs: usize| {
            (self.forward(range(name), outputs), self.backward(range(name), outputs))
        };
        let (query, key) = (both("attention.query", width), both("attention.key", width));
        let (value, out) = (both("attention.value", width), both("attention.out", width));
        let (state, item) = (both("mixing.state", hidden), both("mixing.item", hidden));
        let (of_class, mixed) = (both("mixing.class", hidden), both("mixing.out", width));
        let of = |pick: fn((i32, i32)) -> i32| PackedLayer {
            query: pick(query),
            key: pick(key),
            value: pick(value),
            out: pick(out),
            state: pick(state),
            item: pick(item),
            of_class: pick(of_class),
            mixed: pick(mixed),
        };
        (of(|(forward, _)| forward), of(|(_, backward)| backward))
    }
}

/// What does not depend on the sizes of the steps: the network, where its parameters are, and their packed copies.
pub(super) struct NetworkPlan {
    pub config: Config,
    parameters: Parameters,
    pub packing: Packing,
    /// The fields of the network, without sizes of steps and buffers.
    fields: DeviceRelabel,
}

fn view_target(config: &Config) -> i32 {
    match config.item_view.as_ref().map(|view| view.target) {
        None => 0,
        Some(ViewTarget::States) => 1,
        Some(ViewTarget::Outlier) => 2,
    }
}

/// Floats from one row of `width` to the next in shared memory.
fn pitch_of(width: usize) -> usize {
    width.next_multiple_of(16) + 8
}

impl NetworkPlan {
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
            let of_view = parameters.range(if fields.view_target == 1 {
                "start.item.weight"
            } else {
                "item.hidden.weight"
            });
            fields.packed_view = packing.forward(parameters.range("item.projection.weight"), view.width);
            fields.packed_item = packing.forward(of_view.clone(), config.width);
            fields.packed_item_back = packing.backward(of_view, config.width);
        }
        for layer in 0..config.layers {
            let start = packing.len;
            let (forward, backward) = packing.layer(&parameters, layer, &config);
            if layer == 0 {
                (fields.forward, fields.backward) = (forward, backward);
            }
            fields.packed_layer_len = (packing.len - start) as i32;
        }
        NetworkPlan { config, parameters, packing, fields }
    }

    fn sizes(config: &Config) -> DeviceRelabel {
        let view = config.item_view.as_ref();
        let (view_width, view_dim) = view.map_or((0, 0), |view| (view.width, view.dim));
        let dropout = view.map_or(0.0, |view| view.dropout);
        let head_width = config.width / config.heads;
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
            view_pitch: view_dim.next_multiple_of(16) as i32,
            view_target: view_target(config),
            centred: i32::from(config.centred),
            padded: i32::from(is_padded),
            floor: config.floor as f32,
            items_weight: config.items_weight as f32,
            queries_weight: config.queries_weight as f32,
            attention_scale: (head_width as f64).sqrt().recip() as f32,
            dropout_scale: (1.0 / (1.0 - dropout)) as f32,
            dropout_threshold: (dropout * (1u64 << 31) as f64) as u32,
            ..DeviceRelabel::zeroed()
        }
    }

    /// Offsets of the parameters, and of the partial sums of a tile: the edge network, then scale and shift of every norm.
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
        let last = format!("layer{}.attention.norm.scale", config.layers - 1);
        let others = (config.layers - 1).max(1) as i32;
        fields.layer_len = (parameters.start(&last) - start) / others;
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
        fields.partial_layer_len = 4 * width;
        fields.partial_out_norm = fields.partial_layer + config.layers as i32 * fields.partial_layer_len;
        fields.partial_view_norm = fields.partial_out_norm + 2 * width;
        fields.partial_len = fields.partial_view_norm + 2 * fields.view_width;
    }

    /// Parameters of the edge network.
    pub fn edges_len(config: &Config) -> usize {
        config.edge_hidden * (PAIR_FEATURES + 1 + config.layers * config.heads)
    }

    /// Bytes of shared memory of `relabel_edges_backward`: the weights and the sums of four groups of warps.
    pub fn edges_shared_len(&self) -> usize {
        4 * 5 * Self::edges_len(&self.config)
    }

    /// The shared memory of a tile.
    fn shared_layout(&self, sizes: &StepSizes) -> SharedLayout {
        let Config { width, hidden, heads, .. } = self.config;
        let view_width = self.fields.view_width as usize;
        let [rows, items, classes] = [sizes.tile_states, sizes.tile_items, sizes.largest_classes]
            .map(|count| count.next_multiple_of(16));
        let mut end = 0;
        let mut add = |len: usize| {
            let start = end;
            end += len;
            start as i32
        };
        let [states, normed, values] = [(); 3].map(|()| add(rows * pitch_of(width)));
        let of_hidden = add(rows * pitch_of(hidden.max(width)));
        let (wide, narrow) = ((2 * width).max(hidden).max(view_width), width.max(view_width));
        let items = [wide, wide, narrow].map(|width| add(items * pitch_of(width)));
        let (classes, of_classes) = (add(classes * pitch_of(width)), add(classes * pitch_of(hidden)));
        let attention = 2 * heads * sizes.tile_pairs;
        let features = rows * pitch_of(STATE_FEATURES);
        let extra = add(attention.max(features));
        // The edge network runs before the rest, in the same memory.
        let len = end.max(Self::edges_len(&self.config));
        let (hidden, len) = (of_hidden, len as i32);
        SharedLayout { states, normed, values, hidden, items, classes, of_classes, extra, len }
    }

    /// The number of states of a tile: the first of [`TILE_STATES`] that the shared memory suffices for.
    ///
    /// # Errors
    /// If it does not suffice for the last.
    pub fn tile_states(&self, limit: usize) -> Result<usize> {
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

/// The buffers for steps up to some sizes, and the tables that depend on them.
pub(super) struct StepMemory {
    pub sizes: StepSizes,
    pub relabel: DeviceRelabel,
    pub slots: Buffer<u32>,
    pub products: Buffer<Product>,
    pub product_sums: Buffer<f32>,
    pub sources: Buffer<Source>,
    #[allow(dead_code, reason = "kernels use them by address")]
    buffers: Vec<Buffer<f32>>,
}

/// Addresses of what lives longer than a [`StepMemory`].
#[derive(Debug, Clone, Copy)]
pub(super) struct PersistentAddresses {
    pub state: u64,
    pub parameters: u64,
    pub packed: u64,
}

/// Checks that a kernel's thread blocks have enough shared memory.
pub(super) fn check_shared(what: &'static str, bytes: usize, limit: usize) -> Result<()> {
    match bytes > limit {
        true => Err(Error::TooLarge { what, needed: bytes.div_ceil(1024), limit: limit / 1024 }),
        false => Ok(()),
    }
}

impl StepMemory {
    /// Floats of shared memory that the features of an episode need.
    pub fn features_shared_len(&self) -> i32 {
        self.relabel.gram_len.max(4 * self.sizes.largest_items as i32)
    }

    pub fn new(
        device: &Device,
        plan: &NetworkPlan,
        sizes: StepSizes,
        persistent: PersistentAddresses,
        slots: usize,
        limit: usize,
    ) -> Result<Self> {
        let mut relabel = plan.fields;
        relabel.shared = plan.shared_layout(&sizes);
        relabel.layout = StepLayout::new(&sizes);
        check_shared("an episode", 4 * relabel.shared.len as usize, limit)?;
        let gram_len = 4 * sizes.largest_items + (2 + PAIR_FEATURES) * sizes.largest_items.pow(2);
        relabel.gram_len = if 4 * gram_len <= limit { gram_len as i32 } else { 0 };
        relabel.scratch_len =
            if 4 * sizes.largest_scratch <= limit { sizes.largest_scratch as i32 } else { 0 };
        let slots = device.zeros::<u32>(slots * relabel.layout.slot_len as usize)?;
        relabel.slots = slots.address();
        relabel.state = persistent.state;
        relabel.parameters = persistent.parameters;
        relabel.packed = persistent.packed;
        let mut buffers = Vec::new();
        Self::allocate(device, plan, &sizes, &mut relabel, &mut buffers)?;
        let mut gradients = GradientPlan::new(plan);
        gradients.add_products(plan, &relabel, &sizes);
        let product_sums = device.zeros::<f32>(gradients.sums_len)?;
        let products = gradients.placed_products(product_sums.address());
        Ok(StepMemory {
            sizes,
            slots,
            products: device.upload(&products)?,
            product_sums,
            sources: device.upload(&gradients.sources)?,
            relabel,
            buffers,
        })
    }

    fn allocate(
        device: &Device,
        plan: &NetworkPlan,
        sizes: &StepSizes,
        r: &mut DeviceRelabel,
        buffers: &mut Vec<Buffer<f32>>,
    ) -> Result<()> {
        let Config { width, hidden, layers, heads, .. } = plan.config;
        let StepSizes {
            episodes, tiles, items, states, pairs, class_rows, queries, products, scratch, ..
        } = *sizes;
        let class_sums = sizes.largest_classes * hidden.max(width);
        r.max_items = items as i32;
        r.max_states = states as i32;
        r.max_class_rows = class_rows as i32;
        r.max_class_sums = class_sums as i32;
        let mut floats = |len: usize| -> Result<u64> {
            buffers.push(device.zeros::<f32>(len)?);
            Ok(buffers[buffers.len() - 1].address())
        };
        r.gram = floats(pairs)?;
        r.products = floats(products)?;
        r.squares = floats(queries)?;
        r.pair_features = floats(PAIR_FEATURES * pairs)?;
        r.state_features = floats(STATE_FEATURES * states)?;
        r.attention = floats(layers * heads * pairs)?;
        r.d_attention = floats(layers * heads * pairs)?;
        for buffer in [&mut r.states, &mut r.normed, &mut r.d_states] {
            *buffer = floats((2 * layers + 1) * states * width)?;
        }
        for buffer in [&mut r.pooled, &mut r.pools] {
            *buffer = floats(layers * items * 2 * width)?;
        }
        for buffer in [&mut r.queries, &mut r.keys, &mut r.d_queries, &mut r.d_keys, &mut r.argmax] {
            *buffer = floats(layers * items * width)?;
        }
        for buffer in [&mut r.values, &mut r.attended, &mut r.d_values] {
            *buffer = floats(layers * states * width)?;
        }
        for buffer in [&mut r.hidden_slopes, &mut r.activated, &mut r.d_hidden] {
            *buffer = floats(layers * states * hidden)?;
        }
        r.class_means = floats(layers * class_rows * width)?;
        r.d_of_items = floats(layers * items * hidden)?;
        r.d_of_classes = floats(layers * class_rows * hidden)?;
        r.class_sums = floats(tiles * class_sums)?;
        for buffer in
            [&mut r.d_normed, &mut r.d_attended, &mut r.start_slopes, &mut r.start_activated, &mut r.d_start]
        {
            *buffer = floats(states * width)?;
        }
        if let Some(view) = &plan.config.item_view {
            // Products read whole tiles of 16 rows, also beyond the last item of a tile.
            r.view_rows = floats((items + 32) * r.view_pitch as usize)?;
            for buffer in [&mut r.projected, &mut r.view, &mut r.d_projected] {
                *buffer = floats(items * view.width)?;
            }
            for buffer in [&mut r.view_slopes, &mut r.view_activated, &mut r.d_view_hidden] {
                *buffer = floats(items * width)?;
            }
        }
        r.outlier = floats(items)?;
        r.d_outlier = floats(items)?;
        r.logits = floats(states * OUTPUTS)?;
        r.d_logits = floats(states * OUTPUTS)?;
        r.scratch = floats(scratch.max(pairs))?;
        r.d_prior = floats(episodes * 4)?;
        r.losses = floats(episodes * 2)?;
        r.partials = floats(tiles * r.partial_len as usize)?;
        Ok(())
    }
}

/// Where the gradient of every parameter comes from.
struct GradientPlan {
    sources: Vec<Source>,
    /// Products whose `out` and `bias` are positions in the sums.
    products: Vec<Product>,
    sums_len: usize,
}

/// The two factors of the gradient of a weight: addresses and columns.
struct Factors {
    x: u64,
    x_pitch: usize,
    d: u64,
    rows: Rows,
}

/// Adds the gradient of a weight, given by name, of its bias, and the factors: address and pitch of x, address of d, rows.
type AddProduct<'a> = dyn FnMut(&str, Option<&str>, (u64, usize), u64, Rows) + 'a;

impl GradientPlan {
    /// Sources of the parameters whose gradients are sums over tiles or episodes.
    fn new(plan: &NetworkPlan) -> Self {
        let none = Source { kind: 0, first: 0, stride: 0, count: 0 };
        let (parameters, fields, width) = (&plan.parameters, &plan.fields, plan.config.width);
        let mut sources = vec![none; parameters.len];
        let mut tiles = |start: i32, len: usize, partial: i32| {
            for (offset, source) in sources[start as usize..start as usize + len].iter_mut().enumerate() {
                let first = partial as u32 + offset as u32;
                *source = Source { kind: TILES, first, stride: fields.partial_len as u32, count: 0 };
            }
        };
        tiles(fields.edges, NetworkPlan::edges_len(&plan.config), 0);
        for layer in 0..plan.config.layers as i32 {
            let start = fields.layer + layer * fields.layer_len;
            let partial = fields.partial_layer + layer * fields.partial_layer_len;
            tiles(start + fields.attention_norm, 2 * width, partial);
            tiles(start + fields.mixing_norm, 2 * width, partial + 2 * width as i32);
        }
        tiles(fields.out_norm, 2 * width, fields.partial_out_norm);
        tiles(fields.view_norm, 2 * fields.view_width as usize, fields.partial_view_norm);
        for index in 0..3u32 {
            sources[fields.prior as usize + index as usize] =
                Source { kind: EPISODES, first: index, stride: 4, count: 0 };
        }
        sources[fields.log_scale as usize] = Source { kind: EPISODES, first: 3, stride: 4, count: 0 };
        GradientPlan { sources, products: Vec::new(), sums_len: 0 }
    }

    /// Adds the gradients of all weights and of the biases beside them, in the order in which their factors are computed:
    /// the output layer, the layers from the last, the input layer.
    fn add_products(&mut self, plan: &NetworkPlan, r: &DeviceRelabel, sizes: &StepSizes) {
        for layer in (0..plan.config.layers).rev() {
            let mut add = |name: &str, bias: Option<&str>, x: (u64, usize), d: u64, rows: Rows| {
                let weight = plan.parameters.tensor(&format!("{name}.weight"));
                let bias = bias.map(|bias| plan.parameters.range(bias));
                self.add_product(weight, bias, Factors { x: x.0, x_pitch: x.1, d, rows });
            };
            if layer + 1 == plan.config.layers {
                let normed =
                    r.normed + (4 * 2 * plan.config.layers * sizes.states * plan.config.width) as u64;
                add("out", None, (normed, plan.config.width), r.d_logits, Rows::States);
            }
            Self::add_layer(plan, r, sizes, layer, &mut add);
            if layer == 0 {
                Self::add_input_layer(plan, r, &mut add);
            }
        }
    }

    fn add_input_layer(plan: &NetworkPlan, r: &DeviceRelabel, add: &mut AddProduct<'_>) {
        let width = plan.config.width;
        let start_bias = Some("start.features.bias");
        add("start.features", start_bias, (r.state_features, STATE_FEATURES), r.d_start, Rows::States);
        add("start.out", Some("start.out.bias"), (r.start_activated, width), r.d_states, Rows::States);
        let Some(view) = &plan.config.item_view else { return };
        add("item.projection", None, (r.view_rows, r.view_pitch as usize), r.d_projected, Rows::Items);
        if r.view_target == 1 {
            add("start.item", None, (r.view, view.width), r.d_view_hidden, Rows::Items);
        } else {
            let bias = Some("item.hidden.bias");
            add("item.hidden", bias, (r.view, view.width), r.d_view_hidden, Rows::Items);
            add("item.out", None, (r.view_activated, width), r.d_outlier, Rows::Items);
        }
    }

    fn add_layer(
        plan: &NetworkPlan,
        r: &DeviceRelabel,
        sizes: &StepSizes,
        layer: usize,
        add: &mut AddProduct<'_>,
    ) {
        let Config { width, hidden, .. } = plan.config;
        let StepSizes { states, items, class_rows, .. } = *sizes;
        let after =
            |buffer: u64, index: usize, rows: usize, width: usize| buffer + (4 * index * rows * width) as u64;
        let of_items = |buffer: u64, width: usize| after(buffer, layer, items, width);
        let of_states = |buffer: u64, width: usize| after(buffer, layer, states, width);
        let of_classes = |buffer: u64, width: usize| after(buffer, layer, class_rows, width);
        let of_half = |buffer: u64, half: usize| after(buffer, 2 * layer + half, states, width);
        let name = |part: &str| format!("layer{layer}.{part}");
        let query_bias = name("attention.query.bias");
        let pooled = (of_items(r.pooled, 2 * width), 2 * width);
        let d_queries = of_items(r.d_queries, width);
        add(&name("attention.query"), Some(&query_bias), pooled, d_queries, Rows::Items);
        add(&name("attention.key"), None, pooled, of_items(r.d_keys, width), Rows::Items);
        let normed = (of_half(r.normed, 0), width);
        add(&name("attention.value"), None, normed, of_states(r.d_values, width), Rows::States);
        let attended = (of_states(r.attended, width), width);
        add(&name("attention.out"), None, attended, of_half(r.d_states, 1), Rows::States);
        let normed = (of_half(r.normed, 1), width);
        add(&name("mixing.state"), None, normed, of_states(r.d_hidden, hidden), Rows::States);
        let pools = (of_items(r.pools, 2 * width), 2 * width);
        add(&name("mixing.item"), None, pools, of_items(r.d_of_items, hidden), Rows::Items);
        let (bias, means) = (name("mixing.class.bias"), (of_classes(r.class_means, width), width));
        let d_of_classes = of_classes(r.d_of_classes, hidden);
        add(&name("mixing.class"), Some(&bias), means, d_of_classes, Rows::Classes);
        let activated = (of_states(r.activated, hidden), hidden);
        add(&name("mixing.out"), None, activated, of_half(r.d_states, 2), Rows::States);
    }

    fn add_product(&mut self, weight: &Tensor, bias: Option<Range<usize>>, factors: Factors) {
        let parts = factors.rows.parts();
        let mut sums = |range: &Range<usize>| {
            let first = self.sums_len;
            self.sums_len += parts * range.len();
            for (offset, source) in self.sources[range.clone()].iter_mut().enumerate() {
                let (first, stride) = ((first + offset) as u32, range.len() as u32);
                *source = Source { kind: PARTS, first, stride, count: parts as u32 };
            }
            first
        };
        let (first, first_bias) = (sums(&weight.range), bias.as_ref().map(&mut sums));
        let (x_columns, d_columns) = (weight.shape[0], weight.shape[1]);
        for part in 0..parts {
            for first_x in (0..x_columns).step_by(PRODUCT_TILE) {
                for first_d in (0..d_columns).step_by(PRODUCT_TILE) {
                    let bias = first_bias.filter(|_| first_x == 0).map(|first| first + part * d_columns);
                    self.products.push(Product {
                        x: factors.x,
                        d: factors.d,
                        out: (first + part * weight.range.len()) as u64,
                        bias: bias.map_or(u64::MAX, |bias| bias as u64),
                        x_columns: x_columns as i32,
                        x_pitch: factors.x_pitch as i32,
                        d_columns: d_columns as i32,
                        first_x: first_x as i32,
                        first_d: first_d as i32,
                        rows: factors.rows as i32,
                        part: part as i32,
                        parts: parts as i32,
                    });
                }
            }
        }
    }

    /// The products with addresses instead of positions.
    fn placed_products(&self, sums: u64) -> Vec<Product> {
        let place = |product: &Product| Product {
            out: sums + 4 * product.out,
            bias: if product.bias == u64::MAX { 0 } else { sums + 4 * product.bias },
            ..*product
        };
        self.products.iter().map(place).collect()
    }
}
