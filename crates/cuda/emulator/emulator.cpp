// Runs the CUDA kernels on the CPU, for tests on machines without a GPU. The Rust side (src/driver/emulated.rs)
// compiles this file as a shared library and calls its two functions:
//
//   emulator_launch(name, x, y, z, threads, shared, arguments)  runs a kernel in x * y * z blocks of `threads` threads
//   emulator_set_exact(exact)                                   whether TF32 products keep the f32 values of their
//                                                               inputs
//
// This file defines what CUDA gives a kernel (threadIdx, barriers, shuffles, atomics, matrix and copy instructions) as
// plain C++ functions, then includes all kernels (kernels/kernels.cu). A CUDA thread becomes a fiber: a function with
// its own stack that runs until it waits at a barrier. Thread blocks run one after the other, so global variables stand
// for the current block, and `current` is the current thread. Matrix and copy instructions work on the same fragments
// (pieces of a matrix per lane) as on the GPU, so errors in layouts are found. Races and errors in the order of
// asynchronous copies are not: only one thread runs at a time, and copies are done at once.
//
// To compile it by hand:  c++ -O1 -std=c++17 -shared -fPIC -fno-gnu-unique -o libemulator.so emulator.cpp
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

// CUDA's keywords: kernels and device functions are plain functions, static shared memory is a static variable.
#define EMULATOR 1
#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__ inline
#define __launch_bounds__(...)
#define SHARED static
#define ASSUME_SHARED(pointer)

// CUDA's vector types and built-in variables.
using std::max;
using std::min;

struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
struct float2 {
  float x, y;
};
struct Dimensions {
  unsigned x, y, z;
};
static uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static float2 make_float2(float x, float y) { return {x, y}; }

static Dimensions threadIdx, blockIdx, blockDim, gridDim;
alignas(1024) static unsigned char dynamic_shared[232 * 1024];  // src/driver.rs limits a block to 227 KiB
static unsigned shared_len;  // bytes of dynamic_shared that the launch asked for

// ---- Fibers
// `switch_stack` pushes the six callee-saved registers on the current stack, stores the stack pointer in *from, and
// continues on the stack `to`, which has the same registers on top.
#if defined(__x86_64__)
extern "C" void switch_stack(void** from, void* to);
asm(".globl switch_stack\n"
    "switch_stack:\n"
    " push %rbp\n push %rbx\n push %r12\n push %r13\n push %r14\n push %r15\n"
    " mov %rsp,(%rdi)\n mov %rsi,%rsp\n"
    " pop %r15\n pop %r14\n pop %r13\n pop %r12\n pop %rbx\n pop %rbp\n ret\n");
#else
#error "the emulator runs on x86-64"
#endif

// A thread of the current block.
struct Fiber {
  void* stack_pointer;  // while it does not run
  char* stack;
  bool done;
  // The fiber waits until this counter of a barrier differs from `generation`; null: it does not wait.
  const int* barrier;
  int generation;
  bool can_run() const { return !done && (!barrier || *barrier != generation); }
};
static const size_t STACK_LEN = 256 * 1024;  // bytes per fiber
// The fibers of the current block, [threads of a block]. They are kept for later blocks until the library is unloaded.
static struct Fibers : std::vector<Fiber> {
  ~Fibers() {
    for (Fiber& fiber : *this) free(fiber.stack);
  }
} fibers;
static void* scheduler;  // the stack pointer of run_block, while a fiber runs
static int current, threads;  // the running thread; threads of a block
static std::function<void()> body;  // the kernel with its arguments

