//! Classifiers that can be saved: a [`Predictor`] is a fitted method with calibrated probabilities of its classes and
//! of "none of the classes". `trueshot fit` writes it to a file and `trueshot predict` reads it.
//!
//! The *support set* is the labelled items that a classifier is fitted to; a *row* is the embedding of an item. Start
//! with [`Predictor::of`] to make a classifier and [`Predictor::predict`] to use it. In the code:
//!
//! | file | task |
//! |---|---|
//! | `builder` | chooses the method, audits the support set, fits |
//! | `uncalibrated` | fits the method: classes without probabilities |
//! | `scoring_rule` | the fitted method, in a form that can be saved |
//! | `calibration` | the sharpness of the softmax over the classes, by cross-validation |
//! | `novelty` | the probability that a row belongs to none of the classes |
//! | `similarity`, `leave_out` | the similarities that `novelty` uses, and those of left-out items that calibrate it |
//! | `file` | reads and writes the classifier file |
//! | `graph` | the classifier as a part of an ONNX model |
//!
//! The file contains the support set, so that items can be added later ([`Predictor::support`]), and the name of the
//! embedder (the network that computed the rows), because rows to predict must come from the same one.

mod builder;
mod calibration;
mod file;
mod graph;
mod leave_out;
mod novelty;
mod scoring_rule;
mod similarity;
mod uncalibrated;

use std::sync::Arc;

use serde::Serialize;

pub use self::builder::{DEFAULT_METHOD, PredictorBuilder};
use self::calibration::LabelPosterior;
pub use self::graph::OutputNames;
use self::novelty::Novelty;
pub use self::uncalibrated::{Prototypes, UncalibratedPredictor};
use crate::audit::{Audit, item_name};
use crate::embeddings::{Embeddings, Features, Items, Labels, Parts};
use crate::error::{Error, Result};
use crate::method::NamedMethod;

/// Support sets with more items than this are reduced to the [`KEPT_PER_CLASS`] most typical items per class. This
/// bounds the size of the file, which contains all kept items, and the time of the fit.
const LARGE: usize = 500;
/// Number of items per class that are kept of a large support set.
const KEPT_PER_CLASS: usize = 50;

/// A fitted, calibrated classifier that can be saved to a file.
///
/// ```
/// use trueshot::method::Registry;
/// use trueshot::predictor::Predictor;
///
/// let labels = ["a", "a", "a", "b", "b", "b"].map(str::to_string).to_vec();
/// let rows = vec![0.0, 1.0, 0.1, 1.0, 0.0, 0.9, 1.0, 0.0, 1.0, 0.1, 0.9, 0.0];
/// let data = trueshot::Embeddings::from_rows(rows, 2, labels)?;
/// let predictor = Predictor::fit(data, &Registry::default().parse("protonet")?, None)?;
/// let read = Predictor::read_bytes(predictor.to_bytes(), "classifier")?;
/// assert_eq!(read.predict(&[&[0.9, 0.1]])?[0].class, 1);
/// # Ok::<(), trueshot::Error>(())
/// ```
pub struct Predictor {
    uncalibrated: Arc<UncalibratedPredictor>,
    /// The factor that scores are multiplied by before the softmax (an inverse temperature).
    sharpness: f32,
    /// The model of "none of the classes".
    novelty: Novelty,
    /// The audit of the support set, as JSON.
    audit: Option<String>,
}

/// The prediction for one row: a distribution over the classes and "none of the classes".
///
/// ```
/// use trueshot::{Embeddings, Predictor};
///
/// let labels = ["cat", "cat", "cat", "dog", "dog", "dog"].map(String::from).to_vec();
/// let values = vec![1.0, 0.0, 0.9, 0.1, 0.8, 0.1, 0.0, 1.0, 0.2, 0.9, 0.1, 0.8];
/// let classifier = Predictor::of(Embeddings::from_rows(values, 2, labels)?).fit()?;
/// let prediction = &classifier.predict(&[&[0.1, 1.0]])?[0];
/// let sum = prediction.probabilities.iter().sum::<f32>() + prediction.unknown;
/// assert!((sum - 1.0).abs() < 1e-5);
/// # Ok::<(), trueshot::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Prediction {
    /// The most probable class, an index into [`Predictor::classes`]; also if "none of the classes" is more probable.
    pub class: u32,
    /// The probability of `class`.
    pub probability: f32,
    /// The probability that the row belongs to none of the classes.
    pub unknown: f32,
    /// The probabilities of all classes; with `unknown` they sum to 1.
    #[serde(skip)]
    pub probabilities: Vec<f32>,
}

