//! `trueshot reproduce`: reproduces the tables and figures of the paper (Liang et al., Few-shot Learning with Noisy
//! Labels, CVPR 2022), from the data to a report. Start with [`run`].
//!
//! 1. [`experiments`] reads the tables and figures to reproduce, and the published numbers.
//! 2. [`dataset_files`] finds the images of the data sets.
//! 3. [`planner`] turns tables into [`jobs`] (commands with one result file each), and [`figures`] does so for figures.
//! 4. [`runner`] runs the jobs whose results are not in the cache ([`result_cache`]).
//! 5. [`results`] puts the measured numbers next to the published ones, [`fairness`] adds warnings, and the crate
//!    `trueshot` writes the report.
//!
//! Every step is a command that can be run by hand, so the commands shown next to a table are the commands that were
//! run. Results are named by a hash of everything they depend on ([`jobs`]) and recorded when they are finished
//! ([`result_cache`]); interrupted training is resumed.

mod dataset_files;
mod experiments;
mod fairness;
mod figures;
mod jobs;
mod planner;
mod result_cache;
mod results;
mod runner;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use trueshot::report::counted;
use trueshot::report::reproduction::Reproduction;
use trueshot_cuda::DeviceChoice;
use trueshot_cuda::maml::MamlEvaluation;
use trueshot_nn::conv4::Shape;

use self::dataset_files::{DatasetSplits, OutlierSplits};
use self::experiments::{Experiment, Experiments, PaperResults};
use self::figures::PlannedFigure;
use self::jobs::Jobs;
use self::planner::{DatasetSource, IMAGE_MODEL_EPISODES_ON_CPU, PlannedTable, Planner, ReproduceSettings};
use self::result_cache::{ResultCache, ResultState};
use self::results::EvaluationResult;
use self::runner::JobRunner;
use crate::messages::{hinted, say};
use crate::output::{print_escaped, write_file};

/// Reproduce the tables and figures of the paper
///
/// Trains the required models, evaluates them, and writes report.html, report.md, report.tex and report.json, with every
/// result next to the number of the paper; the commands are in report-commands.md. The data folder contains miniimagenet/,
/// tieredimagenet/, tiered-tiny/ and cifar-fs/, in any form that `trueshot embed` accepts; missing data sets are shown as not
/// measured. Omniglot is built in. Features and models are cached in the output folder and shared by all tables; an
/// interrupted run continues where it stopped.
#[derive(Args)]
#[command(after_help = "Examples:
  trueshot reproduce --list
  trueshot reproduce all --dataset omniglot --scale 0.01 --out omniglot-report
  trueshot reproduce sym_swap_5w5k pair_swap_5w5k outlier_5w5k \\
      --data data --out report --dry-run
  trueshot reproduce all --data data --dataset miniimagenet --out report \\
      --backbone miniimagenet=conv4.safetensors")]
pub struct Arguments {
    /// Tables and figures to reproduce, or `all`
    #[arg(value_name = "TABLE", required_unless_present = "list")]
    names: Vec<String>,
    /// List all tables and figures and exit
    #[arg(long)]
    list: bool,
    /// Run these experiments instead of those of the paper, in the format of crates/cli/experiments/paper.toml
    #[arg(long, value_name = "TOML")]
    experiments: Option<PathBuf>,
    /// Read the data sets from DIR
    #[arg(long, value_name = "DIR")]
    data: Option<PathBuf>,
    /// Write features, models and the report to DIR
    #[arg(long, value_name = "DIR", required_unless_present = "list")]
    out: Option<PathBuf>,
    /// Use these data sets [default: all data sets of each table]
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    dataset: Vec<String>,
    /// Use an existing backbone instead of training one; can be repeated
    #[arg(long, value_name = "DATASET=FILE")]
    backbone: Vec<String>,
    /// Draw outliers from DIR, which has train/ and test/ as `trueshot dataset outliers --imagenet` writes them [default: from
    /// other classes of the same data set: training classes in training, validation classes in test]
    #[arg(long, value_name = "DIR")]
    outliers: Option<PathBuf>,
    /// Multiply the number of training steps by this and, if below 1, of evaluation episodes; every output says so
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// Evaluate on N episodes [default: 10,000 times the scale, at least 200 and at most 10,000; for MAML without a GPU at
    /// most 600]
    #[arg(short, long, value_name = "N")]
    episodes: Option<u64>,
    /// Draw the evaluation episodes with this random seed
    #[arg(short, long, default_value_t = 0)]
    seed: u64,
    /// Print the steps and their estimated duration, and exit
    #[arg(long)]
    dry_run: bool,
    /// Skip a row, such as MAML, whose training takes longest; can be repeated
    #[arg(long, value_name = "ROW")]
    without: Vec<String>,
    /// Run N steps in parallel, each with its share of the threads
    #[arg(short, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u8).range(1..=64))]
    jobs: u8,
    /// Use N threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,
    /// Train, embed and run models that take images on cpu, cuda, cuda:N or auto [default: auto]
    #[arg(long, value_name = "DEVICE")]
    device: Option<DeviceChoice>,
    /// Start no step after this time, and stop training with a checkpoint; the same command continues later (exit status 130)
    #[arg(long, value_name = "MINUTES", value_parser = crate::time_limit::parse_minutes)]
    job_minutes: Option<Duration>,
}

