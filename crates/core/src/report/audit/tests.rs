//! Tests of the audit reports: widths, escaping of hostile names, the items of large collections, and a snapshot.

use super::*;
use crate::embeddings::{Embeddings, Items};

/// A pseudo-random number from -0.5 to 0.5.
fn scatter(row: usize, column: usize) -> f32 {
    let mixed = ((row * 65_537 + column) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed >> 40) as f32 / (1u64 << 24) as f32 - 0.5
}

/// An audit of three classes of five items, with names that are hard to display; item 4 of the first class is really of
/// the second.
fn audited() -> (Embeddings, Audit) {
    let names =
        ["cat", "two\nlines", "a <b>bold</b> name that is far longer than any column of a table should be"];
    let (mut values, mut labels, mut items) = (Vec::new(), Vec::new(), Vec::new());
    for row in 0..15 {
        let class = row / 5;
        let truth = if row == 4 { 1 } else { class };
        values.extend((0..24).map(|column| 3.0 * scatter(truth + 100_003, column) + scatter(row, column)));
        labels.push(names[class].to_string());
        items.push(format!("{}/picture {row}.jpg", names[class]));
    }
    let data =
        Embeddings::from_rows(values, 24, labels).unwrap().with_items(Items::from_names(items)).unwrap();
    let found = Audit::of(&data).run().unwrap();
    (data, found)
}

#[test]
fn the_table_fits_a_terminal_whatever_the_names() {
    let (_, found) = audited();
    let shown = AuditTable { audit: &found, all: true }.render();
    for line in shown.lines() {
        assert!(crate::visible::columns(line) <= 80, "{line}");
    }
    assert!(shown.contains("two\\nlines"), "{shown}");
    let suspects = AuditTable { audit: &found, all: false }.render();
    assert!(suspects.lines().count() < shown.lines().count());
    let first = suspects.lines().nth(1).unwrap();
    assert!(first.contains('%') && first.contains("picture"), "{suspects}");
}

#[test]
fn csv_has_one_line_per_item() {
    let (_, found) = audited();
    let csv = audit_csv(&found);
    let records = csv.matches("/picture").count();
    assert!(records >= 15, "{csv}");
    assert!(csv.contains("\"two\nlines/picture 5.jpg\""), "{csv}");
}

#[test]
fn the_page_escapes_names_and_loads_nothing() {
    let (data, found) = audited();
    let points = crate::audit::map(&data, &()).unwrap();
    let thumbnails = vec![Some("data:image/jpeg;base64,AAAA".to_string()); data.len()];
    let page = |thumbnails: &[Option<String>]| {
        let notes = vec!["x.heic: convert it".into()];
        AuditPage { title: "photos", audit: &found, data: &data, thumbnails, points: &points, notes }.render()
    };
    let shown = page(&thumbnails);
    assert!(!shown.contains("<b>bold</b>"));
    assert!(shown.contains("class=\"item relabel\"") && shown.contains("class=\"ring\""));
    assert_eq!(shown.matches("<img src=").count(), 15);
    assert!(!shown.contains("http://") && !shown.contains("https://"));
    assert_eq!(page(&[]).matches("<img src=").count(), 0);
}

#[test]
fn the_page_of_a_large_collection_shows_suspects_and_some_items_of_every_class() {
    let scatter = |row: usize, column: usize| ((row * 37 + column * 101) as f32 * 0.7).sin() * 0.4;
    let class = |row: usize| if row.is_multiple_of(100) { 1 } else { 0 } + row / 500;
    let value = |row: usize, column: usize| if class(row) % 4 == column % 4 { 2.0 } else { 0.0 } + scatter(row, column);
    let values = (0..2000).flat_map(|row| (0..8).map(move |column| value(row, column))).collect();
    let labels = (0..2000).map(|row| format!("class {}", row / 500)).collect();
    let data = Embeddings::from_rows(values, 8, labels).unwrap();
    let found = Audit::of(&data).run().unwrap();
    let shown = shown_rows(&found, &data);
    assert!(shown.len() <= 1200 && shown.len() >= 12, "{}", shown.len());
    let suspects: Vec<usize> = (0..2000).filter(|row| found.items[*row].verdict != Verdict::Keep).collect();
    assert!(suspects.len() > 800 || suspects.iter().all(|row| shown.binary_search(row).is_ok()));
}

