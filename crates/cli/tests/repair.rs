//! `trueshot repair`, as somebody with a plan meets it.

mod fixture;
mod photos;

use fixture::{Folder, misused, refused, text};
use photos::Photos;
use serde_json::Value;

/// Photos with two exchanged, and a plan beside them.
fn planned() -> Photos {
    let photos = Photos::new();
    photos.exchange("rings/0.png", "stripes/0.png");
    let done = photos.audit(&["--plan", "plan.jsonl"]).assert().success();
    assert!(text(&done.get_output().stderr).contains("plan.jsonl: 2 changes"));
    photos
}

#[test]
fn a_plan_says_what_where_why_and_what_it_is_good_for() {
    let photos = planned();
    let plan = std::fs::read_to_string(photos.path("plan.jsonl")).unwrap();
    let lines: Vec<Value> = plan.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0]["format"], "trueshot-plan/1");
    assert_eq!(lines[0]["kind"], "folder");
    assert!(lines[0]["accuracy"].as_f64() < lines[0]["accuracy_after"].as_f64(), "{plan}");
    for line in &lines[1..3] {
        assert!(
            line["item"].is_string() && line["to"].is_string() && line["effect"].as_f64().unwrap() > 0.0,
            "{line}"
        );
        assert!(line["reason"].as_str().unwrap().starts_with("most like"), "{line}");
    }
    assert_eq!(lines[3]["listing"].as_array().unwrap().len(), 18);
    let shown = photos.trueshot(&["repair", "plan.jsonl"]).assert().success();
    let shown = text(&shown.get_output().stdout);
    assert!(
        shown.contains("rings/0.png -> stripes/0-2.png") && shown.contains("nothing was done yet"),
        "{shown}"
    );
}

#[test]
fn a_repaired_copy_is_clean_and_the_original_is_as_it_was() {
    let photos = planned();
    let before = photos.contents("photos");
    photos.trueshot(&["repair", "plan.jsonl", "--into", "clean"]).assert().success().stdout("");
    assert_eq!(photos.contents("photos"), before);
    let after = photos.contents("clean");
    assert_eq!(after["stripes/0-2.png"], before["rings/0.png"]);
    assert_eq!(after["rings/0-2.png"], before["stripes/0.png"]);
    assert_eq!(after.len(), before.len() + 1, "and the log");
    photos.trueshot(&["audit", "clean", "--check"]).assert().code(0);
    refused(photos.trueshot(&["repair", "plan.jsonl", "--into", "clean"]), &["it is already there"]);
}

#[test]
fn a_repair_in_place_can_be_taken_back() {
    let photos = planned();
    let before = photos.contents("photos");
    let done = photos.trueshot(&["repair", "plan.jsonl", "--in-place"]).assert().success();
    assert!(text(&done.get_output().stderr).contains("2 files moved"));
    assert_ne!(photos.contents("photos"), before);
    photos.audit(&["--check"]).assert().code(0);
    // The same again finds that all is done.
    let again = photos.trueshot(&["repair", "plan.jsonl", "--in-place"]).assert().success();
    assert!(text(&again.get_output().stderr).contains("0 files moved (2 had been moved before)"));
    // It still says where everything is now.
    photos.trueshot(&["repair", "plan.jsonl", "--in-place", "--labels", "labels.csv"]).assert().success();
    photos.trueshot(&["audit", "labels.csv", "--check"]).assert().code(0);
    photos.trueshot(&["repair", "--undo", "plan.undo.jsonl"]).assert().success();
    assert_eq!(photos.contents("photos"), before);
    refused(photos.trueshot(&["repair", "--undo", "plan.undo.jsonl"]), &["plan.undo.jsonl"]);
}

#[test]
fn a_folder_that_changed_since_is_refused_with_what_changed() {
    let photos = planned();
    std::fs::remove_file(photos.path("photos/checks/1.png")).unwrap();
    photos.write("rings/new.png", &std::fs::read(photos.path("photos/rings/2.png")).unwrap());
    let parts = [
        "has changed since the audit",
        "1 gone (checks/1.png)",
        "1 new (rings/new.png)",
        "hint: audit it again",
    ];
    for more in [vec!["--into", "clean"], vec!["--in-place"], vec!["--labels", "l.csv"]] {
        refused(photos.trueshot(&[&["repair", "plan.jsonl"], &more[..]].concat()), &parts);
    }
    assert!(!photos.path("clean").exists() && !photos.path("plan.undo.jsonl").exists());
}

