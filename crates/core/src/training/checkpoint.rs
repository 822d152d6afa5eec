//! Checkpoints: the file from which an interrupted training run is resumed as if it had never stopped.
//!
//! Start with [`RunState`], which [`RunState::write`] saves and [`RunState::read`] loads. One file holds the state of
//! the trainee, the best model so far and the metrics so far. It is written atomically, so its parts always belong
//! together. A checkpoint is a safetensors file ([`Tensors`]): numbers of the trainee and the best model are tensors
//! with the prefixes `state.` and `best.`, everything else is text in the metadata ("notes"). Floating-point numbers in
//! the metadata that must be restored exactly are stored as their bits; `seconds` is only shown to people.

use std::collections::BTreeMap;
use std::path::Path;

use toml::Table;

use super::metrics::Window;
use crate::error::{Error, Result};
use crate::tensors::Tensors;

/// The value of the metadata key `format`.
const VERSION: &str = "trueshot-checkpoint/1";

/// The best model so far, the number of steps it was trained for and its validation score.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Best {
    pub step: u64,
    /// `None` if the trainee has no validation; the latest model is the best then.
    pub score: Option<f64>,
    pub model: Tensors,
}

/// How far a run is: everything that a resumed run needs, except the state of the trainee (its parameters and
/// optimiser).
#[derive(Debug, Clone, Default)]
pub(super) struct RunState {
    /// The number of finished steps.
    pub done: u64,
    /// Seconds of training so far.
    pub seconds: f64,
    /// `None` until the first validation is due.
    pub best: Option<Best>,
    /// The lines of the metrics file so far, without line ends.
    pub lines: Vec<String>,
    /// Sums of the loss terms since the last line.
    pub window: Window,
}

impl RunState {
    /// Writes a checkpoint with `state`, the state of the trainee, and `identity`, everything that the result of the
    /// run depends on. Only a run of the same identity can be resumed from it.
    pub fn write(&self, path: &Path, state: &Tensors, identity: &Table) -> Result<()> {
        let mut file = Tensors::default();
        file.insert_all("state.", state);
        file.set_note("state", notes_as_json(state));
        file.set_note("format", VERSION);
        file.set_note("done", self.done.to_string());
        file.set_note("seconds", self.seconds.to_string());
        file.set_note("identity", identity.to_string());
        file.set_note("metrics", self.lines.join("\n"));
        let sums: Vec<u64> = self.window.sums.iter().map(|sum| sum.to_bits()).collect();
        file.set_note("window", serde_json::json!([self.window.count, sums]).to_string());
        if let Some(best) = &self.best {
            file.insert_all("best.", &best.model);
            let best_note =
                serde_json::json!([best.step, best.score.map(f64::to_bits), notes_as_json(&best.model)]);
            file.set_note("best", best_note.to_string());
        }
        file.write(path)
    }

    /// Reads a checkpoint: how far the run was, and the state of the trainee.
    ///
    /// # Errors
    /// [`Error::OtherConfiguration`] if the checkpoint was written with another identity, [`Error::Malformed`] or
    /// [`Error::Damaged`] if the file is not a complete checkpoint.
    pub fn read(path: &Path, identity: &Table) -> Result<(Self, Tensors)> {
        let file = Tensors::open(path)?;
        let malformed =
            |problem: String| Error::Malformed { path: path.into(), format: "checkpoint", problem };
        if file.note("format") != Some(VERSION) {
            return Err(malformed(format!("its format is not '{VERSION}'")));
        }
        let note = |key: &str| file.note(key).ok_or_else(|| malformed(format!("it has no metadata '{key}'")));
        let unreadable = |key: &str| malformed(format!("its metadata '{key}' cannot be parsed"));
        let earlier: Table = note("identity")?.parse().map_err(|_| unreadable("identity"))?;
        if let Some((key, then, now)) = super::configuration::difference(&earlier, identity) {
            return Err(Error::OtherConfiguration { path: path.into(), key, then, now });
        }
        let (count, sums): (u64, Vec<u64>) =
            serde_json::from_str(note("window")?).map_err(|_| unreadable("window"))?;
        let best = file.note("best").map(|text| read_best(&file, text).ok_or_else(|| unreadable("best")));
        let run = RunState {
            done: note("done")?.parse().map_err(|_| unreadable("done"))?,
            seconds: note("seconds")?.parse().map_err(|_| unreadable("seconds"))?,
            best: best.transpose()?,
            lines: note("metrics")?.lines().map(str::to_string).collect(),
            window: Window { count, sums: sums.into_iter().map(f64::from_bits).collect() },
        };
        let mut state = file.with_prefix("state.");
        set_notes(&mut state, note("state")?).ok_or_else(|| unreadable("state"))?;
        Ok((run, state))
    }
}

/// Reads the best model, whose tensors have the prefix `best.` and whose other data is in the JSON array `text`.
fn read_best(file: &Tensors, text: &str) -> Option<Best> {
    let (step, score, notes): (u64, Option<u64>, String) = serde_json::from_str(text).ok()?;
    let mut model = file.with_prefix("best.");
    set_notes(&mut model, &notes)?;
    Some(Best { step, score: score.map(f64::from_bits), model })
}

/// All metadata of `tensors` as one JSON object.
fn notes_as_json(tensors: &Tensors) -> String {
    serde_json::json!(tensors.notes().collect::<BTreeMap<&str, &str>>()).to_string()
}

/// Adds the metadata in the JSON object `text`; `None` if it cannot be parsed.
fn set_notes(tensors: &mut Tensors, text: &str) -> Option<()> {
    let notes: BTreeMap<String, String> = serde_json::from_str(text).ok()?;
    notes.into_iter().for_each(|(key, text)| tensors.set_note(&key, text));
    Some(())
}
