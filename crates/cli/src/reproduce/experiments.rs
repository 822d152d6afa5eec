//! The tables and figures to reproduce, read from `experiments/paper.toml`, and the published numbers, read from
//! `paper.csv` next to it.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Context;
use serde::Deserialize;
use trueshot::noise::NoiseLevels;

use crate::messages::hinted;

const EXPERIMENTS: &str = include_str!("../../experiments/paper.toml");
const PAPER: &str = include_str!("../../experiments/paper.csv");

/// All experiments.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experiments {
    pub dataset: BTreeMap<String, PaperDataset>,
    group: Vec<RowGroup>,
    table: Vec<PaperTable>,
    figure: Vec<Figure>,
}

/// What tables are measured on.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperDataset {
    pub title: String,
    /// Whether the paper's figures are on these data.
    #[serde(default)]
    pub paper: bool,
    /// Names it may have below the folder of data.
    pub data: Vec<String>,
    #[serde(default)]
    pub built_in: bool,
    /// What all training on its images is given.
    #[serde(default)]
    pub pictures: String,
    /// How its backbone is trained besides.
    pub backbone: String,
    /// Augmented copies of every training image.
    pub copies: u32,
    /// Queries a class.
    #[serde(default = "default_queries")]
    pub queries: usize,
    /// The most shots its classes are large enough for.
    #[serde(rename = "most_shots")]
    max_shots: Option<usize>,
}

fn default_queries() -> usize {
    15
}

impl PaperDataset {
    /// Why a table of so many shots cannot be measured.
    pub fn too_small_for(&self, shots: usize) -> Option<String> {
        let most = self.max_shots.filter(|&most| shots > most)?;
        Some(format!("classes of {} are too small for {shots} shots ({most} at most)", self.title))
    }

    /// The numbers of shots a head for all of them is trained on.
    pub fn several_shots(&self) -> &'static str {
        if self.max_shots.is_some_and(|most| most < 10) { "1,2,3,5,5" } else { "1,2,3,5,5,10" }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RowGroup {
    name: String,
    rows: Vec<PaperRow>,
}

/// A table, or a figure that is one drawn.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperTable {
    pub name: String,
    pub title: String,
    pub datasets: Vec<String>,
    /// The table whose ProtoNet the paper's differences are taken against, where it is not this one.
    pub compare: Option<String>,
    /// Whether its rows are compared with each other, so that their order matters.
    #[serde(default)]
    pub ordered: bool,
    /// Whether the paper shows it as a figure, without numbers.
    #[serde(default)]
    pub figure: bool,
    pub shots: usize,
    pub noise: Option<NoiseLevels>,
    /// What the heads of this table are trained on.
    #[serde(default)]
    pub training: String,
    #[serde(default)]
    groups: Vec<String>,
    #[serde(default)]
    pub rows: Vec<PaperRow>,
}

/// One row of a table.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PaperRow {
    pub row: String,
    /// A method of `trueshot eval`.
    pub method: Option<String>,
    /// What `trueshot train` is given for its head.
    pub head: Option<String>,
    /// What `trueshot train` is given for a backbone of its own.
    pub backbone: Option<String>,
    /// What `trueshot train` is given for a model that looks at images itself.
    pub pictures: Option<String>,
    /// Noise of its own.
    pub noise: Option<NoiseLevels>,
    /// Why it cannot be measured.
    pub missing: Option<String>,
}

impl Experiments {
    /// Those of the paper, groups put in their places.
    pub fn load_paper() -> anyhow::Result<Self> {
        let mut all: Experiments = toml::from_str(EXPERIMENTS).context("the list of experiments")?;
        for table in &mut all.table {
            let mut rows = Vec::new();
            for name in &table.groups {
                let group = all.group.iter().find(|group| group.name == *name);
                rows.extend(
                    group.with_context(|| format!("{}: no group '{name}'", table.name))?.rows.iter().cloned(),
                );
            }
            rows.append(&mut table.rows);
            for row in &mut rows {
                let shots = table.shots.to_string();
                for text in [&mut row.head, &mut row.pictures] {
                    let filled =
                        |text: String| text.replace("{shots}", &shots).replace("{training}", &table.training);
                    *text = text.take().map(filled);
                }
            }
            table.rows = rows;
        }
        Ok(all)
    }

    /// Every figure in order.
    pub fn figures(&self) -> &[Figure] {
        &self.figure
    }

    /// A table by its name.
    pub fn table(&self, name: &str) -> anyhow::Result<&PaperTable> {
        let found = self.table.iter().find(|table| table.name == name);
        found.with_context(|| format!("unknown table '{name}'"))
    }

    /// Every table in order.
    pub fn tables(&self) -> &[PaperTable] {
        &self.table
    }

