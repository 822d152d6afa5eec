// Batch norm, ReLU and 2x2 max pooling of blocks 2 to 4 of Conv4, forward and backward. A block is a 3x3 convolution
// (convolution.cu) followed by these. The kernels are launched by src/conv4/network.rs and, for MAML, through tasks.cu.
//
// Activations are planes (common.cuh): per position 64 channels of f16; pixel (row, column) of image n is at position
// (n * pitch + row) * pitch + column with pitch = side + 1; margins are zero. A chunk is 8 channels of a position, one
// uint4. A window is the 2x2 pixels that become one pixel.
//
//   z            plane of side `side`: output of the convolution, without its bias, which batch norm would subtract
//                again
//   y            plane of side side / 2: max over the window of relu(gamma x + beta), with x = (z - mean) / std
//   normalised   plane of side side / 2: x at the maximum, or NaN if the ReLU is inactive there (all four are at most
//                0)
//   dy, dz       gradients of y and z, times the loss scale, in planes of the same sides
//   sums         [2][64] fixed point: sums of z and z squared over all pixels of the batch
//   d_sums       [2][64] fixed point: sums of dy and dy x over the windows, dy = 0 where the ReLU is inactive. They are
//                the gradients of beta and gamma.
//   gamma, beta  [64] f32
//
// d_sums of a block are computed by the kernel that writes its dy: the convolution of the block above (BACKWARD_SUMS in
// convolution.cu), or `sum_feature_gradients` for the last block, whose dy comes from the loss.
//
// Fixed point: 64-bit integers with 20 fractional bits (`add_exactly`), so that the order in which thread blocks add
// their parts does not change the sum.
//
// Unless a kernel says otherwise, the grid is (ceil(windows per image * 8 / 256), images), 256 threads, and a thread
// has one chunk of one window: `thread_window`.
#pragma once
#include "common.cuh"

// Sizes of pooling.
struct PoolShape {
  int side;         // of z
  int windows;      // per row and column, for which threads are started: side / 2; ceil(side / 2) in the backward pass
  Divider divider;  // by `windows`
  float count;      // pixels of the batch, images * side * side: the number that sums are divided by
};

// Mean and 1 / standard deviation of a channel over the batch, with the biased variance E[z z] - mean squared, as in
// PyTorch. In f64, because the difference loses digits.
DEVICE void batch_statistics(const i64* sums, int channel, float count, float& mean, float& inverse_std) {
  const double m = exact_sum(sums[channel]) / count, square = exact_sum(sums[CHANNELS + channel]) / count;
  mean = (float)m;
  inverse_std = rsqrtf((float)fmax(square - m * m, 0.0) + EPSILON);
}

// The work of a thread: image, window row, window column, chunk of channels; whether they exist.
struct Window {
  int image, row, column, chunk;
  bool exists;
};
// Threads are numbered in the order window row, window column, chunk.
DEVICE Window thread_window(PoolShape shape) {
  const int index = blockIdx.x * blockDim.x + threadIdx.x, window = index >> 3;
  Window w;
  w.image = blockIdx.y;
  w.row = divide(shape.divider, window);
  w.column = window - w.row * shape.windows;
  w.chunk = index & 7;
  w.exists = w.row < shape.windows;
  return w;
}

// Computes y of the thread's window and, if NORMALISED, the plane `normalised`. mean, inverse_std, gamma, beta: [64] in
// shared memory. The maximum starts at 0, which is the ReLU; of equal maxima the first counts, in the forward and the
// backward pass.
template <bool NORMALISED>
DEVICE void pool_window(const uint4* z, const float* mean, const float* inverse_std, const float* gamma, const float* beta,
                        uint4* y, uint4* normalised, PoolShape shape) {
  const Window w = thread_window(shape);
  if (!w.exists) return;
  const int pitch = shape.side + 1;
  const uint4* from = z + plane_position(w.image, 2 * w.row, 2 * w.column, pitch) * 8 + w.chunk;
  const uint4 pixels[4] = {from[0], from[8], from[pitch * 8], from[pitch * 8 + 8]};
  float best[8], x_of_best[8];
#pragma unroll
  for (int i = 0; i < 8; i++) {
    best[i] = 0.f;
    x_of_best[i] = __uint_as_float(0x7fc00000);  // NaN: no pixel is active so far
  }
#pragma unroll
  for (int pixel = 0; pixel < 4; pixel++) {
    float values[8];
    unpack8(pixels[pixel], values);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      const int c = w.chunk * 8 + i;
      const float x = (values[i] - mean[c]) * inverse_std[c], activated = x * gamma[c] + beta[c];
      if (activated > best[i]) {
        best[i] = activated;
        x_of_best[i] = x;
      }
    }
  }
  const long to = plane_position(w.image, w.row, w.column, shape.windows + 1) * 8 + w.chunk;
  y[to] = pack8(best);
  if (NORMALISED) normalised[to] = pack8(x_of_best);
}

