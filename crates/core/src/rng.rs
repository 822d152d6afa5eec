//! Randomness that can be entered anywhere.
//!
//! A generator is keyed by the seed and by what it is for, and its stream is the episode's number. So episode
//! 7,000 can be drawn alone, on any machine, and asking for another noise level or another method changes
//! nothing else. Sampling of indices is ours, so that no upgrade of a crate can change an experiment.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng as _, SeedableRng};

/// What random numbers are for. Each purpose has numbers of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// Classes and items of an episode.
    Items = 1,
    /// The number of shots of each class, where it varies.
    Shots = 2,
    /// The order in which a class's places become noisy.
    Places = 3,
    /// Replacements of symmetric noise.
    Symmetric = 4,
    /// The derangement of paired noise.
    Paired = 5,
    /// Replacements of outlier noise.
    Outlier = 6,
    /// Whatever a method needs: initial weights, broken ties.
    Method = 7,
    /// What a training episode is like: its data, classes, shots and noise.
    Training = 8,
    /// What dropout drops.
    Dropout = 9,
    /// A model's parameters before training.
    Parameters = 10,
    /// Which of an image's copies stands for it.
    Copies = 11,
    /// How a picture is cropped, flipped and coloured.
    Augmentation = 12,
}

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub struct Rng(ChaCha8Rng);

impl Rng {
    /// The numbers of one purpose in one episode.
    pub fn new(seed: u64, purpose: Purpose, episode: u64) -> Self {
        Self::of_item(seed, purpose, 0, episode)
    }

    /// The numbers of one purpose for one item in one episode (or for one of its copies).
    pub fn of_item(seed: u64, purpose: Purpose, item: u64, episode: u64) -> Self {
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        key[8..16].copy_from_slice(&(purpose as u64).to_le_bytes());
        key[16..24].copy_from_slice(&item.to_le_bytes());
        let mut rng = ChaCha8Rng::from_seed(key);
        rng.set_stream(episode);
        Rng(rng)
    }

    /// A number from 0 to `bound - 1`, each equally likely.
    ///
    /// # Panics
    /// If `bound` is 0.
    pub fn below(&mut self, bound: usize) -> usize {
        let bound = u32::try_from(bound).expect("no set has 2^32 members");
        assert!(bound > 0, "nothing to choose from");
        // The upper half of a product is uniform once the few low halves that are over-represented are
        // drawn again (Lemire 2019).
        let over_represented = bound.wrapping_neg() % bound;
        loop {
            let product = u64::from(self.0.next_u32()) * u64::from(bound);
            if product as u32 >= over_represented {
                return (product >> 32) as usize;
            }
        }
    }

    /// A number in [0, 1), in steps of 2^-24.
    pub fn uniform(&mut self) -> f32 {
        (self.0.next_u32() >> 8) as f32 / (1 << 24) as f32
    }

    /// A number in [0, 1), in steps of 2^-53.
    pub fn fraction(&mut self) -> f64 {
        (self.0.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }

    /// Any number, each equally likely: to seed what has random numbers of its own.
    pub fn number(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Puts a slice into random order.
    pub fn shuffle<T>(&mut self, slice: &mut [T]) {
        for place in 1..slice.len() {
            slice.swap(place, self.below(place + 1));
        }
    }

    /// A uniformly random rearrangement of `0..n` that leaves nothing in its place.
    ///
    /// # Panics
    /// If `n` is 1: a lone class has no other.
    pub fn derangement(&mut self, n: usize) -> Vec<usize> {
        assert_ne!(n, 1, "a lone class cannot be exchanged");
        let mut order: Vec<usize> = (0..n).collect();
        loop {
            self.shuffle(&mut order);
            if order.iter().enumerate().all(|(place, &value)| place != value) {
                return order;
            }
        }
    }
}

/// Draws distinct numbers below `n` in random order, without ever touching all of them.
///
/// The identity permutation is kept between draws: a draw swaps as many entries as it takes numbers and swaps
/// them back, so it costs the same from a thousand rows as from a million. A shorter draw with the same
/// numbers is a prefix of a longer one.
#[derive(Debug, Default)]
pub struct IndexSampler {
    identity: Vec<u32>,
    swaps: Vec<u32>,
}

impl IndexSampler {
    /// Draws `count` distinct numbers below `n`.
    ///
    /// # Panics
    /// If `count` is above `n`.
    pub fn draw(&mut self, rng: &mut Rng, n: usize, count: usize) -> Vec<u32> {
        assert!(count <= n, "{count} distinct numbers below {n}");
        self.identity.extend(self.identity.len() as u32..n as u32);
        self.swaps.clear();
        for place in 0..count {
            let other = place + rng.below(n - place);
            self.identity.swap(place, other);
            self.swaps.push(other as u32);
        }
        let drawn = self.identity[..count].to_vec();
        for (place, &other) in self.swaps.iter().enumerate().rev() {
            self.identity.swap(place, other as usize);
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
        assert_ne!(reference, first(1, Purpose::Places, 0));
        assert_ne!(reference, first(1, Purpose::Items, 1));
    }

    #[test]
    fn the_numbers_of_an_experiment_never_change() {
        let mut rng = Rng::new(42, Purpose::Items, 3);
        let drawn: Vec<usize> = (0..6).map(|_| rng.below(1000)).collect();
        assert_eq!(drawn, PINNED, "changing these makes every published seed worthless");
    }
    const PINNED: [usize; 6] = [290, 400, 667, 914, 309, 762];

    #[test]
    fn an_urn_gives_distinct_numbers_and_is_as_new_afterwards() {
        let mut urn = IndexSampler::default();
        let draw = |urn: &mut IndexSampler, n, count| urn.draw(&mut Rng::new(9, Purpose::Items, 5), n, count);
        let long = draw(&mut urn, 40, 40);
        let mut sorted = long.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..40).collect::<Vec<_>>());
        assert_eq!(draw(&mut urn, 40, 40), long, "the first draw left a trace");
        assert_eq!(draw(&mut urn, 40, 7), long[..7], "a shorter draw is a prefix");
        draw(&mut urn, 1000, 3);
        assert_eq!(draw(&mut urn, 40, 40), long, "a larger draw left a trace");
    }

    #[test]
    fn a_derangement_moves_everything() {
        let mut rng = Rng::new(3, Purpose::Paired, 0);
        for n in [2, 3, 5, 20] {
            let order = rng.derangement(n);
            assert!(order.iter().enumerate().all(|(place, &value)| place != value));
        }
    }
}
