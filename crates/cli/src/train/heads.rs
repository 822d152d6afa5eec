//! `trueshot train tranfs` and `trueshot train relabel`: train heads, networks that classify with noisy support sets of
//! embeddings. Both commands end in [`train`].
//!
//! The structs of flags have the same sections and names as the configuration file, because they are serialised to TOML
//! and override it. So a flag without a default is an `Option`: the default is that of the configuration. Explicit ids
//! (`id = ..`) keep flags of the same name in two sections, such as `ways`, apart for clap.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::Serialize;
use trueshot::Embeddings;
use trueshot::episode::EpisodeData;
use trueshot::method::{RelabelOptions, TranfsOptions};
use trueshot::noise::NoiseLevels;
use trueshot::training::configuration;
use trueshot::training::heads::configuration::{Configuration, CountRange};
use trueshot::training::heads::{self, HeadOptions, HeadTrainee};

use super::{RunArguments, TrainingRun};
use crate::device_argument::say_device;
use crate::messages::say;

/// Train TraNFS, a transformer that turns a noisy support set into prototypes
///
/// Trains on episodes with noisy support sets, drawn from the embeddings of a frozen backbone; the model works with that
/// backbone only. If the file contains several augmented copies of an image (item names ending in #1, #2, ..), an episode
/// uses one of them at random.
#[derive(Args)]
#[command(after_help = "Examples:
  trueshot train tranfs train.safetensors --val val.safetensors \\
      -o tranfs.safetensors
  trueshot train tranfs train.safetensors --val val.safetensors \\
      -o tranfs.safetensors --resume
  trueshot train tranfs train.safetensors --val val.safetensors \\
      -o paired.safetensors --noise paired=0,20,40 --from tranfs.safetensors
  trueshot train tranfs train.safetensors --val val.safetensors \\
      -o outlier.safetensors --noise outlier=0,20,40
  trueshot train tranfs --config tranfs.toml --seed 1 -o again.safetensors
  trueshot eval test.safetensors \\
      --methods protonet,tranfs:model=tranfs.safetensors")]
pub struct TranfsArguments {
    #[command(flatten)]
    run: RunArguments,
    #[command(flatten)]
    options: HeadFlags,
    #[command(flatten)]
    model: TranfsFlags,
}

/// Runs `trueshot train tranfs`.
pub fn train_tranfs(arguments: &TranfsArguments) -> anyhow::Result<()> {
    let mut flags = configuration::table(&arguments.options);
    flags.insert("model".into(), configuration::table(&arguments.model).into());
    train(&arguments.run, Configuration::<TranfsOptions>::tranfs(), flags)
}

/// Train Relabel, a head that estimates the true class of every support item
///
/// Uses only relations between items, so that one model works with any backbone: train it on several files with different
/// dimensions if possible. With --item-width it also uses the embeddings themselves, and works with one backbone only.
#[derive(Args)]
#[command(after_help = "Examples:
  trueshot train relabel train.safetensors --val val.safetensors \\
      -o relabel.safetensors
  trueshot train relabel conv4.safetensors efficientnet.safetensors \\
      --outliers conv4-other.safetensors efficientnet-other.safetensors \\
      --val conv4-val.safetensors -o relabel.safetensors
  trueshot train relabel train.safetensors --val val.safetensors \\
      --shots 1,2,5,10 --ways 3-10 --noise symmetric=0,20,40 \\
      --noise paired=0,20,40 -o relabel.safetensors
  trueshot eval test.safetensors \\
      --methods protonet,relabel:model=relabel.safetensors")]
pub struct RelabelArguments {
    #[command(flatten)]
    run: RunArguments,
    #[command(flatten)]
    options: HeadFlags,
    #[command(flatten)]
    model: RelabelFlags,
}

/// Runs `trueshot train relabel`.
pub fn train_relabel(arguments: &RelabelArguments) -> anyhow::Result<()> {
    let mut flags = configuration::table(&arguments.options);
    flags.insert("model".into(), configuration::table(&arguments.model).into());
    train(&arguments.run, Configuration::<RelabelOptions>::relabel(), flags)
}

