// The loss of NegMargin, which trains a Conv4 by classifying images among all classes of the data set, and the update
// of its class weights (src/negmargin.rs launches the kernels; crates/nn/src/layers/cosine_margin.rs is the loss on the
// CPU). Every class has one weight vector w, its "direction"; the logits are cosines of features and directions. With
// the features f of an image, unit vectors u = f / |f| and v = w / |w|, images i, classes c, and [..] 1 if true, else
// 0:
//
//   cosines[i][c] = u_i . v_c
//   loss_i = cross-entropy over the logits scale * (cosines[i][c] - margin [c is the class of i])
//   loss = the mean of all loss_i; d_x is its gradient with respect to x
//   d_f_i = (d_u_i - (u_i . d_u_i) u_i) / |f_i|,   d_u_i = sum_c d_cosines[i][c] v_c
//   d_w_c = (d_v_c - (v_c . d_v_c) v_c) / |w_c|,   d_v_c = sum_i d_cosines[i][c] u_i
//   u_i . d_u_i = sum_c d_cosines[i][c] cosines[i][c],   v_c . d_v_c = sum_i d_cosines[i][c] cosines[i][c]
//
// A step launches class_cosines and margin_losses; then class_gradients (and sum_squares) beside
// cosine_feature_gradients; at its end update_class_weights.
//
//   features         plane of side `side`, f16 (common.cuh): 64 channels per position, pixel (row, column) of image n
//                    at position (n * pitch + row) * pitch + column, pitch = side + 1. Its side * side * 64 numbers per
//                    image are read in "units" of 32 channels of a pixel.
//   weights          [classes][units][32] f32: the directions, in the order of the plane: pixel, then channel. Their
//                    gradients and moments have the same order.
//   cosines          [images][pitch] f32, here pitch = classes rounded up to 8; the columns after the last class are
//                    zero
//   d_cosines        [images][pitch] f32: gradient times the loss scale
//   inverse_lengths  [pitch + images] f32: 1 / |w_c| of the classes, then 1 / |f_i|; 0 for a zero vector
//   projections      [images] f32: u_i . d_u_i, the part of d_u_i along u_i. It is subtracted, because a change of f_i
//                    along u_i does not change the cosines.
//   labels           [slot][images] u32; the slot is that of the current step (common.cuh)
//
// The products round their inputs to TF32 and sum in f32 (`mma_tf32`; lane, group and quad are explained in
// common.cuh). One thread block computes one tile of 16 rows, those of a matrix instruction; its 8 warps split the
// terms of the sum, and their parts are added in the order of the warps, so results repeat to the bit. In the code,
// `half` is 0 for row (or column) `group` of a tile and 1 for group + 8, and `own` a class of this thread. A direction
// has as many terms as an image has features, so the sums of the cosines are over units, those of d_f over classes, and
// those of d_w over images.
#pragma once
#include "layer_norm.cu"
#include "optimiser.cu"

#define ITEM_TILE 16  // images or classes of a tile
#define UNIT 32  // channels of a unit
#define SPLIT 8  // warps of a block, which split the terms of a sum

// Sizes of a step.
struct ClassShape {
  int images, classes;  // per step; of the data set
  int pitch;            // of a row of cosines
  int side;             // of the features
  Divider by_side;
  float scale, margin;  // of the logits, see above
};

