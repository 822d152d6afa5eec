//! `trueshot train joint`: trains a backbone (images to embeddings) and a head (a network on embeddings) together.
//! Start with [`train`]; `image_training` has the rest.

use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use trueshot::noise::NoiseLevels;
use trueshot::training::configuration;
use trueshot_vision::training::joint::{JointConfiguration, JointTrainee};

use super::RunArguments;
use super::image_training::{ImageTraining, ImageTrainingFlags};

/// Train a backbone and a head (TraNFS or Relabel) together
///
/// Both start from trained models: a Conv4 of `train backbone`, and a head of `train tranfs` or `train relabel` on its
/// embeddings. Every step has several noisy episodes of images; the loss is that of the head, plus that of nearest prototypes
/// on the true labels. Outliers are images of training classes that are not in the episode, unless --outliers is given. The
/// model is the running average of the parameters, one file for both: `embed --backbone FILE` reads the backbone, and
/// `--methods relabel:model=FILE` (or tranfs) the head. DATASET is what `train backbone` accepts.
#[derive(Args)]
#[command(after_help = "Examples:
  trueshot train joint mini/train --val mini/val \\
      --backbone conv4.safetensors --head relabel.safetensors \\
      -o joint.safetensors
  trueshot train joint mini/train --val mini/val --from joint.safetensors \\
      --rate 7e-4 -o joint2.safetensors
  trueshot embed mini/test --backbone joint.safetensors -o test.safetensors
  trueshot eval test.safetensors \\
      --methods protonet,relabel:model=joint.safetensors")]
pub struct Arguments {
    #[command(flatten)]
    run: RunArguments,
    #[command(flatten)]
    shared_flags: ImageTrainingFlags,
    #[command(flatten)]
    network_flags: JointFlags,
}

/// Options of joint training. They are serialised and override the configuration file, so fields are named like its
/// sections and keys (`episodes.ways`).
#[derive(Args, Serialize)]
struct JointFlags {
    /// Start from this backbone
    #[arg(long, value_name = "MODEL", help_heading = "Models")]
    backbone: Option<PathBuf>,
    /// Start from this head, trained on embeddings of the backbone
    #[arg(long, value_name = "MODEL", help_heading = "Models")]
    head: Option<PathBuf>,
    /// Weigh the loss of nearest prototypes on the true labels by W [default: 0.5]
    #[arg(long, value_name = "W", help_heading = "Optimiser")]
    prototype_weight: Option<f64>,
    /// Keep this part of the running average of the parameters in each step; 0: no average [default: 0.999]
    #[arg(long, value_name = "SHARE", help_heading = "Optimiser")]
    average: Option<f64>,
    #[command(flatten)]
    episodes: EpisodeFlags,
}

#[derive(Args, Serialize)]
#[command(next_help_heading = "Training episodes")]
struct EpisodeFlags {
    /// Use at most N images per step, for as many episodes as fit [default: 520]
    #[arg(long, value_name = "N")]
    images_per_step: Option<usize>,
    /// Draw N classes per episode
    #[arg(long, value_name = "N")]
    ways: Option<usize>,
    /// Draw one of these numbers of labelled images per class in each step; a repeated number is drawn more often [default:
    /// 5,5,5,5,10; omniglot: 5]
    #[arg(long, value_name = "K,..", value_delimiter = ',')]
    shots: Option<Vec<usize>>,
    /// Draw Q queries per class
    #[arg(long, value_name = "Q")]
    queries: Option<usize>,
    /// Draw noise of this type (symmetric, paired or outlier) and of one of these levels in percent; can be repeated
    #[arg(short, long, value_name = "TYPE=LEVEL,..")]
    noise: Option<Vec<NoiseLevels>>,
}

/// Runs `trueshot train joint`.
pub fn train(arguments: &Arguments) -> anyhow::Result<()> {
    let Arguments { run, shared_flags, network_flags } = arguments;
    // The defaults for the built-in drawings (Omniglot) and for all other images.
    let (drawings, photographs) = (JointConfiguration::drawings(), JointConfiguration::photographs());
    let configuration = shared_flags.read(run, configuration::table(network_flags), drawings, photographs)?;
    configuration.check()?;
    let training = ImageTraining {
        title: format!(
            "Conv4 of {} px and a head, {} steps",
            configuration.pictures.size, configuration.steps
        ),
        seed: configuration.seed,
        steps: configuration.steps,
        data: &configuration.data,
        pictures: &configuration.pictures,
        noise: &configuration.episodes.noise,
        validation: &configuration.validation,
        parameters_noun: "parameters",
    };
    training.train_on_device(run, &configuration, JointTrainee::on_gpu, JointTrainee::new, |trainee| {
        Ok(trainee.parameters()?.len())
    })
}
