//! Test of `trueshot demo`: it runs without a file or a network.

use crate::fixture::{EmbeddingsFolder, refused, text};

#[test]
fn the_demo_prints_tables_and_writes_a_page_with_a_noisy_support_set() {
    let folder = EmbeddingsFolder::new();
    let assert = folder.trueshot(&["demo", "--episodes", "5", "-o", "page.html"]).assert().success();
    let shown = text(&assert.get_output().stdout);
    assert!(shown.starts_with("10-way 5-shot, 10 queries per class, 5 episodes, seed 0\n"), "{shown}");
    assert!(shown.trim_end().lines().last().unwrap().contains("page.html"), "{shown}");
    let page = std::fs::read_to_string(folder.path("page.html")).unwrap();
    assert!(page.contains("<svg") && page.trim_end().ends_with("</html>"));
    assert_eq!(page.matches("<li class=\"right\">").count(), 15, "three of five in five classes");
    assert_eq!(page.matches("<li class=\"wrong\">").count(), 10, "two of five in five classes");
    assert_eq!(page.matches("<img src=\"data:image/png;base64,").count(), 25);
    assert!(!page.contains("NaN"));
}

#[test]
fn the_demo_refuses_a_page_it_cannot_write_before_any_work() {
    let folder = EmbeddingsFolder::new();
    let command = folder.trueshot(&["demo", "--episodes", "1000000000", "-o", "nowhere/page.html"]);
    refused(command, &["cannot write nowhere/page.html: nowhere is not a folder"]);
}

#[test]
#[cfg(unix)]
fn whoever_has_seen_enough_of_the_demo_may_close_the_pipe() {
    let folder = EmbeddingsFolder::new();
    let script = "{ \"$0\" demo --episodes 5; echo status $? >&2; } | false";
    let output = folder.command("sh").args(["-c", script, crate::fixture::TRUESHOT]).output().unwrap();
    let messages = text(&output.stderr);
    assert!(messages.ends_with("status 0\n") && !messages.contains("panicked"), "{messages}");
}
