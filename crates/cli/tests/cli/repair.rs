//! Tests of `trueshot repair`: applying a plan, interrupting it, and undoing it.

use crate::fixture::{EmbeddingsFolder, misused, refused, text};
use crate::photos::PhotoFolder;
use serde_json::Value;
use trueshot::embeddings::{Precision, Writer};

/// Photos with two exchanged, and a plan next to them.
fn planned() -> PhotoFolder {
    let photos = PhotoFolder::new();
    photos.exchange("rings/0.png", "stripes/0.png");
    let done = photos.audit(&["--plan", "plan.jsonl"]).assert().success();
    assert!(
        text(&done.get_output().stderr).contains("plan.jsonl: 2 to relabel, 0 to quarantine, 0 to review")
    );
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
        assert!(line["reason"].as_str().unwrap().starts_with("most similar to"), "{line}");
    }
    assert_eq!(lines[3]["listing"].as_array().unwrap().len(), 18);
    let shown = photos.trueshot(&["repair", "plan.jsonl"]).assert().success();
    let shown = text(&shown.get_output().stdout);
    assert!(
        shown.contains("rings/0.png    -> stripes/0-2.png") && shown.contains("nothing was changed"),
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
    refused(photos.trueshot(&["repair", "plan.jsonl", "--into", "clean"]), &["it already exists"]);
}

#[test]
fn a_repair_in_place_can_be_taken_back() {
    let photos = planned();
    let before = photos.contents("photos");
    let done = photos.trueshot(&["repair", "plan.jsonl", "--in-place"]).assert().success();
    assert!(text(&done.get_output().stderr).contains("2 files moved"));
    assert_ne!(photos.contents("photos"), before);
    photos.audit(&["--check"]).assert().code(0);
    // The same command again finds nothing to do.
    let again = photos.trueshot(&["repair", "plan.jsonl", "--in-place"]).assert().success();
    assert!(text(&again.get_output().stderr).contains("0 files moved (2 already moved)"));
    // It still writes the labels with the current paths.
    photos.trueshot(&["repair", "plan.jsonl", "--in-place", "--labels", "labels.csv"]).assert().success();
    photos.trueshot(&["audit", "labels.csv", "--check"]).assert().code(0);
    photos.trueshot(&["repair", "--undo", "plan.undo.jsonl"]).assert().success();
    assert_eq!(photos.contents("photos"), before);
    refused(photos.trueshot(&["repair", "--undo", "plan.undo.jsonl"]), &["plan.undo.jsonl"]);
}

#[test]
fn while_another_process_repairs_the_folder_nothing_is_touched() {
    let photos = planned();
    let before = photos.contents("photos");
    let lock = trueshot::lock::Lock::on_folder(&photos.path("photos")).unwrap();
    let holder = format!("is in use by process {} (", std::process::id());
    for arguments in [vec!["--in-place"], vec!["--into", "clean"]] {
        refused(photos.trueshot(&[&["repair", "plan.jsonl"], &arguments[..]].concat()), &[&holder, "hint:"]);
    }
    assert!(!photos.path("plan.undo.jsonl").exists() && !photos.path("clean").exists());
    drop(lock);
    photos.trueshot(&["repair", "plan.jsonl", "--in-place"]).assert().success();
    let after = photos.contents("photos");
    let lock = trueshot::lock::Lock::on_folder(&photos.path("photos")).unwrap();
    refused(photos.trueshot(&["repair", "--undo", "plan.undo.jsonl"]), &[&holder]);
    drop(lock);
    assert_eq!(photos.contents("photos"), after);
    photos.trueshot(&["repair", "--undo", "plan.undo.jsonl"]).assert().success();
    assert_eq!(photos.contents("photos"), before, "and no lock file is left");
}

#[test]
fn two_repairs_and_an_undo_started_together_lose_nothing() {
    let photos = planned();
    let before = photos.contents("photos");
    for _ in 0..5 {
        let start = |arguments: &[&str]| {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_trueshot"));
            command.args(arguments).current_dir(photos.path("")).stderr(std::process::Stdio::null());
            command.spawn().unwrap()
        };
        let repair = ["repair", "plan.jsonl", "--in-place"];
        let mut running = [start(&repair), start(&repair), start(&["repair", "--undo", "plan.undo.jsonl"])];
        running.iter_mut().for_each(|process| assert!(matches!(process.wait().unwrap().code(), Some(0 | 1))));
        let mut found: Vec<Vec<u8>> = photos.contents("photos").into_values().collect();
        let mut expected: Vec<Vec<u8>> = before.values().cloned().collect();
        found.sort();
        expected.sort();
        assert!(found == expected, "every picture is there once");
        if photos.path("plan.undo.jsonl").exists() {
            photos.trueshot(&["repair", "--undo", "plan.undo.jsonl"]).assert().success();
        }
        assert_eq!(photos.contents("photos"), before);
    }
}

