//! Tests of bad input: every kind has its own clear error.

use crate::fixture::{CLASSES, DIM, EmbeddingsFolder, ITEMS, bank, misused, refused, text};
use serde_json::json;

#[test]
fn too_few_items_in_a_class_say_how_many_queries_fit() {
    let folder = EmbeddingsFolder::new();
    let expected = [
        "class 'class 0' has 40 items",
        "5 shots",
        "31 queries need 41",
        "hint: the largest number of queries that fits is 30",
    ];
    refused(folder.eval(&["--queries", "31"]), &expected);
    refused(
        folder.eval(&["--shots", "21", "--queries", "0"]),
        &["hint: no number of queries fits; the largest number of shots for this class is 20"],
    );
    folder.eval(&["--queries", "30"]).assert().success();
}

#[test]
fn an_absurd_number_of_shots_is_refused_like_any_other() {
    let shots = (1u64 << 63).to_string();
    refused(
        EmbeddingsFolder::new().eval(&["--shots", &shots]),
        &["has 40 items", "the largest number of shots for this class is 20"],
    );
}

#[test]
fn fewer_classes_than_ways_say_how_many_there_are() {
    let expected = ["9 ways requested, but the data has 8 classes", "hint: use at most 8 ways"];
    refused(EmbeddingsFolder::new().eval(&["--ways", "9"]), &expected);
}

#[test]
fn numbers_that_make_no_episode_are_refused() {
    let folder = EmbeddingsFolder::new();
    misused(folder.eval(&["--ways", "1"]), &["the number of ways is 1; allowed: 2 or more"]);
    misused(folder.eval(&["--shots", "0"]), &["the number of shots is 0; allowed: 1 or more"]);
    misused(folder.eval(&["--shots", "6-3"]), &["the largest number of shots is 3"]);
    misused(
        folder.eval(&["--episodes=0", "--write-manifest", "m"]),
        &["invalid value '0' for '--episodes <N>'"],
    );
    misused(folder.trueshot(&["demo", "-e", "0"]), &["invalid value '0' for '--episodes <N>'"]);
    assert!(!folder.path("m").exists() && !folder.path("report.html").exists());
    misused(folder.eval(&["--shots", "few"]), &["'few' is not a number of shots"]);
    misused(folder.eval(&["--threads", "0"]), &["--threads"]);
}

#[test]
fn a_negative_number_is_a_value_that_is_refused_with_those_allowed() {
    let folder = EmbeddingsFolder::new();
    misused(
        folder.eval(&["--threads", "-1"]),
        &["invalid value '-1' for '--threads <N>': -1 is not in 1..=1024"],
    );
    misused(folder.eval(&["--shots", "-3"]), &["'-3' is not a number of shots"]);
    misused(folder.eval(&["--seed", "-1"]), &["invalid value '-1' for '--seed <SEED>'"]);
    let predict = ["predict", "m.safetensors", "data.safetensors", "--unknown", "-0.5"];
    misused(folder.trueshot(&predict), &["invalid value '-0.5' for '--unknown"]);
    misused(folder.trueshot(&["train", "relabel", "data.safetensors", "-s", "-1"]), &["invalid value '-1'"]);
}

#[test]
fn levels_outside_0_to_100_are_wrong_usage() {
    let folder = EmbeddingsFolder::new();
    for level in ["100", "-1", "250", "nan", "inf"] {
        let expected = ["the noise level is", "at least 0 and below 100 %"];
        misused(folder.eval(&["--noise", &format!("symmetric={level}")]), &expected);
    }
    misused(folder.eval(&["--noise", "symmetric=many"]), &["'many' is not a level in percent"]);
    misused(
        folder.eval(&["--noise", "gaussian=20"]),
        &["unknown noise type 'gaussian'; known: symmetric, paired, outlier"],
    );
    misused(folder.eval(&["--noise", "40"]), &["expected TYPE=LEVEL"]);
    misused(
        folder.eval(&["--noise", "symmetric=0.4"]),
        &["write symmetric=40 for 40 %, or symmetric=0.4% for less than 1 %"],
    );
}

#[test]
fn a_level_without_a_valid_draw_says_which_levels_have_one() {
    let folder = EmbeddingsFolder::new();
    let expected =
        ["symmetric noise of 80 % is impossible with 5 ways and 5 shots; possible: 0, 20, 40, 60 %"];
    refused(folder.eval(&["--noise", "symmetric=80"]), &expected);
    refused(folder.eval(&["--noise", "paired=60"]), &["paired noise of 60 %", "possible: 0, 20, 40 %"]);
    refused(folder.eval(&["--noise", "symmetric=60", "--shots", "2-6"]), &["2-6 shots; possible: 0"]);
}

