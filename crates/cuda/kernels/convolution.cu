// The 3x3 convolutions from 64 to 64 channels of blocks 2 to 4 of Conv4, forward, and backward for the gradient of the
// input: that is the same operation with transposed, flipped filters.
//
//   output[p][co] = sum over r, c from 0 to 2 and input channels ci of
//                   input[p + (r - 1) pitch + (c - 1)][ci] * filters[3 r + c][co][ci]
//
//   input    plane, f16, zero in the margins. A plane (common.cuh) has 64 channels of f16, 128 bytes, per position p;
//            pixel (row, column) of image n is at position (n * pitch + row) * pitch + column with pitch = side + 1,
//            and the last row and column of an image are margin. A tap is therefore one shift of p for all pixels, and
//            the kernels do not handle edges.
//   filters  [tap][row_of_channel(output channel)][input channel], f16, 72 KiB. `row_of_channel` (common.cuh) permutes
//            the output channels so that a thread ends up with 16 adjacent ones.
//   output   plane, f16; values in margin rows and columns are meaningless, so readers of it must skip them. Batch norm
//            reads it and writes the input of the next convolution, another plane, whose margins are zero.
//   totals   [2][64] fixed point (64-bit integers, so the order of additions does not matter), to which the kernel adds
//            sums over all pixels of the batch. Forward: of z and z squared, with z the output, for batch norm.
//            Backward: of dy and dy * x over the pixels where x is not NaN, with dy the output and x the plane
//            `normalised` of batch_norm.cu (the normalised maximum of a window, NaN where the ReLU is inactive).
//
// As a matrix product: 9 taps x 64 input channels are the inner dimension, positions the rows, 64 output channels the
// columns.
// A thread block keeps all filters in shared memory and walks over tiles of ROWS consecutive positions, in steps of the
// grid: the host starts up to one block per multiprocessor, or two for wgmma (`ConvolutionTiles` in
// src/conv4/network.rs). The input of a tile are three ranges of positions, one for each row of the filter and `pitch`
// apart: the tile's ROWS positions moved by one row up, by none, and by one row down, and one more position on either
// side for the left and right column of the filter. In the tile's buffer in shared memory a position is a row of 128
// bytes, and the ranges begin `stride` rows apart. Where they overlap or touch (pitch at most ROWS + 2, small images),
// stride = pitch and the buffer is one range without gaps; otherwise stride = ROWS + 2 and the three follow each other.
// So tap 3 r + c of position i of the tile is buffer row i + r * stride + c.
//
// There are two versions: `convolve` with mma.sync for all GPUs, and `convolve_wgmma` for Hopper. The names of the
// kernels end with the positions of a tile (256 instead of 128 for large planes) or with wgmma. `Pass` in
// src/conv4/network.rs launches those for one network, src/maml/pass.rs those for several (tasks.cu).
#pragma once
#include "common.cuh"

// What a kernel adds to `totals` besides writing the output. The ADDED kinds add to what the output already holds (the
// tangent of a convolution is the sum of two, tangent.cu):
//   FORWARD_SUMS         of z, z squared
//   BACKWARD_SUMS        of dy, dy x
//   ADDED_FORWARD_SUMS   of tz, z tz, with tz the output, the tangent of z
//   ADDED_BACKWARD_SUMS  of tdy, tdy x + dy tx, with tdy the output, and tx the tangent of x
//   NO_SUMS, ADDED       nothing
enum ConvolutionSums { FORWARD_SUMS, BACKWARD_SUMS, NO_SUMS, ADDED, ADDED_FORWARD_SUMS, ADDED_BACKWARD_SUMS };
// Whether a kind adds to the output, and whether it has sums.
DEVICE constexpr bool is_added(int sums) { return sums >= ADDED; }
DEVICE constexpr bool has_sums(int sums) { return sums != NO_SUMS && sums != ADDED; }

// Planes that the sums also depend on, of the same shape as the output; null where they are not needed.
struct SumPlanes {
  const uint4* first;    // BACKWARD_SUMS, ADDED_BACKWARD_SUMS: x, NaN where the ReLU is inactive; ADDED_FORWARD_SUMS: z
  const uint4* tangent;  // ADDED_BACKWARD_SUMS: tx
  const uint4* d;        // ADDED_BACKWARD_SUMS: dy
};

