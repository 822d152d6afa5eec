//! Tests of `trueshot audit` on a folder of photos.

use crate::fixture::{EmbeddingsFolder, misused, refused, text};
use crate::photos::PhotoFolder;
use serde_json::Value;

#[test]
fn misfiled_photos_are_found_and_sent_where_they_belong() {
    let photos = PhotoFolder::new();
    photos.exchange("rings/0.png", "stripes/0.png");
    let found = photos.audit(&["--format", "json"]).assert().success();
    let found: Value = serde_json::from_slice(&found.get_output().stdout).unwrap();
    assert_eq!(found["method"], "evidence");
    let items = found["items"].as_array().unwrap();
    assert_eq!(items.len(), 18);
    for item in items {
        let is_wrong = ["rings/0.png", "stripes/0.png"].contains(&item["item"].as_str().unwrap());
        assert_eq!(item["verdict"] == "relabel", is_wrong, "{item}");
        assert_eq!(item["p_wrong"].as_f64().unwrap() > 0.5, is_wrong, "{item}");
        assert_eq!(item["suggested"].is_string(), is_wrong);
        assert!(item["weight"].is_number() && item["neighbours"].as_array().unwrap().len() == 5);
    }
    assert_eq!(found["classes"].as_array().unwrap().len(), 3);
    assert!((found["expected_wrong"].as_f64().unwrap() - 2.0).abs() < 0.7, "{}", found["expected_wrong"]);
}

#[test]
fn the_table_has_suspects_first_and_a_summary() {
    let photos = PhotoFolder::new();
    photos.exchange("rings/0.png", "stripes/0.png");
    let shown = text(&photos.audit(&[]).assert().success().get_output().stdout);
    let lines: Vec<&str> = shown.lines().collect();
    assert!(
        lines[0].contains("wrong") && lines[0].contains("action") && lines[0].contains("belongs to"),
        "{shown}"
    );
    assert!(lines[1].contains("0.png") && lines[2].contains("0.png"), "{shown}");
    assert!(shown.contains("18 items of 3 classes: 2 to relabel, 16 to keep"), "{shown}");
    let items = |shown: &str| shown.split("\n\n").next().unwrap().to_owned();
    assert!(!items(&shown).contains("5.png"), "what is kept is only counted: {shown}");
    let all = text(&photos.audit(&["--all"]).assert().success().get_output().stdout);
    assert_eq!(items(&all).matches(".png").count(), 18, "{all}");
}

#[test]
fn check_fails_with_three_only_when_something_is_suspect() {
    let photos = PhotoFolder::new();
    photos.audit(&["--check"]).assert().code(0);
    photos.exchange("rings/0.png", "stripes/0.png");
    photos.audit(&["--check"]).assert().code(3);
    photos.audit(&[]).assert().code(0);
}

#[test]
fn a_confirmed_label_is_never_doubted_again() {
    let photos = PhotoFolder::new();
    photos.exchange("rings/0.png", "stripes/0.png");
    let confirm = ["--confirm", "photos/rings/0.png", "stripes/0.png", "--check"];
    photos.audit(&confirm).assert().code(0);
    photos.audit(&["--check"]).assert().code(0);
    let kept = std::fs::read_to_string(photos.path("photos/.trueshot-confirmed")).unwrap();
    assert_eq!(kept.lines().count(), 2, "{kept}");
    std::fs::write(photos.path("photos/.trueshot-confirmed"), format!("# checked by Ada\n\n{kept}")).unwrap();
    photos.audit(&["--confirm", "rings/1.png"]).assert().success();
    let added = std::fs::read_to_string(photos.path("photos/.trueshot-confirmed")).unwrap();
    assert!(added.starts_with(&format!("# checked by Ada\n\n{kept}")), "{added}");
    assert_eq!(added.lines().count(), 5, "{added}");
    std::fs::write(photos.path("list.txt"), "checks/0.png\n").unwrap();
    let shown = photos.audit(&["--confirmed", "list.txt", "--check"]).assert().code(3);
    assert!(text(&shown.get_output().stdout).contains("1 confirmed"));
    refused(photos.audit(&["--confirm", "rings/99.png"]), &["no item is named 'rings/99.png'"]);
}

