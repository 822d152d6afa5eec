//! Published tables beside what was measured: one page, Markdown, LaTeX, and everything for programs.
//!
//! A cell holds what was measured, what was published, or why nothing was measured. Whether the two agree is judged
//! in one place ([`Cell::agreement`]): the accuracy itself, and its difference to ProtoNet, which does not depend on how good
//! the backbone is.

use askama::Template;
use serde::Serialize;

use super::chart::{self, Axis, COLOURS, Line};
use super::{latex, markdown};
use crate::noise::NoiseKind;

/// An accuracy may be so many points off the published one: backbones differ.
pub const ACCURACY_TOLERANCE: f64 = 2.0;
/// Its difference to ProtoNet may be so many points off the published difference.
pub const DIFFERENCE_TOLERANCE: f64 = 1.2;

/// Everything that was reproduced.
#[derive(Debug, Clone, Serialize)]
pub struct Reproduction {
    /// What it is about.
    pub title: String,
    /// How it came about: name and value.
    pub facts: Vec<(String, String)>,
    /// What a reader must know before comparing anything.
    pub warnings: Vec<String>,
    /// The tables.
    pub tables: Vec<Table>,
    /// The figures that are pictures.
    pub figures: Vec<Figure>,
}

/// Pictures on one dataset.
#[derive(Debug, Clone, Serialize)]
pub struct Figure {
    /// As on the command line.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// What it was made from.
    pub dataset: String,
    /// What to look for in it.
    pub caption: String,
    /// The pictures.
    pub panels: Vec<Panel>,
    /// The commands behind it.
    pub commands: Vec<String>,
}

/// One picture of a figure.
#[derive(Debug, Clone, Serialize)]
pub struct Panel {
    /// What it is.
    pub title: String,
    /// The picture as part of a page: an SVG, or an image with its bytes. Empty where it is missing.
    #[serde(skip)]
    pub markup: String,
    /// Why it is missing.
    pub missing: Option<String>,
}

impl Figure {
    fn heading(&self) -> String {
        format!("{}, {}", self.title, self.dataset)
    }
}

impl Panel {
    /// For those formats that hold no pictures.
    fn text(&self) -> String {
        match &self.missing {
            Some(reason) => format!("{}: not drawn, {reason}", self.title),
            None => format!("{}: in report.html", self.title),
        }
    }
}

/// One table on one dataset.
#[derive(Debug, Clone, Serialize)]
pub struct Table {
    /// As on the command line.
    pub name: String,
    /// What it shows.
    pub title: String,
    /// What it was measured on.
    pub dataset: String,
    /// The noise, for the plot.
    #[serde(skip)]
    pub noise: NoiseKind,
    /// Samples a class, where levels are to be shown as how many of them are wrong.
    #[serde(skip)]
    pub samples: Option<usize>,
    /// Levels of noise, a column each.
    pub levels: Vec<f64>,
    /// Rows.
    pub rows: Vec<Row>,
    /// What a reader must know about this table.
    pub notes: Vec<String>,
    /// The commands behind it.
    pub commands: Vec<String>,
    /// Learning curves (SVG) of the models behind it: name and file.
    pub curves: Vec<(String, String)>,
}

/// One row.
#[derive(Debug, Clone, Serialize)]
pub struct Row {
    /// As the paper calls it.
    pub name: String,
    /// The reference the others are held against, or that is out of reach.
    pub reference: Option<Reference>,
    /// A cell for every level.
    pub cells: Vec<Cell>,
}

/// Rows the others are held against.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Reference {
    /// Knows which labels are wrong.
    Oracle,
    /// Believes every label.
    Protonet,
}

/// One cell.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Cell {
    /// What was measured.
    pub measured: Option<Measured>,
    /// What was published.
    pub published: Option<Published>,
    /// Why nothing was measured.
    pub missing: Option<String>,
    /// Where it stands among the rows of its column, in tables that ask for it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub order: Option<Order>,
}

