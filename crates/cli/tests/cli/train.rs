//! Tests of `trueshot train` on small data with small models: interrupted, resumed and misused.

use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::fixture::{
    CLASSES, EmbeddingsFolder, TRUESHOT, bank, misused, refused, refused_after_reading, text,
};
use assert_cmd::Command;
use trueshot::embeddings::Items;

/// A model and a run small enough for a test.
const SMALL: [&str; 22] = [
    "--layers",
    "1",
    "--width",
    "16",
    "--heads",
    "2",
    "--feed-forward",
    "16",
    "--per-step",
    "4",
    "--ways",
    "3",
    "--shots",
    "5",
    "--queries",
    "5",
    "--val-queries",
    "5",
    "--val-every",
    "20",
    "--val-episodes",
    "20",
];

struct TrainingFolder {
    folder: EmbeddingsFolder,
}

impl TrainingFolder {
    fn new() -> Self {
        let folder = EmbeddingsFolder::new();
        bank("unseen", 7, 6, 30, crate::fixture::DIM).write(folder.path("val.safetensors")).unwrap();
        TrainingFolder { folder }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path(name)
    }

    /// `train tranfs data.safetensors --val val.safetensors` with a small model.
    fn arguments<'a>(&self, output: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let mut all = vec!["train", "tranfs", "data.safetensors", "--val", "val.safetensors", "-o", output];
        let small = SMALL.chunks(2).filter(|flag| !more.contains(&flag[0]));
        all.extend(small.flatten().copied());
        all.extend(more);
        all
    }

    fn train(&self, output: &str, more: &[&str]) -> Command {
        self.folder.trueshot(&self.arguments(output, more))
    }

    fn spawn(&self, output: &str, more: &[&str]) -> Child {
        let mut command = std::process::Command::new(TRUESHOT);
        command.current_dir(self.path("")).args(self.arguments(output, more));
        command.stderr(Stdio::piped()).spawn().unwrap()
    }

    /// A run that was stopped by Ctrl-C after its first metrics; returns its messages.
    fn stopped(&self, output: &str) -> String {
        let child = self.spawn(output, &ENDLESS);
        wait_for(&self.path(output).with_extension("metrics.jsonl"), 1);
        interrupt(&child);
        let finished = child.wait_with_output().unwrap();
        assert_eq!(finished.status.code(), Some(130));
        text(&finished.stderr)
    }
}

/// Options of a run that does not end by itself within a test.
const ENDLESS: [&str; 4] = ["--steps", "1000000", "--record-every", "5"];

/// Sends Ctrl-C (SIGINT).
fn interrupt(child: &Child) {
    let sent = std::process::Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(sent.success());
}

