// The TraNFS head, part 1: the sizes and buffers that all of its kernels share (`struct Tranfs`), the projection of the
// items, and the encoder forward and backward (crates/nn/src/tranfs has the formulas, src/tranfs.rs launches the
// kernels).
//
// TraNFS reads an episode (a support set whose labels may be wrong, and queries) and computes a prototype per class.
// The tokens of an episode are one class token per class, then its items, projected from D to W numbers; to every token
// the position embedding of its class is added. A transformer encoder mixes the tokens. The class tokens after it,
// projected back to D, are the prototypes. The logit of "mislabelled" of an item is the item token after the encoder
// times a "direction" [W], plus a bias. The loss has three terms: the cross-entropy of the queries by their distances
// to the prototypes; the "clean loss", the distance of a prototype to the mean of the correctly labelled items of its
// class; the cross-entropy of "mislabelled".
//
// Sizes: D the dimension of features, W the width of tokens, F hidden units, L layers; E episodes, I items, C classes,
// T tokens and Q queries of all episodes of a step. Items, classes, tokens and queries of all episodes are lists
// without gaps; `first_item`, `first_class`, .. say where those of an episode begin. The items of an episode are sorted
// by given label. In the shapes of buffers, I, C, T and Q are the capacities, the most that a step may have. Numbers
// are f32, matrix products TF32 (common.cuh).
//
// The kernels of a step, which work on the sizes that the input of the step says; blocks beyond them return at once:
//   tranfs_clean_means       means of correctly labelled items, and, together with tranfs_direction, the direction of
//                            "mislabelled"; on the side queue, beside the encoder (tranfs_losses.cu)
//   tranfs_project           items times down-projection, split over D
//   tranfs_layer 0           tokens; queries, keys and values of layer 0. One thread block per 8 tokens of an episode
//   tranfs_attend l          for every layer l: its attention (attention.cu), then
//   tranfs_layer l + 1       the rest of layer l; queries, keys and values of layer l + 1, or after the last layer the
//                            loss of "mislabelled"
//   tranfs_prototypes        one thread block per episode and 128 columns of D: prototypes, partial distances
//                            (tranfs_losses.cu)
//   tranfs_losses            the same blocks: losses, gradients of prototypes and, split over D, of class states (the
//                            class tokens after the encoder)
//   tranfs_layer_back L      gradients of the encoder's output and, in layer L - 1, of what follows attention
//   tranfs_attend_back l     for every layer l from the last: gradients of its queries, keys and values (attention.cu),
//   tranfs_layer_back l      then of its input and, in layer l - 1, of what follows attention
//   tranfs_class_means_back  only if class tokens are class means: gradients of the projected items
//   tranfs_gradients         gradients of the parameters; those of a layer run beside the backward pass of the layers
//                            below it (tranfs_update.cu)
//   tranfs_update            AdamW; the input of the next step
// If a backbone computes the features in the same step, tranfs_losses, tranfs_gradients and tranfs_update are replaced
// by their variants that end with _joint, and the gradient of the features is computed beside the backward pass
// (tranfs_joint.cu). Variants that end with _large work in global memory, for episodes that do not fit into shared
// memory.
//
// Most of the time is latency: a number that another multiprocessor wrote takes 700 cycles to arrive. So kernels start
// all their loads as early as possible. "Split over D" means that each thread block computes the part of a sum that its
// columns of D contribute, and a later kernel adds the parts; they are added in a fixed order, so runs repeat to the
// bit. Weights are "packed": copied in the order of the matrix instructions (linear.cu) after every update.
#pragma once
#include "layer_norm.cu"
#include "linear.cu"

#define LAYER_THREADS 256  // threads of tranfs_layer and tranfs_layer_back
#define ROWS 8  // tokens of a thread block of tranfs_layer and tranfs_layer_back
// The highest bit of a label: a mislabelled item in the list `labels`, a class token in the list `tokens`.
#define LABEL_FLAG 0x80000000u

// The part of a step's input that has a fixed length, at the start of its slot. 16 words. (src/tranfs/input.rs writes
// it and the lists.)
struct TranfsStep {
  // Factors of AdamW (`StepFactors` in crates/nn/src/adamw.rs), with the bias corrections.
  float keep, rate, second_scale;
  float scale;                     // 1 / episodes: from sums to means over the episodes
  // The sizes of this step.
  int episodes, tokens, items, classes, queries;
  int extra_start;                 // the step's first row of `extra`
  int padding[6];
};