// Training: normalises with the statistics of the batch, which every block computes from `sums` into shared memory.
DEVICE void normalise_and_pool(const uint4* z, const i64* sums, const float* gamma, const float* beta, uint4* y,
                               uint4* normalised, PoolShape shape) {
  SHARED float mean[CHANNELS], inverse_std[CHANNELS], scale[CHANNELS], shift[CHANNELS];
  if (threadIdx.x < CHANNELS) {
    const int c = threadIdx.x;
    batch_statistics(sums, c, shape.count, mean[c], inverse_std[c]);
    scale[c] = gamma[c];
    shift[c] = beta[c];
  }
  __syncthreads();
  pool_window<true>(z, mean, inverse_std, scale, shift, y, normalised, shape);
}
// `normalise_and_pool` for one network (tasks.cu has it for several).
extern "C" __global__ void __launch_bounds__(256)
    pool_batch(const uint4* z, const i64* sums, const float* gamma, const float* beta, uint4* y, uint4* normalised,
               PoolShape shape) {
  normalise_and_pool(z, sums, gamma, beta, y, normalised, shape);
}

// Inference: normalises with running statistics. norm: [4][64], mean - bias of the convolution, 1 / std, gamma, beta.
// Shared memory: a copy of them.
extern "C" __global__ void __launch_bounds__(256) pool_running(const uint4* z, const float* norm, uint4* y, PoolShape shape) {
  SHARED float values[4 * CHANNELS];
  if (threadIdx.x < 4 * CHANNELS) values[threadIdx.x] = norm[threadIdx.x];
  __syncthreads();
  pool_window<false>(z, values, values + CHANNELS, values + 2 * CHANNELS, values + 3 * CHANNELS, y, nullptr, shape);
}

// The backward pass: dz = gamma / std * (dy at the maximum - mean(dy) - x mean(dy x)), where "dy at the maximum" is dy
// for the pixel of the window that was the maximum, else 0, and the means are over all pixels of the batch. Which pixel
// that is follows from z again, so it is not stored. Here shape.windows = ceil(side / 2): the last row and column of an
// odd side belong to no window and have no dy, but they are part of the statistics and so have a gradient. Pixels
// outside of the image are not written, so the margins of dz stay zero. Shared memory: statistics and parameters of the
// channels.
DEVICE void compute_norm_backward(const uint4* z, const i64* sums, const i64* d_sums, const float* gamma,
                                  const float* beta, const uint4* dy, uint4* dz, PoolShape shape) {
  SHARED float mean[CHANNELS], inverse_std[CHANNELS], scale[CHANNELS], shift[CHANNELS], mean_dy[CHANNELS], mean_dyx[CHANNELS];
  if (threadIdx.x < CHANNELS) {
    const int c = threadIdx.x;
    batch_statistics(sums, c, shape.count, mean[c], inverse_std[c]);
    scale[c] = gamma[c];
    shift[c] = beta[c];
    mean_dy[c] = (float)(exact_sum(d_sums[c]) / shape.count);
    mean_dyx[c] = (float)(exact_sum(d_sums[CHANNELS + c]) / shape.count);
  }
  __syncthreads();
  const Window w = thread_window(shape);
  if (!w.exists) return;
  const int side = shape.side, pitch = side + 1, pooled = side / 2;
  // Whether the window has a lower row and a right column inside the image, and whether it is pooled, so that dy has a
  // value for it.
  const bool below = 2 * w.row + 1 < side, right = 2 * w.column + 1 < side;
  const bool is_pooled = w.row < pooled && w.column < pooled;
  const long first = plane_position(w.image, 2 * w.row, 2 * w.column, pitch) * 8 + w.chunk;
  const uint4 zero = make_uint4(0, 0, 0, 0);
  const uint4 pixels[4] = {z[first], right ? z[first + 8] : zero, below ? z[first + pitch * 8] : zero,
                           below && right ? z[first + pitch * 8 + 8] : zero};
  float d[8];
  if (is_pooled) unpack8(dy[plane_position(w.image, w.row, w.column, pooled + 1) * 8 + w.chunk], d);
  float x[4][8];
#pragma unroll
  for (int pixel = 0; pixel < 4; pixel++) unpack8(pixels[pixel], x[pixel]);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    const int c = w.chunk * 8 + i;
    // The maximum of the window in the order of the forward pass; argmax -1: the ReLU is inactive.
    float best = 0.f;
    int argmax = -1;
#pragma unroll
    for (int pixel = 0; pixel < 4; pixel++) {
      x[pixel][i] = (x[pixel][i] - mean[c]) * inverse_std[c];
      const float activated = x[pixel][i] * scale[c] + shift[c];
      if (activated > best) {
        best = activated;
        argmax = pixel;
      }
    }
    const float factor = scale[c] * inverse_std[c];
    // From here on, x[pixel] is dz of the pixel.
#pragma unroll
    for (int pixel = 0; pixel < 4; pixel++) {
      const float direct = is_pooled && argmax == pixel ? d[i] : 0.f;
      x[pixel][i] = factor * (direct - mean_dy[c] - x[pixel][i] * mean_dyx[c]);
    }
  }
  dz[first] = pack8(x[0]);
  if (right) dz[first + 8] = pack8(x[1]);
  if (below) dz[first + pitch * 8] = pack8(x[2]);
  if (below && right) dz[first + pitch * 8 + 8] = pack8(x[3]);
}
// `compute_norm_backward` for one network.
extern "C" __global__ void __launch_bounds__(256)
    batch_norm_backward(const uint4* z, const i64* sums, const i64* d_sums, const float* gamma, const float* beta,
                        const uint4* dy, uint4* dz, PoolShape shape) {
  compute_norm_backward(z, sums, d_sums, gamma, beta, dy, dz, shape);
}

