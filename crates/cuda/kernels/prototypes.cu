// The loss of nearest prototypes that a Conv4 backbone is trained with, forward and backward. An episode has support
// items ("items") and queries of a few classes. The prototype of a class is the mean or the geometric median of its
// support items' features. The loss of a query is the cross-entropy of a softmax over minus the squared distances to
// the prototypes; the loss of a step is the mean over the queries of its one episode.
// crates/vision/src/training/loss.rs is the same on the CPU.
//
// A step launches prototype_means, prototype_medians (medians only), query_losses, prototype_gradients,
// median_gradients (medians only), see src/conv4/prototypes.rs.
//
//   features    plane of side `side`, f16: the output of the last block, support items first, then queries. A plane
//               (common.cuh) has 64 channels per position; pixel (row, column) of image n is at position (n * pitch +
//               row) * pitch + column, pitch = side + 1. An image has F = side * side * 64 features.
//   d_features  the gradient of the loss times the loss scale, in the same layout
//   labels      [slot][support + queries] u32: given class of each support item, then class of each query. The slot is
//               that of the current step (common.cuh).
//   points      [iterations + 1][classes][F] f32, features in the order pixel, channel. points[0] are the means,
//               points[k] those after step k of the median; the last is the prototype, the others are for the backward
//               pass. Means: iterations = 0.
//   weights     [iterations][support] f32: the weight of each item in each step of the median
//   d_logits    [queries][classes] f32: gradient of the loss, times the loss scale, with respect to minus the squared
//               distances
//   losses      [queries] f32
//
// A feature chunk is 8 channels of a pixel: 16 bytes of f16 in a plane, 8 floats in points. Each sum is over a fixed
// order, so results repeat to the bit.
#pragma once
#include "common.cuh"

#define MEDIAN_EPSILON 0.5f  // keeps distances above zero; EPS in crates/vision/src/training/loss.rs

// Sizes of an episode and of the features.
struct EpisodeShape {
  int classes, support, queries;  // of the episode; items and queries are of all classes together
  int chunks;                     // of an image's features: side * side * 8
  int side;                       // height and width of the features in pixels
  Divider by_side;
  int iterations;                 // 0: mean; else steps of Weiszfeld's algorithm
};

// The labels of the current step.
DEVICE const u32* current_labels(const u32* labels, const TrainingState* state, EpisodeShape shape) {
  return labels + step_slot(state) * (shape.support + shape.queries);
}

// The position of feature chunk `chunk` of an image in a plane, in chunks.
DEVICE long chunk_position(EpisodeShape shape, int image, int chunk) {
  const int pixel = chunk >> 3, row = divide(shape.by_side, pixel);
  return plane_position(image, row, pixel - row * shape.side, shape.side + 1) * 8 + (chunk & 7);
}

// Sum over a block of 256 threads, the same value in every thread, in a fixed order. `scratch` holds 8 floats. Contains
// barriers.
DEVICE float block_sum(float value, float* scratch) {
  for (int distance = 16; distance; distance >>= 1) value += __shfl_xor_sync(FULL_WARP, value, distance);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = value;
  __syncthreads();
  float sum = 0.f;
  for (int w = 0; w < 8; w++) sum += scratch[w];
  return sum;
}

// points[0]: the mean of the support items of each class. Grid: (classes, ceil(chunks / 64)), 64 threads: one feature
// chunk per thread.
extern "C" __global__ void __launch_bounds__(64)
    prototype_means(const uint4* features, const u32* labels, float* points, const TrainingState* state, EpisodeShape shape) {
  labels = current_labels(labels, state, shape);
  const int own = blockIdx.x, chunk = blockIdx.y * 64 + threadIdx.x;
  if (chunk >= shape.chunks) return;
  float sum[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f}, count = 0.f;
  for (int item = 0; item < shape.support; item++) {
    if ((int)labels[item] != own) continue;
    float values[8];
    unpack8(features[chunk_position(shape, item, chunk)], values);
#pragma unroll
    for (int i = 0; i < 8; i++) sum[i] += values[i];
    count += 1.f;
  }
  float* point = points + ((long)own * shape.chunks + chunk) * 8;
#pragma unroll
  for (int i = 0; i < 8; i++) point[i] = sum[i] / count;
}

