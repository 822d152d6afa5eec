// From the activations and gradients of a step to updated parameters. Sizes and buffers: tranfs.cu.
//
// A task is the work of one thread block; the host lists all tasks once. A product task computes a tile of 64 x 64 of
// left^T right, the gradient of a weight, from [rows][inputs] and [rows][outputs]. A sum task adds 32 columns up over the
// rows: biases, norms, and tables, for which only the tokens of one class count.
#pragma once
#include "tranfs_losses.cu"

#define TILE 64
#define TILE_ROWS 32
#define TILE_PITCH (TILE + 8)
#define TASK_THREADS 256

enum GradientKind {
  LAYER_PRODUCT,      // of a weight of a layer; rows are tokens
  PROJECTION,         // of down- or up-projection
  COLUMN_SUMS,        // of left, or of left * right; rows are tokens
  MISLABELLED_WEIGHT, // up-projection times the gradient of the direction
  MISLABELLED_BIAS
};
enum ProjectionParts { ITEMS = 1, PROTOTYPES = 2 };  // down, up; both if they are tied
enum TokenFilter { ALL_TOKENS, TOKENS_OF_CLASS, CLASS_TOKEN };

struct GradientTask {
  const float* left;
  const float* right;
  int kind, inputs, outputs;  // of products; `outputs` also of sums
  int first_input, first_output;
  int start;                  // of the tensor in the parameters
  int option;                 // ProjectionParts or TokenFilter
  int label;                  // of TOKENS_OF_CLASS and CLASS_TOKEN
};

// done(input, output, value) receives a tile of sum over rows of left(row, input) right(row, output).
// left_tile and right_tile: TILE_ROWS * TILE_PITCH words of shared memory each.
template <class Left, class Right, class Done>
DEVICE void product_tile(u32* left_tile, u32* right_tile, int rows, Left left, Right right, Done done) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane >> 2, quad = lane & 3;
  const int m = (warp >> 1) * 16, n = (warp & 1) * 32, column = threadIdx.x & (TILE - 1), row = threadIdx.x / TILE;
  const int turns = TILE_ROWS * TILE / TASK_THREADS, step = TASK_THREADS / TILE;
  float acc[4][4], next_left[turns], next_right[turns];
#pragma unroll
  for (int i = 0; i < 16; i++) (&acc[0][0])[i] = 0.f;
  auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < turns; i++) {
      const int at = first + row + i * step;
      next_left[i] = at < rows ? left(at, column) : 0.f;
      next_right[i] = at < rows ? right(at, column) : 0.f;
    }
  };
  load(0);
  for (int first = 0; first < rows; first += TILE_ROWS) {
    __syncthreads();
#pragma unroll
    for (int i = 0; i < turns; i++) {
      left_tile[(row + i * step) * TILE_PITCH + column] = to_tf32(next_left[i]);
      right_tile[(row + i * step) * TILE_PITCH + column] = to_tf32(next_right[i]);
    }
    __syncthreads();
    load(first + TILE_ROWS);
#pragma unroll
    for (int k = 0; k < TILE_ROWS; k += 8) {
      const u32* a_row = left_tile + (k + quad) * TILE_PITCH + m + group;
      const u32 a[4] = {a_row[0], a_row[8], a_row[4 * TILE_PITCH], a_row[4 * TILE_PITCH + 8]};
#pragma unroll
      for (int j = 0; j < 4; j++) {
        const u32* b_row = right_tile + (k + quad) * TILE_PITCH + n + j * 8 + group;
        const u32 b[2] = {b_row[0], b_row[4 * TILE_PITCH]};
        mma_tf32(acc[j], a, b);
      }
    }
  }
#pragma unroll
  for (int j = 0; j < 4; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) done(m + group + (i >> 1) * 8, n + j * 8 + quad * 2 + (i & 1), acc[j][i]);
}

// Column sums: done(column, sum) for 32 columns. value(row, column) gives the numbers.
template <class Value, class Done> DEVICE void column_sums(int rows, Value value, Done done) {
  SHARED float partial[TASK_THREADS];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float sum = 0.f;
#pragma unroll 8
  for (int row = warp; row < rows; row += TASK_THREADS / 32) sum += value(row, lane);
  partial[threadIdx.x] = sum;
  __syncthreads();
  if (warp != 0) return;
  for (int w = 1; w < TASK_THREADS / 32; w++) sum += partial[w * 32 + lane];
  done(lane, sum);
}

