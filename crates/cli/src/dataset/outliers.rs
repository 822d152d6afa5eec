//! `trueshot dataset outliers`: builds a set of outliers from ImageNet, from classes that are in no split.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use trueshot_vision::outliers::{
    Candidates, OutlierPlan, OutlierReport, OutlierRequest, plan, write_outliers,
};
use trueshot_vision::split::Split;

use crate::images_argument::FitArgument;
use crate::messages::say;
use crate::progress::ProgressDisplay;
use crate::threads::Threads;

/// What no outlier may be in, unless told otherwise.
const DEFAULT_EXCLUDED: [&str; 2] = ["miniimagenet", "tieredimagenet"];

/// Build a set of outliers from ImageNet
///
/// As in the paper: 350 classes that are in neither miniImageNet nor TieredImageNet, 600 images each, resized to 84 px;
/// the classes are assigned alternately to DIR/train and DIR/test. IMAGENET_DIR has one folder per class, named by its
/// WordNet ID (n01514668), directly or in train/. Images that cannot be read are replaced by others. If the command is
/// interrupted, run it again to continue.
#[derive(Args)]
#[command(after_help = "Examples:
  trueshot dataset outliers imagenet/ -o outliers
  trueshot dataset outliers tiny-imagenet-200/ -o outliers --classes-count 69 --per-class 200
  trueshot dataset outliers imagenet/ -o outliers --exclude my-splits.json --classes-count 100
  trueshot embed outliers/test -o outliers.safetensors --backbone conv4.safetensors")]
pub struct Arguments {
    /// Folder with ImageNet's class folders
    #[arg(value_name = "IMAGENET_DIR")]
    source: PathBuf,
    /// Output folder: DIR/train, DIR/test and DIR/outliers.json, which lists their contents
    #[arg(short, long, value_name = "DIR")]
    output: PathBuf,
    /// Text file with the classes to use as outliers, one per line [default: the 350 of the paper]
    #[arg(long, value_name = "FILE")]
    classes: Option<PathBuf>,
    /// Split files, or names of built-in splits, whose classes must not be outliers; without --classes, all other folders
    /// can be used [default: miniimagenet, tieredimagenet]
    #[arg(long, value_name = "SPLITS", value_delimiter = ',')]
    exclude: Option<Vec<PathBuf>>,
    /// Number of classes; selected by the seed if there are more
    #[arg(long, default_value_t = 350, value_name = "N", value_parser = clap::value_parser!(u32).range(2..))]
    classes_count: u32,
    /// Images per class
    #[arg(long, default_value_t = 600, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    per_class: u32,
    /// Height and width of the images
    #[arg(long, default_value_t = 84, value_name = "PX", value_parser = clap::value_parser!(u32).range(8..=1024))]
    size: u32,
    /// How to handle an image that is not square
    #[arg(long, value_enum, default_value_t = FitArgument::Squash)]
    fit: FitArgument,
    /// Random seed that selects classes and images
    #[arg(short, long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    threads: Threads,
}

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let exclude = arguments.exclude()?;
    let request = OutlierRequest {
        source: &arguments.source,
        output: &arguments.output,
        candidates: arguments.candidates()?,
        classes: arguments.classes_count as usize,
        per_class: arguments.per_class as usize,
        size: arguments.size as usize,
        fit: arguments.fit.into(),
        seed: arguments.seed,
        exclude: &exclude,
    };
    let start = Instant::now();
    let plan = plan(&request)?;
    let progress = ProgressDisplay::counting((plan.train.len() + plan.test.len()) as u64, "classes");
    let made = arguments.threads.run(|| Ok(write_outliers(&request, &plan, &progress)?));
    progress.finish();
    arguments.report(&plan, &made?, start);
    Ok(())
}

impl Arguments {
    fn candidates(&self) -> anyhow::Result<Candidates> {
        let Some(path) = &self.classes else {
            return Ok(if self.exclude.is_some() { Candidates::Others } else { Candidates::Paper });
        };
        let text =
            std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
        let names: Vec<String> =
            text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
        anyhow::ensure!(!names.is_empty(), "{} contains no class names", path.display());
        Ok(Candidates::Named(names))
    }

    fn exclude(&self) -> anyhow::Result<Vec<(String, Split)>> {
        let usual = || DEFAULT_EXCLUDED.map(PathBuf::from).to_vec();
        let mut splits = Vec::new();
        for path in self.exclude.clone().unwrap_or_else(usual) {
            let origin = path.display().to_string();
            splits.extend(Split::all(Path::new(&path))?.into_iter().map(|split| (origin.clone(), split)));
        }
        Ok(splits)
    }

    fn report(&self, plan: &OutlierPlan, report: &OutlierReport, start: Instant) {
        if let Some((class, have)) = report.short.iter().min_by_key(|(_, have)| have) {
            let count = report.short.len();
            say!(
                "warning: {count} of {} classes have fewer than {} images; '{class}' has the fewest, {have}",
                report.classes,
                plan.per_class
            );
        }
        if report.unreadable > 0 {
            say!("warning: {} images could not be read and were replaced by others", report.unreadable);
        }
        let seconds = start.elapsed().as_secs_f64();
        let kept = match report.kept {
            0 => String::new(),
            kept => format!("; {kept} classes already existed"),
        };
        say!(
            "{}: {} classes in train, {} in test, {} images written{kept} ({seconds:.1} s)",
            self.output.display(),
            plan.train.len(),
            plan.test.len(),
            report.images
        );
    }
}
