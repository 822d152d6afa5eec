//! One self-contained page: no asset from outside, no script, light and dark, readable on paper.

use askama::Template;

use super::grids::{self, Grid};
use super::support_set_figure::SupportSetFigure;
use super::{caption, chart};
use crate::evaluate::{Evaluation, SettingResult};
use crate::noise::NoiseKind;

/// A page about an evaluation, with pictures of support sets where there are any.
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

    /// Adds a paragraph above everything else.
    pub fn introduce(mut self, paragraph: impl Into<String>) -> Self {
        self.introduction.push(paragraph.into());
        self
    }

    /// Adds a picture of a support set.
    pub fn show(mut self, picture: SupportSetFigure) -> Self {
        self.pictures.push(picture);
        self
    }

    /// The page as text.
    pub fn render(&self) -> String {
        let evaluation = self.evaluation;
        let of_kind = |kind: NoiseKind| Section {
            kind,
            chart: chart::accuracy_against_noise(evaluation, kind),
            grids: grids::all(evaluation)
                .into_iter()
                .filter(|g| g.title.ends_with(&format!("{kind} noise")))
                .collect(),
        };
        let asked = |kind: &NoiseKind| evaluation.settings.iter().any(|setting| setting.noise == *kind);
        let view = View {
            page: self,
            caption: caption(evaluation),
            sections: NoiseKind::ALL.into_iter().filter(asked).map(of_kind).collect(),
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

struct Section {
    kind: NoiseKind,
    chart: Option<String>,
    grids: Vec<Grid>,
}

/// How often one class was taken for another.
struct Confusion {
    title: String,
    /// Shares of a row, from 0 to 1.
    rows: Vec<Vec<f64>>,
}

fn confusion(setting: &SettingResult) -> Vec<Confusion> {
    let of_method = |method: &crate::evaluate::MethodResult| {
        let shares = |row: &Vec<u64>| {
            let total = row.iter().sum::<u64>().max(1) as f64;
            row.iter().map(|&count| count as f64 / total).collect()
        };
        let title =
            format!("{}, {} noise of {}", method.method, setting.noise, grids::percent(setting.level));
        Some(Confusion { title, rows: method.confusion.as_ref()?.iter().map(shares).collect() })
    };
    setting.methods.iter().filter_map(of_method).collect()
}

#[derive(Template)]
#[template(path = "evaluation.html")]
struct View<'a> {
    page: &'a Page<'a>,
    caption: String,
    sections: Vec<Section>,
    classes: Vec<Grid>,
    significance: Vec<Grid>,
    confusion: Vec<Confusion>,
}
