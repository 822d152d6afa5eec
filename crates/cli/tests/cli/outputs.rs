//! Tests of outputs: where results are written, and what is left if writing fails.

use crate::fixture::{EmbeddingsFolder, refused, text};

#[test]
fn data_goes_to_standard_output_and_messages_to_standard_error() {
    let folder = EmbeddingsFolder::new();
    let assert =
        folder.eval(&["--html", "page.html", "--write-manifest", "m.jsonl", "-f", "json"]).assert().code(0);
    let output = assert.get_output();
    serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap();
    let messages = text(&output.stderr);
    assert!(messages.contains("wrote 30 episodes to m.jsonl") && messages.contains("wrote page.html"));
    folder.eval(&["-f", "json"]).assert().success().stderr("");
}

#[test]
fn a_result_written_to_a_file_is_the_one_that_would_be_printed() {
    let folder = EmbeddingsFolder::new();
    let printed = folder.stdout(&["--format", "csv"]);
    folder.eval(&["--format", "csv", "-o", "found.csv"]).assert().success().stdout("").stderr("");
    assert_eq!(std::fs::read_to_string(folder.path("found.csv")).unwrap(), printed);
    folder.eval(&["--format", "csv", "--seed", "5", "-o", "found.csv"]).assert().success();
    assert_ne!(std::fs::read_to_string(folder.path("found.csv")).unwrap(), printed);
    assert_eq!(folder.files(), ["data.safetensors", "found.csv", "outliers.safetensors"]);
}

#[test]
fn no_command_writes_over_a_file_that_it_reads() {
    let folder = EmbeddingsFolder::new();
    let data = "data.safetensors";
    let before = std::fs::read(folder.path(data)).unwrap();
    let same = format!("./{data}");
    for arguments in [
        &["fit", data, "-m", "median", "-o", &same][..],
        &["audit", data, "--json", &same],
        &["audit", data, "--plan", &same],
        &["eval", data, "--episodes", "5", "--html", &same],
        &["eval", data, "--episodes", "5", "--write-manifest", &same],
        &["inspect", data, "-o", &same],
    ] {
        let expected = format!("{same} is read by this command: write to another file");
        refused(folder.trueshot(arguments), &[&expected]);
        assert!(std::fs::read(folder.path(data)).unwrap() == before, "{arguments:?}");
    }
}

#[test]
fn no_command_writes_over_an_image() {
    let folder = EmbeddingsFolder::new();
    std::fs::create_dir_all(folder.path("photos/owl")).unwrap();
    std::fs::write(folder.path("photos/owl/1.JPG"), "a photo").unwrap();
    for arguments in [
        &["audit", "photos", "--csv", "photos/owl/1.JPG"][..],
        &["audit", "data.safetensors", "--html", "photos/owl/1.JPG"],
        &["predict", "classifier.safetensors", "photos", "-o", "photos/owl/1.JPG"],
        &["repair", "plan.jsonl", "--labels", "photos/owl/1.JPG"],
    ] {
        refused(folder.trueshot(arguments), &["photos/owl/1.JPG is an image: write to another file"]);
        assert_eq!(std::fs::read(folder.path("photos/owl/1.JPG")).unwrap(), b"a photo", "{arguments:?}");
    }
}

#[test]
fn two_outputs_of_one_command_are_different_files() {
    let folder = EmbeddingsFolder::new();
    let before = folder.files();
    let data = "data.safetensors";
    for arguments in [
        &["audit", data, "--html", "same", "--plan", "./same"][..],
        &["audit", data, "--csv", "same", "-o", "./same"],
        &["eval", data, "--episodes", "5", "-o", "same", "--html", "./same"],
        &["embed", "omniglot", "-o", "same.safetensors", "--skipped", "./same.safetensors"],
        &["repair", "plan.jsonl", "--labels", "same", "--label-studio", "./same"],
        &["repair", "plan.jsonl", "--labels", "same.zip", "--into", "./same.zip"],
    ] {
        refused(folder.trueshot(arguments), &["./same", " is given for two outputs"]);
        assert_eq!(folder.files(), before, "{arguments:?}");
    }
}

