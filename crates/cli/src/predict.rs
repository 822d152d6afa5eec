//! `trueshot predict`: classifies images or embeddings with a classifier from `trueshot fit`. Start with [`run`].
//!
//! [`inputs`] finds the inputs, and [`PredictionWriter`] classifies them and writes the answers as they come: images
//! are embedded with the backbone of the classifier, embeddings are used as they are.

use std::io::{BufWriter, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Args, ValueEnum};
use trueshot::Embeddings;
use trueshot::predictor::{Prediction, Predictor};
use trueshot::progress::Progress;
use trueshot::report::{
    csv_field, display_width, padded, percent, shortened, shortened_item, visible, visible_lines,
};
use trueshot_vision::backbone::GPU_MIN_IMAGES;
use trueshot_vision::embedder::ImageInput;
use trueshot_vision::source::{ImageFiles, images_below};
use trueshot_vision::{Backbone, Collection, Embedder, Skipped, SourceOptions, is_svg};

use crate::audit::number_and_percent_sign;
use crate::backbone_argument::{BackboneArgument, defaults_of_classifier};
use crate::fit::open_classifier;
use crate::images_argument::print_skipped;
use crate::messages::{hinted, say};
use crate::output::{WidthArgument, check_not_read, check_writable};
use crate::progress::{ProgressDisplay, check_interrupted};
use crate::support_argument::is_embeddings;
use crate::threads::Threads;

/// Classify images or embeddings with a classifier from `trueshot fit`
///
/// Prints the most probable class of every input with its probability, or that the input probably belongs to none of the
/// classes. The probabilities of all classes and of none sum to 1. INPUT is an image, a folder (searched recursively), an
/// archive (.zip, .tar, .tar.gz), a list (.csv, .jsonl), embeddings, or - for standard input: one image, or paths, one per
/// line or separated by NUL (find -print0). Paths on standard input that do not exist are skipped with a warning.
#[derive(Args)]
#[command(
    mut_args(defaults_of_classifier),
    after_help = "Examples:
  trueshot predict animals.safetensors new.jpg
  trueshot predict animals.safetensors inbox/ --format csv -o answers.csv
  find inbox -name '*.jpg' | trueshot predict animals.safetensors -
  trueshot predict animals.safetensors embeddings.npz --format jsonl --all"
)]
pub struct Arguments {
    /// Classifier file written by `trueshot fit`
    #[arg(value_name = "CLASSIFIER")]
    classifier: PathBuf,
    /// Images to classify, or embeddings, whose labels are not used (only .npy may have none); - for standard
    /// input
    #[arg(value_name = "INPUT", required = true)]
    inputs: Vec<PathBuf>,
    /// Print the result in this format
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
    /// Print the probabilities of all classes; in the table, the next three answers
    #[arg(long)]
    all: bool,
    /// Answer "none of these" instead of a class from this probability on, from 0 to 1; `answer` is then empty in csv and
    /// null in jsonl
    #[arg(long, value_name = "U", default_value_t = UNKNOWN_THRESHOLD, value_parser = parse_probability)]
    unknown: f32,
    /// Write the predictions to FILE instead of standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    #[command(flatten)]
    backbone: BackboneArgument,
    #[command(flatten)]
    width: WidthArgument,
    #[command(flatten)]
    threads: Threads,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Format {
    Table,
    Csv,
    Jsonl,
}

/// The default of `--unknown`: the answer is "none of these" from this probability on.
pub const UNKNOWN_THRESHOLD: f32 = 0.5;
/// The number of answers that a table shows after the first one with `--all`.
const OTHER_ANSWERS: usize = 3;
/// Images or rows that are classified together; their answers are written before the next ones are read.
const CHUNK: usize = 512;

/// Parses a probability, which can also be given in percent.
fn parse_probability(text: &str) -> Result<f32, String> {
    let (number, has_sign) = number_and_percent_sign(text);
    let whole = if has_sign { 100.0 } else { 1.0 };
    let given = number.parse::<f32>().ok().map(|number| number / whole);
    let probability = given.filter(|given| (0.0..=1.0).contains(given));
    probability.ok_or_else(|| "expected a number from 0 to 1, or 0% to 100%".into())
}

/// Runs `trueshot predict`. Fails if no image could be read, and if an input would be overwritten.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    check_writable(&arguments.output)?;
    let image_hint = "give the classifier first, then the images";
    let predictor = open_classifier(&arguments.classifier, image_hint)?;
    let GivenInputs { inputs, missing } = inputs(&arguments.inputs)?;
    let embeddings = || inputs.iter().filter_map(PredictInput::path).filter(|path| is_embeddings(path));
    // Options for images are an error if all inputs are embeddings.
    let all_are_embeddings = embeddings().count() == inputs.len();
    if let Some(path) = embeddings().next().filter(|_| all_are_embeddings) {
        arguments.backbone.check_unused(path)?;
    }
    let read = inputs.iter().filter_map(PredictInput::path).chain([&arguments.classifier]);
    check_not_read(&arguments.output, read)?;
    arguments.threads.run(|| {
        let mut writer = PredictionWriter {
            arguments,
            predictor: &predictor,
            out: None,
            is_terminal: arguments.output.is_none() && std::io::stdout().is_terminal(),
            layout: TableLayout::new(&predictor, arguments.width.limit(arguments.output.as_ref())),
            embedder: None,
            considered_gpu: false,
            written: 0,
            failed: missing,
        };
        // Consecutive images and folders are classified together; each list, archive or embeddings file on its own.
        for part in inputs.chunk_by(|input, next| input.is_plain() && next.is_plain()) {
            match &part[0] {
                PredictInput::Path(path) if is_embeddings(path) => writer.predict_rows(path)?,
                PredictInput::Path(path) if is_list_or_archive(path) => writer.predict_collection(path)?,
                _ => writer.predict_images(part)?,
            }
        }
        anyhow::ensure!(writer.written > 0 || writer.failed == 0, "none of the images could be read");
        // Creates the output even if there was nothing to classify.
        writer.flush()
    })
}

