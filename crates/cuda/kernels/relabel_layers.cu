// The layers of Relabel, forward and backward, one thread block per tile (relabel.cuh).
//
// Forward: relabel_input, then per layer relabel_attend and relabel_mix. Backward: relabel_output_backward, then per layer,
// from the last, relabel_attend_backward_rows (what item i of the tile attends to) and relabel_attend_backward_columns
// (who attends to item j of the tile). The backward pass of mixing is split between them, because the gradient of a class's
// mean is a sum over tiles.
#pragma once
#include "relabel.cuh"
#include "relabel_edges.cu"

namespace relabel {

// The factor of dropout, as in crates/nn/src/layers/dropout.rs.
DEVICE float dropout_factor(const Relabel& r, const Episode& e, u32 index) {
  if (r.dropout_threshold == 0) return r.dropout_scale;
  u32 x = index * 0x9e3779b9u ^ e.seed_low;
  x = (x ^ (x >> 16)) * 0x7feb352du + e.seed_high;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return (x >> 1) >= r.dropout_threshold ? r.dropout_scale : 0.f;
}

// The item view: norm(h P), with h the row minus the mean of all features at unit length, after dropout. Leaves what it adds
// to the hidden units of the input layer, [T][W], in `items[1]`, or writes what it adds to the logits of "none".
DEVICE void view_forward(const Relabel& r, const Block& b) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, dim = r.view_dim, width = r.view_width;
  const int pitch = pitch_of(width), state_pitch = pitch_of(r.width);
  const Row* rows = (const Row*)(slot(r) + r.layout.rows) + b.e.first_row + b.first;
  const float* mean = r.parameters + r.view_mean;
  for (int i = warp; i < b.count; i += RELABEL_WARPS) {
    const Row row = rows[i];
    float* out = r.view_rows + (b.item + i) * r.view_pitch;
    float square = 0.f;
    for (int d = lane; d < dim; d += 32) {
      const float value = row_value(row, d) - mean[d];
      square += value * value;
    }
    const float length = sqrtf(warp_sum(square)), scale = length > 0.f ? 1.f / length : 1.f;
    const u32 index = (u32)(b.e.batch_item + b.first + i) * (u32)dim;
    for (int d = lane; d < dim; d += 32)
      out[d] = (row_value(row, d) - mean[d]) * scale * dropout_factor(r, b.e, index + d);
  }
  __syncthreads();
  float *projected = b.shared + r.shared.items[0], *view = b.shared + r.shared.items[2], *of_items = b.shared + r.shared.items[1];
  tile_product(r.view_rows + b.item * r.view_pitch, r.view_pitch, b.item_tiles, r.packed + r.packed_view / 4, dim, width,
               [&](int row, int column, float sum) {
                 projected[row * pitch + column] = sum;
                 if (row < b.count) r.projected[(b.item + row) * width + column] = sum;
               });
  __syncthreads();
  layer_norm(projected, view, pitch, b.count, width, r.parameters + r.view_norm, r.view + b.item * width);
  __syncthreads();
  const bool to_states = r.view_target == 1;
  tile_product(view, pitch, b.item_tiles, r.packed + r.packed_item / 4, width, r.width, [&](int row, int column, float sum) {
    if (row >= b.count) return;
    if (!to_states) {
      sum += r.parameters[r.view_bias + column];
      r.view_hidden[(b.item + row) * r.width + column] = sum;
      sum = gelu(sum);
      r.view_activated[(b.item + row) * r.width + column] = sum;
    }
    of_items[row * state_pitch + column] = sum;
  });
  __syncthreads();
  if (to_states) return;
  for (int i = warp; i < b.count; i += RELABEL_WARPS) {
    float sum = 0.f;
    for (int w = lane; w < r.width; w += 32) sum += of_items[i * state_pitch + w] * r.parameters[r.view_out + w];
    sum = warp_sum(sum);
    if (lane == 0) r.outlier[b.item + i] = sum;
  }
}

