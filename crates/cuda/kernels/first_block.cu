// Block 1 of Conv4: 3x3 convolution of 1 or 3 channels to 64, whose output is called z, then batch norm, ReLU and 2x2
// max pooling, forward and backward. z, the largest array of the network, is never stored: it is computed again
// wherever it is needed. src/conv4/network.rs launches the kernels.
//
// How batch norm works without z: z = w . patch is linear in the 27 inputs of a pixel, so its mean and variance over
// the batch follow from the second moments of the patches, sum over pixels of patch_i patch_j, which do not depend on
// the weights. In the same way the gradients of weights, gamma and beta follow from the moments and from sums of dy
// patch_j (`first_gradient` in optimiser.cu). The kernels of a step in order: patch_moments, first_statistics,
// first_forward; after the backward pass of the other blocks, first_backward.
//
//   image      plane of side `side` with four f16 (two u32) per position: the channels (grey images have only the
//              first), and the number 1. Pixel (row, column) of image n is at position (n * pitch + row) * pitch +
//              column, pitch = side + 1; margins are zero, also in the fourth number (augment.cu).
//   patch      48 values around a pixel: [3 rows][4 columns][4 numbers], row r and column c at pixel (row + r - 1,
//              column + c - 1). i and j, from 0 to 47, number these values. Column 3 has zero weight; it makes the
//              columns of a row 16 numbers, the inner dimension of mma_f16. The fourth number of the centre, value
//              CENTRE_ONE, is 1 for every pixel, so the sum of patch_j over all pixels is moments[CENTRE_ONE][j].
//   moments    [48][48] fixed point: sum over all pixels of patch_i patch_j
//   norm       [4][64] f32: scale = gamma / std and shift = beta - mean scale of the channels (y = relu(scale z +
//              shift)), mean, 1 / std
//   weighted   [64][48] f32: weights * moments, the sums over pixels of z patch_j
//   filters    the B fragments of mma_f16: [3 rows][8 groups of 8 output channels][32 lanes] uint2. The columns of the
//              groups are permuted as in `row_of_channel` (common.cuh), so a thread has the 16 adjacent channels from
//              16 quad on.
//   weights    [64][48] f32: the same filters [channel][patch value], rounded to f16; 0 where the patch has no input
//   y, dy      plane of side side / 2, 64 channels of f16 per position: the output of the block, and its gradient times
//              the loss scale
//   d_patches  [64][48] fixed point: sum over pixels of dy[c] patch_j, with dy = 0 at all pixels but the maxima
//
// Fixed point: 64-bit integers with 20 fractional bits, so sums do not depend on the order of thread blocks
// (common.cuh).
//
// A warp works on 8 windows of 2x2 pixels at a time, which this file calls a "task" (not to be confused with the tasks
// of MAML in tasks.cu). As in common.cuh, group = lane / 4 and quad = lane % 4: `group` is the window. The 16 rows of
// an A fragment (the first operand of mma_f16) are the 8 windows' left pixels, then their right ones; upper and lower
// pixels are two fragments. B fragments are those of the second operand.
#pragma once
#include "common.cuh"

#define PATCH_LEN 48  // values of a patch
#define CENTRE_ONE (16 + 4 + 3)  // of the patch: row 1, column 1, the fourth number
// Bytes of a patch in shared memory: 96, padded so that eight rows lie in different banks.
#define PATCH_PITCH 112

// Sizes of a launch.
struct FirstShape {
  int images;       // of the batch
  int side;         // of the input plane
  int windows;      // per row and column: side / 2, or ceil(side / 2) in patch_moments
  Divider divider;  // by `windows`
};

// A window: its image, row and column among the windows. If `exists` is false, the others are those of the last window,
// so that reading is safe.
struct FirstWindow {
  int image, row, column;
  bool exists;
};
// Window number `index` of the batch, in the order image, row, column.
DEVICE FirstWindow first_window(int index, FirstShape shape) {
  const int total = shape.images * shape.windows * shape.windows, clamped = min(index, total - 1);
  const int row = divide(shape.divider, clamped), image = divide(shape.divider, row);
  FirstWindow w;
  w.image = image;
  w.row = row - image * shape.windows;
  w.column = clamped - row * shape.windows;
  w.exists = index < total;
  return w;
}

