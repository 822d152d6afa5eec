//! `trueshot predict`: classifies images or embeddings with a classifier from `trueshot fit`.

use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use trueshot::progress::Progress;

use anyhow::Context;
use clap::{Args, ValueEnum};
use trueshot::Embeddings;
use trueshot::predictor::{Prediction, Predictor};
use trueshot::report::{csv_field, visible, visible_lines};
use trueshot_vision::backbone::GPU_MIN_IMAGES;
use trueshot_vision::embedder::ImageInput;
use trueshot_vision::source::{ImageFiles, images_below};
use trueshot_vision::{Backbone, Collection, Embedder, Skipped, SourceOptions};

use crate::backbone_argument::BackboneArgument;
use crate::fit::open_classifier;
use crate::images_argument::print_skipped;
use crate::messages::{hinted, say};
use crate::progress::{ProgressDisplay, check_interrupted};
use crate::support_argument::is_embeddings;
use crate::threads::Threads;

/// Classify images or embeddings with a classifier from `trueshot fit`
///
/// Prints the most probable class of every input with its probability, or that the input probably belongs to none of the
/// classes. The probabilities of all classes and of none sum to 1. INPUT is an image, a folder (searched recursively), an
/// archive, a list, or embeddings.
#[derive(Args)]
#[command(after_help = "Examples:
  trueshot predict animals.safetensors new.jpg
  trueshot predict animals.safetensors inbox/ --format csv -o answers.csv
  trueshot predict animals.safetensors embeddings.npz --format jsonl --all")]
pub struct Arguments {
    /// Classifier file written by `trueshot fit`
    #[arg(value_name = "CLASSIFIER")]
    classifier: PathBuf,
    /// Images or embeddings to classify
    #[arg(value_name = "INPUT", required = true)]
    inputs: Vec<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Print the probability of every class, not only of the most probable one (csv and jsonl)
    #[arg(long)]
    all: bool,
    /// Probability of "none of these" from which the table shows it instead of a class
    #[arg(long, value_name = "U", default_value_t = REFUSED_FROM)]
    unknown: f32,
    /// Write the predictions to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    backbone: BackboneArgument,
    #[command(flatten)]
    threads: Threads,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Format {
    Table,
    Csv,
    Jsonl,
}

/// Probability of "none of these" from which a table shows it instead of a class, unless another one is given.
pub const REFUSED_FROM: f32 = 0.5;
/// Images that are in work at once.
const CHUNK: usize = 512;

pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let predictor = open_classifier(&arguments.classifier)?;
    let inputs = &arguments.inputs;
    inputs.iter().try_for_each(|path| {
        anyhow::ensure!(path.exists(), "{} does not exist", path.display());
        Ok(())
    })?;
    arguments.threads.run(|| {
        let out: Box<dyn Write> = match &arguments.output {
            Some(path) => Box::new(
                std::fs::File::create(path).with_context(|| format!("cannot write {}", path.display()))?,
            ),
            None => Box::new(std::io::stdout().lock()),
        };
        let mut writer = PredictionWriter {
            arguments,
            predictor: &predictor,
            out: BufWriter::new(out),
            is_terminal: arguments.output.is_none() && std::io::stdout().is_terminal(),
            embedder: None,
            considered_gpu: false,
            written: 0,
            failed: 0,
        };
        writer.write_header()?;
        for input in inputs {
            match is_embeddings(input) {
                true => writer.predict_rows(input)?,
                false => writer.predict_images(input)?,
            }
        }
        writer.out.flush().context("cannot write the predictions")?;
        anyhow::ensure!(writer.written > 0 || writer.failed == 0, "none of the images could be read");
        Ok(())
    })
}

/// Where answers go, as they come.
struct PredictionWriter<'a> {
    arguments: &'a Arguments,
    predictor: &'a Predictor,
    out: BufWriter<Box<dyn Write>>,
    is_terminal: bool,
    /// The embedder of the previous input.
    embedder: Option<Embedder>,
    /// Whether there were enough images for a GPU, so that the embedder is on one if there is one.
    considered_gpu: bool,
    written: usize,
    failed: usize,
}

