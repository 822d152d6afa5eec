// Multi-head self-attention within one episode, for a whole thread block (crates/nn/src/layers/attention.rs).
//
//   qkv    [tokens][pitch]: queries, keys and values, each with its heads one after the other
//   map    [heads][tokens keys][map_pitch queries]: attention weights before dropout; later the gradients of the logits
//   saved  [heads][tokens][saved_pitch]: a copy of the weights in global memory for the backward pass; null if `map` is that
//
// qkv and map are in shared memory if they fit, else in global memory. A warp handles one head and 32 queries (or keys), one
// per lane, and walks over the keys (queries), whose numbers all lanes share. A head is handled in slices of 16 numbers, which
// are in registers.
#pragma once
#include "dropout.cu"

#define SLICE 16

struct Attention {
  int tokens, heads, head_width, width;
  float scale;            // 1 / sqrt(head_width)
  const float* qkv;
  int pitch;
  float* map;
  int map_pitch;
  float* saved;
  int saved_pitch;        // tokens rounded up to 16; the dropout mask counts with it
  u32 first_index;        // of the dropout mask: of head 0, key 0, query 0
  DropoutMask mask;
};

DEVICE const float* query_of(const Attention& a, int head, int token) {
  return a.qkv + (long)token * a.pitch + head * a.head_width;
}
DEVICE const float* key_of(const Attention& a, int head, int token) { return query_of(a, head, token) + a.width; }
DEVICE const float* value_of(const Attention& a, int head, int token) { return query_of(a, head, token) + 2 * a.width; }
DEVICE float* map_of(const Attention& a, int head, int key, int query) {
  return a.map + ((long)head * a.tokens + key) * a.map_pitch + query;
}
DEVICE float attention_mask(const Attention& a, int head, int key, int query) {
  return dropout_factor(a.mask, a.first_index + (u32)((head * a.tokens + key) * a.saved_pitch + query));
}

