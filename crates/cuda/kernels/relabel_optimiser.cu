// The end of a step of the Relabel head: from activations and their gradients to gradients of the parameters and to
// updated parameters. relabel.cuh has sizes and buffers (`struct Relabel`); src/relabel/memory/gradient_plan.rs makes
// the tables.
//
// The gradient of a weight is a product x^T d over the rows of all episodes (items, states or class rows), which
// relabel_products computes in a fixed number of parts of the rows. Other gradients are sums over tiles or episodes. A
// table (`Source`) says for every parameter which partial sums to add; they are added in their order, so runs repeat to
// the bit. relabel_collect adds them up before the update where gradients are clipped or a backbone is trained, too;
// relabel_update otherwise. relabel_pack starts a step: it copies the weights to "packed" weights, rounded to TF32 and
// in the order in which `multiply` (relabel.cuh) reads them. src/relabel.rs launches the kernels.
#pragma once
#include "relabel.cuh"

namespace relabel {

#define PARAMETER_THREADS 256  // of a block of the kernels with one thread per parameter
#define PRODUCT_THREADS 256  // of a block of relabel_products: 8 warps
#define PRODUCT_TILE 64  // rows and columns of a weight that a block computes
#define PRODUCT_ROWS 32  // rows of the factors that are multiplied at a time
#define PRODUCT_PITCH 72  // floats between rows in shared memory: 64, padded against bank conflicts
#define PRODUCT_STAGES 3  // groups of 32 rows in shared memory: one in use, the others being copied
#define PRODUCT_FACTOR (PRODUCT_ROWS * PRODUCT_PITCH)  // floats of a factor of a stage

// 64 x 64 elements of the gradient of a weight, from one part of the rows. One block computes it.
struct Product {
  const float *x, *d;  // [rows][x_columns], x_pitch apart; [rows][d_columns]
  float* out;          // [x_columns][d_columns], of this part
  float* bias;         // [d_columns], or null: the sum of d over the rows
  // Sizes; the tile's first row and column in the weight.
  int x_columns, x_pitch, d_columns, first_x, first_d;
  int rows;            // 0: items, 1: states, 2: class rows
  int part, parts;     // number of this part of the rows; their number
};

// Starts to copy 32 rows and 64 columns of a factor to shared memory at offset `to`; zeros beyond row `end` and beyond
// `columns`.
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

// All products. Grid: one block per product, 256 threads; a warp computes 16 x 32 elements. Shared memory:
// PRODUCT_STAGES stages of 32 rows of x and d. Rows are rounded to TF32 as they are multiplied; the bias is summed in
// f32, by 64 threads.
extern "C" __global__ void __launch_bounds__(PRODUCT_THREADS, 4) relabel_products(Relabel r, const Product* products) {
  const Product p = products[blockIdx.x];
  const Header* step = header(r);
  const int all = p.rows == 0 ? step->items : p.rows == 1 ? step->states : step->class_rows;
  // Rows per part, rounded up to 8.
  const int per_part = ((all + p.parts - 1) / p.parts + 7) & ~7;
  const int begin = min(p.part * per_part, all), end = min(begin + per_part, all);
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane >> 2, quad = lane & 3;
  // The first row and column of this warp in the tile of 64 x 64: four warps one above the other, two side by side.
  const int m = (warp & 3) * 16, n = (warp >> 2) * 32;
  float sums[4][4] = {}, bias = 0.f;  // [group of 8 columns][fragment]
  int loaded = begin, load_stage = 0, stage = 0;
  // The first two rounds only start copies; every round starts those of the stage that is two rounds ahead.
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

// Where the gradient of a parameter comes from: the sum of `count` numbers from `first` on, `stride` apart. CONSTANT:
// it is not trained; PARTS: of relabel_products; TILES, EPISODES: one number per tile or episode of the step, so
// `count` is not used.
enum SourceKind { CONSTANT = 0, PARTS = 1, TILES = 2, EPISODES = 3 };
// The sum that is the gradient of one parameter.
struct Source {
  u32 kind, first, stride, count;
};
// Where the copies of a parameter are in the packed weights (`multiply` in relabel.cuh).
struct Positions {
  u32 forward, backward;  // 0xffffffff: not packed; backward: of the transposed weight
};
// Hyperparameters (clip: the largest norm, 0: no clipping) and buffers, each with one number per parameter unless
// stated.
struct Optimiser {
  float beta1, beta2, epsilon, weight_decay, l2, clip;
  int len, square_count;      // parameters; blocks that wrote squares
  // `packed` is longer: see Positions.
  float *parameters, *packed, *first_moments, *second_moments, *gradients;
  const float* product_sums;  // what relabel_products wrote
  const Source* sources;
  const Positions* positions;
  double* squares;            // [square_count]
  float* results;             // [slots][2]: the mean of each loss over the episodes
};

#define GRADIENT_LOADS 16  // terms of a sum that are loaded at once
// The gradient of the mean loss over the episodes: the sum of a source's terms in four interleaved sums, divided by the
// number of episodes.
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

// Gradients, and squares[block], the sum of squares of each block: before the update where gradients are clipped, and
// in training together with a backbone. Grid: ceil(len / 256), 256 threads: one parameter each.
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

// The start of a step: all packed weights as TF32, from the parameters. Grid: ceil(len / 256) + 1, 256 threads: one
// parameter each; in the last block, two threads prepare AdamW's corrections, with the power by repeated squaring in
// f64.
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
  const u32* overflow;    // not 0: nothing is updated, and the step is repeated
  const double* squares;  // [square_count]: of the backbone's gradients
  int square_count, padding;
};

// The factor that clips the gradient to the norm `clip`. squares: [count]. Contains barriers.
SEPARATE float clip_factor(const double* squares, int count, float clip) {
  double square = 0.0;
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += PARAMETER_THREADS) square += squares[i];
  const double norm = sqrt(block_sum(square));
  return norm > clip ? (float)(clip / norm) : 1.f;
}
// The same for the gradients of a head and its backbone together.
SEPARATE float joint_clip_factor(const double* squares, int count, const double* others, int other_count, float clip) {
  double square = 0.0;
#pragma unroll 1
  for (int i = threadIdx.x; i < count; i += PARAMETER_THREADS) square += squares[i];
#pragma unroll 1
  for (int i = threadIdx.x; i < other_count; i += PARAMETER_THREADS) square += others[i];
  const double norm = sqrt(block_sum(square));
  return norm > clip ? (float)(clip / norm) : 1.f;
}

