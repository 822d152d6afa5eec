//! The training loop: [`train`], the files of a run ([`Files`], [`Claim`]) and its options ([`RunOptions`]).
//!
//! [`train`] calls a [`Trainee`], which computes the steps, and tells an [`Observer`] about the progress.
//!
//! A checkpoint is written after every validation, at regular times in between, and when the observer stops the run.
//! Except for the configuration, the other files are derived from the checkpoint and written after it. So at whatever
//! moment the process dies, there is a complete checkpoint to resume from, and the steps after it are repeated with the
//! same results.
//!
//! A run holds a [`Claim`] on its output files from before anything is read until everything is written, so two
//! processes never write the files of one run.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use toml::Table;

use super::checkpoint::{Best, RunState};
use super::{Event, Observer, Record, Trainee, curves};
use crate::atomic::{check_writable, write_atomically};
use crate::error::{Error, Result};
use crate::lock::Lock;
use crate::tensors::Tensors;

/// The options of a training run that do not depend on the model: output, number of steps, intervals, identity.
///
/// [`Trainee`] has an example.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// The path of the model file; [`Files::of`] lists the files next to it.
    pub output: PathBuf,
    /// The title of the learning curves.
    pub title: String,
    /// The total number of steps.
    pub steps: u64,
    /// The number of steps between two validations, at least 1; the last step is always validated.
    pub validate_every: u64,
    /// The number of steps between two lines of metrics, at least 1.
    pub record_every: u64,
    /// The time after which a checkpoint is written even if there was no validation.
    pub save_every: Duration,
    /// The complete configuration as TOML, for the file [`Files::configuration`] and the metadata of the model.
    pub configuration: String,
    /// Everything that the result depends on, such as the configuration and fingerprints of the data. A run is resumed
    /// only if its identity is equal.
    pub identity: Table,
}

/// What to do if the files of an earlier run exist.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Refuse to start.
    Fresh,
    /// Resume the earlier run; start a new one if it does not exist.
    Resume,
    /// Replace the earlier run by a new one.
    Overwrite,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// The number of finished steps.
    pub done: u64,
    /// Whether all steps are finished; `false` if the observer stopped the run.
    pub finished: bool,
    /// The number of steps after which the parameters in the model file were taken.
    pub best_step: u64,
    /// The validation score of these parameters; `None` without validation.
    pub best_score: Option<f64>,
}

/// The paths of all files of a run, derived from the path of its model file.
///
/// ```
/// use std::path::Path;
/// use trueshot::training::Files;
///
/// let files = Files::of(Path::new("models/relabel.safetensors"));
/// assert_eq!(files.metrics, Path::new("models/relabel.metrics.jsonl"));
/// assert_eq!(files.checkpoint, Path::new("models/relabel.checkpoint"));
/// ```
#[derive(Debug, Clone)]
pub struct Files {
    /// The best model so far, `NAME.safetensors`.
    pub model: PathBuf,
    /// The complete configuration, `NAME.toml`.
    pub configuration: PathBuf,
    /// The metrics, one JSON object per line ([`Record`]), `NAME.metrics.jsonl`.
    pub metrics: PathBuf,
    /// The learning curves, `NAME.curves.svg`.
    pub curves: PathBuf,
    /// The checkpoint of an unfinished run, `NAME.checkpoint`.
    pub checkpoint: PathBuf,
}

impl Files {
    /// The files of the run that writes the model file `model`.
    pub fn of(model: &Path) -> Self {
        Files {
            model: model.into(),
            configuration: model.with_extension("toml"),
            metrics: model.with_extension("metrics.jsonl"),
            curves: model.with_extension("curves.svg"),
            checkpoint: model.with_extension("checkpoint"),
        }
    }

    /// Locks the files for one run, after checking that they can be written.
    ///
    /// [`train`] does this itself. A caller that first has to read gigabytes of data claims the files before that, and
    /// then calls [`Claim::train`].
    ///
    /// # Errors
    /// [`Error::Locked`] if another process trains this model, [`Error::AlreadyThere`] if an earlier run must not be
    /// overwritten, [`Error::Write`] if the folder cannot be written to.
    pub fn claim(self, start: Start) -> Result<Claim> {
        check_writable(&self.model)?;
        let lock = Lock::beside(&self.model)?;
        for (path, unfinished) in [(&self.checkpoint, true), (&self.model, false)] {
            if start == Start::Fresh && path.exists() {
                return Err(Error::AlreadyThere { path: path.clone(), unfinished });
            }
        }
        Ok(Claim { files: self, start, _lock: lock })
    }
}

/// The files of a run, locked against other processes until this is dropped or the process ends.
#[derive(Debug)]
pub struct Claim {
    files: Files,
    start: Start,
    _lock: Lock,
}

