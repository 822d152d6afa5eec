//! Collections that an audit can say little or nothing about. Each must give an answer without confident verdicts, or
//! an error that says what to do.

use crate::audit::{Action, Audit, Verdict};
use crate::embeddings::{Embeddings, Features};
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
    let result = Audit::of(data).run().unwrap();
    let counts = result.counts;
    assert_eq!(counts.items, data.len());
    assert_eq!(counts.relabel + counts.quarantine + counts.review + counts.keep, counts.items);
    let sum: f64 = result.items.iter().map(|item| f64::from(item.p_wrong)).sum();
    assert!((sum - result.expected_wrong).abs() < 1e-3, "{sum} {}", result.expected_wrong);
    for item in &result.items {
        assert!((0.0..=1.0).contains(&item.p_wrong), "{item:?}");
        assert!(item.probable.iter().all(|class| (0.0..=1.0).contains(&class.p)), "{item:?}");
        assert!(!item.probable.is_empty() && item.probable.len() <= 3, "{item:?}");
        assert!(item.p_wrong < 0.99 || !matches!(item.verdict, Verdict::Unsure | Verdict::Keep), "{item:?}");
    }
    result
}

/// The number of items that a repair would change.
fn changes(result: &Audit) -> usize {
    result.counts.relabel + result.counts.quarantine
}

#[test]
fn two_items_of_two_classes_cannot_be_checked() {
    let mut sample = Sample::new();
    (0..2).for_each(|class| sample.add(1, class as u64, class));
    let result = audit(&sample.data());
    assert_eq!(changes(&result), 0);
    assert!(result.warnings[0].starts_with("no label can be checked"), "{:?}", result.warnings);
    assert!(result.items.iter().all(|item| item.p_wrong >= 0.049), "nothing supports these labels");
}

#[test]
fn classes_of_one_item_are_named_and_never_certain() {
    let mut sample = Sample::new();
    (0..2).for_each(|class| sample.add(8, class as u64, class));
    sample.add(1, 2, 2);
    let result = audit(&sample.data());
    assert_eq!(result.warnings, ["class 'class 00002' has a single item, whose label cannot be checked"]);
    assert!(result.items[16].p_wrong >= 0.049, "{:?}", result.items[16]);
    assert!(result.items[..16].iter().all(|item| item.verdict == Verdict::Keep));
}

#[test]
fn ten_thousand_classes_are_audited() {
    let mut sample = Sample::new();
    for class in 0..10_000 {
        sample.add(1, class as u64, class);
    }
    let result = audit(&sample.data());
    assert_eq!((result.counts.classes, changes(&result)), (10_000, 0));
}

#[test]
fn identical_rows_get_one_probability_and_no_change() {
    for classes in [2, 5] {
        let labels = (0..10 * classes).map(|row| format!("class {}", row % classes)).collect();
        let data = Embeddings::from_rows(vec![1.0; 10 * classes * 4], 4, labels).unwrap();
        let result = audit(&data);
        assert_eq!(changes(&result), 0, "{:?}", result.counts);
        let first = result.items[0].p_wrong;
        assert!(result.items.iter().all(|item| (item.p_wrong - first).abs() < 1e-5));
        assert!(result.warnings.iter().any(|warning| warning.contains("identical")), "{:?}", result.warnings);
    }
}

#[test]
fn a_class_that_duplicates_another_is_named_and_left_to_review() {
    let mut sample = Sample::new();
    (0..2).for_each(|class| sample.add(10, class as u64, class));
    sample.values.extend_from_within(..10 * DIM);
    sample.labels.extend(vec!["copy".to_string(); 10]);
    let result = audit(&sample.data());
    assert_eq!(changes(&result), 0, "either label may be the right one: {:?}", result.counts);
    let rows = (0..10).chain(20..30);
    assert!(rows.into_iter().all(|row| result.items[row].action == Action::Review), "{:?}", result.counts);
    assert!(
        result.items[10..20].iter().all(|item| item.action == Action::Keep),
        "the class that is not a copy"
    );
    assert!(
        result.warnings[0].contains("'class 00000' and 'copy' contain the same items"),
        "{:?}",
        result.warnings
    );
}

