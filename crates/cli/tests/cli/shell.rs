//! Tests of `trueshot completions` and `trueshot man`.

use std::process::Command;

use crate::fixture::{EmbeddingsFolder, TRUESHOT, misused, text};

fn script(shell: &str) -> String {
    let output = Command::new(TRUESHOT).args(["completions", shell]).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout)
}

/// The completions of bash for these words, the last of which is incomplete.
fn completed_by_bash(words: &[&str]) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("trueshot.bash");
    std::fs::write(&path, script("bash")).unwrap();
    let line = format!(
        "source {}; COMP_WORDS=({}); COMP_CWORD={}; _trueshot trueshot '{}' '{}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        path.display(),
        words.join(" "),
        words.len() - 1,
        words[words.len() - 1],
        words[words.len() - 2],
    );
    let checked = Command::new("bash").arg("-n").arg(&path).output().unwrap();
    assert!(checked.status.success() && checked.stderr.is_empty(), "{}", text(&checked.stderr));
    let output = Command::new("bash").args(["--norc", "-c", &line]).output().unwrap();
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(str::to_owned).collect()
}

#[cfg(unix)]
#[test]
fn bash_completes_commands_and_their_options() {
    assert_eq!(completed_by_bash(&["trueshot", "aud"]), ["audit"]);
    assert_eq!(completed_by_bash(&["trueshot", "train", "back"]), ["backbone"]);
    assert_eq!(completed_by_bash(&["trueshot", "repair", "--into"]), ["--into"]);
    assert_eq!(completed_by_bash(&["trueshot", "audit", "--format", ""]), ["table", "json", "csv"]);
}

#[test]
fn every_shell_has_a_script_that_names_the_commands() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = script(shell);
        assert!(script.contains("audit") && script.contains("certainty"), "{shell}");
    }
    let folder = EmbeddingsFolder::new();
    misused(folder.trueshot(&["completions", "tcsh"]), &["tcsh", "bash", "zsh", "fish"]);
}

#[test]
fn examples_fit_into_80_columns() {
    let folder = EmbeddingsFolder::new();
    folder.trueshot(&["man", "--out", "man"]).assert().success();
    for page in std::fs::read_dir(folder.path("man")).unwrap() {
        let page = std::fs::read_to_string(page.unwrap().path()).unwrap().replace("\\-", "-");
        let examples = page.split_once("\n.nf\n").map_or("", |(_, examples)| examples);
        let mut lines = examples.lines().take_while(|line| *line != ".fi");
        assert!(lines.all(|line| line.chars().count() <= 80), "{examples}");
    }
}

#[test]
fn there_is_a_manual_page_for_every_command_and_the_main_one_is_printed() {
    let folder = EmbeddingsFolder::new();
    let main = text(&folder.trueshot(&["man"]).assert().success().get_output().stdout);
    assert!(main.contains(".TH trueshot 1") && main.contains("trueshot\\-audit(1)"), "{main}");
    folder.trueshot(&["man", "--out", "man/man1"]).assert().success().stdout("");
    let page = |name: &str| std::fs::read_to_string(folder.path("man/man1").join(name)).unwrap();
    assert_eq!(page("trueshot.1"), main);
    let audit = page("trueshot-audit.1");
    for part in [".SH NAME", ".SH SYNOPSIS", ".SH DESCRIPTION", ".SH OPTIONS", ".SH EXAMPLES", "certainty"] {
        assert!(audit.contains(part), "'{part}' is missing in: {audit}");
    }
    assert!(audit.contains(".SH EXAMPLES\n.nf\nExamples:\n") && audit.ends_with("\n.fi\n"), "{audit}");
    assert!(main.contains("\n.fi\n.SH VERSION\n"), "{main}");
    assert!(page("trueshot-train-backbone.1").contains("trueshot train backbone"));
    let pages = std::fs::read_dir(folder.path("man/man1")).unwrap().count();
    let commands = text(&folder.trueshot(&["--help"]).assert().success().get_output().stdout);
    let listed =
        commands.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    assert!(pages > listed.count(), "{pages} pages");
    // `man` accepts the pages, if it is installed.
    if let Ok(shown) =
        Command::new("man").args(["--warnings", "-l"]).arg(folder.path("man/man1/trueshot-audit.1")).output()
    {
        assert!(shown.status.success() && shown.stderr.is_empty(), "{}", text(&shown.stderr));
        assert!(text(&shown.stdout).contains("SYNOPSIS"));
    }
}
