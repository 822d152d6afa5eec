//! `trueshot train negmargin`: trains a Conv4 with a cosine softmax with a negative margin. Start with [`train`];
//! `image_training` has the rest.

use clap::Args;
use serde::Serialize;
use trueshot::training::configuration;
use trueshot_vision::training::negmargin::{NegMarginConfiguration, NegMarginTrainee};

use super::RunArguments;
use super::image_training::{ImageTraining, ImageTrainingFlags};

/// Train a backbone with NegMargin: a cosine softmax over all classes with a negative margin
///
/// Every step uses a batch of images of all classes. DATASET is what `train backbone` accepts, and the model is a backbone;
/// evaluate its embeddings with `--methods baseline++`, which is also used for validation.
#[derive(Args)]
// Batches of all classes have no noise, so --outliers is always refused.
#[command(mut_arg("outliers", |outliers| outliers.hide(true)), after_help = "Examples:
  trueshot train negmargin omniglot -o negmargin.safetensors --steps 2000
  trueshot train negmargin mini/train --val mini/val -o negmargin.safetensors
  trueshot embed mini/test -o test.safetensors \\
      --backbone negmargin.safetensors
  trueshot eval test.safetensors --methods baseline++")]
pub struct Arguments {
    #[command(flatten)]
    run: RunArguments,
    #[command(flatten)]
    shared_flags: ImageTrainingFlags,
    #[command(flatten)]
    network_flags: NegMarginFlags,
}

/// Options of NegMargin. They are serialised and override the configuration file, so fields are named like its
/// sections and keys (`loss.batch`).
#[derive(Args, Serialize)]
struct NegMarginFlags {
    #[command(flatten)]
    loss: LossFlags,
}

#[derive(Args, Serialize)]
#[command(next_help_heading = "Loss")]
struct LossFlags {
    /// Train on N images per step [default: 128]
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// Multiply the cosines by this scale [default: 30]
    #[arg(long)]
    scale: Option<f64>,
    /// Subtract this margin from the cosine of the true class before scaling [default: -0.02]
    #[arg(long, allow_negative_numbers = true)]
    margin: Option<f64>,
}

/// Runs `trueshot train negmargin`.
pub fn train(arguments: &Arguments) -> anyhow::Result<()> {
    let Arguments { run, shared_flags, network_flags } = arguments;
    // The defaults for the built-in drawings (Omniglot) and for all other images.
    let (drawings, photographs) = (NegMarginConfiguration::drawings(), NegMarginConfiguration::photographs());
    let configuration = shared_flags.read(run, configuration::table(network_flags), drawings, photographs)?;
    configuration.check()?;
    let (size, batch, steps) = (configuration.pictures.size, configuration.loss.batch, configuration.steps);
    let training = ImageTraining {
        title: format!("NegMargin on {size} px, {steps} batches of {batch}"),
        seed: configuration.seed,
        steps,
        data: &configuration.data,
        pictures: &configuration.pictures,
        noise: &[],
        validation: &configuration.validation,
        parameters_noun: "parameters of the backbone",
    };
    training.train_on_device(
        run,
        &configuration,
        NegMarginTrainee::on_gpu,
        NegMarginTrainee::new,
        |trainee| Ok(trainee.parameters()?.len()),
    )
}
