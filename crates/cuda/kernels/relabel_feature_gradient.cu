// The gradient of the features of the Relabel head, for training together with a backbone: from the gradients of edge
// features, state features and the item view to those of the rows of features. relabel_joint.cu has the part that runs
// earlier; relabel.cuh has sizes and buffers (`struct Relabel`, `struct Joint`) and explains items, states, pairs and
// tiles. The CPU version is in crates/nn/src/relabel/{edge_features,gram_space,item_view}.rs.
//
// The idea: but for the item view, the head reads the features only as inner products of rows, of items with items
// (the gram matrix g, g_ij = x_i . x_j) and of items with queries. So the gradient of row n of an episode is
//
//   d_features(n) = sum over the rows k of weight(n, k) row(k)
//
// and these "weights of rows" follow from the gradients of the inner products. x_i . x_j is element (i, j) and element
// (j, i) of g, and x_i enters both: weight(i, j) = d_ij + d_ji, with d the gradient of g. This file therefore computes
// the gradient of g "plus its transpose". (i, i): the derivative of x_i . x_i is 2 x_i, and 2 d_ii is the right weight.
//
// relabel_gram_backward computes the weights of pairs of items; relabel_queries_backward (relabel_joint.cu) has
// computed the weights of all pairs with a query. relabel_rows_backward multiplies the weights with the features.
// src/relabel/joint.rs launches them. relabel_gram_backward goes through relabel_edges.cu in reverse order:
//   1. from features of a state to edge features                    state_features_backward, edge_gradients
//   2. from edge features to the gram matrix they are computed from  edge_features_backward
//   3. from that of the centred items to that of the original items  centring_backward, if the head is centred
//
// The edge features of a pair (i, j), which are the planes 0 to 4 of `pair_features` (relabel_edges.cu); plane 5 says
// whether the given labels are equal and has no gradient:
//   0  (x_i - m) . (x_j - m) / (|x_i - m| |x_j - m|), m the mean of the items, clamped to [-1, 1]
//   1  |x_i - x_j|^2 / (mean of these over all pairs) - 1, clamped to at most 8
//   2  rank of j among the neighbours of i, and 3 that of i among those of j: piecewise constant, no gradient
//   4  (cos - mean) / deviation, clamped to [-8, 8], with cos = x_i . x_j / (|x_i| |x_j|); mean and deviation are those
//      of cos over all pairs
// x are the items in the space of the episode: where the head is centred, they are already centred at their mean and
// scaled to unit length. "All pairs" are the M (M - 1) pairs of different items. Arrays of three gradients of edge
// features have those of 0, 1 and 4, in this order; "scales" are 1 / length, and d_log_scale is the gradient of the
// logarithm of a scale.
#pragma once
#include "relabel.cuh"
#include "relabel_edges.cu"
#include "relabel_joint.cu"
#include "relabel_layers.cu"

