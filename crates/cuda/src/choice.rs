//! The device that a user chooses ([`DeviceChoice`]): the CPU, a GPU, or whichever is available.

use std::fmt;
use std::str::FromStr;

use crate::driver::Device;
use crate::error::{Error, Result};

/// The value of an option `--device`.
///
/// ```
/// use trueshot_cuda::DeviceChoice;
///
/// assert_eq!("cuda:1".parse(), Ok(DeviceChoice::Cuda(1)));
/// assert_eq!("auto".parse(), Ok(DeviceChoice::Auto));
/// assert!("gpu".parse::<DeviceChoice>().is_err());
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeviceChoice {
    /// GPU 0 if there is one that can be used, else the CPU.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// The GPU with this number, counted from 0.
    Cuda(usize),
}

/// A GPU that can be used but is not opened yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FoundGpu {
    ordinal: usize,
    name: String,
}

impl FoundGpu {
    /// The name of the GPU, such as `NVIDIA H200`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Opens the GPU, which takes some tenths of a second.
    ///
    /// # Errors
    /// If the GPU cannot be used after all, for instance because its memory is full.
    pub fn open(&self) -> Result<Device> {
        Device::open(self.ordinal)
    }
}

impl DeviceChoice {
    /// Finds the device without opening it; `None` is the CPU. For [`DeviceChoice::Auto`] the second value says why no
    /// GPU is used.
    ///
    /// # Errors
    /// If a GPU is requested and cannot be used.
    pub fn find(self) -> Result<(Option<FoundGpu>, Option<Error>)> {
        let find = |ordinal| Device::name_of(ordinal).map(|name| FoundGpu { ordinal, name });
        self.choose(find)
    }

    /// Opens the device; `None` is the CPU. For [`DeviceChoice::Auto`] the second value says why no GPU is used.
    ///
    /// # Errors
    /// If a GPU is requested and cannot be used.
    pub fn open(self) -> Result<(Option<Device>, Option<Error>)> {
        self.choose(Device::open)
    }

    /// Makes the choice. `find_or_open` takes the number of a GPU.
    fn choose<T>(self, find_or_open: impl Fn(usize) -> Result<T>) -> Result<(Option<T>, Option<Error>)> {
        match self {
            DeviceChoice::Cpu => Ok((None, None)),
            DeviceChoice::Cuda(ordinal) => Ok((Some(find_or_open(ordinal)?), None)),
            DeviceChoice::Auto => match find_or_open(0) {
                Ok(found) => Ok((Some(found), None)),
                Err(reason) => Ok((None, Some(reason))),
            },
        }
    }
}

impl FromStr for DeviceChoice {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let unknown = || format!("'{text}' is not a device; allowed: auto, cpu, cuda, cuda:N");
        match text {
            "auto" => Ok(DeviceChoice::Auto),
            "cpu" => Ok(DeviceChoice::Cpu),
            "cuda" => Ok(DeviceChoice::Cuda(0)),
            _ => {
                let number = text.strip_prefix("cuda:").and_then(|number| number.parse().ok());
                number.map(DeviceChoice::Cuda).ok_or_else(unknown)
            }
        }
    }
}

impl fmt::Display for DeviceChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DeviceChoice::Auto => f.write_str("auto"),
            DeviceChoice::Cpu => f.write_str("cpu"),
            DeviceChoice::Cuda(ordinal) => write!(f, "cuda:{ordinal}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_choice_is_parsed_as_it_is_displayed_and_anything_else_is_refused() {
        for choice in [DeviceChoice::Auto, DeviceChoice::Cpu, DeviceChoice::Cuda(0), DeviceChoice::Cuda(7)] {
            assert_eq!(choice.to_string().parse(), Ok(choice));
        }
        for text in ["", "gpu", "cuda:", "cuda:x", "cuda:-1", "CPU"] {
            assert!(text.parse::<DeviceChoice>().unwrap_err().contains("allowed: auto, cpu, cuda, cuda:N"));
        }
    }

    #[test]
    fn without_a_driver_auto_is_the_cpu_and_a_gpu_that_was_asked_for_is_an_error() {
        if let Ok((None, reason)) = DeviceChoice::Auto.open() {
            assert!(reason.as_ref().unwrap().to_string().contains("CUDA"));
            assert!(DeviceChoice::Cuda(0).open().is_err());
            assert_eq!(DeviceChoice::Auto.find(), Ok((None, reason.clone())));
            assert_eq!(DeviceChoice::Cuda(0).find().err(), reason);
        }
    }
}
