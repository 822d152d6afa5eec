//! The tables and figures to reproduce, read from `experiments/paper.toml` ([`Experiments`]), and the published
//! numbers, read from `paper.csv` next to it ([`PaperResults`]). The fields of the types here are the keys of the TOML
//! file.
//!
//! Terms: a support set has `shots` labelled items per class, some with wrong labels; features are the vectors that a
//! backbone network computes from images; a head is a small network that is trained on features and corrects wrong
//! labels (TraNFS or Relabel).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context;
use serde::Deserialize;
use trueshot::noise::NoiseLevels;
use trueshot::training::configuration::toml_message;

use crate::messages::hinted;

/// The tables and figures of the paper.
const EXPERIMENTS: &str = include_str!("../../experiments/paper.toml");
/// The published numbers: `table,dataset,row,noise_percent,accuracy,ci95`.
const PAPER: &str = include_str!("../../experiments/paper.csv");

/// The contents of `experiments/paper.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiments {
    /// The names of the rows in the chart at the beginning of a report.
    #[serde(default)]
    pub plot: Vec<String>,
    /// The data sets by name.
    pub dataset: BTreeMap<String, PaperDataset>,
    #[serde(default)]
    group: Vec<RowGroup>,
    #[serde(default)]
    table: Vec<PaperTable>,
    #[serde(default)]
    figure: Vec<Figure>,
}

/// A dataset that tables are measured on.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperDataset {
    pub title: String,
    /// Whether the paper reports results on this dataset.
    #[serde(default)]
    pub paper: bool,
    /// The dataset of the paper whose differences to ProtoNet are shown beside those on this dataset, which has the
    /// same kind of split but other images.
    pub stands_for: Option<String>,
    /// The folder names to look for in the data folder (`--data`).
    pub data: Vec<String>,
    /// Whether the images are part of the program (Omniglot).
    #[serde(default)]
    pub built_in: bool,
    /// Flags of every `trueshot train` on images of this dataset.
    #[serde(default, rename = "pictures")]
    pub image_flags: String,
    /// More flags of `trueshot train backbone`.
    pub backbone: String,
    /// Embedded copies of every training image; augmented if there is more than one.
    pub copies: u32,
    /// Queries per class and episode.
    #[serde(default = "default_queries")]
    pub queries: usize,
    /// The maximum number of shots that the classes are large enough for; `None` if there is no limit.
    #[serde(rename = "most_shots")]
    max_shots: Option<usize>,
}

fn default_queries() -> usize {
    15
}

impl PaperDataset {
    /// Why a table with `shots` shots cannot be measured; `None` if it can.
    pub fn too_small_for(&self, shots: usize) -> Option<String> {
        let max = self.max_shots.filter(|&max| shots > max)?;
        Some(format!("classes of {} are too small for {shots} shots ({max} at most)", self.title))
    }

    /// The shots that replace `{several_shots}` in the flags of heads. A training episode draws one of them; a number
    /// that is listed twice is drawn twice as often.
    pub fn several_shots(&self) -> &'static str {
        if self.max_shots.is_some_and(|max| max < 10) { "1,2,3,5,5" } else { "1,2,3,5,5,10" }
    }

    /// The shots that replace `{joint_shots}` in the flags of joint training and its heads.
    pub fn joint_shots(&self) -> &'static str {
        if self.max_shots.is_some_and(|max| max < 10) { "3,5,5,5" } else { "3,5,5,5,10" }
    }
}

/// Rows that several tables contain.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RowGroup {
    name: String,
    rows: Vec<PaperRow>,
}

