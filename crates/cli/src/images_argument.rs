//! The options that select which images of a data set a command uses ([`ImagesArgument`]), and the list of files it
//! skipped ([`print_skipped`]).
//!
//! A data set can be divided into splits (train, val, test), which have different classes. Either the data set defines
//! them (a folder or file per split, or its published form), or a split file assigns the classes to them.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde::Serialize;
use trueshot_vision::source::is_built_in;
use trueshot_vision::split::Split;
use trueshot_vision::{Collection, Fit, Skipped, SourceOptions};

use crate::messages::{hinted, say};
use crate::output::is_same_file;

/// Which images of a source to use.
#[derive(Args)]
#[command(next_help_heading = "Selecting images")]
pub struct ImagesArgument {
    /// Split classes by a JSON file {"train": [..], "val": [..], "test": [..]}, or by one of the built-in splits cifar-fs,
    /// cub, fc100, miniimagenet, tiered-tiny and tieredimagenet
    #[arg(long, value_name = "JSON|NAME")]
    pub split_file: Option<PathBuf>,
    /// Use this split: of the split file, of omniglot, or of the data set, if it has one folder or file per split
    #[arg(long, value_name = "NAME")]
    split: Option<String>,
    /// Use the images in train/, val/ and test/ together; the folders in them are the classes
    #[arg(long)]
    pub pool: bool,
    /// Use only the first N images of each class, sorted by name
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit_per_class: Option<u32>,
}

impl ImagesArgument {
    /// Fails if one of these options is given for data that are not images.
    pub fn check_unused(&self) -> anyhow::Result<()> {
        let given = [
            ("--split-file", self.split_file.is_some()),
            ("--split", self.split.is_some()),
            ("--pool", self.pool),
            ("--limit-per-class", self.limit_per_class.is_some()),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            Some((flag, _)) => anyhow::bail!("{flag} applies to images: use it with --pictures DATASET"),
            None => Ok(()),
        }
    }

    /// Lists the selected images.
    pub fn open(&self, path: &Path) -> anyhow::Result<Collection> {
        self.open_split(path, self.split.as_deref())
    }

    /// Lists the images of the split that the user chose, or else of the split `default`.
    pub fn open_split_or(&self, path: &Path, default: &str) -> anyhow::Result<Collection> {
        self.open_split(path, Some(self.split.as_deref().unwrap_or(default)))
    }

    fn open_split(&self, path: &Path, split: Option<&str>) -> anyhow::Result<Collection> {
        let selection = ImageSelection {
            split_file: self.split_file.as_deref(),
            split,
            pool: self.pool,
            limit_per_class: self.limit_per_class.map(|limit| limit as usize),
        };
        selection.open(path)
    }

    /// Lists outliers: the images of another data set, or of another split of the same one. `path` and `data` are the
    /// data set itself. `None` if the outliers are the same images, which means the default: outliers of classes that
    /// are not in the episode.
    ///
    /// # Errors
    /// If the outliers have a class of `data`.
    pub fn open_outliers(
        &self,
        path: &Path,
        data: &Collection,
        outliers: &Path,
        split: Option<&str>,
    ) -> anyhow::Result<Option<Collection>> {
        // Options that describe the data set apply to the outliers only if these are in the same data set.
        let is_same = outliers == path || is_same_file(outliers, path);
        if is_same && (split.is_none() || split == self.split.as_deref()) {
            return Ok(None);
        }
        let split_file = self.split_file.as_deref().filter(|_| split.is_some() && is_same);
        let collection =
            ImageSelection { split_file, split, pool: self.pool && is_same, limit_per_class: None }
                .open(outliers)?;
        check_outliers((path, data), (outliers, &collection))?;
        Ok(Some(collection))
    }
}

/// The part of a source to use.
#[derive(Clone, Copy)]
pub struct ImageSelection<'a> {
    /// A file or a built-in name that assigns classes to splits; needs `split`.
    pub split_file: Option<&'a Path>,
    /// The name of the split; `None` for all images.
    pub split: Option<&'a str>,
    /// Whether to use train/, val/ and test/ as one collection.
    pub pool: bool,
    /// The number of images of each class to use, the first by name; `None` for all.
    pub limit_per_class: Option<usize>,
}

impl ImageSelection<'_> {
    /// Lists the selected images of the source at `path`.
    pub fn open(&self, path: &Path) -> anyhow::Result<Collection> {
        // Without a split file, the source must define its splits.
        let own_split = self.split.filter(|_| self.split_file.is_none() && !is_built_in(path));
        let options = SourceOptions { pool: self.pool, split: own_split, ..SourceOptions::default() };
        let mut collection = Collection::open(path, options)?;
        if let Some(split) = self.open_split(&collection)? {
            let missing = collection.keep_split(&split)?;
            if let Some(first) = missing.first() {
                let (count, name) = (missing.len(), &split.name);
                say!("warning: {count} classes of split '{name}' are missing, the first is '{first}'");
            }
        }
        if let Some(limit) = self.limit_per_class {
            collection.keep_first(limit);
        }
        Ok(collection)
    }

    /// The classes of the split, if a split file or the built-in Omniglot defines them; `None` otherwise.
    fn open_split(&self, collection: &Collection) -> anyhow::Result<Option<Split>> {
        Ok(match (self.split_file, self.split) {
            (Some(file), Some(name)) => Some(Split::open(file, name)?),
            (None, Some(name)) if collection.is_built_in() => Some(Split::omniglot(name)?),
            (Some(_), None) => anyhow::bail!("--split-file also needs --split NAME"),
            (None, _) => None,
        })
    }
}

/// Fails if a class of the data is also an outlier. Both data sets are given with their paths.
pub fn check_outliers(
    (path, data): (&Path, &Collection),
    (outlier_path, outliers): (&Path, &Collection),
) -> anyhow::Result<()> {
    // A class whose name is a number is an index: class 3 of one data set is not class 3 of another.
    let is_name = |class: &&String| class.parse::<f64>().is_err();
    let known = data.classes();
    if let Some(class) = outliers.classes().iter().filter(is_name).find(|class| known.contains(class)) {
        return Err(hinted(
            format!("class '{class}' is both in the outliers and in the data"),
            match outlier_path == path {
                true => format!("take outliers from other images than {}", path.display()),
                false => format!("remove it from {} or from {}", outlier_path.display(), path.display()),
            },
        ));
    }
    Ok(())
}

/// How to handle an image that is not square.
#[derive(Clone, Copy, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FitArgument {
    /// Resize the whole image without keeping its aspect ratio
    Squash,
    /// Crop the central square
    Crop,
}

impl From<FitArgument> for Fit {
    fn from(argument: FitArgument) -> Self {
        match argument {
            FitArgument::Squash => Fit::Squash,
            FitArgument::Crop => Fit::Crop,
        }
    }
}

/// The maximum number of skipped files that are listed.
const MAX_LISTED: usize = 20;

/// Prints which files were skipped, and why.
pub fn print_skipped<'a>(skipped: impl Iterator<Item = &'a Skipped>) {
    let skipped: Vec<&Skipped> = skipped.collect();
    if skipped.is_empty() {
        return;
    }
    let files = if skipped.len() == 1 { "file was" } else { "files were" };
    say!("warning: {} {files} skipped:", skipped.len());
    for file in skipped.iter().take(MAX_LISTED) {
        say!("  {file}");
    }
    if skipped.len() > MAX_LISTED {
        say!("  and {} more", skipped.len() - MAX_LISTED);
    }
}
