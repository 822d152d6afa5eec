//! File moves ([`Move`]) that carry out a plan: [`moves`] finds the new path of every changed file.
//!
//! A name that is taken gets a number. A name counts as taken if any file has it now, even one that will be moved away, so
//! that the moves can be made in any order without one file overwriting another.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::plan::{Listed, RepairPlan};

/// The folder, below the root, for items that belong to no class.
pub const QUARANTINE: &str = "_quarantine";

/// The move of one file. Both paths are relative to the root, with parts separated by `/`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// The old path.
    pub from: String,
    /// The new path.
    pub to: String,
}

/// The moves that carry out a plan for a folder. `taken` are the paths of other files in the folder, which new paths must
/// not collide with.
pub fn moves(plan: &RepairPlan, taken: impl IntoIterator<Item = String>) -> Vec<Move> {
    let folders = ClassFolders::new(&plan.listing);
    // Names are compared in lower case, because some file systems ignore case.
    let mut names: HashSet<String> = taken.into_iter().map(|name| name.to_lowercase()).collect();
    names.extend(plan.listing.iter().map(|listed| listed.item.to_lowercase()));
    let mut moves = Vec::new();
    for change in plan.changes.iter().filter(|change| change.to.as_ref() != Some(&change.from)) {
        let (folder, name) = change.item.rsplit_once('/').unwrap_or(("", &change.item));
        let folder = match &change.to {
            Some(class) => folders.folder(class),
            None => format!("{QUARANTINE}/{folder}"),
        };
        let to = free_name(&folder, name, &names);
        names.insert(to.to_lowercase());
        moves.push(Move { from: change.item.clone(), to });
    }
    moves
}

/// Maximum length of a file name in bytes on common file systems.
pub(super) const MAX_NAME_BYTES: usize = 255;

/// The first of `owl.jpg`, `owl-2.jpg`, `owl-3.jpg` and so on that is not in `names`. A long stem is truncated to make
/// room for the number.
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

/// The folders of the classes.
struct ClassFolders<'a> {
    /// The folder of every class that has items.
    known: HashMap<&'a str, &'a str>,
    /// The prefix before the class name in these folders, such as `all/`.
    parent: String,
}

impl<'a> ClassFolders<'a> {
    fn new(listing: &'a [Listed]) -> Self {
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

    /// The folder of a class; that of a new class is next to the others.
    fn folder(&self, class: &str) -> String {
        self.known.get(class).map_or_else(|| format!("{}{class}", self.parent), |folder| folder.to_string())
    }
}