/// Waits until a file has `lines` lines.
fn wait_for(path: &Path, lines: usize) {
    let start = Instant::now();
    while std::fs::read_to_string(path).map_or(0, |text| text.lines().count()) < lines {
        assert!(start.elapsed() < Duration::from_secs(60), "nothing in {}", path.display());
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn metrics_without_times(path: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(path.with_extension("metrics.jsonl")).unwrap();
    text.lines().map(|line| line.split(",\"seconds\"").next().unwrap().to_string()).collect()
}

#[test]
fn a_trained_tranfs_is_a_method_like_any_other() {
    let folder = TrainingFolder::new();
    let more = ["--steps", "400", "--class-tokens", "mean", "--val-every", "100", "--rate", "0.003"];
    let assert = folder.train("m.safetensors", &more).assert().success();
    let said = text(&assert.get_output().stderr);
    assert!(said.contains("step 400/400  loss ") && said.contains("validation "), "{said}");
    assert!(said.contains("m.safetensors: the model of step "), "{said}");
    let files = folder.folder.files();
    for name in ["m.safetensors", "m.toml", "m.metrics.jsonl", "m.curves.svg"] {
        assert!(files.contains(&name.to_string()), "{name} in {files:?}");
    }
    assert!(!files.contains(&"m.checkpoint".to_string()), "a finished run needs none");
    let eval = ["eval", "val.safetensors", "--ways", "3", "--queries", "5", "-e", "200", "--noise"];
    let methods = [
        "symmetric=0,20",
        "--methods",
        "protonet,tranfs:model=m.safetensors,tranfs:model=m.safetensors:orders=3:as=three",
    ];
    let json = [&eval[..], &methods[..], &["--format", "json"]].concat();
    let shown = folder.folder.trueshot(&json).assert().success();
    let found: serde_json::Value = serde_json::from_slice(&shown.get_output().stdout).unwrap();
    let methods = found["settings"][1]["methods"].as_array().unwrap();
    let names: Vec<&str> = methods.iter().map(|method| method["method"].as_str().unwrap()).collect();
    assert_eq!(names, ["protonet", "tranfs:model=m", "three"]);
    assert!(methods[1]["accuracy"].as_f64().unwrap() > 60.0, "{methods:?}");
    assert!(methods[1]["detection"]["calibration_error"].is_number(), "{methods:?}");
}

#[test]
fn a_run_killed_at_any_moment_goes_on_to_the_same_bytes() {
    let folder = TrainingFolder::new();
    let more = ["--steps", "150", "--record-every", "7", "--save-every", "0"];
    folder.train("whole.safetensors", &more).assert().success();
    let mut child = folder.spawn("parts.safetensors", &more);
    wait_for(&folder.path("parts.metrics.jsonl"), 3);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(folder.path("parts.checkpoint").exists(), "it was killed before its end");
    let again = folder.train("parts.safetensors", &[&more[..], &["--resume"]].concat()).assert().success();
    assert!(text(&again.get_output().stderr).contains("resuming after step "));
    let read = |name: &str| std::fs::read(folder.path(name)).unwrap();
    assert_eq!(read("whole.safetensors"), read("parts.safetensors"));
    let metrics = |name: &str| metrics_without_times(&folder.path(name));
    assert_eq!(metrics("whole.safetensors"), metrics("parts.safetensors"));
    assert_eq!(read("whole.curves.svg"), read("parts.curves.svg"));
    // Resuming a finished run does nothing; starting it again needs --overwrite.
    folder.train("parts.safetensors", &[&more[..], &["--resume"]].concat()).assert().success();
    refused(folder.train("parts.safetensors", &more), &["parts.safetensors already exists", "--overwrite"]);
}

/// The files of a run with their contents, the metrics without times.
fn files_of(folder: &TrainingFolder, name: &str) -> Vec<(&'static str, String)> {
    let read = |extension: &'static str| {
        let bytes = std::fs::read(folder.path(name).with_extension(extension)).unwrap();
        match extension {
            "metrics.jsonl" => metrics_without_times(&folder.path(name)).join("\n"),
            _ => String::from_utf8_lossy(&bytes).into_owned(),
        }
    };
    ["safetensors", "toml", "metrics.jsonl", "curves.svg"]
        .map(|extension| (extension, read(extension)))
        .into()
}

#[test]
fn of_two_trainings_started_at_once_on_one_output_one_runs_and_the_other_names_it() {
    let folder = TrainingFolder::new();
    let seeds = ["1", "2"];
    // Long enough for the second run to start before the first ends, even on a busy machine.
    let more = |seed| ["--steps", "600", "--record-every", "7", "--seed", seed];
    let whole = seeds.map(|seed| {
        let name = format!("whole{seed}.safetensors");
        folder.train(&name, &more(seed)).assert().success();
        files_of(&folder, &name)
    });
    let files = folder.folder.files();
    for _ in 0..4 {
        let children = seeds.map(|seed| folder.spawn("m.safetensors", &more(seed)));
        let processes = children.each_ref().map(Child::id);
        let ended = children.map(|child| child.wait_with_output().unwrap());
        let codes = ended.each_ref().map(|ended| ended.status.code());
        let winner = match codes {
            [Some(0), Some(1)] => 0,
            [Some(1), Some(0)] => 1,
            other => panic!("{other:?}: {} {}", text(&ended[0].stderr), text(&ended[1].stderr)),
        };
        let message = text(&ended[1 - winner].stderr);
        let holder =
            format!("error: m.safetensors is in use by process {} (trueshot train)", processes[winner]);
        assert!(message.contains(&holder), "{message}");
        assert!(message.contains("hint: nothing was changed"), "{message}");
        assert_eq!(files_of(&folder, "m.safetensors"), whole[winner]);
        for (extension, _) in &whole[winner] {
            std::fs::remove_file(folder.path("m.safetensors").with_extension(extension)).unwrap();
        }
        assert_eq!(folder.folder.files(), files, "nothing else is left");
    }
}

#[test]
fn a_training_that_comes_second_changes_nothing_and_a_killed_one_blocks_nobody() {
    let folder = TrainingFolder::new();
    let mut first = folder.spawn("m.safetensors", &ENDLESS);
    wait_for(&folder.path("m.metrics.jsonl"), 1);
    for more in [&[][..], &["--resume"], &["--overwrite"]] {
        let second = folder.train("m.safetensors", &[&ENDLESS, more].concat());
        refused_after_reading(second, &[&format!("m.safetensors is in use by process {}", first.id())]);
        assert!(first.try_wait().unwrap().is_none(), "the first goes on");
    }
    first.kill().unwrap();
    first.wait().unwrap();
    let child = folder.spawn("m.safetensors", &[&ENDLESS[..], &["--resume"]].concat());
    let lines = metrics_without_times(&folder.path("m.safetensors")).len();
    wait_for(&folder.path("m.metrics.jsonl"), lines + 1);
    interrupt(&child);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{}", text(&ended.stderr));
    assert!(text(&ended.stderr).contains("resuming after step "));
    assert!(!folder.folder.files().iter().any(|name| name.ends_with("lock")), "{:?}", folder.folder.files());
}

#[test]
fn a_run_with_a_time_limit_stops_with_a_checkpoint_and_is_resumed() {
    let folder = TrainingFolder::new();
    let limited = [&ENDLESS[..], &["--minutes", "0.005"]].concat();
    let ended = folder.train("m.safetensors", &limited).assert().code(130);
    let message = text(&ended.get_output().stderr);
    assert!(message.contains("all saved; resume with the same command and --resume"), "{message}");
    assert!(folder.path("m.checkpoint").exists());
    let resumed = folder.train("m.safetensors", &[&limited[..], &["--resume"]].concat()).assert().code(130);
    assert!(text(&resumed.get_output().stderr).contains("resuming after step "));
    misused(folder.train("m.safetensors", &["--minutes", "0"]), &["allowed: above 0 and at most 525600"]);
    misused(folder.train("m.safetensors", &["--save-every", "1e20"]), &["allowed: 0 or more seconds"]);
    let again = folder.train("m.safetensors", &[&limited[..], &["--overwrite"]].concat()).assert().code(130);
    let message = text(&again.get_output().stderr);
    assert!(message.contains("the same command with --resume in place of --overwrite"), "{message}");
}

#[test]
fn neither_threads_nor_the_way_options_are_given_change_the_model() {
    let folder = TrainingFolder::new();
    folder.train("one.safetensors", &["--steps", "40", "--threads", "1"]).assert().success();
    folder.train("two.safetensors", &["--steps", "40", "--threads", "2"]).assert().success();
    let read = |name: &str| std::fs::read(folder.path(name)).unwrap();
    assert_eq!(read("one.safetensors"), read("two.safetensors"));
    let by_file = ["train", "tranfs", "--config", "one.toml", "-o", "three.safetensors"];
    folder.folder.trueshot(&by_file).assert().success();
    assert_eq!(read("one.safetensors"), read("three.safetensors"));
    assert_eq!(read("one.toml"), read("three.toml"));
    folder
        .folder
        .trueshot(&[&by_file[..5], &["four.safetensors", "--seed", "1"]].concat())
        .assert()
        .success();
    assert_ne!(read("one.safetensors"), read("four.safetensors"));
}

#[test]
fn ctrl_c_saves_a_checkpoint_that_failed_runs_leave_as_it_is() {
    let folder = TrainingFolder::new();
    let said = folder.stopped("m.safetensors");
    assert!(said.contains("all saved; resume with the same command and --resume"), "{said}");
    let checkpoint = folder.path("m.checkpoint");
    let saved = std::fs::read(&checkpoint).unwrap();
    refused(folder.train("m.safetensors", &ENDLESS), &["m.checkpoint already exists", "--resume"]);
    let other = [&ENDLESS[..], &["--resume", "--rate", "0.5"]].concat();
    refused_after_reading(
        folder.train("m.safetensors", &other),
        &["optimiser.rate = 0.001, but now optimiser.rate = 0.5"],
    );
    let other = [&ENDLESS[..], &["--resume", "--parts", "2"]].concat();
    refused_after_reading(folder.train("m.safetensors", &other), &["parts = 4, but now parts = 2"]);
    // Other data under the same name.
    bank("class", 9, crate::fixture::CLASSES, crate::fixture::ITEMS, crate::fixture::DIM)
        .write(folder.path("data.safetensors"))
        .unwrap();
    let resume = [&ENDLESS[..], &["--resume"]].concat();
    refused_after_reading(
        folder.train("m.safetensors", &resume),
        &["m.checkpoint was written with data.train = "],
    );
    let fresh = TrainingFolder::new();
    std::fs::copy(fresh.path("data.safetensors"), folder.path("data.safetensors")).unwrap();
    disk_full(&folder, &resume, &checkpoint, &saved);
    for length in [0, 20, saved.len() / 2, saved.len() - 1] {
        std::fs::write(&checkpoint, &saved[..length]).unwrap();
        refused_after_reading(
            folder.train("m.safetensors", &resume),
            &["m.checkpoint is not a valid safetensors file"],
        );
    }
}

/// Files are limited to 4 KB, as on a full disk: the old checkpoint stays, and no temporary file is left.
fn disk_full(folder: &TrainingFolder, arguments: &[&str], checkpoint: &Path, saved: &[u8]) {
    let files = folder.folder.files();
    let script = "trap '' XFSZ; ulimit -f 8; exec \"$@\"";
    let mut command = folder.folder.command("sh");
    command.args(["-c", script, "sh", TRUESHOT]).args(folder.arguments("m.safetensors", arguments));
    refused_after_reading(command, &["cannot write m.checkpoint: File too large"]);
    assert_eq!(std::fs::read(checkpoint).unwrap(), saved);
    assert_eq!(folder.folder.files(), files);
}

#[test]
fn data_files_are_identified_by_their_contents_and_not_by_their_path() {
    let folder = TrainingFolder::new();
    folder.stopped("m.safetensors");
    let done = metrics_without_times(&folder.path("m.safetensors")).len();
    std::fs::rename(folder.path("val.safetensors"), folder.path("moved.safetensors")).unwrap();
    let mut arguments = folder.arguments("m.safetensors", &ENDLESS);
    let place = arguments.iter().position(|argument| *argument == "val.safetensors").unwrap();
    arguments[place] = "moved.safetensors";
    arguments.push("--resume");
    let mut command = std::process::Command::new(TRUESHOT);
    let child = command.current_dir(folder.path("")).args(arguments).stderr(Stdio::piped()).spawn().unwrap();
    wait_for(&folder.path("m.metrics.jsonl"), done + 1);
    interrupt(&child);
    let ended = child.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{}", text(&ended.stderr));
    assert!(text(&ended.stderr).contains("resuming after step "));
}

#[test]
fn without_validation_data_the_last_model_is_kept() {
    let folder = TrainingFolder::new();
    let small = SMALL.chunks(2).filter(|flag| !flag[0].starts_with("--val")).flatten().copied();
    let mut arguments = vec!["train", "tranfs", "data.safetensors", "-o", "m.safetensors", "--steps", "7"];
    arguments.extend(small);
    let assert = folder.folder.trueshot(&arguments).assert().success();
    let said = text(&assert.get_output().stderr);
    assert!(said.contains("m.safetensors: the model of step 7\n"), "{said}");
}

/// Every key of the configuration has an option with its name, which the help explains.
#[test]
fn the_help_lists_every_key_of_a_configuration() {
    let folder = TrainingFolder::new();
    for (head, config) in [("tranfs", "--feed-forward"), ("relabel", "--edge-hidden")] {
        let output = format!("{head}.safetensors");
        let small = ["--steps", "1", "--per-step", "1", "--queries", "2", "--val-episodes", "2", config, "8"];
        let run =
            ["train", head, "data.safetensors", "-o", &output, "--noise", "symmetric=20", "--shots", "5"];
        folder.folder.trueshot(&[&run[..], &small].concat()).assert().success();
        let written = std::fs::read_to_string(folder.path(&output).with_extension("toml")).unwrap();
        let written: toml::Table = written.parse().unwrap();
        let help = folder.folder.trueshot(&["train", head, "--help"]).assert().success();
        let help = text(&help.get_output().stdout);
        for (flag, default) in [("--save-every", "[default: 60]"), ("--record-every", "[default: 100]")] {
            let place = help.find(flag).unwrap();
            assert!(help[place..].split("\n\n").next().unwrap().contains(default), "{flag} of {head}");
        }
        let mut keys = Vec::new();
        for (section, value) in &written {
            match value.as_table() {
                None => keys.push(section.replace('_', "-")),
                Some(_) if section == "data" => {
                    keys.extend(["outliers", "val", "val-outliers"].map(String::from))
                }
                Some(table) => keys.extend(table.keys().map(|key| match (section.as_str(), key.as_str()) {
                    ("validation", key) => format!("val-{key}"),
                    // The optimiser has an option of that name.
                    ("model", "floor") => "least-share".into(),
                    (_, key) => key.replace('_', "-"),
                })),
            }
        }
        for key in keys {
            let line =
                help.lines().position(|line| line.split([' ', ',']).any(|word| word == format!("--{key}")));
            let place = line.unwrap_or_else(|| panic!("--{key} is not in the help of {head}"));
            let meaning: Vec<&str> = help.lines().skip(place).take(2).collect();
            let words = meaning.iter().flat_map(|line| line.split_whitespace());
            assert!(words.filter(|word| !word.starts_with(['-', '<'])).count() >= 1, "{meaning:?}");
        }
    }
}

/// `script` runs a program on a terminal.
#[test]
fn on_a_terminal_a_bar_shows_losses_and_the_last_validation() {
    let folder = TrainingFolder::new();
    let arguments = folder.arguments("m.safetensors", &["--steps", "1500"]);
    let line = [&[TRUESHOT], &arguments[..]].concat().join(" ");
    let mut command = folder.folder.command("script");
    command.args(["-qec", &line, "/dev/null"]).env("TERM", "xterm");
    let Ok(shown) = command.output() else {
        // Without `script` (util-linux) there is no terminal to test with.
        return;
    };
    assert!(shown.status.success());
    let shown = String::from_utf8_lossy(&shown.stdout).into_owned();
    let redrawn = |what: &str| shown.matches(what).count();
    // The bar is redrawn many times, separately from the lines of validations.
    assert!(redrawn("loss ") > redrawn("\nstep ") + 1 && shown.contains("/1,500"), "{shown}");
    assert!(shown.contains("validation ") && shown.contains("steps/s"), "{shown}");
}

#[test]
fn a_run_that_diverges_names_the_step() {
    let folder = TrainingFolder::new();
    let wild = ["--steps", "200", "--rate", "1e30", "--warm-up", "0"];
    refused_after_reading(
        folder.train("m.safetensors", &wild),
        &["training diverged in step ", "hint: the last checkpoint"],
    );
    assert!(folder.path("m.checkpoint").exists());
}

#[test]
fn options_that_make_no_sense_are_refused_by_name() {
    let folder = TrainingFolder::new();
    let misuse = |more: &[&str], expected: &[&str]| misused(folder.train("m.safetensors", more), expected);
    misuse(&["--rate=-1"], &["optimiser.rate is -1; allowed: a number above 0"]);
    misuse(&["--dropout", "1"], &["model.dropout is 1; allowed: a share from 0 to below 1"]);
    misuse(&["--classes", "2"], &["model.classes is 2; allowed: 3 or more"]);
    misuse(&["--steps", "0"], &["steps is 0; allowed: 1 or more"]);
    misuse(&["--noise", "gaussian=3"], &["unknown noise type 'gaussian'"]);
    misuse(&["--outliers", "a", "b"], &["data.outliers is 2 files; allowed: none or 1"]);
    misused(folder.train("m.bin", &[]), &["the file must end in .safetensors"]);
    refused_after_reading(
        folder.train("m.safetensors", &["--noise", "paired=60"]),
        &["paired noise of 60 % is impossible", "hint: give other levels with --noise and --val-noise"],
    );
    refused_after_reading(
        folder.train("m.safetensors", &["--noise", "outlier=20", "--ways", &CLASSES.to_string()]),
        &["there are 0 outliers to draw from", "--outliers"],
    );
    refused_after_reading(folder.train("nowhere/m.safetensors", &[]), &["cannot write nowhere/m."]);
    assert_eq!(folder.folder.files(), ["data.safetensors", "outliers.safetensors", "val.safetensors"]);
}

#[test]
fn a_device_that_does_not_exist_is_refused_and_the_cpu_is_always_there() {
    let folder = TrainingFolder::new();
    let expected = ["'gpu' is not a device; allowed: auto, cpu, cuda, cuda:N"];
    misused(folder.train("m.safetensors", &["--device", "gpu"]), &expected);
    let noise = ["--noise", "symmetric=0,40", "--device", "cuda:77"];
    let relabel = [&["train", "relabel", "data.safetensors", "-o", "r.safetensors"], &noise[..]].concat();
    let expected = ["CUDA", "hint: use the CPU with --device cpu, or let --device auto choose"];
    refused(folder.folder.trueshot(&relabel), &expected);
    refused(folder.train("m.safetensors", &["--device", "cuda:77"]), &expected);
    refused(folder.folder.trueshot(&["bench", "--device", "cuda:77", "--only", "tranfs16"]), &expected);
    let files: Vec<String> = folder.folder.files();
    assert!(!files.iter().any(|name| name.contains("checkpoint")), "{files:?}");
    let assert = folder.train("m.safetensors", &["--steps", "2", "--device", "cpu"]).assert().success();
    assert!(text(&assert.get_output().stderr).contains("training on the CPU\n"));
}

#[test]
fn a_configuration_file_is_read_with_care() {
    let folder = TrainingFolder::new();
    let with = |toml: &str| {
        std::fs::write(folder.path("c.toml"), toml).unwrap();
        folder.train("m.safetensors", &["--config", "c.toml"])
    };
    misused(
        with("[optimiser]\nrates = 1"),
        &["unknown key 'optimiser.rates'", "hint: did you mean 'optimiser.rate'?"],
    );
    misused(with("sed = 1"), &["unknown key 'sed'", "did you mean 'seed'?"]);
    misused(with("seed = 'x'"), &["cannot use the configuration c.toml: ", "in `seed`"]);
    misused(with("seed = "), &["cannot use the configuration c.toml: TOML parse error at line 1"]);
    misused(with("[optimiser]\nfloor = 3"), &["optimiser.floor is 3; allowed: a share from 0 to 1"]);
    misused(with("[episodes]\nnoise = ['paired=200']"), &["the noise level is 200 %"]);
    refused(folder.train("m.safetensors", &["--config", "nowhere.toml"]), &["cannot read nowhere.toml"]);
}

#[test]
fn models_and_data_that_do_not_fit_are_told_apart() {
    let folder = TrainingFolder::new();
    folder.train("m.safetensors", &["--steps", "3"]).assert().success();
    bank("wide", 3, 6, 30, 24).write(folder.path("wide.safetensors")).unwrap();
    let eval = |data: &'static str, method: &'static str, ways: &'static str| {
        let common = ["--noise", "symmetric=0", "-e", "5", "--queries", "5", "--ways", ways];
        folder.folder.trueshot(&[&["eval", data, "--methods", method], &common[..]].concat())
    };
    let own = "tranfs:model=m.safetensors";
    refused(
        eval("wide.safetensors", own, "3"),
        &["24 dimensions", "m.safetensors was trained on 16", "hint: a head works with"],
    );
    refused(
        eval("val.safetensors", own, "4"),
        &["4 classes, but the model in m.safetensors supports 3", "at most 3 ways"],
    );
    refused(
        eval("val.safetensors", "relabel:model=m.safetensors", "3"),
        &["a model of kind 'tranfs', not 'relabel'", "tranfs:model="],
    );
    refused(
        eval("val.safetensors", "tranfs:model=val.safetensors", "3"),
        &["val.safetensors contains embeddings, not a model"],
    );
    refused(
        eval("val.safetensors", "tranfs:model=nowhere.safetensors", "3"),
        &["cannot read nowhere.safetensors"],
    );
    misused(eval("val.safetensors", "tranfs", "3"), &["method 'tranfs' needs a model: tranfs:model=FILE"]);
    let from = ["--from", "m.safetensors", "--width", "32"];
    refused_after_reading(
        folder.train("n.safetensors", &from),
        &["'down.weight' has shape [16, 16] instead of [16, 32]"],
    );
    let mixed =
        ["train", "tranfs", "data.safetensors", "wide.safetensors", "-o", "n.safetensors", "--queries", "5"];
    refused_after_reading(folder.folder.trueshot(&mixed), &["features of 16 dimensions, another of 24"]);
    folder.train("n.safetensors", &["--steps", "3", "--from", "m.safetensors"]).assert().success();
}

