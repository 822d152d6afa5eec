//! Turns the class probabilities of an item ([`Posterior`]) into a [`Verdict`].
//!
//! If it is certain enough that the label is right or wrong, the verdict says so; otherwise it is [`Verdict::Unsure`].
//! For a wrong label, the verdict also says where the item belongs, if that is certain enough. [`Certainty`] says what
//! is enough. What a repair then does with the item is its [`Action`](super::Action).

use serde::{Deserialize, Serialize};

use super::evidence::share;

/// Whether the label of an item is right, and what is right instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// The label is right.
    Keep,
    /// The item belongs to another class.
    Relabel,
    /// The item belongs to none of the classes.
    Outlier,
    /// The label is wrong, but where the item belongs is not certain enough.
    Wrong,
    /// Whether the label is right is not certain enough.
    Unsure,
}

impl Verdict {
    /// The name in JSON and CSV.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Keep => "keep",
            Verdict::Relabel => "relabel",
            Verdict::Outlier => "outlier",
            Verdict::Wrong => "wrong",
            Verdict::Unsure => "unsure",
        }
    }
}

/// The smallest probability at which an item gets each verdict, from 0.5 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Certainty {
    /// For [`Verdict::Keep`]: of the given class.
    pub keep: f32,
    /// For [`Verdict::Relabel`]: of the suggested class.
    pub relabel: f32,
    /// For [`Verdict::Outlier`]: of none of the classes. Also the smallest probability of a wrong label at which a
    /// repair puts an item with the verdict [`Verdict::Wrong`] into quarantine.
    pub outlier: f32,
    /// For [`Verdict::Wrong`]: of a wrong label.
    pub wrong: f32,
}

impl Default for Certainty {
    /// 0.8 for actions: over the data sets of `docs/results/audit-grid.md`, 95 % of the labels to be changed were
    /// wrong, and 96 % of the suggested classes were right.
    fn default() -> Self {
        Certainty::of_actions(0.8)
    }
}

impl Certainty {
    /// `probability` for relabel and outlier. [`Verdict::Keep`] needs at most 0.75 and [`Verdict::Wrong`] at most 0.9:
    /// below `probability`, neither of them changes a label.
    pub fn of_actions(probability: f32) -> Self {
        Certainty {
            keep: probability.min(0.75),
            relabel: probability,
            outlier: probability,
            wrong: probability.min(0.9),
        }
    }
}

/// The class probabilities of one item.
#[derive(Debug, Clone)]
pub(super) struct Posterior {
    /// The class of its label.
    given: u32,
    /// The candidate classes, those that the item may belong to, with their probabilities, most probable first. The
    /// probability of a class that is not listed is 0.
    classes: Vec<(u32, f32)>,
    /// The probability that the item belongs to none of the classes; with those of `classes` it sums to 1.
    none: f32,
    /// The number of classes in the data.
    class_count: u32,
}

impl Posterior {
    /// The probabilities of the candidate classes of an item with the label `given`, and of none of the `class_count`
    /// classes.
    pub fn new(given: u32, mut classes: Vec<(u32, f32)>, none: f32, class_count: usize) -> Self {
        classes.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        Posterior { given, classes, none, class_count: class_count as u32 }
    }

    /// Sets the probability of a class to 1 and all others to 0: the user has confirmed it.
    pub fn confirm(&mut self, class: u32) {
        self.classes = vec![(class, 1.0)];
        self.none = 0.0;
    }

    /// The probability that the label is wrong: that of all other classes and of none.
    pub fn p_wrong(&self) -> f32 {
        (1.0 - share(&self.classes, self.given)).clamp(0.0, 1.0)
    }

    /// The probability that the item belongs to none of the classes.
    pub fn p_none(&self) -> f32 {
        self.none
    }

    /// The candidate classes with their probabilities, most probable first, without the probability of none of them.
    pub fn shares(&self) -> &[(u32, f32)] {
        &self.classes
    }

    /// The most probable class other than the given one.
    fn best_other(&self) -> Option<(u32, f32)> {
        self.classes.iter().copied().find(|(class, _)| *class != self.given)
    }