// One episode of a step: where its entries begin in the lists of the step, and how many there are. 16 words.
struct TranfsEpisode {
  int first_token, tokens, first_item, items, first_class, classes, first_query, queries;
  u32 seed_low, seed_high;  // of dropout
  // A part of a step is a few episodes that share a dropout seed.
  u32 dropout_token;        // the number of the first token in its part of the step, which dropout masks count from
  u32 dropout_map;          // the number of the first attention weight in its part
  int map_start;            // of the attention weights, in a layer's `maps`
  int padding[3];
};

// One class of an episode. 4 words.
struct TranfsClass {
  int token;                       // its class token
  int first_item, items;           // the items with this label
  int padding;
};

// What a run keeps on the device between steps.
struct TranfsState {
  u32 step;                        // finished steps
  u32 failed;                      // 1 after a loss that was not finite; nothing is updated from then on
  float keep, rate, second_scale, scale;  // of the current step
  u32 evaluated;                   // joint training: the number of the step whose losses were computed last
};

// The argument of all kernels: sizes, positions and addresses, constant for a run. The fields are those of
// `TranfsArgument` in src/tranfs/memory.rs.
struct Tranfs {
  int dim, width, heads, hidden, layers;  // D, W, attention heads, F, L
  int classes;                     // rows of the tables: the most classes of an episode
  int chunks;                      // ceil(dim / CHUNK)
  int projections;                 // ceil(dim / PROJECTED_COLUMNS)
  int class_mean, cosine;          // options: class tokens are class means; the clean loss is minus the cosine
  int row_len;                     // floats of `rows` per thread block of the _large variants of tranfs_layer
  int most_tokens;                 // of an episode
  int item_capacity, class_capacity, token_capacity, query_capacity;  // the most of a step
  int map_capacity;                // attention weights of a layer
  int feature_rows;                // rows of `features`
  int slot_len, episodes_at, classes_at, rows_at, labels_at, tokens_at, query_rows_at, query_classes_at;  // words of inputs
  u32 dropout_threshold;
  float dropout_scale, attention_scale, clean_weight, mislabelled_weight;
  // Positions of parameters.
  int down, up, positions, class_tokens, mislabelled, mislabelled_bias, layer, layer_len;
  int qkv_bias, attended_bias, norm1, hidden_bias, out_bias, norm2;  // in a layer; a norm is scale, then shift
  // Positions of packed weights, in 16 bytes; `_t` transposed.
  int packed_down, packed_up, packed_up_t, packed_layer, packed_layer_len;
  int packed_qkv, packed_attended, packed_hidden, packed_out, packed_qkv_t, packed_attended_t, packed_hidden_t, packed_out_t;
  const u32* inputs;               // [STEP_SLOTS][slot_len]: a slot is TranfsStep, then the lists at `..._at`
  u32* current;                    // [slot_len]: a copy of the slot of the current step
  const float* features;           // [feature_rows][D]
  const float* extra;              // rows that are not in `features`
  float* parameters;
  const uint4* packed;             // weights in the order of matrix instructions (linear.cu)
  float* projected;                // [projections][I][W]: parts of the projected items
  float* directions;               // [chunks][W]: parts of the direction
  float* direction;                // [W]: the direction of "mislabelled", its weight times the up-projection
  float* states;                   // [L + 1][T][W]: tokens, then the output of each layer
  float* qkv;                      // [L][T][3 W]
  float* maps;                     // [L][map_capacity]
  float* attended;                 // [L][T][W]
  float* middle;                   // [L][T][W]: after attention and norm 1
  float* hidden_units;             // [L][T][F]: after ReLU and dropout
  float* normalised;               // [L][2][T][W]: of norm 1 and norm 2 (layer_norm.cu)
  float* inverse_std;              // [L][2][T]
  float* d_states;                 // [L + 1][T][W]: gradients of `states`
  float* d_middle;                 // [L][T][W]: gradients of the values of these names, like all d_
  float* d_qkv;                    // [L][T][3 W]
  float* d_attention_out;          // [L][T][W]: of attention's output projection
  float* d_hidden;                 // [L][T][F]
  float* d_out;                    // [L][T][W]: of the feed-forward network's output
  float* d_half;                   // [T][W]: of the input of norm 1, kept until the attention below is done
  float* d_attended;               // [T][W]: of one layer
  float* d_maps;                   // [map_capacity]: scratch memory of attention, of one layer
  float* d_means;                  // [T][heads]: scratch memory of attention
  float* rows;                     // [thread blocks][row_len]: rows of tranfs_layer that do not fit into shared memory
  float* d_projected;              // [I][W]
  float* d_logits;                 // [I]: of "mislabelled"
  float* item_losses;              // [I]: of "mislabelled", weighted
  float* d_direction;              // [E][W]: parts of the gradient of the direction
  float* prototypes;               // [C][D]
  float* d_prototypes;             // [C][D]
  float* clean_means;              // [C][D]: means of the correctly labelled items; 0 where there are none
  int* clean_counts;               // [C]: correctly labelled items
  float* partial_products;         // [chunks][Q][classes]: parts of the products of queries and prototypes
  float* class_sums;               // [chunks][C][4]: p.p, p.t, t.t, |p - t|², with t the clean mean
  float* class_factors;            // [chunks][C][4]: each chunk's own copy of p.p, the sum of d_logits, two factors
  float* d_query_logits;           // [chunks][Q][classes]: each chunk's own copy
  float* query_losses;             // [Q]: cross-entropies, weighted
  float* class_losses;             // [C]: clean losses, weighted
  float* d_class_states;           // [chunks][C][W]: parts of the gradients of the class tokens
  float* losses;                   // [E][3]: queries, clean, mislabelled
  float* step_losses;              // [STEP_SLOTS][3]: means over the episodes
  TranfsState* state;
};

