//! Division by a number that the host knows, as one multiplication on the device (`Divider` in `kernels/common.cuh`).
//!
//! GPUs have no instruction for integer division. For numbers n below 2^31 and a divisor d from 2 to 2^16, with `bits =
//! ceil(log2(d))` and `m = ceil(2^(31 + bits) / d)`, the quotient n / d, rounded down, is `(n m) >> (31 + bits)`. m is
//! below 2^32, so a GPU computes this as the upper half of a product of 32-bit numbers, shifted by another bits - 1.

use bytemuck::{Pod, Zeroable};

/// The constants of a division of numbers below 2^31.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
pub struct Divider {
    divisor: u32,
    /// m; 0 for a divisor of 1, which the kernels treat separately.
    multiplier: u32,
    /// bits - 1, the shift of the upper half of the product.
    shift: u32,
}

impl Divider {
    /// Division by `divisor`.
    ///
    /// # Panics
    /// If it is zero or above 2^16.
    pub fn new(divisor: usize) -> Self {
        assert!((1..=1 << 16).contains(&divisor), "division by {divisor}");
        if divisor == 1 {
            return Divider { divisor: 1, multiplier: 0, shift: 0 };
        }
        let bits = usize::BITS - (divisor - 1).leading_zeros();
        let multiplier = (1u64 << (31 + bits)).div_ceil(divisor as u64);
        Divider { divisor: divisor as u32, multiplier: multiplier as u32, shift: bits - 1 }
    }

    /// The quotient `number / divisor`, as the device computes it.
    #[cfg(test)]
    fn divide(self, number: u32) -> u32 {
        match self.divisor {
            1 => number,
            _ => ((u64::from(number) * u64::from(self.multiplier)) >> 32) as u32 >> self.shift,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotients_are_exact_for_every_divisor_and_the_numbers_around_its_multiples() {
        for divisor in (1..=1100).chain([4096, 65_535, 65_536]) {
            let divider = Divider::new(divisor);
            let multiples = [1, 2, 3, 1000, (i32::MAX as usize) / divisor].map(|factor| factor * divisor);
            for number in
                multiples.into_iter().flat_map(|multiple| [multiple - 1, multiple]).chain([i32::MAX as usize])
            {
                assert_eq!(divider.divide(number as u32) as usize, number / divisor, "{number} / {divisor}");
            }
        }
    }
}
