//! Turns tables into jobs: a backbone, features of every split, heads, and one evaluation for the rows that share
//! features and noise.

use std::collections::BTreeMap;
use std::path::PathBuf;

use trueshot::noise::{NoiseKind, NoiseLevels};

use super::dataset_files::{DatasetSplits, OutlierSplits, SplitImages};
use super::experiments::{Figure, PaperDataset, PaperRow, PaperTable};
use super::jobs::{CommandWord, JobKind, Jobs, plain_words};

/// How experiments are run.
#[derive(Debug, Clone)]
pub struct ReproduceSettings {
    /// What training steps and episodes are multiplied by.
    pub scale: f64,
    pub episodes: u64,
    pub seed: u64,
    /// Backbones that are there already, by dataset: path and fingerprint.
    pub backbones: BTreeMap<String, (PathBuf, String)>,
    /// Rows that are not wanted.
    pub without: Vec<String>,
}

/// A table on one dataset.
pub struct PlannedTable<'a> {
    pub table: &'a PaperTable,
    pub name: &'a str,
    pub dataset: &'a PaperDataset,
    pub evaluations: Vec<EvaluationJob>,
    /// Why a row is not measured.
    pub missing: BTreeMap<usize, String>,
    /// The features it trains and tests on, where it does.
    pub features: Option<FeatureJobs>,
    /// The figure that draws some of its rows as curves, where it is that which is asked for.
    pub curve: Option<&'a Figure>,
}

impl<'a> PlannedTable<'a> {
    /// The rows that are asked for, with their numbers.
    pub fn rows(&self) -> impl Iterator<Item = (usize, &'a PaperRow)> {
        let chosen = self.curve.and_then(Figure::rows);
        let is_chosen = move |row: &PaperRow| chosen.is_none_or(|chosen| chosen.contains(&row.row));
        self.table.rows.iter().enumerate().filter(move |(_, row)| is_chosen(row))
    }
}

/// Rows that are evaluated together.
pub struct EvaluationJob {
    pub job: usize,
    /// Rows of the table, as the evaluation calls them: r0, r1, ..
    pub rows: Vec<usize>,
    pub noise: NoiseLevels,
}

/// The features one backbone gives.
#[derive(Debug, Clone)]
pub struct FeatureJobs {
    pub train: usize,
    pub val: usize,
    pub test: usize,
    /// To train on, to validate on, to test on.
    pub outliers: Option<[usize; 3]>,
}

/// What a row looks with: a backbone (the dataset's, or one of its own), or a model for images.
#[derive(Clone, Copy, PartialEq)]
enum RowInput<'a> {
    Backbone(Option<&'a str>),
    Images(&'a str),
}

impl<'a> RowInput<'a> {
    fn new(row: &'a PaperRow) -> Self {
        match &row.pictures {
            Some(model) => RowInput::Images(model),
            None => RowInput::Backbone(row.backbone.as_deref()),
        }
    }
}

/// The most episodes for models that look at images.
pub const IMAGE_MODEL_EPISODES: u64 = 600;

/// What a name of a row in an evaluation is.
pub fn row_label(row: usize) -> String {
    format!("r{row}")
}

/// A dataset and the outliers that go with it.
pub struct DatasetSource<'a> {
    pub name: &'a str,
    pub dataset: &'a PaperDataset,
    pub found: Result<DatasetSplits, String>,
    pub outliers: Result<OutlierSplits, String>,
}

impl DatasetSource<'_> {
    /// The splits; the reason where they are not there, or where noise asks for outliers and these are not. Of the
    /// drawings, other characters are.
    pub fn splits_for(&self, noise: Option<&NoiseLevels>) -> Result<&DatasetSplits, String> {
        let found = self.found.as_ref().map_err(String::clone)?;
        let wanted = noise.is_some_and(has_outliers) && !self.dataset.built_in;
        match &self.outliers {
            Err(reason) if wanted => Err(reason.clone()),
            _ => Ok(found),
        }
    }

    /// The words that give training on images its outliers.
    fn outlier_words(&self, found: &DatasetSplits) -> Vec<CommandWord> {
        let (train, val) = match &self.outliers {
            _ if self.dataset.built_in => (&found.train, &found.train),
            Ok(outliers) => (&outliers.train, outliers.val.as_ref().unwrap_or(&outliers.train)),
            Err(_) => return Vec::new(),
        };
        vec![CommandWord::text("--outliers"), train.path(), CommandWord::text("--val-outliers"), val.path()]
    }
}

