// Hessian-vector products for MAML with second derivatives. One step of the adaptation to a support set (maml.cu)
// replaces the parameters p by p - rate * g(p), with g the gradient of the support set's loss. The backward pass of
// this step turns the gradient v with respect to the new parameters into v - rate * H v with respect to p, where H is
// the Hessian of the loss at p. H v is the derivative of g along v ("R-operator", Pearlmutter, 1994): the "tangent" of
// a value is how fast it changes if the parameters move along v, and the kernels compute the tangent of every value of
// the forward and of the backward pass, up to that of g. crates/nn/src/conv4/tangent has the same for the CPU, and
// src/maml/tangent.rs launches the kernels.
//
// Per step of the adaptation, from the last to the first:
//   pack_direction                                    v as the direction; then, on the side queue, all convolutions
//                                                     with its filters
//   first_tangent_statistics, first_forward_tangent   block 1, forward
//   convolution and pool_tangent                      per block, 2 to 4
//   classify_tangent                                  the classifier, forward and backward
//   sum_feature_tangents                              sums for batch norm of the last block
//   batch_norm_backward_tangent, filter gradient and  per block, 4 to 2
//   convolution
//   task_first_backward (tasks.cu)                    block 1, backward, with tdy instead of dy
//   propagate_gradients                               v - rate * H v, which is the v of the next round
// The values of the adaptation step itself (z, y, dy, ..), the "primal" ones, are kept in memory from the adaptation.
// Kernels take them as `primal` or `in`, and their tangents as `tangent` or with t.
//
//   direction  f32, the vector v of a task times a power of two (`direction_factor`), in the layout of the task's
//              parameters (maml.cu). Its filters are the tangents w' of the filters w, and so on.
//
// A tangent has the shape and layout of the value that it belongs to, and is multiplied by the same power of two as the
// direction; tangents of gradients are multiplied by the loss scale, too. Which pixel of a pooling window is the
// maximum and whether a ReLU is active are treated as constant. Names as in batch_norm.cu: z is the output of a
// convolution, x = (z - mean) / std, y the output of a block, d a gradient. tz, ty, tdy, t_... are tangents of z, y,
// dy, ...; in formulas a tangent is marked by '. A convolution is linear in both factors, (y * w)' = y' * w + y * w',
// so its tangent is two convolutions: one writes, the other adds (the ADDED kinds of convolution.cu).
//
// In all kernels blockIdx.z is the task of MAML, and `of_task` (common.cuh) moves pointers by blockIdx.z * stride
// bytes. Planes of f16 and chunks of 8 channels are explained in common.cuh, fixed point sums (i64) there as well.
#pragma once
#include "maml.cu"

// The power of two that v is multiplied by: the largest absolute value of a direction is then between 2^-5 and 2^-4,
// about the size of weights, so that tangents are about as large as the values they are tangents of and fit into f16.
// maximum: the largest absolute value of v, as the bits of an f32, whose upper bits are the exponent plus 127 (the
// "biased" exponent). The factor is a power of two, so it changes no digits: with maximum = m 2^n and 1 <= m < 2, it is
// 2^(-5 - n), whose biased exponent is 254 - 5 - (n + 127); limited to the normal numbers, 1 to 254.
#define DIRECTION_BITS 5
DEVICE float direction_factor(u32 maximum) {
  const int exponent = (int)(maximum >> 23);
  return __uint_as_float((u32)min(max(254 - DIRECTION_BITS - exponent, 1), 254) << 23);
}

// direction = gradients * factor, where `gradients` holds v, and the copies of its filters that the kernels of Conv4
// read: those of blocks 2 to 4 in f16, `packed.first_weights` [64][48] not rounded; `packed.first` is written by
// first_tangent_statistics. Grid: (ceil(elements / 256), 1, tasks), 256 threads: one element (maml.cu) each.
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS)
    pack_direction(const float* gradients, const u32* maximum, float* direction, PackedFilters packed, MamlShape shape,
                   i64 stride) {
  const Element e = element_of(blockIdx.x * UPDATE_THREADS + threadIdx.x, shape);
  if (e.kind == NO_ELEMENT) return;
  const float value = of_task(gradients, stride)[e.at] * direction_factor(*of_task(maximum, stride));
  of_task(direction, stride)[e.at] = value;
  if (e.kind == FIRST_ELEMENT && e.part < PATCH_LEN)
    of_task(packed.first_weights, stride)[e.channel * PATCH_LEN + e.part] = value;
  if (e.kind == FILTER_ELEMENT) pack_element(e, value, packed_of_task(packed, stride));
}

