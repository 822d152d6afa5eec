//! `trueshot train maml`: a network that learns to be adapted.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use serde::Serialize;
use trueshot::noise::NoiseLevels;
use trueshot::training::configuration;
use trueshot_vision::training::maml::{Configuration, MamlTrainee};

use super::heads::{OptimiserFlags, grouped};
use super::pictures::{DataFlags, PictureFlags, ValidationFlags, load, settle};
use super::{Course, RunArguments};

/// Train MAML, a network that a few steps of gradient descent adapt to a support set
///
/// Every step takes several tasks: the network is adapted to the support set of each, and changed so that its queries
/// would have been answered better. DATASET is what `train backbone` takes. The model is asked with
/// `trueshot eval --pictures`, since it looks at pictures rather than embeddings.
#[derive(Args)]
#[command(after_help = "Examples:
  trueshot train maml omniglot -o maml.safetensors --steps 500 --tasks 4
  trueshot train maml cifar/train --val cifar/val --size 32 --tasks 4 -o maml.safetensors
  trueshot eval --pictures cifar/test --methods maml:model=maml.safetensors")]
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
    adaptation: AdaptationFlags,
    #[command(flatten)]
    validation: ValidationFlags,
    #[command(flatten)]
    optimiser: OptimiserFlags,
    /// Updates of the parameters
    #[arg(long, help_heading = "Optimiser")]
    steps: Option<u64>,
    /// Start from the parameters of another MAML model
    #[arg(long, value_name = "MODEL", help_heading = "Optimiser")]
    from: Option<PathBuf>,
    /// Same seed, same model
    #[arg(short, long, help_heading = "The run")]
    seed: Option<u64>,
}

#[derive(Args, Serialize)]
#[command(next_help_heading = "Training episodes")]
struct EpisodeFlags {
    /// Episodes a step [default: 32]
    #[arg(id = "tasks", long = "tasks", value_name = "N")]
    per_step: Option<usize>,
    /// Classes; the network is made for so many
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
}

#[derive(Args, Serialize)]
#[command(next_help_heading = "Adaptation")]
struct AdaptationFlags {
    /// How far a step of adaptation goes along the gradient [default: 0.01]
    #[arg(long, value_name = "RATE")]
    inner_rate: Option<f64>,
    /// Steps of adaptation in training [default: 5]
    #[arg(long, value_name = "N")]
    inner_steps: Option<usize>,
    /// Steps of adaptation in validation and at test [default: 10]
    #[arg(long, value_name = "N")]
    test_steps: Option<usize>,
    /// Whether the gradient goes through the steps (second) or not (first) [default: second]
    #[arg(long, value_enum)]
    order: Option<OrderArgument>,
}

#[derive(Clone, Copy, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
enum OrderArgument {
    First,
    Second,
}

pub fn train(arguments: &Arguments) -> anyhow::Result<()> {
    let run = &arguments.run;
    let flags = configuration::table(&arguments.options);
    let mut defaults = match arguments.options.data.is_built_in(run.config.as_deref()) {
        true => Configuration::drawings(),
        false => Configuration::photographs(),
    };
    // The network has as many classes in validation as in training; who asks for some means both.
    if let Some(ways) = arguments.options.episodes.ways {
        defaults.validation.ways = ways;
    }
    let mut configuration: Configuration = configuration::read(&defaults, run.config.as_deref(), flags)?;
    configuration.check()?;
    settle(&configuration.data, &configuration.episodes.noise, &mut configuration.validation)?;
    run.check()?;
    let steps = configuration.steps;
    let outcome = run.threads.run(|| {
        let datasets = load(&configuration.data, &configuration.pictures)?;
        let (size, tasks) = (configuration.pictures.size, configuration.episodes.per_step);
        let course = Course {
            title: format!("MAML on {size} px, {steps} steps of {tasks} tasks"),
            steps,
            validate_every: configuration.validation.every,
            configuration: configuration::text(&configuration),
            identity: datasets.identity(&configuration),
        };
        let seed = configuration.seed;
        let mut trainee = MamlTrainee::new(configuration, datasets)?;
        eprintln!("{} parameters, seed {seed}", grouped(trainee.parameters().len()));
        run.train(&mut trainee, course)
    })?;
    run.conclude(&outcome, steps);
    Ok(())
}
