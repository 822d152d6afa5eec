//! Tests of the training loop with `Walker`, a trainee whose two parameters move towards random targets.

use crate::progress::Progress;
use std::collections::BTreeMap;
use std::ops::ControlFlow;

use super::*;
use crate::rng::{Purpose, Rng};
use crate::tensors::tests::{flips, without_checksum};
use crate::training::Validation;

/// A point of two coordinates that moves towards a random target near zero in every step.
struct Walker {
    position: Vec<f32>,
    /// (step, value): from this step on, the second loss term has this value. Steps count from 0 here, and from 1 in
    /// messages.
    diverges: Option<(u64, f64)>,
    /// The step in which its GPU stops working.
    gpu_fails_in: Option<u64>,
    /// Whether every step makes the second coordinate infinite.
    becomes_infinite: bool,
    validates: bool,
}

impl Walker {
    fn new() -> Self {
        Walker {
            position: vec![5.0, -3.0],
            diverges: None,
            gpu_fails_in: None,
            becomes_infinite: false,
            validates: true,
        }
    }
}

impl Trainee for Walker {
    fn terms(&self) -> Vec<String> {
        vec!["x".into(), "y".into()]
    }

    fn step(&mut self, step: u64) -> Result<Vec<f64>> {
        if self.gpu_fails_in == Some(step) {
            let (message, hint) = ("the GPU stopped working".into(), "nvidia-smi shows why".into());
            return Err(Error::Gpu { message, hint, checkpoint: None });
        }
        let mut rng = Rng::new(1, Purpose::Training, step);
        self.position.iter_mut().for_each(|v| *v += 0.1 * (rng.uniform() - 0.5 - *v));
        let terms = self.position.iter().map(|v| f64::from(v * v)).collect();
        if self.becomes_infinite {
            self.position[1] = f32::INFINITY;
        }
        match self.diverges {
            Some((first, value)) if step >= first => Ok(vec![1.0, value]),
            _ => Ok(terms),
        }
    }

    fn rate(&self, step: u64) -> f64 {
        0.1 / (1 + step) as f64
    }

    fn validate(&mut self) -> Result<Option<Validation>> {
        if !self.validates {
            return Ok(None);
        }
        let score = -self.position.iter().map(|v| f64::from(v.abs())).sum::<f64>();
        Ok(Some(Validation { score, figures: vec![("distance".into(), -score)] }))
    }

    fn state(&self) -> Result<Tensors> {
        let mut state = Tensors::default();
        state.insert("position", &[2], self.position.clone());
        Ok(state)
    }

    fn restore(&mut self, state: &Tensors) -> Result<()> {
        self.position = state.values("position", 2)?.to_vec();
        Ok(())
    }

    fn model(&self) -> Result<Tensors> {
        self.state()
    }
}

/// An observer that stops the run after this number of steps.
struct StopAfter(u64);

impl Observer for StopAfter {
    fn event(&mut self, event: &Event<'_>) {
        if let Event::Stepped { .. } = event {
            self.0 -= 1;
        }
    }
}

impl Progress for StopAfter {
    fn update(&self, _done: u64, _total: u64) -> ControlFlow<()> {
        if self.0 > 0 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    }
}

/// A run of 57 steps with a validation, and so a checkpoint, every 10 steps.
fn options(folder: &Path) -> RunOptions {
    RunOptions {
        output: folder.join("walk.safetensors"),
        title: "a walk".into(),
        steps: 57,
        validate_every: 10,
        record_every: 4,
        save_every: Duration::from_secs(60),
        configuration: "seed = 1\n".into(),
        identity: "seed = 1".parse().unwrap(),
    }
}

/// The lines of a metrics file without the seconds, which come last and differ between runs.
fn without_times(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    text.lines().map(|line| line.split(",\"seconds\"").next().unwrap().to_string() + "\n").collect()
}

#[test]
fn a_resumed_run_ends_in_the_same_bytes_as_an_unbroken_one() {
    let (unbroken, interrupted) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let outcome = train(&mut Walker::new(), &options(unbroken.path()), Start::Fresh, &mut ()).unwrap();
    assert!(outcome.finished);
    let options = options(interrupted.path());
    for stop in [3, 1, 9, 1, 20] {
        let mut observer = StopAfter(stop);
        let outcome = train(&mut Walker::new(), &options, Start::Resume, &mut observer).unwrap();
        assert!(!outcome.finished);
    }
    assert_eq!(train(&mut Walker::new(), &options, Start::Resume, &mut ()).unwrap(), outcome);
    let (whole, parts) = (Files::of(&unbroken.path().join("walk.safetensors")), Files::of(&options.output));
    assert_eq!(std::fs::read(whole.model).unwrap(), std::fs::read(&parts.model).unwrap());
    assert_eq!(without_times(&whole.metrics), without_times(&parts.metrics));
    assert_eq!(std::fs::read(whole.curves).unwrap(), std::fs::read(parts.curves).unwrap());
    assert!(!parts.checkpoint.exists(), "a finished run leaves no checkpoint");
    let again = train(&mut Walker::new(), &options, Start::Resume, &mut ()).unwrap();
    assert_eq!(again, outcome, "resuming a finished run does nothing");
}