// Statistics, norm and filters of block 1 (first_block.cu), or their tangents. y = relu(scale z + shift), with z the
// product of filters and patches.
struct FirstNorm {
  float* norm;      // [4][64]: scale, shift, mean, 1 / std
  float* weighted;  // [64][48]: weights * moments
  float* weights;   // [64][48]
  u16* filters;     // fragments; of the tangent: those of scale' w + scale w'
};

// Tangents of the statistics of block 1, from the moments of the patches p, which are constant because they depend on
// the images alone. With w the filter of a channel: mean' = w' . sum p / count, var' = 2 (w' moments w / count - mean
// mean'), (1 / std)' = -1/2 var' / std^3, and of scale = gamma / std and shift = beta - mean scale. Also the filters of
// first_forward_tangent: scale' z + scale z' is one product with scale' w + scale w'. Grid: (1, 1, tasks), 1024
// threads, 16 per channel, of which each has 3 of the 48 columns j. In the code, `cross` is w' moments w and `sum` is
// w' . sum p. Shared memory: moments and w'.
extern "C" __global__ void __launch_bounds__(1024)
    first_tangent_statistics(const i64* moments, FirstNorm primal, FirstNorm tangent, const float* gamma,
                             const float* t_gamma, const float* t_beta, float count, i64 stride) {
  SHARED float moment[PATCH_LEN * PATCH_LEN], t_weight[CHANNELS * PATCH_LEN];
  moments = of_task(moments, stride);
  const float* norm = of_task(primal.norm, stride);
  const float* weights = of_task(primal.weights, stride);
  const float* weighted = of_task(primal.weighted, stride);
  const float* t_weights = of_task(tangent.weights, stride);
  for (int i = threadIdx.x; i < PATCH_LEN * PATCH_LEN; i += 1024) moment[i] = (float)exact_sum(moments[i]);
  for (int i = threadIdx.x; i < CHANNELS * PATCH_LEN; i += 1024) t_weight[i] = t_weights[i];
  __syncthreads();
  const int channel = threadIdx.x >> 4, lane = threadIdx.x & 15;
  float cross = 0.f, sum = 0.f;
  for (int part = 0; part < 3; part++) {
    const int j = part * 16 + lane;
    float product = 0.f;
    for (int i = 0; i < PATCH_LEN; i++) product += t_weight[channel * PATCH_LEN + i] * moment[i * PATCH_LEN + j];
    of_task(tangent.weighted, stride)[channel * PATCH_LEN + j] = product;
    cross += weighted[channel * PATCH_LEN + j] * t_weight[channel * PATCH_LEN + j];
    sum += t_weight[channel * PATCH_LEN + j] * moment[CENTRE_ONE * PATCH_LEN + j];
  }
  for (int distance = 1; distance < 16; distance <<= 1) {
    cross += __shfl_xor_sync(FULL_WARP, cross, distance);
    sum += __shfl_xor_sync(FULL_WARP, sum, distance);
  }
  const float scale = norm[channel], mean = norm[2 * CHANNELS + channel], inverse_std = norm[3 * CHANNELS + channel];
  const float t_mean = sum / count, t_var = 2.f * (cross / count - mean * t_mean);
  const float t_inverse = -0.5f * inverse_std * inverse_std * inverse_std * t_var;
  const float t_scale = of_task(t_gamma, stride)[channel] * inverse_std + of_task(gamma, stride)[channel] * t_inverse;
  if (lane == 0) {
    float* out = of_task(tangent.norm, stride);
    out[channel] = t_scale;
    out[CHANNELS + channel] = of_task(t_beta, stride)[channel] - t_scale * mean - scale * t_mean;
    out[2 * CHANNELS + channel] = t_mean;
    out[3 * CHANNELS + channel] = t_inverse;
  }
  for (int j = lane; j < PATCH_LEN; j += 16)
    of_task(tangent.filters, stride)[first_fragment_position(channel, j)] =
        to_half(t_scale * weights[channel * PATCH_LEN + j] + scale * t_weight[channel * PATCH_LEN + j]);
}

