//! Which pictures a command works on: a source, and which part of it.

use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use serde::Serialize;
use trueshot_vision::source::is_built_in;
use trueshot_vision::split::Split;
use trueshot_vision::{Collection, Fit, Reading, Skipped};

use crate::messages::say;

/// How the source of pictures is to be understood.
#[derive(Args)]
pub struct Pictures {
    /// Which classes are in which split: a JSON file {"train": [..], "val": [..], "test": [..]}, or cifar-fs, cub,
    /// fc100, miniimagenet or tieredimagenet, which are built in
    #[arg(long, value_name = "JSON|NAME")]
    pub split_file: Option<PathBuf>,
    /// Which split to take: of the split file, of omniglot, or of IMAGES, where it has a folder or file for each
    #[arg(long, value_name = "NAME")]
    split: Option<String>,
    /// Take the pictures in train/, val/ and test/ together; classes are the folders below
    #[arg(long)]
    pub pool: bool,
    /// Take the first N pictures of every class, by name
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub limit_per_class: Option<u32>,
}

impl Pictures {
    /// Refuses them where there are no pictures.
    pub fn refuse(&self) -> anyhow::Result<()> {
        let given = [
            ("--split-file", self.split_file.is_some()),
            ("--split", self.split.is_some()),
            ("--pool", self.pool),
            ("--limit-per-class", self.limit_per_class.is_some()),
        ];
        match given.into_iter().find(|(_, given)| *given) {
            Some((flag, _)) => anyhow::bail!("{flag} is about pictures: it goes with --pictures DATASET"),
            None => Ok(()),
        }
    }

    /// Lists the pictures.
    pub fn open(&self, path: &Path) -> anyhow::Result<Collection> {
        let part = Part {
            split_file: self.split_file.as_deref(),
            split: self.split.as_deref(),
            pool: self.pool,
            limit_per_class: self.limit_per_class.map(|limit| limit as usize),
        };
        part.open(path)
    }
}

/// Which part of a source to take.
#[derive(Clone, Copy)]
pub struct Part<'a> {
    pub split_file: Option<&'a Path>,
    pub split: Option<&'a str>,
    pub pool: bool,
    pub limit_per_class: Option<usize>,
}

impl Part<'_> {
    /// Lists the pictures of that part.
    pub fn open(&self, path: &Path) -> anyhow::Result<Collection> {
        // Without a split file, the source must know its splits.
        let own_split = self.split.filter(|_| self.split_file.is_none() && !is_built_in(path));
        let mut collection = Collection::open(path, Reading { pool: self.pool, split: own_split })?;
        if let Some(split) = self.split(&collection)? {
            let missing = collection.keep_split(&split)?;
            if let Some(first) = missing.first() {
                let (count, name) = (missing.len(), &split.name);
                say!("warning: {count} classes of split '{name}' are not there, the first is '{first}'");
            }
        }
        if let Some(limit) = self.limit_per_class {
            collection.keep_first(limit);
        }
        Ok(collection)
    }

    fn split(&self, collection: &Collection) -> anyhow::Result<Option<Split>> {
        Ok(match (self.split_file, self.split) {
            (Some(file), Some(name)) => Some(Split::open(file, name)?),
            (None, Some(name)) if collection.is_built_in() => Some(Split::of_omniglot(name)?),
            (Some(_), None) => anyhow::bail!("--split-file is given but no --split NAME"),
            (None, _) => None,
        })
    }
}

/// What becomes of a picture that is no square.
#[derive(Clone, Copy, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FitArgument {
    /// Stretch the whole picture
    Squash,
    /// Take the square in its middle
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

/// The most files that are listed one by one.
const LISTED: usize = 20;

/// Says what was skipped and why.
pub fn tell_skipped<'a>(skipped: impl Iterator<Item = &'a Skipped>) {
    let skipped: Vec<&Skipped> = skipped.collect();
    if skipped.is_empty() {
        return;
    }
    let files = if skipped.len() == 1 { "file was" } else { "files were" };
    say!("warning: {} {files} skipped:", skipped.len());
    for file in skipped.iter().take(LISTED) {
        say!("  {file}");
    }
    if skipped.len() > LISTED {
        say!("  and {} more", skipped.len() - LISTED);
    }
}
