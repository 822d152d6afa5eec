//! Label noise in support sets: [`symmetric`], [`paired`] and [`outlier`] choose the items that replace clean ones, and
//! [`support_set`] applies the replacements.
//!
//! The sampler has already checked that the level is possible for the shape of the episodes.

use super::{Episode, Item};
use crate::noise::Noise;
use crate::rng::{IndexSampler, Rng};

/// Number of times that a failed draw of symmetric or paired noise is repeated. If all fail, classes of unequal size
/// leave no valid draw.
const ATTEMPTS: usize = 10_000;

/// For every class the items that replace its noisy ones, as (row, true class), in the order of
/// [`ClassDraw::noise_order`](super::ClassDraw::noise_order).
pub(super) type Replacements = Vec<Vec<(u32, Option<u32>)>>;

/// The support set of an episode with the replacements applied.
pub(super) fn support_set(episode: &Episode, replacements: &Replacements) -> Vec<Item> {
    let mut items = Vec::with_capacity(episode.classes.iter().map(|c| c.support.len()).sum());
    for (given, (draw, replacements)) in (0..).zip(episode.classes.iter().zip(replacements)) {
        let start = items.len();
        items.extend(draw.support.iter().map(|&row| Item { row, given, truth: Some(given) }));
        for (&index, &(row, truth)) in draw.noise_order.iter().zip(replacements) {
            items[start + index as usize] = Item { row, given, truth };
        }
    }
    items
}

/// No replacements, for the level 0.
pub(super) fn none(episode: &Episode) -> Option<Replacements> {
    Some(vec![Vec::new(); episode.classes.len()])
}

/// Symmetric noise: the classes, in random order, draw their wrong items uniformly from the unused pool items of all
/// other classes. `None` if no attempt succeeds.
pub(super) fn symmetric(episode: &Episode, noise: Noise, rng: &mut Rng) -> Option<Replacements> {
    (0..ATTEMPTS).find_map(|_| symmetric_attempt(episode, noise, rng))
}

fn symmetric_attempt(episode: &Episode, noise: Noise, rng: &mut Rng) -> Option<Replacements> {
    let classes = &episode.classes;
    let mut order: Vec<usize> = (0..classes.len()).collect();
    rng.shuffle(&mut order);
    // Number of pool items used so far, by source class.
    let mut used = vec![0; classes.len()];
    let mut replacements = vec![Vec::new(); classes.len()];
    for class in order {
        let noisy = noise.noisy_items(classes[class].support.len());
        // How many more items may come from each source class: all clean items but one, so that no wrong class is as
        // frequent as the right one.
        let mut allowed = vec![classes[class].support.len().saturating_sub(noisy + 1); classes.len()];
        allowed[class] = 0;
        for _ in 0..noisy {
            let available = |source: usize| match allowed[source] {
                0 => 0,
                _ => classes[source].pool.len() - used[source],
            };
            let source = weighted_choice(rng, classes.len(), available)?;
            // Pools are already in random order, so the next item is a uniformly random one.
            replacements[class].push((classes[source].pool[used[source]], Some(source as u32)));
            used[source] += 1;
            allowed[source] -= 1;
        }
    }
    Some(replacements)
}

/// A random index below `n` with probability proportional to its weight; `None` if all weights are 0.
fn weighted_choice(rng: &mut Rng, n: usize, weight: impl Fn(usize) -> usize) -> Option<usize> {
    let total: usize = (0..n).map(&weight).sum();
    let mut remaining = (total > 0).then(|| rng.below(total))?;
    (0..n).find(|&i| {
        let is_chosen = remaining < weight(i);
        remaining = remaining.saturating_sub(weight(i));
        is_chosen
    })
}

/// Paired noise: every class gets the first pool items of one other class, chosen by a random derangement. `None` if no
/// attempt finds source classes with enough items.
pub(super) fn paired(episode: &Episode, noise: Noise, rng: &mut Rng) -> Option<Replacements> {
    let classes = &episode.classes;
    let noisy: Vec<usize> = classes.iter().map(|c| noise.noisy_items(c.support.len())).collect();
    let source = (0..ATTEMPTS).find_map(|_| {
        let source = rng.derangement(classes.len());
        source.iter().zip(&noisy).all(|(&s, &n)| classes[s].pool.len() >= n).then_some(source)
    })?;
    let take = |(&source, &n): (&usize, &usize)| {
        classes[source].pool[..n].iter().map(|&row| (row, Some(source as u32))).collect()
    };
    Some(source.iter().zip(&noisy).map(take).collect())
}

/// Outlier noise: the wrong items are distinct random rows of an outlier pool of `pool_rows` rows.
///
/// One random sequence is dealt to the classes in turns, first one item per class, then a second one and so on, so that a
/// higher level keeps the items of a lower one.
pub(super) fn outlier(
    episode: &Episode,
    noise: Noise,
    rng: &mut Rng,
    pool_rows: usize,
    index_sampler: &mut IndexSampler,
) -> Replacements {
    let noisy: Vec<usize> = episode.classes.iter().map(|c| noise.noisy_items(c.support.len())).collect();
    let drawn = index_sampler.draw(rng, pool_rows, noisy.iter().sum());
    let mut sequence = drawn.into_iter();
    let mut replacements = vec![Vec::new(); noisy.len()];
    for round in 0..noisy.iter().copied().max().unwrap_or(0) {
        for (class, _) in noisy.iter().enumerate().filter(|&(_, &n)| n > round) {
            replacements[class].extend(sequence.next().map(|row| (row, None)));
        }
    }
    replacements
}