/// A made-up audit, so that the snapshot does not depend on a trained network.
fn invented() -> Audit {
    use crate::audit::{AuditedClass, Duplicate, ImageProblemKind};
    let item =
        |item: &str, given: &str, p_wrong: f32, verdict: Verdict, suggested: Option<&str>| AuditedItem {
            item: format!("{given}/{item}"),
            given: given.into(),
            p_wrong,
            verdict,
            suggested: suggested.map(String::from),
            weight: 1.0,
            p_outlier: 0.0,
            probable: Vec::new(),
            advice: (verdict == Verdict::Unsure).then(|| "owl or ani: two more of ani would help".into()),
            confirmed: false,
            neighbours: Vec::new(),
        };
    let class = |class: &str, items, expected_wrong, found_elsewhere| AuditedClass {
        class: class.into(),
        items,
        expected_wrong,
        found_elsewhere,
    };
    Audit {
        method: "evidence".into(),
        certainty: crate::audit::Certainty::default(),
        items: vec![
            item("kept.jpg", "owl", 0.002, Verdict::Keep, None),
            item(
                "a very long name of a picture that nobody would ever type.jpeg",
                "owl",
                0.999,
                Verdict::Relabel,
                Some("ani"),
            ),
            item("spoon.jpg", "ani", 0.91, Verdict::Outlier, None),
            item("夜の梟.jpg", "ani", 0.55, Verdict::Unsure, None),
        ],
        classes: vec![class("ani", 2, 1.46, 1), class("owl", 2, 1.0, 0), class("quiet", 0, 0.0, 0)],
        expected_wrong: 2.46,
        duplicates: vec![Duplicate {
            kind: DuplicateKind::Near,
            item: "ani/spoon.jpg".into(),
            given: "ani".into(),
            other: "owl/kept.jpg".into(),
            other_given: "owl".into(),
            label_conflict: true,
            rows: [2, 0],
        }],
        image_problems: vec![
            ImageProblem {
                item: "owl/kept.jpg".into(),
                given: Some("owl".into()),
                kinds: vec![ImageProblemKind::Blurred, ImageProblemKind::Tiny],
            },
            ImageProblem {
                item: "owl/broken.jpg".into(),
                given: Some("owl".into()),
                kinds: vec![ImageProblemKind::Unreadable],
            },
        ],
        warnings: vec!["classes 'ani' and 'owl' contain the same items".into()],
        shares: Vec::new(),
    }
}

#[test]
fn conflicts_and_image_problems_have_the_same_words_in_the_table_and_on_the_page() {
    let data = audited().0;
    let mut audit = audited().1;
    (audit.duplicates, audit.image_problems) = (invented().duplicates, invented().image_problems);
    audit.duplicates[0].item = "spoon.jpg".into();
    let points = crate::audit::map(&data, &()).unwrap();
    let page = AuditPage {
        title: "x",
        audit: &audit,
        data: &data,
        thumbnails: &[],
        points: &points,
        notes: Vec::new(),
    };
    let (page, table) = (page.render(), AuditTable { audit: &audit, all: false }.render());
    for words in [
        "abel conflicts: the same item with different labels",
        "spoon.jpg (ani) is nearly identical to owl/kept.jpg",
        "mage problems",
        "owl/kept.jpg: blurred, tiny",
        "owl/broken.jpg: unreadable",
    ] {
        assert!(page.contains(words) && table.contains(words), "{words}: {table}");
    }
    let json: serde_json::Value = serde_json::from_str(&audit_json(&audit)).unwrap();
    assert_eq!(json["duplicates"][0]["label_conflict"], true);
    assert_eq!(json["image_problems"][0]["kinds"], serde_json::json!(["blurred", "tiny"]));
}

#[test]
fn the_table_matches_its_snapshot() {
    insta::assert_snapshot!(AuditTable { audit: &invented(), all: true }.render());
}