#[test]
fn outliers_come_from_classes_that_are_not_in_the_episode_if_there_are_any() {
    let folder = EmbeddingsFolder::new();
    folder.eval(&["--noise", "outlier=40"]).assert().success();
    let expected = [
        "there are 0 outliers to draw from, but one episode needs",
        "hint: outliers are items of classes that are not in the episode",
        "with --outliers",
    ];
    refused(folder.eval(&["--noise", "outlier=40", "--ways", &CLASSES.to_string()]), &expected);
}

#[test]
fn an_outlier_pool_of_another_dimension_is_refused() {
    let folder = EmbeddingsFolder::new();
    bank("other", 1, 4, 20, 3).write(folder.path("narrow.safetensors")).unwrap();
    let expected =
        ["the outlier pool has 3 dimensions, the data 16", "hint: embed the outliers with the same backbone"];
    refused(folder.eval(&["--noise", "outlier=40", "--outliers", "narrow.safetensors"]), &expected);
}

#[test]
fn an_outlier_pool_too_small_for_one_episode_is_refused() {
    let folder = EmbeddingsFolder::new();
    bank("other", 1, 2, 4, DIM).write(folder.path("small.safetensors")).unwrap();
    let with = |level: &str| {
        folder.eval(&["--outliers", "small.safetensors", "--noise", &format!("outlier={level}")])
    };
    refused(with("40"), &["there are 8 outliers to draw from, but one episode needs 10"]);
    with("20").assert().success();
}

#[test]
fn a_pool_that_nothing_draws_from_is_worth_a_warning() {
    let assert = EmbeddingsFolder::new().eval(&["--outliers", "outliers.safetensors"]).assert().success();
    let message = crate::fixture::text(&assert.get_output().stderr);
    assert!(message.contains("warning: --outliers has no effect without outlier noise"), "{message}");
}

#[test]
fn features_that_are_not_finite_are_named_by_row_and_column() {
    for (value, name) in [(f32::NAN, "NaN"), (f32::INFINITY, "inf"), (f32::NEG_INFINITY, "-inf")] {
        let folder = EmbeddingsFolder::new();
        folder.spoil(123, 4, value);
        let expected = [&format!("feature in row 123, column 4 is {name}")[..], "hint: `trueshot inspect`"];
        refused(folder.eval(&[]), &expected);
        std::fs::rename(folder.path("data.safetensors"), folder.path("pool.safetensors")).unwrap();
        bank("class", 0, CLASSES, ITEMS, DIM).write(folder.path("data.safetensors")).unwrap();
        refused(folder.eval(&["--outliers", "pool.safetensors", "--noise", "outlier=20"]), &expected);
    }
}

/// A `.npy` file of version 1.
fn npy(kind: &str, shape: &str, data: Vec<u8>) -> Vec<u8> {
    let header = format!("{{'descr': '{kind}', 'fortran_order': False, 'shape': ({shape}), }}");
    let header = format!("{header:<117}\n");
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.into_bytes());
    bytes.extend(data);
    bytes
}

#[test]
fn labels_and_features_of_different_length_are_refused() {
    let folder = EmbeddingsFolder::new();
    let values = (0..100u32).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let labels = |count: i64| (0..count).flat_map(|i| (i % 5).to_le_bytes()).collect();
    std::fs::write(folder.path("x.npy"), npy("<f4", "50, 2", values)).unwrap();
    let inspect = |path: &str| folder.trueshot(&["inspect", path]);
    refused(inspect("x.npy"), &["no labels next to x.npy; looked for x.labels.npy", "hint: "]);
    std::fs::write(folder.path("y.npy"), npy("<i8", "49,", labels(49))).unwrap();
    refused(inspect("x.npy"), &["50 rows of features but 49 labels"]);
    refused(folder.trueshot(&["eval", "x.npy"]), &["50 rows of features but 49 labels"]);
    std::fs::write(folder.path("y.npy"), npy("<i8", "50,", labels(50))).unwrap();
    inspect("x.npy").assert().success();
}

#[test]
fn rows_to_classify_need_no_labels() {
    let folder = EmbeddingsFolder::new();
    folder.trueshot(&["fit", "data.safetensors", "-o", "c.safetensors"]).assert().success();
    let values = (0..2 * DIM).flat_map(|i| (i as f32).to_le_bytes()).collect();
    std::fs::write(folder.path("lone.npy"), npy("<f4", &format!("2, {DIM}"), values)).unwrap();
    let predict = ["predict", "c.safetensors", "lone.npy", "--format", "csv"];
    let answers = text(&folder.trueshot(&predict).assert().success().get_output().stdout);
    assert_eq!(answers.lines().count(), 3, "{answers}");
}