impl Claim {
    /// Trains until all steps are done or the observer stops the run.
    ///
    /// # Panics
    /// If `options.output` is not the model file that was claimed.
    pub fn train(
        self,
        trainee: &mut dyn Trainee,
        options: &RunOptions,
        observer: &mut dyn Observer,
    ) -> Result<Outcome> {
        assert_eq!(self.files.model, options.output, "the claim is for the output of the options");
        let files = self.files.clone();
        let mut run =
            Run { trainee, options, files, observer, state: RunState::default(), unsaved_best: false };
        if let Some(outcome) = run.start(self.start)? {
            return Ok(outcome);
        }
        run.train().map_err(|error| with_checkpoint(error, &run.files.checkpoint))
    }
}

/// Trains until all steps are done or the observer stops the run. [`Trainee`] has an example.
///
/// # Errors
/// Those of [`Files::claim`]; [`Error::OtherConfiguration`] if the run to resume has another identity;
/// [`Error::Diverged`] if a loss or a parameter is not finite; errors of the trainee and of writing the files.
pub fn train(
    trainee: &mut dyn Trainee,
    options: &RunOptions,
    start: Start,
    observer: &mut dyn Observer,
) -> Result<Outcome> {
    Files::of(&options.output).claim(start)?.train(trainee, options, observer)
}

/// A training run: the trainee, the files and how far the run is. [`Run::start`] prepares it, [`Run::train`] is the
/// loop.
struct Run<'a> {
    trainee: &'a mut dyn Trainee,
    options: &'a RunOptions,
    files: Files,
    observer: &'a mut dyn Observer,
    state: RunState,
    /// Whether `state.best` is newer than the model file.
    unsaved_best: bool,
}