/// One input of the command.
enum PredictInput {
    /// An image, a folder, an archive, a list or embeddings.
    Path(PathBuf),
    /// The bytes of an image from standard input.
    Image(Vec<u8>),
}

impl PredictInput {
    /// The path; `None` for standard input.
    fn path(&self) -> Option<&PathBuf> {
        match self {
            PredictInput::Path(path) => Some(path),
            PredictInput::Image(_) => None,
        }
    }

    /// Whether the input is an image or a folder of images, which is classified together with those that follow it.
    fn is_plain(&self) -> bool {
        match self {
            PredictInput::Path(path) => !is_embeddings(path) && !is_list_or_archive(path),
            PredictInput::Image(_) => true,
        }
    }
}

/// The name of standard input in results.
const STANDARD_INPUT: &str = "standard input";
/// The maximum number of bytes that are read from standard input.
const MAX_STANDARD_INPUT: u64 = 1 << 29;

/// The inputs that exist, and the number of paths on standard input that do not.
#[derive(Default)]
struct GivenInputs {
    inputs: Vec<PredictInput>,
    missing: usize,
}

/// The inputs named by the arguments; `-` is standard input.
fn inputs(arguments: &[PathBuf]) -> anyhow::Result<GivenInputs> {
    let mut given = GivenInputs::default();
    for path in arguments {
        match path.as_os_str() == "-" {
            true => given.add_standard_input()?,
            false => {
                anyhow::ensure!(path.exists(), "{} does not exist", path.display());
                given.inputs.push(PredictInput::Path(path.clone()));
            }
        }
    }
    Ok(given)
}

/// All bytes of standard input. Fails if there are none or more than [`MAX_STANDARD_INPUT`].
fn read_standard_input() -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut stdin = std::io::stdin().lock().take(MAX_STANDARD_INPUT + 1);
    stdin.read_to_end(&mut bytes).with_context(|| format!("cannot read {STANDARD_INPUT}"))?;
    anyhow::ensure!(stdin.limit() > 0, "{STANDARD_INPUT} is longer than {} MB", MAX_STANDARD_INPUT >> 20);
    anyhow::ensure!(
        !bytes.is_empty(),
        hinted(format!("{STANDARD_INPUT} is empty"), "give it one image, or paths of images, one per line")
    );
    Ok(bytes)
}

/// Paths in a text, one per line or separated by NUL; `None` if the bytes are not such a text, for instance an image.
fn listed_paths(bytes: &[u8]) -> Option<Vec<&str>> {
    // An SVG image is text, too. A NUL that does not end the text means other data.
    let text = std::str::from_utf8(bytes).ok().filter(|_| !is_svg(bytes))?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let paths: Vec<&str> = match text.strip_suffix('\0') {
        Some(paths) => paths.split('\0').collect(),
        None if text.contains('\0') => return None,
        None => text.lines().filter(|line| !line.trim().is_empty()).collect(),
    };
    Some(paths)
}

