//! Tests with odd names of files and classes: messages and tables stay readable, spreadsheets do not execute them, and
//! hints name only options that exist.

use std::process::Output;

use crate::photos::PhotoFolder;

/// Makes the text red, clears the screen, and returns to the start of the line.
const ESCAPE: &str = "\x1b[31m\x1b[2J\r\u{9b}1m";

fn run(photos: &PhotoFolder, arguments: &[&str]) -> Output {
    photos.trueshot(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Standard error of a command. Checks that it and standard output have no control characters but line ends.
#[track_caller]
fn said_plainly(photos: &PhotoFolder, arguments: &[&str]) -> String {
    let output = run(photos, arguments);
    for stream in [&output.stdout, &output.stderr] {
        let shown = text(stream);
        let control = shown.chars().find(|letter| letter.is_control() && *letter != '\n');
        assert_eq!(control, None, "{arguments:?}: {shown:?}");
    }
    text(&output.stderr)
}

/// Images with such names, in a class with such a name.
fn disguised() -> PhotoFolder {
    let photos = PhotoFolder::new();
    let read = |name: &str| std::fs::read(photos.path("photos").join(name)).unwrap();
    for number in 0..4 {
        photos
            .write(&format!("bad{ESCAPE}class/{ESCAPE}{number}.png"), &read(&format!("rings/{number}.png")));
    }
    photos.write(&format!("checks/broken{ESCAPE}.png"), b"not a picture");
    photos.write(&format!("checks/{ESCAPE}.heic"), b"not a picture");
    photos.write(&format!("checks/moved{ESCAPE}.png"), &read("stripes/0.png"));
    photos
}

#[cfg(unix)]
#[test]
fn no_command_sends_control_characters_of_names_to_the_terminal() {
    let photos = disguised();
    let named = format!("file{ESCAPE}.safetensors");
    let said = said_plainly(
        &photos,
        &["audit", "photos", "--all", "--plan", "plan.jsonl", "--html", &format!("{ESCAPE}.html")],
    );
    assert!(said.contains("broken\\u{1b}[31m") && said.contains("HEIC"), "{said}");
    said_plainly(&photos, &["repair", "plan.jsonl"]);
    said_plainly(&photos, &["repair", "plan.jsonl", "--into", &format!("copy{ESCAPE}")]);
    let said = said_plainly(&photos, &["embed", "photos", "-o", &named]);
    assert!(said.contains("file\\u{1b}"), "{said}");
    said_plainly(&photos, &["inspect", &named]);
    let small = ["--ways", "2", "--shots", "1", "--queries", "1", "--episodes", "5"];
    said_plainly(&photos, &[&["eval", &named, "--per-class", "--confusion"], &small[..]].concat());
    said_plainly(&photos, &[&["eval", &named, "--format", "md"], &small[..]].concat());
    said_plainly(&photos, &["fit", "photos", "-o", &format!("{ESCAPE}classifier.safetensors")]);
    said_plainly(&photos, &["fit", "photos", "-o", "classifier.safetensors"]);
    let said = said_plainly(&photos, &["predict", "classifier.safetensors", "photos"]);
    assert!(said.contains("broken\\u{1b}"), "{said}");
    said_plainly(&photos, &["predict", "classifier.safetensors", &named]);
    said_plainly(&photos, &["dataset", "check", "photos"]);
}

/// Runs every command on a path that does not exist, or with an argument that it does not take.
#[test]
fn no_error_sends_control_characters_of_arguments_to_the_terminal() {
    let photos = PhotoFolder::new();
    let nowhere = format!("no{ESCAPE}where.safetensors");
    let (folder, model) = (format!("no{ESCAPE}where"), format!("no{ESCAPE}where.onnx"));
    let commands: [&[&str]; 26] = [
        &["demo", "-o", &format!("{folder}/report.html")],
        &["inspect", &nowhere],
        &["inspect", "photos", "--labels", &folder],
        &["dataset", "check", &folder],
        &["dataset", "outliers", &folder, "-o", &folder],
        &["embed", &folder, "-o", "x.safetensors"],
        &["embed", "photos", "-o", &format!("{folder}/x.safetensors")],
        &["embed", "photos", "-o", "x.safetensors", "--backbone", &model],
        &["embed", "photos", "-o", "x.safetensors", "--backbone", &nowhere],
        &["embed", "photos", "-o", "x.safetensors", "--split-file", &nowhere, "--split", "test"],
        &["audit", &folder],
        &["audit", "photos", "--format", &folder],
        &["audit", "photos", &format!("--{ESCAPE}")],
        &["repair", &nowhere],
        &["eval", &nowhere],
        &["eval", &nowhere, "--methods", &format!("{ESCAPE}net")],
        &["fit", &nowhere, "-o", "x.safetensors"],
        &["predict", &nowhere, "photos"],
        &["episode", &nowhere, "-o", "x.svg"],
        &["train", "backbone", &folder, "-o", "x.safetensors"],
        &["train", "relabel", &nowhere, "-o", "x.safetensors"],
        &["train", "tranfs", &nowhere, "-o", "x.safetensors"],
        &["attention", &nowhere, "-o", "x.html"],
        &["reproduce", "all", "--data", &folder, "--out", "out"],
        &["serve", "--port", "0", "--token-file", &nowhere],
        &[&format!("{ESCAPE}audit")],
    ];
    for arguments in commands {
        let said = said_plainly(&photos, arguments);
        assert!(said.contains("error:"), "{arguments:?}: {said}");
    }
}

#[test]
fn data_for_programs_keeps_names_exactly() {
    let photos = disguised();
    let item = format!("checks/moved{ESCAPE}.png");
    let json = run(&photos, &["audit", "photos", "--format", "json"]);
    let found: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
    let items = found["items"].as_array().unwrap();
    assert!(items.iter().any(|one| one["item"] == item.as_str()));
    let csv = run(&photos, &["audit", "photos", "--csv", "audit.csv"]);
    assert!(csv.status.success());
    assert!(std::fs::read_to_string(photos.path("audit.csv")).unwrap().contains(&item));
}

#[test]
fn predict_says_which_files_it_skips_and_why() {
    let photos = PhotoFolder::new();
    assert!(run(&photos, &["fit", "photos", "-o", "classifier.safetensors"]).status.success());
    photos.write("holiday/1.HEIC", b"a phone's picture");
    photos.write("holiday/clip.mov", b"a video");
    photos.write("holiday/notes.txt", b"a text");
    photos.write("holiday/.hidden.png", b"nothing");
    let output = run(&photos, &["predict", "classifier.safetensors", "photos"]);
    assert!(output.status.success());
    let said = text(&output.stderr);
    for part in [
        "3 files were skipped",
        "1.HEIC: HEIC is not supported: convert it",
        "clip.mov: a video",
        "notes.txt: not an image",
    ] {
        assert!(said.contains(part), "'{part}' is missing in: {said}");
    }
    assert_eq!(text(&output.stdout).lines().count(), 18);
    let output = run(&photos, &["predict", "classifier.safetensors", "photos/holiday"]);
    let said = text(&output.stderr);
    assert!(!output.status.success() && said.contains("no images in photos/holiday"), "{said}");
    assert!(said.contains("the first file skipped: photos/holiday/1.HEIC"), "{said}");
}

/// The options that a hint names.
fn options_in(said: &str) -> Vec<String> {
    let hints = said.lines().filter(|line| line.starts_with("hint: "));
    let words = hints.flat_map(|hint| hint.split(|letter: char| !letter.is_alphanumeric() && letter != '-'));
    words.filter(|word| word.len() > 2 && word.starts_with("--")).map(str::to_owned).collect()
}

#[test]
fn hints_name_only_options_that_the_command_has() {
    let photos = PhotoFolder::new();
    assert!(run(&photos, &["fit", "photos", "-o", "classifier.safetensors"]).status.success());
    assert!(run(&photos, &["embed", "photos", "-o", "rows.safetensors"]).status.success());
    std::fs::create_dir(photos.path("splits")).unwrap();
    for split in ["train", "val", "test"] {
        std::fs::rename(photos.path("photos").join("rings"), photos.path("splits").join(split)).ok();
        std::fs::create_dir_all(photos.path("splits").join(split).join("rings")).unwrap();
        std::fs::copy(
            photos.path("photos/checks/0.png"),
            photos.path("splits").join(split).join("rings/0.png"),
        )
        .unwrap();
    }
    let commands: [(&[&str], &[&str]); 7] = [
        (&["audit"], &["splits"]),
        (&["fit"], &["splits", "-o", "x.safetensors"]),
        (&["embed"], &["splits", "-o", "x.safetensors"]),
        (&["embed"], &["photos", "-o", "x.safetensors", "--split", "test"]),
        (&["train", "backbone"], &["splits", "-o", "x.safetensors"]),
        (
            &["eval"],
            &["rows.safetensors", "--ways", "3", "--shots", "2", "--queries", "1", "--noise", "outlier=50"],
        ),
        (
            &["eval"],
            &["rows.safetensors", "--ways", "2", "--methods", "relabel:model=classifier.safetensors"],
        ),
    ];
    for (command, arguments) in commands {
        let output = run(&photos, &[command, arguments].concat());
        let said = text(&output.stderr);
        assert!(!output.status.success(), "{command:?} {arguments:?}");
        let help = text(&run(&photos, &[command, &["--help"]].concat()).stdout);
        for option in options_in(&said) {
            assert!(help.contains(&option), "{command:?} has no {option}: {said}");
        }
    }
    let said = text(&run(&photos, &["audit", "splits"]).stderr);
    assert!(said.contains("hint: give one of these folders\n"), "{said}");
    let said = text(&run(&photos, &["embed", "splits", "-o", "x.safetensors"]).stderr);
    assert!(said.contains("--split") && said.contains("--pool"), "{said}");
}

#[test]
fn spreadsheets_take_no_name_for_a_formula_and_lists_of_labels_are_read_back() {
    let photos = PhotoFolder::new();
    std::fs::rename(photos.path("photos/rings"), photos.path("photos/=1+1")).unwrap();
    std::fs::rename(photos.path("photos/=1+1/0.png"), photos.path("photos/=1+1/-x,y .png")).unwrap();
    assert!(run(&photos, &["fit", "photos", "-o", "classifier.safetensors"]).status.success());
    let no_formulas = |text: &str| {
        for line in text.lines() {
            let cells = line.split(',').map(|cell| cell.trim_start_matches('"'));
            let is_number = |cell: &str| cell.parse::<f64>().is_ok();
            for cell in cells {
                assert!(!cell.starts_with(['=', '+', '@', '\t']), "{cell} in {line}");
                assert!(!cell.starts_with('-') || is_number(cell), "{cell} in {line}");
            }
        }
    };
    let audited = text(&run(&photos, &["audit", "photos", "--format", "csv", "--plan", "plan.jsonl"]).stdout);
    assert!(audited.contains("'=1+1"), "{audited}");
    no_formulas(&audited);
    let predicted = text(
        &run(&photos, &["predict", "classifier.safetensors", "photos", "--format", "csv", "--all"]).stdout,
    );
    assert!(predicted.contains("'=1+1"), "{predicted}");
    no_formulas(&predicted);
    assert!(run(&photos, &["repair", "plan.jsonl", "--labels", "photos/labels.csv"]).status.success());
    let labels = std::fs::read_to_string(photos.path("photos/labels.csv")).unwrap();
    no_formulas(&labels);
    let json = |from: &str| -> serde_json::Value {
        let output = run(&photos, &["audit", from, "--format", "json"]);
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let names = |found: &serde_json::Value| {
        let items = found["items"].as_array().unwrap();
        let mut names: Vec<(String, String)> =
            items.iter().map(|one| (one["item"].to_string(), one["given"].to_string())).collect();
        names.sort();
        names
    };
    assert_eq!(names(&json("photos/labels.csv")), names(&json("photos")));
}
