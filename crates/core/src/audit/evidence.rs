//! Evidence about the class of every item, and the class probabilities that follow from it ([`Evidence`]).
//!
//! An audit calls [`Evidence::new`] once and [`Evidence::round`] once per built-in network. A round takes, for every
//! item, its [shares](Shares): the probabilities of the classes, at first 1 for the given label. It returns
//! better probabilities:
//!
//! 1. `scores` compares every item with every class as if the item were not part of the collection: by three ridge
//!    regressions (two on the rows, one on their random Fourier features) and by the cosine with the sum of the rows
//!    of the class. It keeps the given class and the classes with the best scores, the *candidates* of the item.
//! 2. `votes` adds the labels of the nearest neighbours, and [`TypicalCosines`] how usual the cosine is for items of
//!    the class. That makes seven scores per item and candidate.
//! 3. A [logit model](super::score_model) with seven weights, fitted to the collection, combines the scores that
//!    predict its labels well.
//! 4. These scores, the model's answer and features of the item and the collection (`item_features`) are the inputs of
//!    a small network, the [`Scorer`], whose outputs are the new shares.
//!
//! In the next round, an item that is probably wrong hardly counts for its class, and an item that belongs elsewhere
//! counts there.
//!
//! Features are multiplied by constants such as 5 or 1/2, which brings nearly all of them into the range from -5 to 5.
//! The networks were trained with these constants by a PyTorch program that computes the same numbers
//! (`bench/peers/audit_evidence.py`). A constant that is changed here has to be changed there, and the networks trained
//! again.

use std::collections::{BTreeMap, HashMap};
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
/// Numbers of nearest neighbours that vote: the votes of the nearest 3 are one feature, those of the nearest 10
/// another.
pub(super) const VOTERS: [usize; 2] = [3, 10];
/// Ridge penalties of the two regressions on the rows: weak and strong.
const PENALTIES: [f64; 2] = [1.0, 8.0];
/// Ridge penalty of the regression on random Fourier features (`waves`).
const WAVE_PENALTY: f64 = 1.0;
/// Number of regressions: those with [`PENALTIES`] and the one on random Fourier features.
const REGRESSIONS: usize = 3;
/// Indices of the class features whose means over all items, each with its given class, tell how well the labels of the
/// collection can be predicted: all scores but the typicality of the cosine (4), and the log-probability of the logit
/// model.
const AVERAGED_FEATURES: [usize; 7] = [0, 1, 2, 3, 5, 6, 7];
/// Smaller log-probabilities of the logit model are raised to this one.
const LEAST_LOG_PROBABILITY: f32 = -8.0;
/// The smallest mean squared cosine of two rows: that of random rows in 10,000 dimensions.
const LEAST_SQUARED_COSINE: f64 = 1e-4;
/// Pseudo-count: each class has this many more items, whose cosines have the mean and spread of all classes.
const TYPICAL_PRIOR: f32 = 3.0;
/// Pseudo-count of the labels of a class: each class has this many more items.
const LABEL_PRIOR: f32 = 4.0;
/// The part of these additional items whose label is right; the rest is divided equally among the other labels.
const RIGHT_PRIOR: f32 = 0.8;
/// Upper bound of the size of a class, relative to the number of items with the given label; the items of a larger
/// class count less. Without it the network, which was trained on classes of more similar sizes, would trust a wrong
/// label because nearly all items of the large class have the right one.
const LARGEST_SIZE_RATIO: f32 = 6.0;
/// Rows that are scored by one task of the thread pool.
const BLOCK: usize = 64;

/// The classes that an item may belong to, with their probabilities, each class at most once. The probabilities sum to
/// at most 1; the rest is the probability of none of the classes.
pub(super) type Shares = Vec<(u32, f32)>;

/// A collection with everything that is the same in all rounds.
pub(super) struct Evidence<'a> {
    collection: &'a OrderedRows,
    /// The centred rows, of length 1, or 0 for a row that equals the centre. `[items][dim]`
    rows: Vec<&'a [f32]>,
    /// Random Fourier features of the rows, `[items][WAVES]`.
    waves: Vec<f32>,
    /// For each item the positions of the rows that equal its row, itself among them.
    identical: Vec<Range<usize>>,
    /// The most similar items of each item with their cosines, most similar first.
    pub neighbours: Vec<Vec<(u32, f32)>>,
    /// Regressions on the rows with the weak and the strong penalty, and on the random Fourier features.
    ridges: [Ridge; REGRESSIONS],
    /// Squared lengths of the rows: 1, or 0 for a row that equals the centre.
    squares: Vec<f32>,
    /// How close every item is to any other: the cosine with the nearest item, and the mean cosine with the nearest
    /// five.
    closeness: [Deviations; 2],
    /// The logarithms of the leverages (see [`Ridge::leverage`]) in the first and the last regression. An item that is
    /// unlike all others has a large leverage.
    leverages: [Deviations; 2],
    /// The logarithms of the distances from the centre of all items.
    lengths: Deviations,
    /// The number of dimensions in which random rows would have the same mean squared cosine as these rows.
    dimensions: f64,
}