    /// The verdict, and the suggested class if it is [`Verdict::Relabel`].
    pub fn verdict(&self, certainty: Certainty) -> (Verdict, Option<u32>) {
        if share(&self.classes, self.given) >= certainty.keep {
            return (Verdict::Keep, None);
        }
        match self.best_other().filter(|(_, share)| *share >= certainty.relabel) {
            Some((class, _)) => (Verdict::Relabel, Some(class)),
            None if self.none >= certainty.outlier => (Verdict::Outlier, None),
            None if self.p_wrong() >= certainty.wrong => (Verdict::Wrong, None),
            None => (Verdict::Unsure, None),
        }
    }

    /// The three most probable classes, most probable first; `None` stands for none of the classes.
    pub fn probable(&self) -> Vec<(Option<u32>, f32)> {
        let mut all: Vec<(Option<u32>, f32)> =
            self.classes.iter().map(|&(class, share)| (Some(class), share)).collect();
        all.push((None, self.none));
        all.sort_by(|a, b| b.1.total_cmp(&a.1));
        all.truncate(MAX_PROBABLE);
        all
    }

    /// What would help to decide, as a sentence for the user: more items of the smaller of two classes, if it has fewer
    /// than [`ENOUGH`]. The two are the given class and the most probable other one; only the given class counts if
    /// "none of the classes" is more probable than the other. `counts` and `name` return the number of items and the
    /// name of a class.
    pub fn advice(&self, counts: impl Fn(u32) -> usize, name: impl Fn(u32) -> String) -> Option<String> {
        let other = self.best_other().filter(|(_, share)| *share > self.none);
        let other = other.map_or(self.given, |(other, _)| other);
        let fewer = if counts(other) < counts(self.given) { other } else { self.given };
        let wanted = ENOUGH.checked_sub(counts(fewer)).filter(|wanted| *wanted > 0)?;
        // Never fewer than two, and at most four even for an empty class.
        let more = ["two", "three", "four"][wanted.clamp(2, 4) - 2];
        Some(format!("{more} more items of {} would help to decide", name(fewer)))
    }

    /// Classes with their probabilities, most probable first; the class number after the last one stands for none of
    /// the classes.
    pub fn into_shares(mut self) -> Vec<(u32, f32)> {
        self.classes.push((self.class_count, self.none));
        self.classes.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        self.classes
    }

    /// Adds `log_odds` to the log-odds of a wrong label; the ratios between all classes but the given one stay the
    /// same.
    fn shift(&mut self, log_odds: f64) {
        self.set_wrong(shifted(f64::from(self.p_wrong()), log_odds));
    }

    /// Sets the probability that the label is wrong; the ratios between all classes but the given one stay the same. If
    /// it was 0, the item then belongs to none of the classes with probability `p_wrong`.
    pub fn set_wrong(&mut self, p_wrong: f64) {
        let wrong = f64::from(self.p_wrong());
        // The factor of the probabilities of all classes but the given one.
        let factor = if wrong > 0.0 { p_wrong / wrong } else { 0.0 };
        let scaled = |share: f32| (f64::from(share) * factor) as f32;
        let others = self.classes.iter().filter(|(class, _)| *class != self.given);
        let mut classes: Vec<(u32, f32)> = others.map(|&(class, share)| (class, scaled(share))).collect();
        classes.push((self.given, (1.0 - p_wrong) as f32));
        let none = if wrong > 0.0 { scaled(self.none) } else { p_wrong as f32 };
        *self = Posterior::new(self.given, classes, none, self.class_count as usize);
    }
}

/// The number of probable classes to report.
const MAX_PROBABLE: usize = 3;

/// The number of items per class below which [`Posterior::advice`] asks for more.
const ENOUGH: usize = 5;

/// Adds the same number to the log-odds of a wrong label of all items, so that the mean of P(wrong) is `noise_rate`:
/// the share of wrong labels that the user expects, from 0 to 1. Probabilities of exactly 0 and 1 do not change.
pub(super) fn match_expected_noise(posteriors: &mut [&mut Posterior], noise_rate: f64) {
    let wanted = noise_rate * posteriors.len() as f64;
    let expected = |log_odds: f64| -> f64 {
        posteriors.iter().map(|posterior| shifted(f64::from(posterior.p_wrong()), log_odds)).sum()
    };
    // Bisection: the expected number of wrong labels grows with the shift. A shift of 40 makes nearly every label wrong
    // or right (e^-40 is 4e-18), and 60 halvings reach the precision of f64.
    let (mut low, mut high) = (-40.0, 40.0);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if expected(middle) < wanted { low = middle } else { high = middle }
    }
    let middle = (low + high) / 2.0;
    posteriors.iter_mut().for_each(|posterior| posterior.shift(middle));
}

