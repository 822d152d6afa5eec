//! Limits of the worker process on memory and processor time, enforced by the operating system. The worker makes
//! [`ProcessLimits`] when it starts, and [applies](ProcessLimits::apply) them to itself before it loads the model and
//! whenever another image arrives.

use std::io;

/// How much memory and processor time the worker process may take.
pub struct ProcessLimits {
    /// Bytes that do not depend on the number of images: the program, the model, its stack.
    fixed: u64,
    /// Bytes for each thread that embeds.
    memory: u64,
    /// Processor seconds for each image.
    seconds: u64,
}

impl ProcessLimits {
    /// Limits for a worker whose model and stack take `model_bytes`; `memory` and `seconds` as in
    /// [`ModelProcess`](super::ModelProcess). Also makes this process the first that the system kills if memory runs
    /// out in spite of the limit.
    pub fn new(model_bytes: u64, memory: u64, seconds: u64) -> Self {
        let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
        ProcessLimits { fixed: model_bytes.saturating_add(data_bytes_in_use()), memory, seconds }
    }
}

#[cfg(unix)]
impl ProcessLimits {
    /// Sets the limits for a number of threads and the number of images they are processing. Processor time counts from
    /// now on, so an image that takes too long is stopped only when no other image has arrived for as long.
    pub fn apply(&self, threads: usize, images: usize) -> io::Result<()> {
        use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
        // Only the soft limit is set: a hard limit that was lowered could not be raised for the next image.
        let set = |resource, wanted: u64| {
            let maximum = getrlimit(resource).maximum;
            let current = Some(maximum.map_or(wanted, |maximum| maximum.min(wanted)));
            setrlimit(resource, Rlimit { current, maximum }).map_err(io::Error::from)
        };
        let memory = self.memory.saturating_mul(threads as u64).saturating_add(self.fixed);
        set(Resource::Data, memory)?;
        let seconds = self.seconds.saturating_mul(images as u64).saturating_add(processor_seconds());
        set(Resource::Cpu, seconds)?;
        // A process that exceeds a limit should not write a core dump.
        set(Resource::Core, 0)
    }
}

/// The processor seconds that this process has taken, rounded up.
#[cfg(unix)]
fn processor_seconds() -> u64 {
    use rustix::time::{ClockId, clock_gettime};
    clock_gettime(ClockId::ProcessCPUTime).tv_sec.unsigned_abs() + 1
}

#[cfg(not(unix))]
impl ProcessLimits {
    /// Sets nothing: only Unix has such limits.
    pub fn apply(&self, _threads: usize, _images: usize) -> io::Result<()> {
        let _ = (self.fixed, self.memory, self.seconds);
        Ok(())
    }
}

/// Bytes of memory in use, as the limit counts them; 0 if unknown.
fn data_bytes_in_use() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:"));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}
