//! The HTML page of an audit ([`AuditPage`]): thumbnails by class with frames around suspect items, a map, filters, and
//! a review in which a user decides about one item after the other and saves a repair plan.
//!
//! The page is self-contained and can be read without its scripts. The template is `templates/audit.html`; the review
//! is in `templates/review.js` and gets its data from [`ReviewData`].

use askama::Template;
use serde::Serialize;

use super::{
    DUPLICATES, LABEL_CONFLICTS, belongs_to, counted, name_and_label, percent, planned_in_words,
    probable_classes, problems_in_words, relation, scatter, short_name, wrong_in_words,
};
use crate::audit::{Action, Audit, AuditedItem, Duplicate, ImageProblem, ProbableClass, Verdict};
use crate::embeddings::Embeddings;
use crate::repair::RepairPlan;
use crate::visible::escaped_xml;

/// Maximum number of items on a page; more thumbnails make it slow to open.
const MAX_ITEMS: usize = 1200;
/// Number of items per class that are shown in any case.
const MIN_PER_CLASS: usize = 3;
/// Number of items per class that are shown if [`MAX_ITEMS`] allows it.
const MAX_PER_CLASS: usize = 12;
/// Maximum number of lines of a list: label conflicts, other duplicates, image problems.
const MAX_LISTED: usize = 50;

/// Maximum number of warnings.
const MAX_WARNINGS: usize = 20;

/// The HTML page of an audit.
pub struct AuditPage<'a> {
    /// The title of the page.
    pub title: &'a str,
    /// The audit to show.
    pub audit: &'a Audit,
    /// The audited embeddings.
    pub data: &'a Embeddings,
    /// The plan that the audit suggests. A user who reviews items on the page saves it with their decisions.
    pub plan: &'a RepairPlan,
    /// The thumbnail of every row as a data URI, if it has one. Empty if the rows have no images.
    pub thumbnails: &'a [Option<String>],
    /// The position of every row on the map, in any scale.
    pub points: &'a [[f32; 2]],
    /// Notes for the reader, such as the files that were skipped.
    pub notes: Vec<String>,
}

/// The rows that a page shows, in ascending order: all rows of a small collection; of a large one those that the audit
/// would change or leave to review, their nearest neighbours, and some other rows of every class.
pub fn shown_rows(audit: &Audit, data: &Embeddings) -> Vec<usize> {
    if audit.items.len() <= MAX_ITEMS {
        return (0..audit.items.len()).collect();
    }
    let mut shown = vec![false; audit.items.len()];
    let mut remaining = MAX_ITEMS;
    let mut show = |row: usize, remaining: &mut usize| {
        if !shown[row] && *remaining > 0 {
            shown[row] = true;
            *remaining -= 1;
        }
    };
    // In the order of importance, until the page is full: items that do not keep their label, the most suspicious first
    // (two thirds of the page at most), a few rows of every class, three neighbours of each of these items, and more
    // rows of every class.
    let ranking = audit.ranking();
    let not_kept: Vec<usize> =
        ranking.into_iter().filter(|row| audit.items[*row].action != Action::Keep).collect();
    not_kept.iter().take(MAX_ITEMS * 2 / 3).for_each(|row| show(*row, &mut remaining));
    // The rows with these indices within each class, one class after the other for every index.
    let rows_of_every_class = |indices: std::ops::Range<usize>| {
        let classes = 0..data.classes().len();
        indices.flat_map(move |index| {
            classes.clone().filter_map(move |class| data.rows_of(class).get(index).map(|row| *row as usize))
        })
    };
    rows_of_every_class(0..MIN_PER_CLASS).for_each(|row| show(row, &mut remaining));
    let neighbours = not_kept.iter().flat_map(|row| audit.items[*row].neighbours.iter().take(3));
    neighbours.for_each(|neighbour| show(neighbour.row as usize, &mut remaining));
    rows_of_every_class(MIN_PER_CLASS..MAX_PER_CLASS).for_each(|row| show(row, &mut remaining));
    (0..shown.len()).filter(|row| shown[*row]).collect()
}

