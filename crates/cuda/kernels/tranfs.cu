// The TraNFS head: projection of the items, and the encoder forward and backward (crates/nn/src/tranfs has the formulas).
//
// Sizes: D the dimension of features, W the width of tokens, F hidden units, L layers; E episodes, I items, C classes, T
// tokens and Q queries of all episodes of a step. Items, classes, tokens and queries of all episodes are lists without gaps;
// the tokens of an episode are its classes, then its items sorted by given label. Numbers are f32, matrix products TF32.
//
// A step is seven kernels:
//   tranfs_project      items times down-projection, split over D, and the direction of "mislabelled"
//   tranfs_encode       one thread block per episode: tokens, all layers, loss of "mislabelled"
//   tranfs_prototypes   one thread block per episode and 128 columns of D: prototypes, partial distances (tranfs_losses.cu)
//   tranfs_losses       the same blocks: losses, gradients of prototypes and, split over D, of class states
//   tranfs_encode_back  one thread block per episode: gradients of all activations
//   tranfs_gradients    gradients of the parameters (tranfs_update.cu)
//   tranfs_update       AdamW
// Sums over splits are added in a fixed order, so runs repeat to the bit.
#pragma once
#include "attention.cu"
#include "layer_norm.cu"
#include "linear.cu"

#define ENCODER_THREADS 256
#define LABEL_FLAG 0x80000000u

// The part of a step's input that has a fixed length. 16 words.
struct TranfsStep {
  float keep, rate, second_scale;  // factors of AdamW, see StepFactors in crates/nn/src/adamw.rs
  float scale;                     // 1 / episodes
  int episodes, tokens, items, classes, queries;
  int extra_start;                 // the step's first row of `extra`
  int padding[6];
};

// One episode of a step. 16 words.
struct TranfsEpisode {
  int first_token, tokens, first_item, items, first_class, classes, first_query, queries;
  u32 seed_low, seed_high;         // of dropout
  u32 dropout_token;               // the number of the first token in its part, which dropout masks count from
  u32 dropout_map;                 // the number of the first attention weight in its part
  int map_start;                   // of the attention weights, in a layer's `maps`
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
};

struct Tranfs {
  int dim, width, heads, hidden, layers;
  int classes;                     // rows of the tables: the most classes of an episode
  int chunks;                      // ceil(dim / CHUNK)
  int class_mean, cosine;          // options: class tokens are class means; the clean loss is minus the cosine
  int attention_in_shared;
  int most_tokens;                 // of an episode
  int item_capacity, class_capacity, token_capacity, query_capacity;
  int map_capacity;                // attention weights of a layer
  int feature_rows;
  int slot_len, episodes_at, classes_at, rows_at, labels_at, tokens_at, query_rows_at, query_classes_at;  // words of inputs
  u32 dropout_threshold;
  float dropout_scale, attention_scale, clean_weight, mislabelled_weight;
  // Positions of parameters.
  int down, up, positions, class_tokens, mislabelled, mislabelled_bias, layer, layer_len;
  int qkv_bias, attended_bias, norm1, hidden_bias, out_bias, norm2;  // in a layer; a norm is scale, then shift
  // Positions of packed weights, in 16 bytes; `_t` transposed.
  int packed_down, packed_up, packed_up_t, packed_layer, packed_layer_len;
  int packed_qkv, packed_attended, packed_hidden, packed_out, packed_qkv_t, packed_attended_t, packed_hidden_t, packed_out_t;
  const u32* inputs;               // [STEP_SLOTS][slot_len]
  const float* features;           // [feature_rows][D]
  const float* extra;              // rows that are not in `features`
  float* parameters;
  const uint4* packed;
  float* projected;                // [chunks][I][W]
  float* direction;                // [chunks][W]
  float* states;                   // [L + 1][T][W]: tokens, then the output of each layer
  float* qkv;                      // [L][T][3 W]
  float* maps;                     // [L][map_capacity]
  float* attended;                 // [L][T][W]
  float* middle;                   // [L][T][W]
  float* hidden_units;             // [L][T][F]: after ReLU and dropout
  float* normalised;               // [L][2][T][W]
  float* inverse_std;              // [L][2][T]
  float* d_states;                 // [L + 1][T][W]: gradients of `states`
  float* d_middle;                 // [L][T][W]
  float* d_qkv;                    // [L][T][3 W]
  float* d_attention_out;          // [L][T][W]: of attention's output projection
  float* d_hidden;                 // [L][T][F]
  float* d_out;                    // [L][T][W]: of the feed-forward network's output
  float* d_half;                   // [T][W]: of a norm's input
  float* d_attended;               // [T][W]
  float* d_projected;              // [I][W]
  float* d_logits;                 // [I]: of "mislabelled"
  float* item_losses;              // [I]
  float* d_direction;              // [E][W]
  float* prototypes;               // [C][D]
  float* d_prototypes;             // [C][D]
  float* clean_means;              // [C][D]: means of the correctly labelled items
  float* partial_products;         // [chunks][Q][classes]
  float* class_sums;               // [chunks][C][4]: p.p, p.t, t.t, |p - t|², with t the clean mean
  float* class_factors;            // [chunks][C][4]: each chunk's own copy of p.p, the sum of d_logits, two factors
  float* d_query_logits;           // [chunks][Q][classes]: each chunk's own copy
  float* query_losses;             // [Q]
  float* class_losses;             // [C]
  float* d_class_states;           // [chunks][C][W]
  float* losses;                   // [E][3]: queries, clean, mislabelled
  float* step_losses;              // [STEP_SLOTS][3]
  TranfsState* state;
};

