// Products of activations with weights, for a whole thread block: y[rows][outputs] = x[rows][inputs] w[inputs][outputs].
//
//   x        staged in shared memory as TF32: tiles of 32 rows and 128 inputs, [32][STAGE_PITCH]; the pitch spreads eight
//            rows over all banks
//   w        "packed": the fragments of mma.m16n8k8 as TF32, [ceil(outputs / 8)][ceil(inputs / 16)][32 lanes] x 16 bytes,
//            zeros outside. A lane reads the fragments of 16 inputs with one load, and a warp reads 512 adjacent bytes.
//   y        given to the caller's function element by element, in f32
//
// The transposed weights that a backward pass needs are packed the same way, in a copy of their own.
#pragma once
#include "common.cuh"

#define STAGE_ROWS 32
#define CHUNK 128
#define STAGE_PITCH (CHUNK + 4)
#define STAGE_LEN (STAGE_ROWS * STAGE_PITCH)

// The number of 32-bit words of packed weights before element (k, n). `steps` is ceil(inputs / 16).
DEVICE long packed_index(int k, int n, int steps) {
  return (((long)(n >> 3) * steps + (k >> 4)) * 32 + (n & 7) * 4 + (k & 3)) * 4 + ((k >> 2) & 3);
}

// The fragments of the first steps, loaded before the rows are staged, so that both wait at the same time.
template <int TILES> struct FirstFragments {
  static const int STEPS = TILES == 1 ? 8 : TILES == 2 ? 4 : 2;
  uint4 fragments[TILES][STEPS];
};
template <int TILES>
DEVICE void load_first(FirstFragments<TILES>& first, const uint4* weights, long tile_stride, int tiles, int steps) {
#pragma unroll
  for (int t = 0; t < TILES; t++)
#pragma unroll
    for (int step = 0; step < FirstFragments<TILES>::STEPS; step++)
      if (t < tiles && step < steps) first.fragments[t][step] = weights[t * tile_stride + step * 32 + (threadIdx.x & 31)];
}

// acc[2][4] += 32 staged rows times the fragments of 16 inputs, for each of TILES tiles of 8 outputs. `address`: of the
// inputs of this lane's row in the stage.
template <int TILES> DEVICE void multiply_step(float (*acc)[2][4], u32 address, int rows, const uint4* b) {
#pragma unroll
  for (int m = 0; m < 2; m++) {
    if (m * 16 >= rows) break;
    u32 a[2][4];
    load_matrices(a[0], address + m * 16 * STAGE_PITCH * 4);
    load_matrices(a[1], address + m * 16 * STAGE_PITCH * 4 + 32);
#pragma unroll
    for (int t = 0; t < TILES; t++) {
      const u32 low[2] = {b[t].x, b[t].y}, high[2] = {b[t].z, b[t].w};
      mma_tf32(acc[t][m], a[0], low);
      mma_tf32(acc[t][m], a[1], high);
    }
  }
}

// acc[TILES][2][4] += 32 staged rows times TILES tiles of 8 outputs, `tile_stride` (in 16 bytes) apart.
template <int TILES>
DEVICE void multiply_stage(float (*acc)[2][4], const u32* stage, int rows, const FirstFragments<TILES>& first,
                           const uint4* weights, long tile_stride, int tiles, int steps) {
  const int lane = threadIdx.x & 31;
  const u32 address = shared_address(stage) + ((lane & 15) * STAGE_PITCH + (lane >> 4) * 4) * 4;
  uint4 b[TILES];
#pragma unroll
  for (int step = 0; step < FirstFragments<TILES>::STEPS; step++) {
    if (step >= steps) break;
#pragma unroll
    for (int t = 0; t < TILES; t++) b[t] = t < tiles ? first.fragments[t][step] : make_uint4(0, 0, 0, 0);
    multiply_step<TILES>(acc, address + step * 64, rows, b);
  }
#pragma unroll 2
  for (int step = FirstFragments<TILES>::STEPS; step < steps; step++) {
#pragma unroll
    for (int t = 0; t < TILES; t++)
      b[t] = t < tiles ? weights[t * tile_stride + step * 32 + lane] : make_uint4(0, 0, 0, 0);
    multiply_step<TILES>(acc, address + step * 64, rows, b);
  }
}

