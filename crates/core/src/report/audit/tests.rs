//! Tests of the audit reports: widths, escaping of names with special characters, the items of large collections, and a
//! snapshot.

use super::*;
use crate::embeddings::{Embeddings, Items};

/// A pseudo-random number from -0.5 to 0.5 (two steps of the mixing function of SplitMix64).
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
        // The centre of a class, which is made of rows with other numbers than those of the items, and noise.
        values.extend((0..24).map(|column| 3.0 * scatter(truth + 100_003, column) + scatter(row, column)));
        labels.push(names[class].to_string());
        items.push(format!("{}/picture {row}.jpg", names[class]));
    }
    let data =
        Embeddings::from_rows(values, 24, labels).unwrap().with_items(Items::from_names(items)).unwrap();
    let audit = Audit::of(&data).run().unwrap();
    (data, audit)
}

/// The plan of an audit of a folder.
fn planned(audit: &Audit, data: &Embeddings) -> crate::repair::RepairPlan {
    let listing =
        vec![crate::repair::ListedItem { item: "a </script> name.jpg".into(), ..Default::default() }];
    crate::repair::RepairPlan::new(
        audit,
        data,
        crate::repair::CollectionKind::Folder,
        "photos".as_ref(),
        listing,
    )
}

#[test]
fn the_table_fits_a_terminal_whatever_the_names() {
    let (_, audit) = audited();
    let shown = AuditTable::new(&audit).all(true).width(Some(150)).render();
    for line in shown.lines() {
        assert!(crate::visible::display_width(line) <= 150, "{line}");
    }
    // The folder of an item is its class, and stays whatever the width.
    let narrow = AuditTable::new(&audit).all(true).width(Some(80)).render();
    for line in narrow.lines().filter(|line| line.contains(".jpg")) {
        assert!(["cat/", "two\\nlines/", "should be/"].iter().any(|class| line.contains(class)), "{line}");
    }
    assert!(shown.contains("two\\nlines"), "{shown}");
    let suspects = AuditTable::new(&audit).render();
    assert!(suspects.lines().count() < shown.lines().count());
    let first = suspects.lines().nth(1).unwrap();
    assert!(first.contains('%') && first.contains("picture"), "{suspects}");
}

#[test]
fn csv_has_one_line_per_item() {
    let (_, audit) = audited();
    let csv = audit_csv(&audit);
    assert_eq!(csv.matches(",false,").count(), 15, "no item is confirmed: {csv}");
    assert!(csv.contains("\"two\nlines/picture 5.jpg\""), "{csv}");
}

#[test]
fn the_page_escapes_names_and_loads_nothing() {
    let (data, audit) = audited();
    let points = crate::audit::map(&data, &()).unwrap();
    let thumbnails = vec![Some("data:image/jpeg;base64,AAAA".to_string()); data.len()];
    let page = |thumbnails: &[Option<String>]| {
        let notes = vec!["x.heic: convert it".into()];
        let (audit, data, plan) = (&audit, &data, &planned(&audit, &data));
        AuditPage { title: "photos", audit, data, plan, thumbnails, points: &points, notes }.render()
    };
    let shown = page(&thumbnails);
    assert!(!shown.contains("<b>bold</b>"));
    assert!(shown.contains("class=\"item relabel\"") && shown.contains("class=\"ring\""));
    assert_eq!(shown.matches("<img src=").count(), 15);
    assert!(!shown.contains("http://") && !shown.contains("https://"));
    assert_eq!(page(&[]).matches("<img src=").count(), 0);
    assert!(shown.contains(">picture 5.jpg</span>"), "the folder is the heading: {shown}");
}

/// The content of a script element of a page.
fn script<'a>(page: &'a str, id: &str) -> &'a str {
    let after = page.split(&format!("id=\"{id}\">")).nth(1).expect("the element is there");
    after.split("</script>").next().unwrap_or_default()
}

