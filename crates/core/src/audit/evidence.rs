//! Evidence about the class of every item, drawn from the whole collection, and the probabilities that follow from it.
//!
//! Every item is compared with the classes as if it were not part of the collection, in several ways: two ridge regressions,
//! the cosine with the sum of the class, how typical that cosine is for items of the class, and the labels of its nearest
//! neighbours. Together with how often items of a class carry the given label, how many items the class has, and how close
//! the item is to any other, this is the [evidence](FEATURES) that a small network turns into probabilities.
//!
//! The probabilities then replace the given labels, and the evidence is computed again: an item that is probably wrong no
//! longer serves as an example of its class, and an item that belongs elsewhere becomes an example there.

use std::collections::HashMap;

use rayon::prelude::*;
use trueshot_nn::products;

use super::Poll;
use super::ordered_rows::OrderedRows;
use super::ridge::{Ridge, Targets};
use super::scorer::{CLASS_FEATURES, FEATURES, RELATIVE_FEATURES, Scorer};
use super::similar;
use crate::error::Result;

/// Classes that are considered for an item: its own and those with the best scores.
pub(super) const CANDIDATES: usize = 8;
/// Neighbours that vote, in two groups.
const VOTERS: [usize; 2] = [3, 10];
/// Penalties of the ridge regressions.
const PENALTIES: [f64; 2] = [1.0, 8.0];
/// The items of a class of average typicality that every class is assumed to have besides its own.
const TYPICAL_PRIOR: f32 = 3.0;
/// The number of items whose labels are assumed to be known in advance when the labels of a class are counted, and how many
/// of them are right.
const LABEL_PRIOR: f32 = 4.0;
const RIGHT_PRIOR: f32 = 0.8;
/// Rows scored at a time.
const BLOCK: usize = 64;

/// The classes of an item with their probabilities; the rest is the probability of none of the classes.
pub(super) type Shares = Vec<(u32, f32)>;

/// A collection with everything that does not depend on the labels.
pub(super) struct Evidence<'a> {
    collection: &'a OrderedRows,
    rows: Vec<&'a [f32]>,
    /// The most similar items of each item, most similar first.
    pub neighbours: Vec<Vec<(u32, f32)>>,
    ridges: [Ridge; 2],
    /// Squared lengths of the rows: 1, or 0 for a row that equals the mean.
    squares: Vec<f32>,
}

/// The scores of an item with one class.
#[derive(Clone, Copy)]
struct ClassScore {
    class: u32,
    /// The probability of the class in the round before.
    share: f32,
    ridge: [f32; 2],
    cosine: f32,
}

/// The scores of an item: with its candidates, and with the classes it may belong to by the round before.
struct ItemScores {
    candidates: Vec<ClassScore>,
    former: Vec<ClassScore>,
}

impl<'a> Evidence<'a> {
    /// Prepares a collection. `neighbours` is the number of similar items to find.
    pub fn new(collection: &'a OrderedRows, neighbours: usize, poll: &Poll<'_>) -> Result<Self> {
        let rows = collection.rows();
        let ridges = Ridge::all(&rows, PENALTIES, poll)?;
        let neighbours = similar::neighbours(&rows, neighbours.max(VOTERS[1]), poll)?;
        let squares = rows.iter().map(|row| products::squared_norm(row).round()).collect();
        Ok(Evidence { collection, rows, neighbours, ridges, squares })
    }

    /// The probabilities by the given labels alone.
    pub fn given(&self) -> Vec<Shares> {
        self.collection.given.iter().map(|&class| vec![(class, 1.0)]).collect()
    }