// Stages 32 rows and `columns` columns (at most 128, rounded up to whole steps with zeros). load(row, column) gives x.
template <int THREADS, class Load> DEVICE void stage_rows(u32* stage, int rows, int columns, Load load) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, padded = (columns + 15) & ~15, turns = STAGE_ROWS * 32 / THREADS;
  float values[turns][CHUNK / 32];
#pragma unroll
  for (int turn = 0; turn < turns; turn++)
#pragma unroll
    for (int i = 0; i < CHUNK / 32; i++) {
      const int row = turn * (THREADS / 32) + warp, column = i * 32 + lane;
      values[turn][i] = row < rows && column < columns ? load(row, column) : 0.f;
    }
#pragma unroll
  for (int turn = 0; turn < turns; turn++)
#pragma unroll
    for (int i = 0; i < CHUNK / 32; i++) {
      const int row = turn * (THREADS / 32) + warp, column = i * 32 + lane;
      if (column < padded) stage[row * STAGE_PITCH + column] = to_tf32(values[turn][i]);
    }
}

// The product of a thread block. `tile_steps`: ceil(inputs / 16) of the packed matrix, of which `weights` may be a part.
// load(row, input) gives x; store(row, output, value) receives y. A warp computes TILES tiles of 8 outputs at a time. Begins
// with a barrier, so x may have been written just before; does not end with one.
template <int THREADS, int TILES, class Load, class Store>
DEVICE void block_product(u32* stage, int rows, int inputs, int outputs, const uint4* weights, int tile_steps, Load load,
                          Store store) {
  const int warp = threadIdx.x >> 5, warps = THREADS / 32, lane = threadIdx.x & 31, group = lane >> 2, quad = lane & 3;
  const int all_tiles = (outputs + 7) >> 3;
  const long tile_len = (long)tile_steps * 32;
  for (int first_row = 0; first_row < rows; first_row += STAGE_ROWS)
    for (int first_tile = 0; first_tile < all_tiles; first_tile += warps * TILES) {
      const int tile = first_tile + warp, left = rows - first_row;
      const int tiles = tile < all_tiles ? (all_tiles - tile + warps - 1) / warps : 0;
      float acc[TILES][2][4];
#pragma unroll
      for (int i = 0; i < TILES * 8; i++) (&acc[0][0][0])[i] = 0.f;
      for (int start = 0; start < inputs; start += CHUNK) {
        const int columns = min(CHUNK, inputs - start), steps = (columns + 15) >> 4;
        const uint4* part = weights + tile * tile_len + (start >> 4) * 32;
        FirstFragments<TILES> first;
        load_first<TILES>(first, part, warps * tile_len, tiles, steps);
        if (inputs > CHUNK || first_tile == 0) {
          __syncthreads();
          stage_rows<THREADS>(stage, left, columns, [&](int row, int column) { return load(first_row + row, start + column); });
          __syncthreads();
        }
        if (tiles > 0) multiply_stage<TILES>(acc, stage, left, first, part, warps * tile_len, tiles, steps);
      }
#pragma unroll
      for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
          for (int i = 0; i < 4; i++) {
            const int row = m * 16 + group + (i >> 1) * 8, output = (tile + t * warps) * 8 + quad * 2 + (i & 1);
            if (row < left && output < outputs) store(first_row + row, output, acc[t][m][i]);
          }
    }
}

// Writes one weight to its place in the packed copies of its tensor, as it is and transposed.
DEVICE void pack_weight(u32* packed, int forward, int transposed, int k, int n, int inputs, int outputs, float value) {
  const u32 bits = to_tf32(value);
  if (forward >= 0) packed[(long)forward * 4 + packed_index(k, n, (inputs + 15) >> 4)] = bits;
  if (transposed >= 0) packed[(long)transposed * 4 + packed_index(n, k, (outputs + 15) >> 4)] = bits;
}
