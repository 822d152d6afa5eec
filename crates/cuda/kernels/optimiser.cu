// The end of a training step of Conv4: from the sums that the backward pass left to gradients, clipping, AdamW, running
// statistics of batch norm, the 16-bit copies of the filters that the other kernels read, and the loss scale. A step
// launches collect_gradients, update_parameters and finish_step; pack_filters runs when the host has written
// parameters. NegMargin, MAML and joint training use parts of this file.
//
// Parameters, gradients and moments are f32 in the layout of the CPU (crates/nn/src/conv4/mod.rs): for each of the 4
// blocks weight [64][inputs][3][3], then bias, gamma, beta, running mean and running variance, each [64]. `inputs` is
// 64, in block 1 the channels of the images. Blocks 2 to 4 are often numbered 0 to 2, because their filters are handled
// together.
//
//   forward             [3][tap][row_of_channel(output)][input] f16: the filters of blocks 2 to 4 as convolution.cu
//                       reads them
//   backward            the same, transposed and flipped, for the gradient of the input
//   filters, weights    those of block 1 (first_block.cu): fragments in f16; [64][48] f32, rounded to f16
//   losses              [queries] f32
//   rates, mean_losses  [slot] f32: learning rate and mean loss of a step; the slot of step n is n % 64 (common.cuh)
//
// If a gradient is not finite, collect_gradients sets `overflow` in the state: nothing is updated, the loss scale is
// halved, and the next launch repeats the step.
#pragma once
#include "first_block.cu"

// Threads per block of the kernels that have one thread per parameter.
#define UPDATE_THREADS 256

// What the positions of the parameters depend on.
struct Conv4Layout {
  int inputs;  // of block 1: 1 or 3
};
// Positions relative to the end of a block's weights; those of the weights are negative.
enum BlockPart { BIAS = 0, GAMMA = 64, BETA = 128, RUNNING_MEAN = 192, RUNNING_VAR = 256, PARTS_LEN = 320 };

// The position of the weights of block 0 to 3 (block 1 to 4 of the network), and of what follows them (enum BlockPart).
DEVICE int block_start(Conv4Layout layout, int block) {
  return block == 0 ? 0 : layout.inputs * TAPS * CHANNELS + PARTS_LEN + (block - 1) * (FILTER_LEN + PARTS_LEN);
}
DEVICE int parts_start(Conv4Layout layout, int block) {
  return block_start(layout, block) + (block == 0 ? layout.inputs * TAPS * CHANNELS : FILTER_LEN);
}

// The partial gradients of the filters (filter_gradient.cu): for blocks 2, 3 and 4 one after the other,
// [counts[block]][tap][ci][co] f32.
struct FilterPartials {
  const float* first;  // those of block 2
  int counts[3];       // thread blocks that wrote partials, per block
};

// What the step computed about batch norm, from which the gradients of its parameters and the running statistics
// follow.
struct NormSums {
  const i64* sums;        // [3][2][64] fixed point: sums of z and z squared of blocks 2 to 4 (batch_norm.cu)
  const i64* d_sums;      // [3][2][64] fixed point: sums of dy and dy x of blocks 2 to 4
  const i64* moments;     // [48][48] fixed point: of the patches of block 1 (first_block.cu), like all below
  const i64* d_patches;   // [64][48] fixed point: sums of dy patch_j
  const float* norm;      // [4][64]: scale = gamma / std, shift, mean, 1 / std
  const float* weighted;  // [64][48]: weights * moments
  const float* weights;   // [64][48]
  float counts[4];        // pixels of the batch, per block: images * side * side
};

// False for infinite values and NaN: the constant is the largest f32.
DEVICE bool is_finite(float value) { return fabsf(value) <= 3.402823466e38f; }

