// From activations and their gradients to updated parameters of Relabel.
//
// The gradient of a weight is a product x^T d over the rows of all episodes, in parts of rows. Other gradients are sums
// over tiles or episodes. A table says for every parameter which sums to add; parts are added in their order.
#pragma once
#include "relabel.cuh"

namespace relabel {

#define PARAMETER_THREADS 256
#define PRODUCT_THREADS 256
#define PRODUCT_TILE 64
#define PRODUCT_ROWS 32
#define PRODUCT_PITCH 72
// Groups of 32 rows in shared memory: one in use, the others being copied.
#define PRODUCT_STAGES 3
#define PRODUCT_FACTOR (PRODUCT_ROWS * PRODUCT_PITCH)

// 64 x 64 elements of the gradient of a weight, from one part of the rows.
struct Product {
  const float *x, *d;  // [rows][x_columns], [rows][d_columns]
  float* out;          // [x_columns][d_columns]
  float* bias;         // [d_columns], or null: the sum of d over the rows
  int x_columns, x_pitch, d_columns, first_x, first_d;
  int rows;  // 0: items, 1: states, 2: class rows
  int part, parts;
};

// Starts to copy 32 rows and 64 columns of a factor to shared memory; zeros beyond `end` and `columns`.
SEPARATE void load_factor(const float* from, int pitch, int columns, int first_column, int first_row, int end, int to) {
  const bool aligned = (pitch | columns) % 4 == 0;
  // The columns of a copy, and the copies of a row as a power of two.
  const int size = aligned ? 4 : 1, shift = aligned ? 4 : 6;
#pragma unroll 2
  for (int task = threadIdx.x; task < PRODUCT_ROWS << shift; task += PRODUCT_THREADS) {
    const int row = task >> shift, column = (task - (row << shift)) * size;
    float* out = (float*)dynamic_shared + to + row * PRODUCT_PITCH + column;
    const float* in = from + (first_row + row) * pitch + first_column + column;
    if (first_row + row >= end || first_column + column >= columns) {
      if (aligned) *(uint4*)out = make_uint4(0, 0, 0, 0);
      else *out = 0.f;
    } else if (aligned) {
      copy_async(shared_address(out), in);
    } else {
      copy_word_async(shared_address(out), in);
    }
  }
}

// All products, one block each.
extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 4) relabel_products(Relabel r, const Product* products) {
  const Product p = products[blockIdx.x];
  const Header* step = header(r);
  const int all = p.rows == 0 ? step->items : p.rows == 1 ? step->states : step->class_rows;
  const int per_part = ((all + p.parts - 1) / p.parts + 7) & ~7;
  const int begin = min(p.part * per_part, all), end = min(begin + per_part, all);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane >> 2, quad = lane & 3;
  const int m = (warp & 3) * 16, n = (warp >> 2) * 32;
  float sums[4][4] = {}, bias = 0.f;
  int loaded = begin, load_stage = 0, stage = 0;
#pragma unroll 1
  for (int first = begin - (PRODUCT_STAGES - 1) * PRODUCT_ROWS; first < end; first += PRODUCT_ROWS) {
    if (first >= begin) {
      wait_for_copies<PRODUCT_STAGES - 2>();
      __syncthreads();
    }
    if (loaded < end) {
      const int to = load_stage * 2 * PRODUCT_FACTOR;
      load_factor(p.x, p.x_pitch, p.x_columns, p.first_x, loaded, end, to);
      load_factor(p.d, p.d_columns, p.d_columns, p.first_d, loaded, end, to + PRODUCT_FACTOR);
      loaded += PRODUCT_ROWS;
      load_stage = load_stage + 1 == PRODUCT_STAGES ? 0 : load_stage + 1;
    }
    commit_copies();
    if (first < begin) continue;
    const float *left = (const float*)dynamic_shared + stage * 2 * PRODUCT_FACTOR, *right = left + PRODUCT_FACTOR;
    stage = stage + 1 == PRODUCT_STAGES ? 0 : stage + 1;
#pragma unroll
    for (int k = 0; k < PRODUCT_ROWS; k += 8) {
      const float *x = left + (k + quad) * PRODUCT_PITCH + m + group, *d = right + (k + quad) * PRODUCT_PITCH + n + group;
      u32 a[4];
#pragma unroll
      for (int i = 0; i < 4; i++) a[i] = tf32_operand(x[(i >> 1) * 4 * PRODUCT_PITCH + (i & 1) * 8]);
#pragma unroll
      for (int t = 0; t < 4; t++) {
        const u32 b[2] = {tf32_operand(d[t * 8]), tf32_operand(d[t * 8 + 4 * PRODUCT_PITCH])};
        mma_tf32(sums[t], a, b);
      }
    }
    if (p.bias && threadIdx.x < PRODUCT_TILE)
#pragma unroll 8
      for (int k = 0; k < PRODUCT_ROWS; k++) bias += right[k * PRODUCT_PITCH + threadIdx.x];
  }
#pragma unroll
  for (int t = 0; t < 4; t++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int x = p.first_x + m + group + (i >> 1) * 8, d = p.first_d + n + t * 8 + 2 * quad + (i & 1);
      if (x < p.x_columns && d < p.d_columns) p.out[x * p.d_columns + d] = sums[t][i];
    }
  const int column = p.first_d + threadIdx.x;
  if (p.bias && threadIdx.x < PRODUCT_TILE && column < p.d_columns) p.bias[column] = bias;
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

// Terms of a sum that are loaded at once.
#define GRADIENT_LOADS 16
DEVICE float summed_gradient(const Relabel& r, const Optimiser& o, const Source& source, const Header* step) {
  const float* at = source.first + (source.kind == TILES ? r.partials : source.kind == EPISODES ? r.d_prior : o.product_sums);
  const int count = source.kind == TILES ? step->tiles : source.kind == EPISODES ? step->episodes : source.count;
  float sums[4] = {};
#pragma unroll 1
  for (int i = 0; i < count; i += GRADIENT_LOADS) {
    float terms[GRADIENT_LOADS];
#pragma unroll
    for (int j = 0; j < GRADIENT_LOADS; j++) terms[j] = i + j < count ? at[(i + j) * source.stride] : 0.f;
#pragma unroll
    for (int j = 0; j < GRADIENT_LOADS; j++) sums[j % 4] += terms[j];
  }
  return (sums[0] + sums[1] + (sums[2] + sums[3])) / step->episodes;
}

// The sum over all threads of a block, the same for all of them. Contains barriers.
SEPARATE double block_sum(double value) {
  SHARED double sums[PARAMETER_THREADS / 32];
#pragma unroll 1
  for (int distance = 16; distance; distance >>= 1) value += __shfl_xor_sync(FULL_WARP, value, distance);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) sums[threadIdx.x >> 5] = value;
  __syncthreads();
  double total = 0.0;
#pragma unroll
  for (int warp = 0; warp < PARAMETER_THREADS / 32; warp++) total += sums[warp];
  return total;
}

