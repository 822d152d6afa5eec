// MAML (model-agnostic meta-learning): a Conv4 with a linear classifier is adapted to the support set of each task by a
// few steps of gradient descent; training updates the shared parameters, from which all tasks start, by the gradient of
// the queries' loss at the adapted parameters. src/maml/pass.rs launches the kernels for a group of tasks at once:
//
//   begin_tasks; per step of the adaptation: Conv4 forward (tasks.cu), classify, backward (tasks.cu), adapt_parameters;
//   then for the queries: forward, classify, backward, query_gradients;
//   with second derivatives, for each step of the adaptation from the last to the first: tangent.cu;
//   add_task_gradients; after all groups: update_shared, finish_meta_step.
//
// "Step" alone is a training step, which updates the shared parameters once, by the gradients of several tasks.
//
// blockIdx.z is the task in its group. Pointers to the memory of a task are those of the group's first task; `of_task`
// (common.cuh) moves them by blockIdx.z * stride bytes. A "pass" is one forward and backward pass over the support set
// or the queries; its images are "rows".
//
//   shared      f32, parameters in the layout of the CPU: Conv4 (optimiser.cu), then classifier weights
//               [channel][pixel][way], biases [way]
//   parameters  f32, of a task: the same, but classifier weights [pixel][channel][way], the order of the features.
//               Biases of convolutions and running statistics are not set: batch norm always uses the statistics of the
//               batch, which also cancel the biases.
//   features    plane (common.cuh) of the last block: 64 channels of f16 per position, side * side positions per image,
//               in chunks of 8 channels
//   labels      [slot][task of the step][images of a task] u32: of the support set, then of the queries; the slot is
//               that of the step (common.cuh)
//   d_logits    [rows][ways] f32, times the loss scale
#pragma once
#include "optimiser.cu"
#include "prototypes.cu"
#include "tasks.cu"

// Sizes of a step, a group and a pass.
struct MamlShape {
  Conv4Layout layout;  // positions of the parameters of Conv4
  int conv4_len;       // parameters before the classifier
  int ways;            // classes of a task
  int chunks;          // of an image's features: side * side * 8
  int side;            // height and width of the features
  Divider by_side;
  int tasks;           // of a step
  int first_task;      // of the group
  int images;          // of a task
  int first_image;     // of the pass: 0 for the support set, its size for the queries
  int rows;            // images of the pass
};

// The labels of the task's rows in the current step.
DEVICE const u32* labels_of_pass(const u32* labels, const TrainingState* state, const MamlShape& shape) {
  const long task = (long)step_slot(state) * shape.tasks + shape.first_task + blockIdx.z;
  return labels + task * shape.images + shape.first_image;
}

// The position of a chunk of an image's features in their plane, in chunks.
DEVICE long feature_chunk(const MamlShape& shape, int image, int chunk) {
  const int pixel = chunk >> 3, row = divide(shape.by_side, pixel);
  return plane_position(image, row, pixel - row * shape.side, shape.side + 1) * 8 + (chunk & 7);
}

