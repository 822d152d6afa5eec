use std::ops::ControlFlow;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::error::Error;
use crate::rng::{Purpose, Rng};

/// Classes around random centres, with `items` rows per label. The last row with each label belongs to the next class.
/// Returns the rows, and for each row whether its label is wrong.
fn collection(classes: usize, items: usize, dim: usize) -> (Embeddings, Vec<bool>) {
    // A pseudo-random number from -0.5 to 0.5 for each pair of indices.
    let scatter = |row: usize, column: usize| {
        let mixed = ((row * 65_537 + column) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        (mixed >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    // Rows from 100,003 on are not those of items.
    let centre = |class: usize, column: usize| scatter(class + 100_003, column) * 3.0;
    let (mut values, mut labels, mut wrong) = (Vec::new(), Vec::new(), Vec::new());
    for class in 0..classes {
        for item in 0..items {
            let is_wrong = item + 1 == items;
            let truth = if is_wrong { (class + 1) % classes } else { class };
            values
                .extend((0..dim).map(|column| centre(truth, column) + scatter(class * items + item, column)));
            labels.push(format!("class {class:03}"));
            wrong.push(is_wrong);
        }
    }
    (Embeddings::from_rows(values, dim, labels).unwrap(), wrong)
}

fn run_audit(data: &Embeddings, options: &Options, confirmed: &[bool]) -> Audit {
    Audit::of(data).options(options.clone()).confirmed(confirmed).run().unwrap()
}

/// Checks that an audit finds exactly the wrong labels, and their true classes.
fn check_verdicts(data: &Embeddings, wrong: &[bool]) {
    let audit = run_audit(data, &Options::default(), &[]);
    let classes = data.classes().len();
    for ((item, &wrong), &label) in audit.items.iter().zip(wrong).zip(data.labels()) {
        assert_eq!(item.verdict == Verdict::Keep, !wrong, "{item:?}");
        assert_eq!(item.is_suspect(), wrong, "{item:?}");
        let truth = format!("class {:03}", (label as usize + usize::from(wrong)) % classes);
        assert_eq!(item.probable[0].class.as_deref(), Some(truth.as_str()), "{item:?}");
        assert!(item.suggested.is_none() || wrong && item.suggested == Some(truth), "{item:?}");
        assert_eq!(item.neighbours.len(), 5);
    }
    let expected = wrong.iter().filter(|&&wrong| wrong).count() as f64;
    assert!((audit.expected_wrong - expected).abs() < 0.1 * expected + 0.5, "{}", audit.expected_wrong);
    assert!(audit.ranking()[..expected as usize].iter().all(|&item| wrong[item]));
    let suggested: usize = audit.classes.iter().map(|class| class.found_elsewhere).sum();
    assert!(
        suggested as f64 >= 0.9 * expected && audit.classes.iter().all(|class| class.found_elsewhere <= 1)
    );
}

#[test]
fn wrong_labels_are_found_and_the_right_classes_suggested() {
    let (data, wrong) = collection(5, 6, 24);
    check_verdicts(&data, &wrong);
}

#[test]
fn a_large_collection_is_scored_like_a_small_one() {
    let (data, wrong) = collection(30, 40, 24);
    check_verdicts(&data, &wrong);
}

#[test]
fn threads_do_not_change_a_byte() {
    let (data, _) = collection(25, 20, 16);
    let with = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| serde_json::to_string(&run_audit(&data, &Options::default(), &[])).unwrap())
    };
    assert_eq!(with(1), with(3));
}

/// Classes that overlap, so that probabilities are not all 0 or 1, with labels that are wrong at random.
fn overlapping(classes: usize, items: usize, dim: usize) -> (Vec<f32>, Vec<usize>) {
    let mut rng = Rng::new(5, Purpose::Method, 0);
    let centres: Vec<f32> = (0..classes * dim).map(|_| rng.uniform() - 0.5).collect();
    let (mut values, mut labels) = (Vec::new(), Vec::new());
    for row in 0..classes * items {
        let truth = row % classes;
        values.extend((0..dim).map(|d| centres[truth * dim + d] + 1.2 * (rng.uniform() - 0.5)));
        labels.push(if rng.below(5) == 0 { rng.below(classes) } else { truth });
    }
    (values, labels)
}

/// P(wrong) of every row; class number `n` is called `name(n)`.
fn p_wrong(values: &[f32], dim: usize, labels: &[usize], name: impl Fn(usize) -> String) -> Vec<f32> {
    let labels = labels.iter().map(|&label| name(label)).collect();
    let data = Embeddings::from_rows(values.to_vec(), dim, labels).unwrap();
    run_audit(&data, &Options::default(), &[]).items.iter().map(|item| item.p_wrong).collect()
}

#[test]
fn order_and_names_change_nothing() {
    let (values, labels) = overlapping(7, 20, 12);
    assert_order_and_names_change_nothing(&values, &labels);
}

#[test]
fn order_and_names_change_nothing_with_many_identical_rows_of_different_labels() {
    let (mut values, mut labels) = overlapping(7, 20, 12);
    for (label, count) in [(0, 14), (1, 7), (2, 5)] {
        for _ in 0..count {
            values.extend([0.1; 12]);
            labels.push(label);
        }
    }
    assert_order_and_names_change_nothing(&values, &labels);
}

/// Audits 12-dimensional rows of seven classes in 50 orders and with other names.
fn assert_order_and_names_change_nothing(values: &[f32], labels: &[usize]) {
    let expected = p_wrong(values, 12, labels, |label| format!("{label}"));
    assert!(
        expected.iter().filter(|p| (0.02..0.98).contains(*p)).count() > 20,
        "too few uncertain probabilities to test anything"
    );
    let mut rng = Rng::new(6, Purpose::Method, 0);
    for _ in 0..50 {
        let mut order: Vec<usize> = (0..labels.len()).collect();
        rng.shuffle(&mut order);
        let mut names: Vec<usize> = (0..7).collect();
        rng.shuffle(&mut names);
        let rows: Vec<f32> =
            order.iter().flat_map(|&row| &values[row * 12..(row + 1) * 12]).copied().collect();
        let given: Vec<usize> = order.iter().map(|&row| labels[row]).collect();
        let shuffled = p_wrong(&rows, 12, &given, |label| format!("class {}", names[label]));
        for (&row, actual) in order.iter().zip(shuffled) {
            assert!((actual - expected[row]).abs() <= 1e-5, "{actual} {}", expected[row]);
        }
    }
}

/// The value that 99 % of the values do not exceed.
fn percentile_99(mut differences: Vec<f32>) -> f32 {
    differences.sort_by(f32::total_cmp);
    differences[(differences.len() - 1) * 99 / 100]
}

/// 30 items per class: with fewer, a single item matters more.
#[test]
fn one_item_less_and_small_noise_change_little() {
    let dim = 12;
    let (values, labels) = overlapping(7, 30, dim);
    let name = |label: usize| format!("{label}");
    let expected = p_wrong(&values, dim, &labels, name);
    let mut differences = Vec::new();
    for removed in (0..labels.len()).step_by(10) {
        let (mut values, mut labels, mut expected) = (values.clone(), labels.clone(), expected.clone());
        values.drain(removed * dim..(removed + 1) * dim);
        labels.remove(removed);
        expected.remove(removed);
        let without_item = p_wrong(&values, dim, &labels, name);
        differences.extend(without_item.iter().zip(&expected).map(|(a, b)| (a - b).abs()));
    }
    assert!(percentile_99(differences.clone()) <= 0.05, "{}", percentile_99(differences));
    let mut rng = Rng::new(7, Purpose::Method, 0);
    let noisy: Vec<f32> = values.iter().map(|value| value * (1.0 + 2e-4 * (rng.uniform() - 0.5))).collect();
    let with_noise = p_wrong(&noisy, dim, &labels, name);
    let differences: Vec<f32> = with_noise.iter().zip(&expected).map(|(a, b)| (a - b).abs()).collect();
    assert!(percentile_99(differences.clone()) <= 0.05, "{}", percentile_99(differences));
}

/// The same collection was scored in PyTorch, by bench/peers/audit_evidence.py.
#[test]
fn probabilities_are_those_of_the_program_that_trained_the_network() {
    #[derive(serde::Deserialize)]
    struct Example {
        rows: Vec<Vec<f32>>,
        given: Vec<usize>,
        shares: Vec<Vec<f32>>,
    }
    let example: Example = serde_json::from_str(include_str!("../../tests/audit/example.json")).unwrap();
    let labels = example.given.iter().map(|class| format!("{class:02}")).collect();
    let data = Embeddings::from_rows(example.rows.concat(), example.rows[0].len(), labels).unwrap();
    let audit = run_audit(&data, &Options::default(), &[]);
    let mut uncertain = 0;
    for (shares, expected) in audit.shares.iter().zip(&example.shares) {
        for (class, &expected) in (0..).zip(expected) {
            let share = evidence::share(shares, class);
            assert!((share - expected).abs() < 1e-4, "class {class}: {share}, not {expected}");
            uncertain += usize::from((0.05..0.95).contains(&expected));
        }
    }
    assert!(uncertain > 10, "too few uncertain probabilities to test much");
}

#[test]
fn confirmed_labels_are_kept() {
    let (data, wrong) = collection(4, 5, 16);
    let audit = run_audit(&data, &Options::default(), &wrong);
    assert!(audit.items.iter().all(|item| item.verdict == Verdict::Keep && !item.is_suspect()));
    assert_eq!(audit.items.iter().filter(|item| item.confirmed).count(), 4);
}

#[test]
fn an_expected_noise_of_zero_leaves_no_suspect_label() {
    let (data, _) = collection(4, 5, 16);
    let expecting =
        |share| run_audit(&data, &Options { expected_noise: Some(share), ..Options::default() }, &[]);
    assert_eq!(expecting(0.0).counts.suspect, 0);
    assert!((expecting(0.5).expected_wrong - 10.0).abs() < 0.01);
}

#[test]
fn copies_are_listed_and_those_across_classes_come_first() {
    let (data, _) = collection(3, 4, 16);
    let mut values = vec![0.0; data.len() * 16];
    for (row, out) in values.chunks_exact_mut(16).enumerate() {
        data.features().decode_row(row, out);
    }
    let copy: Vec<f32> = values[..16].to_vec();
    values[16..32].copy_from_slice(&copy);
    values[8 * 16..9 * 16].iter_mut().zip(&copy).for_each(|(out, value)| *out = value * 1.0001);
    let labels = (0..12).map(|row| format!("class {}", row / 4)).collect();
    let data = Embeddings::from_rows(values, 16, labels).unwrap();
    let duplicates = run_audit(&data, &Options::default(), &[]).duplicates;
    let pairs: Vec<([u32; 2], DuplicateKind)> =
        duplicates.iter().map(|pair| (pair.rows, pair.kind)).collect();
    let (exact, near) = (DuplicateKind::Exact, DuplicateKind::Near);
    assert_eq!(pairs, [([0, 8], near), ([0, 1], exact)]);
    assert!(duplicates[0].label_conflict && !duplicates[1].label_conflict);
}

#[test]
fn rows_that_do_not_distinguish_their_classes_cause_a_warning() {
    let mut rng = Rng::new(9, Purpose::Method, 0);
    let values: Vec<f32> = (0..100 * 16).map(|_| rng.uniform() - 0.5).collect();
    let labels = (0..100).map(|row| format!("class {}", row % 5)).collect();
    let data = Embeddings::from_rows(values, 16, labels).unwrap();
    let audit = run_audit(&data, &Options::default(), &[]);
    assert!(
        audit.warnings.iter().any(|warning| warning.contains("hardly distinguish")),
        "{:?}",
        audit.warnings
    );
    let expected = Options { expected_noise: Some(0.1), ..Options::default() };
    assert_eq!(run_audit(&data, &expected, &[]).warnings, Vec::<String>::new());
}

#[test]
fn classes_with_the_same_items_and_items_that_are_all_the_same_cause_a_warning() {
    let rows = |values: &[f32]| -> Vec<f32> { values.iter().flat_map(|value| [*value, 1.0]).collect() };
    let labels = |names: [&str; 6]| names.map(String::from).to_vec();
    let names = labels(["a", "a", "b", "b", "c", "c"]);
    let data = Embeddings::from_rows(rows(&[1.0, 2.0, 5.0, 9.0, 2.0, 1.0]), 2, names.clone()).unwrap();
    let audit = run_audit(&data, &Options::default(), &[]);
    assert_eq!(audit.warnings, ["classes 'a' and 'c' contain the same items: remove one or merge them"]);
    let data = Embeddings::from_rows(rows(&[1.0; 6]), 2, names).unwrap();
    let audit = run_audit(&data, &Options::default(), &[]);
    assert_eq!(audit.warnings, ["all items are identical: their labels cannot be checked"]);
    assert_eq!(audit.duplicates.len(), 5, "each item in one pair with another, not all pairs");
}

#[test]
fn a_single_class_and_impossible_expectations_are_refused() {
    let data = Embeddings::from_rows(vec![1.0, 2.0, 3.0], 1, vec!["a".into(); 3]).unwrap();
    assert!(matches!(Audit::of(&data).run(), Err(Error::OneClass)));
    let features = crate::embeddings::Features::from_f32(vec![1.0, 2.0, 3.0], 1);
    let classes = ["a", "without items"].map(String::from).to_vec();
    let data = Embeddings::from_numbered(features, vec![0; 3], classes).unwrap();
    assert!(matches!(Audit::of(&data).run(), Err(Error::OneClass)));
    let (data, _) = collection(3, 3, 8);
    let options = Options { expected_noise: Some(1.0), ..Options::default() };
    assert!(matches!(Audit::of(&data).options(options).run(), Err(Error::OutOfRange { .. })));
}

#[test]
fn of_many_equal_items_only_some_pairs_are_listed() {
    let labels = (0..600).map(|row| format!("class {}", row % 2)).collect();
    let data = Embeddings::from_rows(vec![1.0; 600 * 2], 2, labels).unwrap();
    let audit = run_audit(&data, &Options::default(), &[]);
    assert!(audit.duplicates.len() <= 600 * 8, "{} pairs", audit.duplicates.len());
    let listed: std::collections::HashSet<u32> = audit.duplicates.iter().flat_map(|pair| pair.rows).collect();
    assert_eq!(listed.len(), 600, "every item is listed");
}

#[test]
fn similar_items_of_tight_classes_are_not_copies() {
    // Items of a class have cosines above 0.9, like copies in other collections.
    let (values, labels) = {
        let mut rng = Rng::new(3, Purpose::Method, 0);
        let centres: Vec<f32> = (0..5 * 20).map(|_| rng.uniform() - 0.5).collect();
        let value = |row: usize, column: usize| centres[row % 5 * 20 + column];
        let values = (0..100).flat_map(|row| (0..20).map(move |column| (row, column)));
        let values: Vec<f32> =
            values.map(|(row, column)| value(row, column) + 0.2 * (rng.uniform() - 0.5)).collect();
        (values, (0..100).map(|row| format!("{}", row % 5)).collect())
    };
    let data = Embeddings::from_rows(values, 20, labels).unwrap();
    let audit = run_audit(&data, &Options::default(), &[]);
    assert!(audit.items.iter().all(|item| item.neighbours[0].similarity > 0.9));
    assert_eq!(audit.duplicates, []);
}

#[test]
fn items_of_a_dense_region_are_not_copies() {
    // Forty items lie very close together, the others far apart; two of the others are nearly equal.
    let mut rng = Rng::new(4, Purpose::Method, 0);
    let centre: Vec<f32> = (0..20).map(|_| 2.0 * (rng.uniform() - 0.5)).collect();
    let mut values: Vec<f32> = (0..40 * 20).map(|n| centre[n % 20] + 0.02 * (rng.uniform() - 0.5)).collect();
    values.extend((0..120 * 20).map(|_| rng.uniform() - 0.5));
    let nearly_equal: Vec<f32> =
        values[100 * 20..101 * 20].iter().map(|value| value * 1.001 + 1e-4).collect();
    values[60 * 20..61 * 20].copy_from_slice(&nearly_equal);
    let labels = (0..160).map(|row| format!("{}", row % 4)).collect();
    let audit = run_audit(&Embeddings::from_rows(values, 20, labels).unwrap(), &Options::default(), &[]);
    let pairs: Vec<[u32; 2]> = audit.duplicates.iter().map(|pair| pair.rows).collect();
    assert_eq!(pairs, [[60, 100]]);
}

/// A grey image of twelve random waves, moved to the left by a share of its width.
fn image(seed: usize, shift: f64) -> ImageMeasures {
    image_measures::tests::measured(96, |x, y| {
        let mut rng = Rng::new(seed as u64, Purpose::Method, 0);
        let (x, y) = (x as f64 / 96.0 + shift, y as f64 / 96.0);
        let wave = |rng: &mut Rng| {
            let mut part = || f64::from(rng.uniform());
            let (angle, frequency, phase) = (6.3 * part(), 6.3 * (1.0 + 8.0 * part()), 6.3 * part());
            (frequency * (x * angle.cos() + y * angle.sin()) + phase).sin()
        };
        (128.0 + 12.0 * (0..12).map(|_| wave(&mut rng)).sum::<f64>()).clamp(0.0, 255.0) as u8
    })
}

/// The duplicates (names, and whether the labels differ) of a collection in which items 0 and 1, of one class, show the
/// same picture, and so do items 2 and 3, of two classes. `order` are the items in the order of the rows.
fn copies_by_pixels(order: &[usize], rename: impl Fn(usize) -> String) -> Vec<(String, String, bool)> {
    let (values, labels) = overlapping(4, 10, 12);
    let mut labels = labels;
    (labels[0], labels[1], labels[2], labels[3]) = (0, 0, 1, 2);
    let row = |row: usize| {
        // A copy is similar, but not nearly equal.
        let source = if row < 4 { row / 2 * 2 } else { row };
        (0..12).map(move |d| (row, source, d))
    };
    let value = |(row, source, d): (usize, usize, usize)| {
        if row == source {
            values[row * 12 + d]
        } else {
            values[source * 12 + d] * 0.8 + values[row * 12 + d] * 0.2
        }
    };
    let picture = |row: usize| image(if row < 4 { row / 2 * 2 } else { row }, 0.04 * (row % 2) as f64);
    let rows = order.iter().flat_map(|&item| row(item)).map(value).collect();
    let given = order.iter().map(|&row| format!("class {}", labels[row])).collect();
    let data = Embeddings::from_rows(rows, 12, given).unwrap();
    let names: Vec<String> = order.iter().map(|&row| rename(row)).collect();
    let data = data.with_items(crate::embeddings::Items::from_names(names)).unwrap();
    let measures: Vec<Option<ImageMeasures>> = order.iter().map(|&row| Some(picture(row))).collect();
    let audit = Audit::of(&data).image_measures(&measures).run().unwrap();
    audit.duplicates.into_iter().map(|pair| (pair.item, pair.other, pair.label_conflict)).collect()
}

#[test]
fn copies_are_recognised_by_their_pixels_in_any_order_of_the_items() {
    let order: Vec<usize> = (0..40).collect();
    let name = |row: usize| format!("{row:02}.jpg");
    let expected = [("02.jpg", "03.jpg", true), ("00.jpg", "01.jpg", false)];
    let expected = expected.map(|(item, other, conflict)| (item.to_string(), other.to_string(), conflict));
    assert_eq!(copies_by_pixels(&order, name), expected);
    let mut rng = Rng::new(8, Purpose::Method, 0);
    for _ in 0..5 {
        let mut shuffled = order.clone();
        rng.shuffle(&mut shuffled);
        assert_eq!(copies_by_pixels(&shuffled, name), expected);
    }
    let renamed = copies_by_pixels(&order, |row| format!("{:02}.jpg", 99 - row));
    let renamed_back = |name: &str| format!("{:02}.jpg", 99 - name[..2].parse::<usize>().unwrap());
    let renamed: Vec<_> = renamed.iter().map(|(a, b, c)| (renamed_back(b), renamed_back(a), *c)).collect();
    assert_eq!(renamed, expected);
}

#[test]
fn image_problems_are_listed_with_their_items() {
    let data = Embeddings::from_rows(
        vec![1.0, 0.0, 0.0, 1.0, 0.5, 0.5],
        2,
        ["a", "b", "a"].map(String::from).to_vec(),
    );
    let black = image_measures::tests::measured(64, |_, _| 3);
    let checks = image_measures::tests::measured(64, |x, y| ((x / 8 + y / 8) % 2 * 200) as u8);
    let measures = [Some(checks), Some(black), None];
    let unreadable = [("z.png".to_string(), Some("b".to_string())), ("c.png".to_string(), None)];
    let data = data.unwrap();
    let audit = Audit::of(&data).image_measures(&measures).unreadable_images(unreadable).run().unwrap();
    let kinds = |problem: &ImageProblem| (problem.item.clone(), problem.kinds.clone());
    let expected = [
        ("row 1".to_string(), vec![ImageProblemKind::Dark]),
        ("c.png".to_string(), vec![ImageProblemKind::Unreadable]),
        ("z.png".to_string(), vec![ImageProblemKind::Unreadable]),
    ];
    assert_eq!(audit.image_problems.iter().map(kinds).collect::<Vec<_>>(), expected);
    assert!(Audit::of(&data).image_measures(&measures[1..]).run().is_err());
}

/// Progress that asks to stop after `allowed` updates in which `done` items are finished.
struct StopAfter {
    done: u64,
    allowed: usize,
    asked: AtomicUsize,
    asked_afterwards: AtomicUsize,
}

impl Progress for StopAfter {
    fn update(&self, done: u64, _total: u64) -> ControlFlow<()> {
        if done != self.done {
            return ControlFlow::Continue(());
        }
        let asked = self.asked.fetch_add(1, Ordering::Relaxed);
        self.asked_afterwards.fetch_add(usize::from(asked > self.allowed), Ordering::Relaxed);
        if asked < self.allowed { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

/// Stops an audit and returns how often the progress was updated after it had asked to stop.
fn updates_after_stop(data: &Embeddings, done: u64, allowed: usize) -> usize {
    let stop_after = StopAfter { done, allowed, asked: 0.into(), asked_afterwards: 0.into() };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build().unwrap();
    let result = pool.install(|| Audit::of(data).progress(&stop_after).run());
    assert!(matches!(result, Err(Error::Interrupted)), "{done} done, {allowed} updates allowed");
    stop_after.asked_afterwards.into_inner()
}

#[test]
fn an_audit_can_be_stopped_in_every_phase() {
    let (data, _) = collection(30, 40, 24);
    // While the regressions and the neighbours are prepared.
    for allowed in [0, 1, 3, 10, 20] {
        assert_eq!(updates_after_stop(&data, 0, allowed), 0);
    }
    // Within the first round.
    for allowed in [0, 1, 10] {
        assert_eq!(updates_after_stop(&data, data.len() as u64 / 2, allowed), 0);
    }
    // While duplicates are searched; the last round updates the progress once.
    for allowed in [1, 2, 5, 10] {
        assert_eq!(updates_after_stop(&data, data.len() as u64, allowed), 0);
    }
}

#[test]
fn a_map_can_be_interrupted() {
    for (classes, items) in [(5, 10), (30, 40)] {
        let (data, _) = collection(classes, items, 24);
        for allowed in [0, 1, 20] {
            let done = data.len() as u64;
            let stop_after = StopAfter { done, allowed, asked: 0.into(), asked_afterwards: 0.into() };
            assert!(matches!(map(&data, &stop_after), Err(Error::Interrupted)));
            assert_eq!(stop_after.asked_afterwards.into_inner(), 0);
        }
    }
}