// What attention of a layer reads: normalised states, queries and keys of items, values of states. The states of the tile
// are in shared memory.
DEVICE void attention_inputs(const Relabel& r, const Block& b, int layer) {
  const int width = r.width, pitch = pitch_of(width), double_pitch = pitch_of(2 * width), classes = b.e.classes;
  float *states = b.shared + r.shared.states, *normed = b.shared + r.shared.normed, *pooled = b.shared + r.shared.items[0];
  layer_norm(states, normed, pitch, b.rows, width, layer_parameters(r, r.attention_norm, layer),
             r.normed + (2 * layer * (long)r.max_states + b.state) * width);
  __syncthreads();
  const long item = layer * (long)r.max_items + b.item, state = layer * (long)r.max_states + b.state;
  const float inverse_count = 1.f / classes;
  for (int task = threadIdx.x; task < b.count * width; task += RELABEL_THREADS) {
    const int i = task / width, w = task - i * width;
    const float* column = normed + i * classes * pitch + w;
    float mean = 0.f;
    for (int c = 0; c < classes; c++) mean += column[c * pitch] * inverse_count;
    const float at_given = column[b.given[b.first + i] * pitch];
    pooled[i * double_pitch + w] = mean;
    pooled[i * double_pitch + width + w] = at_given;
    r.pooled[(item + i) * 2 * width + w] = mean;
    r.pooled[(item + i) * 2 * width + width + w] = at_given;
  }
  __syncthreads();
  const float* bias = layer_parameters(r, r.query_bias, layer);
  tile_product(pooled, double_pitch, b.item_tiles, packed(r, r.forward.query, layer), 2 * width, width,
               [&](int row, int column, float sum) {
                 if (row < b.count) r.queries[(item + row) * width + column] = sum + bias[column];
               });
  tile_product(pooled, double_pitch, b.item_tiles, packed(r, r.forward.key, layer), 2 * width, width,
               [&](int row, int column, float sum) {
                 if (row < b.count) r.keys[(item + row) * width + column] = sum;
               });
  tile_product(normed, pitch, b.row_tiles, packed(r, r.forward.value, layer), width, width,
               [&](int row, int column, float sum) {
                 if (row < b.rows) r.values[(state + row) * width + column] = sum;
               });
}

// The item view, the input layer, and the inputs of attention of layer 0.
extern "C" __global__ void __launch_bounds__(RELABEL_THREADS) relabel_input(Relabel r) {
  Block b;
  if (!open_tile(r, b)) return;
  if (r.view_target) view_forward(r, b);
  const int width = r.width, pitch = pitch_of(width), feature_pitch = pitch_of(STATE_FEATURES);
  float *features = b.shared + r.shared.extra, *activated = b.shared + r.shared.normed, *states = b.shared + r.shared.states;
  const float* of_items = b.shared + r.shared.items[1];
  load_rows(r.state_features + b.state * STATE_FEATURES, features, feature_pitch, b.rows, STATE_FEATURES);
  for (int i = threadIdx.x; i < b.rows * 32; i += RELABEL_THREADS)
    if ((i & 31) >= STATE_FEATURES) features[(i >> 5) * feature_pitch + (i & 31)] = 0.f;
  finish_loads();
  __syncthreads();
  tile_product(features, feature_pitch, b.row_tiles, r.packed + r.packed_features / 4, STATE_FEATURES, width,
               [&](int row, int column, float sum) {
                 if (row >= b.rows) return;
                 sum += r.parameters[r.features_bias + column];
                 if (r.view_target == 1) sum += of_items[row / b.e.classes * pitch + column];
                 const float value = gelu(sum);
                 r.start_hidden[(b.state + row) * width + column] = sum;
                 r.start_activated[(b.state + row) * width + column] = value;
                 activated[row * pitch + column] = value;
               });
  __syncthreads();
  tile_product(activated, pitch, b.row_tiles, r.packed + r.packed_start / 4, width, width,
               [&](int row, int column, float sum) {
                 if (row >= b.rows) return;
                 sum += r.parameters[r.start_bias + column];
                 states[row * pitch + column] = sum;
                 r.states[(b.state + row) * width + column] = sum;
               });
  __syncthreads();
  attention_inputs(r, b, 0);
}

// For each column (class and part of the width) of the tile's items: sum over all items j of the episode of
// weights[head][item][j] rows[j][column]; `stride` and `step` are the distances between weights of items and of j.
template <class Out>
DEVICE void weighted_sums(const Relabel& r, const Block& b, const float* weights, int stride, int step, const float* rows,
                          Out out) {
  const int columns = b.e.classes * r.width, items = b.e.items, plane = b.count * items;
  for (int column = threadIdx.x; column < columns; column += RELABEL_THREADS) {
    const float* head = weights + divide(r.by_head_width, column % r.width) * plane;
    for (int first = 0; first < b.count; first += ITEM_SUMS) {
      float sums[ITEM_SUMS] = {};
#pragma unroll 5
      for (int j = 0; j < items; j++) {
        const float value = rows[(long)j * columns + column];
#pragma unroll
        for (int i = 0; i < ITEM_SUMS; i++) sums[i] += head[min(first + i, b.count - 1) * stride + j * step] * value;
      }
#pragma unroll
      for (int i = 0; i < ITEM_SUMS; i++)
        if (first + i < b.count) out(first + i, column, sums[i]);
    }
  }
}

