// What the kernels of the Relabel head share: the input of a step, sizes and buffers (`struct Relabel`), and functions
// of a thread block: products of rows with a weight, copies, layer norm. relabel.cu lists the kernels of a step in
// order; crates/nn/src/relabel is the same network on the CPU, with the formulas.
//
// Relabel reads an episode: a support set, whose labels may be wrong ("given labels"), and queries. It estimates the
// true class of every support item ("item"). It has a "state" per item i and class c, a vector of W numbers, and a
// "pair" (i, j) per item i and item j, also for i = j. Features of the pairs (distances, cosines, ranks, whether the
// given labels agree) come from the inner products of the items. The edge network turns them into attention logits;
// layers of attention between items and of mixing within items and classes update the states; from each state, the
// network reads three outputs, from which the posterior over the classes of an item, the weights of the items in the
// prototypes, and the losses follow. The item view, which a head for one backbone has in addition, is a projection of
// the item's own features.
//
// M items, C classes, Q queries of an episode, D numbers in a row of features; W width, H heads, L layers, U hidden
// units of mixing, V width of the item view, E hidden units of the edge network. An episode has M C states (all classes
// of item 0, then of item 1, ..) and M M pairs. Items, states and class rows (one per class) of all episodes of a step
// are rows of one matrix each. What belongs to pairs is grouped by episode: features [episode][6][M][M], attention
// weights [episode][layer][head][M][M].
//
// A tile is a few items of one episode with all their states, at most 40 states (TILE_STATES in
// src/relabel/memory/network_plan.rs; an item of more classes is a tile of its own), which is the work of one thread
// block with RELABEL_THREADS threads. Its states are in shared memory. The layers exchange values between tiles in two
// places (attention; the means of classes), so each layer has two kernels forward and two backward.
//
// Matrix products are computed by mma_tf32 (common.cuh), 16 rows x 8 columns at a time, so rows and columns are rounded
// up to 16 in memory; in names such as row_tiles, m_tiles and n_tiles, a tile is such a group of rows or columns. d_x
// is the gradient of the loss with respect to x, and slopes are derivatives of GELU.
//
// Arithmetic is f32; products with weights, attention and the edge network round their inputs to TF32 or split them
// into two TF32 numbers (`mma_tf32` in common.cuh, which also explains lane, group and quad). Every sum has a fixed
// order, so runs repeat to the bit.
#pragma once
#include "common.cuh"

