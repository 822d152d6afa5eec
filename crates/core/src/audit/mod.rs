//! Looking through labelled items: which are filed under the wrong class, where they belong, and how sure that is.
//!
//! The Relabel head says of every item whose it probably is. It looks at some dozens of items at once (`rooms`), so a
//! large collection is shown to it piece by piece, every item in the company of those it might belong to. From its
//! probabilities follow the verdicts (`verdict`); the nearest items it was compared with are the reason that is given.

mod duplicates;
mod effect;
mod map;
mod rooms;
mod rows;
mod verdict;

use rayon::prelude::*;
use serde::Serialize;

use self::duplicates::Sameness;
pub use self::duplicates::{Duplicate, DuplicateKind};
pub use self::effect::{Change, Effects, effects};
pub use self::map::map;
use self::rooms::{Room, Rooms};
use self::verdict::Opinion;
pub use self::verdict::{Certainty, Verdict};
use crate::embeddings::Embeddings;
use crate::error::{Error, Result};
use crate::evaluate::Watcher;
use crate::method::TrainedRelabel;

/// How to look.
#[derive(Debug, Clone)]
pub struct Options {
    /// How sure a verdict must be.
    pub certainty: Certainty,
    /// The share of wrong labels, from somebody who knows; otherwise it is found out.
    pub expected_noise: Option<f64>,
    /// How many neighbours to name.
    pub neighbours: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { certainty: Certainty::default(), expected_noise: None, neighbours: 5 }
    }
}

/// What was found.
#[derive(Debug, Clone, Serialize)]
pub struct Audit {
    /// What judged.
    pub method: String,
    /// Every item, in the order of the data.
    pub items: Vec<Audited>,
    /// Every class.
    pub classes: Vec<AuditedClass>,
    /// How many labels are wrong, by the sum of their probabilities.
    pub expected_wrong: f64,
    /// Items that are there twice.
    pub duplicates: Vec<Duplicate>,
    /// What is odd about whole classes: two with the same items, or nothing but one item over and over.
    pub warnings: Vec<String>,
    /// For every item the classes it may belong to with their probabilities, most probable first; the last class
    /// stands for none of them.
    #[serde(skip)]
    pub shares: Vec<Vec<(u32, f32)>>,
}

/// One item.
#[derive(Debug, Clone, Serialize)]
pub struct Audited {
    /// Its name.
    pub item: String,
    /// The class it is filed under.
    pub given: String,
    /// The probability that this is wrong.
    pub p_wrong: f32,
    /// What to do with it.
    pub verdict: Verdict,
    /// Where it belongs, if that is clear and elsewhere.
    pub suggested: Option<String>,
    /// How much it counts in its class, 1 being an ordinary item.
    pub weight: f32,
    /// The probability that it belongs to no class.
    pub p_outlier: f32,
    /// What would settle it, if it is not clear.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub advice: Option<String>,
    /// Whether somebody has confirmed its label.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub confirmed: bool,
    /// The items most like it, the most like first.
    pub neighbours: Vec<Neighbour>,
}

/// An item like another.
#[derive(Debug, Clone, Serialize)]
pub struct Neighbour {
    /// Its place in the data.
    #[serde(skip)]
    pub row: u32,
    /// Its name.
    pub item: String,
    /// The class it is filed under.
    pub given: String,
    /// The cosine of the two, after the mean of what they were compared with is subtracted.
    pub similarity: f32,
}

/// One class.
#[derive(Debug, Clone, Serialize)]
pub struct AuditedClass {
    /// Its name.
    pub class: String,
    /// Items filed under it.
    pub items: usize,
    /// How many of them are wrong, by the sum of their probabilities.
    pub expected_wrong: f64,
    /// Items of other classes that belong to it.
    pub found_elsewhere: usize,
}

/// What the head says of one item, before it is put into words.
struct Judged {
    opinion: Opinion,
    weight: f32,
    /// Row and similarity.
    neighbours: Vec<(u32, f32)>,
}

/// Looks through labelled items. Those that are `confirmed` (one entry a row, or none at all) stay where they are.
///
/// The watcher is told how many items have been judged, and is asked in between, from any thread and with the same
/// number again, whether to go on.
pub fn audit(
    data: &Embeddings,
    head: &TrainedRelabel,
    options: &Options,
    confirmed: &[bool],
    watcher: &dyn Watcher,
) -> Result<Audit> {
    if data.classes().len() < 2 {
        return Err(Error::OneClass);
    }
    assert!(confirmed.is_empty() || confirmed.len() == data.len(), "one entry per row");
    if let Some(given) = options.expected_noise.filter(|share| !(0.0..1.0).contains(share)) {
        let allowed = "a share from 0 to below 1".to_string();
        return Err(Error::OutOfRange { what: "the expected noise", given: given.to_string(), allowed });
    }
    let mut judged = judge(data, head, options.neighbours, watcher)?;
    let is_confirmed = |row: usize| confirmed.get(row).copied().unwrap_or(false);
    for (row, judged) in judged.iter_mut().enumerate().filter(|(row, _)| is_confirmed(*row)) {
        judged.opinion.settle(data.labels()[row]);
    }
    if let Some(share) = options.expected_noise {
        let mut opinions: Vec<&mut Opinion> = judged.iter_mut().map(|judged| &mut judged.opinion).collect();
        verdict::expect(&mut opinions, share);
    }
    let sameness = duplicates::find(data, &Poll { watcher, done: data.len() as u64 })?;
    Ok(Audit::of(data, judged, options.certainty, is_confirmed, sameness))
}