// out(head, item i of the tile, j, sum over k below `length` of left(head, i, k) right(head, j, k)). The factors are split, so
// that the sums are as exact as in f32.
template <class Left, class Right, class Out>
DEVICE void head_products(const Relabel& r, const Block& b, int length, Left left, Right right, Out out) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane >> 2, quad = lane & 3;
  const int n_tiles = (b.e.items + 7) >> 3, per_head = n_tiles * b.item_tiles;
  for (int unit = warp; unit < r.heads * per_head; unit += RELABEL_WARPS) {
    const int head = unit / per_head, rest = unit - head * per_head, nt = rest / b.item_tiles, mt = rest - nt * b.item_tiles;
    const int j = min(nt * 8 + group, b.e.items - 1);
    float sums[4] = {};
#pragma unroll 2
    for (int k0 = 0; k0 < length; k0 += 8) {
      u32 a[4], a_low[4], w[2], w_low[2];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int k = k0 + quad + half * 4;
        split_tf32(k < length ? right(head, j, k) : 0.f, &w[half], &w_low[half]);
#pragma unroll
        for (int m = 0; m < 2; m++) {
          const int i = min(mt * 16 + m * 8 + group, b.count - 1);
          split_tf32(k < length ? left(head, i, k) : 0.f, &a[half * 2 + m], &a_low[half * 2 + m]);
        }
      }
      mma_tf32(sums, a_low, w);
      mma_tf32(sums, a, w_low);
      mma_tf32(sums, a, w);
    }
#pragma unroll
    for (int s = 0; s < 4; s++) {
      const int i = mt * 16 + group + (s >> 1) * 8, column = nt * 8 + 2 * quad + (s & 1);
      if (i < b.count && column < b.e.items) out(head, i, column, sums[s]);
    }
  }
}

// Attention, its output added to the states, and the pools over classes that mixing reads.
extern "C" __global__ void __launch_bounds__(RELABEL_THREADS) relabel_attend(Relabel r, int layer) {
  Block b;
  if (!open_tile(r, b)) return;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int width = r.width, pitch = pitch_of(width), items = b.e.items, classes = b.e.classes, part = width / r.heads;
  float *states = b.shared + r.shared.states, *normed = b.shared + r.shared.normed, *attended = b.shared + r.shared.values;
  float* weights = b.shared + r.shared.extra;  // [H][count][M]
  const long first_item = layer * (long)r.max_items + b.e.first_item, state = layer * (long)r.max_states + b.state;
  const float *queries = r.queries + (first_item + b.first) * width, *keys = r.keys + first_item * width;
  float* planes = r.attention + ((long)b.e.first_pair * r.layers + (long)layer * items * items) * r.heads;
  load_rows(r.states + (2 * layer * (long)r.max_states + b.state) * width, states, pitch, b.rows, width);
  for (int head = 0; head < r.heads; head++)
    for (int i = threadIdx.x; i < b.count * items; i += RELABEL_THREADS)
      copy_word_async(shared_address(weights + head * b.count * items + i),
                      planes + ((long)head * items + b.first) * items + i);
  finish_loads();
  __syncthreads();
  head_products(
      r, b, part, [&](int head, int i, int k) { return queries[(long)i * width + head * part + k]; },
      [&](int head, int j, int k) { return keys[(long)j * width + head * part + k]; },
      [&](int head, int i, int j, float sum) { weights[(head * b.count + i) * items + j] += sum * r.attention_scale; });
  __syncthreads();
  for (int row = warp; row < r.heads * b.count; row += RELABEL_WARPS) {
    float *own = weights + row * items, largest = own[0], total = 0.f;
    for (int j = lane; j < items; j += 32) largest = fmaxf(largest, own[j]);
    largest = warp_max(largest);
    for (int j = lane; j < items; j += 32) {
      own[j] = expf(own[j] - largest);
      total += own[j];
    }
    const float scale = 1.f / warp_sum(total);
    float* out = planes + ((long)(row / b.count) * items + b.first + row % b.count) * items;
    for (int j = lane; j < items; j += 32) out[j] = own[j] *= scale;
  }
  __syncthreads();
  const float* values = r.values + (layer * (long)r.max_states + b.e.first_state) * width;
  weighted_sums(r, b, weights, items, 1, values, [&](int i, int column, float sum) {
    const int c = column / width, w = column - c * width, row = i * classes + c;
    attended[row * pitch + w] = sum;
    r.attended[(state + row) * width + w] = sum;
  });
  __syncthreads();
  const long after = (2 * layer + 1) * (long)r.max_states + b.state;
  tile_product(attended, pitch, b.row_tiles, packed(r, r.forward.out, layer), width, width,
               [&](int row, int column, float sum) {
                 if (row >= b.rows) return;
                 sum += states[row * pitch + column];
                 states[row * pitch + column] = sum;
                 r.states[(after + row) * width + column] = sum;
               });
  __syncthreads();
  layer_norm(states, normed, pitch, b.rows, width, layer_parameters(r, r.mixing_norm, layer), r.normed + after * width);
  __syncthreads();
  for (int task = threadIdx.x; task < b.count * width; task += RELABEL_THREADS) {
    const int i = task / width, w = task - i * width;
    const float* column = normed + i * classes * pitch + w;
    float mean = 0.f, largest = column[0];
    int argmax = 0;
    for (int c = 0; c < classes; c++) {
      const float value = column[c * pitch];
      mean += value * (1.f / classes);
      if (value > largest) {
        largest = value;
        argmax = c;
      }
    }
    const long item = first_item + b.first + i;
    r.pools[item * 2 * width + w] = mean;
    r.pools[item * 2 * width + width + w] = largest;
    r.argmax[item * width + w] = argmax;
  }
}

