// Layer norm with residual connection and dropout, as TraNFS uses it, forward and backward: functions that a whole
// thread block calls, one warp per row. crates/nn/src/layers/layer_norm.rs has the formulas.
//
//   normalised   [rows][width] f32: (x - mean) / std of each row. Kept for the backward pass, like inverse_std.
//   inverse_std  [rows] f32: 1 / std of each row
//
// The kernels of tranfs.cu call these functions; negmargin.cu uses `warp_sum`.
#pragma once
#include "dropout.cu"

// Sum over the 32 lanes of a warp, the same in each.
DEVICE float warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance; distance >>= 1) value += __shfl_xor_sync(FULL_WARP, value, distance);
  return value;
}


// x <- norm(x + dropout(y + bias)), which is also written to `out`; norm(v) = (v - mean) / std * scale + shift.
//   x, y                          [rows][pitch]; pitch is the distance between rows in floats
//   parameters                    [3][width]: bias, scale, shift
//   index                         the number of the first element in the dropout mask
//   normalised, inverse_std, out  global memory, [rows][width], [rows] and [rows][width]
// IN_SHARED: x, y and parameters are in shared memory. Contains no barrier: a row is the work of one warp.
template <bool IN_SHARED>
SEPARATE void add_and_normalise(float* x, const float* y, int pitch, int rows, int width, const float* parameters, DropoutMask mask,
                                u32 index, float* normalised, float* inverse_std, float* out) {
  if (IN_SHARED) {
    ASSUME_SHARED(x);
    ASSUME_SHARED(y);
    ASSUME_SHARED(parameters);
  }
  const int lane = threadIdx.x & 31;
  const float inverse_width = 1.f / width;
#pragma unroll 2
  for (int row = threadIdx.x >> 5; row < rows; row += blockDim.x >> 5) {
    float *own = x + row * pitch, sum = 0.f, square = 0.f;
    const float* added = y + row * pitch;
#pragma unroll 4
    for (int column = lane; column < width; column += 32) {
      const float value = own[column] + dropout_factor(mask, index + row * width + column) * (added[column] + parameters[column]);
      own[column] = value;
      sum += value;
    }
    const float mean = warp_sum(sum) * inverse_width;
#pragma unroll 4
    for (int column = lane; column < width; column += 32) square += (own[column] - mean) * (own[column] - mean);
    const float inverse = 1.f / sqrtf(warp_sum(square) * inverse_width + EPSILON);
#pragma unroll 4
    for (int column = lane; column < width; column += 32) {
      const float result = (own[column] - mean) * inverse;
      const float value = result * parameters[width + column] + parameters[2 * width + column];
      normalised[(long)row * width + column] = result;
      out[(long)row * width + column] = value;
      own[column] = value;
    }
    if (lane == 0) inverse_std[row] = inverse;
  }
}

// The backward pass. d, the gradient of the norm's output, becomes that of its input x + dropout(y + bias):
//   (1 / std) * (g - mean(g) - normalised * mean(g * normalised)),   g = d * scale,
// which is also written to `d_input` [rows][width] unless that is null. Times the dropout mask it is the gradient of y
// + bias, written to `passed` and `d_passed`.
//   d, normalised, passed  [rows][pitch]
//   scale                  [width]
//   d_input, d_passed      [rows][width], global memory
// IN_SHARED: d, normalised, passed and scale are in shared memory. Contains no barrier.
template <bool IN_SHARED>
SEPARATE void normalise_backward(float* d, const float* normalised, int pitch, int rows, int width, const float* inverse_std,
                                 const float* scale, DropoutMask mask, u32 index, float* d_input, float* passed, float* d_passed) {
  if (IN_SHARED) {
    ASSUME_SHARED(d);
    ASSUME_SHARED(normalised);
    ASSUME_SHARED(scale);
    ASSUME_SHARED(passed);
  }
  const int lane = threadIdx.x & 31;
  const float inverse_width = 1.f / width;
#pragma unroll 2
  for (int row = threadIdx.x >> 5; row < rows; row += blockDim.x >> 5) {
    float *own = d + row * pitch, sum = 0.f, product = 0.f;
    const float *values = normalised + row * pitch, inverse = inverse_std[row];
#pragma unroll 4
    for (int column = lane; column < width; column += 32) {
      const float value = own[column] * scale[column];
      own[column] = value;
      sum += value;
      product += value * values[column];
    }
    const float mean = warp_sum(sum) * inverse_width, slope = warp_sum(product) * inverse_width;
#pragma unroll 4
    for (int column = lane; column < width; column += 32) {
      const float value = inverse * (own[column] - mean - values[column] * slope);
      const float through = value * dropout_factor(mask, index + row * width + column);
      own[column] = value;
      if (d_input) d_input[(long)row * width + column] = value;
      passed[row * pitch + column] = through;
      d_passed[(long)row * width + column] = through;
    }
  }
}
