//! A plan: JSON lines. The first says what it is for, then comes a line for every change, and last, in one line, what the
//! collection looked like, so that one that has changed since is not repaired by accident. Lines may be taken out and
//! edited; blank ones and those that begin with `#` do not count.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::audit::{Audit, Audited, Change, Effects, Verdict, effects};
use crate::embeddings::Embeddings;
use crate::error::{Error, Result};
use crate::report::visible;

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

/// One item of a collection as it was found.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Listed {
    /// Its name.
    pub item: String,
    /// Its class; none for what was skipped.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub class: Option<String>,
    /// The bytes of its file, where it has one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub size: Option<u64>,
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
pub struct Plan {
    /// What it is for.
    pub header: PlanHeader,
    /// What to do.
    pub changes: Vec<PlannedChange>,
    /// What the collection looked like.
    pub listing: Vec<Listed>,
}

impl Plan {
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
        Plan { header, changes: planned.collect(), listing }
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
        let mut plan = Plan { header, changes: Vec::new(), listing: Vec::new() };
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
        let mut seen = std::collections::HashSet::new();
        match self.changes.iter().find(|change| !seen.insert((&change.item, &change.from))) {
            None => Ok(()),
            Some(change) => {
                let problem = format!("{} is to be changed twice", visible(&change.item));
                Err(Error::BadPlan { path: path.into(), line: 0, problem })
            }
        }
    }

    /// Refuses a collection that is not the one the plan was made for.
    pub fn check(&self, now: &[Listed]) -> Result<()> {
        let changed = |problem| Error::CollectionChanged { root: self.header.root.clone(), problem };
        let by_name = |listing: &[Listed]| -> BTreeMap<(Option<String>, String), Option<u64>> {
            listing.iter().map(|l| ((l.class.clone(), l.item.clone()), l.size)).collect()
        };
        let (then, now) = (by_name(&self.listing), by_name(now));
        let gone: Vec<_> = then.keys().filter(|key| !now.contains_key(*key)).collect();
        let new: Vec<_> = now.keys().filter(|key| !then.contains_key(*key)).collect();
        let other: Vec<_> =
            then.iter().filter(|(key, size)| now.get(*key).is_some_and(|s| s != *size)).collect();
        let other: Vec<_> = other.into_iter().map(|(key, _)| key).collect();
        let said = |names: &[&(Option<String>, String)], what: &str| {
            let shown: Vec<String> = names.iter().take(NAMED).map(|(_, item)| visible(item)).collect();
            let more = if names.len() > NAMED { ", .." } else { "" };
            (!names.is_empty()).then(|| format!("{} {what} ({}{more})", names.len(), shown.join(", ")))
        };
        let problems = [said(&gone, "gone"), said(&new, "new"), said(&other, "of another size")];
        let problems: Vec<String> = problems.into_iter().flatten().collect();
        if problems.is_empty() { self.check_items() } else { Err(changed(problems.join(", "))) }
    }

    /// Every change must be of an item that is there.
    fn check_items(&self) -> Result<()> {
        let known: std::collections::HashSet<(&str, &str)> = self
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

impl PlannedChange {
    fn of(item: &Audited, effect: f64) -> Self {
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
            reason: Some(format!("most like {}", like.join(", "))),
            effect: Some(rounded(effect)),
        }
    }

    fn check(&self) -> std::result::Result<(), String> {
        match (&self.to, self.quarantine) {
            (None, false) => Err("neither 'to' nor 'quarantine': where should it go?".into()),
            (Some(_), true) => Err("both 'to' and 'quarantine': where should it go?".into()),
            (Some(to), false) if !is_class_name(to) => {
                Err(format!("'{}' cannot be the name of a class", visible(to)))
            }
            _ => Ok(()),
        }
    }
}

/// Whether a name may become folders: it must stay below the folder it is in.
fn is_class_name(name: &str) -> bool {
    let is_part = |part: &str| !matches!(part, "" | "." | "..") && !part.contains(['\\', '\0', ':']);
    name.split('/').all(is_part) && !name.starts_with(super::QUARANTINE)
}

/// Six digits are more than enough to edit by hand.
fn rounded(value: f64) -> f64 {
    (value * 1e6).round() / 1e6
}