/// The place of a cell among the rows of its column, best first; references do not take part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Order {
    /// By what was measured.
    pub place: usize,
    /// By what was published.
    pub published: usize,
    /// Rows that it stands to the other way round than published, both times by more than the intervals.
    pub reversed: Vec<String>,
}

/// A measured accuracy, in percent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Measured {
    /// The mean over episodes.
    pub accuracy: f64,
    /// Half its 95 % interval.
    pub ci95: Option<f64>,
    /// Points above ProtoNet on the same episodes.
    pub difference: Option<f64>,
    /// The share of the gap from ProtoNet to Oracle that is closed.
    pub gap_closed: Option<f64>,
}

/// A published accuracy, in percent.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Published {
    /// The accuracy.
    pub accuracy: f64,
    /// Half its 95 % interval.
    pub ci95: Option<f64>,
    /// Points above the published ProtoNet of the same setting.
    pub difference: Option<f64>,
}

/// How a measured cell stands to the published one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Agreement {
    /// Accuracy and difference are within their tolerances.
    Agrees,
    /// One of the two is.
    Partly,
    /// Neither is.
    Differs,
}

impl Cell {
    /// How it stands to the published one, if both are there.
    pub fn agreement(&self) -> Option<Agreement> {
        let (measured, published) = (self.measured?, self.published?);
        let near = (measured.accuracy - published.accuracy).abs() <= ACCURACY_TOLERANCE;
        let alike = match (measured.difference, published.difference) {
            (Some(ours), Some(theirs)) => (ours - theirs).abs() <= DIFFERENCE_TOLERANCE,
            _ => near,
        };
        Some(match (near, alike) {
            (true, true) => Agreement::Agrees,
            (false, false) => Agreement::Differs,
            _ => Agreement::Partly,
        })
    }

    fn class(&self) -> &'static str {
        match self.agreement() {
            Some(Agreement::Agrees) => "agrees",
            Some(Agreement::Partly) => "partly",
            Some(Agreement::Differs) => "differs",
            None if self.missing.is_some() => "missing",
            None => "",
        }
    }

    fn accuracy(&self) -> String {
        let Some(Measured { accuracy, ci95, .. }) = self.measured else {
            // A row may have fewer levels than its table.
            return if self.missing.is_some() { "not measured".into() } else { String::new() };
        };
        format!("{accuracy:.2}{}", ci95.map_or(String::new(), |ci| format!(" ±{ci:.2}")))
    }

    fn published(&self) -> String {
        self.published.map_or(String::new(), |published| format!("{:.2}", published.accuracy))
    }

    /// Everything about the cell, for whoever points at it.
    fn explanation(&self) -> String {
        let mut parts = Vec::new();
        parts.extend(self.missing.clone());
        if let Some(measured) = self.measured {
            parts.extend(measured.difference.map(|points| format!("{points:+.2} against ProtoNet here")));
            let theirs = self.published.and_then(|published| published.difference);
            parts.extend(theirs.map(|points| format!("{points:+.2} in the paper")));
            parts.extend(measured.gap_closed.map(|gap| format!("{:.0} % of the gap to Oracle", 100.0 * gap)));
        }
        if let Some(Order { place, published, reversed }) = &self.order {
            parts.push(format!("rank {place} in its column, {published} in the paper"));
            if !reversed.is_empty() {
                parts.push(format!("in the opposite order to the paper against {}", reversed.join(", ")));
            }
        }
        parts.join("; ")
    }

    /// For Markdown and LaTeX: `57.41 ±0.17 (56.65)`, with a mark where they differ.
    fn text(&self) -> String {
        if self.measured.is_none() && self.published.is_none() {
            return "-".into();
        }
        let measured = self.measured.map_or("-".into(), |_| self.accuracy());
        let mark = match self.agreement() {
            Some(Agreement::Differs) => " !",
            Some(Agreement::Partly) => " ?",
            _ => "",
        };
        let published = self.published.map_or(String::new(), |p| format!(" ({:.2})", p.accuracy));
        let places = self.places();
        let gap = if places.is_empty() { "" } else { " " };
        format!("{measured}{published}{mark}{gap}{places}")
    }

    /// `#2 (#1)`: the place here, and in the paper; marked where a row stands the other way round.
    fn places(&self) -> String {
        self.order.as_ref().map_or(String::new(), |Order { place, published, reversed }| {
            let mark = if reversed.is_empty() { "" } else { " ≠" };
            format!("#{place} (#{published}){mark}")
        })
    }
}

