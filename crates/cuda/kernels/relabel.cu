// All kernels of Relabel. A step on the main queue: relabel_gram, relabel_features, relabel_input, per layer relabel_attend
// and relabel_mix, relabel_losses, relabel_output_backward, per layer relabel_attend_backward_rows and
// relabel_attend_backward_columns, relabel_products, relabel_update. On the side queue: relabel_pack beside relabel_gram, and
// relabel_edges_backward beside relabel_products.
//
// Together with a backbone, relabel_joint_features and relabel_joint_losses replace relabel_features and relabel_losses, and
// relabel_joint_update replaces relabel_update; the gradient of the features is in relabel_joint.cu and
// relabel_feature_gradient.cu.
#pragma once
#include "relabel_edges.cu"
#include "relabel_feature_gradient.cu"
#include "relabel_joint.cu"
#include "relabel_layers.cu"
#include "relabel_losses.cu"
#include "relabel_optimiser.cu"

namespace relabel {

PHASE_KERNEL relabel_features(Relabel r) {
  on_episode(r, [&](const u32* input, const Episode& e) { features<false>(r, input, e, nullptr); });
}
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
