// EfficientNet-Lite0 for embedding, part 2: pointwise (1x1) convolutions, as matrix products with bias, optional ReLU6
// and optional residual: output = relu6(input weights^T + bias) + residual. src/efficientnet/layers.rs packs the
// weights and launches the kernels.
//
//   input     [row][inputs] f16; a row is a position of an image. `inputs` and `outputs` are multiples of 16. A chunk
//             is 8 channels, 16 bytes, one uint4.
//   weights   [packed output][inputs] f16, with zeros up to a multiple of the block's columns. In every group of 32
//             outputs the rows are permuted: packed row 8 f + 2 t + j is output 8 t + 2 f + j. Thread t of a quad (lane
//             % 4), which holds columns 2 t and 2 t + 1 of every 8-column fragment f of a product (`mma_f16` in
//             common.cuh), thus owns 8 adjacent outputs: one chunk.
//   bias      [output] f32, with zeros up to the same multiple
//   residual  [row][outputs] f16, or null
//   output    [row][outputs] f16
//
// A block of 256 threads computes tiles of 128 rows and COLUMNS outputs; blockIdx.y selects the columns, and blockIdx.x
// the first tile, from which it walks in steps of the grid. It takes up to 64 inputs at a time. Shared memory: two
// stages, each with these inputs of 128 rows and of COLUMNS weights, so that one is copied while the other is
// multiplied. The sums of an output are in the order of its inputs, wherever its row is in a tile, so an embedding does
// not depend on the batch.
#pragma once
#include "common.cuh"
#include "efficientnet.cu"

