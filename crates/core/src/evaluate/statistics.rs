//! Statistics of evaluations: [`Estimate`], a mean with its 95 % confidence interval and p-value, and [`holm`], the
//! correction of p-values for multiple comparisons. The values are the accuracies of a method in each episode, or the
//! differences of two methods on the same episodes.

use serde::Serialize;

/// The half-width of the 95 % interval of a standard normal distribution, in standard deviations.
const Z95: f64 = 1.96;

/// A mean and its 95 % confidence interval under a normal distribution.
///
/// ```
/// use trueshot::evaluate::Estimate;
///
/// let estimate = Estimate::of([1.0, 2.0, 3.0, 4.0].into_iter()).unwrap();
/// assert_eq!(estimate.mean, 2.5);
/// assert!(estimate.p_value() < 0.001);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Estimate {
    /// The mean, in the unit of the values.
    pub mean: f64,
    /// The half-width of the 95 % confidence interval; `None` for a single value.
    pub ci95: Option<f64>,
}

impl Estimate {
    /// The mean of `values` and its interval; `None` if there are no values.
    pub fn of(values: impl ExactSizeIterator<Item = f64> + Clone) -> Option<Self> {
        let count = values.len();
        if count == 0 {
            return None;
        }
        let mean = values.clone().sum::<f64>() / count as f64;
        let variance = values.map(|value| (value - mean).powi(2)).sum::<f64>() / (count as f64 - 1.0);
        let ci95 = (count > 1).then(|| Z95 * (variance / count as f64).sqrt());
        Some(Estimate { mean, ci95 })
    }

    /// The two-sided p-value: the probability of a mean at least this far from zero if the true mean were zero. It is 1
    /// for a single value.
    pub fn p_value(&self) -> f64 {
        match self.ci95 {
            _ if self.mean == 0.0 => 1.0,
            Some(0.0) => 0.0,
            // With z = |mean| / standard error, erfc(z / sqrt 2) is the two-sided tail of the normal distribution. The
            // standard error is half_width / Z95.
            Some(half_width) => libm::erfc(self.mean.abs() / (half_width / Z95) / std::f64::consts::SQRT_2),
            None => 1.0,
        }
    }
}

/// Corrects p-values for multiple comparisons (Holm 1979): the probability of any false positive among them stays below
/// the significance level, even if the tests are dependent. The corrected values are in the order of `p_values`.
///
/// ```
/// assert_eq!(trueshot::evaluate::holm(&[0.02, 0.5]), [0.04, 0.5]);
/// ```
pub fn holm(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|&a, &b| p_values[a].total_cmp(&p_values[b]));
    let mut corrected = vec![0.0; p_values.len()];
    // The k-th smallest of n values (k = `rank` + 1) is multiplied by n - k + 1, and never becomes smaller than
    // the one before it.
    let mut largest = 0.0f64;
    for (rank, &index) in order.iter().enumerate() {
        largest = largest.max(p_values[index] * (p_values.len() - rank) as f64).min(1.0);
        corrected[index] = largest;
    }
    corrected
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mean_and_interval_of_known_values() {
        let estimate = Estimate::of([1.0, 2.0, 3.0, 4.0].into_iter()).unwrap();
        assert_eq!(estimate.mean, 2.5);
        assert!((estimate.ci95.unwrap() - 1.96 * (5.0f64 / 3.0 / 4.0).sqrt()).abs() < 1e-12);
        assert_eq!(Estimate::of([7.0].into_iter()).unwrap().ci95, None);
        assert_eq!(Estimate::of([].into_iter()), None);
    }

    #[test]
    fn p_values_follow_the_normal_distribution() {
        let at = |z: f64| Estimate { mean: z, ci95: Some(1.96) }.p_value();
        assert!((at(1.959964) - 0.05).abs() < 1e-6);
        assert!((at(-3.290527) - 0.001).abs() < 1e-6);
        assert_eq!(at(0.0), 1.0);
    }

    #[test]
    fn holm_agrees_with_statsmodels() {
        // As statsmodels.stats.multitest.multipletests(method="holm") gives it.
        let corrected = holm(&[0.01, 0.04, 0.03, 0.005]);
        for (found, expected) in corrected.iter().zip([0.03, 0.06, 0.06, 0.02]) {
            assert!((found - expected).abs() < 1e-12);
        }
    }
}
