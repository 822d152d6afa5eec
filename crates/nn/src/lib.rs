//! Numbers only: the kernels of trueshot.
//!
//! Slices in, slices out. No files, no threads, no episodes: whoever calls decides what the numbers mean and
//! how the work is spread. Every tuned kernel stands beside a plain version that its tests hold it against.

pub mod adamw;
pub mod conv4;
#[cfg(test)]
mod differences;
pub mod head;
pub mod initial;
pub mod isa;
mod kernel;
pub mod layers;
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
