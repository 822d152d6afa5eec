//! Charts of accuracy against noise level (the share of wrong labels) as SVG, with one line per method. The pages of
//! evaluations start with [`accuracy_against_noise`]; reports of reproductions make [`Line`]s themselves and call
//! [`figure`] (HTML with several charts) or [`standalone`] (an SVG file). Both draw with [`plot`].
//!
//! A chart shows at most [`MAX_LINES`] lines: the references and the best methods. A page also contains the chart of
//! all lines, behind a toggle that needs no script, and both in two sizes, for screens and for phones; the style sheet
//! shows one of them. Lines have CSS classes instead of colours, so that the style sheet chooses colours for light
//! mode, dark mode and print. The first six colours of the style sheet can be told apart with every kind of colour
//! blindness.

use super::grids;
use crate::evaluate::{Evaluation, SettingResult};
use crate::label_layout::spread_labels;
use crate::noise::{Noise, NoiseKind};
use crate::visible::escaped_xml;

/// Margin in SVG units left of the plot, for the labels of accuracies. The right one depends on the names at the ends
/// of the lines ([`Scale::right`]).
const LEFT: f64 = 46.0;
/// Margin in SVG units above the plot.
const TOP: f64 = 14.0;
/// Margin in SVG units below the plot, for the labels of levels and the title of the axis.
const BOTTOM: f64 = 44.0;
/// Minimum vertical distance between the names at the ends of the lines.
const LABEL_GAP: f64 = 13.5;
/// Distance from the end of a line to its name.
const LABEL_OFFSET: f64 = 20.0;
/// The mean width of a character, to estimate the width of names.
const CHARACTER_WIDTH: f64 = 6.5;
/// Minimum horizontal distance between the labels of levels.
const TICK_GAP: f64 = 34.0;
/// Number of class colours in the style sheet, the CSS classes `c0` to `c11`.
pub(super) const COLOURS: usize = 12;
/// Maximum number of lines with a colour, and so of lines in a chart that does not show all.
pub(super) const MAX_LINES: usize = 6;

/// The marks of points as SVG paths around 0, one per colour: circle, square, triangle, diamond, triangle that points
/// down, cross.
const MARKS: [&str; MAX_LINES] = [
    "M-3 0a3 3 0 1 0 6 0a3 3 0 1 0 -6 0",
    "M-3 -3h6v6h-6z",
    "M0 -4L4 3H-4z",
    "M0 -4.5L4.5 0L0 4.5L-4.5 0z",
    "M0 4L4 -3H-4z",
    "M-1.3 -4h2.6v2.7h2.7v2.6h-2.7v2.7h-2.6v-2.7h-2.7v-2.6h2.7z",
];

/// The size of a chart in SVG units, and the CSS class that selects it.
struct Size {
    class: &'static str,
    width: f64,
    height: f64,
}

const WIDE: Size = Size { class: "wide", width: 640.0, height: 380.0 };
const NARROW: Size = Size { class: "narrow", width: 360.0, height: 330.0 };

/// One line of a chart: the accuracies of a method by noise level.
pub(super) struct Line {
    pub name: String,
    /// Index of the colour, below [`MAX_LINES`]; `None` for a line that is shown only with all others, in grey.
    pub colour: Option<usize>,
    /// Whether the line is dashed, for the oracle.
    pub dashed: bool,
    /// Noise level (0 to 1), accuracy in percent and half the width of its 95 % confidence interval.
    pub points: Vec<(f64, f64, Option<f64>)>,
}

/// How important a line is: whether it is a reference, whether it was chosen for charts, and its mean accuracy.
pub(super) type Importance = (bool, bool, f64);

/// Gives the [`MAX_LINES`] most important lines a colour; `importance` has one entry per line. The line that is dashed
/// (the oracle, a method that knows the wrong labels) gets colour 0, which is grey.
pub(super) fn assign_colours(lines: &mut [Line], importance: &[Importance]) {
    // The most important lines first: references, then chosen lines, then by mean accuracy.
    let mut order: Vec<usize> = (0..lines.len()).collect();
    let key = |line: usize| importance[line];
    order.sort_by(|&a, &b| {
        let ((reference_a, chosen_a, mean_a), (reference_b, chosen_b, mean_b)) = (key(a), key(b));
        (reference_b, chosen_b).cmp(&(reference_a, chosen_a)).then(mean_b.total_cmp(&mean_a))
    });
    order.truncate(MAX_LINES);
    // Colours are given in the order of the lines. Grey comes last for lines that are not dashed.
    order.sort_unstable();
    let mut colours = (1..MAX_LINES).chain([0]);
    for line in order {
        lines[line].colour = if lines[line].dashed { Some(0) } else { colours.next() };
    }
}

