// The TraNFS head, part 2: prototypes, losses and their gradients. Sizes (D, W, C, Q, ...), buffers (`struct Tranfs`)
// and the order of the kernels are in tranfs.cu. With p the prototype of a class, q a query and t the mean of the
// correctly labelled items of the class ("clean mean"):
//
//   loss of a query        cross-entropy of a softmax over the classes of 2 q.p - p.p, which is minus the squared
//                          distance plus q.q, a constant of the query
//   clean loss of a class  |p - t|^2, or minus the cosine of p and t (option `cosine`); 0 without correctly labelled
//                          items
//
// The losses of queries are weighted by 1 / queries of the episode, those of classes by clean_weight / classes.
//
// tranfs_prototypes and tranfs_losses have one thread block per episode and chunk of 128 columns of D. The first
// computes prototypes and partial sums over its columns. In the second, every block adds the partial sums of all chunks
// up for itself, in the same order, because blocks cannot wait for each other within a kernel; then it computes the
// gradients of its columns. src/tranfs.rs launches the kernels.
#pragma once
#include "tranfs.cu"

#define LOSS_THREADS 512  // threads of tranfs_prototypes and tranfs_losses
#define LOSS_WARPS (LOSS_THREADS / 32)
#define CLASS_TILE 8  // classes whose prototypes a thread handles at once
#define PROTOTYPE_ROWS 8  // classes that a block projects at once: the rows of a matrix instruction
#define TILE_PITCH (CHUNK + 4)  // floats from one row of 128 columns to the next in shared memory
// Groups of 128 threads that share the queries of a column; their sums meet in LOSS_SCRATCH words.
#define QUERY_GROUPS (LOSS_THREADS / CHUNK)
#define LOSS_SCRATCH ((QUERY_GROUPS - 1) * CLASS_TILE * CHUNK)
#define QUERIES_AT_A_TIME 5  // queries that a warp keeps in registers

// clean_means [C][D] and clean_counts [C]. They depend on the input alone, so this runs beside the encoder. Grid:
// (chunks, class_capacity + 1), 128 threads: a thread has one column of one class. The last row of blocks computes
// `directions`, the parts of the direction of "mislabelled" (its weight [D] times the up-projection [D][W]) over the
// columns of a chunk.
extern "C" __global__ void __launch_bounds__(CHUNK) tranfs_clean_means(Tranfs t) {
  const u32* input = t.current;
  const int number = blockIdx.y, column = blockIdx.x * CHUNK + threadIdx.x;
  if (blockIdx.y + 1 == gridDim.y) {
    const int start = blockIdx.x * CHUNK, end = min(start + CHUNK, t.dim);
    for (int w = threadIdx.x; w < t.width; w += CHUNK) {
      float sum = 0.f;
#pragma unroll 16
      for (int d = start; d < end; d++) sum += t.parameters[t.mislabelled + d] * t.parameters[t.up + (long)d * t.width + w];
      t.directions[(long)blockIdx.x * t.width + w] = sum;
    }
    return;
  }
  if (number >= step_of(input).classes) return;
  const TranfsClass c = classes_of(t, input)[number];
  float sum = 0.f;
  int count = 0;
#pragma unroll 4
  for (int item = c.first_item; item < c.first_item + c.items; item++) {
    const float value = column < t.dim ? feature_row(t, input, input[t.rows_at + item])[column] : 0.f;
    if (input[t.labels_at + item] & LABEL_FLAG) continue;
    sum += value;
    count++;
  }
  if (column < t.dim) t.clean_means[(long)number * t.dim + column] = sum / max(count, 1);
  if (blockIdx.x == 0 && threadIdx.x == 0) t.clean_counts[number] = count;
}

// direction [W] = the sum of its parts. Grid: ceil(W / 128), 128 threads: a column each.
extern "C" __global__ void __launch_bounds__(CHUNK) tranfs_direction(Tranfs t) {
  const int column = blockIdx.x * CHUNK + threadIdx.x;
  if (column >= t.width) return;
  float sum = 0.f;
#pragma unroll 16
  for (int chunk = 0; chunk < t.chunks; chunk++) sum += t.directions[(long)chunk * t.width + column];
  t.direction[column] = sum;
}

