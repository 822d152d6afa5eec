//! Similarities of left-out items ([`LeftOut`]), from which a classifier is calibrated for items of unknown classes.
//!
//! In each of several rounds, some classes are left out entirely, and so are some items of the others. The class vectors
//! are fitted to the rest and compared with what was left out. Over all rounds, every class is left out once, and so is
//! every item of a class with more than one. With two classes, no class is left out.

use super::calibration::LabelPosterior;
use super::similarity::{ClassSimilarity, Similarity};

/// Rounds for support sets of up to [`SMALL`] items, and for larger ones.
const ROUNDS: (usize, usize) = (10, 5);
/// Items up to which a set is small.
const SMALL: usize = 500;
/// Maximum number of left-out items that are compared, of the classes and of left-out classes each.
const MAX_COMPARED: usize = 1000;
/// Fewest classes that must remain when others are left out. With one, nothing distinguishes classes.
const MIN_REMAINING: usize = 2;

/// The similarities of left-out items.
pub(super) struct LeftOut {
    /// Items left out one part at a time, compared with classes that include their own.
    pub known: Vec<Similarity>,
    /// Items of left-out classes, compared with the other classes.
    pub unknown: Vec<Similarity>,
    /// Number of classes that were left out.
    pub classes: usize,
}

struct Item<'a> {
    row: &'a [f32],
    /// The possible classes with their probabilities, without "none of the classes".
    shares: Vec<(u32, f32)>,
    /// The class, if it is more probable than all others together, and the item's number within the class.
    member: Option<(u32, usize)>,
}

impl LeftOut {
    /// The similarity to all classes, fitted to all rows, and the similarities of left-out items. `order` contains the
    /// indices of the rows in an order that does not depend on that of the data.
    pub fn measure(rows: &[&[f32]], order: &[u32], posterior: &LabelPosterior) -> (ClassSimilarity, Self) {
        let classes = posterior.classes();
        let mut found = LeftOut { known: Vec::new(), unknown: Vec::new(), classes: 0 };
        let (items, class_rank) = ordered_items(rows, order, posterior);
        let rounds = if items.len() > SMALL { ROUNDS.1 } else { ROUNDS.0 };
        let mut sizes = vec![0; classes];
        items.iter().filter_map(|item| item.member).for_each(|(class, _)| sizes[class as usize] += 1);
        let members = class_rank.iter().filter(|rank| rank.is_some()).count();
        for round in 0..rounds {
            let mut is_out: Vec<bool> =
                class_rank.iter().map(|rank| rank.is_some_and(|rank| rank % rounds == round)).collect();
            let out_classes = is_out.iter().filter(|&&out| out).count();
            if members >= MIN_REMAINING + out_classes {
                found.classes += out_classes;
            } else {
                is_out.fill(false);
            }
            let role = |item: &Item<'_>| match item.member {
                Some((class, _)) if is_out[class as usize] => Role::Unknown,
                Some((class, number)) if number % rounds == round && sizes[class as usize] > 1 => Role::Known,
                _ => Role::Kept,
            };
            found.add_round(&items, role, &is_out);
        }
        let all: Vec<&Item<'_>> = items.iter().collect();
        (fit(&all, &vec![false; classes]), found)
    }

    fn add_round(&mut self, items: &[Item<'_>], role: impl Fn(&Item<'_>) -> Role, is_out: &[bool]) {
        let stride = items.len().div_ceil(MAX_COMPARED);
        let (mut kept, mut known, mut unknown) = (Vec::new(), Vec::new(), Vec::new());
        for (index, item) in items.iter().enumerate() {
            let is_compared = index % stride == 0;
            match role(item) {
                Role::Kept => kept.push(item),
                Role::Known if is_compared => known.push(item.row),
                Role::Unknown if is_compared => unknown.push(item.row),
                Role::Known | Role::Unknown => {}
            }
        }
        if kept.is_empty() || (known.is_empty() && unknown.is_empty()) {
            return;
        }
        let similarity = fit(&kept, is_out);
        self.known.extend(similarity.of_rows(&known));
        self.unknown.extend(similarity.of_rows(&unknown));
    }
}

/// What a round does with an item.
enum Role {
    Kept,
    Known,
    Unknown,
}

/// Fits the class vectors to items, without the classes that are left out.
fn fit(items: &[&Item<'_>], is_out: &[bool]) -> ClassSimilarity {
    let rows: Vec<&[f32]> = items.iter().map(|item| item.row).collect();
    let remaining = |shares: &Vec<(u32, f32)>| {
        shares.iter().copied().filter(|&(class, _)| !is_out[class as usize]).collect()
    };
    let shares: Vec<Vec<(u32, f32)>> = items.iter().map(|item| remaining(&item.shares)).collect();
    ClassSimilarity::new(&rows, &shares, is_out.len())
}

/// The items in order, and for every class its number among the classes with members, in the order of their first items.
fn ordered_items<'a>(
    rows: &[&'a [f32]],
    order: &[u32],
    posterior: &LabelPosterior,
) -> (Vec<Item<'a>>, Vec<Option<usize>>) {
    let classes = posterior.classes();
    let (mut ranks, mut sizes) = (vec![None; classes], vec![0; classes]);
    let mut ranked = 0;
    let items = order.iter().map(|&index| {
        let index = index as usize;
        let shares = posterior.shares()[index].iter().copied();
        let shares = shares.filter(|(class, _)| (*class as usize) < classes).collect();
        let likeliest = posterior.likeliest_class(index).filter(|(_, probability)| *probability >= 0.5);
        let member = likeliest.map(|(class, _)| {
            let size = &mut sizes[class as usize];
            if *size == 0 {
                ranks[class as usize] = Some(ranked);
                ranked += 1;
            }
            *size += 1;
            (class, *size - 1)
        });
        Item { row: rows[index], shares, member }
    });
    let items = items.collect();
    (items, ranks)
}