/// The chart of one noise kind as HTML; `None` if there are fewer than two levels.
pub(super) fn accuracy_against_noise(evaluation: &Evaluation, kind: NoiseKind) -> Option<String> {
    // All kinds are the same without noise, so the clean setting is part of every chart.
    let belongs = |setting: &&SettingResult| setting.noise == kind || setting.level == 0.0;
    let mut settings: Vec<&SettingResult> = evaluation.settings.iter().filter(belongs).collect();
    settings.sort_by(|a, b| a.level.total_cmp(&b.level));
    let levels: Vec<f64> = settings.iter().map(|setting| setting.level).collect();
    let mut lines = lines(&settings);
    assign_colours(&mut lines, &importance(evaluation));
    figure(&Axis::in_percent(kind, &levels), &levels, &lines)
}

/// The importance of every method. It is the same in the charts of all noise kinds, and so are the colours.
fn importance(evaluation: &Evaluation) -> Vec<Importance> {
    let methods = evaluation.settings.first().map_or(&[][..], |setting| &setting.methods);
    let of_method = |(m, method): (usize, &crate::evaluate::MethodResult)| {
        let is_reference = method.method == "oracle" || method.method == evaluation.baseline;
        let accuracies = evaluation.settings.iter().filter_map(|setting| setting.methods.get(m)?.accuracy);
        (is_reference, false, mean(accuracies))
    };
    methods.iter().enumerate().map(of_method).collect()
}

/// The mean of some values; 0 if there are none.
pub(super) fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    sum / f64::max(count, 1.0)
}

/// The horizontal axis of a chart.
pub(super) struct Axis {
    /// The tick label of every level.
    pub names: Vec<String>,
    /// The text below the axis.
    pub title: String,
}