// Adds the sums of a block of 256 threads to `total`, [2][64] fixed point: first over the lanes with the same chunk
// (every 8th), then over the warps in their order, then exactly over the blocks. sums, products: the thread's, of the 8
// channels of its chunk. scratch: [warp][2][64] in shared memory. Contains a barrier.
DEVICE void add_channel_sums(float* sums, float* products, float scratch[8][2][CHANNELS], i64* total, int chunk, int lane,
                             int warp) {
#pragma unroll
  for (int i = 0; i < 8; i++) {
    for (int distance = 8; distance < 32; distance <<= 1) {
      sums[i] += __shfl_xor_sync(FULL_WARP, sums[i], distance);
      products[i] += __shfl_xor_sync(FULL_WARP, products[i], distance);
    }
    if (lane < 8) {
      scratch[warp][0][chunk * 8 + i] = sums[i];
      scratch[warp][1][chunk * 8 + i] = products[i];
    }
  }
  __syncthreads();
  if (threadIdx.x < 2 * CHANNELS) {
    float sum = 0.f;
    for (int w = 0; w < 8; w++) sum += scratch[w][threadIdx.x >> 6][threadIdx.x & 63];
    add_exactly(total + threadIdx.x, sum);
  }
}

// d_sums of the last block, whose dy comes from the loss; in the other blocks the convolution that computes dy adds the
// sums up (convolution.cu). `normalised` and `dy` are planes of side `side` here: the pooled ones. Grid: any number of
// blocks of 256 threads; a thread adds up one chunk of every (32 * blocks)-th pixel. Windows with NaN in `normalised`
// are inactive and do not count. Shared memory: the sums of the warps.
DEVICE void add_feature_gradients(const uint4* normalised, const uint4* dy, i64* d_sums, int images, int side,
                                  Divider by_side) {
  SHARED float scratch[8][2][CHANNELS];
  const int chunk = threadIdx.x & 7, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float sums[8], products[8];
#pragma unroll
  for (int i = 0; i < 8; i++) sums[i] = products[i] = 0.f;
  const int pixels = images * side * side;
  for (int pixel = (blockIdx.x * 256 + threadIdx.x) >> 3; pixel < pixels; pixel += gridDim.x * 32) {
    const int row = divide(by_side, pixel), image = divide(by_side, row);
    const long at = plane_position(image, row - image * side, pixel - row * side, side + 1) * 8 + chunk;
    float x[8], d[8];
    unpack8(normalised[at], x);
    unpack8(dy[at], d);
#pragma unroll
    for (int i = 0; i < 8; i++)
      // False for NaN.
      if (x[i] == x[i]) {
        sums[i] += d[i];
        products[i] += d[i] * x[i];
      }
  }
  add_channel_sums(sums, products, scratch, d_sums, chunk, lane, warp);
}
// `add_feature_gradients` for one network.
extern "C" __global__ void __launch_bounds__(256)
    sum_feature_gradients(const uint4* normalised, const uint4* dy, i64* d_sums, int images, int side, Divider by_side) {
  add_feature_gradients(normalised, dy, d_sums, images, side, by_side);
}
