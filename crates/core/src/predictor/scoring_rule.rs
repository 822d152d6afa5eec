//! The scoring rule of a saved classifier: [`ScoringRule`] is a [`Classifier`] that can score rows without the task it
//! was fitted to.
//!
//! A [`Classifier`] stores a prototype as weights of the support items of its [`Task`] (support set, queries and their
//! inner products). Here these prototypes are turned into vectors. Rules that compare rows with the support items
//! themselves take them from the classifier file.

use super::calibration::LabelPosterior;
use crate::classifier::Classifier;
use crate::embeddings::Embeddings;
use crate::error::{Error, Result};
use crate::task::{SupportSet, Task};

/// A function from rows to one score per class; the class with the largest score wins.
pub(super) enum ScoringRule {
    /// One vector per class: [`Classifier::Vectors`], [`Classifier::CentredVectors`], [`Classifier::CosineVectors`] or
    /// [`Classifier::Linear`].
    Vectors(Classifier),
    /// A classifier that compares rows with the support items: [`Classifier::Neighbours`] or [`Classifier::Matching`].
    Items(Classifier),
}

impl ScoringRule {
    /// The rule of a classifier that was fitted to a task by `method`, which errors name.
    ///
    /// # Errors
    /// [`Error::CannotBeSaved`] for [`Classifier::Scored`] and [`Error::Transductive`] for
    /// [`Classifier::Transductive`], which cannot be saved.
    pub fn new(classifier: Classifier, task: &Task<'_>, method: &str) -> Result<Self> {
        Ok(match classifier {
            Classifier::Prototypes(mixture) => {
                ScoringRule::Vectors(Classifier::Vectors(mixture.vectors(task)))
            }
            Classifier::Cosine(mixture) => {
                ScoringRule::Vectors(Classifier::CosineVectors(mixture.vectors(task)))
            }
            Classifier::Centred(mixture) => {
                let (mean, vectors) = mixture.vectors(task);
                ScoringRule::Vectors(Classifier::CentredVectors { mean, vectors })
            }
            Classifier::Neighbours(_) | Classifier::Matching => ScoringRule::Items(classifier),
            Classifier::Vectors(_)
            | Classifier::CentredVectors { .. }
            | Classifier::CosineVectors(_)
            | Classifier::Linear { .. } => ScoringRule::Vectors(classifier),
            Classifier::Scored(_) => return Err(Error::CannotBeSaved { method: method.into() }),
            Classifier::Transductive(_) => return Err(Error::Transductive { method: method.into() }),
        })
    }

    /// The rule of the nearest class mean, where each item is weighted by its posterior probability of the class.
    pub fn from_posterior(data: &Embeddings, posterior: &LabelPosterior) -> Self {
        let totals = posterior.totals();
        let mut vectors = vec![vec![0.0f32; data.dim()]; data.classes().len()];
        for (row, shares) in posterior.shares().iter().enumerate() {
            let values = data.row(row);
            for &(class, share) in shares.iter().filter(|(class, _)| (*class as usize) < totals.len()) {
                let weight = share / totals[class as usize].max(f32::MIN_POSITIVE);
                vectors[class as usize]
                    .iter_mut()
                    .zip(&*values)
                    .for_each(|(sum, value)| *sum += weight * value);
            }
        }
        ScoringRule::Vectors(Classifier::Vectors(vectors))
    }

    /// Scores `[rows][classes]`. `support` is the support set of the predictor.
    pub fn scores(&self, rows: &[&[f32]], support: &Embeddings) -> Vec<Vec<f32>> {
        match self {
            ScoringRule::Vectors(classifier) => {
                // Rules of vectors do not look at the task.
                let empty_task = Task::new(SupportSet::new(Vec::new(), Vec::new(), 0));
                classifier.row_scores(&empty_task, rows)
            }
            ScoringRule::Items(classifier) => {
                let values = support.all_rows();
                let items: Vec<&[f32]> = values.chunks_exact(support.dim()).collect();
                let labels = support.labels().to_vec();
                let task = Task::new(SupportSet::new(items, labels, support.classes().len()));
                classifier.row_scores(&task, rows)
            }
        }
    }
}
