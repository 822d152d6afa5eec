//! The chart of accuracy against noise level as SVG, with one line per method ([`accuracy_against_noise`]).
//!
//! Lines have CSS classes instead of colours, so that the page's style sheet chooses colours for light mode, dark mode and
//! print.

use super::grids;
use crate::evaluate::{Evaluation, SettingResult};
use crate::noise::{Noise, NoiseKind};

/// Size of the chart in SVG units.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 380.0;
/// Margins: left for the labels of the vertical axis, right for the names at the ends of the lines.
const LEFT: f64 = 46.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 44.0;
/// Minimum vertical distance between the names at the ends of the lines.
const LABEL_GAP: f64 = 13.0;
/// Number of series colours in the style sheet, the CSS classes `c0` to `c11`.
pub(super) const COLOURS: usize = 12;

/// One line of a chart: the accuracies of a method by noise level.
pub(super) struct Line {
    pub name: String,
    /// Index of the colour, below [`COLOURS`].
    pub colour: usize,
    /// Whether the line is dashed, for the oracle.
    pub dashed: bool,
    /// Noise level (0 to 1), accuracy in percent and half the width of its 95 % confidence interval.
    pub points: Vec<(f64, f64, Option<f64>)>,
}

/// The chart of one noise kind; `None` if there are fewer than two levels.
pub(super) fn accuracy_against_noise(evaluation: &Evaluation, kind: NoiseKind) -> Option<String> {
    // All kinds are the same without noise, so the clean setting is part of every chart.
    let belongs = |setting: &&SettingResult| setting.noise == kind || setting.level == 0.0;
    let mut settings: Vec<&SettingResult> = evaluation.settings.iter().filter(belongs).collect();
    settings.sort_by(|a, b| a.level.total_cmp(&b.level));
    let levels: Vec<f64> = settings.iter().map(|setting| setting.level).collect();
    plot(&Axis::in_percent(kind, &levels), &levels, &lines(&settings))
}

/// The horizontal axis of a chart.
pub(super) struct Axis {
    /// The tick label of every level.
    pub names: Vec<String>,
    /// The title of the axis.
    pub title: String,
}

impl Axis {
    /// An axis with levels in percent.
    pub fn in_percent(kind: NoiseKind, levels: &[f64]) -> Self {
        let name = |level: &f64| format!("{} %", (level * 1e4).round() / 1e2);
        Axis {
            names: levels.iter().map(name).collect(),
            title: format!("share of wrong labels, {kind} noise"),
        }
    }

    /// An axis with the number of wrong samples per class, of `shots`.
    pub fn in_samples(kind: NoiseKind, levels: &[f64], shots: usize) -> Self {
        let name = |&level: &f64| Noise { kind, level }.noisy_items(shots).to_string();
        Axis {
            names: levels.iter().map(name).collect(),
            title: format!("mislabelled samples of {shots} per class, {kind} noise"),
        }
    }
}

/// A chart of lines over noise levels in ascending order; `None` if there are fewer than two levels or no points.
pub(super) fn plot(axis: &Axis, levels: &[f64], lines: &[Line]) -> Option<String> {
    let values = || lines.iter().flat_map(|line| line.points.iter().map(|point| point.1));
    if levels.len() < 2 || values().next().is_none() {
        return None;
    }
    let (low, high) = (values().fold(f64::INFINITY, f64::min), values().fold(0.0, f64::max));
    let scale = Scale::new(*levels.first()?, *levels.last()?, low, high);
    let mut svg = format!(
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Accuracy against {}\">\n",
        axis.title
    );
    svg.push_str(&scale.axes(levels, axis));
    let lines: Vec<&Line> = lines.iter().filter(|line| !line.points.is_empty()).collect();
    let ends = spread(lines.iter().filter_map(|line| Some(scale.y(line.points.last()?.1))).collect());
    for (line, label_y) in lines.into_iter().zip(ends) {
        svg.push_str(&scale.line(line, label_y));
    }
    svg.push_str("</svg>\n");
    Some(svg)
}

