//! Tests of `trueshot eval` with similar noise, confusion matrices, manifests of other programs, and default noise levels
//! that are impossible.

use crate::fixture::{CLASSES, EmbeddingsFolder, misused, refused, text};
use serde_json::{Value, json};

/// Writes a confusion matrix over all classes of the fixture: a class keeps its label with probability `keep`, and gets
/// each other label with the same probability.
fn matrix(folder: &EmbeddingsFolder, name: &str, keep: f64) {
    let names: Vec<String> = (0..CLASSES).map(|class| format!("class {class}")).collect();
    let mut csv = format!("true,{}\n", names.join(","));
    for (class, name) in names.iter().enumerate() {
        let rest = (1.0 - keep) / (CLASSES - 1) as f64;
        let cell = |given: usize| if given == class { keep } else { rest };
        let cells: Vec<String> = (0..CLASSES).map(|given| cell(given).to_string()).collect();
        csv.push_str(&format!("{name},{}\n", cells.join(",")));
    }
    std::fs::write(folder.path(name), csv).unwrap();
}

/// The measured share of wrong labels.
fn share(setting: &Value) -> f64 {
    setting["wrong_share"].as_f64().unwrap()
}

#[test]
fn similar_noise_is_harder_than_symmetric_noise_of_the_same_level() {
    let folder = EmbeddingsFolder::new();
    let found = folder.json(&[
        "-m",
        "protonet",
        "--noise",
        "symmetric=40",
        "--noise",
        "similar=40",
        "--episodes=300",
    ]);
    let [symmetric, similar] = [&found["settings"][0], &found["settings"][1]];
    assert_eq!((similar["noise"].as_str(), share(similar), share(symmetric)), (Some("similar"), 0.4, 0.4));
    let accuracy = |setting: &Value| setting["methods"][0]["accuracy"].as_f64().unwrap();
    assert_ne!(accuracy(similar), accuracy(symmetric));
    let shown = folder.stdout(&["-m", "protonet", "--noise", "similar=20,40"]);
    assert!(shown.contains("Accuracy in percent, similar noise"), "{shown}");
    let on = |threads| folder.stdout(&["--noise", "similar=20,40", "-f", "json", "--threads", threads]);
    assert_eq!(on("1"), on("2"));
    refused(folder.eval(&["--noise", "similar=80"]), &["similar noise of 80 % is impossible"]);
}

#[test]
fn a_confusion_matrix_is_reported_under_its_name_with_the_measured_share() {
    let folder = EmbeddingsFolder::new();
    matrix(&folder, "a.csv", 0.8);
    matrix(&folder, "b.csv", 0.6);
    let arguments =
        ["-m", "protonet,median", "--noise", "symmetric=0", "--noise", "confusion=a.csv", "--episodes=400"];
    let found = folder.json(&arguments);
    let setting = &found["settings"][1];
    assert_eq!(setting["noise"], "confusion");
    assert!((share(setting) - 0.2).abs() < 0.02, "{setting}");
    assert_eq!(setting["level"], setting["wrong_share"]);
    let on = |threads| folder.stdout(&[&arguments[..], &["-f", "json", "--threads", threads]].concat());
    assert_eq!(on("1"), on("2"));
    let page = folder.stdout(&[&arguments[..], &["-f", "html"]].concat());
    assert!(page.contains("<h2>confusion noise</h2>"));
    let both = folder.json(&["-m", "protonet", "--noise", "confusion=a.csv", "--noise", "confusion=b.csv"]);
    assert_eq!(
        (&both["settings"][0]["noise"], &both["settings"][1]["noise"]),
        (&json!("confusion a"), &json!("confusion b"))
    );
    assert!(share(&both["settings"][1]) > share(&both["settings"][0]));
}

#[test]
fn confusion_matrices_that_cannot_be_used_are_refused() {
    let folder = EmbeddingsFolder::new();
    let with = |csv: &str| {
        std::fs::write(folder.path("bad.csv"), csv).unwrap();
        folder.eval(&["--noise", "confusion=bad.csv"])
    };
    refused(folder.eval(&["--noise", "confusion=nowhere.csv"]), &["cannot read nowhere.csv"]);
    misused(with(""), &["noise 'confusion=bad.csv': the file is empty"]);
    misused(with(",class 0\nclass 0,1\n"), &["the matrix has no column for class 'class 1' of the data"]);
    matrix(&folder, "zero.csv", 0.0);
    misused(
        folder.eval(&["--noise", "confusion=zero.csv"]),
        &["row 0 of the confusion matrix has 0 on the diagonal"],
    );
    misused(folder.eval(&["--noise", "confusion="]), &["expected the path of a CSV file"]);
    misused(
        folder.eval(&["--noise", "gaussian=20"]),
        &["known: symmetric, paired, outlier, similar, or confusion=FILE"],
    );
}

#[test]
fn noise_that_changes_no_label_is_said_so() {
    let folder = EmbeddingsFolder::new();
    matrix(&folder, "identity.csv", 1.0);
    let shown = folder.stdout(&["-m", "protonet", "--noise", "confusion=identity.csv"]);
    assert!(shown.contains("confusion noise changed no label: no label is wrong under it\n"), "{shown}");
}

