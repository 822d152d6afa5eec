// The TraNFS head, part 4: training together with a backbone, which computes the features in the same step. Here are
// the gradient of the features, and the variants of kernels in which the backbone decides whether the step counts.
// Sizes, buffers and the order of the kernels: tranfs.cu; src/tranfs/joint.rs launches those of this file.
//
// The gradient of the mean loss over the episodes, d_features [rows][D]; rows are those of the step's features, one per
// item or query:
//   a query                    sum over the classes of its d_query_logits times the prototype
//   a support item             d_projected times the transposed down-projection
//   a correctly labelled item  in addition a t - b p, from the clean loss of its class (TranfsJoint), with p its
//                              prototype and t the mean of its correctly labelled items
// Every row of the step belongs to one query or item, so each is written once.
#pragma once
#include "tranfs_update.cu"

// d_features of the queries. Grid: (chunks, episodes), 512 threads; a block has 128 columns of an episode's queries, a
// warp one query at a time. The prototypes of 8 classes are in registers; with more classes, later ones add to the row.
extern "C" __global__ void __launch_bounds__(LOSS_THREADS) tranfs_query_gradients(Tranfs t, TranfsJoint joint) {
  const u32* input = t.current;
  if ((int)blockIdx.y >= step_of(input).episodes) return;
  const TranfsEpisode e = episode_of(t, input, blockIdx.y);
  const int lane = threadIdx.x & 31, start = blockIdx.x * CHUNK, columns = min(CHUNK, t.dim - start);
  const float scale = step_of(input).scale;
#pragma unroll 1
  for (int first = 0; first < e.classes; first += CLASS_TILE) {
    const int count = min(CLASS_TILE, e.classes - first);
    float p[CLASS_TILE][CHUNK / 32];
#pragma unroll
    for (int c = 0; c < CLASS_TILE; c++)
#pragma unroll
      for (int i = 0; i < CHUNK / 32; i++)
        p[c][i] = c < count && i * 32 + lane < columns
                      ? t.prototypes[(long)(e.first_class + first + c) * t.dim + start + i * 32 + lane]
                      : 0.f;
#pragma unroll 1
    for (int query = threadIdx.x >> 5; query < e.queries; query += LOSS_WARPS) {
      const float* d_logits = t.d_query_logits + (long)(e.first_query + query) * t.classes + first;
      float* d_row = joint.d_features + (long)input[t.query_rows_at + e.first_query + query] * t.dim + start;
      float d[CHUNK / 32] = {};
#pragma unroll
      for (int c = 0; c < CLASS_TILE; c++) {
        const float d_logit = c < count ? d_logits[c] : 0.f;
#pragma unroll
        for (int i = 0; i < CHUNK / 32; i++) d[i] += d_logit * p[c][i];
      }
#pragma unroll
      for (int i = 0; i < CHUNK / 32; i++)
        if (i * 32 + lane < columns) d_row[i * 32 + lane] = d[i] * scale + (first > 0 ? d_row[i * 32 + lane] : 0.f);
    }
  }
}

// d_features of `item_rows` support items of an episode over 128 columns. Grid: (chunks * ceil(most items / item_rows),
// episodes), 256 threads. Shared memory: the product [item_rows][TILE_PITCH], then the rows of d_projected
// [item_rows][pitch_of(W)].
extern "C" __global__ void __launch_bounds__(256) tranfs_item_gradients(Tranfs t, TranfsJoint joint) {
  const u32* input = t.current;
  if ((int)blockIdx.y >= step_of(input).episodes) return;
  const TranfsEpisode e = episode_of(t, input, blockIdx.y);
  const int lane = threadIdx.x & 31, chunk = blockIdx.x % t.chunks, start = chunk * CHUNK, columns = min(CHUNK, t.dim - start);
  const int in_episode = blockIdx.x / t.chunks * joint.item_rows, rows = min(joint.item_rows, e.items - in_episode);
  if (rows <= 0) return;
  const int first = e.first_item + in_episode, steps = (t.width + 15) >> 4;
  float *product = (float*)dynamic_shared, *x = product + joint.item_rows * TILE_PITCH;
  const float* d_projected = t.d_projected + (long)first * t.width;
  stage_rows(x, rows, t.width, [&](int row, int column) { return d_projected[(long)row * t.width + column]; });
  __syncthreads();
  multiply<true, true, false, 8>(x, pitch_of(t.width), rows, t.packed + joint.packed_down_t + (long)(start >> 3) * steps * 32,
                                 steps, t.width, columns, 0, product, TILE_PITCH);
  __syncthreads();
  const float scale = step_of(input).scale;
#pragma unroll 2
  for (int row = threadIdx.x >> 5; row < rows; row += 256 / 32) {
    const u32 label = input[t.labels_at + first + row];
    const int number = e.first_class + (int)(label & ~LABEL_FLAG);
    const bool is_clean = !(label & LABEL_FLAG);
    const float a = is_clean ? joint.mean_factors[number * 2] : 0.f, b = is_clean ? joint.mean_factors[number * 2 + 1] : 0.f;
    float* d_row = joint.d_features + (long)input[t.rows_at + first + row] * t.dim + start;
#pragma unroll
    for (int i = 0; i < CHUNK / 32; i++) {
      const int column = i * 32 + lane;
      if (column >= columns) break;
      const long at = (long)number * t.dim + start + column;
      float d = product[row * TILE_PITCH + column];
      if (is_clean) d += a * t.clean_means[at] - b * t.prototypes[at];
      d_row[column] = d * scale;
    }
  }
}

// The variants: grids, threads and shared memory are those of the kernels without _joint (tranfs_losses.cu,
// tranfs_update.cu).
extern "C" __global__ void __launch_bounds__(LOSS_THREADS) tranfs_losses_joint(Tranfs t, TranfsJoint joint) {
  prototype_losses<true, true>(t, joint);
}
extern "C" __global__ void __launch_bounds__(LOSS_THREADS) tranfs_losses_joint_large(Tranfs t, TranfsJoint joint) {
  prototype_losses<false, true>(t, joint);
}
extern "C" __global__ void __launch_bounds__(TASK_THREADS)
    tranfs_gradients_joint(Tranfs t, const GradientTask* tasks, float* gradients, double* squares, int first_task) {
  compute_gradients<true>(t, tasks, gradients, squares, first_task);
}
extern "C" __global__ void __launch_bounds__(256)
    tranfs_update_joint(Tranfs t, const UpdateTask* tasks, float* first_moments, float* second_moments, const float* gradients,
                        const double* squares, uint4* packed, HeadOptimiser options, TranfsBackbone backbone) {
  update_parameters_of<true>(t, tasks, first_moments, second_moments, gradients, squares, packed, options, backbone);
}
