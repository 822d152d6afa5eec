//! The vector instruction set that kernels run with ([`Isa`]).
//!
//! A kernel is a type that implements `pulp::WithSimd`: its method `with_simd` is generic over the instruction set, and
//! [`run`] calls the version for the current one. Lanes are the numbers of a vector.
//!
//! The best set that the processor has is found once per process, at run time. A kernel asks for [`Isa::current`] when
//! it is called, so the set is not an argument of every function. Tests choose another set for a block of code with
//! [`Isa::scope`], which costs one thread-local read per kernel call. A scope applies to the calling thread only: code
//! that starts work on other threads inside a scope enters it again there, as `for_each_in_parallel` and
//! [`crate::adamw::AdamW::chunks`] do.
//!
//! Sums are grouped by the width of a vector, so results agree to the bit only within one set. `TRUESHOT_ISA` pins the
//! set of a process where a mixed cluster must agree.

use std::cell::Cell;
use std::sync::OnceLock;

use pulp::{Simd, WithSimd};
use rayon::iter::ParallelIterator;

/// A set of vector instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// x86-64-v4: 16 lanes of `f32`, 32 registers.
    Avx512,
    /// x86-64-v3: 8 lanes of `f32`, 16 registers, fused multiply-add.
    Avx2,
    /// NEON of 64-bit ARM: 4 lanes of `f32`, 32 registers, fused multiply-add.
    Neon,
    /// Plain arithmetic in groups of 8 `f32`, for every processor.
    Portable,
}

thread_local! {
    /// The set of the innermost [`Isa::scope`] on this thread.
    static SCOPED: Cell<Option<Isa>> = const { Cell::new(None) };
}

/// `TRUESHOT_ISA` names an instruction set that does not exist or that this processor does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusableIsa {
    requested: String,
}

impl std::fmt::Display for UnusableIsa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let usable: Vec<_> = Isa::usable().map(Isa::name).collect();
        write!(f, "TRUESHOT_ISA is '{}'; usable on this processor: {}", self.requested, usable.join(", "))
    }
}

impl std::error::Error for UnusableIsa {}

impl Isa {
    /// All sets, best first.
    pub const ALL: [Isa; 4] = [Isa::Avx512, Isa::Avx2, Isa::Neon, Isa::Portable];

    /// The name of the set in `TRUESHOT_ISA` and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Avx512 => "avx512",
            Isa::Avx2 => "avx2",
            Isa::Neon => "neon",
            Isa::Portable => "portable",
        }
    }

    /// Whether this processor has the set.
    pub fn is_usable(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => pulp::x86::V4::is_available(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => pulp::x86::V3::is_available(),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx512 | Isa::Avx2 => false,
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => pulp::aarch64::Neon::is_available(),
            #[cfg(not(target_arch = "aarch64"))]
            Isa::Neon => false,
            Isa::Portable => true,
        }
    }

    /// The sets this processor has, best first.
    pub fn usable() -> impl Iterator<Item = Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_usable())
    }

    /// The set that `TRUESHOT_ISA` names, or the best one if the variable is not set.
    ///
    /// # Errors
    /// If the variable names a set that is unknown or that this processor does not have.
    pub fn from_environment() -> Result<Isa, UnusableIsa> {
        match std::env::var("TRUESHOT_ISA") {
            Err(_) => Ok(Isa::usable().next().unwrap_or(Isa::Portable)),
            Ok(requested) => {
                let named = Isa::usable().find(|isa| isa.name() == requested);
                named.ok_or(UnusableIsa { requested })
            }
        }
    }

    /// The set that kernels called from here run with: that of the innermost [`scope`](Self::scope) on this thread,
    /// otherwise that of the process.
    ///
    /// The set of the process is decided at first use by [`Isa::from_environment`]. If that fails it is the portable
    /// set, which every machine has; programs call `from_environment` when they start and report the error instead.
    #[inline]
    pub fn current() -> Isa {
        static PROCESS: OnceLock<Isa> = OnceLock::new();
        SCOPED
            .get()
            .unwrap_or_else(|| *PROCESS.get_or_init(|| Isa::from_environment().unwrap_or(Isa::Portable)))
    }

    /// Runs `job` with this set as the current one of this thread.
    ///
    /// ```
    /// use trueshot_nn::{Isa, products::squared_norm};
    ///
    /// let row = [3.0, 4.0];
    /// for isa in Isa::usable() {
    ///     assert_eq!(isa.scope(|| squared_norm(&row)), 25.0);
    /// }
    /// ```
    ///
    /// # Panics
    /// If this processor does not have the set.
    pub fn scope<R>(self, job: impl FnOnce() -> R) -> R {
        struct Restore(Option<Isa>);
        impl Drop for Restore {
            fn drop(&mut self) {
                SCOPED.set(self.0);
            }
        }
        assert!(self.is_usable(), "this processor does not have the instruction set '{}'", self.name());
        let _restore = Restore(SCOPED.replace(Some(self)));
        job()
    }

    /// Runs a kernel with this set.
    #[inline]
    pub(crate) fn run<Kernel: WithSimd>(self, kernel: Kernel) -> Kernel::Output {
        #[cfg(target_arch = "x86_64")]
        {
            if let (Isa::Avx512, Some(simd)) = (self, pulp::x86::V4::try_new()) {
                return Simd::vectorize(simd, kernel);
            }
            if let (Isa::Avx2, Some(simd)) = (self, pulp::x86::V3::try_new()) {
                return Simd::vectorize(simd, kernel);
            }
        }
        #[cfg(target_arch = "aarch64")]
        if let (Isa::Neon, Some(simd)) = (self, pulp::aarch64::Neon::try_new()) {
            return Simd::vectorize(simd, kernel);
        }
        Simd::vectorize(pulp::Scalar256b, kernel)
    }
}

