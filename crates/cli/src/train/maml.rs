//! `trueshot train maml`: trains MAML, a network that adapts to a support set. Start with [`train`]; `image_training`
//! has the rest.

use clap::Args;
use serde::Serialize;
use trueshot::noise::NoiseLevels;
use trueshot::training::configuration;
use trueshot_vision::training::maml::{MamlConfiguration, MamlTrainee};

use super::RunArguments;
use super::image_training::{ImageTraining, ImageTrainingFlags};

/// Train MAML, a network that adapts to a support set with a few steps of gradient descent
///
/// Every step uses several episodes: the network is adapted to the support set of each, and its parameters are updated to
/// reduce the loss on the queries after adaptation. DATASET is what `train backbone` accepts. Evaluate the model with
/// `trueshot eval --pictures`, because it takes images rather than embeddings.
#[derive(Args)]
#[command(after_help = "Examples:
  trueshot train maml omniglot -o maml.safetensors --steps 500 --tasks 4
  trueshot train maml cifar/train --val cifar/val --size 32 --tasks 4 \\
      -o maml.safetensors
  trueshot eval --pictures cifar/test --methods maml:model=maml.safetensors")]
pub struct Arguments {
    #[command(flatten)]
    run: RunArguments,
    #[command(flatten)]
    shared_flags: ImageTrainingFlags,
    #[command(flatten)]
    network_flags: MamlFlags,
}

/// Options of MAML. They are serialised and override the configuration file, so fields are named like its sections and
/// keys (`episodes.per_step`).
#[derive(Args, Serialize)]
struct MamlFlags {
    #[command(flatten)]
    episodes: EpisodeFlags,
    #[command(flatten)]
    adaptation: AdaptationFlags,
}

#[derive(Args, Serialize)]
#[command(next_help_heading = "Training episodes")]
struct EpisodeFlags {
    /// Train on N episodes per step [default: 32]
    #[arg(id = "tasks", long = "tasks", value_name = "N")]
    per_step: Option<usize>,
    /// Draw N classes per episode; the network is built for this number of classes
    #[arg(long, value_name = "N")]
    ways: Option<usize>,
    /// Draw K labelled images per class
    #[arg(long, value_name = "K")]
    shots: Option<usize>,
    /// Draw Q queries per class
    #[arg(long, value_name = "Q")]
    queries: Option<usize>,
    /// Draw noise of this type (symmetric, paired or outlier) and of one of these levels in percent; can be repeated
    #[arg(short, long, value_name = "TYPE=LEVEL,..")]
    noise: Option<Vec<NoiseLevels>>,
}

#[derive(Args, Serialize)]
#[command(next_help_heading = "Adaptation")]
struct AdaptationFlags {
    /// Adapt with this learning rate [default: 0.01]
    #[arg(long, value_name = "RATE")]
    inner_rate: Option<f64>,
    /// Adapt in N steps in training [default: 5]
    #[arg(long, value_name = "N")]
    inner_steps: Option<usize>,
    /// Adapt in N steps in validation and at test time [default: 10]
    #[arg(long, value_name = "N")]
    test_steps: Option<usize>,
    /// Differentiate through the adaptation steps (second) or not (first) [default: second]
    #[arg(long, value_parser = ["first", "second"])]
    order: Option<String>,
}

/// Runs `trueshot train maml`.
pub fn train(arguments: &Arguments) -> anyhow::Result<()> {
    let Arguments { run, shared_flags, network_flags } = arguments;
    // The network has a fixed number of classes, so validation has that of training if it is not given.
    const AS_IN_TRAINING: usize = 0;
    // The defaults for the built-in drawings (Omniglot) and for all other images.
    let (mut drawings, mut photographs) = (MamlConfiguration::drawings(), MamlConfiguration::photographs());
    (drawings.validation.ways, photographs.validation.ways) = (AS_IN_TRAINING, AS_IN_TRAINING);
    let mut configuration =
        shared_flags.read(run, configuration::table(network_flags), drawings, photographs)?;
    if configuration.validation.ways == AS_IN_TRAINING {
        configuration.validation.ways = configuration.episodes.ways;
    }
    configuration.check()?;
    let (size, per_step, steps) =
        (configuration.pictures.size, configuration.episodes.per_step, configuration.steps);
    let training = ImageTraining {
        title: format!("MAML on {size} px, {steps} steps of {per_step} episodes"),
        seed: configuration.seed,
        steps,
        data: &configuration.data,
        pictures: &configuration.pictures,
        noise: &configuration.episodes.noise,
        validation: &configuration.validation,
        parameters_noun: "parameters",
    };
    training.train_on_device(run, &configuration, MamlTrainee::on_gpu, MamlTrainee::new, |trainee| {
        Ok(trainee.parameters()?.len())
    })
}
