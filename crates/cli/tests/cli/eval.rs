//! Tests of `trueshot eval`: its results in every format, and that the same command gives the same bytes.

use std::collections::HashSet;
use std::io::Write;

use crate::fixture::{ALL_NOISE, CLASSES, EmbeddingsFolder, refused, text};
use serde_json::Value;
use sha2::{Digest, Sha256};

/// The methods that are evaluated by default, in their order.
const METHODS: [&str; 13] = [
    "oracle",
    "protonet",
    "median",
    "euclidean",
    "absolute",
    "cosine",
    "nearest",
    "linear",
    "matching",
    "baseline++",
    "rnnp",
    "simpleshot",
    "relabel",
];

const TRANSDUCTIVE: [&str; 4] = ["laplacianshot", "tim", "bd-cspn", "pt-map"];

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap()
}

/// The entry of a method in every setting.
fn entries<'a>(found: &'a Value, method: &str) -> Vec<&'a Value> {
    let of_setting = |setting: &'a Value| {
        list(&setting["methods"]).iter().find(|entry| entry["method"] == method).unwrap()
    };
    list(&found["settings"]).iter().map(of_setting).collect()
}

/// The figures of a method that do not depend on the other methods.
fn own_figures(found: &Value, method: &str) -> Vec<Value> {
    let own = |entry: &Value| serde_json::json!([entry["accuracy"], entry["ci95"], entry["detection"]]);
    entries(found, method).into_iter().map(own).collect()
}

#[test]
fn the_table_names_the_experiment_and_every_method_within_80_columns() {
    let shown = EmbeddingsFolder::new().stdout(&ALL_NOISE);
    assert!(shown.starts_with("5-way 5-shot, 15 queries per class, 30 episodes, seed 0\n"), "{shown}");
    for title in [
        "Accuracy in percent, symmetric noise",
        "Accuracy in percent, paired noise",
        "Accuracy in percent, outlier noise",
        "Share of the gap from ProtoNet to Oracle closed, symmetric noise",
        "Finding wrong labels: AUROC / average precision, paired noise",
    ] {
        assert!(shown.lines().any(|line| line == title), "{title}: {shown}");
    }
    for method in METHODS {
        assert!(shown.lines().any(|line| line.split_whitespace().next() == Some(method)), "{method}");
    }
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
    assert!(!shown.contains('\u{1b}') && !shown.contains("NaN"), "{shown}");
}

#[test]
fn json_holds_every_figure_under_its_documented_name() {
    let folder = EmbeddingsFolder::new();
    let found = folder.json(&[&ALL_NOISE[..], &["--seed", "7"]].concat());
    assert_eq!(found["seed"], 7);
    assert_eq!(found["interrupted"], false);
    assert_eq!(found["baseline"], "protonet");
    assert_eq!(found["embeddings"]["path"], "data.safetensors");
    assert_eq!(found["embeddings"]["classes"], CLASSES);
    assert!(found["embeddings"]["fingerprint"].as_str().unwrap().len() >= 32);
    assert_eq!(found["outliers"]["path"], "outliers.safetensors");
    let settings: Vec<(String, f64)> = list(&found["settings"])
        .iter()
        .map(|setting| (setting["noise"].as_str().unwrap().into(), setting["level"].as_f64().unwrap()))
        .collect();
    let expected = [
        ("symmetric", 0.0),
        ("symmetric", 0.2),
        ("symmetric", 0.4),
        ("paired", 0.4),
        ("outlier", 0.2),
        ("outlier", 0.6),
    ];
    assert_eq!(settings, expected.map(|(kind, level)| (kind.to_string(), level)));
    for setting in list(&found["settings"]) {
        let shape = ["ways", "shots", "queries", "episodes"].map(|name| setting[name].as_u64().unwrap());
        assert_eq!(shape, [5, 5, 15, 30]);
        let names: Vec<&str> =
            list(&setting["methods"]).iter().map(|entry| entry["method"].as_str().unwrap()).collect();
        assert_eq!(names, METHODS);
        for entry in list(&setting["methods"]) {
            assert!((10.0..=100.0).contains(&entry["accuracy"].as_f64().unwrap()), "{entry}");
            assert!((0.0..20.0).contains(&entry["ci95"].as_f64().unwrap()), "{entry}");
        }
    }
}

