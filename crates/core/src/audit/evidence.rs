//! Evidence about the class of every item, and the class probabilities that follow from it ([`Evidence`]).
//!
//! Every item is compared with the classes as if it were not part of the collection: by three ridge regressions (two on the
//! rows, one on their random Fourier features), by the cosine with the sum of the class and how typical that cosine is for
//! items of the class, and by the labels of its nearest neighbours. [A model of these scores](super::score_model), fitted to
//! the collection, combines those that predict its labels well. Further [features](FEATURES) are how often items of a class
//! carry the given label, how many items the class has, how close the item is to any other, and how well the labels of the
//! whole collection can be predicted. A small network turns all of them into probabilities.
//!
//! The next round computes the evidence again with these probabilities in place of the given labels: an item that is
//! probably wrong does not count for its class, and an item that belongs elsewhere counts there.

use std::collections::HashMap;
use std::ops::Range;

use rayon::prelude::*;
use trueshot_nn::products;

use super::Poll;
use super::ordered_rows::OrderedRows;
use super::ridge::{Gram, Ridge, Targets};
use super::score_model::{self, CandidateScores, SCORES};
use super::scorer::{CLASS_FEATURES, FEATURES, ITEM_FEATURES, RELATIVE_FEATURES, Scorer};
use super::similar;
use super::waves::{WAVES, waves};
use crate::error::Result;

/// Classes that are considered for an item: its own and those with the best scores.
pub(super) const CANDIDATES: usize = 8;
/// Numbers of nearest neighbours that vote, one feature each.
const VOTERS: [usize; 2] = [3, 10];
/// Ridge penalties of the regressions on the rows, and of the one on random Fourier features.
const PENALTIES: [f64; 2] = [1.0, 8.0];
const WAVE_PENALTY: f64 = 1.0;
const REGRESSIONS: usize = 3;
/// Indices of the class features that are averaged over all items, each with its given class, to tell how well labels can be
/// predicted.
const AVERAGED_FEATURES: [usize; 7] = [0, 1, 2, 3, 5, 6, 7];
/// Log-probabilities below this one are not told apart.
const LEAST_LOG_PROBABILITY: f32 = -8.0;
/// The smallest mean squared cosine of two rows: that of random rows in 10,000 dimensions.
const LEAST_SQUARED_COSINE: f64 = 1e-4;
/// Pseudo-count: each class has this many more items, whose cosines have the mean and spread of all classes.
const TYPICAL_PRIOR: f32 = 3.0;
/// Pseudo-count of the labels of a class, and the share of them that are right.
const LABEL_PRIOR: f32 = 4.0;
const RIGHT_PRIOR: f32 = 0.8;
/// Upper bound of the size of a class, relative to the number of items with the given label; the items of a larger class
/// count less. Without it the network, which was trained on classes of more similar sizes, would trust a wrong label because
/// nearly all items of the large class have the right one.
const LARGEST_SIZE_RATIO: f32 = 6.0;
/// Rows scored at a time.
const BLOCK: usize = 64;

/// The classes of an item with their probabilities; the rest is the probability of none of the classes.
pub(super) type Shares = Vec<(u32, f32)>;

/// A collection with everything that does not depend on the labels.
pub(super) struct Evidence<'a> {
    collection: &'a OrderedRows,
    rows: Vec<&'a [f32]>,
    /// `[items][WAVES]`
    waves: Vec<f32>,
    /// The most similar items of each item, most similar first.
    pub neighbours: Vec<Vec<(u32, f32)>>,
    ridges: [Ridge; REGRESSIONS],
    /// Squared lengths of the rows: 1, or 0 for a row that equals the centre.
    squares: Vec<f32>,
    /// How close every item is to any other: the cosine with the nearest, and the mean of the nearest five.
    closeness: [Deviations; 2],
    /// The logarithms of the leverages in the first and the last regression: how little the other items explain each item.
    leverages: [Deviations; 2],
    /// The logarithms of the distances from the centre of all items.
    lengths: Deviations,
    /// The number of dimensions in which random rows would have the same mean squared cosine.
    dimensions: f64,
}