// The gradient, times the loss scale, of a parameter of block 1: `part` 0 to 47 is a weight of the patch, 48 gamma, 49
// beta of `channel`. With p the patch, z = w . p, x = (z - mean) / std, and sums over all pixels, dy = 0 except at
// maxima:
//
//   d_beta = sum dy            d_gamma = sum dy x = (w . sum dy p - mean sum dy) / std
//   d_w_j = gamma / std (sum dy p_j - d_beta / count sum p_j - d_gamma / count sum x p_j)
//   sum x p_j = ((weights * moments)_j - mean sum p_j) / std
//
// The sums are differences of large numbers, so they are f64. `first_gradient_tangent` in tangent.cu is the derivative
// of this.
DEVICE float first_gradient(const NormSums& in, int channel, int part) {
  const double d_sum = exact_sum(in.d_patches[channel * PATCH_LEN + CENTRE_ONE]);
  if (part == 49) return (float)d_sum;
  double d_times_z = 0.0;
  for (int k = 0; k < PATCH_LEN; k++)
    d_times_z += (double)in.weights[channel * PATCH_LEN + k] * exact_sum(in.d_patches[channel * PATCH_LEN + k]);
  const double mean = in.norm[2 * CHANNELS + channel], inverse_std = in.norm[3 * CHANNELS + channel];
  const double d_times_x = inverse_std * (d_times_z - mean * d_sum);
  if (part == 48) return (float)d_times_x;
  const double count = in.counts[0], patch_sum = exact_sum(in.moments[CENTRE_ONE * PATCH_LEN + part]);
  const double x_patches = inverse_std * ((double)in.weighted[channel * PATCH_LEN + part] - mean * patch_sum);
  const double direct = exact_sum(in.d_patches[channel * PATCH_LEN + part]);
  return (float)(in.norm[channel] * (direct - d_sum / count * patch_sum - d_times_x / count * x_patches));
}

// The gradient, times the loss scale, of one element, [tap][ci][co], of the filters of block 2 (0) to 4 (2): the sum of
// the thread blocks' parts in a fixed order. Four sums run side by side, so that loads and additions overlap. `first`
// is partials.first, or that of another task.
DEVICE float sum_partials(const float* first, const FilterPartials& partials, int block, int element) {
  const int skipped = block == 0 ? 0 : block == 1 ? partials.counts[0] : partials.counts[0] + partials.counts[1];
  const float* partial = first + (long)skipped * FILTER_LEN + element;
  const int count = block == 0 ? partials.counts[0] : block == 1 ? partials.counts[1] : partials.counts[2];
  float sums[4] = {0.f, 0.f, 0.f, 0.f};
  int i = 0;
  for (; i + 4 <= count; i += 4)
#pragma unroll
    for (int j = 0; j < 4; j++) sums[j] += partial[(long)(i + j) * FILTER_LEN];
  for (; i < count; i++) sums[0] += partial[(long)i * FILTER_LEN];  // the rest, up to three
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

// Adds up scratch[UPDATE_THREADS], one number per thread of a block, as a binary tree; the sum is scratch[0]. Contains
// barriers.
DEVICE void sum_in_shared(double* scratch) {
  __syncthreads();
  for (int distance = UPDATE_THREADS / 2; distance; distance >>= 1) {
    if (threadIdx.x < distance) scratch[threadIdx.x] += scratch[threadIdx.x + distance];
    __syncthreads();
  }
}

// The sum of the squares of the values of all threads of a block, returned to all. `scratch` holds UPDATE_THREADS
// doubles. Contains barriers.
DEVICE double sum_of_squares(double value, double* scratch) {
  scratch[threadIdx.x] = value * value;
  sum_in_shared(scratch);
  return scratch[0];
}

// gradients[parameter] = gradient / loss scale, in the layout of the parameters, and squares[block] = the sum of
// squares of each thread block, for clipping. One thread per parameter, 256 per block: first the filters of blocks 2 to
// 4 in the order of the partials ([3][tap][ci][co]), then [64][50] of block 1 (48 numbers of a patch, gamma, beta; see
// `first_gradient`), then [3][gamma, beta][64] of blocks 2 to 4. Biases of convolutions and running statistics have no
// gradient. Shared memory: one double per thread.
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS)
    collect_gradients(FilterPartials partials, NormSums in, float* gradients, double* squares, TrainingState* state,
                      Conv4Layout layout) {
  SHARED double scratch[UPDATE_THREADS];
  const int index = blockIdx.x * UPDATE_THREADS + threadIdx.x, first = 3 * FILTER_LEN, rest = first + CHANNELS * 50;
  int at = -1;  // the parameter; -1: the thread has none
  float gradient = 0.f;
  if (index < first) {
    const int block = index / FILTER_LEN, element = index - block * FILTER_LEN;
    gradient = sum_partials(partials.first, partials, block, element);
    const int tap = element >> 12, ci = (element >> 6) & 63, co = element & 63;
    at = block_start(layout, block + 1) + (co * CHANNELS + ci) * TAPS + tap;
  } else if (index < rest) {
    const int channel = (index - first) / 50, part = (index - first) - channel * 50;
    const int row = part >> 4, column = (part >> 2) & 3, input = part & 3;
    if (part >= PATCH_LEN) at = parts_start(layout, 0) + (part == PATCH_LEN ? GAMMA : BETA) + channel;
    else if (column < 3 && input < layout.inputs) at = (channel * layout.inputs + input) * TAPS + row * 3 + column;
    if (at >= 0) gradient = first_gradient(in, channel, part);
  } else if (index < rest + 3 * 2 * CHANNELS) {
    const int element = index - rest, block = element >> 7, is_beta = (element >> 6) & 1, channel = element & 63;
    gradient = (float)exact_sum(in.d_sums[block * 2 * CHANNELS + (is_beta ? 0 : CHANNELS) + channel]);
    at = parts_start(layout, block + 1) + (is_beta ? BETA : GAMMA) + channel;
  }
  if (at >= 0) {
    if (!is_finite(gradient)) atomicOr(&state->overflow, GRADIENT_OVERFLOW);
    gradient /= state->scale;
    gradients[at] = gradient;
  }
  const double square = sum_of_squares(gradient, scratch);
  if (threadIdx.x == 0) squares[blockIdx.x] = square;
}