impl GivenInputs {
    /// Adds the contents of standard input: an image, or paths.
    fn add_standard_input(&mut self) -> anyhow::Result<()> {
        let bytes = read_standard_input()?;
        // Other bytes are treated as an image; decoding reports an error if they are not one.
        let Some(paths) = listed_paths(&bytes) else {
            self.inputs.push(PredictInput::Image(bytes));
            return Ok(());
        };
        for path in paths {
            match Path::new(path).exists() {
                true => self.inputs.push(PredictInput::Path(path.into())),
                false => {
                    self.missing += 1;
                    say!("warning: {} is skipped: it does not exist", visible(path));
                }
            }
        }
        Ok(())
    }
}

/// The column widths of the table, which are known before the first prediction. A line is `PROBABILITY  CLASS  NAME`.
struct TableLayout {
    /// The width of the column of classes.
    class_width: usize,
    /// The maximum width of a line, if names are shortened to fit into it.
    line_width: Option<usize>,
}

impl TableLayout {
    /// The width of the probability (5) and the two spaces before the class.
    const BEFORE_CLASS: usize = 7;
    /// The widest column of classes if the width of the table is unlimited; what follows a longer name is not aligned.
    const MAX_CLASS_WIDTH: usize = 40;

    fn new(predictor: &Predictor, line_width: Option<usize>) -> Self {
        let widths = predictor.classes().iter().map(|class| display_width(&visible(class)));
        let widest = widths.max().unwrap_or(0).max(NONE_OF_THESE.len());
        // The column of classes takes at most a third of a line.
        let limit = line_width.map_or(Self::MAX_CLASS_WIDTH, |width| width / 3);
        TableLayout { class_width: widest.min(limit), line_width }
    }

    /// A line of the table; `note` follows the name, or is on a line of its own if there is no place for it.
    fn line(&self, probability: f32, class: &str, name: &str, note: &str) -> String {
        let class = match self.line_width {
            Some(_) => shortened(class, self.class_width),
            None => class.to_owned(),
        };
        // Two spaces separate the class and the name.
        let before_name = Self::BEFORE_CLASS + self.class_width + 2;
        let whole_width = before_name + display_width(name) + display_width(note);
        let note = match self.line_width.is_some_and(|width| whole_width > width) && !note.is_empty() {
            true => format!("\n{}{}", " ".repeat(Self::BEFORE_CLASS), note.trim_start()),
            false => note.to_owned(),
        };
        let name = match self.line_width {
            Some(width) => shortened_item(name, width.saturating_sub(before_name)),
            None => name.to_owned(),
        };
        format!("{:>5}  {}  {name}{note}", percent(probability), padded(&class, self.class_width))
    }
}

/// The answer in the table instead of a class.
const NONE_OF_THESE: &str = "none of these";

/// Classifies inputs and writes the answers as they come.
struct PredictionWriter<'a> {
    arguments: &'a Arguments,
    predictor: &'a Predictor,
    /// Opened for the first answer, so that an error before it leaves an existing file as it is.
    out: Option<BufWriter<Box<dyn Write>>>,
    /// Whether answers go to a terminal, where control characters are escaped.
    is_terminal: bool,
    layout: TableLayout,
    /// The embedder of the previous input; `None` if no image has been classified yet.
    embedder: Option<Embedder>,
    /// Whether the embedder was chosen for enough images to use a GPU, if there is one.
    considered_gpu: bool,
    /// The number of answers.
    written: usize,
    /// The number of images that could not be read, and of paths that do not exist.
    failed: usize,
}