// Units per image or direction.
DEVICE int unit_count(ClassShape shape) { return shape.side * shape.side * 2; }
// Position of a unit of an image in the plane, in chunks of 8 channels (16 bytes); a unit is 4 chunks.
DEVICE long unit_position(ClassShape shape, int image, int unit) {
  const int pixel = unit >> 1, row = divide(shape.by_side, pixel);
  return plane_position(image, row, pixel - row * shape.side, shape.side + 1) * 8 + (unit & 1) * 4;
}
// 1 / length from a squared length; 0 for a zero vector.
DEVICE float inverse_root(float square) { return square > 0.f ? 1.f / sqrtf(square) : 0.f; }
// The four floats with these bits: 16 bytes are loaded at once.
DEVICE void to_floats(uint4 bits, float* values) {
  values[0] = __uint_as_float(bits.x);
  values[1] = __uint_as_float(bits.y);
  values[2] = __uint_as_float(bits.z);
  values[3] = __uint_as_float(bits.w);
}
// Sum over the four lanes of a group, the same in each.
DEVICE float sum_of_quad(float value) {
  value += __shfl_xor_sync(FULL_WARP, value, 1);
  return value + __shfl_xor_sync(FULL_WARP, value, 2);
}

// Cosines and inverse lengths. Grid: (ceil(classes / 16), ceil(images / 16)), 256 threads; a block computes 16 images x
// 16 classes, a warp every 8th unit of the products. The order of the 32 numbers of a unit in the sum is free, so the
// matrix instructions take them as they are loaded: thread `quad` of a row has chunk `quad` of it, and the instruction
// for i takes numbers i and i + 1 of each chunk. Shared memory: the warps' products and squared lengths. At the end,
// each thread has one cosine.
extern "C" __global__ void __launch_bounds__(32 * SPLIT)
    class_cosines(const uint4* features, const float* weights, float* cosines, float* inverse_lengths, ClassShape shape) {
  SHARED float dots[SPLIT][ITEM_TILE][ITEM_TILE + 1];
  SHARED float image_squares[SPLIT][ITEM_TILE], class_squares[SPLIT][ITEM_TILE];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, group = lane >> 2, quad = lane & 3;
  const int first_image = blockIdx.y * ITEM_TILE, first_class = blockIdx.x * ITEM_TILE, units = unit_count(shape);
  // Rows after the last are copies of the last, and are not written.
  int images[2];
  const float* rows[2];
#pragma unroll
  for (int half = 0; half < 2; half++) {
    images[half] = min(first_image + half * 8 + group, shape.images - 1);
    rows[half] = weights + (long)min(first_class + half * 8 + group, shape.classes - 1) * units * UNIT + quad * 8;
  }
  float acc[2][4] = {}, image_square[2] = {}, class_square[2] = {};  // acc: 16 images x 8 classes for each half
#pragma unroll 2
  for (int unit = warp; unit < units; unit += SPLIT) {
    float f[2][8], w[2][8];
#pragma unroll
    for (int half = 0; half < 2; half++) {
      unpack8(features[unit_position(shape, images[half], unit) + quad], f[half]);
      const uint4* from = (const uint4*)(rows[half] + (long)unit * UNIT);
      to_floats(from[0], w[half]);
      to_floats(from[1], w[half] + 4);
    }
#pragma unroll
    for (int half = 0; half < 2; half++)
#pragma unroll
      for (int i = 0; i < 8; i++) {
        image_square[half] += f[half][i] * f[half][i];
        class_square[half] += w[half][i] * w[half][i];
      }
#pragma unroll
    for (int i = 0; i < 8; i += 2) {
      // Numbers of 16 bits have the precision of TF32.
      const u32 a[4] = {__float_as_uint(f[0][i]), __float_as_uint(f[1][i]), __float_as_uint(f[0][i + 1]),
                        __float_as_uint(f[1][i + 1])};
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const u32 b[2] = {tf32_operand(w[half][i]), tf32_operand(w[half][i + 1])};
        mma_tf32(acc[half], a, b);
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; half++) {
#pragma unroll
    for (int i = 0; i < 4; i++) dots[warp][group + (i >> 1) * 8][half * 8 + quad * 2 + (i & 1)] = acc[half][i];
    const float of_image = sum_of_quad(image_square[half]), of_class = sum_of_quad(class_square[half]);
    if (quad == 0) {
      image_squares[warp][half * 8 + group] = of_image;
      class_squares[warp][half * 8 + group] = of_class;
    }
  }
  __syncthreads();
  const int row = threadIdx.x >> 4, column = threadIdx.x & 15, image = first_image + row, own = first_class + column;
  float dot = 0.f, of_image = 0.f, of_class = 0.f;
#pragma unroll
  for (int part = 0; part < SPLIT; part++) {
    dot += dots[part][row][column];
    of_image += image_squares[part][row];
    of_class += class_squares[part][column];
  }
  if (image >= shape.images || own >= shape.classes) return;
  const float inverse_image = inverse_root(of_image), inverse_class = inverse_root(of_class);
  cosines[(long)image * shape.pitch + own] = dot * inverse_image * inverse_class;
  if (own == 0) inverse_lengths[shape.pitch + image] = inverse_image;
  if (image == 0) inverse_lengths[own] = inverse_class;
}

// losses [images], d_cosines and projections; a warp per image, a lane every 32nd class. Grid: ceil(images / 8), 256
// threads. Sets `overflow` in the state if a loss is not finite.
extern "C" __global__ void __launch_bounds__(32 * SPLIT)
    margin_losses(const float* cosines, const u32* labels, float* losses, float* d_cosines, float* projections,
                  TrainingState* state, ClassShape shape) {
  const int image = blockIdx.x * SPLIT + (threadIdx.x >> 5), lane = threadIdx.x & 31;
  if (image >= shape.images) return;
  const int target = labels[step_slot(state) * shape.images + image];
  const float* row = cosines + (long)image * shape.pitch;
  auto logit = [&](int c) { return (row[c] - (c == target ? shape.margin : 0.f)) * shape.scale; };
  float largest = -3.4e38f, total = 0.f, projection = 0.f;
  for (int c = lane; c < shape.classes; c += 32) largest = fmaxf(largest, logit(c));
  for (int distance = 16; distance; distance >>= 1)
    largest = fmaxf(largest, __shfl_xor_sync(FULL_WARP, largest, distance));
  for (int c = lane; c < shape.classes; c += 32) total += expf(logit(c) - largest);
  total = warp_sum(total);
  const float factor = shape.scale * state->scale / shape.images;  // of the mean over the images, times the loss scale
  for (int c = lane; c < shape.classes; c += 32) {
    const float d = (expf(logit(c) - largest) / total - (c == target ? 1.f : 0.f)) * factor;
    d_cosines[(long)image * shape.pitch + c] = d;
    projection += d * row[c];
  }
  projection = warp_sum(projection);
  if (lane != 0) return;
  // Minus the logarithm of the softmax at the target.
  const float loss = logf(total) + largest - logit(target);
  losses[image] = loss;
  projections[image] = projection;
  if (!is_finite(loss)) atomicOr(&state->overflow, 1u);
}

// Writes a warp's 16 x 32 products to shared memory: tile[row][channel]. acc[part] is the accumulator of instruction
// `part`, of which column n is channel 4 n + part: so lane `group`, which loads column `group` of the right factor of
// all four instructions, reads four adjacent channels.
DEVICE void store_tile(float (*tile)[UNIT + 1], const float (*acc)[4], int group, int quad) {
#pragma unroll
  for (int part = 0; part < 4; part++)
#pragma unroll
    for (int i = 0; i < 4; i++) tile[group + (i >> 1) * 8][quad * 8 + (i & 1) * 4 + part] = acc[part][i];
}

// d_features, in the layout of the features: a product of d_cosines (times 1 / |w_c|) with the directions, [images x
// classes] [classes x channels]. Grid: (units, ceil(images / 16)), 256 threads; a block computes one unit of 16 images,
// a warp every 8th group of 8 classes of the sum. Shared memory: the warps' sums. At the end, 64 threads have one chunk
// of 8 channels each.
extern "C" __global__ void __launch_bounds__(32 * SPLIT)
    cosine_feature_gradients(const uint4* features, const float* weights, const float* d_cosines, const float* projections,
                             const float* inverse_lengths, uint4* d_features, ClassShape shape) {
  SHARED float tiles[SPLIT][ITEM_TILE][UNIT + 1];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, group = lane >> 2, quad = lane & 3;
  const int unit = blockIdx.x, first_image = blockIdx.y * ITEM_TILE;
  const long row_len = (long)unit_count(shape) * UNIT;
  const float* rows[2];
#pragma unroll
  for (int half = 0; half < 2; half++)
    rows[half] = d_cosines + (long)min(first_image + half * 8 + group, shape.images - 1) * shape.pitch;
  float acc[4][4] = {};
  for (int first = warp * 8; first < shape.pitch; first += SPLIT * 8) {
    u32 a[4];
    float w[2][4];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      // Class 2 quad + k of the 8 is column quad + 4 k of the instruction. The gradients of classes after the last, up
      // to the pitch, are zero, whatever they are multiplied by.
      const int c = first + quad * 2 + k;
      const float inverse = inverse_lengths[c];
      a[k * 2] = tf32_operand(rows[0][c] * inverse);
      a[k * 2 + 1] = tf32_operand(rows[1][c] * inverse);
      to_floats(*(const uint4*)(weights + min(c, shape.classes - 1) * row_len + unit * UNIT + group * 4), w[k]);
    }
#pragma unroll
    for (int part = 0; part < 4; part++) {
      const u32 b[2] = {tf32_operand(w[0][part]), tf32_operand(w[1][part])};
      mma_tf32(acc[part], a, b);
    }
  }
  store_tile(tiles[warp], acc, group, quad);
  __syncthreads();
  // A thread has a chunk of 8 channels of an image.
  const int row = threadIdx.x >> 2, image = first_image + row, chunk = threadIdx.x & 3;
  if (row >= ITEM_TILE || image >= shape.images) return;
  const long at = unit_position(shape, image, unit) + chunk;
  const float inverse = inverse_lengths[shape.pitch + image], along = projections[image] * inverse;
  float values[8], d[8];
  unpack8(features[at], values);
#pragma unroll
  for (int i = 0; i < 8; i++) {
    float sum = 0.f;
#pragma unroll
    for (int part = 0; part < SPLIT; part++) sum += tiles[part][row][chunk * 8 + i];
    d[i] = inverse * (sum - along * values[i]);
  }
  d_features[at] = pack8(d);
}