pub struct Planner<'a> {
    pub jobs: Jobs,
    pub settings: &'a ReproduceSettings,
}

impl<'a> Planner<'a> {
    /// All jobs of a table on one dataset.
    pub fn plan(&mut self, table: &'a PaperTable, source: &DatasetSource<'a>) -> PlannedTable<'a> {
        let DatasetSource { name, dataset, .. } = *source;
        let mut planned = PlannedTable {
            table,
            name,
            dataset,
            evaluations: vec![],
            missing: BTreeMap::new(),
            features: None,
            curve: None,
        };
        let small = dataset.too_small_for(table.shots);
        for (number, row) in table.rows.iter().enumerate() {
            let ready = source.splits_for(row.noise.as_ref().or(table.noise.as_ref()));
            let reason = small.clone().filter(|_| source.found.is_ok()).or(ready.err());
            let unwanted =
                self.settings.without.contains(&row.row).then(|| "skipped (--without)".to_string());
            let reason = reason.or(row.missing.clone()).or(unwanted);
            planned.missing.extend(reason.map(|reason| (number, reason)));
        }
        let Ok(found) = &source.found else { return planned };
        let mut together: Vec<(RowInput<'_>, &NoiseLevels, Vec<usize>)> = Vec::new();
        for (number, row) in table.rows.iter().enumerate() {
            let Some(noise) = row.noise.as_ref().or(table.noise.as_ref()) else { continue };
            if planned.missing.contains_key(&number) {
                continue;
            }
            let input = RowInput::new(row);
            match together.iter_mut().find(|(e, n, _)| (*e, *n) == (input, noise)) {
                Some((_, _, rows)) => rows.push(number),
                None => together.push((input, noise, vec![number])),
            }
        }
        for (input, noise, rows) in together {
            let job = match input {
                RowInput::Images(model) => {
                    match self.evaluate_on_images(table, source, found, model, noise, rows[0]) {
                        Ok(job) => job,
                        Err(reason) => {
                            planned.missing.insert(rows[0], reason);
                            continue;
                        }
                    }
                }
                RowInput::Backbone(own) => {
                    let features = self.features(source, found, own);
                    let job = self.evaluation(table, source, &features, noise, &rows);
                    planned.features.get_or_insert(features);
                    job
                }
            };
            planned.evaluations.push(EvaluationJob { job, rows, noise: noise.clone() });
        }
        planned
    }

    pub fn features(
        &mut self,
        source: &DatasetSource<'_>,
        found: &DatasetSplits,
        own: Option<&str>,
    ) -> FeatureJobs {
        let backbone = self.backbone(source, found, own);
        let copies = source.dataset.copies;
        let mut embed = |what: &str, pictures: &SplitImages, copies: u32| {
            let mut line = vec![CommandWord::text("embed")];
            line.extend(pictures.words());
            line.extend([CommandWord::text("--backbone"), backbone.clone()]);
            if copies > 1 {
                line.extend(plain_words(&format!("--augment --copies {copies}")));
            }
            line.extend(plain_words("--precision f16"));
            let label = format!("{}: features of {what}", source.dataset.title);
            let estimate = 0.0006 * f64::from(copies) * pictures.count() as f64;
            self.jobs.add(JobKind::Features, label, estimate, line)
        };
        let train = embed("the training classes", &found.train, copies);
        let val = embed("the validation classes", &found.val, 1);
        let test = embed("the test classes", &found.test, 1);
        let outliers = match &source.outliers {
            // Other characters are what does not belong.
            _ if source.dataset.built_in => Some([train, train, val]),
            Err(_) => None,
            Ok(outliers) => {
                let own = embed("outliers to train on", &outliers.train, copies);
                let between = outliers.val.as_ref().map(|val| embed("outliers to validate on", val, 1));
                Some([own, between.unwrap_or(own), embed("outliers to test on", &outliers.test, 1)])
            }
        };
        FeatureJobs { train, val, test, outliers }
    }