/// Options of all heads.
#[derive(Args, Serialize)]
struct HeadFlags {
    #[command(flatten)]
    data: DataFlags,
    #[command(flatten)]
    episodes: EpisodeFlags,
    #[command(flatten)]
    validation: ValidationFlags,
    #[command(flatten)]
    optimiser: OptimiserFlags,
    /// Train for N steps [default: 25000 for tranfs, 20000 for relabel]
    #[arg(long, value_name = "N", help_heading = "Optimiser")]
    steps: Option<u64>,
    /// Start from the parameters of another model of the same kind and size
    #[arg(long, value_name = "MODEL", help_heading = "Optimiser")]
    from: Option<PathBuf>,
    /// Train with this random seed; the same seed gives the same model
    #[arg(short, long, help_heading = "The run")]
    seed: Option<u64>,
    /// Split the episodes of a step into this number of parts, which limits the number of threads; changes the result
    #[arg(long, help_heading = "The run")]
    parts: Option<usize>,
}

#[derive(Args, Serialize)]
#[command(next_help_heading = "Data")]
struct DataFlags {
    /// Embeddings to train on
    #[arg(value_name = "EMBEDDINGS", required_unless_present = "config")]
    train: Option<Vec<PathBuf>>,
    /// Draw outliers from these embeddings of other classes, one file per training file
    /// [default: from training classes that are not in the episode]
    #[arg(long, value_name = "FILE", num_args = 1..)]
    outliers: Option<Vec<PathBuf>>,
    /// Validate on these embeddings of other classes, to select the best model
    #[arg(id = "val", long = "val", value_name = "FILE", num_args = 1..)]
    validation: Option<Vec<PathBuf>>,
    /// Draw outliers in validation from these embeddings, one file per validation file [default: the training files]
    #[arg(id = "val-outliers", long = "val-outliers", value_name = "FILE", num_args = 1..)]
    validation_outliers: Option<Vec<PathBuf>>,
}

#[derive(Args, Serialize)]
#[command(next_help_heading = "Training episodes")]
struct EpisodeFlags {
    /// Train on N episodes per step
    #[arg(long, value_name = "N")]
    per_step: Option<usize>,
    /// Draw one of these numbers of classes per episode: numbers or ranges, such as 5 or 3-10
    #[arg(long, value_name = "N,..", value_delimiter = ',')]
    ways: Option<Vec<CountRange>>,
    /// Draw one of these numbers of labelled items per class, such as 1,2,5,10; from a range (3-10) each class draws its own
    #[arg(long, value_name = "K,..", value_delimiter = ',')]
    shots: Option<Vec<CountRange>>,
    /// Draw Q queries per class
    #[arg(long, value_name = "Q")]
    queries: Option<usize>,
    /// Draw noise of this type and of one of these levels in percent; can be repeated, all are equally likely
    #[arg(short, long, value_name = "TYPE=LEVEL,..")]
    noise: Option<Vec<NoiseLevels>>,
    /// Blend this share of classes and outliers from two, which reduces overfitting
    #[arg(long, value_name = "SHARE")]
    blended: Option<f64>,
    /// Mix noise with outliers, at levels that differ between classes as in real data sets, in this share of episodes
    #[arg(long, value_name = "SHARE")]
    mixed: Option<f64>,
}

#[derive(Args, Serialize)]
#[command(next_help_heading = "Validation")]
struct ValidationFlags {
    /// Validate every N steps
    #[arg(id = "val_every", long = "val-every", value_name = "N")]
    every: Option<u64>,
    /// Validate on N episodes, the same ones every time
    #[arg(id = "val_episodes", long = "val-episodes", value_name = "N")]
    episodes: Option<u64>,
    /// Draw one of these numbers of classes per episode [default: as in training]
    #[arg(id = "val_ways", long = "val-ways", value_name = "N,..", value_delimiter = ',')]
    ways: Option<Vec<CountRange>>,
    /// Draw one of these numbers of labelled items per class [default: as in training]
    #[arg(id = "val_shots", long = "val-shots", value_name = "K,..", value_delimiter = ',')]
    shots: Option<Vec<CountRange>>,
    /// Draw Q queries per class
    #[arg(id = "val_queries", long = "val-queries", value_name = "Q")]
    queries: Option<usize>,
    /// Validate with these noise types and levels; the score is the mean accuracy [default: as in training]
    #[arg(id = "val_noise", long = "val-noise", value_name = "TYPE=LEVEL,..")]
    noise: Option<Vec<NoiseLevels>>,
    /// Draw the validation episodes with this random seed
    #[arg(id = "val_seed", long = "val-seed", value_name = "SEED")]
    seed: Option<u64>,
}

