//! The method `tim` (Boudiaf et al., 2020, the gradient variant TIM-GD): a query gets the class of the prototype with
//! the largest cosine, after the prototypes have been trained to maximise the mutual information of the queries and
//! their predicted classes. It is transductive: it classifies all queries of a task together.
//!
//! Prototypes start at the class means. With `p` the softmax over the classes of `T` times the cosine of a row and the
//! prototypes, Adam minimises
//!
//! ```text
//! support * cross-entropy of the items - marginal * H(mean of p over the queries) + conditional * mean of H(p)
//! ```
//!
//! where H is the entropy and `support`, `marginal` and `conditional` are parameters of the method. Defaults are those
//! of easyfsl (a PyTorch library of few-shot methods); the paper has `support=0.1`, `T=15` and `steps=1000`, and
//! squared distances instead of cosines. Adam divides every coordinate of the gradient by its own running length, so
//! prototypes are not combinations of rows and this method works on vectors.

use trueshot_nn::adamw::{AdamW, AdamWConfig};
use trueshot_nn::parameters::{ParameterLayout, Role};
use trueshot_nn::products;

use super::centring::{Centre, Preparation, PresentClasses, Transductive};
use super::laplacianshot::softmax;
use super::registry::{MethodInfo, Parameter, Parameters};
use crate::classifier::{TransductiveScorer, centred_unit};
use crate::task::{Queries, Task};

pub(super) const INFO: MethodInfo = MethodInfo {
    name: "tim",
    summary: "prototypes trained to maximise the mutual information of queries and classes",
    parameters: &[
        Parameter { name: "steps", default: "50", meaning: "training steps of Adam (1000 in the paper)" },
        Parameter { name: "rate", default: "0.0001", meaning: "learning rate" },
        Parameter { name: "T", default: "10", meaning: "factor of the cosines (15 in the paper)" },
        Parameter {
            name: "support",
            default: "1",
            meaning: "weight of the cross-entropy of the items (0.1 in the paper)",
        },
        Parameter { name: "marginal", default: "1", meaning: "weight of the entropy of the mean prediction" },
        Parameter {
            name: "conditional",
            default: "0.1",
            meaning: "weight of the mean entropy of the predictions",
        },
        Centre::parameter("none"),
        Preparation::NORMALISE,
    ],
    transductive: true,
    build: |given: &Parameters| {
        let scorer = Tim {
            steps: given.count("steps")?,
            rate: f64::from(given.positive("rate")?),
            cosine_factor: f64::from(given.positive("T")?),
            support: f64::from(given.not_negative("support")?),
            marginal: f64::from(given.not_negative("marginal")?),
            conditional: f64::from(given.not_negative("conditional")?),
            preparation: Preparation::parse(given)?,
        };
        Ok(Transductive::boxed(scorer, |scorer| &scorer.preparation))
    },
};

#[derive(Debug)]
struct Tim {
    /// Steps of Adam.
    steps: usize,
    /// Learning rate.
    rate: f64,
    /// The factor `T` from cosines to logits.
    cosine_factor: f64,
    /// Weight of the cross-entropy of the items.
    support: f64,
    /// Weight of the entropy of the mean prediction of the queries.
    marginal: f64,
    /// Weight of the mean entropy of the predictions of the queries.
    conditional: f64,
    preparation: Preparation,
}

impl TransductiveScorer for Tim {
    fn scores(&self, task: &Task<'_>, queries: &Queries<'_>, _products: &[f32]) -> Vec<Vec<f32>> {
        let classes = PresentClasses::new(task);
        let rows = self.preparation.rows(task, queries);
        let problem = TimProblem::new(&rows, &classes, task.support.len());
        let mut prototypes = problem.class_means(&rows);
        self.train(&problem, &mut prototypes);
        let cosines = problem.cosines(&problem.directions(&prototypes).0);
        // The cosines of one class with the queries, which follow the items.
        let of_queries = |cosines: &[f32]| cosines[problem.items..].iter().copied().map(f64::from).collect();
        let scores: Vec<Vec<f64>> = cosines.chunks_exact(rows.len().max(1)).map(of_queries).collect();
        classes.all_scores(&scores, queries.len())
    }
}

/// The rows of a task, scaled to unit length, and the classes of its items. Classes are indices into
/// [`PresentClasses`].
struct TimProblem {
    /// Rows of unit length `[items + queries][dim]`, items first.
    units: Vec<Vec<f32>>,
    /// Number of support items.
    items: usize,
    /// Length of a row.
    dim: usize,
    /// The indices of the items of every class.
    members: Vec<Vec<usize>>,
    /// The given class of every item.
    labels: Vec<usize>,
}

impl TimProblem {
    fn new(rows: &[Vec<f32>], classes: &PresentClasses, items: usize) -> Self {
        let dim = rows.first().map_or(0, Vec::len);
        let units = rows.iter().map(|row| centred_unit(row, &vec![0.0; dim])).collect();
        let members: Vec<Vec<usize>> = classes.members().map(<[usize]>::to_vec).collect();
        let mut labels = vec![0; items];
        for (class, members) in members.iter().enumerate() {
            members.iter().for_each(|&item| labels[item] = class);
        }
        TimProblem { units, items, dim, members, labels }
    }

    /// The means `[classes, dim]` of the items of every class. `rows` are the prepared rows `[items + queries][dim]`,
    /// which have unit length only with `normalise=l2`, unlike `self.units`.
    fn class_means(&self, rows: &[Vec<f32>]) -> Vec<f32> {
        let mut means = vec![0.0; self.members.len() * self.dim];
        for (members, mean) in self.members.iter().zip(means.chunks_exact_mut(self.dim.max(1))) {
            let rows: Vec<&[f32]> = members.iter().map(|&item| rows[item].as_slice()).collect();
            products::weighted_sum(&rows, &vec![1.0 / rows.len() as f32; rows.len()], mean);
        }
        means
    }