#[test]
fn the_page_contains_the_plan_and_the_data_of_the_review() {
    let (data, audit) = audited();
    let points = crate::audit::map(&data, &()).unwrap();
    let (audit, data, plan) = (&audit, &data, &planned(&audit, &data));
    let page =
        AuditPage { title: "x", audit, data, plan, thumbnails: &[], points: &points, notes: Vec::new() };
    let page = page.render();
    let parsed = crate::repair::RepairPlan::parse(script(&page, "review-plan"), "page".as_ref()).unwrap();
    assert_eq!(&parsed, plan);
    let review: serde_json::Value = serde_json::from_str(script(&page, "review-data")).unwrap();
    assert_eq!(review["classes"].as_array().unwrap().len(), 3);
    let counts = audit.counts;
    let queue = review["queue"].as_array().unwrap();
    assert_eq!(queue.len(), counts.relabel + counts.quarantine + counts.review);
    let action = |row: &serde_json::Value| audit.items[row.as_u64().unwrap() as usize].action;
    assert!(queue.iter().map(action).skip(counts.review).all(|action| action != Action::Review));
    let row = review["items"].as_array().unwrap().iter().find(|item| item["row"] == 4).unwrap();
    assert_eq!((&row["given"], &row["item"]), (&"cat".into(), &"cat/picture 4.jpg".into()));
    assert_eq!(row["probable"][0]["class"], "two\nlines");
    for (item, shown) in audit.items.iter().zip(review["items"].as_array().unwrap()) {
        let is_planned = matches!(item.action, Action::Relabel | Action::Quarantine);
        assert_eq!(shown["planned"].is_object(), is_planned, "{shown}");
        assert_eq!(shown["planned"]["to"].as_str(), item.suggested.as_deref().filter(|_| is_planned));
    }
}