DEVICE const u32* step_input(const Tranfs& t) { return t.inputs + (long)(t.state->step % STEP_SLOTS) * t.slot_len; }
DEVICE const TranfsStep& step_of(const u32* input) { return *(const TranfsStep*)input; }
DEVICE const TranfsEpisode& episode_of(const Tranfs& t, const u32* input, int episode) {
  return ((const TranfsEpisode*)(input + t.episodes_at))[episode];
}
DEVICE const TranfsClass* classes_of(const Tranfs& t, const u32* input) { return (const TranfsClass*)(input + t.classes_at); }
// A row of the data set, or one that came with the step.
DEVICE const float* feature_row(const Tranfs& t, const u32* input, u32 row) {
  if (row < (u32)t.feature_rows) return t.features + (long)row * t.dim;
  return t.extra + (long)(step_of(input).extra_start + (int)(row - t.feature_rows)) * t.dim;
}
DEVICE DropoutMask dropout_of(const Tranfs& t, const TranfsEpisode& e, int layer, int site) {
  return dropout_site((u64)e.seed_high << 32 | e.seed_low, layer * 4 + site, t.dropout_threshold, t.dropout_scale);
}

// Partial products of items and down-projection. Grid: (chunks, ceil(item_capacity / 32) + 1), 256 threads. The last row of
// blocks computes the direction of "mislabelled": its weight times the up-projection. Shared memory: STAGE_LEN words.
extern "C" __global__ void __launch_bounds__(256) tranfs_project(Tranfs t) {
  const u32* input = step_input(t);
  const int chunk = blockIdx.x, start = chunk * CHUNK, columns = min(CHUNK, t.dim - start), first = blockIdx.y * STAGE_ROWS;
  if (blockIdx.y + 1 == gridDim.y) {
    for (int column = threadIdx.x; column < t.width; column += 256) {
      float sum = 0.f;
#pragma unroll 8
      for (int d = start; d < start + columns; d++)
        sum += t.parameters[t.mislabelled + d] * t.parameters[t.up + (long)d * t.width + column];
      t.direction[(long)chunk * t.width + column] = sum;
    }
    return;
  }
  const int rows = min(STAGE_ROWS, step_of(input).items - first);
  if (rows <= 0) return;
  const u32* row_numbers = input + t.rows_at + first;
  const uint4* weights = t.packed + t.packed_down + (start >> 4) * 32;
  float* out = t.projected + ((long)chunk * t.item_capacity + first) * t.width;
  block_product<256, 2>((u32*)dynamic_shared, rows, columns, t.width, weights, (t.dim + 15) >> 4,
                   [&](int row, int column) { return feature_row(t, input, row_numbers[row])[start + column]; },
                   [&](int row, int column, float value) { out[(long)row * t.width + column] = value; });
}