/// A chart as a file of its own, with colours for light and dark mode.
pub(super) fn standalone(chart: &str) -> String {
    let inner = chart.trim_start().trim_start_matches("<svg ");
    let (attributes, contents) = inner.split_once('>').unwrap_or((inner, ""));
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{HEIGHT}\" {attributes}>\n\
         <style>{STANDALONE_STYLE}</style>\n<rect class=\"paper\" width=\"{WIDTH}\" height=\"{HEIGHT}\"/>{contents}"
    )
}

/// The part of the style sheet of pages that a chart needs.
const STANDALONE_STYLE: &str = "svg{--paper:#fff;--soft:#59636e;--rule:#d8dee4;--c0:#57606a;--c1:#0969da;--c2:#bf3989;\
--c3:#1a7f37;--c4:#bc4c00;--c5:#8250df;--c6:#9a6700;--c7:#116a7b;--c8:#a40e26;--c9:#4d7c0f;--c10:#6e40c9;--c11:#b35900;\
font:11.5px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}\
@media(prefers-color-scheme:dark){svg{--paper:#0d1117;--soft:#9198a1;--rule:#30363d;--c0:#9198a1;--c1:#58a6ff;\
--c2:#f778ba;--c3:#56d364;--c4:#ffa657;--c5:#bc8cff;--c6:#e3b341;--c7:#39c5cf;--c8:#ff7b72;--c9:#a5d255;--c10:#d2a8ff;\
--c11:#f0883e}}\
.paper{fill:var(--paper)}.axis line{stroke:var(--rule)}.axis text{fill:var(--soft)}\
.series polyline{fill:none;stroke-width:2;stroke-linejoin:round}.series .lead{fill:none;opacity:.5}\
.series.dashed polyline{stroke-dasharray:6 4}.c0{--c:var(--c0)}.c1{--c:var(--c1)}.c2{--c:var(--c2)}.c3{--c:var(--c3)}\
.c4{--c:var(--c4)}.c5{--c:var(--c5)}.c6{--c:var(--c6)}.c7{--c:var(--c7)}.c8{--c:var(--c8)}.c9{--c:var(--c9)}\
.c10{--c:var(--c10)}.c11{--c:var(--c11)}.series polyline,.series .lead{stroke:var(--c)}\
.series circle,.series text{fill:var(--c)}";

/// One line per method.
fn lines(settings: &[&SettingResult]) -> Vec<Line> {
    let methods = settings.first().map_or(0, |setting| setting.methods.len());
    let line = |m: usize| {
        let point = |setting: &&SettingResult| {
            let method = &setting.methods[m];
            Some((setting.level, method.accuracy?, method.ci95))
        };
        let name = grids::shown_name(&settings[0].methods[m]);
        let dashed = name == "oracle";
        Line { name, colour: m % COLOURS, dashed, points: settings.iter().filter_map(point).collect() }
    };
    (0..methods).map(line).collect()
}

/// The coordinate system of a chart.
struct Scale {
    /// First and last level of the horizontal axis.
    levels: (f64, f64),
    /// Lowest and highest accuracy of the vertical axis.
    accuracies: (f64, f64),
    /// Distance of the grid lines, in points of accuracy.
    step: f64,
}

impl Scale {
    fn new(first: f64, last: f64, low: f64, high: f64) -> Self {
        let step = [0.5, 1.0, 2.0, 5.0, 10.0, 20.0]
            .into_iter()
            .find(|step| (high - low) / step <= 7.0)
            .unwrap_or(25.0);
        let accuracies = (
            (low / step).floor() * step,
            ((high / step).ceil() * step).max((low / step).floor() * step + step),
        );
        Scale { levels: (first, last), accuracies, step }
    }

    fn x(&self, level: f64) -> f64 {
        LEFT + (level - self.levels.0) / (self.levels.1 - self.levels.0).max(1e-9) * (WIDTH - LEFT - RIGHT)
    }