impl AuditPage<'_> {
    /// The HTML text of the page.
    pub fn render(&self) -> String {
        let shown = shown_rows(self.audit, self.data);
        let mut is_shown = vec![false; self.audit.items.len()];
        shown.iter().for_each(|row| is_shown[*row] = true);
        let view = View {
            page: self,
            map: scatter::svg(self.audit, self.data, self.points, |row| is_shown[row]),
            classes: (0..self.data.classes().len()).map(|class| self.class(class, &is_shown)).collect(),
            left_out: self.audit.items.len() - shown.len(),
            review: in_script(&self.review_data(&shown)),
            plan: in_script(&self.plan.to_text()),
            lists: self.lists(),
            planned: planned_in_words(&self.audit.counts),
            wrong: wrong_in_words(self.audit),
            warnings: self.audit.warnings.iter().take(MAX_WARNINGS).cloned().collect(),
            more_warnings: match self.audit.warnings.len().saturating_sub(MAX_WARNINGS) {
                0 => String::new(),
                more => counted(more, "more warning", "more warnings"),
            },
            version: env!("CARGO_PKG_VERSION"),
        };
        view.render().expect("the template is compiled in and its data is complete")
    }

    /// The label conflicts, the duplicates within a class and the image problems; empty lists are left out.
    fn lists(&self) -> Vec<ListView> {
        let (conflicts, within): (Vec<&Duplicate>, Vec<&Duplicate>) =
            self.audit.duplicates.iter().partition(|pair| pair.label_conflict);
        let problem = |problem: &ImageProblem| {
            let label = problem.given.as_deref().unwrap_or_default();
            format!("{}: {}", name_and_label(&problem.item, label), problems_in_words(problem))
        };
        let lists = [
            ListView::new(LABEL_CONFLICTS, conflicts.into_iter().map(duplicate_in_words)),
            ListView::new(DUPLICATES, within.into_iter().map(duplicate_in_words)),
            ListView::new("image problems", self.audit.image_problems.iter().map(problem)),
        ];
        lists.into_iter().filter(|list| !list.lines.is_empty()).collect()
    }

    /// The view of a class, with its most suspicious items first. `is_shown` says for every row whether the page shows
    /// it.
    fn class(&self, class: usize, is_shown: &[bool]) -> ClassView<'_> {
        let mut rows: Vec<usize> = self.data.rows_of(class).iter().map(|row| *row as usize).collect();
        let wrong = |row: &usize| self.audit.items[*row].p_wrong;
        rows.sort_by(|a, b| wrong(b).total_cmp(&wrong(a)));
        let audited = &self.audit.classes[class];
        ClassView {
            name: &self.data.classes()[class],
            heading: breakable(&self.data.classes()[class]),
            colour: class % crate::report::chart::COLOURS,
            items: counted(audited.items, "item", "items"),
            expected_wrong: audited.expected_wrong,
            found_elsewhere: audited.found_elsewhere,
            shown: rows.into_iter().filter(|row| is_shown[*row]).map(|row| self.item(row)).collect(),
        }
    }

    /// What the script of the review needs to know about the shown rows, as JSON.
    fn review_data(&self, shown: &[usize]) -> String {
        let to_review = self.audit.with_actions(&[Action::Review]);
        let planned = self.audit.with_actions(&[Action::Relabel, Action::Quarantine]);
        let mut queue = [to_review, planned].concat();
        queue.retain(|row| shown.binary_search(row).is_ok());
        let data = ReviewData {
            key: format!("{} {}", self.data.fingerprint(), self.plan.header.root.display()),
            classes: self.data.classes(),
            queue,
            items: shown.iter().map(|row| ReviewItem::new(*row, &self.audit.items[*row])).collect(),
        };
        serde_json::to_string(&data).expect("the data of a review is plain data")
    }

    /// The view of one item.
    fn item(&self, row: usize) -> ItemView<'_> {
        let item = &self.audit.items[row];
        let kind = if item.confirmed { "confirmed" } else { item.verdict.name() };
        ItemView {
            row,
            item,
            kind,
            image: self.thumbnails.get(row).and_then(Option::as_deref),
            name: breakable(short_name(item)),
            wrong: percent(item.p_wrong),
            belongs_to: belongs_to(item),
            probable: probable_classes(item),
        }
    }
}

/// A text whose first character is a capital letter.
fn capitalised(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().map(char::to_uppercase).into_iter().flatten();
    first.chain(characters).collect()
}

/// A name as HTML that may be wrapped after separators, which are frequent in names of files, but not before its
/// extension.
fn breakable(name: &str) -> String {
    let mut html = String::new();
    for character in name.chars() {
        html.push_str(&escaped_xml(character.encode_utf8(&mut [0; 4])));
        if matches!(character, '/' | '\\' | '_' | '-') {
            html.push_str("<wbr>");
        }
    }
    html
}

/// JSON, or lines of JSON, as the content of a script element, which no name can end early.
fn in_script(json: &str) -> String {
    json.replace('<', "\\u003c")
}

/// The data of the review script.
#[derive(Serialize)]
struct ReviewData<'a> {
    /// The key under which the browser stores decisions: the fingerprint of the rows and the path of the collection.
    key: String,
    classes: &'a [String],
    /// The rows to decide about, in the order of the review: first those with the action `review`, which the audit
    /// leaves to the user, then those with a planned change.
    queue: Vec<usize>,
    items: Vec<ReviewItem<'a>>,
}

