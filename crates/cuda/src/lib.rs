//! Training and embedding of trueshot's networks on NVIDIA GPUs.
//!
//! Start with [`Device::open`], which needs the NVIDIA driver and nothing else: the kernels are compiled ahead of time
//! and are part of this crate. Without a driver it returns [`Error::NoDriver`], and the caller uses the CPU.
//!
//! A backbone is a network that turns an image into a feature vector. A head turns the features of a support set, whose
//! labels may be wrong, into a classifier. Conv4, a small convolutional network, is the backbone of the paper that
//! trueshot follows (*Few-shot Learning with Noisy Labels*, Liang et al., CVPR 2022).
//!
//! - [`conv4::Conv4Training`] trains Conv4 on episodes with the loss of nearest prototypes.
//! - [`negmargin::NegMarginTraining`] trains Conv4 with a cosine softmax over all classes.
//! - [`maml::MamlTraining`] trains MAML: a Conv4 with a classifier that is adapted to several tasks at once.
//! - [`tranfs::TranfsTraining`] trains the head TraNFS on features that stay on the device, or together with a backbone
//!   ([`joint::JointTraining`]).
//! - [`relabel::RelabelTraining`] trains the head Relabel in the same two ways.
//! - [`conv4::Conv4Embedding`] and [`efficientnet::EfficientNetEmbedding`] embed images with a trained Conv4 and with
//!   EfficientNet-Lite0.
//!
//! Each of the training types is a session: it keeps parameters, activations, data and the state of the optimiser on
//! the device from step to step. All sessions follow one pattern. The host passes the inputs of several steps at a
//! time, which are copied to slots of a ring buffer on the device. Methods named `record...` start kernels without
//! waiting for them; [`Device::capture`] records them as a CUDA graph, and every step launches that graph. The
//! arguments of the kernels are fixed when the graph is recorded, so the number of the step cannot be one of them: the
//! device counts the finished steps, and the kernels compute the slot from that count.
//!
//! Terms of CUDA in this crate: a kernel is a function that the GPU runs in many threads. A launch starts it in a grid
//! of thread blocks. The GPU has many multiprocessors (132 in an H200), and each thread block runs on one of them. The
//! threads of a block can exchange values in shared memory, a fast memory of about 100 or 200 KiB; it is divided into
//! banks, and rows are padded so that threads access different banks at the same time. A warp is 32 threads of a block
//! that run together and execute matrix instructions together; its threads are called lanes. On Hopper GPUs there are
//! faster matrix instructions (`wgmma`). TF32 is the format that matrix instructions round f32 inputs to: the range of
//! f32 with 10 bits of mantissa; f16 is the 16-bit float of IEEE 754.
//!
//! Names: `d_x` or `dx` is the gradient of the loss with respect to `x`. `side` is the height and width of square
//! images or activations, in pixels. Shapes are in brackets, the outermost dimension first, for instance
//! `[image][row][column][channel]`.
//!
//! The kernels are in `kernels/*.cu`, one file per concept, with shapes and layouts at the top of each.

mod choice;
mod compiled_kernels;
pub mod conv4;
mod divider;
pub mod driver;
pub mod efficientnet;
mod error;
pub mod joint;
pub mod maml;
pub mod negmargin;
pub mod relabel;
#[cfg(all(test, any(feature = "emulator", feature = "gpu-tests")))]
mod testing;
pub mod tranfs;

pub use choice::{DeviceChoice, FoundGpu};
pub use divider::Divider;
pub use driver::Device;
pub use error::{Error, Result};
