//! `trueshot eval`: evaluates methods on thousands of noisy episodes. Start with [`run`].
//!
//! Episodes are drawn from the rows of an embeddings file or, with `--pictures`, from images. The pixels of an image
//! are then one row of [`Embeddings`], so both kinds of data are sampled and evaluated by the same code.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use trueshot::episode::{DefaultNoise, EpisodeSpec, Episodes, Manifest, Sampler, Shots, write_manifest};
use trueshot::evaluate::{self, Details, Experiment};
use trueshot::method::{NamedMethod, Registry};
use trueshot::noise::{self, ConfusionNoise, NoiseKind, NoiseLevels};
use trueshot::report::{self, Format, Tables};
use trueshot::{Embeddings, Error, Evaluation, Noise};
use trueshot_cuda::Device;
use trueshot_vision::maml::{self, GpuImages};
use trueshot_vision::{Collection, Dataset, Preprocessing};

use crate::device_argument::{DeviceArgument, say_device};
use crate::images_argument::{ImagesArgument, print_skipped};
use crate::messages::{StoppedEarly, say};
use crate::output::{OutputArgument, WidthArgument, check_not_read, check_writable, write_file};
use crate::progress::{ProgressDisplay, check_interrupted, handle_interrupts};
use crate::support_argument::read_embeddings;
use crate::threads::Threads;

/// Evaluate methods on noisy few-shot episodes drawn from embeddings
///
/// All methods, noise types and noise levels of one run use the same episodes, so differences are paired. The same seed
/// gives byte-identical results with any number of threads.
#[derive(Args)]
#[command(mut_arg("device", |device| device.help(DEVICE_HELP)), after_help = "Examples:
  trueshot eval test.safetensors
  trueshot eval test.safetensors --methods protonet,median,cosine:T=0.1
  trueshot eval test.safetensors --noise outlier=40 --outliers val.safetensors
  trueshot eval test.safetensors --noise similar=20,40 \\
      --noise confusion=matrix.csv
  trueshot eval test.safetensors --shots 1-10 --format html -o report.html
  trueshot eval --pictures cifar/test --methods maml:model=maml.safetensors
  trueshot eval --list-methods")]
