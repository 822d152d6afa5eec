//! The loss of nearest prototypes ([`loss`]), with which [`super::BackboneTrainee`] trains a backbone on the CPU. Joint
//! training adds it to the loss of a head.
//!
//! It is computed on one episode, a small classification problem: its *support items* have given labels, which may be
//! wrong, and its *queries* are classified. The prototype of a class is the mean or the geometric median of its support
//! items. The loss is the cross-entropy of the queries, with the negative squared distances to the prototypes as
//! logits.
//!
//! Shapes: n support items and m queries with D features, N classes; features are `[n + m, D]`, support items first.
//! The prefix `d_` marks the gradient of the loss with respect to a value, of the same shape.
//! Computed in f64, which takes about a hundredth of a step and makes the gradient easy to check.

/// How the prototype of a class is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Aggregate {
    /// The mean of the support items.
    #[default]
    Mean,
    /// The geometric median of the support items: five steps of Weiszfeld's algorithm from the mean.
    Median,
}

/// Steps of Weiszfeld's algorithm, which repeats the mean weighted by the inverse distances to the previous point. As
/// in the method `median` of the paper.
const STEPS: usize = 5;
/// Smooths distances to `sqrt(|p - h|^2 + EPS^2)`, so that they are above zero; in units of the features, as in the
/// method `median`.
const EPS: f64 = 0.5;

/// The labels of an episode. A label is the index of a class in the episode, below `classes`.
#[derive(Debug, Clone, Copy)]
pub struct EpisodeLabels<'a> {
    /// The number of classes.
    pub classes: usize,
    /// The given label of each support item; support items are the first rows.
    pub given: &'a [u32],
    /// The class of each query; queries are the rows after the support items.
    pub query_classes: &'a [u32],
}

/// The mean loss of the queries, for features of shape `[n + m, D]`. Writes its gradient with respect to the features,
/// of the same shape, to `d_features`.
///
/// # Panics
/// If the number of features is not a multiple of the number of rows, or a class has no support item.
pub fn loss(
    features: &[f32],
    labels: EpisodeLabels<'_>,
    aggregate: Aggregate,
    d_features: &mut [f32],
) -> f64 {
    let wide: Vec<f64> = features.iter().map(|&value| f64::from(value)).collect();
    let (loss, gradient) = loss_and_gradient(&wide, labels, aggregate);
    d_features.iter_mut().zip(gradient).for_each(|(narrow, wide)| *narrow = wide as f32);
    loss
}

/// [`loss`] in f64: the loss, and its gradient with respect to the features.
fn loss_and_gradient(features: &[f64], labels: EpisodeLabels<'_>, aggregate: Aggregate) -> (f64, Vec<f64>) {
    let rows = labels.given.len() + labels.query_classes.len();
    let dim = features.len() / rows;
    assert_eq!(features.len(), rows * dim, "whole rows");
    let row = |row: usize| &features[row * dim..(row + 1) * dim];
    // The rows of the support items of each class, by their given labels, and their features.
    let members: Vec<Vec<usize>> = (0..labels.classes)
        .map(|class| (0..labels.given.len()).filter(|&item| labels.given[item] as usize == class).collect())
        .collect();
    let items: Vec<Vec<&[f64]>> =
        members.iter().map(|members| members.iter().map(|&member| row(member)).collect()).collect();
    let prototypes: Vec<Prototype> = items.iter().map(|items| Prototype::of(items, aggregate)).collect();
    let mut gradient = vec![0.0; features.len()];
    let mut d_prototypes = vec![vec![0.0; dim]; labels.classes];
    let mut total = 0.0;
    let query_weight = 1.0 / labels.query_classes.len() as f64;
    for (query, &class) in labels.query_classes.iter().enumerate() {
        let query = labels.given.len() + query;
        let probabilities =
            softmax(prototypes.iter().map(|prototype| -squared_distance(row(query), prototype.last())));
        // A probability that is rounded to 0 has a large loss instead of an infinite one.
        total -= query_weight * probabilities[class as usize].max(f64::MIN_POSITIVE).ln();
        let d_query = &mut gradient[query * dim..(query + 1) * dim];
        for (candidate, prototype) in prototypes.iter().enumerate() {
            let target = if candidate == class as usize { 1.0 } else { 0.0 };
            // The derivative of the loss by `|q - p|^2` is `query_weight * (target - probability)`, and that of
            // `|q - p|^2` is `2 (q - p)` by the query and `-2 (q - p)` by the prototype. `factor` is all but `q - p`.
            let factor = 2.0 * query_weight * (target - probabilities[candidate]);
            let gradients = d_query.iter_mut().zip(&mut d_prototypes[candidate]);
            for ((d_query, d_prototype), (q, p)) in gradients.zip(row(query).iter().zip(prototype.last())) {
                *d_query += factor * (q - p);
                *d_prototype -= factor * (q - p);
            }
        }
    }
    // From the prototypes to the support items that they were computed from.
    for (class, d_prototype) in d_prototypes.into_iter().enumerate() {
        let d_items = prototypes[class].backward(&items[class], d_prototype);
        for (&member, d_item) in members[class].iter().zip(d_items) {
            gradient[member * dim..(member + 1) * dim].iter_mut().zip(d_item).for_each(|(sum, d)| *sum += d);
        }
    }
    (total, gradient)
}