#[test]
fn undo_says_how_many_files_moved_and_lists_what_it_could_not_move() {
    let photos = planned();
    let before = photos.contents("photos");
    photos.trueshot(&["repair", "plan.jsonl", "--in-place"]).assert().success();
    std::fs::rename(photos.path("photos/stripes/0-2.png"), photos.path("away.png")).unwrap();
    let failed = photos.trueshot(&["repair", "--undo", "plan.undo.jsonl"]).assert().code(1);
    let message = text(&failed.get_output().stderr);
    for part in ["1 file moved back", "neither stripes/0-2.png nor rings/0.png exists", "1 of 2 files"] {
        assert!(message.contains(part), "'{part}' is missing in: {message}");
    }
    std::fs::rename(photos.path("away.png"), photos.path("photos/stripes/0-2.png")).unwrap();
    let done = photos.trueshot(&["repair", "--undo", "plan.undo.jsonl"]).assert().success();
    let message = text(&done.get_output().stderr);
    assert!(message.contains("1 file moved back (1 already back)"), "{message}");
    assert_eq!(photos.contents("photos"), before);
    assert!(!photos.path("plan.undo.jsonl").exists());
}

#[test]
fn a_repair_that_is_half_done_is_called_so() {
    let photos = planned();
    photos.trueshot(&["repair", "plan.jsonl", "--in-place"]).assert().success();
    let carried_out = ["this plan was already applied in place", "repair --undo plan.undo.jsonl"];
    refused(photos.trueshot(&["repair", "plan.jsonl"]), &carried_out);
    // The state after a kill between two moves.
    std::fs::rename(photos.path("photos/stripes/0-2.png"), photos.path("photos/rings/0.png")).unwrap();
    let half_done = ["a repair was interrupted (1 of 2 files moved): run it again with --in-place", "--undo"];
    refused(photos.trueshot(&["repair", "plan.jsonl"]), &half_done);
    refused(photos.trueshot(&["repair", "plan.jsonl", "--into", "clean"]), &half_done);
    photos.trueshot(&["repair", "plan.jsonl", "--in-place"]).assert().success();
}

#[test]
#[cfg(unix)]
fn a_class_folder_that_leads_elsewhere_is_refused_before_anything_moves() {
    let photos = planned();
    std::fs::create_dir(photos.path("elsewhere")).unwrap();
    std::fs::rename(photos.path("photos/stripes"), photos.path("elsewhere/stripes")).unwrap();
    std::os::unix::fs::symlink(photos.path("elsewhere/stripes"), photos.path("photos/stripes")).unwrap();
    let before = photos.contents("elsewhere");
    refused(photos.trueshot(&["repair", "plan.jsonl", "--in-place"]), &["nothing was moved", "is a link"]);
    assert_eq!(photos.contents("elsewhere"), before);
    assert!(!photos.path("plan.undo.jsonl").exists());
    // A symbolic link in place of the quarantine folder is not followed.
    let plan = std::fs::read_to_string(photos.path("plan.jsonl")).unwrap();
    let lines: Vec<&str> = plan.lines().collect();
    let outlier = r#"{"item": "checks/5.png", "from": "checks", "quarantine": true}"#;
    std::fs::write(photos.path("mine.jsonl"), [lines[0], outlier, lines[3]].join("\n")).unwrap();
    std::os::unix::fs::symlink(photos.path("elsewhere"), photos.path("photos/_quarantine")).unwrap();
    refused(photos.trueshot(&["repair", "mine.jsonl", "--in-place"]), &["'_quarantine' is a link"]);
    assert_eq!(photos.contents("elsewhere"), before);
}

#[test]
fn an_edit_that_keeps_the_size_is_refused() {
    let photos = planned();
    let path = photos.path("photos/rings/0.png");
    let mut bytes = std::fs::read(&path).unwrap();
    let time = std::fs::metadata(&path).unwrap().modified().unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, &bytes).unwrap();
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
    let parts = ["has changed since the audit: 1 edited (rings/0.png)"];
    refused(photos.trueshot(&["repair", "plan.jsonl", "--in-place"]), &parts);
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

