//! What all training on images has in common: the options ([`ImageTrainingFlags`]), and the loading of images and the
//! run itself ([`ImageTraining::train_on_device`]). `backbone`, `maml`, `joint` and `negmargin` call both.
//!
//! The structs of flags have the same sections and names as the configuration file, because they are serialised to TOML
//! and override it. So a flag without a default is an `Option`: the default is that of the configuration. Explicit ids
//! (`id = ..`) keep flags of the same name in two sections, such as `ways`, apart for clap.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use serde::de::DeserializeOwned;
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};
use trueshot::noise::{NoiseKind, NoiseLevels};
use trueshot::training::{Trainee, configuration};
use trueshot_cuda::Device;
use trueshot_vision::overlap::Overlap;
use trueshot_vision::training::{self, Datasets, ValidationSettings};
use trueshot_vision::{Collection, Dataset, Error};

use super::heads::{OptimiserFlags, with_separators};
use super::{RunArguments, TrainingRun};
use crate::device_argument::say_device;
use crate::images_argument::{FitArgument, ImageSelection, check_outliers, print_skipped};
use crate::messages::say;
use crate::output::is_same_file;
use crate::progress::ProgressDisplay;

/// Options of all training on images.
#[derive(Args, Serialize)]
pub struct ImageTrainingFlags {
    #[command(flatten)]
    data: DataFlags,
    #[command(flatten)]
    pictures: PictureFlags,
    #[command(flatten)]
    augmentation: AugmentationFlags,
    #[command(flatten)]
    validation: ValidationFlags,
    #[command(flatten)]
    optimiser: OptimiserFlags,
    /// Train for N steps [default: 100000 for backbone, 60000 for maml and negmargin, 30000 for joint]
    #[arg(long, value_name = "N", help_heading = "Optimiser")]
    steps: Option<u64>,
    /// Start from the parameters of another model of the same kind
    #[arg(long, value_name = "MODEL", help_heading = "Optimiser")]
    from: Option<PathBuf>,
    /// Train with this random seed; the same seed gives the same model
    #[arg(short, long, help_heading = "The run")]
    seed: Option<u64>,
}

#[derive(Args, Serialize)]
#[command(next_help_heading = "Data")]
struct DataFlags {
    /// Images to train on
    #[arg(value_name = "DATASET", required_unless_present = "config")]
    train: Option<PathBuf>,
    /// Draw outliers in training from these images of other classes [default: from training classes that are not in the
    /// episode]
    #[arg(long, value_name = "DATASET")]
    outliers: Option<PathBuf>,
    /// Validate on these images, if they are not in DATASET, to select the best model
    #[arg(id = "val", long = "val", value_name = "DATASET")]
    validation: Option<PathBuf>,
    /// Draw outliers in validation from these images [default: images of the training classes]
    #[arg(id = "val-outliers", long = "val-outliers", value_name = "DATASET")]
    validation_outliers: Option<PathBuf>,
    /// Split classes by a JSON file {"train": [..], "val": [..], "test": [..]}, or by one of the built-in splits cifar-fs,
    /// cub, fc100, miniimagenet, tiered-tiny and tieredimagenet
    #[arg(long, value_name = "JSON|NAME")]
    split_file: Option<PathBuf>,
    /// Train on this split [default: train]
    #[arg(long, value_name = "NAME")]
    train_split: Option<String>,
    /// Validate on this split; '' for none [default: val]
    #[arg(id = "val-split", long = "val-split", value_name = "NAME")]
    validation_split: Option<String>,
    /// Use the images in train/, val/ and test/ together; the folders in them are the classes
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set)]
    pool: Option<bool>,
    /// Use only the first N images of each class, sorted by name
    #[arg(long, value_name = "N")]
    limit_per_class: Option<usize>,
}

#[derive(Args, Serialize)]
#[command(next_help_heading = "Images")]
struct PictureFlags {
    /// Resize images to PX x PX pixels [default: 84; omniglot: 28]
    #[arg(long, value_name = "PX")]
    size: Option<usize>,
    /// Read colour images (true) or grey drawings, dark on white (false) [default: true; omniglot: false]
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set)]
    colour: Option<bool>,
    /// Make images that are not square fit in this way
    #[arg(long, value_enum)]
    fit: Option<FitArgument>,
    /// Augment images with random changes [default: true; omniglot: false]
    #[arg(long, value_name = "BOOL", action = clap::ArgAction::Set)]
    augment: Option<bool>,
    /// Add every class rotated by 90, 180 and 270 degrees as new classes, as is usual for Omniglot
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", action = clap::ArgAction::Set,
        overrides_with = "rotations")]
    rotations: Option<bool>,
}

