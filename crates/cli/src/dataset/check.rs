//! `trueshot dataset check`: counts the classes and images of a data set and compares them with the published numbers.
//! Start with [`run`]. A survey ([`Survey`]) holds the counts of one split.

use std::path::PathBuf;

use clap::Args;
use clap::builder::PossibleValue;
use trueshot_vision::source::has_split;
use trueshot_vision::split::Split;
use trueshot_vision::survey::{PUBLISHED_DATASETS, PublishedDataset, SPLITS, Survey, shared_classes};
use trueshot_vision::{Collection, Error};

use crate::images_argument::{ImageSelection, print_skipped};
use crate::messages::ProblemsFound;
use crate::output::print_escaped;
use crate::progress::ProgressDisplay;
use crate::threads::Threads;

/// Count the classes and images of a data set and compare them with the published numbers
///
/// Reads every image and reports classes, images and sizes per split (train/, val/ and test/, or one file each), or for the
/// whole data set if it has no splits. With --expect the numbers are compared with the published ones, using the built-in
/// split file if DATASET has no splits; the exit status is 3 if something differs.
#[derive(Args)]
#[command(after_help = "Examples:
  trueshot dataset check mini/ --expect mini
  trueshot dataset check cifar-100-python --expect cifar-fs
  trueshot dataset check cifar/ --pool --expect fc100
  trueshot dataset check photos/")]
pub struct Arguments {
    /// Images, in any form that `trueshot embed` accepts
    #[arg(value_name = "DATASET")]
    path: PathBuf,
    /// Compare with this published data set
    #[arg(long, value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(PUBLISHED_DATASETS.map(expected_name)))]
    expect: Option<String>,
    /// Ignore the folders train/, val/ and test/: take all images together or, with --expect, split them by the built-in split
    /// file
    #[arg(long)]
    pool: bool,
    /// Count the images without reading them
    #[arg(long)]
    quick: bool,
    #[command(flatten)]
    threads: Threads,
}

/// A value of `--expect`: the name of a data set or, not shown in the help, the other name of its built-in split file.
fn expected_name(published: PublishedDataset) -> PossibleValue {
    let name = PossibleValue::new(published.name);
    match published.name {
        "mini" => name.alias("miniimagenet"),
        "tiered" => name.alias("tieredimagenet"),
        _ => name,
    }
}

/// Runs `trueshot dataset check`. With `--expect`, problems are an error ([`ProblemsFound`], exit status 3); without it,
/// classes that are in two splits are only printed.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let expected = arguments.expect.as_deref().and_then(PublishedDataset::find);
    let surveys = arguments.threads.run(|| arguments.survey_splits(expected))?;
    // With `--expect`, skipped files are among the problems below the table.
    if expected.is_none() {
        surveys.iter().for_each(|(_, survey)| print_skipped(survey.skipped.iter()));
    }
    let mut text = table(&surveys);
    let borrowed: Vec<(&str, &Survey)> =
        surveys.iter().map(|(split, survey)| (split.as_str(), survey)).collect();
    let mut problems = shared_classes(&borrowed);
    if let Some(expected) = expected {
        problems.extend(compare(expected, &surveys)?);
    }
    for problem in &problems {
        text.push_str(&format!("! {problem}\n"));
    }
    if let (Some(expected), true) = (expected, problems.is_empty()) {
        text.push_str(&format!("as published: {}\n", expected.name));
    }
    print_escaped(&text)?;
    match expected.is_some() && !problems.is_empty() {
        true => Err(ProblemsFound::new(problems.len(), "problem").into()),
        false => Ok(()),
    }
}

