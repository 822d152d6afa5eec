//! Numbers only: the kernels of trueshot.
//!
//! Slices in, slices out. No files, no threads, no episodes: whoever calls decides what the numbers mean and
//! how the work is spread. Every tuned kernel stands beside a plain version that its tests hold it against.

pub mod conv4;
pub mod head;
pub mod isa;
pub mod memory;
pub mod parameters;
pub mod products;
pub mod short;
pub mod softmax_regression;

pub use isa::Isa;