#[test]
fn methods_that_weigh_items_find_wrong_labels_and_others_say_nothing_of_them() {
    let found = EmbeddingsFolder::new().json(&["--noise", "symmetric=0,40"]);
    for method in ["median", "cosine", "euclidean", "absolute"] {
        let detection = entries(&found, method)[1]["detection"].clone();
        for figure in ["auroc", "average_precision"] {
            let value = detection[figure].as_f64().unwrap();
            assert!((0.5..=1.0).contains(&value), "{method}, {figure}: {value}");
        }
        assert_eq!((detection["items"].as_u64(), detection["wrong"].as_u64()), (Some(750), Some(300)));
    }
    assert!(entries(&found, "protonet")[1].get("detection").is_none());
    assert!(entries(&found, "cosine")[0].get("detection").is_none(), "nothing is wrong at 0 %");
}

#[test]
fn csv_has_one_record_a_setting_and_method() {
    let shown = EmbeddingsFolder::new().stdout(&["--noise", "symmetric=0,40", "--format", "csv"]);
    let records: Vec<Vec<&str>> = shown.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(records[0][..9].join(","), "noise,level,ways,shots,queries,episodes,method,accuracy,ci95");
    assert_eq!(records.len(), 1 + 2 * METHODS.len());
    assert!(records.iter().all(|record| record.len() == records[0].len()));
    assert_eq!(records[2][..7], ["symmetric", "0", "5", "5", "15", "30", "protonet"]);
    assert!(records[2][7].parse::<f64>().unwrap() > 50.0);
}

#[test]
fn markdown_tables_have_as_many_cells_in_every_row() {
    let shown = EmbeddingsFolder::new().stdout(&["--format", "md"]);
    let tables: Vec<&str> = shown.split("\n\n").filter(|part| part.starts_with("| method")).collect();
    assert!(tables.len() >= 3, "{shown}");
    for table in tables {
        let cells: HashSet<usize> = table.lines().map(|line| line.matches('|').count()).collect();
        assert_eq!(cells.len(), 1, "{table}");
        assert!(table.lines().nth(1).unwrap().starts_with("|---|---:|"), "{table}");
    }
    assert!(shown.contains("**Accuracy in percent, symmetric noise**"));
}

#[test]
fn latex_tables_are_complete_and_escaped() {
    let shown = EmbeddingsFolder::new().stdout(&["--format", "latex"]);
    for (begin, end) in [("\\begin{table}", "\\end{table}"), ("\\begin{tabular}", "\\end{tabular}")] {
        assert_eq!(shown.matches(begin).count(), shown.matches(end).count());
        assert!(shown.contains(begin));
    }
    let rows: Vec<&str> = shown.lines().filter(|line| line.contains(" & ")).collect();
    assert!(rows.iter().all(|row| row.ends_with(" \\\\") && row.matches('&').count() <= 4), "{shown}");
    assert!(shown.contains("method & 0 \\% & 20 \\% & 40 \\% & 60 \\% \\\\"), "{shown}");
    assert!(shown.contains("$\\pm$") && !shown.contains('±'));
}

#[test]
fn the_page_is_complete_has_plots_and_needs_nothing_from_outside() {
    let folder = EmbeddingsFolder::new();
    let page = folder.stdout(&[&ALL_NOISE[..], &["--format", "html"]].concat());
    assert!(page.starts_with("<!doctype html>") && page.trim_end().ends_with("</html>"));
    // One chart per noise type, with six lines and with all lines, each for wide and for narrow windows.
    assert_eq!(page.matches("<svg").count(), 3 * 4);
    assert_eq!(page.matches("class=\"series").count(), 3 * 2 * (6 + METHODS.len()));
    for foreign in ["<script", "http://", "https://", "<link", "@import", "NaN"] {
        assert!(!page.contains(foreign), "{foreign}");
    }
    assert!(page.contains("data.safetensors") && page.contains("Significance of the differences"));
    folder.eval(&["--html", "page.html"]).assert().success();
    assert!(std::fs::read_to_string(folder.path("page.html")).unwrap().contains("<svg"));
}

#[test]
fn the_number_of_threads_does_not_change_a_byte() {
    let folder = EmbeddingsFolder::new();
    let on = |threads| {
        let more =
            ["--format", "json", "--episodes", "300", "--per-class", "--confusion", "--threads", threads];
        text(
            &folder
                .trueshot(&["eval", "data.safetensors"])
                .args(ALL_NOISE)
                .args(more)
                .output()
                .unwrap()
                .stdout,
        )
    };
    let one = on("1");
    assert!(one.len() > 10_000);
    assert!(one == on("2"), "one and two threads differ");
    assert!(one == on("5"), "one and five threads differ");
}

