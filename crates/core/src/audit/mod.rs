//! Audits: which labels of a collection are wrong, which label each item should have, and how certain that is.
//!
//! Start with [`Audit::of`]:
//!
//! ```
//! use trueshot::{Audit, Embeddings, Verdict};
//!
//! // Two classes in the plane; the last item of "cat" lies among the dogs. `Embeddings::open` reads a file instead.
//! let values = vec![1.0, 0.0, 0.9, 0.1, 0.8, 0.0, 1.0, 0.1, 0.0, 0.9, 0.0, 1.0, 0.1, 0.9, 0.2, 1.0, 0.0, 0.8];
//! let labels = ["cat"; 5].iter().chain(&["dog"; 4]).map(|label| label.to_string()).collect();
//! let rows = Embeddings::from_rows(values, 2, labels)?;
//!
//! let audit = Audit::of(&rows).certainty(0.7).run()?;
//! let most_suspect = &audit.items[audit.ranking()[0]];
//! assert_eq!((most_suspect.item.as_str(), most_suspect.given.as_str()), ("row 4", "cat"));
//! assert!(most_suspect.p_wrong > 0.5 && most_suspect.verdict != Verdict::Keep);
//! # Ok::<(), trueshot::Error>(())
//! ```
//! Every item is compared with all classes and with all other items, as if it were not part of the collection itself. A
//! small network, trained on simulated label noise, computes from that the probability of every class, and of "none of
//! the classes"; then the comparison is made again with these probabilities instead of the labels, twice. The result
//! does not depend on the order of the rows or on names. The probabilities become a [`Verdict`], and the nearest items
//! are reported as evidence. [`map`] places the items in the plane.
//!
//! In the code, start with `run` below. It uses the other files in this order:
//!
//! | file | task |
//! |---|---|
//! | `builder` | options and their checks |
//! | `limits` | cases in which labels cannot be judged, such as classes with the same items |
//! | `ordered_rows`, `rows` | sort and centre the rows (the embeddings of the items) |
//! | `evidence` | compares items with classes, by `ridge`, `waves`, `similar` and `score_model` |
//! | `scorer` | the network that turns this evidence into probabilities |
//! | `verdict`, `action` | probabilities to verdicts, verdicts to actions and counts |
//! | `duplicates`, `thumbnails` | copies of items |
//! | `image_measures` | poor images |
//!
//! `effects` computes how much a change of labels improves the leave-one-out accuracy, for repair plans; one of the
//! warnings of `limits` uses it, too.
//!
//! Two terms are used in all files. The *given* class of an item is that of its label in the data. A *share* is the
//! probability that an item belongs to a class; the item counts for the class with this weight. An item has one share
//! per class that it may belong to. They sum to at most 1; the rest is the probability of "none of the classes".

mod action;
mod builder;
mod duplicates;
mod effects;
mod evidence;
mod image_measures;
mod limits;
mod map;
mod ordered_rows;
mod ridge;
mod rows;
mod score_model;
mod scorer;
mod similar;
mod thumbnails;
mod verdict;
mod waves;

use serde::Serialize;

pub use self::action::{Action, AuditCounts};
pub use self::builder::{AuditBuilder, MAX_NEIGHBOURS, Options};
use self::duplicates::{COMPARED_NEIGHBOURS, DuplicateFindings};
pub use self::duplicates::{Duplicate, DuplicateKind};
pub(crate) use self::effects::{Change, Effects, effects};
use self::evidence::Evidence;
pub use self::image_measures::{ImageMeasures, ImageProblem, ImageProblemKind};
pub use self::map::map;
use self::ordered_rows::OrderedRows;
pub(crate) use self::ordered_rows::compare_rows;
use self::scorer::Scorer;
use self::verdict::Posterior;
pub use self::verdict::{Certainty, Verdict};
use crate::embeddings::Embeddings;
use crate::error::Result;
use crate::progress::Progress;

