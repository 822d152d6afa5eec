//! A plan: JSON lines. The first says what it is for, then comes a line for every change, and last, in one line, what the
//! collection looked like, so that one that has changed since is not repaired by accident. Lines may be taken out and
//! edited; blank ones and those that begin with `#` do not count.

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::moves::LONGEST_NAME;
use crate::audit::{Audit, AuditedItem, Change, Effects, Verdict, effects};
use crate::embeddings::Embeddings;
use crate::error::{Error, Result};
use crate::visible::visible;

const FORMAT: &str = "trueshot-plan/1";
/// Items named when a collection has changed.
const NAMED: usize = 3;

/// What a collection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A folder of class folders, whose files can be moved.
    Folder,
    /// Pictures in a list or an archive.
    Pictures,
    /// Rows.
    Embeddings,
}

/// One item of a collection as the audit saw it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// The name of the item within the collection.
    pub item: String,
    /// The class it is filed under; `None` for a file that was skipped.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub class: Option<String>,
    /// The size of its file in bytes, for an item with a file of its own.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub size: Option<u64>,
    /// When its file was last modified, in nanoseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub modified: Option<u64>,
    /// The BLAKE3 hash of its file as it was embedded, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hash: Option<String>,
}

impl Listed {
    /// Whether size and modification time are known and equal.
    fn looks_unchanged(&self, now: &Listed) -> bool {
        self.modified.is_some() && (self.size, self.modified) == (now.size, now.modified)
    }
}

/// The first line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanHeader {
    format: String,
    /// What was looked at.
    pub kind: Kind,
    /// Where it is.
    pub root: PathBuf,
    /// How many items it had.
    pub items: usize,
    /// A hash of the rows, for embeddings.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fingerprint: Option<String>,
    /// The share of items that the others recognise, as they are filed now.
    pub accuracy: f64,
    /// The same after all changes.
    pub accuracy_after: f64,
}

/// A line that says what to do with an item.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedChange {
    /// The item.
    pub item: String,
    /// The class it is filed under.
    pub from: String,
    /// The class it goes to.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub to: Option<String>,
    /// Whether it leaves all classes instead.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub quarantine: bool,
    /// The probability that its label is wrong.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub p_wrong: Option<f32>,
    /// Why.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// What this change alone adds to the share of items that the others recognise.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub effect: Option<f64>,
}

/// The last line.
#[derive(Serialize, Deserialize)]
struct Listing {
    listing: Vec<Listed>,
}

/// What to change in a collection.
#[derive(Debug, Clone, PartialEq)]
pub struct RepairPlan {
    /// What it is for.
    pub header: PlanHeader,
    /// What to do.
    pub changes: Vec<PlannedChange>,
    /// What the collection looked like.
    pub listing: Vec<Listed>,
}

impl RepairPlan {
    /// What an audit suggests, the surest first. `listing` has the files, where there are any.
    pub fn of(audit: &Audit, data: &Embeddings, kind: Kind, root: &Path, listing: Vec<Listed>) -> Self {
        let acts = |row: &usize| matches!(audit.items[*row].verdict, Verdict::Relabel | Verdict::Outlier);
        let rows: Vec<usize> = audit.ranking().into_iter().filter(acts).collect();
        let class_of =
            |name: &String| data.classes().iter().position(|class| class == name).map(|n| n as u32);
        let change = |row: &usize| Change {
            row: *row as u32,
            to: audit.items[*row].suggested.as_ref().and_then(class_of),
        };
        let Effects { before, after, alone } = effects(data, &rows.iter().map(change).collect::<Vec<_>>());
        let planned =
            rows.iter().zip(alone).map(|(row, effect)| PlannedChange::of(&audit.items[*row], effect));
        let header = PlanHeader {
            format: FORMAT.into(),
            kind,
            root: root.into(),
            items: data.len(),
            fingerprint: (kind == Kind::Embeddings).then(|| data.fingerprint().to_string()),
            accuracy: rounded(before),
            accuracy_after: rounded(after),
        };
        RepairPlan { header, changes: planned.collect(), listing }
    }

