// Multi-head self-attention within an episode, one thread block per head and episode (crates/nn/src/layers/attention.rs).
//
//   qkv        [tokens][3 width]: queries, keys and values, each with its heads one after the other
//   map        [tokens keys][pitch queries] of one head: attention weights
//   queries, keys, values, d_out: [tokens][pitch] of one head
//
// They are copied to shared memory if they fit; otherwise the kernels work on the global memory and end with _large.
#pragma once
#include "tranfs.cu"

#define ATTENTION_THREADS 256

// The numbers of one head. `pitch` is that of queries, keys and values.
struct AttentionHead {
  int tokens, width, pitch, map_pitch;
  const float *queries, *keys, *values;
  float* map;
  float* saved;                    // the weights in global memory, [tokens][saved_pitch]
  int saved_pitch;                 // tokens rounded up to 16; the dropout mask counts with it
  u32 first_index;                 // of the dropout mask: of key 0, query 0
  DropoutMask mask;
};

DEVICE float attention_factor(const AttentionHead& a, int key, int query) {
  return dropout_factor(a.mask, a.first_index + (u32)(key * a.saved_pitch + query));
}

// Copies a head's part of [tokens][from_pitch] to shared memory. PARTS parts are `stride` apart.
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

// `shared`: memory for the copies; what follows them is the result.
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

DEVICE float dot(const float* a, const float* b, int len) {
  float sums[2] = {0.f, 0.f};
  int i = 0;
#pragma unroll 4
  for (; i + 1 < len; i += 2) {
    sums[0] += a[i] * b[i];
    sums[1] += a[i + 1] * b[i + 1];
  }
  return i < len ? sums[0] + sums[1] + a[i] * b[i] : sums[0] + sums[1];
}

// work(key, query) for all pairs, 32 queries of a key per warp.
template <class Work> DEVICE void for_pairs(int tokens, Work work) {
  const int lane = threadIdx.x & 31, blocks = (tokens + 31) >> 5;
#pragma unroll 2
  for (int task = threadIdx.x >> 5; task < tokens * blocks; task += ATTENTION_THREADS / 32) {
    const int block = task / tokens, query = block * 32 + lane;
    if (query < tokens) work(task - block * tokens, query);
  }
}

// work(token, d) for all tokens and numbers of a head.
template <class Work> DEVICE void for_tokens(int tokens, int width, Work work) {
#pragma unroll 1
  for (int token = threadIdx.x >> 4; token < tokens; token += ATTENTION_THREADS / 16)
    for (int d = threadIdx.x & 15; d < width; d += 16) work(token, d);
}

// sum over i of weights[i * step] rows[i * pitch]
template <bool IN_SHARED>
SEPARATE float weighted_sum(const float* weights, int step, const float* rows, int pitch, int count) {
  if (IN_SHARED) {
    ASSUME_SHARED(weights);
    ASSUME_SHARED(rows);
  }
  float sums[2] = {0.f, 0.f};
#pragma unroll 8
  for (int i = 0; i < count; i++) sums[i & 1] += weights[i * step] * rows[i * pitch];
  return sums[0] + sums[1];
}

