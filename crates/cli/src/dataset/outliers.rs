//! `trueshot dataset outliers`: writes a folder of outliers, images that belong to none of the classes of an episode.
//! They come from the validation classes of a data set, or from ImageNet.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use trueshot_vision::Error;
use trueshot_vision::outliers::{
    Candidates, OutlierReport, OutlierRequest, plan, write_outliers, write_validation_classes,
};
use trueshot_vision::split::Split;

use crate::images_argument::{FitArgument, ImagesArgument, print_skipped};
use crate::messages::say;
use crate::progress::ProgressDisplay;
use crate::threads::Threads;

/// The built-in splits that no chosen class may be in, unless `--exclude` names others: a class in one of them is an
/// error.
const DEFAULT_EXCLUDED: [&str; 2] = ["miniimagenet", "tieredimagenet"];

/// Write a folder of outliers
///
/// An outlier is an image that belongs to none of the classes of an episode. Evaluation with outlier noise needs such
/// images. Training needs no folder: `trueshot train` takes outliers from training classes that are not in the episode.
///
/// Without --imagenet, the outliers are the images of the validation classes of a data set, unchanged, in DIR/test.
/// Outliers of the same data set differ from its other images in their content only, while images from elsewhere can
/// often be recognised by their sharpness or size.
///
/// With --imagenet, they are those of the paper (Few-shot Learning with Noisy Labels, CVPR 2022): 350 classes of
/// ImageNet that are in neither miniImageNet nor TieredImageNet, 600 images each, resized to 84 x 84 pixels. The
/// classes are assigned alternately to DIR/train and DIR/test. DATASET has one folder per class, named by its WordNet
/// ID (n01514668), directly or in train/.
///
/// Images that cannot be read are replaced by others of their class, where it has more than needed. If the command is
/// interrupted, run it again to continue.
#[derive(Args)]
#[command(after_help = "Examples:
  trueshot dataset outliers mini/ -o outliers
  trueshot dataset outliers cifar-100-python --split-file cifar-fs -o outliers
  trueshot dataset outliers imagenet/ --imagenet -o outliers
  trueshot dataset outliers imagenet/ --imagenet -o outliers \\
      --classes-count 100
  trueshot embed outliers/test -o outliers.safetensors -b conv4.safetensors")]
pub struct Arguments {
    /// A data set with validation classes, or with --imagenet the folder with ImageNet's class folders
    #[arg(value_name = "DATASET")]
    source: PathBuf,
    /// Write DIR/test, with --imagenet also DIR/train, and DIR/outliers.json, which lists their contents
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Take classes of ImageNet that are in none of the splits of --exclude
    #[arg(long, help_heading = "Outliers from ImageNet", conflicts_with_all = ["split_file", "split", "pool", "limit_per_class"])]
    imagenet: bool,
    /// Choose from the classes in this text file, one per line [default: the 350 classes of the paper; with --exclude,
    /// all classes that are in none of its splits]
    #[arg(long, value_name = "FILE", requires = "imagenet", help_heading = "Outliers from ImageNet")]
    classes: Option<PathBuf>,
    /// Choose from the classes that are in none of these split files or built-in splits; with --classes, refuse classes
    /// that are in one [default: miniimagenet, tieredimagenet]
    #[arg(
        long,
        value_name = "SPLITS",
        value_delimiter = ',',
        requires = "imagenet",
        help_heading = "Outliers from ImageNet"
    )]
    exclude: Option<Vec<PathBuf>>,
    /// Use N classes, selected by the seed if there are more [default: 350, or all of --classes]
    #[arg(long, value_name = "N", requires = "imagenet", help_heading = "Outliers from ImageNet",
          value_parser = clap::value_parser!(u32).range(2..))]
    classes_count: Option<u32>,
    /// Use N images per class, selected by the seed if there are more [default: all; with --imagenet 600]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    per_class: Option<u32>,
    /// Resize images to PX x PX pixels [default: 84]
    #[arg(long, value_name = "PX", requires = "imagenet", help_heading = "Outliers from ImageNet",
          value_parser = clap::value_parser!(u32).range(8..=1024))]
    size: Option<u32>,
    /// Make images that are not square fit in this way [default: squash]
    #[arg(long, value_enum, requires = "imagenet", help_heading = "Outliers from ImageNet")]
    fit: Option<FitArgument>,
    /// Select classes and images with this random seed
    #[arg(short, long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    images: ImagesArgument,
    #[command(flatten)]
    threads: Threads,
}