// Hyperparameters: decay rates of the moments, the small number in the denominator, decoupled weight decay, L2
// regularisation (added to the gradient), and the largest norm of the gradient (0: no clipping).
struct AdamW {
  float beta1, beta2, epsilon, weight_decay, l2, clip;
};

// The factor that clips the gradient to the norm options.clip: 1 if it is shorter or clipping is off. Its squared norm
// is the sum of two lists of squares. Every thread adds them up itself, in the same order.
DEVICE float clip_factor(AdamW options, const double* squares, int square_count, const double* other_squares,
                         int other_count) {
  if (!(options.clip > 0.f)) return 1.f;
  double square = 0.0;
  for (int i = 0; i < square_count; i++) square += squares[i];
  for (int i = 0; i < other_count; i++) square += other_squares[i];
  const double norm = sqrt(square);
  return norm > options.clip ? (float)(options.clip / norm) : 1.f;
}

// The parameter after update number `updates`, counted from 1, with learning rate `rate`, as PyTorch's AdamW; also
// updates its two moments.
DEVICE float adamw_step(float parameter, float gradient, float* first_moment, float* second_moment, float rate,
                        double updates, AdamW options) {
  const float correction1 = (float)(1.0 - pow((double)options.beta1, updates));
  const float correction2 = (float)(1.0 - pow((double)options.beta2, updates));
  const float m = options.beta1 * *first_moment + (1.f - options.beta1) * gradient;
  const float v = options.beta2 * *second_moment + (1.f - options.beta2) * gradient * gradient;
  *first_moment = m;
  *second_moment = v;
  parameter -= rate * options.weight_decay * parameter;
  return parameter - rate / correction1 * m / (sqrtf(v) * rsqrtf(correction2) + options.epsilon);
}

