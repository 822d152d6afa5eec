//! Audits of data that say little or nothing about their labels, and of folders that change while they are read. Each
//! gives a result with a warning, or an error with a hint.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::fixture::{EmbeddingsFolder, bank, refused, text};
use crate::photos::PhotoFolder;
use serde_json::Value;
use trueshot::Embeddings;

const DIM: usize = 8;

/// Audits rows from a file and returns the JSON report and the table.
fn audit(values: Vec<f32>, labels: Vec<String>) -> (Value, String) {
    let folder = EmbeddingsFolder::new();
    Embeddings::from_rows(values, DIM, labels).unwrap().write(folder.path("odd.safetensors")).unwrap();
    let command =
        ["audit", "odd.safetensors", "--json", "a.json", "--html", "a.html", "--plan", "plan.jsonl"];
    let done = folder.trueshot(&command).assert().success();
    let json = std::fs::read_to_string(folder.path("a.json")).unwrap();
    (serde_json::from_str(&json).unwrap(), text(&done.get_output().stdout))
}

/// Rows of `classes` classes, with the class of each row.
fn rows(classes: usize, items: usize) -> (Vec<f32>, Vec<String>) {
    let data = bank("class", 3, classes, items, DIM);
    let labels = data.labels().iter().map(|label| data.classes()[*label as usize].clone()).collect();
    (data.all_rows().into_owned(), labels)
}

fn count(audit: &Value, name: &str) -> u64 {
    audit["counts"][name].as_u64().unwrap()
}

/// The number of items that a repair would change.
fn changes(audit: &Value) -> u64 {
    count(audit, "relabel") + count(audit, "quarantine")
}

#[test]
fn one_class_is_refused() {
    let folder = EmbeddingsFolder::new();
    let data = Embeddings::from_rows(vec![1.0; 20], 2, vec!["a".into(); 10]).unwrap();
    data.write(folder.path("one.safetensors")).unwrap();
    refused(folder.trueshot(&["audit", "one.safetensors"]), &["at least two classes"]);
}

#[test]
fn two_items_and_classes_of_one_item_cannot_be_checked_and_that_is_said() {
    for items in [2, 8] {
        let (values, labels) = rows(items, 1);
        let (found, table) = audit(values, labels);
        assert_eq!(changes(&found), 0, "{table}");
        assert!(table.contains("warning: no label can be checked: every class has a single item"), "{table}");
    }
}

#[test]
fn ten_thousand_classes_are_audited() {
    let labels = (0..10_000).map(|class| format!("class {class:05}")).collect();
    let values = (0..10_000 * DIM).map(|n| ((n * 7919) % 1009) as f32 / 1009.0).collect();
    let (found, table) = audit(values, labels);
    assert_eq!((count(&found, "classes"), changes(&found)), (10_000, 0));
    assert!(table.lines().count() < 400, "the table stays readable: {} lines", table.lines().count());
}

#[test]
fn identical_rows_are_left_to_review_or_kept() {
    let labels = (0..30).map(|row| format!("class {}", row % 3)).collect();
    let (found, table) = audit(vec![0.5; 30 * DIM], labels);
    assert_eq!(changes(&found), 0, "{table}");
    assert!(table.contains("all items are identical"), "{table}");
}

#[test]
fn a_class_that_duplicates_another_is_named() {
    let (mut values, mut labels) = rows(3, 10);
    values.extend_from_within(..10 * DIM);
    labels.extend(vec!["copy".to_string(); 10]);
    let (found, table) = audit(values, labels);
    assert!(
        table.contains("classes 'class 0' and 'copy' contain the same items: remove one or merge them"),
        "{table}"
    );
    let copies = found["items"].as_array().unwrap().iter().filter(|item| item["given"] == "copy");
    for item in copies {
        assert!(item["action"] == "review" || item["action"] == "quarantine", "{item}");
        assert_ne!(item["action"], "relabel", "either label may be the right one");
    }
}

#[test]
fn names_that_were_exchanged_as_a_whole_look_right() {
    let (values, labels) = rows(4, 10);
    let (expected, _) = audit(values.clone(), labels.clone());
    let next = |label: &String| format!("class {}", (label.chars().last().unwrap() as u8 - b'0' + 1) % 4);
    let (found, _) = audit(values, labels.iter().map(next).collect());
    assert_eq!(found["counts"], expected["counts"], "an audit does not know what a name means");
}

#[test]
fn one_class_with_nine_of_ten_items_is_audited() {
    let (values, _) = rows(2, 100);
    let labels: Vec<String> =
        (0..110).map(|row| if row < 100 { "many" } else { "few" }.to_string()).collect();
    let (found, table) = audit(values[..110 * DIM].to_vec(), labels);
    assert!(changes(&found) <= 5, "{table}");
}

#[test]
fn rows_with_nan_are_refused_with_their_place() {
    let folder = EmbeddingsFolder::new();
    folder.spoil(3, 2, f32::NAN);
    refused(folder.trueshot(&["audit", "data.safetensors"]), &["row 3, column 2", "must be finite"]);
}

#[test]
fn a_folder_that_changes_while_it_is_read_gives_an_answer_or_a_reason() {
    let photos = PhotoFolder::new();
    let picture = std::fs::read(photos.path("photos/rings/1.png")).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                for name in ["rings/1.png", "stripes/2.png", "checks/new.png", "other/3.png"] {
                    photos.write(name, &picture);
                    std::thread::yield_now();
                    let _ = std::fs::remove_file(photos.path("photos").join(name));
                }
            }
        });
        for _ in 0..6 {
            let command = ["--no-cache", "--html", "a.html", "--plan", "plan.jsonl", "--json", "a.json"];
            let output = photos.audit(&command).output().unwrap();
            let said = text(&output.stderr);
            assert!(!said.contains("panicked"), "{said}");
            match output.status.code() {
                Some(0) => {
                    let json = std::fs::read_to_string(photos.path("a.json")).unwrap();
                    let found: Value = serde_json::from_str(&json).unwrap();
                    assert!(count(&found, "items") >= 14, "{said}");
                }
                Some(1) => assert!(said.contains("error: "), "{said}"),
                status => panic!("{status:?}: {said}"),
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    // A plan for the folder as it was before is refused.
    photos.write("rings/late.png", &picture);
    photos.write("rings/1.png", &picture);
    photos.audit(&["--plan", "plan.jsonl"]).assert().success();
    std::fs::remove_file(photos.path("photos/rings/late.png")).unwrap();
    refused(photos.trueshot(&["repair", "plan.jsonl", "--in-place"]), &["1 gone (rings/late.png)"]);
}