// The means of the two losses over the episodes, to the slot of the step, by two threads.
DEVICE void write_losses(const Relabel& r, const Optimiser& o, int episodes) {
  if (threadIdx.x >= 2) return;
  double total = 0.0;
#pragma unroll 8
  for (int i = 0; i < episodes; i++) total += r.losses[i * 2 + threadIdx.x];
  o.results[(r.state->step % STEP_SLOTS) * 2 + threadIdx.x] = (float)(total / episodes);
}

// AdamW, and the end of the step: the first block writes the losses, the last one to finish (an atomic counter tells
// which) advances the state, because all blocks read it. A step whose loss is not finite changes no parameter, but it
// is counted as a step, not as an update. JOINT: gradients were collected before; if a gradient of the backbone
// overflowed, only the losses are written (not even those if the graph is of another size), and the step is repeated.
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
  const bool keep = warp_max(infinite) > 0.f;  // whether parameters are kept as they are
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

// Grid of both: ceil(len / 256), 256 threads: one parameter each.
extern "C" __global__ void __launch_bounds__(PARAMETER_THREADS) relabel_update(Relabel r, Optimiser o) {
  update<false>(r, o, Backbone{nullptr, nullptr, 0, 0});
}
extern "C" __global__ void __launch_bounds__(PARAMETER_THREADS)
    relabel_joint_update(Relabel r, Optimiser o, Backbone backbone) {
  update<true>(r, o, backbone);
}

}  // namespace relabel