#[test]
fn the_model_file_has_the_best_parameters_not_the_last() {
    // Its validation score has its maximum after step 20.
    struct Peak(f64);
    impl Trainee for Peak {
        fn terms(&self) -> Vec<String> {
            vec!["x".into()]
        }
        fn step(&mut self, step: u64) -> Result<Vec<f64>> {
            self.0 = step as f64 + 1.0;
            Ok(vec![1.0])
        }
        fn rate(&self, _: u64) -> f64 {
            0.0
        }
        fn validate(&mut self) -> Result<Option<Validation>> {
            Ok(Some(Validation { score: -(self.0 - 20.0).abs(), figures: vec![] }))
        }
        fn state(&self) -> Result<Tensors> {
            let mut state = Tensors::default();
            state.insert("x", &[1], vec![self.0 as f32]);
            Ok(state)
        }
        fn restore(&mut self, _: &Tensors) -> Result<()> {
            Ok(())
        }
        fn model(&self) -> Result<Tensors> {
            self.state()
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    let outcome = train(&mut Peak(0.0), &options, Start::Fresh, &mut ()).unwrap();
    assert_eq!((outcome.best_step, outcome.best_score), (20, Some(0.0)));
    let model = Tensors::open(&options.output).unwrap();
    assert_eq!((model.get("x").unwrap().values[0], model.note("step")), (20.0, Some("20")));
}

#[test]
fn a_loss_that_is_not_finite_stops_the_run_and_leaves_the_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    let mut diverges = Walker { diverges: Some((33, f64::NAN)), ..Walker::new() };
    let error = train(&mut diverges, &options, Start::Fresh, &mut ()).unwrap_err();
    assert_eq!(error.to_string(), "training diverged in step 34: the loss term 'y' is NaN");
    let (run, _) = RunState::read(&Files::of(&options.output).checkpoint, &options.identity).unwrap();
    assert_eq!(run.done, 30, "the last validation before the step");
}

#[test]
fn a_lost_gpu_stops_the_run_with_the_checkpoint_named_and_the_run_resumes_to_the_same_bytes() {
    let (unbroken, interrupted) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    train(&mut Walker::new(), &options(unbroken.path()), Start::Fresh, &mut ()).unwrap();
    let options = options(interrupted.path());
    let mut failing = Walker { gpu_fails_in: Some(33), ..Walker::new() };
    let error = train(&mut failing, &options, Start::Fresh, &mut ()).unwrap_err();
    assert_eq!(error.to_string(), "the GPU stopped working");
    let hint = error.hint_for(&|_| true).unwrap();
    let checkpoint = Files::of(&options.output).checkpoint;
    assert!(hint.contains(&checkpoint.display().to_string()), "{hint}");
    assert!(hint.contains("--resume --device cpu"), "{hint}");
    assert_eq!(RunState::read(&checkpoint, &options.identity).unwrap().0.done, 30);
    assert!(train(&mut Walker::new(), &options, Start::Resume, &mut ()).unwrap().finished);
    let model = std::fs::read(unbroken.path().join("walk.safetensors")).unwrap();
    assert_eq!(std::fs::read(&options.output).unwrap(), model);
}

#[test]
fn a_parameter_that_is_not_finite_is_never_saved() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    train(&mut Walker::new(), &options, Start::Fresh, &mut StopAfter(12)).unwrap();
    let before = std::fs::read(Files::of(&options.output).checkpoint).unwrap();
    let mut infinite = Walker { becomes_infinite: true, validates: false, ..Walker::new() };
    let error = train(&mut infinite, &options, Start::Resume, &mut StopAfter(1)).unwrap_err().to_string();
    assert_eq!(error, "training diverged in step 13: tensor 'position' is inf");
    assert_eq!(std::fs::read(Files::of(&options.output).checkpoint).unwrap(), before);
}