pub struct Arguments {
    /// Embeddings file
    #[arg(value_name = "EMBEDDINGS", required_unless_present_any = ["list_methods", "pictures"])]
    embeddings: Option<PathBuf>,
    /// Evaluate these methods, separated by commas, with parameters after colons [default: all methods that need no
    /// model file and that --list-methods does not mark as transductive]
    #[arg(short, long, value_delimiter = ',', value_name = "METHOD")]
    methods: Vec<String>,
    /// List all methods with their parameters and exit
    #[arg(long)]
    list_methods: bool,
    /// Apply noise of this type (symmetric, paired, outlier or similar) and these levels in percent, or
    /// confusion=FILE, a CSV file with a confusion matrix; can be repeated [default: symmetric=0,20,40,60]
    #[arg(short, long, value_name = "TYPE=LEVEL,..")]
    noise: Vec<NoiseArgument>,
    /// Draw outliers from these embeddings (with --pictures: images) of other classes [default: from classes of the
    /// data that are not in the episode]
    #[arg(long, value_name = "FILE")]
    outliers: Option<PathBuf>,
    /// Draw N classes per episode
    #[arg(long, default_value_t = 5, value_name = "N")]
    ways: usize,
    /// Draw K labelled items per class: a number, or a range such as 3-10 from which each class draws its own
    #[arg(long, default_value = "5", value_parser = parse_shots, value_name = "K")]
    shots: Shots,
    /// Draw Q queries per class; with 0, evaluate only the detection of wrong labels
    #[arg(long, default_value_t = 15, value_name = "Q")]
    queries: usize,
    /// Evaluate N episodes
    #[arg(short, long, default_value_t = 10_000, value_name = "N",
        value_parser = clap::value_parser!(u64).range(1..))]
    episodes: u64,
    /// Draw episodes with this random seed; the same seed gives the same result
    #[arg(short, long, default_value_t = 0)]
    seed: u64,
    /// Compare all other methods to this one [default: protonet]
    #[arg(long, value_name = "METHOD", help_heading = "Report")]
    baseline: Option<String>,
    /// Also report the accuracy per class (not in CSV)
    #[arg(long, help_heading = "Report")]
    per_class: bool,
    /// Also report the confusion matrix (JSON and HTML)
    #[arg(long, help_heading = "Report")]
    confusion: bool,
    /// Also compare all pairs of methods (JSON and HTML always do)
    #[arg(long, help_heading = "Report")]
    significance: bool,
    /// Write the episodes to FILE before the evaluation, one line of JSON each
    #[arg(
        long,
        value_name = "FILE",
        help_heading = "Recording and replaying episodes",
        conflicts_with = "manifest"
    )]
    write_manifest: Option<PathBuf>,
    /// Replay the episodes of FILE, including its ways, shots, queries, noise and seed
    #[arg(long, value_name = "FILE", help_heading = "Recording and replaying episodes", conflicts_with_all = ["noise", "ways", "shots", "queries", "seed"])]
    manifest: Option<PathBuf>,
    /// Print the result in this format
    #[arg(short, long, default_value = "table", value_parser = PossibleValuesParser::new(FORMATS.map(|(name, _)| name)).map(format_named))]
    format: Format,
    /// Also write an HTML report with plots to FILE
    #[arg(long, value_name = "FILE", help_heading = "Report")]
    html: Option<PathBuf>,
    #[command(flatten)]
    output: OutputArgument,
    #[command(flatten)]
    device: DeviceArgument,
    /// Draw episodes of images, for methods that take images (maml), from a folder, archive, list or `omniglot`, as for
    /// `trueshot embed`
    #[arg(long, value_name = "DATASET", help_heading = "Selecting images", conflicts_with_all = ["embeddings", "labels_of_rows"])]
    pictures: Option<PathBuf>,
    #[command(flatten)]
    selection: ImagesArgument,
    /// Use this split of the outlier images, if they have several splits (with --pictures)
    #[arg(long, value_name = "NAME", help_heading = "Selecting images", requires_all = ["outliers", "pictures"])]
    outliers_split: Option<String>,
    /// Read the labels of a .npy file from FILE (.npy) [default: NAME.labels.npy or NAME_labels.npy next to it; y.npy for X.npy]
    #[arg(long, alias = "labels", value_name = "FILE", help_heading = "Other options")]
    labels_of_rows: Option<PathBuf>,
    #[command(flatten)]
    width: WidthArgument,
    #[command(flatten)]
    threads: Threads,
}

/// The help of `--device`, which only methods that take images use.
const DEVICE_HELP: &str =
    "With --pictures, compute on cpu, cuda (the first NVIDIA GPU), cuda:N, or auto: a GPU if there is one";

/// The value of `--noise`.
#[derive(Clone)]
enum NoiseArgument {
    Levels(NoiseLevels),
    /// The path of a CSV file with a confusion matrix.
    Confusion(PathBuf),
}

/// The name of the noise type whose value is a file: `--noise confusion=FILE`.
const CONFUSION: &str = "confusion";

impl std::str::FromStr for NoiseArgument {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((kind, "")) if kind.trim() == CONFUSION => {
                Err("expected the path of a CSV file after confusion=".into())
            }
            Some((kind, path)) if kind.trim() == CONFUSION => Ok(NoiseArgument::Confusion(path.into())),
            _ => text.parse().map(NoiseArgument::Levels).map_err(|problem: String| {
                let is_unknown_type = problem.starts_with("unknown noise type");
                if is_unknown_type { format!("{problem}, or {CONFUSION}=FILE") } else { problem }
            }),
        }
    }
}