    /// The backbone's file: the one given, or one that is trained.
    fn backbone(
        &mut self,
        source: &DatasetSource<'_>,
        found: &DatasetSplits,
        own: Option<&str>,
    ) -> CommandWord {
        if let (None, Some((path, print))) = (own, self.settings.backbones.get(source.name)) {
            return CommandWord::external(path, print);
        }
        let (trainer, more) = own.unwrap_or("backbone").split_once(' ').unwrap_or(("backbone", ""));
        let flags = match trainer {
            "backbone" => format!("{} {more}", source.dataset.backbone),
            _ => more.to_string(),
        };
        let label = match own {
            None => format!("{}: the backbone", source.dataset.title),
            Some(own) => format!("{}: a backbone of its own ({own})", source.dataset.title),
        };
        CommandWord::result(self.train_on_images(JobKind::Backbone, label, source, found, trainer, &flags))
    }

    /// `trueshot train TRAINER` on the images of a dataset.
    fn train_on_images(
        &mut self,
        kind: JobKind,
        label: String,
        source: &DatasetSource<'_>,
        found: &DatasetSplits,
        trainer: &str,
        flags: &str,
    ) -> usize {
        let dataset = source.dataset;
        let mut line = vec![CommandWord::text("train"), CommandWord::text(trainer), found.train.path()];
        line.extend(found.train.split_file_words());
        if !found.val.is_shared() {
            line.extend([CommandWord::text("--val"), found.val.path()]);
        }
        if flags.contains("outlier=") {
            line.extend(source.outlier_words(found));
        }
        line.extend(plain_words(&dataset.pictures));
        let (flags, steps) = self.scale_flags(flags, 100_000);
        line.extend(plain_words(&flags));
        let each = match () {
            () if dataset.built_in => 0.013,
            () if dataset.pictures.contains("--size 32") => 0.03,
            () => 0.17,
        };
        // A step of MAML goes through four tasks some ten times, one of NegMargin through more images.
        let each = each * if trainer == "maml" { 12.0 } else { 1.3 };
        self.jobs.add(kind, label, each * steps as f64, line)
    }

    /// A row whose model looks at images: trained on them and evaluated on them, on fewer episodes, for each takes as long
    /// as hundreds of others. The reason where that cannot be.
    fn evaluate_on_images(
        &mut self,
        table: &PaperTable,
        source: &DatasetSource<'_>,
        found: &DatasetSplits,
        model: &str,
        noise: &NoiseLevels,
        row: usize,
    ) -> Result<usize, String> {
        let (trainer, flags) = model.split_once(' ').unwrap_or((model, ""));
        let dataset = source.dataset;
        let queries = dataset.queries;
        let flags =
            format!("{flags} --queries {queries} --val-queries {queries} --val-shots {}", table.shots);
        let label = format!("{}: {} ({flags})", dataset.title, table.rows[row].row);
        let trained = self.train_on_images(JobKind::ImageModel, label, source, found, trainer, &flags);
        let method = table.rows[row].method.as_deref().unwrap_or_default();
        let (before, after) = method.split_once("{head}").unwrap_or((method, ""));
        let method = CommandWord::text(before)
            .concat(CommandWord::result(trained))
            .concat(CommandWord::text(format!("{after}:as={}", self::row_label(row))));
        let mut line = vec![CommandWord::text("eval"), CommandWord::text("--pictures")];
        line.extend(found.test.words());
        line.extend([CommandWord::text("--methods"), method]);
        let episodes = self.settings.episodes.min(IMAGE_MODEL_EPISODES);
        let shape =
            format!("--shots {} --queries {queries} --noise {noise} --episodes {episodes}", table.shots);
        line.extend(plain_words(&format!("{shape} --seed {} --format json", self.settings.seed)));
        if has_outliers(noise) {
            let outliers = match &source.outliers {
                _ if dataset.built_in => {
                    return Err("the outliers of Omniglot are built in and not in a folder".into());
                }
                Err(reason) => return Err(reason.clone()),
                Ok(outliers) => outliers.test.path(),
            };
            line.extend([CommandWord::text("--outliers"), outliers]);
        }
        let estimate = 0.1 * episodes as f64 * noise.0.len() as f64;
        let label = format!("{}: {}, {}", dataset.title, table.name, table.rows[row].row);
        Ok(self.jobs.add(JobKind::Evaluation, label, estimate, line))
    }

