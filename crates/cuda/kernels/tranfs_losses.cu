// The losses of TraNFS's prototypes and their gradients: cross-entropy of the queries over 2 q.p - p.p, which is minus the
// squared distance up to a constant of the query, and the distance of a prototype p to the mean t of the correctly labelled
// items of its class. Sizes and buffers: tranfs.cu.
//
// Both kernels have one thread block per episode and chunk of 128 columns of D. The first computes prototypes and partial
// sums over its columns. In the second, every block adds the partial sums up for itself.
#pragma once
#include "tranfs.cu"

#define LOSS_THREADS 256
#define CLASS_TILE 8

DEVICE bool is_mislabelled(const Tranfs& t, const u32* input, int item) {
  return (input[t.labels_at + item] & LABEL_FLAG) != 0;
}
DEVICE int clean_items(const Tranfs& t, const u32* input, TranfsClass c) {
  int count = 0;
  for (int item = c.first_item; item < c.first_item + c.items; item++) count += !is_mislabelled(t, input, item);
  return count;
}

// Clean mean and sums of one class over the block's columns, by one warp. prototype: the class's columns in shared memory.
DEVICE void sum_class(const Tranfs& t, const u32* input, int number, int chunk, int columns, const float* prototype) {
  const int lane = threadIdx.x & 31, start = chunk * CHUNK;
  const TranfsClass c = classes_of(t, input)[number];
  const int count = clean_items(t, input, c);
  const float factor = 1.f / max(count, 1);
  float mean[CHUNK / 32], sums[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
  for (int i = 0; i < CHUNK / 32; i++) mean[i] = 0.f;
  for (int item = c.first_item; item < c.first_item + c.items; item++) {
    if (is_mislabelled(t, input, item)) continue;
    const float* row = feature_row(t, input, input[t.rows_at + item]) + start;
#pragma unroll
    for (int i = 0; i < CHUNK / 32; i++)
      if (i * 32 + lane < columns) mean[i] += factor * row[i * 32 + lane];
  }
#pragma unroll
  for (int i = 0; i < CHUNK / 32; i++) {
    if (i * 32 + lane >= columns) continue;
    const float p = prototype[i * 32 + lane], difference = p - mean[i];
    t.clean_means[(long)number * t.dim + start + i * 32 + lane] = mean[i];
    sums[0] += p * p;
    sums[1] += p * mean[i];
    sums[2] += mean[i] * mean[i];
    sums[3] += difference * difference;
  }
  for (int i = 0; i < 4; i++) {
    const float sum = warp_sum(sums[i]);
    if (lane == 0) t.class_sums[((long)chunk * t.class_capacity + number) * 4 + i] = sum;
  }
}

// Products of a warp's queries, from `query` on, with the prototypes in `tile`, over the block's columns.
#define QUERIES_AT_A_TIME 4
DEVICE void multiply_queries(const Tranfs& t, const u32* input, const TranfsEpisode& e, int query, int first, int count, int chunk,
                             int columns, const float* tile) {
  const int lane = threadIdx.x & 31, own = min(QUERIES_AT_A_TIME, e.queries - query);
  float values[QUERIES_AT_A_TIME][CHUNK / 32];
#pragma unroll
  for (int q = 0; q < QUERIES_AT_A_TIME; q++) {
    const float* row = feature_row(t, input, input[t.query_rows_at + e.first_query + query + min(q, own - 1)]) + chunk * CHUNK;
#pragma unroll
    for (int i = 0; i < CHUNK / 32; i++) values[q][i] = i * 32 + lane < columns ? row[i * 32 + lane] : 0.f;
  }
  float* products = t.partial_products + ((long)chunk * t.query_capacity + e.first_query + query) * t.classes + first;
  for (int c = 0; c < count; c++) {
    float sums[QUERIES_AT_A_TIME];
#pragma unroll
    for (int q = 0; q < QUERIES_AT_A_TIME; q++) sums[q] = 0.f;
#pragma unroll
    for (int i = 0; i < CHUNK / 32; i++) {
      const float p = i * 32 + lane < columns ? tile[c * STAGE_PITCH + i * 32 + lane] : 0.f;
#pragma unroll
      for (int q = 0; q < QUERIES_AT_A_TIME; q++) sums[q] += values[q][i] * p;
    }
#pragma unroll
    for (int q = 0; q < QUERIES_AT_A_TIME; q++) sums[q] = warp_sum(sums[q]);
#pragma unroll
    for (int q = 0; q < QUERIES_AT_A_TIME; q++)
      if (lane == q && q < own) products[(long)q * t.classes + c] = sums[q];
  }
}

// Prototypes, products with the queries, and sums of the classes. Grid: (chunks, episodes), 256 threads. Shared memory: 2
// STAGE_LEN words.
extern "C" __global__ void __launch_bounds__(LOSS_THREADS) tranfs_prototypes(Tranfs t) {
  const u32* input = step_input(t);
  if ((int)blockIdx.y >= step_of(input).episodes) return;
  const TranfsEpisode e = episode_of(t, input, blockIdx.y);
  const int warp = threadIdx.x >> 5, chunk = blockIdx.x, start = chunk * CHUNK;
  const int columns = min(CHUNK, t.dim - start), width = t.width, steps = (width + 15) >> 4;
  float* tile = (float*)dynamic_shared + STAGE_LEN;  // [32][STAGE_PITCH]: prototypes
  const float* out = t.states + ((long)t.layers * t.token_capacity + e.first_token) * width;
  for (int first = 0; first < e.classes; first += STAGE_ROWS) {
    const int count = min(STAGE_ROWS, e.classes - first);
    float* prototypes = t.prototypes + (long)(e.first_class + first) * t.dim + start;
    block_product<LOSS_THREADS, 2>((u32*)dynamic_shared, count, width, columns, t.packed + t.packed_up_t + (long)(start >> 3) * steps * 32, steps,
                     [&](int row, int column) { return out[(long)(first + row) * width + column]; },
                     [&](int row, int column, float value) {
                       tile[row * STAGE_PITCH + column] = value;
                       prototypes[(long)row * t.dim + column] = value;
                     });
    __syncthreads();
    for (int query = warp * QUERIES_AT_A_TIME; query < e.queries; query += LOSS_THREADS / 32 * QUERIES_AT_A_TIME)
      multiply_queries(t, input, e, query, first, count, chunk, columns, tile);
    for (int c = warp; c < count; c += LOSS_THREADS / 32)
      sum_class(t, input, e.first_class + first + c, chunk, columns, tile + c * STAGE_PITCH);
    __syncthreads();
  }
}

// The block's copy of p.p and of the factors a and b of the clean loss, whose gradient is a p - b t. Stores the loss of the
// class if `is_first`.
DEVICE void class_factors(const Tranfs& t, const u32* input, const TranfsEpisode& e, int number, float* factors, bool is_first) {
  float sums[4] = {0.f, 0.f, 0.f, 0.f};
  for (int chunk = 0; chunk < t.chunks; chunk++)
    for (int i = 0; i < 4; i++) sums[i] += t.class_sums[((long)chunk * t.class_capacity + number) * 4 + i];
  const float weight = t.clean_weight / max(e.classes, 1);
  float a = 0.f, b = 0.f, loss = 0.f;
  if (clean_items(t, input, classes_of(t, input)[number]) > 0) {
    if (!t.cosine) {
      a = b = 2.f * weight;
      loss = weight * sums[3];
    } else {
      const float norms = sqrtf(sums[0] * sums[2]);
      if (norms > 0.f) {
        a = weight * sums[1] / (norms * sums[0]);
        b = weight / norms;
        loss = -weight * sums[1] / norms;
      }
    }
  }
  factors[0] = sums[0];
  factors[2] = a;
  factors[3] = b;
  if (is_first) t.class_losses[number] = loss;
}

// Softmax of one query: its loss, and twice the gradients of its logits in place.
DEVICE float query_loss(float* logits, int classes, int own, float weight) {
  float largest = logits[0], sum = 0.f;
  for (int c = 1; c < classes; c++) largest = fmaxf(largest, logits[c]);
  for (int c = 0; c < classes; c++) sum += expf(logits[c] - largest);
  const float loss = logf(sum) - (logits[own] - largest);
  for (int c = 0; c < classes; c++)
    logits[c] = 2.f * weight * (expf(logits[c] - largest) / sum - (c == own ? 1.f : 0.f));
  return loss * weight;
}

// Gradients of CLASS_TILE prototypes from `first` on, over the block's columns. scratch: [CLASS_TILE][CHUNK].
DEVICE void prototype_gradients_of(const Tranfs& t, const u32* input, const TranfsEpisode& e, int first, int start, int columns,
                                   const float* d_logits, const float* factors, float* scratch) {
  const int column = threadIdx.x & (CHUNK - 1), half = threadIdx.x / CHUNK, count = min(CLASS_TILE, e.classes - first);
  const u32* rows = input + t.query_rows_at + e.first_query;
  float d[CLASS_TILE];
#pragma unroll
  for (int c = 0; c < CLASS_TILE; c++) d[c] = 0.f;
  if (column < columns)
#pragma unroll 8
    for (int query = half; query < e.queries; query += LOSS_THREADS / CHUNK) {
      const float value = feature_row(t, input, rows[query])[start + column];
      const float* d_query = d_logits + (long)query * t.classes + first;
#pragma unroll
      for (int c = 0; c < CLASS_TILE; c++)
        if (c < count) d[c] += d_query[c] * value;
    }
  __syncthreads();
  if (half == 1)
    for (int c = 0; c < CLASS_TILE; c++) scratch[c * CHUNK + column] = d[c];
  __syncthreads();
  if (half != 0 || column >= columns) return;
#pragma unroll
  for (int c = 0; c < CLASS_TILE; c++) {
    if (c >= count) continue;
    const long at = (long)(e.first_class + first + c) * t.dim + start + column;
    const float* factor = factors + (first + c) * 4;
    const float p = t.prototypes[at];
    t.d_prototypes[at] = d[c] + scratch[c * CHUNK + column] + (factor[2] - factor[1]) * p - factor[3] * t.clean_means[at];
  }
}

// Losses and gradients of prototypes and class states. Grid: (chunks, episodes), 256 threads. Shared memory: STAGE_LEN words.
extern "C" __global__ void __launch_bounds__(LOSS_THREADS) tranfs_losses(Tranfs t) {
  const u32* input = step_input(t);
  if ((int)blockIdx.y >= step_of(input).episodes) return;
  const TranfsEpisode e = episode_of(t, input, blockIdx.y);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, chunk = blockIdx.x, start = chunk * CHUNK;
  const int columns = min(CHUNK, t.dim - start), width = t.width;
  float* d_logits = t.d_query_logits + ((long)chunk * t.query_capacity + e.first_query) * t.classes;
  float* factors = t.class_factors + ((long)chunk * t.class_capacity + e.first_class) * 4;
  for (int c = threadIdx.x; c < e.classes; c += LOSS_THREADS)
    class_factors(t, input, e, e.first_class + c, factors + c * 4, chunk == 0);
  __syncthreads();
  for (int i = threadIdx.x; i < e.queries * e.classes; i += LOSS_THREADS) {
    const int query = i / e.classes, c = i - query * e.classes;
    float product = 0.f;
#pragma unroll 8
    for (int other = 0; other < t.chunks; other++)
      product += t.partial_products[((long)other * t.query_capacity + e.first_query + query) * t.classes + c];
    d_logits[(long)query * t.classes + c] = 2.f * product - factors[c * 4];
  }
  __syncthreads();
  for (int query = threadIdx.x; query < e.queries; query += LOSS_THREADS) {
    const int own = input[t.query_classes_at + e.first_query + query];
    const float loss = query_loss(d_logits + (long)query * t.classes, e.classes, own, 1.f / e.queries);
    if (chunk == 0) t.query_losses[e.first_query + query] = loss;
  }
  __syncthreads();
  for (int c = warp; c < e.classes; c += LOSS_THREADS / 32) {
    float total = 0.f;
    for (int query = lane; query < e.queries; query += 32) total += d_logits[(long)query * t.classes + c];
    total = warp_sum(total);
    if (lane == 0) factors[c * 4 + 1] = total;
  }
  if (chunk == 0 && warp == 0) {
    float queries = 0.f, clean = 0.f;
    for (int query = lane; query < e.queries; query += 32) queries += t.query_losses[e.first_query + query];
    for (int c = lane; c < e.classes; c += 32) clean += t.class_losses[e.first_class + c];
    queries = warp_sum(queries);
    clean = warp_sum(clean);
    if (lane == 0) {
      t.losses[blockIdx.y * 3] = queries;
      t.losses[blockIdx.y * 3 + 1] = clean;
    }
  }
  for (int first = 0; first < e.classes; first += CLASS_TILE)
    prototype_gradients_of(t, input, e, first, start, columns, d_logits, factors, (float*)dynamic_shared);
  const float* d_prototypes = t.d_prototypes + (long)e.first_class * t.dim + start;
  float* out = t.d_class_states + ((long)chunk * t.class_capacity + e.first_class) * width;
  block_product<LOSS_THREADS, 2>((u32*)dynamic_shared, e.classes, columns, width, t.packed + t.packed_up + (start >> 4) * 32, (t.dim + 15) >> 4,
                   [&](int row, int column) { return d_prototypes[(long)row * t.dim + column]; },
                   [&](int row, int column, float value) { out[(long)row * width + column] = value; });
}
