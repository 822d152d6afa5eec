//! Tests of `trueshot inspect`: what it shows about a file, and which problems it finds.

use crate::fixture::{EmbeddingsFolder, text};
use serde_json::Value;

fn inspect(folder: &EmbeddingsFolder, arguments: &[&str]) -> String {
    let command = [&["inspect", "data.safetensors"], arguments].concat();
    text(&folder.trueshot(&command).assert().success().stderr("").get_output().stdout)
}

#[test]
fn a_good_file_is_described_without_a_warning() {
    let shown = inspect(&EmbeddingsFolder::new(), &[]);
    for part in ["data.safetensors", "320 rows of 16 (f32)", "8, each of 40 rows", "class 7"] {
        assert!(shown.contains(part), "'{part}' is missing in: {shown}");
    }
    assert!(!shown.contains("warning"), "{shown}");
    assert!(shown.lines().all(|line| line.chars().count() <= 80), "{shown}");
}

#[test]
fn json_says_the_same_for_programs() {
    let folder = EmbeddingsFolder::new();
    let found: Value = serde_json::from_str(&inspect(&folder, &["--format", "json"])).unwrap();
    assert_eq!((found["rows"].as_u64(), found["dim"].as_u64()), (Some(320), Some(16)));
    assert_eq!(found["classes"][7]["name"], "class 7");
    assert_eq!(found["non_finite"]["count"], 0);
    assert_eq!(found["warnings"], serde_json::json!([]));
    assert_eq!(found["fingerprint"], folder.json(&[])["embeddings"]["fingerprint"]);
    inspect(&folder, &["--format", "json", "-o", "found.json"]);
    let written = std::fs::read(folder.path("found.json")).unwrap();
    assert_eq!(serde_json::from_slice::<Value>(&written).unwrap(), found);
}

#[test]
fn values_that_are_not_finite_are_counted_and_the_first_is_named() {
    let folder = EmbeddingsFolder::new();
    folder.spoil(300, 1, f32::INFINITY);
    folder.spoil(12, 5, f32::NAN);
    let shown = inspect(&folder, &[]);
    assert!(shown.contains("2 values, the first NaN in row 12, column 5"), "{shown}");
    assert!(shown.contains("warning: 2 values are not finite, the first in row 12, column 5"), "{shown}");
    let found: Value = serde_json::from_str(&inspect(&folder, &["--format", "json"])).unwrap();
    assert_eq!(found["non_finite"]["first"], serde_json::json!({ "row": 12, "column": 5, "value": "NaN" }));
    assert!(found["fingerprint"].is_null());
}

#[test]
fn the_same_row_in_two_classes_is_a_warning() {
    let folder = EmbeddingsFolder::new();
    for row in [0, 319] {
        (0..16).for_each(|column| folder.spoil(row, column, column as f32));
    }
    let shown = inspect(&folder, &[]);
    assert!(shown.contains("warning: 1 set of identical rows crosses classes"), "{shown}");
}