    /// The probabilities by the evidence under the probabilities of the round before.
    pub fn round(&self, scorer: &Scorer, before: &[Shares], poll: &Poll<'_>) -> Result<Vec<Shares>> {
        let classes = ClassSums::new(self, before);
        let coefficients = self.ridges.each_ref().map(|ridge| ridge.coefficients(&self.rows, &classes));
        let scores = self.scores(before, &classes, &coefficients, poll)?;
        let typical = TypicalCosines::new(&scores, classes.counts.len());
        let labels = LabelCounts::new(&self.collection.given, before);
        let closeness = Closeness::new(&self.neighbours);
        let wrong: f32 =
            (0..before.len()).map(|item| 1.0 - share(&before[item], self.collection.given[item])).sum();
        let wrong = wrong / before.len() as f32;
        poll.check()?;
        let of_item = |item: usize| {
            let given = self.collection.given[item];
            if self.collection.confirmed[item] {
                return vec![(given, 1.0)];
            }
            let votes = VOTERS.map(|count| self.votes(item, count, before));
            let candidates = &scores[item].candidates;
            let mut features: Vec<[f32; FEATURES]> = Vec::with_capacity(candidates.len());
            for score in candidates {
                let class = score.class as usize;
                let others = classes.counts[class] - score.share;
                let is_given = score.class == given;
                let mut feature = [0.0; FEATURES];
                feature[..CLASS_FEATURES].copy_from_slice(&[
                    5.0 * score.ridge[0],
                    5.0 * score.ridge[1],
                    4.0 * score.cosine,
                    typical.score(class, score.cosine),
                    3.0 * share(&votes[0], score.class),
                    3.0 * share(&votes[1], score.class),
                    labels.log_probability(score, given, others, classes.counts.len()),
                    if is_given { 2.0 } else { 0.0 },
                    others.clamp(0.0, 150.0).ln_1p() / 2.0,
                ]);
                let of_item = closeness.features(item, classes.counts.len(), wrong);
                feature[CLASS_FEATURES..CLASS_FEATURES + of_item.len()].copy_from_slice(&of_item);
                features.push(feature);
            }
            compare_candidates(&mut features);
            let probabilities = scorer.probabilities(&features);
            candidates.iter().map(|score| score.class).zip(probabilities).collect()
        };
        Ok((0..before.len()).into_par_iter().map(of_item).collect())
    }

    /// Compares all items with all classes.
    fn scores(
        &self,
        before: &[Shares],
        classes: &ClassSums<'_>,
        coefficients: &[Vec<f32>; 2],
        poll: &Poll<'_>,
    ) -> Result<Vec<ItemScores>> {
        let dim = self.collection.dim();
        let count = classes.counts.len();
        let matrices = [&classes.sums, &coefficients[0], &coefficients[1]];
        let views = matrices.map(|matrix| matrix.chunks_exact(dim).collect::<Vec<&[f32]>>());
        let lengths: Vec<f32> = views[0].iter().map(|sum| products::squared_norm(sum)).collect();
        let blocks: Vec<usize> = (0..self.rows.len()).step_by(BLOCK).collect();
        let of_block = |&start: &usize| {
            poll.check()?;
            let rows = &self.rows[start..(start + BLOCK).min(self.rows.len())];
            let found = views.each_ref().map(|view| {
                let mut found = vec![0.0; view.len() * rows.len()];
                products::products(view, rows, &mut found);
                found
            });
            let of_item = |place: usize| {
                let item = start + place;
                let at = |matrix: usize, class: u32| found[matrix][place * count + class as usize];
                let score = |class: u32| {
                    let share = share(&before[item], class);
                    let target = share - classes.priors[class as usize];
                    let ridge = [0, 1].map(|n| self.ridges[n].without(item, at(n + 1, class), target));
                    let (product, square) = (at(0, class), self.squares[item]);
                    let length = lengths[class as usize] - 2.0 * share * product + share * share * square;
                    let has_others = classes.counts[class as usize] - share > 0.05;
                    let cosine = (product - share * square) / length.max(1e-6).sqrt();
                    ClassScore { class, share, ridge, cosine: if has_others { cosine } else { 0.0 } }
                };
                let given = self.collection.given[item];
                let mut candidates: Vec<ClassScore> =
                    (0..count as u32).filter(|&class| class != given).map(score).collect();
                let rank = |score: &ClassScore| 5.0 * score.ridge[1] + 4.0 * score.cosine;
                let order =
                    |a: &ClassScore, b: &ClassScore| rank(b).total_cmp(&rank(a)).then(a.class.cmp(&b.class));
                if candidates.len() > CANDIDATES - 1 {
                    candidates.select_nth_unstable_by(CANDIDATES - 2, order);
                    candidates.truncate(CANDIDATES - 1);
                }
                candidates.sort_by(order);
                candidates.insert(0, score(given));
                let former = before[item].iter().map(|&(class, _)| score(class)).collect();
                ItemScores { candidates, former }
            };
            Ok((0..rows.len()).map(of_item).collect::<Vec<_>>())
        };
        let scores: Vec<Vec<ItemScores>> = blocks.par_iter().map(of_block).collect::<Result<_>>()?;
        Ok(scores.into_iter().flatten().collect())
    }