// An element is a parameter that has a gradient; each has one thread of the kernels below. Their order is that in which
// gradients are read fastest, not that of the parameters: filters of blocks 2 to 4 [3][tap][ci][co], [64][50] of block
// 1, [3][gamma, beta][64], classifier weights [feature][way], biases [way].
enum ElementKind { FILTER_ELEMENT, FIRST_ELEMENT, NORM_ELEMENT, CLASSIFIER_ELEMENT, BIAS_ELEMENT, NO_ELEMENT };
// The element of a thread. The fields after `kind` are set as far as the kind has them.
struct Element {
  ElementKind kind;  // NO_ELEMENT: the thread has nothing to do
  int at;            // position in the parameters of a task
  int shared;        // position in the shared parameters; only classifier weights differ
  int block;         // FILTER_ELEMENT, NORM_ELEMENT: 0 to 2, block 2 to 4
  int number;        // FILTER_ELEMENT: [tap][ci][co]; CLASSIFIER_ELEMENT: the feature, [pixel][channel]
  int channel;       // FIRST_ELEMENT, NORM_ELEMENT
  // FIRST_ELEMENT: number in the patch, 48: gamma, 49: beta; NORM_ELEMENT: 0: gamma, 1: beta; else the way.
  int part;
};
// The element of thread number `index` of the grid. Threads of block 1 whose number in the patch is not a weight
// (first_block.cu) have none.
DEVICE Element element_of(int index, const MamlShape& shape) {
  Element e;
  e.kind = NO_ELEMENT;
  e.at = -1;
  if (index < 3 * FILTER_LEN) {
    e.kind = FILTER_ELEMENT;
    e.block = index / FILTER_LEN;
    e.number = index - e.block * FILTER_LEN;
    // [tap][ci][co] with 64 = 2^6 channels each.
    const int tap = e.number >> 12, ci = (e.number >> 6) & 63, co = e.number & 63;
    e.at = e.shared = block_start(shape.layout, e.block + 1) + (co * CHANNELS + ci) * TAPS + tap;
    return e;
  }
  index -= 3 * FILTER_LEN;
  // 50 per channel: the 48 numbers of a patch [3 rows][4 columns][4 inputs], gamma, beta.
  if (index < CHANNELS * 50) {
    e.channel = index / 50;
    e.part = index - e.channel * 50;
    const int row = e.part >> 4, column = (e.part >> 2) & 3, input = e.part & 3, inputs = shape.layout.inputs;
    if (e.part >= PATCH_LEN) e.at = parts_start(shape.layout, 0) + (e.part == PATCH_LEN ? GAMMA : BETA) + e.channel;
    else if (column < 3 && input < inputs) e.at = (e.channel * inputs + input) * TAPS + row * 3 + column;
    e.shared = e.at;
    if (e.at >= 0) e.kind = FIRST_ELEMENT;
    return e;
  }
  index -= CHANNELS * 50;
  if (index < 3 * 2 * CHANNELS) {
    e.kind = NORM_ELEMENT;
    e.block = index >> 7;
    e.part = (index >> 6) & 1;
    e.channel = index & 63;
    e.at = e.shared = parts_start(shape.layout, e.block + 1) + (e.part ? BETA : GAMMA) + e.channel;
    return e;
  }
  index -= 3 * 2 * CHANNELS;
  const int features = shape.chunks * 8;
  if (index < features * shape.ways) {
    e.kind = CLASSIFIER_ELEMENT;
    e.number = index / shape.ways;
    e.part = index - e.number * shape.ways;
    e.at = shape.conv4_len + index;
    const int pixel = e.number >> 6, channel = e.number & 63;
    e.shared = shape.conv4_len + (channel * (shape.chunks >> 3) + pixel) * shape.ways + e.part;
    return e;
  }
  index -= features * shape.ways;
  if (index < shape.ways) {
    e.kind = BIAS_ELEMENT;
    e.part = index;
    e.at = e.shared = shape.conv4_len + features * shape.ways + index;
  }
  return e;
}

// The 16-bit copies of a task's filters that the kernels of Conv4 read.
struct PackedFilters {
  u16 *forward, *backward;  // blocks 2 to 4, and transposed and flipped (convolution.cu)
  u16* first;               // block 1, fragments (first_block.cu)
  float* first_weights;     // block 1, [64][48], rounded to f16
};
// The same pointers for task blockIdx.z.
DEVICE PackedFilters packed_of_task(PackedFilters packed, i64 stride) {
  return {of_task(packed.forward, stride), of_task(packed.backward, stride), of_task(packed.first, stride),
          of_task(packed.first_weights, stride)};
}
// Position of a weight of block 1 among the halves of its fragments, the inverse of the loop in `pack_first_filters`
// (optimiser.cu): every thread writes its own weight.
DEVICE int first_fragment_position(int channel, int part) {
  const int k = part >> 4, group = (channel >> 4) * 2 + (channel & 1), n = (channel & 15) >> 1, quad = (part & 7) >> 1;
  return ((k * 8 + n) * 32 + group * 4 + quad) * 4 + ((part >> 3) & 1) * 2 + (part & 1);
}
// Writes the 16-bit copies of an element that is a filter weight.
DEVICE void pack_element(const Element& e, float value, PackedFilters packed) {
  if (e.kind == FILTER_ELEMENT)
    pack_filter(packed.forward, packed.backward, e.block, e.number & 63, (e.number >> 6) & 63, e.number >> 12, value);
  if (e.kind == FIRST_ELEMENT && e.part < PATCH_LEN) {
    const u16 half = to_half(value);
    packed.first[first_fragment_position(e.channel, e.part)] = half;
    packed.first_weights[e.channel * PATCH_LEN + e.part] = unpack_half2(half).x;
  }
}