/// Asks the watcher whether to go on, in phases during which the number of finished items stays the same. Every loop that
/// can take long calls [`Poll::check`], on whatever thread it runs.
struct Poll<'a> {
    watcher: &'a dyn Watcher,
    done: u64,
}

impl Poll<'_> {
    fn check(&self) -> Result<()> {
        if self.watcher.progress(self.done) { Ok(()) } else { Err(Error::Interrupted) }
    }
}

/// Asks the head about every item, room by room.
fn judge(
    data: &Embeddings,
    head: &TrainedRelabel,
    neighbours: usize,
    watcher: &dyn Watcher,
) -> Result<Vec<Judged>> {
    let rooms = Rooms::new(data, &Poll { watcher, done: 0 })?;
    let mut judged: Vec<Option<Judged>> = (0..data.len()).map(|_| None).collect();
    let mut done = 0;
    for group in rooms.all().chunks(rooms::AT_ONCE) {
        let poll = Poll { watcher, done };
        let judge = |room: &Room| {
            poll.check()?;
            room.judge(data, head, neighbours)
        };
        let found: Vec<Vec<(u32, Judged)>> = group.par_iter().map(judge).collect::<Result<_>>()?;
        for (row, found) in found.into_iter().flatten() {
            judged[row as usize] = Some(found);
        }
        done += group.iter().map(Room::asked).sum::<usize>() as u64;
        if !watcher.progress(done) {
            return Err(Error::Interrupted);
        }
    }
    Ok(judged.into_iter().map(|judged| judged.expect("every item is scored in one chunk")).collect())
}

impl Audit {
    fn of(
        data: &Embeddings,
        judged: Vec<Judged>,
        certainty: Certainty,
        is_confirmed: impl Fn(usize) -> bool,
        Sameness { duplicates, warnings }: Sameness,
    ) -> Self {
        let name = |row: u32| item_name(data, row as usize);
        let class_name = |class: u32| data.classes()[class as usize].clone();
        let mut classes: Vec<AuditedClass> =
            data.classes().iter().enumerate().map(AuditedClass::empty).collect();
        let mut items = Vec::with_capacity(judged.len());
        let mut shares = Vec::with_capacity(judged.len());
        for (row, Judged { opinion, weight, neighbours }) in judged.into_iter().enumerate() {
            let given = data.labels()[row];
            let (verdict, suggested) = opinion.verdict(certainty);
            let own = &mut classes[given as usize];
            own.items += 1;
            own.expected_wrong += f64::from(opinion.p_wrong());
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
            items.push(Audited {
                item: name(row as u32),
                given: class_name(given),
                p_wrong: opinion.p_wrong(),
                verdict,
                suggested: suggested.map(class_name),
                weight,
                p_outlier: opinion.p_none(),
                advice: (verdict == Verdict::Unsure).then(|| opinion.advice(counts, class_name)),
                confirmed: is_confirmed(row),
                neighbours: neighbours.iter().map(neighbour).collect(),
            });
            shares.push(opinion.into_shares());
        }
        let expected_wrong = classes.iter().map(|class| class.expected_wrong).sum();
        Audit { method: "relabel".into(), items, classes, expected_wrong, duplicates, warnings, shares }
    }

    /// The places of all items, the most suspicious first.
    pub fn ranking(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.items.len()).collect();
        order.sort_by(|&a, &b| self.items[b].p_wrong.total_cmp(&self.items[a].p_wrong));
        order
    }

    /// Whether anything should be looked at: an item that is wrong, or one that may be.
    pub fn finds_something(&self) -> bool {
        self.items.iter().any(|item| item.is_suspect())
    }
}

impl Audited {
    /// Whether it should be looked at.
    pub fn is_suspect(&self) -> bool {
        match self.verdict {
            Verdict::Keep => false,
            Verdict::Relabel | Verdict::Outlier => true,
            Verdict::Unsure => self.p_wrong >= 0.5,
        }
    }
}

impl AuditedClass {
    fn empty((_, name): (usize, &String)) -> Self {
        AuditedClass { class: name.clone(), items: 0, expected_wrong: 0.0, found_elsewhere: 0 }
    }
}

/// What an item is called where the data has no name for it.
pub(crate) fn item_name(data: &Embeddings, row: usize) -> String {
    data.item(row).map_or_else(|| format!("row {row}"), str::to_string)
}

#[cfg(test)]
mod tests;