// Mixing, its output added to the states; then the inputs of attention of the next layer, or the logits.
extern "C" __global__ void __launch_bounds__(RELABEL_THREADS) relabel_mix(Relabel r, int layer) {
  Block b;
  if (!open_tile(r, b)) return;
  const int width = r.width, units = r.hidden, classes = b.e.classes;
  const int pitch = pitch_of(width), double_pitch = pitch_of(2 * width), unit_pitch = pitch_of(units);
  float *states = b.shared + r.shared.states, *normed = b.shared + r.shared.normed, *hidden = b.shared + r.shared.hidden;
  float *pools = b.shared + r.shared.items[0], *of_items = b.shared + r.shared.items[1];
  float *means = b.shared + r.shared.classes, *of_classes = b.shared + r.shared.of_classes;
  const long before = (2 * layer + 1) * (long)r.max_states, item = layer * (long)r.max_items + b.item;
  load_rows(r.states + (before + b.state) * width, states, pitch, b.rows, width);
  load_rows(r.normed + (before + b.state) * width, normed, pitch, b.rows, width);
  load_rows(r.pools + item * 2 * width, pools, double_pitch, b.count, 2 * width);
  const float* all = r.normed + (before + b.e.first_state) * width;
  for (int task = threadIdx.x; task < classes * width; task += RELABEL_THREADS) {
    const int c = task / width, w = task - c * width;
    const float inverse_count = 1.f / max(b.counts[c], 1);
    float mean = 0.f;
#pragma unroll 5
    for (int i = 0; i < b.e.items; i++) {
      const float value = b.given[i] == c ? all[((long)i * classes + c) * width + w] : 0.f;
      mean += value * inverse_count;
    }
    means[c * pitch + w] = mean;
    if (b.first == 0) r.class_means[(layer * (long)r.max_class_rows + b.e.first_class + c) * width + w] = mean;
  }
  finish_loads();
  __syncthreads();
  const float* bias = layer_parameters(r, r.class_bias, layer);
  tile_product(pools, double_pitch, b.item_tiles, packed(r, r.forward.item, layer), 2 * width, units,
               [&](int row, int column, float sum) { of_items[row * unit_pitch + column] = sum; });
  tile_product(means, pitch, b.class_tiles, packed(r, r.forward.of_class, layer), width, units,
               [&](int row, int column, float sum) { of_classes[row * unit_pitch + column] = sum + bias[column]; });
  __syncthreads();
  const long state = layer * (long)r.max_states + b.state;
  tile_product(normed, pitch, b.row_tiles, packed(r, r.forward.state, layer), width, units,
               [&](int row, int column, float sum) {
                 if (row >= b.rows) return;
                 const int i = row / classes, c = row - i * classes;
                 sum += of_items[i * unit_pitch + column] + of_classes[c * unit_pitch + column];
                 const float value = gelu(sum);
                 hidden[row * unit_pitch + column] = value;
                 r.hidden_units[(state + row) * units + column] = sum;
                 r.activated[(state + row) * units + column] = value;
               });
  __syncthreads();
  const long after = (2 * layer + 2) * (long)r.max_states + b.state;
  tile_product(hidden, unit_pitch, b.row_tiles, packed(r, r.forward.mixed, layer), units, width,
               [&](int row, int column, float sum) {
                 if (row >= b.rows) return;
                 sum += states[row * pitch + column];
                 states[row * pitch + column] = sum;
                 r.states[(after + row) * width + column] = sum;
               });
  __syncthreads();
  if (layer + 1 < r.layers) return attention_inputs(r, b, layer + 1);
  layer_norm(states, normed, pitch, b.rows, width, r.parameters + r.out_norm, r.normed + after * width);
  __syncthreads();
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int row = warp; row < b.rows; row += RELABEL_WARPS)
    for (int o = 0; o < OUTPUTS; o++) {
      float sum = 0.f;
      for (int w = lane; w < width; w += 32) sum += normed[row * pitch + w] * r.parameters[r.out + w * OUTPUTS + o];
      sum = warp_sum(sum);
      if (lane == 0) r.logits[(b.state + row) * OUTPUTS + o] = sum;
    }
}