#[test]
fn ragged_support_sets_do_not_depend_on_threads_either() {
    let folder = EmbeddingsFolder::new();
    let on = |threads| {
        folder.json(&["--shots", "2-6", "--noise", "symmetric=0,20", "--threads", threads, "--episodes=280"])
    };
    let found = on("1");
    assert_eq!(found["settings"][0]["shots"], serde_json::json!([2, 6]));
    assert!(entries(&found, "protonet")[0]["accuracy"].as_f64().unwrap() > 50.0);
    assert!(found == on("2"));
    let shown = folder.stdout(&["--shots", "2-6", "--noise", "symmetric=0"]);
    assert!(shown.starts_with("5-way 2-6-shot, "), "{shown}");
}

#[test]
fn a_method_has_the_same_figures_alone_as_among_others() {
    let folder = EmbeddingsFolder::new();
    let together = folder.json(&ALL_NOISE);
    for method in METHODS {
        let alone = folder.json(&[&ALL_NOISE[..], &["--methods", method]].concat());
        assert_eq!(own_figures(&alone, method), own_figures(&together, method), "{method}");
    }
    let last_first = folder.json(&[&ALL_NOISE[..], &["--methods", "rnnp,nearest,protonet"]].concat());
    assert_eq!(own_figures(&last_first, "nearest"), own_figures(&together, "nearest"));
}

#[test]
fn another_seed_gives_other_figures_and_the_same_seed_the_same() {
    let folder = EmbeddingsFolder::new();
    let seeded = |seed| folder.stdout(&["--format", "json", "--seed", seed]);
    assert_eq!(seeded("3"), seeded("3"));
    let (three, four) = (folder.json(&["--seed", "3"]), folder.json(&["--seed", "4"]));
    assert_ne!(own_figures(&three, "protonet"), own_figures(&four, "protonet"));
}

#[test]
fn a_manifest_replays_the_same_figures_and_is_named_by_its_sha_256() {
    let folder = EmbeddingsFolder::new();
    let written =
        folder.eval(&ALL_NOISE).args(["--write-manifest", "m.jsonl", "-f", "json"]).assert().success();
    let message = text(&written.get_output().stderr);
    let fresh: Value = serde_json::from_slice(&written.get_output().stdout).unwrap();
    let hash: String = Sha256::digest(std::fs::read(folder.path("m.jsonl")).unwrap())
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    assert!(message.contains("wrote 30 episodes to m.jsonl") && message.contains(&hash), "{message}");
    let replay = ["--manifest", "m.jsonl", "--outliers", "outliers.safetensors"];
    let replayed = folder.json(&replay);
    assert_eq!(replayed["settings"], fresh["settings"]);
    assert_eq!(replayed["seed"], fresh["seed"]);
    assert_eq!(replayed["manifest"], hash.as_str());
    let page = folder.stdout(&[&replay[..], &["--format", "html"]].concat());
    assert!(page.contains(&hash), "the page names the manifest");
    let fewer = folder.json(&[&replay[..], &["--episodes", "10"]].concat());
    assert_eq!(fewer["settings"][0]["episodes"], 10);
}

#[test]
fn a_manifest_of_other_data_is_refused() {
    let folder = EmbeddingsFolder::new();
    folder.eval(&["--write-manifest", "m.jsonl"]).assert().success();
    crate::fixture::bank("class", 9, CLASSES, 40, 16).write(folder.path("data.safetensors")).unwrap();
    let expected = ["the manifest was drawn from embeddings with fingerprint", "hint: replay a manifest"];
    refused(folder.eval(&["--manifest", "m.jsonl"]), &expected);
}

#[test]
fn a_manifest_with_another_outlier_pool_is_refused() {
    let folder = EmbeddingsFolder::new();
    folder.eval(&ALL_NOISE).args(["--write-manifest", "m.jsonl"]).assert().success();
    let with = |pool: &str| folder.eval(&["--manifest", "m.jsonl", "--outliers", pool]);
    refused(with("data.safetensors"), &["drawn from an outlier pool with fingerprint"]);
    refused(folder.eval(&["--manifest", "m.jsonl"]), &["drawn from an outlier pool with fingerprint"]);
}