#[test]
fn validation_data_that_was_trained_on_is_warned_of() {
    let folder = TrainingFolder::new();
    std::fs::copy(folder.path("data.safetensors"), folder.path("val.safetensors")).unwrap();
    let assert = folder.train("m.safetensors", &["--steps", "2"]).assert().success();
    let said = text(&assert.get_output().stderr);
    assert!(said.contains("warning: 8 classes are in the training and in the validation data"), "{said}");
    assert!(said.contains("warning: 320 rows of features are the same"), "{said}");
}

#[test]
fn relabel_learns_from_files_of_several_dimensions_and_serves_any() {
    let folder = TrainingFolder::new();
    bank("wide", 3, 6, 40, 24).write(folder.path("wide.safetensors")).unwrap();
    let mut arguments =
        vec!["train", "relabel", "data.safetensors", "wide.safetensors", "--val", "val.safetensors"];
    arguments.extend([
        "-o",
        "r.safetensors",
        "--layers",
        "1",
        "--width",
        "8",
        "--heads",
        "2",
        "--hidden",
        "8",
    ]);
    arguments.extend([
        "--edge-hidden",
        "8",
        "--per-step",
        "4",
        "--ways",
        "3-5",
        "--shots",
        "1,5",
        "--queries",
        "5",
    ]);
    arguments.extend(["--val-queries", "5", "--steps", "40", "--val-every", "20", "--val-episodes", "20"]);
    let assert = folder.folder.trueshot(&arguments).assert().success();
    let said = text(&assert.get_output().stderr);
    assert!(said.contains("5-way clean") && said.contains("3-way paired 40 %"), "{said}");
    assert!(said.contains("3-way outlier 60 %"), "outliers are items of other training classes: {said}");
    bank("new", 5, 6, 40, 10).write(folder.path("new.safetensors")).unwrap();
    let eval = ["eval", "new.safetensors", "--methods", "protonet,relabel:model=r.safetensors", "-e", "50"];
    let noise = ["--noise", "symmetric=20", "--noise", "paired=40"];
    let shown = folder.folder.trueshot(&[&eval[..], &noise].concat()).assert().success();
    let shown = text(&shown.get_output().stdout);
    assert!(shown.contains("relabel:model=r") && shown.contains("ECE"), "{shown}");
}

