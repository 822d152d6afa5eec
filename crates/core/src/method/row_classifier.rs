//! Classification of whole episodes by methods that keep the data themselves ([`RowClassifier`]).
//!
//! An evaluation usually passes the features of an episode to [`Method::fit`](crate::method::Method::fit). A method
//! whose data is already elsewhere, such as MAML with its images in GPU memory, gets row numbers instead ([`RowTask`])
//! and returns the predicted classes ([`RowPrediction`]).

use crate::episode::{ClassDraw, DrawnEpisode, Item};
use crate::error::Result;

/// A task whose items are given by their row numbers instead of their features.
#[derive(Debug, Clone, Copy)]
pub struct RowTask<'a> {
    /// The number of the episode, from 0.
    pub episode: u64,
    /// The support set, with noise. The row of an outlier (an item of none of the classes) is a row of the outlier pool
    /// of the evaluation, or of its embeddings if it has no such pool.
    pub support: &'a [Item],
    /// The classes of the episode, with the rows of their queries.
    pub classes: &'a [ClassDraw],
}

impl<'a> RowTask<'a> {
    /// The task of an episode under the noise setting (a noise type with a level) number `setting` of the evaluation.
    pub fn new(drawn: &'a DrawnEpisode, setting: usize) -> Self {
        let DrawnEpisode { episode, supports } = drawn;
        RowTask { episode: episode.index, support: &supports[setting], classes: &episode.classes }
    }

    /// The rows of all queries, class after class.
    pub fn queries(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.classes.iter().flat_map(|class| class.queries.iter().copied())
    }
}

/// The answer of a [`RowClassifier`] to one task.
#[derive(Debug, Clone, PartialEq)]
pub struct RowPrediction {
    /// The predicted class of every query, in the order of [`RowTask::queries`], as an index into the classes of the
    /// task.
    pub classes: Vec<u32>,
    /// The probability that the label of each support item is wrong, from methods that estimate it.
    pub p_wrong: Option<Vec<f32>>,
}

impl From<Vec<u32>> for RowPrediction {
    fn from(classes: Vec<u32>) -> Self {
        RowPrediction { classes, p_wrong: None }
    }
}

/// A method that holds the data of an evaluation, for example in the memory of a GPU, and classifies the queries of
/// many tasks at once from their row numbers.
///
/// An evaluation asks [`Method::row_classifier`](crate::method::Method::row_classifier) for it, and then does not read
/// the rows of episodes for this method.
pub trait RowClassifier: Send + Sync {
    /// One answer per task. The tasks of one call are those of consecutive episodes under the same noise setting, at
    /// most [`RowClassifier::max_tasks`].
    ///
    /// # Errors
    /// If the computation fails, for instance because a GPU stopped working. After
    /// [`Error::MethodFailed`](crate::Error::MethodFailed) the evaluation goes on without the method; after
    /// [`Error::Interrupted`](crate::Error::Interrupted) it ends with the episodes before these.
    fn classify(&self, tasks: &[RowTask<'_>]) -> Result<Vec<RowPrediction>>;

    /// The largest number of tasks that one call gets; 256 unless overridden. Progress is reported after each call.
    fn max_tasks(&self) -> u64 {
        256
    }
}
