//! The task lists of the last two kernels of a step of TraNFS (`kernels/tranfs_update.cu`), and the positions of
//! parameters ([`ParameterPlaces`]) and of their packed copies ([`PackedPlaces`]).
//!
//! A task is the work of one thread block. The host lists all tasks once, when a run starts: [`gradient_tasks`] compute
//! the gradients of the parameters, [`update_tasks`] apply AdamW and write the packed copies, in which matrix
//! instructions read the weights.
//!
//! There are three kinds of weights: the down-projection from features to tokens (`down`), the up-projection from
//! tokens to prototypes (`up`, which can be tied to `down`, that is, share its tensor), and the weights of the
//! layers. A linear layer that decides whether an item is mislabelled adds a weight per feature and a bias.

use std::collections::HashMap;

use bytemuck::{Pod, Zeroable};
use trueshot_nn::head::Head;
use trueshot_nn::parameters::Role;
use trueshot_nn::tranfs::{Config, Tranfs};

use super::memory::Activations;

/// Rows and columns of a weight's gradient that one product task computes.
const TILE: usize = 64;
/// Columns that one sum task adds up.
const SUM_COLUMNS: usize = 32;
/// Rows of a weight that one update task updates.
const UPDATE_ROWS: usize = 16;
/// Columns of a weight that one update task updates.
const UPDATE_COLUMNS: usize = 64;

/// Positions of the first numbers of tensors in the parameters, in the order of `struct Tranfs`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct ParameterPlaces {
    /// The down-projection, `[dim][width]`.
    pub down: i32,
    /// The up-projection; the position of `down` if it is tied to the down-projection.
    pub up: i32,
    /// The table of position embeddings, `[classes][width]`.
    pub positions: i32,
    /// The table of class tokens, `[classes][width]`; -1 if class tokens are means of items.
    pub class_tokens: i32,
    /// The weights of the linear layer that decides whether an item is mislabelled.
    pub mislabelled: i32,
    /// Its bias.
    pub mislabelled_bias: i32,
    /// The start of layer 0.
    pub layer: i32,
    /// The distance from one layer to the next.
    pub layer_len: i32,
    // Relative to the start of a layer. A weight ends where its bias starts; a norm is scale, then shift.
    pub qkv_bias: i32,
    pub attended_bias: i32,
    pub norm1: i32,
    pub hidden_bias: i32,
    pub out_bias: i32,
    pub norm2: i32,
}

impl ParameterPlaces {
    /// The positions in the layout of `network`.
    pub fn new(network: &Tranfs) -> Self {
        let starts: HashMap<&str, i32> = network
            .layout()
            .tensors()
            .iter()
            .map(|tensor| (tensor.name.as_str(), tensor.range.start as i32))
            .collect();
        let start_of = |name: &str| starts[name];
        let layer = start_of("layer0.attention.in.weight");
        let in_layer = |name: &str| starts[format!("layer0.{name}").as_str()] - layer;
        ParameterPlaces {
            down: start_of("down.weight"),
            up: *starts.get("up.weight").unwrap_or(&start_of("down.weight")),
            positions: start_of("positions"),
            class_tokens: starts.get("class_tokens").copied().unwrap_or(-1),
            mislabelled: start_of("mislabelled.weight"),
            mislabelled_bias: start_of("mislabelled.bias"),
            layer,
            layer_len: in_layer("norm2.shift") + network.config().width as i32,
            qkv_bias: in_layer("attention.in.bias"),
            attended_bias: in_layer("attention.out.bias"),
            norm1: in_layer("norm1.scale"),
            hidden_bias: in_layer("feed_forward.in.bias"),
            out_bias: in_layer("feed_forward.out.bias"),
            norm2: in_layer("norm2.scale"),
        }
    }
}

/// Positions of packed weights in units of 16 bytes, in the order of `struct Tranfs`; those within a layer are relative
/// to its start.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct PackedPlaces {
    down: i32,
    up: i32,
    /// The transposed up-projection.
    up_t: i32,
    /// The start of layer 0.
    layer: i32,
    /// The distance from one layer to the next.
    layer_len: i32,
    /// The weights of a layer in the order of [`WEIGHTS`].
    weights: [i32; 4],
    /// The same weights transposed, for the backward pass.
    transposed: [i32; 4],
}

/// The packed weights of a layer: queries, keys and values together, attention's output, feed-forward input and output.
const WEIGHTS: [&str; 4] =
    ["attention.in.weight", "attention.out.weight", "feed_forward.in.weight", "feed_forward.out.weight"];

