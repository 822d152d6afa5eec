// The end of the Relabel head: posterior of the items, weights of the prototypes, losses, and the gradient of the
// network's outputs. One thread block of RELABEL_THREADS threads per episode; every function is called by the whole
// block. relabel.cu has the kernels that call `losses`. The same on the CPU:
// crates/nn/src/relabel/{posterior,losses}.rs. Sizes and buffers (`struct Relabel`) are in relabel.cuh.
//
// M items, C classes, Q queries. Each state (item i, class c) has three outputs of the network: logit of the class,
// logarithm of a multiplier, vote for "none of the classes".
//   posterior  probabilities [M][C + 1], a softmax over the classes and "none": logits plus a prior. The prior of the
//              given label is prior[0], plus prior[1] if no other item has that label; that of every other class is
//              -ln(C - 1), so all of them together have the same weight for any C; "none" is prior[2] plus the mean of
//              the votes, plus what the item view adds.
//   weights    of item i in prototype c: P(i is c) x multiplier(i, c) + floor, normalised over the items. multiplier =
//              exp(3 tanh(output / 3)). The floor is for items with given label c; if there are no such items, all have
//              floor / M.
//   distances  of query q to prototype c, the weighted mean of the items, from inner products alone: q.q + w G w - 2
//              w.p, with w the weights, G the gram matrix of the items and p the products of items and q. Squared.
//   losses     items_weight x mean cross-entropy of the items' true classes ("none" included) + queries_weight x mean
//              cross-entropy of the queries, whose logits are -exp(log_scale) x distance / mean of all distances
#pragma once
#include "relabel.cuh"