// Grid: (heads, episodes), 256 threads. Shared memory: three copies of the head and the map.
template <bool IN_SHARED> DEVICE void attend(const Tranfs& t, int layer) {
  const u32* input = t.current;
  const TranfsEpisode e = episode_of(t, input, blockIdx.y);
  if ((int)blockIdx.y >= step_of(input).episodes) return;
  const int head = blockIdx.x;
  AttentionHead a;
  open_head<IN_SHARED>(t, e, layer, head, (float*)dynamic_shared, a);
  __syncthreads();
  for_pairs(a.tokens, [&](int key, int query) {
    a.map[key * a.map_pitch + query] = t.attention_scale * dot(a.queries + query * a.pitch, a.keys + key * a.pitch, a.width);
  });
  __syncthreads();
  // Eight lanes per query. The map keeps the weights after dropout; those before it are saved.
  const int part = threadIdx.x & 7;
#pragma unroll 1
  for (int first = 0; first < a.tokens; first += ATTENTION_THREADS / 8) {
    // All lanes of a warp take part in its sums, also those without a query.
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
      *at = IN_SHARED ? weight * attention_factor(a, key, query) : weight;
    }
  }
  __syncthreads();
  float* out = t.attended + ((long)layer * t.token_capacity + e.first_token) * t.width + head * a.width;
  if (IN_SHARED) {
    for_tokens(a.tokens, a.width, [&](int query, int d) {
      out[(long)query * t.width + d] = weighted_sum<IN_SHARED>(a.map + query, a.map_pitch, a.values + d, a.pitch, a.tokens);
    });
  } else {
    for_tokens(a.tokens, a.width, [&](int query, int d) {
      float sum = 0.f;
      for (int key = 0; key < a.tokens; key++)
        sum += a.map[(long)key * a.map_pitch + query] * attention_factor(a, key, query) * a.values[(long)key * a.pitch + d];
      out[(long)query * t.width + d] = sum;
    });
  }
}
extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS) tranfs_attend(Tranfs t, int layer) { attend<true>(t, layer); }
extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS) tranfs_attend_large(Tranfs t, int layer) { attend<false>(t, layer); }

// The backward pass, from `d_attended` to `d_qkv`. Grid as above. Shared memory: four copies of the head and two maps.
template <bool IN_SHARED> DEVICE void attend_backward(const Tranfs& t, int layer) {
  const u32* input = t.current;
  const TranfsEpisode e = episode_of(t, input, blockIdx.y);
  if ((int)blockIdx.y >= step_of(input).episodes) return;
  const int head = blockIdx.x;
  AttentionHead a;
  float* free = open_head<IN_SHARED>(t, e, layer, head, (float*)dynamic_shared, a);
  const long first = ((long)layer * t.token_capacity + e.first_token);
  const float *d_out = t.d_attended + (long)e.first_token * t.width + head * a.width, *out = t.attended + first * t.width + head * a.width;
  float *d_logits = t.d_maps + e.map_start + (long)head * e.tokens * a.saved_pitch, *means = t.d_means + e.first_token * t.heads + head * e.tokens;
  int d_pitch = t.width;
  // The product of a query's output and its gradient, which is the mean gradient of its weights.
  for (int query = threadIdx.x; query < a.tokens; query += ATTENTION_THREADS)
    means[query] = dot(out + (long)query * t.width, d_out + (long)query * t.width, a.width);
  if (IN_SHARED) {
    copy_head<1>(free, a.pitch, d_out, t.width, 0, e.tokens, a.width);
    d_out = free;
    d_pitch = a.pitch;
    d_logits = free + e.tokens * a.pitch;
  }
  __syncthreads();
  for_pairs(a.tokens, [&](int key, int query) {
    const float weight = a.saved[(long)key * a.saved_pitch + query], factor = attention_factor(a, key, query);
    const float d_weight = dot(d_out + (long)query * d_pitch, a.values + (long)key * a.pitch, a.width);
    d_logits[key * a.map_pitch + query] = t.attention_scale * weight * (d_weight * factor - means[query]);
    a.map[key * a.map_pitch + query] = weight * factor;
  });
  __syncthreads();
  float* d_qkv = t.d_qkv + first * 3 * t.width + head * a.width;
  for_tokens(a.tokens, a.width, [&](int token, int d) {
    float* own = d_qkv + (long)token * 3 * t.width + d;
    own[0] = weighted_sum<IN_SHARED>(d_logits + token, a.map_pitch, a.keys + d, a.pitch, a.tokens);
    own[t.width] = weighted_sum<IN_SHARED>(d_logits + token * a.map_pitch, 1, a.queries + d, a.pitch, a.tokens);
    own[2 * t.width] = weighted_sum<IN_SHARED>(a.map + token * a.map_pitch, 1, d_out + d, d_pitch, a.tokens);
  });
}
extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS) tranfs_attend_back(Tranfs t, int layer) {
  attend_backward<true>(t, layer);
}
extern "C" __global__ void __launch_bounds__(ATTENTION_THREADS) tranfs_attend_back_large(Tranfs t, int layer) {
  attend_backward<false>(t, layer);
}
