// The kernels of Conv4 for several networks at once, for MAML. A task is a small classification problem with a support
// set and queries, to which MAML adapts the network (maml.cu): every task has its own parameters, images and
// activations. A group of tasks runs in the same launch (src/maml.rs says how many). src/maml/pass.rs launches the
// kernels.
//
// blockIdx.z is the task within the group. All memory of a task is one piece, and the next task's follows `stride`
// bytes later, so `of_task` (common.cuh) moves every pointer by blockIdx.z * stride: arguments are the pointers of the
// group's first task. Apart from that, a kernel `task_x` is the kernel `x` of augment.cu, batch_norm.cu,
// convolution.cu, filter_gradient.cu or first_block.cu, which describe arguments, shared memory and the grid in x and
// y. The data set (pixels, sources), requests, scratch memory and prepared images are shared by all tasks and not
// moved.
#pragma once
#include "augment.cu"
#include "batch_norm.cu"
#include "filter_gradient.cu"
#include "first_block.cu"

// Where the images of a group of tasks are in the inputs of a step, [task of the step][images of a task].
struct TaskImages {
  int first_task;  // the number of the group's first task in the step
  int images;      // of a task: support set and queries
};

// `augment_images` (augment.cu). Grid: (images of a task, 1, tasks), 512 threads: a block makes one image. out: the
// input plane of the first task.
extern "C" __global__ void __launch_bounds__(AUGMENT_THREADS)
    task_augment_images(const u8* pixels, const SourceImage* sources, const ImageRequest* requests, float* scratch,
                        uint2* out, const TrainingState* state, AugmentShape shape, TaskImages tasks, i64 stride) {
  const int image = blockIdx.x, number = (tasks.first_task + blockIdx.z) * tasks.images + image;
  const ImageRequest request = requests[(long)step_slot(state) * shape.slot_len + number];
  augment_image(pixels, sources, request, augment_scratch(scratch, number, shape), of_task(out, stride), image, shape);
}

// `pack_floats` (augment.cu): images [task of the step][image][row][column][channel] f32. Grid: (ceil(size * size /
// 256), images of a task, tasks), 256 threads.
extern "C" __global__ void __launch_bounds__(256)
    task_pack_floats(const float* images, uint2* out, AugmentShape shape, TaskImages tasks, i64 stride) {
  const long first = (long)(tasks.first_task + blockIdx.z) * tasks.images;
  pack_image(images + first * shape.size * shape.size * shape.channels, of_task(out, stride), shape);
}

// Sets `count` 64-bit words of every task to zero: its sums, to which other kernels add. Grid: (any, 1, tasks), 256
// threads.
extern "C" __global__ void __launch_bounds__(256) task_clear(u64* words, int count, i64 stride) {
  words = of_task(words, stride);
  for (int i = blockIdx.x * 256 + threadIdx.x; i < count; i += gridDim.x * 256) words[i] = 0;
}

// Block 1: see first_block.cu.
extern "C" __global__ void __launch_bounds__(256, 2)
    task_patch_moments(const u32* image, i64* moments, FirstShape shape, i64 stride) {
  sum_patch_moments(of_task(image, stride), of_task(moments, stride), shape);
}

extern "C" __global__ void __launch_bounds__(1024)
    task_first_statistics(const i64* moments, const float* weights, const float* gamma, const float* beta, float* norm,
                          float* weighted, float count, i64 stride) {
  compute_first_statistics(of_task(moments, stride), of_task(weights, stride), of_task(gamma, stride), of_task(beta, stride),
                           of_task(norm, stride), of_task(weighted, stride), count);
}

extern "C" __global__ void __launch_bounds__(256, 1)
    task_first_forward(const u32* image, const uint2* filters, const float* norm, uint4* y, FirstShape shape, i64 stride) {
  compute_first_forward(of_task(image, stride), of_task(filters, stride), of_task(norm, stride), of_task(y, stride), shape);
}

extern "C" __global__ void __launch_bounds__(256, 1)
    task_first_backward(const u32* image, const uint2* filters, const float* norm, const uint4* dy, i64* d_patches,
                        FirstShape shape, i64 stride) {
  compute_first_backward(of_task(image, stride), of_task(filters, stride), of_task(norm, stride), of_task(dy, stride),
                         of_task(d_patches, stride), shape);
}

// Batch norm, ReLU and pooling: see batch_norm.cu.
extern "C" __global__ void __launch_bounds__(256)
    task_pool_batch(const uint4* z, const i64* sums, const float* gamma, const float* beta, uint4* y, uint4* normalised,
                    PoolShape shape, i64 stride) {
  normalise_and_pool(of_task(z, stride), of_task(sums, stride), of_task(gamma, stride), of_task(beta, stride),
                     of_task(y, stride), of_task(normalised, stride), shape);
}

extern "C" __global__ void __launch_bounds__(256)
    task_batch_norm_backward(const uint4* z, const i64* sums, const i64* d_sums, const float* gamma, const float* beta,
                             const uint4* dy, uint4* dz, PoolShape shape, i64 stride) {
  compute_norm_backward(of_task(z, stride), of_task(sums, stride), of_task(d_sums, stride), of_task(gamma, stride),
                        of_task(beta, stride), of_task(dy, stride), of_task(dz, stride), shape);
}

