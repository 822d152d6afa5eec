//! `trueshot train backbone`: a Conv4 on pictures.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;
use trueshot::noise::NoiseLevels;
use trueshot::training::configuration;
use trueshot_vision::training::{BackboneTrainee, Configuration};

use super::heads::{OptimiserFlags, grouped};
use super::pictures::{DataFlags, PictureFlags, ValidationFlags, load, settle};
use super::{Course, RunArguments};

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
  trueshot train backbone mini/train --val mini/val -o outlier.safetensors --noise outlier=0,20,40 \\
      --outliers outliers/train --val-outliers outliers/train
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
    /// A noise type (symmetric, paired, outlier) and the levels to draw from, in percent; can be repeated
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

pub fn train(arguments: &Arguments) -> anyhow::Result<()> {
    let run = &arguments.run;
    let flags = configuration::table(&arguments.options);
    let defaults = match arguments.options.data.is_built_in(run.config.as_deref()) {
        true => Configuration::drawings(),
        false => Configuration::photographs(),
    };
    let mut configuration: Configuration = configuration::read(&defaults, run.config.as_deref(), flags)?;
    configuration.check()?;
    settle(&configuration.data, &configuration.episodes.noise, &mut configuration.validation)?;
    run.check()?;
    let steps = configuration.steps;
    let outcome = run.threads.run(|| {
        let datasets = load(&configuration.data, &configuration.pictures)?;
        let course = Course {
            title: format!("Conv4 of {} px, {steps} episodes", configuration.pictures.size),
            steps,
            validate_every: configuration.validation.every,
            configuration: configuration::text(&configuration),
            identity: datasets.identity(&configuration),
        };
        let seed = configuration.seed;
        let mut trainee = BackboneTrainee::new(configuration, datasets)?;
        eprintln!("{} parameters, seed {seed}", grouped(trainee.parameters().len()));
        run.train(&mut trainee, course)
    })?;
    run.conclude(&outcome, steps);
    Ok(())
}
