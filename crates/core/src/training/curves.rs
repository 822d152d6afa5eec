//! Learning curves as an SVG image: loss terms in the upper panel, validation in the lower one, over the same steps.
//!
//! Start with [`draw`], which the training loop calls whenever it writes its files. The image contains its own colours,
//! for light and for dark mode, because people open it outside the pages of this project. Positive losses that span a
//! wide range are on a logarithmic scale: otherwise the first steps would flatten all others.

use super::Record;
use crate::label_layout::spread_labels;
use crate::visible::escaped_xml;

/// Width of the image in pixels, like all lengths here.
const WIDTH: f64 = 860.0;
/// Height of one panel, including its title and axis.
const PANEL_HEIGHT: f64 = 300.0;
/// Height of the title above the first panel.
const TITLE_HEIGHT: f64 = 34.0;
/// Space for the labels of the y axis.
const MARGIN_LEFT: f64 = 58.0;
/// Space for the names at the ends of the lines.
const MARGIN_RIGHT: f64 = 190.0;
/// Space for the title of a panel.
const MARGIN_TOP: f64 = 30.0;
/// Space for the labels of the x axis.
const MARGIN_BOTTOM: f64 = 34.0;
/// The smallest vertical distance of two names at the ends of lines.
const LABEL_GAP: f64 = 14.0;
/// The distance of the baseline of a text below the height at which its middle is drawn.
const BASELINE: f64 = 4.0;
/// The distance from the x axis down to the baseline of its labels.
const X_LABELS: f64 = 18.0;
/// The maximum number of points of a loss line; more are averaged, because they could not be told apart.
const MAX_POINTS: usize = 400;
/// The number of line colours in [`STYLE`], `--c0` to `--c11`.
const COLOURS: usize = 12;
/// A panel whose values are positive and span more than this factor is on a logarithmic scale.
const LOGARITHMIC_FROM: f64 = 8.0;

/// The style sheet of the image.
const STYLE: &str = "svg{--paper:#fff;--ink:#1b1f24;--soft:#59636e;--rule:#d8dee4;--c0:#0969da;--c1:#bc4c00;\
--c2:#1a7f37;--c3:#bf3989;--c4:#8250df;--c5:#9a6700;--c6:#116a7b;--c7:#a40e26;--c8:#4d7c0f;--c9:#6e40c9;\
--c10:#b35900;--c11:#57606a;font:12px system-ui,-apple-system,'Segoe UI',Roboto,sans-serif}\
@media(prefers-color-scheme:dark){svg{--paper:#0d1117;--ink:#e6edf3;--soft:#9198a1;--rule:#30363d;--c0:#58a6ff;\
--c1:#ffa657;--c2:#56d364;--c3:#f778ba;--c4:#bc8cff;--c5:#e3b341;--c6:#39c5cf;--c7:#ff7b72;--c8:#a5d255;\
--c9:#d2a8ff;--c10:#f0883e;--c11:#9198a1}}\
.paper{fill:var(--paper)}.title{fill:var(--ink);font-weight:600}.axis text{fill:var(--soft)}\
.axis line{stroke:var(--rule)}.best{stroke:var(--ink);stroke-dasharray:3 3}\
.line polyline{fill:none;stroke-width:1.8;stroke-linejoin:round}.line .lead{fill:none;opacity:.5}\
.bold polyline{stroke-width:3}";

/// One curve of a panel.
struct Line {
    /// The name at the right end of the curve.
    name: String,
    /// Step and value.
    points: Vec<(f64, f64)>,
    /// Whether it is drawn as a thicker line: the total loss and the validation score.
    bold: bool,
}

