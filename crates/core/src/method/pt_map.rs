//! The method `pt-map` (Hu et al., 2021): a power transform of the features, then prototypes (one point per class)
//! moved by optimal transport of the queries. It is transductive: it classifies all queries of a task together.
//!
//! Every feature x becomes `(max(x, 0) + 1e-6)^power`. Prototypes start at the class means. In every step, the Sinkhorn
//! algorithm assigns the queries softly to the prototypes, such that every query has a total of 1 and every class the
//! same share of the queries; the prototypes then move by `rate` towards the means under this assignment. A query gets
//! the class with its largest share after the last step.
//!
//! As in easyfsl (a PyTorch library of few-shot methods), rows are scaled to unit length before the power transform;
//! the paper scales them afterwards (`normalise=after`), and its program also centres items and queries separately.
//! Every class is assumed to have the same number of queries.

use super::centring::{Centre, JointGram, Preparation, PresentClasses, Transductive};
use super::laplacianshot::squared_distances;
use super::registry::{MethodInfo, Parameter, Parameters};
use crate::classifier::{TransductiveScorer, centred_unit};
use crate::task::{Queries, Task};

pub(super) const INFO: MethodInfo = MethodInfo {
    name: "pt-map",
    summary: "power transform, then prototypes moved by optimal transport of the queries",
    parameters: &[
        Parameter { name: "steps", default: "10", meaning: "number of times the prototypes move" },
        Parameter {
            name: "rate",
            default: "0.2",
            meaning: "share of the way to the new means that a step takes",
        },
        Parameter {
            name: "lambda",
            default: "10",
            meaning: "factor of the squared distances in the transport",
        },
        Parameter { name: "power", default: "0.5", meaning: "exponent of the features" },
        Centre::parameter("none"),
        Parameter {
            name: "normalise",
            default: "before",
            meaning: "unit length before the power transform, after it (the paper), or none",
        },
    ],
    transductive: true,
    build: |given: &Parameters| {
        let choices = [("before", Normalise::Before), ("after", Normalise::After), ("none", Normalise::None)];
        let normalise = given.choice("normalise", "before, after or none", &choices)?;
        let unit = normalise == Normalise::Before;
        let scorer = PtMap {
            steps: given.count("steps")?,
            rate: f64::from(given.fraction("rate")?),
            lambda: f64::from(given.positive("lambda")?),
            power: given.positive("power")?,
            normalise,
            preparation: Preparation { centre: Centre::parse(given)?, unit },
        };
        Ok(Transductive::boxed(scorer, |scorer| &scorer.preparation))
    },
};

/// Added to every feature before the power transform, so that its argument is above 0.
const EPSILON: f32 = 1e-6;

/// Maximum number of iterations of the Sinkhorn algorithm, each of which scales all rows and then all columns.
const MAX_ITERATIONS: usize = 1000;

/// The Sinkhorn algorithm stops when an iteration changes every row sum by less than this.
const TOLERANCE: f64 = 1e-6;

/// When rows are scaled to unit length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Normalise {
    /// Before the power transform.
    Before,
    /// After the power transform.
    After,
    /// Never.
    None,
}

#[derive(Debug)]
struct PtMap {
    /// Number of times the prototypes move.
    steps: usize,
    /// Fraction of the way to the new means that a step takes.
    rate: f64,
    /// Factor of the squared distances in the transport.
    lambda: f64,
    /// Exponent of the features.
    power: f32,
    normalise: Normalise,
    preparation: Preparation,
}

impl TransductiveScorer for PtMap {
    fn scores(&self, task: &Task<'_>, queries: &Queries<'_>, _products: &[f32]) -> Vec<Vec<f32>> {
        let classes = PresentClasses::new(task);
        let gram = JointGram::of_rows(&self.transformed_rows(task, queries), task.support.len());
        let mut prototypes = classes.means(gram.rows());
        for _ in 0..self.steps {
            let plan = self.transport(&squared_distances(&gram, &prototypes));
            for (class, (prototype, items)) in prototypes.iter_mut().zip(classes.members()).enumerate() {
                self.move_prototype(prototype, items, plan.iter().map(|shares| shares[class]));
            }
        }
        let plan = self.transport(&squared_distances(&gram, &prototypes));
        let of_class = |class: usize| plan.iter().map(|shares| shares[class]).collect();
        let scores: Vec<Vec<f64>> = (0..classes.len()).map(of_class).collect();
        classes.all_scores(&scores, queries.len())
    }
}

impl PtMap {
    /// The rows `[items + queries][dim]` after centring, scaling and the power transform.
    fn transformed_rows(&self, task: &Task<'_>, queries: &Queries<'_>) -> Vec<Vec<f32>> {
        let power = |value: f32| match self.power {
            0.5 => value.sqrt(),
            power => value.powf(power),
        };
        let mut rows = self.preparation.rows(task, queries);
        for row in &mut rows {
            row.iter_mut().for_each(|value| *value = power(value.max(0.0) + EPSILON));
            if self.normalise == Normalise::After {
                *row = centred_unit(row, &vec![0.0; row.len()]);
            }
        }
        rows
    }

    /// Moves a prototype, given as coefficients `[rows]` of items and queries, by the fraction `rate` of the way to the
    /// mean of the items of its class (weight 1 each) and of all queries, weighted by their shares: the parts of them
    /// that the transport plan assigns to the class.
    fn move_prototype(
        &self,
        prototype: &mut [f64],
        items: &[usize],
        query_shares: impl ExactSizeIterator<Item = f64> + Clone,
    ) {
        let total = items.len() as f64 + query_shares.clone().sum::<f64>();
        prototype.iter_mut().for_each(|coefficient| *coefficient *= 1.0 - self.rate);
        items.iter().for_each(|&item| prototype[item] += self.rate / total);
        let first_query = prototype.len() - query_shares.len();
        for (coefficient, share) in prototype[first_query..].iter_mut().zip(query_shares) {
            *coefficient += self.rate * share / total;
        }
    }

    /// The transport plan `[queries][classes]` for the costs `[queries][classes]` by the Sinkhorn algorithm, which
    /// scales `exp(-lambda cost)` until rows sum to 1 and columns to the number of queries per class.
    fn transport(&self, costs: &[Vec<f64>]) -> Vec<Vec<f64>> {
        // The first iteration scales every row, so the smallest cost of a row can be subtracted; without that, all
        // shares of a query far from every prototype would be 0.
        let kernel = |costs: &Vec<f64>| {
            let min = costs.iter().copied().fold(f64::INFINITY, f64::min);
            costs.iter().map(|cost| (-self.lambda * (cost - min)).exp()).collect()
        };
        let mut plan: Vec<Vec<f64>> = costs.iter().map(kernel).collect();
        let classes = plan.first().map_or(0, Vec::len);
        let per_class = plan.len() as f64 / classes as f64;
        for _ in 0..MAX_ITERATIONS {
            // 1e-10 avoids a division by 0 in rows or columns of zeros.
            let sums: Vec<f64> = plan.iter().map(|row| row.iter().sum()).collect();
            for (row, sum) in plan.iter_mut().zip(&sums) {
                row.iter_mut().for_each(|share| *share /= sum + 1e-10);
            }
            for class in 0..classes {
                let sum: f64 = plan.iter().map(|row| row[class]).sum();
                plan.iter_mut().for_each(|row| row[class] *= per_class / (sum + 1e-10));
            }
            let changes = plan.iter().zip(&sums).map(|(row, sum)| (row.iter().sum::<f64>() - sum).abs());
            if changes.fold(0.0, f64::max) < TOLERANCE {
                break;
            }
        }
        plan
    }
}
