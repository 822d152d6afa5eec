//! Checkpoints: all that a run needs to go on as if it had never stopped.
//!
//! One file that appears whole or not at all, so it never contradicts itself: the state, the best model so far,
//! the metrics so far. Numbers that must come back to the bit are written as bits.

use std::collections::BTreeMap;
use std::path::Path;

use toml::Table;

use super::metrics::Window;
use crate::error::{Error, Result};
use crate::tensors::Tensors;

const VERSION: &str = "trueshot-checkpoint/1";

/// The best model so far.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Best {
    pub step: u64,
    pub score: Option<f64>,
    pub model: Tensors,
}

/// The state of a run, apart from what is trained.
#[derive(Debug, Clone, Default)]
pub(super) struct RunState {
    pub done: u64,
    pub seconds: f64,
    pub best: Option<Best>,
    /// Lines of metrics, as they were written.
    pub lines: Vec<String>,
    /// Steps since the last of them.
    pub window: Window,
}

impl RunState {
    /// Saves everything.
    pub fn write(&self, path: &Path, state: &Tensors, identity: &Table) -> Result<()> {
        let mut file = Tensors::default();
        file.insert_all("state.", state);
        file.set_note("state", notes_of(state));
        file.set_note("format", VERSION);
        file.set_note("done", self.done.to_string());
        file.set_note("seconds", self.seconds.to_string());
        file.set_note("identity", identity.to_string());
        file.set_note("metrics", self.lines.join("\n"));
        let sums: Vec<u64> = self.window.sums.iter().map(|sum| sum.to_bits()).collect();
        file.set_note("window", serde_json::json!([self.window.count, sums]).to_string());
        if let Some(best) = &self.best {
            file.insert_all("best.", &best.model);
            let about = serde_json::json!([best.step, best.score.map(f64::to_bits), notes_of(&best.model)]);
            file.set_note("best", about.to_string());
        }
        file.write(path)
    }

    /// Reads a checkpoint, refusing one of another run: where it stands, and the trainee's state.
    pub fn read(path: &Path, identity: &Table) -> Result<(Self, Tensors)> {
        let file = Tensors::open(path)?;
        let malformed =
            |problem: String| Error::Malformed { path: path.into(), format: "checkpoint", problem };
        if file.note("format") != Some(VERSION) {
            return Err(malformed(format!("its format is not '{VERSION}'")));
        }
        let note = |key: &str| file.note(key).ok_or_else(|| malformed(format!("it has no metadata '{key}'")));
        let broken = |key: &str| malformed(format!("its metadata '{key}' cannot be parsed"));
        let then: Table = note("identity")?.parse().map_err(|_| broken("identity"))?;
        if let Some((key, then, now)) = super::configuration::difference(&then, identity) {
            return Err(Error::OtherConfiguration { path: path.into(), key, then, now });
        }
        let (count, sums): (u64, Vec<u64>) =
            serde_json::from_str(note("window")?).map_err(|_| broken("window"))?;
        let best = file.note("best").map(|text| read_best(&file, text).ok_or_else(|| broken("best")));
        let run = RunState {
            done: note("done")?.parse().map_err(|_| broken("done"))?,
            seconds: note("seconds")?.parse().map_err(|_| broken("seconds"))?,
            best: best.transpose()?,
            lines: note("metrics")?.lines().map(str::to_string).collect(),
            window: Window { count, sums: sums.into_iter().map(f64::from_bits).collect() },
        };
        let mut state = file.with_prefix("state.");
        set_notes(&mut state, note("state")?).ok_or_else(|| broken("state"))?;
        Ok((run, state))
    }
}

fn read_best(file: &Tensors, text: &str) -> Option<Best> {
    let (step, score, notes): (u64, Option<u64>, String) = serde_json::from_str(text).ok()?;
    let mut model = file.with_prefix("best.");
    set_notes(&mut model, &notes)?;
    Some(Best { step, score: score.map(f64::from_bits), model })
}

/// Notes as one.
fn notes_of(tensors: &Tensors) -> String {
    serde_json::json!(tensors.notes().collect::<BTreeMap<&str, &str>>()).to_string()
}

fn set_notes(tensors: &mut Tensors, text: &str) -> Option<()> {
    let notes: BTreeMap<String, String> = serde_json::from_str(text).ok()?;
    notes.into_iter().for_each(|(key, text)| tensors.set_note(&key, text));
    Some(())
}
