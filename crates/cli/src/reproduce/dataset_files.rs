//! Finds the data sets of the paper in the data folder (`--data`), and fingerprints them.
//!
//! A dataset is a folder in the data folder. It contains train/, val/ and test/, or a published form that defines its
//! splits, or all classes together, which are then divided by the built-in split with the name of the dataset. A folder
//! of outliers (`--outliers`) contains train/, test/ and optionally val/, with classes that are in no dataset. The
//! fingerprint of a folder is a hash of file names and sizes, because reading 50,000 images would take longer than many
//! tables.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::experiments::PaperDataset;
use super::jobs::{Argument, hex};
use crate::messages::hinted;

/// The images of one split.
#[derive(Debug, Clone)]
pub struct SplitImages {
    /// The folder of the split, or the folder or file that contains all splits.
    path: PathBuf,
    /// The hash of the names and sizes of all files below `path`.
    fingerprint: String,
    /// The number of files below `path`.
    count: usize,
    /// The name of the split, if the path contains all splits.
    split: Option<&'static str>,
    /// The name of the built-in split file, if the path does not define its splits.
    split_file: Option<String>,
}

/// The splits of a dataset that was found.
#[derive(Debug, Clone)]
pub struct DatasetSplits {
    pub train: SplitImages,
    pub val: SplitImages,
    pub test: SplitImages,
}

/// Images of classes that are in no dataset, for training and test; those for validation are optional (`--outliers`).
#[derive(Debug, Clone)]
pub struct OutlierSplits {
    pub train: SplitImages,
    pub val: Option<SplitImages>,
    pub test: SplitImages,
}

impl SplitImages {
    /// The images in a folder; `None` if it cannot be read.
    fn open(path: PathBuf) -> Option<Self> {
        let (fingerprint, count) = fingerprint(&path).ok()?;
        Some(SplitImages { path, fingerprint, count, split: None, split_file: None })
    }

    /// A split of the built-in Omniglot. Its images cannot change without the version of the program, which is part of
    /// the key of every job, so the fingerprint is constant; the count is only used to estimate durations.
    fn omniglot(split: &'static str) -> Self {
        SplitImages {
            path: "omniglot".into(),
            fingerprint: "omniglot".into(),
            count: 10_000,
            split: Some(split),
            split_file: None,
        }
    }

    /// The arguments that select the images in commands such as `trueshot embed`: the path, the split file and the
    /// split.
    pub fn arguments(&self) -> Vec<Argument> {
        let mut arguments = vec![self.path()];
        arguments.extend(self.split_file_arguments());
        let split = self.split.iter().flat_map(|split| [Argument::text("--split"), Argument::text(*split)]);
        arguments.extend(split);
        arguments
    }

    /// The path, without the split.
    pub fn path(&self) -> Argument {
        Argument::external(&self.path, &self.fingerprint)
    }

    /// The arguments that name the split file; none if the path defines its splits.
    pub fn split_file_arguments(&self) -> Vec<Argument> {
        self.split_file
            .iter()
            .flat_map(|name| [Argument::text("--split-file"), Argument::text(name)])
            .collect()
    }

    /// The arguments that select the images as outliers in commands such as `trueshot eval --pictures`.
    pub fn outlier_arguments(&self) -> Vec<Argument> {
        let mut arguments = vec![Argument::text("--outliers"), self.path()];
        let split =
            self.split.iter().flat_map(|split| [Argument::text("--outliers-split"), Argument::text(*split)]);
        arguments.extend(split);
        arguments
    }

    /// Whether the path contains all splits.
    pub fn is_shared(&self) -> bool {
        self.split.is_some()
    }

    /// The hash of the names and sizes of the files.
    pub fn fingerprint(&self) -> &str {
        &self.fingerprint
    }

    /// The names of the class folders; empty if the path contains several splits or cannot be read.
    pub fn classes(&self) -> Vec<String> {
        let Some(entries) = std::fs::read_dir(&self.path).ok().filter(|_| !self.is_shared()) else {
            return Vec::new();
        };
        let folders = entries.flatten().filter(|entry| entry.path().is_dir());
        folders.map(|entry| entry.file_name().display().to_string()).collect()
    }

    /// The number of files, of all splits if the path contains them all; used to estimate durations.
    pub fn count(&self) -> usize {
        self.count
    }
}

impl DatasetSplits {
    /// Looks for a dataset in the data folder.
    ///
    /// # Errors
    /// The reason why the dataset is not available.
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
        // No folder per split: the three splits share the path, the fingerprint and the count.
        let whole = SplitImages::open(folder.clone());
        let whole = whole.ok_or_else(|| format!("{} cannot be read", folder.display()))?;
        let defines_splits = trueshot_vision::source::has_splits(&folder);
        let split_file = (!defines_splits).then(|| name.to_string());
        let split =
            |split| SplitImages { split: Some(split), split_file: split_file.clone(), ..whole.clone() };
        Ok(DatasetSplits { train: split("train"), val: split("val"), test: split("test") })
    }
}

impl OutlierSplits {
    /// Opens a folder of outliers.
    pub fn open(folder: &Path) -> anyhow::Result<Self> {
        let folder = std::path::absolute(folder)?;
        let split = |name: &str| SplitImages::open(folder.join(name));
        let required = |name: &str| {
            split(name).ok_or_else(|| {
                hinted(
                    format!("there is no folder {name}/ in {}", folder.display()),
                    "outliers need train/ and test/, as `trueshot dataset outliers --imagenet` writes them; without \
                     --outliers, they are images of other classes of each data set",
                )
            })
        };
        Ok(OutlierSplits { train: required("train")?, val: split("val"), test: required("test")? })
    }
}

/// The hash of the names and sizes of all files in a folder and its subfolders, and the number of files.
fn fingerprint(folder: &Path) -> std::io::Result<(String, usize)> {
    let mut files = Vec::new();
    let mut pending = vec![folder.to_path_buf()];
    while let Some(subfolder) = pending.pop() {
        for entry in std::fs::read_dir(subfolder)? {
            let entry = entry?;
            let metadata = std::fs::metadata(entry.path())?;
            if metadata.is_dir() {
                pending.push(entry.path());
            } else {
                let name = entry.path().strip_prefix(folder).map(Path::to_path_buf).unwrap_or_default();
                files.push((name, metadata.len()));
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