    /// The shares of the classes among the nearest items; more similar items count more.
    fn votes(&self, item: usize, count: usize, shares: &[Shares]) -> Shares {
        let nearest = &self.neighbours[item][..count.min(self.neighbours[item].len())];
        let weight = |cosine: f32| (8.0 * (cosine - nearest[0].1)).exp();
        let total: f32 = nearest.iter().map(|&(_, cosine)| weight(cosine)).sum();
        let mut votes = Shares::new();
        for &(other, cosine) in nearest {
            for &(class, share) in &shares[other as usize] {
                let vote = weight(cosine) * share / total;
                match votes.iter_mut().find(|(known, _)| *known == class) {
                    Some((_, votes)) => *votes += vote,
                    None => votes.push((class, vote)),
                }
            }
        }
        votes
    }
}

/// The share of a class, 0 if it is not listed.
pub(super) fn share(shares: &[(u32, f32)], class: u32) -> f32 {
    shares.iter().find(|(other, _)| *other == class).map_or(0.0, |(_, share)| *share)
}

/// Adds to the first features of every candidate their differences to the best other candidate.
fn compare_candidates(features: &mut [[f32; FEATURES]]) {
    for n in 0..RELATIVE_FEATURES {
        let best_other = |own: usize, features: &[[f32; FEATURES]]| {
            let others = features.iter().enumerate().filter(|(other, _)| *other != own);
            others.map(|(_, feature)| feature[n]).max_by(f32::total_cmp)
        };
        for own in 0..features.len() {
            let value = features[own][n];
            features[own][FEATURES - RELATIVE_FEATURES + n] =
                value - best_other(own, features).unwrap_or(value);
        }
    }
}

/// The sums of the rows of every class, weighted by their shares.
struct ClassSums<'a> {
    rows: &'a [&'a [f32]],
    /// Per class its items with their shares.
    members: Vec<Vec<(u32, f32)>>,
    /// Sums of the shares.
    counts: Vec<f32>,
    /// Counts as parts of their sum.
    priors: Vec<f32>,
    sums: Vec<f32>,
    /// The sum of all rows.
    total: Vec<f32>,
}

impl<'a> ClassSums<'a> {
    fn new(evidence: &'a Evidence<'_>, shares: &[Shares]) -> Self {
        let rows = &evidence.rows;
        let dim = evidence.collection.dim();
        let mut members = vec![Vec::new(); evidence.collection.classes.len()];
        for (item, shares) in shares.iter().enumerate() {
            for &(class, share) in shares {
                members[class as usize].push((item as u32, share));
            }
        }
        let counts: Vec<f32> = members
            .iter()
            .map(|items| items.iter().map(|&(_, share)| f64::from(share)).sum::<f64>() as f32)
            .collect();
        let all: f32 = counts.iter().sum::<f32>().max(1e-6);
        let priors = counts.iter().map(|count| count / all).collect();
        let mut sums = vec![0.0; members.len() * dim];
        sums.par_chunks_exact_mut(dim).zip(&members).for_each(|(out, members)| {
            let members_rows: Vec<&[f32]> = members.iter().map(|&(item, _)| rows[item as usize]).collect();
            let weights: Vec<f32> = members.iter().map(|&(_, share)| share).collect();
            products::weighted_sum(&members_rows, &weights, out);
        });
        let mut total = vec![0.0; dim];
        products::weighted_sum(rows, &vec![1.0; rows.len()], &mut total);
        ClassSums { rows, members, counts, priors, sums, total }
    }
}

/// The target of a class is the share of each item in it, minus the mean share.
impl Targets for ClassSums<'_> {
    fn count(&self) -> usize {
        self.counts.len()
    }

    fn values(&self, class: usize) -> Vec<f32> {
        let mut values = vec![-self.priors[class]; self.rows.len()];
        for &(item, share) in &self.members[class] {
            values[item as usize] += share;
        }
        values
    }

    fn sum(&self, class: usize) -> Vec<f32> {
        let dim = self.total.len();
        let sum = &self.sums[class * dim..(class + 1) * dim];
        sum.iter().zip(&self.total).map(|(sum, total)| sum - self.priors[class] * total).collect()
    }
}

/// Mean and spread of the cosines between the items of a class and its sum.
struct TypicalCosines {
    /// Per class.
    mean_and_spread: Vec<(f32, f32)>,
}

