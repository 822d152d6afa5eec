//! Which file goes where. Names that are taken get a number; a name counts as taken if anything has it now, even what will
//! leave, so that no order of moves can put one file over another.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::plan::{Listed, RepairPlan};

/// The folder for what belongs to no class.
pub const QUARANTINE: &str = "_quarantine";

/// A file and where it goes; both below the root, parts separated by `/`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Move {
    /// Where it is.
    pub from: String,
    /// Where it goes.
    pub to: String,
}

/// The moves of a plan. `taken` are other files that are there.
pub fn moves(plan: &RepairPlan, taken: impl IntoIterator<Item = String>) -> Vec<Move> {
    let folders = ClassFolders::of(&plan.listing);
    // Case does not tell files apart everywhere.
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

/// The longest file name, in bytes, that common file systems take.
pub(super) const LONGEST_NAME: usize = 255;

/// A name in a folder that nothing has: `owl.jpg`, `owl-2.jpg`, and so on. A long stem is cut to make room for the number.
fn free_name(folder: &str, name: &str, names: &HashSet<String>) -> String {
    let (stem, ending) = match name.rsplit_once('.') {
        Some((stem, ending)) if !stem.is_empty() => (stem, format!(".{ending}")),
        _ => (name, String::new()),
    };
    let numbered = (2..).map(|number: usize| {
        let rest = format!("-{number}{ending}");
        let room = LONGEST_NAME.saturating_sub(rest.len()).min(stem.len());
        format!("{folder}/{}{rest}", &stem[..stem.floor_char_boundary(room)])
    });
    let mut wanted = std::iter::once(format!("{folder}/{name}")).chain(numbered);
    wanted.find(|name| !names.contains(&name.to_lowercase())).expect("some number is free")
}

/// Which folder is which class.
struct ClassFolders<'a> {
    known: HashMap<&'a str, &'a str>,
    /// What class folders have in common above them.
    above: String,
}

impl<'a> ClassFolders<'a> {
    fn of(listing: &'a [Listed]) -> Self {
        let mut known = HashMap::new();
        let mut above = String::new();
        for listed in listing {
            let (Some(class), Some((folder, _))) = (&listed.class, listed.item.rsplit_once('/')) else {
                continue;
            };
            known.entry(class.as_str()).or_insert(folder);
            above = folder.strip_suffix(class.as_str()).unwrap_or_default().to_owned();
        }
        ClassFolders { known, above }
    }

    /// The folder of a class; a new one lies beside the others.
    fn folder(&self, class: &str) -> String {
        self.known.get(class).map_or_else(|| format!("{}{class}", self.above), |folder| folder.to_string())
    }
}