// Shared memory of the encoder's thread blocks: the stage, the direction of "mislabelled", and attention's qkv and map.
struct EncoderMemory {
  u32* stage;
  float* direction;
  float* qkv;
  float* map;
};
DEVICE EncoderMemory encoder_memory(const Tranfs& t) {
  EncoderMemory memory;
  memory.stage = (u32*)dynamic_shared;
  memory.direction = (float*)dynamic_shared + STAGE_LEN;
  memory.qkv = memory.direction + ((t.width + 3) & ~3);
  memory.map = memory.qkv + t.most_tokens * (3 * t.width + 4);
  return memory;
}

DEVICE Attention attention_of(const Tranfs& t, const TranfsEpisode& e, int layer, const EncoderMemory& memory) {
  Attention a;
  a.tokens = e.tokens;
  a.heads = t.heads;
  a.head_width = t.width / t.heads;
  a.width = t.width;
  a.scale = t.attention_scale;
  a.saved_pitch = (e.tokens + 15) & ~15;
  float* saved = t.maps + (long)layer * t.map_capacity + e.map_start;
  if (t.attention_in_shared) {
    a.qkv = memory.qkv;
    a.pitch = 3 * t.width + 4;
    a.map = memory.map;
    a.map_pitch = e.tokens | 1;
    a.saved = saved;
  } else {
    a.qkv = t.qkv + ((long)layer * t.token_capacity + e.first_token) * 3 * t.width;
    a.pitch = 3 * t.width;
    a.map = saved;
    a.map_pitch = a.saved_pitch;
    a.saved = 0;
  }
  a.first_index = e.dropout_map;
  a.mask = dropout_of(t, e, layer, 0);
  return a;
}

// Sums the direction of "mislabelled" over the chunks.
DEVICE void load_direction(const Tranfs& t, float* direction) {
  for (int column = threadIdx.x; column < t.width; column += ENCODER_THREADS) {
    float sum = 0.f;
    for (int chunk = 0; chunk < t.chunks; chunk++) sum += t.direction[(long)chunk * t.width + column];
    direction[column] = sum;
  }
}

// The tokens of an episode: class tokens and projected items, with positions added.
DEVICE void embed_tokens(const Tranfs& t, const TranfsEpisode& e, const u32* input, float* states) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, width = t.width;
  const float* positions = t.parameters + t.positions;
  for (int token = warp; token < e.tokens; token += ENCODER_THREADS / 32) {
    const int item = e.first_item + token - e.classes;
    const int own = token < e.classes ? token : (int)(input[t.labels_at + item] & ~LABEL_FLAG);
    for (int column = lane; column < width; column += 32) {
      float sum = 0.f;
      if (token >= e.classes) {
#pragma unroll 8
        for (int chunk = 0; chunk < t.chunks; chunk++)
          sum += t.projected[((long)chunk * t.item_capacity + item) * width + column];
      } else if (!t.class_mean) {
        sum = t.parameters[t.class_tokens + own * width + column];
      }
      states[(long)token * width + column] = sum + positions[own * width + column];
    }
  }
  if (!t.class_mean) return;
  __syncthreads();
  const TranfsClass* classes = classes_of(t, input) + e.first_class;
  for (int own = warp; own < e.classes; own += ENCODER_THREADS / 32) {
    const TranfsClass c = classes[own];
    if (c.items == 0) continue;
    for (int column = lane; column < width; column += 32) {
      // All items of a class have the same position, so the mean of the tokens is that of the projections plus the position.
      float sum = 0.f;
      for (int i = 0; i < c.items; i++)
        sum += states[(long)(e.classes + c.first_item - e.first_item + i) * width + column];
      states[(long)own * width + column] = sum / c.items;
    }
  }
}

// Logits of "mislabelled", their losses and gradients. out: the episode's tokens after the last layer.
DEVICE void mislabelled_losses(const Tranfs& t, const TranfsEpisode& e, const u32* input, const float* out,
                               const float* direction) {
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const float weight = t.mislabelled_weight / max(e.items, 1), bias = t.parameters[t.mislabelled_bias];
  for (int i = warp; i < e.items; i += ENCODER_THREADS / 32) {
    float sum = 0.f;
    for (int column = lane; column < t.width; column += 32)
      sum += out[(long)(e.classes + i) * t.width + column] * direction[column];
    const float logit = warp_sum(sum) + bias;
    if (lane != 0) continue;
    const bool target = (input[t.labels_at + e.first_item + i] & LABEL_FLAG) != 0;
    const float outward = target ? logit : -logit;
    t.item_losses[e.first_item + i] = weight * (fmaxf(-outward, 0.f) + log1pf(expf(-fabsf(outward))));
    t.d_logits[e.first_item + i] = weight * (1.f / (1.f + expf(-logit)) - (target ? 1.f : 0.f));
  }
  __syncthreads();
  if (warp != 0) return;
  float total = 0.f;
  for (int i = lane; i < e.items; i += 32) total += t.item_losses[e.first_item + i];
  total = warp_sum(total);
  if (lane == 0) t.losses[blockIdx.x * 3 + 2] = total;
}

