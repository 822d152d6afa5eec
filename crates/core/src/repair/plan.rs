//! Repair plans ([`RepairPlan`]): the changes of labels that an audit suggests, as a text file that a user can edit.
//!
//! A plan is a file of JSON lines. The first line describes the collection ([`PlanHeader`]), then follows one line per
//! change ([`PlannedChange`]), and the last line lists all items of the collection ([`ListedItem`]), so that a
//! collection that has changed since the audit is not repaired by accident. Only images are items, so the report or the
//! plan may be written into the audited folder. A user may edit and remove lines; blank lines and lines that start with
//! `#` are ignored. Items to review are commented-out changes: a user who agrees removes the `#`.
//!
//! [`RepairPlan::new`] makes a plan from an audit, [`RepairPlan::to_text`] and [`RepairPlan::parse`] write and read it,
//! and [`RepairPlan::check`] compares it with the collection before a repair.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::folder::is_inside;
use super::moves::MAX_NAME_BYTES;
use crate::audit::{Action, Audit, AuditedItem, Change, Effects, effects};
use crate::embeddings::Embeddings;
use crate::error::{Error, Result};
use crate::method::nearest_name;
use crate::visible::visible;

/// The version of the file format, in the first line.
const FORMAT: &str = "trueshot-plan/1";
/// Maximum number of items that an error message or the reason for a change names.
const MAX_NAMED: usize = 3;

/// The kind of an audited collection, which decides how it can be repaired.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CollectionKind {
    /// A folder of class folders, whose files can be moved.
    Folder,
    /// Images of a list or an archive, whose files cannot be moved.
    #[serde(rename = "pictures")]
    ImageList,
    /// Rows of an embeddings file.
    Embeddings,
}

/// One item of a collection at the time of the audit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ListedItem {
    /// The name of the item within the collection.
    pub item: String,
    /// The given class of the item. `None` marks a file that is not an image, in plans of earlier versions; it is not
    /// compared.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub class: Option<String>,
    /// The size of the item's file in bytes, for an item with a file of its own.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub size: Option<u64>,
    /// The modification time of the file, in nanoseconds since 1970.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub modified: Option<u64>,
    /// The BLAKE3 hash of the file when it was embedded, in hexadecimal.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub hash: Option<String>,
}

impl ListedItem {
    /// Whether the size of the file has changed; `self` is the item at the time of the audit, `now` the item today.
    /// Items in an archive have no sizes, so the plan for a folder is compared with an archive of the folder by hash
    /// only, and vice versa.
    fn has_other_size(&self, now: &ListedItem) -> bool {
        match (self.size, now.size) {
            (Some(then), Some(now)) => then != now,
            // The item has no file today. Only a hash could show that its contents are the same.
            (Some(_), None) => self.hash.is_none(),
            (None, _) => false,
        }
    }

    /// Whether size and modification time are known and equal.
    fn looks_unchanged(&self, now: &ListedItem) -> bool {
        self.modified.is_some() && (self.size, self.modified) == (now.size, now.modified)
    }
}

/// The first line of a plan: the collection it is for.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanHeader {
    format: String,
    /// The kind of the collection.
    pub kind: CollectionKind,
    /// The path of the folder, list, archive or embeddings file.
    pub root: PathBuf,
    /// Number of audited items.
    pub items: usize,
    /// The fingerprint of the rows, for embeddings files.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub fingerprint: Option<String>,
    /// Number of changes that the audit planned. A user may have added or removed some since.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub changes: Option<usize>,
    /// The leave-one-out accuracy with the given labels, from 0 to 1. Plans from the web page do not have it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub accuracy: Option<f64>,
    /// The leave-one-out accuracy after all changes that the audit planned.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub accuracy_after: Option<f64>,
    /// The BLAKE3 hash of the changes that the audit planned, in hexadecimal. After an edit the hash differs, which
    /// shows that `accuracy_after` and the effects of changes no longer apply.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub digest: Option<String>,
}

/// One change of a plan: an item moves to another class or into quarantine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedChange {
    /// The name of the item within the collection.
    pub item: String,
    /// The given class of the item.
    pub from: String,
    /// The row of the embeddings, if several rows have this name and this class.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub row: Option<usize>,
    /// The new class; `None` if the item goes into quarantine.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub to: Option<String>,
    /// Whether the item goes into quarantine, because it belongs to none of the classes or to an uncertain one.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub quarantine: bool,
    /// The probability that the given label is wrong.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub p_wrong: Option<f32>,
    /// The reason for the change, as text for the user.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// The difference that this change alone makes to the leave-one-out accuracy, from -1 to 1.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub effect: Option<f64>,
}

