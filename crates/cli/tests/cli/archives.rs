//! Tests of ZIP archives as input of commands and as output of `trueshot repair`.

use crate::fixture::{refused, text};
use crate::photos::PhotoFolder;
use serde_json::Value;

/// Photos with two exchanged, a plan next to them, and the repaired copy `clean.zip`.
fn repaired() -> PhotoFolder {
    let photos = PhotoFolder::new();
    photos.exchange("rings/0.png", "stripes/0.png");
    photos.audit(&["--plan", "plan.jsonl"]).assert().success();
    let done =
        photos.trueshot(&["repair", "plan.jsonl", "--into", "clean.zip"]).assert().success().stdout("");
    let said = text(&done.get_output().stderr);
    assert!(said.contains("clean.zip: 18 files, 2 relabelled, 0 in quarantine"), "{said}");
    photos
}

fn audited(photos: &PhotoFolder, source: &str) -> Value {
    let done = photos.trueshot(&["audit", source, "--format", "json"]).assert().success();
    serde_json::from_slice(&done.get_output().stdout).unwrap()
}

#[test]
fn a_repaired_archive_is_audited_fitted_embedded_and_classified_as_the_folder_is() {
    let photos = repaired();
    photos.trueshot(&["audit", "clean.zip", "--check"]).assert().code(0);
    photos.trueshot(&["repair", "plan.jsonl", "--into", "clean"]).assert().success();
    assert_eq!(audited(&photos, "clean.zip"), audited(&photos, "clean"));
    for source in ["clean.zip", "clean"] {
        photos.trueshot(&["embed", source, "-o", &format!("{source}.safetensors")]).assert().success();
    }
    let read = |name: &str| std::fs::read(photos.path(name)).unwrap();
    assert_eq!(read("clean.zip.safetensors"), read("clean.safetensors"));
    photos.trueshot(&["fit", "clean.zip", "-o", "classifier.safetensors"]).assert().success();
    let done = photos.trueshot(&["predict", "classifier.safetensors", "clean.zip"]).assert().success();
    let shown = text(&done.get_output().stdout);
    assert_eq!(shown.lines().count(), 18);
    assert!(shown.contains("  rings/0-2.png"), "{shown}");
}

#[test]
fn labels_of_an_archive_name_the_paths_in_it_and_it_is_not_overwritten() {
    let photos = repaired();
    let before = std::fs::read(photos.path("clean.zip")).unwrap();
    refused(
        photos.trueshot(&["repair", "plan.jsonl", "--into", "clean.zip"]),
        &["clean.zip", "it already exists"],
    );
    assert_eq!(std::fs::read(photos.path("clean.zip")).unwrap(), before);
    photos
        .trueshot(&["repair", "plan.jsonl", "--into", "again.zip", "--labels", "labels.csv"])
        .assert()
        .success();
    assert_eq!(std::fs::read(photos.path("again.zip")).unwrap(), before, "the same bytes");
    let labels = std::fs::read_to_string(photos.path("labels.csv")).unwrap();
    assert!(labels.contains("\nstripes/0-2.png,stripes,rings\n"), "{labels}");
}

