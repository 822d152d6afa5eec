//! Dropout whose mask is a hash of a seed and an index. Start with [`Dropout::apply`].
//!
//! The mask is never stored: the backward pass computes it again. The hash is a few integer operations that the
//! compiler vectorises, and an index always has the same mask, however the work is split. Training on a GPU uses the
//! same hash, so that it drops the same numbers.

use crate::kernel::kernel;
use crate::real::Real;

/// The rate and the seed of a mask.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    rate: f64,
    seed: u64,
}

impl Dropout {
    /// Drops each number with probability `rate`.
    ///
    /// # Panics
    /// If the rate is not in [0, 1).
    pub fn new(rate: f64, seed: u64) -> Self {
        assert!((0.0..1.0).contains(&rate), "the dropout rate is {rate}; allowed: 0 up to below 1");
        Dropout { rate, seed }
    }

    /// Drops nothing.
    pub const NONE: Dropout = Dropout { rate: 0.0, seed: 0 };

    /// Whether the rate is above 0.
    pub fn is_active(self) -> bool {
        self.rate > 0.0
    }

    /// Dropout at the same rate with an independent mask, for another place in the model that applies dropout. `site`
    /// is its number, which the model chooses.
    pub fn site(self, site: u64) -> Self {
        // The finaliser of SplitMix64.
        let z = self.seed ^ site.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Dropout { rate: self.rate, seed: z ^ (z >> 31) }
    }

    /// Sets the dropped numbers of `x` to 0, in place, and multiplies the others by `1 / (1 - rate)`, so that the mean
    /// stays the same. `start` is the index of `x[0]` in the mask. Applied to a gradient, this is its own backward
    /// pass.
    pub fn apply<T: Real>(self, start: usize, x: &mut [T]) {
        if self.is_active() {
            drop_in_place(self.mask(), start as u32, x);
        }
    }

    /// [`Dropout::apply`] from `x` into `y`.
    pub fn apply_into<T: Real>(self, start: usize, x: &[T], y: &mut [T]) {
        if self.is_active() {
            drop_into(self.mask(), start as u32, x, y);
        } else {
            y.copy_from_slice(x);
        }
    }

    /// The backward pass of dropout of positive numbers, from the output `y`, in place: a number is 0 only if it was
    /// dropped. Also the backward pass of dropout after a ReLU, whose gradient is 0 where its output is.
    pub fn backward_from_output<T: Real>(self, y: &[T], d: &mut [T]) {
        scale_where_positive(y, self.mask::<T>().scale, d);
    }

    /// The mask in the form that kernels use.
    #[inline(always)]
    fn mask<T: Real>(self) -> Mask<T> {
        Mask {
            low: self.seed as u32,
            high: (self.seed >> 32) as u32,
            threshold: (self.rate * (1u64 << 31) as f64) as u32,
            scale: T::from_f64(1.0 / (1.0 - self.rate)),
        }
    }
}

/// A mask in the form that kernels use.
#[derive(Clone, Copy)]
struct Mask<T> {
    /// Halves of the seed.
    low: u32,
    high: u32,
    /// Hashes of 31 bits below this are dropped.
    threshold: u32,
    /// `1 / (1 - rate)`
    scale: T,
}

impl<T: Real> Mask<T> {
    /// The factor of the number at an index: 0 or `scale`. The hash is `lowbias32` by Chris Wellons without its last
    /// step, which would only change low bits, with the halves of the seed mixed in. The index is first multiplied by
    /// 2^32 over the golden ratio, so that neighbouring indices differ in many bits.
    #[inline(always)]
    fn factor(self, index: u32) -> T {
        let x = index.wrapping_mul(0x9e37_79b9) ^ self.low;
        let x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d).wrapping_add(self.high);
        let x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
        // Compared as 31-bit integers, because vector comparisons are signed.
        let is_kept = (x >> 1) as i32 >= self.threshold as i32;
        if is_kept { self.scale } else { T::ZERO }
    }
}

kernel! {
    /// `x[i] *= factor(start + i)`
    fn drop_in_place<'a, T>(mask: Mask<T>, start: u32, x: &'a mut [T]) {
        for (i, x) in x.iter_mut().enumerate() {
            *x *= mask.factor(start.wrapping_add(i as u32));
        }
    }
}

kernel! {
    /// `y[i] = x[i] factor(start + i)`
    fn drop_into<'a, T>(mask: Mask<T>, start: u32, x: &'a [T], y: &'a mut [T]) {
        for (i, (y, &x)) in y.iter_mut().zip(x).enumerate() {
            *y = x * mask.factor(start.wrapping_add(i as u32));
        }
    }
}

kernel! {
    /// `d = scale d` where y is positive, and 0 elsewhere.
    fn scale_where_positive<'a, T>(y: &'a [T], scale: T, d: &'a mut [T]) {
        for (d, &y) in d.iter_mut().zip(y) {
            *d = if y > T::ZERO { *d * scale } else { T::ZERO };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::isa::Isa;

    #[test]
    fn the_dropped_fraction_is_the_rate_and_the_mean_stays() {
        for rate in [0.0, 0.1, 0.5, 0.9] {
            for seed in 0..5 {
                let mut x = vec![1.0f32; 100_000];
                Dropout::new(rate, 7).site(seed).apply(0, &mut x);
                let dropped = x.iter().filter(|&&x| x == 0.0).count() as f64 / x.len() as f64;
                let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / x.len() as f64;
                assert!((dropped - rate).abs() < 0.006, "{dropped} instead of {rate}");
                assert!((mean - 1.0).abs() < 0.03 || rate == 0.9, "mean {mean} at {rate}");
            }
        }
    }

    #[test]
    fn numbers_at_neighbouring_indices_and_other_sites_are_dropped_independently() {
        let dropout = Dropout::new(0.5, 3);
        let kept = |site: u64, i: u32| dropout.site(site).mask::<f64>().factor(i) > 0.0;
        for (site, distance) in [(0, 1), (0, 2), (0, 16), (0, 128), (1, 0), (2, 0)] {
            let same = (0..50_000).filter(|&i| kept(0, i) == kept(site, i + distance)).count();
            assert!((24_000..26_000).contains(&same), "site {site}, {distance} apart: {same}");
        }
    }

    #[test]
    fn any_split_drops_the_same_on_every_instruction_set_and_in_both_precisions() {
        let dropout = Dropout::new(0.3, 11);
        let mut wide = vec![1.0f64; 203];
        dropout.apply(40, &mut wide);
        for isa in Isa::usable() {
            isa.scope(|| {
                let mut parts = vec![1.0f32; 203];
                let (left, right) = parts.split_at_mut(77);
                dropout.apply(40, left);
                dropout.apply(117, right);
                let mut copy = vec![0.0; 203];
                dropout.apply_into(40, &[1.0f32; 203], &mut copy);
                assert_eq!(parts, copy);
                assert!(parts.iter().zip(&wide).all(|(&a, &b)| (a > 0.0) == (b > 0.0)));
            });
        }
    }
}