// The gradient of the class weights divided by the loss scale, a product of the transpose of d_cosines (times 1 /
// |f_i|) with the features; and squares[block], the sum of squares of each thread block. Grid: (units, ceil(classes /
// 16)), 256 threads; a block computes one unit of 16 classes, a warp every 8th group of 8 images of the sum. Shared
// memory: the warps' sums and their parts of v_c . d_v_c; one double per thread. At the end, a thread has two adjacent
// channels of a class. Sets `overflow` in the state if a gradient is not finite.
extern "C" __global__ void __launch_bounds__(32 * SPLIT)
    class_gradients(const uint4* features, const float* weights, const float* cosines, const float* d_cosines,
                    const float* inverse_lengths, float* gradients, double* squares, TrainingState* state, ClassShape shape) {
  SHARED float tiles[SPLIT][ITEM_TILE][UNIT + 1];
  SHARED float projections[SPLIT][ITEM_TILE];
  SHARED double scratch[32 * SPLIT];
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31, group = lane >> 2, quad = lane & 3;
  const int unit = blockIdx.x, first_class = blockIdx.y * ITEM_TILE;
  float acc[4][4] = {}, projection[2] = {};
  for (int first = warp * 8; first < shape.images; first += SPLIT * 8) {
    u32 a[4];
    float f[2][4];
#pragma unroll
    for (int k = 0; k < 2; k++) {
      const bool exists = first + k * 4 + quad < shape.images;
      const int image = exists ? first + k * 4 + quad : 0;
      const float inverse = inverse_lengths[shape.pitch + image];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int own = first_class + half * 8 + group;
        const long at = (long)image * shape.pitch + own;
        const float d = exists && own < shape.classes ? d_cosines[at] : 0.f;
        a[k * 2 + half] = tf32_operand(d * inverse);
        if (exists && own < shape.classes) projection[half] += d * cosines[at];
      }
      const uint2 pairs = ((const uint2*)(features + unit_position(shape, image, unit)))[group];
      const float2 low = unpack_half2(pairs.x), high = unpack_half2(pairs.y);
      f[k][0] = low.x;
      f[k][1] = low.y;
      f[k][2] = high.x;
      f[k][3] = high.y;
    }
#pragma unroll
    for (int part = 0; part < 4; part++) {
      const u32 b[2] = {__float_as_uint(f[0][part]), __float_as_uint(f[1][part])};
      mma_tf32(acc[part], a, b);
    }
  }
  store_tile(tiles[warp], acc, group, quad);
