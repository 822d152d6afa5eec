//! A support set to look at: its pictures with a frame each, green where the label is right, red and dashed where it is
//! wrong, with what the item really is below it.
//!
//! As SVG it holds its pictures itself and takes the colours of the page it stands in, light or dark; alone it has its
//! own.

/// A support set to look at.
pub struct SupportSetFigure {
    /// What it shows.
    pub title: String,
    /// What to look for in it.
    pub caption: String,
    /// Its classes, a row each.
    pub classes: Vec<FigureClass>,
}

/// The items filed under one class.
pub struct FigureClass {
    /// The class.
    pub name: String,
    /// Its items.
    pub items: Vec<FigureItem>,
}

/// One item of a support set.
pub struct FigureItem {
    /// Its picture, as a data URI.
    pub image: String,
    /// What it really is, if its label is wrong.
    pub truth: Option<String>,
    /// What methods think of it: name and weight, 1 being an ordinary share.
    pub opinions: Vec<(String, f32)>,
}

impl FigureItem {
    /// Whether its label is wrong.
    pub fn is_wrong(&self) -> bool {
        self.truth.is_some()
    }
}

/// Room for the names of classes.
const LEFT: usize = 172;
/// Side of a picture within its frame.
const SIDE: usize = 64;
/// From one picture to the next, and from one class to the next.
const ACROSS: usize = 104;
const DOWN: usize = 98;
const EDGE: usize = 8;
/// Letters that fit beside a row, and below a picture.
const NAME_LETTERS: usize = 22;
const TRUTH_LETTERS: usize = 16;

impl SupportSetFigure {
    /// The set as a picture of its own.
    pub fn svg(&self) -> String {
        let items = self.classes.iter().map(|class| class.items.len()).max().unwrap_or(0);
        let (width, height) = (LEFT + items * ACROSS + EDGE, self.classes.len() * DOWN + 2 * EDGE);
        let mut svg = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" \
             height=\"{height}\" style=\"max-width:100%;height:auto\" role=\"img\" aria-label=\"{}\" \
             font-family=\"system-ui,-apple-system,'Segoe UI',Roboto,sans-serif\" font-size=\"12\">\n",
            escaped(&self.description())
        );
        for (row, class) in self.classes.iter().enumerate() {
            svg.push_str(&class.svg(EDGE + row * DOWN));
        }
        svg + "</svg>\n"
    }

    /// What is in it, for those who do not see it.
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
    fn svg(&self, top: usize) -> String {
        let middle = top + SIDE / 2 + 8;
        let mut svg = format!(
            "<text x=\"0\" y=\"{middle}\" font-weight=\"600\" fill=\"var(--ink,#1b1f24)\">{}</text>\n",
            shortened(&self.name, NAME_LETTERS)
        );
        for (column, item) in self.items.iter().enumerate() {
            svg.push_str(&item.svg(LEFT + column * ACROSS, top));
        }
        svg
    }
}

impl FigureItem {
    fn svg(&self, left: usize, top: usize) -> String {
        let (frame, paper, (x, y)) = (SIDE + 8, SIDE + 4, (left + 6, top + 6));
        let colour = if self.is_wrong() { "var(--wrong,#cf222e)" } else { "var(--right,#1a7f37)" };
        let dashes = if self.is_wrong() { " stroke-dasharray=\"9 5\"" } else { "" };
        let title = self
            .truth
            .as_ref()
            .map_or("right label".into(), |truth| format!("wrong label, true class {truth}"));
        // White is the paper of drawings, in the dark as well; it ends within the frame, whose gaps show the page.
        let mut svg = format!(
            "<g><title>{}</title><rect x=\"{}\" y=\"{}\" width=\"{paper}\" height=\"{paper}\" rx=\"3\" fill=\"#fff\"/>\
             <rect x=\"{}\" y=\"{}\" width=\"{frame}\" height=\"{frame}\" rx=\"6\" fill=\"none\" stroke=\"{colour}\" \
             stroke-width=\"4\"{dashes}/><image x=\"{x}\" y=\"{y}\" width=\"{SIDE}\" height=\"{SIDE}\" href=\"{}\"/>",
            escaped(&title),
            left + 4,
            top + 4,
            left + 2,
            top + 2,
            self.image
        );
        if let Some(truth) = &self.truth {
            let below = top + frame + 17;
            let truth = shortened(truth, TRUTH_LETTERS);
            svg.push_str(&format!(
                "<text x=\"{left}\" y=\"{below}\" font-size=\"11\" fill=\"{colour}\">{truth}</text>"
            ));
        }
        svg + "</g>\n"
    }
}

/// As much of a name as there is room for, ready for SVG. Names of classes differ at their ends, so the middle goes.
fn shortened(name: &str, letters: usize) -> String {
    let all: Vec<char> = name.chars().collect();
    if all.len() <= letters {
        return escaped(name);
    }
    let end = (letters - 1) / 2;
    let (head, tail) = (&all[..letters - 1 - end], &all[all.len() - end..]);
    escaped(&format!("{}…{}", head.iter().collect::<String>(), tail.iter().collect::<String>()))
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_item_has_another_frame_and_says_what_it_is() {
        let item = |truth: Option<&str>| FigureItem {
            image: "data:image/png;base64,AAAA".into(),
            truth: truth.map(str::to_string),
            opinions: vec![],
        };
        let picture = SupportSetFigure {
            title: "A <set>".into(),
            caption: String::new(),
            classes: vec![FigureClass {
                name: "cat".into(),
                items: vec![item(None), item(Some("dog & co"))],
            }],
        };
        let svg = picture.svg();
        assert_eq!(svg.matches("var(--right,").count(), 1, "{svg}");
        assert_eq!(svg.matches("stroke-dasharray").count(), 1, "{svg}");
        assert!(
            svg.contains("wrong label, true class dog &amp; co") && svg.contains("A &lt;set&gt;"),
            "{svg}"
        );
        assert_eq!(shortened("n01532829 & co", 9), "n015…&amp; co");
        assert_eq!(picture.description(), "A <set>. cat: 1 of 2 wrong, true class dog & co");
    }
}
