// Types, 16-bit arithmetic, matrix instructions and exact sums that all kernels share.
//
// No CUDA header is included: the same sources are compiled by nvcc for the GPU, and by a C++ compiler for the emulator
// (emulator/emulator.cpp), which defines EMULATOR and its own versions of the instructions below.
//
// Layout of activations ("plane"): an image of side x side pixels with 64 channels of 16 bits (128 bytes) per position.
// Position of pixel (row, column) of image n: (n * pitch + row) * pitch + column, with pitch = side + 1. The last row and
// column of every image are zero and serve as the margin of the next one, so each tap of a 3x3 filter is a constant shift
// of the position. A buffer has a zero margin of pitch + 1 positions before the first and after the last image.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#define DEVICE __device__ __forceinline__
// A function that is not copied into its callers, so that kernels stay small.
#define SEPARATE __device__ __noinline__
#define CHANNELS 64
#define TAPS 9
#define FILTER_LEN (TAPS * CHANNELS * CHANNELS)
#define EPSILON 1e-5f
#define FULL_WARP 0xffffffffu

#ifndef EMULATOR
#define SHARED __shared__
// Tells the compiler that a pointer points to shared memory, which it cannot know in a SEPARATE function. Loads through other
// pointers take four times as long.
#define ASSUME_SHARED(pointer) __builtin_assume(__isShared(pointer))
// The dynamic shared memory of a thread block, whose length the host gives at the launch.
extern __shared__ __align__(1024) u8 dynamic_shared[];

// Two floats as a pair of f16, the first in the low half.
DEVICE u32 pack_half2(float low, float high) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
DEVICE float2 unpack_half2(u32 pair) {
  float2 values;
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
      : "=f"(values.x), "=f"(values.y)
      : "r"(pair));
  return values;
}
// d[16 x 8] += a[16 x 16] b[16 x 8], f16 inputs, f32 sums, in the fragment layout of mma.m16n8k16.
DEVICE void mma_f16(float* d, const u32* a, const u32* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// The nearest number with the 10-bit mantissa of TF32, as bits.
DEVICE u32 to_tf32(float value) {
  u32 bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}
// The same for operands of mma_tf32, which ignores the last 13 bits: adding half of the last bit that counts is faster than
// the conversion.
DEVICE u32 tf32_operand(float value) { return __float_as_uint(value) + 0x1000u; }
// d[16 x 8] += a[16 x 8] b[8 x 8], TF32 inputs, f32 sums, in the fragment layout of mma.m16n8k8: with group = lane / 4 and
// quad = lane % 4, a holds (group, quad), (group + 8, quad), (group, quad + 4), (group + 8, quad + 4); b holds
// (quad, group), (quad + 4, group); d holds (group, 2 quad), (group, 2 quad + 1), (group + 8, 2 quad), (group + 8, 2 quad + 1).
DEVICE void mma_tf32(float* d, const u32* a, const u32* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// Four 8x8 matrices of 16 bits from shared memory; lane i gives the address of row i % 8 of matrix i / 8.
DEVICE void load_matrices(u32* fragment, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(address));
}
DEVICE void load_matrices_transposed(u32* fragment, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(address));
}
// Asynchronous copy of 16 bytes from global to shared memory, in groups that are waited for in order.
DEVICE void copy_async(u32 shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(shared), "l"(global));
}
// Asynchronous copy of 4 bytes, in the same groups.
DEVICE void copy_word_async(u32 shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0],[%1],4;" ::"r"(shared), "l"(global));
}
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;"); }
// Waits until at most PENDING groups are unfinished.
template <int PENDING> DEVICE void wait_for_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING)); }
DEVICE u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }
#endif

// Byte offset of a 16-byte chunk (0 to 7) of a 128-byte row in shared memory. The swizzle spreads the same chunk of eight
// consecutive rows over all banks; wgmma expects the same pattern.
DEVICE u32 swizzled(int row, int chunk) { return (u32)(row * 128 + ((chunk ^ (row & 7)) << 4)); }

// Sums that do not depend on the order of threads: 64-bit fixed point with 20 fractional bits.
#define FIXED_POINT 1048576.0f
DEVICE void add_exactly(i64* sum, float value) { atomicAdd((u64*)sum, (u64)__float2ll_rn(value * FIXED_POINT)); }
DEVICE double exact_sum(i64 sum) { return (double)sum / (double)FIXED_POINT; }

// Division of numbers below 2^31 by a divisor that the host knows (src/divider.rs).
struct Divider {
  u32 divisor, multiplier, shift;
};
DEVICE int divide(Divider by, int number) {
  return by.divisor == 1 ? number : (int)(__umulhi((u32)number, by.multiplier) >> by.shift);
}
DEVICE int remainder_of(Divider by, int number) { return number - divide(by, number) * (int)by.divisor; }

// Eight channels: one 16-byte chunk of a position.
DEVICE void unpack8(uint4 chunk, float* values) {
  const u32 pairs[4] = {chunk.x, chunk.y, chunk.z, chunk.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float2 two = unpack_half2(pairs[i]);
    values[2 * i] = two.x;
    values[2 * i + 1] = two.y;
  }
}
DEVICE uint4 pack8(const float* values) {
  return make_uint4(pack_half2(values[0], values[1]), pack_half2(values[2], values[3]), pack_half2(values[4], values[5]),
                    pack_half2(values[6], values[7]));
}
DEVICE u16 to_half(float value) { return (u16)(pack_half2(value, 0.f) & 0xffff); }

// Channel <-> row of a filter bank in shared memory. The rows are permuted so that thread t of a quad, which holds columns
// 2t and 2t + 1 of every 8-column fragment, owns the 16 adjacent channels 16t to 16t + 15: two whole chunks.
DEVICE int row_of_channel(int channel) {
  return ((channel & 15) >> 1) * 8 + (channel >> 4) * 2 + (channel & 1);
}

// Position of pixel (row, column) of an image in a plane.
DEVICE long plane_position(int image, int row, int column, int pitch) {
  return ((long)image * pitch + row) * pitch + column;
}

// Kernels of several networks at once (tasks.cu): each task has its memory at the same distance in bytes from that of the task
// before, so one stride moves every pointer. blockIdx.z is the task.
template <class T> DEVICE T* of_task(T* pointer, i64 stride) { return (T*)((u8*)pointer + (i64)blockIdx.z * stride); }

// Inputs and results of steps are in rings of this many slots, which the host fills ahead and reads later.
#define STEP_SLOTS 64

// What a run keeps on the device between steps.
struct TrainingState {
  u32 step;        // finished steps
  u32 updates;     // updates of the optimiser so far
  float scale;     // the loss and all gradients are multiplied by this, so that they do not underflow in f16
  u32 good_steps;  // updates since the scale changed
  u32 overflow;    // not 0 if the current step must not update anything: GRADIENT_OVERFLOW and OTHER_SIZE
};
// A gradient of the current step is not finite.
#define GRADIENT_OVERFLOW 1u
// The launched graph was recorded for a step of another size.
#define OTHER_SIZE 2u
DEVICE int step_slot(const TrainingState* state) { return state->step % STEP_SLOTS; }
