// Multi-head self-attention of TraNFS between the tokens of an episode, forward and backward, one thread block per head
// and episode (crates/nn/src/layers/attention.rs; struct Tranfs and the order of the kernels are in tranfs.cu):
//
//   logits[k][q] = attention_scale * queries[q] . keys[k],   map = softmax of the logits over the keys k
//   attended[q] = sum_k dropout(map)[k][q] values[k]
//
// q and k are tokens of the episode: every token is a query, a key and a value. (Queries in the sense of few-shot
// learning, the images to classify, have no tokens.)
//
//   qkv                           [tokens][3 width] f32: queries, keys and values, each with its heads one after the
//                                 other. Width is the width of tokens here, and that of a head below.
//   map                           [keys][pitch] of one head, a column per query: attention weights
//   queries, keys, values, d_out  [tokens][pitch] of one head
//
// A head is copied to shared memory if it fits; otherwise the host launches the variants whose names end with _large,
// which work on global memory (`SharedMemory` in src/tranfs/memory.rs; src/tranfs.rs launches the kernels). Sums are
// f32, without matrix instructions: the rows of a head are short.
#pragma once
#include "tranfs.cu"

#define ATTENTION_THREADS 256  // of a block: 8 warps

// One head of one episode: where its numbers are. `pitch` is that of queries, keys and values, in floats.
struct AttentionHead {
  int tokens, width, pitch, map_pitch;  // width of the head; floats from one row to the next, of the map in map_pitch
  const float *queries, *keys, *values;
  float* map;                           // in shared memory, or `saved` itself
  // The weights before dropout, in global memory, [tokens][saved_pitch]; kept for the backward pass.
  float* saved;
  // Tokens rounded up to 16, as on the CPU, because the dropout mask counts with it.
  int saved_pitch;
  u32 first_index;                      // of the dropout mask: of key 0, query 0
  DropoutMask mask;
};

// The dropout factor of an attention weight.
DEVICE float attention_factor(const AttentionHead& a, int key, int query) {
  return dropout_factor(a.mask, a.first_index + (u32)(key * a.saved_pitch + query));
}

// Copies a head's part of [tokens][from_pitch] to shared memory, as [PARTS][tokens][pitch]. The PARTS parts (queries,
// keys, values) are `stride` floats apart in a row. 16 threads per token.
template <int PARTS>
DEVICE void copy_head(float* to, int pitch, const float* from, int from_pitch, int stride, int tokens, int width) {
#pragma unroll 2
  for (int token = threadIdx.x >> 4; token < tokens; token += ATTENTION_THREADS / 16)
#pragma unroll 1
    for (int d = threadIdx.x & 15; d < width; d += 16) {
      float values[PARTS];
#pragma unroll
      for (int part = 0; part < PARTS; part++) values[part] = from[(long)token * from_pitch + part * stride + d];
#pragma unroll
      for (int part = 0; part < PARTS; part++) to[(part * tokens + token) * pitch + d] = values[part];
    }
}

// Fills `a` for head `head` of episode `e` in layer `layer`. IN_SHARED: copies the head to `shared`, a map after it;
// the result points behind both. A barrier must follow. Odd pitches avoid bank conflicts.
template <bool IN_SHARED>
DEVICE float* open_head(const Tranfs& t, const TranfsEpisode& e, int layer, int head, float* shared, AttentionHead& a) {
  a.tokens = e.tokens;
  a.width = t.width / t.heads;
  a.saved_pitch = (e.tokens + 15) & ~15;
  a.saved = t.maps + (long)layer * t.map_capacity + e.map_start + (long)head * e.tokens * a.saved_pitch;
  a.first_index = e.dropout_map + (u32)(head * e.tokens * a.saved_pitch);
  a.mask = dropout_of(t, e, layer, 0);
  const float* qkv = t.qkv + ((long)layer * t.token_capacity + e.first_token) * 3 * t.width + head * a.width;
  if (!IN_SHARED) {
    a.queries = qkv;
    a.keys = qkv + t.width;
    a.values = qkv + 2 * t.width;
    a.pitch = 3 * t.width;
    a.map = a.saved;
    a.map_pitch = a.saved_pitch;
    return shared;
  }
  a.pitch = a.width | 1;
  a.map_pitch = e.tokens | 1;
  const int len = e.tokens * a.pitch;
  copy_head<3>(shared, a.pitch, qkv, 3 * t.width, t.width, e.tokens, a.width);
  a.queries = shared;
  a.keys = shared + len;
  a.values = shared + 2 * len;
  a.map = shared + 3 * len;
  return a.map + e.tokens * a.map_pitch;
}