// Bytes of shared memory of first_forward_tangent; src/maml/tangent.rs has the same number.
#define FIRST_TANGENT_SHARED (2 * FIRST_BACKWARD_FILTERS + 3 * CHANNELS * 4)
// The tangent of block 1: ty = scale' z + scale z' + shift' at the maximum of every window, 0 where the ReLU is
// inactive. Grid: (any, 1, tasks of MAML), 256 threads; a warp has every (8 * blocks)-th group of 8 windows, as in
// first_forward. In the code, as in first_block.cu, such a group is a `task`. Shared memory: both filters, then scale,
// shift and shift'.
extern "C" __global__ void __launch_bounds__(256, 2)
    first_forward_tangent(const u32* image, FirstNorm primal, FirstNorm tangent, uint4* ty, FirstShape shape, i64 stride) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane >> 2, quad = lane & 3;
  uint2* filters = (uint2*)dynamic_shared;
  uint2* t_filters = filters + 3 * 8 * 32;
  float* norm = (float*)(dynamic_shared + 2 * FIRST_BACKWARD_FILTERS);
  image = of_task(image, stride);
  ty = of_task(ty, stride);
  for (int i = threadIdx.x; i < 3 * 8 * 32; i += 256) {
    filters[i] = ((const uint2*)of_task(primal.filters, stride))[i];
    t_filters[i] = ((const uint2*)of_task(tangent.filters, stride))[i];
  }
  if (threadIdx.x < 2 * CHANNELS) norm[threadIdx.x] = of_task(primal.norm, stride)[threadIdx.x];
  else if (threadIdx.x < 3 * CHANNELS) norm[threadIdx.x] = of_task(tangent.norm, stride)[threadIdx.x - CHANNELS];
  __syncthreads();
  const int tasks = (shape.images * shape.windows * shape.windows + 7) / 8;
  for (int task = blockIdx.x * 8 + warp; task < tasks; task += gridDim.x * 8) {
    const FirstWindow w = first_window(task * 8 + group, shape);
    u32 rows[4][4];
    load_patch_rows(image, w, shape.side, quad, rows);
    uint4* to = ty + plane_position(w.image, w.row, w.column, shape.windows + 1) * 8 + quad * 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {
      u32 pairs[4];
#pragma unroll
      for (int part = 0; part < 4; part += 2) {  // two of the fragments of 8 columns at a time, to save registers
        // [upper, lower pixel][fragment][left pixel: 0, 1; right pixel: 2, 3]: z, and scale' z + scale z'.
        float z[2][2][4], t[2][2][4];
#pragma unroll
        for (int i = 0; i < 16; i++) (&z[0][0][0])[i] = (&t[0][0][0])[i] = 0.f;
#pragma unroll
        for (int k = 0; k < 3; k++)
#pragma unroll
          for (int n = 0; n < 2; n++) {
            const int column = (k * 8 + half * 4 + part + n) * 32 + lane;  // of the fragments
            const uint2 pair = filters[column], t_pair = t_filters[column];
            const u32 b[2] = {pair.x, pair.y}, tb[2] = {t_pair.x, t_pair.y};
            mma_f16(z[0][n], rows[k], b);
            mma_f16(z[1][n], rows[k + 1], b);
            mma_f16(t[0][n], rows[k], tb);
            mma_f16(t[1][n], rows[k + 1], tb);
          }
#pragma unroll
        for (int n = 0; n < 2; n++) {
          float values[2];
#pragma unroll
          for (int i = 0; i < 2; i++) {
            const int c = quad * 16 + half * 8 + 2 * (part + n) + i;
            const float s = norm[c], shift = norm[CHANNELS + c], t_shift = norm[2 * CHANNELS + c];
            const float pixels[4] = {z[0][n][i] * s + shift, z[0][n][2 + i] * s + shift, z[1][n][i] * s + shift,
                                     z[1][n][2 + i] * s + shift};
            const float tangents[4] = {t[0][n][i], t[0][n][2 + i], t[1][n][i], t[1][n][2 + i]};
            float best = 0.f, chosen = 0.f;
#pragma unroll
            for (int pixel = 0; pixel < 4; pixel++)
              if (pixels[pixel] > best) {
                best = pixels[pixel];
                chosen = tangents[pixel] + t_shift;
              }
            values[i] = chosen;
          }
          pairs[part + n] = pack_half2(values[0], values[1]);
        }
      }
      to[half] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
  }
}

