//! Label noise in support sets (the labelled items of an episode): [`symmetric`], [`paired`], [`similar`] and
//! [`outlier`] choose the items that replace clean ones, and [`support_set`] applies the replacements. [`relabelled`]
//! applies a custom noise type.
//!
//! The sampler calls these functions for one noise setting of one episode, after it has checked that the level is
//! possible for the shape of the episodes. An episode has drawn more items of each class than its support set contains:
//! its pool ([`ClassDraw::pool`](super::ClassDraw::pool)). A wrong item under one label comes from the pool of another
//! class, so that no item is used twice. Classes are numbered by their position in the episode.
//!
//! A noise level is a share of the items of a class; [`Noise::noisy_items`] is the number of items to replace.

use super::{Episode, EpisodeData, Item};
use crate::embeddings::Features;
use crate::noise::{Noise, NoisyLabels};
use crate::rng::{IndexSampler, Rng};

/// The maximum number of attempts to draw symmetric or paired noise. If all fail, classes of unequal size leave no
/// valid draw, and the noise is reported as impossible.
const ATTEMPTS: usize = 10_000;

/// For every class the items that replace its noisy ones, as (row, true class); the true class is `None` for an
/// outlier. The n-th replaces the n-th item in [`ClassDraw::noise_order`](super::ClassDraw::noise_order).
pub(super) type Replacements = Vec<Vec<(u32, Option<u32>)>>;

/// The support set of an episode with the replacements applied, class after class.
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

/// No replacements, for the clean support set.
pub(super) fn no_replacements(episode: &Episode) -> Replacements {
    vec![Vec::new(); episode.classes.len()]
}

/// Symmetric noise: the classes, in random order, draw their wrong items uniformly from the unused pool items of all
/// other classes. `None` if no attempt succeeds.
pub(super) fn symmetric(episode: &Episode, noise: Noise, rng: &mut Rng) -> Option<Replacements> {
    (0..ATTEMPTS).find_map(|_| symmetric_attempt(episode, noise, rng))
}

