// Gradient of the filters of a 3x3 convolution from 64 to 64 channels (convolution.cu):
//
//   partial[tap][ci][co] = sum over positions p of x[p + shift(tap)][ci] * dz[p][co],
//   shift(3 r + c) = (r - 1) pitch + (c - 1)
//
// with ci the input channel, co the output channel, and r and c (0 to 2) the row and column of the tap in the filter.
//
//   input     plane, f16: the input x of the convolution. A plane (common.cuh) has 64 channels per position; images
//             follow each other with pitch * pitch positions each, pitch = side + 1.
//   d_output  plane, f16: the gradient dz of its output. It must be zero in the margins and in the rest of the last
//             tile after the last image, because whole tiles are summed: batch_norm_backward writes pixels only, and
//             the host clears what a step with more images has left there.
//   partials  [block][tap][input channel][output channel], f32: sums over the positions of one thread block
//
// As a matrix product, positions are the inner dimension: x transposed times dz. A block of 12 warps sums
// tiles_per_block tiles of 128 positions. Each warp computes the 3 taps of a filter row x 32 input channels x 32 output
// channels: warp = 4 r + 2 (half of the input channels) + (half of the output channels), with halves 0 and 1. The parts
// of the blocks are added in a fixed order (`sum_partials` in optimiser.cu), so the result does not depend on
// scheduling. src/conv4/network.rs launches the kernel (`filter_gradient_blocks` says why with how many blocks), and
// src/maml/pass.rs those of tasks.cu.
//
// Shared memory: two buffers, so that one is copied while the other is multiplied. A buffer has 128 + 2 + 2 stride rows
// of x, then 128 rows of dz; a row is a position, 128 bytes. Filter row r needs the positions of the tile moved by
// (r - 1) pitch, and one more on either side; these 130 positions begin at buffer row r * stride (`load_tile` in
// convolution.cu). stride = min(pitch, 130): in small images the three ranges overlap and share rows.
#pragma once
#include "convolution.cu"

#define GRADIENT_ROWS 128  // positions of a tile
#define GRADIENT_THREADS 384  // 12 warps

// Two planes whose product is summed: x and dz of the formula.
struct GradientPair {
  const uint4 *input, *d_output;
};