    /// The plan as it is written.
    pub fn to_text(&self) -> String {
        let line = |value: serde_json::Result<String>| value.expect("plain data serialises") + "\n";
        let mut text = line(serde_json::to_string(&self.header));
        self.changes.iter().for_each(|change| text.push_str(&line(serde_json::to_string(change))));
        text + &line(serde_json::to_string(&Listing { listing: self.listing.clone() }))
    }

    /// Reads a plan; `path` is what errors call it.
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        let bad = |line: usize, problem: String| Error::BadPlan { path: path.into(), line, problem };
        let counts =
            |(_, line): &(usize, &str)| !line.trim().is_empty() && !line.trim_start().starts_with('#');
        let mut lines = (1..).zip(text.lines()).filter(counts);
        let (number, first) = lines.next().ok_or_else(|| bad(1, "an empty plan".into()))?;
        let header: PlanHeader = serde_json::from_str(first)
            .ok()
            .filter(|header: &PlanHeader| header.format == FORMAT)
            .ok_or_else(|| bad(number, "not a plan that `trueshot audit --plan` wrote".into()))?;
        let mut plan = RepairPlan { header, changes: Vec::new(), listing: Vec::new() };
        for (number, line) in lines {
            if let Ok(found) = serde_json::from_str::<Listing>(line) {
                plan.listing = found.listing;
                continue;
            }
            let change: PlannedChange = serde_json::from_str(line)
                .map_err(|problem| bad(number, format!("not a change: {problem}")))?;
            change.check().map_err(|problem| bad(number, problem))?;
            plan.changes.push(change);
        }
        plan.refuse_twice(path)?;
        Ok(plan)
    }

    fn refuse_twice(&self, path: &Path) -> Result<()> {
        let mut seen = HashSet::new();
        match self.changes.iter().find(|change| !seen.insert((&change.item, &change.from))) {
            None => Ok(()),
            Some(change) => {
                let problem = format!("{} is changed twice", visible(&change.item));
                Err(Error::BadPlan { path: path.into(), line: 0, problem })
            }
        }
    }

    /// Refuses a collection that is not the one the plan was made for.
    ///
    /// Names, classes and sizes are compared for all items. Contents are compared, by `hash_now`, for every item that the
    /// plan changes and for every other item whose modification time is not the recorded one.
    ///
    /// # Errors
    /// [`Error::CollectionChanged`] with the first few items that are gone, new or edited.
    pub fn check(&self, now: &[Listed], hash_now: &(dyn Fn(&Listed) -> Option<String> + Sync)) -> Result<()> {
        let changed = |problem| Error::CollectionChanged { root: self.header.root.clone(), problem };
        let (then, now) = (by_name(&self.listing), by_name(now));
        let (gone, new) = (missing(&then, &now), missing(&now, &then));
        let pairs: Vec<(&Listed, &Listed)> =
            then.iter().filter_map(|(key, then)| Some((*then, *now.get(key)?))).collect();
        let (same_size, other_size): (Vec<_>, Vec<_>) =
            pairs.into_iter().partition(|(a, b)| a.size == b.size);
        let other_size: Vec<&str> = other_size.iter().map(|(then, _)| then.item.as_str()).collect();
        let edited = self.edited(&same_size, hash_now);
        let problems = [(gone, "gone"), (new, "new"), (other_size, "of another size"), (edited, "edited")];
        let problems: Vec<String> =
            problems.into_iter().filter_map(|(names, what)| counted(&names, what)).collect();
        if problems.is_empty() { self.check_items() } else { Err(changed(problems.join(", "))) }
    }

    /// Items of the same size whose contents are others than those that were audited.
    fn edited<'a>(
        &self,
        pairs: &[(&'a Listed, &Listed)],
        hash_now: &(dyn Fn(&Listed) -> Option<String> + Sync),
    ) -> Vec<&'a str> {
        use rayon::prelude::*;
        let planned: HashSet<&str> = self.changes.iter().map(|change| change.item.as_str()).collect();
        let is_edited = |(then, now): &&(&'a Listed, &Listed)| {
            let must_be_read = planned.contains(then.item.as_str()) || !then.looks_unchanged(now);
            then.hash.is_some() && must_be_read && hash_now(now) != then.hash
        };
        pairs.par_iter().filter(is_edited).map(|(then, _)| then.item.as_str()).collect()
    }

    /// Every change must be of an item that is there.
    fn check_items(&self) -> Result<()> {
        let known: HashSet<(&str, &str)> = self
            .listing
            .iter()
            .filter_map(|listed| Some((listed.item.as_str(), listed.class.as_deref()?)))
            .collect();
        let is_unknown =
            |change: &&PlannedChange| !known.contains(&(change.item.as_str(), change.from.as_str()));
        match self.changes.iter().find(is_unknown) {
            None => Ok(()),
            Some(change) => {
                let problem = format!("no {} under class '{}'", visible(&change.item), visible(&change.from));
                Err(Error::CollectionChanged { root: self.header.root.clone(), problem })
            }
        }
    }
}

