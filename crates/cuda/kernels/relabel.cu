// All kernels of the Relabel head, in the order of a step (src/relabel.rs, `record_step`); relabel.cuh explains states,
// pairs and tiles. This file has those kernels that only call a function of another file for one episode or one tile;
// the other files have theirs beside the code.
//
// Main queue:
//   relabel_gram                                                   inner products of the features (relabel_edges.cu);
//                                                                  beside it, on the side queue, relabel_pack
//                                                                  (relabel_optimiser.cu)
//   relabel_features                                               features of pairs and states (relabel_edges.cu)
//   relabel_input                                                  edge network, input layer (relabel_edges.cu,
//                                                                  relabel_layers.cu)
//   relabel_attend, relabel_mix                                    per layer (relabel_layers.cu)
//   relabel_losses                                                 losses and gradients of the outputs
//                                                                  (relabel_losses.cu)
//   relabel_output_backward                                        backward pass of the output layer
//                                                                  (relabel_layers.cu)
//   relabel_attend_backward_rows, relabel_attend_backward_columns  per layer, from the last (relabel_layers.cu)
//   relabel_products                                               gradients of the weights (relabel_optimiser.cu);
//                                                                  beside it relabel_edges_backward (relabel_edges.cu)
//   relabel_collect                                                only if gradients are clipped (relabel_optimiser.cu)
//   relabel_update                                                 AdamW (relabel_optimiser.cu)
//
// Together with a backbone (src/relabel/joint.rs), relabel_joint_features and relabel_joint_losses replace
// relabel_features and relabel_losses, and relabel_joint_update replaces relabel_update; the gradient of the features
// is in relabel_joint.cu and relabel_feature_gradient.cu.
#pragma once
#include "relabel_edges.cu"
#include "relabel_feature_gradient.cu"
#include "relabel_joint.cu"
#include "relabel_layers.cu"
#include "relabel_losses.cu"
#include "relabel_optimiser.cu"

namespace relabel {

// One block per episode. Shared memory: see `features`; null: not together with a backbone.
PHASE_KERNEL relabel_features(Relabel r) {
  on_episode(r, [&](const u32* input, const Episode& e) { features<false>(r, input, e, nullptr); });
}
// One block per tile, like the next two. Shared memory of all kernels on tiles: SharedLayout.
PHASE_KERNEL relabel_input(Relabel r) {
  on_tile(r, [&](const Block& b) {
    edges(r, b);
    input(r, b);
  });
}
PHASE_KERNEL relabel_attend(Relabel r, int layer) {
  on_tile(r, [&](const Block& b) { attend(r, b, layer); });
}
PHASE_KERNEL relabel_mix(Relabel r, int layer) {
  on_tile(r, [&](const Block& b) { mix(r, b, layer); });
}
// One block per episode. Shared memory: LossMemory, if it fits.
PHASE_KERNEL relabel_losses(Relabel r) {
  on_episode(r, [&](const u32* input, const Episode& e) { losses<false>(r, input, e, blockIdx.x, nullptr); });
}
PHASE_KERNEL relabel_joint_features(Relabel r, Joint joint) {
  on_episode(r, [&](const u32* input, const Episode& e) { features<true>(r, input, e, &joint); });
}
PHASE_KERNEL relabel_joint_losses(Relabel r, Joint joint) {
  on_episode(r, [&](const u32* input, const Episode& e) {
    losses<true>(r, input, e, blockIdx.x, joint.of_losses + e.first_scratch);
  });
}
// One block per tile, like those below.
PHASE_KERNEL relabel_output_backward(Relabel r) {
  on_tile(r, [&](const Block& b) { output_backward(r, b); });
}
PHASE_KERNEL relabel_attend_backward_rows(Relabel r, int layer) {
  on_tile(r, [&](const Block& b) { attend_backward_rows(r, b, layer); });
}
PHASE_KERNEL relabel_attend_backward_columns(Relabel r, int layer) {
  on_tile(r, [&](const Block& b) { attend_backward_columns(r, b, layer); });
}

}  // namespace relabel