/// The shares with which items vote for the classes of their neighbours.
struct Voters<'a> {
    /// The shares of every item.
    shares: &'a [Shares],
    /// The summed shares of each set of identical rows, by its first position ([`Evidence::shares_of_identical`]).
    of_identical: HashMap<usize, Shares>,
}

/// The scores of an item with one class, as if the item were not part of the collection.
#[derive(Clone, Copy)]
struct ClassScore {
    class: u32,
    /// The probability of the class in the previous round.
    share: f32,
    /// The leave-one-out predictions of the three regressions: large if the item belongs to the class.
    ridge: [f32; REGRESSIONS],
    /// The cosine of the item with the sum of the rows of the class.
    cosine: f32,
}

/// The scores of an item with its candidate classes, and with the classes of the previous round.
struct ItemScores {
    /// The given class first, then the other candidates, best first.
    candidates: Vec<ClassScore>,
    /// The indices in `candidates` of those to which the logit model is fitted. The given class is among them only if
    /// its scores are good enough.
    best: Range<usize>,
    /// The scores with the classes in which the item had a share in the previous round; only [`TypicalCosines`] needs
    /// them.
    previous: Vec<ClassScore>,
}

impl<'a> Evidence<'a> {
    /// Prepares a collection. `neighbours` is the number of similar items to report; at least 10 are found, for the
    /// votes.
    pub fn new(collection: &'a OrderedRows, neighbours: usize, poll: &Poll<'_>) -> Result<Self> {
        let rows = collection.rows();
        // The regressions, which need the rows and not the labels.
        let waves = waves(&rows);
        let gram = Gram::new(&rows, poll)?;
        let [weak, strong] = Ridge::all(&rows, &gram, PENALTIES, poll)?;
        let wave_rows: Vec<&[f32]> = waves.chunks_exact(WAVES).collect();
        let [of_waves] = Ridge::all(&wave_rows, &Gram::new(&wave_rows, poll)?, [WAVE_PENALTY], poll)?;
        let ridges = [weak, strong, of_waves];
        let neighbours = similar::neighbours(&rows, neighbours.max(VOTERS[1]), poll)?;
        let identical = identical(&rows);
        let squares: Vec<f32> = rows.iter().map(|row| products::squared_norm(row).round()).collect();
        // How unusual every item is: far from its neighbours, hard to predict, or far from the centre.
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
        // The mean squared cosine of random rows in d dimensions is 1 / d. Pairs of an item with itself do not count.
        let pairs = (rows.len() * (rows.len() - 1)).max(1) as f64;
        let squared_cosines =
            gram.sum_of_squares() - squares.iter().map(|&square| f64::from(square)).sum::<f64>();
        let dimensions = (squared_cosines / pairs).max(LEAST_SQUARED_COSINE).recip();
        Ok(Evidence {
            collection,
            rows,
            waves,
            identical,
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

    /// The class probabilities of every item after one more round; `before` are those of the previous round, one entry
    /// per item. `scorer` is the network of this round.
    pub fn round(&self, scorer: &Scorer, before: &[Shares], poll: &Poll<'_>) -> Result<Vec<Shares>> {
        // What the classes look like with the shares of the previous round.
        let members = Members::new(before, self.collection.classes.len());
        let scores = self.scores(before, &members, poll)?;
        let typical = TypicalCosines::new(&scores, members.counts.len());
        let labels = LabelCounts::new(&self.collection.given, before);
        poll.check()?;
        let items = 0..before.len();
        // The seven scores of every item with its candidates, and the logit model's log-probabilities from them.
        let voters = Voters { shares: before, of_identical: self.shares_of_identical(before) };
        let to_scores = |item: usize| {
            let votes = VOTERS.map(|count| self.votes(item, count, &voters));
            let of_class = |score: &ClassScore| -> [f32; SCORES] {
                [
                    // The factors are those of the training (see the head of the file).
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
        // The features of every item with each of its candidates: `[item][candidate][feature]`.
        let class_features = |item: usize| {
            let given = self.collection.given[item];
            let of_class = |(candidate, score): (usize, &ClassScore)| {
                // The expected number of other items of the class.
                let others = members.counts[score.class as usize] - score.share;
                let mut features = [0.0; CLASS_FEATURES];
                features[..SCORES].copy_from_slice(&scored[item].scores[candidate]);
                features[SCORES..].copy_from_slice(&[
                    logs[item][candidate].max(LEAST_LOG_PROBABILITY) / 2.0,
                    labels.log_probability(score, given, others, members.counts.len()),
                    if score.class == given { 2.0 } else { 0.0 },
                    labels.counted(given, others).clamp(0.0, 150.0).ln_1p() / 2.0,
                ]);
                features
            };
            scores[item].candidates.iter().enumerate().map(of_class).collect()
        };
        let of_classes: Vec<Vec<[f32; CLASS_FEATURES]>> =
            items.clone().into_par_iter().map(class_features).collect();
        // Features of the whole collection, which are the same for all items. Candidate 0 is the given class.
        let mean = |value: &dyn Fn(usize) -> f32| {
            (items.clone().map(|item| f64::from(value(item))).sum::<f64>() / items.len() as f64) as f32
        };
        let wrong = mean(&|item| 1.0 - share(&before[item], self.collection.given[item]));
        let averages = AVERAGED_FEATURES.map(|n| mean(&|item| of_classes[item][0][n]));
        // The network turns the features of an item with its candidates into the new shares.
        let of_item = |item: usize| {
            if self.collection.confirmed[item] {
                return vec![(self.collection.given[item], 1.0)];
            }
            let votes = self.votes(item, VOTERS[1], &voters).iter().map(|(_, votes)| votes).sum::<f32>();
            let item_features = self.item_features(item, wrong, 1.0 - votes, averages);
            let to_features = |of_class: &[f32; CLASS_FEATURES]| {
                let mut features = [0.0; FEATURES];
                features[..CLASS_FEATURES].copy_from_slice(of_class);
                features[CLASS_FEATURES..CLASS_FEATURES + ITEM_FEATURES].copy_from_slice(&item_features);
                features
            };
            let mut features: Vec<[f32; FEATURES]> = of_classes[item].iter().map(to_features).collect();
            compare_candidates(&mut features);
            let probabilities = scorer.probabilities(&features);
            scores[item].candidates.iter().map(|score| score.class).zip(probabilities).collect()
        };
        Ok(items.clone().into_par_iter().map(of_item).collect())
    }

    /// The features of an item that are the same for all classes. `wrong` is the expected share of wrong labels in the
    /// collection by the previous round, `none` the share of the item's neighbours that belong to none of the classes,
    /// and `averages` are the means of [`AVERAGED_FEATURES`].
    fn item_features(
        &self,
        item: usize,
        wrong: f32,
        none: f32,
        averages: [f32; AVERAGED_FEATURES.len()],
    ) -> [f32; ITEM_FEATURES] {
        let classes = (self.collection.classes.len() as f32).ln().min(4.0) / 2.0;
        // The closeness to the nearest item and to the nearest five, each relative to that of all items (half the
        // z-score) and absolute (twice the mean cosine).
        let [nearest, five] =
            self.closeness.each_ref().map(|closeness| [closeness.score(item), 2.0 * closeness.values[item]]);
        let leverages = self.leverages.each_ref().map(|leverages| leverages.score(item));
        let outlier = [self.lengths.score(item), 3.0 * none];
        let size = [self.rows.len() as f64, self.dimensions].map(|count| (count.ln() / 3.0) as f32);
        // The order is that of the training: 1 + 2 + 2 + 1 + 2 + 2 + 2 + 7 values.
        let features =
            [&[classes][..], &nearest, &five, &[2.0 * wrong], &leverages, &outlier, &size, &averages]
                .concat();
        features.try_into().expect("there are ITEM_FEATURES values")
    }

    /// Compares all items with all classes, by matrix products of blocks of rows with one vector per class.
    fn scores(&self, before: &[Shares], members: &Members, poll: &Poll<'_>) -> Result<Vec<ItemScores>> {
        let dim = self.collection.dim();
        let count = members.counts.len();
        // One vector per class for each of four comparisons: the sum of the class, and the coefficients of the
        // regressions.
        let waves: Vec<&[f32]> = self.waves.chunks_exact(WAVES).collect();
        let sums = ClassSums::new(&self.rows, members);
        let sums_of_waves = ClassSums::new(&waves, members);
        let coefficients = [
            self.ridges[0].coefficients(&self.rows, &sums),
            self.ridges[1].coefficients(&self.rows, &sums),
            self.ridges[2].coefficients(&waves, &sums_of_waves),
        ];
        // Matrices `[classes][dim]`, each with the rows that it is multiplied with.
        let matrices = [
            (&sums.sums, dim, &self.rows),
            (&coefficients[0], dim, &self.rows),
            (&coefficients[1], dim, &self.rows),
            (&coefficients[2], WAVES, &waves),
        ];
        let matrices =
            matrices.map(|(matrix, dim, rows)| (matrix.chunks_exact(dim).collect::<Vec<&[f32]>>(), rows));
        let squared_lengths: Vec<f32> = matrices[0].0.iter().map(|sum| products::squared_norm(sum)).collect();
        let blocks: Vec<usize> = (0..self.rows.len()).step_by(BLOCK).collect();
        let of_block = |&start: &usize| {
            poll.check()?;
            let block = start..(start + BLOCK).min(self.rows.len());
            // Per matrix, the products `[items of the block][classes]`.
            let products = matrices.each_ref().map(|(matrix, rows)| {
                let mut products = vec![0.0; count * block.len()];
                products::products(matrix, &rows[block.clone()], &mut products);
                products
            });
            let of_item = |index: usize| {
                let item = start + index;
                let product = |matrix: usize, class: u32| products[matrix][index * count + class as usize];
                let score = |class: u32| {
                    let share = share(&before[item], class);
                    // The leave-one-out prediction of each regression.
                    let target = share - members.central_share();
                    let ridge =
                        [0, 1, 2].map(|n| self.ridges[n].without(item, product(n + 1, class), target));
                    // The cosine with the sum of the class without the item: with the row x, its share s in the class
                    // and the sum c, the product is c.x - s x.x, and the squared length |c|^2 - 2 s c.x + s^2 x.x.
                    let (with_sum, square) = (product(0, class), self.squares[item]);
                    let squared_length =
                        squared_lengths[class as usize] - 2.0 * share * with_sum + share * share * square;
                    let cosine = (with_sum - share * square) / squared_length.max(1e-6).sqrt();
                    // The sum of a class with next to no other items (fewer than 0.05 expected) has no direction.
                    let has_others = members.counts[class as usize] - share > 0.05;
                    ClassScore { class, share, ridge, cosine: if has_others { cosine } else { 0.0 } }
                };
                // The candidates: the given class first, then the best of the other classes, best first.
                let given = self.collection.given[item];
                let mut candidates: Vec<ClassScore> =
                    (0..count as u32).filter(|&class| class != given).map(score).collect();
                // The factors are those of the class features in `round`; that the first regression does not take
                // part is fixed by the training, too.
                let rank = |score: &ClassScore| 5.0 * (score.ridge[1] + score.ridge[2]) + 4.0 * score.cosine;
                let order =
                    |a: &ClassScore, b: &ClassScore| rank(b).total_cmp(&rank(a)).then(a.class.cmp(&b.class));
                if candidates.len() > CANDIDATES - 1 {
                    candidates.select_nth_unstable_by(CANDIDATES - 2, order);
                    candidates.truncate(CANDIDATES - 1);
                }
                candidates.sort_by(order);
                candidates.insert(0, score(given));
                // Frees the memory of the other classes: with many classes it would be most of the memory.
                candidates.shrink_to_fit();
                // The logit model is fitted to the best `CANDIDATES - 1` classes, chosen as if the given one were
                // unknown. The given class is one of them if it ranks above the last of the candidates, which it then
                // replaces. If all classes are candidates, the model is fitted to all.
                let last = candidates.len() - 1;
                let given_is_among_best = rank(&candidates[0]) > rank(&candidates[last]);
                let best = if count <= CANDIDATES {
                    0..last + 1
                } else if given_is_among_best {
                    0..last
                } else {
                    1..last + 1
                };
                let previous = before[item].iter().map(|&(class, _)| score(class)).collect();
                ItemScores { candidates, best, previous }
            };
            Ok((0..block.len()).map(of_item).collect::<Vec<_>>())
        };
        let scores: Vec<Vec<ItemScores>> = blocks.par_iter().map(of_block).collect::<Result<_>>()?;
        Ok(scores.into_iter().flatten().collect())
    }

    /// For each set of identical rows, by its first position, the sums of their shares.
    fn shares_of_identical(&self, shares: &[Shares]) -> HashMap<usize, Shares> {
        let mut sums = HashMap::new();
        for (position, identical) in self.identical.iter().enumerate() {
            if identical.start == position && identical.len() > 1 {
                let mut sum = BTreeMap::new();
                for &(class, share) in shares[identical.clone()].iter().flatten() {
                    *sum.entry(class).or_insert(0.0) += share;
                }
                sums.insert(position, sum.into_iter().collect());
            }
        }
        sums
    }

    /// The shares of the classes among the nearest `count` items. The weight of a neighbour is `exp(8 cosine)`, so that
    /// more similar items count more. The votes sum to less than 1 if neighbours may belong to none of the classes.
    ///
    /// A neighbour that is identical to other items votes as all of them do on average: which of them are among the
    /// nearest depends on the names of their labels.
    fn votes(&self, item: usize, count: usize, voters: &Voters<'_>) -> Shares {
        let nearest = &self.neighbours[item][..count.min(self.neighbours[item].len())];
        // Relative to the nearest item, which leaves the ratios unchanged.
        let weight = |cosine: f32| (8.0 * (cosine - nearest[0].1)).exp();
        let total: f32 = nearest.iter().map(|&(_, cosine)| weight(cosine)).sum();
        let mut votes = Shares::new();
        let mut add = |class: u32, vote: f32| match votes.iter_mut().find(|(known, _)| *known == class) {
            Some((_, votes)) => *votes += vote,
            None => votes.push((class, vote)),
        };
        for &(other, cosine) in nearest {
            let other = other as usize;
            let weight = weight(cosine) / total;
            let identical = &self.identical[other];
            if identical.len() == 1 {
                voters.shares[other].iter().for_each(|&(class, votes)| add(class, weight * votes));
                continue;
            }
            // An item does not vote for itself.
            let is_own = identical.contains(&item);
            let count = (identical.len() - usize::from(is_own)) as f32;
            for &(class, sum) in &voters.of_identical[&identical.start] {
                let own = if is_own { share(&voters.shares[item], class) } else { 0.0 };
                add(class, weight * (sum - own).max(0.0) / count);
            }
        }
        votes
    }
}

/// For each of the sorted rows, the positions of the rows that are equal to it, itself among them.
fn identical(rows: &[&[f32]]) -> Vec<Range<usize>> {
    let mut identical = Vec::with_capacity(rows.len());
    for equal in rows.chunk_by(|a, b| a == b) {
        let start = identical.len();
        identical.extend(vec![start..start + equal.len(); equal.len()]);
    }
    identical
}

/// The share of a class, 0 if it is not listed.
pub(super) fn share(shares: &[(u32, f32)], class: u32) -> f32 {
    shares.iter().find(|(other, _)| *other == class).map_or(0.0, |(_, share)| *share)
}

/// Fills in the last [`RELATIVE_FEATURES`] of every candidate: for each of its first features, the difference to the
/// largest value among the other candidates of the item (0 without other candidates). `features` has one entry per
/// candidate.
fn compare_candidates(features: &mut [[f32; FEATURES]]) {
    for n in 0..RELATIVE_FEATURES {
        let best_other = |candidate: usize, features: &[[f32; FEATURES]]| {
            let others = features.iter().enumerate().filter(|(other, _)| *other != candidate);
            others.map(|(_, features)| features[n]).max_by(f32::total_cmp)
        };
        for candidate in 0..features.len() {
            let value = features[candidate][n];
            features[candidate][FEATURES - RELATIVE_FEATURES + n] =
                value - best_other(candidate, features).unwrap_or(value);
        }
    }
}

/// The items of every class with their shares: the transpose of a list of [`Shares`].
struct Members {
    /// Per class, its items with their shares in the class.
    items: Vec<Vec<(u32, f32)>>,
    /// Per class, the sum of these shares: the expected number of its items.
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

    /// The expected share of each class at the centre of the rows: `1 / classes`, because the centre is the mean of the
    /// class means.
    fn central_share(&self) -> f32 {
        1.0 / self.counts.len() as f32
    }
}

/// The sums of the rows of every class, weighted by their shares, and the targets of the regressions on these rows.
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
            let member_rows: Vec<&[f32]> = members.iter().map(|&(item, _)| rows[item as usize]).collect();
            let weights: Vec<f32> = members.iter().map(|&(_, share)| share).collect();
            products::weighted_sum(&member_rows, &weights, out);
        });
        let mut total = vec![0.0; dim];
        products::weighted_sum(rows, &vec![1.0; rows.len()], &mut total);
        ClassSums { rows, members, sums, total }
    }
}

/// The target of an item for a class is its share in the class minus [`Members::central_share`]: the rows are centred
/// and the regression has no intercept, so it predicts 0 at the centre.
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

/// Per class, the mean and the standard deviation of the cosines of its items with its sum: in a class whose items
/// vary, a smaller cosine is usual.
struct TypicalCosines {
    /// Per class, mean and standard deviation.
    mean_and_spread: Vec<(f32, f32)>,
}

impl TypicalCosines {
    fn new(scores: &[ItemScores], classes: usize) -> Self {
        let previous = || scores.iter().flat_map(|item| &item.previous);
        // The means, weighted by shares and drawn towards the mean of all classes.
        let mut counts = vec![0.0; classes];
        let mut sums = vec![0.0; classes];
        for score in previous() {
            counts[score.class as usize] += score.share;
            sums[score.class as usize] += score.share * score.cosine;
        }
        let total = counts.iter().sum::<f32>().max(1e-6);
        let overall_mean = sums.iter().sum::<f32>() / total;
        let means: Vec<f32> = sums
            .iter()
            .zip(&counts)
            .map(|(sum, count)| (sum + TYPICAL_PRIOR * overall_mean) / (count + TYPICAL_PRIOR))
            .collect();
        // The variances, likewise drawn towards that of all classes.
        let mut squares = vec![0.0; classes];
        for score in previous() {
            let class = score.class as usize;
            squares[class] += score.share * (score.cosine - means[class]).powi(2);
        }
        let overall_variance = squares.iter().sum::<f32>() / total;
        let spread = |(sum, count): (&f32, &f32)| {
            ((sum + TYPICAL_PRIOR * overall_variance) / (count + TYPICAL_PRIOR)).max(1e-4).sqrt()
        };
        let spreads = squares.iter().zip(&counts).map(spread);
        TypicalCosines { mean_and_spread: means.iter().copied().zip(spreads).collect() }
    }

    /// Half the z-score of a cosine among those of a class, from -4 to 4.
    fn score(&self, class: usize, cosine: f32) -> f32 {
        let (mean, spread) = self.mean_and_spread[class];
        ((cosine - mean) / spread).clamp(-8.0, 8.0) / 2.0
    }
}

/// How many items carry each label, and how many of them belong to each class. It shows which labels are confused: if
/// half of the items that belong to class A carry label B, another such item is likely.
struct LabelCounts {
    /// By label, the number of items that carry it.
    items: HashMap<u32, f32>,
    /// By class and label, the expected number of items of the class that carry the label.
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

    /// The number of other items of a class that count for an item with this label: `others`, but at most
    /// [`LARGEST_SIZE_RATIO`] times the number of items with the label.
    fn counted(&self, given: u32, others: f32) -> f32 {
        others.min(LARGEST_SIZE_RATIO * self.items[&given])
    }

    /// Half the logarithm of the probability that an item of the class `score.class` carries the label `given`. It is
    /// estimated from the other items of the class, of which `others` are expected. `classes` is the number of all
    /// classes.
    fn log_probability(&self, score: &ClassScore, given: u32, others: f32, classes: usize) -> f32 {
        // The other items of the class that carry the label, reduced in proportion if not all of the class count.
        let with_label = self.members.get(&(score.class, given)).copied().unwrap_or(0.0) - score.share;
        let counted = self.counted(given, others);
        let with_label = if counted < others { with_label * counted / others } else { with_label };
        let prior = match score.class == given {
            true => RIGHT_PRIOR,
            false => (1.0 - RIGHT_PRIOR) / (classes - 1).max(1) as f32,
        };
        ((with_label + LABEL_PRIOR * prior) / (counted + LABEL_PRIOR)).max(1e-4).ln() / 2.0
    }
}

/// One value per item, with the mean and the standard deviation of all values.
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

    /// Half the z-score of an item, from -3 to 3.
    fn score(&self, item: usize) -> f32 {
        ((self.values[item] - self.mean) / self.spread).clamp(-6.0, 6.0) / 2.0
    }
}
