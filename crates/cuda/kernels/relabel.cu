// All kernels of Relabel. A step on the main queue: relabel_gram, relabel_features, relabel_input, per layer relabel_attend
// and relabel_mix, relabel_losses, relabel_output_backward, per layer relabel_attend_backward_rows and
// relabel_attend_backward_columns, relabel_products of the first layer, relabel_update. On the side queue: relabel_edges beside
// relabel_input, relabel_products of the other layers beside the backward pass, and relabel_edges_backward beside the last of
// the others.
#pragma once
#include "relabel_edges.cu"
#include "relabel_layers.cu"
#include "relabel_losses.cu"
#include "relabel_optimiser.cu"
