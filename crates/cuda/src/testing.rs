//! What the tests of sessions share: the device that they run on, which is emulated, or GPU 0 with the feature `gpu-tests`.

use crate::Device;

/// The device of the tests.
#[cfg(feature = "gpu-tests")]
pub(crate) fn device() -> Device {
    Device::open(0).expect("these tests need a GPU")
}

/// The device of the tests.
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

/// Pseudo-random numbers in [0, 1).
pub(crate) fn random(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// |a - b| / |b|
pub(crate) fn relative_error(a: &[f32], b: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let difference = norm(&mut a.iter().zip(b).map(|(a, b)| f64::from(a - b)));
    difference / norm(&mut b.iter().map(|&b| f64::from(b))).max(1e-30)
}
