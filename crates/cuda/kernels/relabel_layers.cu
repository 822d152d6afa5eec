// The layers of the Relabel head, forward and backward, as functions that one thread block calls for its tile: a few
// items of an episode with all their states (a state is the vector of W numbers of one item and class). relabel.cuh has
// letters, sizes, buffers (`struct Relabel`) and the functions of a block; relabel.cu the kernels that call these and
// their order, which src/relabel.rs launches. The formulas are in
// crates/nn/src/relabel/{input_layer,attention_layer,mixing_layer,item_view}.rs, with weights W.. and biases b..:
//
//   input      state = GELU(features Wf + bf [+ item view]) Ws + bs, from the 19 features of a state
//   attention  states n after layer norm; query and key per item from the mean of n over the classes and n at the given
//              label, value per state. A_ij = softmax over the items j of q_i . k_j / sqrt(W / H) + edge logit_ij, per
//              head; state_ic += (sum over j of A_ij value_jc) Wo
//   mixing     states n after layer norm; hidden = n Ws + (mean, maximum of n over the classes) Wi + (mean of n over
//              the items with given label c) Wc + bc; state += GELU(hidden) Wm
//   output     three numbers per state: layer norm, then a product with `out` [W][3]
//
// In the list, i and j are items, c a class, and n a state after layer norm. "part" in the code is W / H, the width of
// a head; "planes" are the attention weights of a layer as [head][item][item]. Row r of the tile's states is item r / C
// of the tile and class r % C.
//
// Forward: input, then per layer attend and mix. Backward: output_backward, then per layer, from the last,
// attend_backward_rows (attention of the tile's items) and attend_backward_columns (attention to the tile's items). A
// kernel ends where the next computation needs values of other tiles: keys and values of all items, or sums over the
// items of a class. So each function ends with what the next kernel reads: `input` and `mix` with the inputs of
// attention, `attend` with those of mixing. The backward pass of mixing is split between two kernels, because the
// gradient of a class's mean is a sum over tiles.
//
// All matrices of a tile are in shared memory, at the offsets of SharedLayout; rows of width w are pitch_of(w) floats
// apart. `r.shared.x` is such an offset, `b.shared + r.shared.x` the address; `r.x` without `shared` is a buffer in
// global memory. Buffers of a layer are at layer * max_states (max_items, ..) rows; the states have two entries per
// layer, number 2 layer before attention and 2 layer + 1 before mixing. Loads from and stores to global memory are
// written so that they overlap with products, and barriers are only where a product reads what other warps wrote.
#pragma once
#include "relabel.cuh"
#include "relabel_edges.cu"

namespace relabel {

// The factor of number `index` of the dropout mask of an episode's batch, 0 or 1 / (1 - rate), as in
// crates/nn/src/layers/dropout.rs: a hash of the seed and the index.
DEVICE float dropout_factor(const Relabel& r, const Episode& e, u32 index) {
  if (r.dropout_threshold == 0) return r.dropout_scale;
  u32 x = index * 0x9e3779b9u ^ e.seed_low;
  x = (x ^ (x >> 16)) * 0x7feb352du + e.seed_high;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return (x >> 1) >= r.dropout_threshold ? r.dropout_scale : 0.f;
}

// `multiply` with `a` in global memory, and a barrier after weights are loaded.
SEPARATE void multiply_global(const float* a, int pitch, int m_tiles, const uint4* b, int k, int n, int out, int out_pitch) {
  multiply_rows(a, pitch, m_tiles, b, k, n, out, out_pitch, BARRIER);
}

// The item view, for a head that is made for one backbone: norm(h P), with h the item's features minus the mean of all
// training features, scaled to unit length, after dropout, and P [D][V]. Leaves what it adds to the hidden units of the
// input layer, a product of the view with weights [V][W], in `items[1]`, [T][W] (view_target 1). Or passes that product
// on through one more hidden layer with GELU, and writes the sum of its units times `view_out` to `outlier`, which is
// added to the logits of "none of the classes" (view_target 2).
DEVICE void view_forward(const Relabel& r, const Block& b) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, dim = r.view_dim, width = r.view_width;
  const int pitch = pitch_of(width), state_pitch = pitch_of(r.width);
  const Row* rows = (const Row*)(slot(r) + r.layout.rows) + b.e.first_row + b.first;
  const float* mean = r.parameters + r.view_mean;
#pragma unroll 1
  for (int i = warp; i < b.count; i += RELABEL_WARPS) {
    // h of item i, by one warp.
    const Row row = rows[i];
    float* out = r.view_rows + (b.item + i) * r.view_pitch;
    float square = 0.f;
#pragma unroll 4
    for (int d = lane; d < dim; d += 32) {
      const float value = row_value(row, d) - mean[d];
      square += value * value;
    }
    square = warp_sum(square);
    const float scale = square > 0.f ? rsqrtf(square) : 1.f;
    const u32 index = (u32)(b.e.batch_item + b.first + i) * (u32)dim;
#pragma unroll 2
    for (int d = lane; d < dim; d += 32)
      out[d] = (row_value(row, d) - mean[d]) * scale * dropout_factor(r, b.e, index + d);
  }
  multiply_global(r.view_rows + b.item * r.view_pitch, r.view_pitch, b.item_tiles, r.packed + r.packed_view / 4, dim, width,
                  r.shared.items[0], pitch);
  __syncthreads();
  store_rows(r.shared.items[0], r.projected + b.item * width, pitch, b.count, width);
  layer_norm(r.shared.items[0], r.shared.items[2], pitch, b.count, width, r.parameters + r.view_norm, r.view + b.item * width);
  multiply(r.shared.items[2], pitch, b.item_tiles, r.packed + r.packed_item / 4, width, r.width, r.shared.items[1], state_pitch,
           BARRIER);
  if (r.view_target == 1) return;
  __syncthreads();
  const float *of_items = b.shared + r.shared.items[1], *bias = r.parameters + r.view_bias;
#pragma unroll 1
  for (int i = warp; i < b.count; i += RELABEL_WARPS) {
    float sum = 0.f;
#pragma unroll 1
    for (int w = lane; w < r.width; w += 32) {
      const float2 activated = gelu_and_slope(of_items[i * state_pitch + w] + bias[w]);
      const long at = (b.item + i) * r.width + w;
      r.view_activated[at] = activated.x;
      r.view_slopes[at] = activated.y;
      sum += activated.x * r.parameters[r.view_out + w];
    }
    sum = warp_sum(sum);
    if (lane == 0) r.outlier[b.item + i] = sum;
  }
}

