// The gradient of the features of the Relabel head, for training together with a backbone: the part that can run beside
// the backward pass of the layers. relabel_feature_gradient.cu has the rest. relabel.cuh has sizes and buffers (`struct
// Relabel`, `struct Joint`) and explains items, states, pairs and tiles.
//
// Nearly all that the head reads of the features are inner products of rows, so the gradient of a row is a weighted sum
// of the rows of its episode: the kernels compute these weights ("weights of rows"), and relabel_rows_backward
// multiplies them with the features. Only the item view reads the features themselves.
//
// relabel_view_scales and relabel_queries_backward follow the losses; relabel_edge_features_backward follows the last
// kernel that writes gradients of attention logits. src/relabel/joint.rs launches them. The CPU version is in
// crates/nn/src/relabel/{losses,gram_space,edge_network}.rs. As in relabel.cuh, M items, Q queries, C classes; "scales"
// are 1 / length, and the "space" of an episode is the one that `centre` (relabel_edges.cu) moves the products to, or
// that of the features where the head is not centred.
#pragma once
#include "relabel.cuh"
#include "relabel_edges.cu"

namespace relabel {

// ---- Weights of rows
// Per episode a matrix [N][N] of its N = M + Q rows (items, then queries), in tiles of 16 rows and 8 columns, of which
// every lane has its four numbers of an mma_tf32 (common.cuh). row_weight_tiles: tiles in a row of tiles, k_tiles
// below.
DEVICE int row_weight_tiles(int rows) { return (rows + 7) >> 3; }
// Where the weight of row `column` for row `row` is, in floats.
DEVICE int row_weight_position(int k_tiles, int row, int column) {
  const int lane = (row & 7) * 4 + (column & 3), number = ((row >> 3) & 1) + ((column >> 2) & 1) * 2;
  return (((row >> 4) * k_tiles + (column >> 3)) * 32 + lane) * 4 + number;
}

// The gradient of a vector's squared length from that of the logarithm of its scale, one over the length: d log(s) /
// d(x.x) = -s s / 2.
DEVICE float squared_length_gradient(float scale, float d_log_scale) { return -0.5f * scale * scale * d_log_scale; }

#define VIEW_THREADS 256  // of a block of relabel_view_scales: 8 items

// view_scales: one over the length of every item minus the mean of all features, 0 for a zero vector. A warp per item.
// Grid: (ceil(M / 8), episodes), 256 threads.
extern "C" __global__ void __launch_bounds__(VIEW_THREADS) relabel_view_scales(Relabel r, Joint joint) {
  const u32* input = slot(r);
  const Episode e = ((const Episode*)(input + r.layout.episodes))[blockIdx.y];
  const int lane = threadIdx.x & 31, i = blockIdx.x * (VIEW_THREADS / 32) + (threadIdx.x >> 5);
  if (blockIdx.y >= ((const Header*)input)->episodes || i >= e.items) return;
  const float *row = joint.features + (long)(e.first_row + i) * joint.dim, *mean = r.parameters + r.view_mean;
  float square = 0.f;
#pragma unroll 8
  for (int d = lane; d < joint.dim; d += 32) {
    const float value = row[d] - mean[d];
    square += value * value;
  }
  square = warp_sum(square);
  if (lane == 0) joint.view_scales[e.first_item + i] = square > 0.f ? rsqrtf(square) : 0.f;
}

// ---- Queries

// The distance of query q to the prototype of weights w is q.q + w G w - 2 w.p, with G the gram matrix and p the
// products of the items with q. From the gradients d of the distances (`of_losses`): gradients of p, -2 w d summed over
// the classes, [M][Q]; and of G plus its transpose, 2 w_i w_j d summed over classes and queries, [M][M] (`totals`: d
// summed over the queries). Both are in the space of the episode. Where that space is centred, also the gradients of
// centring through the queries, as far as they are sums over queries: a centred product is (x.q - x.m - q.m + m.m)
// times both scales (m the items' mean). Returns this thread's part of the gradient of m.m. Contains a barrier.
DEVICE float products_backward(const Relabel& r, const Joint& joint, const Episode& e) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, items = e.items, classes = e.classes, queries = e.queries;
  const float *weights = joint.of_losses + e.first_scratch, *d_distances = weights + classes * items;
  const float *products = r.products + e.first_product, *query_scales = joint.query_scales + e.first_query;
  float *d_products = joint.d_products + e.first_product, *totals = joint.class_totals + e.first_class;
  float d_mean_square = 0.f;
#pragma unroll 1
  for (int c = warp; c < classes; c += RELABEL_WARPS) {
    float total = 0.f;
#pragma unroll 1
    for (int q = lane; q < queries; q += 32) total += d_distances[c * queries + q];
    total = warp_sum(total);
    if (lane == 0) totals[c] = total;
  }
#pragma unroll 1
  for (int i = warp; i < items; i += RELABEL_WARPS) {
    const float item_scale = r.centred ? joint.space_scales[e.first_item + i] : 0.f;
    float d_log_scale = 0.f, d_with_mean = 0.f;
#pragma unroll 1
    for (int q = lane; q < queries; q += 32) {
      float d = 0.f;
#pragma unroll 4
      for (int c = 0; c < classes; c++) d -= 2.f * weights[c * items + i] * d_distances[c * queries + q];
      d_products[i * queries + q] = d;
      if (!r.centred) continue;
      d_log_scale += products[i * queries + q] * d;
      d_with_mean -= d * (item_scale * query_scales[q]);
    }
    if (!r.centred) continue;
    d_log_scale = warp_sum(d_log_scale);
    d_with_mean = warp_sum(d_with_mean);
    if (lane > 0) continue;
    joint.d_log_scales[e.first_item + i] = d_log_scale;
    joint.d_with_mean[e.first_item + i] = d_with_mean;
    d_mean_square -= d_with_mean;
  }
  __syncthreads();
  float* d_gram = joint.d_gram + e.first_pair;
  each_element(items, items, [&](int i, int j) {
    float sum = 0.f;
#pragma unroll 4
    for (int c = 0; c < classes; c++) sum += weights[c * items + i] * weights[c * items + j] * totals[c];
    d_gram[i * items + j] = sum + sum;
  });
  return d_mean_square;
}