/// The prototype of a class, with the intermediate results that the backward pass needs.
struct Prototype {
    /// The iterates of Weiszfeld's algorithm, `[steps + 1, D]`. The first is the mean, the last is the prototype; a
    /// mean takes no steps.
    points: Vec<Vec<f64>>,
    /// The weights of the items in each step, `[steps, items]`: smoothed inverse distances to the previous iterate.
    weights: Vec<Vec<f64>>,
}

impl Prototype {
    /// The prototype of the support items of a class.
    fn of(items: &[&[f64]], aggregate: Aggregate) -> Self {
        assert!(!items.is_empty(), "a class without support items");
        let equal_weights = vec![1.0; items.len()];
        let mean = weighted_mean(items, &equal_weights);
        let mut prototype = Prototype { points: vec![mean], weights: Vec::new() };
        let steps = match aggregate {
            Aggregate::Mean => 0,
            Aggregate::Median => STEPS,
        };
        for _ in 0..steps {
            let point = prototype.last();
            let inverse = |item: &&[f64]| 1.0 / (squared_distance(point, item) + EPS * EPS).sqrt();
            let weights: Vec<f64> = items.iter().map(inverse).collect();
            prototype.points.push(weighted_mean(items, &weights));
            prototype.weights.push(weights);
        }
        prototype
    }

    /// The prototype itself.
    fn last(&self) -> &[f64] {
        self.points.last().expect("the first point is the mean")
    }

    /// The gradients of the items `h_i`, `[items, D]`, given the gradient of the prototype.
    ///
    /// A step goes from `p` to `p' = sum w_i h_i / sum w_i` with `w_i = r_i^(-1/2)` and `r_i = |p - h_i|^2 + EPS^2`. So
    /// the derivative of `p'` by `w_i` is `(h_i - p') / sum w_i`, and a change of `p` by `dp` and of `h_i` by `dh_i`
    /// changes `w_i` by `-w_i^3 (p - h_i) (dp - dh_i)`.
    fn backward(&self, items: &[&[f64]], mut d_point: Vec<f64>) -> Vec<Vec<f64>> {
        let mut d_items = vec![vec![0.0; d_point.len()]; items.len()];
        for (step, weights) in self.weights.iter().enumerate().rev() {
            let (before, after) = (&self.points[step], &self.points[step + 1]);
            let total: f64 = weights.iter().sum();
            let mut d_before = vec![0.0; d_point.len()];
            for ((item, d_item), weight) in items.iter().zip(&mut d_items).zip(weights) {
                // The gradient of the weight `w_i`, times `sum w_i`.
                let d_weight_times_total: f64 =
                    d_point.iter().zip(item.iter().zip(after)).map(|(d, (h, p))| d * (h - p)).sum();
                // The gradient of the weight, times `-w_i^3`.
                let factor = d_weight_times_total / total * -weight.powi(3);
                for feature in 0..d_point.len() {
                    // The part of the gradient through the weight, for the previous point; the item gets its opposite.
                    let through_weight = factor * (before[feature] - item[feature]);
                    d_before[feature] += through_weight;
                    d_item[feature] += weight / total * d_point[feature] - through_weight;
                }
            }
            d_point = d_before;
        }
        // The first point is the mean of the items.
        let item_weight = 1.0 / items.len() as f64;
        for d_item in &mut d_items {
            d_item.iter_mut().zip(&d_point).for_each(|(d_item, d_mean)| *d_item += item_weight * d_mean);
        }
        d_items
    }
}