namespace relabel {

// State features that depend on edge features with a gradient: mean, maximum and minimum of features 0, 1 and 4, in
// this order, 3 per feature. edge_feature: feature 0, 1 or 4 for index 0, 1, 2.
#define STATE_GRADIENTS 9
DEVICE int edge_feature(int index) { return index < 2 ? index : 4; }

// Gradients of these state features of an episode, [M C][9]: those of the input layer's hidden units, `d_start`
// [M C][W], times its transposed weight [19][W], in TF32. A task of a warp is 16 states and 8 of the 9 features (those
// of one instruction), so two tasks cover 16 states; the second has one feature. Contains no barrier.
DEVICE void state_features_backward(const Relabel& r, const Joint& joint, const Episode& e) {
  const int lane = threadIdx.x & 31, group = lane >> 2, quad = lane & 3, width = r.width, states = e.items * e.classes;
  const float *d_hidden = r.d_start + (long)e.first_state * width, *weights = r.parameters + joint.state_weights;
  float* out = joint.d_state_features + (long)e.first_state * STATE_GRADIENTS;
#pragma unroll 1
  for (int task = threadIdx.x >> 5; task < 2 * ((states + 15) >> 4); task += RELABEL_WARPS) {
    const int first = (task >> 1) * 16, n0 = (task & 1) * 8, n = n0 + group;
    // A state has 4 features of its own labels, then mean, maximum and minimum per edge feature (`state_features` in
    // relabel_edges.cu): n / 3 is the edge feature, n % 3 which of the three.
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
  const int *given, *counts;   // given labels [M]; items per given label [C]
  const float *gram, *planes;  // [M][M] in the space of the episode; the pair features, [6][M][M]
  const float* scales;         // 1 / |x_i - m| [M], then 1 / |x_i| [M]; 0 for a vector that is 0 up to rounding
  const float* statistics;     // 1 / mean distance, mean of cos, 1 / its deviation, .. (Joint::edge_statistics)
  float* d_pairs;              // [4][M][M]: gradients of edge features 0, 1 and 4, then of the gram matrix
};
// Vectors [M] in shared memory: gradients of the products x_i . m with the mean, and the item view's offsets
// (`view_offsets`).
DEVICE float* with_mean_of() { return (float*)dynamic_shared; }
DEVICE float* offsets_of(int items) { return (float*)dynamic_shared + items; }

// body(i, j) for all pairs; a warp has a row. Not unrolled, so that fewer registers are needed.
template <class Body> DEVICE void each_pair(int items, Body body) {
#pragma unroll 1
  for (int i = threadIdx.x >> 5; i < items; i += RELABEL_WARPS)
#pragma unroll 1
    for (int j = threadIdx.x & 31; j < items; j += 32) body(i, j);
}

// distance_of: the squared distance |x_i - x_j|^2 of two items. raw_cosine: the cosine `cos` of feature 4 before it is
// standardised. Both from the gram matrix, as `pair_features` (relabel_edges.cu) computes them.
DEVICE float distance_of(const PairGradients& g, int items, int i, int j) {
  const float product = g.gram[i * items + j];
  return fmaxf(g.gram[i * items + i] + g.gram[j * items + j] - (product + product), 0.f);
}
DEVICE float raw_cosine(const PairGradients& g, int items, int i, int j) {
  return i == j ? 1.f : clamped(g.gram[i * items + j] * (g.scales[items + i] * g.scales[items + j]), 1.f);
}

// Whether item j is the first item, other than i, of its class whose value in row i is `value`. If several items share
// a maximum or minimum, only the first receives its gradient.
DEVICE bool is_first(const PairGradients& g, const float* row, int i, int j, float value) {
#pragma unroll 1
  for (int other = 0; other < j; other++)
    if (other != i && g.given[other] == g.given[j] && row[other] == value) return false;
  return true;
}

// Gradients of edge features 0, 1 and 4 before clamping, to d_pairs [3][M][M], from those of pairs and of states. They
// are 0 where a feature is constant or at the bound it is clamped to, because there it does not change with the items.
// Returns this thread's part of three sums over all (i, j), which lead to the gradients of the statistics in features 1
// and 4. With d1, d4 the gradients of these features:
//   x = sum d1 |x_i - x_j|^2    for the mean distance
//   y = sum d4                  for the mean of cos
//   z = sum d4 (cos - mean)     for the deviation of cos
DEVICE Three edge_gradients(const Relabel& r, const Joint& joint, const Episode& e, const PairGradients& g) {
  const int items = e.items, pairs = items * items;
  const float *d_pairs = joint.d_pair_features + 3l * e.first_pair, *states = r.state_features + (long)e.first_state * STATE_FEATURES;
  const float* d_states = joint.d_state_features + (long)e.first_state * STATE_GRADIENTS;
  const float mean = g.statistics[1];
  Three sums = {};
  each_pair(items, [&](int i, int j) {
    // The pair (i, j) enters the features of one state: that of item i and the class c of j, as one of the other items
    // with label c.
    const int p = i * items + j, c = g.given[j], state = i * e.classes + c;
    const float inverse_others = fast_inverse(max(g.counts[c] - (g.given[i] == c ? 1 : 0), 1));
    float d[3];
#pragma unroll
    for (int f = 0; f < 3; f++) {
      const float *row = g.planes + edge_feature(f) * pairs + i * items, value = row[j];
      d[f] = d_pairs[f * pairs + p];
      if (i != j) {
        const float* d_state = d_states + state * STATE_GRADIENTS + 3 * f;
        // Maximum and minimum: after the 4 features of the labels and the mean.
        const float* bounds = states + state * STATE_FEATURES + 5 + 3 * edge_feature(f);
        // The gradients of the mean, then of maximum and minimum over the items of the class.
        d[f] += d_state[0] * inverse_others;
        if (value == bounds[0] && is_first(g, row, i, j, value)) d[f] += d_state[1];
        if (value == bounds[1] && is_first(g, row, i, j, value)) d[f] += d_state[2];
      }
      // At its bound (1 for feature 0, 8 for 1 and 4), or constant. On the diagonal, features 0 and 1 are constants;
      // feature 4 is (1 - mean) / deviation and changes with these two.
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
// d_pairs[3]. The part that passes through the mean m of the items is the same for a whole row or column; it is left to
// `through_items_mean`, for which this function leaves the gradients of x_i . m in `with_mean_of` and returns this
// thread's part of the gradient of m . m. sums: those of `edge_gradients` over all threads. A warp per row i, so every
// sum over j is one warp's.
//
// The gradients of (i, j) and (j, i) are added first, because the features' formulas are symmetric. With
// n = M (M - 1), a = 1 / mean distance, s = 1 / deviation, what the statistics add to one (i, j) is
//   mean distance   -x a^2 / n                to the gradient of |x_i - x_j|^2
//   mean of cos     -y s / n                  to the gradient of cos
//   deviation       -z s^3 (cos - mean) / n   to the gradient of cos; 0 if the deviation is at its lower bound
// and twice that to (i, j) plus (j, i): `factor` = -2 / n.
DEVICE float edge_features_backward(const PairGradients& g, int items, Three sums) {
  const int lane = threadIdx.x & 31, pairs = items * items;
  const float distance_scale = g.statistics[0], mean = g.statistics[1], scale = g.statistics[2], deviates = g.statistics[3];
  const float factor = -2.f * fast_inverse(max(pairs - items, 1));
  const float through_distance = factor * sums.x * distance_scale * distance_scale, through_mean = factor * scale * sums.y;
  const float through_deviation = factor * deviates * scale * scale * scale * sums.z;
  float d_mean_square = 0.f;
#pragma unroll 1
  for (int i = threadIdx.x >> 5; i < items; i += RELABEL_WARPS) {
    // The scales 1 / |x_i - m| and 1 / |x_i|. d_log_scale, d_raw_log_scale: gradients of their logarithms; a cosine is
    // a product times two scales, so its derivative with respect to the logarithm of a scale is the cosine itself.
    const float own = g.scales[i], raw = g.scales[items + i];
    float d_log_scale = 0.f, d_with_mean = 0.f, distances = 0.f, d_raw_log_scale = 0.f;
#pragma unroll 1
    for (int j = lane; j < items; j += 32) {
      if (i == j) continue;
      const int p = i * items + j, transposed = j * items + i;
      // Feature 0: (x_i . x_j - x_i . m - x_j . m + m . m) times the two scales.
      const float d_cosine = g.d_pairs[p] + g.d_pairs[transposed], d_product = d_cosine * (own * g.scales[j]);
      d_log_scale += g.planes[p] * d_cosine;
      d_with_mean -= d_product;
      // Feature 1. A distance below 0 was clamped to 0 and has no gradient.
      float d_distance = 0.f;
      if (distance_scale > 0.f && distance_of(g, items, i, j) > 0.f)
        d_distance = (g.d_pairs[pairs + p] + g.d_pairs[pairs + transposed]) * distance_scale + through_distance;
      distances += d_distance;
      // Feature 4. A cosine at +-1 was clamped and has no gradient.
      const float cosine = raw_cosine(g, items, i, j);
      float d_raw = 0.f;
      if (fabsf(cosine) < 1.f)
        d_raw = (g.d_pairs[2 * pairs + p] + g.d_pairs[2 * pairs + transposed]) * scale + through_mean +
                through_deviation * (cosine - mean);
      d_raw_log_scale += cosine * d_raw;
      // -2: |x_i - x_j|^2 = g_ii + g_jj - 2 g_ij.
      g.d_pairs[3 * pairs + p] = d_product - 2.f * d_distance + d_raw * (raw * g.scales[items + j]);
    }
    d_log_scale = warp_sum(d_log_scale);
    d_with_mean = warp_sum(d_with_mean);
    distances = warp_sum(distances);
    d_raw_log_scale = warp_sum(d_raw_log_scale);
    if (lane > 0) continue;
    // d_square: of |x_i - m|^2 = g_ii - 2 x_i . m + m . m, on which the scale depends. g_ii is in it, in |x_i|^2 and in
    // the distances of i. The diagonal is doubled, because it is its own transpose.
    const float d_square = squared_length_gradient(own, d_log_scale);
    g.d_pairs[3 * pairs + i * items + i] = 2.f * (distances + d_square + squared_length_gradient(raw, d_raw_log_scale));
    with_mean_of()[i] = d_with_mean - (d_square + d_square);
    // Each product of a pair has m . m once, and is subtracted in d_with_mean of both of its items: hence -0.5.
    d_mean_square += d_square - 0.5f * d_with_mean;
  }
  return d_mean_square;
}

// What the mean m of the items adds to the gradient of every element in row i of the gram matrix: x_i . m is the mean
// of the M elements of row i, and m . m that of all M M elements. For the gradient plus its transpose, element (i, j)
// gets this of row i and of row j.
DEVICE float through_items_mean(float d_mean_square, float inverse_items, int i) {
  return (with_mean_of()[i] + d_mean_square * inverse_items) * inverse_items;
}

// The item view, a projection of the items themselves, reads h = (x - u) / length: the item x minus the mean u of all
// training features, scaled to unit length. With d the gradient of h, that of x is (d - h (h . d)) / length. This
// function computes the "offset" (h . d) / length^2: the second term is the offset times x - u. h . d equals
// (h P) . d_projected, with P the projection and d_projected the gradient of h P, because d = d_projected P^T (dropout,
// a factor per number of h, is on both sides).
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

// From the gradient (plus its transpose) of the gram matrix of the centred items, d_pairs[3] + missing(i, j), to that
// of the original items, to d_pairs[3]. As in `edge_features_backward`, the part through the mean of the items is left
// to `through_items_mean`: d_with_mean [M] receives the gradients of the products with the mean, and this thread's part
// of the gradient of the mean's square is returned. The centred product is that of feature 0 with other scales
// (`space_scales`), so the derivation is the same. joint.d_log_scales and joint.d_with_mean: what the queries, centred
// at the same mean, have added (relabel_queries_backward). A warp per row.
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
    // By the lane that has written this element in the loop above, because there is no barrier in between.
    if (lane == (i & 31)) d_gram[i * items + i] += d_square + d_square;
    if (lane > 0) continue;
    d_with_mean[i] = d_mean + joint.d_with_mean[e.first_item + i] - (d_square + d_square);
    d_mean_square += d_square - 0.5f * d_mean;
  }
  return d_mean_square;
}

// The weights of items for items, divided by the number of episodes because the loss is their mean, and the offsets of
// the item view. Grid: one block per episode. Shared memory: vectors with_mean and offsets, [M] each; then, where they
// fit (pair_len > 0), the gradients [4][M][M] of edge features and gram matrix, which otherwise are in global memory.
// The steps are separated by sums over the block (`block_sums`), which contain barriers.
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
    // What the queries' distances to the prototypes add to the gradient of the gram matrix.
    const float* through_queries = joint.d_gram + e.first_pair;
    if (r.centred) {
      // The new vector cannot replace `with_mean_of` at once, because all warps read that one (`through_items_mean`).
      // It goes to the first M floats of d_pairs, whose edge-feature gradients are no longer needed, and is copied
      // after the barriers of `block_sums`.
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
      // Where the head is centred, `centring_backward` has added it.
      if (!r.centred) d += through_queries[i * items + j];
      // The item view's offset times x_i; relabel_rows_backward adds the part of u.
      if (i == j && r.view_target) {
        const float offset = offsets_of(items)[i];
        d -= offset;
        joint.view_offsets[e.first_item + i] = offset * inverse_episodes;
      }
      weights[row_weight_position(k_tiles, i, j)] = d * inverse_episodes;
    });
  });
}

