// The gradient of the features of the Relabel head, for training together with a backbone: from the gradients of edge
// features, state features and the item view to those of the rows of features. relabel_joint.cu has the part that runs
// earlier and explains "weights of rows"; relabel.cuh has sizes and buffers (`struct Relabel`, `struct Joint`) and
// explains items, states, pairs and tiles. The CPU version is in
// crates/nn/src/relabel/{edge_features,gram_space,item_view}.rs.
//
// relabel_gram_backward turns the gradients of edge features and state features into that of the gram matrix (inner
// products of the items), and with it the weights of items for items. Then relabel_rows_backward multiplies all weights
// of rows with the features. Backward, the order is that of relabel_edges.cu reversed: bounds and statistics of the
// edge features (`edge_gradients`), distances and cosines (`edge_features_backward`), centring of the space
// (`centring_backward`).
//
// Gradients of the gram matrix are used plus their transpose, because x_i . x_j is in two places and changes with
// either row.
#pragma once
#include "relabel.cuh"
#include "relabel_edges.cu"
#include "relabel_joint.cu"
#include "relabel_layers.cu"

namespace relabel {

// State features that depend on edge features with a gradient: mean, maximum and minimum of features 0, 1 and 4 (2 and
// 3 are ranks). edge_feature: the number of the index-th of these.
#define STATE_GRADIENTS 9
DEVICE int edge_feature(int index) { return index < 2 ? index : 4; }

// Gradients of these state features of an episode, [M C][9]: those of the input layer's hidden units, `d_start`, times
// its transposed weight, in TF32. A warp has 16 states and 8 of the features. Contains no barrier.
DEVICE void state_features_backward(const Relabel& r, const Joint& joint, const Episode& e) {
  const int lane = threadIdx.x & 31, group = lane >> 2, quad = lane & 3, width = r.width, states = e.items * e.classes;
  const float *d_hidden = r.d_start + (long)e.first_state * width, *weights = r.parameters + joint.state_weights;
  float* out = joint.d_state_features + (long)e.first_state * STATE_GRADIENTS;
#pragma unroll 1
  for (int task = threadIdx.x >> 5; task < 2 * ((states + 15) >> 4); task += RELABEL_WARPS) {
    const int first = (task >> 1) * 16, n0 = (task & 1) * 8, n = n0 + group;
    const float* weight = weights + (4 + 3 * edge_feature(n / 3) + n % 3) * width;
    float sums[4] = {};
#pragma unroll 4
    for (int k0 = 0; k0 < width; k0 += 8) {
      u32 a[4], b[2];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int state = first + group + (i & 1) * 8, k = k0 + quad + (i >> 1) * 4;
        a[i] = tf32_operand(state < states && k < width ? d_hidden[state * width + k] : 0.f);
      }
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int k = k0 + quad + i * 4;
        b[i] = tf32_operand(n < STATE_GRADIENTS && k < width ? weight[k] : 0.f);
      }
      mma_tf32(sums, a, b);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int state = first + group + (i >> 1) * 8, column = n0 + 2 * quad + (i & 1);
      if (state < states && column < STATE_GRADIENTS) out[state * STATE_GRADIENTS + column] = sums[i];
    }
  }
}

// The arrays of one episode that relabel_gram_backward works on.
struct PairGradients {
  const int *given, *counts;
  const float *gram, *planes;  // [M][M], [6][M][M]
  const float* scales;         // of the items, centred [M] and as they are [M]
  const float* statistics;     // see Joint::edge_statistics
  float* d_pairs;              // [4][M][M]: gradients of edge features 0, 1 and 4, then of the gram matrix
};
// Vectors [M] in shared memory: gradients of the products with the mean, and the item view's offsets.
DEVICE float* with_mean_of() { return (float*)dynamic_shared; }
DEVICE float* offsets_of(int items) { return (float*)dynamic_shared + items; }

// body(i, j) for all pairs; a warp has a row. Not unrolled, so that fewer registers are needed.
template <class Body> DEVICE void each_pair(int items, Body body) {
#pragma unroll 1
  for (int i = threadIdx.x >> 5; i < items; i += RELABEL_WARPS)
#pragma unroll 1
    for (int j = threadIdx.x & 31; j < items; j += 32) body(i, j);
}