namespace relabel {

#define MAX_LOG_MULTIPLIER 3.f  // a multiplier is between e^-3 and e^3
// Minus the logarithm of the smallest normal f64, which the CPU uses for a probability of 0.
#define LARGEST_LOSS 708.3964f

// Memory of the losses of an episode, in shared memory if it fits, else in `scratch`. Its length is `loss_scratch_len`
// in src/relabel/input.rs.
struct LossMemory {
  // [M][C + 1]; d_softmax: gradient of the items' loss with respect to the logits of the posterior.
  float *probabilities, *d_probabilities, *d_softmax;
  // [C][M]; with_items: weights times the gram matrix.
  float *weights, *with_items, *d_weights, *multipliers;
  float *distances, *d_distances;   // [C][Q]
  float *inverse_totals, *squares;  // [C]: 1 / sum of a prototype's weights before normalisation; w G w
};
// Divides the memory from `at` on among the arrays.
DEVICE LossMemory loss_memory(float* at, int items, int classes, int queries) {
  LossMemory m;
  const int states = items * classes, wide = states + items, far = classes * queries;
  m.probabilities = at;
  m.d_probabilities = at += wide;
  m.d_softmax = at += wide;
  m.weights = at += wide;
  m.with_items = at += states;
  m.d_weights = at += states;
  m.multipliers = at += states;
  m.distances = at += states;
  m.d_distances = at += far;
  m.inverse_totals = at += far;
  m.squares = at += classes;
  return m;
}

// tanh(logit / MAX_LOG_MULTIPLIER), between -1 and 1: the caller multiplies by MAX_LOG_MULTIPLIER. Computed as 1 - 2 / (1 + exp(2 x)); 1.4426.. = log2(e).
DEVICE float bounded_logit(float logit) {
  return 1.f - 2.f * fast_inverse(1.f + fast_exp2(2.f * 1.4426950408889634f / MAX_LOG_MULTIPLIER * logit));
}
// Minus the logarithm of a probability.
DEVICE float cross_entropy(float probability) { return probability <= 0.f ? LARGEST_LOSS : -logf(probability); }

// Groups of eight threads in a block, and the sum and maximum of a group.
#define EIGHTS (RELABEL_THREADS / 8)
DEVICE float sum_of_8(float value) {
#pragma unroll
  for (int distance = 4; distance; distance >>= 1) value += __shfl_xor_sync(FULL_WARP, value, distance);
  return value;
}
DEVICE float max_of_8(float value) {
#pragma unroll
  for (int distance = 4; distance; distance >>= 1) value = fmaxf(value, __shfl_xor_sync(FULL_WARP, value, distance));
  return value;
}

// Probabilities of the items and weights of the prototypes, to `m`. given: [M] labels; counts: [C] items per label.
// Contains barriers.
DEVICE void posterior(const Relabel& r, const Episode& e, const int* given, const int* counts, LossMemory m) {
  const int items = e.items, classes = e.classes, lane = threadIdx.x & 31, warp = threadIdx.x >> 5, eighth = threadIdx.x & 7;
  const float* prior = r.parameters + r.prior;
  const float* logits = r.logits + (long)e.first_state * OUTPUTS;
  const float other_classes = -logf(fmaxf((float)classes, 2.f) - 1.f);  // the prior of a class that is not the label
#pragma unroll 1
  for (int first = 0; first < items; first += EIGHTS) {
    // Eight threads per item: the logits of the classes, then a softmax over them and "none". All threads take part in
    // the sums; those without an item repeat the last one and do not write. For the label c of i, counts[c]
    // == 1 means that no other item has it. -3.4028..e38: the most negative finite f32.
    const int i = first + (threadIdx.x >> 3), item = min(i, items - 1), label = given[item];
    float *row = m.probabilities + item * (classes + 1), votes = 0.f, largest = -3.402823466e38f, total = 0.f;
#pragma unroll 1
    for (int c = eighth; c < classes; c += 8) {
      const float* state = logits + (item * classes + c) * OUTPUTS;
      largest = fmaxf(largest, state[0] + (c != label ? other_classes : prior[0] + (counts[c] == 1 ? prior[1] : 0.f)));
      votes += state[2];
    }
    // view_target 2: the item view adds to the logit of "none".
    const float outlier = r.view_target == 2 ? r.outlier[e.first_item + item] : 0.f;
    const float none = sum_of_8(votes) * fast_inverse(classes) + prior[2] + outlier;
    largest = fmaxf(max_of_8(largest), none);
    const float none_value = expf(none - largest);
#pragma unroll 1
    for (int c = eighth; c < classes; c += 8) {
      const float start = c != label ? other_classes : prior[0] + (counts[c] == 1 ? prior[1] : 0.f);
      const float value = expf(logits[(item * classes + c) * OUTPUTS] + start - largest);
      if (i < items) row[c] = value;
      total += value;
    }
    const float scale = fast_inverse(sum_of_8(total) + none_value);
    if (i >= items) continue;
    if (eighth == 0) row[classes] = none_value * scale;
#pragma unroll 1
    for (int c = eighth; c < classes; c += 8) row[c] *= scale;
  }
  __syncthreads();
  // A warp per class.
#pragma unroll 1
  for (int c = warp; c < classes; c += RELABEL_WARPS) {
    const int count = counts[c];
    float total = 0.f;
#pragma unroll 1
    for (int i = lane; i < items; i += 32) {
      const float multiplier = expf(MAX_LOG_MULTIPLIER * bounded_logit(logits[(i * classes + c) * OUTPUTS + 1]));
      const float floor = count == 0 ? r.floor * fast_inverse(items) : given[i] == c ? r.floor : 0.f;
      const float weight = m.probabilities[i * (classes + 1) + c] * multiplier + floor;
      m.multipliers[c * items + i] = multiplier;
      m.weights[c * items + i] = weight;
      total += weight;
    }
    const float inverse_total = fast_inverse(warp_sum(total));
    if (lane == 0) m.inverse_totals[c] = inverse_total;
#pragma unroll 1
    for (int i = lane; i < items; i += 32) m.weights[c * items + i] *= inverse_total;
  }
  __syncthreads();
}

// This thread's part of the cross-entropy of the items' true classes (C: none); its gradient is in `d_softmax`. A warp
// per item.
DEVICE float item_loss(const Relabel& r, const Episode& e, const int* truths, LossMemory m) {
  const float weight = r.items_weight * fast_inverse(e.items);
  float loss = 0.f;
  each_element(e.items, e.classes + 1, [&](int i, int c) {
    const int at = i * (e.classes + 1) + c;
    const float probability = m.probabilities[at];
    const bool is_true = c == truths[i];
    if (is_true) loss += weight * cross_entropy(probability);
    m.d_softmax[at] = weight * (probability - (is_true ? 1.f : 0.f));
  });
  return loss;
}

// out[row][column] = sum over k below `len` of left[row][k] right[k][column], for [rows][columns], one element per
// thread at a time, in f32. from_last: the work starts with the last threads, beside another product that starts with
// the first.
SEPARATE void small_product(const float* left, const float* right, int rows, int len, int columns, float* out, bool from_last) {
#pragma unroll 1
  for (int task = from_last ? RELABEL_THREADS - 1 - threadIdx.x : threadIdx.x; task < rows * columns; task += RELABEL_THREADS) {
    const int row = task / columns, column = task - row * columns;
    const float *own = left + row * len, *at = right + column;
    float sum = 0.f;
#pragma unroll 1
    for (int k = 0; k < len; k += 8) {
      float values[8];
#pragma unroll
      for (int i = 0; i < 8; i++) values[i] = k + i < len ? at[(k + i) * columns] : 0.f;
#pragma unroll
      for (int i = 0; i < 8; i++)
        if (k + i < len) sum += own[k + i] * values[i];
    }
    out[task] = sum;
  }
}

// out[row] = sum over columns of left[row][column] right[row][column]; both are [rows][columns]. A warp per row.
SEPARATE void row_products(const float* left, const float* right, int rows, int columns, float* out) {
  const int lane = threadIdx.x & 31;
#pragma unroll 1
  for (int row = threadIdx.x >> 5; row < rows; row += RELABEL_WARPS) {
    float sum = 0.f;
#pragma unroll 1
    for (int i = lane; i < columns; i += 32) sum += left[row * columns + i] * right[row * columns + i];
    sum = warp_sum(sum);
    if (lane == 0) out[row] = sum;
  }
}

// Squared distances of queries to prototypes, `distances` [C][Q]. Contains barriers.
DEVICE void query_distances(const Relabel& r, const Episode& e, LossMemory m) {
  small_product(m.weights, r.gram + e.first_pair, e.classes, e.items, e.items, m.with_items, false);
  small_product(m.weights, r.products + e.first_product, e.classes, e.items, e.queries, m.distances, true);
  __syncthreads();
  row_products(m.weights, m.with_items, e.classes, e.items, m.squares);
  __syncthreads();
  const float* squares = r.squares + e.first_query;
  each_element(e.classes, e.queries, [&](int c, int q) {
    float* distance = m.distances + c * e.queries + q;
    *distance = squares[q] + m.squares[c] - (*distance + *distance);
  });
}

// The losses of an episode, weighted, and the gradient of log_scale.
struct Losses {
  float items, queries, d_log_scale;
};
// Cross-entropies of the items, from each thread's part `item_part`, and of the queries, whose true classes are
// `classes`; gradients of the weights in `d_weights` and of log_scale. JOINT: trained together with a backbone (`struct
// Joint`): writes weights [C][M] and gradients of distances [C][Q] to `joint_out` for the gradient of the features.
// Contains barriers.
template <bool JOINT>
DEVICE Losses cross_entropies(const Relabel& r, const Episode& e, const int* classes, LossMemory m, float item_part,
                              float* joint_out) {
  const int count = e.classes * e.queries, items = e.items, queries = e.queries;
  query_distances(r, e, m);
  __syncthreads();
  float sum = 0.f;
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += RELABEL_THREADS) sum += m.distances[i];
  const Three sums = block_sums({sum, item_part, 0.f});
  const float mean = sums.x * fast_inverse(max(count, 1));
  if (JOINT) {
#pragma unroll 1
    for (int i = threadIdx.x; i < e.classes * items; i += RELABEL_THREADS) joint_out[i] = m.weights[i];
  }
  float* d_distances_out = joint_out + e.classes * items;
  // All distances are 0 (or there are no queries): every class is equally likely, and nothing has a gradient.
  if (mean <= 0.f) {
    if (JOINT) {
#pragma unroll 1
      for (int i = threadIdx.x; i < count; i += RELABEL_THREADS) d_distances_out[i] = 0.f;
    }
#pragma unroll 1
    for (int i = threadIdx.x; i < e.classes * items; i += RELABEL_THREADS) m.d_weights[i] = 0.f;
    __syncthreads();
    return {sums.y, count == 0 ? 0.f : r.queries_weight * logf((float)e.classes), 0.f};
  }
  const float scale = expf(r.parameters[r.log_scale]) * fast_inverse(mean), weight = r.queries_weight * fast_inverse(queries);
  float loss = 0.f, slope = 0.f;
#pragma unroll 1
  for (int q = threadIdx.x; q < queries; q += RELABEL_THREADS) {
    // One thread per query: softmax over the classes, its loss, and the gradients of its distances.
    const int own = classes[q];
    float largest = -scale * m.distances[q], total = 0.f;
#pragma unroll 1
    for (int c = 1; c < e.classes; c++) largest = fmaxf(largest, -scale * m.distances[c * queries + q]);
#pragma unroll 1
    for (int c = 0; c < e.classes; c++) {
      const float value = expf(-scale * m.distances[c * queries + q] - largest);
      m.d_distances[c * queries + q] = value;
      total += value;
    }
    const float inverse_total = fast_inverse(total);
#pragma unroll 1
    for (int c = 0; c < e.classes; c++) {
      const int at = c * queries + q;
      const float probability = m.d_distances[at] * inverse_total;
      if (c == own) loss += weight * cross_entropy(probability);
      const float d = -scale * weight * (probability - (c == own ? 1.f : 0.f));
      m.d_distances[at] = d;
      slope += d * m.distances[at];
    }
  }
  const Three of_queries = block_sums({loss, slope, 0.f});
  // The gradient of log_scale is `slope` (logits are linear in exp(log_scale)). The logits are also divided by the mean
  // distance, so the gradient of the mean's logarithm is -slope, that of the mean -slope / mean, and each of the
  // `count` distances gets one count-th of it.
  const float through_mean = -of_queries.y * fast_inverse(mean * count);
  if (JOINT) {
#pragma unroll 1
    for (int i = threadIdx.x; i < count; i += RELABEL_THREADS) d_distances_out[i] = m.d_distances[i] + through_mean;
  }
  const float* products = r.products + e.first_product;
#pragma unroll 1
  for (int first = 0; first < e.classes * items; first += EIGHTS) {
    // d_weights = 2 sum over q of d_distance ((G w)_i - p_iq), eight threads per item and class.
    const int own = first + (threadIdx.x >> 3), task = min(own, e.classes * items - 1), c = task / items, i = task - c * items;
    float d_square = 0.f, d_product = 0.f;
#pragma unroll 4
    for (int q = threadIdx.x & 7; q < queries; q += 8) {
      const float d = m.d_distances[c * queries + q] + through_mean;
      d_square += d;
      d_product += d * products[i * queries + q];
    }
    d_square = sum_of_8(d_square);
    d_product = sum_of_8(d_product);
    if (own == task && (threadIdx.x & 7) == 0) m.d_weights[task] = 2.f * (d_square * m.with_items[task] - d_product);
  }
  __syncthreads();
  return {sums.y, of_queries.x, of_queries.y};
}

