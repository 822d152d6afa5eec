//! The peak arithmetic rate of a core, which `trueshot bench` compares kernels with: independent multiply-adds in
//! registers, without any access to memory. Start with [`busy`].

use pulp::{Simd, WithSimd};

use crate::isa::{self, multiply_add};

/// Length of a chain, a sequence in which every multiply-add needs the result of the one before. All chains together
/// take about ten milliseconds.
const ROUNDS: usize = 4_000_000;
/// Independent chains: enough to hide the latency of a multiply-add, and no more than the 16 registers of AVX2 hold.
const CHAINS: usize = 12;

/// Keeps the multiply-add units of the calling thread's core busy for a fixed amount of work. Returns the number of
/// floating-point operations, two per multiply-add and lane; the caller measures the time.
pub fn busy() -> u64 {
    isa::run(MultiplyAdds)
}

struct MultiplyAdds;

impl WithSimd for MultiplyAdds {
    type Output = u64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> u64 {
        // The compiler must neither know the operands nor drop the results, or it would remove the work. The values of
        // a chain approach 1 (x = 0.999 x + 0.001), so they are never subnormal numbers, which would be slow.
        let opaque = |value: f32| std::hint::black_box(value);
        let (factor, added) = (simd.splat_f32s(opaque(0.999)), simd.splat_f32s(opaque(0.001)));
        let mut chains = [simd.splat_f32s(0.0); CHAINS];
        for (index, chain) in chains.iter_mut().enumerate() {
            *chain = simd.splat_f32s(opaque(index as f32));
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
    use crate::isa::Isa;

    #[test]
    fn the_operations_are_counted_per_lane() {
        assert_eq!(Isa::Portable.scope(busy), (ROUNDS * CHAINS * 8 * 2) as u64);
    }
}
