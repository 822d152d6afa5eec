//! Plans the jobs that measure a table or draw a figure of the paper. Start with [`Planner::plan`].
//!
//! A job is one command of this program with one result file ([`Jobs`]); `runner` runs the jobs later. The jobs of a
//! table are, in this order:
//!
//! 1. `train backbone`: train the network that turns an image into a feature vector.
//! 2. `embed`: compute the features of all images of a split (train, val, test) with it.
//! 3. `train tranfs` or `train relabel`: train a head, a small network on features that corrects wrong labels.
//! 4. `eval`: evaluate methods on noisy episodes of the test split.
//!
//! A row of a table is a method together with what must be trained for it ([`PaperRow`]). Rows with the same input and
//! the same noise share one evaluation. The input is features or, for methods such as MAML, images; then steps 2 and 3
//! are replaced by the training of a model on images.
//!
//! Every job has an estimate of its duration in seconds on two cores. Estimates are only shown to the user, so the
//! constants for them are rough.

use std::collections::BTreeMap;
use std::path::PathBuf;

use trueshot::method::{RelabelOptions, TranfsOptions};
use trueshot::noise::{NoiseKind, NoiseLevels};
use trueshot::training::heads::configuration::Configuration;
use trueshot_vision::training::BackboneConfiguration;
use trueshot_vision::training::joint::JointConfiguration;
use trueshot_vision::training::maml::MamlConfiguration;
use trueshot_vision::training::negmargin::NegMarginConfiguration;

use super::dataset_files::{DatasetSplits, OutlierSplits, SplitImages};
use super::experiments::{Figure, PaperDataset, PaperRow, PaperTable};
use super::jobs::{Argument, JobKind, Jobs, plain_arguments};

/// Settings that apply to all experiments of a run.
#[derive(Debug, Clone)]
pub struct ReproduceSettings {
    /// Factor for the number of training steps (`--scale`).
    pub scale: f64,
    /// Episodes per evaluation on features.
    pub episodes: u64,
    /// Episodes per evaluation of a model that takes images.
    pub image_model_episodes: u64,
    /// Seed of the evaluation episodes.
    pub seed: u64,
    /// Path and SHA-256 of the backbones given with `--backbone`, by the name of the dataset.
    pub backbones: BTreeMap<String, (PathBuf, String)>,
    /// The folder of outliers given with `--outliers`.
    pub outliers: Option<PathBuf>,
    /// Names of the rows to skip (`--without`).
    pub without: Vec<String>,
}

/// A table on one dataset, with the jobs that measure it. Rows are identified by their index in `table.rows`.
pub struct PlannedTable<'a> {
    pub table: &'a PaperTable,
    pub dataset_name: &'a str,
    pub dataset: &'a PaperDataset,
    pub evaluations: Vec<EvaluationJob>,
    /// The reason for each row that is not measured, by the index of the row.
    pub missing: BTreeMap<usize, String>,
    /// The features of the dataset's backbone; `None` if no row is evaluated on them.
    pub features: Option<FeatureJobs>,
    /// The figure that draws rows of this table as curves; `None` if the table itself was requested.
    pub curve: Option<&'a Figure>,
}

impl<'a> PlannedTable<'a> {
    /// The rows to show, with their indices: all rows, or those that the figure draws.
    pub fn rows(&self) -> impl Iterator<Item = (usize, &'a PaperRow)> {
        let drawn = self.curve.and_then(Figure::rows);
        let is_shown = move |row: &PaperRow| drawn.is_none_or(|drawn| drawn.contains(&row.row));
        self.table.rows.iter().enumerate().filter(move |(_, row)| is_shown(row))
    }
}

/// One evaluation job, which evaluates the methods of several rows on the same episodes.
pub struct EvaluationJob {
    /// The index of the job in [`Jobs`].
    pub job: usize,
    /// Indices of the evaluated rows in the table.
    pub rows: Vec<usize>,
    pub noise: NoiseLevels,
}

/// The jobs that embed the splits of a dataset with one backbone, as indices in [`Jobs`].
#[derive(Debug, Clone)]
pub struct FeatureJobs {
    pub train: usize,
    pub val: usize,
    pub test: usize,
    pub outliers: OutlierJobs,
}

/// The jobs that embed the outliers for training, validation and test, as indices in [`Jobs`].
#[derive(Debug, Clone, Copy)]
pub struct OutlierJobs {
    /// `None` if outliers are training items of classes that are not in the episode.
    pub train: Option<usize>,
    pub val: usize,
    pub test: usize,
}