// Continues fiber number `fiber`; the caller's stack pointer is stored in *from.
static void resume(int fiber, void** from) {
  current = fiber;
  threadIdx = {(unsigned)fiber, 0, 0};
  switch_stack(from, fibers[fiber].stack_pointer);
}
// Waits until the counter `barrier` differs from `generation`. The next fiber of the same warp that can run continues
// directly; if no other fiber of the warp can run, the scheduler does.
static void wait_for(const int& barrier, int generation) {
  if (barrier != generation) return;
  const int own = current, warp = own & ~31, size = min(32, threads - warp);
  fibers[own].barrier = &barrier;
  fibers[own].generation = generation;
  for (int i = 1; i < size; i++) {
    const int next = warp + (own - warp + i) % size;
    if (fibers[next].can_run()) return resume(next, &fibers[own].stack_pointer);
  }
  switch_stack(&fibers[own].stack_pointer, scheduler);
}

// ---- Barriers
// A barrier counts the threads that have arrived. The last one sets the count to zero and increments the barrier's
// generation, which releases those that wait. A thread that has returned from the kernel counts as arrived, as on a
// GPU. Warps are [64], twice the 32 of the largest block.
static int block_arrived, block_generation, warp_arrived[64], warp_generation[64], finished_in_block, finished_in_warp[64];
static void __syncthreads() {
  const int generation = block_generation;
  if (++block_arrived + finished_in_block >= threads) {
    block_arrived = 0;
    block_generation++;
  }
  wait_for(block_generation, generation);
}
static void __syncwarp() {
  const int warp = current >> 5, size = min(32, threads - warp * 32), generation = warp_generation[warp];
  if (++warp_arrived[warp] + finished_in_warp[warp] >= size) {
    warp_arrived[warp] = 0;
    warp_generation[warp]++;
  }
  wait_for(warp_generation[warp], generation);
}
// A returning thread may be the one that the others of its block or warp wait for.
static void note_finished(int fiber) {
  finished_in_block++;
  finished_in_warp[fiber >> 5]++;
  const int warp = fiber >> 5, size = min(32, threads - warp * 32);
  if (block_arrived > 0 && block_arrived + finished_in_block >= threads) {
    block_arrived = 0;
    block_generation++;
  }
  if (warp_arrived[warp] > 0 && warp_arrived[warp] + finished_in_warp[warp] >= size) {
    warp_arrived[warp] = 0;
    warp_generation[warp]++;
  }
}
// Where the stack of a new fiber begins: the kernel, then never to be resumed.
static void run_fiber() {
  body();
  fibers[current].done = true;
  note_finished(current);
  switch_stack(&fibers[current].stack_pointer, scheduler);
}

// ---- Instructions
// Instructions of a whole warp: every lane writes its operands to memory of the warp, waits for all lanes, reads the
// operands of others, and waits again before they may be overwritten.
struct WarpExchange {
  unsigned a[32][4], b[32][2], address[32];
  float value[32];
};
static WarpExchange exchange[64];