/// How strongly images are augmented; a configuration file has more options, and one flag here sets several of them, so
/// serialisation is not derived.
#[derive(Args)]
#[command(next_help_heading = "Images")]
struct AugmentationFlags {
    /// Crop images at random to at least this share of their area [default: 0.8]
    #[arg(long, value_name = "SHARE")]
    crop_area: Option<f64>,
    /// Change brightness, contrast and saturation at random by up to this share [default: 0.1]
    #[arg(long, value_name = "SHARE")]
    jitter: Option<f64>,
}

impl Serialize for AugmentationFlags {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if let Some(area) = self.crop_area {
            map.serialize_entry("crop_scale", &[area, 1.0])?;
        }
        if let Some(share) = self.jitter {
            for name in ["brightness", "contrast", "saturation"] {
                map.serialize_entry(name, &share)?;
            }
        }
        map.end()
    }
}

#[derive(Args, Serialize)]
#[command(next_help_heading = "Validation")]
struct ValidationFlags {
    /// Validate every N steps
    #[arg(id = "val-every", long = "val-every", value_name = "N")]
    every: Option<u64>,
    /// Validate on N episodes, the same ones every time
    #[arg(id = "val-episodes", long = "val-episodes", value_name = "N")]
    episodes: Option<u64>,
    /// Draw N classes per episode
    #[arg(id = "val-ways", long = "val-ways", value_name = "N")]
    ways: Option<usize>,
    /// Draw K labelled images per class
    #[arg(id = "val-shots", long = "val-shots", value_name = "K")]
    shots: Option<usize>,
    /// Draw Q queries per class
    #[arg(id = "val-queries", long = "val-queries", value_name = "Q")]
    queries: Option<usize>,
    /// Validate with these noise types and levels; the score is the mean accuracy [default: as in training]
    #[arg(id = "val-noise", long = "val-noise", value_name = "TYPE=LEVEL,..")]
    noise: Option<Vec<NoiseLevels>>,
    /// Draw the validation episodes with this random seed
    #[arg(id = "val-seed", long = "val-seed", value_name = "SEED")]
    seed: Option<u64>,
}

impl ImageTrainingFlags {
    /// The configuration from the file of `--config` and the flags. `network_flags` are those of this kind of network;
    /// `drawings` and `photographs` are the defaults for the built-in drawings and for all other images.
    pub fn read<C: Serialize + DeserializeOwned>(
        &self,
        run: &RunArguments,
        network_flags: toml::Table,
        drawings: C,
        photographs: C,
    ) -> anyhow::Result<C> {
        let file = run.config.as_deref();
        let defaults = if self.data.is_built_in(file) { drawings } else { photographs };
        let mut flags = configuration::table(self);
        flags.extend(network_flags);
        Ok(configuration::read(&defaults, file, flags)?)
    }
}

impl DataFlags {
    /// Whether the built-in drawings are trained on, by flag or by file. Their defaults differ from those of
    /// photographs.
    fn is_built_in(&self, file: Option<&Path>) -> bool {
        // Errors in the file are reported when the configuration is read.
        let train_in_file = || {
            let table: toml::Table = std::fs::read_to_string(file?).ok()?.parse().ok()?;
            Some(PathBuf::from(table.get("data")?.get("train")?.as_str()?))
        };
        let data = self.train.clone().or_else(train_in_file);
        data.is_some_and(|data| trueshot_vision::source::is_built_in(&data))
    }
}

/// A network to train on images: the parts of its configuration that do not depend on its kind.
pub struct ImageTraining<'a> {
    pub title: String,
    pub seed: u64,
    pub steps: u64,
    pub data: &'a training::DataSettings,
    pub pictures: &'a training::ImageSettings,
    /// The noise of training episodes.
    pub noise: &'a [NoiseLevels],
    pub validation: &'a ValidationSettings,
    /// The noun after the number of parameters in the message at the start ("121,000 parameters, seed 1").
    pub parameters_noun: &'static str,
}