// The squared distance of two items and their cosine, from the gram matrix, as `pair_features` (relabel_edges.cu)
// computes them.
DEVICE float distance_of(const PairGradients& g, int items, int i, int j) {
  const float product = g.gram[i * items + j];
  return fmaxf(g.gram[i * items + i] + g.gram[j * items + j] - (product + product), 0.f);
}
DEVICE float raw_cosine(const PairGradients& g, int items, int i, int j) {
  return i == j ? 1.f : clamped(g.gram[i * items + j] * (g.scales[items + i] * g.scales[items + j]), 1.f);
}

// Whether item j is the first other item of its class whose value in row i is `value`: of equal maxima or minima the
// first has the gradient.
DEVICE bool is_first(const PairGradients& g, const float* row, int i, int j, float value) {
#pragma unroll 1
  for (int other = 0; other < j; other++)
    if (other != i && g.given[other] == g.given[j] && row[other] == value) return false;
  return true;
}

// Gradients of the edge features before their bounds, [3][M][M], from those of pairs and of states: 0 where a feature
// is at its bound or constant. Returns this thread's part of three sums, for the statistics that the features are
// divided by: of the gradients of distances times distances, of those of standardised cosines, and of these times the
// cosine minus the mean.
DEVICE Three edge_gradients(const Relabel& r, const Joint& joint, const Episode& e, const PairGradients& g) {
  const int items = e.items, pairs = items * items;
  const float *d_pairs = joint.d_pair_features + 3l * e.first_pair, *states = r.state_features + (long)e.first_state * STATE_FEATURES;
  const float* d_states = joint.d_state_features + (long)e.first_state * STATE_GRADIENTS;
  const float mean = g.statistics[1];
  Three sums = {};
  each_pair(items, [&](int i, int j) {
    const int p = i * items + j, c = g.given[j], state = i * e.classes + c;
    const float inverse_others = fast_inverse(max(g.counts[c] - (g.given[i] == c ? 1 : 0), 1));
    float d[3];
#pragma unroll
    for (int f = 0; f < 3; f++) {
      const float *row = g.planes + edge_feature(f) * pairs + i * items, value = row[j];
      d[f] = d_pairs[f * pairs + p];
      if (i != j) {
        const float* d_state = d_states + state * STATE_GRADIENTS + 3 * f;
        const float* bounds = states + state * STATE_FEATURES + 5 + 3 * edge_feature(f);
        d[f] += d_state[0] * inverse_others;
        // The gradients of mean, maximum and minimum over the items of the class.
        if (value == bounds[0] && is_first(g, row, i, j, value)) d[f] += d_state[1];
        if (value == bounds[1] && is_first(g, row, i, j, value)) d[f] += d_state[2];
      }
      // The cosine of an item with itself is constant, but its standardised value is not.
      if (!(fabsf(value) < (f == 0 ? 1.f : MAX_FEATURE)) || (i == j && f < 2)) d[f] = 0.f;
      g.d_pairs[f * pairs + p] = d[f];
    }
    sums.x += d[1] * distance_of(g, items, i, j);
    sums.y += d[2];
    sums.z += d[2] * (raw_cosine(g, items, i, j) - mean);
  });
  return sums;
}

