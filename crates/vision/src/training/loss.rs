//! The loss of nearest prototypes, by which a backbone is trained ([`loss`]): cross-entropy of the queries over the
//! negative squared distances to the prototypes of the classes, which are means or geometric medians of the support
//! items.
//!
//! Shapes: n support items and m queries with D features, N classes. Computed in f64, which takes about a hundredth of
//! a step and makes the gradient easy to check.

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

/// Steps of Weiszfeld's algorithm, as in the method `median`.
const STEPS: usize = 5;
/// Keeps distances above zero, as in the method `median`.
const EPS: f64 = 0.5;

/// The labels of an episode.
#[derive(Debug, Clone, Copy)]
pub struct EpisodeLabels<'a> {
    /// The number of classes.
    pub classes: usize,
    /// The given label of each support item; support items are the first rows.
    pub given: &'a [u32],
    /// The class of each query; queries are the rows after the support items.
    pub query_classes: &'a [u32],
}

/// The mean loss of the queries. Writes its gradient with respect to the features, `[n + m, D]`, to `d_features`.
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

fn loss_and_gradient(features: &[f64], labels: EpisodeLabels<'_>, aggregate: Aggregate) -> (f64, Vec<f64>) {
    let rows = labels.given.len() + labels.query_classes.len();
    let dim = features.len() / rows;
    assert_eq!(features.len(), rows * dim, "whole rows");
    let row = |row: usize| &features[row * dim..(row + 1) * dim];
    let members: Vec<Vec<usize>> = (0..labels.classes)
        .map(|class| (0..labels.given.len()).filter(|&item| labels.given[item] as usize == class).collect())
        .collect();
    let items: Vec<Vec<&[f64]>> =
        members.iter().map(|members| members.iter().map(|&member| row(member)).collect()).collect();
    let prototypes: Vec<Prototype> = items.iter().map(|items| Prototype::of(items, aggregate)).collect();
    let mut gradient = vec![0.0; features.len()];
    let mut d_prototypes = vec![vec![0.0; dim]; labels.classes];
    let mut total = 0.0;
    let share = 1.0 / labels.query_classes.len() as f64;
    for (place, &class) in labels.query_classes.iter().enumerate() {
        let place = labels.given.len() + place;
        let shares =
            softmax(prototypes.iter().map(|prototype| -squared_distance(row(place), prototype.last())));
        total -= share * shares[class as usize].max(f64::MIN_POSITIVE).ln();
        let d_query = &mut gradient[place * dim..(place + 1) * dim];
        for (other, prototype) in prototypes.iter().enumerate() {
            let wanted = if other == class as usize { 1.0 } else { 0.0 };
            // The gradient of the squared distance, for the query and the prototype.
            let d_distance = 2.0 * share * (wanted - shares[other]);
            let both = d_query.iter_mut().zip(&mut d_prototypes[other]);
            for ((d_query, d_prototype), (q, p)) in both.zip(row(place).iter().zip(prototype.last())) {
                *d_query += d_distance * (q - p);
                *d_prototype -= d_distance * (q - p);
            }
        }
    }
    for (class, d_prototype) in d_prototypes.into_iter().enumerate() {
        let d_items = prototypes[class].backward(&items[class], d_prototype);
        for (&member, d_item) in members[class].iter().zip(d_items) {
            gradient[member * dim..(member + 1) * dim].iter_mut().zip(d_item).for_each(|(sum, d)| *sum += d);
        }
    }
    (total, gradient)
}

/// A prototype with what the backward pass needs.
struct Prototype {
    /// The iterates of Weiszfeld's algorithm; the first is the mean.
    points: Vec<Vec<f64>>,
    /// The weights of the items in each step: inverse distances to the previous iterate.
    weights: Vec<Vec<f64>>,
}

impl Prototype {
    fn of(items: &[&[f64]], aggregate: Aggregate) -> Self {
        assert!(!items.is_empty(), "a class without support items");
        let even = vec![1.0; items.len()];
        let mut prototype = Prototype { points: vec![weighted_mean(items, &even)], weights: Vec::new() };
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

    fn last(&self) -> &[f64] {
        self.points.last().expect("there is the mean")
    }

    /// The gradients of the items, given that of the last iterate. A step is `p' = sum w_i h_i / sum w_i` with `w_i =
    /// r_i^(-1/2)` and `r_i = |p - h_i|^2 + eps^2`, so `dw_i = -w_i^3 (p - h_i) (dp - dh_i)`.
    fn backward(&self, items: &[&[f64]], mut d_point: Vec<f64>) -> Vec<Vec<f64>> {
        let mut d_items = vec![vec![0.0; d_point.len()]; items.len()];
        for (step, weights) in self.weights.iter().enumerate().rev() {
            let (before, after) = (&self.points[step], &self.points[step + 1]);
            let total: f64 = weights.iter().sum();
            let mut d_before = vec![0.0; d_point.len()];
            for ((item, d_item), weight) in items.iter().zip(&mut d_items).zip(weights) {
                let along: f64 =
                    d_point.iter().zip(item.iter().zip(after)).map(|(d, (h, p))| d * (h - p)).sum();
                let d_weight = along / total * -weight.powi(3);
                for place in 0..d_point.len() {
                    let pull = d_weight * (before[place] - item[place]);
                    d_before[place] += pull;
                    d_item[place] += weight / total * d_point[place] - pull;
                }
            }
            d_point = d_before;
        }
        let share = 1.0 / items.len() as f64;
        for d_item in &mut d_items {
            d_item.iter_mut().zip(&d_point).for_each(|(d_item, d_mean)| *d_item += share * d_mean);
        }
        d_items
    }
}

fn weighted_mean(items: &[&[f64]], weights: &[f64]) -> Vec<f64> {
    let total: f64 = weights.iter().sum();
    let mut mean = vec![0.0; items[0].len()];
    for (item, weight) in items.iter().zip(weights) {
        mean.iter_mut().zip(*item).for_each(|(sum, value)| *sum += weight / total * value);
    }
    mean
}

fn squared_distance(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum()
}

fn softmax(logits: impl Iterator<Item = f64>) -> Vec<f64> {
    let logits: Vec<f64> = logits.collect();
    let most = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let powers: Vec<f64> = logits.iter().map(|logit| (logit - most).exp()).collect();
    let total: f64 = powers.iter().sum();
    powers.into_iter().map(|power| power / total).collect()
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
            for place in 0..features.len() {
                let moved = |by: f64| {
                    let mut moved = features.clone();
                    moved[place] += by;
                    loss_and_gradient(&moved, labels(), aggregate).0
                };
                let difference = (moved(1e-5) - moved(-1e-5)) / 2e-5;
                assert!((difference - gradient[place]).abs() < 1e-9, "{aggregate:?} {place}");
            }
        }
    }

    #[test]
    fn a_query_at_its_prototype_costs_nothing_and_one_in_the_middle_costs_the_guess() {
        let labels = EpisodeLabels { classes: 2, given: &[0, 1], query_classes: &[0] };
        let far = loss_and_gradient(&[0.0, 30.0, 0.0], labels, Aggregate::Mean).0;
        let middle = loss_and_gradient(&[-1.0, 1.0, 0.0], labels, Aggregate::Median).0;
        assert!(far < 1e-12 && (middle - 2_f64.ln()).abs() < 1e-12);
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