/// One item in the data of the review script. Texts for the user are made here, so that they are those of the page.
#[derive(Serialize)]
struct ReviewItem<'a> {
    row: usize,
    item: &'a str,
    given: &'a str,
    p_wrong: f32,
    /// `p_wrong` in percent.
    wrong: String,
    /// The verdict and the planned action.
    verdict: String,
    /// The change that the audit plans, if it plans one.
    planned: Option<PlannedView<'a>>,
    probable: Vec<ProbableView<'a>>,
}

/// A planned change: to the class `to`, or into quarantine without one.
#[derive(Serialize)]
struct PlannedView<'a> {
    to: Option<&'a str>,
}

/// A class that an item may belong to; without a class, it stands for none of the classes.
#[derive(Serialize)]
struct ProbableView<'a> {
    class: Option<&'a str>,
    p: f32,
    percent: String,
}

impl<'a> ReviewItem<'a> {
    /// The item of a row with its verdict in words.
    fn new(row: usize, item: &'a AuditedItem) -> Self {
        let probable = |probable: &'a ProbableClass| ProbableView {
            class: probable.class.as_deref(),
            p: probable.p,
            percent: percent(probable.p),
        };
        let mut verdict = match (item.action, item.verdict) {
            (Action::Keep, _) if item.confirmed => "The label is confirmed.".into(),
            (Action::Keep, _) => "The audit keeps this label.".into(),
            (Action::Relabel, _) => format!("Planned: move to {}.", belongs_to(item)),
            (Action::Quarantine, Verdict::Outlier) => "Planned: quarantine, it belongs to no class.".into(),
            (Action::Quarantine, _) => "Planned: quarantine, the right class is uncertain.".into(),
            (Action::Review, Verdict::Unsure) => "The audit is unsure.".into(),
            (Action::Review, _) => "Probably wrong, but not certain enough for a change.".to_string(),
        };
        if let Some(advice) = &item.advice {
            verdict.push_str(&format!(" {}.", capitalised(advice)));
        }
        ReviewItem {
            row,
            item: &item.item,
            given: &item.given,
            p_wrong: item.p_wrong,
            wrong: percent(item.p_wrong),
            verdict,
            planned: match item.action {
                Action::Relabel | Action::Quarantine => Some(PlannedView { to: item.suggested.as_deref() }),
                Action::Review | Action::Keep => None,
            },
            probable: item.probable.iter().map(probable).collect(),
        }
    }
}

/// A pair of duplicates in words, such as "cat/1.jpg is identical to dog/7.jpg".
fn duplicate_in_words(pair: &Duplicate) -> String {
    let (item, other) =
        (name_and_label(&pair.item, &pair.given), name_and_label(&pair.other, &pair.other_given));
    format!("{item} {} {other}", relation(pair.kind))
}

/// One list in the template.
struct ListView {
    /// The heading, with a capital letter.
    heading: String,
    lines: Vec<String>,
    /// How many lines were left out.
    more: usize,
}

impl ListView {
    /// A list of at most [`MAX_LISTED`] lines.
    fn new(heading: &str, lines: impl ExactSizeIterator<Item = String>) -> Self {
        let more = lines.len().saturating_sub(MAX_LISTED);
        ListView { heading: capitalised(heading), lines: lines.take(MAX_LISTED).collect(), more }
    }
}

/// One class in the template.
struct ClassView<'a> {
    name: &'a str,
    /// The name as HTML.
    heading: String,
    /// The index of the CSS class of its colour.
    colour: usize,
    /// The number of items in words.
    items: String,
    /// The expected number of items with a wrong label.
    expected_wrong: f64,
    /// The number of items that the audit suggests for this class and that have another label.
    found_elsewhere: usize,
    /// The items that the page shows.
    shown: Vec<ItemView<'a>>,
}

/// One item in the template.
struct ItemView<'a> {
    row: usize,
    item: &'a AuditedItem,
    /// The CSS class that says what the verdict is.
    kind: &'static str,
    /// The thumbnail as a data URI.
    image: Option<&'a str>,
    /// The name as HTML.
    name: String,
    /// The probability of a wrong label, in percent.
    wrong: String,
    /// Where the item belongs, in words.
    belongs_to: String,
    /// The most probable classes, in words.
    probable: String,
}

/// The data of the template.
#[derive(Template)]
#[template(path = "audit.html")]
struct View<'a> {
    page: &'a AuditPage<'a>,
    /// The map of all items as SVG with its legend.
    map: String,
    classes: Vec<ClassView<'a>>,
    /// The sentence with the number of items per action.
    planned: String,
    /// The sentence with the numbers of suspect and of wrong labels.
    wrong: String,
    warnings: Vec<String>,
    /// The number of warnings that were left out, in words; empty if there are none.
    more_warnings: String,
    /// The number of items that the page does not show.
    left_out: usize,
    /// [`ReviewData`] as JSON, and the text of the plan, each as the content of a script element.
    review: String,
    plan: String,
    lists: Vec<ListView>,
    version: &'static str,
}
