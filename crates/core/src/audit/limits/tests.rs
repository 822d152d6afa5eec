//! Collections that an audit can say little or nothing about. Each must give an answer without confident verdicts, or an
//! error that says what to do.

use crate::audit::{Action, Audit, Verdict};
use crate::embeddings::Embeddings;
use crate::rng::{Purpose, Rng};

const DIM: usize = 16;

/// Rows around the centres of their true classes.
struct Sample {
    values: Vec<f32>,
    labels: Vec<String>,
    rng: Rng,
}

impl Sample {
    fn new() -> Self {
        Sample { values: Vec::new(), labels: Vec::new(), rng: Rng::new(3, Purpose::Method, 0) }
    }

    /// Adds items of one true class under a label.
    fn add(&mut self, items: usize, truth: u64, label: usize) {
        for _ in 0..items {
            let mut centre = Rng::new(truth, Purpose::Method, 1);
            let rng = &mut self.rng;
            self.values.extend((0..DIM).map(|_| 4.0 * (centre.uniform() - 0.5) + rng.uniform() - 0.5));
            self.labels.push(format!("class {label:05}"));
        }
    }

    fn data(self) -> Embeddings {
        Embeddings::from_rows(self.values, DIM, self.labels).unwrap()
    }
}

/// Runs an audit and checks what holds for every audit.
fn audit(data: &Embeddings) -> Audit {
    let found = Audit::of(data).run().unwrap();
    let counts = found.counts;
    assert_eq!(counts.items, data.len());
    assert_eq!(counts.relabel + counts.quarantine + counts.review + counts.keep, counts.items);
    let sum: f64 = found.items.iter().map(|item| f64::from(item.p_wrong)).sum();
    assert!((sum - found.expected_wrong).abs() < 1e-3, "{sum} {}", found.expected_wrong);
    for item in &found.items {
        assert!((0.0..=1.0).contains(&item.p_wrong), "{item:?}");
        assert!(item.probable.iter().all(|class| (0.0..=1.0).contains(&class.p)), "{item:?}");
        assert!(!item.probable.is_empty() && item.probable.len() <= 3, "{item:?}");
        assert!(item.p_wrong < 0.99 || !matches!(item.verdict, Verdict::Unsure | Verdict::Keep), "{item:?}");
    }
    found
}

/// The number of items that a repair would change.
fn changes(found: &Audit) -> usize {
    found.counts.relabel + found.counts.quarantine
}

#[test]
fn two_items_of_two_classes_cannot_be_checked() {
    let mut sample = Sample::new();
    (0..2).for_each(|class| sample.add(1, class as u64, class));
    let found = audit(&sample.data());
    assert_eq!(changes(&found), 0);
    assert!(found.warnings[0].starts_with("no label can be checked"), "{:?}", found.warnings);
    assert!(found.items.iter().all(|item| item.p_wrong >= 0.049), "nothing speaks for these labels");
}

#[test]
fn classes_of_one_item_are_named_and_never_certain() {
    let mut sample = Sample::new();
    (0..2).for_each(|class| sample.add(8, class as u64, class));
    sample.add(1, 2, 2);
    let found = audit(&sample.data());
    assert_eq!(found.warnings, ["class 'class 00002' has a single item, whose label cannot be checked"]);
    assert!(found.items[16].p_wrong >= 0.049, "{:?}", found.items[16]);
    assert!(found.items[..16].iter().all(|item| item.verdict == Verdict::Keep));
}

#[test]
fn ten_thousand_classes_are_audited() {
    let mut sample = Sample::new();
    for class in 0..10_000 {
        sample.add(1, class as u64, class);
    }
    let found = audit(&sample.data());
    assert_eq!((found.counts.classes, changes(&found)), (10_000, 0));
}

#[test]
fn identical_rows_get_one_probability_and_no_change() {
    for classes in [2, 5] {
        let labels = (0..10 * classes).map(|row| format!("class {}", row % classes)).collect();
        let data = Embeddings::from_rows(vec![1.0; 10 * classes * 4], 4, labels).unwrap();
        let found = audit(&data);
        assert_eq!(changes(&found), 0, "{:?}", found.counts);
        let first = found.items[0].p_wrong;
        assert!(found.items.iter().all(|item| (item.p_wrong - first).abs() < 1e-5));
        assert!(found.warnings.iter().any(|warning| warning.contains("identical")), "{:?}", found.warnings);
    }
}

