//! The buffers of Relabel on the device ([`StepMemory`]), as `kernels/relabel.cuh` declares them.
//!
//! Start with [`StepMemory::new`], which allocates everything whose size depends on the episodes. What depends on the
//! network alone is in `network_plan`, the tables for the gradients of the parameters in `gradient_plan`, and what
//! training together with a backbone needs in addition in `joint_buffers`.
//!
//! A state is the vector of width W that the network has for one item and one class. An episode of M items and C
//! classes has M C states and M M pairs of items. A class row is a row per class of an episode; a tile is the work of
//! one thread block: a few items of one episode with all their states. Sizes are sums over the episodes of a step.
//!
//! The gram matrix of an episode has the inner products of its items, `[M, M]`. The edge network computes attention
//! logits from the features of pairs. A layer is attention between items, then mixing: a network with one hidden layer
//! on a state, its item and its class. The item view is a projection of the features of an item. `d_` marks a gradient,
//! and slopes are derivatives of the activation function GELU.
//!
//! The structures with `repr(C)` have the fields of the structures in `kernels/`, in the same order; shapes and
//! meanings of the fields are documented there.

mod gradient_plan;
mod joint_buffers;
mod network_plan;

use bytemuck::{Pod, Zeroable};
use trueshot_nn::relabel::Config;

use super::input::{StepLayout, StepSizes};
use crate::driver::{Buffer, Device, check_shared};
use crate::error::Result;
use gradient_plan::{GradientPlan, Product, Source};
use joint_buffers::DeviceJoint;
pub(super) use joint_buffers::JointAddresses;
pub(super) use network_plan::{NetworkPlan, Positions};

/// Input features of a pair of items: five relations (such as cosines and distances), and whether the labels are the
/// same.
const PAIR_FEATURES: usize = 6;
/// Input features of a state: four of the given labels, and three statistics of each of the five relations.
const STATE_FEATURES: usize = 19;
/// Outputs of a state: the logit of its class, the logarithm of a multiplier (of the item's weight in the prototype of
/// the class), and its vote for "none of the classes".
const OUTPUTS: usize = 3;

/// `PackedLayer` in `kernels/relabel.cuh`: where the weights of a layer start in the packed weights (copies in the
/// order in which matrix instructions read them), four of attention and four of mixing.
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

/// `SharedLayout` in `kernels/relabel.cuh`: where the parts of the shared memory of a tile start, in floats.
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

/// `Relabel` in `kernels/relabel.cuh`, the argument of all kernels: sizes, offsets of parameters, and addresses of
/// buffers (`u64`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct DeviceRelabel {
    // Sizes and options of the network.
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
    // The largest sizes of a step.
    max_items: i32,
    max_states: i32,
    max_class_rows: i32,
    max_class_sums: i32,
    // Offsets of parameters; those from `attention_norm` to `class_bias` are relative to the start of a layer.
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
    // Offsets of packed weights; `_back` for the backward pass.
    packed_features: i32,
    packed_start: i32,
    packed_start_back: i32,
    packed_view: i32,
    packed_item: i32,
    packed_item_back: i32,
    packed_layer_len: i32,
    forward: PackedLayer,
    backward: PackedLayer,
    // The length of the partial gradients of a tile, and offsets in them.
    partial_len: i32,
    partial_layer: i32,
    partial_layer_len: i32,
    partial_out_norm: i32,
    partial_view_norm: i32,
    pub shared: SharedLayout,
    pub layout: StepLayout,
    // Floats of shared memory for the losses and for the input features of an episode; 0 if these are in global memory.
    pub scratch_len: i32,
    pub gram_len: i32,
    padding: i32,
    // Addresses of buffers.
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

/// What a run keeps on the device between steps (`State` in `kernels/relabel.cuh`): its progress, not the states of
/// items and classes.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct State {
    /// Finished steps.
    pub step: u32,
    /// Updates of the optimiser so far, fewer than the steps if losses were not finite.
    pub updates: u32,
    /// Thread blocks of the current update that have finished; the last one ends the step.
    pub finished_blocks: u64,
    /// AdamW's bias corrections of both moments in the current step.
    pub corrections: [f32; 2],
}

/// The buffers and tables for steps up to some sizes.
pub(super) struct StepMemory {
    /// The largest sizes of a step.
    pub sizes: StepSizes,
    /// The argument of the kernels.
    pub relabel: DeviceRelabel,
    /// The inputs of the steps, `[slot][slot_len]` in words of 32 bits: one slot per step, reused in turn.
    pub slots: Buffer<u32>,
    /// The matrix products that are the gradients of the weights (`products` of the kernels' argument and of
    /// [`StepSizes`] are others: inner products of items and queries).
    pub products: Buffer<Product>,
    /// The results of `products`.
    pub product_sums: Buffer<f32>,
    /// Where the gradient of each parameter comes from.
    pub sources: Buffer<Source>,
    /// The buffers for the gradient of the features, in training together with a backbone.
    pub joint: Option<DeviceJoint>,
    #[allow(dead_code, reason = "kernels use them by address")]
    buffers: Vec<Buffer<f32>>,
}