/// Draws the learning curves of a run and returns the SVG text.
pub(super) fn draw(title: &str, records: &[Record]) -> String {
    let losses = loss_lines(records);
    let scores = validation_lines(records);
    let last_step = records.last().map_or(1.0, |record| record.step as f64);
    let best = best_step(records);
    // Panels without data, such as the validation of a run that has none, are left out.
    let panels = [("loss (mean since the last point)", losses), ("validation", scores)];
    let shown: Vec<_> = panels.into_iter().filter(|(_, lines)| !lines.is_empty()).collect();
    let height = TITLE_HEIGHT + PANEL_HEIGHT * shown.len().max(1) as f64;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\"><style>{STYLE}</style>\n<rect class=\"paper\" width=\"{WIDTH}\" height=\"{height}\"/>\n\
         <text class=\"title\" x=\"{MARGIN_LEFT}\" y=\"24\" font-size=\"15\">{}</text>\n",
        escaped_xml(title)
    );
    for (index, (name, lines)) in shown.iter().enumerate() {
        let panel = Panel::new(TITLE_HEIGHT + PANEL_HEIGHT * index as f64, last_step, lines);
        svg.push_str(&panel.axes(name));
        if let Some(best) = best.filter(|_| *name == "validation") {
            svg.push_str(&panel.best_marker(best));
        }
        svg.push_str(&panel.lines(lines));
    }
    svg + "</svg>\n"
}

/// The lines of the loss and, if there are several, of its terms.
fn loss_lines(records: &[Record]) -> Vec<Line> {
    let names =
        records.first().map_or(Vec::new(), |record| record.terms.iter().map(|term| &term.0).collect());
    let several = names.len() > 1;
    let term = |(index, name): (usize, &&String)| Line {
        name: name.to_string(),
        points: thinned(records.iter().map(|r| (r.step as f64, r.terms[index].1)).collect()),
        bold: false,
    };
    let total = Line {
        name: "loss".into(),
        points: thinned(records.iter().map(|r| (r.step as f64, r.loss)).collect()),
        bold: true,
    };
    let mut lines: Vec<Line> = names.iter().enumerate().filter(|_| several).map(term).collect();
    lines.extend((!records.is_empty()).then_some(total));
    lines
}

/// The lines of the validation score and of the values behind it, such as the accuracy under each noise setting. If
/// there is only one such value, it is the score, which then gets no line of its own.
fn validation_lines(records: &[Record]) -> Vec<Line> {
    let validated: Vec<&Record> = records.iter().filter(|record| record.score.is_some()).collect();
    let Some(first) = validated.first() else { return Vec::new() };
    let figure = |(index, (name, _)): (usize, &(String, f64))| Line {
        name: name.clone(),
        points: validated.iter().filter_map(|r| Some((r.step as f64, r.validation.get(index)?.1))).collect(),
        bold: false,
    };
    let mut lines: Vec<Line> = first.validation.iter().enumerate().map(figure).collect();
    if lines.len() != 1 {
        let points = validated.iter().filter_map(|r| Some((r.step as f64, r.score?))).collect();
        lines.push(Line { name: "score".into(), points, bold: true });
    }
    lines
}

/// The step with the highest validation score.
fn best_step(records: &[Record]) -> Option<f64> {
    let scored = records.iter().filter_map(|record| Some((record.score?, record.step)));
    let best = scored.reduce(|best, next| if next.0 > best.0 { next } else { best })?;
    Some(best.1 as f64)
}

/// Averages neighbouring points so that a line has at most [`MAX_POINTS`]. An average is at the step of its last point.
fn thinned(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    let chunk_size = points.len().div_ceil(MAX_POINTS).max(1);
    let mean = |chunk: &[(f64, f64)]| {
        let sum = chunk.iter().map(|point| point.1).sum::<f64>();
        (chunk[chunk.len() - 1].0, sum / chunk.len() as f64)
    };
    points.chunks(chunk_size).map(mean).collect()
}

/// One panel of the image: its position, scales and ticks.
struct Panel {
    /// The y coordinate of its upper edge.
    top: f64,
    /// The last step, at the right end of the x axis.
    last_step: f64,
    /// The value at the lower end of the y axis.
    low: f64,
    /// The value at the upper end of the y axis.
    high: f64,
    /// The values with a grid line and a label.
    ticks: Vec<f64>,
    /// Whether the y axis is logarithmic.
    logarithmic: bool,
}

impl Panel {
    /// A panel whose axes fit the points of `lines`.
    fn new(top: f64, last_step: f64, lines: &[Line]) -> Self {
        let values = || lines.iter().flat_map(|line| line.points.iter().map(|point| point.1));
        let low = values().fold(f64::INFINITY, f64::min);
        let high = values().fold(f64::NEG_INFINITY, f64::max);
        let logarithmic = low > 0.0 && high / low > LOGARITHMIC_FROM;
        let ticks = if logarithmic { log_ticks(low, high) } else { linear_ticks(low, high) };
        let (low, high) = (ticks[0].min(low), ticks[ticks.len() - 1].max(high));
        Panel { top, last_step, low, high, ticks, logarithmic }
    }

