//! Test helpers: a random number generator, and gradient checks by central differences.

/// A small random number generator (SplitMix64, Steele et al., 2014).
pub struct TestRng(u64);

impl TestRng {
    pub fn new(seed: u64) -> Self {
        TestRng(seed)
    }

    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in [0, 1).
    pub fn uniform(&mut self) -> f64 {
        // 53 random bits, the precision of an f64.
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// An integer in [0, n).
    pub fn below(&mut self, n: usize) -> usize {
        (self.uniform() * n as f64) as usize
    }

    /// `count` numbers in [-1, 1).
    pub fn f64s(&mut self, count: usize) -> Vec<f64> {
        (0..count).map(|_| 2.0 * self.uniform() - 1.0).collect()
    }

    /// `count` numbers in [-1, 1).
    pub fn f32s(&mut self, count: usize) -> Vec<f32> {
        self.f64s(count).into_iter().map(|value| value as f32).collect()
    }
}

/// Compares every element of a gradient with the central difference of its loss.
///
/// # Panics
/// If an element is off by more than 1e-5 of the largest element, or of 1e-3 if that is larger. `what` names the
/// gradient in the message.
pub fn check_gradient(what: &str, point: &[f64], gradient: &[f64], mut loss: impl FnMut(&[f64]) -> f64) {
    check_gradient_at(what, point, gradient, 0..point.len(), &mut loss);
}

/// Compares every element of a gradient with the central difference of its loss.
///
/// # Panics
/// If an element is off by more than `tolerance` times the largest element, or times 1e-3 if that is larger.
pub fn check_gradient_within(
    tolerance: f64,
    what: &str,
    point: &[f64],
    gradient: &[f64],
    loss: impl FnMut(&[f64]) -> f64,
) {
    compare(tolerance, what, point, gradient, 0..point.len(), loss);
}

/// Compares the elements of a gradient at `indices`, see [`check_gradient`].
pub fn check_gradient_at(
    what: &str,
    point: &[f64],
    gradient: &[f64],
    indices: impl Iterator<Item = usize>,
    loss: impl FnMut(&[f64]) -> f64,
) {
    compare(1e-5, what, point, gradient, indices, loss);
}

/// Compares the elements of `gradient`, which is that of `loss` at `point`, at these indices. A gradient smaller
/// than 1e-3 is compared as if its largest element were 1e-3: differences of the loss are not more precise.
fn compare(
    tolerance: f64,
    what: &str,
    point: &[f64],
    gradient: &[f64],
    indices: impl Iterator<Item = usize>,
    mut loss: impl FnMut(&[f64]) -> f64,
) {
    const STEP: f64 = 1e-5;
    assert_eq!(point.len(), gradient.len(), "{what}");
    let mut moved = point.to_vec();
    let scale = gradient.iter().fold(1e-3f64, |largest, g| largest.max(g.abs()));
    for index in indices {
        let mut loss_at_offset = |offset: f64| {
            moved[index] = point[index] + offset;
            loss(&moved)
        };
        let expected = (loss_at_offset(STEP) - loss_at_offset(-STEP)) / (2.0 * STEP);
        moved[index] = point[index];
        let error = (gradient[index] - expected).abs();
        assert!(error <= tolerance * scale, "{what} [{index}]: {} instead of {expected}", gradient[index]);
    }
}