// Gradients, and the sum of squares of each block: before `relabel_update` where gradients are clipped.
extern "C" __global__ void __launch_bounds__(PARAMETER_THREADS) relabel_collect(Relabel r, Optimiser o) {
  const int index = blockIdx.x * PARAMETER_THREADS + threadIdx.x;
  float gradient = 0.f;
  if (index < o.len) {
    const Source source = o.sources[index];
    if (source.kind != CONSTANT) gradient = summed_gradient(r, o, source, header(r));
    o.gradients[index] = gradient;
  }
  const double square = block_sum((double)gradient * gradient);
  if (threadIdx.x == 0) o.squares[blockIdx.x] = square;
}

// The start of a step: all packed weights; the last block prepares AdamW's corrections.
extern "C" __global__ void __launch_bounds__(PARAMETER_THREADS) relabel_pack(Relabel r, Optimiser o) {
  const int index = blockIdx.x * PARAMETER_THREADS + threadIdx.x;
  if (blockIdx.x == gridDim.x - 1) {
    if (threadIdx.x > 1) return;
    // 1 / (1 - beta1^n) and 1 / sqrt(1 - beta2^n) in update number n.
    double power = threadIdx.x == 0 ? o.beta1 : o.beta2, product = 1.0;
#pragma unroll 1
    for (u32 n = r.state->updates + 1; n > 0; n >>= 1) {
      if (n & 1) product *= power;
      power *= power;
    }
    const float rest = (float)(1.0 - product);
    r.state->corrections[threadIdx.x] = 1.f / (threadIdx.x == 0 ? rest : sqrtf(rest));
    return;
  }
  if (index >= o.len) return;
  const Positions at = o.positions[index];
  const float rounded = __uint_as_float(to_tf32(o.parameters[index]));
  if (at.forward != 0xffffffffu) o.packed[at.forward] = rounded;
  if (at.backward != 0xffffffffu) o.packed[at.backward] = rounded;
}

// What the update depends on when the head is trained together with a backbone (`BackboneUpdate` in src/joint.rs).
struct Backbone {
  const u32* overflow;
  const double* squares;
  int square_count, padding;
};

