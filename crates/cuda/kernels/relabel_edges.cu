// From rows of features to what Relabel's network reads: inner products, pair features, state features; and the edge
// network, forward for the pairs of a tile and backward.
//
// Inner products [M][M] of the items and [M][Q] of items and queries are f32 as exact as the CPU's: distances are small
// differences of them, so TF32 would not do. Each factor is split into two TF32 numbers, and three of the four products
// are summed.
//
// The edge network: F = 6 features of a pair, E hidden units with GELU, O = layers H outputs. Weights [F][E], bias [E],
// [E][O], adjacent in the parameters and in the partial sums of a tile.
#pragma once
#include "relabel.cuh"

namespace relabel {

#define GRAM_TILE 32
#define GRAM_PITCH 36

DEVICE float row_value(const Row& row, int column) {
  const float own = ((const float*)row.own)[column];
  return row.share == 0.f ? own : own + row.share * (((const float*)row.other)[column] - own);
}

// Inner products of 32 items with 32 items or queries. Grid: tiles of an episode, episodes.
extern "C" __global__ void __launch_bounds__(RELABEL_THREADS) relabel_gram(Relabel r) {
  SHARED float left[GRAM_TILE][GRAM_PITCH], right[GRAM_TILE][GRAM_PITCH];
  if (blockIdx.y >= header(r)->episodes) return;
  const Episode e = episode(r, blockIdx.y);
  const int columns = e.items + e.queries, column_tiles = (columns + GRAM_TILE - 1) / GRAM_TILE;
  const int i0 = (int)blockIdx.x / column_tiles * GRAM_TILE, j0 = (int)blockIdx.x % column_tiles * GRAM_TILE;
  if (i0 >= e.items) return;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane >> 2, quad = lane & 3;
  const Row* rows = (const Row*)(slot(r) + r.layout.rows) + e.first_row;
  Row own[2][4];
  for (int i = 0; i < 4; i++) {
    own[0][i] = rows[min(i0 + warp + 8 * i, e.items - 1)];
    own[1][i] = rows[min(j0 + warp + 8 * i, columns - 1)];
  }
  const int m = (warp & 1) * 16, n = (warp >> 1) * 8;
  float sums[4] = {}, squares[4] = {}, next[2][4];
  auto load = [&](int k0) {
    const int k = k0 + lane;
    for (int i = 0; i < 4; i++)
      for (int side = 0; side < 2; side++) next[side][i] = k < e.dim ? row_value(own[side][i], k) : 0.f;
  };
  load(0);
  for (int k0 = 0; k0 < e.dim; k0 += GRAM_TILE) {
    for (int i = 0; i < 4; i++) {
      left[warp + 8 * i][lane] = next[0][i];
      right[warp + 8 * i][lane] = next[1][i];
      squares[i] += next[1][i] * next[1][i];
    }
    __syncthreads();
    if (k0 + GRAM_TILE < e.dim) load(k0 + GRAM_TILE);
#pragma unroll
    for (int k = 0; k < GRAM_TILE; k += 8) {
      u32 a[4], a_low[4], b[2], b_low[2];
      for (int i = 0; i < 4; i++) split_tf32(left[m + group + (i & 1) * 8][k + quad + (i >> 1) * 4], &a[i], &a_low[i]);
      for (int i = 0; i < 2; i++) split_tf32(right[n + group][k + quad + i * 4], &b[i], &b_low[i]);
      mma_tf32(sums, a_low, b);
      mma_tf32(sums, a, b_low);
      mma_tf32(sums, a, b);
    }
    __syncthreads();
  }
  for (int i = 0; i < 4; i++) {
    const int item = i0 + m + group + (i >> 1) * 8, column = j0 + n + 2 * quad + (i & 1);
    if (item >= e.items || column >= columns) continue;
    if (column < e.items) r.gram[e.first_pair + (long)item * e.items + column] = sums[i];
    else r.products[e.first_product + (long)item * e.queries + column - e.items] = sums[i];
  }
  if (i0 > 0) return;
  for (int i = 0; i < 4; i++) {
    const float square = warp_sum(squares[i]);
    const int column = j0 + warp + 8 * i;
    if (lane == 0 && column >= e.items && column < columns) r.squares[e.first_query + column - e.items] = square;
  }
}

// Squared lengths below this fraction of the terms they are the difference of are rounding errors.
#define ROUNDING 1e-6f
#define MIN_DEVIATION 1e-3
#define MAX_FEATURE 8.f

DEVICE float clamped(float value, float bound) { return fminf(fmaxf(value, -bound), bound); }
DEVICE float inverse_centred_length(float square, float with_mean, float mean_square) {
  const float centred = square - with_mean - with_mean + mean_square;
  return centred > ROUNDING * (square + mean_square) ? 1.f / sqrtf(centred) : 0.f;
}

// Inner products of items with their mean, [M], and (returned) of the mean with itself. Contains barriers.
DEVICE float mean_products(const float* gram, int items, float* with_mean) {
  SHARED float mean_square;
  const float inverse_count = 1.f / items;
  for (int i = threadIdx.x; i < items; i += RELABEL_THREADS) {
    float sum = 0.f;
    for (int j = 0; j < items; j++) sum += gram[i * items + j];
    with_mean[i] = sum * inverse_count;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    float sum = 0.f;
    for (int i = 0; i < items; i++) sum += with_mean[i];
    mean_square = sum * inverse_count;
  }
  __syncthreads();
  const float result = mean_square;
  __syncthreads();
  return result;
}

// Moves gram and queries into the space that is centred at the mean of the items and scaled to unit length.
DEVICE void centre(const Relabel& r, const Episode& e, float* gram, float* with_mean, float* scales) {
  const int items = e.items;
  const float mean_square = mean_products(gram, items, with_mean);
  for (int i = threadIdx.x; i < items; i += RELABEL_THREADS)
    scales[i] = inverse_centred_length(gram[i * items + i], with_mean[i], mean_square);
  __syncthreads();
  float* products = r.products + e.first_product;
  for (int q = threadIdx.x; q < e.queries; q += RELABEL_THREADS) {
    float sum = 0.f;
    for (int i = 0; i < items; i++) sum += products[(long)i * e.queries + q];
    const float mean = sum * (1.f / items);
    const float scale = inverse_centred_length(r.squares[e.first_query + q], mean, mean_square);
    for (int i = 0; i < items; i++) {
      float* product = products + (long)i * e.queries + q;
      *product = (*product - with_mean[i] - mean + mean_square) * (scales[i] * scale);
    }
    r.squares[e.first_query + q] = scale > 0.f ? 1.f : 0.f;
  }
  for (int p = threadIdx.x; p < items * items; p += RELABEL_THREADS) {
    const int i = p / items, j = p - i * items;
    gram[p] = (gram[p] - with_mean[i] - with_mean[j] + mean_square) * (scales[i] * scales[j]);
  }
  __syncthreads();
}

// Writes the edge features [5][M][M] and whether the labels are the same [M][M]. `distances` is scratch memory [M][M].
DEVICE void pair_features(const Episode& e, const int* given, const float* gram, float* distances, float* with_mean,
                          float* scales, float* planes) {
  const int items = e.items, pairs = items * items;
  const double apart = max(pairs - items, 1);
  const float mean_square = mean_products(gram, items, with_mean);
  for (int i = threadIdx.x; i < items; i += RELABEL_THREADS) {
    scales[i] = inverse_centred_length(gram[i * items + i], with_mean[i], mean_square);
    scales[items + i] = inverse_centred_length(gram[i * items + i], 0.f, 0.f);
  }
  __syncthreads();
  double distance_sum = 0.0, raw_sum = 0.0, square_sum = 0.0;
  for (int p = threadIdx.x; p < pairs; p += RELABEL_THREADS) {
    const int i = p / items, j = p - i * items;
    const float product = gram[p];
    float distance = fmaxf(gram[i * items + i] + gram[j * items + j] - (product + product), 0.f);
    float centred = clamped((product - with_mean[i] - with_mean[j] + mean_square) * (scales[i] * scales[j]), 1.f);
    float raw = clamped(product * (scales[items + i] * scales[items + j]), 1.f);
    if (i == j) {
      distance = 0.f;
      centred = raw = 1.f;
      square_sum += product;
    } else {
      raw_sum += raw;
    }
    distance_sum += distance;
    distances[p] = distance;
    planes[p] = centred;
    planes[4 * pairs + p] = raw;
    planes[5 * pairs + p] = given[i] == given[j] ? 1.f : 0.f;
  }
  const double mean = block_sum(distance_sum) / apart, squares = block_sum(square_sum) / items;
  const double raw_mean = block_sum(raw_sum) / apart;
  double deviation = 0.0;
  for (int p = threadIdx.x; p < pairs; p += RELABEL_THREADS)
    if (p % (items + 1) != 0) deviation += (planes[4 * pairs + p] - raw_mean) * (planes[4 * pairs + p] - raw_mean);
  const float raw_scale = (float)(1.0 / fmax(sqrt(block_sum(deviation) / apart), MIN_DEVIATION));
  const bool comparable = mean > 1e-6 * squares;
  const float scale = comparable ? (float)(1.0 / mean) : 0.f;
  for (int p = threadIdx.x; p < pairs; p += RELABEL_THREADS) {
    const int i = p / items, j = p - i * items;
    const float distance = distances[p], *row = distances + i * items;
    int nearer = 0, tied = 0;
    for (int k = 0; k < items; k++) {
      if (k == i) continue;
      nearer += row[k] < distance;
      tied += row[k] == distance;
    }
    const float rank = i == j ? 0.f : (float)((nearer + 0.5 * tied) / (items - 1));
    planes[1 * pairs + p] = i == j ? -1.f : comparable ? clamped(distance * scale - 1.f, MAX_FEATURE) : 0.f;
    planes[2 * pairs + p] = rank;
    planes[3 * pairs + j * items + i] = rank;
    planes[4 * pairs + p] = clamped((planes[4 * pairs + p] - (float)raw_mean) * raw_scale, MAX_FEATURE);
  }
  __syncthreads();
}

// Features of item i and class c, [19]: is c the given label of i, the share of items with label c, is no other item so
// labelled, 1 / (1 + their number), then mean, maximum and minimum of each edge feature from i to those items.
DEVICE void state_features(const Episode& e, const int* given, const int* counts, const float* planes, float* out) {
  const int items = e.items, pairs = items * items, states = items * e.classes;
  for (int task = threadIdx.x; task < states * EDGE_FEATURES; task += RELABEL_THREADS) {
    const int state = task / EDGE_FEATURES, feature = task - state * EDGE_FEATURES;
    const int i = state / e.classes, c = state - i * e.classes;
    const float* edges = planes + feature * pairs + i * items;
    float sum = 0.f, high = 0.f, low = 0.f;
    int others = 0;
    for (int j = 0; j < items; j++) {
      if (given[j] != c || j == i) continue;
      const float value = edges[j];
      sum += value;
      high = others == 0 ? value : fmaxf(high, value);
      low = others == 0 ? value : fminf(low, value);
      others++;
    }
    const float neutral = feature == 2 || feature == 3 ? 0.5f : 0.f;
    float* row = out + (long)state * STATE_FEATURES;
    row[4 + 3 * feature] = others == 0 ? neutral : sum * (1.f / others);
    row[5 + 3 * feature] = others == 0 ? neutral : high;
    row[6 + 3 * feature] = others == 0 ? neutral : low;
    if (feature > 0) continue;
    row[0] = given[i] == c ? 1.f : 0.f;
    row[1] = (float)counts[c] / items;
    row[2] = others == 0 ? 1.f : 0.f;
    row[3] = 1.f / (1 + others);
  }
}

// Pair features and state features of an episode, one block each. Gram and products are moved into the centred space.
extern "C" __global__ void __launch_bounds__(RELABEL_THREADS) relabel_features(Relabel r) {
  if (blockIdx.x >= header(r)->episodes) return;
  const Episode e = episode(r, blockIdx.x);
  const int* given = (const int*)(slot(r) + r.layout.given) + e.first_item;
  const int* counts = (const int*)(slot(r) + r.layout.counts) + e.first_class;
  const int pairs = e.items * e.items;
  // Vectors [M] first, then, where they fit, gram, distances and features [M][M].
  float *with_mean = (float*)dynamic_shared, *scales = with_mean + e.items, *rest = scales + 2 * e.items;
  int* labels = (int*)rest;
  rest += e.items;
  const bool fits = r.gram_len > 0;
  float *own = r.gram + e.first_pair, *gram = own, *out = r.pair_features + (long)PAIR_FEATURES * e.first_pair;
  float *distances = fits ? rest + pairs : r.scratch + (long)e.first_pair, *planes = fits ? rest + 2 * pairs : out;
  for (int i = threadIdx.x; i < e.items; i += RELABEL_THREADS) labels[i] = given[i];
  if (fits) {
    gram = rest;
    for (int p = threadIdx.x; p < pairs; p += RELABEL_THREADS) copy_word_async(shared_address(gram + p), own + p);
    finish_loads();
  }
  __syncthreads();
  if (r.centred) {
    centre(r, e, gram, with_mean, scales);
    if (fits)
      for (int p = threadIdx.x; p < pairs; p += RELABEL_THREADS) own[p] = gram[p];
  }
  pair_features(e, labels, gram, distances, with_mean, scales, planes);
  if (fits)
    for (int i = threadIdx.x; i < PAIR_FEATURES * pairs; i += RELABEL_THREADS) out[i] = planes[i];
  state_features(e, labels, counts, planes, r.state_features + (long)e.first_state * STATE_FEATURES);
}

#define EDGE_SUMS 16

// The edge network's logits of the pairs (i, j) with i in the tile, written to `attention`. One block per tile. Shared
// memory: the weights.
extern "C" __global__ void __launch_bounds__(RELABEL_THREADS) relabel_edges(Relabel r) {
  const u32* input = slot(r);
  if (blockIdx.x >= ((const Header*)input)->tiles) return;
  const Tile tile = ((const Tile*)(input + r.layout.tiles))[blockIdx.x];
  const Episode e = episode(r, tile.episode);
  const int items = e.items, pairs = items * items, units = r.edge_hidden, outputs = r.layers * r.heads;
  float* weights = (float*)dynamic_shared;
  for (int i = threadIdx.x; i < units * (PAIR_FEATURES + 1 + outputs); i += RELABEL_THREADS)
    weights[i] = r.parameters[r.edges + i];
  __syncthreads();
  const float *bias = weights + PAIR_FEATURES * units, *out = bias + units;
  const float* features = r.pair_features + (long)PAIR_FEATURES * e.first_pair;
  float* logits = r.attention + (long)outputs * e.first_pair;
  for (int p = tile.first * items + threadIdx.x; p < (tile.first + tile.count) * items; p += RELABEL_THREADS) {
    float x[PAIR_FEATURES];
    for (int f = 0; f < PAIR_FEATURES; f++) x[f] = features[f * pairs + p];
    for (int first = 0; first < outputs; first += EDGE_SUMS) {
      float sums[EDGE_SUMS] = {};
      for (int unit = 0; unit < units; unit++) {
        float pre = bias[unit];
        for (int f = 0; f < PAIR_FEATURES; f++) pre += weights[f * units + unit] * x[f];
        const float activated = gelu(pre), *row = out + unit * outputs + first;
#pragma unroll
        for (int o = 0; o < EDGE_SUMS; o++)
          if (first + o < outputs) sums[o] += activated * row[o];
      }
#pragma unroll
      for (int o = 0; o < EDGE_SUMS; o++)
        if (first + o < outputs) logits[(long)(first + o) * pairs + p] = sums[o];
    }
  }
}

#define EDGE_PAIRS 32
#define EDGE_PITCH 33

// Partial gradients of the edge network from the pairs of a tile. One block per tile. Shared memory: weights and sums, each
// [E (7 + O)], features [7][33] (the last is 1), gradients of the logits [O][33], hidden units and gradients [2 E][33].
extern "C" __global__ void __launch_bounds__(RELABEL_THREADS) relabel_edges_backward(Relabel r) {
  const u32* input = slot(r);
  if (blockIdx.x >= ((const Header*)input)->tiles) return;
  const Tile tile = ((const Tile*)(input + r.layout.tiles))[blockIdx.x];
  const Episode e = episode(r, tile.episode);
  const int pairs = e.items * e.items, units = r.edge_hidden, outputs = r.layers * r.heads;
  const int len = units * (PAIR_FEATURES + 1 + outputs);
  float *weights = (float*)dynamic_shared, *sums = weights + len, *x = sums + len;
  float *d = x + (PAIR_FEATURES + 1) * EDGE_PITCH, *hidden = d + outputs * EDGE_PITCH, *d_hidden = hidden + units * EDGE_PITCH;
  for (int i = threadIdx.x; i < len; i += RELABEL_THREADS) {
    weights[i] = r.parameters[r.edges + i];
    sums[i] = 0.f;
  }
  const float *bias = weights + PAIR_FEATURES * units, *out = bias + units;
  const float* features = r.pair_features + (long)PAIR_FEATURES * e.first_pair;
  const float* d_logits = r.d_attention + (long)outputs * e.first_pair;
  const int end = (tile.first + tile.count) * e.items, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  for (int p0 = tile.first * e.items; p0 < end; p0 += EDGE_PAIRS) {
    __syncthreads();
    for (int row = warp; row < PAIR_FEATURES + 1 + outputs; row += RELABEL_WARPS) {
      const bool is_pair = p0 + lane < end;
      if (row < PAIR_FEATURES) x[row * EDGE_PITCH + lane] = is_pair ? features[(long)row * pairs + p0 + lane] : 0.f;
      else if (row == PAIR_FEATURES) x[row * EDGE_PITCH + lane] = is_pair ? 1.f : 0.f;
      else {
        const int o = row - PAIR_FEATURES - 1;
        d[o * EDGE_PITCH + lane] = is_pair ? d_logits[(long)o * pairs + p0 + lane] : 0.f;
      }
    }
    __syncthreads();
    for (int unit = warp; unit < units; unit += RELABEL_WARPS) {
      float pre = bias[unit], slope = 0.f;
      for (int f = 0; f < PAIR_FEATURES; f++) pre += weights[f * units + unit] * x[f * EDGE_PITCH + lane];
      for (int o = 0; o < outputs; o++) slope += out[unit * outputs + o] * d[o * EDGE_PITCH + lane];
      hidden[unit * EDGE_PITCH + lane] = gelu(pre);
      d_hidden[unit * EDGE_PITCH + lane] = slope * gelu_slope(pre);
    }
    __syncthreads();
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
      float sum = 0.f;
#pragma unroll 8
      for (int p = 0; p < EDGE_PAIRS; p++) sum += left[p] * right[p];
      sums[i] += sum;
    }
  }
  float* partial = r.partials + (long)blockIdx.x * r.partial_len;
  for (int i = threadIdx.x; i < len; i += RELABEL_THREADS) partial[i] = sums[i];
}

}  // namespace relabel