#[derive(Args, Serialize)]
#[command(next_help_heading = "Optimiser")]
pub(super) struct OptimiserFlags {
    /// Set the maximum learning rate
    #[arg(long)]
    rate: Option<f64>,
    /// Set the weight decay
    #[arg(long)]
    weight_decay: Option<f64>,
    /// Warm up the learning rate over this share of the run
    #[arg(long, value_name = "SHARE")]
    warm_up: Option<f64>,
    /// Change the learning rate by this schedule after the warm-up
    #[arg(long, value_parser = ["cosine", "steps", "constant"])]
    schedule: Option<String>,
    /// End the cosine schedule at this share of the maximum learning rate
    #[arg(long, value_name = "SHARE")]
    floor: Option<f64>,
    /// Multiply the learning rate by this factor at each decrease (with --schedule steps)
    #[arg(long, value_name = "FACTOR")]
    decay: Option<f64>,
    /// Decrease the learning rate after every such share of the run (with --schedule steps)
    #[arg(long, value_name = "SHARE")]
    decay_every: Option<f64>,
    /// Clip gradients to this norm; 0: no clipping
    #[arg(long, value_name = "LENGTH")]
    clip: Option<f64>,
}

#[derive(Args, Serialize)]
#[command(next_help_heading = "Model")]
struct TranfsFlags {
    /// Build the model for up to N classes; 0: the number of classes of training episodes
    #[arg(long, value_name = "N")]
    classes: Option<usize>,
    /// Use N encoder layers
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Use tokens of width N
    #[arg(long, value_name = "N")]
    width: Option<usize>,
    /// Use N attention heads, a divisor of the width
    #[arg(long, value_name = "N")]
    heads: Option<usize>,
    /// Use feed-forward layers of width N
    #[arg(long, value_name = "N")]
    feed_forward: Option<usize>,
    /// Set the dropout rate
    #[arg(long, value_name = "SHARE")]
    dropout: Option<f64>,
    /// Use this kind of class tokens
    #[arg(long, value_parser = ["random", "learned", "mean"])]
    class_tokens: Option<String>,
    /// Add this kind of position embedding to the tokens of a class
    #[arg(long, value_parser = ["learned", "random"])]
    positions: Option<String>,
    /// Tie the output projection to the input projection
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set)]
    tied: Option<bool>,
    /// Use this loss between prototypes and the mean of the clean items
    #[arg(long, value_parser = ["distance", "cosine"])]
    clean_loss: Option<String>,
    /// Weigh the clean prototype loss by W
    #[arg(long, value_name = "W")]
    clean_weight: Option<f64>,
    /// Weigh the loss for detecting wrong labels by W
    #[arg(long, value_name = "W")]
    mislabelled_weight: Option<f64>,
}

#[derive(Args, Serialize)]
#[command(next_help_heading = "Model")]
struct RelabelFlags {
    /// Use N layers
    #[arg(long, value_name = "N")]
    layers: Option<usize>,
    /// Use states of width N
    #[arg(long, value_name = "N")]
    width: Option<usize>,
    /// Use N attention heads, a divisor of the width
    #[arg(long, value_name = "N")]
    heads: Option<usize>,
    /// Use N hidden units in the feed-forward part of a layer
    #[arg(long, value_name = "N")]
    hidden: Option<usize>,
    /// Use N hidden units in the network over pairs of items
    #[arg(long, value_name = "N")]
    edge_hidden: Option<usize>,
    /// Subtract the mean of the support items and normalise to unit length first
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set)]
    centred: Option<bool>,
    /// Subtract the mean of the training features and normalise to unit length before anything else, which ties the model to
    /// one backbone
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set)]
    training_centre: Option<bool>,
    /// Use an item view of width N, which ties the model to one backbone (64 works well); 0: relations only
    #[arg(long, value_name = "N")]
    item_width: Option<usize>,
    /// Set the dropout rate of the item view
    #[arg(long, value_name = "SHARE")]
    item_dropout: Option<f64>,
    /// Let the item view affect all states, or only 'none', that an item belongs to no class
    #[arg(long, value_name = "WHAT", value_parser = ["states", "none"])]
    item_reach: Option<String>,
    /// Give an item at least this weight in the prototype of its given class
    // `--floor` is an option of the optimiser.
    #[arg(long = "least-share", value_name = "SHARE")]
    #[serde(rename = "floor")]
    least_share: Option<f64>,
    /// Weigh the loss for the true class of every item by W
    #[arg(long, value_name = "W")]
    items_weight: Option<f64>,
    /// Weigh the loss on the queries by W
    #[arg(long, value_name = "W")]
    queries_weight: Option<f64>,
}