#[test]
fn an_earlier_run_is_not_overwritten_and_not_resumed_with_another_configuration() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    train(&mut Walker::new(), &options, Start::Fresh, &mut StopAfter(12)).unwrap();
    let begin = |options: &RunOptions, start| train(&mut Walker::new(), options, start, &mut StopAfter(1));
    let error = begin(&options, Start::Fresh).unwrap_err();
    assert!(error.hint().unwrap().contains("--resume"), "{error}");
    let other = RunOptions { identity: "seed = 2".parse().unwrap(), ..options.clone() };
    let error = begin(&other, Start::Resume).unwrap_err().to_string();
    assert!(error.ends_with("was written with seed = 1, but now seed = 2"), "{error}");
    assert_eq!(begin(&options, Start::Overwrite).unwrap().done, 1);
    train(&mut Walker::new(), &options, Start::Resume, &mut ()).unwrap();
    let error = begin(&options, Start::Fresh).unwrap_err();
    assert!(error.hint().unwrap().contains("--overwrite"), "{error}");
    assert!(matches!(begin(&other, Start::Resume), Err(Error::OtherConfiguration { .. })));
}

#[test]
fn a_truncated_checkpoint_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    train(&mut Walker::new(), &options, Start::Fresh, &mut StopAfter(12)).unwrap();
    let path = Files::of(&options.output).checkpoint;
    let bytes = std::fs::read(&path).unwrap();
    for length in [0, 5, 100, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..length]).unwrap();
        let error = train(&mut Walker::new(), &options, Start::Resume, &mut ()).unwrap_err();
        assert!(error.to_string().contains("walk.checkpoint is not a valid"), "{error}");
    }
}

#[test]
fn a_checkpoint_with_any_bit_flipped_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    train(&mut Walker::new(), &options, Start::Fresh, &mut StopAfter(22)).unwrap();
    let path = Files::of(&options.output).checkpoint;
    let saved = std::fs::read(&path).unwrap();
    for (bit, damaged) in flips(&saved).enumerate() {
        std::fs::write(&path, damaged).unwrap();
        assert!(RunState::read(&path, &options.identity).is_err(), "bit {bit}");
    }
}

#[test]
fn a_damaged_checkpoint_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    train(&mut Walker::new(), &options, Start::Fresh, &mut StopAfter(22)).unwrap();
    let path = Files::of(&options.output).checkpoint;
    let mut damaged = std::fs::read(&path).unwrap();
    *damaged.last_mut().unwrap() ^= 1;
    std::fs::write(&path, damaged).unwrap();
    let before = contents(folder.path());
    let error = train(&mut Walker::new(), &options, Start::Resume, &mut ()).unwrap_err();
    assert!(matches!(error, Error::Damaged { .. }), "{error}");
    assert_eq!(contents(folder.path()), before);
}

#[test]
fn a_checkpoint_of_an_earlier_version_without_a_checksum_is_resumed() {
    let (unbroken, interrupted) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    train(&mut Walker::new(), &options(unbroken.path()), Start::Fresh, &mut ()).unwrap();
    let options = options(interrupted.path());
    train(&mut Walker::new(), &options, Start::Fresh, &mut StopAfter(22)).unwrap();
    let path = Files::of(&options.output).checkpoint;
    let earlier = without_checksum(&std::fs::read(&path).unwrap());
    std::fs::write(&path, earlier).unwrap();
    train(&mut Walker::new(), &options, Start::Resume, &mut ()).unwrap();
    let model = |folder: &Path| std::fs::read(folder.join("walk.safetensors")).unwrap();
    assert_eq!(model(unbroken.path()), model(interrupted.path()));
}

/// All files of a folder with their bytes.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

#[test]
fn a_claimed_output_is_refused_to_other_runs_and_its_files_stay_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    train(&mut Walker::new(), &options, Start::Fresh, &mut StopAfter(12)).unwrap();
    let claim = Files::of(&options.output).claim(Start::Resume).unwrap();
    let before = contents(folder.path());
    for start in [Start::Fresh, Start::Resume, Start::Overwrite] {
        match train(&mut Walker::new(), &options, start, &mut ()) {
            Err(Error::Locked { path, holder }) => {
                assert_eq!(path, options.output);
                assert!(holder.starts_with(&format!("process {} ", std::process::id())), "{holder}");
            }
            other => panic!("{start:?}: {other:?}"),
        }
        assert_eq!(contents(folder.path()), before, "{start:?}");
    }
    assert!(claim.train(&mut Walker::new(), &options, &mut ()).unwrap().finished);
    let names: Vec<_> =
        contents(folder.path()).into_keys().map(|path| path.file_name().unwrap().to_owned()).collect();
    assert_eq!(names, ["walk.curves.svg", "walk.metrics.jsonl", "walk.safetensors", "walk.toml"]);
}

/// An observer that lists the steps of all metrics lines and checkpoints.
#[derive(Default)]
struct EventLog {
    recorded: Vec<u64>,
    saved: Vec<u64>,
}

impl Progress for EventLog {}