/// The length of a packed weight `[inputs, outputs]` in units of 16 bytes: 8 outputs and 16 inputs are 32 units, one
/// for each thread of a warp (`kernels/linear.cu`).
fn packed_len(inputs: usize, outputs: usize) -> usize {
    outputs.div_ceil(8) * inputs.div_ceil(16) * 32
}

impl PackedPlaces {
    /// Returns the positions, the position of the transposed down-projection, and the length of all packed weights.
    /// There is no transposed down-projection (-1) unless it is tied to the up-projection or `is_joint`.
    pub fn new(config: &Config, is_joint: bool) -> (Self, i32, usize) {
        let Config { dim, width, feed_forward, layers, tied, .. } = *config;
        let mut end = 0;
        // Appends a weight of this shape and returns its start.
        let mut add = |inputs: usize, outputs: usize| {
            let start = end;
            end += packed_len(inputs, outputs);
            i32::try_from(start).expect("packed weights are below 32 GiB")
        };
        let down = add(dim, width);
        let up = if tied { down } else { add(dim, width) };
        let up_t = add(width, dim);
        let layer = add(0, 0);
        let shapes = [(width, 3 * width), (width, width), (width, feed_forward), (feed_forward, width)];
        let weights = shapes.map(|(inputs, outputs)| add(inputs, outputs) - layer);
        let transposed = shapes.map(|(inputs, outputs)| add(outputs, inputs) - layer);
        let layer_len = add(0, 0) - layer;
        let len = layer as usize + layers * layer_len as usize;
        // Tied: the up-projection is the down-projection, so its transposed copy is there already.
        let (down_t, len) = match (tied, is_joint) {
            (true, _) => (up_t, len),
            (false, true) => (len as i32, len + packed_len(width, dim)),
            (false, false) => (-1, len),
        };
        (PackedPlaces { down, up, up_t, layer, layer_len, weights, transposed }, down_t, len)
    }

    /// The positions of a tensor's copies, as it is and transposed; -1 for a copy that does not exist. `down_t` is the
    /// position of the transposed down-projection.
    fn of(&self, name: &str, down_t: i32) -> (i32, i32) {
        match name {
            "down.weight" => (self.down, down_t),
            "up.weight" => (self.up, self.up_t),
            _ => self.of_layer(name).unwrap_or((-1, -1)),
        }
    }

    /// The positions of the copies of a weight of a layer, such as `layer1.attention.out.weight`; `None` for other
    /// tensors.
    fn of_layer(&self, name: &str) -> Option<(i32, i32)> {
        let (number, part) = name.strip_prefix("layer")?.split_once('.')?;
        let weight = WEIGHTS.iter().position(|weight| *weight == part)?;
        let start = self.layer + number.parse::<i32>().ok()? * self.layer_len;
        Some((start + self.weights[weight], start + self.transposed[weight]))
    }
}

/// The update of up to 16 x 64 elements of a tensor (`struct UpdateTask` in `kernels/tranfs_update.cu`). Tensors that
/// are not packed are treated as matrices of 64 columns, whatever their shape.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct UpdateTask {
    /// The position of the tensor in the parameters.
    start: i32,
    /// The number of its elements.
    len: i32,
    /// Rows of the matrix.
    inputs: i32,
    /// Columns of the matrix.
    outputs: i32,
    // The first row and column of the task.
    first_input: i32,
    first_output: i32,
    /// Positions of the packed copies, as it is and transposed; -1 for none.
    forward: i32,
    transposed: i32,
}

/// The updates of all trained tensors, in tiles. `down_t`: the position of the packed transposed down-projection, or
/// -1.
pub(super) fn update_tasks(network: &Tranfs, packed: &PackedPlaces, down_t: i32) -> Vec<UpdateTask> {
    let mut tasks = Vec::new();
    for tensor in network.layout().tensors().iter().filter(|tensor| tensor.role == Role::Trained) {
        let len = tensor.range.len();
        let (forward, transposed) = packed.of(&tensor.name, down_t);
        let (inputs, outputs) = match tensor.shape[..] {
            [inputs, outputs] if forward >= 0 => (inputs, outputs),
            _ => (len.div_ceil(UPDATE_COLUMNS), UPDATE_COLUMNS),
        };
        for first_input in (0..inputs).step_by(UPDATE_ROWS) {
            for first_output in (0..outputs).step_by(UPDATE_COLUMNS) {
                tasks.push(UpdateTask {
                    start: tensor.range.start as i32,
                    len: len as i32,
                    inputs: inputs as i32,
                    outputs: outputs as i32,
                    first_input: first_input as i32,
                    first_output: first_output as i32,
                    forward,
                    transposed,
                });
            }
        }
    }
    tasks
}