impl PredictionWriter<'_> {
    /// The output. Opens it and writes the header when it is needed first.
    fn out(&mut self) -> anyhow::Result<&mut BufWriter<Box<dyn Write>>> {
        if self.out.is_none() {
            let out: Box<dyn Write> = match &self.arguments.output {
                Some(path) => Box::new(
                    std::fs::File::create(path)
                        .with_context(|| format!("cannot write {}", path.display()))?,
                ),
                None => Box::new(std::io::stdout().lock()),
            };
            // Set first, because `write_header` calls this function.
            self.out = Some(BufWriter::new(out));
            self.write_header()?;
        }
        Ok(self.out.as_mut().expect("it was opened above"))
    }

    fn flush(&mut self) -> anyhow::Result<()> {
        self.out()?.flush().context("cannot write the predictions")
    }

    /// Writes the header of the CSV format; other formats have none. `class` is the most probable class; `answer` is
    /// empty if the answer is "none of these".
    fn write_header(&mut self) -> anyhow::Result<()> {
        if self.arguments.format == Format::Csv {
            let classes = self.predictor.classes().iter().filter(|_| self.arguments.all);
            let all: String = classes.map(|class| format!(",{}", csv_field(class))).collect();
            self.write_line(&format!("item,class,probability,unknown,answer{all}"))?;
        }
        Ok(())
    }

    /// Classifies the rows of an embeddings file.
    fn predict_rows(&mut self, path: &Path) -> anyhow::Result<()> {
        let data = Embeddings::open_without_labels(path)?;
        if let (Some(fitted_with), Some(backbone)) = (self.predictor.embedder(), data.backbone()) {
            anyhow::ensure!(
                fitted_with == backbone,
                hinted(
                    format!(
                        "the classifier was trained on embeddings of {fitted_with}, but these are from {backbone}"
                    ),
                    "embed the images with the same backbone, --size, --fit and --resampling"
                )
            );
        }
        let progress = ProgressDisplay::counting(data.len() as u64, "rows");
        for start in (0..data.len()).step_by(CHUNK) {
            let count = CHUNK.min(data.len() - start);
            let values = data.features().rows_between(start..start + count);
            let rows: Vec<&[f32]> = values.chunks_exact(data.dim()).collect();
            let predictions = self.predictor.predict(&rows)?;
            progress.suspend(|| -> anyhow::Result<()> {
                for (row, prediction) in (start..).zip(&predictions) {
                    let name = data.item(row).map_or_else(|| format!("row {row}"), str::to_string);
                    self.write_prediction(&name, prediction)?;
                }
                self.flush()
            })?;
            progress.check((start + count) as u64, data.len() as u64).inspect_err(|_| progress.finish())?;
        }
        progress.finish();
        Ok(())
    }

    /// Classifies the images of a list or an archive.
    fn predict_collection(&mut self, path: &Path) -> anyhow::Result<()> {
        // The backbone is opened first, so that an error in it is reported before a large archive is listed.
        let backbone = self.embedder.is_none().then(|| self.backbone()).transpose()?;
        let options = SourceOptions { labels_optional: true, ..SourceOptions::default() };
        let collection = Collection::open(path, options)?;
        self.report_skipped(collection.skipped());
        let entries = collection.entries().iter();
        let inputs: Vec<_> =
            entries.map(|entry| (entry.item.clone(), ImageInput::Entry(&collection, entry))).collect();
        self.predict_all(backbone, &inputs)
    }

    /// Classifies image files and the images in folders.
    fn predict_images(&mut self, given: &[PredictInput]) -> anyhow::Result<()> {
        let backbone = self.embedder.is_none().then(|| self.backbone()).transpose()?;
        let mut listed = Vec::new();
        for input in given {
            match input {
                PredictInput::Image(bytes) => listed.push((STANDARD_INPUT.into(), ListedImage::Bytes(bytes))),
                PredictInput::Path(path) => {
                    let ImageFiles { files, skipped } = images_below(path)?;
                    if files.is_empty() {
                        let skipped = skipped.first().map(Skipped::to_string);
                        return Err(trueshot_vision::Error::NoImages { path: path.into(), skipped }.into());
                    }
                    self.report_skipped(&skipped);
                    listed.extend(files.into_iter().map(|(name, file)| (name, ListedImage::File(file))));
                }
            }
        }
        let inputs: Vec<(String, ImageInput<'_>)> = listed
            .iter()
            .map(|(name, image)| match image {
                ListedImage::File(path) => (name.clone(), ImageInput::File(path)),
                ListedImage::Bytes(bytes) => (name.clone(), ImageInput::Bytes(bytes)),
            })
            .collect();
        self.predict_all(backbone, &inputs)
    }

    fn report_skipped(&mut self, skipped: &[Skipped]) {
        self.failed += skipped.len();
        print_skipped(skipped.iter());
    }

    /// Classifies images, given as name and image, in chunks. `backbone` is `None` if there is an embedder from the
    /// previous input.
    fn predict_all(
        &mut self,
        backbone: Option<Backbone>,
        inputs: &[(String, ImageInput<'_>)],
    ) -> anyhow::Result<()> {
        let embedder = self.embedder(backbone, inputs.len())?;
        let progress = ProgressDisplay::counting(inputs.len() as u64, "images");
        for (number, part) in inputs.chunks(CHUNK).enumerate() {
            self.predict_chunk(&embedder, part, (&progress, number * CHUNK))?;
            if check_interrupted().is_break() {
                progress.finish();
                return Err(trueshot::Error::Interrupted.into());
            }
        }
        progress.finish();
        self.arguments.backbone.report_cache_problem(&embedder);
        self.embedder = Some(embedder);
        Ok(())
    }

    /// Embeds and classifies one chunk. The last argument is the progress bar, and the number of images before the
    /// chunk.
    fn predict_chunk(
        &mut self,
        embedder: &Embedder,
        inputs: &[(String, ImageInput<'_>)],
        (progress, before): (&ProgressDisplay, usize),
    ) -> anyhow::Result<()> {
        let images: Vec<ImageInput<'_>> = inputs.iter().map(|(_, image)| *image).collect();
        let chunk_progress = |done: u64, total: u64| progress.update(before as u64 + done, total);
        let embedded = embedder.embed_images(&images, &chunk_progress)?;
        progress.suspend(|| -> anyhow::Result<()> {
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
            if !rows.is_empty() {
                self.flush()?;
            }
            Ok(())
        })
    }

    /// Opens the backbone that the classifier was fitted with.
    fn backbone(&self) -> anyhow::Result<Backbone> {
        self.arguments.backbone.find_for(self.predictor)
    }

    /// The embedder of the previous input, or a new one with the given backbone. An embedder that was made for few
    /// images, and therefore runs on the CPU, is replaced if the number `images` is enough for a GPU.
    fn embedder(&mut self, backbone: Option<Backbone>, images: usize) -> anyhow::Result<Embedder> {
        let can_be_kept = self.considered_gpu || images < GPU_MIN_IMAGES;
        if let Some(embedder) = self.embedder.take().filter(|_| can_be_kept) {
            return Ok(embedder);
        }
        self.considered_gpu |= images >= GPU_MIN_IMAGES;
        let backbone = backbone.map_or_else(|| self.backbone(), Ok)?;
        self.arguments.backbone.embedder(backbone, images)
    }

    /// Writes the answer for one input in the chosen format.
    fn write_prediction(&mut self, name: &str, prediction: &Prediction) -> anyhow::Result<()> {
        let Prediction { class, probability, unknown, probabilities } = prediction;
        let class = &self.predictor.classes()[*class as usize];
        let is_unknown = *unknown >= self.arguments.unknown;
        self.written += 1;
        let line = match self.arguments.format {
            Format::Table => {
                let (name, class) = (visible(name), visible(class));
                let note = match (self.arguments.all, is_unknown) {
                    (true, _) => format!(" ({})", self.other_answers(prediction, is_unknown)),
                    (false, true) => format!(" (most similar: {class})"),
                    (false, false) => String::new(),
                };
                match is_unknown {
                    true => self.layout.line(*unknown, NONE_OF_THESE, &name, &note),
                    false => self.layout.line(*probability, &class, &name, &note),
                }
            }
            Format::Csv => {
                let all: String = match self.arguments.all {
                    true => probabilities.iter().map(|p| format!(",{p:.4}")).collect(),
                    false => String::new(),
                };
                let answer = if is_unknown { String::new() } else { csv_field(class) };
                let (item, class) = (csv_field(name), csv_field(class));
                format!("{item},{class},{probability:.4},{unknown:.4},{answer}{all}")
            }
            Format::Jsonl => {
                let mut line = serde_json::json!({
                    "item": name, "class": class, "probability": probability, "unknown": unknown,
                    "answer": (!is_unknown).then_some(class),
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

    /// The most probable answers after the first one, such as "none of these 22 %, thistle 14 %".
    fn other_answers(&self, prediction: &Prediction, is_unknown: bool) -> String {
        let classes = self.predictor.classes().iter().zip(&prediction.probabilities);
        let mut answers: Vec<(String, f32)> = classes.map(|(class, &p)| (visible(class), p)).collect();
        answers.push((NONE_OF_THESE.into(), prediction.unknown));
        let first = if is_unknown { answers.len() - 1 } else { prediction.class as usize };
        answers.remove(first);
        answers.sort_by(|(_, a), (_, b)| b.total_cmp(a));
        let shown = answers.iter().take(OTHER_ANSWERS).map(|(name, p)| format!("{name} {}", percent(*p)));
        shown.collect::<Vec<_>>().join(", ")
    }

    fn write_line(&mut self, line: &str) -> anyhow::Result<()> {
        let is_terminal = self.is_terminal;
        let out = self.out()?;
        let result = match is_terminal {
            true => writeln!(out, "{}", visible_lines(line)),
            false => writeln!(out, "{line}"),
        };
        result.context("cannot write the predictions")
    }
}

/// An image in a file or in memory.
enum ListedImage<'a> {
    File(PathBuf),
    Bytes(&'a [u8]),
}

/// Whether a path is a list of images or an archive, by its extension; a folder is neither.
fn is_list_or_archive(path: &Path) -> bool {
    let name = path.display().to_string().to_lowercase();
    let endings = [".csv", ".jsonl", ".zip", ".tar", ".tar.gz", ".tgz"];
    endings.iter().any(|ending| name.ends_with(ending)) && !path.is_dir()
}
