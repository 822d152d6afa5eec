//! The HTML report of an evaluation ([`Page`]): one self-contained page with tables and plots.
//!
//! The page has no scripts and loads nothing, so it can be archived and sent by mail. Its style sheet supports light
//! and dark mode and printing. The template is `templates/evaluation.html`.

use askama::Template;

use super::grids::{self, Grid};
use super::support_set_figure::SupportSetFigure;
use super::{caption, chart};
use crate::evaluate::{Evaluation, SettingResult};
use crate::noise::NoiseKind;

/// The HTML page of an evaluation, optionally with an introduction and figures of support sets.
pub struct Page<'a> {
    title: &'a str,
    introduction: Vec<String>,
    pictures: Vec<SupportSetFigure>,
    evaluation: &'a Evaluation,
}

impl<'a> Page<'a> {
    /// A page with all tables and plots of an evaluation.
    pub fn new(title: &'a str, evaluation: &'a Evaluation) -> Self {
        Page { title, introduction: Vec::new(), pictures: Vec::new(), evaluation }
    }

    /// Adds a paragraph to the introduction at the top of the page.
    pub fn introduce(mut self, paragraph: impl Into<String>) -> Self {
        self.introduction.push(paragraph.into());
        self
    }

    /// Adds a figure of a support set below the introduction.
    pub fn show(mut self, figure: SupportSetFigure) -> Self {
        self.pictures.push(figure);
        self
    }

    /// The HTML text of the page.
    pub fn render(&self) -> String {
        let evaluation = self.evaluation;
        // Tables belong to the section of the noise kind at the end of their title.
        let section = |kind: NoiseKind| Section {
            kind,
            chart: chart::accuracy_against_noise(evaluation, kind),
            grids: grids::all(evaluation)
                .into_iter()
                .filter(|g| g.title.ends_with(&format!(", {kind} noise")))
                .collect(),
        };
        let view = View {
            page: self,
            caption: caption(evaluation),
            footnotes: grids::footnotes(evaluation),
            sections: grids::kinds(evaluation).into_iter().map(section).collect(),
            classes: grids::all(evaluation)
                .into_iter()
                .filter(|g| g.title.starts_with("Accuracy by class"))
                .collect(),
            significance: grids::significance(evaluation),
            confusion: evaluation.settings.iter().flat_map(confusion).collect(),
        };
        view.render().expect("the template is compiled in and its data is complete")
    }
}

/// The plot and the tables of one noise kind.
struct Section {
    kind: NoiseKind,
    /// The chart as HTML; `None` if there are fewer than two levels.
    chart: Option<String>,
    grids: Vec<Grid>,
}

/// The confusion matrix of one method under one noise setting.
struct Confusion {
    title: String,
    /// `rows[true class][predicted class]`, as a fraction of the row's total.
    rows: Vec<Vec<f64>>,
}

/// The confusion matrices of all methods under one noise setting, if the evaluation counted them.
fn confusion(setting: &SettingResult) -> Vec<Confusion> {
    let matrix = |method: &crate::evaluate::MethodResult| {
        let shares = |row: &Vec<u64>| {
            let total = row.iter().sum::<u64>().max(1) as f64;
            row.iter().map(|&count| count as f64 / total).collect()
        };
        let title = format!(
            "{}, {} noise of {}",
            grids::shown_name(method),
            setting.noise,
            grids::percent(setting.level)
        );
        Some(Confusion { title, rows: method.confusion.as_ref()?.iter().map(shares).collect() })
    };
    setting.methods.iter().filter_map(matrix).collect()
}

/// The data of the template.
#[derive(Template)]
#[template(path = "evaluation.html")]
struct View<'a> {
    page: &'a Page<'a>,
    /// Ways, shots, queries, episodes and seed.
    caption: String,
    footnotes: Vec<String>,
    /// One per noise kind.
    sections: Vec<Section>,
    /// The accuracies by class, one table per noise setting.
    classes: Vec<Grid>,
    /// The comparisons of all pairs of methods, one table per noise setting.
    significance: Vec<Grid>,
    confusion: Vec<Confusion>,
}