// Sizes of a launch.
struct ConvolutionShape {
  int positions;  // images * pitch * pitch
  int side;       // height and width of an image
  int stride;     // buffer rows between two filter rows: min(pitch, tile rows + 2)
  Divider pitch;  // side + 1
};

// Starts to copy the input of tile number `tile` to the buffer at shared address `buffer`. Row r of range i, from 0 to
// 2, is position tile * ROWS + (i - 1) * pitch - 1 + r. Rows are swizzled, so that matrix loads have no bank conflicts.
// A copy is one chunk: number n is chunk n % 8 of buffer row n / 8. Called by all THREADS threads of the block.
// Positions before the first image and after the last are in the zero margin of the plane's memory.
template <int ROWS, int THREADS>
DEVICE void load_tile(const uint4* input, u32 buffer, int tile, ConvolutionShape shape) {
  const int pitch = shape.pitch.divisor, stride = shape.stride, rows = ROWS + 2 + 2 * stride;
  const uint4* first = input + ((long)tile * ROWS - pitch - 1) * 8;
  if (stride == pitch) {
    for (int i = threadIdx.x; i < rows * 8; i += THREADS) copy_async(buffer + swizzled(i >> 3, i & 7), first + i);
  } else {
    for (int i = threadIdx.x; i < rows * 8; i += THREADS) {
      const int row = i >> 3, range = row / stride;
      copy_async(buffer + swizzled(row, i & 7), first + (long)(range * pitch + row - range * stride) * 8 + (i & 7));
    }
  }
}

// Writes the 16 channels 16 quad to 16 quad + 15 (two chunks) of a position and adds them to the thread's sums. even,
// odd: their values as f32, channel 16 quad + 2 n at even[4 n] and channel 16 quad + 2 n + 1 at odd[4 n]: the
// accumulators of the thread's row in fragment n. sums, products: [16], the thread's parts of the two sums in `totals`
// for these channels: of the output, and of the products that its kind (ConvolutionSums) names. The sums are of the
// values after rounding to f16, which are those that batch norm reads. Positions after the last image are neither
// written nor summed.
template <int SUMS>
DEVICE void store_position(const float* even, const float* odd, int position, ConvolutionShape shape, int quad,
                           uint4* output, SumPlanes planes, float* sums, float* products) {
  u32 pairs[8];
  if (!is_added(SUMS)) {
#pragma unroll
    for (int n = 0; n < 8; n++) pairs[n] = pack_half2(even[4 * n], odd[4 * n]);
  }
  if (position >= shape.positions) return;
  uint4* to = output + (long)position * 8 + quad * 2;
  if (is_added(SUMS)) {
    float old[16];
    unpack8(to[0], old);
    unpack8(to[1], old + 8);
#pragma unroll
    for (int n = 0; n < 8; n++) pairs[n] = pack_half2(even[4 * n] + old[2 * n], odd[4 * n] + old[2 * n + 1]);
  }
  to[0] = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
  to[1] = make_uint4(pairs[4], pairs[5], pairs[6], pairs[7]);
  if (!has_sums(SUMS)) return;
  const int row = divide(shape.pitch, position), column = position - row * (int)shape.pitch.divisor;
  // A margin position is written, but not summed.
  if (column >= shape.side || remainder_of(shape.pitch, row) >= shape.side) return;
  const long at = (long)position * 8 + quad * 2;
  float x[16], tangent[16], d[16];  // of `planes`; x is z in ADDED_FORWARD_SUMS
  if (SUMS != FORWARD_SUMS) {
    unpack8(planes.first[at], x);
    unpack8(planes.first[at + 1], x + 8);
  }
  if (SUMS == ADDED_BACKWARD_SUMS) {
    unpack8(planes.tangent[at], tangent);
    unpack8(planes.tangent[at + 1], tangent + 8);
    unpack8(planes.d[at], d);
    unpack8(planes.d[at + 1], d + 8);
  }
#pragma unroll
  for (int n = 0; n < 8; n++) {
    const float2 value = unpack_half2(pairs[n]);
    if (SUMS == FORWARD_SUMS) {
      sums[2 * n] += value.x;
      sums[2 * n + 1] += value.y;
      products[2 * n] += value.x * value.x;
      products[2 * n + 1] += value.y * value.y;
    } else if (SUMS == ADDED_FORWARD_SUMS) {
      sums[2 * n] += value.x;
      sums[2 * n + 1] += value.y;
      products[2 * n] += value.x * x[2 * n];
      products[2 * n + 1] += value.y * x[2 * n + 1];
    } else {
      // False for NaN: the ReLU is inactive.
      if (x[2 * n] == x[2 * n]) {
        sums[2 * n] += value.x;
        products[2 * n] += value.x * x[2 * n];
        if (SUMS == ADDED_BACKWARD_SUMS) products[2 * n] += d[2 * n] * tangent[2 * n];
      }
      if (x[2 * n + 1] == x[2 * n + 1]) {
        sums[2 * n + 1] += value.y;
        products[2 * n + 1] += value.y * x[2 * n + 1];
        if (SUMS == ADDED_BACKWARD_SUMS) products[2 * n + 1] += d[2 * n + 1] * tangent[2 * n + 1];
      }
    }
  }
}