// Stores the 128 columns of a prototype and writes the block's part of p.p, p.t, t.t and |p - t|^2 to class_sums. One
// warp. prototype: the class's columns, in shared memory.
DEVICE void sum_class(const Tranfs& t, int number, int chunk, int columns, const float* prototype) {
  const int lane = threadIdx.x & 31, start = chunk * CHUNK;
  float sums[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
  for (int i = 0; i < CHUNK / 32; i++) {
    if (i * 32 + lane >= columns) continue;
    const long at = (long)number * t.dim + start + i * 32 + lane;
    const float p = prototype[i * 32 + lane], mean = t.clean_means[at], difference = p - mean;
    t.prototypes[at] = p;
    sums[0] += p * p;
    sums[1] += p * mean;
    sums[2] += mean * mean;
    sums[3] += difference * difference;
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float sum = warp_sum(sums[i]);
    if (lane == 0) t.class_sums[((long)chunk * t.class_capacity + number) * 4 + i] = sum;
  }
}

// Loads the block's columns of QUERIES_AT_A_TIME queries from `query` on: values[q][i] is column 32 i + lane. One warp;
// lane q reads the row number of query q for all. 0 for queries and columns that do not exist.
DEVICE void load_queries(const Tranfs& t, const u32* input, const TranfsEpisode& e, int query, int start, int columns,
                         float (*values)[CHUNK / 32]) {
  const int lane = threadIdx.x & 31, last = e.first_query + max(e.queries, 1) - 1;
  const u32 row_of_lane = input[t.query_rows_at + min(e.first_query + query + lane, last)];
#pragma unroll
  for (int q = 0; q < QUERIES_AT_A_TIME; q++) {
    const float* row = feature_row(t, input, __shfl_sync(FULL_WARP, row_of_lane, q)) + start;
#pragma unroll
    for (int i = 0; i < CHUNK / 32; i++) values[q][i] = i * 32 + lane < columns && query < e.queries ? row[i * 32 + lane] : 0.f;
  }
}

// partial_products of a warp's queries with the `count` prototypes in `tile`, whose first is class `first`, over the
// block's columns.
DEVICE void multiply_queries(const Tranfs& t, const TranfsEpisode& e, int query, int first, int count, int chunk, int columns,
                             const float (*values)[CHUNK / 32], const float* tile) {
  const int lane = threadIdx.x & 31;
  float* products = t.partial_products + ((long)chunk * t.query_capacity + e.first_query + query) * t.classes + first;
#pragma unroll 1
  for (int c = 0; c < count; c++) {
    float sums[QUERIES_AT_A_TIME];
#pragma unroll
    for (int q = 0; q < QUERIES_AT_A_TIME; q++) sums[q] = 0.f;
#pragma unroll
    for (int i = 0; i < CHUNK / 32; i++) {
      const float p = i * 32 + lane < columns ? tile[c * TILE_PITCH + i * 32 + lane] : 0.f;
#pragma unroll
      for (int q = 0; q < QUERIES_AT_A_TIME; q++) sums[q] += values[q][i] * p;
    }
#pragma unroll
    for (int q = 0; q < QUERIES_AT_A_TIME; q++) sums[q] = warp_sum(sums[q]);
#pragma unroll
    for (int q = 0; q < QUERIES_AT_A_TIME; q++)
      if (lane == q && query + q < e.queries) products[(long)q * t.classes + c] = sums[q];
  }
}

// prototypes = class states times the up-projection, and the block's parts of their products with the queries and of
// the sums of the classes. Grid: (chunks, episodes), 512 threads. Shared memory: [8][TILE_PITCH] prototypes, then
// [8][pitch_of(W)] class states, for 8 classes at a time. The first queries of each warp are loaded before anything
// else, because loads from global memory take long (tranfs.cu).
extern "C" __global__ void __launch_bounds__(LOSS_THREADS) tranfs_prototypes(Tranfs t) {
  const u32* input = t.current;
  const TranfsEpisode e = episode_of(t, input, blockIdx.y);
  if ((int)blockIdx.y >= step_of(input).episodes) return;
  const int warp = threadIdx.x >> 5, chunk = blockIdx.x, start = chunk * CHUNK;
  const int columns = min(CHUNK, t.dim - start), width = t.width, steps = (width + 15) >> 4;
  float *tile = (float*)dynamic_shared, *x = tile + PROTOTYPE_ROWS * TILE_PITCH;
  const float* out = t.states + ((long)t.layers * t.token_capacity + e.first_token) * width;
  float values[QUERIES_AT_A_TIME][CHUNK / 32];
  load_queries(t, input, e, warp * QUERIES_AT_A_TIME, start, columns, values);
#pragma unroll 1
  for (int first = 0; first < e.classes; first += PROTOTYPE_ROWS) {
    const int count = min(PROTOTYPE_ROWS, e.classes - first);
    stage_rows(x, count, width, [&](int row, int column) { return out[(long)(first + row) * width + column]; });
    __syncthreads();
    multiply<true, true, false>(x, pitch_of(width), count, t.packed + t.packed_up_t + (long)(start >> 3) * steps * 32, steps,
                                width, columns, 0, tile, TILE_PITCH);
    __syncthreads();
#pragma unroll 1
    for (int query = warp * QUERIES_AT_A_TIME; query < e.queries; query += LOSS_WARPS * QUERIES_AT_A_TIME) {
      if (query >= LOSS_WARPS * QUERIES_AT_A_TIME || first > 0) load_queries(t, input, e, query, start, columns, values);
      multiply_queries(t, e, query, first, count, chunk, columns, values, tile);
    }
    for (int c = warp; c < count; c += LOSS_WARPS)
      sum_class(t, e.first_class + first + c, chunk, columns, tile + c * TILE_PITCH);
    __syncthreads();
  }
}

// factors[4] of a class from its sums (p.p, p.t, t.t, |p - t|^2) to p.p, 0, a, b, where a p - b t is the gradient of
// the clean loss with respect to p. Stores the loss of the class if `is_first`. mean_factors (null: none) receives
// those of a correctly labelled item of the class, see TranfsJoint: a gradient with respect to t divided by the number
// of those items. With w the weight and n = |p| |t|: squared distance a = b = 2 w; cosine a = w p.t / (n p.p), b = w /
// n.
DEVICE void clean_factors(const Tranfs& t, const TranfsEpisode& e, int number, float* factors, bool is_first, float* mean_factors) {
  const float weight = t.clean_weight / max(e.classes, 1), square = factors[0], product = factors[1];
  const int count = t.clean_counts[number];
  float a = 0.f, b = 0.f, mean_a = 0.f, loss = 0.f;
  if (count > 0) {
    const float norms = sqrtf(square * factors[2]);
    if (!t.cosine) {
      a = b = mean_a = 2.f * weight;
      loss = weight * factors[3];
    } else if (norms > 0.f) {
      a = weight * product / (norms * square);
      b = weight / norms;
      mean_a = weight * product / (norms * factors[2]);
      loss = -weight * product / norms;
    }
  }
  if (mean_factors) {
    mean_factors[number * 2] = mean_a / max(count, 1);
    mean_factors[number * 2 + 1] = b / max(count, 1);
  }
  factors[2] = a;
  factors[3] = b;
  if (is_first) t.class_losses[number] = loss;
}

// Softmax of one query, by one thread. logits: twice its products with the prototypes, which are replaced by twice the
// gradients of its logits (the 2 of 2 q.p). factors: [classes][4], the first is p.p. own: its true class. Returns the
// weighted loss.
DEVICE float query_loss(float* logits, const float* factors, int classes, int own, float weight) {
  float largest = -3.4e38f, sum = 0.f;
#pragma unroll 4
  for (int c = 0; c < classes; c++) {
    const float logit = logits[c] - factors[c * 4];
    logits[c] = logit;
    largest = fmaxf(largest, logit);
  }
#pragma unroll 2
  for (int c = 0; c < classes; c++) sum += expf(logits[c] - largest);
  const float loss = logf(sum) - (logits[own] - largest), scale = 2.f * weight;
#pragma unroll 2
  for (int c = 0; c < classes; c++) logits[c] = scale * (expf(logits[c] - largest) / sum - (c == own ? 1.f : 0.f));
  return loss * weight;
}

// d_prototypes of CLASS_TILE classes from `first` on, over the block's columns. The derivative of a logit 2 q.p - p.p
// with respect to p is 2 (q - p), and d_logits holds twice the gradient of the logits, so it is the sum over queries of
// d_logits q, minus the sum of d_logits times p, plus a p - b t of the clean loss (`clean_factors`). A thread
// has one column and every 4th query (QUERY_GROUPS); the groups' sums are added in scratch. queries: the address of the
// block's columns of each query, if IN_SHARED. factors: those of `clean_factors`, whose second is by now the sum of
// d_logits. Contains barriers.
template <bool IN_SHARED>
DEVICE void prototype_gradients_of(const Tranfs& t, const u32* input, const TranfsEpisode& e, int first, int start, int columns,
                                   const float* const* queries, const float* d_logits, const float* factors, float* scratch) {
  const int column = threadIdx.x & (CHUNK - 1), group = threadIdx.x / CHUNK, count = min(CLASS_TILE, e.classes - first);
  float d[CLASS_TILE];
#pragma unroll
  for (int c = 0; c < CLASS_TILE; c++) d[c] = 0.f;
  if (column < columns)
#pragma unroll 8
    for (int query = group; query < e.queries; query += QUERY_GROUPS) {
      const float* row = IN_SHARED ? queries[query] : feature_row(t, input, input[t.query_rows_at + e.first_query + query]) + start;
      const float value = row[column];
      const float* d_query = d_logits + (long)query * t.classes + first;
#pragma unroll
      for (int c = 0; c < CLASS_TILE; c++)
        if (c < count) d[c] += d_query[c] * value;
    }
  __syncthreads();
  if (group > 0)
#pragma unroll
    for (int c = 0; c < CLASS_TILE; c++) scratch[((group - 1) * CLASS_TILE + c) * CHUNK + column] = d[c];
  __syncthreads();
  if (group != 0 || column >= columns) return;
#pragma unroll
  for (int c = 0; c < CLASS_TILE; c++) {
    if (c >= count) continue;
#pragma unroll
    for (int other = 0; other < QUERY_GROUPS - 1; other++) d[c] += scratch[(other * CLASS_TILE + c) * CHUNK + column];
    const long at = (long)(e.first_class + first + c) * t.dim + start + column;
    const float* factor = factors + (first + c) * 4;
    t.d_prototypes[at] = d[c] + (factor[2] - factor[1]) * t.prototypes[at] - factor[3] * t.clean_means[at];
  }
}

// The episode's loss of "mislabelled" (losses[episode][2]), and its part of the gradient of the direction: d_logits
// times the item tokens.
DEVICE void mislabelled_sums(const Tranfs& t, const TranfsEpisode& e) {
  const float* out = t.states + ((long)t.layers * t.token_capacity + e.first_token + e.classes) * t.width;
  for (int column = threadIdx.x; column < t.width; column += LOSS_THREADS) {
    float sum = 0.f;
#pragma unroll 8
    for (int i = 0; i < e.items; i++) sum += t.d_logits[e.first_item + i] * out[(long)i * t.width + column];
    t.d_direction[(long)blockIdx.y * t.width + column] = sum;
  }
  if (threadIdx.x >= 32) return;
  float total = 0.f;
  for (int i = threadIdx.x; i < e.items; i += 32) total += t.item_losses[e.first_item + i];
  total = warp_sum(total);
  if (threadIdx.x == 0) t.losses[blockIdx.y * 3 + 2] = total;
}

// Losses and gradients of prototypes and class states. Grid: (chunks + 1, episodes), 512 threads; the last block of an
// episode computes `mislabelled_sums`. Shared memory: LOSS_SCRATCH words; if IN_SHARED, then for the most queries Q of
// an episode [classes][4] factors, [Q][classes] gradients of logits and [Q] addresses of the queries' columns;
// otherwise these are in class_factors and d_query_logits. JOINT: the first block of an episode also stores what the
// gradient of the features needs, `mean_factors` and the first chunk's copy of `d_query_logits`.
template <bool IN_SHARED, bool JOINT> DEVICE void prototype_losses(const Tranfs& t, const TranfsJoint& joint) {
  const u32* input = t.current;
  const TranfsEpisode e = episode_of(t, input, blockIdx.y);
  if ((int)blockIdx.y >= step_of(input).episodes) return;
  if ((int)blockIdx.x == t.chunks) return mislabelled_sums(t, e);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, chunk = blockIdx.x, start = chunk * CHUNK;
  const int columns = min(CHUNK, t.dim - start), width = t.width;
  float *scratch = (float*)dynamic_shared, *free = scratch + LOSS_SCRATCH;
  float* factors = IN_SHARED ? free : t.class_factors + ((long)chunk * t.class_capacity + e.first_class) * 4;
  float* d_logits = IN_SHARED ? free + t.classes * 4 : t.d_query_logits + ((long)chunk * t.query_capacity + e.first_query) * t.classes;
  // The columns of each query, if IN_SHARED; addresses must be at multiples of 8 bytes.
  const float** queries = (const float**)(((u64)(d_logits + (long)e.queries * t.classes) + 7) & ~7ull);
  if (IN_SHARED)
    for (int query = threadIdx.x; query < e.queries; query += LOSS_THREADS)
      queries[query] = feature_row(t, input, input[t.query_rows_at + e.first_query + query]) + start;
  // Sums over the chunks: of the classes, starting with the last threads, which have the least to do for the queries;
  // then of the queries.
  for (int i = LOSS_THREADS - 1 - threadIdx.x; i < e.classes * 4; i += LOSS_THREADS) {
    float sum = 0.f;
#pragma unroll 8
    for (int other = 0; other < t.chunks; other++) sum += t.class_sums[((long)other * t.class_capacity + e.first_class) * 4 + i];
    factors[i] = sum;
  }
  for (int i = threadIdx.x; i < e.queries * e.classes; i += LOSS_THREADS) {
    const int query = i / e.classes, c = i - query * e.classes;
    float product = 0.f;
#pragma unroll 8
    for (int other = 0; other < t.chunks; other++)
      product += t.partial_products[((long)other * t.query_capacity + e.first_query + query) * t.classes + c];
    d_logits[(long)query * t.classes + c] = 2.f * product;
  }
  __syncthreads();
  // Clean losses and softmax, one thread per class and per query.
  for (int c = LOSS_THREADS - 1 - threadIdx.x; c < e.classes; c += LOSS_THREADS)
    clean_factors(t, e, e.first_class + c, factors + c * 4, chunk == 0, JOINT && chunk == 0 ? joint.mean_factors : 0);
  for (int query = threadIdx.x; query < e.queries; query += LOSS_THREADS) {
    const int own = input[t.query_classes_at + e.first_query + query];
    const float loss = query_loss(d_logits + (long)query * t.classes, factors, e.classes, own, 1.f / e.queries);
    if (chunk == 0) t.query_losses[e.first_query + query] = loss;
  }
  __syncthreads();
  if (JOINT && IN_SHARED && chunk == 0)
    for (int i = threadIdx.x; i < e.queries * e.classes; i += LOSS_THREADS) {
      const long at = (long)(i / e.classes) * t.classes + i % e.classes;
      t.d_query_logits[(long)e.first_query * t.classes + at] = d_logits[at];
    }
  // factors[1]: the sum of d_logits over the queries, a warp per class.
  for (int c = warp; c < e.classes; c += LOSS_WARPS) {
    float total = 0.f;
    for (int query = lane; query < e.queries; query += 32) total += d_logits[(long)query * t.classes + c];
    total = warp_sum(total);
    if (lane == 0) factors[c * 4 + 1] = total;
  }
  // The episode's losses of queries and clean, by one warp of the first block.
  if (chunk == 0 && warp == LOSS_WARPS - 1) {
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
#pragma unroll 1
  for (int first = 0; first < e.classes; first += CLASS_TILE)
    prototype_gradients_of<IN_SHARED>(t, input, e, first, start, columns, queries, d_logits, factors, scratch);
  // d_class_states = d_prototypes times the transposed up-projection, over the block's columns.
  const float* d_prototypes = t.d_prototypes + (long)e.first_class * t.dim + start;
  float* out = t.d_class_states + ((long)chunk * t.class_capacity + e.first_class) * width;
#pragma unroll 1
  for (int first = 0; first < e.classes; first += PROTOTYPE_ROWS) {
    const int count = min(PROTOTYPE_ROWS, e.classes - first);
    __syncthreads();
    stage_rows(scratch, count, columns, [&](int row, int column) { return d_prototypes[(long)(first + row) * t.dim + column]; });
    __syncthreads();
    multiply<true, false, false>(scratch, pitch_of(columns), count, t.packed + t.packed_up + (start >> 4) * 32,
                                 (t.dim + 15) >> 4, columns, width, 0, out + (long)first * width, width);
  }
}
// The kernels, with gradients of logits in shared and in global memory. tranfs_joint.cu has those for training together
// with a backbone.
extern "C" __global__ void __launch_bounds__(LOSS_THREADS) tranfs_losses(Tranfs t) {
  prototype_losses<true, false>(t, TranfsJoint{});
}
extern "C" __global__ void __launch_bounds__(LOSS_THREADS) tranfs_losses_large(Tranfs t) {
  prototype_losses<false, false>(t, TranfsJoint{});
}
