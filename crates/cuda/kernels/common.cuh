// What all kernels share: integer types, the layout of activations, 16-bit and TF32 arithmetic, matrix and copy
// instructions, order-independent sums, and the state of a training run. Every other kernel file includes this one.
// Read "plane" below first.
//
// No CUDA header is included: the same sources are compiled by nvcc for the GPU, and by a C++ compiler for the emulator
// (emulator/emulator.cpp), which defines EMULATOR and has its own versions of everything between `#ifndef` and
// `#endif`.
//
// Words that all kernel files use:
//   plane    the layout of the activations of a batch: images of side x side pixels, each with 64 channels of f16 (128
//            bytes). A pixel has a "position": that of pixel (row, column) of image n is (n * pitch + row) * pitch +
//            column, with pitch = side + 1: each image is stored with one more row and column than it has pixels. They
//            are zero and serve as the margin between this row or image and the next, so a tap (one of the 9 weights
//            of a 3x3 filter) is the same shift of the position at every pixel. A buffer has at least pitch + 1 more
//            zero positions before the first image and after the last. The host allocates all of this as zeros, and
//            kernels write pixels only (except the outputs of convolution.cu).
//   chunk    8 channels of a position: 16 bytes, one uint4, which one instruction loads. A position has 8 chunks.
//   lane     threadIdx.x % 32, the number of a thread in its warp. Matrix instructions spread a matrix over the lanes
//            of a warp by group = lane / 4 (0 to 7) and quad = lane % 4; the part of a matrix that one lane holds is
//            its "fragment". The same word is used for the matrix of one instruction: "fragment n" of a product is its
//            columns 8 n to 8 n + 7.
//   tile     the part of a matrix, or the consecutive positions of a plane, that one thread block computes at a time
//   pitch    the distance from one row of an array to the next, in numbers of the array unless stated
//   slot     the inputs and results of steps are in rings of STEP_SLOTS slots; step n uses slot n % STEP_SLOTS.
//   d_x, dx  the gradient of the loss with respect to x, in Conv4 times the loss scale (`TrainingState::scale`)
//
// __launch_bounds__(threads, blocks): the threads of a block, and the blocks that must fit on a multiprocessor at the
// same time. More blocks leave fewer registers for each thread. "Grid" in the comments is the number of blocks in x, y
// and z; "any" means that the blocks share the work in a loop.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

// A function that is inlined into its callers.
#define DEVICE __device__ __forceinline__
// A function that is not inlined, so that kernels stay small.
#define SEPARATE __device__ __noinline__
// Channels of a position of a plane.
#define CHANNELS 64
#define TAPS 9  // weights of a 3x3 filter per pair of channels, numbered row by row from the top left
#define FILTER_LEN (TAPS * CHANNELS * CHANNELS)  // weights of a 3x3 convolution from 64 to 64 channels
#define EPSILON 1e-5f  // added to a variance before its root is taken, in batch norm and layer norm; as in PyTorch
#define FULL_WARP 0xffffffffu  // the mask of a warp instruction in which all 32 lanes take part

#ifndef EMULATOR
// A static variable in the shared memory of a thread block.
#define SHARED __shared__
// Tells the compiler that a pointer points to shared memory, which it cannot know in a SEPARATE function. Loads through
// pointers to an unknown kind of memory take four times as long.
#define ASSUME_SHARED(pointer) __builtin_assume(__isShared(pointer))
// The dynamic shared memory of a thread block. The host gives its length at the launch, so one kernel serves several
// sizes. 1024 bytes of alignment are what wgmma needs for swizzled matrices (`swizzled`).
extern __shared__ __align__(1024) u8 dynamic_shared[];

