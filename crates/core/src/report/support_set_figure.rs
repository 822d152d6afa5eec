//! A figure of a support set, the few labelled items that a method learns from ([`SupportSetFigure`]): one row of
//! images per class, with a green frame around items whose label is right and a dashed red frame, with the true class
//! below, around those whose label is wrong.
//!
//! The SVG contains its images as data URIs. It takes its colours from the CSS variables of the page it is in, so that
//! it fits light and dark mode. Each variable has a default, so that the file can also be used alone.

use crate::visible::{escaped_xml, shortened};

/// A figure of a support set.
///
/// ```
/// use trueshot::report::{FigureClass, FigureItem, SupportSetFigure};
///
/// let item = |truth: Option<&str>| FigureItem {
///     image: "data:image/png;base64,".into(),
///     truth: truth.map(str::to_string),
///     opinions: vec![],
/// };
/// let classes = vec![FigureClass { name: "cat".into(), items: vec![item(None), item(Some("dog"))] }];
/// let figure = SupportSetFigure { title: "Pets".into(), caption: String::new(), classes };
/// assert_eq!(figure.description(), "Pets. cat: 1 of 2 wrong, true class dog");
/// ```
pub struct SupportSetFigure {
    /// The title. The page that contains the figure shows it above, and [`description`](Self::description) begins with
    /// it; the SVG does not draw it.
    pub title: String,
    /// The explanation, which the page shows below the figure.
    pub caption: String,
    /// The classes, one row each.
    pub classes: Vec<FigureClass>,
}

/// One row of a figure: the items with one given label.
pub struct FigureClass {
    /// The name of the class.
    pub name: String,
    /// The items, in the order of the columns.
    pub items: Vec<FigureItem>,
}

/// One item of a figure.
pub struct FigureItem {
    /// The image as a data URI.
    pub image: String,
    /// The name of the true class if the label is wrong; otherwise `None`.
    pub truth: Option<String>,
    /// The weights that methods give to the item, as (method, weight); 1 is average. Pages show them; the SVG does not.
    pub opinions: Vec<(String, f32)>,
}

impl FigureItem {
    /// Whether the label is wrong.
    pub fn is_wrong(&self) -> bool {
        self.truth.is_some()
    }
}

// All lengths are in SVG units.

/// Width of the column of class names.
const LEFT: usize = 172;
/// Side of an image, without its frame.
const SIDE: usize = 64;
/// Distance from the left edge of one image to that of the next in a row.
const ACROSS: usize = 104;
/// Distance from the top of one row to that of the next.
const DOWN: usize = 98;
/// Margin above, below and right of the images.
const EDGE: usize = 8;
/// Maximum width of a class name beside a row, in characters (wide ones count as two).
const MAX_NAME: usize = 22;
/// Maximum width of the name of a true class below an image, in characters (wide ones count as two).
const MAX_TRUTH: usize = 16;

impl SupportSetFigure {
    /// The figure as SVG.
    pub fn svg(&self) -> String {
        let items = self.classes.iter().map(|class| class.items.len()).max().unwrap_or(0);
        let (width, height) = (LEFT + items * ACROSS + EDGE, self.classes.len() * DOWN + 2 * EDGE);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" style=\"max-width:100%;height:auto\" role=\"img\" aria-label=\"{}\" \
             font-family=\"system-ui,-apple-system,'Segoe UI',Roboto,sans-serif\" font-size=\"12\">\n",
            escaped_xml(&self.description())
        );
        for (row, class) in self.classes.iter().enumerate() {
            svg.push_str(&class.svg(EDGE + row * DOWN));
        }
        svg + "</svg>\n"
    }

    /// A description of the figure in words, for screen readers.
    pub fn description(&self) -> String {
        let class = |class: &FigureClass| {
            let wrong: Vec<&str> = class.items.iter().filter_map(|item| item.truth.as_deref()).collect();
            match wrong.is_empty() {
                true => format!("{}: all {} right", class.name, class.items.len()),
                false => format!(
                    "{}: {} of {} wrong, true class {}",
                    class.name,
                    wrong.len(),
                    class.items.len(),
                    wrong.join(", ")
                ),
            }
        };
        format!("{}. {}", self.title, self.classes.iter().map(class).collect::<Vec<_>>().join("; "))
    }
}

