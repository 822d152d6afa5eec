//! Few-shot methods: each fits one support set and returns a classifier and, if it can, an assessment of every item.
//!
//! A support set consists of a few items (rows of features) per class, each under a given label that may be wrong.
//! Queries are the rows to classify. A [`Task`] holds a support set together with its inner products.
//!
//! Start with [`Registry`], which makes a method from text such as `cosine:T=0.5` or
//! `median:steps=converge:hessian=full`, and with the trait [`Method`]. There is one file per method; `registry` parses
//! names and parameters, `similarity` is shared by `euclidean`, `absolute` and `cosine`, `centring` by `simpleshot` and
//! the transductive methods, and `tranfs` and `relabel` run the trained networks of the crate `trueshot-nn`.
//!
//! Most methods classify a query by the nearest prototype, one point per class. They represent prototypes as weighted
//! sums of support items instead of vectors, so they compute with the task's inner products (the Gram matrix) and cost
//! the same whatever the dimension of the features.
//!
//! Transductive methods (`laplacianshot`, `tim`, `bd-cspn`, `pt-map`) classify all queries of a task together and learn
//! from the queries as well. Their accuracies cannot be compared with those of methods that see one query at a time, so
//! they are marked in every list and report ([`MethodInfo::transductive`]), and they have no classifier that could be
//! saved.

mod absolute;
mod baseline_plus_plus;
mod bd_cspn;
mod centring;
mod cosine;
mod euclidean;
mod laplacianshot;
mod linear;
mod matching;
mod median;
mod nearest;
mod oracle;
mod protonet;
mod pt_map;
mod registry;
mod relabel;
mod rnnp;
mod row_classifier;
mod similarity;
mod simpleshot;
mod tim;
mod tranfs;

pub(crate) use registry::nearest_name;
pub use registry::{MethodInfo, NamedMethod, Parameter, Parameters, Registry};
pub use relabel::{KIND as RELABEL, RelabelConfig, RelabelOptions, TrainedRelabel};
pub use row_classifier::{RowClassifier, RowPrediction, RowTask};
pub use tranfs::{
    CleanKind, KIND as TRANFS, PositionKind, TokenKind, TrainedTranfs, TranfsConfig, TranfsOptions,
};

use std::any::Any;

use crate::classifier::{Classifier, Mixture};
use crate::error::Result;
use crate::rng::Rng;
use crate::task::Task;