namespace relabel {

#ifndef EMULATOR
// 2^value and 1 / value by the approximate instructions of the GPU, with errors in the last bits.
DEVICE float fast_exp2(float value) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
DEVICE float fast_inverse(float value) {
  float result;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}
// The bits of a float.
DEVICE u32 bits_of(float value) { return __float_as_uint(value); }
#else
DEVICE float fast_exp2(float value) { return exp2f(value); }
DEVICE float fast_inverse(float value) { return 1.f / value; }
DEVICE u32 bits_of(float value) {
  u32 bits;
  memcpy(&bits, &value, 4);
  return bits;
}
#endif

// Threads of the kernels that work on tiles or episodes: the most that a block can have, because the shared memory of a
// multiprocessor holds only one tile.
#define RELABEL_THREADS 1024
#define RELABEL_WARPS 32  // of such a block
// The most items of a tile that memory is reserved for. With two classes, 40 states are 20 items.
#define TILE_ITEMS 32
#define EDGE_FEATURES 5  // features of a pair that follow from embeddings (`pair_features` in relabel_edges.cu)
#define PAIR_FEATURES 6  // these, and whether the given labels are the same
#define STATE_FEATURES 19  // features of a state (`state_features` in relabel_edges.cu)
#define OUTPUTS 3  // of a state: logit of its class, logarithm of its multiplier, vote for "none of the classes"

// ---- The input of a step
// A slot holds a header and, at the offsets of StepLayout, one array per part. src/relabel/input.rs writes it; the
// structs have the same fields there. The current slot is step % STEP_SLOTS (common.cuh).
struct Header {
  u32 episodes, tiles;                        // of this step
  float rate;                                 // learning rate
  u32 items, states, class_rows, padding[2];  // sums over the episodes
};
// One episode: its sizes, and where its rows and numbers begin among those of the step.
struct Episode {
  int classes, items, queries;  // C, M, Q
  // Rows, pairs (of M M each), class rows.
  int first_item, first_state, first_pair, first_class, first_query;
  int first_row;                // in the list of rows of features: the items, then the queries
  int first_product;            // in the inner products [M][Q]
  int first_scratch;            // in the memory of the losses
  int first_tile, tiles;        // its tiles
  int dim;                      // D: numbers of a row of features
  // The number of items before this episode in its dropout batch: the episodes that share a dropout mask, in which this
  // is the first item's number.
  int batch_item;
  u32 seed_low, seed_high;      // of dropout
  int first_weight;             // in the weights of rows, see Joint
};
// `count` items of an episode, from `first` on. The tile has a copy of the episode, so that a block needs one load.
struct alignas(16) Tile {
  Episode e;
  int first, count;
};
// A row of features, possibly blended with another one: own + share (other - own). own, other: addresses of [dim] f32.
struct Row {
  u64 own, other;
  float share;
  u32 padding;
};
// Where the parts of a slot begin, in words of 32 bits.
struct StepLayout {
  u32 slot_len;  // words of a slot
  // Episode, Tile, [items] given labels, [items] true classes (C: none), [queries] classes, [class rows] items per
  // given label, Row.
  u32 episodes, tiles, given, truths, query_classes, counts, rows;
};
// What a run keeps on the device between steps.
struct State {
  u32 step, updates;     // finished steps; updates, which are fewer if losses were not finite
  u64 finished_blocks;   // blocks of the update kernel that have finished in this step
  float corrections[2];  // AdamW's corrections of the two moments in the current step
};

// Offsets of the weights of a layer in the packed weights, in floats: of attention (query, key, value, out), of mixing
// (state, item, of_class: the parts of the hidden layer that read the state, its item's pools and its class's mean;
// mixed: its output).
struct PackedLayer {
  int query, key, value, out, state, item, of_class, mixed;
};

// Offsets in the shared memory of a tile, in floats. R, T and K are the numbers of states, items and classes of a tile,
// rounded up to 16. Rows of width w are pitch_of(w) floats apart. The names say what a buffer usually holds; the
// kernels of relabel_layers.cu use most of them for several things, one after the other.
struct SharedLayout {
  int states, normed, values;  // [R][W]
  int hidden;                  // [R][max(W, U)]
  int items[3];                // [T][max(2 W, U, V)] twice, [T][max(W, V)]
  int classes, of_classes;     // [K][W], [K][U]
  int extra;                   // features of states, attention of the tile
  int len;
};

// The argument of all kernels: sizes, offsets and addresses (`DeviceRelabel` in src/relabel/memory.rs has the same
// fields).
struct Relabel {
  // W, L, H, U, hidden units of the edge network, V, D of the item view, floats per row of view_rows.
  int width, layers, heads, hidden, edge_hidden, view_width, view_dim, view_pitch;
  int view_target;  // 0: no item view; 1: it enters the states; 2: it enters the logit of "none of the classes"
  int centred;  // 1: items and queries are centred on the items' mean and scaled to unit length
  int padded;  // 1 if a size is not a multiple of 16, or the width of a head not of 8
  // Of the posterior and the losses (relabel_losses.cu); 1 / sqrt(W / H); 1 / (1 - dropout rate); 2^31 times this rate.
  float floor, items_weight, queries_weight, attention_scale, dropout_scale;
  u32 dropout_threshold;
  // Rows per layer of the buffers: the most that a step may have. max_class_sums: floats of `class_sums` per tile.
  int max_items, max_states, max_class_rows, max_class_sums;
  // Offsets of parameters; those in the second line, up to class_bias, are relative to the start of a layer.
  int edges, view_mean, view_norm, view_bias, view_out, features_bias, start_bias, layer, layer_len;
  int attention_norm, query_bias, mixing_norm, class_bias, out_norm, out, prior, log_scale;
  // Offsets of packed weights, in floats; _back: transposed, for the backward pass. packed_layer_len: floats of a
  // layer.
  int packed_features, packed_start, packed_start_back, packed_view, packed_item, packed_item_back, packed_layer_len;
  PackedLayer forward, backward;
  // Offsets in the partial gradients of a tile: edge network, then scale and shift of every layer norm. partial_len:
  // floats per tile.
  int partial_len, partial_layer, partial_layer_len, partial_out_norm, partial_view_norm;
  SharedLayout shared;
  StepLayout layout;
  int scratch_len;  // floats of shared memory for the losses; 0: global memory
  int gram_len;     // floats of shared memory for the features; 0: global memory