/// The values of `--format`.
const FORMATS: [(&str, Format); 6] = [
    ("table", Format::Table),
    ("json", Format::Json),
    ("csv", Format::Csv),
    ("md", Format::Markdown),
    ("latex", Format::Latex),
    ("html", Format::Html),
];

/// The format with one of the names in [`FORMATS`].
fn format_named(name: String) -> Format {
    FORMATS.into_iter().find(|(known, _)| *known == name).expect("clap has checked the name").1
}

/// Parses the value of `--shots`: a number such as `5`, or a range such as `3-10`.
fn parse_shots(text: &str) -> Result<Shots, String> {
    let number = |text: &str| text.trim().parse().map_err(|_| format!("'{text}' is not a number of shots"));
    // A dash at the beginning is the sign of a negative number.
    match text.split_once('-').filter(|(min, _)| !min.is_empty()) {
        Some((min, max)) => Ok(Shots { min: number(min)?, max: number(max)? }),
        None => number(text).map(Shots::exactly),
    }
}

/// Runs `trueshot eval`: reads the data, draws the episodes, evaluates the methods and prints the report.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    if arguments.list_methods {
        return arguments.output.write_text(&list_methods(&registry()));
    }
    // Methods are parsed before the data are read, so that a wrong name is reported at once.
    let methods = arguments.methods()?;
    let (device, reason) = arguments.open_device()?;
    let outputs = [&arguments.output.output, &arguments.html, &arguments.write_manifest];
    check_writable(outputs.into_iter().flatten())?;
    let inputs = [&arguments.embeddings, &arguments.pictures, &arguments.outliers, &arguments.manifest]
        .into_iter()
        .chain([&arguments.labels_of_rows]);
    check_not_read(outputs.into_iter().flatten(), inputs.flatten())?;
    arguments.threads.run(|| {
        let data = arguments.data(&methods, device.is_some())?;
        let episodes = arguments.episodes(&data)?;
        if let Some(path) = &arguments.write_manifest {
            handle_interrupts();
            let count = arguments.episodes;
            let hash = write_manifest(
                path,
                &*episodes,
                count,
                &data.rows,
                data.outliers.as_ref(),
                &|_: u64, _: u64| check_interrupted(),
            )?;
            say!("wrote {} episodes to {}, SHA-256 {hash}", arguments.episodes, path.display());
        }
        if arguments.pictures.is_some() {
            say_device("evaluating", device.as_ref(), reason.as_deref());
        }
        arguments.report(&arguments.evaluate_on(device.as_ref(), &data, &*episodes, methods)?)
    })
}

/// The data from which episodes are drawn.
struct EvaluationData {
    /// The embeddings or, with `--pictures`, the pixels of the images.
    rows: Embeddings,
    /// The rows that outlier noise draws from; `None`: classes of `rows` that are not in the episode.
    outliers: Option<Embeddings>,
    /// The images that `rows` and `outliers` were made from, if methods are evaluated on a GPU.
    images: Option<LoadedImages>,
}

/// The images of a data set and of the outliers, for upload to a GPU.
struct LoadedImages {
    dataset: Arc<Dataset>,
    outliers: Option<Arc<Dataset>>,
    preprocessing: Preprocessing,
}

impl Arguments {
    /// Opens the device for methods that take images; `None` is the CPU. The second value is the reason why `auto`
    /// chose the CPU. Methods that take embeddings always run on the CPU.
    fn open_device(&self) -> anyhow::Result<(Option<Device>, Option<String>)> {
        match self.pictures {
            Some(_) => self.device.open(),
            None => {
                self.device.require_cpu("methods on embeddings are evaluated on the CPU")?;
                Ok((None, None))
            }
        }
    }

    /// The methods of `--methods`. Fails if `--baseline` is given and is not one of them.
    fn methods(&self) -> anyhow::Result<Vec<NamedMethod>> {
        let methods = registry().parse_all(&self.methods)?;
        if let Some(baseline) = &self.baseline {
            evaluate::check_baseline(baseline, &methods)?;
        }
        Ok(methods)
    }