// The A fragments of the four rows of pixels that a window's patches touch: rows[y] belongs to pixel row 2 * w.row - 1
// + y. The patches of the upper pixels are rows 0 to 2, those of the lower ones rows 1 to 3. rows[y][i] is word quad +
// 2 i of a row of pixels, counted from the pixel left of the window; a word is two f16, so a position has two. i = 0, 2
// are of the left pixel's patch (its numbers 0 to 7 and 8 to 15), i = 1, 3 of the right one's, one position further.
DEVICE void load_patch_rows(const u32* image, FirstWindow w, int side, int quad, u32 rows[4][4]) {
  const int pitch = side + 1;
  const long first = plane_position(w.image, 2 * w.row, 2 * w.column, pitch);
#pragma unroll
  for (int y = 0; y < 4; y++)
#pragma unroll
    for (int i = 0; i < 4; i++) rows[y][i] = image[(first + (y - 1) * pitch - 1) * 2 + quad + 2 * i];
}

// Writes the 32 patches of a warp's 8 windows (4 pixels each) to shared memory, [32][PATCH_PITCH bytes], in the order
// [upper, lower pixel][left, right pixel][window]; y, x and group number them in the code. Patches of pixels outside
// the image (odd sides, windows that do not exist) are zero, so they add nothing to sums.
DEVICE void store_patches(u8* patches, FirstWindow w, int side, int group, int quad, const u32 rows[4][4]) {
#pragma unroll
  for (int y = 0; y < 2; y++)
#pragma unroll
    for (int k = 0; k < 3; k++)
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int x = i & 1;
        const bool inside = w.exists && 2 * w.row + y < side && 2 * w.column + x < side;
        *(u32*)(patches + (y * 16 + x * 8 + group) * PATCH_PITCH + k * 32 + (i >> 1) * 16 + quad * 4) =
            inside ? rows[k + y][i] : 0u;
      }
}

// Adds the fragments `sums` of the 8 warps of a block, one warp after the other so that the order is fixed, and then
// exactly (`add_exactly`) to `total`, [16 M][48]: with M = 3 the moments, with M = 4 d_patches. scratch: [16 M][48]
// floats in shared memory. Contains barriers.
template <int M> DEVICE void add_patch_products(const float sums[M][6][4], float* scratch, i64* total) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane >> 2, quad = lane & 3;
  for (int turn = 0; turn < 8; turn++) {
    if (warp == turn)
#pragma unroll
      for (int m = 0; m < M; m++)
#pragma unroll
        for (int n = 0; n < 6; n++)
#pragma unroll
          for (int i = 0; i < 4; i++) {
            float* sum = scratch + (m * 16 + (i >> 1) * 8 + group) * PATCH_LEN + n * 8 + 2 * quad + (i & 1);
            *sum = (turn ? *sum : 0.f) + sums[m][n][i];
          }
    __syncthreads();
  }
  for (int i = threadIdx.x; i < M * 16 * PATCH_LEN; i += 256) add_exactly(total + i, scratch[i]);
}

// moments = sum over all pixels of patch_i patch_j. Here shape.windows = ceil(side / 2), because the pixels of an odd
// last row and column count, too. Grid: any number of blocks of 256 threads; a warp has every (8 * blocks)-th group of
// 8 windows. Shared memory: per warp its 32 patches, read transposed as both operands: patches^T patches with the 32
// patches as inner dimension.
DEVICE void sum_patch_moments(const u32* image, i64* moments, FirstShape shape) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane >> 2, quad = lane & 3;
  u8* patches = dynamic_shared + warp * (32 * PATCH_PITCH);
  const u32 address = shared_address(patches);
  float sums[3][6][4];  // 48 x 48 as 3 x 6 products of 16 x 8