impl Run<'_> {
    /// Prepares the files and resumes an earlier run if `start` says so. Returns the outcome if that run is already
    /// finished.
    fn start(&mut self, start: Start) -> Result<Option<Outcome>> {
        let (has_model, has_checkpoint) = (self.files.model.exists(), self.files.checkpoint.exists());
        match start {
            Start::Overwrite if has_model => std::fs::remove_file(&self.files.model)
                .map_err(|source| Error::Write { path: self.files.model.clone(), source })?,
            Start::Resume if has_checkpoint => self.resume()?,
            Start::Resume if has_model => return self.finished_outcome().map(Some),
            _ => {}
        }
        write_text(&self.files.configuration, &self.options.configuration)?;
        if !has_checkpoint || start == Start::Overwrite {
            // A checkpoint before the first step: the run can be resumed from the start, and the files of an older run
            // are replaced.
            self.save()?;
        }
        let terms = self.trainee.terms();
        let (done, steps) = (self.state.done, self.options.steps);
        self.observer.event(&Event::Begins { done, steps, terms: &terms });
        self.trainee.warnings().iter().for_each(|warning| self.observer.event(&Event::Warning(warning)));
        Ok(None)
    }

    /// Restores the trainee and the run from the checkpoint.
    fn resume(&mut self) -> Result<()> {
        let (run, state) = RunState::read(&self.files.checkpoint, &self.options.identity)?;
        self.trainee.restore(&state)?;
        self.state = run;
        // The earlier run may have ended between writing the checkpoint and the model file.
        self.unsaved_best = self.state.best.is_some();
        Ok(())
    }

    /// The outcome of an earlier run that left a model but no checkpoint, so it is finished. Its identity must be that
    /// of this run.
    fn finished_outcome(&self) -> Result<Outcome> {
        let model = Tensors::open(&self.files.model)?;
        let identity = model.note("identity").and_then(|text| text.parse::<Table>().ok());
        let earlier = identity
            .ok_or_else(|| Error::AlreadyThere { path: self.files.model.clone(), unfinished: false })?;
        if let Some((key, then, now)) = super::configuration::difference(&earlier, &self.options.identity) {
            return Err(Error::OtherConfiguration { path: self.files.model.clone(), key, then, now });
        }
        Ok(Outcome {
            done: self.options.steps,
            finished: true,
            // The notes that [`Run::model`] writes.
            best_step: model.note("step").and_then(|text| text.parse().ok()).unwrap_or(self.options.steps),
            best_score: model.note("score").and_then(|text| text.parse().ok()),
        })
    }

    /// The loop: runs steps, and between them validates, records metrics and saves, until all steps are finished or the
    /// observer stops the run.
    fn train(&mut self) -> Result<Outcome> {
        let (mut clock, mut last_save) = (Instant::now(), Instant::now());
        while self.state.done < self.options.steps {
            self.steps()?;
            let done = self.state.done;
            let is_last = done == self.options.steps;
            let is_validated = is_last || done.is_multiple_of(self.options.validate_every);
            self.state.seconds += clock.elapsed().as_secs_f64();
            clock = Instant::now();
            if is_validated || done.is_multiple_of(self.options.record_every) {
                self.record(is_validated)?;
            }
            let is_stopped = self.observer.update(done, self.options.steps).is_break();
            if is_validated || is_stopped || last_save.elapsed() >= self.options.save_every {
                self.save()?;
                last_save = Instant::now();
            }
            if is_stopped && !is_last {
                return Ok(self.outcome(false));
            }
        }
        self.finish()
    }

    /// Runs one or more steps, up to the next line of metrics, and checks that all loss terms are finite.
    fn steps(&mut self) -> Result<()> {
        let RunOptions { steps, validate_every, record_every, .. } = *self.options;
        let done = self.state.done;
        // Steps until the next multiple of `every`.
        let until = |every: u64| every - done % every;
        let limit = until(validate_every).min(until(record_every)).min(steps - done);
        for terms in self.trainee.steps(done, limit)? {
            let step = self.state.done;
            if let Some(term) = terms.iter().position(|term| !term.is_finite()) {
                let what = format!("the loss term '{}'", self.trainee.terms()[term]);
                return Err(Error::Diverged { step: step + 1, what, value: terms[term] });
            }
            self.state.done += 1;
            self.state.window.add(&terms);
            self.observer.event(&Event::Stepped { done: step + 1, terms: &terms });
        }
        Ok(())
    }

    /// Adds a line to the metrics, after a validation if `is_validated`, and keeps the model if it is the best.
    fn record(&mut self, is_validated: bool) -> Result<()> {
        let validation = if is_validated { self.trainee.validate()? } else { None };
        let means = self.state.window.take();
        let done = self.state.done;
        let score = validation.as_ref().map(|validation| validation.score);
        let record = Record {
            step: done,
            // Steps are counted from 0, so the last one has the number `done - 1`.
            rate: self.trainee.rate(done - 1),
            loss: means.iter().sum(),
            terms: self.trainee.terms().into_iter().zip(means).collect(),
            score,
            validation: validation.map_or(Vec::new(), |validation| validation.figures),
            seconds: (self.state.seconds * 1e3).round() / 1e3,
            device: self.trainee.device(),
        };
        let is_best = is_validated && self.is_best(score);
        if is_best {
            self.state.best = Some(Best { step: done, score, model: self.model(score)? });
            self.unsaved_best = true;
        }
        self.state.lines.push(record.line());
        self.observer.event(&Event::Recorded { record: &record, is_best });
        Ok(())
    }

    /// Whether `score` is above the best so far. Without validation the latest model counts as the best.
    fn is_best(&self, score: Option<f64>) -> bool {
        match (&self.state.best, score) {
            (Some(Best { score: Some(best), .. }), Some(score)) => score > *best,
            _ => true,
        }
    }

    /// The model file of the current parameters, with configuration, identity, step and score in its metadata.
    fn model(&self, score: Option<f64>) -> Result<Tensors> {
        let mut model = self.trainee.model()?;
        model.set_note("training", &self.options.configuration);
        model.set_note("identity", self.options.identity.to_string());
        model.set_note("step", self.state.done.to_string());
        if let Some(score) = score {
            model.set_note("score", score.to_string());
        }
        if let Some(device) = self.trainee.device() {
            model.set_note("device", device);
        }
        Ok(model)
    }

    /// Writes all files, the checkpoint first. Refuses to save parameters that are not finite.
    fn save(&mut self) -> Result<()> {
        let state = self.trainee.state()?;
        if let Some((name, value)) = state.not_finite() {
            let (step, what) = (self.state.done, format!("tensor '{name}'"));
            return Err(Error::Diverged { step, what, value: value.into() });
        }
        self.state.write(&self.files.checkpoint, &state, &self.options.identity)?;
        self.write_results()?;
        self.observer.event(&Event::Saved { done: self.state.done });
        Ok(())
    }

    /// Writes the files that are derived from the checkpoint: best model, metrics, curves.
    fn write_results(&mut self) -> Result<()> {
        if let Some(best) = self.state.best.as_ref().filter(|_| self.unsaved_best) {
            best.model.write(&self.files.model)?;
            self.unsaved_best = false;
        }
        let lines = &self.state.lines;
        write_text(&self.files.metrics, &lines.iter().flat_map(|line| [line, "\n"]).collect::<String>())?;
        let records: Vec<Record> = lines.iter().filter_map(|line| serde_json::from_str(line).ok()).collect();
        write_text(&self.files.curves, &curves::draw(&self.options.title, &records))
    }

    /// Writes the results and removes the checkpoint.
    fn finish(&mut self) -> Result<Outcome> {
        self.write_results()?;
        std::fs::remove_file(&self.files.checkpoint)
            .map_err(|source| Error::Write { path: self.files.checkpoint.clone(), source })?;
        Ok(self.outcome(true))
    }

    fn outcome(&self, finished: bool) -> Outcome {
        let best = self.state.best.as_ref();
        Outcome {
            done: self.state.done,
            finished,
            best_step: best.map_or(0, |best| best.step),
            best_score: best.and_then(|best| best.score),
        }
    }
}

/// Adds to an error of the GPU the checkpoint from which the run can be resumed.
fn with_checkpoint(error: Error, path: &Path) -> Error {
    match error {
        Error::Gpu { message, hint, .. } => Error::Gpu { message, hint, checkpoint: Some(path.into()) },
        error => error,
    }
}

fn write_text(path: &Path, text: &str) -> Result<()> {
    write_atomically(path, |file| file.write_all(text.as_bytes()))
}

#[cfg(test)]
mod tests;
