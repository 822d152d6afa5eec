// EfficientNet-Lite0 for embedding, part 1: the first convolution ("stem"), the depthwise convolutions, and the mean
// over all positions. The pointwise convolutions are in efficientnet_pointwise.cu; src/efficientnet/layers.rs launches
// all of them, and crates/nn/src/efficientnet is the network on the CPU. Batch norm is folded into the weights.
//
//   activations  [image][row][column][channel], f16. The number of channels is a multiple of 16; channels beyond those
//                of the network are zero. A chunk is 8 channels, 16 bytes, one uint4.
//   padding      TensorFlow's SAME: `margin` is the padding at the top and left, and inputs outside the image are zero
//   bias         [channel] f32
//
// In both convolutions a thread ("unit") computes STRIP adjacent outputs of a row, for one chunk of channels: the
// inputs that the outputs share are loaded once. The threads of the grid are numbered in the order image, row, strip,
// chunk, so adjacent threads have adjacent chunks and read adjacent memory. In the code, `line` is an output row of any
// image, and `above` a strip of any line. Sums are f32, in the order of the taps, so that an output depends on its own
// image only.
#pragma once
#include "common.cuh"

namespace efficientnet {

// Adjacent outputs of a row that one thread computes.
constexpr int STRIP = 4;
constexpr int STEM_CHANNELS = 32, STEM_TAPS = 27;  // output channels of the stem; its 3 x 3 x 3 weights per channel

// min(max(value, 0), 6), which keeps NaN: min and max of the device would not.
DEVICE float relu6(float value) {
  value = value < 0.f ? 0.f : value;
  return value > 6.f ? 6.f : value;
}

// Eight f32 at an address that is a multiple of 16 bytes.
DEVICE void load8(const uint4* from, float* values) {
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const uint4 four = from[i];
    values[4 * i] = __uint_as_float(four.x);
    values[4 * i + 1] = __uint_as_float(four.y);
    values[4 * i + 2] = __uint_as_float(four.z);
    values[4 * i + 3] = __uint_as_float(four.w);
  }
}

// Writes relu6 of the outputs of a strip, of which `count` are inside the image. pitch: chunks per position.
DEVICE void store_strip(float sums[STRIP][8], uint4* to, int count, int pitch) {
#pragma unroll
  for (int output = 0; output < STRIP; output++) {
    if (output >= count) break;
#pragma unroll
    for (int i = 0; i < 8; i++) sums[output][i] = relu6(sums[output][i]);
    to[(long)output * pitch] = pack8(sums[output]);
  }
}

// Sizes of the stem.
struct StemShape {
  int units;                 // threads: images * side * strips * 4 chunks
  int size;                  // height and width of the images
  int side;                  // of the output
  int margin;                // padding at the top and left
  Divider by_strips;         // strips of an output row
  Divider by_side;           // by `side`
  float scale[3], shift[3];  // byte * scale + shift is a normalised value
};

// The first convolution, 3x3 with stride 2, and ReLU6: bytes [image][row][column][3] to activations of 32 channels. It
// is computed in f32.
//   weights  [27: row, column, channel][32] f32
// Grid: ceil(units / 256), 256 threads. Shared memory: the weights, which every thread reads.
extern "C" __global__ void __launch_bounds__(256, 2)
    efficientnet_stem(const u8* images, const uint4* weights, const uint4* bias, uint4* output, StemShape shape) {
  SHARED uint4 taps[STEM_TAPS * STEM_CHANNELS / 4];
  for (int i = threadIdx.x; i < STEM_TAPS * STEM_CHANNELS / 4; i += 256) taps[i] = weights[i];
  __syncthreads();
  const int unit = blockIdx.x * 256 + threadIdx.x;
  if (unit >= shape.units) return;
  const int chunk = unit & 3, above = unit >> 2, line = divide(shape.by_strips, above);
  const int column = (above - line * (int)shape.by_strips.divisor) * STRIP;
  const int image = divide(shape.by_side, line), row = line - image * shape.side;
  float sums[STRIP][8];  // in the loops, `output` is the number of an output in the strip
#pragma unroll
  for (int output = 0; output < STRIP; output++) load8(bias + chunk * 2, sums[output]);
  constexpr int SPAN = 2 * (STRIP - 1) + 3;  // input columns of a strip
#pragma unroll 1
  for (int tap_row = 0; tap_row < 3; tap_row++) {
    const int y = 2 * row + tap_row - shape.margin, first = 2 * column - shape.margin;
    if (y < 0 || y >= shape.size) continue;
    const u8* from = images + (((long)image * shape.size + y) * shape.size + first) * 3;
    float values[SPAN][3];
#pragma unroll
    for (int x = 0; x < SPAN; x++)
#pragma unroll
      for (int channel = 0; channel < 3; channel++)
        values[x][channel] = first + x >= 0 && first + x < shape.size
                                 ? (float)from[x * 3 + channel] * shape.scale[channel] + shape.shift[channel]
                                 : 0.f;
#pragma unroll
    for (int tap = 0; tap < 3; tap++)
#pragma unroll
      for (int channel = 0; channel < 3; channel++) {
        float w[8];
        load8(taps + (((tap_row * 3 + tap) * 3 + channel) * STEM_CHANNELS + chunk * 8) / 4, w);
#pragma unroll
        for (int output = 0; output < STRIP; output++)
#pragma unroll
          for (int i = 0; i < 8; i++) sums[output][i] += values[output * 2 + tap][channel] * w[i];
      }
  }
  store_strip(sums, output + ((long)line * shape.side + column) * (STEM_CHANNELS / 8) + chunk, shape.side - column,
              STEM_CHANNELS / 8);
}