// The statistics of a channel of blocks 2 to 4 and their tangents.
struct ChannelTangent {
  float mean, inverse_std, t_mean, t_inverse_std;
};
// From the sums of z and z squared, and those of tz and z tz, over `count` pixels; var' = 2 (E[z tz] - mean mean').
DEVICE ChannelTangent channel_tangent(const i64* sums, const i64* t_sums, int channel, float count) {
  ChannelTangent out;
  batch_statistics(sums, channel, count, out.mean, out.inverse_std);
  const double mean = exact_sum(sums[channel]) / count, t_mean = exact_sum(t_sums[channel]) / count;
  const double t_var = 2.0 * (exact_sum(t_sums[CHANNELS + channel]) / count - mean * t_mean);
  const double inverse = out.inverse_std;
  out.t_mean = (float)t_mean;
  out.t_inverse_std = (float)(-0.5 * inverse * inverse * inverse * t_var);
  return out;
}

// The planes of a block (batch_norm.cu) and their tangents.
struct NormTangentPlanes {
  const uint4 *z, *tz;    // side x side
  const uint4 *dy, *tdy;  // pooled; only backward
};
// The sums of a block, each [2][64] fixed point, and its parameters, each [64].
struct NormTangentSums {
  const i64 *sums, *t_sums;     // of z and z squared; of tz and z tz
  const i64 *d_sums, *td_sums;  // of dy and dy x; of tdy and (dy x)' = tdy x + dy tx; only backward
  // Those with t_ are the direction's.
  const float *gamma, *beta, *t_gamma, *t_beta;
};

