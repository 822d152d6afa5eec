// The TraNFS head, part 3: from the activations and their gradients to the gradients of the parameters
// (tranfs_gradients), and AdamW (tranfs_update). Sizes, buffers (`struct Tranfs`) and the order of the kernels are in
// tranfs.cu.
//
// A task is the work of one thread block; the host lists all tasks once (src/tranfs/tasks.rs), and src/tranfs.rs
// launches the kernels. Gradient tasks are of two main kinds. A product task computes a tile of 64 x 64 of left^T
// right, the gradient of a weight [inputs][outputs], from left [rows][inputs] and right [rows][outputs]. A sum task
// adds 32 columns up over the rows: the gradients of biases, norms, and tables (positions, class tokens), for which
// only the tokens of one class count. Gradients are sums over the episodes of a step; tranfs_update divides by their
// number.
#pragma once
#include "tranfs_losses.cu"

#define TILE 64  // inputs and outputs of a product task
#define TASK_THREADS 256  // threads of a gradient task
// The rows of a product are multiplied 32 at a time ("stage"). STAGES stages are in shared memory, each with a part of
// left and one of right, so that copies run ahead.
#define STAGE_ROWS 32
#define STAGE_PITCH (TILE + 8)  // floats from one row to the next: no bank conflicts when fragments are read
#define STAGE_LEN (2 * STAGE_ROWS * STAGE_PITCH)
#define STAGES 3
// Rows whose addresses are in shared memory at a time: those of features are scattered.
#define TABLE_ROWS 512

// The kinds of gradient tasks, as in src/tranfs/tasks.rs.
enum GradientKind {
  LAYER_PRODUCT,       // of a weight of a layer; rows are tokens
  PROJECTION,          // of the down- or up-projection [D][W]; rows are items, then classes (ProjectionParts)
  COLUMN_SUMS,         // of left, or of left * right; rows are tokens
  MISLABELLED_WEIGHT,  // [D]: the up-projection times the gradient of the direction
  MISLABELLED_BIAS     // the sum of the gradients of logits; this block also ends the step
};
// Which rows a projection has a gradient from: ITEMS for down, PROTOTYPES for up; both if one is the transpose of the
// other ("tied").
enum ProjectionParts { ITEMS = 1, PROTOTYPES = 2 };
// Which rows a sum counts: all tokens, class token and items of one class (positions), or the class token alone.
enum TokenFilter { ALL_TOKENS, TOKENS_OF_CLASS, CLASS_TOKEN };

// One gradient task (src/tranfs/tasks.rs).
struct GradientTask {
  const float* left;              // LAYER_PRODUCT, COLUMN_SUMS: [rows][inputs or outputs]
  const float* right;             // LAYER_PRODUCT: [rows][outputs]; COLUMN_SUMS: the same as left, or null
  int kind, inputs, outputs;      // of products; `outputs` also of sums
  int first_input, first_output;  // of the tile
  int start;                      // of the tensor in the parameters
  int option;                     // ProjectionParts or TokenFilter
  int label;                      // of TOKENS_OF_CLASS and CLASS_TOKEN: the class
};

// The shared memory of tranfs_gradients. Its length is also in src/tranfs/memory.rs.
struct GradientMemory {
  float stages[STAGES][STAGE_LEN];  // each: 32 rows of left, then of right
  // The tile's columns of each row.
  const float *left[TABLE_ROWS], *right[TABLE_ROWS];
  float d_direction[TILE];          // PROJECTION: the gradient of the direction, the tile's columns
  float partial[TASK_THREADS];      // COLUMN_SUMS: sums of the warps
  double squares[TASK_THREADS];     // sums of squares of the warps
};

// Starts to copy TILE columns of a row to a stage, 16 threads per row, 4 columns each; `columns` of them exist, and
// none if `row` is null. in_fours: addresses are multiples of 16 bytes.
DEVICE void copy_columns(float* to, const float* row, int columns, bool in_fours) {
  const int first = (threadIdx.x & 15) * 4;
  if (!row) {
    for (int i = 0; i < 4; i++) to[first + i] = 0.f;
  } else if (in_fours) {
    if (first < columns) copy_async(shared_address(to + first), row + first);
  } else {
    for (int i = first; i < min(first + 4, columns); i++) copy_word_async(shared_address(to + i), row + i);
  }
}

