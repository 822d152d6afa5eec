//! Labels that a user has confirmed, which later audits do not doubt ([`ConfirmedLabels`]). They are stored in a file,
//! by default in the audited folder, with one item per line: its name, or a JSON object with item and label
//! (`{"item": "owl/3.jpg", "given": "owl"}`; the JSON of audits uses the same keys). Blank lines and lines that start
//! with `#` are ignored.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde::{Deserialize, Serialize};
use trueshot::Embeddings;
use trueshot::report::visible;

use crate::output::write_file;

/// The default file in an audited folder.
const FILE_NAME: &str = ".trueshot-confirmed";

/// A line of the file: an item whose label is right.
#[derive(Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct ConfirmedLabel {
    item: String,
    /// The label that was confirmed. If the item has another label, it is not confirmed. `None` confirms any label.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    given: Option<String>,
}

/// The confirmed labels of one data set.
pub struct ConfirmedLabels {
    /// The file; `None` if the data set is not a folder and the user gave no file.
    path: Option<PathBuf>,
    labels: Vec<ConfirmedLabel>,
}

impl ConfirmedLabels {
    /// Reads `user_file`, the file that the user named, or else the default file in the audited folder `source` if it
    /// exists. The file of the user must exist, unless `may_be_new`: the caller will create it.
    pub fn open(source: &Path, user_file: Option<&PathBuf>, may_be_new: bool) -> anyhow::Result<Self> {
        let default_path = source.is_dir().then(|| source.join(FILE_NAME));
        let path = user_file.cloned().or(default_path);
        let labels = match &path {
            Some(path) if path.exists() || (user_file.is_some() && !may_be_new) => {
                parse_labels(&read_file(path)?, path)?
            }
            _ => Vec::new(),
        };
        Ok(ConfirmedLabels { path, labels })
    }

    /// Confirms the current labels of more items and adds them to the file, whose other lines stay as they are. `items`
    /// are names of items in `data`, or paths of their files below the audited folder `source`.
    pub fn confirm(&mut self, items: &[String], source: &Path, data: &Embeddings) -> anyhow::Result<()> {
        let path = self.path.clone().context("no file for confirmed labels; give --confirmed FILE")?;
        // Another audit may have confirmed items since this one read the file.
        let _lock = trueshot::lock::Lock::beside(&path)?;
        let mut text = if path.exists() { read_file(&path)? } else { String::new() };
        self.labels = parse_labels(&text, &path)?;
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        for name_or_path in items {
            let row = (0..data.len()).find(|&row| matches_item(data, row, name_or_path, source));
            let row = row.with_context(|| {
                let example = visible(&item_name(data, 0));
                format!("no item is named '{}'; item names look like '{example}'", visible(name_or_path))
            })?;
            let class = data.classes()[data.labels()[row] as usize].clone();
            let confirmation = ConfirmedLabel { item: item_name(data, row), given: Some(class) };
            if !self.labels.contains(&confirmation) {
                text += &(serde_json::to_string(&confirmation)? + "\n");
                self.labels.push(confirmation);
            }
        }
        write_file(&path, &text)
    }

    /// For every row whether its label is confirmed.
    pub fn confirmed_rows(&self, data: &Embeddings) -> Vec<bool> {
        let known: HashSet<(&str, Option<&str>)> =
            self.labels.iter().map(|label| (label.item.as_str(), label.given.as_deref())).collect();
        let is_known = |row: usize| {
            let (item, class) = (item_name(data, row), &data.classes()[data.labels()[row] as usize]);
            known.contains(&(item.as_str(), None)) || known.contains(&(item.as_str(), Some(class)))
        };
        (0..data.len()).map(is_known).collect()
    }
}

fn read_file(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

/// The labels in the text of the file `path`.
fn parse_labels(text: &str, path: &Path) -> anyhow::Result<Vec<ConfirmedLabel>> {
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !line.trim().is_empty() && !line.starts_with('#'));
    let parse_line = |(number, line): (usize, &str)| match line.starts_with('{') {
        false => Ok(ConfirmedLabel { item: line.trim_end_matches('\r').into(), given: None }),
        true => serde_json::from_str(line)
            .with_context(|| format!("{}, line {number}: not a confirmed label", path.display())),
    };
    lines.map(parse_line).collect()
}

/// The name of the item in a row, or `row N`.
fn item_name(data: &Embeddings, row: usize) -> String {
    data.item(row).map_or_else(|| format!("row {row}"), str::to_string)
}

/// Whether the user means this row: `name_or_path` is the name of its item, or the path of its file below `source`.
fn matches_item(data: &Embeddings, row: usize, name_or_path: &str, source: &Path) -> bool {
    let name_in_folder = Path::new(name_or_path).strip_prefix(source).ok().and_then(Path::to_str);
    let item = item_name(data, row);
    item == name_or_path || name_in_folder == Some(item.as_str())
}