  // [STEP_SLOTS][slot_len]; state; parameters; packed weights.
  const u32* slots;
  State* state;
  const float* parameters;
  const uint4* packed;  // 4 floats each: offsets in floats are divided by 4
  // Inner products of items [pairs], of items and queries [M Q], squared lengths of queries [queries]; features of
  // pairs [6][pairs] and of states [states][19].
  float *gram, *products, *squares, *pair_features, *state_features;
  // [layers H][pairs], per episode [layer][head][M][M]: attention logits of the edge network, which the attention
  // weights replace; gradients of the logits.
  float *attention, *d_attention;
  // [2 layers + 1][states][W]: states before attention of layer 0, before mixing of layer 0, .., after the last layer;
  // these after layer norm; gradients of the states.
  float *states, *normed, *d_states;
  // Of attention, per layer: inputs of queries and keys [items][2 W]; queries [items][W], keys [items][W], values
  // [states][W], attended values [states][W]. Of mixing: mean and maximum over the classes [items][2 W].
  float *pooled, *queries, *keys, *values, *attended, *pools;
  int* argmax;  // [layers][items][W]: the classes of these maxima
  // Of mixing, per layer: means of each class [class rows][W], slopes of GELU [states][U], values after GELU
  // [states][U].
  float *class_means, *hidden_slopes, *activated;
  // Gradients per layer: of mixing's hidden units before GELU [states][U], their sums per item [items][U] and per class
  // [class rows][U]; of queries [items][W], keys [items][W], values [states][W].
  float *d_hidden, *d_of_items, *d_of_classes, *d_queries, *d_keys, *d_values;
  // Sums of each class over the items of a tile [tiles][max_class_sums]; gradients of one layer: of the states after
  // layer norm [states][W], of attended values [states][W].
  float *class_sums, *d_normed, *d_attended;
  // Of the input layer, each [states][W]: slopes and values of GELU, gradient before GELU.
  float *start_slopes, *start_activated, *d_start;
  // Of the item view: h, the items minus the mean of all features at unit length, after dropout [items][view_pitch];
  // projected and normalised [items][V]; slopes and values of GELU and gradient before it [items][W]; gradient of the
  // projection [items][V].
  float *view_rows, *projected, *view, *view_slopes, *view_activated, *d_view_hidden, *d_projected;
  // What the item view adds to the logit of "none" [items], its gradient; outputs of the states [states][3], their
  // gradients.
  float *outlier, *d_outlier, *logits, *d_logits;
  // Memory of the losses; [episodes][4], gradients of prior and log_scale; [episodes][2], losses of items and queries;
  // [tiles][partial_len], partial gradients.
  float *scratch, *d_prior, *losses, *partials;
};

// Buffers of training together with a backbone, which needs the gradient of the features. N = M + Q rows of an episode,
// D columns; rows of all episodes are consecutive. relabel_joint.cu and relabel_feature_gradient.cu use it.
struct Joint {
  const float* features;  // [rows][D], which the backbone writes
  float* d_features;  // [rows][D]: gradient of the mean loss over the episodes
  // One over the lengths: of items [items] and queries [queries] centred at the items' mean, where the head is centred
  // (`centre` in relabel_edges.cu); per episode of the items that edge features compare, centred [M], then as they are
  // [M].
  float *space_scales, *query_scales, *edge_scales;
  // [episodes][4]: 1 / mean distance (0: not comparable), mean of the cosines, 1 / their standard deviation, 1 if that
  // is above its bound, else 0.
  float* edge_statistics;
  // Per episode, at first_scratch: weights of the prototypes [C][M], gradients of the distances of queries to them
  // [C][Q].
  float* of_losses;
  // [class rows]: sums of those gradients over the queries.
  float* class_totals;
  // Gradients: of edge features 0, 1 and 4 [3][pairs] through the edge network, of the state features that depend on
  // them [states][9].
  float *d_pair_features, *d_state_features;
  // Gradients through the queries: of the gram matrix plus its transpose [pairs], of products [M Q], of the squared
  // lengths of queries [queries] and of their products with the items' mean [queries].
  float *d_gram, *d_products, *d_squares, *d_query_means;
  // What queries add to the gradient of centring: of the logarithms of the items' scales [items], of the products of
  // items with their mean [items], of the squared length of the mean [episodes].
  float *d_log_scales, *d_with_mean, *d_mean_square;
  // Of the item view, [items]: one over the length (0: no direction), and what the mean of all features is multiplied
  // by.
  float *view_scales, *view_offsets;
  // Weights of rows: the gradient of row n is the sum over all rows k of its episode of weight(n, k) row(k), and what
  // the item view adds. Per episode, at first_weight, [N / 16][N / 8] tiles in the order of mma_tf32's first operand,
  // see `row_weight_position` in relabel_joint.cu.
  float* row_weights;
  // Memory for gradients [4][pairs] that do not fit into shared memory.
  float* pair_scratch;
  int dim;
  int state_weights, view_weights;  // offsets of parameters: input layer [19][W], item view's projection [D][V]
  int pair_len;  // floats of shared memory for gradients of pairs; 0: global memory
};

// ---- The current step: its slot, header and episodes.
DEVICE const u32* slot(const Relabel& r) { return r.slots + (long)(r.state->step % STEP_SLOTS) * r.layout.slot_len; }
DEVICE const Header* header(const Relabel& r) { return (const Header*)slot(r); }
DEVICE Episode episode(const Relabel& r, int index) { return ((const Episode*)(slot(r) + r.layout.episodes))[index]; }

// The tile of a thread block.
struct Block {
  Episode e;
  // Its first item in the episode; its items and states; states, items and classes in groups of 16 (rounded up), the
  // rows of a matrix instruction; its number.
  int first, count, rows, row_tiles, item_tiles, class_tiles, tile;
  Divider by_classes;  // state / C = item
  long item, state;    // rows of the tile's first item and state among those of the step
  const int* labels;   // the given labels of the tile's items; valid after the first barrier
  const int* counts;   // [C]: items per given label in the episode
  float* shared;       // its dynamic shared memory
};

// Makes tile number `index` of the step the tile of this block; false if the step has fewer tiles. May contain a
// barrier.
DEVICE bool open_tile(const Relabel& r, const u32* input, int index, Block& b) {
  SHARED int labels[TILE_ITEMS];
  b.tile = index;
  const Tile tile = ((const Tile*)(input + r.layout.tiles))[index];
  if (index >= (int)((const Header*)input)->tiles) return false;
  b.e = tile.e;
  b.first = tile.first;
  b.count = tile.count;
  b.rows = tile.count * b.e.classes;
  b.row_tiles = (b.rows + 15) >> 4;
  b.item_tiles = (b.count + 15) >> 4;
  b.class_tiles = (b.e.classes + 15) >> 4;
  // ceil(2^32 / C) as multiplier: exact for numbers below 2^16, as states of a tile are.
  b.by_classes = {(u32)b.e.classes, 0xffffffffu / (u32)b.e.classes + 1, 0};
  b.item = b.e.first_item + tile.first;
  b.state = b.e.first_state + tile.first * b.e.classes;
  b.labels = labels;
  b.counts = (const int*)(input + r.layout.counts) + b.e.first_class;
  b.shared = (float*)dynamic_shared;
  if ((int)threadIdx.x < b.count) labels[threadIdx.x] = ((const int*)(input + r.layout.given))[b.item + threadIdx.x];
  // Columns beyond a size are multiplied by zero weights, so they must be finite: memory is cleared. Rows beyond a size
  // need not be: they only enter rows of the result that nothing reads.
  if (r.padded) {
#pragma unroll 1
    for (int i = threadIdx.x; i < r.shared.len; i += (int)blockDim.x) b.shared[i] = 0.f;
    __syncthreads();
  }
  return true;
}

// Floats from one row of attention weights of `items` items to the next in shared memory: no bank conflicts in the
// accesses of `weighted_sums`. The floats after the last weight of a row are 0.
DEVICE int weight_pitch_of(int items) { return ((items + 7) & ~7) + 4; }
// Floats from one row of `width` to the next in shared memory: no bank conflicts in the accesses of `multiply`.
DEVICE int pitch_of(int width) { return ((width + 15) & ~15) + 8; }

// Sum and maximum over the 32 lanes of a warp, the same in each.
SEPARATE float warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance; distance >>= 1) value += __shfl_xor_sync(FULL_WARP, value, distance);
  return value;
}
SEPARATE float warp_max(float value) {
#pragma unroll
  for (int distance = 16; distance; distance >>= 1) value = fmaxf(value, __shfl_xor_sync(FULL_WARP, value, distance));
  return value;
}
// Three sums at once.
struct Three {
  float x, y, z;
};
// The sums over all threads of a block of RELABEL_THREADS, the same for all of them, in a fixed order. Contains
// barriers.
SEPARATE Three block_sums(Three values) {
  SHARED float sums[3][RELABEL_WARPS];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll 1
  for (int distance = 16; distance; distance >>= 1) {
    values.x += __shfl_xor_sync(FULL_WARP, values.x, distance);
    values.y += __shfl_xor_sync(FULL_WARP, values.y, distance);
    values.z += __shfl_xor_sync(FULL_WARP, values.z, distance);
  }
  __syncthreads();
  if (lane == 0) {
    sums[0][warp] = values.x;
    sums[1][warp] = values.y;
    sums[2][warp] = values.z;
  }
  __syncthreads();
  Three total = {};
#pragma unroll 4
  for (int i = 0; i < RELABEL_WARPS; i++) {
    total.x += sums[0][i];
    total.y += sums[1][i];
    total.z += sums[2][i];
  }
  return total;
}