/// What a row is evaluated on.
#[derive(Clone, Copy, PartialEq)]
enum RowInput<'a> {
    /// Features of a backbone.
    Features(RowBackbone<'a>),
    /// Images, with a model trained with these arguments of `trueshot train` ([`PaperRow::image_model`]).
    Images(&'a str),
}

impl<'a> RowInput<'a> {
    fn new(row: &'a PaperRow) -> Self {
        match &row.image_model {
            Some(model) => RowInput::Images(model),
            None if row.joint.is_some() => RowInput::Features(RowBackbone::Joint(row)),
            None => {
                RowInput::Features(row.backbone.as_deref().map_or(RowBackbone::Dataset, RowBackbone::Own))
            }
        }
    }
}

/// The backbone whose features a row is evaluated on.
#[derive(Clone, Copy, PartialEq)]
pub enum RowBackbone<'a> {
    /// The backbone of the dataset.
    Dataset,
    /// A backbone that is trained for the row with these arguments.
    Own(&'a str),
    /// The backbone of the dataset, trained further together with the head of the row.
    Joint(&'a PaperRow),
}

/// Rows of a table that share one evaluation.
struct EvaluationGroup<'a> {
    input: RowInput<'a>,
    noise: &'a NoiseLevels,
    /// Indices of the rows, at least one.
    rows: Vec<usize>,
}

/// Maximum number of evaluation episodes on the CPU for models that take images. They adapt to the images of every
/// episode, which takes as long as hundreds of episodes on features. On a GPU there is no maximum.
pub const IMAGE_MODEL_EPISODES_ON_CPU: u64 = 600;

/// The label of a row's method in the evaluation: r0, r1, ..
pub fn row_label(row: usize) -> String {
    format!("r{row}")
}

/// A dataset with its splits, or the reason why it is not available, and the outliers to use with it.
pub struct DatasetSource<'a> {
    pub name: &'a str,
    pub dataset: &'a PaperDataset,
    pub splits: Result<DatasetSplits, String>,
    /// The outliers given with `--outliers`. Without any, outliers are other classes of the dataset: in training and
    /// validation training classes, in test validation classes. Not used for Omniglot, which has images of another
    /// kind.
    pub outliers: Option<OutlierSplits>,
}

impl<'a> DatasetSource<'a> {
    /// The outliers given with `--outliers`, if they are used for this dataset.
    pub fn separate_outliers(&self) -> Option<&OutlierSplits> {
        self.outliers.as_ref().filter(|_| !self.dataset.built_in)
    }

    /// The images that are outliers in test episodes.
    pub fn test_outliers<'b>(&'b self, splits: &'b DatasetSplits) -> &'b SplitImages {
        self.separate_outliers().map_or(&splits.val, |outliers| &outliers.test)
    }

    /// The arguments that name the outliers for training on images; empty if they are training classes.
    fn outlier_arguments(&self) -> Vec<Argument> {
        let Some(outliers) = self.separate_outliers() else { return Vec::new() };
        let val = outliers.val.as_ref().unwrap_or(&outliers.train);
        vec![
            Argument::text("--outliers"),
            outliers.train.path(),
            Argument::text("--val-outliers"),
            val.path(),
        ]
    }
}

/// Adds the jobs of tables and figures to one list of jobs, so that they share results.
pub struct Planner<'a> {
    pub jobs: Jobs,
    pub settings: &'a ReproduceSettings,
}