// ---- Backward

// The first part of mixing's backward pass: from the gradient of its output, in shared memory, to those of the hidden units
// and of the normalised states, still without the part through the means of the classes.
DEVICE void mixing_backward(const Relabel& r, const Block& b, int layer) {
  const int width = r.width, units = r.hidden, classes = b.e.classes;
  const int pitch = pitch_of(width), double_pitch = pitch_of(2 * width), unit_pitch = pitch_of(units);
  float *d_states = b.shared + r.shared.states, *d_normed = b.shared + r.shared.normed, *d_hidden = b.shared + r.shared.hidden;
  float *d_pools = b.shared + r.shared.items[0], *d_of_items = b.shared + r.shared.items[1];
  int* argmax = (int*)(b.shared + r.shared.items[2]);
  const long state = layer * (long)r.max_states + b.state, item = layer * (long)r.max_items + b.item;
  store_rows(d_states, r.d_states + ((2 * layer + 2) * (long)r.max_states + b.state) * width, pitch, b.rows, width);
  // The hidden units before GELU, which their gradients replace.
  load_rows(r.hidden_units + state * units, d_hidden, unit_pitch, b.rows, units);
  load_rows(r.argmax + item * width, argmax, pitch, b.count, width);
  finish_loads();
  __syncthreads();
  tile_product(d_states, pitch, b.row_tiles, packed(r, r.backward.mixed, layer), width, units,
               [&](int row, int column, float sum) {
                 if (row >= b.rows) return;
                 sum *= gelu_slope(d_hidden[row * unit_pitch + column]);
                 d_hidden[row * unit_pitch + column] = sum;
                 r.d_hidden[(state + row) * units + column] = sum;
               });
  __syncthreads();
  for (int task = threadIdx.x; task < b.count * units; task += RELABEL_THREADS) {
    const int i = task / units, u = task - i * units;
    float sum = 0.f;
    for (int c = 0; c < classes; c++) sum += d_hidden[(i * classes + c) * unit_pitch + u];
    d_of_items[i * unit_pitch + u] = sum;
    r.d_of_items[(item + i) * units + u] = sum;
  }
  for (int task = threadIdx.x; task < classes * units; task += RELABEL_THREADS) {
    const int c = task / units, u = task - c * units;
    float sum = 0.f;
    for (int i = 0; i < b.count; i++) sum += d_hidden[(i * classes + c) * unit_pitch + u];
    r.class_sums[(long)b.tile * r.max_class_sums + task] = sum;
  }
  __syncthreads();
  tile_product(d_hidden, unit_pitch, b.row_tiles, packed(r, r.backward.state, layer), units, width,
               [&](int row, int column, float sum) { d_normed[row * pitch + column] = sum; });
  tile_product(d_of_items, unit_pitch, b.item_tiles, packed(r, r.backward.item, layer), units, 2 * width,
               [&](int row, int column, float sum) { d_pools[row * double_pitch + column] = sum; });
  __syncthreads();
  const float inverse_count = 1.f / classes;
  for (int task = threadIdx.x; task < b.rows * width; task += RELABEL_THREADS) {
    const int row = task / width, w = task - row * width, i = row / classes, c = row - i * classes;
    float sum = d_normed[row * pitch + w] + inverse_count * d_pools[i * double_pitch + w];
    if (argmax[i * pitch + w] == c) sum += d_pools[i * double_pitch + width + w];
    r.d_normed[b.state * width + task] = sum;
  }
}

