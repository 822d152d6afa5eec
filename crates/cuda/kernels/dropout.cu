// Dropout with the masks of the CPU (crates/nn/src/layers/dropout.rs): a mask is a hash of the seed of its site and the index
// of the number, so the backward pass computes it again.
#pragma once
#include "common.cuh"

struct DropoutMask {
  u32 low, high;    // halves of the seed of a site
  u32 threshold;    // hashes of 31 bits below this are dropped; 0: no dropout
  float scale;      // 1 / (1 - rate)
};

DEVICE DropoutMask dropout_site(u64 seed, u32 site, u32 threshold, float scale) {
  u64 z = seed ^ (u64)(site + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  return {(u32)z, (u32)(z >> 32), threshold, scale};
}

// 0 or `scale`.
DEVICE float dropout_factor(DropoutMask mask, u32 index) {
  u32 x = index * 0x9e3779b9u ^ mask.low;
  x = (x ^ (x >> 16)) * 0x7feb352du + mask.high;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return (x >> 1) >= mask.threshold ? mask.scale : 0.f;
}