// GELU(x) = x cdf(x), cdf that of the normal distribution, and its derivative. The error function is formula 7.1.26 of
// Abramowitz and Stegun, whose error is below 1.5e-7; it shares the exponential exp(-x x / 2) with the derivative.
// 0.7213.. = log2(e) / 2, 0.3989.. = 1 / sqrt(2 pi).
DEVICE float2 gelu_and_slope(float x) {
  const float t = fast_inverse(1.f + 0.3275911f * 0.70710678118654752f * fabsf(x));
  const float exp = fast_exp2(-0.72134752044448170f * x * x);
  const float series = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
  const float tail = 0.5f * series * exp, cdf = x >= 0.f ? 1.f - tail : tail;
  return make_float2(x * cdf, cdf + x * 0.3989422804014327f * exp);
}

// Calls body(row, column) for all elements of a matrix [rows][width]; a warp works on a row at a time, its lanes on
// columns.
template <class Body> DEVICE void each_element(int rows, int width, Body body) {
#pragma unroll 2
  for (int row = threadIdx.x >> 5; row < rows; row += (int)(blockDim.x >> 5))
#pragma unroll 2
    for (int w = threadIdx.x & 31; w < width; w += 32) body(row, w);
}

// Matrices in shared memory are given by the offset of their first float in dynamic_shared: the compiler then knows the
// kind of the memory.
//
// Copies of rows use 16 threads per row.
#define COPY_ROWS ((int)blockDim.x / 16)