#[test]
fn outliers_of_the_same_data_are_the_same_with_and_without_naming_it() {
    let folder = EmbeddingsFolder::new();
    std::fs::copy(folder.path("data.safetensors"), folder.path("copy.safetensors")).unwrap();
    let found = folder.json(&["--noise", "outlier=20,60"]);
    assert_eq!(found["outliers"], found["embeddings"]);
    for name in ["data.safetensors", "./data.safetensors", "copy.safetensors"] {
        assert_eq!(folder.json(&["--noise", "outlier=20,60", "--outliers", name]), found, "{name}");
    }
}

#[test]
fn a_manifest_that_names_no_pool_still_needs_one_of_the_right_dimension() {
    let folder = EmbeddingsFolder::new();
    folder.eval(&ALL_NOISE).args(["--write-manifest", "m.jsonl"]).assert().success();
    let manifest = std::fs::read_to_string(folder.path("m.jsonl")).unwrap();
    let (header, episodes) = manifest.split_once('\n').unwrap();
    let mut header: Value = serde_json::from_str(header).unwrap();
    header["outliers"] = Value::Null;
    std::fs::write(folder.path("m.jsonl"), format!("{header}\n{episodes}")).unwrap();
    crate::fixture::bank("other", 1, 4, 20, 3).write(folder.path("narrow.safetensors")).unwrap();
    let command = folder.eval(&["--manifest", "m.jsonl", "--outliers", "narrow.safetensors"]);
    refused(command, &["the outlier pool has 3 dimensions, the data 16"]);
}

#[test]
fn a_damaged_manifest_is_refused_by_line() {
    let folder = EmbeddingsFolder::new();
    folder.eval(&["--write-manifest", "m.jsonl"]).assert().success();
    let manifest = std::fs::read_to_string(folder.path("m.jsonl")).unwrap();
    std::fs::write(folder.path("m.jsonl"), &manifest[..manifest.len() - 40]).unwrap();
    refused(folder.eval(&["--manifest", "m.jsonl"]), &["m.jsonl, line 31: "]);
    std::fs::write(folder.path("m.jsonl"), "").unwrap();
    refused(folder.eval(&["--manifest", "m.jsonl"]), &["m.jsonl, line 1: "]);
    refused(folder.eval(&["--manifest", "none.jsonl"]), &["cannot read none.jsonl"]);
}

