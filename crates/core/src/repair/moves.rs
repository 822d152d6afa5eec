//! File moves ([`Move`]) that carry out a plan: [`moves`] finds the new path of every changed file, and [`copies`] the
//! path of every item in a repaired copy.
//!
//! A name that is taken gets a number. A name counts as taken if any file has it now, even one that will be moved away,
//! so that the moves can be made in any order without one file overwriting another. Nothing is moved here; `journal`
//! and `copy` do that.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::plan::{ListedItem, RepairPlan, is_class_name};
use crate::error::{Error, Result};
use crate::visible::visible;

/// The folder, below the root, for items in quarantine: their label is wrong, and they belong to no class or to an
/// uncertain one.
pub const QUARANTINE: &str = "_quarantine";

/// The move of one file. Both paths are relative to the root, with parts separated by `/`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// The old path.
    pub from: String,
    /// The new path.
    pub to: String,
}

/// The moves that carry out a plan for a folder, in the order of its changes. `taken` are the paths of other files in
/// the folder, which new paths must not collide with. An item in quarantine goes to `_quarantine/` followed by its old
/// path.
pub fn moves(plan: &RepairPlan, taken: impl IntoIterator<Item = String>) -> Vec<Move> {
    let folders = ClassFolders::new(&plan.listing);
    // Names are compared in lower case, because some file systems ignore case.
    let mut names: HashSet<String> = taken.into_iter().map(|name| name.to_lowercase()).collect();
    names.extend(plan.listing.iter().map(|listed| listed.item.to_lowercase()));
    let mut moves = Vec::new();
    for change in plan.changes.iter().filter(|change| change.to.as_ref() != Some(&change.from)) {
        let (folder, name) = change.item.rsplit_once('/').unwrap_or(("", &change.item));
        // The new folder; `None` stands for quarantine.
        let folder = match &change.to {
            Some(class) => folders.folder(class),
            None if folder.is_empty() => QUARANTINE.into(),
            None => format!("{QUARANTINE}/{folder}"),
        };
        let to = free_name(&folder, name, &names);
        names.insert(to.to_lowercase());
        moves.push(Move { from: change.item.clone(), to });
    }
    moves
}

/// How the paths of items in a repaired copy follow from their names in the collection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CopyLayout {
    /// Items are paths below class folders, such as those of an archive, and unchanged ones keep them.
    ClassFolders,
    /// Items are paths of any form, such as those of a list. Each is copied to the folder of its label.
    ByLabel,
}

/// The moves that give every listed item with a class its path in a repaired copy, in the order of the plan's listing.
/// For unchanged items of [`CopyLayout::ClassFolders`], both paths of a [`Move`] are equal.
///
/// # Errors
/// [`Error::BadPlan`] if a label in the listing cannot be the name of a folder.
pub fn copies(plan: &RepairPlan, layout: CopyLayout) -> Result<Vec<Move>> {
    let labelled: Vec<(&String, &String)> =
        plan.listing.iter().filter_map(|listed| Some((&listed.item, listed.class.as_ref()?))).collect();
    if layout == CopyLayout::ByLabel {
        return copies_by_label(plan, &labelled);
    }
    let moved: HashMap<String, String> =
        moves(plan, []).into_iter().map(|file_move| (file_move.from, file_move.to)).collect();
    let copy = |(item, _): &(&String, &String)| {
        let to = moved.get(*item).unwrap_or(item);
        Move { from: item.to_string(), to: to.to_string() }
    };
    Ok(labelled.iter().map(copy).collect())
}

/// The copies for [`CopyLayout::ByLabel`]. `labelled` are the items with their given classes, in the order of the
/// result.
fn copies_by_label(plan: &RepairPlan, labelled: &[(&String, &String)]) -> Result<Vec<Move>> {
    if let Some((_, class)) = labelled.iter().find(|(_, class)| !is_class_name(class)) {
        let problem = format!("the label '{}' cannot be the name of a folder; rename it", visible(class));
        return Err(Error::BadPlan { path: plan.header.root.clone(), line: 0, problem });
    }
    // The class of every item after the repair; `None` stands for quarantine.
    let changes: HashMap<(&String, &String), Option<&String>> =
        plan.changes.iter().map(|change| ((&change.item, &change.from), change.to.as_ref())).collect();
    let new_class = |entry: &(&String, &String)| changes.get(entry).map_or(Some(entry.1), |to| *to).cloned();
    let new_classes: Vec<Option<String>> = labelled.iter().map(new_class).collect();
    // Unchanged items choose their names first (`false` sorts before `true`), so that moved ones get the numbers.
    let mut order: Vec<usize> = (0..labelled.len()).collect();
    order.sort_by_key(|index| new_classes[*index].as_ref() != Some(labelled[*index].1));
    let mut names = HashSet::new();
    let mut targets = vec![String::new(); labelled.len()];
    for index in order {
        let (item, class) = labelled[index];
        let folder = new_classes[index].clone().unwrap_or_else(|| format!("{QUARANTINE}/{class}"));
        let name = item.rsplit(['/', '\\']).next().unwrap_or(item);
        targets[index] = free_name(&folder, name, &names);
        names.insert(targets[index].to_lowercase());
    }
    let copy = |((item, _), to): (&(&String, &String), String)| Move { from: item.to_string(), to };
    Ok(labelled.iter().zip(targets).map(copy).collect())
}

/// Maximum length of a file name in bytes on common file systems.
pub(super) const MAX_NAME_BYTES: usize = 255;

/// The first path of the sequence `folder/owl.jpg`, `folder/owl-2.jpg`, `folder/owl-3.jpg`, … that is not in `names`,
/// which are in lower case. A long stem is truncated so that the number fits.
fn free_name(folder: &str, name: &str, names: &HashSet<String>) -> String {
    let (stem, extension) = match name.rsplit_once('.') {
        Some((stem, extension)) if !stem.is_empty() => (stem, format!(".{extension}")),
        _ => (name, String::new()),
    };
    let numbered = (2..).map(|number: usize| {
        let suffix = format!("-{number}{extension}");
        let stem_bytes = MAX_NAME_BYTES.saturating_sub(suffix.len()).min(stem.len());
        format!("{folder}/{}{suffix}", &stem[..stem.floor_char_boundary(stem_bytes)])
    });
    let mut candidates = std::iter::once(format!("{folder}/{name}")).chain(numbered);
    candidates.find(|name| !names.contains(&name.to_lowercase())).expect("some number is free")
}

/// The folders of the classes of a collection.
struct ClassFolders<'a> {
    /// For every class that has items, the folder of the first of them.
    known: HashMap<&'a str, &'a str>,
    /// What precedes the class name in the folder of the last item, such as `all/`; empty if the class folders are in
    /// the root.
    parent: String,
}

impl<'a> ClassFolders<'a> {
    /// Finds the folders from the paths of all items.
    fn new(listing: &'a [ListedItem]) -> Self {
        let mut known = HashMap::new();
        let mut parent = String::new();
        for listed in listing {
            let (Some(class), Some((folder, _))) = (&listed.class, listed.item.rsplit_once('/')) else {
                continue;
            };
            known.entry(class.as_str()).or_insert(folder);
            parent = folder.strip_suffix(class.as_str()).unwrap_or_default().to_owned();
        }
        ClassFolders { known, parent }
    }

    /// The folder of a class. That of a new class is next to the known ones.
    fn folder(&self, class: &str) -> String {
        self.known.get(class).map_or_else(|| format!("{}{class}", self.parent), |folder| folder.to_string())
    }
}