/// A part of the gradient of one tensor (`struct GradientTask` in `kernels/tranfs_update.cu`): a tile of a product
/// `leftᵀ right` over rows, or sums of columns of `left` (times those of `right`, if there are any) over rows.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
pub(super) struct GradientTask {
    /// Address of `[rows][inputs]` numbers of a product, or of `[rows][outputs]` of a sum.
    left: u64,
    /// Address of `[rows][outputs]` numbers; 0 for none.
    right: u64,
    /// A [`Kind`].
    kind: i32,
    // Rows and columns of the gradient of a weight `[inputs][outputs]`; the length of a vector is `outputs`.
    inputs: i32,
    outputs: i32,
    // The start of the task's tile, or of its columns.
    first_input: i32,
    first_output: i32,
    /// The position of the tensor in the parameters.
    start: i32,
    /// Which rows are added up, for projections ([`ITEMS`], [`PROTOTYPES`]) and tables ([`TOKENS_OF_CLASS`],
    /// [`CLASS_TOKEN`]); 0 for all tokens.
    option: i32,
    /// The row of a table that the task computes the gradient of: a class.
    label: i32,
}

/// The kinds of [`GradientTask`], in the order of `enum GradientKind`.
#[derive(Debug, Clone, Copy)]
enum Kind {
    /// A tile of the weight of a layer; rows are tokens.
    LayerProduct,
    /// A tile of the down- or up-projection.
    Projection,
    /// Sums over tokens, for biases, norms and tables.
    ColumnSums,
    /// 32 weights of the linear layer that decides whether an item is mislabelled.
    MislabelledWeight,
    /// The bias of that layer. Its thread block also averages the losses over the episodes and, without a backbone,
    /// ends the step.
    MislabelledBias,
}

/// The gradient of a projection through the items (`enum ProjectionParts`): that of the down-projection.
const ITEMS: i32 = 1;
/// The gradient of a projection through the prototypes: that of the up-projection.
const PROTOTYPES: i32 = 2;
/// Sums over all tokens of one class (`enum TokenFilter`), for position embeddings.
const TOKENS_OF_CLASS: i32 = 1;
/// Sums over the class tokens of one class, for learned class tokens.
const CLASS_TOKEN: i32 = 2;

/// The gradients of all trained tensors, one task per thread block, in groups: one per layer from the last to layer 1,
/// then all other tensors, with the longest tasks first. The groups of the upper layers can be computed beside the
/// backward pass of the layers below.
pub(super) fn gradient_tasks(network: &Tranfs, activations: &Activations) -> Vec<Vec<GradientTask>> {
    let config = network.config();
    let places = ParameterPlaces::new(network);
    // The product tasks and the sum tasks of a layer.
    let of_layer = |layer| {
        let (mut tasks, mut sums) = (Vec::new(), Vec::new());
        layer_tasks(config, &places, activations, layer, &mut tasks, &mut sums);
        (tasks, sums)
    };
    let mut groups: Vec<Vec<GradientTask>> = (1..config.layers)
        .rev()
        .map(of_layer)
        .map(|(mut tasks, sums)| {
            tasks.extend(sums);
            tasks
        })
        .collect();
    // The last group: the projections, layer 0, the tables of position embeddings and class tokens if they are trained,
    // and the classifier of "mislabelled".
    let mut tasks = projection_tasks(network);
    let (first_tasks, mut sums) = of_layer(0);
    tasks.extend(first_tasks);
    let trained =
        |name: &str| network.layout().tensors().iter().any(|t| t.name == name && t.role == Role::Trained);
    let width = config.width;
    for (name, start, option) in
        [("positions", places.positions, TOKENS_OF_CLASS), ("class_tokens", places.class_tokens, CLASS_TOKEN)]
    {
        for label in (0..config.classes as i32).filter(|_| trained(name)) {
            let start = start + label * width as i32;
            let task = GradientTask {
                left: activations.d_states.address(),
                option,
                label,
                start,
                ..Default::default()
            };
            add_sums(task, width, &mut sums);
        }
    }
    for first in (0..config.dim).step_by(SUM_COLUMNS) {
        sums.push(GradientTask {
            kind: Kind::MislabelledWeight as i32,
            first_output: first as i32,
            start: places.mislabelled,
            ..Default::default()
        });
    }
    sums.push(GradientTask {
        kind: Kind::MislabelledBias as i32,
        start: places.mislabelled_bias,
        ..Default::default()
    });
    tasks.extend(sums);
    groups.push(tasks);
    groups
}