/// A class that a plan creates.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewClass {
    /// The name of the class.
    pub name: String,
    /// Number of items that go to it.
    pub items: usize,
    /// The existing class with the most similar name; `None` if no name is similar.
    pub nearest: Option<String>,
}

/// The last line of a plan.
#[derive(Serialize, Deserialize)]
struct Listing {
    listing: Vec<ListedItem>,
}

/// A plan of label changes in a collection.
///
/// ```
/// use trueshot::repair::{RepairPlan, moves};
///
/// let text = r#"{"format": "trueshot-plan/1", "kind": "folder", "root": "photos", "items": 2, "accuracy": 0.5, "accuracy_after": 1.0}
/// {"item": "cat/rex.jpg", "from": "cat", "to": "dog"}
/// {"listing": [{"item": "cat/rex.jpg", "class": "cat"}, {"item": "dog/fido.jpg", "class": "dog"}]}"#;
/// let plan = RepairPlan::parse(text, "plan.jsonl".as_ref())?;
/// assert_eq!(moves(&plan, [])[0].to, "dog/rex.jpg");
/// # Ok::<(), trueshot::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct RepairPlan {
    /// The collection that the plan is for.
    pub header: PlanHeader,
    /// The changes to make.
    pub changes: Vec<PlannedChange>,
    /// The items to review, each with its most probable change. They are comments in the file, which no repair makes.
    pub review: Vec<PlannedChange>,
    /// All items of the collection at the time of the audit.
    pub listing: Vec<ListedItem>,
}

impl RepairPlan {
    /// The plan that an audit of `data` suggests, with the most probable errors first. `listing` are the items of the
    /// collection with their files, if it has files.
    pub fn new(
        audit: &Audit,
        data: &Embeddings,
        kind: CollectionKind,
        root: &Path,
        listing: Vec<ListedItem>,
    ) -> Self {
        // The changes, and their effects on the leave-one-out accuracy.
        let rows = audit.with_actions(&[Action::Relabel, Action::Quarantine]);
        let class_index =
            |name: &String| data.classes().iter().position(|class| class == name).map(|n| n as u32);
        let change = |row: &usize| Change {
            row: *row as u32,
            to: audit.items[*row].suggested.as_ref().and_then(class_index),
        };
        let Effects { before, after, alone } = effects(data, &rows.iter().map(change).collect::<Vec<_>>());
        // Rows whose name and class do not identify them. Files have different names.
        let mut rows_of_name: HashMap<(&str, &str), usize> = HashMap::new();
        if kind == CollectionKind::Embeddings {
            for item in &audit.items {
                *rows_of_name.entry((&item.item, &item.given)).or_default() += 1;
            }
        }
        let row_if_needed = |row: usize| {
            let item = &audit.items[row];
            let same_name = rows_of_name.get(&(&*item.item, &*item.given));
            same_name.is_some_and(|&count| count > 1).then_some(row)
        };
        let planned = rows.iter().zip(alone).map(|(&row, effect)| PlannedChange {
            row: row_if_needed(row),
            ..PlannedChange::new(&audit.items[row], effect)
        });
        let changes: Vec<PlannedChange> = planned.collect();
        let header = PlanHeader {
            format: FORMAT.into(),
            kind,
            root: root.into(),
            items: data.len(),
            fingerprint: (kind == CollectionKind::Embeddings).then(|| data.fingerprint().to_string()),
            changes: Some(changes.len()),
            accuracy: Some(rounded(before)),
            accuracy_after: Some(rounded(after)),
            digest: Some(digest(&changes)),
        };
        let reviewed = audit.with_actions(&[Action::Review]);
        let to_review = |&row: &usize| PlannedChange {
            row: row_if_needed(row),
            ..PlannedChange::to_review(&audit.items[row])
        };
        let review = reviewed.iter().map(to_review).collect();
        RepairPlan { header, changes, review, listing }
    }

    /// The text of the plan file.
    pub fn to_text(&self) -> String {
        let line = |value: serde_json::Result<String>| value.expect("a plan is plain data") + "\n";
        let mut text = line(serde_json::to_string(&self.header));
        self.changes.iter().for_each(|change| text.push_str(&line(serde_json::to_string(change))));
        if !self.review.is_empty() {
            text.push_str("# To review: remove the # in front of a change to make it.\n");
        }
        for change in &self.review {
            text.push_str(&format!("# {}", line(serde_json::to_string(change))));
        }
        text + &line(serde_json::to_string(&Listing { listing: self.listing.clone() }))
    }