    /// Reads the embeddings or, with `--pictures`, the images. With `keep_images`, the result also contains the images
    /// themselves, for evaluation on a GPU.
    fn data(&self, methods: &[NamedMethod], keep_images: bool) -> anyhow::Result<EvaluationData> {
        let Some(path) = &self.pictures else { return self.embeddings(methods) };
        let preprocessing = preprocessing(methods)?;
        let collection = self.selection.open(path)?;
        let (dataset, rows) = load_images(&collection, &preprocessing)?;
        let split = self.outliers_split.as_deref();
        let open_outliers =
            |outliers: &PathBuf| self.selection.open_outliers(path, &collection, outliers, split);
        let outliers = self.outliers.as_ref().map(open_outliers).transpose()?.flatten();
        let load_outliers = |outliers: Collection| load_images(&outliers, &preprocessing);
        let (outlier_images, outliers) = match outliers.map(load_outliers).transpose()? {
            Some((dataset, rows)) => (Some(Arc::new(dataset)), Some(rows)),
            None => (None, None),
        };
        let images = keep_images.then(|| LoadedImages {
            dataset: Arc::new(dataset),
            outliers: outlier_images,
            preprocessing,
        });
        Ok(EvaluationData { rows, outliers, images })
    }

    /// Reads the embeddings files of the data and of the outliers.
    fn embeddings(&self, methods: &[NamedMethod]) -> anyhow::Result<EvaluationData> {
        if let Some(method) = methods.iter().find(|method| method.method.image_rows().is_some()) {
            let label = &method.label;
            anyhow::bail!("method '{label}' takes images, not embeddings: give --pictures DATASET");
        }
        self.selection.check_unused()?;
        let path = self.embeddings.as_deref().context("no embeddings file was given")?;
        let rows = open(path, self.labels_of_rows.as_deref())?;
        let outliers = self.outliers.as_deref().map(|path| open(path, None)).transpose()?;
        // The data itself as outliers means the default: outliers of classes that are not in the episode.
        let outliers = outliers.filter(|outliers| outliers.fingerprint() != rows.fingerprint());
        Ok(EvaluationData { rows, outliers, images: None })
    }