// What the kernels need in addition if a backbone is trained together with the head.
struct TranfsJoint {
  float* d_features;               // [feature_rows][D]: gradient of the mean loss over the episodes
  float* mean_factors;             // [C][2]: factors a and b; the clean loss gives each correctly labelled item a t - b p
  int packed_down_t;               // position of packed weights
  int item_rows;                   // items of a thread block of tranfs_item_gradients
};

// Parts of the input of a step, which begins at `input`.
DEVICE const TranfsStep& step_of(const u32* input) { return *(const TranfsStep*)input; }
DEVICE const TranfsEpisode& episode_of(const Tranfs& t, const u32* input, int episode) {
  return ((const TranfsEpisode*)(input + t.episodes_at))[episode];
}
DEVICE const TranfsClass* classes_of(const Tranfs& t, const u32* input) { return (const TranfsClass*)(input + t.classes_at); }
// The features [D] of row number `row`: of the data set, or, from feature_rows on, one that came with the step.
DEVICE const float* feature_row(const Tranfs& t, const u32* input, u32 row) {
  const bool is_stored = row < (u32)t.feature_rows;
  const float* from = is_stored ? t.features : t.extra;
  return from + (long)(is_stored ? (int)row : step_of(input).extra_start + (int)(row - t.feature_rows)) * t.dim;
}
// The dropout mask of a site of a layer: 0 attention weights, 1 after attention, 2 hidden units, 3 after the
// feed-forward network.
DEVICE DropoutMask dropout_of(const Tranfs& t, const TranfsEpisode& e, int layer, int site) {
  return dropout_site((u64)e.seed_high << 32 | e.seed_low, layer * 4 + site, t.dropout_threshold, t.dropout_scale);
}

// Columns of D of a thread block of tranfs_project, a multiple of 16. src/tranfs/memory.rs has the same number.
#define PROJECTED_COLUMNS 320
// projected[part][item][W] = the features of an item times the down-projection [D][W], over the columns of D of part
// blockIdx.x; tranfs_layer 0 adds the parts up. Grid: (projections, ceil(item_capacity / ROWS)), 256 threads:
// PROJECTED_COLUMNS columns of 8 items. Shared memory: these columns, [8][pitch_of(columns)].
extern "C" __global__ void __launch_bounds__(256) tranfs_project(Tranfs t) {
  float* x = (float*)dynamic_shared;
  const u32* input = t.current;
  const int part = blockIdx.x, start = part * PROJECTED_COLUMNS, columns = min(PROJECTED_COLUMNS, t.dim - start);
  const int first = blockIdx.y * ROWS, rows = min(ROWS, step_of(input).items - first);
  const uint4* weights = t.packed + t.packed_down + (start >> 4) * 32;
  const int pitch = pitch_of(columns);
  if (rows <= 0) return;
  if (columns % 16 != 0) {
    for (int i = threadIdx.x; i < ROWS * pitch; i += 256) x[i] = 0.f;
    __syncthreads();
  }
#pragma unroll 2
  for (int row = threadIdx.x >> 5; row < rows; row += 256 / 32)
    copy_row(x + row * pitch, feature_row(t, input, input[t.rows_at + first + row]) + start, columns, t.dim % 4 == 0);
  finish_copies();
  __syncthreads();
  multiply<true, false>(x, pitch, rows, weights, (t.dim + 15) >> 4, columns, t.width, 0,
                        t.projected + ((long)part * t.item_capacity + first) * t.width, t.width);
}