    /// The text that tells the user what the plan does, such as "1 to relabel, 2 to quarantine, 3 to review". The
    /// numbers are those of [`AuditCounts`](crate::audit::AuditCounts), unless the plan was edited. If it was not, the
    /// leave-one-out accuracy follows.
    pub fn summary(&self) -> String {
        let quarantine = self.changes.iter().filter(|change| change.quarantine).count();
        let (relabel, review) = (self.changes.len() - quarantine, self.review.len());
        let counts = format!("{relabel} to relabel, {quarantine} to quarantine, {review} to review");
        match (self.header.accuracy, self.header.accuracy_after) {
            (Some(before), Some(after)) if !self.is_edited() && !self.changes.is_empty() => format!(
                "{counts}; leave-one-out accuracy: {:.1} % now, {:.1} % after all changes",
                100.0 * before,
                100.0 * after
            ),
            _ => counts,
        }
    }

    /// Whether the changes may differ from those that the audit planned. Then the accuracies in the header and the
    /// effects of changes do not apply.
    pub fn is_edited(&self) -> bool {
        self.header.digest.as_deref() != Some(digest(&self.changes).as_str())
    }

    /// Parses the text of a plan file; error messages call it `path`.
    ///
    /// # Errors
    /// [`Error::BadPlan`] with the number of the first line that is not valid, or if the last line, which lists the
    /// images of the collection, is missing.
    pub fn parse(text: &str, path: &Path) -> Result<Self> {
        // Line 0 stands for the whole file.
        let bad = |line: usize, problem: String| Error::BadPlan { path: path.into(), line, problem };
        let is_comment = |line: &str| line.trim_start().starts_with('#');
        let is_content = |(_, line): &(usize, &str)| !line.trim().is_empty() && !is_comment(line);
        let mut lines = (1..).zip(text.lines()).filter(is_content);
        let (number, first) = lines.next().ok_or_else(|| bad(1, "an empty plan".into()))?;
        let header: PlanHeader = serde_json::from_str(first)
            .ok()
            .filter(|header: &PlanHeader| header.format == FORMAT)
            .ok_or_else(|| bad(number, "not a plan that `trueshot audit --plan` wrote".into()))?;
        // Comments that contain a change are items to review; all other comments are ignored.
        let commented = |line: &str| serde_json::from_str(line.trim_start().strip_prefix('#')?).ok();
        let review = text.lines().filter_map(commented).collect();
        // All other lines are changes or the listing. `numbers` are the line numbers of the changes.
        let mut plan = RepairPlan { header, changes: Vec::new(), review, listing: Vec::new() };
        let (mut numbers, mut has_listing) = (Vec::new(), false);
        for (number, line) in lines {
            if let Ok(last_line) = serde_json::from_str::<Listing>(line) {
                plan.listing = last_line.listing;
                has_listing = true;
                continue;
            }
            let change: PlannedChange = serde_json::from_str(line)
                .map_err(|problem| bad(number, format!("not a change: {problem}")))?;
            change.check().map_err(|problem| bad(number, problem))?;
            plan.changes.push(change);
            numbers.push(number);
        }
        if !has_listing && plan.header.kind != CollectionKind::Embeddings {
            let problem = "the last line, which lists all images, is missing: the plan is truncated";
            return Err(bad(0, problem.into()));
        }
        plan.check_distinct(path)?;
        match plan.first_with_invalid_class() {
            None => Ok(plan),
            Some(index) => {
                let class = visible(plan.changes[index].to.as_deref().unwrap_or_default());
                Err(bad(numbers[index], format!("'{class}' cannot be the name of a class")))
            }
        }
    }

    /// The index of the first change to a class to which no item can move. A new class needs a name that is valid on
    /// every system, and a class of the collection one that stays below the root folder. Classes of embeddings have no
    /// folders, so their names are arbitrary.
    fn first_with_invalid_class(&self) -> Option<usize> {
        if self.header.kind == CollectionKind::Embeddings {
            return None;
        }
        let known: HashSet<&str> = self.listing.iter().filter_map(|listed| listed.class.as_deref()).collect();
        let is_allowed = |to: &str| is_class_name(to) || (known.contains(to) && is_inside(to));
        self.changes.iter().position(|change| change.to.as_deref().is_some_and(|to| !is_allowed(to)))
    }