// From the gradient of the logits to that of the last states; then the last layer's mixing.
extern "C" __global__ void __launch_bounds__(RELABEL_THREADS) relabel_output_backward(Relabel r) {
  Block b;
  if (!open_tile(r, b)) return;
  const int width = r.width, pitch = pitch_of(width);
  float *d_states = b.shared + r.shared.states, *d_normed = b.shared + r.shared.normed, *states = b.shared + r.shared.values;
  load_rows(r.states + (2 * r.layers * (long)r.max_states + b.state) * width, states, pitch, b.rows, width);
  for (int task = threadIdx.x; task < b.rows * width; task += RELABEL_THREADS) {
    const int row = task / width, w = task - row * width;
    const float* d = r.d_logits + (b.state + row) * OUTPUTS;
    const float* out = r.parameters + r.out + w * OUTPUTS;
    d_normed[row * pitch + w] = d[0] * out[0] + d[1] * out[1] + d[2] * out[2];
    d_states[row * pitch + w] = 0.f;
  }
  finish_loads();
  __syncthreads();
  layer_norm_backward(states, d_normed, d_states, pitch, b.rows, width, r.parameters + r.out_norm,
                      r.partials + (long)b.tile * r.partial_len + r.partial_out_norm);
  __syncthreads();
  mixing_backward(r, b, r.layers - 1);
}

// The second part of mixing's backward pass, then attention's as seen from the tile's items: gradients of the attention
// logits and of the queries.
extern "C" __global__ void __launch_bounds__(RELABEL_THREADS) relabel_attend_backward_rows(Relabel r, int layer) {
  Block b;
  if (!open_tile(r, b)) return;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const int width = r.width, units = r.hidden, classes = b.e.classes, items = b.e.items;
  const int pitch = pitch_of(width), unit_pitch = pitch_of(units);
  float *d_states = b.shared + r.shared.states, *d_normed = b.shared + r.shared.normed, *scratch = b.shared + r.shared.values;
  float *d_means = b.shared + r.shared.classes, *d_of_classes = b.shared + r.shared.of_classes;
  float* d_weights = b.shared + r.shared.extra;  // [H][count][M]
  load_rows(r.d_states + ((2 * layer + 2) * (long)r.max_states + b.state) * width, d_states, pitch, b.rows, width);
  load_rows(r.d_normed + b.state * width, d_normed, pitch, b.rows, width);
  const long after = (2 * layer + 1) * (long)r.max_states + b.state;
  load_rows(r.states + after * width, scratch, pitch, b.rows, width);
  for (int task = threadIdx.x; task < classes * units; task += RELABEL_THREADS) {
    const float* sums = r.class_sums + (long)b.e.first_tile * r.max_class_sums + task;
    float sum = 0.f;
    for (int tile = 0; tile < b.e.tiles; tile++) sum += sums[(long)tile * r.max_class_sums];
    d_of_classes[task / units * unit_pitch + task % units] = sum;
    if (b.first == 0) r.d_of_classes[(layer * (long)r.max_class_rows + b.e.first_class) * units + task] = sum;
  }
  finish_loads();
  __syncthreads();
  tile_product(d_of_classes, unit_pitch, b.class_tiles, packed(r, r.backward.of_class, layer), units, width,
               [&](int row, int column, float sum) { d_means[row * pitch + column] = sum; });
  __syncthreads();
  for (int task = threadIdx.x; task < b.count * width; task += RELABEL_THREADS) {
    const int i = task / width, w = task - i * width, given = b.given[b.first + i];
    d_normed[(i * classes + given) * pitch + w] += d_means[given * pitch + w] * (1.f / b.counts[given]);
  }
  __syncthreads();
  float* partial = r.partials + (long)b.tile * r.partial_len + r.partial_layer + layer * r.partial_layer_len;
  layer_norm_backward(scratch, d_normed, d_states, pitch, b.rows, width, layer_parameters(r, r.mixing_norm, layer),
                      partial + 2 * width);
  __syncthreads();
  store_rows(d_states, r.d_states + after * width, pitch, b.rows, width);
  tile_product(d_states, pitch, b.row_tiles, packed(r, r.backward.out, layer), width, width,
               [&](int row, int column, float sum) {
                 if (row >= b.rows) return;
                 scratch[row * pitch + column] = sum;
                 r.d_attended[(b.state + row) * width + column] = sum;
               });
  __syncthreads();
  const float* values = r.values + (layer * (long)r.max_states + b.e.first_state) * width;
  const int part = width / r.heads;
  head_products(
      r, b, classes * part,
      [&](int head, int i, int k) {
        const int c = divide(r.by_head_width, k);
        return scratch[(i * classes + c) * pitch + head * part + k - c * part];
      },
      [&](int head, int j, int k) {
        const int c = divide(r.by_head_width, k);
        return values[((long)j * classes + c) * width + head * part + k - c * part];
      },
      [&](int head, int i, int j, float sum) { d_weights[(head * b.count + i) * items + j] = sum; });
  __syncthreads();
  const long planes = ((long)b.e.first_pair * r.layers + (long)layer * items * items) * r.heads;
  for (int row = warp; row < r.heads * b.count; row += RELABEL_WARPS) {
    const long plane_row = planes + ((long)(row / b.count) * items + b.first + row % b.count) * items;
    const float* weights = r.attention + plane_row;
    float *own = d_weights + row * items, mean = 0.f;
    for (int j = lane; j < items; j += 32) mean += weights[j] * own[j];
    mean = warp_sum(mean);
    for (int j = lane; j < items; j += 32) {
      const float d_logit = weights[j] * (own[j] - mean);
      r.d_attention[plane_row + j] = d_logit;
      own[j] = d_logit * r.attention_scale;
    }
  }
  __syncthreads();
  const long item = layer * (long)r.max_items + b.e.first_item;
  const float* keys = r.keys + item * width;
  for (int task = threadIdx.x; task < b.count * width; task += RELABEL_THREADS) {
    const int i = task / width, w = task - i * width;
    const float* own = d_weights + (divide(r.by_head_width, w) * b.count + i) * items;
    float sum = 0.f;
#pragma unroll 4
    for (int j = 0; j < items; j++) sum += own[j] * keys[(long)j * width + w];
    r.d_queries[(item + b.first) * width + task] = sum;
  }
}