/// The scores of an item with one class.
#[derive(Clone, Copy)]
struct ClassScore {
    class: u32,
    /// The probability of the class in the previous round.
    share: f32,
    ridge: [f32; REGRESSIONS],
    cosine: f32,
}

/// The scores of an item with its candidate classes, and with the classes of the previous round.
struct ItemScores {
    /// The given class first, then the others by rank.
    candidates: Vec<ClassScore>,
    /// The candidates to which the model of the scores is fitted: the best, whether or not the given class is among them.
    best: Range<usize>,
    former: Vec<ClassScore>,
}

impl<'a> Evidence<'a> {
    /// Prepares a collection. `neighbours` is the number of similar items to find.
    pub fn new(collection: &'a OrderedRows, neighbours: usize, poll: &Poll<'_>) -> Result<Self> {
        let rows = collection.rows();
        let waves = waves(&rows);
        let gram = Gram::new(&rows, poll)?;
        let [weak, strong] = Ridge::all(&rows, &gram, PENALTIES, poll)?;
        let wave_rows: Vec<&[f32]> = waves.chunks_exact(WAVES).collect();
        let [of_waves] = Ridge::all(&wave_rows, &Gram::new(&wave_rows, poll)?, [WAVE_PENALTY], poll)?;
        let ridges = [weak, strong, of_waves];
        let neighbours = similar::neighbours(&rows, neighbours.max(VOTERS[1]), poll)?;
        let squares: Vec<f32> = rows.iter().map(|row| products::squared_norm(row).round()).collect();
        let mean_cosine = |others: &Vec<(u32, f32)>, count: usize| {
            let nearest = &others[..count.min(others.len())];
            nearest.iter().map(|&(_, cosine)| cosine).sum::<f32>() / nearest.len().max(1) as f32
        };
        let closeness = [1, 5].map(|count| {
            Deviations::new(neighbours.iter().map(|others| mean_cosine(others, count)).collect())
        });
        let leverages = [&ridges[0], &ridges[REGRESSIONS - 1]]
            .map(|ridge| Deviations::new(ridge.leverage.iter().map(|leverage| leverage.ln()).collect()));
        let lengths = Deviations::new(
            collection.lengths.iter().map(|length| length.max(f32::MIN_POSITIVE).ln()).collect(),
        );
        let pairs = (rows.len() * (rows.len() - 1)).max(1) as f64;
        let of_pairs = gram.sum_of_squares() - squares.iter().map(|&square| f64::from(square)).sum::<f64>();
        let dimensions = (of_pairs / pairs).max(LEAST_SQUARED_COSINE).recip();
        Ok(Evidence {
            collection,
            rows,
            waves,
            neighbours,
            ridges,
            squares,
            closeness,
            leverages,
            lengths,
            dimensions,
        })
    }

    /// The probabilities before the first round: 1 for the given label.
    pub fn given(&self) -> Vec<Shares> {
        self.collection.given.iter().map(|&class| vec![(class, 1.0)]).collect()
    }