/// `trueshot` with the folder of photos as its working directory.
fn inside(photos: &PhotoFolder, arguments: &[&str]) -> assert_cmd::Command {
    let mut command = photos.trueshot(arguments);
    command.current_dir(photos.path("photos"));
    command
}

#[test]
fn a_report_and_a_plan_inside_the_audited_folder_do_not_count_as_changes() {
    let photos = PhotoFolder::new();
    photos.exchange("rings/0.png", "stripes/0.png");
    let before = photos.contents("photos");
    for _ in 0..2 {
        inside(&photos, &["audit", ".", "--html", "audit.html", "--plan", "plan.jsonl"]).assert().success();
        let shown = inside(&photos, &["repair", "plan.jsonl"]).assert().success();
        assert!(text(&shown.get_output().stdout).contains("2 to relabel"));
    }
    inside(&photos, &["repair", "plan.jsonl", "--in-place"]).assert().success();
    inside(&photos, &["audit", ".", "--check"]).assert().code(0);
    inside(&photos, &["repair", "--undo", "plan.undo.jsonl"]).assert().success();
    for name in ["audit.html", "plan.jsonl"] {
        std::fs::remove_file(photos.path("photos").join(name)).unwrap();
    }
    assert_eq!(photos.contents("photos"), before);
}

#[test]
fn files_that_are_not_images_may_change_and_unreadable_images_may_not() {
    let photos = PhotoFolder::new();
    photos.exchange("rings/0.png", "stripes/0.png");
    photos.write("rings/notes.txt", b"notes");
    photos.write("stripes/broken.png", b"not an image");
    photos.audit(&["--plan", "plan.jsonl"]).assert().success();
    photos.write("rings/notes.txt", b"more notes");
    photos.write("checks/more.txt", b"notes");
    photos.trueshot(&["repair", "plan.jsonl", "--into", "clean"]).assert().success();
    photos.write("stripes/broken.png", b"still not an image");
    let parts = ["has changed since the audit: 1 of another size (stripes/broken.png)"];
    refused(photos.trueshot(&["repair", "plan.jsonl"]), &parts);
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
    let folder = ["photos is a folder, not a plan", "trueshot audit photos --plan"];
    refused(photos.trueshot(&["repair", "photos"]), &folder);
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
    let folder = EmbeddingsFolder::new();
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
    let before = std::fs::read(folder.path("data.safetensors")).unwrap();
    for into in ["clean.safetensors", "data.safetensors"] {
        let expected = format!("--into {into}: it already exists");
        refused(folder.trueshot(&["repair", "plan.jsonl", "--into", into]), &[expected.as_str()]);
    }
    for list in ["./data.safetensors", "plan.jsonl"] {
        let expected = format!("{list} is an input of this repair: write the list to another file");
        refused(folder.trueshot(&["repair", "plan.jsonl", "--labels", list]), &[expected.as_str()]);
    }
    assert!(std::fs::read(folder.path("data.safetensors")).unwrap() == before);
    refused(folder.trueshot(&["repair", "plan.jsonl", "--in-place"]), &["this plan is for embeddings"]);
    folder.spoil(0, 0, 0.25);
    refused(
        folder.trueshot(&["repair", "plan.jsonl", "--into", "b.safetensors"]),
        &["its rows or labels differ"],
    );
}

#[test]
fn a_plan_for_data_that_were_moved_names_root() {
    let photos = planned();
    std::fs::rename(photos.path("photos"), photos.path("moved")).unwrap();
    let expected = ["photos does not exist", "hint: if the audited data were moved", "--root"];
    refused(photos.trueshot(&["repair", "plan.jsonl"]), &expected);
    photos.trueshot(&["repair", "plan.jsonl", "--root", "moved"]).assert().success();
}

#[test]
fn lists_cannot_be_written_while_a_repair_is_undone() {
    let undo = ["repair", "--undo", "plan.undo.jsonl", "--labels", "labels.csv"];
    misused(EmbeddingsFolder::new().trueshot(&undo), &["cannot be used with"]);
}

