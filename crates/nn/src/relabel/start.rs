//! What a state starts from: what the given labels and the relations between items say about "item i is of class
//! c".
//!
//! A row of numbers for every state: whether i is filed under c; c's share of the items; whether c has no item but
//! i, and 1 / (1 + number of its others), which tell how much the rest is worth; then mean, maximum and minimum of
//! each edge feature from i to c's items other than i.

use super::batch::Place;
use super::edges::{EDGE_FEATURES, NEUTRAL};
use crate::real::Real;

const LABEL_FEATURES: usize = 4;

/// Numbers in a row.
pub(super) const START_FEATURES: usize = LABEL_FEATURES + 3 * EDGE_FEATURES;

/// Writes the rows of one episode's states from its planes of edge features.
pub(super) fn start_features<T: Real>(place: &Place, planes: [&[T]; EDGE_FEATURES], out: &mut [T]) {
    let members = members(place);
    let mut rows = out.chunks_exact_mut(START_FEATURES);
    for item in 0..place.items {
        for (class, members) in members.iter().enumerate() {
            let row = rows.next().expect("a row for every state");
            let filed = place.given[item] as usize == class;
            let others = members.len() - usize::from(filed);
            row[0] = T::from_f64(f64::from(u8::from(filed)));
            row[1] = T::from_f64(members.len() as f64 / place.items as f64);
            row[2] = T::from_f64(f64::from(u8::from(others == 0)));
            row[3] = T::from_f64(1.0 / (1 + others) as f64);
            for (feature, plane) in planes.iter().enumerate() {
                let relations = &plane[item * place.items..(item + 1) * place.items];
                let summary = summary(item, relations, members, NEUTRAL[feature]);
                let from = LABEL_FEATURES + 3 * feature;
                row[from..from + 3].copy_from_slice(&summary);
            }
        }
    }
}

/// The items filed under each class.
fn members(place: &Place) -> Vec<Vec<usize>> {
    let mut members = vec![Vec::new(); place.classes];
    for (item, &class) in place.given.iter().enumerate() {
        members[class as usize].push(item);
    }
    members
}

/// Mean, maximum and minimum over the members other than the item itself.
fn summary<T: Real>(item: usize, relations: &[T], members: &[usize], neutral: f64) -> [T; 3] {
    let (mut sum, mut count) = (T::ZERO, 0);
    let mut bounds: Option<(T, T)> = None;
    for &member in members.iter().filter(|&&member| member != item) {
        let value = relations[member];
        sum += value;
        count += 1;
        let (high, low) = bounds.unwrap_or((value, value));
        bounds = Some((if value > high { value } else { high }, if value < low { value } else { low }));
    }
    let Some((high, low)) = bounds else { return [T::from_f64(neutral); 3] };
    [sum * T::from_f64(1.0 / f64::from(count)), high, low]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relabel::batch::Batch;

    #[test]
    fn a_state_starts_from_its_label_and_the_relations_to_the_other_items_of_its_class() {
        let mut batch = Batch::default();
        batch.add(3, &[0, 1, 0, 0]);
        let plane: Vec<f64> = (0..16).map(f64::from).collect();
        let other = [0.25; 16];
        let mut rows = vec![0.0; 12 * START_FEATURES];
        start_features(&batch.places[0], [&plane, &other, &other, &other, &other], &mut rows);
        let row = |item: usize, class: usize| &rows[(item * 3 + class) * START_FEATURES..][..START_FEATURES];
        // Item 2 among items 0 and 3 of its class: edges 8 and 11.
        assert_eq!(row(2, 0)[..7], [1.0, 0.75, 0.0, 1.0 / 3.0, 9.5, 11.0, 8.0]);
        // Item 1 is alone in its class, and nobody is in the last.
        assert_eq!(row(1, 1)[..7], [1.0, 0.25, 1.0, 1.0, 0.0, 0.0, 0.0]);
        assert_eq!(row(1, 1)[10..13], [0.5; 3]);
        assert_eq!(row(0, 2)[..4], [0.0, 0.0, 1.0, 1.0]);
    }
}
