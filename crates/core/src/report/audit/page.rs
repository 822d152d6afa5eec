//! The page of an audit: every class a row of thumbnails, suspects framed, a map, filters; one file, nothing from
//! outside, readable without its script.

use askama::Template;

use super::{about_wrong, in_words, percent, scatter, short_name};
use crate::audit::{Audit, AuditedItem, Duplicate, DuplicateKind, Verdict};
use crate::embeddings::Embeddings;

/// Items on a page; more thumbnails than these make it slow to open.
const MOST: usize = 1200;
/// Items of a class that are shown whatever the size of the collection.
const LEAST_OF_CLASS: usize = 3;
/// Items of a class that are shown if there is room.
const SOME_OF_CLASS: usize = 12;
/// Duplicates that are listed.
const DUPLICATES: usize = 50;

/// A page about an audit.
pub struct AuditPage<'a> {
    /// What it is called.
    pub title: &'a str,
    /// What was found.
    pub audit: &'a Audit,
    /// What was looked at.
    pub data: &'a Embeddings,
    /// A picture of every row as a data URI, where there is one; none at all for rows without pictures.
    pub thumbnails: &'a [Option<String>],
    /// The place of every row on the map.
    pub points: &'a [[f32; 2]],
    /// What was skipped, and other things to know.
    pub notes: Vec<String>,
}

/// Which rows a page shows: all of a small collection; of a large one what is suspect, what that is like, and some of
/// the rest of every class.
pub fn shown_rows(audit: &Audit, data: &Embeddings) -> Vec<usize> {
    if audit.items.len() <= MOST {
        return (0..audit.items.len()).collect();
    }
    let mut shown = vec![false; audit.items.len()];
    let mut room = MOST;
    let mut show = |row: usize, room: &mut usize| {
        if !shown[row] && *room > 0 {
            shown[row] = true;
            *room -= 1;
        }
    };
    let ranking = audit.ranking();
    let suspects: Vec<usize> =
        ranking.into_iter().filter(|row| audit.items[*row].verdict != Verdict::Keep).collect();
    suspects.iter().take(MOST * 2 / 3).for_each(|row| show(*row, &mut room));
    let of_classes = |places: std::ops::Range<usize>| {
        let classes = 0..data.classes().len();
        places.flat_map(move |place| {
            classes.clone().filter_map(move |class| data.rows_of(class).get(place).map(|row| *row as usize))
        })
    };
    of_classes(0..LEAST_OF_CLASS).for_each(|row| show(row, &mut room));
    let near = suspects.iter().flat_map(|row| audit.items[*row].neighbours.iter().take(3));
    near.for_each(|neighbour| show(neighbour.row as usize, &mut room));
    of_classes(LEAST_OF_CLASS..SOME_OF_CLASS).for_each(|row| show(row, &mut room));
    (0..shown.len()).filter(|row| shown[*row]).collect()
}

impl AuditPage<'_> {
    /// The page as text.
    pub fn render(&self) -> String {
        let shown = shown_rows(self.audit, self.data);
        let mut is_shown = vec![false; self.audit.items.len()];
        shown.iter().for_each(|row| is_shown[*row] = true);
        let count = |verdict| self.audit.items.iter().filter(|item| item.verdict == verdict).count();
        let duplicates = self.audit.duplicates.iter();
        let view = View {
            page: self,
            map: scatter::svg(self.audit, self.data, self.points, |row| is_shown[row]),
            classes: (0..self.data.classes().len()).map(|class| self.class(class, &is_shown)).collect(),
            suspects: self.audit.items.iter().filter(|item| item.is_suspect()).count(),
            relabel: count(Verdict::Relabel),
            outlier: count(Verdict::Outlier),
            unsure: count(Verdict::Unsure),
            left_out: self.audit.items.len() - shown.len(),
            duplicates: duplicates.clone().take(DUPLICATES).map(duplicate_in_words).collect(),
            about_wrong: about_wrong(self.audit.expected_wrong),
            more_duplicates: self.audit.duplicates.len().saturating_sub(DUPLICATES),
            version: env!("CARGO_PKG_VERSION"),
        };
        view.render().expect("the template is compiled in and its data is complete")
    }

    fn class(&self, class: usize, is_shown: &[bool]) -> ClassView<'_> {
        let mut rows: Vec<usize> = self.data.rows_of(class).iter().map(|row| *row as usize).collect();
        let wrong = |row: &usize| self.audit.items[*row].p_wrong;
        rows.sort_by(|a, b| wrong(b).total_cmp(&wrong(a)));
        let found = &self.audit.classes[class];
        ClassView {
            name: &self.data.classes()[class],
            colour: class % crate::report::chart::COLOURS,
            items: found.items,
            expected_wrong: found.expected_wrong,
            found_elsewhere: found.found_elsewhere,
            shown: rows.into_iter().filter(|row| is_shown[*row]).map(|row| self.item(row)).collect(),
        }
    }

    fn item(&self, row: usize) -> ItemView<'_> {
        let item = &self.audit.items[row];
        let kind = match item.verdict {
            _ if item.confirmed => "confirmed",
            Verdict::Keep => "keep",
            Verdict::Relabel => "relabel",
            Verdict::Outlier => "outlier",
            Verdict::Unsure => "unsure",
        };
        ItemView {
            row,
            item,
            kind,
            image: self.thumbnails.get(row).and_then(Option::as_deref),
            name: short_name(item),
            wrong: percent(item.p_wrong),
            verdict: in_words(item),
        }
    }
}

fn duplicate_in_words(pair: &Duplicate) -> String {
    let same = if pair.kind == DuplicateKind::Exact { "is identical to" } else { "is nearly identical to" };
    format!("{} {same} {}", pair.item, pair.other)
}

struct ClassView<'a> {
    name: &'a str,
    colour: usize,
    items: usize,
    expected_wrong: f64,
    found_elsewhere: usize,
    shown: Vec<ItemView<'a>>,
}

struct ItemView<'a> {
    row: usize,
    item: &'a AuditedItem,
    kind: &'static str,
    image: Option<&'a str>,
    name: &'a str,
    wrong: String,
    verdict: String,
}

#[derive(Template)]
#[template(path = "audit.html")]
struct View<'a> {
    page: &'a AuditPage<'a>,
    map: String,
    classes: Vec<ClassView<'a>>,
    suspects: usize,
    relabel: usize,
    outlier: usize,
    unsure: usize,
    left_out: usize,
    duplicates: Vec<String>,
    about_wrong: String,
    more_duplicates: usize,
    version: &'static str,
}
