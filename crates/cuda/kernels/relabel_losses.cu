// Posterior, prototypes and losses of Relabel, and the gradient of the network's logits. One thread block per episode.
//
// M items, C classes, Q queries. Probabilities [M][C + 1] are a softmax over the classes and "none of them"; the weight of
// item i in prototype c is P(i is c) x multiplier(i, c) + floor, normalised over the items. Queries are classified by their
// squared distances to the prototypes over the mean of these distances.
#pragma once
#include "relabel.cuh"

namespace relabel {

#define MAX_LOG_MULTIPLIER 3.f
// Minus the logarithm of the smallest normal f64, which the CPU uses for a probability of 0.
#define LARGEST_LOSS 708.3964f

// Memory of the losses of an episode, [scratch_len]: see `loss_scratch_len` in src/relabel.
struct LossMemory {
  float *probabilities, *d_probabilities, *d_softmax;  // [M][C + 1]
  float *weights, *with_items, *d_weights, *multipliers;  // [C][M]
  float *distances, *d_distances;                      // [C][Q]
  float *totals, *squares;                             // [C]
};
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
  m.totals = at += far;
  m.squares = at += classes;
  return m;
}

DEVICE float cross_entropy(float probability) { return probability <= 0.f ? LARGEST_LOSS : -logf(probability); }

DEVICE void softmax(float* row, int count) {
  float largest = row[0], total = 0.f;
  for (int c = 1; c < count; c++) largest = fmaxf(largest, row[c]);
  for (int c = 0; c < count; c++) total += row[c] = expf(row[c] - largest);
  const float scale = 1.f / total;
  for (int c = 0; c < count; c++) row[c] *= scale;
}

// Probabilities of the items and weights of the prototypes. Contains barriers.
DEVICE void posterior(const Relabel& r, const Episode& e, const int* given, const int* counts, LossMemory m) {
  const int items = e.items, classes = e.classes;
  const float* prior = r.parameters + r.prior;
  const float* logits = r.logits + (long)e.first_state * OUTPUTS;
  const float other_classes = -logf(fmaxf((float)classes, 2.f) - 1.f);
  for (int i = threadIdx.x; i < items; i += RELABEL_THREADS) {
    float *row = m.probabilities + i * (classes + 1), votes = 0.f;
    for (int c = 0; c < classes; c++) {
      const float* state = logits + (long)(i * classes + c) * OUTPUTS;
      const float start = c != given[i] ? other_classes : prior[0] + (counts[c] == 1 ? prior[1] : 0.f);
      row[c] = state[0] + start;
      votes += state[2];
    }
    row[classes] = votes * (1.f / classes) + prior[2] + (r.view_target == 2 ? r.outlier[e.first_item + i] : 0.f);
    softmax(row, classes + 1);
  }
  __syncthreads();
  for (int task = threadIdx.x; task < items * classes; task += RELABEL_THREADS) {
    const int c = task / items, i = task - c * items;
    const float multiplier = expf(MAX_LOG_MULTIPLIER * tanhf(logits[(long)(i * classes + c) * OUTPUTS + 1] / MAX_LOG_MULTIPLIER));
    const float floor = counts[c] == 0 ? r.floor / items : given[i] == c ? r.floor : 0.f;
    m.multipliers[task] = multiplier;
    m.weights[task] = m.probabilities[i * (classes + 1) + c] * multiplier + floor;
  }
  __syncthreads();
  for (int c = threadIdx.x; c < classes; c += RELABEL_THREADS) {
    float total = 0.f;
    for (int i = 0; i < items; i++) total += m.weights[c * items + i];
    m.totals[c] = total;
  }
  __syncthreads();
  for (int task = threadIdx.x; task < items * classes; task += RELABEL_THREADS) m.weights[task] *= 1.f / m.totals[task / items];
  __syncthreads();
}

// Cross-entropy of the items' true classes, and its gradient in `d_softmax`.
DEVICE double item_loss(const Relabel& r, const Episode& e, const int* truths, LossMemory m) {
  const float weight = r.items_weight / e.items;
  double loss = 0.0;
  for (int task = threadIdx.x; task < e.items * (e.classes + 1); task += RELABEL_THREADS) {
    const int i = task / (e.classes + 1), c = task - i * (e.classes + 1);
    const float probability = m.probabilities[task];
    if (c == truths[i]) loss += (double)weight * cross_entropy(probability);
    m.d_softmax[task] = weight * (probability - (c == truths[i] ? 1.f : 0.f));
  }
  return block_sum(loss);
}