// The geometric median (the point with the smallest sum of distances to the items) by Weiszfeld's algorithm from the
// mean: every step is p' = sum w_i h_i / sum w_i, with w_i = 1 / sqrt(|p - h_i| squared + epsilon squared). Grid:
// classes, 256 threads; a block makes all steps of its class, first the weights (each distance is a sum over the
// block), then the new point, a few chunks per thread.
extern "C" __global__ void __launch_bounds__(256)
    prototype_medians(const uint4* features, const u32* labels, float* points, float* weights, const TrainingState* state,
                      EpisodeShape shape) {
  labels = current_labels(labels, state, shape);
  SHARED float scratch[8];
  const int own = blockIdx.x;
  const long stride = (long)shape.classes * shape.chunks * 8;
  for (int iteration = 0; iteration < shape.iterations; iteration++) {
    const float* point = points + iteration * stride + (long)own * shape.chunks * 8;
    float* next = points + (iteration + 1) * stride + (long)own * shape.chunks * 8;
    float* weight = weights + iteration * shape.support;
    float total = 0.f;
    for (int item = 0; item < shape.support; item++) {
      if ((int)labels[item] != own) continue;
      float square = 0.f;
      for (int chunk = threadIdx.x; chunk < shape.chunks; chunk += 256) {
        float values[8];
        unpack8(features[chunk_position(shape, item, chunk)], values);
#pragma unroll
        for (int i = 0; i < 8; i++) square += (point[chunk * 8 + i] - values[i]) * (point[chunk * 8 + i] - values[i]);
      }
      const float inverse = rsqrtf(block_sum(square, scratch) + MEDIAN_EPSILON * MEDIAN_EPSILON);
      if (threadIdx.x == 0) weight[item] = inverse;
      total += inverse;
    }
    __syncthreads();
    for (int chunk = threadIdx.x; chunk < shape.chunks; chunk += 256) {
      float sum[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
      for (int item = 0; item < shape.support; item++) {
        if ((int)labels[item] != own) continue;
        float values[8];
        unpack8(features[chunk_position(shape, item, chunk)], values);
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] += weight[item] * values[i];
      }
#pragma unroll
      for (int i = 0; i < 8; i++) next[chunk * 8 + i] = sum[i] / total;
    }
    __syncthreads();
  }
}