#[test]
fn everything_odd_in_a_folder_is_named_and_the_rest_is_done() {
    let photos = PhotoFolder::new();
    photos.write("rings/phone.HEIC", b"heic");
    photos.write("rings/camera.nef", b"raw");
    photos.write("rings/film.mp4", b"video");
    photos.write("rings/notes.txt", b"text");
    photos.write("rings/broken.jpg", b"no picture");
    photos.write("rings/sent.jpg", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic");
    photos.write("alone/1.png", &std::fs::read(photos.path("photos/rings/1.png")).unwrap());
    std::fs::create_dir(photos.path("photos/empty")).unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink("..", photos.path("photos/rings/loop")).unwrap();
    let done = photos.audit(&["--html", "a.html", "--json", "a.json"]).assert().success();
    let said = text(&done.get_output().stderr);
    for part in [
        "rings/phone.HEIC: HEIC is not supported: convert it to JPEG or PNG first",
        "rings/camera.nef: a camera's RAW file is not supported",
        "rings/film.mp4: a video",
        "rings/notes.txt: not an image by its file extension",
        "rings/broken.jpg: unknown image format",
        "rings/sent.jpg: HEIC is not supported",
        "note: 'empty' is an empty folder",
        #[cfg(unix)]
        "rings/loop: a link that leads back",
    ] {
        assert!(said.contains(part), "'{part}' is missing in: {said}");
    }
    let shown = text(&done.get_output().stdout);
    assert!(shown.contains("warning: class 'alone' has a single item"), "{shown}");
    assert!(std::fs::read_to_string(photos.path("a.html")).unwrap().contains("rings/phone.HEIC"));
    let json = std::fs::read_to_string(photos.path("a.json")).unwrap();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let skipped = json["skipped"].as_array().unwrap();
    assert!(skipped.iter().any(|one| one["item"] == "rings/film.mp4" && one["reason"].is_string()), "{json}");
}

#[test]
fn names_of_any_script_and_with_line_ends_stay_in_their_line() {
    let photos = PhotoFolder::new();
    std::fs::rename(photos.path("photos/rings"), photos.path("photos/кольца")).unwrap();
    #[cfg(unix)]
    std::fs::rename(photos.path("photos/кольца/3.png"), photos.path("photos/кольца/a\nb 環.png")).unwrap();
    let shown = text(&photos.audit(&["--all"]).assert().success().get_output().stdout);
    assert!(shown.contains("кольца"), "{shown}");
    #[cfg(unix)]
    assert!(shown.contains("a\\nb 環.png"), "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
}

#[test]
fn classes_that_are_the_same_and_photos_that_are_all_the_same_are_said() {
    let photos = PhotoFolder::new();
    for number in 0..6 {
        let copy = std::fs::read(photos.path(&format!("photos/rings/{number}.png"))).unwrap();
        photos.write(&format!("copies/{number}.png"), &copy);
    }
    let shown = text(&photos.audit(&[]).assert().success().get_output().stdout);
    assert!(shown.contains("classes 'copies' and 'rings' contain the same items"), "{shown}");
    assert!(shown.contains("copies/0.png is identical to rings/0.png"), "{shown}");
    let one = std::fs::read(photos.path("photos/rings/0.png")).unwrap();
    for (class, number) in
        ["copies", "rings", "stripes", "checks"].iter().flat_map(|c| (0..6).map(move |n| (c, n)))
    {
        photos.write(&format!("{class}/{number}.png"), &one);
    }
    let shown = text(&photos.audit(&["--html", "same.html"]).assert().success().get_output().stdout);
    assert!(shown.contains("all items are identical"), "{shown}");
}

#[test]
fn embeddings_are_audited_without_pictures() {
    let folder = EmbeddingsFolder::new();
    let audit = ["audit", "data.safetensors", "--html", "a.html", "--csv", "a.csv"];
    folder.trueshot(&audit).assert().success();
    assert_eq!(std::fs::read_to_string(folder.path("a.csv")).unwrap().lines().count(), 1 + 8 * 40);
    assert!(!std::fs::read_to_string(folder.path("a.html")).unwrap().contains("<img src"));
}

#[test]
fn what_cannot_be_audited_is_refused_in_one_line() {
    let photos = PhotoFolder::new();
    refused(photos.trueshot(&["audit", "nowhere"]), &["nowhere"]);
    refused(
        photos.trueshot(&["audit", "photos/rings"]),
        &["not in a class folder", "hint: give the folder that contains the class folders"],
    );
    refused(photos.trueshot(&["audit", "photos/rings/0.png"]), &["hint: this is a single image"]);
    std::fs::create_dir(photos.path("one")).unwrap();
    std::fs::rename(photos.path("photos/checks"), photos.path("one/checks")).unwrap();
    refused(photos.trueshot(&["audit", "one"]), &["at least two classes"]);
    refused(photos.audit(&["--html", "no/such/folder.html"]), &["cannot write no/such/folder.html"]);
    misused(photos.audit(&["--expected-noise", "120"]), &["from 0 to below 100"]);
    misused(photos.audit(&["--expected-noise", "0.06"]), &["write 6 for 6 %, or 0.06% for less than 1 %"]);
    misused(photos.audit(&["--certainty", "0.2"]), &["from 0.5 to 1"]);
    misused(photos.audit(&["--certainty", "0.9%"]), &["or 50% to 100%"]);
    assert_eq!(
        photos.audit(&["--certainty", "90%"]).assert().success().get_output().stdout,
        photos.audit(&["--certainty", "0.9"]).assert().success().get_output().stdout
    );
    std::fs::create_dir(photos.path("nothing")).unwrap();
    refused(photos.trueshot(&["audit", "nothing"]), &["no images in nothing"]);
}

#[test]
fn the_second_audit_embeds_nothing_and_says_the_same() {
    let photos = PhotoFolder::new();
    let first = photos.audit(&["--format", "json"]).assert().success().get_output().stdout.clone();
    assert!(photos.path("cache/trueshot").exists());
    let again =
        photos.audit(&["--format", "json", "--threads", "1"]).assert().success().get_output().stdout.clone();
    assert_eq!(text(&first), text(&again));
}