impl Axis {
    /// An axis with levels in percent.
    pub fn in_percent(kind: NoiseKind, levels: &[f64]) -> Self {
        Axis {
            names: levels.iter().copied().map(grids::percent).collect(),
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

/// The charts of a page as HTML: that of the lines with colours, and behind a toggle that of all lines, if there are
/// more; `None` if there are fewer than two levels or no points.
pub(super) fn figure(axis: &Axis, levels: &[f64], lines: &[Line]) -> Option<String> {
    let featured = || lines.iter().filter(|line| line.colour.is_some());
    let in_both_sizes =
        |lines: &[&Line]| Some(plot(axis, levels, lines, &WIDE)? + &plot(axis, levels, lines, &NARROW)?);
    let featured_charts = in_both_sizes(&featured().collect::<Vec<_>>())?;
    if featured().count() == lines.len() {
        return Some(format!("<div class=\"charts\">\n{featured_charts}</div>\n"));
    }
    // Lines without a colour come first, so that the others are drawn on top of them.
    let others = lines.iter().filter(|line| line.colour.is_none());
    let all_charts = in_both_sizes(&others.chain(featured()).collect::<Vec<_>>())?;
    let summary = format!("Show all {} lines instead of {}", lines.len(), featured().count());
    Some(format!(
        "<div class=\"charts\">\n<details><summary>{summary}</summary>\n{all_charts}</details>\n{featured_charts}</div>\n"
    ))
}

/// A chart of lines over noise levels in ascending order; `None` if there are fewer than two levels or no points.
fn plot(axis: &Axis, levels: &[f64], lines: &[&Line], size: &Size) -> Option<String> {
    let lines: Vec<&Line> = lines.iter().copied().filter(|line| !line.points.is_empty()).collect();
    let accuracies = || lines.iter().flat_map(|line| line.points.iter().map(|point| point.1));
    if levels.len() < 2 || lines.is_empty() {
        return None;
    }
    // The lowest and the highest accuracy.
    let (low, high) = (accuracies().fold(f64::INFINITY, f64::min), accuracies().fold(0.0, f64::max));
    let scale = Scale::new((*levels.first()?, *levels.last()?), (low, high), &lines, size);
    let mut svg = format!(
        "<svg class=\"chart {}\" viewBox=\"0 0 {} {}\" role=\"group\" aria-label=\"Accuracy against {}\">\n",
        size.class,
        scale.width,
        scale.height,
        escaped_xml(&axis.title)
    );
    svg.push_str(&scale.axes(levels, axis));
    // The name of a line is at the height of its last point, unless it would overlap another name.
    let ideal = lines.iter().filter_map(|line| Some(scale.y(line.points.last()?.1))).collect();
    let ends = spread_labels(ideal, LABEL_GAP, scale.height - BOTTOM);
    for (line, label_y) in lines.into_iter().zip(ends) {
        svg.push_str(&scale.line(line, label_y));
    }
    svg.push_str("</svg>\n");
    Some(svg)
}

/// The chart of the lines with colours as a file of its own, with colours for light and dark mode; `None` if there are
/// fewer than two levels or no points.
pub(super) fn standalone(axis: &Axis, levels: &[f64], lines: &[Line]) -> Option<String> {
    let featured: Vec<&Line> = lines.iter().filter(|line| line.colour.is_some()).collect();
    let chart = plot(axis, levels, &featured, &WIDE)?;
    // The start tag of the chart gets a namespace and a size, and a style sheet and a background follow it.
    let inner = chart.trim_start().trim_start_matches("<svg ");
    let (attributes, contents) = inner.split_once('>').unwrap_or((inner, ""));
    let Size { width, height, .. } = WIDE;
    Some(format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" {attributes}>\n\
         <style>{STANDALONE_STYLE}</style>\n<rect class=\"paper\" width=\"{width}\" height=\"{height}\"/>{contents}"
    ))
}

/// The part of the style sheet of pages that a chart needs.
const STANDALONE_STYLE: &str = "svg{--paper:#fff;--soft:#59636e;--rule:#d8dee4;--c0:#6b7480;--c1:#2874cc;--c2:#c04000;\
--c3:#007a3d;--c4:#a0309a;--c5:#5a1800;font:11.5px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}\
@media(prefers-color-scheme:dark){svg{--paper:#0d1117;--soft:#9198a1;--rule:#30363d;--c0:#8b929b;--c1:#3f8cff;\
--c2:#ff8c3a;--c3:#39d0b0;--c4:#c85ae0;--c5:#fff3a0}}\
.paper{fill:var(--paper)}.axis line{stroke:var(--rule)}.axis text{fill:var(--soft)}\
.series polyline{fill:none;stroke-width:2;stroke-linejoin:round}.series .lead{fill:none;opacity:.5}\
.series.dashed polyline{stroke-dasharray:6 4}.c0{--c:var(--c0)}.c1{--c:var(--c1)}.c2{--c:var(--c2)}.c3{--c:var(--c3)}\
.c4{--c:var(--c4)}.c5{--c:var(--c5)}.series polyline,.series .lead{stroke:var(--c)}\
.series .point,.series text{fill:var(--c)}";

/// One line per method, without a colour; `settings` are the noise levels in ascending order.
fn lines(settings: &[&SettingResult]) -> Vec<Line> {
    let methods = settings.first().map_or(0, |setting| setting.methods.len());
    let line = |m: usize| {
        let point = |setting: &&SettingResult| {
            let method = &setting.methods[m];
            Some((setting.level, method.accuracy?, method.ci95))
        };
        let name = grids::shown_name(&settings[0].methods[m]);
        let dashed = name == "oracle";
        Line { name, colour: None, dashed, points: settings.iter().filter_map(point).collect() }
    };
    (0..methods).map(line).collect()
}

/// The coordinate system of a chart. Lengths are in SVG units, in which y grows downwards.
struct Scale {
    width: f64,
    height: f64,
    /// The right margin, for the names at the ends of the lines.
    right: f64,
    /// First and last level of the horizontal axis.
    levels: (f64, f64),
    /// Lowest and highest accuracy of the vertical axis.
    accuracies: (f64, f64),
    /// Distance of the grid lines, in points of accuracy.
    step: f64,
}

impl Scale {
    /// The scale for levels and accuracies from a lowest to a highest value. The margin is as wide as the names need,
    /// up to 36 % of the chart, and the chart is higher if it has many lines.
    fn new(levels: (f64, f64), (low, high): (f64, f64), lines: &[&Line], size: &Size) -> Self {
        // The smallest step with at most about seven grid lines. As accuracies are percentages, 20 is always enough.
        let step = [0.5, 1.0, 2.0, 5.0, 10.0, 20.0]
            .into_iter()
            .find(|step| (high - low) / step <= 7.0)
            .unwrap_or(20.0);
        // The axis begins and ends at multiples of the step, and spans at least one.
        let accuracies = (
            (low / step).floor() * step,
            ((high / step).ceil() * step).max((low / step).floor() * step + step),
        );
        let longest = lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0) as f64;
        let right = (LABEL_OFFSET + 6.0 + longest * CHARACTER_WIDTH).min(size.width * 0.36);
        let height = size.height.max(TOP + BOTTOM + LABEL_GAP * lines.len() as f64);
        Scale { width: size.width, height, right, levels, accuracies, step }
    }

    /// The x coordinate of a noise level.
    fn x(&self, level: f64) -> f64 {
        LEFT + (level - self.levels.0) / (self.levels.1 - self.levels.0).max(1e-9)
            * (self.width - LEFT - self.right)
    }

    /// The y coordinate of an accuracy in percent.
    fn y(&self, accuracy: f64) -> f64 {
        let fraction = (accuracy - self.accuracies.0) / (self.accuracies.1 - self.accuracies.0);
        self.height - BOTTOM - fraction * (self.height - TOP - BOTTOM)
    }

    /// Grid lines, tick labels and the title of the horizontal axis.
    fn axes(&self, levels: &[f64], axis: &Axis) -> String {
        let mut svg = String::from("<g class=\"axis\">\n");
        let (right, bottom) = (self.width - self.right, self.height - BOTTOM);
        // 1e-9 makes up for rounding errors of the sum, so that the last line is drawn.
        let mut accuracy = self.accuracies.0;
        while accuracy <= self.accuracies.1 + 1e-9 {
            // Text 4 units lower is centred on the line.
            let (y, text_y) = (self.y(accuracy), self.y(accuracy) + 4.0);
            let value = (accuracy * 10.0).round() / 10.0;
            svg.push_str(&format!("<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>"));
            svg.push_str(&format!(
                "<text x=\"{:.1}\" y=\"{text_y:.1}\" text-anchor=\"end\">{value}</text>\n",
                LEFT - 7.0
            ));
            accuracy += self.step;
        }
        // Labels of levels that would overlap the previous one are left out; the next may be at `free_from` or right of
        // it.
        let mut free_from = f64::NEG_INFINITY;
        for (&level, name) in levels.iter().zip(&axis.names) {
            let (x, y) = (self.x(level), bottom + 17.0);
            if x < free_from {
                continue;
            }
            free_from = x + TICK_GAP;
            svg.push_str(&format!("<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{name}</text>\n"));
        }
        // The title, at the bottom of the chart and centred below the plot.
        let (x, y) = ((LEFT + right) / 2.0, self.height - 8.0);
        svg.push_str(&format!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"middle\">{}</text>\n",
            escaped_xml(&axis.title)
        ));
        svg + "</g>\n"
    }