// A tile of the sum over rows of left(row)[input] right(row)[output]; calls done(input, output, value) for every
// element. left(row) and right(row) are the addresses of the tile's first column, of which `inputs` and `outputs`
// exist. A warp computes 16 inputs from m on and 32 outputs from n on, with the rows as inner dimension: both operands
// are read column by column. Contains barriers.
template <class Left, class Right, class Done>
DEVICE void product_tile(GradientMemory& memory, int rows, int inputs, int outputs, bool in_fours, Left left, Right right, Done done) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane >> 2, quad = lane & 3;
  const int m = (warp >> 1) * 16, n = (warp & 1) * 32;
  float acc[4][4] = {};
#pragma unroll 1
  for (int first = 0; first < rows; first += TABLE_ROWS) {
    const int count = min(TABLE_ROWS, rows - first), stages = (count + STAGE_ROWS - 1) / STAGE_ROWS;
    __syncthreads();
#pragma unroll
    for (int turn = 0; turn < TABLE_ROWS / TASK_THREADS; turn++) {
      const int row = turn * TASK_THREADS + threadIdx.x;
      memory.left[row] = row < count ? left(first + row) : 0;
      memory.right[row] = row < count ? right(first + row) : 0;
    }
    __syncthreads();
    // Starts the copies of a stage; after the last stage an empty group of copies, so that waiting for groups counts
    // right.
    auto start = [&](int stage) {
      float* to = memory.stages[stage % STAGES];
      if (stage < stages)
#pragma unroll
        for (int turn = 0; turn < STAGE_ROWS * 16 / TASK_THREADS; turn++) {
          const int row = turn * (TASK_THREADS / 16) + (threadIdx.x >> 4);
          copy_columns(to + row * STAGE_PITCH, memory.left[stage * STAGE_ROWS + row], inputs, in_fours);
          copy_columns(to + (STAGE_ROWS + row) * STAGE_PITCH, memory.right[stage * STAGE_ROWS + row], outputs, in_fours);
        }
      commit_copies();
    };
    // STAGES - 1 stages are under way before the first is used.
#pragma unroll 1
    for (int stage = 0; stage < STAGES - 1; stage++) start(stage);
#pragma unroll 1
    for (int stage = 0; stage < stages; stage++) {
      wait_for_copies<STAGES - 2>();
      __syncthreads();
      start(stage + STAGES - 1);
      const float *a_tile = memory.stages[stage % STAGES] + m + group, *b_tile = a_tile - m + STAGE_ROWS * STAGE_PITCH + n;
#pragma unroll
      for (int k = 0; k < STAGE_ROWS; k += 8) {
        const float *a_row = a_tile + (k + quad) * STAGE_PITCH, *b_row = b_tile + (k + quad) * STAGE_PITCH;
        const u32 a[4] = {tf32_operand(a_row[0]), tf32_operand(a_row[8]), tf32_operand(a_row[4 * STAGE_PITCH]),
                          tf32_operand(a_row[4 * STAGE_PITCH + 8])};
#pragma unroll
        for (int j = 0; j < 4; j++) {
          const u32 b[2] = {tf32_operand(b_row[j * 8]), tf32_operand(b_row[4 * STAGE_PITCH + j * 8])};
          mma_tf32(acc[j], a, b);
        }
      }
    }
    wait_for_copies<0>();
  }
#pragma unroll
  for (int j = 0; j < 4; j++)
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const int input = m + group + (i >> 1) * 8, output = n + j * 8 + quad * 2 + (i & 1);
      if (input < inputs && output < outputs) done(input, output, acc[j][i]);
    }
}

// Column sums over `rows` rows: calls done(column, sum) for 32 columns, in the first warp. value(row, column) are the
// numbers. A warp has every 8th row; their sums are added in the order of the warps. Contains a barrier.
template <class Value, class Done> DEVICE void column_sums(float* partial, int rows, Value value, Done done) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  float sum = 0.f;
#pragma unroll 16
  for (int row = warp; row < rows; row += TASK_THREADS / 32) sum += value(row, lane);
  partial[threadIdx.x] = sum;
  __syncthreads();
  if (warp != 0) return;
