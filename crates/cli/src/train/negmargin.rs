//! `trueshot train negmargin`: a Conv4 by a cosine softmax with a negative margin.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use trueshot::training::configuration;
use trueshot_vision::training::negmargin::{Configuration, NegMarginTrainee};

use super::heads::{OptimiserFlags, grouped};
use super::pictures::{DataFlags, PictureFlags, ValidationFlags, load, settle};
use super::{Course, RunArguments};

/// Train a backbone as NegMargin does: all classes at once, by cosines with a negative margin
///
/// Every step takes a batch of pictures of all classes. DATASET is what `train backbone` takes, and so is the model a
/// backbone; at test its embeddings go with `--methods baseline++`, which validation asks too.
#[derive(Args)]
#[command(after_help = "Examples:
  trueshot train negmargin omniglot -o negmargin.safetensors --steps 2000
  trueshot train negmargin mini/train --val mini/val -o negmargin.safetensors
  trueshot embed mini/test -o test.safetensors --backbone negmargin.safetensors
  trueshot eval test.safetensors --methods baseline++")]
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
    loss: LossFlags,
    #[command(flatten)]
    validation: ValidationFlags,
    #[command(flatten)]
    optimiser: OptimiserFlags,
    /// Updates of the parameters, each on one batch
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
#[command(next_help_heading = "Loss")]
struct LossFlags {
    /// Pictures a step [default: 128]
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// What cosines are multiplied by [default: 30]
    #[arg(long)]
    scale: Option<f64>,
    /// What is subtracted from the right class's cosine before [default: -0.02]
    #[arg(long, allow_negative_numbers = true)]
    margin: Option<f64>,
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
    settle(&configuration.data, &[], &mut configuration.validation)?;
    run.check()?;
    let steps = configuration.steps;
    let outcome = run.threads.run(|| {
        let datasets = load(&configuration.data, &configuration.pictures)?;
        let (size, batch) = (configuration.pictures.size, configuration.loss.batch);
        let course = Course {
            title: format!("NegMargin on {size} px, {steps} batches of {batch}"),
            steps,
            validate_every: configuration.validation.every,
            configuration: configuration::text(&configuration),
            identity: datasets.identity(&configuration),
        };
        let seed = configuration.seed;
        let mut trainee = NegMarginTrainee::new(configuration, datasets)?;
        eprintln!("{} parameters of the backbone, seed {seed}", grouped(trainee.parameters().len()));
        run.train(&mut trainee, course)
    })?;
    run.conclude(&outcome, steps);
    Ok(())
}
