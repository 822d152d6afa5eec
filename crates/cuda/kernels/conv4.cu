// All kernels: one compilation unit, so that one binary per GPU architecture holds them.
#include "augment.cu"
#include "batch_norm.cu"
#include "convolution.cu"
#include "filter_gradient.cu"
#include "first_block.cu"
#include "optimiser.cu"
#include "prototypes.cu"
#include "relabel.cu"