/// A table of the paper, or a figure that shows the values of a table.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperTable {
    pub name: String,
    pub title: String,
    /// The names of the data sets that the table is measured on.
    pub datasets: Vec<String>,
    /// The table whose ProtoNet the published differences refer to, if not this table.
    pub compare: Option<String>,
    /// Whether the report compares the order of the rows with the paper, as in ablations.
    #[serde(default)]
    pub ordered: bool,
    /// Whether the paper shows the table as a figure, without numbers.
    #[serde(default)]
    pub figure: bool,
    /// Labelled items per class in the support sets.
    pub shots: usize,
    /// The type and levels of noise; each level is a column. `None` if every row has its own.
    pub noise: Option<NoiseLevels>,
    /// Flags that replace `{training}` in the flags of heads.
    #[serde(default)]
    pub training: String,
    /// The names of the row groups whose rows come first.
    #[serde(default)]
    groups: Vec<String>,
    /// The rows of the table; after `Experiments::parse`, including those of the groups.
    #[serde(default)]
    pub rows: Vec<PaperRow>,
}

/// A row of a table: a method, and what must be trained for it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperRow {
    /// The name of the row.
    pub row: String,
    /// The row of the paper that this row is compared with, if it has another name.
    pub paper: Option<String>,
    /// The method of `trueshot eval`; `{head}` is replaced by the file of the trained head or image model.
    pub method: Option<String>,
    /// The arguments of `trueshot train` for the head of this row.
    pub head: Option<String>,
    /// The arguments of `trueshot train` for the head that the training of `head` starts from.
    pub from: Option<String>,
    /// The arguments of `trueshot train joint`, which trains the backbone of the dataset and the head of this row
    /// together.
    pub joint: Option<String>,
    /// The arguments of `trueshot train` for a backbone that replaces that of the dataset.
    pub backbone: Option<String>,
    /// The arguments of `trueshot train` for a model that takes images instead of features.
    #[serde(rename = "pictures")]
    pub image_model: Option<String>,
    /// Noise that replaces that of the table.
    pub noise: Option<NoiseLevels>,
    /// Why the row cannot be measured.
    pub missing: Option<String>,
}

impl Experiments {
    /// The experiments of the paper, which are compiled into the program.
    pub fn load_paper() -> anyhow::Result<Self> {
        Experiments::parse(EXPERIMENTS)
    }

    /// The experiments that a file declares, in the format of `experiments/paper.toml`.
    pub fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path);
        let text = text.with_context(|| format!("cannot read the experiments {}", path.display()))?;
        Experiments::parse(&text).with_context(|| path.display().to_string())
    }

    /// Reads a list of experiments, and puts the rows of groups into the tables that name them.
    fn parse(text: &str) -> anyhow::Result<Self> {
        let experiments = toml::from_str(text).map_err(|problem| anyhow::anyhow!(toml_message(&problem)));
        let mut experiments: Experiments = experiments.context("the list of experiments")?;
        for table in &mut experiments.table {
            let mut rows = Vec::new();
            for name in &table.groups {
                let group = experiments.group.iter().find(|group| group.name == *name);
                rows.extend(
                    group.with_context(|| format!("{}: no group '{name}'", table.name))?.rows.iter().cloned(),
                );
            }
            rows.append(&mut table.rows);
            // Only {head}, {several_shots} and {joint_shots} remain: `planner` replaces them.
            for row in &mut rows {
                let shots = table.shots.to_string();
                for text in [&mut row.head, &mut row.from, &mut row.joint, &mut row.image_model] {
                    let filled =
                        |text: String| text.replace("{shots}", &shots).replace("{training}", &table.training);
                    *text = text.take().map(filled);
                }
            }
            table.rows = rows;
        }
        Ok(experiments)
    }

    /// All figures, in the order of the file.
    pub fn figures(&self) -> &[Figure] {
        &self.figure
    }

    /// The table with this name. Fails if the name is unknown.
    pub fn table(&self, name: &str) -> anyhow::Result<&PaperTable> {
        let table = self.table.iter().find(|table| table.name == name);
        table.with_context(|| format!("unknown table '{name}'"))
    }

    /// All tables, in the order of the file.
    pub fn tables(&self) -> &[PaperTable] {
        &self.table
    }

    /// The tables and figures with the given names; all of them if one name is `all`.
    pub fn select(&self, names: &[String]) -> anyhow::Result<Vec<Experiment<'_>>> {
        let tables = self.table.iter().map(Experiment::Table);
        let all: Vec<Experiment<'_>> = tables.chain(self.figure.iter().map(Experiment::Figure)).collect();
        if names.iter().any(|name| name == "all") {
            return Ok(all);
        }
        let find = |name: &String| {
            let names = || all.iter().map(Experiment::name).collect::<Vec<_>>().join(", ");
            let experiment = all.iter().find(|experiment| experiment.name() == name).copied();
            experiment.ok_or_else(|| {
                hinted(format!("unknown experiment '{name}'"), format!("known: all, {}", names()))
            })
        };
        names.iter().map(find).collect()
    }

    /// Fails if no table has a row with this name.
    pub fn check_row_name(&self, name: &str) -> anyhow::Result<()> {
        let names: BTreeSet<&str> =
            self.table.iter().flat_map(|table| &table.rows).map(|row| row.row.as_str()).collect();
        let known = || names.iter().copied().collect::<Vec<_>>().join(", ");
        anyhow::ensure!(
            names.contains(name),
            hinted(format!("unknown row '{name}'"), format!("known: {}", known()))
        );
        Ok(())
    }
}

