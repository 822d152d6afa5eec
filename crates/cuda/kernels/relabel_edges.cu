// The beginning of the Relabel head: from rows of features to what its network reads (inner products, pair features,
// state features); and the edge network, which turns the features of a pair of items into attention logits, forward and
// backward. Start with relabel_gram, `features` and `edges`. relabel.cuh has sizes and buffers (`struct Relabel`) and
// explains items, states, pairs and tiles;
// crates/nn/src/relabel/{gram_space,edge_features,network_input,edge_network}.rs are the same on the CPU.
//
// Letters: M items, Q queries and C classes of an episode; i and j are items, c a class, p = i M + j a pair. m is the
// mean of the items, x.y an inner product, |x| a length. "Gram" is the matrix of the inner products of the items.
//
// Inner products [M][M] of the items (gram) and [M][Q] of items and queries are as exact as the CPU's f32: distances
// are small differences of them, so TF32 would not do. Each factor is split into two TF32 numbers, and all four
// products are summed.
//
// The edge network: F = 6 features of a pair, E hidden units with GELU, O = layers H outputs (H heads), one logit per
// layer and head. Weights [F][E], bias [E], weights [E][O], adjacent in the parameters and in the partial gradients of
// a tile: E (7 + O) numbers. In the products of this file, the bias is row 6 of the weights [7][E] and 1 is feature 6;
// 8, the inner dimension of an instruction, is filled up with zeros.
//
// src/relabel.rs launches the kernels: `record_gram`, `record_edges_backward`, and `record_layers` for `edges`, a part
// of relabel_input (relabel.cu).
#pragma once
#include "relabel.cuh"