    /// The x coordinate of a step.
    fn x(&self, step: f64) -> f64 {
        MARGIN_LEFT + step / self.last_step.max(1.0) * (WIDTH - MARGIN_LEFT - MARGIN_RIGHT)
    }

    /// The y coordinate of a value.
    fn y(&self, value: f64) -> f64 {
        let on_scale = |value: f64| if self.logarithmic { value.ln() } else { value };
        let (low, high) = (on_scale(self.low), on_scale(self.high));
        let share = (on_scale(value) - low) / (high - low).max(1e-12);
        self.top + PANEL_HEIGHT - MARGIN_BOTTOM - share * (PANEL_HEIGHT - MARGIN_TOP - MARGIN_BOTTOM)
    }

    /// The title, grid lines and axis labels.
    fn axes(&self, name: &str) -> String {
        let mut svg = format!(
            "<text class=\"title\" x=\"{MARGIN_LEFT}\" y=\"{:.1}\">{}</text>\n<g class=\"axis\">\n",
            self.top + 16.0,
            escaped_xml(name)
        );
        for &tick in &self.ticks {
            let y = self.y(tick);
            svg.push_str(&format!(
                "<line x1=\"{MARGIN_LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/><text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\n",
                WIDTH - MARGIN_RIGHT,
                MARGIN_LEFT - 7.0,
                y + BASELINE,
                tick_number(tick)
            ));
        }
        for step in linear_ticks(0.0, self.last_step).into_iter().filter(|&step| step <= self.last_step) {
            svg.push_str(&format!(
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\n",
                self.x(step),
                self.top + PANEL_HEIGHT - MARGIN_BOTTOM + X_LABELS,
                tick_number(step)
            ));
        }
        // The name of the axis, right of the label of the last step.
        let (x, y) = (WIDTH - MARGIN_RIGHT + 34.0, self.top + PANEL_HEIGHT - MARGIN_BOTTOM + X_LABELS);
        svg + &format!("<text x=\"{x:.1}\" y=\"{y:.1}\">steps</text></g>\n")
    }

    /// A dashed vertical line at the best step, whose parameters are in the model file.
    fn best_marker(&self, step: f64) -> String {
        let (x, top, bottom) = (self.x(step), self.top + MARGIN_TOP, self.top + PANEL_HEIGHT - MARGIN_BOTTOM);
        format!(
            "<g class=\"axis\"><line class=\"best\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{top:.1}\" y2=\"{bottom:.1}\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">best</text></g>\n",
            top - 3.0
        )
    }

    /// The curves, with name and last value at the right end. Names that would overlap are moved apart, and a thin line
    /// leads from the end of each curve to its name.
    fn lines(&self, lines: &[Line]) -> String {
        let ends = lines.iter().map(|line| line.points.last().map_or(0.0, |point| self.y(point.1))).collect();
        let ends = spread_labels(ends, LABEL_GAP, self.top + PANEL_HEIGHT - MARGIN_BOTTOM);
        let drawn = lines.iter().zip(ends).enumerate().map(|(index, (line, label_y))| {
            let points: Vec<String> =
                line.points.iter().map(|p| format!("{:.1},{:.1}", self.x(p.0), self.y(p.1))).collect();
            let (colour, bold) = (index % COLOURS, if line.bold { " bold" } else { "" });
            let end = line.points.last().copied().unwrap_or_default();
            let (x, y) = (self.x(end.0), self.y(end.1));
            format!(
                "<g class=\"line{bold}\"><polyline stroke=\"var(--c{colour})\" points=\"{}\"/><path class=\"lead\" \
                 stroke=\"var(--c{colour})\" d=\"M{x:.1} {y:.1} L{:.1} {label_y:.1}\"/><text fill=\"var(--c{colour})\" \
                 x=\"{:.1}\" y=\"{:.1}\">{} {}</text></g>\n",
                points.join(" "),
                // The thin line ends 12 pixels behind the curve, and the name begins 16 pixels behind it.
                x + 12.0,
                x + 16.0,
                label_y + BASELINE,
                escaped_xml(&line.name),
                label_number(end.1)
            )
        });
        drawn.collect()
    }
}