/// Runs `trueshot reproduce`: plans all jobs, runs those without a result, and writes the report.
pub fn run(arguments: &Arguments) -> anyhow::Result<()> {
    let experiments = match &arguments.experiments {
        Some(path) => Experiments::read(path)?,
        None => Experiments::load_paper()?,
    };
    let (Some(out), false) = (&arguments.out, arguments.list) else {
        return print_escaped(&list_text(&experiments));
    };
    let selected = experiments.select(&arguments.names)?;
    let settings = arguments.settings(&experiments)?;
    let sources = arguments.sources(&experiments)?;
    sources.iter().try_for_each(fairness::check_class_overlap)?;
    // Plan every table and figure on each of its data sets. Equal jobs are planned once.
    let mut planner = Planner { jobs: Jobs::default(), settings: &settings };
    let mut planned = PlannedExperiments::default();
    for experiment in selected {
        planned.add(&mut planner, &experiments, &sources, experiment)?;
    }
    let jobs = planner.jobs;
    anyhow::ensure!(
        !planned.tables.is_empty() || !planned.figures.is_empty(),
        hinted("none of these tables is for these data sets", "`trueshot reproduce --list` shows which are")
    );
    // `unfinished` are the jobs to run. `needed` also contains finished jobs, for the list of --dry-run and the times.
    let (wanted, cache) = (planned.wanted(), ResultCache::new(out));
    let unfinished = jobs.unfinished(&wanted, |job| matches!(cache.state(job), ResultState::Done));
    let needed = jobs.with_needs(&wanted);
    if arguments.dry_run {
        return print_escaped(&dry_run_text(&jobs, &needed, &unfinished, &planned));
    }
    let (parallel, threads) = (arguments.jobs.into(), arguments.threads.map(usize::from));
    let deadline = arguments.job_minutes.map(|limit| Instant::now() + limit);
    let device = arguments.device;
    JobRunner { jobs: &jobs, unfinished: &unfinished, cache: &cache, parallel, threads, device, deadline }
        .run()?;
    let reproduction = report(&experiments, &settings, &jobs, &planned, &sources, &cache, out)?;
    for (name, text) in [
        ("report.html", reproduction.html()),
        ("report.md", reproduction.markdown()),
        ("report-commands.md", reproduction.commands()),
        ("report.tex", reproduction.latex()),
        ("report.json", reproduction.json()),
    ] {
        write_file(&out.join(name), &text)?;
    }
    for (name, chart) in reproduction.plots() {
        write_file(&out.join(name), &chart)?;
    }
    let (tables, figures) = (reproduction.tables.len(), reproduction.figures.len());
    let (tables, figures) = (counted(tables, "table", "tables"), counted(figures, "figure", "figures"));
    say!("{}: {tables} and {figures}", out.join("report.html").display());
    for (device, times) in training_times(&jobs, &needed, &cache) {
        say!("training on {device}: {} in {} runs", duration(times.iter().sum()), times.len());
    }
    Ok(())
}

/// The seconds of every finished training run among the jobs `needed`, by device.
fn training_times(jobs: &Jobs, needed: &[usize], cache: &ResultCache) -> BTreeMap<String, Vec<f64>> {
    let mut times: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    let needed = needed.iter().map(|&job| &jobs.all()[job]).filter(|job| job.kind.is_training());
    for record in needed.filter_map(|job| cache.read_record(job)) {
        times.entry(record.device.unwrap_or_else(|| "the CPU".into())).or_default().push(record.seconds);
    }
    times
}

/// The requested tables and figures, each on one dataset. A figure of curves is in `tables`, because it shows rows of
/// tables; a figure of images is in `figures`.
#[derive(Default)]
struct PlannedExperiments<'a> {
    tables: Vec<PlannedTable<'a>>,
    figures: Vec<PlannedFigure<'a>>,
}