#pragma unroll
  for (int i = 0; i < 72; i++) (&sums[0][0][0])[i] = 0.f;
  const int tasks = (shape.images * shape.windows * shape.windows + 7) / 8;
  for (int task = blockIdx.x * 8 + warp; task < tasks; task += gridDim.x * 8) {
    const FirstWindow w = first_window(task * 8 + group, shape);
    u32 rows[4][4];
    load_patch_rows(image, w, shape.side, quad, rows);
    __syncwarp();
    store_patches(patches, w, shape.side, group, quad, rows);
    __syncwarp();
    // 16 patches at a time. Patches are rows, so both operands are loaded transposed; lane i gives the address of row
    // i % 8 of matrix i / 8 (load_matrices_transposed): the four matrices are 16 patches x 16 numbers of a patch.
#pragma unroll
    for (int k = 0; k < 2; k++) {
      u32 a[3][4], b[3][4];
#pragma unroll
      for (int m = 0; m < 3; m++) {
        load_matrices_transposed(a[m], address + (k * 16 + (lane & 7) + ((lane >> 4) << 3)) * PATCH_PITCH +
                                           (m * 2 + ((lane >> 3) & 1)) * 16);
        load_matrices_transposed(b[m], address + (k * 16 + (lane & 15)) * PATCH_PITCH + (m * 2 + (lane >> 4)) * 16);
      }
#pragma unroll
      for (int m = 0; m < 3; m++)
#pragma unroll
        for (int n = 0; n < 6; n++) mma_f16(sums[m][n], a[m], &b[n >> 1][(n & 1) * 2]);
    }
  }
  __syncthreads();
  add_patch_products<3>(sums, (float*)dynamic_shared, moments);
}
// `sum_patch_moments` for one network (tasks.cu has all kernels of this file for several).
extern "C" __global__ void __launch_bounds__(256, 2)
    patch_moments(const u32* image, i64* moments, FirstShape shape) {
  sum_patch_moments(image, moments, shape);
}

// `norm` and `weighted` from the moments: mean = sum_j w_j moments[CENTRE_ONE][j] / count, E[z z] = w moments w /
// count, with `count` the pixels of the batch; the variance is biased, as in PyTorch. One block of 1024 threads: 16 per
// channel, of which each has 3 of the 48 columns. Shared memory: copies of moments and weights.
DEVICE void compute_first_statistics(const i64* moments, const float* weights, const float* gamma, const float* beta,
                                     float* norm, float* weighted, float count) {
  SHARED float moment[PATCH_LEN * PATCH_LEN], weight[CHANNELS * PATCH_LEN];
  for (int i = threadIdx.x; i < PATCH_LEN * PATCH_LEN; i += 1024) moment[i] = (float)exact_sum(moments[i]);
  for (int i = threadIdx.x; i < CHANNELS * PATCH_LEN; i += 1024) weight[i] = weights[i];
  __syncthreads();
  const int channel = threadIdx.x >> 4, lane = threadIdx.x & 15;
  float square = 0.f, sum = 0.f;
  for (int part = 0; part < 3; part++) {
    const int j = part * 16 + lane;
    float product = 0.f;
    for (int i = 0; i < PATCH_LEN; i++) product += weight[channel * PATCH_LEN + i] * moment[i * PATCH_LEN + j];
    weighted[channel * PATCH_LEN + j] = product;
    square += product * weight[channel * PATCH_LEN + j];
    sum += weight[channel * PATCH_LEN + j] * moment[CENTRE_ONE * PATCH_LEN + j];
  }
  for (int distance = 1; distance < 16; distance <<= 1) {
    square += __shfl_xor_sync(FULL_WARP, square, distance);
    sum += __shfl_xor_sync(FULL_WARP, sum, distance);
  }
  if (lane == 0) {
    const float mean = sum / count, inverse_std = rsqrtf(fmaxf(square / count - mean * mean, 0.f) + EPSILON);
    const float scale = gamma[channel] * inverse_std;
    norm[channel] = scale;
    norm[CHANNELS + channel] = beta[channel] - mean * scale;
    norm[2 * CHANNELS + channel] = mean;
    norm[3 * CHANNELS + channel] = inverse_std;
  }
}
// `compute_first_statistics` for one network.
extern "C" __global__ void __launch_bounds__(1024)
    first_statistics(const i64* moments, const float* weights, const float* gamma, const float* beta, float* norm,
                     float* weighted, float count) {
  compute_first_statistics(moments, weights, gamma, beta, norm, weighted, count);
}