impl Table {
    /// Finds the place of every cell among the rows of its column.
    pub fn put_in_order(&mut self) {
        for column in 0..self.levels.len() {
            let both = |row: &Row| {
                let cell = row.cells.get(column).filter(|_| row.reference.is_none())?;
                Some((row.name.clone(), cell.measured?, cell.published?))
            };
            let all: Vec<_> = self.rows.iter().filter_map(both).collect();
            for row in &mut self.rows {
                let Some((_, measured, published)) = both(row) else { continue };
                let better = |other: &&(String, Measured, Published)| other.1.accuracy > measured.accuracy;
                let better_there =
                    |other: &&(String, Measured, Published)| other.2.accuracy > published.accuracy;
                let reversed = |(_, ours, theirs): &&(String, Measured, Published)| {
                    let here = apart((measured.accuracy, measured.ci95), (ours.accuracy, ours.ci95));
                    let there = apart((published.accuracy, published.ci95), (theirs.accuracy, theirs.ci95));
                    here * there < 0.0
                };
                row.cells[column].order = Some(Order {
                    place: 1 + all.iter().filter(better).count(),
                    published: 1 + all.iter().filter(better_there).count(),
                    reversed: all.iter().filter(reversed).map(|other| other.0.clone()).collect(),
                });
            }
        }
    }

    fn columns(&self) -> Vec<String> {
        match self.samples {
            None => self.levels.iter().map(|&level| super::grids::percent(level)).collect(),
            Some(shots) => {
                let names = Axis::of_samples(self.noise, &self.levels, shots).names;
                names.into_iter().map(|name| format!("{name} of {shots}")).collect()
            }
        }
    }

    fn has_published(&self) -> bool {
        self.rows.iter().flat_map(|row| &row.cells).any(|cell| cell.published.is_some())
    }

    fn heading(&self) -> String {
        format!("{}, {}", self.title, self.dataset)
    }

    /// How many cells agree, agree partly, differ, and are not measured.
    fn count(&self) -> String {
        let cells = || self.rows.iter().flat_map(|row| &row.cells);
        let of = |wanted: Agreement| cells().filter(|cell| cell.agreement() == Some(wanted)).count();
        let missing = cells().filter(|cell| cell.missing.is_some()).count();
        let mut parts = vec![
            format!("{} cells agree with the paper", of(Agreement::Agrees)),
            format!("{} partly", of(Agreement::Partly)),
            format!("{} disagree", of(Agreement::Differs)),
        ];
        if !self.has_published() {
            parts = vec!["the paper has no results on this data set".into()];
        }
        if missing > 0 {
            parts.push(format!("{missing} not measured"));
        }
        let orders: Vec<&Order> = cells().filter_map(|cell| cell.order.as_ref()).collect();
        if !orders.is_empty() {
            let same = orders.iter().filter(|order| order.place == order.published).count();
            let reversed = orders.iter().map(|order| order.reversed.len()).sum::<usize>() / 2;
            parts.push(format!("{same} of {} with the same rank as in the paper", orders.len()));
            parts.push(match reversed {
                1 => "1 pair of rows in the opposite order".into(),
                _ => format!("{reversed} pairs of rows in the opposite order"),
            });
        }
        parts.join(", ")
    }