#[cfg(unix)]
#[test]
fn a_killed_copy_leaves_no_archive_and_the_next_one_removes_its_remains() {
    use std::io::Write;
    let photos = PhotoFolder::new();
    photos.exchange("rings/0.png", "stripes/0.png");
    // Large enough for the copy to take a while.
    let mut large = std::fs::File::create(photos.path("photos/rings/notes.bin")).unwrap();
    let zeros = vec![0; 1 << 20];
    (0..400).for_each(|_| large.write_all(&zeros).unwrap());
    photos.audit(&["--plan", "plan.jsonl"]).assert().success();
    let hidden = || {
        let names = std::fs::read_dir(photos.path("")).unwrap().map(|entry| entry.unwrap().file_name());
        names.filter(|name| name.to_string_lossy().ends_with(".part")).count()
    };
    let mut child = std::process::Command::new(env!("CARGO_BIN_EXE_trueshot"))
        .current_dir(photos.path(""))
        .args(["repair", "plan.jsonl", "--into", "clean.zip"])
        .stderr(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while hidden() == 0 && child.try_wait().unwrap().is_none() {
        std::thread::yield_now();
    }
    child.kill().unwrap();
    child.wait().unwrap();
    if photos.path("clean.zip").exists() {
        // The copy was faster than the signal; then it must be complete.
        photos.trueshot(&["audit", "clean.zip", "--check"]).assert().code(0);
        return;
    }
    photos.trueshot(&["repair", "plan.jsonl", "--into", "clean.zip"]).assert().success();
    photos.trueshot(&["audit", "clean.zip", "--check"]).assert().code(0);
    assert_eq!(hidden(), 0);
}

#[test]
fn a_damaged_archive_is_refused() {
    let photos = repaired();
    let bytes = std::fs::read(photos.path("clean.zip")).unwrap();
    std::fs::write(photos.path("cut.zip"), &bytes[..bytes.len() / 2]).unwrap();
    refused(photos.trueshot(&["audit", "cut.zip"]), &["cut.zip is not a valid archive"]);
}

/// Photos with two exchanged in `photos.zip`, and a plan for the archive that also quarantines one.
fn planned_archive() -> PhotoFolder {
    let photos = PhotoFolder::new();
    photos.exchange("rings/0.png", "stripes/0.png");
    photos.write("notes.txt", b"mine");
    let header = r#"{"format": "trueshot-plan/1", "kind": "folder", "root": "photos", "items": 18}"#;
    let listing = photos.contents("photos").into_iter().map(|(item, bytes)| {
        let class = item.split_once('/').map(|(class, _)| class);
        serde_json::json!({"item": item, "class": class, "size": bytes.len()})
    });
    let listing = serde_json::json!({ "listing": listing.collect::<Vec<_>>() });
    std::fs::write(photos.path("none.jsonl"), format!("{header}\n{listing}\n")).unwrap();
    photos.trueshot(&["repair", "none.jsonl", "--into", "photos.zip"]).assert().success();
    photos.trueshot(&["audit", "photos.zip", "--plan", "zip.jsonl"]).assert().success();
    let plan = std::fs::read_to_string(photos.path("zip.jsonl")).unwrap();
    let outlier = r#"{"item": "checks/5.png", "from": "checks", "quarantine": true}"#;
    let edited = plan.replacen("{\"listing\"", &format!("{outlier}\n{{\"listing\""), 1);
    std::fs::write(photos.path("zip.jsonl"), edited).unwrap();
    photos
}

#[test]
fn a_plan_of_an_archive_makes_a_repaired_folder_or_archive() {
    let photos = planned_archive();
    let before = photos.contents("photos");
    let archive = std::fs::read(photos.path("photos.zip")).unwrap();
    let shown = photos.trueshot(&["repair", "zip.jsonl"]).assert().success();
    assert!(text(&shown.get_output().stdout).contains("--into DIR|FILE.zip"));
    let into = ["repair", "zip.jsonl", "--into", "clean", "--labels", "labels.csv"];
    let done = photos.trueshot(&into).assert().success().stdout("");
    let said = text(&done.get_output().stderr);
    let quarantine = std::path::Path::new("clean").join("_quarantine");
    for part in [
        &format!("clean: 18 files, 2 relabelled, 1 in quarantine ({})", quarantine.display()),
        "warning: not copied, because not readable as images: 1, such as notes.txt",
        "labels.csv: 17 labels, 2 changed, 1 in quarantine left out",
    ] {
        assert!(said.contains(part), "'{part}' is missing in: {said}");
    }
    let after = photos.contents("clean");
    assert_eq!(after["stripes/0-2.png"], before["rings/0.png"]);
    assert_eq!(after["_quarantine/checks/5.png"], before["checks/5.png"]);
    assert_eq!(after["checks/4.png"], before["checks/4.png"]);
    assert_eq!(after.len(), 19, "18 images and the log");
    let log = String::from_utf8(after["trueshot-repair.jsonl"].clone()).unwrap();
    assert_eq!(log.lines().count(), 3, "{log}");
    photos.trueshot(&["audit", "labels.csv", "--check"]).assert().code(0);
    photos.trueshot(&["repair", "zip.jsonl", "--into", "clean.zip"]).assert().success();
    assert_eq!(audited(&photos, "clean.zip"), audited(&photos, "clean"));
    refused(photos.trueshot(&["repair", "zip.jsonl", "--into", "photos.zip"]), &["it already exists"]);
    assert_eq!(std::fs::read(photos.path("photos.zip")).unwrap(), archive);
}

#[test]
fn a_plan_of_an_archive_is_for_its_unpacked_folder_too_and_the_other_way_round() {
    let photos = planned_archive();
    let hint = ["images in a list or an archive", "hint: write a copy with --into", "--labels", "--root"];
    refused(photos.trueshot(&["repair", "zip.jsonl", "--in-place"]), &hint);
    // The plan has no sizes, but the files are the same.
    let before = photos.contents("photos");
    photos.trueshot(&["repair", "zip.jsonl", "--root", "photos", "--into", "clean"]).assert().success();
    assert_eq!(photos.contents("clean")["stripes/0-2.png"], before["rings/0.png"]);
    assert_eq!(photos.contents("clean")["notes.txt"], b"mine");
    let in_place = ["repair", "zip.jsonl", "--root", "photos", "--in-place"];
    let done = photos.trueshot(&in_place).assert().success();
    let said = text(&done.get_output().stderr);
    assert!(said.contains("3 files moved, 1 in quarantine (") && said.contains("_quarantine)"), "{said}");
    photos.trueshot(&["repair", "--undo", "zip.undo.jsonl"]).assert().success();
    assert_eq!(photos.contents("photos"), before);
    photos.audit(&["--plan", "folder.jsonl"]).assert().success();
    let other = ["repair", "folder.jsonl", "--root", "photos.zip", "--into", "other"];
    photos.trueshot(&other).assert().success();
    assert_eq!(photos.contents("other")["stripes/0-2.png"], before["rings/0.png"]);
    // Different contents are still detected.
    photos.write("checks/3.png", &before["checks/2.png"]);
    let parts = ["has changed since the audit: 1 edited (checks/3.png)"];
    refused(photos.trueshot(&["repair", "zip.jsonl", "--root", "photos"]), &parts);
}