/// The mean of the items with these weights, which need not sum to 1.
fn weighted_mean(items: &[&[f64]], weights: &[f64]) -> Vec<f64> {
    let total: f64 = weights.iter().sum();
    let mut mean = vec![0.0; items[0].len()];
    for (item, weight) in items.iter().zip(weights) {
        mean.iter_mut().zip(*item).for_each(|(sum, value)| *sum += weight / total * value);
    }
    mean
}

/// `|a - b|^2`.
fn squared_distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

/// The probabilities of classes with these logits. The largest logit is subtracted first, so that `exp` does not
/// overflow.
fn softmax(logits: impl Iterator<Item = f64>) -> Vec<f64> {
    let logits: Vec<f64> = logits.collect();
    let largest = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let exponentials: Vec<f64> = logits.iter().map(|logit| (logit - largest).exp()).collect();
    let total: f64 = exponentials.iter().sum();
    exponentials.into_iter().map(|exponential| exponential / total).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use trueshot::rng::{Purpose, Rng};

    const GIVEN: [u32; 9] = [0, 1, 2, 0, 1, 2, 2, 0, 0];
    const QUERIES: [u32; 4] = [2, 0, 1, 1];
    const DIM: usize = 6;

    fn features() -> Vec<f64> {
        let mut rng = Rng::new(4, Purpose::Method, 0);
        (0..(GIVEN.len() + QUERIES.len()) * DIM).map(|_| f64::from(2.0 * rng.uniform() - 1.0)).collect()
    }

    fn labels() -> EpisodeLabels<'static> {
        EpisodeLabels { classes: 3, given: &GIVEN, query_classes: &QUERIES }
    }

    #[test]
    fn gradients_agree_with_central_differences() {
        for aggregate in [Aggregate::Mean, Aggregate::Median] {
            let features = features();
            let (_, gradient) = loss_and_gradient(&features, labels(), aggregate);
            for index in 0..features.len() {
                let loss_after_change = |change: f64| {
                    let mut changed = features.clone();
                    changed[index] += change;
                    loss_and_gradient(&changed, labels(), aggregate).0
                };
                let difference = (loss_after_change(1e-5) - loss_after_change(-1e-5)) / 2e-5;
                assert!((difference - gradient[index]).abs() < 1e-9, "{aggregate:?} {index}");
            }
        }
    }

    #[test]
    fn the_loss_is_0_at_the_prototype_and_that_of_a_guess_between_two_prototypes() {
        let labels = EpisodeLabels { classes: 2, given: &[0, 1], query_classes: &[0] };
        let at_prototype = loss_and_gradient(&[0.0, 30.0, 0.0], labels, Aggregate::Mean).0;
        let between = loss_and_gradient(&[-1.0, 1.0, 0.0], labels, Aggregate::Median).0;
        assert!(at_prototype < 1e-12 && (between - 2_f64.ln()).abs() < 1e-12);
    }

    #[test]
    fn the_median_is_that_of_the_method() {
        use trueshot::method::Registry;
        use trueshot::task::{SupportSet, Task};
        let rows: Vec<f32> = features().iter().map(|&value| value as f32).collect();
        let support: Vec<&[f32]> = rows.chunks_exact(DIM).take(GIVEN.len()).collect();
        let task = Task::new(SupportSet::new(support.clone(), GIVEN.to_vec(), 3));
        let method = Registry::default().parse("median").unwrap().method;
        let fitted = method.fit(&task, &mut Rng::new(0, Purpose::Method, 0)).unwrap();
        let assessments = fitted.assessments.unwrap();
        for class in 0..3 {
            let wide: Vec<Vec<f64>> = (0..GIVEN.len())
                .filter(|&item| GIVEN[item] == class)
                .map(|item| support[item].iter().map(|&value| f64::from(value)).collect())
                .collect();
            let items: Vec<&[f64]> = wide.iter().map(Vec::as_slice).collect();
            let prototype = Prototype::of(&items, Aggregate::Median);
            let weights = &prototype.weights[STEPS - 1];
            let total: f64 = weights.iter().sum();
            let of_class = (0..GIVEN.len()).filter(|&item| GIVEN[item] == class);
            let scale: f32 = of_class.clone().map(|item| assessments[item].weight).sum();
            for (item, weight) in of_class.zip(weights) {
                let expected = f64::from(assessments[item].weight / scale);
                assert!((weight / total - expected).abs() < 1e-5);
            }
        }
    }
}