// Starts to copy `rows` rows of `width` from global memory, where they are adjacent, to shared memory, `pitch` apart;
// `finish_loads` and a barrier must follow.
SEPARATE void load_rows(const void* from, int to, int pitch, int rows, int width) {
  const u32 address = shared_address(dynamic_shared) + to * 4;
  const bool aligned = width % 4 == 0;
#pragma unroll 1
  for (int row = threadIdx.x >> 4; row < rows; row += COPY_ROWS)
#pragma unroll 1
    for (int w = threadIdx.x & 15; w < (aligned ? width >> 2 : width); w += 16) {
      if (aligned) copy_async(address + (row * pitch + 4 * w) * 4, (const float*)from + row * width + 4 * w);
      else copy_word_async(address + (row * pitch + w) * 4, (const float*)from + row * width + w);
    }
}
// Waits for all copies that this thread started.
DEVICE void finish_loads() {
  commit_copies();
  wait_for_copies<0>();
}
// Copies `rows` rows of `width` from shared memory, `pitch` apart, to adjacent rows in global memory.
SEPARATE void store_rows(int from, float* to, int pitch, int rows, int width) {
  const float* shared = (const float*)dynamic_shared + from;
  const bool aligned = width % 4 == 0;
#pragma unroll 1
  for (int row = threadIdx.x >> 4; row < rows; row += COPY_ROWS)
#pragma unroll 1
    for (int w = threadIdx.x & 15; w < (aligned ? width >> 2 : width); w += 16) {
      if (aligned) *(uint4*)(to + row * width + 4 * w) = *(const uint4*)(shared + row * pitch + 4 * w);
      else to[row * width + w] = shared[row * pitch + w];
    }
}