// Sums the losses of the episodes and copies the step's factors for tranfs_update. One thread.
DEVICE void finish_losses(const Tranfs& t, const u32* input) {
  const TranfsStep& step = step_of(input);
  bool finite = true;
  for (int term = 0; term < 3; term++) {
    double sum = 0.0;
    for (int episode = 0; episode < step.episodes; episode++) sum += t.losses[episode * 3 + term];
    const float mean = (float)(sum / max(step.episodes, 1));
    t.step_losses[(t.state->step % STEP_SLOTS) * 3 + term] = mean;
    finite = finite && fabsf(mean) <= 3.402823466e38f;
  }
  if (!finite) t.state->failed = 1;
  t.state->keep = step.keep;
  t.state->rate = step.rate;
  t.state->second_scale = step.second_scale;
  t.state->scale = step.scale;
}

// Gradients of the loss, summed over the episodes, and the sum of squares of each thread block. Grid: tasks, 256 threads.
extern "C" __global__ void __launch_bounds__(TASK_THREADS)
    tranfs_gradients(Tranfs t, const GradientTask* tasks, float* gradients, double* squares) {
  SHARED u32 left_tile[TILE_ROWS * TILE_PITCH], right_tile[TILE_ROWS * TILE_PITCH];
  SHARED double scratch[TASK_THREADS];
  const u32* input = step_input(t);
  const TranfsStep& step = step_of(input);
  const GradientTask task = tasks[blockIdx.x];
  double square = 0.0;
  auto store = [&](long at, float value) {
    gradients[at] = value;
    square += (double)value * value;
  };
  const u32* tokens = input + t.tokens_at;
  switch (task.kind) {
    case LAYER_PRODUCT:
      product_tile(
          left_tile, right_tile, step.tokens,
          [&](int row, int i) {
            return task.first_input + i < task.inputs ? task.left[(long)row * task.inputs + task.first_input + i] : 0.f;
          },
          [&](int row, int i) {
            return task.first_output + i < task.outputs ? task.right[(long)row * task.outputs + task.first_output + i] : 0.f;
          },
          [&](int i, int j, float value) {
            i += task.first_input;
            j += task.first_output;
            if (i < task.inputs && j < task.outputs) store(task.start + (long)i * task.outputs + j, value);
          });
      break;
    case PROJECTION: {
      const int items = task.option & ITEMS ? step.items : 0, classes = task.option & PROTOTYPES ? step.classes : 0;
      const float* states = t.states + (long)t.layers * t.token_capacity * t.width;
      auto left = [&](int row, int i) {
        if (task.first_input + i >= t.dim) return 0.f;
        const float* from = row < items ? feature_row(t, input, input[t.rows_at + row]) : t.d_prototypes + (long)(row - items) * t.dim;
        return from[task.first_input + i];
      };
      auto right = [&](int row, int i) {
        if (task.first_output + i >= t.width) return 0.f;
        const float* from = row < items ? t.d_projected + (long)row * t.width
                                        : states + (long)classes_of(t, input)[row - items].token * t.width;
        return from[task.first_output + i];
      };
      SHARED float d_direction[TILE];
      if (threadIdx.x < TILE) {
        float sum = 0.f;
        if (task.first_output + (int)threadIdx.x < t.width)
          for (int episode = 0; episode < step.episodes; episode++)
            sum += t.d_direction[(long)episode * t.width + task.first_output + threadIdx.x];
        d_direction[threadIdx.x] = sum;
      }
      __syncthreads();
      product_tile(left_tile, right_tile, items + classes, left, right, [&](int i, int j, float value) {
        const int d = task.first_input + i, output = task.first_output + j;
        if (d >= t.dim || output >= t.width) return;
        if (task.option & PROTOTYPES) value += t.parameters[t.mislabelled + d] * d_direction[j];
        store(task.start + (long)d * t.width + output, value);
      });
      break;
    }
    case COLUMN_SUMS:
      column_sums(
          step.tokens,
          [&](int row, int i) {
            const int column = task.first_output + i;
            if (column >= task.outputs) return 0.f;
            if (task.option != ALL_TOKENS) {
              const u32 token = tokens[row];
              if ((int)(token & ~LABEL_FLAG) != task.label || (task.option == CLASS_TOKEN && !(token & LABEL_FLAG))) return 0.f;
            }
            const long at = (long)row * task.outputs + column;
            return task.right ? task.left[at] * task.right[at] : task.left[at];
          },
          [&](int i, float sum) {
            if (task.first_output + i < task.outputs) store(task.start + task.first_output + i, sum);
          });
      break;
    case MISLABELLED_WEIGHT: {
      // 32 numbers: four per warp.
      const int lane = threadIdx.x & 31, first = task.first_output + (threadIdx.x >> 5) * 4;
      float sums[4] = {0.f, 0.f, 0.f, 0.f};
      for (int column = lane; column < t.width; column += 32) {
        float d_direction = 0.f;
#pragma unroll 8
        for (int episode = 0; episode < step.episodes; episode++) d_direction += t.d_direction[(long)episode * t.width + column];
#pragma unroll
        for (int i = 0; i < 4; i++)
          if (first + i < t.dim) sums[i] += d_direction * t.parameters[t.up + (long)(first + i) * t.width + column];
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float sum = warp_sum(sums[i]);
        if (lane == 0 && first + i < t.dim) store(task.start + first + i, sum);
      }
      break;
    }
    case MISLABELLED_BIAS:
      if (threadIdx.x < 32) {
        float sum = 0.f;
        for (int item = threadIdx.x; item < step.items; item += 32) sum += t.d_logits[item];
        sum = warp_sum(sum);
        if (threadIdx.x == 0) {
          store(task.start, sum);
          finish_losses(t, input);
        }
      }
      break;
  }
  scratch[threadIdx.x] = square;
  __syncthreads();
  for (int distance = TASK_THREADS / 2; distance; distance >>= 1) {
    if ((int)threadIdx.x < distance) scratch[threadIdx.x] += scratch[threadIdx.x + distance];
    __syncthreads();
  }
  if (threadIdx.x == 0) squares[blockIdx.x] = scratch[0];
}

