//! The scoring rule of a saved classifier: [`ScoringRule`] is a [`Classifier`] whose prototypes have been turned into
//! vectors, so that it can score rows without the task it was fitted to.

use trueshot_nn::products;

use super::calibration::LabelPosterior;
use crate::classifier::Classifier;
use crate::embeddings::Embeddings;
use crate::error::{Error, Result};
use crate::task::{Queries, SupportSet, Task};

/// A function from rows to one score per class; the class with the largest score wins.
pub(super) enum ScoringRule {
    /// One vector per class: [`Classifier::Vectors`], [`Classifier::CosineVectors`] or [`Classifier::Linear`].
    Vectors(Classifier),
    /// A classifier that needs the support items: [`Classifier::Neighbours`] or [`Classifier::Matching`].
    Items(Classifier),
    /// The nearest of `vectors` after a row is centred on `mean` and scaled to unit length.
    Centred { mean: Vec<f32>, vectors: Vec<Vec<f32>> },
}

impl ScoringRule {
    /// The rule of a classifier that was fitted to a task.
    ///
    /// # Errors
    /// [`Error::NotKept`] for [`Classifier::Scored`], which cannot be saved.
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
                ScoringRule::Centred { mean, vectors }
            }
            Classifier::Neighbours(_) | Classifier::Matching => ScoringRule::Items(classifier),
            Classifier::Vectors(_) | Classifier::CosineVectors(_) | Classifier::Linear { .. } => {
                ScoringRule::Vectors(classifier)
            }
            Classifier::Scored(_) => return Err(Error::NotKept { method: method.into() }),
        })
    }

    /// Nearest class mean, where each item is weighted by its posterior probability of the class.
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
        let empty_task = Task::new(SupportSet::new(Vec::new(), Vec::new(), 0));
        let by_class = match self {
            ScoringRule::Vectors(classifier) => {
                classifier.scores(&empty_task, &Queries::new(rows.to_vec()), &[])
            }
            ScoringRule::Centred { mean, vectors } => {
                let centred: Vec<Vec<f32>> = rows.iter().map(|row| centred_unit(row, mean)).collect();
                let centred: Vec<&[f32]> = centred.iter().map(Vec::as_slice).collect();
                Classifier::Vectors(vectors.clone()).scores(&empty_task, &Queries::new(centred), &[])
            }
            ScoringRule::Items(classifier) => {
                let values = support.all_rows();
                let items: Vec<&[f32]> = values.chunks_exact(support.dim()).collect();
                let labels = support.labels().to_vec();
                let task = Task::new(SupportSet::new(items, labels, support.classes().len()));
                return classifier.row_scores(&task, rows);
            }
        };
        (0..rows.len()).map(|row| by_class.iter().map(|scores| scores[row]).collect()).collect()
    }
}

/// `(row - mean) / |row - mean|`; the zero vector if the row equals the mean.
pub(super) fn centred_unit(row: &[f32], mean: &[f32]) -> Vec<f32> {
    let centred: Vec<f32> = row.iter().zip(mean).map(|(value, mean)| value - mean).collect();
    let length = products::squared_norm(&centred).sqrt();
    let scale = if length > 0.0 { length.recip() } else { 0.0 };
    centred.into_iter().map(|value| value * scale).collect()
}