#[test]
#[cfg(unix)]
fn two_outputs_of_one_command_may_be_the_same_device() {
    let folder = EmbeddingsFolder::new();
    folder.eval(&["--html", "/dev/null", "-o", "/dev/null"]).assert().success();
}

#[test]
fn a_path_in_a_folder_that_does_not_exist_is_refused_before_any_work() {
    let folder = EmbeddingsFolder::new();
    // Enough episodes for a day: the error must come first.
    for option in ["--output", "--html", "--write-manifest"] {
        let command = folder.eval(&["--episodes=1000000000", option, "nowhere/found"]);
        refused(command, &["cannot write nowhere/found: nowhere is not a folder"]);
    }
    std::fs::create_dir(folder.path("taken")).unwrap();
    refused(folder.eval(&["--episodes=1000000000", "-o", "taken"]), &["cannot write taken: it is a folder"]);
}

#[test]
#[cfg(target_os = "linux")]
fn a_folder_that_cannot_be_written_is_an_error_with_the_path() {
    let folder = EmbeddingsFolder::new();
    refused(folder.eval(&["-o", "/proc/found.txt"]), &["cannot write /proc/found.txt: "]);
    refused(
        folder.trueshot(&["inspect", "data.safetensors", "-o", "/proc/found.txt"]),
        &["cannot write /proc/"],
    );
}

#[test]
#[cfg(target_os = "linux")]
fn standard_output_on_a_full_disk_is_a_failure() {
    let folder = EmbeddingsFolder::new();
    let script = "\"$0\" eval data.safetensors --episodes 30 > /dev/full";
    let mut command = folder.command("sh");
    command.args(["-c", script, crate::fixture::TRUESHOT]);
    refused(command, &["cannot write to standard output: No space left on device"]);
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_device_is_a_failure_and_stays_a_device() {
    let folder = EmbeddingsFolder::new();
    // Through a link, so that an error in the program replaces the link and not the device.
    std::os::unix::fs::symlink("/dev/full", folder.path("full")).unwrap();
    let before = folder.files();
    for option in ["--output", "--html", "--write-manifest"] {
        refused(folder.eval(&[option, "full"]), &["cannot write full: No space left on device"]);
        assert!(folder.path("full").is_symlink(), "{option}");
        assert_eq!(folder.files(), before);
    }
}

/// Runs with a limit of a few kilobytes per file, which fails like a full disk.
#[cfg(unix)]
fn on_a_full_disk(folder: &EmbeddingsFolder, arguments: &[&str]) -> assert_cmd::Command {
    let script = "trap '' XFSZ; ulimit -f 4; exec \"$0\" eval data.safetensors --episodes 30 \"$@\"";
    let mut command = folder.command("sh");
    command.args(["-c", script, crate::fixture::TRUESHOT]).args(arguments);
    command
}

#[test]
#[cfg(unix)]
fn a_full_disk_leaves_nothing_half_written() {
    let folder = EmbeddingsFolder::new();
    let before = folder.files();
    for arguments in
        [&["-f", "html", "-o", "found"][..], &["--html", "found"], &["--write-manifest", "found"]]
    {
        refused(on_a_full_disk(&folder, arguments), &["cannot write found: "]);
        assert_eq!(folder.files(), before);
    }
}

#[test]
#[cfg(unix)]
fn a_full_disk_leaves_the_old_file_as_it_was() {
    let folder = EmbeddingsFolder::new();
    std::fs::write(folder.path("found"), "old").unwrap();
    let before = folder.files();
    refused(on_a_full_disk(&folder, &["-f", "html", "-o", "found"]), &["cannot write found: "]);
    assert_eq!(std::fs::read_to_string(folder.path("found")).unwrap(), "old");
    assert_eq!(folder.files(), before);
}

#[test]
#[cfg(unix)]
fn a_link_to_a_file_stays_a_link() {
    let folder = EmbeddingsFolder::new();
    std::fs::write(folder.path("behind"), "old").unwrap();
    std::os::unix::fs::symlink("behind", folder.path("link")).unwrap();
    folder.eval(&["-o", "link"]).assert().success();
    assert!(folder.path("link").is_symlink());
    assert!(std::fs::read_to_string(folder.path("behind")).unwrap().starts_with("5-way"));
}

#[test]
#[cfg(unix)]
fn a_command_succeeds_if_the_reader_of_its_output_ends_early() {
    let folder = EmbeddingsFolder::new();
    // `false` reads nothing, so the pipe is closed at once.
    for (command, reader) in [
        ("eval data.safetensors --episodes 30 -f html", "head -1"),
        ("eval data.safetensors --episodes 30", "false"),
        ("eval --list-methods", "false"),
        ("inspect data.safetensors", "false"),
        ("bench --only eval_nothing", "cat"),
    ] {
        let script = format!("{{ \"$0\" {command}; echo status $? >&2; }} | {reader}");
        let output = folder.command("sh").args(["-c", &script, crate::fixture::TRUESHOT]).output().unwrap();
        let messages = text(&output.stderr);
        match command.starts_with("bench") {
            true => assert!(messages.ends_with("status 1\n"), "{messages}"),
            false => assert_eq!(messages, "status 0\n", "{command} | {reader}"),
        }
    }
}

#[test]
#[cfg(target_os = "linux")]
fn ctrl_c_prints_what_is_done_so_far() {
    let folder = EmbeddingsFolder::new();
    let arguments = ["eval", "data.safetensors", "--episodes", "1000000000", "--methods", "protonet,median"];
    let output = interrupted(&folder, &arguments);
    let (shown, messages) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(130), "{messages}");
    assert_eq!(messages, "stopped early: the results cover the episodes finished so far\n");
    assert!(shown.lines().next().unwrap().contains("episodes, stopped early, seed 0"), "{shown}");
    assert!(shown.contains("Accuracy in percent") && shown.contains("\n  median"), "{shown}");
}