// From the gradients of weights and softmax to those of the network's outputs, `d_logits` [M C][3], and of the prior,
// `d_prior`. index: the episode. Contains barriers.
DEVICE void posterior_backward(const Relabel& r, const Episode& e, int index, const int* given, const int* counts, LossMemory m) {
  const int items = e.items, classes = e.classes, eighth = threadIdx.x & 7;
  const float* logits = r.logits + (long)e.first_state * OUTPUTS;
  float* d_logits = r.d_logits + (long)e.first_state * OUTPUTS;
  // `squares` becomes the mean of the gradient in each prototype, which normalising subtracts.
  row_products(m.weights, m.d_weights, classes, items, m.squares);
  __syncthreads();
  each_element(classes, items, [&](int c, int i) {
    const int state = i * classes + c, at = c * items + i;
    const float d = (m.d_weights[at] - m.squares[c]) * m.inverse_totals[c] * m.multipliers[at];
    // The derivative of 3 tanh(x / 3), the logarithm of the multiplier, is 1 - tanh(x / 3)^2.
    const float bounded = bounded_logit(logits[state * OUTPUTS + 1]);
    m.d_probabilities[i * (classes + 1) + c] = d;
    d_logits[state * OUTPUTS + 1] = d * m.probabilities[i * (classes + 1) + c] * (1.f - bounded * bounded);
  });
  __syncthreads();
  Three d_prior = {};  // of prior[0] (given label), prior[1] (no other item with it), prior[2] ("none")
  // The backward pass of the softmax, p (d_p - sum of p d_p), with eight threads per item. "none" itself is not in the
  // weights of a prototype, so its d_p is 0; the votes of the classes are in its logit by their mean.
#pragma unroll 1
  for (int first = 0; first < items; first += EIGHTS) {
    const int own = first + (threadIdx.x >> 3), i = min(own, items - 1), label = given[i];
    const float *p = m.probabilities + i * (classes + 1), *d_p = m.d_probabilities + i * (classes + 1);
    const float* d_row = m.d_softmax + i * (classes + 1);
    float mean = 0.f;
#pragma unroll 1
    for (int c = eighth; c < classes; c += 8) mean += p[c] * d_p[c];
    mean = sum_of_8(mean);
    if (own > i) continue;
    const float none = d_row[classes] - p[classes] * mean;
#pragma unroll 1
    for (int c = eighth; c < classes; c += 8) {
      const float d = d_row[c] + p[c] * (d_p[c] - mean);
      d_logits[(i * classes + c) * OUTPUTS] = d;
      d_logits[(i * classes + c) * OUTPUTS + 2] = none * fast_inverse(classes);
      if (c != label) continue;
      d_prior.x += d;
      if (counts[c] == 1) d_prior.y += d;
    }
    if (eighth > 0) continue;
    d_prior.z += none;
    if (r.view_target == 2) r.d_outlier[e.first_item + i] = none;
  }
  d_prior = block_sums(d_prior);
  if (threadIdx.x > 0) return;
  r.d_prior[index * 4] = d_prior.x;
  r.d_prior[index * 4 + 1] = d_prior.y;
  r.d_prior[index * 4 + 2] = d_prior.z;
}

// Losses of episode number `index` and the gradients of its outputs. Shared memory: LossMemory, if it fits. JOINT: as
// in `cross_entropies`.
template <bool JOINT>
DEVICE void losses(const Relabel& r, const u32* input, const Episode& e, int index, float* joint_out) {
  const int* given = (const int*)(input + r.layout.given) + e.first_item;
  const int* counts = (const int*)(input + r.layout.counts) + e.first_class;
  const int* truths = (const int*)(input + r.layout.truths) + e.first_item;
  const int* classes = (const int*)(input + r.layout.query_classes) + e.first_query;
  float* memory = r.scratch_len > 0 ? (float*)dynamic_shared : r.scratch + e.first_scratch;
  const LossMemory m = loss_memory(memory, e.items, e.classes, e.queries);
  posterior(r, e, given, counts, m);
  const Losses found = cross_entropies<JOINT>(r, e, classes, m, item_loss(r, e, truths, m), joint_out);
  posterior_backward(r, e, index, given, counts, m);
  if (threadIdx.x > 0) return;
  r.losses[index * 2] = found.items;
  r.losses[index * 2 + 1] = found.queries;
  r.d_prior[index * 4 + 3] = found.d_log_scale;
}

}  // namespace relabel
