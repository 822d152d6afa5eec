// Layer norm of rows, one warp per row (crates/nn/src/layers/layer_norm.rs has the formulas).
//
//   normalised   [rows][width], inverse_std [rows]: kept for the backward pass
//   parameters   [2][width]: scale, then shift
#pragma once
#include "dropout.cu"

DEVICE float warp_sum(float value) {
#pragma unroll
  for (int distance = 16; distance; distance >>= 1) value += __shfl_xor_sync(FULL_WARP, value, distance);
  return value;
}


// x becomes the layer norm of x + dropout(y + bias), which is also written to `out`. x, y: [rows][pitch]; out:
// [rows][width]. `index` is the position of the first number in the dropout mask. parameters: bias, scale, shift. IN_SHARED:
// x, y and parameters are in shared memory.
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

// d, the gradient of a norm's output, becomes that of its input, which is also written to `d_input` [rows][width] unless
// that is null. The gradient after dropout is written to `passed` and `d_passed` [rows][width]. d, normalised, passed:
// [rows][pitch]. IN_SHARED: they and scale are in shared memory.
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
