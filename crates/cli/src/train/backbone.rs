//! `trueshot train backbone`: trains a Conv4 on images. Start with [`train`]; `image_training` has the rest.

use clap::Args;
use serde::Serialize;
use trueshot::noise::NoiseLevels;
use trueshot::training::configuration;
use trueshot_vision::training::{BackboneConfiguration, BackboneTrainee};

use super::RunArguments;
use super::image_training::{ImageTraining, ImageTrainingFlags};

/// Train a backbone, the network that embeds images
///
/// Trains a Conv4 on episodes of images, one episode per step, without noise unless --noise is given; images are augmented
/// by random flips, crops and colour changes. DATASET is a folder of class folders, a .zip, .tar or .tar.gz of one, a .csv or
/// .jsonl list of paths and labels, a data set in its published form (see `trueshot embed --help`), or `omniglot`, which is
/// built in. All images are held in memory.
#[derive(Args)]
#[command(after_help = "Examples:
  trueshot train backbone omniglot -o drawings.safetensors --steps 5000
  trueshot train backbone mini/train --val mini/val -o conv4.safetensors
  trueshot train backbone mini-imagenet-caches/ -o conv4.safetensors
  trueshot train backbone mini/ --pool --split-file miniimagenet \\
      -o conv4.safetensors
  trueshot train backbone cifar-100-python --split-file cifar-fs --size 32 \\
      -o cifar.safetensors
  trueshot train backbone mini/train --val mini/val -o median.safetensors \\
      --aggregate median --noise symmetric=40
  trueshot train backbone mini/train --val mini/val -o outlier.safetensors \\
      --noise outlier=0,20,40
  trueshot embed mini/test -o test.safetensors --backbone conv4.safetensors")]
pub struct Arguments {
    #[command(flatten)]
    run: RunArguments,
    #[command(flatten)]
    shared_flags: ImageTrainingFlags,
    #[command(flatten)]
    network_flags: BackboneFlags,
}

/// Options of backbones. They are serialised and override the configuration file, so fields are named like its
/// sections and keys (`episodes.ways`).
#[derive(Args, Serialize)]
struct BackboneFlags {
    #[command(flatten)]
    episodes: EpisodeFlags,
}

#[derive(Args, Serialize)]
#[command(next_help_heading = "Training episodes")]
struct EpisodeFlags {
    /// Draw N classes per episode
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
    /// Compute prototypes from the embeddings of a class in this way
    #[arg(long, value_parser = ["mean", "median"])]
    aggregate: Option<String>,
}

/// Runs `trueshot train backbone`.
pub fn train(arguments: &Arguments) -> anyhow::Result<()> {
    let Arguments { run, shared_flags, network_flags } = arguments;
    // The defaults for the built-in drawings (Omniglot) and for all other images.
    let (drawings, photographs) = (BackboneConfiguration::drawings(), BackboneConfiguration::photographs());
    let configuration = shared_flags.read(run, configuration::table(network_flags), drawings, photographs)?;
    configuration.check()?;
    let training = ImageTraining {
        title: format!("Conv4 of {} px, {} episodes", configuration.pictures.size, configuration.steps),
        seed: configuration.seed,
        steps: configuration.steps,
        data: &configuration.data,
        pictures: &configuration.pictures,
        noise: &configuration.episodes.noise,
        validation: &configuration.validation,
        parameters_noun: "parameters",
    };
    training.train_on_device(run, &configuration, BackboneTrainee::on_gpu, BackboneTrainee::new, |trainee| {
        Ok(trainee.parameters()?.len())
    })
}
