//! Dropout whose choices are a function of a seed and a place.
//!
//! What is dropped is never stored: the backward pass asks again. The hash is a few integer operations that
//! turn into vector instructions; place i of a site gets the same answer however the work is split.

use crate::isa::Isa;
use crate::kernel::kernel;
use crate::real::Real;

/// Which numbers to drop.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Dropout {
    rate: f64,
    seed: u64,
}

impl Dropout {
    /// Drops a share of `rate`.
    ///
    /// # Panics
    /// If the rate is not in [0, 1).
    pub fn new(rate: f64, seed: u64) -> Self {
        assert!((0.0..1.0).contains(&rate), "a dropout rate of {rate}");
        Dropout { rate, seed }
    }

    /// Drops nothing.
    pub const NONE: Dropout = Dropout { rate: 0.0, seed: 0 };

    /// Whether it drops anything.
    pub fn is_on(self) -> bool {
        self.rate > 0.0
    }

    /// The same for another place in the model, with choices of its own.
    pub fn site(self, site: u64) -> Self {
        // SplitMix64's finaliser.
        let z = self.seed ^ site.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Dropout { rate: self.rate, seed: z ^ (z >> 31) }
    }

    /// Drops from numbers whose first is at `place` of the site, in place; those kept grow by 1 / (1 - rate).
    /// The gradient goes the same way back.
    pub fn apply<T: Real>(self, isa: Isa, place: usize, x: &mut [T]) {
        if self.is_on() {
            drop_in_place(isa, self.choice(), place as u32, x);
        }
    }

    /// The same into another slice.
    pub fn copy<T: Real>(self, isa: Isa, place: usize, x: &[T], y: &mut [T]) {
        if self.is_on() {
            drop_into(isa, self.choice(), place as u32, x, y);
        } else {
            y.copy_from_slice(x);
        }
    }

    /// The gradient through dropout of numbers none of which was below 0, in place, and of a ReLU in front of it:
    /// where `y` is 0 now, it was dropped or the ReLU had cut it off.
    pub fn backward_positive<T: Real>(self, isa: Isa, y: &[T], d: &mut [T]) {
        pass_positive(isa, y, self.choice::<T>().growth, d);
    }

    /// What a kernel needs to choose.
    #[inline(always)]
    fn choice<T: Real>(self) -> Choice<T> {
        Choice {
            low: self.seed as u32,
            high: (self.seed >> 32) as u32,
            threshold: (self.rate * (1u64 << 31) as f64) as u32,
            growth: T::from_f64(1.0 / (1.0 - self.rate)),
        }
    }
}

#[derive(Clone, Copy)]
struct Choice<T> {
    low: u32,
    high: u32,
    threshold: u32,
    growth: T,
}

impl<T: Real> Choice<T> {
    /// What the number at a place is multiplied with.
    #[inline(always)]
    fn factor(self, place: u32) -> T {
        let x = place.wrapping_mul(0x9e37_79b9) ^ self.low;
        let x = (x ^ (x >> 16)).wrapping_mul(0x7feb_352d).wrapping_add(self.high);
        let x = (x ^ (x >> 15)).wrapping_mul(0x846c_a68b);
        // Compared as numbers of 31 bits, since vector comparisons are signed.
        let kept = (x >> 1) as i32 >= self.threshold as i32;
        if kept { self.growth } else { T::ZERO }
    }
}

kernel! {
    fn drop_in_place<'a, T>(choice: Choice<T>, place: u32, x: &'a mut [T]) {
        for (i, x) in x.iter_mut().enumerate() {
            *x *= choice.factor(place.wrapping_add(i as u32));
        }
    }
}

kernel! {
    fn drop_into<'a, T>(choice: Choice<T>, place: u32, x: &'a [T], y: &'a mut [T]) {
        for (i, (y, &x)) in y.iter_mut().zip(x).enumerate() {
            *y = x * choice.factor(place.wrapping_add(i as u32));
        }
    }
}

kernel! {
    fn pass_positive<'a, T>(y: &'a [T], growth: T, d: &'a mut [T]) {
        for (d, &y) in d.iter_mut().zip(y) {
            *d = if y > T::ZERO { *d * growth } else { T::ZERO };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_right_share_is_dropped_and_the_mean_stays() {
        for rate in [0.0, 0.1, 0.5, 0.9] {
            for seed in 0..5 {
                let mut x = vec![1.0f32; 100_000];
                Dropout::new(rate, 7).site(seed).apply(Isa::current(), 0, &mut x);
                let dropped = x.iter().filter(|&&x| x == 0.0).count() as f64 / x.len() as f64;
                let mean = x.iter().map(|&x| f64::from(x)).sum::<f64>() / x.len() as f64;
                assert!((dropped - rate).abs() < 0.006, "{dropped} instead of {rate}");
                assert!((mean - 1.0).abs() < 0.03 || rate == 0.9, "mean {mean} at {rate}");
            }
        }
    }

    #[test]
    fn neighbours_and_sites_are_dropped_independently() {
        let dropout = Dropout::new(0.5, 3);
        let kept = |site: u64, i: u32| dropout.site(site).choice::<f64>().factor(i) > 0.0;
        for (site, distance) in [(0, 1), (0, 2), (0, 16), (0, 128), (1, 0), (2, 0)] {
            let same = (0..50_000).filter(|&i| kept(0, i) == kept(site, i + distance)).count();
            assert!((24_000..26_000).contains(&same), "site {site}, {distance} apart: {same}");
        }
    }

    #[test]
    fn any_split_drops_the_same_on_every_instruction_set_and_in_both_precisions() {
        let dropout = Dropout::new(0.3, 11);
        let mut wide = vec![1.0f64; 203];
        dropout.apply(Isa::Portable, 40, &mut wide);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_usable()) {
            let mut parts = vec![1.0f32; 203];
            let (left, right) = parts.split_at_mut(77);
            dropout.apply(isa, 40, left);
            dropout.apply(isa, 117, right);
            let mut copy = vec![0.0; 203];
            dropout.copy(isa, 40, &[1.0f32; 203], &mut copy);
            assert_eq!(parts, copy);
            assert!(parts.iter().zip(&wide).all(|(&a, &b)| (a > 0.0) == (b > 0.0)));
        }
    }
}