// Sizes of a depthwise convolution.
struct DepthwiseShape {
  int units;           // threads: images * outputs * strips * chunks
  int side;            // height and width of the input
  int outputs;         // of the output
  int margin;          // padding at the top and left
  Divider by_chunks;   // chunks of a position
  Divider by_strips;   // strips of an output row
  Divider by_outputs;  // by `outputs`
};

// A depthwise convolution (every channel with its own filter) of KERNEL x KERNEL taps and ReLU6.
//   weights  [tap][channel] f32: rounded to f16, they would be the largest error of the network
// Grid: ceil(units / 256), 256 threads. No shared memory.
template <int KERNEL, int STRIDE>
DEVICE void depthwise(const uint4* input, const uint4* weights, const uint4* bias, uint4* output, DepthwiseShape shape) {
  const int unit = blockIdx.x * 256 + threadIdx.x;
  if (unit >= shape.units) return;
  const int chunks = shape.by_chunks.divisor, above = divide(shape.by_chunks, unit), chunk = unit - above * chunks;
  const int line = divide(shape.by_strips, above), column = (above - line * (int)shape.by_strips.divisor) * STRIP;
  const int image = divide(shape.by_outputs, line), row = line - image * shape.outputs;
  float sums[STRIP][8];
  // In the loops, `strip` is the number of an output in the strip.
#pragma unroll
  for (int strip = 0; strip < STRIP; strip++) load8(bias + chunk * 2, sums[strip]);
  constexpr int SPAN = STRIDE * (STRIP - 1) + KERNEL;  // input columns of a strip
  const int first = STRIDE * column - shape.margin;
#pragma unroll 1
  for (int tap_row = 0; tap_row < KERNEL; tap_row++) {
    const int y = STRIDE * row + tap_row - shape.margin;
    if (y < 0 || y >= shape.side) continue;
    const uint4* from = input + (((long)image * shape.side + y) * shape.side + first) * chunks + chunk;
    uint4 packed[SPAN];
#pragma unroll
    for (int x = 0; x < SPAN; x++)
      packed[x] = first + x >= 0 && first + x < shape.side ? from[(long)x * chunks] : make_uint4(0, 0, 0, 0);
    float w[KERNEL][8];
#pragma unroll
    for (int tap = 0; tap < KERNEL; tap++) load8(weights + ((tap_row * KERNEL + tap) * chunks + chunk) * 2, w[tap]);
#pragma unroll
    for (int x = 0; x < SPAN; x++) {
      float values[8];
      unpack8(packed[x], values);
#pragma unroll
      for (int strip = 0; strip < STRIP; strip++) {
        const int tap = x - strip * STRIDE;  // of this output, that input column x meets
        if (tap >= 0 && tap < KERNEL)
#pragma unroll
          for (int i = 0; i < 8; i++) sums[strip][i] += values[i] * w[tap][i];
      }
    }
  }
  store_strip(sums, output + ((long)line * shape.outputs + column) * chunks + chunk, shape.outputs - column, chunks);
}

// The kernels: taps, then stride.
#define DEPTHWISE(name, KERNEL, STRIDE)                                                                                  \
  extern "C" __global__ void __launch_bounds__(256, 2)                                                                   \
      name(const uint4* input, const uint4* weights, const uint4* bias, uint4* output, DepthwiseShape shape) {          \
    depthwise<KERNEL, STRIDE>(input, weights, bias, output, shape);                                                     \
  }
DEPTHWISE(efficientnet_depthwise_3_1, 3, 1)
DEPTHWISE(efficientnet_depthwise_3_2, 3, 2)
DEPTHWISE(efficientnet_depthwise_5_1, 5, 1)
DEPTHWISE(efficientnet_depthwise_5_2, 5, 2)

// The mean over the positions of an image: [image][position][channel] f16 to [image][channel] f32. Grid: (ceil(chunks /
// 32), images), 32 threads: a thread adds up one chunk, in the order of the positions.
extern "C" __global__ void __launch_bounds__(32)
    efficientnet_mean(const uint4* input, float* output, int positions, int chunks) {
  const int chunk = blockIdx.x * 32 + threadIdx.x;
  if (chunk >= chunks) return;
  const uint4* from = input + (long)blockIdx.y * positions * chunks + chunk;
  float sums[8] = {};
#pragma unroll 4
  for (int position = 0; position < positions; position++) {
    float values[8];
    unpack8(from[(long)position * chunks], values);
#pragma unroll
    for (int i = 0; i < 8; i++) sums[i] += values[i];
  }
  float* to = output + ((long)blockIdx.y * chunks + chunk) * 8;
#pragma unroll
  for (int i = 0; i < 8; i++) to[i] = sums[i] / (float)positions;
}

}  // namespace efficientnet