/// Addresses of buffers that outlive a [`StepMemory`].
#[derive(Debug, Clone, Copy)]
pub(super) struct PersistentAddresses {
    pub state: u64,
    pub parameters: u64,
    pub packed: u64,
    /// Features and their gradient, in training together with a backbone.
    pub joint: Option<JointAddresses>,
}

impl StepMemory {
    /// Floats of shared memory of the kernel that computes the input features of an episode. It always has four numbers
    /// per item: the product with the mean of the items, two scales, and the label.
    pub fn features_shared_len(&self) -> i32 {
        self.relabel.gram_len.max(4 * self.sizes.largest_items as i32)
    }

    /// Memory for the inputs of `slot_count` steps, and for one step at a time, of up to `sizes`. `limit`: bytes of
    /// shared memory that a thread block may use.
    ///
    /// # Errors
    /// [`TooLarge`](crate::Error::TooLarge) if a tile does not fit into shared memory,
    /// [`OutOfMemory`](crate::Error::OutOfMemory) if the buffers do not fit.
    pub fn new(
        device: &Device,
        plan: &NetworkPlan,
        sizes: StepSizes,
        persistent: PersistentAddresses,
        slot_count: usize,
        limit: usize,
    ) -> Result<Self> {
        let mut relabel = plan.fields;
        relabel.shared = plan.shared_layout(&sizes);
        relabel.layout = StepLayout::new(&sizes);
        check_shared("an episode", 4 * relabel.shared.len as usize, limit)?;
        // Input features and losses of an episode are computed in shared memory if they fit, otherwise in global memory
        // (length 0). The features need up to four vectors `[M]`, the inner products, the distances, and the six
        // features of a pair, each `[M, M]`.
        let gram_len = 4 * sizes.largest_items + (2 + PAIR_FEATURES) * sizes.largest_items.pow(2);
        relabel.gram_len = if 4 * gram_len <= limit { gram_len as i32 } else { 0 };
        relabel.scratch_len =
            if 4 * sizes.largest_scratch <= limit { sizes.largest_scratch as i32 } else { 0 };
        let slots = device.zeros::<u32>(slot_count * relabel.layout.slot_len as usize)?;
        relabel.slots = slots.address();
        relabel.state = persistent.state;
        relabel.parameters = persistent.parameters;
        relabel.packed = persistent.packed;
        let mut buffers = Vec::new();
        Self::allocate(device, plan, &sizes, &mut relabel, &mut buffers)?;
        let joint = match persistent.joint {
            Some(addresses) => Some(DeviceJoint::new(device, plan, &sizes, addresses, limit, &mut buffers)?),
            None => None,
        };
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
            joint,
            buffers,
        })
    }

    /// Allocates the buffers of a step of up to `sizes`, adds them to `buffers` and sets their addresses in `r`.
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
        // Allocates a buffer and returns its address.
        let mut floats = |len: usize| -> Result<u64> {
            buffers.push(device.zeros::<f32>(len)?);
            Ok(buffers[buffers.len() - 1].address())
        };
        // The input features of pairs and states, and the attention weights.
        r.gram = floats(pairs)?;
        r.products = floats(products)?;
        r.squares = floats(queries)?;
        r.pair_features = floats(PAIR_FEATURES * pairs)?;
        r.state_features = floats(STATE_FEATURES * states)?;
        r.attention = floats(layers * heads * pairs)?;
        r.d_attention = floats(layers * heads * pairs)?;
        // States before attention and before mixing of every layer, and after the last layer.
        for buffer in [&mut r.states, &mut r.normed, &mut r.d_states] {
            *buffer = floats((2 * layers + 1) * states * width)?;
        }
        // Activations of the layers and their gradients: per item, per state and per class row. Two vectors of the item
        // side by side are the input of queries and keys (`pooled`) and of mixing (`pools`).
        for buffer in [&mut r.pooled, &mut r.pools] {
            *buffer = floats(layers * items * 2 * width)?;
        }
        // `argmax` holds class numbers, which are as long as floats.
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
        // Gradients of one layer at a time, and activations and gradient of the input layer.
        for buffer in
            [&mut r.d_normed, &mut r.d_attended, &mut r.start_slopes, &mut r.start_activated, &mut r.d_start]
        {
            *buffer = floats(states * width)?;
        }
        if let Some(view) = &plan.config.item_view {
            // Matrix products read whole groups of 16 rows, so also up to 15 rows after the last item of the last tile.
            r.view_rows = floats((items + 32) * r.view_pitch as usize)?;
            for buffer in [&mut r.projected, &mut r.view, &mut r.d_projected] {
                *buffer = floats(items * view.width)?;
            }
            for buffer in [&mut r.view_slopes, &mut r.view_activated, &mut r.d_view_hidden] {
                *buffer = floats(items * width)?;
            }
        }
        // Logits, losses, and partial sums of the gradients.
        r.outlier = floats(items)?;
        r.d_outlier = floats(items)?;
        r.logits = floats(states * OUTPUTS)?;
        r.d_logits = floats(states * OUTPUTS)?;
        // For the losses. Before them, the distances of pairs that do not fit into shared memory.
        r.scratch = floats(scratch.max(pairs))?;
        r.d_prior = floats(episodes * 4)?;
        r.losses = floats(episodes * 2)?;
        r.partials = floats(tiles * r.partial_len as usize)?;
        Ok(())
    }
}