// Options of `multiply`. BARRIER: a barrier before `a` is read, but after weights are loaded, so that loading overlaps
// with waiting. ADD: sums are added to what `out` holds. LAST_WARPS: the work starts with the last half of the warps,
// because a product before it, without a barrier in between, needs the first.
enum MultiplyOption { NO_BARRIER = 0, BARRIER = 1, ADD = 2, LAST_WARPS = 4 };
#define WEIGHTS_AHEAD 4  // steps of 16 values of k whose weights a warp loads before they are used

// `multiply` with the address of `a`, also in global memory. A warp has 16 rows and 8 columns at a time; k goes on in
// steps of 16, two instructions of 8 values each. Lane `quad` takes the adjacent values 2 quad and 2 quad + 1 of k as
// columns quad and quad + 4 of an instruction, so that it loads both at once; the weights are packed in the same order,
// so the same terms meet. The first and the second instruction of a step have an
// accumulator each (`even`, `odd`), so that they need not wait for each other. x and y are the rows `group` and group +
// 8 of the 16.
DEVICE void multiply_rows(const float* a, int pitch, int m_tiles, const uint4* b, int k, int n, int out, int out_pitch,
                          int options) {
  const int lane = threadIdx.x & 31, group = lane >> 2, quad = lane & 3, k_tiles = (k + 15) >> 4, n_tiles = (n + 7) >> 3;
  bool wait = options & BARRIER;
  // Tiles of 16 x 8 of the output are numbered row by row: tile (mt, nt). Warps take them in turn.
  int nt = threadIdx.x >> 5, mt = 0;
  if (options & LAST_WARPS) nt ^= (int)(blockDim.x >> 5) / 2;
#pragma unroll 1
  for (;; nt += (int)(blockDim.x >> 5)) {
#pragma unroll 1
    for (; nt >= n_tiles; mt++) nt -= n_tiles;
    if (mt >= m_tiles) break;
    const uint4* weights = b + nt * k_tiles * 32 + lane;
    const float* x = a + (mt * 16 + group) * pitch + 2 * quad;
    const float* y = x + 8 * pitch;
    float even[4] = {}, odd[4] = {};
    uint4 ahead[WEIGHTS_AHEAD];
#pragma unroll
    for (int i = 0; i < WEIGHTS_AHEAD; i++)
      if (i < k_tiles) ahead[i] = weights[i * 32];
    if (wait) __syncthreads();
    wait = false;
#pragma unroll 1
    for (int first = 0; first < k_tiles; first += WEIGHTS_AHEAD) {
#pragma unroll
      for (int i = 0; i < WEIGHTS_AHEAD; i++) {
        if (first + i >= k_tiles) break;
        const float2 x0 = *(const float2*)x, x1 = *(const float2*)(x + 8), y0 = *(const float2*)y, y1 = *(const float2*)(y + 8);
        const u32 a0[4] = {tf32_operand(x0.x), tf32_operand(y0.x), tf32_operand(x0.y), tf32_operand(y0.y)};
        const u32 a1[4] = {tf32_operand(x1.x), tf32_operand(y1.x), tf32_operand(x1.y), tf32_operand(y1.y)};
        const u32 b0[2] = {ahead[i].x, ahead[i].y}, b1[2] = {ahead[i].z, ahead[i].w};
        mma_tf32(even, a0, b0);
        mma_tf32(odd, a1, b1);
        if (first + i + WEIGHTS_AHEAD < k_tiles) ahead[i] = weights[(i + WEIGHTS_AHEAD) * 32];
        x += 16;
        y += 16;
      }
      weights += WEIGHTS_AHEAD * 32;
    }
    float2* to = (float2*)((float*)dynamic_shared + out + (mt * 16 + group) * out_pitch + nt * 8 + 2 * quad);
    float2* below = (float2*)((float*)to + 8 * out_pitch);
    float2 first = make_float2(even[0] + odd[0], even[1] + odd[1]), second = make_float2(even[2] + odd[2], even[3] + odd[3]);
    if (options & ADD) {
      first = make_float2(to->x + first.x, to->y + first.y);
      second = make_float2(below->x + second.x, below->y + second.y);
    }
    *to = first;
    *below = second;
  }
  if (wait) __syncthreads();
}