#[test]
fn the_page_of_a_large_collection_shows_suspects_and_some_items_of_every_class() {
    let scatter = |row: usize, column: usize| ((row * 37 + column * 101) as f32 * 0.7).sin() * 0.4;
    // Every hundredth item looks like an item of the next class.
    let class = |row: usize| if row.is_multiple_of(100) { 1 } else { 0 } + row / 500;
    let value = |row: usize, column: usize| if class(row) % 4 == column % 4 { 2.0 } else { 0.0 } + scatter(row, column);
    let values = (0..2000).flat_map(|row| (0..8).map(move |column| value(row, column))).collect();
    let labels = (0..2000).map(|row| format!("class {}", row / 500)).collect();
    let data = Embeddings::from_rows(values, 8, labels).unwrap();
    let audit = Audit::of(&data).run().unwrap();
    let shown = shown_rows(&audit, &data);
    assert!(shown.len() <= 1200 && shown.len() >= 12, "{}", shown.len());
    let suspects: Vec<usize> = (0..2000).filter(|row| audit.items[*row].verdict != Verdict::Keep).collect();
    // Up to 800 suspects, two thirds of the page, are shown in any case.
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
            action: match verdict {
                Verdict::Keep => Action::Keep,
                Verdict::Relabel => Action::Relabel,
                Verdict::Outlier | Verdict::Wrong => Action::Quarantine,
                Verdict::Unsure => Action::Review,
            },
            suggested: suggested.map(String::from),
            weight: 1.0,
            p_outlier: 0.0,
            probable: vec![
                ProbableClass { class: Some("owl".into()), p: 0.55 },
                ProbableClass { class: None, p: 0.4 },
            ],
            advice: (verdict == Verdict::Unsure).then(|| "two more items of ani would help to decide".into()),
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
        counts: AuditCounts {
            items: 4,
            classes: 2,
            relabel: 1,
            quarantine: 1,
            review: 1,
            keep: 1,
            confirmed: 0,
            suspect: 3,
        },
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
fn a_wide_terminal_shows_long_names_whole() {
    let audit = invented();
    let name = "a very long name of a picture that nobody would ever type.jpeg";
    assert!(AuditTable::new(&audit).render().contains(name), "whole names without a terminal");
    let shown = |width| AuditTable::new(&audit).width(Some(width)).render();
    assert!(shown(160).contains(name), "{}", shown(160));
    for width in [76, 80] {
        let shown = shown(width);
        assert!(!shown.contains(name) && shown.contains("owl/a ver"), "{shown}");
        assert!(shown.lines().all(|line| crate::visible::display_width(line) <= width), "{shown}");
    }
}

#[test]
fn sentences_are_right_for_one_and_for_none() {
    let counts = AuditCounts { items: 1, classes: 1, keep: 1, confirmed: 1, ..AuditCounts::default() };
    assert_eq!(planned_in_words(&counts), "1 item of 1 class: 1 to keep (1 confirmed)");
    let mut audit = invented();
    assert_eq!(wrong_in_words(&audit), "3 labels are suspect; about 2 are expected to be wrong");
    (audit.counts.suspect, audit.expected_wrong) = (1, 0.9);
    assert_eq!(wrong_in_words(&audit), "1 label is suspect; about 1 is expected to be wrong");
    (audit.counts.suspect, audit.expected_wrong) = (0, 0.2);
    assert_eq!(wrong_in_words(&audit), "no label is suspect; probably none is wrong");
}

/// The numbers of a sentence, in order.
fn numbers(text: &str) -> Vec<usize> {
    let digits = |c: char| c.is_ascii_digit();
    text.split(|c| !digits(c)).filter_map(|part| part.parse().ok()).collect()
}

#[test]
fn table_page_csv_json_and_plan_have_the_same_counts() {
    let (data, audit) = audited();
    let counts = audit.counts;
    assert_eq!(counts.relabel + counts.quarantine + counts.review + counts.keep, counts.items);
    assert_eq!(counts.items, 15);
    let sentence = planned_in_words(&counts);
    assert!(AuditTable::new(&audit).render().contains(&sentence));
    let points = crate::audit::map(&data, &()).unwrap();
    let page = AuditPage {
        title: "x",
        audit: &audit,
        data: &data,
        plan: &planned(&audit, &data),
        thumbnails: &[],
        points: &points,
        notes: Vec::new(),
    };
    let page = page.render();
    assert!(page.contains(&sentence) && page.contains(&wrong_in_words(&audit)));
    let json: serde_json::Value = serde_json::from_str(&audit_json(&audit)).unwrap();
    let plan = planned(&audit, &data);
    let planned = [counts.relabel, counts.quarantine, counts.review];
    assert_eq!(numbers(&plan.summary())[..3], planned, "{}", plan.summary());
    for action in Action::ALL {
        let (name, count) = (action.name(), counts.of(action));
        assert_eq!(json["counts"][name], count);
        assert_eq!(page.matches(&format!("data-action=\"{name}\"")).count(), count, "{name}");
        assert_eq!(
            audit_csv(&audit).matches(&format!(",{name},")).count(),
            count + verdicts_named(&audit, name)
        );
    }
    assert_eq!(page.matches(" data-suspect").count(), counts.suspect);
    assert_eq!(json["counts"]["suspect"], counts.suspect);
}

/// The number of items whose verdict has this name, but whose action has another. The CSV line of such an item contains
/// `,NAME,`. If both have this name, the line contains `,NAME,NAME,`, which `matches` counts once.
fn verdicts_named(audit: &Audit, name: &str) -> usize {
    audit.items.iter().filter(|item| item.verdict.name() == name && item.action.name() != name).count()
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
        plan: &planned(&audit, &data),
        thumbnails: &[],
        points: &points,
        notes: Vec::new(),
    };
    let (page, table) = (page.render(), AuditTable::new(&audit).render());
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
fn duplicates_that_do_not_fit_on_one_line_take_two_and_their_names_differ() {
    let mut audit = audited().1;
    audit.duplicates = invented().duplicates;
    audit.duplicates[0].other_given = audit.duplicates[0].given.clone();
    // The first pair fits on two lines. The second does not, and its names differ only in their middle.
    for length in [22, 40] {
        let label = &audit.duplicates[0].given;
        let name = |number: &str| format!("{label}/{}{number}{}", "a".repeat(length), "z".repeat(length));
        let names = [name("1"), name("2")];
        audit.duplicates[0].item = names[0].clone();
        audit.duplicates[0].other = names[1].clone();
        let expected = format!("  {} is nearly identical to\n    {}\n", names[0], names[1]);
        let table = AuditTable::new(&audit).width(Some(80)).render();
        assert!(table.contains(&expected), "{table}");
    }
}

#[test]
fn the_table_matches_its_snapshot() {
    insta::assert_snapshot!(AuditTable::new(&invented()).all(true).width(Some(80)).render());
}

#[test]
fn without_neighbours_neither_the_plan_nor_the_page_lists_them_and_left_out_warnings_are_counted() {
    let data = audited().0;
    let mut audit = Audit::of(&data).neighbours(0).run().unwrap();
    audit.warnings = (0..23).map(|number| format!("problem {number}")).collect();
    let plan = planned(&audit, &data);
    assert!(plan.changes.iter().chain(&plan.review).all(|change| change.reason.is_none()), "{plan:?}");
    let points = crate::audit::map(&data, &()).unwrap();
    let page = AuditPage {
        title: "x",
        audit: &audit,
        data: &data,
        plan: &plan,
        thumbnails: &[],
        points: &points,
        notes: Vec::new(),
    };
    let page = page.render();
    assert!(!page.contains("Most similar items:"));
    assert!(page.contains("problem 19.") && !page.contains("problem 20."));
    assert!(page.contains("and 3 more warnings."));
}
