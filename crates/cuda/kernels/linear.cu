// Products of activations with weights, for a whole thread block: y[rows][outputs] = x[rows][inputs] w[inputs][outputs].
//
//   x        f32, [rows rounded up to 16][pitch], in shared or global memory. Columns up to the next multiple of 16 exist and are zero.
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

// Starts to load weights into the L1 cache, by a whole thread block.
DEVICE void prefetch_weights(const uint4* weights, int inputs, int outputs) {
  const int len = ((outputs + 7) >> 3) * ((inputs + 15) >> 4) * 512;
  for (int at = threadIdx.x * 128; at < len; at += blockDim.x * 128) prefetch((const u8*)weights + at);
}

// The same for a part of the inputs; `tile_steps` as in `multiply`.
DEVICE void prefetch_weight_part(const uint4* weights, int tile_steps, int inputs, int outputs) {
  const int lines = ((inputs + 15) >> 4) * 4, tiles = (outputs + 7) >> 3;
  for (int tile = threadIdx.x >> 5; tile < tiles; tile += blockDim.x >> 5)
    for (int line = threadIdx.x & 31; line < lines; line += 32) prefetch((const u8*)(weights + (long)tile * tile_steps * 32) + line * 128);
}

// y = x w + bias (null: none) for the first `rows` rows. A warp computes 16 rows and TILES tiles of 8 outputs at a time.
// `tile_steps`: ceil(inputs / 16) of the packed matrix, of which `weights` may be a part. Contains no barrier.
template <bool SHARED_X, bool SHARED_Y, int TILES = 2>
SEPARATE void multiply(const float* x, int pitch, int rows, const uint4* weights, int tile_steps, int inputs, int outputs,
                       const float* bias, float* y, int y_pitch) {
  if (SHARED_X) ASSUME_SHARED(x);
  if (SHARED_Y) ASSUME_SHARED(y);
  const int warp = threadIdx.x >> 5, warps = blockDim.x >> 5, lane = threadIdx.x & 31, group = lane >> 2, quad = lane & 3;
  const int steps = (inputs + 15) >> 4, row_tiles = (rows + 15) >> 4, tiles = (outputs + 7) >> 3;
  const int units = (tiles + TILES - 1) / TILES * row_tiles;
  if (warp >= units) return;
  // The weights of the next part of the work are loaded before those of the current part are used.
  uint4 w[TILES][STEPS_AT_ONCE], next[TILES][STEPS_AT_ONCE];
  auto load = [&](uint4 (*to)[STEPS_AT_ONCE], int unit, int first) {
    const int tile = unit / row_tiles * TILES;
#pragma unroll
    for (int i = 0; i < TILES; i++)
      load_weights(to[i], weights + ((long)(tile + i) * tile_steps + first) * 32, tile + i < tiles ? steps - first : 0);
  };
  float acc[TILES][2][4] = {};
  int unit = warp, first = 0;
  load(w, unit, first);
#pragma unroll 1
  while (unit < units) {
    const int tile = unit / row_tiles * TILES, row = unit % row_tiles * 16;
    const bool is_last = first + STEPS_AT_ONCE >= steps;
    const int next_unit = is_last ? unit + warps : unit, next_first = is_last ? 0 : first + STEPS_AT_ONCE;
    if (next_unit < units) load(next, next_unit, next_first);
    const float* own = x + (row + group) * pitch + first * 16 + quad;
#pragma unroll
    for (int step = 0; step < STEPS_AT_ONCE; step++) {
      if (first + step >= steps) break;
      const float *a = own + step * 16, *b = a + 8 * pitch;
      const u32 low[4] = {tf32_operand(a[0]), tf32_operand(b[0]), tf32_operand(a[4]), tf32_operand(b[4])};
      const u32 high[4] = {tf32_operand(a[8]), tf32_operand(b[8]), tf32_operand(a[12]), tf32_operand(b[12])};
#pragma unroll
      for (int i = 0; i < TILES; i++) {
        const u32 w_low[2] = {w[i][step].x, w[i][step].y}, w_high[2] = {w[i][step].z, w[i][step].w};
        mma_tf32(acc[i][0], low, w_low);
        mma_tf32(acc[i][1], high, w_high);
      }
    }
    if (is_last) {
#pragma unroll
      for (int i = 0; i < TILES; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const int at = row + group + (j >> 1) * 8, output = (tile + i) * 8 + quad * 2 + (j & 1);
          if (at < rows && output < outputs)
            y[(long)at * y_pitch + output] = acc[i][0][j] + acc[i][1][j] + (bias ? bias[output] : 0.f);
          acc[i][0][j] = acc[i][1][j] = 0.f;
        }
    }
    unit = next_unit;
    first = next_first;
#pragma unroll
    for (int i = 0; i < TILES; i++)
#pragma unroll
      for (int step = 0; step < STEPS_AT_ONCE; step++) w[i][step] = next[i][step];
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