    /// Checks that no item is changed twice.
    fn check_distinct(&self, path: &Path) -> Result<()> {
        let mut seen = HashSet::new();
        match self.changes.iter().find(|change| !seen.insert((&change.item, &change.from, change.row))) {
            None => Ok(()),
            Some(change) => {
                let problem = format!("{} is changed twice", visible(&change.item));
                Err(Error::BadPlan { path: path.into(), line: 0, problem })
            }
        }
    }

    /// Checks that a collection has not changed since the audit; `now` are its items today.
    ///
    /// Names, classes and, where both are known, sizes are compared for all items with a class. Contents are compared,
    /// by their hash, for every item that the plan changes and for every other item whose modification time is not the
    /// recorded one. `hash_now` reads an item and returns its hash in hexadecimal, `None` if it cannot be read.
    ///
    /// # Errors
    /// [`Error::CollectionChanged`] with the first few items that are missing, new or edited.
    pub fn check(
        &self,
        now: &[ListedItem],
        hash_now: &(dyn Fn(&ListedItem) -> Option<String> + Sync),
    ) -> Result<()> {
        let changed = |problem| Error::CollectionChanged { root: self.header.root.clone(), problem };
        let (then, now) = (by_name(&self.listing), by_name(now));
        let (gone, new) = (missing(&then, &now), missing(&now, &then));
        let pairs: Vec<(&ListedItem, &ListedItem)> =
            then.iter().filter_map(|(key, then)| Some((*then, *now.get(key)?))).collect();
        let (other_size, same_size): (Vec<_>, Vec<_>) =
            pairs.into_iter().partition(|(then, now)| then.has_other_size(now));
        let other_size: Vec<&str> = other_size.iter().map(|(then, _)| then.item.as_str()).collect();
        let edited = self.edited(&same_size, hash_now);
        let problems = [(gone, "gone"), (new, "new"), (other_size, "of another size"), (edited, "edited")];
        let problems: Vec<String> =
            problems.into_iter().filter_map(|(names, what)| names_in_words(&names, what)).collect();
        if problems.is_empty() { self.check_items() } else { Err(changed(problems.join(", "))) }
    }

    /// The names of the items whose contents differ from the audited ones. `pairs` are items at the time of the audit
    /// and today.
    fn edited<'a>(
        &self,
        pairs: &[(&'a ListedItem, &ListedItem)],
        hash_now: &(dyn Fn(&ListedItem) -> Option<String> + Sync),
    ) -> Vec<&'a str> {
        use rayon::prelude::*;
        let planned: HashSet<&str> = self.changes.iter().map(|change| change.item.as_str()).collect();
        let is_edited = |(then, now): &&(&'a ListedItem, &ListedItem)| {
            let must_be_read = planned.contains(then.item.as_str()) || !then.looks_unchanged(now);
            then.hash.is_some() && must_be_read && hash_now(now) != then.hash
        };
        pairs.par_iter().filter(is_edited).map(|(then, _)| then.item.as_str()).collect()
    }

    /// The classes that changes lead to but no item of the listing has, sorted by name. A class may have been misspelt.
    pub fn new_classes(&self) -> Vec<NewClass> {
        let known: BTreeSet<&str> =
            self.listing.iter().filter_map(|listed| listed.class.as_deref()).collect();
        let mut items: BTreeMap<&str, usize> = BTreeMap::new();
        let targets = self.changes.iter().filter_map(|change| change.to.as_deref());
        for to in targets.filter(|to| !known.contains(to)) {
            *items.entry(to).or_default() += 1;
        }
        let known: Vec<&str> = known.into_iter().collect();
        let new = |(name, items): (&str, usize)| NewClass {
            name: name.into(),
            items,
            nearest: nearest_name(name, &known),
        };
        items.into_iter().map(new).collect()
    }