impl<'a> PlannedExperiments<'a> {
    /// Plans an experiment on all of its datasets that are among the sources.
    fn add(
        &mut self,
        planner: &mut Planner<'a>,
        experiments: &'a Experiments,
        sources: &[DatasetSource<'a>],
        experiment: Experiment<'a>,
    ) -> anyhow::Result<()> {
        let datasets = match experiment {
            Experiment::Table(table) => &table.datasets,
            Experiment::Figure(figure) => &figure.datasets,
        };
        for source in sources.iter().filter(|source| datasets.iter().any(|name| name == source.name)) {
            match experiment {
                Experiment::Table(table) => self.tables.push(planner.plan(table, source)),
                Experiment::Figure(figure) => {
                    let tables = figure.tables(experiments)?;
                    self.tables.extend(planner.curves(figure, &tables, source));
                    self.figures.extend(planner.figure(figure, experiments, source)?);
                }
            }
        }
        Ok(())
    }

    /// The jobs whose results the report shows.
    fn wanted(&self) -> Vec<usize> {
        let evaluations = self.tables.iter().flat_map(|planned| &planned.evaluations);
        let images = self.figures.iter().flat_map(PlannedFigure::jobs);
        evaluations.map(|evaluation| evaluation.job).chain(images).collect()
    }
}

impl Arguments {
    /// The settings of the experiments. Checks all options except those that say where the images are.
    fn settings(&self, experiments: &Experiments) -> anyhow::Result<ReproduceSettings> {
        let is_allowed = self.scale > 0.0 && self.scale <= 100.0;
        anyhow::ensure!(is_allowed, "--scale is {}; allowed: above 0, up to 100", self.scale);
        let default_episodes = (10_000.0 * self.scale).round().clamp(200.0, 10_000.0) as u64;
        let episodes = self.episodes.unwrap_or(default_episodes);
        anyhow::ensure!(episodes > 0, "--episodes is 0; allowed: 1 or more");
        let mut backbones = BTreeMap::new();
        for given in &self.backbone {
            let (dataset, path) = given.split_once('=').ok_or_else(|| {
                let hint = "write DATASET=FILE, such as miniimagenet=conv4.safetensors";
                hinted(format!("'{given}' does not name a backbone"), hint)
            })?;
            check_dataset_name(experiments, dataset)?;
            let fingerprint = result_cache::sha256(Path::new(path));
            let fingerprint = fingerprint.with_context(|| format!("cannot read the backbone {path}"))?;
            backbones.insert(dataset.to_string(), (std::path::absolute(path)?, fingerprint));
        }
        self.without.iter().try_for_each(|row| experiments.check_row_name(row))?;
        let without = self.without.clone();
        let image_model_episodes = match self.episodes.is_some() || self.has_gpu_for_image_models() {
            true => episodes,
            false => episodes.min(IMAGE_MODEL_EPISODES_ON_CPU),
        };
        let (scale, seed, outliers) = (self.scale, self.seed, self.outliers.clone());
        Ok(ReproduceSettings { scale, episodes, image_model_episodes, seed, backbones, outliers, without })
    }

    /// Whether jobs use a GPU that can evaluate models that take images, even of the largest size in the paper (84 px).
    fn has_gpu_for_image_models(&self) -> bool {
        let device = self.device.unwrap_or(DeviceChoice::Auto);
        let device = device.open().ok().and_then(|(device, _)| device);
        let shape = Shape { size: 84, channels: 3 };
        device.is_some_and(|device| MamlEvaluation::check(&device, shape).is_ok())
    }

    /// The data sets of `--dataset` (by default all), each with its splits or the reason why it is not available.
    fn sources<'a>(&self, experiments: &'a Experiments) -> anyhow::Result<Vec<DatasetSource<'a>>> {
        self.dataset.iter().try_for_each(|name| check_dataset_name(experiments, name))?;
        let data = self.data.as_ref().map(std::path::absolute).transpose()?;
        if let Some(data) = &data {
            anyhow::ensure!(data.is_dir(), "the folder {} does not exist", data.display());
        }
        let outliers = self.outliers.as_deref().map(OutlierSplits::open).transpose()?;
        let chosen = experiments
            .dataset
            .iter()
            .filter(|(name, _)| self.dataset.is_empty() || self.dataset.contains(name));
        Ok(chosen
            .map(|(name, dataset)| DatasetSource {
                name,
                dataset,
                splits: DatasetSplits::find(name, dataset, data.as_deref()),
                outliers: outliers.clone(),
            })
            .collect())
    }
}

fn check_dataset_name(experiments: &Experiments, dataset: &str) -> anyhow::Result<()> {
    let names = || experiments.dataset.keys().cloned().collect::<Vec<_>>().join(", ");
    anyhow::ensure!(
        experiments.dataset.contains_key(dataset),
        hinted(format!("unknown data set '{dataset}'"), format!("known: {}", names()))
    );
    Ok(())
}

