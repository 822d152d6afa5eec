// A backbone (Conv4) and a head (TraNFS or Relabel) in training together, as far as the kernels belong to neither: the
// centring of the features, a loss of nearest prototypes on true labels that is added to the head's, the gradient of
// the features for the backward pass of the backbone, the mean of all features, and a running average of all
// parameters. src/joint/training.rs launches them.
//
// A step has several episodes, each with support items and queries. Every image is a "row"; rows are numbered from the
// first episode's support items, then its queries, then the second episode's items, and so on.
//
//   features    [row][dim] f32, dim = 64 * side * side in the order channel, pixel
//   d_features  [row][dim] f32: the gradient of the head's loss
//   points      [episode][class][dim] f32: the prototypes, means of the items whose true class is this one;
//               most_classes classes per episode
//   d_points    the gradients of the prototypes' loss, in the same layout
//   d_logits    [query][most_classes] f32: gradient with respect to minus the squared distances, without the loss scale
//   losses      [query] f32
//   slots       [slot][slot_len] words: JointStep, then `most_episodes` times JointEpisode, then one word per row: its
//               class in the episode, or NO_CLASS. The slot of the current step is its number modulo STEP_SLOTS
//               (common.cuh).
//
// The loss of prototypes is the mean over the episodes of the mean over their queries, times `weight`. An episode in
// which a class has no item of its own does not count. Sizes in a graph are fixed, while each slot has its own:
// `joint_begin` checks that they agree.
#pragma once
#include "optimiser.cu"
#include "prototypes.cu"

// The class of an item that belongs to no class of its episode.
#define NO_CLASS 0xffffffffu

// The sizes of a step.
struct JointStep {
  u32 images, episodes, queries;  // rows; queries of all episodes
  float keep;                     // decay of the average of the parameters
};
// One episode of a step.
struct JointEpisode {
  // Its first row, items and queries; its first query among all queries; its classes.
  u32 first_row, items, queries, first_query, classes;
  float factor;  // of the queries' losses: weight / (episodes * queries), or 0 if it does not count
};
// Sizes of a run: numbers of a row, the most episodes of a step, the most classes of an episode, words of a slot.
struct JointShape {
  int dim, most_episodes, most_classes, slot_len;
};

// The slot of the current step, and its parts.
DEVICE const u32* joint_slot(const u32* slots, const TrainingState* state, JointShape shape) {
  return slots + (long)step_slot(state) * shape.slot_len;
}
DEVICE const JointStep& joint_step(const u32* slot) { return *(const JointStep*)slot; }
DEVICE const JointEpisode& joint_episode(const u32* slot, int episode) {
  return ((const JointEpisode*)(slot + sizeof(JointStep) / 4))[episode];
}
DEVICE const u32* joint_labels(const u32* slot, JointShape shape) {
  return slot + sizeof(JointStep) / 4 + shape.most_episodes * (sizeof(JointEpisode) / 4);
}
// The episode of a row: one less than the number of episodes that begin at or before it.
DEVICE int episode_of_row(const u32* slot, int row) {
  int episode = 0;
  for (int i = 1; i < (int)joint_step(slot).episodes; i++) episode += (int)joint_episode(slot, i).first_row <= row;
  return episode;
}

// Sets OTHER_SIZE in `overflow`, so that nothing is updated, if the sizes of the step in the slot are not those of the
// graph (the last three arguments). That happens after a step that overflowed and must be repeated: the graphs of later
// steps have been launched already and find its slot. One thread works.
extern "C" __global__ void __launch_bounds__(32)
    joint_begin(const u32* slots, TrainingState* state, JointShape shape, int images, int episodes, int queries) {
  const JointStep step = joint_step(joint_slot(slots, state, shape));
  if (threadIdx.x == 0 && ((int)step.images != images || (int)step.episodes != episodes || (int)step.queries != queries))
    state->overflow = OTHER_SIZE;
}

// points: the mean of the items of each true class; 0 without items. Grid: (ceil(dim / 128), episodes * most_classes),
// 128 threads: one number of one prototype per thread.
extern "C" __global__ void __launch_bounds__(128)
    joint_prototypes(const float* features, const u32* slots, float* points, const TrainingState* state, JointShape shape) {
  const u32* slot = joint_slot(slots, state, shape);
  const int index = blockIdx.y / shape.most_classes, own = blockIdx.y - index * shape.most_classes;
  const JointEpisode episode = joint_episode(slot, index);
  const u32* labels = joint_labels(slot, shape) + episode.first_row;
  const int at = blockIdx.x * 128 + threadIdx.x;
  if (at >= shape.dim || own >= (int)episode.classes) return;
  const float* rows = features + (long)episode.first_row * shape.dim + at;
  float sum = 0.f, count = 0.f;
  for (int item = 0; item < (int)episode.items; item++) {
    if ((int)labels[item] != own) continue;
    sum += rows[(long)item * shape.dim];
    count += 1.f;
  }
  points[(long)blockIdx.y * shape.dim + at] = count > 0.f ? sum / count : 0.f;
}