// Gradients of the queries' squared lengths, `d_squares`, and of their products with the items' mean, `d_query_means`.
// Returns this thread's part of the gradient of the mean's square. In the code, `sum` is the gradient of the logarithm
// of the query's scale where the head is centred, else that of q.q. Eight threads per query; all threads take part in
// the sums.
DEVICE float query_lengths_backward(const Relabel& r, const Joint& joint, const Episode& e) {
  const int items = e.items, classes = e.classes, queries = e.queries, eighth = threadIdx.x & 7;
  const float* d_distances = joint.of_losses + e.first_scratch + classes * items;
  const float *products = r.products + e.first_product, *d_products = joint.d_products + e.first_product;
  const float* item_scales = joint.space_scales + e.first_item;
  float d_mean_square = 0.f;
#pragma unroll 1
  for (int first = 0; first < queries; first += RELABEL_THREADS / 8) {
    const int own = first + (threadIdx.x >> 3), q = min(own, queries - 1);
    const float scale = r.centred ? joint.query_scales[e.first_query + q] : 0.f;
    float sum = 0.f, d_mean = 0.f;
    if (r.centred) {
#pragma unroll 4
      for (int i = eighth; i < items; i += 8) {
        const float d = d_products[i * queries + q];
        sum += products[i * queries + q] * d;
        d_mean -= d * (item_scales[i] * scale);
      }
    } else {
#pragma unroll 1
      for (int c = eighth; c < classes; c += 8) sum += d_distances[c * queries + q];
    }
#pragma unroll
    for (int distance = 4; distance; distance >>= 1) {
      sum += __shfl_xor_sync(FULL_WARP, sum, distance);
      d_mean += __shfl_xor_sync(FULL_WARP, d_mean, distance);
    }
    if (own >= queries || eighth > 0) continue;
    // In the centred space the squared length of a query is constant.
    const float d_square = r.centred ? squared_length_gradient(scale, sum) : sum;
    joint.d_squares[e.first_query + q] = d_square;
    if (!r.centred) continue;
    joint.d_query_means[e.first_query + q] = d_mean - (d_square + d_square);
    d_mean_square += d_square;
  }
  return d_mean_square;
}

// Gradients of the products with queries and of their squared lengths, and with them all weights of rows but those of
// items for items, divided by the number of episodes: the gradient is that of the mean loss. Grid: one block per
// episode. No dynamic shared memory.
PHASE_KERNEL relabel_queries_backward(Relabel r, Joint joint) {
  on_episode(r, [&](const u32* input, const Episode& e) {
    const int items = e.items, queries = e.queries, rows = items + queries, k_tiles = row_weight_tiles(rows);
    float d_mean_square = products_backward(r, joint, e);
    d_mean_square += query_lengths_backward(r, joint, e);
    d_mean_square = block_sums({d_mean_square, 0.f, 0.f}).x;
    if (r.centred && threadIdx.x == 0) joint.d_mean_square[blockIdx.x] = d_mean_square;
    const float inverse_episodes = 1.f / ((const Header*)input)->episodes, inverse_items = 1.f / items;
    float* weights = joint.row_weights + e.first_weight;
    // The gradient of the product of an item and a query.
    const auto d_product = [&](int i, int q) {
      const float d = joint.d_products[e.first_product + i * queries + q];
      if (!r.centred) return d;
      return d * (joint.space_scales[e.first_item + i] * joint.query_scales[e.first_query + q]) +
             joint.d_query_means[e.first_query + q] * inverse_items;
    };
    // Item and query: the gradient of their product; a query with itself: twice that of its squared length; two
    // queries: 0. Rows and columns that only fill tiles: 0.
    each_element((rows + 15) & ~15, k_tiles * 8, [&](int row, int column) {
      if (row < items && column < items) return;
      float weight = 0.f;
      if (row < items && column < rows) weight = d_product(row, column - items);
      else if (row < rows && column < items) weight = d_product(column, row - items);
      else if (row < rows && row == column) weight = 2.f * joint.d_squares[e.first_query + row - items];
      weights[row_weight_position(k_tiles, row, column)] = weight * inverse_episodes;
    });
  });
}

