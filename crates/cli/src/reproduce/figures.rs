//! Figures of the report: curves, which are rows of tables over the number of wrong labels, and images, which are drawn
//! by commands of this program.

use std::path::Path;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use trueshot::noise::NoiseLevels;
use trueshot::report::reproduction::{self, Panel};

use super::dataset_files::DatasetSplits;
use super::experiments::{AttentionMap, Experiments, Figure, FigureContent, PaperDataset, PaperTable};
use super::jobs::{CommandWord, JobKind, Jobs, plain_words};
use super::planner::{DatasetSource, PlannedTable, Planner};

/// A figure of images on one dataset.
pub struct PlannedFigure<'a> {
    pub figure: &'a Figure,
    pub dataset: &'a PaperDataset,
    caption: &'a str,
    panels: Vec<PlannedPanel>,
}

struct PlannedPanel {
    title: String,
    /// The job that draws it, or why there is none.
    job: Result<usize, String>,
}

impl Figure {
    /// The rows that it draws as curves.
    pub fn rows(&self) -> Option<&[String]> {
        if let FigureContent::Curves { rows, .. } = &self.shows { Some(rows) } else { None }
    }

    /// The tables whose rows it draws as curves.
    pub fn tables<'a>(&'a self, experiments: &'a Experiments) -> anyhow::Result<Vec<&'a PaperTable>> {
        let FigureContent::Curves { tables, .. } = &self.shows else { return Ok(Vec::new()) };
        tables.iter().map(|name| experiments.table(name)).collect()
    }
}

impl PlannedFigure<'_> {
    /// The jobs that draw it.
    pub fn jobs(&self) -> impl Iterator<Item = usize> {
        self.panels.iter().filter_map(|panel| panel.job.as_ref().ok().copied())
    }

    /// Why some of it is not drawn.
    pub fn missing(&self) -> impl Iterator<Item = &String> {
        self.panels.iter().filter_map(|panel| panel.job.as_ref().err())
    }

    /// The figure with its images.
    pub fn drawn(&self, jobs: &Jobs, folder: &Path) -> anyhow::Result<reproduction::Figure> {
        let panel = |panel: &PlannedPanel| {
            let (markup, missing) = match &panel.job {
                Ok(job) => (markup(&panel.title, &folder.join(&jobs.all()[*job].output))?, None),
                Err(reason) => (String::new(), Some(reason.clone())),
            };
            Ok(Panel { title: panel.title.clone(), markup, missing })
        };
        let needed = jobs.with_needs(&self.jobs().collect::<Vec<_>>());
        Ok(reproduction::Figure {
            name: self.figure.name.clone(),
            title: self.figure.title.clone(),
            dataset: self.dataset.title.clone(),
            caption: self.caption.to_string(),
            panels: self.panels.iter().map(panel).collect::<anyhow::Result<_>>()?,
            commands: needed.iter().map(|&job| jobs.command(&jobs.all()[job])).collect(),
        })
    }
}

/// An image as part of a page.
fn markup(title: &str, path: &Path) -> anyhow::Result<String> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    if path.extension().is_some_and(|extension| extension == "svg") {
        return Ok(String::from_utf8(bytes)?);
    }
    let title = title.replace('&', "&amp;").replace('<', "&lt;").replace('"', "&quot;");
    Ok(format!("<img class=\"map\" alt=\"{title}\" src=\"data:image/png;base64,{}\">", BASE64.encode(bytes)))
}

impl<'a> Planner<'a> {
    /// The tables of a figure's curves, with what is not drawn left out.
    pub fn curves(
        &mut self,
        figure: &'a Figure,
        tables: &[&'a PaperTable],
        source: &DatasetSource<'a>,
    ) -> Vec<PlannedTable<'a>> {
        let mut all = Vec::new();
        for table in tables.iter().filter(|table| table.datasets.iter().any(|name| name == source.name)) {
            let mut planned = self.plan(table, source);
            planned.curve = Some(figure);
            let drawn: Vec<usize> = planned.rows().map(|(number, _)| number).collect();
            planned.evaluations.retain(|evaluation| evaluation.rows.iter().any(|row| drawn.contains(row)));
            planned.missing.retain(|row, _| drawn.contains(row));
            all.push(planned);
        }
        all
    }

