//! `trueshot embed`: computes the embeddings of images with a backbone, and streams them into a file. Start with
//! [`run`].

use std::path::PathBuf;
use std::time::Instant;

use clap::{Args, ValueEnum};
use trueshot::embeddings::Precision;
use trueshot_vision::embed::{EmbedReport, EmbedRequest, embed};
use trueshot_vision::{Augmentation, Collection, Embedder, Error, Skipped};

use crate::backbone_argument::BackboneArgument;
use crate::images_argument::{ImagesArgument, print_skipped};
use crate::messages::say;
use crate::output::{check_writable, safetensors_path, write_file};
use crate::progress::ProgressDisplay;
use crate::threads::Threads;

/// Compute the embeddings of images
///
/// IMAGES is a folder of class folders, a .zip, .tar or .tar.gz of one, a .csv or .jsonl list of paths and labels, a data set in
/// its published form (miniImageNet's and TieredImageNet's .pkl and .npz files, CIFAR-100's python and binary files, Ravi's
/// lists; or the folder that contains them), or `omniglot`, which is built in. Supported formats are BMP, GIF, JPEG, PNG,
/// TIFF and WebP; files that cannot be read are skipped and listed. The same seed gives the same file with any number of
/// threads.
///
/// The default backbone is the built-in EfficientNet-Lite0 (for omniglot, a built-in Conv4). Embeddings are cached by the
/// contents of the images, so an image is not embedded again; augmented copies are not cached, and rows of a Conv4 only
/// with --cache.
#[derive(Args)]
#[command(after_help = "Examples:
  trueshot embed photos/ -o photos.safetensors
  trueshot embed photos.zip -o photos.safetensors -b resnet50.onnx --size 224
  trueshot embed mini-imagenet-cache-test.pkl -o test.safetensors \\
      -b c4.safetensors
  trueshot embed tiered-imagenet/ --split test -o test.safetensors
  trueshot embed cifar-100-python --split-file cifar-fs --split test \\
      -o test.safetensors
  trueshot embed mini/ --pool --split-file miniimagenet --split test \\
      -o test.safetensors
  trueshot embed mini/train -o train.safetensors --augment --copies 8 \\
      --precision f16
  trueshot embed omniglot --split test -o drawings.safetensors")]
pub struct Arguments {
    /// Images: a folder of class folders, .zip, .tar, .tar.gz, .csv, .jsonl, a published data set, or omniglot
    #[arg(value_name = "IMAGES")]
    images: PathBuf,
    /// Write the embeddings to FILE (.safetensors)
    #[arg(short, long, value_name = "FILE", value_parser = safetensors_path)]
    output: PathBuf,
    #[command(flatten)]
    backbone: BackboneArgument,
    #[command(flatten)]
    selection: ImagesArgument,
    /// Augment every image: random flip, crop and colour changes
    #[arg(long, help_heading = "Augmentation")]
    augment: bool,
    /// Embed every image N times, each with a different augmentation; items are named NAME#1, NAME#2, ..
    #[arg(long, help_heading = "Augmentation", default_value_t = 1, value_name = "N", requires = "augment", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    copies: u32,
    /// Draw the augmentations with this random seed
    #[arg(short, long, help_heading = "Augmentation", default_value_t = 0)]
    seed: u64,
    /// Store embeddings in this precision
    #[arg(long, value_enum, help_heading = "Other options", default_value_t = PrecisionArgument::F32)]
    precision: PrecisionArgument,
    /// Fail if a class has fewer than N readable images
    #[arg(long, help_heading = "Other options", default_value_t = 1, value_name = "N")]
    least_per_class: usize,
    /// Write the names of skipped files, with the reasons, to FILE
    #[arg(long, value_name = "FILE", help_heading = "Other options")]
    skipped: Option<PathBuf>,
    #[command(flatten)]
    threads: Threads,
}

#[derive(Clone, Copy, ValueEnum)]
enum PrecisionArgument {
    F16,
    F32,
}

/// Runs `trueshot embed`.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    check_writable([&arguments.output].into_iter().chain(&arguments.skipped))?;
    if arguments.augment {
        arguments.backbone.require_cpu("augmented copies are embedded on the CPU")?;
    }
    arguments.threads.run(|| {
        // The backbone is opened first, so that an error in it is reported before a large folder is listed.
        let given = arguments.backbone.find()?;
        let collection = arguments.selection.open(&arguments.images)?;
        let backbone = given.map_or_else(|| arguments.backbone.find_default(&collection), Ok)?;
        // For augmented copies, the backbone stays on the CPU.
        let embedder = match arguments.augment {
            true => arguments.backbone.with_cache(backbone),
            false => arguments.backbone.embedder(backbone, collection.entries().len())?,
        };
        let start = Instant::now();
        let embedded = arguments.embed(&collection, &embedder);
        match &embedded {
            Ok(report) => arguments.report_skipped(&collection, &report.skipped)?,
            // Why images were skipped explains the error.
            Err(Error::TooFewImages { skipped, .. }) => arguments.report_skipped(&collection, skipped)?,
            Err(_) => {}
        }
        let report = embedded?;
        arguments.backbone.report_cache_problem(&embedder);
        let (rows, dim) = (report.rows, embedder.backbone().dim());
        let seconds = start.elapsed().as_secs_f64();
        let from_cache = match report.from_cache {
            0 => String::new(),
            count => format!("; {count} from the cache"),
        };
        say!(
            "{}: {rows} embeddings of {dim} dimensions, from {} images of {} classes ({seconds:.1} s{from_cache})",
            arguments.output.display(),
            report.images,
            collection.classes().len(),
        );
        Ok(())
    })
}

impl Arguments {
    /// Embeds the images and writes the file, with a progress bar.
    fn embed(&self, collection: &Collection, embedder: &Embedder) -> Result<EmbedReport, Error> {
        let augmentation = Augmentation::default();
        let request = EmbedRequest {
            collection,
            embedder,
            copies: self.augment.then_some((self.copies as usize, &augmentation)),
            precision: match self.precision {
                PrecisionArgument::F16 => Precision::F16,
                PrecisionArgument::F32 => Precision::F32,
            },
            seed: self.seed,
            min_per_class: self.least_per_class,
        };
        let progress = ProgressDisplay::counting(collection.entries().len() as u64, "images");
        let report = embed(&request, &self.output, &progress);
        progress.finish();
        report
    }

    /// Prints the files that were not embedded, and writes them to the file of `--skipped`.
    fn report_skipped(&self, collection: &Collection, skipped: &[Skipped]) -> anyhow::Result<()> {
        let skipped = || collection.skipped().iter().chain(skipped);
        print_skipped(skipped());
        if let Some(path) = &self.skipped {
            write_file(path, &skipped().map(|file| format!("{file}\n")).collect::<String>())?;
        }
        Ok(())
    }
}