// The encoder. Grid: episodes, 256 threads. Shared memory: EncoderMemory. WHOLE: heads are multiples of 16 wide.
template <bool WHOLE> DEVICE void encode(const Tranfs& t) {
  const u32* input = step_input(t);
  if ((int)blockIdx.x >= step_of(input).episodes) return;
  const TranfsEpisode e = episode_of(t, input, blockIdx.x);
  const EncoderMemory memory = encoder_memory(t);
  const int n = e.tokens, width = t.width, hidden = t.hidden, steps = (width + 15) >> 4, hidden_steps = (hidden + 15) >> 4;
  load_direction(t, memory.direction);
  embed_tokens(t, e, input, t.states + (long)e.first_token * width);
  for (int layer = 0; layer < t.layers; layer++) {
    const long first = (long)layer * t.token_capacity + e.first_token;
    const float* x = t.states + first * width;
    float* out = t.states + (first + t.token_capacity) * width;
    float* qkv = t.qkv + first * 3 * width;
    float* attended = t.attended + first * width;
    float* middle = t.middle + first * width;
    float* units = t.hidden_units + first * hidden;
    const long norm = (long)layer * 2 * t.token_capacity + e.first_token;
    float* normalised1 = t.normalised + norm * width;
    float* normalised2 = normalised1 + (long)t.token_capacity * width;
    const float* parameters = t.parameters + t.layer + (long)layer * t.layer_len;
    const uint4* packed = t.packed + t.packed_layer + (long)layer * t.packed_layer_len;
    const DropoutMask mask1 = dropout_of(t, e, layer, 1), mask2 = dropout_of(t, e, layer, 2), mask3 = dropout_of(t, e, layer, 3);

    block_product<ENCODER_THREADS, 3>(memory.stage, n, width, 3 * width, packed + t.packed_qkv, steps,
                     [&](int row, int column) { return x[(long)row * width + column]; },
                     [&](int row, int column, float value) {
                       value += parameters[t.qkv_bias + column];
                       qkv[(long)row * 3 * width + column] = value;
                       if (t.attention_in_shared) memory.qkv[row * (3 * width + 4) + column] = value;
                     });
    __syncthreads();
    attention_forward<WHOLE>(attention_of(t, e, layer, memory), attended);
    block_product<ENCODER_THREADS, 2>(memory.stage, n, width, width, packed + t.packed_attended, steps,
                     [&](int row, int column) { return attended[(long)row * width + column]; },
                     [&](int row, int column, float value) {
                       const long at = (long)row * width + column;
                       const float factor = dropout_factor(mask1, (e.dropout_token + row) * width + column);
                       normalised1[at] = x[at] + factor * (value + parameters[t.attended_bias + column]);
                     });
    __syncthreads();
    normalise_rows(normalised1, t.inverse_std + norm, parameters + t.norm1, parameters + t.norm1 + width, middle, n, width);
    block_product<ENCODER_THREADS, 2>(memory.stage, n, width, hidden, packed + t.packed_hidden, steps,
                     [&](int row, int column) { return middle[(long)row * width + column]; },
                     [&](int row, int column, float value) {
                       const float factor = dropout_factor(mask2, (e.dropout_token + row) * hidden + column);
                       units[(long)row * hidden + column] = factor * fmaxf(value + parameters[t.hidden_bias + column], 0.f);
                     });
    block_product<ENCODER_THREADS, 2>(memory.stage, n, hidden, width, packed + t.packed_out, hidden_steps,
                     [&](int row, int column) { return units[(long)row * hidden + column]; },
                     [&](int row, int column, float value) {
                       const long at = (long)row * width + column;
                       const float factor = dropout_factor(mask3, (e.dropout_token + row) * width + column);
                       normalised2[at] = middle[at] + factor * (value + parameters[t.out_bias + column]);
                     });
    __syncthreads();
    normalise_rows(normalised2, t.inverse_std + norm + t.token_capacity, parameters + t.norm2, parameters + t.norm2 + width, out,
                   n, width);
  }
  __syncthreads();
  const float* out = t.states + ((long)t.layers * t.token_capacity + e.first_token) * width;
  mislabelled_losses(t, e, input, out, memory.direction);
}
extern "C" __global__ void __launch_bounds__(ENCODER_THREADS, 1) tranfs_encode(Tranfs t) { encode<false>(t); }
extern "C" __global__ void __launch_bounds__(ENCODER_THREADS, 1) tranfs_encode_16(Tranfs t) { encode<true>(t); }