impl<'a> Planner<'a> {
    /// Adds all jobs of a table on one dataset.
    pub fn plan(&mut self, table: &'a PaperTable, source: &DatasetSource<'a>) -> PlannedTable<'a> {
        let mut planned = PlannedTable {
            table,
            dataset_name: source.name,
            dataset: source.dataset,
            evaluations: vec![],
            missing: self.missing_rows(table, source),
            features: None,
            curve: None,
        };
        let Ok(splits) = &source.splits else { return planned };
        for group in evaluation_groups(table, &planned.missing) {
            let job = match group.input {
                RowInput::Images(model) => self.evaluate_on_images(table, source, splits, model, &group),
                RowInput::Features(backbone) => {
                    let features = self.features(source, splits, backbone);
                    let job = self.evaluate_on_features(table, source, splits, &features, &group);
                    if backbone == RowBackbone::Dataset {
                        planned.features = Some(features);
                    }
                    job
                }
            };
            let EvaluationGroup { noise, rows, .. } = group;
            planned.evaluations.push(EvaluationJob { job, rows, noise: noise.clone() });
        }
        planned
    }

    /// The rows that cannot be measured or are skipped, by index, with the reason; of several reasons, the most
    /// general.
    fn missing_rows(&self, table: &PaperTable, source: &DatasetSource<'_>) -> BTreeMap<usize, String> {
        let too_small = source.splits.as_ref().ok().and_then(|_| source.dataset.too_small_for(table.shots));
        let reason = |row: &PaperRow| {
            let unavailable = source.splits.as_ref().err().cloned();
            let skipped = self.settings.without.contains(&row.row);
            let skipped = skipped.then(|| "skipped (--without)".to_string());
            too_small.clone().or(unavailable).or(row.missing.clone()).or(skipped)
        };
        table.rows.iter().enumerate().filter_map(|(index, row)| Some((index, reason(row)?))).collect()
    }

    /// Adds the jobs that embed the dataset and its outliers with the backbone of a row.
    pub fn features(
        &mut self,
        source: &DatasetSource<'_>,
        splits: &DatasetSplits,
        row_backbone: RowBackbone<'_>,
    ) -> FeatureJobs {
        let backbone = self.backbone(source, splits, row_backbone);
        let copies = source.dataset.copies;
        let mut embed = |what: &str, images: &SplitImages, copies: u32| {
            let mut args = vec![Argument::text("embed")];
            args.extend(images.arguments());
            args.extend([Argument::text("--backbone"), backbone.clone()]);
            if copies > 1 {
                args.extend(plain_arguments(&format!("--augment --copies {copies}")));
            }
            args.extend(plain_arguments("--precision f16"));
            let label = format!("{}: features of {what}", source.dataset.title);
            // 0.6 ms per image.
            let estimate = 0.0006 * f64::from(copies) * images.count() as f64;
            self.jobs.add(JobKind::Features, label, estimate, args)
        };
        let train = embed("the training classes", &splits.train, copies);
        let val = embed("the validation classes", &splits.val, 1);
        let test = embed("the test classes", &splits.test, 1);
        let outliers = match source.separate_outliers() {
            None => {
                // Validation items are not augmented, so their outliers must not be either.
                let plain = if copies > 1 { embed("the training classes", &splits.train, 1) } else { train };
                OutlierJobs { train: None, val: plain, test: val }
            }
            Some(outliers) => {
                let train = embed("outliers to train on", &outliers.train, copies);
                let val = match &outliers.val {
                    Some(val) => embed("outliers to validate on", val, 1),
                    None if copies > 1 => embed("outliers to train on", &outliers.train, 1),
                    None => train,
                };
                let test = embed("outliers to test on", &outliers.test, 1);
                OutlierJobs { train: Some(train), val, test }
            }
        };
        FeatureJobs { train, val, test, outliers }
    }

    /// The file of a backbone: the one given with `--backbone`, or the result of a training job.
    fn backbone(
        &mut self,
        source: &DatasetSource<'_>,
        splits: &DatasetSplits,
        row_backbone: RowBackbone<'_>,
    ) -> Argument {
        let (name, arguments) = match row_backbone {
            RowBackbone::Joint(row) => return Argument::result(self.joint_model(source, splits, row)),
            RowBackbone::Own(arguments) => ("a backbone of its own", arguments),
            RowBackbone::Dataset => match self.settings.backbones.get(source.name) {
                Some((path, fingerprint)) => return Argument::external(path, fingerprint),
                None => ("the backbone", "backbone"),
            },
        };
        let (trainer, row_flags) = split_trainer(arguments);
        // The flags of the dataset are options of `train backbone` only.
        let flags = match trainer {
            "backbone" => format!("{} {row_flags}", source.dataset.backbone),
            _ => row_flags.to_string(),
        };
        Argument::result(self.train_on_images(
            JobKind::Backbone,
            name,
            source,
            splits,
            trainer,
            &flags,
            vec![],
        ))
    }

    /// Adds the jobs that train the head of a row on the features of the dataset's backbone, and then both together.
    /// Returns the last one, whose result file contains the backbone and the head.
    fn joint_model(&mut self, source: &DatasetSource<'_>, splits: &DatasetSplits, row: &PaperRow) -> usize {
        let features = self.features(source, splits, RowBackbone::Dataset);
        let backbone = self.backbone(source, splits, RowBackbone::Dataset);
        let mut inputs = vec![Argument::text("--backbone"), backbone];
        if let Some(head) = self.head(source, &features, row) {
            inputs.extend([Argument::text("--head"), Argument::result(head)]);
        }
        let flags = replace_shots(row.joint.as_deref().unwrap_or_default(), source.dataset);
        self.train_on_images(JobKind::ImageModel, &row.row, source, splits, "joint", &flags, inputs)
    }

    /// Adds the job `trueshot train TRAINER` on the images of a dataset. `name` says in the label of the job what is
    /// trained, `flags` are options as text, and `inputs` are arguments that name other files.
    #[allow(clippy::too_many_arguments, reason = "the parts of one command line")]
    fn train_on_images(
        &mut self,
        kind: JobKind,
        name: &str,
        source: &DatasetSource<'_>,
        splits: &DatasetSplits,
        trainer: &str,
        flags: &str,
        inputs: Vec<Argument>,
    ) -> usize {
        let dataset = source.dataset;
        let mut args = vec![Argument::text("train"), Argument::text(trainer), splits.train.path()];
        args.extend(splits.train.split_file_arguments());
        if !splits.val.is_shared() {
            args.extend([Argument::text("--val"), splits.val.path()]);
        }
        if flags.contains("outlier=") {
            args.extend(source.outlier_arguments());
        }
        args.extend(inputs);
        args.extend(plain_arguments(&dataset.image_flags));
        let (flags, steps) = self.scale_flags(flags, default_steps(trainer));
        args.extend(plain_arguments(&flags));
        // For images of 28 px (Omniglot), 32 px, and 64 or 84 px.
        let seconds_per_backbone_step = if dataset.built_in {
            0.013
        } else if dataset.image_flags.contains("--size 32") {
            0.03
        } else {
            0.17
        };
        // The time of a step of each trainer, in steps of a backbone: MAML passes over four tasks about ten times, a
        // joint step has five times as many images, and NegMargin has 128 images instead of 100.
        let factor = match trainer {
            "maml" => 12.0,
            "joint" => 6.0,
            "negmargin" => 1.3,
            _ => 1.0,
        };
        let seconds_per_step = seconds_per_backbone_step * factor;
        let label = format!("{}: {name} ({})", dataset.title, flags.trim());
        self.jobs.add(kind, label, seconds_per_step * steps as f64, args)
    }

    /// Adds the jobs that train a model on images and evaluate rows with it.
    fn evaluate_on_images(
        &mut self,
        table: &PaperTable,
        source: &DatasetSource<'_>,
        splits: &DatasetSplits,
        model: &str,
        group: &EvaluationGroup<'_>,
    ) -> usize {
        let EvaluationGroup { noise, rows, .. } = group;
        let dataset = source.dataset;
        let queries = dataset.queries;
        let names = rows.iter().map(|&row| table.rows[row].row.as_str()).collect::<Vec<_>>().join(", ");
        let (trainer, flags) = split_trainer(model);
        let flags =
            format!("{flags} --queries {queries} --val-queries {queries} --val-shots {}", table.shots);
        let trained =
            self.train_on_images(JobKind::ImageModel, &names, source, splits, trainer, &flags, vec![]);
        let mut args = vec![Argument::text("eval"), Argument::text("--pictures")];
        args.extend(splits.test.arguments());
        args.extend([Argument::text("--methods"), methods_argument(table, rows, |_| Some(trained))]);
        let episodes = self.settings.image_model_episodes;
        args.extend(self.episode_arguments(table, source, noise, episodes));
        if has_outliers(noise) {
            args.extend(source.test_outliers(splits).outlier_arguments());
        }
        // Seconds per episode. By default, more episodes than the maximum on the CPU are evaluated only on a GPU, which
        // is about a hundred times as fast.
        let seconds = if episodes > IMAGE_MODEL_EPISODES_ON_CPU { 0.001 } else { 0.1 };
        let estimate = seconds * episodes as f64 * noise.0.len() as f64 * rows.len() as f64;
        let label = format!("{}: {}, {names}", dataset.title, table.name);
        self.jobs.add(JobKind::Evaluation, label, estimate, args)
    }

    /// Adds the job that trains the head of a row, and before it the job for the head that its training starts from, if
    /// the row names one (`PaperRow::from`). `None` if the row has no head.
    pub fn head(
        &mut self,
        source: &DatasetSource<'_>,
        features: &FeatureJobs,
        row: &PaperRow,
    ) -> Option<usize> {
        let flags = row.head.as_deref()?;
        let start = row.from.as_deref().map(|flags| self.head_with(source, features, row, flags, None));
        Some(self.head_with(source, features, row, flags, start))
    }

    /// Adds the job that trains a head with these flags. `start` is the head that the training starts from.
    fn head_with(
        &mut self,
        source: &DatasetSource<'_>,
        features: &FeatureJobs,
        row: &PaperRow,
        flags: &str,
        start: Option<usize>,
    ) -> usize {
        let flags = replace_shots(flags, source.dataset);
        let (trainer, flags) = split_trainer(&flags);
        let (flags, steps) = self.scale_flags(flags, default_steps(trainer));
        let mut args =
            vec![Argument::text("train"), Argument::text(trainer), Argument::result(features.train)];
        args.extend(start.into_iter().flat_map(|start| [Argument::text("--from"), Argument::result(start)]));
        args.extend([Argument::text("--val"), Argument::result(features.val)]);
        if flags.contains("outlier=") {
            let train = features.outliers.train.map(Argument::result);
            args.extend(train.into_iter().flat_map(|train| [Argument::text("--outliers"), train]));
            args.extend([Argument::text("--val-outliers"), Argument::result(features.outliers.val)]);
        }
        args.extend(plain_arguments(&flags));
        if !flags.contains("--queries") {
            args.extend(plain_arguments(&format!("--queries {}", source.dataset.queries)));
        }
        args.extend(plain_arguments(&format!("--val-queries {}", source.dataset.queries)));
        // A step of Relabel takes 55 ms, one of TraNFS 18 ms.
        let seconds_per_step = if trainer == "relabel" { 0.055 } else { 0.018 };
        let label = format!("{}: {} ({flags})", source.dataset.title, row.row);
        self.jobs.add(JobKind::Head, label, seconds_per_step * steps as f64, args)
    }

    /// Adds the jobs that train the heads of rows and evaluate the rows on features.
    fn evaluate_on_features(
        &mut self,
        table: &PaperTable,
        source: &DatasetSource<'_>,
        splits: &DatasetSplits,
        features: &FeatureJobs,
        group: &EvaluationGroup<'_>,
    ) -> usize {
        let EvaluationGroup { noise, rows, .. } = group;
        let methods = methods_argument(table, rows, |row| match row.joint.is_some() {
            true => Some(self.joint_model(source, splits, row)),
            false => self.head(source, features, row),
        });
        let mut args = vec![
            Argument::text("eval"),
            Argument::result(features.test),
            Argument::text("--methods"),
            methods,
        ];
        let episodes = self.settings.episodes;
        args.extend(self.episode_arguments(table, source, noise, episodes));
        let method = |row: usize| table.rows[row].method.as_deref().unwrap_or_default();
        if let Some(&baseline) = rows.iter().find(|&&row| method(row) == "protonet") {
            args.extend(plain_arguments(&format!("--baseline {}", row_label(baseline))));
        }
        if has_outliers(noise) {
            args.extend([Argument::text("--outliers"), Argument::result(features.outliers.test)]);
        }
        let seconds: f64 = rows.iter().map(|&row| seconds_per_episode(method(row))).sum();
        let estimate = seconds * episodes as f64 * noise.0.len() as f64;
        let label = format!("{}: {}", source.dataset.title, table.name);
        self.jobs.add(JobKind::Evaluation, label, estimate, args)
    }

    /// The arguments of `trueshot eval` that describe the episodes and the output.
    fn episode_arguments(
        &self,
        table: &PaperTable,
        source: &DatasetSource<'_>,
        noise: &NoiseLevels,
        episodes: u64,
    ) -> Vec<Argument> {
        let (shots, queries, seed) = (table.shots, source.dataset.queries, self.settings.seed);
        let episodes = format!("--shots {shots} --queries {queries} --noise {noise} --episodes {episodes}");
        plain_arguments(&format!("{episodes} --seed {seed} --format json")).collect()
    }

    /// Applies `--scale` to the flags of a training command. Multiplies the steps (`default_steps` if the flags do not
    /// set them) and the validation interval (by default 1000 steps) by the scale, and the validation episodes (by
    /// default 300) by the scale if it is below 1. Returns the new flags and the number of steps.
    fn scale_flags(&self, flags: &str, default_steps: u64) -> (String, u64) {
        let args: Vec<&str> = flags.split_whitespace().collect();
        let value = |flag: &str| -> Option<u64> {
            let index = args.iter().position(|arg| *arg == flag)?;
            args.get(index + 1)?.parse().ok()
        };
        let scale = self.settings.scale;
        let scaled = |count: u64| (count as f64 * scale).round() as u64;
        // With the minima, even a very small scale gives a run that trains and validates.
        let steps = scaled(value("--steps").unwrap_or(default_steps)).max(10);
        let val_every = scaled(value("--val-every").unwrap_or(1000)).max(50).min(steps);
        let val_episodes = value("--val-episodes").unwrap_or(300);
        let val_episodes = ((val_episodes as f64 * scale.min(1.0)).round() as u64).max(40);
        // Remove the old flags with their values, and append the new ones.
        let mut other_args = Vec::new();
        let mut remaining = args.iter();
        while let Some(arg) = remaining.next() {
            if ["--steps", "--val-every", "--val-episodes"].contains(arg) {
                remaining.next();
            } else {
                other_args.push(*arg);
            }
        }
        let flags = format!(
            "{} --steps {steps} --val-every {val_every} --val-episodes {val_episodes}",
            other_args.join(" ")
        );
        (flags, steps)
    }
}