// Sets the parameters of every task to the shared ones. Grid: (ceil(elements / 256), 1, tasks), 256 threads: one
// element each.
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS)
    begin_tasks(const float* shared, float* parameters, PackedFilters packed, MamlShape shape, i64 stride) {
  const Element e = element_of(blockIdx.x * UPDATE_THREADS + threadIdx.x, shape);
  if (e.kind == NO_ELEMENT) return;
  const float value = shared[e.shared];
  of_task(parameters, stride)[e.at] = value;
  pack_element(e, value, packed_of_task(packed, stride));
}

// The linear classifier forward and backward: logits, losses, and the gradients d_logits and d_features (plane, times
// the loss scale). Grid: (rows, 1, tasks), 256 threads; a block has one image, each thread a few chunks of its
// features. Shared memory: partial logits [8 warps][ways], then logits, later their gradients, [ways]. The softmax is
// by one thread, between barriers. losses: [task of the step][rows] or null; all_logits: [task of the step][rows][ways]
// or null.
extern "C" __global__ void __launch_bounds__(256)
    classify(const uint4* features, const u32* labels, const float* parameters, float* d_logits, uint4* d_features,
             float* losses, float* all_logits, const TrainingState* state, MamlShape shape, i64 stride) {
  labels = labels_of_pass(labels, state, shape);
  features = of_task(features, stride);
  const int ways = shape.ways, row = blockIdx.x, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const float* weights = of_task(parameters, stride) + shape.conv4_len;
  const float* biases = weights + (long)shape.chunks * 8 * ways;
  float* partial = (float*)dynamic_shared;  // [8 warps][ways]
  float* logits = partial + 8 * ways;       // [ways]
  for (int way = 0; way < ways; way++) {
    float sum = 0.f;
    for (int chunk = threadIdx.x; chunk < shape.chunks; chunk += 256) {
      float values[8];
      unpack8(features[feature_chunk(shape, row, chunk)], values);
#pragma unroll
      for (int i = 0; i < 8; i++) sum += values[i] * weights[(long)(chunk * 8 + i) * ways + way];
    }
    for (int distance = 16; distance; distance >>= 1) sum += __shfl_xor_sync(FULL_WARP, sum, distance);
    if (lane == 0) partial[warp * ways + way] = sum;
  }
  __syncthreads();
  for (int way = threadIdx.x; way < ways; way += 256) {
    float sum = 0.f;
    for (int w = 0; w < 8; w++) sum += partial[w * ways + way];
    logits[way] = sum + biases[way];
  }
  __syncthreads();
  const long number = (long)(shape.first_task + blockIdx.z) * shape.rows + row;
  if (threadIdx.x == 0) {
    const int own = labels[row];
    float largest = logits[0], total = 0.f;
    for (int way = 1; way < ways; way++) largest = fmaxf(largest, logits[way]);
    for (int way = 0; way < ways; way++) total += expf(logits[way] - largest);
    if (losses) losses[number] = logf(total) + largest - logits[own];
    const float factor = state->scale / shape.rows;  // of the mean over the rows, times the loss scale
    for (int way = 0; way < ways; way++) {
      if (all_logits) all_logits[number * ways + way] = logits[way];
      const float d = (expf(logits[way] - largest) / total - (way == own ? 1.f : 0.f)) * factor;
      logits[way] = d;
      of_task(d_logits, stride)[row * ways + way] = d;
    }
  }
  __syncthreads();
  d_features = of_task(d_features, stride);
  for (int chunk = threadIdx.x; chunk < shape.chunks; chunk += 256) {
    float d[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
    for (int way = 0; way < ways; way++)
#pragma unroll
      for (int i = 0; i < 8; i++) d[i] += logits[way] * weights[(long)(chunk * 8 + i) * ways + way];
    d_features[feature_chunk(shape, row, chunk)] = pack8(d);
  }
}

// Where the gradients of a pass come from: sums that the backward pass left (optimiser.cu), features (plane) and
// d_logits.
struct PassGradients {
  FilterPartials partials;
  NormSums sums;
  const uint4* features;
  const float* d_logits;
};
// The same pointers for task blockIdx.z.
DEVICE NormSums sums_of_task(NormSums in, i64 stride) {
  in.sums = of_task(in.sums, stride);
  in.d_sums = of_task(in.d_sums, stride);
  in.moments = of_task(in.moments, stride);
  in.d_patches = of_task(in.d_patches, stride);
  in.norm = of_task(in.norm, stride);
  in.weighted = of_task(in.weighted, stride);
  in.weights = of_task(in.weights, stride);
  return in;
}

// Gradient of a classifier weight: sum over the rows of feature * d_logit. In the code, `half` is this feature of the
// first row, and image_len the f16 numbers from one image to the next.
DEVICE float classifier_gradient(const uint4* features, const float* d_logits, int feature, int way, const MamlShape& shape) {
  const u16* half = (const u16*)(features + feature_chunk(shape, 0, feature >> 3)) + (feature & 7);
  const long image_len = plane_position(1, 0, 0, shape.side + 1) * CHANNELS;
  float sum = 0.f;
#pragma unroll 8
  for (int row = 0; row < shape.rows; row++)
    sum += unpack_half2(half[row * image_len]).x * d_logits[row * shape.ways + way];
  return sum;
}
// Gradient of a bias of the classifier: sum over the rows of d_logit.
DEVICE float bias_gradient(const float* d_logits, int way, const MamlShape& shape) {
  float sum = 0.f;
  for (int row = 0; row < shape.rows; row++) sum += d_logits[row * shape.ways + way];
  return sum;
}

// The gradient of an element, times the loss scale.
DEVICE float element_gradient(const Element& e, const PassGradients& in, const MamlShape& shape, i64 stride) {
  switch (e.kind) {
    case FILTER_ELEMENT: return sum_partials(of_task(in.partials.first, stride), in.partials, e.block, e.number);
    case FIRST_ELEMENT: return first_gradient(sums_of_task(in.sums, stride), e.channel, e.part);
    case NORM_ELEMENT: {
      const i64* d_sums = of_task(in.sums.d_sums, stride) + e.block * 2 * CHANNELS;
      return (float)exact_sum(d_sums[(e.part ? 0 : CHANNELS) + e.channel]);
    }
    case CLASSIFIER_ELEMENT:
      return classifier_gradient(of_task(in.features, stride), of_task(in.d_logits, stride), e.number, e.part, shape);
    case BIAS_ELEMENT: return bias_gradient(of_task(in.d_logits, stride), e.part, shape);
    default: return 0.f;
  }
}

// A step of gradient descent: to = from - rate * gradient, and the 16-bit copies of the new filters. Grid:
// (ceil(elements / 256), 1, tasks), 256 threads: one element each. The gradient of block 1 also depends on weights of
// other threads (`first_gradient`), so `packed` must not be the memory that `in` points to. Sets `overflow` in the
// state (1u is GRADIENT_OVERFLOW) if a gradient is not finite.
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS)
    adapt_parameters(PassGradients in, const float* from, float* to, PackedFilters packed, float rate, TrainingState* state,
                     MamlShape shape, i64 stride) {
  const Element e = element_of(blockIdx.x * UPDATE_THREADS + threadIdx.x, shape);
  if (e.kind == NO_ELEMENT) return;
  const float gradient = element_gradient(e, in, shape, stride);
  if (!is_finite(gradient)) atomicOr(&state->overflow, 1u);
  const float value = of_task(from, stride)[e.at] - rate * (gradient / state->scale);
  of_task(to, stride)[e.at] = value;
  pack_element(e, value, packed_of_task(packed, stride));
}