// The gradient of the encoder's output, and the episode's part of the gradient of the direction of "mislabelled".
DEVICE void output_gradients(const Tranfs& t, const TranfsEpisode& e, const float* out, const float* direction, float* d_out) {
  const int width = t.width;
  for (int token = threadIdx.x >> 5; token < e.tokens; token += ENCODER_THREADS / 32)
    for (int column = threadIdx.x & 31; column < width; column += 32) {
      float d = 0.f;
      if (token < e.classes) {
#pragma unroll 8
        for (int chunk = 0; chunk < t.chunks; chunk++)
          d += t.d_class_states[((long)chunk * t.class_capacity + e.first_class + token) * width + column];
      } else {
        d = t.d_logits[e.first_item + token - e.classes] * direction[column];
      }
      d_out[(long)token * width + column] = d;
    }
  for (int column = threadIdx.x; column < width; column += ENCODER_THREADS) {
    float sum = 0.f;
#pragma unroll 8
    for (int i = 0; i < e.items; i++) sum += t.d_logits[e.first_item + i] * out[(long)(e.classes + i) * width + column];
    t.d_direction[(long)blockIdx.x * width + column] = sum;
  }
}

// From the gradients of the tokens to those of the projected items.
DEVICE void projected_gradients(const Tranfs& t, const TranfsEpisode& e, const u32* input, const float* d_states) {
  const int width = t.width;
  const TranfsClass* classes = classes_of(t, input) + e.first_class;
  for (int i = threadIdx.x >> 5; i < e.items; i += ENCODER_THREADS / 32) {
    const int own = input[t.labels_at + e.first_item + i] & ~LABEL_FLAG;
    for (int column = threadIdx.x & 31; column < width; column += 32) {
      float d = d_states[(long)(e.classes + i) * width + column];
      if (t.class_mean) d += d_states[(long)own * width + column] / classes[own].items;
      t.d_projected[(long)(e.first_item + i) * width + column] = d;
    }
  }
}

// Attention's qkv and map from global to shared memory.
DEVICE void load_attention(const Tranfs& t, const TranfsEpisode& e, int layer, const Attention& a, const EncoderMemory& memory) {
  if (!t.attention_in_shared) return;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, pitch = 3 * t.width;
  const float* qkv = t.qkv + ((long)layer * t.token_capacity + e.first_token) * pitch;
  for (int token = warp; token < e.tokens; token += ENCODER_THREADS / 32)
#pragma unroll 4
    for (int column = lane; column < pitch; column += 32) memory.qkv[token * (pitch + 4) + column] = qkv[(long)token * pitch + column];
#pragma unroll 4
  for (int row = warp; row < e.tokens * t.heads; row += ENCODER_THREADS / 32)
    for (int column = lane; column < e.tokens; column += 32)
      a.map[row * a.map_pitch + column] = a.saved[(long)row * a.saved_pitch + column];
}