// The rows of a thread block of tranfs_layer or tranfs_layer_back: up to ROWS tokens of one episode, from number
// `first` on, and its memory, in shared memory or, in the _large variants, in `Tranfs::rows`. The pitches are those of
// `multiply` (linear.cu).
struct TokenRows {
  TranfsEpisode e;
  const u32* input;
  int first, count;                  // number of the first token in its episode; tokens
  int pitch, unit_pitch, qkv_pitch;  // of rows of W, F and 3 W numbers
  // [ROWS][pitch]: states, or their gradients, from step to step. y and z, which hold the factors and results of the
  // products in between: [ROWS][any pitch of this pass], [ROWS][pitch or unit_pitch].
  float *x, *y, *z;
  // Forward: those of `copy_layer_parameters`; backward: the scales of norm 2 and norm 1.
  float* parameters;
  // Backward: [ROWS][pitch], of the last [ROWS][unit_pitch].
  float *normalised1, *normalised2, *half, *units;
};

// Finds the rows of this block (blockIdx.x: rows, blockIdx.y: episode) and places its memory; false if there are none.
// May contain a barrier.
template <bool IN_SHARED, bool BACKWARD> DEVICE bool open_rows(const Tranfs& t, TokenRows& r) {
  r.input = t.current;
  r.e = episode_of(t, r.input, blockIdx.y);
  if ((int)blockIdx.y >= step_of(r.input).episodes) return false;
  r.first = blockIdx.x * ROWS;
  r.count = min(ROWS, r.e.tokens - r.first);
  if (r.count <= 0) return false;
  r.pitch = pitch_of(t.width);
  r.unit_pitch = pitch_of(t.hidden);
  r.qkv_pitch = pitch_of(3 * t.width);
  const int widest = max(r.pitch, r.unit_pitch);
  r.x = IN_SHARED ? (float*)dynamic_shared : t.rows + (long)(blockIdx.y * gridDim.x + blockIdx.x) * t.row_len;
  r.y = r.x + ROWS * r.pitch;
  r.z = r.y + ROWS * (BACKWARD ? r.qkv_pitch : widest);
  r.normalised1 = r.z + ROWS * widest;
  r.normalised2 = r.normalised1 + ROWS * r.pitch;
  r.half = r.normalised2 + ROWS * r.pitch;
  r.units = r.half + ROWS * r.pitch;
  r.parameters = BACKWARD ? r.units + ROWS * r.unit_pitch : r.normalised1;
  // Columns that exist only because rows are padded must be zero for `multiply`.
  if (t.width % 16 != 0 || t.hidden % 16 != 0) {
    for (int i = threadIdx.x; i < r.parameters - r.x; i += LAYER_THREADS) r.x[i] = 0.f;
    __syncthreads();
  }
  return true;
}

// Adds to sums[4] columns lane, lane + 32, lane + 64 and lane + 96 of `parts` rows, which are `stride` floats apart and
// have `width` columns left. One warp, which therefore has 128 columns at a time.
DEVICE void sum_parts(float* sums, const float* rows, long stride, int parts, int width) {
  const int lane = threadIdx.x & 31;
#pragma unroll 8
  for (int part = 0; part < parts; part++)
#pragma unroll
    for (int i = 0; i < 4; i++)
      if (i * 32 + lane < width) sums[i] += rows[part * stride + i * 32 + lane];
}