// What attention of layer `layer` reads: normalised states, queries and keys of items, values of states, all of the
// tile; written to global memory, because other tiles attend to them. The states of the tile are in shared memory,
// written before the last barrier.
DEVICE void attention_inputs(const Relabel& r, const Block& b, int layer) {
  const int width = r.width, pitch = pitch_of(width), double_pitch = pitch_of(2 * width), classes = b.e.classes;
  float *normed = b.shared + r.shared.normed, *pooled = b.shared + r.shared.items[0];
  layer_norm(r.shared.states, r.shared.normed, pitch, b.rows, width, layer_parameters(r, r.attention_norm, layer),
             r.normed + (2 * layer * (long)r.max_states + b.state) * width);
  __syncthreads();
  const long item = layer * (long)r.max_items + b.item, state = layer * (long)r.max_states + b.state;
  const float inverse_count = fast_inverse(classes);
  // The inputs of queries and keys, [count][2 W]: the mean over the classes, then the state at the given label.
  float* pooled_out = r.pooled + item * 2 * width;
  each_element(b.count, width, [&](int i, int w) {
    const float* column = normed + i * classes * pitch + w;
    float mean = 0.f;
#pragma unroll 4
    for (int c = 0; c < classes; c++) mean += column[c * pitch] * inverse_count;
    const float at_given = column[b.labels[i] * pitch];
    pooled[i * double_pitch + w] = mean;
    pooled[i * double_pitch + width + w] = at_given;
    pooled_out[i * 2 * width + w] = mean;
    pooled_out[i * 2 * width + width + w] = at_given;
  });
  multiply(r.shared.items[0], double_pitch, b.item_tiles, packed(r, r.forward.query, layer), 2 * width, width, r.shared.items[1],
           pitch, BARRIER);
  multiply(r.shared.items[0], double_pitch, b.item_tiles, packed(r, r.forward.key, layer), 2 * width, width, r.shared.items[2],
           pitch, LAST_WARPS);
  multiply(r.shared.normed, pitch, b.row_tiles, packed(r, r.forward.value, layer), width, width, r.shared.values, pitch,
           NO_BARRIER);
  __syncthreads();
  const float *queries = b.shared + r.shared.items[1], *bias = layer_parameters(r, r.query_bias, layer);
  each_element(b.count, width, [&](int i, int w) { r.queries[(item + i) * width + w] = queries[i * pitch + w] + bias[w]; });
  store_rows(r.shared.items[2], r.keys + item * width, pitch, b.count, width);
  store_rows(r.shared.values, r.values + state * width, pitch, b.rows, width);
}

// The item view, the input layer, and the inputs of attention of layer 0. The 19 features are padded with zeros to 32
// columns, whole steps of a product.
DEVICE void input(const Relabel& r, const Block& b) {
  const int width = r.width, pitch = pitch_of(width), feature_pitch = pitch_of(STATE_FEATURES);
  float *features = b.shared + r.shared.extra, *activated = b.shared + r.shared.normed, *states = b.shared + r.shared.states;
  load_rows(r.state_features + b.state * STATE_FEATURES, r.shared.extra, feature_pitch, b.rows, STATE_FEATURES);
  each_element(b.rows, 32, [&](int row, int w) {
    if (w >= STATE_FEATURES) features[row * feature_pitch + w] = 0.f;
  });
  if (r.view_target) view_forward(r, b);
  finish_loads();
  multiply(r.shared.extra, feature_pitch, b.row_tiles, r.packed + r.packed_features / 4, STATE_FEATURES, width, r.shared.normed,
           pitch, BARRIER);
  __syncthreads();
  const float *of_items = b.shared + r.shared.items[1], *bias = r.parameters + r.features_bias;
  float *slopes = r.start_slopes + b.state * width, *out = r.start_activated + b.state * width;
  each_element(b.rows, width, [&](int row, int w) {
    float sum = activated[row * pitch + w] + bias[w];
    if (r.view_target == 1) sum += of_items[divide(b.by_classes, row) * pitch + w];
    const float2 value = gelu_and_slope(sum);
    activated[row * pitch + w] = value.x;
    out[row * width + w] = value.x;
    slopes[row * width + w] = value.y;
  });
  multiply(r.shared.normed, pitch, b.row_tiles, r.packed + r.packed_start / 4, width, width, r.shared.states, pitch, BARRIER);
  __syncthreads();
  const float* start_bias = r.parameters + r.start_bias;
  float* states_out = r.states + b.state * width;
  each_element(b.rows, width, [&](int row, int w) {
    const float sum = states[row * pitch + w] + start_bias[w];
    states[row * pitch + w] = sum;
    states_out[row * width + w] = sum;
  });
  __syncthreads();
  attention_inputs(r, b, 0);
}

#define ROWS_AHEAD 4  // groups of 8 items, the terms of one instruction, whose rows a warp loads at the same time

