//! `trueshot train negmargin`: a Conv4 by a cosine softmax with a negative margin.

use clap::Args;
use serde::Serialize;
use trueshot::training::configuration;
use trueshot_vision::training::negmargin::{Configuration, NegMarginTrainee};

use super::RunArguments;
use super::pictures::{Lesson, Options, settle};

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
    #[command(flatten)]
    own: Own,
}

/// What this network alone can be told.
#[derive(Args, Serialize)]
struct Own {
    #[command(flatten)]
    loss: LossFlags,
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
    let Arguments { run, options, own } = arguments;
    let (drawings, photographs) = (Configuration::drawings(), Configuration::photographs());
    let mut configuration = options.read(run, configuration::table(own), drawings, photographs)?;
    configuration.check()?;
    settle(&configuration.data, &[], &mut configuration.validation)?;
    let (size, batch, steps) = (configuration.pictures.size, configuration.loss.batch, configuration.steps);
    let lesson = Lesson {
        title: format!("NegMargin on {size} px, {steps} batches of {batch}"),
        seed: configuration.seed,
        steps,
        data: &configuration.data,
        pictures: &configuration.pictures,
        validate_every: configuration.validation.every,
        parameters: "parameters of the backbone",
    };
    lesson.train(run, &configuration, |datasets| {
        let trainee = NegMarginTrainee::new(configuration.clone(), datasets)?;
        let count = trainee.parameters().len();
        Ok((trainee, count))
    })
}