/// A table or figure that can be requested by name.
#[derive(Debug, Clone, Copy)]
pub enum Experiment<'a> {
    Table(&'a PaperTable),
    Figure(&'a Figure),
}

impl<'a> Experiment<'a> {
    fn name(&self) -> &'a str {
        match self {
            Experiment::Table(table) => &table.name,
            Experiment::Figure(figure) => &figure.name,
        }
    }
}

/// A figure of the paper, as `experiments/paper.toml` declares it.
#[derive(Debug, Clone, Deserialize)]
pub struct Figure {
    pub name: String,
    pub title: String,
    pub datasets: Vec<String>,
    #[serde(flatten)]
    pub shows: FigureContent,
}

/// What a figure shows.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "lowercase", tag = "shows")]
pub enum FigureContent {
    /// Accuracies of some rows of tables against the number of wrong labels.
    Curves { tables: Vec<String>, rows: Vec<String> },
    /// One support set for each noise setting.
    Sets { caption: String, noise: Vec<NoiseLevels> },
    /// The attention maps of the head of the row `row` in several tables; `show` is the value of
    /// `trueshot attention --show`, which selects layers and attention heads.
    Attention { caption: String, row: String, maps: Vec<AttentionMap>, show: String },
}

/// The attention of the head that was trained for a table, under some noise.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionMap {
    pub table: String,
    pub noise: NoiseLevels,
}

/// The published results: accuracy in percent and, if the paper has it, half the width of its 95 % confidence interval.
pub struct PaperResults(BTreeMap<CellKey, (f64, Option<f64>)>);

/// Table, dataset, row and noise level in percent.
type CellKey = (String, String, String, i64);

impl PaperResults {
    /// Parses the published results from `experiments/paper.csv`.
    pub fn new() -> anyhow::Result<Self> {
        let mut cells = BTreeMap::new();
        for line in PAPER.lines().skip(1) {
            let fields = csv_fields(line);
            let [table, dataset, row, percent, accuracy, ci95] = &fields[..] else {
                anyhow::bail!("paper.csv: a line has {} fields instead of 6: {line}", fields.len());
            };
            let key = (
                table.clone(),
                dataset.clone(),
                row.clone(),
                percent_column(percent.parse::<f64>()? / 100.0),
            );
            cells.insert(key, (accuracy.parse()?, ci95.parse().ok()));
        }
        Ok(PaperResults(cells))
    }