    /// The class probabilities of every item after one more round; `before` are those of the previous round.
    pub fn round(&self, scorer: &Scorer, before: &[Shares], poll: &Poll<'_>) -> Result<Vec<Shares>> {
        let members = Members::new(before, self.collection.classes.len());
        let scores = self.scores(before, &members, poll)?;
        let typical = TypicalCosines::new(&scores, members.counts.len());
        let labels = LabelCounts::new(&self.collection.given, before);
        poll.check()?;
        let items = 0..before.len();
        let to_scores = |item: usize| {
            let votes = VOTERS.map(|count| self.votes(item, count, before));
            let of_class = |score: &ClassScore| -> [f32; SCORES] {
                [
                    5.0 * score.ridge[0],
                    5.0 * score.ridge[1],
                    5.0 * score.ridge[2],
                    4.0 * score.cosine,
                    typical.score(score.class as usize, score.cosine),
                    3.0 * share(&votes[0], score.class),
                    3.0 * share(&votes[1], score.class),
                ]
            };
            let ItemScores { candidates, best, .. } = &scores[item];
            CandidateScores {
                scores: candidates.iter().map(of_class).collect(),
                shares: candidates.iter().map(|score| score.share).collect(),
                fitted: best.clone(),
            }
        };
        let scored: Vec<CandidateScores> = items.clone().into_par_iter().map(to_scores).collect();
        let logs = score_model::log_probabilities(&scored);
        let of_classes = |item: usize| {
            let given = self.collection.given[item];
            let of_class = |(number, score): (usize, &ClassScore)| {
                let others = members.counts[score.class as usize] - score.share;
                let mut features = [0.0; CLASS_FEATURES];
                features[..SCORES].copy_from_slice(&scored[item].scores[number]);
                features[SCORES..].copy_from_slice(&[
                    logs[item][number].max(LEAST_LOG_PROBABILITY) / 2.0,
                    labels.log_probability(score, given, others, members.counts.len()),
                    if score.class == given { 2.0 } else { 0.0 },
                    labels.counted(given, others).clamp(0.0, 150.0).ln_1p() / 2.0,
                ]);
                features
            };
            scores[item].candidates.iter().enumerate().map(of_class).collect()
        };
        let of_classes: Vec<Vec<[f32; CLASS_FEATURES]>> =
            items.clone().into_par_iter().map(of_classes).collect();
        let mean = |value: &dyn Fn(usize) -> f32| {
            (items.clone().map(|item| f64::from(value(item))).sum::<f64>() / items.len() as f64) as f32
        };
        let wrong = mean(&|item| 1.0 - share(&before[item], self.collection.given[item]));
        let averages = AVERAGED_FEATURES.map(|n| mean(&|item| of_classes[item][0][n]));
        let of_item = |item: usize| {
            if self.collection.confirmed[item] {
                return vec![(self.collection.given[item], 1.0)];
            }
            let known = self.votes(item, VOTERS[1], before).iter().map(|(_, votes)| votes).sum::<f32>();
            let of_item = self.item_features(item, wrong, 1.0 - known, averages);
            let to_features = |of_class: &[f32; CLASS_FEATURES]| {
                let mut features = [0.0; FEATURES];
                features[..CLASS_FEATURES].copy_from_slice(of_class);
                features[CLASS_FEATURES..CLASS_FEATURES + ITEM_FEATURES].copy_from_slice(&of_item);
                features
            };
            let mut features: Vec<[f32; FEATURES]> = of_classes[item].iter().map(to_features).collect();
            compare_candidates(&mut features);
            let probabilities = scorer.probabilities(&features);
            scores[item].candidates.iter().map(|score| score.class).zip(probabilities).collect()
        };
        Ok(items.clone().into_par_iter().map(of_item).collect())
    }

    /// The features of an item that are the same for all classes. `wrong` is the share of wrong labels in the previous
    /// round, `none` the share of the item's neighbours that belong to none of the classes.
    fn item_features(
        &self,
        item: usize,
        wrong: f32,
        none: f32,
        averages: [f32; AVERAGED_FEATURES.len()],
    ) -> [f32; ITEM_FEATURES] {
        let classes = (self.collection.classes.len() as f32).ln().min(4.0) / 2.0;
        let [nearest, five] =
            self.closeness.each_ref().map(|closeness| [closeness.score(item), 2.0 * closeness.values[item]]);
        let leverages = self.leverages.each_ref().map(|leverages| leverages.score(item));
        let others = [self.lengths.score(item), 3.0 * none];
        let size = [self.rows.len() as f64, self.dimensions].map(|count| (count.ln() / 3.0) as f32);
        let parts =
            [&[classes][..], &nearest, &five, &[2.0 * wrong], &leverages, &others, &size, &averages].concat();
        parts.try_into().expect("as many as there are")
    }