// Adds the sums of a block of 8 warps to `total`, [2][64]: over the 8 lanes with the same quad, which have the same
// channels, then over the warps in their order, then exactly over the blocks. sums, products: the thread's, of the 16
// channels from 16 quad on. scratch: [8 warps][2][64] floats in shared memory. Contains a barrier.
DEVICE void add_block_sums(float* sums, float* products, float* scratch, i64* total) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, quad = lane & 3;
#pragma unroll
  for (int i = 0; i < 16; i++) {
#pragma unroll
    for (int distance = 4; distance < 32; distance <<= 1) {
      sums[i] += __shfl_xor_sync(FULL_WARP, sums[i], distance);
      products[i] += __shfl_xor_sync(FULL_WARP, products[i], distance);
    }
    if (lane < 4) {
      scratch[warp * 128 + quad * 16 + i] = sums[i];
      scratch[warp * 128 + 64 + quad * 16 + i] = products[i];
    }
  }
  __syncthreads();
  if (threadIdx.x < 128) {
    float sum = 0.f;
    for (int w = 0; w < 8; w++) sum += scratch[w * 128 + threadIdx.x];
    add_exactly(total + threadIdx.x, sum);
  }
}

// The convolution with mma.sync: 256 threads, 8 warps; a warp computes 16 M positions of each tile of 128 M, all 64
// output channels of them. Grid: any number of blocks, at most one per multiprocessor at a time. Shared memory: the
// filters (72 KiB), then two tile buffers: while one tile is computed, the next is copied to the other buffer. At the
// end, the memory after the filters holds the sums of the warps.
template <int M, int SUMS>
DEVICE void convolve(const uint4* input, const uint4* filters, uint4* output, i64* totals, SumPlanes planes,
                     ConvolutionShape shape) {
  constexpr int ROWS = 128 * M;
  const u32 filter_rows = shared_address(dynamic_shared), buffers = filter_rows + FILTER_LEN * 2;
  const u32 buffer_len = (ROWS + 2 + 2 * shape.stride) * 128;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane >> 2, quad = lane & 3;
  for (int i = threadIdx.x; i < FILTER_LEN / 8; i += 256) copy_async(filter_rows + swizzled(i >> 3, i & 7), filters + i);
  const int tiles = (shape.positions + ROWS - 1) / ROWS;
  int tile = blockIdx.x;
  if (tile < tiles) load_tile<ROWS, 256>(input, buffers, tile, shape);
  commit_copies();
  float sums[16], products[16];
#pragma unroll
  for (int i = 0; i < 16; i++) sums[i] = products[i] = 0.f;
  for (int current = 0; tile < tiles; tile += gridDim.x, current ^= 1) {
    if (tile + (int)gridDim.x < tiles)
      load_tile<ROWS, 256>(input, buffers + (current ^ 1) * buffer_len, tile + gridDim.x, shape);
    // Waits for all groups but the newest, that of the next tile (empty after the last tile).
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    // The accumulators: 16 rows x 64 columns per m, in 8 fragments of 8 columns; 4 numbers of each are this thread's.
    float z[M][32];
#pragma unroll
    for (int i = 0; i < M * 32; i++) (&z[0][0])[i] = 0.f;
    const u32 rows = buffers + current * buffer_len;
#pragma unroll 1
    for (int tap = 0; tap < TAPS; tap++) {
      const int tap_row = tap / 3;
      // Each of four steps k multiplies 16 input channels, chunks 2 k and 2 k + 1. load_matrices takes the address of
      // one row of an 8x8 matrix from every lane. Of the input (`row`, the first operand), lanes 0 to 15 give chunk 2 k
      // of 16 positions, lanes 16 to 31 chunk 2 k + 1 of the same. Of the filters (`filter`, the second operand), lanes
      // 0 to 7 give chunk 2 k and lanes 8 to 15 chunk 2 k + 1 of 8 filter rows (output channels), lanes 16 to 31 the
      // same of the next 8 rows. So b[n] has the operands of fragments 2 n and 2 n + 1, two numbers each. The last
      // terms of `row` are the shift of the tap: r * stride + c.
      const int row = warp * 16 * M + (lane & 15) + tap_row * shape.stride + tap - 3 * tap_row;
      const u32 bank = filter_rows + tap * (CHANNELS * 128);
      const int filter = (lane & 7) + ((lane >> 4) << 3);
#pragma unroll
      for (int k = 0; k < 4; k++) {
        u32 a[M][4], b[4][4];
#pragma unroll
        for (int m = 0; m < M; m++) load_matrices(a[m], rows + swizzled(row + m * 16, k * 2 + (lane >> 4)));
#pragma unroll
        for (int n = 0; n < 4; n++) load_matrices(b[n], bank + swizzled(filter + n * 16, k * 2 + ((lane >> 3) & 1)));
#pragma unroll
        for (int m = 0; m < M; m++)
#pragma unroll
          for (int n = 0; n < 8; n++) mma_f16(z[m] + n * 4, a[m], &b[n >> 1][(n & 1) * 2]);
      }
    }
#pragma unroll
    for (int m = 0; m < M; m++)
      // An accumulator has rows group and group + 8 of a fragment.
#pragma unroll
      for (int half = 0; half < 2; half++)
        store_position<SUMS>(z[m] + 2 * half, z[m] + 2 * half + 1,
                             tile * ROWS + warp * 16 * M + m * 16 + half * 8 + group, shape, quad, output, planes, sums,
                             products);
    // All warps have read this buffer before the next round copies into it.
    __syncthreads();
  }
  if (has_sums(SUMS)) {
    wait_for_copies<0>();
    __syncthreads();
    add_block_sums(sums, products, (float*)(dynamic_shared + FILTER_LEN * 2), totals);
  }
}

