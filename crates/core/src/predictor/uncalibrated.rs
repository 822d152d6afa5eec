//! A fitted method without calibrated probabilities: [`UncalibratedPredictor`] classifies rows and exposes prototypes.
//!
//! It is separate from [`Predictor`] because calibration fits the method several more times, which a caller who needs
//! only classes or the prototypes of many support sets can save.

use std::sync::Arc;

use super::calibration::{self, LabelPosterior};
use super::scoring_rule::ScoringRule;
use super::{KEPT_PER_CLASS, Predictor, check_rows, is_large, most_typical_items, without_empty_classes};
use crate::audit::Audit;
use crate::classifier::Classifier;
use crate::embeddings::Embeddings;
use crate::error::{Error, Result};
use crate::method::{NamedMethod, RELABEL};
use crate::rng::{Purpose, Rng};
use crate::task::{SupportSet, Task};

/// A fitted classifier that finds the class of a row but no probabilities, with its support set.
///
/// ```
/// use trueshot::method::Registry;
/// use trueshot::predictor::UncalibratedPredictor;
///
/// let labels = ["a", "a", "b"].map(str::to_string).to_vec();
/// let data = trueshot::Embeddings::from_rows(vec![0.0, 1.0, 0.0, 3.0, 1.0, 0.0], 2, labels)?;
/// let fitted = UncalibratedPredictor::fit(data, &Registry::default().parse("protonet")?, None)?;
/// assert_eq!(fitted.classify(&[&[0.9, 0.1]])?, [1]);
/// assert_eq!(fitted.prototypes().unwrap().vectors, [[0.0, 2.0], [1.0, 0.0]]);
/// # Ok::<(), trueshot::Error>(())
/// ```
pub struct UncalibratedPredictor {
    /// The label of the method, such as `median:eps=0.1`.
    pub(super) method: String,
    pub(super) classes: Vec<String>,
    pub(super) rule: ScoringRule,
    pub(super) support: Arc<Embeddings>,
    /// The label posterior of the kept items, if the support set was large and has been reduced.
    pub(super) reduced_posterior: Option<LabelPosterior>,
}

/// The prototypes of a classifier that has one vector per class.
pub struct Prototypes<'a> {
    /// The vectors `[classes][dim]`.
    pub vectors: &'a [Vec<f32>],
    /// The mean `[dim]` that is subtracted from a row, which is then scaled to unit length, before it is compared.
    /// `None` if rows are compared unchanged.
    pub centre: Option<&'a [f32]>,
    /// Whether the prototype with the largest cosine wins instead of the nearest one.
    pub by_cosine: bool,
}

impl UncalibratedPredictor {
    /// Fits a method, which must not be transductive, to a support set of at least two classes with items; classes
    /// without items are left out. Of a large set (see [`is_large`]) only the most typical items are kept, by the class
    /// probabilities of the audit.
    pub fn fit(
        data: impl Into<Arc<Embeddings>>,
        method: &NamedMethod,
        audit: Option<&Audit>,
    ) -> Result<Self> {
        method.check_not_transductive()?;
        let data = data.into();
        if data.used_classes().count() < 2 {
            return Err(Error::OneClass);
        }
        let data = without_empty_classes(&data)?.map_or(data, Arc::new);
        let (method_name, classes) = (method.label.clone(), data.classes().to_vec());
        if !is_large(data.len()) {
            let rule = fit_rule(&data, method)?;
            return Ok(UncalibratedPredictor {
                method: method_name,
                classes,
                rule,
                support: data,
                reduced_posterior: None,
            });
        }
        let posterior = LabelPosterior::new(&data, audit);
        // The Relabel network is for small sets: it estimates the probabilities of the labels and weights the items by
        // them. For a large set, those of the audit are used instead, on all items before the set is reduced.
        let relabel_rule = is_relabel(&method.label).then(|| ScoringRule::from_posterior(&data, &posterior));
        let (support, posterior) = most_typical_items(&data, &posterior, KEPT_PER_CLASS)?;
        let support = Arc::new(support);
        let rule = relabel_rule.map_or_else(|| fit_rule(&support, method), Ok)?;
        let reduced_posterior = Some(posterior);
        Ok(UncalibratedPredictor { method: method_name, classes, rule, support, reduced_posterior })
    }

    /// The label of the method that was fitted.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// The names of the classes.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The support set: all items, or those kept of a large set.
    pub fn support(&self) -> &Arc<Embeddings> {
        &self.support
    }

    /// Dimension of the rows.
    pub fn dim(&self) -> usize {
        self.support.dim()
    }

    /// The class of every row of `[n][dim]`, an index into [`UncalibratedPredictor::classes`].
    pub fn classify(&self, rows: &[&[f32]]) -> Result<Vec<u32>> {
        check_rows(rows, self.dim())?;
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.rule.scores(rows, &self.support).iter().map(|scores| argmax(scores)).collect())
    }

    /// The prototypes, if the classifier compares a row with one vector per class; otherwise `None`.
    pub fn prototypes(&self) -> Option<Prototypes<'_>> {
        match &self.rule {
            ScoringRule::Vectors(Classifier::Vectors(vectors)) => {
                Some(Prototypes { vectors, centre: None, by_cosine: false })
            }
            ScoringRule::Vectors(Classifier::CosineVectors(vectors)) => {
                Some(Prototypes { vectors, centre: None, by_cosine: true })
            }
            ScoringRule::Vectors(Classifier::CentredVectors { mean, vectors }) => {
                Some(Prototypes { vectors, centre: Some(mean), by_cosine: false })
            }
            _ => None,
        }
    }

    /// The predictor with calibrated probabilities of the classes and of none. `method` and `audit` must be those of
    /// [`UncalibratedPredictor::fit`].
    pub fn calibrated(self: Arc<Self>, method: &NamedMethod, audit: Option<&Audit>) -> Result<Predictor> {
        // A reduced support set has the posterior of the kept items; the audit is about all items.
        let full = self.reduced_posterior.is_none().then(|| LabelPosterior::new(&self.support, audit));
        let posterior = full.as_ref().or(self.reduced_posterior.as_ref()).expect("one of them exists");
        let values = self.support.all_rows();
        let rows: Vec<&[f32]> = values.chunks_exact(self.support.dim()).collect();
        let sharpness = calibration::sharpness(&rows, &self.support, method, posterior, &self.rule)?;
        let novelty = super::Novelty::new(&rows, posterior);
        let audit = audit.map(|audit| serde_json::to_string(audit).expect("an audit is plain data"));
        Ok(Predictor { uncalibrated: self, sharpness, novelty, audit })
    }
}

/// The index of the largest score; of equal scores, the first.
pub(super) fn argmax(scores: &[f32]) -> u32 {
    let indices = 0..scores.len();
    indices.max_by(|&a, &b| scores[a].total_cmp(&scores[b]).then(b.cmp(&a))).unwrap_or(0) as u32
}

/// Fits a method to all rows of the support set.
fn fit_rule(data: &Embeddings, method: &NamedMethod) -> Result<ScoringRule> {
    let values = data.all_rows();
    let rows: Vec<&[f32]> = values.chunks_exact(data.dim()).collect();
    let task = Task::new(SupportSet::new(rows, data.labels().to_vec(), data.classes().len()));
    let fitted = method.method.fit(&task, &mut Rng::new(0, Purpose::Method, 0))?;
    ScoringRule::new(fitted.classifier, &task, &method.label)
}

/// Whether a label is that of the method `relabel`, with the built-in model or one from a file.
fn is_relabel(label: &str) -> bool {
    label.split(':').next() == Some(RELABEL)
}
