//! Which vector instructions the kernels use.
//!
//! The best set the processor has is found once, at run time. Sums are grouped by the width of a vector, so
//! results agree to the bit only within one set: `TRUESHOT_ISA` pins it where a mixed cluster must agree.

use std::sync::OnceLock;

use pulp::{Simd, WithSimd};

/// A set of vector instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// 16 lanes (x86-64-v4).
    Avx512,
    /// 8 lanes with fused multiply-add (x86-64-v3).
    Avx2,
    /// 8 lanes in plain arithmetic, for every processor.
    Portable,
}

/// `TRUESHOT_ISA` asks for what cannot be had.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusableIsa {
    asked: String,
}

impl std::fmt::Display for UnusableIsa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let usable: Vec<_> = Isa::ALL.into_iter().filter(|isa| isa.is_usable()).map(Isa::name).collect();
        write!(f, "TRUESHOT_ISA is '{}'; usable on this processor: {}", self.asked, usable.join(", "))
    }
}

impl std::error::Error for UnusableIsa {}

impl Isa {
    /// All sets, best first.
    pub const ALL: [Isa; 3] = [Isa::Avx512, Isa::Avx2, Isa::Portable];

    /// The name `TRUESHOT_ISA` knows it by.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Avx512 => "avx512",
            Isa::Avx2 => "avx2",
            Isa::Portable => "portable",
        }
    }

    /// Whether this processor has it.
    pub fn is_usable(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => pulp::x86::V4::is_available(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => pulp::x86::V3::is_available(),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx512 | Isa::Avx2 => false,
            Isa::Portable => true,
        }
    }

    /// The best set there is, or the one `TRUESHOT_ISA` names.
    pub fn from_environment() -> Result<Isa, UnusableIsa> {
        let best = || Isa::ALL.into_iter().find(|isa| isa.is_usable()).unwrap_or(Isa::Portable);
        match std::env::var("TRUESHOT_ISA") {
            Err(_) => Ok(best()),
            Ok(asked) => {
                let named = Isa::ALL.into_iter().find(|isa| isa.name() == asked);
                named.filter(|isa| isa.is_usable()).ok_or(UnusableIsa { asked })
            }
        }
    }

    /// The set in use, settled at first use. An unusable wish falls back to the portable set, which every
    /// machine shares; programs call [`Isa::from_environment`] at their start to refuse it instead.
    pub fn current() -> Isa {
        static CURRENT: OnceLock<Isa> = OnceLock::new();
        *CURRENT.get_or_init(|| Isa::from_environment().unwrap_or(Isa::Portable))
    }

    /// Runs a kernel with these instructions.
    #[inline]
    pub fn run<Kernel: WithSimd>(self, kernel: Kernel) -> Kernel::Output {
        #[cfg(target_arch = "x86_64")]
        {
            if let (Isa::Avx512, Some(simd)) = (self, pulp::x86::V4::try_new()) {
                return Simd::vectorize(simd, kernel);
            }
            if let (Isa::Avx2, Some(simd)) = (self, pulp::x86::V3::try_new()) {
                return Simd::vectorize(simd, kernel);
            }
        }
        Simd::vectorize(pulp::Scalar256b, kernel)
    }
}

/// `a b + c`, fused where there is an instruction for it. The portable set multiplies, then adds: its fused form would
/// be a function call for every number.
#[inline(always)]
pub(crate) fn multiply_add<S: Simd>(simd: S, a: S::f32s, b: S::f32s, c: S::f32s) -> S::f32s {
    if std::any::TypeId::of::<S>() == std::any::TypeId::of::<pulp::Scalar256b>() {
        simd.add_f32s(simd.mul_f32s(a, b), c)
    } else {
        simd.mul_add_e_f32s(a, b, c)
    }
}