extern "C" __global__ void __launch_bounds__(256)
    task_sum_feature_gradients(const uint4* normalised, const uint4* dy, i64* d_sums, int images, int side,
                               Divider by_side, i64 stride) {
  add_feature_gradients(of_task(normalised, stride), of_task(dy, stride), of_task(d_sums, stride), images, side, by_side);
}

// The planes of task blockIdx.z. A null pointer is moved, too, so kernels must not test for it; kernels without a plane
// do not read it.
DEVICE SumPlanes planes_of_task(SumPlanes planes, i64 stride) {
  return {of_task(planes.first, stride), of_task(planes.tangent, stride), of_task(planes.d, stride)};
}

// Convolutions: see convolution.cu. `planes`: those that the kind of sums reads. The kinds with _added add to the
// output, for tangents (tangent.cu). M is the tile's number of positions divided by 128.
#define TASK_CONVOLUTION(name, M, SUMS)                                                                                  \
  extern "C" __global__ void __launch_bounds__(256, 1)                                                                   \
      name(const uint4* input, const uint4* filters, uint4* output, i64* totals, SumPlanes planes,                      \
           ConvolutionShape shape, i64 stride) {                                                                         \
    convolve<M, SUMS>(of_task(input, stride), of_task(filters, stride), of_task(output, stride),                        \
                      of_task(totals, stride), planes_of_task(planes, stride), shape);                                  \
  }
TASK_CONVOLUTION(task_convolution_forward_128, 1, FORWARD_SUMS)
TASK_CONVOLUTION(task_convolution_forward_256, 2, FORWARD_SUMS)
TASK_CONVOLUTION(task_convolution_backward_128, 1, BACKWARD_SUMS)
TASK_CONVOLUTION(task_convolution_backward_256, 2, BACKWARD_SUMS)
TASK_CONVOLUTION(task_convolution_128, 1, NO_SUMS)
TASK_CONVOLUTION(task_convolution_256, 2, NO_SUMS)
TASK_CONVOLUTION(task_convolution_added_128, 1, ADDED)
TASK_CONVOLUTION(task_convolution_added_256, 2, ADDED)
TASK_CONVOLUTION(task_convolution_added_forward_128, 1, ADDED_FORWARD_SUMS)
TASK_CONVOLUTION(task_convolution_added_forward_256, 2, ADDED_FORWARD_SUMS)
TASK_CONVOLUTION(task_convolution_added_backward_128, 1, ADDED_BACKWARD_SUMS)
TASK_CONVOLUTION(task_convolution_added_backward_256, 2, ADDED_BACKWARD_SUMS)

#ifdef WGMMA
#define TASK_CONVOLUTION_WGMMA(name, SUMS)                                                                               \
  extern "C" __global__ void __launch_bounds__(256, 2)                                                                   \
      name(const uint4* input, const uint4* filters, uint4* output, i64* totals, SumPlanes planes,                      \
           ConvolutionShape shape, i64 stride) {                                                                         \
    convolve_wgmma<SUMS>(of_task(input, stride), of_task(filters, stride), of_task(output, stride),                     \
                         of_task(totals, stride), planes_of_task(planes, stride), shape);                               \
  }
TASK_CONVOLUTION_WGMMA(task_convolution_forward_wgmma, FORWARD_SUMS)
TASK_CONVOLUTION_WGMMA(task_convolution_backward_wgmma, BACKWARD_SUMS)
TASK_CONVOLUTION_WGMMA(task_convolution_wgmma, NO_SUMS)
TASK_CONVOLUTION_WGMMA(task_convolution_added_wgmma, ADDED)
TASK_CONVOLUTION_WGMMA(task_convolution_added_forward_wgmma, ADDED_FORWARD_SUMS)
TASK_CONVOLUTION_WGMMA(task_convolution_added_backward_wgmma, ADDED_BACKWARD_SUMS)
#endif

DEVICE GradientPair pair_of_task(GradientPair pair, i64 stride) {
  return {of_task(pair.input, stride), of_task(pair.d_output, stride)};
}

// `filter_gradient` (filter_gradient.cu): partials [block][tap][ci][co] f32 of every task.
extern "C" __global__ void __launch_bounds__(GRADIENT_THREADS, 1)
    task_filter_gradient(GradientPair pair, float* partials, int tiles_per_block, ConvolutionShape shape, i64 stride) {
  sum_filter_gradient<false>(pair_of_task(pair, stride), {nullptr, nullptr}, of_task(partials, stride), tiles_per_block,
                             shape);
}

// The sum of the gradients of two pairs of planes, which is the tangent of the gradient (tangent.cu).
extern "C" __global__ void __launch_bounds__(GRADIENT_THREADS, 1)
    task_filter_gradient_two(GradientPair pair, GradientPair second, float* partials, int tiles_per_block,
                             ConvolutionShape shape, i64 stride) {
  sum_filter_gradient<true>(pair_of_task(pair, stride), pair_of_task(second, stride), of_task(partials, stride),
                            tiles_per_block, shape);
}