/// Runs `trueshot dataset outliers`.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let start = Instant::now();
    let report = if arguments.imagenet {
        arguments.write_imagenet()?
    } else {
        arguments.write_validation_classes()?
    };
    arguments.print(&report, start);
    Ok(())
}

impl Arguments {
    /// Writes the images of the validation classes, or of the split that the user chose.
    fn write_validation_classes(&self) -> anyhow::Result<OutlierReport> {
        let opened = self.images.open_split_or(&self.source, "val");
        let collection = opened.map_err(|error| match error.downcast_ref() {
            Some(Error::NoSplits { .. } | Error::UnknownSplit { .. }) => {
                error.context("no validation classes to take outliers from (for ImageNet, use --imagenet)")
            }
            _ => error,
        })?;
        print_skipped(collection.skipped().iter());
        let progress = ProgressDisplay::counting(collection.classes().len() as u64, "classes");
        let per_class = self.per_class.map(|count| count as usize);
        let written = self.threads.run(|| {
            Ok(write_validation_classes(&collection, &self.output, per_class, self.seed, &progress)?)
        });
        progress.finish();
        written
    }

    /// Chooses classes of ImageNet and writes their images. The defaults (350 classes, 600 images each, 84 px) are
    /// those of the paper.
    fn write_imagenet(&self) -> anyhow::Result<OutlierReport> {
        let exclude = self.exclude()?;
        let candidates = self.candidates()?;
        let default_count = match &candidates {
            Candidates::Named(names) => names.len(),
            Candidates::Paper | Candidates::NotExcluded => 350,
        };
        let request = OutlierRequest {
            source: &self.source,
            output: &self.output,
            candidates,
            classes: self.classes_count.map_or(default_count, |count| count as usize),
            per_class: self.per_class.unwrap_or(600) as usize,
            size: self.size.unwrap_or(84) as usize,
            fit: self.fit.unwrap_or(FitArgument::Squash).into(),
            seed: self.seed,
            exclude: &exclude,
        };
        let plan = plan(&request)?;
        let progress = ProgressDisplay::counting((plan.train.len() + plan.test.len()) as u64, "classes");
        let written = self.threads.run(|| Ok(write_outliers(&request, &plan, &progress)?));
        progress.finish();
        written
    }

    /// The classes to choose from.
    fn candidates(&self) -> anyhow::Result<Candidates> {
        let Some(path) = &self.classes else {
            return Ok(if self.exclude.is_some() { Candidates::NotExcluded } else { Candidates::Paper });
        };
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let names: BTreeSet<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        anyhow::ensure!(!names.is_empty(), "{} contains no class names", path.display());
        Ok(Candidates::Named(names.into_iter().map(str::to_owned).collect()))
    }

    /// The splits that no outlier class may be in, each with the file or name that it comes from.
    fn exclude(&self) -> anyhow::Result<Vec<(String, Split)>> {
        let default = || DEFAULT_EXCLUDED.map(PathBuf::from).to_vec();
        let mut splits = Vec::new();
        for path in self.exclude.clone().unwrap_or_else(default) {
            let origin = path.display().to_string();
            splits.extend(Split::all(&path)?.into_iter().map(|split| (origin.clone(), split)));
        }
        Ok(splits)
    }

    /// Prints what was written, and warnings about classes with too few images.
    fn print(&self, report: &OutlierReport, start: Instant) {
        if let Some((class, fewest)) = report.short.iter().min_by_key(|(_, images)| images) {
            say!(
                "warning: {} of {} classes have too few images; '{class}' has the fewest, {fewest}",
                report.short.len(),
                report.classes
            );
        }
        if report.unreadable > 0 {
            say!(
                "warning: {} images could not be read; others of their class took their place where it had more",
                report.unreadable
            );
        }
        let seconds = start.elapsed().as_secs_f64();
        let kept = match report.kept {
            0 => String::new(),
            kept => format!("; {kept} classes already existed"),
        };
        say!(
            "{}: {} classes in train, {} in test, {} images written{kept} ({seconds:.1} s)",
            self.output.display(),
            report.train_classes,
            report.classes - report.train_classes,
            report.images
        );
    }
}