    /// The source of the episodes: the manifest, or a sampler with the ways, shots, queries, noise and seed of the
    /// options.
    fn episodes<'a>(&self, data: &'a EvaluationData) -> anyhow::Result<Box<dyn Episodes + Send + 'a>> {
        let (rows, outliers) = (&data.rows, data.outliers.as_ref());
        if let Some(path) = &self.manifest {
            return Ok(Box::new(Manifest::open(path, rows, outliers)?));
        }
        let spec = EpisodeSpec { ways: self.ways, shots: self.shots, queries: self.queries, seed: self.seed };
        let settings = self.noise_settings(&spec);
        if outliers.is_some() && !settings.iter().any(|noise| noise.kind == NoiseKind::Outlier) {
            say!("warning: --outliers has no effect without outlier noise; add --noise outlier=40");
        }
        let sampler = Sampler::new(rows, outliers, spec, settings)?;
        let confusion_files = || {
            self.noise.iter().filter_map(|argument| match argument {
                NoiseArgument::Levels(_) => None,
                NoiseArgument::Confusion(path) => Some(path),
            })
        };
        let sampler = confusion_files().try_fold(sampler, |sampler, path| {
            // The report tells several matrices apart by the names of their files.
            let stem = path.file_stem().unwrap_or_default().to_string_lossy();
            let is_only = confusion_files().count() == 1;
            let name = if is_only { CONFUSION.into() } else { format!("{CONFUSION} {stem}") };
            sampler.with_noise(Box::new(ConfusionNoise::open(path, &name, rows.classes())?))
        })?;
        Ok(Box::new(sampler))
    }

    /// The types and levels of `--noise`, without confusion matrices. Without `--noise`, the default levels that are
    /// possible with these ways and shots; a message names the others.
    fn noise_settings(&self, spec: &EpisodeSpec) -> Vec<Noise> {
        if self.noise.is_empty() {
            let default = DefaultNoise::of(spec);
            if let Some(note) = default.note(spec) {
                say!("note: {note}");
            }
            return default.settings;
        }
        let levels = self.noise.iter().filter_map(|argument| match argument {
            NoiseArgument::Levels(levels) => Some(levels.clone()),
            NoiseArgument::Confusion(_) => None,
        });
        noise::settings(&levels.collect::<Vec<_>>())
    }

    /// Evaluates on the GPU `device`, if it is given and images are loaded, otherwise on the CPU. With `--device auto`,
    /// falls back to the CPU if the GPU fails.
    fn evaluate_on(
        &self,
        device: Option<&Device>,
        data: &EvaluationData,
        episodes: &dyn Episodes,
        mut methods: Vec<NamedMethod>,
    ) -> anyhow::Result<Evaluation> {
        if let (Some(device), Some(images)) = (device, &data.images) {
            match self.evaluate_on_gpu(device, images, data, episodes, methods) {
                Err(Error::Gpu { message, .. }) if self.device.is_auto() => {
                    say!("evaluating on the CPU instead ({message})");
                    // The attempt on the GPU took the methods, so they are made again.
                    methods = self.methods()?;
                }
                outcome => return Ok(outcome?),
            }
        }
        Ok(self.evaluate(data, episodes, &methods)?)
    }

    /// Evaluates with the MAML methods on the GPU, and all other methods on the CPU.
    fn evaluate_on_gpu(
        &self,
        device: &Device,
        images: &LoadedImages,
        data: &EvaluationData,
        episodes: &dyn Episodes,
        mut methods: Vec<NamedMethod>,
    ) -> trueshot::Result<Evaluation> {
        let LoadedImages { dataset, outliers, preprocessing } = images;
        let images = GpuImages::upload(device, Arc::clone(dataset), outliers.clone(), preprocessing)?;
        maml::move_to_gpu(&mut methods, &images, episodes.spec(), self.episode_count(episodes))?;
        let evaluation = self.evaluate(data, episodes, &methods)?;
        Ok(Evaluation { device: Some(device.name().into()), ..evaluation })
    }

    /// The number of episodes to evaluate: `--episodes`, or all episodes of the manifest if it has fewer.
    fn episode_count(&self, episodes: &dyn Episodes) -> u64 {
        episodes.limit().unwrap_or(self.episodes).min(self.episodes)
    }

    /// Evaluates the methods on all episodes, with a progress bar.
    fn evaluate(
        &self,
        data: &EvaluationData,
        episodes: &dyn Episodes,
        methods: &[NamedMethod],
    ) -> trueshot::Result<Evaluation> {
        let count = self.episode_count(episodes);
        let progress = ProgressDisplay::counting(count, "episodes");
        let experiment = Experiment {
            embeddings: &data.rows,
            outliers: data.outliers.as_ref(),
            episodes,
            count,
            methods,
            baseline: self.baseline.as_deref().unwrap_or(evaluate::DEFAULT_BASELINE),
            details: Details { per_class: self.per_class, confusion: self.confusion },
        };
        let evaluation = evaluate::evaluate(&experiment, &progress);
        progress.finish();
        evaluation
    }

    /// Writes the result in the format of `--format` and, with `--html`, also as an HTML report.
    fn report(&self, evaluation: &Evaluation) -> anyhow::Result<()> {
        if evaluation.interrupted {
            say!("stopped early: the results cover the episodes finished so far");
        }
        if let Some(path) = &self.html {
            write_file(path, &report::evaluation(evaluation, Format::Html, Tables::Usual))?;
            say!("wrote {}", path.display());
        }
        let tables = if self.significance { Tables::WithSignificance } else { Tables::Usual };
        let text = match (self.format, self.width.limit(self.output.output.as_ref())) {
            (Format::Table, Some(width)) => report::evaluation_text(evaluation, tables, width),
            (format, _) => report::evaluation(evaluation, format, tables),
        };
        match self.format {
            Format::Json | Format::Csv | Format::Html => self.output.write_data(&text)?,
            _ => self.output.write_text(&text)?,
        }
        if evaluation.interrupted { Err(StoppedEarly.into()) } else { Ok(()) }
    }
}