// The item view's backward pass, from the gradient of what it added, [T][W] in `items[2]`.
DEVICE void view_backward(const Relabel& r, const Block& b) {
  const int width = r.view_width, pitch = pitch_of(width);
  float *d_view = b.shared + r.shared.items[1], *d_projected = b.shared + r.shared.items[0], *d_hidden = b.shared + r.shared.items[2];
  tile_product(d_hidden, pitch_of(r.width), b.item_tiles, r.packed + r.packed_item_back / 4, r.width, width,
               [&](int row, int column, float sum) {
                 d_view[row * pitch + column] = sum;
                 d_projected[row * pitch + column] = 0.f;
               });
  __syncthreads();
  float* projected = d_hidden;
  load_rows(r.projected + b.item * width, projected, pitch, b.count, width);
  finish_loads();
  __syncthreads();
  layer_norm_backward(projected, d_view, d_projected, pitch, b.count, width,
                      r.parameters + r.view_norm, r.partials + (long)b.tile * r.partial_len + r.partial_view_norm);
  __syncthreads();
  store_rows(d_projected, r.d_projected + b.item * width, pitch, b.count, width);
}

// The input layer's backward pass, from the gradient of its states in shared memory.
DEVICE void input_backward(const Relabel& r, const Block& b) {
  const int width = r.width, pitch = pitch_of(width), classes = b.e.classes;
  float *d_states = b.shared + r.shared.states, *d_hidden = b.shared + r.shared.normed, *d_items = b.shared + r.shared.items[2];
  store_rows(d_states, r.d_states + b.state * width, pitch, b.rows, width);
  // The hidden units before GELU, which their gradients replace.
  load_rows(r.start_hidden + b.state * width, d_hidden, pitch, b.rows, width);
  finish_loads();
  __syncthreads();
  tile_product(d_states, pitch, b.row_tiles, r.packed + r.packed_start_back / 4, width, width,
               [&](int row, int column, float sum) {
                 if (row >= b.rows) return;
                 sum *= gelu_slope(d_hidden[row * pitch + column]);
                 d_hidden[row * pitch + column] = sum;
                 r.d_start[(b.state + row) * width + column] = sum;
               });
  if (r.view_target == 0) return;
  __syncthreads();
  for (int task = threadIdx.x; task < b.count * width; task += RELABEL_THREADS) {
    const int i = task / width, w = task - i * width;
    const long at = b.item * width + task;
    float sum = 0.f;
    if (r.view_target == 1)
      for (int c = 0; c < classes; c++) sum += d_hidden[(i * classes + c) * pitch + w];
    else
      sum = r.d_outlier[b.item + i] * r.parameters[r.view_out + w] * gelu_slope(r.view_hidden[at]);
    d_items[i * pitch + w] = sum;
    r.d_view_hidden[at] = sum;
  }
  __syncthreads();
  view_backward(r, b);
}