#[test]
fn of_rows_with_the_same_name_only_the_planned_one_is_changed() {
    let folder = EmbeddingsFolder::new();
    let path = folder.path("same.safetensors");
    let classes = ["ant", "bee"].map(String::from);
    let mut writer = Writer::create(&path, 2, Precision::F32, &classes, &[]).unwrap();
    for row in 0..20_usize {
        let values = if row % 2 == 0 { [1.0, 0.01 * row as f32] } else { [0.01 * row as f32, 1.0] };
        // Row 3 is an ant by its label only.
        let class = if row == 3 { 0 } else { row as u32 % 2 };
        let bytes: Vec<u8> = values.iter().flat_map(|value: &f32| value.to_le_bytes()).collect();
        writer.push(class, "same", &bytes).unwrap();
    }
    writer.finish().unwrap();
    folder.trueshot(&["audit", "same.safetensors", "--plan", "plan.jsonl"]).assert().success();
    folder.trueshot(&["repair", "plan.jsonl", "--into", "clean.safetensors"]).assert().success();
    let clean = trueshot::Embeddings::open(folder.path("clean.safetensors")).unwrap();
    let expected: Vec<u32> = (0..20).map(|row| row % 2).collect();
    assert_eq!(clean.labels(), expected);
}

/// Writes the plan of `planned` with other changes to `mine.jsonl`.
fn edit_plan(photos: &PhotoFolder, plan: &str, changes: &[&str]) {
    let text = std::fs::read_to_string(photos.path(plan)).unwrap();
    let (header, listing) = (text.lines().next().unwrap(), text.lines().last().unwrap());
    let lines = [&[header], changes, &[listing]].concat();
    std::fs::write(photos.path("mine.jsonl"), lines.join("\n")).unwrap();
}

#[test]
fn commands_in_messages_are_quoted_for_a_shell() {
    let folder = EmbeddingsFolder::new();
    std::fs::create_dir(folder.path("my photos")).unwrap();
    let expected = ["my photos is a folder, not a plan", "trueshot audit 'my photos' --plan plan.jsonl"];
    refused(folder.trueshot(&["repair", "my photos"]), &expected);
}

#[test]
fn embeddings_are_written_only_under_their_own_ending() {
    let folder = EmbeddingsFolder::new();
    folder.trueshot(&["audit", "data.safetensors", "--plan", "plan.jsonl"]).assert().success();
    for into in ["clean.npz", "clean", "clean.zip", "clean.tar.gz"] {
        let parts =
            [&format!("--into {into}: embeddings are written as .safetensors"), "hint: use --into clean"];
        refused(folder.trueshot(&["repair", "plan.jsonl", "--into", into]), &parts);
        assert!(!folder.path(into).exists(), "{into}");
    }
    folder.trueshot(&["repair", "plan.jsonl", "--into", "clean.SafeTensors"]).assert().success();
    let in_place = ["this plan is for embeddings", "hint: write a copy with --into FILE.safetensors"];
    refused(folder.trueshot(&["repair", "plan.jsonl", "--in-place"]), &in_place);
}

#[test]
fn archives_that_cannot_be_written_are_refused() {
    let photos = planned();
    for into in ["clean.tar", "clean.tar.gz", "clean.TGZ", "clean.tar.zst", "clean.7z"] {
        let parts = [&format!("--into {into}: --into writes a folder or a .zip")];
        refused(photos.trueshot(&["repair", "plan.jsonl", "--into", into]), &parts.map(String::as_str));
        assert!(!photos.path(into).exists(), "{into}");
    }
    // Other dots in the name of a folder are allowed.
    photos.trueshot(&["repair", "plan.jsonl", "--into", "clean.v2"]).assert().success();
    assert!(photos.path("clean.v2/rings").is_dir());
}

#[test]
fn a_new_class_is_told_with_the_most_similar_name() {
    let photos = planned();
    let misspelt = r#"{"item": "rings/0.png", "from": "rings", "to": "Stripe"}"#;
    let other = r#"{"item": "checks/1.png", "from": "checks", "to": "waiting"}"#;
    edit_plan(&photos, "plan.jsonl", &[misspelt, other]);
    let similar = "warning: 'Stripe' is a new class, for 1 item; did you mean 'stripes'?\n";
    let unlike = "warning: 'waiting' is a new class, for 1 item\n";
    for more in [vec![], vec!["--into", "clean"], vec!["--labels", "l.csv"], vec!["--in-place"]] {
        let done = photos.trueshot(&[&["repair", "mine.jsonl"], &more[..]].concat()).assert().success();
        let said = text(&done.get_output().stderr);
        assert!(said.contains(similar) && said.contains(unlike), "{more:?}: {said}");
    }
    photos.trueshot(&["repair", "--undo", "mine.undo.jsonl"]).assert().success();
    // A class with an empty folder is not new; nor are the planned ones.
    std::fs::create_dir_all(photos.path("photos/waiting")).unwrap();
    edit_plan(&photos, "plan.jsonl", &[other]);
    for plan in ["mine.jsonl", "plan.jsonl"] {
        let done = photos.trueshot(&["repair", plan]).assert().success();
        assert!(!text(&done.get_output().stderr).contains("new class"));
    }
}