#[test]
fn a_class_without_items_changes_nothing() {
    let mut sample = Sample::new();
    sample.add(15, 0, 0);
    let mut labels = vec![0; 15];
    // The second class has the same items, so the two used classes cannot be merged into one.
    let values = [&sample.values[..], &sample.values[..]].concat();
    labels.extend([1; 15]);
    let audit_with = |classes: &[&str]| {
        let classes = classes.iter().map(ToString::to_string).collect();
        let data =
            Embeddings::from_numbered(Features::from_f32(values.clone(), DIM), labels.clone(), classes);
        audit(&data.unwrap()).items.iter().map(|item| item.p_wrong).collect::<Vec<f32>>()
    };
    assert_eq!(audit_with(&["a", "b"]), audit_with(&["a", "b", "unused"]));
}

#[test]
fn an_item_in_many_classes_is_left_to_review() {
    let mut sample = Sample::new();
    (0..3).for_each(|class| sample.add(6, class as u64, class));
    for copy in 0..9 {
        sample.values.extend_from_within(..6 * DIM);
        sample.labels.extend(vec![format!("copy {copy}"); 6]);
    }
    let result = audit(&sample.data());
    assert_eq!(changes(&result), 0, "{:?}", result.counts);
    assert!(result.items[18..].iter().all(|item| item.action == Action::Review), "{:?}", result.counts);
}

#[test]
fn classes_whose_names_were_exchanged_as_a_whole_look_right() {
    // An audit compares items with each other: it cannot know what a name means.
    let mut sample = Sample::new();
    (0..5).for_each(|class| sample.add(8, class as u64, (class + 1) % 5));
    let result = audit(&sample.data());
    assert_eq!(result.counts.keep, 40);
}

#[test]
fn labels_without_any_relation_to_the_items_cause_few_changes() {
    let mut sample = Sample::new();
    for row in 0..50 {
        sample.add(1, row % 5, (row as usize / 5) % 5);
    }
    let result = audit(&sample.data());
    assert!(
        result.counts.suspect + result.counts.review > 15,
        "many labels are doubted: {:?}",
        result.counts
    );
    assert_eq!(result.counts.relabel, 0, "no class is certain: {:?}", result.counts);
}

#[test]
fn small_classes_next_to_one_with_nine_of_ten_items_are_not_taken_apart() {
    let mut sample = Sample::new();
    sample.add(180, 0, 0);
    (1..5).for_each(|class| sample.add(5, class as u64, class));
    let result = audit(&sample.data());
    assert!(changes(&result) <= 4, "{:?}", result.counts);
    assert!(result.items[180..].iter().all(|item| item.action != Action::Relabel), "{:?}", result.counts);
}

#[test]
fn items_of_a_large_class_are_found_in_small_ones() {
    for large in [60, 200] {
        let mut sample = Sample::new();
        sample.add(large, 0, 0);
        (1..5).for_each(|class| sample.add(10, class as u64, class));
        (1..5).for_each(|class| sample.add(1, 0, class));
        let result = audit(&sample.data());
        let right = large + 40;
        let mut most_suspect = result.ranking()[..4].to_vec();
        most_suspect.sort_unstable();
        assert_eq!(most_suspect, Vec::from_iter(right..right + 4));
        assert!(result.items[right..].iter().all(|item| item.is_suspect()), "{:?}", &result.items[right..]);
        assert!(result.items[..right].iter().all(|item| item.action == Action::Keep), "{:?}", result.counts);
    }
}

#[test]
fn rows_of_very_small_numbers_are_audited_like_others() {
    let mut sample = Sample::new();
    (0..3).for_each(|class| sample.add(8, class as u64, class));
    sample.values.iter_mut().for_each(|value| *value *= 1e-25);
    let result = audit(&sample.data());
    assert!(result.items.iter().all(|item| item.p_wrong < 0.1), "{:?}", result.expected_wrong);
}
