//! Reproducible random numbers: [`Rng`] is a generator for one seed, [`Purpose`] and episode; [`IndexSampler`] draws
//! distinct indices.
//!
//! An episode is a small classification problem drawn from the data, with label noise; an experiment numbers its
//! episodes from 0. The key of a generator (ChaCha, a stream cipher) is the seed and the purpose, and its stream is the
//! number of the episode. So episode 7,000 can be drawn alone, on any machine, and adding a noise level or a method
//! changes no other random numbers. Work without episodes uses 0 or the number of its step instead. The sampling
//! algorithms are implemented here instead of in a dependency, so that no upgrade can change the results of a seed.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng};

/// The purpose of a random stream; each purpose has an independent stream. The discriminants are part of the key, so
/// they must not change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Classes and items of an episode.
    Items = 1,
    /// The number of shots of each class, if it varies.
    Shots = 2,
    /// The order in which the support items of a class become noisy.
    NoiseOrder = 3,
    /// Replacements of symmetric noise.
    Symmetric = 4,
    /// The derangement of paired noise: which class gives its items to which other class.
    Paired = 5,
    /// Replacements of outlier noise.
    Outlier = 6,
    /// Random decisions of a method that fits a support set: initial weights, tie breaking, class orders.
    Method = 7,
    /// The composition of a training episode: its data set, classes, shots and noise.
    Training = 8,
    /// Dropout masks.
    Dropout = 9,
    /// Initial parameters of a network that is trained.
    Parameters = 10,
    /// The choice among the augmented copies of an image.
    Copies = 11,
    /// Crops, flips and colour changes of an image.
    Augmentation = 12,
    /// Directions of a random projection.
    Projection = 13,
    /// The order in which the classes of an episode choose their replacements under similar noise.
    Similar = 14,
    /// Random decisions of a custom noise type; the `item` of [`Rng::for_item`] is its position among the custom types.
    LabelNoise = 15,
}

/// A random number generator (ChaCha8) for one seed, purpose and episode.
///
/// ```
/// use trueshot::rng::{Purpose, Rng};
///
/// let mut first = Rng::new(42, Purpose::Items, 7);
/// let mut again = Rng::new(42, Purpose::Items, 7);
/// assert_eq!(first.below(1000), again.below(1000));
/// ```
#[derive(Debug, Clone)]
pub struct Rng(ChaCha8Rng);

impl Rng {
    /// The generator for one purpose in one episode.
    pub fn new(seed: u64, purpose: Purpose, episode: u64) -> Self {
        Self::for_item(seed, purpose, 0, episode)
    }