/// Runs a kernel with the current instruction set.
#[inline]
pub fn run<Kernel: WithSimd>(kernel: Kernel) -> Kernel::Output {
    Isa::current().run(kernel)
}

/// Runs `job` for every item on the threads of the current rayon pool, each time with the caller's instruction set.
pub(crate) fn for_each_in_parallel<I: ParallelIterator>(items: I, job: impl Fn(I::Item) + Send + Sync) {
    let isa = Isa::current();
    items.for_each(|item| isa.scope(|| job(item)));
}

/// `a b + c`, fused if the set has an instruction for it. The portable set (`pulp::Scalar256b`) multiplies and then
/// adds, because there a fused multiply-add would be a function call per number.
#[inline(always)]
pub(crate) fn multiply_add<S: Simd>(simd: S, a: S::f32s, b: S::f32s, c: S::f32s) -> S::f32s {
    if std::any::TypeId::of::<S>() == std::any::TypeId::of::<pulp::Scalar256b>() {
        simd.add_f32s(simd.mul_f32s(a, b), c)
    } else {
        simd.mul_add_e_f32s(a, b, c)
    }
}

/// The larger of `a` and `b`; `b` where `a` is NaN, so that ReLU maps NaN to 0 on every set.
///
/// The maximum of NEON is NaN where either number is NaN, so with NEON the numbers are compared and selected.
#[inline(always)]
pub(crate) fn max<S: Simd>(simd: S, a: S::f32s, b: S::f32s) -> S::f32s {
    #[cfg(target_arch = "aarch64")]
    if std::any::TypeId::of::<S>() == std::any::TypeId::of::<pulp::aarch64::Neon>() {
        return simd.select_f32s(simd.greater_than_f32s(a, b), a, b);
    }
    simd.max_f32s(a, b)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rayon::prelude::*;

    #[test]
    fn a_scope_restores_the_outer_set_even_after_a_panic() {
        let outside = Isa::current();
        for isa in Isa::usable() {
            isa.scope(|| {
                assert_eq!(Isa::current(), isa);
                Isa::Portable.scope(|| assert_eq!(Isa::current(), Isa::Portable));
                assert_eq!(Isa::current(), isa);
                std::panic::catch_unwind(|| Isa::Portable.scope(|| panic!("expected"))).unwrap_err();
                assert_eq!(Isa::current(), isa);
            });
            assert_eq!(Isa::current(), outside);
        }
    }

    #[test]
    fn parallel_sections_run_with_the_instruction_set_of_their_caller() {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(4).build().unwrap();
        for isa in Isa::usable() {
            let mut seen = vec![None; 100];
            pool.install(|| {
                isa.scope(|| for_each_in_parallel(seen.par_iter_mut(), |seen| *seen = Some(Isa::current())));
            });
            assert!(seen.iter().all(|seen| *seen == Some(isa)), "{isa:?}");
        }
    }

    /// The number of `f32` lanes that a kernel is compiled for.
    struct Lanes;

    impl WithSimd for Lanes {
        type Output = usize;

        fn with_simd<S: Simd>(self, _: S) -> usize {
            S::F32_LANES
        }
    }

    #[test]
    fn a_kernel_runs_with_the_vectors_of_the_set_it_is_scoped_to() {
        for isa in Isa::usable() {
            let lanes = match isa {
                Isa::Avx512 => 16,
                Isa::Avx2 | Isa::Portable => 8,
                Isa::Neon => 4,
            };
            assert_eq!(isa.scope(|| run(Lanes)), lanes, "{isa:?}");
        }
    }

    /// The mean over the lanes of the maximum of two numbers.
    struct Max(f32, f32);

    impl WithSimd for Max {
        type Output = f32;

        fn with_simd<S: Simd>(self, simd: S) -> f32 {
            let lanes = max(simd, simd.splat_f32s(self.0), simd.splat_f32s(self.1));
            simd.reduce_sum_f32s(lanes) / S::F32_LANES as f32
        }
    }

    #[test]
    fn the_maximum_of_nan_and_zero_is_zero_on_every_set() {
        for isa in Isa::usable() {
            assert_eq!(isa.scope(|| run(Max(f32::NAN, 0.0))), 0.0, "{isa:?}");
            assert_eq!(isa.scope(|| run(Max(3.0, 0.0))), 3.0, "{isa:?}");
            assert_eq!(isa.scope(|| run(Max(-3.0, 0.0))), 0.0, "{isa:?}");
            assert_eq!(isa.scope(|| run(Max(f32::NEG_INFINITY, -2.0))), -2.0, "{isa:?}");
        }
    }

    #[test]
    fn only_one_family_of_sets_is_usable_and_the_portable_set_always_is() {
        let names: Vec<_> = Isa::usable().map(Isa::name).collect();
        assert_eq!(names.last(), Some(&"portable"));
        assert_eq!(Isa::Neon.is_usable(), cfg!(target_arch = "aarch64"));
        if cfg!(not(target_arch = "x86_64")) {
            assert!(!Isa::Avx512.is_usable() && !Isa::Avx2.is_usable(), "{names:?}");
        }
    }
}
