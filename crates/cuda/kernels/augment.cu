// The images of a step: gathered from the data set on the device, cropped, resized, flipped, jittered in colour, normalised.
// The same operations as crates/vision/src/augment.rs, with parameters that the host draws.
//
//   pixels    u8, all images of the data set: [row][column][channel]
//   sources   where each image is
//   requests  [slot][images]: which image, and how it is changed
//   out       plane of side `size` with four f16 per position (first_block.cu)
//
// Grid: images, 512 threads. Shared memory: weights of the columns and rows of the resampling, and the image as planes of
// f32 in [0, 1] if it fits; else `scratch` holds the planes, [image][channel][size²].
#pragma once
#include "common.cuh"

#define AUGMENT_THREADS 512

struct SourceImage {
  u64 offset;
  u32 width, height;
};

enum Jitter { BRIGHTNESS, CONTRAST, SATURATION, HUE };

struct ImageRequest {
  u32 image;
  u16 left, top, width, height;  // the crop
  u32 flip;
  u32 jitters;     // four kinds of 2 bits, in the order of application, the first in the lowest bits
  float values[4]; // of the jitters, in the same order
};

struct AugmentShape {
  int size, channels;
  int taps;          // maximum number of weights per output pixel and axis
  int slot_len;      // requests of a slot
  float scale[3], shift[3];
};

DEVICE float clamp_unit(float value) { return fminf(fmaxf(value, 0.f), 1.f); }

// Sum over the block, the same in every thread and independent of scheduling. `partial` holds 16 floats.
DEVICE float augment_sum(float value, float* partial) {
  for (int distance = 16; distance; distance >>= 1) value += __shfl_xor_sync(FULL_WARP, value, distance);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = value;
  __syncthreads();
  float sum = 0.f;
  for (int w = 0; w < AUGMENT_THREADS / 32; w++) sum += partial[w];
  return sum;
}

// Bilinear weights of an output pixel, with antialiasing when shrinking (Taps in crates/core/src/resample.rs).
DEVICE void resampling_weights(int output, int from, int to, int taps, int& start, float* weights) {
  const double scale = (double)from / to, stretch = scale > 1.0 ? scale : 1.0, centre = (output + 0.5) * scale;
  const int first = (int)fmax(centre - stretch + 0.5, 0.0), end = min((int)(centre + stretch + 0.5), from);
  double total = 0.0;
  for (int pixel = first; pixel < end; pixel++) total += fmax(1.0 - fabs((pixel + 0.5 - centre) / stretch), 0.0);
  start = first;
  for (int i = 0; i < taps; i++) {
    const int pixel = first + i;
    weights[i] = pixel < end ? (float)(fmax(1.0 - fabs((pixel + 0.5 - centre) / stretch), 0.0) / total) : 0.f;
  }
}

// One channel of a hue in sixths: value - chroma * clamp(min(k, 4 - k), 0, 1) with k = (hue + n) mod 6.
DEVICE float hue_channel(float k, float value, float chroma) {
  if (k >= 6.f) k -= 6.f;
  return clamp_unit(value - chroma * clamp_unit(fminf(k, 4.f - k)));
}

DEVICE void shift_hue(float& r, float& g, float& b, float shift) {
  const float value = fmaxf(fmaxf(r, g), b), chroma = value - fminf(fminf(r, g), b);
  const float inverse = chroma > 0.f ? 1.f / chroma : 0.f;
  float hue = value == r ? (g - b) * inverse : value == g ? 2.f + (b - r) * inverse : 4.f + (r - g) * inverse;
  hue += shift;
  if (hue < 0.f) hue += 6.f;
  if (hue >= 6.f) hue -= 6.f;
  r = hue_channel(hue + 5.f, value, chroma);
  g = hue_channel(hue + 3.f, value, chroma);
  b = hue_channel(hue + 1.f, value, chroma);
}

DEVICE float grey_of(const float* planes, int pixel, int pixels, int channels) {
  if (channels == 1) return planes[pixel];
  return 0.2989f * planes[pixel] + 0.587f * planes[pixels + pixel] + 0.114f * planes[2 * pixels + pixel];
}

DEVICE void apply_jitter(int kind, float value, float* planes, int pixels, int channels, float* partial) {
  if (value == (kind == HUE ? 0.f : 1.f) || (channels == 1 && kind >= SATURATION)) return;
  float rest = 0.f;
  if (kind == CONTRAST) {
    float sum = 0.f;
    for (int i = threadIdx.x; i < pixels; i += AUGMENT_THREADS) sum += grey_of(planes, i, pixels, channels);
    rest = (1.f - value) * (augment_sum(sum, partial) / pixels);
  }
  for (int i = threadIdx.x; i < pixels; i += AUGMENT_THREADS) {
    if (kind == HUE) {
      shift_hue(planes[i], planes[pixels + i], planes[2 * pixels + i], value);
      continue;
    }
    if (kind == SATURATION) rest = (1.f - value) * grey_of(planes, i, pixels, channels);
    for (int c = 0; c < channels; c++) planes[c * pixels + i] = clamp_unit(value * planes[c * pixels + i] + rest);
  }
}

