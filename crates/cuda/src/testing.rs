//! Helpers of the tests of sessions. The device is emulated or, with the feature `gpu-tests`, GPU 0.

use crate::Device;

/// The device of the tests: GPU 0.
#[cfg(feature = "gpu-tests")]
pub(crate) fn device() -> Device {
    Device::open(0).expect("these tests need a GPU")
}

/// The device of the tests: the emulator, which rounds the inputs of products to TF32 (10 bits of mantissa) like a GPU.
#[cfg(not(feature = "gpu-tests"))]
pub(crate) fn device() -> Device {
    Device::emulated(false)
}

/// A device whose products do not round their inputs to TF32, as far as there is one: a GPU always rounds.
#[cfg(feature = "gpu-tests")]
pub(crate) fn exact_device() -> Device {
    device()
}

/// A device whose products do not round their inputs to TF32, as far as there is one: a GPU always rounds.
#[cfg(not(feature = "gpu-tests"))]
pub(crate) fn exact_device() -> Device {
    Device::emulated(true)
}

/// Pseudo-random numbers in [0, 1) by xorshift, the same on every machine.
pub(crate) fn random(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// |a - b| / |b|, the difference of two vectors relative to the length of the second.
pub(crate) fn relative_error(a: &[f32], b: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let difference = norm(&mut a.iter().zip(b).map(|(a, b)| f64::from(a - b)));
    difference / norm(&mut b.iter().map(|&b| f64::from(b))).max(1e-30)
}

/// A tolerance on [`exact_device`]; on a GPU, which rounds the inputs of products to TF32 (11 significant bits), at
/// least `tf32`.
pub(crate) fn tolerance(exact: f64, tf32: f64) -> f64 {
    if cfg!(feature = "gpu-tests") { exact.max(tf32) } else { exact }
}

/// Prints a hash of all bits of the results of a run, which `gpu-tests` compares between processes.
pub(crate) fn print_bits(name: &str, values: &[f32]) {
    // FNV-1a
    let add = |hash: u64, value: &f32| (hash ^ u64::from(value.to_bits())).wrapping_mul(0x0100_0000_01b3);
    println!("bits of {name}: {:016x}", values.iter().fold(0xcbf2_9ce4_8422_2325, add));
}

/// Compares ten steps of a device with those of the CPU: the loss of each step, and the change of all parameters.
pub(crate) fn assert_same_run(name: &str, gpu: &Run, cpu: &Run, loss_tolerance: f64, change_tolerance: f64) {
    assert_eq!((gpu.losses.len(), cpu.losses.len()), (10, 10), "{name}");
    for (step, (gpu, cpu)) in gpu.losses.iter().zip(&cpu.losses).enumerate() {
        let error = (gpu - cpu).abs() / cpu.abs().max(0.1);
        println!("{name}: loss of step {step} {gpu:.5}, CPU {cpu:.5}");
        assert!(error < loss_tolerance, "{name}: loss of step {step} is {gpu}, on the CPU {cpu}");
    }
    let error = relative_error(&gpu.change, &cpu.change);
    println!("{name}: change of the parameters differs by {error:.5}");
    assert!(error < change_tolerance, "{name}: the change of the parameters differs by {error}");
    assert!(
        cpu.losses[9] < 0.9 * cpu.losses[0],
        "{name}: the loss falls, so the steps matter: {:?}",
        cpu.losses
    );
}

/// The losses of the steps of a run, and the change of the parameters: those after the run minus those before.
pub(crate) struct Run {
    pub losses: Vec<f64>,
    pub change: Vec<f32>,
}

impl Run {
    pub fn new(losses: Vec<f64>, before: &[f32], after: &[f32]) -> Self {
        Run { losses, change: after.iter().zip(before).map(|(after, before)| after - before).collect() }
    }
}