// Attention's backward pass as seen from the items that are attended to: gradients of keys and values, and of the states
// before attention; then the mixing of the layer below, or the input layer.
extern "C" __global__ void __launch_bounds__(RELABEL_THREADS) relabel_attend_backward_columns(Relabel r, int layer) {
  Block b;
  if (!open_tile(r, b)) return;
  const int width = r.width, classes = b.e.classes, items = b.e.items;
  const int pitch = pitch_of(width), double_pitch = pitch_of(2 * width), plane = items * b.count;
  float *d_states = b.shared + r.shared.states, *d_normed = b.shared + r.shared.normed, *d_values = b.shared + r.shared.values;
  float *d_pooled = b.shared + r.shared.items[0], *d_queries = b.shared + r.shared.items[1], *d_keys = b.shared + r.shared.items[2];
  float *weights = b.shared + r.shared.extra, *d_logits = weights + r.heads * plane;  // each [H][M][count]
  const long item = layer * (long)r.max_items + b.item, state = layer * (long)r.max_states + b.state;
  const long planes = ((long)b.e.first_pair * r.layers + (long)layer * items * items) * r.heads;
  load_rows(r.d_states + ((2 * layer + 1) * (long)r.max_states + b.state) * width, d_states, pitch, b.rows, width);
  load_rows(r.d_queries + item * width, d_queries, pitch, b.count, width);
  for (int task = threadIdx.x; task < r.heads * plane; task += RELABEL_THREADS) {
    const int row = task / b.count, j = task - row * b.count;
    copy_word_async(shared_address(weights + task), r.attention + planes + (long)row * items + b.first + j);
    copy_word_async(shared_address(d_logits + task), r.d_attention + planes + (long)row * items + b.first + j);
  }
  finish_loads();
  __syncthreads();
  const float* queries = r.queries + (layer * (long)r.max_items + b.e.first_item) * width;
  for (int task = threadIdx.x; task < b.count * width; task += RELABEL_THREADS) {
    const int j = task / width, w = task - j * width;
    const float* own = d_logits + divide(r.by_head_width, w) * plane + j;
    float sum = 0.f;
#pragma unroll 4
    for (int i = 0; i < items; i++) sum += own[i * b.count] * queries[(long)i * width + w];
    sum *= r.attention_scale;
    d_keys[j * pitch + w] = sum;
    r.d_keys[item * width + task] = sum;
  }
  weighted_sums(r, b, weights, 1, b.count, r.d_attended + (long)b.e.first_state * width, [&](int j, int column, float sum) {
    const int c = column / width, w = column - c * width, row = j * classes + c;
    d_values[row * pitch + w] = sum;
    r.d_values[(state + row) * width + w] = sum;
  });
  __syncthreads();
  // Both products give the same thread the same elements, so no barrier is needed between them.
  tile_product(d_queries, pitch, b.item_tiles, packed(r, r.backward.query, layer), width, 2 * width,
               [&](int row, int column, float sum) { d_pooled[row * double_pitch + column] = sum; });
  tile_product(d_keys, pitch, b.item_tiles, packed(r, r.backward.key, layer), width, 2 * width,
               [&](int row, int column, float sum) { d_pooled[row * double_pitch + column] += sum; });
  tile_product(d_values, pitch, b.row_tiles, packed(r, r.backward.value, layer), width, width,
               [&](int row, int column, float sum) { d_normed[row * pitch + column] = sum; });
  __syncthreads();
  float* states = d_values;
  load_rows(r.states + (2 * layer * (long)r.max_states + b.state) * width, states, pitch, b.rows, width);
  for (int task = threadIdx.x; task < b.rows * width; task += RELABEL_THREADS) {
    const int row = task / width, w = task - row * width, i = row / classes, c = row - i * classes;
    float sum = d_pooled[i * double_pitch + w] * (1.f / classes);
    if (b.given[b.first + i] == c) sum += d_pooled[i * double_pitch + width + w];
    d_normed[row * pitch + w] += sum;
  }
  finish_loads();
  __syncthreads();
  layer_norm_backward(states, d_normed, d_states, pitch, b.rows, width, layer_parameters(r, r.attention_norm, layer),
                      r.partials + (long)b.tile * r.partial_len + r.partial_layer + layer * r.partial_layer_len);
  __syncthreads();
  if (layer > 0) mixing_backward(r, b, layer - 1);
  else input_backward(r, b);
}

}  // namespace relabel
