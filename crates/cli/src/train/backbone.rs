//! `trueshot train backbone`: a Conv4 on pictures.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use serde::Serialize;
use trueshot::noise::NoiseLevels;
use trueshot::training::configuration;
use trueshot_vision::overlap::Overlap;
use trueshot_vision::training::{BackboneTrainee, Configuration, identity};
use trueshot_vision::{Collection, Dataset, Error};

use super::heads::{OptimiserFlags, grouped};
use super::{Course, RunArguments};
use crate::pictures_argument::{FitArgument, Part, tell_skipped};
use crate::progress::Progress;

/// Train a backbone, a network that turns pictures into embeddings
///
/// Learns from episodes of pictures: one a step, clean unless noise is asked for, every picture flipped, cropped and
/// coloured at random. DATASET is a folder of class folders, a .tar or .tar.gz of one, a .csv or .jsonl list of path
/// and label, a data set as it is published (see `trueshot embed --help`), or `omniglot`, the drawings that are built in. All pictures are held in memory.
#[derive(Args)]
#[command(after_help = "Examples:
  trueshot train backbone omniglot -o drawings.safetensors --steps 5000
  trueshot train backbone mini/train --val mini/val -o conv4.safetensors
  trueshot train backbone mini-imagenet-caches/ -o conv4.safetensors
  trueshot train backbone mini/ --pool --split-file miniimagenet -o conv4.safetensors
  trueshot train backbone cifar-100-python --split-file cifar-fs --size 32 -o cifar.safetensors
  trueshot train backbone mini/train --val mini/val -o median.safetensors --aggregate median --noise symmetric=40
  trueshot embed mini/test -o test.safetensors --backbone conv4.safetensors")]
pub struct Arguments {
    #[command(flatten)]
    run: RunArguments,
    #[command(flatten)]
    options: Options,
}

#[derive(Args, Serialize)]
struct Options {
    #[command(flatten)]
    data: DataFlags,
    #[command(flatten)]
    pictures: PictureFlags,
    #[command(flatten)]
    episodes: EpisodeFlags,
    #[command(flatten)]
    validation: ValidationFlags,
    #[command(flatten)]
    optimiser: OptimiserFlags,
    /// Updates of the parameters, each on one episode
    #[arg(long, help_heading = "Optimiser")]
    steps: Option<u64>,
    /// Start from the parameters of another backbone
    #[arg(long, value_name = "MODEL", help_heading = "Optimiser")]
    from: Option<PathBuf>,
    /// Same seed, same model
    #[arg(short, long, help_heading = "The run")]
    seed: Option<u64>,
}

#[derive(Args, Serialize)]
#[command(next_help_heading = "Data")]
struct DataFlags {
    /// The pictures to train on
    #[arg(value_name = "DATASET", required_unless_present = "config")]
    train: Option<PathBuf>,
    /// The pictures to choose the best model by, where they are not classes of DATASET
    #[arg(id = "val", long = "val", value_name = "DATASET")]
    validation: Option<PathBuf>,
    /// Which classes are in which split: a JSON file {"train": [..], "val": [..], "test": [..]}, or cifar-fs, cub,
    /// fc100, miniimagenet or tieredimagenet, which are built in
    #[arg(long, value_name = "JSON|NAME")]
    split_file: Option<PathBuf>,
    /// The split to train on [default: train]
    #[arg(long, value_name = "NAME")]
    train_split: Option<String>,
    /// The split to validate on; '' for none [default: val]
    #[arg(id = "val-split", long = "val-split", value_name = "NAME")]
    validation_split: Option<String>,
    /// Take the pictures in train/, val/ and test/ together; classes are the folders below
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pool: Option<bool>,
    /// Take the first N pictures of every class, by name
    #[arg(long, value_name = "N")]
    limit_per_class: Option<usize>,
}

#[derive(Args, Serialize)]
#[command(next_help_heading = "Pictures")]
struct PictureFlags {
    /// Height and width the network works on [default: 84; omniglot: 28]
    #[arg(long, value_name = "PX")]
    size: Option<usize>,
    /// Colour, or drawings with dark ink on white paper [default: true; omniglot: false]
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set)]
    colour: Option<bool>,
    /// What becomes of a picture that is no square
    #[arg(long, value_enum)]
    fit: Option<FitArgument>,
    /// Change pictures at random [default: true; omniglot: false]
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set)]
    augment: Option<bool>,
    /// Add classes turned by 90, 180 and 270 degrees, as is usual for drawings of characters
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    rotations: Option<bool>,
}

#[derive(Args, Serialize)]
#[command(next_help_heading = "Training episodes")]
struct EpisodeFlags {
    /// Classes
    #[arg(long, value_name = "N")]
    ways: Option<usize>,
    /// Labelled pictures a class
    #[arg(long, value_name = "K")]
    shots: Option<usize>,
    /// Queries a class
    #[arg(long, value_name = "Q")]
    queries: Option<usize>,
    /// A noise type (symmetric, paired) and the levels to draw from, in percent; can be repeated
    #[arg(short, long, value_name = "TYPE=LEVEL,..")]
    noise: Option<Vec<NoiseLevels>>,
    /// What prototypes are made by
    #[arg(long, value_enum)]
    aggregate: Option<AggregateArgument>,
}

#[derive(Clone, Copy, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum AggregateArgument {
    Mean,
    Median,
}

