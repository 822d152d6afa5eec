//! Tests of `trueshot train maml`, `trueshot train negmargin` and `trueshot eval --pictures` on the built-in drawings.

use crate::fixture::{TRUESHOT, misused, refused, refused_after_reading, text};
use assert_cmd::Command;
use serde_json::Value;

struct TrainingFolder(tempfile::TempDir);

/// Options for a few drawings of every character.
const FEW: [&str; 2] = ["--limit-per-class", "8"];
/// Options of evaluations: small episodes, and few of them.
const EPISODES: [&str; 8] = ["--ways", "3", "--shots", "2", "--queries", "2", "--episodes", "6"];
/// Options of a small training run of MAML.
const MAML: [&str; 18] = [
    "--tasks",
    "2",
    "--ways",
    "3",
    "--shots",
    "2",
    "--queries",
    "3",
    "--inner-steps",
    "2",
    "--test-steps",
    "3",
    "--val-shots",
    "2",
    "--val-queries",
    "3",
    "--val-episodes",
    "5",
];
/// Options of a small training run of NegMargin.
const NEGMARGIN: [&str; 10] =
    ["--batch", "16", "--val-shots", "2", "--val-queries", "3", "--val-episodes", "5", "--val-ways", "3"];

impl TrainingFolder {
    fn new() -> Self {
        TrainingFolder(tempfile::tempdir().unwrap())
    }

    fn run(&self, parts: &[&[&str]]) -> Command {
        let mut command = Command::new(TRUESHOT);
        command.current_dir(self.0.path()).args(parts.concat());
        command
    }

    fn maml(&self, output: &str, more: &[&str]) -> Command {
        self.run(&[&["train", "maml", "omniglot", "-o", output, "--val-every", "2"], &FEW, &MAML, more])
    }

    fn negmargin(&self, output: &str, more: &[&str]) -> Command {
        self.run(&[
            &["train", "negmargin", "omniglot", "-o", output, "--val-every", "2"],
            &FEW,
            &NEGMARGIN,
            more,
        ])
    }

    fn on_pictures(&self, more: &[&str]) -> Command {
        self.run(&[&["eval", "--pictures", "omniglot", "--split", "test"], &FEW, &EPISODES, more])
    }

    fn read(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.0.path().join(name)).unwrap()
    }
}

#[test]
fn maml_is_trained_resumed_and_evaluated_on_the_episodes_of_embeddings() {
    let folder = TrainingFolder::new();
    folder.maml("whole.safetensors", &["--steps", "4", "--threads", "1"]).assert().success();
    folder.maml("again.safetensors", &["--steps", "4", "--threads", "2"]).assert().success();
    assert!(folder.read("whole.safetensors") == folder.read("again.safetensors"));
    let again = folder.maml("whole.safetensors", &["--steps", "4", "--resume"]).assert().success();
    assert!(text(&again.get_output().stderr).contains("whole.safetensors: the model of step"));

    folder.negmargin("backbone.safetensors", &["--steps", "2"]).assert().success();
    let help = text(&folder.run(&[&["train", "negmargin", "--help"]]).assert().success().get_output().stdout);
    assert!(!help.contains(" --outliers") && help.contains(" --val-outliers"), "{help}");
    let embed =
        ["embed", "omniglot", "--split", "test", "-b", "backbone.safetensors", "-o", "test.safetensors"];
    folder.run(&[&embed, &FEW]).assert().success();
    let noise = ["--noise", "symmetric=0", "--noise", "paired=0", "--format", "json"];
    let found = folder
        .on_pictures(
            &[&noise[..], &["-m", "maml:model=whole.safetensors", "--write-manifest", "a.jsonl"]].concat(),
        )
        .assert()
        .success();
    let found: Value = serde_json::from_slice(&found.get_output().stdout).unwrap();
    assert_eq!(found["embeddings"]["dim"], 28 * 28);
    assert_eq!(found["settings"][0]["methods"][0]["method"], "maml:model=whole");
    assert!(found["settings"][0]["methods"][0]["accuracy"].as_f64().unwrap() > 20.0, "{found}");
    let on_embeddings = ["eval", "test.safetensors", "-m", "baseline++", "--write-manifest", "b.jsonl"];
    folder.run(&[&on_embeddings, &EPISODES, &noise]).assert().success();
    let episodes = |name: &str| -> Vec<String> {
        String::from_utf8(folder.read(name)).unwrap().lines().skip(1).map(str::to_string).collect()
    };
    assert_eq!(episodes("a.jsonl").len(), 6);
    assert_eq!(episodes("a.jsonl"), episodes("b.jsonl"));
}