// Two floats as a pair of f16, the first in the low half.
DEVICE u32 pack_half2(float low, float high) {
  u32 pair;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
  return pair;
}
// Unpacks the result of `pack_half2`.
DEVICE float2 unpack_half2(u32 pair) {
  float2 values;
  asm("{.reg .b16 low, high; mov.b32 {low, high}, %2; cvt.f32.f16 %0, low; cvt.f32.f16 %1, high;}"
      : "=f"(values.x), "=f"(values.y)
      : "r"(pair));
  return values;
}
// d[16 x 8] += a[16 x 16] b[16 x 8], f16 inputs, f32 sums, in the fragment layout of mma.m16n8k16. One warp executes it
// together. Each u32 is a pair of f16, in two adjacent columns of a or two adjacent rows of b: numbers 2 quad and
// 2 quad + 1 of the 8 that are listed here.
//   a[0], a[1]  rows group and group + 8, columns 0 to 7        a[2], a[3]  the same rows, columns 8 to 15
//   b[0], b[1]  column group, rows 0 to 7 and 8 to 15
//   d[0], d[1]  row group, columns 2 quad and 2 quad + 1        d[2], d[3]  row group + 8, the same columns
DEVICE void mma_f16(float* d, const u32* a, const u32* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// The nearest TF32 number (8 bits of exponent, 10 of mantissa, like an f32 without its last 13 bits), as the bits of an
// f32.
DEVICE u32 to_tf32(float value) {
  u32 bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(value));
  return bits;
}
// The same for operands of mma_tf32, which ignores the last 13 bits: adding half of the last bit that counts makes the
// instruction round to nearest instead of cutting off, and is faster than the conversion.
DEVICE u32 tf32_operand(float value) { return __float_as_uint(value) + 0x1000u; }
// d[16 x 8] += a[16 x 8] b[8 x 8], TF32 inputs, f32 sums, in the fragment layout of mma.m16n8k8. As (row, column):
//   a[0] to a[3]  (group, quad), (group + 8, quad), (group, quad + 4), (group + 8, quad + 4)
//   b[0], b[1]    (quad, group), (quad + 4, group)
//   d[0] to d[3]  (group, 2 quad), (group, 2 quad + 1), (group + 8, 2 quad), (group + 8, 2 quad + 1)
DEVICE void mma_tf32(float* d, const u32* a, const u32* b) {
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3},{%4,%5,%6,%7},{%8,%9},{%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// Four 8x8 matrices of 16 bits from shared memory; lane i gives the address of row i % 8 (16 bytes) of matrix i / 8.
// fragment[m] is what mma_f16 takes: row group, columns 2 quad and 2 quad + 1 of matrix m.
DEVICE void load_matrices(u32* fragment, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(address));
}
// The same with every matrix transposed: fragment[m] is column group, rows 2 quad and 2 quad + 1 of matrix m.
DEVICE void load_matrices_transposed(u32* fragment, u32 address) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3},[%4];"
               : "=r"(fragment[0]), "=r"(fragment[1]), "=r"(fragment[2]), "=r"(fragment[3])
               : "r"(address));
}
// Starts an asynchronous copy of 16 bytes from global to shared memory. `shared` is a `shared_address`. The copies
// between two calls of `commit_copies` are a group; `wait_for_copies` waits for groups in order. It waits for the
// copies of the calling thread only, so a barrier must follow before other threads read them.
DEVICE void copy_async(u32 shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0],[%1],16;" ::"r"(shared), "l"(global));
}
// Starts an asynchronous copy of 4 bytes (a "word"), in the same groups: where addresses or lengths are not multiples
// of 16 bytes.
DEVICE void copy_word_async(u32 shared, const void* global) {
  asm volatile("cp.async.ca.shared.global [%0],[%1],4;" ::"r"(shared), "l"(global));
}
// Ends a group: the copies that this thread started since the last call.
DEVICE void commit_copies() { asm volatile("cp.async.commit_group;"); }
// Waits until at most the PENDING newest groups of this thread are unfinished.
template <int PENDING> DEVICE void wait_for_copies() { asm volatile("cp.async.wait_group %0;" ::"n"(PENDING)); }
// The address of shared memory in the form that the instructions above take: 32 bits, counted from its start.
DEVICE u32 shared_address(const void* pointer) { return (u32)__cvta_generic_to_shared(pointer); }
#endif