// The input of the encoder, to x and `states`: for a class its class token (a parameter, or the mean of its projected
// items, option class_mean), for an item its projection; plus the position embedding of its class. One warp per token,
// 128 columns at a time.
DEVICE void embed_tokens(const Tranfs& t, const TokenRows& r) {
  const int lane = threadIdx.x & 31, width = t.width;
  const long stride = (long)t.item_capacity * width;
  const TranfsClass* classes = classes_of(t, r.input) + r.e.first_class;
#pragma unroll 1
  for (int row = threadIdx.x >> 5; row < r.count; row += LAYER_THREADS / 32) {
    const int token = r.first + row, item = r.e.first_item + token - r.e.classes;
    const bool is_class = token < r.e.classes;
    const int own = is_class ? token : (int)(r.input[t.labels_at + item] & ~LABEL_FLAG);
#pragma unroll 1
    for (int start = 0; start < width; start += 128) {
      float sums[4] = {0.f, 0.f, 0.f, 0.f};
      if (!is_class) {
        sum_parts(sums, t.projected + (long)item * width + start, stride, t.projections, width - start);
      } else if (!t.class_mean) {
        sum_parts(sums, t.parameters + t.class_tokens + own * width + start, 0, 1, width - start);
      } else if (classes[own].items > 0) {
        const float* first_item = t.projected + (long)classes[own].first_item * width + start;
        for (int part = 0; part < t.projections; part++)
          sum_parts(sums, first_item + part * stride, width, classes[own].items, width - start);
#pragma unroll
        for (int i = 0; i < 4; i++) sums[i] /= classes[own].items;
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int column = start + i * 32 + lane;
        if (column >= width) break;
        const float sum = sums[i] + t.parameters[t.positions + own * width + column];
        r.x[row * r.pitch + column] = sum;
        t.states[(long)(r.e.first_token + token) * width + column] = sum;
      }
    }
  }
}

// For the items among the rows: logit of "mislabelled" from x, the encoder's output; its binary cross-entropy in the
// stable form max(-z, 0) + log(1 + exp(-|z|)), with z the logit towards the truth; and the gradient of the logit. Both
// are weighted by mislabelled_weight / items of the episode.
DEVICE void mislabelled_losses(const Tranfs& t, const TokenRows& r) {
  const int lane = threadIdx.x & 31;
  const float weight = t.mislabelled_weight / max(r.e.items, 1), bias = t.parameters[t.mislabelled_bias];
#pragma unroll 1
  for (int row = threadIdx.x >> 5; row < r.count; row += LAYER_THREADS / 32) {
    const int item = r.e.first_item + r.first + row - r.e.classes;
    if (r.first + row < r.e.classes) continue;
    float sum = 0.f;
#pragma unroll 4
    for (int column = lane; column < t.width; column += 32) sum += r.x[row * r.pitch + column] * t.direction[column];
    const float logit = warp_sum(sum) + bias;
    if (lane != 0) continue;
    const bool target = (r.input[t.labels_at + item] & LABEL_FLAG) != 0;
    const float outward = target ? logit : -logit;  // z
    t.item_losses[item] = weight * (fmaxf(-outward, 0.f) + log1pf(expf(-fabsf(outward))));
    t.d_logits[item] = weight * (1.f / (1.f + expf(-logit)) - (target ? 1.f : 0.f));
  }
}

// Starts to copy the parameters of what follows attention in a layer to r.parameters: bias and norm after attention (3
// W), bias and norm after the feed-forward network (3 W), bias of the hidden units (F). `parameters`: those of the
// layer.
template <bool IN_SHARED> DEVICE void copy_layer_parameters(const Tranfs& t, const TokenRows& r, const float* parameters) {
  copy_rows<IN_SHARED>(r.parameters, 0, parameters + t.attended_bias, 1, 3 * t.width);
  copy_rows<IN_SHARED>(r.parameters + 3 * t.width, 0, parameters + t.out_bias, 1, 3 * t.width);
  copy_rows<IN_SHARED>(r.parameters + 6 * t.width, 0, parameters + t.hidden_bias, 1, t.hidden);
}