#[derive(Args, Serialize)]
#[command(next_help_heading = "Validation")]
struct ValidationFlags {
    /// Steps between two validations
    #[arg(id = "val-every", long = "val-every", value_name = "STEPS")]
    every: Option<u64>,
    /// Episodes of a validation, the same ones every time
    #[arg(id = "val-episodes", long = "val-episodes", value_name = "N")]
    episodes: Option<u64>,
    /// Classes of an episode
    #[arg(id = "val-ways", long = "val-ways", value_name = "N")]
    ways: Option<usize>,
    /// Labelled pictures a class
    #[arg(id = "val-shots", long = "val-shots", value_name = "K")]
    shots: Option<usize>,
    /// Queries a class
    #[arg(id = "val-queries", long = "val-queries", value_name = "Q")]
    queries: Option<usize>,
    /// Noise types and levels; the score is the mean accuracy over all of them [default: as in training]
    #[arg(id = "val-noise", long = "val-noise", value_name = "TYPE=LEVEL,..")]
    noise: Option<Vec<NoiseLevels>>,
    /// The seed of the episodes
    #[arg(id = "val-seed", long = "val-seed", value_name = "SEED")]
    seed: Option<u64>,
}

pub fn train(arguments: &Arguments) -> anyhow::Result<()> {
    let run = &arguments.run;
    let flags = configuration::table(&arguments.options);
    let defaults = defaults(&arguments.options, run.config.as_deref());
    let configuration: Configuration = configuration::read(&defaults, run.config.as_deref(), flags)?;
    configuration.check()?;
    run.check()?;
    let steps = configuration.steps;
    let outcome = run.threads.run(|| {
        let (train, validation) = load(&configuration)?;
        let course = Course {
            title: format!("Conv4 of {} px, {steps} episodes", configuration.pictures.size),
            steps,
            validate_every: configuration.validation.every,
            configuration: configuration::text(&configuration),
            identity: identity(&configuration, &train, validation.as_ref()),
        };
        let seed = configuration.seed;
        let mut trainee = BackboneTrainee::new(configuration, Arc::new(train), validation)?;
        eprintln!("{} parameters, seed {seed}", grouped(trainee.parameters().len()));
        run.train(&mut trainee, course)
    })?;
    run.conclude(&outcome, steps);
    Ok(())
}

/// Drawings are trained on otherwise than photographs, so what the data is must be known first.
fn defaults(options: &Options, file: Option<&Path>) -> Configuration {
    let written = || {
        let table: toml::Table = std::fs::read_to_string(file?).ok()?.parse().ok()?;
        Some(PathBuf::from(table.get("data")?.get("train")?.as_str()?))
    };
    let data = options.data.train.clone().or_else(written);
    match data.is_some_and(|data| trueshot_vision::source::is_built_in(&data)) {
        true => Configuration::drawings(),
        false => Configuration::photographs(),
    }
}

fn load(configuration: &Configuration) -> anyhow::Result<(Dataset, Option<Dataset>)> {
    let data = &configuration.data;
    let given = |path: &PathBuf| !path.as_os_str().is_empty();
    let collection = |path: &Path, split: &str| {
        let is_split = given(&data.split_file) || trueshot_vision::source::has_splits(path);
        let part = Part {
            split_file: given(&data.split_file).then_some(&data.split_file),
            split: is_split.then_some(split),
            pool: data.pool,
            limit_per_class: (data.limit_per_class > 0).then_some(data.limit_per_class),
        };
        part.open(path)
    };
    anyhow::ensure!(
        given(&data.train),
        "no pictures to train on: give DATASET, or data.train in the configuration"
    );
    let train = read(configuration, &collection(&data.train, &data.train_split)?, true)?;
    let has_split = given(&data.split_file) || trueshot_vision::source::has_splits(&data.train);
    let source = if given(&data.validation) { &data.validation } else { &data.train };
    if !given(&data.validation) && (!has_split || data.validation_split.is_empty()) {
        eprintln!("nothing to validate on (--val, --split-file): the last model will be kept");
        return Ok((train, None));
    }
    let validation = read(configuration, &collection(source, &data.validation_split)?, false)?;
    for warning in Overlap::between(&train, &validation).warnings() {
        eprintln!("warning: {warning}");
    }
    Ok((train, Some(validation)))
}

fn read(configuration: &Configuration, collection: &Collection, training: bool) -> anyhow::Result<Dataset> {
    let progress = Progress::counting(collection.entries().len() as u64, "pictures");
    let augmented = training && configuration.pictures.augment;
    let to = configuration.preprocessing();
    let loaded = Dataset::load(collection, &to, augmented, &|done| progress.moves_to(done as u64));
    progress.finish();
    let mut dataset = loaded?;
    tell_skipped(collection.skipped().iter().chain(dataset.skipped()));
    if let Some(empty) = collection.classes().iter().find(|class| !dataset.labels().classes().contains(class))
    {
        let (class, skipped) = (empty.clone(), dataset.skipped().len());
        return Err(Error::TooFewPictures { class, have: 0, need: 1, skipped }.into());
    }
    if training && configuration.pictures.rotations {
        dataset = dataset.with_rotations()?;
    }
    eprintln!(
        "{}: {} pictures of {} classes to {} on",
        collection.path().display(),
        grouped(dataset.pictures().len()),
        grouped(dataset.labels().classes().len()),
        if training { "train" } else { "validate" },
    );
    Ok(dataset)
}