// Tangents of pool_batch (batch_norm.cu): ty = gamma' x + gamma tx + beta' at the maximum of each window, 0 where the
// ReLU is inactive, and t_normalised = tx at the maxima, with tx = (tz - mean') / std + (z - mean) (1 / std)'. Where
// the ReLU is inactive, t_normalised has no meaning; readers skip these by the NaN in `normalised`. Grid:
// (ceil(windows * windows * 8 / 256), images, tasks), 256 threads: a chunk of a window each. Shared memory: statistics
// and parameters of the channels.
extern "C" __global__ void __launch_bounds__(256)
    pool_tangent(NormTangentPlanes in, NormTangentSums sums, uint4* ty, uint4* t_normalised, PoolShape shape, i64 stride) {
  SHARED ChannelTangent norms[CHANNELS];
  SHARED float gamma[CHANNELS], beta[CHANNELS], t_gamma[CHANNELS], t_beta[CHANNELS];
  if (threadIdx.x < CHANNELS) {
    const int c = threadIdx.x;
    norms[c] = channel_tangent(of_task(sums.sums, stride), of_task(sums.t_sums, stride), c, shape.count);
    gamma[c] = of_task(sums.gamma, stride)[c];
    beta[c] = of_task(sums.beta, stride)[c];
    t_gamma[c] = of_task(sums.t_gamma, stride)[c];
    t_beta[c] = of_task(sums.t_beta, stride)[c];
  }
  __syncthreads();
  const Window w = thread_window(shape);
  if (!w.exists) return;
  const int pitch = shape.side + 1;
  const long first = plane_position(w.image, 2 * w.row, 2 * w.column, pitch) * 8 + w.chunk;
  const uint4 *z = of_task(in.z, stride) + first, *tz = of_task(in.tz, stride) + first;
  // Of the maximum: x, gamma x + beta (then ty), and tz (then tx).
  float x_of_best[8], best[8], t_of_best[8];
#pragma unroll
  for (int i = 0; i < 8; i++) best[i] = x_of_best[i] = t_of_best[i] = 0.f;
#pragma unroll
  for (int pixel = 0; pixel < 4; pixel++) {
    const int at = (pixel >> 1) * pitch * 8 + (pixel & 1) * 8;
    float values[8], tangents[8];
    unpack8(z[at], values);
    unpack8(tz[at], tangents);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int c = w.chunk * 8 + i;
      const float x = (values[i] - norms[c].mean) * norms[c].inverse_std, activated = x * gamma[c] + beta[c];
      if (activated > best[i]) {
        best[i] = activated;
        x_of_best[i] = x;
        t_of_best[i] = tangents[i];
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int c = w.chunk * 8 + i;
    const ChannelTangent n = norms[c];
    // z - mean = x std.
    const float tx = (t_of_best[i] - n.t_mean) * n.inverse_std + x_of_best[i] / n.inverse_std * n.t_inverse_std;
    t_of_best[i] = tx;
    best[i] = best[i] > 0.f ? t_gamma[c] * x_of_best[i] + gamma[c] * tx + t_beta[c] : 0.f;
  }
  const long to = plane_position(w.image, w.row, w.column, shape.windows + 1) * 8 + w.chunk;
  of_task(ty, stride)[to] = pack8(best);
  of_task(t_normalised, stride)[to] = pack8(t_of_best);
}

// Tangent of batch_norm_backward: dz = f (dy at the maximum - mean(dy) - x mean(dy x)) with f = gamma / std; tdz is the
// product rule applied to it, f' (..) + f (..)'. The means are those of the sums d_sums and td_sums over all pixels.
// Grid, threads and shared memory as for pool_tangent, with shape.windows = ceil(side / 2) as in batch_norm_backward.
extern "C" __global__ void __launch_bounds__(256)
    batch_norm_backward_tangent(NormTangentPlanes in, NormTangentSums sums, uint4* tdz, PoolShape shape, i64 stride) {
  SHARED ChannelTangent norms[CHANNELS];
  SHARED float gamma[CHANNELS], beta[CHANNELS], t_factor[CHANNELS];
  SHARED float mean_dy[CHANNELS], mean_dyx[CHANNELS], t_mean_dy[CHANNELS], t_mean_dyx[CHANNELS];
  if (threadIdx.x < CHANNELS) {
    const int c = threadIdx.x;
    const ChannelTangent n =
        channel_tangent(of_task(sums.sums, stride), of_task(sums.t_sums, stride), c, shape.count);
    const i64 *d_sums = of_task(sums.d_sums, stride), *td_sums = of_task(sums.td_sums, stride);
    norms[c] = n;
    gamma[c] = of_task(sums.gamma, stride)[c];
    beta[c] = of_task(sums.beta, stride)[c];
    t_factor[c] = of_task(sums.t_gamma, stride)[c] * n.inverse_std + gamma[c] * n.t_inverse_std;
    mean_dy[c] = (float)(exact_sum(d_sums[c]) / shape.count);
    mean_dyx[c] = (float)(exact_sum(d_sums[CHANNELS + c]) / shape.count);
    t_mean_dy[c] = (float)(exact_sum(td_sums[c]) / shape.count);
    t_mean_dyx[c] = (float)(exact_sum(td_sums[CHANNELS + c]) / shape.count);
  }
  __syncthreads();
  const Window w = thread_window(shape);
  if (!w.exists) return;
  const int side = shape.side, pitch = side + 1, pooled = side / 2;
  const bool below = 2 * w.row + 1 < side, right = 2 * w.column + 1 < side;
  const bool is_pooled = w.row < pooled && w.column < pooled;
  const long first = plane_position(w.image, 2 * w.row, 2 * w.column, pitch) * 8 + w.chunk;
  const uint4 zero = make_uint4(0, 0, 0, 0);
  const uint4 *z = of_task(in.z, stride) + first, *tz = of_task(in.tz, stride) + first;
  const uint4 pixels[4] = {z[0], right ? z[8] : zero, below ? z[pitch * 8] : zero, below && right ? z[pitch * 8 + 8] : zero};
  const uint4 t_pixels[4] = {tz[0], right ? tz[8] : zero, below ? tz[pitch * 8] : zero,
                             below && right ? tz[pitch * 8 + 8] : zero};
  uint4 d_chunk = zero, td_chunk = zero;
  if (is_pooled) {
    const long at = plane_position(w.image, w.row, w.column, pooled + 1) * 8 + w.chunk;
    d_chunk = of_task(in.dy, stride)[at];
    td_chunk = of_task(in.tdy, stride)[at];
  }
  u32 out[4][4];  // [pixel][pair of channels]
  // Two channels at a time: one pair of f16 of each pixel.
#pragma unroll
  for (int pair = 0; pair < 4; pair++) {
    float results[4][2];
    float2 value[4], t_value[4];
#pragma unroll
    for (int pixel = 0; pixel < 4; pixel++) {
      value[pixel] = unpack_half2((&pixels[pixel].x)[pair]);
      t_value[pixel] = unpack_half2((&t_pixels[pixel].x)[pair]);
    }
    const float2 d = unpack_half2((&d_chunk.x)[pair]), td = unpack_half2((&td_chunk.x)[pair]);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int c = w.chunk * 8 + 2 * pair + i;
      const ChannelTangent n = norms[c];
      float x[4], best = 0.f;
      int argmax = -1;
#pragma unroll
      for (int pixel = 0; pixel < 4; pixel++) {
        x[pixel] = ((i ? value[pixel].y : value[pixel].x) - n.mean) * n.inverse_std;
        const float activated = x[pixel] * gamma[c] + beta[c];
        if (activated > best) {
          best = activated;
          argmax = pixel;
        }
      }
      // tx as in pool_tangent, with (z - mean) (1 / std)' = x t_ratio.
      const float factor = gamma[c] * n.inverse_std, t_ratio = n.t_inverse_std / n.inverse_std;
#pragma unroll
      for (int pixel = 0; pixel < 4; pixel++) {
        const float tx = ((i ? t_value[pixel].y : t_value[pixel].x) - n.t_mean) * n.inverse_std + x[pixel] * t_ratio;
        const bool is_max = is_pooled && argmax == pixel;
        const float direct = is_max ? (i ? d.y : d.x) : 0.f, t_direct = is_max ? (i ? td.y : td.x) : 0.f;
        results[pixel][i] = t_factor[c] * (direct - mean_dy[c] - x[pixel] * mean_dyx[c]) +
                            factor * (t_direct - t_mean_dy[c] - tx * mean_dyx[c] - x[pixel] * t_mean_dyx[c]);
      }
    }
#pragma unroll
    for (int pixel = 0; pixel < 4; pixel++) out[pixel][pair] = pack_half2(results[pixel][0], results[pixel][1]);
  }
  tdz = of_task(tdz, stride) + first;
  tdz[0] = make_uint4(out[0][0], out[0][1], out[0][2], out[0][3]);
  if (right) tdz[8] = make_uint4(out[1][0], out[1][1], out[1][2], out[1][3]);
  if (below) tdz[pitch * 8] = make_uint4(out[2][0], out[2][1], out[2][2], out[2][3]);
  if (below && right) tdz[pitch * 8 + 8] = make_uint4(out[3][0], out[3][1], out[3][2], out[3][3]);
}