// At most UPDATE_LEN parameters of one tensor.
#define UPDATE_LEN 1024
struct UpdateTask {
  int first, len;             // in the parameters
  int offset;                 // of the first in its tensor
  int inputs, outputs;        // of a weight
  int forward, transposed;    // packed copies, in 16 bytes; -1: none
};
struct HeadOptimiser {
  float beta1, beta2, epsilon, l2, clip;
  int squares;
};

// AdamW on the parameters of a task, and their packed copies. Grid: tasks, 256 threads.
extern "C" __global__ void __launch_bounds__(256)
    tranfs_update(TranfsState* state, const UpdateTask* tasks, float* parameters, float* first_moments, float* second_moments,
                  const float* gradients, const double* squares, u32* packed, HeadOptimiser options) {
  if (blockIdx.x == 0 && threadIdx.x == 0) state->step++;
  if (state->failed) return;
  const UpdateTask task = tasks[blockIdx.x];
  float scale = state->scale;
  if (options.clip > 0.f) {
    double square = 0.0;
    for (int i = 0; i < options.squares; i++) square += squares[i];
    const double norm = sqrt(square) * scale;
    if (norm > options.clip) scale *= (float)(options.clip / norm);
  }
  const float keep = state->keep, rate = state->rate, second_scale = state->second_scale;
  const int turns = UPDATE_LEN / 256;
  float values[turns], first[turns], second[turns], gradient[turns];
#pragma unroll
  for (int turn = 0; turn < turns; turn++) {
    const int i = turn * 256 + threadIdx.x, index = task.first + i;
    if (i >= task.len) break;
    values[turn] = parameters[index];
    first[turn] = first_moments[index];
    second[turn] = second_moments[index];
    gradient[turn] = gradients[index];
  }
#pragma unroll
  for (int turn = 0; turn < turns; turn++) {
    const int i = turn * 256 + threadIdx.x, index = task.first + i;
    if (i >= task.len) break;
    const float g = gradient[turn] * scale + options.l2 * values[turn];
    const float m = options.beta1 * first[turn] + (1.f - options.beta1) * g;
    const float v = options.beta2 * second[turn] + (1.f - options.beta2) * g * g;
    const float value = values[turn] * keep - rate * m / (sqrtf(v) * second_scale + options.epsilon);
    first_moments[index] = m;
    second_moments[index] = v;
    parameters[index] = value;
    if (task.forward >= 0) {
      const int k = (task.offset + i) / task.outputs, n = (task.offset + i) - k * task.outputs;
      pack_weight(packed, task.forward, task.transposed, k, n, task.inputs, task.outputs, value);
    }
  }
}

// All packed copies, after parameters were loaded. Grid and tasks as in tranfs_update.
extern "C" __global__ void __launch_bounds__(256) tranfs_pack(const UpdateTask* tasks, const float* parameters, u32* packed) {
  const UpdateTask task = tasks[blockIdx.x];
  if (task.forward < 0) return;
  for (int i = threadIdx.x; i < task.len; i += 256) {
    const int k = (task.offset + i) / task.outputs, n = (task.offset + i) - k * task.outputs;
    pack_weight(packed, task.forward, task.transposed, k, n, task.inputs, task.outputs, parameters[task.first + i]);
  }
}