#[test]
fn a_class_that_duplicates_another_is_named_and_left_to_review() {
    let mut sample = Sample::new();
    (0..2).for_each(|class| sample.add(10, class as u64, class));
    sample.values.extend_from_within(..10 * DIM);
    sample.labels.extend(vec!["copy".to_string(); 10]);
    let found = audit(&sample.data());
    assert_eq!(changes(&found), 0, "either label may be the right one: {:?}", found.counts);
    let rows = (0..10).chain(20..30);
    assert!(rows.into_iter().all(|row| found.items[row].action == Action::Review), "{:?}", found.counts);
    assert!(
        found.items[10..20].iter().all(|item| item.action == Action::Keep),
        "the class that is not a copy"
    );
    assert!(
        found.warnings[0].contains("'class 00000' and 'copy' contain the same items"),
        "{:?}",
        found.warnings
    );
}

#[test]
fn an_item_in_many_classes_is_left_to_review() {
    let mut sample = Sample::new();
    (0..3).for_each(|class| sample.add(6, class as u64, class));
    for copy in 0..9 {
        sample.values.extend_from_within(..6 * DIM);
        sample.labels.extend(vec![format!("copy {copy}"); 6]);
    }
    let found = audit(&sample.data());
    assert_eq!(changes(&found), 0, "{:?}", found.counts);
    assert!(found.items[18..].iter().all(|item| item.action == Action::Review), "{:?}", found.counts);
}

#[test]
fn classes_whose_names_were_exchanged_as_a_whole_look_right() {
    // An audit compares items with each other: it cannot know what a name means.
    let mut sample = Sample::new();
    (0..5).for_each(|class| sample.add(8, class as u64, (class + 1) % 5));
    let found = audit(&sample.data());
    assert_eq!(found.counts.keep, 40);
}

#[test]
fn labels_without_any_relation_to_the_items_cause_few_changes() {
    let mut sample = Sample::new();
    for row in 0..50 {
        sample.add(1, row % 5, (row as usize / 5) % 5);
    }
    let found = audit(&sample.data());
    assert!(found.counts.suspect + found.counts.review > 15, "it is visible: {:?}", found.counts);
    assert_eq!(found.counts.relabel, 0, "no class is certain: {:?}", found.counts);
}

#[test]
fn small_classes_next_to_one_with_nine_of_ten_items_are_not_taken_apart() {
    let mut sample = Sample::new();
    sample.add(180, 0, 0);
    (1..5).for_each(|class| sample.add(5, class as u64, class));
    let found = audit(&sample.data());
    assert!(changes(&found) <= 4, "{:?}", found.counts);
    assert!(found.items[180..].iter().all(|item| item.action != Action::Relabel), "{:?}", found.counts);
}

#[test]
fn items_of_a_large_class_are_found_in_small_ones() {
    for large in [60, 200] {
        let mut sample = Sample::new();
        sample.add(large, 0, 0);
        (1..5).for_each(|class| sample.add(10, class as u64, class));
        (1..5).for_each(|class| sample.add(1, 0, class));
        let found = audit(&sample.data());
        let right = large + 40;
        let mut most_suspect = found.ranking()[..4].to_vec();
        most_suspect.sort_unstable();
        assert_eq!(most_suspect, Vec::from_iter(right..right + 4));
        assert!(found.items[right..].iter().all(|item| item.is_suspect()), "{:?}", &found.items[right..]);
        assert!(found.items[..right].iter().all(|item| item.action == Action::Keep), "{:?}", found.counts);
    }
}

#[test]
fn very_small_numbers_are_as_good_as_others() {
    let mut sample = Sample::new();
    (0..3).for_each(|class| sample.add(8, class as u64, class));
    sample.values.iter_mut().for_each(|value| *value *= 1e-25);
    let found = audit(&sample.data());
    assert!(found.items.iter().all(|item| item.p_wrong < 0.1), "{:?}", found.expected_wrong);
}