/// Items by class and name.
type ByName<'a> = BTreeMap<(Option<&'a str>, &'a str), &'a Listed>;

fn by_name(listing: &[Listed]) -> ByName<'_> {
    listing.iter().map(|listed| ((listed.class.as_deref(), listed.item.as_str()), listed)).collect()
}

/// The names of the items of one listing that the other does not have.
fn missing<'a>(of: &ByName<'a>, in_other: &ByName<'_>) -> Vec<&'a str> {
    of.iter()
        .filter(|(key, _)| !in_other.contains_key(*key))
        .map(|(_, listed)| listed.item.as_str())
        .collect()
}

/// "2 gone (a.jpg, b.jpg)", or nothing.
fn counted(names: &[&str], what: &str) -> Option<String> {
    let shown: Vec<String> = names.iter().take(NAMED).map(|item| visible(item)).collect();
    let more = if names.len() > NAMED { ", .." } else { "" };
    (!names.is_empty()).then(|| format!("{} {what} ({}{more})", names.len(), shown.join(", ")))
}

impl PlannedChange {
    fn of(item: &AuditedItem, effect: f64) -> Self {
        let like: Vec<String> = item
            .neighbours
            .iter()
            .take(NAMED)
            .map(|neighbour| format!("{} ({})", neighbour.item, neighbour.given))
            .collect();
        PlannedChange {
            item: item.item.clone(),
            from: item.given.clone(),
            to: item.suggested.clone(),
            quarantine: item.verdict == Verdict::Outlier,
            p_wrong: Some(item.p_wrong),
            reason: Some(format!("most similar to {}", like.join(", "))),
            effect: Some(rounded(effect)),
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        match (&self.to, self.quarantine) {
            (None, false) => Err("it has neither 'to' nor 'quarantine'; exactly one is needed".into()),
            (Some(_), true) => Err("it has both 'to' and 'quarantine'; exactly one is needed".into()),
            (Some(to), false) if !is_class_name(to) => {
                Err(format!("'{}' cannot be the name of a class", visible(to)))
            }
            _ => Ok(()),
        }
    }
}

/// Whether a name may become folders: it must stay below the folder it is in.
fn is_class_name(name: &str) -> bool {
    let is_part = |part: &str| {
        !matches!(part, "" | "." | "..") && !part.contains(['\\', '\0', ':']) && part.len() <= LONGEST_NAME
    };
    name.split('/').all(is_part) && !name.starts_with(super::QUARANTINE)
}

/// Six digits are more than enough to edit by hand.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}
