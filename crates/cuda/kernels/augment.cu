// The input images of Conv4. `augment_images` takes images of the data set, which stay on the device, and crops,
// resizes, flips and normalises them and changes their colours; the host draws the parameters of every image
// (`ImageRequest`). `pack_floats` and `pack_bytes` take images that already have the right size. The operations are
// those of crates/vision/src/augment.rs.
//
// All three write the input plane of the network (src/conv4/images.rs, first_block.cu): images of size x size pixels,
// where pixel (row, column) of image n is at position (n * pitch + row) * pitch + column with pitch = size + 1. The
// last row and column of every image stay zero: they are the margin of the convolution. A position has four f16, 8
// bytes: the three channels (a grey image has its channel first, then two zeros) and the number 1, which first_block.cu
// uses to count pixels.
//
//   pixels    u8, all images of the data set: [row][column][channel], one image after the other
//   sources   where each image is in `pixels`, and its size
//   requests  [slot][slot_len]: which image, and how it is changed. The slot is that of the current step (common.cuh).
//   scratch   [image][channel][size * size] f32: the images while they are changed; null if shared memory suffices for
//             that
//   out       the input plane
#pragma once
#include "common.cuh"

#define AUGMENT_THREADS 512  // of a block, which makes one image

// An image of the data set: its first byte in `pixels`, and its size in pixels.
struct SourceImage {
  u64 offset;
  u32 width, height;
};

// The random changes of colours, as numbers of two bits.
enum Jitter { BRIGHTNESS, CONTRAST, SATURATION, HUE };

// What one image of a step is made of (the same struct as in src/conv4/images.rs).
struct ImageRequest {
  u32 image;                     // its number in `sources`
  u16 left, top, width, height;  // the crop, in pixels of the source
  u32 flip;                      // 1 if the image is mirrored
  // Four kinds of 2 bits (enum Jitter), in the order of application, the first in the lowest bits.
  u32 jitters;
  // Of the jitters, in the same order: factors around 1; for HUE a shift in sixths of the circle.
  float values[4];
};

// Sizes of a launch, and the normalisation of the network.
struct AugmentShape {
  int size, channels;        // height and width of the output; 1 or 3 channels
  int taps;                  // source pixels per output pixel and axis for which there is memory; unused weights are 0
  int slot_len;              // requests of a slot
  float scale[3], shift[3];  // value * scale + shift normalises a value in [0, 1], per channel
};

// The nearest number in [0, 1].
DEVICE float clamp_unit(float value) { return fminf(fmaxf(value, 0.f), 1.f); }

// Sum over the block, the same in every thread: first within each warp, then over the warps in their order, so the
// result does not depend on scheduling. `partial` holds one float per warp. Contains barriers.
DEVICE float augment_sum(float value, float* partial) {
  for (int distance = 16; distance; distance >>= 1) value += __shfl_xor_sync(FULL_WARP, value, distance);
  __syncthreads();
  if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = value;
  __syncthreads();
  float sum = 0.f;
  for (int w = 0; w < AUGMENT_THREADS / 32; w++) sum += partial[w];
  return sum;
}

// The bilinear weights of output pixel `output` along one axis, where `from` source pixels become `to`: a triangle
// around the source position of the pixel's centre, 1 wide to each side, or as wide as an output pixel when shrinking
// (antialiasing). They sum to 1. start: the first source pixel; weights[taps]: those from there on. The same as Taps in
// crates/core/src/resample.rs.
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

// One channel of a colour from its hue in sixths of the circle: value - chroma * clamp(min(k, 4 - k), 0, 1) with k =
// (hue + n) mod 6 and n = 5, 3, 1 for red, green, blue (HSV to RGB). k is below 12, so one subtraction suffices.
DEVICE float hue_channel(float k, float value, float chroma) {
  if (k >= 6.f) k -= 6.f;
  return clamp_unit(value - chroma * clamp_unit(fminf(k, 4.f - k)));
}

// Adds `shift`, in sixths of the circle, to the hue of a colour and keeps value (largest channel) and chroma (largest
// minus smallest).
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

// The brightness of a pixel; the weights of the channels are those of torchvision. planes: [channels][pixels].
DEVICE float grey_of(const float* planes, int pixel, int pixels, int channels) {
  if (channels == 1) return planes[pixel];
  return 0.2989f * planes[pixel] + 0.587f * planes[pixels + pixel] + 0.114f * planes[2 * pixels + pixel];
}