/// One draw of symmetric noise; `None` if a class finds no item that it may take.
fn symmetric_attempt(episode: &Episode, noise: Noise, rng: &mut Rng) -> Option<Replacements> {
    let classes = &episode.classes;
    let order = class_order(classes.len(), rng);
    // Number of pool items used so far, by source class.
    let mut used = vec![0; classes.len()];
    let mut replacements = vec![Vec::new(); classes.len()];
    for class in order {
        let noisy = noise.noisy_items(classes[class].support.len());
        // How many more items may come from each source class: one fewer than the clean items of this class, so that no
        // wrong class is as frequent as the right one.
        let mut allowed = vec![classes[class].support.len().saturating_sub(noisy + 1); classes.len()];
        allowed[class] = 0;
        for _ in 0..noisy {
            // Every pool item that may still be taken is equally likely.
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

/// The classes in random order.
fn class_order(classes: usize, rng: &mut Rng) -> Vec<usize> {
    let mut order: Vec<usize> = (0..classes).collect();
    rng.shuffle(&mut order);
    order
}

/// How many random orders of the classes similar noise tries before it falls back to symmetric noise.
const SIMILAR_ATTEMPTS: usize = 100;

/// Similar noise: the classes, in random order, take in turns the unused pool item of another class that is nearest to
/// the mean of their clean items. As under symmetric noise, no wrong class may become as frequent as the right one.
///
/// If no order leaves every class enough items, which only happens close to the largest possible level, the items are
/// those of symmetric noise.
pub(super) fn similar(
    episode: &Episode,
    noise: Noise,
    rng: &mut Rng,
    features: &Features,
) -> Option<Replacements> {
    let candidates = nearest_pool_items(episode, features);
    (0..SIMILAR_ATTEMPTS)
        .find_map(|_| similar_attempt(episode, noise, rng, &candidates))
        .or_else(|| symmetric(episode, noise, rng))
}

/// One draw of similar noise with the classes in a random order; `None` if a class finds no item that it may take.
/// `candidates` are the result of [`nearest_pool_items`].
fn similar_attempt(
    episode: &Episode,
    noise: Noise,
    rng: &mut Rng,
    candidates: &[Vec<(usize, u32)>],
) -> Option<Replacements> {
    let classes = &episode.classes;
    let order = class_order(classes.len(), rng);
    let noisy: Vec<usize> = classes.iter().map(|draw| noise.noisy_items(draw.support.len())).collect();
    let mut used = std::collections::HashSet::new();
    let mut replacements: Vec<Vec<(u32, Option<u32>)>> = vec![Vec::new(); classes.len()];
    // In each round, every class that needs more than `round` items takes one.
    for round in 0..noisy.iter().copied().max().unwrap_or(0) {
        for &class in order.iter().filter(|&&class| noisy[class] > round) {
            // As in `symmetric_attempt`: one fewer than the clean items of this class.
            let allowed = classes[class].support.len().saturating_sub(noisy[class] + 1);
            let taken = &replacements[class];
            let is_free = |&&(source, row): &&(usize, u32)| {
                let from_source = taken.iter().filter(|(_, truth)| *truth == Some(source as u32)).count();
                from_source < allowed && !used.contains(&row)
            };
            let &(source, row) = candidates[class].iter().find(is_free)?;
            used.insert(row);
            replacements[class].push((row, Some(source as u32)));
        }
    }
    Some(replacements)
}

/// For every class the pool items of all other classes as (source class, row), ordered by their distance from the mean
/// of the clean support items of the class, the nearest first.
fn nearest_pool_items(episode: &Episode, features: &Features) -> Vec<Vec<(usize, u32)>> {
    let classes = &episode.classes;
    let pools: Vec<(usize, u32)> = classes
        .iter()
        .enumerate()
        .flat_map(|(source, draw)| draw.pool.iter().map(move |&row| (source, row)))
        .collect();
    let rows: Vec<_> = pools.iter().map(|&(_, row)| features.row(row as usize)).collect();
    let nearest_to = |class: usize| {
        // The mean of the clean support items.
        let mut mean = vec![0.0; features.dim()];
        for &row in &classes[class].support {
            let row = features.row(row as usize);
            mean.iter_mut().zip(row.iter()).for_each(|(sum, value)| *sum += value);
        }
        let scale = 1.0 / classes[class].support.len() as f32;
        mean.iter_mut().for_each(|value| *value *= scale);
        // The pool items of other classes by distance; equally distant ones by class and row, so that the order is
        // unique.
        let others = pools.iter().zip(&rows).filter(|((source, _), _)| *source != class);
        let mut others: Vec<(f32, (usize, u32))> =
            others.map(|(&item, row)| (squared_distance(&mean, row), item)).collect();
        others.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        others.into_iter().map(|(_, item)| item).collect()
    };
    (0..classes.len()).map(nearest_to).collect()
}

/// The squared Euclidean distance. The 16 partial sums fix the order of the additions, so the result is the same with
/// vector instructions of any width.
fn squared_distance(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut sums = [0.0f32; LANES];
    for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += (a - b) * (a - b);
        }
    }
    sums.iter().sum()
}

/// The support set under a custom noise type, grouped by given label. `labels` is what the noise type returned for the
/// clean support set, and `Err` says what is not allowed in it: labels that are not classes of the episode, outliers of
/// classes of the episode, or a class without items.
pub(super) fn relabelled(
    episode: &Episode,
    labels: &NoisyLabels,
    data: &EpisodeData<'_>,
) -> Result<Vec<Item>, String> {
    // The clean support set.
    let mut items = support_set(episode, &no_replacements(episode));
    let (ways, count) = (episode.classes.len(), items.len());
    if labels.given.len() != count {
        return Err(format!("{} given labels for {count} items", labels.given.len()));
    }
    if let Some(label) = labels.given.iter().find(|&&label| label as usize >= ways) {
        return Err(format!(
            "the given label {label} is not a class of the episode; allowed: 0 to {}",
            ways - 1
        ));
    }
    // The given labels. The items stay in the order of the clean support set, because the item indices of the outliers
    // below refer to it.
    let is_changed = items.iter().zip(&labels.given).any(|(item, &given)| item.given != given);
    items.iter_mut().zip(&labels.given).for_each(|(item, &given)| item.given = given);
    // The outliers, each an item index and the row that replaces this item. If outliers are rows of the data itself,
    // their classes must not be in the episode.
    let pool = data.outlier_rows();
    let is_separate = data.outliers.is_some_and(|pool| !std::ptr::eq(pool, data.embeddings));
    let mut used = std::collections::HashSet::new();
    for &(index, row) in &labels.outliers {
        let Some(item) = items.get_mut(index as usize) else {
            return Err(format!("item {index} cannot be replaced by an outlier: there are {count} items"));
        };
        let Some(label) = pool.labels().get(row as usize) else {
            return Err(format!("row {row} is not an outlier: there are {} rows to choose from", pool.len()));
        };
        if !is_separate && episode.classes.iter().any(|draw| draw.class == *label) {
            return Err(format!("row {row} is not an outlier: it is of a class of the episode"));
        }
        if !used.insert(row) {
            return Err(format!("row {row} replaces two items"));
        }
        *item = Item { row, given: item.given, truth: None };
    }
    if let Some(class) = (0..ways).find(|&class| items.iter().all(|item| item.given as usize != class)) {
        let name = &data.embeddings.classes()[episode.classes[class].class as usize];
        return Err(format!("class {class} ('{name}') has no item left; every class must keep one or more"));
    }
    // Without changed labels, the items are already grouped.
    if is_changed {
        group_by_given(&mut items);
    }
    Ok(items)
}

/// Groups items whose labels were changed by their given label. The order within a group depends on the rows only and
/// says nothing about the true class.
pub(super) fn group_by_given(items: &mut [Item]) {
    items.sort_by_key(|item| (item.given, scrambled(item.row), item.row));
}

/// A number that depends on the row only, such that the order of rows is lost (the finaliser of MurmurHash3).
fn scrambled(row: u32) -> u32 {
    let mut bits = row;
    bits = (bits ^ (bits >> 16)).wrapping_mul(0x85eb_ca6b);
    bits = (bits ^ (bits >> 13)).wrapping_mul(0xc2b2_ae35);
    bits ^ (bits >> 16)
}

/// A random index below `n` with probability proportional to its weight; `None` if all weights are 0.
fn weighted_choice(rng: &mut Rng, n: usize, weight: impl Fn(usize) -> usize) -> Option<usize> {
    let total: usize = (0..n).map(&weight).sum();
    // A random number below the total, from which the weights are subtracted in order until one of them exceeds it.
    let mut remaining = (total > 0).then(|| rng.below(total))?;
    (0..n).find(|&i| {
        let is_chosen = remaining < weight(i);
        remaining = remaining.saturating_sub(weight(i));
        is_chosen
    })
}

/// Paired noise: every class gets the first pool items of one other class, chosen by a random derangement (a
/// permutation that maps no class to itself), so every class is the source of exactly one other. `None` if no attempt
/// finds source classes with enough items.
pub(super) fn paired(episode: &Episode, noise: Noise, rng: &mut Rng) -> Option<Replacements> {
    let classes = &episode.classes;
    let noisy: Vec<usize> = classes.iter().map(|c| noise.noisy_items(c.support.len())).collect();
    // The source class of every class.
    let source = (0..ATTEMPTS).find_map(|_| {
        let source = rng.derangement(classes.len());
        source.iter().zip(&noisy).all(|(&s, &n)| classes[s].pool.len() >= n).then_some(source)
    })?;
    let take = |(&source, &n): (&usize, &usize)| {
        classes[source].pool[..n].iter().map(|&row| (row, Some(source as u32))).collect()
    };
    Some(source.iter().zip(&noisy).map(take).collect())
}

/// Outlier noise: the wrong items are distinct random numbers below `pool_rows`, the number of rows that outliers may
/// be drawn from; the caller knows which rows they stand for.
///
/// One random sequence is dealt to the classes in turns, first one item per class, then a second one and so on, so that
/// a higher level keeps the items of a lower one.
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
