//! The buffers of a training run of TraNFS ([`Activations`]), the shared memory of its kernels ([`SharedMemory`]), and
//! the argument of the kernels that points to the buffers ([`TranfsArgument`], `struct Tranfs` in `kernels/tranfs.cu`,
//! which documents shapes and meanings).
//!
//! A token is a row of the transformer: one class token per class of an episode, and one token per support item. D is
//! the dimension of the features (`dim`), `width` that of a token. Thread blocks work on chunks of the D columns. `qkv`
//! are queries, keys and values of a layer, and a map is the matrix of the attention weights of one head in one
//! episode. `d_` marks a gradient. A word has 4 bytes: an f32, an i32 or a u32.

use bytemuck::{Pod, Zeroable};
use trueshot_nn::tranfs::{ClassTokens, CleanLoss, Config};

use super::input::{InputLayout, Limits, map_len};
use super::tasks::{PackedPlaces, ParameterPlaces};
use crate::conv4::STEP_SLOTS;
use crate::driver::{Buffer, Device};
use crate::error::Result;

/// Columns of D that a thread block handles (`CHUNK` in `kernels/linear.cu`).
pub(super) const CHUNK: usize = 128;
/// Tokens of a thread block of `tranfs_layer` (`ROWS` in `kernels/tranfs.cu`).
pub(super) const ROWS: usize = 8;
/// Classes that `tranfs_prototypes` handles at once (`PROTOTYPE_ROWS` in `kernels/tranfs_losses.cu`).
const PROTOTYPE_ROWS: usize = 8;
/// Words of shared memory that the losses need for episodes of any size (`LOSS_SCRATCH` in `kernels/tranfs_losses.cu`):
/// one sum per class and column for 8 classes, a chunk of columns, and three groups of threads.
const LOSS_SCRATCH: usize = 3 * 8 * CHUNK;
/// Columns of D that a thread block of `tranfs_project` handles (`PROJECTED_COLUMNS` in `kernels/tranfs.cu`).
const PROJECTED_COLUMNS: usize = 320;
/// Words of `GradientMemory` in `kernels/tranfs_update.cu`: 3 stages of two tiles of 32 rows with a pitch of 72, two
/// tables of 512 addresses of 2 words, 64 columns of a direction, 256 partial sums, and 256 sums of squares of 2 words.
const GRADIENT_MEMORY: usize = 3 * 2 * 32 * 72 + 4 * 512 + 64 + 256 + 2 * 256;
/// Words of shared memory that a thread block may have on every supported GPU: 99 KiB, which are 99 times 256 words.
pub(super) const SHARED_WORDS: usize = 99 * 256;

/// The first fields of `struct Tranfs`: sizes of the network, and the largest sizes of a step.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct Sizes {
    dim: i32,
    width: i32,
    heads: i32,
    /// Hidden units of the feed-forward network.
    hidden: i32,
    layers: i32,
    /// The most classes of an episode.
    classes: i32,
    /// Chunks of [`CHUNK`] columns of D.
    pub chunks: i32,
    /// Chunks of [`PROJECTED_COLUMNS`] columns of D.
    pub projections: i32,
    /// 1 if class tokens are means of the projected items, otherwise 0.
    class_mean: i32,
    /// 1 if the clean loss is minus the cosine, 0 if it is the squared distance.
    cosine: i32,
    /// Words of the rows of a thread block of `tranfs_layer_large` and `tranfs_layer_back_large`.
    row_len: i32,
    /// The most tokens of an episode.
    most_tokens: i32,
    // From here to `queries`: the most items, classes, tokens and queries of a step, of all its episodes together.
    items: i32,
    pub class_capacity: i32,
    tokens: i32,
    queries: i32,
    /// The most attention weights of a step in one layer.
    maps: i32,
    /// Rows of the data set on the device.
    feature_rows: i32,
}

/// Factors of dropout, attention and the losses, as `struct Tranfs` has them.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct Factors {
    /// The probability of dropout times 2^31: random numbers of 31 bits below it drop.
    dropout_threshold: u32,
    /// One over the probability of keeping a number.
    dropout_scale: f32,
    /// One over the square root of the width of a head.
    attention_scale: f32,
    clean_weight: f32,
    mislabelled_weight: f32,
}

