//! Tests of `trueshot demo`, which needs neither files nor a network.

use std::path::Path;

use crate::fixture::{EmbeddingsFolder, TRUESHOT, refused, text};

#[test]
fn the_demo_cleans_a_folder_compares_methods_and_writes_a_page_about_each() {
    let folder = EmbeddingsFolder::new();
    let assert = folder.trueshot(&["demo", "--episodes", "5", "-o", "page.html"]).assert().success();
    let shown = text(&assert.get_output().stdout);
    let (cleaned, methods) = shown.split_once("\n2. METHODS").unwrap();
    assert!(cleaned.starts_with("1. A FOLDER OF PICTURES"), "{cleaned}");
    assert!(cleaned.contains("60 items of 6 classes: 6 to relabel, 54 to keep\n"), "{cleaned}");
    assert!(
        cleaned.contains("54 of 60 drawings were in the right folder, and 60 are after the repair"),
        "{cleaned}"
    );
    assert!(cleaned.contains("page-audit.html") && !cleaned.contains("trueshot serve"), "{cleaned}");
    assert!(methods.contains("10-way 5-shot, 10 queries per class, 5 episodes, seed 0\n"), "{methods}");
    assert!(methods.contains("\n  tranfs "), "{methods}");
    assert!(methods.trim_end().lines().last().unwrap().contains("page.html"), "{methods}");

    let page = std::fs::read_to_string(folder.path("page.html")).unwrap();
    assert!(page.contains("<svg") && page.trim_end().ends_with("</html>"));
    assert_eq!(page.matches("<li class=\"right\">").count(), 15, "three of five in five classes");
    assert_eq!(page.matches("<li class=\"wrong\">").count(), 10, "two of five in five classes");
    assert_eq!(page.matches("<img src=\"data:image/png;base64,").count(), 25);
    assert!(!page.contains("NaN"));
    let audit = std::fs::read_to_string(folder.path("page-audit.html")).unwrap();
    assert!(audit.contains("data:image/png;base64,") && audit.trim_end().ends_with("</html>"));
}

#[test]
fn the_folder_of_the_demo_is_cleaned_by_the_commands_that_the_demo_names() {
    let folder = EmbeddingsFolder::new();
    let demo = folder.trueshot(&["demo", "--episodes", "5", "--folder", "drawings"]).assert().success();
    let shown = text(&demo.get_output().stdout);
    assert_eq!(wrongly_sorted(&folder.path("drawings")), 6, "one in each of six folders");
    let commands = shown.lines().filter_map(|line| line.strip_prefix("  trueshot "));
    let commands: Vec<Vec<&str>> = commands.map(|line| line.split_whitespace().collect()).collect();
    let [audit, repair, serve] = &commands[..] else { panic!("{shown}") };
    assert_eq!(serve[0], "serve");
    let audited = folder.trueshot(audit).arg("--no-cache").assert().success();
    let table = text(&audited.get_output().stdout);
    assert!(shown.contains(&*table), "the demo shows the table of the audit:\n{table}");
    folder.trueshot(repair).assert().success();
    assert_eq!(wrongly_sorted(&folder.path("drawings-clean")), 0);
}

#[test]
fn the_commands_of_the_demo_run_in_a_shell_for_a_folder_with_a_space_and_a_slash_at_the_end() {
    let folder = EmbeddingsFolder::new();
    let demo = folder.trueshot(&["demo", "--episodes", "5", "--folder", "my drawings/"]).assert().success();
    let shown = text(&demo.get_output().stdout);
    let commands: Vec<&str> =
        shown.lines().map(str::trim_start).filter(|line| line.starts_with("trueshot ")).collect();
    let [audit, repair, _serve] = commands[..] else { panic!("{shown}") };
    for command in [audit, repair] {
        let in_shell = format!("trueshot() {{ {} \"$@\"; }}; {command}", TRUESHOT);
        folder.command("sh").args(["-c", &in_shell]).assert().success();
    }
    assert_eq!(wrongly_sorted(&folder.path("my drawings-clean")), 0);
}

/// Number of drawings whose name is not that of their folder.
fn wrongly_sorted(folder: &Path) -> usize {
    let mut wrong = 0;
    for class in std::fs::read_dir(folder).unwrap().map(Result::unwrap).filter(|entry| entry.path().is_dir())
    {
        let class_name = class.file_name().into_string().unwrap();
        for drawing in std::fs::read_dir(class.path()).unwrap() {
            let name = drawing.unwrap().file_name().into_string().unwrap();
            wrong += usize::from(!name.starts_with(&class_name));
        }
    }
    wrong
}

#[test]
fn the_demo_refuses_a_folder_with_something_in_it_before_any_work() {
    let folder = EmbeddingsFolder::new();
    std::fs::create_dir(folder.path("full")).unwrap();
    std::fs::write(folder.path("full/mine.txt"), "mine").unwrap();
    for name in ["full", "full/mine.txt"] {
        let command = folder.trueshot(&["demo", "--episodes", "1000000000", "--folder", name]);
        refused(command, &[&format!("{name} exists and is not an empty folder")]);
    }
    assert!(!folder.path("report.html").exists());
}

#[test]
fn the_demo_refuses_a_page_it_cannot_write_before_any_work() {
    let folder = EmbeddingsFolder::new();
    let command = folder.trueshot(&["demo", "--episodes", "1000000000", "-o", "nowhere/page.html"]);
    refused(command, &["cannot write nowhere/page.html: nowhere is not a folder"]);
}

#[test]
#[cfg(unix)]
fn the_demo_succeeds_if_the_reader_of_its_output_ends_early() {
    let folder = EmbeddingsFolder::new();
    let script = "{ \"$0\" demo --episodes 5; echo status $? >&2; } | false";
    let output = folder.command("sh").args(["-c", script, crate::fixture::TRUESHOT]).output().unwrap();
    let messages = text(&output.stderr);
    assert!(messages.ends_with("status 0\n") && !messages.contains("panicked"), "{messages}");
}