// losses and d_logits of the queries: cross-entropy of a softmax over minus the squared distances to the prototypes.
// Grid: rows, 256 threads; rows of support items do nothing. Shared memory: parts of the squared distances [8
// warps][classes], then logits [classes]. The softmax is by one thread.
extern "C" __global__ void __launch_bounds__(256)
    joint_query_losses(const float* features, const u32* slots, const float* points, float* d_logits, float* losses,
                       const TrainingState* state, JointShape shape) {
  const u32* slot = joint_slot(slots, state, shape);
  const int row = blockIdx.x, index = episode_of_row(slot, row), lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  const JointEpisode episode = joint_episode(slot, index);
  const int query = row - (int)(episode.first_row + episode.items), classes = episode.classes;
  if (query < 0) return;
  float* partial = (float*)dynamic_shared;        // [8 warps][classes]
  float* logits = partial + 8 * shape.most_classes;  // [classes]
  const float* values = features + (long)row * shape.dim;
  const float* prototypes = points + (long)index * shape.most_classes * shape.dim;
  for (int c = 0; c < classes; c++) {
    float square = 0.f;
    for (int i = threadIdx.x; i < shape.dim; i += 256) {
      const float difference = values[i] - prototypes[(long)c * shape.dim + i];
      square += difference * difference;
    }
    for (int distance = 16; distance; distance >>= 1) square += __shfl_xor_sync(FULL_WARP, square, distance);
    if (lane == 0) partial[warp * classes + c] = square;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  const int own = joint_labels(slot, shape)[row];
  float largest = -3.4e38f, total = 0.f;
  for (int c = 0; c < classes; c++) {
    float square = 0.f;
    for (int w = 0; w < 8; w++) square += partial[w * classes + c];
    logits[c] = -square;
    largest = fmaxf(largest, -square);
  }
  for (int c = 0; c < classes; c++) total += expf(logits[c] - largest);
  // `end_step` (optimiser.cu) takes the mean over all queries of the step, while `factor` is already divided: multiply
  // by their number.
  const float queries = joint_step(slot).queries;
  losses[episode.first_query + query] =
      episode.factor == 0.f ? 0.f : episode.factor * queries * (logf(total) + largest - logits[own]);
  float* d = d_logits + (long)(episode.first_query + query) * shape.most_classes;
  for (int c = 0; c < classes; c++)
    d[c] = episode.factor * (expf(logits[c] - largest) / total - (c == own ? 1.f : 0.f));
}

// d_points: sum over the episode's queries of 2 d_logits (q - p). Grid: (ceil(dim / 128), episodes * most_classes), 128
// threads: one number of one prototype per thread.
extern "C" __global__ void __launch_bounds__(128)
    joint_prototype_gradients(const float* features, const u32* slots, const float* points, const float* d_logits,
                              float* d_points, const TrainingState* state, JointShape shape) {
  const int index = blockIdx.y / shape.most_classes, own = blockIdx.y - index * shape.most_classes;
  const JointEpisode episode = joint_episode(joint_slot(slots, state, shape), index);
  const int at = blockIdx.x * 128 + threadIdx.x;
  if (at >= shape.dim || own >= (int)episode.classes) return;
  const long position = (long)blockIdx.y * shape.dim + at;
  const float* rows = features + (long)(episode.first_row + episode.items) * shape.dim + at;
  const float* d = d_logits + (long)episode.first_query * shape.most_classes + own;
  const float point = points[position];
  float sum = 0.f;
  for (int query = 0; query < (int)episode.queries; query++)
    sum += 2.f * d[query * shape.most_classes] * (rows[(long)query * shape.dim] - point);
  d_points[position] = sum;
}

// The gradient of both losses times the loss scale, as the plane d_plane (common.cuh: 64 channels of f16 per position)
// that the backward pass of the backbone starts from. A query gets sum over classes of 2 d_logits (p - q), an item
// d_points / items of its class. Without the loss of prototypes, `points` is null. Grid: (ceil(chunks / 64), rows), 64
// threads: a chunk of 8 channels of a pixel per thread.
extern "C" __global__ void __launch_bounds__(64)
    joint_feature_gradient(const float* features, const float* d_features, const u32* slots, const float* points,
                           const float* d_points, const float* d_logits, uint4* d_plane, const TrainingState* state,
                           JointShape shape, EpisodeShape plane) {
  const u32* slot = joint_slot(slots, state, shape);
  const int row = blockIdx.y, chunk = blockIdx.x * 64 + threadIdx.x;
  if (chunk >= plane.chunks) return;
  const int pixels = plane.chunks >> 3;
  // Channel i of the chunk is number first + i * pixels of the row, whose order is channel, pixel.
  const int first = (chunk & 7) * 8 * pixels + (chunk >> 3);
  float d[8];
#pragma unroll
  for (int i = 0; i < 8; i++) d[i] = d_features[(long)row * shape.dim + first + i * pixels];
  if (points) {
    const int index = episode_of_row(slot, row);
    const JointEpisode episode = joint_episode(slot, index);
    const u32* labels = joint_labels(slot, shape);
    const long start = (long)index * shape.most_classes * shape.dim + first;
    const int query = row - (int)(episode.first_row + episode.items);
    if (query >= 0) {
      const float* coefficients = d_logits + (long)(episode.first_query + query) * shape.most_classes;
      for (int i = 0; i < 8; i++) {
        const float value = features[(long)row * shape.dim + first + i * pixels];
        for (int c = 0; c < (int)episode.classes; c++)
          d[i] += 2.f * coefficients[c] * (points[start + (long)c * shape.dim + i * pixels] - value);
      }
    } else if (labels[row] != NO_CLASS && episode.factor != 0.f) {
      int count = 0;
      for (int item = 0; item < (int)episode.items; item++) count += labels[episode.first_row + item] == labels[row];
      for (int i = 0; i < 8; i++) d[i] += d_points[start + (long)labels[row] * shape.dim + i * pixels] / count;
    }
  }
#pragma unroll
  for (int i = 0; i < 8; i++) d[i] *= state->scale;
  d_plane[chunk_position(plane, row, chunk)] = pack8(d);
}

// The sum over the 256 threads of a block, the same for all of them, in a fixed order. Contains barriers.
DEVICE float joint_block_sum(float value) {
  SHARED float sums[8];
  for (int distance = 16; distance; distance >>= 1) value += __shfl_xor_sync(FULL_WARP, value, distance);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) sums[threadIdx.x >> 5] = value;
  __syncthreads();
  float total = 0.f;
  for (int warp = 0; warp < 8; warp++) total += sums[warp];
  return total;
}