// out[row][column] = sum over k of a[row][k] b[k][column], a product of all threads of the block, for 16 m_tiles rows
// (also of rows that do not exist), k values and n columns. a, out: offsets in shared memory; rows are pitch and
// out_pitch apart. b is packed (`packed_position` in src/relabel/memory/network_plan.rs): for 8 columns and 16 values
// of k, every lane has its four numbers of two mma_tf32, so one load of 16 bytes is enough. A barrier must follow
// before `out` is read.
SEPARATE void multiply(int a, int pitch, int m_tiles, const uint4* b, int k, int n, int out, int out_pitch, int options) {
  multiply_rows((const float*)dynamic_shared + a, pitch, m_tiles, b, k, n, out, out_pitch, options);
}

// A number as the sum of two TF32 numbers, nearly: the upper 10 bits of the mantissa (the mask clears the other 13),
// and the nearest TF32 number to the rest. Products of such sums are nearly as exact as in f32.
DEVICE void split_tf32(float value, u32* high, u32* low) {
  *high = bits_of(value) & 0xffffe000u;
  *low = tf32_operand(value - __uint_as_float(*high));
}

// The weight of layer `layer` in the packed weights; offset: that of layer 0.
DEVICE const uint4* packed(const Relabel& r, int offset, int layer) {
  return (const uint4*)((const float*)r.packed + offset + layer * r.packed_layer_len);
}
// Parameters of layer `layer` that are not packed; offset: within a layer.
DEVICE const float* layer_parameters(const Relabel& r, int offset, int layer) {
  return r.parameters + r.layer + (long)layer * r.layer_len + offset;
}

// Layer norms use 16 threads per row, half a warp; norm_sum adds up over them.
#define NORM_LANES 16
#define NORM_ROWS ((int)blockDim.x / NORM_LANES)
DEVICE float norm_sum(float value) {
#pragma unroll
  for (int distance = NORM_LANES / 2; distance; distance >>= 1) value += __shfl_xor_sync(FULL_WARP, value, distance);
  return value;
}
// body(column, i) for this thread's columns of a row, in groups of four; i is the number in the group.
#define NORM_GROUP 4
template <class Body> DEVICE void each_column(int width, Body body) {
#pragma unroll 1
  for (int first = threadIdx.x % NORM_LANES; first < width; first += NORM_GROUP * NORM_LANES)
#pragma unroll
    for (int i = 0; i < NORM_GROUP; i++)
      if (first + i * NORM_LANES < width) body(first + i * NORM_LANES, i);
}
// The parameters of this thread's first group of columns. They are loaded early, because they are needed only after two
// sums over a row.
struct FirstGroup {
  float values[NORM_GROUP];
};
// Loads this thread's first group of `parameters` [width].
DEVICE FirstGroup first_group(const float* parameters, int width) {
  FirstGroup group;
#pragma unroll
  for (int i = 0; i < NORM_GROUP; i++) {
    const int w = threadIdx.x % NORM_LANES + i * NORM_LANES;
    group.values[i] = w < width ? parameters[w] : 0.f;
  }
  return group;
}
// The parameter of column w, number i of its group.
DEVICE float parameter(const FirstGroup& group, const float* parameters, int w, int i) {
  return w < NORM_GROUP * NORM_LANES ? group.values[i] : parameters[w];
}
// Mean (x) and 1 / standard deviation (y) of a row, biased, by its 16 threads.
DEVICE float2 row_statistics(const float* row, int width) {
  const float inverse_width = fast_inverse(width);
  float sum = 0.f, square = 0.f;
  each_column(width, [&](int w, int) { sum += row[w]; });
  const float mean = norm_sum(sum) * inverse_width;
  each_column(width, [&](int w, int) { square += (row[w] - mean) * (row[w] - mean); });
  return make_float2(mean, rsqrtf(norm_sum(square) * inverse_width + EPSILON));
}