/// A few multiples of a round step (1, 2 or 5 times a power of ten) that span `low` to `high`.
fn linear_ticks(low: f64, high: f64) -> Vec<f64> {
    // At least 1e-9 of the values, so that equal values have a step, too.
    let span = (high - low).max(1e-9 * high.abs().max(1.0));
    // The step is the smallest round number that divides the span into at most five parts.
    let rough = span / 5.0;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|&s| s >= rough).unwrap_or(power);
    let first = (low / step).floor() as i64;
    let last = ((high / step).ceil() as i64).max(first + 1);
    (first..=last).map(|n| n as f64 * step).collect()
}

/// 1, 2 and 5 times the powers of ten (only the powers if the range is wide) that span `low` to `high`.
fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let multiples: &[f64] = if high / low > 1e3 { &[1.0] } else { &[1.0, 2.0, 5.0] };
    let (first, last) = (low.log10().floor() as i32, high.log10().ceil() as i32);
    let all = (first..=last).flat_map(|power| multiples.iter().map(move |m| m * 10f64.powi(power)));
    let all: Vec<f64> = all.collect();
    // From the last tick that is not above `low` to the first that is not below `high`.
    let from = all.iter().rposition(|&tick| tick <= low).unwrap_or(0);
    let to = all.iter().position(|&tick| tick >= high).unwrap_or(all.len() - 1);
    all[from..=to].to_vec()
}

/// A value for the name of a line: two decimals from 10 on, four below.
fn label_number(value: f64) -> String {
    let scale = if value.abs() >= 10.0 { 1e2 } else { 1e4 };
    tick_number((value * scale).round() / scale)
}

/// A number without the rounding errors of binary fractions: 0.3, not 0.30000000000000004.
fn tick_number(value: f64) -> String {
    let rounded = (value * 1e6).round() / 1e6;
    if rounded == 0.0 && value != 0.0 { format!("{value:.0e}") } else { rounded.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn records(count: u64) -> Vec<Record> {
        let record = |n: u64| Record {
            step: n * 100,
            rate: 1e-3,
            loss: 30.0 / n as f64 + 1.0,
            terms: vec![("queries".into(), 1.0), ("clean <prototypes>".into(), 30.0 / n as f64)],
            score: n.is_multiple_of(5).then_some(50.0 + n as f64 / 10.0),
            validation: match n.is_multiple_of(5) {
                true => vec![("symmetric 0 %".into(), 60.0), ("symmetric 40 %".into(), 40.0)],
                false => vec![],
            },
            device: None,
            seconds: 1.0,
        };
        (1..=count).map(record).collect()
    }

    #[test]
    fn a_run_is_drawn_with_a_line_per_loss_term_and_figure() {
        let svg = draw("TraNFS & more", &records(2000));
        // The loss and its two terms; the score and its two figures.
        assert_eq!(svg.matches("<polyline").count(), 6);
        assert!(svg.contains("TraNFS &amp; more") && svg.contains("clean &lt;prototypes&gt;"));
        assert!(svg.contains("best") && !svg.contains("NaN") && !svg.contains("inf"));
        assert!(svg.len() < 60_000, "a long run is thinned: {}", svg.len());
    }

    #[test]
    fn runs_of_no_one_and_two_records_can_be_drawn() {
        for count in [0, 1, 2] {
            let svg = draw("run", &records(count));
            assert!(svg.ends_with("</svg>\n") && !svg.contains("NaN"));
        }
    }

    #[test]
    fn ticks_span_the_values() {
        for (low, high) in [(0.0, 1.0), (37.2, 61.9), (5.0, 5.0), (0.001, 0.0011)] {
            let ticks = linear_ticks(low, high);
            assert!(ticks[0] <= low && ticks[ticks.len() - 1] >= high && ticks.len() <= 9, "{ticks:?}");
        }
        assert_eq!(log_ticks(0.3, 40.0), [0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0]);
    }
}