// Squared distances of queries to prototypes.
DEVICE void query_distances(const Relabel& r, const Episode& e, LossMemory m) {
  const int items = e.items;
  const float *gram = r.gram + e.first_pair, *products = r.products + e.first_product;
  for (int task = threadIdx.x; task < e.classes * items; task += RELABEL_THREADS) {
    const int c = task / items, j = task - c * items;
    float sum = 0.f;
    for (int i = 0; i < items; i++) sum += m.weights[c * items + i] * gram[(long)i * items + j];
    m.with_items[task] = sum;
  }
  __syncthreads();
  for (int c = threadIdx.x; c < e.classes; c += RELABEL_THREADS) {
    float sum = 0.f;
    for (int i = 0; i < items; i++) sum += m.weights[c * items + i] * m.with_items[c * items + i];
    m.squares[c] = sum;
  }
  __syncthreads();
  for (int task = threadIdx.x; task < e.classes * e.queries; task += RELABEL_THREADS) {
    const int c = task / e.queries, q = task - c * e.queries;
    float sum = 0.f;
    for (int i = 0; i < items; i++) sum += m.weights[c * items + i] * products[(long)i * e.queries + q];
    m.distances[task] = r.squares[e.first_query + q] + m.squares[c] - (sum + sum);
  }
  __syncthreads();
}

// Cross-entropy of the queries; gradients of the weights in `d_weights` and of log_scale.
DEVICE double query_loss(const Relabel& r, const Episode& e, const int* classes, LossMemory m, double* d_log_scale) {
  const int count = e.classes * e.queries, items = e.items;
  query_distances(r, e, m);
  double sum = 0.0;
  for (int i = threadIdx.x; i < count; i += RELABEL_THREADS) sum += m.distances[i];
  const double mean = block_sum(sum) / max(count, 1);
  *d_log_scale = 0.0;
  if (mean <= 0.0) {
    for (int i = threadIdx.x; i < e.classes * items; i += RELABEL_THREADS) m.d_weights[i] = 0.f;
    __syncthreads();
    return count == 0 ? 0.0 : (double)r.queries_weight * log((double)e.classes);
  }
  const float scale = (float)(exp((double)r.parameters[r.log_scale]) / mean), weight = r.queries_weight / e.queries;
  double loss = 0.0, slope = 0.0;
  for (int q = threadIdx.x; q < e.queries; q += RELABEL_THREADS) {
    float largest = -scale * m.distances[q], total = 0.f;
    for (int c = 1; c < e.classes; c++) largest = fmaxf(largest, -scale * m.distances[c * e.queries + q]);
    for (int c = 0; c < e.classes; c++) {
      const float value = expf(-scale * m.distances[c * e.queries + q] - largest);
      m.d_distances[c * e.queries + q] = value;
      total += value;
    }
    for (int c = 0; c < e.classes; c++) {
      const int at = c * e.queries + q;
      const float probability = m.d_distances[at] * (1.f / total);
      if (c == classes[q]) loss += (double)weight * cross_entropy(probability);
      m.d_distances[at] = -scale * weight * (probability - (c == classes[q] ? 1.f : 0.f));
      slope += (double)m.d_distances[at] * m.distances[at];
    }
  }
  loss = block_sum(loss);
  slope = block_sum(slope);
  *d_log_scale = slope;
  // The loss depends on the distances over their mean, so the gradient of the mean's logarithm is minus that of log_scale.
  const float through_mean = (float)(-slope / (mean * count));
  const float* products = r.products + e.first_product;
  for (int task = threadIdx.x; task < e.classes * items; task += RELABEL_THREADS) {
    const int c = task / items, i = task - c * items;
    float d_square = 0.f, d_product = 0.f;
    for (int q = 0; q < e.queries; q++) {
      const float d = m.d_distances[c * e.queries + q] + through_mean;
      d_square += d;
      d_product += d * products[(long)i * e.queries + q];
    }
    m.d_weights[task] = 2.f * (d_square * m.with_items[task] - d_product);
  }
  __syncthreads();
  return loss;
}

