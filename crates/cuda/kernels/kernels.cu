// All kernels: the file that nvcc compiles (build.py) and that the emulator includes (emulator/emulator.cpp). One
// compilation unit, so that one binary per GPU architecture holds them all. By model, in the order of the includes:
//   Conv4 with nearest prototypes  augment (images), first_block, convolution, batch_norm, filter_gradient, prototypes
//                                  (loss), optimiser
//   NegMargin                      negmargin, a loss for the same Conv4
//   MAML                           tasks (Conv4 for several tasks at once), maml, tangent (second derivatives)
//   TraNFS head                    attention, tranfs, tranfs_losses, tranfs_update, tranfs_joint; they include linear,
//                                  layer_norm and dropout
//   Relabel head                   relabel, which includes the other files that begin with relabel_
//   backbone and head together     joint
//   EfficientNet-Lite0             efficientnet_pointwise, which includes efficientnet
// Start with common.cuh, which says how activations are laid out.
#include "augment.cu"
#include "batch_norm.cu"
#include "convolution.cu"
#include "filter_gradient.cu"
#include "first_block.cu"
#include "optimiser.cu"
#include "prototypes.cu"
#include "negmargin.cu"
#include "tasks.cu"
#include "maml.cu"
#include "tangent.cu"
#include "attention.cu"
#include "tranfs.cu"
#include "tranfs_losses.cu"
#include "tranfs_update.cu"
#include "tranfs_joint.cu"
#include "relabel.cu"
#include "joint.cu"
#include "efficientnet_pointwise.cu"