    /// Checks that every changed item is in the listing under the class that the change names. Of embeddings with
    /// several such rows, the change must name one.
    fn check_items(&self) -> Result<()> {
        let changed = |problem| Error::CollectionChanged { root: self.header.root.clone(), problem };
        let mut listed: HashMap<(&str, &str), Vec<usize>> = HashMap::new();
        for (row, item) in self.listing.iter().enumerate() {
            if let Some(class) = &item.class {
                listed.entry((&item.item, class)).or_default().push(row);
            }
        }
        for change in &self.changes {
            let rows = listed.get(&(&*change.item, &*change.from)).map_or(&[][..], Vec::as_slice);
            let (item, class) = (visible(&change.item), visible(&change.from));
            match change.row {
                Some(row) if !rows.contains(&row) => {
                    return Err(changed(format!("row {row} is not {item} under class '{class}'")));
                }
                None if rows.is_empty() => {
                    return Err(changed(format!("no {item} under class '{class}'")));
                }
                None if rows.len() > 1 && self.header.kind == CollectionKind::Embeddings => {
                    let problem = format!(
                        "{} rows under class '{class}' are named {item}; add their \"row\" to the changes",
                        rows.len()
                    );
                    return Err(changed(problem));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Items by (class, name): a list may contain one image under two labels.
type ByName<'a> = BTreeMap<(&'a str, &'a str), &'a ListedItem>;

/// The items of a listing that have a class.
fn by_name(listing: &[ListedItem]) -> ByName<'_> {
    listing
        .iter()
        .filter_map(|listed| Some(((listed.class.as_deref()?, listed.item.as_str()), listed)))
        .collect()
}

/// The names of the items of one listing that the other does not have.
fn missing<'a>(listing: &ByName<'a>, other: &ByName<'_>) -> Vec<&'a str> {
    listing
        .iter()
        .filter(|(key, _)| !other.contains_key(*key))
        .map(|(_, listed)| listed.item.as_str())
        .collect()
}

/// A message such as "2 gone (a.jpg, b.jpg)", where `what` is "gone"; `None` if there are no names.
pub(super) fn names_in_words(names: &[&str], what: &str) -> Option<String> {
    let shown: Vec<String> = names.iter().take(MAX_NAMED).map(|item| visible(item)).collect();
    let more = if names.len() > MAX_NAMED { ", .." } else { "" };
    (!names.is_empty()).then(|| format!("{} {what} ({}{more})", names.len(), shown.join(", ")))
}

impl PlannedChange {
    /// The change that an audit suggests for an item: to its suggested class or, without one, into quarantine. `effect`
    /// is the difference to the leave-one-out accuracy.
    fn new(item: &AuditedItem, effect: f64) -> Self {
        let neighbours: Vec<String> = item
            .neighbours
            .iter()
            .take(MAX_NAMED)
            .map(|neighbour| format!("{} ({})", neighbour.item, neighbour.given))
            .collect();
        PlannedChange {
            item: item.item.clone(),
            from: item.given.clone(),
            row: None,
            to: item.suggested.clone(),
            quarantine: item.suggested.is_none(),
            p_wrong: Some(item.p_wrong),
            reason: (!neighbours.is_empty()).then(|| format!("most similar to {}", neighbours.join(", "))),
            effect: Some(rounded(effect)),
        }
    }

    /// The change that an item with an uncertain label would need: to its most probable other class, or into
    /// quarantine.
    fn to_review(item: &AuditedItem) -> Self {
        let other = item.probable.iter().find(|probable| probable.class.as_ref() != Some(&item.given));
        let to = other.and_then(|probable| probable.class.clone());
        PlannedChange { quarantine: to.is_none(), to, effect: None, ..PlannedChange::new(item, 0.0) }
    }

    /// Checks that the change has exactly one destination.
    fn check(&self) -> std::result::Result<(), String> {
        match (&self.to, self.quarantine) {
            (None, false) => Err("it has neither 'to' nor 'quarantine'; exactly one is needed".into()),
            (Some(_), true) => Err("it has both 'to' and 'quarantine'; exactly one is needed".into()),
            _ => Ok(()),
        }
    }
}

/// Whether a class name can be that of a class folder on every system: its parts between `/` become folders, which must
/// stay below the root. Names that start like the quarantine folder are refused.
pub(super) fn is_class_name(name: &str) -> bool {
    let is_part = |part: &str| {
        !matches!(part, "" | "." | "..") && !part.contains(['\\', '\0', ':']) && part.len() <= MAX_NAME_BYTES
    };
    name.split('/').all(is_part) && !name.starts_with(super::QUARANTINE)
}

/// The hash of what changes do: the item, its old and its new class, and the row where the name does not identify it.
/// The order of the changes does not matter.
pub(super) fn digest(changes: &[PlannedChange]) -> String {
    let mut sorted: Vec<&PlannedChange> = changes.iter().collect();
    sorted.sort_unstable_by_key(|change| (&change.item, &change.from, &change.to, change.row));
    let parts: Vec<_> = sorted.iter().map(|change| (&change.item, &change.from, &change.to)).collect();
    let mut text = serde_json::to_string(&parts).expect("names are plain data");
    // Plans in which no change has a row keep the hash that earlier versions wrote.
    if sorted.iter().any(|change| change.row.is_some()) {
        let rows: Vec<_> = sorted.iter().map(|change| change.row).collect();
        text += &format!("{rows:?}");
    }
    blake3::hash(text.as_bytes()).to_hex().to_string()
}

/// Rounds to six decimals, which keeps the plan readable.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}