// From the gradients of edge features to that of the gram matrix plus its transpose, in the space of the episode, to
// d_pairs[3], without what is the same for a whole row or column (the mean of the items), which `through_items_mean`
// adds. sums: those of `edge_gradients` over all threads. A warp per row i, so every sum over j is one warp's. Leaves
// the gradients of the products with the mean in `with_mean` and returns this thread's part of the gradient of the
// mean's square.
DEVICE float edge_features_backward(const PairGradients& g, int items, Three sums) {
  const int lane = threadIdx.x & 31, pairs = items * items;
  const float distance_scale = g.statistics[0], mean = g.statistics[1], scale = g.statistics[2], deviates = g.statistics[3];
  // The features are divided by the mean distance, and standardised by mean and deviation of the cosines: what a change
  // of these adds to the gradient of every pair.
  const float factor = -2.f * fast_inverse(max(pairs - items, 1));
  const float through_distance = factor * sums.x * distance_scale * distance_scale, through_mean = factor * scale * sums.y;
  const float through_deviation = factor * deviates * scale * scale * scale * sums.z;
  float d_mean_square = 0.f;
#pragma unroll 1
  for (int i = threadIdx.x >> 5; i < items; i += RELABEL_WARPS) {
    const float own = g.scales[i], raw = g.scales[items + i];
    float d_log_scale = 0.f, d_with_mean = 0.f, distances = 0.f, d_raw_log_scale = 0.f;
#pragma unroll 1
    for (int j = lane; j < items; j += 32) {
      if (i == j) continue;
      const int p = i * items + j, transposed = j * items + i;
      const float d_cosine = g.d_pairs[p] + g.d_pairs[transposed], d_product = d_cosine * (own * g.scales[j]);
      d_log_scale += g.planes[p] * d_cosine;
      d_with_mean -= d_product;
      float d_distance = 0.f;
      if (distance_scale > 0.f && distance_of(g, items, i, j) > 0.f)
        d_distance = (g.d_pairs[pairs + p] + g.d_pairs[pairs + transposed]) * distance_scale + through_distance;
      distances += d_distance;
      // Feature 4: the cosine of the items as they are.
      const float cosine = raw_cosine(g, items, i, j);
      float d_raw = 0.f;
      if (fabsf(cosine) < 1.f)
        d_raw = (g.d_pairs[2 * pairs + p] + g.d_pairs[2 * pairs + transposed]) * scale + through_mean +
                through_deviation * (cosine - mean);
      d_raw_log_scale += cosine * d_raw;
      g.d_pairs[3 * pairs + p] = d_product - 2.f * d_distance + d_raw * (raw * g.scales[items + j]);
    }
    d_log_scale = warp_sum(d_log_scale);
    d_with_mean = warp_sum(d_with_mean);
    distances = warp_sum(distances);
    d_raw_log_scale = warp_sum(d_raw_log_scale);
    if (lane > 0) continue;
    const float d_square = squared_length_gradient(own, d_log_scale);
    g.d_pairs[3 * pairs + i * items + i] = 2.f * (distances + d_square + squared_length_gradient(raw, d_raw_log_scale));
    with_mean_of()[i] = d_with_mean - (d_square + d_square);
    d_mean_square += d_square - 0.5f * d_with_mean;
  }
  return d_mean_square;
}

// What the mean of the items adds to the gradient in row i of the gram matrix: x_i . m is the mean of row i, and m . m
// that of all elements.
DEVICE float through_items_mean(float d_mean_square, float inverse_items, int i) {
  return (with_mean_of()[i] + d_mean_square * inverse_items) * inverse_items;
}

// The item view reads h, the item minus the mean m of all features at unit length. With d the gradient of h, that of
// the item is (d - h (h . d)) / length; this function computes (h . d) / length^2, which multiplies the item minus m. h
// . d equals the product of the projections h P and of their gradients, which the view has already.
DEVICE void view_offsets(const Relabel& r, const Joint& joint, const Episode& e) {
  const int lane = threadIdx.x & 31;
#pragma unroll 1
  for (int i = threadIdx.x >> 5; i < e.items; i += RELABEL_WARPS) {
    const long at = (long)(e.first_item + i) * r.view_width;
    float along = 0.f;
#pragma unroll 2
    for (int v = lane; v < r.view_width; v += 32) along += r.projected[at + v] * r.d_projected[at + v];
    along = warp_sum(along);
    if (lane > 0) continue;
    const float scale = joint.view_scales[e.first_item + i];
    offsets_of(e.items)[i] = along * scale * scale;
  }
}

// From the gradient of the gram matrix in the centred space, `missing(i, j)` added, to that of the items as they are,
// without what is the same for a whole row or column. A warp per row. d_with_mean [M]: receives the gradients of the
// products with the mean. Returns this thread's part of the gradient of the mean's square.
template <class Missing>
DEVICE float centring_backward(const Joint& joint, const Episode& e, const PairGradients& g, float* d_with_mean, Missing missing) {
  const int lane = threadIdx.x & 31, items = e.items;
  const float* scales = joint.space_scales + e.first_item;
  float *d_gram = g.d_pairs + 3 * items * items, d_mean_square = 0.f;
#pragma unroll 1
  for (int i = threadIdx.x >> 5; i < items; i += RELABEL_WARPS) {
    float d_log_scale = 0.f, d_mean = 0.f;
#pragma unroll 1
    for (int j = lane; j < items; j += 32) {
      const int p = i * items + j;
      const float d = d_gram[p] + missing(i, j), d_product = d * (scales[i] * scales[j]);
      d_log_scale += g.gram[p] * d;
      d_mean -= d_product;
      d_gram[p] = d_product;
    }
    d_log_scale = warp_sum(d_log_scale) + joint.d_log_scales[e.first_item + i];
    d_mean = warp_sum(d_mean);
    const float d_square = squared_length_gradient(scales[i], d_log_scale);
    if (lane == (i & 31)) d_gram[i * items + i] += d_square + d_square;
    if (lane > 0) continue;
    d_with_mean[i] = d_mean + joint.d_with_mean[e.first_item + i] - (d_square + d_square);
    d_mean_square += d_square - 0.5f * d_mean;
  }
  return d_mean_square;
}