    /// All jobs of a figure of images on one dataset; none for curves.
    pub fn figure(
        &mut self,
        figure: &'a Figure,
        experiments: &'a Experiments,
        source: &DatasetSource<'a>,
    ) -> anyhow::Result<Option<PlannedFigure<'a>>> {
        let (caption, panels) = match &figure.shows {
            FigureContent::Curves { .. } => return Ok(None),
            FigureContent::Sets { caption, noise } => {
                (caption, noise.iter().map(|noise| self.support_set(source, noise)).collect())
            }
            FigureContent::Attention { caption, row, maps, show } => {
                let panel = |map: &'a AttentionMap| {
                    self.attention(source, experiments.table(&map.table)?, row, map, show)
                };
                (caption, maps.iter().map(panel).collect::<anyhow::Result<_>>()?)
            }
        };
        Ok(Some(PlannedFigure { figure, dataset: source.dataset, caption, panels }))
    }

    fn support_set(&mut self, source: &DatasetSource<'_>, noise: &NoiseLevels) -> PlannedPanel {
        let title = format!("{} with {}", source.dataset.title, named(noise));
        let job = source.splits_for(Some(noise)).map(|found| {
            let mut line = vec![CommandWord::text("episode")];
            line.extend(found.test.words());
            line.extend(plain_words(&format!("--noise {noise} {}", self.shape(source, SHOTS))));
            if super::planner::has_outliers(noise) {
                line.extend(test_outliers(source, found));
            }
            self.jobs.add(JobKind::SupportSet, format!("{title}: the support set"), 1.0, line)
        });
        PlannedPanel { title, job }
    }

    fn attention(
        &mut self,
        source: &DatasetSource<'_>,
        table: &PaperTable,
        row: &str,
        map: &AttentionMap,
        show: &str,
    ) -> anyhow::Result<PlannedPanel> {
        let row = table.rows.iter().find(|known| known.row == row);
        let row = row.with_context(|| format!("{} has no row for attention", table.name))?;
        let title = format!("{} on {} with {}", row.row, source.dataset.title, named(&map.noise));
        let job = source.splits_for(Some(&map.noise)).and_then(|found| {
            let features = self.features(source, found, None);
            let head = self.head(source, &features, row).ok_or("the row has no head")?;
            let mut line = vec![
                CommandWord::text("attention"),
                CommandWord::result(head),
                CommandWord::result(features.test),
            ];
            let shape = self.shape(source, table.shots);
            line.extend(plain_words(&format!("--noise {} {shape} --show {show}", map.noise)));
            if let Some([.., outliers]) =
                features.outliers.filter(|_| super::planner::has_outliers(&map.noise))
            {
                line.extend([CommandWord::text("--outliers"), CommandWord::result(outliers)]);
            }
            Ok(self.jobs.add(JobKind::Attention, format!("{title}: attention"), 1.0, line))
        });
        Ok(PlannedPanel { title, job })
    }

    fn shape(&self, source: &DatasetSource<'_>, shots: usize) -> String {
        format!("--shots {shots} --queries {} --seed {}", source.dataset.queries, self.settings.seed)
    }
}

/// Shots of the support sets that are shown.
const SHOTS: usize = 5;

/// The words that give an image of a support set its outliers, as [`Planner::features`] has them.
fn test_outliers(source: &DatasetSource<'_>, found: &DatasetSplits) -> Vec<CommandWord> {
    match &source.outliers {
        _ if source.dataset.built_in => {
            let mut line = vec![CommandWord::text("--outliers"), found.val.path()];
            line.extend(plain_words("--outliers-split val"));
            line
        }
        Ok(outliers) => vec![CommandWord::text("--outliers"), outliers.test.path()],
        Err(_) => Vec::new(),
    }
}

fn named(noise: &NoiseLevels) -> String {
    let each = noise.0.iter().map(|noise| format!("{} noise of {} %", noise.kind, noise.percent()));
    each.collect::<Vec<_>>().join(", ")
}