impl FigureClass {
    /// The row of the class, from the y coordinate `top` on.
    fn svg(&self, top: usize) -> String {
        // The baseline of the name, 2 units below the middle of the images, which is at `top + 6 + SIDE / 2`: letters
        // stand above their baseline.
        let baseline = top + SIDE / 2 + 8;
        let mut svg = format!(
            "<text x=\"0\" y=\"{baseline}\" font-weight=\"600\" fill=\"var(--ink,#1b1f24)\">{}</text>\n",
            escaped_xml(&shortened(&self.name, MAX_NAME))
        );
        for (column, item) in self.items.iter().enumerate() {
            svg.push_str(&item.svg(LEFT + column * ACROSS, top));
        }
        svg
    }
}

impl FigureItem {
    /// The image with its frame and, if the label is wrong, the true class below.
    fn svg(&self, left: usize, top: usize) -> String {
        // The sides of the frame and of the background, and the top left corner of the image. The line of the frame is
        // 4 units wide and centred 2 units right of `left` and below `top`; the background begins 4 units further in
        // than `left` and `top`, where the line ends, and the image 6 units.
        let (frame, background, (x, y)) = (SIDE + 8, SIDE + 4, (left + 6, top + 6));
        let colour = if self.is_wrong() { "var(--wrong,#cf222e)" } else { "var(--right,#1a7f37)" };
        let dashes = if self.is_wrong() { " stroke-dasharray=\"9 5\"" } else { "" };
        let title = self
            .truth
            .as_ref()
            .map_or("right label".into(), |truth| format!("wrong label, true class {truth}"));
        // Images with transparency get a white background, also in dark mode. It is smaller than the frame, so that the
        // page shows through the gaps of a dashed frame.
        let mut svg = format!(
            "<g><title>{}</title><rect x=\"{}\" y=\"{}\" width=\"{background}\" height=\"{background}\" rx=\"3\" fill=\"#fff\"/>\
             <rect x=\"{}\" y=\"{}\" width=\"{frame}\" height=\"{frame}\" rx=\"6\" fill=\"none\" stroke=\"{colour}\" \
             stroke-width=\"4\"{dashes}/><image x=\"{x}\" y=\"{y}\" width=\"{SIDE}\" height=\"{SIDE}\" href=\"{}\"/>",
            escaped_xml(&title),
            left + 4,
            top + 4,
            left + 2,
            top + 2,
            self.image
        );
        if let Some(truth) = &self.truth {
            // The baseline of the text; its capital letters fit between it and the frame.
            let baseline = top + frame + 17;
            let truth = escaped_xml(&shortened(truth, MAX_TRUTH));
            svg.push_str(&format!(
                "<text x=\"{left}\" y=\"{baseline}\" font-size=\"11\" fill=\"{colour}\">{truth}</text>"
            ));
        }
        svg + "</g>\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_item_has_a_dashed_frame_and_its_true_class() {
        let item = |truth: Option<&str>| FigureItem {
            image: "data:image/png;base64,AAAA".into(),
            truth: truth.map(str::to_string),
            opinions: vec![],
        };
        let figure = SupportSetFigure {
            title: "A <set>".into(),
            caption: String::new(),
            classes: vec![FigureClass {
                name: "cat".into(),
                items: vec![item(None), item(Some("dog & co"))],
            }],
        };
        let svg = figure.svg();
        assert_eq!(svg.matches("var(--right,").count(), 1, "{svg}");
        assert_eq!(svg.matches("stroke-dasharray").count(), 1, "{svg}");
        assert!(
            svg.contains("wrong label, true class dog &amp; co") && svg.contains("A &lt;set&gt;"),
            "{svg}"
        );
        assert_eq!(figure.description(), "A <set>. cat: 1 of 2 wrong, true class dog & co");
    }
}
