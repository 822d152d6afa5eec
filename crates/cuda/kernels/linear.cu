// Products of activations with weights, y[rows][outputs] = x[rows][inputs] w[inputs][outputs], as functions that a
// whole thread block calls; and copies of rows to shared memory. Used by the kernels of TraNFS.
//
//   x  f32, [rows rounded up to 8][pitch], in shared or global memory. Columns up to the next multiple of 16 exist and
//      are zero. The pitch is that of `pitch_of`, which spreads eight rows over all banks of shared memory.
//   w  "packed": in the order in which the lanes of a warp hold the fragments of mma_tf32 (common.cuh), as TF32:
//      [ceil(outputs / 8)][ceil(inputs / 16)][32 lanes] x 16 bytes, zeros outside of the matrix. Lane 4 (n % 8) + k % 4
//      has inputs k, k + 4, k + 8 and k + 12 of output n. So a lane reads the fragments of 16 inputs with one load, and
//      a warp reads 512 adjacent bytes.
//   y  f32, [rows][y_pitch], in shared or global memory
//
// A backward pass needs the transposed weights; they are packed the same way, in a copy of their own. `pack_tile` in
// tranfs_update.cu packs weights after every update.
#pragma once
#include "common.cuh"

// Columns of a long row (of D features) that one thread block handles.
#define CHUNK 128
// Steps of 16 inputs whose weights a warp loads at once.
#define STEPS_AT_ONCE 8

// Floats from one row of `width` numbers to the next: rounded up to 16, and 4 more so that rows begin in different
// banks.
DEVICE int pitch_of(int width) { return ((width + 15) & ~15) + 4; }

// The weights of up to STEPS_AT_ONCE steps of one tile of 8 outputs; zeros for steps that do not exist.
DEVICE void load_weights(uint4* w, const uint4* weights, int steps) {
#pragma unroll
  for (int step = 0; step < STEPS_AT_ONCE; step++)
    w[step] = step < steps ? weights[step * 32 + (threadIdx.x & 31)] : make_uint4(0, 0, 0, 0);
}

// Rows of x that one matrix instruction takes.
#define ROW_TILE 8

// y = x w + bias (null: none) for the first `rows` rows, by all warps of the thread block. A warp computes units of 8
// rows and 16 outputs (two packed tiles of 8), and takes every `warps`-th unit. The weights are the left factor of the
// matrix instruction, with 16 outputs, and the rows the right one, with 8, so that few rows fill an instruction.
// tile_steps: ceil(inputs / 16) of the whole packed matrix; `weights` may begin within it and `inputs` be fewer, for a
// part of the sum. AHEAD: the weights of the next part of the work are loaded before those of the current part are
// used, which needs more registers. WARPS: warps of the thread block, if known when compiling, else 0. SHARED_X,
// SHARED_Y: x and y are in shared memory. Contains no barrier: one must be before (x) and after (y).
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
  uint4 w[2][STEPS_AT_ONCE], next[2][STEPS_AT_ONCE];
  // Loads both tiles of 8 outputs of a unit.
  auto load = [&](uint4 (*to)[STEPS_AT_ONCE], int unit, int first) {
    const int tile = unit / row_tiles * 2;
    load_weights(to[0], weights + ((long)tile * tile_steps + first) * 32, steps - first);
    load_weights(to[1], weights + ((long)(tile + 1) * tile_steps + first) * 32, tile + 1 < tiles ? steps - first : 0);
  };
  float acc[2][4] = {};
  // `unit`: the current 8 rows x 16 outputs; `first`: the first of the current STEPS_AT_ONCE steps.
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
      // Inputs quad, quad + 4 and quad + 8, quad + 12 of the step: the order in which the weights are packed. Each half
      // of the step has an accumulator; they are added at the end.
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

// Starts to copy `rows` rows of `width` adjacent numbers of global memory to rows `pitch` apart; `finish_copies` and a
// barrier must follow. IN_SHARED: `to` is in shared memory; then copies are asynchronous.
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
// Waits for all copies that this thread started.
DEVICE void finish_copies() {
  commit_copies();
  wait_for_copies<0>();
}

// Starts to copy `width` numbers to a row in shared memory, by one warp. in_fours: both addresses are multiples of 16
// bytes.
DEVICE void copy_row(float* to, const float* from, int width, bool in_fours) {
  const int lane = threadIdx.x & 31;
  if (in_fours)
#pragma unroll 4
    for (int column = lane * 4; column < width; column += 128) copy_async(shared_address(to + column), from + column);
  else
    for (int column = lane; column < width; column += 32) copy_word_async(shared_address(to + column), from + column);
}

// Writes x[row][column] = load(row, column), one warp per row, with zeros in the columns up to a multiple of 16, as
// `multiply` needs them. Pitch: pitch_of(width).
template <class Load> DEVICE void stage_rows(float* x, int rows, int width, Load load) {
  const int lane = threadIdx.x & 31, padded = (width + 15) & ~15, pitch = pitch_of(width);
  for (int row = threadIdx.x >> 5; row < rows; row += blockDim.x >> 5)
#pragma unroll 4
    for (int column = lane; column < padded; column += 32) x[row * pitch + column] = column < width ? load(row, column) : 0.f;
}