/// The result of an audit.
///
/// Made by [`Audit::of`]. Serialises to the JSON that `trueshot audit --format json` writes.
#[derive(Debug, Clone, Serialize)]
pub struct Audit {
    /// The name of the method that scored the items: always "evidence".
    pub method: String,
    /// All items, in the order of the rows.
    pub items: Vec<AuditedItem>,
    /// All classes, in the order of [`Embeddings::classes`].
    pub classes: Vec<AuditedClass>,
    /// The expected number of wrong labels: the sum of [`AuditedItem::p_wrong`].
    pub expected_wrong: f64,
    /// The numbers of items to relabel, to quarantine, to review and to keep.
    pub counts: AuditCounts,
    /// Pairs of items that are equal or nearly equal; those with different labels are label conflicts and come first.
    pub duplicates: Vec<Duplicate>,
    /// Images that are blurred, dark, blank, tiny or unreadable; empty if the rows were not made from images.
    pub image_problems: Vec<ImageProblem>,
    /// Problems with classes or the whole collection: classes of a single item, classes with the same items, one
    /// repeated item, or embeddings that hardly distinguish the classes.
    pub warnings: Vec<String>,
    /// Per item, the classes it may belong to with their probabilities, most probable first. The class number
    /// `classes.len()` stands for "none of the classes".
    #[serde(skip)]
    pub shares: Vec<Vec<(u32, f32)>>,
}

/// The findings about one item.
#[derive(Debug, Clone, Serialize)]
pub struct AuditedItem {
    /// The name of the item: its path in a folder, or "row N".
    pub item: String,
    /// The label in the data.
    pub given: String,
    /// The probability that the label is wrong, from 0 to 1.
    pub p_wrong: f32,
    /// Whether the label is right, and what is right instead.
    pub verdict: Verdict,
    /// What a repair does with the item.
    pub action: Action,
    /// The label that the item should have, if the verdict is [`Verdict::Relabel`].
    pub suggested: Option<String>,
    /// The probability that the label is right, divided by its mean over all items with this label: 1 is usual, and a
    /// suspect item has less.
    pub weight: f32,
    /// The probability that the item belongs to none of the classes.
    pub p_outlier: f32,
    /// The three most probable classes, most probable first; "none of the classes" counts as one.
    pub probable: Vec<ProbableClass>,
    /// What would help to decide, if the verdict is [`Verdict::Unsure`] and a class has few items.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// Whether the user has confirmed the label.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub confirmed: bool,
    /// The most similar items, in descending order of similarity.
    pub neighbours: Vec<Neighbour>,
}

/// A class that an item may belong to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ProbableClass {
    /// The class; `None` stands for none of the classes.
    pub class: Option<String>,
    /// The probability that the item belongs to it, from 0 to 1.
    pub p: f32,
}

/// An item that is similar to another one.
#[derive(Debug, Clone, Serialize)]
pub struct Neighbour {
    /// The row of the similar item.
    #[serde(skip)]
    pub row: u32,
    /// The name of the similar item.
    pub item: String,
    /// The label of the similar item.
    pub given: String,
    /// The cosine of the two items, after subtraction of the mean of the classes' means.
    pub similarity: f32,
}

/// The findings about one class.
#[derive(Debug, Clone, Serialize)]
pub struct AuditedClass {
    /// The name of the class.
    pub class: String,
    /// The number of items with this label.
    pub items: usize,
    /// The expected number of wrong labels among them.
    pub expected_wrong: f64,
    /// The number of items with other labels for which the audit suggests this class.
    pub found_elsewhere: usize,
}

/// The scores of one item, before they become a verdict.
struct ScoredItem {
    posterior: Posterior,
    /// As [`AuditedItem::weight`].
    weight: f32,
    /// Rows of the most similar items with their cosines, most similar first: at least as many as are reported.
    neighbours: Vec<(u32, f32)>,
}

/// What is known about the rows besides their features and labels.
struct RowFacts<'a> {
    /// Per row, whether the user has confirmed its label; empty if no label is confirmed.
    confirmed: &'a [bool],
    /// Per row, the measures of its image, `None` if they are not known; empty if the rows were not made from images.
    measures: &'a [Option<ImageMeasures>],
    /// Names and classes of the images that cannot be read.
    unreadable: &'a [(String, Option<String>)],
}