    /// The file of a row's head; none where the data for it is missing.
    pub fn head(
        &mut self,
        source: &DatasetSource<'_>,
        features: &FeatureJobs,
        row: &PaperRow,
    ) -> Option<usize> {
        let flags = row.head.as_deref()?.replace("{several_shots}", source.dataset.several_shots());
        let (flags, steps) = self.scale_flags(&flags, 25_000);
        let (kind, flags) = flags.split_once(' ')?;
        let mut line =
            vec![CommandWord::text("train"), CommandWord::text(kind), CommandWord::result(features.train)];
        line.extend([CommandWord::text("--val"), CommandWord::result(features.val)]);
        let mut flags = flags.to_string();
        match features.outliers {
            Some([train, val, _]) if flags.contains("outlier=") => {
                line.extend([CommandWord::text("--outliers"), CommandWord::result(train)]);
                line.extend([CommandWord::text("--val-outliers"), CommandWord::result(val)]);
            }
            // A head for several types of noise learns the others.
            None => flags = without_outliers(&flags),
            _ => (),
        }
        line.extend(plain_words(&flags));
        if !flags.contains("--queries") {
            line.extend(plain_words(&format!("--queries {}", source.dataset.queries)));
        }
        line.extend(plain_words(&format!("--val-queries {}", source.dataset.queries)));
        let each = if kind == "relabel" { 0.055 } else { 0.018 };
        let label = format!("{}: {} ({flags})", source.dataset.title, row.row);
        Some(self.jobs.add(JobKind::Head, label, each * steps as f64, line))
    }

    fn evaluation(
        &mut self,
        table: &PaperTable,
        source: &DatasetSource<'_>,
        features: &FeatureJobs,
        noise: &NoiseLevels,
        rows: &[usize],
    ) -> usize {
        let mut methods = CommandWord::default();
        let mut each = 0.0;
        for &number in rows {
            let row = &table.rows[number];
            let method = row.method.as_deref().unwrap_or_default();
            let (before, after) = method.split_once("{head}").unwrap_or((method, ""));
            let comma = if number == rows[0] { "" } else { "," };
            methods = methods.concat(CommandWord::text(format!("{comma}{before}")));
            if let Some(head) = self.head(source, features, row) {
                methods = methods.concat(CommandWord::result(head));
            }
            methods = methods.concat(CommandWord::text(format!("{after}:as={}", row_label(number))));
            each += seconds_per_episode(method);
        }
        let mut line = vec![
            CommandWord::text("eval"),
            CommandWord::result(features.test),
            CommandWord::text("--methods"),
            methods,
        ];
        let ReproduceSettings { episodes, seed, .. } = self.settings;
        let (shots, queries) = (table.shots, source.dataset.queries);
        let shape = format!("--shots {shots} --queries {queries} --noise {noise} --episodes {episodes}");
        line.extend(plain_words(&format!("{shape} --seed {seed} --format json")));
        if let Some(base) = rows.iter().find(|&&row| table.rows[row].method.as_deref() == Some("protonet")) {
            line.extend(plain_words(&format!("--baseline {}", row_label(*base))));
        }
        if let Some([.., outliers]) = features.outliers.filter(|_| has_outliers(noise)) {
            line.extend([CommandWord::text("--outliers"), CommandWord::result(outliers)]);
        }
        let estimate = each * (*episodes as f64) * noise.0.len() as f64;
        let label = format!("{}: {}", source.dataset.title, table.name);
        self.jobs.add(JobKind::Evaluation, label, estimate, line)
    }

    /// Flags with their steps, and what goes with them, brought to scale.
    fn scale_flags(&self, flags: &str, default: u64) -> (String, u64) {
        let given: Vec<&str> = flags.split_whitespace().collect();
        let value =
            |flag: &str| given.iter().position(|word| *word == flag).and_then(|place| given.get(place + 1));
        let full: u64 = value("--steps").and_then(|steps| steps.parse().ok()).unwrap_or(default);
        let every: u64 = value("--val-every").and_then(|steps| steps.parse().ok()).unwrap_or(1000);
        let scale = self.settings.scale;
        let steps = ((full as f64 * scale).round() as u64).max(10);
        let every = ((every as f64 * scale).round() as u64).max(50).min(steps);
        let episodes = ((300.0 * scale.min(1.0)).round() as u64).max(40);
        let mut kept = Vec::new();
        let mut words = given.iter();
        while let Some(word) = words.next() {
            if ["--steps", "--val-every", "--val-episodes"].contains(word) {
                words.next();
            } else {
                kept.push(*word);
            }
        }
        (format!("{} --steps {steps} --val-every {every} --val-episodes {episodes}", kept.join(" ")), steps)
    }
}