/// The argument of the kernels. The order of the fields is that of `struct Tranfs`.
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct TranfsArgument {
    pub sizes: Sizes,
    pub input: InputLayout,
    pub factors: Factors,
    pub places: ParameterPlaces,
    pub packed: PackedPlaces,
    // Addresses of buffers.
    pub inputs: u64,
    pub current: u64,
    pub features: u64,
    pub extra: u64,
    pub parameters: u64,
    pub packed_weights: u64,
    pub activations: [u64; ACTIVATIONS],
    pub state: u64,
}

/// The number of buffers of [`Activations`].
const ACTIVATIONS: usize = 39;

/// What a run keeps on the device between steps (`struct TranfsState` in `kernels/tranfs.cu`).
#[repr(C)]
#[derive(Debug, Clone, Copy, Pod, Zeroable)]
pub(super) struct TranfsState {
    /// Finished steps.
    pub step: u32,
    /// 1 after a loss that was not finite: nothing is updated until the host writes a new state.
    pub failed: u32,
    /// Factors of the update and of the loss in the current step: `keep`, `rate`, `second_scale` and `scale`.
    pub factors: [f32; 4],
    /// The number of the step whose losses were computed last, in training together with a backbone.
    pub evaluated: u32,
}

/// Activations, their gradients, and partial sums; shapes are in `kernels/tranfs.cu`.
pub(super) struct Activations {
    /// The most tokens of a step, for which the buffers have space.
    pub tokens: usize,
    projected: Buffer<f32>,
    directions: Buffer<f32>,
    direction: Buffer<f32>,
    pub states: Buffer<f32>,
    qkv: Buffer<f32>,
    maps: Buffer<f32>,
    pub attended: Buffer<f32>,
    pub middle: Buffer<f32>,
    pub hidden_units: Buffer<f32>,
    pub normalised: Buffer<f32>,
    inverse_std: Buffer<f32>,
    pub d_states: Buffer<f32>,
    pub d_middle: Buffer<f32>,
    pub d_qkv: Buffer<f32>,
    pub d_attention_out: Buffer<f32>,
    pub d_hidden: Buffer<f32>,
    pub d_out: Buffer<f32>,
    d_half: Buffer<f32>,
    d_attended: Buffer<f32>,
    d_maps: Buffer<f32>,
    d_means: Buffer<f32>,
    rows: Buffer<f32>,
    d_projected: Buffer<f32>,
    d_logits: Buffer<f32>,
    item_losses: Buffer<f32>,
    d_direction: Buffer<f32>,
    prototypes: Buffer<f32>,
    d_prototypes: Buffer<f32>,
    clean_means: Buffer<f32>,
    /// The numbers of correctly labelled items. The kernels store 32-bit integers here.
    clean_counts: Buffer<f32>,
    partial_products: Buffer<f32>,
    class_sums: Buffer<f32>,
    class_factors: Buffer<f32>,
    d_query_logits: Buffer<f32>,
    query_losses: Buffer<f32>,
    class_losses: Buffer<f32>,
    d_class_states: Buffer<f32>,
    losses: Buffer<f32>,
    /// `[STEP_SLOTS][3]`
    pub step_losses: Buffer<f32>,
}