    fn chart(&self) -> Option<String> {
        let line = |(number, row): (usize, &Row)| Line {
            name: row.name.clone(),
            colour: number % COLOURS,
            dashed: row.reference == Some(Reference::Oracle),
            points: self
                .levels
                .iter()
                .zip(&row.cells)
                .filter_map(|(&level, cell)| cell.measured.map(|m| (level, m.accuracy, m.ci95)))
                .collect(),
        };
        let lines = self.rows.iter().enumerate().map(line).filter(|line| line.points.len() > 1);
        let axis = match self.samples {
            None => Axis::of_shares(self.noise, &self.levels),
            Some(shots) => Axis::of_samples(self.noise, &self.levels, shots),
        };
        chart::plot(&axis, &self.levels, &lines.collect::<Vec<_>>())
    }
}

/// How far the first accuracy is above the second; 0 if their intervals do not tell them apart.
fn apart(first: (f64, Option<f64>), second: (f64, Option<f64>)) -> f64 {
    let difference = first.0 - second.0;
    let interval = first.1.unwrap_or(0.0).hypot(second.1.unwrap_or(0.0));
    if difference.abs() > interval { difference } else { 0.0 }
}

#[derive(Template)]
#[template(path = "reproduction.html")]
struct Page<'a> {
    reproduction: &'a Reproduction,
}

impl Reproduction {
    /// One self-contained page.
    pub fn html(&self) -> String {
        Page { reproduction: self }.render().expect("the template is ours")
    }

    fn has_places(&self) -> bool {
        let cells = self.tables.iter().flat_map(|table| &table.rows).flat_map(|row| &row.cells);
        cells.into_iter().any(|cell| cell.order.is_some())
    }

    /// Everything, for programs.
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data serialises") + "\n"
    }

    /// Tables for a README.
    pub fn markdown(&self) -> String {
        let mut text = format!("# {}\n\n", self.title);
        for (name, value) in &self.facts {
            text.push_str(&format!("- {name}: {}\n", markdown::escaped(value)));
        }
        self.warnings
            .iter()
            .for_each(|warning| text.push_str(&format!("- **{}**\n", markdown::escaped(warning))));
        text.push_str(&format!("\n{LEGEND}\n"));
        if self.has_places() {
            text.push_str(&format!("\n{PLACES}\n"));
        }
        for table in &self.tables {
            text.push_str(&format!("\n## {}\n\n", markdown::escaped(&table.heading())));
            text.push_str(&format!("`{}`: {}.\n\n", table.name, table.count()));
            let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
            text.push_str(&line(&[vec![String::new()], table.columns()].concat()));
            text.push_str(&format!("|---|{}\n", "---:|".repeat(table.levels.len())));
            for row in &table.rows {
                let cells = row.cells.iter().map(|cell| markdown::escaped(&cell.text())).collect();
                text.push_str(&line(&[vec![markdown::escaped(&row.name)], cells].concat()));
            }
            table.notes.iter().for_each(|note| text.push_str(&format!("\n{}\n", markdown::escaped(note))));
            text.push_str(&format!("\n```sh\n{}\n```\n", table.commands.join("\n")));
        }
        for figure in &self.figures {
            text.push_str(&format!("\n## {}\n\n", markdown::escaped(&figure.heading())));
            text.push_str(&format!("`{}`: {}\n\n", figure.name, markdown::escaped(&figure.caption)));
            let panels =
                figure.panels.iter().map(|panel| format!("- {}\n", markdown::escaped(&panel.text())));
            text.extend(panels);
            text.push_str(&format!("\n```sh\n{}\n```\n", figure.commands.join("\n")));
        }
        text
    }

    /// Tables for a paper, for the package booktabs.
    pub fn latex(&self) -> String {
        let mut text = format!("% {}\n% needs \\usepackage{{booktabs}}\n", self.title);
        for (name, value) in &self.facts {
            text.push_str(&format!("% {name}: {value}\n"));
        }
        self.warnings.iter().for_each(|warning| text.push_str(&format!("% {warning}\n")));
        for table in &self.tables {
            text.push_str(&format!(
                "\n\\begin{{table}}\n\\centering\n\\caption{{{}}}\n",
                latex::escaped(&table.heading())
            ));
            text.push_str(&format!("\\begin{{tabular}}{{l{}}}\n\\toprule\n", "r".repeat(table.levels.len())));
            let line = |cells: Vec<String>| format!("{} \\\\\n", cells.join(" & "));
            let columns = table.columns().into_iter().map(|name| latex::escaped(&name));
            text.push_str(&line(std::iter::once(String::new()).chain(columns).collect()));
            text.push_str("\\midrule\n");
            for row in &table.rows {
                let cells = row.cells.iter().map(|cell| latex::escaped(&cell.text()));
                text.push_str(&line(std::iter::once(latex::escaped(&row.name)).chain(cells).collect()));
            }
            text.push_str("\\bottomrule\n\\end{tabular}\n\\end{table}\n");
        }
        for figure in &self.figures {
            text.push_str(&format!("\n% {}: {}\n", figure.heading(), figure.caption));
            text.extend(figure.panels.iter().map(|panel| format!("% - {}\n", panel.text())));
        }
        text
    }
}