    /// One line with its points, and its name at the height `label_y` behind its end.
    fn line(&self, line: &Line, label_y: f64) -> String {
        let coordinates =
            |point: &(f64, f64, Option<f64>)| format!("{:.1},{:.1}", self.x(point.0), self.y(point.1));
        let path: Vec<String> = line.points.iter().map(coordinates).collect();
        let dashed = if line.dashed { " dashed" } else { "" };
        let colour = line.colour.map_or("other".into(), |colour| format!("c{colour}"));
        let mark = MARKS[line.colour.unwrap_or(0) % MARKS.len()];
        let name = escaped_xml(&line.name);
        let value = |&(level, accuracy, ci95): &(f64, f64, Option<f64>)| {
            let interval = ci95.map_or(String::new(), |ci| format!(" ±{ci:.2}"));
            format!("{}: {accuracy:.2}{interval}", grids::percent(level))
        };
        let values: Vec<String> = line.points.iter().map(value).collect();
        let mut svg = format!(
            "<g class=\"series {colour}{dashed}\" tabindex=\"0\" role=\"img\" aria-label=\"{name}, {}\"><title>{name}</title>\n",
            values.join(", ")
        );
        svg.push_str(&format!("<polyline points=\"{}\"/>\n", path.join(" ")));
        for (point, value) in line.points.iter().zip(values) {
            svg.push_str(&format!(
                "<path class=\"point\" d=\"{mark}\" transform=\"translate({:.1} {:.1})\"><title>{name}, {value}</title></path>\n",
                self.x(point.0),
                self.y(point.1),
            ));
        }
        // The name, and a thin line that leads from the last point towards it, up to 6 units before it.
        if let Some(end) = line.points.last() {
            let (x, y) = (self.x(end.0), self.y(end.1));
            let (lead_x, text_x, text_y) = (x + 14.0, x + LABEL_OFFSET, label_y + 4.0);
            svg.push_str(&format!("<path class=\"lead\" d=\"M{x:.1} {y:.1} L{lead_x:.1} {label_y:.1}\"/>"));
            let max_characters = ((self.width - text_x - 2.0) / CHARACTER_WIDTH).max(1.0) as usize;
            let label = escaped_xml(&shortened(&line.name, max_characters));
            svg.push_str(&format!("<text x=\"{text_x:.1}\" y=\"{text_y:.1}\">{label}</text>\n"));
        }
        svg + "</g>\n"
    }
}

/// A name of at most `max` characters, with an ellipsis if it is longer.
fn shortened(name: &str, max: usize) -> String {
    match name.chars().count() > max {
        true => name.chars().take(max.saturating_sub(1)).chain(['…']).collect(),
        false => name.into(),
    }
}