// The weights of items for items, divided by the number of episodes, and `view_offsets`. Grid: one block per episode.
// Shared memory: vectors with_mean and offsets, [M] each; then, where they fit (pair_len > 0), the gradients [4][M][M]
// of edge features and gram matrix, which otherwise are in global memory. The steps are separated by sums over the
// block, which contain barriers.
PHASE_KERNEL relabel_gram_backward(Relabel r, Joint joint) {
  on_episode(r, [&](const u32* input, const Episode& e) {
    const int items = e.items;
    const PairGradients g = {(const int*)(input + r.layout.given) + e.first_item,
                             (const int*)(input + r.layout.counts) + e.first_class,
                             r.gram + e.first_pair,
                             r.pair_features + (long)PAIR_FEATURES * e.first_pair,
                             joint.edge_scales + 2 * e.first_item,
                             joint.edge_statistics + blockIdx.x * 4,
                             joint.pair_len > 0 ? offsets_of(items) + items : joint.pair_scratch + 4l * e.first_pair};
    state_features_backward(r, joint, e);
    if (r.view_target) view_offsets(r, joint, e);
    __syncthreads();
    const Three sums = block_sums(edge_gradients(r, joint, e, g));
    float d_mean_square = block_sums({edge_features_backward(g, items, sums), 0.f, 0.f}).x;
    const float inverse_items = fast_inverse(items), inverse_episodes = 1.f / ((const Header*)input)->episodes;
    const float* through_queries = joint.d_gram + e.first_pair;
    if (r.centred) {
      // The gradients of edge features are no longer needed: the first [M] floats become gradients of the products with
      // the mean.
      float* d_with_mean = g.d_pairs;
      float part = centring_backward(joint, e, g, d_with_mean, [&](int i, int j) {
        return through_items_mean(d_mean_square, inverse_items, i) + through_items_mean(d_mean_square, inverse_items, j) +
               through_queries[i * items + j];
      });
      d_mean_square = block_sums({part, 0.f, 0.f}).x + joint.d_mean_square[blockIdx.x];
#pragma unroll 1
      for (int i = threadIdx.x; i < items; i += RELABEL_THREADS) with_mean_of()[i] = d_with_mean[i];
      __syncthreads();
    }
    const int k_tiles = row_weight_tiles(items + e.queries);
    float* weights = joint.row_weights + e.first_weight;
    each_pair(items, [&](int i, int j) {
      float d = g.d_pairs[(3 * items + i) * items + j] + through_items_mean(d_mean_square, inverse_items, i) +
                through_items_mean(d_mean_square, inverse_items, j);
      if (!r.centred) d += through_queries[i * items + j];
      if (i == j && r.view_target) {
        const float offset = offsets_of(items)[i];
        d -= offset;
        joint.view_offsets[e.first_item + i] = offset * inverse_episodes;
      }
      weights[row_weight_position(k_tiles, i, j)] = d * inverse_episodes;
    });
  });
}

#define ROWS_THREADS 256  // of a block of relabel_rows_backward: 8 warps
#define ROWS_COLUMNS 64  // columns of features of a block, 8 per warp
// Tiles of 16 rows whose gradients a warp sums at the same time, and groups of 8 rows whose features it loads at the
// same time.
#define ROWS_TILES 5
#define GROUPS_AHEAD 4

// Adds d_projected (a row of V per item) times the transposed projection to `sums`, the accumulator for 16 items from
// `first` on and 8 columns of features. One warp.
DEVICE void view_rows_backward(const Relabel& r, const Joint& joint, const Episode& e, int first, int column, float* sums) {
  const int lane = threadIdx.x & 31, group = lane >> 2, quad = lane & 3, width = r.view_width;
  const float* d_projected = r.d_projected + (long)e.first_item * width;
  const float* projection = r.parameters + joint.view_weights + (long)min(column + group, r.view_dim - 1) * width;
  const int above = min(first + group, e.items - 1) * width, below = min(first + group + 8, e.items - 1) * width;
#pragma unroll 4
  for (int k0 = 0; k0 < width; k0 += 8) {
    u32 a[4], b[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int k = k0 + quad + i * 4;
      const bool exists = k < width;
      a[2 * i] = tf32_operand(exists ? d_projected[above + k] : 0.f);
      a[2 * i + 1] = tf32_operand(exists ? d_projected[below + k] : 0.f);
      b[i] = tf32_operand(exists ? projection[k] : 0.f);
    }
    mma_tf32(sums, a, b);
  }
}

