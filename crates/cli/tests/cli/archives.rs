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
    // Large enough that the copy takes a while.
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
        // It was faster than the signal; then it must be complete.
        photos.trueshot(&["audit", "clean.zip", "--check"]).assert().code(0);
        return;
    }
    photos.trueshot(&["repair", "plan.jsonl", "--into", "clean.zip"]).assert().success();
    photos.trueshot(&["audit", "clean.zip", "--check"]).assert().code(0);
    assert_eq!(hidden(), 0);
}

#[test]
fn a_damaged_archive_is_refused_and_a_plan_of_an_archive_cannot_be_copied() {
    let photos = repaired();
    let bytes = std::fs::read(photos.path("clean.zip")).unwrap();
    std::fs::write(photos.path("cut.zip"), &bytes[..bytes.len() / 2]).unwrap();
    refused(photos.trueshot(&["audit", "cut.zip"]), &["cut.zip is not a valid archive"]);
    photos.trueshot(&["audit", "clean.zip", "--plan", "zip.jsonl"]).assert().success();
    photos.trueshot(&["repair", "zip.jsonl", "--labels", "labels.csv"]).assert().success();
    assert_eq!(std::fs::read_to_string(photos.path("labels.csv")).unwrap().lines().count(), 19);
    refused(
        photos.trueshot(&["repair", "zip.jsonl", "--into", "other.zip"]),
        &["this plan is for images in a list or an archive", "hint: unpack the archive and audit the folder"],
    );
}