impl ImageTraining<'_> {
    /// Loads the images and trains a network on the GPU or the CPU. `on_gpu` and `on_cpu` make the network (the
    /// trainee) from its configuration and the images, and `count` returns its number of parameters.
    pub fn train_on_device<C: Clone + Serialize + Sync, T: Trainee>(
        self,
        run: &RunArguments,
        configuration: &C,
        on_gpu: impl FnOnce(C, Datasets, &Device) -> trueshot_vision::Result<T> + Send,
        on_cpu: impl FnOnce(C, Datasets) -> trueshot_vision::Result<T> + Send,
        count: impl FnOnce(&T) -> trueshot::Result<usize> + Send,
    ) -> anyhow::Result<()> {
        let (device, reason) = run.device.open()?;
        let claim = run.claim()?;
        let (steps, seed) = (self.steps, self.seed);
        let outcome = run.threads.run(|| {
            let datasets = self.load_datasets()?;
            let training_run = TrainingRun {
                title: self.title,
                steps,
                validate_every: self.validation.every,
                configuration: configuration::text(configuration),
                identity: datasets.identity(configuration),
            };
            say_device("training", device.as_ref(), reason.as_deref());
            let mut trainee = run.device.set_up(
                device.as_ref(),
                |device| on_gpu(configuration.clone(), datasets.clone(), device),
                || on_cpu(configuration.clone(), datasets.clone()),
            )?;
            // Release the images that the trainee does not keep.
            drop(datasets);
            say!("{} {}, seed {seed}", with_separators(count(&trainee)?), self.parameters_noun);
            run.train(claim, &mut trainee, training_run)
        })?;
        run.report_and_exit_if_stopped(&outcome, steps);
        Ok(())
    }

    /// Loads the images to train and validate on, and outliers for both, as far as the configuration needs them. All are
    /// listed before the first image is read, so that mistakes in paths and classes are found early.
    fn load_datasets(&self) -> anyhow::Result<Datasets> {
        let (data, pictures) = (self.data, self.pictures);
        anyhow::ensure!(
            is_given(&data.train),
            "no images to train on: give DATASET, or data.train in the configuration"
        );
        let train = open_split(data, &data.train, &data.train_split)?;
        // The training images themselves as outliers mean the default: images of training classes that are not in the
        // episode.
        let is_separate = is_given(&data.outliers) && !is_training_data(data, &data.outliers);
        let outliers = is_separate.then(|| open_outliers(data, &data.outliers)).transpose()?;
        if let Some(outliers) = &outliers {
            check_outliers((data.train.as_path(), &train), (data.outliers.as_path(), outliers))?;
        }
        let validation = has_validation(data).then(|| self.open_validation(&train)).transpose()?;

        let mut datasets = Datasets::new(load_images(pictures, &train, ImageUse::Training)?, None);
        if let Some(outliers) = &outliers {
            datasets.outliers = Some(Arc::new(load_images(pictures, outliers, ImageUse::Outliers)?));
        }
        if is_given(&data.outliers) && !self.noise.iter().any(is_outlier) {
            say!("warning: --outliers has no effect without outlier noise; add --noise outlier=40");
        }
        let Some((validation, outliers)) = validation else {
            say!("no validation data (--val, --split-file): the model of the last step will be kept");
            return Ok(datasets);
        };
        let validation = load_images(pictures, &validation, ImageUse::Validation)?;
        for warning in Overlap::between(&datasets.train, &validation).warnings() {
            say!("warning: {warning}");
        }
        datasets.validation = Some(Arc::new(validation));
        if let Some(outliers) = outliers {
            let outliers = load_images(pictures, &outliers, ImageUse::ValidationOutliers)?;
            datasets.validation_outliers = Some(Arc::new(outliers));
        }
        Ok(datasets)
    }

    /// Lists the images to validate on, and, with outlier noise, the outliers for it: those that are given, or else the
    /// training images `train`. Fails if a class of the given ones is in the validation data.
    fn open_validation(&self, train: &Collection) -> anyhow::Result<(Collection, Option<Collection>)> {
        let data = self.data;
        let source = if is_given(&data.validation) { &data.validation } else { &data.train };
        let validation = open_split(data, source, &data.validation_split)?;
        let noise = if self.validation.noise.is_empty() { self.noise } else { &self.validation.noise };
        if !noise.iter().any(is_outlier) {
            return Ok((validation, None));
        }
        let path = &data.validation_outliers;
        let mut outliers = if is_given(path) && !is_training_data(data, path) {
            let outliers = open_outliers(data, path)?;
            check_outliers((source, &validation), (path, &outliers))?;
            outliers
        } else {
            train.clone()
        };
        // The same number from every class, so there may be slightly more in total.
        outliers.keep_first(VALIDATION_OUTLIERS.div_ceil(outliers.classes().len()));
        Ok((validation, Some(outliers)))
    }
}