// The rest of layer `layer` - 1 after attention, or the tokens if layer = 0; then queries, keys and values of layer
// `layer`, or the losses of "mislabelled" after the last:
//
//   middle = norm1(states + dropout(attended Wo + bo)),   units = dropout(relu(middle Wh + bh))
//   states' = norm2(middle + dropout(units Wf + bf)),   qkv = states' Wq + bq
//
// x holds the states, then middle, then states'. The parameters of a layer are Wo, bo (after attention), Wh, bh (hidden
// units), Wf, bf (output of the feed-forward network), Wq, bq (queries, keys and values), norm1 and norm2.
//
// All these are per token, so a block has 8 tokens and needs no others. Grid: (ceil(tokens of an episode / ROWS),
// episodes), 256 threads. Shared memory: TokenRows. If it does not suffice, they are in global memory, and the kernel
// is tranfs_layer_large.
template <bool IN_SHARED> DEVICE void forward_layer(const Tranfs& t, int layer) {
  TokenRows r;
  const int width = t.width, hidden = t.hidden, steps = (width + 15) >> 4, lane = threadIdx.x & 31;
  const uint4* packed_next = t.packed + t.packed_layer + (long)layer * t.packed_layer_len;
  if (!open_rows<IN_SHARED, false>(t, r)) return;
  if (layer == 0) {
    embed_tokens(t, r);
  } else {
    const long first = (long)(layer - 1) * t.token_capacity + r.e.first_token + r.first;
    // `first` is a row of [L][T]; norm and norm2 are rows of [L][2][T], of norm 1 and norm 2 of the same layer.
    const long norm = first + (long)(layer - 1) * t.token_capacity, norm2 = norm + t.token_capacity;
    const uint4* packed = packed_next - t.packed_layer_len;
    const u32 token = r.e.dropout_token + r.first;
    copy_rows<IN_SHARED>(r.y, r.pitch, t.attended + first * width, r.count, width);
    copy_rows<IN_SHARED>(r.x, r.pitch, t.states + first * width, r.count, width);
    copy_layer_parameters<IN_SHARED>(t, r, t.parameters + t.layer + (long)(layer - 1) * t.layer_len);
    finish_copies();
    __syncthreads();
    multiply<IN_SHARED, IN_SHARED>(r.y, r.pitch, r.count, packed + t.packed_attended, steps, width, width, 0, r.z, r.pitch);
    __syncthreads();
    add_and_normalise<IN_SHARED>(r.x, r.z, r.pitch, r.count, width, r.parameters, dropout_of(t, r.e, layer - 1, 1), token * width,
                                 t.normalised + norm * width, t.inverse_std + norm, t.middle + first * width);
    __syncthreads();
    multiply<IN_SHARED, IN_SHARED>(r.x, r.pitch, r.count, packed + t.packed_hidden, steps, width, hidden, 0, r.y, r.unit_pitch);
    __syncthreads();
    const DropoutMask mask = dropout_of(t, r.e, layer - 1, 2);
    const float* bias = r.parameters + 6 * width;
    for (int row = threadIdx.x >> 5; row < r.count; row += LAYER_THREADS / 32)
#pragma unroll 4
      for (int column = lane; column < hidden; column += 32) {
        float* at = r.y + row * r.unit_pitch + column;
        const float value = dropout_factor(mask, (token + row) * hidden + column) * fmaxf(*at + bias[column], 0.f);
        *at = value;
        t.hidden_units[(first + row) * hidden + column] = value;
      }
    __syncthreads();
    multiply<IN_SHARED, IN_SHARED>(r.y, r.unit_pitch, r.count, packed + t.packed_out, (hidden + 15) >> 4, hidden, width, 0, r.z,
                                   r.pitch);
    __syncthreads();
    add_and_normalise<IN_SHARED>(r.x, r.z, r.pitch, r.count, width, r.parameters + 3 * width, dropout_of(t, r.e, layer - 1, 3),
                                 token * width, t.normalised + norm2 * width, t.inverse_std + norm2,
                                 t.states + (first + t.token_capacity) * width);
  }
  __syncthreads();
  if (layer == t.layers) return mislabelled_losses(t, r);
  const long first = (long)layer * t.token_capacity + r.e.first_token + r.first;
  multiply<IN_SHARED, false>(r.x, r.pitch, r.count, packed_next + t.packed_qkv, steps, width, 3 * width,
                             t.parameters + t.layer + (long)layer * t.layer_len + t.qkv_bias, t.qkv + first * 3 * width, 3 * width);
}
// The kernels, with the rows in shared and in global memory.
extern "C" __global__ void __launch_bounds__(LAYER_THREADS) tranfs_layer(Tranfs t, int layer) { forward_layer<true>(t, layer); }
extern "C" __global__ void __launch_bounds__(LAYER_THREADS) tranfs_layer_large(Tranfs t, int layer) { forward_layer<false>(t, layer); }

