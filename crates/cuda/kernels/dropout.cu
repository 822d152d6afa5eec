// Dropout with the masks of the CPU (crates/nn/src/layers/dropout.rs): whether number `index` of a site (a place in the
// network where numbers are dropped) is kept is a hash of the site's seed and `index`. So no mask is stored: the
// backward pass computes it again.
#pragma once
#include "common.cuh"

// The mask of one site.
struct DropoutMask {
  u32 low, high;  // halves of the seed of the site
  u32 threshold;  // rate * 2^31: hashes of 31 bits below this are dropped; 0: no dropout
  float scale;    // 1 / (1 - rate)
};

// The mask of site number `site` of a model with this seed. The seed of the site is computed as the random generator
// SplitMix64 computes its numbers, with its constants.
DEVICE DropoutMask dropout_site(u64 seed, u32 site, u32 threshold, float scale) {
  u64 z = seed ^ (u64)(site + 1) * 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  z ^= z >> 31;
  return {(u32)z, (u32)(z >> 32), threshold, scale};
}

// The factor of number `index`: 0 if it is dropped, else `scale`. The multipliers mix the bits; they are those of the
// CPU.
DEVICE float dropout_factor(DropoutMask mask, u32 index) {
  u32 x = index * 0x9e3779b9u ^ mask.low;
  x = (x ^ (x >> 16)) * 0x7feb352du + mask.high;
  x = (x ^ (x >> 15)) * 0x846ca68bu;
  return (x >> 1) >= mask.threshold ? mask.scale : 0.f;
}