/// Lines of metrics without their times.
fn metrics(bytes: &[u8]) -> Vec<String> {
    text(bytes).lines().map(|line| line.split(",\"seconds\"").next().unwrap().to_string()).collect()
}

/// Trains without interruption, then with two interruptions by SIGKILL: the first in the middle of the steps, the
/// second after a resumed run has written more metrics.
fn is_resumed_to_the_byte(kind: &str, flags: &[&str]) {
    let folder = TrainingFolder::new();
    let steps = ["--steps", "12", "--val-every", "4", "--record-every", "1", "--save-every", "0"];
    let arguments = |output, more: &[&'static str]| {
        [&["train", kind, "omniglot", "-o", output][..], &FEW, flags, &steps, more].concat()
    };
    folder.run(&[&arguments("whole.safetensors", &[])]).assert().success();
    let lines = || {
        std::fs::read(folder.0.path().join("parts.metrics.jsonl")).map_or(0, |bytes| metrics(&bytes).len())
    };
    for until in [3, 7] {
        let mut child = std::process::Command::new(TRUESHOT)
            .current_dir(folder.0.path())
            .args(arguments("parts.safetensors", &["--resume"]))
            .stderr(std::process::Stdio::null())
            .spawn()
            .unwrap();
        while lines() < until && child.try_wait().unwrap().is_none() {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(folder.0.path().join("parts.checkpoint").exists(), "{kind} ended before it was killed");
    }
    let last = folder.run(&[&arguments("parts.safetensors", &["--resume"])]).assert().success();
    assert!(text(&last.get_output().stderr).contains("resuming after step "));
    for extension in ["safetensors", "curves.svg", "toml"] {
        let read = |name: &str| folder.read(&format!("{name}.{extension}"));
        assert!(read("whole") == read("parts"), "{kind}: {extension}");
    }
    let lines = |name: &str| metrics(&folder.read(name));
    assert_eq!(lines("whole.metrics.jsonl"), lines("parts.metrics.jsonl"), "{kind}");
}

#[test]
fn maml_killed_at_any_moment_is_resumed_to_the_same_bytes() {
    is_resumed_to_the_byte("maml", &MAML);
}

#[test]
fn first_order_maml_killed_at_any_moment_is_resumed_to_the_same_bytes() {
    is_resumed_to_the_byte("maml", &[&MAML[..], &["--order", "first"]].concat());
}

#[test]
fn negmargin_killed_at_any_moment_is_resumed_to_the_same_bytes() {
    is_resumed_to_the_byte("negmargin", &NEGMARGIN);
}

#[test]
fn negmargin_goes_on_where_it_stopped() {
    let folder = TrainingFolder::new();
    folder.negmargin("whole.safetensors", &["--steps", "4", "--threads", "1"]).assert().success();
    folder.negmargin("again.safetensors", &["--steps", "4", "--threads", "2"]).assert().success();
    assert!(folder.read("whole.safetensors") == folder.read("again.safetensors"));
    let other = folder.negmargin("whole.safetensors", &["--steps", "4", "--margin", "0.1", "--resume"]);
    refused_after_reading(other, &["loss.margin"]);
}

#[test]
fn negmargin_is_trained_on_the_device_that_is_asked_for() {
    let folder = TrainingFolder::new();
    let expected = ["CUDA", "hint: use the CPU with --device cpu, or let --device auto choose"];
    refused(folder.negmargin("m.safetensors", &["--device", "cuda:77"]), &expected);
    let on_cpu = folder.negmargin("m.safetensors", &["--steps", "1", "--device", "cpu"]).assert().success();
    assert!(text(&on_cpu.get_output().stderr).contains("training on the CPU\n"));
}

#[test]
fn maml_is_evaluated_on_the_device_that_is_asked_for() {
    let folder = TrainingFolder::new();
    folder.maml("maml.safetensors", &["--steps", "1", "--device", "cpu"]).assert().success();
    let evaluate = |more: &[&str]| {
        let arguments = ["-m", "maml:model=maml.safetensors", "--noise", "symmetric=0", "--format", "json"];
        folder.on_pictures(&[&arguments[..], more].concat())
    };
    let expected = ["CUDA", "hint: use the CPU with --device cpu, or let --device auto choose"];
    refused(evaluate(&["--device", "cuda:77"]), &expected);
    let on_cpu = evaluate(&["--device", "cpu"]).assert().success();
    assert!(text(&on_cpu.get_output().stderr).contains("evaluating on the CPU\n"));
    let found: Value = serde_json::from_slice(&on_cpu.get_output().stdout).unwrap();
    assert!(found.get("device").is_none(), "{found}");
    let automatic = evaluate(&[]).assert().success();
    let message = text(&automatic.get_output().stderr);
    match message.contains("evaluating on the GPU: ") {
        true => assert!(text(&automatic.get_output().stdout).contains("\"device\": ")),
        false => {
            assert!(message.contains("evaluating on the CPU (no CUDA device: "), "{message}");
            assert_eq!(automatic.get_output().stdout, on_cpu.get_output().stdout);
        }
    }
    // `auto` evaluates ranges of shots on the CPU, on every machine.
    let ranges =
        ["--pictures", "omniglot", "--split", "test", "--ways", "3", "--shots", "1-2", "--queries", "2"];
    let ranges =
        [&["eval", "-m", "maml:model=maml.safetensors", "--noise", "symmetric=0", "-e", "4"][..], &ranges];
    let ranged = folder.run(&[&ranges.concat(), &FEW]).assert().success();
    assert!(text(&ranged.get_output().stderr).contains("evaluating on the CPU"));
    refused(
        folder.run(&[&["eval", "any.safetensors", "-m", "protonet", "--device", "cuda"]]),
        &["methods on embeddings are evaluated on the CPU", "hint: leave out --device, or use --device cpu"],
    );
}

#[test]
fn models_and_options_that_do_not_fit_are_refused_with_the_reason() {
    let folder = TrainingFolder::new();
    folder.maml("maml.safetensors", &["--steps", "1"]).assert().success();
    folder.negmargin("backbone.safetensors", &["--steps", "1"]).assert().success();
    misused(folder.on_pictures(&["-m", "maml"]), &["method 'maml' needs a model: maml:model=FILE"]);
    refused(
        folder.on_pictures(&["-m", "maml:model=backbone.safetensors"]),
        &["is a model of kind 'conv4', not 'maml'"],
    );
    refused(
        folder.on_pictures(&["-m", "protonet"]),
        &["none of the methods takes images: use maml:model=FILE"],
    );
    refused(
        folder.run(&[&["eval", "any.safetensors", "-m", "maml:model=maml.safetensors"]]),
        &["method 'maml:model=maml' takes images, not embeddings: give --pictures DATASET"],
    );
    refused(
        folder.run(&[&["eval", "any.safetensors", "--split", "test", "-m", "protonet"]]),
        &["--split applies to images"],
    );
    let evaluate = |ways: &str, queries: &str| {
        let episodes = ["--ways", ways, "--shots", "2", "--queries", queries, "--noise", "symmetric=0"];
        let method = ["-m", "maml:model=maml.safetensors"];
        folder.run(&[&["eval", "--pictures", "omniglot", "--split", "test"], &FEW, &episodes, &method])
    };
    misused(evaluate("5", "2"), &["the number of ways is 5; allowed: 3, the classes of the model in"]);
    refused(evaluate("3", "9"), &["has 8 items", "hint: the largest number of queries that fits is 4"]);
    let ways = folder.maml("m.safetensors", &["--val-ways", "4"]);
    misused(ways, &["validation.ways is 4; allowed: 3, as in training"]);
    std::fs::write(folder.0.path().join("four.toml"), "[data]\ntrain = \"omniglot\"\n[episodes]\nways = 4\n")
        .unwrap();
    let validated = ["--val-shots", "2", "--val-queries", "2", "--val-episodes", "5"];
    let trained = ["--shots", "2", "--queries", "3", "--tasks", "2"];
    let run = ["--steps", "1", "-o", "four.safetensors", "--config", "four.toml"];
    folder.run(&[&["train", "maml"], &run, &FEW, &trained, &validated]).assert().success();
    misused(folder.negmargin("n.safetensors", &["--scale", "0"]), &["loss.scale is 0"]);
    let embed = ["embed", "omniglot", "--split", "test", "-b", "maml.safetensors", "-o", "test.safetensors"];
    refused_after_reading(folder.run(&[&embed]), &["its architecture is 'maml'; known is 'conv4'"]);
}