#[test]
fn a_plan_edited_by_hand_is_followed_and_one_that_makes_no_sense_refused() {
    let photos = planned();
    let plan = std::fs::read_to_string(photos.path("plan.jsonl")).unwrap();
    let lines: Vec<&str> = plan.lines().collect();
    let by_hand = r#"{"item": "checks/5.png", "from": "checks", "quarantine": true}"#;
    std::fs::write(photos.path("mine.jsonl"), [lines[0], by_hand, lines[3]].join("\n")).unwrap();
    photos.trueshot(&["repair", "mine.jsonl", "--into", "clean"]).assert().success();
    assert!(
        photos.path("clean/_quarantine/checks/5.png").exists() && !photos.path("clean/checks/5.png").exists()
    );
    let escaping = r#"{"item": "checks/5.png", "from": "checks", "to": "../../up"}"#;
    std::fs::write(photos.path("mine.jsonl"), [lines[0], escaping, lines[3]].join("\n")).unwrap();
    refused(
        photos.trueshot(&["repair", "mine.jsonl", "--in-place"]),
        &["line 2", "cannot be the name of a class"],
    );
    let unknown = r#"{"item": "checks/77.png", "from": "checks", "to": "rings"}"#;
    std::fs::write(photos.path("mine.jsonl"), [lines[0], unknown, lines[3]].join("\n")).unwrap();
    refused(
        photos.trueshot(&["repair", "mine.jsonl", "--in-place"]),
        &["no checks/77.png under class 'checks'"],
    );
    refused(photos.trueshot(&["repair", "photos/rings/1.png"]), &["photos/rings/1.png"]);
    misused(photos.trueshot(&["repair"]), &["PLAN"]);
}

#[test]
fn cleaned_labels_are_read_by_us_and_by_others() {
    let photos = planned();
    let others = ["--label-studio", "tasks.json", "--fiftyone", "labels.json"];
    photos
        .trueshot(&[&["repair", "plan.jsonl", "--labels", "labels.csv"], &others[..]].concat())
        .assert()
        .success();
    let csv = std::fs::read_to_string(photos.path("labels.csv")).unwrap();
    assert!(csv.contains("photos/rings/0.png,stripes,rings\n"), "{csv}");
    photos.trueshot(&["audit", "labels.csv", "--check"]).assert().code(0);
    let read =
        |name: &str| -> Value { serde_json::from_slice(&std::fs::read(photos.path(name)).unwrap()).unwrap() };
    assert_eq!(read("tasks.json").as_array().unwrap().len(), 18);
    let labels = read("labels.json");
    assert!(labels["labels"].as_object().unwrap().keys().all(|path| std::path::Path::new(path).is_file()));
}

#[test]
fn rows_get_their_labels_in_a_new_file() {
    let folder = Folder::new();
    let audit =
        ["audit", "data.safetensors", "--plan", "plan.jsonl", "--expected-noise", "20", "--certainty", "0.5"];
    folder.trueshot(&audit).assert().success();
    let plan = std::fs::read_to_string(folder.path("plan.jsonl")).unwrap();
    let changes = plan.lines().count() - 2;
    assert!(changes > 0, "{plan}");
    folder.trueshot(&["repair", "plan.jsonl", "--into", "clean.safetensors"]).assert().success();
    let clean = trueshot::Embeddings::open(folder.path("clean.safetensors")).unwrap();
    let outliers = plan.matches("\"quarantine\":true").count();
    assert_eq!(clean.len(), 8 * 40 - outliers);
    refused(folder.trueshot(&["repair", "plan.jsonl", "--in-place"]), &["this plan is for embeddings"]);
    folder.spoil(0, 0, 0.25);
    refused(
        folder.trueshot(&["repair", "plan.jsonl", "--into", "b.safetensors"]),
        &["its rows or labels are others"],
    );
}
