//! The tables from which `kernels/relabel_optimiser.cu` computes the gradients of Relabel's parameters
//! ([`GradientPlan`]): matrix products for weights and biases, and for every parameter the partial sums to add up.
//!
//! The gradient of a weight of a layer `y = x W` is the product `xᵀ d` of the layer's inputs x and the gradients d of
//! its outputs, summed over all rows of a step. The rows are items, states (one per item and class) or class rows (one
//! per class of an episode). To use more multiprocessors, the rows are split into parts: a thread block computes the
//! product over one part of the rows for 64 x 64 elements of the weight, and the update adds the parts up. Gradients of
//! other parameters (norms, edge network) are sums that the kernels of the layers write per tile (the items and states
//! of a thread block), or per episode.

use std::ops::Range;

use bytemuck::{Pod, Zeroable};
use trueshot_nn::parameters::Tensor;
use trueshot_nn::relabel::{Config, ViewTarget};

use super::{DeviceRelabel, NetworkPlan, STATE_FEATURES};
use crate::relabel::input::StepSizes;

/// Rows and columns of the gradient of a weight that one product computes.
const PRODUCT_TILE: usize = 64;

/// One matrix product `xᵀ d`, the work of one thread block (`Product` in `kernels/relabel_optimiser.cu`):
/// [`PRODUCT_TILE`] x [`PRODUCT_TILE`] elements of the gradient of a weight, summed over one part of the rows.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(in crate::relabel) struct Product {
    /// Address of the inputs of the layer, `[rows][x_pitch]`.
    x: u64,
    /// Address of the gradients of its outputs, `[rows][d_columns]`.
    d: u64,
    /// Address of this part's sum of the gradient of the weight, `[x_columns][d_columns]`.
    out: u64,
    /// Address of the gradient of the bias, `[d_columns]`, which is the sum of `d` over the rows; 0 for none.
    bias: u64,
    x_columns: i32,
    x_pitch: i32,
    d_columns: i32,
    /// The first of the [`PRODUCT_TILE`] columns of x.
    first_x: i32,
    /// The first of the [`PRODUCT_TILE`] columns of d.
    first_d: i32,
    /// The kind of the rows, see [`Rows`].
    rows: i32,
    /// The number of the part of the rows, below `parts`.
    part: i32,
    parts: i32,
}

/// Where the gradient of a parameter comes from: the sum of `count` numbers, `stride` apart, from number `first` on
/// (`Source` in `kernels/relabel_optimiser.cu`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(in crate::relabel) struct Source {
    /// Which numbers are added: [`PARTS`], [`TILES`] or [`EPISODES`]; 0 for a parameter that is not trained, such as
    /// the mean of the features.
    kind: u32,
    first: u32,
    stride: u32,
    /// For [`PARTS`]; the kernels know the numbers of tiles and episodes of a step.
    count: u32,
}

/// A [`Source`] in the results of the products, one per part.
const PARTS: u32 = 1;
/// A [`Source`] in the partial sums that each tile writes.
const TILES: u32 = 2;
/// A [`Source`] in the gradients of the prior and of the scale of the logits, `[episodes][4]`.
const EPISODES: u32 = 3;

/// The rows that a gradient is summed over.
#[derive(Debug, Clone, Copy)]
enum Rows {
    Items = 0,
    States = 1,
    Classes = 2,
}

impl Rows {
    /// The number of parts in which these rows are summed, one thread block each: more for states, which are the most
    /// rows. It is constant, so that the bits of a sum do not depend on the sizes of steps.
    fn parts(self) -> usize {
        match self {
            Rows::Items => 4,
            Rows::States => 12,
            Rows::Classes => 2,
        }
    }
}

/// The tables of products and sources.
pub(super) struct GradientPlan {
    /// One source per parameter.
    pub sources: Vec<Source>,
    /// Products whose `out` and `bias` are still positions in the buffer of the results instead of addresses.
    products: Vec<Product>,
    /// The length of the buffer of the results, in floats.
    pub sums_len: usize,
}

/// The two factors of the gradient of a weight.
struct Factors {
    /// Address of the inputs of the layer.
    x: u64,
    /// Floats from one row of x to the next.
    x_pitch: usize,
    /// Address of the gradients of the outputs.
    d: u64,
    rows: Rows,
}