// The gradient of the encoder's output, to x and `d_states`: for a class token the sum of the chunks' parts in
// `d_class_states`; for an item the gradient of its logit times the direction.
DEVICE void output_gradients(const Tranfs& t, const TokenRows& r, float* d_states) {
  const int lane = threadIdx.x & 31, width = t.width;
#pragma unroll 1
  for (int row = threadIdx.x >> 5; row < r.count; row += LAYER_THREADS / 32) {
    const int token = r.first + row;
    const float d_logit = token < r.e.classes ? 0.f : t.d_logits[r.e.first_item + token - r.e.classes];
#pragma unroll 1
    for (int start = 0; start < width; start += 128) {
      float sums[4] = {0.f, 0.f, 0.f, 0.f};
      if (token < r.e.classes)
        sum_parts(sums, t.d_class_states + (long)(r.e.first_class + token) * width + start, (long)t.class_capacity * width, t.chunks,
                  width - start);
      else
        sum_parts(sums, t.direction + start, 0, 1, width - start);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int column = start + i * 32 + lane;
        if (column >= width) break;
        const float d = token < r.e.classes ? sums[i] : d_logit * sums[i];
        r.x[row * r.pitch + column] = d;
        d_states[(long)row * width + column] = d;
      }
    }
  }
}

// The gradient of the output of layer `layer` - 1 from that of the queries, keys and values of layer `layer`, or of the
// losses if layer = L; then the gradients of what follows attention in layer `layer` - 1, in reverse order of
// forward_layer. For layer = 0 it ends with the gradient of the tokens and `d_projected`. Grid, threads and memory as
// in tranfs_layer. Inputs are copied in two groups, so that the first product can start before the second has arrived.
template <bool IN_SHARED> DEVICE void backward_layer(const Tranfs& t, int layer) {
  TokenRows r;
  const int width = t.width, hidden = t.hidden, steps = (width + 15) >> 4, lane = threadIdx.x & 31;
  if (!open_rows<IN_SHARED, true>(t, r)) return;
  const long own = r.e.first_token + r.first;  // the first row among all tokens
  const long first = (long)(layer - 1) * t.token_capacity + own, norm = first + (long)(layer - 1) * t.token_capacity;
  const long norm2 = norm + t.token_capacity;
  const float* parameters = t.parameters + t.layer + (long)(layer - 1) * t.layer_len;
  const uint4* packed = t.packed + t.packed_layer + (long)(layer - 1) * t.packed_layer_len;
  float* d_states = t.d_states + ((long)layer * t.token_capacity + own) * width;
  const bool is_last = layer == t.layers;
  if (!is_last) {
    copy_rows<IN_SHARED>(r.y, r.qkv_pitch, t.d_qkv + ((long)layer * t.token_capacity + own) * 3 * width, r.count, 3 * width);
    copy_rows<IN_SHARED>(r.half, r.pitch, t.d_half + own * width, r.count, width);
  }
  commit_copies();
  if (layer > 0) {
    copy_rows<IN_SHARED>(r.normalised2, r.pitch, t.normalised + norm2 * width, r.count, width);
    copy_rows<IN_SHARED>(r.normalised1, r.pitch, t.normalised + norm * width, r.count, width);
    copy_rows<IN_SHARED>(r.units, r.unit_pitch, t.hidden_units + first * hidden, r.count, hidden);
    copy_rows<IN_SHARED>(r.parameters, 0, parameters + t.norm2, 1, width);
    copy_rows<IN_SHARED>(r.parameters + width, 0, parameters + t.norm1, 1, width);
  }
  commit_copies();
  if (is_last) {
    output_gradients(t, r, d_states);
  } else {
    wait_for_copies<1>();
    __syncthreads();
    multiply<IN_SHARED, IN_SHARED>(r.y, r.qkv_pitch, r.count, packed + t.packed_layer_len + t.packed_qkv_t, (3 * width + 15) >> 4,
                                   3 * width, width, 0, r.z, r.pitch);
    __syncthreads();
    for (int row = threadIdx.x >> 5; row < r.count; row += LAYER_THREADS / 32)
#pragma unroll 4
      for (int column = lane; column < width; column += 32) {
        const float d = r.z[row * r.pitch + column] + r.half[row * r.pitch + column];
        r.x[row * r.pitch + column] = d;
        d_states[(long)row * width + column] = d;
        const int item = r.first + row - r.e.classes;
        if (layer == 0 && !t.class_mean && item >= 0) t.d_projected[(long)(r.e.first_item + item) * width + column] = d;
      }
  }
  if (layer == 0) return;
  const u32 index = (r.e.dropout_token + r.first) * width;
  wait_for_copies<0>();
  __syncthreads();
  // Layer `layer` - 1 backwards: x is the gradient of its output, then of the input of norm 2, of `middle`, of the
  // input of norm 1.
  normalise_backward<IN_SHARED>(r.x, r.normalised2, r.pitch, r.count, width, t.inverse_std + norm2, r.parameters,
                                dropout_of(t, r.e, layer - 1, 3), index, 0, r.y, t.d_out + first * width);
  __syncthreads();
  multiply<IN_SHARED, IN_SHARED>(r.y, r.pitch, r.count, packed + t.packed_out_t, steps, width, hidden, 0, r.z, r.unit_pitch);
  __syncthreads();
  for (int row = threadIdx.x >> 5; row < r.count; row += LAYER_THREADS / 32)
#pragma unroll 4
    for (int column = lane; column < hidden; column += 32) {
      // Through dropout and ReLU: a unit that either has set to 0 has no gradient, the others that of their dropout
      // scale.
      float* at = r.z + row * r.unit_pitch + column;
      const float d = r.units[row * r.unit_pitch + column] > 0.f ? *at * t.dropout_scale : 0.f;
      *at = d;
      t.d_hidden[(first + row) * hidden + column] = d;
    }
  __syncthreads();
  multiply<IN_SHARED, IN_SHARED>(r.z, r.unit_pitch, r.count, packed + t.packed_hidden_t, (hidden + 15) >> 4, hidden, width, 0, r.y,
                                 r.pitch);
  __syncthreads();
  for (int row = threadIdx.x >> 5; row < r.count; row += LAYER_THREADS / 32)
#pragma unroll 4
    for (int column = lane; column < width; column += 32) {
      const float d = r.x[row * r.pitch + column] + r.y[row * r.pitch + column];
      r.x[row * r.pitch + column] = d;
      t.d_middle[(first + row) * width + column] = d;
    }
  // A row is the work of one warp until the next product, so no barrier of the block is needed.
  __syncwarp();
  normalise_backward<IN_SHARED>(r.x, r.normalised1, r.pitch, r.count, width, t.inverse_std + norm, r.parameters + width,
                                dropout_of(t, r.e, layer - 1, 1), index, t.d_half + own * width, r.y, t.d_attention_out + first * width);
  __syncthreads();
  multiply<IN_SHARED, false>(r.y, r.pitch, r.count, packed + t.packed_attended_t, steps, width, width, 0, t.d_attended + own * width,
                             width);
}
// The kernels, with the rows in shared and in global memory.
extern "C" __global__ void __launch_bounds__(LAYER_THREADS) tranfs_layer_back(Tranfs t, int layer) { backward_layer<true>(t, layer); }
extern "C" __global__ void __launch_bounds__(LAYER_THREADS) tranfs_layer_back_large(Tranfs t, int layer) {
  backward_layer<false>(t, layer);
}

// If class tokens are class means: d_projected [I][W], the gradients of the projected items, from those of their own
// tokens and their share of the class token's. Grid: episodes, 256 threads: one warp per item.
extern "C" __global__ void __launch_bounds__(256) tranfs_class_means_back(Tranfs t) {
  const u32* input = t.current;
  if ((int)blockIdx.x >= step_of(input).episodes) return;
  const TranfsEpisode e = episode_of(t, input, blockIdx.x);
  const float* d_states = t.d_states + (long)e.first_token * t.width;
  for (int i = threadIdx.x >> 5; i < e.items; i += 256 / 32) {
    const int own = input[t.labels_at + e.first_item + i] & ~LABEL_FLAG;
    const int count = classes_of(t, input)[e.first_class + own].items;
    for (int column = threadIdx.x & 31; column < t.width; column += 32)
      t.d_projected[(long)(e.first_item + i) * t.width + column] =
          d_states[(long)(e.classes + i) * t.width + column] + d_states[(long)own * t.width + column] / count;
  }
}