/// The noise that a row is evaluated with: its own, or that of the table.
fn row_noise<'a>(table: &'a PaperTable, row: &'a PaperRow) -> Option<&'a NoiseLevels> {
    row.noise.as_ref().or(table.noise.as_ref())
}

/// Groups the rows that are not missing by input and noise, in the order of the table. Rows without noise levels of
/// their own in a table without noise levels are left out.
fn evaluation_groups<'a>(
    table: &'a PaperTable,
    missing: &BTreeMap<usize, String>,
) -> Vec<EvaluationGroup<'a>> {
    let mut groups: Vec<EvaluationGroup<'a>> = Vec::new();
    for (index, row) in table.rows.iter().enumerate().filter(|(index, _)| !missing.contains_key(index)) {
        let Some(noise) = row_noise(table, row) else { continue };
        let input = RowInput::new(row);
        match groups.iter_mut().find(|group| group.input == input && group.noise == noise) {
            Some(group) => group.rows.push(index),
            None => groups.push(EvaluationGroup { input, noise, rows: vec![index] }),
        }
    }
    groups
}

/// The value of `--methods`, such as `protonet:as=r1,tranfs:model=FILE:as=r4`: the methods of the rows with their
/// labels ([`row_label`]). FILE, `{head}` in the experiments, is the result of the job that `head` returns for the row.
fn methods_argument(
    table: &PaperTable,
    rows: &[usize],
    mut head: impl FnMut(&PaperRow) -> Option<usize>,
) -> Argument {
    let mut methods = Argument::default();
    for (position, &index) in rows.iter().enumerate() {
        let row = &table.rows[index];
        let method = row.method.as_deref().unwrap_or_default();
        let (before, after) = method.split_once("{head}").unwrap_or((method, ""));
        let comma = if position == 0 { "" } else { "," };
        methods = methods.concat(Argument::text(format!("{comma}{before}")));
        if let Some(head) = head(row) {
            methods = methods.concat(Argument::result(head));
        }
        methods = methods.concat(Argument::text(format!("{after}:as={}", row_label(index))));
    }
    methods
}