    /// Compares all items with all classes.
    fn scores(&self, before: &[Shares], members: &Members, poll: &Poll<'_>) -> Result<Vec<ItemScores>> {
        let dim = self.collection.dim();
        let count = members.counts.len();
        let waves: Vec<&[f32]> = self.waves.chunks_exact(WAVES).collect();
        let sums = ClassSums::new(&self.rows, members);
        let sums_of_waves = ClassSums::new(&waves, members);
        let coefficients = [
            self.ridges[0].coefficients(&self.rows, &sums),
            self.ridges[1].coefficients(&self.rows, &sums),
            self.ridges[2].coefficients(&waves, &sums_of_waves),
        ];
        // Matrices [classes][dim], each with the rows that it is multiplied with.
        let matrices = [
            (&sums.sums, dim, &self.rows),
            (&coefficients[0], dim, &self.rows),
            (&coefficients[1], dim, &self.rows),
            (&coefficients[2], WAVES, &waves),
        ];
        let matrices =
            matrices.map(|(matrix, dim, rows)| (matrix.chunks_exact(dim).collect::<Vec<&[f32]>>(), rows));
        let lengths: Vec<f32> = matrices[0].0.iter().map(|sum| products::squared_norm(sum)).collect();
        let blocks: Vec<usize> = (0..self.rows.len()).step_by(BLOCK).collect();
        let of_block = |&start: &usize| {
            poll.check()?;
            let block = start..(start + BLOCK).min(self.rows.len());
            let found = matrices.each_ref().map(|(matrix, rows)| {
                let mut found = vec![0.0; count * block.len()];
                products::products(matrix, &rows[block.clone()], &mut found);
                found
            });
            let of_item = |place: usize| {
                let item = start + place;
                let at = |matrix: usize, class: u32| found[matrix][place * count + class as usize];
                let score = |class: u32| {
                    let share = share(&before[item], class);
                    let target = share - members.central_share();
                    let ridge = [0, 1, 2].map(|n| self.ridges[n].without(item, at(n + 1, class), target));
                    let (product, square) = (at(0, class), self.squares[item]);
                    let length = lengths[class as usize] - 2.0 * share * product + share * share * square;
                    let has_others = members.counts[class as usize] - share > 0.05;
                    let cosine = (product - share * square) / length.max(1e-6).sqrt();
                    ClassScore { class, share, ridge, cosine: if has_others { cosine } else { 0.0 } }
                };
                let given = self.collection.given[item];
                let mut candidates: Vec<ClassScore> =
                    (0..count as u32).filter(|&class| class != given).map(score).collect();
                let rank = |score: &ClassScore| 5.0 * (score.ridge[1] + score.ridge[2]) + 4.0 * score.cosine;
                let order =
                    |a: &ClassScore, b: &ClassScore| rank(b).total_cmp(&rank(a)).then(a.class.cmp(&b.class));
                if candidates.len() > CANDIDATES - 1 {
                    candidates.select_nth_unstable_by(CANDIDATES - 2, order);
                    candidates.truncate(CANDIDATES - 1);
                }
                candidates.sort_by(order);
                candidates.insert(0, score(given));
                // The others are not needed any more: with many classes they would take most of the memory.
                candidates.shrink_to_fit();
                let last = candidates.len() - 1;
                let given_is_among_best = rank(&candidates[0]) > rank(&candidates[last]);
                let best = match count > CANDIDATES {
                    true if given_is_among_best => 0..last,
                    true => 1..last + 1,
                    false => 0..last + 1,
                };
                let former = before[item].iter().map(|&(class, _)| score(class)).collect();
                ItemScores { candidates, best, former }
            };
            Ok((0..block.len()).map(of_item).collect::<Vec<_>>())
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

/// Fills in the relative features: the difference of a feature to that of the best other candidate.
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

/// The items of every class with their shares.
struct Members {
    items: Vec<Vec<(u32, f32)>>,
    /// Sums of the shares.
    counts: Vec<f32>,
}

impl Members {
    fn new(shares: &[Shares], classes: usize) -> Self {
        let mut members = vec![Vec::new(); classes];
        for (item, shares) in shares.iter().enumerate() {
            for &(class, share) in shares {
                members[class as usize].push((item as u32, share));
            }
        }
        let count =
            |items: &Vec<(u32, f32)>| items.iter().map(|&(_, share)| f64::from(share)).sum::<f64>() as f32;
        let counts = members.iter().map(count).collect();
        Members { items: members, counts }
    }

    /// The expected share of each class at the centre of the rows, which is the mean of the class means.
    fn central_share(&self) -> f32 {
        1.0 / self.counts.len() as f32
    }
}

/// The sums of the rows of every class, weighted by their shares.
struct ClassSums<'a> {
    rows: &'a [&'a [f32]],
    members: &'a Members,
    /// `[classes][dim]`
    sums: Vec<f32>,
    /// The sum of all rows.
    total: Vec<f32>,
}

impl<'a> ClassSums<'a> {
    fn new(rows: &'a [&'a [f32]], members: &'a Members) -> Self {
        let dim = rows[0].len();
        let mut sums = vec![0.0; members.items.len() * dim];
        sums.par_chunks_exact_mut(dim).zip(&members.items).for_each(|(out, members)| {
            let members_rows: Vec<&[f32]> = members.iter().map(|&(item, _)| rows[item as usize]).collect();
            let weights: Vec<f32> = members.iter().map(|&(_, share)| share).collect();
            products::weighted_sum(&members_rows, &weights, out);
        });
        let mut total = vec![0.0; dim];
        products::weighted_sum(rows, &vec![1.0; rows.len()], &mut total);
        ClassSums { rows, members, sums, total }
    }
}