static float __shfl_xor_sync(unsigned, float value, int distance) {
  WarpExchange& warp = exchange[current >> 5];
  const int lane = current & 31;
  warp.value[lane] = value;
  __syncwarp();
  const float other = warp.value[lane ^ distance];
  __syncwarp();
  return other;
}
static unsigned __shfl_sync(unsigned, unsigned value, int from) {
  static unsigned values[64][32];
  unsigned* own = values[current >> 5];
  own[current & 31] = value;
  __syncwarp();
  const unsigned other = own[from];
  __syncwarp();
  return other;
}
static double __shfl_xor_sync(unsigned, double value, int distance) {
  static double values[64][32];
  double* own = values[current >> 5];
  const int lane = current & 31;
  own[lane] = value;
  __syncwarp();
  const double other = own[lane ^ distance];
  __syncwarp();
  return other;
}
static unsigned __float_as_uint(float value) {
  unsigned bits;
  memcpy(&bits, &value, 4);
  return bits;
}
static float __uint_as_float(unsigned bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
static unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((unsigned long long)a * b) >> 32); }
// As on the GPU for numbers; NaN and infinite values become the smallest integer.
static long long __float2ll_rn(float value) { return std::isfinite(value) ? llrintf(value) : INT64_MIN; }
static float rsqrtf(float value) { return 1.f / sqrtf(value); }
// Only one thread runs at a time, so atomic operations are plain ones.
static unsigned long long atomicAdd(unsigned long long* address, unsigned long long value) {
  const auto old = *address;
  *address += value;
  return old;
}
static unsigned atomicOr(unsigned* address, unsigned value) {
  const auto old = *address;
  *address |= value;
  return old;
}
static unsigned atomicMax(unsigned* address, unsigned value) {
  const auto old = *address;
  *address = max(old, value);
  return old;
}
static unsigned pack_half2(float low, float high) {
  const _Float16 halves[2] = {(_Float16)low, (_Float16)high};
  unsigned pair;
  memcpy(&pair, halves, 4);
  return pair;
}
// The f16 with these bits as a float: shifting the exponent and multiplying by 2^112 also handles subnormal numbers. A
// conversion by the compiler would call a function, which is slower.
static float unpack_half(unsigned half) {
  const unsigned magnitude = (half & 0x7fff) << 13, sign = (half & 0x8000) << 16;
  const float value = __uint_as_float(magnitude) * 0x1p112f;
  unsigned bits;
  memcpy(&bits, &value, 4);
  if (magnitude >= 0x7c00u << 13) bits = magnitude | 0x7f800000;  // infinite or NaN
  return __uint_as_float(bits | sign);
}
static float2 unpack_half2(unsigned pair) { return {unpack_half(pair & 0xffff), unpack_half(pair >> 16)}; }
// The instructions of kernels/common.cuh, which describes their operands. The sums are f32, in the order of k.
static void mma_f16(float* d, const unsigned* a, const unsigned* b) {
  static float2 all_a[64][32][4], all_b[64][32][2];
  float2 (*warp_a)[4] = all_a[current >> 5];
  float2 (*warp_b)[2] = all_b[current >> 5];
  const int lane = current & 31, group = lane >> 2, quad = lane & 3;
  for (int i = 0; i < 4; i++) warp_a[lane][i] = unpack_half2(a[i]);
  for (int i = 0; i < 2; i++) warp_b[lane][i] = unpack_half2(b[i]);
  __syncwarp();
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++) {
      float sum = d[i * 2 + j];
      for (int k = 0; k < 8; k++) {
        const float2 row = warp_a[group * 4 + (k & 3)][(k >> 2) * 2 + i];
        const float2 column = warp_b[(2 * quad + j) * 4 + (k & 3)][k >> 2];
        sum += row.x * column.x;
        sum += row.y * column.y;
      }
      d[i * 2 + j] = sum;
    }
  __syncwarp();
}
// Whether inputs of TF32 products keep their f32 values. Then only the order of sums differs from the CPU's, so tests
// can be strict.
static bool exact;
extern "C" void emulator_set_exact(int value) { exact = value != 0; }
static unsigned to_tf32(float value) {
  unsigned bits;
  memcpy(&bits, &value, 4);
  return exact ? bits : (bits + 0x1000) & 0xffffe000u;
}
static unsigned tf32_operand(float value) { return to_tf32(value); }
static void mma_tf32(float* d, const unsigned* a, const unsigned* b) {
  WarpExchange& warp = exchange[current >> 5];
  const int lane = current & 31, group = lane >> 2, quad = lane & 3;
  memcpy(warp.a[lane], a, 16);
  memcpy(warp.b[lane], b, 8);
  __syncwarp();
  for (int i = 0; i < 2; i++)
    for (int j = 0; j < 2; j++)
      for (int k = 0; k < 8; k++) {
        const float row = __uint_as_float(warp.a[group * 4 + (k & 3)][(k >> 2) * 2 + i]);
        const float column = __uint_as_float(warp.b[(2 * quad + j) * 4 + (k & 3)][k >> 2]);
        d[i * 2 + j] += row * column;
      }
  __syncwarp();
}
// Stops the program if 16 bytes at this offset are not aligned, or not within the memory of the launch.
static void check_shared(const char* what, unsigned address) {
  if ((address & 15) == 0 && address + 16 <= shared_len) return;
  fprintf(stderr, "%s at byte %u of %u bytes of shared memory\n", what, address, shared_len);
  abort();
}
// load_matrices and load_matrices_transposed: two numbers of each of four 8x8 matrices for every lane.
static void load_fragments(unsigned* fragment, unsigned address, bool transposed) {
  WarpExchange& warp = exchange[current >> 5];
  const int lane = current & 31, group = lane >> 2, quad = lane & 3;
  check_shared("ldmatrix", address);
  warp.address[lane] = address;
  __syncwarp();
  for (int matrix = 0; matrix < 4; matrix++) {
    uint16_t values[2];
    for (int i = 0; i < 2; i++) {
      const int row = transposed ? 2 * quad + i : group, column = transposed ? group : 2 * quad + i;
      memcpy(&values[i], dynamic_shared + warp.address[matrix * 8 + row] + column * 2, 2);
    }
    fragment[matrix] = values[0] | (unsigned)values[1] << 16;
  }
  __syncwarp();
}
static void load_matrices(unsigned* fragment, unsigned address) { load_fragments(fragment, address, false); }
static void load_matrices_transposed(unsigned* fragment, unsigned address) { load_fragments(fragment, address, true); }
// Asynchronous copies are done at once, so waiting for them does nothing. Shared addresses are offsets in
// dynamic_shared.
static void copy_async(unsigned address, const void* global) {
  check_shared("cp.async", address);
  memcpy(dynamic_shared + address, global, 16);
}
static void copy_word_async(unsigned address, const void* global) {
  if ((address & 3) || address + 4 > shared_len) {
    fprintf(stderr, "cp.async of 4 bytes at byte %u of %u bytes of shared memory\n", address, shared_len);
    abort();
  }
  memcpy(dynamic_shared + address, global, 4);
}
static void commit_copies() {}
template <int PENDING> static void wait_for_copies() {}
static unsigned shared_address(const void* pointer) { return (unsigned)((const unsigned char*)pointer - dynamic_shared); }