// Writes the 16-bit copies of a filter weight of block 2 (0) to 4 (2): as it is, and transposed (ci and co swapped) and
// flipped (tap 8 - tap) for the backward pass.
DEVICE void pack_filter(u16* forward, u16* backward, int block, int co, int ci, int tap, float weight) {
  const u16 half = to_half(weight);
  forward[(block * TAPS + tap) * CHANNELS * CHANNELS + row_of_channel(co) * CHANNELS + ci] = half;
  backward[(block * TAPS + 8 - tap) * CHANNELS * CHANNELS + row_of_channel(ci) * CHANNELS + co] = half;
}

// Moves the running mean and variance of a channel towards those of the batch by PyTorch's default momentum of 0.1.
// parts: the position of the block's bias. mean: without the bias of the convolution, which is added here. var: the
// biased variance of the batch; PyTorch keeps the unbiased one, count / (count - 1) times as large.
DEVICE void update_running(float* parameters, int parts, int channel, float mean, float var, float count) {
  float* running_mean = parameters + parts + RUNNING_MEAN + channel;
  float* running_var = parameters + parts + RUNNING_VAR + channel;
  *running_mean += 0.1f * (mean + parameters[parts + BIAS + channel] - *running_mean);
  *running_var += 0.1f * (var * (count / fmaxf(count - 1.f, 1.f)) - *running_var);
}

// AdamW on all parameters, one thread each, 256 per block, `len` in total; writes the 16-bit copies of the filters of
// blocks 2 to 4. The thread of a convolution's bias also updates the running statistics of its channel. squares: from
// collect_gradients; other_squares: of gradients of other parameters that are clipped together with these. Does nothing
// after an overflow.
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS)
    update_parameters(float* parameters, float* first_moments, float* second_moments, const float* gradients,
                      const double* squares, int square_count, const double* other_squares, int other_count, NormSums in,
                      u16* forward, u16* backward, const float* rates, const TrainingState* state,
                      AdamW options, Conv4Layout layout, int len) {
  const int index = blockIdx.x * UPDATE_THREADS + threadIdx.x;
  if (index >= len || state->overflow) return;
  int block = 3;
  while (index < block_start(layout, block)) block--;
  const int parts = parts_start(layout, block), part = index - parts;
  if (part >= RUNNING_MEAN) return;  // statistics are not trained
  if (part >= BIAS && part < GAMMA) {
    const int channel = part;  // BIAS is 0
    float mean, var;
    if (block == 0) {
      const float inverse_std = in.norm[3 * CHANNELS + channel];
      mean = in.norm[2 * CHANNELS + channel];
      var = 1.f / (inverse_std * inverse_std) - EPSILON;
    } else {
      const i64* sums = in.sums + (block - 1) * 2 * CHANNELS;
      const double m = exact_sum(sums[channel]) / in.counts[block];
      mean = (float)m;
      var = (float)fmax(exact_sum(sums[CHANNELS + channel]) / in.counts[block] - m * m, 0.0);
    }
    update_running(parameters, parts, channel, mean, var, in.counts[block]);
  }
  const float factor = clip_factor(options, squares, square_count, other_squares, other_count);
  // The gradient of a convolution's bias is zero, because batch norm subtracts the mean.
  const float scaled = part >= BIAS && part < GAMMA ? 0.f : gradients[index] * factor;
  const float parameter = adamw_step(parameters[index], scaled + options.l2 * parameters[index], first_moments + index,
                                     second_moments + index, rates[step_slot(state)], state->updates + 1, options);
  parameters[index] = parameter;
  if (block > 0 && part < 0) {
    const int element = index - block_start(layout, block), tap = element % TAPS, pair = element / TAPS;
    pack_filter(forward, backward, block - 1, pair / CHANNELS, pair % CHANNELS, tap, parameter);
  }
}