    /// The published accuracy and interval for a noise level from 0 to 1; `None` if the paper does not report it.
    pub fn cell(&self, table: &str, dataset: &str, row: &str, level: f64) -> Option<(f64, Option<f64>)> {
        self.0.get(&(table.into(), dataset.into(), row.into(), percent_column(level))).copied()
    }
}

/// A level rounded to a whole percentage: a third is 33.3 in the paper and 33 in the experiments.
fn percent_column(level: f64) -> i64 {
    (level * 100.0).round() as i64
}

/// The fields of a line of CSV. Fields with commas are quoted; no field contains a quotation mark.
fn csv_fields(line: &str) -> Vec<String> {
    let (mut fields, mut quoted) = (vec![String::new()], false);
    for character in line.chars() {
        match character {
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            _ => fields.last_mut().expect("`fields` starts with one element").push(character),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_experiments_are_read_from_a_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("mine.toml");
        let problem = |path: &Path| format!("{:#}", Experiments::read(path).err().unwrap());
        assert!(problem(&path).starts_with(&format!("cannot read the experiments {}", path.display())));
        std::fs::write(&path, "plot = 3").unwrap();
        assert!(problem(&path).contains("mine.toml"), "{}", problem(&path));
        std::fs::write(&path, EXPERIMENTS.replace("noise_prop", "other_name")).unwrap();
        assert!(Experiments::read(&path).unwrap().table("other_name").is_ok());
    }

    #[test]
    fn every_cell_of_the_paper_belongs_to_a_row_of_an_experiment() {
        let (experiments, paper) = (Experiments::load_paper().unwrap(), PaperResults::new().unwrap());
        assert_eq!(paper.0.len(), 1237);
        for (table_name, dataset, row_name, column) in paper.0.keys() {
            let table = experiments.tables().iter().find(|table| table.name == *table_name);
            let table = table.unwrap_or_else(|| panic!("no experiment '{table_name}'"));
            assert!(table.datasets.contains(dataset), "{table_name} does not run on {dataset}");
            let row = table.rows.iter().find(|row| row.row == *row_name);
            let row = row.unwrap_or_else(|| panic!("{table_name} has no row '{row_name}'"));
            let noise = row.noise.as_ref().or(table.noise.as_ref());
            let levels = noise.iter().flat_map(|noise| &noise.0).map(|noise| noise.level);
            let columns: Vec<i64> = levels.map(super::percent_column).collect();
            assert!(
                row.missing.is_some() || columns.contains(column),
                "{table_name}, {row_name}: no {column} % in {columns:?}"
            );
        }
    }

    #[test]
    fn every_row_has_a_method_or_a_reason() {
        for table in Experiments::load_paper().unwrap().tables() {
            for row in &table.rows {
                assert!(row.method.is_some() != row.missing.is_some(), "{}: {}", table.name, row.row);
                let needs_head = row.method.as_deref().unwrap_or("").contains("{head}");
                let has_head = row.head.is_some() || row.image_model.is_some();
                assert_eq!(needs_head, has_head, "{}: {}", table.name, row.row);
            }
        }
    }

    #[test]
    fn tables_and_rows_of_figures_exist() {
        let experiments = Experiments::load_paper().unwrap();
        let main = &experiments.tables()[0];
        for plotted in &experiments.plot {
            assert!(main.rows.iter().any(|row| row.row == *plotted), "{}: {plotted}", main.name);
        }
        for figure in experiments.figures() {
            let (tables, rows): (Vec<&String>, Vec<&String>) = match &figure.shows {
                FigureContent::Curves { tables, rows } => (tables.iter().collect(), rows.iter().collect()),
                FigureContent::Attention { row, maps, .. } => {
                    (maps.iter().map(|map| &map.table).collect(), vec![row])
                }
                FigureContent::Sets { .. } => continue,
            };
            for table in tables.iter().map(|name| experiments.table(name).unwrap()) {
                for row in &rows {
                    assert!(table.rows.iter().any(|known| known.row == **row), "{}: {row}", table.name);
                }
            }
        }
    }
}