// Kernels for one network. `normalised` is null without BACKWARD_SUMS. tasks.cu has those for several networks at once.
#define CONVOLUTION(name, M, SUMS)                                                                                       \
  extern "C" __global__ void __launch_bounds__(256, 1)                                                                   \
      name(const uint4* input, const uint4* filters, uint4* output, i64* totals, const uint4* normalised,               \
           ConvolutionShape shape) {                                                                                     \
    convolve<M, SUMS>(input, filters, output, totals, SumPlanes{normalised, nullptr, nullptr}, shape);                  \
  }
CONVOLUTION(convolution_forward_128, 1, FORWARD_SUMS)
CONVOLUTION(convolution_forward_256, 2, FORWARD_SUMS)
CONVOLUTION(convolution_backward_128, 1, BACKWARD_SUMS)
CONVOLUTION(convolution_backward_256, 2, BACKWARD_SUMS)
CONVOLUTION(convolution_128, 1, NO_SUMS)
CONVOLUTION(convolution_256, 2, NO_SUMS)

#ifdef WGMMA

// The convolution with wgmma, Hopper's matrix instruction (sm_90a), which has twice the rate of mma.sync. Two
// warpgroups of 4 warps compute 64 positions each, with both operands in shared memory. One tile buffer; instead of a
// second one, two blocks run per multiprocessor if their memory suffices, so that one computes while the other waits
// for its copies.
//
// The descriptor of a matrix of rows of 128 swizzled bytes in shared memory: its address in units of 16 bytes, 64 such
// units (1024 bytes) between groups of 8 rows, and the code of the 128-byte swizzle in the highest bits. A matrix may
// start at any multiple of 128, because the swizzle follows the address; so a tap is a shift of the start. The 16
// columns of step k begin 32 k bytes after it.
DEVICE u64 matrix_descriptor(u32 address) {
  return (u64)((address & 0x3ffff) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}
// d[64 x 64] += a[64 x 16] b[64 x 16]^T by the 128 threads of a warpgroup, asynchronously, with matrix descriptors of a
// and b. Fragments as in mma_f16: warp w of the group has rows 16 w to 16 w + 15, d[4 n + i] is number i of fragment n.
DEVICE void wgmma_64x64x16(float* d, u64 a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
      "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, %32, %33, 1, 1, 1, 0, 0;"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]),
        "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]),
        "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]),
        "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a), "l"(b));
}