// Block 1's filters as fragments and as rounded weights, from the parameters. One thread block of any size.
DEVICE void pack_first_filters(const float* parameters, uint2* filters, float* weights, Conv4Layout layout) {
  // Weight number j of the patch; 0 for column 3 and for numbers that are not channels.
  auto weight = [&](int channel, int j) {
    const int row = j >> 4, column = (j >> 2) & 3, input = j & 3;
    return column < 3 && input < layout.inputs ? parameters[(channel * layout.inputs + input) * TAPS + row * 3 + column] : 0.f;
  };
  // The B fragment (second operand) of mma_f16 for patch row k and fragment n of 8 columns: row 8 n + group of the
  // permuted output channels is `channel`, the inverse of `row_of_channel` (common.cuh).
  for (int i = threadIdx.x; i < 3 * 8 * 32; i += blockDim.x) {
    const int lane = i & 31, n = (i >> 5) & 7, k = i >> 8, group = lane >> 2, quad = lane & 3;
    const int channel = (group >> 1) * 16 + n * 2 + (group & 1), j = k * 16 + 2 * quad;
    filters[i] = make_uint2(pack_half2(weight(channel, j), weight(channel, j + 1)),
                            pack_half2(weight(channel, j + 8), weight(channel, j + 9)));
  }
  for (int i = threadIdx.x; i < CHANNELS * PATCH_LEN; i += blockDim.x)
    weights[i] = unpack_half2(pack_half2(weight(i / PATCH_LEN, i % PATCH_LEN), 0.f)).x;
}

// All 16-bit copies, after the host has written parameters. Any grid, 256 threads; the first block has block 1.
extern "C" __global__ void __launch_bounds__(256)
    pack_filters(const float* parameters, u16* forward, u16* backward, uint2* filters, float* weights, Conv4Layout layout) {
  if (blockIdx.x == 0) pack_first_filters(parameters, filters, weights, layout);
  for (int i = blockIdx.x * 256 + threadIdx.x; i < 3 * FILTER_LEN; i += gridDim.x * 256) {
    const int block = i / FILTER_LEN, element = i - block * FILTER_LEN, tap = element % TAPS, pair = element / TAPS;
    pack_filter(forward, backward, block, pair / CHANNELS, pair % CHANNELS, tap,
                parameters[block_start(layout, block + 1) + element]);
  }
}

// Updates without an overflow after which the loss scale is doubled, up to the largest scale 2^24.
#define GOOD_STEPS_BEFORE_GROWTH 1000
#define LARGEST_SCALE 16777216.f
// Ends a step, by the first warp of one block: writes the mean of losses[queries], and updates step number and loss
// scale. After an overflow nothing was updated; the scale is halved and the next launch repeats the same step, which
// keeps its number. A step of another size (OTHER_SIZE, joint.cu) is also repeated, but with the same scale.
DEVICE void end_step(const float* losses, int queries, float* mean_losses, TrainingState* state) {
  if (threadIdx.x >= 32) return;
  const u32 overflow = state->overflow;
  float total = 0.f;
  for (int i = threadIdx.x; i < queries; i += 32) total += losses[i];
  for (int distance = 16; distance; distance >>= 1) total += __shfl_xor_sync(FULL_WARP, total, distance);
  if (threadIdx.x != 0) return;
  mean_losses[step_slot(state)] = total / queries;
  if (overflow) {
    state->overflow = 0;
    if (overflow & OTHER_SIZE) return;
    state->scale *= 0.5f;
    state->good_steps = 0;
    return;
  }
  state->step++;
  state->updates++;
  if (++state->good_steps >= GOOD_STEPS_BEFORE_GROWTH && state->scale < LARGEST_SCALE) {
    state->scale *= 2.f;
    state->good_steps = 0;
  }
}

// `end_step`, and the filters of block 1, which need several parameters at once and so follow the update. One block of
// 256 threads.
extern "C" __global__ void __launch_bounds__(256)
    finish_step(const float* losses, int queries, float* mean_losses, const float* parameters, uint2* filters, float* weights,
                TrainingState* state, Conv4Layout layout) {
  if (!state->overflow) pack_first_filters(parameters, filters, weights, layout);
  __syncthreads();
  end_step(losses, queries, mean_losses, state);
}
