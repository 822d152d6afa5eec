// Layer norm of rows, one warp per row (crates/nn/src/layers/layer_norm.rs has the formulas).
//
//   normalised   [rows][width], inverse_std [rows]: kept for the backward pass
//   scale, shift [width]
#pragma once
#include "common.cuh"

DEVICE float warp_sum(float value) {
  for (int distance = 16; distance; distance >>= 1) value += __shfl_xor_sync(FULL_WARP, value, distance);
  return value;
}

// The number of a row that a lane keeps in registers; rows of more than 32 times as many are read again for every pass.
#define ROW_REGISTERS 4

// One row in the hands of a warp: element i of a lane is column i * 32 + lane.
template <bool SHORT, class Load> struct WarpRow {
  float values[ROW_REGISTERS];
  Load load;
  int width;
  DEVICE WarpRow(int width, Load load) : load(load), width(width) {
    if (SHORT)
#pragma unroll
      for (int i = 0; i < ROW_REGISTERS; i++) {
        const int column = i * 32 + (threadIdx.x & 31);
        values[i] = column < width ? load(column) : 0.f;
      }
  }
  template <class Work> DEVICE void for_each(Work work) const {
    if (SHORT) {
#pragma unroll
      for (int i = 0; i < ROW_REGISTERS; i++) {
        const int column = i * 32 + (threadIdx.x & 31);
        if (column < width) work(column, values[i]);
      }
    } else {
      for (int column = threadIdx.x & 31; column < width; column += 32) work(column, load(column));
    }
  }
};
template <bool SHORT, class Load> DEVICE WarpRow<SHORT, Load> warp_row(int width, Load load) {
  return WarpRow<SHORT, Load>(width, load);
}

// y = normalised * scale + shift. On entry `normalised` holds the input.
template <bool SHORT>
DEVICE void normalise_row(float* normalised, float* inverse_std, const float* scale, const float* shift, float* y, int width) {
  const auto row = warp_row<SHORT>(width, [&](int column) { return normalised[column]; });
  float sum = 0.f, square = 0.f;
  row.for_each([&](int, float value) { sum += value; });
  const float mean = warp_sum(sum) / width;
  row.for_each([&](int, float value) { square += (value - mean) * (value - mean); });
  const float inverse = 1.f / sqrtf(warp_sum(square) / width + EPSILON);
  row.for_each([&](int column, float value) {
    const float result = (value - mean) * inverse;
    normalised[column] = result;
    y[column] = result * scale[column] + shift[column];
  });
  if ((threadIdx.x & 31) == 0) *inverse_std = inverse;
}

// The gradient of the input; done(column, value) receives it.
template <bool SHORT, class Done>
DEVICE void normalise_row_backward(const float* normalised, float inverse_std, const float* scale, const float* d_y, int width,
                                   Done done) {
  const auto row = warp_row<SHORT>(width, [&](int column) { return normalised[column]; });
  const auto d_row = warp_row<SHORT>(width, [&](int column) { return d_y[column] * scale[column]; });
  float sum = 0.f, product = 0.f;
  d_row.for_each([&](int, float d) { sum += d; });
  const float mean = warp_sum(sum) / width;
  if (SHORT) {
#pragma unroll
    for (int i = 0; i < ROW_REGISTERS; i++) product += row.values[i] * d_row.values[i];
  } else {
    row.for_each([&](int column, float value) { product += value * d_row.load(column); });
  }
  const float slope = warp_sum(product) / width;
  if (SHORT) {
#pragma unroll
    for (int i = 0; i < ROW_REGISTERS; i++) {
      const int column = i * 32 + (threadIdx.x & 31);
      if (column < width) done(column, inverse_std * (d_row.values[i] - mean - row.values[i] * slope));
    }
  } else {
    row.for_each([&](int column, float value) { done(column, inverse_std * (d_row.load(column) - mean - value * slope)); });
  }
}

// The same for all rows of a thread block; rows [rows][width].
DEVICE void normalise_rows(float* normalised, float* inverse_std, const float* scale, const float* shift, float* y, int rows,
                           int width) {
  for (int row = threadIdx.x >> 5; row < rows; row += blockDim.x >> 5) {
    const long at = (long)row * width;
    if (width <= 32 * ROW_REGISTERS) normalise_row<true>(normalised + at, inverse_std + row, scale, shift, y + at, width);
    else normalise_row<false>(normalised + at, inverse_std + row, scale, shift, y + at, width);
  }
}

// done(row, column, value) receives the gradient of the input.
template <class Done>
DEVICE void normalise_rows_backward(const float* normalised, const float* inverse_std, const float* scale, const float* d_y,
                                    int rows, int width, Done done) {
  for (int row = threadIdx.x >> 5; row < rows; row += blockDim.x >> 5) {
    const long at = (long)row * width;
    auto finish = [&](int column, float value) { done(row, column, value); };
    if (width <= 32 * ROW_REGISTERS) normalise_row_backward<true>(normalised + at, inverse_std[row], scale, d_y + at, width, finish);
    else normalise_row_backward<false>(normalised + at, inverse_std[row], scale, d_y + at, width, finish);
  }
}
