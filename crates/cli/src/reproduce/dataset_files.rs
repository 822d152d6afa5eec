//! Finds the data sets of the paper in a folder, and fingerprints them.
//!
//! A dataset is a folder below the folder of data: with train/, val/ and test/, in a published form that has its splits, or with
//! all classes together, of which the built-in split of that name says which is where. Outliers are outliers/train and
//! outliers/test, classes that are in no dataset. Their fingerprint is made of names and sizes: reading fifty
//! thousand images to find out that nothing changed would take longer than many a table.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::experiments::PaperDataset;
use super::jobs::{CommandWord, hex};

/// The images of one split.
#[derive(Debug, Clone)]
pub struct SplitImages {
    path: PathBuf,
    fingerprint: String,
    count: usize,
    /// The split's name, where the path holds several.
    split: Option<&'static str>,
    /// The built-in split it is of, where the path does not know its splits.
    split_file: Option<String>,
}

/// The splits of a dataset that is there.
#[derive(Debug, Clone)]
pub struct DatasetSplits {
    pub train: SplitImages,
    pub val: SplitImages,
    pub test: SplitImages,
}

/// Classes of no dataset, in halves; perhaps some more to validate on.
#[derive(Debug, Clone)]
pub struct OutlierSplits {
    pub train: SplitImages,
    pub val: Option<SplitImages>,
    pub test: SplitImages,
}

impl SplitImages {
    fn open(path: PathBuf) -> Option<Self> {
        let (fingerprint, count) = fingerprint(&path).ok()?;
        Some(SplitImages { path, fingerprint, count, split: None, split_file: None })
    }

    fn omniglot(split: &'static str) -> Self {
        SplitImages {
            path: "omniglot".into(),
            fingerprint: "omniglot".into(),
            count: 10_000,
            split: Some(split),
            split_file: None,
        }
    }

    /// The words that name it on a command line of `trueshot embed`.
    pub fn words(&self) -> Vec<CommandWord> {
        let mut words = vec![CommandWord::external(&self.path, &self.fingerprint)];
        words.extend(self.split_file_words());
        words.extend(
            self.split.iter().flat_map(|split| [CommandWord::text("--split"), CommandWord::text(*split)]),
        );
        words
    }

    /// The path alone.
    pub fn path(&self) -> CommandWord {
        CommandWord::external(&self.path, &self.fingerprint)
    }

    /// The words that name the split it is of, where it takes any.
    pub fn split_file_words(&self) -> Vec<CommandWord> {
        self.split_file
            .iter()
            .flat_map(|name| [CommandWord::text("--split-file"), CommandWord::text(name)])
            .collect()
    }

    /// Whether the path holds all splits.
    pub fn is_shared(&self) -> bool {
        self.split.is_some()
    }

    /// What tells its contents.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The classes, as their folders are called; none where they do not lie in folders.
    pub fn classes(&self) -> Vec<String> {
        // Splits of one path are told apart by whoever reads it.
        let Some(entries) = std::fs::read_dir(&self.path).ok().filter(|_| !self.is_shared()) else {
            return Vec::new();
        };
        let folders = entries.flatten().filter(|entry| entry.path().is_dir());
        folders.map(|entry| entry.file_name().display().to_string()).collect()
    }

    /// About how many there are.
    pub fn count(&self) -> usize {
        self.count
    }
}

impl DatasetSplits {
    /// Looks for a dataset; the reason where it is not there.
    pub fn find(name: &str, dataset: &PaperDataset, data: Option<&Path>) -> Result<Self, String> {
        if dataset.built_in {
            let split = SplitImages::omniglot;
            return Ok(DatasetSplits { train: split("train"), val: split("val"), test: split("test") });
        }
        let Some(data) = data else { return Err("no data folder was given (--data)".into()) };
        let folders = || dataset.data.iter().map(|name| data.join(name));
        let Some(folder) = folders().find(|folder| folder.is_dir()) else {
            let names = dataset.data.join("/ or ");
            return Err(format!("there is no {names}/ in {}", data.display()));
        };
        if let [Some(train), Some(val), Some(test)] =
            ["train", "val", "test"].map(|split| SplitImages::open(folder.join(split)))
        {
            return Ok(DatasetSplits { train, val, test });
        }
        let whole = SplitImages::open(folder.clone());
        let whole = whole.ok_or_else(|| format!("{} cannot be read", folder.display()))?;
        let knows_its_splits = trueshot_vision::source::has_splits(&folder);
        let split_file = (!knows_its_splits).then(|| name.to_string());
        let split =
            |split| SplitImages { split: Some(split), split_file: split_file.clone(), ..whole.clone() };
        Ok(DatasetSplits { train: split("train"), val: split("val"), test: split("test") })
    }
}

impl OutlierSplits {
    /// Looks for outliers.
    pub fn find(data: Option<&Path>) -> Result<Self, String> {
        let Some(data) = data else { return Err("no data folder was given (--data)".into()) };
        let half = |name: &str| SplitImages::open(data.join("outliers").join(name));
        let missing = |name: &str| format!("there is no outliers/{name}/ in {}", data.display());
        Ok(OutlierSplits {
            train: half("train").ok_or_else(|| missing("train"))?,
            val: half("val"),
            test: half("test").ok_or_else(|| missing("test"))?,
        })
    }
}

/// A hash of the names and sizes of all files below a folder, and their number.
fn fingerprint(folder: &Path) -> std::io::Result<(String, usize)> {
    let mut files = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(next)? {
            let entry = entry?;
            let kind = std::fs::metadata(entry.path())?;
            if kind.is_dir() {
                open.push(entry.path());
            } else {
                let name = entry.path().strip_prefix(folder).map(Path::to_path_buf).unwrap_or_default();
                files.push((name, kind.len()));
            }
        }
    }
    files.sort();
    let count = files.len();
    let mut hash = Sha256::new();
    for (name, size) in files {
        hash.update(name.as_os_str().as_encoded_bytes());
        hash.update([0]);
        hash.update(size.to_le_bytes());
    }
    Ok((hex(hash), count))
}