// y = layer norm of the rows x, both in shared memory and `pitch` apart; also written to `out` [rows][width] in global
// memory. parameters: scale [width], then shift [width].
SEPARATE void layer_norm(int x, int y, int pitch, int rows, int width, const float* parameters, float* out) {
  float* shared = (float*)dynamic_shared;
  const FirstGroup scales = first_group(parameters, width), shifts = first_group(parameters + width, width);
#pragma unroll 1
  for (int first = 0; first < rows; first += NORM_ROWS) {
    // A warp stops if its first row (of two) does not exist. Otherwise all of its threads take part in its sums, also
    // those without a row, which repeat the last one.
    if (first + (int)threadIdx.x / 32 * (32 / NORM_LANES) >= rows) break;
    const int row = first + threadIdx.x / NORM_LANES, start = min(row, rows - 1) * pitch;
    const float* from = shared + x + start;
    const float2 statistics = row_statistics(from, width);
    if (row >= rows) continue;
    float* out_row = out + row * width;
    each_column(width, [&](int w, int i) {
      const float value = (from[w] - statistics.x) * statistics.y * parameter(scales, parameters, w, i) +
                          parameter(shifts, parameters + width, w, i);
      shared[y + start + w] = value;
      out_row[w] = value;
    });
  }
}

// The backward pass: adds the gradient of the input to `into`, from the gradient `d` of the output, and writes the
// gradients of scale and shift, summed over the rows, to partial [2][width]. `x` holds the input and becomes the
// normalised input. x, d, into: offsets of rows `pitch` apart. With n the normalised input and g = d * scale, the
// gradient is (1 / std) * (g - mean(g) - n * mean(g n)); d_mean and d_slope are the two means. Contains a barrier.
SEPARATE void layer_norm_backward(int x, int d, int into, int pitch, int rows, int width, const float* scale, float* partial) {
  float* shared = (float*)dynamic_shared;
  const FirstGroup scales = first_group(scale, width);
  const float inverse_width = fast_inverse(width);
#pragma unroll 1
  for (int first = 0; first < rows; first += NORM_ROWS) {
    if (first + (int)threadIdx.x / 32 * (32 / NORM_LANES) >= rows) break;
    const int row = first + threadIdx.x / NORM_LANES, start = min(row, rows - 1) * pitch;
    float *own = shared + x + start, *d_input = shared + into + start;
    const float* d_row = shared + d + start;
    const float2 statistics = row_statistics(own, width);
    float d_mean = 0.f, d_slope = 0.f;
    each_column(width, [&](int w, int i) {
      const float d_value = d_row[w] * parameter(scales, scale, w, i);
      d_mean += d_value;
      d_slope += d_value * (own[w] - statistics.x) * statistics.y;
    });
    d_mean = norm_sum(d_mean) * inverse_width;
    d_slope = norm_sum(d_slope) * inverse_width;
    if (row >= rows) continue;
    each_column(width, [&](int w, int i) {
      const float normalised = (own[w] - statistics.x) * statistics.y;
      own[w] = normalised;
      d_input[w] += statistics.y * (d_row[w] * parameter(scales, scale, w, i) - d_mean - normalised * d_slope);
    });
  }
  __syncthreads();
#pragma unroll 1
  for (int w = threadIdx.x; w < width; w += (int)blockDim.x) {
    const float *d_column = shared + d + w, *column = shared + x + w;
    float d_scale = 0.f, d_shift = 0.f;
#pragma unroll 1
    for (int row = 0; row < rows; row += 4)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        // The last row instead of rows that do not exist, with a weight of 0.
        const int at = min(row + i, rows - 1) * pitch;
        const float d_value = row + i < rows ? d_column[at] : 0.f;
        d_scale += d_value * column[at];
        d_shift += d_value;
      }
    partial[w] = d_scale;
    partial[width + w] = d_shift;
  }
}

// A kernel of RELABEL_THREADS threads, one block per multiprocessor; a "phase" is what it does for one episode or tile.
#define PHASE_KERNEL extern "C" __global__ void __launch_bounds__(RELABEL_THREADS, 1)

// Runs a phase on one episode per block, or on one tile per block; blocks beyond those of the step do nothing.
template <class Phase> DEVICE void on_episode(const Relabel& r, Phase phase) {
  const u32* input = slot(r);
  if (blockIdx.x < ((const Header*)input)->episodes) phase(input, episode(r, blockIdx.x));
}
template <class Phase> DEVICE void on_tile(const Relabel& r, Phase phase) {
  Block b;
  if (open_tile(r, slot(r), blockIdx.x, b)) phase(b);
}

}  // namespace relabel