// *maximum = the larger of *maximum and the largest absolute value of the threads of a block of 256, as the bits of a
// float: for positive floats, the order of the bits as integers is the order of the numbers. Maxima do not depend on
// the order, so any number of blocks can add to one. Contains a barrier.
DEVICE void add_maximum(float value, u32* maximum) {
  SHARED float scratch[UPDATE_THREADS / 32];
  float largest = fabsf(value);
  for (int distance = 16; distance; distance >>= 1) largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, distance));
  if ((threadIdx.x & 31) == 0) scratch[threadIdx.x >> 5] = largest;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < UPDATE_THREADS / 32; w++) largest = fmaxf(largest, scratch[w]);
  atomicMax(maximum, __float_as_uint(largest));
}

// gradients = the gradient of the queries' loss at the adapted parameters, without the loss scale, and its largest
// absolute value (`add_maximum`), by which tangent.cu scales it. Grid: (ceil(elements / 256), 1, tasks), 256 threads.
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS)
    query_gradients(PassGradients in, float* gradients, u32* maximum, TrainingState* state, MamlShape shape, i64 stride) {
  const Element e = element_of(blockIdx.x * UPDATE_THREADS + threadIdx.x, shape);
  float gradient = 0.f;
  if (e.kind != NO_ELEMENT) {
    gradient = element_gradient(e, in, shape, stride);
    if (!is_finite(gradient)) atomicOr(&state->overflow, 1u);
    gradient /= state->scale;
    of_task(gradients, stride)[e.at] = gradient;
  }
  add_maximum(gradient, of_task(maximum, stride));
}