impl TypicalCosines {
    fn new(scores: &[ItemScores], classes: usize) -> Self {
        let former = || scores.iter().flat_map(|item| &item.former);
        let mut counts = vec![0.0; classes];
        let mut sums = vec![0.0; classes];
        for score in former() {
            counts[score.class as usize] += score.share;
            sums[score.class as usize] += score.share * score.cosine;
        }
        let all = counts.iter().sum::<f32>().max(1e-6);
        let mean = sums.iter().sum::<f32>() / all;
        let means: Vec<f32> = sums
            .iter()
            .zip(&counts)
            .map(|(sum, count)| (sum + TYPICAL_PRIOR * mean) / (count + TYPICAL_PRIOR))
            .collect();
        let mut squares = vec![0.0; classes];
        for score in former() {
            let class = score.class as usize;
            squares[class] += score.share * (score.cosine - means[class]).powi(2);
        }
        let square = squares.iter().sum::<f32>() / all;
        let spread = |(sum, count): (&f32, &f32)| {
            ((sum + TYPICAL_PRIOR * square) / (count + TYPICAL_PRIOR)).max(1e-4).sqrt()
        };
        let spreads = squares.iter().zip(&counts).map(spread);
        TypicalCosines { mean_and_spread: means.iter().copied().zip(spreads).collect() }
    }

    fn score(&self, class: usize, cosine: f32) -> f32 {
        let (mean, spread) = self.mean_and_spread[class];
        ((cosine - mean) / spread).clamp(-8.0, 8.0) / 2.0
    }
}

/// How many items that belong to a class carry each label.
struct LabelCounts(HashMap<(u32, u32), f32>);

impl LabelCounts {
    fn new(given: &[u32], shares: &[Shares]) -> Self {
        let mut counts = HashMap::new();
        for (given, shares) in given.iter().zip(shares) {
            for &(class, share) in shares {
                *counts.entry((class, *given)).or_insert(0.0) += share;
            }
        }
        LabelCounts(counts)
    }

    /// Half the logarithm of the probability that an item of the class carries this label, by the `others` of its items.
    fn log_probability(&self, score: &ClassScore, given: u32, others: f32, classes: usize) -> f32 {
        let same = self.0.get(&(score.class, given)).copied().unwrap_or(0.0) - score.share;
        let prior = match score.class == given {
            true => RIGHT_PRIOR,
            false => (1.0 - RIGHT_PRIOR) / (classes - 1).max(1) as f32,
        };
        ((same + LABEL_PRIOR * prior) / (others + LABEL_PRIOR)).max(1e-4).ln() / 2.0
    }
}

/// How close every item is to any other: the cosine with the nearest, and the mean of the nearest five.
struct Closeness {
    cosines: [Vec<f32>; 2],
    /// Mean and spread of both.
    usual: [(f32, f32); 2],
}

impl Closeness {
    fn new(neighbours: &[Vec<(u32, f32)>]) -> Self {
        let mean_of = |count: usize| {
            let mean = |others: &Vec<(u32, f32)>| {
                let nearest = &others[..count.min(others.len())];
                nearest.iter().map(|&(_, cosine)| cosine).sum::<f32>() / nearest.len().max(1) as f32
            };
            neighbours.iter().map(mean).collect::<Vec<f32>>()
        };
        let cosines = [1, 5].map(mean_of);
        let usual = cosines.each_ref().map(|cosines| {
            let count = cosines.len() as f64;
            let mean = cosines.iter().map(|&cosine| f64::from(cosine)).sum::<f64>() / count;
            let square =
                cosines.iter().map(|&cosine| (f64::from(cosine) - mean).powi(2)).sum::<f64>() / count;
            (mean as f32, (square.sqrt() as f32).max(1e-3))
        });
        Closeness { cosines, usual }
    }

    /// The features of an item that are the same for all classes. `wrong` is the share of wrong labels by the round before.
    fn features(&self, item: usize, classes: usize, wrong: f32) -> [f32; 6] {
        let [nearest, five] = [0, 1].map(|n| {
            let (mean, spread) = self.usual[n];
            let cosine = self.cosines[n][item];
            [((cosine - mean) / spread).clamp(-6.0, 6.0) / 2.0, 2.0 * cosine]
        });
        let classes = (classes as f32).ln().min(4.0) / 2.0;
        [classes, nearest[0], nearest[1], five[0], five[1], 2.0 * wrong]
    }
}