#[test]
#[cfg(target_os = "linux")]
fn ctrl_c_in_the_demo_prints_what_is_done_so_far() {
    let folder = EmbeddingsFolder::new();
    let output = interrupted(&folder, &["demo", "--episodes", "1000000000", "--threads", "2"]);
    let (shown, messages) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(130), "{messages}");
    assert!(
        messages.ends_with("stopped early: the results cover the episodes finished so far\n"),
        "{messages}"
    );
    assert!(shown.contains("2. METHODS") && shown.contains(" episodes, stopped early, seed 0"), "{shown}");
}

#[test]
#[cfg(target_os = "linux")]
fn ctrl_c_in_predict_is_a_failure_because_answers_are_missing() {
    let folder = EmbeddingsFolder::new();
    folder.trueshot(&["fit", "data.safetensors", "-o", "classifier.safetensors"]).assert().success();
    crate::fixture::bank("class", 0, 8, 40_000, 16).write(folder.path("many.safetensors")).unwrap();
    let predict =
        ["predict", "classifier.safetensors", "many.safetensors", "--format", "csv", "-o", "answers.csv"];
    let output = interrupted(&folder, &predict);
    assert_eq!((output.status.code(), text(&output.stderr)), (Some(130), "error: interrupted\n".into()));
}

/// The output of a command that gets Ctrl-C as soon as it handles it.
#[cfg(target_os = "linux")]
fn interrupted(folder: &EmbeddingsFolder, arguments: &[&str]) -> std::process::Output {
    let child = std::process::Command::new(crate::fixture::TRUESHOT)
        .args(arguments)
        .current_dir(folder.path(""))
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let process = child.id().to_string();
    while !catches_interrupts(&process) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    std::process::Command::new("kill").args(["-INT", &process]).status().unwrap();
    child.wait_with_output().unwrap()
}

/// Whether a process handles Ctrl-C: bit 1 of the signals it catches.
#[cfg(target_os = "linux")]
fn catches_interrupts(process: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).expect("it is still running");
    let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).expect("Linux lists signals");
    u64::from_str_radix(caught.trim(), 16).unwrap() & 2 != 0
}
