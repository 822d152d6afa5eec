//! Classification of whole episodes by methods that keep the data themselves ([`RowClassifier`]).

use crate::episode::{ClassDraw, DrawnEpisode, Item};
use crate::error::Result;

/// A task whose items are given by their row numbers instead of their features.
#[derive(Debug, Clone, Copy)]
pub struct RowTask<'a> {
    /// The support set. The row of an outlier is a row of the outlier pool.
    pub support: &'a [Item],
    /// The classes of the episode, with the rows of their queries.
    pub classes: &'a [ClassDraw],
}

impl<'a> RowTask<'a> {
    /// The task of an episode under the noise setting with this index.
    pub fn new(drawn: &'a DrawnEpisode, setting: usize) -> Self {
        RowTask { support: &drawn.supports[setting], classes: &drawn.episode.classes }
    }

    /// The rows of all queries, class after class.
    pub fn queries(&self) -> impl Iterator<Item = u32> + use<'a> {
        self.classes.iter().flat_map(|class| class.queries.iter().copied())
    }
}

/// A method that holds the data of an evaluation, for example in the memory of a GPU, and classifies the queries of many
/// tasks at once from their row numbers.
///
/// An evaluation asks [`Method::row_classifier`](crate::method::Method::row_classifier) for it, and then does not read the
/// rows of episodes for this method.
pub trait RowClassifier: Send + Sync {
    /// The predicted class of every query of every task, in the order of [`RowTask::queries`], as an index into the classes of
    /// the task. The tasks of one call are those of up to 256 episodes under the same noise setting.
    ///
    /// # Errors
    /// If the computation fails, for instance because a GPU stopped working.
    fn classify(&self, tasks: &[RowTask<'_>]) -> Result<Vec<Vec<u32>>>;
}