impl Activations {
    /// Buffers for steps of at most these sizes.
    pub fn new(device: &Device, config: &Config, limits: Limits, shared: &SharedMemory) -> Result<Self> {
        let Config { dim, width, feed_forward: hidden, layers, heads, classes, .. } = *config;
        let Limits { episodes, support, queries } = limits;
        // Of all episodes of a step.
        let (items, all_classes, queries) = (episodes * support, episodes * classes, episodes * queries);
        let (tokens, chunks) = (items + all_classes, dim.div_ceil(CHUNK));
        // Thread blocks of `tranfs_layer`.
        let blocks = episodes * (support + classes).div_ceil(ROWS);
        let zeros = |len: usize| device.zeros::<f32>(len);
        Ok(Activations {
            tokens,
            projected: zeros(dim.div_ceil(PROJECTED_COLUMNS) * items * width)?,
            directions: zeros(chunks * width)?,
            direction: zeros(width)?,
            states: zeros((layers + 1) * tokens * width)?,
            qkv: zeros(layers * tokens * 3 * width)?,
            maps: zeros(layers * episodes * heads * map_len(support + classes))?,
            attended: zeros(layers * tokens * width)?,
            middle: zeros(layers * tokens * width)?,
            hidden_units: zeros(layers * tokens * hidden)?,
            normalised: zeros(layers * 2 * tokens * width)?,
            inverse_std: zeros(layers * 2 * tokens)?,
            d_states: zeros((layers + 1) * tokens * width)?,
            d_middle: zeros(layers * tokens * width)?,
            d_qkv: zeros(layers * tokens * 3 * width)?,
            d_attention_out: zeros(layers * tokens * width)?,
            d_hidden: zeros(layers * tokens * hidden)?,
            d_out: zeros(layers * tokens * width)?,
            d_half: zeros(tokens * width)?,
            d_attended: zeros(tokens * width)?,
            d_maps: zeros(episodes * heads * map_len(support + classes))?,
            d_means: zeros(tokens * heads)?,
            rows: zeros(if shared.rows.fits && shared.rows_back.fits { 0 } else { blocks * shared.row_len })?,
            d_projected: zeros(items * width)?,
            d_logits: zeros(items)?,
            item_losses: zeros(items)?,
            d_direction: zeros(episodes * width)?,
            prototypes: zeros(all_classes * dim)?,
            d_prototypes: zeros(all_classes * dim)?,
            clean_means: zeros(all_classes * dim)?,
            clean_counts: zeros(all_classes)?,
            partial_products: zeros(chunks * queries * classes)?,
            class_sums: zeros(chunks * all_classes * 4)?,
            class_factors: zeros(chunks * all_classes * 4)?,
            d_query_logits: zeros(chunks * queries * classes)?,
            query_losses: zeros(queries)?,
            class_losses: zeros(all_classes)?,
            d_class_states: zeros(chunks * all_classes * width)?,
            losses: zeros(episodes * 3)?,
            step_losses: zeros(STEP_SLOTS * 3)?,
        })
    }

    /// The addresses in the order of `struct Tranfs`.
    pub fn addresses(&self) -> [u64; ACTIVATIONS] {
        [
            &self.projected,
            &self.directions,
            &self.direction,
            &self.states,
            &self.qkv,
            &self.maps,
            &self.attended,
            &self.middle,
            &self.hidden_units,
            &self.normalised,
            &self.inverse_std,
            &self.d_states,
            &self.d_middle,
            &self.d_qkv,
            &self.d_attention_out,
            &self.d_hidden,
            &self.d_out,
            &self.d_half,
            &self.d_attended,
            &self.d_maps,
            &self.d_means,
            &self.rows,
            &self.d_projected,
            &self.d_logits,
            &self.item_losses,
            &self.d_direction,
            &self.prototypes,
            &self.d_prototypes,
            &self.clean_means,
            &self.clean_counts,
            &self.partial_products,
            &self.class_sums,
            &self.class_factors,
            &self.d_query_logits,
            &self.query_losses,
            &self.class_losses,
            &self.d_class_states,
            &self.losses,
            &self.step_losses,
        ]
        .map(Buffer::address)
    }
}

/// The shared memory that each kernel needs. If a thread block cannot have that much, a variant of the kernel works in
/// global memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct SharedMemory {
    /// Words of the rows of a thread block of `tranfs_layer` or `tranfs_layer_back`, for the variants in global memory.
    pub row_len: usize,
    /// Of `tranfs_layer`.
    pub rows: KernelMemory,
    /// Of `tranfs_layer_back`.
    pub rows_back: KernelMemory,
    /// Of `tranfs_attend`.
    pub attention: KernelMemory,
    /// Of `tranfs_attend_back`.
    pub attention_back: KernelMemory,
    /// Of `tranfs_losses`.
    pub losses: KernelMemory,
    /// Bytes of `tranfs_project`.
    pub project: usize,
    /// Bytes of `tranfs_prototypes`.
    pub prototypes: usize,
    /// Bytes of `tranfs_gradients`.
    pub gradients: usize,
}

/// The shared memory of a kernel that has a variant for sizes that do not fit.
#[derive(Debug, Clone, Copy)]
pub(super) struct KernelMemory {
    /// Whether the usual kernel can be launched; otherwise its variant.
    pub fits: bool,
    /// Bytes of shared memory of the kernel to launch.
    pub bytes: usize,
}