/// The probability with `log_odds` added to its log-odds.
fn shifted(probability: f64, log_odds: f64) -> f64 {
    match probability {
        p if p <= 0.0 || p >= 1.0 => p,
        p => 1.0 / (1.0 + ((1.0 - p) / p) * (-log_odds).exp()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn posterior(classes: &[(u32, f32)], none: f32) -> Posterior {
        Posterior::new(0, classes.to_vec(), none, 3)
    }

    #[test]
    fn verdicts_follow_what_is_probable_enough() {
        let verdict =
            |classes: &[(u32, f32)], none| posterior(classes, none).verdict(Certainty::of_actions(0.7));
        assert_eq!(verdict(&[(0, 0.8), (1, 0.1)], 0.1), (Verdict::Keep, None));
        assert_eq!(verdict(&[(0, 0.1), (2, 0.8)], 0.1), (Verdict::Relabel, Some(2)));
        assert_eq!(verdict(&[(0, 0.1), (2, 0.1)], 0.8), (Verdict::Outlier, None));
        assert_eq!(verdict(&[(0, 0.01), (2, 0.5), (1, 0.45)], 0.04), (Verdict::Wrong, None));
        assert_eq!(verdict(&[(0, 0.4), (2, 0.4)], 0.2), (Verdict::Unsure, None));
    }

    #[test]
    fn expecting_more_wrong_labels_keeps_their_order_and_meets_the_number() {
        let mut all = [posterior(&[(0, 0.9), (1, 0.06)], 0.04), posterior(&[(0, 0.3), (1, 0.5)], 0.2)];
        match_expected_noise(&mut all.iter_mut().collect::<Vec<_>>(), 0.75);
        let wrong: Vec<f32> = all.iter().map(Posterior::p_wrong).collect();
        assert!((wrong[0] + wrong[1] - 1.5).abs() < 1e-4 && wrong[0] < wrong[1], "{wrong:?}");
        for posterior in &all {
            let total: f32 = posterior.classes.iter().map(|(_, share)| share).sum::<f32>() + posterior.none;
            assert!((total - 1.0).abs() < 1e-5, "{posterior:?}");
        }
    }

    #[test]
    fn a_label_that_is_wrong_for_certain_is_never_called_unsure() {
        for certainty in [0.5, 0.75, 0.9, 0.99, 1.0] {
            let (verdict, _) =
                posterior(&[(0, 0.01), (1, 0.5), (2, 0.45)], 0.04).verdict(Certainty::of_actions(certainty));
            assert!(!matches!(verdict, Verdict::Unsure | Verdict::Keep), "{certainty}: {verdict:?}");
        }
    }

    #[test]
    fn the_probability_of_a_wrong_label_can_be_set() {
        for classes in [&[(0, 0.9), (1, 0.06)][..], &[(0, 1.0)], &[(1, 1.0)]] {
            let none = 1.0 - classes.iter().map(|(_, share)| share).sum::<f32>();
            let mut posterior = posterior(classes, none);
            posterior.set_wrong(0.3);
            assert!((posterior.p_wrong() - 0.3).abs() < 1e-6, "{posterior:?}");
            let total: f32 = posterior.classes.iter().map(|(_, share)| share).sum::<f32>() + posterior.none;
            assert!((total - 1.0).abs() < 1e-6, "{posterior:?}");
        }
    }

    #[test]
    fn advice_asks_for_more_of_the_smaller_class() {
        let unsure = posterior(&[(0, 0.4), (2, 0.5)], 0.1);
        let name = |class: u32| ["cat", "cow", "dog"][class as usize].to_string();
        assert_eq!(
            unsure.advice(|class| [9, 9, 2][class as usize], name).as_deref(),
            Some("three more items of dog would help to decide")
        );
        assert_eq!(unsure.advice(|_| 9, name), None);
        assert_eq!(posterior(&[(0, 0.4), (2, 0.1)], 0.5).advice(|_| 9, name), None);
    }
}