// The encoder's backward pass, grid and memory as in the forward pass.
template <bool WHOLE> DEVICE void encode_backward(const Tranfs& t) {
  const u32* input = step_input(t);
  if ((int)blockIdx.x >= step_of(input).episodes) return;
  const TranfsEpisode e = episode_of(t, input, blockIdx.x);
  const EncoderMemory memory = encoder_memory(t);
  const int n = e.tokens, width = t.width, hidden = t.hidden, steps = (width + 15) >> 4, hidden_steps = (hidden + 15) >> 4;
  float* d_half = t.d_half + (long)e.first_token * width;
  float* d_attended = t.d_attended + (long)e.first_token * width;
  const long last = (long)t.layers * t.token_capacity + e.first_token;
  load_direction(t, memory.direction);
  __syncthreads();
  output_gradients(t, e, t.states + last * width, memory.direction, t.d_states + last * width);
  for (int layer = t.layers - 1; layer >= 0; layer--) {
    const long first = (long)layer * t.token_capacity + e.first_token;
    const float* units = t.hidden_units + first * hidden;
    const float* d_y = t.d_states + (first + t.token_capacity) * width;
    float* d_x = t.d_states + first * width;
    float* d_out = t.d_out + first * width;
    float* d_hidden = t.d_hidden + first * hidden;
    float* d_middle = t.d_middle + first * width;
    float* d_attention_out = t.d_attention_out + first * width;
    float* d_qkv = t.d_qkv + first * 3 * width;
    const long norm = (long)layer * 2 * t.token_capacity + e.first_token;
    const float* normalised1 = t.normalised + norm * width;
    const float* normalised2 = normalised1 + (long)t.token_capacity * width;
    const float* parameters = t.parameters + t.layer + (long)layer * t.layer_len;
    const uint4* packed = t.packed + t.packed_layer + (long)layer * t.packed_layer_len;
    const DropoutMask mask1 = dropout_of(t, e, layer, 1), mask3 = dropout_of(t, e, layer, 3);

    __syncthreads();
    normalise_rows_backward(normalised2, t.inverse_std + norm + t.token_capacity, parameters + t.norm2, d_y, n, width,
                            [&](int row, int column, float value) {
                              const long at = (long)row * width + column;
                              d_half[at] = value;
                              d_out[at] = value * dropout_factor(mask3, (e.dropout_token + row) * width + column);
                            });
    block_product<ENCODER_THREADS, 2>(memory.stage, n, width, hidden, packed + t.packed_out_t, steps,
                     [&](int row, int column) { return d_out[(long)row * width + column]; },
                     [&](int row, int column, float value) {
                       const long at = (long)row * hidden + column;
                       d_hidden[at] = units[at] > 0.f ? value * t.dropout_scale : 0.f;
                     });
    block_product<ENCODER_THREADS, 2>(memory.stage, n, hidden, width, packed + t.packed_hidden_t, hidden_steps,
                     [&](int row, int column) { return d_hidden[(long)row * hidden + column]; },
                     [&](int row, int column, float value) {
                       const long at = (long)row * width + column;
                       d_middle[at] = d_half[at] + value;
                     });
    const Attention a = attention_of(t, e, layer, memory);
    load_attention(t, e, layer, a, memory);
    __syncthreads();
    normalise_rows_backward(normalised1, t.inverse_std + norm, parameters + t.norm1, d_middle, n, width,
                            [&](int row, int column, float value) {
                              const long at = (long)row * width + column;
                              d_half[at] = value;
                              d_attention_out[at] = value * dropout_factor(mask1, (e.dropout_token + row) * width + column);
                            });
    block_product<ENCODER_THREADS, 2>(memory.stage, n, width, width, packed + t.packed_attended_t, steps,
                     [&](int row, int column) { return d_attention_out[(long)row * width + column]; },
                     [&](int row, int column, float value) { d_attended[(long)row * width + column] = value; });
    __syncthreads();
    attention_backward<WHOLE>(a, t.attended + first * width, d_attended, d_qkv);
    block_product<ENCODER_THREADS, 2>(memory.stage, n, 3 * width, width, packed + t.packed_qkv_t, (3 * width + 15) >> 4,
                     [&](int row, int column) { return d_qkv[(long)row * 3 * width + column]; },
                     [&](int row, int column, float value) {
                       const long at = (long)row * width + column;
                       d_x[at] = d_half[at] + value;
                     });
  }
  __syncthreads();
  projected_gradients(t, e, input, t.d_states + (long)e.first_token * width);
}
extern "C" __global__ void __launch_bounds__(ENCODER_THREADS, 1) tranfs_encode_back(Tranfs t) { encode_backward<false>(t); }
extern "C" __global__ void __launch_bounds__(ENCODER_THREADS, 1) tranfs_encode_back_16(Tranfs t) { encode_backward<true>(t); }
