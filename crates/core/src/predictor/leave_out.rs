//! Similarities of left-out items ([`LeftOut`]), from which `novelty` is calibrated. Start with [`LeftOut::measure`].
//!
//! In each of several rounds, some classes are left out entirely, and so are some items of the remaining classes. The
//! class vectors ([`ClassSimilarity`]) are fitted to the items that are kept and compared with those that were left
//! out. Over all rounds, every class is left out once; with two classes, none is. Every item with a probable class is
//! also left out once while its class remains, unless it is the only one of its class or its turn comes in the round
//! without its class.

use super::calibration::LabelPosterior;
use super::similarity::{ClassSimilarity, Similarity};

/// Rounds for support sets of up to [`SMALL`] items. Each leaves out about a tenth of the classes and of the items.
const ROUNDS_IF_SMALL: usize = 10;
/// Rounds for larger support sets: each leaves out about a fifth.
const ROUNDS_IF_LARGE: usize = 5;
/// Maximum number of items of a small support set.
const SMALL: usize = 500;
/// Maximum number of items that are compared, over all rounds: of larger support sets, only every n-th item is compared
/// when it is left out.
const MAX_COMPARED: usize = 1000;
/// Fewest classes that must remain when others are left out. With one, nothing distinguishes classes.
const MIN_REMAINING: usize = 2;

/// The similarities of left-out items.
pub(super) struct LeftOut {
    /// Of items that were left out while their class remained.
    pub known: Vec<Similarity>,
    /// Of items whose class was left out: how similar they are to other classes.
    pub unknown: Vec<Similarity>,
    /// Number of classes that were left out, over all rounds.
    pub classes: usize,
}

/// An item of the support set.
struct Item<'a> {
    row: &'a [f32],
    /// The possible classes with their probabilities, without "none of the classes".
    shares: Vec<(u32, f32)>,
    /// The class of which the item is a member, one with a probability of at least 0.5, and the item's number within
    /// that class. `None` if no class is that probable; such an item is never left out.
    member: Option<(u32, usize)>,
}

impl LeftOut {
    /// The class vectors fitted to all rows, and the similarities of left-out items. `order` contains the indices of
    /// the rows in an order that does not depend on that of the data, and `posterior` has one entry per row.
    pub fn measure(rows: &[&[f32]], order: &[u32], posterior: &LabelPosterior) -> (ClassSimilarity, Self) {
        let classes = posterior.classes();
        let mut left_out = LeftOut { known: Vec::new(), unknown: Vec::new(), classes: 0 };
        let (items, class_rank) = ordered_items(rows, order, posterior);
        let rounds = if items.len() > SMALL { ROUNDS_IF_LARGE } else { ROUNDS_IF_SMALL };
        let mut sizes = vec![0; classes];
        items.iter().filter_map(|item| item.member).for_each(|(class, _)| sizes[class as usize] += 1);
        let classes_with_members = class_rank.iter().filter(|rank| rank.is_some()).count();
        for round in 0..rounds {
            // The classes to leave out in this round, unless too few would remain.
            let mut is_out: Vec<bool> =
                class_rank.iter().map(|rank| rank.is_some_and(|rank| rank % rounds == round)).collect();
            let out_classes = is_out.iter().filter(|&&out| out).count();
            if classes_with_members >= MIN_REMAINING + out_classes {
                left_out.classes += out_classes;
            } else {
                is_out.fill(false);
            }
            let role = |item: &Item<'_>| match item.member {
                Some((class, _)) if is_out[class as usize] => Role::Unknown,
                Some((class, number)) if number % rounds == round && sizes[class as usize] > 1 => Role::Known,
                _ => Role::Kept,
            };
            left_out.add_round(&items, role, &is_out);
        }
        let all: Vec<&Item<'_>> = items.iter().collect();
        (fit(&all, &vec![false; classes]), left_out)
    }

    /// One round: fits the class vectors to the items that are kept, and adds the similarities of the left-out items.
    /// `role` says what to do with an item, and `is_out` which classes are left out.
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
    /// The class vectors are fitted to it.
    Kept,
    /// It is left out while its class remains.
    Known,
    /// Its class is left out.
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

/// The items in the given order, and for every class its number among the classes with members, which are numbered in
/// the order of their first members; `None` for a class without members.
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