/// A few-shot method: it fits a classifier to the support set of a task.
///
/// ```
/// use trueshot::classifier::Classifier;
/// use trueshot::method::{Fitted, Method};
/// use trueshot::rng::Rng;
/// use trueshot::task::Task;
///
/// struct ThreeNearest;
/// impl Method for ThreeNearest {
///     fn fit(&self, _task: &Task<'_>, _rng: &mut Rng) -> trueshot::Result<Fitted> {
///         Ok(Fitted { classifier: Classifier::Neighbours(3), assessments: None })
///     }
/// }
/// ```
pub trait Method: Any + Send + Sync {
    /// Fits one support set. `rng` is the random stream of this method in this episode.
    fn fit(&self, task: &Task<'_>, rng: &mut Rng) -> Result<Fitted>;

    /// Fits several support sets at once, `tasks[i]` with the random stream `rngs[i]`.
    ///
    /// The results must equal those of [`Method::fit`] on each task alone. Trained networks override this method,
    /// because their matrix products are efficient only on large batches.
    fn fit_batch(&self, tasks: &[&Task<'_>], rngs: &mut [Rng]) -> Result<Vec<Fitted>> {
        tasks.iter().zip(rngs).map(|(task, rng)| self.fit(task, rng)).collect()
    }

    /// Whether the method classifies all queries of a task together, so that the class of a query depends on the other
    /// queries.
    fn is_transductive(&self) -> bool {
        false
    }

    /// The image size that this method needs, if its rows are images; `None` if it works on embeddings.
    fn image_rows(&self) -> Option<ImageRows> {
        None
    }

    /// The classifier of whole episodes, if this method holds the data of the evaluation itself, for example in GPU
    /// memory. An evaluation then calls that classifier instead of [`Method::fit`]. `None` for all other methods.
    fn row_classifier(&self) -> Option<&dyn RowClassifier> {
        None
    }
}

/// The shape of rows that hold square images: `[size, size, channels]` values from 0 to 255, channels last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ImageRows {
    /// Height and width of the image in pixels.
    pub size: usize,
    /// Values per pixel: 1 for grey, 3 for RGB.
    pub channels: usize,
}

/// The result of fitting a method to one support set.
///
/// ```
/// use trueshot::method::Registry;
/// use trueshot::rng::{Purpose, Rng};
/// use trueshot::task::{SupportSet, Task};
///
/// let rows = [[0.0, 1.0], [0.1, 1.0], [0.9, 0.1], [1.0, 0.0], [0.9, 0.0]];
/// let support = SupportSet::new(rows.iter().map(|row| &row[..]).collect(), vec![0, 0, 0, 1, 1], 2);
/// let median = Registry::default().parse("median:eps=0.1")?.method;
/// let fitted = median.fit(&Task::new(support), &mut Rng::new(0, Purpose::Method, 0))?;
/// let assessments = fitted.assessments.expect("the median weights its items");
/// assert!(assessments[2].weight < 0.3, "item 2 resembles the other class");
/// # Ok::<(), trueshot::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Fitted {
    /// The classifier for queries.
    pub classifier: Classifier,
    /// One assessment per support item, in the order of the support set; `None` from methods that treat all items
    /// alike.
    pub assessments: Option<Vec<ItemAssessment>>,
}

/// A method's assessment of one support item: its weight and, from some methods, how likely its label is wrong.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ItemAssessment {
    /// The item's weight in the prototype of its given class, times the number of items with that label: 1 means an
    /// average item, 0 an ignored one. It is not a probability. TraNFS, whose prototypes are not weighted sums,
    /// reports `1 - p_wrong` instead.
    pub weight: f32,
    /// The probability that the given label is wrong, from methods that estimate it.
    pub p_wrong: Option<f32>,
    /// The recommended action for the item, from methods that estimate class probabilities.
    pub decision: Option<Decision>,
}

/// The recommended action for one support item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Keep the given label; it is probably right.
    Keep,
    /// Change the label to this class (an index below the number of classes of the task).
    Relabel(u32),
    /// Remove the item: it belongs to none of the classes.
    Outlier,
    /// Undecided: no class, nor "none of them", has a probability of at least one half.
    Unsure,
}

impl ItemAssessment {
    /// A score for ranking items by how suspicious their labels are, highest first: `p_wrong` if it is known, otherwise
    /// minus the weight.
    pub fn suspicion(&self) -> f32 {
        self.p_wrong.unwrap_or(-self.weight)
    }
}

/// A nearest-prototype classifier from weights within each class, with one assessment per item that reports its weight.
///
/// `weights[class]` has one weight per member of the class, in the order of
/// [`SupportSet::members`](crate::task::SupportSet::members), and sums to 1.
fn weighted_prototypes(task: &Task<'_>, weights: &[Vec<f32>]) -> Fitted {
    let mut assessments =
        vec![ItemAssessment { weight: 0.0, p_wrong: None, decision: None }; task.support.len()];
    for (members, weights) in task.support.members().iter().zip(weights) {
        for (&item, weight) in members.iter().zip(weights) {
            // Times the size of the class, so that the average weight is 1 in classes of any size.
            assessments[item as usize].weight = weight * members.len() as f32;
        }
    }
    let mixture = Mixture::within_classes(task, weights);
    Fitted { classifier: Classifier::Prototypes(mixture), assessments: Some(assessments) }
}

#[cfg(test)]
pub(crate) mod tests;