#[test]
fn a_repair_of_rows_takes_the_file_of_their_labels() {
    let folder = EmbeddingsFolder::new();
    let data = bank("class", 0, CLASSES, ITEMS, DIM);
    let values = data.all_rows().iter().flat_map(|value| value.to_le_bytes()).collect();
    let mut labels = data.labels().to_vec();
    labels[0] = (labels[0] + 1) % CLASSES as u32;
    let labels = labels.into_iter().flat_map(|label| i64::from(label).to_le_bytes()).collect();
    let rows = data.len();
    std::fs::write(folder.path("lone.npy"), npy("<f4", &format!("{rows}, {DIM}"), values)).unwrap();
    std::fs::write(folder.path("lab.npy"), npy("<i8", &format!("{rows},"), labels)).unwrap();
    let audit = ["audit", "lone.npy", "--labels-of-rows", "lab.npy", "--plan", "plan.jsonl"];
    folder.trueshot(&audit).assert().success();
    let fit = ["fit", "lone.npy", "--labels-of-rows", "lab.npy", "-o", "c.safetensors"];
    let said = text(&folder.trueshot(&fit).assert().success().get_output().stderr);
    assert!(said.contains("`trueshot audit lone.npy --labels-of-rows lab.npy`"), "{said}");
    let repair = ["repair", "plan.jsonl"];
    refused(folder.trueshot(&repair), &["no labels next to", "hint: ", "with --labels-of-rows"]);
    folder.trueshot(&[&repair[..], &["--labels-of-rows", "lab.npy"]].concat()).assert().success();
}

#[test]
fn files_of_another_kind_are_named() {
    let folder = EmbeddingsFolder::new();
    folder.trueshot(&["fit", "data.safetensors", "-o", "c.safetensors"]).assert().success();
    for command in ["audit", "inspect", "eval"] {
        let expected = ["c.safetensors contains a classifier, not embeddings"];
        refused(folder.trueshot(&[command, "c.safetensors"]), &expected);
    }
    let commands: [(&[&str], &str); 2] = [
        (&["predict", "data.safetensors", "data.safetensors"], "a classifier"),
        (&["embed", "omniglot", "-o", "x.safetensors", "-b", "data.safetensors"], "a model"),
    ];
    for (command, wanted) in commands {
        let expected = format!("data.safetensors contains embeddings, not {wanted}");
        refused(folder.trueshot(command), &[expected.as_str()]);
    }
    std::fs::create_dir(folder.path("photos")).unwrap();
    for command in ["inspect", "eval"] {
        refused(folder.trueshot(&[command, "photos"]), &["photos: unknown format", "hint: `trueshot embed`"]);
    }
}

/// A safetensors file with this header and `data` zero bytes after it.
fn safetensors(header: &serde_json::Value, data: usize) -> Vec<u8> {
    let header = header.to_string().into_bytes();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header);
    bytes.resize(bytes.len() + data, 0);
    bytes
}

fn tensor(kind: &str, shape: &[u64], start: u64, end: u64) -> serde_json::Value {
    json!({ "dtype": kind, "shape": shape, "data_offsets": [start, end] })
}

#[test]
fn safetensors_that_are_cut_short_are_refused() {
    let folder = EmbeddingsFolder::new();
    let whole = std::fs::read(folder.path("data.safetensors")).unwrap();
    for length in [0, 7, 8, 100, whole.len() / 2, whole.len() - 1] {
        std::fs::write(folder.path("data.safetensors"), &whole[..length]).unwrap();
        for command in [folder.eval(&[]), folder.trueshot(&["inspect", "data.safetensors"])] {
            refused(command, &["data.safetensors is not a valid safetensors file: "]);
        }
    }
}

#[test]
fn safetensors_that_lie_about_themselves_are_refused() {
    let folder = EmbeddingsFolder::new();
    let labels = tensor("I64", &[2], 0, 16);
    let features = |shape: &[u64], end| tensor("F32", shape, 16, end);
    let lies = [
        json!({ "labels": labels, "features": features(&[2, 1 << 40], 16 + (8 << 40)) }),
        json!({ "labels": labels, "features": features(&[1 << 40, 2], 32) }),
        json!({ "labels": labels, "features": features(&[2, 2, 1], 32) }),
        json!({ "labels": labels }),
        json!({ "features": tensor("F32", &[2, 2], 0, 16) }),
        json!({ "labels": tensor("F32", &[2], 0, 8), "features": tensor("F32", &[2, 2], 8, 24) }),
        json!({ "labels": labels, "features": features(&[2, 2], 32), "__metadata__": { "classes": "a, b" } }),
        json!({ "labels": labels, "features": features(&[2, 2], 32), "__metadata__": { "format": "other/9" } }),
        json!(["no", "object"]),
    ];
    for lie in lies {
        std::fs::write(folder.path("lie.safetensors"), safetensors(&lie, 32)).unwrap();
        let expected = ["lie.safetensors is not a valid safetensors file: "];
        refused(folder.trueshot(&["inspect", "lie.safetensors"]), &expected);
        refused(folder.trueshot(&["eval", "lie.safetensors"]), &expected);
    }
    let mut endless = u64::MAX.to_le_bytes().to_vec();
    endless.extend([b' '; 64]);
    std::fs::write(folder.path("lie.safetensors"), endless).unwrap();
    refused(folder.trueshot(&["eval", "lie.safetensors"]), &["is not a valid safetensors file"]);
}