impl Observer for EventLog {
    fn event(&mut self, event: &Event<'_>) {
        match event {
            Event::Recorded { record, .. } => self.recorded.push(record.step),
            Event::Saved { done } => self.saved.push(*done),
            _ => {}
        }
    }
}

#[test]
fn a_checkpoint_is_written_after_every_validation_and_after_the_given_time() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    let mut log = EventLog::default();
    train(&mut Walker::new(), &options, Start::Fresh, &mut log).unwrap();
    assert_eq!(log.saved, [0, 10, 20, 30, 40, 50, 57]);
    let always = RunOptions { save_every: Duration::ZERO, ..options };
    let mut log = EventLog::default();
    train(&mut Walker::new(), &always, Start::Overwrite, &mut log).unwrap();
    assert_eq!(log.saved, (0..=57).collect::<Vec<u64>>());
}

#[test]
fn metrics_have_a_line_per_interval_with_means_since_the_previous_line() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    let mut log = EventLog::default();
    train(&mut Walker::new(), &options, Start::Fresh, &mut log).unwrap();
    let steps: Vec<u64> = (1..=57).filter(|step| step % 4 == 0 || step % 10 == 0 || *step == 57).collect();
    assert_eq!(log.recorded, steps);
    let text = std::fs::read_to_string(Files::of(&options.output).metrics).unwrap();
    let records: Vec<Record> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.iter().map(|record| record.step).collect::<Vec<u64>>(), steps);
    let mut walker = Walker::new();
    // The loss terms of the steps since the last record.
    let mut since = Vec::new();
    let mut records = records.into_iter();
    for step in 0..57 {
        since.push(walker.step(step).unwrap());
        if !steps.contains(&(step + 1)) {
            continue;
        }
        let record = records.next().unwrap();
        let mean = |term: usize| since.iter().map(|terms| terms[term]).sum::<f64>() / since.len() as f64;
        let close = |a: f64, b: f64| (a - b).abs() < 1e-9;
        assert!(close(record.terms[0].1, mean(0)) && close(record.terms[1].1, mean(1)), "{record:?}");
        assert!(close(record.loss, mean(0) + mean(1)) && close(record.rate, walker.rate(step)), "{record:?}");
        assert_eq!(record.score.is_some(), (step + 1) % 10 == 0 || step + 1 == 57, "{record:?}");
        since.clear();
    }
}

/// An observer that creates a folder at the path of a file when a step is recorded, so that the file cannot be written.
struct BlockFile {
    step: u64,
    path: PathBuf,
}

impl Progress for BlockFile {}

impl Observer for BlockFile {
    fn event(&mut self, event: &Event<'_>) {
        if let Event::Recorded { record, .. } = event
            && record.step == self.step
        {
            let _ = std::fs::remove_file(&self.path);
            std::fs::create_dir(&self.path).unwrap();
        }
    }
}

#[test]
fn the_checkpoint_is_written_before_the_files_derived_from_it() {
    let whole = tempfile::tempdir().unwrap();
    train(&mut Walker::new(), &options(whole.path()), Start::Fresh, &mut ()).unwrap();
    let whole = Files::of(&options(whole.path()).output);
    let derived_files: [fn(&Files) -> &PathBuf; 3] = [|f| &f.model, |f| &f.metrics, |f| &f.curves];
    for file in derived_files {
        let folder = tempfile::tempdir().unwrap();
        let options = options(folder.path());
        let files = Files::of(&options.output);
        let mut block = BlockFile { step: 20, path: file(&files).clone() };
        let error = train(&mut Walker::new(), &options, Start::Fresh, &mut block).unwrap_err();
        assert!(matches!(&error, Error::Write { path, .. } if path == file(&files)), "{error}");
        let (run, _) = RunState::read(&files.checkpoint, &options.identity).unwrap();
        assert_eq!(run.done, 20, "the step whose files could not be written is not lost");
        std::fs::remove_dir(file(&files)).unwrap();
        train(&mut Walker::new(), &options, Start::Resume, &mut ()).unwrap();
        assert_eq!(std::fs::read(&files.model).unwrap(), std::fs::read(&whole.model).unwrap());
        assert_eq!(without_times(&files.metrics), without_times(&whole.metrics));
    }
}

#[test]
fn without_validation_the_model_of_the_last_step_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let options = options(folder.path());
    let mut trainee = Walker { validates: false, ..Walker::new() };
    let outcome = train(&mut trainee, &options, Start::Fresh, &mut ()).unwrap();
    assert_eq!((outcome.best_step, outcome.best_score), (57, None));
    assert_eq!(Tensors::open(&options.output).unwrap().values("position", 2).unwrap(), trainee.position);
}
