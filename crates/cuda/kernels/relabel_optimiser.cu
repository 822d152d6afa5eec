// From activations and their gradients to updated parameters of Relabel.
//
// The gradient of a weight is a product x^T d over the rows of all episodes, in parts of rows. Other gradients are sums
// over tiles or episodes. A table says for every parameter which sums to add; parts are added in their order.
#pragma once
#include "relabel.cuh"

namespace relabel {

#define PRODUCT_TILE 64
#define PRODUCT_ROWS 32
#define PRODUCT_PITCH 72

// 64 x 64 elements of the gradient of a weight, from one part of the rows.
struct Product {
  const float *x, *d;  // [rows][x_columns], [rows][d_columns]
  float* out;          // [x_columns][d_columns]
  float* bias;         // [d_columns], or null: the sum of d over the rows
  int x_columns, x_pitch, d_columns, first_x, first_d;
  int rows;  // 0: items, 1: states, 2: class rows
  int part, parts;
};

extern "C" __global__ void __launch_bounds__(RELABEL_THREADS) relabel_products(Relabel r, const Product* products) {
  SHARED float left[PRODUCT_ROWS][PRODUCT_PITCH], right[PRODUCT_ROWS][PRODUCT_PITCH];
  const Product p = products[blockIdx.x];
  const Header* step = header(r);
  const int all = p.rows == 0 ? step->items : p.rows == 1 ? step->states : step->class_rows;
  const int per_part = ((all + p.parts - 1) / p.parts + 7) & ~7;
  const int begin = min(p.part * per_part, all), end = min(begin + per_part, all);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane >> 2, quad = lane & 3;
  const int column = threadIdx.x & 63, row = threadIdx.x >> 6, m = (warp & 3) * 16, n = (warp >> 2) * 32;
  const bool has_x = p.first_x + column < p.x_columns, has_d = p.first_d + column < p.d_columns;
  float sums[4][4] = {}, next_x[8], next_d[8], bias = 0.f;
  auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int at = first + row + 4 * i;
      next_x[i] = has_x && at < end ? p.x[(long)at * p.x_pitch + p.first_x + column] : 0.f;
      next_d[i] = has_d && at < end ? p.d[(long)at * p.d_columns + p.first_d + column] : 0.f;
    }
  };
  load(begin);
  for (int first = begin; first < end; first += PRODUCT_ROWS) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
      left[row + 4 * i][column] = next_x[i];
      right[row + 4 * i][column] = next_d[i];
    }
    __syncthreads();
    load(first + PRODUCT_ROWS);
#pragma unroll
    for (int k = 0; k < PRODUCT_ROWS; k += 8) {
      u32 a[4];
#pragma unroll
      for (int i = 0; i < 4; i++) a[i] = to_tf32(left[k + quad + (i >> 1) * 4][m + group + (i & 1) * 8]);
#pragma unroll
      for (int t = 0; t < 4; t++) {
        const u32 b[2] = {to_tf32(right[k + quad][n + t * 8 + group]), to_tf32(right[k + quad + 4][n + t * 8 + group])};
        mma_tf32(sums[t], a, b);
      }
    }
    if (p.bias && threadIdx.x < PRODUCT_TILE)
      for (int k = 0; k < PRODUCT_ROWS; k++) bias += right[k][threadIdx.x];
    __syncthreads();
  }
#pragma unroll
  for (int t = 0; t < 4; t++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int x = p.first_x + m + group + (i >> 1) * 8, d = p.first_d + n + t * 8 + 2 * quad + (i & 1);
      if (x < p.x_columns && d < p.d_columns) p.out[(long)x * p.d_columns + d] = sums[t][i];
    }
  if (p.bias && threadIdx.x < PRODUCT_TILE && has_d) p.bias[p.first_d + column] = bias;
}

// Where the gradient of a parameter comes from: the sum of `count` numbers from `first` on, `stride` apart.
enum SourceKind { CONSTANT = 0, PARTS = 1, TILES = 2, EPISODES = 3 };
struct Source {
  u32 kind, first, stride, count;
};
struct Positions {
  u32 forward, backward;  // in the packed weights; 0xffffffff: not packed
};
struct Optimiser {
  float beta1, beta2, epsilon, weight_decay, l2, clip;
  int len, square_count;
  float *parameters, *packed, *first_moments, *second_moments, *gradients;
  const float* product_sums;
  const Source* sources;
  const Positions* positions;
  double* squares;
  float* results;  // [slots][2]: the mean of each loss over the episodes
};