impl Arguments {
    /// The splits that the data set defines, each with its survey. If it has none, or with `--pool`: those of the built-in
    /// split file of the `expected` data set, or all images under the name `all` if nothing is expected.
    fn survey_splits(&self, expected: Option<&PublishedDataset>) -> anyhow::Result<Vec<(String, Survey)>> {
        let defined_splits: Vec<&str> =
            SPLITS.into_iter().filter(|split| !self.pool && has_split(&self.path, split)).collect();
        // The data set whose built-in split file divides the classes, if the images define no splits.
        let split_by = expected.filter(|_| defined_splits.is_empty());
        let mut surveys = Vec::new();
        for split in if split_by.is_some() { SPLITS.to_vec() } else { defined_splits } {
            // The name of a published data set stands for its built-in split file, which assigns classes of the whole
            // data set.
            let file = split_by.map(|published| PathBuf::from(published.name));
            let selection = ImageSelection {
                split_file: file.as_deref(),
                split: Some(split),
                pool: split_by.is_some(),
                limit_per_class: None,
            };
            match selection.open(&self.path) {
                Ok(collection) => surveys.push((split.to_owned(), self.survey_collection(&collection)?)),
                // The empty survey makes `compare` report that all classes of the split are missing.
                Err(error) if is_empty_split(&error) => surveys.push((split.to_owned(), Survey::default())),
                Err(error) => return Err(error),
            }
        }
        if surveys.is_empty() {
            let selection =
                ImageSelection { split_file: None, split: None, pool: self.pool, limit_per_class: None };
            surveys.push(("all".into(), self.survey_collection(&selection.open(&self.path)?)?));
        }
        Ok(surveys)
    }

    /// Counts the images of a collection and, without `--quick`, reads their sizes.
    fn survey_collection(&self, collection: &Collection) -> anyhow::Result<Survey> {
        if self.quick {
            return Ok(Survey::count(collection));
        }
        let progress = ProgressDisplay::counting(collection.entries().len() as u64, "images");
        let survey = Survey::read(collection, &progress);
        progress.finish();
        Ok(survey?)
    }
}

/// Whether a split could not be opened because the data set has none of its classes.
fn is_empty_split(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref::<Error>(), Some(Error::NoClassOfSplit { .. }))
}

/// The differences between the surveys and the published numbers, as messages.
fn compare(expected: &PublishedDataset, surveys: &[(String, Survey)]) -> anyhow::Result<Vec<String>> {
    let mut problems = Vec::new();
    // `number` is 0 for train, 1 for val and 2 for test.
    for (number, name) in SPLITS.into_iter().enumerate() {
        match surveys.iter().find(|(split, _)| split == name) {
            Some((_, survey)) => {
                let split = Split::open(expected.name.as_ref(), name)?;
                problems.extend(expected.problems(number, survey, Some(&split)));
            }
            None => problems.push(format!("{name}: this split is missing")),
        }
    }
    Ok(problems)
}

/// The counts as a table, one line per split.
fn table(surveys: &[(String, Survey)]) -> String {
    let mut text =
        format!("{:<6} {:>8} {:>9}  {:<12} {}\n", "split", "classes", "images", "per class", "sizes");
    for (name, survey) in surveys {
        let (fewest, most) = (survey.classes.values().min(), survey.classes.values().max());
        let per_class = match (fewest, most) {
            (Some(fewest), Some(most)) if fewest == most => fewest.to_string(),
            (Some(fewest), Some(most)) => format!("{fewest} to {most}"),
            _ => "-".into(),
        };
        let (classes, images) = (survey.classes.len(), survey.images());
        text.push_str(&format!("{name:<6} {classes:>8} {images:>9}  {per_class:<12} {}\n", sizes(survey)));
    }
    text
}

/// The sizes of the images in words: the size that all have, or the number of sizes and the most frequent one.
fn sizes(survey: &Survey) -> String {
    let mut sizes: Vec<(&(usize, usize), &usize)> = survey.sizes.iter().collect();
    sizes.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    match &sizes[..] {
        [] => "-".into(),
        [((width, height), _)] => format!("{width} x {height}"),
        [((width, height), count), ..] => {
            format!("{} sizes, most often {width} x {height} ({count})", sizes.len())
        }
    }
}