/// The target of a class is the share of each item in it, minus the share at the centre of the rows, where a regression
/// without an intercept predicts zero.
impl Targets for ClassSums<'_> {
    fn count(&self) -> usize {
        self.members.counts.len()
    }

    fn values(&self, class: usize) -> Vec<f32> {
        let mut values = vec![-self.members.central_share(); self.rows.len()];
        for &(item, share) in &self.members.items[class] {
            values[item as usize] += share;
        }
        values
    }

    fn sum(&self, class: usize) -> Vec<f32> {
        let dim = self.total.len();
        let sum = &self.sums[class * dim..(class + 1) * dim];
        let central = self.members.central_share();
        sum.iter().zip(&self.total).map(|(sum, total)| sum - central * total).collect()
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

/// How many items carry each label, and how many of them belong to each class.
struct LabelCounts {
    /// By label.
    items: HashMap<u32, f32>,
    /// By class and label.
    members: HashMap<(u32, u32), f32>,
}

impl LabelCounts {
    fn new(given: &[u32], shares: &[Shares]) -> Self {
        let (mut items, mut members) = (HashMap::new(), HashMap::new());
        for (given, shares) in given.iter().zip(shares) {
            *items.entry(*given).or_insert(0.0) += 1.0;
            for &(class, share) in shares {
                *members.entry((class, *given)).or_insert(0.0) += share;
            }
        }
        LabelCounts { items, members }
    }

    /// The number of other items of a class that count for an item with this label.
    fn counted(&self, given: u32, others: f32) -> f32 {
        others.min(LARGEST_SIZE_RATIO * self.items[&given])
    }

    /// Half the logarithm of the probability that an item of the class carries this label, estimated from the `others`
    /// items.
    fn log_probability(&self, score: &ClassScore, given: u32, others: f32, classes: usize) -> f32 {
        let same = self.members.get(&(score.class, given)).copied().unwrap_or(0.0) - score.share;
        let counted = self.counted(given, others);
        let same = if counted < others { same * counted / others } else { same };
        let prior = match score.class == given {
            true => RIGHT_PRIOR,
            false => (1.0 - RIGHT_PRIOR) / (classes - 1).max(1) as f32,
        };
        ((same + LABEL_PRIOR * prior) / (counted + LABEL_PRIOR)).max(1e-4).ln() / 2.0
    }
}

/// One value per item, with the mean and the standard deviation of all.
struct Deviations {
    values: Vec<f32>,
    mean: f32,
    spread: f32,
}

impl Deviations {
    fn new(values: Vec<f32>) -> Self {
        let count = values.len() as f64;
        let mean = values.iter().map(|&value| f64::from(value)).sum::<f64>() / count;
        let square = values.iter().map(|&value| (f64::from(value) - mean).powi(2)).sum::<f64>() / count;
        Deviations { values, mean: mean as f32, spread: (square.sqrt() as f32).max(1e-3) }
    }

    /// Half the z-score of an item, clamped to -3 to 3.
    fn score(&self, item: usize) -> f32 {
        ((self.values[item] - self.mean) / self.spread).clamp(-6.0, 6.0) / 2.0
    }
}