/// Scores all items and turns the probabilities into verdicts: what [`AuditBuilder::run`] does after its checks.
fn run(data: &Embeddings, options: &Options, facts: &RowFacts<'_>, progress: &dyn Progress) -> Result<Audit> {
    let is_confirmed = |row: usize| facts.confirmed.get(row).copied().unwrap_or(false);
    // Score the items. Classes with the same items are scored as one class, and divided again afterwards.
    let merged = limits::Merged::new(data);
    let scored_data = merged.as_ref().map_or(data, |merged| &merged.data);
    let mut scored = score_items(scored_data, options.neighbours, is_confirmed, progress)?;
    if let Some(merged) = &merged {
        merged.divide(data, &mut scored);
    }
    // Correct the probabilities by what is known apart from the rows.
    limits::apply(data, &mut scored);
    for (row, item) in scored.iter_mut().enumerate().filter(|(row, _)| is_confirmed(*row)) {
        item.posterior.confirm(data.labels()[row]);
    }
    if let Some(share) = options.expected_noise {
        let mut posteriors: Vec<&mut Posterior> = scored.iter_mut().map(|item| &mut item.posterior).collect();
        verdict::match_expected_noise(&mut posteriors, share);
    }
    // Look for duplicates among the nearest neighbours, then keep only the neighbours that are reported.
    let compared = |item: &ScoredItem| item.neighbours.iter().take(COMPARED_NEIGHBOURS).copied().collect();
    let neighbours: Vec<Vec<(u32, f32)>> = scored.iter().map(compared).collect();
    let input = duplicates::DuplicateInput { neighbours: &neighbours, measures: facts.measures };
    let mut duplicates = duplicates::find(data, &input, &Poll::at_end(data, progress))?;
    // Warnings about classes of one item come before those about classes with the same items.
    duplicates.warnings.splice(..0, limits::warnings(data));
    scored.iter_mut().for_each(|item| item.neighbours.truncate(options.neighbours));
    // Turn the probabilities into verdicts.
    let mut audit = Audit::new(data, scored, options.certainty, is_confirmed, duplicates);
    if options.expected_noise.is_none() {
        audit.warnings.extend(limits::undistinguished(data, audit.expected_wrong));
    }
    Ok(Audit { image_problems: image_measures::find(data, facts.measures, facts.unreadable), ..audit })
}

/// Checks for cancellation in phases during which the number of finished items stays the same. Loops over the items
/// call [`Poll::check`], on any thread; matrix decompositions do not.
struct Poll<'a> {
    progress: &'a dyn Progress,
    /// Items that have finished, and the number of all items: the arguments of [`Progress::check`].
    done: u64,
    total: u64,
}

impl<'a> Poll<'a> {
    /// A poll for the phases after all items have been scored.
    fn at_end(data: &Embeddings, progress: &'a dyn Progress) -> Self {
        Poll { progress, done: data.len() as u64, total: data.len() as u64 }
    }

    fn check(&self) -> Result<()> {
        self.progress.check(self.done, self.total)
    }
}

/// Computes the class probabilities of all items in several rounds, one per built-in network. The result has one entry
/// per row, in the order of `data`. `neighbours` is the number of similar items to report.
fn score_items(
    data: &Embeddings,
    neighbours: usize,
    is_confirmed: impl Fn(usize) -> bool,
    progress: &dyn Progress,
) -> Result<Vec<ScoredItem>> {
    let total = data.len() as u64;
    let scorers = Scorer::built_in()?;
    let collection = OrderedRows::new(data, is_confirmed);
    // Preparing the evidence takes about half of the time, so with R rounds, round r starts at (R + r) / 2R of the
    // work.
    let evidence = Evidence::new(&collection, neighbours, &Poll { progress, done: 0, total })?;
    let mut shares = evidence.given();
    for (round, scorer) in scorers.iter().enumerate() {
        let finished_parts = scorers.len() + round;
        let done = total * finished_parts as u64 / (2 * scorers.len()) as u64;
        progress.check(done, total)?;
        shares = evidence.round(scorer, &shares, &Poll { progress, done, total })?;
    }
    progress.check(total, total)?;
    let (weights, classes) = (weights(&collection, &shares), &collection.classes);
    // Translate positions and class numbers of the ordered collection back to rows and classes of `data`.
    let mut scored: Vec<Option<ScoredItem>> = (0..data.len()).map(|_| None).collect();
    for (position, shares) in shares.iter().enumerate() {
        let sum: f32 = shares.iter().map(|(_, share)| share).sum();
        let shares = shares.iter().map(|&(class, share)| (classes[class as usize], share)).collect();
        let given = classes[collection.given[position] as usize];
        let nearest = evidence.neighbours[position].iter();
        scored[collection.order[position] as usize] = Some(ScoredItem {
            posterior: Posterior::new(given, shares, (1.0 - sum).max(0.0), classes.len()),
            weight: weights[position],
            neighbours: nearest.map(|&(other, cosine)| (collection.order[other as usize], cosine)).collect(),
        });
    }
    Ok(scored.into_iter().map(|item| item.expect("every row has a position")).collect())
}

