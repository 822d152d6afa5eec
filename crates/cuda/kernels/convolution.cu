// 3x3 convolution 64 -> 64, forward and gradient of the input (the same operation with transposed, flipped filters).
//
//   input    plane of `positions` positions, f16, margins zero
//   filters  [tap][row_of_channel(output)][input], f16, 72 KiB
//   output   plane, f16; values in margin rows and columns are meaningless
//   sums     [2][64] fixed point: in the forward pass the sums of z and z² over all pixels, for batch norm; in the backward
//            pass the sums of dy and dy * x over the pixels where x is a number (batch_norm.cu, `normalised`)
//
// A thread block keeps all filters in shared memory and walks over tiles of ROWS consecutive positions, loading the next
// tile while it computes one. Row i of a tile's buffer is a position; the three filter rows start `stride` buffer rows
// apart: `pitch` if the whole range fits (small images), else each has a range of its own (stride = ROWS + 2).
#pragma once
#include "common.cuh"

// The kinds that are ADDED add to what the output already holds, and sum up for the tangents of batch norm (tangent.cu).
enum ConvolutionSums { FORWARD_SUMS, BACKWARD_SUMS, NO_SUMS, ADDED, ADDED_FORWARD_SUMS, ADDED_BACKWARD_SUMS };
DEVICE constexpr bool is_added(int sums) { return sums >= ADDED; }
DEVICE constexpr bool has_sums(int sums) { return sums != NO_SUMS && sums != ADDED; }

// Planes that the sums also depend on.
struct SumPlanes {
  const uint4* first;    // BACKWARD_SUMS, ADDED_BACKWARD_SUMS: x, NaN where inactive; ADDED_FORWARD_SUMS: z
  const uint4* tangent;  // ADDED_BACKWARD_SUMS: the tangent of x
  const uint4* d;        // ADDED_BACKWARD_SUMS: dy
};

struct ConvolutionShape {
  int positions;   // images * pitch * pitch
  int side;
  int stride;      // buffer rows between two filter rows: min(pitch, tile rows + 2)
  Divider pitch;
};

// Loads the input of a tile: 3 ranges of ROWS + 2 positions, which overlap if stride = pitch.
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

// Writes 16 channels (two chunks) of a position and adds them to the thread's sums.
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
  if (column >= shape.side || remainder_of(shape.pitch, row) >= shape.side) return;
  const long at = (long)position * 8 + quad * 2;
  float x[16], tangent[16], d[16];
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

// Adds the sums of a block's 8 warps, in their order, to the total. `scratch` holds [8 warps][2][64] floats.
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

// With mma.sync. 8 warps; a warp computes 16 * M positions. Shared memory: filters, then two tile buffers.
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
    commit_copies();
    wait_for_copies<1>();
    __syncthreads();
    float z[M][32];
#pragma unroll
    for (int i = 0; i < M * 32; i++) (&z[0][0])[i] = 0.f;
    const u32 rows = buffers + current * buffer_len;
#pragma unroll 1
    for (int tap = 0; tap < TAPS; tap++) {
      const int tap_row = tap / 3;
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
#pragma unroll
      for (int half = 0; half < 2; half++)
        store_position<SUMS>(z[m] + 2 * half, z[m] + 2 * half + 1,
                             tile * ROWS + warp * 16 * M + m * 16 + half * 8 + group, shape, quad, output, planes, sums,
                             products);
    __syncthreads();
  }
  if (has_sums(SUMS)) {
    wait_for_copies<0>();
    __syncthreads();
    add_block_sums(sums, products, (float*)(dynamic_shared + FILTER_LEN * 2), totals);
  }
}

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
// With wgmma (sm_90a): two warpgroups of 64 positions each, both operands from shared memory, one tile buffer and two
// blocks per multiprocessor. Twice the rate of mma.sync.

// A matrix of 64 rows of 128 swizzled bytes. Rows may start at any multiple of 128: the swizzle follows the address.
DEVICE u64 matrix_descriptor(u32 address) {
  return (u64)((address & 0x3ffff) >> 4) | (1ull << 16) | (64ull << 32) | (1ull << 62);
}
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
#pragma unroll
    for (int i = 0; i < 32; i++) asm volatile("" : "+f"(z[i]));
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
