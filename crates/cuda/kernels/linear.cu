// Products of activations with weights, for a whole thread block: y[rows][outputs] = x[rows][inputs] w[inputs][outputs].
//
//   x        f32, [rows rounded up to 8][pitch], in shared or global memory. Columns up to the next multiple of 16 exist and are zero.
//            The pitch is that of `pitch_of`, which spreads eight rows over all banks.
//   w        "packed": the fragments of mma.m16n8k8 as TF32, [ceil(outputs / 8)][ceil(inputs / 16)][32 lanes] x 16 bytes,
//            zeros outside. Lane 4 (n % 8) + k % 4 has inputs k, k + 4, k + 8 and k + 12 of output n. A lane reads the
//            fragments of 16 inputs with one load, and a warp reads 512 adjacent bytes.
//   y        f32, [rows][pitch], in shared or global memory
//
// The transposed weights that a backward pass needs are packed the same way, in a copy of their own.
#pragma once
#include "common.cuh"

// Columns of a long row that one thread block handles.
#define CHUNK 128
// Steps of 16 inputs whose weights a warp loads at once.
#define STEPS_AT_ONCE 8

// Words from one row of `width` numbers to the next.
DEVICE int pitch_of(int width) { return ((width + 15) & ~15) + 4; }

// The weights of up to STEPS_AT_ONCE steps of one tile of 8 outputs.
DEVICE void load_weights(uint4* w, const uint4* weights, int steps) {
#pragma unroll
  for (int step = 0; step < STEPS_AT_ONCE; step++)
    w[step] = step < steps ? weights[step * 32 + (threadIdx.x & 31)] : make_uint4(0, 0, 0, 0);
}

// Rows of a tile.
#define ROW_TILE 8

// y = x w + bias (null: none) for the first `rows` rows. A warp computes 8 rows and 16 outputs at a time; the weights are the left
// factor of the matrix instruction, so that few rows suffice. `tile_steps`: ceil(inputs / 16) of the packed matrix, of which
// `weights` may be a part. WARPS: warps of the thread block, if known. Contains no barrier.
template <bool SHARED_X, bool SHARED_Y, bool AHEAD = true, int WARPS = 0>
SEPARATE void multiply(const float* x, int pitch, int rows, const uint4* weights, int tile_steps, int inputs, int outputs,
                       const float* bias, float* y, int y_pitch) {
  if (SHARED_X) ASSUME_SHARED(x);
  if (SHARED_Y) ASSUME_SHARED(y);
  const int warp = threadIdx.x >> 5, warps = WARPS ? WARPS : blockDim.x >> 5;
  const int lane = threadIdx.x & 31, group = lane >> 2, quad = lane & 3;
  const int steps = (inputs + 15) >> 4, row_tiles = (rows + ROW_TILE - 1) / ROW_TILE, tiles = (outputs + 7) >> 3;
  const int units = ((tiles + 1) >> 1) * row_tiles;
  if (warp >= units) return;
  // AHEAD: the weights of the next part of the work are loaded before those of the current part are used.
  uint4 w[2][STEPS_AT_ONCE], next[2][STEPS_AT_ONCE];
  auto load = [&](uint4 (*to)[STEPS_AT_ONCE], int unit, int first) {
    const int tile = unit / row_tiles * 2;
    load_weights(to[0], weights + ((long)tile * tile_steps + first) * 32, steps - first);
    load_weights(to[1], weights + ((long)(tile + 1) * tile_steps + first) * 32, tile + 1 < tiles ? steps - first : 0);
  };
  float acc[2][4] = {};
  int unit = warp, first = 0;
  load(w, unit, first);
#pragma unroll 1
  while (unit < units) {
    const int output = unit / row_tiles * 16 + group, row = unit % row_tiles * ROW_TILE;
    const bool is_last = first + STEPS_AT_ONCE >= steps;
    const int next_unit = is_last ? unit + warps : unit, next_first = is_last ? 0 : first + STEPS_AT_ONCE;
    if (AHEAD && next_unit < units) load(next, next_unit, next_first);
    const float* own = x + (row + group) * pitch + first * 16 + quad;
#pragma unroll
    for (int step = 0; step < STEPS_AT_ONCE; step++) {
      if (first + step >= steps) break;
      const float* from = own + step * 16;
      const u32 low[2] = {tf32_operand(from[0]), tf32_operand(from[4])}, high[2] = {tf32_operand(from[8]), tf32_operand(from[12])};
      const u32 w_low[4] = {w[0][step].x, w[1][step].x, w[0][step].y, w[1][step].y};
      const u32 w_high[4] = {w[0][step].z, w[1][step].z, w[0][step].w, w[1][step].w};
      mma_tf32(acc[0], w_low, low);
      mma_tf32(acc[1], w_high, high);
    }
    if (is_last) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int at = row + quad * 2 + (i & 1), own_output = output + (i >> 1) * 8;
        if (at < rows && own_output < outputs)
          y[(long)at * y_pitch + own_output] = acc[0][i] + acc[1][i] + (bias ? bias[own_output] : 0.f);
        acc[0][i] = acc[1][i] = 0.f;
      }
    }
    unit = next_unit;
    first = next_first;
    if constexpr (AHEAD) {
#pragma unroll
      for (int step = 0; step < STEPS_AT_ONCE; step++) {
        w[0][step] = next[0][step];
        w[1][step] = next[1][step];
      }
    } else if (unit < units) {
      load(w, unit, first);
    }
  }
}

// Starts to copy `rows` rows of `width` adjacent numbers; `finish_copies` and a barrier must follow.
template <bool IN_SHARED> SEPARATE void copy_rows(float* to, int pitch, const float* from, int rows, int width) {
  if (IN_SHARED) ASSUME_SHARED(to);
  const int lane = threadIdx.x & 31;
  for (int row = threadIdx.x >> 5; row < rows; row += blockDim.x >> 5)
    if (!IN_SHARED) {
      for (int column = lane; column < width; column += 32) to[row * pitch + column] = from[(long)row * width + column];
    } else if (width % 4 == 0) {
      for (int column = lane * 4; column < width; column += 128)
        copy_async(shared_address(to + row * pitch + column), from + (long)row * width + column);
    } else {
      for (int column = lane; column < width; column += 32)
        copy_word_async(shared_address(to + row * pitch + column), from + (long)row * width + column);
    }
}
DEVICE void finish_copies() {
  commit_copies();
  wait_for_copies<0>();
}

// Starts to copy `width` numbers to a row in shared memory, by one warp. `in_fours`: both addresses are multiples of 16 bytes.
DEVICE void copy_row(float* to, const float* from, int width, bool in_fours) {
  const int lane = threadIdx.x & 31;
  if (in_fours)
#pragma unroll 4
    for (int column = lane * 4; column < width; column += 128) copy_async(shared_address(to + column), from + column);
  else
    for (int column = lane; column < width; column += 32) copy_word_async(shared_address(to + column), from + column);
}

// Copies rows to x, one warp per row; load(row, column) gives the numbers.
template <class Load> DEVICE void stage_rows(float* x, int rows, int width, Load load) {
  const int lane = threadIdx.x & 31, padded = (width + 15) & ~15, pitch = pitch_of(width);
  for (int row = threadIdx.x >> 5; row < rows; row += blockDim.x >> 5)
#pragma unroll 4
    for (int column = lane; column < padded; column += 32) x[row * pitch + column] = column < width ? load(row, column) : 0.f;
}