#define GRADIENT_SUMS 16
DEVICE float summed_gradient(const Relabel& r, const Optimiser& o, const Source& source, const Header* step) {
  const float* at = source.first + (source.kind == TILES ? r.partials : source.kind == EPISODES ? r.d_prior : o.product_sums);
  const int count = source.kind == TILES ? step->tiles : source.kind == EPISODES ? step->episodes : source.count;
  float sums[GRADIENT_SUMS] = {};
  int i = 0;
  for (; i + GRADIENT_SUMS <= count; i += GRADIENT_SUMS)
#pragma unroll
    for (int j = 0; j < GRADIENT_SUMS; j++) sums[j] += at[(long)(i + j) * source.stride];
  for (; i < count; i++) sums[0] += at[(long)i * source.stride];
  float total = 0.f;
#pragma unroll
  for (int j = 0; j < GRADIENT_SUMS; j++) total += sums[j];
  return total / step->episodes;
}

// Gradients, and the sum of squares of each block: before `relabel_update` where gradients are clipped.
extern "C" __global__ void __launch_bounds__(RELABEL_THREADS) relabel_collect(Relabel r, Optimiser o) {
  const int index = blockIdx.x * RELABEL_THREADS + threadIdx.x;
  float gradient = 0.f;
  if (index < o.len) {
    const Source source = o.sources[index];
    if (source.kind != CONSTANT) gradient = summed_gradient(r, o, source, header(r));
    o.gradients[index] = gradient;
  }
  const double square = block_sum((double)gradient * gradient);
  if (threadIdx.x == 0) o.squares[blockIdx.x] = square;
}

DEVICE void pack(const Optimiser& o, int index, float value) {
  const Positions at = o.positions[index];
  const float rounded = __uint_as_float(to_tf32(value));
  if (at.forward != 0xffffffffu) o.packed[at.forward] = rounded;
  if (at.backward != 0xffffffffu) o.packed[at.backward] = rounded;
}

// All packed weights, after parameters were loaded.
extern "C" __global__ void __launch_bounds__(RELABEL_THREADS) relabel_pack(Optimiser o) {
  const int index = blockIdx.x * RELABEL_THREADS + threadIdx.x;
  if (index < o.len) pack(o, index, o.parameters[index]);
}

// AdamW, packed weights, and the end of the step: the last block to finish writes the losses and advances the state. A step
// whose loss is not finite changes no parameter.
extern "C" __global__ void __launch_bounds__(RELABEL_THREADS) relabel_update(Relabel r, Optimiser o) {
  SHARED float factors[3];
  SHARED int not_finite, is_last;
  const Header* step = header(r);
  const int index = blockIdx.x * RELABEL_THREADS + threadIdx.x;
  if (threadIdx.x == 0) {
    const double updates = r.state->updates + 1;
    factors[0] = 1.f;
    if (o.clip > 0.f) {
      double square = 0.0;
      for (int i = 0; i < o.square_count; i++) square += o.squares[i];
      if (sqrt(square) > o.clip) factors[0] = (float)(o.clip / sqrt(square));
    }
    factors[1] = (float)(step->rate / (1.0 - pow((double)o.beta1, updates)));
    factors[2] = (float)(1.0 / sqrt(1.0 - pow((double)o.beta2, updates)));
    not_finite = 0;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < 2 * (int)step->episodes; i += RELABEL_THREADS)
    if (!(fabsf(r.losses[i]) <= 3.402823466e38f)) not_finite = 1;
  __syncthreads();
  const bool keep = not_finite;
  if (index < o.len) {
    const Source source = o.sources[index];
    if (source.kind != CONSTANT) {
      float gradient = o.gradients[index];
      if (o.clip == 0.f) o.gradients[index] = gradient = summed_gradient(r, o, source, step);
      if (!keep) {
        float parameter = o.parameters[index];
        gradient = gradient * factors[0] + o.l2 * parameter;
        const float m = o.beta1 * o.first_moments[index] + (1.f - o.beta1) * gradient;
        const float v = o.beta2 * o.second_moments[index] + (1.f - o.beta2) * gradient * gradient;
        o.first_moments[index] = m;
        o.second_moments[index] = v;
        parameter = parameter * (1.f - step->rate * o.weight_decay) - factors[1] * m / (sqrtf(v) * factors[2] + o.epsilon);
        o.parameters[index] = parameter;
        pack(o, index, parameter);
      }
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(&r.state->finished_blocks, (u64)1) == (u64)gridDim.x - 1;
  __syncthreads();
  if (!is_last || threadIdx.x > 1) return;
  double total = 0.0;
  for (u32 i = 0; i < step->episodes; i++) total += r.losses[i * 2 + threadIdx.x];
  o.results[(r.state->step % STEP_SLOTS) * 2 + threadIdx.x] = (float)(total / step->episodes);
  __syncwarp();
  if (threadIdx.x > 0) return;
  r.state->finished_blocks = 0;
  r.state->step++;
  if (!keep) r.state->updates++;
}

}  // namespace relabel