// d_features: the gradient of row n is the sum over the rows k of its episode of weight(n, k) row(k); for items, the
// gradient of the item view is added: dropout times d_projected P^T / length, minus the offset times (item - m), of
// which the part of the item is in the weights. Grid: (ceil(D / 64), episodes), 256 threads: 64 columns per block and 8
// per warp, all rows of an episode. No shared memory. The sums are over small differences of rows, so both factors are
// split into two TF32 numbers.
extern "C" __global__ void __launch_bounds__(ROWS_THREADS) relabel_rows_backward(Relabel r, Joint joint) {
  const u32* input = slot(r);
  const Episode e = ((const Episode*)(input + r.layout.episodes))[blockIdx.y];
  const int lane = threadIdx.x & 31, group = lane >> 2, quad = lane & 3, dim = joint.dim;
  const int column = blockIdx.x * ROWS_COLUMNS + (threadIdx.x >> 5) * 8;
  if (blockIdx.y >= ((const Header*)input)->episodes || column >= dim) return;
  const int rows = e.items + e.queries, k_tiles = row_weight_tiles(rows), m_tiles = (rows + 15) >> 4;
  const float* features = joint.features + (long)e.first_row * dim + min(column + group, dim - 1);
  float* d_features = joint.d_features + (long)e.first_row * dim;
  const float inverse_episodes = 1.f / ((const Header*)input)->episodes;
#pragma unroll 1
  for (int m0 = 0; m0 < m_tiles; m0 += ROWS_TILES) {
    const uint4* weights = (const uint4*)(joint.row_weights + e.first_weight) + (long)m0 * k_tiles * 32 + lane;
    float sums[ROWS_TILES][4] = {};
#pragma unroll 1
    for (int k0 = 0; k0 < k_tiles; k0 += GROUPS_AHEAD) {
      float values[GROUPS_AHEAD][2];
#pragma unroll
      for (int s = 0; s < GROUPS_AHEAD; s++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const int row = (k0 + s) * 8 + quad + i * 4;
          values[s][i] = row < rows ? features[(long)row * dim] : 0.f;
        }
#pragma unroll
      for (int s = 0; s < GROUPS_AHEAD; s++) {
        if (k0 + s >= k_tiles) break;
        u32 b[2], b_low[2];
#pragma unroll
        for (int i = 0; i < 2; i++) split_tf32(values[s][i], &b[i], &b_low[i]);
#pragma unroll
        for (int t = 0; t < ROWS_TILES; t++) {
          if (m0 + t >= m_tiles) break;
          const uint4 weight = weights[(t * k_tiles + k0 + s) * 32];
          u32 a[4], a_low[4];
          split_tf32(__uint_as_float(weight.x), &a[0], &a_low[0]);
          split_tf32(__uint_as_float(weight.y), &a[1], &a_low[1]);
          split_tf32(__uint_as_float(weight.z), &a[2], &a_low[2]);
          split_tf32(__uint_as_float(weight.w), &a[3], &a_low[3]);
          mma_split(sums[t], a, a_low, b, b_low);
        }
      }
    }
#pragma unroll
    for (int t = 0; t < ROWS_TILES; t++) {
      const int first = (m0 + t) * 16;
      if (first >= rows) break;
      float viewed[4] = {};
      const bool has_view = r.view_target && first < e.items;
      if (has_view) view_rows_backward(r, joint, e, first, column, viewed);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int row = first + group + (i >> 1) * 8, d = column + 2 * quad + (i & 1);
        if (row >= rows || d >= dim) continue;
        float sum = sums[t][i];
        if (has_view && row < e.items) {
          const u32 index = (u32)(e.batch_item + row) * (u32)dim + d;
          const float scale = joint.view_scales[e.first_item + row] * inverse_episodes;
          sum += dropout_factor(r, e, index) * (viewed[i] * scale) +
                 joint.view_offsets[e.first_item + row] * r.parameters[r.view_mean + d];
        }
        d_features[(long)row * dim + d] = sum;
      }
    }
  }
}

}  // namespace relabel