#pragma unroll
  for (int half = 0; half < 2; half++) {
    const float sum = sum_of_quad(projection[half]);
    if (quad == 0) projections[warp][half * 8 + group] = sum;
  }
  __syncthreads();
  // A thread has two adjacent channels of a class.
  const int row = threadIdx.x >> 4, own = first_class + row, channel = (threadIdx.x & 15) * 2;
  double square = 0.0;
  if (own < shape.classes) {
    const float inverse = inverse_lengths[own];
    float along = 0.f;
#pragma unroll
    for (int part = 0; part < SPLIT; part++) along += projections[part][row];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const long at = ((long)own * unit_count(shape) + unit) * UNIT + channel + i;
      float sum = 0.f;
#pragma unroll
      for (int part = 0; part < SPLIT; part++) sum += tiles[part][row][channel + i];
      float gradient = inverse * (sum - along * inverse * weights[at]);
      if (!is_finite(gradient)) atomicOr(&state->overflow, 1u);
      gradient /= state->scale;
      gradients[at] = gradient;
      square += (double)gradient * gradient;
    }
  }
  scratch[threadIdx.x] = square;
  sum_in_shared(scratch);
  if (threadIdx.x == 0) squares[blockIdx.y * gridDim.x + blockIdx.x] = scratch[0];
}