#[test]
fn lists_say_how_many_labels_they_have_and_what_they_leave_out() {
    let photos = planned();
    let lists = ["--labels", "l.csv", "--label-studio", "t.json", "--fiftyone", "f.json"];
    let said = |plan: &str| {
        let done = photos.trueshot(&[&["repair", plan], &lists[..]].concat()).assert().success().stdout("");
        text(&done.get_output().stderr).to_string()
    };
    assert_eq!(
        said("plan.jsonl"),
        "l.csv: 18 labels, 2 changed\nt.json: 18 tasks, 2 changed\nf.json: 18 labels, 2 changed\n"
    );
    let outlier = r#"{"item": "checks/5.png", "from": "checks", "quarantine": true}"#;
    edit_plan(&photos, "plan.jsonl", &[outlier]);
    let said = said("mine.jsonl");
    for part in [
        "l.csv: 17 labels, 0 changed, 1 in quarantine left out",
        "t.json: 18 tasks, 0 changed, 1 in quarantine without a label",
        "f.json: 17 labels, 0 changed, 1 in quarantine left out",
    ] {
        assert!(said.contains(part), "'{part}' is missing in: {said}");
    }
}

#[test]
fn a_plan_of_a_list_copies_the_files_to_class_folders() {
    let photos = PhotoFolder::new();
    photos.exchange("rings/0.png", "stripes/0.png");
    let mut list = String::from("path,label\n");
    for class in ["checks", "rings", "stripes"] {
        (0..6).for_each(|number| list += &format!("photos/{class}/{number}.png,{class} of all\n"));
    }
    std::fs::write(photos.path("list.csv"), &list).unwrap();
    photos.trueshot(&["audit", "list.csv", "--plan", "plan.jsonl"]).assert().success();
    let text = std::fs::read_to_string(photos.path("plan.jsonl")).unwrap();
    let changes: Vec<&str> = text.lines().skip(1).take(2).collect();
    let outlier = r#"{"item": "photos/checks/5.png", "from": "checks of all", "quarantine": true}"#;
    edit_plan(&photos, "plan.jsonl", &[changes[0], changes[1], outlier]);
    let before = photos.contents("photos");
    photos.trueshot(&["repair", "mine.jsonl", "--into", "clean"]).assert().success();
    let after = photos.contents("clean");
    assert_eq!(after["stripes of all/0.png"], before["rings/0.png"]);
    assert_eq!(after["rings of all/0.png"], before["stripes/0.png"]);
    assert_eq!(after["rings of all/1.png"], before["rings/1.png"]);
    assert_eq!(after["_quarantine/checks of all/5.png"], before["checks/5.png"]);
    assert_eq!((after.len(), photos.contents("photos")), (19, before));
    photos.trueshot(&["audit", "clean", "--check"]).assert().code(0);
    photos.trueshot(&["repair", "mine.jsonl", "--into", "clean.zip"]).assert().success();
    photos.trueshot(&["audit", "clean.zip", "--check"]).assert().code(0);
    let hint = ["images in a list or an archive", "hint: write a copy with --into"];
    refused(photos.trueshot(&["repair", "mine.jsonl", "--in-place"]), &hint);
    // A label that leads out of the folder.
    std::fs::write(photos.path("list.csv"), list.replace("rings of all", "../rings")).unwrap();
    photos.trueshot(&["audit", "list.csv", "--plan", "plan.jsonl"]).assert().success();
    edit_plan(&photos, "plan.jsonl", &[]);
    let outside = ["list.csv: the label '../rings' cannot be the name of a folder"];
    refused(photos.trueshot(&["repair", "mine.jsonl", "--into", "outside"]), &outside);
    assert!(!photos.path("outside").exists() && !photos.path("rings").exists());
}