// Writes image number `image` of the plane `out`. `scratch` is the memory of its planes, or null.
DEVICE void augment_image(const u8* pixels, const SourceImage* sources, ImageRequest request, float* scratch, uint2* out,
                          int image, AugmentShape shape) {
  SHARED float partial[AUGMENT_THREADS / 32];
  const int size = shape.size, area = size * size, channels = shape.channels, taps = shape.taps;
  const SourceImage source = sources[request.image];
  int* starts = (int*)dynamic_shared;                  // [2][size]: columns, rows
  float* weights = (float*)(starts + 2 * size);  // [2][size][taps]
  float* planes = scratch ? scratch : weights + 2 * size * taps;
  for (int i = threadIdx.x; i < 2 * size; i += AUGMENT_THREADS)
    resampling_weights(i % size, i < size ? request.width : request.height, size, taps, starts[i], weights + i * taps);
  __syncthreads();
  const u8* crop = pixels + source.offset + ((long)request.top * source.width + request.left) * channels;
  for (int i = threadIdx.x; i < area; i += AUGMENT_THREADS) {
    const int y = i / size, x = i - y * size, column = starts[x], row = starts[size + y];
    float sums[3] = {0.f, 0.f, 0.f};
    for (int dy = 0; dy < taps; dy++) {
      const float row_weight = weights[(size + y) * taps + dy] / 255.f;
      if (row_weight == 0.f) continue;
      for (int dx = 0; dx < taps; dx++) {
        const float weight = row_weight * weights[x * taps + dx];
        if (weight == 0.f) continue;
        const u8* pixel = crop + ((long)(row + dy) * source.width + column + dx) * channels;
        for (int c = 0; c < channels; c++) sums[c] += weight * pixel[c];
      }
    }
    const int to = y * size + (request.flip ? size - 1 - x : x);
    for (int c = 0; c < channels; c++) planes[c * area + to] = sums[c];
  }
  __syncthreads();
  for (int i = 0; i < 4; i++) {
    apply_jitter((request.jitters >> (2 * i)) & 3, request.values[i], planes, area, channels, partial);
    __syncthreads();
  }
  for (int i = threadIdx.x; i < area; i += AUGMENT_THREADS) {
    const int y = i / size, x = i - y * size;
    float values[3] = {0.f, 0.f, 0.f};
    for (int c = 0; c < channels; c++) values[c] = planes[c * area + i] * shape.scale[c] + shape.shift[c];
    out[plane_position(image, y, x, size + 1)] =
        make_uint2(pack_half2(values[0], values[1]), pack_half2(values[2], 1.f));
  }
}

DEVICE float* augment_scratch(float* scratch, long image, AugmentShape shape) {
  return scratch ? scratch + image * shape.channels * shape.size * shape.size : nullptr;
}

extern "C" __global__ void __launch_bounds__(AUGMENT_THREADS)
    augment_images(const u8* pixels, const SourceImage* sources, const ImageRequest* requests, float* scratch, uint2* out,
                   const TrainingState* state, AugmentShape shape) {
  const int image = blockIdx.x;
  const ImageRequest request = requests[(long)step_slot(state) * shape.slot_len + image];
  augment_image(pixels, sources, request, augment_scratch(scratch, image, shape), out, image, shape);
}

// Images that are already prepared, [image][row][column][channel] f32, or bytes of the right size with their normalisation.
// Grid: (ceil(size² / 256), images).
DEVICE void pack_image(const float* images, uint2* out, AugmentShape shape) {
  const int area = shape.size * shape.size, i = blockIdx.x * 256 + threadIdx.x, y = i / shape.size;
  if (i >= area) return;
  const float* from = images + ((long)blockIdx.y * area + i) * shape.channels;
  const bool colour = shape.channels == 3;
  out[plane_position(blockIdx.y, y, i - y * shape.size, shape.size + 1)] =
      make_uint2(pack_half2(from[0], colour ? from[1] : 0.f), pack_half2(colour ? from[2] : 0.f, 1.f));
}
extern "C" __global__ void __launch_bounds__(256) pack_floats(const float* images, uint2* out, AugmentShape shape) {
  pack_image(images, out, shape);
}
extern "C" __global__ void __launch_bounds__(256) pack_bytes(const u8* images, uint2* out, AugmentShape shape) {
  const int area = shape.size * shape.size, i = blockIdx.x * 256 + threadIdx.x, y = i / shape.size;
  if (i >= area) return;
  const u8* from = images + ((long)blockIdx.y * area + i) * shape.channels;
  float values[3] = {0.f, 0.f, 0.f};
  for (int c = 0; c < shape.channels; c++) values[c] = from[c] / 255.f * shape.scale[c] + shape.shift[c];
  out[plane_position(blockIdx.y, y, i - y * shape.size, shape.size + 1)] =
      make_uint2(pack_half2(values[0], values[1]), pack_half2(values[2], 1.f));
}