impl Prediction {
    /// The probabilities of all classes, given that the row belongs to one of them; they sum to 1.
    pub fn probabilities_if_known(&self) -> Vec<f32> {
        // The sum is `1 - unknown` without the rounding error, and above 0.
        let sum: f32 = self.probabilities.iter().sum();
        self.probabilities.iter().map(|probability| probability / sum).collect()
    }
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

    /// Fits a method to a support set and calibrates its probabilities.
    ///
    /// `audit` is an audit of `data`. With it, calibration weights the labels by the probabilities that the audit gives
    /// them, and the audit is saved in the file.
    pub fn fit(data: Embeddings, method: &NamedMethod, audit: Option<&Audit>) -> Result<Self> {
        Arc::new(UncalibratedPredictor::fit(data, method, audit)?).calibrated(method, audit)
    }

    /// The fitted classifier without probabilities.
    pub fn uncalibrated(&self) -> &Arc<UncalibratedPredictor> {
        &self.uncalibrated
    }

    /// The label of the method that was fitted, such as `median:eps=0.1`.
    pub fn method(&self) -> &str {
        &self.uncalibrated.method
    }

    /// The names of the classes.
    pub fn classes(&self) -> &[String] {
        &self.uncalibrated.classes
    }

    /// Dimension of the rows.
    pub fn dim(&self) -> usize {
        self.uncalibrated.support.dim()
    }

    /// The embedder that made the support rows, if it is known; rows to predict must come from the same one.
    pub fn embedder(&self) -> Option<&str> {
        self.uncalibrated.support.backbone()
    }

    /// The support set: all items, or those kept of a large set.
    pub fn support(&self) -> &Embeddings {
        &self.uncalibrated.support
    }

    /// The audit of the support set as JSON, if there was one.
    pub fn audit(&self) -> Option<&str> {
        self.audit.as_deref()
    }

    /// Predicts the classes of rows `[n][dim]`. The prediction for a row does not depend on the other rows.
    pub fn predict(&self, rows: &[&[f32]]) -> Result<Vec<Prediction>> {
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        check_rows(rows, self.dim())?;
        let scores = self.uncalibrated.rule.scores(rows, self.support());
        let unknown = self.novelty.probabilities(rows);
        let prediction = |(scores, unknown): (Vec<f32>, f32)| {
            let mut probabilities = calibration::softmax(&scores, self.sharpness);
            probabilities.iter_mut().for_each(|probability| *probability *= 1.0 - unknown);
            let class = uncalibrated::argmax(&scores);
            Prediction { class, probability: probabilities[class as usize], unknown, probabilities }
        };
        Ok(scores.into_iter().zip(unknown).map(prediction).collect())
    }
}

/// Whether a support set of this many items is reduced to the most typical items of each class, which an audit helps to
/// choose.
pub fn is_large(items: usize) -> bool {
    items > LARGE
}

/// Checks that all rows have the dimension of the classifier.
fn check_rows(rows: &[&[f32]], dim: usize) -> Result<()> {
    match rows.iter().find(|row| row.len() != dim) {
        None => Ok(()),
        Some(row) => Err(Error::ClassifierDimension { rows: row.len(), classifier: dim }),
    }
}

/// The data without the classes that have no items, whose prototypes would be zero vectors; `None` if all classes have
/// items.
fn without_empty_classes(data: &Embeddings) -> Result<Option<Embeddings>> {
    let used: Vec<usize> = data.used_classes().collect();
    if used.len() == data.classes().len() {
        return Ok(None);
    }
    // The new number of a class: its position among the used ones, which are in ascending order.
    let number = |class: &u32| used.partition_point(|other| other < &(*class as usize)) as i64;
    let parts = Parts {
        features: Features::from_f32(data.all_rows().into_owned(), data.dim()),
        labels: Labels::Indexed {
            labels: data.labels().iter().map(number).collect(),
            classes: used.iter().map(|&class| data.classes()[class].clone()).collect(),
        },
        items: data.items().cloned(),
        backbone: data.backbone().map(str::to_string),
    };
    Embeddings::from_parts(parts, None).map(Some)
}

/// Reduces a support set to at most `max_per_class` items per class: those with the highest probability of the class,
/// labelled with it. Also returns the posterior of the reduced set, in which every label is certain.
fn most_typical_items(
    data: &Embeddings,
    posterior: &LabelPosterior,
    max_per_class: usize,
) -> Result<(Embeddings, LabelPosterior)> {
    let chosen = posterior.most_typical(data, max_per_class);
    let rows: Vec<u32> = chosen.iter().map(|&(row, _)| row).collect();
    let values = data.gather(&rows).into_owned();
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
    let posterior = LabelPosterior::new(&kept, None);
    Ok((kept, posterior))
}

#[cfg(test)]
mod tests;
