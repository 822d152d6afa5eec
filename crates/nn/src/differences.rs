//! For tests: random numbers, and gradients by central differences.

/// A small generator (SplitMix64).
pub struct Numbers(u64);

impl Numbers {
    pub fn new(seed: u64) -> Self {
        Numbers(seed)
    }

    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// In [0, 1).
    pub fn uniform(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    pub fn below(&mut self, n: usize) -> usize {
        (self.uniform() * n as f64) as usize
    }

    /// In [-1, 1).
    pub fn doubles(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| 2.0 * self.uniform() - 1.0).collect()
    }

    /// In [-1, 1).
    pub fn singles(&mut self, count: usize) -> Vec<f32> {
        self.doubles(count).into_iter().map(|value| value as f32).collect()
    }
}

/// Holds a gradient against central differences of the loss it is the gradient of, number for number.
///
/// # Panics
/// If they differ by more than a share of 1e-5 of the largest of them.
pub fn check(what: &str, at: &[f64], gradient: &[f64], mut loss: impl FnMut(&[f64]) -> f64) {
    check_some(what, at, gradient, 0..at.len(), &mut loss);
}

/// The same for some of the numbers.
pub fn check_some(
    what: &str,
    at: &[f64],
    gradient: &[f64],
    places: impl Iterator<Item = usize>,
    mut loss: impl FnMut(&[f64]) -> f64,
) {
    const STEP: f64 = 1e-5;
    assert_eq!(at.len(), gradient.len(), "{what}");
    let mut moved = at.to_vec();
    let scale = gradient.iter().fold(1e-3f64, |largest, g| largest.max(g.abs()));
    for place in places {
        let mut at_offset = |offset: f64| {
            moved[place] = at[place] + offset;
            loss(&moved)
        };
        let expected = (at_offset(STEP) - at_offset(-STEP)) / (2.0 * STEP);
        moved[place] = at[place];
        let off = (gradient[place] - expected).abs();
        assert!(off <= 1e-5 * scale, "{what} [{place}]: {} instead of {expected}", gradient[place]);
    }
}