// Calls out(key, query, sum over d of left[query][d] right[key][d]) for all pairs: a lane per query, a warp per key.
// The first 16 numbers of a query are in registers, which is the whole width of a head in the default network. Lanes
// after the last query compute it again (`real`) and do not call `out`. Rows of `right` are a.pitch apart.
template <class Out> DEVICE void for_products(const AttentionHead& a, const float* left, int left_pitch, const float* right, Out out) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll 1
  for (int first = 0; first < a.tokens; first += 32) {
    const int query = first + lane, real = min(query, a.tokens - 1);
    float own[16];
#pragma unroll
    for (int d = 0; d < 16; d++) own[d] = d < a.width ? left[(long)real * left_pitch + d] : 0.f;
#pragma unroll 1
    for (int key = warp; key < a.tokens; key += ATTENTION_THREADS / 32) {
      const float* row = right + (long)key * a.pitch;
      float sums[4] = {0.f, 0.f, 0.f, 0.f};
      if (a.width == 16) {
#pragma unroll
        for (int d = 0; d < 16; d++) sums[d & 3] += own[d] * row[d];
      } else {
#pragma unroll
        for (int d = 0; d < 16; d++)
          if (d < a.width) sums[d & 3] += own[d] * row[d];
        for (int d = 16; d < a.width; d++) sums[d & 3] += left[(long)real * left_pitch + d] * row[d];
      }
      if (query < a.tokens) out(key, query, (sums[0] + sums[1]) + (sums[2] + sums[3]));
    }
  }
}

// Calls out(token, d, sum over i of weights[token * token_step + i * step] rows[i * pitch + d]) for all tokens and d: a
// lane per token, a warp per two d. The steps choose between a map (steps 1, map_pitch: a token is a query, i the keys)
// and its transpose (steps map_pitch, 1: a token is a key, i the queries).
template <class Out>
DEVICE void for_sums(const AttentionHead& a, const float* weights, int token_step, int step, const float* rows, int pitch, Out out) {
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
#pragma unroll 1
  for (int first = 0; first < a.tokens; first += 32)
#pragma unroll 1
    for (int d = warp * 2; d < a.width; d += ATTENTION_THREADS / 32 * 2) {
      const int token = first + lane, second = min(d + 1, a.width - 1);
      const float* own = weights + (long)min(token, a.tokens - 1) * token_step;
      float sums[2] = {0.f, 0.f};
#pragma unroll 8
      for (int i = 0; i < a.tokens; i++) {
        const float weight = own[(long)i * step];
        sums[0] += weight * rows[(long)i * pitch + d];
        sums[1] += weight * rows[(long)i * pitch + second];
      }
      if (token >= a.tokens) continue;
      out(token, d, sums[0]);
      if (second > d) out(token, second, sums[1]);
    }
}

// The forward pass of layer `layer`: `attended`, and the attention weights for the backward pass. Grid: (heads,
// episodes), 256 threads. Shared memory, if IN_SHARED: queries, keys and values of the head, and the map.
template <bool IN_SHARED> DEVICE void attend(const Tranfs& t, int layer) {
  const u32* input = t.current;
  const TranfsEpisode e = episode_of(t, input, blockIdx.y);
  if ((int)blockIdx.y >= step_of(input).episodes) return;
  const int head = blockIdx.x;
  AttentionHead a;
  open_head<IN_SHARED>(t, e, layer, head, (float*)dynamic_shared, a);
  __syncthreads();
  for_products(a, a.queries, a.pitch, a.keys,
               [&](int key, int query, float product) { a.map[key * a.map_pitch + query] = t.attention_scale * product; });
  __syncthreads();
  // Softmax, eight lanes per query (`part` numbers them). The map then has the weights after dropout; those before it
  // are saved.
  const int part = threadIdx.x & 7;
  float* d_map = t.d_maps + e.map_start + (long)head * e.tokens * a.saved_pitch;
#pragma unroll 1
  for (int first = 0; first < a.tokens; first += ATTENTION_THREADS / 8) {
    // A warp has four queries and stops if all of them are beyond the last. Otherwise all of its lanes take part in its
    // sums, also those without a query.
    if (first + (int)threadIdx.x / 32 * 4 >= a.tokens) break;
    const int query = first + (threadIdx.x >> 3), real = min(query, a.tokens - 1);
    float largest = -1e30f, sum = 0.f;
#pragma unroll 4
    for (int key = part; key < a.tokens; key += 8) largest = fmaxf(largest, a.map[key * a.map_pitch + real]);
#pragma unroll
    for (int distance = 4; distance; distance >>= 1) largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, distance));
#pragma unroll 4
    for (int key = part; key < a.tokens; key += 8) sum += expf(a.map[key * a.map_pitch + real] - largest);
#pragma unroll
    for (int distance = 4; distance; distance >>= 1) sum += __shfl_xor_sync(FULL_WARP, sum, distance);
    const float inverse = 1.f / sum;
    if (query >= a.tokens) continue;
