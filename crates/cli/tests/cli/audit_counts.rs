//! The same quantity has the same name and value in the table, JSON, CSV, HTML, plan, repair, the HTTP API and the library.
#![cfg(unix)]

use std::collections::HashMap;

use crate::fixture::text;
use crate::photos::PhotoFolder;
use crate::serve::ServerProcess;
use serde_json::{Value, json};
use trueshot::audit::{Action, Audit};
use trueshot::{Embeddings, Verdict};

/// Photos, some of them exchanged, and their rows as the command line embeds them.
fn photos() -> (PhotoFolder, Embeddings) {
    let photos = PhotoFolder::new();
    photos.exchange("rings/0.png", "stripes/0.png");
    photos.exchange("rings/1.png", "checks/5.png");
    photos.trueshot(&["embed", "photos", "-o", "rows.safetensors"]).assert().success();
    let rows = Embeddings::open(photos.path("rows.safetensors")).unwrap();
    (photos, rows)
}

fn by_item(audit: &Value) -> HashMap<&str, &Value> {
    let items = audit["items"].as_array().unwrap();
    items.iter().map(|item| (item["item"].as_str().unwrap(), item)).collect()
}

/// Asserts that two audits in JSON agree: numbers to 1e-5, everything else exactly.
fn assert_same(one: &Value, other: &Value) {
    assert_eq!(one["counts"], other["counts"]);
    assert_close(&one["expected_wrong"], &other["expected_wrong"]);
    let (one, other) = (by_item(one), by_item(other));
    assert_eq!(one.len(), other.len());
    for (name, item) in one {
        let same = other[name];
        for key in ["given", "verdict", "action", "suggested"] {
            assert_eq!(item[key], same[key], "{name}: {key}");
        }
        assert_close(&item["p_wrong"], &same["p_wrong"]);
        assert_close(&item["p_outlier"], &same["p_outlier"]);
        let probable = |item: &Value| item["probable"].as_array().unwrap().clone();
        for (class, same) in probable(item).iter().zip(&probable(same)) {
            assert_eq!(class["class"], same["class"], "{name}");
            assert_close(&class["p"], &same["p"]);
        }
    }
}

fn assert_close(one: &Value, other: &Value) {
    assert!((one.as_f64().unwrap() - other.as_f64().unwrap()).abs() <= 1e-5, "{one} and {other}");
}

#[test]
fn command_line_http_and_library_agree_at_every_certainty() {
    let (photos, rows) = photos();
    let server = ServerProcess::start(&photos.path("data"), &[]);
    let numbers: Vec<Vec<f32>> = (0..rows.len()).map(|row| rows.row(row).into_owned()).collect();
    let labels: Vec<&str> =
        rows.labels().iter().map(|&label| rows.classes()[label as usize].as_str()).collect();
    let items: Vec<&str> = (0..rows.len()).map(|row| rows.item(row).unwrap()).collect();
    let body = json!({ "rows": numbers, "labels": labels, "items": items }).to_string();
    for certainty in ["0.5", "0.75", "0.95", "1"] {
        let shown = photos.audit(&["--format", "json", "--certainty", certainty]).assert().success();
        let shown: Value = serde_json::from_slice(&shown.get_output().stdout).unwrap();
        let path = format!("/api/v1/audit?certainty={certainty}");
        let answer = server.ask("POST", &path, "content-type: application/json\r\n", &body);
        let answer: Value = serde_json::from_str(answer.split_once("\r\n\r\n").unwrap().1).unwrap();
        let found = Audit::of(&rows).certainty(certainty.parse().unwrap()).run().unwrap();
        let found = serde_json::to_value(&found).unwrap();
        assert_same(&shown, &found);
        assert_same(&answer, &found);
    }
}

#[test]
fn every_output_of_one_audit_has_the_same_counts() {
    let (photos, rows) = photos();
    let arguments = ["--html", "a.html", "--json", "a.json", "--csv", "a.csv", "--plan", "plan.jsonl"];
    let done = photos.audit(&[&arguments[..], &["--certainty", "0.9"]].concat()).assert().success();
    let (table, said) = (text(&done.get_output().stdout), text(&done.get_output().stderr));
    let read = |name: &str| std::fs::read_to_string(photos.path(name)).unwrap();
    let (page, csv, plan) = (read("a.html"), read("a.csv"), read("plan.jsonl"));
    let found = Audit::of(&rows).certainty(0.9).run().unwrap();
    let counts = found.counts;
    let json: Value = serde_json::from_str(&read("a.json")).unwrap();
    assert_eq!(json["counts"], serde_json::to_value(counts).unwrap());
    // The verdict and the action of every line.
    let lines: Vec<(&str, &str)> = csv
        .lines()
        .skip(1)
        .map(|line| line.splitn(6, ',').collect::<Vec<_>>())
        .map(|fields| (fields[3], fields[4]))
        .collect();
    for action in Action::ALL {
        let count = counts.of(action);
        assert_eq!(lines.iter().filter(|(_, name)| *name == action.name()).count(), count, "{action:?}");
        assert_eq!(page.matches(&format!("data-action=\"{}\"", action.name())).count(), count, "{action:?}");
        let listed = table.lines().filter(|line| line.contains(&format!("%  {} ", action.name()))).count();
        assert_eq!(listed, if action == Action::Keep { 0 } else { count }, "{table}");
        assert!(count == 0 || table.contains(&format!("{count} to {}", action.name())), "{table}");
    }
    assert!(lines.iter().any(|(verdict, _)| *verdict == Verdict::Keep.name()));
    let changes = counts.relabel + counts.quarantine;
    assert_eq!(plan.lines().filter(|line| line.starts_with("{\"item\"")).count(), changes);
    assert_eq!(plan.lines().filter(|line| line.starts_with("# {\"item\"")).count(), counts.review);
    let planned = format!(
        "{} to relabel, {} to quarantine, {} to review",
        counts.relabel, counts.quarantine, counts.review
    );
    assert!(said.contains(&format!("plan.jsonl: {planned}")), "{said}");
    let repair = photos.trueshot(&["repair", "plan.jsonl"]).assert().success();
    let repair = text(&repair.get_output().stdout);
    assert!(repair.contains(&planned), "{repair}");
    assert_eq!(repair.matches(" -> ").count(), changes, "items to review are left alone: {repair}");
    let check = photos.audit(&["--check", "--certainty", "0.9"]).assert().code(3);
    let check = text(&check.get_output().stderr);
    assert!(check.contains(&format!("{} suspect labels found", counts.suspect)), "{check}");
}

#[test]
fn an_edited_plan_does_not_repeat_the_accuracy_of_the_original() {
    let (photos, _) = photos();
    photos.audit(&["--plan", "plan.jsonl"]).assert().success();
    let shown = |photos: &PhotoFolder| {
        text(&photos.trueshot(&["repair", "plan.jsonl"]).assert().success().get_output().stdout)
    };
    assert!(shown(&photos).contains("leave-one-out accuracy"), "{}", shown(&photos));
    let plan = std::fs::read_to_string(photos.path("plan.jsonl")).unwrap();
    let mut lines: Vec<&str> = plan.lines().collect();
    lines.remove(1);
    std::fs::write(photos.path("plan.jsonl"), lines.join("\n")).unwrap();
    assert!(!shown(&photos).contains("leave-one-out accuracy"), "{}", shown(&photos));
}