/// The product tasks of the projections. If they are tied, one tensor gets the gradients of both.
fn projection_tasks(network: &Tranfs) -> Vec<GradientTask> {
    let places = ParameterPlaces::new(network);
    let Config { dim, width, tied, .. } = *network.config();
    let tensors: &[(i32, i32)] = if tied {
        &[(places.down, ITEMS | PROTOTYPES)]
    } else {
        &[(places.down, ITEMS), (places.up, PROTOTYPES)]
    };
    let mut tasks = Vec::new();
    for &(start, option) in tensors {
        let task = GradientTask { kind: Kind::Projection as i32, start, option, ..Default::default() };
        add_tiles(task, dim, width, &mut tasks);
    }
    tasks
}

/// Adds one task per tile of a weight `[inputs, outputs]`.
fn add_tiles(task: GradientTask, inputs: usize, outputs: usize, tasks: &mut Vec<GradientTask>) {
    for first_input in (0..inputs).step_by(TILE) {
        for first_output in (0..outputs).step_by(TILE) {
            tasks.push(GradientTask {
                inputs: inputs as i32,
                outputs: outputs as i32,
                first_input: first_input as i32,
                first_output: first_output as i32,
                ..task
            });
        }
    }
}

/// Adds one sum task per 32 of `outputs` columns.
fn add_sums(task: GradientTask, outputs: usize, tasks: &mut Vec<GradientTask>) {
    for first in (0..outputs).step_by(SUM_COLUMNS) {
        tasks.push(GradientTask {
            kind: Kind::ColumnSums as i32,
            outputs: outputs as i32,
            first_output: first as i32,
            ..task
        });
    }
}

/// Adds the tasks of a layer: those of its four weights to `tiles`, those of biases and norms to `sums`.
fn layer_tasks(
    config: &Config,
    places: &ParameterPlaces,
    activations: &Activations,
    layer: usize,
    tiles: &mut Vec<GradientTask>,
    sums: &mut Vec<GradientTask>,
) {
    let Config { width, feed_forward: hidden, .. } = *config;
    let a = activations;
    let tokens = a.tokens;
    let start = places.layer + layer as i32 * places.layer_len;
    // The inputs of the four linear layers, the normalised values of the two norms, and the gradients of all their
    // outputs.
    let states = a.states.at(layer * tokens * width).address();
    let middle = a.middle.at(layer * tokens * width).address();
    let attended = a.attended.at(layer * tokens * width).address();
    let units = a.hidden_units.at(layer * tokens * hidden).address();
    let normalised = |norm: usize| a.normalised.at((2 * layer + norm) * tokens * width).address();
    let d_qkv = a.d_qkv.at(layer * tokens * 3 * width).address();
    let d_attention_out = a.d_attention_out.at(layer * tokens * width).address();
    let d_hidden = a.d_hidden.at(layer * tokens * hidden).address();
    let d_out = a.d_out.at(layer * tokens * width).address();
    let d_middle = a.d_middle.at(layer * tokens * width).address();
    let d_states = a.d_states.at((layer + 1) * tokens * width).address();
    // Per linear layer: inputs, gradients of the outputs, numbers of both, and the position of the bias.
    let linears = [
        (states, d_qkv, width, 3 * width, places.qkv_bias),
        (attended, d_attention_out, width, width, places.attended_bias),
        (middle, d_hidden, width, hidden, places.hidden_bias),
        (units, d_out, hidden, width, places.out_bias),
    ];
    for (left, right, inputs, outputs, bias) in linears {
        // A weight ends where its bias starts.
        let weight = start + bias - (inputs * outputs) as i32;
        let task = GradientTask {
            kind: Kind::LayerProduct as i32,
            left,
            right,
            start: weight,
            ..Default::default()
        };
        add_tiles(task, inputs, outputs, tiles);
        add_sums(GradientTask { left: right, start: start + bias, ..Default::default() }, outputs, sums);
    }
    for (norm, d_y, scale) in [(0, d_middle, places.norm1), (1, d_states, places.norm2)] {
        let scale = start + scale;
        let task = GradientTask { left: d_y, right: normalised(norm), start: scale, ..Default::default() };
        add_sums(task, width, sums);
        // The shift follows the scale.
        add_sums(GradientTask { left: d_y, start: scale + width as i32, ..Default::default() }, width, sums);
    }
}