    fn y(&self, accuracy: f64) -> f64 {
        let fraction = (accuracy - self.accuracies.0) / (self.accuracies.1 - self.accuracies.0);
        HEIGHT - BOTTOM - fraction * (HEIGHT - TOP - BOTTOM)
    }

    /// Grid lines, tick labels and the title of the horizontal axis.
    fn axes(&self, levels: &[f64], axis: &Axis) -> String {
        let mut svg = String::from("<g class=\"axis\">\n");
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let mut accuracy = self.accuracies.0;
        while accuracy <= self.accuracies.1 + 1e-9 {
            let (y, text_y) = (self.y(accuracy), self.y(accuracy) + 4.0);
            let value = (accuracy * 10.0).round() / 10.0;
            svg.push_str(&format!("<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"));
            svg.push_str(&format!(
                "<text x=\"{:.1}\" y=\"{text_y:.1}\" text-anchor=\"end\">{value}</text>\n",
                LEFT - 7.0
            ));
            accuracy += self.step;
        }
        for (&level, name) in levels.iter().zip(&axis.names) {
            let (x, y) = (self.x(level), bottom + 17.0);
            svg.push_str(&format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{name}</text>\n"));
        }
        let (x, y) = ((LEFT + right) / 2.0, HEIGHT - 8.0);
        svg.push_str(&format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{}</text>\n",
            axis.title
        ));
        svg + "</g>\n"
    }

    /// One line with its points, and its name at the height `label_y` behind its end.
    fn line(&self, line: &Line, label_y: f64) -> String {
        let coordinates =
            |point: &(f64, f64, Option<f64>)| format!("{:.1},{:.1}", self.x(point.0), self.y(point.1));
        let path: Vec<String> = line.points.iter().map(coordinates).collect();
        let dashed = if line.dashed { " dashed" } else { "" };
        let name = escaped(&line.name);
        let mut svg =
            format!("<g class=\"series c{}{dashed}\" tabindex=\"0\"><title>{name}</title>\n", line.colour);
        svg.push_str(&format!("<polyline points=\"{}\"/>\n", path.join(" ")));
        for point in &line.points {
            let interval = point.2.map_or(String::new(), |ci| format!(" ±{ci:.2}"));
            svg.push_str(&format!(
                "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\"><title>{name}, {}: {:.2}{interval}</title></circle>\n",
                self.x(point.0),
                self.y(point.1),
                super::grids::percent(point.0),
                point.1,
            ));
        }
        if let Some(end) = line.points.last() {
            let (x, y) = (self.x(end.0), self.y(end.1));
            let (bend, text_x, text_y) = (x + 14.0, x + 20.0, label_y + 4.0);
            svg.push_str(&format!("<path class=\"lead\" d=\"M{x:.1} {y:.1} L{bend:.1} {label_y:.1}\"/>"));
            svg.push_str(&format!("<text x=\"{text_x:.1}\" y=\"{text_y:.1}\">{name}</text>\n"));
        }
        svg + "</g>\n"
    }
}

/// Moves the labels at heights `ideal` apart until none overlaps another, keeping their order.
fn spread(ideal: Vec<f64>) -> Vec<f64> {
    let mut order: Vec<usize> = (0..ideal.len()).collect();
    order.sort_by(|&a, &b| ideal[a].total_cmp(&ideal[b]));
    let mut heights = ideal.clone();
    let mut last = f64::NEG_INFINITY;
    for &label in &order {
        heights[label] = ideal[label].max(last + LABEL_GAP);
        last = heights[label];
    }
    // Labels below the bottom of the chart move up again, together with their neighbours.
    let mut limit = HEIGHT - BOTTOM;
    for &label in order.iter().rev() {
        heights[label] = heights[label].min(limit);
        limit = heights[label] - LABEL_GAP;
    }
    heights
}

/// A text with the special characters of XML escaped.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