    /// The prototypes `[classes, dim]` scaled to unit length, `[classes][dim]`, and one over the length of each, 0 for
    /// a prototype of length 0.
    fn directions(&self, prototypes: &[f32]) -> (Vec<Vec<f32>>, Vec<f32>) {
        let inverse = |prototype: &[f32]| {
            let length = products::squared_norm(prototype).sqrt();
            if length > 0.0 { length.recip() } else { 0.0 }
        };
        let prototypes = || prototypes.chunks_exact(self.dim.max(1));
        let scales: Vec<f32> = prototypes().map(inverse).collect();
        let scaled = |(prototype, &scale): (&[f32], &f32)| prototype.iter().map(|x| x * scale).collect();
        (prototypes().zip(&scales).map(scaled).collect(), scales)
    }

    /// Cosines `[classes, rows]` of the rows and the directions of the prototypes.
    fn cosines(&self, directions: &[Vec<f32>]) -> Vec<f32> {
        let rows: Vec<&[f32]> = self.units.iter().map(Vec::as_slice).collect();
        let directions: Vec<&[f32]> = directions.iter().map(Vec::as_slice).collect();
        let mut cosines = vec![0.0; directions.len() * rows.len()];
        products::products(&rows, &directions, &mut cosines);
        cosines
    }
}

impl Tim {
    /// Trains the prototypes `[classes, dim]` in place.
    fn train(&self, problem: &TimProblem, prototypes: &mut [f32]) {
        let mut layout = ParameterLayout::default();
        layout.add("prototypes", &[prototypes.len()], Role::Trained);
        let mut optimiser = AdamW::new(&layout, AdamWConfig { weight_decay: 0.0, ..AdamWConfig::default() });
        for _ in 0..self.steps {
            let mut gradients = [self.gradient(problem, prototypes)];
            // 1.0: the gradient is not scaled.
            optimiser.step(self.rate, 1.0, prototypes, &mut gradients);
        }
    }

    /// The gradient `[classes, dim]` of the loss with respect to the prototypes.
    fn gradient(&self, problem: &TimProblem, prototypes: &[f32]) -> Vec<f32> {
        let (directions, scales) = problem.directions(prototypes);
        let of_cosines = self.cosine_gradient(problem, &problem.cosines(&directions));
        let rows: Vec<&[f32]> = problem.units.iter().map(Vec::as_slice).collect();
        let mut gradient = vec![0.0; prototypes.len()];
        for (class, out) in gradient.chunks_exact_mut(problem.dim.max(1)).enumerate() {
            // The cosine of a row u of unit length with d = p / |p| is <u, d>, so the gradient g with respect to d is a
            // weighted sum of the rows. That with respect to the prototype p is (g - <g, d> d) / |p|.
            products::weighted_sum(&rows, &of_cosines[class], out);
            let (direction, scale) = (&directions[class], scales[class]);
            let mut along = [0.0];
            products::products(&[direction], &[&*out], &mut along);
            out.iter_mut().zip(direction).for_each(|(g, d)| *g = (*g - along[0] * d) * scale);
        }
        gradient
    }

    /// The gradient `[classes][rows]` of the loss with respect to the cosines `[classes, rows]`.
    fn cosine_gradient(&self, problem: &TimProblem, cosines: &[f32]) -> Vec<Vec<f32>> {
        let (classes, rows) = (problem.members.len(), problem.units.len());
        let predict = |row: usize| {
            softmax(
                (0..classes).map(move |class| self.cosine_factor * f64::from(cosines[class * rows + row])),
            )
        };
        let predictions: Vec<Vec<f64>> = (0..rows).map(predict).collect();
        let (of_items, of_queries) = predictions.split_at(problem.items);
        // Items: the gradient of their mean cross-entropy, softmax minus one-hot label.
        let mut gradient = vec![vec![0.0; rows]; classes];
        let item_weight = self.support / problem.items as f64;
        for (item, (shares, &label)) in of_items.iter().zip(&problem.labels).enumerate() {
            for (class, share) in shares.iter().enumerate() {
                let target = if class == label { 1.0 } else { 0.0 };
                gradient[class][item] = (self.cosine_factor * item_weight * (share - target)) as f32;
            }
        }
        // Queries: the gradient of both entropy terms.
        let count = of_queries.len() as f64;
        // The mean prediction: the mean share of a class over the queries, and its logarithm for every class.
        let mean_share = |class: usize| of_queries.iter().map(|shares| shares[class]).sum::<f64>() / count;
        let mean_share_logs: Vec<f64> = (0..classes).map(|class| log(mean_share(class))).collect();
        for (query, shares) in of_queries.iter().enumerate() {
            // A term with derivative f_c with respect to share p_c of a softmax has the gradient
            // p_j (f_j - sum over c of p_c f_c) with respect to logit j. Constants in f cancel, so the derivative of
            // p log p counts as log p.
            let derivative = |(share, mean_share_log): (&f64, &f64)| {
                self.marginal * mean_share_log - self.conditional * log(*share)
            };
            let derivatives: Vec<f64> = shares.iter().zip(&mean_share_logs).map(derivative).collect();
            let mean_derivative: f64 = shares.iter().zip(&derivatives).map(|(share, f)| share * f).sum();
            for (class, share) in shares.iter().enumerate() {
                let of_logit = share * (derivatives[class] - mean_derivative) / count;
                gradient[class][problem.items + query] = (self.cosine_factor * of_logit) as f32;
            }
        }
        gradient
    }
}

/// The logarithm of a probability, finite at 0.
fn log(probability: f64) -> f64 {
    (probability + 1e-12).ln()
}