namespace relabel {

// One number of a row of features, which may be blended with another row.
DEVICE float row_value(const Row& row, int column) {
  const float own = ((const float*)row.own)[column];
  return row.share == 0.f ? own : own + row.share * (((const float*)row.other)[column] - own);
}

#define GRAM_TILE 32  // items (rows), and items or queries (columns), of a block of relabel_gram
// A tile's 32 x 32 products are 8 units of 16 x 8, those of one instruction, and a block has 32 warps. GRAM_ROWS: rows
// that a warp loads. GRAM_PARTS: warps that share a unit; each sums a quarter of the columns of features.
#define GRAM_ROWS 2
#define GRAM_PARTS 4

// Inner products of 32 items with 32 items or queries: gram [M][M] and products [M][Q] of every episode; and squares
// [Q], the squared lengths of the queries, by the blocks of the first 32 items. Columns are numbered from the first
// item to the last query. Grid: (tiles of an episode, episodes), 1024 threads. Shared memory: 32 rows of items, then 32
// rows of items or queries, `dims` columns of features at a time (a multiple of 32), `dims` + 8 floats apart. At the
// end, the parts of the warps that share a unit are added there.
extern "C" __global__ void __launch_bounds__(RELABEL_THREADS, 1) relabel_gram(Relabel r, int dims) {
  const u32* input = slot(r);
  const Episode e = ((const Episode*)(input + r.layout.episodes))[blockIdx.y];
  if (blockIdx.y >= ((const Header*)input)->episodes) return;
  const int columns = e.items + e.queries, column_tiles = (columns + GRAM_TILE - 1) / GRAM_TILE;
  const int row_tile = (int)blockIdx.x / column_tiles, i0 = row_tile * GRAM_TILE;
  const int j0 = ((int)blockIdx.x - row_tile * column_tiles) * GRAM_TILE;
  if (i0 >= e.items) return;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane >> 2, quad = lane & 3, pitch = dims + 8;
  // The first half of the warps load the items of the tile's rows, the others those of its columns. Rows after the last
  // are copies of the last, whose products are not written.
  float *shared = (float*)dynamic_shared, *loaded = shared + warp * GRAM_ROWS * pitch;
  const bool loads_items = warp < RELABEL_WARPS / 2;
  const int first = (warp & (RELABEL_WARPS / 2 - 1)) * GRAM_ROWS + (loads_items ? i0 : j0);
  const int last = (loads_items ? e.items : columns) - 1;
  Row rows[GRAM_ROWS];
#pragma unroll
  for (int i = 0; i < GRAM_ROWS; i++) rows[i] = ((const Row*)(input + r.layout.rows))[e.first_row + min(first + i, last)];
  // The first row and column of this warp's unit in the tile, and its quarter of the features.
  const int unit = warp / GRAM_PARTS, m = (unit & 1) * 16, n = (unit >> 1) * 8, part = warp % GRAM_PARTS;
  float sums[4] = {}, small[4] = {}, squares[GRAM_ROWS] = {};  // large and small products have accumulators of their own
#pragma unroll 1
  for (int k0 = 0; k0 < e.dim; k0 += dims) {
    // Features of this round, and their number with zeros after the last: a multiple of 8 for each of the four parts.
    const int len = min(dims, e.dim - k0), padded = (len + 31) & ~31;
#pragma unroll
    for (int i = 0; i < GRAM_ROWS; i++) {
      const float *own = (const float*)rows[i].own + k0, *other = (const float*)rows[i].other + k0, share = rows[i].share;
      float* to = loaded + i * pitch;
      // Copies of 16 bytes need rows whose length is a multiple of 4 floats; blended rows are computed.
      if (share == 0.f && e.dim % 4 == 0) {
#pragma unroll 1
        for (int k = 4 * lane; k < len; k += 128) copy_async(shared_address(to + k), own + k);
      } else {
#pragma unroll 4
        for (int k = lane; k < len; k += 32) to[k] = share == 0.f ? own[k] : own[k] + share * (other[k] - own[k]);
      }
      if (len + lane < padded) to[len + lane] = 0.f;
    }
    finish_loads();
    __syncthreads();
    const int per_part = padded / GRAM_PARTS;
    // Adjacent features 2 quad and 2 quad + 1 are columns quad and quad + 4 of the instruction, in both factors: one
    // load each.
    const float* x = shared + (m + group) * pitch + part * per_part + 2 * quad;
    const float* y = shared + (GRAM_TILE + n + group) * pitch + part * per_part + 2 * quad;
#pragma unroll 2
    for (int k = 0; k < per_part; k += 8) {
      u32 a[4], a_low[4], b[2], b_low[2];
      const float2 above = *(const float2*)(x + k), below = *(const float2*)(x + k + 8 * pitch);
      const float2 right = *(const float2*)(y + k);
      split_tf32(above.x, &a[0], &a_low[0]);
      split_tf32(below.x, &a[1], &a_low[1]);
      split_tf32(above.y, &a[2], &a_low[2]);
      split_tf32(below.y, &a[3], &a_low[3]);
      split_tf32(right.x, &b[0], &b_low[0]);
      split_tf32(right.y, &b[1], &b_low[1]);
      mma_tf32(small, a_low, b_low);
      mma_tf32(small, a_low, b);
      mma_tf32(small, a, b_low);
      mma_tf32(sums, a, b);
    }
    if (i0 == 0 && !loads_items)
#pragma unroll
      for (int i = 0; i < GRAM_ROWS; i++)
#pragma unroll 4
        for (int k = lane; k < padded; k += 32) squares[i] += loaded[i * pitch + k] * loaded[i * pitch + k];
    __syncthreads();
  }
  // The first warp of a unit adds the sums of the others.
  float* parts = shared + unit * GRAM_PARTS * 128 + lane * 4;
#pragma unroll
  for (int i = 0; i < 4; i++) parts[part * 128 + i] = sums[i] + small[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int item = i0 + m + group + (i >> 1) * 8, column = j0 + n + 2 * quad + (i & 1);
    if (part > 0 || item >= e.items || column >= columns) continue;
    const float sum = parts[i] + parts[128 + i] + (parts[256 + i] + parts[384 + i]);
    if (column < e.items) r.gram[e.first_pair + item * e.items + column] = sum;
    else r.products[e.first_product + item * e.queries + column - e.items] = sum;
  }
  if (i0 > 0 || loads_items) return;
#pragma unroll
  for (int i = 0; i < GRAM_ROWS; i++) {
    const float square = warp_sum(squares[i]);
    const int column = first + i;
    if (lane == 0 && column >= e.items && column < columns) r.squares[e.first_query + column - e.items] = square;
  }
}

// ROUNDING: a squared length below this fraction of the terms it is the difference of is considered rounding error.
// MIN_DEVIATION: the smallest standard deviation that cosines are divided by. MAX_FEATURE: the bound of features that
// have no natural one, so that one distant item cannot dominate the network. All three are those of the CPU.
#define ROUNDING 1e-6f
#define MIN_DEVIATION 1e-3f
#define MAX_FEATURE 8.f

// The nearest number in [-bound, bound].
DEVICE float clamped(float value, float bound) { return fminf(fmaxf(value, -bound), bound); }
// 1 / |x - m| from x.x, x.m and m.m; 0 if x is m up to rounding, so that it has no direction.
DEVICE float inverse_centred_length(float square, float with_mean, float mean_square) {
  const float centred = square - with_mean - with_mean + mean_square;
  return centred > ROUNDING * (square + mean_square) ? rsqrtf(centred) : 0.f;
}

// Inner products x_i . m of the items with their mean, to with_mean [M], and (returned to all threads) m . m: the means
// of the rows of the gram matrix, and the mean of these. Contains a barrier.
SEPARATE float mean_products(const float* gram, int items, float* with_mean) {
  const int lane = threadIdx.x & 31;
  const float inverse_count = fast_inverse(items);
#pragma unroll 1
  for (int i = threadIdx.x >> 5; i < items; i += RELABEL_WARPS) {
    float sum = 0.f;
#pragma unroll 1
    for (int j = lane; j < items; j += 32) sum += gram[i * items + j];
    sum = warp_sum(sum);
    if (lane == 0) with_mean[i] = sum * inverse_count;
  }
  __syncthreads();
  float sum = 0.f;
#pragma unroll 1
  for (int i = lane; i < items; i += 32) sum += with_mean[i];
  return warp_sum(sum) * inverse_count;
}

// Moves gram matrix and products into the space that is centred at the mean of the items and scaled to unit length: x.y
// becomes (x.y - x.m - y.m + m.m) / (|x - m| |y - m|), and the squared length of a query 1, or 0 if it has no
// direction. gram: [M][M] in shared or global memory; with_mean, scales (1 / |x - m|): [M] in shared memory. JOINT,
// here and below: keeps what the gradient of the features needs in `joint`. Contains barriers.
template <bool JOINT>
DEVICE void centre(const Relabel& r, const Episode& e, float* gram, float* with_mean, float* scales, const Joint* joint) {
  const int items = e.items;
  const float mean_square = mean_products(gram, items, with_mean);
#pragma unroll 1
  for (int i = threadIdx.x; i < items; i += RELABEL_THREADS) {
    scales[i] = inverse_centred_length(gram[i * items + i], with_mean[i], mean_square);
    if (JOINT) joint->space_scales[e.first_item + i] = scales[i];
  }
  __syncthreads();
  float* products = r.products + e.first_product;
#pragma unroll 1
  for (int q = threadIdx.x; q < e.queries; q += RELABEL_THREADS) {
    float sum = 0.f;
#pragma unroll 8
    for (int i = 0; i < items; i++) sum += products[i * e.queries + q];
    const float mean = sum * fast_inverse(items);
    const float scale = inverse_centred_length(r.squares[e.first_query + q], mean, mean_square);
#pragma unroll 4
    for (int i = 0; i < items; i++) {
      float* product = products + i * e.queries + q;
      *product = (*product - with_mean[i] - mean + mean_square) * (scales[i] * scale);
    }
    r.squares[e.first_query + q] = scale > 0.f ? 1.f : 0.f;
    if (JOINT) joint->query_scales[e.first_query + q] = scale;
  }
  each_element(items, items, [&](int i, int j) {
    float* product = gram + i * items + j;
    *product = (*product - with_mean[i] - with_mean[j] + mean_square) * (scales[i] * scales[j]);
  });
  __syncthreads();
}

// Writes the five edge features of all pairs (i, j) and whether the labels are the same, planes [6][M][M]; row i
// describes the items as seen from i:
//   0  the cosine of the items centred at their mean
//   1  the squared distance over its mean, minus 1, at most 8; -1 for i = j
//   2  the relative rank of j among the neighbours of i by distance, in [0, 1]; items at the same distance share the
//      mean of their ranks
//   3  the relative rank of i among the neighbours of j
//   4  the cosine of the items as they are, standardised over all pairs, bounded by 8
// given: the labels [M]; distances: scratch memory [M][M]; with_mean, scales [2][M] (1 / |x - m|, then 1 / |x|): shared
// memory. Three passes over the pairs: distances and cosines, the deviation of the raw cosines ("raw": not centred),
// the features. Sums are over the block, in f32. Contains barriers.
template <bool JOINT>
DEVICE void pair_features(const Episode& e, const int* given, const float* gram, float* distances, float* with_mean,
                          float* scales, float* planes, const Joint* joint) {
  const int items = e.items, pairs = items * items;
  // One over the number of pairs of different items, M (M - 1); statistics are over these.
  const float inverse_apart = fast_inverse(max(pairs - items, 1));
  const float mean_square = mean_products(gram, items, with_mean);
#pragma unroll 1
  for (int i = threadIdx.x; i < items; i += RELABEL_THREADS) {
    scales[i] = inverse_centred_length(gram[i * items + i], with_mean[i], mean_square);
    scales[items + i] = inverse_centred_length(gram[i * items + i], 0.f, 0.f);
    if (JOINT) joint->edge_scales[2 * e.first_item + i] = scales[i];
    if (JOINT) joint->edge_scales[2 * e.first_item + items + i] = scales[items + i];
  }
  __syncthreads();
  Three sums = {};  // of distances, of raw cosines, of squared lengths of the items
  each_element(items, items, [&](int i, int j) {
    const int p = i * items + j;
    const float product = gram[p];
    float distance = fmaxf(gram[i * items + i] + gram[j * items + j] - (product + product), 0.f);
    float centred = clamped((product - with_mean[i] - with_mean[j] + mean_square) * (scales[i] * scales[j]), 1.f);
    float raw = clamped(product * (scales[items + i] * scales[items + j]), 1.f);
    if (i == j) {
      distance = 0.f;
      centred = raw = 1.f;
      sums.z += product;
    } else {
      sums.y += raw;
    }
    sums.x += distance;
    distances[p] = distance;
    planes[p] = centred;
    planes[4 * pairs + p] = raw;
    planes[5 * pairs + p] = given[i] == given[j] ? 1.f : 0.f;
  });
  sums = block_sums(sums);
  // Of the distances, of the raw cosines, of the squared lengths.
  const float mean = sums.x * inverse_apart, raw_mean = sums.y * inverse_apart, squares = sums.z * fast_inverse(items);
  float deviation = 0.f;
  each_element(items, items, [&](int i, int j) {
    const float difference = planes[4 * pairs + i * items + j] - raw_mean;
    if (i != j) deviation += difference * difference;
  });
  const float variance = block_sums({deviation, 0.f, 0.f}).x * inverse_apart;
  const float raw_scale = rsqrtf(fmaxf(variance, MIN_DEVIATION * MIN_DEVIATION));
  // Where all items are equal up to rounding (1e-6, ROUNDING), distances are not compared: feature 1 is 0.
  const bool comparable = mean > 1e-6f * squares;
  const float scale = comparable ? fast_inverse(mean) : 0.f, inverse_others = fast_inverse(items - 1);
  if (JOINT && threadIdx.x == 0) {
    float* statistics = joint->edge_statistics + blockIdx.x * 4;
    statistics[0] = scale;
    statistics[1] = raw_mean;
    statistics[2] = raw_scale;
    statistics[3] = variance > MIN_DEVIATION * MIN_DEVIATION ? 1.f : 0.f;
  }
  each_element(items, items, [&](int i, int j) {
    const int p = i * items + j;
    const float distance = distances[p], *row = distances + i * items;
    int nearer = 0, tied = 0;  // items other than i that are nearer than j, and as near as j (with j itself)
#pragma unroll 4
    for (int k = 0; k < items; k++) {
      nearer += k != i && row[k] < distance;
      tied += k != i && row[k] == distance;
    }
    // `nearer` and `tied` sum to M - 1 or less, so the rank is in [0, 1]; without ties it is (nearer + 1/2) / (M - 1).
    const float rank = i == j ? 0.f : (nearer + 0.5f * tied) * inverse_others;
    planes[1 * pairs + p] = i == j ? -1.f : comparable ? clamped(distance * scale - 1.f, MAX_FEATURE) : 0.f;
    planes[2 * pairs + p] = rank;
    planes[3 * pairs + j * items + i] = rank;
    planes[4 * pairs + p] = clamped((planes[4 * pairs + p] - raw_mean) * raw_scale, MAX_FEATURE);
  });
  __syncthreads();
}

// The 19 features of item i and class c, out [M C][19]: is c the given label of i; the share of items with label c; is
// there no other item with this label; 1 / (1 + the number of other items with it); then, for each of the five edge
// features, mean, maximum and minimum over the pairs (i, j) with these others j, or a neutral value without any. One
// thread per state and edge feature; that of feature 0 also writes the first four.
DEVICE void state_features(const Episode& e, const int* given, const int* counts, const float* planes, float* out) {
  const int items = e.items, pairs = items * items, states = items * e.classes;
#pragma unroll 1
  for (int task = threadIdx.x; task < states * EDGE_FEATURES; task += RELABEL_THREADS) {
    const int state = task / EDGE_FEATURES, feature = task - state * EDGE_FEATURES;
    const int i = state / e.classes, c = state - i * e.classes;
    const float* edges = planes + feature * pairs + i * items;
    // 3.4028..e38: the largest f32.
    float sum = 0.f, high = -3.402823466e38f, low = 3.402823466e38f;
    int others = 0;
#pragma unroll 4
    for (int j = 0; j < items; j++) {
      const bool counts_here = given[j] == c && j != i;
      const float value = edges[j];
      sum += counts_here ? value : 0.f;
      high = counts_here ? fmaxf(high, value) : high;
      low = counts_here ? fminf(low, value) : low;
      others += counts_here;
    }
    // The value of an average pair: a rank of one half; the other features have a mean near 0.
    const float neutral = feature == 2 || feature == 3 ? 0.5f : 0.f;
    float* row = out + (long)state * STATE_FEATURES;
    row[4 + 3 * feature] = others == 0 ? neutral : sum * fast_inverse(others);
    row[5 + 3 * feature] = others == 0 ? neutral : high;
    row[6 + 3 * feature] = others == 0 ? neutral : low;
    if (feature > 0) continue;
    row[0] = given[i] == c ? 1.f : 0.f;
    row[1] = counts[c] * fast_inverse(items);
    row[2] = others == 0 ? 1.f : 0.f;
    row[3] = fast_inverse(1 + others);
  }
}

// Pair features and state features of an episode, by one block of RELABEL_THREADS threads. Where the head is centred
// (works in the space of `centre`), gram and products are moved into that space before. Shared memory: vectors
// with_mean [M], scales [2][M], labels [M]; then, where they fit (gram_len > 0), gram and distances [M][M] and the pair
// features [6][M][M], which otherwise are in global memory. In the code, `own` is the gram matrix in global memory.
template <bool JOINT> DEVICE void features(const Relabel& r, const u32* input, const Episode& e, const Joint* joint) {
  const int* given = (const int*)(input + r.layout.given) + e.first_item;
  const int* counts = (const int*)(input + r.layout.counts) + e.first_class;
  const int pairs = e.items * e.items;
  float *with_mean = (float*)dynamic_shared, *scales = with_mean + e.items, *rest = scales + 2 * e.items;
  int* labels = (int*)rest;
  rest += e.items;
  const bool fits = r.gram_len > 0;
  float *own = r.gram + e.first_pair, *gram = own, *out = r.pair_features + (long)PAIR_FEATURES * e.first_pair;
  float *distances = fits ? rest + pairs : r.scratch + (long)e.first_pair, *planes = fits ? rest + 2 * pairs : out;
#pragma unroll 1
  for (int i = threadIdx.x; i < e.items; i += RELABEL_THREADS) labels[i] = given[i];
  if (fits) {
    gram = rest;
#pragma unroll 1
    for (int p = threadIdx.x; p < pairs; p += RELABEL_THREADS) copy_word_async(shared_address(gram + p), own + p);
    finish_loads();
  }
  __syncthreads();
  if (r.centred) {
    centre<JOINT>(r, e, gram, with_mean, scales, joint);
    if (fits)
#pragma unroll 1
      for (int p = threadIdx.x; p < pairs; p += RELABEL_THREADS) own[p] = gram[p];
  }
  pair_features<JOINT>(e, labels, gram, distances, with_mean, scales, planes, joint);
  if (fits)
#pragma unroll 1
    for (int i = threadIdx.x; i < PAIR_FEATURES * pairs; i += RELABEL_THREADS) out[i] = planes[i];
  state_features(e, labels, counts, planes, r.state_features + (long)e.first_state * STATE_FEATURES);
}

// Weights of the edge network as an operand of mma_tf32, from shared memory: rows are the 6 features, then the bias
// (PAIR_FEATURES is its number), then 0; columns are the `units` hidden units.
DEVICE float edge_weight(const float* weights, int units, int feature, int unit) {
  return feature <= PAIR_FEATURES && unit < units ? weights[feature * units + unit] : 0.f;
}
// What these weights are multiplied by: the features of pair p, then 1; 0 if p is not below `end`. features:
// [6][pairs].
DEVICE float edge_input(const float* features, int pairs, int feature, int p, int end) {
  if (p >= end || feature > PAIR_FEATURES) return 0.f;
  return feature < PAIR_FEATURES ? features[feature * pairs + p] : 1.f;
}
// d += a b, nearly as exact as in f32: both factors are given as sums of two TF32 numbers; the product of the two small
// parts is left out.
DEVICE void mma_split(float* d, const u32* a, const u32* a_low, const u32* b, const u32* b_low) {
  mma_tf32(d, a_low, b);
  mma_tf32(d, a, b_low);
  mma_tf32(d, a, b);
}
#define OUTPUT_GROUPS 2  // groups of 8 outputs that a warp sums at the same time

// The edge network's logits of the pairs (i, j) with i in the tile, written to `attention` [O][M][M] of the episode. A
// warp has 16 pairs and up to 16 outputs at a time; hidden units are computed 8 at a time and not stored, once more for
// every 16 outputs. Variables: p0, o0, u0 are the first pair, output and unit; x the features, w and h the factors of
// the two products (weights, hidden units), each with the low part that `split_tf32` gives. Shared memory: the weights.
// Ends with a barrier.
DEVICE void edges(const Relabel& r, const Block& b) {
  const int items = b.e.items, pairs = items * items, units = r.edge_hidden, outputs = r.layers * r.heads;
  const int len = units * (PAIR_FEATURES + 1 + outputs), end = (b.first + b.count) * items;
  const int lane = threadIdx.x & 31, group = lane >> 2, quad = lane & 3;
  float* weights = (float*)dynamic_shared;
#pragma unroll 2
  for (int i = threadIdx.x; i < len; i += RELABEL_THREADS) copy_word_async(shared_address(weights + i), r.parameters + r.edges + i);
  const float *out = weights + (PAIR_FEATURES + 1) * units, *features = r.pair_features + (long)PAIR_FEATURES * b.e.first_pair;
  float* logits = r.attention + (long)outputs * b.e.first_pair;
  finish_loads();
  __syncthreads();
#pragma unroll 1
  for (int p0 = b.first * items + (threadIdx.x >> 5) * 16; p0 < end; p0 += RELABEL_WARPS * 16) {
    u32 x[4], x_low[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
      split_tf32(edge_input(features, pairs, quad + (i >> 1) * 4, p0 + group + (i & 1) * 8, end), &x[i], &x_low[i]);
#pragma unroll 1
    for (int o0 = 0; o0 < outputs; o0 += 8 * OUTPUT_GROUPS) {
      float sums[OUTPUT_GROUPS][4] = {};
#pragma unroll 1
      for (int u0 = 0; u0 < units; u0 += 8) {
        float hidden[4] = {};
        u32 w[2], w_low[2], h[4], h_low[4];
#pragma unroll
        for (int i = 0; i < 2; i++) split_tf32(edge_weight(weights, units, quad + i * 4, u0 + group), &w[i], &w_low[i]);
        mma_split(hidden, x, x_low, w, w_low);
        // The result of an instruction has columns 2 quad and 2 quad + 1 in a lane, while a first operand has columns
        // quad and quad + 4. The order of the units in a sum is free, so the one serves as the other, and below the
        // weights are loaded in the same order.
#pragma unroll
        for (int i = 0; i < 4; i++)
          split_tf32(gelu_and_slope(hidden[(i & 1) * 2 + (i >> 1)]).x, &h[i], &h_low[i]);
#pragma unroll
        for (int t = 0; t < OUTPUT_GROUPS; t++) {
          const int o = o0 + t * 8 + group;
#pragma unroll
          for (int i = 0; i < 2; i++) {
            const int unit = u0 + 2 * quad + i;
            split_tf32(unit < units && o < outputs ? out[unit * outputs + o] : 0.f, &w[i], &w_low[i]);
          }
          mma_split(sums[t], h, h_low, w, w_low);
        }
      }
#pragma unroll
      for (int t = 0; t < OUTPUT_GROUPS; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int p = p0 + group + (i >> 1) * 8, o = o0 + t * 8 + 2 * quad + (i & 1);
          if (p < end && o < outputs) logits[o * pairs + p] = sums[t][i];
        }
    }
  }
  __syncthreads();
}

// Threads of `relabel_edges_backward`. Its 16 warps are EDGE_GROUPS groups of GROUP_WARPS warps: a group of warps takes
// every 4th group of 8 pairs, and each of its warps every 4th group of 16 hidden units.
#define EDGE_THREADS 512
#define EDGE_GROUPS 4
#define GROUP_WARPS 4

// Partial gradients of the edge network's parameters from the pairs of a tile, to the first [E (7 + O)] floats of the
// tile's partials; hidden units are computed again. Grid: one block per tile, 512 threads. Shared memory: the weights,
// and the sums of each group of warps, each [E (7 + O)], which are added at the end. A warp computes for 16 units and 8
// pairs: hidden = weights x features; d_out (gradient of the outgoing weights [E][O]) += hidden x d_logits; d_hidden =
// outgoing weights x d_logits times the slope of GELU; d_in (gradient of the weights [7][E]) += d_hidden x features.
// Units are the rows of all these products. Only `hidden` is as exact as in f32; gradients are in TF32.
extern "C" __global__ void __launch_bounds__(EDGE_THREADS, 2) relabel_edges_backward(Relabel r) {
  const u32* input = slot(r);
  const Tile tile = ((const Tile*)(input + r.layout.tiles))[blockIdx.x];
  if (blockIdx.x >= ((const Header*)input)->tiles) return;
  const Episode& e = tile.e;
  const int pairs = e.items * e.items, units = r.edge_hidden, outputs = r.layers * r.heads;
  const int len = units * (PAIR_FEATURES + 1 + outputs), end = (tile.first + tile.count) * e.items;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane >> 2, quad = lane & 3;
  float *weights = (float*)dynamic_shared, *sums = weights + len + warp / GROUP_WARPS * len;
#pragma unroll 2
  for (int i = threadIdx.x; i < len; i += EDGE_THREADS) copy_word_async(shared_address(weights + i), r.parameters + r.edges + i);
  const float *out = weights + (PAIR_FEATURES + 1) * units, *features = r.pair_features + (long)PAIR_FEATURES * e.first_pair;
  const float* d_logits = r.d_attention + (long)outputs * e.first_pair;
  const auto d_logit = [&](int output, int p) { return p < end && output < outputs ? d_logits[output * pairs + p] : 0.f; };
  finish_loads();
  __syncthreads();
#pragma unroll 1
  for (int u0 = warp % GROUP_WARPS * 16; u0 < units; u0 += GROUP_WARPS * 16) {
    u32 w[4], w_low[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
      split_tf32(edge_weight(weights, units, quad + (i >> 1) * 4, u0 + group + (i & 1) * 8), &w[i], &w_low[i]);
#pragma unroll 1
    for (int o0 = 0; o0 < outputs; o0 += 8 * OUTPUT_GROUPS) {
      float d_out[OUTPUT_GROUPS][4] = {}, d_in[4] = {};
#pragma unroll 1
      for (int p0 = tile.first * e.items + warp / GROUP_WARPS * 8; p0 < end; p0 += EDGE_GROUPS * 8) {
        float hidden[4] = {}, slopes[4], d_hidden[4] = {};
        u32 x[2], x_low[2], d[OUTPUT_GROUPS][2], a[4];
        // Pairs 2 quad and 2 quad + 1 are columns quad and quad + 4 of the products that sum over pairs.
#pragma unroll
        for (int i = 0; i < 2; i++) {
          split_tf32(edge_input(features, pairs, quad + i * 4, p0 + group, end), &x[i], &x_low[i]);
#pragma unroll
          for (int t = 0; t < OUTPUT_GROUPS; t++) d[t][i] = tf32_operand(d_logit(o0 + t * 8 + group, p0 + 2 * quad + i));
        }
        mma_split(hidden, w, w_low, x, x_low);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const float2 value = gelu_and_slope(hidden[i]);
          a[(i & 1) * 2 + (i >> 1)] = tf32_operand(value.x);
          slopes[i] = value.y;
        }
#pragma unroll
        for (int t = 0; t < OUTPUT_GROUPS; t++) mma_tf32(d_out[t], a, d[t]);
        if (o0 > 0) continue;  // d_in does not depend on the group of outputs
#pragma unroll 2
        for (int o = 0; o < outputs; o += 8) {
          u32 of_units[4], of_pairs[2];
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const int unit = u0 + group + (i & 1) * 8, output = o + quad + (i >> 1) * 4;
            of_units[i] = tf32_operand(unit < units && output < outputs ? out[unit * outputs + output] : 0.f);
          }
#pragma unroll
          for (int i = 0; i < 2; i++) of_pairs[i] = tf32_operand(d_logit(o + quad + i * 4, p0 + group));
          mma_tf32(d_hidden, of_units, of_pairs);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) a[(i & 1) * 2 + (i >> 1)] = tf32_operand(d_hidden[i] * slopes[i]);
#pragma unroll
        for (int i = 0; i < 2; i++) x[i] = tf32_operand(edge_input(features, pairs, group, p0 + 2 * quad + i, end));
        mma_tf32(d_in, a, x);
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int unit = u0 + group + (i >> 1) * 8, column = 2 * quad + (i & 1);
        if (unit >= units) continue;
        if (o0 == 0 && column <= PAIR_FEATURES) sums[column * units + unit] = d_in[i];
#pragma unroll
        for (int t = 0; t < OUTPUT_GROUPS; t++) {
          const int output = o0 + t * 8 + column;
          if (output < outputs) sums[(PAIR_FEATURES + 1) * units + unit * outputs + output] = d_out[t][i];
        }
      }
    }
  }
  __syncthreads();
  float* partial = r.partials + (long)blockIdx.x * r.partial_len;
#pragma unroll 1
  for (int i = threadIdx.x; i < len; i += EDGE_THREADS) {
    const float* parts = weights + len + i;
    partial[i] = parts[0] + parts[len] + (parts[2 * len] + parts[3 * len]);
  }
}

}  // namespace relabel
