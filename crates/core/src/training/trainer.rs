//! The loop.
//!
//! A checkpoint is written after every validation, every so many seconds in between, and when the observer wants
//! to stop. The other files follow from it, so they are written after it: whatever moment the process dies at,
//! the run goes on from a checkpoint that is whole, and what comes after it is done again, the same.
//!
//! A run holds a [`Claim`] on its output from before anything is read until all is written, so two processes never
//! write the files of one run.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use toml::Table;

use super::checkpoint::{Best, RunState};
use super::{Event, Observer, Record, Trainee, curves};
use crate::atomic::{check_writable, write_atomically};
use crate::error::{Error, Result};
use crate::lock::Lock;
use crate::tensors::Tensors;

/// How a run goes, apart from what is trained.
#[derive(Debug, Clone)]
pub struct RunOptions {
    /// The model file; the others lie beside it.
    pub output: PathBuf,
    /// What the curves are headed by.
    pub title: String,
    /// Steps there will be.
    pub steps: u64,
    /// Steps between two validations; the last step is always validated.
    pub validate_every: u64,
    /// Steps between two lines of metrics.
    pub record_every: u64,
    /// The longest time between two checkpoints.
    pub save_every: Duration,
    /// The whole configuration, as text that can be read again.
    pub configuration: String,
    /// What must be the same for a run to be gone on with: all that decides what comes out.
    pub identity: Table,
}

/// What to do about an earlier run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// There must be none.
    Fresh,
    /// Go on with it, if there is one.
    Resume,
    /// Forget it.
    Overwrite,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Steps done in the end.
    pub done: u64,
    /// Whether these were all.
    pub finished: bool,
    /// The step the model file is of.
    pub best_step: u64,
    /// Its validation score.
    pub best_score: Option<f64>,
}

/// The files of a run.
#[derive(Debug, Clone)]
pub struct Files {
    /// The best model so far.
    pub model: PathBuf,
    /// The configuration.
    pub configuration: PathBuf,
    /// The metrics.
    pub metrics: PathBuf,
    /// The learning curves.
    pub curves: PathBuf,
    /// Where an unfinished run stands.
    pub checkpoint: PathBuf,
}

impl Files {
    /// Those that belong to a model file.
    pub fn of(model: &Path) -> Self {
        Files {
            model: model.into(),
            configuration: model.with_extension("toml"),
            metrics: model.with_extension("metrics.jsonl"),
            curves: model.with_extension("curves.svg"),
            checkpoint: model.with_extension("checkpoint"),
        }
    }

    /// Claims the files for one run, which must be allowed to write them.
    ///
    /// [`train`] does this itself. A caller that reads gigabytes first claims the files before, and trains with
    /// [`Claim::train`].
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
    /// If the options is for another output.
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
        if let Some(outcome) = run.begin(self.start)? {
            return Ok(outcome);
        }
        run.go()
    }
}

/// Trains until all steps are done or the observer stops the run.
pub fn train(
    trainee: &mut dyn Trainee,
    options: &RunOptions,
    start: Start,
    observer: &mut dyn Observer,
) -> Result<Outcome> {
    Files::of(&options.output).claim(start)?.train(trainee, options, observer)
}

struct Run<'a> {
    trainee: &'a mut dyn Trainee,
    options: &'a RunOptions,
    files: Files,
    observer: &'a mut dyn Observer,
    state: RunState,
    /// Whether the best model is newer than its file.
    unsaved_best: bool,
}