#[test]
fn attention_is_drawn_and_written_down() {
    let folder = TrainingFolder::new();
    folder.train("m.safetensors", &["--steps", "3"]).assert().success();
    let draw =
        ["attention", "m.safetensors", "val.safetensors", "-o", "maps", "--ways", "3", "--queries", "5"];
    folder.folder.trueshot(&[&draw[..], &["--noise", "symmetric=20"]].concat()).assert().success();
    let read = |name: &str| std::fs::read(folder.path("maps").join(name)).unwrap();
    for name in ["layer1-mean.png", "layer1-head1.png", "layer1-head2.png"] {
        assert_eq!(&read(name)[..4], b"\x89PNG", "{name}");
    }
    let maps: serde_json::Value = serde_json::from_slice(&read("attention.json")).unwrap();
    assert_eq!(maps["tokens"].as_array().unwrap().len(), 3 + 15);
    let wrong = maps["tokens"].as_array().unwrap().iter().filter(|token| token["wrong"] == true).count();
    assert_eq!(wrong, 3);
    let given: Vec<Option<u64>> =
        maps["tokens"].as_array().unwrap().iter().map(|token| token["given"].as_u64()).collect();
    assert!(given[..3].iter().all(Option::is_none) && given[3..].is_sorted(), "classes, then items by class");
    assert_eq!(text(&read("index.html")).matches("class=\"item wrong\"").count(), 3);
    let row: f64 = maps["layers"][0][1][4].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).sum();
    assert!((row - 1.0).abs() < 1e-4, "{row}");
    assert!(text(&read("index.html")).contains("true class: C"));
    let show = |what: &'static str| {
        let some = [
            "attention",
            "m.safetensors",
            "val.safetensors",
            "-o",
            "some.png",
            "--ways",
            "3",
            "--queries",
            "5",
        ];
        folder.folder.trueshot(&[&some[..], &["--noise", "symmetric=20", "--show", what]].concat())
    };
    // Shows images of the support set if item names are paths below a folder.
    let data = bank("unseen", 7, 6, 30, crate::fixture::DIM);
    let names = (0..data.len()).map(|row| format!("{row}.png#1"));
    data.with_items(Items::from_names(names)).unwrap().write(folder.path("val.safetensors")).unwrap();
    std::fs::create_dir(folder.path("pictures")).unwrap();
    let picture = image::GrayImage::new(2, 2);
    (0..180).for_each(|row| picture.save(folder.path(&format!("pictures/{row}.png"))).unwrap());
    folder
        .folder
        .trueshot(&[&draw[..], &["--noise", "symmetric=20", "--images", "pictures"]].concat())
        .assert()
        .success();
    assert_eq!(text(&read("index.html")).matches("<span class=\"item").count(), 15);
    assert_eq!(text(&read("index.html")).matches(".png\" alt=").count(), 15 + 3, "items and maps");
    show("1.mean,last.best,1.2").assert().success();
    assert_eq!(&std::fs::read(folder.path("some.png")).unwrap()[..4], b"\x89PNG");
    refused(show("2.mean"), &["--show asks for layer 2; the model has 1"]);
    refused(show("1.3"), &["--show asks for head 3; layer 1 has 2"]);
    misused(show("first"), &["expected LAYER.HEAD"]);
    misused(show("0.1"), &["'0' is not a whole number of at least 1"]);
    refused(
        folder.folder.trueshot(&[&draw[..], &["--noise", "symmetric=0,20"]].concat()),
        &["an episode has one"],
    );
}
