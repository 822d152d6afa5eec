//! The map of an audit as an SVG scatter plot: one mark per item, with the colour and shape of its class and a ring
//! around suspect items.

use super::percent;
use crate::audit::Audit;
use crate::embeddings::Embeddings;
use crate::report::chart::COLOURS;
use crate::visible::{counted, escaped_xml};

/// Width of the figure in SVG units.
const WIDTH: f32 = 720.0;
/// Height of the figure in SVG units.
const HEIGHT: f32 = 460.0;
/// Margin on all sides in SVG units, wider than a mark with its ring.
const MARGIN: f32 = 16.0;
/// Maximum number of marks; more would cover each other.
const MAX_MARKS: usize = 5000;
/// Maximum number of classes in the legend.
const MAX_LEGEND: usize = 24;

/// The shapes of marks as SVG paths around 0: circle, square, triangle and diamond. Classes first use up the colours
/// with the first shape, then with the next.
const SHAPES: [&str; 4] =
    ["M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0", "M-4 -4h8v8h-8z", "M0 -5L5 4H-5z", "M0 -5.5L5.5 0L0 5.5L-5.5 0z"];

/// The map with its legend. `points` are the positions of all items, one per row, in any scale; `has_item` says whether
/// the page shows the item of a row, to which its mark then links (`#i` and the row).
pub(super) fn svg(
    audit: &Audit,
    data: &Embeddings,
    points: &[[f32; 2]],
    has_item: impl Fn(usize) -> bool,
) -> String {
    let viewport = Viewport::new(points);
    let mut svg = format!(
        "<svg class=\"map\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"group\" aria-label=\"Map of {} items: similar items are close together, suspect items have a ring\">\n",
        points.len()
    );
    for row in drawing_order(audit) {
        let item = &audit.items[row];
        let class = data.labels()[row] as usize;
        let (x, y) = viewport.coordinates(points[row]);
        let suspect = item.is_suspect();
        let tooltip =
            format!("{}, label {}, probability wrong: {}", item.item, item.given, percent(item.p_wrong));
        let link = has_item(row).then(|| {
            // Only suspects can be reached with the tab key.
            let tabindex = if suspect { "" } else { " tabindex=\"-1\"" };
            format!("<a href=\"#i{row}\"{tabindex}>")
        });
        svg.push_str(link.as_deref().unwrap_or(""));
        svg.push_str(&format!(
            "<g class=\"mark c{}\" transform=\"translate({x:.1} {y:.1})\">",
            class % COLOURS
        ));
        svg.push_str(&format!("<title>{}</title>", escaped_xml(&tooltip)));
        if suspect {
            svg.push_str("<circle class=\"ring\" r=\"9\"/>");
        }
        svg.push_str(&format!("<path d=\"{}\"/></g>", SHAPES[class / COLOURS % SHAPES.len()]));
        svg.push_str(if link.is_some() { "</a>\n" } else { "\n" });
    }
    svg + "</svg>\n" + &legend(data)
}

/// The rows to draw, with suspects last so that they are on top. If there are more than [`MAX_MARKS`] items, only every
/// n-th of the others is drawn.
fn drawing_order(audit: &Audit) -> Vec<usize> {
    let (suspects, others): (Vec<usize>, Vec<usize>) =
        (0..audit.items.len()).partition(|row| audit.items[*row].is_suspect());
    let max_others = MAX_MARKS.saturating_sub(suspects.len()).max(1);
    let step = others.len().div_ceil(max_others).max(1);
    others.into_iter().step_by(step).chain(suspects).collect()
}

/// The marks of the first classes with their names, as an HTML list.
fn legend(data: &Embeddings) -> String {
    let mut html = String::from("<ul class=\"legend\" aria-label=\"Marks of the classes\">");
    for (class, name) in data.classes().iter().enumerate().take(MAX_LEGEND) {
        html.push_str(&format!(
            "<li><svg class=\"mark c{}\" viewBox=\"-7 -7 14 14\" width=\"14\" height=\"14\" aria-hidden=\"true\"><path d=\"{}\"/></svg>{}</li>",
            class % COLOURS,
            SHAPES[class / COLOURS % SHAPES.len()],
            escaped_xml(name)
        ));
    }
    if data.classes().len() > MAX_LEGEND {
        let more = counted(data.classes().len() - MAX_LEGEND, "more class", "more classes");
        html.push_str(&format!("<li>and {more}</li>"));
    }
    html + "</ul>\n"
}

/// The linear transformation from positions on the map to SVG coordinates.
struct Viewport {
    /// The smallest x and y of all points.
    low: [f32; 2],
    /// SVG units per unit of x and of y.
    scale: [f32; 2],
}

impl Viewport {
    /// The transformation that makes all points fill the figure up to its margin.
    fn new(points: &[[f32; 2]]) -> Self {
        let bound = |axis: usize, choose: fn(f32, f32) -> f32| {
            points.iter().map(|point| point[axis]).reduce(choose).unwrap_or(0.0)
        };
        let low = [bound(0, f32::min), bound(1, f32::min)];
        let high = [bound(0, f32::max), bound(1, f32::max)];
        // `max` avoids a division by 0 if all points have the same coordinate.
        let scale = |axis: usize, length: f32| (length - 2.0 * MARGIN) / (high[axis] - low[axis]).max(1e-9);
        Viewport { low, scale: [scale(0, WIDTH), scale(1, HEIGHT)] }
    }

    /// The SVG coordinates of a point.
    fn coordinates(&self, point: [f32; 2]) -> (f32, f32) {
        let coordinate = |axis: usize| MARGIN + (point[axis] - self.low[axis]) * self.scale[axis];
        (coordinate(0), coordinate(1))
    }
}