/// A function that adds the gradient of a weight: (name of the layer, name of its bias if it has one, (address, pitch)
/// of x, address of d, kind of the rows).
type AddProduct<'a> = dyn FnMut(&str, Option<&str>, (u64, usize), u64, Rows) + 'a;

impl GradientPlan {
    /// Sources of the parameters whose gradients are sums over tiles or episodes.
    pub fn new(plan: &NetworkPlan) -> Self {
        let none = Source { kind: 0, first: 0, stride: 0, count: 0 };
        let (parameters, fields, width) = (&plan.parameters, &plan.fields, plan.config.width);
        let mut sources = vec![none; parameters.len];
        // The gradients of parameters `start` to before `start + len` are summed over the tiles. In the partial sums of
        // a tile, they start at position `partial`.
        let mut tiles = |start: i32, len: usize, partial: i32| {
            for (offset, source) in sources[start as usize..start as usize + len].iter_mut().enumerate() {
                let first = partial as u32 + offset as u32;
                *source = Source { kind: TILES, first, stride: fields.partial_len as u32, count: 0 };
            }
        };
        // Those of the edge network are first.
        tiles(fields.edges, NetworkPlan::edges_len(&plan.config), 0);
        // Scale and shift of the norms before attention and before mixing.
        for layer in 0..plan.config.layers as i32 {
            let start = fields.layer + layer * fields.layer_len;
            let partial = fields.partial_layer + layer * fields.partial_layer_len;
            tiles(start + fields.attention_norm, 2 * width, partial);
            tiles(start + fields.mixing_norm, 2 * width, partial + 2 * width as i32);
        }
        tiles(fields.out_norm, 2 * width, fields.partial_out_norm);
        tiles(fields.view_norm, 2 * fields.view_width as usize, fields.partial_view_norm);
        // An episode writes three gradients of the prior, then that of the scale of the logits.
        for index in 0..3u32 {
            sources[fields.prior as usize + index as usize] =
                Source { kind: EPISODES, first: index, stride: 4, count: 0 };
        }
        sources[fields.log_scale as usize] = Source { kind: EPISODES, first: 3, stride: 4, count: 0 };
        GradientPlan { sources, products: Vec::new(), sums_len: 0 }
    }

    /// Adds the gradients of all weights and of their biases, from the output layer back to the input layer. The order
    /// does not affect results.
    pub fn add_products(&mut self, plan: &NetworkPlan, r: &DeviceRelabel, sizes: &StepSizes) {
        for layer in (0..plan.config.layers).rev() {
            let mut add = |name: &str, bias: Option<&str>, x: (u64, usize), d: u64, rows: Rows| {
                let weight = plan.parameters.tensor(&format!("{name}.weight"));
                let bias = bias.map(|bias| plan.parameters.range(bias));
                self.add_product(weight, bias, Factors { x: x.0, x_pitch: x.1, d, rows });
            };
            if layer + 1 == plan.config.layers {
                // The input of the output layer is the last of 2 layers + 1 matrices of normalised states, of 4 bytes
                // each.
                let earlier = 2 * plan.config.layers * sizes.states * plan.config.width;
                let normed = r.normed + (4 * earlier) as u64;
                add("out", None, (normed, plan.config.width), r.d_logits, Rows::States);
            }
            Self::add_layer(plan, r, sizes, layer, &mut add);
            if layer == 0 {
                Self::add_input_layer(plan, r, &mut add);
            }
        }
    }

    /// Adds the weights of the input layer and of the item view (a projection of the features), if there is one.
    fn add_input_layer(plan: &NetworkPlan, r: &DeviceRelabel, add: &mut AddProduct<'_>) {
        let width = plan.config.width;
        let start_bias = Some("start.features.bias");
        // The first matrix of `d_states` is the gradient of the outputs of the input layer.
        add("start.features", start_bias, (r.state_features, STATE_FEATURES), r.d_start, Rows::States);
        add("start.out", Some("start.out.bias"), (r.start_activated, width), r.d_states, Rows::States);
        let Some(view) = &plan.config.item_view else { return };
        add("item.projection", None, (r.view_rows, r.view_pitch as usize), r.d_projected, Rows::Items);
        if view.target == ViewTarget::States {
            add("start.item", None, (r.view, view.width), r.d_view_hidden, Rows::Items);
        } else {
            let bias = Some("item.hidden.bias");
            add("item.hidden", bias, (r.view, view.width), r.d_view_hidden, Rows::Items);
            add("item.out", None, (r.view_activated, width), r.d_outlier, Rows::Items);
        }
    }