#pragma unroll
  for (int w = 1; w < TASK_THREADS / 32; w++) sum += partial[w * 32 + lane];
  done(lane, sum);
}

// Means of the losses over the episodes to step_losses, and the factors of AdamW to the state, for tranfs_update. One
// warp. A loss that is not finite sets `failed`, after which nothing is updated. Ends the step unless JOINT: then
// tranfs_update_joint does, because the backbone decides whether the step counts.
template <bool JOINT> DEVICE void end_step(const Tranfs& t, const u32* input) {
  const int lane = threadIdx.x & 31;
  const TranfsStep step = step_of(input);
  const u32 number = t.state->step;
  bool finite = true;
#pragma unroll
  for (int term = 0; term < 3; term++) {
    double sum = 0.0;
    for (int episode = lane; episode < step.episodes; episode += 32) sum += t.losses[episode * 3 + term];
#pragma unroll
    for (int distance = 16; distance; distance >>= 1) sum += __shfl_xor_sync(FULL_WARP, sum, distance);
    const float mean = (float)(sum / max(step.episodes, 1));
    if (lane == 0) t.step_losses[(number % STEP_SLOTS) * 3 + term] = mean;
    finite = finite && fabsf(mean) <= 3.402823466e38f;
  }
  if (lane != 0) return;
  if (!finite) t.state->failed = 1;
  t.state->keep = step.keep;
  t.state->rate = step.rate;
  t.state->second_scale = step.second_scale;
  t.state->scale = step.scale;
  if (JOINT) t.state->evaluated = number;
  else t.state->step = number + 1;
}