// y = max over the window of relu(scale z + shift). Grid: any number of blocks of 256 threads; a warp has every (8 *
// blocks)-th group of 8 windows and keeps all filters in registers. No shared memory. A window that does not exist is
// computed as a copy of the last one (`first_window`) and writes the same values to the same place.
DEVICE void compute_first_forward(const u32* image, const uint2* filters, const float* norm, uint4* y, FirstShape shape) {
  const int lane = threadIdx.x & 31, group = lane >> 2, quad = lane & 3;
  u32 b[3][8][2];
  float scale[16], shift[16];
#pragma unroll
  for (int k = 0; k < 3; k++)
#pragma unroll
    for (int n = 0; n < 8; n++) {
      const uint2 pair = filters[(k * 8 + n) * 32 + lane];
      b[k][n][0] = pair.x;
      b[k][n][1] = pair.y;
    }
#pragma unroll
  for (int i = 0; i < 16; i++) {
    scale[i] = norm[quad * 16 + i];
    shift[i] = norm[CHANNELS + quad * 16 + i];
  }
  const int tasks = (shape.images * shape.windows * shape.windows + 7) / 8;
  for (int task = blockIdx.x * 8 + (threadIdx.x >> 5); task < tasks; task += gridDim.x * 8) {
    const FirstWindow w = first_window(task * 8 + group, shape);
    u32 rows[4][4];
    load_patch_rows(image, w, shape.side, quad, rows);
    // [upper, lower pixel][fragment n][i]: i = 0, 1 are channels 16 quad + 2 n and + 1 of the left pixel, 2, 3 of the
    // right one. k is the row of the patch.
    float z[2][8][4];
#pragma unroll
    for (int i = 0; i < 64; i++) (&z[0][0][0])[i] = 0.f;
#pragma unroll
    for (int k = 0; k < 3; k++)
#pragma unroll
      for (int n = 0; n < 8; n++) {
        mma_f16(z[0][n], rows[k], b[k][n]);
        mma_f16(z[1][n], rows[k + 1], b[k][n]);
      }
    u32 pairs[8];
#pragma unroll
    for (int n = 0; n < 8; n++) {
      float best[2];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const float s = scale[2 * n + i], t = shift[2 * n + i];
        const float upper = fmaxf(z[0][n][i] * s + t, z[0][n][2 + i] * s + t);
        const float lower = fmaxf(z[1][n][i] * s + t, z[1][n][2 + i] * s + t);
        best[i] = fmaxf(fmaxf(upper, lower), 0.f);
      }
      pairs[n] = pack_half2(best[0], best[1]);
    }
    uint4* to = y + plane_position(w.image, w.row, w.column, shape.windows + 1) * 8 + quad * 2;
    to[0] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    to[1] = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
  }
}
// `compute_first_forward` for one network.
extern "C" __global__ void __launch_bounds__(256, 1)
    first_forward(const u32* image, const uint2* filters, const float* norm, uint4* y, FirstShape shape) {
  compute_first_forward(image, filters, norm, y, shape);
}

// Shared memory of first_backward.
#define FIRST_BACKWARD_FILTERS (3 * 8 * 32 * 8)  // bytes of the filters
#define FIRST_BACKWARD_HEADER 8192  // bytes of filters, scale and shift (6656), rounded up
// d_patches[c][j] = sum over pixels of dy[c] patch_j. Where the maximum of a window is, which alone has a gradient, is
// found again from the image. Grid: any number of blocks of 256 threads, as in the forward pass. Shared memory:
// filters, scale and shift; then per warp [32 pixels][64 channels] of dy (swizzled, f16) and the 32 patches, in the
// same order of pixels (`store_patches`). Their product, with the pixels as inner dimension, is the sum. At the end,
// the memory after the header holds the sums of the warps.
DEVICE void compute_first_backward(const u32* image, const uint2* filters, const float* norm, const uint4* dy,
                                   i64* d_patches, FirstShape shape) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane >> 2, quad = lane & 3;
  uint2* shared_filters = (uint2*)dynamic_shared;
  float* shared_norm = (float*)(dynamic_shared + FIRST_BACKWARD_FILTERS);
  u8* d_rows = dynamic_shared + FIRST_BACKWARD_HEADER + warp * (32 * 128);
  u8* patches = dynamic_shared + FIRST_BACKWARD_HEADER + 8 * (32 * 128) + warp * (32 * PATCH_PITCH);
  const u32 d_address = shared_address(d_rows), patch_address = shared_address(patches);
  for (int i = threadIdx.x; i < 3 * 8 * 32; i += 256) shared_filters[i] = filters[i];
  if (threadIdx.x < 2 * CHANNELS) shared_norm[threadIdx.x] = norm[threadIdx.x];
  __syncthreads();
  float sums[4][6][4];  // 64 x 48 as 4 x 6 products of 16 x 8