/// About the number of outliers for validation. Validation embeds all of them, even those that none of its few episodes
/// draws.
const VALIDATION_OUTLIERS: usize = 5000;

/// Whether the noise replaces images by outliers.
fn is_outlier(levels: &NoiseLevels) -> bool {
    levels.0.iter().any(|noise| noise.kind == NoiseKind::Outlier && noise.level > 0.0)
}

/// Whether a path of the configuration is set: an empty path stands for none.
fn is_given(path: &Path) -> bool {
    !path.as_os_str().is_empty()
}

/// Whether there is data to validate on.
fn has_validation(data: &training::DataSettings) -> bool {
    let has_split = is_given(&data.split_file) || trueshot_vision::source::has_splits(&data.train);
    is_given(&data.validation) || (has_split && !data.validation_split.is_empty())
}

/// Lists the images of a split of the source at `path`, or all of them if neither a split file nor the source defines
/// splits.
fn open_split(data: &training::DataSettings, path: &Path, split: &str) -> anyhow::Result<Collection> {
    let is_split = is_given(&data.split_file) || trueshot_vision::source::has_splits(path);
    let selection = ImageSelection {
        split_file: is_given(&data.split_file).then_some(&data.split_file),
        split: is_split.then_some(split),
        pool: data.pool,
        limit_per_class: (data.limit_per_class > 0).then_some(data.limit_per_class),
    };
    selection.open(path)
}

/// Whether a path leads to the training images.
fn is_training_data(data: &training::DataSettings, path: &Path) -> bool {
    path == data.train || is_same_file(path, &data.train)
}

/// Opens outliers. Of a source with splits, only the training split is used, so that no validation or test class is
/// seen.
fn open_outliers(data: &training::DataSettings, path: &Path) -> anyhow::Result<Collection> {
    let selection = ImageSelection {
        split_file: None,
        split: trueshot_vision::source::has_splits(path).then_some(&data.train_split),
        pool: false,
        limit_per_class: (data.limit_per_class > 0).then_some(data.limit_per_class),
    };
    selection.open(path)
}

/// What images are loaded for.
#[derive(Clone, Copy, PartialEq)]
enum ImageUse {
    Training,
    Outliers,
    Validation,
    ValidationOutliers,
}

/// Loads the images of a collection into memory. Images that cannot be read are skipped with a warning, but every class
/// must have a readable one.
fn load_images(
    pictures: &training::ImageSettings,
    collection: &Collection,
    image_use: ImageUse,
) -> anyhow::Result<Dataset> {
    let progress = ProgressDisplay::counting(collection.entries().len() as u64, "images");
    let augmented = matches!(image_use, ImageUse::Training | ImageUse::Outliers) && pictures.augment;
    let preprocessing = pictures.preprocessing();
    let loaded = Dataset::load(collection, &preprocessing, augmented, &progress);
    progress.finish();
    let mut dataset = loaded?;
    print_skipped(collection.skipped().iter().chain(dataset.skipped()));
    if let Some(empty) = collection.classes().iter().find(|class| !dataset.labels().classes().contains(class))
    {
        let (class, skipped) = (empty.clone(), dataset.skipped().to_vec());
        return Err(Error::TooFewImages { class, have: 0, need: 1, skipped }.into());
    }
    if image_use == ImageUse::Training && pictures.rotations {
        dataset = dataset.with_rotations()?;
    }
    say!(
        "{}: {} images of {} classes {}",
        collection.path().display(),
        with_separators(dataset.images().len()),
        with_separators(dataset.labels().classes().len()),
        match image_use {
            ImageUse::Training => "to train on",
            ImageUse::Outliers => "as outliers",
            ImageUse::Validation => "to validate on",
            ImageUse::ValidationOutliers => "as outliers for validation",
        },
    );
    Ok(dataset)
}