// *sum = the sum of squares[count]. One block of 256 threads; the order is fixed.
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS) sum_squares(const double* squares, int count, double* sum) {
  SHARED double scratch[UPDATE_THREADS];
  double own = 0.0;
  for (int i = threadIdx.x; i < count; i += UPDATE_THREADS) own += squares[i];
  scratch[threadIdx.x] = own;
  sum_in_shared(scratch);
  if (threadIdx.x == 0) *sum = scratch[0];
}

// AdamW (optimiser.cu) on the class weights, one thread each. Grid: ceil(len / 256), 256 threads. squares
// [square_count]: of the network's gradients; other_squares [1]: the sum of those of the class weights; both are
// clipped together. Does nothing after an overflow. Shared memory: the factor of clipping, which one thread computes
// for the block.
extern "C" __global__ void __launch_bounds__(UPDATE_THREADS)
    update_class_weights(float* weights, float* first_moments, float* second_moments, const float* gradients,
                         const double* squares, int square_count, const double* other_squares, const float* rates,
                         const TrainingState* state, AdamW options, int len) {
  SHARED float factor;
  const int index = blockIdx.x * UPDATE_THREADS + threadIdx.x;
  if (state->overflow) return;
  if (threadIdx.x == 0) factor = clip_factor(options, squares, square_count, other_squares, 1);
  __syncthreads();
  if (index >= len) return;
  const float weight = weights[index];
  weights[index] = adamw_step(weight, gradients[index] * factor + options.l2 * weight, first_moments + index,
                              second_moments + index, rates[step_slot(state)], state->updates + 1, options);
}
