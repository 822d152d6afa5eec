//! What the tests on the emulated device share.

use std::ops::Deref;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::Device;

/// The emulated device, which one test uses at a time.
pub struct EmulatedDevice {
    device: Device,
    _turn: MutexGuard<'static, ()>,
}

impl Deref for EmulatedDevice {
    type Target = Device;

    fn deref(&self) -> &Device {
        &self.device
    }
}

/// The emulator, compiled once per test run.
pub fn device() -> EmulatedDevice {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let library = LIBRARY.get_or_init(|| {
        let sources = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("emulator");
        let library = std::env::temp_dir().join(format!("trueshot-emulator-{}.so", std::process::id()));
        let status = Command::new("c++")
            .args(["-O1", "-std=c++17", "-shared", "-fPIC", "-Wno-unknown-pragmas", "-o"])
            .arg(&library)
            .arg(sources.join("emulator.cpp"))
            .status()
            .expect("a C++ compiler is installed");
        assert!(status.success(), "the emulator does not compile");
        library
    });
    EmulatedDevice { device: Device::emulated(library), _turn }
}

/// Pseudo-random numbers in [0, 1).
pub fn random(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 53) as f64
    }
}

/// |a - b| / |b|
pub fn relative_error(a: &[f32], b: &[f32]) -> f64 {
    let norm = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>().sqrt();
    let difference = norm(&mut a.iter().zip(b).map(|(a, b)| f64::from(a - b)));
    difference / norm(&mut b.iter().map(|&b| f64::from(b))).max(1e-30)
}