// out[item][class][w] = scale times the sum over all items j of the episode of weights[head of w][item][j]
// rows[j][class][w], for the `count` items of the tile, by the whole block. A product with the weights as left factor,
// in TF32.
//   weights  offset in shared memory of [heads][count][weight_pitch_of(items)], zeros after the last item
//   rows     global memory, [items][classes][heads part]; `part` is the width of a head
//   out      offset in shared memory of [count][classes] rows, `pitch` apart
// A warp has 16 items and 8 columns of a head. from_last: the work starts with the last warps, because a call before
// it, without a barrier in between, started with the first. Contains no barrier.
SEPARATE void weighted_sums(int weights, const float* rows, int items, int classes, int heads, int part, int count, float scale,
                            int out, int pitch, bool from_last) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane >> 2, quad = lane & 3;
  const int columns = classes * heads * part, weight_pitch = weight_pitch_of(items);
  const int head_tiles = (part + 7) >> 3, n_tiles = classes * heads * head_tiles;
  float* shared = (float*)dynamic_shared;
  // Tiles of 8 columns for the 16 items from `first` on; warps take them in turn, then the next 16 items.
  int tile = from_last ? RELABEL_WARPS - 1 - warp : warp, first = 0;
#pragma unroll 1
  for (;; tile += RELABEL_WARPS) {
#pragma unroll 1
    for (; tile >= n_tiles; first += 16) tile -= n_tiles;
    if (first >= count) return;
    // A tile's class and head, its first column in the head, and in the width W. x and y are the weights of items
    // `group` and group + 8 of the 16, the last item's where there are fewer; `at` is this lane's number of the rows.
    const int of_class = tile / head_tiles, c = of_class / heads, head = of_class - c * heads;
    const int begin = (tile - of_class * head_tiles) * 8, w = head * part + begin;
    const float* at = rows + quad * columns + c * heads * part + w + group;
    const float* x = shared + weights + (head * count + min(first + group, count - 1)) * weight_pitch + quad;
    const float* y = shared + weights + (head * count + min(first + group + 8, count - 1)) * weight_pitch + quad;
    const bool exists = begin + group < part;
    float sums[4] = {};
#pragma unroll 1
    for (int j0 = 0; j0 < items; j0 += 8 * ROWS_AHEAD) {
      float values[ROWS_AHEAD][2];
#pragma unroll
      for (int s = 0; s < ROWS_AHEAD; s++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
          values[s][i] = exists && j0 + s * 8 + i * 4 + quad < items ? *at : 0.f;
          at += 4 * columns;
        }
#pragma unroll
      for (int s = 0; s < ROWS_AHEAD; s++) {
        if (j0 + s * 8 >= items) break;
        const u32 a[4] = {tf32_operand(x[0]), tf32_operand(y[0]), tf32_operand(x[4]), tf32_operand(y[4])};
        const u32 b[2] = {tf32_operand(values[s][0]), tf32_operand(values[s][1])};
        mma_tf32(sums, a, b);
        x += 8;
        y += 8;
      }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int item = first + group + (i >> 1) * 8, column = 2 * quad + (i & 1);
      if (item < count && begin + column < part) shared[out + (item * classes + c) * pitch + w + column] = sums[i] * scale;
    }
  }
}

#define STEPS_AHEAD 5  // steps of 8 columns, the terms of one instruction, whose values a warp loads at the same time

// out[head][i][j] = scale times the sum over classes c and k below `part` of left[i][c][head part + k] right[j][c][head
// part + k], added to what `out` holds if `add`, for the `count` items i of the tile and all items j of the episode, by
// the whole block, in TF32.
//   left   offset in shared memory of [count][classes] rows, `pitch` apart
//   right  global memory, [items][classes][heads part]
//   out    offset in shared memory of [heads][count][weight_pitch_of(items)]
// Forward, with classes = 1, these are the logits from queries and keys; backward, the gradients of the attention
// weights from d_attended and values. Where `part` is not a multiple of 8, columns of `left` beyond it are multiplied
// by 0. Contains no barrier.
SEPARATE void head_products(int left, int pitch, const float* right, int classes, int heads, int part, int count, int items,
                            float scale, int out, bool add) {
  const int lane = threadIdx.x & 31, group = lane >> 2, quad = lane & 3, width = heads * part;
  const int weight_pitch = weight_pitch_of(items);
  const int n_tiles = (items + 7) >> 3, m_tiles = (count + 15) >> 4, class_steps = (part + 7) >> 3;
  float* shared = (float*)dynamic_shared;
  // Tiles of 16 x 8 of the output: 8 columns nt, 16 rows mt, head. Warps take them in turn.
  int head = 0, mt = 0;
#pragma unroll 1
  for (int nt = threadIdx.x >> 5;; nt += RELABEL_WARPS) {
#pragma unroll 1
    for (; nt >= n_tiles; mt++) nt -= n_tiles;
#pragma unroll 1
    for (; mt >= m_tiles; head++) mt -= m_tiles;
    if (head >= heads) return;
    const float* row = right + min(nt * 8 + group, items - 1) * classes * width + head * part + quad;
    const float* x = shared + left + min(mt * 16 + group, count - 1) * classes * pitch + head * part + quad;
    const float* y = shared + left + min(mt * 16 + group + 8, count - 1) * classes * pitch + head * part + quad;
    float sums[4] = {};
    // The steps of 8 columns that loads and products have done in the current class. After the last one, the pointers
    // move on to the same head of the next class, one row of `width` or `pitch` after the start of this one.
    int load_step = 0, step = 0;
#pragma unroll 1
    for (int steps = classes * class_steps; steps > 0; steps -= STEPS_AHEAD) {
      float values[STEPS_AHEAD][2];
#pragma unroll
      for (int s = 0; s < STEPS_AHEAD; s++) {
#pragma unroll
        for (int half = 0; half < 2; half++)
          values[s][half] = s < steps && load_step * 8 + quad + half * 4 < part ? row[half * 4] : 0.f;
        row += ++load_step < class_steps ? 8 : 8 + width - class_steps * 8;
        if (load_step == class_steps) load_step = 0;
      }
#pragma unroll
      for (int s = 0; s < STEPS_AHEAD; s++) {
        if (s >= steps) break;
        const u32 a[4] = {tf32_operand(x[0]), tf32_operand(y[0]), tf32_operand(x[4]), tf32_operand(y[4])};
        const u32 b[2] = {tf32_operand(values[s][0]), tf32_operand(values[s][1])};
        mma_tf32(sums, a, b);
        const int forward = ++step < class_steps ? 8 : 8 + pitch - class_steps * 8;
        if (step == class_steps) step = 0;
        x += forward;
        y += forward;
      }
    }
#pragma unroll
    for (int s = 0; s < 4; s++) {
      const int i = mt * 16 + group + (s >> 1) * 8, j = nt * 8 + 2 * quad + (s & 1);
      if (i >= count || j >= items) continue;
      float* to = shared + out + (head * count + i) * weight_pitch + j;
      *to = (add ? *to : 0.f) + sums[s] * scale;
    }
  }
}