// As `convolve`, 256 threads, tiles of 128 positions. Shared memory: the filters, then one tile buffer.
template <int SUMS>
DEVICE void convolve_wgmma(const uint4* input, const uint4* filters, uint4* output, i64* totals, SumPlanes planes,
                           ConvolutionShape shape) {
  constexpr int ROWS = 128;
  const u32 filter_rows = shared_address(dynamic_shared), buffer = filter_rows + FILTER_LEN * 2;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, warpgroup = warp >> 2, group = lane >> 2, quad = lane & 3;
  for (int i = threadIdx.x; i < FILTER_LEN / 8; i += 256) copy_async(filter_rows + swizzled(i >> 3, i & 7), filters + i);
  const int tiles = (shape.positions + ROWS - 1) / ROWS;
  int tile = blockIdx.x;
  if (tile < tiles) load_tile<ROWS, 256>(input, buffer, tile, shape);
  commit_copies();
  float sums[16], products[16];
#pragma unroll
  for (int i = 0; i < 16; i++) sums[i] = products[i] = 0.f;
  for (; tile < tiles; tile += gridDim.x) {
    wait_for_copies<0>();
    // wgmma reads shared memory through another path than ordinary accesses; the fence makes the copies visible to it.
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncthreads();
    float z[32];
#pragma unroll
    for (int i = 0; i < 32; i++) z[i] = 0.f;
    const u32 rows = buffer + warpgroup * 64 * 128;
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int tap = 0; tap < TAPS; tap++)
#pragma unroll
      for (int k = 0; k < 4; k++)
        wgmma_64x64x16(z, matrix_descriptor(rows + ((tap / 3) * shape.stride + tap % 3) * 128 + k * 32),
                       matrix_descriptor(filter_rows + tap * (CHANNELS * 128) + k * 32));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
    // Keeps the compiler from moving reads of z before the wait.
#pragma unroll
    for (int i = 0; i < 32; i++) asm volatile("" : "+f"(z[i]));
    // Both warpgroups have read the buffer. The next tile is copied while this one is stored.
    __syncthreads();
    if (tile + (int)gridDim.x < tiles) load_tile<ROWS, 256>(input, buffer, tile + gridDim.x, shape);
    commit_copies();
#pragma unroll
    for (int half = 0; half < 2; half++)
      store_position<SUMS>(z + 2 * half, z + 2 * half + 1,
                           tile * ROWS + warpgroup * 64 + (warp & 3) * 16 + half * 8 + group, shape, quad, output,
                           planes, sums, products);
  }
  if (has_sums(SUMS)) {
    wait_for_copies<0>();
    __syncthreads();
    add_block_sums(sums, products, (float*)(dynamic_shared + FILTER_LEN * 2), totals);
  }
}

// The kernels for one network, with the arguments of those above.
#define CONVOLUTION_WGMMA(name, SUMS)                                                                                    \
  extern "C" __global__ void __launch_bounds__(256, 2)                                                                   \
      name(const uint4* input, const uint4* filters, uint4* output, i64* totals, const uint4* normalised,               \
           ConvolutionShape shape) {                                                                                     \
    convolve_wgmma<SUMS>(input, filters, output, totals, SumPlanes{normalised, nullptr, nullptr}, shape);               \
  }
CONVOLUTION_WGMMA(convolution_forward_wgmma, FORWARD_SUMS)
CONVOLUTION_WGMMA(convolution_backward_wgmma, BACKWARD_SUMS)
CONVOLUTION_WGMMA(convolution_wgmma, NO_SUMS)
#endif