#define ROWS_THREADS 256  // threads of a block of relabel_rows_backward: 8 warps
#define ROWS_COLUMNS 64  // columns of features of a block, 8 per warp
// Tiles of 16 rows whose gradients a warp sums at the same time, and groups of 8 rows whose features it loads at the
// same time.
#define ROWS_TILES 5
#define GROUPS_AHEAD 4

// Adds d_projected [M][V] times the transposed projection [D][V] to `sums`, the accumulator for 16 items from `first`
// on and 8 columns of features. Rows and columns after the last are computed from the last; the caller ignores them.
// One warp.
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

// d_features of all rows of an episode:
//
//   d_features(n) = sum over k of weight(n, k) row(k)
//                   + dropout (d_projected(n) P^T) / (length episodes) + offset(n) u     for items, if there is a view
//
// where length = |row(n) - u|, u is the mean of all training features, and the rest of the item view's gradient,
// -offset(n) row(n), is in weight(n, n). offset and weight are already divided by the number of episodes.
// Grid: (ceil(D / 64), episodes), 256 threads: 64 columns per block and 8 per warp, all rows of an episode. No shared
// memory. Terms with positive and negative weights largely cancel, because what counts are differences of rows. The
// rounding errors of TF32 would be large compared with the sum, so both factors are split into two TF32 numbers.
extern "C" __global__ void __launch_bounds__(ROWS_THREADS) relabel_rows_backward(Relabel r, Joint joint) {
  const u32* input = slot(r);
  const Episode e = ((const Episode*)(input + r.layout.episodes))[blockIdx.y];
  const int lane = threadIdx.x & 31, group = lane >> 2, quad = lane & 3, dim = joint.dim;
  const int column = blockIdx.x * ROWS_COLUMNS + (threadIdx.x >> 5) * 8;
  if (blockIdx.y >= ((const Header*)input)->episodes || column >= dim) return;
  const int rows = e.items + e.queries, k_tiles = row_weight_tiles(rows), m_tiles = (rows + 15) >> 4;
  // Column `column + group`; after the last column, the last one, whose sums are not written.
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
          // Rows after the last count as 0; their weights, which fill a tile, are 0, too.
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