// total (in the layout of the shared parameters) = the sum of the gradients of the tasks of a group, in their order,
// and of earlier groups of the step; a group that is the first of the step overwrites it. squares[block] = the sum of
// squares of each thread block; those of the last group remain. Grid: ceil(elements / 256), 256 threads; shared memory:
// one double per thread.
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS)
    add_task_gradients(const float* gradients, float* total, double* squares, int tasks, MamlShape shape, i64 stride) {
  SHARED double scratch[UPDATE_THREADS];
  const Element e = element_of(blockIdx.x * UPDATE_THREADS + threadIdx.x, shape);
  float sum = 0.f;
  if (e.kind != NO_ELEMENT) {
    sum = shape.first_task == 0 ? 0.f : total[e.shared];
    for (int task = 0; task < tasks; task++) sum += *(const float*)((const u8*)(gradients + e.at) + task * stride);
    total[e.shared] = sum;
  }
  const double square = sum_of_squares(sum, scratch);
  if (threadIdx.x == 0) squares[blockIdx.x] = square;
}

// AdamW (optimiser.cu) on the shared parameters with the mean gradient of the tasks of a step, clipped. Grid: ceil(len
// / 256), 256 threads: one parameter each. Does nothing after an overflow.
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS)
    update_shared(float* shared, float* first_moments, float* second_moments, const float* total, const double* squares,
                  int square_count, const float* rates, const TrainingState* state, AdamW options, MamlShape shape, int len) {
  const int index = blockIdx.x * UPDATE_THREADS + threadIdx.x;
  if (index >= len || state->overflow) return;
  if (index < shape.conv4_len) {
    // Running statistics are not trained.
    int block = 3;
    while (index < block_start(shape.layout, block)) block--;
    if (index - parts_start(shape.layout, block) >= RUNNING_MEAN) return;
  }
  float factor = 1.f / shape.tasks;
  if (options.clip > 0.f) {
    double square = 0.0;
    for (int i = 0; i < square_count; i++) square += squares[i];
    const double norm = sqrt(square) / shape.tasks;
    if (norm > options.clip) factor *= (float)(options.clip / norm);
  }
  // The gradient of a convolution's bias is zero, because no kernel writes it to `total`.
  const float gradient = total[index] * factor + options.l2 * shared[index];
  shared[index] = adamw_step(shared[index], gradient, first_moments + index, second_moments + index, rates[step_slot(state)],
                             state->updates + 1, options);
}

// Ends a step: `end_step` in optimiser.cu. losses: [count], of all queries of the step. One block of 32 threads.
extern "C" __global__ void __launch_bounds__(32)
    finish_meta_step(const float* losses, int count, float* mean_losses, TrainingState* state) {
  end_step(losses, count, mean_losses, state);
}