#pragma unroll
  for (int i = 0; i < 96; i++) (&sums[0][0][0])[i] = 0.f;
  const int tasks = (shape.images * shape.windows * shape.windows + 7) / 8;
  for (int task = blockIdx.x * 8 + warp; task < tasks; task += gridDim.x * 8) {
    const FirstWindow w = first_window(task * 8 + group, shape);
    u32 rows[4][4];
    load_patch_rows(image, w, shape.side, quad, rows);
    const uint4* from = dy + plane_position(w.image, w.row, w.column, shape.windows + 1) * 8 + quad * 2;
    const uint4 zero = make_uint4(0, 0, 0, 0);
    const uint4 chunks[2] = {w.exists ? from[0] : zero, w.exists ? from[1] : zero};
    __syncwarp();
    store_patches(patches, w, shape.side, group, quad, rows);
    // 8 of the thread's 16 channels at a time: z again, the maximum of each window, and dy at its pixel.
#pragma unroll
    for (int half = 0; half < 2; half++) {
      float z[2][4][4];  // as in `compute_first_forward`, 4 of the 8 fragments
#pragma unroll
      for (int i = 0; i < 32; i++) (&z[0][0][0])[i] = 0.f;
#pragma unroll
      for (int k = 0; k < 3; k++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
          const uint2 pair = shared_filters[(k * 8 + half * 4 + n) * 32 + lane];
          const u32 b[2] = {pair.x, pair.y};
          mma_f16(z[0][n], rows[k], b);
          mma_f16(z[1][n], rows[k + 1], b);
        }
      float d[8];
      unpack8(chunks[half], d);
      u32 pairs[4][4];  // [pixel][pair of channels]
#pragma unroll
      for (int n = 0; n < 4; n++) {
        float gradients[4][2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const int c = quad * 16 + half * 8 + 2 * n + i;
          const float s = shared_norm[c], t = shared_norm[CHANNELS + c];
          const float pixels[4] = {z[0][n][i] * s + t, z[0][n][2 + i] * s + t, z[1][n][i] * s + t, z[1][n][2 + i] * s + t};
          float best = 0.f;
          int argmax = -1;
#pragma unroll
          for (int pixel = 0; pixel < 4; pixel++)
            if (pixels[pixel] > best) {
              best = pixels[pixel];
              argmax = pixel;
            }
#pragma unroll
          for (int pixel = 0; pixel < 4; pixel++) gradients[pixel][i] = argmax == pixel ? d[2 * n + i] : 0.f;
        }
#pragma unroll
        for (int pixel = 0; pixel < 4; pixel++) pairs[pixel][n] = pack_half2(gradients[pixel][0], gradients[pixel][1]);
      }
#pragma unroll
      for (int pixel = 0; pixel < 4; pixel++) {
        const int row = (pixel >> 1) * 16 + (pixel & 1) * 8 + group;
        *(uint4*)(d_rows + swizzled(row, quad * 2 + half)) =
            make_uint4(pairs[pixel][0], pairs[pixel][1], pairs[pixel][2], pairs[pixel][3]);
      }
    }
    __syncwarp();
#pragma unroll
    for (int k = 0; k < 2; k++) {
      // d_patches += dy^T patches, 16 pixels at a time; loaded transposed as in `sum_patch_moments`.
      u32 a[4][4], b[3][4];
#pragma unroll
      for (int m = 0; m < 4; m++)
        load_matrices_transposed(
            a[m], d_address + swizzled(k * 16 + (lane & 7) + ((lane >> 4) << 3), m * 2 + ((lane >> 3) & 1)));
#pragma unroll
      for (int m = 0; m < 3; m++)
        load_matrices_transposed(b[m], patch_address + (k * 16 + (lane & 15)) * PATCH_PITCH + (m * 2 + (lane >> 4)) * 16);
#pragma unroll
      for (int m = 0; m < 4; m++)
#pragma unroll
        for (int n = 0; n < 6; n++) mma_f16(sums[m][n], a[m], &b[n >> 1][(n & 1) * 2]);
    }
  }
  __syncthreads();
  add_patch_products<4>(sums, (float*)(dynamic_shared + FIRST_BACKWARD_HEADER), d_patches);
}
// `compute_first_backward` for one network.
extern "C" __global__ void __launch_bounds__(256, 1)
    first_backward(const u32* image, const uint2* filters, const float* norm, const uint4* dy, i64* d_patches,
                   FirstShape shape) {
  compute_first_backward(image, filters, norm, dy, d_patches, shape);
}