/// The registry of all methods, including those that take images.
fn registry() -> Registry {
    let mut registry = Registry::default();
    maml::register(&mut registry);
    registry
}

/// The preprocessing of images for these methods, which must take images of the same size and channels. Its mean and
/// divisor have no effect: rows hold the pixels as they are, and every method normalises them itself.
fn preprocessing(methods: &[NamedMethod]) -> anyhow::Result<Preprocessing> {
    let mut required = methods.iter().filter_map(|method| Some((&method.label, method.method.image_rows()?)));
    let (label, first) = required.next().context(
        "none of the methods takes images: use maml:model=FILE, or embed the images first (trueshot embed)",
    )?;
    if let Some((other, rows)) = required.find(|(_, rows)| *rows != first) {
        anyhow::bail!(
            "'{label}' takes images of {} px and {} channels, '{other}' of {} px and {}: evaluate them one at a time",
            first.size,
            first.channels,
            rows.size,
            rows.channels
        );
    }
    Ok(match first.channels {
        1 => Preprocessing::drawings(first.size),
        _ => Preprocessing::colour(first.size),
    })
}

/// Loads images of the size and channels of `preprocessing`. Also returns their pixels as rows, one image per row, with
/// values from 0 to 255.
fn load_images(
    collection: &Collection,
    preprocessing: &Preprocessing,
) -> anyhow::Result<(Dataset, Embeddings)> {
    let progress = ProgressDisplay::counting(collection.entries().len() as u64, "images");
    let loaded = Dataset::load(collection, preprocessing, false, &progress);
    progress.finish();
    let dataset = loaded?;
    print_skipped(collection.skipped().iter().chain(dataset.skipped()));
    let rows = dataset.rows(Some(collection.path()))?;
    Ok((dataset, rows))
}

/// Reads an embeddings file and checks all its values. `labels` is the file with the labels of a .npy file; `None`: the
/// one next to it. For more than 256 MiB of features, prints how long the check took.
pub fn open(path: &Path, labels: Option<&Path>) -> anyhow::Result<Embeddings> {
    let mut embeddings = read_embeddings(path, labels)?;
    let bytes = embeddings.len() * embeddings.dim() * embeddings.features().precision().size();
    let start = std::time::Instant::now();
    embeddings.check()?;
    if bytes > 1 << 28 {
        say!("checked {} MB of features in {:.1} s", bytes >> 20, start.elapsed().as_secs_f64());
    }
    Ok(embeddings)
}

/// The text of `--list-methods`: one line per method, followed by one line per parameter with its default.
fn list_methods(registry: &Registry) -> String {
    let mut text = String::new();
    for info in registry.infos() {
        let mark = if info.transductive { " [transductive]" } else { "" };
        text.push_str(&format!("{:<14}{}{mark}\n", info.name, info.summary));
        for parameter in info.parameters {
            // Parameters without a default are paths of files.
            let default = if parameter.default.is_empty() { "FILE" } else { parameter.default };
            let setting = format!("{}={default}", parameter.name);
            text.push_str(&format!("                {setting:<18}{}\n", parameter.meaning));
        }
    }
    text.push_str(
        "\n[transductive]: classifies all queries of a task together, so each depends on the others.\nEvaluated only \
         if named with --methods; not available in `trueshot fit`.\n",
    );
    text
}