    /// The generator for one purpose and one item (or one copy of an item) in one episode. Item 0 has the stream of
    /// [`Rng::new`].
    pub fn for_item(seed: u64, purpose: Purpose, item: u64, episode: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&(purpose as u64).to_le_bytes());
        key[16..24].copy_from_slice(&item.to_le_bytes());
        let mut rng = ChaCha8Rng::from_seed(key);
        rng.set_stream(episode);
        Rng(rng)
    }

    /// A uniformly random integer below `bound`.
    ///
    /// # Panics
    /// If `bound` is 0, or 2^32 or more.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = u32::try_from(bound).expect("the bound is below 2^32");
        assert!(bound > 0, "the bound is above 0");
        // A random 32-bit number times the bound: the upper half of the product is below the bound, and uniform if
        // products whose lower half is below 2^32 mod bound are drawn again (Lemire 2019). In 32 bits, `wrapping_neg`
        // is 2^32 - bound, which has the same remainder as 2^32.
        let over_represented = bound.wrapping_neg() % bound;
        loop {
            let product = u64::from(self.0.next_u32()) * u64::from(bound);
            if product as u32 >= over_represented {
                return (product >> 32) as usize;
            }
        }
    }

    /// A uniformly random `f32` in [0, 1), a multiple of 2^-24.
    pub fn uniform(&mut self) -> f32 {
        (self.0.next_u32() >> 8) as f32 / (1 << 24) as f32
    }

    /// A uniformly random `f64` in [0, 1), a multiple of 2^-53.
    pub fn fraction(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A uniformly random `u64`, for instance to seed another generator.
    pub fn number(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Shuffles a slice (Fisher-Yates): every order is equally likely.
    pub fn shuffle<T>(&mut self, slice: &mut [T]) {
        for index in 1..slice.len() {
            slice.swap(index, self.below(index + 1));
        }
    }

    /// A uniformly random derangement of `0..n`: a permutation without fixed points. Permutations are drawn until one
    /// has none, which takes about e (2.7) attempts on average.
    ///
    /// # Panics
    /// If `n` is 1, because one element has no derangement.
    pub fn derangement(&mut self, n: usize) -> Vec<usize> {
        assert_ne!(n, 1, "one element has no derangement");
        let mut order: Vec<usize> = (0..n).collect();
        loop {
            self.shuffle(&mut order);
            if order.iter().enumerate().all(|(index, &value)| index != value) {
                return order;
            }
        }
    }
}

/// Draws distinct indices below `n` in random order, in time proportional to the number of indices drawn (and to `n` in
/// the first draw with an `n` as large).
///
/// It is a partial Fisher-Yates shuffle on an identity permutation that is kept between draws: a draw swaps one entry
/// per index and swaps them back afterwards, so drawing from a million rows costs no more than drawing from a thousand.
/// With the same generator and `n`, a shorter draw is a prefix of a longer one.
///
/// ```
/// use trueshot::rng::{IndexSampler, Purpose, Rng};
///
/// let mut sampler = IndexSampler::default();
/// let long = sampler.draw(&mut Rng::new(0, Purpose::Items, 0), 1_000_000, 5);
/// let short = sampler.draw(&mut Rng::new(0, Purpose::Items, 0), 1_000_000, 3);
/// assert_eq!(short, long[..3]);
/// ```
#[derive(Debug, Default)]
pub struct IndexSampler {
    /// `identity[i] == i` between draws; grows to the largest `n` seen.
    identity: Vec<u32>,
    /// With which index each of the first indices was swapped in the current draw, to undo the swaps.
    swaps: Vec<u32>,
}

impl IndexSampler {
    /// Draws `count` distinct indices below `n`.
    ///
    /// # Panics
    /// If `count` is above `n`.
    pub fn draw(&mut self, rng: &mut Rng, n: usize, count: usize) -> Vec<u32> {
        assert!(count <= n, "{count} distinct indices below {n}");
        self.identity.extend(self.identity.len() as u32..n as u32);
        self.swaps.clear();
        for index in 0..count {
            let partner = index + rng.below(n - index);
            self.identity.swap(index, partner);
            self.swaps.push(partner as u32);
        }
        let drawn = self.identity[..count].to_vec();
        for (index, &partner) in self.swaps.iter().enumerate().rev() {
            self.identity.swap(index, partner as usize);
        }
        drawn
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_below_a_bound_are_uniform() {
        let mut rng = Rng::new(1, Purpose::Items, 0);
        let mut counts = [0; 7];
        (0..70_000).for_each(|_| counts[rng.below(7)] += 1);
        assert!(counts.iter().all(|&count| (9_600..10_400).contains(&count)), "{counts:?}");
    }

    #[test]
    fn seeds_purposes_and_episodes_give_different_numbers() {
        let first = |seed, purpose, episode| Rng::new(seed, purpose, episode).below(1 << 30);
        let reference = first(1, Purpose::Items, 0);
        assert_eq!(reference, first(1, Purpose::Items, 0));
        assert_ne!(reference, first(2, Purpose::Items, 0));
        assert_ne!(reference, first(1, Purpose::NoiseOrder, 0));
        assert_ne!(reference, first(1, Purpose::Items, 1));
    }

    #[test]
    fn the_numbers_of_a_seed_stay_the_same_in_every_version() {
        let mut rng = Rng::new(42, Purpose::Items, 3);
        let drawn: Vec<usize> = (0..6).map(|_| rng.below(1000)).collect();
        assert_eq!(drawn, PINNED, "a change makes published results irreproducible");
    }
    const PINNED: [usize; 6] = [290, 400, 667, 914, 309, 762];

    #[test]
    fn drawn_indices_are_distinct_and_do_not_depend_on_earlier_draws() {
        let mut sampler = IndexSampler::default();
        let draw = |sampler: &mut IndexSampler, n, count| {
            sampler.draw(&mut Rng::new(9, Purpose::Items, 5), n, count)
        };
        let long = draw(&mut sampler, 40, 40);
        let mut sorted = long.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..40).collect::<Vec<_>>());
        assert_eq!(draw(&mut sampler, 40, 40), long, "the first draw changed the sampler");
        assert_eq!(draw(&mut sampler, 40, 7), long[..7], "a shorter draw is a prefix");
        draw(&mut sampler, 1000, 3);
        assert_eq!(draw(&mut sampler, 40, 40), long, "a larger draw changed the sampler");
    }

    #[test]
    fn a_derangement_has_no_fixed_points() {
        let mut rng = Rng::new(3, Purpose::Paired, 0);
        for n in [2, 3, 5, 20] {
            let order = rng.derangement(n);
            assert!(order.iter().enumerate().all(|(index, &value)| index != value));
        }
    }
}
