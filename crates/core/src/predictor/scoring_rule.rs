//! How a kept classifier scores a row: what its method learned, as vectors that need nothing else.

use trueshot_nn::products;

use super::calibration::LabelPosterior;
use crate::classifier::Classifier;
use crate::embeddings::Embeddings;
use crate::error::{Error, Result};
use crate::task::{Queries, SupportSet, Task};

/// Scores of classes; the largest wins.
pub(super) enum ScoringRule {
    /// Vectors, asked as the library's classifiers are: nearest, cosine or linear.
    Vectors(Classifier),
    /// The support items are asked themselves, in the votes of neighbours and of matching.
    Items(Classifier),
    /// The nearest of some vectors, in a space minus the mean and at unit length.
    Placed { mean: Vec<f32>, vectors: Vec<Vec<f32>> },
}

impl ScoringRule {
    /// What is left of a classifier when its support set is gone.
    pub fn of(classifier: Classifier, task: &Task<'_>, method: &str) -> Result<Self> {
        Ok(match classifier {
            Classifier::Prototypes(mixture) => {
                ScoringRule::Vectors(Classifier::Vectors(mixture.vectors(task)))
            }
            Classifier::Cosine(mixture) => {
                ScoringRule::Vectors(Classifier::CosineVectors(mixture.vectors(task)))
            }
            Classifier::Centred(mixture) => {
                let (mean, vectors) = mixture.vectors(task);
                ScoringRule::Placed { mean, vectors }
            }
            Classifier::Neighbours(_) | Classifier::Matching => ScoringRule::Items(classifier),
            Classifier::Vectors(_) | Classifier::CosineVectors(_) | Classifier::Linear { .. } => {
                ScoringRule::Vectors(classifier)
            }
            Classifier::Scored(_) => return Err(Error::NotKept { method: method.into() }),
        })
    }

    /// The mean of every class, its items weighing as much as they belong to it.
    pub fn from_posterior(data: &Embeddings, posterior: &LabelPosterior) -> Self {
        let totals = posterior.totals();
        let mut vectors = vec![vec![0.0f32; data.dim()]; data.classes().len()];
        let mut values = vec![0.0; data.dim()];
        for (row, shares) in posterior.shares().iter().enumerate() {
            data.features().decode_row(row, &mut values);
            for &(class, share) in shares.iter().filter(|(class, _)| (*class as usize) < totals.len()) {
                let weight = share / totals[class as usize].max(f32::MIN_POSITIVE);
                vectors[class as usize]
                    .iter_mut()
                    .zip(&values)
                    .for_each(|(sum, value)| *sum += weight * value);
            }
        }
        ScoringRule::Vectors(Classifier::Vectors(vectors))
    }

    /// For every row a score of every class.
    pub fn scores(&self, rows: &[&[f32]], support: &Embeddings) -> Vec<Vec<f32>> {
        let by_class = match self {
            ScoringRule::Vectors(classifier) => {
                let nothing = Task::new(SupportSet::new(Vec::new(), Vec::new(), 0));
                classifier.scores(&nothing, &Queries::new(rows.to_vec()), &[])
            }
            ScoringRule::Placed { mean, vectors } => {
                let placed: Vec<Vec<f32>> = rows.iter().map(|row| place(row, mean)).collect();
                let placed: Vec<&[f32]> = placed.iter().map(Vec::as_slice).collect();
                let nothing = Task::new(SupportSet::new(Vec::new(), Vec::new(), 0));
                Classifier::Vectors(vectors.clone()).scores(&nothing, &Queries::new(placed), &[])
            }
            ScoringRule::Items(classifier) => {
                let values = super::all_rows(support);
                let items: Vec<&[f32]> = values.chunks_exact(support.dim()).collect();
                let labels = support.labels().to_vec();
                let task = Task::new(SupportSet::new(items, labels, support.classes().len()));
                return classifier.row_scores(&task, rows);
            }
        };
        (0..rows.len()).map(|row| by_class.iter().map(|scores| scores[row]).collect()).collect()
    }
}

/// A row minus the mean, at unit length; nothing is left of the mean itself.
pub(super) fn place(row: &[f32], mean: &[f32]) -> Vec<f32> {
    let moved: Vec<f32> = row.iter().zip(mean).map(|(value, mean)| value - mean).collect();
    let length = products::squared_norm(&moved).sqrt();
    let scale = if length > 0.0 { length.recip() } else { 0.0 };
    moved.into_iter().map(|value| value * scale).collect()
}