/// The output of `--list`.
fn list_text(experiments: &Experiments) -> String {
    let mut text = String::new();
    for table in experiments.tables() {
        let what = if table.figure { " (a figure)" } else { "" };
        text.push_str(&format!("{:<24}{}{what}\n", table.name, table.title));
        text.push_str(&format!("{:<24}{} rows on {}\n", "", table.rows.len(), table.datasets.join(", ")));
    }
    for figure in experiments.figures() {
        text.push_str(&format!("{:<24}{} (a figure)\n", figure.name, figure.title));
        text.push_str(&format!("{:<24}on {}\n", "", figure.datasets.join(", ")));
    }
    text
}

/// The output of `--dry-run`: one entry per job of `needed`, then the rows and images that will be missing.
/// `unfinished` are the jobs of `needed` that would be run, in ascending order.
fn dry_run_text(
    jobs: &Jobs,
    needed: &[usize],
    unfinished: &[usize],
    planned: &PlannedExperiments<'_>,
) -> String {
    let mut text = String::new();
    let mut total = 0.0;
    for &index in needed {
        let job = &jobs.all()[index];
        let done = unfinished.binary_search(&index).is_err();
        let time = if done { "done".into() } else { duration(job.estimate) };
        total += if done { 0.0 } else { job.estimate };
        text.push_str(&format!("{time:>10}  {}\n            {}\n", job.label, jobs.command(job)));
    }
    for table in &planned.tables {
        let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
        table.missing.values().for_each(|reason| *reasons.entry(reason).or_default() += 1);
        for (reason, rows) in reasons {
            let name = table.curve.map_or(&table.table.name, |figure| &figure.name);
            let dataset = &table.dataset.title;
            text.push_str(&format!(
                "{:>10}  {name}, {dataset}: {rows} rows will not be measured: {reason}\n",
                "-"
            ));
        }
    }
    for figure in &planned.figures {
        let (name, dataset) = (&figure.figure.name, &figure.dataset.title);
        for reason in figure.missing() {
            text.push_str(&format!(
                "{:>10}  {name}, {dataset}: one image will not be drawn: {reason}\n",
                "-"
            ));
        }
    }
    text + &format!("{} steps, about {} on two cores\n", unfinished.len(), duration(total))
}

/// A rounded duration: "40 s", "12 min", "3.5 h".
fn duration(seconds: f64) -> String {
    match seconds {
        ..90.0 => format!("{:.0} s", seconds.max(1.0)),
        ..5400.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

/// Makes the report: the tables with measured and published numbers, the figures, and the facts about this run that its
/// results depend on. Reads result files of jobs from the output folder `out`.
fn report(
    experiments: &Experiments,
    settings: &ReproduceSettings,
    jobs: &Jobs,
    planned: &PlannedExperiments<'_>,
    sources: &[DatasetSource<'_>],
    cache: &ResultCache,
    out: &Path,
) -> anyhow::Result<Reproduction> {
    let paper = PaperResults::new()?;
    let mut tables = Vec::new();
    for table in &planned.tables {
        let read = |job: usize| EvaluationResult::read(&cache.path(&jobs.all()[job]));
        let evaluated: Vec<EvaluationResult> =
            table.evaluations.iter().map(|evaluation| read(evaluation.job)).collect::<anyhow::Result<_>>()?;
        let mut measured = results::table(table, &evaluated, &paper, jobs, out);
        measured.notes.splice(0..0, fairness::table_warnings(table, settings, jobs, cache)?);
        tables.push(measured);
    }
    let mut facts = vec![
        ("program".to_string(), format!("trueshot {}", env!("CARGO_PKG_VERSION"))),
        ("instructions".into(), trueshot_nn::Isa::current().name().into()),
        ("scale".into(), settings.scale.to_string()),
        ("episodes".into(), settings.episodes.to_string()),
        ("seed".into(), settings.seed.to_string()),
    ];
    for source in sources {
        let fingerprints = source.splits.as_ref().map(|splits| {
            let fingerprints = [&splits.train, &splits.val, &splits.test]
                .map(|split| split.fingerprint().chars().take(16).collect::<String>());
            format!("train, val, test {}", fingerprints.join(", "))
        });
        facts.push((
            experiments.dataset[source.name].title.clone(),
            fingerprints.unwrap_or_else(|reason| format!("not measured: {reason}")),
        ));
    }
    facts.push((
        "paper".into(),
        "Liang, Rangrej, Petrovic, Hassner: Few-shot Learning with Noisy Labels, CVPR 2022".into(),
    ));
    Ok(Reproduction {
        title: "Few-shot learning with noisy labels, reproduced".into(),
        facts,
        warnings: fairness::general_warnings(settings),
        plotted_rows: experiments.plot.clone(),
        tables,
        figures: planned
            .figures
            .iter()
            .map(|figure| figure.drawn(jobs, out))
            .collect::<anyhow::Result<_>>()?,
    })
}