    /// Adds the weights of attention and mixing of a layer.
    fn add_layer(
        plan: &NetworkPlan,
        r: &DeviceRelabel,
        sizes: &StepSizes,
        layer: usize,
        add: &mut AddProduct<'_>,
    ) {
        let Config { width, hidden, .. } = plan.config;
        let StepSizes { states, items, class_rows, .. } = *sizes;
        // The address of matrix number `index` of `[rows][width]` floats (4 bytes each) in a buffer. A buffer holds one
        // matrix per layer, one after the other; a matrix has one row per item, state or class row of the step.
        let matrix =
            |buffer: u64, index: usize, rows: usize, width: usize| buffer + (4 * index * rows * width) as u64;
        let of_items = |buffer: u64, width: usize| matrix(buffer, layer, items, width);
        let of_states = |buffer: u64, width: usize| matrix(buffer, layer, states, width);
        let of_classes = |buffer: u64, width: usize| matrix(buffer, layer, class_rows, width);
        // Buffers of the states themselves have two matrices per layer. Stage 0 are the states before attention, 1
        // those before mixing, and 2 those after mixing, which are stage 0 of the next layer.
        let of_stage = |buffer: u64, stage: usize| matrix(buffer, 2 * layer + stage, states, width);
        let name = |part: &str| format!("layer{layer}.{part}");
        let query_bias = name("attention.query.bias");
        let pooled = (of_items(r.pooled, 2 * width), 2 * width);
        let d_queries = of_items(r.d_queries, width);
        add(&name("attention.query"), Some(&query_bias), pooled, d_queries, Rows::Items);
        add(&name("attention.key"), None, pooled, of_items(r.d_keys, width), Rows::Items);
        let normed = (of_stage(r.normed, 0), width);
        add(&name("attention.value"), None, normed, of_states(r.d_values, width), Rows::States);
        let attended = (of_states(r.attended, width), width);
        add(&name("attention.out"), None, attended, of_stage(r.d_states, 1), Rows::States);
        let normed = (of_stage(r.normed, 1), width);
        add(&name("mixing.state"), None, normed, of_states(r.d_hidden, hidden), Rows::States);
        let pools = (of_items(r.pools, 2 * width), 2 * width);
        add(&name("mixing.item"), None, pools, of_items(r.d_of_items, hidden), Rows::Items);
        let (bias, means) = (name("mixing.class.bias"), (of_classes(r.class_means, width), width));
        let d_of_classes = of_classes(r.d_of_classes, hidden);
        add(&name("mixing.class"), Some(&bias), means, d_of_classes, Rows::Classes);
        let activated = (of_states(r.activated, hidden), hidden);
        add(&name("mixing.out"), None, activated, of_stage(r.d_states, 2), Rows::States);
    }

    /// Adds the products of one weight, one per part of the rows and 64 x 64 elements, and the sources of its
    /// parameters and of those of its bias.
    fn add_product(&mut self, weight: &Tensor, bias: Option<Range<usize>>, factors: Factors) {
        let parts = factors.rows.parts();
        // Reserves space for all parts of the gradient of these parameters, sets their sources, and returns the start.
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
                    // Only the products of the first columns of x also sum d for the bias. `u64::MAX` stands for no
                    // bias, because 0 is a position.
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

    /// The products with their final addresses, for results in a buffer at the address `sums`.
    pub fn placed_products(&self, sums: u64) -> Vec<Product> {
        let with_addresses = |product: &Product| Product {
            out: sums + 4 * product.out,
            bias: if product.bias == u64::MAX { 0 } else { sums + 4 * product.bias },
            ..*product
        };
        self.products.iter().map(with_addresses).collect()
    }
}
