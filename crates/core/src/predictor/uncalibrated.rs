//! What a method learned from a support set, before its answers are calibrated. Enough to name classes, and quick to make:
//! who only wants the prototypes of a million support sets, or the class of one row, need not leave items out.

use std::sync::Arc;

use super::calibration::{self, LabelPosterior};
use super::scoring_rule::ScoringRule;
use super::{KEPT, Predictor, all_rows, check_rows, is_large, thinned};
use crate::audit::Audit;
use crate::classifier::Classifier;
use crate::embeddings::Embeddings;
use crate::error::{Error, Result};
use crate::method::{NamedMethod, RELABEL};
use crate::rng::{Purpose, Rng};
use crate::task::{SupportSet, Task};

/// A rule that scores classes, and what it was learned from.
pub struct UncalibratedPredictor {
    pub(super) method: String,
    pub(super) classes: Vec<String>,
    pub(super) rule: ScoringRule,
    pub(super) support: Arc<Embeddings>,
    /// What was believed of the items of a large set when some of them were chosen.
    pub(super) chosen_by: Option<LabelPosterior>,
}

/// One vector a class; the nearest, or the one with the largest cosine, wins.
pub struct Prototypes<'a> {
    /// The vectors, in the order of the classes.
    pub vectors: &'a [Vec<f32>],
    /// What is subtracted from a row before it is brought to unit length and compared; without one, rows are
    /// compared as they are.
    pub centre: Option<&'a [f32]>,
    /// Whether cosines are compared rather than distances.
    pub by_cosine: bool,
}

impl UncalibratedPredictor {
    /// Learns. Of a large set (see [`is_large`]) only some items are kept, chosen by what the audit believes of them.
    pub fn fit(
        data: impl Into<Arc<Embeddings>>,
        method: &NamedMethod,
        audit: Option<&Audit>,
    ) -> Result<Self> {
        let data = data.into();
        if data.classes().len() < 2 {
            return Err(Error::OneClass);
        }
        let (method_name, classes) = (method.label.clone(), data.classes().to_vec());
        if !is_large(data.len()) {
            let rule = rule_of(&data, method)?;
            return Ok(UncalibratedPredictor {
                method: method_name,
                classes,
                rule,
                support: data,
                chosen_by: None,
            });
        }
        let posterior = LabelPosterior::of(&data, audit);
        // The head is for small sets; what it said of every item of a large one is in the posterior.
        let all = is_relabel(&method.label).then(|| ScoringRule::from_posterior(&data, &posterior));
        let (support, posterior) = thinned(&data, &posterior, KEPT)?;
        let support = Arc::new(support);
        let rule = all.map_or_else(|| rule_of(&support, method), Ok)?;
        Ok(UncalibratedPredictor { method: method_name, classes, rule, support, chosen_by: Some(posterior) })
    }

    /// The method it was learned by.
    pub fn method(&self) -> &str {
        &self.method
    }

    /// The names of the classes.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// What it learned from: everything, or what was kept of a large set.
    pub fn support(&self) -> &Arc<Embeddings> {
        &self.support
    }

    /// Numbers in a row.
    pub fn dim(&self) -> usize {
        self.support.dim()
    }

    /// The class of every one of some rows, as a place among the classes.
    pub fn answer(&self, rows: &[&[f32]]) -> Result<Vec<u32>> {
        check_rows(rows, self.dim())?;
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        Ok(self.rule.scores(rows, &self.support).iter().map(|scores| best(scores)).collect())
    }

    /// The vectors it compares with, if it is a matter of one vector a class.
    pub fn prototypes(&self) -> Option<Prototypes<'_>> {
        match &self.rule {
            ScoringRule::Vectors(Classifier::Vectors(vectors)) => {
                Some(Prototypes { vectors, centre: None, by_cosine: false })
            }
            ScoringRule::Vectors(Classifier::CosineVectors(vectors)) => {
                Some(Prototypes { vectors, centre: None, by_cosine: true })
            }
            ScoringRule::Placed { mean, vectors } => {
                Some(Prototypes { vectors, centre: Some(mean), by_cosine: false })
            }
            _ => None,
        }
    }

    /// Finds out how sure its answers may be. `method` and `audit` are those it was learned with, if not of fewer items.
    pub fn calibrated(self: Arc<Self>, method: &NamedMethod, audit: Option<&Audit>) -> Result<Predictor> {
        let fresh = self.chosen_by.is_none().then(|| LabelPosterior::of(&self.support, audit));
        let posterior = fresh.as_ref().or(self.chosen_by.as_ref()).expect("one of the two is there");
        let values = all_rows(&self.support);
        let rows: Vec<&[f32]> = values.chunks_exact(self.support.dim()).collect();
        let sharpness = calibration::sharpness(&rows, &self.support, method, posterior, &self.rule)?;
        let novelty = super::Novelty::of(&rows, posterior);
        let audit = audit.map(|audit| serde_json::to_string(audit).expect("plain data"));
        Ok(Predictor { learned: self, sharpness, novelty, audit })
    }
}

/// The place of the largest score; the first where scores are equal.
pub(super) fn best(scores: &[f32]) -> u32 {
    let places = 0..scores.len();
    places.max_by(|&a, &b| scores[a].total_cmp(&scores[b]).then(b.cmp(&a))).unwrap_or(0) as u32
}

fn rule_of(data: &Embeddings, method: &NamedMethod) -> Result<ScoringRule> {
    let values = all_rows(data);
    let rows: Vec<&[f32]> = values.chunks_exact(data.dim()).collect();
    let task = Task::new(SupportSet::new(rows, data.labels().to_vec(), data.classes().len()));
    let fitted = method.method.fit(&task, &mut Rng::new(0, Purpose::Method, 0))?;
    ScoringRule::of(fitted.classifier, &task, &method.label)
}

/// Whether a method is the head, built in or from a file.
fn is_relabel(label: &str) -> bool {
    label.split(':').next() == Some(RELABEL)
}
