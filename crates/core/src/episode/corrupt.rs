//! Which items noise puts where. The sampler has checked that the level is possible.

use super::{Episode, Item};
use crate::noise::Noise;
use crate::rng::{IndexSampler, Rng};

/// Symmetric and paired draws that fail are started again; so many failures in a row mean that classes of
/// unequal size leave no way to satisfy the rules.
const ATTEMPTS: usize = 10_000;

/// For every class the items that fill its noisy places: row and true class.
pub(super) type Replaced = Vec<Vec<(u32, Option<u32>)>>;

/// The support set with those replacements made.
pub(super) fn support_set(episode: &Episode, replaced: &Replaced) -> Vec<Item> {
    let mut items = Vec::with_capacity(episode.classes.iter().map(|c| c.support.len()).sum());
    for (given, (draw, replaced)) in (0..).zip(episode.classes.iter().zip(replaced)) {
        let start = items.len();
        items.extend(draw.support.iter().map(|&row| Item { row, given, truth: Some(given) }));
        for (&place, &(row, truth)) in draw.noise_order.iter().zip(replaced) {
            items[start + place as usize] = Item { row, given, truth };
        }
    }
    items
}

pub(super) fn none(episode: &Episode) -> Option<Replaced> {
    Some(vec![Vec::new(); episode.classes.len()])
}

/// Classes take turns in random order; each draws from the pool items of other classes that are still there.
pub(super) fn symmetric(episode: &Episode, noise: Noise, rng: &mut Rng) -> Option<Replaced> {
    (0..ATTEMPTS).find_map(|_| symmetric_attempt(episode, noise, rng))
}

fn symmetric_attempt(episode: &Episode, noise: Noise, rng: &mut Rng) -> Option<Replaced> {
    let classes = &episode.classes;
    let mut turns: Vec<usize> = (0..classes.len()).collect();
    rng.shuffle(&mut turns);
    let mut taken = vec![0; classes.len()];
    let mut replaced = vec![Vec::new(); classes.len()];
    for class in turns {
        let noisy = noise.noisy_items(classes[class].support.len());
        // One more from the same source could tie with the right class.
        let mut open = vec![classes[class].support.len().saturating_sub(noisy + 1); classes.len()];
        open[class] = 0;
        for _ in 0..noisy {
            let left = |source: usize| match open[source] {
                0 => 0,
                _ => classes[source].pool.len() - taken[source],
            };
            let source = weighted_choice(rng, classes.len(), left)?;
            // Pools are in random order already, so the next item is as random as any.
            replaced[class].push((classes[source].pool[taken[source]], Some(source as u32)));
            taken[source] += 1;
            open[source] -= 1;
        }
    }
    Some(replaced)
}

/// A number below `n`, each as likely as its weight; `None` if all weights are 0.
fn weighted_choice(rng: &mut Rng, n: usize, weight: impl Fn(usize) -> usize) -> Option<usize> {
    let total: usize = (0..n).map(&weight).sum();
    let mut place = (total > 0).then(|| rng.below(total))?;
    (0..n).find(|&i| {
        let here = place < weight(i);
        place = place.saturating_sub(weight(i));
        here
    })
}

/// Every class gets the first pool items of one other class.
pub(super) fn paired(episode: &Episode, noise: Noise, rng: &mut Rng) -> Option<Replaced> {
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

/// Places are filled rank by rank from one random sequence, so that a higher level keeps a lower one's items.
pub(super) fn outlier(
    episode: &Episode,
    noise: Noise,
    rng: &mut Rng,
    pool_rows: usize,
    urn: &mut IndexSampler,
) -> Replaced {
    let noisy: Vec<usize> = episode.classes.iter().map(|c| noise.noisy_items(c.support.len())).collect();
    let drawn = urn.draw(rng, pool_rows, noisy.iter().sum());
    let mut sequence = drawn.into_iter();
    let mut replaced = vec![Vec::new(); noisy.len()];
    for rank in 0..noisy.iter().copied().max().unwrap_or(0) {
        for (class, _) in noisy.iter().enumerate().filter(|&(_, &n)| n > rank) {
            replaced[class].extend(sequence.next().map(|row| (row, None)));
        }
    }
    replaced
}