// Losses of the queries, d_logits, and the gradient of the queries' features, sum over classes of 2 d_logits (p - q).
// Grid: queries, 256 threads. Shared memory: partial squared distances [8 warps][classes], then d_logits [classes]. The
// softmax is by one thread, between barriers: it has only a few classes.
extern "C" __global__ void __launch_bounds__(256)
    query_losses(const uint4* features, const u32* labels, const float* points, float* d_logits, float* losses,
                 uint4* d_features, const TrainingState* state, EpisodeShape shape) {
  labels = current_labels(labels, state, shape);
  float* partial = (float*)dynamic_shared;                  // [8 warps][classes]
  float* coefficients = partial + 8 * shape.classes;  // [classes]
  const int query = blockIdx.x, image = shape.support + query, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const float* prototypes = points + (long)shape.iterations * shape.classes * shape.chunks * 8;
  for (int c = 0; c < shape.classes; c++) {
    float square = 0.f;
    for (int chunk = threadIdx.x; chunk < shape.chunks; chunk += 256) {
      float values[8];
      unpack8(features[chunk_position(shape, image, chunk)], values);
      const float* point = prototypes + ((long)c * shape.chunks + chunk) * 8;
#pragma unroll
      for (int i = 0; i < 8; i++) square += (values[i] - point[i]) * (values[i] - point[i]);
    }
    for (int distance = 16; distance; distance >>= 1) square += __shfl_xor_sync(FULL_WARP, square, distance);
    if (lane == 0) partial[warp * shape.classes + c] = square;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    const int own = labels[image];
    float largest = -3.4e38f, total = 0.f;
    for (int c = 0; c < shape.classes; c++) {
      float square = 0.f;
      for (int w = 0; w < 8; w++) square += partial[w * shape.classes + c];
      coefficients[c] = -square;
      largest = fmaxf(largest, -square);
    }
    for (int c = 0; c < shape.classes; c++) total += expf(coefficients[c] - largest);
    losses[query] = logf(total) + largest - coefficients[own];
    const float factor = state->scale / shape.queries;  // of the mean over the queries, times the loss scale
    for (int c = 0; c < shape.classes; c++) {
      const float d = (expf(coefficients[c] - largest) / total - (c == own ? 1.f : 0.f)) * factor;
      coefficients[c] = d;
      d_logits[query * shape.classes + c] = d;
    }
  }
  __syncthreads();
  for (int chunk = threadIdx.x; chunk < shape.chunks; chunk += 256) {
    const long at = chunk_position(shape, image, chunk);
    float values[8], d[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
    unpack8(features[at], values);
    for (int c = 0; c < shape.classes; c++) {
      const float* point = prototypes + ((long)c * shape.chunks + chunk) * 8;
#pragma unroll
      for (int i = 0; i < 8; i++) d[i] += 2.f * coefficients[c] * (point[i] - values[i]);
    }
    d_features[at] = pack8(d);
  }
}

// d_points [classes][F] f32, the gradients of the prototypes: sum over queries of 2 d_logits (q - p); for means also
// those of the support items, which are d_points / number of items. Grid: (classes, side * side), 256 threads: a block
// has a pixel, a thread one of its 8 chunks and every 32nd query. Shared memory: the 32 parts of each channel, which
// are added in their order, and the sums.
extern "C" __global__ void __launch_bounds__(256)
    prototype_gradients(const uint4* features, const u32* labels, const float* points, const float* d_logits,
                        float* d_points, uint4* d_features, const TrainingState* state, EpisodeShape shape) {
  labels = current_labels(labels, state, shape);
  SHARED float partial[32][CHANNELS];
  SHARED float totals[CHANNELS];
  const int own = blockIdx.x, pixel = blockIdx.y, part = threadIdx.x & 7, group = threadIdx.x >> 3, chunk = pixel * 8 + part;
  const float* point = points + (((long)shape.iterations * shape.classes + own) * shape.chunks + chunk) * 8;
  float d[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
  for (int query = group; query < shape.queries; query += 32) {
    float values[8];
    unpack8(features[chunk_position(shape, shape.support + query, chunk)], values);
    const float coefficient = 2.f * d_logits[query * shape.classes + own];
#pragma unroll
    for (int i = 0; i < 8; i++) d[i] += coefficient * (values[i] - point[i]);
  }
#pragma unroll
  for (int i = 0; i < 8; i++) partial[group][part * 8 + i] = d[i];
  __syncthreads();
  if (threadIdx.x < CHANNELS) {
    float sum = 0.f;
    for (int g = 0; g < 32; g++) sum += partial[g][threadIdx.x];
    totals[threadIdx.x] = sum;
    d_points[(long)own * shape.chunks * 8 + pixel * CHANNELS + threadIdx.x] = sum;
  }
  if (shape.iterations) return;
  __syncthreads();
  int count = 0;
  for (int item = 0; item < shape.support; item++) count += (int)labels[item] == own;
#pragma unroll
  for (int i = 0; i < 8; i++) d[i] = totals[part * 8 + i] / count;
  for (int item = group; item < shape.support; item += 32)
    if ((int)labels[item] == own) d_features[chunk_position(shape, item, chunk)] = pack8(d);
}

// Backward pass of the medians, from d_points (which is overwritten) to the gradient of the support items. Per step,
// from the last, with p the point before it, p' after it, and total = sum w_i:
//
//   dL/dw_i = (dL/dp') . (h_i - p') / total          dw_i = -w_i^3 (p - h_i) . (dp - dh_i)
//   dL/dh_i += w_i / total dL/dp' + w_i^3 dL/dw_i (p - h_i)
//   dL/dp = -sum_i w_i^3 dL/dw_i (p - h_i)
//
// h_i are the features of item i. The last one becomes dL/dp' of the step before; that of the mean is divided among the
// items. In the code, d_point is dL/dp', along (dL/dp') . (h_i - p'), d_weights[i] -w_i^3 dL/dw_i, and `pull` the
// product of that with (p - h_i), which is subtracted from dL/dh_i and added to dL/dp. Grid: classes, 256 threads, a
// few chunks per thread. d_weights [support] and d_items [support][F] (the sums dL/dh_i so far) are scratch memory.
// Barriers separate writing d_weights by thread 0 from reading it.
extern "C" __global__ void __launch_bounds__(256)
    median_gradients(const uint4* features, const u32* labels, const float* points, const float* weights, float* d_points,
                     float* d_weights, float* d_items, uint4* d_features, const TrainingState* state, EpisodeShape shape) {
  labels = current_labels(labels, state, shape);
  SHARED float scratch[8];
  const int own = blockIdx.x;
  const long stride = (long)shape.classes * shape.chunks * 8, length = shape.chunks * 8;
  float* d_point = d_points + own * length;
  float count = 0.f;
  for (int item = 0; item < shape.support; item++) count += (int)labels[item] == own ? 1.f : 0.f;
  for (int iteration = shape.iterations - 1; iteration >= 0; iteration--) {
    const float* before = points + iteration * stride + own * length;
    const float* after = before + stride;
    const float* weight = weights + iteration * shape.support;
    float total = 0.f;
    for (int item = 0; item < shape.support; item++)
      if ((int)labels[item] == own) total += weight[item];
    for (int item = 0; item < shape.support; item++) {
      if ((int)labels[item] != own) continue;
      float along = 0.f;
      for (int chunk = threadIdx.x; chunk < shape.chunks; chunk += 256) {
        float values[8];
        unpack8(features[chunk_position(shape, item, chunk)], values);
#pragma unroll
        for (int i = 0; i < 8; i++) along += d_point[chunk * 8 + i] * (values[i] - after[chunk * 8 + i]);
      }
      along = block_sum(along, scratch);
      if (threadIdx.x == 0) d_weights[item] = -along / total * weight[item] * weight[item] * weight[item];
    }
    __syncthreads();
    for (int chunk = threadIdx.x; chunk < shape.chunks; chunk += 256) {
      float d_before[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
      for (int item = 0; item < shape.support; item++) {
        if ((int)labels[item] != own) continue;
        float values[8];
        unpack8(features[chunk_position(shape, item, chunk)], values);
#pragma unroll
        for (int i = 0; i < 8; i++) {
          const int at = chunk * 8 + i;
          const float pull = d_weights[item] * (before[at] - values[i]);
          const float earlier = iteration == shape.iterations - 1 ? 0.f : d_items[item * length + at];
          d_items[item * length + at] = earlier + weight[item] / total * d_point[at] - pull;
          d_before[i] += pull;
        }
      }
#pragma unroll
      for (int i = 0; i < 8; i++) d_point[chunk * 8 + i] = d_before[i];
    }
    __syncthreads();
  }
  for (int chunk = threadIdx.x; chunk < shape.chunks; chunk += 256)
    for (int item = 0; item < shape.support; item++) {
      if ((int)labels[item] != own) continue;
      float d[8];
#pragma unroll
      for (int i = 0; i < 8; i++) d[i] = d_items[item * length + chunk * 8 + i] + d_point[chunk * 8 + i] / count;
      d_features[chunk_position(shape, item, chunk)] = pack8(d);
    }
}

// Copies features from the plane to the order of the rest of the program: out [images][64][side][side] f32. Grid:
// (ceil(chunks / 256), images), 256 threads: one chunk per thread.
extern "C" __global__ void __launch_bounds__(256) write_features(const uint4* features, float* out, EpisodeShape shape) {
  const int chunk = blockIdx.x * 256 + threadIdx.x, image = blockIdx.y;
  if (chunk >= shape.chunks) return;
  float values[8];
  unpack8(features[chunk_position(shape, image, chunk)], values);
  const int pixels = shape.chunks >> 3;
#pragma unroll
  for (int i = 0; i < 8; i++) out[((long)image * CHANNELS + (chunk & 7) * 8 + i) * pixels + (chunk >> 3)] = values[i];
}