#[test]
fn all_methods_are_listed_with_their_parameters() {
    let folder = EmbeddingsFolder::new();
    let shown = text(&folder.trueshot(&["eval", "--list-methods"]).assert().success().get_output().stdout);
    for method in METHODS {
        assert!(shown.lines().any(|line| line.starts_with(&format!("{method} "))), "{method}: {shown}");
    }
    for parameter in ["steps=5", "T=0.2", "k=1", "share=0.8", "centre=support", "lambda=0.7"] {
        assert!(shown.contains(parameter), "{parameter}");
    }
    let marked = shown.lines().filter(|line| line.ends_with(" [transductive]"));
    let marked: Vec<&str> = marked.filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(marked, [&TRANSDUCTIVE[..], &["maml"]].concat());
    assert!(shown.lines().any(|line| line.starts_with("[transductive]: ")), "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 120), "{shown}");
}

#[test]
fn transductive_methods_are_evaluated_if_they_are_named_and_marked() {
    let folder = EmbeddingsFolder::new();
    let named = ["--methods", "protonet,laplacianshot,tim,bd-cspn,pt-map", "--noise", "symmetric=0,40"];
    let on = |threads| folder.json(&[&named[..], &["--threads", threads]].concat());
    let found = on("1");
    assert!(found == on("2"), "one and two threads differ");
    for method in TRANSDUCTIVE {
        for entry in entries(&found, method) {
            assert_eq!(entry["transductive"], true, "{entry}");
            assert!(entry["accuracy"].as_f64().unwrap() > 30.0, "{entry}");
        }
        let alone = folder.json(&["--methods", method, "--noise", "symmetric=0,40"]);
        assert_eq!(own_figures(&alone, method), own_figures(&found, method), "{method}");
    }
    assert!(entries(&found, "protonet")[0].get("transductive").is_none());
    let shown = folder.stdout(&named);
    assert!(shown.contains("  pt-map†") && shown.contains("\n† transductive: classifies all"), "{shown}");
    assert!(!folder.stdout(&["--noise", "symmetric=0"]).contains('†'));
}

#[test]
fn per_class_adds_every_class_to_the_table_and_to_json() {
    let folder = EmbeddingsFolder::new();
    let arguments = ["--per-class", "--noise", "symmetric=40", "--methods", "protonet,median"];
    let shown = folder.stdout(&arguments);
    assert!(shown.contains("Accuracy by class, symmetric noise of 40 %"), "{shown}");
    assert!(shown.contains("\n  class 7 "), "{shown}");
    let found = folder.json(&arguments);
    let classes = list(&entries(&found, "median")[0]["per_class"]);
    assert_eq!(classes.len(), CLASSES);
    let queries: u64 = classes.iter().map(|class| class["queries"].as_u64().unwrap()).sum();
    assert_eq!(queries, 30 * 5 * 15);
}

#[test]
fn confusion_counts_every_query_once_and_agrees_with_the_accuracy() {
    let folder = EmbeddingsFolder::new();
    let arguments = ["--confusion", "--noise", "symmetric=40", "--methods", "protonet"];
    let found = folder.json(&arguments);
    let entry = entries(&found, "protonet")[0];
    let counts: Vec<Vec<u64>> = serde_json::from_value(entry["confusion"].clone()).unwrap();
    let total: u64 = counts.iter().flatten().sum();
    let right: u64 = (0..CLASSES).map(|class| counts[class][class]).sum();
    assert_eq!((counts.len(), total), (CLASSES, 30 * 5 * 15));
    let accuracy = 100.0 * right as f64 / total as f64;
    assert!((accuracy - entry["accuracy"].as_f64().unwrap()).abs() < 1e-3);
    let page = folder.stdout(&[&arguments[..], &["--format", "html"]].concat());
    assert!(page.contains("Confusion matrices"));
}

#[test]
fn without_queries_there_is_detection_and_no_accuracy() {
    let folder = EmbeddingsFolder::new();
    let arguments = ["--queries", "0", "--noise", "symmetric=40"];
    let found = folder.json(&arguments);
    let cosine = entries(&found, "cosine")[0];
    assert!(cosine["accuracy"].is_null() && cosine["ci95"].is_null());
    assert!(cosine["detection"]["auroc"].as_f64().unwrap() > 0.5);
    let shown = folder.stdout(&arguments);
    assert!(shown.contains("Finding wrong labels") && !shown.contains("Accuracy in percent"), "{shown}");
    for format in ["csv", "md", "latex", "html"] {
        let shown = folder.stdout(&[&arguments[..], &["--format", format]].concat());
        assert!(!shown.contains("NaN") && shown.contains("cosine"), "{format}: {shown}");
    }
}

#[test]
fn a_single_episode_has_figures_but_no_interval() {
    let folder = EmbeddingsFolder::new();
    let found = folder.json(&["--episodes=1"]);
    let protonet = entries(&found, "protonet")[0];
    assert!(protonet["accuracy"].is_number() && protonet["ci95"].is_null());
    for format in ["table", "csv", "md", "latex", "html"] {
        let shown = folder.stdout(&["--episodes=1", "--format", format]);
        assert!(!shown.contains("NaN") && !shown.contains('±'), "{format}: {shown}");
    }
}

#[test]
fn every_instruction_set_gives_the_same_picture() {
    let folder = EmbeddingsFolder::new();
    let run = |instructions: Option<&str>| -> Option<Value> {
        let mut command = folder.eval(&[&ALL_NOISE[..], &["--format", "json", "--episodes=200"]].concat());
        instructions.map(|name| command.env("TRUESHOT_ISA", name));
        let output = command.output().unwrap();
        if text(&output.stderr).contains("usable on this processor") {
            // Not `eprintln!`, which the test runner captures.
            let reason = format!("SKIPPED: this processor has no {instructions:?}\n");
            std::io::stderr().write_all(reason.as_bytes()).unwrap();
            return None;
        }
        Some(serde_json::from_slice(&output.stdout).unwrap())
    };
    let default = run(None).unwrap();
    for name in ["portable", "avx2"] {
        let Some(found) = run(Some(name)) else { continue };
        assert_eq!(found["instructions"], name);
        for method in METHODS {
            for (ours, theirs) in entries(&default, method).into_iter().zip(entries(&found, method)) {
                let gap = ours["accuracy"].as_f64().unwrap() - theirs["accuracy"].as_f64().unwrap();
                assert!(gap.abs() < 0.5, "{name}, {method}: {gap}");
            }
        }
    }
}