namespace efficientnet {

constexpr int TILE_ROWS = 128, STEP_INPUTS = 64;  // rows of a tile; inputs that are copied at a time

// Sizes; rows: positions of all images.
struct PointwiseShape {
  int rows;
  int inputs;
  int outputs;
  int has_relu6;
};

// Starts to copy COUNT rows of `chunks` chunks (2, 4, 6 or 8) to swizzled rows of 128 bytes in shared memory
// (common.cuh); rows above `last` are copies of row `last`. pitch: chunks from one row to the next.
template <int COUNT> DEVICE void load_rows(u32 to, const uint4* from, int pitch, int chunks, int last) {
  // lanes: threads per row, the largest power of two that divides `chunks`.
  const int shift = chunks == 8 ? 3 : chunks == 4 ? 2 : 1, lanes = 1 << shift;
  for (int row = threadIdx.x >> shift; row < COUNT; row += 256 >> shift)
    for (int chunk = threadIdx.x & (lanes - 1); chunk < chunks; chunk += lanes)
      copy_async(to + swizzled(row, chunk), from + (long)min(row, last) * pitch + chunk);
}

// 8 warps: 8 / WARP_COLUMNS of them in the direction of the rows, 16 M rows each, and WARP_COLUMNS side by side; a warp
// computes 32 GROUPS columns. Grid: (blocks, ceil(outputs / COLUMNS)).
template <int M, int GROUPS, int WARP_COLUMNS>
DEVICE void pointwise(const uint4* input, const uint4* weights, const float* bias, const uint4* residual, uint4* output,
                      PointwiseShape shape) {
  static_assert(M == WARP_COLUMNS, "a tile has 128 rows");
  constexpr int COLUMNS = WARP_COLUMNS * GROUPS * 32;
  constexpr u32 ROWS_LEN = TILE_ROWS * 128, BUFFER_LEN = ROWS_LEN + COLUMNS * 128;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane >> 2, quad = lane & 3;
  const int warp_row = warp / WARP_COLUMNS * 16 * M, warp_column = warp % WARP_COLUMNS * GROUPS * 32;
  const int first_column = blockIdx.y * COLUMNS, pitch = shape.inputs / 8, out_pitch = shape.outputs / 8;
  // The groups of 32 columns of this warp that exist.
  const int groups = min(GROUPS, (shape.outputs - first_column - warp_column + 31) / 32);
  const int tiles = (shape.rows + TILE_ROWS - 1) / TILE_ROWS, steps = (shape.inputs + STEP_INPUTS - 1) / STEP_INPUTS;
  const u32 stages = shared_address(dynamic_shared);
  // Starts to copy the operands of a step of a tile to a stage.
  auto load = [&](int stage, int tile, int step) {
    const u32 to = stages + stage * BUFFER_LEN;
    const int first = step * (STEP_INPUTS / 8), chunks = min(STEP_INPUTS / 8, pitch - first);
    load_rows<TILE_ROWS>(to, input + (long)tile * TILE_ROWS * pitch + first, pitch, chunks,
                         shape.rows - 1 - tile * TILE_ROWS);
    load_rows<COLUMNS>(to + ROWS_LEN, weights + (long)first_column * pitch + first, pitch, chunks, COLUMNS - 1);
  };
  float z[M][GROUPS * 4][4];
  int tile = blockIdx.x, step = 0, stage = 0;
  if (tile < tiles) load(0, tile, 0);
  commit_copies();
#pragma unroll 1
  while (tile < tiles) {
    const bool is_last = step + 1 == steps;
    const int next_step = is_last ? 0 : step + 1, next_tile = is_last ? tile + (int)gridDim.x : tile;
    if (next_tile < tiles) load(stage ^ 1, next_tile, next_step);
    // Waits for all groups but the newest, that of the next step (empty after the last).
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    if (step == 0)
#pragma unroll
      for (int i = 0; i < M * GROUPS * 16; i++) (&z[0][0][0])[i] = 0.f;
    const u32 rows = stages + stage * BUFFER_LEN, columns = rows + ROWS_LEN;
    const int products = min(STEP_INPUTS, shape.inputs - step * STEP_INPUTS) / 16;
#pragma unroll
    for (int k = 0; k < STEP_INPUTS / 16; k++) {
      if (k >= products) break;
      // The lanes give the addresses of rows as in `convolve` (convolution.cu).
      u32 a[M][4];
#pragma unroll
      for (int m = 0; m < M; m++)
        load_matrices(a[m], rows + swizzled(warp_row + m * 16 + (lane & 15), k * 2 + (lane >> 4)));
#pragma unroll
      for (int g = 0; g < GROUPS; g++) {
        if (g >= groups) break;
#pragma unroll
        for (int half = 0; half < 2; half++) {
          u32 b[4];
          load_matrices(b, columns + swizzled(warp_column + g * 32 + half * 16 + (lane & 7) + ((lane >> 4) << 3),
                                              k * 2 + ((lane >> 3) & 1)));
#pragma unroll
          for (int m = 0; m < M; m++) {
            mma_f16(z[m][g * 4 + half * 2], a[m], b);
            mma_f16(z[m][g * 4 + half * 2 + 1], a[m], b + 2);
          }
        }
      }
    }
    __syncthreads();
    if (is_last)
      // After the last step of a tile: bias, ReLU6, residual, and one chunk per row and group of 32 columns.
#pragma unroll
      for (int g = 0; g < GROUPS; g++) {
        const int column = first_column + warp_column + g * 32 + quad * 8;
        if (column >= shape.outputs) continue;
        float shift[8];
        load8((const uint4*)(bias + column), shift);
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
          for (int half = 0; half < 2; half++) {
            const int row = tile * TILE_ROWS + warp_row + m * 16 + half * 8 + group;
            if (row >= shape.rows) continue;
            const long at = (long)row * out_pitch + column / 8;
            float values[8];
#pragma unroll
            for (int i = 0; i < 8; i++) {
              values[i] = z[m][g * 4 + (i >> 1)][half * 2 + (i & 1)] + shift[i];
              if (shape.has_relu6) values[i] = relu6(values[i]);
            }
            if (residual) {
              float added[8];
              unpack8(residual[at], added);
#pragma unroll
              for (int i = 0; i < 8; i++) values[i] += added[i];
            }
            output[at] = pack8(values);
          }
      }
    tile = next_tile;
    step = next_step;
    stage ^= 1;
  }
}

// The kernels, by their columns; BLOCKS: blocks per multiprocessor that registers must suffice for (`ColumnTiles` in
// src/efficientnet/layers.rs).
#define POINTWISE(name, M, GROUPS, WARP_COLUMNS, BLOCKS)                                                                 \
  extern "C" __global__ void __launch_bounds__(256, BLOCKS)                                                              \
      name(const uint4* input, const uint4* weights, const float* bias, const uint4* residual, uint4* output,           \
           PointwiseShape shape) {                                                                                       \
    pointwise<M, GROUPS, WARP_COLUMNS>(input, weights, bias, residual, output, shape);                                  \
  }
POINTWISE(efficientnet_pointwise_32, 1, 1, 1, 4)
POINTWISE(efficientnet_pointwise_64, 1, 2, 1, 3)
POINTWISE(efficientnet_pointwise_96, 1, 3, 1, 2)
POINTWISE(efficientnet_pointwise_128, 2, 2, 2, 2)

}  // namespace efficientnet