// From the gradients of weights and softmax to those of the network's logits and of the prior.
DEVICE void posterior_backward(const Relabel& r, const Episode& e, int index, const int* given, const int* counts, LossMemory m) {
  const int items = e.items, classes = e.classes;
  const float* logits = r.logits + (long)e.first_state * OUTPUTS;
  float* d_logits = r.d_logits + (long)e.first_state * OUTPUTS;
  // `squares` becomes the mean of the gradient in each prototype.
  for (int c = threadIdx.x; c < classes; c += RELABEL_THREADS) {
    float mean = 0.f;
    for (int i = 0; i < items; i++) mean += m.weights[c * items + i] * m.d_weights[c * items + i];
    m.squares[c] = mean;
  }
  __syncthreads();
  for (int task = threadIdx.x; task < items * classes; task += RELABEL_THREADS) {
    const int c = task / items, i = task - c * items, state = i * classes + c;
    const float d = (m.d_weights[task] - m.squares[c]) / m.totals[c] * m.multipliers[task];
    const float bounded = tanhf(logits[(long)state * OUTPUTS + 1] / MAX_LOG_MULTIPLIER);
    m.d_probabilities[i * (classes + 1) + c] = d;
    d_logits[(long)state * OUTPUTS + 1] = d * m.probabilities[i * (classes + 1) + c] * (1.f - bounded * bounded);
  }
  __syncthreads();
  double d_given = 0.0, d_alone = 0.0, d_none = 0.0;
  for (int i = threadIdx.x; i < items; i += RELABEL_THREADS) {
    const float *p = m.probabilities + i * (classes + 1), *d_p = m.d_probabilities + i * (classes + 1);
    const float* d_row = m.d_softmax + i * (classes + 1);
    float mean = 0.f;
    for (int c = 0; c < classes; c++) mean += p[c] * d_p[c];
    const float none = d_row[classes] - p[classes] * mean;
    for (int c = 0; c < classes; c++) {
      const float d = d_row[c] + p[c] * (d_p[c] - mean);
      d_logits[(long)(i * classes + c) * OUTPUTS] = d;
      d_logits[(long)(i * classes + c) * OUTPUTS + 2] = none * (1.f / classes);
      if (c != given[i]) continue;
      d_given += d;
      if (counts[c] == 1) d_alone += d;
    }
    d_none += none;
    if (r.view_target == 2) r.d_outlier[e.first_item + i] = none;
  }
  const double sums[3] = {block_sum(d_given), block_sum(d_alone), block_sum(d_none)};
  if (threadIdx.x < 3) r.d_prior[index * 4 + threadIdx.x] = (float)sums[threadIdx.x];
}

extern "C" __global__ void __launch_bounds__(RELABEL_THREADS) relabel_losses(Relabel r) {
  const u32* input = slot(r);
  const int index = blockIdx.x;
  if (index >= (int)((const Header*)input)->episodes) return;
  const Episode e = episode(r, index);
  const int* given = (const int*)(input + r.layout.given) + e.first_item;
  const int* counts = (const int*)(input + r.layout.counts) + e.first_class;
  const int* truths = (const int*)(input + r.layout.truths) + e.first_item;
  const int* classes = (const int*)(input + r.layout.query_classes) + e.first_query;
  float* memory = r.scratch_len > 0 ? (float*)dynamic_shared : r.scratch + e.first_scratch;
  const LossMemory m = loss_memory(memory, e.items, e.classes, e.queries);
  posterior(r, e, given, counts, m);
  const double of_items = item_loss(r, e, truths, m);
  double d_log_scale;
  const double of_queries = query_loss(r, e, classes, m, &d_log_scale);
  posterior_backward(r, e, index, given, counts, m);
  if (threadIdx.x > 0) return;
  r.losses[index * 2] = (float)of_items;
  r.losses[index * 2 + 1] = (float)of_queries;
  r.d_prior[index * 4 + 3] = (float)d_log_scale;
}

}  // namespace relabel
