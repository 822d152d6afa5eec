//! Figures of the report: curves, which show rows of tables against the number of wrong labels ([`Planner::curves`]),
//! and images, which jobs draw ([`Planner::figure`]). A job is a command of this program with one result file.

use std::path::Path;

use anyhow::Context;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use trueshot::noise::NoiseLevels;
use trueshot::report::escaped_xml;
use trueshot::report::reproduction::{self, Panel};

use super::experiments::{AttentionMap, Experiments, Figure, FigureContent, PaperDataset, PaperTable};
use super::jobs::{Argument, JobKind, Jobs, plain_arguments};
use super::planner::{DatasetSource, PlannedTable, Planner, RowBackbone, has_outliers};

/// A figure of images on one dataset.
pub struct PlannedFigure<'a> {
    pub figure: &'a Figure,
    pub dataset: &'a PaperDataset,
    caption: &'a str,
    panels: Vec<PlannedPanel>,
}

/// One image of a figure.
struct PlannedPanel {
    title: String,
    /// The job that draws the image, or the reason why it cannot be drawn.
    job: Result<usize, String>,
}

impl Figure {
    /// The names of the rows that are drawn as curves; `None` for figures of images.
    pub fn rows(&self) -> Option<&[String]> {
        if let FigureContent::Curves { rows, .. } = &self.shows { Some(rows) } else { None }
    }

    /// The tables whose rows are drawn as curves; empty for figures of images.
    pub fn tables<'a>(&'a self, experiments: &'a Experiments) -> anyhow::Result<Vec<&'a PaperTable>> {
        let FigureContent::Curves { tables, .. } = &self.shows else { return Ok(Vec::new()) };
        tables.iter().map(|name| experiments.table(name)).collect()
    }
}

impl PlannedFigure<'_> {
    /// The jobs that draw the images.
    pub fn jobs(&self) -> impl Iterator<Item = usize> {
        self.panels.iter().filter_map(|panel| panel.job.as_ref().ok().copied())
    }

    /// The reasons for the images that are not drawn.
    pub fn missing(&self) -> impl Iterator<Item = &String> {
        self.panels.iter().filter_map(|panel| panel.job.as_ref().err())
    }

    /// The figure for the report, with the images that the jobs have drawn in the output folder.
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

/// An image file as HTML: inline SVG, or an `img` element with a data URI.
fn markup(title: &str, path: &Path) -> anyhow::Result<String> {
    let bytes = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
    if path.extension().is_some_and(|extension| extension == "svg") {
        return Ok(String::from_utf8(bytes)?);
    }
    let title = escaped_xml(title);
    Ok(format!("<img class=\"map\" alt=\"{title}\" src=\"data:image/png;base64,{}\">", BASE64.encode(bytes)))
}

impl<'a> Planner<'a> {
    /// Plans the tables of a figure of curves, without the evaluations that only measure rows that are not drawn.
    pub fn curves(
        &mut self,
        figure: &'a Figure,
        tables: &[&'a PaperTable],
        source: &DatasetSource<'a>,
    ) -> Vec<PlannedTable<'a>> {
        let mut planned_tables = Vec::new();
        for table in tables.iter().filter(|table| table.datasets.iter().any(|name| name == source.name)) {
            let mut planned = self.plan(table, source);
            planned.curve = Some(figure);
            let drawn: Vec<usize> = planned.rows().map(|(index, _)| index).collect();
            planned.evaluations.retain(|evaluation| evaluation.rows.iter().any(|row| drawn.contains(row)));
            planned.missing.retain(|row, _| drawn.contains(row));
            planned_tables.push(planned);
        }
        planned_tables
    }

    /// Adds all jobs of a figure of images on one dataset; `None` for a figure of curves.
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

    /// Adds the job that draws a support set of the dataset with this noise.
    fn support_set(&mut self, source: &DatasetSource<'_>, noise: &NoiseLevels) -> PlannedPanel {
        let title = format!("{} with {}", source.dataset.title, noise_title(noise));
        let job = source.splits.as_ref().map_err(String::clone).map(|splits| {
            let mut args = vec![Argument::text("episode")];
            args.extend(splits.test.arguments());
            args.extend(plain_arguments(&format!("--noise {noise} {}", self.episode_flags(source, SHOTS))));
            if has_outliers(noise) {
                args.extend(source.test_outliers(splits).outlier_arguments());
            }
            self.jobs.add(JobKind::SupportSet, format!("{title}: the support set"), DRAWING_SECONDS, args)
        });
        PlannedPanel { title, job }
    }

    /// Adds the jobs that train the head of a row of `table` and draw its attention in an episode with the noise of
    /// `map`. `show` selects layers and attention heads, as in `trueshot attention --show`.
    fn attention(
        &mut self,
        source: &DatasetSource<'_>,
        table: &PaperTable,
        row_name: &str,
        map: &AttentionMap,
        show: &str,
    ) -> anyhow::Result<PlannedPanel> {
        let row = table.rows.iter().find(|row| row.row == row_name);
        let row = row.with_context(|| format!("table '{}' has no row '{row_name}'", table.name))?;
        let title = format!("{row_name} on {} with {}", source.dataset.title, noise_title(&map.noise));
        let job = source.splits.as_ref().map_err(String::clone).and_then(|splits| {
            let features = self.features(source, splits, RowBackbone::Dataset);
            let head = self.head(source, &features, row);
            let head = head.ok_or_else(|| format!("row '{row_name}' has no head"))?;
            let mut args =
                vec![Argument::text("attention"), Argument::result(head), Argument::result(features.test)];
            let episode = self.episode_flags(source, table.shots);
            args.extend(plain_arguments(&format!("--noise {} {episode} --show {show}", map.noise)));
            if has_outliers(&map.noise) {
                args.extend([Argument::text("--outliers"), Argument::result(features.outliers.test)]);
            }
            Ok(self.jobs.add(JobKind::Attention, format!("{title}: attention"), DRAWING_SECONDS, args))
        });
        Ok(PlannedPanel { title, job })
    }

    /// The flags that define the episode to draw.
    fn episode_flags(&self, source: &DatasetSource<'_>, shots: usize) -> String {
        format!("--shots {shots} --queries {} --seed {}", source.dataset.queries, self.settings.seed)
    }
}

/// Shots of the support sets in figures.
const SHOTS: usize = 5;
/// The estimated duration of a job that draws an image, in seconds.
const DRAWING_SECONDS: f64 = 1.0;

/// Noise types with their levels in words, such as "paired noise of 40 %".
fn noise_title(noise: &NoiseLevels) -> String {
    let settings = noise.0.iter().map(|noise| format!("{} noise of {} %", noise.kind, noise.percent()));
    settings.collect::<Vec<_>>().join(", ")
}