// Applies one jitter to all pixels of `planes`, [channels][pixels] in [0, 1]. Brightness, contrast and saturation are x
// <- clamp(value * x + (1 - value) * y, 0, 1), where y is 0, the mean grey of the image, or the grey of the pixel;
// `rest` is (1 - value) * y. Factor 1, hue shift 0, and colour changes of grey images do nothing.
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

// The steps from an image of the data set to image number `image` of the plane `out`, in the order of the code: crop
// and resize, flip, jitters, normalise. By one block of AUGMENT_THREADS threads. `scratch` is the memory for
// its channels as f32, [channel][size * size], or null if they are in shared memory. Dynamic shared memory: `starts`
// [2][size] and `weights` [2][size][taps] of the columns and rows, then the channels if `scratch` is null.
DEVICE void augment_image(const u8* pixels, const SourceImage* sources, ImageRequest request, float* scratch, uint2* out,
                          int image, AugmentShape shape) {
  SHARED float partial[AUGMENT_THREADS / 32];
  const int size = shape.size, area = size * size, channels = shape.channels, taps = shape.taps;
  const SourceImage source = sources[request.image];
  int* starts = (int*)dynamic_shared;  // [2][size]: first source column of an output column; first source row of a row
  float* weights = (float*)(starts + 2 * size);  // [2][size][taps]
  float* planes = scratch ? scratch : weights + 2 * size * taps;
  for (int i = threadIdx.x; i < 2 * size; i += AUGMENT_THREADS)
    resampling_weights(i % size, i < size ? request.width : request.height, size, taps, starts[i], weights + i * taps);
  __syncthreads();
  // Crop, resize and flip: every thread sums the weighted source pixels of its output pixels. 1 / 255: bytes to [0, 1].
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
  // Jitters, one after the other: contrast needs the whole image before it.
  for (int i = 0; i < 4; i++) {
    apply_jitter((request.jitters >> (2 * i)) & 3, request.values[i], planes, area, channels, partial);
    __syncthreads();
  }
  for (int i = threadIdx.x; i < area; i += AUGMENT_THREADS) {
    // Normalise and pack four f16. The last is the number 1.
    const int y = i / size, x = i - y * size;
    float values[3] = {0.f, 0.f, 0.f};
    for (int c = 0; c < channels; c++) values[c] = planes[c * area + i] * shape.scale[c] + shape.shift[c];
    out[plane_position(image, y, x, size + 1)] =
        make_uint2(pack_half2(values[0], values[1]), pack_half2(values[2], 1.f));
  }
}

// The scratch memory of one image; null stays null.
DEVICE float* augment_scratch(float* scratch, long image, AugmentShape shape) {
  return scratch ? scratch + image * shape.channels * shape.size * shape.size : nullptr;
}

// The images of a step. Grid: images, one block of 512 threads each. Shared memory: see augment_image.
extern "C" __global__ void __launch_bounds__(AUGMENT_THREADS)
    augment_images(const u8* pixels, const SourceImage* sources, const ImageRequest* requests, float* scratch, uint2* out,
                   const TrainingState* state, AugmentShape shape) {
  const int image = blockIdx.x;
  const ImageRequest request = requests[(long)step_slot(state) * shape.slot_len + image];
  augment_image(pixels, sources, request, augment_scratch(scratch, image, shape), out, image, shape);
}

// Packs images that are prepared already: `images` is [image][row][column][channel] f32, normalised. Grid: (ceil(size *
// size / 256), images), 256 threads; one pixel per thread.
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
// The same for bytes, [image][row][column][channel] u8, which are normalised here. For embedding with a trained
// network.
extern "C" __global__ void __launch_bounds__(256) pack_bytes(const u8* images, uint2* out, AugmentShape shape) {
  const int area = shape.size * shape.size, i = blockIdx.x * 256 + threadIdx.x, y = i / shape.size;
  if (i >= area) return;
  const u8* from = images + ((long)blockIdx.y * area + i) * shape.channels;
  float values[3] = {0.f, 0.f, 0.f};
  for (int c = 0; c < shape.channels; c++) values[c] = from[c] / 255.f * shape.scale[c] + shape.shift[c];
  out[plane_position(blockIdx.y, y, i - y * shape.size, shape.size + 1)] =
      make_uint2(pack_half2(values[0], values[1]), pack_half2(values[2], 1.f));
}