#pragma unroll 4
    for (int key = part; key < a.tokens; key += 8) {
      float* at = a.map + key * a.map_pitch + query;
      const float weight = expf(*at - largest) * inverse;
      a.saved[(long)key * a.saved_pitch + query] = weight;
      (IN_SHARED ? at : d_map + (long)key * a.map_pitch + query)[0] = weight * attention_factor(a, key, query);
    }
  }
  __syncthreads();
  float* out = t.attended + ((long)layer * t.token_capacity + e.first_token) * t.width + head * a.width;
  // The weights after dropout: where the map is the memory of the saved weights, they are in `d_maps`, which is free in
  // the forward pass.
  const float* used = IN_SHARED ? a.map : d_map;
  for_sums(a, used, 1, a.map_pitch, a.values, a.pitch, [&](int query, int d, float sum) { out[(long)query * t.width + d] = sum; });
}
// The kernels, with the head in shared and in global memory.
extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS) tranfs_attend(Tranfs t, int layer) { attend<true>(t, layer); }
extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS) tranfs_attend_large(Tranfs t, int layer) { attend<false>(t, layer); }

// The backward pass of layer `layer`, from `d_attended` to `d_qkv`. With A the weights before dropout and m the dropout
// factors:
//
//   d_map[k][q] = m (d_out[q] . values[k])
//   d_logits[k][q] = attention_scale A (d_map - sum over the keys of A d_map); the sum is out[q] . d_out[q]
//   d_queries = d_logits^T keys,  d_keys = d_logits queries,  d_values = (A m) d_out
//
// d_out is `d_attended` of the head, out is `attended`. Grid: (heads, episodes), 256 threads. Shared memory, if
// IN_SHARED: five matrices [tokens][pitch] of the head (queries, keys, values, d_out, out), two maps (A m and d_logits)
// and one number per token. Otherwise A m overwrites the saved weights, each after it was read for the last time.
template <bool IN_SHARED> DEVICE void attend_backward(const Tranfs& t, int layer) {
  const u32* input = t.current;
  const TranfsEpisode e = episode_of(t, input, blockIdx.y);
  if ((int)blockIdx.y >= step_of(input).episodes) return;
  const int head = blockIdx.x;
  AttentionHead a;
  float* free = open_head<IN_SHARED>(t, e, layer, head, (float*)dynamic_shared, a);
  const long first = ((long)layer * t.token_capacity + e.first_token);
  const float* d_out = t.d_attended + (long)e.first_token * t.width + head * a.width;
  const float* out = t.attended + first * t.width + head * a.width;
  float* d_logits = t.d_maps + e.map_start + (long)head * e.tokens * a.saved_pitch;
  float* means = t.d_means + e.first_token * t.heads + head * e.tokens;
  int d_pitch = t.width;
  if (IN_SHARED) {
    copy_head<1>(free, a.pitch, d_out, t.width, 0, e.tokens, a.width);
    copy_head<1>(free + e.tokens * a.pitch, a.pitch, out, t.width, 0, e.tokens, a.width);
    d_out = free;
    out = free + e.tokens * a.pitch;
    d_pitch = a.pitch;
    d_logits = free + 2 * e.tokens * a.pitch;
    means = d_logits + e.tokens * a.map_pitch;
    __syncthreads();
  }
  // means[q] = out[q] . d_out[q], eight lanes per query.
  for (int start = 0; start < a.tokens; start += ATTENTION_THREADS / 8) {
    const int query = start + (threadIdx.x >> 3), real = min(query, a.tokens - 1);
    float mean = 0.f;
    for (int d = threadIdx.x & 7; d < a.width; d += 8) mean += out[(long)real * d_pitch + d] * d_out[(long)real * d_pitch + d];
#pragma unroll
    for (int distance = 4; distance; distance >>= 1) mean += __shfl_xor_sync(FULL_WARP, mean, distance);
    if (query < a.tokens && (threadIdx.x & 7) == 0) means[query] = mean;
  }
  __syncthreads();
  // d_logits; and A m, which replaces the map.
  for_products(a, d_out, d_pitch, a.values, [&](int key, int query, float d_weight) {
    const float weight = a.saved[(long)key * a.saved_pitch + query], factor = attention_factor(a, key, query);
    d_logits[(long)key * a.map_pitch + query] = t.attention_scale * weight * (d_weight * factor - means[query]);
    a.map[(long)key * a.map_pitch + query] = weight * factor;
  });
  __syncthreads();
  float* d_qkv = t.d_qkv + first * 3 * t.width + head * a.width;
  const int t_width = t.width;
  auto store = [&](int part) {
    return [=](int token, int d, float sum) { d_qkv[(long)token * 3 * t_width + part * t_width + d] = sum; };
  };
  // Gradients of queries, keys and values.
  for_sums(a, d_logits, 1, a.map_pitch, a.keys, a.pitch, store(0));
  for_sums(a, d_logits, a.map_pitch, 1, a.queries, a.pitch, store(1));
  for_sums(a, a.map, a.map_pitch, 1, d_out, d_pitch, store(2));
}
// The kernels, with the head in shared and in global memory.
extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS) tranfs_attend_back(Tranfs t, int layer) {
  attend_backward<true>(t, layer);
}
extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS) tranfs_attend_back_large(Tranfs t, int layer) {
  attend_backward<false>(t, layer);
}
