//! The most multiply-adds a core can do, to hold the kernels against: nothing but independent ones in registers.

use pulp::{Simd, WithSimd};

use crate::isa::{Isa, multiply_add};

/// Rounds over all registers.
const ROUNDS: usize = 4_000_000;
/// Enough to hide the latency of a multiply-add, and not more than the smaller sets have registers for.
const CHAINS: usize = 12;

/// Keeps the calling thread's multiply-add units busy; says how many operations that was (two each).
pub fn busy(isa: Isa) -> u64 {
    isa.run(Busy)
}

struct Busy;

impl WithSimd for Busy {
    type Output = u64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> u64 {
        let opaque = |value: f32| std::hint::black_box(value);
        let (factor, added) = (simd.splat_f32s(opaque(0.999)), simd.splat_f32s(opaque(0.001)));
        let mut chains = [simd.splat_f32s(0.0); CHAINS];
        for (start, chain) in chains.iter_mut().enumerate() {
            *chain = simd.splat_f32s(opaque(start as f32));
        }
        for _ in 0..ROUNDS {
            for chain in &mut chains {
                *chain = multiply_add(simd, *chain, factor, added);
            }
        }
        for chain in chains {
            std::hint::black_box(simd.reduce_sum_f32s(chain));
        }
        (ROUNDS * CHAINS * S::F32_LANES * 2) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_instruction_set_does_as_many_operations_as_it_has_lanes() {
        assert_eq!(busy(Isa::Portable), (ROUNDS * CHAINS * 8 * 2) as u64);
    }
}