impl KernelMemory {
    /// Memory for `words` words if they fit; otherwise for `variant_words`, which the variant needs.
    fn new(words: usize, variant_words: usize) -> Self {
        let fits = words <= SHARED_WORDS;
        KernelMemory { fits, bytes: 4 * if fits { words } else { variant_words } }
    }
}

/// Words from one row of `width` numbers to the next (`pitch_of` in `kernels/linear.cu`): rounded up to whole matrix
/// instructions, and padded against bank conflicts.
pub(super) fn pitch_of(width: usize) -> usize {
    width.next_multiple_of(16) + 4
}

impl SharedMemory {
    /// The shared memory for a network and steps of at most these sizes. Every term is an array in the memory of the
    /// kernel.
    pub fn new(config: &Config, limits: Limits) -> Self {
        let Config { width, heads, feed_forward: hidden, .. } = *config;
        let tokens = limits.support + config.classes;
        let [pitch, unit_pitch, qkv_pitch] = [width, hidden, 3 * width].map(pitch_of);
        let widest = pitch.max(unit_pitch);
        // Rows of three arrays, and the biases and norms of a layer.
        let forward = ROWS * (pitch + 2 * widest) + 6 * width + hidden;
        // Rows of seven arrays (`struct TokenRows` in `kernels/tranfs.cu`), and the scales of two norms.
        let backward = ROWS * (4 * pitch + qkv_pitch + widest + unit_pitch) + 2 * width;
        // Queries, keys or values of one head, and its attention weights. Odd pitches (`| 1`) avoid bank conflicts.
        // Forward: three copies of the head and one map; backward: five copies, two maps and one number per token.
        let (head, map) = (tokens * ((width / heads) | 1), tokens * (tokens | 1));
        // What the losses keep of an episode: per query the gradients of its logits and an address (2 words), per class
        // four factors, and up to 2 words to align the addresses.
        let queries = limits.queries * (config.classes + 2) + 4 * config.classes + 2;
        SharedMemory {
            row_len: forward.max(backward).next_multiple_of(4),
            rows: KernelMemory::new(forward, 0),
            rows_back: KernelMemory::new(backward, 0),
            attention: KernelMemory::new(3 * head + map, 0),
            attention_back: KernelMemory::new(5 * head + 2 * map + tokens, 0),
            losses: KernelMemory::new(LOSS_SCRATCH + queries, LOSS_SCRATCH),
            project: 4 * ROWS * pitch_of(PROJECTED_COLUMNS),
            prototypes: 4 * PROTOTYPE_ROWS * (CHUNK + 4 + pitch),
            gradients: 4 * GRADIENT_MEMORY,
        }
    }
}

impl Sizes {
    /// The sizes for a network, steps of at most `limits`, and a data set of `feature_rows` rows.
    pub fn new(config: &Config, limits: Limits, shared: &SharedMemory, feature_rows: usize) -> Self {
        let Limits { episodes, support, queries } = limits;
        let size = |value: usize| i32::try_from(value).expect("sizes are below 2^31");
        let most_tokens = support + config.classes;
        Sizes {
            dim: size(config.dim),
            width: size(config.width),
            heads: size(config.heads),
            hidden: size(config.feed_forward),
            layers: size(config.layers),
            classes: size(config.classes),
            chunks: size(config.dim.div_ceil(CHUNK)),
            projections: size(config.dim.div_ceil(PROJECTED_COLUMNS)),
            class_mean: i32::from(config.class_tokens == ClassTokens::ClassMean),
            cosine: i32::from(config.clean_loss == CleanLoss::NegativeCosine),
            row_len: size(shared.row_len),
            most_tokens: size(most_tokens),
            items: size(episodes * support),
            class_capacity: size(episodes * config.classes),
            tokens: size(episodes * most_tokens),
            queries: size(episodes * queries),
            maps: size(episodes * config.heads * map_len(most_tokens)),
            feature_rows: size(feature_rows),
        }
    }
}

impl Factors {
    /// The factors of a network.
    pub fn new(config: &Config) -> Self {
        Factors {
            dropout_threshold: (config.dropout * (1u64 << 31) as f64) as u32,
            dropout_scale: (1.0 / (1.0 - config.dropout)) as f32,
            attention_scale: (1.0 / ((config.width / config.heads) as f64).sqrt()) as f32,
            clean_weight: config.clean_weight as f32,
            mislabelled_weight: config.mislabelled_weight as f32,
        }
    }
}