/// Replaces `{several_shots}` and `{joint_shots}` in flags by the lists of shots of the dataset.
fn replace_shots(flags: &str, dataset: &PaperDataset) -> String {
    flags.replace("{several_shots}", dataset.several_shots()).replace("{joint_shots}", dataset.joint_shots())
}

/// Splits arguments of `trueshot train`, such as `negmargin --steps 30000`, into the trainer and its flags.
fn split_trainer(arguments: &str) -> (&str, &str) {
    arguments.split_once(' ').unwrap_or((arguments, ""))
}

/// The number of steps that `trueshot train TRAINER` takes if its flags do not set one.
fn default_steps(trainer: &str) -> u64 {
    match trainer {
        "tranfs" => Configuration::<TranfsOptions>::tranfs().steps,
        "relabel" => Configuration::<RelabelOptions>::relabel().steps,
        "joint" => JointConfiguration::photographs().steps,
        "maml" => MamlConfiguration::photographs().steps,
        "negmargin" => NegMarginConfiguration::photographs().steps,
        _ => BackboneConfiguration::photographs().steps,
    }
}

/// Whether one of the noise types is outlier noise.
pub fn has_outliers(noise: &NoiseLevels) -> bool {
    noise.0.iter().any(|noise| noise.kind == NoiseKind::Outlier)
}