// The factor that clips the gradient. Contains barriers.
SEPARATE float clip_factor(const double* squares, int count, float clip) {
  double square = 0.0;
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += PARAMETER_THREADS) square += squares[i];
  const double norm = sqrt(block_sum(square));
  return norm > clip ? (float)(clip / norm) : 1.f;
}
// The same for the gradients of a head and its backbone.
SEPARATE float joint_clip_factor(const double* squares, int count, const double* others, int other_count, float clip) {
  double square = 0.0;
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += PARAMETER_THREADS) square += squares[i];
#pragma unroll 1
  for (int i = threadIdx.x; i < other_count; i += PARAMETER_THREADS) square += others[i];
  const double norm = sqrt(block_sum(square));
  return norm > clip ? (float)(clip / norm) : 1.f;
}

// The means of the losses over the episodes.
DEVICE void write_losses(const Relabel& r, const Optimiser& o, int episodes) {
  if (threadIdx.x >= 2) return;
  double total = 0.0;
#pragma unroll 8
  for (int i = 0; i < episodes; i++) total += r.losses[i * 2 + threadIdx.x];
  o.results[(r.state->step % STEP_SLOTS) * 2 + threadIdx.x] = (float)(total / episodes);
}

// AdamW, and the end of the step: the first block writes the losses, the last one to finish advances the state. A step whose
// loss is not finite changes no parameter. JOINT: gradients are collected before, and if a gradient of the backbone
// overflowed, only the losses are written.
template <bool JOINT> DEVICE void update(const Relabel& r, const Optimiser& o, const Backbone& backbone) {
  if (JOINT && *backbone.overflow) {
    if (blockIdx.x == 0 && !(*backbone.overflow & OTHER_SIZE)) write_losses(r, o, header(r)->episodes);
    return;
  }
  const Header* step = header(r);
  const int index = blockIdx.x * PARAMETER_THREADS + threadIdx.x, episodes = step->episodes, lane = threadIdx.x & 31;
  const bool exists = index < o.len;
  const Source source = exists ? o.sources[index] : Source{CONSTANT, 0, 0, 0};
  const bool trained = source.kind != CONSTANT;
  float parameter = 0.f, m = 0.f, v = 0.f;
  if (trained) {
    parameter = o.parameters[index];
    m = o.first_moments[index];
    v = o.second_moments[index];
  }
  float infinite = 0.f;
#pragma unroll 1
  for (int i = lane; i < 2 * episodes; i += 32)
    if (!(fabsf(r.losses[i]) <= 3.402823466e38f)) infinite = 1.f;
  const bool keep = warp_max(infinite) > 0.f;
  float clip = 1.f;
  if (JOINT && o.clip > 0.f)
    clip = joint_clip_factor(o.squares, o.square_count, backbone.squares, backbone.square_count, o.clip);
  else if (o.clip > 0.f)
    clip = clip_factor(o.squares, o.square_count, o.clip);
  if (trained) {
    float gradient;
    if (JOINT || o.clip > 0.f) gradient = o.gradients[index];
    else o.gradients[index] = gradient = summed_gradient(r, o, source, step);
    if (!keep) {
      const float rate = step->rate, *corrections = r.state->corrections;
      gradient = gradient * clip + o.l2 * parameter;
      m = o.beta1 * m + (1.f - o.beta1) * gradient;
      v = o.beta2 * v + (1.f - o.beta2) * gradient * gradient;
      o.first_moments[index] = m;
      o.second_moments[index] = v;
      parameter = parameter * (1.f - rate * o.weight_decay) - rate * corrections[0] * m / (sqrtf(v) * corrections[1] + o.epsilon);
      o.parameters[index] = parameter;
    }
  }
  if (blockIdx.x == 0) write_losses(r, o, episodes);
  __syncthreads();
  if (threadIdx.x > 0 || atomicAdd(&r.state->finished_blocks, (u64)1) != (u64)gridDim.x - 1) return;
  r.state->finished_blocks = 0;
  r.state->step++;
  if (!keep) r.state->updates++;
}

extern "C" __global__ void __launch_bounds__(PARAMETER_THREADS) relabel_update(Relabel r, Optimiser o) {
  update<false>(r, o, Backbone{nullptr, nullptr, 0, 0});
}
extern "C" __global__ void __launch_bounds__(PARAMETER_THREADS)
    relabel_joint_update(Relabel r, Optimiser o, Backbone backbone) {
  update<true>(r, o, backbone);
}

}  // namespace relabel
