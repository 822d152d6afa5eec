//! The option `--device`: where a command computes. Start with [`DeviceArgument::open`].

use clap::Args;
use trueshot::Error;
use trueshot_cuda::{Device, DeviceChoice, FoundGpu};

use crate::messages::{hinted, say};

/// The device to compute on.
#[derive(Args)]
pub struct DeviceArgument {
    /// Compute on cpu, cuda (the first NVIDIA GPU), cuda:N, or auto: a GPU if there is one, and if the work is large
    /// enough for it
    #[arg(long, default_value_t = DeviceChoice::Auto, value_name = "DEVICE")]
    device: DeviceChoice,
}

impl DeviceArgument {
    /// Opens the device; `None` is the CPU. The second value is the reason why `auto` chose the CPU.
    pub fn open(&self) -> anyhow::Result<(Option<Device>, Option<String>)> {
        open_device(self.device)
    }

    /// Finds the device without opening it; `None` is the CPU.
    pub fn find(&self) -> anyhow::Result<Option<FoundGpu>> {
        Ok(self.device.find().map_err(with_cpu_hint)?.0)
    }

    /// Fails early if the GPU that the user requires cannot be used.
    pub fn check(&self) -> anyhow::Result<()> {
        if self.is_auto() { Ok(()) } else { self.find().map(drop) }
    }

    /// Whether the device is `auto`, so that the CPU may be used instead of a GPU.
    pub fn is_auto(&self) -> bool {
        self.device == DeviceChoice::Auto
    }

    /// Makes what will be trained, with `on_gpu` if `device` is a GPU, otherwise with `on_cpu`. With `auto`, a failure
    /// of `on_gpu`, such as too little memory, falls back to the CPU; a later failure of the training is an error.
    pub fn set_up<T>(
        &self,
        device: Option<&Device>,
        on_gpu: impl FnOnce(&Device) -> trueshot_vision::Result<T>,
        on_cpu: impl FnOnce() -> trueshot_vision::Result<T>,
    ) -> trueshot_vision::Result<T> {
        let Some(device) = device else { return on_cpu() };
        match on_gpu(device) {
            Err(trueshot_vision::Error::Core(Error::Gpu { message, .. })) if self.is_auto() => {
                say!("training on the CPU instead ({message})");
                on_cpu()
            }
            outcome => outcome,
        }
    }

    /// Refuses `--device cuda` for work that only the CPU can do, with this error message.
    pub fn require_cpu(&self, message: &str) -> anyhow::Result<()> {
        match self.device {
            DeviceChoice::Cuda(_) => Err(hinted(message, "leave out --device, or use --device cpu")),
            _ => Ok(()),
        }
    }
}

/// Prints on which device the work runs that `doing` names, such as "training". `device` is the GPU; `None` is the CPU,
/// and `reason` is why `auto` chose it.
pub fn say_device(doing: &str, device: Option<&Device>, reason: Option<&str>) {
    match (device, reason) {
        (Some(device), _) => say!("{doing} on the GPU: {}", device.name()),
        (None, Some(reason)) => say!("{doing} on the CPU ({reason})"),
        (None, None) => say!("{doing} on the CPU"),
    }
}

/// Opens a device; `None` is the CPU. The second value is the reason why `auto` chose the CPU.
pub fn open_device(choice: DeviceChoice) -> anyhow::Result<(Option<Device>, Option<String>)> {
    let (device, reason) = choice.open().map_err(with_cpu_hint)?;
    Ok((device, reason.map(|reason| reason.to_string())))
}

/// Adds a hint to the error that a GPU cannot be used.
fn with_cpu_hint(error: trueshot_cuda::Error) -> anyhow::Error {
    hinted(error.to_string(), "use the CPU with --device cpu, or let --device auto choose")
}