/// Reads the configuration and the data, and trains the head. `M` is the type of the options of the model (TraNFS or
/// Relabel); `flags` are all options that the user gave, in the form of the configuration file.
fn train<M: HeadOptions + Send + Sync>(
    run: &RunArguments,
    defaults: Configuration<M>,
    flags: toml::Table,
) -> anyhow::Result<()> {
    let mut configuration = configuration::read(&defaults, run.config.as_deref(), flags)?;
    // Fills in what follows from other options, such as the noise in validation from that in training.
    configuration.settle();
    // A TraNFS has a fixed maximum of classes, by default that of the training episodes.
    let ways = configuration.episodes.ways.iter().map(|ways| ways.max).max().unwrap_or(0);
    configuration.model = configuration.model.for_episodes(ways);
    configuration.check()?;
    configuration.model.check()?;
    let claim = run.claim()?;
    let (device, reason) = run.device.open()?;
    say_device("training", device.as_ref(), reason.as_deref());
    let steps = configuration.steps;
    let outcome = run.threads.run(|| {
        let files = open_all(&configuration)?;
        // Pairs every file of `data` with the file at the same position in `outliers`, if there is one.
        let episode_data = |data: &[PathBuf], outliers: &[PathBuf]| -> Vec<EpisodeData<'_>> {
            let pair = |(position, path): (usize, &PathBuf)| EpisodeData {
                embeddings: &files[path.as_path()],
                outliers: outliers.get(position).map(|path| &files[path.as_path()]),
            };
            data.iter().enumerate().map(pair).collect()
        };
        let data = &configuration.data;
        // One element per file.
        let training = episode_data(&data.train, &data.outliers);
        let validation = episode_data(&data.validation, &data.validation_outliers);
        for overlap in heads::overlaps(&training, &validation) {
            say!("warning: {overlap}");
        }
        let training_run = TrainingRun {
            title: format!("{}, {} steps of {} episodes", M::KIND, steps, configuration.episodes.per_step),
            steps,
            validate_every: configuration.validation.every,
            configuration: configuration::text(&configuration),
            identity: heads::identity(&configuration, &[("train", &training), ("validation", &validation)]),
        };
        let mut trainee = run.device.set_up(
            device.as_ref(),
            |device| Ok(HeadTrainee::on_gpu(&configuration, training.clone(), validation.clone(), device)?),
            || Ok(HeadTrainee::new(&configuration, training.clone(), validation.clone())?),
        )?;
        say!("{} parameters, seed {}", with_separators(trainee.parameters()?.len()), configuration.seed);
        run.train(claim, &mut trainee, training_run)
    })?;
    run.report_and_exit_if_stopped(&outcome, steps);
    Ok(())
}

/// Opens the files of the configuration, each once even if it is named several times. Returns them by path.
fn open_all<M>(configuration: &Configuration<M>) -> anyhow::Result<BTreeMap<&Path, Embeddings>> {
    let data = &configuration.data;
    let lists = [&data.train, &data.outliers, &data.validation, &data.validation_outliers];
    let mut files = BTreeMap::new();
    for path in lists.into_iter().flatten() {
        if !files.contains_key(path.as_path()) {
            let embeddings = crate::eval::open(path, None)?;
            say!(
                "{}: {} embeddings of {} dimensions, {} classes",
                path.display(),
                with_separators(embeddings.len()),
                embeddings.dim(),
                embeddings.classes().len()
            );
            files.insert(path.as_path(), embeddings);
        }
    }
    Ok(files)
}

/// A number with commas between thousands: 1,234,567.
pub(super) fn with_separators(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> = digits
        .as_bytes()
        .rchunks(3)
        .rev()
        .map(|group| std::str::from_utf8(group).unwrap_or_default())
        .collect();
    groups.join(",")
}