// Block number blockIdx.x sums the tiles_per_block tiles from blockIdx.x * tiles_per_block on. With TWO, it sums these
// tiles of `pair` and then the same tiles of `second`: the gradient of a product has two terms in tangents
// (tangent.cu).
template <bool TWO>
DEVICE void sum_filter_gradient(GradientPair pair, GradientPair second, float* partials, int tiles_per_block,
                                ConvolutionShape shape) {
  const u32 buffers = shared_address(dynamic_shared);
  const int rows = GRADIENT_ROWS + 2 + 2 * shape.stride;  // of x in a buffer
  const u32 buffer_len = (rows + GRADIENT_ROWS) * 128;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane >> 2, quad = lane & 3;
  // tap_row: r. Halves: channels 0 to 31 or 32 to 63.
  const int tap_row = warp >> 2, input_half = (warp >> 1) & 1, output_half = warp & 1;
  const int tiles = (shape.positions + GRADIENT_ROWS - 1) / GRADIENT_ROWS;
  // The tiles of this block are `first` to `end` - 1. With TWO, they are counted twice: number `end` is tile `first` of
  // the second pair. `last` is the number after the last.
  const int first = blockIdx.x * tiles_per_block, end = min(tiles, first + tiles_per_block);
  const int last = TWO ? 2 * end - first : end;
  // Starts to copy tile `number` of x and dz to buffer 0 or 1.
  auto load = [&](int number, int buffer) {
    const bool is_second = TWO && number >= end;
    const int tile = is_second ? number - (end - first) : number;
    const u32 to = buffers + buffer * buffer_len;
    load_tile<GRADIENT_ROWS, GRADIENT_THREADS>(is_second ? second.input : pair.input, to, tile, shape);
    const uint4* from = (is_second ? second.d_output : pair.d_output) + (long)tile * GRADIENT_ROWS * 8;
    for (int i = threadIdx.x; i < GRADIENT_ROWS * 8; i += GRADIENT_THREADS)
      copy_async(to + rows * 128 + swizzled(i >> 3, i & 7), from + i);
  };
  float sums[3][2][4][4];  // [filter column][16 input channels][8 output channels][fragment]
#pragma unroll
  for (int i = 0; i < 96; i++) (&sums[0][0][0][0])[i] = 0.f;
  if (first < end) load(first, 0);
  commit_copies();
  for (int tile = first, current = 0; tile < last; tile++, current ^= 1) {
    if (tile + 1 < last) load(tile + 1, current ^ 1);
    // Waits for all groups but the newest, which is that of the next tile. After the last tile the newest group is
    // empty, so the same wait is right.
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    const u32 x = buffers + current * buffer_len, dz = x + rows * 128;
    // 16 positions at a time. The operands of mma_f16 have 2 adjacent positions in a register, but both are stored with
    // positions as rows, so they are loaded transposed. In load_matrices_transposed, lane i gives the address of row
    // i % 8 of matrix i / 8, a matrix being 8 positions x 8 channels (one chunk):
    //   dz, b[n]: matrices 0, 1 are positions 0 to 7, 8 to 15 of a chunk; 2, 3 the same of the next chunk
    //   x, a[m]:  matrices 0, 1 are two chunks of positions 0 to 7; 2, 3 the same of positions 8 to 15
    // b[n] is thus the second operand of two fragments of 8 output channels. The three filter columns are shifts of x
    // by one row, with the same dz.
#pragma unroll 2
    for (int k = 0; k < GRADIENT_ROWS; k += 16) {
      u32 b[2][4];
      const int dz_row = k + (lane & 7) + (((lane >> 3) & 1) << 3);
#pragma unroll
      for (int n = 0; n < 2; n++)
        load_matrices_transposed(b[n], dz + swizzled(dz_row, output_half * 4 + n * 2 + (lane >> 4)));
      const int x_row = k + (lane & 7) + ((lane >> 4) << 3) + tap_row * shape.stride;
#pragma unroll
      for (int column = 0; column < 3; column++) {
        u32 a[2][4];
#pragma unroll
        for (int m = 0; m < 2; m++)
          load_matrices_transposed(a[m], x + swizzled(x_row + column, input_half * 4 + m * 2 + ((lane >> 3) & 1)));
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
          for (int n = 0; n < 4; n++) mma_f16(sums[column][m][n], a[m], &b[n >> 1][(n & 1) * 2]);
      }
    }
    __syncthreads();
  }
  // An accumulator of mma_f16 has two adjacent columns (output channels) of rows (input channels) group and group + 8.
  float* partial = partials + (long)blockIdx.x * FILTER_LEN;
#pragma unroll
  for (int column = 0; column < 3; column++)
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
      for (int n = 0; n < 4; n++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
          const int ci = input_half * 32 + m * 16 + half * 8 + group, co = output_half * 32 + n * 8 + 2 * quad;
          *(float2*)(partial + ((tap_row * 3 + column) * CHANNELS + ci) * CHANNELS + co) =
              make_float2(sums[column][m][n][2 * half], sums[column][m][n][2 * half + 1]);
        }
}

// `sum_filter_gradient` of one network, one pair. Grid: ceil(tiles / tiles_per_block), 384 threads.
extern "C" __global__ void __launch_bounds__(GRADIENT_THREADS, 1)
    filter_gradient(const uint4* input, const uint4* d_output, float* partials, int tiles_per_block,
                    ConvolutionShape shape) {
  sum_filter_gradient<false>({input, d_output}, {nullptr, nullptr}, partials, tiles_per_block, shape);
}