#include "../kernels/kernels.cu"

// ---- Launches
// A Launcher takes the arguments of a launch, an array of pointers to their values, and returns the kernel bound to
// copies of them; the types come from the kernel's signature. `kernels` finds the launcher by the name that the Rust
// side uses.
using Launcher = std::function<std::function<void()>(const void* const*)>;
template <class... A, size_t... I>
static std::function<void()> bind_arguments(void (*kernel)(A...), const void* const* arguments, std::index_sequence<I...>) {
  std::tuple<A...> values{*(const A*)arguments[I]...};
  return [=] { std::apply(kernel, values); };
}
template <class... A> static Launcher launcher(void (*kernel)(A...)) {
  return [=](const void* const* arguments) { return bind_arguments(kernel, arguments, std::index_sequence_for<A...>{}); };
}
// A kernel in the global namespace, in namespace relabel, and in namespace efficientnet.
#define KERNEL(name) {#name, launcher(name)}
#define RELABEL_KERNEL(name) {#name, launcher(relabel::name)}
#define EFFICIENTNET_KERNEL(name) {#name, launcher(efficientnet::name)}
static const std::map<std::string, Launcher>& kernels() {
  static const std::map<std::string, Launcher> all = {
      KERNEL(augment_images), KERNEL(pack_floats), KERNEL(pack_bytes), KERNEL(pool_batch), KERNEL(pool_running),
      KERNEL(batch_norm_backward), KERNEL(sum_feature_gradients), KERNEL(convolution_forward_128),
      KERNEL(convolution_forward_256), KERNEL(convolution_backward_128), KERNEL(convolution_backward_256),
      KERNEL(convolution_128), KERNEL(convolution_256), KERNEL(filter_gradient), KERNEL(patch_moments),
      KERNEL(first_statistics), KERNEL(first_forward), KERNEL(first_backward), KERNEL(collect_gradients),
      KERNEL(update_parameters), KERNEL(pack_filters), KERNEL(finish_step), KERNEL(prototype_means),
      KERNEL(prototype_medians), KERNEL(query_losses), KERNEL(prototype_gradients), KERNEL(median_gradients),
      KERNEL(write_features), KERNEL(joint_begin), KERNEL(joint_prototypes), KERNEL(joint_query_losses),
      KERNEL(joint_prototype_gradients), KERNEL(joint_feature_gradient), KERNEL(joint_feature_mean), KERNEL(joint_average),
      KERNEL(joint_centre), KERNEL(joint_centre_backward),
      KERNEL(class_cosines), KERNEL(margin_losses), KERNEL(cosine_feature_gradients),
      KERNEL(class_gradients), KERNEL(sum_squares), KERNEL(update_class_weights),
      KERNEL(task_augment_images), KERNEL(task_pack_floats), KERNEL(task_clear), KERNEL(task_patch_moments),
      KERNEL(task_first_statistics), KERNEL(task_first_forward), KERNEL(task_first_backward), KERNEL(task_pool_batch),
      KERNEL(task_batch_norm_backward), KERNEL(task_sum_feature_gradients), KERNEL(task_convolution_forward_128),
      KERNEL(task_convolution_forward_256), KERNEL(task_convolution_backward_128), KERNEL(task_convolution_backward_256),
      KERNEL(task_convolution_128), KERNEL(task_convolution_256), KERNEL(task_convolution_added_128),
      KERNEL(task_convolution_added_256), KERNEL(task_convolution_added_forward_128),
      KERNEL(task_convolution_added_forward_256), KERNEL(task_convolution_added_backward_128),
      KERNEL(task_convolution_added_backward_256), KERNEL(task_filter_gradient), KERNEL(task_filter_gradient_two),
      KERNEL(begin_tasks), KERNEL(classify), KERNEL(adapt_parameters), KERNEL(query_gradients), KERNEL(add_task_gradients),
      KERNEL(update_shared), KERNEL(finish_meta_step), KERNEL(pack_direction), KERNEL(first_tangent_statistics),
      KERNEL(first_forward_tangent), KERNEL(pool_tangent), KERNEL(batch_norm_backward_tangent),
      KERNEL(sum_feature_tangents), KERNEL(classify_tangent), KERNEL(propagate_gradients),
      KERNEL(tranfs_project), KERNEL(tranfs_layer), KERNEL(tranfs_layer_large), KERNEL(tranfs_attend),
      KERNEL(tranfs_attend_large), KERNEL(tranfs_attend_back_large), KERNEL(tranfs_layer_back_large), KERNEL(tranfs_prototypes),
      KERNEL(tranfs_losses), KERNEL(tranfs_losses_large), KERNEL(tranfs_clean_means), KERNEL(tranfs_layer_back), KERNEL(tranfs_attend_back), KERNEL(tranfs_class_means_back),
      KERNEL(tranfs_gradients), KERNEL(tranfs_update), KERNEL(tranfs_begin), KERNEL(tranfs_direction),
      KERNEL(tranfs_losses_joint), KERNEL(tranfs_losses_joint_large), KERNEL(tranfs_query_gradients),
      KERNEL(tranfs_item_gradients), KERNEL(tranfs_gradients_joint), KERNEL(tranfs_update_joint),
      RELABEL_KERNEL(relabel_gram), RELABEL_KERNEL(relabel_features),
      RELABEL_KERNEL(relabel_input), RELABEL_KERNEL(relabel_attend), RELABEL_KERNEL(relabel_mix),
      RELABEL_KERNEL(relabel_losses), RELABEL_KERNEL(relabel_output_backward),
      RELABEL_KERNEL(relabel_attend_backward_rows), RELABEL_KERNEL(relabel_attend_backward_columns),
      RELABEL_KERNEL(relabel_edges_backward), RELABEL_KERNEL(relabel_products), RELABEL_KERNEL(relabel_collect),
      RELABEL_KERNEL(relabel_pack), RELABEL_KERNEL(relabel_update), RELABEL_KERNEL(relabel_joint_features),
      RELABEL_KERNEL(relabel_joint_losses), RELABEL_KERNEL(relabel_view_scales), RELABEL_KERNEL(relabel_queries_backward),
      RELABEL_KERNEL(relabel_edge_features_backward), RELABEL_KERNEL(relabel_gram_backward),
      RELABEL_KERNEL(relabel_rows_backward), RELABEL_KERNEL(relabel_joint_update),
      EFFICIENTNET_KERNEL(efficientnet_stem), EFFICIENTNET_KERNEL(efficientnet_depthwise_3_1),
      EFFICIENTNET_KERNEL(efficientnet_depthwise_3_2), EFFICIENTNET_KERNEL(efficientnet_depthwise_5_1),
      EFFICIENTNET_KERNEL(efficientnet_depthwise_5_2), EFFICIENTNET_KERNEL(efficientnet_mean),
      EFFICIENTNET_KERNEL(efficientnet_pointwise_32), EFFICIENTNET_KERNEL(efficientnet_pointwise_64),
      EFFICIENTNET_KERNEL(efficientnet_pointwise_96), EFFICIENTNET_KERNEL(efficientnet_pointwise_128)};
  return all;
}