// Starts to copy the attention weights of the tile's items to shared memory, [heads][count][weight_pitch_of(items)],
// from planes [heads][items][items] whose address is that of the tile's first item.
SEPARATE void load_weights(const float* planes, int heads, int count, int items, int to) {
  float* shared = (float*)dynamic_shared + to;
#pragma unroll 1
  for (int row = threadIdx.x >> 5; row < heads * count; row += RELABEL_WARPS) {
    const int head = row / count, from = (head * items + row - head * count) * items;
#pragma unroll 1
    for (int j = threadIdx.x & 31; j < items; j += 32)
      copy_word_async(shared_address(shared + row * weight_pitch_of(items) + j), planes + from + j);
  }
}

// out[row][w] = the sum over `tiles` tiles of sums[tile][row][w], divided by divisors[row] (at least 1) if `divisors`
// is not null; also written to `copy` [rows][width] unless that is null. Tiles are `stride` floats apart in global
// memory; `out` is an offset of rows `pitch` apart. 8 tiles are loaded at a time, and added in their order.
SEPARATE void sum_tiles(const float* sums, int stride, int tiles, const int* divisors, int rows, int width, int out, int pitch,
                        float* copy) {
#pragma unroll 1
  for (int element = threadIdx.x; element < rows * width; element += RELABEL_THREADS) {
    const int row = element / width;
    const float* at = sums + element;
    float sum = 0.f;
#pragma unroll 1
    for (int tile = 0; tile < tiles; tile += 8) {
      float values[8];
#pragma unroll
      for (int i = 0; i < 8; i++) values[i] = tile + i < tiles ? at[(tile + i) * stride] : 0.f;
#pragma unroll
      for (int i = 0; i < 8; i++) sum += values[i];
    }
    if (divisors) sum *= fast_inverse(max(divisors[row], 1));
    ((float*)dynamic_shared)[out + row * pitch + element - row * width] = sum;
    if (copy) copy[element] = sum;
  }
}

// Attention of layer `layer`: its output added to the states; then what mixing reads, the layer norm of the states,
// pools over the classes, and the tile's sums of each class (of the states (i, c) of items i with given label c), from
// which `mix` computes the means over all tiles. Grid: one block per tile.
DEVICE void attend(const Relabel& r, const Block& b, int layer) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int width = r.width, pitch = pitch_of(width), items = b.e.items, classes = b.e.classes, part = width / r.heads;
  float *states = b.shared + r.shared.states, *normed = b.shared + r.shared.normed;
  float* weights = b.shared + r.shared.extra;  // [H][count][M], rows are padded: edge logits, then logits, then weights
  const int weight_pitch = weight_pitch_of(items);
  const long first_item = layer * (long)r.max_items + b.e.first_item, item = first_item + b.first;
  const long state = layer * (long)r.max_states + b.state;
  float* planes = r.attention + ((long)b.e.first_pair * r.layers + (long)layer * items * items) * r.heads + b.first * items;
  load_rows(r.states + (2 * layer * (long)r.max_states + b.state) * width, r.shared.states, pitch, b.rows, width);
  load_rows(r.queries + item * width, r.shared.items[1], pitch, b.count, width);
  load_weights(planes, r.heads, b.count, items, r.shared.extra);
  finish_loads();
  __syncthreads();
  head_products(r.shared.items[1], pitch, r.keys + first_item * width, 1, r.heads, part, b.count, items, r.attention_scale,
                r.shared.extra, true);
  __syncthreads();