// Tangents of sum_feature_gradients: td_sums, [2][64] fixed point, gets the sums of tdy and of tdy x + dy tx over the
// active pixels of the last block. Grid: (any, 1, tasks), 256 threads: one chunk of every (32 * blocks)-th pixel each.
// Shared memory: the sums of the warps.
extern "C" __global__ void __launch_bounds__(256)
    sum_feature_tangents(const uint4* normalised, const uint4* t_normalised, const uint4* dy, const uint4* tdy, i64* td_sums,
                         int images, int side, Divider by_side, i64 stride) {
  SHARED float scratch[8][2][CHANNELS];
  normalised = of_task(normalised, stride);
  t_normalised = of_task(t_normalised, stride);
  dy = of_task(dy, stride);
  tdy = of_task(tdy, stride);
  const int chunk = threadIdx.x & 7, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float sums[8], products[8];
#pragma unroll
  for (int i = 0; i < 8; i++) sums[i] = products[i] = 0.f;
  const int pixels = images * side * side;
  for (int pixel = (blockIdx.x * 256 + threadIdx.x) >> 3; pixel < pixels; pixel += gridDim.x * 32) {
    const int row = divide(by_side, pixel), image = divide(by_side, row);
    const long at = plane_position(image, row - image * side, pixel - row * side, side + 1) * 8 + chunk;
    float x[8], tx[8], d[8], td[8];
    unpack8(normalised[at], x);
    unpack8(t_normalised[at], tx);
    unpack8(dy[at], d);
    unpack8(tdy[at], td);
#pragma unroll
    for (int i = 0; i < 8; i++)
      if (x[i] == x[i]) {
        sums[i] += td[i];
        products[i] += td[i] * x[i] + d[i] * tx[i];
      }
  }
  add_channel_sums(sums, products, scratch, of_task(td_sums, stride), chunk, lane, warp);
}