pub fn has_outliers(noise: &NoiseLevels) -> bool {
    noise.0.iter().any(|noise| noise.kind == NoiseKind::Outlier)
}

fn without_outliers(flags: &str) -> String {
    let words: Vec<&str> = flags.split_whitespace().collect();
    let is_dropped = |place: usize| {
        words[place].starts_with("outlier=")
            || (words[place] == "--noise"
                && words.get(place + 1).is_some_and(|next| next.starts_with("outlier=")))
    };
    (0..words.len())
        .filter(|&place| !is_dropped(place))
        .map(|place| words[place])
        .collect::<Vec<_>>()
        .join(" ")
}

/// About how long a method takes for an episode, in seconds.
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
        ReproduceSettings { scale, episodes: 200, seed: 0, backbones: BTreeMap::new(), without: vec![] }
    }

    fn omniglot(experiments: &Experiments) -> DatasetSource<'_> {
        let dataset = &experiments.dataset["omniglot"];
        DatasetSource {
            name: "omniglot",
            dataset,
            found: DatasetSplits::find("omniglot", dataset, None),
            outliers: OutlierSplits::find(None),
        }
    }

    #[test]
    fn tables_share_what_they_have_in_common() {
        let experiments = Experiments::load_paper().unwrap();
        let settings = settings(0.01);
        let mut planner = Planner { jobs: Jobs::default(), settings: &settings };
        let source = omniglot(&experiments);
        for table in
            experiments.tables().iter().filter(|table| table.datasets.contains(&"omniglot".to_string()))
        {
            planner.plan(table, &source);
        }
        let count = |kind| planner.jobs.all().iter().filter(|job| job.kind == kind).count();
        assert_eq!(count(JobKind::Backbone), 8, "one, six that are trained with noise, and NegMargin's");
        assert_eq!(count(JobKind::ImageModel), 2, "MAML for five shots and for three");
        let main = planner.jobs.all().iter().filter(|job| {
            job.kind == JobKind::Head
                && planner
                    .jobs
                    .command(job)
                    .contains("--layers 3 --clean-weight 5 --shots 5 --noise symmetric=20,40 ")
        });
        assert_eq!(main.count(), 1, "the main table's TraNFS is that of four ablations");
    }

    #[test]
    fn a_scale_shortens_steps_and_says_so_on_the_command_line() {
        let settings = settings(0.1);
        let planner = Planner { jobs: Jobs::default(), settings: &settings };
        let (flags, steps) = planner.scale_flags("tranfs --steps 13000 --layers 2", 25_000);
        assert_eq!(
            (flags.as_str(), steps),
            ("tranfs --layers 2 --steps 1300 --val-every 100 --val-episodes 40", 1300)
        );
        assert_eq!(planner.scale_flags("tranfs", 25_000).1, 2500);
    }

    #[test]
    fn classes_that_are_too_small_are_said_to_be() {
        let experiments = Experiments::load_paper().unwrap();
        let settings = settings(1.0);
        let mut planner = Planner { jobs: Jobs::default(), settings: &settings };
        let table = experiments.tables().iter().find(|table| table.name == "sym_swap_5w10k").unwrap();
        let planned = planner.plan(table, &omniglot(&experiments));
        assert!(planned.evaluations.is_empty() && planned.missing.len() == table.rows.len());
        assert!(planned.missing[&0].contains("too small for 10 shots"), "{}", planned.missing[&0]);
    }

    #[test]
    fn a_head_for_several_types_of_noise_does_without_outliers_where_there_are_none() {
        assert_eq!(
            without_outliers("--noise paired=40 --noise outlier=0,20 --steps 5"),
            "--noise paired=40 --steps 5"
        );
    }
}