impl Run<'_> {
    /// Takes up an earlier run. If that was finished already, its outcome.
    fn begin(&mut self, start: Start) -> Result<Option<Outcome>> {
        let (model, checkpoint) = (self.files.model.exists(), self.files.checkpoint.exists());
        match start {
            Start::Overwrite if model => std::fs::remove_file(&self.files.model)
                .map_err(|source| Error::Write { path: self.files.model.clone(), source })?,
            Start::Resume if checkpoint => self.resume()?,
            Start::Resume if model => return self.finished_before().map(Some),
            _ => {}
        }
        write_text(&self.files.configuration, &self.options.configuration)?;
        if !checkpoint || start == Start::Overwrite {
            // From the first moment on there is something to resume, and nothing of an older run.
            self.save()?;
        }
        let terms = self.trainee.terms();
        let (done, steps) = (self.state.done, self.options.steps);
        self.observer.event(&Event::Begins { done, steps, terms: &terms });
        Ok(None)
    }

    fn resume(&mut self) -> Result<()> {
        let (run, state) = RunState::read(&self.files.checkpoint, &self.options.identity)?;
        self.trainee.restore(&state)?;
        self.state = run;
        self.unsaved_best = self.state.best.is_some();
        Ok(())
    }

    /// A model without a checkpoint is of a finished run; it must have been this one.
    fn finished_before(&self) -> Result<Outcome> {
        let model = Tensors::open(&self.files.model)?;
        let identity = model.note("identity").and_then(|text| text.parse::<Table>().ok());
        let then = identity
            .ok_or_else(|| Error::AlreadyThere { path: self.files.model.clone(), unfinished: false })?;
        if let Some((key, then, now)) = super::configuration::difference(&then, &self.options.identity) {
            return Err(Error::OtherConfiguration { path: self.files.model.clone(), key, then, now });
        }
        let number = |key: &str| model.note(key).and_then(|text| text.parse().ok());
        Ok(Outcome {
            done: self.options.steps,
            finished: true,
            best_step: number("step").unwrap_or(self.options.steps as f64) as u64,
            best_score: number("score"),
        })
    }

    fn go(&mut self) -> Result<Outcome> {
        let (mut clock, mut last_save) = (Instant::now(), Instant::now());
        while self.state.done < self.options.steps {
            self.step()?;
            let done = self.state.done;
            let is_last = done == self.options.steps;
            let validates = is_last || done.is_multiple_of(self.options.validate_every);
            self.state.seconds += clock.elapsed().as_secs_f64();
            clock = Instant::now();
            if validates || done.is_multiple_of(self.options.record_every) {
                self.record(validates)?;
            }
            let stops = self.observer.update(done, self.options.steps).is_break();
            if validates || stops || last_save.elapsed() >= self.options.save_every {
                self.save()?;
                last_save = Instant::now();
            }
            if stops && !is_last {
                return Ok(self.outcome(false));
            }
        }
        self.finish()
    }

    fn step(&mut self) -> Result<()> {
        let step = self.state.done;
        let terms = self.trainee.step(step)?;
        if let Some(place) = terms.iter().position(|term| !term.is_finite()) {
            let what = format!("the loss term '{}'", self.trainee.terms()[place]);
            return Err(Error::Diverged { step: step + 1, what, value: terms[place] });
        }
        self.state.done += 1;
        self.state.window.add(&terms);
        self.observer.event(&Event::Stepped { done: step + 1, terms: &terms });
        Ok(())
    }

    /// Writes a line of metrics, with a validation or without.
    fn record(&mut self, validates: bool) -> Result<()> {
        let validation = if validates { self.trainee.validate()? } else { None };
        let means = self.state.window.take();
        let done = self.state.done;
        let score = validation.as_ref().map(|validation| validation.score);
        let record = Record {
            step: done,
            rate: self.trainee.rate(done - 1),
            loss: means.iter().sum(),
            terms: self.trainee.terms().into_iter().zip(means).collect(),
            score,
            validation: validation.map_or(Vec::new(), |validation| validation.figures),
            seconds: (self.state.seconds * 1e3).round() / 1e3,
        };
        let is_best = validates && self.is_best(score);
        if is_best {
            self.state.best = Some(Best { step: done, score, model: self.model(score) });
            self.unsaved_best = true;
        }
        self.state.lines.push(record.line());
        self.observer.event(&Event::Recorded { record: &record, is_best });
        Ok(())
    }

    /// Without validation the latest is the best.
    fn is_best(&self, score: Option<f64>) -> bool {
        match (&self.state.best, score) {
            (Some(Best { score: Some(best), .. }), Some(score)) => score > *best,
            _ => true,
        }
    }

    fn model(&self, score: Option<f64>) -> Tensors {
        let mut model = self.trainee.model();
        model.set_note("training", &self.options.configuration);
        model.set_note("identity", self.options.identity.to_string());
        model.set_note("step", self.state.done.to_string());
        if let Some(score) = score {
            model.set_note("score", score.to_string());
        }
        model
    }

    /// Puts everything on disk, the checkpoint first.
    fn save(&mut self) -> Result<()> {
        let state = self.trainee.state();
        if let Some((name, value)) = state.not_finite() {
            let (step, what) = (self.state.done, format!("tensor '{name}'"));
            return Err(Error::Diverged { step, what, value: value.into() });
        }
        self.state.write(&self.files.checkpoint, &state, &self.options.identity)?;
        self.write_results()?;
        self.observer.event(&Event::Saved { done: self.state.done });
        Ok(())
    }

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

fn write_text(path: &Path, text: &str) -> Result<()> {
    write_atomically(path, |file| file.write_all(text.as_bytes()))
}

#[cfg(test)]
mod tests;