// What the classifier of a pass reads and writes, or that of its tangents.
struct ClassifierPlanes {
  const uint4* features;    // plane
  const float* parameters;  // of the tangent: the direction
  float* d_logits;          // [rows][ways]
  uint4* d_features;        // plane
};
// Tangents of `classify` (maml.cu): of the logits, l' = f' W + f W' + b' with features f, weights W and biases b, of
// d_logits, and of d_features = d_logits W^T. in: of the pass; tangent: of its tangents. Grid: (rows, 1, tasks), 256
// threads: a block per image ("row"). Shared memory: partial sums [8 warps][ways], then l', later the tangents of
// d_logits, [ways].
extern "C" __global__ void __launch_bounds__(256)
    classify_tangent(ClassifierPlanes in, ClassifierPlanes tangent, const u32* labels, const TrainingState* state,
                     MamlShape shape, i64 stride) {
  labels = labels_of_pass(labels, state, shape);
  const uint4 *features = of_task(in.features, stride), *t_features = of_task(tangent.features, stride);
  const int ways = shape.ways, row = blockIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const float* weights = of_task(in.parameters, stride) + shape.conv4_len;
  const float* t_weights = of_task(tangent.parameters, stride) + shape.conv4_len;
  const float* t_biases = t_weights + (long)shape.chunks * 8 * ways;
  const float* d_logits = of_task(in.d_logits, stride) + row * ways;
  float* partial = (float*)dynamic_shared;  // [8 warps][ways]
  float* t_logits = partial + 8 * ways;     // [ways]
  for (int way = 0; way < ways; way++) {
    float sum = 0.f;
    for (int chunk = threadIdx.x; chunk < shape.chunks; chunk += 256) {
      const long at = feature_chunk(shape, row, chunk);
      float values[8], tangents[8];
      unpack8(features[at], values);
      unpack8(t_features[at], tangents);
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const long weight = (long)(chunk * 8 + i) * ways + way;
        sum += values[i] * t_weights[weight] + tangents[i] * weights[weight];
      }
    }
    for (int distance = 16; distance; distance >>= 1) sum += __shfl_xor_sync(FULL_WARP, sum, distance);
    if (lane == 0) partial[warp * ways + way] = sum;
  }
  __syncthreads();
  for (int way = threadIdx.x; way < ways; way += 256) {
    float sum = 0.f;
    for (int w = 0; w < 8; w++) sum += partial[w * ways + way];
    t_logits[way] = sum + t_biases[way];
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    // The tangent of a softmax's probability p is p (l' - sum p l'). d_logits holds (p - 1 at the label) * factor, with
    // factor = loss scale / rows; so p * factor is d_logits, plus factor at the label. `mean` is sum p l'. One thread
    // works, because there are few ways (classes).
    const int own = labels[row];
    const float factor = state->scale / shape.rows;
    float mean = 0.f;
    for (int way = 0; way < ways; way++) mean += (d_logits[way] + (way == own ? factor : 0.f)) * t_logits[way];
    mean /= factor;
    for (int way = 0; way < ways; way++) {
      const float d = (d_logits[way] + (way == own ? factor : 0.f)) * (t_logits[way] - mean);
      t_logits[way] = d;
      of_task(tangent.d_logits, stride)[row * ways + way] = d;
    }
  }
  __syncthreads();
  uint4* d_features = of_task(tangent.d_features, stride);
  for (int chunk = threadIdx.x; chunk < shape.chunks; chunk += 256) {
    float d[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
    for (int way = 0; way < ways; way++)
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const long weight = (long)(chunk * 8 + i) * ways + way;
        d[i] += t_logits[way] * weights[weight] + d_logits[way] * t_weights[weight];
      }
    d_features[feature_chunk(shape, row, chunk)] = pack8(d);
  }
}