// ---- The edge network

// Threads of `relabel_edge_features_backward`.
#define EDGE_INPUT_THREADS 512

// d_pair_features: the gradients of edge features 0, 1 and 4 of the pairs of a tile, [3][M][M] per episode, through the
// edge network; the others are ranks and labels, which have no gradient. Grid: one block per tile, 512 threads; a warp
// has 16 pairs and computes the hidden units again, 8 at a time. Shared memory: the weights.
extern "C" __global__ void __launch_bounds__(EDGE_INPUT_THREADS) relabel_edge_features_backward(Relabel r, Joint joint) {
  const u32* input = slot(r);
  const Tile tile = ((const Tile*)(input + r.layout.tiles))[blockIdx.x];
  if (blockIdx.x >= ((const Header*)input)->tiles) return;
  const Episode& e = tile.e;
  const int pairs = e.items * e.items, units = r.edge_hidden, outputs = r.layers * r.heads;
  const int len = units * (PAIR_FEATURES + 1 + outputs), end = (tile.first + tile.count) * e.items;
  const int lane = threadIdx.x & 31, group = lane >> 2, quad = lane & 3;
  float* weights = (float*)dynamic_shared;
#pragma unroll 2
  for (int i = threadIdx.x; i < len; i += EDGE_INPUT_THREADS)
    copy_word_async(shared_address(weights + i), r.parameters + r.edges + i);
  const float *out = weights + (PAIR_FEATURES + 1) * units, *features = r.pair_features + (long)PAIR_FEATURES * e.first_pair;
  const float* d_logits = r.d_attention + (long)outputs * e.first_pair;
  float* d_features = joint.d_pair_features + 3l * e.first_pair;
  finish_loads();
  __syncthreads();
#pragma unroll 1
  for (int p0 = tile.first * e.items + (threadIdx.x >> 5) * 16; p0 < end; p0 += EDGE_INPUT_THREADS / 32 * 16) {
    u32 x[4], x_low[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
      split_tf32(edge_input(features, pairs, quad + (i >> 1) * 4, p0 + group + (i & 1) * 8, end), &x[i], &x_low[i]);
    float sums[4] = {};
#pragma unroll 1
    for (int u0 = 0; u0 < units; u0 += 8) {
      float hidden[4] = {}, d_hidden[4] = {};
      u32 w[2], w_low[2], a[4], b[2];
#pragma unroll
      for (int i = 0; i < 2; i++) split_tf32(edge_weight(weights, units, quad + i * 4, u0 + group), &w[i], &w_low[i]);
      mma_split(hidden, x, x_low, w, w_low);
#pragma unroll 2
      for (int o = 0; o < outputs; o += 8) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int output = o + quad + (i >> 1) * 4, p = p0 + group + (i & 1) * 8;
          a[i] = tf32_operand(p < end && output < outputs ? d_logits[output * pairs + p] : 0.f);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const int output = o + quad + i * 4, unit = u0 + group;
          b[i] = tf32_operand(unit < units && output < outputs ? out[unit * outputs + output] : 0.f);
        }
        mma_tf32(d_hidden, a, b);
      }
      // Columns 2 quad and 2 quad + 1 are columns quad and quad + 4 of the next product.
#pragma unroll
      for (int i = 0; i < 4; i++) a[(i & 1) * 2 + (i >> 1)] = tf32_operand(d_hidden[i] * gelu_and_slope(hidden[i]).y);
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int unit = u0 + 2 * quad + i;
        b[i] = tf32_operand(group < PAIR_FEATURES && unit < units ? weights[group * units + unit] : 0.f);
      }
      mma_tf32(sums, a, b);
    }
    // Lanes of quad 0 have features 0 and 1, those of quad 2 feature 4.
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int p = p0 + group + (i >> 1) * 8, feature = quad == 0 ? i & 1 : 2;
      if (p < end && (quad == 0 || (quad == 2 && (i & 1) == 0))) d_features[feature * pairs + p] = sums[i];
    }
  }
}

}  // namespace relabel