/// [`AuditedItem::weight`] of each item, in the order of `collection`; 1 for the items of a class in which all labels
/// are wrong for certain.
fn weights(collection: &OrderedRows, shares: &[evidence::Shares]) -> Vec<f32> {
    let right: Vec<f32> =
        shares.iter().zip(&collection.given).map(|(shares, &given)| evidence::share(shares, given)).collect();
    // Per class, the sum of these probabilities and the number of items.
    let mut sums = vec![(0.0, 0.0); collection.classes.len()];
    for (right, &given) in right.iter().zip(&collection.given) {
        let (sum, count) = &mut sums[given as usize];
        *sum += right;
        *count += 1.0;
    }
    let weight = |(right, &given): (&f32, &u32)| {
        let (sum, count) = sums[given as usize];
        if sum > 0.0 { right * count / sum } else { 1.0 }
    };
    right.iter().zip(&collection.given).map(weight).collect()
}

impl Audit {
    /// Starts an audit of labelled rows: set options on the builder, then call [`AuditBuilder::run`].
    pub fn of(data: &Embeddings) -> AuditBuilder<'_> {
        AuditBuilder::new(data)
    }

    /// The report of scored items, `scored[row]` for each row of `data`: names instead of indices, verdicts and counts.
    fn new(
        data: &Embeddings,
        scored: Vec<ScoredItem>,
        certainty: Certainty,
        is_confirmed: impl Fn(usize) -> bool,
        DuplicateFindings { duplicates, warnings }: DuplicateFindings,
    ) -> Self {
        let name = |row: u32| item_name(data, row as usize);
        let class_name = |class: u32| data.classes()[class as usize].clone();
        let mut classes: Vec<AuditedClass> =
            data.classes().iter().map(|name| AuditedClass::empty(name)).collect();
        let mut items = Vec::with_capacity(scored.len());
        let mut shares = Vec::with_capacity(scored.len());
        for (row, ScoredItem { posterior, weight, neighbours }) in scored.into_iter().enumerate() {
            let given = data.labels()[row];
            let (verdict, suggested) = posterior.verdict(certainty);
            let given_class = &mut classes[given as usize];
            given_class.items += 1;
            given_class.expected_wrong += f64::from(posterior.p_wrong());
            if let Some(class) = suggested {
                classes[class as usize].found_elsewhere += 1;
            }
            let neighbour = |&(row, similarity): &(u32, f32)| Neighbour {
                row,
                item: name(row),
                given: class_name(data.labels()[row as usize]),
                similarity,
            };
            let counts = |class: u32| data.rows_of(class as usize).len();
            items.push(AuditedItem {
                item: name(row as u32),
                given: class_name(given),
                p_wrong: posterior.p_wrong(),
                verdict,
                action: Action::new(verdict, posterior.p_wrong(), certainty),
                suggested: suggested.map(class_name),
                weight,
                p_outlier: posterior.p_none(),
                probable: posterior
                    .probable()
                    .into_iter()
                    .map(|(class, p)| ProbableClass { class: class.map(class_name), p })
                    .collect(),
                advice: match verdict {
                    Verdict::Unsure => posterior.advice(counts, class_name),
                    _ => None,
                },
                confirmed: is_confirmed(row),
                neighbours: neighbours.iter().map(neighbour).collect(),
            });
            shares.push(posterior.into_shares());
        }
        let expected_wrong = classes.iter().map(|class| class.expected_wrong).sum();
        Audit {
            method: "evidence".into(),
            counts: AuditCounts::new(&items),
            items,
            classes,
            expected_wrong,
            duplicates,
            image_problems: Vec::new(),
            warnings,
            shares,
        }
    }

    /// The indices of all items, in descending order of the probability that the label is wrong.
    pub fn ranking(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.items.len()).collect();
        order.sort_by(|&a, &b| self.items[b].p_wrong.total_cmp(&self.items[a].p_wrong));
        order
    }
}

impl AuditedItem {
    /// Whether the label is suspect: more likely wrong than right. At a probability of exactly 0.5, the verdict
    /// decides.
    pub fn is_suspect(&self) -> bool {
        self.verdict != Verdict::Keep && self.p_wrong >= 0.5
    }
}

impl AuditedClass {
    fn empty(name: &str) -> Self {
        AuditedClass { class: name.into(), items: 0, expected_wrong: 0.0, found_elsewhere: 0 }
    }
}

/// The name of an item; "row N" if the data has no names.
pub(crate) fn item_name(data: &Embeddings, row: usize) -> String {
    data.item(row).map_or_else(|| format!("row {row}"), str::to_string)
}

#[cfg(test)]
mod tests;