#pragma unroll 1
  for (int row = warp; row < r.heads * b.count; row += RELABEL_WARPS) {
    // Softmax of one item and head, by one warp.
    float *own = weights + row * weight_pitch, largest = own[0], total = 0.f;
#pragma unroll 1
    for (int j = lane; j < items; j += 32) largest = fmaxf(largest, own[j]);
    largest = warp_max(largest);
#pragma unroll 1
    for (int j = lane; j < items; j += 32) {
      own[j] = expf(own[j] - largest);
      total += own[j];
    }
    const float scale = fast_inverse(warp_sum(total));
    const int head = row / b.count;
    float* out = planes + (head * items + row - head * b.count) * items;
#pragma unroll 1
    for (int j = lane; j < weight_pitch; j += 32) {
      const float weight = j < items ? own[j] * scale : 0.f;
      own[j] = weight;
      if (j < items) out[j] = weight;
    }
  }
  __syncthreads();
  weighted_sums(r.shared.extra, r.values + (layer * (long)r.max_states + b.e.first_state) * width, items, classes, r.heads, part,
                b.count, 1.f, r.shared.values, pitch, false);
  multiply(r.shared.values, pitch, b.row_tiles, packed(r, r.forward.out, layer), width, width, r.shared.normed, pitch, BARRIER);
  store_rows(r.shared.values, r.attended + state * width, pitch, b.rows, width);
  __syncthreads();
  const long after = (2 * layer + 1) * (long)r.max_states + b.state;
  float* states_out = r.states + after * width;
  each_element(b.rows, width, [&](int row, int w) {
    const float sum = states[row * pitch + w] + normed[row * pitch + w];
    states[row * pitch + w] = sum;
    states_out[row * width + w] = sum;
  });
  __syncthreads();
  layer_norm(r.shared.states, r.shared.normed, pitch, b.rows, width, layer_parameters(r, r.mixing_norm, layer),
             r.normed + after * width);
  __syncthreads();
  float* pools = r.pools + item * 2 * width;
  // Mean and maximum over the classes, side by side; the class of the maximum for the backward pass.
  int* argmaxes = r.argmax + item * width;
  const float inverse_count = fast_inverse(classes);
  each_element(b.count, width, [&](int i, int w) {
    const float* column = normed + i * classes * pitch + w;
    float mean = 0.f, largest = column[0];
    int argmax = 0;
#pragma unroll 4
    for (int c = 0; c < classes; c++) {
      const float value = column[c * pitch];
      mean += value * inverse_count;
      if (value > largest) {
        largest = value;
        argmax = c;
      }
    }
    pools[i * 2 * width + w] = mean;
    pools[i * 2 * width + width + w] = largest;
    argmaxes[i * width + w] = argmax;
  });
  float* class_sums = r.class_sums + (long)b.tile * r.max_class_sums;
  each_element(classes, width, [&](int c, int w) {
    float sum = 0.f;
#pragma unroll 4
    for (int i = 0; i < b.count; i++) sum += b.labels[i] == c ? normed[(i * classes + c) * pitch + w] : 0.f;
    class_sums[c * width + w] = sum;
  });
}

// Mixing of layer `layer`, its output added to the states; then the inputs of attention of the next layer, or after the
// last layer the outputs `logits` [states][3]. Grid: one block per tile.
DEVICE void mix(const Relabel& r, const Block& b, int layer) {
  const int width = r.width, units = r.hidden;
  const int pitch = pitch_of(width), double_pitch = pitch_of(2 * width), unit_pitch = pitch_of(units);
  float *states = b.shared + r.shared.states, *normed = b.shared + r.shared.normed, *hidden = b.shared + r.shared.hidden;
  const long before = (2 * layer + 1) * (long)r.max_states + b.state, item = layer * (long)r.max_items + b.item;
  load_rows(r.states + before * width, r.shared.states, pitch, b.rows, width);
  load_rows(r.normed + before * width, r.shared.normed, pitch, b.rows, width);
  load_rows(r.pools + item * 2 * width, r.shared.items[0], double_pitch, b.count, 2 * width);
  float* means_out = r.class_means + (layer * (long)r.max_class_rows + b.e.first_class) * width;
  sum_tiles(r.class_sums + (long)b.e.first_tile * r.max_class_sums, r.max_class_sums, b.e.tiles, b.counts, b.e.classes, width,
            r.shared.classes, pitch, b.first == 0 ? means_out : nullptr);
  finish_loads();
  multiply(r.shared.items[0], double_pitch, b.item_tiles, packed(r, r.forward.item, layer), 2 * width, units, r.shared.items[1],
           unit_pitch, BARRIER);
  multiply(r.shared.classes, pitch, b.class_tiles, packed(r, r.forward.of_class, layer), width, units, r.shared.of_classes,
           unit_pitch, NO_BARRIER);
  multiply(r.shared.normed, pitch, b.row_tiles, packed(r, r.forward.state, layer), width, units, r.shared.hidden, unit_pitch,
           NO_BARRIER);
  __syncthreads();
  const float *of_items = b.shared + r.shared.items[1], *of_classes = b.shared + r.shared.of_classes;
  const float* bias = layer_parameters(r, r.class_bias, layer);
  const long state = layer * (long)r.max_states + b.state;
  float *slopes = r.hidden_slopes + state * units, *activated = r.activated + state * units;
  each_element(b.rows, units, [&](int row, int u) {
    const int i = divide(b.by_classes, row), c = row - i * b.e.classes;
    const float sum = hidden[row * unit_pitch + u] + of_items[i * unit_pitch + u] + (of_classes[c * unit_pitch + u] + bias[u]);
    const float2 value = gelu_and_slope(sum);
    hidden[row * unit_pitch + u] = value.x;
    activated[row * units + u] = value.x;
    slopes[row * units + u] = value.y;
  });
  multiply(r.shared.hidden, unit_pitch, b.row_tiles, packed(r, r.forward.mixed, layer), units, width, r.shared.values, pitch,
           BARRIER);
  __syncthreads();
  const long after = (2 * layer + 2) * (long)r.max_states + b.state;
  const float* mixed = b.shared + r.shared.values;
  float* states_out = r.states + after * width;
  each_element(b.rows, width, [&](int row, int w) {
    const float sum = states[row * pitch + w] + mixed[row * pitch + w];
    states[row * pitch + w] = sum;
    states_out[row * width + w] = sum;
  });
  __syncthreads();
  if (layer + 1 < r.layers) return attention_inputs(r, b, layer + 1);
  layer_norm(r.shared.states, r.shared.normed, pitch, b.rows, width, r.parameters + r.out_norm, r.normed + after * width);
  __syncthreads();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll 1
  for (int row = warp; row < b.rows; row += RELABEL_WARPS) {
    float sums[OUTPUTS] = {};
#pragma unroll 2
    for (int w = lane; w < width; w += 32) {
      const float *out = r.parameters + r.out + w * OUTPUTS, value = normed[row * pitch + w];
#pragma unroll
      for (int o = 0; o < OUTPUTS; o++) sums[o] += value * out[o];
    }
#pragma unroll
    for (int o = 0; o < OUTPUTS; o++) {
      const float sum = warp_sum(sums[o]);
      if (lane == 0) r.logits[(b.state + row) * OUTPUTS + o] = sum;
    }
  }
}