/// What the marks of Markdown mean.
const LEGEND: &str = "Accuracy in percent with its 95 % interval, the paper's result in brackets. `!`: differs by more than 2 points from the \
paper's accuracy and by more than 1.2 points from its difference to ProtoNet; `?`: one of the two.";

/// What places mean.
const PLACES: &str = "`#2 (#1)`: second best in its column here, best in the paper. `≠`: in the opposite order to another \
row than in the paper, in both cases by more than the confidence intervals.";

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(accuracy: f64, difference: f64, published: f64, published_difference: f64) -> Cell {
        Cell {
            measured: Some(Measured {
                accuracy,
                ci95: Some(0.1),
                difference: Some(difference),
                gap_closed: None,
            }),
            published: Some(Published {
                accuracy: published,
                ci95: Some(0.1),
                difference: Some(published_difference),
            }),
            ..Cell::default()
        }
    }

    #[test]
    fn a_cell_agrees_by_its_accuracy_and_by_its_difference() {
        assert_eq!(cell(57.0, 5.0, 58.9, 5.5).agreement(), Some(Agreement::Agrees));
        assert_eq!(cell(57.0, 5.0, 59.9, 5.5).agreement(), Some(Agreement::Partly));
        assert_eq!(cell(57.0, 5.0, 58.9, 6.5).agreement(), Some(Agreement::Partly));
        assert_eq!(cell(57.0, 5.0, 59.9, 7.5).agreement(), Some(Agreement::Differs));
        assert_eq!(Cell { published: None, ..cell(57.0, 5.0, 0.0, 0.0) }.agreement(), None);
    }

    fn small() -> Reproduction {
        let missing = Cell { missing: Some("no data".into()), ..Cell::default() };
        let row = |name: &str, reference, first| Row {
            name: name.into(),
            reference,
            cells: vec![first, missing.clone()],
        };
        Reproduction {
            title: "A <title>".into(),
            facts: vec![("scale".into(), "0.1".into())],
            warnings: vec!["training was shortened".into()],
            tables: vec![Table {
                name: "t".into(),
                title: "Noise".into(),
                dataset: "set & co".into(),
                noise: NoiseKind::Symmetric,
                samples: None,
                levels: vec![0.0, 0.4],
                rows: vec![
                    row("Oracle", Some(Reference::Oracle), cell(60.0, 4.0, 61.0, 4.0)),
                    row("A_row", None, cell(57.0, 5.0, 59.9, 7.5)),
                ],
                notes: vec!["a note".into()],
                commands: vec!["trueshot eval x".into()],
                curves: vec![],
            }],
            figures: vec![Figure {
                name: "f".into(),
                title: "Sets".into(),
                dataset: "set & co".into(),
                caption: "Look at the *frames*.".into(),
                panels: vec![
                    Panel { title: "paired".into(), markup: "<svg id=\"p\"></svg>".into(), missing: None },
                    Panel {
                        title: "outlier".into(),
                        markup: String::new(),
                        missing: Some("no outliers".into()),
                    },
                ],
                commands: vec!["trueshot episode x".into()],
            }],
        }
    }

    #[test]
    fn places_are_those_among_the_rows_that_are_compared() {
        let mut table = small().tables.remove(0);
        let row = |name: &str, measured, published| Row {
            name: name.into(),
            reference: None,
            cells: vec![cell(measured, 0.0, published, 0.0), Cell::default()],
        };
        // The second and third change places by less than the intervals; the first and last by more.
        table.rows.extend([row("b", 58.0, 55.0), row("c", 57.1, 58.0), row("d", 57.05, 58.05)]);
        table.put_in_order();
        let orders: Vec<_> = table.rows.iter().map(|row| row.cells[0].order.clone()).collect();
        assert_eq!(orders[0], None, "the Oracle is above all");
        let places: Vec<_> = orders[1..].iter().flatten().map(|o| (o.place, o.published)).collect();
        assert_eq!(places, [(4, 1), (1, 4), (2, 3), (3, 2)]);
        assert_eq!(orders[1].as_ref().unwrap().reversed, ["b"]);
        assert_eq!(orders[2].as_ref().unwrap().reversed, ["A_row", "c", "d"]);
        assert_eq!(table.rows[2].cells[0].text(), "58.00 ±0.10 (55.00) ? #1 (#4) ≠");
        assert!(
            table.count().ends_with(
                "0 of 4 with the same rank as in the paper, 3 pairs of rows in the opposite order"
            )
        );
    }

    #[test]
    fn curves_count_samples() {
        let mut table = small().tables.remove(0);
        table.samples = Some(5);
        assert_eq!(table.columns(), ["0 of 5", "2 of 5"]);
        table.rows[0].cells[1] = table.rows[0].cells[0].clone();
        let chart = table.chart().unwrap();
        assert!(chart.contains("mislabelled samples of 5 per class, symmetric noise"), "{chart}");
    }

    #[test]
    fn figures_are_on_the_page_and_spoken_of_elsewhere() {
        let html = small().html();
        assert!(html.contains("<svg id=\"p\"></svg>") && html.contains("no outliers"), "{html}");
        let markdown = small().markdown();
        assert!(
            markdown.contains("- paired: in report.html\n- outlier: not drawn, no outliers"),
            "{markdown}"
        );
        assert!(markdown.contains("trueshot episode x"), "{markdown}");
        assert!(small().latex().contains("% - paired: in report.html"));
    }

    #[test]
    fn every_format_shows_measured_and_published() {
        let markdown = small().markdown();
        assert!(markdown.contains("| A\\_row | 57.00 ±0.10 (59.90) ! | - |"), "{markdown}");
        assert!(
            markdown.contains("1 cells agree with the paper, 0 partly, 1 disagree, 2 not measured"),
            "{markdown}"
        );
        let latex = small().latex();
        assert!(latex.contains("A\\_row & 57.00 $\\pm$0.10 (59.90) ! & - \\\\"), "{latex}");
        let html = small().html();
        assert!(html.contains("A &#60;title&#62;") || html.contains("A &lt;title&gt;"), "{html}");
        assert!(html.contains("class=\"differs\"") && html.contains("class=\"missing\""));
        let json: serde_json::Value = serde_json::from_str(&small().json()).unwrap();
        assert_eq!(json["tables"][0]["rows"][1]["cells"][0]["published"]["accuracy"], 59.9);
    }
}