// Byte offset of a chunk (0 to 7) of a row of 128 bytes in shared memory. The swizzle moves chunk c of row r to place c
// ^ (r % 8), so the same chunk of eight consecutive rows is in eight different groups of banks, and eight lanes read it
// at once. wgmma expects the same pattern.
DEVICE u32 swizzled(int row, int chunk) { return (u32)(row * 128 + ((chunk ^ (row & 7)) << 4)); }

// Sums that do not depend on the order in which thread blocks add to them: floats are added as 64-bit integers with 20
// fractional bits ("fixed point"), because addition of integers is associative and that of floats is not. The
// resolution is 2^-20, about 1e-6, the range of a sum +-2^43.
#define FIXED_POINT 1048576.0f
// Adds `value`, rounded to the resolution, to *sum by an atomic operation. It must be finite and within the range.
DEVICE void add_exactly(i64* sum, float value) { atomicAdd((u64*)sum, (u64)__float2ll_rn(value * FIXED_POINT)); }
// The value of such a sum.
DEVICE double exact_sum(i64 sum) { return (double)sum / (double)FIXED_POINT; }

// Division of numbers from 0 to below 2^31 by a divisor that the host knows (src/divider.rs): one multiplication and
// one shift instead of the much slower integer division. multiplier = ceil(2^(31 + bits) / divisor) and shift = bits -
// 1, with bits the length of divisor - 1 in bits.
struct Divider {
  u32 divisor, multiplier, shift;
};
// The quotient number / by.divisor, rounded down.
DEVICE int divide(Divider by, int number) {
  return by.divisor == 1 ? number : (int)(__umulhi((u32)number, by.multiplier) >> by.shift);
}
// The remainder number % by.divisor.
DEVICE int remainder_of(Divider by, int number) { return number - divide(by, number) * (int)by.divisor; }

// The eight channels of a chunk as f32, and back.
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
// The bits of the nearest f16.
DEVICE u16 to_half(float value) { return (u16)(pack_half2(value, 0.f) & 0xffff); }

// The row of an output channel in a filter bank in shared memory, whose rows are permuted. Thread `quad` holds columns
// 2 quad and 2 quad + 1 of every 8-column fragment n of a product. With the permutation these are channels 16 quad + 2
// n and 16 quad + 2 n + 1, so over the 8 fragments it owns the 16 adjacent channels from 16 quad on: two whole chunks,
// which it can store with two writes. In other words, channel 16 q + 2 n + j, with j = 0 or 1, is row 8 n + 2 q + j.
DEVICE int row_of_channel(int channel) {
  return ((channel & 15) >> 1) * 8 + (channel >> 4) * 2 + (channel & 1);
}

// Position of pixel (row, column) of an image in a plane.
DEVICE long plane_position(int image, int row, int column, int pitch) {
  return ((long)image * pitch + row) * pitch + column;
}

// For kernels that run several networks at once (the tasks of MAML, tasks.cu): moves a pointer from the memory of the
// first task to that of task blockIdx.z. The memory of every task has the same layout, so the same `stride`, in bytes
// from one task to the next, is right for every pointer.
template <class T> DEVICE T* of_task(T* pointer, i64 stride) { return (T*)((u8*)pointer + (i64)blockIdx.z * stride); }

// The inputs and results of steps are in rings of this many slots: the host writes the inputs of up to 64 steps ahead
// and reads their results together afterwards, so it does not have to wait for the device after every step.
#define STEP_SLOTS 64

// What a training run of a Conv4 keeps on the device between steps. One per run; all kernels of a step read it.
struct TrainingState {
  u32 step;        // finished steps
  u32 updates;     // updates of the optimiser so far; a step that overflows makes none
  float scale;     // loss scale: the loss and all gradients are multiplied by it, so that they do not underflow in f16
  u32 good_steps;  // updates since the scale changed
  u32 overflow;    // not 0 if the current step must not update anything: GRADIENT_OVERFLOW, OTHER_SIZE or both
};
// A gradient or loss of the current step is not finite.
#define GRADIENT_OVERFLOW 1u
// The launched graph was recorded for a step of another size (`joint_begin` in joint.cu).
#define OTHER_SIZE 2u
// The slot of the current step.
DEVICE int step_slot(const TrainingState* state) { return state->step % STEP_SLOTS; }