// ---- Backward
// d <- d slopes, in shared memory, also written to `out`; slopes (of GELU) and `out` are [rows][width] in global
// memory.
SEPARATE void activation_backward(int d, int pitch, int rows, int width, const float* slopes, float* out) {
  float* shared = (float*)dynamic_shared + d;
#pragma unroll 1
  for (int row = threadIdx.x >> 5; row < rows; row += RELABEL_WARPS)
#pragma unroll 4
    for (int w = threadIdx.x & 31; w < width; w += 32) {
      const float value = shared[row * pitch + w] * slopes[row * width + w];
      shared[row * pitch + w] = value;
      out[row * width + w] = value;
    }
}

// The first part of mixing's backward pass: from the gradient of its output, in `states` in shared memory and written
// before the last barrier, to those of the hidden units (`d_hidden`, and their sums per item and per class of the tile)
// and of the normalised states (`d_normed`), still without the part through the means of the classes, which
// attend_backward_rows adds. `class_sums` in global memory, free after `mix`, holds the sums per class of the tile. The
// gradient of the pools is [mean | maximum], 2 W numbers per item: the mean's goes to all classes, the maximum's to the
// class `argmax`.
DEVICE void mixing_backward(const Relabel& r, const Block& b, int layer) {
  const int width = r.width, units = r.hidden, classes = b.e.classes;
  const int pitch = pitch_of(width), double_pitch = pitch_of(2 * width), unit_pitch = pitch_of(units);
  float *d_normed = b.shared + r.shared.normed, *d_hidden = b.shared + r.shared.hidden;
  float *d_pools = b.shared + r.shared.items[0], *d_of_items = b.shared + r.shared.items[1];
  const int* argmax = (const int*)(b.shared + r.shared.items[2]);
  const long state = layer * (long)r.max_states + b.state, item = layer * (long)r.max_items + b.item;
  load_rows(r.argmax + item * width, r.shared.items[2], pitch, b.count, width);
  multiply(r.shared.states, pitch, b.row_tiles, packed(r, r.backward.mixed, layer), width, units, r.shared.hidden, unit_pitch,
           NO_BARRIER);
  store_rows(r.shared.states, r.d_states + ((2 * layer + 2) * (long)r.max_states + b.state) * width, pitch, b.rows, width);
  __syncthreads();
  activation_backward(r.shared.hidden, unit_pitch, b.rows, units, r.hidden_slopes + state * units, r.d_hidden + state * units);
  __syncthreads();
  float *items_out = r.d_of_items + item * units, *class_sums = r.class_sums + (long)b.tile * r.max_class_sums;
  each_element(b.count + classes, units, [&](int index, int u) {
    // Sums over the classes of each item, then over the items of each class.
    const bool is_item = index < b.count;
    const int first = is_item ? index * classes : index - b.count, step = is_item ? 1 : classes;
    const int terms = is_item ? classes : b.count;
    const float* at = d_hidden + first * unit_pitch + u;
    float sum = 0.f;
#pragma unroll 4
    for (int i = 0; i < terms; i++) sum += at[i * step * unit_pitch];
    if (is_item) d_of_items[index * unit_pitch + u] = sum;
    (is_item ? items_out + index * units : class_sums + (index - b.count) * units)[u] = sum;
  });
  finish_loads();
  multiply(r.shared.items[1], unit_pitch, b.item_tiles, packed(r, r.backward.item, layer), units, 2 * width, r.shared.items[0],
           double_pitch, BARRIER);
  multiply(r.shared.hidden, unit_pitch, b.row_tiles, packed(r, r.backward.state, layer), units, width, r.shared.normed, pitch,
           NO_BARRIER);
  __syncthreads();
  const float inverse_count = fast_inverse(classes);
  float* out = r.d_normed + b.state * width;
  each_element(b.rows, width, [&](int row, int w) {
    const int i = divide(b.by_classes, row), c = row - i * classes;
    float sum = d_normed[row * pitch + w] + inverse_count * d_pools[i * double_pitch + w];
    if (argmax[i * pitch + w] == c) sum += d_pools[i * double_pitch + width + w];
    out[row * width + w] = sum;
  });
}

// From the gradient of the outputs, `d_logits` [states][3], to that of the states after the last layer; then
// `mixing_backward` of the last layer. Grid: one block per tile.
DEVICE void output_backward(const Relabel& r, const Block& b) {
  const int width = r.width, pitch = pitch_of(width);
  float *d_states = b.shared + r.shared.states, *d_normed = b.shared + r.shared.normed;
  load_rows(r.states + (2 * r.layers * (long)r.max_states + b.state) * width, r.shared.values, pitch, b.rows, width);
  const float *d_logits = r.d_logits + b.state * OUTPUTS, *weights = r.parameters + r.out;
  each_element(b.rows, width, [&](int row, int w) {
    const float *d = d_logits + row * OUTPUTS, *out = weights + w * OUTPUTS;
    d_normed[row * pitch + w] = d[0] * out[0] + d[1] * out[1] + d[2] * out[2];
    d_states[row * pitch + w] = 0.f;
  });
  finish_loads();
  __syncthreads();
  layer_norm_backward(r.shared.values, r.shared.normed, r.shared.states, pitch, b.rows, width, r.parameters + r.out_norm,
                      r.partials + (long)b.tile * r.partial_len + r.partial_out_norm);
  mixing_backward(r, b, r.layers - 1);
}