/// The estimated duration in seconds of one episode with a method, on two cores.
fn seconds_per_episode(method: &str) -> f64 {
    let name = method.split(':').next().unwrap_or(method);
    match name {
        "linear" => 0.0012,
        "baseline++" => 0.0015,
        "tranfs" | "relabel" => 0.0004,
        _ => 0.00005,
    }
}

#[cfg(test)]
mod tests {
    use super::super::experiments::Experiments;
    use super::*;

    fn settings(scale: f64) -> ReproduceSettings {
        ReproduceSettings {
            scale,
            episodes: 200,
            image_model_episodes: 200,
            seed: 0,
            backbones: BTreeMap::new(),
            outliers: None,
            without: vec![],
        }
    }

    fn planner(settings: &ReproduceSettings) -> Planner<'_> {
        Planner { jobs: Jobs::default(), settings }
    }

    fn omniglot(experiments: &Experiments) -> DatasetSource<'_> {
        let dataset = &experiments.dataset["omniglot"];
        DatasetSource {
            name: "omniglot",
            dataset,
            splits: DatasetSplits::find("omniglot", dataset, None),
            outliers: None,
        }
    }

    fn commands(planner: &Planner<'_>, kind: JobKind) -> Vec<String> {
        let jobs = planner.jobs.all().iter().filter(|job| job.kind == kind);
        jobs.map(|job| planner.jobs.command(job)).collect()
    }

    #[test]
    fn tables_share_backbones_image_models_and_heads() {
        let experiments = Experiments::load_paper().unwrap();
        let settings = settings(0.01);
        let mut planner = planner(&settings);
        let source = omniglot(&experiments);
        for table in
            experiments.tables().iter().filter(|table| table.datasets.contains(&"omniglot".to_string()))
        {
            planner.plan(table, &source);
        }
        let count = |kind| commands(&planner, kind).len();
        assert_eq!(count(JobKind::Backbone), 8, "the dataset's, six trained with noise, and NegMargin's");
        let joint = commands(&planner, JobKind::ImageModel);
        let (joint, maml): (Vec<_>, Vec<_>) =
            joint.iter().partition(|command| command.contains("train joint"));
        assert_eq!(maml.len(), 2, "MAML for five shots and for three");
        assert_eq!(joint.len(), 2, "one TraNFS and one Relabel for all types of noise");
        let flags = "--layers 3 --clean-weight 5 --shots 5 --noise symmetric=20,40 ";
        let heads = commands(&planner, JobKind::Head);
        let is_shared = |command: &&String| command.contains(flags) && !command.contains("--per-step 1 ");
        let shared = heads.iter().filter(is_shared).count();
        assert_eq!(shared, 1, "the main tables and four ablations share this TraNFS");
    }

    #[test]
    fn a_row_backbone_without_flags_is_trained_by_its_own_trainer() {
        let experiments = Experiments::load_paper().unwrap();
        let mut table = experiments.table("negmargin_text").unwrap().clone();
        let row = table.rows.iter_mut().find(|row| row.backbone.is_some()).unwrap();
        row.backbone = Some("negmargin".into());
        let settings = settings(1.0);
        let mut planner = planner(&settings);
        planner.plan(&table, &omniglot(&experiments));
        let commands = commands(&planner, JobKind::Backbone);
        assert!(
            commands.iter().any(|command| command.starts_with("trueshot train negmargin omniglot ")),
            "{commands:?}"
        );
    }

    /// A table with a second row that has the image model of MAML, and the indices of both rows.
    fn table_with_two_maml_rows(experiments: &Experiments, name: &str) -> (PaperTable, [usize; 2]) {
        let mut table = experiments.table(name).unwrap().clone();
        let maml = table.rows.iter().position(|row| row.image_model.is_some()).unwrap();
        let second = PaperRow { row: "MAML again".into(), ..table.rows[maml].clone() };
        table.rows.push(second);
        let last = table.rows.len() - 1;
        (table, [maml, last])
    }

    #[test]
    fn all_rows_that_share_an_image_model_are_evaluated() {
        let experiments = Experiments::load_paper().unwrap();
        let (table, rows) = table_with_two_maml_rows(&experiments, "sym_swap_5w5k");
        let settings = settings(1.0);
        let mut planner = planner(&settings);
        let planned = planner.plan(&table, &omniglot(&experiments));
        let evaluation = planned.evaluations.iter().find(|evaluation| evaluation.rows == rows).unwrap();
        let command = planner.jobs.command(&planner.jobs.all()[evaluation.job]);
        for row in rows {
            assert!(command.contains(&format!(":as={}", row_label(row))), "{command}");
        }
        let models = commands(&planner, JobKind::ImageModel);
        let models = models.iter().filter(|command| command.contains("train maml"));
        assert_eq!(models.count(), 1, "both rows use the same model");
    }

    #[test]
    fn models_that_take_images_have_a_result_of_their_own_for_every_number_of_episodes() {
        let experiments = Experiments::load_paper().unwrap();
        let table = experiments.table("sym_swap_5w5k").unwrap();
        let evaluations = |image_model_episodes| -> Vec<(String, String)> {
            let settings = ReproduceSettings { episodes: 10_000, image_model_episodes, ..settings(1.0) };
            let mut planner = planner(&settings);
            planner.plan(table, &omniglot(&experiments));
            let jobs = planner.jobs.all().iter().filter(|job| job.kind == JobKind::Evaluation);
            jobs.map(|job| (planner.jobs.command(job), job.key.clone())).collect()
        };
        for ((on_cpu, cpu_key), (on_gpu, gpu_key)) in evaluations(600).iter().zip(&evaluations(10_000)) {
            assert!(on_gpu.contains("--episodes 10000"), "{on_gpu}");
            let is_on_images = on_cpu.contains("--pictures");
            assert_eq!(on_cpu.contains("--episodes 600"), is_on_images, "{on_cpu}");
            assert_eq!(cpu_key != gpu_key, is_on_images, "{on_cpu}");
        }
        assert!(evaluations(600).iter().any(|(command, _)| command.contains("--pictures")));
    }

    #[test]
    fn outliers_are_training_classes_in_training_and_validation_classes_in_test() {
        let experiments = Experiments::load_paper().unwrap();
        let table = experiments.table("outlier_5w5k").unwrap();
        let settings = settings(1.0);
        let mut planner = planner(&settings);
        let planned = planner.plan(table, &omniglot(&experiments));
        assert!(planned.missing.is_empty(), "{:?}", planned.missing);
        let features = planned.features.as_ref().unwrap();
        let output = |job: usize| planner.jobs.all()[job].output.display().to_string();
        for command in commands(&planner, JobKind::Head) {
            assert!(!command.contains(" --outliers "), "{command}");
            assert!(command.contains(&format!(" --val-outliers {}", output(features.train))), "{command}");
        }
        let evaluations = commands(&planner, JobKind::Evaluation);
        let (on_images, on_features): (Vec<_>, Vec<_>) =
            evaluations.iter().partition(|command| command.contains("--pictures"));
        assert!(on_features[0].contains(&format!(" --outliers {}", output(features.val))), "{on_features:?}");
        assert!(on_images[0].contains(" --outliers omniglot --outliers-split val"), "{on_images:?}");
    }

    #[test]
    fn the_scale_changes_the_steps_on_the_command_line() {
        let settings = settings(0.1);
        let planner = planner(&settings);
        let (flags, steps) = planner.scale_flags("--steps 13000 --layers 2 --val-episodes 2000", 25_000);
        assert_eq!(
            (flags.as_str(), steps),
            ("--layers 2 --steps 1300 --val-every 100 --val-episodes 200", 1300)
        );
        assert_eq!(planner.scale_flags("--layers 2", default_steps("tranfs")).1, 2500);
        assert_eq!(planner.scale_flags("", default_steps("relabel")).1, 2000);
        assert_eq!(planner.scale_flags("", default_steps("backbone")).1, 10_000);
    }

    #[test]
    fn a_table_is_not_measured_if_the_classes_are_too_small_for_its_shots() {
        let experiments = Experiments::load_paper().unwrap();
        let settings = settings(1.0);
        let table = experiments.table("sym_swap_5w10k").unwrap();
        let planned = planner(&settings).plan(table, &omniglot(&experiments));
        assert!(planned.evaluations.is_empty() && planned.missing.len() == table.rows.len());
        assert!(planned.missing[&0].contains("too small for 10 shots"), "{}", planned.missing[&0]);
    }
}
