// All kernels of Relabel. A step on the main queue: relabel_gram, relabel_features, relabel_input, per layer relabel_attend
// and relabel_mix, relabel_losses, relabel_output_backward, per layer relabel_attend_backward_rows and
// relabel_attend_backward_columns, relabel_products, relabel_update. On the side queue: relabel_pack beside relabel_gram, and
// relabel_edges_backward beside relabel_products.
#pragma once
#include "relabel_edges.cu"
#include "relabel_layers.cu"
#include "relabel_losses.cu"
#include "relabel_optimiser.cu"

namespace relabel {

#define PHASE_KERNEL extern "C" __global__ void __launch_bounds__(RELABEL_THREADS, 1)

// Runs a phase on one episode per block, or on one tile per block.
template <class Phase> DEVICE void on_episode(const Relabel& r, Phase phase) {
  const u32* input = slot(r);
  if (blockIdx.x < ((const Header*)input)->episodes) phase(input, episode(r, blockIdx.x));
}
template <class Phase> DEVICE void on_tile(const Relabel& r, Phase phase) {
  Block b;
  if (open_tile(r, slot(r), blockIdx.x, b)) phase(b);
}

PHASE_KERNEL relabel_features(Relabel r) {
  on_episode(r, [&](const u32* input, const Episode& e) { features(r, input, e); });
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
  on_episode(r, [&](const u32* input, const Episode& e) { losses(r, input, e, blockIdx.x); });
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