// The second part of mixing's backward pass of layer `layer`: the gradient through the means of the classes, which are
// sums over all tiles, and the layer norm. Then attention's as seen from the tile's items, whose weights are rows of
// the attention map: gradients of the attention logits and of the queries. Grid: one block per tile.
DEVICE void attend_backward_rows(const Relabel& r, const Block& b, int layer) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int width = r.width, units = r.hidden, classes = b.e.classes, items = b.e.items, part = width / r.heads;
  const int pitch = pitch_of(width), unit_pitch = pitch_of(units), weight_pitch = weight_pitch_of(items);
  const int d_offset = r.shared.extra + r.heads * b.count * weight_pitch;
  float *d_normed = b.shared + r.shared.normed, *d_means = b.shared + r.shared.classes;
  float *weights = b.shared + r.shared.extra, *d_weights = b.shared + d_offset;  // each [H][count][M], rows are padded
  load_rows(r.d_states + ((2 * layer + 2) * (long)r.max_states + b.state) * width, r.shared.states, pitch, b.rows, width);
  load_rows(r.d_normed + b.state * width, r.shared.normed, pitch, b.rows, width);
  const long after = (2 * layer + 1) * (long)r.max_states + b.state;
  load_rows(r.states + after * width, r.shared.values, pitch, b.rows, width);
  const long planes = ((long)b.e.first_pair * r.layers + (long)layer * items * items) * r.heads + b.first * items;
  load_weights(r.attention + planes, r.heads, b.count, items, r.shared.extra);
  float* classes_out = r.d_of_classes + (layer * (long)r.max_class_rows + b.e.first_class) * units;
  sum_tiles(r.class_sums + (long)b.e.first_tile * r.max_class_sums, r.max_class_sums, b.e.tiles, nullptr, classes, units,
            r.shared.of_classes, unit_pitch, b.first == 0 ? classes_out : nullptr);
  finish_loads();
  multiply(r.shared.of_classes, unit_pitch, b.class_tiles, packed(r, r.backward.of_class, layer), units, width, r.shared.classes,
           pitch, BARRIER);
  __syncthreads();
  // The mean of class c is over the states (i, c) of the items i with given label c: one state per item.
  each_element(b.count, width, [&](int i, int w) {
    const int given = b.labels[i];
    d_normed[(i * classes + given) * pitch + w] += d_means[given * pitch + w] * fast_inverse(b.counts[given]);
  });
  __syncthreads();
  float* partial = r.partials + (long)b.tile * r.partial_len + r.partial_layer + layer * r.partial_layer_len;
  layer_norm_backward(r.shared.values, r.shared.normed, r.shared.states, pitch, b.rows, width,
                      layer_parameters(r, r.mixing_norm, layer), partial + 2 * width);
  multiply(r.shared.states, pitch, b.row_tiles, packed(r, r.backward.out, layer), width, width, r.shared.hidden, pitch,
           NO_BARRIER);
  store_rows(r.shared.states, r.d_states + after * width, pitch, b.rows, width);
  __syncthreads();
  store_rows(r.shared.hidden, r.d_attended + b.state * width, pitch, b.rows, width);
  head_products(r.shared.hidden, pitch, r.values + (layer * (long)r.max_states + b.e.first_state) * width, classes, r.heads,
                part, b.count, items, 1.f, d_offset, false);
  __syncthreads();
#pragma unroll 1
  for (int row = warp; row < r.heads * b.count; row += RELABEL_WARPS) {
    // Backward pass of the softmax: d_logit = weight (d_weight - sum of weight d_weight), by one warp per item and
    // head.
    const float* own = weights + row * weight_pitch;
    float *d_own = d_weights + row * weight_pitch, mean = 0.f;
#pragma unroll 1
    for (int j = lane; j < items; j += 32) mean += own[j] * d_own[j];
    mean = warp_sum(mean);
    const int head = row / b.count;
    float* out = r.d_attention + planes + (head * items + row - head * b.count) * items;
#pragma unroll 1
    for (int j = lane; j < weight_pitch; j += 32) {
      const float d_logit = j < items ? own[j] * (d_own[j] - mean) : 0.f;
      d_own[j] = d_logit;
      if (j < items) out[j] = d_logit;
    }
  }
  __syncthreads();
  const long item = layer * (long)r.max_items + b.e.first_item;
  weighted_sums(d_offset, r.keys + item * width, items, 1, r.heads, part, b.count, r.attention_scale, r.shared.items[0], pitch,
                false);
  __syncthreads();
  store_rows(r.shared.items[0], r.d_queries + (item + b.first) * width, pitch, b.count, width);
}

// The item view's backward pass, from the gradient of what it added to the hidden units, [T][W] in `items[2]`, to that
// of its projection, `d_projected`.
DEVICE void view_backward(const Relabel& r, const Block& b) {
  const int width = r.view_width, pitch = pitch_of(width);
  multiply(r.shared.items[2], pitch_of(r.width), b.item_tiles, r.packed + r.packed_item_back / 4, r.width, width,
           r.shared.items[1], pitch, BARRIER);
  float* d_projected = b.shared + r.shared.items[0];
  each_element(b.count, width, [&](int i, int w) { d_projected[i * pitch + w] = 0.f; });
  __syncthreads();
  load_rows(r.projected + b.item * width, r.shared.items[2], pitch, b.count, width);
  finish_loads();
  __syncthreads();
  layer_norm_backward(r.shared.items[2], r.shared.items[1], r.shared.items[0], pitch, b.count, width,
                      r.parameters + r.view_norm, r.partials + (long)b.tile * r.partial_len + r.partial_view_norm);
  store_rows(r.shared.items[0], r.d_projected + b.item * width, pitch, b.count, width);
}

