//! Numbers only: the kernels, layers and models of trueshot (Conv4, EfficientNet-Lite0, MAML, TraNFS,
//! Relabel), and their optimiser.
//!
//! Slices in, slices out. No files, and no threads but those of the pool a call runs in (Conv4 in training; all
//! else works on the calling thread, and who has more hands each a part). Every tuned kernel stands beside a plain version that its tests hold it against.

pub mod adamw;
pub mod conv4;
#[cfg(test)]
mod differences;
pub mod efficientnet;
pub mod head;
pub mod initial;
pub mod isa;
mod kernel;
pub mod layers;
pub mod maml;
pub mod matmul;
pub mod memory;
pub mod parameters;
pub mod peak;
pub mod products;
pub mod real;
pub mod relabel;
pub mod schedule;
pub mod short;
pub mod softmax_regression;
pub mod tranfs;

pub use isa::Isa;
