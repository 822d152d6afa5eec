//! Training and embedding of trueshot's networks on NVIDIA GPUs.
//!
//! Start with [`Device::open`], which needs the NVIDIA driver and nothing else: the kernels are compiled ahead of time
//! and are part of this crate. Without a driver it returns [`Error::NoDriver`], and the caller uses the CPU.
//!
//! - [`conv4::Conv4Training`] trains the backbone of the paper, a small convolutional network: one step is one CUDA
//!   graph, and parameters, images and the state of the optimiser stay on the device.
//! - [`negmargin::NegMarginTraining`] trains the same network with a cosine softmax over all classes.
//! - [`maml::MamlTraining`] trains MAML: a Conv4 with a classifier that is adapted to several tasks at once.
//! - [`tranfs::TranfsTraining`] trains the head TraNFS on features that stay on the device, or together with a backbone
//!   ([`joint::JointTraining`]). A head turns the features of a support set, whose labels may be wrong, into a
//!   classifier.
//! - [`relabel::RelabelTraining`] trains the head Relabel in the same two ways.
//! - [`efficientnet::EfficientNetEmbedding`] embeds photographs with EfficientNet-Lite0.
//!
//! The sessions follow one pattern. The host passes the inputs of several steps at a time, which are copied to slots of
//! a ring buffer on the device. Methods named `record...` start kernels without waiting for them; [`Device::capture`]
//! records them once as a CUDA graph, and every step launches that graph. The device counts the steps itself and finds
//! the slot from that.
//!
//! The kernels are in `kernels/*.cu`, one file per concept, with shapes and layouts at the top of each.

mod choice;
pub mod conv4;
mod divider;
pub mod driver;
pub mod efficientnet;
mod error;
mod images;
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