impl PredictionWriter<'_> {
    fn write_header(&mut self) -> anyhow::Result<()> {
        if self.arguments.format == Format::Csv {
            let classes = self.predictor.classes().iter().filter(|_| self.arguments.all);
            let all: String = classes.map(|class| format!(",{}", csv_field(class))).collect();
            self.write_line(&format!("item,class,probability,unknown{all}"))?;
        }
        Ok(())
    }

    fn predict_rows(&mut self, path: &Path) -> anyhow::Result<()> {
        let data = Embeddings::open(path)?;
        self.check(data.backbone())?;
        let progress = ProgressDisplay::counting(data.len() as u64, "rows");
        for start in (0..data.len()).step_by(CHUNK) {
            let count = CHUNK.min(data.len() - start);
            let values = data.features().rows_between(start..start + count);
            let rows: Vec<&[f32]> = values.chunks_exact(data.dim()).collect();
            let found = self.predictor.predict(&rows)?;
            for (row, prediction) in (start..).zip(&found) {
                let name = data.item(row).map_or_else(|| format!("row {row}"), str::to_string);
                self.write_prediction(&name, prediction)?;
            }
            if progress.update((start + count) as u64, data.len() as u64).is_break() {
                break;
            }
        }
        progress.finish();
        Ok(())
    }

    fn predict_images(&mut self, path: &Path) -> anyhow::Result<()> {
        // A backbone that cannot be opened is said before a large folder is looked through.
        let found = self.embedder.is_none().then(|| self.backbone()).transpose()?;
        let embedder;
        if is_list_or_archive(path) {
            let collection = Collection::open(path, SourceOptions::default())?;
            self.report_skipped(collection.skipped());
            let entries = collection.entries().iter();
            let inputs: Vec<_> =
                entries.map(|entry| (entry.item.clone(), ImageInput::Entry(&collection, entry))).collect();
            embedder = self.embedder(found, inputs.len())?;
            self.predict_all(&embedder, &inputs)?;
        } else {
            let ImageFiles { files, skipped } = images_below(path)?;
            if files.is_empty() {
                let skipped = skipped.first().map(Skipped::to_string);
                return Err(trueshot_vision::Error::NoImages { path: path.into(), skipped }.into());
            }
            self.report_skipped(&skipped);
            let inputs: Vec<_> =
                files.iter().map(|(name, file)| (name.clone(), ImageInput::File(file))).collect();
            embedder = self.embedder(found, inputs.len())?;
            self.predict_all(&embedder, &inputs)?;
        }
        self.arguments.backbone.report_cache_problem(&embedder);
        self.embedder = Some(embedder);
        Ok(())
    }

    fn report_skipped(&mut self, skipped: &[Skipped]) {
        self.failed += skipped.len();
        print_skipped(skipped.iter());
    }

    fn predict_all(
        &mut self,
        embedder: &Embedder,
        inputs: &[(String, ImageInput<'_>)],
    ) -> anyhow::Result<()> {
        let progress = ProgressDisplay::counting(inputs.len() as u64, "images");
        for (number, part) in inputs.chunks(CHUNK).enumerate() {
            self.predict_chunk(embedder, part, (&progress, number * CHUNK))?;
            if check_interrupted().is_break() {
                break;
            }
        }
        progress.finish();
        Ok(())
    }

    fn predict_chunk(
        &mut self,
        embedder: &Embedder,
        inputs: &[(String, ImageInput<'_>)],
        (progress, before): (&ProgressDisplay, usize),
    ) -> anyhow::Result<()> {
        let given: Vec<ImageInput<'_>> = inputs.iter().map(|(_, given)| *given).collect();
        let chunk_progress = |done: u64, total: u64| progress.update(before as u64 + done, total);
        let embedded = embedder.embed_images(&given, &chunk_progress)?;
        let mut rows: Vec<(&str, &[f32])> = Vec::new();
        for ((name, _), row) in inputs.iter().zip(&embedded.rows) {
            match row {
                Ok(row) => rows.push((name, row)),
                Err(problem) => {
                    self.failed += 1;
                    say!("warning: {} is skipped: {problem}", visible(name));
                }
            }
        }
        let values: Vec<&[f32]> = rows.iter().map(|(_, row)| *row).collect();
        for ((name, _), prediction) in rows.iter().zip(self.predictor.predict(&values)?) {
            self.write_prediction(name, &prediction)?;
        }
        Ok(())
    }

    /// The backbone that is asked for, or the one that the classifier names, if that is built in.
    fn backbone(&self) -> anyhow::Result<Backbone> {
        let named = self.predictor.embedder().unwrap_or_default();
        let named = named.split(" (").next().unwrap_or_default();
        let backbone = match self.arguments.backbone.find()? {
            Some(backbone) => backbone,
            None => self.arguments.backbone.find_named(named)?,
        };
        self.check(Some(backbone.name()))?;
        Ok(backbone)
    }

    /// The embedder of the previous input, or a new one. One on the CPU is replaced if `images` are enough for a GPU.
    fn embedder(&mut self, found: Option<Backbone>, images: usize) -> anyhow::Result<Embedder> {
        let images = images.max(self.arguments.inputs.len());
        let suffices = self.considered_gpu || images < GPU_MIN_IMAGES;
        if let Some(embedder) = self.embedder.take().filter(|_| suffices) {
            return Ok(embedder);
        }
        self.considered_gpu |= images >= GPU_MIN_IMAGES;
        let backbone = found.map_or_else(|| self.backbone(), Ok)?;
        self.arguments.backbone.embedder(backbone, images)
    }

    fn check(&self, embedder: Option<&str>) -> anyhow::Result<()> {
        if let (Some(learned), Some(given)) = (self.predictor.embedder(), embedder) {
            anyhow::ensure!(
                learned == given,
                hinted(
                    format!(
                        "the classifier was trained on embeddings of {learned}, but these are from {given}"
                    ),
                    "give the same backbone with --backbone"
                )
            );
        }
        Ok(())
    }

    fn write_prediction(&mut self, name: &str, prediction: &Prediction) -> anyhow::Result<()> {
        let Prediction { class, probability, unknown, probabilities } = prediction;
        let class = &self.predictor.classes()[*class as usize];
        self.written += 1;
        let line = match self.arguments.format {
            Format::Table => {
                let (name, class) = (visible(name), visible(class));
                match *unknown >= self.arguments.unknown {
                    true => {
                        let none = "none of these";
                        format!("{:>4.0} %  {none:<24}  {name} (most similar: {class})", 100.0 * unknown)
                    }
                    false => format!("{:>4.0} %  {class:<24}  {name}", 100.0 * probability),
                }
            }
            Format::Csv => {
                let all: String = match self.arguments.all {
                    true => probabilities.iter().map(|p| format!(",{p:.4}")).collect(),
                    false => String::new(),
                };
                format!("{},{},{probability:.4},{unknown:.4}{all}", csv_field(name), csv_field(class))
            }
            Format::Jsonl => {
                let mut line = serde_json::json!({
                    "item": name, "class": class, "probability": probability, "unknown": unknown,
                });
                if self.arguments.all {
                    let classes = self.predictor.classes().iter().cloned();
                    let all = classes.zip(probabilities.iter().map(|&p| p.into()));
                    line["probabilities"] = serde_json::Value::Object(all.collect());
                }
                line.to_string()
            }
        };
        self.write_line(&line)
    }

    fn write_line(&mut self, line: &str) -> anyhow::Result<()> {
        let result = match self.is_terminal {
            true => writeln!(self.out, "{}", visible_lines(line)),
            false => writeln!(self.out, "{line}"),
        };
        result.context("cannot write the predictions")
    }
}

fn is_list_or_archive(path: &Path) -> bool {
    let name = path.display().to_string().to_lowercase();
    [".csv", ".jsonl", ".tar", ".tar.gz", ".tgz"].iter().any(|ending| name.ends_with(ending))
}