#[test]
fn labels_that_name_no_class_are_refused() {
    let folder = EmbeddingsFolder::new();
    let header = json!({
        "__metadata__": { "classes": "[]" },
        "labels": tensor("I64", &[2], 0, 16), "features": tensor("F32", &[2, 2], 16, 32),
    });
    std::fs::write(folder.path("lie.safetensors"), safetensors(&header, 32)).unwrap();
    let expected = ["label 0 in row 0 is not a class; there are 0 classes, counted from 0"];
    refused(folder.trueshot(&["eval", "lie.safetensors"]), &expected);
}

#[test]
fn files_that_are_missing_or_of_no_known_kind_are_refused() {
    let folder = EmbeddingsFolder::new();
    std::fs::create_dir(folder.path("folder.safetensors")).unwrap();
    std::fs::write(folder.path("notes.txt"), "hello").unwrap();
    let eval = |path: &str| folder.trueshot(&["eval", path]);
    refused(eval("none.safetensors"), &["cannot read none.safetensors: No such file"]);
    refused(eval("folder.safetensors"), &["it is a folder"]);
    refused(eval("notes.txt"), &["notes.txt: unknown format; supported: .safetensors, .npy"]);
}

#[test]
fn unknown_methods_are_answered_with_the_nearest_name() {
    let folder = EmbeddingsFolder::new();
    let expected =
        ["unknown method 'medain'; known: oracle, protonet, median", "hint: did you mean 'median'?"];
    misused(folder.eval(&["--methods", "protonet,medain"]), &expected);
    misused(folder.eval(&["--methods", "protonet,protonet"]), &["method 'protonet' is given twice"]);
}

#[test]
fn unknown_parameters_are_answered_with_the_nearest_name() {
    let folder = EmbeddingsFolder::new();
    let expected = [
        "method 'median' has no parameter 'step'; it has: steps, eps, hessian",
        "hint: did you mean 'steps'?",
    ];
    misused(folder.eval(&["--methods", "median:step=3"]), &expected);
    misused(
        folder.eval(&["--methods", "matching:T=1"]),
        &["method 'matching' has no parameter 'T'; it has: none"],
    );
}

#[test]
fn bad_values_say_what_is_allowed() {
    let folder = EmbeddingsFolder::new();
    misused(
        folder.eval(&["--methods", "cosine:T=0"]),
        &["method 'cosine': T=0 is not allowed; T is a number above 0"],
    );
    misused(folder.eval(&["--methods", "nearest:k=many"]), &["method 'nearest': k=many is not allowed"]);
}

#[test]
fn mistakes_in_names_are_found_before_the_data_is_read() {
    let folder = EmbeddingsFolder::new();
    misused(
        folder.trueshot(&["eval", "none.safetensors", "--methods", "medain"]),
        &["unknown method 'medain'"],
    );
}

#[test]
fn a_baseline_that_is_not_among_the_methods_is_refused() {
    let folder = EmbeddingsFolder::new();
    let baseline = |name: &str| folder.eval(&["--methods", "median,cosine", "--baseline", name]);
    misused(baseline("medain"), &["baseline 'medain' is not among the methods: median, cosine"]);
    baseline("cosine").assert().success();
    folder.eval(&["--methods", "median,cosine"]).assert().success();
}

#[test]
fn instructions_that_do_not_exist_are_refused() {
    let folder = EmbeddingsFolder::new();
    let mut command = folder.eval(&[]);
    command.env("TRUESHOT_ISA", "nonsense");
    refused(command, &["TRUESHOT_ISA is 'nonsense'; usable on this processor: ", "portable"]);
}

#[test]
fn wrong_usage_has_exit_status_2() {
    let folder = EmbeddingsFolder::new();
    misused(folder.trueshot(&[]), &["Usage: trueshot"]);
    misused(folder.trueshot(&["evil"]), &["unrecognized subcommand 'evil'"]);
    misused(folder.trueshot(&["eval"]), &["<EMBEDDINGS>"]);
    misused(folder.eval(&["--format", "yaml"]), &["possible values: table, json, csv, md, latex, html"]);
    misused(folder.eval(&["--manifest", "m", "--seed", "3"]), &["cannot be used with"]);
    folder.trueshot(&["--help"]).assert().code(0);
    folder.trueshot(&["--version"]).assert().code(0);
}
