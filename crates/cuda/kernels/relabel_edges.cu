// From rows of features to what Relabel's network reads: inner products, pair features, state features; and the edge
// network, forward for the pairs of a tile and backward.
//
// Inner products [M][M] of the items and [M][Q] of items and queries are f32 as exact as the CPU's: distances are small
// differences of them, so TF32 would not do. Each factor is split into two TF32 numbers, and all four products are summed.
//
// The edge network: F = 6 features of a pair, E hidden units with GELU, O = layers H outputs. Weights [F][E], bias [E],
// [E][O], adjacent in the parameters and in the partial sums of a tile.
#pragma once
#include "relabel.cuh"

namespace relabel {

DEVICE float row_value(const Row& row, int column) {
  const float own = ((const float*)row.own)[column];
  return row.share == 0.f ? own : own + row.share * (((const float*)row.other)[column] - own);
}

#define GRAM_TILE 32
#define GRAM_DIMS 256
#define GRAM_PITCH (GRAM_DIMS + 8)
// Rows of a warp, and values of a row that a lane has.
#define GRAM_ROWS 4
#define GRAM_LOADS (GRAM_DIMS / 32)

// Inner products of 32 items with 32 items or queries. Grid: tiles of an episode, episodes. A chunk of 256 columns at a time,
// whose successor is loaded meanwhile; each warp has 16 x 8 products over half of a chunk.
extern "C" __global__ void __launch_bounds__(RELABEL_THREADS, 1) relabel_gram(Relabel r) {
  const u32* input = slot(r);
  const Episode e = ((const Episode*)(input + r.layout.episodes))[blockIdx.y];
  if (blockIdx.y >= ((const Header*)input)->episodes) return;
  const int columns = e.items + e.queries, column_tiles = (columns + GRAM_TILE - 1) / GRAM_TILE;
  const int row_tile = (int)blockIdx.x / column_tiles, i0 = row_tile * GRAM_TILE;
  const int j0 = ((int)blockIdx.x - row_tile * column_tiles) * GRAM_TILE;
  if (i0 >= e.items) return;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane >> 2, quad = lane & 3;
  // Shared memory: 32 rows of items, then 32 rows of items or queries. The first half of the warps load the former.
  float *shared = (float*)dynamic_shared, *loaded = shared + warp * GRAM_ROWS * GRAM_PITCH + lane;
  const bool loads_items = warp < RELABEL_WARPS / 2;
  const int own_row = (warp & (RELABEL_WARPS / 2 - 1)) * GRAM_ROWS;
  const int first = own_row + (loads_items ? i0 : j0), last = (loads_items ? e.items : columns) - 1;
  Row rows[GRAM_ROWS];
#pragma unroll
  for (int i = 0; i < GRAM_ROWS; i++) rows[i] = ((const Row*)(input + r.layout.rows))[e.first_row + min(first + i, last)];
  const int unit = warp >> 1, m = (unit & 1) * 16, n = (unit >> 1) * 8, k_begin = (warp & 1) * (GRAM_DIMS / 2);
  float sums[4] = {}, small[4] = {}, squares[GRAM_ROWS] = {};
#pragma unroll 1
  for (int k0 = -GRAM_DIMS; k0 < e.dim; k0 += GRAM_DIMS) {
    const int next = k0 + GRAM_DIMS;
    float own[GRAM_ROWS][GRAM_LOADS], other[GRAM_ROWS][GRAM_LOADS];
#pragma unroll
    for (int i = 0; i < GRAM_ROWS; i++)
#pragma unroll
      for (int j = 0; j < GRAM_LOADS; j++) {
        const int k = next + j * 32 + lane;
        own[i][j] = k < e.dim ? ((const float*)rows[i].own)[k] : 0.f;
        other[i][j] = rows[i].share != 0.f && k < e.dim ? ((const float*)rows[i].other)[k] : own[i][j];
      }
    const int len = k0 < 0 ? 0 : min(GRAM_DIMS / 2, e.dim - k0 - k_begin);
    const float* x = shared + (m + group) * GRAM_PITCH + k_begin + 2 * quad;
    const float* y = shared + (GRAM_TILE + n + group) * GRAM_PITCH + k_begin + 2 * quad;
#pragma unroll 2
    for (int k = 0; k < len; k += 8) {
      u32 a[4], a_low[4], b[2], b_low[2];
      const float2 above = *(const float2*)(x + k), below = *(const float2*)(x + k + 8 * GRAM_PITCH);
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
    __syncthreads();
#pragma unroll
    for (int i = 0; i < GRAM_ROWS; i++)
#pragma unroll
      for (int j = 0; j < GRAM_LOADS; j++) {
        const float value = own[i][j] + rows[i].share * (other[i][j] - own[i][j]);
        loaded[i * GRAM_PITCH + j * 32] = value;
        squares[i] += value * value;
      }
    __syncthreads();
  }
  // The sums of odd warps are added to those of even warps.
  float* halves = shared + unit * 128 + lane * 4;
#pragma unroll
  for (int i = 0; i < 4; i++)
    if (warp & 1) halves[i] = sums[i] + small[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const int item = i0 + m + group + (i >> 1) * 8, column = j0 + n + 2 * quad + (i & 1);
    if ((warp & 1) || item >= e.items || column >= columns) continue;
    const float sum = sums[i] + small[i] + halves[i];
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

// Squared lengths below this fraction of the terms they are the difference of are rounding errors.
#define ROUNDING 1e-6f
#define MIN_DEVIATION 1e-3f
#define MAX_FEATURE 8.f

DEVICE float clamped(float value, float bound) { return fminf(fmaxf(value, -bound), bound); }
DEVICE float inverse_centred_length(float square, float with_mean, float mean_square) {
  const float centred = square - with_mean - with_mean + mean_square;
  return centred > ROUNDING * (square + mean_square) ? rsqrtf(centred) : 0.f;
}

// Inner products of items with their mean, [M], and (returned) of the mean with itself. Contains barriers.
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

// Moves gram and queries into the space that is centred at the mean of the items and scaled to unit length.
DEVICE void centre(const Relabel& r, const Episode& e, float* gram, float* with_mean, float* scales) {
  const int items = e.items;
  const float mean_square = mean_products(gram, items, with_mean);
#pragma unroll 1
  for (int i = threadIdx.x; i < items; i += RELABEL_THREADS)
    scales[i] = inverse_centred_length(gram[i * items + i], with_mean[i], mean_square);
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
  }
  each_element(items, items, [&](int i, int j) {
    float* product = gram + i * items + j;
    *product = (*product - with_mean[i] - with_mean[j] + mean_square) * (scales[i] * scales[j]);
  });
  __syncthreads();
}

// Writes the edge features [5][M][M] and whether the labels are the same [M][M]. `distances` is scratch memory [M][M].
DEVICE void pair_features(const Episode& e, const int* given, const float* gram, float* distances, float* with_mean,
                          float* scales, float* planes) {
  const int items = e.items, pairs = items * items;
  const float inverse_apart = fast_inverse(max(pairs - items, 1));
  const float mean_square = mean_products(gram, items, with_mean);
#pragma unroll 1
  for (int i = threadIdx.x; i < items; i += RELABEL_THREADS) {
    scales[i] = inverse_centred_length(gram[i * items + i], with_mean[i], mean_square);
    scales[items + i] = inverse_centred_length(gram[i * items + i], 0.f, 0.f);
  }
  __syncthreads();
  Three sums = {};  // distances, raw cosines, squares
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
  const float mean = sums.x * inverse_apart, raw_mean = sums.y * inverse_apart, squares = sums.z * fast_inverse(items);
  float deviation = 0.f;
  each_element(items, items, [&](int i, int j) {
    const float difference = planes[4 * pairs + i * items + j] - raw_mean;
    if (i != j) deviation += difference * difference;
  });
  const float raw_scale = rsqrtf(fmaxf(block_sums({deviation, 0.f, 0.f}).x * inverse_apart, MIN_DEVIATION * MIN_DEVIATION));
  const bool comparable = mean > 1e-6f * squares;
  const float scale = comparable ? fast_inverse(mean) : 0.f, inverse_others = fast_inverse(items - 1);
  each_element(items, items, [&](int i, int j) {
    const int p = i * items + j;
    const float distance = distances[p], *row = distances + i * items;
    int nearer = 0, tied = 0;
#pragma unroll 4
    for (int k = 0; k < items; k++) {
      nearer += k != i && row[k] < distance;
      tied += k != i && row[k] == distance;
    }
    const float rank = i == j ? 0.f : (nearer + 0.5f * tied) * inverse_others;
    planes[1 * pairs + p] = i == j ? -1.f : comparable ? clamped(distance * scale - 1.f, MAX_FEATURE) : 0.f;
    planes[2 * pairs + p] = rank;
    planes[3 * pairs + j * items + i] = rank;
    planes[4 * pairs + p] = clamped((planes[4 * pairs + p] - raw_mean) * raw_scale, MAX_FEATURE);
  });
  __syncthreads();
}

// Features of item i and class c, [19]: is c the given label of i, the share of items with label c, is no other item so
// labelled, 1 / (1 + their number), then mean, maximum and minimum of each edge feature from i to those items.
DEVICE void state_features(const Episode& e, const int* given, const int* counts, const float* planes, float* out) {
  const int items = e.items, pairs = items * items, states = items * e.classes;
#pragma unroll 1
  for (int task = threadIdx.x; task < states * EDGE_FEATURES; task += RELABEL_THREADS) {
    const int state = task / EDGE_FEATURES, feature = task - state * EDGE_FEATURES;
    const int i = state / e.classes, c = state - i * e.classes;
    const float* edges = planes + feature * pairs + i * items;
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

// Pair features and state features of an episode, one block each. Gram and products are moved into the centred space.
extern "C" __global__ void __launch_bounds__(RELABEL_THREADS) relabel_features(Relabel r) {
  const u32* input = slot(r);
  const Episode e = ((const Episode*)(input + r.layout.episodes))[blockIdx.x];
  if (blockIdx.x >= ((const Header*)input)->episodes) return;
  const int* given = (const int*)(input + r.layout.given) + e.first_item;
  const int* counts = (const int*)(input + r.layout.counts) + e.first_class;
  const int pairs = e.items * e.items;
  // Vectors [M] first, then, where they fit, gram, distances and features [M][M].
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
    centre(r, e, gram, with_mean, scales);
    if (fits)
#pragma unroll 1
      for (int p = threadIdx.x; p < pairs; p += RELABEL_THREADS) own[p] = gram[p];
  }
  pair_features(e, labels, gram, distances, with_mean, scales, planes);
  if (fits)
#pragma unroll 1
    for (int i = threadIdx.x; i < PAIR_FEATURES * pairs; i += RELABEL_THREADS) out[i] = planes[i];
  state_features(e, labels, counts, planes, r.state_features + (long)e.first_state * STATE_FEATURES);
}

#define EDGE_PAIRS 32
#define EDGE_PITCH 33

// The edge network's hidden units of a pair, before GELU. Weights [F][E] and bias [E] are in shared memory.
DEVICE float edge_unit(const float* weights, int units, int unit, const float* x) {
  float sum = weights[PAIR_FEATURES * units + unit];
#pragma unroll
  for (int f = 0; f < PAIR_FEATURES; f++) sum += weights[f * units + unit] * x[f];
  return sum;
}

// The edge network's logits of the pairs (i, j) with i in the tile, written to `attention`. One block per tile. Shared
// memory: the weights, then hidden units [E][33] of 32 pairs for each half of the warps.
extern "C" __global__ void __launch_bounds__(RELABEL_THREADS, 2) relabel_edges(Relabel r) {
  const u32* input = slot(r);
  const Tile tile = ((const Tile*)(input + r.layout.tiles))[blockIdx.x];
  if (blockIdx.x >= ((const Header*)input)->tiles) return;
  const Episode& e = tile.e;
  const int items = e.items, pairs = items * items, units = r.edge_hidden, outputs = r.layers * r.heads;
  const int len = units * (PAIR_FEATURES + 1 + outputs);
  const int lane = threadIdx.x & 31, half = threadIdx.x / (RELABEL_THREADS / 2), warp = (threadIdx.x >> 5) % (RELABEL_WARPS / 2);
  float *weights = (float*)dynamic_shared, *hidden = weights + len + half * units * EDGE_PITCH + lane;
#pragma unroll 4
  for (int i = threadIdx.x; i < len; i += RELABEL_THREADS) weights[i] = r.parameters[r.edges + i];
  const float* out = weights + (PAIR_FEATURES + 1) * units;
  const float* features = r.pair_features + (long)PAIR_FEATURES * e.first_pair;
  float* logits = r.attention + (long)outputs * e.first_pair;
  const int end = (tile.first + tile.count) * items;
#pragma unroll 1
  for (int p0 = tile.first * items; p0 < end; p0 += 2 * EDGE_PAIRS) {
    const int p = p0 + half * EDGE_PAIRS + lane;
    float x[PAIR_FEATURES];
#pragma unroll
    for (int f = 0; f < PAIR_FEATURES; f++) x[f] = p < end ? features[f * pairs + p] : 0.f;
    __syncthreads();
#pragma unroll 1
    for (int unit = warp; unit < units; unit += RELABEL_WARPS / 2) 
      hidden[unit * EDGE_PITCH] = gelu_and_slope(edge_unit(weights, units, unit, x)).x;
    __syncthreads();
#pragma unroll 1
    for (int o = warp; o < outputs; o += RELABEL_WARPS / 2) {
      float sum = 0.f;
#pragma unroll 8
      for (int unit = 0; unit < units; unit++) sum += hidden[unit * EDGE_PITCH] * out[unit * outputs + o];
      if (p < end) logits[o * pairs + p] = sum;
    }
  }
}

// Partial gradients of the edge network from the pairs of a tile. One block per tile. Shared memory: weights and sums, each
// [E (7 + O)], features [7][33] (the last is 1), gradients of the logits [O][33], hidden units and gradients [2 E][33].
extern "C" __global__ void __launch_bounds__(RELABEL_THREADS, 2) relabel_edges_backward(Relabel r) {
  const u32* input = slot(r);
  const Tile tile = ((const Tile*)(input + r.layout.tiles))[blockIdx.x];
  if (blockIdx.x >= ((const Header*)input)->tiles) return;
  const Episode& e = tile.e;
  const int pairs = e.items * e.items, units = r.edge_hidden, outputs = r.layers * r.heads;
  const int len = units * (PAIR_FEATURES + 1 + outputs);
  float *weights = (float*)dynamic_shared, *sums = weights + len, *x = sums + len;
  float *d = x + (PAIR_FEATURES + 1) * EDGE_PITCH, *hidden = d + outputs * EDGE_PITCH, *d_hidden = hidden + units * EDGE_PITCH;
#pragma unroll 4
  for (int i = threadIdx.x; i < len; i += RELABEL_THREADS) {
    weights[i] = r.parameters[r.edges + i];
    sums[i] = 0.f;
  }
  const float* out = weights + (PAIR_FEATURES + 1) * units;
  const float* features = r.pair_features + (long)PAIR_FEATURES * e.first_pair;
  const float* d_logits = r.d_attention + (long)outputs * e.first_pair;
  const int end = (tile.first + tile.count) * e.items, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll 1
  for (int p0 = tile.first * e.items; p0 < end; p0 += EDGE_PAIRS) {
    const bool is_pair = p0 + lane < end;
    __syncthreads();
#pragma unroll 2
    for (int row = warp; row < PAIR_FEATURES + outputs; row += RELABEL_WARPS) {
      const float* from = row < PAIR_FEATURES ? features + row * pairs : d_logits + (row - PAIR_FEATURES) * pairs;
      x[(row < PAIR_FEATURES ? row : row + 1) * EDGE_PITCH + lane] = is_pair ? from[p0 + lane] : 0.f;
    }
    if (warp == 0) x[PAIR_FEATURES * EDGE_PITCH + lane] = is_pair ? 1.f : 0.f;
    __syncthreads();
    float own[PAIR_FEATURES];
#pragma unroll
    for (int f = 0; f < PAIR_FEATURES; f++) own[f] = x[f * EDGE_PITCH + lane];
#pragma unroll 1
    for (int unit = warp; unit < units; unit += RELABEL_WARPS) {
      float slope = 0.f;
#pragma unroll 4
      for (int o = 0; o < outputs; o++) slope += out[unit * outputs + o] * d[o * EDGE_PITCH + lane];
      const float2 value = gelu_and_slope(edge_unit(weights, units, unit, own));
      hidden[unit * EDGE_PITCH + lane] = value.x;
      d_hidden[unit * EDGE_PITCH + lane] = slope * value.y;
    }
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < len; i += RELABEL_THREADS) {
      const float *left, *right;
      if (i < (PAIR_FEATURES + 1) * units) {
        const int f = i / units;
        left = d_hidden + (i - f * units) * EDGE_PITCH;
        right = x + f * EDGE_PITCH;
      } else {
        const int element = i - (PAIR_FEATURES + 1) * units, unit = element / outputs;
        left = hidden + unit * EDGE_PITCH;
        right = d + (element - unit * outputs) * EDGE_PITCH;
      }
      float even = 0.f, odd = 0.f;
#pragma unroll 8
      for (int p = 0; p < EDGE_PAIRS; p += 2) {
        even += left[p] * right[p];
        odd += left[p + 1] * right[p + 1];
      }
      sums[i] += even + odd;
    }
  }
  float* partial = r.partials + (long)blockIdx.x * r.partial_len;
#pragma unroll 1
  for (int i = threadIdx.x; i < len; i += RELABEL_THREADS) partial[i] = sums[i];
}

}  // namespace relabel