// centred = (features - mean) / length, for a head that is centred on the mean of all features; scales [rows] = 1 /
// length, 0 for a zero vector. Grid: rows, 256 threads.
extern "C" __global__ void __launch_bounds__(256)
    joint_centre(const float* features, const float* mean, float* centred, float* scales, JointShape shape) {
  const float* row = features + (long)blockIdx.x * shape.dim;
  float* out = centred + (long)blockIdx.x * shape.dim;
  float square = 0.f;
  for (int i = threadIdx.x; i < shape.dim; i += 256) square += (row[i] - mean[i]) * (row[i] - mean[i]);
  square = joint_block_sum(square);
  const float scale = square > 0.f ? 1.f / sqrtf(square) : 0.f;
  for (int i = threadIdx.x; i < shape.dim; i += 256) out[i] = scale * (row[i] - mean[i]);
  if (threadIdx.x == 0) scales[blockIdx.x] = scale;
}

// d_features, the gradient of joint_centre's result c, becomes that of the features, in place: scale * (d - (c . d) c).
// The mean is a constant. Grid: rows, 256 threads.
extern "C" __global__ void __launch_bounds__(256)
    joint_centre_backward(const float* centred, const float* scales, float* d_features, JointShape shape) {
  const float* row = centred + (long)blockIdx.x * shape.dim;
  float* d = d_features + (long)blockIdx.x * shape.dim;
  float along = 0.f;
  for (int i = threadIdx.x; i < shape.dim; i += 256) along += row[i] * d[i];
  along = joint_block_sum(along);
  for (int i = threadIdx.x; i < shape.dim; i += 256) d[i] = scales[blockIdx.x] * (d[i] - along * row[i]);
}

// mean <- mean + rate * (mean of this step's rows - mean), the mean of all features; not after an overflow. Grid:
// ceil(dim / 32), 256 threads: 32 columns x 8 groups of rows, whose sums are added in their order, in shared memory.
// Sums are f64.
extern "C" __global__ void __launch_bounds__(256)
    joint_feature_mean(const float* features, float* mean, float rate, int rows, const TrainingState* state, JointShape shape) {
  SHARED double sums[8][32];
  const int column = threadIdx.x & 31, group = threadIdx.x >> 5, at = blockIdx.x * 32 + column;
  double sum = 0.0;
  if (at < shape.dim)
    for (int row = group; row < rows; row += 8) sum += features[(long)row * shape.dim + at];
  sums[group][column] = sum;
  __syncthreads();
  if (group != 0 || at >= shape.dim || state->overflow) return;
  for (int g = 1; g < 8; g++) sum += sums[g][column];
  mean[at] += rate * ((float)(sum / rows) - mean[at]);
}

// average <- value + keep * (average - value) for the parameters of the backbone, then of the head; not after an
// overflow. Grid: ceil(len / 256), 256 threads: one number per thread.
extern "C" __global__ void __launch_bounds__(256)
    joint_average(float* average, const float* backbone, int backbone_len, const float* head, int len, const u32* slots,
                  const TrainingState* state, JointShape shape) {
  const int index = blockIdx.x * 256 + threadIdx.x;
  if (index >= len || state->overflow) return;
  const float keep = joint_step(joint_slot(slots, state, shape)).keep;
  const float value = index < backbone_len ? backbone[index] : head[index - backbone_len];
  average[index] = value + keep * (average[index] - value);
}