// Up to 16 numbers; WHOLE: exactly 16, aligned for 16-byte loads.
template <bool WHOLE> DEVICE void load_slice(float* values, const float* from, int count) {
  if (WHOLE) {
#pragma unroll
    for (int i = 0; i < SLICE / 4; i++) {
      const uint4 bits = ((const uint4*)from)[i];
      values[4 * i] = __uint_as_float(bits.x);
      values[4 * i + 1] = __uint_as_float(bits.y);
      values[4 * i + 2] = __uint_as_float(bits.z);
      values[4 * i + 3] = __uint_as_float(bits.w);
    }
  } else {
#pragma unroll
    for (int i = 0; i < SLICE; i++) values[i] = i < count ? from[i] : 0.f;
  }
}
DEVICE float dot_slice(const float* a, const float* b) {
  float sums[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll
  for (int i = 0; i < SLICE; i++) sums[i & 3] += a[i] * b[i];
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}
DEVICE void store_slice(float* to, const float* values, int count) {
#pragma unroll
  for (int i = 0; i < SLICE; i++)
    if (i < count) to[i] = values[i];
}

// Attention of one head for the query of this lane. out: [tokens][width].
template <bool WHOLE> DEVICE void attend(const Attention& a, int head, int query, float* out) {
  float own[SLICE], other[SLICE], largest = -1e30f, sum = 0.f;
  for (int d = 0; d < a.head_width; d += SLICE) {
    load_slice<WHOLE>(own, query_of(a, head, query) + d, a.head_width - d);
#pragma unroll 4
    for (int key = 0; key < a.tokens; key++) {
      load_slice<WHOLE>(other, key_of(a, head, key) + d, a.head_width - d);
      float* at = map_of(a, head, key, query);
      const float logit = dot_slice(own, other) + (d ? *at : 0.f);
      *at = logit;
      if (d + SLICE >= a.head_width) largest = fmaxf(largest, logit);
    }
  }
#pragma unroll 4
  for (int key = 0; key < a.tokens; key++) {
    float* at = map_of(a, head, key, query);
    const float e = expf((*at - largest) * a.scale);
    *at = e;
    sum += e;
  }
  const float inverse = 1.f / sum;
  for (int d = 0; d < a.head_width; d += SLICE) {
    float result[SLICE];
#pragma unroll
    for (int i = 0; i < SLICE; i++) result[i] = 0.f;
#pragma unroll 4
    for (int key = 0; key < a.tokens; key++) {
      float* at = map_of(a, head, key, query);
      const float weight = d ? *at : *at * inverse;
      if (d == 0) {
        *at = weight;
        if (a.saved) a.saved[((long)head * a.tokens + key) * a.saved_pitch + query] = weight;
      }
      const float used = weight * attention_mask(a, head, key, query);
      load_slice<WHOLE>(other, value_of(a, head, key) + d, a.head_width - d);
#pragma unroll
      for (int i = 0; i < SLICE; i++) result[i] += used * other[i];
    }
    store_slice(out + (long)query * a.width + head * a.head_width + d, result, a.head_width - d);
  }
}

// Sums of rows with the map's row of the key of this lane: sum over queries of map[key][query] (times the mask) rows[query].
template <bool WHOLE, bool MASKED>
DEVICE void sum_over_queries(const Attention& a, int head, int key, const float* rows, int pitch, float* out) {
  for (int d = 0; d < a.head_width; d += SLICE) {
    float result[SLICE], other[SLICE];
#pragma unroll
    for (int i = 0; i < SLICE; i++) result[i] = 0.f;
#pragma unroll 4
    for (int query = 0; query < a.tokens; query++) {
      const float weight = *map_of(a, head, key, query) * (MASKED ? attention_mask(a, head, key, query) : 1.f);
      load_slice<WHOLE>(other, rows + (long)query * pitch + head * a.head_width + d, a.head_width - d);
#pragma unroll
      for (int i = 0; i < SLICE; i++) result[i] += weight * other[i];
    }
    store_slice(out + (long)key * 3 * a.width + head * a.head_width + d, result, a.head_width - d);
  }
}

// Turns the map's column of the query of this lane into the gradient of the logits, and sets the gradient of the query.
// The mean of the weights' gradients, weighted by the weights, is out . d_out: out is the sum of the used values.
template <bool WHOLE>
DEVICE void attend_backward(const Attention& a, int head, int query, const float* out, const float* d_out, float* d_qkv) {
  float own[SLICE], other[SLICE], result[SLICE], mean = 0.f;
  const long at_query = (long)query * a.width + head * a.head_width;
  for (int d = 0; d < a.head_width; d += SLICE) {
    load_slice<WHOLE>(own, d_out + at_query + d, a.head_width - d);
    load_slice<WHOLE>(other, out + at_query + d, a.head_width - d);
    mean += dot_slice(own, other);
  }
  // A head of one slice: `own` stays, and the gradient of the query is summed in the same loop.
  const bool one_slice = a.head_width <= SLICE;
#pragma unroll
  for (int i = 0; i < SLICE; i++) result[i] = 0.f;
#pragma unroll 4
  for (int key = 0; key < a.tokens; key++) {
    float d_weight = 0.f;
    for (int d = 0; d < a.head_width; d += SLICE) {
      if (!one_slice) load_slice<WHOLE>(own, d_out + at_query + d, a.head_width - d);
      load_slice<WHOLE>(other, value_of(a, head, key) + d, a.head_width - d);
      d_weight += dot_slice(own, other);
    }
    float* at = map_of(a, head, key, query);
    const float d_logit = a.scale * *at * (d_weight * attention_mask(a, head, key, query) - mean);
    *at = d_logit;
    if (!one_slice) continue;
    load_slice<WHOLE>(other, key_of(a, head, key), a.head_width);
#pragma unroll
    for (int i = 0; i < SLICE; i++) result[i] += d_logit * other[i];
  }
  float* d_query = d_qkv + (long)query * 3 * a.width + head * a.head_width;
  if (one_slice) {
    store_slice(d_query, result, a.head_width);
    return;
  }
  for (int d = 0; d < a.head_width; d += SLICE) {
#pragma unroll
    for (int i = 0; i < SLICE; i++) result[i] = 0.f;
#pragma unroll 4
    for (int key = 0; key < a.tokens; key++) {
      const float weight = *map_of(a, head, key, query);
      load_slice<WHOLE>(other, key_of(a, head, key) + d, a.head_width - d);
#pragma unroll
      for (int i = 0; i < SLICE; i++) result[i] += weight * other[i];
    }
    store_slice(d_query + d, result, a.head_width - d);
  }
}

// work(head, token) for every head and token: 32 tokens of a head per warp.
template <class Work> DEVICE void for_heads_and_tokens(const Attention& a, Work work) {
  const int blocks = (a.tokens + 31) >> 5;
  for (int task = threadIdx.x >> 5; task < a.heads * blocks; task += blockDim.x >> 5) {
    const int block = task / a.heads, token = block * 32 + (threadIdx.x & 31);
    if (token < a.tokens) work(task - block * a.heads, token);
  }
}

template <bool WHOLE> DEVICE void attention_forward(const Attention& a, float* out) {
  for_heads_and_tokens(a, [&](int head, int query) { attend<WHOLE>(a, head, query, out); });
}

// `map` holds the attention weights. out, d_out: [tokens][width]; d_qkv: [tokens][3 width].
template <bool WHOLE> DEVICE void attention_backward(const Attention& a, const float* out, const float* d_out, float* d_qkv) {
  for_heads_and_tokens(a, [&](int head, int key) {
    sum_over_queries<WHOLE, true>(a, head, key, d_out, a.width, d_qkv + 2 * a.width);
  });
  __syncthreads();
  for_heads_and_tokens(a, [&](int head, int query) { attend_backward<WHOLE>(a, head, query, out, d_out, d_qkv); });
  __syncthreads();
  for_heads_and_tokens(a, [&](int head, int key) {
    sum_over_queries<WHOLE, false>(a, head, key, a.qkv, a.pitch, d_qkv + a.width);
  });
}