// Runs all threads of the block blockIdx. Shared memory starts as NaN (all bits set), so a kernel that reads shared
// memory before writing it gives a wrong result.
static void run_block() {
  memset(dynamic_shared, 0xff, shared_len);
  block_arrived = finished_in_block = 0;
  memset(warp_arrived, 0, sizeof warp_arrived);
  memset(finished_in_warp, 0, sizeof finished_in_warp);
  for (int i = 0; i < threads; i++) {
    // The top of a new stack looks as `switch_stack` left it: six registers, then run_fiber as return address. 64 bytes
    // and a null return address keep the alignment that the calling convention prescribes.
    void** top = (void**)(fibers[i].stack + STACK_LEN - 64);
    *--top = nullptr;
    *--top = (void*)run_fiber;
    fibers[i].stack_pointer = top - 6;
    fibers[i].done = false;
    fibers[i].barrier = nullptr;
  }
  // Round after round over the fibers, until all have returned. A round without a fiber that could run is a deadlock.
  for (int running = threads; running;) {
    bool moved = false;
    // A fiber switches to others of its warp by itself (`wait_for`), so a warp runs as long as it can, and its
    // collective instructions cost few turns of this loop. After it stopped, the search starts again at the warp's
    // first fiber.
    for (int i = 0; i < threads; i++)
      while (fibers[i].can_run()) {
        moved = true;
        resume(i, &scheduler);
        i &= ~31;
      }
    running = threads - finished_in_block;
    if (running && !moved) {
      fprintf(stderr, "deadlock: the %d running threads of a block wait at different barriers\n", running);
      abort();
    }
  }
}

// Runs the kernel `name` in x * y * z blocks of `block` threads with `shared` bytes of dynamic shared memory.
// arguments: a pointer to the value of each argument. Returns 1 if there is no such kernel or a size is not possible,
// else 0.
extern "C" int emulator_launch(const char* name, unsigned x, unsigned y, unsigned z, unsigned block, unsigned shared,
                               const void* const* arguments) {
  const auto found = kernels().find(name);
  if (found == kernels().end() || shared > sizeof dynamic_shared || block > 1024) return 1;
  body = found->second(arguments);
  threads = block;
  shared_len = shared;
  blockDim = {block, 1, 1};
  gridDim = {x, y, z};
  while ((int)fibers.size() < threads) fibers.push_back({nullptr, (char*)aligned_alloc(64, STACK_LEN), false, nullptr, 0});
  for (unsigned layer = 0; layer < z; layer++)
    for (unsigned row = 0; row < y; row++)
      for (unsigned column = 0; column < x; column++) {
        blockIdx = {column, row, layer};
        run_block();
      }
  return 0;
}