// The input layer's backward pass, from the gradient of its states in shared memory, written before the last barrier,
// to that of its hidden units, `d_start`; and the item view's.
DEVICE void input_backward(const Relabel& r, const Block& b) {
  const int width = r.width, pitch = pitch_of(width), classes = b.e.classes;
  float *d_hidden = b.shared + r.shared.hidden, *d_items = b.shared + r.shared.items[2];
  multiply(r.shared.states, pitch, b.row_tiles, r.packed + r.packed_start_back / 4, width, width, r.shared.hidden, pitch,
           NO_BARRIER);
  store_rows(r.shared.states, r.d_states + b.state * width, pitch, b.rows, width);
  __syncthreads();
  activation_backward(r.shared.hidden, pitch, b.rows, width, r.start_slopes + b.state * width, r.d_start + b.state * width);
  if (r.view_target == 0) return;
  __syncthreads();
  each_element(b.count, width, [&](int i, int w) {
    const long at = (b.item + i) * width + w;
    float sum = 0.f;
    if (r.view_target == 1) {
#pragma unroll 1
      for (int c = 0; c < classes; c++) sum += d_hidden[(i * classes + c) * pitch + w];
    } else {
      sum = r.d_outlier[b.item + i] * r.parameters[r.view_out + w] * r.view_slopes[at];
    }
    d_items[i * pitch + w] = sum;
    r.d_view_hidden[at] = sum;
  });
  view_backward(r, b);
}

// Attention's backward pass of layer `layer` as seen from the items that are attended to: gradients of keys and values,
// which need the attention weights of all items to the tile's (columns of the map, so the other tiles must have run
// attend_backward_rows), and of the states before attention. Then `mixing_backward` of the layer below, or the input
// layer. Grid: one block per tile.
DEVICE void attend_backward_columns(const Relabel& r, const Block& b, int layer) {
  const int width = r.width, classes = b.e.classes, items = b.e.items, part = width / r.heads;
  const int pitch = pitch_of(width), double_pitch = pitch_of(2 * width), weight_pitch = weight_pitch_of(items);
  float *d_normed = b.shared + r.shared.normed, *d_pooled = b.shared + r.shared.items[0];
  // Attention weights and gradients of logits, each [H][count][M]: transposed, so that `weighted_sums` applies, and
  // with padded rows.
  const int d_offset = r.shared.extra + r.heads * b.count * weight_pitch;
  float *weights = b.shared + r.shared.extra, *d_logits = b.shared + d_offset;
  const long item = layer * (long)r.max_items + b.item, state = layer * (long)r.max_states + b.state;
  const long planes = ((long)b.e.first_pair * r.layers + (long)layer * items * items) * r.heads + b.first;
  load_rows(r.d_queries + item * width, r.shared.items[1], pitch, b.count, width);
#pragma unroll 1
  for (int row = threadIdx.x >> 3; row < r.heads * weight_pitch; row += RELABEL_THREADS / 8) {
    const int head = row / weight_pitch, i = row - head * weight_pitch, from = (head * items + i) * items;
#pragma unroll 1
    for (int j = threadIdx.x & 7; j < b.count; j += 8) {
      const int to = (head * b.count + j) * weight_pitch + i;
      if (i < items) {
        copy_word_async(shared_address(weights + to), r.attention + planes + from + j);
        copy_word_async(shared_address(d_logits + to), r.d_attention + planes + from + j);
      } else {
        weights[to] = d_logits[to] = 0.f;
      }
    }
  }
  commit_copies();
  load_rows(r.d_states + ((2 * layer + 1) * (long)r.max_states + b.state) * width, r.shared.states, pitch, b.rows, width);
  load_rows(r.states + (2 * layer * (long)r.max_states + b.state) * width, r.shared.hidden, pitch, b.rows, width);
  commit_copies();
  // The first group has arrived: all that the sums need.
  wait_for_copies<1>();
  __syncthreads();
  weighted_sums(d_offset, r.queries + (layer * (long)r.max_items + b.e.first_item) * width, items, 1, r.heads, part, b.count,
                r.attention_scale, r.shared.items[2], pitch, false);
  weighted_sums(r.shared.extra, r.d_attended + (long)b.e.first_state * width, items, classes, r.heads, part, b.count, 1.f,
                r.shared.values, pitch, true);
  wait_for_copies<0>();
  // The first two products give the same thread the same elements, so no barrier is needed between them.
  multiply(r.shared.items[1], pitch, b.item_tiles, packed(r, r.backward.query, layer), width, 2 * width, r.shared.items[0],
           double_pitch, BARRIER);
  multiply(r.shared.items[2], pitch, b.item_tiles, packed(r, r.backward.key, layer), width, 2 * width, r.shared.items[0],
           double_pitch, ADD);
  multiply(r.shared.values, pitch, b.row_tiles, packed(r, r.backward.value, layer), width, width, r.shared.normed, pitch,
           NO_BARRIER);
  store_rows(r.shared.items[2], r.d_keys + item * width, pitch, b.count, width);
  store_rows(r.shared.values, r.d_values + state * width, pitch, b.rows, width);
  __syncthreads();
  const float inverse_count = fast_inverse(classes);
  each_element(b.rows, width, [&](int row, int w) {
    const int i = divide(b.by_classes, row), c = row - i * classes;
    float sum = d_pooled[i * double_pitch + w] * inverse_count;
    if (b.labels[i] == c) sum += d_pooled[i * double_pitch + width + w];
    d_normed[row * pitch + w] += sum;
  });
  __syncthreads();
  layer_norm_backward(r.shared.hidden, r.shared.normed, r.shared.states, pitch, b.rows, width,
                      layer_parameters(r, r.attention_norm, layer),
                      r.partials + (long)b.tile * r.partial_len + r.partial_layer + layer * r.partial_layer_len);
  // The layer norm's last loop still reads its buffers, which the next function overwrites.
  __syncthreads();
  if (layer > 0) mixing_backward(r, b, layer - 1);
  else input_backward(r, b);
}

}  // namespace relabel
