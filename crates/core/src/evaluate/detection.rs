//! Detection of wrong labels: [`Detection`] measures how well suspicion scores separate wrong labels from right ones.
//!
//! Some methods give every labelled item of an episode a suspicion score, higher for labels that are more likely wrong.
//! An evaluation pools the items of all episodes into one ranking, because a user who reviews the most suspicious items
//! first works through exactly this order.

use serde::Serialize;

/// How well a method finds wrong labels: ranking quality and calibration of its suspicion scores.
///
/// ```
/// use trueshot::evaluate::Detection;
///
/// let detection = Detection::score(&[0.9, 0.2, 0.4, 0.1], &[true, false, true, false], false).unwrap();
/// assert_eq!((detection.auroc, detection.average_precision, detection.wrong), (1.0, 1.0, 2));
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Detection {
    /// The area under the ROC curve, 0 to 1: the probability that a wrong label ranks above a right one. Ties count
    /// half.
    pub auroc: f64,
    /// The average precision, 0 to 1: the area under the curve of precision against recall, as a sum over recall steps.
    pub average_precision: f64,
    /// The expected calibration error, 0 to 1: the mean distance between predicted probability and observed frequency
    /// over 15 bins of equal width, weighted by the number of items. `None` for methods whose scores are not
    /// probabilities.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub calibration_error: Option<f64>,
    /// The number of items.
    pub items: usize,
    /// The number of items with a wrong label.
    pub wrong: usize,
}

impl Detection {
    /// Compares the suspicion score of each item with whether its label is wrong. With `are_probabilities`, the scores
    /// are probabilities of a wrong label, and their calibration is measured. `None` unless there are both wrong and
    /// right labels.
    ///
    /// # Panics
    /// If the lists have different lengths.
    pub fn score(suspicion: &[f32], wrong: &[bool], are_probabilities: bool) -> Option<Self> {
        assert_eq!(suspicion.len(), wrong.len());
        let total_wrong = wrong.iter().filter(|&&wrong| wrong).count();
        let total_right = wrong.len() - total_wrong;
        if total_wrong == 0 || total_right == 0 {
            return None;
        }
        let (auroc, average_precision) = ranking(suspicion, wrong, total_wrong, total_right);
        Some(Detection {
            auroc,
            average_precision,
            calibration_error: are_probabilities.then(|| calibration_error(suspicion, wrong)),
            items: wrong.len(),
            wrong: total_wrong,
        })
    }
}

/// (AUROC, average precision), computed in one pass down the ranking; items with equal scores are one step.
fn ranking(suspicion: &[f32], wrong: &[bool], total_wrong: usize, total_right: usize) -> (f64, f64) {
    let mut order: Vec<(f32, bool)> = suspicion.iter().copied().zip(wrong.iter().copied()).collect();
    order.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    // The numbers of wrong and of right labels in the ranking so far.
    let (mut wrong_above, mut right_above) = (0usize, 0usize);
    let (mut area, mut precision_sum) = (0.0, 0.0);
    for tied in order.chunk_by(|a, b| a.0 == b.0) {
        let wrong_here = tied.iter().filter(|&&(_, wrong)| wrong).count();
        let right_here = tied.len() - wrong_here;
        // For each right label of this step, the wrong labels that rank above it; those of the same step count half.
        area += right_here as f64 * (wrong_above as f64 + wrong_here as f64 / 2.0);
        wrong_above += wrong_here;
        right_above += right_here;
        // The precision at the end of this step, once for each wrong label in it.
        precision_sum += wrong_here as f64 * wrong_above as f64 / (wrong_above + right_above) as f64;
    }
    (area / (total_wrong as f64 * total_right as f64), precision_sum / total_wrong as f64)
}

/// The expected calibration error: the mean distance between predicted probability and observed frequency over 15 bins
/// of equal width, weighted by the number of items.
fn calibration_error(probability: &[f32], wrong: &[bool]) -> f64 {
    const BINS: usize = 15;
    // For every bin the sum of the predicted probabilities and the number of wrong labels. The difference of these two
    // is the distance of their means times the number of items in the bin, which is the weight of the bin.
    let mut bins = [(0.0f64, 0usize); BINS];
    for (&p, &wrong) in probability.iter().zip(wrong) {
        let (predicted, observed) = &mut bins[((p * BINS as f32) as usize).min(BINS - 1)];
        *predicted += f64::from(p);
        *observed += usize::from(wrong);
    }
    let gaps = bins.iter().map(|&(predicted, observed)| (predicted - observed as f64).abs());
    gaps.sum::<f64>() / probability.len() as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranking_figures_agree_with_scikit_learn() {
        // roc_auc_score and average_precision_score of scikit-learn 1.7 on the same scores, with ties.
        let suspicion = [0.1, 0.4, 0.35, 0.8, 0.4, 0.4, 0.9, 0.05];
        let wrong = [false, false, true, true, true, false, true, false];
        let detection = Detection::score(&suspicion, &wrong, false).unwrap();
        assert!((detection.auroc - 0.8125).abs() < 1e-12, "{}", detection.auroc);
        assert!(
            (detection.average_precision - 0.816_666_666_666_666_7).abs() < 1e-12,
            "{}",
            detection.average_precision
        );
        assert_eq!((detection.items, detection.wrong, detection.calibration_error), (8, 4, None));
    }

    #[test]
    fn calibration_error_of_a_known_case() {
        let probability = [0.95, 0.95, 0.95, 0.95, 0.05, 0.05];
        let wrong = [true, true, true, false, false, true];
        let error = Detection::score(&probability, &wrong, true).unwrap().calibration_error.unwrap();
        // Two bins: probabilities that sum to 3.8 with 3 wrong labels, and to 0.1 with 1 wrong label.
        assert!((error - ((3.8f64 - 3.0).abs() + (0.1f64 - 1.0).abs()) / 6.0).abs() < 1e-6, "{error}");
    }

    #[test]
    fn without_wrong_or_without_right_labels_there_is_nothing_to_detect() {
        assert_eq!(Detection::score(&[0.1, 0.2], &[false, false], false), None);
        assert_eq!(Detection::score(&[0.1, 0.2], &[true, true], false), None);
    }
}