// The derivative along the direction of `first_gradient` (optimiser.cu, which has the formulas), line by line: of one
// element of block 1's weights, or of its gamma (part 48) and beta (part 49). The names are those of that function;
// `inverse` is 1 / std. tangent.d_patches are the sums of tdy patch_j; the moments are constant.
DEVICE float first_gradient_tangent(const NormSums& in, const NormSums& tangent, int channel, int part) {
  const double d_sum = exact_sum(in.d_patches[channel * PATCH_LEN + CENTRE_ONE]);
  const double t_d_sum = exact_sum(tangent.d_patches[channel * PATCH_LEN + CENTRE_ONE]);
  if (part == 49) return (float)t_d_sum;
  double d_times_z = 0.0, t_d_times_z = 0.0;
  for (int k = 0; k < PATCH_LEN; k++) {
    const double w = in.weights[channel * PATCH_LEN + k], tw = tangent.weights[channel * PATCH_LEN + k];
    const double d = exact_sum(in.d_patches[channel * PATCH_LEN + k]);
    d_times_z += w * d;
    t_d_times_z += w * exact_sum(tangent.d_patches[channel * PATCH_LEN + k]) + tw * d;
  }
  const double mean = in.norm[2 * CHANNELS + channel], inverse = in.norm[3 * CHANNELS + channel];
  const double t_mean = tangent.norm[2 * CHANNELS + channel], t_inverse = tangent.norm[3 * CHANNELS + channel];
  const double d_times_x = inverse * (d_times_z - mean * d_sum);
  const double t_d_times_x =
      t_inverse * (d_times_z - mean * d_sum) + inverse * (t_d_times_z - t_mean * d_sum - mean * t_d_sum);
  if (part == 48) return (float)t_d_times_x;
  const double count = in.counts[0], patch_sum = exact_sum(in.moments[CENTRE_ONE * PATCH_LEN + part]);
  const double centred = (double)in.weighted[channel * PATCH_LEN + part] - mean * patch_sum;
  const double t_centred = (double)tangent.weighted[channel * PATCH_LEN + part] - t_mean * patch_sum;
  const double x_patches = inverse * centred, t_x_patches = t_inverse * centred + inverse * t_centred;
  const double direct = exact_sum(in.d_patches[channel * PATCH_LEN + part]);
  const double t_direct = exact_sum(tangent.d_patches[channel * PATCH_LEN + part]);
  const double inner = direct - d_sum / count * patch_sum - d_times_x / count * x_patches;
  const double t_inner =
      t_direct - t_d_sum / count * patch_sum - t_d_times_x / count * x_patches - d_times_x / count * t_x_patches;
  return (float)((double)tangent.norm[channel] * inner + (double)in.norm[channel] * t_inner);
}

// v <- v - rate * H v for every task, in `gradients`, and the largest absolute value of the result for the next step
// back (`next_maximum`). H v is the tangent of the gradient, from the sums of both passes, divided by loss scale and
// `direction_factor`; maximum: the largest absolute value of v before, which that factor follows from. Gradients of
// filters and of the classifier are products, so their tangents have two terms: the partials of filters in `tangent`
// already hold both (task_filter_gradient_two), those of the classifier are added here. Grid: (ceil(elements / 256), 1,
// tasks), 256 threads: one element each. Sets `overflow` in the state if H v is not finite.
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS)
    propagate_gradients(PassGradients in, PassGradients tangent, float* gradients, const u32* maximum, u32* next_maximum,
                        float rate, TrainingState* state, MamlShape shape, i64 stride) {
  const Element e = element_of(blockIdx.x * UPDATE_THREADS + threadIdx.x, shape);
  float value = 0.f;
  if (e.kind != NO_ELEMENT) {
    float product;
    switch (e.kind) {
      case FIRST_ELEMENT:
        product = first_gradient_tangent(sums_of_task(in.sums, stride), sums_of_task(tangent.sums, stride), e.channel, e.part);
        break;
      case CLASSIFIER_ELEMENT:
        product = classifier_gradient(of_task(in.features, stride), of_task(tangent.d_logits, stride), e.number, e.part, shape) +
                  classifier_gradient(of_task(tangent.features, stride), of_task(in.d_logits, stride), e.number, e.part, shape);
        break;
      default: product = element_gradient(e, tangent, shape, stride);
    }
    if (!is_finite(product)) atomicOr(&state->overflow, 1u);
    float* at = of_task(gradients, stride) + e.at;
    value = *at - rate * (product / state->scale / direction_factor(*of_task(maximum, stride)));
    *at = value;
  }
  add_maximum(value, of_task(next_maximum, stride));
}