// Gradients of the loss, summed over the episodes, in the layout of the parameters, and squares[task]: the sum of
// squares of each thread block. Grid: tasks from number `first_task` on, 256 threads; a switch over the kind of task.
// Shared memory: GradientMemory. JOINT: the squares are those of the gradient of the mean loss, because they are added
// to those of the backbone.
template <bool JOINT>
DEVICE void compute_gradients(const Tranfs& t, const GradientTask* tasks, float* gradients, double* squares, int first_task) {
  GradientMemory& memory = *(GradientMemory*)dynamic_shared;
  const u32* input = t.current;
  const TranfsStep& step = step_of(input);
  const int number = first_task + blockIdx.x;
  const GradientTask task = tasks[number];
  const int lane = threadIdx.x & 31;
  double square = 0.0;
  auto store = [&](long at, float value) {
    gradients[at] = value;
    square += (double)value * value;
  };
  const u32* tokens = input + t.tokens_at;
  switch (task.kind) {
    case LAYER_PRODUCT:
    case PROJECTION: {
      // The rows of a projection are items, whose left side is their features, then classes.
      const bool is_layer = task.kind == LAYER_PRODUCT;
      const int items = is_layer ? step.tokens : task.option & ITEMS ? step.items : 0;
      const int classes = !is_layer && task.option & PROTOTYPES ? step.classes : 0;
      const float* states = t.states + (long)t.layers * t.token_capacity * t.width;
      auto left = [&](int row) {
        const float* from = is_layer      ? task.left + (long)row * task.inputs
                            : row < items ? feature_row(t, input, input[t.rows_at + row])
                                          : t.d_prototypes + (long)(row - items) * t.dim;
        return from + task.first_input;
      };
      auto right = [&](int row) {
        const float* from = is_layer      ? task.right + (long)row * task.outputs
                            : row < items ? t.d_projected + (long)row * t.width
                                          : states + (long)classes_of(t, input)[row - items].token * t.width;
        return from + task.first_output;
      };
      // The up-projection is also a factor of the direction, so its gradient has another term: weight of "mislabelled"
      // [D] times the gradient of the direction [W].
      if (threadIdx.x < TILE) {
        float sum = 0.f;
        if (classes > 0 && task.first_output + (int)threadIdx.x < t.width)
#pragma unroll 16
          for (int episode = 0; episode < step.episodes; episode++)
            sum += t.d_direction[(long)episode * t.width + task.first_output + threadIdx.x];
        memory.d_direction[threadIdx.x] = sum;
      }
      const int inputs = task.inputs - task.first_input, outputs = task.outputs - task.first_output;
      const bool in_fours = task.inputs % 4 == 0 && task.outputs % 4 == 0;
      product_tile(memory, items + classes, inputs, outputs, in_fours, left, right, [&](int i, int j, float value) {
        if (classes > 0) value += t.parameters[t.mislabelled + task.first_input + i] * memory.d_direction[j];
        store(task.start + (long)(task.first_input + i) * task.outputs + task.first_output + j, value);
      });
      break;
    }
    case COLUMN_SUMS:
      column_sums(
          memory.partial, step.tokens,
          [&](int row, int i) {
            const int column = min(task.first_output + i, task.outputs - 1);
            const long at = (long)row * task.outputs + column;
            const float value = task.right ? task.left[at] * task.right[at] : task.left[at];
            if (task.option == ALL_TOKENS) return value;
            const u32 token = tokens[row];
            const bool counts = (int)(token & ~LABEL_FLAG) == task.label && (task.option != CLASS_TOKEN || (token & LABEL_FLAG));
            return counts ? value : 0.f;
          },
          [&](int i, float sum) {
            if (task.first_output + i < task.outputs) store(task.start + task.first_output + i, sum);
          });
      break;
    case MISLABELLED_WEIGHT: {
      // 32 numbers: four per warp, a lane every 32nd column of W.
      const int first = task.first_output + (threadIdx.x >> 5) * 4;
      float sums[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll 4
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
#pragma unroll 8
        for (int item = threadIdx.x; item < step.items; item += 32) sum += t.d_logits[item];
        sum = warp_sum(sum);
        if (threadIdx.x == 0) store(task.start, sum);
      } else if (threadIdx.x < 64) {
        end_step<JOINT>(t, input);
      }
      break;
  }
  // The squares of a warp, then of the warps.
#pragma unroll
  for (int distance = 16; distance; distance >>= 1) square += __shfl_xor_sync(FULL_WARP, square, distance);
  if (lane == 0) memory.squares[threadIdx.x >> 5] = square;
  __syncthreads();
  if (threadIdx.x != 0) return;
#pragma unroll
  for (int warp = 1; warp < TASK_THREADS / 32; warp++) square += memory.squares[warp];
  squares[number] = JOINT ? square * step.scale * step.scale : square;
}
// The kernel without a backbone; tranfs_joint.cu has the other.
extern "C" __global__ void __launch_bounds__(TASK_THREADS)
    tranfs_gradients(Tranfs t, const GradientTask* tasks, float* gradients, double* squares, int first_task) {
  compute_gradients<false>(t, tasks, gradients, squares, first_task);
}

// A task of the update is a tile of at most 16 rows and 64 columns of one tensor, so that it contains whole fragments
// of both packed copies. Tensors without packed copies are handled as rows of 64.
#define UPDATE_ROWS 16
#define UPDATE_COLUMNS 64
#define UPDATE_TURNS (UPDATE_ROWS * UPDATE_COLUMNS / 256)  // parameters of a thread
#define UPDATE_PITCH (UPDATE_COLUMNS + 1)  // floats from one row of the tile to the next in shared memory
// One task of the update (src/tranfs/tasks.rs).
struct UpdateTask {
  int start, len;                 // of the tensor in the parameters
  int inputs, outputs;            // its rows and columns
  int first_input, first_output;  // of the tile
  int forward, transposed;        // packed copies (linear.cu), in 16 bytes; -1: none
};
// Hyperparameters of AdamW; clip: the largest norm of the gradient, 0: no clipping; squares: the number of sums of
// squares.
struct HeadOptimiser {
  float beta1, beta2, epsilon, l2, clip;
  int squares;
};
// What the update depends on if a backbone is trained together with the head (`BackboneUpdate` in src/joint.rs).
struct TranfsBackbone {
  const u32* overflow;    // not 0: nothing is updated, and the step is repeated
  const double* squares;  // [square_count]: sums of squares of the backbone's gradients, of the mean loss
  int square_count;
};

// The parameter that this thread updates in turn `turn`, as its position in the tensor; -1 where the tile extends past
// the tensor.
DEVICE int parameter_in_turn(const UpdateTask& task, int turn) {
  const int row = turn * (256 / UPDATE_COLUMNS) + threadIdx.x / UPDATE_COLUMNS, column = threadIdx.x % UPDATE_COLUMNS;
  const int input = task.first_input + row, output = task.first_output + column;
  const int offset = input * task.outputs + output;
  return input < task.inputs && output < task.outputs && offset < task.len ? offset : -1;
}

// Writes a tile of weights, [UPDATE_ROWS][UPDATE_PITCH] in shared memory with zeros outside of the tensor, to the
// packed copies as TF32: 8 outputs x 16 inputs per warp of the weight, and 8 inputs x 16 outputs per warp of its
// transpose. A thread writes 16 bytes of each copy (linear.cu).
DEVICE void pack_tile(const UpdateTask& task, const float* tile, uint4* packed) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, group = lane >> 2, quad = lane & 3;
  if (task.forward >= 0 && task.first_output + warp * 8 < task.outputs) {
    const float* own = tile + quad * UPDATE_PITCH + warp * 8 + group;
    const long at = (long)(task.first_output / 8 + warp) * ((task.inputs + 15) >> 4) + task.first_input / 16;
    packed[task.forward + at * 32 + lane] = make_uint4(to_tf32(own[0]), to_tf32(own[4 * UPDATE_PITCH]),
                                                       to_tf32(own[8 * UPDATE_PITCH]), to_tf32(own[12 * UPDATE_PITCH]));
  }
  const int row_tile = warp & 1, step = warp >> 1;
  if (task.transposed >= 0 && task.first_input + row_tile * 8 < task.inputs && task.first_output + step * 16 < task.outputs) {
    const float* own = tile + (row_tile * 8 + group) * UPDATE_PITCH + step * 16 + quad;
    const long at = (long)(task.first_input / 8 + row_tile) * ((task.outputs + 15) >> 4) + task.first_output / 16 + step;
    packed[task.transposed + at * 32 + lane] = make_uint4(to_tf32(own[0]), to_tf32(own[4]), to_tf32(own[8]), to_tf32(own[12]));
  }
}

