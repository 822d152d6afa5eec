//! Errors of the GPU and its driver ([`Error`]), with the figures that a user needs to act.

/// An error of the GPU or its driver.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The NVIDIA driver is not installed.
    #[error("no CUDA device: the NVIDIA driver is not installed")]
    NoDriver,
    /// The driver is older than the compiled kernels.
    #[error(
        "the NVIDIA driver supports CUDA {found}, but trueshot needs CUDA {needed}: install a newer driver"
    )]
    OldDriver {
        /// The CUDA version of the driver.
        found: String,
        /// The lowest CUDA version that can run the kernels.
        needed: String,
    },
    /// There is a driver, but no GPU.
    #[error("no CUDA device: the NVIDIA driver is installed, but it finds no GPU")]
    NoDevice,
    /// There is no GPU with this number.
    #[error("no CUDA device {wanted}: this machine has {count}, numbered from 0")]
    NoSuchDevice {
        /// The number asked for.
        wanted: usize,
        /// The number of GPUs.
        count: usize,
    },
    /// The GPU is older than the oldest supported architecture.
    #[error("{name} has compute capability {found}, but trueshot needs 8.0 or newer (an Ampere GPU)")]
    Unsupported {
        /// The name of the GPU.
        name: String,
        /// Its compute capability.
        found: String,
    },
    /// The memory of the GPU does not suffice.
    #[error("out of GPU memory: {needed} MiB are needed and {free} MiB of {total} MiB are free")]
    OutOfMemory {
        /// MiB that an allocation needs.
        needed: usize,
        /// MiB that are free.
        free: usize,
        /// MiB of the GPU.
        total: usize,
    },
    /// A thread block needs more shared memory than the GPU has.
    #[error("{what} needs {needed} KiB of shared memory per thread block, but the GPU has {limit} KiB")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// KiB that a thread block needs.
        needed: usize,
        /// KiB that the GPU has.
        limit: usize,
    },
    /// A weight of a network is beyond the range of 16-bit floats.
    #[error("a weight of the network is {0}, which is beyond the range of 16-bit floats on the GPU (65504)")]
    WeightRange(String),
    /// The GPU stopped working during a run.
    #[error("the GPU stopped working: {0}")]
    Lost(String),
    /// Any other error of the driver.
    #[error("GPU error ({operation}): {message}")]
    Driver {
        /// What was being done.
        operation: &'static str,
        /// The error of the driver.
        message: String,
    },
}

/// A result with a GPU [`Error`].
pub type Result<T> = std::result::Result<T, Error>;