    /// The tables and figures of these names; `all` is all of them.
    pub fn select(&self, names: &[String]) -> anyhow::Result<Vec<Experiment<'_>>> {
        let tables = self.table.iter().map(Experiment::Table);
        let all: Vec<Experiment<'_>> = tables.chain(self.figure.iter().map(Experiment::Figure)).collect();
        if names.iter().any(|name| name == "all") {
            return Ok(all);
        }
        let find = |name: &String| {
            let known = || all.iter().map(Experiment::name).collect::<Vec<_>>().join(", ");
            let found = all.iter().find(|known| known.name() == name).copied();
            found.ok_or_else(|| {
                hinted(format!("unknown experiment '{name}'"), format!("known: all, {}", known()))
            })
        };
        names.iter().map(find).collect()
    }

    /// Says so if no table has this row.
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

/// What can be asked for by name.
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
    /// Some rows of tables, over the number of wrong samples.
    Curves { tables: Vec<String>, rows: Vec<String> },
    /// A support set for every noise.
    Sets { caption: String, noise: Vec<NoiseLevels> },
    /// The attention maps of the heads of tables.
    Attention { caption: String, row: String, maps: Vec<AttentionMap>, show: String },
}

/// The attention of a table's head under some noise.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AttentionMap {
    pub table: String,
    pub noise: NoiseLevels,
}

/// The paper's figures: accuracy, and half its 95 % interval.
pub struct PaperResults(BTreeMap<CellKey, (f64, Option<f64>)>);

/// Table, dataset, row, and percentage of noise.
type CellKey = (String, String, String, i64);

impl PaperResults {
    /// Reads them.
    pub fn new() -> anyhow::Result<Self> {
        let mut cells = BTreeMap::new();
        for line in PAPER.lines().skip(1) {
            let fields = csv_fields(line);
            let [table, dataset, row, percent, accuracy, ci95] = &fields[..] else {
                anyhow::bail!("the paper's tables: a line of {} fields: {line}", fields.len());
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

    /// A cell, if the paper has it.
    pub fn cell(&self, table: &str, dataset: &str, row: &str, level: f64) -> Option<(f64, Option<f64>)> {
        self.0.get(&(table.into(), dataset.into(), row.into(), percent_column(level))).copied()
    }

    /// How many cells there are.

    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.len()
    }
}

/// A level as a whole percentage: the paper writes 33.3 where a third is meant.
fn percent_column(level: f64) -> i64 {
    (level * 100.0).round() as i64
}

/// The fields of a line of CSV; quotes keep commas.
fn csv_fields(line: &str) -> Vec<String> {
    let (mut fields, mut quoted) = (vec![String::new()], false);
    for character in line.chars() {
        match character {
            '"' => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            _ => fields.last_mut().expect("there is one from the start").push(character),
        }
    }
    fields
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_of_the_paper_belongs_to_a_row_of_an_experiment() {
        let (experiments, paper) = (Experiments::load_paper().unwrap(), PaperResults::new().unwrap());
        assert_eq!(paper.len(), 1237);
        for (table, dataset, row, column) in paper.0.keys() {
            let found = experiments.tables().iter().find(|known| known.name == *table);
            let found = found.unwrap_or_else(|| panic!("no experiment '{table}'"));
            assert!(found.datasets.contains(dataset), "{table} does not run on {dataset}");
            let known = found.rows.iter().find(|known| known.row == *row);
            let known = known.unwrap_or_else(|| panic!("{table} has no row '{row}'"));
            let noise = known.noise.as_ref().or(found.noise.as_ref());
            let levels: Vec<i64> =
                noise.iter().flat_map(|noise| &noise.0).map(|n| super::percent_column(n.level)).collect();
            assert!(
                known.missing.is_some() || levels.contains(column),
                "{table}, {row}: no {column} % in {levels:?}"
            );
        }
    }

    #[test]
    fn every_row_has_a_method_or_a_reason() {
        for table in Experiments::load_paper().unwrap().tables() {
            for row in &table.rows {
                assert!(row.method.is_some() != row.missing.is_some(), "{}: {}", table.name, row.row);
                let asks = row.method.as_deref().unwrap_or("").contains("{head}");
                assert_eq!(asks, row.head.is_some() || row.pictures.is_some(), "{}: {}", table.name, row.row);
            }
        }
    }

    #[test]
    fn figures_draw_what_is_there() {
        let experiments = Experiments::load_paper().unwrap();
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

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        let error = Experiments::load_paper().unwrap().select(&["tabel".into()]).unwrap_err();
        let hint = &error.downcast_ref::<crate::messages::HintedError>().unwrap().hint;
        assert!(hint.contains("sym_swap_5w5k"), "{error}: {hint}");
    }
}