// The norm of the gradients of head and backbone. 256 threads, all of which receive it. Contains a barrier.
DEVICE double joint_norm(const double* squares, int count, const TranfsBackbone& backbone) {
  SHARED double of_warps[256 / 32];
  double square = 0.0;
  for (int i = threadIdx.x; i < count; i += 256) square += squares[i];
  for (int i = threadIdx.x; i < backbone.square_count; i += 256) square += backbone.squares[i];
#pragma unroll
  for (int distance = 16; distance; distance >>= 1) square += __shfl_xor_sync(FULL_WARP, square, distance);
  if ((threadIdx.x & 31) == 0) of_warps[threadIdx.x >> 5] = square;
  __syncthreads();
  double total = 0.0;
#pragma unroll
  for (int warp = 0; warp < 256 / 32; warp++) total += of_warps[warp];
  return sqrt(total);
}

// AdamW on the parameters of a task, and their packed copies; the input of the next step is copied to `current` by all
// blocks. The gradient is multiplied by 1 / episodes and the factor of clipping, for which every thread adds up all
// squares in the same order. JOINT: ends the step, unless a gradient of the backbone overflowed. Grid: tasks, 256
// threads, four parameters each. Shared memory: the tile of new weights, from which `pack_tile` reads.
template <bool JOINT>
DEVICE void update_parameters_of(const Tranfs& t, const UpdateTask* tasks, float* first_moments, float* second_moments,
                                 const float* gradients, const double* squares, uint4* packed, const HeadOptimiser& options,
                                 const TranfsBackbone& backbone) {
  SHARED float tile[UPDATE_ROWS * UPDATE_PITCH];
  const UpdateTask task = tasks[blockIdx.x];
  const TranfsState state = *t.state;
  if (JOINT && *backbone.overflow) return;
  const u32 finished = JOINT ? state.evaluated + 1 : state.step;
  if (JOINT && blockIdx.x == 0 && threadIdx.x == 0) t.state->step = finished;
  const u32* next = t.inputs + (long)(finished % STEP_SLOTS) * t.slot_len;
  for (int i = blockIdx.x * 256 + threadIdx.x; i < t.slot_len; i += gridDim.x * 256) t.current[i] = next[i];
  if (state.failed) return;
  float values[UPDATE_TURNS], first[UPDATE_TURNS], second[UPDATE_TURNS], gradient[UPDATE_TURNS];
#pragma unroll
  for (int turn = 0; turn < UPDATE_TURNS; turn++) {
    const int offset = parameter_in_turn(task, turn), index = task.start + max(offset, 0);
    values[turn] = t.parameters[index];
    first[turn] = first_moments[index];
    second[turn] = second_moments[index];
    gradient[turn] = gradients[index];
  }
  float scale = state.scale;
  if (options.clip > 0.f) {
    double norm;
    if constexpr (JOINT) {
      norm = joint_norm(squares, options.squares, backbone);
    } else {
      double square = 0.0;
#pragma unroll 16
      for (int i = 0; i < options.squares; i++) square += squares[i];
      norm = sqrt(square) * scale;
    }
    if (norm > options.clip) scale *= (float)(options.clip / norm);
  }
#pragma unroll
  for (int turn = 0; turn < UPDATE_TURNS; turn++) {
    const int offset = parameter_in_turn(task, turn), index = task.start + offset;
    const float g = gradient[turn] * scale + options.l2 * values[turn];
    const float m = options.beta1 * first[turn] + (1.f - options.beta1) * g;
    const float v = options.beta2 * second[turn] + (1.f - options.beta2) * g * g;
    const float value = values[turn] * state.keep - state.rate * m / (sqrtf(v) * state.second_scale + options.epsilon);
    tile[(turn * (256 / UPDATE_COLUMNS) + threadIdx.x / UPDATE_COLUMNS) * UPDATE_PITCH + threadIdx.x % UPDATE_COLUMNS] =
        offset >= 0 ? value : 0.f;
    if (offset < 0) continue;
    first_moments[index] = m;
    second_moments[index] = v;
    t.parameters[index] = value;
  }
  if (task.forward < 0) return;
  __syncthreads();
  pack_tile(task, tile, packed);
}
// The kernel without a backbone; tranfs_joint.cu has the other.
extern "C" __global__ void __launch_bounds__(256)
    tranfs_update(Tranfs t, const UpdateTask* tasks, float* first_moments, float* second_moments, const float* gradients,
                  const double* squares, uint4* packed, HeadOptimiser options) {
  update_parameters_of<false>(t, tasks, first_moments, second_moments, gradients, squares, packed, options, TranfsBackbone{});
}

// All packed copies and the input of the next step, after the host has written parameters or inputs. Grid, threads,
// tasks and shared memory as in tranfs_update.
extern "C" __global__ void __launch_bounds__(256) tranfs_begin(Tranfs t, const UpdateTask* tasks, uint4* packed) {
  SHARED float tile[UPDATE_ROWS * UPDATE_PITCH];
  const UpdateTask task = tasks[blockIdx.x];
  const u32* next = t.inputs + (long)(t.state->step % STEP_SLOTS) * t.slot_len;
  for (int i = blockIdx.x * 256 + threadIdx.x; i < t.slot_len; i += gridDim.x * 256) t.current[i] = next[i];
  if (task.forward < 0) return;
#pragma unroll
  for (int turn = 0; turn < UPDATE_TURNS; turn++) {
    const int offset = parameter_in_turn(task, turn);
    tile[(turn * (256 / UPDATE_COLUMNS) + threadIdx.x / UPDATE_COLUMNS) * UPDATE_PITCH + threadIdx.x % UPDATE_COLUMNS] =
        offset >= 0 ? t.parameters[task.start + offset] : 0.f;
  }
  __syncthreads();
  pack_tile(task, tile, packed);
}
