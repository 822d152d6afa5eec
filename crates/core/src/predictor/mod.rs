//! A classifier to keep: what a method learned from a support set, calibrated, in one file that answers later anywhere.
//!
//! A [`Predictor`] knows its classes, which embedder its rows came from, and the support set itself, so that more can be
//! added to it ([`Predictor::support`]). Probabilities are those of a softmax whose sharpness is found by leaving items
//! out (`calibration`); how strange a row is follows from its cosine with the nearest class (`novelty`).

mod builder;
mod calibration;
mod file;
mod novelty;
mod scoring_rule;
mod uncalibrated;

use std::sync::Arc;

use serde::Serialize;

pub use self::builder::{DEFAULT_METHOD, PredictorBuilder};
use self::calibration::LabelPosterior;
use self::novelty::Novelty;
pub use self::uncalibrated::{Prototypes, UncalibratedPredictor};
use crate::audit::{Audit, item_name};
use crate::embeddings::{Embeddings, Features, Items, Labels, Parts};
use crate::error::{Error, Result};
use crate::method::NamedMethod;

/// Of a collection of more items than this only some are kept.
const LARGE: usize = 500;
/// So many of every class.
const KEPT: usize = 50;

/// A classifier that is ready to be asked.
pub struct Predictor {
    learned: Arc<UncalibratedPredictor>,
    sharpness: f32,
    novelty: Novelty,
    /// What was found in the support set, as JSON.
    audit: Option<String>,
}

/// An answer.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    /// The place of the most probable class among [`Predictor::classes`].
    pub class: u32,
    /// How probable it is, if it is one of the classes at all.
    pub probability: f32,
    /// How strange the row is, from 0 (like the items of its class) to 1 (like nothing that was seen).
    pub unknown: f32,
    /// The probability of every class.
    #[serde(skip)]
    pub probabilities: Vec<f32>,
}

impl Predictor {
    /// Starts a classifier from labelled rows: choose a method on the builder, then call [`PredictorBuilder::fit`].
    ///
    /// ```
    /// use trueshot::{Embeddings, Predictor};
    ///
    /// let labels = ["cat", "cat", "cat", "dog", "dog", "dog"].map(String::from).to_vec();
    /// let values = vec![1.0, 0.0, 0.9, 0.1, 0.8, 0.1, 0.0, 1.0, 0.2, 0.9, 0.1, 0.8];
    /// let classifier = Predictor::of(Embeddings::from_rows(values, 2, labels)?).fit()?;
    /// let prediction = &classifier.predict(&[&[0.1, 1.0]])?[0];
    /// assert_eq!(classifier.classes()[prediction.class as usize], "dog");
    /// # Ok::<(), trueshot::Error>(())
    /// ```
    pub fn of<'a>(data: Embeddings) -> PredictorBuilder<'a> {
        PredictorBuilder::new(data)
    }

    /// Learns from a support set. With an audit, labels count as far as it believes in them when the answers are
    /// calibrated, and its findings are kept in the file.
    pub fn fit(data: Embeddings, method: &NamedMethod, audit: Option<&Audit>) -> Result<Self> {
        Arc::new(UncalibratedPredictor::fit(data, method, audit)?).calibrated(method, audit)
    }

    /// What it answers by.
    pub fn learned(&self) -> &Arc<UncalibratedPredictor> {
        &self.learned
    }

    /// The method it was learned by.
    pub fn method(&self) -> &str {
        &self.learned.method
    }

    /// The names of the classes.
    pub fn classes(&self) -> &[String] {
        &self.learned.classes
    }

    /// Numbers in a row.
    pub fn dim(&self) -> usize {
        self.learned.support.dim()
    }

    /// What made the rows it learned from, and must make those it is asked about.
    pub fn embedder(&self) -> Option<&str> {
        self.learned.support.backbone()
    }

    /// What it learned from.
    pub fn support(&self) -> &Embeddings {
        &self.learned.support
    }

    /// What was found in the support set, as JSON.
    pub fn audit(&self) -> Option<&str> {
        self.audit.as_deref()
    }

    /// Answers for some rows. Every answer depends on its own row alone.
    pub fn predict(&self, rows: &[&[f32]]) -> Result<Vec<Prediction>> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        check_rows(rows, self.dim())?;
        let scores = self.learned.rule.scores(rows, self.support());
        let strange = self.novelty.of_rows(rows);
        let answer = |(scores, unknown): (Vec<f32>, f32)| {
            let probabilities = calibration::softmax(&scores, self.sharpness);
            let class = uncalibrated::best(&scores);
            Prediction { class, probability: probabilities[class as usize], unknown, probabilities }
        };
        Ok(scores.into_iter().zip(strange).map(answer).collect())
    }
}

/// Whether a support set of so many items is a large one: only some of them are kept, chosen by an audit.
pub fn is_large(items: usize) -> bool {
    items > LARGE
}

fn check_rows(rows: &[&[f32]], dim: usize) -> Result<()> {
    match rows.iter().find(|row| row.len() != dim) {
        None => Ok(()),
        Some(row) => Err(Error::ClassifierDimension { rows: row.len(), classifier: dim }),
    }
}

/// The items of every class that belong to it most, filed under it.
fn thinned(
    data: &Embeddings,
    posterior: &LabelPosterior,
    most: usize,
) -> Result<(Embeddings, LabelPosterior)> {
    let chosen = posterior.most_typical(most);
    let mut values = vec![0.0; chosen.len() * data.dim()];
    for (&(row, _), out) in chosen.iter().zip(values.chunks_exact_mut(data.dim())) {
        data.features().decode_row(row as usize, out);
    }
    let parts = Parts {
        features: Features::from_f32(values, data.dim()),
        labels: Labels::Indexed {
            labels: chosen.iter().map(|&(_, class)| class.into()).collect(),
            classes: data.classes().to_vec(),
        },
        items: Some(Items::from_names(chosen.iter().map(|&(row, _)| item_name(data, row as usize)))),
        backbone: data.backbone().map(str::to_string),
    };
    let mut kept = Embeddings::from_parts(parts, None)?;
    kept.check()?;
    let posterior = LabelPosterior::of(&kept, None);
    Ok((kept, posterior))
}

/// All rows of a support set, one after the other.
fn all_rows(data: &Embeddings) -> Vec<f32> {
    let mut values = vec![0.0; data.len() * data.dim()];
    for (row, out) in values.chunks_exact_mut(data.dim()).enumerate() {
        data.features().decode_row(row, out);
    }
    values
}

#[cfg(test)]
mod tests;