#[test]
fn a_manifest_with_noise_of_another_program_has_its_name_and_its_measured_share() {
    let folder = EmbeddingsFolder::new();
    matrix(&folder, "a.csv", 0.7);
    let noise = ["--noise", "symmetric=40", "--noise", "confusion=a.csv", "-m", "protonet,median"];
    let written = folder.json(&[&noise[..], &["--write-manifest", "m.jsonl"]].concat());
    let replayed = folder.json(&["--manifest", "m.jsonl", "-m", "protonet,median"]);
    assert_eq!(replayed["settings"], written["settings"]);
    // The noise gets another name, and the first setting loses half of its replacements.
    let manifest = std::fs::read_to_string(folder.path("m.jsonl")).unwrap();
    let mut lines: Vec<Value> = manifest.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    lines[0]["noises"][1]["noise"] = json!("crowd");
    for line in &mut lines[1..] {
        let replaced = line["replaced"][0].as_array_mut().unwrap();
        replaced.truncate(5);
    }
    let changed: Vec<String> = lines.iter().map(Value::to_string).collect();
    std::fs::write(folder.path("m.jsonl"), changed.join("\n")).unwrap();
    let found = folder.json(&["--manifest", "m.jsonl", "-m", "protonet"]);
    assert_eq!((share(&found["settings"][0]), found["settings"][0]["level"].as_f64()), (0.2, Some(0.4)));
    assert_eq!(found["settings"][1]["noise"], "crowd");
    assert_eq!(share(&found["settings"][1]), share(&written["settings"][1]));
    let shown = folder.stdout(&["--manifest", "m.jsonl", "-m", "protonet"]);
    assert!(shown.contains("under symmetric noise of 40 %, 20 % of the labels are wrong\n"), "{shown}");
    assert!(shown.contains("Accuracy in percent, crowd noise\n"), "{shown}");
    lines[0]["noises"][1]["noise"] = json!("a,b");
    let changed: Vec<String> = lines.iter().map(Value::to_string).collect();
    std::fs::write(folder.path("m.jsonl"), changed.join("\n")).unwrap();
    refused(folder.eval(&["--manifest", "m.jsonl"]), &["line 1: ", "cannot be the name of a noise type"]);
}

#[test]
fn a_manifest_that_declares_paired_noise_and_has_other_noise_is_reported() {
    let folder = EmbeddingsFolder::new();
    let settings = ["--noise", "symmetric=40", "--noise", "paired=20", "-m", "protonet"];
    folder.json(&[&settings[..], &["--write-manifest", "m.jsonl"]].concat());
    let manifest = std::fs::read_to_string(folder.path("m.jsonl")).unwrap();
    std::fs::write(folder.path("m.jsonl"), manifest.replacen("symmetric", "paired", 1)).unwrap();
    let found = folder.json(&["--manifest", "m.jsonl", "-m", "protonet"]);
    // By chance, symmetric noise may be paired in an episode.
    let unpaired = found["settings"][0]["unpaired_episodes"].as_u64().unwrap();
    assert!((28..=30).contains(&unpaired), "{unpaired}");
    assert_eq!(found["settings"][1].get("unpaired_episodes"), None);
    let shown = folder.stdout(&["--manifest", "m.jsonl", "-m", "protonet"]);
    let note =
        format!("\nthe manifest declares paired noise, but in {unpaired} of 30 episodes the wrong labels");
    assert_eq!(shown.matches(&note).count(), 1, "{shown}");
}

#[test]
fn levels_too_low_to_make_a_label_wrong_are_noted() {
    let folder = EmbeddingsFolder::new();
    let shown = folder.stdout(&["--noise", "symmetric=0.4%", "-m", "protonet"]);
    assert!(shown.contains("under symmetric noise of 0.4 %, 0 % of the labels are wrong\n"), "{shown}");
}

#[test]
fn default_levels_that_are_impossible_are_left_out_with_a_note() {
    let folder = EmbeddingsFolder::new();
    let done = folder.eval(&["--shots", "1", "-m", "protonet,relabel", "-f", "json"]).assert().success();
    let message = text(&done.get_output().stderr);
    let note = "note: symmetric noise of 20, 40, 60 % is left out: it is impossible with 5 ways and 1 shot";
    assert!(message.lines().any(|line| line == note), "{message}");
    let found: Value = serde_json::from_slice(&done.get_output().stdout).unwrap();
    assert_eq!(
        (found["settings"].as_array().unwrap().len(), &found["settings"][0]["level"]),
        (1, &json!(0.0))
    );
    let usual = folder.eval(&["-m", "protonet"]).assert().success();
    assert!(!text(&usual.get_output().stderr).contains("note: "));
    refused(
        folder.eval(&["--shots", "1", "--noise", "symmetric=60"]),
        &["symmetric noise of 60 % is impossible"],
    );
}

#[test]
fn the_best_of_a_column_is_bold_in_latex_tables() {
    let shown =
        EmbeddingsFolder::new().stdout(&["-m", "protonet,median", "--noise", "symmetric=40", "-f", "latex"]);
    let rows: Vec<&str> =
        shown.lines().filter(|line| line.starts_with("protonet &") || line.starts_with("median &")).collect();
    assert_eq!(rows[..2].iter().filter(|row| row.contains("\\textbf{")).count(), 1, "{shown}");
}
